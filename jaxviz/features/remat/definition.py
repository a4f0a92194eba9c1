"""A checkpoint around a whole function, at its definition."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import jax

from jaxviz.features.remat.call import Call
from jaxviz.features.remat.edits import Way, decorated, wrapped
from jaxviz.features.remat.regions import Frame
from jaxviz.features.remat.source import Function, definition_of, globals_of, holders_of, last_name
from jaxviz.ir.own_code import owner

_JITTED = jax.jit(lambda: 0)


def way_at_definition(call: Call) -> Way | None:
    """A decorator, or a checkpoint around a lambda; None if there is no such place, or JAX would trace an argument that is not an array.

    Args:
      call: identifies the function, and which of its arguments are static.
    """
    static = _static_arguments(call)
    function, before = _plain(call.function)
    code = getattr(function, "__code__", None)
    if static is None or before is None or code is None or owner(code.co_filename) != "user":
        return None
    numbers = tuple(i for i, x in enumerate(before) if not _is_arrays(x)) + tuple(len(before) + i for i in static)
    if not all(_is_hashable(x) for x in before if not _is_arrays(x)):
        return None
    node = definition_of(code.co_filename, code.co_firstlineno, code.co_name)
    if isinstance(node, ast.Lambda) and any(
        isinstance(n, ast.Call) and last_name(n.func) == "plan_remat" for n in holders_of(code.co_filename, node)
    ):
        return None  # it is only given to the plan
    return _around(code, node, numbers)


def ways_in_step(name: str, stacks: Iterable[Sequence[Frame]]) -> Iterator[Way]:
    """Checkpoints at the definition of the function that a training step differentiates.

    Args:
      name: the function's name.
      stacks: the frames that led to each value.
    """
    of_each = [{c for c, _ in frames if c.co_name == name and owner(c.co_filename) == "user"} for frames in stacks]
    for code in set.intersection(*of_each) if of_each else ():
        way = _around(code, definition_of(code.co_filename, code.co_firstlineno, name), ())
        if way is not None:
            yield way


def way_at_callee(call: Call, stacks: Iterable[Sequence[Frame]]) -> Way | None:
    """A decorator for the function that does all the work of a lambda; None if its arguments are not exactly those of the lambda.

    Args:
      call: identifies the lambda.
      stacks: the frames that led to each value.
    """
    static = _static_arguments(call)
    own = getattr(call.function, "__code__", None)
    node = definition_of(own.co_filename, own.co_firstlineno, own.co_name) if own is not None else None
    if static is None or not isinstance(node, ast.Lambda) or not isinstance(node.body, ast.Call):
        return None
    given, parameters = node.body.args, [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    if node.body.keywords or not all(isinstance(a, ast.Name) and a.id in parameters for a in given):
        return None
    called = {_after(own, frames) for frames in stacks}
    code = called.pop() if len(called) == 1 else None
    if code is None or owner(code.co_filename) != "user":
        return None
    called_at = definition_of(code.co_filename, code.co_firstlineno, code.co_name)
    numbers = tuple(i for i, a in enumerate(given) if parameters.index(a.id) in static)  # type: ignore[attr-defined]
    return _around(code, called_at, numbers) if isinstance(called_at, Function) else None


def _after(code: Any, frames: Sequence[Frame]) -> Any:
    """What some code calls in a stack; None if it is not in the stack."""
    codes = [c for c, _ in frames]
    return next((called for caller, called in pairwise(codes) if caller is code), None)


def _around(code: Any, node: Function | ast.Lambda | None, numbers: tuple[int, ...]) -> Way | None:
    """A checkpoint around a lambda, or a decorator below existing ones, if these keep the function as it is.

    Args:
      code: the function's code.
      node: its definition.
      numbers: the indices of its arguments that are not arrays.
    """
    options = f", static_argnums={numbers}" if numbers else ""
    if isinstance(node, ast.Lambda):
        return wrapped(code, node, "jax.checkpoint(", f"{options}{{policy}})")
    if not isinstance(node, ast.FunctionDef):
        return None
    # Others are known to keep it if its name is still that of the function.
    is_kept = getattr(globals_of(code).get(code.co_name), "__code__", None) is code
    return decorated(code, node, options=options) if is_kept or all(map(_is_jit, node.decorator_list)) else None


def _plain(f: Any) -> tuple[Any, tuple[Any, ...] | None]:
    """A function without `functools.partial`, `jax.jit` and method binding, with its bound leading arguments; None if it has other ones."""
    before: tuple[Any, ...] = ()
    while True:
        if isinstance(f, partial):
            if f.keywords:
                return f, None
            before, f = (*f.args, *before), f.func
        elif hasattr(f, "__self__") and hasattr(f, "__func__"):
            before, f = (f.__self__, *before), f.__func__
        elif (
            isinstance(f, type(_JITTED)) or owner(getattr(getattr(f, "__code__", None), "co_filename", "")) == "jaxviz"
        ):
            f = f.__wrapped__
        else:
            return f, None if hasattr(f, "__wrapped__") else before


def _static_arguments(call: Call) -> Sequence[int] | None:
    """The positional arguments that are not arrays; None if a checkpoint cannot treat them as static."""
    args, kwargs = jax.tree.unflatten(call.in_tree, call.is_input)
    values, _ = jax.tree.unflatten(call.in_tree, call.leaves)
    static = call.static_argnums
    rest = [x for i, x in enumerate(args) if i not in static]
    if not all(jax.tree.leaves((rest, kwargs))) or not all(_is_hashable(values[i]) for i in static):
        return None
    return static


def _is_arrays(x: Any) -> bool:
    return all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in jax.tree.leaves(x))


def _is_hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


def _is_jit(decorator: ast.expr) -> bool:
    """Whether a decorator is `jax.jit` or `partial(jax.jit, …)`, under which a checkpoint does the same."""
    if isinstance(decorator, ast.Call):
        inner = decorator.args[0] if last_name(decorator.func) == "partial" and decorator.args else decorator.func
        return last_name(inner) == "jit"
    return last_name(decorator) == "jit"
