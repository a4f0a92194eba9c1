"""Positions and other integers in a type that does not have them all: in bfloat16 those above 256 become equal to their
neighbours, in float16 those above 2,048.

How large integers become is read from the programs: those that count along a dimension, as `jnp.arange` and
`jnp.cumsum`, and what is computed from them with numbers and by selecting. Of arguments it is not known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp

from jaxviz.analysis.grouping import grouped
from jaxviz.analysis.naming import ROOM_IN_SENTENCE, naming_of
from jaxviz.analysis.walk import location_of, with_holders
from jaxviz.derivation import Derivation
from jaxviz.features.lint.advice import Advice
from jaxviz.features.lint.widened import has_narrow
from jaxviz.ir.primitives import plain
from jaxviz.ir.syntax import Atom, Equation, Literal, Var


def find_narrow_integers(d: Derivation) -> Iterator[Advice]:
    """Where a function rounds integers that differ to the same number.

    Args:
      d: the derivation, with jitted functions inlined.
    """
    if not has_narrow(d):
        return
    naming = naming_of(d)
    made = {v: e for _, e in d.primal.walk() for v in e.outvars}
    found = []
    for e, within in with_holders(d.primal):
        most = _most_rounded(e, made)
        if most > _exact(e.outvars[0] if e.outvars else None):
            found.append((e, within, most))
    for same in grouped(found, lambda x: location_of(x[0], x[1])):
        e, within, most = max(same, key=lambda x: x[2])
        where = location_of(e, within)
        if where is not None:
            dtype, exact = e.outvars[0].aval.dtype.name, int(_exact(e.outvars[0]))
            text = (
                f"`{naming.name(e, within, room=ROOM_IN_SENTENCE)}` has integers up to {most:,} in {dtype}, which has "
                f"all of them up to {exact:,} only: above, neighbours become the same number."
            )
            fix = "compute in float32 with them, and convert what is small again, such as a sine or an angle's cosine."
            yield Advice("", text, fix, where, 0, len(same))


def _exact(v: Atom | None) -> float:
    """Up to which integer a narrow floating-point type has all; infinite for other types."""
    dtype: Any = getattr(v.aval, "dtype", None) if v is not None else None
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating) or jnp.dtype(dtype).itemsize > 2:
        return math.inf
    return float(2 ** (int(jnp.finfo(dtype).nmant) + 1))


def _most_rounded(e: Equation, made: Mapping[Var, Equation]) -> int:
    """The largest of the integers that an operation counts, or converts, if there are several; 0 if none is known."""
    name = e.primitive.name
    if name == "iota":
        return _largest(e.outvars[0], made) or 0
    if name != "convert_element_type" or not _is_integer(e.invars[0]) or math.prod(e.outvars[0].aval.shape) < 2:
        return 0
    return _largest(e.invars[0], made) or 0


def _is_integer(a: Atom) -> bool:
    return bool(jnp.issubdtype(getattr(a.aval, "dtype", jnp.float32), jnp.integer))


def _largest(a: Atom, made: Mapping[Var, Equation]) -> int | None:
    """The largest magnitude that an element of an array of integers can have; None if that is not known."""
    if isinstance(a, Literal):
        return abs(int(a.val)) if math.prod(a.aval.shape) == 1 else None
    e = made.get(a)
    if e is None:
        return None
    name, does = e.primitive.name, plain(e.primitive.name)
    if name == "iota":
        return int(e.params["shape"][e.params["dimension"]]) - 1
    if name == "convert_element_type" and not _is_integer(e.invars[0]):
        return 1 if jnp.issubdtype(getattr(e.invars[0].aval, "dtype", jnp.float32), jnp.bool_) else None
    operands = e.invars[1:] if does.kind == "selection" else e.invars
    first = _largest(operands[0], made) if operands else None
    if does.keeps_numbers or does.kind in ("part", "indexing"):
        return first
    rest = [_largest(x, made) for x in operands[1:]]
    sizes = [n for n in (first, *rest) if n is not None]
    if not sizes or len(sizes) < len(operands):
        return None
    if does.kind == "cumulative" and does.grows == "sum":
        return sizes[0] * int(e.outvars[0].aval.shape[e.params["axis"]])
    if does.kind == "elementwise" and does.passes_on == "all":  # sums, products, and what changes the sign alone
        return sum(sizes) if does.grows == "sum" else math.prod(sizes if name != "square" else 2 * sizes)
    return max(sizes) if does.kind == "selection" or (does.passes_on == "all" and does.kind == "movement") else None
