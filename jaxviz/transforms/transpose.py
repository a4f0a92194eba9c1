"""Transpose: a program linear in some inputs, `(res, a) ⊸ b`, becomes `(res, CT b) → CT a`.

From the last equation to the first, the rule of the primitive computes the cotangents of the linear operands from those
of the results. A variable that several equations read gets the sum of theirs; one that none reads has none, which means
zero.

Source: Frostig, Johnson, Maclaurin, Paszke and Radul, "Decomposing reverse-mode automatic differentiation" (2021,
arXiv:2105.09469); `backward_pass3` in JAX's `ad.py`. Summing each cotangent before it is read is the reverse sweep of
Griewank and Walther, "Evaluating Derivatives" (SIAM, second edition 2008), chapter 3.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import is_
from typing import Any

import jax

from jaxviz.ir import compat
from jaxviz.ir.collector import collector_paused
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.convert import trace_rule, trace_rule_on_values, write_params
from jaxviz.ir.errors import EquationError
from jaxviz.ir.syntax import Atom, Equation, Literal, Operation, Program, Var
from jaxviz.transforms.accumulators import Accumulators
from jaxviz.transforms.cotangents import CotangentSums
from jaxviz.transforms.dce import live_equations, values_at
from jaxviz.transforms.driver import (
    Builder,
    Mask,
    RuleTable,
    Template,
    located,
    no_rule,
    refuse_reference,
    scopes_alone,
    select,
)
from jaxviz.transforms.primitive import bodies, of


@dataclass(frozen=True, slots=True)
class TransposeRule:
    """How one operation is transposed.

    Args:
      backward: operands it is not linear in, nonzero cotangents of the results, the accumulators of linear operands
        that are references → nonzero cotangents of linear operands.
      nonzeros_out: which linear operands have a cotangent that is not a symbolic zero; a reference has none.
      name: a name for messages.
      logs: the structure of a dict of what it logs, whose values are its last results if requested; None for nothing.
      summands: for each linear operand how many values its cotangent is the sum of, which are added one by one; None
        for one each.
    """

    backward: Template
    nonzeros_out: Mask
    name: str
    logs: Any = None
    summands: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Transposed:
    """A transposed program.

    Args:
      backward: nonlinear inputs, nonzero cotangents of results, the accumulators of linear inputs that are references →
        nonzero cotangents of linear inputs.
      nonzeros_out: which linear inputs have a cotangent that is not a symbolic zero.
      logs: as of `TransposeRule`.
      summands: returns for each linear input the values that its cotangent is the sum of, in order.
    """

    backward: Program
    nonzeros_out: Mask
    logs: Any = None
    summands: Callable[[], list[list[Atom]]] = list


_LOGS = ", which logs "


def logged_at(equation: Equation) -> str:
    """What the backward rule logs that an equation is of, by its keys: "`norm`, `scale`"; '' for nothing."""
    origin = equation.origin
    return origin.rule.partition(_LOGS)[2] if origin is not None and origin.transform == "transpose" else ""


def _with_keys(rule: TransposeRule, operation: Operation) -> str:
    """The name of a rule with the keys of what it logs; what is inside of an operation has its own."""
    if rule.logs is None or operation.programs:
        return rule.name
    keys = jax.tree.unflatten(rule.logs, range(rule.logs.num_leaves))
    return rule.name + _LOGS + ", ".join(f"`{key}`" for key in keys)


def _default_rule(
    operation: Operation, linear: Mask, nonzero_cts: Mask, logs: bool, values: Sequence[Any] | None = None
) -> TransposeRule:
    primitive = operation.primitive
    refuse_reference(operation, "Transpose rule (for reverse-mode differentiation) for")
    if not compat.has_transpose_rule(primitive):
        types = ", ".join(
            a.str_short(short_dtypes=True) for a, lin in zip(operation.in_avals, linear, strict=True) if lin
        )
        what = (
            f"It was reached with a linear operand {types}. Register one in jax.interpreters.ad.primitive_transposes."
        )
        raise no_rule(operation, "Transpose rule (for reverse-mode differentiation) for", what)
    log = compat.Log(logs)
    rule, avals, nonzeros_out = compat.transpose_rule(
        primitive, write_params(operation), operation.in_avals, operation.out_avals, linear, nonzero_cts,
        operation.context, log,
    )  # fmt: skip
    # The operation is not passed on: here its results may have the types of their cotangents, not the primitive's.
    program = trace_rule(rule, avals) if values is None else trace_rule_on_values(rule, avals, values)
    return TransposeRule(
        Template(scopes_alone(program), "cotangent", keeps_lines=True),
        tuple(nonzeros_out),
        f"transpose rule of {primitive.name}",
        log.tree,
    )


transpose_rules: RuleTable[TransposeRule] = RuleTable("transpose", _default_rule, compat.pins_cotangents)
"""Key: operation, which operands it is linear in, which results have a nonzero cotangent, whether what backward rules
log is asked for."""


def _rule_transposed_whole(equation: Equation) -> Equation | None:
    """The equation of a function whose linearized rule an equation is of, if JAX transposes that rule as a whole."""
    o = equation.origin
    if o is None or o.equation is None or o.transform != "linearize":
        return None
    return o.equation if of(o.equation).is_transposed_whole(o.equation.operation) else None


def _literals(atoms: Sequence[Atom]) -> Sequence[Any] | None:
    """The values of the atoms if any is a literal: a rule may save Python scalars as residuals."""
    known = [a.val if isinstance(a, Literal) else None for a in atoms]
    return known if any(x is not None for x in known) else None


def _not_linear(operation: Operation) -> EquationError:
    """An error for a product of two linear operands, for which JAX's rules fail an assertion."""
    return EquationError(
        f"The function is not linear: more than one operand of '{operation.primitive.name}' depends on the inputs of "
        "the transpose. "
        "jax.linearize returns a linear function that can be transposed."
    )


