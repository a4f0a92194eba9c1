"""Contracts find regressions and name their cause, are silent about refactorings, and stay the same in a file."""

import contextlib
import tomllib
from dataclasses import fields, replace
from functools import cache

import jax
import jax.numpy as jnp
import pytest
from explicit_programs import ABSTRACT, MESH
from jax.sharding import NamedSharding
from refactorings import REFACTORINGS
from regressions import (
    REGRESSIONS,
    SPLIT,
    W,
    X,
    block,
    column_then_row,
    f32,
    gathers_hidden,
    named_block,
    no_remat,
    only,
    reached,
    remat_around_it,
    saves_everything,
    saves_hidden,
    saves_hiden,
)
from short_runs import short

import jaxviz
from jaxviz.contracts.comparing import Comparing
from jaxviz.contracts.contract import Contract, OnBackend, compiled_key, on_backend
from jaxviz.contracts.start import FACTS, accepted, checked, contract_of
from jaxviz.environments.facts import SavedRow
from jaxviz.environments.gather import gather_facts
from jaxviz.ir.origin import Location
from jaxviz.xla.collectives.report import Collective


def facts_of(f, args, compile=False):
    mesh = jax.sharding.use_abstract_mesh(ABSTRACT) if args is SPLIT else contextlib.nullcontext()
    with mesh:
        return gather_facts("model:loss", "w, x", f, args, {}, 0, compile=compile)


def found(before, after, args, **how):
    """What breaks of the contract of a program, for another one."""
    return checked(contract_of(facts_of(before, args), "loss"), facts_of(after, args), **how)


# --- what is found ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regression", REGRESSIONS, ids=lambda r: r.name)
def test_a_regression_is_found_and_its_cause_is_first(regression):
    broken = found(regression.before, regression.after, regression.args).broken
    assert broken, "nothing breaks"
    assert broken[0].fact == regression.fact
    assert regression.cause in broken[0].cause
    assert broken[0].text.startswith("contract of `loss`: ")
    assert broken[0].text.endswith(f". To accept: jaxviz lock --accept loss.{broken[0].fact}")


@pytest.mark.parametrize("name", REFACTORINGS)
def test_a_refactoring_breaks_nothing(name):
    before, after, args = REFACTORINGS[name]
    said = found(before, after, args)
    assert [b.text for b in said.broken] == []
    assert said.notes == ()


@pytest.mark.parametrize("regression", short(REGRESSIONS, 4), ids=lambda r: r.name)
def test_what_is_accepted_holds(regression):
    """All of it, and nothing else: the contract is then that of the program."""
    before, after = (facts_of(f, regression.args) for f in (regression.before, regression.after))
    contract = contract_of(before, "loss")
    assert not checked(contract, before).broken
    again = accepted(contract, after)
    assert again.to_dict() == contract_of(after, "loss").to_dict()
    assert checked(again, after).holds


def test_only_what_is_accepted_is_locked_again():
    before, after = facts_of(saves_hidden, (W, X)), facts_of(no_remat, (W, X))
    contract = contract_of(before, "loss")
    assert [b.fact for b in checked(contract, after).broken] == ["names", "residuals"]
    again = accepted(contract, after, ["residuals"])
    assert [b.fact for b in checked(again, after).broken] == ["names"]
    assert again.portable.saved == contract_of(after, "loss").portable.saved
    assert again.portable.work == contract.portable.work


def test_figures_may_grow_by_what_the_contract_says():
    of_rows = lambda n: facts_of(lambda w, x: reached(w, x[:n]), (W, f32(104, 16)))
    contract, little, much = contract_of(of_rows(100), "loss"), of_rows(101), of_rows(103)
    assert checked(contract, little).holds
    assert [b.fact for b in checked(contract, much).broken] == ["residuals", "work"]
    assert checked(replace(contract, within_percent=4), much).holds
    assert not checked(replace(contract, within_percent=0), little).holds


def test_less_is_no_failure_and_can_be_locked():
    said = found(no_remat, reached, (W, X))
    assert said.holds
    assert said.notes == (
        "Lower than locked: residuals -50%, work -4%. To lock this: jaxviz lock --accept loss.residuals,loss.work",
    )


def test_what_cannot_be_found_out_does_not_hold(monkeypatch):
    contract = contract_of(facts_of(reached, (W, X)), "loss")

    def broken(*_):
        raise NotImplementedError("not today")

    monkeypatch.setattr("jaxviz.environments.gather.cost", broken)
    said = checked(contract, facts_of(reached, (W, X)))
    assert [(b.fact, b.cause) for b in said.broken] == [
        (name, "NotImplementedError: not today") for name in ("work", "recomputed")
    ]


