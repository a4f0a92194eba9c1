"""The report on what a program's checkpoint policies decided."""

import json

import jax
import jax.numpy as jnp
import pytest
import transcripts
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from short_runs import short

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


@pytest.mark.parametrize("n", short([3, 24], [3]))
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


def test_of_checkpoints_in_each_other_the_outermost_decides():
    @jax.checkpoint
    def first(x):
        return jnp.sin(jnp.sin(x))

    @jax.checkpoint
    def second(x):
        return jnp.cos(first(jnp.cos(x)))

    @jax.checkpoint
    def third(x):
        return jnp.sum(second(x))

    notes = "\n".join(jaxviz.policies(third, X).notes)
    assert "The checkpoint of second is inside that of third: the policy of third decides what is saved" in notes
    assert "The checkpoint of first is inside that of third: the policy of third decides what is saved" in notes
    assert "inside that of second: the policy" not in notes


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


@pytest.mark.slow
@transcripts.of("policies")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)
