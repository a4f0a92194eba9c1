"""Policies side by side: bytes and FLOPs compared with JAX using the policy, their differences, memory over time, and
plans beside them."""

import json
from dataclasses import replace
from functools import partial
from operator import itemgetter

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from short_runs import short

import jaxviz
from benchmarks import models
from jaxviz.features.remat.graph import best_trades
from jaxviz.features.remat.planning import Planning
from jaxviz.features.remat.policy_comparison import MemoryComparison, PlanComparison

pytestmark = pytest.mark.slow

X = jnp.linspace(0.1, 1.0, 64 * 8).reshape(64, 8)
W = jnp.linspace(-0.5, 0.5, 64).reshape(8, 8)
DOT = 2 * 64 * 8 * 8
"""FLOPs of `X @ W`."""


def nested(checkpoint, w, x):
    inner = checkpoint(lambda w, x: jnp.sin(x @ w) @ w)
    return checkpoint(lambda w, x: jnp.cos(inner(w, x)) @ w)(w, x).sum()


def in_scan(checkpoint, w, x):
    cell = checkpoint(lambda h, _: (jnp.tanh(h @ w), None))
    return lax.scan(cell, x, None, length=5)[0].sum()


def of_jit(checkpoint, w, x):
    return checkpoint(jax.jit(lambda w, x: jnp.sin(jnp.sin(x @ w) @ w)))(w, x).sum()


@jax.custom_vjp
def swish(x):
    return x * jax.nn.sigmoid(x)


swish.defvjp(lambda x: (swish(x), (x, x * 2.0)), lambda res, ct: (ct * res[0] * res[1],))


@jax.custom_jvp
def soft(x):
    return jnp.log1p(jnp.exp(x))


soft.defjvps(lambda t, out, x: t * jax.nn.sigmoid(x))


def custom(checkpoint, w, x):
    return checkpoint(lambda w, x: soft(swish(x @ w) @ w) @ w)(w, x).sum()


PROGRAMS = {f.__name__: f for f in (nested, in_scan, of_jit, custom)}
POLICIES = ("everything", "nothing_saveable", "dots_saveable", "everything_saveable")


def written(f, policy):
    """The function as a user would write it."""
    if policy == "everything":
        return partial(f, lambda g: g)
    return partial(f, partial(jax.checkpoint, policy=getattr(jax.checkpoint_policies, policy)))


def held_by_jax(f):
    _, pull = jax.vjp(lambda w: f(w, X), W)
    return sum({id(x): x.nbytes for x in jax.tree.leaves(pull)}.values())


def flops_of_jax(f):
    """As XLA counts the program that JAX passes to it, with the body of a scan once."""
    return jax.jit(jax.value_and_grad(f)).lower(W, X).cost_analysis()["flops"]


@pytest.mark.parametrize("name", short(list(PROGRAMS), 2))
def test_bytes_and_flops_are_those_of_jax_with_the_policy_written(name):
    f = PROGRAMS[name]
    found = jaxviz.compare_policies(written(f, "nothing_saveable"), W, X, policies=POLICIES)
    plain = jaxviz.cost(found.without.derivation).as_compiled.flops
    jax_plain = flops_of_jax(written(f, "everything"))
    for policy in POLICIES:
        outcome = found[policy]
        assert outcome.nbytes == held_by_jax(written(f, policy))
        assert outcome.nbytes == jaxviz.residuals(written(f, policy), W, X, argnums=0).nbytes
        extra = jaxviz.cost(outcome.derivation).as_compiled.flops - plain
        assert extra == flops_of_jax(written(f, policy)) - jax_plain


@pytest.mark.parametrize(
    ("name", "again"),
    [
        # The outer checkpoint recomputes both products of the inner one, whose backward pass recomputes the first once
        # more.
        ("nested", 3 * DOT),
        ("in_scan", 5 * DOT),
        ("of_jit", 2 * DOT),
        # Two products, and four FLOPs per element in the functions with rules and in the forward rule.
        ("custom", 2 * DOT + 4 * 64 * 8),
    ],
)
def test_flops_counted_by_hand(name, again):
    found = jaxviz.compare_policies(written(PROGRAMS[name], "dots_saveable"), W, X, policies="nothing_saveable")
    assert found["nothing_saveable"].flops == again