A, B = (SavedRow(label, f"f32[{n}]", 2, 1000, "", "", None) for label, n in (("silu(gate)", 125), ("exp(y)", 250)))
GROUPS = {
    "the same": ((A, B), True),
    "other names": ((replace(A, label="y = silu(z)"), replace(B, label="e = exp(x)")), True),
    "other shapes": ((replace(A, type="f32[5,25]"), replace(B, type="f32[250,1]")), True),
    "in two rows": ((replace(A, count=1, nbytes=500), replace(A, label="silu(up)", count=1, nbytes=500), B), True),
    "one in place of the other": ((replace(A, count=4, nbytes=2000),), False),
    "more of one, less of the other": ((replace(A, count=3, nbytes=1500), replace(B, count=1, nbytes=500)), False),
    "more of one, much less of the other": ((replace(A, count=3, nbytes=1500),), True),
}


@pytest.mark.parametrize("after", GROUPS)
def test_what_is_saved_of_one_type_may_not_take_the_place_of_another(after):
    facts = facts_of(reached, (W, X))
    with_rows = lambda rows: replace(facts, program=replace(facts.program, saved=rows))
    rows, holds = GROUPS[after]
    broken = checked(contract_of(with_rows((A, B)), "loss"), with_rows(rows)).broken
    assert (not broken) is holds
    if not holds:
        assert broken[0].what.startswith("residuals of type f32[125] +")
        assert broken[0].cause.startswith("`silu(gate)`: ")


def test_what_was_without_effect_may_stay_so():
    assert found(saves_hiden, saves_hiden, (W, X)).holds
    for after in (lambda w, x: saves_everything(w, x) + saves_hiden(w, x), saves_hiden):
        first, *_ = found(saves_everything, after, (W, X)).broken
        assert "'hiden'" in first.cause
    other_name = lambda w, x: jnp.sum(jax.checkpoint(lambda x, w: named_block(x, w), policy=only("hiden"))(x, w))
    assert found(saves_hiden, other_name, (W, X)).holds
    listed = lambda w, x: jnp.sum(jax.checkpoint(named_block, policy=only("other"))(x, w))
    assert "'other'" in found(saves_hiden, listed, (W, X)).broken[0].cause


# --- what is compiled -------------------------------------------------------------------------------------------------


@cache
def compiled_facts(f):
    return facts_of(f, (W, X), compile=True)


@pytest.mark.slow
def test_what_is_compiled_is_locked_for_its_backend():
    facts = compiled_facts(remat_around_it)
    contract = contract_of(facts, "loss")
    assert list(contract.compiled) == [compiled_key()] == [compiled_key(facts)]
    memory = jaxviz.compiled_memory(remat_around_it, W, X)
    on = contract.compiled[compiled_key()]
    assert (on.peak, on.temporaries) == (memory.peak_nbytes, memory.temp_nbytes)
    less = replace(on, peak=on.peak * 9 // 10, at_peak={**on.at_peak, "argument": 0})
    (broken,) = checked(replace(contract, compiled={compiled_key(): less}), facts).broken
    assert (broken.fact, broken.what.startswith("compiled peak")) == ("peak", True)
    assert broken.cause.startswith("+10.0 KiB of kind argument at the peak, the largest of it `")


@pytest.mark.slow
def test_another_version_is_not_locked_here():
    facts = compiled_facts(remat_around_it)
    contract = replace(contract_of(facts, "loss"), compiled={"gpu, H100, JAX 9.9, jaxlib 9.9": OnBackend(peak=1)})
    said = checked(contract, facts)
    assert said.holds
    assert said.notes == (
        f"What is compiled for {compiled_key()} is not locked here; locked: gpu, H100, JAX 9.9, jaxlib 9.9.",
    )


def collective(kind, axes, sent, count=1):
    at = Location("/home/model.py", 41, "loss")
    return Collective(kind, axes, 4, "f32[16]", sent, sent, count, 1, "backward", "`x @ w`", "dot_general", at,
                      "w is replicated", "sum", "", ())  # fmt: skip


@pytest.mark.slow
def test_collectives_count_by_kind_axes_and_bytes():
    """However they are named or scheduled: the facts have no instructions."""
    facts = compiled_facts(remat_around_it)
    with_rows = lambda *rows: replace(facts, compiled=replace(facts.compiled, collectives=rows))
    contract = contract_of(with_rows(collective("all-gather", ("data",), 64, 2)), "loss")
    one = collective("all-gather", ("data",), 64)
    assert on_backend(with_rows(one, one)).exchanged == {"all-gather over data": 128}
    assert checked(contract, with_rows(replace(one, instructions=("all-gather-start.1",)), one)).holds
    (broken,) = checked(contract, with_rows(one, one, one)).broken
    assert broken.what == "all-gather over data 128 B → 192 B, +64 B (+50%)"
    assert broken.cause == "most of it now for `x @ w` at model.py:41, since w is replicated"
    (broken,) = checked(contract, with_rows(one, collective("all-to-all", ("model",), 8))).broken
    assert broken.what == "all-to-all over model is new, 8 B"


@pytest.mark.slow
def test_collectives_of_a_mesh_are_locked():
    on_mesh = lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=NamedSharding(MESH, s.sharding.spec))
    args = [jax.tree.map(on_mesh, a) for a in SPLIT]
    with jax.set_mesh(MESH):
        contract = jaxviz.lock(column_then_row, *args, compile=True)
        facts = gather_facts("", "", gathers_hidden, tuple(args), {}, 0)
    (on,) = contract.compiled.values()
    assert on.exchanged.keys() >= {"all-reduce over model"}
    broken = [b for b in checked(contract, facts).broken if b.fact == "exchanged"]
    assert any("over model" in b.what for b in broken)


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regression", short(REGRESSIONS, 3), ids=lambda r: r.name)
def test_a_contract_is_the_same_in_its_file(regression, tmp_path):
    contract = contract_of(facts_of(regression.before, regression.args), "loss")
    path = contract.save(tmp_path / "contracts" / "loss.toml")
    assert Contract.load(path).to_toml() == path.read_text() == contract.to_toml()
    assert checked(Contract.load(path), facts_of(regression.before, regression.args)).holds
    written = tomllib.loads(path.read_text())
    assert list(written["portable"]) == sorted(written["portable"])
    assert {"target": "model:loss", "args": "w, x", "format": 1}.items() <= written.items()
    text = path.read_text()
    assert str(tmp_path) not in text
    assert ".py:" not in text


