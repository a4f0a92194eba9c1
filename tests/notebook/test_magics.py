"""The magics, in a shell of their own: what they display, and how they report mistakes, as transcripts; and what they give back."""

import contextlib
import sys

import pytest
import transcripts
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

import jaxviz
from jaxviz.notebook.magics import JaxvizMagics

SETUP = """
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

def f(x, y=1.0):
    return jnp.sin(x) * 2.0 + y

def product(x, y):
    return jnp.sum(jnp.sin(x) * y)

def block(w, x):
    return jnp.sin(checkpoint_name(jnp.tanh(x @ w), "h h"))

def blocks(w, x):
    for _ in range(3):
        x = jax.checkpoint(block)(w, x)
    return x.sum()

def broken(x):
    raise ValueError("no such layer")

x, w, xs = jnp.ones(3), jnp.ones((4, 4)), jnp.ones((64, 4))
mine = jax.checkpoint_policies.save_only_these_names("h h")
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
    """Runs a cell; returns its result and what it printed to stderr."""

    def run_cell(text):
        capsys.readouterr()
        result = shell.run_cell(text)
        result.raise_error()
        return result.result, capsys.readouterr().err

    return run_cell


def in_the_shell(code, names):
    """Runs a cell, whose errors and messages are part of the transcript."""
    with contextlib.redirect_stderr(sys.stdout):
        InteractiveShell.instance().run_cell(code.strip("\n"))


@transcripts.of("magics")
def test_transcripts(shell, transcript, tmp_path):
    transcripts.replay(transcript, tmp_path, in_the_shell)


@pytest.mark.parametrize(
    "policy",
    [
        "mine",
        """save_only_these_names("h h")""",
        """jax.checkpoint_policies.save_only_these_names('h h', "other")""",
        """'save_only_these_names("h h")'""",
        """"jax.checkpoint_policies.save_only_these_names( 'h h' )\"""",
    ],
)
@pytest.mark.parametrize("option", ["--policy ", "--policy=", "-p "])
def test_residuals_under_a_policy(run, policy, option):
    found, err = run(f"%residuals {option}{policy} --argnums 0 blocks(w, xs)")
    assert err == ""
    assert [r.expression for r in found].count("checkpoint_name 'h h'") == 3


@pytest.mark.slow
def test_the_explorer_of_a_policy_and_of_a_plan(run, monkeypatch):
    shown = []
    monkeypatch.setattr(JaxvizMagics, "_explored", lambda self, what: shown.append(what))
    run("%residuals --policy everything_saveable --explore blocks(w, xs)")
    run("%memory --policy everything_saveable -e blocks(w, xs)")
    run("%remat --budget 0.6 -e blocks(w, xs)")
    plan, _ = run("%remat --budget 0.6 blocks(w, xs)")
    first, second, planned = (sum(r.nbytes for r in d.residuals) for d in shown)
    assert first == second
    assert planned == plan.nbytes


def test_memory_as_compiled(run, shell, capsys):
    found, _ = run("%memory --compiled --argnums 0 blocks(w, xs)")
    assert found.summary.startswith("compiled gradient of `blocks` in `w`")
    assert str(run("%compiled_memory blocks(w, xs)")[0]) == str(found)
    compared, _ = run("%memory -x --compare everything,nothing_saveable blocks(w, xs)")
    assert "compiled by XLA for cpu" in " ".join(str(compared).split())
    shell.run_cell("%memory --xla --argnums 0 blocks(w, xs)").raise_error()
    assert "XLA on cpu takes" in capsys.readouterr().out


def test_memory_is_kept_and_compared(run, shell, capsys, tmp_path):
    path = tmp_path / "a.json"
    shell.run_cell(f"%memory --compiled --save {path} blocks(w, xs)").raise_error()
    assert f"wrote {path}" in capsys.readouterr().out
    found, _ = run("%memory --compiled blocks(w, xs)")
    assert jaxviz.CompiledMemory.load(path).peak_nbytes == found.peak_nbytes
    changed, _ = run(f"%memory --compiled --policy nothing_saveable --against {path} blocks(w, xs)")
    other, _ = run("%memory --compiled --policy nothing_saveable blocks(w, xs)")
    assert (changed.before.peak_nbytes, changed.after.peak_nbytes) == (found.peak_nbytes, other.peak_nbytes)
    _, err = run(f"%memory --against {path} blocks(w, xs)")
    assert "add --compiled" in err
    _, err = run(f"%memory --compiled --against {tmp_path / 'none.json'} blocks(w, xs)")
    assert "--against: " in err
    beside, _ = run("%memory --beside blocks(w, xs)")
    assert beside.compiled.peak_nbytes == found.peak_nbytes