def _typed_as(operation: Operation, cts: Sequence[Atom | None]) -> Operation:
    """The operation with results of their cotangents' types: in JAX a rule is applied to whatever comes in.

    For example, the cotangent of a weakly typed value is strong if a matrix product with a strong one reads it, and a
    user's backward rule may return a higher precision than the value's.
    """
    for a, ct in zip(operation.out_avals, cts, strict=True):
        if ct is not None and ct.aval is not a:
            break
    else:  # nearly always
        return operation
    if operation.programs and not of(operation).is_typed_by_cotangents:
        return operation
    avals = [
        a if ct is None else compat.as_cotangent(a, ct.aval) for a, ct in zip(operation.out_avals, cts, strict=True)
    ]
    if all(map(is_, avals, operation.out_avals)):
        return operation
    return make_operation(
        operation.primitive, operation.params, operation.in_avals, tuple(avals), operation.effects, operation.context
    )


def _rule(
    operation: Operation, linear: Mask, nonzero_cts: Mask, logs: bool, values: Callable[[], Sequence[Any] | None]
) -> TransposeRule:
    """The rule of an operation; if its Python code branches on values, and these are available, the rule for these
    values.

    Args:
      operation, linear, nonzero_cts, logs: as in `transpose_rules`.
      values: returns the values of non-linear operands and of the cotangents, as far as they are available; None if
        none is.
    """
    try:
        return transpose_rules(operation, linear, nonzero_cts, logs)
    except compat.ConcretizationTypeErrors:
        within = operation.programs and operation.primitive in transpose_rules.own  # where JAX has no values either
        known = None if within else values()
        if known is None:
            raise
        return transpose_rules.find(operation)(operation, linear, nonzero_cts, logs, known)
    except AssertionError as error:
        if sum(linear) < 2:
            raise
        raise _not_linear(operation) from error


@dataclass(frozen=True, slots=True)
class TransposeOptions:
    """What a program is transposed for.

    Args:
      carried: for each linear input, whether the sum of its cotangents starts from another incoming value; these come
        after the cotangents.
      instantiate: for each linear input, whether a zero cotangent is instantiated.
      ct_avals: types of the incoming cotangents of the results; those of the results by default.
      logs: whether what backward rules log is a result, after the cotangents.
      at: concrete values of the backward program's inputs, for custom rules whose Python looks at values.
    """

    carried: Sequence[bool] | None = None
    instantiate: Sequence[bool] | None = None
    ct_avals: Sequence[Any] | None = None
    logs: bool = False
    at: Sequence[Any] | None = None


