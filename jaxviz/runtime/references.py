"""The user's mutable references while a report runs their program: it works on copies, or puts their values back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax

from jaxviz.ir import compat
from jaxviz.ir.syntax import Program
from jaxviz.ir.trace import trace_call


def on_copies(program: Program, inputs: Sequence[Any]) -> tuple[Program, list[Any]]:
    """A program and its inputs with a copy of each mutable reference, so that running it changes none of the user's."""
    copied = compat.Copies()
    return replace(program, consts=tuple(map(copied, program.consts))), list(map(copied, inputs))


@contextlib.contextmanager
def restored(values: Iterable[Any]) -> Iterator[None]:
    """Puts the values of the mutable references among some values back at the end, for what runs the user's Python, which has no copies
    to work on."""
    saved = [(ref, ref[...]) for ref in {id(x): x for x in values if compat.is_live_ref(x)}.values()]
    try:
        yield
    finally:
        for ref, value in saved:
            ref[...] = value


def values_of(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of a call, and what the function closes over, which is found by tracing it; if that fails, it is unknown."""
    found: list[Any] = jax.tree.leaves((args, kwargs))
    with contextlib.suppress(Exception):  # raised again when the function runs
        found += trace_call(f, args, kwargs).program.consts
    return found
