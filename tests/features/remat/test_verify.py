"""What is said about a plan beside XLA's figures: whether XLA undoes it, or needs less than the model without it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
import transcripts

import jaxviz

pytestmark = pytest.mark.slow


@transcripts.of("plans")
def test_what_is_said_of_plans(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


def layer(x, w):
    return jnp.sin(jnp.sin(x @ w) @ w)


def unrolled(ws, x):
    for w in ws:
        x = layer(x, w)
    return jnp.sum(x)


def scanned(ws, x):
    return jnp.sum(jax.lax.scan(lambda x, w: (layer(x, w), None), x, ws)[0])


@pytest.mark.parametrize("f", [unrolled, scanned])
def test_a_plan_outside_of_a_loop_says_that_it_should_be_verified(f):
    plan = jaxviz.plan_remat(f, jnp.ones((6, 64, 64)), jnp.ones((512, 64)), work="40%")
    assert plan.regions
    assert ("plan.verify()" in str(plan)) == (f is unrolled)


def test_checkpoints_that_save_nothing_but_are_not_undone():
    ws, x = jnp.ones((6, 64, 64)), jnp.ones((512, 64))
    timeline = jaxviz.memory(lambda ws, x: jnp.sum(jax.checkpoint(layer)(x, ws[0])), ws, x)
    modelled = timeline.peak_nbytes - timeline.steps[timeline.peak].nbytes[0]
    as_modelled = replace(timeline.xla, temporaries=modelled, temporaries_without_checkpoints=modelled)
    vars(timeline)["xla"] = as_modelled
    assert "XLA recomputes some values by itself, and the checkpoints save next to nothing" in timeline.compare()
    vars(timeline)["xla"] = replace(as_modelled, temporaries=2 * modelled, temporaries_without_checkpoints=2 * modelled)
    assert "XLA undoes them" in timeline.compare()
