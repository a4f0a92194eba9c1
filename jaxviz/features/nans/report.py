"""What `find_nan` gives: the equation that made what is not finite, its values, its cause, and what came of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from jaxviz.features.nans.causes import Cause, Operand
from jaxviz.ir.origin import Location
from jaxviz.report.report import Data, attributes
from jaxviz.report.tables import listed, preformatted, short_location, wrapped


@dataclass(frozen=True, slots=True)
class Iteration:
    """One step of a loop.

    Args:
      loop: such as `scan at model.py:12`.
      index: which element of what is scanned over, or which step of a while loop; from 0.
      length: of how many; None for a while loop.
    """

    loop: str
    index: int
    length: int | None

    def __str__(self) -> str:
        return (
            f"iteration {self.index}"
            + (f" of {self.length:,}" if self.length is not None else "")
            + f" of the {self.loop}"
        )


@dataclass(frozen=True, slots=True)
class Devices:
    """On which devices of a `shard_map`.

    Args:
      mapped: such as `shard_map at model.py:12`.
      axes: its named axes, with their sizes.
      index: along those, of the device that is told of.
      alike: of the others on which the same is not finite, in the same step of the loops.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for programs."""
        named = lambda index: {name: i for (name, _), i in zip(self.axes, index, strict=True)}
        return {
            "mapped": self.mapped,
            "axes": dict(self.axes),
            "index": named(self.index),
            "alike": [named(a) for a in self.alike],
        }


@dataclass(frozen=True, slots=True)
class Event:
    """An equation that made what is not finite.

    Args:
      equation: as text.
      primitive: its primitive.
      phase: 'forward' or 'backward'.
      location: the line of the user's own operation that it belongs to.
      operation: what the user called there, such as 'log'.
      is_derivative: whether it belongs to that operation's derivative.
      iterations: the loops around it, outermost first.
      branch: the branches of conds that it stands in.
      inputs, outputs: what it read and made.
      index: of the first element that is not finite.
      cause: what happened, and what helps.
      is_exact: whether the values show it: computed once more, in another program, they may be rounded otherwise.
      zero_cotangent: whether it read a cotangent that is 0 there.
      devices: for each `shard_map` around it, outermost first, where.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for programs."""
        return {
            **attributes(self, _EVENT),
            "cause": self.cause.id,
            "text": self.cause.text,
            "remedy": self.cause.remedy,
        }


_EVENT = (
    "equation", "primitive", "phase", "location", "operation", "is_derivative", "iterations", "branch", "devices",
    "made", "index", "inputs", "outputs", "is_exact",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Passed:
    """A line that what is not finite passed through, on its way to a result.

    Args:
      location: the line.
      operations: the operations there.
      phase: 'forward' or 'backward'.
      decides: of what reaches no result by value, what it is compared for, such as `lt, which ends the while loop at model.py:12`.
    """

    location: Location | None
    operations: tuple[str, ...]
    phase: str
    decides: str = ""


@dataclass(frozen=True, eq=False)
class NanReport(Data):
    """Where what is not finite was born, and what came of it.

    Args:
      function: its name.
      results: the results that are not finite, such as `the loss` or `the gradient in params['w']`.
      born: the first equation that made it of finite numbers; None where no result is touched, or where it came in.
      given: the arguments and constants that it came in by.
      became_nan: where an infinity then became a NaN; None where it was one at once, or became none.
      chain: the lines from there to a result.
      harmless: infinities and NaNs that reach no result, where they were asked for.
      note: what else is to be known, such as that the compiled program did not show what stepping showed.
    """

    function: str
    results: tuple[str, ...]
    born: Event | None
    given: tuple[str, ...]
    became_nan: Event | None
    chain: tuple[Passed, ...]
    harmless: tuple[Passed, ...] = ()
    note: str = ""

    def __bool__(self) -> bool:
        return bool(self.results)

    @property
    def summary(self) -> str:
        """One sentence: what came out, and where it was born."""
        if not self.results:
            return f"{self.function}: every result is finite"
        few = listed(self.results)
        verb = "is" if len(self.results) == 1 else "are"
        if self.born is None:
            where = f"it came in by {', '.join(self.given)}" if self.given else "where from was not found"
        else:
            where = f"the first {self.born.made} is born at {self.born.place}"
        return f"{self.function}: {few} {verb} not finite; {where}"

    def __str__(self) -> str:
        lines = [wrapped(self.summary)]
        became = self.became_nan
        is_own = became is not None and all(
            o.is_finite for o in became.inputs
        )  # made of finite numbers too, not of the infinity
        for title, event in (("Born", self.born), ("The first NaN is born" if is_own else "Becomes NaN", became)):
            if event is None:
                continue
            of = f" (the derivative of {event.operation})" if event.is_derivative and event.operation else ""
            if event.operation.startswith("custom_"):
                of = " (of a function with a custom rule)"
            lines += ["", f"{title} at {event.short}", wrapped(f"{event.equation}{of}", "  ")]
            lines += [wrapped(f"reads {o}", "    ") for o in event.inputs]
            at = f" first at {list(event.index)}" if event.index else ""
            lines += [wrapped(f"makes {o}{at}", "    ") for o in event.outputs]
            lines += [wrapped(event.cause.text, "  ")]
            if event.cause.remedy and (
                event is self.born or is_own or self.born is None
            ):  # else that of the infinity helps
                lines += [wrapped(f"Instead: {event.cause.remedy}", "  ")]
        if self.chain:
            lines += ["", "From there:"]
            lines += [wrapped(_line(p), "  ") for p in self.chain]
        for title, found in (
            ("Not finite, but without effect on any result:", [p for p in self.harmless if not p.decides]),
            (
                "Not finite, and in no result by value, but something is decided by it:",
                [p for p in self.harmless if p.decides],
            ),
        ):
            lines += ["", title, *(wrapped(_line(p), "  ") for p in found)] if found else []
        if self.note:
            lines += ["", wrapped(self.note)]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return preformatted(str(self))

    _data = ("function", "results", "given", "born", "became_nan", "chain", "harmless", "note")


def _line(p: Passed) -> str:
    where = short_location(p.location) if p.location is not None else "no line of yours"
    decides = f"; {p.decides}" if p.decides else ""
    return f"{where}: {', '.join(p.operations)}, {p.phase}{decides}"
