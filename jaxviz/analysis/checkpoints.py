"""What checkpoint policies decided: what happens to each value of a checkpointed function between the two passes."""

from __future__ import annotations

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
from jaxviz.analysis.walk import Tracer, defined_at, location_of, primal_equation
from jaxviz.derivation import Derivation
from jaxviz.higher_order import is_scan, scan_length
from jaxviz.higher_order.shard_map import only_passes_a_scalar
from jaxviz.ir import compat
from jaxviz.ir.expressions import expression_at, shortened_expression
from jaxviz.ir.origin import Location, ancestors
from jaxviz.ir.syntax import Checkpoint, Decision, Equation, Program, Var
from jaxviz.report.pictures import bars
from jaxviz.report.report import MOST_ROWS, Report, Table, attributes
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
      fate: 'saved' in the forward pass, 'recomputed' in the backward pass, 'offloaded' to another memory in between, 'already an
        input' of the function, or 'not needed' by the backward pass, independent of the policy.
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
class CheckpointReport(Report):
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
    """

    function: str
    location: Location
    policy: str
    values: tuple[Decided, ...]
    unmatched: tuple[str, ...]
    names: tuple[str, ...]
    lengths: tuple[int, ...] = ()
    unlisted: tuple[str, ...] = ()

    @property
    def runs(self) -> int:
        """How often it runs."""
        return math.prod(self.lengths)

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.unmatched:
            return ()
        given = ", ".join(map(repr, self.names)) or "none"
        unmatched = ", ".join(map(repr, self.unmatched))
        return (
            f"The policy {self.policy} of {self.function} ({short_location(self.location)}) lists {unmatched}, which "
            f"no checkpoint_name in it defines; names defined there: {given}.",
        )

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

    def _picture(self) -> str:
        rows = ((line_label(v.location), v.nbytes, v.fate) for v in self.values if v.fate != "not needed")
        return bars(rows, f"bytes of the values in the checkpoint of {self.function}, by line")

    def _parts(self) -> Iterator[str | Table]:
        yield self.values_table()
        yield from self.notes

    def values_table(self, caption: str = "") -> Table:
        """The values, grouped by expression over repeated layers: saved ones first, then by size.

        The rows that a notebook can show are the largest. For values that are not saved, all operations of an expression are one row per
        type.

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
                g[0].fate, repeated(len(g), g[0].type), format_bytes(size(g)), short_location(g[0].location), _called(g),
            )
            for g in groups
        ]  # fmt: skip

        def more(shown: int) -> str:
            rest = groups[shown:]
            fates = Counter(v.fate for g in rest for v in g)
            said = ", ".join(f"{fates[fate]:,} {fate}" for fate in FATES if fates[fate])
            return f"{more_rows(len(rest), fates.total(), 'value', format_bytes(sum(map(size, rest))))}: {said}"

        return Table(("decision", "type", "bytes", "line", "value"), rows, "<<><<", caption, more=more)

    def to_dict(self) -> dict[str, Any]:
        values = [{**attributes(v, ("expression", "label", "type", "nbytes")), "decision": v.fate} for v in self.values]
        return {**attributes(self, ("function", "policy", "runs", "unmatched")), "values": values}


def report_checkpoints(derivation: Derivation) -> tuple[CheckpointReport, ...]:
    """One report for each checkpointed function of a derivation, in the order in which they run."""
    naming = Naming(derivation.primal)
    return tuple(_report(c, naming) for c in derivation.linearized.checkpoints)


def _report(checkpoint: Checkpoint, naming: Naming) -> CheckpointReport:
    function = checkpoint.function
    kept, again = _by_lineage(_kept(checkpoint)), _by_lineage(_computed_again(checkpoint.backward, ()))
    values = list(_inputs(checkpoint))
    for decision in checkpoint.decisions:
        equation, verdict = decision.equation, decision.verdict
        made = (again if verdict == "recomputed" else kept).get(equation.origin or equation, ())
        here = [m for m in made if m.is_in_call(decision)]
        scans = tuple(scan_length(e) for e in decision.within if is_scan(e))
        location, written = location_of(equation, decision.within), primal_equation(equation)
        for i, v in enumerate(equation.outvars):
            found = next((m for m in here if m.gives(i, equation)), None)
            fate: Fate = verdict if found is not None else "not needed"
            lengths = scans if found is None or found.lengths is None else found.lengths
            what = described(equation)
            label = naming.name(equation, decision.within, i) or what
            values.append(_decided(what, label, v, location, fate, written, lengths))
    names = tuple(dict.fromkeys(_names_given(function)))
    asked = dict.fromkeys(_names_listed(checkpoint.policy))
    unmatched = tuple(name for name in asked if name not in names)
    policy = policy_name(checkpoint.policy)
    where = defined_at(function)
    again_by_name = {
        d.equation.params["name"]
        for d in checkpoint.decisions
        if d.equation.primitive is compat.name_p and d.verdict == "recomputed"
    }
    unlisted = tuple(name for name in names if asked and name not in asked and name in again_by_name)
    return CheckpointReport(function.name, where, policy, tuple(values), unmatched, names, checkpoint.lengths, unlisted)


