"""Loops without a gradient in reverse mode, whose number of iterations is known only when they run: what bounds them,
and what to write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxviz.ir.origin import ancestors, locate, own_line
from jaxviz.ir.syntax import Atom, Equation, Program, Var
from jaxviz.report.tables import short_location
from jaxviz.transforms.primitive import bodies, is_loop, is_scan, of

_FORWARD = "Forward mode, such as jax.jvp and jax.jacfwd, needs no bound."


def advice_on(primal: Program, failed: Equation | None) -> str:
    """What bounds a loop that cannot be transposed, and what to write instead.

    Args:
      primal: the function.
      failed: the equation of a program derived from it that has no reverse mode.
    """
    origins = set() if failed is None else {failed, *ancestors(failed)}
    for loop, within in _loops(primal, ()):
        if loop in origins:
            return f"{_instead(loop, within)} {_FORWARD}"
    return ""


def _loops(program: Program, within: tuple[Equation, ...]) -> Iterator[tuple[Equation, tuple[Equation, ...]]]:
    """The loops with an unknown number of iterations, and the equations that contain each, outermost first."""
    for e in program.equations:
        if is_loop(e) and not is_scan(e):
            yield e, within
        for _, inner in e.programs:
            yield from _loops(inner, (*within, e))


def _instead(loop: Equation, within: Sequence[Equation]) -> str:
    limits = _limits(loop)
    if not limits:
        return (
            "Its number of iterations depends on the values that it computes: write a jax.lax.scan over the most "
            "that are possible, and use jnp.where to "
            "keep the carry once the condition is false."
        )
    outer = within[-1] if within and is_loop(within[-1]) else None
    if outer is None or not any(_changes(a, outer) for a in limits):
        return (
            f"Its bound is not a fixed number under jit: {_masked('the largest that is possible')} If the bound is "
            "an argument, make it static, or a Python number."
        )
    at = own_line(outer.source) or locate(outer.source)
    where = f" ({short_location(at)})" if at is not None else ""
    most = of(outer).trip_count(outer.operation)
    return (
        f"Its bound is the index of the loop around it{where}, or computed from it: "
        f"{_masked('the largest' if most is None else f'such as {most}')}"
    )


def _masked(n: str) -> str:
    return f"give lax.fori_loop a fixed one, {n}, and use jnp.where to keep the carry where the index is past yours."


def _limits(loop: Equation) -> list[Atom]:
    """The start and the stop of a `fori_loop`, whose condition compares an index with a stop, both carried; empty for
    another loop."""
    condition = bodies(loop)[0].program
    if [e.primitive.name for e in condition.equations] != ["lt"] or condition.equations[0].outvars != condition.outvars:
        return []
    compared = condition.equations[0].invars
    places = bodies(loop)[0].operands
    return [
        loop.invars[places[condition.invars.index(a)]] for a in compared if isinstance(a, Var) and a in condition.invars
    ]


def _changes(bound: Atom, outer: Equation) -> bool:
    """Whether a value in a loop's body is computed from whole numbers that differ between its iterations."""
    body = next((b.program for b in bodies(outer) if b.has_results), None)
    if body is None:
        return False
    producer = {v: e for e in body.equations for v in e.outvars}
    n_fixed, _ = of(outer).carry(outer.operation)
    pending, seen = [bound], set[Atom]()
    while pending:
        a = pending.pop()
        if a in seen or not isinstance(a, Var):
            continue
        seen.add(a)
        if a in body.invars[n_fixed:]:
            return True
        if a in producer:
            pending += producer[a].invars
    return False
