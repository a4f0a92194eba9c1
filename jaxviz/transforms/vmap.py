"""Vmap: `a → b` becomes `[a] → [b]`, each mapped value with one more dimension.

Source: `BatchTrace` in JAX's `batching.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from jaxviz.ir import compat
from jaxviz.ir.collector import collector_paused
from jaxviz.ir.convert import shared, trace_rule, write_params
from jaxviz.ir.syntax import Atom, Aval, Equation, Operation, Origin, Program, Var
from jaxviz.transforms.driver import (
    Builder,
    RuleTable,
    Template,
    located,
    no_rule,
    written_out,
)
from jaxviz.transforms.primitive import of

Dim = int | None
"""Where the mapped dimension of a value is; None where the value is the same for every example."""
Dims = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class VmapRule:
    """How one operation is mapped.

    Args:
      mapped: operands → results, with their mapped dimensions.
      dims_out: the mapped dimensions of the results.
      name: a name for messages.
      text: how the operation changes, if it does more than gain a dimension, such as 'cond becomes select: each branch
        is computed for every example'.
    """

    mapped: Template
    dims_out: Dims
    name: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Vmapped:
    """A mapped program.

    Args:
      program: inputs → results, with their mapped dimensions.
      dims_out: the mapped dimensions of the results.
    """

    program: Program
    dims_out: Dims


def _default_rule(operation: Operation, dims: Dims, axis: compat.Axis) -> VmapRule:
    primitive = operation.primitive
    if not compat.has_batching_rule(primitive):
        raise no_rule(
            operation, "Batching rule for", "jaxviz takes it from jax.interpreters.batching.primitive_batchers."
        )
    rule, avals, dims_out = compat.batching_rule(
        primitive, write_params(operation), operation.in_avals, dims, axis, operation.context
    )
    program = trace_rule(rule, avals, operation)
    template = Template(program, "primal")
    return VmapRule(template, tuple(dims_out), f"batching rule of {primitive.name}")


vmap_rules: RuleTable[VmapRule] = RuleTable("batch", _default_rule)
"""Key: operation, the mapped dimensions of its operands, and the axis."""


def named_axes(operation: Operation) -> frozenset[Any]:
    """The axes that an operation names, as a collective does, or one in its bodies."""
    names = compat.axis_names(operation.params)
    for _, program in operation.programs:
        for e in program.equations:
            names |= named_axes(e.operation)
    return frozenset(names).difference(operation.params.get("newly_manual_axes", ()))


@collector_paused()
def vmap_program(program: Program, dims: Sequence[Dim], axis: compat.Axis, to: Sequence[Any] | None = None) -> Vmapped:
    """Maps a program over an axis.

    Args:
      program: the function of one example.
      dims: for each input its mapped dimension, or None.
      axis: its size, its name, and the mesh axes that it spans.
      to: for each result where its mapped dimension is moved, `compat.IF_MAPPED` for the front if there is one; by
        default it stays where it is.

    Raises:
      EquationError: names the primitive, the equation and the user's line.
    """
    builder = Builder(program.constvars, program.consts)
    env: dict[Atom, Atom] = {}
    dim_of: dict[Atom, Dim] = {}
    invars: list[Var] = []
    for v, d in zip(program.invars, dims, strict=True):
        invars.append(Var(compat.mapped_type(v.aval, d, axis)))
        env[v], dim_of[v] = invars[-1], d
    own_refs: set[Atom] = set()
    with located(enumerate(program.equations)) as equations:
        for _, equation in equations:
            dims_in = tuple([dim_of.get(a) for a in equation.invars])
            ins = [env.get(a, a) for a in equation.invars]
            is_shared = all(d is None for d in dims_in) and axis.name not in named_axes(equation.operation)
            # Something mapped may be written to a new reference, even if what it is made from is not.
            is_shared &= not (of(equation).makes_reference and compat.has_batching_rule(equation.primitive))
            if is_shared and not _writes_outside(equation, own_refs):
                own_refs.update(v for v in equation.outvars if compat.is_ref(v.aval))
                builder.copy(equation, ins, "vmap", "not mapped: the same for every example")
                continue
            rule = vmap_rules(equation.operation, dims_in, axis)
            outs = builder.splice(rule.mapped, ins, equation, "vmap", rule.text or rule.name)
            env.update(zip(equation.outvars, outs, strict=True))
            dim_of.update(zip(equation.outvars, rule.dims_out, strict=True))
    results = [env.get(a, a) for a in program.outvars]
    dims_out = tuple([dim_of.get(a) for a in program.outvars])
    if to is not None:
        wanted = tuple(
            [(None if d is None else 0) if t is compat.IF_MAPPED else t for d, t in zip(dims_out, to, strict=True)]
        )
        place = Origin(None, "vmap", "mapped dimension put where the other results of a body have it", "primal")
        results = [move(builder, x, d, t, axis, place) for x, d, t in zip(results, dims_out, wanted, strict=True)]
        dims_out = wanted
    info = compat.derived_debug_info(program.debug_info, program.arg_names, len(results))
    return Vmapped(builder.program(invars, results, info, like=program), dims_out)


def _writes_outside(equation: Equation, own: Collection[Atom]) -> bool:
    """Whether an equation writes a reference that the mapped function did not make: once for each example, which JAX
    refuses."""
    written = compat.written_refs(equation.effects)
    return any(equation.invars[i] not in own for i in written)


def move(builder: Builder, x: Atom, source: Dim, to: Dim, axis: compat.Axis, origin: Origin | None = None) -> Atom:
    """Moves the mapped dimension of a value, or broadcasts the value along a new one.

    Without an `origin` it is part of a rule, and gets one where that is applied.
    """
    if source == to:
        return x
    program = _move(x.aval, source, to, axis)
    if origin is None:
        return builder.inline(program, [x])[0]
    return builder.splice(written_out(program, origin), [x])[0]


@shared
def _move(aval: Aval, source: Dim, to: Dim, axis: compat.Axis) -> Program:
    return trace_rule(lambda x: [compat.match_axis(axis, source, to, x)], [aval])


def inputs_moved(
    operation: Operation, dims: Sequence[Dim], to: Sequence[Dim], axis: compat.Axis
) -> tuple[Builder, list[Var], list[Atom]]:
    """A builder, an operation's mapped operands in it, and those with their mapped dimensions put elsewhere."""
    builder = Builder()
    operands = [Var(compat.mapped_type(a, d, axis)) for a, d in zip(operation.in_avals, dims, strict=True)]
    moved = [move(builder, x, d, t, axis) for x, d, t in zip(operands, dims, to, strict=True)]
    return builder, operands, moved


def vmap_rule(
    builder: Builder, operands: Sequence[Var], outs: Sequence[Atom], dims_out: Sequence[Dim], name: str, text: str = ""
) -> VmapRule:
    """The rule with the contents of a builder; see `inputs_moved`."""
    program = builder.program(operands, outs)
    template = Template(program, "primal", keeps_lines=True)
    return VmapRule(template, tuple(dims_out), name, text)
