"""`check_rule`: custom rules against numerical differences, and against what they replace."""

import functools

import jax.numpy as jnp
import pytest
from jax import lax
from test_custom_rules import RIGHT_FWD, X, weighted, with_jvp, with_vjp

import jaxviz


def log1pexp(x):
    return jnp.log(1.0 + jnp.exp(x))


def test_a_right_rule_agrees():
    f = with_jvp(log1pexp, lambda p, t: (log1pexp(p[0]), (1.0 - 1.0 / (1.0 + jnp.exp(p[0]))) * t[0]))
    found = jaxviz.check_rule(f, X)
    assert found
    assert [(leaf.kind, leaf.verdict) for leaf in found.leaves] == [("cotangent", "right"), ("tangent", "right")]
    assert found.leaves[0].replaced == pytest.approx(found.leaves[0].rule, rel=1e-6)
    assert str(found).startswith("rule of log1pexp agrees with numerical differences\n")


def test_the_leaf_that_is_wrong_is_named():
    f = with_vjp(weighted, RIGHT_FWD, lambda res, ct: ({"w": 2.0 * ct * res[1]}, ct * res[0]["w"]))
    found = jaxviz.check_rule(f, {"w": X}, X)
    assert not found
    assert [(leaf.path, leaf.verdict) for leaf in found.leaves] == [("p['w']", "wrong"), ("x", "right")]
    assert found.leaves[0].rule == pytest.approx(2.0 * found.leaves[0].numerical, rel=1e-4)
    assert "is wrong in the cotangent of p['w'][2]: 3.4 where numerical differences give 1.7\n" in str(found)
    assert all(len(line) <= 100 for line in str(found).splitlines())


def test_a_rule_that_is_meant_to_differ():
    straight_through = with_jvp(lambda x: jnp.round(x), lambda p, t: (jnp.round(p[0]), t[0]))
    found = jaxviz.check_rule(straight_through, X)
    assert not found
    assert found.leaves[0].numerical == found.leaves[0].replaced == 0.0
    assert "straight-through" in str(found)


def test_a_kink_is_no_mistake():
    f = with_jvp(lambda x: jnp.abs(x), lambda p, t: (jnp.abs(p[0]), jnp.where(p[0] < 0, -1.0, 1.0) * t[0]))
    found = jaxviz.check_rule(f, jnp.zeros(()))
    assert [leaf.verdict for leaf in found.leaves] == ["not differentiable"] * 2
    assert found
    assert "-1 on one side and 1 on the other" in " ".join(str(found).split())


def test_what_cannot_be_differentiated_is_left_out():
    def root(a):
        return lax.while_loop(lambda x: jnp.abs(x * x - a) > 1e-12, lambda x: 0.5 * (x + a / x), a)

    f = with_vjp(root, lambda a: (root(a), root(a)), lambda y, ct: (0.5 * ct / y,))
    found = jaxviz.check_rule(lambda a, n: f(a) * n, 2.0, 3)
    assert found
    left_alone, no_reverse = found.notes
    assert left_alone == "n was held fixed: it is not of floating point."
    assert no_reverse.startswith(
        "The function that the rule replaces was not differentiated in full: There is no reverse mode"
    )
    assert [(leaf.path, leaf.kind, leaf.replaced) for leaf in found.leaves] == [("a", "cotangent", None)]


@pytest.mark.values
def test_inside_bodies_the_rule_is_taken_out_too():
    wrong = with_jvp(jnp.sin, lambda p, t: (jnp.sin(p[0]), t[0]))
    found = jaxviz.check_rule(lambda x: lax.scan(lambda c, _: (wrong(c), None), x, None, length=2)[0], 0.5)
    assert not found
    assert found.leaves[0].replaced == pytest.approx(found.leaves[0].numerical, rel=1e-4)


def test_nothing_to_differentiate_in():
    with pytest.raises(TypeError, match="no argument of <lambda> is of floating point"):
        jaxviz.check_rule(lambda n: n, 3)


def test_one_wrong_element_is_found_and_shown():
    """Zero along all ones, so that a sum does not show it."""
    swap = jnp.array([1.0, -1.0, 0.0])
    f = with_jvp(jnp.sin, lambda p, t: (jnp.sin(p[0]), jnp.cos(p[0]) * t[0] + swap * jnp.sum(t[0])))
    found = jaxviz.check_rule(f, X)
    assert not found
    assert found.leaves[0].verdict == "wrong"


def test_nondiff_arguments_are_left_alone():
    @functools.partial(jaxviz.custom_vjp, nondiff_argnums=(1,))
    def power(x, n):
        return x**n

    power.defvjp(lambda x, n: (x**n, x), lambda n, x, ct: (ct * n * x ** (n - 1.0),))
    found = jaxviz.check_rule(power, X, 3.0)
    assert found
    assert [leaf.path for leaf in found.leaves] == ["x"]
    assert found.notes == ("n was held fixed: it is in nondiff_argnums.",)


def test_a_rule_that_gives_nan_is_wrong():
    f = with_jvp(lambda x: x * 2.0, lambda p, t: (p[0] * 2.0, t[0] * jnp.nan))
    found = jaxviz.check_rule(f, X)
    assert not found
    assert {leaf.verdict for leaf in found.leaves} == {"wrong"}


def test_what_the_rule_raises_is_raised():
    def rule(primals, tangents):
        raise RuntimeError("of the rule")

    with pytest.raises(RuntimeError, match="of the rule"):
        jaxviz.check_rule(with_jvp(lambda x: x * 2.0, rule), X)
