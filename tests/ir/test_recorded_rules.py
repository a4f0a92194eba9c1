"""JAX's rules recorded the short way, compared with the same rules traced by JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import primitives
from primitives import cases_of_primitives
from short_runs import short

import jaxviz
from jaxviz.ir import compat, convert
from jaxviz.ir.syntax import Literal


def rules_of(operation):
    """Every way in which JAX differentiates an operation in forward mode and transposes it."""
    floats = [jnp.issubdtype(a.dtype, jnp.inexact) for a in operation.in_avals]
    params = convert.write_params(operation)
    masks = {tuple(floats), *(tuple(i == k for i in range(len(floats))) for k, f in enumerate(floats) if f)}
    for mask in masks:
        if compat.has_plain_jvp_rule(operation.primitive) and any(mask):
            rule, avals, _ = compat.jvp_rule(operation.primitive, params, operation.in_avals, mask, operation.context)
            yield rule, avals
        if compat.has_transpose_rule(operation.primitive) and any(mask):
            rule, avals, _ = compat.transpose_rule(
                operation.primitive, params, operation.in_avals, operation.out_avals, mask,
                [True] * len(operation.out_avals), operation.context, compat.Log(False),
            )  # fmt: skip
            yield rule, avals


def shown(program):
    """The program, with marks on what becomes an array in JAX's linearize."""
    held = [
        [isinstance(a, Literal) and a.held for a in atoms]
        for atoms in [*(e.invars for _, e in program.walk()), program.outvars]
    ]
    return str(program), held, [np.asarray(x).tolist() for x in program.consts]


@pytest.mark.slow
@pytest.mark.parametrize("case", short([case for case, _ in cases_of_primitives()], 5), ids=str)
def test_recorded_as_traced(case):
    with case.where():
        program = jaxviz.trace(case.fun)(*case.args)
        for _, equation in program.walk():
            operation = equation.operation
            if operation.programs or operation.effects:
                continue
            for rule, avals in rules_of(operation):
                try:
                    traced = compat.trace_to_jaxpr(rule, avals)
                except Exception:  # JAX refuses to transpose operations that are not linear in these
                    assert compat.record_rule(rule, avals, convert.applied) is None
                    continue
                recorded = compat.record_rule(rule, avals, convert.applied)
                if recorded is not None:
                    assert shown(recorded) == shown(convert.read_traced(traced))


def test_rules_of_plain_operations_are_recorded():
    """All rules of a transformer, for example, are recorded the short way."""
    aval = jax.typeof(jnp.ones((3, 4)))
    context = compat.current_context()
    for primitive in (primitives.mul_p, primitives.sub_p, primitives.add_p, primitives.max_p):
        rule, avals, nonzeros = compat.jvp_rule(primitive, {}, [aval, aval], [True, True], context)
        program = compat.record_rule(rule, avals, convert.applied)
        assert program is not None
        assert nonzeros == [True]
        assert program.equations[0].primitive is primitive


def test_a_rule_with_effects_goes_the_long_way():
    def rule(x):
        jax.debug.print("{}", x)
        return [x]

    assert compat.record_rule(rule, [jax.typeof(1.0)], convert.applied) is None


def test_a_failing_rule_is_left_to_the_long_way():
    def rule(x):
        raise RuntimeError("of the rule")

    assert compat.record_rule(rule, [jax.typeof(1.0)], convert.applied) is None
