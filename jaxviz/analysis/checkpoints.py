"""What checkpoint policies decided: what happens to each value of a checkpointed function between the two passes."""

from __future__ import annotations

import difflib
import heapq
import inspect
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from typing import Literal as OneOf

import jax

from jaxviz.analysis.grouping import alike, grouped, pattern
from jaxviz.analysis.naming import ROOM, Naming
from jaxviz.analysis.walk import SourceTracer, defined_at, location_of, primal_equation
from jaxviz.derivation import Derivation
from jaxviz.higher_order import is_scan, scan_length
from jaxviz.higher_order.checkpoint import decided_by
from jaxviz.higher_order.shard_map import only_passes_a_scalar
from jaxviz.ir import compat
from jaxviz.ir.convert import write_params
from jaxviz.ir.expressions import expression_at, shortened_expression
from jaxviz.ir.origin import Location, ancestors
from jaxviz.ir.syntax import Checkpoint, Decision, Equation, Program, Var
from jaxviz.report.charts import Bars
from jaxviz.report.data import Data
from jaxviz.report.differences import Difference
from jaxviz.report.report import MOST_ROWS, Report, Table
from jaxviz.report.tables import format_bytes, line_label, listed, more_rows, nbytes, repeated, short_location

Fate = OneOf["saved", "offloaded", "recomputed", "already an input", "not needed"]
FATES: tuple[Fate, ...] = ("saved", "offloaded", "recomputed", "already an input", "not needed")


@dataclass(frozen=True, slots=True)
class Decided:
    """One value of a checkpointed function.

    Args:
      expression: the operation that computes it, or the path of an input.
      label: the user's expression for it; the same as `expression` if there is none.
      type: its type; `1,000 × f32[3]` for one in the body of a scan.
      nbytes: its size in bytes, all iterations together.
      location: the user's line.
      fate: 'saved' in the forward pass, 'recomputed' in the backward pass, 'offloaded' to another memory in between,
        'already an input' of the function, or 'not needed' by the backward pass, independent of the policy.
      equation: its equation in the user's program; None for an input.
    """

    expression: str
    label: str
    type: str
    nbytes: int
    location: Location | None
    fate: Fate
    equation: Equation | None

    @property
    def repeats(self) -> Hashable:
        """The key by which values are grouped into rows."""
        if self.equation is None:
            return pattern(self.label)
        at = self.location
        if self.fate in _FIRST or not expression_at(at) or at is None:
            return self.label
        return at.column, at.end_line, at.end_column


_FIRST = ("saved", "offloaded")
"""The decisions listed first; each of their values is a separate row."""


def _called(group: Sequence[Decided]) -> str:
    """The name of the values of a row, as code; for several operations of an expression, with the operations."""
    labels = dict.fromkeys(v.label for v in group)
    if group[0].equation is None or len(labels) == 1:
        return f"`{alike([*labels])}`"
    written = shortened_expression(expression_at(group[0].location), ROOM)
    return f"`{written}` ({listed(v.expression for v in group)})"


