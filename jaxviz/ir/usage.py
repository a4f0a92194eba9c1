"""Suggests the right call if a public function was called wrongly: `explore(loss)`, `explore(loss(x))`, `argnum=0`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

from jaxviz.ir.errors import message_of

_FUNCTION = ("f", "fun", "g")
"""The parameter names under which public functions take functions."""

_WRITE = "Write jaxviz."
_BY_POSITION = "differentiating with respect to"
"""In JAX's error for an argument that is missing, or that was passed by keyword."""


def say_what_to_write(
    error: TypeError, public: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    """Adds to the error of a public function how to call it.

    That is, if it was given no function, a function without arguments, or a keyword that is similar to one of its own.
    """
    parameters = inspect.signature(public).parameters
    unexpected = [
        k for k in kwargs if k not in parameters and f"unexpected keyword argument {k!r}" in message_of(error)
    ]
    if unexpected and (close := get_close_matches(unexpected[0], parameters, 1, 0.8)):
        _note(error, f"Did you mean {close[0]}?")
    places = [i for i, name in enumerate(parameters) if name in _FUNCTION]
    given = [args[i] for i in places if i < len(args)]
    if not places or places[0] != 0 or any(name in kwargs for name in _FUNCTION):
        return
    if not given:
        _note(error, f"{_WRITE}{_call(public, ['f', 'g'], ['x'])}.")
        return
    no_function = next((x for x in given if not callable(x) and not _is_program(x)), None)
    if no_function is not None:
        right, wrong = _call(public, ["f", "g"], ["x"]), _call(public, ["f(x)", "g(x)"], [])
        _note(error, f"{_WRITE}{right}, not jaxviz.{wrong}: it takes the function, not its result.")
    elif (
        len(args) == len(places)
        and callable(given[0])
        and (kwargs.keys() <= parameters.keys() or _BY_POSITION in message_of(error))
    ):
        wanted = _required(given[0])
        if wanted and _takes_arguments(public):
            names = [getattr(x, "__name__", "f") for x in given]
            names = [name if name.isidentifier() else "f" for name in names]
            _note(error, f"{_WRITE}{_call(public, names, wanted)}: the arguments of {names[0]} come after it.")


def _note(error: TypeError, text: str) -> None:
    """Adds a sentence; only the last sentence on what to write is kept, which is about the function that the user called."""
    notes = [
        n
        for n in getattr(error, "__notes__", ())
        if n != text and not (text.startswith(_WRITE) and n.startswith(_WRITE))
    ]
    error.__notes__ = [*notes, text]


def _is_program(x: Any) -> bool:
    """Whether x can be used instead of a function: a Program, a Derivation, a ClosedJaxpr, a Comparison."""
    return hasattr(x, "jaxpr") or type(x).__module__.startswith("jaxviz.")


def _takes_arguments(public: Callable[..., Any]) -> bool:
    """Whether a public function takes the arguments of the user's function, instead of returning a function that does."""
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
