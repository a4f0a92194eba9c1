"""The model behind `jaxviz.memory`: which values a gradient has in memory at each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal as OneOf

import numpy as np

from jaxviz.analysis.walk import call_name, location_of
from jaxviz.derivation import Derivation
from jaxviz.higher_order import bodies, of
from jaxviz.ir.origin import Location
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.report.tables import nbytes, type_text

Kind = OneOf["argument", "constant", "residual", "temporary", "cotangent", "result"]
KINDS: tuple[Kind, ...] = ("argument", "constant", "residual", "temporary", "cotangent", "result")


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory of one value, and of those that only show it in another shape."""

    nbytes: int
    kind: Kind
    born: int
    last: int
    equation: Equation | None = None
    within: tuple[Equation, ...] = ()
    type: str = ""
    name: str = ""
    location: Location | None = None
    residuals: tuple[int, ...] = ()
    is_free: bool = False
    """Whether nothing holds it: XLA makes a broadcast where it is read."""
    last_forward: int = -1
    """The last step of the forward pass that needs it."""


@dataclass(frozen=True, slots=True)
class Live:
    """A value in memory, and the steps during which it is there.

    >>> timeline = jaxviz.memory(loss, params, x)
    >>> max(timeline.values, key=lambda v: v.nbytes * (v.last - v.born + 1))

    Args:
      what: the path of an argument, or the operation that makes it.
      type: its type; '' for what the body of a loop takes inside.
      nbytes: its size in bytes.
      kind: what it is there for.
      born: the first step at which it is in memory.
      last: the last one; the number of steps if it is still there when all is done.
      equation: what makes it, at step `born`; None for an input.
      location: the user's line; None for an argument.
      residuals: the numbers of the residuals that it holds: several if one shows another in a new shape.
    """

    what: str
    type: str
    nbytes: int
    kind: Kind
    born: int
    last: int
    equation: Equation | None = None
    location: Location | None = None
    residuals: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """The time of one equation.

    Args:
      equation: in the order of evaluation, those of called functions in the place of the call.
      within: the equations that hold the program it stands in, outermost first.
      is_backward: whether it is part of the backward program.
      nbytes: bytes alive while it runs, by kind in the order of `KINDS`.
    """

    equation: Equation
    within: tuple[Equation, ...]
    is_backward: bool
    nbytes: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.nbytes)


_VIEWS = frozenset(
    "reshape squeeze expand_dims stop_gradient copy_p optimization_barrier bitcast_convert_type pvary name".split()
)
_FREE = frozenset(("broadcast_in_dim", "iota"))
_WRITTEN_INTO = frozenset(("temporary", "cotangent", "residual", "argument"))
"""What results may be written into where it dies; an argument only does if it is donated."""
_WRITES_INTO = frozenset(("dynamic_update_slice", "scatter", "scatter-add", "scatter_mul", "select_n"))