@dataclass(frozen=True, eq=False, repr=False)
class CheckpointReport(Report, schema="policies.checkpoint"):
    """What the policy of one checkpointed function decided. If it is in a scan, sizes are those of one run.

    Args:
      function: the name of the function.
      location: where it is defined.
      policy: the name of the policy.
      values: the decision for each value.
      unmatched: names that the policy lists but no `checkpoint_name` in the function gives.
      names: names that the function gives.
      lengths: the trip counts of the scans that it runs in, outermost first.
      unlisted: the names whose values are recomputed because the policy, which saves by name, does not list them.
      ignores_names: whether the policy was given names to exclude, which JAX ignores.
      not_consulted: values that it would save without `jax_remat3`, with which JAX does not ask the policy about them.
    """

    function: str
    location: Location
    policy: str
    values: tuple[Decided, ...]
    unmatched: tuple[str, ...]
    names: tuple[str, ...]
    lengths: tuple[int, ...] = ()
    unlisted: tuple[str, ...] = ()
    ignores_names: bool = False
    not_consulted: tuple[Decided, ...] = ()

    @property
    def runs(self) -> int:
        """How often it runs."""
        return math.prod(self.lengths)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(finding.text for finding in names_without_effect((self,)))

    @property
    def summary(self) -> str:
        """`block (model.py:12), policy dots_saveable: 2 saved 1.2 KiB, 5 recomputed 3.0 KiB`."""
        parts = []
        for fate in FATES:
            of_fate = [v for v in self.values if v.fate == fate]
            if of_fate:
                parts.append(f"{len(of_fate)} {fate} {format_bytes(sum(v.nbytes for v in of_fate))}")
        often = f", {self.runs:,} times in a scan" if self.lengths else ""
        head = f"checkpoint of {self.function} ({short_location(self.location)}){often}, policy {self.policy}"
        return f"{head}: {', '.join(parts)}" if parts else head

    def _chart(self) -> Bars:
        rows = [(line_label(v.location), v.nbytes, v.fate) for v in self.values if v.fate != "not needed"]
        return Bars(rows, f"bytes of the values in the checkpoint of {self.function}, by line")

    def _parts(self) -> Iterator[str | Table]:
        yield self.values_table()
        yield from self.notes

    def values_table(self, caption: str = "") -> Table:
        """The values, grouped by expression over repeated layers: saved ones first, then by size.

        The rows that a notebook can show are the largest. For values that are not saved, all operations of an
        expression are one row per type.

        Args:
          caption: the line above the table.
        """
        groups = grouped(self.values, lambda v: (v.fate, v.repeats, v.type, v.nbytes, v.location))
        size = lambda group: sum(v.nbytes for v in group)
        rank = lambda fate: _FIRST.index(fate) if fate in _FIRST else 3 if fate == "not needed" else 2
        shown = set(map(id, heapq.nlargest(MOST_ROWS, groups, key=size)))
        groups.sort(key=lambda g: (id(g) not in shown, rank(g[0].fate), -size(g)))
        rows = [
            (
                g[0].fate, repeated(len(g), g[0].type), format_bytes(size(g)), short_location(g[0].location),
                _called(g),
            )
            for g in groups
        ]  # fmt: skip

        def more(shown: int) -> str:
            rest = groups[shown:]
            fates = Counter(v.fate for g in rest for v in g)
            counts = ", ".join(f"{fates[fate]:,} {fate}" for fate in FATES if fates[fate])
            return f"{more_rows(len(rest), fates.total(), 'value', format_bytes(sum(map(size, rest))))}: {counts}"

        return Table(("decision", "type", "bytes", "line", "value"), rows, "<<><<", caption, more=more)

    _data = (
        "function", "policy", "runs", "unmatched",
        ("values", ("expression", "label", "type", "nbytes", "decision=fate")),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class NoEffect(Data):
    """A checkpoint, a policy, a name, an offload or a donation that has no effect.

    Args:
      rule: the rule of `jaxviz.lint` that it belongs to; '' for none.
      text: why it has none, in a sentence.
      short: the same in a clause, for a headline.
      fix: what to write instead.
      location: the user's line.
      nbytes: the bytes at stake; 0 for names.
      count: for how many checkpoints, or values, this holds.
    """

    rule: str
    text: str
    short: str
    fix: str
    location: Location
    nbytes: int = 0
    count: int = 1

    _data = ("rule", "text", "short", "fix", "location", "nbytes", "count")


def in_short(findings: Iterable[NoEffect]) -> str:
    """``the policy of `block` lists 'hiden', which nothing in it has (and 2 more)``: for a headline; '' for none, or if
    there is no advice on them."""
    first, *rest = [*(n.short for n in findings if n.rule), ""]
    return f"{first} (and {len(rest) - 1:,} more)" if len(rest) > 1 else first


def effects_apart(before: Sequence[NoEffect], after: Sequence[NoEffect]) -> tuple[list[NoEffect], list[NoEffect]]:
    """What has no effect only before, and only after, whatever the numbers in the sentences."""

    def key(n: NoEffect) -> Hashable:
        return n.rule, n.location.file.rpartition("/")[2], n.location.line, _AMOUNT.sub("#", n.short)

    keys = [{key(n) for n in found} for found in (before, after)]
    return [n for n in before if key(n) not in keys[1]], [n for n in after if key(n) not in keys[0]]


def effect_rows(gone: Iterable[NoEffect], new: Iterable[NoEffect]) -> tuple[Difference, ...]:
    """What has no effect only before, and only after, as rows of a table of differences."""
    rows = ((sign, n) for sign, found in ((-1, gone), (1, new)) for n in found)
    return tuple(Difference(sign, n.text, "", n.location, unit="findings") for sign, n in rows)


_AMOUNT = re.compile(r"\d[\d.,]*( [KMGT]?i?B\b| [kMGTP]?FLOP\b)?")


def names_without_effect(reports: Sequence[CheckpointReport], program: Program | None = None) -> Iterator[NoEffect]:
    """What is listed, named or asked for in the policies of a program without effect.

    Args:
      reports: of all its checkpoints, which may share a policy: it lists a name for any of them.
      program: the program, in which a name may be given elsewhere.
    """
    names_of: dict[str, set[str]] = {}
    for r in reports:
        names_of.setdefault(r.policy, set()).update(r.names)
    outside = {e.params["name"]: location_of(e) for _, e in program.walk() if is_name(e)} if program is not None else {}
    unknown = ((r, name) for r in reports for name in r.unmatched if name not in names_of[r.policy])
    for pairs in grouped(unknown, lambda pair: (pair[0].policy, pair[1])):
        r, name = pairs[0]
        yield _unknown_name(r, name, names_of[r.policy], outside.get(name), len(pairs))
    is_listed = {name for r in reports for name in r.names if name not in r.unlisted}
    for of_function in grouped(reports, lambda r: (r.function, r.policy)):
        unused = dict.fromkeys(n for r in of_function for n in r.unlisted if n not in is_listed)
        named = [v for r in of_function for v in r.values if v.expression in map(described_name, unused)]
        if named:
            yield _unused_names(of_function[0], [*unused], named)
    for same in grouped(reports, lambda r: (r.function, r.policy, r.location)):
        if same[0].ignores_names:
            yield _ignored_names(same[0], len(same))
        if any(r.not_consulted for r in same):
            yield _not_consulted(same)


def _unknown_name(r: CheckpointReport, name: str, names: set[str], outside: Location | None, count: int) -> NoEffect:
    there = ", ".join(map(repr, sorted(names))) or "none"
    close = difflib.get_close_matches(name, names, 1)
    if outside is not None:
        fix = f"the name {name!r} is at {short_location(outside)}, outside of the checkpoint: move that line into it."
    elif close:
        fix = f"list {close[0]!r}, if that is what you meant."
    else:
        fix = f"call checkpoint_name(value, {name!r}) in {r.function}, or remove the name from the list."
    return NoEffect(
        "unknown-name",
        f"The policy {r.policy} of {r.function} ({short_location(r.location)}) lists {name!r}, which no "
        f"checkpoint_name in it defines; names defined there: {there}.",
        f"the policy of `{r.function}` lists {name!r}, which nothing in it has", fix, r.location, 0, count,
    )  # fmt: skip


def _unused_names(r: CheckpointReport, names: Sequence[str], values: Sequence[Decided]) -> NoEffect:
    them = "them" if len(names) > 1 else "it"
    quoted = ", ".join(map(repr, names))
    return NoEffect(
        "unused-name",
        f"{r.function} defines {quoted} with checkpoint_name, but its policy {r.policy} does not list {them}: the "
        f"value{'s are' if len(names) > 1 else ' is'} recomputed as if there were no name.",
        f"the policy of `{r.function}` does not list {quoted}",
        f"list {them} in the policy, or remove checkpoint_name.", values[0].location or r.location, 0, len(values),
    )  # fmt: skip


def _ignored_names(r: CheckpointReport, count: int) -> NoEffect:
    saved = [
        name for name in r.names if any(v.expression == described_name(name) and v.fate == "saved" for v in r.values)
    ]
    also = f", {' and '.join(map(repr, saved))} too" if saved else ", whatever its name"
    return NoEffect(
        "policy-without-effect",
        f"JAX ignores the names that {r.policy} is given: the policy of {r.function} ({short_location(r.location)}) "
        f"saves every value that it is asked about{also}.", f"JAX ignores the names given to `{r.policy}`",
        "write save_only_these_names with the names to save, or save_any_names_but_these, which saves every other "
        "value with a name.",
        r.location, 0, count,
    )  # fmt: skip


def _not_consulted(same: Sequence[CheckpointReport]) -> NoEffect:
    r = same[0]
    values = [v for c in same for v in c.not_consulted]
    n = sum(v.nbytes * c.runs for c in same for v in c.not_consulted)
    labels = [*dict.fromkeys(f"`{v.label}`" for v in values)]
    return NoEffect(
        "policy-without-effect",
        f"Under jax_remat3, JAX asks a policy only about names, matrix products and convolutions: {r.policy} of "
        f"{r.function} ({short_location(r.location)}) would save {listed(labels)}, {format_bytes(n)}, but is not "
        f"asked, and {'they are' if len(labels) > 1 else 'it is'} recomputed.",
        f"JAX does not ask the policy of `{r.function}` about {listed(v.expression for v in values)}",
        "name the values with checkpoint_name, and list the names in save_only_these_names.",
        values[0].location or r.location, n, len(same),
    )  # fmt: skip


def report_checkpoints(derivation: Derivation) -> tuple[CheckpointReport, ...]:
    """One report for each checkpointed function of a derivation, in the order in which they run."""
    naming = Naming(derivation.primal)
    return tuple(_report(c, naming) for c in derivation.linearized.checkpoints)


def _report(checkpoint: Checkpoint, naming: Naming) -> CheckpointReport:
    function = checkpoint.function
    values = (*_inputs(checkpoint), *(v for _, v in _values(checkpoint, naming)))
    names = tuple(dict.fromkeys(_names_defined(function)))
    listed_names = dict.fromkeys(names_listed(checkpoint.policy))
    unmatched = tuple(name for name in listed_names if name not in names)
    policy = policy_name(checkpoint.policy)
    where = defined_at(function)
    again_by_name = {
        d.equation.params["name"] for d in checkpoint.decisions if is_name(d.equation) and d.verdict == "recomputed"
    }
    unlisted = tuple(name for name in names if listed_names and name not in listed_names and name in again_by_name)
    return CheckpointReport(
        function.name, where, policy, values, unmatched, names, checkpoint.lengths, unlisted,
        compat.ignores_names(checkpoint.policy), tuple(_saved_if_asked(checkpoint, naming)),
    )  # fmt: skip


def _values(checkpoint: Checkpoint, naming: Naming) -> Iterator[tuple[Decision, Decided]]:
    """What is decided about each value that the function computes."""
    saved, again = _by_lineage(_saved(checkpoint)), _by_lineage(_recomputed(checkpoint.backward, ()))
    for decision in checkpoint.decisions:
        equation, verdict = decision.equation, decision.verdict
        computed = (again if verdict == "recomputed" else saved).get(equation.origin or equation, ())
        here = [m for m in computed if m.is_in_call(decision)]
        scans = tuple(scan_length(e) for e in decision.within if is_scan(e))
        location, written = location_of(equation, decision.within), primal_equation(equation)
        for i, v in enumerate(equation.outvars):
            source = next((m for m in here if m.gives(i, equation)), None)
            fate: Fate = "not needed" if source is None else "saved" if verdict == "by its rule" else verdict
            lengths = scans if source is None or source.lengths is None else source.lengths
            what = described(equation)
            label = naming.name(equation, decision.within, i) or what
            yield decision, _decided(what, label, v, location, fate, written, lengths)


def _saved_if_asked(checkpoint: Checkpoint, naming: Naming) -> Iterator[Decided]:
    """What the policy would save of what `jax_remat3` does not ask it about, if JAX asked it about everything.

    It is asked about the operation that computes a value, which in a derivative is not the one that the user wrote.
    """
    policy = checkpoint.policy
    is_saved = lambda d: compat.would_save(policy, d.equation.primitive, d.equation.operation.in_avals, _params(d))
    if not any(d.verdict == "recomputed" and is_saved(d) for d in checkpoint.decisions):
        return
    try:
        asked = decided_by(inspect.unwrap(policy), checkpoint)
    except Exception:  # a policy may only know what it is asked about
        return
    for decision, value in _values(asked, naming):
        if value.fate == decision.verdict == "saved" and is_saved(decision):
            yield value


def _params(decision: Decision) -> Mapping[str, Any]:
    return write_params(decision.equation.operation)


@dataclass(frozen=True, slots=True)
class _Computed:
    """A value that is saved, or an equation that is recomputed.

    Args:
      equation: the equation that computes it.
      within: the equations that contain its program, outermost first.
      place: the value's index among the results; None for all of them.
      lengths: if it is saved, the trip counts of the scans that stack it; an invariant value is hoisted out.
    """

    equation: Equation
    within: tuple[Equation, ...]
    place: int | None = None
    lengths: tuple[int, ...] | None = None

    def is_in_call(self, decision: Decision) -> bool:
        """Whether it is in the same call as the equation decided on: a function may be called twice."""
        return all(any(e in decision.within for e in (h, *ancestors(h))) for h in self.within)

    def gives(self, i: int, decided: Equation) -> bool:
        return self.place in (None, i) or len(self.equation.outvars) != len(decided.outvars)


def _by_lineage(computed: Iterable[_Computed]) -> Mapping[Any, Sequence[_Computed]]:
    """By each equation and each of its origins."""
    by_equation: dict[Any, list[_Computed]] = {}
    for m in computed:
        for e in (m.equation, *ancestors(m.equation)):
            for key in (e, e.origin) if e.origin is not None else (e,):
                by_equation.setdefault(key, []).append(m)
    return by_equation


def _saved(checkpoint: Checkpoint) -> Iterator[_Computed]:
    trace = SourceTracer(checkpoint.forward, looks_through)
    n_results = len(checkpoint.forward.outvars) - checkpoint.n_residuals
    for atom in checkpoint.forward.outvars[n_results:]:
        for source in trace(atom):
            if source.equation is None or source.is_dummy:
                continue
            place = next(i for i, v in enumerate(source.equation.outvars) if v is source.atom)
            yield _Computed(source.equation, source.within, place, source.lengths)
            # The policy is asked once for everything that a function with a custom rule computes.
            yield from (_Computed(h, source.within[:k], None, source.lengths) for k, h in enumerate(source.within))


def _recomputed(program: Program, within: tuple[Equation, ...]) -> Iterator[_Computed]:
    for e in program.equations:
        if e.origin is not None and e.origin.role == "recomputation":
            yield _Computed(e, within)
        for _, inner in e.programs:
            yield from _recomputed(inner, (*within, e))


def _inputs(checkpoint: Checkpoint) -> Iterator[Decided]:
    """The inputs that the backward pass reads again."""
    function = checkpoint.function
    inputs = function.invars[: checkpoint.n_inputs]
    read = {a for e in checkpoint.backward.equations for a in e.invars}
    for v, name in zip(inputs, function.arg_names, strict=False):
        if v in read:
            yield _decided(name or "input", name or "input", v, defined_at(function), "already an input", None)


def _decided(
    expression: str, label: str, v: Var, location: Location | None, fate: Fate,
    equation: Equation | None, lengths: tuple[int, ...] = (),
) -> Decided:  # fmt: skip
    text = times(lengths, v.aval.str_short(short_dtypes=True))
    return Decided(expression, label, text, math.prod(lengths) * nbytes(v.aval), location, fate, equation)


def times(lengths: Sequence[int], kind: str) -> str:
    """`1,000 × f32[3]`: the type of a value that each iteration of a scan computes."""
    return " × ".join([*(f"{n:,}" for n in lengths), kind])


def described(equation: Equation) -> str:
    """The primitive of an equation, or the name from `checkpoint_name`."""
    if is_name(equation):
        return described_name(equation.params["name"])
    return str(equation.primitive.name)


def described_name(name: str) -> str:
    return f"checkpoint_name {name!r}"


def is_name(equation: Equation) -> bool:
    return equation.primitive is compat.name_p


def moved_or_rounded(equation: Equation | None) -> Equation | None:
    """The equation that computed a residual that this one only offloads or rounds."""
    return equation.origin.equation if equation is not None and equation.origin and _moves_or_rounds(equation) else None


def _moves_or_rounds(equation: Equation) -> bool:
    is_either = equation.primitive in (compat.device_put_p, compat.reduce_precision_p)
    return is_either and equation.origin is not None and equation.origin.role == "residual"


def looks_through(equation: Equation) -> bool:
    """Whether an equation only passes a residual on, so that a `SourceTracer` goes on to the one that computes it."""
    return only_passes_a_scalar(equation) or _moves_or_rounds(equation)


def is_offload(equation: Equation | None) -> bool:
    """Whether an equation moves a value to another memory until the backward pass."""
    if equation is None or equation.origin is None:
        return False
    return equation.primitive is compat.device_put_p and equation.origin.rule.startswith("offloaded")


def policy_name(policy: Any) -> str:
    """`dots_saveable`, or `save_only_these_names('a', 'b')` for a policy that this function returned."""
    policy = inspect.unwrap(policy)
    if policy is None:
        return "nothing_saveable, the default"
    for name, public in vars(jax.checkpoint_policies).items():
        if public is policy:
            return str(name)
    maker = str(getattr(policy, "__qualname__", "")).split(".<locals>")[0] or _snake_case(type(policy).__name__)
    names = list(names_listed(policy))
    return f"{maker}({', '.join(map(repr, names))})" if names else maker


def _snake_case(name: str) -> str:
    """The function that creates objects of a class: `save_only_these_names` for `SaveOnlyTheseNames`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def names_listed(policy: Any) -> Iterator[str]:
    """The names listed by a policy of `save_only_these_names` or similar; other policies list none."""
    contents = list(getattr(policy, "__dict__", {}).values())
    if inspect.isfunction(policy):
        contents += inspect.getclosurevars(policy).nonlocals.values()
    for value in contents:
        if callable(value):
            yield from names_listed(value)
        elif isinstance(value, (set, frozenset, list, tuple)):
            yield from sorted(x for x in value if isinstance(x, str))


def _names_defined(function: Program) -> Iterator[str]:
    for _, equation in function.walk():
        if is_name(equation):
            yield equation.params["name"]