def test_what_compiling_takes(run):
    found, _ = run("%compile_cost product(x, x)")
    assert found.summary.startswith("compiling the gradient of `product` in `x` takes ")
    assert found.times == 1


def test_compare(run, monkeypatch):
    found, _ = run("%compare f(x), f(2 * x)")
    assert "the same program" in found.summary
    found, _ = run("%%compare --argnums 0\nother = lambda x: jnp.cos(x)\nf(x), other(x)")
    assert [d.what for d in found.differences() if d.is_added] == ["cos"]
    shown = []
    monkeypatch.setattr("jaxviz.notebook.magics.display", shown.append)
    run("%compare --explore f(x), jax.checkpoint(f)(x)")
    for magic in ("jaxpr", "linearize", "vjp"):
        run(f"%{magic} f(x) --explore")
    assert [(e.compared, e.stage, e.beside) for e in shown[1:]] == [
        (False, "primal", ""), (False, "forward", "linear"), (False, "forward", "backward"),
    ]  # fmt: skip
    assert shown[0].compared


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("%residuals --argnums 0,1 product(x, x)", "%residuals product(x, x) --argnums 0,1"),
        ("%residuals -a all product(x, x)", "%residuals product(x, x) -a all  # of all, --explore"),
        ("%residuals --argnums=0,1 product(x, -x)", "%residuals product(x, -x) --argnums=0,1"),
        ("%remat --budget '100%' product(x, x)", "%remat product(x, x) -b 100%"),
        ("%compare --argnums 1 f(x, x), f(x, x * 2)", "%compare f(x, x), f(x, x * 2) --argnums 1"),
        ("%%residuals --argnums 1\nproduct(x, x)", "%%residuals product(x, x) --argnums 1\n# that is all"),
    ],
)
def test_options_may_stand_after_the_call(run, before, after):
    (first, err), (second, _) = run(before), run(after)
    assert err == ""
    assert str(first) == str(second) != ""


@pytest.mark.parametrize(
    ("text", "at", "offered"),
    [
        ("%residuals --", None, {"--argnums", "--policy", "--compare", "--explore"}),
        ("r = %residuals f(x) --ex", None, {"--explore"}),
        ("%residuals --explore f(x) --ex", None, set()),
        ("%%remat --co\nf(x)", len("%%remat --co"), {"--code", "--compare"}),
        ("%jaxpr --", None, {"--argnums", "--explore", "--stage"}),
        ("%compiled_memory --a", None, {"--against", "--argnums"}),
        ("%timeit --", None, set()),
    ],
)
def test_options_are_completed(shell, text, at, offered):
    with provisionalcompleter():
        found = {c.text for c in shell.Completer.completions(text, len(text) if at is None else at)}
    assert {name for name in found if name.startswith("--")} == offered
    assert found == offered or not offered  # nothing else gets in the way


def test_the_whole_traceback_is_kept_for_tb_and_help_is_shown(run, shell, capsys):
    run("%jaxpr broken(1.0)")
    shell.run_line_magic("tb", "")
    assert "no such layer" in capsys.readouterr().out
    shell.run_cell("%jaxpr?")
    assert "Show the jaxpr of a call" in capsys.readouterr().out


@pytest.fixture
def watched(nothing_from_disk):
    yield jaxviz.watch_compilations()
    jaxviz.watch_compilations(False)


def test_recompile_tells_of_a_function_and_of_a_cell(run, watched):
    run("g = jax.jit(lambda x: x * 2.5)\ng(jnp.ones(3))\ng(jnp.ones(4))")
    shown, _ = run("%recompile g")
    assert "x: f32[3] → f32[4]" in str(shown)
    shown, _ = run("%%recompile\ng(jnp.ones(5))")
    assert [f.count for f in shown] == [1]
    assert shown[0].compiled[0].number == 3
    shown, _ = run("%recompile")
    assert shown.count >= 3
    _, err = run("%recompile no_such_function")
    assert "no_such_function" in err


@pytest.mark.slow
def test_profile_runs_a_call(run, nothing_from_disk):
    shown, err = run("%profile --repeat 3 jax.jit(f)(x)")
    assert err == ""
    assert shown.repeats == 3
    assert shown["compilation"] > 0
    _, err = run("%profile broken(x)")
    assert "no such layer" in err
