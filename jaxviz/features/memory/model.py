"""The model behind `jaxviz.memory`: which values a gradient has in memory at each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, compress
from typing import Any

import numpy as np

from jaxviz.analysis.grouping import pattern
from jaxviz.analysis.layouts import Layouts
from jaxviz.analysis.passes import OpenedStep
from jaxviz.derivation import Derivation
from jaxviz.features.memory.buffers import KINDS, Env, Kind, Late, ModelledBuffer
from jaxviz.features.memory.fusions import Does, is_fused, may_write_into_an_operand, only_added
from jaxviz.features.memory.names import DerivationNames
from jaxviz.features.residuals.saved_bytes import are_read
from jaxviz.higher_order import Body, bodies, is_loop, is_scan, of
from jaxviz.ir import compat
from jaxviz.ir.collector import collector_paused
from jaxviz.ir.origin import Location
from jaxviz.ir.syntax import Atom, Equation, Literal, Operation, Program, Var
from jaxviz.report.tables import nbytes, type_text

_KIND = {kind: i for i, kind in enumerate(KINDS)}


@dataclass(eq=False, slots=True)  # not frozen, like Equation
class Live:
    """A value in memory, and the steps during which it is there. It is immutable.

    >>> timeline = jaxviz.memory(loss, params, x)
    >>> max(timeline.values, key=lambda v: v.nbytes * (v.last - v.born + 1))

    Args:
      what: the path of an argument, the expression that computes it, or the value whose cotangent it is.
      type: its type; of one iteration, in the body of a loop.
      nbytes: its size in bytes.
      kind: its kind, such as 'residual'.
      born: the first step at which it is in memory.
      last: the last step; the number of steps if it is still there at the end.
      equation: the equation that computes it, at step `born` or in a loop that runs there; None for an input.
      residuals: the indices of the residuals that it holds: several if one is a view of another.
    """

    what: str
    type: str
    nbytes: int
    kind: Kind
    born: int
    last: int
    equation: Equation | None
    residuals: tuple[int, ...]
    buffer: ModelledBuffer = field(repr=False)
    model: Model = field(repr=False)

    @property
    def location(self) -> Location | None:
        """The user's line; None for an argument."""
        return self.model.location(self.buffer)

    @property
    def library(self) -> str:
        """Where in a library it is computed; '' if in none, and for an argument."""
        return self.model.library(self.buffer)

    @property
    def repeats(self) -> Hashable:
        """A key, the same for values of one expression in repeated layers and calls."""
        return self.model.repeats(self.buffer)


@dataclass(eq=False, slots=True)  # not frozen, like Equation
class MemoryStep:
    """The step of one equation. It is immutable.

    Args:
      equation: in the order of evaluation, with the equations of called functions in place of the call.
      within: the equations that hold its program, outermost first.
      is_backward: whether it is part of the backward program.
      nbytes: bytes alive while it runs, by kind, in the order of `KINDS`.
      is_outside: whether it is part of neither pass, but of the training step around them.
    """

    equation: Equation
    within: tuple[Equation, ...]
    is_backward: bool
    nbytes: tuple[int, ...]
    is_outside: bool = False

    @property
    def primitive(self) -> str:
        return str(self.equation.primitive.name)

    @property
    def total(self) -> int:
        return sum(self.nbytes)


_WRITTEN_INTO = frozenset(("temporary", "cotangent", "residual", "argument"))
"""The kinds of values whose memory a later result may take; that of an argument only if it is donated."""


