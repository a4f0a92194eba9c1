"""The cost of compiling: counts as in JAX and XLA, what is measured and what is not, and that measuring changes nothing."""

import json
import re
import signal
import threading
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache
from short_runs import short

import jaxviz
from benchmarks import compile_cost as benchmark
from benchmarks import models
from jaxviz.analysis.devices import types_to_lower
from jaxviz.analysis.repeats import Alike
from jaxviz.ir.convert import read_jaxpr
from jaxviz.progress import report_progress_to
from jaxviz.xla.compile_cost import stages
from jaxviz.xla.compile_cost.ablation import Trials
from jaxviz.xla.compile_cost.groups import groups_of, opened
from jaxviz.xla.compile_cost.instructions import before_xla
from jaxviz.xla.compile_cost.places import line_of_stack
from jaxviz.xla.compile_cost.report import Counts, LeftOut, Repeated, Saving
from jaxviz.xla.compile_cost.stages import Measured, subject_of

TRANSFORMER, ARGS = models.transformer(3)
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = ", re.M)


def equations(jaxpr):
    found = 0
    for e in jaxpr.eqns:
        found += 1
        for value in e.params.values():
            for item in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(item, "jaxpr", item)
                found += equations(inner) if hasattr(inner, "eqns") else 0
    return found


@pytest.fixture(scope="module")
def report():
    return jaxviz.compile_cost(TRANSFORMER, *ARGS)


@pytest.fixture(scope="module")
def measured():
    """A program small enough to compile many times."""
    return jaxviz.compile_cost(*small(), ablate=True)


def small(n=4):
    def blocks(ws, x):
        for w in ws:
            x = jnp.cos(jnp.sin(jnp.tanh(x @ w) + 1.0) * x) + jnp.exp(-x) * jnp.sqrt(x * x + 1.0)
        return x.sum()

    one = jax.ShapeDtypeStruct((2, 2), jnp.float32)
    return blocks, n * [one], one


@pytest.mark.values
def test_counts_are_those_of_jax_and_of_xla(report):
    traced = jax.jit(jax.value_and_grad(TRANSFORMER)).trace(*ARGS)
    lowered = traced.lower()
    assert report.counts.equations == equations(traced.jaxpr.jaxpr)
    assert report.counts.before == len(_INSTRUCTION.findall(lowered.compiler_ir("hlo").as_hlo_text()))
    assert report.counts.after == len(_INSTRUCTION.findall(lowered.compile().as_text()))


@pytest.mark.values
def test_lines_and_functions_sum_up_to_the_whole(report):
    for parts in (report.lines, report.functions):
        for name in ("equations", "before", "after"):
            counted = sum(getattr(p.counts, name) for p in parts) + getattr(report.unattributed, name)
            assert counted == getattr(report.counts, name), name
    assert sum(p.tracing for p in report.lines) <= report.phases.tracing.cpu * 1.001
    labels = {p.label for p in report.functions}
    assert {"layer", "attention", "layer_norm", "transformer_loss"} <= labels
    assert report.unattributed.after < 0.2 * report.counts.after


@pytest.mark.values
def test_the_blocks_are_said_with_what_to_do(report):
    (found,) = report.repeated
    assert (found.count, found.loop, found.carry) == (3, "jax.lax.scan", ("f32[16,32]",))
    assert "params['layers'][0…2]['q']" in found.stacked
    assert len(found.stacked) == len(ARGS[0]["layers"][0])
    assert found.text == "x = layer(p, x)"
    text = " ".join(str(report).split())
    assert "These 3 blocks are identical, `x = layer(p, x)` (models.py:" in text
    assert "a `jax.lax.scan` would trace and compile only one" in text
    assert found.saving is None
    assert "`ablate=True` measures it" in text
    # The blocks contain nearly all operations.
    assert 0.5 < found.counts.after / report.counts.after <= 1
    assert 0.5 < found.counts.before / report.counts.before <= 1


@pytest.mark.values
def test_what_is_measured(measured):
    assert measured.times == 5
    (found,) = measured.repeated
    assert found.seconds is not None
    assert found.saving == measured.saving
    assert measured.saving.tracing == pytest.approx(measured.phases.tracing.cpu * found.left_out.equations)
    assert found.saving.cpu == pytest.approx(found.saving.tracing + found.saving.lowering + found.saving.compiling)
    text = " ".join(str(measured).split())
    assert "medians of 5 times" in text
    assert ("save about" in text) == (found.saving.cpu > 0)
    assert ("save nothing" in text) == (found.saving.cpu <= 0)
    assert json.loads(json.dumps(measured.to_dict()))["repeated"][0]["saving"]["compiling"] == found.saving.compiling


