"""Runs programs equation by equation: forward and back in time, into, out of and over bodies.

A place in the run is data, a `Position`, which determines the values there. So a move computes the new position and
runs what is missing. Computed values are kept within a budget. Beyond it, values that are no longer needed are
freed first; they are recomputed from the remaining ones, which are enough to resume from every few equations, and every
few iterations of a loop.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxviz.features.debugger.history import (
    History,
    PartialLoop,
    ProgramRun,
    Uses,
    differs,
    keeping_operands,
    may_differ,
)
from jaxviz.features.debugger.positions import Level, Position, StepperStage, SteppingError, can_enter, enterable
from jaxviz.features.debugger.summaries import fingerprint, same_fingerprint
from jaxviz.higher_order import bodies, is_choice, is_loop, of
from jaxviz.higher_order.scan import with_row
from jaxviz.higher_order.while_loop import WHILE
from jaxviz.ir import compat
from jaxviz.ir.emit import as_function
from jaxviz.ir.errors import message_of
from jaxviz.ir.pretty import describe_equation
from jaxviz.ir.syntax import Atom, Equation, Literal, Operation, Program, Var
from jaxviz.transforms.driver import call_of

_jit: Callable[[Any], Any] = jax.jit


class Machine:
    """Runs stages in sequence, from position to position, with at most `budget` bytes of values to go back."""

    def __init__(self, stages: Sequence[StepperStage], budget: int):
        self.stages = {s.name: s for s in stages}
        self.order = [s.name for s in stages]
        self.history = History(budget)
        self.notes: list[str] = []
        """What differed from expectations, such as a value that changed when it was recomputed."""
        self.position = Position(self.order[0])
        self._uses: dict[Program, Uses] = {}
        self._copied = compat.Copies()
        """The run reads and writes copies of the user's references."""
        self._functions: dict[Operation, Callable[..., Any]] = {}
        self._mesh = jax.sharding.get_mesh()
        """The mesh that the user had set; a move may come later, when it is no longer set."""

    # --- position -----------------------------------------------------------------------------------------------------

    def program_at(self, position: Position) -> Program:
        """The program that contains a position."""
        program = self.stages[position.stage].program
        for level in position.path:
            program = dict(program.equations[level.index].programs)[level.body]
        return program

    def holders(self, position: Position) -> tuple[Equation, ...]:
        """The enclosing equations, outermost first."""
        program, holders = self.stages[position.stage].program, []
        for level in position.path:
            holders.append(program.equations[level.index])
            program = dict(holders[-1].programs)[level.body]
        return tuple(holders)

    def sort_key(self, position: Position) -> tuple[Any, ...]:
        """Earlier positions have smaller keys."""
        key: list[Any] = [self.order.index(position.stage)]
        path: tuple[Level, ...] = ()
        for level in position.path:
            k = 0
            if level.iteration is not None:
                equation = self.program_at(Position(position.stage, path)).equations[level.index]
                k = of(equation).turned(equation.operation, level.iteration)
            key += [level.index, k]
            path = (*path, level)
        return (*key, position.index, -1)

    @property
    def is_done(self) -> bool:
        p = self.position
        return not p.path and p.stage == self.order[-1] and p.index == len(self.stages[p.stage].program.equations)

    def next_equation(self) -> Equation | None:
        """The equation that runs next; None at the end of a program."""
        equations = self.program_at(self.position).equations
        return equations[self.position.index] if self.position.index < len(equations) else None

    def branch(self, equation: Equation, stage: str, path: tuple[Level, ...]) -> int:
        """The number of the branch that a cond takes."""
        index = int(self._read(self.frame(stage, path), equation.invars[0]))
        return min(max(index, 0), len(equation.params["branches"]) - 1)

    def length(self, depth: int = -1) -> int | None:
        """The number of iterations of the loop at that depth of the path, if known."""
        p = self.position
        depth %= len(p.path)
        return self._loop(p.stage, p.path[:depth], p.path[depth].index).length

    # --- moves --------------------------------------------------------------------------------------------------------

    def next(self) -> None:
        """Runs one equation, including everything nested in it; at the end of a body, continues with the next
        iteration, or leaves it."""
        p = self.position
        frame = self.frame(p.stage, p.path)
        if p.index < len(frame.program.equations):
            self._advance(frame, p.index + 1)
            self._arrive(replace(p, index=p.index + 1))
        else:
            self._arrive(self._after_body(p))

    def into(self) -> None:
        """Enters the program that the next equation runs; if there is none, runs the equation."""
        p = self.position
        inner = self.entry(p)
        if inner is None:
            self.next()
        else:
            self.goto(inner)

    def entry(self, p: Position) -> Position | None:
        """The first position in the program that the next equation runs; None if there is none."""
        frame = self.frame(p.stage, p.path)
        self._advance(frame, p.index)
        if p.index == len(frame.program.equations) or not can_enter(equation := frame.program.equations[p.index]):
            return None
        iteration = None
        if is_loop(equation):
            loop = self._loop(p.stage, p.path, p.index)
            if loop.length == 0 or not (loop.is_scan or self._goes_on(loop, 0)):
                return None
            iteration = loop.turned(0)
        programs = list(enterable(equation))
        label, _ = programs[self.branch(equation, p.stage, p.path) if is_choice(equation) else 0]
        return Position(p.stage, (*p.path, Level(p.index, label, iteration)), 0)

    def out(self) -> None:
        """Runs the rest of the program that contains the position; for a loop, all remaining iterations.

        At the end of a stage, goes to the next.
        """
        p = self.position
        frame = self.frame(p.stage, p.path)
        self._advance(frame, len(frame.program.equations))
        if p.path:
            self._record(p)
            self._leave(p)
            self._arrive(Position(p.stage, p.path[:-1], p.path[-1].index + 1))
        elif p.index == len(frame.program.equations):
            self.next()
        else:
            self._arrive(replace(p, index=len(frame.program.equations)))

    def back(self, into: bool = False) -> None:
        """Goes back by one equation of the same program; from the start of a body to the previous iteration, or out of
        it.

        Args:
          into: whether to go to the end of the previous equation's nested program, if it can be stepped into.
        """
        p = self.position
        if p.index > 0:
            before = replace(p, index=p.index - 1)
            inner = self.entry(before) if into else None
            self.goto(before if inner is None else self._last(inner))
        elif p.path:
            level = p.path[-1]
            before = Position(p.stage, p.path[:-1], level.index)
            if level.iteration is not None:
                loop = self._loop(p.stage, p.path[:-1], level.index)
                k = loop.turned(level.iteration)
                if k > 0:
                    path = (*p.path[:-1], replace(level, iteration=loop.turned(k - 1)))
                    before = Position(p.stage, path, len(loop.body.equations))
            self.goto(before)
        elif p.stage != self.order[0]:
            stage = self.order[self.order.index(p.stage) - 1]
            self.goto(Position(stage, (), len(self.stages[stage].program.equations)))

    def _last(self, inner: Position) -> Position:
        """The last position in the body that `inner` is the first position in."""
        level = inner.path[-1]
        if level.iteration is not None:
            loop = self._loop(inner.stage, inner.path[:-1], level.index)
            if loop.length is None:
                self._finish(loop)
            assert loop.length is not None
            level = replace(level, iteration=loop.turned(loop.length - 1))
        path = (*inner.path[:-1], level)
        return Position(inner.stage, path, len(self.program_at(inner).equations))

    def goto(self, position: Position) -> None:
        """Goes to any position, ahead or back; whatever is missing runs at once.

        Raises:
          SteppingError: the position does not exist: a branch that is not taken, an iteration that the loop does not
            reach.
        """
        if not isinstance(position, Position):
            raise SteppingError(f"{position!r} is not a Position; pass `position` of an earlier stop.")
        self._check(position)
        self._run_to(position)
        self._arrive(position)

    def _run_to(self, position: Position) -> ProgramRun:
        """Runs everything before a position; returns its frame."""
        for depth in range(len(position.path)):
            frame = self.frame(position.stage, position.path[:depth])
            self._advance(frame, position.path[depth].index)
        frame = self.frame(position.stage, position.path)
        self._advance(frame, position.index)
        return frame

    def _check(self, position: Position) -> None:
        if position.stage not in self.stages:
            raise SteppingError(f"There is no {position.stage} program here, only {', '.join(self.order)}.")
        program = self.stages[position.stage].program
        for level in position.path:
            equation = program.equations[level.index] if 0 <= level.index < len(program.equations) else None
            inside = dict(enterable(equation)) if equation is not None else {}
            if level.body not in inside:
                raise SteppingError(f"Equation {level.index} of {program.name} has no {level.body} to step into.")
            assert equation is not None
            if (level.iteration is None) == is_loop(equation):
                raise SteppingError(f"A position has an iteration inside a loop and only there; got {level}.")
            program = inside[level.body]
        if not 0 <= position.index <= len(program.equations):
            raise SteppingError(
                f"{program.name} has {len(program.equations)} equations, so there is no {position.index}."
            )

    def _arrive(self, position: Position) -> None:
        self.position = position
        self.history.settle(self.position)

    def _after_body(self, p: Position) -> Position:
        """The position after the end of a program."""
        if not p.path:
            i = self.order.index(p.stage) + 1
            return Position(self.order[i]) if i < len(self.order) else p
        self._record(p)
        *outer, level = p.path
        if level.iteration is not None:
            loop = self._loop(p.stage, tuple(outer), level.index)
            k = loop.turned(level.iteration) + 1
            if k < loop.length if loop.length is not None else self._goes_on(loop, k):
                return Position(p.stage, (*outer, replace(level, iteration=loop.turned(k))), 0)
        self._leave(p)
        return Position(p.stage, tuple(outer), level.index + 1)

    def _record(self, p: Position) -> None:
        """Passes the results of an iteration on to its loop."""
        *outer, level = p.path
        if level.iteration is None:
            return
        loop = self._loop(p.stage, tuple(outer), level.index)
        k = loop.turned(level.iteration)
        frame = self.frame(p.stage, p.path)
        outs = [self._read(frame, a) for a in frame.program.outvars]
        n = loop.sizes[1]
        if k + 1 not in loop.carries:
            carry = outs[:n]
            if loop.is_mapped:
                carry = self._run(
                    loop.equation,
                    WHILE.carry_after(loop.equation.operation),
                    loop.operands,
                    self._carry(loop, k),
                    carry,
                )
            self._keep_carry(loop, k + 1, carry)
        if loop.is_scan and not loop.filled[k]:
            ys = [with_row(y, row, level.iteration) for y, row in zip(self._ys(loop), outs[n:], strict=True)]
            self._set_ys(loop, ys)
            loop.filled[k] = True

    def _leave(self, p: Position) -> None:
        """Passes the results of a finished body to the enclosing equation."""
        *outer, level = p.path
        holder = self.frame(p.stage, tuple(outer))
        equation = holder.program.equations[level.index]
        if holder.reached > level.index and not may_differ(equation):
            return  # it has run before: continue with the values of that run
        if level.iteration is not None:
            outs = self._finish(self._loop(p.stage, tuple(outer), level.index))
        else:
            frame = self.frame(p.stage, p.path)
            outs = [self._read(frame, a) for a in frame.program.outvars]
        if holder.reached > level.index:
            self._compare(holder, equation, outs)
        else:
            self._bind(holder, equation, outs)
            holder.reached = level.index + 1

    # --- values -------------------------------------------------------------------------------------------------------

    def value(self, position: Position, atom: Atom) -> Any:
        """A value that the run has passed, in the program that contains a position."""
        return self._read(self._run_to(position), atom)

    def results_before(self, position: Position) -> list[Any]:
        """The results of the equation before a position."""
        frame = self._run_to(position)
        return [self._read(frame, v) for v in frame.program.equations[position.index - 1].outvars]

    def results(self, stage: str) -> list[Any]:
        """The results of a stage, run to its end."""
        frame = self.frame(stage, ())
        self._advance(frame, len(frame.program.equations))
        return [self._read(frame, a) for a in frame.program.outvars]

    def frame(self, stage: str, path: tuple[Level, ...]) -> ProgramRun:
        """The run of the program at the end of a path."""
        key = (stage, path)
        frame = self.history.frames.get(key)
        if frame is not None:
            return frame
        rows: Sequence[Any] = ()
        if not path:
            program = self.stages[stage].program
            inputs = list(self.stages[stage].inputs(self))
        else:
            *outer, level = path
            holder = self.frame(stage, tuple(outer))
            self._advance(holder, level.index)
            equation = holder.program.equations[level.index]
            program = dict(equation.programs)[level.body]
            if level.iteration is not None:
                loop = self._loop(stage, tuple(outer), level.index)
                k = loop.turned(level.iteration)
                inputs = loop.inputs(k, self._carry(loop, k))
                if not loop.is_scan and not self._goes_on(loop, k):
                    raise SteppingError(_no_iteration(loop, k))
                rows = inputs[sum(loop.sizes) :] if loop.is_scan else ()
            else:
                if is_choice(equation):
                    taken = self.branch(equation, stage, tuple(outer))
                    if level.body != f"branches[{taken}]":
                        raise SteppingError(f"The cond takes branch {taken}, so {level.body} does not run.")
                (body,) = (b for b in bodies(equation) if b.label == level.body)
                inputs = [self._read(holder, equation.invars[i]) for i in body.operands]
        env: dict[Atom, Any] = dict(zip(program.constvars, map(self._copied, program.consts), strict=True))
        env.update(zip(program.invars, map(self._copied, inputs), strict=True))
        if program not in self._uses:
            self._uses[program] = Uses.of(program)
        run = ProgramRun(program, self._uses[program], env, rows, *self.history.left.pop(key, (0, {})))
        for x in rows:
            self.history.hold(x)
        self.history.frames[key] = run
        return run

    def _read(self, frame: ProgramRun, atom: Atom) -> Any:
        if isinstance(atom, Literal):
            return atom.val
        if atom not in frame.env:
            self._replay(frame, atom)
        return frame.env[atom]

    def _advance(self, frame: ProgramRun, index: int) -> None:
        """Runs a frame's equations up to one."""
        while frame.reached < index:
            equation = frame.program.equations[frame.reached]
            operands = [self._read(frame, a) for a in equation.invars]
            self._bind(frame, equation, self._execute(equation, operands))
            frame.reached += 1
            if self.history.nbytes > self.history.budget:
                self.history.free(self.position, int(self.history.budget * 0.75), frame)

    def _replay(self, frame: ProgramRun, var: Var) -> None:
        """Recomputes a value from those that are kept."""
        computed = frame.uses.computed
        needed: set[int] = set()
        pending: list[Atom] = [var]
        while pending:
            i = computed.get(pending.pop())  # type: ignore[arg-type]
            if i is not None and i not in needed:
                needed.add(i)
                pending += [a for a in frame.program.equations[i].invars if isinstance(a, Var) and a not in frame.env]
        order = sorted(needed)
        last = {a: i for i in order for a in frame.program.equations[i].invars}
        for i in order:
            equation = frame.program.equations[i]
            outs = self._execute(equation, [self._read(frame, a) for a in equation.invars])
            self._compare(frame, equation, outs)
            self._bind(frame, equation, outs)
            if self.history.nbytes > self.history.budget:  # only what will still be read
                for j in order:
                    for v in frame.program.equations[j].outvars:
                        if j <= i and v is not var and last.get(v, -1) <= i:
                            self.history.drop(frame, v)

    def _execute(self, equation: Equation, operands: Sequence[Any]) -> list[Any]:
        operation = equation.operation
        run = self._functions.get(operation)
        if run is None:
            run = self._functions[operation] = as_function(call_of(keeping_operands(operation)))
        outs: list[Any] = self._run(equation, run, *operands)
        return outs

    def _in_mesh(self, run: Callable[..., Any], *operands: Any) -> Any:
        is_set = jax.sharding.get_mesh() == self._mesh
        with contextlib.nullcontext() if is_set else jax.set_mesh(self._mesh):
            return jax.block_until_ready(run(*operands))

    def _run(self, equation: Equation, run: Callable[..., Any], *operands: Any) -> Any:
        """Runs a function; if memory runs out, runs it again without the values kept for going back."""
        try:
            return self._in_mesh(run, *operands)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in message_of(error) or not self.history.users:
                error.add_note(f"Raised while running {describe_equation(equation)}.")
                raise
        except Exception as error:
            error.add_note(f"Raised while running {describe_equation(equation)}.")
            raise
        before = self.history.nbytes
        self.history.free(self.position, 0, None)
        self.history.budget = min(self.history.budget, self.history.nbytes)
        self._note(
            f"Memory ran out at {describe_equation(equation)}: {before - self.history.nbytes:,} bytes that were kept "
            "for going back have been freed; their values are recomputed when needed."
        )
        try:
            return self._in_mesh(run, *operands)
        except Exception as error:
            error.add_note(f"Raised while running {describe_equation(equation)}, with no values kept for going back.")
            raise

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _bind(self, frame: ProgramRun, equation: Equation, outs: Sequence[Any]) -> None:
        for v, x in zip(equation.outvars, outs, strict=True):
            if v not in frame.env:
                frame.env[v] = x
                self.history.hold(x)

    def _compare(self, frame: ProgramRun, equation: Equation, outs: Sequence[Any]) -> None:
        """Records recomputed values that differ from the original ones."""
        for v, x in zip(equation.outvars, outs, strict=True):
            if v in frame.env:
                before = fingerprint(frame.env[v])
            elif v in frame.prints:
                before = frame.prints[v]
            else:
                continue
            if not same_fingerprint(before, fingerprint(x)):
                self._note(differs(equation))
                return

    # --- loops --------------------------------------------------------------------------------------------------------

    def _loop(self, stage: str, path: tuple[Level, ...], index: int) -> PartialLoop:
        key = (stage, path, index)
        loop = self.history.loops.get(key)
        if loop is not None:
            return loop
        frame = self.frame(stage, path)
        self._advance(frame, index)
        equation = frame.program.equations[index]
        operands = [self._read(frame, a) for a in equation.invars]
        length = of(equation).trip_count(equation.operation)
        partial = PartialLoop(equation, operands, {}, length)
        before, n = partial.sizes
        partial.carries[0] = operands[before : before + n]
        if length is not None:
            partial.filled = np.zeros(length, bool)
        self.history.loops[key] = partial
        return partial

    def _ys(self, loop: PartialLoop) -> list[Any]:
        if loop.is_scan and not loop.ys:
            self._set_ys(loop, [compat.empty(a) for a in loop.equation.operation.out_avals[loop.sizes[1] :]])
        return loop.ys

    def _set_ys(self, loop: PartialLoop, ys: list[Any]) -> None:
        for y in loop.ys:
            self.history.release(y)
        loop.ys = ys
        for y in ys:
            self.history.hold(y)

    def _keep_carry(self, loop: PartialLoop, k: int, carry: list[Any]) -> None:
        prints = loop.prints.get(k)
        if prints is not None and not all(map(same_fingerprint, prints, map(fingerprint, carry))):
            self._note(differs(loop.equation))
        loop.carries[k] = carry
        for x in carry:
            self.history.hold(x)

    def _carry(self, loop: PartialLoop, k: int) -> list[Any]:
        """The carry at the start of the k-th iteration; the iterations before it run at once.

        Raises:
          SteppingError: the loop ends before.
        """
        if k < 0 or (loop.length is not None and k >= loop.length):
            raise SteppingError(_no_iteration(loop, k))
        if k not in loop.carries:
            self._run_loop(loop, max(j for j in loop.carries if j < k), k)
        if k not in loop.carries:
            raise SteppingError(_no_iteration(loop, k))
        return loop.carries[k]

    def _run_loop(self, loop: PartialLoop, start: int, stop: int | None) -> None:
        """Runs iterations in segments, keeping the carry between them; a while loop without `stop` runs to its end."""
        part = max(1, math.isqrt(loop.length or 0)) if loop.is_scan else 1024
        k = start
        while stop is None or k < stop:
            to = k + part if stop is None else min(stop, k + part - k % part)
            before, _ = loop.sizes
            segment = loop.segment
            if loop.is_scan:
                consts, xs = loop.operands[:before], loop.operands[sum(loop.sizes) :]
                carry, ys = self._run(loop.equation, segment, k, to, consts, loop.carries[k], xs, self._ys(loop))
                self._set_ys(loop, ys)
                loop.filled[k:to] = True
            else:
                carry, done = self._run(loop.equation, segment, to - k, loop.operands[:before], loop.carries[k])
                if k + int(done) < to:
                    loop.length = to = k + int(done)
                    stop = to
            if to not in loop.carries:
                self._keep_carry(loop, to, carry)
            k = to
            if self.history.nbytes > self.history.budget:
                self.history.thin(loop, (k,))

    def _goes_on(self, loop: PartialLoop, k: int) -> bool:
        """Whether a while loop has a k-th iteration."""
        if loop.length is not None:
            return k < loop.length
        goes_on = WHILE.goes_on(loop.equation.operation)
        again = self._run(loop.equation, goes_on, loop.operands, self._carry(loop, k))
        is_there = bool(again.any())  # under vmap each example has its own
        if not is_there:
            loop.length = k
        return is_there

    def _finish(self, loop: PartialLoop) -> list[Any]:
        """Runs the rest of a loop and returns its results."""
        if not loop.is_scan:
            if loop.length is None:
                self._run_loop(loop, max(loop.carries), None)
            assert loop.length is not None
            if loop.length not in loop.carries:
                self._run_loop(loop, max(j for j in loop.carries if j < loop.length), loop.length)
            return loop.carries[loop.length]
        assert loop.length is not None
        if loop.length not in loop.carries:
            self._run_loop(loop, max(loop.carries), loop.length)
        while not loop.filled.all():
            first = int(np.argmin(loop.filled))
            rest = loop.filled[first:]
            stop = first + int(np.argmax(rest)) if rest.any() else loop.length
            start = max(j for j in loop.carries if j <= first)
            self._run_loop(loop, start, stop)
        return [*loop.carries[loop.length], *self._ys(loop)]


def _no_iteration(loop: PartialLoop, k: int) -> str:
    n = loop.length
    return f"{describe_equation(loop.equation)} has {n} iterations, so there is no {loop.turned(k)}."
