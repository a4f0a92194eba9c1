"""An edit of the source, put in place while a function is traced: what it does as a new import, and nothing after."""

import __future__

import ast
import gc
import importlib
import itertools
import linecache
import sys
import threading
import types

import jax
import jax.numpy as jnp
import pytest

from jaxviz.derivation import derive
from jaxviz.features.remat.rewritten import UnmeasuredError, derived_with
from jaxviz.features.remat.source import tree_of, value_of
from jaxviz.ir import alone

_NUMBERS = itertools.count()
X = jnp.linspace(0.1, 1.0, 64 * 16).reshape(64, 16)
W = jnp.linspace(-0.5, 0.5, 256).reshape(16, 16)
HEAD = "import jax\nimport jax.numpy as jnp\nfrom functools import partial\n"
LOSS = """
def loss(w, x):
    h = jnp.tanh(x @ w)
    return jnp.mean(jnp.sin(h * h) * jnp.cos(h) * jnp.exp(h))
"""
BLOCK = """
def block(w, x):
    h = jnp.tanh(x @ w)
    return x + jnp.sin(h * h) * jnp.cos(h)
"""
FOLD = """
def loss(w, x):
    for _ in range(3):
        x = block(w, x)
    return jnp.mean(x ** 2)
"""
INSIDE = BLOCK.replace("\n", "\n    ").rstrip()
REGISTER = "NAMES = []\ndef register(name):\n    return lambda f: NAMES.append(name) or f\n"
LOOKED_AT = """
def look(x):
    import traceback
    assert all(isinstance(frame.f_locals, object) for frame, _ in traceback.walk_stack(None))
    return x

def make(n):
    def loss(w, x):
        return jnp.mean(look(jnp.tanh(x @ w)) ** n)
    return loss

loss = make(2)
"""
EDITS = {
    "whose frames somebody looks at": (LOOKED_AT, "    def loss", "    @jax.checkpoint\n    def loss"),
    "bound again by partial": (LOSS.replace("(w, x)", "(scale, w, x)") + "\nloss = partial(loss, 3.0)\n", "def loss", "@jax.checkpoint\ndef loss"),
    "bound again by jit": (LOSS + "\nloss = jax.jit(loss)\n", "def loss", "@jax.checkpoint\ndef loss"),
    "private names": (
        f"class Model:\n    __scale = 2.0\n    @partial(jax.checkpoint, static_argnums=0){INSIDE.replace('(w', '(self, w').replace('x @ w', 'x @ w * self.__scale')}\n\n"
        + FOLD.replace("block(", "Model().block("),
        "static_argnums=0",
        "static_argnums=0, policy=jax.checkpoint_policies.dots_saveable",
    ),
    "a class in a class": (
        f"class A:\n    class B:\n        @staticmethod{INSIDE.replace(chr(10), chr(10) + '    ')}\n" + FOLD.replace("block(", "A.B.block("),
        "        def block",
        "        @jax.checkpoint\n        def block",
    ),
    "a class in a function": (
        f"def make():\n    import flax.linen as nn\n    class Model(nn.Module):\n        @nn.compact{INSIDE.replace(chr(10), chr(10) + '    ').replace('block(w, x)', '__call__(self, w, x)')}\n"
        "    return Model()\nMODEL = make()\n" + FOLD.replace("block(", "MODEL.apply({}, "),
        "        @nn.compact",
        "        @nn.remat\n        @nn.compact",
    ),
    "a function that something else holds": (
        f"def make():{INSIDE}\n    return types.SimpleNamespace(step=block)\nimport types\nHELD = make()\n" + FOLD.replace("block(", "HELD.step("),
        "    def block",
        "    @jax.checkpoint\n    def block",
    ),
    "an import of the function around": (
        f"def make():\n    from jax.ad_checkpoint import checkpoint_name as named{INSIDE}\n    return jax.checkpoint(block, policy=jax.checkpoint_policies.save_only_these_names('a'))\n"
        "block = make()\n" + FOLD,
        "x @ w",
        "named(x @ w, 'a')",
    ),
    "a registered function": (f"{REGISTER}\n@register('block'){BLOCK}{FOLD}", "\ndef block", "\n@jax.checkpoint\ndef block"),
}  # fmt: skip


@pytest.fixture
def imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def make(source):
        name = f"rewritten_{next(_NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(HEAD + source)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    return make


def text_of(module):
    with open(module.__file__) as file:
        return file.read()


