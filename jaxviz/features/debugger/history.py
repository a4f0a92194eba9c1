"""The values that a run keeps, within a budget: those that the run does not need are freed first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxviz.features.debugger.partial_loops import PartialLoop
from jaxviz.features.debugger.positions import Level, Position
from jaxviz.features.debugger.replay import is_effectful
from jaxviz.features.debugger.summaries import fingerprint
from jaxviz.ir.syntax import Atom, Program, Var

Place = tuple[str, tuple[Level, ...]]
"""A run of a program: the stage, and the path to it."""


@dataclass(frozen=True)
class Uses:
    """Where each variable of a program is computed and last read."""

    computed: Mapping[Var, int]
    last: Mapping[Atom, int]

    @staticmethod
    def of(program: Program) -> Uses:
        computed = {v: i for i, e in enumerate(program.equations) for v in e.outvars}
        last: dict[Atom, int] = {a: i for i, e in enumerate(program.equations) for a in e.invars}
        last.update(dict.fromkeys(program.outvars, len(program.equations)))
        return Uses(computed, last)


@dataclass(eq=False)
class ProgramRun:
    """One run of a program.

    Args:
      program: the program.
      env: its inputs and constants, and the values computed so far that are still kept.
      rows: its inputs that are slices of what a scan reads.
      reached: how many of its equations have run.
      prints: fingerprints of values that are no longer kept.
    """

    program: Program
    uses: Uses
    env: dict[Atom, Any]
    rows: Sequence[Any] = ()
    reached: int = 0
    prints: dict[Atom, np.ndarray] = field(default_factory=dict)

    @property
    def computed(self) -> list[Var]:
        return [v for v in self.env if v in self.uses.computed]  # type: ignore[misc]


class History:
    """The values kept for going back.

    Args:
      budget: the bytes that values may take.
    """

    def __init__(self, budget: int):
        self.budget = budget
        self.frames: dict[Place, ProgramRun] = {}
        self.left: dict[Place, tuple[int, dict[Atom, np.ndarray]]] = {}
        """For frames that are not kept: how many equations have run, and the fingerprints of the values."""
        self.loops: dict[tuple[str, tuple[Level, ...], int], PartialLoop] = {}
        self.nbytes = 0
        """Bytes of the values, without inputs and constants."""
        self.users: dict[int, tuple[int, int]] = {}

    def hold(self, x: Any) -> None:
        """Counts a value, once however often it is kept."""
        n, size = self.users.get(id(x), (0, 0))
        if n == 0:
            size = int(getattr(x, "nbytes", 0))
            self.nbytes += size
        self.users[id(x)] = (n + 1, size)

    def release(self, x: Any) -> None:
        """Stops counting it, if nothing else refers to it."""
        n, size = self.users.pop(id(x), (0, 0))
        if n > 1:
            self.users[id(x)] = (n - 1, size)
        else:
            self.nbytes -= size

    def drop(self, frame: ProgramRun, var: Var) -> None:
        """Frees a value, but keeps its fingerprint."""
        if var in frame.env and not is_effectful(frame.program.equations[frame.uses.computed[var]]):
            x = frame.env.pop(var)
            if var not in frame.prints:
                frame.prints[var] = fingerprint(x)
            self.release(x)

    def settle(self, position: Position) -> None:
        """Frees values until they are well within the budget, if they exceed it."""
        if self.nbytes <= self.budget:
            return
        target = int(self.budget * 0.75)
        on_path = [(position.stage, position.path[:depth]) for depth in range(len(position.path) + 1)]
        for place in [p for p in self.loops if not self._needed(p, on_path)]:
            loop = self.loops[place]
            if self.nbytes > target and not is_effectful(loop.equation):
                del self.loops[place]
                for x in (*loop.ys, *(x for k, carry in loop.carries.items() if k for x in carry)):
                    self.release(x)
        self.free(position, target, None)

    def free(self, p: Position, target: int, running: ProgramRun | None) -> None:
        """Frees values until at most `target` bytes are kept, or only values that are needed to continue."""
        on_path = [(p.stage, p.path[:depth]) for depth in range(len(p.path) + 1)]
        for key in [k for k in self.frames if k[1] and k not in on_path]:
            frame = self.frames[key]
            if self.nbytes <= target:
                return
            if frame is not running and not any(map(is_effectful, frame.program.equations)):
                for v in frame.computed:
                    self.drop(frame, v)
                for x in frame.rows:
                    self.release(x)
                self.left[key] = (frame.reached, frame.prints)
                del self.frames[key]
        for place, loop in list(self.loops.items()):
            if self.nbytes <= target:
                return
            self.thin(loop, self._needed(place, on_path))
        for coarser in (1, 4, 16, 0):
            for key, frame in self.frames.items():
                n = len(frame.program.equations)
                here = frame.reached
                if key in on_path and frame is not running:
                    depth = on_path.index(key)
                    here = p.path[depth].index if depth < len(p.path) else p.index
                every = math.ceil(math.sqrt(n)) * coarser
                for v in frame.computed:
                    if self.nbytes <= target:
                        return
                    born, last = frame.uses.computed[v], frame.uses.last.get(v, -1)
                    is_live = born < here <= last or (frame is running and born < frame.reached <= last)
                    if not is_live and not (every and last // every * every > born):
                        self.drop(frame, v)

    def _needed(
        self, place: tuple[str, tuple[Level, ...], int], on_path: Sequence[tuple[str, tuple[Level, ...]]]
    ) -> tuple[int, ...]:
        stage, path, index = place
        for s, q in on_path:
            if s == stage and q[: len(path)] == path and len(q) > len(path) and q[len(path)].index == index:
                iteration = q[len(path)].iteration
                assert iteration is not None
                return (self.loops[place].turned(iteration),)
        return ()

    def thin(self, loop: PartialLoop, needed: tuple[int, ...]) -> None:
        """Keeps every other one of a loop's carries, and the last."""
        if is_effectful(loop.equation):
            return
        ks = sorted(loop.carries)
        for k in ks[1:-1:2]:
            if k not in needed:
                carry = loop.carries.pop(k)
                loop.prints.setdefault(k, list(map(fingerprint, carry)))
                for x in carry:
                    self.release(x)
