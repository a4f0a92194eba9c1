"""The memory of the compiled gradient, drawn on the page together with the modelled one, and its collectives."""

from __future__ import annotations

from typing import cast, get_args

import numpy as np

from jaxviz.analysis.lowering import Lowering
from jaxviz.features.explorer.messages import (
    CompiledExchange,
    CompiledExchanges,
    CompiledHeld,
    CompiledKind,
    CompiledLine,
    CompiledPeak,
)
from jaxviz.report.tables import format_bytes, repeated, short_location
from jaxviz.xla.collectives.reading import collectives_of
from jaxviz.xla.compiled_memory.attribution import KINDS, OWN, Kind
from jaxviz.xla.compiled_memory.places import lowered_gradient
from jaxviz.xla.compiled_memory.reading import memory_of_subject
from jaxviz.xla.compiled_memory.report import CompiledMemory

_DRAWN: tuple[CompiledKind, ...] = get_args(CompiledKind)
_MOST_STEPS = 4_000
"""The most instructions whose memory is sent; if there are more, the ones with the most
bytes alive in each interval."""
_MOST_ROWS = 200


def compiled_peak(lowering: Lowering) -> CompiledPeak:
    """What is alive in the compiled program over its schedule, and at its peak; compiles it if necessary.

    Raises:
      ValueError: the backend does not report where the compiled program stores its values.
    """
    memory = memory_of_subject(lowered_gradient(lowering))
    steps = _steps(memory)
    beside = {"argument": memory.argument_nbytes, "constant": memory.constant_nbytes, "result": memory.result_nbytes}
    sums = np.tile(np.array([[beside.get(kind, 0)] for kind in _DRAWN]), len(steps))
    for kind, nbytes in zip(KINDS[3:], np.array([m.nbytes for m in memory.timeline]).T[3:], strict=True):
        sums[_DRAWN.index(_drawn(kind))] += nbytes[steps]
    rest = memory.at_peak[_MOST_ROWS:]
    return {
        "summary": f"{memory.peak_text}; XLA allocates {format_bytes(memory.temp_nbytes)} for temporaries",
        "notes": list(memory.notes),
        "kinds": list(_DRAWN),
        "bytes": sums.tolist(),
        "turn": int(np.searchsorted(steps, memory.turn)),
        "held": [
            CompiledHeld(
                h.kind, _drawn(h.kind), h.what, repeated(h.count, h.type), h.nbytes, short_location(h.location), h.why
            )
            for h in memory.at_peak[:_MOST_ROWS]
        ],
        "more": (len(rest), sum(h.nbytes for h in rest)),
    }


def compiled_line(key: str, peak: CompiledPeak) -> CompiledLine:
    """The total bytes over time for a setting of the switches."""
    total = [sum(of) for of in zip(*peak["bytes"], strict=True)]
    return CompiledLine(key=key, turn=peak["turn"], total=total, error="")


def compiled_exchanges(lowering: Lowering) -> CompiledExchanges:
    """Communication between devices in the compiled gradient; compiles it if necessary."""
    report = collectives_of(lowered_gradient(lowering))
    return {
        "summary": report.summary,
        "rows": [
            CompiledExchange(
                c.kind, ", ".join(c.axes) or f"{c.group_size} devices", c.total_sent_nbytes, c.times, c.stage,
                short_location(c.location), c.cause or f"{c.what}: no cause found", list(c.equations),
            )
            for c in report.compiled[:_MOST_ROWS]
        ],
    }  # fmt: skip


def _steps(memory: CompiledMemory) -> np.ndarray:
    """The instructions that are drawn."""
    totals = np.array([sum(m.nbytes) for m in memory.timeline])
    parts = np.array_split(np.arange(len(totals)), min(len(totals), _MOST_STEPS)) if len(totals) else []
    return np.array([part[np.argmax(totals[part])] for part in parts], int)


def _drawn(kind: Kind) -> CompiledKind:
    """The kind whose colour another one has."""
    if kind in OWN:
        return "own"
    return "temporary" if kind == "recomputed" else cast(CompiledKind, kind)
