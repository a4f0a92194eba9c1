"""The report of `find_nan`: the equation where a value became non-finite, why, and what it affected."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxviz.analysis.addresses import Address
from jaxviz.derivation import Derivation
from jaxviz.displays import display
from jaxviz.features.nans.causes import Cause, Operand
from jaxviz.ir.origin import Location
from jaxviz.report.charts import Chain, ChainLink
from jaxviz.report.data import Data
from jaxviz.report.latest import Latest
from jaxviz.report.pictures import fitted
from jaxviz.report.places import source_line
from jaxviz.report.report import Listed, Part, Report, Table
from jaxviz.report.tables import counted, listed, short_location, wrapped


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of a loop.

    Args:
      loop: such as `scan at model.py:12`.
      index: the index of the slice that the scan reads, or the iteration of a while loop; from 0.
      length: the number of iterations; None for a while loop.
    """

    loop: str
    index: int
    length: int | None

    def __str__(self) -> str:
        of = f" of {self.length:,}" if self.length is not None else ""
        return f"iteration {self.index}{of} of the {self.loop}"


@dataclass(frozen=True, slots=True)
class Devices(Data):
    """The devices of a `shard_map`.

    Args:
      mapped: such as `shard_map at model.py:12`.
      axes: its named axes, with their sizes.
      index: the place of the reported device along these axes.
      alike: the places of the other devices on which the same value is not finite, in the same iteration.
    """

    mapped: str
    axes: tuple[tuple[str, int], ...]
    index: tuple[int, ...]
    alike: tuple[tuple[int, ...], ...] = ()

    def __str__(self) -> str:
        n = math.prod(size for _, size in self.axes)
        if len(self.alike) + 1 == n and n > 1:
            return f"on all {n:,} devices of the {self.mapped}, here {self._named(self.index)}"
        few = listed(map(self._named, self.alike), 4)
        also = f" (also {few})" if self.alike else ""
        return f"on device {self._named(self.index)} of {n:,}{also} of the {self.mapped}"

    def _named(self, index: tuple[int, ...]) -> str:
        return " ".join(f"{name}={i}" for (name, _), i in zip(self.axes, index, strict=True))

    _data = ("mapped", "axes=_sizes", "index=_place", "alike=_places")

    @property
    def _sizes(self) -> dict[str, int]:
        return dict(self.axes)

    @property
    def _place(self) -> dict[str, int]:
        return dict(zip(self._sizes, self.index, strict=True))

    @property
    def _places(self) -> list[dict[str, int]]:
        return [dict(zip(self._sizes, index, strict=True)) for index in self.alike]


