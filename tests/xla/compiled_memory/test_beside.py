"""A gradient's modelled memory beside its compiled memory."""

import json

import jax
import jax.numpy as jnp
import pytest
from compiled_programs import (
    LAYERS,
    PROGRAMS,
    STEPS,
    X,
    attention,
    named,
    scanned,
    training_step,
    unrolled,
    unrolled_checkpoints,
)

import jaxviz
from jaxviz.xla.compiled_memory.beside import COPIED, FUSED, MERGED


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_the_differences_lead_from_the_model_to_the_compiled_program(f):
    model, compiled = jaxviz.memory(f, *PROGRAMS[f]), jaxviz.compiled_memory(f, *PROGRAMS[f])
    beside = model.beside(compiled)
    assert beside.compiled is compiled
    assert sum(c.nbytes for c in beside.differences) == compiled.reserved_nbytes - model.peak_nbytes
    assert sum(beside.by_reason.values()) == compiled.reserved_nbytes - model.peak_nbytes
    assert all(c.why for c in beside.differences)
    rows = {c.before for c in beside.differences} - {None}
    assert {r.what for r in rows} <= {a.what for a in model.alive}


@pytest.mark.parametrize("f", [scanned, *STEPS], ids=lambda f: f.__name__)
def test_it_compiles_what_the_model_is_of(f):
    model, expected = jaxviz.memory(f, *PROGRAMS[f]), jaxviz.compiled_memory(f, *PROGRAMS[f])
    found = model.beside().compiled
    assert (found.about, found.temp_nbytes, found.at_peak) == (expected.about, expected.temp_nbytes, expected.at_peak)


def test_what_xla_fuses_away_has_no_memory():
    beside = jaxviz.memory(attention, *PROGRAMS[attention]).beside()
    fused = beside.because(FUSED)
    assert fused
    held = {h.what for h in beside.compiled.values}
    for change in fused:
        assert change.after is None
        assert change.nbytes < 0
        assert change.row.what not in held


def test_what_xla_copies_is_named():
    beside = jaxviz.memory(scanned, *PROGRAMS[scanned]).beside()
    copies = {c.row.what: c.nbytes for c in beside.because(COPIED)}
    assert copies["a slice of ws"] == 64 * 64 * 4


def test_what_xla_merges_again_is_named():
    loss, ws = named("", scan=False)
    beside = jaxviz.memory(loss, ws, X).beside()
    compiled = jaxviz.compiled_memory(loss, ws, X)
    merged = {h.what for h in compiled.at_peak if h.kind == "merged"}
    assert {c.row.what for c in beside.because(MERGED)} == merged
    assert (MERGED in beside.by_reason) == bool(merged)


def test_residuals_that_both_have_are_no_difference():
    beside = jaxviz.memory(unrolled, LAYERS, X).beside()
    same = {a.what: a.nbytes for a in beside.model.alive if a.kind == "residual"}
    both = {h.what for h in beside.compiled.at_peak if h.kind == "residual" and same.get(h.what) == h.nbytes}
    assert both
    assert not both & {c.row.what for c in beside.differences if c.row.kind == "residual"}


def test_as_a_report():
    beside = jaxviz.memory(unrolled_checkpoints, LAYERS, X).beside()
    text = str(beside)
    assert text.startswith("gradient of `unrolled_checkpoints` in `ws`: modelled peak ")
    lines = text.splitlines()
    model, compiled = (next(line for line in lines if line.startswith(name)) for name in ("model ", "compiled "))
    assert len(model) == len(compiled)
    assert "█" in model + compiled
    html = beside._repr_html_()
    assert html.count("<svg") == 1
    assert "compiled for cpu: peak" in html
    assert "█" not in html
    data = json.loads(json.dumps(beside.to_dict()))
    assert len(data["modelled"]["nbytes"]) == len(beside.model.steps)
    assert max(data["compiled"]["nbytes"]) == beside.compiled.peak_nbytes


@pytest.mark.parametrize("f", [unrolled, training_step], ids=lambda f: f.__name__)
def test_the_figure_has_both_on_one_axis(f):
    beside = jaxviz.memory(f, *PROGRAMS[f]).beside()
    axes = beside.plot().axes[0]
    line = next(line for line in axes.lines if line.get_label().startswith("compiled for cpu: peak "))
    xs = line.get_xdata()
    assert xs[0] == 0
    assert xs[-1] < len(beside.model.steps)
    assert sum(x < beside.model.turn for x in xs) == beside.compiled.turn
    top = max(beside.model.peak_nbytes, beside.compiled.peak_nbytes)
    assert axes.get_ylim()[1] == pytest.approx(1.12 * top)


def test_a_function_without_a_gradient():
    beside = jaxviz.memory(lambda x: jnp.sum(jnp.sin(x) * 2), X, argnums=()).beside()
    assert beside.compiled.turn == len(beside.compiled.timeline)
    assert str(beside)


@pytest.mark.slow
def test_a_plan_that_xla_undoes_names_what_it_merged():
    weights, x = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((16, 64, 64), (512, 64)))

    def loss(ws, x):
        for w in ws:
            x = jnp.tanh(jnp.sin(x @ w))
        return jnp.sum(x**2)

    found = jaxviz.plan_remat(loss, weights, x).verify()
    assert not found.happened
    merged = found.beside.because(MERGED)
    # JAX 0.12 recomputes all of it at once.
    rows = merged or [c for c in found.beside.differences if c.row.kind == "recomputed"]
    said = " ".join(found.notes)
    assert f"{rows[0].row.what} (test_beside.py:" in said
    assert ("XLA merges the recomputation" in said) == bool(merged) == (jax.__version_info__ < (0, 12))
    assert sum(c.nbytes for c in rows) > 0.5 * (found.after.peak_nbytes - found.modelled[1].peak_nbytes)
    assert sum(found.to_dict()["beside"]["by_reason"].values()) == sum(c.nbytes for c in found.beside.differences)
    assert "saved_" not in str(found.beside)
