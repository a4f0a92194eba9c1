"""Where values of 16 bits become float32 and stay so, through products, or beside products of 16 bits.

A walk through the program, calls and loops included, follows what is wide although it was computed from narrow values.
Values that meet belong together, in one `Wide`, with one cause: the operation that widened the first of them. It counts
once a product reads it whose other operands were narrow too, or which another product precedes. Until then it may be a
normalization, a softmax or a loss, which compute in float32 on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp

from jaxviz.analysis.grouping import grouped, repetition
from jaxviz.analysis.naming import ROOM_IN_SENTENCE, naming_of
from jaxviz.analysis.walk import location_of, primal_equation
from jaxviz.derivation import Derivation
from jaxviz.features.cost.parts import CostPart, parts, total_of
from jaxviz.features.lint.advice import Advice
from jaxviz.features.residuals.residual import Residual
from jaxviz.higher_order import bodies, carried, is_loop
from jaxviz.ir.origin import Location
from jaxviz.ir.primitives import keeps_numbers, plain
from jaxviz.ir.syntax import Atom, Equation, Literal, Program
from jaxviz.report.tables import format_bytes, format_flops, nbytes, short_location

_SHARE = 0.01
"""There is advice if products of this share of all FLOPs are wide, or as much of all bytes is written in excess."""


@dataclass(eq=False)
class Wide:
    """Values in a wide type that come from narrow ones.

    Args:
      number: how many were found before.
      seed: the operation that widens the first of them.
      within: the equations that contain its program, outermost first.
      narrow: the type that they had.
      is_asked: whether the user's expression asks for the wide type, as `astype` does.
      is_stored: whether it is a parameter that the user converts, and so only stored in the narrow type.
      back: what the narrow value was computed from, by a product, if that was wide before.
    """

    number: int
    seed: Equation
    within: tuple[Equation, ...]
    narrow: Any
    is_asked: bool
    is_stored: bool = False
    back: Wide | None = None
    promoting: Equation | None = None
    partner: Atom | None = None
    partner_is: str = ""
    is_by_parameter: bool = False
    first: Equation | None = None
    """The first product that reads it."""
    converts_operands: bool = False
    computed: dict[Equation, bool] = field(default_factory=dict)
    """The equations of the function that compute it, and whether a product came before."""
    fresh: set[Equation] = field(default_factory=set)
    """Of those, the ones whose results have the numbers that were widened."""
    ends: set[Equation] = field(default_factory=set)
    """Those whose results are converted back, or leave a loop's body or a branch."""
    is_multiplied: bool = False
    is_joined: bool = False
    merged: Wide | None = None

    @property
    def root(self) -> Wide:
        return self if self.merged is None else self.merged.root

    @cached_property
    def counted(self) -> set[Equation]:
        """The equations that compute in the narrow type once the advice is followed: from where it takes effect to the
        last product, or to where the program itself converts back."""
        if self.is_asked and self.converts_operands:
            return {self.seed, *self.fresh} | ({self.first} if self.first is not None else set())
        by_product = self.promoting is not None and is_product(self.promoting)
        outside = {self.seed} if by_product and self.promoting is not self.seed else {self.seed, self.promoting}
        outside -= {self.promoting} if by_product else set()
        read: set[Atom] = set()
        counted: set[Equation] = set()
        for e, after_product in reversed(self.computed.items()):
            if is_product(e) or e in self.ends or not read.isdisjoint(e.outvars):
                read.update(e.invars)
                if after_product if self.is_asked else e not in outside:
                    counted.add(e)
        return counted


@dataclass(frozen=True)
class _State:
    """What is known of a value.

    Args:
      wide: what it belongs to, or if it is narrow itself, what it was computed from.
      is_past: whether a product lies between.
      is_fresh: whether it still has the numbers that were widened.
      input: the input of the program that it is, or a part of.
    """

    wide: Wide | None = None
    is_past: bool = False
    is_fresh: bool = False
    input: int | None = None


CARRIED = "what the loop carries"
_CONSTANT = -1
"""The input that constants are counted as."""


def is_product(e: Equation) -> bool:
    return plain(e.primitive.name).kind in ("product", "convolution")


def _bits(a: Atom) -> int:
    """The bits of a floating-point number; 0 for other types."""
    dtype = getattr(a.aval, "dtype", None)
    return 0 if dtype is None or not jnp.issubdtype(dtype, jnp.floating) else 8 * jnp.dtype(dtype).itemsize


