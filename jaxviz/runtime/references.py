"""The user's mutable references while a report runs their program: it works on copies, or puts their values back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax

from jaxviz.higher_order import Body, bodies, of
from jaxviz.ir import compat
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.errors import NoRuleError
from jaxviz.ir.pretty import describe_equation
from jaxviz.ir.syntax import Equation, Program
from jaxviz.ir.trace import trace_call
from jaxviz.transforms.driver import with_refs_as_inputs


def on_copies(program: Program, inputs: Sequence[Any]) -> tuple[Program, list[Any]]:
    """A program and its inputs with a copy of each mutable reference, so that running it changes none of the user's."""
    copied = compat.Copies()
    return replace(program, consts=tuple(map(copied, program.consts))), list(map(copied, inputs))


def uses_references(program: Program) -> bool:
    """Whether a program reads, writes or makes a mutable reference, or a value of a mutable hi type, also in programs
    that it runs."""
    return any(map(_uses_reference, program.equations))


def _uses_reference(e: Equation) -> bool:
    is_one = compat.writes_in_place(e.operation)
    return is_one or any(uses_references(body.program) for body in bodies(e))


def uses_mutable_types(program: Program) -> bool:
    """Whether a program uses a value of a mutable hi type, also in programs that it runs."""
    return any(compat.touches_mutable(e.operation) for _, e in program.walk())


def repeated_references(program: Program) -> Iterator[Equation]:
    """The checkpoints that use references from outside, which JAX may read and write again in the backward pass."""
    for e in program.equations:
        if of(e).is_checkpoint and any(map(_takes_reference, bodies(e))):
            yield e
        else:
            for body in bodies(e):
                yield from repeated_references(body.program)


def on_values(program: Program) -> tuple[Program, tuple[Any, ...]]:
    """A program without references and mutable hi types, which computes the same; with such types it has no
    hi-primitive at all.

    Raises:
      NoRuleError: JAX has no such program for an operation.

    Returns:
      a program: what is in the references that the given one closes over, inputs → results, what is then in these
        references, and in those among the inputs, first in references and then in values of hi types; an input that is
        a reference is what is in it, and beside a mutable hi type one of a hi type is the arrays that it consists of.
        And the references that it closes over.
    """
    taking, refs = with_refs_as_inputs(program)
    jaxpr, is_high = taking.jaxpr, uses_mutable_types(taking)
    parts = [compat.array_types(v.type_with_state) if is_high else [v.aval] for v in taking.invars]
    if is_high:
        jaxpr = compat.without_mutable_types(jaxpr)
    try:
        pure = read_jaxpr(compat.without_refs(jaxpr, lower=is_high))
    except NotImplementedError as error:
        hi = next((e for _, e in program.walk() if compat.hi_primitive_name(e.operation.params)), None)
        if hi is None:
            raise
        raise NoRuleError(
            f"JAX has no rule that puts values in place of the mutable references in {describe_equation(hi)}."
        ) from error
    if is_high:
        n = sum(len(p) for v, p in zip(taking.invars, parts, strict=True) if compat.is_mutable_type(v.aval))
        pure = replace(pure, outvars=(*pure.outvars[n:], *pure.outvars[:n]))
    names = [name for name, p in zip([*("" for _ in refs), *program.arg_names], parts, strict=True) for _ in p]
    info = compat.derived_debug_info(program.debug_info, names, len(pure.outvars))
    return replace(pure, debug_info=info), tuple(refs.values())


def _takes_reference(body: Body) -> bool:
    program = body.program
    return any(compat.is_mutable(v.aval) for v in (*program.invars, *program.constvars))


@contextlib.contextmanager
def restored(values: Iterable[Any]) -> Iterator[None]:
    """Puts the values of the mutable references among some values back at the end, for what runs the user's Python,
    which has no copies to work on."""
    put_back = [compat.keep_contents(x) for x in {id(x): x for x in values if compat.is_written_in_place(x)}.values()]
    try:
        yield
    finally:
        for put in put_back:
            put()


def values_of(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of a call, and what the function closes over, which is found by tracing it; if that fails, it is
    unknown."""
    values: list[Any] = jax.tree.leaves((args, kwargs))
    with contextlib.suppress(Exception):  # raised again when the function runs
        values += trace_call(f, args, kwargs).program.consts
    return values