def functions_of(module):
    """The functions with code of a module, each with that code and its attributes."""
    found = [f for f in gc.get_objects() if isinstance(f, types.FunctionType)]
    return {f: (f.__code__, dict(vars(f))) for f in found if f.__code__.co_filename == module.__file__}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_does_what_a_new_import_does_and_leaves_no_trace(name, imported):
    source, old, new = EDITS[name]
    if "flax" in source:
        pytest.importorskip("flax")  # the newest JAX is tested without libraries
    own = imported(source)
    derivation, names, functions = derive(own.loss, W, X), dict(vars(own)), functions_of(own)
    text = text_of(own).replace(old, new)
    found = derived_with(derivation, {own.__file__: text})
    assert vars(own) == names
    assert {f: (f.__code__, vars(f)) for f in functions} == functions
    expected = derive(imported(text.removeprefix(HEAD)).loss, W, X)
    assert found.residuals.nbytes == expected.residuals.nbytes != derivation.residuals.nbytes


def test_a_decorator_that_does_something_else_is_not_run(imported):
    own = imported(f"{REGISTER}\n@register('block'){BLOCK}{FOLD}")
    changed = text_of(own).replace("@register('block')", "@jax.checkpoint\n@register('other')")
    with pytest.raises(UnmeasuredError, match="is only run when it is imported"):
        derived_with(derive(own.loss, W, X), {own.__file__: changed})
    assert own.NAMES == ["block"]


def test_a_name_is_looked_up_in_the_package_that_the_file_is_in(tmp_path, monkeypatch):
    package, other = (f"rewritten_{next(_NUMBERS)}" for _ in range(2))
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / package / f"{other}.py").write_text("def f():\n    pass\n")
    (tmp_path / f"{other}.py").write_text("raise AssertionError\n")
    (tmp_path / package / "user.py").write_text(f"from .{other} import f\nf()\n")
    monkeypatch.syspath_prepend(tmp_path)
    user = importlib.import_module(f"{package}.user")
    (called,) = [n for n in ast.walk(tree_of(user.__file__)) if isinstance(n, ast.Call)]
    assert value_of(user.__file__, called.func, {}) is user.f


def test_a_file_that_is_imported_twice(imported):
    first = imported(f"SCALE = jnp.ones(()){BLOCK.replace('x @ w', 'x @ w * SCALE')}{FOLD}")
    derivation = derive(first.loss, W, X)
    second = importlib.util.module_from_spec(first.__spec__)
    sys.modules[second.__name__ + "_again"] = second
    try:
        first.__spec__.loader.exec_module(second)
        changed = text_of(first).replace("def block", "@jax.checkpoint\ndef block")
        assert derived_with(derivation, {first.__file__: changed}).n_residuals < derivation.n_residuals
        assert second.block.__code__.co_consts == first.block.__code__.co_consts
    finally:
        del sys.modules[second.__name__ + "_again"]


def test_a_cell_that_was_compiled_with_future_statements_of_cells_before(monkeypatch):
    cell, main = "<ipython-input-1-rewritten>", types.ModuleType("__main__")
    source = HEAD + BLOCK.replace("(w, x)", "(w: Later, x)") + FOLD
    linecache.cache[cell] = (len(source), None, source.splitlines(True), cell)
    exec(compile(source, cell, "exec", __future__.annotations.compiler_flag, dont_inherit=True), vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)
    derivation = derive(main.loss, W, X)
    changed = source.replace("def block", "@jax.checkpoint\ndef block")
    assert derived_with(derivation, {cell: changed}).n_residuals < derivation.n_residuals


def test_threads_that_run_the_function_meanwhile_never_see_half_of_an_edit(imported):
    own = imported(BLOCK + FOLD)
    head = "from jax.ad_checkpoint import checkpoint_name\n"
    changed = head + text_of(own).replace("x @ w", 'checkpoint_name(x @ w, "a")')
    derivation, errors, done = derive(own.loss, W, X), [], threading.Event()

    def run():
        while not done.is_set():
            try:
                jax.eval_shape(lambda w, x: own.loss(w, x), W, X)
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        derived_with(derivation, {own.__file__: changed})
    done.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert not hasattr(own, "checkpoint_name")


def test_an_interrupt_while_it_waits_for_others_leaves_nobody_waiting(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(alone._threads.changed, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), alone.alone():
            pass
    assert (alone._threads.waiting, alone._threads.alone) == (set(), None)
    with alone.alone():
        assert alone._threads.alone == threading.get_ident()
