"""Differences for functions of any scale: what is right is never called wrong where rounding or the step decides."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxviz
from jaxviz.functions.differences import Differences


def certain(z):
    """The cross-entropy of logits, the first of which is right."""
    return jax.nn.logsumexp(z) - z[0]


def iterated(x):
    return jax.lax.scan(lambda c, _: (3.9 * c * (1 - c), None), x, None, length=25)[0]


def sharp(x):
    return jnp.tanh(x / 1e-9)


def hypotenuse(x, y):
    return jnp.sqrt(x * x + y * y)


SCALES = [
    ("log of a small number", jnp.log, 1e-10),
    ("root of a tiny number", jnp.sqrt, 1e-20),
    ("square of a large number", jnp.square, 1e10),
    ("one less a cosine", lambda x: 1 - jnp.cos(x), 1e-6),
    ("a kink nearby", lambda x: 1 + jax.nn.relu(x), 1e-9),
    ("a steep step", sharp, 1e-12),
    ("a sine of high frequency", lambda x: jnp.sin(1e9 * x), 0.3),
    ("a small hypotenuse", hypotenuse, 1e-8, 1e-8),
    ("numbers of different size", lambda x: jnp.prod(jnp.log(x)), np.array([1e-9, 1.0001, 1e6])),
    ("half of the digits", lambda x: jnp.log(jnp.asarray(x, jnp.float32)), 1e-6),
    ("the edge of the domain", jnp.arccos, 1 - 1e-6),
    ("a matrix with a wide spectrum", lambda a: jnp.linalg.slogdet(a)[1], np.diag([1.0, 1e-6, 1e6])),
    ("a chaotic loop", iterated, 0.3),
]
LOST = [
    ("a certain cross-entropy", certain, np.array([50.0, 0.0, -3.0])),
    ("a saturated softplus", lambda x: jnp.log(1 + jnp.exp(x)), -40.0),
    ("a sine whose argument is rounded", jnp.sin, 1e17),
]
"""Whose derivatives rounding hides: no difference contradicts them."""
IN_SHORT = (
    "a saturated softplus",
    "one less a cosine",
    "a kink nearby",
    "a small hypotenuse",
    "square of a large number",
)


def marked(cases):
    sweep = pytest.mark.slow(sweep=True)
    return [
        pytest.param(f, args, id=name.replace(" ", "_"), marks=() if name in IN_SHORT else sweep)
        for name, f, *args in cases
    ]


def scaled(f, by):
    """A function with a rule that is wrong by a factor."""
    wrong = jaxviz.custom_jvp(f)
    wrong.defjvp(lambda at, t: (f(*at), by * jax.jvp(f, at, t)[1]))
    return wrong


@pytest.mark.parametrize(("f", "args"), marked(SCALES))
def test_a_right_derivative_is_right_and_a_wrong_one_is_wrong_at_any_scale(f, args):
    with jax.enable_x64(True):
        found, off = jaxviz.check_rule(scaled(f, 1), *args), jaxviz.check_rule(scaled(f, 1.5), *args)
    assert {leaf.verdict for leaf in (*found.leaves, *found.second)} == {"right"}
    assert {leaf.verdict for leaf in off.leaves} == {"wrong"}
    assert all(leaf.rule == pytest.approx(1.5 * leaf.numerical, rel=0.05) for leaf in off.leaves)


@pytest.mark.parametrize(("f", "args"), marked(LOST))
def test_a_derivative_that_rounding_hides_is_not_contradicted(f, args):
    with jax.enable_x64(True):
        found = jaxviz.check_rule(f, *args)
    assert {leaf.verdict for leaf in found.leaves} == {"right"}
    assert "Differences say little about the cotangent of" in str(found)


def test_long_steps_may_not_skip_periods():
    """Far from zero a step has to be long, and two of them may give the same slope by chance."""
    with jax.enable_x64(True):
        wave = jax.jit(lambda x: [jnp.sin(x) + 1e-3 * x])
        for x in 1e12 * np.random.default_rng(0).uniform(1, 9, 10):
            differences = Differences(wave, (jnp.asarray(x),), 2.0**-52, None, jax.jit)
            (slope,) = differences.along_carefully(0, np.ones(()))
            assert abs(slope.value - (np.cos(x) + 1e-3)) <= slope.error


def test_a_rule_of_a_flat_function_is_wrong_beside_its_steps_too():
    """A step away from the point must not be taken for its slope, nor a slope of the rule for one that is hidden."""
    for f in (lambda x: jnp.round(x), lambda x: 3 + jnp.sign(x)):
        straight = jaxviz.custom_jvp(f)
        straight.defjvp(lambda at, t, f=f: (f(*at), *t))
        found = jaxviz.check_rule(straight, 1e-7)
        assert {leaf.verdict for leaf in found.leaves} == {"wrong"}
        assert [leaf.numerical for leaf in found.leaves] == [0.0, 0.0]


def test_what_is_not_finite_is_said_to_be(recwarn):
    found = jaxviz.check_rule(lambda x: jnp.log(1 + jnp.exp(x)), 800.0)
    assert {leaf.verdict for leaf in found.leaves} == {"not finite"}
    assert found.agrees
    assert found.summary.endswith("could not be checked: the function is not finite here")
    assert recwarn.list == []
