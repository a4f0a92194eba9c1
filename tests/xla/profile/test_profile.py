"""Where the time of a call goes: phases and the clock and jax's own events, kernels with the program, loops."""

import gc
import json
import sys
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcripts

import jaxviz
from jaxviz.xla.profile import device_trace as traces
from jaxviz.xla.profile import report, sampling
from jaxviz.xla.profile.python_loop import _body, _loops

pytestmark = pytest.mark.usefixtures("nothing_from_disk")


def layers(p, x):
    for _ in range(3):
        x = jnp.tanh(x @ p)
    return x.sum()


@jax.jit
def gradient(p, x):
    return jax.grad(layers)(p, x)


@jax.jit
def step(p, x):
    return p - 0.1 * jax.grad(layers)(p, x)


def train(p, x, n):
    for _ in range(n):
        p = step(p, x)
    return p


P, X = np.ones((64, 64), np.float32) / 64, np.ones((32, 64), np.float32)


@pytest.fixture(scope="module")
def jitted():
    return jaxviz.profile(gradient, P, X)


@pytest.fixture(scope="module")
def looped():
    return jaxviz.profile(train, P, X, 20)


@pytest.mark.slow
@transcripts.of("profile")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


@pytest.mark.slow
def test_the_phases_of_a_jitted_function(jitted):
    assert [p.name for p in jitted.phases] == "tracing derivation lowering compilation dispatch execution".split()
    assert all(p.seconds >= 0 for p in jitted.phases)
    each = sum(p.seconds for p in jitted.phases if not p.once)
    assert each == pytest.approx(jitted.run)
    assert jitted.spread[0] <= jitted.run <= jitted.spread[1]
    with pytest.raises(KeyError, match="no phase 'linking'"):
        jitted["linking"]


@pytest.mark.slow(sweep=True)
def test_a_phase_takes_what_it_takes():
    """The function sleeps while it is traced: this counts as tracing, however often it was compiled before."""

    @jax.jit
    def slow(x):
        time.sleep(3)
        return x + 1

    slow(1.0)
    found = jaxviz.profile(slow, 1.0, repeat=3)
    # Beside other work everything takes longer, but nothing else sleeps.
    assert found["tracing"] >= 3
    assert max(found.run, *(p.seconds for p in found.phases if p.name != "tracing")) < found["tracing"]
    tracing = found.flame.parts[0]
    mine = [bar for bar, _, _ in tracing.placed() if bar.kind == "user" and bar.name.startswith(slow.__qualname__)]
    assert mine[0].seconds > 0.9 * 0.5
    assert "test_profile.py:" in mine[0].name


@pytest.mark.slow(sweep=True)
def test_derivation_is_told_from_tracing():
    def deep(x):
        for _ in range(60):
            x = jnp.sin(x)
        return x

    plain = jaxviz.profile(jax.jit(deep), 1.0, repeat=3)
    derived = jaxviz.profile(jax.jit(jax.grad(deep)), 1.0, repeat=3)
    assert plain["derivation"] == 0.0
    assert derived["derivation"] > 0.05 * (derived["tracing"] + derived["derivation"])
    ours = jaxviz.profile(jax.jit(jaxviz.grad(deep)), 1.0, repeat=3)
    assert ours["derivation"] > 0


@pytest.mark.slow
def test_kernels_are_told_apart_by_equation_and_line(jitted):
    if not jitted.kernels:
        pytest.skip(f"jax.profiler tells of no instructions: {jitted.notes}")
    text = gradient.lower(P, X).compile().as_text()
    lines = {at.line for k in jitted.kernels for at in k.locations}
    assert lines == {layers.__code__.co_firstlineno + 2}
    assert sum("dot_general" in k.equations or "transpose" in k.equations for k in jitted.kernels) >= 3
    assert all(k.times == 1 for k in jitted.kernels)
    entry = text.partition("\nENTRY ")[2]
    assert len(jitted.kernels) == len({k.name for k in jitted.kernels})
    assert sum(f"%{k.name} " in entry for k in jitted.kernels) == len(jitted.kernels)


@pytest.mark.slow
def test_kernels_that_xla_launches_as_one_graph_are_recorded_one_by_one(jitted, monkeypatch):
    """As on a GPU, where the profiler names only the graph; on a CPU there is none."""
    compiled_with, record = [], report.device_trace
    names = iter([None, "command_buffer_1", None])

    def recorded(run):
        found, graph = record(run), next(names)
        module = next(iter(found.instructions))[0]
        return found if graph is None else replace(found, instructions={(module, graph): (1e-3, 10)})

    compile = jax.stages.Lowered.compile
    options = lambda self, compiler_options=None: (
        compiled_with.append(compiler_options) or compile(self, compiler_options)
    )
    monkeypatch.setattr(report, "device_trace", recorded)
    monkeypatch.setattr(jax.stages.Lowered, "compile", options)
    found = jaxviz.profile(gradient, P, X)
    assert compiled_with == [None, {"xla_gpu_enable_command_buffer": ""}]
    assert {k.name for k in found.kernels} == {k.name for k in jitted.kernels}
    assert any("each launched by itself" in note for note in found.notes)


@pytest.mark.slow
def test_a_function_of_python_and_its_dispatches(looped):
    (found,) = looped.dispatches
    assert (found.name, found.calls) == ("step", 20)
    assert sum(p.seconds for p in looped.phases if not p.once) == pytest.approx(looped.run)
    assert looped.loop.calls == 20
    assert looped.loop.body_calls == 20
    assert looped.loop.body == "step"


