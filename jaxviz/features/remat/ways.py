"""How a region becomes a checkpoint in the user's source: at the call, at the scan, at the definition, or at an existing checkpoint."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxviz.features.remat.edits import Edit, Way, around
from jaxviz.features.remat.libraries import in_library, in_librarys_call, is_module, library_of, scanned_module
from jaxviz.features.remat.recipes import recipes_of
from jaxviz.features.remat.regions import Frame, Region, Spot, place_of
from jaxviz.features.remat.source import (
    Function,
    assigned_to,
    call_at,
    checkpoint_decorator,
    definition_of,
    end_of,
    is_checkpoint,
    last_name,
    start_of,
    tree_of,
    without_checkpoint,
)  # fmt: skip
from jaxviz.ir.origin import Location
from jaxviz.ir.own_code import owner

_SCANS = {"scan": 0, "map": 0, "fori_loop": 2, "associative_scan": 0}
"""Functions of jax.lax that are scans, and the index of the body argument."""


def ways_of(region: Region, written: Sequence[Region]) -> list[tuple[Way, ...]]:
    """How to write a checkpoint at each place of a region, the simplest first; empty if one of them is not in the user's source.

    Args:
      region: the region.
      written: the existing checkpoints; one around the same equations gets another policy.
    """
    there = next((w for w in written if w.covers(region)), None)
    if there is not None and (found := _checkpoints(there)) is not None:
        return [tuple(replace(_retuned(*place), written=place[2]) for place in found)]
    if region.is_written:
        return []
    made: list[tuple[Way, ...]] = []
    for code in (None,) if region.is_body else (region.code, *region.others):
        ways = [_way(region, spot, code) for spot in region.spots]
        if None not in ways:
            made.append(tuple({way.key: way for way in ways if way is not None}.values()))
    return [*made, *(recipes_of(region) if there is None else ())]


def removals_of(region: Region) -> tuple[Way, ...] | None:
    """How to remove an existing checkpoint; None if it is not in the user's source."""
    found = _checkpoints(region)
    return tuple(_removed(*place) for place in found) if found is not None else None


# --- where there is no checkpoint yet ----------------------------------------------------------------------------------


def _way(region: Region, spot: Spot, code: Any) -> Way | None:
    frames = region.stacks.get(spot, ())
    if region.is_body:
        return _at_scan(frames)
    if code is None:
        return None
    level = next((i for i, (c, _) in enumerate(frames) if c is code), 0)
    by = next((i for i in range(level - 1, -1, -1) if owner(frames[i][0].co_filename) == "user"), None)
    call = call_at(place_of(*frames[by])) if by is not None else None
    if by is None or call is None:
        return None
    library = library_of(code)
    if owner(code.co_filename) != "user" or (library and any(is_module(c) for c, _ in frames[by + 1 : level])):
        return in_librarys_call(library, code, frames[by], call)
    return in_library(library, code, frames[by], call) if library else None


def _at_scan(frames: Sequence[Frame]) -> Way | None:
    """The body passed to a scan."""
    own = [f for f in frames if owner(f[0].co_filename) == "user"]
    call = call_at(place_of(*own[-1])) if own else None
    if call is None:
        return None
    if frames[-1] == own[-1] and (body := _body_argument(call)) is not None:
        file, node = own[-1][0].co_filename, without_checkpoint(body)
        edits = around(file, start_of(node), end_of(node), "jax.checkpoint(", ", prevent_cse=False{policy})")
        return Way(file, own[-1][0], tuple(edits), call=call)
    return scanned_module(own[-1], call)


def _body_argument(call: ast.Call) -> ast.expr | None:
    k = _SCANS.get(last_name(call.func))
    if k is None:
        return None
    named = next((w.value for w in call.keywords if w.arg in ("f", "body_fun")), None)
    return call.args[k] if k < len(call.args) else named


# --- where there is one ------------------------------------------------------------------------------------------------


