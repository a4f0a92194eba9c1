"""Flags: `a → b` becomes `a → b, flags`, which say where and in which iteration a non-finite value first appeared; or,
in search of zeros, one that is not zero.

A flag costs a reduction, and a reduction prevents fusion in XLA. So few values are watched for NaNs: those whose
infinities and NaNs the next operation may hide (`where` takes the other branch, `exp(-inf)` is 0), and the results of
such operations. The others follow from these: if x + y is non-finite, so is everything computed from it, up to the next
watched value.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxviz.ir import compat
from jaxviz.ir.convert import shared, trace_rule
from jaxviz.ir.primitives import plain
from jaxviz.ir.syntax import Atom, DropVar, Equation, Operation, Program, Var
from jaxviz.transforms.driver import Builder, RuleTable, Template, call_of
from jaxviz.transforms.primitive import of

INFINITE, NAN = 0, 1
"""The two kinds of flags, by their place along the first axis of an array of flags: not finite, and NaN."""
NONZERO = 0
"""The same in search of zeros, where both say that some element is not zero."""

Watching = Literal["finite", "decisions", "zeros"]
"""What flags are for: values that are not finite and reach a result; these and those that affect others only through
decisions, as operands of comparisons do, including those of a loop's condition; every value that is zero or not."""


@dataclass(frozen=True, slots=True, eq=False)
class FlaggedValues:
    """Values of one program that are watched, with one array of flags.

    Args:
      path: the equations that enclose the program, outermost first, each with the index of the program among its
        programs.
      n_loops: how many of those are loops.
      program: the program of the values.
      values: the values.
      devices: for each of those equations that is a `shard_map`, the number of devices that it runs on.
    """

    path: tuple[tuple[Equation, int], ...]
    n_loops: int
    program: Program
    values: tuple[Var, ...]
    devices: tuple[int, ...] = ()

    @property
    def n_flags(self) -> int:
        """How many flags of each kind: one for each value on each device, device by device."""
        return len(self.values) * math.prod(self.devices)


@dataclass(frozen=True, slots=True, eq=False)
class Flagged:
    """A program with flags.

    Args:
      program: inputs → results, then for each watch its flags: bool[2, n_flags] outside of loops, otherwise int32[2,
        n_flags, n_loops], the first iterations in which they were set, -1 if never; then for each of `loops` the carry
        at the start of the first step that set a flag; then `known`.
      watches: what the flags are about.
      loops: those of the outermost program, if requested.
      known: the operands and results of these loops.
    """

    program: Program
    watches: tuple[FlaggedValues, ...]
    loops: tuple[Equation, ...] = ()
    known: tuple[Var, ...] = ()


@dataclass(frozen=True, slots=True)
class FlagRule:
    """How an operation with nested programs returns their flags.

    Args:
      flagged: operands → results, flags; and for a loop, if requested, the carry at the start of the first step that
        set a flag.
      watches: what these are about, each with the index of its program among the operation's programs.
    """

    flagged: Program
    watches: tuple[tuple[int, FlaggedValues], ...]


def _default_rule(operation: Operation, watching: Watching, keeps: bool) -> FlagRule:
    del watching, keeps
    return FlagRule(call_of(operation), ())


flag_rules: RuleTable[FlagRule] = RuleTable("flags", _default_rule)
"""Key: operation, and what `flag_program` is asked for. One without a rule is a single step, whatever programs it
holds."""


