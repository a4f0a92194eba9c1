"""Explains why a residual is saved, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxviz.analysis.site import Site
from jaxviz.analysis.walk import Reader, location_of, primal_equation
from jaxviz.higher_order import of
from jaxviz.higher_order.custom_jvp import CUSTOM_JVP
from jaxviz.higher_order.custom_vjp import is_backward_rule
from jaxviz.ir.origin import Location, ancestors
from jaxviz.ir.syntax import Equation, Var
from jaxviz.report.tables import line_beside

if TYPE_CHECKING:
    from jaxviz.features.residuals.residual import Residual

_USES = {
    "mul": "multiplies the tangent by it",
    "div": "divides the tangent by it",
    "dot_general": "contracts the tangent with it",
    "conv_general_dilated": "convolves the tangent with it",
    "select_n": "uses it to choose which tangent passes",
    "gather": "gathers the tangent at these indices",
    "scatter": "scatters the tangent to these indices",
    "scatter-add": "adds the tangent at these indices",
    "scatter-mul": "scatters the tangent to these indices",
    "dynamic_slice": "slices the tangent at this position",
    "dynamic_update_slice": "writes the tangent at this position",
    "triangular_solve": "solves with it for the tangent",
    "cumsum": "sums the tangent along it",
    "cond": "uses it to choose which branch's tangent is taken",
}
"""What a linear equation does with a residual, by primitive."""

_USES_OF_OPERAND = {
    ("select_n", 1): "fills in with it where the tangent is not selected",
    ("select_n", 2): "fills in with it where the tangent is not selected",
    ("scatter", 0): "scatters the tangent into it",
    ("scatter", 2): "writes it into the tangent",
    ("scatter-add", 0): "adds the tangent to it",
    ("scatter-add", 2): "adds it to the tangent",
    ("dynamic_update_slice", 0): "writes the tangent into it",
    ("dynamic_update_slice", 1): "writes it into the tangent",
}
"""The same for operands with another role, most of which are zeros in place of a missing tangent."""


def explain(residual: Residual) -> tuple[str, str]:
    """Why a residual is saved: as a sentence, and as the text beside its name in a table."""
    kind, location, linear = residual.source_kind, residual.location, residual.linear
    what = {
        "argument": f"the argument `{residual.expression}`",
        "constant": f"the {residual.expression}, closed over,",
        "literal": f"the number {residual.expression}, which JAX passes to a jitted function as an array,",
    }.get(kind, f"`{residual.expression}` from line {location.line}")
    if residual.lengths:
        what += f", once for each of {' × '.join(f'{n:,}' for n in residual.lengths)} iterations,"
    branches = [d.branch for d in residual.dummies]
    filled = f"; {' and '.join(branches)} fill{'s' if len(branches) == 1 else ''} its place with a dummy"
    filled = filled if branches else ""
    if not linear:
        why = f"no equation of the linear program reads it{filled}"
        return f"{what} is saved, though {why}", why
    first = linear[0]
    more = len({r.equation for r in linear}) - 1
    because = _because(first, kind, location)
    others = f" (and {more} other use{'s' if more > 1 else ''})" if more else ""
    why = f"{because}{others}{_read_by(residual.backward, location, residual.site)}{filled}"
    return f"{what} is saved because {why}", why


def _because(reader: Reader, kind: str, location: Location) -> str:
    derived = next((e for e in reader.within if of(e).has_custom_rule), reader.equation)
    origin, primitive = derived.origin, reader.equation.primitive
    if is_backward_rule(reader.equation) and origin is not None:
        return f"the {origin.rule} passes it to its backward function"
    if origin is not None and origin.rule.startswith("brought back"):
        return f"the checkpoint policy offloads it; it is {origin.rule}"
    source = primal_equation(derived)
    at = location_of(reader.equation, reader.within)
    line = f" at {line_beside(at, location)}" if at is not None else ""
    if at is not None and kind == "intermediate" and (at.file, at.line) == (location.file, location.line):
        line = ""
    if origin is not None and origin.role == "recomputation":
        return f"`{primitive.name}`{line} is recomputed from it in the backward pass"
    name = primitive.name
    use = _USES_OF_OPERAND.get((name, reader.operand)) or _USES.get(name, f"reads it in `{name}`")
    return f"{_derivative(derived, source)}{line} {use}"


def _derivative(equation: Equation, source: Equation) -> str:
    """The rule of a derived equation, named after the user's equation, or the function with the custom rule."""
    if of(source) is CUSTOM_JVP:
        rules = (e.origin.rule for e in (equation, *ancestors(equation)) if e.origin is not None)
        named = next((rule for rule in rules if rule.startswith("custom JVP rule of ")), None)
        if named is not None:
            return f"the {named}"
    return f"{source.primitive.name}'s derivative"


def _read_by(backward: Sequence[Reader] | None, location: Location, site: Site) -> str:
    if backward is None:
        return "; there is no backward program to read it"
    if not backward:
        return "; no equation of the backward program reads it"
    equation = backward[0].equation
    whose = _cotangent_of(backward[0], location, site)
    more = len({r.equation for r in backward}) - 1
    others = f" and by {more} more" if more else ""
    return f"; read by the `{equation.primitive.name}` that forms {whose}{others}"


def _cotangent_of(reader: Reader, location: Location, site: Site) -> str:
    """The value whose cotangent a backward equation computes: the one whose tangent its linear equation read."""
    origin = reader.equation.origin
    linear = origin.equation if origin is not None else None
    tangent_of = site.derivation.linearized.tangent_of
    for a in linear.invars if linear is not None else ():
        if isinstance(a, Var) and a in tangent_of:
            value = tangent_of[a]
            if isinstance(value, Var):
                return f"the cotangent of `{site.called(value)}`"
    at = location_of(reader.equation, reader.within)
    return f"a cotangent of {line_beside(at, location)}" if at is not None else "a cotangent"
