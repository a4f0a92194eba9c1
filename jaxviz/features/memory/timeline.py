"""A model of the memory of a gradient over time, and XLA's figures for the same program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxviz.analysis.grouping import alike, pattern, rows_of
from jaxviz.analysis.layouts import Layouts, find_layouts, layouts_of_step
from jaxviz.analysis.lowering import gradient_function
from jaxviz.analysis.naming import ROOM_IN_SENTENCE, written_at
from jaxviz.analysis.passes import Passes
from jaxviz.analysis.training_step import TrainingStep, step_function, subject_of
from jaxviz.analysis.walk import location_of
from jaxviz.arguments import Argnums
from jaxviz.derivation import Derivation, derive
from jaxviz.displays import display
from jaxviz.features.memory.buffers import KINDS, Kind
from jaxviz.features.memory.model import Live, MemoryStep, Model
from jaxviz.features.residuals.notes import gradient_note
from jaxviz.higher_order import of
from jaxviz.higher_order.checkpoint import CHECKPOINT
from jaxviz.higher_order.jit import JIT
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.origin import Location
from jaxviz.ir.stack import deep_stack, usual_stack
from jaxviz.ir.syntax import Program
from jaxviz.progress import counting
from jaxviz.report import pictures
from jaxviz.report.charts import OverTime
from jaxviz.report.kinds import PLURALS
from jaxviz.report.report import Drawn, Part, Report, Table
from jaxviz.report.tables import format_bytes, in_library, more_of, repeated, short_location
from jaxviz.runtime.stoppable import compiled_by_jax
from jaxviz.transforms.inline import inlined
from jaxviz.transforms.unopened import unopened_note

if TYPE_CHECKING:
    from jaxviz.xla.compiled_memory.beside import MemoryBeside
    from jaxviz.xla.compiled_memory.report import CompiledMemory


@dataclass(frozen=True, slots=True)
class Alive:
    """Values in memory at one step, of one kind, type, line and expression.

    Args:
      what: the path of an argument, the expression that computes them, or the value whose cotangents they are.
      type: of each.
      nbytes: the bytes of all of them.
      kind: their kind, such as 'residual'.
      location: the user's line; None for an argument.
      count: how many there are.
      library: where in a library they are computed; '' if in none.
    """

    what: str
    type: str
    nbytes: int
    kind: Kind
    location: Location | None
    count: int = 1
    library: str = ""


@dataclass(frozen=True, slots=True)
class XlaMemory:
    """XLA's figures for the compiled gradient, on one device; see `compiled.memory_analysis()`.

    Args:
      arguments, results, temporaries, reused: bytes; `reused` are those of results that reuse donated arguments.
      backend: such as 'cpu'.
      temporaries_without_checkpoints: for the same function without its checkpoints; None if it has none.
    """

    arguments: int
    results: int
    temporaries: int
    reused: int
    backend: str
    temporaries_without_checkpoints: int | None = None

    @property
    def peak_nbytes(self) -> int:
        """Arguments, results and temporaries together, without memory that they share."""
        return self.arguments + self.results + self.temporaries - self.reused

    @property
    def saves_nothing(self) -> bool:
        """Whether it has checkpoints that save next to nothing."""
        without = self.temporaries_without_checkpoints
        return without is not None and self.temporaries > 0.95 * without


def _alive(values: Sequence[Live]) -> Alive:
    first, size = values[0], sum(v.nbytes for v in values)
    what = alike([v.what for v in values])
    return Alive(what, first.type, size, first.kind, first.location, len(values), first.library)


SPARED = "XLA recomputes some values by itself"
"""Why a function may need less memory as written than the model says."""


_MUCH = 0.2
"""The share of the modelled peak by which XLA's has to differ for a report to say so."""


def differs_much(measured: int, modelled: int) -> bool:
    """Whether XLA's peak and the modelled one differ by more than a fifth of the latter."""
    return abs(measured - modelled) > _MUCH * modelled


def is_as_modelled(measured: int, modelled: int) -> bool:
    """Whether XLA takes at most about as many bytes as the model says."""
    return measured <= 1.1 * modelled