def has_narrow(d: Derivation) -> bool:
    """Whether the function computes anything in fewer than 32 bits."""
    return any(0 < _bits(v) < 32 for _, e in d.primal.walk() for v in (*e.invars, *e.outvars))


def passes(d: Derivation) -> list[Program]:
    """The forward program, and the backward one if there is one."""
    return [d.forward] if d.no_reverse_mode is not None else [d.forward, d.backward]


class _Spread:
    def __init__(self, d: Derivation):
        self.d, self.naming, self.found = d, naming_of(d), dict[Equation, Wide]()
        self.made: dict[Atom, tuple[Equation, tuple[Equation, ...]]] = {}
        self.carries: set[Atom] = set()
        self.program(d.primal, (), [_State(input=i) for i in range(len(d.primal.invars))])

    def program(self, p: Program, within: tuple[Equation, ...], ins: Sequence[_State]) -> list[_State]:
        states: dict[Atom, _State] = dict.fromkeys(p.constvars, _State(input=_CONSTANT))
        states.update(zip(p.invars, ins, strict=True))
        for e in p.equations:
            self.made.update(dict.fromkeys(e.outvars, (e, within)))
            of_operands = [states.get(a, _State()) for a in e.invars]
            outs = self.inside(e, within, of_operands) if e.programs else self.plain(e, within, of_operands)
            states.update(zip(e.outvars, outs, strict=True))
        return [states.get(a, _State()) for a in p.outvars]

    def inside(self, e: Equation, within: tuple[Equation, ...], ins: list[_State]) -> list[_State]:
        results = [_State()] * len(e.outvars)
        for i in carried(e) if is_loop(e) else ():
            ins[i] = replace(ins[i], is_fresh=False, input=None)
        for body in bodies(e):
            if is_loop(e):
                self.carries.update(
                    v for v, i in zip(body.program.invars, body.operands, strict=True) if i in carried(e)
                )
            for _ in range(3 if is_loop(e) else 1):  # a carry is known after an iteration; it may reach another one
                outs = self.program(body.program, (*within, e), [ins[i] for i in body.operands])
                if not body.has_results:
                    break
                for a, state in zip(body.program.outvars, outs, strict=True):
                    self.leaves(a, state)
                results = [old if old.wide else new for old, new in zip(results, outs, strict=True)]
                for i, after in zip(carried(e) if is_loop(e) else (), outs, strict=False):
                    ins[i] = ins[i] if ins[i].wide else replace(after, is_fresh=False, input=None)
        for v, state in zip(e.outvars, results, strict=True):
            if state.wide and _bits(v) >= 32 and not is_loop(e):
                state.wide.root.computed.setdefault(e, state.is_past)  # the rule of a custom function comes from it
        return results

    def plain(self, e: Equation, within: tuple[Equation, ...], ins: list[_State]) -> list[_State]:
        numbers = [(a, s) for a, s in zip(e.invars, ins, strict=True) if _bits(a)]
        results = [v for v in e.outvars if _bits(v)]
        if all(isinstance(a, Literal) or s.input == _CONSTANT for a, s in zip(e.invars, ins, strict=True)):
            return [_State(input=_CONSTANT)] * len(e.outvars)
        if not numbers or not results:
            return [_State()] * len(e.outvars)
        if max(map(_bits, results)) < 32:
            return [self.narrow(e, numbers)] * len(e.outvars)
        are_wide = any(_bits(a) >= 32 for a, _ in numbers)
        if not are_wide or is_product(e):
            numbers = [(a, self.seed(e, within, a, s) if _bits(a) == 16 else s) for a, s in numbers]
        of_wide = [s for a, s in numbers if s.wide and (_bits(a) >= 32 or s.is_fresh)]
        if not of_wide:
            kept = numbers[0][1].input if keeps_numbers(e) or plain(e.primitive.name).kind == "part" else None
            return [_State(input=kept)] * len(e.outvars)
        first = min((s.wide.root for s in of_wide if s.wide), key=lambda w: w.number)
        for s in of_wide:
            self.merge(first, s.wide.root if s.wide else first)
        self.explain(first, e, numbers)
        is_past = any(s.is_past for s in of_wide)
        if is_product(e) and are_wide:
            if first.is_asked and len(of_wide) < len(numbers):
                return [_State()] * len(e.outvars)  # a parameter in float32 decides what is computed from here on
            first.is_multiplied |= len(of_wide) == len(numbers) or is_past
            first.first = first.first or e
            for s in of_wide:
                if s.is_fresh and s.wide and s.wide.seed is not first.seed:
                    first.computed[s.wide.seed] = True
            first.converts_operands |= first.first is e and any(s.is_fresh and s.wide is first for s in of_wide)
            is_past = True
        first.computed[e] = first.computed.get(e, False) or is_past
        is_fresh = (not are_wide or (keeps_numbers(e) and of_wide[0].is_fresh)) and not is_product(e)
        if is_fresh:
            first.fresh.add(e)
        return [_State(first, is_past, is_fresh)] * len(e.outvars)

    def narrow(self, e: Equation, numbers: list[tuple[Atom, _State]]) -> _State:
        """The state of a narrow result."""
        known = next((s for _, s in numbers if s.wide), _State())
        was_wide = any(_bits(a) >= 32 for a, _ in numbers)
        for a, state in numbers:
            self.leaves(a, state)
        past = is_product(e) or (known.is_past and not was_wide)
        keeps = keeps_numbers(e) or plain(e.primitive.name).kind == "part"
        return _State(known.wide, past, input=numbers[0][1].input if keeps and not was_wide else None)

    def leaves(self, a: Atom, state: _State) -> None:
        """Notes that a value is converted back, or leaves its program."""
        if state.wide and a in self.made:
            state.wide.root.ends.add(self.made[a][0])

    def seed(self, e: Equation, within: tuple[Equation, ...], a: Atom, state: _State) -> _State:
        """The state of a narrow value that is widened here. That data arrive in 16 bits does not say in which type to
        compute."""
        is_asked = not is_product(e) or all(_bits(x) == 16 for x in e.invars)
        is_asked &= e.primitive.name != "convert_element_type" or self.naming.is_whole(e, within, 0)
        if state.input is not None and not self.is_parameter(state.input):
            return _State()
        is_stored = is_asked and state.input is not None
        back = state.wide if state.is_past else None
        wide = self.found.setdefault(e, Wide(len(self.found), e, within, a.aval.dtype, is_asked, is_stored, back))
        if wide.first is None and is_product(e) and not is_asked:
            wide.promoting = e
        return _State(wide, is_fresh=True)

    def merge(self, first: Wide, other: Wide) -> None:
        if first is not other:
            first.is_joined |= other.back is not None and other.back.root is first
            first.is_multiplied |= other.is_multiplied
            for e, past in other.computed.items():
                first.computed[e] = first.computed.get(e, False) or past
            first.fresh |= other.fresh
            first.ends |= other.ends
            other.merged = first

    def explain(self, wide: Wide, e: Equation, numbers: list[tuple[Atom, _State]]) -> None:
        """Notes what made a value wide: the other operand of the first operation that reads it."""
        if wide.partner is not None or (keeps_numbers(e) and len(numbers) == 1):
            return
        wide.promoting = wide.promoting or e
        others = [(a, s) for a, s in numbers if _bits(a) >= 32 and (s.wide is None or s.wide.root is not wide)]
        for a, s in others if wide.promoting is e else ():
            wide.partner = a
            wide.partner_is = self.called(a, s)
            wide.is_by_parameter = isinstance(a, Literal) or s.input == _CONSTANT or self.is_parameter(s.input)

    def is_parameter(self, i: int | None) -> bool:
        return i is not None and i != _CONSTANT and self.d.nonzeros[i]

    def location(self, e: Equation) -> Location | None:
        return location_of(*self.made[e.outvars[0]])

    def named(self, e: Equation) -> str:
        """The user's expression for what an equation computes, or a part of which it computes; else the operation."""
        name = self.naming.name(*self.made[e.outvars[0]], room=ROOM_IN_SENTENCE)
        return name.rpartition(" in ")[2] or str(e.primitive.name)

    def called(self, a: Atom, s: _State) -> str:
        """What a wide operand is called: the path of an argument, an expression, or ''."""
        if isinstance(a, Literal):
            return f"the NumPy number {float(a.val):.6g}"
        if s.input is not None and s.input != _CONSTANT:
            return f"`{self.d.primal.arg_names[s.input]}`"
        made = self.made.get(a)
        while made is not None and keeps_numbers(made[0]) and made[0].invars[0] in self.made:
            made = self.made[made[0].invars[0]]
        name = self.naming.name(*made, room=ROOM_IN_SENTENCE) if made is not None else ""
        if made is None:
            return "an array that it closes over" if s.input == _CONSTANT else CARRIED if a in self.carries else ""
        return f"`{name}`" if name and " in " not in name else ""