def test_a_function_without_checkpoints_gets_one_around_it():
    f = written(of_jit, "everything")
    found = jaxviz.compare_policies(f, W, X, policies=("as it is", "dots_saveable"))
    assert found["as it is"].nbytes == found.without.nbytes == held_by_jax(f)
    assert found["dots_saveable"].nbytes == held_by_jax(jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable))
    assert "on one checkpoint around the whole function, which has none" in " ".join(str(found).split())


def block(w, x):
    h = checkpoint_name(jnp.tanh(x @ w), "hidden")
    return jnp.sin(h)


def layers(w, x):
    for _ in range(3):
        x = jax.checkpoint(block)(w, x)
    return x.sum()


def test_what_the_differences_come_to_is_the_difference_in_bytes():
    f, args = models.remat_transformer(2)
    found = jaxviz.compare_policies(f, *args, policies=("nothing_saveable", "dots_saveable"))
    nothing, dots = (sum(d.kept[i] for d in found.differences) for i in (0, 1))
    assert dots - nothing == found["dots_saveable"].nbytes - found["nothing_saveable"].nbytes > 0


def test_the_peak_is_that_of_the_function_with_the_policy_written():
    found = jaxviz.compare_policies(layers, W, X, policies=("everything_saveable",))
    saves = jax.checkpoint(block, policy=jax.checkpoint_policies.everything_saveable)
    peak = jaxviz.memory(lambda w, x: saves(w, saves(w, saves(w, x))).sum(), W, X).peak_nbytes
    assert found["everything_saveable"].peak_nbytes == peak


def test_xla_is_asked_only_when_asked_for():
    found = jaxviz.compare_policies(layers, W, X, policies=("everything", "nothing_saveable"))
    assert "XLA" not in str(found)
    plain, without = found.xla
    assert plain == found.without.timeline.xla
    assert without.temporaries == found["nothing_saveable"].timeline.xla.temporaries
    assert without.temporaries_without_checkpoints == plain.temporaries
    undone = without.temporaries > 0.95 * plain.temporaries
    text = " ".join(str(found).split())
    assert f"compiled by XLA for {jax.default_backend()}, measured, not modelled: without checkpoints" in text
    assert ("XLA undoes the checkpoints of nothing_saveable" in text) == undone
    assert found.to_dict()["xla_temporaries"] == [plain.temporaries, without.temporaries]


@pytest.mark.slow(sweep=True)
def test_the_report_fits_the_page():
    f, args = models.remat_transformer(3)
    many = (
        "as it is",
        "everything",
        "dots_saveable",
        jax.checkpoint_policies.save_only_these_names(*"abcdefghijkl"),
        "nothing_saveable",
    )
    for policies in (("dots_saveable", "nothing_saveable"), many):
        found = jaxviz.compare_policies(f, *args, policies=policies)
        lines = str(found).splitlines()
        assert all(len(line) <= 100 for line in lines)
        assert "3 of layer (models.py:" in " ".join(lines)
    assert "saved: 1, 2, 3; recomputed: 4, 5" in " ".join(" ".join(lines).split())  # by the numbers of the policies
    assert "1 as it is" in str(found)
    page = found._repr_html_()
    shown, _, behind = page.partition("<details>")
    assert shown.count("<table>") == 2
    assert shown.count("<tr>") == 2 + len(many) + 20
    n = sum(d.at_stake > 0 for d in found.differences)
    assert behind.count("<tr>") == 1 + n
    assert f"and {n - 20} more rows, " in behind
    data = json.loads(json.dumps(found.to_dict()))
    assert [p["nbytes"] for p in data["policies"]] == [o.nbytes for o in found.outcomes]
    assert data["without"]["flops"] == 0


