"""The report on what a program's checkpoint policies decided."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import jaxviz
from benchmarks import models
from jaxviz.analysis.grouping import grouped
from jaxviz.report.report import SHOWN

X = jnp.linspace(0.1, 1.0, 64 * 8).reshape(64, 8)
W = jnp.linspace(-0.5, 0.5, 64).reshape(8, 8)


def block(w, x):
    return jnp.sin(checkpoint_name(x @ w, "product"))


def layers(policy, n=3):
    saves = jax.checkpoint(block, policy=policy)

    def loss(w, x):
        for _ in range(n):
            x = saves(w, x)
        return x.sum()

    return loss


def fates(report):
    return [(v.expression, v.fate, v.nbytes) for v in report.values]


def test_each_value_has_its_decision_and_checkpoints_that_are_alike_are_one():
    report = jaxviz.policies(layers(jax.checkpoint_policies.dots_saveable), W, X)
    assert len(report.checkpoints) == 3
    # `x` is not differentiated, so the first block's value has other readers than the others'.
    assert sum(g.count for g in report.groups) == 3
    group = max(report.groups, key=lambda g: g.count)
    assert group.count >= 2
    assert group.report.policy == "dots_saveable"
    assert group.report.function == "block"
    assert ("dot_general", "saved", 2048) in fates(group.report)
    assert ("cos", "recomputed", 2048) in fates(group.report)
    assert ("w", "already an input", 256) in fates(group.report)
    assert ("sin", "not needed", 2048) in fates(group.report)
    assert all(v.location.file == __file__ for v in group.report.values)
    text = str(report)
    assert "3 checkpoints, 3 values saved 6.0 KiB" in " ".join(text.split())
    assert f"it saves {report.residuals.saved}" in " ".join(text.split())


def test_what_is_kept_is_what_the_gradient_keeps():
    """Saved values, and the inputs of each block."""
    report = jaxviz.policies(layers(jax.checkpoint_policies.save_only_these_names("product")), W, X)
    saved = sum(v.nbytes for c in report.checkpoints for v in c.values if v.fate == "saved")
    assert saved == 3 * X.nbytes
    assert report.residuals.nbytes == saved + W.nbytes + 3 * X.nbytes


def test_the_blocks_of_a_transformer_are_one_group():
    f, args = models.remat_transformer(4)
    report = jaxviz.policies(f, *args)
    (group,) = report.groups
    assert group.count == 4
    lines = str(report).splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert lines[3].startswith("4 times checkpoint of layer (models.py:")
    assert len(lines) < 2 * SHOWN + 10  # some expressions take two lines
    assert any(line.startswith("and ") and " more rows of " in line for line in lines)


@pytest.mark.parametrize("n", [3, 24])
def test_layers_in_one_checkpoint_are_one_row_for_each_expression(n):
    f, args = models.transformer(n)
    report = jaxviz.policies(jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable), *args)
    (checkpoint,) = report.checkpoints
    table = checkpoint.values_table()
    assert table.rows[0][0] == "saved"
    kinds = [row[1].split(" × ") for row in table.rows]
    assert sum(int(kind[0]) if len(kind) > 1 else 1 for kind in kinds) == len(checkpoint.values)
    assert any(row[4] == f"`params['layers'][0…{n - 1}]['q']`" for row in table.rows)
    assert any(row[4].startswith("`jax.nn.gelu(") and "mul, " in row[4] for row in table.rows)
    groups = grouped(checkpoint.values, lambda v: (v.fate, v.repeats, v.type, v.location))
    sizes = sorted((sum(v.nbytes for v in g) for g in groups if g[0].fate != "not needed"), reverse=True)
    assert sum(sizes[:40]) >= 0.95 * sum(sizes)
    assert table.more(20) in " ".join(str(checkpoint).split())


def test_a_checkpoint_in_a_scan_says_how_often_it_runs():
    _, args = models.lstm(1)
    report = jaxviz.policies(lambda *a: models.lstm_loss(*a, wrap=jax.checkpoint), *args)
    assert [c.runs for c in report.checkpoints] == [20]
    assert "20 times in a scan, policy nothing_saveable, the default" in " ".join(str(report).split())
    total = 20 * sum(v.nbytes for v in report.checkpoints[0].values if v.fate == "recomputed")
    assert f"recomputed {total / 1024:.1f} KiB" in report.summary


@pytest.mark.parametrize("f", [jnp.sin, lambda x: lax.fori_loop(0, 3, lambda _, x: jnp.sin(x), x)])
def test_no_checkpoint_is_said_plainly(f):
    report = jaxviz.policies(lambda x: f(x).sum(), X)
    assert report.groups == ()
    assert "has no checkpoint, so its gradient saves every value that the backward pass reads" in " ".join(
        str(report).split()
    )


def test_a_checkpoint_that_no_tangent_goes_through():
    def f(w, x):
        return (w * jax.checkpoint(jnp.sin)(x)).sum()

    report = jaxviz.policies(f, X, X)
    assert report.checkpoints == ()
    assert "No tangent goes through its checkpoints." in str(report)


def test_nested_checkpoints_say_whose_policy_decides():
    def inner(x):
        return jnp.sin(jnp.sin(x))

    def outer(x):
        return jnp.cos(jax.checkpoint(inner, policy=jax.checkpoint_policies.everything_saveable)(x))

    report = jaxviz.policies(lambda x: jax.checkpoint(outer)(x).sum(), X)
    assert [c.function for c in report.checkpoints] == ["outer"]
    assert {v.fate for v in report.checkpoints[0].values if v.equation is not None} == {"recomputed", "not needed"}
    (note,) = report.notes
    assert note.startswith("The checkpoint of inner is inside that of outer: the policy of outer decides")
    assert len(jaxviz.residuals(lambda x: jax.checkpoint(outer)(x).sum(), X)) == 1  # as the report says


def test_names_that_match_nothing_are_noted():
    report = jaxviz.policies(layers(jax.checkpoint_policies.save_only_these_names("prodct")), W, X)
    assert "lists 'prodct', which no checkpoint_name in it defines" in " ".join(str(report).split())


def test_names_of_a_policy_that_several_checkpoints_share():
    policy = jax.checkpoint_policies.save_only_these_names("a", "b")
    first, second = (
        jax.checkpoint(lambda x, n=n: jnp.sin(checkpoint_name(jnp.sin(x), n)), policy=policy) for n in "ab"
    )
    assert not any("lists" in note for note in jaxviz.policies(lambda x: second(first(x)).sum(), X).notes)


def test_names_that_jax_ignores():
    """What `jax.vjp` saves is the oracle: it saves the value with the name, too."""
    maker = jax.checkpoint_policies.save_anything_except_these_names

    def f(*names):
        return jax.checkpoint(lambda x: (checkpoint_name(jnp.exp(x), "h") * jnp.cos(x)).sum(), policy=maker(*names))

    saved = [len(jax.tree.leaves(jax.vjp(f(*names), X)[1])) for names in (["h"], [])]
    assert saved[0] == saved[1] > 1
    (note,) = (n for n in jaxviz.policies(f("h"), X).notes if "ignores" in n)
    assert note.startswith(
        "JAX ignores the names that save_anything_except_these_names is given: the policy of <lambda>"
    )
    assert note.endswith("saves every value that it is asked about, 'h' too.")
    assert note in jaxviz.residuals(f("h"), X).notes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("around", "inside", "has_effect"),
    [(True, False, False), (False, True, True), (True, True, False)],
    ids=["around the loop", "around its body", "around both"],
)
def test_a_checkpoint_around_a_loop_that_leaves_the_peak_where_it_was(around, inside, has_effect):
    """XLA's temporary memory is the oracle."""

    def loss(around, inside):
        step = lambda x, w: (jnp.sin(jnp.tanh(x @ w)) * x, None)
        step = jax.checkpoint(step, prevent_cse=False) if inside else step
        loop = lambda ws, x: lax.scan(step, x, ws)[0]
        return lambda ws, x: jnp.sum((jax.checkpoint(loop) if around else loop)(ws, x))

    args = jnp.ones((16, 8, 8)), jnp.ones((512, 8))
    compiled = lambda *how: jax.jit(jax.grad(loss(*how))).lower(*args).compile().memory_analysis().temp_size_in_bytes
    without = (False, inside) if around else (False, False)
    assert (compiled(around, inside) < 0.9 * compiled(*without)) == has_effect
    notes = [n for n in jaxviz.policies(loss(around, inside), *args).notes if "peak" in n]
    assert len(notes) == (not has_effect)
    assert has_effect or "leaves the peak where it was" in notes[0]


def test_the_report_is_plain_data_and_html():
    report = jaxviz.policies(layers(jax.checkpoint_policies.dots_saveable), W, X)
    data = json.loads(json.dumps(report.to_dict()))
    assert sum(c["count"] for c in data["checkpoints"]) == 3
    assert data["checkpoints"][0]["policy"] == "dots_saveable"
    assert {"expression", "type", "nbytes", "decision"} <= set(data["checkpoints"][0]["values"][0])
    page = report._repr_html_()
    assert page.count("<table>") == len(report.groups)
    assert (
        "&lt;"
        in jaxviz.policies(
            lambda w, x: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum(), W, X, argnums=1
        )._repr_html_()
    )
