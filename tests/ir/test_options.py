"""Options of public functions: a wrong one is an error that names it and says what it takes."""

import jax.numpy as jnp
import pytest

import jaxviz

X = jnp.ones(3)


def loss(x):
    return jnp.sum(jnp.tanh(x) ** 2)


WRONG = {
    "cond_residuals": (lambda x: jaxviz.derive(loss, X, cond_residuals=x), ["bogus", None, 3]),
    "depth": (lambda x: jaxviz.draw(loss, X, depth=x), ["x", -1, 1.5, True]),
    "stage": (lambda x: jaxviz.draw(loss, X, stage=x), [None, 3]),
    "repeat": (lambda x: jaxviz.profile(loss, X, repeat=x), [0, -1, "x", 1.5, True]),
    "min_nbytes": (lambda x: jaxviz.lint(loss, X, min_nbytes=x), [float("nan"), -1, "x", 10**400]),
    "gradient": (lambda x: jaxviz.find_nan(loss, X, gradient=x), ["x", "no"]),
    "harmless": (lambda x: jaxviz.find_nan(loss, X, harmless=x), ["x", [1]]),
    "memory": (lambda x: jaxviz.plan_remat(loss, X, memory=x), ["1e400GiB", 10**400, float("nan")]),
    "work": (lambda x: jaxviz.plan_remat(loss, X, work=x), [10**400, "1MiB", "-0.1", "2"]),
    "policies": (lambda x: jaxviz.compare_policies(loss, X, policies=x), [3, ()]),
    "include": (lambda x: jaxviz.own_code(include=x), [3, None, "my_lib"]),
    "cost_of": (jaxviz.cost_of, [3, None, loss]),
}


@pytest.mark.parametrize(("name", "given"), [(name, x) for name, (_, given) in WRONG.items() for x in given])
def test_a_wrong_option_is_named(name, given):
    with pytest.raises((TypeError, ValueError), match=name):
        WRONG[name][0](given)


def test_numbers_as_text_are_numbers():
    by_text, by_number = (jaxviz.plan_remat(loss, X, work=w) for w in ("0", 0))
    assert by_text.summary == by_number.summary
    assert jaxviz.lint(loss, X, min_nbytes="1KiB").summary == jaxviz.lint(loss, X, min_nbytes=1024).summary


def test_whole_numbers_of_numpy_are_whole_numbers():
    two = jnp.array([2])[0]
    assert str(jaxviz.draw(loss, X, depth=two)) == str(jaxviz.draw(loss, X, depth=2))
