"""Names values in reports by the expressions in the user's code."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from jaxviz.analysis.grouping import repetition
from jaxviz.analysis.kinds import Kinds, Place, kinds_of
from jaxviz.analysis.modules import module_of
from jaxviz.analysis.walk import (
    library_location_of,
    library_of,
    location_of,
    own_location_of,
    primal_equation,
    programs_in,
    with_holders,
)
from jaxviz.derivation import Derivation
from jaxviz.ir import compat
from jaxviz.ir.expressions import assigned_at, assignment, expression_at, shortened_expression, shows_source
from jaxviz.ir.origin import Instructions, Location, ancestors, evaluated_by, library_line, own_line, written_by
from jaxviz.ir.syntax import Atom, Equation, Program
from jaxviz.transforms.inline import Made

IN_DERIVATIVE = " in the derivative of "
"""What stands between an operation of a derivative rule and the expression, in a name."""
ROOM = 72
"""The longest expression in a name; longer ones are cut after a token."""

ROOM_IN_SENTENCE = 44
"""The same for a name within a sentence about another value."""


class OwnName(str):
    """A name that jaxviz adds with `checkpoint_name`, to have a value saved, and that reports ignore."""

    __slots__ = ()


def is_own_name(equation: Equation) -> bool:
    """Whether an equation only gives a value a name that jaxviz adds."""
    return equation.primitive is compat.name_p and isinstance(equation.params["name"], OwnName)


@dataclass(frozen=True)
class Naming:
    """The names of what a function's gradient computes.

    Args:
      program: the traced function.
      forward: its forward program, for the values of custom rules.
      written: if calls are inlined in the program, the function as written, for what a library computes in them,
      originals: and the equations of that; see `transforms.inline.originals`.
      kinds: the kinds of the equations.
    """

    program: Program
    forward: Program | None = None
    written: Program | None = None
    originals: Mapping[Equation, Made] = field(default_factory=dict)
    kinds: Kinds = field(default_factory=Kinds)

    @cached_property
    def _home(self) -> dict[Equation, Program]:
        """The program that contains each equation."""
        both = (self.program,) if self.written is None else (self.written, self.program)
        return {e: inner for program in both for inner in programs_in(program) for e in inner.equations}

    @cached_property
    def _holders(self) -> dict[Equation, tuple[Equation, ...]]:
        """The enclosing equations of each equation of the function and of the forward program."""
        programs = (self.program,) if self.forward is None else (self.forward, self.program)
        return {e: within for program in programs for e, within in with_holders(program) if within}

    def location(self, equation: Equation, within: Sequence[Equation]) -> Location | None:
        """The user's line of an equation, wherever it was moved from; a library's, if there is none of the user's."""
        return own_location_of(equation, within) or location_of(equation, self.holders(equation, within))

    def library(self, equation: Equation, within: Sequence[Equation]) -> str:
        """`flax Dense.__call__, linear.py:287`: where an equation is in a library that the user's line calls; or ''."""
        return library_of(*self.original(equation, self.holders(equation, within)))

    def repetition(self, equation: Equation, within: Sequence[Equation], place: int) -> Hashable:
        """The key of that name in `grouping`, found once for each kind of equation."""
        kind = place, self.kinds.place(equation, within)
        if (known := self._repetitions.get(kind)) is None:
            known = self._repetitions[kind] = repetition(equation, within, place)
        return known

    @cached_property
    def _repetitions(self) -> dict[tuple[int, Place], Hashable]:
        return {}

    def original(self, equation: Equation, within: Sequence[Equation]) -> tuple[Equation, Sequence[Equation]]:
        """The equation of the function as written, with those that contain it."""
        return self.originals.get(primal_equation(equation), (equation, within))

    def holders(self, equation: Equation, within: Sequence[Equation]) -> Sequence[Equation]:
        """The equations that contain an equation; for one hoisted out of a loop, those that contained the original."""
        if own_location_of(equation, within) is not None:
            return within
        outermost = within[0] if within else equation
        known = (self._holders[e] for e in (outermost, primal_equation(outermost)) if e in self._holders)
        return (*next(known, ()), *within)

    @cached_property
    def _readers(self) -> dict[Program, dict[Atom, list[Equation | None]]]:
        return {}

    def _readers_in(self, program: Program) -> dict[Atom, list[Equation | None]]:
        """The equations of a program that read each value; includes None for a result of the program."""
        if program not in self._readers:
            readers: dict[Atom, list[Equation | None]] = {a: [None] for a in program.outvars}
            for e in program.equations:
                for a in e.invars:
                    readers.setdefault(a, []).append(e)
            for e in reversed(program.equations):
                if is_own_name(e):  # what reads the value reads it by the name
                    by_value, by_name = (readers.get(a, []) for a in (e.invars[0], e.outvars[0]))
                    by_value[:] = [*(r for r in by_value if r is not e), *by_name]
            self._readers[program] = readers
        return self._readers[program]

    def name(
        self, equation: Equation, within: Sequence[Equation] = (), place: int = 0, room: int = ROOM, inner: bool = True
    ) -> str:
        """`jnp.tanh(x @ w + b)`, or `exp in jax.nn.softmax(x, -1)` for an intermediate result of an expression.

        What a library's module computes within the user's expression is named by the module and the library's
        expression: `Net/layer_3/mlp · nn.gelu(gate)`.

        Args:
          equation: the equation that computes the value.
          within: the equations that contain its program, outermost first.
          place: the index of the result.
          room: the maximum length of the expression.
          inner: whether a cotangent of a gradient that the function itself takes is distinguished from its value: `mul
            in the inner gradient of jnp.tanh(x @ w)`.

        Returns:
          the name; '' if no expression is found, as for code without source.
        """
        module, text = self._named(equation, within, place, room, inner)
        return f"{module} · {text}" if module and text else text

    def module(self, equation: Equation, within: Sequence[Equation] = (), place: int = 0) -> str:
        """The module that the name of a value begins with; '' if it does not begin with one."""
        return self._named(equation, within, place, ROOM)[0]

    def _named(
        self, equation: Equation, within: Sequence[Equation], place: int, room: int, inner: bool = True
    ) -> tuple[str, str]:
        equation, place = self._without_own_name(equation, place)
        if own_location_of(equation, within) is None:
            within = self.holders(equation, within)
        if not _is_of_rule(equation):
            return self._expression(equation, within, place, room, inner)
        # A rule is applied to one operation within an expression, or to the whole expression.
        differentiated = next(e for e in ancestors(equation) if not _is_of_rule(e))
        module, text = self._expression(differentiated, within, 0, room, inner)
        return module, f"{equation.primitive.name}{IN_DERIVATIVE}{text}" if text else ""

    def _without_own_name(self, equation: Equation, place: int) -> tuple[Equation, int]:
        """The equation that computes a value to which jaxviz gave a name, and the value's index among its results."""
        source = primal_equation(equation)
        if is_own_name(source) and source in self._home:
            value = source.invars[0]
            for e in self._home[source].equations:
                if value in e.outvars:
                    return self._without_own_name(e, e.outvars.index(value))
        return equation, place

    def _expression(
        self, equation: Equation, within: Sequence[Equation], place: int, room: int, inner: bool
    ) -> tuple[str, str]:
        """The library's module that computes a value, if any, and the expression."""
        operation, is_inner = equation.primitive.name, _is_inner(equation)
        own = shortened_expression(expression_at(own_location_of(equation, within)), room)
        if own and not is_inner and self.is_whole(equation, within, place):
            return "", own
        original, holders = self.original(equation, within)
        at = library_location_of(original, holders)
        written = shortened_expression(expression_at(at), room)
        module = module_of(original, holders) if at is not None and shows_source() else ""
        outer = own if own and not module else written
        if is_inner and not inner:
            return module, outer or (operation if module else "")
        if is_inner:
            text = f"{operation} in the inner gradient"
            return module, f"{text} of {outer}" if outer else text if module else ""
        text = written if written and self.is_whole(original, holders, place, in_library=True) else operation
        if not outer:
            return module, text if module else ""
        return module, text if text == outer else f"{text} in {outer}"

    def assigned(self, equation: Equation, within: Sequence[Equation] = (), place: int = 0) -> str:
        """The variable that the value is assigned to in the user's source; '' if it is part of an expression."""
        within = self.holders(equation, within)
        if _is_of_rule(equation) or _is_inner(equation) or not self.is_whole(equation, within, place):
            return ""
        return assigned_at(own_location_of(equation, within))

    def _is_alone(self, equation: Equation) -> bool:
        """Whether this operation is all that its expression evaluates in the forward program."""
        return len(self._of_expression.get(_users(equation.source), ())) <= 1

    @cached_property
    def _of_expression(self) -> dict[Hashable, set[Hashable]]:
        """For each expression the instructions of JAX that it produced in the forward program."""
        instructions: dict[Hashable, set[Hashable]] = {}
        for _, e in self.forward.walk() if self.forward is not None else ():
            written = written_by(e.source)
            instructions.setdefault(_own(written), set()).add(written)
        return instructions

    def is_whole(self, equation: Equation, within: Sequence[Equation], place: int, in_library: bool = False) -> bool:
        """Whether a value is that of the user's whole expression: something outside the expression reads it.

        Args:
          in_library: whether the expression is that of a library which the user's calls, rather than the user's.
        """
        key = equation, tuple(within), place, in_library
        if (known := self._answers.get(key)) is None:
            known = self._answers[key] = self._find_whole(*key)
        return known

    @cached_property
    def _answers(self) -> dict[tuple[Equation, tuple[Equation, ...], int, bool], bool]:
        """The answers of `is_whole` so far: reports name a value itself, its cotangent, and what it is assigned to."""
        return {}

    def _find_whole(self, equation: Equation, within: Sequence[Equation], place: int, in_library: bool) -> bool:
        if is_of_users_rule(equation):
            return self._is_alone(equation) and not in_library
        for depth in range(len(within), -1, -1):
            e = equation if depth == len(within) else within[depth]
            source = primal_equation(e)
            program = self._home.get(source)
            if program is None:  # the body of a call that the forward program contains a copy of
                source, bodies = e, (body for _, body in within[depth - 1].programs) if depth else ()
                program = next((body for body in bodies if e in body.equations), None)
            if program is None or place >= len(source.outvars):
                return False
            value = source.outvars[place]
            if own_line(source.source) is not None or (in_library and library_line(source.source) is not None):
                readers = self._readers_in(program).get(value, ())
                return any(_is_outside(r, source, evaluated_by if in_library else _users) for r in readers)
            # A jitted library function: its results are the call's results.
            if value not in program.outvars:
                return False
            place = program.outvars.index(value)
        return False


