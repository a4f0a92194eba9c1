"""What the rules of `jaxviz.lint` find in a derivation. `rules.py` explains them."""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax

from jaxviz.analysis.checkpoints import NoEffect
from jaxviz.analysis.grouping import alike, grouped, pattern, repetition
from jaxviz.analysis.naming import ROOM_IN_SENTENCE
from jaxviz.analysis.walk import defined_at, location_of
from jaxviz.derivation import Derivation
from jaxviz.features.flow.find import report_of
from jaxviz.features.lint.advice import Advice
from jaxviz.features.lint.microbatches import accumulations, nbytes_beside, static_slice
from jaxviz.features.lint.narrow_integers import find_narrow_integers
from jaxviz.features.lint.narrow_sums import find_narrow_sums
from jaxviz.features.lint.recompute import Candidate, SavedValues, candidates, spots_of
from jaxviz.features.lint.widened import find_widened
from jaxviz.features.remat.checkpointing import checkpointed
from jaxviz.features.remat.diff import Wrapped, wrapped_at
from jaxviz.features.remat.forms import Trade
from jaxviz.features.remat.graph import derive_like
from jaxviz.features.remat.libraries import CHECKPOINTS, option_of
from jaxviz.features.remat.regions import Region, Spot, alike_spots
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.set_policy import has_checkpoints
from jaxviz.features.remat.without_effect import without_effect
from jaxviz.features.residuals.findings import Finding, find_one_hots, find_upcasts
from jaxviz.features.residuals.residual import Residual
from jaxviz.features.residuals.residual_set import ResidualSet
from jaxviz.higher_order.jit import JIT
from jaxviz.ir import compat
from jaxviz.ir.errors import EquationError, JaxvizError
from jaxviz.ir.expressions import expression_at
from jaxviz.ir.origin import Location, library_line, own_line
from jaxviz.ir.own_code import is_own
from jaxviz.ir.syntax import Atom, Equation, Literal, Program
from jaxviz.report.tables import counted, format_bytes, listed, nbytes, percent, repeated, short_location
from jaxviz.transforms.inline import inlined


@dataclass(frozen=True, eq=False)
class LintSubject:
    """What the rules examine."""

    derivation: Derivation

    @cached_property
    def residuals(self) -> ResidualSet:
        return self.derivation.residuals  # type: ignore[no-any-return]

    @cached_property
    def flat(self) -> Derivation:
        """The derivation with calls of jitted functions inlined."""
        return replace(self.derivation, primal=inlined(self.derivation.primal, (JIT.primitive,)))

    @cached_property
    def search(self) -> Search:
        return Search(self.derivation, False)

    def with_checkpoints(self, flat: Derivation, spots: Sequence[Spot]) -> Trade | None:
        """The figures of the function with a checkpoint around some equations of it; None where JAX allows none.

        Args:
          flat: the same with calls of jitted functions inlined.
          spots: of its program.
        """
        region = Region(flat.primal.name, None, None, alike_spots(spots))
        try:
            return self.search.measured(derive_like(checkpointed(flat.primal, [region], {}), flat))
        except (JaxvizError, ValueError):
            return None

    @cached_property
    def upcasts(self) -> tuple[Finding, ...]:
        return find_upcasts(self.residuals.items)

    @cached_property
    def upcast(self) -> set[Residual]:
        return {r for f in self.upcasts for r in f.residuals}

    @cached_property
    def without_effect(self) -> tuple[NoEffect, ...]:
        return tuple(without_effect(self.derivation))


# --- cheap to recompute -------------------------------------------------------------------------------------------


_MEASURED = 60_000
"""How many equations are derived again in total for candidates whose effect is measured; at least one is."""


