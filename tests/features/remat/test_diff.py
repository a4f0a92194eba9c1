"""Plans around calls and scan bodies: with the diff applied, JAX does what the plan says."""

import importlib.util
import itertools
import linecache
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from short_runs import short
from test_remat_plan import held_by_jax

import jaxviz
from jaxviz.derivation import derive
from jaxviz.features.remat import diff
from jaxviz.features.remat.call import Call
from jaxviz.features.remat.diff import _Ways
from jaxviz.features.remat.planning import best_of_all
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.written import Written

_NUMBERS = itertools.count()
HEAD = """
import jax
import jax.numpy as jnp
import jax.numpy as jnp
from jax import lax
"""
BLOCK = """
def attention(p, x):
    q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    probs = jax.nn.softmax(q @ k.swapaxes(-1, -2), -1)
    return probs @ v

def block(p, x):
    x = x + attention(p, x)
    h = jnp.tanh(x @ p["w1"])
    return x + jnp.sin(h * h) @ p["w2"]
"""
PROGRAMS = {
    "scanned": HEAD
    + BLOCK
    + """
def loss(params, x):
    def step(x, p):
        return block(p, x), None
    x, _ = lax.scan(step, x, params)
    return jnp.mean(x**2)
""",
    "unrolled": HEAD
    + BLOCK
    + """
def loss(params, x):
    for i in range(3):
        p = jax.tree.map(lambda w: w[i], params)
        x = block(p, x)
    return jnp.mean(x**2)
""",
    "two_calls_in_a_line": HEAD
    + BLOCK
    + """
def loss(params, x):
    at = lambda i: jax.tree.map(lambda w: w[i], params)
    x = block(at(1), block(at(0), x)) + block(at(2), x); é = x
    return jnp.mean(é**2)
""",
    "no_import_of_jax": """
from jax import lax, nn
import jax.numpy as jnp

def loss(params, x):
    w = params["w1"][0] @ params["w2"][0]
    def body(i, x):
        h = nn.gelu(x @ w)
        return x + jnp.sin(h) * h
    return jnp.mean(lax.fori_loop(0, 3, body, x) ** 2)
""",
    "methods": HEAD
    + BLOCK
    + """
class Layer:
    def __init__(self, p):
        self.p = p
    def mix(self, x):
        h = jnp.tanh(x @ self.p["w1"])
        return x + jnp.sin(h * h) @ self.p["w2"]

def loss(params, x):
    for i in range(3):
        layer = Layer(jax.tree.map(lambda w: w[i], params))
        x = layer.mix(
            x
        )
    return jnp.mean(x**2)
""",
}


PROGRAMS["no end of the last line"] = PROGRAMS["scanned"].rstrip("\n")


