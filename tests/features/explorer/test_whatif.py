"""The switches: each setting has the figures of the function with these checkpoints, in the page as in Python."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.experimental
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from whatif_programs import FIXTURE, PROGRAMS, activation, cases, layers

import jaxviz
from benchmarks import models
from jaxviz.features.explorer.whatif import Switches, crossing
from jaxviz.features.remat.regions import Spot

WRITTEN = json.loads(FIXTURE.read_text(encoding="utf-8"))
VERSION = WRITTEN.pop("jax")


def switches_of(f, *args):
    return Switches(jaxviz.derive(f, *args))


def named(switches, name):
    """The number of the region with this name."""
    (found,) = (i for i, r in enumerate(switches.table()["regions"]) if r["name"].startswith(name))
    return found


def members_of(switches, what):
    """The numbers of the values of an expression."""
    table = switches.table()
    return [v for v, g in enumerate(table["values"]["group"]) if table["groups"][g]["what"] == what]


def comes_to(f, *args):
    """The peak, residual bytes and FLOPs of a function according to the reports."""
    derivation = jaxviz.derive(f, *args)
    return jaxviz.memory(derivation).peak_nbytes, derivation.residuals.nbytes, jaxviz.cost(derivation).total.flops


@pytest.mark.slow
@pytest.mark.skipif(jax.__version__ != VERSION, reason=f"written with JAX {VERSION}; others keep other values")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_fixture_is_what_python_makes(name):
    """To update it, run `python tests/features/explorer/whatif_programs.py`."""
    assert json.loads(json.dumps(cases(*PROGRAMS[name]))) == WRITTEN[name]


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_written_it_is_what_the_reports_say(name):
    f, args = PROGRAMS[name]
    trade = switches_of(f, *args).trade("")
    assert (trade.peak_nbytes, trade.nbytes) == comes_to(f, *args)[:2]


def test_a_checkpoint_by_itself_comes_to_what_the_same_one_in_the_source_does():
    args = PROGRAMS["layers"][1]
    switches = switches_of(layers, *args)

    def by_hand(ws, x):
        for w in ws:
            x = jax.checkpoint(lambda w, x: x + activation(x @ w))(w, x)
        return jnp.mean(jnp.sin(x) * x)

    around = switches.trade(switches.key([named(switches, "4 calls of layer")], []))
    whole = switches.trade(switches.key([named(switches, "all of layers")], []))
    plain = comes_to(layers, *args)[2]
    for found, f in ((around, by_hand), (whole, jax.checkpoint(layers))):
        peak, nbytes, flops = comes_to(f, *args)
        assert (found.peak_nbytes, found.nbytes, found.flops) == (peak, nbytes, flops - plain)
    assert around.peak_nbytes < switches.trade("").peak_nbytes


def test_a_group_that_is_saved_comes_to_what_a_policy_that_saves_it_does():
    args = PROGRAMS["layers"][1]
    switches = switches_of(layers, *args)
    members = members_of(switches, "x @ w")
    assert len(members) == 4
    found = switches.trade(switches.key([named(switches, "4 calls of layer")], members))

    def by_hand(ws, x):
        for w in ws:
            x = jax.checkpoint(lambda w, x: x + activation(x @ w), policy=jax.checkpoint_policies.dots_saveable)(w, x)
        return jnp.mean(jnp.sin(x) * x)

    peak, nbytes, _ = comes_to(by_hand, *args)
    assert (found.peak_nbytes, found.nbytes) == (peak, nbytes)
    assert sum(switches.table()["values"]["nbytes"][v] for v in members) == 4 * 32 * 8 * 4


def test_a_group_that_is_offloaded_comes_to_what_a_policy_that_offloads_it_does():
    args = PROGRAMS["layers"][1]
    switches = switches_of(layers, *args)
    members = members_of(switches, "x @ w")
    around = named(switches, "4 calls of layer")
    key = switches.key([around], members, members)
    found, saved = switches.trade(key), switches.trade(switches.key([around], members))
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["product"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def block(w, x):
        return x + activation(checkpoint_name(x @ w, "product"))

    def by_hand(ws, x):
        for w in ws:
            x = jax.checkpoint(block, policy=policy)(w, x)
        return jnp.mean(jnp.sin(x) * x)

    held = jaxviz.derive(by_hand, *args)
    assert found.peak_nbytes == jaxviz.memory(held).peak_nbytes < saved.peak_nbytes
    assert found.offloaded == 4 * 32 * 8 * 4 == saved.nbytes - found.nbytes
    assert found.flops == saved.flops
    written = switches_of(by_hand, *args)
    assert written.setting(written.present).offloaded == written.setting(written.present).saved != set()
    assert written.trade(written.present).offloaded == written.trade("").offloaded == found.offloaded
    code = switches.written(key).text
    assert '+    names_which_can_be_offloaded=["layer_product"],' in code
    assert "offloads 4.0 KiB to the host's memory" in code


def test_one_layer_is_switched_by_itself():
    switches = switches_of(layers, *PROGRAMS["layers"][1])
    around = named(switches, "4 calls of layer")
    products = members_of(switches, "x @ w")
    keys = [switches.key([around], saved) for saved in ([], products[:1], products[-1:], products)]
    assert len(set(keys)) == 4
    none, first, last, every = (switches.trade(key).nbytes for key in keys)
    assert last - none == 32 * 8 * 4
    assert none < first < last < every


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_key_says_what_its_setting_is(name):
    switches = switches_of(*(lambda f, args: (f, *args))(*PROGRAMS[name]))
    for case in WRITTEN[name]["settings"]:
        setting = switches.setting(case["key"])
        assert switches.key(setting.regions, setting.saved, setting.offloaded) == case["key"]
        assert setting.offloaded <= setting.saved <= set(case["saved"])
        assert setting.offloaded <= set(case["offloaded"])


@pytest.mark.parametrize("key", ["0", "0|1|2|3", "a||", "99||", "0,1"])
def test_a_text_that_is_no_key_is_refused(key):
    switches = switches_of(layers, *PROGRAMS["layers"][1])
    with pytest.raises(ValueError, match="is not the key of a setting"):
        switches.setting(key)
    assert "is not the key of a setting" in switches.trade(key)


def test_what_a_region_does_not_hold_is_not_in_the_key():
    switches = switches_of(layers, *PROGRAMS["layers"][1])
    inner = named(switches, "4 calls of activation")
    assert switches.key([inner], [0]) == switches.key([inner], [])
    assert switches.key([], range(len(switches.values))) == "||"


def test_of_blocks_with_checkpoints_those_are_on_and_save_what_their_policy_does():
    def f(ws, x):
        block = jax.checkpoint(lambda w, x: jnp.sin(jnp.tanh(x @ w)) @ w, policy=jax.checkpoint_policies.dots_saveable)
        for w in ws:
            x = block(w, x)
        return jnp.sum(x)

    switches = switches_of(f, [jnp.ones((4, 4))] * 3, jnp.ones((8, 4)))
    table = switches.table()
    assert [r["isWritten"] for r in table["regions"]] == [True, False]
    written, present = switches.trade(""), switches.trade(table["present"])
    assert (present.nbytes, present.flops) == (written.nbytes, written.flops)
    on = switches.setting(table["present"])
    assert {table["groups"][table["values"]["group"][v]]["what"] for v in on.saved} >= {"x @ w"}
    assert switches.trade("||").nbytes > written.nbytes


@pytest.mark.slow
def test_the_checkpoints_of_a_transformer_come_to_what_they_do():
    f, args = models.remat_transformer(3)
    switches = switches_of(f, *args)
    written, present = switches.trade(""), switches.trade(switches.present)
    assert (present.nbytes, present.flops) == (written.nbytes, written.flops)
    assert math.isclose(present.peak_nbytes, written.peak_nbytes, rel_tol=0.01)


def test_regions_that_hold_each_other_in_part_can_both_have_a_checkpoint():
    f, args = PROGRAMS["halves"]
    switches = switches_of(f, *args)
    inner, outer = named(switches, "3 calls of activation"), named(switches, "the call of first")
    assert switches.flipped(switches.key([inner], []), outer) == switches.key([inner, outer], [])
    both = switches.trade(switches.key([inner, outer], []))

    def by_hand(ws, x):
        once = jax.checkpoint(activation)
        first = jax.checkpoint(lambda x: once(once(x @ ws[0]) @ ws[1]))
        return jnp.sum(once(first(x) @ ws[2]))

    assert (both.peak_nbytes, both.nbytes) == comes_to(by_hand, *args)[:2]


def test_of_two_regions_that_cross_each_takes_the_place_of_the_other():
    program, other = SimpleNamespace(), SimpleNamespace()
    spots = [
        [Spot(program, 0, 4), Spot(other, 0, 2)],
        [Spot(program, 2, 6)],
        [Spot(program, 1, 3)],
        [Spot(other, 1, 9)],
    ]
    assert crossing(spots) == [[1, 3], [0, 2], [1], [0]]


@pytest.mark.slow
def test_the_plan_is_that_which_plan_remat_writes():
    f, args = models.scan_transformer(2)
    switches = switches_of(f, *args)
    plan = jaxviz.plan_remat(f, *args)
    key = switches.plan()
    found = switches.trade(key)
    assert found == plan.written.trade == switches.written(key).trade
    assert switches.written(key).text == plan.code()
    bodies = [switches.regions[i].is_body for i in switches.setting(switches.plan()).regions]
    assert True in bodies


def test_the_memory_over_time_has_the_peak_of_the_setting():
    for name in PROGRAMS:
        f, args = PROGRAMS[name]
        switches = switches_of(f, *args)
        for key in ("", switches.key([0], [])):
            drawn = switches.drawn(key)
            alive = [
                sum(nbytes for nbytes, _, born, last, *_ in drawn["buffers"] if born <= step <= last)
                for step in range(len(drawn["what"]))
            ]
            assert max(alive) == switches.trade(key).peak_nbytes
            rows = {*drawn["row"], *(b.row for b in drawn["buffers"])}
            assert rows <= set(range(-1, sum(1 for _ in switches.derivation.primal.walk())))
            assert len(rows) > 3


MODEL = """
import jax
import jax.experimental
import jax.numpy as jnp


