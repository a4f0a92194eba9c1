"""Names for the values that devices exchange: the user's expressions, in the forward and the backward program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxviz.analysis.naming import ROOM_IN_SENTENCE, Naming
from jaxviz.analysis.walk import cotangents_of, tangents_of, with_holders
from jaxviz.derivation import Derivation
from jaxviz.features.residuals.residual import Residual
from jaxviz.higher_order import Body, bodies, is_scan, of
from jaxviz.ir.primitives import keeps_numbers
from jaxviz.ir.syntax import Atom, Equation, Literal
from jaxviz.xla.compiled_memory.places import Places


@dataclass(frozen=True)
class BodyInput:
    """An input of a body: the equation that contains the body, the body, and the index of the input."""

    holder: Equation
    body: Body
    place: int

    @property
    def operand(self) -> Atom:
        """The operand of the equation that it is."""
        return self.holder.invars[self.body.operands[self.place]]


@dataclass(frozen=True)
class ValueNames:
    """The names of the values of programs with these equations."""

    places: Places

    @property
    def derivation(self) -> Derivation:
        return self.places.derivation

    def name(self, atom: Atom) -> str:
        """`jnp.tanh(x @ w)`, `params['w']`, `the cotangent of x @ w`; '' if unknown."""
        return self._name(atom, frozenset())

    def _name(self, atom: Atom, seen: frozenset[Atom]) -> str:
        if isinstance(atom, Literal) or atom in seen:
            return ""
        seen = seen | {atom}
        if atom in self._cotangent_of:
            whose = self._name(self._cotangent_of[atom], seen)
            return f"the cotangent of {whose}" if whose else ""
        if atom in self._arguments:
            return self._arguments[atom]
        if atom in self._residuals:
            return self._residuals[atom].value
        if atom in self._makers:
            return self._name_of_result(atom, seen)
        body_input = self._body_inputs.get(atom)
        if body_input is None:
            return ""
        if is_scan(body_input.holder):
            n_before, n_carry = of(body_input.holder).carry(body_input.holder.operation)
            if 0 <= body_input.place - n_before < n_carry:
                before = body_input.body.program.outvars[body_input.place - n_before]
                return self._name(before, seen) or self._name(body_input.operand, seen)
        return self._name(body_input.operand, seen)

    def _name_of_result(self, atom: Atom, seen: frozenset[Atom]) -> str:
        equation, within, place = self._makers[atom]
        inside = [b for b in bodies(equation) if b.has_results]
        if of(equation).kind in ("call", "devices") and len(inside) == 1:
            return self._name(inside[0].program.outvars[place], seen)
        named = self._naming.name(equation, within, place, ROOM_IN_SENTENCE)
        if (not named or " in " in named) and keeps_numbers(equation):
            return self._name(equation.invars[0], seen) or named
        return named

    def cotangent_of(self, equation: Equation) -> Atom | None:
        """The value whose cotangent, or a part of it, an equation of the backward program computes; None if none."""
        origin = equation.origin
        if origin is None or origin.role not in ("cotangent", "accumulation", "zero"):
            return None
        for v in equation.outvars:
            if v in self._cotangent_of:
                return self._cotangent_of[v]
        linear = origin.equation
        operands: Sequence[Atom] = linear.invars if linear is not None else ()
        values = [self._tangents[a] for a in operands if a in self._tangents]
        sizes = {getattr(v.aval, "size", 0) for v in equation.outvars}
        # Prefer the value with as many elements as the equation computes.
        return next((v for v in values if getattr(v.aval, "size", 0) in sizes), values[0] if values else None)

    def cotangent_returned(self, equation: Equation, within: Sequence[Equation]) -> Atom | None:
        """The value whose cotangent an equation computes as a result of the equation that contains it; None if none."""
        for body in bodies(within[-1]) if within and equation.outvars else ():
            if body.has_results and equation.outvars[0] in body.program.outvars:
                result = within[-1].outvars[body.program.outvars.index(equation.outvars[0])]
                return self._cotangent_of.get(result)
        return None

    def source(self, atom: Atom) -> Atom:
        """The original of a value that calls and loops only pass on, possibly an argument of the function."""
        seen: set[Atom] = set()
        while atom not in seen:
            seen.add(atom)
            if atom in self._body_inputs and atom not in self._arguments:
                body_input = self._body_inputs[atom]
                n_before, n_carry = of(body_input.holder).carry(body_input.holder.operation)
                if n_before <= body_input.place < n_before + n_carry:
                    return atom
                atom = body_input.operand
            elif atom in self._makers and keeps_numbers(self._makers[atom][0]):
                atom = self._makers[atom][0].invars[0]
        return atom

    def argument(self, atom: Atom) -> str:
        """The path of the argument that a value is; '' if it is none."""
        source = self.source(atom)
        if isinstance(source, Literal):
            return ""
        residual = self._residuals.get(source)
        saved = residual.value if residual is not None and residual.kind == "argument" else ""
        return self._arguments.get(source) or saved

    def body_input(self, atom: Atom) -> BodyInput | None:
        """Which input of a body a value is; None if it is none."""
        while atom in self._makers and keeps_numbers(self._makers[atom][0]):
            atom = self._makers[atom][0].invars[0]
        return self._body_inputs.get(atom)

    @cached_property
    def _naming(self) -> Naming:
        forward = self.derivation.forward if self.places.has_gradient else None
        return Naming(self.derivation.primal, forward)

    @cached_property
    def _tangents(self) -> dict[Atom, Atom]:
        return tangents_of(self.derivation.linear) if self.places.has_gradient else {}

    @cached_property
    def _cotangent_of(self) -> dict[Atom, Atom]:
        if not self.places.has_gradient:
            return {}
        return {ct: value for ct, (value, _) in cotangents_of(self.derivation.backward, self._tangents).items()}

    @cached_property
    def _programs(self) -> list[tuple[Equation, tuple[Equation, ...]]]:
        checkpointed = [c.forward for c in self.derivation.linearized.checkpoints] if self.places.has_gradient else []
        programs = *self.places.programs, *checkpointed, self.derivation.primal
        return [pair for program in programs for pair in with_holders(program)]

    @cached_property
    def _makers(self) -> dict[Atom, tuple[Equation, tuple[Equation, ...], int]]:
        return {v: (e, within, i) for e, within in reversed(self._programs) for i, v in enumerate(e.outvars)}

    @cached_property
    def _body_inputs(self) -> dict[Atom, BodyInput]:
        inputs: dict[Atom, BodyInput] = {}
        for e, _ in self._programs:
            for body in bodies(e):
                for i, v in enumerate(body.program.invars):
                    inputs.setdefault(v, BodyInput(e, body, i))
        return inputs

    @cached_property
    def _arguments(self) -> dict[Atom, str]:
        paths: dict[Atom, str] = {}
        for program in (self.places.programs[0], self.derivation.primal):
            paths.update((v, n) for v, n in zip(program.invars, program.arg_names, strict=False) if n)
        return paths

    @cached_property
    def _residuals(self) -> dict[Atom, Residual]:
        """The inputs of the backward program that are residuals."""
        if not self.places.has_gradient:
            return {}
        return dict(zip(self.derivation.backward.invars, self.places.residuals, strict=False))
