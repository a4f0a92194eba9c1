"""Policies side by side as memory over time, and together with plans."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from benchmarks import models
from jaxviz.features.remat.planning import Planning
from jaxviz.features.remat.policy_comparison import MemoryComparison, PlanComparison

X = jnp.linspace(0.1, 1.0, 64 * 8).reshape(64, 8)
W = jnp.linspace(-0.5, 0.5, 64).reshape(8, 8)


def loss(w, x):
    for _ in range(3):
        x = jnp.sin(jnp.tanh(x @ w))
    return x.sum()


@pytest.fixture(scope="module")
def compared():
    return jaxviz.compare_policies(loss, W, X, policies=("everything", "nothing_saveable"))


def test_the_curves_are_on_one_scale_and_the_difference_is_told(compared):
    shown = MemoryComparison(compared)
    everything, nothing = compared.outcomes
    lines = str(shown).splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert lines[0].startswith("memory of the gradient of `loss` in `w` under 2 policies: ")
    curves = [line for line in lines if line.startswith("  forward ")]
    assert len(curves) == 2
    higher, lower = sorted((everything, nothing), key=lambda o: -o.peak_nbytes)
    tops = {o.name: max(curves[compared.outcomes.index(o)]) for o in compared.outcomes}
    assert tops[higher.name] == "█"
    assert tops[lower.name] == "▁▂▃▄▅▆▇█"[int(8 * lower.peak_nbytes / (higher.peak_nbytes + 1))]
    table = {line.split("  ")[0]: line.split()[-3:] for line in lines[-7:]}
    less = nothing.peak_nbytes - everything.peak_nbytes
    number, unit, share = table["all"]
    assert number[0] == ("-" if less < 0 else "+")
    assert (float(number[1:]), unit) == (round(abs(less) / 1024, 1), "KiB")
    assert share == f"({round(100 * less / everything.peak_nbytes):+}%)"


def test_many_policies_are_numbered():
    f, args = models.remat_transformer(2)
    names = ("as it is", "everything", "dots_saveable", "nothing_saveable", "dots_with_no_batch_dims_saveable")
    lines = str(MemoryComparison(jaxviz.compare_policies(f, *args, policies=names))).splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert any(line.startswith("5 dots_with_no_batch_dims_saveable: peak ") for line in lines)
    assert "difference" not in "".join(lines)


def test_one_policy_alone():
    one = jaxviz.compare_policies(loss, W, X, policies="nothing_saveable")
    assert str(MemoryComparison(one)).startswith("memory of the gradient of `loss` in `w` under 1 policy: it peaks at ")


def test_plans_keep_no_more_and_compute_no_more(compared):
    shown = PlanComparison(compared)
    (_, nothing), (_, plan) = compared.outcomes, compared.plans
    assert plan.nbytes <= nothing.nbytes
    assert plan.flops <= nothing.flops
    text = str(shown)
    assert all(len(line) <= 100 for line in text.splitlines())
    row = next(line for line in text.splitlines() if line.startswith("nothing_saveable"))
    gain = round(100 * (plan.flops - nothing.flops) / nothing.flops)
    assert row.endswith(f"{gain:+d}% FLOPs" if gain else "none")


def test_where_no_plan_keeps_so_few_bytes(compared, monkeypatch):
    def refuses(planning, nbytes):
        raise ValueError("a budget cannot be met")

    monkeypatch.setattr(Planning, "within_residuals", refuses)
    none = replace(compared)
    assert none.plans == (None, None)
    assert str(PlanComparison(none)).count("no plan so small") == 2
    assert none.plot().axes[0].get_legend() is None


@pytest.mark.parametrize("view", [MemoryComparison, PlanComparison])
def test_they_are_plain_data_and_html(compared, view):
    shown = view(compared)
    data = json.loads(json.dumps(shown.to_dict()))
    assert [p["policy"] for p in data["policies"]] == ["everything", "nothing_saveable"]
    assert "<table>" in shown._repr_html_()


def test_what_xla_takes_is_told_when_asked_for(compared):
    assert "XLA" not in str(MemoryComparison(compared))
    assert f"compiled by XLA for {jax.default_backend()}" in " ".join(str(MemoryComparison(compared, xla=True)).split())
