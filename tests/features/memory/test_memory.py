"""The modelled memory over time, counted by hand and compared with XLA's figures."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcripts
from device_programs import GRID
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from short_runs import short

import jaxviz
from benchmarks import models
from jaxviz.features.memory.buffers import KINDS
from jaxviz.features.memory.model import Model

X = jnp.ones(1000)  # 4,000 bytes
W = jnp.ones((50, 50))  # 10,000 bytes
PERCEPTRON = (
    [(jnp.ones((200, 100)), jnp.ones(100)), (jnp.ones((100, 10)), jnp.ones(10))],
    jnp.ones((20, 200)),
    jnp.ones((20, 10)),
)


def of_kind(step, kind):
    return step.nbytes[KINDS.index(kind)]


def looped(w):
    step = lambda c, _: (jnp.tanh(c @ w), None)
    return jnp.sum(lax.cond(w[0, 0] > 0, jnp.sin, lambda w: w.T.reshape(50, 50) @ w, lax.scan(step, w, None, 3)[0]))


@pytest.mark.parametrize(
    "f", [lambda w: jnp.sum(jnp.sin(w)), looped, lambda w: jnp.sum(jax.checkpoint(looped)(w * 2.0))]
)
@pytest.mark.parametrize("donated", [(), 0])
def test_steps_and_what_is_alive_follow_from_the_values(f, donated):
    timeline = jaxviz.memory(f, W, donate_argnums=donated)
    end = len(timeline.steps)
    sums = np.zeros((end, len(KINDS)), int)
    for v in timeline.values:
        assert 0 <= v.born <= v.last <= end
        assert v.equation is None or timeline.steps[v.born].equation in (v.equation, *v.buffer.within)
        sums[v.born : v.last + 1, KINDS.index(v.kind)] += v.nbytes
    assert sums.tolist() == [list(step.nbytes) for step in timeline.steps]
    assert timeline.alive == timeline.alive_at(timeline.peak)
    for i, step in enumerate(timeline.steps):
        alive = timeline.alive_at(i)
        assert [sum(a.nbytes for a in alive if a.kind == kind) for kind in KINDS] == list(step.nbytes)
        assert sum(a.count for a in alive) == sum(v.born <= i <= v.last for v in timeline.values)


@pytest.mark.parametrize(
    "program", [models.transformer(2), models.scan_transformer(2), models.lstm(1), models.remat_transformer(2)]
)
def test_each_cotangent_says_of_what(program):
    f, args = program
    found = [v.what for v in jaxviz.memory(f, *args).values if v.kind == "cotangent"]
    said = ("cotangent", "in the derivative of")
    assert [what for what in found if not any(s in what for s in said)] == []


def test_layers_have_one_row_for_each_expression():
    alive = {}
    for n in (2, 6):
        f, args = models.transformer(n)
        timeline = jaxviz.memory(f, *args)
        alive[n] = timeline.alive_at(len(timeline.steps) - 1), timeline.alive
        assert all("…" not in a.what or a.count > 1 for a in timeline.alive if a.kind == "argument")
    assert [len(rows) for rows in alive[2]] == [len(rows) for rows in alive[6]]


def test_values_name_the_residuals_that_they_hold():
    """A value and a view of it, both saved: two residuals in one buffer."""

    def f(x):
        y = jnp.exp(x).reshape(10, 100)
        return jnp.sum(y * jnp.sin(y))

    timeline = jaxviz.memory(f, X)
    kept = jaxviz.derive(f, X).residuals
    holders = {i: v for v in timeline.values for i in v.residuals}
    assert sorted(holders) == list(range(len(kept)))
    assert all(holders[i].nbytes == r.nbytes for i, r in enumerate(kept))
    assert len({id(v) for v in holders.values()}) < len(kept)


@pytest.mark.parametrize(
    "f", [lambda w: jnp.sum(jnp.tanh(jnp.tanh(w @ w) @ w)), lambda w: jnp.sum(jnp.exp(w) * jnp.sin(w))]
)
def test_between_the_passes_there_are_the_residuals(f):
    timeline = jaxviz.memory(f, W)
    kept = sum(r.nbytes for r in jaxviz.residuals(f, W) if r.kind not in ("argument", "literal"))
    last = max(i for i, s in enumerate(timeline.steps) if not s.is_backward)
    assert of_kind(timeline.steps[last], "residual") == kept


def test_what_is_computed_again_is_put_off_until_it_is_read():
    def chain(x):
        for _ in range(8):
            x = jnp.sin(jnp.cos(x) * 2.0)
        return jnp.sum(x)

    timeline = jaxviz.memory(jax.checkpoint(chain), X)
    backward = [s.equation for s in timeline.steps if s.is_backward]
    again = [i for i, e in enumerate(backward) if e.origin.role == "recomputation"]
    # Its last equation, the cosine of the last sine, comes directly before the product that reads it.
    assert again != list(range(len(again)))
    for i in again:
        read_at = min(j for j, e in enumerate(backward) if set(backward[i].outvars) & set(e.invars))
        assert all(j in again for j in range(i + 1, read_at))
    body = [e for _, e in jaxviz.derive(jax.checkpoint(chain), X).backward.walk() if not e.programs]
    assert len(body) == len(backward)
    # Operands precede the steps that read them.
    made = {v for s in timeline.steps for v in s.equation.outvars}
    seen = set()
    for s in timeline.steps:
        assert all(a in seen for a in s.equation.invars if a in made)
        seen.update(s.equation.outvars)
    assert timeline.peak_nbytes < jaxviz.memory(chain, X).peak_nbytes


def test_what_a_call_recomputes_waits_as_outside_of_a_call():
    """A plan is searched for with calls inlined: its peak has to be that of the code, which has the calls."""

    def block(silu):
        def f(w, x):
            y = silu(x @ w)
            return silu(y - y.mean(0)) @ w

        return lambda ws, x: jnp.sum(jax.checkpoint(f)(ws[1], jax.checkpoint(f)(ws[0], x)) ** 2)

    silu = lambda x: x * jax.nn.sigmoid(x)
    args = jnp.ones((2, 30, 30)), jnp.ones((1000, 30))
    peaks = [jaxviz.memory(block(f), *args).peak_nbytes for f in (silu, jax.jit(silu))]
    assert peaks[0] == peaks[1]


def test_the_peak_of_a_perceptron_is_that_of_xla():
    timeline = jaxviz.memory(models.mlp_loss, *PERCEPTRON)
    xla = timeline.xla
    assert abs(timeline.peak_nbytes / (xla.arguments + xla.results + xla.temporaries) - 1) < 0.1


def two_layers(params, x):
    for w, v in params:
        x = x + jax.nn.gelu(x @ w) @ v
    return jnp.mean(x**2)


LAYOUTS = {
    "data parallel": (P(), P(), P("i")),
    "tensor parallel": (P(None, "j"), P("j", None), P()),
    "both": (P(None, "j"), P("j", None), P("i")),
    "parameters divided too": (P("i", "j"), P("j", "i"), P("i")),
    "parameters laid out by XLA": (None, None, P("i")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(LAYOUTS), 2))
def test_layouts_that_xla_decides_count_as_it_decides(name):
    """Each device's arguments and results take exactly as many bytes as in the compiled gradient."""
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 256), (256, 64), (128, 64))]
    shardings = (spec if spec is None else NamedSharding(GRID, spec) for spec in LAYOUTS[name])
    w, v, x = (t.update(sharding=s) for t, s in zip(types, shardings, strict=True))
    params = [(w, v), (w, v)]
    found = jaxviz.memory(two_layers, params, x)
    last = found.steps[-1].nbytes
    by_kind = dict(zip(("argument", "constant", "residual", "temporary", "cotangent", "result"), last, strict=True))
    assert by_kind["argument"] == found.xla.arguments
    pointers = 8 * (1 + len(jax.tree.leaves(params)))  # XLA includes the table of pointers to the results
    assert by_kind["result"] == found.xla.results - pointers


