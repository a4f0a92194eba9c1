"""Attributes each byte of a compiled program to a value of the gradient or to XLA itself, and to equations."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from jaxviz.analysis.grouping import pattern
from jaxviz.ir.origin import Location
from jaxviz.ir.primitives import plain
from jaxviz.report.tables import short_location, type_text
from jaxviz.xla.compiled_memory.buffers import Buffer
from jaxviz.xla.compiled_memory.module import Instruction, Module, Shape, Value
from jaxviz.xla.compiled_memory.places import Maker, Makers

Kind = Literal[
    "argument", "constant", "result", "residual", "temporary", "recomputed", "cotangent", "merged", "carried",
    "copy", "layout", "padding", "double buffer", "offloaded", "fusion", "scratch", "unused", "not attributed",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
OWN = KINDS[KINDS.index("merged") :]
"""Kinds of XLA's own memory, which contains no value of the gradient."""


@dataclass(frozen=True, slots=True)
class Described:
    """The content of a buffer.

    Args:
      kind: one of `KINDS`.
      what: the expression that computes it, the path of an argument, or the value whose cotangent it is.
      type: the type of its content.
      location: the user's line; None if unknown.
      why: why it is in memory: the reason of a residual, or what XLA needs it for.
      residual: the index of its residual, if it is one.
      repeats: a key, the same for the values of one expression in repeated layers, calls and iterations.
      padding: the bytes beyond those of its elements.
      expression: for a residual, the expression that first computes its value, if `what` is another name of it.
      stands_in: whether it is another value, from which the residual is recomputed.
    """

    kind: Kind
    what: str
    type: str
    location: Location | None = None
    why: str = ""
    residual: int | None = None
    repeats: Hashable = None
    padding: int = 0
    expression: str = ""
    stands_in: bool = False


@dataclass(frozen=True, slots=True)
class Traced:
    """The equations that a value was computed by, and what happened to it since.

    Args:
      numbers: of the equations.
      stacked: whether a loop stacks it.
      sliced: whether it is a slice of a stacked value.
      copied: the instruction that copies it, if there is one.
      carried: whether a loop carries it.
      serves: whether the equations do not compute it, but read the value that it is computed for.
      computed: the instruction of XLA's own that computes it from their value, if there is one.
      argument: the argument that it is, if no equation computes it.
    """

    numbers: tuple[int, ...]
    stacked: bool = False
    sliced: bool = False
    copied: Instruction | None = None
    carried: bool = False
    serves: bool = False
    computed: Instruction | None = None
    argument: Value | None = None


_COPIES = ("copy", "copy-start", "copy-done")
_LAID_OUT = ("transpose", "reshape", "reverse")
"""Instructions with which XLA changes the layout of values without an equation."""
_NOTHING_COMPUTED = (
    *("parameter", "constant", "iota", "broadcast", "bitcast", "copy", "tuple", "get-tuple-element"),
    *_LAID_OUT,
)
_FOLLOWED = 200
"""The number of instructions examined for one value."""


