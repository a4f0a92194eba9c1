"""Where derivatives end by structure: a walk forward from the parameters, from types and rules alone.

Each value has the set of parameters whose tangents reach it, as the bits of an integer. Where an equation that the loss
depends on has an operand with a parameter's tangent, and no result with it, the derivative in that parameter ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import or_
from typing import Literal

from jaxviz.derivation import Derivation
from jaxviz.higher_order import bodies, is_loop, of
from jaxviz.higher_order.custom_vjp import is_backward_rule
from jaxviz.higher_order.shard_map import inside as traced_inside
from jaxviz.ir import compat
from jaxviz.ir.origin import caller_in_library
from jaxviz.ir.primitives import plain
from jaxviz.ir.sharing import SharedTable
from jaxviz.ir.syntax import Atom, Equation, Operation, Program
from jaxviz.transforms.dce import live_equations
from jaxviz.transforms.driver import Mask, select
from jaxviz.transforms.linearize import linearize_rules
from jaxviz.transforms.transpose import linear_variables, transpose_rules

Reason = Literal["asked", "library", "integer", "boolean", "flat", "rule", "none"]
"""Why an equation has no derivative: the user's own code stops it; a function of JAX or of a library does, as a softmax
does for its maximum; its result is an integer or a boolean; its slope is zero everywhere; a custom rule has none for
that argument; JAX's rule has none."""


@dataclass(eq=False, slots=True)  # not frozen, like Equation
class StructuralStop:
    """An equation at which the derivative in some parameters ends. It is immutable.

    Args:
      equation: the equation.
      within: the equations that contain its program, outermost first.
      operand: the operand whose tangent it drops.
      leaves: the parameters, as bits.
    """

    equation: Equation
    within: tuple[Equation, ...]
    operand: int
    leaves: int

    @property
    def reason(self) -> Reason:
        e = self.equation
        if (stops := plain(e.primitive.name).stops) == "asked":
            return "asked" if not self.stopped_by else "library"
        if stops != "":
            return stops
        if of(e).has_custom_rule:
            return "rule"
        types = [getattr(v.aval, "dtype", None) for v in e.outvars]
        if any(t is not None and t.kind == "b" for t in types):
            return "boolean"
        return "integer" if any(t is not None and t.kind in "iu" for t in types) else "none"

    @property
    def stopped_by(self) -> str:
        """Whose code calls `stop_gradient`: '' if it is the user's own, `JAX`, or the name of a package."""
        return caller_in_library(self.equation.source, "stop_gradient")


@dataclass(eq=False, slots=True)  # not frozen, like Equation
class Carrier:
    """An equation that passes the tangents of some parameters on. It is immutable."""

    equation: Equation
    within: tuple[Equation, ...]
    leaves: int


@dataclass(eq=False, slots=True)
class _Inside:
    """What happens in a program to the tangents of its inputs, each of which has a bit: the same wherever it is called.

    Args:
      results: the bits of the results.
      after: those of its references afterwards, by their place among the inputs: they may have been written to.
      stops, carriers: of its own equations.
      calls: those of its equations whose programs are walked through, with the bits of the inputs of each.
    """

    results: list[int] = field(default_factory=list)
    after: dict[int, int] = field(default_factory=dict)
    stops: list[tuple[Equation, int, int]] = field(default_factory=list)
    carriers: list[tuple[Equation, int]] = field(default_factory=list)
    calls: list[tuple[Equation, _Inside, list[int]]] = field(default_factory=list)


