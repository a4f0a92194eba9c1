"""Where derivatives end by structure: a walk forward from the parameters, from types and rules alone.

Each value has the set of parameters whose tangents reach it, as the bits of an integer. Where an equation that the loss
depends on has an operand with a parameter's tangent, and no result with it, the derivative in that parameter ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from jaxviz.derivation import Derivation
from jaxviz.higher_order import bodies, is_loop, of
from jaxviz.higher_order.custom_vjp import is_backward_rule
from jaxviz.ir import compat
from jaxviz.ir.primitives import plain
from jaxviz.ir.syntax import Atom, Equation, Operation, Program
from jaxviz.transforms.dce import dce_program
from jaxviz.transforms.linearize import linearize_rules
from jaxviz.transforms.transpose import linear_variables, transpose_rules

Reason = Literal["asked", "integer", "boolean", "flat", "rule", "none"]
"""Why an equation has no derivative: the user asked for none; its result is an integer or a boolean; its slope is zero
everywhere; a custom rule has none for that argument; JAX's rule has none."""


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
        if (stops := plain(e.primitive.name).stops) != "":
            return stops
        if of(e).has_custom_rule:
            return "rule"
        types = [getattr(v.aval, "dtype", None) for v in e.outvars]
        if any(t is not None and t.kind == "b" for t in types):
            return "boolean"
        return "integer" if any(t is not None and t.kind in "iu" for t in types) else "none"


@dataclass(eq=False, slots=True)  # not frozen, like Equation
class Carrier:
    """An equation that passes the tangents of some parameters on. It is immutable."""

    equation: Equation
    within: tuple[Equation, ...]
    leaves: int


@dataclass
class Reach:
    """What the derivative of a function's results in its inputs passes, by structure.

    Args:
      derivation: of the function.
    """

    derivation: Derivation
    stops: list[StructuralStop] = field(default_factory=list)
    carriers: list[Carrier] = field(default_factory=list)
    reached: int = 0
    """The differentiated inputs that the derivative reaches, as bits."""
    read: int = 0
    """The inputs that the results depend on in any way, as bits."""

    def __post_init__(self) -> None:
        primal, nonzeros = self.derivation.primal, self.derivation.nonzeros
        n = self.derivation.n_results or len(primal.outvars)
        used = [k < n for k in range(len(primal.outvars))]
        live, kept = dce_program(primal, used, keep_inputs=[False] * len(primal.invars))
        self.read = sum(1 << k for k, is_kept in enumerate(kept) if is_kept)
        ins = [1 << k if nonzeros[k] else 0 for k, is_kept in enumerate(kept) if is_kept]
        self._passes: dict[tuple[Operation, tuple[bool, ...]], tuple[tuple[int, ...], ...]] = {}
        self._runs: dict[tuple[Program, tuple[int, ...]], tuple[list[int], list[int]]] = {}
        outs, _ = self._run(live, ins, (), True)
        for bits in outs:
            self.reached |= bits

    def _run(
        self, program: Program, ins: Sequence[int], within: tuple[Equation, ...], notes: bool
    ) -> tuple[list[int], list[int]]:
        """The bits of the results, and those of the inputs afterwards: a reference may have been written to."""
        env: dict[Atom, int] = {v: bits for v, bits in zip(program.invars, ins, strict=True) if bits}
        read = {a for e in program.equations for a in e.invars}
        read.update(program.outvars)
        for e in program.equations:
            bits = [env.get(a, 0) for a in e.invars]
            if not any(bits):
                continue
            outs = self._nested(e, bits, within, notes, env) if _is_opened(e) else self._plain(e, bits, env)
            reached = 0
            for v, b in zip(e.outvars, outs, strict=True):
                if b and v in read:
                    env[v] = b
                    reached |= b
            if not notes or not e.outvars:
                continue
            if reached and not _is_opened(e):
                self.carriers.append(Carrier(e, within, reached))
            if _is_opened(e):
                continue
            for k, b in enumerate(bits):
                if b & ~reached and not compat.is_ref(e.invars[k].aval):
                    self.stops.append(StructuralStop(e, within, k, b & ~reached))
        return [env.get(a, 0) for a in program.outvars], [env.get(v, 0) for v in program.invars]

    def _plain(self, e: Equation, bits: Sequence[int], env: dict[Atom, int]) -> list[int]:
        if any(compat.is_ref(a.aval) for a in (*e.invars, *e.outvars)):
            every = 0
            for b in bits:
                every |= b
            for a in e.invars:
                if compat.is_ref(a.aval):
                    env[a] = every
            return [every if _may_vary(a) else 0 for a in e.operation.out_avals]
        outs = []
        for operands in self._passed_on(e.operation, tuple([b != 0 for b in bits])):
            out = 0
            for k in operands:
                out |= bits[k]
            outs.append(out)
        return outs

    def _passed_on(self, operation: Operation, nonzeros: tuple[bool, ...]) -> tuple[tuple[int, ...], ...]:
        """For each result the operands whose tangents it depends on."""
        key = operation, nonzeros
        known = self._passes.get(key)
        if known is None:
            known = self._passes[key] = passed_on(operation, nonzeros)
        return known

    def _nested(
        self, e: Equation, bits: list[int], within: tuple[Equation, ...], notes: bool, env: dict[Atom, int]
    ) -> list[int]:
        outs = [0] * len(e.outvars)
        inside = (*within, e)
        for body in bodies(e):
            if not body.has_results:
                continue
            n_before, n_carry = of(e).carry(e.operation)
            ins = [bits[i] for i in body.operands]
            while is_loop(e):  # until the carry has the bits of every iteration
                key = body.program, tuple(ins)
                if key not in self._runs:
                    self._runs[key] = self._run(body.program, ins, inside, False)
                results, after = self._runs[key]
                grown = list(after)
                for k in range(n_carry):
                    grown[n_before + k] |= results[k]
                if grown == ins:
                    break
                ins = grown
            results, after = self._run(body.program, ins, inside, notes)
            for k, b in enumerate(results[: len(outs)]):
                outs[k] |= b
            for i, b, v in zip(body.operands, after, body.program.invars, strict=True):
                if compat.is_ref(v.aval) and b:
                    env[e.invars[i]] = env.get(e.invars[i], 0) | b
        return outs


def _is_opened(e: Equation) -> bool:
    """Whether its programs are walked through; a function with a rule of its own is one step."""
    return bool(e.operation.programs) and of(e).is_opened and not of(e).has_custom_rule


def _may_vary(aval: object) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is None or dtype.kind not in "biu"


def passed_on(operation: Operation, nonzeros: tuple[bool, ...]) -> tuple[tuple[int, ...], ...]:
    """For each result of an operation the operands whose tangents its tangent depends on.

    Args:
      operation: without programs that are opened.
      nonzeros: which operands have a tangent.
    """
    rule = linearize_rules(operation, nonzeros)
    having = [k for k, nonzero in enumerate(nonzeros) if nonzero]
    linear = rule.linear.program
    tangents = linear.invars[len(linear.invars) - len(having) :]
    depends: list[tuple[int, ...]] = []
    of_each = [_reached_from(linear, v) for v in tangents]
    results = iter(linear.outvars)
    for nonzero in rule.nonzeros_out:
        result = next(results) if nonzero else None
        depends.append(tuple([k for k, found in zip(having, of_each, strict=True) if result in found]))
    return tuple(depends)


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
