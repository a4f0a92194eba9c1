"""The values that a run keeps, within a budget: those that the run does not need are freed first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from jaxviz.features.debugger.positions import Level, Position, described
from jaxviz.features.debugger.summaries import fingerprint
from jaxviz.higher_order import Primitive, of
from jaxviz.higher_order.jit import JIT
from jaxviz.higher_order.while_loop import WHILE
from jaxviz.ir import compat
from jaxviz.ir.syntax import Atom, Equation, Operation, Program, Var

Place = tuple[str, tuple[Level, ...]]
"""A run of a program: the stage, and the path to it."""


_SEGMENT = object()


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


@dataclass(eq=False)
class PartialLoop:
    """A scan or a while loop that runs in segments.

    Args:
      equation: the loop.
      operands: its operands.
      carries: the carry at the start of an iteration, counted in execution order.
      ys: a scan's stacked results, `filled` for the iterations that have run.
      length: the number of iterations; for a while loop None until it has ended once.
    """

    equation: Equation
    operands: list[Any]
    carries: dict[int, list[Any]]
    length: int | None
    ys: list[Any] = field(default_factory=list)
    filled: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    prints: dict[int, list[np.ndarray]] = field(default_factory=dict)

    @property
    def kind(self) -> Primitive:
        return of(self.equation)

    @property
    def is_scan(self) -> bool:
        return self.kind is not WHILE

    @property
    def body(self) -> Program:
        return self.kind.bodies(self.equation.operation)[-1].program

    @property
    def is_mapped(self) -> bool:
        """Whether it is a while loop with a predicate per example, in which finished examples keep their carry."""
        return not self.is_scan and WHILE.is_mapped(self.equation.operation)

    def turned(self, iteration: int) -> int:
        """Maps an iteration's number to its position in execution order, and back."""
        return self.kind.turned(self.equation.operation, iteration)

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of operands before the carry, and the size of the carry."""
        before, n = self.kind.carry(self.equation.operation)
        operands = self.kind.bodies(self.equation.operation)[-1].operands
        return (operands[before] if before < len(operands) else len(self.operands)), n

    def inputs(self, k: int, carry: list[Any]) -> list[Any]:
        """The body's inputs in the k-th iteration."""
        return self.kind.inputs(self.equation.operation, self.operands, k, carry)

    @property
    def segment(self) -> Callable[..., Any]:
        """A function that runs some of the iterations, compiled once for all loops of this operation."""
        operation = self.equation.operation
        segment = operation.rules.get(_SEGMENT)
        if segment is None:
            segment = operation.rules[_SEGMENT] = jax.jit(self.kind.segment(operation))
        run: Callable[..., Any] = segment
        return run


class History:
    """The values kept for going back, which may take `budget` bytes."""

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


# --- equations that run again -----------------------------------------------------------------------------------------


def differs(equation: Equation) -> str:
    """The message that an equation had another result the second time, with possible reasons."""
    from_python = sorted({e.primitive.name for e in equations_in(equation) if "callback" in e.primitive.name})
    where = described(equation)
    why = f" The `{from_python[0]}` in it calls Python, which must return the same value again." if from_python else ""
    return (
        f"{where} gave a different value when it was run again.{why} "
        "The values shown may differ from those of the first run."
    )


def equations_in(equation: Equation) -> Iterator[Equation]:
    """An equation, and all equations nested in it."""
    yield equation
    for _, program in equation.programs:
        for _, inner in program.walk():
            yield inner


def may_differ(equation: Equation) -> bool:
    """Whether running an equation again may have a different result, since it calls Python or has effects."""
    return any(is_effectful(e) or "callback" in e.primitive.name for e in equations_in(equation))


def is_effectful(equation: Equation) -> bool:
    """Whether it has effects other than its results, so that it is not run again."""
    return any(map(compat.is_real_effect, equation.effects))


def keeping_operands(operation: Operation) -> Operation:
    """A jit without donation, since its operands are kept for going back."""
    if of(operation) is not JIT or not any(operation.params["donated_invars"]):
        return operation
    params = {**operation.params, "donated_invars": (False,) * len(operation.in_avals)}
    return replace(operation, params=params, rules={})