class Reach:
    """What the derivative of a function's results in its inputs passes, by structure.

    Args:
      derivation: of the function.
    """

    def __init__(self, derivation: Derivation):
        primal, nonzeros = derivation.primal, derivation.nonzeros
        results = primal.outvars[: derivation.n_results or None]
        live: set[Atom] = set(results)
        equations = tuple(live_equations(primal.equations, live, made_smaller=True))
        self.read = sum(1 << k for k, v in enumerate(primal.invars) if v in live)
        """The inputs that the results depend on in any way, as bits."""
        self._ins = [1 << k if nonzero else 0 for k, nonzero in enumerate(nonzeros)]
        self._walked: dict[tuple[Program, tuple[bool, ...]], _Inside] = {}
        program = replace(primal, equations=equations, outvars=results)
        self._program = program
        self._whole = self._run(program, self._ins)
        self.reached = _union(self._whole.results)
        """The differentiated inputs that the derivative reaches, as bits."""

    @cached_property
    def stops(self) -> list[StructuralStop]:
        """Where it ends, in the order of the program."""
        return [
            StructuralStop(e, within, k, _moved(bits, ins))
            for inside, ins, within in _walk(self._whole, self._ins, ())
            for e, k, bits in inside.stops
        ]

    @cached_property
    def carriers(self) -> list[Carrier]:
        """The equations that pass it on."""
        return [
            Carrier(e, within, _moved(bits, ins))
            for inside, ins, within in _walk(self._whole, self._ins, ())
            for e, bits in inside.carriers
        ]

    @cached_property
    def unasked(self) -> int:
        """The inputs on which the results depend not only through what the user's own code stops, as bits."""
        program = self._program
        read = _Unasked()(program, (True,) * len(program.outvars), (False,) * len(program.invars))
        return sum(1 << k for k, is_read in enumerate(read) if is_read)

    def _inside(self, program: Program, nonzeros: Sequence[bool]) -> _Inside:
        key = program, tuple(nonzeros)
        if key not in self._walked:
            self._walked[key] = self._run(program, [1 << k if nonzero else 0 for k, nonzero in enumerate(nonzeros)])
        return self._walked[key]

    def _run(self, program: Program, ins: Sequence[int]) -> _Inside:
        env: dict[Atom, int] = {v: bits for v, bits in zip(program.invars, ins, strict=True) if bits}
        read = {a for e in program.equations for a in e.invars}
        read.update(program.outvars)
        inside = _Inside()
        for e in program.equations:
            bits = [env.get(a, 0) for a in e.invars]
            every = _union(bits)
            if not every:
                continue
            is_opened = _is_opened(e)
            outs = self._nested(e, bits, env, inside) if is_opened else _plain(e, bits, every, env)
            reached = 0
            if outs is None:
                for v in e.outvars:
                    if v in read:
                        env[v] = reached = every
            else:
                for v, b in zip(e.outvars, outs, strict=True):
                    if b and v in read:
                        env[v] = b
                        reached |= b
            if is_opened or not e.outvars:
                continue
            if reached:
                inside.carriers.append((e, reached))
            if reached != every:
                for k, b in enumerate(bits):
                    if b & ~reached and not compat.is_ref(e.invars[k].aval):
                        inside.stops.append((e, k, b & ~reached))
        inside.results = [env.get(a, 0) for a in program.outvars]
        if program.effects:
            inside.after = {k: env.get(v, 0) for k, v in enumerate(program.invars) if compat.is_ref(v.aval)}
        return inside

    def _nested(self, e: Equation, bits: list[int], env: dict[Atom, int], inside: _Inside) -> list[int]:
        outs = [0] * len(e.outvars)
        read = dict(enumerate(bits))
        for body in sorted(bodies(e), key=lambda body: not body.has_results):
            if not body.has_results:  # the condition of a loop, which reads its carry
                ins = [read[i] for i in body.operands]
                if any(ins):
                    inside.calls.append((e, self._inside(body.program, [b != 0 for b in ins]), ins))
                continue
            ins = [bits[i] for i in body.operands]
            while True:
                with traced_inside(e):  # rules that are found here have the types that they have there
                    within = self._inside(body.program, [b != 0 for b in ins])
                results = [_moved(b, ins) for b in within.results]
                after = {k: _moved(b, ins) for k, b in within.after.items()}
                if not is_loop(e):
                    break
                grown = [after.get(k, b) for k, b in enumerate(ins)]
                n_before, n_carry = of(e).carry(e.operation)
                for k in range(n_carry):
                    grown[n_before + k] |= results[k]
                if grown == ins:
                    break
                ins = grown  # until the carry has the bits of every iteration
            inside.calls.append((e, within, ins))
            read.update(zip(body.operands, ins, strict=True))
            for k, b in enumerate(results[: len(outs)]):
                outs[k] |= b
            for k, b in after.items():
                ref = e.invars[body.operands[k]]
                env[ref] = env.get(ref, 0) | b
        return outs


class _Unasked:
    """Which inputs some results of a program depend on in any way, apart from what the user's own code stops."""

    def __init__(self) -> None:
        self._known: dict[tuple[Program, Mask, Mask], Mask] = {}

    def __call__(self, program: Program, needed: Sequence[bool], written: Sequence[bool]) -> Mask:
        """Which inputs they depend on.

        Args:
          needed: which results.
          written: which inputs are references that are read later.
        """
        key = program, tuple(needed), tuple(written)
        if key not in self._known:
            live = {*select(needed, program.outvars), *select(written, program.invars)}
            for e in reversed(program.equations):
                refs = [a for a in e.invars if compat.is_ref(a.aval)]
                if live.isdisjoint(e.outvars) and live.isdisjoint(refs):
                    continue
                if plain(e.primitive.name).stops != "asked" or caller_in_library(e.source, "stop_gradient"):
                    live.update([e.invars[k] for k in self._nested(e, live)] if _is_opened(e) else e.invars)
            self._known[key] = tuple([v in live for v in program.invars])
        return self._known[key]

    def _nested(self, e: Equation, live: Collection[Atom]) -> set[int]:
        every = bodies(e)
        read = set(range(len(e.invars))).difference(*(body.operands for body in every))
        needed = [v in live for v in e.outvars]
        n_before, n_carry = of(e).carry(e.operation)
        n = -1
        while n < len(read):  # until the carry has what every iteration reads
            n = len(read)
            for body in every:
                asked = [True] * len(body.program.outvars)
                if body.has_results:
                    if is_loop(e):
                        carry = body.operands[n_before : n_before + n_carry]
                        needed[:n_carry] = [x or k in read for x, k in zip(needed, carry, strict=False)]
                        read.update(select(needed[:n_carry], carry))
                    asked[: len(needed)] = needed[: len(asked)]
                written = [
                    compat.is_ref(e.invars[k].aval) and (e.invars[k] in live or k in read) for k in body.operands
                ]
                read.update(select(self(body.program, asked, written), body.operands))
        return read