_NAMINGS: WeakKeyDictionary[Derivation, Naming] = WeakKeyDictionary()


def naming_of(derivation: Derivation) -> Naming:
    """The names of the values in a derivation's programs: one object, whose answers all reports on it share."""
    if derivation not in _NAMINGS:
        _NAMINGS[derivation] = Naming(derivation.primal, derivation.forward, kinds=kinds_of(derivation))
    return _NAMINGS[derivation]


def written_at(location: Location | None, room: int = ROOM) -> str:
    """`h = jnp.tanh(x @ w)`: the expression at a location, with its assignment target; '' if there is none."""
    expression = shortened_expression(expression_at(location), room)
    return assignment(assigned_at(location), expression) if expression else ""


def of_module(equation: Equation, within: Sequence[Equation] = (), room: int = ROOM) -> str:
    """`Net/layer_3/mlp · nn.gelu(gate)`: the library's expression of an equation, if it is in a module; or ''."""
    written = shortened_expression(expression_at(library_location_of(equation, within)), room)
    module = module_of(equation, within) if written else ""
    return f"{module} · {written}" if module else ""


def _is_of_rule(equation: Equation) -> bool:
    """Whether a derivative rule of JAX's or a library's created it, and the function itself has no such equation."""
    origin = equation.origin
    if origin is None or origin.equation is None or origin.role in ("primal", "recomputation", "dummy"):
        return False
    return not is_of_users_rule(equation)


