"""The user's source as syntax trees: calls, definitions, checkpoints and loops."""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib.util
import inspect
import linecache
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

from jaxviz.ir import compat
from jaxviz.ir.expressions import SCOPES, Span, first_line, outside_of_functions, span_at, tree_of
from jaxviz.ir.origin import is_cell

_CHECKPOINTS = ("checkpoint", "remat", "filter_checkpoint")
"""The names of functions, in JAX and in libraries, that wrap another one in a checkpoint."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

_FUNCTIONS: WeakValueDictionary[int, types.FunctionType] = WeakValueDictionary()
"""Functions found for code, by its `id`."""


@dataclass(frozen=True, slots=True)
class Extent:
    """An expression in the source, by lines from 1 and columns in bytes from 0, as Python records them."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


def extent_of(code: Any, instruction: int) -> Extent:
    """The expression that a frame was evaluating."""
    at = compat.frame_at(code, instruction)
    return Extent(at.file_name, at.start_line, at.start_column, at.end_line, at.end_column)


def source_line(file: str, line: int) -> str:
    """A line of a file, from 1."""
    return linecache.getline(file, line)


def start_of(node: Any) -> tuple[int, int]:
    """The start of an expression or a statement."""
    return node.lineno, node.col_offset


def end_of(node: Any) -> tuple[int, int]:
    """Its end."""
    return node.end_lineno or 0, node.end_col_offset or 0


def span_of(extent: Extent) -> Span | None:
    """An expression of the source as it is now; None if that is not what was run."""
    return span_at(extent.file, extent.line, extent.column, extent.end_line, extent.end_column)


def call_at(code: Any, instruction: int) -> ast.Call | None:
    """The call that a frame was evaluating."""
    extent = extent_of(code, instruction)
    span = span_of(extent)
    if span is None:
        return None
    return _calls(tree_of(extent.file)).get((span.line, span.column, span.end_line, span.end_column))


@lru_cache(maxsize=16)
def _calls(tree: ast.Module) -> dict[tuple[int, ...], ast.Call]:
    """The calls in a file by position; in `f(x)(y)` both have one."""
    return {(*start_of(n), *end_of(n)): n for n in ast.walk(tree) if isinstance(n, ast.Call)}


def last_name(node: ast.AST) -> str:
    """`scan` for `jax.lax.scan`; '' for anything but a name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_checkpoint(node: ast.AST) -> bool:
    """Whether an expression is a call such as `jax.checkpoint(f, policy=p)`."""
    return isinstance(node, ast.Call) and last_name(node.func) in _CHECKPOINTS and bool(node.args)


def without_checkpoint(node: ast.expr) -> ast.expr:
    """The expression inside a checkpoint, or the expression itself."""
    while isinstance(node, ast.Call) and is_checkpoint(node):
        node = node.args[0]
    return node


def checkpoint_decorator(node: ast.expr) -> bool:
    """Whether a decorator is `jax.checkpoint` or `partial(jax.checkpoint, policy=p)`."""
    return decorator_name(node) in _CHECKPOINTS


def decorator_name(node: ast.expr) -> str:
    """`jit` for the decorators `jax.jit`, `jax.jit(inline=True)` and `partial(jax.jit, inline=True)`."""
    if isinstance(node, ast.Call):
        is_partial = last_name(node.func) == "partial" and len(node.args) == 1
        node = node.args[0] if is_partial else node.func
    return last_name(node)


def definition_of(file: str, line: int, name: str) -> Function | ast.Lambda | None:
    """The function or lambda that begins on a line, with its decorators; None if there is none, or more than one."""
    definitions = [
        node
        for node in ast.walk(tree_of(file))
        if (isinstance(node, Function) and node.name == name and line == first_line(node))
        or (isinstance(node, ast.Lambda) and name == "<lambda>" and node.lineno == line)
    ]
    return definitions[0] if len(definitions) == 1 else None


def assigned_to(file: str, node: ast.AST) -> str:
    """The last name of the target that an expression as a whole is assigned to; '' if there is none."""
    holder = next(holders_of(file, node), None)
    if isinstance(holder, ast.Assign) and len(holder.targets) == 1:
        return last_name(holder.targets[0])
    return last_name(holder.target) if isinstance(holder, ast.AnnAssign | ast.NamedExpr) else ""


def parents_of(file: str) -> dict[ast.AST, ast.AST]:
    """The parent of each node of a file."""
    return {child: node for node in ast.walk(tree_of(file)) for child in ast.iter_child_nodes(node)}


def holders_of(file: str, node: ast.AST) -> Iterator[ast.AST]:
    """The ancestors of a node, innermost first."""
    parents = parents_of(file)
    while node in parents:
        node = parents[node]
        yield node


def names_bound(node: ast.AST) -> set[str]:
    """The names that a statement or a module defines, imports or assigns."""
    names = set()
    for n in (node, *(() if isinstance(node, SCOPES) else outside_of_functions(node))):
        if isinstance(n, ast.Import | ast.ImportFrom):
            names |= {a.asname or a.name.split(".")[0] for a in n.names}
        elif isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
            names.add(n.id)
        elif isinstance(n, ast.FunctionDef | ast.ClassDef):
            names.add(n.name)
    return names


def alias_of(file: str, module: str, line: int) -> str | None:
    """The name that a module has on a line of a file, by an import there or in a function around it; line 0 is before
    all functions."""
    return next((name for name, imported in _imports(file, line) if imported == module), None)


def value_of(file: str, node: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a name such as `library.solve` stands for where a file has it; None if that is not known."""
    first, *rest = ast.unparse(node).split(".")
    imported = next((imported for name, imported in _imports(file, node.lineno) if name == first), None)
    if imported is not None:
        module, path = _module_of(imported)
        value, rest = module, [*path, *rest]
    else:
        value = names.get(first)
    for name in rest:
        value = inspect.getattr_static(value, name, None)  # runs nothing
    return value