def block(w, x):
    h = jnp.tanh(x @ w)
    return x + jnp.sin(h) * h


def loss(ws, x):
    for w in ws:
        x = block(w, x)
    return jnp.sum(x * x)


def scanned(ws, x):
    return jnp.sum(jax.lax.scan(lambda x, w: (block(w, x), None), x, ws)[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["loss", "scanned"])
@pytest.mark.parametrize("saves", [False, True])
def test_the_code_does_what_the_switches_say(tmp_path, monkeypatch, name, saves):
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("model", None)
    import model

    ws = jnp.ones((4, 8, 8)) if name == "scanned" else [jnp.ones((8, 8))] * 4
    args = (ws, jnp.ones((32, 8)))
    switches = switches_of(getattr(model, name), *args)
    around = named(switches, "4 calls of block" if name == "loss" else "the body of the scan")
    key = switches.key([around], members_of(switches, "x @ w") if saves else [])
    code = switches.written(key).text
    diff = "\n".join(line for line in code.split("\n") if not line.startswith("# ")) + "\n"
    subprocess.run(["git", "apply", "-"], input=diff, text=True, check=True, cwd=tmp_path)
    sys.modules.pop("model")
    now = {}
    exec(compile((tmp_path / "model.py").read_text(), str(tmp_path / "new.py"), "exec"), now)
    peak, nbytes, _ = comes_to(now[name], *args)
    found = switches.trade(key)
    assert (found.peak_nbytes, found.nbytes) == (peak, nbytes)
    assert ("checkpoint_name(x @ w" in code) == saves


def test_the_code_of_a_checkpoint_around_the_function_is_a_decorator():
    f, args = PROGRAMS["chain"]
    switches = switches_of(f, *args)
    assert "\n+@jax.checkpoint\n def chain(w, x):" in switches.written("0||").text
    assert switches.written("0||").trade.peak_nbytes == jaxviz.memory(jax.checkpoint(f), *args).peak_nbytes
    assert "no changes" in switches.written("").text
    every = switches.written(switches.key([0], range(len(switches.values)))).text
    assert "checkpoint_name(" in every
    assert "\n+@partial(jax.checkpoint, policy=SAVED)\n def chain" in every
    assert Path(__file__).parent.joinpath("whatif_programs.py").name in every


def test_the_checkpoints_that_there_are_are_kept_or_taken_away():
    f, args = PROGRAMS["blocks"]
    switches = switches_of(f, *args)
    assert "jax.checkpoint" not in switches.written("0||").text
    assert "-    @jax.checkpoint" in switches.written("||").text


def test_a_page_without_source_has_no_lines_of_it():
    f, args = PROGRAMS["chain"]
    switches = switches_of(f, *args)
    text = json.dumps([switches.table(source=False), switches.drawn("0||", source=False)])
    assert "jnp.tanh" not in text
    assert "jnp.tanh" in json.dumps(switches.table())


def test_residuals_have_the_nearest_values_that_a_name_can_save_in_their_place():
    f, args = PROGRAMS["chain"]
    switches = switches_of(f, *args)
    table, held = switches.table(), jaxviz.residuals(f, *args)
    assert len(table["residuals"]) == len(held)
    what = lambda v: table["groups"][table["values"]["group"][v]]["what"]
    made = {}
    for r, values in zip(held, table["residuals"], strict=True):
        if r.kind == "argument":
            assert values == []
        else:
            made.setdefault(r.expression, [what(v) for v in values])
    # What the rule of tanh saves depends on the version of JAX; all of it is computed from the product.
    assert len([e for e in made if made[e] == ["x @ w"]]) >= 2
    assert made["jnp.tanh(x @ w) * jnp.cos(x)"] == ["jnp.tanh(x @ w) * jnp.cos(x)"]
    assert made["jnp.cos(x)"] == []  # the first one, of the argument itself


def test_calls_of_one_function_are_told_apart():
    w = jnp.ones((4, 4))
    g = jax.jit(lambda x: jnp.tanh(x @ w))
    table = switches_of(lambda x: jnp.sum(g(g(g(x)))), jnp.ones((8, 4))).table()
    tanhs = [values for values in table["residuals"] if values]
    assert len({tuple(v) for v in tanhs}) == 3
    assert all(len(v) == 1 for v in tanhs)


def test_what_stacks_is_kept_as_many_times_as_the_loop_runs():
    f, args = PROGRAMS["loop"]
    values = switches_of(f, *args).table()["values"]["nbytes"]
    assert 10 * 6 * 4 in values


def test_an_effect_that_may_not_be_repeated_says_so():
    def f(x):
        jax.experimental.io_callback(lambda v: None, None, jax.lax.stop_gradient(x), ordered=True)
        return jnp.sum(jnp.sin(x) * jnp.cos(x))

    with pytest.raises(ValueError, match="does not allow in a checkpoint"):
        switches_of(f, jnp.ones(3))


@pytest.mark.slow
def test_abstract_arguments_of_a_language_model_are_enough():
    from benchmarks.remat_programs import llama

    case = llama(32, True)
    switches = switches_of(case.plain, *case.args)
    body = next(i for i, r in enumerate(switches.regions) if r.is_body)
    found = switches.trade(switches.key([body], []))
    assert found.peak_nbytes < 0.5 * switches.trade("").peak_nbytes
