"""Programs as text, in JAX's own notation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, filterfalse, product
from string import ascii_lowercase
from typing import TYPE_CHECKING

import numpy as np

from jaxviz.ir import compat
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Atom, Literal, Var

if TYPE_CHECKING:
    from jaxviz.ir.origin import Location
    from jaxviz.ir.syntax import Equation, Operation, Program


@deep_stack
def format_program(program: Program) -> str:
    """The program as JAX prints a jaxpr; a recorded path is headed by its branch points.

    >>> print(jaxviz.trace(jnp.sin)(1.0))
    { lambda ; a:f32[]. let b:f32[] = sin a in (b,) }
    """
    text = str(program.jaxpr)
    if not program.is_path:
        return text
    seen = [f"#   {b.kind} was {b.value} at {b.location or 'an unknown line'}" for b in program.branches]
    return "\n".join(["# one path, recorded on concrete values:", *seen, text])


def literal_text(literal: Literal) -> str:
    """The value of a literal, as a jaxpr shows it."""
    try:
        return str(np.asarray(literal.val, getattr(literal.aval, "dtype", None))[()])
    except (TypeError, ValueError):
        return str(literal.val)


def variable_names(program: Program, known: Mapping[Var, str] | None = None) -> dict[Var, str]:
    """A name for every variable, in JAX's style: a, ..., z, ba, bb, ...; those of a nested program after its
    equation's.

    As in JAX's output, the inputs and results of a jit have the same names inside and outside.

    A result that nothing reads is named `_`.

    Args:
      program: the program.
      known: names that some variables already have, such as residuals from the forward program; no other variable gets
        them.
    """
    names: dict[Var, str] = dict(known or {})
    taken = frozenset(names.values())
    times = Counter(_nested(program))
    shared = frozenset(nested for nested, n in times.items() if n > 1)
    _name(program, names, filterfalse(taken.__contains__, _letters()), shared)
    return names


def _nested(program: Program) -> Iterator[Program]:
    """The nested programs of its equations, recursively, once for each occurrence."""
    for equation in program.equations:
        for _, nested in equation.operation.programs:
            yield nested
            yield from _nested(nested)


def _name(program: Program, names: dict[Var, str], fresh: Iterator[str], shared: frozenset[Program]) -> None:
    read = set(program.outvars).union(*[equation.invars for equation in program.equations])
    for v in (*program.constvars, *program.invars):
        if v not in names:
            names[v] = next(fresh)
    for equation in program.equations:
        for v in equation.outvars:
            if v not in names:
                names[v] = next(fresh) if v in read else "_"
        for _, nested in equation.operation.programs:
            if compat.names_inside_as_outside(equation.primitive) and nested not in shared:
                _name_alike(nested.invars, equation.invars, names)
                _name_alike(nested.outvars, equation.outvars, names)
            _name(nested, names, fresh, shared)


def _name_alike(inner: Sequence[Atom], outer: Sequence[Atom], names: dict[Var, str]) -> None:
    """Gives the operands and results of a jit the same names inside as outside."""
    used: set[Var] = set()
    for a, like in zip(inner, outer, strict=True):
        if isinstance(a, Var) and isinstance(like, Var) and a not in names and like not in used and names[like] != "_":
            used.add(like)
            names[a] = names[like]


def _letters() -> Iterator[str]:
    """a, ..., z, ba, bb, ...: the numbers from 0 with letters for digits."""
    yield from ascii_lowercase
    for n in count(1):
        yield from map("".join, product(ascii_lowercase[1:], *[ascii_lowercase] * n))


def printed_params(operation: Operation) -> list[str]:
    """The params of an operation that JAX prints, in its order, as `name=value`; for programs only the name, and `{}`
    for each program within a value.

    >>> printed_params(trace(lambda x: lax.scan(step, 0.0, x))(xs).equations[1].operation)
    ['jaxpr', 'length=3', 'num_carry=1', 'num_consts=0', 'reverse=False', 'unroll=1']
    """
    from jaxviz.ir.convert import map_programs, one_equation

    if not operation.params:
        return []
    if "_prim" in operation.params:
        return [f"{name}={value}" for name, value in compat.hi_params(operation.params).items()]
    bare = replace(operation, params=map_programs(operation.params, _emptied)) if operation.programs else operation
    # If nothing fits on a line, JAX puts each param on a separate line.
    lines = one_equation(bare).pretty_print(width=1, use_color=False).split("\n")
    first = next((i for i, line in enumerate(lines) if line.endswith("[")), -1)
    if first < 0:
        return []
    indent = " " * (len(lines[first + 1]) - len(lines[first + 1].lstrip()))
    end = next(i for i in range(first + 1, len(lines)) if lines[i].startswith(f"{indent[:-2]}]"))
    params = re.split(rf"\n{indent}(?=\w+=)", "\n".join(lines[first + 1 : end]))
    nested = {label.split("[")[0] for label, _ in operation.programs}
    split = (param.strip().partition("=") for param in params)
    return [name if name in nested else f"{name}={_in_a_line(value)}" for name, _, value in split]


def _in_a_line(value: str) -> str:
    return re.sub(r"\{ lambda .*?\) \}", "{}", " ".join(value.split()))


def _emptied(program: Program) -> Program:
    return replace(program, equations=(), outvars=tuple(Literal(0, aval) for aval in program.out_avals))


def describe_equation(
    equation: Equation, index: int | None = None, place: Callable[[Location], str] = str
) -> str:  # fmt: skip
    """`sin (equation 12, model.py:41)`: how error messages name an equation.

    Args:
      place: formats its location; by default with the path of the file.
    """
    from jaxviz.ir.origin import locate

    location = locate(equation.source)
    where = [f"equation {index}"] if index is not None else []
    where += [place(location)] if location is not None else []
    called = equation.params.get("name") if equation.programs else None
    what = f"`{equation.primitive.name}`" + (f" of `{called}`" if called else "")
    return what + (f" ({', '.join(where)})" if where else "")
