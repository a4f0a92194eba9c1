"""An edit of the source, put in place while a function is traced: what it does as a new import, and nothing after."""

import __future__

import ast
import gc
import importlib
import linecache
import re
import sys
import threading
import time
import types
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from short_runs import short

import jaxviz
from jaxviz.derivation import derive
from jaxviz.features.remat.forms import Trade
from jaxviz.features.remat.rewritten import Measured, UnmeasuredError, derived_with, measured_with
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.source import value_of
from jaxviz.ir import alone
from jaxviz.ir.expressions import tree_of

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
SAVING = "@partial(jax.checkpoint, static_argnums=0, policy=jax.checkpoint_policies.everything_saveable)"
METHOD = f"class A:\n    {SAVING}{INSIDE.replace('(w', '(self, w')}\n"
OTHERWISE = ("everything_saveable", "nothing_saveable")
EDITS = {
    "whose frames somebody looks at": (LOOKED_AT, "    def loss", "    @jax.checkpoint\n    def loss"),
    "bound again by partial": (LOSS.replace("(w, x)", "(scale, w, x)") + "\nloss = partial(loss, 3.0)\n", "def loss",
                               "@jax.checkpoint\ndef loss"),
    "bound again by jit": (LOSS + "\nloss = jax.jit(loss)\n", "def loss", "@jax.checkpoint\ndef loss"),
    "private names": (
        f"class Model:\n    __scale = 2.0\n    @partial(jax.checkpoint, "
        f"static_argnums=0){INSIDE.replace('(w', '(self, w').replace('x @ w', 'x @ w * self.__scale')}\n\n"
        + FOLD.replace("block(", "Model().block("),
        "static_argnums=0",
        "static_argnums=0, policy=jax.checkpoint_policies.dots_saveable",
    ),
    "a class in a class": (
        f"class A:\n    class B:\n        @staticmethod{INSIDE.replace(chr(10), chr(10) + '    ')}\n"
        + FOLD.replace("block(", "A.B.block("),
        "        def block",
        "        @jax.checkpoint\n        def block",
    ),
    "a class in a function": (
        f"def make():\n    from flax import linen as nn\n    class Model(nn.Module):\n        "
        f"@nn.compact{INSIDE.replace(chr(10), chr(10) + '    ').replace('block(w, x)', '__call__(self, w, x)')}\n"
        "    return Model()\nMODEL = make()\n" + FOLD.replace("block(", "MODEL.apply({}, "),
        "        @nn.compact",
        "        @nn.remat\n        @nn.compact",
    ),
    "a function that something else holds": (
        f"def make():{INSIDE}\n    return types.SimpleNamespace(step=block)\nimport types\nHELD = make()\n"
        + FOLD.replace("block(", "HELD.step("),
        "    def block",
        "    @jax.checkpoint\n    def block",
    ),
    "an import of the function around": (
        f"def make():\n    from jax.ad_checkpoint import checkpoint_name as named{INSIDE}\n    return "
        f"jax.checkpoint(block, policy=jax.checkpoint_policies.save_only_these_names('a'))\n"
        "block = make()\n" + FOLD,
        "x @ w",
        "named(x @ w, 'a')",
    ),
    "a function that closes over args": (
        f"def make(args):{INSIDE.replace('x @ w', 'x @ w * args')}\n    return [block]\nHELD = make(2.0)\n"
        + FOLD.replace("block(", "HELD[0]("),
        "    def block",
        "    @jax.checkpoint\n    def block",
    ),
    "a policy that was None": (
        f"POLICY = None\n{BLOCK}" + FOLD.replace("block(", "jax.checkpoint(block, policy=POLICY)("),
        "POLICY = None",
        "POLICY = jax.checkpoint_policies.everything_saveable",
    ),
    "a name that is assigned again": (
        f"{BLOCK}\nblock = jax.checkpoint(block, policy=jax.checkpoint_policies.nothing_saveable)\n{FOLD}",
        "nothing_saveable",
        "everything_saveable",
    ),
    "annotations that a decorator reads": (
        "def typed(f):\n    assert f.__annotations__ and f.__doc__\n    return f\n"
        + BLOCK.replace("(w, x):", "(w: int, x: int):\n    'Text.'") + FOLD,
        "\ndef block",
        "\n@jax.checkpoint\n@typed\ndef block",
    ),
    "a bound method": (f"{METHOD}STEP = A().block\n" + FOLD.replace("block(", "STEP("), *OTHERWISE),
    "another name in the class": (f"{METHOD}    other = block\n" + FOLD.replace("block(", "A().other("), *OTHERWISE),
    "a method and its checkpoint": (
        f"{METHOD}STEP = A().block\n" + FOLD.replace("block(", "STEP("),
        "everything_saveable)\n    def block(self, w, x):",
        "nothing_saveable)\n    def block(self, w, x):\n        x = jnp.sin(x)",
    ),
    "a lambda of another name": (
        "f = lambda w, x: jnp.sin(jnp.tanh(x @ w))\ng = f\ndef loss(w, x):\n    return jnp.mean(g(w, x))\n",
        "lambda w, x: jnp.sin(jnp.tanh(x @ w))",
        "jax.checkpoint(lambda w, x: jnp.sin(jnp.tanh(x @ w)))",
    ),
    "a lambda and its checkpoint": (
        "loss = lambda w, x: jnp.mean(jnp.sin(jnp.tanh(x @ w)))\n",
        "loss = lambda w, x: jnp.mean(jnp.sin(jnp.tanh(x @ w)))",
        "from jax.ad_checkpoint import checkpoint_name\nSAVED = jax.checkpoint_policies.save_only_these_names('a')\n"
        "loss = jax.checkpoint(lambda w, x: jnp.mean(jnp.sin(checkpoint_name(jnp.tanh(x @ w), 'a'))), policy=SAVED)",
    ),
    "a lambda in a checkpoint that is there": (
        "step = jax.checkpoint(lambda w, x: jnp.sin(jnp.tanh(x @ w)), policy=None)\ndef loss(w, x):\n    return "
        "jnp.mean(step(w, step(w, x)))\n",
        "lambda w, x: jnp.sin(jnp.tanh(x @ w)), policy=None",
        "lambda w, x: jnp.sin(jnp.tanh(x @ w) * 2), policy=jax.checkpoint_policies.everything_saveable",
    ),
    "a checkpoint that is no function": (
        f"import equinox as eqx\n@partial(eqx.filter_checkpoint, policy=None){BLOCK}{FOLD}", "policy=None",
        "policy=jax.checkpoint_policies.everything_saveable",
    ),
    "a registered function": (f"{REGISTER}\n@register('block'){BLOCK}{FOLD}", "\ndef block",
                              "\n@jax.checkpoint\ndef block"),
}  # fmt: skip


