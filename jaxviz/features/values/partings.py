"""How far two runs are apart in one array."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxviz.features.values.records import (
    GRADIENT,
    RESULT,
    Occurrence,
    RecordedArgument,
    last_place_of,
)
from jaxviz.features.values.summaries import BAD, BITS, LEAST_NOISE, MOST, MOST_NOISE, NORM, SKETCH, squares

_PHASES = {
    "forward": "the forward pass",
    "cotangent": "the backward pass",
    "step": "the step, outside of its gradient",
    RESULT: "what they return",
    GRADIENT: "the backward pass",
}


@dataclass(frozen=True)
class Parting:
    """How far two runs are apart in one array.

    Args:
      address: what means it.
      phase: 'forward', 'cotangent', 'step' for what a training step computes besides its gradient; 'result';
        'gradient'; 'argument', or 'carried' for one that an earlier call of a `Recorder` returned.
      expression, line: what computes it, and where.
      type: of the array in the first run.
      iterations: of the loops around it, outermost first.
      loops: these loops' lines, and trip counts.
      relative: the norm of the difference, relative to that of the value.
      noise: how many times what rounding may change that is.
      alone: what it is computed from that has no counterpart, in words.
      is_inside_step: whether it is in a function that a training step differentiates.
      result: which result or gradient it is, in words; '' if it is neither.
      is_choice: whether it is a result of integers or booleans that rounding may decide.
    """

    address: str
    phase: str
    expression: str
    line: str
    type: str
    iterations: tuple[int, ...]
    loops: tuple[tuple[str, int], ...]
    relative: float
    noise: float
    alone: tuple[str, ...] = ()
    is_inside_step: bool = False
    result: str = ""
    is_choice: bool = False

    @property
    def differs(self) -> bool:
        """Whether it is further apart than rounding may change."""
        return self.noise > MOST_NOISE

    @property
    def is_real(self) -> bool:
        """Whether it is of numbers that are rounded, and no choice among some; or was given or is returned, whatever it
        is."""
        return self.is_given or (bool(self.result) and not self.is_choice) or bool(last_place_of(self.type))

    @property
    def is_given(self) -> bool:
        """Whether it is an argument."""
        return self.phase in ("argument", "carried")

    @property
    def is_backward(self) -> bool:
        """Whether it is of the gradient, or of a cotangent."""
        return self.phase in ("cotangent", GRADIENT)

    @property
    def what(self) -> str:
        """The value in words, with its number among those of its address: "the cotangent of `h @ w #58`"."""
        of = "the cotangent of " if self.phase == "cotangent" else "the argument " if self.is_given else ""
        number = re.search(r" #\d+$", self.address)
        which = number[0] if number and not self.is_given and not self.result else ""
        return ", ".join(filter(None, (self.result, f"{of}`{self.expression}{which}`" if self.expression else "")))

    @property
    def where(self) -> str:
        """`the backward pass, in iteration 17 of 32 of the loop at model.py:41`"""
        each = [
            f"iteration {i} of {n} of the loop at {line}"
            for i, (line, n) in zip(self.iterations, self.loops, strict=True)
        ]
        which = f", in {' in '.join(reversed(each))}" if each else ""
        return f"{_PHASES[self.phase]}{which}"


def parting_of_arguments(a: RecordedArgument, b: RecordedArgument, calls: float, coarse: float) -> Parting:
    """
    Args:
      coarse: the last place of the coarsest type, in which what is carried may have been rounded.
      calls: in how many calls rounding may have changed what is carried, each as much as it may in one.
    """
    is_carried = a.is_carried and b.is_carried
    is_same, apart, size = _apart(a.summary, b.summary)
    last_places = [*map(last_place_of, (a.type, b.type)), coarse if is_carried else 0.0]
    ratio = _ratio(apart, max(last_places) * size / 2)
    if not a.is_read:  # then only whether they are the same is known
        ratio = 0.0 if is_same or is_carried or a.type != b.type else MOST
    ratio = MOST if a.summary[BAD] != b.summary[BAD] else ratio / calls if is_carried else ratio
    phase = "carried" if is_carried else "argument"
    return Parting(a.name, phase, a.name, "", a.type, (), (), apart / size if size else 0.0, ratio)


def parting(a: Occurrence, b: Occurrence, alone: tuple[str, ...], drift: float, is_coarse: bool) -> Parting:
    _, apart, size = _apart(a.summary, b.summary)
    kind = -1 if is_coarse else 0
    last_place = max(last_place_of(a.value.type), last_place_of(b.value.type))
    noise = max(float(a.noise[kind]), float(b.noise[kind]), LEAST_NOISE * size * last_place)
    ratio = MOST if a.summary[BAD] != b.summary[BAD] else _ratio(apart, drift * noise)
    loops = tuple(zip(a.value.loops, a.lengths, strict=False))
    return Parting(
        a.value.address, a.value.phase, a.value.expression, a.value.line, a.value.type, a.iterations, loops,
        apart / size if size else 0.0, ratio, alone, a.value.phase != "step" and a.value.around > 0,
        a.value.operation if a.value.phase in (RESULT, GRADIENT) else "",
    )  # fmt: skip


def _apart(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> tuple[bool, float, float]:
    """Of the summaries of two arrays: whether they are the same, the norm of the difference, and that of the larger."""
    is_same = np.array_equal(one[[*BITS, BAD]], other[[*BITS, BAD]])
    apart = 0.0 if is_same else float(np.sqrt(squares(one[SKETCH], other[SKETCH])))
    return is_same, apart, float(max(one[NORM], other[NORM]))


def _ratio(apart: float, noise: float) -> float:
    ratio = apart / noise if noise else (np.inf if apart else 0.0)
    return ratio if ratio < MOST else MOST
