"""Addresses in the explorer: of the selected equation, of a text that is searched, and to select by."""

import base64
import gzip
import json
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxviz
from jaxviz.analysis.addresses import resolve

W, XS = jnp.eye(3), jnp.ones((5, 3))


def loss(w, xs):
    def body(h, x):
        pre = h @ w + x
        return jnp.tanh(pre), jnp.sum(pre)

    h, sums = lax.scan(body, xs[0], xs)
    scores = jax.nn.softmax(h)
    return jnp.sum(scores * h) + jnp.sum(sums)


@pytest.fixture
def explorer():
    return jaxviz.explore(loss, W, XS)


def asked(explorer, work, text):
    explorer._answer(explorer, {"work": work, "asked": text}, [])
    return json.loads(explorer.found if work == "find" else explorer.address)


@pytest.mark.parametrize(
    "text", ["scores", "softmax(h)", "loss › scores", "jax.nn.softmax( h )", "body › pre", "h @ w"]
)
def test_a_text_finds_the_equations_that_compute_what_it_means_in_python(explorer, text):
    (value,) = resolve(explorer.derivation.primal, jaxviz.at(text)).values
    said = asked(explorer, "find", text)
    ((address, about, names),) = said["values"]
    assert said["asked"] == text
    assert about.startswith(value.line)
    assert resolve(explorer.derivation.primal, jaxviz.at(address)).values == (value,)
    assert [name.partition(":")[0] for name in names] == ["primal", "jvp", "forward"]
    for name in names:
        explorer.selected = name
        of = asked(explorer, "address", name)
        assert [address, "forward", f"jaxviz.at({address!r})"] in of["addresses"]
        assert explorer.equation.operation.out_avals[0] == value.aval


def test_a_text_of_several_values_finds_them_all_and_others_nothing(explorer):
    addresses, _, names = zip(*asked(explorer, "find", "jnp.sum(_)")["values"], strict=True)
    assert addresses == ("jnp.sum(sums)", "jnp.sum(pre)")
    assert len({tuple(each) for each in names}) == 2
    assert asked(explorer, "find", "nothing of the kind")["values"] == []
    assert asked(explorer, "find", "scores #2")["values"] == []
    line = loss.__code__.co_firstlineno + 6
    assert [v[0] for v in asked(explorer, "find", f"line:{line}")["values"]] == ["scores"]


def test_equations_of_the_backward_program_have_the_addresses_of_cotangents(explorer):
    n = sum(1 for _ in explorer.derivation.backward.walk())
    found = [asked(explorer, "address", f"backward:{i}")["addresses"] for i in range(n)]
    texts = {text: code for each in found for text, phase, code in each if phase == "cotangent"}
    assert {"scores", "h @ w", "h", "sums"} <= {*texts}
    assert texts["scores"] == "jaxviz.at('scores', phase='cotangent')"
    for code in texts.values():
        assert explorer.select(eval(code)) is explorer.equation
        assert explorer.selected.startswith("backward:")


def test_what_has_no_address_has_none(explorer):
    for equation in ("primal:0", "primal:999", "residuals:0", "forward", ""):
        assert asked(explorer, "address", equation)["addresses"] == []


def test_an_equation_is_selected_by_its_address_where_it_is_shown(explorer):
    assert explorer.select("scores").primitive.name == "div"
    assert explorer.selected.startswith("primal:")
    explorer.stage, explorer.beside = "jvp", "forward"
    explorer.select(jaxviz.at("jax.nn.softmax(h)"))
    assert explorer.selected.startswith("jvp:")
    assert explorer.question == ""
    with pytest.raises(jaxviz.AddressError, match="Near it are"):
        explorer.select("softmaxx")
    with pytest.raises(jaxviz.AddressError, match="has 2 values"):
        explorer.select("jnp.sum(_)")
    with pytest.raises(ValueError, match="no stage has an equation that computes scores, recomputed"):
        explorer.select(jaxviz.at("scores", phase="recomputed"))


def test_a_new_version_has_its_own_addresses(explorer):
    asked(explorer, "find", "scores")
    explorer.update(lambda w, xs: jnp.sum(jnp.sin(w)), W, XS)
    assert (explorer.found, explorer.address) == ("", "")
    assert asked(explorer, "find", "scores")["values"] == []
    assert asked(explorer, "find", "sin(w)")["values"][0][0] == "jnp.sin(w)"


def test_a_saved_page_has_the_address_of_the_selection(explorer, tmp_path):
    def state(**options):
        page = explorer.save_html(tmp_path / "e.html", **options).read_text()
        block = re.search(r'id="jaxviz-state">"([^"]*)"', page)[1]
        return json.loads(gzip.decompress(base64.b64decode(block)))

    assert "address" not in state()
    explorer.select("scores")
    assert json.loads(state()["address"])["addresses"][0][0] == "scores"
    assert "address" not in state(source=False)
