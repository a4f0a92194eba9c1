"""The compiled program's memory on the page: the totals and rows of the report."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxviz
from jaxviz.xla.explorer_stage import compiled as module
from jaxviz.xla.explorer_stage.compiled import compiled, lower

W, X = jnp.ones((8, 64, 64)) * 0.1, jnp.ones((256, 64))


def unrolled(w, x):
    for i in range(8):
        x = jnp.tanh(x @ w[i]) * jnp.cos(x)
    return jnp.sum(x)


def scanned(w, x):
    return jnp.sum(lax.scan(lambda x, w: (jnp.tanh(x @ w) * jnp.cos(x), None), x, w)[0])


def counted(w, x):
    return jnp.argmax(x @ w[0])


@pytest.mark.slow
@pytest.mark.parametrize("f", [unrolled, scanned, counted])
@pytest.mark.parametrize("most", [4_000, 5])
def test_the_peak_and_its_rows_are_those_of_the_report(f, most, monkeypatch):
    monkeypatch.setattr(module, "_MOST_STEPS", most)
    derivation = jaxviz.derive(f, W, X)
    report = jaxviz.compiled_memory(derivation)
    found = compiled(lower(derivation))["memory"]
    totals = [sum(step) for step in zip(*found["bytes"], strict=True)]
    assert len(totals) == min(most, len(report.timeline))
    assert max(totals) == report.peak_nbytes
    assert 0 <= found["turn"] <= len(totals)
    by_kind = dict.fromkeys(found["kinds"], 0)
    for row in found["held"]:
        by_kind[row.drawn] += row.nbytes
    assert sum(by_kind.values()) + found["more"][1] == sum(h.nbytes for h in report.at_peak)
    at = totals.index(max(totals))
    assert by_kind["residual"] == found["bytes"][found["kinds"].index("residual")][at]
    assert [(r.what, r.nbytes, r.why) for r in found["held"]] == [
        (h.what, h.nbytes, h.why) for h in report.at_peak[: len(found["held"])]
    ]


def test_more_rows_than_are_sent_are_counted(monkeypatch):
    monkeypatch.setattr(module, "_MOST_ROWS", 2)
    derivation = jaxviz.derive(unrolled, W, X)
    report = jaxviz.compiled_memory(derivation)
    found = compiled(lower(derivation))["memory"]
    rest = report.at_peak[2:]
    assert len(found["held"]) == 2
    assert found["more"] == (len(rest), sum(h.nbytes for h in rest))


def test_the_backward_pass_begins_where_its_instructions_become_frequent():
    """XLA runs a few of them early, such as a broadcast; at the turn all residuals of the layers exist."""
    report = jaxviz.compiled_memory(unrolled, W, X)
    kept = [m.nbytes[3] for m in report.timeline]
    assert kept[report.turn] >= 0.7 * max(kept)
    assert report.timeline[report.turn].is_backward
    share = lambda moments: sum(m.is_backward for m in moments) / max(len(moments), 1)
    assert share(report.timeline[report.turn :]) > 2 * share(report.timeline[: report.turn])
    assert jaxviz.compiled_memory(unrolled, W, X, argnums=()).turn == len(
        jaxviz.compiled_memory(unrolled, W, X, argnums=()).timeline
    )


@pytest.mark.slow
def test_what_devices_exchange_is_that_of_the_report():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((256, 64), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    w = jax.ShapeDtypeStruct(W.shape, jnp.float32, sharding=NamedSharding(mesh, P()))
    derivation = jaxviz.derive(unrolled, w, x)
    report = jaxviz.collectives(derivation)
    found = compiled(lower(derivation))["exchanges"]
    assert found["summary"] == report.summary
    assert [(r.kind, r.sent, r.why) for r in found["rows"]] == [
        (c.kind, c.total_sent_nbytes, c.cause) for c in report.compiled
    ]
    assert found["rows"]
    backward = list(derivation.backward.walk())
    before = sum(1 for _ in derivation.forward.walk())
    for row in found["rows"]:
        assert row.equations
        if row.stage == "backward":
            assert all(backward[n - before][1].primitive.name == "dot_general" for n in row.equations)
    assert compiled(lower(jaxviz.derive(unrolled, W, X)))["exchanges"] is None


def test_where_nothing_says_what_is_in_memory_the_texts_are_shown_and_why(monkeypatch):
    def silent(lowering):
        raise ValueError("the backend x does not report where the compiled program stores its values")

    monkeypatch.setattr(module, "compiled_peak", silent)
    found = compiled(lower(jaxviz.derive(unrolled, W, X)))
    assert found["memory"] is None
    assert found["hlo"] is not None
    assert any("the backend x does not report" in note for note in found["notes"])