@pytest.fixture
def imported(module):
    return lambda source: module(HEAD + source)


def text_of(module):
    return Path(module.__file__).read_text()


def functions_of(module):
    """The functions with code of a module, each with that code and its attributes."""
    found = [f for f in gc.get_objects() if isinstance(f, types.FunctionType)]
    return {f: (f.__code__, dict(vars(f))) for f in found if f.__code__.co_filename == module.__file__}


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(EDITS), 2))
def test_an_edit_does_what_a_new_import_does_and_leaves_no_trace(name, imported):
    source, old, new = EDITS[name]
    for library in {"flax", "equinox"}.intersection(source.split()):
        pytest.importorskip(library)  # the newest JAX is tested without libraries
    own = imported(source)
    derivation, names, functions = derive(own.loss, W, X), dict(vars(own)), functions_of(own)
    text = text_of(own).replace(old, new)
    found = derived_with(derivation, {own.__file__: text})
    assert vars(own) == names
    assert {f: (f.__code__, vars(f)) for f in functions} == functions
    expected = derive(imported(text.removeprefix(HEAD)).loss, W, X)
    assert found.residuals.nbytes == expected.residuals.nbytes != derivation.residuals.nbytes


def test_a_function_given_as_a_program_is_not_measured(imported):
    own = imported(LOSS)
    with pytest.raises(UnmeasuredError, match="was given as a program"):
        derived_with(jaxviz.derive(jaxviz.trace(own.loss)(W, X)), {own.__file__: text_of(own)})


