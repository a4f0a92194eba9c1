"""Suggests the right call if a public function was called wrongly: `explore(loss)`, `explore(loss(x))`, `argnum=0`."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import jax

from jaxviz.ir import compat
from jaxviz.ir.errors import message_of
from jaxviz.ir.expressions import expression_at
from jaxviz.ir.origin import location_at

_FUNCTION = ("f", "fun", "g")
"""The parameter names under which public functions take functions."""

_WRITE, _OWN = "Write jaxviz.", "jaxviz."
_BY_POSITION = "differentiating with respect to"
"""In JAX's error for an argument that is missing, or that was passed by keyword."""


def check_values(name: str, arguments: Any) -> None:
    """Raises an error for an argument that is a type, which a public function that runs the user's cannot take."""
    for x in jax.tree.leaves(arguments):
        if isinstance(x, jax.ShapeDtypeStruct):
            raise TypeError(
                f"{name} runs the function, so it needs arrays; got a ShapeDtypeStruct, which has no value. Pass an "
                "array, such as "
                f"jnp.ones({x.shape})."
            )


def say_what_to_write(
    error: TypeError, public: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    """Adds to the error of a public function how to call it.

    That is, if it was given no function, a function without arguments, or a keyword that neither of them takes.
    """
    parameters = inspect.signature(public).parameters
    unexpected = [
        k for k in kwargs if k not in parameters and f"unexpected keyword argument {k!r}" in message_of(error)
    ]
    if unexpected:
        options = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
        close = get_close_matches(unexpected[0], parameters, 1, 0.8)
        _note(error, f"Did you mean {close[0]}?" if close else _passed_on(unexpected[0], public, options))
    places = [i for i, name in enumerate(parameters) if name in _FUNCTION]
    candidates = [args[i] for i in places if i < len(args)]
    if not places or places[0] != 0 or any(name in kwargs for name in _FUNCTION):
        return
    if not candidates:
        _note(error, f"{_WRITE}{_call(public, ['f', 'g'], ['x'])}.")
        return
    functions = list(filter(_is_function, candidates))
    if not functions:
        _note(error, _instead_of_result(public, len(places)))
    elif len(functions) < len(candidates):
        names = [_name(x) if _is_function(x) else "g" for x in candidates]
        _note(error, f"{_WRITE}{_call(public, names, _required(functions[0]) or ['x'])}: it takes two functions.")
    elif len(args) < len(places):
        _note(
            error,
            f"{_WRITE}{_call(public, [*map(_name, candidates), 'g'], _required(candidates[0]) or ['x'])}.",
        )
    elif (
        len(args) == len(places)
        and callable(candidates[0])
        and (kwargs.keys() <= parameters.keys() or _BY_POSITION in message_of(error))
    ):
        required = _required(candidates[0])
        if required and _takes_arguments(public):
            names = list(map(_name, candidates))
            _note(error, f"{_WRITE}{_call(public, names, required)}: the arguments of {names[0]} come after it.")


def _passed_on(keyword: str, public: Callable[..., Any], options: Sequence[str]) -> str:
    only = f", only {' and '.join(filter(None, [', '.join(options[:-1]), options[-1]]))}" if options else ""
    return f"{_OWN}{public.__name__} has no option {keyword}{only}; it was passed on to the function."


def _note(error: TypeError, text: str) -> None:
    """Adds a sentence; of its kind only the last is kept, which is about the function that the user called."""
    notes = [
        n
        for n in getattr(error, "__notes__", ())
        if n != text and not any(text.startswith(kind) and n.startswith(kind) for kind in (_WRITE, _OWN))
    ]
    error.__notes__ = [*notes, text]


def _name(fun: Any) -> str:
    name = getattr(fun, "__name__", "f")
    return name if name.isidentifier() else "f"


def _instead_of_result(public: Callable[..., Any], n_functions: int) -> str:
    """What to write instead of `explore(loss(params, x))`, in the user's words if the user wrote that."""
    result = _result_passed_to(public) if n_functions == 1 else None
    if result is None:
        functions, arguments, results = ["f", "g"], ["x"], ["f(x)", "g(x)"]
    else:
        arguments = [*map(ast.unparse, result.args), *map(_keyword, result.keywords)]
        functions, results = [ast.unparse(result.func)], [ast.unparse(result)]
    takes = "the function, not its result" if n_functions == 1 else "functions, not their results"
    right, wrong = _call(public, functions, arguments), _call(public, results, [])
    return f"{_WRITE}{right}, not jaxviz.{wrong}: it takes {takes}."


def _result_passed_to(public: Callable[..., Any]) -> ast.Call | None:
    """The call of the user's function, `loss(params, x)` in `explore(loss(params, x))`, if the user wrote that."""
    frame = sys._getframe()
    while frame.f_back is not None and compat.is_hidden(frame.f_code.co_filename):
        frame = frame.f_back
    text = expression_at(location_at(frame.f_code, frame.f_lasti))
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:  # there is no source text
        return None
    if not isinstance(call, ast.Call) or ast.unparse(call.func).rpartition(".")[2] != public.__name__:
        return None
    inner = next(iter(call.args), None)
    if not isinstance(inner, ast.Call) or len(ast.unparse(inner)) > _ROOM or not (inner.args or inner.keywords):
        return None
    return None if _may_be_of_array(inner.func, {**frame.f_globals, **frame.f_locals}) else inner


def _may_be_of_array(function: ast.expr, variables: Mapping[str, Any]) -> bool:
    """Whether it may be a method of an array, as in `x.sum(0)`, whose arguments are not what to differentiate in."""
    if not isinstance(function, ast.Attribute) or not hasattr(jax.Array, function.attr):
        return False
    owner = variables.get(function.value.id) if isinstance(function.value, ast.Name) else None
    return not isinstance(owner, ModuleType)


def _keyword(keyword: ast.keyword) -> str:
    return f"{keyword.arg}={ast.unparse(keyword.value)}" if keyword.arg else f"**{ast.unparse(keyword.value)}"


_ROOM = 60


def _is_function(x: Any) -> bool:
    """Whether x is a function, or can be used instead of one: a Program, a Derivation, a ClosedJaxpr, a Comparison."""
    return callable(x) or hasattr(x, "jaxpr") or type(x).__module__.startswith("jaxviz.")


def _takes_arguments(public: Callable[..., Any]) -> bool:
    """Whether a public function takes the arguments of the user's function, instead of returning a function that
    does."""
    return any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(public).parameters.values())


def _required(fun: Callable[..., Any]) -> list[str]:
    """The names of the arguments that a function requires by position; if there are none, those that it accepts."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):  # a builtin may have no signature
        return []
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    more = ["x"] if any(p.kind is p.VAR_POSITIONAL for p in parameters) else []
    return [p.name for p in by_position if p.default is p.empty] or [p.name for p in by_position] or more


def _call(public: Callable[..., Any], functions: Sequence[str], arguments: Sequence[str]) -> str:
    """`explore(loss, params, x)`, or `grad(loss)(params, x)`."""
    parameters = inspect.signature(public).parameters.values()
    names = iter(functions)
    inside = [
        next(names) if p.name in _FUNCTION else p.name for p in parameters if p.name in _FUNCTION or _is_needed(p)
    ]
    if _takes_arguments(public):
        inside += arguments
    call = f"{public.__name__}({', '.join(inside)})"
    is_whole = _takes_arguments(public) or any(map(_is_needed, parameters)) or not arguments
    return call if is_whole else f"{call}({', '.join(arguments)})"


def _is_needed(p: inspect.Parameter) -> bool:
    """Whether a parameter is a positional one without a default, other than the function."""
    return p.name not in _FUNCTION and p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