def arguments(width=16, hidden=64, rows=32, layers=3):
    shapes = {
        "q": (width, width),
        "k": (width, width),
        "v": (width, width),
        "w1": (width, hidden),
        "w2": (hidden, width),
    }
    key = jax.random.key(0)
    params = {name: jax.random.normal(key, (layers, *s)) * 0.1 for name, s in shapes.items()}
    return params, jax.random.normal(key, (rows, width))


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Imports source code as a module with its own file."""

    def write(source):
        path = tmp_path / f"model_{next(_NUMBERS)}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, made)  # like an import
        spec.loader.exec_module(made)
        return made

    return write


def applied(diff, folder):
    """The files after `git apply`, which applies the diff as it is."""
    subprocess.run(["git", "apply", "--check", "-"], input=diff + "\n", text=True, cwd=folder, check=True)
    subprocess.run(["git", "apply", "-"], input=diff + "\n", text=True, cwd=folder, check=True)


BOUNDS = [{"work": "100%"}, {"work": "5%"}, {}]
SHORT = {"scanned": BOUNDS[1:], "unrolled": BOUNDS[2:], "methods": BOUNDS[:1], "two_calls_in_a_line": BOUNDS[:1]}
"""The budgets that the short tests use for a program, if not just the second."""


def with_bounds(name):
    return [
        pytest.param(name, bound, marks=[pytest.mark.slow(sweep=True)] * (bound not in SHORT.get(name, BOUNDS[1:2])))
        for bound in BOUNDS
    ]


@cache
def wanted(name):
    """The gradient of a program according to JAX."""
    made = {}
    exec(PROGRAMS[name], made)
    return jax.jit(jax.grad(made["loss"]))(*arguments())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bound"), [p for name in PROGRAMS for p in with_bounds(name)])
def test_the_code_keeps_what_it_promised(module, name, bound, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = module(PROGRAMS[name])
    args = arguments()
    plan = jaxviz.plan_remat(own.loss, *args, **bound)
    assert plan.regions
    assert plan.peak_nbytes < plan.before.peak_nbytes
    want = wanted(name)
    assert held_by_jax(plan.apply(own.loss), *args) == plan.nbytes
    got = jax.jit(jax.grad(plan.apply(own.loss)))(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    promised = plan.written.trade
    applied(plan.code().partition("---")[1] + plan.code().partition("---")[2], tmp_path)
    edited = module(Path(own.__file__).read_text())
    found = Search(derive(edited.loss, *args), False)
    assert found.written.nbytes == promised.nbytes
    assert found.written.flops == promised.flops
    assert found.written.peak_nbytes == pytest.approx(promised.peak_nbytes, rel=1e-3)
    for a, b in zip(jax.tree.leaves(jax.jit(jax.grad(edited.loss))(*args)), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", short(["unrolled", "methods"], ["methods"]))
def test_a_checkpoint_in_a_branch_is_not_undone(module, name, tmp_path, monkeypatch):
    """With the diff applied, JAX saves what the plan does, and the three numbers that tell which branch is taken."""
    monkeypatch.chdir(tmp_path)
    own = module(PROGRAMS[name])
    args = arguments(rows=256)
    plan = jaxviz.plan_remat(own.loss, *args, work="100%")
    want = jax.grad(own.loss)(*args)
    code, promised = plan.code(in_branches=True), plan.written.trade
    applied(code.partition("---")[1] + code.partition("---")[2], tmp_path)
    pasted = module(Path(own.__file__).read_text()).loss
    compiled = lambda f: jax.jit(jax.grad(f)).lower(*args).compile()
    written = compiled(own.loss).memory_analysis().temp_size_in_bytes
    for f, nbytes in ((plan.apply(own.loss, in_branches=True), plan.nbytes), (pasted, promised.nbytes)):
        if jax.__version_info__ < (0, 12):  # it saves the operands of a branch twice, and keeps the checkpoint
            assert held_by_jax(f, *args) == nbytes + 3 * 4
        made = compiled(f)
        assert made.memory_analysis().temp_size_in_bytes < 0.7 * written  # 97 % or more without the checkpoint
        for a, b in zip(jax.tree.leaves(made(*args)), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


BRANCHED = {
    "a call": ("", "jax.checkpoint(block)", "+        x = in_a_branch(jax.checkpoint(block"),
    "a decorator": ("@jax.checkpoint\n", "block", "+@in_a_branch\n @jax.checkpoint\n def block("),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", BRANCHED)
def test_a_checkpoint_that_is_there_gets_into_a_branch_if_that_holds(module, place, tmp_path, monkeypatch):
    decorator, called, written = BRANCHED[place]
    monkeypatch.chdir(tmp_path)
    own = module(
        f"""import jax
import jax.numpy as jnp

{decorator}def block(w, x):
    return x + jnp.tanh(jnp.sin(x @ w) @ w)

def loss(ws, x):
    for w in ws:
        x = {called}(w, x)
    return jnp.sum(x)