def linear_variables(program: Program, inputs: Iterable[Atom]) -> set[Atom]:
    """The variables of a program that depend on some inputs: also those that are read from a reference which something
    that depends on them is written to."""
    found: set[Atom] = set(inputs)
    is_complete = False
    while not is_complete:
        is_complete = True  # unless a reference is found that equations before may have read
        for e in program.equations:
            if not found.isdisjoint(e.invars):
                found.update(e.outvars)
                if compat.written_refs(e.effects):
                    n = len(found)
                    found.update(_written(e, found))
                    is_complete &= n == len(found)
    return found


def _written(equation: Equation, found: set[Atom]) -> Iterator[Atom]:
    """The references that an equation writes some of these variables to, or what is computed from them."""
    if not equation.programs:
        ref, *values = equation.invars
        if not found.isdisjoint(values):
            yield ref
    n_before, n_carry = of(equation).carry(equation.operation)
    for body in bodies(equation):
        operand_of = dict(zip(body.program.invars, (equation.invars[i] for i in body.operands), strict=True))
        inside: set[Atom] = {v for v, a in operand_of.items() if a in found}
        carry = [*zip(body.program.invars[n_before : n_before + n_carry], body.program.outvars, strict=False)]
        grown = -1
        while grown < len(inside):
            grown = len(inside)
            inside = linear_variables(body.program, inside | {v for v, a in carry if a in inside})
        yield from (a for v, a in operand_of.items() if v in inside and compat.is_ref(v.aval))