def test_of_a_derivation_and_of_a_program():
    derivation = jaxviz.derive(layers, W, X)
    want = [o.nbytes for o in jaxviz.compare_policies(layers, W, X).outcomes]
    assert [o.nbytes for o in jaxviz.compare_policies(derivation).outcomes] == want
    assert [o.nbytes for o in jaxviz.compare_policies(derivation.primal).outcomes] == want
    (plan, _) = jaxviz.compare_policies(derivation).plans
    assert plan.nbytes <= want[0]


def test_a_plot_has_a_point_for_each_policy_and_the_line_of_plans():
    found = jaxviz.compare_policies(layers, W, X, policies=("dots_saveable", "nothing_saveable"))
    (axes,) = found.plot().axes
    line, *points = axes.lines
    at = {(x, y) for p in points for x, y in zip(p.get_xdata(), p.get_ydata(), strict=True)}
    assert at == {(o.nbytes, o.flops) for o in (found.without, *found.outcomes)}
    # No policy is better than the plans.
    for o in found.outcomes:
        fewest = min(y for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True) if x <= o.nbytes)
        assert fewest <= o.flops
    assert {t.get_text() for t in axes.texts} == {"no checkpoints", "dots_saveable", "nothing_saveable"}
    assert len(found.plot(plans=False).axes[0].lines) == len(points)


def test_the_best_trades():
    points = [(10, 5), (8, 5), (8, 9), (20, 0), (15, 6), (5, 9)]
    assert best_trades(points, itemgetter(0), itemgetter(1)) == ((5, 9), (8, 5), (20, 0))


@pytest.mark.slow(sweep=True)
def test_policies_stand_among_the_best_plans():
    f, args = models.transformer(2)
    found = jaxviz.compare_policies(f, *args, policies=["everything", "dots_saveable"])
    peaks = [t.peak_nbytes for t in found.best_plans]
    assert peaks == sorted(peaks)
    assert min(peaks) <= found["dots_saveable"].peak_nbytes < found["everything"].peak_nbytes
    assert "the best plans" in found._repr_html_()


def test_a_policy_that_would_save_a_complex_value_is_refused_as_by_jax():
    """JAX rounds what a checkpoint saves and the forward pass reads, which it cannot do with complex numbers."""

    def waves(w, x):
        y = jnp.exp(1j * x).astype(jnp.complex64) @ w.astype(jnp.complex64)
        return jnp.sum(jnp.abs(jnp.sin(y) * y))

    saving = jax.checkpoint(waves, policy=jax.checkpoint_policies.dots_saveable)
    for grad in (jax.grad, jaxviz.grad):
        with pytest.raises(TypeError, match="reduce_precision does not accept"):
            grad(saving)(W, X)
    found = jaxviz.compare_policies(waves, W, X, policies=("dots_saveable", "nothing_saveable"))
    assert [o.name for o in found.outcomes] == ["nothing_saveable"]
    assert "reduce_precision does not accept complex numbers" in str(found).replace("\n", " ")
    plan = jaxviz.plan_remat(waves, W, X)
    assert jnp.allclose(jax.grad(plan.apply(waves))(W, X), jax.grad(waves)(W, X))


# --- as memory over time, and beside plans ---------------------------------------------------------------------------


def three_sines(w, x):
    for _ in range(3):
        x = jnp.sin(jnp.tanh(x @ w))
    return x.sum()


@pytest.fixture(scope="module")
def compared():
    return jaxviz.compare_policies(three_sines, W, X, policies=("everything", "nothing_saveable"))


def test_the_curves_are_on_one_scale_and_the_difference_is_told(compared):
    shown = MemoryComparison(compared)
    everything, nothing = compared.outcomes
    lines = str(shown).splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert lines[0].startswith("memory of the gradient of `three_sines` in `w` under 2 policies: ")
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
    one = jaxviz.compare_policies(three_sines, W, X, policies="nothing_saveable")
    assert str(MemoryComparison(one)).startswith(
        "memory of the gradient of `three_sines` in `w` under 1 policy: it peaks at "
    )


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
