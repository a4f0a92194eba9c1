"""The names of probes as addresses where a program is not traced for them: in `step`, in the page's search."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import jaxviz
from jaxviz.features.explorer.addressing import ExplorerAddresses

WS = jnp.linspace(-1.0, 1.0, 48).reshape(3, 4, 4)
X = jnp.linspace(0.0, 1.0, 8).reshape(2, 4)


def loss(ws, x):
    def layer(h, w):
        u = checkpoint_name(jaxviz.probe(h @ w, "pre"), "named")
        return jaxviz.probe(jnp.tanh(u), "hidden"), None

    h, _ = jax.jit(lambda x: jax.lax.scan(jax.checkpoint(layer), x, ws))(x)
    h = jaxviz.probe(x, "given") + h
    return jnp.sum(jaxviz.probe({"h": h * 2.0, "none": None}, "doubled")["h"])


def in_layers(ws, x):
    for w in ws:
        x = jaxviz.probe(jnp.tanh(x @ w), "act")
    return jnp.sum(x)


@pytest.mark.parametrize("phase", ["forward", "recomputed"])
def test_a_run_stops_at_what_a_probe_is_given(phase):
    s = jaxviz.step(loss, WS, X).run(at=jaxviz.at("hidden", iteration=1, phase=phase))
    want = X
    for w in WS[:2]:
        want = jnp.tanh(want @ w)
    np.testing.assert_allclose(s.value, want, rtol=1e-5, atol=1e-7)
    assert s.stage == {"forward": "forward", "recomputed": "backward"}[phase]


def test_names_of_probes_are_told_from_those_of_checkpoints():
    s = jaxviz.step(loss, WS, X)
    assert s.run(at="pre").equation.primitive.name == "dot_general"
    assert s.run(at="named").equation.primitive.name == "name"
    assert s.run(at="doubled.h").equation.primitive.name == "mul"
    assert s.break_at(at="pre") in s.breakpoints


def test_several_of_one_name_are_told_apart():
    s = jaxviz.step(in_layers, WS, X)
    with pytest.raises(jaxviz.AddressError, match="in_layers has 3 values at 'act'"):
        s.run(at="act")
    with pytest.raises(jaxviz.AddressError, match="in_layers has 3 values at 'act'"):
        jaxviz.capture(in_layers, "act")(WS, X)
    np.testing.assert_allclose(s.run(at="act #2").value, jnp.tanh(jnp.tanh(X @ WS[0]) @ WS[1]), rtol=1e-5)
    record = jaxviz.record(in_layers, WS, X, at=["act #*"], cotangents=False)
    assert [v.address for v in record.values] == ["act #1", "act #2", "act #3"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("given", "The probe 'given' of loss is given an argument, or what no address means"),
        ("hiden", "loss has no value at 'hiden'"),
        ("hidden #3", "no #3"),
    ],
)
def test_what_means_nothing_is_an_error(text, said):
    with pytest.raises(jaxviz.AddressError, match=said):
        jaxviz.step(loss, WS, X).run(at=text)


def test_the_search_finds_what_a_probe_is_given():
    addresses = ExplorerAddresses(jaxviz.derive(in_layers, WS, X))
    rows = addresses.found("act")["values"]
    assert [row.address for row in rows] == [f"jnp.tanh(x @ w) #{i}" for i in (1, 2, 3)]
    assert rows == addresses.found("jnp.tanh(x @ w)")["values"]
    assert addresses.equation("act #2", "forward") in rows[1].equations
    assert addresses.found("acts")["values"] == []


def test_a_function_is_traced_again_only_for_the_name_of_a_probe():
    traced = []

    def noted(ws, x):
        traced.append(1)
        return in_layers(ws, x)

    s = jaxviz.step(noted, WS, X)
    before = len(traced)
    with pytest.raises(jaxviz.AddressError):
        s.run(at="no_probe_of_this_name")
    assert len(traced) == before
    s.run(at="act #1")
    assert len(traced) == before + 1