def flag_program(
    program: Program,
    watching: Watching = "finite",
    inputs: bool = False,
    keeps: bool = False,
    only: Collection[Atom] | None = None,
) -> Flagged:
    """Adds flags to a program. Calls in it are single steps: inline them first, see `transforms.inline`.

    Args:
      program: the program.
      watching: what for.
      inputs: whether to also watch its inputs.
      keeps: whether to keep the carry of its loops at the start of the first step that sets a flag, so that these need
        not be rerun to inspect it.
      only: its own values that are watched; by default all.
    """
    builder = Builder(program.constvars, program.consts)
    nested: list[tuple[FlaggedValues, Atom]] = []
    first_carries: list[Atom] = []
    loops: list[Equation] = []
    for e in program.equations:
        if e.primitive not in flag_rules.own:
            builder.equations.append(e)
            continue
        rule = flag_rules(e.operation, watching, keeps)
        outs = builder.splice_as(e.outvars, Template(rule.flagged, "primal"), e.invars, e, "flags")
        nested += [
            (replace(watch, path=((e, place), *watch.path)), flags)
            for (place, watch), flags in zip(rule.watches, outs[len(e.outvars) :], strict=False)
        ]
        if of_loop := outs[len(e.outvars) + len(rule.watches) :]:
            loops.append(e)
            first_carries += of_loop
    can_be = has_zeros if watching == "zeros" else is_watchable
    inputs |= watching == "zeros"  # what a loop carries may be zero until its last iteration
    own_inputs = tuple(v for v in program.invars if inputs and can_be(v.aval))
    values = tuple([v for v in (*own_inputs, *watched(program, watching)) if only is None or v in only])
    own: list[Atom] = []
    watches: list[FlaggedValues] = []
    if values:
        of_each, of_all = (_is_nonzero, _twice) if watching == "zeros" else (_worst, _kinds)
        each = [builder.inline(of_each(v.aval), [v])[0] for v in values]
        own = builder.inline(of_all(*(w.aval for w in each)), each)
        watches = [FlaggedValues((), 0, program, values)]
    of_loops = dict.fromkeys(a for e in loops for a in (*e.invars, *e.outvars) if type(a) is Var)
    known = tuple(v for v in of_loops if v not in program.invars and v not in program.constvars)
    outvars = (*program.outvars, *own, *(flags for _, flags in nested), *first_carries, *known)
    flagged = builder.program(program.invars, outvars, None, like=program)
    return Flagged(flagged, (*watches, *(watch for watch, _ in nested)), tuple(loops), known)


_INFINITY = np.float32(np.inf).view(np.int32)


@shared
def _worst(aval: Any) -> Program:
    """x → int32[1]: the bits of its largest magnitude, in float32.

    As integers these are ordered like the numbers, with infinity above all and NaNs above that. One maximum suffices,
    and it is of integers, since a maximum of floats over devices may lose a NaN.
    """

    def largest(x: Any) -> Any:
        if x.dtype.itemsize == 1:  # some 8-bit floats have no infinity
            x = lax.convert_element_type(x, jnp.float32)
        # Half precision is tested as it is: if it were widened, XLA might drop the conversion, and with it an overflow.
        integer = np.dtype(f"int{8 * x.dtype.itemsize}")
        magnitude = np.array(np.iinfo(integer).max, integer)[
            ()
        ]  # not `lax.abs`, which XLA removes if no number is negative
        bits = lax.bitwise_and(lax.bitcast_convert_type(x, integer), magnitude)
        # With this initial value lax.reduce has no operand for it, which would have to vary over devices like the bits.
        most = lax.reduce(bits, np.array(np.iinfo(integer).min, integer), lax.max, tuple(range(bits.ndim)))
        if integer.itemsize == 4:
            return most
        infinity = np.array(np.inf, x.dtype).view(integer)[()]
        above = lax.convert_element_type(lax.ge(most, infinity), jnp.int32)
        return jnp.int32(_INFINITY - 1) + above + lax.convert_element_type(lax.gt(most, infinity), jnp.int32)

    def worst(x: Any) -> list[Any]:
        is_complex = jnp.issubdtype(x.dtype, jnp.complexfloating)
        most = lax.max(largest(lax.real(x)), largest(lax.imag(x))) if is_complex else largest(x)
        return [lax.reshape(most, (1,))]

    return trace_rule(worst, [aval])


@shared
def _kinds(*avals: Any) -> Program:
    def kinds(*worst: Any) -> list[Any]:
        bits = lax.concatenate([compat.varying_everywhere(w) for w in worst], 0)
        rows = lax.ge(bits, _INFINITY), lax.gt(bits, _INFINITY)
        return [lax.concatenate([lax.reshape(row, (1, len(worst))) for row in rows], 0)]

    return trace_rule(kinds, avals)


@shared
def _is_nonzero(aval: Any) -> Program:
    """x → bool[1, 1]: whether some element is not zero."""

    def is_nonzero(x: Any) -> list[Any]:
        each = x if x.dtype == jnp.bool_ else lax.ne(x, lax.full_like(x, 0))
        return [lax.reshape(lax.reduce(each, np.bool_(False), lax.bitwise_or, tuple(range(x.ndim))), (1, 1))]

    return trace_rule(is_nonzero, [aval])


