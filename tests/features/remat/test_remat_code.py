"""Plans as code: pasted into the original source, JAX does what the plan says."""

import importlib.util
import itertools
import linecache
import re
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from short_runs import short
from test_remat_plan import held_by_jax, planned, recomputed

import jaxviz
from benchmarks import models
from jaxviz.features.remat.edits import around
from jaxviz.features.remat.edits import edited as edited_files
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.source import Extent
from jaxviz.features.remat.written import named_at
from jaxviz.report.tables import format_bytes

_NUMBERS = itertools.count()
X = jnp.linspace(0.1, 1.0, 64 * 8).reshape(64, 8)
W = jnp.linspace(-0.5, 0.5, 64).reshape(8, 8)


def loaded(path):
    spec = importlib.util.spec_from_file_location(f"pasted_{next(_NUMBERS)}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # like an import
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def module(tmp_path):
    """Imports source code as a module with its own file."""

    def write(source):
        path = tmp_path / f"model_{next(_NUMBERS)}.py"
        path.write_text(source)
        return loaded(path)

    return write


def edited(plan, f):
    """The source of a function's file with the plan applied."""
    (text,) = plan.written.files.values()
    assert list(plan.written.files) == [f.__code__.co_filename]
    return text


def check(module, f, args, share):
    """Checks the code for a budget that is a fraction of the way from the least bytes to all."""
    least = Search(jaxviz.derive(f, *args), False).least
    whole = jaxviz.plan_remat(f, *args, budget=1.0).everything.nbytes
    plan = planned(f, *args, budget=int(least + share * (whole - least)))
    point = plan.written.trade
    code = plan.code()
    g = getattr(module(edited(plan, f)), f.__name__)
    plain = getattr(module(Path(f.__code__.co_filename).read_text()), f.__name__)
    assert held_by_jax(g, *args) == point.nbytes
    assert recomputed(plain, g, *args) == point.flops
    assert code.startswith(f"# {f.__name__}: peak ")
    assert f"→ {format_bytes(point.saved_nbytes)}, recomputes" in code
    assert jaxviz.residuals(g, *args).saved.nbytes == point.saved_nbytes
    for a, b in zip(jax.tree.leaves(jax.grad(g)(*args)), jax.tree.leaves(jax.grad(f)(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    return plan, code


@pytest.mark.slow
@pytest.mark.parametrize("share", [pytest.param(0.3, marks=pytest.mark.slow(sweep=True)), 0.7])
def test_a_transformer(module, share):
    own = module(Path(models.__file__).read_text())
    params = own.transformer_params(2, width=16, hidden=32)
    plan, code = check(module, own.transformer_loss, (params, jnp.zeros(12, int)), share)
    assert plan.written.trade.nbytes <= plan.budget
    assert re.search(r"\n-    (\w+) = .*(?s:.*)\n\+    \1 = .*checkpoint_name\(", code)
    assert "+@partial(jax.checkpoint, policy=SAVED)\n def transformer_loss(" in code


@pytest.mark.slow
def test_a_loop(module):
    own = module(Path(models.__file__).read_text())
    _, args = models.lstm(1, width=8, length=6)
    _, code = check(module, own.lstm_loss, args, 0.5)
    assert "checkpoint_name(" in code


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


@pytest.mark.slow
@pytest.mark.parametrize("share", short([0.2, 0.5, 0.9], [0.5]))
def test_expressions_of_all_kinds(module, share):
    own = module(SOURCE)
    _, code = check(module, own.loss, (W, X), share)
    for elsewhere in (
        "helper(z",
        "jnp.sin(helper",
        "jnp.tanh(v",
        "jnp.sin(y) @ w",
    ):  # the branches, and the arguments to differentiate
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
    assert '     y += x @ w\n+    y = checkpoint_name(y, "loss_y")\n' in code


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
    """With a budget for two of three values computed on one line, a name can only save all or none."""
    own = module(REPEATED)
    plan, code = check(module, own.loss, ([W, W * 0.5, W + 0.1], X), 0.4)
    assert 0 < len(plan.saved) < 3
    assert plan.written.trade.flops > plan.flops
    assert "# plan.apply can also save values that no name in your source refers to; it has" in code


def test_arguments_that_are_part_of_the_function_are_static(module):
    own = module(
        SMALL.replace("(w, x):", "(w, x, mode, act):").replace("jnp.sin(z", 'act(z if mode == "deep" else 0 * z')
    )
    args = (W, X, "deep", jnp.sin)
    plan = jaxviz.plan_remat(own.loss, *args, budget=0.6)
    assert "+@partial(jax.checkpoint, static_argnums=(2, 3), policy=SAVED)\n" in plan.code()
    g = module(edited(plan, own.loss)).loss
    assert held_by_jax(lambda w, x: g(w, x, *args[2:]), W, X) == plan.written.trade.nbytes


def test_names_that_are_there_are_left_alone(module):
    named = SMALL.replace("y = x @ w", 'y = checkpoint_name(x @ w, "saved_0")').replace(
        "import jax\n", "import jax\nfrom jax.ad_checkpoint import checkpoint_name\n"
    )
    own = module(named)
    _, code = check(module, own.loss, (W, X), 0.6)
    assert '"saved_0"' not in "".join(line for line in code.splitlines() if line.startswith("+SAVED"))


@pytest.mark.slow
def test_what_a_lambda_calls_gets_the_checkpoint(module):
    """If its only argument is the lambda's."""
    own = module(SMALL.replace("(w, x):", "(x, mode, w):"))
    plan = jaxviz.plan_remat(lambda w, x, mode: own.loss(x, mode, w), W, X, "deep", budget=0.6)
    assert "+@partial(jax.checkpoint, static_argnums=(1,), policy=SAVED)\n def loss(x, mode, w):" in plan.code()
    written = module(edited(plan, own.loss))
    assert held_by_jax(lambda w, x: written.loss(x, "deep", w), W, X) == plan.written.trade.nbytes


@pytest.mark.slow
def test_a_function_that_is_no_definitions_is_wrapped_by_hand(module):
    """A diff still names what it saves."""
    own = module(SMALL)
    plan = jaxviz.plan_remat(lambda w, x: own.loss(w, x=x), W, X, budget=0.6)
    (line,) = (
        line for line in plan.code().splitlines() if line.startswith("# Differentiate jax.checkpoint(f, policy=")
    )
    policy = eval(re.search(r"policy=(.*)\) instead of f:", line)[1])
    written = module(edited(plan, own.loss))
    f = jax.checkpoint(lambda w, x: written.loss(w, x=x), policy=policy)
    assert held_by_jax(f, W, X) == plan.written.trade.nbytes
    keyword = module(SMALL.replace("(w, x):", '(w, x, mode="deep"):'))
    code = jaxviz.plan_remat(keyword.loss, W, X, mode="deep", budget=0.6).code()
    assert "# Differentiate jax.checkpoint(partial(loss, mode='deep')" in code
    assert "+@" not in code


@pytest.mark.slow
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
    assert "checkpoint_name(nn." in code or "checkpoint_name(x + nn." in code


def test_without_its_source_there_is_no_diff():
    space = {}
    exec(compile(SMALL, "<nowhere>", "exec"), space)
    code = jaxviz.plan_remat(space["loss"], W, X, budget=0.6).code()
    assert re.search(r"^# loss: peak .*recomputes", code)
    assert (
        "# Differentiate jax.checkpoint(loss) instead of loss: no line of your source can have the checkpoint." in code
    )
    assert "---" not in code


def test_a_cell_of_a_notebook_is_called_a_cell(monkeypatch):
    """With names that are defined in the cells before it."""
    # If other tests have run cells, the module has their notebooks' names.
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    space, file = {}, "/tmp/ipykernel_7/1259.py"
    for name, text in (("/tmp/ipykernel_7/1258.py", SMALL[: SMALL.index("def")]), (file, SMALL[SMALL.index("def") :])):
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec"), space)
    plan = jaxviz.plan_remat(space["loss"], W, X, budget=0.6)
    code = plan.code()
    assert "--- a/cell\n+++ b/cell\n" in code
    assert "import jax\n" not in code
    assert "+from jax.ad_checkpoint import checkpoint_name\n" in code
    assert "ipykernel" not in code
    exec(compile(plan.written.files[file], file, "exec"), space)
    assert held_by_jax(space["loss"], W, X) == plan.written.trade.nbytes


def test_of_names_that_end_together_the_inner_one_is_closed_first(module):
    source = "y = f(x) * g(x @ w)\n"
    file = module(f"f = g = lambda x: x\nx = w = X = 1.0\n{source}".replace("@", "*")).__file__
    spans = [(4, 19, "whole"), (4, 8, "left"), (11, 19, "right")]
    edits = [around(file, (3, a), (3, b), "checkpoint_name(", f', "{name}")') for a, b, name in spans]
    line = 'y = checkpoint_name(checkpoint_name(f(x), "left") * checkpoint_name(g(x * w), "right"), "whole")'
    for order in itertools.permutations(edits):
        (text,) = edited_files(itertools.chain(*order), {}, [(file, None)]).values()
        assert text.splitlines()[-1] == line


@pytest.mark.parametrize(
    ("line", "expression", "made"),
    [
        ("y = (x @ w).T", "x @ w", 'y = checkpoint_name(x @ w, "a").T'),
        ("y = -(é @ w)", "é @ w", 'y = -checkpoint_name(é @ w, "a")'),
        ("y = f(x @ w)", "x @ w", 'y = f(checkpoint_name(x @ w, "a"))'),
        ("y = f (x @ w)", "x @ w", 'y = f (checkpoint_name(x @ w, "a"))'),
        ("y = x if (x @ w) else w", "x @ w", 'y = x if checkpoint_name(x @ w, "a") else w'),
        ("y = (x @ w, 1)", "x @ w", 'y = (checkpoint_name(x @ w, "a"), 1)'),
    ],
)
def test_brackets_around_an_expression_become_those_of_its_name(tmp_path, line, expression, made):
    path = tmp_path / f"model_{next(_NUMBERS)}.py"
    path.write_text(f"{line}\n", encoding="utf-8")
    start = len(line[: line.index(expression)].encode())
    extent = Extent(str(path), 1, start, 1, start + len(expression.encode()))
    (text,) = edited_files(named_at(extent, "a"), {}, [(str(path), None)]).values()
    assert text == f"from jax.ad_checkpoint import checkpoint_name\n{made}\n"
