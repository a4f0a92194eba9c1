"""Verifies a plan with the compiler: memory and FLOPs of the compiled gradient, with the plan and without."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.analysis.devices import types_to_lower
from jaxviz.analysis.training_step import TrainingStep, step_function
from jaxviz.analysis.unreported import NOTHING, Unreported
from jaxviz.derivation import Derivation
from jaxviz.displays import display
from jaxviz.features.memory.timeline import SPARED, differs_much, donated_by, is_as_modelled
from jaxviz.features.remat.forms import Trade
from jaxviz.features.remat.pasted import in_branches as put_in_branches
from jaxviz.ir.emit import as_function
from jaxviz.ir.stack import usual_stack
from jaxviz.ir.syntax import Program
from jaxviz.report.charts import Bars
from jaxviz.report.data import Data
from jaxviz.report.report import Report, Table
from jaxviz.report.tables import counted, format_bytes, format_flops, repeated, short_location
from jaxviz.runtime.stoppable import compiled_by_jax

if TYPE_CHECKING:
    from jaxviz.features.remat.plan import RematPlan
    from jaxviz.features.remat.search import Search
    from jaxviz.xla.compiled_memory.beside import MemoryBeside

_UNDONE = 0.95
"""A plan counts as undone if XLA's temporaries do not fall below this share, although the model predicts it,"""
MOST = 0.25
"""and as mostly undone if they fall by less than this share of the prediction."""


@dataclass(frozen=True, slots=True)
class CompiledFigures(Data):
    """XLA's figures for a compiled gradient, on one device.

    Args:
      peak_nbytes: arguments, results and temporaries together, without memory that they share.
      flops: as XLA counts them, with the body of a loop once.
      on_host: bytes of temporaries in the memory of the host.
      moves: whether the compiled program has values in the memory of the host at all.
      unreported: what XLA's CPU kernels may allocate besides.
    """

    peak_nbytes: int
    temporaries: int
    flops: int
    on_host: int = 0
    moves: bool = False
    unreported: Unreported = NOTHING

    _data = ("peak_nbytes", "temporaries", "flops", "on_host", "unreported")

    @property
    def notes(self) -> tuple[str, ...]:
        return self.unreported.notes(self.peak_nbytes)


