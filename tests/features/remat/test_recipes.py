"""Checkpoints around what a library runs: written where the user can write them, and measured with the edit in place."""

import importlib
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from test_diff import LibrarysFile

import jaxviz
from jaxviz.features.remat import diff
from jaxviz.features.remat.rewritten import UnmeasuredError, derived_with

_NUMBERS = itertools.count()
HEAD = "import jax\nimport jax.numpy as jnp\nfrom jax import lax\n"
X = jnp.linspace(0.1, 1.0, 64 * 16).reshape(64, 16)
W = jnp.linspace(-0.5, 0.5, 256).reshape(16, 16)

SOLVER = """
def integrate(step, x, n):
    return lax.scan(lambda x, _: (step(x), None), x, None, length=n)[0]
"""
BLOCK = """
def block(w, x):
    h = jnp.tanh(x @ w)
    return x + jnp.sin(h * h) * jnp.cos(h)
"""
PLAIN = f"""{BLOCK}
def model(w, x):
    for _ in range(6):
        x = block(w, x)
    return x
"""
LINEN = """
import flax.linen as nn

class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        h = jnp.tanh(nn.Dense(64)(nn.LayerNorm()(x)))
        return x + nn.Dense(16)(jnp.sin(h) * h)

class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        for i in range(6):
            x = Block(name=f"layer_{i}")(x)
        return x
"""
APPLIED = """
MODEL = library.Model()

def loss(params, x):
    return jnp.mean(MODEL.apply(params, x) ** 2)
"""
INITIAL = lambda m: (m.MODEL.init(jax.random.key(0), X), X)
EQUINOX = """
import equinox as eqx

class Layer(eqx.Module):
    w: jax.Array
    def __call__(self, x):
        h = jnp.tanh(x @ self.w)
        return x + jnp.sin(h * h) * jnp.cos(h)

def fold(layers, x):
    for layer in layers:
        x = layer(x)
    return x
"""
MAKERS = """
def make_step(scale):
    def step(x):
        h = jnp.tanh(x * scale)
        return x + jnp.sin(h * h) * jnp.cos(h) * jnp.exp(h)
    return step

def repeated(f, n):
    return lambda x: lax.scan(lambda x, _: (f(x), None), x, None, length=n)[0]
"""
STACKED = """
def fold(layer, ws, x):
    return lax.scan(lambda x, w: (layer(w)(x), None), x, ws)[0]
"""
PROGRAMS = {
    "a step function": (SOLVER, """
def loss(w, x):
    def step(x):
        h = jnp.tanh(x @ w)
        return x + jnp.sin(h * h) * jnp.cos(h)
    return jnp.mean(library.integrate(step, x, 6) ** 2)
""", lambda m: (W, X), "library.integrate(jax.checkpoint(step, prevent_cse=False"),
    "a function of a library": (PLAIN, """
def loss(w, x):
    return jnp.mean(library.model(w, x) ** 2)
""", lambda m: (W, X), "\nlibrary.block = jax.checkpoint(library.block"),
    "a Flax module of a library": (LINEN, APPLIED, INITIAL, "\nlibrary.Block.__call__ = linen.remat(library.Block.__call__"),
    "an Equinox module of a library": (EQUINOX, """
def loss(layers, x):
    return jnp.mean(library.fold(layers, x) ** 2)
""", lambda m: ([m.library.Layer(W)] * 6, X), "\nlibrary.Layer.__call__ = equinox.filter_checkpoint(library.Layer.__call__"),
    "a module that a library iterates over": (STACKED, """
import equinox as eqx

class Layer(eqx.Module):
    w: jax.Array
    def __call__(self, x):
        h = jnp.tanh(x @ self.w)
        return x + jnp.sin(h * h) * jnp.cos(h)

def loss(ws, x):
    return jnp.mean(library.fold(Layer, ws, x) ** 2)
""", lambda m: (jnp.stack([W] * 6), X), "@partial(eqx.filter_checkpoint, prevent_cse=False"),
    "an argument that Python branches on": ("", """
def block(w, x, is_training):
    h = jnp.tanh(x @ w)
    return x + jnp.sin(h * h) * jnp.cos(h) if is_training else x

def loss(w, x):
    for _ in range(6):
        x = block(w, x, True)
    return jnp.mean(x ** 2)
""", lambda m: (W, X), "jax.checkpoint(block, static_argnums=(2,)"),
    "a function that was defined in another one": ("", """
def make():
    def loss(w, x):
        h = jnp.tanh(x @ w)
        return jnp.mean(jnp.sin(h * h) * jnp.cos(h) * jnp.exp(h))
    return loss

loss = make()
""", lambda m: (W, X), "\n    @"),
    "layers that Flax names": (
        "", LINEN.replace('name=f"layer_{i}"', "") + APPLIED.replace("library.", ""), INITIAL, "nn.remat",
    ),
    "a module that is defined in a function": ("", """
def make():
    import equinox as eqx

    class Net(eqx.Module):
        w: jax.Array
        def __matmul__(self, x):
            h = jnp.tanh(x @ self.w)
            return jnp.sin(h * h) * jnp.cos(h) * jnp.exp(h)

    def loss(w, x):
        return jnp.mean((Net(w) @ x) ** 2)

    return loss

loss = make()
""", lambda m: (W, X), "\n        @partial(eqx.filter_checkpoint"),
    "a module of Equinox under a transformation": ("", """
import equinox as eqx

class Net(eqx.Module):
    w: jax.Array
    def __call__(self, x):
        h = jnp.tanh(x @ self.w)
        return jnp.sin(h * h) * jnp.cos(h) * jnp.exp(h)

def loss(w, x):
    return jnp.mean(jax.vmap(Net(w))(x) ** 2)
""", lambda m: (W, X), "jax.checkpoint(jax.vmap(Net(w)), policy=SAVED)(x)"),
    "a step that a library makes": (MAKERS, """
def loss(w, x):
    return jnp.mean(RUN(x @ w) ** 2)

def elsewhere(repeated, step):
    return repeated(step, 6)

RUN = library.repeated(library.make_step(1.0), 6)
""", lambda m: (W, X), "library.repeated(jax.checkpoint(library.make_step(1.0), prevent_cse=False"),
    "arguments that are no arrays": ("""
def model(w, x, activation, is_training):
    h = activation(x @ w)
    return jnp.sin(h * h) * jnp.cos(h) * jnp.exp(h) if is_training else x
""", """
import equinox as eqx

def loss(w, x):
    return jnp.mean(library.model(w, x, jnp.tanh, is_training=True) ** 2)
""", lambda m: (W, X), "eqx.filter_checkpoint(library.model"),
    "a flag": ("""
def model(w, x, is_training):
    h = jnp.tanh(x @ w)
    return jnp.sin(h * h) * jnp.cos(h) * jnp.exp(h) if is_training else x
""", """
def loss(w, x):
    return jnp.mean(library.model(w, x, is_training=True) ** 2)
""", lambda m: (W, X), "jax.checkpoint(partial(library.model, is_training=True)"),
    "a Haiku module": ("", """
import haiku as hk

class Block(hk.Module):
    def __call__(self, x):
        h = jnp.tanh(hk.Linear(64)(x))
        return x + hk.Linear(16)(jnp.sin(h) * h)

def net(x):
    for _ in range(6):
        x = Block()(x)
    return jnp.mean(x ** 2)

MODEL = hk.without_apply_rng(hk.transform(net))
loss = MODEL.apply
""", INITIAL, "hk.remat(Block()"),
}  # fmt: skip


