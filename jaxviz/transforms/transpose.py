"""Transpose: a program linear in some inputs, `(res, a) ⊸ b`, becomes `(res, CT b) → CT a`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jaxviz.ir import compat
from jaxviz.ir.collector import collector_paused
from jaxviz.ir.convert import applied, trace_rule, trace_rule_on_values, write_params
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.errors import EquationError
from jaxviz.ir.origin import ancestors
from jaxviz.ir.syntax import Atom, Equation, Operation, Origin, Program, Relations, Shared, Var
from jaxviz.transforms.dce import live_equations, values_at
from jaxviz.transforms.driver import (
    NOT_YET,
    Builder,
    Mask,
    RuleTable,
    Template,
    located,
    needs_own_rule,
    no_rule,
    scopes_alone,
)


@dataclass(frozen=True, slots=True)
class TransposeRule:
    """How one operation is transposed.

    Args:
      backward: operands it is not linear in, nonzero cotangents of the results → nonzero cotangents of linear operands.
      nonzeros_out: which linear operands have a cotangent that is not a symbolic zero.
      name: for people.
    """

    backward: Template
    nonzeros_out: Mask
    name: str


@dataclass(frozen=True, slots=True)
class Transposed:
    """A transposed program.

    Args:
      backward: nonlinear inputs, nonzero cotangents of results → nonzero cotangents of linear inputs.
      nonzeros_out: which linear inputs have a cotangent that is not a symbolic zero.
    """

    backward: Program
    nonzeros_out: Mask


def _default_rule(
    operation: Operation, linear: Mask, nonzero_cts: Mask, values: Sequence[Any] | None = None
) -> TransposeRule:
    primitive = operation.primitive
    if needs_own_rule(operation):
        raise no_rule(
            operation,
            "Transpose rule (for reverse-mode differentiation) for",
            NOT_YET,
        )
    if not compat.has_transpose_rule(primitive):
        types = ", ".join(
            a.str_short(short_dtypes=True) for a, lin in zip(operation.in_avals, linear, strict=True) if lin
        )
        what = (
            f"It was reached with a linear operand {types}. Register one in jax.interpreters.ad.primitive_transposes."
        )
        raise no_rule(operation, "Transpose rule (for reverse-mode differentiation) for", what)
    rule, avals, nonzeros_out = compat.transpose_rule(
        primitive, write_params(operation), operation.in_avals, operation.out_avals, linear, nonzero_cts,
        operation.context,
    )  # fmt: skip
    program = trace_rule(rule, avals, operation) if values is None else trace_rule_on_values(rule, avals, values)
    return TransposeRule(
        Template(scopes_alone(program), ["cotangent"] * len(program.equations), keeps_lines=True),
        tuple(nonzeros_out),
        f"transpose rule of {primitive.name}",
    )


transpose_rules: RuleTable[TransposeRule] = RuleTable("transpose", _default_rule)
"""Key: operation, which operands it is linear in, which results have a nonzero cotangent."""


def _not_linear(operation: Operation) -> EquationError:
    """What JAX's rules say of a product of two linear operands by failing an assertion, in words."""
    return EquationError(
        f"The function is not linear: more than one operand of '{operation.primitive.name}' depends on what it is transposed in. "
        "jax.linearize gives a linear function to transpose."
    )


typed_by_cotangents: set[Any] = set()
"""Primitives that hold programs which JAX transposes for the types of the cotangents that come in; of others those of the program decide."""

Read = tuple[Atom, "Equation | None", Atom]
"""A variable, an equation that reads it, None for the program's results, and what that adds to its cotangent."""