@dataclass(frozen=True, slots=True)
class _Made:
    """A value that is saved, or an equation that is recomputed.

    Args:
      equation: the equation that computes it.
      within: the equations that contain its program, outermost first.
      place: the value's index among the results; None for all of them.
      lengths: if it is saved, the trip counts of the scans that stack it; values that are equal in each iteration are hoisted out.
    """

    equation: Equation
    within: tuple[Equation, ...]
    place: int | None = None
    lengths: tuple[int, ...] | None = None

    def is_in_call(self, decision: Decision) -> bool:
        """Whether its enclosing equation derives from that of the equation decided on: a function may be called twice."""
        return all(any(e in decision.within for e in (h, *ancestors(h))) for h in self.within)

    def gives(self, i: int, decided: Equation) -> bool:
        return self.place in (None, i) or len(self.equation.outvars) != len(decided.outvars)


def _by_lineage(made: Iterable[_Made]) -> Mapping[Any, Sequence[_Made]]:
    """By each equation and each of its origins."""
    found: dict[Any, list[_Made]] = {}
    for m in made:
        for e in (m.equation, *ancestors(m.equation)):
            for key in (e, e.origin) if e.origin is not None else (e,):
                found.setdefault(key, []).append(m)
    return found


def _kept(checkpoint: Checkpoint) -> Iterator[_Made]:
    trace = Tracer(checkpoint.forward, looks_through)
    n_results = len(checkpoint.forward.outvars) - checkpoint.n_residuals
    for atom in checkpoint.forward.outvars[n_results:]:
        for source in trace(atom):
            if source.equation is None or source.is_dummy:
                continue
            place = next(i for i, v in enumerate(source.equation.outvars) if v is source.atom)
            yield _Made(source.equation, source.within, place, source.lengths)
            # The policy is asked once for everything that a function with a custom rule computes.
            yield from (_Made(h, source.within[:k], None, source.lengths) for k, h in enumerate(source.within))


def _computed_again(program: Program, within: tuple[Equation, ...]) -> Iterator[_Made]:
    for e in program.equations:
        if e.origin is not None and e.origin.role == "recomputation":
            yield _Made(e, within)
        for _, inner in e.programs:
            yield from _computed_again(inner, (*within, e))


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
    if equation.primitive is compat.name_p:
        return f"checkpoint_name {equation.params['name']!r}"
    return str(equation.primitive.name)


def moved_or_rounded(equation: Equation | None) -> Equation | None:
    """The equation that computed a residual that this one only offloads or rounds."""
    return equation.origin.equation if equation is not None and equation.origin and _moves_or_rounds(equation) else None


def _moves_or_rounds(equation: Equation) -> bool:
    is_either = equation.primitive in (compat.device_put_p, compat.reduce_precision_p)
    return is_either and equation.origin is not None and equation.origin.role == "residual"


def looks_through(equation: Equation) -> bool:
    """Whether an equation only passes a residual on, so that the search for the one that computes it continues: for a `Tracer`."""
    return only_passes_a_scalar(equation) or _moves_or_rounds(equation)


def is_offload(equation: Equation | None) -> bool:
    """Whether an equation moves a value to another memory until the backward pass."""
    return (
        equation is not None
        and equation.primitive is compat.device_put_p
        and equation.origin is not None
        and equation.origin.rule.startswith("offloaded")
    )


def policy_name(policy: Any) -> str:
    """`dots_saveable`, or `save_only_these_names('a', 'b')` for a policy that this function returned."""
    if policy is None:
        return "nothing_saveable, the default"
    policy = inspect.unwrap(policy)
    for name, public in vars(jax.checkpoint_policies).items():
        if public is policy:
            return str(name)
    maker = str(getattr(policy, "__qualname__", "")).split(".<locals>")[0] or _snake_case(type(policy).__name__)
    names = list(_names_listed(policy))
    return f"{maker}({', '.join(map(repr, names))})" if names else maker


def _snake_case(name: str) -> str:
    """The function that creates objects of a class: `save_only_these_names` for `SaveOnlyTheseNames`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _names_listed(policy: Any) -> Iterator[str]:
    """The names listed by a policy of `save_only_these_names` or similar; other policies list none."""
    held = list(getattr(policy, "__dict__", {}).values())
    if inspect.isfunction(policy):
        held += inspect.getclosurevars(policy).nonlocals.values()
    for value in held:
        if callable(value):
            yield from _names_listed(value)
        elif isinstance(value, (set, frozenset, list, tuple)):
            yield from sorted(x for x in value if isinstance(x, str))


def _names_given(function: Program) -> Iterator[str]:
    for _, equation in function.walk():
        if equation.primitive is compat.name_p:
            yield equation.params["name"]
