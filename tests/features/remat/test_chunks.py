"""Scans over chunks of a scan: what they compute, what they save, and when they are suggested."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from short_runs import short
from test_remat_plan import held_by_jax

import jaxviz

pytestmark = pytest.mark.slow


def layer(x, w):
    h = jnp.tanh(x @ w)
    return x + jnp.sin(h) * h


def forward(ws, x):
    return jnp.sum(lax.scan(lambda x, w: (layer(x, w), None), x, ws)[0])


def backwards(ws, x):
    """Reversed, with results of each step, constants, and an index in the carry."""

    def body(carry, w):
        i, x = carry
        x = layer(x, w * ws[0])
        return (i + 1, x), (jnp.mean(x), i)

    (_, y), (means, counts) = lax.scan(body, (0, x), ws, reverse=True)
    return jnp.sum(y) + jnp.sum(means**2) + jnp.sum(counts)


def counted(w, x):
    """Without arrays to scan over."""
    return jnp.sum(lax.fori_loop(0, 36, lambda i, x: layer(x, w[0]) * (1 + i / 100), x) ** 2)


PROGRAMS = {"forward": forward, "backwards": backwards, "counted": counted}


def inputs(n, dtype=jnp.float64):
    ws = jax.random.normal(jax.random.key(0), (n, 16, 16), dtype) / 8
    return ws, jnp.linspace(0.0, 1.0, 128 * 16, dtype=dtype).reshape(128, 16)


@pytest.mark.parametrize("offload", short([None, "1GB/s, 0.1GFLOP/s"], [None]))
@pytest.mark.parametrize("name", short(list(PROGRAMS), ["forward"]))
def test_it_computes_the_same_and_jax_keeps_what_was_planned(name, offload):
    f = PROGRAMS[name]
    with jax.enable_x64(True):
        args = inputs(36)
        plan = jaxviz.plan_remat(f, *args, work="90%", offload=offload)
        if offload is None:
            assert plan.chunk == 6
            assert f"and around each {plan.chunk} iterations of it" in plan.summary
        g = plan.apply(f)
        np.testing.assert_allclose(g(*args), f(*args), rtol=1e-12)
        want = jax.grad(f)(*args)
        for gradient in (jax.grad(g), jax.jit(jax.grad(g))):
            np.testing.assert_allclose(gradient(*args), want, rtol=1e-12, atol=1e-12)
        if offload is None:
            assert held_by_jax(g, *args) == plan.nbytes
        assert jaxviz.derive(g, *args).check().agrees
        assert jaxviz.memory(g, *args).peak_nbytes == plan.peak_nbytes


def hand_written(ws, x):
    """Chunks as people write them by hand."""
    step = jax.checkpoint(lambda x, w: (layer(x, w), None), prevent_cse=False)
    chunk = jax.checkpoint(lambda x, ws: lax.scan(step, x, ws), prevent_cse=False)
    return jnp.sum(lax.scan(chunk, x, ws.reshape(8, 8, *ws.shape[1:]))[0])


@pytest.mark.slow(sweep=True)
def test_as_low_as_by_hand_and_a_third_of_the_body_alone():
    args = jax.ShapeDtypeStruct((64, 256, 256), jnp.float32), jax.ShapeDtypeStruct((4096, 256), jnp.float32)
    by_hand = jaxviz.memory(hand_written, *args).peak_nbytes
    plan = jaxviz.plan_remat(forward, *args, work="100%")
    assert plan.chunk == 8
    assert plan.peak_nbytes <= by_hand
    alone = jax.checkpoint(lambda x, w: (layer(x, w), None), prevent_cse=False)
    body = lambda ws, x: jnp.sum(lax.scan(alone, x, ws)[0])
    assert plan.peak_nbytes < 0.45 * jaxviz.memory(body, *args).peak_nbytes
    for room in (by_hand, 2 * by_hand):
        within = jaxviz.plan_remat(forward, *args, memory=room)
        assert within.peak_nbytes <= room
        assert within.flops <= plan.flops


def test_it_is_only_offered_where_it_helps():
    args = jax.ShapeDtypeStruct((64, 256, 256), jnp.float32), jax.ShapeDtypeStruct((4096, 256), jnp.float32)
    assert jaxviz.plan_remat(forward, *args, work="5%").chunk == 1
    assert jaxviz.plan_remat(forward, *args, memory="700MiB").chunk == 1
    few = jax.ShapeDtypeStruct((61, 256, 256), jnp.float32), args[1]  # a prime number of iterations
    assert jaxviz.plan_remat(forward, *few, work="100%").chunk == 1


@pytest.mark.slow(sweep=True)
def test_xla_takes_less_too():
    args = jax.ShapeDtypeStruct((64, 64, 64), jnp.float32), jax.ShapeDtypeStruct((512, 64), jnp.float32)
    found = jaxviz.plan_remat(forward, *args, work="100%").verify()
    body = jaxviz.plan_remat(forward, *args, memory=int(0.25 * jaxviz.memory(forward, *args).peak_nbytes)).verify()
    assert found.happened
    assert found.after.temporaries < 0.2 * found.before.temporaries
    assert found.after.temporaries < body.after.temporaries