def _module_of(path: str) -> tuple[Any, list[str]]:
    """The innermost module of a dotted path, of those that have been imported, and the rest of the path; None if there
    is none."""
    parts = path.split(".")
    cuts = (n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in sys.modules)
    n = next(cuts, 0)
    return sys.modules.get(".".join(parts[:n])), parts[n:]


def _imports(file: str, line: int) -> Iterator[tuple[str, str]]:
    """Each name that a line of a file can use by an import, the innermost first, and what is imported."""
    tree = tree_of(file)
    around = [n for n in ast.walk(tree) if isinstance(n, Function) and n.lineno < line <= end_of(n)[0]]
    for node in (n for scope in (*reversed(around), tree) for n in outside_of_functions(scope)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            package = f"{_module_named(file, node)}." if isinstance(node, ast.ImportFrom) else ""
            yield from ((a.asname or a.name, f"{package}{a.name}") for a in node.names)


def _module_named(file: str, node: ast.ImportFrom) -> str:
    """The module that a statement imports from, as `sys.modules` names it; with its dots where the package is not
    known."""
    name = "." * node.level + (node.module or "")
    packages = (names.get("__package__") for names in namespaces_of(file))
    with contextlib.suppress(ImportError):  # not in a package
        return importlib.util.resolve_name(name, next(packages, None))
    return name


def globals_of(code: Any) -> dict[str, Any]:
    """The globals of the module that contains some code; empty if it is not found."""
    # Code objects do not refer to their module. Searching all objects of the process always works, but takes a second
    # after a large derivation.
    outermost = str(code.co_qualname).partition(".")[0]
    for names in namespaces_of(code.co_filename):
        if outermost in names:
            return names
    function = function_of(code)
    return {} if function is None else function.__globals__


def function_of(code: Any) -> types.FunctionType | None:
    """A function that has some code; None if none is found."""
    function = _FUNCTIONS.get(id(code))
    if function is None or function.__code__ is not code:
        function = next((f for f in gc.get_referrers(code) if isinstance(f, types.FunctionType)), None)
        if function is not None:
            _FUNCTIONS[id(code)] = function
    return function


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Some code, and that of the functions and classes in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from codes_in(inner)


def closed_over(f: types.FunctionType) -> dict[str, Any]:
    """The variables that a function closes over, as far as they have been assigned."""
    variables = {}
    for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            variables[name] = cell.cell_contents
    return variables


def namespaces_of(file: str) -> list[dict[str, Any]]:
    """The global names of each module imported from a file; for a cell those of the notebook."""
    if is_cell(file):
        return [vars(sys.modules["__main__"])]
    modules = [vars(m) for m in [*sys.modules.values()] if isinstance(m, types.ModuleType)]
    return [names for names in modules if names.get("__file__") == file]