SLOW = ("a Flax module of a library", "a Haiku module", "a flag")


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Imports a library, and a module of the user's that imports it as `library`."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(library, source):
        number = next(_NUMBERS)
        (tmp_path / f"library_{number}.py").write_text(HEAD + library)
        (tmp_path / f"model_{number}.py").write_text(f"{HEAD}import library_{number} as library\n{source}")
        importlib.invalidate_caches()
        return importlib.import_module(f"model_{number}")

    return make


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow(sweep=True)] * (n in SLOW)) for n in PROGRAMS]
)
def test_what_is_written_has_the_figures_that_it_says(name, imported, tmp_path):
    library, source, arguments, line = PROGRAMS[name]
    for needed in {"flax", "equinox", "haiku"}.intersection((library + source).replace(".", " ").split()):
        pytest.importorskip(needed)  # the newest JAX is tested without libraries
    own = imported(library, source)
    args = arguments(own)
    with LibrarysFile(own.library.__file__):
        plan = jaxviz.plan_remat(own.loss, *args, work="35%")
        assert plan.regions
        written = plan.written
    assert line in written.text.replace("\n+", "\n").replace(own.library.__name__, "library"), written.text
    (text,) = written.files.values()
    path = Path(own.__file__)
    path.with_name(f"edited_{path.name}").write_text(text)
    before = jax.grad(own.loss)(*args)
    edited = importlib.import_module(f"edited_{path.stem}")
    assert jaxviz.memory(edited.loss, *args).peak_nbytes == written.trade.peak_nbytes < plan.before.peak_nbytes
    assert jaxviz.residuals(edited.loss, *args).saved.nbytes == written.trade.saved_nbytes
    for a, b in zip(jax.tree.leaves(jax.grad(edited.loss)(*args)), jax.tree.leaves(before), strict=True):
        assert jnp.allclose(a, b, rtol=1e-4, atol=1e-6)