def _plain(e: Equation, bits: Sequence[int], every: int, env: dict[Atom, int]) -> list[int] | None:
    """The bits of the results of an equation; None if each has all that its operands have, as nearly always."""
    operation = e.operation
    if operation.effects and any(compat.is_ref(a.aval) for a in e.invars):
        env.update((a, every) for a in e.invars if compat.is_ref(a.aval))
        return [every if _may_vary(a) else 0 for a in operation.out_avals]
    passes = passed_on(operation, tuple(map(bool, bits)))
    return [_union(bits[k] for k in operands) for operands in passes] if passes else None


def _walk(
    inside: _Inside, ins: Sequence[int], within: tuple[Equation, ...]
) -> Iterator[tuple[_Inside, Sequence[int], tuple[Equation, ...]]]:
    """A program and those called in it, with the bits of their inputs and the equations around them."""
    yield inside, ins, within
    for e, called, local in inside.calls:
        yield from _walk(called, [_moved(b, ins) for b in local], (*within, e))


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


def _moved(bits: int, ins: Sequence[int]) -> int:
    """Bits of the inputs of a program as what these have outside."""
    moved = 0
    while bits:
        low = bits & -bits
        moved |= ins[low.bit_length() - 1]
        bits ^= low
    return moved


def _is_opened(e: Equation) -> bool:
    """Whether its programs are walked through; a function with a rule of its own is one step."""
    return bool(e.operation.programs) and of(e).is_opened and not of(e).has_custom_rule


def _may_vary(aval: object) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is None or dtype.kind not in "biu"


def passed_on(operation: Operation, nonzeros: tuple[bool, ...]) -> tuple[tuple[int, ...], ...]:
    """For each result of an operation the operands whose tangents its tangent depends on; () if each depends on all
    of them.

    Args:
      operation: without programs that are opened.
      nonzeros: which operands have a tangent.
    """
    key = operation, nonzeros
    if (known := _PASSED_ON.get(key)) is not None:
        return known
    rule = linearize_rules(operation, nonzeros)
    having = tuple([k for k, nonzero in enumerate(nonzeros) if nonzero])
    linear = rule.linear.program
    tangents = linear.invars[len(linear.invars) - len(having) :]
    depends: list[tuple[int, ...]] = []
    of_each = [_reached_from(linear, v) for v in tangents]
    results = iter(linear.outvars)
    for nonzero in rule.nonzeros_out:
        result = next(results) if nonzero else None
        depends.append(tuple([k for k, found in zip(having, of_each, strict=True) if result in found]))
    passes = () if all(operands == having for operands in depends) else tuple(depends)
    # What passes a user's rule may depend on what was transposed before.
    return passes if operation.has_user_data else _PASSED_ON.keep(key, passes)


_PASSED_ON: SharedTable[tuple[tuple[int, ...], ...]] = SharedTable(8192)


def _reached_from(linear: Program, tangent: Atom) -> set[Atom]:
    """The variables of a linear program that depend on a tangent; a custom rule may have no cotangent for it."""
    if not any(is_backward_rule(e) for e in linear.equations):
        return linear_variables(linear, [tangent])
    found = {tangent}
    for e in linear.equations:
        if found.isdisjoint(e.invars):
            continue
        if not is_backward_rule(e) or any(a in found for a in _with_cotangents(e)):
            found.update(e.outvars)
    return found


def _with_cotangents(e: Equation) -> list[Atom]:
    """The linear operands of the derivative of a function with a custom VJP rule that get a cotangent from it."""
    kind = e.operation.params
    n = kind["num_res"] if "num_res" in kind else kind["residuals_tree"].num_leaves
    operands = list(e.invars[n:])
    mask = tuple([k >= n for k in range(len(e.invars))])
    rules = transpose_rules.found(e.operation)
    if not rules:
        try:
            rules = [transpose_rules(e.operation, mask, (True,) * len(e.outvars), False)]
        except Exception:  # a rule that looks at values, or is wrong: what it returns is not known here
            return operands
    return [a for a, *nonzeros in zip(operands, *(rule.nonzeros_out for rule in rules), strict=True) if any(nonzeros)]
