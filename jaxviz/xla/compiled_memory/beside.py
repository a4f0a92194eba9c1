"""The modelled memory of a gradient beside the compiled program: both curves on one axis, and the differences at the
peaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxviz.features.memory.buffers import KINDS
from jaxviz.features.memory.timeline import MemoryTimeline, peak_text
from jaxviz.ir.boundary import api_boundary
from jaxviz.report.charts import OverlaidLine, OverTime
from jaxviz.report.differences import difference_table
from jaxviz.report.report import Drawn, Part, Report
from jaxviz.report.tables import format_bytes, together
from jaxviz.xla.compiled_memory.change import Change, paired, same_in
from jaxviz.xla.compiled_memory.places import gradient_or_step
from jaxviz.xla.compiled_memory.reading import memory_of_subject
from jaxviz.xla.compiled_memory.report import CompiledMemory, Held

MERGED, COPIED, PADDED, FUSED = "merged again", "copied", "padded", "fused away"
_OF_KIND = {
    "merged": MERGED, "copy": COPIED, "layout": COPIED, "double buffer": COPIED, "offloaded": COPIED, "padding": PADDED,
    "fusion": "XLA's own", "scratch": "XLA's own", "carried": "carried by a loop", "unused": "gaps",
    "constant": "constants",
    "result": "results from the start", "not attributed": "not attributed",
}  # fmt: skip
"""Kinds that only the compiled program has at its peak → why the model does not have them."""
_WORDS = {
    MERGED: "a checkpoint recomputes it; XLA merged that with the forward pass and holds the value",
    FUSED: "XLA computes it within a fusion, without memory",
    "not found": "no buffer of the compiled program corresponds to it",
    "at another time": "it is not alive at the other peak",
    "results from the start": "XLA allocates them before the program runs",
}
"""What a reason means, if that is not obvious."""
_FOR = {
    MERGED: "values whose recomputation XLA merged with the forward pass", COPIED: "copies", PADDED: "padding",
    FUSED: "values that XLA computes within fusions", "XLA's own": "XLA's own temporaries",
    "carried by a loop": "carries of loops",
    "gaps": "gaps between buffers", "results from the start": "results that XLA allocates from the start",
    "not attributed": "buffers that could not be attributed",
    "at another time": "values that are alive at another time",
    "not in the model": "values that the model does not have",
    "another number": "values of which there is another number",
    "another size": "values of another size", "not found": "values that have no buffer in the compiled program",
}  # fmt: skip
"""What there is more or less memory for by a reason, if not by its name."""
_REASONS = 3
"""How many reasons a sentence gives."""


@dataclass(frozen=True, eq=False, repr=False)
class MemoryBeside(Report, schema="memory.beside"):
    """The modelled and the compiled memory of one gradient, or of one training step. See `MemoryTimeline.beside`.

    Args:
      model: as modelled, equation by equation.
      compiled: as XLA compiled it.
    """

    model: MemoryTimeline
    compiled: CompiledMemory

    @cached_property
    def differences(self) -> tuple[Change, ...]:
        """The rows with different bytes at the two peaks, largest first: `before` is the model's row, `after` the
        compiled one's, `why` the reason.

        The sum is that of the compiled program's arguments, results, constants and temporaries, gaps included, less the
        modelled peak.
        """
        rows = [
            Change(a, b, self._why(a, b))
            for a, b in paired(self._modelled, self.compiled.at_peak)
            if a is None or b is None or a.nbytes != b.nbytes
        ]
        return tuple(sorted(rows, key=lambda c: -abs(c.nbytes)))

    @cached_property
    def by_reason(self) -> dict[str, int]:
        """The additional bytes of the compiled program for each reason, largest first: fused away, merged again,
        copied, padded, …"""
        sums: dict[str, int] = {}
        for c in self.differences:
            sums[c.why] = sums.get(c.why, 0) + c.nbytes
        return dict(sorted(sums.items(), key=lambda pair: -abs(pair[1])))

    @property
    def reasons(self) -> str:
        """The largest of them: "2.0 MiB less for values that XLA computes within fusions and 512.0 KiB more for
        copies"."""
        return _said(list(self.by_reason.items())[:_REASONS])

    def because(self, reason: str) -> tuple[Change, ...]:
        """The differences for one reason, such as 'merged again'."""
        return tuple(c for c in self.differences if c.why == reason)

    @cached_property
    def _modelled(self) -> list[Held]:
        return [Held(a.kind, a.what, a.type, a.nbytes, a.count, a.location) for a in self.model.alive]

    @cached_property
    def _at_any_time(self) -> list[Held]:
        return [Held(v.kind, v.what, v.type, v.nbytes, 1, v.location) for v in self.model.values]

    def _why(self, a: Held | None, b: Held | None) -> str:
        if a is None:
            assert b is not None
            if b.kind in _OF_KIND:
                return _OF_KIND[b.kind]
            return "at another time" if same_in(self._at_any_time, b) else "not in the model"
        if b is not None:
            return MERGED if b.kind == "merged" else "another number" if a.count != b.count else "another size"
        if same_in(self.compiled.values, a) is not None:
            return "at another time"
        return FUSED if same_in(self.compiled.fused, a) is not None else "not found"

    @property
    def summary(self) -> str:
        """gradient of `loss` in `params`: modelled peak 995.5 KiB, 930.6 KiB as XLA on cpu compiles it: 192.0 KiB less
        for values that XLA computes within fusions and 32.0 KiB more for copies."""
        reasons = _said([(reason, n) for reason, n in self.by_reason.items() if abs(n) >= self._least])
        return (
            f"{self.model.about}: modelled peak {format_bytes(self.model.peak_nbytes)}, "
            f"{format_bytes(self.compiled.peak_nbytes)} "
            f"as XLA on {self.compiled.compiler.backend} compiles it{f': {reasons}' if reasons else ''}"
        )

    @property
    def _least(self) -> int:
        """Differences below a hundredth of the peak appear only in the table."""
        return max(1, self.compiled.peak_nbytes // 100)

    def _parts(self) -> Iterator[Part]:
        if self.model.steps and self.compiled.timeline:
            yield Drawn(self._chart().text(60))
        caption = "what the compiled program has at its peak, compared with the model:"
        yield difference_table([c.difference for c in self.differences], caption)
        meanings = [f"{reason}: {_WORDS[reason]}" for reason in self.by_reason if reason in _WORDS]
        if meanings:
            yield f"{'; '.join(meanings)}."
        compiled = self.compiled.peak_text.removeprefix("peak ")
        yield f"As modelled the peak is {self._peak_of_model}; as compiled, {compiled}."

    def _html_parts(self) -> Iterator[Part]:
        return (part for part in self._parts() if not isinstance(part, Drawn))  # the picture has the curves

    @property
    def _peak_of_model(self) -> str:
        return peak_text(self.model).removeprefix("peak ") if self.model.steps else format_bytes(0)

    # --- both curves on one axis --------------------------------------------------------------------------------------

    @cached_property
    def _totals(self) -> tuple[list[int], list[int]]:
        """The bytes alive at each step of the model, and at each instruction."""
        beside = self.compiled.beside_nbytes
        return [s.total for s in self.model.steps], [beside + sum(m.nbytes) for m in self.compiled.timeline]

    def _chart(self) -> OverTime:
        of_program, compiled = self._totals[1], self.compiled
        said = f"compiled for {compiled.compiler.backend}: peak {format_bytes(compiled.peak_nbytes)}"
        passes = lambda turn: (("forward", 0), ("backward", turn))
        return OverTime(
            [s.nbytes for s in self.model.steps], KINDS, passes(self.model.turn),
            f"bytes alive in the gradient of {self.model.function}, modelled and compiled",
            f"modelled peak {self._peak_of_model}", name="model",
            other=OverlaidLine(of_program, passes(compiled.turn), said, "compiled") if of_program else None,
        )  # fmt: skip

    _data = (
        "model.function", "model.about", "by_reason", "differences",
        ("modelled=", ("model.peak_nbytes", "model.turn", "nbytes=_modelled_nbytes")),
        (
            "compiled=",
            (
                "compiled.peak_nbytes", "compiled.reserved_nbytes", "compiled.turn", "compiled.compiler",
                "nbytes=_compiled_nbytes",
            ),
        ),
    )  # fmt: skip

    @property
    def _modelled_nbytes(self) -> list[int]:
        return self._totals[0]

    @property
    def _compiled_nbytes(self) -> list[int]:
        return self._totals[1]


def _said(reasons: Sequence[tuple[str, int]]) -> str:
    parts = [f"{format_bytes(abs(n))} {'more' if n > 0 else 'less'} for {_FOR.get(why, why)}" for why, n in reasons]
    return together(parts) if parts else ""


@api_boundary
def beside(model: MemoryTimeline, compiled: CompiledMemory | None = None) -> MemoryBeside:
    """See `MemoryTimeline.beside`."""
    return MemoryBeside(model, compiled or memory_of_subject(gradient_or_step(model.derivation, model.donated)))