def test_the_loss_of_a_training_step_gets_the_checkpoint(imported):
    whole = PROGRAMS["a function that was defined in another one"][1]
    own = imported("", f"{whole}\n@jax.jit\ndef step(w, x):\n    return w - jax.grad(loss)(w, x)\n")
    written = jaxviz.plan_remat(own.step, W, X, work="35%").written
    assert "by hand" not in written.text
    (text,) = written.files.values()
    path = Path(own.__file__)
    path.with_name(f"edited_{path.name}").write_text(text)
    edited = importlib.import_module(f"edited_{path.stem}")
    assert jaxviz.memory(edited.step, W, X).peak_nbytes == written.trade.peak_nbytes
    assert jaxviz.residuals(edited.step, W, X).saved.nbytes == written.trade.saved_nbytes


def test_a_failure_is_not_told_of_changes_that_are_not_shown(imported, monkeypatch):
    monkeypatch.setattr(diff, "_MEASURED", 0)
    monkeypatch.setattr(diff, "_AT_LEAST", 1)
    pytest.importorskip("equinox")  # the newest JAX is tested without libraries
    library, source, arguments, _ = PROGRAMS["arguments that are no arrays"]
    own = imported(library, source)
    written = jaxviz.plan_remat(own.loss, *arguments(own), work="35%").written
    assert not written.files
    assert "the function fails" not in written.text
    assert "No edit that was tried puts them there." in written.text
    assert "More edits could be tried" in written.text


JITTED = f"""
@jax.jit{BLOCK}
def loss(w, x):
    for _ in range(6):
        x = block(w, x)
    return jnp.mean(x ** 2)
"""


def test_a_function_that_jax_has_traced_is_traced_again(imported):
    own = imported("", JITTED)
    jax.jit(jax.grad(own.loss))(W, X)
    written = jaxviz.plan_remat(own.loss, W, X, work="10%").written
    (text,) = written.files.values()
    assert "checkpoint_name(" in text
    path = Path(own.__file__)
    path.with_name(f"edited_{path.name}").write_text(text)
    edited = importlib.import_module(f"edited_{path.stem}")
    assert jaxviz.residuals(edited.loss, W, X).saved.nbytes == written.trade.saved_nbytes


def test_measuring_leaves_everything_as_it_was(imported):
    library, source, arguments, _ = PROGRAMS["a function of a library"]
    own = imported(library, source)
    args = arguments(own)
    block, code, names = own.library.block, own.loss.__code__, set(vars(own))
    runs = []
    counted = jax.jit(lambda *args: runs.append(1) or own.loss(*args))
    counted(*args)
    saved = jaxviz.residuals(own.loss, *args).nbytes
    with LibrarysFile(own.library.__file__):
        plan = jaxviz.plan_remat(own.loss, *args)
        assert plan.written.trade.nbytes < saved
    assert (own.library.block, own.loss.__code__, set(vars(own))) == (block, code, names)
    counted(*args)
    assert len(runs) == 1
    assert jaxviz.residuals(own.loss, *args).nbytes == saved


def test_an_edit_of_what_is_run_on_import_is_not_measured(imported):
    own = imported("", "\nSCALE = float(3)\n\ndef loss(w, x):\n    return jnp.mean(jnp.sin(x @ w) * SCALE)\n")
    path = own.__file__
    changed = Path(path).read_text().replace("float(3)", "float(4)")
    with pytest.raises(UnmeasuredError, match=r"line 6 of .*model_\d+\.py is only run when it is imported"):
        derived_with(jaxviz.derive(own.loss, W, X), {path: changed})
    with pytest.raises(UnmeasuredError, match="was given as a program"):
        derived_with(jaxviz.derive(jaxviz.trace(own.loss)(W, X)), {path: changed})
