"""Plans as code: pasted into the source that it was made from, JAX does what the code says."""

import importlib.util
import itertools
import json
import linecache
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_remat_plan import held_by_jax, recomputed

import jaxviz
from benchmarks import models
from jaxviz.features.remat.code import CodeRow, code_text, marked
from jaxviz.report.tables import format_bytes

_NUMBERS = itertools.count()
X = jnp.linspace(0.1, 1.0, 64 * 8).reshape(64, 8)
W = jnp.linspace(-0.5, 0.5, 64).reshape(8, 8)


def loaded(path):
    spec = importlib.util.spec_from_file_location(f"pasted_{next(_NUMBERS)}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def module(tmp_path):
    """From source to a module that is in a file of its own."""

    def write(source):
        path = tmp_path / f"model_{next(_NUMBERS)}.py"
        path.write_text(source)
        return loaded(path)

    return write


def paste(code, source, before=lambda text: text):
    """The source with the lines of a plan's code in the places of those that they say they were, and the checkpoint at its end."""
    head, *blocks, policy = code.split("\n\n")
    assert head.startswith("import jax\nfrom jax.ad_checkpoint import checkpoint_name")
    for block in blocks:
        lines = block.split("\n")
        was = [line.removeprefix("# was:").removeprefix(" ") for line in lines if line.startswith("# was:")]
        now = [line for line in lines if not line.startswith("# ")]
        if was:
            assert source.count("\n".join(was)) == 1
            source = source.replace("\n".join(was), "\n".join(now))
    return f"{head}\n{before(source).replace('from __future__ import annotations', '')}\n{policy}\n"


def check(module, f, args, share, before=lambda text: text):
    """What the code comes to, for a budget that is a share of the way from the least to all."""
    least = jaxviz.plan_remat(f, *args, budget=0.999)._graph.least
    whole = jaxviz.plan_remat(f, *args, budget=1.0).everything.nbytes
    plan = jaxviz.plan_remat(f, *args, budget=int(least + share * (whole - least)))
    point = plan.code_point
    code = plan.code()
    g = getattr(module(paste(code, Path(f.__code__.co_filename).read_text(), before)), f.__name__)
    plain = getattr(module(before(Path(f.__code__.co_filename).read_text())), f.__name__)
    assert held_by_jax(g, *args) == point.nbytes
    assert recomputed(plain, g, *args) == point.flops
    assert f"# {f.__name__}: keeps {format_bytes(point.nbytes)} for the backward pass" in code
    for a, b in zip(jax.tree.leaves(jax.grad(g)(*args)), jax.tree.leaves(jax.grad(f)(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    return plan, code


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_a_transformer(module, share):
    own = module(Path(models.__file__).read_text())
    params = own.transformer_params(2, width=16, hidden=32)
    plan, code = check(module, own.transformer_loss, (params, jnp.zeros(12, int)), share)
    assert plan.code_point.nbytes <= plan.budget
    assert re.search(r"# was:     (\w+) = .*\n    \1 = .*checkpoint_name\(", code)
    assert "2 values" in code


def test_a_loop(module):
    own = module(Path(models.__file__).read_text())
    _, args = models.lstm(1, width=8, length=6)
    _, code = check(module, own.lstm_loss, args, 0.5)
    assert "6 values" in code


SOURCE = """
import jax
import jax.numpy as jnp
from jax import lax

def helper(y, w):
    return jnp.sin(y) @ w

def loss(w, x):
    é = jnp.tanh(x @ w) * 2.0  # two that start together
    y = (jnp.exp(é)
         .reshape(8, -1)
         .T @ w)
    y += jnp.cos(y)
    for k in range(2):
        y = helper(y, w) + k * helper(
            y * y,
            w,
        )
    z = jax.vmap(lambda row: jnp.sin(row) * jnp.exp(row))(y)
    z = lax.cond(z[0, 0] > 0, lambda z: jnp.sin(helper(z, w)), lambda z: z, z)
    slope = jax.grad(lambda v: jnp.sum(jnp.tanh(v) ** 3))(z)
    return jnp.sum(jax.nn.gelu(z) * slope)
"""


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_expressions_of_all_kinds(module, share):
    own = module(SOURCE)
    _, code = check(module, own.loss, (W, X), share)
    for elsewhere in (
        "helper(z",
        "jnp.sin(helper",
        "jnp.tanh(v",
        "jnp.sin(y) @ w",
    ):  # branches, and what is differentiated
        assert f"checkpoint_name({elsewhere}" not in code


SMALL = """
import jax
import jax.numpy as jnp

def loss(w, x):
    y = x @ w
    y += jnp.sin(y @ w)
    z = jnp.exp(y).reshape(
        -1, 8,
    )
    return jnp.sum(jnp.sin(z @ w) @ w)
"""


def test_a_statement_that_adds_is_followed_by_a_line(module):
    own = module("""
import jax.numpy as jnp

def loss(w, x):
    y = jnp.sin(x @ w) @ w
    y += x @ w
    return jnp.sum(jnp.sin(y) @ w * y)
""")
    _, code = check(module, own.loss, (W, X), 0.3)
    assert '    y += x @ w\n    y = checkpoint_name(y, "saved_' in code


REPEATED = """
import jax.numpy as jnp

def block(w, x):
    return jnp.sin(x @ w)

def loss(ws, x):
    for w in ws:
        x = block(w, x)
    return jnp.sum(x)
"""


def test_a_name_that_stands_for_more_than_the_plan_saves_says_so(module):
    """With room for two of three values that one line makes, a name can only save all or none."""
    own = module(REPEATED)
    plan, code = check(module, own.loss, ([W, W * 0.5, W + 0.1], X), 0.4)
    assert 0 < len(plan.saved) < 3
    assert plan.code_point.flops > plan.flops
    assert "# plan.apply, which can save what no name in the source tells apart: keeps" in code


def test_checkpoints_that_are_there_are_to_be_taken_away(module):
    own = module(SMALL.replace("def loss", "@jax.checkpoint\ndef loss"))
    f = lambda w, x: own.loss(w, x)
    code = jaxviz.plan_remat(f, W, X, budget=0.6).code()
    assert "# Take away the jax.checkpoint that is there already: this one stands in its place." in code
    assert code.endswith("\nf = jax.checkpoint(f, policy=policy)")


def test_arguments_that_are_part_of_the_function_are_static(module):
    own = module(
        SMALL.replace("(w, x):", "(w, x, mode, act):").replace("jnp.sin(z", 'act(z if mode == "deep" else 0 * z')
    )
    args = (W, X, "deep", jnp.sin)
    plan = jaxviz.plan_remat(own.loss, *args, budget=0.6)
    assert plan.code().endswith("static_argnums=(2, 3))")
    g = module(paste(plan.code(), Path(own.__file__).read_text())).loss
    assert held_by_jax(lambda w, x: g(w, x, *args[2:]), W, X) == plan.code_point.nbytes


def test_names_that_are_there_are_left_alone(module):
    named = SMALL.replace("y = x @ w", 'y = checkpoint_name(x @ w, "saved_0")').replace(
        "import jax\n", "import jax\nfrom jax.ad_checkpoint import checkpoint_name\n"
    )
    own = module(named)
    _, code = check(module, own.loss, (W, X), 0.6)
    assert 'save_only_these_names("saved_1"' in code


def test_what_a_library_makes_inside_is_named_where_it_is_called(module):
    pytest.importorskip("flax")
    own = module("""
import flax.linen as nn
import jax.numpy as jnp

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = x + nn.Dense(8)(nn.gelu(nn.LayerNorm()(x)))
        return x

NET = Net()

def loss(params, x):
    return jnp.sum(NET.apply(params, x) ** 2)
""")
    params = own.NET.init(jax.random.key(0), X)
    _, code = check(module, own.loss, (params, X), 0.5)
    assert "site-packages" not in code
    assert "checkpoint_name(" in code.split("\n\n", 2)[2]


def test_without_its_source_the_lines_are_named():
    space = {}
    exec(compile(SMALL, "<nowhere>", "exec"), space)
    plan = jaxviz.plan_remat(space["loss"], W, X, budget=0.6)
    code = plan.code()
    assert "its source is not at hand." in code
    assert re.search(
        r'# <nowhere>:\d+: the result of \w+, f32\[64,8\], is "saved_0"\n... = checkpoint_name\(..., "saved_0"\)', code
    )


def test_a_cell_of_a_notebook_is_called_a_cell():
    space, file = {}, "/tmp/ipykernel_7/123.py"
    linecache.cache[file] = (len(SMALL), None, SMALL.splitlines(True), file)
    exec(compile(SMALL, file, "exec"), space)
    code = jaxviz.plan_remat(space["loss"], W, X, budget=0.6).code()
    assert re.search(r"^# cell:\d+: the result of", code, re.MULTILINE)
    assert "ipykernel" not in code


def test_the_text_is_made_of_plain_rows():
    source = "    y = f(x) * g(x @ w)"
    rows = [
        CodeRow("saved_0", "m.py", 3, "mul", "f32[8]", 1, source, 8, 23),
        CodeRow("saved_1", "m.py", 3, "tanh", "f32[8]", 1, source, 8, 12),
        CodeRow("saved_2", "m.py", 3, "sin", "f32[8]", 2, source, 15, 23),
    ]
    after = (
        '    y = checkpoint_name(checkpoint_name(f(x), "saved_1") * checkpoint_name(g(x @ w), "saved_2"), "saved_0")'
    )
    assert marked(source, rows) == after
    assert marked(source, rows[::-1]) == after
    assert (
        code_text("loss", [CodeRow(**r.to_dict()) for r in rows], ["a note"], (1,))
        == f"""\
import jax
from jax.ad_checkpoint import checkpoint_name

# a note

# m.py:3: the result of mul, f32[8], is "saved_0"
# m.py:3: the result of tanh, f32[8], is "saved_1"
# m.py:3: the result of sin, f32[8], 2 values, is "saved_2"
# was: {source}
{after}

policy = jax.checkpoint_policies.save_only_these_names("saved_0", "saved_1", "saved_2")
loss = jax.checkpoint(loss, policy=policy, static_argnums=(1,))"""
    )
    assert json.loads(json.dumps([r.to_dict() for r in rows])) == [r.to_dict() for r in rows]
    assert code_text("<lambda>", [], []).endswith("\n\nf = jax.checkpoint(f)")
