"""`divergence`: where two runs part, by what rounding may change."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.arguments import Argnums
from jaxviz.displays import display
from jaxviz.features.values.compiler import CompiledDifference, compiled_difference
from jaxviz.features.values.pairs import paired_arguments, paired_gradients, paired_results, paired_values
from jaxviz.features.values.partings import Parting, parting, parting_of_arguments
from jaxviz.features.values.recording import prepared
from jaxviz.features.values.records import (
    GRADIENT,
    RESULT,
    Order,
    RecordedValue,
    RunRecord,
    load_records,
)
from jaxviz.features.values.summaries import MOST_NOISE, SEEDS, moved
from jaxviz.higher_order.checkpoint import CHECKPOINT
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.report.charts import NUMBERS, Axis, Curve, Curves
from jaxviz.report.latest import Latest
from jaxviz.report.report import Drawn, Part, Report, Table
from jaxviz.report.tables import counted, listed, together
from jaxviz.runtime.cache import function_name
from jaxviz.runtime.flags import Flags, flags_text, under_flags
from jaxviz.transforms.inline import inlined

MOST_DRIFT = 0.01
"""Calls whose arguments earlier ones have driven further apart than this part of their norm are not compared: what is
computed from these is not near enough to be proportional to the difference."""

LEAST_FIT = 0.9
"""How much of the logarithms of differences one factor from iteration to iteration explains, if it is said."""

AGAINST = ("op-by-op", "float64", "bfloat16", "no-remat", "unsharded", "perturbed")


@dataclass(frozen=True, eq=False)
class RecordedCall:
    """A function and its arguments, to be run again."""

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    argnums: Argnums
    has_aux: bool


_LATEST: Latest[RecordedCall] = Latest(2)


@dataclass(frozen=True, repr=False)
class Divergence(Report, schema="divergence"):
    """Where two runs part; see `divergence`.

    >>> found = jaxviz.divergence(loss, params, x, against="float64")
    >>> found.parting, found.worst

    Args:
      first, second: the names of the runs.
      partings: how far they are apart, array by array, in the order in which the first run computed them.
      alone: the addresses that only one of them has.
      one_sided: those of values of both of which only one has a cotangent, since in the other one no differentiated
        argument leads there.
      note: what was not looked at; '' if that is nothing.
      call: of two recordings the number of the calls that these are, and how many were compared.
      agreed: the number of the last calls that agree, if there are some.
      drift: how many times what rounding may change in one call their arguments differ already, since earlier calls
        returned them; as much is allowed for all that is computed from these.
      not_returned: why what they return was not compared, or not all of it; '' if it was.
      compiled: against 'op-by-op', how the function compiled as a whole differs, though all values that leave it agree.
      ran: the first run's function and arguments, as long as they are kept; see `step`.
    """

    first: str
    second: str
    partings: tuple[Parting, ...]
    alone: tuple[str, ...]
    one_sided: tuple[str, ...] = ()
    note: str = ""
    call: tuple[int, int] | None = None
    agreed: int | None = None
    drift: float = 1.0
    not_returned: str = ""
    compiled: CompiledDifference | None = None
    ran: weakref.ref[RecordedCall] | None = None

    _data = (
        "first",
        "second",
        "call",
        "agreed",
        "drift",
        "parting",
        "n_compared",
        "worst",
        "noise",
        "turn",
        "alone",
        "one_sided",
        "not_returned",
        "note",
    )

    @cached_property
    def parting(self) -> Parting | None:
        """The first array that differs by more than rounding may change; all that was computed before agrees.

        A comparison, an index or a count may differ where rounding decides. It counts if what comes right after it is
        of real numbers and differs too; if it is returned, it counts if the real numbers that it is computed from are
        equal bit by bit. An argument counts if something that is computed differs, or if earlier calls
        should have returned the same.
        """
        first = next((i for i, p in enumerate(self.partings) if p.differs and self._counts(p)), None)
        if first is None:
            return None
        while first and self.partings[first - 1].differs:
            first -= 1
        return self.partings[first]

    def _counts(self, p: Parting) -> bool:
        """Whether a difference in it says that the runs part; see `parting`."""
        if self.drifted is not None:
            return p.phase == "carried"
        return p.is_real and (p.phase != "argument" or self._differ_computed)

    @cached_property
    def _differ_computed(self) -> bool:
        """Whether anything differs that they were not given, or that an earlier call should have returned the same."""
        return any(p.differs and p.is_real and p.phase != "argument" for p in self.partings)

    @property
    def n_compared(self) -> int:
        return len(self.partings)

    @property
    def drifted(self) -> Parting | None:
        """The argument that earlier calls have driven apart furthest, if that is too far to compare what follows."""
        carried = [p for p in self.partings if p.phase == "carried" and p.relative > MOST_DRIFT]
        return max(carried, key=lambda p: p.relative, default=None)

    @property
    def worst(self) -> float:
        """The largest difference, in units of what rounding may change, but for what does not count; see `parting`."""
        return max((p.noise for p in self.partings if not p.differs or self._counts(p)), default=0.0)

    @property
    def noise(self) -> tuple[float, ...]:
        """How many times what rounding may change the difference of each array is, in the order of the run."""
        return tuple(p.noise for p in self.partings)

    @property
    def turn(self) -> int:
        """The first array of the backward pass; the number of arrays if there is none."""
        return next((i for i, p in enumerate(self.partings) if p.is_backward), self.n_compared)

    def step(self) -> Any:
        """A `Stepper` of the first run, stopped where it has just computed the value at which the two part: at the
        start, if they agree, and at the end, if that is the gradient in an argument.

        >>> print(jaxviz.divergence(loss, params, x, against="bfloat16").step())

        Raises:
          SteppingError: the arrays are not available: only the last two comparisons of functions keep them, and files
            never do; or the stepper does not enter the place.
        """
        return display("stepper where runs part")(self)

    @property
    def summary(self) -> str:
        p = self.parting
        if not self.partings:
            also = f"; {self.not_returned}" if self.not_returned else ""
            return f"`{self.first}` and `{self.second}` have no value in common{also}"
        if p is None and (c := self.compiled) is not None:
            return (
                f"`{self.first}`, compiled as a whole, and `{self.second}` differ in {c.what}, by {c.relative:.2g} of "
                f"its norm, {_times(c.noise)} what rounding may change, though all values that leave the program "
                f"agree; {c.remedy}"
            )
        if p is None and self.drifted is not None:
            upto = "" if self.agreed is None else f" agree up to call {self.agreed}, and"
            d, (number, _) = self.drifted, self.call or (0, 0)
            return (
                f"`{self.first}` and `{self.second}`{upto} have drifted apart before call {number}: {d.what}, which an "
                f"earlier call returned, differs by {d.relative:.2g} of its norm, as rounding alone may have led to"
            )
        if p is None:
            return f"`{self.first}` and `{self.second}` {self._agree()}"
        if p.is_given:
            return f"`{self.first}` and `{self.second}` part {self._before_they_run(p)}"
        line = f" ({p.line})" if p.line else ""
        what = "the gradients of " if p.is_backward else ""
        called = "" if self.call is None else f"call {self.call[0]}, in "
        agrees = (
            "while all that both computed before agrees" if p is not self.partings[0] else "and is the first of all"
        )
        if p.alone:
            agrees += f"; it is computed from {together(dict.fromkeys(p.alone))}, which only one of them has"
        return (
            f"{what}`{self.first}` and `{self.second}` part in {called}{p.where}: {self._what(p)}{line} differs by "
            f"{p.relative:.2g} of its norm, {_times(p.noise)} what rounding may change, {agrees}"
        )

    def _what(self, p: Parting) -> str:
        """The array in words, with its name if its expression has several results."""
        name = p.address.partition(" #")[0]
        others = (q for q in self.partings if (q.line, q.expression) == (p.line, p.expression))
        if not name.isidentifier() or len({q.address.partition(" #")[0] for q in others}) < 2:
            return p.what
        return p.what.replace(f"`{p.expression}", f"`{name}`, a result of `{p.expression}")

    def _agree(self) -> str:
        """How they agree, as far as that can be said."""
        most = f"none differs by more than {self.worst:.2g} times what rounding may change"
        if not self.worst:
            most = "all are equal bit by bit"
        calls = "" if self.call is None else f" in {counted(self.call[1], 'call')}"
        differing = [p for p in self.partings if p.differs]
        n_given = sum(p.is_given for p in differing)
        kinds = (("arguments that differ", n_given), ("choices that rounding decides", len(differing) - n_given))
        but = " and ".join(f"{what} ({n})" for what, n in kinds if n)
        of = f"of {counted(self.n_compared - len(differing), 'array')}{' of the last one' if calls else ''}"
        they = f"cannot be said to agree{calls}, since {self.not_returned}" if self.not_returned else f"agree{calls}"
        return f"{they}: {of} {most}{f', not counting {but}' if but else ''}"

    def _before_they_run(self, p: Parting) -> str:
        """How they part in their arguments."""
        by = (
            "is another"
            if not p.relative
            else (f"differs by {p.relative:.2g} of its norm, {_times(p.noise)} what rounding may change")
        )
        if self.call is None:
            return f"before they run: {p.what} {by}"
        if p.phase == "argument" or self.agreed is None:
            return f"before call {self.call[0]} runs: {p.what} {by}"
        many = f" in {counted(self.call[0] - self.agreed, 'call')}, unless they amplify it" if p.relative else ""
        return (
            f"between call {self.agreed} and call {self.call[0]}: {p.what}, which an earlier call returned, {by}{many}"
        )

    def _chart(self) -> Curves | None:
        """Each array of real numbers, in the order of the run: the others differ wherever rounding decides."""
        if self.drifted is not None:
            return None
        p, curves = self.parting, []
        for kind, passed in (("forward", slice(0, self.turn)), ("backward", slice(self.turn, None))):
            numbers = range(self.n_compared)[passed]
            of_pass = [(i, self.partings[i]) for i in numbers]
            points = [(i, p.noise) for i, p in of_pass if p.is_real and not p.is_given]
            if points:
                curves.append(Curve(points, kind, kind, f"{kind} pass", is_line=False))
        if not curves:
            return None
        marks = []
        if p is not None:
            at = f", iteration {', '.join(map(str, p.iterations))}" if p.iterations else ""
            marks = [(self.partings.index(p), f"part at {p.what.replace('`', '')}{at}")]
        return Curves(
            curves, f"{self.first} against {self.second}",
            Axis("arrays in the order of the run", NUMBERS, str, whole=True), "times what rounding may change",
            marks, (MOST_NOISE, "above: differs"),
        )  # fmt: skip

    def _parts(self) -> list[Part]:
        chart = self._chart()
        return [*([Drawn(chart.text())] if chart is not None else []), *self._html_parts()]

    def _html_parts(self) -> list[Part]:
        parts: list[Part] = [self.note] if self.note else []
        if self.drift > MOST_NOISE and self.drifted is None:
            parts.append(
                f"What earlier calls returned differs already, by {_times(self.drift)} what rounding may change in one "
                "call; as much is allowed here."
            )
        if self.parting is not None:
            start = self.partings.index(self.parting)
            rows = [_row(p, self._what(p)) for p in self.partings[max(start - 3, 0) : start + 9]]
            heads = ("", "value", "line", "iteration", "difference", "times the noise")
            parts.append(Table(heads, rows, "<<<>>>", "Before and after it, in the order of the run"))
            if (growth := self._growth()) is not None:
                parts.append(growth)
        if self.not_returned and self.parting is not None:
            parts.append(f"What they return was not compared, since {self.not_returned}.")
        if self.alone:
            parts.append(f"Not compared, since only one of them has it: {listed(map(repr, self.alone), 5)}.")
        if self.one_sided:
            parts.append(
                "No cotangent is compared, since in one of them no differentiated argument leads there, of "
                f"{listed(map(repr, self.one_sided), 5)}."
            )
        return parts

    def _growth(self) -> str | None:
        """How the difference grows from iteration to iteration, if it does so by one factor."""
        p = self.parting
        if p is None or not p.iterations:
            return None
        same = [q for q in self.partings[self.partings.index(p) :] if (q.address, q.phase) == (p.address, p.phase)]
        if len(same) < 3 or not all(0 < q.relative < np.inf for q in same):
            return None
        logs, numbers = np.log([q.relative for q in same]), np.arange(len(same))
        if np.ptp(logs) < 0.1:
            return "From there it stays as it is."
        if np.corrcoef(numbers, logs)[0, 1] ** 2 < LEAST_FIT:
            return None
        factor = float(np.exp(np.polyfit(numbers, logs, 1)[0]))
        return f"From there it {'grows' if factor > 1 else 'shrinks'}, ×{factor:.2g} an iteration."


def _times(noise: float) -> str:
    if noise > 1e6:
        return "more than a million times"
    return f"{noise:,.0f} times" if noise >= 10 else f"{noise:.1f} times"


def _row(p: Parting, what: str) -> tuple[str, ...]:
    at = ", ".join(map(str, p.iterations))
    mark, times = "→" if p.differs else "", _times(p.noise).removesuffix(" times") if p.noise else "0"
    difference = f"{p.relative:.2g}", times
    if p.is_given and p.differs and not p.relative:  # only that it is another is known
        difference = "another", ""
    return mark, what.replace("`", ""), p.line, at, *difference


def compare_records(a: RunRecord, b: RunRecord, names: tuple[str, str], agreed: Divergence | None = None) -> Divergence:
    """Two records, array by array: paired by what means them.

    Args:
      agreed: of two recordings, the last calls before these that were compared, which agree.
    """
    pairs, (returned, not_returned), gradient = paired_values(a, b), paired_results(a, b, names), paired_gradients(a, b)
    paired = {*pairs, *pairs.values()}
    unpaired = [e.value for run in (a, b) for e in run.events if e not in paired]
    alone = dict.fromkeys(v.address for v in unpaired if v.phase != "cotangent")
    one_sided = dict.fromkeys(v.address for v in unpaired if v.phase == "cotangent" and v.address not in alone)
    values = {o.value for o in paired}
    before = [_without_counterpart(run, values) for run in (a, b)]
    calls = (a.number - agreed.call[0]) * agreed.drift if agreed and agreed.call else float(max(a.number, 1))
    # What XLA leaves out of the roundings of a type differs between equal programs, if both compute in it.
    coarse = a.last_place if a.last_place == b.last_place else 0.0
    given = [parting_of_arguments(x, y, calls, coarse) for x, y in paired_arguments(a, b)]
    drift = max((1.0, *(calls * p.noise for p in given if p.phase == "carried")))
    partings = {
        e: parting(e, o, (*before[0](e.value), *before[1](o.value)), drift, coarse > 0)
        for e, o in sorted((*pairs.items(), *returned, *gradient), key=lambda pair: pair[0].key)
    }  # fmt: skip
    is_choice = _choices(a, {e.value.order for e, p in partings.items() if e.value.phase in _FORWARD and p.noise})
    for e, _ in returned:
        partings[e] = replace(partings[e], is_choice=is_choice(e.value))
    return Divergence(
        *names,
        (*given, *partings.values()),
        tuple(alone),
        tuple(one_sided),
        a.note or b.note,
        drift=drift,
        not_returned=not_returned,
    )


_FORWARD = ("forward", "step")


def _choices(run: RunRecord, differ: Collection[Order]) -> Callable[[RecordedValue], bool]:
    """Whether rounding may decide a result: one of integers or booleans, if the nearest real numbers that it is
    computed from differ, by whatever it is.

    Args:
      differ: the orders of the values that are not equal bit by bit.
    """
    at = {v.order: v for v in run.values if v.phase in _FORWARD}

    def is_choice(result: RecordedValue) -> bool:
        ahead, seen = [result], set[Order]()
        while ahead and not result.is_real:
            orders = {order for order, _ in ahead.pop().neighbours} - seen
            seen |= orders
            before = [at[order] for order in orders if order in at]
            if any(v.is_real and v.order in differ for v in before):
                return True
            ahead += [v for v in before if not v.is_real]
        return False

    return is_choice


def _first_call(a: Sequence[RunRecord], b: Sequence[RunRecord], names: tuple[str, str]) -> Divergence:
    """The first calls of one number that part; otherwise the last ones.

    Raises:
      ValueError: no number of a call is in both.
    """
    others = {record.number: record for record in b}
    pairs = [(record, others[record.number]) for record in a if record.number in others]
    if not pairs:
        raise ValueError("the two recordings have no call of the same number")
    found: Divergence | None = None
    for i, (one, other) in enumerate(pairs, 1):
        before = found
        found = replace(compare_records(one, other, names, before), call=(one.number, i))
        if found.parting is not None or found.drifted is not None:
            return replace(found, agreed=before.call[0] if before and before.call else None)
    assert found is not None
    return found


def _without_counterpart(run: RunRecord, paired: Collection[RecordedValue]) -> Callable[[RecordedValue], Iterator[str]]:
    """What a value is computed from that is in no pair, in words."""
    alone = {(v.phase, v.order): v for v in run.values if v not in paired}

    def before(value: RecordedValue) -> Iterator[str]:
        phases = {RESULT: _FORWARD, GRADIENT: ("cotangent",)}.get(value.phase, (value.phase,))
        for (order, _), phase in product(value.neighbours, phases):
            if (v := alone.get((phase, order))) is not None:
                yield f"{'the cotangent of ' if v.phase == 'cotangent' else ''}`{v.expression}` ({v.line})"

    return before


@api_boundary
def divergence(
    first: Any, second: Any = None, *args: Any, against: str | None = None, flags: Flags | None = None,
    argnums: Argnums = 0, has_aux: bool = False, cotangents: bool | None = None, **kwargs: Any,
) -> Divergence:  # fmt: skip
    """Where two runs part: the first value, forward or backward, that differs though what it is computed from agrees.

    >>> jaxviz.record(loss, params, x).save("a.jaxviz")
    >>> print(jaxviz.divergence("a.jaxviz", jaxviz.record(loss, params, 2 * x)))
    >>> print(jaxviz.divergence(loss, faster_loss, params, x))
    >>> print(jaxviz.divergence(loss, params, x, against="op-by-op"))

    Values are paired by their addresses and iterations, so names and lines may differ, a loop in Python may be a scan,
    and the records may be of two machines or versions of JAX. Two values differ if they are further apart than ten
    times what rounding may change: that is measured, by running each program again with the last digit of each argument
    changed at random, of what it closes over, of numbers written in it such as 0.999, and of what sums and functions
    such as exp compute, so bfloat16 may be compared with float32. If the coarsest type that both compute in is the
    same, arguments are moved in that type's last digit, since XLA leaves out some of its roundings, and not always the
    same. A value that only one run has is listed. Results are compared by their place, whatever computes them.

    Args:
      first, second: two records, or paths of files that `RunRecord.save` or a `Recorder` has written; or two
        functions, with their arguments after them; or with `against` one function and its arguments.
      against: in place of a second function: 'op-by-op' is the same outside of `jit`, of which the results of the whole
        are compared too, since XLA may do to that what it does not do where values leave; 'float64' and 'bfloat16' are
        the same with its floating-point arguments converted, and for 'float64' complex ones too, where jax.random draws
        other numbers unless it is given a dtype; 'no-remat' without its checkpoints; 'unsharded' on one device, in a
        mesh of the same axes if `jax.set_mesh` has set one; 'perturbed' with other last digits in its arguments, which
        nothing should notice.
      flags: in place of a second function, values of `jax.config` under which the same runs again, such as
        {'jax_default_matmul_precision': 'highest'}.
      argnums, has_aux, cotangents: as in `record`.
      **kwargs: arguments of the functions by name.

    Returns:
      a report: `str()` begins with the sentence, `.parting` is the place.

    Raises:
      ValueError: an argument is complex, and `against` is 'bfloat16'.
    """
    if isinstance(first, (RunRecord, str)) or hasattr(first, "__fspath__"):
        ours, theirs = ([x] if isinstance(x, RunRecord) else load_records(x) for x in (first, second))
        a, b = ours[0], theirs[0]
        names = (a.function, b.function) if a.function != b.function else (_name(first, a), _name(second, b))
        is_call = len(ours) == len(theirs) == 1
        return compare_records(a, b, names) if is_call else _first_call(ours, theirs, names)

    def run(f: Any, given: tuple[Any, ...], compiled: bool = True, change: Any = None) -> RunRecord:
        found = prepared(f, given, kwargs, cotangents, has_aux, argnums, compiled=compiled, change=change)
        return found.record(given, kwargs)

    given = args if against is None and flags is None else (second, *args)
    found = _of_functions(first, second, given, against, flags, run)
    if against == "op-by-op" and found.parting is None:
        record = prepared(first, given, kwargs, cotangents, has_aux, argnums)
        found = replace(found, compiled=compiled_difference(record, given, kwargs))
    return replace(found, ran=_LATEST.keep(RecordedCall(first, given, kwargs, argnums, has_aux)))


def _of_functions(
    first: Any, second: Any, given: tuple[Any, ...], against: str | None, flags: Flags | None,
    run: Callable[..., RunRecord],
) -> Divergence:  # fmt: skip
    """Two functions compared; `run` makes the record of one."""
    name = function_name(first)
    if flags is not None:
        one = run(first, given)
        with under_flags(flags):
            return compare_records(one, run(first, given), (name, f"{name} under {flags_text(flags)}"))
    if against is None:
        if not callable(second):
            raise TypeError("divergence takes two records, two functions with their arguments, or one with against=…")
        named = function_name(second)
        names = name, named if named != name else f"the other {name}"
        return compare_records(run(first, given), run(second, given), names)
    if against not in AGAINST:
        raise ValueError(f"against={against!r}; it must be one of {', '.join(map(repr, AGAINST))}")
    if against == "op-by-op":
        return compare_records(run(first, given), run(first, given, False), (name, f"{name}, operation by operation"))
    if against == "no-remat":
        opened = run(first, given, change=lambda program: inlined(program, [CHECKPOINT.primitive]))
        return compare_records(run(first, given), opened, (name, f"{name} without checkpoints"))
    if against == "unsharded":
        one = run(first, given)
        other = _on_one_device(name, lambda: run(first, jax.tree.map(_unsharded, given)))
        return compare_records(one, other, (name, f"{name} on one device"))
    with jax.enable_x64(against == "float64" or jax.config.jax_enable_x64):
        other_run = run(first, jax.tree.map(lambda x: _changed(x, against), given))
    how = "with other last digits" if against == "perturbed" else f"in {against}"
    return compare_records(run(first, given), other_run, (name, f"{name} {how}"))


def _changed(x: Any, against: str) -> Any:
    is_real, is_complex = (
        isinstance(x, python) or (hasattr(x, "dtype") and jnp.issubdtype(x.dtype, kind))
        for python, kind in ((float, jnp.floating), (complex, jnp.complexfloating))
    )
    if not compat.is_array_like(x) or not (is_real or is_complex):
        return x
    if against == "perturbed":
        return moved([jnp.asarray(x)], SEEDS[-1] + 1)[0]
    if is_complex and against == "bfloat16":
        raise ValueError("divergence: no complex type is as coarse as bfloat16; against='float64' is possible")
    return jnp.asarray(x, "complex128" if is_complex else against)


def _of_one_device(mesh: Any) -> Any:
    """A mesh of the same axes with one device, so that what names these still runs."""
    if mesh.empty:
        return mesh
    first = mesh.devices.flat[:1].reshape((1,) * mesh.devices.ndim)
    return jax.sharding.Mesh(first, mesh.axis_names, axis_types=mesh.axis_types)


def _on_one_device(name: str, run: Callable[[], RunRecord]) -> RunRecord:
    """
    Raises:
      ValueError: JAX refuses, though the same runs on all devices.
    """
    with jax.set_mesh(_of_one_device(jax.sharding.get_mesh())):
        try:
            return run()
        except ValueError as error:
            raise ValueError(
                f"`{name}` does not run on one device. If it names a mesh of several, let it name axes only, as in "
                'PartitionSpec("data"), and call jax.set_mesh(mesh) first; against="unsharded" then sets one of a '
                f"single device. JAX says: {error}"
            ) from error


def _unsharded(x: Any) -> Any:
    if not isinstance(x, jax.Array) or len(x.devices()) == 1:
        return x
    if not isinstance(x.sharding, jax.sharding.NamedSharding):
        return jax.device_put(x, min(x.devices(), key=lambda d: d.id))
    return jax.device_put(x, jax.sharding.NamedSharding(_of_one_device(x.sharding.mesh), x.sharding.spec))


def _name(given: Any, record: RunRecord) -> str:
    return record.function if isinstance(given, RunRecord) else str(given)
