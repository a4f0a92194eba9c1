"""Plans of functions with checkpoints: the diff changes or removes these."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from short_runs import short
from test_diff import BLOCK, HEAD, applied, arguments, module  # noqa: F401

import jaxviz
from jaxviz.derivation import derive
from jaxviz.features.remat.call import Call
from jaxviz.features.remat.planning import Planning
from jaxviz.features.remat.search import Search

LOOP = """
def loss(params, x):
    for i in range(3):
        p = jax.tree.map(lambda w: w[i], params)
        x = block(p, x)
    return jnp.mean(x**2)
"""
SCAN = """
def loss(params, x):
    def step(x, p):
        return block(p, x), None
    x, _ = lax.scan(step, x, params)
    return jnp.mean(x**2)
"""
DOTS = "policy=jax.checkpoint_policies.dots_saveable"
SMALL = """
def loss(w, x):
    y = x @ w
    y += jnp.sin(y @ w)
    z = jnp.exp(y).reshape(
        -1, 8,
    )
    return jnp.sum(jnp.sin(z @ w) @ w)
"""
PROGRAMS = {
    "decorator": (BLOCK.replace("def block", "@jax.checkpoint\ndef block") + LOOP, "@partial(jax.checkpoint, policy=SAVED)\n def block"),
    "decorator with a policy": (
        "from functools import partial\n" + BLOCK.replace("def block", f"@partial(jax.checkpoint, {DOTS})\ndef block") + LOOP,
        "@partial(jax.checkpoint, policy=SAVED)\n def block",
    ),
    "call": (BLOCK + LOOP.replace("block(", f"jax.checkpoint(block, {DOTS}, prevent_cse=False)("), "x = jax.checkpoint(block, policy=SAVED, prevent_cse=False)(p, x)"),
    "assigned": (
        f"{BLOCK}\nsaved_block = jax.checkpoint(block, prevent_cse=False)\n" + LOOP.replace("block(", "saved_block("),
        "saved_block = jax.checkpoint(block, prevent_cse=False, policy=SAVED)",
    ),
    "body": (BLOCK + SCAN.replace("scan(step", "scan(jax.checkpoint(step)"), "lax.scan(jax.checkpoint(step, policy=SAVED), x, params)"),
    "lambda": (
        BLOCK + SCAN.replace("scan(step", "scan(jax.checkpoint(lambda x, p: (block(p, x), None))"),
        "lax.scan(jax.checkpoint(lambda x, p: (block(p, x), None), policy=SAVED), x, params)",
    ),
    "in a body": (BLOCK + SCAN.replace("block(p, x)", f"jax.checkpoint(block, {DOTS})(p, x)"), ""),
    "in a checkpoint": (
        BLOCK.replace("def block", "@jax.checkpoint\ndef block") + LOOP.replace("def loss", "@jax.checkpoint\ndef loss"),
        "",
    ),
}  # fmt: skip


def holds(own, plan, args, module, folder):  # noqa: F811
    """Applies the diff of a plan, and compares the figures of the result with the plan's."""
    code = plan.code()
    want = jax.jit(jax.grad(own.loss))(*args)
    applied("---" + code.partition("---")[2], folder)
    edited = module(Path(own.__file__).read_text())
    found, promised = Search(derive(edited.loss, *args), False).written, plan.written.trade
    assert (found.nbytes, found.flops) == (promised.nbytes, promised.flops)
    assert found.peak_nbytes == pytest.approx(promised.peak_nbytes, rel=1e-3)
    for a, b in zip(jax.tree.leaves(jax.jit(jax.grad(edited.loss))(*args)), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return code


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(PROGRAMS), 3))
def test_a_checkpoint_gets_another_policy_at_its_place(module, name, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    source, line = PROGRAMS[name]
    own = module(HEAD + source)
    plan = jaxviz.plan_remat(own.loss, *arguments(), work="25%")
    assert plan.regions
    code = holds(own, plan, arguments(), module, tmp_path)
    assert line in code.replace("\n+", "\n")
    assert "Remove the checkpoint" not in code


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_checkpoints_that_a_plan_does_without_are_taken_away(module, name, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    source, _ = PROGRAMS[name]
    own = module(HEAD + source)
    derivation = derive(own.loss, *arguments())
    call = Call.planned(derivation)
    search = Search(derivation, False)
    plan = Planning(search, call).plan("", search.opened)
    code = holds(own, plan, arguments(), module, tmp_path)
    assert not any("checkpoint" in line for line in code.splitlines() if line.startswith("+") and "+++" not in line)
    assert not any(
        e.primitive.name in ("checkpoint", "remat2") for _, e in jaxviz.trace(plan.apply(own.loss))(*arguments()).walk()
    )


X = jnp.linspace(0.1, 1.0, 64 * 8).reshape(64, 8)
W = jnp.linspace(-0.5, 0.5, 64).reshape(8, 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "line"),
    [
        (SMALL, "\n@partial(jax.checkpoint, policy=SAVED)\n def loss"),
        (SMALL.replace("def loss", "@jax.checkpoint\ndef loss"), "\n@partial(jax.checkpoint, policy=SAVED)\n def loss"),
        (SMALL.replace("def loss", "def base") + "\nloss = lambda w, x: base(w, x) * 2.0\n", "jax.checkpoint(lambda w, x: base(w, x) * 2.0, policy=SAVED)"),
        (SMALL.replace("def loss", "def base") + "\nloss = jax.checkpoint(base)\n", "loss = jax.checkpoint(base, policy=SAVED)"),
    ],
)  # fmt: skip
def test_a_whole_function(module, source, line, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    own = module(HEAD + source)
    plan = jaxviz.plan_remat(own.loss, W, X, budget=0.6)
    code = holds(own, plan, (W, X), module, tmp_path)
    assert line in code.replace("\n+", "\n")


def test_under_jit_it_stands_inside(module, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    own = module(HEAD + SMALL.replace("def loss", "@jax.jit\ndef loss"))
    plan = jaxviz.plan_remat(own.loss, W, X, budget=0.6)
    assert " @jax.jit\n+@partial(jax.checkpoint, policy=SAVED)\n def loss(w, x):" in plan.code()
    applied("---" + plan.code().partition("---")[2], tmp_path)
    edited = module(Path(own.__file__).read_text())
    assert jaxviz.residuals(edited.loss, W, X, argnums=0).nbytes == plan.written.trade.nbytes
    assert jaxviz.memory(edited.loss, W, X).peak_nbytes == plan.written.trade.peak_nbytes


@pytest.mark.slow
def test_a_checkpoint_that_is_not_found_is_to_be_taken_away(module):  # noqa: F811
    around = "\naround = lambda f: jax.checkpoint(f)\n"
    # The gradient of all layers determines the peak, whatever the used layer saves.
    one = "def loss(params, x):\n    return jnp.sum(around(block)(jax.tree.map(lambda w: w[0], params), x))\n"
    own = module(f"{HEAD}{BLOCK}{around}\n{one}")
    code = jaxviz.plan_remat(own.loss, *arguments(layers=6)).code()
    assert re.search(
        r"# Remove the checkpoint of block, model_\d+\.py:\d+: without it the peak is no higher\.\n# These are the figures of plan\.apply,",
        code,
    )
    assert "as it is written" not in code

    own = module(HEAD + BLOCK + around + LOOP.replace("block(", "around(block)(").replace("range(3)", "range(6)"))
    code = jaxviz.plan_remat(own.loss, *arguments(layers=6)).code()
    assert "The changes that could be written in your source would raise the peak." in code
    assert "---" not in code