class Attribution:
    """Finds the contents of a compiled program's buffers, by what its instructions come from."""

    def __init__(self, module: Module, places: Makers, n_devices: int = 1):
        self.n_devices = n_devices
        self._residuals_held: frozenset[int] = frozenset()
        self._backward: dict[int, bool] = {}
        self.module = module
        self.places = places

    # --- from a value to equations ------------------------------------------------------------------------------------

    def traced(self, value: Value) -> Traced | None:
        """The equations from which a value was computed; None if no instruction on the way has any."""
        pending: list[tuple[Value, Traced]] = [(value, Traced(()))]
        seen: set[Value] = set()
        argument: Traced | None = None
        while pending and len(seen) < _FOLLOWED:
            here, so_far = pending.pop()
            if here in seen:
                continue
            seen.add(here)
            instruction = self.module.instructions[here[0]]
            operands = instruction.operands
            before = list(self.module.made_of(here))
            if instruction.opcode == "parameter" and instruction.computation == self.module.entry.id:
                argument = argument or replace(so_far, argument=here)
                continue
            if before:
                if instruction.opcode == "while" or self._is_of_loop(instruction):
                    so_far = replace(so_far, carried=True)
                    before += self._given_to_loop(here)
                pending += [(v, so_far) for v in reversed(before)]
                continue
            numbers = self.places.numbers(instruction)
            holds = bool(numbers) and all(self.places.makers[n].holds_programs for n in numbers)
            if instruction.opcode in _COPIES:
                pending.append(((operands[0], here[1]), replace(so_far, copied=so_far.copied or instruction)))
            elif instruction.opcode == "dynamic-update-slice" and (holds or not numbers):
                pending.append(((operands[0], ()), so_far))
                pending.append(((operands[1], ()), replace(so_far, stacked=not so_far.sliced)))
            elif instruction.opcode == "dynamic-slice" and (holds or not numbers):
                pending.append(((operands[0], ()), replace(so_far, sliced=not so_far.stacked)))
            elif numbers and (not holds or instruction.opcode in ("reduce", "sort", "custom-call")):
                return replace(so_far, numbers=numbers)
            elif instruction.opcode not in ("constant", "iota") and (instruction.opcode != "broadcast" or numbers):
                is_same = instruction.opcode in _LAID_OUT
                after = so_far if is_same else replace(so_far, computed=so_far.computed or instruction)
                pending += [((o, ()), after) for o in reversed(operands)]
        return argument

    def _is_of_loop(self, instruction: Instruction) -> bool:
        holder = self.module.callers.get(instruction.computation)
        return instruction.opcode == "parameter" and holder is not None and holder.opcode == "while"

    def _given_to_loop(self, value: Value) -> list[Value]:
        """The sources of a loop's carry: the body's result, and the initial value."""
        number, index = value
        instruction = self.module.instructions[number]
        loop = instruction if instruction.opcode == "while" else self.module.callers[instruction.computation]
        return [(self.module.body(loop).root, index), (loop.operands[0], index)]

    def serving(self, value: Value, with_line: bool = False) -> Traced | None:
        """The equations that a value is read for, if no equation is known to compute it; on request, the first with a
        known line."""
        pending, seen = [value], {value}
        holder: Traced | None = None
        for here in pending:
            for other in self.module.passed_on(here):
                if other not in seen:
                    seen.add(other)
                    pending.append(other)
            for user, _ in self.module.users.get(here[0], ()):
                numbers = self.places.numbers(user)
                if numbers and (not with_line or self._line(numbers) is not None):
                    if not all(self.places.makers[n].holds_programs for n in numbers):
                        return Traced(numbers, serves=True)
                    holder = holder or Traced(numbers, serves=True)
                maker = (user.id, ())
                if user.opcode not in ("tuple", "get-tuple-element") and maker not in seen:
                    seen.add(maker)
                    pending.append(maker)
            if len(seen) > _FOLLOWED:
                break
        return holder

    def numbers_of(self, instruction: Instruction) -> tuple[int, ...]:
        """The numbers of the equations that an instruction comes from, with those that are fused into it; for one of
        XLA's own, such as a copy, those of the value that it copies, or else of what reads it."""
        numbers = dict.fromkeys(n for i in self.module.inside(instruction) for n in self.places.numbers(i))
        if not numbers:
            parts = len(instruction.shape.tuple_shapes)
            values: list[Value] = [(instruction.id, (k,)) for k in range(parts)] or [(instruction.id, ())]
            known = [t for v in values if (t := self.traced(v)) is not None and t.numbers]
            known = known or [t for v in values if (t := self.serving(v)) is not None]
            numbers = dict.fromkeys(n for t in known for n in t.numbers)
        return tuple(numbers)

    # --- what a buffer contains ---------------------------------------------------------------------------------------

    def described_all(self, buffers: Iterable[Buffer]) -> dict[Buffer, Described]:
        """The contents of temporary buffers, residuals first, since another value may only represent one of the
        remaining ones."""
        descriptions = {b: self.described(b) for b in buffers}
        self._residuals_held = frozenset(
            d.residual for d in descriptions.values() if d.residual is not None and not d.stands_in
        )
        return {b: self.described(b) if d.stands_in else d for b, d in descriptions.items()}

    def described(self, buffer: Buffer) -> Described:
        """The content of a buffer."""
        shape = self._shape(buffer)
        if shape.nbytes is None:
            return Described("scratch", "a table of where values are", "", repeats="table")
        traced_values = ((v, self.traced(v)) for v in buffer.values)
        traces = [(v, t) for v, t in traced_values if t is not None and not (t.computed and t.argument)]
        padding = max(0, buffer.nbytes - shape.nbytes)
        if not traces:
            return replace(self._untraced(buffer, shape), padding=padding)
        value, traced = max(
            traces, key=lambda f: (f[1].computed is None, f[1].argument is None, f[1].stacked, f[1].copied is None)
        )
        if traced.argument is not None:
            return replace(self._of_argument(buffer, traced, shape), padding=padding)
        return replace(self._of_equation(buffer, value, traced, shape), padding=padding)

    def equation_of(self, number: int) -> Described | None:
        """The equation that an instruction comes from; None if unknown."""
        instruction = self.module.instructions[number]
        numbers = self.places.numbers(instruction)
        if not numbers:
            return None
        return replace(self._named(numbers[0], Shape("", None)), what=self.places.makers[numbers[0]].operation)

    def fused(self) -> Iterator[tuple[Described, int]]:
        """Values that exist only within fusions, without a buffer, and their bytes."""
        for number in self.module.order:
            fusion = self.module.instructions[number]
            for c in fusion.called if fusion.opcode == "fusion" else ():
                inside = self.module.computations[c]
                root = self.module.instructions[inside.root]
                results = {root.id, *(root.operands if root.opcode == "tuple" else ())}
                for n in inside.order:
                    instruction = self.module.instructions[n]
                    if n in results or instruction.opcode in _NOTHING_COMPUTED or instruction.shape.tuple_shapes:
                        continue
                    maker = self._made_last(instruction)
                    if maker is not None:
                        place, shape = self.places.makers[maker], self.module.shape((n, ()))
                        yield replace(self._named(maker, shape), kind=_kind_of(place)), shape.nbytes or 0

    def _made_last(self, instruction: Instruction) -> int | None:
        """The instruction of a fusion whose value an equation computes; None if another one follows."""
        numbers = self.places.numbers(instruction)
        number = numbers[0] if numbers else None
        if number is None or self.places.makers[number].holds_programs:
            return None
        after = (n for u, _ in self.module.users.get(instruction.id, ()) for n in self.places.numbers(u))
        return None if self.places.knows_equations and number in after else number

    def _shape(self, buffer: Buffer) -> Shape:
        return self.module.shape(buffer.values[-1])

    def _of_argument(self, buffer: Buffer, traced: Traced, shape: Shape) -> Described:
        assert traced.argument is not None
        path = self.argument_name(traced.argument[0]) or "an argument"
        kind: Kind = "copy"
        what = f"a slice of {path}" if traced.sliced else path
        if traced.copied is not None:
            kind = self._kind_of_copy(traced.copied)
        elif traced.carried and not traced.sliced:
            kind = "carried"
        why = "XLA copies it" if kind == "copy" and not traced.sliced else _WHY.get(kind, "")
        if traced.sliced:
            why = "one iteration's slice"
        at = self.places.definition or self._line_served(buffer)
        return Described(kind, what, shape.text, at, why, repeats=("argument", pattern(what), kind))

    def _line_served(self, buffer: Buffer) -> Location | None:
        """The line for which a buffer is read."""
        served = (t for v in buffer.values if (t := self.serving(v, with_line=True)) is not None)
        return next((self._line(t.numbers) for t in served), None)

    def _line(self, numbers: Iterable[int]) -> Location | None:
        return next((line for n in numbers if (line := self.places.label(n)[1]) is not None), None)

    def argument_name(self, number: int) -> str:
        """The path of an argument, as JAX recorded it on the parameter."""
        return re.sub(r"\\(.)", r"\1", self.module.instructions[number].path)

    def _kind_of_copy(self, copy: Instruction) -> Kind:
        if "double_buffer" in copy.name:
            return "double buffer"
        to, of = self.module.shape((copy.id, self._first_leaf(copy))), None
        if copy.operands:
            operand = self.module.instructions[copy.operands[0]]
            if not operand.shape.tuple_shapes:
                of = self.module.shape((operand.id, ()))
        if of is not None and (to.on_host or of.on_host):
            return "offloaded"
        return "layout" if of is not None and to.order != of.order else "copy"

    def _first_leaf(self, instruction: Instruction) -> tuple[int, ...]:
        return (0,) if instruction.shape.tuple_shapes else ()

    def _of_equation(self, buffer: Buffer, value: Value, traced: Traced, shape: Shape) -> Described:
        number = min(traced.numbers, key=lambda n: (n not in self.places.residuals_of, n))
        place = self.places.makers[number]
        described = self._named(number, shape)
        if described.location is None:
            described = replace(described, location=self._line_served(buffer))
        own = lambda what, why, key: replace(
            described, kind="fusion", what=f"{what} {described.what}", why=why, repeats=(described.repeats, key)
        )
        innermost = self._innermost(self.module.instructions[value[0]]).opcode
        times = self._times_larger(place, traced, shape)
        if traced.computed is not None and not self._is_rounded(traced.computed, place, shape):
            opcode = traced.computed.opcode
            why = "computed from it by XLA"
            if opcode == "convert":
                why = f"XLA holds it as {shape.text.partition('[')[0]}"
                is_read = traced.stacked or self._is_read_by_backward(buffer)
                is_saved = self.places.residuals_of.get(number) and is_read
                why = f"the gradient saves it, and {why}" if is_saved else why
            return own(f"{opcode} of", why, opcode)
        if not times and self._is_on_the_way(value, number):
            return own(f"{innermost} for", "XLA computes it as an intermediate step", f"{innermost} on the way")
        if shape.on_host:
            return replace(described, kind="offloaded", why="it is in the memory of the host")
        if times:
            why = f"XLA expands {place.operation}, to {times:,} times its largest operand or result"
            return own(f"{innermost} for", why, f"{innermost} expanded")
        if self._is_scratch(value, place, shape):
            why = "memory of the library that XLA calls"
            return replace(described, kind="scratch", what=f"for {described.what}", why=why)
        if traced.sliced:
            parts = self.places.residuals_of.get(number, ())
            label = self.places.residuals[parts[0]].expression if parts else described.what
            return replace(described, kind="copy", what=f"a slice of {label}", why="one iteration's slice")
        kind: Kind = "temporary"
        if place.stage == "forward":
            residual = self._residual_of(number, shape, traced.stacked)
            is_late = self._is_read_by_backward(buffer)
            if residual is None and traced.stacked and self.places.residuals_of.get(number):
                return replace(described, why="one iteration's slice of a stacked value")
            if residual is not None and (is_late or traced.stacked):
                return self._as_copied(self._of_residual(residual, shape), traced)
            if is_late:
                other = self._held_for(buffer, shape)
                if other is not None:
                    of_other = replace(self._of_residual(other, shape), stands_in=True)
                    if other in self._residuals_held:
                        why = f"the backward pass computes `{of_other.what}` from it, and XLA also holds that value"
                        return replace(described, kind="fusion", why=why)
                    why = of_other.why
                    if described.what != of_other.what:
                        note = f"XLA holds `{described.what}`, and recomputes this value from it"
                        why = f"{why}; {note}" if why else note
                    return self._as_copied(replace(of_other, why=why), traced)
                if not self.places.knows_equations:
                    why = f"the backward pass reads it{self._where_late(buffer)}"
                    return self._as_copied(replace(described, kind="residual", why=why), traced)
                if self.places.is_computed_again(number):
                    return self._as_copied(replace(described, kind="merged", why=_MERGED), traced)
            if traced.carried and not traced.stacked:
                kind = "carried"
        elif place.is_recomputed and self._is_merged(buffer):
            return self._as_copied(replace(described, kind="merged", why=_MERGED), traced)
        else:
            kind = _kind_of(place)
            if kind == "temporary" and self._is_carried(buffer):
                return replace(described, kind="carried", why=_WHY["carried"])
        return self._as_copied(replace(described, kind=kind), traced)

    def _is_rounded(self, computed: Instruction, place: Maker, shape: Shape) -> bool:
        """Whether XLA only rounds the value to its own type, after computing it in a larger one."""
        return computed.opcode == "convert" and any(shape.text == type_text(aval) for aval in place.results)

    def _times_larger(self, place: Maker, traced: Traced, shape: Shape) -> int:
        """The factor by which the elements exceed those of the largest value that an equation reads or computes; 0 if
        they do not."""
        if traced.stacked or traced.sliced or traced.computed is not None:
            return 0
        largest = max((int(getattr(aval, "size", 0)) for aval in (*place.results, *place.operands)), default=0)
        return shape.size // largest if largest and shape.size >= 2 * largest else 0

    def _innermost(self, instruction: Instruction) -> Instruction:
        """The instruction that a fusion computes last."""
        while instruction.opcode == "fusion":
            instruction = self.module.instructions[self.module.computations[instruction.called[0]].root]
        return instruction

    def _is_on_the_way(self, value: Value, number: int) -> bool:
        """Whether an instruction is an intermediate step of what an equation becomes in XLA, and not the one with its
        value."""
        maker, primitive = self.module.instructions[value[0]], self.places.makers[number].operation
        inner = self._innermost(maker)
        if inner.opcode == "broadcast" and number in self.places.numbers(inner) and "broadcast" not in primitive:
            does = plain(primitive)
            return not (does.keeps_numbers or does.is_free or primitive == "select_n")
        if not self.places.knows_equations:
            return False
        readers = (u for n, _ in self.module.occurrences(value) for u, _ in self.module.users.get(n, ()))
        pass_on = (*_COPIES, "bitcast", "tuple", "get-tuple-element", "while", "call", "conditional")
        users = (u for u in readers if u.opcode not in pass_on)
        return maker.opcode not in ("while", "parameter") and any(number in self.places.numbers(u) for u in users)

    def _as_copied(self, described: Described, traced: Traced) -> Described:
        """A value that is copied: XLA's own, except for a residual of which the backward pass reads only the copy."""
        if traced.copied is None or traced.stacked:
            return described
        kind = self._kind_of_copy(traced.copied)
        why = _WHY.get(kind, "XLA copies it")
        if described.kind == "residual" and not self._reads_original(traced.copied):
            return replace(described, why=f"{described.why}; {why}")
        repeats = described.repeats, kind
        return replace(described, kind=kind, why=why, residual=None, repeats=repeats)

    def _reads_original(self, copy: Instruction) -> bool:
        """Whether the backward pass also reads the original of a copy."""
        seen: set[Value] = set()
        pending: list[Value] = [(copy.operands[0], ())]
        while pending:
            here = pending.pop()
            if here in seen:
                continue
            seen.add(here)
            if self.module.instructions[here[0]].opcode in ("bitcast", "get-tuple-element"):
                pending += self.module.made_of(here)
            for number, _ in self.module.occurrences(here):
                users = self.module.users.get(number, ())
                if any(u.id != copy.id and self.is_backward(u) for u, _ in users):
                    return True
        return False

    def _named(self, number: int, shape: Shape) -> Described:
        what, location, repeats = self.places.label(number)
        return Described("temporary", what, shape.text, location, repeats=repeats)

    def _of_residual(self, k: int, shape: Shape) -> Described:
        residual, maker = self.places.residuals[k], self.places.maker_of(k)
        label = self.places.label(maker)[0] if maker is not None else ""
        return Described(
            "residual", residual.expression, shape.text, residual.location, residual.why, k, residual.repeats,
            expression=label if label != residual.expression else "",
        )  # fmt: skip

    def _untraced(self, buffer: Buffer, shape: Shape) -> Described:
        served = next((t for v in buffer.values if (t := self.serving(v)) is not None), None)
        maker = self.module.instructions[buffer.values[0][0]]
        if served is None:
            return Described("not attributed", maker.opcode, shape.text, repeats=maker.opcode)
        described = self._named(served.numbers[0], shape)
        of = next((f" of {name}" for v in buffer.values if (name := self._argument_in(v))), "")
        kind: Kind = "fusion" if maker.opcode == "fusion" else "copy" if maker.opcode in _COPIES else "temporary"
        if self._is_carried(buffer):
            kind = "carried"
        what = f"{self._innermost(maker).opcode}{of} for {described.what}"
        return replace(described, kind=kind, what=what, why="XLA computes it for that")

    def _argument_in(self, value: Value) -> str:
        """The argument that a value is computed from only by instructions of XLA's own."""
        traced = self.traced(value)
        return self.argument_name(traced.argument[0]) if traced is not None and traced.argument is not None else ""

    def _is_carried(self, buffer: Buffer) -> bool:
        return any(
            self.module.instructions[n].opcode == "while" or self._is_of_loop(self.module.instructions[n])
            for n, _ in buffer.values
        )

    def _is_scratch(self, value: Value, place: Maker, shape: Shape) -> bool:
        """Whether it is a result of a custom call that corresponds to no result of its equation: scratch memory."""
        maker = self.module.instructions[value[0]]
        if maker.opcode != "custom-call" or not value[1] or not shape.text.startswith(("u8", "i8")):
            return False
        return all(getattr(aval, "dtype", None) != "uint8" for aval in place.results)

    # --- residuals ----------------------------------------------------------------------------------------------------

    def _residual_of(self, number: int, shape: Shape, stacked: bool) -> int | None:
        """Which residual an equation's value is, as far as one device has it; None if it is none, or only one
        iteration's part."""
        residuals = self.places.residuals_of.get(number, ())
        return next((k for k in residuals if self._is_all_of(k, shape, stacked)), None)

    def _is_all_of(self, k: int, shape: Shape, stacked: bool) -> bool:
        residual = self.places.residuals[k]
        size = int(getattr(residual.aval, "size", 0))
        if residual.lengths and not stacked:
            return False
        return size == shape.size or (self.n_devices > 1 and shape.size > 0 and size % shape.size == 0)

    def _is_read_by_backward(self, buffer: Buffer) -> bool:
        return any(True for _ in self._late_readers(buffer))

    def _late_readers(self, buffer: Buffer) -> Iterator[tuple[Instruction, int]]:
        """The instructions of the backward pass that read a buffer, and by which operand."""
        for value in buffer.values:
            for number, _ in self.module.occurrences(value):
                for user, place in self.module.users.get(number, ()):
                    if self.is_backward(user):
                        yield user, place

    def _where_late(self, buffer: Buffer) -> str:
        """`, for dot_general in model.py:12`: the first reader in the backward pass with a location."""
        for user, _ in self._late_readers(buffer):
            for number in self.places.numbers(user)[:1]:
                place, (_, location, _) = self.places.makers[number], self.places.label(number)
                if not place.holds_programs and place.stage == "backward":
                    return f", for {place.operation}{f' in {short_location(location)}' if location else ''}"
        return ""

    def is_backward(self, instruction: Instruction) -> bool:
        """Whether it is part of the backward pass."""
        if instruction.id not in self._backward:
            numbers = set(self.places.numbers(instruction))
            for c in instruction.called if instruction.opcode == "fusion" else ():
                for inner in self.module.computations[c].order:
                    numbers.update(self.places.numbers(self.module.instructions[inner]))
            self._backward[instruction.id] = any(self.places.makers[n].stage == "backward" for n in numbers)
        return self._backward[instruction.id]

    def _is_merged(self, buffer: Buffer) -> bool:
        """Whether the forward pass continues with the value that the backward pass should recompute, because XLA merged
        both."""
        makers, module = self.places.makers, self.module
        readers = (u for v in buffer.values for n, _ in module.occurrences(v) for u, _ in module.users.get(n, ()))
        return any(makers[n].stage == "forward" for u in readers for n in self.places.numbers(u))

    def _held_for(self, buffer: Buffer, shape: Shape) -> int | None:
        """The residual that the backward pass computes from a value of the forward pass, which XLA stores instead."""
        candidates: list[int] = []
        for user, place in self._late_readers(buffer):
            for number in self.places.numbers(user):
                candidates += [k for k in self.places.read_in(number) if self._is_all_of(k, shape, False)]
            if user.opcode == "fusion":
                candidates[:0] = self._computed_from(user, place)
        return min(candidates, key=lambda k: k in self._residuals_held, default=None)

    def _computed_from(self, fusion: Instruction, place: int) -> list[int]:
        """The residuals that a fusion computes from one of its operands."""
        inside = self.module.computations[fusion.called[0]]
        pending, residuals = [inside.parameters[place]], []
        seen = set(pending)
        for number in pending:
            for user, _ in self.module.users.get(number, ()):
                if user.id in seen:
                    continue
                seen.add(user.id)
                saved = [k for n in self.places.numbers(user) for k in self.places.residuals_of.get(n, ())]
                residuals += saved
                if not saved:
                    pending.append(user.id)
        return residuals


def _kind_of(place: Maker) -> Kind:
    return "recomputed" if place.is_recomputed else "cotangent" if place.is_cotangent else "temporary"


_MERGED = "a checkpoint recomputes it; XLA merged that with the forward pass and holds the value"
_WHY: dict[str, str] = {
    "layout": "XLA copies it into another order of dimensions",
    "offloaded": "it is on its way to or from the memory of the host",
    "double buffer": "XLA prepares the next one while this one is read",
    "copy": "XLA copies it",
    "carried": "it is carried by the loop",
}
