"""Which checkpoints, policies, names, offloads and donations have no effect, and why: for `policies`, `lint` and the
first view of the explorer.

What JAX was told and did not do is read from its decisions (`jaxviz/analysis/checkpoints.py`). Everything else is found
by leaving it out: what has an effect changes what is derived.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from jaxviz.analysis.checkpoints import (
    Fate,
    NoEffect,
    described_name,
    is_name,
    names_listed,
    names_without_effect,
    policy_name,
)
from jaxviz.analysis.devices import platform_of
from jaxviz.analysis.donation import donations_of
from jaxviz.analysis.grouping import grouped
from jaxviz.analysis.walk import defined_at, location_of, with_holders
from jaxviz.derivation import Derivation
from jaxviz.features.cost.parts import cost_of
from jaxviz.features.remat.left_out import Derived, without_checkpoints, without_names, without_policy
from jaxviz.features.remat.offload import moves_on
from jaxviz.features.remat.tuning import NEAR
from jaxviz.higher_order import is_loop, of
from jaxviz.higher_order.jit import JIT
from jaxviz.ir.origin import Location
from jaxviz.ir.syntax import Equation, Program
from jaxviz.report.tables import counted, format_bytes, format_flops, listed, nbytes, short_location


def without_effect(derivation: Derivation) -> Iterator[NoEffect]:
    """The checkpoints, policies, names, offloads and donations of a function that have no effect.

    It derives the function without each checkpoint, policy and name.
    """
    yield from names_without_effect(derivation.residuals.checkpoints, derivation.primal)
    yield from found_by_leaving_out(derivation)


def found_by_leaving_out(derivation: Derivation) -> Iterator[NoEffect]:
    """Those that `names_without_effect` does not find in the decisions; none without a reverse mode."""
    if derivation.no_reverse_mode is not None:
        return
    whole = Derived(derivation)
    opened = set[Equation]()
    for chosen, outer in checkpoints_by_line(derivation):
        found = _checkpoint(whole, chosen, outer)
        opened.update(chosen if found else ())
        yield from found
    names = dict(_names(whole))
    yield from names.values()
    yield from _policies(whole, opened, names)
    yield from _offloads(derivation)
    yield from _donations(derivation)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def checkpoints_in(program: Program) -> Iterator[tuple[Equation, Equation | None]]:
    """The checkpoints of a program, each with the outermost one that it is in, whose policy decides; None for none."""
    for e, within in with_holders(program):
        if of(e).is_checkpoint:
            yield e, next((h for h in within if of(h).is_checkpoint), None)


def checkpoints_by_line(derivation: Derivation) -> Iterator[tuple[list[Equation], Equation | None]]:
    """The checkpoints that one line calls, which are left out together, and the one that the first of them is in."""
    key = lambda e: (location_of(e), body_of(e).name, policy_name(e.params["policy"]))
    pairs = tuple(checkpoints_in(derivation.primal))
    for same in grouped(pairs, lambda pair: (key(pair[0]), pair[1] is not None and key(pair[1]))):
        yield [e for e, _ in same], same[0][1]


def _checkpoint(whole: Derived, chosen: list[Equation], outer: Equation | None) -> list[NoEffect]:
    without = without_checkpoints(whole.derivation, chosen)
    at = location_of(chosen[0]) or defined_at(body_of(chosen[0]))
    if outer is not None:
        return [*_inside(whole, without, chosen, body_of(outer).name, at)]
    if without.saved <= whole.saved:
        return [*_saves_nothing(whole, without, chosen, at)]
    if any(is_loop(e) for _, e in body_of(chosen[0]).walk()):
        return [*_around_a_loop(whole, without, chosen, at)]
    return []


def _saves_nothing(whole: Derived, without: Derived, chosen: list[Equation], at: Location) -> Iterator[NoEffect]:
    if whole.peak < (1 - NEAR) * without.peak:
        return
    body, policy = body_of(chosen[0]), policy_name(chosen[0].params["policy"])
    more = whole.saved - without.saved
    report = [
        r
        for r in whole.derivation.residuals.checkpoints
        if (r.function, r.location, r.policy) == (body.name, defined_at(body), policy)
    ]
    again = {v.equation for r in report[:1] for v in r.values if v.fate == "recomputed" and v.equation is not None}
    keeps = f"makes the gradient save {format_bytes(more)} more than without it" if more else "saves no bytes"
    flops = sum(cost_of(e).flops for e in again)
    work = (
        f"though it recomputes {format_flops(flops) if flops else counted(len(again), 'value')}"
        if again
        else "and recomputes nothing either"
    )
    yield NoEffect(
        "checkpoint-without-effect",
        f"The checkpoint of {body.name}, with the policy {policy}, {keeps}, {work}{' each time' * (len(chosen) > 1)}.",
        f"the checkpoint of `{body.name}` {keeps}",
        "remove the checkpoint, put more into its function, or choose a policy that saves fewer values.",
        at, more, len(chosen),
    )  # fmt: skip


def _around_a_loop(whole: Derived, without: Derived, chosen: list[Equation], at: Location) -> Iterator[NoEffect]:
    peak, before = whole.peak, without.peak
    if peak < (1 - NEAR) * before:
        return
    name = body_of(chosen[0]).name
    inside = any(of(e).is_checkpoint for _, e in body_of(chosen[0]).walk())
    change = "raises the peak" if peak > (1 + NEAR) * before else "leaves the peak where it was"
    fix = (
        "remove it: there is one inside of its loop."
        if inside
        else "put it around the body of the loop, as jax.checkpoint(body, prevent_cse=False): then one iteration at a "
        "time is run again."
    )
    yield NoEffect(
        "checkpoint-without-effect",
        f"The checkpoint of {name} saves {format_bytes(without.saved - whole.saved)} less between the passes, but "
        f"{change}: {_peaks(peak, before)}. The backward pass first runs its whole loop again, and then holds what all "
        "iterations save.",
        f"the checkpoint of `{name}` {change}", fix, at, 0, len(chosen),
    )  # fmt: skip


def _inside(whole: Derived, without: Derived, chosen: list[Equation], outer: str, at: Location) -> Iterator[NoEffect]:
    name, fix = body_of(chosen[0]).name, "remove it."
    which = f"The checkpoint of {name} inside that of {outer}"
    if whole.parts == without.parts:
        why = "changes nothing: without it, the same values are saved and recomputed"
    else:
        if whole.saved < without.saved or whole.peak < without.peak or whole.flops < without.flops:
            return
        more = whole.flops - without.flops
        again = f", and {format_flops(more)} more are run" if more else ""
        why = f"does not lower the peak: {_peaks(whole.peak, without.peak)}{again}"
    yield NoEffect(
        "checkpoint-without-effect", f"{which} {why}.",
        f"the checkpoint of `{name}` inside that of `{outer}` {why.partition(':')[0]}", fix, at, 0, len(chosen),
    )  # fmt: skip


def _peaks(peak: int, before: int) -> str:
    return f"{format_bytes(peak)} with it, and {format_bytes(before)} without (modelled)"


def body_of(checkpoint: Equation) -> Program:
    """The program of a checkpoint."""
    body: Program = checkpoint.params["jaxpr"]
    return body


# --- policies and names -----------------------------------------------------------------------------------------------


def _policies(whole: Derived, opened: set[Equation], idle: Collection[str]) -> Iterator[NoEffect]:
    """The policies that decide as the default does, except those of checkpoints without effect, or for which this
    follows from what was found otherwise.

    Args:
      opened: the checkpoints without effect.
      idle: the listed names without effect.
    """
    reports = {(r.function, r.location, r.policy): r for r in whole.derivation.residuals.checkpoints}
    key = lambda e: (body_of(e).name, defined_at(body_of(e)), policy_name(e.params["policy"]))
    chosen = [e for e, _ in checkpoints_in(whole.derivation.primal) if e not in opened and _saves_some(e)]
    for same in grouped(chosen, key):
        name, where, policy = key(same[0])
        names, report = {*names_listed(same[0].params["policy"])}, reports.get(key(same[0]))
        if report is not None and (report.ignores_names or report.not_consulted):
            continue
        if names and names <= {*idle, *(report.unmatched if report is not None else ())}:
            continue
        if without_policy(whole.derivation, same).parts != whole.parts:
            continue
        selected = "with its names" if names else "that it would save"
        yield NoEffect(
            "policy-without-effect",
            f"The policy {policy} of {name} ({short_location(where)}) changes nothing: the backward pass reads no "
            f"value {selected}, and recomputes the same as with the default.",
            f"the policy of `{name}` changes nothing",
            "leave the policy out, or choose one that saves what the backward pass reads.", where, 0, len(same),
        )  # fmt: skip


def _saves_some(checkpoint: Equation) -> bool:
    return not policy_name(checkpoint.params["policy"]).startswith("nothing_saveable")


def _names(whole: Derived) -> Iterator[tuple[str, NoEffect]]:
    """The names without which the same is derived, except those that `names_without_effect` finds.

    A name under which a value is saved or offloaded has an effect.
    """
    derivation = whole.derivation
    reports = derivation.residuals.checkpoints
    fates = lambda name: {v.fate for r in reports for v in r.values if v.expression == described_name(name)}
    told = {name for r in reports for name in r.unlisted}
    places: dict[str, list[Location]] = {}
    for _, e in derivation.primal.walk():
        if is_name(e) and (name := e.params["name"]) not in told and not fates(name) & {"saved", "offloaded"}:
            places.setdefault(name, []).append(location_of(e) or defined_at(derivation.primal))
    has_effect = lambda *names: without_names(derivation, names).parts != whole.parts
    listed_by = {
        name: body_of(e).name for e, _ in checkpoints_in(derivation.primal) for name in names_listed(e.params["policy"])
    }
    for name in places.keys() & listed_by:
        if not has_effect(name):
            yield name, _listed_without_effect(name, places[name], listed_by[name], fates(name))
    others = [name for name in places if name not in listed_by]
    if has_effect(*others):  # of a policy that asks for names in its own way
        others = [name for name in others if not has_effect(name)]
    if others:
        quoted, at = listed(map(repr, others)), [x for name in others for x in places[name]]
        yield "", NoEffect(
            "", f"No policy lists {quoted}, so {'these names have' if len(others) > 1 else 'the name has'} no effect.",
            f"no policy lists {quoted}",
            "list it in the policy of the checkpoint around it, as in save_only_these_names.", at[0], 0, len(at),
        )  # fmt: skip


def _listed_without_effect(name: str, at: list[Location], function: str, fates: set[Fate]) -> NoEffect:
    why = "the same is saved without the name"
    if not fates:
        why = "no checkpoint with this policy computes that value"
    elif fates == {"not needed"}:
        why = "the backward pass does not read that value"
    return NoEffect(
        "unused-name", f"The policy of {function} lists {name!r} ({short_location(at[0])}) without effect: {why}.",
        f"the policy of `{function}` lists {name!r} without effect",
        "name a value that the backward pass reads, inside of the checkpoint, or remove the name.", at[0], 0, len(at),
    )  # fmt: skip


# --- offloads and donations -------------------------------------------------------------------------------------------


def _offloads(derivation: Derivation) -> Iterator[NoEffect]:
    """The offloads of which the compiled program has none, since JAX writes none for this platform."""
    offloading = [r for r in derivation.residuals.checkpoints if any(v.fate == "offloaded" for v in r.values)]
    if not offloading:
        return
    platform = platform_of(derivation)
    if moves_on(platform):
        return
    for same in grouped(offloading, lambda r: (r.function, r.location, r.policy)):
        r = same[0]
        n = sum(v.nbytes * c.runs for c in same for v in c.values if v.fate == "offloaded")
        yield NoEffect(
            "policy-without-effect",
            f"Compiled for {platform}, {r.function} ({short_location(r.location)}) offloads nothing: its policy "
            f"{r.policy} moves {format_bytes(n)} to the host, but there JAX leaves transfers out of the program.",
            f"the {platform} offloads nothing of `{r.function}`",
            "expect this effect on a GPU or a TPU only.", r.location, n, len(same),
        )  # fmt: skip


def _donations(derivation: Derivation) -> Iterator[NoEffect]:
    """The arguments that a training step donates and no result reuses, and what a jitted function inside of another
    program donates."""
    step = derivation.step
    program = derivation.primal if step is None else step.traced
    for e, within in with_holders(program):
        if of(e) is not JIT or not any(e.params["donated_invars"]):
            continue
        body: Program = e.params["jaxpr"]
        donated = [i for i, d in enumerate(e.params["donated_invars"]) if d]
        name_of = lambda i, body=body: body.arg_names[i] if i < len(body.arg_names) else f"argument {i}"
        at = location_of(e) or defined_at(body)
        if within:
            names = listed(f"`{name_of(i)}`" for i in donated)
            yield NoEffect(
                "donation-without-effect",
                f"`{body.name}` donates {names}, but it is called in {within[-1].programs[0][1].name}, which is "
                "compiled as a whole: only the outermost jax.jit donates.",
                f"`{body.name}` donates {names} inside of another program",
                "donate the arguments of the outermost jax.jit.", at,
                sum(nbytes(body.invars[i].aval) for i in donated), len(donated),
            )  # fmt: skip
        elif step is not None:
            for d in donations_of(e.operation):
                if d.result is None and d.offered is None:
                    yield NoEffect(
                        "donation-without-effect",
                        f"`{body.name}` donates `{name_of(d.argument)}`, but no result reuses its memory: {d.reason}.",
                        f"`{body.name}` donates `{name_of(d.argument)}` without effect",
                        "do not donate it, or return a result of its type.", at, nbytes(body.invars[d.argument].aval),
                    )  # fmt: skip