@dataclass(frozen=True, slots=True)
class Event(Data):
    """An equation that computed a value that is not finite.

    Args:
      equation: as text.
      primitive: its primitive.
      phase: 'forward' or 'backward'.
      location: the line of the user's own operation that it belongs to.
      operation: the function that the user called there, such as 'log'.
      is_derivative: whether it belongs to that operation's derivative.
      iterations: the loops around it, outermost first.
      branch: the branches of conds around it.
      inputs, outputs: its operands and results.
      index: the index of the first element that is not finite.
      cause: the cause, with a remedy.
      is_exact: whether the recomputed values show it; in another program they may be rounded differently.
      zero_cotangent: whether it read a cotangent that is 0 there.
      devices: its devices for each `shard_map` around it, outermost first.
      expression: the user's expression that it belongs to, such as `jnp.log(x)` or `mul in the derivative of
        jnp.sqrt(x)`; '' if none is found.
      address: of the value that it computes, in that iteration; None if that has none, as inside a library's function.
    """

    equation: str
    primitive: str
    phase: str
    location: Location | None
    operation: str
    is_derivative: bool
    iterations: tuple[Iteration, ...]
    branch: tuple[str, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    index: tuple[int, ...]
    cause: Cause
    is_exact: bool
    zero_cotangent: bool = False
    devices: tuple[Devices, ...] = ()
    expression: str = ""
    address: Address | None = None

    def equation_is(self, other: Event) -> bool:
        """Whether both are one equation in one step."""
        what = lambda e: (e.equation, e.location, e.iterations, e.phase, e.devices)
        return bool(what(self) == what(other))

    @property
    def made(self) -> str:
        """'NaN' or 'infinity'."""
        there = [o.value for o in self.outputs if o.value is not None]
        nan = any(v != v for v in there) if there else any(o.n_nan for o in self.outputs)
        return "NaN" if nan else "infinity"

    @property
    def place(self) -> str:
        """`model.py:12, iteration 37 of 1,000 of the scan at model.py:20, in the backward pass`."""
        where = [str(self.location)] if self.location is not None else ["no line of yours"]
        where += [*map(str, self.iterations), *map(str, self.devices), *self.branch]
        return ", ".join(where) + f", in the {self.phase} pass"

    @property
    def short(self) -> str:
        """The same, without the path of the file."""
        line = short_location(self.location) if self.location is not None else ""
        return self.place.replace(str(self.location), line, 1) if line else self.place

    _data = (
        "equation", "primitive", "phase", "location", "expression", "address", "operation", "is_derivative",
        "iterations", "branch", "devices",
        "made", "index", "inputs", "outputs", "is_exact", "cause=cause.id", "cause.text", "cause.remedy",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Passed:
    """A line through which a non-finite value passed on its way to a result.

    Args:
      location: the line.
      operations: the operations there.
      phase: 'forward' or 'backward'.
      decides: for a value that reaches no result, what a comparison with it decides, such as a loop's end.
      value: the result of the last operation, in the first iteration in which it is not finite; None if unknown.
      address: of that value, in that iteration; None if it has none.
    """

    location: Location | None
    operations: tuple[str, ...]
    phase: str
    decides: str = ""
    value: Operand | None = None
    address: Address | None = None

    @property
    def place(self) -> str:
        return short_location(self.location) if self.location is not None else "no line of yours"

    @property
    def kind(self) -> str:
        """'NaN', 'infinity', or 'passed' where the value is not known."""
        if self.value is None:
            return "passed"
        return "NaN" if self.value.n_nan else "infinity"


@dataclass(frozen=True, eq=False)
class Ran:
    """The run that was searched, to be stepped through; with the function's gradient, if that was searched too."""

    derivation: Derivation
    inputs: tuple[Any, ...]
    has_gradient: bool


LATEST: Latest[Ran] = Latest(2)
"""The latest runs with a NaN."""


@dataclass(frozen=True, eq=False, repr=False)
class NanReport(Report, schema="find_nan"):
    """Where a NaN or an infinity was born, and which results it reached.

    >>> found = jaxviz.find_nan(lambda x: jnp.sqrt(x) * x, 0.0)  # None if there is no NaN
    >>> found.born, found.chain
    >>> found.address  # of the first value that is not finite, for `step`, `capture` and `watch`

    Args:
      function: the name of the function.
      results: the results that are not finite, such as `the loss` or `the gradient in params['w']`.
      born: the first equation that computed it from finite numbers; None if it reaches no result, or came in.
      given: the arguments and constants that contained it from the start; beside `born`, arguments with NaNs of their
        own.
      became_nan: where an infinity became a NaN; None if it was a NaN from the start, or never became one.
      chain: the lines from there to a result.
      also: other operations that computed one from finite numbers, on the way to these results too, one for each
        expression.
      unlisted: how many more such operations there are.
      harmless: infinities and NaNs that reach no result, if they were asked for.
      title: what was searched, such as "gradient of `loss` in `params`" or "function `f`".
      unsearched: what was not searched, and why, such as a gradient without reverse mode; '' if all was.
      note: a remark, such as that the compiled program did not show what stepping showed.
      address: of the first value that is not finite and has an address: the one that is born, or the first computed
        from it; None if it came in, and no value with an address passed it on.
      ran: the run that was searched, as long as it is kept; see `step`.
    """

    function: str
    results: tuple[str, ...]
    born: Event | None
    given: tuple[str, ...]
    became_nan: Event | None
    chain: tuple[Passed, ...]
    also: tuple[Event, ...] = ()
    unlisted: int = 0
    harmless: tuple[Passed, ...] = ()
    title: str = ""
    unsearched: str = ""
    note: str = ""
    ran: weakref.ref[Ran] | None = None
    address: Address | None = None

    def __bool__(self) -> bool:
        """False only if everything was searched, and every result is finite."""
        return bool(self.results or self.unsearched)

    def step(self) -> Any:
        """A `Stepper` of the run, stopped where the first infinity or NaN was born; at the start, if it came in.

        Raises:
          SteppingError: the arrays are no longer available: only the last two searches that found something keep them.
        """
        return display("stepper at the origin of a NaN")(self)

    def _ipython_display_(self) -> None:
        display("output of a NaN's report")(self)

    @property
    def summary(self) -> str:
        """One sentence: which result is not finite, and where that was born."""
        if not self.results:
            but = ", but its gradient was not searched" if self.unsearched else ""
            return f"{self.title}: every result is finite{but}"
        few = listed(self.results)
        verb = "is" if len(self.results) == 1 else "are"
        if self.born is None:
            where = f"it came in through {', '.join(self.given)}" if self.given else "its origin was not found"
        else:
            written = f": `{self.born.expression}`" if self.born.expression else ""
            where = f"the first {self.born.made} is born at {self.born.short}{written}"
        return f"{self.title}: {few} {verb} not finite; {where}"

    def __str__(self) -> str:
        lines = [wrapped(self.summary)]
        for title, event in self._events():
            lines += ["", f"{title} at {event.short}", wrapped(_equation_text(event), "  ")]
            lines += [wrapped(f"{verb} {value}", "    ") for verb, value in _values(event)]
            lines += [wrapped(text, "  ") for text in self._explanation(event)]
        if self.chain:
            lines += ["", "From there:"]
            lines += [wrapped(_line(p), "  ") for p in self.chain]
        for title, texts in self._besides():
            lines += ["", f"{title}:", *(wrapped(text, "  ") for text in texts)]
        for title, passed in self._harmless():
            lines += ["", f"{title}:", *(wrapped(_line(p), "  ") for p in passed)]
        for text in filter(None, (self.unsearched, self.note)):
            lines += ["", wrapped(text)]
        return "\n".join(lines)

    def _parts(self) -> Iterator[Part]:
        for title, event in self._events():
            caption = f"{title} at {event.short}: {_equation_text(event)}"
            yield Table(("", "value"), list(_values(event)), "<<", caption)
            yield from self._explanation(event)
        heads = ("line", "source", "operations", "pass")
        ways = [(*_cells(p), *("" if x is None else str(x) for x in (p.value, p.address))) for p in self.chain]
        if ways:
            yield Table((*heads, "value", "address"), ways, "<<<<<<", "from there")
        for title, texts in self._besides():
            yield f"{title}:"
            yield Listed(texts)
        for title, passed in self._harmless():
            yield Table((*heads, "decides"), [(*_cells(p), p.decides) for p in passed], "<<<<<", title)
        yield self.unsearched
        yield self.note

    def _chart(self) -> Chain:
        stops = [
            ChainLink("", "", f"came in through {source}", "NaN" if "NaN" in source else "infinity")
            for source in self.given
            if self.born is None
        ]
        born, first = self.born, self.chain[:1]
        if born is not None and not any(p.location == born.location and born.primitive in p.operations for p in first):
            value = next((_number_first(o) for o in born.outputs if not o.is_finite), "")
            what = f"{born.primitive} → {value}"
            stops.append(ChainLink(short_location(born.location), source_line(born.location), what, born.made))
        for p in self.chain:
            value = "" if p.value is None else f" → {_number_first(p.value)}"
            stops.append(ChainLink(p.place, source_line(p.location), f"{', '.join(p.operations)}{value}", p.kind))
        kind = born.made if born is not None else "NaN or infinity"
        return Chain(stops, f"the path of the first {kind} to {listed(self.results)}")

    def _events(self) -> Iterator[tuple[str, Event]]:
        """The first occurrences, each with its title."""
        if self.born is not None:
            yield "Born", self.born
        if self.became_nan is not None:
            yield "The first NaN is born" if self._is_own else "Becomes NaN", self.became_nan

    @property
    def _is_own(self) -> bool:
        """Whether the first NaN was also computed from finite numbers, and not from the infinity."""
        return self.became_nan is not None and all(o.is_finite for o in self.became_nan.inputs)

    def _explanation(self, event: Event) -> Iterator[str]:
        """What happened, and the remedy; for a NaN that an infinity became, the remedy for the infinity."""
        yield event.cause.text
        if event.cause.remedy and (event is self.born or self._is_own or self.born is None):
            yield f"Instead: {event.cause.remedy}"

    def _besides(self) -> Iterator[tuple[str, list[str]]]:
        """What else the results are not finite for."""
        others = [f"`{e.expression or e.primitive}` at {e.short}: {e.cause.text}" for e in self.also]
        if others:
            more = [f"and {counted(self.unlisted, 'more operation')}"] if self.unlisted else []
            yield "Other operations that are not finite, on the way to these results", others + more
        if self.born is not None and self.given:
            yield "Arguments with NaNs, on the way to these results", list(self.given)

    def _harmless(self) -> Iterator[tuple[str, Sequence[Passed]]]:
        without, deciding = ([p for p in self.harmless if bool(p.decides) is decides] for decides in (False, True))
        if without:
            yield "Not finite, but without effect on any result", without
        if deciding:
            yield "Not finite, not part of any result, but a decision depends on it", deciding

    _data = (
        "function",
        "title",
        "results",
        "given",
        "address",
        "born",
        "became_nan",
        "chain",
        "also",
        "unlisted",
        "harmless",
        "unsearched",
        "note",
    )


def _equation_text(event: Event) -> str:
    """The expression, the equation, and the pass or gradient that it belongs to."""
    if event.expression:
        return (
            f"`{event.expression}`: {event.equation}{_OF_CUSTOM_RULE if event.operation.startswith('custom_') else ''}"
        )
    of = f" (the derivative of {event.operation})" if event.is_derivative and event.operation else ""
    return f"{event.equation}{_OF_CUSTOM_RULE if event.operation.startswith('custom_') else of}"


_OF_CUSTOM_RULE = " (of a function with a custom rule)"


def _values(event: Event) -> Iterator[tuple[str, str]]:
    """The values that it reads and computes."""
    at = f" first at {list(event.index)}" if event.index else ""
    yield from (("reads", str(o)) for o in event.inputs)
    yield from (("makes", f"{o}{at}") for o in event.outputs)


def _number_first(o: Operand) -> str:
    """`-inf in f32[3] (…)`, which may be cut off after its beginning."""
    return str(o) if o.size == 1 or o.value is None else f"{o.value:.6g} in {o}"


def _cells(p: Passed) -> tuple[str, ...]:
    return p.place, source_line(p.location), ", ".join(p.operations), p.phase


_SOURCE = 60
"""The maximum length of a source line in a line of text."""


def _line(p: Passed) -> str:
    decides = f"; {p.decides}" if p.decides else ""
    text = source_line(p.location)
    written = f" `{fitted(text, _SOURCE)}`" if text else ""
    # A text that the line of source has need not be repeated.
    is_read = p.address is None or (repr(p.address) == f"at({p.address.text!r})" and p.address.text in text)
    address = "" if is_read else f", {p.address!r}"
    return f"{p.place}{written}: {', '.join(p.operations)}, {p.phase}{address}{decides}"
