"""Which checkpoints, policies and names have no effect, and why: for `policies`, `lint` and the first view of the
explorer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from jaxviz.analysis.checkpoints import NoEffect, names_without_effect, policy_name
from jaxviz.analysis.grouping import grouped
from jaxviz.analysis.walk import defined_at, location_of
from jaxviz.derivation import Derivation
from jaxviz.features.cost.parts import cost_of
from jaxviz.features.memory.timeline import peak_of
from jaxviz.features.remat.tuning import NEAR
from jaxviz.features.residuals.residual_set import ResidualSet
from jaxviz.higher_order import is_loop, of
from jaxviz.ir.errors import EquationError
from jaxviz.ir.origin import Location
from jaxviz.ir.syntax import Equation, Program
from jaxviz.report.tables import counted, format_bytes, format_flops, nbytes
from jaxviz.transforms.inline import inlined_where


def without_effect(derivation: Derivation) -> Iterator[NoEffect]:
    """The names, policies and checkpoints of a function that have no effect.

    It derives the function without each of its checkpoints.
    """
    yield from names_without_effect(derivation.residuals.checkpoints, derivation.primal)
    yield from checkpoints_without_effect(derivation)


def checkpoints_without_effect(derivation: Derivation) -> Iterator[NoEffect]:
    """The checkpoints that save no bytes, and those around a loop that leave the peak where it was."""
    keyed = [(_key(e), e) for e in _outermost_checkpoints(derivation.primal)]
    for same in grouped(keyed, lambda pair: pair[0]):
        (where, _, _), chosen = same[0][0], [e for _, e in same]
        without = replace(derivation, primal=inlined_where(derivation.primal, set(chosen).__contains__))
        saved = _held(without) - _held(derivation)
        at = where or defined_at(_body(chosen[0]))
        if saved <= 0:
            yield _saves_nothing(derivation.residuals, chosen, -saved, at)
        elif any(is_loop(e) for _, e in _body(chosen[0]).walk()):
            yield from _around_a_loop(derivation, without, chosen, at)


def _saves_nothing(residuals: ResidualSet, chosen: list[Equation], more: int, at: Location) -> NoEffect:
    body, (_, name, policy) = _body(chosen[0]), _key(chosen[0])
    report = [
        r for r in residuals.checkpoints if (r.function, r.location, r.policy) == (name, defined_at(body), policy)
    ]
    again = {v.equation for r in report[:1] for v in r.values if v.fate == "recomputed" and v.equation is not None}
    keeps = f"makes the gradient save {format_bytes(more)} more than without it" if more else "saves no bytes"
    flops = sum(cost_of(e).flops for e in again)
    work = (
        f"though it recomputes {format_flops(flops) if flops else counted(len(again), 'value')}"
        if again
        else "and recomputes nothing either"
    )
    return NoEffect(
        "checkpoint-without-effect", f"The checkpoint of {name}, with the policy {policy}, {keeps}, "
                                     f"{work}{' each time' * (len(chosen) > 1)}.",
        f"the checkpoint of `{name}` {keeps}", "remove the checkpoint, put more into its function, or choose a policy "
                                               "that saves fewer values.", at,
        more, len(chosen),
    )  # fmt: skip


def _around_a_loop(
    derivation: Derivation, without: Derivation, chosen: list[Equation], at: Location
) -> Iterator[NoEffect]:
    try:
        peak, before = peak_of(derivation), peak_of(without)
    except EquationError:  # no reverse mode
        return
    if peak < (1 - NEAR) * before:
        return
    name, saved = _body(chosen[0]).name, without.residuals.saved.nbytes - derivation.residuals.saved.nbytes
    inside = any(of(e).is_checkpoint for _, e in _body(chosen[0]).walk())
    change = "raises the peak" if peak > (1 + NEAR) * before else "leaves the peak where it was"
    fix = (
        "remove it: there is one inside of its loop."
        if inside
        else "put it around the body of the loop, as jax.checkpoint(body, prevent_cse=False): then one iteration at a "
        "time is run again."
    )
    yield NoEffect(
        "checkpoint-without-effect", f"The checkpoint of {name} saves {format_bytes(saved)} less between the passes, "
                                     f"but {change}: {format_bytes(peak)} with it, "
        f"and {format_bytes(before)} without (modelled). The backward pass first runs its whole loop again, and then "
        "holds what all iterations save.",
        f"the checkpoint of `{name}` {change}", fix, at, 0, len(chosen),
    )  # fmt: skip


def _key(checkpoint: Equation) -> tuple[Location | None, str, str]:
    return location_of(checkpoint), _body(checkpoint).name, policy_name(checkpoint.params["policy"])


def _body(checkpoint: Equation) -> Program:
    body: Program = checkpoint.params["jaxpr"]
    return body


def _outermost_checkpoints(program: Program) -> Iterator[Equation]:
    for e in program.equations:
        if of(e).is_checkpoint:
            yield e
        else:
            for _, inner in e.programs:
                yield from _outermost_checkpoints(inner)


def _held(derivation: Derivation) -> int:
    return sum(nbytes(a.aval) for a in derivation.linearized.residuals)