@pytest.mark.slow
def test_what_a_loop_in_python_costs_is_measured(looped):
    loop = looped.loop
    assert loop.whole is not None
    assert min(loop.scanned, loop.step) > 0  # which is less depends on other load on the machine
    assert loop.saving == max(0.0, loop.run - loop.whole)
    assert "inside one jax.jit, the whole takes" in str(looped)
    assert "step, called 20 times" in " ".join(loop.texts)


def test_the_scan_that_is_timed_computes_what_the_loop_does():
    # The call for which JAX compiles is not recorded, and the second has a JAX array instead of a NumPy one.
    train(P, X, 2)
    fun, given, n, carried = _body(train, (P, X, 5), {})
    assert (n, carried) == (5, {0: 0})
    (by_python, _), ((by_scan,), _) = (run() for run in _loops(fun, given, carried, 5))
    np.testing.assert_allclose(by_python[0], by_scan, rtol=1e-5)


def test_a_carry_with_results_beside_it():
    @jax.jit
    def both(state, x):
        return jax.tree.map(lambda s: s + x, state), jnp.stack([x, x])

    def run(state, x):
        for _ in range(4):
            state, _ = both(state, x)
        return state

    state = {"a": jnp.ones(3), "b": jnp.zeros(2)}
    run(state, 1.0)  # recording calls that are already compiled
    fun, given, n, carried = _body(run, (state, 1.0), {})
    assert (n, carried) == (4, {0: 0})
    (by_python, _), ((by_scan,), rest) = (r() for r in _loops(fun, given, carried, 4))
    np.testing.assert_array_equal(by_python[0]["a"], by_scan["a"])
    assert rest[0].shape == (4, 2)


@pytest.mark.slow
def test_a_loop_that_looks_at_values_has_a_reason_and_a_bound():
    def halve(x):
        while x.sum() > 0.1:
            x = x * 0.5
        return x

    found = jaxviz.profile(halve, jnp.ones(4), repeat=3)
    assert found.loop.whole is None
    assert "TracerBoolConversionError" in found.loop.reason
    assert found.loop.saving is None
    if found.busy is not None:
        assert "a call can be at most" in str(found)


@pytest.mark.slow(sweep=True)
def test_donated_arguments_are_copied():
    f = jax.jit(lambda x, y: x + y, donate_argnums=0)
    x = jnp.ones(3)
    found = jaxviz.profile(f, x, 1.0, repeat=3)
    assert not x.is_deleted()
    assert found.repeats == 3


def test_what_it_compiles_itself_is_no_recompilation():
    f = jax.jit(lambda x: jnp.sin(x) * 3)
    with jaxviz.watch_compilations():
        jaxviz.profile(f, 1.0, repeat=3)
        found = jaxviz.explain_recompile(f)
        assert (found.count, found.n_functions, found.only_traced) == (1, 1, 0)
        assert f._cache_size() == 1
        jaxviz.donation(f, 2)
        assert jaxviz.explain_recompile(f).count == 1


@pytest.mark.slow(sweep=True)
def test_options_of_jit_are_kept():
    f = jax.jit(lambda x, n, *, flag=False: x * n if flag else x, static_argnums=1, static_argnames="flag")
    assert jaxviz.profile(f, 2.0, 3, flag=True, repeat=3).run > 0
    assert jaxviz.profile(jaxviz.jit(layers), P, X, repeat=3).function == "layers"


def test_what_is_profiled_twice_at_once():
    options = jax.profiler.ProfileOptions()
    assert options is not None
    inner = []
    outer = traces.device_trace(lambda: inner.append(traces.device_trace(lambda: None)))
    assert outer is not None
    assert inner == [None]


def test_calls_are_counted_once():
    f = jax.jit(lambda x: x + 1)
    f.__name__ = "increment"
    f(1.0)
    found = traces.device_trace(lambda: [f(1.0) for _ in range(7)])
    assert [times for _, times in found.calls.values()] == [7]


def test_flames_add_up(jitted, looped):
    for found in (jitted, looped):
        for bar, _, _ in found.flame.placed():
            assert sum(p.seconds for p in bar.parts) <= bar.seconds * (1 + 1e-9)


def test_speedscope_has_the_time_of_all(jitted):
    file = json.loads(json.dumps(jitted.to_speedscope()))
    (whole,) = file["profiles"]
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert whole["type"] == "sampled"
    assert whole["endValue"] == pytest.approx(jitted.flame.seconds)
    assert sum(whole["weights"]) == pytest.approx(whole["endValue"])


def test_reports_as_text_html_picture_and_plain_data(jitted, looped):
    for found in (jitted, looped):
        assert found.summary.split(":")[0] in " ".join(str(found).split())
        assert "compilation" in found._repr_html_()
        json.dumps(found.to_dict())
        assert found.plot().axes[0].get_title(loc="left") == found._chart().title


@pytest.mark.slow
def test_no_garbage_is_collected_while_the_frames_of_another_thread_are_looked_at():
    """With Python 3.11 a collection at that point may free the frame being read, which crashes the process."""
    begun = []

    def note(phase, info):
        begun.append(sys._getframe(1).f_code)

    def deep(n):
        return [deep(n - 1)] if n else []

    before = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(1)
    try:
        with sampling.sampled(1e-5) as seen:
            started = time.perf_counter()
            while time.perf_counter() - started < 0.5:
                deep(50)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)
    assert any(len(stack) > 10 for stack, _ in seen.stacks)
    assert begun
    assert sampling._stack.__code__ not in begun
