"""What is said about a plan beside XLA's figures: whether XLA undoes it, or needs less than the model without it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.features.remat.forms import Trade
from jaxviz.features.remat.verify import Compiled, Verification

GIB = 2**30


def verified(before, after, modelled, backend="gpu"):
    """A verification with peaks in GiB; one of them is arguments and gradients."""
    compiled = lambda peak: Compiled(int(peak * GIB), int((peak - 1) * GIB), 10**12)
    trade = lambda peak: Trade(int(peak * GIB), int((peak - 1) * GIB), 0)
    return Verification(
        "loss", backend, compiled(before), compiled(after), (trade(modelled[0]), trade(modelled[1])), True
    )


@pytest.mark.parametrize(
    ("before", "after", "modelled", "start"),
    [  # unrolled transformers and a U-Net, as an H200 counted them
        (6.9, 7.0, (11.1, 7.1), "No effect: `loss` as written takes less on gpu than the model says: "),
        (6.9, 4.6, (11.1, 4.5), "XLA on gpu follows the plan for `loss`: "),
        (6.9, 6.5, (11.1, 6.6), "Little effect: `loss` as written takes less on gpu than the model says: "),
        (3.0, 4.6, (7.8, 5.5), "With the plan for `loss` XLA on gpu takes more memory: "),
    ],
)
def test_a_function_that_takes_less_as_written_than_modelled(before, after, modelled, start):
    found = verified(before, after, modelled)
    assert found.summary.startswith(start)
    assert not found.is_undone
    if not found.happened:
        said = "XLA recomputes some values by itself. With the plan it takes what the model says."
        assert found.notes[0] == said


def test_a_plan_that_xla_undoes_is_told_apart():
    found = verified(11.0, 11.0, (11.1, 4.5), "cpu")
    assert found.is_undone
    assert found.summary.startswith("No effect: XLA on cpu undoes the plan for `loss`: ")
    assert "undoes most of the plan" in verified(11.0, 10.2, (11.1, 4.5), "cpu").summary


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ((11.0, 4.6), ""),
        ((23.0, 4.6), "XLA's peak is 23.0 GiB as written, against 11.0 GiB in the model."),
        (
            (4.0, 2.2),
            "XLA's peak is 4.0 GiB as written, against 11.0 GiB in the model, and 2.2 GiB with the plan, against 4.5 GiB in the model.",
        ),
    ],
)
def test_peaks_far_from_the_model_are_named(found, said):
    assert verified(*found, (11.0, 4.5)).differs == said
    assert (said in verified(*found, (11.0, 4.5)).notes) == bool(said)


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


def test_a_plan_with_less_work_than_the_own_checkpoints_has_fewer_flops():
    found = verified(6.9, 4.6, (11.1, 4.5))
    written, planned = found.modelled
    found = replace(found, modelled=(replace(written, flops=3 * 2**26), replace(planned, flops=2**26)))
    assert "134.2 MFLOP fewer" in str(found)
    assert "-" not in str(found).split("FLOPs", 1)[1]