def _cheap(subject: LintSubject) -> Iterator[Advice]:
    d = subject.derivation
    flat = subject.flat
    saved = SavedValues(flat, d.primal)
    matching = _Matching(subject.residuals)
    written = [c for c in candidates(saved) if _can_be_written(c)]
    most = max(1, _MEASURED // max(1, sum(1 for _ in flat.primal.walk())))
    for c in written[:most]:
        trade = subject.with_checkpoints(flat, spots_of(saved, c))
        if trade is not None and trade.saved_nbytes < subject.search.written.saved_nbytes:
            yield _recompute(c, saved, matching(c, saved), subject.search, trade)


def _can_be_written(c: Candidate) -> bool:
    """Whether a user can write it: the lines are own ones, can be named, and do not divide one call of a library; and
    the function takes no gradient of them itself, whose backward pass would change as well."""
    if any(compat.is_transposed(e.source) for run in c.runs for e in run):
        return False
    divides = not c.is_whole and any(library_line(e.source) is not None for run in c.runs for e in run)
    is_named = c.is_function or _are_whole_lines(c) or all(map(_has_expressions, c.runs))
    return is_own(c.first.file) and (_library_call(c) != "" or (is_named and not divides))


def _are_whole_lines(c: Candidate) -> bool:
    """Whether they can be named by their numbers."""
    return c.first.line != c.last.line and not c.is_in_pieces


def _has_expressions(run: Sequence[Equation]) -> bool:
    return all(expression_at(own_line(e.source)) for e in (run[0], run[-1]))


def _library_call(c: Candidate) -> str:
    """The function of JAX that does everything in the first run; '' if there is none."""
    calls = {compat.library_call(e.source) for e in c.runs[0]}
    return calls.pop() if len(calls) == 1 else ""


def _recompute(
    c: Candidate, saved: SavedValues, residuals: tuple[Residual, ...], search: Search, trade: Trade
) -> Advice:
    gone, instead = c.saving.gone, c.saving.instead
    times = _times(filter(saved.is_read_by, c.runs))
    call = _library_call(c)
    lines = f"line {c.first.line}" if c.first.line == c.last.line else f"lines {c.first.line} to {c.last.line}"
    operations = listed([_operation_of(a, saved) for a in _largest_first(gone, saved)], 4)
    text = (
        f"{_sizes(gone, saved)} of {f'`{call}` on ' * bool(call)}{lines} are saved ({operations}), and could be "
        "recomputed from "
    )
    if instead:
        text += (
            f"{_sizes(instead, saved)}, saved instead: {listed(_sources(_largest_first(instead, saved), saved), 4)}."
        )
    else:
        text += "values that are in memory anyway."
    if c.saving.unread:
        text += f" Nothing reads {format_bytes(c.saving.unread)} of that again: XLA drops it, so no total counts it."
    fix = f"{_how(c, call, lines)} {_effect(search, trade)}"
    less = search.written.saved_nbytes - trade.saved_nbytes
    return Advice("", text, fix, c.first, less, times, residuals, c.saving.unread)


def _times(runs: Iterable[Sequence[Equation]]) -> int:
    """How often the lines run; what is costly may divide each time into several runs of equations."""
    starts = (own_line(run[0].source) for run in runs)
    return max(Counter((at, at and at.column) for at in starts).values())


def _effect(search: Search, trade: Trade) -> str:
    """`The peak falls from 4.2 MiB to 3.1 MiB (modelled), for 0.2 % more work.`"""
    before, after = search.written.peak_nbytes, trade.peak_nbytes
    share = 100 * (trade.flops - search.written.flops) / max(search.plain_flops, 1)
    work = f"{share:.1f} % more work" if share >= 0.05 else "no more work that is counted in FLOPs"
    if before - after > _NO_FALL * before:
        return f"The peak falls from {format_bytes(before)} to {format_bytes(after)} (modelled), for {work}."
    stays = (
        f"rises from {format_bytes(before)} to {format_bytes(after)}"
        if after > before
        else f"stays at {format_bytes(before)}"
    )
    return f"That saves these bytes, for {work}, but the peak {stays} (modelled)."


_NO_FALL = 0.005
"""A peak that falls by a smaller share stays as it is."""


def _how(c: Candidate, call: str, lines: str) -> str:
    """What to write for a checkpoint around some lines, or around the one call of a library function that they are."""
    name = c.first.function.rsplit(".", 1)[-1]
    places = [where for e in c.runs[0] if (where := location_of(e)) is not None]
    files = [where.file for where in places]
    called = [where.file for e in c.runs[0] if (where := library_line(e.source)) is not None]
    checkpoint = (
        " or ".join(wrapper for library, wrapper in CHECKPOINTS.items() if any(map(_is_of(library), [*files, *called])))
        or "jax.checkpoint"
    )
    if c.is_function and name != "<lambda>":
        return f"wrap {name} in {checkpoint}; everything it computes is cheap."
    if call:
        return f"call `{call}` through jax.checkpoint there."
    if c.is_whole and not any(map(is_own, files)):
        return f"wrap what {lines} call{'s' * (c.first.line == c.last.line)} in {checkpoint}."
    if _are_whole_lines(c):
        return f"put {lines} into a separate function, and call it through {checkpoint}."
    parts = list(dict.fromkeys(map(_part, c.runs)))
    these = " and ".join(parts) if len(parts) < 3 else listed(parts, 3)
    if called and all(part.startswith("`") for part in parts):
        return f"wrap what {these} of {lines} call{'s' * (len(parts) == 1)} in {checkpoint}."
    one = len(parts) == 1
    put, call = ("a separate function", "it") if one else ("separate functions", "them")
    return f"put {these} of {lines} into {put}, and call {call} through {checkpoint}."


def _is_of(library: str) -> Callable[[str], bool]:
    folder = f"{os.sep}{library.replace('.', os.sep)}{os.sep}"
    return lambda file: folder in file


def _part(run: Sequence[Equation]) -> str:
    """The user's expression for some equations of one line, or the first and the last one."""
    first, last = map(_expression, (run[0], run[-1]))
    return f"`{first}`" if first == last else f"the code from `{first}` to `{last}`"


def _expression(equation: Equation) -> str:
    """The user's expression for an equation, as it is in the source; the operation if it is unknown."""
    return expression_at(own_line(equation.source)) or str(equation.primitive.name)


def _sizes(atoms: Sequence[Atom], saved: SavedValues) -> str:
    """`12.0 KiB in 3 values`."""
    size = format_bytes(sum(map(saved.nbytes_of, atoms)))
    return f"{size} in {counted(len(atoms), 'value')}"


def _largest_first(atoms: Sequence[Atom], saved: SavedValues) -> list[Atom]:
    return sorted(atoms, key=lambda a: -saved.nbytes_of(a))


def _operation_of(atom: Atom, saved: SavedValues) -> str:
    """`dot_general`, the path of an argument, or a number."""
    if isinstance(atom, Literal):
        return "a number"
    producer = saved.maker.get(atom)
    if producer is not None:
        return str(producer[0].primitive.name)
    return saved.arguments.get(atom) or ("a constant" if atom in saved.primal.constvars else "what a scan carries")


def _sources(atoms: Sequence[Atom], saved: SavedValues) -> Iterator[str]:
    """``12 × `x + attention(p, x)` (model.py:12)``, `params['layers'][0…11]['scale']`, each expression once."""

    def written(atom: Atom) -> tuple[Hashable, str]:
        producer = saved.maker.get(atom)
        if producer is None:
            return pattern(_operation_of(atom, saved)), _operation_of(atom, saved)
        equation, _ = producer
        name, where = saved.naming.name(equation, room=ROOM_IN_SENTENCE), location_of(equation)
        at = f" ({short_location(where)})" if where is not None else ""
        same = repetition(equation), repetition(*saved.naming.original(equation, ()))
        return same, f"{f'`{name}`' if name else equation.primitive.name}{at}"

    for group in grouped(map(written, atoms), lambda pair: pair[0]):
        yield repeated(len(group), alike([text for _, text in group]))


class _Matching:
    """Matches residuals of the report with values of the same function with its jitted functions inlined."""

    def __init__(self, residuals: ResidualSet):
        self.by_key: dict[Any, list[Residual]] = {}
        for r in residuals:
            key: Any = r.expression
            if r.producer is not None:
                elements = r.aval.size // max(1, math.prod(r.lengths))
                key = (r.producer.primitive, r.location, r.aval.dtype, elements)
            self.by_key.setdefault(key, []).append(r)

    def __call__(self, c: Candidate, saved: SavedValues) -> tuple[Residual, ...]:
        left = {key: iter(rs) for key, rs in self.by_key.items()}
        matched: list[Residual] = []
        for a in c.saving.gone:
            producer = saved.maker.get(a)
            key: Any = str(a.val) if isinstance(a, Literal) else saved.arguments.get(a)
            if producer is not None:
                key = (producer[0].primitive, location_of(producer[0]), a.aval.dtype, a.aval.size)
            matched += itertools.islice(left.get(key, ()), 1)
        return tuple(matched)


# --- checkpoints and their names --------------------------------------------------------------------------------------


def _without_effect(rule: str) -> Callable[[LintSubject], Iterator[Advice]]:
    def find(subject: LintSubject) -> Iterator[Advice]:
        for a in subject.without_effect:
            if a.rule == rule:
                yield Advice("", a.text, a.fix, a.location, a.nbytes, a.count)

    return find


# --- findings about the residuals -------------------------------------------------------------------------------------


def _of_findings(
    findings: Callable[[LintSubject], Iterable[Finding]], text: str, fix: str,
    place: Callable[[Residual], Location] = lambda r: r.location,
) -> Callable[[LintSubject], Iterator[Advice]]:  # fmt: skip
    """Gives one piece of advice for each line with findings, whose texts it puts into `text`."""

    def find(subject: LintSubject) -> Iterator[Advice]:
        for on_line in grouped(findings(subject), lambda f: place(f.residuals[0])):
            same = grouped(on_line, lambda f: tuple(r.repeats for r in f.residuals))
            texts = listed((repeated(len(findings), alike([f.text for f in findings])) for findings in same), 4)
            residuals = tuple(r for f in on_line for r in f.residuals)
            where, size = place(residuals[0]), sum(f.nbytes for f in on_line)
            yield Advice("", text.format(texts), fix, where, size, max(map(len, same)), residuals)

    return find


# --- constants --------------------------------------------------------------------------------------------------------


def _constants(subject: LintSubject) -> Iterator[Advice]:
    primal = subject.derivation.primal
    groups: dict[Location, dict[int, Any]] = {}
    seen: set[int] = set()
    for where, array in _captured(primal, defined_at(primal)):
        if id(array) not in seen:
            seen.add(id(array))
            groups.setdefault(where, {})[id(array)] = jax.typeof(array)
    for where, avals in groups.items():
        kinds = listed([a.str_short(short_dtypes=True) for a in avals.values()], 4)
        many = len(avals) > 1
        yield Advice(
            "",
            f"{where.function} reads {'arrays' if many else 'an array'} {kinds} that "
            f"{'are not arguments' if many else 'is not an argument'}, and so {'constants' if many else 'a constant'} "
            "of the program.",
            "pass large arrays as arguments.", where, sum(map(nbytes, avals.values())), len(avals),
        )  # fmt: skip


def _captured(program: Program, otherwise: Location) -> Iterator[tuple[Location, Any]]:
    """The arrays that a program closes over, and where each is first read."""
    for v, x in zip(program.constvars, program.consts, strict=False):
        reader = next((e for e in program.equations if v in e.invars), None)
        yield (location_of(reader) if reader is not None else None) or otherwise, x
    for e in program.equations:
        for _, inner in e.programs:
            yield from _captured(inner, location_of(e) or otherwise)


# --- layers ----------------------------------------------------------------------------------------------------------

_FALL = 0.75
"""A checkpoint around each layer is suggested if the peak falls below this share."""
_TRIED = 3
"""How many regions are considered."""


def _layers(subject: LintSubject) -> Iterator[Advice]:
    """The effect on the peak of a checkpoint around the body of a scan, or around each call of a function."""
    derivation = subject.derivation
    unopened = any(u.is_checkpoint for u in derivation.unopened)
    if not subject.residuals.nbytes or unopened or has_checkpoints(derivation.primal):
        return
    try:
        _ = derivation.backward
    except EquationError:  # not differentiable in reverse mode
        return
    search = subject.search
    repeated = [r for r in search.regions if search.times(r) > 1][:_TRIED]
    promising = [r for r in repeated if search.estimate((r,)) <= _FALL * search.opened.nbytes]
    only_applied: Advice | None = None
    for region in promising:
        wrapped, rewritten = wrapped_at(search, region) or (None, None)
        planned = search.trial(search.path((region,))[0]).trade
        trade = rewritten.trade if rewritten is not None else planned
        if (trade or planned).peak_nbytes > _FALL * search.written.peak_nbytes or region.location is None:
            continue
        if wrapped is not None:
            yield _around(region, wrapped, trade, search)
            return
        only_applied = only_applied or _around(region, None, trade, search)
    if only_applied is not None:
        yield only_applied


def _around(region: Region, wrapped: Wrapped | None, trade: Trade | None, search: Search) -> Advice:
    """The advice to add a checkpoint around a region.

    Args:
      wrapped: what to write; None if only `plan.apply` can put it there.
      trade: the figures of the function with it; None if they could not be measured.
    """
    before = search.written
    n = sum(map(len, region.alike))
    assert region.location is not None
    option = option_of(region)
    if wrapped is None:
        what = "the body of that loop" if region.is_body else "what that line calls"
        own = f" (the library has the option {option})" if option else ""
        do = f"no line of yours can have a checkpoint around {what}{own}; jaxviz.plan_remat(…).apply puts one there"
    elif wrapped.old:
        do = f"write `{wrapped.new}` for `{wrapped.old}`"
    else:
        do = f"write `{wrapped.new}` above line {wrapped.location.line}"
    if wrapped is not None and wrapped.imports:
        do += f", after {listed([f'`{line}`' for line in wrapped.imports])}"
    computes = (
        "its iterations compute" if region.is_body else f"{region.described} {'computes' if n == 1 else 'compute'}"
    )
    further = ""
    if wrapped is not None:
        further = " jaxviz.plan_remat finds what to save there for less work, and writes the code."
        further += f" The library that runs it also has the option {option}." if option else ""
    comes_to = ""
    if trade is not None:
        more = percent(100 * trade.flops / max(search.plain_flops, 1))
        falls = f"falls from {format_bytes(before.peak_nbytes)} to {format_bytes(trade.peak_nbytes)} (modelled)"
        comes_to = f": the peak {falls}, for {more} more work"
    return Advice(
        "",
        f"Everything that {computes} is saved for the backward pass, where the peak is.",
        f"{do}{comes_to}.{further}",
        wrapped.location if wrapped is not None else region.location,
        before.saved_nbytes - trade.saved_nbytes if trade is not None else 0,
        1 if region.is_in_pieces else search.times(region),
    )


# --- microbatches -----------------------------------------------------------------------------------------------------


def _accumulated(subject: LintSubject) -> Iterator[Advice]:
    """A sum of gradients that a loop carries, where the backward pass could add in place."""
    if subject.derivation.step is None:
        return
    step, loops = accumulations(subject.derivation.step)
    for loop in loops:
        less, where = nbytes_beside(step, [loop]), location_of(loop.adds)
        if less <= 0 or where is None:
            continue
        d, times = step.gradients[loop.mark], loop.loop.params["length"]
        at = None if compat.ADDS_STATIC_SLICES else static_slice(d)
        stops = f"JAX 0.10 stops with an error at the slice at {short_location(at)}: use jax.lax.dynamic_slice."
        yield Advice(
            "",
            f"The loop adds up the {d.gradient} in what it carries: in each of {times:,} iterations another gradient "
            f"is beside the sum, {format_bytes(less)} more than if the backward pass adds to the sum in place.",
            "before the loop make references, `total = jax.tree.map(lambda p: jax.new_ref(jnp.zeros_like(p)), "
            "params)`; in it let the backward pass add to them, `value, pull = jax.vjp(lambda p: loss(p, batch), "
            f"params)` and `pull.with_refs(total)(jnp.ones_like(value){loop.scale})`; after it read the sum, "
            f"`jax.tree.map(jax.freeze, total)`.{f' {stops}' if at else ''}",
            where, less,
        )  # fmt: skip


def _dead(subject: LintSubject) -> Iterator[Advice]:
    """Parameters whose gradient is zero for any values, and not because a user stopped it."""
    flow = report_of(subject.derivation)
    for leaves, sentence in flow.findings:
        ending = leaves[0].endings[0] if leaves[0].endings else None
        location = ending.location if ending is not None else None
        text = f"{sentence[0].upper()}{sentence[1:]}"
        fix = _FIX_DEAD.get(ending.kind if ending is not None else "", _FIX_DEAD["integer"])
        yield Advice("", text, fix, location or defined_at(subject.derivation.primal), count=len(leaves))


_MEANT = "if a gradient of zero is meant, put jax.lax.stop_gradient around the value, which says so."
_FIX_DEAD = {
    "integer": f"weight the choices, as with jax.nn.softmax, so that each has a derivative; or {_MEANT}",
    "boolean": f"compute a smooth weight, as with jax.nn.sigmoid, in place of the comparison; or {_MEANT}",
    "flat": f"let the derivative pass, `x + jax.lax.stop_gradient(jnp.round(x) - x)` for `jnp.round(x)`; or {_MEANT}",
    "library": f"compute it without that function, which stops the gradient; or {_MEANT}",
    "rule": f"return a cotangent for this argument from the backward function; or {_MEANT}",
    "unread": "let the function read it from its argument, or take it out of the argument.",
    "static": "register the class, as with jax.tree_util.register_dataclass, with the array among its data fields.",
}


FIND: dict[str, Callable[[LintSubject], Iterator[Advice]]] = {
    "dead-gradient": _dead,
    "layer-checkpoint": _layers,
    "cheap-recompute": _cheap,
    "sum-in-carry": _accumulated,
    "checkpoint-without-effect": _without_effect("checkpoint-without-effect"),
    "unknown-name": _without_effect("unknown-name"),
    "unused-name": _without_effect("unused-name"),
    "policy-without-effect": _without_effect("policy-without-effect"),
    "donation-without-effect": _without_effect("donation-without-effect"),
    "upcast-kept": _of_findings(
        lambda subject: subject.upcasts,
        "Saved in a wider type than the values had: {}.",
        "put jax.checkpoint around the conversion together with what reads its result, or convert later.",
    ),
    "type-widened": lambda subject: find_widened(subject.flat),
    "narrow-sum": lambda subject: find_narrow_sums(subject.flat),
    "narrow-integers": lambda subject: find_narrow_integers(subject.flat),
    "one-hot-kept": _of_findings(
        lambda subject: find_one_hots(subject.residuals.items),
        "Saved as one-hot rows, where the integers would do: {}.",
        "index with the integers, as `w[ids]` for `one_hot(ids, n) @ w` or `jnp.take_along_axis(x, ids[..., "
        "None], -1)` for the one element of each row that `one_hot(ids, n)` selects; or put jax.checkpoint around "
        "one_hot together with what reads its result.",
    ),
    "scan-stacks-invariant": _of_findings(
        lambda subject: subject.residuals.invariant,
        "A scan stacks copies of a value that is the same in each iteration: {}.",
        "compute it before the scan and close over it, instead of passing it through the carry.",
    ),
    "captured-constant": _constants,
    "cond-dummy": _of_findings(
        lambda subject: subject.residuals.with_dummies,
        "Each branch of a cond fills in dummies for values that only another branch saves: {}.",
        "put jax.checkpoint around the cond, or around the body of the scan that it is in; or differentiate with "
        "jaxviz.grad(f, cond_residuals='recompute').",
        lambda r: r.dummies[0].location or r.location,
    ),
    "unread-residual": _of_findings(
        lambda subject: [f for f in subject.residuals.unread if f.residuals[0].rule.startswith("custom VJP rule")],
        "The backward function of a custom_vjp never reads values that its forward function saves: {}.",
        "leave it out of what the forward function returns.",
    ),
    "kept-twice": _of_findings(
        lambda subject: [f for f in subject.residuals.duplicates if subject.upcast.isdisjoint(f.residuals)],
        "One value is saved more than once: {}.",
        "let all of its readers read the same array, or put jax.checkpoint around the line that makes the "
        "copy together with what reads it.",
    ),
    # Except the numbers that jax.numpy passes to its own jitted functions: the user cannot change these.
    "forced-by-jit": _of_findings(
        lambda subject: [f for f in subject.residuals.forced if all(r.source_kind != "literal" for r in f.residuals)],
        "Saved only because it crosses the boundary of a jitted function: {}.",
        "remove the jit from the inner function; under an outer jit it is compiled all the same.",
    ),
}
"""The function that finds the advice of each rule; the `rule` of the advice is filled in afterwards."""