_There = tuple[str, Any, ast.expr]
"""A file, code of it that was run, and the expression or decorator in it that is a checkpoint."""


def _checkpoints(region: Region) -> list[_There] | None:
    """Where the function's existing checkpoints are written; None if one of these places is not found."""
    found: dict[int, _There] = {}
    for frames in region.stacks.values():
        there = _checkpoint(frames, region.defined, region.name)
        if there is None or owner(there[0]) != "user":
            return None
        found[id(there[2])] = there
    return list(found.values()) or None


def _checkpoint(frames: Sequence[Frame], defined: Location | None, name: str) -> _There | None:
    own = [f for f in frames if owner(f[0].co_filename) == "user"]
    call = call_at(place_of(*own[-1])) if own else None
    file, code = (own[-1][0].co_filename, own[-1][0]) if own else ("", None)
    if call is not None:
        here = [*_func_chain(call), *call.args, *(w.value for w in call.keywords)]
        inline = [node for node in here if is_checkpoint(node)]
        if len(inline) == 1:
            return file, code, inline[0]
    definition = definition_of(defined.file, defined.line, name) if defined is not None else None
    if defined is not None and isinstance(definition, Function):
        decorators = [d for d in definition.decorator_list if checkpoint_decorator(d)]
        if len(decorators) == 1:
            return defined.file, None, decorators[0]
    callee = last_name(call.func) if call is not None else ""
    for place in dict.fromkeys([file, *([defined.file] if defined is not None else [])]):
        made = [
            node
            for node in ast.walk(tree_of(place))
            if isinstance(node, ast.Call) and is_checkpoint(node)
            if node.args[0] is definition or last_name(node.args[0]) == name
        ]
        assigned = [node for node in made if callee and assigned_to(place, node) == callee]
        if len(assigned or made) == 1:
            return place, code if place == file else None, (assigned or made)[0]
    return None


def _func_chain(call: ast.Call) -> list[ast.expr]:
    """The called function, and what was called to create it: for `remat(Block)(8)(x)` two."""
    chain: list[ast.expr] = []
    node: ast.expr = call
    while isinstance(node, ast.Call):
        node = node.func
        chain.append(node)
    return chain


def _retuned(file: str, code: Any, node: ast.expr) -> Way:
    """A checkpoint with the given policy instead of its own."""
    if not isinstance(node, ast.Call):  # a decorator without a call
        with_policy = around(file, start_of(node), end_of(node), "partial(", ", policy={name})")
        return Way(file, code, tuple(with_policy), without_policy=())
    policy = next((k for k in node.keywords if k.arg == "policy"), None)
    end = max(end_of(n) for n in (*node.args, *(k.value for k in node.keywords)))
    if policy is None:
        return Way(file, code, (Edit(file, end, end, ", policy={name}"),), without_policy=())
    before = max(end_of(n) for n in (*node.args, *(k.value for k in node.keywords)) if end_of(n) < start_of(policy))
    gone = Edit(file, before, end_of(policy), "")
    only = last_name(node.func) == "partial" and len(node.args) == 1 and len(node.keywords) == 1
    without = _taken_away(file, node) if only else (gone,)
    return Way(
        file, code, (Edit(file, start_of(policy.value), end_of(policy.value), "{name}"),), without_policy=without
    )  # fmt: skip


def _removed(file: str, code: Any, node: ast.expr) -> Way:
    if not isinstance(node, ast.Call) or not is_checkpoint(node):
        # Remove the decorator's lines.
        return Way(file, code, (Edit(file, (node.lineno, 0), (end_of(node)[0] + 1, 0), ""),))
    return Way(file, code, _taken_away(file, node))


def _taken_away(file: str, node: ast.Call) -> tuple[Edit, ...]:
    """Removes a call from around its first argument."""
    inner = node.args[0]
    bare = isinstance(inner, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return (
        Edit(file, start_of(node), start_of(inner), "" if bare else "("),
        Edit(file, end_of(inner), end_of(node), "" if bare else ")"),
    )
