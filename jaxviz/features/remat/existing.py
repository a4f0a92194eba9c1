"""The checkpoints that a function has, in the user's source: with another policy, or taken away."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxviz.features.remat.edits import Edit, Way, around
from jaxviz.features.remat.regions import Frame, Region, own_frames
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
)
from jaxviz.ir.expressions import tree_of
from jaxviz.ir.origin import Location
from jaxviz.ir.own_code import is_own

_There = tuple[str, Any, ast.expr]
"""A file, code of it that was run, and the expression or decorator in it that is a checkpoint."""


def retuned(region: Region) -> tuple[Way, ...] | None:
    """How to give an existing checkpoint another policy; None if it is not in the user's source."""
    places = _checkpoints(region)
    return tuple(replace(_retuned(*place), written=place[2]) for place in places) if places is not None else None


def removed(region: Region) -> tuple[Way, ...] | None:
    """How to remove an existing checkpoint; None if it is not in the user's source."""
    places = _checkpoints(region)
    return tuple(_removed(*place) for place in places) if places is not None else None


def _checkpoints(region: Region) -> list[_There] | None:
    """Where the function's existing checkpoints are written; None if one of these places is not found."""
    places: dict[int, _There] = {}
    for frames in region.stacks.values():
        there = _checkpoint(frames, region.defined, region.name)
        if there is None or not is_own(there[0]):
            return None
        places[id(there[2])] = there
    return list(places.values()) or None


def _checkpoint(frames: Sequence[Frame], defined: Location | None, name: str) -> _There | None:
    own = own_frames(frames)
    call = call_at(*own[-1]) if own else None
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
        calls = [
            node
            for node in ast.walk(tree_of(place))
            if isinstance(node, ast.Call) and is_checkpoint(node)
            if node.args[0] is definition or last_name(node.args[0]) == name
        ]
        assigned = [node for node in calls if callee and assigned_to(place, node) == callee]
        if len(assigned or calls) == 1:
            return place, code if place == file else None, (assigned or calls)[0]
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