@shared
def _twice(*avals: Any) -> Program:
    row = lambda each: lax.concatenate([compat.varying_everywhere(p) for p in each], 1)
    return trace_rule(lambda *each: [lax.concatenate([row(each)] * 2, 0)], avals)


# --- watched values ---------------------------------------------------------------------------------------------------


def passes_on(operation: Operation) -> tuple[bool, ...]:
    """For each operand, whether a result cannot be finite where the operand is not."""
    name, params, n = operation.primitive.name, operation.params, len(operation.in_avals)
    does = plain(name)
    if len(operation.out_avals) != 1 or not is_watchable(operation.out_avals[0]):
        return (False,) * n
    if does.passes_on == "all" or does.keeps_numbers:
        drops_a_part = does.keeps_numbers and not _is_complex(operation.out_avals[0])  # as a cast from complex to real
        return tuple([is_watchable(a) and not (drops_a_part and _is_complex(a)) for a in operation.in_avals])
    is_flat = name == "integer_pow" and params["y"] < 1
    is_cut = name == "pad" and any(low < 0 or high < 0 for low, high, _ in params["padding_config"])
    return (does.passes_on == "first" and not (is_flat or is_cut), *([False] * (n - 1)))[:n]


def _is_complex(aval: Any) -> bool:
    return bool(jnp.issubdtype(aval.dtype, jnp.complexfloating))


def is_watchable(aval: Any) -> bool:
    """Whether values of a type can be anything but finite."""
    dtype = getattr(aval, "dtype", None)
    return (
        dtype is not None
        and jnp.issubdtype(dtype, jnp.inexact)
        and not np.isfinite(np.array(np.nan).astype(dtype))  # some 4-bit floats have neither NaNs nor infinities
        and getattr(aval, "size", 0) > 0
        and not compat.is_unreduced(aval)
    )


def has_zeros(aval: Any) -> bool:
    """Whether values of a type are numbers or booleans, of which there are some."""
    dtype = getattr(aval, "dtype", None)
    is_number = dtype is not None and (jnp.issubdtype(dtype, jnp.number) or dtype == jnp.bool_)
    return is_number and getattr(aval, "size", 0) > 0 and not compat.is_ref(aval) and not compat.is_unreduced(aval)


def covered_inside(equation: Equation) -> dict[Var, tuple[tuple[int, Var], ...]]:
    """The results of an equation that need no flag, since values in its programs have one: stacked results of a scan,
    results of a branch.

    Returns:
      for each such result the values, each with the index of its program; the result is non-finite if one of them is.
    """
    n_carry = of(equation).first_covered(equation.operation)
    if n_carry is None:
        return {}
    bound = [(p, {v for e in p.equations for v in e.outvars}) for _, p in equation.programs]
    covered = {}
    for k, v in enumerate(equation.outvars[n_carry:], n_carry):
        inside = [(place, p.outvars[k]) for place, (p, computed) in enumerate(bound) if p.outvars[k] in computed]
        if len(inside) == len(bound) and is_watchable(v.aval):
            covered[v] = tuple((place, a) for place, a in inside if isinstance(a, Var))
    return covered


def decides(operation: Operation) -> bool:
    """Whether it maps inexact values to results that are not, as a comparison does."""
    return not operation.programs and not any(is_watchable(a) for a in operation.out_avals)


def watched(program: Program, watching: Watching = "finite") -> tuple[Var, ...]:
    """The values of a program that get a flag, in evaluation order, without those of nested programs."""
    if watching == "zeros":
        every = (v for e in program.equations for v in e.outvars)
        return tuple(v for v in every if has_zeros(v.aval) and not isinstance(v, DropVar))
    candidates: set[Atom] = set(program.outvars)
    covered: set[Atom] = set()
    for e in program.equations:
        hides = [not p and is_watchable(a.aval) for p, a in zip(passes_on(e.operation), e.invars, strict=True)]
        if any(is_watchable(a) for a in e.operation.out_avals) or (watching == "decisions" and decides(e.operation)):
            candidates.update(a for a, h in zip(e.invars, hides, strict=True) if h)
        if any(hides):
            candidates.update(e.outvars)
        covered.update(covered_inside(e))
    computed = (v for e in program.equations for v in e.outvars)
    return tuple(
        v
        for v in computed
        if v in candidates and v not in covered and is_watchable(v.aval) and not isinstance(v, DropVar)
    )