@collector_paused()
def transpose_program(
    program: Program,
    linear: Sequence[bool],
    nonzero_cts: Sequence[bool],
    carried: Sequence[bool] | None = None,
    instantiate: Sequence[bool] | None = None,
    at: Sequence[Any] | None = None,
    ct_avals: Sequence[Any] | None = None,
) -> Transposed:
    """Transposes a program in the inputs that `linear` marks.

    Each cotangent is read once, by the equation that made the value: all that reads the value has added to it then.

    Args:
      program: linear in those inputs taken together.
      linear: for each input, whether it is one of them.
      nonzero_cts: for each result, whether a cotangent comes in for it.
      carried: for each linear input, whether the sum of its cotangents starts from a value that comes in too, after those.
      instantiate: for each linear input, whether a zero cotangent is written out.
      ct_avals: types whose cotangents come in for the results; those of the results by default.
      at: concrete values of what the backward program takes, for custom rules whose Python looks at values.

    Raises:
      EquationError: names the primitive, the equation and the user's line.
    """
    builder = Builder(program.constvars, program.consts)
    is_linear: set[Atom] = {v for v, lin in zip(program.invars, linear, strict=True) if lin}
    linear_equations: list[tuple[int, Equation]] = []
    for index, equation in enumerate(program.equations):
        if is_linear.isdisjoint(equation.invars):
            origin = Origin(equation, "transpose", "reads residuals only", "primal")
            builder.equations.append(
                Equation(equation.operation, equation.invars, equation.outvars, equation.source, origin)
            )
        else:
            is_linear.update(equation.outvars)
            linear_equations.append((index, equation))

    cotangents: dict[Atom, Atom] = {}
    reads: list[Read] = []

    def accumulate(to: Atom, ct: Atom, equation: Equation | None) -> None:
        reads.append((to, equation, ct))
        before = cotangents.get(to)
        cotangents[to] = ct if before is None else _add(builder, before, ct, equation)

    cts_in: list[Var] = []
    for result, aval, nonzero in zip(program.outvars, ct_avals or program.out_avals, nonzero_cts, strict=True):
        if nonzero:
            cts_in.append(Var(compat.cotangent_type(aval)))
            if result in is_linear:
                accumulate(result, cts_in[-1], None)
    linear_inputs = [v for v, lin in zip(program.invars, linear, strict=True) if lin]
    for v, starts in zip(linear_inputs, carried or (), strict=bool(carried)):
        if starts:
            cts_in.append(Var(compat.cotangent_type(v.aval)))
            accumulate(v, cts_in[-1], None)

    for index, equation in reversed(linear_equations):
        cts = [cotangents.get(v) for v in equation.outvars]
        nonzeros = tuple([ct is not None for ct in cts])
        if True not in nonzeros:
            continue
        mask = tuple([a in is_linear for a in equation.invars])
        operation = _as_weak_as(equation.operation, cts)
        try:
            rule = transpose_rules(operation, mask, nonzeros)
        except compat.ConcretizationTypeErrors as error:
            if at is None:
                located(error, equation, index)
                raise
            inputs = [v for v, lin in zip(program.invars, linear, strict=True) if not lin] + cts_in
            read = [a for a in equation.invars if a not in is_linear] + [ct for ct in cts if ct is not None]
            values = values_at(builder, inputs, at, read)
            rule = transpose_rules.find(operation)(operation, mask, nonzeros, values)
        except AssertionError as error:
            if sum(mask) < 2:
                raise
            refused = _not_linear(equation.operation)
            located(refused, equation, index)
            raise refused from error
        except Exception as error:
            located(error, equation, index)
            raise
        given: list[Atom] = [a for a in equation.invars if a not in is_linear]
        given += [ct for ct in cts if ct is not None]
        outs = iter(builder.splice(rule.backward, given, equation, "transpose", rule.name))
        operands = [a for a in equation.invars if a in is_linear]
        for operand, nonzero_out in zip(operands, rule.nonzeros_out, strict=True):
            if nonzero_out:
                accumulate(operand, next(outs), equation)

    cts_out = [
        builder.zero(compat.cotangent_type(v.aval), "transpose") if w and v not in cotangents else cotangents.get(v)
        for v, w in zip(linear_inputs, instantiate or (False,) * len(linear_inputs), strict=True)
    ]
    invars = [v for v, lin in zip(program.invars, linear, strict=True) if not lin] + cts_in
    results = [ct for ct in cts_out if ct is not None]
    # Of the equations that no linear input reaches, only what those after them read is needed.
    n = len(program.equations) - len(linear_equations)
    needed = {a for e in builder.equations[n:] for a in e.invars}.union(results)
    builder.equations[:n] = live_equations(builder.equations[:n], needed)
    info = compat.derived_debug_info(program.debug_info, [""] * len(invars), len(results))
    backward = builder.program(invars, results, info, like=program)
    backward = replace(
        backward,
        cotangents=partial(_of_values, program, cotangents, reads, linear_inputs, cts_out),
        relations=partial(_relations, cotangents, reads, linear_inputs, cts_out, builder),
    )
    return Transposed(backward, tuple(ct is not None for ct in cts_out))