def many_expressions(w, x):
    for i in range(30):
        x = x + jax.named_scope(f"part_{i}")(lambda x: jnp.tanh(x @ w["up"][:, : 2 * i + 2])[:, :1])(x) * i
    return jnp.sum(x)


def test_a_file_has_at_most_60_lines():
    contract = contract_of(facts_of(many_expressions, (W, X)), "loss")
    on = OnBackend(1, {"residual": 1}, 1, {})
    for n in range(5):
        full = replace(contract, compiled={f"cpu, cpu, JAX 0.{i}, jaxlib 0.{i}": on for i in range(n)})
        lines = full.to_toml().splitlines()
        assert len(lines) <= 60
        rows = tomllib.loads(full.to_toml())["portable"]["saved"]
        assert sum(r["nbytes"] for r in rows) == contract.portable.residuals
        assert rows[0]["what"] == "(others)"


def test_a_file_with_too_many_versions_is_refused(tmp_path):
    on = OnBackend(1, {"residual": 1}, 1, {})
    contract = contract_of(facts_of(many_expressions, (W, X)), "loss")
    full = replace(contract, compiled={f"cpu, cpu, JAX 0.{i}, jaxlib 0.{i}": on for i in range(9)})
    with pytest.raises(ValueError, match="would have more than 60 lines; remove the compiled sections"):
        full.save(tmp_path / "loss.toml")


DAMAGED = {
    "format = 1": ("format = 2", "has the format 2; this jaxviz reads contracts of format 1"),
    "[portable]": ("[portable", "is not TOML"),
    "residuals = 8192": ('residuals = "much"', "is no contract: portable.residuals is 'much'"),
    "work = ": ("worck = ", "is no contract: there is no fact portable.worck"),
    "target = ": ("traget = ", "is no contract: there is no fact traget"),
}


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_is_refused(text, tmp_path):
    path = contract_of(facts_of(saves_hidden, (W, X)), "loss").save(tmp_path / "loss.toml")
    other, message = DAMAGED[text]
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, other))
    with pytest.raises(ValueError, match=message):
        Contract.load(path)


def test_every_fact_can_be_accepted():
    contract = contract_of(facts_of(reached, (W, X)), "loss")
    known = {f.name for kind in (contract.portable, OnBackend()) for f in fields(kind)}
    assert known == {*FACTS, "saved", "lines", "at_peak"}
    assert Comparing(contract, facts_of(reached, (W, X))).key == compiled_key()


def test_a_contract_in_python():
    contract = jaxviz.lock(block, X, W, argnums=1)
    assert contract.name == "block"
    assert contract.summary.startswith("contract of `block`: residuals ")
    assert jaxviz.lock(block, X, W, argnums=0).portable != contract.portable


def test_a_large_model_is_locked_from_types():
    from benchmarks.remat_programs import llama

    case = llama(32, True)
    contract = jaxviz.lock(case.make(jax.checkpoint), *case.args)
    assert contract.portable.residuals > 800 << 20
    assert not contract.portable.dead