"""
    )
    args = [jnp.ones((16, 16))] * 4, jnp.ones((512, 16))
    plan = jaxviz.plan_remat(own.loss, *args, memory="1TiB")
    trial = next(t for t in plan._search.under_policies if t.form.regions == tuple(plan._search.context.written))
    plan = replace(plan, trial=trial, after=trial.trade)
    assert "in_a_branch" not in plan.code()
    found = plan.verify()
    if found.holds_in_branches:  # with JAX 0.10, but not with 0.12
        assert plan.summary.split(": ")[0].endswith(
            "with each checkpoint in a branch, since XLA on cpu undoes it elsewhere"
        )
        code = plan.code()
        assert written in code
        applied(code.partition("---")[1] + code.partition("---")[2], tmp_path)
        edited = module(Path(own.__file__).read_text())
        compiled = jax.jit(jax.grad(edited.loss)).lower(*args).compile().memory_analysis()
        assert compiled.temp_size_in_bytes < 0.8 * found.before.temporaries


@pytest.mark.slow
def test_names_are_words(module):
    plan = jaxviz.plan_remat(module(PROGRAMS["scanned"]).loss, *arguments(), work="5%")
    names = re.findall(r'checkpoint_name\(.*, "(\w+)"\)', plan.code())
    assert "attention_probs" in names or "block_h" in names or "block_x" in names
    assert not any(n.startswith("jaxviz") for n in names)


@pytest.mark.slow
def test_a_file_that_has_changed_is_not_edited(module):
    own = module(PROGRAMS["scanned"])
    plan = jaxviz.plan_remat(own.loss, *arguments(), work="5%")
    with open(own.__file__, "a") as f:
        f.write("# one more line\n")
    assert re.fullmatch(
        r"# .*model_\d+\.py has changed since it was imported: import it again, and plan again\.", plan.code()
    )


@pytest.mark.slow
def test_what_stands_in_a_library_is_said(module):
    own = module(PROGRAMS["scanned"])
    with LibrarysFile(own.__file__):
        plan = jaxviz.plan_remat(own.loss, *arguments(), work="5%")
        assert "No checkpoint can be written around " in plan.code()


class LibrarysFile:
    """Within it, a file counts as a library's."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        jaxviz.own_code(exclude=[self.file])

    def __exit__(self, *_):
        jaxviz.own_code()


