"""The cost of compiling: counts as in JAX and XLA, what is measured, what not, and that measuring changes nothing."""

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
from jaxviz.progress import report_progress_to
from jaxviz.xla.compile_cost import stages, start
from jaxviz.xla.compile_cost.places import line_of_stack
from jaxviz.xla.compile_cost.report import Counts, Repeated, Saving
from jaxviz.xla.compile_cost.stages import subject_of

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


@pytest.mark.slow
def test_counts_are_those_of_jax_and_of_xla(report):
    traced = jax.jit(jax.value_and_grad(TRANSFORMER)).trace(*ARGS)
    lowered = traced.lower()
    assert report.counts.equations == equations(traced.jaxpr.jaxpr)
    assert report.counts.before == len(_INSTRUCTION.findall(lowered.compiler_ir("hlo").as_hlo_text()))
    assert report.counts.after == len(_INSTRUCTION.findall(lowered.compile().as_text()))


@pytest.mark.slow
def test_lines_and_functions_sum_up_to_the_whole(report):
    for parts in (report.lines, report.functions):
        for name in ("equations", "before", "after"):
            counted = sum(getattr(p.counts, name) for p in parts) + getattr(report.unattributed, name)
            assert counted == getattr(report.counts, name), name
    assert sum(p.tracing for p in report.lines) <= report.phases.tracing.cpu * 1.001
    labels = {p.label for p in report.functions}
    assert {"layer", "attention", "layer_norm", "transformer_loss"} <= labels
    assert report.unattributed.after < 0.2 * report.counts.after


@pytest.mark.slow
def test_the_blocks_are_said_with_what_to_do(report):
    (found,) = report.repeated
    assert (found.count, found.loop, found.carry) == (3, "jax.lax.scan", ("f32[16,32]",))
    assert "params['layers'][0…2]['q']" in found.stacked
    assert len(found.stacked) == len(ARGS[0]["layers"][0])
    assert found.text == "x = layer(p, x)"
    text = " ".join(str(report).split())
    assert "These 3 blocks are identical, `x = layer(p, x)` (models.py:" in text
    assert "a `jax.lax.scan` " in text
    assert found.saving.cpu > 0
    assert "with only one of them compiling takes" in text
    # The blocks contain nearly all operations.
    assert 0.5 < found.counts.after / report.counts.after <= 1
    assert 0.5 < found.counts.before / report.counts.before <= 1


@pytest.mark.slow
def test_what_is_measured(measured):
    assert measured.times == 5
    (found,) = measured.repeated
    saving, phases = found.saving, measured.phases
    assert saving.cpu == pytest.approx(saving.tracing + saving.lowering + saving.compiling)
    assert saving.cpu + saving.rest == pytest.approx(phases.cpu)
    # Three of four blocks have three quarters of the equations; the first one has no gradient of its input.
    assert 0.7 < saving.tracing / phases.tracing.cpu < 0.85
    assert 0 < saving.compiling < phases.compiling.cpu
    text = " ".join(str(measured).split())
    assert "medians of 5 times" in text
    assert json.loads(json.dumps(measured.to_dict()))["repeated"][0]["saving"]["compiling"] == saving.compiling


@pytest.mark.slow
@pytest.mark.parametrize("name", short(["transformer", "remat_transformer", "recurrent"], 2))
def test_what_is_compiled_with_one_block_is_what_one_block_that_is_written_is(name, monkeypatch):
    of = getattr(benchmark, name)
    (many, args), (one, args_of_one) = of(3)[0], of(1)[0]
    compiled = []
    compile_it = stages.CompileTimings.compile
    monkeypatch.setattr(
        stages.CompileTimings, "compile", lambda self, *a: (compile_it(self, *a), compiled.append(self))[0]
    )
    jaxviz.compile_cost(many, *args)
    subject = subject_of(one, args_of_one, {}, 0)
    written = jax.jit(subject.make()).trace(*subject.inputs)
    zeros = sum(len(jax.tree.leaves(a)) for a in args) - sum(len(jax.tree.leaves(a)) for a in args_of_one)
    more = equations(compiled[-1].traced.jaxpr.jaxpr) - equations(written.jaxpr.jaxpr)
    assert 0 <= more <= zeros + 5  # the gradients of the other blocks' parameters


@pytest.mark.slow(sweep=True)
def test_the_blocks_of_a_training_step_are_those_of_the_function_that_it_differentiates():
    step, args = benchmark.training_step(3)[0]
    (found, *_) = jaxviz.compile_cost(step, *args).repeated
    assert (found.count, found.text) == (3, "x = layer(p, x)")
    assert "params['layers'][0…2]['q']" in found.stacked


