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
from jaxviz.ir.syntax import Atom, Equation, Literal


def find_narrow_integers(d: Derivation) -> Iterator[Advice]:
    """Where a function rounds integers that differ to the same number.

    Args:
      d: the derivation, with jitted functions inlined.
    """
    if not has_narrow(d):
        return
    naming, most, found = naming_of(d), dict[Atom, int](), []
    for e, within in with_holders(d.primal):
        largest = _largest(e, most)
        if largest is not None and _is_integer(e.outvars[0]):
            most[e.outvars[0]] = largest
        elif (rounded := _rounded(e, most)) > _exact(e.outvars[0] if e.outvars else None):
            found.append((e, within, rounded))
    for same in grouped(found, lambda x: location_of(x[0], x[1])):
        e, within, largest = max(same, key=lambda x: x[2])
        where = location_of(e, within)
        if where is not None:
            dtype, exact = e.outvars[0].aval.dtype.name, int(_exact(e.outvars[0]))
            text = (
                f"`{naming.name(e, within, room=ROOM_IN_SENTENCE)}` has integers up to {largest:,} in {dtype}, which "
                f"has all of them up to {exact:,} only: above, neighbours become the same number."
            )
            fix = "compute in float32 with them, and convert what is small again, such as a sine or an angle's cosine."
            yield Advice("", text, fix, where, 0, len(same))


def _exact(v: Atom | None) -> float:
    """Up to which integer a narrow floating-point type has all; infinite for other types."""
    dtype: Any = getattr(v.aval, "dtype", None) if v is not None else None
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating) or jnp.dtype(dtype).itemsize > 2:
        return math.inf
    return float(2 ** (int(jnp.finfo(dtype).nmant) + 1))


def _rounded(e: Equation, most: Mapping[Atom, int]) -> int:
    """The largest of the integers that an operation counts, or converts, if there are several; 0 if none is known."""
    if e.primitive.name == "iota":
        return _largest(e, most) or 0
    converts = e.primitive.name == "convert_element_type" and math.prod(e.outvars[0].aval.shape) > 1
    return most.get(e.invars[0], 0) if converts else 0


def _is_integer(a: Atom) -> bool:
    return bool(jnp.issubdtype(getattr(a.aval, "dtype", jnp.float32), jnp.integer))


def _largest(e: Equation, most: Mapping[Atom, int]) -> int | None:
    """The largest magnitude of an element of the result of an operation on integers; None if that is not known.

    Args:
      e: the operation.
      most: the same for integers computed before.
    """
    name, does = e.primitive.name, plain(e.primitive.name)
    if name == "iota":
        return int(e.params["shape"][e.params["dimension"]]) - 1
    if name == "convert_element_type" and getattr(e.invars[0].aval, "dtype", None) == jnp.bool_:
        return 1
    operands = e.invars[1:] if does.kind == "selection" else e.invars
    known = [_of_number(a) if isinstance(a, Literal) else most.get(a) for a in operands]
    if does.keeps_numbers or does.kind in ("part", "indexing"):
        return known[0]
    sizes = [n for n in known if n is not None]
    if not sizes or len(sizes) < len(known):
        return None
    if does.kind == "cumulative" and does.grows == "sum":
        return sizes[0] * int(e.outvars[0].aval.shape[e.params["axis"]])
    if does.kind == "elementwise" and does.passes_on == "all":  # sums, products, and what changes the sign alone
        largest = sum(sizes) if does.grows == "sum" else math.prod(sizes if name != "square" else 2 * sizes)
        return min(largest, int(jnp.iinfo(e.outvars[0].aval.dtype).max)) if _is_integer(e.outvars[0]) else None
    return max(sizes) if does.kind == "selection" or (does.passes_on == "all" and does.kind == "movement") else None


def _of_number(a: Literal) -> int | None:
    return abs(int(a.val)) if math.prod(a.aval.shape) == 1 and _is_integer(a) else None
