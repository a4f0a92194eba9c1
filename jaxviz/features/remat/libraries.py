"""Checkpoints of modules, in the style of their library."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from jaxviz.features.remat.edits import Edit, Way, around
from jaxviz.features.remat.regions import AROUND_CALLS, Frame
from jaxviz.features.remat.source import alias_of, end_of, globals_of, last_name, start_of, tree_of

_LIBRARIES = ("flax.linen", "flax.nnx", "equinox", "haiku", "penzai")
"""Libraries with their own checkpoints for modules."""
FRAMEWORKS = frozenset(library.partition(".")[0] for library in (*_LIBRARIES, "keras"))
"""Packages whose layers many models have."""
CHECKPOINTS = {
    "flax.linen": "flax.linen.remat",
    "flax.nnx": "flax.nnx.remat",
    "equinox": "equinox.filter_checkpoint",
    "haiku": "haiku.remat",
}
"""Their replacements for jax.checkpoint, for calls of modules."""
_CHECKPOINTED = "gradient_checkpointing.Checkpointed"
_PENZAIS = (("gradient_checkpointing", "from penzai.toolshed import gradient_checkpointing"),)


def class_of(code: Any) -> Any:
    """The class that a method belongs to; None for a function. Of several that one statement has defined in a function, the last."""
    path = str(code.co_qualname).split(".")[:-1]
    if not path or path[-1] == "<locals>":
        return None
    if "<locals>" in path:
        name, module = ".".join(path), globals_of(code).get("__name__")
        alike = [c for c in _subclasses(object) if c.__qualname__ == name and c.__module__ == module]
        return alike[-1] if alike else None
    found: Any = globals_of(code).get(path[0])
    for name in path[1:]:
        found = getattr(found, name, None)
    return found


def _subclasses(base: type) -> Iterator[type]:
    pending: list[type] = [base]
    seen = {base}
    while pending:
        below: list[type] = type.__subclasses__(pending.pop())
        found = [c for c in below if c not in seen]
        seen.update(found)
        pending += found
        yield from found


def library_of(code: Any) -> str:
    """The library whose module a method belongs to; '' for a function, and for a method of any other class."""
    bases: tuple[type, ...] = getattr(class_of(code), "__mro__", ())
    return next((lib for c in bases for lib in _LIBRARIES if f"{c.__module__}.".startswith(f"{lib}.")), "")


def is_module(code: Any) -> bool:
    """Whether it is a call of a library's module, which calls others, rather than the library's code around each call of one."""
    return code.co_name == "__call__" and code.co_qualname not in AROUND_CALLS and bool(library_of(code))


def in_library(library: str, code: Any, frame: Frame, call: ast.Call) -> Way | None:
    """A call of a module in the user's own line."""
    file = frame[0].co_filename
    wrapped = lambda node, head: Way(
        file, frame[0], tuple(around(file, start_of(node), end_of(node), head, "{policy})")), call=call
    )
    if code.co_name != "__call__":
        return None
    if library == "penzai":
        return Way(
            file, frame[0], tuple(around(file, start_of(call.func), end_of(call.func), f"{_CHECKPOINTED}(", "{policy})")),
            imports=_PENZAIS, call=call,
        )  # fmt: skip
    alias = alias_of(file, library, call.lineno)
    if alias is None or not library.startswith("flax"):
        return None
    if library == "flax.nnx":
        first = call.args[0] if call.args else None
        if first is None or call.keywords or isinstance(first, ast.Starred):
            return None
        names = "x" if len(call.args) == 1 else ", ".join(f"x{i}" for i in range(len(call.args)))
        head = f"{alias}.remat(lambda module, {names}: module({names}){{policy}})("
        start, end = start_of(call.func), end_of(call.func)
        return Way(
            file, frame[0], (Edit(file, start, start, head, end), Edit(file, end, start_of(first), ", ", start)), call=call
        )  # fmt: skip
    name = code.co_qualname.split(".")[-2]
    made = call.func
    if not (isinstance(made, ast.Call) and last_name(made.func) == name):
        everywhere = [n for n in ast.walk(tree_of(file)) if isinstance(n, ast.Call) and last_name(n.func) == name]
        if len(everywhere) != 1:
            return None
        return wrapped(everywhere[0].func, f"{alias}.remat(")
    return wrapped(made.func, f"{alias}.remat(")


def in_librarys_call(library: str, code: Any, frame: Frame, call: ast.Call) -> Way | None:
    """A module that a library's code calls, in a model that the user's line calls: in penzai, modules are replaced in the model."""
    found = class_of(code) if library == "penzai" and code.co_name == "__call__" else None
    if found is None:
        return None
    file = frame[0].co_filename
    pz = alias_of(file, "penzai.pz", 0) or "pz"
    name = alias_of(file, f"{found.__module__}.{found.__name__}", 0) or found.__name__
    imports = ((name, f"from {found.__module__} import {found.__name__}"), ("pz", "from penzai import pz"), *_PENZAIS)
    head, tail = f"{pz}.select(", f").at_instances_of({name}).apply("
    start, end = start_of(call.func), end_of(call.func)
    with_policy = around(file, start, end, head, f"{tail}lambda layer: {_CHECKPOINTED}(layer{{policy}}))")
    without = around(file, start, end, head, f"{tail}{_CHECKPOINTED})")
    return Way(file, frame[0], tuple(with_policy), tuple(without), imports=imports, call=call)


def scanned_module(frame: Frame, call: ast.Call) -> Way | None:
    """The module that Flax's scan iterates over."""
    file = frame[0].co_filename
    for library in ("flax.linen", "flax.nnx"):
        alias = alias_of(file, library, call.lineno)
        scan = _scan_made_by(file, call, alias) if alias else None
        if scan is None:
            continue
        target = scan.args[0]
        changes = around(file, start_of(target), end_of(target), f"{alias}.remat(", ", prevent_cse=False{policy})")
        return Way(file, frame[0], tuple(changes), call=call)
    return None


def _scan_made_by(file: str, call: ast.Call, alias: str) -> ast.Call | None:
    """The call of a library's scan that created the called object, in place or assigned to a name."""
    node: ast.expr = call
    while isinstance(node, ast.Call):
        is_scan = (
            isinstance(node.func, ast.Attribute) and node.func.attr == "scan" and last_name(node.func.value) == alias
        )
        if is_scan and node.args:
            return node
        node = node.func
    if not isinstance(node, ast.Name):
        return None
    values = [
        n.value
        for n in ast.walk(tree_of(file))
        if isinstance(n, ast.Assign) and any(last_name(t) == node.id for t in n.targets)
    ]
    made = values[0] if len(values) == 1 else None
    return _scan_made_by(file, made, alias) if isinstance(made, ast.Call) else None