def stack(ws, x):
    for w in ws:
        x = jnp.tanh(jnp.sin(x @ w) + 1.0) ** 2 + jnp.cos(x)
    return x.sum()


def descent(w, x):
    slope = jax.grad(lambda w, x: jnp.sum(jnp.tanh(jnp.sin(x @ w) + 1.0) ** 2))
    for _ in range(4):
        w = w - 0.1 * slope(w, x)
    return w


def features(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return x, 2, x.sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("f", "args", "count"),
    [
        (descent, (jnp.ones((3, 3)), jnp.ones((2, 3))), 4),  # a training step of several
        # The first block has another backward pass.
        (lambda ws, xs: jax.vmap(jax.grad(stack), (None, 0))(ws, xs), (6 * [jnp.ones((3, 3))], jnp.ones((4, 3))), 5),
        (features, (8 * [jnp.ones((3, 3))], jnp.ones((2, 3))), 8),  # several results
    ],
)
def test_blocks_of_what_is_no_loss_are_measured_too(f, args, count):
    (found,) = jaxviz.compile_cost(f, *args).repeated
    assert (found.count, found.note) == (count, "")
    assert found.saving is not None


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
    traced = jax.jit(subject.make()).trace(*subject.inputs, *subject.cotangents)
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


@pytest.mark.slow(sweep=True)
def test_an_interrupt_ends_it_and_leaves_everything_as_it_was(monkeypatch):
    compiled = []
    compile_once = stages.CompileTimings.compile

    def compile_then_wait(self, *args):
        compile_once(self, *args)
        compiled.append(1)
        if len(compiled) == 2:
            time.sleep(5)

    monkeypatch.setattr(stages.CompileTimings, "compile", compile_then_wait)
    before = jax.config.jax_enable_compilation_cache
    threading.Timer(0.0, lambda: (wait_for(compiled, 2), signal.raise_signal(signal.SIGINT))).start()
    with pytest.raises(KeyboardInterrupt):
        jaxviz.compile_cost(*small(), ablate=True)
    assert len(compiled) == 2
    assert jax.config.jax_enable_compilation_cache == before


def wait_for(found, n):
    while len(found) < n:
        time.sleep(0.01)


def test_errors_of_the_function_are_its_own_and_one_without_blocks_has_none():
    def broken(x):
        raise ValueError("no such layer")

    with pytest.raises(ValueError, match="no such layer"):
        jaxviz.compile_cost(broken, jnp.ones(3))
    report = jaxviz.compile_cost(lambda x: jnp.sum(jnp.sin(x)), jnp.ones(3))
    assert report.repeated == ()
    assert "blocks" not in str(report)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jaxviz.compile_cost(lambda x: x if x > 0 else -x, jnp.float32(1.0))


def test_progress_is_told():
    told = []
    with report_progress_to(lambda *of: told.append(of)):
        jaxviz.compile_cost(*small(3))
    assert {what for what, _, _ in told} == {"compiling", "compiling parts"}
    last = [of for of in told if of[0] == "compiling parts"][-1]
    assert last[1] == last[2]


def test_a_sample_taken_outside_the_function_has_no_line():
    assert line_of_stack(()) is None


def test_an_estimate_that_fails_does_not_take_the_report_with_it(monkeypatch):
    def fail(*_):
        raise KeyError("x")

    monkeypatch.setattr(start, "with_one_block", fail)
    found = jaxviz.compile_cost(*small())
    assert found.phases.compiling.cpu > 0
    assert "not measured: " in str(found)


def test_a_loop_is_recommended_only_where_it_pays():
    blocks = Repeated(2, "x = layer(p, x)", None, "jax.lax.scan", (), (), Counts(4, 8, None))
    with_saving = lambda *seconds: replace(blocks, saving=Saving(*seconds)).advice
    assert with_saving(0.1, 0.1, 3.0, 0.5).endswith(
        "with only one of them compiling takes 3.20 s less: a `jax.lax.scan` would trace and compile only one"
    )
    assert with_saving(0.1, 0.1, 0.3, 0.9).endswith(
        "but with only one of them compiling takes 500 ms less, which a `jax.lax.scan` may cost again"
    )
    assert with_saving(0.1, 0.1, -0.5, 0.9).endswith(
        "but with only one of them compiling takes no less: for 2 of them a `jax.lax.scan` does not pay"
    )