LIBRARIES = {
    "linen": """
import flax.linen as nn
import jax
import jax.numpy as jnp
import jax.numpy as jnp

class Block(nn.Module):
    hidden: int
    @nn.compact
    def __call__(self, x):
        h = nn.tanh(nn.Dense(self.hidden)(nn.LayerNorm()(x)))
        return x + nn.Dense(x.shape[-1])(jnp.sin(h) * h)

class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        for i in range(3):
            x = Block(64, name=f"layer_{i}")(x)
        return x

MODEL = Model()
X = jnp.ones((32, 16))
PARAMS = MODEL.init(jax.random.key(0), X)
def loss(params, x):
    return jnp.mean(MODEL.apply(params, x) ** 2)
""",
    "nnx": """
import jax
import jax.numpy as jnp
import jax.numpy as jnp
from flax import nnx

class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.up, self.down = nnx.Linear(16, 64, rngs=rngs), nnx.Linear(64, 16, rngs=rngs)
    def __call__(self, x):
        h = nnx.tanh(self.up(self.norm(x)))
        return x + self.down(jnp.sin(h) * h)

rngs = nnx.Rngs(0)
GRAPH, PARAMS = nnx.split([Block(rngs) for _ in range(3)])
X = jnp.ones((32, 16))
def loss(params, x):
    for layer in nnx.merge(GRAPH, params):
        x = layer(x)
    return jnp.mean(x ** 2)
""",
    "equinox": """
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.numpy as jnp

class Block(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    def __init__(self, key):
        self.up, self.down = eqx.nn.Linear(16, 64, key=key), eqx.nn.Linear(64, 16, key=key)
    def __call__(self, x):
        h = jnp.tanh(jax.vmap(self.up)(x))
        return x + jax.vmap(self.down)(jnp.sin(h) * h)

PARAMS = [Block(key) for key in jax.random.split(jax.random.key(0), 3)]
X = jnp.ones((32, 16))
def loss(params, x):
    for layer in params:
        x = layer(x)
    return jnp.mean(x ** 2)
""",
    "haiku": """
import haiku as hk
import jax
import jax.numpy as jnp
import jax.numpy as jnp

class Block(hk.Module):
    def __call__(self, x):
        h = jnp.tanh(hk.Linear(64)(x))
        return x + hk.Linear(16)(jnp.sin(h) * h)

def forward(x):
    for _ in range(3):
        block = Block()
        x = block(x)
    return x

MODEL = hk.without_apply_rng(hk.transform(forward))
X = jnp.ones((32, 16))
PARAMS = MODEL.init(jax.random.key(0), X)
def loss(params, x):
    return jnp.mean(MODEL.apply(params, x) ** 2)
""",
}
LIBRARIES["linen_setup"] = LIBRARIES["linen"].replace(
    """    @nn.compact
    def __call__(self, x):
        for i in range(3):
            x = Block(64, name=f"layer_{i}")(x)
""",
    """    def setup(self):
        self.layers = [Block(64) for _ in range(3)]
    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
""",
)
LIBRARIES["linen_scan"] = (
    LIBRARIES["linen"]
    .replace("def __call__(self, x):\n        h", "def __call__(self, x, _):\n        h")
    .replace("(jnp.sin(h) * h)", "(jnp.sin(h) * h), None")
    .replace(
        """        for i in range(3):
            x = Block(64, name=f"layer_{i}")(x)
""",
        """        Layers = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        x, _ = Layers(64, name="layers")(x, None)
""",
    )
)
_PENZAI = """
import jax
import jax.numpy as jnp
import jax.numpy as jnp
from penzai import pz

@pz.pytree_dataclass
class Block(pz.nn.Layer):
    up: jax.Array
    down: jax.Array
    def __call__(self, x, **_):
        h = jnp.tanh(x @ self.up)
        return x + (jnp.sin(h) * h) @ self.down

KEYS = jax.random.split(jax.random.key(0), 3)
PARAMS = [Block(jax.random.normal(k, (16, 64)), jax.random.normal(k, (64, 16))) for k in KEYS]
X = jnp.ones((32, 16))
def loss(params, x):
    {call}
    return jnp.mean(x ** 2)
"""
LIBRARIES["penzai"] = _PENZAI.format(call="for layer in params:\n        x = layer(x)")
LIBRARIES["penzai_model"] = _PENZAI.format(call="model = pz.nn.Sequential(params)\n    x = model(x)")
WAYS = {
    "linen_setup": "[nn.remat(Block{})(64) for _ in range(3)]",
    "linen_scan": "nn.scan(nn.remat(Block, prevent_cse=False{}), variable_axes",
    "penzai": "gradient_checkpointing.Checkpointed(layer{})(x)",
    "penzai_model": "x = pz.select(model).at_instances_of(Block).apply(",
    "linen": "nn.remat(Block{})(64,", "nnx": "nnx.remat(lambda module, x: module(x){})(layer, x)",
    "equinox": "eqx.filter_checkpoint(layer{})(x)", "haiku": "hk.remat(block{})(x)",
}  # fmt: skip
SHORT_LIBRARIES = {*((name, "2%") for name in ("linen_scan",)), ("equinox", "30%"), ("haiku", "30%")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "work"),
    [
        pytest.param(name, work, marks=[pytest.mark.slow(sweep=True)] * ((name, work) not in SHORT_LIBRARIES))
        for name in LIBRARIES
        for work in ("30%", "2%")
    ],
)
def test_modules_are_checkpointed_as_their_library_does_it(module, name, work, tmp_path, monkeypatch):
    pytest.importorskip(
        {"linen": "flax", "nnx": "flax"}.get(name.partition("_")[0], name.partition("_")[0])
    )  # the newest JAX is tested without libraries
    monkeypatch.chdir(tmp_path)
    own = module(LIBRARIES[name])
    args = own.PARAMS, own.X
    plan = jaxviz.plan_remat(own.loss, *args, work=work)
    assert plan.regions
    code = plan.code()
    assert WAYS[name].format(", policy=SAVED" if "SAVED = " in code else "") in code
    assert "site-packages" not in code
    applied("---" + code.partition("---")[2], tmp_path)
    edited = module(Path(own.__file__).read_text())
    found = Search(derive(edited.loss, edited.PARAMS, edited.X), False).written
    promised = plan.written.trade
    assert (found.nbytes, found.flops) == (promised.nbytes, promised.flops)
    assert found.peak_nbytes < plan.before.peak_nbytes
    got, want = jax.jit(jax.grad(edited.loss))(*args), jax.jit(jax.grad(own.loss))(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


PLAIN = """import jax.numpy as jnp


def loss(w, x):
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return jnp.sum(x**2)
"""
ACCENTED = f"# Modèle d'été\n\n{PLAIN}\n\n# Fin d'été\n"
ODD_FILES = {
    "crlf": ("model.py", PLAIN.replace("\n", "\r\n"), "utf-8"),
    "cr": ("model.py", PLAIN.replace("\n", "\r"), "utf-8"),
    "mixed line ends": ("model.py", PLAIN.replace("\n", "\r\n", 4), "utf-8"),
    "byte order mark": ("model.py", PLAIN, "utf-8-sig"),
    "byte order mark and crlf": ("model.py", PLAIN.replace("\n", "\r\n"), "utf-8-sig"),
    "no line end": ("model.py", PLAIN.rstrip(), "utf-8"),
    "no line end, crlf": ("model.py", PLAIN.rstrip().replace("\n", "\r\n"), "utf-8"),
    "form feed": (
        "model.py",
        PLAIN.replace("def loss", "\f\ndef loss").replace("    return", "    # \x1c\x85\n    return"),
        "utf-8",
    ),
    "utf-8": ("modèle.py", ACCENTED, "utf-8"),
    "latin-1": ("model.py", f"# -*- coding: latin-1 -*-\n{ACCENTED}", "latin-1"),
    "space": ("my model.py", PLAIN, "utf-8"),
    "tab": ("my\tmodel.py", PLAIN, "utf-8"),
    "line break": ("my\n+model.py", PLAIN, "utf-8"),
    "quote": ('my"model\\.py', PLAIN, "utf-8"),
    "not in utf-8": (os.fsdecode(b"mod\xe8le.py"), PLAIN, "utf-8"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ODD_FILES)
def test_git_applies_the_diff_of_an_odd_file(case, tmp_path, monkeypatch):
    name, text, encoding = ODD_FILES[case]
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    w, x = jnp.ones((8, 8)), jnp.ones((64, 8))

    def imported():
        spec = importlib.util.spec_from_file_location(f"odd_{next(_NUMBERS)}", path)
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        return made

    plan = jaxviz.plan_remat(imported().loss, w, x, residuals="60%")
    diff = f"{plan.code()}\n".encode()
    assert all(line[:1] in (b"#", b"-", b"+", b" ", b"@", b"\\") for line in diff.split(b"\n")[:-1])
    subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], input=diff, cwd=tmp_path, check=True)
    now = path.read_bytes().decode(encoding)
    assert now != text
    ends = lambda text: {found[0] for found in re.finditer(r"\r\n?|\n", text)}
    assert ends(now) == ends(text)
    assert "checkpoint" in now
    linecache.clearcache()
    assert held_by_jax(imported().loss, w, x) < held_by_jax(jax.jit(loss_as_written), w, x)


