"""Why a residual is kept, as a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from jaxviz.analysis.walk import Reader, Site, location_of, primal_equation
from jaxviz.ir.origin import Location
from jaxviz.ir.syntax import Var

_USES = {
    "mul": "multiplies the tangent by it",
    "div": "divides the tangent by it",
    "dot_general": "contracts the tangent with it",
    "conv_general_dilated": "convolves the tangent with it",
    "select_n": "chooses by it which tangent passes",
    "gather": "gathers the tangent at these indices",
    "scatter": "scatters the tangent to these indices",
    "scatter-add": "adds the tangent at these indices",
    "scatter-mul": "scatters the tangent to these indices",
    "dynamic_slice": "slices the tangent at this place",
    "dynamic_update_slice": "writes the tangent at this place",
    "triangular_solve": "solves with it for the tangent",
    "cumsum": "sums the tangent along it",
}
"""What a linear equation does with a residual, by primitive."""


def explain(
    kind: str, expression: str, location: Location, linear: Sequence[Reader], backward: Sequence[Reader], site: Site
) -> str:
    """The sentence for one residual.

    Args:
      kind, expression, location: of the residual.
      linear, backward: the equations of the linear and the backward program that read it.
      site: the forward program.
    """
    what = {
        "argument": f"the argument `{expression}`",
        "constant": f"the constant `{expression}`, closed over,",
        "literal": f"the number {expression}, which JAX passes to a jitted function as an array,",
    }.get(kind, f"`{expression}` from line {location.line}")
    if not linear:
        return f"{what} is kept, though no equation of the linear program reads it"
    first = linear[0]
    more = len({r.equation for r in linear}) - 1
    because = _because(first, kind, location)
    others = f" (and {more} other use{'s' if more > 1 else ''})" if more else ""
    return f"{what} is saved because {because}{others}{_read_by(backward, site)}"


def _because(reader: Reader, kind: str, location: Location) -> str:
    source = primal_equation(reader.equation)
    at = location_of(reader.equation, reader.within)
    line = f" at line {at.line}" if at is not None and (kind != "intermediate" or at.line != location.line) else ""
    use = _USES.get(reader.equation.primitive.name, f"reads it in `{reader.equation.primitive.name}`")
    return f"{source.primitive.name}'s derivative{line} {use}"


def _read_by(backward: Sequence[Reader], site: Site) -> str:
    if not backward:
        return "; no equation of the backward program reads it"
    equation = backward[0].equation
    whose = _cotangent_of(backward[0], site)
    more = len({r.equation for r in backward}) - 1
    others = f" and by {more} more" if more else ""
    return f"; read by the `{equation.primitive.name}` that forms {whose} cotangent{others}"


def _cotangent_of(reader: Reader, site: Site) -> str:
    """Whose cotangent a backward equation forms: that of the value whose tangent its linear equation read."""
    origin = reader.equation.origin
    linear = origin.equation if origin is not None else None
    tangent_of = site.derivation.linearized.tangent_of
    for a in linear.invars if linear is not None else ():
        if isinstance(a, Var) and a in tangent_of:
            value = tangent_of[a]
            if isinstance(value, Var):
                return f"`{site.operand(value)}`'s"
    at = location_of(reader.equation, reader.within)
    return f"line {at.line}'s" if at is not None else "a"
