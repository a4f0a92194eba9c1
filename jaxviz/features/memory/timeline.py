"""A model of the memory that a gradient takes over time, and what XLA says of the same program."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from jaxviz.analysis.walk import location_of
from jaxviz.derivation import Derivation, derive
from jaxviz.features.memory.model import KINDS, Kind, Live, Model, Step
from jaxviz.features.residuals.notes import no_gradient_note
from jaxviz.higher_order import of
from jaxviz.higher_order.checkpoint import CHECKPOINT
from jaxviz.higher_order.jit import JIT
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.emit import as_function
from jaxviz.ir.origin import Location
from jaxviz.ir.stack import deep_stack, usual_stack
from jaxviz.ir.syntax import Program
from jaxviz.progress import counting
from jaxviz.report.report import Drawn, Part, Report, Table, attributes
from jaxviz.report.tables import format_bytes, short_location
from jaxviz.transforms.inline import inlined
from jaxviz.transforms.unopened import unopened_note

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Alive:
    """Values that are in memory at one step: those of one kind and type that one line makes in one way.

    Args:
      what: the path of an argument, or the operation that makes them.
      type: of each.
      nbytes: the bytes of all of them.
      kind: what they are there for.
      location: the user's line; None for an argument.
      count: how many there are.
    """

    what: str
    type: str
    nbytes: int
    kind: Kind
    location: Location | None
    count: int = 1


@dataclass(frozen=True, slots=True)
class XlaMemory:
    """What XLA says of the compiled gradient, on one device; see `compiled.memory_analysis()`.

    Args:
      arguments, results, temporaries, reused: bytes; `reused` are those of results in the memory of donated arguments.
      backend: such as 'cpu'.
      temporaries_without_checkpoints: of the same function with its checkpoints taken away; None if it has none.
    """

    arguments: int
    results: int
    temporaries: int
    reused: int
    backend: str
    temporaries_without_checkpoints: int | None = None


@dataclass(frozen=True, eq=False, repr=False)
class MemoryTimeline(Report):
    """Bytes alive over the equations of the forward and the backward program of a function, as a model has it.

    The model evaluates equation by equation, as one jitted program would: a value is freed after the last equation that reads it, an
    elementwise operation writes into an operand that dies there, a view has no memory of its own, a broadcast is made where it is
    read, and what a checkpoint computes again is put off until it is read. It knows nothing of XLA's fusion, which needs less: see
    `xla`.

    Args:
      function: its name.
      steps: one for each equation.
      values: all that is in memory at some step, and when; the bytes of the steps are the sums of theirs.
      derivation: what it was made from.
      donated: for each argument of the function, whether it is donated.
    """

    function: str
    steps: tuple[Step, ...]
    values: tuple[Live, ...] = field(repr=False)
    derivation: Derivation = field(repr=False)
    donated: tuple[bool, ...] = ()

    @cached_property
    def peak(self) -> int:
        """The place of the step at which most is alive."""
        return int(np.argmax([s.total for s in self.steps])) if self.steps else 0

    @property
    def peak_nbytes(self) -> int:
        return self.steps[self.peak].total if self.steps else 0

    @cached_property
    def alive(self) -> tuple[Alive, ...]:
        """What is alive at the peak, the largest first."""
        return self.alive_at(self.peak)

    def alive_at(self, step: int) -> tuple[Alive, ...]:
        """What is alive at a step, the largest first; values that one line makes in one way are counted together."""
        groups: dict[tuple[Any, ...], list[Live]] = {}
        for v in self.values:
            if v.born <= step <= v.last:
                groups.setdefault((_ANY_INDEX.sub("[…]", v.what), v.type, v.kind, v.location), []).append(v)
        alive = [
            Alive(what if len(g) > 1 else g[0].what, type, sum(v.nbytes for v in g), kind, location, len(g))
            for (what, type, kind, location), g in groups.items()
        ]
        return tuple(sorted(alive, key=lambda a: -a.nbytes))

    @cached_property
    def xla(self) -> XlaMemory:
        """XLA's figures for the same gradient, compiled for the default backend; compiled when first asked for.

        Raises:
          what compiling raises.
        """
        found = xla_memory(self.derivation, self.donated)
        primal = self.derivation.primal
        without = inlined(primal, (CHECKPOINT.primitive,))
        if without is primal:
            return found
        plain = derive(without, argnums=tuple(i for i, nz in enumerate(self.derivation.nonzeros) if nz))
        return replace(found, temporaries_without_checkpoints=xla_memory(plain, self.donated).temporaries)

    def compare(self) -> str:
        """What XLA makes of it, in a sentence or two: where it needs less or more than the model, and what it undid."""
        xla = self.xla
        modelled = self.peak_nbytes - self.steps[self.peak].nbytes[0] if self.steps else 0
        said = (
            f"XLA on {xla.backend} takes {format_bytes(xla.temporaries)} of temporaries beside {format_bytes(xla.arguments)} of "
            f"arguments and {format_bytes(xla.results)} of results; the model has {format_bytes(modelled)} beside the arguments at its peak."
        )
        without = xla.temporaries_without_checkpoints
        if without is None:
            return said
        if xla.temporaries > 0.95 * without:
            return (
                f"{said} Without the checkpoints it takes {format_bytes(without)}: XLA undoes them, and they save next to nothing "
                "here."
            )
        return f"{said} Without the checkpoints it takes {format_bytes(without)}."

    @property
    def notes(self) -> tuple[str, ...]:
        """Why there is no gradient, and what the model does not know of: of what is not opened it has the operands and the results alone."""
        return (*no_gradient_note(self.derivation), *unopened_note(self.derivation.unopened))

    @property
    def summary(self) -> str:
        """`memory of loss: peak 1.2 MiB in the backward pass at mul (model.py:12), of it 0.8 MiB residuals, …`."""
        if not self.steps:
            return f"memory of {self.function}: nothing is computed"
        step = self.steps[self.peak]
        parts = [
            f"{format_bytes(n)} {_plural(kind)}"
            for n, kind in sorted(zip(step.nbytes, KINDS, strict=True), key=lambda p: -p[0])
            if n
        ]
        return f"memory of {self.function}: modelled {peak_text(self)}: {', '.join(parts)}"

    def _parts(self) -> Iterator[Part]:
        if self.steps:
            yield Drawn(curve(self, self.peak_nbytes))
            rows = [
                (
                    a.kind, f"{f'{a.count} of ' if a.count > 1 else ''}{a.type}", format_bytes(a.nbytes),
                    short_location(a.location), a.what,
                )
                for a in self.alive
            ]  # fmt: skip
            yield Table(
                ("kind", "type", "bytes", "line", "what"), rows, "<<><<", "alive at the peak:", 20, self._more_alive
            )
        yield from self.notes

    def _more_alive(self, shown: int) -> str:
        rest = self.alive[shown:]
        return f"and {sum(a.count for a in rest):,} more, {format_bytes(sum(a.nbytes for a in rest))}"

    def to_dict(self) -> dict[str, Any]:
        return {
            **attributes(self, ("function", "peak", "peak_nbytes", "notes", "alive")),
            "kinds": list(KINDS),
            "steps": [
                {"primitive": s.equation.primitive.name, "is_backward": s.is_backward, "nbytes": list(s.nbytes)}
                for s in self.steps
            ],
            "values": [attributes(v, _VALUE) for v in self.values],
        }

    def plot(self, ax: Axes | None = None) -> Figure:
        """The timeline as a stacked area, its peak marked; a `matplotlib` figure.

        Args:
          ax: axes of a figure of your own to draw in.
        """
        from jaxviz.report.figures import Picture, unit_of

        axes = Picture(figsize=(9, 4), layout="constrained").subplots() if ax is None else ax
        figure = cast("Figure", axes.figure)
        totals = np.asarray([s.nbytes for s in self.steps], float).reshape(-1, len(KINDS))
        unit, scale = unit_of(self.peak_nbytes)
        shown = [i for i in range(len(KINDS)) if totals[:, i].any()]
        axes.stackplot(
            np.arange(len(totals)), totals[:, shown].T / scale, labels=[_plural(KINDS[i]) for i in shown], step="mid",
            colors=[_COLOURS[KINDS[i]] for i in shown],
        )  # fmt: skip
        turn = sum(not s.is_backward for s in self.steps)
        axes.axvline(turn - 0.5, color="0.4", linewidth=0.8, linestyle=":")
        axes.plot(self.peak, self.peak_nbytes / scale, "k.", markersize=6)
        axes.annotate(
            format_bytes(self.peak_nbytes), (self.peak, self.peak_nbytes / scale), xytext=(0, 5), textcoords="offset points",
            ha="center", fontsize=8,
        )  # fmt: skip
        axes.set_xlim(-0.5, max(len(self.steps) - 0.5, 0.5))
        axes.set_ylim(0, 1.12 * max(self.peak_nbytes / scale, 1e-9))
        axes.set_xlabel("equation: forward, then backward")
        axes.set_ylabel(f"{unit} alive (model)")
        axes.set_title(f"memory of {self.function}", loc="left", fontsize=10, parse_math=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8, reverse=True)
        return figure


_VALUE = ("what", "type", "nbytes", "kind", "born", "last", "residuals")

_COLOURS = {
    "argument": "#9aa5b1", "constant": "#c9d1d9", "residual": "#d9822b", "temporary": "#6ea8fe", "cotangent": "#2ca58d",
    "result": "#8a63d2",
}  # fmt: skip


def peak_text(timeline: MemoryTimeline) -> str:
    """`peak 1.2 MiB in the backward pass at mul (model.py:12)`."""
    if not timeline.steps:
        return "nothing is computed"
    step = timeline.steps[timeline.peak]
    at = location_of(step.equation, step.within)
    where = f" ({short_location(at)})" if at is not None else ""
    direction = "backward" if step.is_backward else "forward"
    return f"peak {format_bytes(step.total)} in the {direction} pass at {step.equation.primitive.name}{where}"


def curve(timeline: MemoryTimeline, top: int, width: int = 72) -> str:
    """The timeline in one line of text, forward and backward apart, as high as `top` bytes."""
    parts = []
    for name, is_backward in (("forward", False), ("backward", True)):
        totals = [s.total for s in timeline.steps if s.is_backward == is_backward]
        columns = min(len(totals), max(1, round(width * len(totals) / max(len(timeline.steps), 1))))
        highest = [max(part.tolist()) for part in np.array_split(np.asarray(totals), columns)] if totals else []
        parts.append(f"{name} {''.join('▁▂▃▄▅▆▇█'[min(7, int(8 * n / (top + 1)))] for n in highest)}")
    return "  ".join(parts)


@api_boundary
@counting("memory")
@deep_stack
def memory(
    f: Any,
    *args: Any,
    argnums: int | Sequence[int] = 0,
    donate_argnums: int | Sequence[int] | None = None,
    **kwargs: Any,
) -> MemoryTimeline:
    """The modelled memory of a function's gradient over time, its peak, and what is alive there.

    >>> print(jaxviz.memory(loss, params, x))
    memory of loss: modelled peak 1.2 MiB in the backward pass at dot_general (model.py:12): ...

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, and then no args.
      *args, **kwargs: what to call it with, as for `derive`.
      argnums: the positional arguments to differentiate in.
      donate_argnums: those that the gradient may take the memory of (of a Program: its flat inputs); None for those that a jitted
        function that is called with them says.

    Raises:
      EquationError: the function has no reverse mode.
      what `derive` raises.
    """
    derivation = f if isinstance(f, Derivation) else derive(f, *args, argnums=argnums, **kwargs)
    if donate_argnums is None:
        return _timeline(derivation, donated_by(derivation.primal))
    places = {donate_argnums} if isinstance(donate_argnums, int) else set(donate_argnums)
    n = len(derivation.primal.invars)
    if args and places:
        sizes = [len(jax.tree.leaves(a)) for a in args]
        flat = [i in places or i - len(args) in places for i, size in enumerate(sizes) for _ in range(size)]
        donated = tuple((flat + [False] * n)[:n])
    else:
        donated = tuple(i in places for i in range(n))
    return _timeline(derivation, donated)


def _timeline(derivation: Derivation, donated: tuple[bool, ...]) -> MemoryTimeline:
    model = Model(derivation, donated)
    return MemoryTimeline(derivation.primal.name, model.run(), tuple(model.values()), derivation, donated)


def donated_by(program: Program) -> tuple[bool, ...]:
    """For each input whether a jitted function that the program calls with it takes its memory."""
    given = {
        a
        for e in program.equations
        if of(e) is JIT
        for a, is_donated in zip(e.invars, e.params["donated_invars"], strict=True)
        if is_donated
    }
    return tuple(v in given for v in program.invars)


_ANY_INDEX = re.compile(r"\[\d+\]")


def _plural(kind: str) -> str:
    return "temporaries" if kind == "temporary" else f"{kind}s"


@usual_stack
def xla_memory(derivation: Derivation, donated: Sequence[bool]) -> XlaMemory:
    forward, backward = as_function(derivation.forward), as_function(derivation.backward)
    n, cts = derivation.n_residuals, derivation.backward.invars[derivation.n_residuals :]

    def gradient(*inputs: Any) -> list[Any]:
        outs = forward(*inputs)
        n_results = len(outs) - n
        ones = [jax.numpy.ones(v.aval.shape, v.aval.dtype) for v in cts]
        return [*outs[:n_results], *backward(*outs[n_results:], *ones)]

    inputs = [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type, sharding=s)
        for v, s in zip(derivation.primal.invars, derivation.placed, strict=True)
    ]
    jitted: Callable[..., Any] = jax.jit(gradient, donate_argnums=tuple(i for i, d in enumerate(donated) if d))
    with counting("compiling"):
        found = jitted.lower(*inputs).compile().memory_analysis()  # type: ignore[attr-defined]
    return XlaMemory(
        int(found.argument_size_in_bytes), int(found.output_size_in_bytes), int(found.temp_size_in_bytes),
        int(found.alias_size_in_bytes), jax.default_backend(),
    )  # fmt: skip
