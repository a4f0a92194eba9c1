"""The animation of a gradient as a file: each frame shows what is in memory at its step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from short_runs import short

import jaxviz
from jaxviz.features.explorer import animation
from jaxviz.features.explorer.axis import memory_by_kind
from jaxviz.report.kinds import STACKED


@jax.checkpoint
def layer(x, w):
    return jnp.tanh(jnp.sin(x @ w) * x)


def loss(ws, x):
    for w in ws:
        x = layer(x, w)
    return jnp.sum(jnp.exp(x))


def until(x):
    return jax.lax.while_loop(lambda x: x < 5.0, lambda x: 2.0 * x, x)


@pytest.fixture(scope="module")
def explorer():
    return jaxviz.explore(loss, jnp.ones((2, 4, 4)), jnp.ones((5, 4)))


@pytest.mark.large
@pytest.mark.parametrize("suffix", short(list(animation.FORMATS), [".gif"]))
def test_each_step_is_a_frame(explorer, tmp_path, suffix):
    path = explorer.save_animation(tmp_path / f"loss{suffix}", seconds=5)
    n = len(explorer.view.columns["step_row"])
    with Image.open(path) as image:
        # Equal frames may be merged, and shown for as long.
        assert n / 2 < image.n_frames <= n
        assert image.info.get("loop", 0) == 0


def test_bins_hold_what_is_in_memory(explorer):
    view = explorer.view
    scene = animation._Scene(view)
    of = {b.label: b.bytes for b in scene.bins}
    assert {"temporary", "recomputed", "cotangents"} < of.keys()
    memory = dict(zip(STACKED, memory_by_kind(view), strict=True))
    np.testing.assert_array_equal(of["temporary"] + of["recomputed"], memory["temporary"])
    np.testing.assert_array_equal(of["cotangents"], memory["cotangent"])
    # Recomputed values exist only in the backward pass.
    assert of["recomputed"][: scene.turn].max() == 0 < of["recomputed"].max()


def test_what_is_to_come_is_paler(explorer):
    scene = animation._Scene(explorer.view)
    n = len(scene.total)
    at = lambda frame, step: frame.getpixel(
        (round(animation._SHARP * scene.x(step + 0.5)), round(animation._SHARP * (scene.y(0) - 2)))
    )
    whole, half = scene.frame(n - 1), scene.frame(n // 2)
    assert at(half, 1) == at(whole, 1)
    assert min(at(half, n - 2)) > min(at(whole, n - 2))


def test_large_programs_have_few_frames(explorer, monkeypatch):
    monkeypatch.setattr(animation, "_FRAMES", 8)
    scene = animation._Scene(explorer.view)
    assert len(scene.steps) <= 9
    assert (scene.steps[0], scene.steps[-1]) == (0, len(scene.total) - 1)


def test_errors(explorer, tmp_path):
    with pytest.raises(ValueError, match=r"an animation is written as \.gif, \.png or \.webp; got 'loss\.mp4'"):
        explorer.save_animation(tmp_path / "loss.mp4")
    with pytest.raises(ValueError, match="seconds is a number above 0; got 0"):
        explorer.save_animation(tmp_path / "loss.gif", seconds=0)
    with pytest.raises(ValueError, match="has nothing to animate"):
        jaxviz.explore(until, 1.0).save_animation(tmp_path / "loss.gif")
