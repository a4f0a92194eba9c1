"""Explains why a residual is saved, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxviz.analysis.site import Site
from jaxviz.analysis.versions import Version
from jaxviz.analysis.walk import Reader, location_of
from jaxviz.higher_order import of
from jaxviz.higher_order.custom_vjp import is_backward_rule
from jaxviz.ir.origin import Location, ancestors
from jaxviz.ir.syntax import Var
from jaxviz.report.tables import line_beside, listed, together

if TYPE_CHECKING:
    from jaxviz.features.residuals.residual import Residual

_USES = {
    "mul": "multiplies the tangent by it",
    "div": "divides the tangent by it",
    "dot_general": "multiplies the tangent by it, as a matrix",
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
    ("select_n", 1): "takes it where the tangent is not selected",
    ("select_n", 2): "takes it where the tangent is not selected",
    ("scatter", 0): "scatters the tangent into it",
    ("scatter", 2): "writes it into the tangent",
    ("scatter-add", 0): "adds the tangent to it",
    ("scatter-add", 2): "adds it to the tangent",
    ("dynamic_update_slice", 0): "writes the tangent into it",
    ("dynamic_update_slice", 1): "writes it into the tangent",
}
"""The same for operands with another role, most of which are zeros in place of a missing tangent."""


def explain(residual: Residual) -> tuple[str, str]:
    """Why a residual is saved: in a sentence with its rule, and in short, as beside its name in a table."""
    kind, location = residual.source_kind, residual.location
    what = {
        "argument": f"the argument `{residual.expression}`",
        "constant": f"the {residual.expression}, closed over,",
        "literal": f"the number {residual.expression}, which JAX passes to a jitted function as an array,",
    }.get(kind, f"`{residual.expression}` from line {location.line}")
    if residual.lengths:
        what += f", once for each of {' × '.join(f'{n:,}' for n in residual.lengths)} iterations,"
    short = needed([residual])
    if not residual.is_read or not residual.linear:
        return f"{what} is saved, though {short}", short
    use, read_by = residual.alike.use, "; there is no backward program to read it"
    if residual.backward:
        read_by = _read_by(use, residual.backward[use.backward], location, residual.site)
    return f"{what} is {short}: {use.rule}{read_by}", short


@dataclass(frozen=True, slots=True)
class Use:
    """One operation whose derivative needs a residual.

    Args:
      rule: what its rule does with the residual.
      backward: which of the residual's readers in the backward program is part of its derivative.
      is_of_backward_rule: whether the residual is passed to the backward function of a custom rule.
    """

    rule: str
    backward: int
    is_of_backward_rule: bool


def use_of(residual: Residual) -> Use:
    """The first use of a residual by the linear program that the backward program has too."""
    linear, backward, site = residual.linear, residual.backward or (), residual.site
    of_use = lambda reader: (reader.source, site.like(reader).computes_again)
    transposed = {of_use(reader): i for i, reader in reversed(list(enumerate(backward)))}
    pairs = ((reader, i) for reader in linear if (i := transposed.get(of_use(reader))) is not None)
    reader, i = next(pairs, ((*backward, *linear)[0], 0))
    return Use(_rule(site.like(reader)), i, is_backward_rule(reader.equation))


def needed(residuals: Sequence[Residual]) -> str:
    """``needed again in line 12's gradient (matrix product)``: what reads the values of one expression again; and
    which versions of a reference they are."""
    alike = list(dict.fromkeys(r.alike for r in residuals))
    again = alike[0].read_again if len(alike) == 1 else read_again(alike)
    versions = [v for r in residuals if (v := r.version) is not None]
    branches = dict.fromkeys(d.branch for r in residuals for d in r.dummies)
    filled = f"; {' and '.join(branches)} fill{'s' if len(branches) == 1 else ''} its place with a dummy"
    of_reference = f"; {_of_reference(versions)}" if versions else ""
    return f"{again}{filled if branches else ''}{of_reference}"


def _of_reference(versions: Sequence[Version]) -> str:
    """Which versions of a reference some values are: `version 2 of 4 of its reference, written in line 15`."""
    lines = sorted({v.written.line for v in versions if v.written is not None})
    written = f", written in line{'s' * (len(lines) > 1)} {listed(map(str, lines))}" if lines else ""
    if any(v.by_iteration for v in versions):
        return f"each iteration reads another version of its reference{written}"
    numbers = sorted({v.number for v in versions})
    some = f"s {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f" {numbers[0]}"
    return f"version{some} of {max(v.of for v in versions)} of its reference{written}"


def read_again(residuals: Sequence[Residual]) -> str:
    """What reads the values of one expression again, of which no two are alike."""
    first = residuals[0]
    of_each = [(r.decision, r.linear if r.backward is None else r.backward) for r in residuals]
    readers = dict.fromkeys((decision, first.site.like(reader)) for decision, some in of_each for reader in some)
    if not readers:
        dropped = "" if first.kind == "argument" else ", so a compiled gradient drops it"
        return f"nothing reads it again{dropped}"
    of_saved = [reader for decision, reader in readers if decision != "offloaded"]
    if not of_saved:
        return _OFFLOADED
    rest = "" if len(of_saved) == len(readers) else f"partly {_OFFLOADED}; the rest is "
    return f"{rest}needed again {_uses(of_saved, first.location)}"


_OFFLOADED = "offloaded by the checkpoint policy, and brought back for the backward pass"


def _uses(readers: Sequence[Reader], shown: Location) -> str:
    uses: dict[tuple[bool, str, int, bool], tuple[str, dict[str, None]]] = {}
    for reader in readers:
        again, at = reader.computes_again, reader.location
        place = (False, "", 0) if at is None else (at.file != shown.file, at.file, at.line)
        line = line_beside(at, shown) if at is not None else ""
        uses.setdefault((*place, not again), (line, {}))[1][reader.operation] = None
    lines: dict[tuple[bool, str], list[str]] = {}
    n = len(uses) if len(uses) <= _SHOWN + 1 else _SHOWN
    for use in sorted(uses)[:n]:
        line, operations = uses[use]
        lines.setdefault((not use[-1], listed(operations)), []).append(line)
    parts = [_use(*use, where) for use, where in lines.items()]
    if len(uses) > n:
        parts.append(f"in {len(uses) - n:,} more places")
    return together(parts)


_SHOWN = 2
"""How many lines that need a value one reason names, or one more if that is all."""


def _use(again: bool, operations: str, lines: Sequence[str]) -> str:
    if "" in lines:  # which has no source
        return f"to recompute {operations}" if again else f"in the gradient of {operations}"
    if again:
        return f"to recompute {together(lines)} ({operations})"
    whose = together(f"{line}'s" for line in lines)
    return f"in {whose} gradient{'s' * (len(lines) > 1)} ({operations})"


def _rule(reader: Reader) -> str:
    """What the rule of an operation does with a value that it reads."""
    origin, name = reader.derived.origin, reader.equation.primitive.name
    if is_backward_rule(reader.equation) and origin is not None:
        saved = "saves it" if origin.rule.startswith("rule `") else "passes it to its backward function"
        return f"the {origin.rule} {saved}"
    if origin is not None and origin.rule.startswith("brought back"):
        return f"it is {origin.rule}"
    if reader.computes_again:
        return f"`{name}` is recomputed from it in the backward pass"
    of_tangent = _USES_OF_OPERAND.get((name, reader.operand)) or _USES.get(name)
    use = of_tangent if of_tangent and "recomputation" not in reader.roles else f"reads it in `{name}`"
    return f"{_derivative(reader)} {use}"


def _derivative(reader: Reader) -> str:
    """The rule of a derived equation, named after the user's equation, or the function with the custom rule."""
    derived, source = reader.derived, reader.source
    if of(source).has_jvp_rule(source.operation):
        rules = (e.origin.rule for e in (derived, *ancestors(derived)) if e.origin is not None)
        named = next((rule for rule in rules if rule.startswith(("custom JVP rule of ", "rule `jvp` of "))), None)
        if named is not None:
            return f"the {named}"
    return f"{source.primitive.name}'s derivative"


def _read_by(use: Use, backward: Reader, location: Location, site: Site) -> str:
    """The backward equation that reads it, if that forms a cotangent."""
    name = backward.equation.primitive.name
    if use.is_of_backward_rule:
        return f", which reads it in `{name}`"
    forms = f"; read by the `{name}` that forms {_cotangent_of(backward, location, site)}"
    return forms if "cotangent" in backward.roles else ""


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