ON_IMPORT = r"line \d+ of .*\.py is only run when it is imported"
UNMEASURED = {
    "a number": ("SCALE = float(3)\n" + LOSS.replace("h * h", "h * SCALE"), "float(3)", "float(4)", ON_IMPORT),
    "a decorator that does something else": (
        f"{REGISTER}\n@register('block'){BLOCK}{FOLD}", "@register('block')", "@jax.checkpoint\n@register('other')",
        ON_IMPORT,
    ),
    "a call that does something else": (
        f"{REGISTER}{BLOCK}step = register('block')(block)\n{FOLD}", "= register('block')(block)",
        "= jax.checkpoint(register('block')(block))", ON_IMPORT,
    ),
    "an item": (f"{BLOCK}NAMES = {{}}\nNAMES['a'] = block\n" + FOLD.replace("block(", "NAMES['a']("), "= block",
                "= jax.checkpoint(block)", ON_IMPORT),
    "a property": (
        f"class A:\n    f = property(lambda self: NAMES[-1], lambda self, f: NAMES.append(f))\nNAMES = []\nA0 = "
        f"A()\n{BLOCK}A0.f = block\n" + FOLD.replace("block(", "A0.f("),
        "= block", "= jax.checkpoint(block)", ON_IMPORT,
    ),
    "what a factory does": (
        f"def make():{INSIDE}\n    return block\nblock = make()\n{FOLD}", "return block\n",
        "return jax.checkpoint(block)\n", r"`make` on line 4 of .*\.py is not called as edited",
    ),
    "a name that is not read": (f"{BLOCK}other = block\n{FOLD}", "other = block", "other = jax.checkpoint(block)",
                                "they have no effect on the functions in memory"),
    "one of two lambdas": (
        "F = [lambda x: jnp.sin(jnp.sin(x)), lambda x: x]\ndef loss(w, x):\n    return jnp.mean(F[1](F[0](x @ w)))\n",
        "jnp.sin(jnp.sin(x))", "jax.checkpoint(jnp.sin)(jnp.sin(x))",
        r"the lambda on line 4 of .*\.py is not called as edited",
    ),
    "a variable that is not there": (
        f"def make(n):{INSIDE}\n    return block\nblock = make(2)\n{FOLD}", "x @ w", "x @ w * n",
        "`block` in memory does not have `n` of the function around it",
    ),
    "what cannot be done here": (f"{BLOCK}block.__signature__ = 3\n{FOLD}", "\ndef block",
                                 "\n@jax.checkpoint\ndef block", "they cannot be put in place here"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNMEASURED)
def test_an_edit_that_does_not_reach_all_that_is_run_is_not_measured(name, imported):
    source, old, new, said = UNMEASURED[name]
    own = imported(source)
    derivation, names, functions = derive(own.loss, W, X), dict(vars(own)), functions_of(own)
    held = repr(vars(own).get("NAMES"))
    assert old in source
    measured = measured_with(Search(derivation, False), {own.__file__: text_of(own).replace(old, new)})
    assert (measured.trade, measured.raises) == (None, False)
    assert re.search(said, measured.failed)
    assert (vars(own), repr(vars(own).get("NAMES"))) == (names, held)
    assert {f: (f.__code__, vars(f)) for f in functions} == functions


def test_functions_that_edited_code_made_are_as_they_were(imported):
    own = imported(
        f"MADE = []\ndef make():{INSIDE}\n    MADE.append(block)\n    return block\n"
        + FOLD.replace("block(", "make()(")
    )
    head = "from jax.ad_checkpoint import checkpoint_name\nSAVED = jax.checkpoint_policies.save_only_these_names('a')\n"
    changed = text_of(own).replace("def make", f"{head}def make").replace("x @ w", "checkpoint_name(x @ w, 'a')")
    derivation, names = derive(own.loss, W, X), set(vars(own))
    derived_with(derivation, {own.__file__: changed})
    assert set(vars(own)) == names
    assert len(own.MADE) == 6
    assert len({str(jax.make_jaxpr(jax.grad(lambda w, x, f=f: jnp.sum(f(w, x))))(W, X)) for f in own.MADE}) == 1


def test_libraries_do_not_warn_of_what_the_user_did_not_write(imported):
    own = imported(
        f"import warnings\n{BLOCK}\ndef loss(w, x):\n    warnings.warn('w')\n    return jnp.mean(block(w, x))\n"
    )
    with pytest.warns(UserWarning, match="w"):
        derivation = derive(own.loss, W, X)
    derived_with(derivation, {own.__file__: text_of(own).replace("\ndef block", "\n@jax.checkpoint\ndef block")})


def test_a_name_is_looked_up_in_the_package_that_the_file_is_in(tmp_path, monkeypatch):
    package, other = "rewritten_package", "rewritten_module"
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


def test_another_thread_ends_what_it_runs_with_the_edit(imported):
    wait = "    if threading.current_thread().name == 'other':\n        RUN()\n    h = jnp"
    own = imported(
        f"import threading\n{BLOCK}{FOLD}".replace("    h = jnp", wait).replace("    for _", "    START()\n    for _")
    )
    head = "from jax.ad_checkpoint import checkpoint_name\nSAVED = jax.checkpoint_policies.save_only_these_names('a')\n"
    changed = (
        text_of(own)
        .replace("import threading", f"{head}import threading")
        .replace("x @ w", 'checkpoint_name(x @ w, "a")')
    )
    inside, errors, code = threading.Event(), [], own.block.__code__

    def run():
        """Goes on when the edit was taken back."""
        inside.set()
        until = time.monotonic() + 10
        while own.block.__code__ is not code and time.monotonic() < until:
            time.sleep(0.001)

    def call():
        try:
            errors.append("name=a" in str(jax.make_jaxpr(own.block)(W, X)) or "no name")
        except Exception as error:
            errors.append(error)

    def start():
        if own.block.__code__ is not code and not inside.is_set():
            other.start()
            assert inside.wait(10)

    other = threading.Thread(target=call, name="other")
    own.RUN, own.START = run, start
    derived_with(derive(own.loss, W, X), {own.__file__: changed})
    other.join()
    assert inside.is_set()
    assert errors == [True]
    assert not hasattr(own, "checkpoint_name")


def test_other_threads_may_make_tuples_meanwhile(imported):
    own = imported(BLOCK + FOLD)
    changed = text_of(own).replace("\ndef block", "\n@jax.checkpoint\ndef block")
    derivation, errors, done = derive(own.loss, W, X), [], threading.Event()
    many = [[] for _ in range(300_000)]  # which take the interpreter long enough to switch to the other thread

    def run():
        while not done.is_set():
            try:
                tuple(x for x in range(10_000))
            except SystemError as error:
                errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    for _ in range(3):
        derived_with(derivation, {own.__file__: changed})
    done.set()
    thread.join()
    assert (errors, len(many)) == ([], 300_000)


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


def test_an_argument_that_a_checkpoint_reads_tells_nothing():
    """A loop's checkpoint may be given an argument where the planned one is given what is read of it."""
    planned = Trade(peak_nbytes=6456, nbytes=3001, flops=90904, saved_nbytes=2997)
    assert Measured(replace(planned, nbytes=3513)).is_near(planned)
    assert not Measured(replace(planned, saved_nbytes=3513)).is_near(planned)