def _is_inner(equation: Equation) -> bool:
    """Whether it computes a cotangent of a gradient that the function itself takes, such as a force."""
    return compat.is_transposed(primal_equation(equation).source)


def is_of_users_rule(equation: Equation) -> bool:
    """Whether it was created in a custom rule of the user's, and has its own expression."""
    if equation.origin is None or equation.origin.equation is None or own_line(equation.source) is None:
        return False
    if equation.source is equation.origin.equation.source:
        return False  # the usual case
    of_call = [_users(e.source) for e in ancestors(equation) if own_line(e.source) is not None]
    return _users(equation.source) not in of_call


def _is_outside(reader: Equation | None, equation: Equation, expression: Callable[[Any], Hashable]) -> bool:
    """Whether a reader of an equation's result is outside of the expression, evaluated once, that computed it."""
    if reader is None:
        return True
    if _traceback(reader) is not None and _traceback(reader) is _traceback(equation):
        return False  # both from one inlined call, which a transform has perhaps evaluated again
    # The same instructions in a second run compute the same values; a cotangent of an inner gradient shares them.
    same = written_by(equation.source) == written_by(reader.source) and not compat.is_transposed(reader.source)
    return same or expression(equation.source) != expression(reader.source)


def _traceback(equation: Equation) -> Any:
    return equation.source.traceback if equation.source is not None else None


def _users(source: Any) -> Hashable:
    return _own(written_by(source))


def _own(written: Instructions | None) -> Hashable:
    return written.outermost if written is not None else None
