"""The names of the equations and the values of a search: the user's expressions."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from jaxviz.analysis.naming import ROOM, ROOM_IN_SENTENCE, Naming
from jaxviz.features.nans.search import ProgramLevel
from jaxviz.ir.expressions import expression_at, shortened_expression
from jaxviz.ir.origin import locate
from jaxviz.ir.syntax import Atom, Equation


@dataclass(frozen=True)
class SearchNames:
    """The names in the searched programs.

    Args:
      naming: the names of the function and of its derivation.
      arguments: the paths of its inputs.
      inner: whether gradients that the function takes are inner ones, whose pass the report does not say.
    """

    naming: Naming
    arguments: Mapping[Atom, str]
    inner: bool

    def equation(self, level: ProgramLevel, e: Equation, is_derivative: bool, place: int = 0, room: int = ROOM) -> str:
        """`jnp.log(x)`, or `mul in the derivative of jnp.sqrt(x)`; '' if no expression is found.

        Args:
          level: the program that contains it.
          is_derivative: whether it belongs to the derivative of the user's operation.
          place: the index of the result.
          room: the maximum length of the expression.
        """
        name = self.naming.name(e, [outer for outer, _ in level.path], place, room, self.inner)
        _, of_derivative, called = name.partition(_OF)
        if not is_derivative and of_derivative:  # the transpose of a user's rule
            return called
        if not name or not is_derivative or of_derivative:
            return name
        # In JAX's own gradient, or a hand-written derivative of a jitted function, there is no rule to name.
        return f"{e.primitive.name}{_OF}{_expression(e, room) or name}"

    def differentiated(self, level: ProgramLevel, e: Equation) -> str:
        """The expression whose derivative an equation of the backward pass belongs to; '' if none is found."""
        within = [outer for outer, _ in level.path]
        return _expression(e, ROOM_IN_SENTENCE) or self.naming.name(e, within, room=ROOM_IN_SENTENCE, inner=self.inner)

    def written(self, e: Equation) -> str:
        """What the user's expression calls, such as 'log2', or 'div' and 'pow' for operators; '' for anything else."""
        try:
            match ast.parse(expression_at(locate(e.source)), mode="eval").body:
                case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                    return name
                case ast.BinOp(op=ast.Div()):
                    return "div"
                case ast.BinOp(op=ast.Pow()):
                    return "pow"
        except SyntaxError:  # no source
            pass
        return ""


def _expression(e: Equation, room: int) -> str:
    return shortened_expression(expression_at(locate(e.source)), room)


_OF = " in the derivative of "