@dataclass(frozen=True, eq=False, repr=False)
class MemoryTimeline(Report, schema="memory"):
    """The modelled bytes alive at each equation of a function's forward and backward program, on each device.

    >>> timeline = jaxviz.memory(loss, params, x)
    >>> timeline.peak

    The model evaluates equation by equation, as one jitted program would: a value is freed after the last equation that
    reads it, an elementwise operation writes into an operand that nothing reads afterwards, a view takes no memory, a
    broadcast is computed where it is read, a transposed value is read as it was or written so from the start, and a
    checkpoint recomputes a value only when it is read. XLA's fusion needs less memory: see `xla`.

    Args:
      function: the name of the function.
      steps: one step for each equation.
      model: the model that has walked through both programs.
      derivation: the derivation that it was made from.
      donated: for each argument of the function, whether it is donated.
      step: the training step that computes the gradient, if the memory is that of a training step.
    """

    function: str
    steps: tuple[MemoryStep, ...]
    model: Model = field(repr=False)
    derivation: Derivation = field(repr=False)
    donated: tuple[bool, ...] = ()
    step: TrainingStep | None = field(default=None, repr=False)

    @cached_property
    def values(self) -> tuple[Live, ...]:
        """All values that are in memory at some step, and when; the bytes of a step are the sum of theirs."""
        return tuple(self.model.values())

    @cached_property
    def rows(self) -> list[tuple[Live, ...]]:
        """The values by expression in repeated layers and calls, as reports and the page show them."""
        where = lambda v: (v.type, v.kind, v.location)
        words = lambda same: (alike([v.what for v in same]), *where(same[0]), same[0].library)
        return rows_of(self.values, lambda v: (v.repeats, pattern(v.what), *where(v)), words)

    @cached_property
    def peak(self) -> int:
        """The index of the step at which most bytes are alive."""
        return int(np.argmax([s.total for s in self.steps])) if self.steps else 0

    @property
    def peak_nbytes(self) -> int:
        return self.steps[self.peak].total if self.steps else 0

    @cached_property
    def alive(self) -> tuple[Alive, ...]:
        """The values alive at the peak, largest first."""
        return self.alive_at(self.peak)

    def alive_at(self, step: int) -> tuple[Alive, ...]:
        """The values alive at a step, largest first, with those of each of `rows` counted together."""
        at = ([v for v in row if v.born <= step <= v.last] for row in self.rows)
        return tuple(sorted(map(_alive, filter(None, at)), key=lambda a: -a.nbytes))

    @cached_property
    def xla(self) -> XlaMemory:
        """XLA's figures for the same gradient, compiled for the default backend; compiled when first asked for.

        Raises:
          the errors of compiling.
        """
        if self.step is not None:
            return xla_figures(step_function(self.step), self.step.types, self.donated)
        figures = xla_memory(self.derivation, self.donated)
        primal = self.derivation.primal
        without = inlined(primal, (CHECKPOINT.primitive,))
        if without is primal:
            return figures
        plain = derive(without, argnums=tuple(i for i, nz in enumerate(self.derivation.nonzeros) if nz))
        return replace(figures, temporaries_without_checkpoints=xla_memory(plain, self.donated).temporaries)

    def compare(self) -> str:
        """Compares the model with XLA in a few sentences: how much memory XLA needs, which checkpoints it undoes, and
        if its peak differs by more than a fifth, why, for which the gradient is compiled once more."""
        xla = self.xla
        text = (
            f"XLA on {xla.backend} takes {format_bytes(xla.temporaries)} for temporaries, besides "
            f"{format_bytes(xla.arguments)} of arguments and {format_bytes(xla.results)} of results; the model has "
            f"{format_bytes(self._beside_arguments)} besides the arguments at its peak."
        )
        without = xla.temporaries_without_checkpoints
        if without is not None:
            text = f"{text} Without the checkpoints it takes {format_bytes(without)}"
            if xla.saves_nothing:
                undone = "XLA undoes them, and they save"
                why = undone if self.xla_undoes_checkpoints else f"{SPARED}, and the checkpoints save"
                text = f"{text}: {why} next to nothing here"
            text = f"{text}."
        if not differs_much(xla.peak_nbytes, self.peak_nbytes):
            return text
        peaks = f"XLA's peak is {format_bytes(xla.peak_nbytes)}, against {format_bytes(self.peak_nbytes)} in the model"
        why = f": {self._why_xla_differs}" if self._why_xla_differs else ""
        return f"{text} {peaks}{why}."

    @cached_property
    def _why_xla_differs(self) -> str:
        """The largest reasons; or that XLA does not say where it stores values."""
        try:
            return self.beside().reasons
        except ValueError as error:
            return f"why is not known, since {error}"

    @property
    def xla_undoes_checkpoints(self) -> bool:
        """Whether XLA undoes the checkpoints: they save nothing once compiled, which takes more than the model."""
        return self.xla.saves_nothing and not is_as_modelled(self.xla.temporaries, self._beside_arguments)

    @property
    def _beside_arguments(self) -> int:
        """Modelled bytes at the peak, without the arguments."""
        return self.peak_nbytes - self.steps[self.peak].nbytes[0] if self.steps else 0

    def beside(self, compiled: CompiledMemory | None = None) -> MemoryBeside:
        """Shows the model and the compiled program on one axis, and what differs at their peaks: values that are fused
        away, merged again, copied or padded.

        >>> print(jaxviz.memory(loss, params, x).beside())
        gradient of `loss` in `params`: modelled peak 995.5 KiB, 930.6 KiB as XLA on cpu compiles it: 192.0 KiB less …

        Args:
          compiled: the report of `compiled_memory` on the same function; None compiles it.

        Raises:
          the errors of `compiled_memory`.
        """
        comparison: MemoryBeside = display("model beside the compiled memory")(self, compiled)
        return comparison

    @property
    def n_devices(self) -> int:
        """The number of devices that it runs on; sizes are those on one of them, as Shardy partitions the values."""
        return self.model.layouts.n_devices if self.model.layouts is not None else 1

    @property
    def notes(self) -> tuple[str, ...]:
        """Why there is no gradient, and what the model leaves out, such as the inside of what is not opened."""
        unknown = self.model.layouts.unknown if self.model.layouts is not None else ""
        return (*gradient_note(self.derivation), *unopened_note(self.derivation.unopened), *filter(None, [unknown]))

    @property
    def about(self) -> str:
        """The subject: "gradient of `loss` in `params`", or "training step `train`, which takes the gradient …"."""
        return self.derivation.about

    @property
    def summary(self) -> str:
        """memory of the gradient of `loss` in `params`: modelled peak 1.2 MiB in the backward pass, at `x * w`: …"""
        if not self.steps:
            return f"memory of the {self.about}: there are no equations"
        step = self.steps[self.peak]
        parts = [
            f"{format_bytes(n)} {PLURALS[kind]}"
            for n, kind in sorted(zip(step.nbytes, KINDS, strict=True), key=lambda p: -p[0])
            if n
        ]
        on = f" on each of {self.n_devices:,} devices" if self.n_devices > 1 else ""
        return f"memory of the {self.about}{on}: modelled {peak_text(self)}: {', '.join(parts)}"

    @property
    def turn(self) -> int:
        """The first step of the backward pass; the number of steps if there is none."""
        return next((i for i, s in enumerate(self.steps) if s.is_backward), len(self.steps))

    def _chart(self) -> OverTime:
        largest = [f"{format_bytes(a.nbytes)} {a.what} {_at(a.location)}".rstrip() for a in self.alive[:3]]
        passes = groupby(enumerate(self.steps), lambda pair: "step" if pair[1].is_outside else _pass_of(pair[1]))
        return OverTime(
            [s.nbytes for s in self.steps], KINDS, [(name, next(steps)[0]) for name, steps in passes],
            f"bytes alive in the gradient of {self.function}, as modelled", peak_text(self),
            (pictures.as_many(largest, "largest at the peak: "),),
        )  # fmt: skip

    def curve(self, top: int | None = None) -> str:
        """The timeline in one line of text, each pass apart, as high as `top` bytes; by default as its peak."""
        return self._chart().text(top=top)

    def _parts(self) -> Iterator[Part]:
        if self.steps:
            yield Drawn(self.curve())
            rows = [
                (
                    a.kind, repeated(a.count, a.type), format_bytes(a.nbytes),
                    short_location(a.location), in_library(a.what, a.library),
                )
                for a in self.alive
            ]  # fmt: skip
            heads = ("kind", "type", "bytes", "line", "what")
            size = lambda rest: format_bytes(sum(a.nbytes for a in rest))
            more = more_of(self.alive, lambda a: a.count, "value", size)
            yield Table(heads, rows, "<<><<", "alive at the peak:", more=more)
        yield from self.notes

    def _html_parts(self) -> Iterator[Part]:
        return (part for part in self._parts() if not isinstance(part, Drawn))  # the picture has the curve

    _data = (
        "derivation.gradient", "is_training_step", "function", "n_devices", "peak", "peak_nbytes", "notes", "alive",
        "kinds", ("steps", ("primitive", "is_backward", "nbytes")),
        ("values", ("what", "type", "nbytes", "kind", "born", "last", "residuals")),
    )  # fmt: skip

    @property
    def is_training_step(self) -> bool:
        return self.step is not None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of bytes, in the order of the numbers of each step."""
        return KINDS


def peak_text(timeline: MemoryTimeline, on: str = "") -> str:
    """``peak 1.2 MiB in the backward pass, at `jnp.tanh(x @ w)` (model.py:12)``."""
    if not timeline.steps:
        return "there are no equations"
    step = timeline.steps[timeline.peak]
    at = location_of(step.equation, step.within)
    where = f" ({short_location(at)})" if at is not None else ""
    when = "outside of the gradient" if step.is_outside else f"in the {_pass_of(step)} pass"
    name = written_at(at, ROOM_IN_SENTENCE) or step.equation.primitive.name
    return f"peak {format_bytes(step.total)}{on} {when}, at `{name}`{where}"


def _pass_of(step: MemoryStep) -> str:
    return "backward" if step.is_backward else "forward"


@api_boundary
@counting("memory")
@deep_stack
def memory(
    f: Any, *args: Any, argnums: Argnums = 0, donate_argnums: int | Sequence[int] | None = None, **kwargs: Any
) -> MemoryTimeline:
    """Models the memory of a function's gradient over time, its peak, and what is alive there.

    >>> print(jaxviz.memory(loss, params, x))
    memory of the gradient of `loss` in `params`: modelled peak 1.2 MiB in the backward pass, at `x @ w`: ...

    For a training step, which computes a gradient itself and returns more than one number, it is the memory of the
    whole step, with the optimizer's state and its update.

    >>> print(jaxviz.memory(train_step, params, state, batch))
    memory of the training step `train_step`, which takes the gradient of `loss` in `params`: modelled peak 1.9 MiB ...

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, without further arguments.
      *args, **kwargs: its arguments, as for `derive`.
      argnums: the positional arguments to differentiate with respect to.
      donate_argnums: the arguments whose memory the gradient may reuse (for a Program: its flat inputs); None for those
        that the jitted function donates.

    Raises:
      ValueError: there is no such argument to donate.
      EquationError: the function has no reverse mode.
      the errors of `derive`.
    """
    derivation = subject_of(f, args, kwargs, argnums)
    primal = derivation.primal if derivation.step is None else derivation.step.traced
    if donate_argnums is None:
        return _timeline(derivation, donated_by(primal))
    indices = compat.index_or_indices(donate_argnums)
    places = (indices,) if isinstance(indices, int) else indices
    n = len(primal.invars)
    n_places = len(args) or n
    if outside := [i for i in places if not -n_places <= i < n_places]:
        raise ValueError(
            f"donate_argnums={min(outside)} is no argument of `{primal.name}`, which has {n_places}; the first is 0"
        )
    positions = {i % n_places for i in places}
    sizes = [len(jax.tree.leaves(a)) for a in args] or [1] * n
    flat = [i in positions for i, size in enumerate(sizes) for _ in range(size)]
    return _timeline(derivation, tuple((flat + [False] * n)[:n]))


def peak_of(derivation: Derivation, layouts: Layouts | None = None) -> int:
    """The modelled peak alone, in a third of the time; that of the whole step, if one takes the gradient."""
    step: TrainingStep | None = derivation.step
    primal = derivation.primal if step is None else step.traced
    model = Model(derivation, donated_by(primal), named=False, layouts=layouts)
    if step is None:
        model.run()
    else:
        model.run_step(step.opened(Passes.of(derivation)))
    return int(model.alive_by_step().sum(axis=1).max(initial=0))


def _timeline(derivation: Derivation, donated: tuple[bool, ...]) -> MemoryTimeline:
    step: TrainingStep | None = derivation.step
    if step is None:
        model = Model(derivation, donated, layouts=find_layouts(derivation))
        model.run()
        return MemoryTimeline(derivation.primal.name, model.steps_with_memory(), model, derivation, donated)
    opened = step.opened(Passes.of(derivation))
    model = Model(derivation, donated, layouts=layouts_of_step(opened.program, step.placed))
    model.run_step(opened)
    return MemoryTimeline(step.traced.name, model.steps_with_memory(), model, derivation, donated, step)


def donated_by(program: Program) -> tuple[bool, ...]:
    """For each input whether a jitted function that the program calls with it donates it."""
    donated = {
        a
        for e in program.equations
        if of(e) is JIT
        for a, is_donated in zip(e.invars, e.params["donated_invars"], strict=True)
        if is_donated
    }
    return tuple(v in donated for v in program.invars)


def _at(location: Location | None) -> str:
    return "" if location is None else f"({short_location(location)}) "


def xla_memory(derivation: Derivation, donated: Sequence[bool]) -> XlaMemory:
    """XLA's figures for a gradient."""
    return xla_figures(*gradient_function(derivation), donated)


@usual_stack
def xla_figures(function: Callable[..., Any], types: Sequence[Any], donated: Sequence[bool]) -> XlaMemory:
    """XLA's figures for a function of arrays with these types, some of them donated."""
    jitted: Callable[..., Any] = jax.jit(function, donate_argnums=tuple(i for i, d in enumerate(donated) if d))
    analysis = compiled_by_jax(jitted.lower(*types)).memory_analysis()  # type: ignore[attr-defined]
    return XlaMemory(
        int(analysis.argument_size_in_bytes), int(analysis.output_size_in_bytes), int(analysis.temp_size_in_bytes),
        int(analysis.alias_size_in_bytes), jax.default_backend(),
    )  # fmt: skip