@dataclass(frozen=True, eq=False, repr=False)
class Verification(Report, schema="plan_remat.verify"):
    """A plan as compiled by XLA. See `RematPlan.verify`.

    Args:
      backend: such as 'cpu'.
      before, after: the compiled gradient as written, and with the plan.
      modelled: the same in the model.
      is_unrolled: whether the plan's checkpoints are around calls outside of any loop.
      in_branches: if XLA undoes these, the gradient with each in a branch of a `lax.cond` that is always taken;
        otherwise None.
      beside: if XLA does not follow the plan, or differs much from the model, the model of the gradient with the plan
        next to the compiled program; otherwise None.
      instead: if XLA undoes a checkpoint around the whole function, the plan with checkpoints around calls that
        `in_branches` is about; otherwise None.
    """

    function: str
    backend: str
    before: CompiledFigures
    after: CompiledFigures
    modelled: tuple[Trade, Trade]
    is_unrolled: bool = False
    in_branches: CompiledFigures | None = None
    beside: MemoryBeside | None = None
    instead: RematPlan | None = None

    @property
    def holds_in_branches(self) -> bool:
        """Whether the memory falls only with each checkpoint in a branch."""
        branched = self.in_branches
        return not self.happened and branched is not None and self._falls_enough(branched)

    @property
    def held(self) -> CompiledFigures:
        """The figures of the form in which the plan holds, or else of the plan as it is."""
        return self.in_branches if self.in_branches is not None and self.holds_in_branches else self.after

    @property
    def differs(self) -> str:
        """A sentence on how far XLA's peak is from the modelled one, and why; '' if they differ by less than a
        fifth."""
        pairs = [(self.before.peak_nbytes, self.modelled[0].peak_nbytes, "as written")]
        if self.after is not self.before:
            pairs.append((self.after.peak_nbytes, self.modelled[1].peak_nbytes, "with the plan"))
        far = [
            f"{format_bytes(compiled)} {where}, against {format_bytes(model)} in the model"
            for compiled, model, where in pairs
            if differs_much(compiled, model)
        ]
        if not far:
            return ""
        why = f": {self.beside.reasons}" if self.beside is not None and self.beside.by_reason else ""
        return f"XLA's peak is {', and '.join(far)}{why}."

    @property
    def offloads(self) -> bool:
        """Whether the compiled program also offloads what the plan offloads; true if the plan offloads nothing."""
        return self.after.moves or not self.modelled[1].offloaded

    @property
    def happened(self) -> bool:
        """Whether the temporaries fall as the model says; where the model sees no lower peak, whether they do not
        grow."""
        if not self.offloads:
            return False
        falls = self.modelled[1].peak_nbytes < _UNDONE * self.modelled[0].peak_nbytes
        return self._falls_enough(self.after) if falls else self.after.temporaries <= self.before.temporaries

    def _falls_enough(self, after: CompiledFigures) -> bool:
        """Whether a compiled gradient's temporaries fall about as much as the model predicts."""
        share = 1 - self.modelled[1].peak_nbytes / max(self.modelled[0].peak_nbytes, 1)
        fallen = self.before.temporaries - after.temporaries
        return fallen >= max((1 - _UNDONE) * self.before.temporaries, MOST * share * self.before.peak_nbytes)

    @property
    def is_undone(self) -> bool:
        """Whether XLA holds more with the plan than the model says, rather than less without it."""
        return not self.happened and not is_as_modelled(self.after.peak_nbytes, self.modelled[1].peak_nbytes)

    @property
    def summary(self) -> str:
        """XLA on cpu follows the plan for `loss`: temporaries 87.9 GiB → 28.6 GiB, peak …."""
        before, after = self.before, self.after
        if after is before:
            return (
                f"The plan does not change `{self.function}`: XLA on {self.backend} has temporaries of "
                f"{format_bytes(before.temporaries)} and a peak of {format_bytes(before.peak_nbytes)}"
            )
        figures = (
            f"temporaries {format_bytes(before.temporaries)} → {format_bytes(after.temporaries)}, peak "
            f"{format_bytes(before.peak_nbytes)} → {format_bytes(after.peak_nbytes)}"
        )
        if self.after.on_host:
            figures += f", {format_bytes(self.after.on_host)} in the host's memory"
        if not self.offloads:
            return (
                f"Nothing is offloaded: XLA on {self.backend} keeps the {format_bytes(self.modelled[1].offloaded)} on "
                f"the device that the plan for `{self.function}` moves to the host: {figures}"
            )
        if self.happened:
            return f"XLA on {self.backend} follows the plan for `{self.function}`: {figures}"
        if after.temporaries > before.temporaries / _UNDONE:
            return f"With the plan for `{self.function}` XLA on {self.backend} takes more memory: {figures}"
        is_little = after.temporaries <= _UNDONE * before.temporaries
        effect = "Little effect" if is_little else "No effect"
        if self.is_undone:
            return (
                f"{effect}: XLA on {self.backend} undoes {'most of ' if is_little else ''}the plan for "
                f"`{self.function}`: {figures}"
            )
        return f"{effect}: `{self.function}` as written takes less on {self.backend} than the model says: {figures}"

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self._effect, *filter(None, [self.differs]), *self.held.notes)

    @property
    def _effect(self) -> tuple[str, ...]:
        if self.happened or not self.offloads:
            return ()
        if not self.is_undone:
            return (f"{SPARED}. With the plan it takes what the model says.",)
        more = self.modelled[1].flops - self.modelled[0].flops
        if self._kept:
            why = self._kept
        elif more < 0.02 * self.before.flops:
            why = "Too little is recomputed to tell from the FLOPs whether XLA merges it with the original computation."
        elif 2 * (self.after.flops - self.before.flops) < more:
            why = "XLA merges the recomputation with the original computation."
        else:
            why = "XLA recomputes what the plan says, but holds as much memory while it does so."
        if not self.is_unrolled:
            return (why,)
        loop = "A checkpoint in the body of a jax.lax.scan over the layers is not undone."
        if not self.holds_in_branches:
            return (f"{why} {loop}",)
        around = f" around {self.instead.around}" if self.instead is not None else ""
        instead = (
            f"plan.apply(f) and plan.code() now put each checkpoint{around} into a branch of a jax.lax.cond that is "
            f"always taken, which XLA does not undo: temporaries {format_bytes(self.before.temporaries)} → "
            f"{format_bytes(self.held.temporaries)}."
        )
        return (f"{why} {instead} {loop}",)

    @property
    def _kept(self) -> str:
        """What XLA keeps although the plan recomputes it, and why, in a sentence; '' if unknown."""
        if self.beside is None:
            return ""
        merged = self.beside.because("merged again")
        early = [c for c in self.beside.differences if c.row.kind == "recomputed" and c.nbytes > 0]
        if not merged and not early:
            return ""
        why = "XLA merges the recomputation with the original computation"
        if not merged:
            why = "XLA recomputes much of it long before it is read"
        rows = [c.row for c in merged or early]
        first, others = rows[0], len(rows) - 1
        where = f" ({short_location(first.location)})" if first.location is not None else ""
        more = f" and {counted(others, 'other')}" if others else ""
        of = f"{repeated(first.count, first.type)} of {first.what}{where}{more}"
        return f"{why}: {format_bytes(sum(row.nbytes for row in rows))} at the peak are {of}."

    def _chart(self) -> Bars:
        rows = [("temporaries", self.before.temporaries, "before"), ("temporaries", self.after.temporaries, "after")]
        return Bars(rows, f"the gradient of {self.function} as compiled by XLA on {self.backend}", beside=True)

    def _parts(self) -> Iterator[str | Table]:
        model = self.modelled
        more = model[1].flops - model[0].flops
        rows = [
            ("peak", *map(format_bytes, (self.before.peak_nbytes, self.after.peak_nbytes)),
             *(format_bytes(t.peak_nbytes) for t in model)),
            ("temporaries", *map(format_bytes, (self.before.temporaries, self.after.temporaries)), "", ""),
            ("FLOPs", *map(format_flops, (self.before.flops, self.after.flops)), "",
             f"{format_flops(abs(more))} {'more' if more >= 0 else 'fewer'}"),
        ]  # fmt: skip
        yield Table(("", "XLA, as written", "with the plan", "model, as written", "with the plan"), rows, "<>>>>")
        yield "XLA counts the body of a loop once." if self.before.flops else "This backend counts no FLOPs."
        yield from self.notes

    _data = ("function", "backend", "happened", "offloads", "notes", "before", "after", "in_branches", "beside")


