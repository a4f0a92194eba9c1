"""Advice on lowering the peak, whose figures are measured with the switches."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
import traitlets

import jaxviz
from benchmarks.models import mixture_of_experts, mlp, scan_transformer, transformer
from jaxviz.derivation import derive
from jaxviz.features.explorer.advice import advice_of
from jaxviz.features.explorer.columns import view_of
from jaxviz.features.explorer.whatif import Switches
from jaxviz.report.tables import format_bytes


@pytest.fixture(scope="module")
def switches():
    f, args = transformer(3)
    return Switches(derive(f, *args))


@pytest.fixture(scope="module")
def advice(switches):
    return advice_of(switches.derivation.residuals, switches)


@pytest.mark.slow
def test_the_sentence_is_the_plan(switches, advice):
    assert advice["setting"] == switches.plan()
    assert advice["sentence"].endswith(
        f"would bring the peak to {format_bytes(switches.trade(advice['setting']).peak_nbytes)}"
    )


@pytest.mark.slow
def test_a_card_for_each_of_the_largest(switches, advice):
    assert len(advice["cards"]) == 3
    peaks = {format_bytes(t.peak_nbytes) for t in switches.tried.values() if not isinstance(t, str)}
    written = format_bytes(jaxviz.memory(switches.derivation).peak_nbytes)
    for card in advice["cards"]:
        size = r"([\d.,]+ \w+)"
        then = rf"(?:, and to {size} if it recomputes this value)?"
        before, *after = re.search(rf"brings the peak from {size} to {size}{then}, for .* work\.$", card).groups()
        assert before == written
        assert peaks.issuperset(filter(None, after))
        assert before not in after


def test_a_card_recomputes_what_it_is_of(switches, advice):
    """With a checkpoint that saves everything else it could, the expression's values are no longer kept."""
    residuals = switches.derivation.residuals
    named = re.search(r"around `(\w+)`", advice["cards"][0]).group(1)
    assert named in {"layer", "transformer_loss"}
    line = residuals.expressions[0].location.line
    tried = [
        k
        for k, t in switches.tried.items()
        if not isinstance(t, str) and format_bytes(t.peak_nbytes) in advice["cards"][0]
    ]
    kept = lambda d: sum(r.nbytes for r in d.residuals if r.location.line == line and r.kind == "intermediate")
    assert any(kept(switches.derived(key)) < kept(switches.derivation) for key in tried)


@pytest.mark.slow
def test_of_a_loop_the_body_is_named():
    f, args = scan_transformer(3)
    derivation = derive(f, *args)
    cards = advice_of(derivation.residuals, Switches(derivation))["cards"]
    assert any("the body of the scan at models.py:" in card for card in cards)


def test_where_nothing_helps_it_says_so():
    f, args = mlp(3)
    derivation = derive(f, *args)
    switches = Switches(derivation)
    advice = advice_of(derivation.residuals, switches)
    peak = format_bytes(switches.search.written.peak_nbytes)
    sentence = f"no checkpoint that was tried lowers the peak of {peak} by more than 2 %"
    assert (advice["sentence"], advice["setting"]) == (sentence, "")
    assert set(advice["cards"]) == {"Recomputing it would not lower the peak by more than 2 %."}


def test_a_lower_peak_that_costs_much_work_is_said():
    f, args = mixture_of_experts()
    derivation = derive(f, *args)
    advice = advice_of(derivation.residuals, Switches(derivation))
    peak = jaxviz.memory(f, *args).peak_nbytes
    lower = jaxviz.plan_remat(f, *args, memory=int(0.97 * peak))
    assert advice["setting"] == ""
    assert advice["sentence"] == f"20 % more work would bring the peak to {format_bytes(lower.peak_nbytes)}"


def test_a_card_is_not_for_what_a_checkpoint_does_that_saves_its_values():
    """In a small network any checkpoint lowers the peak, whether or not it recomputes something."""

    def predict(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return x

    loss = lambda params, x: jnp.mean(predict(params, x) ** 2)
    switches = Switches(derive(loss, [jnp.ones(s) for s in ((4, 16), (16, 16), (16, 2))], jnp.ones((32, 4))))
    whole = [i for i, r in enumerate(switches.regions) if r is switches.search.root]
    saving_all = switches.trade(switches.key(whole, switches.choices(whole[0])))
    assert saving_all.peak_nbytes < switches.search.written.peak_nbytes
    advice = advice_of(switches.derivation.residuals, switches)
    assert advice["setting"]
    planned = switches.derived(advice["setting"]).residuals
    line = switches.derivation.residuals.expressions[0].location.line
    before, after = (
        format_bytes(sum(r.nbytes for r in found if r.kind == "intermediate" and r.location.line == line))
        for found in (switches.derivation.residuals, planned)
    )
    assert advice["cards"] == [
        "Recomputing it alone would not lower the peak by more than 2 %; with the suggested checkpoints its line saves "
        f"{after} instead of {before}.",
        "Recomputing it would not lower the peak by more than 2 %.",
    ]
    assert max(map(len, advice["cards"])) <= 5 * 32  # the lines that a card keeps free, and their letters at 1280 px


def test_python_leads_away_from_the_overview_and_the_page_does_not():
    explorer = jaxviz.explore(lambda x: jnp.sum(jnp.sin(x)), jnp.ones(3))
    assert explorer.question == "overview"
    explorer.set_state({"selected": "backward:0", "stage": "forward"})
    assert explorer.question == "overview"
    explorer.selected = ""
    assert explorer.question == "overview"
    explorer.stage = "jvp"
    assert explorer.question == ""
    explorer.question = "overview"
    explorer.selected = "forward:0"
    assert explorer.question == ""
    with pytest.raises(traitlets.TraitError, match="what-if"):
        explorer.question = "peak"


def test_two_versions_are_shown_side_by_side():
    compared = jaxviz.compare(jnp.sin, jnp.cos, 1.0)
    assert jaxviz.explore(compared).question == ""


def test_what_has_no_effect_is_in_the_first_view():
    def loss(names, ws, x):
        policy = jax.checkpoint_policies.save_only_these_names(*names)
        loop = lambda ws, x: jax.lax.scan(lambda x, w: (jnp.sin(jnp.tanh(x @ w)) * x, None), x, ws)[0]
        return jnp.sum(jax.checkpoint(loop, policy=policy)(ws, x))

    args = jnp.ones((8, 8, 8)), jnp.ones((64, 8))
    found = derive(partial(loss, ["typo", "other"]), *args)
    said = (
        "saves nothing for the backward pass; the policy of `<lambda>` lists 'other', which nothing in it has (and 1 "
        "more);"
    )
    assert view_of(found).headline.keeps.startswith(said)
    advice = advice_of(found.residuals, Switches(found))
    assert advice["idle"] == "the checkpoint of `<lambda>` leaves the peak where it was"


def test_what_has_no_effect_is_said():
    elementwise = jax.checkpoint(lambda a: jnp.sin(jnp.tanh(a)), policy=jax.checkpoint_policies.dots_saveable)
    d = derive(lambda w, x: jnp.sum(elementwise(x @ w)), jnp.ones((8, 8)), jnp.ones((8, 8)))
    assert advice_of(d.residuals, Switches(d))["idle"] == "the policy of `<lambda>` changes nothing"