class Model:
    """Walks the forward and the backward program, recording when each value is allocated and when it is last read."""

    def __init__(
        self, derivation: Derivation, donated: tuple[bool, ...], named: bool = True, layouts: Layouts | None = None
    ):
        self.derivation = derivation
        self.layouts = layouts
        """Over how many devices each value is sharded; None on a single device. Sizes are those on one device."""
        self.named = named
        """Whether residuals get their names, which takes longer than everything else."""
        self.donated = donated
        self.buffers: list[ModelledBuffer] = []
        self.steps: list[tuple[Equation, tuple[Equation, ...], bool]] = []
        self.inside: dict[int, list[ModelledBuffer]] = {}
        """What is in memory in the bodies of a loop, or in a branch, where it takes most, by the step of the loop."""
        self.reads: list[list[ModelledBuffer]] = []
        """The operands of each step."""
        self.late: dict[Late, None] = {}
        """What waits, in the order of the program."""
        self.of_forward = Env()
        """The memory of each value of the forward program."""
        self.into: list[tuple[int, list[ModelledBuffer], ModelledBuffer]] = []
        """For steps that may write into an operand: the step, the operands of the result's size, and the result."""
        self.opened = OpenedStep(derivation.primal, {}, frozenset())
        """The training step that is walked; for a gradient alone, one without passes."""
        self.is_backward = False
        self.in_pass = True
        self.outside: set[int] = set()
        """The steps in neither pass, such as those of an optimizer."""
        self.of_types: dict[int, tuple[int, str, Any]] = {}
        """By a type's identity: the bytes of a value, the type's text, and the type. Many values share few types."""
        self.only_added: set[Atom] = set()
        """What is computed where it is added."""
        self.operations: dict[Operation, Does] = {}
        """What each operation does in memory."""

    @collector_paused()
    def run(self) -> None:
        """Walks both programs."""
        derivation = self.derivation
        forward, backward = derivation.forward, derivation.backward
        primal = derivation.primal
        env = self.of_forward
        self.enter(forward, primal.arg_names)
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
        back = Env(zip(backward.invars[:n], saved, strict=True))
        seeds = backward.invars[n:]
        divided = self.layouts.cotangents if self.layouts is not None else ()
        for v, n_parts in zip(seeds, divided or (1,) * len(seeds), strict=True):
            back[v] = self.new(v, "cotangent", name="the incoming cotangent", parts=n_parts)
        for v in backward.constvars:
            back[v] = self.new(v, "constant", name="a constant of a rule")
        for i, (buffer, is_read) in enumerate(zip(saved, are_read(derivation), strict=True)):
            if is_read:  # XLA does not keep the others
                self.keep(buffer, i)
                buffer.last = max(buffer.last, turn - 1)
        self.walk(backward, back, ())
        gradients = [self.read(back, a) for a in backward.outvars]
        for buffer, name in zip(gradients, compress(derivation.primal.arg_names, derivation.reached), strict=True):
            if buffer.kind in ("temporary", "cotangent"):
                buffer.name = f"the gradient in {name or 'an argument'}"
        self.end(forward, [*results, *gradients])

    @collector_paused()
    def run_step(self, opened: OpenedStep) -> None:
        """Walks a training step that takes the gradient."""
        self.opened, program, self.in_pass = opened, opened.program, False
        self.enter(program, program.arg_names)
        self.walk(program, self.of_forward, ())
        self.end(program, [self.read(self.of_forward, a) for a in program.outvars])

    def enter(self, program: Program, names: Sequence[str]) -> None:
        """Records a program's inputs and constants."""
        env, layouts = self.of_forward, self.layouts
        parts = layouts.arguments if layouts is not None else (1,) * len(program.invars)
        for v, name, n_parts in zip(program.invars, names, parts, strict=True):
            env[v] = self.new(v, "argument", name=name, parts=n_parts)
        for v in program.constvars:
            n_parts = layouts.values.get(v, 1) if layouts is not None else 1
            env[v] = self.new(v, "constant", name="a captured constant", parts=n_parts)

    def end(self, program: Program, results: Sequence[ModelledBuffer]) -> None:
        """Keeps until the end what is in memory then: results, constants, and arguments that are not donated."""
        end = len(self.steps)
        for buffer in results:
            buffer.is_free = False
            buffer.last = end
            if buffer.kind in ("temporary", "cotangent"):
                buffer.kind = "result"
        for v, is_donated in zip(program.invars, self.donated, strict=True):
            if not is_donated:
                self.read(self.of_forward, v).last = end
        for buffer in self.buffers:
            if buffer.kind == "constant":
                buffer.last = end

    def keep(self, buffer: ModelledBuffer, residual: int) -> None:
        """Records that a buffer contains a residual."""
        buffer.is_free = False
        buffer.residuals += (residual,)
        if buffer.kind == "temporary":
            buffer.kind = "residual"
            if self.named:
                named = self.derivation.residuals[residual]
                buffer.name, buffer.location, buffer.type = named.expression, named.location, named.type

    def new(
        self, atom: Atom, kind: Kind, equation: Equation | None = None, within: tuple[Equation, ...] = (),
        name: str = "", parts: int = 1, is_free: bool = False,
    ) -> ModelledBuffer:  # fmt: skip
        aval = atom.type_with_state if kind == "argument" else atom.aval
        if (known := self.of_types.get(id(aval))) is None:
            taken = 0 if compat.is_on_host(atom.aval) else nbytes(aval)
            known = self.of_types[id(aval)] = taken, type_text(atom.aval), aval
        var, born = (None, len(self.steps)) if equation is None else (atom, len(self.steps) - 1)
        buffer = ModelledBuffer(known[0] // parts, kind, born, born, equation, within, known[1], name)
        buffer.var, buffer.is_free = var, is_free
        self.buffers.append(buffer)
        return buffer

    def read(self, env: Env, atom: Atom) -> ModelledBuffer:
        """The memory of a value, which is computed now if it waits for that."""
        if atom in env.waiting:
            late, v = env.waiting.pop(atom)
            self.catch_up([late])
            env[atom] = late.env[v]
        elif isinstance(atom, Literal) or atom not in env:
            env[atom] = self.new(atom, "constant", name="a number")
        return env[atom]

    def hand_on(self, env: Env, atom: Atom, inner: Env, v: Var) -> None:
        """Makes a variable of another program one that has a value's memory, or waits for the same."""
        if atom in env.waiting:
            inner.waiting[v] = env.waiting[atom]
        else:
            inner[v] = env[atom] if isinstance(atom, Var) and atom in env else self.read(env, atom)

    def walk(self, program: Program, env: Env, within: tuple[Equation, ...]) -> None:
        """Visits the equations, those that nothing waits for last."""
        self.visit(program, env, within, False)
        self.catch_up(list(self.late))

    def visit(self, program: Program, env: Env, within: tuple[Equation, ...], is_late: bool) -> None:
        """Visits the equations, those of calls in their place.

        What is recomputed, and what is loaded from the host, waits until an equation needs it. The jaxpr has it before
        the first cotangent; a scheduler that minimises memory moves it.
        """
        self.only_added |= only_added(program)
        for e in program.equations:
            does = self.does(e)
            waits = (is_late or _comes_late(e)) and not does.has_effects
            if does.is_opened:
                (body,) = bodies(e)
                inner = Env()
                for v, i in zip(body.program.invars, body.operands, strict=True):
                    self.hand_on(env, e.invars[i], inner, v)
                for v in body.program.constvars:
                    inner[v] = self.new(v, "constant", name="a captured constant")
                is_forward, is_backward = e in self.opened.forward, e in self.opened.backward
                before = self.is_backward, self.in_pass
                self.is_backward, self.in_pass = before[0] or is_backward, before[1] or is_forward or is_backward
                self.visit(body.program, inner, () if is_forward or is_backward else (*within, e), waits)
                self.is_backward, self.in_pass = before
                if is_forward:
                    for i, (a, is_read) in enumerate(
                        zip(body.program.outvars[self.opened.forward[e] :], are_read(self.derivation), strict=True)
                    ):
                        if is_read:
                            self.keep(self.read(inner, a), i)
                for outer, result in zip(e.outvars, body.program.outvars, strict=True):
                    self.hand_on(inner, result, env, outer)
            elif waits:
                late = Late(e, env, within, self.is_backward, self.in_pass, len(self.steps) + len(self.late))
                self.late[late] = None
                env.waiting.update((v, (late, v)) for v in e.outvars)
            else:
                self.step(e, does, env, within)

    def catch_up(self, wanted: Sequence[Late]) -> None:
        """Computes what waits, with what it needs itself, in the order of the program."""
        needed: set[Late] = set()
        pending = [*wanted]
        while pending:
            late = pending.pop()
            if late in self.late and late not in needed:
                needed.add(late)
                pending += late.env.wanted_by(late.equation)
        before = self.is_backward, self.in_pass
        for late in sorted(needed, key=lambda late: late.number):
            del self.late[late]
            for v in late.equation.outvars:
                late.env.waiting.pop(v, None)
            self.is_backward, self.in_pass = late.is_backward, late.in_pass
            self.step(late.equation, self.does(late.equation), late.env, late.within)
        self.is_backward, self.in_pass = before

    def step(self, e: Equation, does: Does, env: Env, within: tuple[Equation, ...]) -> None:
        """Records an equation."""
        if wanted := env.wanted_by(e):
            self.catch_up(wanted)
        now = len(self.steps)
        self.steps.append((e, within, self.is_backward))
        if not self.in_pass:
            self.outside.add(now)
        operands = [env[a] if a in env else self.read(env, a) for a in e.invars if isinstance(a, Var)]
        self.reads.append(operands)
        for buffer in operands:
            buffer.last = now
        if does.shows_operand and len(operands) == 1:
            env[e.outvars[0]] = operands[0]
            return
        if does.adds_to_slice:
            is_free = does.is_free or e.invars[1] in self.only_added
            self.new(e.invars[1], "temporary", e, within, is_free=is_free).stack = operands[0]
        kind, results = self.kind_of(e), []
        for k, v in enumerate(e.outvars):
            parts = self.layouts.parts(e, k) if self.layouts is not None else 1
            env[v] = result = self.new(v, kind, e, within, "", parts, does.is_free or v in self.only_added)
            results.append(result)
        if does.may_write:
            (written,) = results
            fits = [b for b in operands if b.nbytes == written.nbytes]
            if written.is_free:  # an argument has its layout; anything else is written in the one in which it is read
                fits = [b for b in fits if b.kind != "argument"]
            self.into.append((now, fits, written))
        if does.is_loop:  # a loop's carry has one place
            n_fixed, n_carry = of(e).carry(e.operation)
            for a, result in zip(e.invars[n_fixed : n_fixed + n_carry], results, strict=False):
                self.into.append((now, [self.read(env, a)], result))
        if e.operation.programs and (inside := self.alive_inside(e, within, env)):
            self.inside[now] = inside

    def does(self, e: Equation) -> Does:
        """What an equation does in memory; many equations share few operations."""
        if (known := self.operations.get(e.operation)) is None:
            known = self.operations[e.operation] = Does.of(e)
        return known

    def kind_of(self, e: Equation) -> Kind:
        role = e.origin.role if e.origin is not None else "cotangent"
        is_cotangent = self.is_backward and role in ("cotangent", "accumulation", "zero")
        return "cotangent" if is_cotangent else "temporary"

    def alive_inside(self, e: Equation, within: tuple[Equation, ...], outer: Env) -> list[ModelledBuffer]:
        """What a loop's body, or a cond's largest branch, has in memory at its peak besides operands and results."""
        now, most, largest = len(self.steps) - 1, 0, list[ModelledBuffer]()
        for body in bodies(e):
            model = Model(self.derivation, (), self.named, self.layouts)
            model.opened, model.is_backward, model.in_pass = self.opened, self.is_backward, self.in_pass
            inputs = (*body.program.invars, *body.program.constvars)
            env = Env((v, ModelledBuffer(0, "argument", 0, 0)) for v in inputs)
            for v, i in zip(body.program.invars, body.operands, strict=True):
                if compat.is_ref(v.aval):  # a slice of it is named after it
                    env[v] = replace(self.read(outer, e.invars[i]), nbytes=0, kind="argument", born=0, last=0)
            model.walk(body.program, env, (*within, e))
            if is_loop(e) and body.has_results:
                model.hold_carry(e, body, env)
            if is_scan(e):
                model.hold_slices(e, within, body, env, outer)
            totals = model.alive_by_step().sum(axis=1)
            if len(totals) and totals.max() > most:
                at = int(totals.argmax())
                most, largest = int(totals[at]), [b for b in model.all_buffers() if b.born <= at <= b.last]
        return [replace(b, kind="temporary", born=now, last=now) for b in largest if b.nbytes and not b.is_free]

    def hold_carry(self, e: Equation, body: Body, env: Env) -> None:
        """Keeps what an iteration hands on until it ends: the carry that it reads is in the memory of the loop, and so
        is what is written into that."""
        n_fixed, n_carry = of(e).carry(e.operation)
        for a, v in zip(body.program.outvars[:n_carry], body.program.invars[n_fixed:], strict=False):
            if a in env and (buffer := self.read(env, a)).equation is not None:
                buffer.is_free, buffer.last = False, len(self.steps) - 1
                for written in self.written_in_turn(self.read(env, v), buffer):
                    written.nbytes = 0

    def written_in_turn(self, carry: ModelledBuffer, last: ModelledBuffer) -> list[ModelledBuffer]:
        """What is written into a carry, one after the other, ending with `last`; nothing if that is not."""
        found = [last]
        while (e := found[-1].equation) is not None and may_write_into_an_operand(e):
            ending = [b for b in self.reads[found[-1].born] if b.last == found[-1].born]
            if any(b is carry for b in ending):
                return found
            if not (same := [b for b in ending if b.nbytes == last.nbytes and not b.is_free]):
                break
            found.append(same[0])
        return []

    def hold_slices(self, e: Equation, within: tuple[Equation, ...], body: Body, env: Env, outer: Env) -> None:
        """Adds the slices of stacked operands that an iteration reads, except where XLA slices within the fusion."""
        copied = self.read_outside_of_fusions()
        for v, i in zip(body.program.invars, body.operands, strict=True):
            is_stacked = i >= sum(of(e).carry(e.operation)) and isinstance(e.invars[i], Var)
            if not is_stacked or id(env[v]) not in copied:
                continue
            stack = self.read(outer, e.invars[i])
            parts = nbytes(e.invars[i].aval) // stack.nbytes if stack.nbytes else 1
            piece = self.new(v, "temporary", e, within, parts=parts)
            piece.born, piece.last = copied[id(env[v])]
            piece.stack = stack

    def read_outside_of_fusions(self) -> dict[int, tuple[int, int]]:
        """By the identity of a buffer, the first and the last step that reads it other than in a fusion of XLA's."""
        laid_out = {b.born: b for b in self.buffers if b.is_free}
        spans: dict[int, tuple[int, int]] = {}
        for now in reversed(range(len(self.steps))):
            if now in laid_out:
                span = spans.get(id(laid_out[now]))
            else:
                span = None if is_fused(self.steps[now][0]) else (now, now)
            if span is not None:
                for b in self.reads[now]:
                    spans[id(b)] = span[0], spans.get(id(b), span)[1]
        return spans

    def settle(self) -> None:
        """Writes results into operands that are last read there, each operand once."""
        used: set[int] = set()
        for now, candidates, result in self.into:
            for candidate in candidates if not result.is_free else ():
                buffer = self.read_through(candidate, result) if candidate.is_free else candidate
                if buffer.last != now or id(buffer) in used or buffer.nbytes != result.nbytes or buffer.is_free:
                    continue
                if buffer.kind == "argument" or (buffer.born < now and buffer.kind in _WRITTEN_INTO):
                    used.add(id(buffer))
                    buffer.last = now - 1
                    break

    def put_where_read(self) -> None:
        """Keeps the operands of what is computed where it is read until then."""
        for buffer in reversed(self.buffers):
            if buffer.is_free and buffer.equation is not None:
                for operand in self.reads[buffer.born]:
                    operand.last = max(operand.last, buffer.last)

    def read_through(self, buffer: ModelledBuffer, result: ModelledBuffer) -> ModelledBuffer:
        """The memory of an operand; if it is laid out only as it is read, that of what it is laid out from."""
        laid_out = lambda b: b.equation is not None and b.equation.primitive.name == "transpose"
        while buffer.is_free and len(self.reads[buffer.born]) == 1 and laid_out(buffer) == laid_out(result):
            (buffer,) = self.reads[buffer.born]
        return buffer

    def leave_out_overwritten(self) -> None:
        """Nothing is stored of what a write to a reference replaces, unless that is read."""
        for buffer in self.buffers:
            if buffer.last != buffer.born or buffer.stack is not None or (e := buffer.equation) is None:
                continue
            if e.effects and compat.written_refs(e.effects):
                buffer.nbytes = 0

    def alive_by_step(self) -> np.ndarray:
        self.leave_out_overwritten()
        self.put_where_read()
        self.settle()
        n = len(self.steps)
        there = [b for b in self.buffers if b.nbytes and not b.is_free and b.last >= b.born]
        inside = {step: sum(b.nbytes for b in buffers) for step, buffers in self.inside.items()}
        most = sum(b.nbytes for b in there) + sum(inside.values())
        # Nested scans may stack more bytes than int64 holds, and NumPy would overflow silently.
        integer = np.int64 if most < 2**63 else object
        change = np.zeros((n + 1, len(KINDS)), integer)
        sizes = np.array([b.nbytes for b in there], integer)
        kinds = np.array([_KIND[b.kind] for b in there], np.int64)
        np.add.at(change, (np.array([min(b.born, n) for b in there], np.int64), kinds), sizes)
        np.subtract.at(change, (np.array([min(b.last + 1, n) for b in there], np.int64), kinds), sizes)
        alive: np.ndarray = np.cumsum(change, axis=0)[:n]
        for step, taken in inside.items():
            alive[step, _KIND["temporary"]] += taken
        return alive

    def steps_with_memory(self) -> tuple[MemoryStep, ...]:
        """What each step has in memory, after all have been visited."""
        alive = self.alive_by_step()
        return tuple(
            MemoryStep(e, within, is_backward, tuple(row), i in self.outside)
            for i, ((e, within, is_backward), row) in enumerate(zip(self.steps, alive.tolist(), strict=True))
        )

    def values(self, at: int | None = None) -> Iterator[Live]:
        """What takes memory at any step, or at a given one, in the body of a running loop too."""
        for b in self.all_buffers():
            is_there = b.born <= min(b.last, len(self.steps) - 1) if at is None else b.born <= at <= b.last
            if b.nbytes and not b.is_free and is_there:
                yield Live(self.called(b), b.type, b.nbytes, b.kind, b.born, b.last, b.equation, b.residuals, b, self)

    def all_buffers(self) -> Iterator[ModelledBuffer]:
        """The memory of all values, and of those in the bodies of loops and branches, each while it runs."""
        return chain(self.buffers, *self.inside.values())

    def names_at(self, step: int) -> DerivationNames:
        """The names of a step's results."""
        return self._names_outside if step in self.outside else self._names

    @cached_property
    def _names(self) -> DerivationNames:
        return DerivationNames(self.derivation)

    @cached_property
    def _names_outside(self) -> DerivationNames:
        return DerivationNames(Derivation(self.opened.program, (), lambda _: Counter()))

    def called(self, b: ModelledBuffer) -> str:
        """The name of the value in a buffer."""
        if b.stack is not None:
            return f"a slice of {self.called(replace(b.stack, born=b.born))}"
        return b.name or ("" if b.equation is None else self.names_at(b.born).of(b.equation, b.within, b.var))

    def location(self, b: ModelledBuffer) -> Location | None:
        """The user's line that computes the value in a buffer; None for an argument."""
        if b.stack is not None:
            return self.location(replace(b.stack, born=b.born))
        if b.location is not None or b.equation is None:
            return b.location
        return self.names_at(b.born).location(b.equation, b.within)

    def library(self, b: ModelledBuffer) -> str:
        """Where in a library the value in a buffer is computed; '' if in none."""
        if b.stack is not None:
            return self.library(replace(b.stack, born=b.born))
        return "" if b.equation is None else self.names_at(b.born).library(b.equation, b.within)

    def repeats(self, b: ModelledBuffer) -> Hashable:
        """A key shared by values of one expression in repeated layers and calls."""
        if b.stack is not None:
            return "a slice", self.repeats(b.stack)
        if b.residuals and b.kind == "residual":
            key: Hashable = self.derivation.residuals[b.residuals[0]].repeats
            return key
        if b.equation is None:
            return pattern(b.name)
        return pattern(b.name), self.names_at(b.born).repetition(b.equation, b.within, b.var)


def _comes_late(e: Equation) -> bool:
    """Whether it is recomputed, or copied back from the host, for the backward pass."""
    if (o := e.origin) is None:
        return False
    return o.role == "recomputation" or (e.primitive is compat.device_put_p and o.rule.startswith("brought back"))