@usual_stack
def figures_of(search: Search, program: Program, in_branches: bool = False) -> CompiledFigures:
    """A program of a search, as written or planned, compiled once for the default backend: its value and gradient, or
    the training step.

    Raises:
      the errors of compiling.
    """
    key = program, in_branches
    if key not in search.compiled:
        program = put_in_branches(program) if in_branches else program
        search.compiled[key] = compiled_figures(compiled_gradient(search.derivation, program))
    figures: CompiledFigures = search.compiled[key]
    return figures


def compiled_gradient(derivation: Derivation, program: Program) -> Any:
    """The value and gradient of a program as compiled for the default backend, or the training step that takes it.

    Args:
      derivation: of the function; the program is the same with other checkpoints.

    Raises:
      the errors of compiling.
    """
    step: TrainingStep | None = derivation.step
    if step is None:
        function, types = _gradient(program, derivation.nonzeros), types_to_lower(program, derivation.placed)
        return compiled_by_jax(jax.jit(function).lower(*types))
    donated = tuple(i for i, d in enumerate(donated_by(step.traced)) if d)
    return compiled_by_jax(jax.jit(step_function(step, program), donate_argnums=donated).lower(*step.types))


def _gradient(program: Program, nonzeros: Sequence[bool]) -> Callable[..., Any]:
    """JAX's value and gradient of a program, with cotangents of one, and none for integers."""
    fun = as_function(program)

    def seed(x: Any) -> Any:
        return jnp.ones_like(x) if jnp.issubdtype(x.dtype, jnp.inexact) else np.zeros(x.shape, jax.dtypes.float0)

    def gradient(*inputs: Any) -> Any:
        def of_active(*active: Any) -> Sequence[Any]:
            rest = iter(active)
            return fun(*(next(rest) if nz else x for x, nz in zip(inputs, nonzeros, strict=True)))

        results, pull = jax.vjp(of_active, *(x for x, nz in zip(inputs, nonzeros, strict=True) if nz))
        return results, pull(jax.tree.map(seed, results))

    return gradient


def compiled_figures(compiled: Any) -> CompiledFigures:
    """XLA's figures for what it compiled."""
    memory = compiled.memory_analysis()
    cost = compiled.cost_analysis() or {}
    taken = [memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes]
    on_host = int(memory.host_temp_size_in_bytes)
    # Host memory is memory space 5 in layouts, on every backend.
    text = compiled.as_text() or ""
    moves = bool(on_host) or bool(re.search(r"\bS\(5\)", text))
    return CompiledFigures(
        int(sum(taken) - memory.alias_size_in_bytes), int(memory.temp_size_in_bytes), int(cost.get("flops", 0)),
        on_host, moves, display("memory of XLA's kernels")(compiled),
    )  # fmt: skip
