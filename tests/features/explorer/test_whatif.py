"""The table behind the switches: what is written for the browser's tests is what Python makes, and it is as JAX has it."""

import json
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from whatif_programs import FIXTURE, PROGRAMS, cases

import jaxviz
from jaxviz.features.explorer.whatif import what_if

WRITTEN = json.loads(FIXTURE.read_text(encoding="utf-8"))
VERSION = WRITTEN.pop("jax")


@pytest.mark.skipif(jax.__version__ != VERSION, reason=f"written with JAX {VERSION}; others keep other values")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_fixture_is_what_python_makes(name):
    """Write it anew with `python tests/features/explorer/whatif_programs.py`."""
    made = json.loads(json.dumps(cases(*PROGRAMS[name])))
    assert list(made["table"]) == list(WRITTEN[name]["table"])
    assert made["cases"] == WRITTEN[name]["cases"]
    assert made["code"] == WRITTEN[name]["code"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_written_it_is_what_jax_holds(name):
    f, args = PROGRAMS[name]
    table = what_if(jaxviz.derive(f, *args))
    held = jaxviz.residuals(f, *args, argnums=0)
    assert table["present"]["nbytes"] == held.nbytes
    assert table["present"]["peak"] == jaxviz.memory(f, *args).peak_nbytes
    kinds = Counter(k for _, k, *_ in table["buffers"])
    assert kinds[table["kinds"].index("residual")] > 0


def test_of_a_checkpointed_function_the_switches_stand_as_its_policy_has_it():
    def f(w, x):
        keep = jax.checkpoint_policies.dots_saveable
        return jnp.sum(jax.checkpoint(lambda w, x: jnp.sin(jnp.tanh(x @ w)) @ w, policy=keep)(w, x))

    table = what_if(jaxviz.derive(f, jnp.ones((4, 4)), jnp.ones((8, 4))))
    on = [table["strings"][table["values"][i]["what"]] for i in table["present"]["saved"]]
    assert on == ["dot_general"]
    assert table["present"]["flops"] > 0
    plain = what_if(jaxviz.derive(jax.checkpoint(f), jnp.ones((4, 4)), jnp.ones((8, 4))))
    assert plain["present"]["saved"] == []


def stand_ins(f, *args):
    """For each residual that is none of the arguments, what makes it, and what makes the values in its place."""
    table = what_if(jaxviz.derive(f, *args))
    held = jaxviz.residuals(f, *args, argnums=0)
    assert len(table["residuals"]) == len(held)
    assert {v for values in table["residuals"] for v in values} == set(table["present"]["saved"])
    what = lambda v: table["strings"][table["values"][v]["what"]]
    made = [
        (r.expression, [what(v) for v in values])
        for r, values in zip(held, table["residuals"], strict=True)
        if r.kind == "intermediate"
    ]
    assert not any(v for r, v in zip(held, table["residuals"], strict=True) if r.kind == "argument")
    return made


def test_a_residual_has_the_nearest_values_that_a_name_can_save_in_its_place():
    made = dict(stand_ins(*(lambda f, args: (f, *args))(*PROGRAMS["chain"])))
    # What the rule of tanh keeps differs between versions of JAX; all of it is made from the product.
    of_product = [e for e in made if made[e] == ["dot_general"]]
    assert len(of_product) >= 3
    assert [e for e in made if e.startswith("mul(") and made[e] == ["mul"]]
    assert made["cos(x)"] == []


def test_of_blocks_with_checkpoints_it_is_what_passes_from_one_to_the_next():
    f, args = PROGRAMS["blocks"]
    made = stand_ins(f, *args)
    assert [values for _, values in made][:2] == [["add"], ["add"]]


def test_calls_of_one_function_are_told_apart():
    w = jnp.ones((4, 4))
    g = jax.jit(lambda x: jnp.tanh(x @ w))
    table = what_if(jaxviz.derive(lambda x: jnp.sum(g(g(g(x)))), jnp.ones((8, 4))))
    tanhs = [values for values in table["residuals"] if values]
    assert len({tuple(v) for v in tanhs}) == 3
    assert all(len(v) == 1 for v in tanhs)


def test_what_stacks_is_kept_as_many_times_as_the_loop_runs():
    f, args = PROGRAMS["loop"]
    table = what_if(jaxviz.derive(f, *args))
    stacked = [v["nbytes"] for v in table["values"] if "×" in table["strings"][v["type"]]]
    assert stacked
    assert all(n == 10 * 6 * 4 for n in stacked)
    assert [loop["forward"] < table["turn"] <= loop["backward"] for loop in table["loops"]] == [True]


def test_a_page_without_source_has_no_lines_of_it():
    f, args = PROGRAMS["chain"]
    text = json.dumps(what_if(jaxviz.derive(f, *args), source=False))
    assert "jnp.tanh" not in text
    assert "/" not in text.replace("\\/", "")
    assert "jnp.tanh" in json.dumps(what_if(jaxviz.derive(f, *args)))


def test_numbers_point_into_their_tables():
    for name in PROGRAMS:
        table = WRITTEN[name]["table"]
        n_slots, n_nodes = len(table["slots"]["nbytes"]), len(table["nodes"]["flops"])
        assert all(0 <= s < n_slots for key in ("reads", "makes") for slots in table["nodes"][key] for s in slots)
        assert all(len(column) == n_nodes for column in table["nodes"].values())
        assert all(0 <= s < n_slots for s in table["needed"])
        assert all(-1 <= b < len(table["buffers"]) for b in table["slots"]["buffer"])
        assert all(0 <= v < len(table["values"]) for plan in table["plans"] for v in plan)
        made = [s for slots in table["nodes"]["makes"] for s in slots]
        assert len(made) == len(set(made))
