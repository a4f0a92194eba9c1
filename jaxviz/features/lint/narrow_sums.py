"""Sums that run in bfloat16, float16 or a narrower type, over so many terms that one may get lost.

With a precision of p bits, a sum that is 2^p times as large as a term does not change when that term is added. So there
is advice from 2^p terms on: 256 in bfloat16, 2,048 in float16. `jnp.sum` and products add in float32; what does not is
read from the programs: `lax` sums and sums with a `dtype`, scatters, what loops carry, and what a gradient adds up for
a value that was broadcast, indexed or read in each iteration.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import jax.numpy as jnp

from jaxviz.analysis.grouping import grouped
from jaxviz.analysis.naming import IN_DERIVATIVE, ROOM_IN_SENTENCE, naming_of
from jaxviz.analysis.walk import location_of, primal_equation, with_holders
from jaxviz.derivation import Derivation
from jaxviz.features.lint.advice import Advice
from jaxviz.features.lint.widened import has_narrow, passes
from jaxviz.higher_order import carried, is_scan, scan_length
from jaxviz.ir.primitives import keeps_numbers, plain
from jaxviz.ir.syntax import Atom, Equation, Program


@dataclass(frozen=True)
class _Sum:
    """A sum: the equation that adds, those around it, the largest number of terms, and what computes a term."""

    equation: Equation
    within: tuple[Equation, ...]
    terms: int
    term: Equation
    is_backward: bool


def find_narrow_sums(d: Derivation) -> Iterator[Advice]:
    """The sums of a gradient that run in a narrow type over many terms.

    Args:
      d: the derivation, with jitted functions inlined.
    """
    if not has_narrow(d):
        return
    naming = naming_of(d)
    sums = [s for program in passes(d) for s in _sums(program, program is not d.forward)]
    # The rule of `lax.reduce` adds in pairs, so that only the function itself has it, and sums as it says.
    sums = [s for s in sums if s.is_backward or not _adds_by_function(s.equation)]
    sums += [s for s in _sums(d.primal, False) if _adds_by_function(s.equation)]
    for same in grouped(sums, lambda s: (s.is_backward, location_of(s.term, s.within), _kind(s))):
        s = max(same, key=lambda s: s.terms)
        where = location_of(s.term, s.within)
        if where is None:
            continue
        name = naming.name(s.term, s.within, room=ROOM_IN_SENTENCE)
        written = name.rpartition(IN_DERIVATIVE)[2].rpartition(" in ")[2] or str(s.term.primitive.name)
        dtype = s.equation.outvars[0].aval.dtype
        bits = -math.log2(float(jnp.finfo(dtype).eps)) + 1
        many = f"{'up to ' if _kind(s) == 'scattered arithmetic' else ''}{s.terms:,} terms"
        of = f"the gradient of what `{written}` reads" if s.is_backward else f"`{written}`"
        error = (
            f"Added one by one, terms of one size are lost once the sum is {2 ** int(bits):,} to "
            f"{2 ** int(bits + 1):,} times as large as one of them"
        )
        if _kind(s) not in ("loop", "scattered arithmetic"):
            share = 100 * math.ceil(math.log2(s.terms)) * 2**-bits
            error += f"; added in pairs, the sum may be wrong by {share:.1f} % of the sum of their magnitudes"
        function = "function" if _adds_by_function(s.equation) else "forward pass"
        text = f"The {'backward pass' if s.is_backward else function} sums {many} in {dtype.name} for {of}. {error}."
        library = naming.library(s.term, s.within)
        in_library = (
            f"it is on a line of a library ({library}): where this matters, compute that part on a line of yours, in "
            "float32, and convert the result."
        )
        yield Advice("", text, in_library if library else _fix(s, dtype.name), where, 0, len(same))


def _kind(s: _Sum) -> str:
    if s.terms != _terms(s.equation):
        return "loop"
    return "window" if "window_dimensions" in s.equation.params else plain(s.equation.primitive.name).kind


def _sums(program: Program, is_backward: bool) -> Iterator[_Sum]:
    made: dict[Atom, Equation] = {v: e for _, e in program.walk() for v in e.outvars}
    for e, within in with_holders(program):
        if _is_lossy(e, n := _terms(e)) and not _counts_booleans(e, made):
            yield _Sum(e, within, n, primal_equation(e) if is_backward else e, is_backward)
        if is_scan(e):
            for add, term in _added(e, is_backward):
                if _is_lossy(add, n := scan_length(e)):
                    yield _Sum(add, (*within, e), n, term, is_backward)


def _is_lossy(e: Equation, terms: int) -> bool:
    """Whether a sum of so many terms in the type of its result may lose a term."""
    dtype = getattr(e.outvars[0].aval, "dtype", None) if e.outvars else None
    if dtype is None or terms < 2 or not jnp.issubdtype(dtype, jnp.floating) or jnp.dtype(dtype).itemsize > 2:
        return False
    return terms * float(jnp.finfo(dtype).eps) >= 2


def _terms(e: Equation) -> int:
    """How many terms each result of a sum has at most; 0 if it is none."""
    does, avals, by_function = plain(e.primitive.name), e.operation.in_avals, _adds_by_function(e)
    if does.grows != "sum" and not by_function:
        return 0
    if "window_dimensions" in e.params:
        return math.prod(e.params["window_dimensions"])
    if does.kind == "reduction" or by_function:
        return int(avals[0].size // max(1, e.operation.out_avals[0].size))
    if does.kind == "cumulative":
        return int(avals[0].shape[e.params["axis"]])
    if does.kind != "scattered arithmetic" or e.params["unique_indices"]:
        return 0
    numbers = e.params["dimension_numbers"]
    if len(numbers.scatter_dims_to_operand_dims) != 1:
        return 0  # rows and columns together, as one element of each row: they seldom meet
    batch = set(numbers.scatter_indices_batching_dims)
    return math.prod(n for i, n in enumerate(avals[1].shape[:-1]) if i not in batch)


def _adds_by_function(e: Equation) -> bool:
    """Whether it is `lax.reduce` or `lax.reduce_window` with a function that adds: where JAX cannot tell that the sum
    starts at zero, as with `jnp.bfloat16(0)` under jit, it is no `reduce_sum`."""
    if e.primitive.name not in ("reduce", "reduce_window"):
        return False
    adds = lambda body: [x.primitive.name for x in body.equations] == ["add"] * len(body.outvars)
    return all(adds(body) for _, body in e.programs)


def _counts_booleans(e: Equation, made: dict[Atom, Equation]) -> bool:
    """Whether a derivative counts where a maximum is: a small number, of which each digit is exact."""
    operand = made.get(e.invars[0])
    while operand is not None and keeps_numbers(operand):
        if operand.invars[0].aval.dtype == bool:
            return e.primitive is not primal_equation(e).primitive
        operand = made.get(operand.invars[0])
    return False


def _added(scan: Equation, is_backward: bool) -> Iterator[tuple[Equation, Equation]]:
    """The additions in the body of a scan that only add to what it carries, each with what computes the term."""
    body = next(b for _, b in scan.programs)
    made: dict[Atom, Equation] = {v: e for e in body.equations for v in e.outvars}
    reads = Counter[Atom](a for e in body.equations for a in e.invars)
    starts = carried(scan)
    reads.update(body.outvars if is_backward else body.outvars[: len(starts)])  # the function may stack its sums
    for held, total in zip(body.invars[starts.start : starts.stop], body.outvars, strict=False):
        add = made.get(total)
        if add is None or add.primitive.name not in ("add", "add_any") or reads[held] != 1 or reads[total] != 1:
            continue
        term = next((a for a in add.invars if a is not held), None)
        if held in add.invars and term is not None:
            yield add, made.get(term, add)


def _fix(s: _Sum, narrow: str) -> str:
    kind, back = _kind(s), f".astype(jnp.{narrow})"
    if kind == "loop":
        if s.is_backward:
            return f"let the loop close over the value in float32, and convert it in the body, with `{back}`."
        return "start the sum that the loop carries in float32, as `jnp.zeros(…, jnp.float32)`."
    if kind == "scattered arithmetic":
        if s.is_backward:
            return (
                f"index float32, and convert the rows: `table.astype(jnp.float32)[ids]{back}`; if no index occurs "
                "twice, say so: `table.at[ids].get(unique_indices=True)`."
            )
        return "scatter into float32, as `jnp.zeros(…, jnp.float32).at[…].add(…)`, and convert the result."
    if s.is_backward or kind == "window":
        return f"compute it in float32, and convert the result: `{back}` after `.astype(jnp.float32)` of the operands."
    if kind == "cumulative":
        return "sum in float32, as `jnp.cumsum(x, dtype=jnp.float32)`, and convert the result."
    return "use jnp.sum without a dtype, which adds in float32 and converts the result."