@collector_paused()
def transpose_program(
    program: Program, linear: Sequence[bool], nonzero_cts: Sequence[bool], options: TransposeOptions | None = None
) -> Transposed:
    """Transposes a program in the inputs that `linear` marks.

    Each cotangent is read once, by the equation that computes the value: everything that reads the value has added to
    it by then.

    Args:
      program: linear in those inputs taken together.
      linear: for each input, whether it is one of them.
      nonzero_cts: for each result, whether it has an incoming cotangent.
      options: for the rule of a loop, a branch or a call.

    Raises:
      ValueError: JAX's, if two values are logged under one key.
      EquationError: names the primitive, the equation and the user's line.
    """
    options = options or TransposeOptions()
    carried, logs, at = options.carried, options.logs, options.at
    builder = Builder(program.constvars, program.consts)
    linear_inputs = select(linear, program.invars)
    is_linear = linear_variables(program, linear_inputs)
    linear_equations: list[tuple[int, Equation]] = []
    for index, equation in enumerate(program.equations):
        if is_linear.isdisjoint(equation.invars) and is_linear.isdisjoint(equation.outvars):
            builder.copy(equation, equation.invars, "transpose", "reads residuals only")
        else:
            linear_equations.append((index, equation))

    cotangents = CotangentSums(builder)
    invars = [v for v, lin in zip(program.invars, linear, strict=True) if not lin]
    ct_avals = options.ct_avals or program.out_avals
    read_outside = [*zip(select(nonzero_cts, program.outvars), select(nonzero_cts, ct_avals), strict=True)]
    if carried is not None:
        read_outside += [(v, v.aval) for v in select(carried, linear_inputs)]
    for v, aval in read_outside:
        invars.append(Var(compat.cotangent_type(aval)))
        if v in is_linear:
            cotangents.add(v, invars[-1], None)

    accumulators = Accumulators(builder)
    invars += [accumulators.given(v) for v in linear_inputs if compat.is_ref(v.aval)]
    has_refs = compat.touches_refs(program.effects)
    linear_refs = {a for a in is_linear if compat.is_ref(a.aval)} if has_refs else ()
    sums = cotangents.sums
    logged: dict[Any, Any] = {}
    made_in: dict[Atom, Equation] = {
        v: whole for _, e in linear_equations if (whole := _rule_transposed_whole(e)) for v in e.outvars
    }
    with located(reversed(linear_equations)) as equations:
        for _, equation in equations:
            whole = _rule_transposed_whole(equation)
            cotangents.enter(whole)
            cts = [sums.get(v) for v in equation.outvars]
            nonzeros = tuple([ct is not None for ct in cts])
            refs = [a for a in equation.invars if a in linear_refs] if has_refs else ()
            # What is written is zero if nothing reads it later.
            is_read = any(ref in accumulators.of for ref in refs)
            if has_refs and of(equation).makes_reference:
                ct = accumulators.end(equation.outvars[0], equation)
                if ct is not None and not is_linear.isdisjoint(equation.invars):
                    cotangents.add(equation.invars[0], ct, equation)
                continue
            if True not in nonzeros and not is_read and not (logs and any(nonzero_cts)):
                continue
            if refs and cts and cts[0] is not None and of(equation).reads_all(equation.operation):
                accumulators.add(refs[0], cts[0], equation)
                continue
            mask = tuple([a in is_linear for a in equation.invars])
            inputs = [a for a in equation.invars if a not in is_linear]
            inputs += [ct for ct in cts if ct is not None]
            if refs and of(equation).accumulates:
                inputs += [accumulators.ready(ref, equation) for ref in refs]
            elif refs and equation.programs:
                refuse_reference(equation.operation, "Transpose rule (for reverse-mode differentiation) for")
            operation = equation.operation
            avals = operation.out_avals
            if len(cts) != 1 or cts[0] is None or cts[0].aval is not avals[0]:
                operation = _typed_as(operation, cts)
            values = partial(values_at, builder, invars, at, inputs) if at is not None else partial(_literals, inputs)
            rule = _rule(operation, mask, nonzeros, logs, values)
            if True not in nonzeros and not is_read and rule.logs is None:
                continue  # a rule with a log effect logs for zeros as well, in a program with any cotangent, as in JAX
            outs = iter(builder.splice(rule.backward, inputs, equation, "transpose", _with_keys(rule, operation)))
            operands = [a for a in equation.invars if a in is_linear]
            for operand, n in zip(operands, rule.summands or map(int, rule.nonzeros_out), strict=True):
                for ct in itertools.islice(outs, n):
                    if compat.is_ref(operand.aval):
                        accumulators.add(operand, ct, equation)
                    elif is_read or not refs or equation.programs:
                        if whole is None or made_in.get(operand) is whole:
                            cotangents.add(operand, ct, equation)
                        else:
                            cotangents.add_in_rule(operand, ct, equation)
            if rule.logs is not None:
                values_logged = list(outs) if logs else [None] * rule.logs.num_leaves
                compat.merge_logs(logged, jax.tree.unflatten(rule.logs, values_logged), operation.primitive)

    cotangents.enter(None)
    cts_out = [
        builder.zero(compat.cotangent_type(v.aval), "transpose")
        if w and v not in sums and not compat.is_ref(v.aval)
        else sums.get(v)
        for v, w in zip(linear_inputs, options.instantiate or (False,) * len(linear_inputs), strict=True)
    ]
    sums |= accumulators.made
    results = [ct for ct in cts_out if ct is not None]
    results += jax.tree.leaves(logged)
    # Of the equations that no linear input reaches, only operands of later equations are needed.
    n = len(program.equations) - len(linear_equations)
    needed = {a for e in builder.equations[n:] for a in e.invars}.union(results)
    builder.equations[:n] = live_equations(builder.equations[:n], needed)
    info = compat.derived_debug_info(program.debug_info, [""] * len(invars), len(results))
    backward = replace(
        builder.program(invars, results, info, like=program),
        cotangents=partial(cotangents.of_values, program, linear_inputs, cts_out),
        relations=partial(cotangents.relations, linear_inputs, cts_out),
    )
    nonzeros_out = tuple(ct is not None for ct in cts_out)
    summands = partial(cotangents.summands, linear_inputs)
    return Transposed(backward, nonzeros_out, jax.tree.structure(logged) if logged else None, summands)
