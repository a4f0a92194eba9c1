"""However many layers a model has, each report has a row for repeated ones, and a last row that counts the rest."""

import re

import jax
import pytest

import jaxviz
from benchmarks import models

pytestmark = pytest.mark.slow

FEW, MANY = 3, 12
SUBTRACT = lambda p, g: jax.tree.map(lambda a, b: a - 0.1 * b, p, g)


def updated(n):
    f, (params, tokens) = models.transformer(n)
    step = jaxviz.jit(lambda p, x: SUBTRACT(p, jax.grad(f)(p, x)), donate_argnums=0)
    return step, params, tokens


def of(report, make=models.transformer):
    return lambda n: report(make(n)[0], *make(n)[1])


REPORTS = {
    "residuals": of(jaxviz.residuals),
    "memory": of(jaxviz.memory),
    "cost": of(jaxviz.cost),
    "lint": of(jaxviz.lint),
    "policies": of(jaxviz.policies, models.remat_transformer),
    "compare_policies": of(jaxviz.compare_policies, models.remat_transformer),
}
COMPILED = {
    "donation": lambda n: jaxviz.donation(*updated(n)),
    "jit": lambda n: updated(n)[0].report(*updated(n)[1:]),
}


def rows_in_sight(page):
    """The rows of tables, without those behind "show all"."""
    shown = re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL)
    return shown.count("<tr>") - shown.count("<thead>")


def assert_no_longer(few, many):
    assert rows_in_sight(many._repr_html_()) <= rows_in_sight(few._repr_html_()) + 1
    assert rows_in_sight(many._repr_html_()) <= 40
    assert len(str(many).splitlines()) <= 1.3 * len(str(few).splitlines())


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow(sweep=True)] * (n == "compare_policies")) for n in REPORTS]
)
def test_layers_make_a_report_no_longer(name):
    many = 8 if name in ("compare_policies", "lint") else MANY  # they derive the program for each policy, or advice
    assert_no_longer(REPORTS[name](FEW), REPORTS[name](many))


def test_forty_rows_hold_nearly_all_of_the_bytes():
    derivation = jaxviz.derive(*_flat(models.transformer(MANY)))
    residuals, memory = derivation.residuals, jaxviz.memory(derivation)
    kept = jaxviz.compare_policies(derivation, policies=["everything", "nothing_saveable"]).differences
    for sizes in (
        [g.nbytes for g in residuals.groups if g.residuals[0].is_saved],
        [a.nbytes for a in memory.alive],
        [d.at_stake for d in kept],
    ):
        assert sorted(sizes, reverse=True) == sizes
        assert sum(sizes[:40]) >= 0.95 * sum(sizes)


UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20}


def test_the_rows_of_a_checkpoint_around_all_layers_are_the_largest():
    f, args = models.transformer(MANY)
    (group,) = jaxviz.policies(jax.checkpoint(f), *args).groups
    sizes = [float(number) * UNITS[unit] for _, _, text, *_ in group.table().rows for number, unit in [text.split()]]
    assert len(sizes) > 40
    assert min(sizes[:40]) >= max(sizes[40:])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow(sweep=True)] * (n == "donation")) for n in COMPILED]
)
def test_layers_make_a_report_of_what_is_compiled_no_longer(name):
    assert_no_longer(COMPILED[name](FEW), COMPILED[name](6))


def test_costs_are_summed_up_by_expression():
    few, many = (jaxviz.cost(f, *args) for f, args in map(models.transformer, (FEW, MANY)))
    assert len(few.groups) == len(many.groups)
    for report in (few, many):
        assert sum((g.total for g in report.groups), jaxviz.Cost()) == report.total
        assert sum(g.total.flops for g in report.groups[:20]) > 0.95 * report.total.flops
    product = next(g for g in many.groups if g.label == "x @ p[name]")
    assert product.count == 3 * MANY
    assert product.forward.flops == sum(
        r.cost.flops
        for r in many.rows
        if r.stage == "forward" and r.location == product.location and r.primitive == "dot_general"
    )
    gelu = [g for g in many.groups if g.label.startswith("jax.nn.gelu(") and g.label.endswith(")")]
    assert [g.count for g in gelu] == [MANY]  # one row for any number of operations
    assert f"{3 * MANY} × `x @ p[name]`" in str(many)


def test_iterations_of_a_scan_count_as_layers_do():
    scanned = jaxviz.cost(*_flat(models.scan_transformer(MANY)))
    assert next(g for g in scanned.groups if g.label == "x @ p[name]").count == 3 * MANY


def test_advice_on_layers_is_one_piece():
    f, (params, tokens) = models.transformer(6)
    found = jaxviz.lint(
        f, params, jax.numpy.tile(tokens, 4)
    )  # more tokens, of which what is saved outweighs the weights
    layers, gelu, norm = found[0], found[1], found[2]
    assert layers.rule == "layer-checkpoint"
    assert ", 6 ×: " in layers.head
    assert ", 6 ×: " in gelu.head
    assert "6 × `x + attention(p, layer_norm(x, p[…]))`" in norm.text
    assert "params['layers']" not in norm.text  # arguments are not saved instead


def named_checkpoints(params, x):
    for w in params:
        policy = jax.checkpoint_policies.save_only_these_names("a")
        x = jax.checkpoint(lambda x, w=w: x @ w, policy=policy)(x)
    return x.sum()


def test_policies_made_anew_in_each_layer_are_one():
    w = jax.numpy.ones((8, 8))
    (advice,) = [a for a in jaxviz.lint(named_checkpoints, [w] * 5, w) if a.rule == "checkpoint-without-effect"]
    assert advice.count == 5


def _flat(program):
    f, args = program
    return f, *args