class Model:
    """Walks the forward and the backward program, noting when each value comes into memory and when it is read for the last time."""

    def __init__(self, derivation: Derivation, donated: tuple[bool, ...]):
        self.derivation = derivation
        self.donated = donated
        self.buffers: list[Buffer] = []
        self.steps: list[tuple[Equation, tuple[Equation, ...], bool]] = []
        self.inside: dict[int, int] = {}
        """Bytes that the bodies of a loop or a branch take for themselves, by step."""
        self.reads: list[list[Buffer]] = []
        """What each step reads."""
        self.of_forward: dict[Atom, Buffer] = {}
        """The memory of each value of the forward program."""
        self.into: list[tuple[int, list[Buffer], Buffer]] = []
        """For steps that may write into an operand: the step, the operands of the result's size, and the result."""
        self.is_backward = False
        self.times = 1
        """On how many devices the program under way runs; sizes are those of all together."""

    def run(self) -> tuple[Step, ...]:
        """Walks both programs."""
        derivation = self.derivation
        forward, backward = derivation.forward, derivation.backward
        primal = derivation.primal
        env = self.of_forward
        for v, name in zip(forward.invars, primal.arg_names, strict=True):
            env[v] = self.new(v, "argument", name=name)
        for v in forward.constvars:
            env[v] = self.new(v, "constant", name="a constant, closed over")
        self.walk(forward, env, ())
        n = derivation.n_residuals
        n_results = len(forward.outvars) - n
        saved = [self.read(env, a) for a in derivation.linearized.residuals]
        results = [self.read(env, a) for a in forward.outvars[:n_results]]
        turn = len(self.steps)
        for buffer in self.buffers:
            buffer.last_forward = buffer.last
        for buffer in results:
            buffer.last_forward = turn
        self.is_backward = True
        back: dict[Atom, Buffer] = dict(zip(backward.invars[:n], saved, strict=True))
        for v in backward.invars[n:]:
            back[v] = self.new(v, "cotangent", name="the cotangent that comes in")
        for v in backward.constvars:
            back[v] = self.new(v, "constant", name="a constant of a rule")
        for i, (buffer, residual) in enumerate(zip(saved, derivation.residuals, strict=True)):
            buffer.is_free = False
            buffer.residuals += (i,)
            if buffer.kind == "temporary":
                buffer.kind = "residual"
                buffer.name = residual.expression.split("(")[0]
                buffer.location, buffer.type = residual.location, residual.type
            buffer.last = max(buffer.last, turn - 1)
        self.walk(backward, back, ())
        results += [self.read(back, a) for a in backward.outvars]
        end = len(self.steps)
        for buffer in results:
            buffer.is_free = False
            buffer.last = end
            if buffer.kind in ("temporary", "cotangent"):
                buffer.kind = "result"
        for v, is_donated in zip(forward.invars, self.donated, strict=True):
            if not is_donated:
                env[v].last = end
        for buffer in self.buffers:
            if buffer.kind == "constant":
                buffer.last = end
        return self.finished()

    def new(
        self,
        atom: Atom,
        kind: Kind,
        equation: Equation | None = None,
        within: tuple[Equation, ...] = (),
        name: str = "",
    ) -> Buffer:
        born = len(self.steps) - (equation is not None)
        buffer = Buffer(self.times * nbytes(atom.aval), kind, born, born, equation, within, type_text(atom.aval), name)
        if equation is not None:
            buffer.is_free = is_made_where_read(equation)
        self.buffers.append(buffer)
        return buffer

    def read(self, env: dict[Atom, Buffer], atom: Atom) -> Buffer:
        if isinstance(atom, Literal) or atom not in env:
            env[atom] = self.new(atom, "constant", name="a number")
        return env[atom]

    def walk(self, program: Program, env: dict[Atom, Buffer], within: tuple[Equation, ...]) -> None:
        for e in _put_off(program):
            if of(e).kind in ("call", "devices"):
                (body,) = bodies(e)
                inner: dict[Atom, Buffer] = {
                    v: self.read(env, e.invars[i]) for v, i in zip(body.program.invars, body.operands, strict=True)
                }
                for v in body.program.constvars:
                    inner[v] = self.new(v, "constant", name="a constant, closed over")
                times, self.times = self.times, self.times * of(e).n_devices(e.operation)
                self.walk(body.program, inner, (*within, e))
                self.times = times
                for outer, result in zip(e.outvars, body.program.outvars, strict=True):
                    env[outer] = self.read(inner, result)
                continue
            self.steps.append((e, within, self.is_backward))
            now = len(self.steps) - 1
            operands = [self.read(env, a) for a in e.invars if isinstance(a, Var)]
            self.reads.append(operands)
            for buffer in operands:
                buffer.last = now
            if is_view(e):
                env[e.outvars[0]] = operands[0]
                continue
            takes = self.taken(e, operands)
            for v in e.outvars:
                env[v] = self.new(v, self.kind_of(e), e, within)
            if takes is not None and len(e.outvars) == 1:
                self.into.append((now, takes, env[e.outvars[0]]))
            inner_peak = self.peak_inside(e)
            if inner_peak:
                self.inside[now] = inner_peak

    def taken(self, e: Equation, operands: Sequence[Buffer]) -> list[Buffer] | None:
        if not may_write_into_an_operand(e):
            return None
        return [b for b in operands if b.nbytes == self.times * nbytes(e.outvars[0].aval)]

    def kind_of(self, e: Equation) -> Kind:
        if not self.is_backward:
            return "temporary"
        role = e.origin.role if e.origin is not None else "cotangent"
        return "cotangent" if role in ("cotangent", "accumulation", "zero") else "temporary"

    def peak_inside(self, e: Equation) -> int:
        """Bytes that the body of a loop takes for one iteration, or the largest branch of a cond, beside operands and results."""
        peaks = []
        for body in bodies(e):
            model = Model(self.derivation, ())
            given: dict[Atom, Buffer] = {
                v: Buffer(0, "argument", 0, 0) for v in (*body.program.invars, *body.program.constvars)
            }
            model.walk(body.program, given, ())
            peaks.append(max(map(sum, model.alive_by_step().tolist()), default=0))
        return max(peaks, default=0)

    def settle(self) -> None:
        """Lets results be written into operands that die there, each operand once."""
        used: set[int] = set()
        for now, candidates, result in self.into:
            for buffer in candidates:
                is_there = buffer.born < now or buffer.kind == "argument"
                dies = buffer.last == now and is_there and id(buffer) not in used
                if dies and buffer.kind in _WRITTEN_INTO and not buffer.is_free and not result.is_free:
                    used.add(id(buffer))
                    buffer.last = now - 1
                    break

    def alive_by_step(self) -> np.ndarray:
        self.settle()
        n = len(self.steps)
        most = sum(b.nbytes for b in self.buffers) + sum(self.inside.values())
        # Scans in each other stack more than 64 bits count, and NumPy does not say so.
        change = np.zeros((n + 1, len(KINDS)), np.int64 if most < 2**63 else object)
        for b in self.buffers:
            if b.nbytes and not b.is_free and b.last >= b.born:
                change[min(b.born, n), KINDS.index(b.kind)] += b.nbytes
                if b.last + 1 <= n:
                    change[b.last + 1, KINDS.index(b.kind)] -= b.nbytes
        alive: np.ndarray = np.cumsum(change, axis=0)[:n]
        for step, inside in self.inside.items():
            alive[step, KINDS.index("temporary")] += inside
        return alive

    def finished(self) -> tuple[Step, ...]:
        """What each step has in memory, all of them walked."""
        alive = self.alive_by_step()
        return tuple(
            Step(e, within, is_backward, tuple(row))
            for (e, within, is_backward), row in zip(self.steps, alive.tolist(), strict=True)
        )

    def values(self) -> Iterator[Live]:
        """What takes memory at some step: a value, or the body of a loop while it runs."""
        for b in self.buffers:
            if not b.nbytes or b.is_free or not b.born <= min(b.last, len(self.steps) - 1):
                continue
            location = b.location
            if location is None and b.equation is not None:
                location = location_of(b.equation, b.within)
            what = b.name or what_makes(b.equation, b.within)
            yield Live(what, b.type, b.nbytes, b.kind, b.born, b.last, b.equation, location, b.residuals)
        for step, taken in self.inside.items():
            e, within, _ = self.steps[step]
            inside = f"inside {what_makes(e, within)}"
            yield Live(inside, "", taken, "temporary", step, step, e, location_of(e, within))


