"""The animation of a gradient as a file: each frame shows what is in memory at its step."""

import inspect
import json
import shutil
import subprocess

import jax
import jax.numpy as jnp
import pytest
from PIL import Image
from short_runs import short

import jaxviz
from jaxviz.features.explorer import animation
from jaxviz.features.explorer.picture import Overview, memory_by_kind
from jaxviz.page.schema import ROLES
from jaxviz.report.tables import format_bytes


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


@pytest.mark.slow
@pytest.mark.parametrize("suffix", short([".gif", ".png", ".webp"], [".gif"]))
def test_each_step_is_a_frame(explorer, tmp_path, suffix):
    path = explorer.save_animation(tmp_path / f"loss{suffix}", seconds=5)
    n = len(explorer.view.columns["step_row"])
    with Image.open(path) as image:
        # Equal frames may be merged, and shown for as long.
        assert n / 2 < image.n_frames <= n
        assert image.info.get("loop", 0) == 0


@pytest.mark.skipif(shutil.which("ffprobe") is None, reason="needs ffmpeg")
def test_a_video_lasts_as_long_as_asked_for_and_pauses_at_the_end(explorer, tmp_path):
    path = explorer.save_animation(tmp_path / "loss.mp4", seconds=6)
    asked = "stream=width,height,pix_fmt,nb_frames,duration"
    command = ["ffprobe", "-v", "error", "-show_entries", asked, "-of", "json", str(path)]
    (stream,) = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["streams"]
    assert stream["pix_fmt"] == "yuv420p"
    assert stream["width"] % 2 == stream["height"] % 2 == 0
    assert 7 < float(stream["duration"]) < 8
    assert int(stream["nb_frames"]) > len(explorer.view.columns["step_row"]) / 2


def test_a_video_needs_ffmpeg(explorer, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"install it .*, or write a \.gif, \.png or \.webp"):
        explorer.save_animation(tmp_path / "loss.mp4")


def test_an_error_of_ffmpeg_is_passed_on(explorer, tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, b"", b"no encoder\n")
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: failed)
    with pytest.raises(OSError, match=r"could not write .*: no encoder"):
        explorer.save_animation(tmp_path / "loss.mp4")


def test_a_saved_explorer_is_shown_by_one_line(explorer, tmp_path):
    line = explorer.embed(tmp_path / "a&b.html", height=500)
    assert line.startswith('<iframe src="a&amp;b.html" title="The explorer of loss" style="width:100%;height:500px;')
    assert (tmp_path / "a&b.html").exists()


@pytest.fixture(scope="module")
def scene(explorer):
    return animation.Scene(Overview(explorer.view))


def test_a_frame_says_what_runs_and_what_is_in_memory(explorer, scene):
    view, totals = explorer.view, memory_by_kind(explorer.view).sum(0)
    roles = [ROLES[view.columns["equation_role"][row]] if row >= 0 else "" for row in view.columns["step_row"]]
    for step, role in enumerate(roles):
        passing, code, about = scene.said(step)
        assert passing.startswith("forward" if step < scene.overview.turn else "backward")
        assert passing.endswith(", recomputed for a checkpoint") == (role == "recomputation")
        assert about.endswith(f" · step {step + 1} of {len(totals)} · {format_bytes(int(totals[step]))} in memory")
        assert code in inspect.getsource(inspect.getmodule(loss))
    assert "recomputation" in roles


def test_what_is_to_come_is_paler(scene):
    n = len(scene.totals)
    frames = {step: scene.frame(step) for step in (n // 2, n - 1)}
    width, height = frames[n - 1].size
    at = lambda step, place: frames[step].getpixel((round(width * place), round(height * (1 - scene.bottom)) - 3))
    before, after = scene.x(n // 2) - 0.01, scene.x(n // 2) + 0.01
    assert at(n // 2, before) == at(n - 1, before)
    assert min(at(n // 2, after)) > min(at(n - 1, after))


def test_large_programs_have_few_frames(explorer, monkeypatch):
    monkeypatch.setattr(animation, "_FRAMES", 8)
    scene = animation.Scene(Overview(explorer.view))
    assert len(scene.steps) <= 9
    assert (scene.steps[0], scene.steps[-1]) == (0, len(scene.totals) - 1)


def test_errors(explorer, tmp_path):
    with pytest.raises(ValueError, match=r"an animation is written as \.gif, \.mp4, \.png or \.webp; got 'loss\.avi'"):
        explorer.save_animation(tmp_path / "loss.avi")
    with pytest.raises(ValueError, match="seconds must be positive; got 0"):
        explorer.save_animation(tmp_path / "loss.gif", seconds=0)
    with pytest.raises(ValueError, match="has no overview: ReverseModeError"):
        jaxviz.explore(until, 1.0).save_animation(tmp_path / "loss.gif")