def find_widened(d: Derivation) -> Iterator[Advice]:
    """What becomes float32 on the way and stays so, in a derivation with jitted functions inlined."""
    if not has_narrow(d):
        return
    spread = _Spread(d)
    roots = [w for w in spread.found.values() if w.merged is None and not w.is_stored]
    roots = [w for w in roots if w.is_multiplied or (w.is_joined and w.is_by_parameter and not w.is_asked)]
    if not roots:
        return
    costs = [[part for e in program.equations for part in parts(e)] for program in passes(d)]
    total = total_of(part.cost for of_pass in costs for part in of_pass)
    for same in grouped(roots, lambda w: repetition(w.seed, w.within)):
        first = same[0]
        counted = {e for w in same for e in w.counted}
        share = 1 - jnp.dtype(first.narrow).itemsize / 4
        wide = [[p for p in of_pass if primal_equation(p.equation) in counted] for of_pass in costs]
        wide += [[]] * (2 - len(wide))
        flops = [sum(p.cost.flops for p in of_pass if _is_wide_product(p)) for of_pass in wide]
        more = [int(share * sum(map(_wide_nbytes, of_pass))) for of_pass in wide]
        wide_saved = (r for r in d.residuals.items if _bits(r.var) >= 32 and r.kind != "argument")
        saved = tuple(r for r in wide_saved if _is_narrow_then(r, counted))
        size = int(share * sum(r.nbytes for r in saved))
        where = location_of(first.seed, first.within)
        is_much = sum(flops) > _SHARE * total.flops or sum(more) > _SHARE * total.bytes_written
        if where is not None and is_much:
            yield _advice(first, spread, where, flops, more, size, saved, len(same))


