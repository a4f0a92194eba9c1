"""Linear programs whose inputs are in references, so that their transposes accumulate cotangents in place.

Each use of such an input reads the reference there, of a slice only the part that it needs, and calls, loops and
branches get the reference itself. A read is transposed to `r̄[i] += ȳ`, so nothing adds up a cotangent of the whole.
Of a gather that is no index with arrays, such as one that clips, the cotangent is added as a value.

Source: `RefAccum` in JAX's `interpreters/ad.py`, and the transposes of slices and gathers in its `lax/slicing.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax import lax

from jaxviz.ir import compat
from jaxviz.ir.convert import trace_rule
from jaxviz.ir.syntax import Atom, Equation, Origin, Program, Var
from jaxviz.transforms.driver import Builder, Template, program_effects, select, written_out
from jaxviz.transforms.primitive import carried, of


def with_references(program: Program, in_place: Sequence[bool]) -> Program:
    """A linear program with references instead of some inputs; those that are references remain."""
    values = [v for v in select(in_place, program.invars) if not compat.is_ref(v.aval)]
    refs: dict[Atom, Var] = {v: Var(compat.ref_to(v.aval)) for v in values}
    invars = tuple([refs.get(v, v) for v in program.invars])
    builder = Builder(program.constvars, program.consts)
    for equation in program.equations:
        if refs.keys().isdisjoint(equation.invars):
            builder.equations.append(equation)
        else:
            _add(builder, equation, refs)
    outvars = tuple([_read(builder, refs[a], None) if a in refs else a for a in program.outvars])
    equations = tuple(builder.equations)
    effects = program.effects | program_effects(equations, invars)
    return replace(program, invars=invars, equations=equations, outvars=outvars, effects=effects)


def _add(builder: Builder, equation: Equation, refs: Mapping[Atom, Var]) -> None:
    """Adds an equation that reads from references."""
    operation, kind = equation.operation, of(equation)
    invars: list[Atom] = list(equation.invars)
    part = _PARTS.get(operation.primitive)
    if part is not None and invars[0] in refs:
        read = part(operation.params, operation.in_avals)
        if read is not None:
            ref, *indices = refs[invars[0]], *invars[1:]
            builder.splice_as(equation.outvars, _reading(read, equation, ref, *indices), [ref, *indices])
            return
    bodies = kind.bodies(operation) if kind.accumulates and not kind.is_checkpoint else ()  # as in JAX
    if bodies:
        carry = carried(equation)
        given = [None if i in carry else refs.get(a) for i, a in enumerate(invars)]
        programs = [with_references(b.program, [given[i] is not None for i in b.operands]) for b in bodies]
        operation = kind.with_fixed(operation, programs, kind.n_fixed(operation))
        invars = [a if ref is None else ref for a, ref in zip(invars, given, strict=True)]
    invars = [_read(builder, refs[a], equation) if a in refs else a for a in invars]
    builder.equations.append(Equation(operation, tuple(invars), equation.outvars, equation.source, equation.origin))


def _read(builder: Builder, ref: Var, equation: Equation | None) -> Atom:
    """Adds a read of all that is in a reference."""
    (value,) = builder.splice(_reading(lambda r: r[...], equation, ref), [ref])
    return value


def _reading(read: Callable[..., Any], equation: Equation | None, *operands: Atom) -> Template:
    program = trace_rule(lambda *xs: [read(*xs)], [a.aval for a in operands])
    return written_out(program, Origin(equation, "linearize", "reads an argument that is in a reference", "tangent"))


def _slice(params: Mapping[str, Any], _: Sequence[Any]) -> Callable[..., Any]:
    starts, limits = params["start_indices"], params["limit_indices"]
    indexer = tuple(map(slice, starts, limits, params["strides"] or [1] * len(starts)))
    return lambda r: r[indexer]


def _dynamic_slice(params: Mapping[str, Any], _: Sequence[Any]) -> Callable[..., Any]:
    return lambda r, *starts: r[tuple(map(jax.ds, starts, params["slice_sizes"]))]


def _gather(params: Mapping[str, Any], in_avals: Sequence[Any]) -> Callable[..., Any] | None:
    if not compat.gathers_from_refs(params, in_avals):
        return None
    return lambda r, indices: r[tuple([indices[..., i] for i in range(indices.shape[-1])])]


_PARTS = {lax.slice_p: _slice, lax.dynamic_slice_p: _dynamic_slice, lax.gather_p: _gather}
"""For an operation that reads a part of its first operand, what makes a function that reads it from a reference."""
