"""The context in which an operation is computed is not shared; what else only looks alike is in a transcript."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compute_on import compute_on

import jaxviz


def plain(x):
    return jnp.sin(x) * jnp.cos(x) + x * x


def compute_types(program):
    return sorted((e.primitive.name, str(e.operation.context.compute_type)) for _, e in program.walk())


IN_CONTEXT = pytest.mark.skipif(
    "out_memory_spaces" in inspect.signature(compute_on).parameters,
    reason="since JAX 0.11.1 compute_on wraps a function, and puts what it computes into an equation of its own",
)


@IN_CONTEXT
def test_the_context_of_one_gradient_does_not_reach_another():
    with compute_on("device_host"):
        inside = jaxviz.derive(plain, 1.0).backward
    outside = jaxviz.derive(plain, 1.0).backward
    assert "add_any" in {name for name, _ in compute_types(inside)}
    assert {kind for _, kind in compute_types(inside)} == {"device_host"}
    assert {kind for _, kind in compute_types(outside)} == {"None"}
    text = jax.jit(jaxviz.grad(lambda x: plain(x) * 2.0)).lower(1.0).as_text()
    assert "_xla_compute_type" not in text
    assert "_xla_compute_type" not in jax.jit(jax.grad(lambda x: plain(x) * 2.0)).lower(1.0).as_text()


@IN_CONTEXT
@pytest.mark.parametrize("loop", [False, True])
def test_compute_types_within_a_function_are_those_of_jax(loop):
    """The sum of cotangents, and zeros that are filled in, have the context of the equation that needs them."""

    def body(c, x):
        return c * jnp.sin(x), (c + x, jnp.int32(1))

    def f(x):
        with compute_on("device_host"):
            y = plain(x) if not loop else jnp.sum(jax.lax.scan(body, x, jnp.arange(3.0) * x)[1][0])
        return y * jnp.cos(y)

    ours, theirs = (compute_types(jaxviz.trace(grad(f))(jnp.float32(1))) for grad in (jaxviz.grad, jax.grad))
    assert {("add_any", "None"), ("add_any", "device_host")} <= set(ours)
    assert ours == theirs
