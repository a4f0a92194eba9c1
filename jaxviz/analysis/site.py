"""The forward program of a gradient from a reader's view: where its values come from, and their names."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxviz import higher_order
from jaxviz.analysis.kinds import Place
from jaxviz.analysis.naming import ROOM_IN_SENTENCE, Naming, OwnName, naming_of
from jaxviz.analysis.walk import Reader, Source, SourceTracer, defined_at, primal_equation
from jaxviz.derivation import Derivation
from jaxviz.ir import compat
from jaxviz.ir.expressions import shows_source, unpacked_name
from jaxviz.ir.origin import Location, definition
from jaxviz.ir.own_code import is_own
from jaxviz.ir.pretty import literal_text
from jaxviz.ir.syntax import Atom, Equation, Literal, Var


@dataclass(frozen=True, eq=False)
class Site:
    """The forward program from a reader's view: names, producers, and where its function is defined."""

    names: Mapping[Var, str]
    sources: SourceTracer
    constants: frozenset[Var]
    arguments: Mapping[Var, str]
    definition: Location
    derivation: Derivation
    naming: Naming

    @staticmethod
    def of(derivation: Derivation, names: Mapping[Var, str]) -> Site:
        forward = derivation.forward
        arguments = {v: n for v, n in zip(derivation.primal.invars, derivation.primal.arg_names, strict=True) if n}
        constants, where = frozenset(forward.constvars), defined_at(derivation.primal)
        return Site(
            names, SourceTracer(forward), constants, arguments, where, derivation, naming_of(derivation),
        )  # fmt: skip

    def name(self, atom: Atom) -> str:
        """The path of an argument, the value of a literal, or the name in the forward program."""
        if isinstance(atom, Literal):
            return literal_text(atom)
        return self.names.get(atom, "_")

    def like(self, reader: Reader) -> Reader:
        """The first reader that differs from this one in variables alone, so that all texts about both are the same."""
        key = reader.operand, self.naming.kinds.place(reader.equation, reader.within)
        return self._readers.setdefault(key, reader)

    @cached_property
    def _readers(self) -> dict[tuple[int, Place], Reader]:
        return {}

    @cached_property
    def residuals(self) -> dict[Hashable, Any]:
        """The first residual of each kind."""
        return {}

    def called(self, value: Var) -> str:
        """The name of a value: the expression that computes it, the path of an argument, or else its variable."""
        key = value, shows_source()
        if key not in self._called:
            source = self.sources(value)[0]
            equation = source.equation
            room = ROOM_IN_SENTENCE
            named = "" if equation is None else self.naming.name(equation, source.within, source.place, room)
            self._called[key] = named or self.operand(value)
        return self._called[key]

    @cached_property
    def _called(self) -> dict[tuple[Var, bool], str]:
        return {}

    def operand(self, atom: Atom) -> str:
        return self.arguments.get(atom) or self.name(atom) if isinstance(atom, Var) else self.name(atom)

    def expression(self, source: Source) -> str:
        """`jnp.cos(x)`: the user's expression for a value, or the path of an argument.

        Without source it is the operation and its operands, by path or name: `cos(a)`.
        """
        equation = source.equation
        if equation is None:
            return self.operand(source.atom)
        if equation.primitive is compat.name_p and not isinstance(equation.params["name"], OwnName):
            where = f" in {self.place(source)}" if source.within else ""
            return f"checkpoint_name {equation.params['name']!r}{where}"
        named = self.naming.name(equation, source.within, source.place)
        if named:
            return named
        operands = ", ".join(self.operand(a) for a in equation.invars[:4])
        if not source.within:
            return f"{equation.primitive.name}({operands})"
        return f"{equation.primitive.name} in {self.place(source)}"

    def assigned(self, source: Source) -> str:
        """The variable that a value is assigned to in the user's source; for a loop's carry, its name in the body."""
        if source.equation is None:
            return ""
        of_loop = _loop_variable(*source.carry) if source.carry is not None else ""
        return of_loop or self.naming.assigned(source.equation, source.within, source.place)

    def place(self, source: Source) -> str:
        """`branch 1 of cond in scan`: the bodies in which a value is computed, innermost first."""
        if not source.within:
            return ""
        numbers = dict(source.branches)
        parts = []
        for holder in reversed(source.within):
            name = call_name(holder)
            parts.append(f"branch {numbers[holder]} of {name}" if holder in numbers else name)
        return " in ".join(dict.fromkeys(parts))


def _loop_variable(loop: Equation, carried: Atom) -> str:
    """The name of a carry: `x` of `def body(x, w)`, or `h` if the body begins with `h, c = carry`; '' if unknown."""
    for body in higher_order.bodies(primal_equation(loop)):
        program, at = body.program, definition(body.program.debug_info)
        if carried in program.invars and at is not None and is_own(at.file):
            return unpacked_name(at, program.arg_names[program.invars.index(carried)])
    return ""


def call_name(equation: Equation) -> str:
    """The name of the function that an equation calls, or the kind of the equation."""
    if higher_order.of(equation).is_checkpoint:
        return "checkpoint"
    return str(equation.params.get("name", equation.primitive.name))
