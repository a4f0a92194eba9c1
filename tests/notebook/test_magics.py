"""The magics, in a shell of their own: what they show, and what they say to a mistake."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

SETUP = """
import jax
import jax.numpy as jnp

def f(x, y=1.0):
    return jnp.sin(x) * 2.0 + y

class Model:
    def loss(self, x):
        return jnp.sum(x**2)

def broken(x):
    raise ValueError("no such layer")

def mismatched(x):
    return x @ jnp.ones((4, 4))

def loops(x):
    return jax.lax.while_loop(lambda c: c < 9.0, lambda c: c * x, x)

model = Model()
x = jnp.ones(3)
"""


@pytest.fixture(scope="module")
def shell():
    shell = InteractiveShell.instance()
    shell.run_cell(SETUP).raise_error()
    shell.run_line_magic("load_ext", "jaxviz")
    yield shell
    InteractiveShell.clear_instance()


@pytest.fixture
def run(shell, capsys):
    """Runs a cell; gives its result, and what it printed to stderr."""

    def run_cell(text):
        capsys.readouterr()
        result = shell.run_cell(text)
        result.raise_error()
        return result.result, capsys.readouterr().err

    return run_cell


def test_jaxpr(run):
    shown, err = run("%jaxpr f(1.0)")
    assert "b:f32[] = sin a" in repr(shown)
    assert err == ""


def test_memory(run, shell, capsys):
    shown, err = run("%memory model.loss(x)")
    assert str(shown).startswith("memory of loss: modelled peak")
    assert err == ""
    shell.run_cell("%memory --xla --argnums 0 model.loss(x)").raise_error()
    assert "XLA on cpu takes" in capsys.readouterr().out


def test_remat(run):
    run(
        "def deep(w, x):\n    for _ in range(3):\n        x = jnp.sin(x @ w)\n    return x.sum()\nw = jnp.ones((4, 4))\nxs = jnp.ones((64, 4))"
    )
    plan, err = run("%remat --budget 0.7 deep(w, xs)")
    assert str(plan).startswith("plan for deep within ")
    assert err == ""
    plan, err = run("%remat -c -b 0.001 deep(w, xs)")
    assert plan is None
    assert "cannot be met for deep: the least is" in err
    assert "--budget takes a number" in run("%remat --budget much deep(w, xs)")[1]


@pytest.mark.parametrize(
    "call", ["f(x, y=x)", "f(*[x])", "f(**{'x': x})", "model.loss(x)", "jax.jit(f)(x)", "f(x,\n  x)"]
)
def test_any_kind_of_call(run, call):
    shown, err = run(f"%%jaxpr\n{call}")
    assert "f32[3]" in repr(shown)
    assert err == ""


def test_a_cell_runs_what_stands_before_the_call(run):
    shown, _ = run("%%jaxpr\nz = 3.0\nf(z)")
    assert "sin a" in repr(shown)


def test_residuals(run):
    found, _ = run("%residuals f(x)")
    assert [r.kind for r in found] == ["intermediate", "literal"]
    assert "why it is kept" in found._repr_html_()


def test_residuals_in_some_arguments(run):
    found, _ = run("%residuals --argnums 1 (lambda x, y: x * y)(x, x)")
    assert [r.expression for r in found] == ["x"]


def test_linearize_and_vjp(run):
    shown, _ = run("%linearize f(1.0)")
    assert [name for name, _ in shown.programs] == ["forward", "linear"]
    shown, _ = run("%vjp f(1.0)")
    assert [name for name, _ in shown.programs] == ["forward", "backward"]


def test_help(run, capsys, shell):
    shell.run_cell("%jaxpr?")
    assert "Show the jaxpr of a call" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%jaxpr f(1.0", "%jaxpr: not valid Python: '(' was never closed"),
        ("%jaxpr", "%jaxpr: expected a call, such as f(x); got nothing"),
        ("%jaxpr 3 + 4", "%jaxpr: expected a call, such as f(x); got: 3 + 4"),
        ("%jaxpr g(1.0)", "NameError while reading g(1.0): name 'g' is not defined"),
        (
            "%jaxpr f('a')",
            "TypeError while tracing f('a'): Argument 'a' of type <class 'str'> is not a valid JAX type.",
        ),
        ("%jaxpr broken(1.0)", "ValueError while tracing broken(1.0): no such layer"),
        ("%jaxpr mismatched(x)", "TypeError while tracing mismatched(x): dot_general requires contracting dimensions"),
        (
            "%vjp loops(2.0)",
            "ReverseModeError while transposing loops(2.0): Reverse-mode differentiation does not work for lax.while_loop",
        ),
        ("%residuals --argnums one f(x)", "%residuals: --argnums takes numbers such as 0 or 0,1; got: one"),
        ("%residuals --argnums 7 f(x)", "TypeError while deriving f(x): differentiating with respect to argnums=7"),
    ],
)
def test_a_mistake_is_answered_in_a_few_lines(run, cell, message):
    result, err = run(cell)
    assert result is None
    assert message in err
    assert len(err.strip().splitlines()) <= 5
    assert "site-packages" not in err


def test_the_users_own_line_is_shown(run):
    _, err = run("%jaxpr broken(1.0)")
    assert 'raise ValueError("no such layer")' in err


def test_the_whole_traceback_is_kept_for_tb(run, shell, capsys):
    run("%jaxpr broken(1.0)")
    shell.run_line_magic("tb", "")
    assert "no such layer" in capsys.readouterr().out
