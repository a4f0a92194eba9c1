"""A gradient's modelled memory beside its compiled memory."""

import jax
import jax.numpy as jnp
import pytest
from compiled_programs import PROGRAMS, STEPS, X, compiled, named
from short_runs import short

import jaxviz
from jaxviz.xla.compiled_memory.beside import COPIED, FUSED, MERGED


def beside_of(name):
    return jaxviz.memory(*PROGRAMS[name]).beside(compiled(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(PROGRAMS), 2))
def test_the_differences_lead_from_the_model_to_the_compiled_program(name):
    beside = beside_of(name)
    model, report = beside.model, beside.compiled
    assert report is compiled(name)
    assert sum(c.nbytes for c in beside.differences) == report.reserved_nbytes - model.peak_nbytes
    assert sum(beside.by_reason.values()) == report.reserved_nbytes - model.peak_nbytes
    assert all(c.why for c in beside.differences)
    rows = {c.before for c in beside.differences} - {None}
    assert {r.what for r in rows} <= {a.what for a in model.alive}


@pytest.mark.parametrize("name", ["scanned", *STEPS])
def test_it_compiles_what_the_model_is_of(name):
    found, expected = jaxviz.memory(*PROGRAMS[name]).beside().compiled, compiled(name)
    assert (found.about, found.temp_nbytes, found.at_peak) == (expected.about, expected.temp_nbytes, expected.at_peak)


def test_what_xla_fuses_away_has_no_memory():
    beside = beside_of("attention")
    in_memory = {h.what for h in beside.compiled.values}
    assert beside.because(FUSED)
    assert all(c.after is None and c.nbytes < 0 and c.row.what not in in_memory for c in beside.because(FUSED))


def test_what_xla_copies_is_named():
    copies = {c.row.what: c.nbytes for c in beside_of("scanned").because(COPIED)}
    assert copies["a slice of ws"] == 64 * 64 * 4


def test_what_xla_merges_again_is_named():
    beside = jaxviz.memory(*named("", scan=False)).beside()
    merged = {h.what for h in beside.compiled.at_peak if h.kind == "merged"}
    assert {c.row.what for c in beside.because(MERGED)} == merged
    assert (MERGED in beside.by_reason) == bool(merged)


def test_residuals_that_both_have_are_no_difference():
    beside = beside_of("unrolled")
    same = {a.what: a.nbytes for a in beside.model.alive if a.kind == "residual"}
    both = {h.what for h in beside.compiled.at_peak if h.kind == "residual" and same.get(h.what) == h.nbytes}
    assert both
    assert not both & {c.row.what for c in beside.differences if c.row.kind == "residual"}


def test_as_a_report():
    beside = beside_of("unrolled_checkpoints")
    text, html, data = str(beside), beside._repr_html_(), beside.to_dict()
    assert text.startswith("gradient of `unrolled_checkpoints` in `ws`: modelled peak ")
    model, of_xla = (
        next(line for line in text.splitlines() if line.startswith(name)) for name in ("model ", "compiled ")
    )
    assert len(model) == len(of_xla)
    assert "█" in model + of_xla
    assert (html.count("<svg"), "compiled for cpu: peak" in html, "█" in html) == (1, True, False)
    assert len(data["modelled"]["nbytes"]) == len(beside.model.steps)
    assert max(data["compiled"]["nbytes"]) == beside.compiled.peak_nbytes


@pytest.mark.parametrize("name", ["unrolled", "training_step"])
def test_the_figure_has_both_on_one_axis(name):
    beside = beside_of(name)
    axes = beside.plot().axes[0]
    xs = next(x for x in axes.lines if x.get_label().startswith("compiled for cpu: peak ")).get_xdata()
    assert 0 == xs[0] <= xs[-1] < len(beside.model.steps)
    assert sum(x < beside.model.turn for x in xs) == beside.compiled.turn
    top = max(beside.model.peak_nbytes, beside.compiled.peak_nbytes)
    assert axes.get_ylim()[1] == pytest.approx(1.12 * top)


def test_a_function_without_a_gradient():
    beside = jaxviz.memory(lambda x: jnp.sum(jnp.sin(x) * 2), X, argnums=()).beside()
    assert beside.compiled.turn == len(beside.compiled.timeline)
    assert str(beside)


@pytest.mark.slow(sweep=True)
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