def _is_narrow_then(r: Residual, counted: set[Equation]) -> bool:
    """Whether a residual is narrow once these equations compute in the narrow type: they make it, or multiply it."""
    made = r.producer is not None and primal_equation(r.producer) in counted
    return made or any(is_product(e) and e in counted for e in map(primal_equation, r.consumers))


def _is_wide_product(p: CostPart) -> bool:
    return is_product(p.equation) and any(_bits(a) >= 32 for a in p.equation.invars)


def _wide_nbytes(p: CostPart) -> int:
    """The bytes of wide results, but for conversions, which XLA computes where they are read."""
    is_conversion = p.equation.primitive.name == "convert_element_type"
    return 0 if is_conversion else p.times * sum(nbytes(v.aval) for v in p.equation.outvars if _bits(v) >= 32)


def _advice(
    w: Wide, spread: _Spread, where: Location, flops: Sequence[int], more: Sequence[int], size: int,
    saved: tuple[Residual, ...], count: int,
) -> Advice:  # fmt: skip
    narrow, reads = jnp.dtype(w.narrow).name, w.promoting if w.partner_is else None
    made = spread.named(reads or w.seed)
    if w.is_asked or not w.partner_is:
        text = f"`{made}` is float32, computed from {narrow}"
    else:
        text = f"`{made}` is float32, since {w.partner_is} is, although the other operand is {narrow}"
    last = next((e for e in reversed(w.computed) if e in w.counted and spread.location(e) is not None), None)
    if last is not None and (end := spread.location(last)) is not None:
        text += f"; so is what follows, as far as `{spread.named(last)}` ({short_location(end)})"
    text += "."
    if sum(flops):
        text += f" Products of {format_flops(flops[0])} forward and {format_flops(flops[1])} backward read float32."
    text += (
        f" Where nothing asks for float32 anew, what is computed up to there takes {format_bytes(more[0])} less "
        f"forward and {format_bytes(more[1])} less backward in {narrow}"
        f"{f', {format_bytes(size)} of it saved' if size else ''}."
    )
    return Advice("", text, _fix(w, spread, made, f"jnp.{narrow}"), where, size, count, saved)


def _fix(w: Wide, spread: _Spread, made: str, narrow: str) -> str:
    if not w.is_asked and w.promoting is not None and is_product(w.promoting):
        operand = w.partner_is or "the operand in float32"
        if operand == CARRIED:
            return f"start {CARRIED} in {narrow}."
        return f"convert {operand} to {narrow} before that product."
    if not w.is_asked:
        return f"convert it back there: `({made}).astype({narrow})`."
    assert w.first is not None
    product, at = spread.named(w.first), spread.location(w.first)
    there = f"`{product}`{f' ({short_location(at)})' if at is not None else ''}"
    if w.converts_operands:
        return f"in {there}, multiply the values in {narrow}, and convert the product."
    return f"before {there}, convert back what is multiplied there, with `.astype({narrow})`."