# --- compared with XLA ------------------------------------------------------------------------------------------------


def deep(block):
    def loss(params, x):
        for w in params:
            x = block(x, w)
        return jnp.sum(x)

    return loss


PARAMS = [jnp.ones((128, 128))] * 6
BATCH = jnp.ones((512, 128))


def layer(x, w):
    return jnp.sin(jnp.sin(x @ w) @ w)


def test_xlas_figures_are_those_of_the_compiled_gradient():
    timeline = jaxviz.memory(deep(layer), PARAMS, BATCH)
    compiled = jax.jit(jax.value_and_grad(deep(layer))).lower(PARAMS, BATCH).compile().memory_analysis()
    assert timeline.xla.arguments == compiled.argument_size_in_bytes
    assert timeline.xla.results == compiled.output_size_in_bytes
    np.testing.assert_allclose(timeline.xla.temporaries, compiled.temp_size_in_bytes, rtol=0.1)
    assert timeline.xla.temporaries_without_checkpoints is None
    assert "Without the checkpoints" not in timeline.compare()
    # Matrix products are not fused, so the model is close.
    modelled = timeline.peak_nbytes - of_kind(timeline.steps[timeline.peak], "argument")
    assert 0.5 < timeline.xla.temporaries / modelled < 1.5


@pytest.mark.slow
def test_what_xla_undid_is_said():
    """On the CPU XLA removes the barriers around recomputed values; where a backend keeps them, this is said."""
    timeline = jaxviz.memory(deep(jax.checkpoint(layer)), PARAMS, BATCH)
    xla = timeline.xla
    plain = jaxviz.memory(deep(layer), PARAMS, BATCH)
    assert xla.temporaries_without_checkpoints == plain.xla.temporaries
    assert timeline.peak_nbytes < plain.peak_nbytes
    undone = xla.temporaries > 0.95 * plain.xla.temporaries
    assert ("XLA undoes them" in timeline.compare()) is undone