SMALLER = {
    "convolutions": lambda: benchmark.convolutions(16),
    "transformer": lambda: benchmark.transformer(8),
    "remat_transformer": lambda: benchmark.remat_transformer(8),
    "recurrent": lambda: benchmark.recurrent(16),
    "diffusion": lambda: benchmark.diffusion(32),
    "training_step": lambda: benchmark.training_step(8),
}


def lowered(f, args):
    subject, made = subject_of(f, args, {}, 0), Measured()
    made.lower(subject.make(), subject.inputs)
    alike = Alike()
    return subject, made, opened(read_jaxpr(made.traced.jaxpr), alike), alike


@pytest.mark.values
@pytest.mark.parametrize("name", short(list(SMALLER), 3))
def test_what_a_loop_leaves_out_is_what_writing_it_leaves_out(name):
    (unrolled, args), (scanned, stacked) = SMALLER[name]()
    _, whole, program, alike = lowered(unrolled, args)
    _, written, loop, _ = lowered(scanned, stacked)
    runs = [run for group in groups_of(program, alike) for run in group.runs]
    found = Trials(program, types_to_lower(program, [None] * len(program.invars)), whole, None, 0).of_all(
        [runs], [()], None
    )
    size = lambda p: sum(1 for _ in p.walk())
    instructions = [len(before_xla(made.lowered)) for made in (written, whole)]
    left_out = found.together.left_out
    assert left_out.equations == pytest.approx(1 - size(loop) / size(program), rel=0.3)
    assert left_out.instructions == pytest.approx(1 - instructions[0] / instructions[1], rel=0.3)
    assert left_out.equations > 0.5


@pytest.mark.values
@pytest.mark.parametrize("make", [lambda: benchmark.neural_ode(4), lambda: benchmark.experts(3)])
def test_of_a_gradient_the_loop_is_tried_as_it_is_written(make):
    """The loop is in the function, which is then differentiated: its backward pass also includes the blocks at the ends."""
    (unrolled, args), (scanned, stacked) = make()
    report = jaxviz.compile_cost(unrolled, *args)
    _, whole, program, _ = lowered(unrolled, args)
    _, written, loop, _ = lowered(scanned, stacked)
    size = lambda p: sum(1 for _ in p.walk())
    instructions = [len(before_xla(made.lowered)) for made in (written, whole)]
    left_out = report.repeated[0].left_out
    assert left_out.equations == pytest.approx(1 - size(loop) / size(program), abs=0.03)
    assert left_out.instructions == pytest.approx(1 - instructions[0] / instructions[1], abs=0.03)


