"""What the rules of `jaxviz.lint` find in a derivation. What they mean stands in `lint_rules`."""

from __future__ import annotations

import difflib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax

from jaxviz.analysis.checkpoints import policy_name
from jaxviz.analysis.walk import Site, defined_at, location_of
from jaxviz.derivation import Derivation
from jaxviz.features.cost.parts import cost_of
from jaxviz.features.cost.report import format_flops
from jaxviz.features.lint.recompute import Candidate, Kept, candidates
from jaxviz.features.residuals.findings import Finding, find_upcasts
from jaxviz.features.residuals.residual_set import Residual, ResidualSet
from jaxviz.higher_order import of
from jaxviz.higher_order.jit import JIT
from jaxviz.ir import compat
from jaxviz.ir.origin import Location, ancestors, call_stack, is_framework
from jaxviz.ir.pretty import variable_names
from jaxviz.ir.syntax import Atom, Equation, Literal, Program
from jaxviz.report.report import attributes
from jaxviz.report.tables import counted, format_bytes, listed, nbytes, short_location, wrapped
from jaxviz.transforms.inline import inlined, inlined_where


@dataclass(frozen=True, eq=False)
class Advice:
    """One piece of advice.

    Args:
      rule: the id of the rule in `LINT_RULES`.
      text: what there is, in a sentence or two.
      fix: what to write instead.
      location: the user's line.
      nbytes: the bytes at stake, of all times together; 0 for what is not a matter of bytes.
      count: how many times it is so on that line.
      residuals: the residuals concerned.
      unread_nbytes: bytes that are at stake too, but that the backward pass does not read, so that XLA drops them anyway.
    """

    rule: str
    text: str
    fix: str
    location: Location
    nbytes: int = 0
    count: int = 1
    residuals: tuple[Residual, ...] = ()
    unread_nbytes: int = 0

    @property
    def head(self) -> str:
        """`cheap-recompute at model.py:12 in layer: 96.0 KiB, 12 times`."""
        where = f"{short_location(self.location)} in {self.location.function}"
        size = f": {format_bytes(self.nbytes)}" if self.nbytes else ""
        return f"{self.rule} at {where}{size}{f', {self.count:,} times' if self.count > 1 else ''}"

    def __str__(self) -> str:
        return "\n".join([self.head, *(wrapped(part) for part in (self.text, f"Instead: {self.fix}"))])

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for programs."""
        named = attributes(self, ("rule", "text", "fix", "location", "nbytes", "count", "unread_nbytes"))
        return {**named, "residuals": [r.name for r in self.residuals]}


@dataclass(frozen=True, eq=False)
class Subject:
    """What the rules look at.

    Args:
      derivation: of the function.
    """

    derivation: Derivation

    @cached_property
    def found(self) -> ResidualSet:
        return self.derivation.residuals  # type: ignore[no-any-return]

    @cached_property
    def site(self) -> Site:
        return Site.of(self.derivation, variable_names(self.derivation.forward))

    @cached_property
    def upcasts(self) -> tuple[Finding, ...]:
        return find_upcasts(self.found.items, self.derivation.linearized.residuals, self.site)

    def written_out(self, is_opened: Callable[[Equation], bool]) -> Derivation:
        """The same with some calls replaced by what they call."""
        d = self.derivation
        return replace(d, primal=inlined_where(d.primal, is_opened))


# --- what is cheap to compute again -----------------------------------------------------------------------------------


def _cheap(subject: Subject) -> Iterator[Advice]:
    d = subject.derivation
    flat = replace(d, primal=inlined(d.primal, (JIT.primitive,)))
    kept = Kept(flat)
    matching = _Matching(subject.found)
    for c in candidates(kept):
        yield _recompute(c, kept, matching(c, kept))


def _recompute(c: Candidate, kept: Kept, residuals: tuple[Residual, ...]) -> Advice:
    gone, instead = c.saving.gone, c.saving.instead
    times = sum(map(kept.is_read_by, c.runs))
    calls = {compat.library_call(e.source) for e in c.runs[0]}
    call = calls.pop() if len(calls) == 1 else ""
    lines = f"line {c.first.line}" if c.first.line == c.last.line else f"lines {c.first.line} to {c.last.line}"
    operations = listed([_made_by(a, kept) for a in _largest_first(gone, kept)], 4)
    text = f"{_sizes(gone, kept)} of {f'`{call}` on ' * bool(call)}{lines} are kept ({operations}), and could be computed again from "
    if instead:
        text += f"{_sizes(instead, kept)} kept in their place: {listed([_source(a, kept) for a in _largest_first(instead, kept)], 4)}."
    else:
        text += "what is kept anyway."
    if c.saving.unread:
        text += f" The backward pass does not read {format_bytes(c.saving.unread)} of it, which are not counted: XLA drops them."
    if kept.is_last(c):
        text += (
            " Nothing as large is kept after them, so that this lowers what is kept, but hardly the peak: the backward "
            "pass begins with them."
        )
    return Advice("", text, _how(c, call, lines), c.first, c.saving.worth, times, residuals, c.saving.unread)


def _how(c: Candidate, call: str, lines: str) -> str:
    """What to write for a checkpoint around some lines, all of which is in a call of this library function if there is one."""
    name = c.first.function.rsplit(".", 1)[-1]
    first, last = (e.primitive.name for e in (c.runs[0][0], c.runs[0][-1]))
    places = [where for e in c.runs[0] if (where := location_of(e)) is not None]
    files = [where.file for where in places]
    checkpoint = (
        " or ".join(made for part, made in _LIFTED.items() if any(part in file for file in files)) or "jax.checkpoint"
    )
    if c.is_function and name != "<lambda>":
        return f"wrap {name} in {checkpoint}; all that it does is cheap."
    if call:
        return f"call `{call}` through jax.checkpoint there."
    if c.is_whole and all(map(is_framework, files)):
        return f"wrap what {lines} call{'s' * (c.first.line == c.last.line)} in {checkpoint}."
    if c.first.line != c.last.line:
        return f"put {lines} into a function of their own, and call that through {checkpoint}."
    part = f"`{first}`" if first == last else f"what lies from `{first}` to `{last}`"
    if files and is_framework(files[0]):
        part += f" ({short_location(places[0])})"
    return f"put {part} of {lines} into a function of its own, and call that through {checkpoint}."


_LIFTED = {
    "/flax/linen/": "flax.linen.remat", "/flax/nnx/": "flax.nnx.remat", "/haiku/": "haiku.remat",
    "/equinox/": "equinox.filter_checkpoint",
}  # fmt: skip
"""What libraries have in place of jax.checkpoint, for what calls their modules."""


def _sizes(atoms: Sequence[Atom], kept: Kept) -> str:
    """`12.0 KiB in 3 values`."""
    size = format_bytes(sum(map(kept.nbytes_of, atoms)))
    return f"{size} in {counted(len(atoms), 'value')}"


def _largest_first(atoms: Sequence[Atom], kept: Kept) -> list[Atom]:
    return sorted(atoms, key=lambda a: -kept.nbytes_of(a))


def _made_by(atom: Atom, kept: Kept) -> str:
    """`dot_general`, the path of an argument, or a number."""
    if isinstance(atom, Literal):
        return "a number"
    made_by = kept.maker.get(atom)
    if made_by is not None:
        return str(made_by[0].primitive.name)
    return kept.arguments.get(atom) or ("a constant" if atom in kept.primal.constvars else "what a scan carries")


def _source(atom: Atom, kept: Kept) -> str:
    """`dot_general` (model.py:12)."""
    made_by = kept.maker.get(atom)
    where = location_of(made_by[0]) if made_by is not None else None
    return _made_by(atom, kept) + (f" ({short_location(where)})" if where is not None else "")


class _Matching:
    """The residuals of the report for values of the same function with its jitted functions written out."""

    def __init__(self, found: ResidualSet):
        self.by_key: dict[Any, list[Residual]] = {}
        for r in found:
            key: Any = r.expression
            if r.producer is not None:
                elements = r.aval.size // max(1, math.prod(r.lengths))
                key = (r.producer.primitive, r.location, r.aval.dtype, elements)
            self.by_key.setdefault(key, []).append(r)

    def __call__(self, c: Candidate, kept: Kept) -> tuple[Residual, ...]:
        left = {key: iter(rs) for key, rs in self.by_key.items()}
        made: list[Residual] = []
        for a in c.saving.gone:
            made_by = kept.maker.get(a)
            key: Any = str(a.val) if isinstance(a, Literal) else kept.arguments.get(a)
            if made_by is not None:
                key = (made_by[0].primitive, location_of(made_by[0]), a.aval.dtype, a.aval.size)
            made += itertools.islice(left.get(key, ()), 1)
        return tuple(made)


# --- checkpoints and their names --------------------------------------------------------------------------------------


def _without_effect(subject: Subject) -> Iterator[Advice]:
    groups: dict[Any, list[Equation]] = {}
    for e in _outermost_checkpoints(subject.derivation.primal):
        body: Program = e.params["jaxpr"]
        groups.setdefault((location_of(e), body.name, id(e.params["policy"])), []).append(e)
    with_it = _held(subject.derivation)
    for (where, name, _), equations in groups.items():
        chosen = set(equations)
        saved = _held(subject.written_out(chosen.__contains__)) - with_it
        if saved > 0:
            continue
        body = equations[0].params["jaxpr"]
        policy = policy_name(equations[0].params["policy"])
        key = (name, defined_at(body), policy)
        report = [r for r in subject.found.checkpoints if (r.function, r.location, r.policy) == key]
        again = {v.equation for r in report[:1] for v in r.values if v.fate == "recomputed" and v.equation is not None}
        keeps = f"keeps {format_bytes(-saved)} more than without it" if saved else "saves no bytes"
        flops = sum(cost_of(e).flops for e in again)
        work = f"though it computes {format_flops(flops)} again" if again else "and computes nothing again either"
        yield Advice(
            "", f"The checkpoint of {name}, with the policy {policy}, {keeps}, {work}{' each time' * (len(equations) > 1)}.",
            "take the checkpoint away, put more into the function that it is around, or let its policy save less.",
            where or defined_at(body), -saved, len(equations),
        )  # fmt: skip


def _outermost_checkpoints(program: Program) -> Iterator[Equation]:
    for e in program.equations:
        if of(e).is_checkpoint:
            yield e
        else:
            for _, inner in e.programs:
                yield from _outermost_checkpoints(inner)


def _held(derivation: Derivation) -> int:
    return sum(nbytes(a.aval) for a in derivation.linearized.residuals)


def _unknown_names(subject: Subject) -> Iterator[Advice]:
    reports = subject.found.checkpoints
    given: dict[str, set[str]] = {}
    for r in reports:
        given.setdefault(r.policy, set()).update(r.names)
    elsewhere = {
        e.params["name"]: location_of(e) for _, e in subject.derivation.primal.walk() if e.primitive is compat.name_p
    }
    found = Counter((r.policy, name) for r in reports for name in r.unmatched if name not in given[r.policy])
    for (policy, name), count in found.items():
        report = next(r for r in reports if r.policy == policy and name in r.unmatched)
        names = ", ".join(map(repr, sorted(given[policy]))) or "none"
        text = f"The policy {policy} of {report.function} lists {name!r}, which no checkpoint_name in it gives; given there: {names}."
        close = difflib.get_close_matches(name, given[policy], 1)
        where = elsewhere.get(name)
        if where is not None:
            fix = (
                f"{name!r} is given at {short_location(where)}, outside of the checkpoint: put that line inside of it."
            )
        elif close:
            fix = f"list {close[0]!r}, if that is what was meant."
        else:
            fix = f"call checkpoint_name(value, {name!r}) in {report.function}, or take the name off the list."
        yield Advice("", text, fix, report.location, 0, count)


def _unused_names(subject: Subject) -> Iterator[Advice]:
    reports = subject.found.checkpoints
    listed = {name for r in reports for name in r.names if name not in r.unlisted}
    found: dict[tuple[str, str], dict[str, None]] = {}
    for r in reports:
        found.setdefault((r.function, r.policy), {}).update((n, None) for n in r.unlisted if n not in listed)
    for (function, policy), names in found.items():
        at = [(location_of(e), e) for _, e in subject.derivation.primal.walk() if _names_any(e, names)]
        if at:
            several = len(names) > 1
            yield Advice(
                "", f"checkpoint_name gives {', '.join(map(repr, names))} in {function}, whose policy {policy} does not list "
                f"{'them' if several else 'it'}: the value{'s are' if several else ' is'} computed again as if there were no name.",
                "list it in the policy, or take checkpoint_name away.", at[0][0] or subject.site.definition, 0, len(at),
            )  # fmt: skip


def _names_any(equation: Equation, names: Container[str]) -> bool:
    return equation.primitive is compat.name_p and equation.params["name"] in names


# --- what the residuals say by themselves -----------------------------------------------------------------------------


def _upcasts(subject: Subject) -> Iterator[Advice]:
    yield from _by_line(
        subject.upcasts,
        lambda texts: f"Kept in a wider type than the numbers had: {texts}.",
        "put jax.checkpoint around the conversion together with what reads its result, or convert later.",
    )


def _duplicates(subject: Subject) -> Iterator[Advice]:
    upcast = {r for f in subject.upcasts for r in f.residuals}
    yield from _by_line(
        [f for f in subject.found.duplicates if upcast.isdisjoint(f.residuals)],
        lambda texts: f"One value is kept more than once: {texts}.",
        "let all of its readers read the same array, or put jax.checkpoint around the line that makes the copy together with what reads it.",
    )


def _invariants(subject: Subject) -> Iterator[Advice]:
    yield from _by_line(
        subject.found.invariant,
        lambda texts: f"A scan stacks copies of a value that is the same in each iteration: {texts}.",
        "compute it before the scan and close over it; do not hand it through the carry.",
    )


def _forced(subject: Subject) -> Iterator[Advice]:
    # Not the numbers that jax.numpy hands to its own jitted functions: nothing can be done about them, nor need be.
    yield from _by_line(
        [f for f in subject.found.forced if all(r.kind != "literal" for r in f.residuals)],
        lambda texts: f"Kept only since it crosses the boundary of a jitted function: {texts}.",
        "take the jit off the inner function; under the jit of the whole it is compiled all the same.",
    )


def _unread(subject: Subject) -> Iterator[Advice]:
    by_custom_rule = {r for r in subject.found if r.rule.startswith("custom VJP rule")}
    yield from _by_line(
        [f for f in subject.found.unread if by_custom_rule.issuperset(f.residuals)],
        lambda texts: f"The backward function of a custom_vjp never reads what its forward function keeps: {texts}.",
        "leave it out of what the forward function returns.",
    )


def _dummies(subject: Subject) -> Iterator[Advice]:
    where = {r: _users_line(r, r.dummies[0].location) for f in subject.found.with_dummies for r in f.residuals}
    yield from _by_line(
        subject.found.with_dummies,
        lambda texts: f"Each branch of a cond fills in dummies for what only another one keeps: {texts}.",
        "put jax.checkpoint around the cond, or around the body of the scan that it is in; or differentiate with "
        "jaxviz.grad(f, cond_residuals='recompute').",
        where.__getitem__,
    )


def _by_line(
    findings: Iterable[Finding], text: Callable[[str], str], fix: str,
    place: Callable[[Residual], Location] | None = None,
) -> Iterator[Advice]:  # fmt: skip
    """One piece of advice for each line."""
    groups: dict[Location, list[Finding]] = {}
    for f in findings:
        groups.setdefault((place or _users_line)(f.residuals[0]), []).append(f)
    for where, group in groups.items():
        texts = listed([f.text for f in group], 4)
        residuals = tuple(r for f in group for r in f.residuals)
        yield Advice("", text(texts), fix, where, sum(f.nbytes for f in group), len(group), residuals)


def _users_line(r: Residual, where: Location | None = None) -> Location:
    """Where a residual is made, or another place that has to do with it; not in a library that models are written with."""
    where = where or r.location
    if not is_framework(where.file) or r.producer is None:
        return where
    stacks = (call_stack(e.source) for e in (r.producer, *ancestors(r.producer)))
    return next((stack[0] for stack in stacks if stack and not is_framework(stack[0].file)), where)


# --- constants --------------------------------------------------------------------------------------------------------


def _constants(subject: Subject) -> Iterator[Advice]:
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
            "", f"{where.function} reads {'arrays' if many else 'an array'} {kinds} that {'are' if many else 'is'} no argument, and so "
            f"{'constants' if many else 'a constant'} of the program.",
            "pass what is large as an argument.", where, sum(map(nbytes, avals.values())), len(avals),
        )  # fmt: skip


def _captured(program: Program, otherwise: Location) -> Iterator[tuple[Location, Any]]:
    """The arrays that a program closes over, and where each is first read."""
    for v, x in zip(program.constvars, program.consts, strict=False):
        reader = next((e for e in program.equations if v in e.invars), None)
        yield (location_of(reader) if reader is not None else None) or otherwise, x
    for e in program.equations:
        for _, inner in e.programs:
            yield from _captured(inner, location_of(e) or otherwise)


FIND: dict[str, Callable[[Subject], Iterator[Advice]]] = {
    "cheap-recompute": _cheap,
    "checkpoint-without-effect": _without_effect,
    "unknown-name": _unknown_names,
    "unused-name": _unused_names,
    "upcast-kept": _upcasts,
    "scan-stacks-invariant": _invariants,
    "captured-constant": _constants,
    "cond-dummy": _dummies,
    "unread-residual": _unread,
    "kept-twice": _duplicates,
    "forced-by-jit": _forced,
}
"""What finds the advice by each rule; its `rule` is filled in afterwards."""