def test_a_peak_far_from_the_modelled_one_is_said_and_why():
    timeline = jaxviz.memory(lambda w, x: jnp.sum((jnp.tanh(x @ w) - x) ** 2), W, jnp.ones((1000, 50)))
    xla = timeline.xla
    said = timeline.compare()
    assert xla.peak_nbytes < 0.8 * timeline.peak_nbytes
    assert f"in the model: {timeline.beside().reasons}." in said
    assert " less for values that XLA computes within fusions" in said
    vars(timeline)["xla"] = dataclasses.replace(xla, temporaries=timeline.peak_nbytes - xla.arguments - xla.results)
    assert "in the model" not in timeline.compare()


def test_donation_is_xlas_too():
    timeline = jaxviz.memory(lambda x: jnp.sum(x * x), X, donate_argnums=0)
    assert timeline.xla.reused == 4000


@pytest.mark.slow
@transcripts.of("memory")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


def _one_of_six(w, x):
    return jnp.tanh(x @ w[jnp.argmax(x[0]) % 6])


def _two_of_six(w, x):
    i = jnp.argmax(x[0]) % 6
    return jnp.tanh(x @ w[i] @ w[i - 1])


def _one_in_each_iteration(w, x):
    return jax.lax.fori_loop(0, 6, lambda i, h: jnp.tanh(h @ w[i]), x)


def _two_in_each_iteration(w, x):
    return jax.lax.fori_loop(0, 6, lambda i, h: jnp.tanh(h @ w[i] @ w[(i + 1) % 6]), x)


def _the_same_in_each_iteration(w, x):
    return jax.lax.fori_loop(0, 6, lambda i, h: jnp.tanh(h @ w[2]), x)


@pytest.mark.parametrize(
    "fun",
    [_one_of_six, _two_of_six, _one_in_each_iteration, _two_in_each_iteration, _the_same_in_each_iteration],
    ids=lambda f: f.__name__,
)
def test_the_gradient_of_a_slice_is_added_in_place(fun):
    """XLA adds the cotangent of a slice to that of the whole, without an array of zeros around it."""
    w, x = jax.ShapeDtypeStruct((6, 256, 256), jnp.float32), jax.ShapeDtypeStruct((4, 256), jnp.float32)
    timeline = jaxviz.memory(lambda w, x: jnp.mean(jnp.square(fun(w, x))), w, x)
    xla = timeline.xla.temporaries + timeline.xla.results
    assert timeline.peak_nbytes - timeline.steps[timeline.peak].nbytes[0] == pytest.approx(xla, rel=0.06)


def test_what_waits_is_looked_for_only_where_it_is_read(monkeypatch):
    """Of a checkpointed function most equations of the backward pass read nothing that waits."""
    wanted, ends = [], []
    catch_up, walk = Model.catch_up, Model.walk
    monkeypatch.setattr(Model, "catch_up", lambda model, late: wanted.append(list(late)) or catch_up(model, late))
    monkeypatch.setattr(Model, "walk", lambda model, *of: walk(model, *of) or ends.append(model))
    jaxviz.memory(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x) * 2.0).sum()), jnp.ones(3))
    assert any(wanted)
    assert sum(not late for late in wanted) <= len(ends)


def test_a_rule_that_jax_vjp_gives_may_have_integer_arguments():
    """The backward half then has an array of float0 zeros, which are equal to no number."""

    def rows(table, index):
        return jax.nn.one_hot(index, len(table)) @ table

    ruled = jax.custom_vjp(lambda table, index: rows(table, index))
    ruled.defvjp(lambda *args: jax.vjp(rows, *args), lambda pull_back, ct: pull_back(ct))
    args = jnp.ones((6, 3)), jnp.arange(4)
    assert jax.grad(lambda *args: jnp.sum(ruled(*args)))(*args).shape == (6, 3)
    own, plain = jaxviz.memory(ruled, *args), jaxviz.memory(rows, *args)
    assert own.peak_nbytes == plain.peak_nbytes
