"""Programs as text, in JAX's own notation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxviz.ir.syntax import Equation, Program, Var


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


def variable_names(program: Program, given: Mapping[Var, str] | None = None) -> dict[Var, str]:
    """A name for every variable, in JAX's way: a, ..., z, ba, bb, ...; those of a nested program after its equation's.

    A result that nothing reads is named `_`.

    Args:
      program: the program.
      given: names that some variables have already, such as residuals from the forward program; no other gets them.
    """
    names: dict[Var, str] = dict(given or {})
    taken = frozenset(names.values())
    _name(program, names, (name for name in map(_letters, count()) if name not in taken))
    return names


def _name(program: Program, names: dict[Var, str], fresh: Iterator[str]) -> None:
    read: set[object] = {a for e in program.equations for a in e.invars}
    read.update(program.outvars)
    for v in (*program.constvars, *program.invars):
        if v not in names:
            names[v] = next(fresh)
    for equation in program.equations:
        for v in equation.outvars:
            if v not in names:
                names[v] = next(fresh) if v in read else "_"
        for _, nested in equation.programs:
            _name(nested, names, fresh)


def _letters(i: int) -> str:
    digits = ""
    while True:
        i, rest = divmod(i, 26)
        digits = chr(ord("a") + rest) + digits
        if i == 0:
            return digits


def describe_equation(equation: Equation, index: int | None = None) -> str:
    """`sin (equation 12, model.py:41)`: how error messages name an equation."""
    from jaxviz.ir.origin import locate

    location = locate(equation.source)
    where = [f"equation {index}"] if index is not None else []
    where += [str(location)] if location is not None else []
    return f"`{equation.primitive.name}`" + (f" ({', '.join(where)})" if where else "")