def _relations(
    cotangents: Mapping[Atom, Atom], reads: Sequence[Read], inputs: Sequence[Var], of_inputs: Sequence[Atom | None],
    builder: Builder,
) -> Relations:  # fmt: skip
    """See `Program.relations`; the parts of a sum are what each reader adds, and what is summed so far.

    Args:
      cotangents, reads, inputs, of_inputs: as of `_of_values`.
      builder: of the backward program.
    """
    sums: dict[Atom, Atom] = {e.outvars[0]: e.invars[0] for e in builder.equations if e.primitive is compat.add_any_p}
    found = _with_inputs(cotangents, inputs, of_inputs)
    for v, ct in found.items():
        yield ct, "cotangent", v
    for v, parts in _readers(reads).items():
        if len(parts) < 2:
            continue
        for _, ct in parts:
            yield ct, "part", v
        so_far = found[v]
        for _ in parts[2:]:
            so_far = sums[so_far]
            yield so_far, "part", v
    yield from builder.relations()


def _with_inputs(
    cotangents: Mapping[Atom, Atom], inputs: Sequence[Var], of_inputs: Sequence[Atom | None]
) -> dict[Atom, Atom]:
    return {**cotangents, **{v: ct for v, ct in zip(inputs, of_inputs, strict=True) if ct is not None}}


def _readers(reads: Sequence[Read]) -> dict[Atom, list[tuple[Equation | None, Atom]]]:
    """For a variable, the equations that read it, and what each adds to its cotangent."""
    readers: dict[Atom, list[tuple[Equation | None, Atom]]] = {}
    for a, equation, ct in reads:
        readers.setdefault(a, []).append((equation, ct))
    return readers


def _as_weak_as(operation: Operation, cts: Sequence[Atom | None]) -> Operation:
    """The operation with results of weak types where their cotangents have weak types: in JAX a rule is run on what comes in.

    The cotangent of a weakly typed value is strong where, say, a matrix product with a strong one reads it.
    """
    if operation.programs and operation.primitive not in typed_by_cotangents:
        return operation
    avals = tuple(
        a if ct is None else compat.as_weak_as(a, ct.aval) for a, ct in zip(operation.out_avals, cts, strict=True)
    )
    if all(a is b for a, b in zip(avals, operation.out_avals, strict=True)):
        return operation
    return make_operation(
        operation.primitive, operation.params, operation.in_avals, avals, operation.effects, operation.context
    )


def _of_values(
    program: Program, cotangents: Mapping[Atom, Atom], reads: Sequence[Read], inputs: Sequence[Var],
    of_inputs: Sequence[Atom | None],
) -> Mapping[Atom, tuple[Atom, ...]]:  # fmt: skip
    """From the values that the variables of a linear program are the tangents of to the sums that are their cotangents.

    Args:
      program: the linear program.
      cotangents: of its variables.
      reads: what each equation adds to the cotangents of those that it reads.
      inputs, of_inputs: its linear inputs, and their cotangents, zeros that were written out among them.
    """
    found, readers = _with_inputs(cotangents, inputs, of_inputs), _readers(reads)
    of_values: dict[Atom, tuple[Atom, ...]] = {}
    for t, shared in program.tangents().items():
        if t not in found:
            continue
        of_values.setdefault(shared.values[0], (found[t],))
        read = [_read_by(equation, shared) for equation, _ in readers.get(t, ())]
        for i, value in enumerate(shared.values[1:], 1):
            if any(not places or min(places) < i <= max(places) for places in read):
                continue  # which part of the sum comes from this value, and which from one before it, is not known
            parts = [ct for places, (_, ct) in zip(read, readers[t], strict=True) if min(places) >= i] if read else []
            if parts:
                of_values.setdefault(value, (found[t],) if len(parts) == len(read) else tuple(parts))
    return of_values


def _read_by(equation: Equation | None, shared: Shared) -> list[int]:
    """The places of the variables, among those that share a tangent, that the equation which one of its readers came from reads."""
    if equation is None:
        return [shared.variables.index(a) for a in shared.results]
    for e in ancestors(equation):
        places = [shared.variables.index(a) for a in e.invars if a in shared.variables]
        if places:
            return places
    return []


def _add(builder: Builder, x: Atom, y: Atom, equation: Equation | None) -> Var:
    """Adds a cotangent to another, in the context of the equation that gives it, as JAX does."""
    context = compat.current_context() if equation is None else equation.operation.context
    operation = applied(compat.add_any_p, {}, (x.aval, y.aval), context)
    out = Var(operation.out_avals[0])
    source = equation.source if equation is not None else None
    origin = Origin(equation, "transpose", "sum of cotangents of a value used more than once", "accumulation")
    builder.equations.append(Equation(operation, (x, y), (out,), source, origin))
    return out