def loss_as_written(w, x):
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return jnp.sum(x**2)


def test_a_diff_that_cannot_be_in_ascii_says_how_to_write_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.py"
    text = "# -*- coding: latin-1 -*-\n" + PLAIN.replace("x = jnp.tanh(x @ w)", "x = jnp.tanh(x @ w)  # été")
    path.write_bytes(text.encode("latin-1"))
    spec = importlib.util.spec_from_file_location("in_latin", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    code = jaxviz.plan_remat(made.loss, jnp.ones((8, 8)), jnp.ones((64, 8)), residuals="60%").code()
    assert "encoding='iso-8859-1', errors='replace', newline=''" in code
    diff = f"{code}\n".encode("iso-8859-1", errors="replace")
    subprocess.run(["git", "apply", "-"], input=diff, cwd=tmp_path, check=True)
    assert "été" in path.read_bytes().decode("latin-1")


def test_a_function_that_no_way_is_left_for_is_said_not_to_be_written():
    search = Search(derive(lambda x: jnp.sum(jnp.sin(x)), jnp.ones(3)), False)
    said = _Ways(search, Call.known(search.derivation)).why_not(search.whole)
    assert said == "No checkpoint can be written around <lambda> in your source."


def test_of_the_code_that_was_tried_the_lowest_is_taken(monkeypatch):
    """Also if the checkpoints that can be written one by one as planned come to less."""
    search = Search(derive(lambda x: jnp.sum(jnp.sin(jnp.sin(x))), jnp.ones(3)), False)
    trial = best_of_all(search)
    written = lambda share, **more: Written(
        (str(share),),
        replace(search.written, peak_nbytes=int(share * search.written.peak_nbytes)),
        ("---",),
        {"m.py": ""},
        **more,
    )
    tried = [written(0.2, is_as_planned=False), written(0.9)]
    monkeypatch.setattr(diff, "_written_with", lambda *_: (tried.pop(0), trial))
    monkeypatch.setattr(_Ways, "go_on", lambda *_: True)
    wanted = replace(trial, trade=replace(trial.trade, peak_nbytes=1))
    found = diff.write_plan(search, wanted, Call.known(search.derivation))
    assert found.text.splitlines()[::2] == ["# 0.2", "---"]
    assert "plan.apply checkpoints something else" in found.text
