"""Plans and memory of whole training steps, with an optimizer that has state."""

import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import pytest
from applied import agree
from jax import lax
from short_runs import short

import jaxviz

pytestmark = pytest.mark.slow


def block(x, w):
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"]


def loss(params, batch):
    y, _ = lax.scan(lambda x, w: (block(x, w), None), batch["x"], params)
    return jnp.mean((y - batch["y"]) ** 2)


@partial(jax.jit, donate_argnums=(0, 1))
def train(params, state, batch):
    value, gradient = jax.value_and_grad(loss)(params, batch)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, state["square"], gradient)
    params = jax.tree.map(lambda p, m, s: p - 0.1 * m / (jnp.sqrt(s) + 1e-3), params, mean, square)
    return params, {"mean": mean, "square": square}, {"loss": value}


def arguments(layers=12, width=64, rows=512):
    params = {"up": (layers, width, 4 * width), "down": (layers, 4 * width, width)}
    batch = {"x": (rows, width), "y": (rows, width)}
    types = lambda shapes: {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in shapes.items()}
    return types(params), {"mean": types(params), "square": types(params)}, types(batch)


def concrete(types):
    key = jax.random.key(0)
    return jax.tree.map(lambda t: 0.05 * jax.random.normal(key, t.shape, t.dtype), types)


@cache
def plan_of_train():
    return jaxviz.plan_remat(train, *arguments())


def test_the_memory_of_a_step_has_its_optimizer():
    args = arguments()
    found = jaxviz.memory(train, *args)
    gradient = jaxviz.memory(loss, args[0], args[2])
    state = sum(t.size * 4 for t in jax.tree.leaves(args[1]))
    text = " ".join(str(found).split())
    assert text.startswith(
        "memory of the training step `train`, which takes the gradient of `loss` in `params`: modelled peak"
    )
    # At the gradient's peak, it is in memory but not used.
    assert found.peak_nbytes - gradient.peak_nbytes == pytest.approx(state, abs=8)
    assert any(a.what == "state['mean']['up']" for a in found.alive)
    assert any(a.what.startswith('jax.nn.gelu(x @ w["up"])') and a.kind == "residual" for a in found.alive)
    assert found.to_dict()["is_training_step"]
    xla = found.xla
    assert xla.reused > state  # donated memory is reused
    assert 0.8 < found.peak_nbytes / (xla.arguments + xla.results - xla.reused + xla.temporaries) < 1.25


def test_a_peak_outside_of_the_gradient_is_said_to_be_there():
    def step(w, x):
        gradient = jax.grad(lambda w: jnp.mean(jnp.sin(x @ w)))(w)
        return w - jnp.sum(jnp.outer(gradient.ravel(), gradient.ravel())) * gradient

    w, x = jax.ShapeDtypeStruct((32, 32), jnp.float32), jax.ShapeDtypeStruct((8, 32), jnp.float32)
    found = jaxviz.memory(step, w, x)
    assert "outside of the gradient, at `" in found.summary
    assert found.steps[found.peak].is_outside
    assert any("jnp.outer(gradient.ravel(), gradient.ravel())" in a.what for a in found.alive)
    assert "forward" in str(found)
    assert "step " in str(found)


def test_a_plan_of_a_step_holds_for_the_step():
    args, plan = arguments(), plan_of_train()
    assert plan.before.peak_nbytes == jaxviz.memory(train, *args).peak_nbytes > 2 * plan.peak_nbytes
    planned = plan.apply(train)
    assert planned.__name__ == "train"
    of_planned = jaxviz.memory(planned, *args)
    assert of_planned.peak_nbytes == pytest.approx(plan.peak_nbytes, rel=0.02)
    assert "the training step `train`, which takes the gradient of `loss` in `params`" in of_planned.summary
    summary = " ".join(plan.summary.split())
    assert "plan for the training step `train`, which takes the gradient of `loss` in `params`" in summary
    assert "a checkpoint around the body of the scan at test_training_steps.py:" in summary
    assert "+    y, _ = lax.scan(jax.checkpoint(lambda x, w: (block(x, w), None)" in plan.code()
    values = concrete(args)
    want = train.__wrapped__(*values)
    got = planned(*values)
    assert jax.tree.structure(want) == jax.tree.structure(got)
    agree(got, want)


def test_a_planned_step_is_compiled_once():
    args = arguments(layers=3, width=8, rows=16)
    planned = jaxviz.plan_remat(train, *args, residuals="60%").apply(train)
    with jaxviz.watch_compilations() as compilations:
        for _ in range(3):
            planned(*concrete(args))
    assert sum(c.name == "train" for c in compilations) == 1


@pytest.mark.slow(sweep=True)
def test_a_bound_is_on_the_whole_step():
    args = arguments()
    written = jaxviz.memory(train, *args).peak_nbytes
    plan = jaxviz.plan_remat(train, *args, memory=int(0.6 * written))
    assert plan.after.peak_nbytes <= 0.6 * written
    state = sum(t.size * 4 for t in jax.tree.leaves(args[1]))
    with pytest.raises(ValueError, match="the lowest modelled peak of the training step `train`"):
        jaxviz.plan_remat(train, *args, memory=state)


def test_xla_keeps_to_the_plan_of_a_step():
    verified = plan_of_train().verify()
    assert verified.happened
    assert verified.after.peak_nbytes < 0.6 * verified.before.peak_nbytes
    assert verified.after.peak_nbytes == pytest.approx(verified.modelled[1].peak_nbytes, rel=0.2)


@pytest.mark.slow(sweep=True)
def test_gradients_that_are_added_up_are_planned_in_their_loop():
    def step(params, state, batch):
        parts = jax.tree.map(lambda a: a.reshape(4, -1, *a.shape[1:]), batch)
        add = lambda total, part: (jax.tree.map(jnp.add, total, jax.grad(loss)(params, part)), None)
        gradient, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), state

    args = arguments()
    plan = jaxviz.plan_remat(step, *args)
    assert plan.after.peak_nbytes < 0.8 * plan.before.peak_nbytes
    values = concrete(args)
    agree(plan.apply(step)(*values), step(*values))


@pytest.mark.parametrize("f", short([loss, train], [loss]))
def test_a_bound_that_cannot_be_met_names_a_peak_that_can(f):
    params, state, batch = arguments()
    args = (params, batch) if f is loss else (params, state, batch)
    with pytest.raises(ValueError, match="no plan was found") as caught:
        jaxviz.plan_remat(f, *args, memory="1KiB")
    lowest = int(re.search(r"lowest modelled peak of .*? is .*? \(([\d,]+) B\)", str(caught.value))[1].replace(",", ""))
    assert lowest < 0.5 * jaxviz.memory(f, *args).peak_nbytes
    assert jaxviz.plan_remat(f, *args, memory=lowest).peak_nbytes <= lowest