def is_view(e: Equation) -> bool:
    """Whether the result is the operand's memory in another shape."""
    return e.primitive.name in _VIEWS and len(e.outvars) == 1 and sum(isinstance(a, Var) for a in e.invars) == 1


def is_made_where_read(e: Equation) -> bool:
    """Whether nothing holds the result: XLA makes a broadcast where it is read."""
    return e.primitive.name in _FREE


def may_write_into_an_operand(e: Equation) -> bool:
    """Whether the result may take the memory of an operand of its size that dies there."""
    if len(e.outvars) != 1 or e.programs:
        return False
    shape = getattr(e.outvars[0].aval, "shape", None)
    is_elementwise = all(getattr(a.aval, "shape", None) in (shape, ()) for a in e.invars)
    return is_elementwise or e.primitive.name in _WRITES_INTO


def _put_off(program: Program) -> Sequence[Equation]:
    """The equations with those that are computed again each right before the first that needs it.

    The jaxpr has them all before the first cotangent is formed, but nothing ties them to that place, and a scheduler that minds memory
    does not leave them there.
    """
    order = {e: i for i, e in enumerate(program.equations)}
    waiting = {e for e in order if e.origin is not None and e.origin.role == "recomputation" and not e.effects}
    if not waiting:
        return program.equations
    maker: dict[Atom, Equation] = {v: e for e in waiting for v in e.outvars}
    placed: list[Equation] = []
    for e in order:
        if e in waiting:
            continue
        needed: set[Equation] = set()
        pending = [*e.invars]
        while pending:
            made_by = maker.get(pending.pop())
            if made_by is not None and made_by in waiting and made_by not in needed:
                needed.add(made_by)
                pending += made_by.invars
        placed += sorted(needed, key=order.__getitem__)
        placed.append(e)
        waiting -= needed
    return [*placed, *(e for e in order if e in waiting)]


def what_makes(equation: Equation | None, within: Sequence[Equation]) -> str:
    if equation is None:
        return ""
    inside = " in ".join(dict.fromkeys(call_name(e) for e in reversed(within)))
    return f"{equation.primitive.name}{f' in {inside}' if inside else ''}"