def test_of_a_function_of_several_results_the_loop_is_tried_too():
    def features(ws, n, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return x, n + 1, x.sum()

    report = jaxviz.compile_cost(features, [jnp.ones((3, 3))] * 8, 1, jnp.ones((2, 3)))
    (found, *_) = report.repeated
    assert found.count == 8
    assert found.note == ""
    assert found.left_out.equations > 0.5


def test_what_is_compiled():
    loss, x = lambda w, x: jnp.sum(jnp.tanh(x @ w)), jnp.ones((2, 2))
    about = lambda f, *args, **options: subject_of(f, args, {}, options.get("argnums", 0)).about
    assert about(models.mlp_loss, *models.mlp(2)[1]) == "gradient of `mlp_loss` in `params`"
    assert about(models.mlp_loss, *models.mlp(2)[1], argnums=()) == "function `mlp_loss`"

    def train_step(w, x):
        return w - 0.1 * jax.grad(loss)(w, x), x

    assert about(train_step, x, x) == "training step `train_step`"
    assert about(jax.jit(train_step), x, x) == "training step `train_step`"
    for take in (jaxviz.grad(loss), jaxviz.jit(jaxviz.grad(loss))):
        assert about(lambda w, x, take=take: w - 0.1 * take(w, x), x, x) == "training step `<lambda>`"

    def features(w, x):
        return {"h": x @ w, "n": jnp.argmax(x)}

    assert about(features, x, x) == "gradient of `features` in `w`"
    subject = subject_of(features, (x, x), {}, 0)
    traced = jax.jit(subject.make()).trace(*subject.inputs)
    assert [a.shape for a in traced.jaxpr.out_avals] == [(2, 2), (), (2, 2)]


def test_static_arguments_and_those_by_name():
    @jax.jit
    def inner(x):
        return jnp.sin(x)

    def loss(x, n, *, mode):
        for _ in range(n):
            x = inner(x)
        return x.sum() if mode == "sum" else x.mean()

    jitted = jax.jit(loss, static_argnames=("n", "mode"))
    for f in (loss, jitted):
        report = jaxviz.compile_cost(f, jnp.ones(3), 3, mode="sum")
        assert report.function == "loss"
        assert report.counts.equations >= 3


def test_a_function_that_was_called_before_is_traced_again():
    n_calls = []

    @jax.jit
    def loss(x):
        n_calls.append(1)
        return jnp.sum(jnp.sin(x))

    loss(jnp.ones(3))
    jaxviz.compile_cost(loss, jnp.ones(3))
    assert len(n_calls) >= 3


def test_nothing_is_taken_from_a_cache_on_disk_and_nothing_is_put_there(tmp_path):
    before = jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()
    hits = []
    listen = lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None
    jax.monitoring.register_event_listener(listen)
    try:
        f = lambda x: jnp.sum(jnp.sin(x) * 3.0)
        x = jax.ShapeDtypeStruct((7,), jnp.float32)
        jaxviz.compile_cost(f, x)
        assert list(tmp_path.iterdir()) == []
        jax.jit(jax.value_and_grad(f)).lower(x).compile()
        assert list(tmp_path.iterdir()) != []
        hits.clear()
        jaxviz.clear_caches()
        jaxviz.compile_cost(f, x)
        assert hits == []
    finally:
        jax.monitoring.unregister_event_listener(listen)
        jax.config.update("jax_compilation_cache_dir", before[0])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", before[1])
        compilation_cache.reset_cache()


@pytest.mark.values
def test_an_interrupt_ends_it_and_leaves_everything_as_it_was(monkeypatch):
    compiled = []
    compile_once = stages.Measured.compile

    def compile_then_wait(self, *args):
        compile_once(self, *args)
        compiled.append(1)
        if len(compiled) == 2:
            time.sleep(5)

    monkeypatch.setattr(stages.Measured, "compile", compile_then_wait)
    before = jax.config.jax_enable_compilation_cache
    threading.Timer(0.0, lambda: (wait_for(compiled, 2), signal.raise_signal(signal.SIGINT))).start()
    with pytest.raises(KeyboardInterrupt):
        jaxviz.compile_cost(*small(), ablate=True)
    assert len(compiled) == 2
    assert jax.config.jax_enable_compilation_cache == before


def wait_for(found, n):
    while len(found) < n:
        time.sleep(0.01)


def test_errors_of_the_function_are_its_own():
    def broken(x):
        raise ValueError("no such layer")

    with pytest.raises(ValueError, match="no such layer"):
        jaxviz.compile_cost(broken, jnp.ones(3))
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jaxviz.compile_cost(lambda x: x if x > 0 else -x, jnp.float32(1.0))


def test_what_was_compiled_for_a_report_is_not_compiled_for_the_next():
    seconds = []
    listen = lambda event, duration, **_: (
        seconds.append(duration) if event.endswith("backend_compile_duration") else None
    )
    jaxviz.clear_caches()
    f, x = lambda x: jnp.sum(jnp.sin(x) * 5.0), jax.ShapeDtypeStruct((11,), jnp.float32)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        n_compiled = []
        for g, clears in ((f, False), (f, False), (lambda x: jnp.sum(jnp.sin(x) * 6.0), False), (f, True)):
            if clears:
                jaxviz.clear_caches()
            seconds.clear()
            report = jaxviz.compile_cost(g, x)
            n_compiled.append(len(seconds))
            assert ("for an earlier report" in str(report)) == (len(n_compiled) == 2)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    once = n_compiled[0]  # including JAX's warm-up
    assert n_compiled == [once, once - 1, once, once]


def test_progress_is_told():
    told = []
    with report_progress_to(lambda *of: told.append(of)):
        jaxviz.compile_cost(*small(3))
    assert {what for what, _, _ in told} == {"compiling", "lowering parts"}
    last = [of for of in told if of[0] == "lowering parts"][-1]
    assert last[1] == last[2]


def test_a_sample_taken_outside_the_function_has_no_line():
    assert line_of_stack(()) is None


def test_an_estimate_that_fails_does_not_take_the_report_with_it(monkeypatch):
    def fail(*_):
        raise KeyError("x")

    monkeypatch.setattr(Trials, "_with_loops", fail)
    found = jaxviz.compile_cost(*small())
    assert found.phases.compiling.cpu > 0
    assert "not measured: " in str(found)


def test_a_program_without_blocks():
    report = jaxviz.compile_cost(lambda x: jnp.sum(jnp.sin(x)), jnp.ones(3))
    assert report.repeated == ()
    assert (report.left_out, report.saving) == (None, None)
    assert "blocks" not in str(report)


def test_a_loop_that_has_more_instructions_or_saves_no_time_is_not_recommended():
    blocks = Repeated(2, "x = layer(p, x)", None, "jax.lax.scan", (), (), Counts(4, 8, None))
    worse = replace(blocks, left_out=LeftOut(0.4, -0.41))
    assert worse.advice.endswith("but have 41 % more instructions for XLA: for 2 of them it does not pay")
    assert replace(blocks, left_out=LeftOut(0.4, 0.3)).advice.endswith(
        "and leave out 40 % of the equations and 30 % of the instructions for XLA"
    )
    slower = replace(worse, saving=Saving(0.1, 0.1, -0.5))
    assert slower.advice.endswith("but for 2 of them it would save no time")
