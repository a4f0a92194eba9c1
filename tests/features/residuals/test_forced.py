"""What the boundary of a jit forces to be saved, told without a second derivation where that finds nothing."""

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  which enters its programs into the table
import pytest
from jax import lax
from programs import CASES

import jaxviz
from jaxviz.features.residuals import residual_set
from jaxviz.features.residuals.findings import most_forced

X = jnp.arange(1.0, 17.0)
TWICE = jax.jit(lambda x: (jnp.sin(x),) * 2)
PASSED = jax.jit(lambda x: (x, jnp.sin(x)))
CONSTANT = jax.jit(lambda x: (X, x * X))
NUMBER = jax.jit(lambda x: (2.0, jnp.cos(x)))
INNER = jax.jit(lambda x: TWICE(jnp.tanh(x))[0] * 3.0)
MASKED = jax.jit(lambda x: jnp.where(x > 3, jnp.sin(x), 0.0))

FORCED = {
    "a result twice": lambda x: (lambda y, z: y * y + z * z)(*TWICE(x)),
    "an operand": lambda x: (lambda y, z: y * x * z)(*PASSED(x)),
    "a constant": lambda x: (lambda y, z: y * z * X * x)(*CONSTANT(x)),
    "a number": lambda x: (lambda y, z: y * z * z)(*NUMBER(x)),
    "a number outside": lambda x: x * 2.0,
    "nested": lambda x: INNER(x) * x,
    "in a loop": lambda x: lax.scan(lambda x, _: (x * PASSED(x)[0], None), x, None, length=3)[0],
    "in a checkpoint": jax.checkpoint(lambda x: (lambda y, z: y * y + z * z)(*TWICE(x))),
    "in a rule": lambda x: jax.nn.relu(TWICE(x)[0]) * x,
    "without tangents": lambda x: x * PASSED(lax.stop_gradient(x))[0] * lax.stop_gradient(x),
}
PROGRAMS = {f"jit of {name}": (fun, (X,)) for name, fun in FORCED.items()}
PROGRAMS |= {case.name: (case.fun, case.args) for case in CASES}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_forced_beyond_what_is_told(name):
    fun, args = PROGRAMS[name]
    try:
        found = jaxviz.residuals(fun, *args, argnums=tuple(range(len(args))))
        forced = sum(f.nbytes for f in found.forced)
    except Exception as error:
        pytest.skip(f"has no gradient: {type(error).__name__}")
    assert forced <= most_forced(found.every) <= found.nbytes


@pytest.mark.parametrize("fun", [MASKED, lambda x: MASKED(x) * x, lambda x: jax.nn.relu(MASKED(x)) * jnp.tril(x[None])])
def test_a_function_is_not_derived_again_if_its_jits_save_the_same_inlined(fun, monkeypatch):
    before = jaxviz.residuals(fun, X)
    assert not before.forced
    assert most_forced(before.every) == 0 < before.saved.nbytes
    monkeypatch.setattr(residual_set, "find_forced", lambda residuals: pytest.fail("was derived again"))
    assert jaxviz.residuals(fun, X).notes == before.notes
