"""The magics, in a shell of their own: what they display, how they report mistakes; what they return."""

import contextlib
import sys

import pytest
import transcripts
from IPython.core.interactiveshell import InteractiveShell

import jaxviz

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


@pytest.mark.slow
@transcripts.of("magics")
def test_transcripts(shell, transcript, tmp_path):
    transcripts.replay(transcript, tmp_path, in_the_shell)


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
    assert "there is no file" in err
    assert "none.json" in err
    beside, _ = run("%memory --beside blocks(w, xs)")
    assert beside.compiled.peak_nbytes == found.peak_nbytes


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%divergence --against gone.jaxviz f(x)", "there is no file gone.jaxviz"),
        ("%divergence a.jaxviz gone.jaxviz", "there is no file gone.jaxviz"),
        ("%divergence a.jaxviz", "give what to compare with: --against op-by-op"),
        ("%divergence a.jaxviz b.jaxviz c.jaxviz", "it compares two files; got a.jaxviz b.jaxviz c.jaxviz"),
        ("%divergence a.jaxviz b.jaxviz --against c.jaxviz", "got b.jaxviz too"),
        ("%divergence a.jaxviz, f(x)", "expected 2 calls"),
    ],
)
def test_two_files_of_records_are_compared(run, tmp_path, monkeypatch, line, said):
    monkeypatch.chdir(tmp_path)
    run("%divergence f(x) --save a.jaxviz")
    run("%divergence f(2 * x) --save 'b c.jaxviz'")
    for two in ("a.jaxviz 'b c.jaxviz'", "'a.jaxviz', 'b c.jaxviz'", "'b c.jaxviz' --against a.jaxviz"):
        found, error = run(f"%divergence {two}")
        assert not error
        assert "`a.jaxviz` and `b c.jaxviz` part before they run" in str(found)
    assert said in run(line)[1]


def test_flags_are_compared_for_one_call(run):
    found, _ = run("%compare --flags jax_remat3 f(x)")
    assert found.flags == ({}, {"jax_remat3": True})
    assert run("%compare f(x), jax.checkpoint(f)(x)")[0].after.residuals.saved.count == 0
    for line, said in (
        ("%compare --flags jax_remat3 f(x), f(x)", "expected a call, such as f(x)"),
        ("%compare f(x)", "expected 2 calls, such as f(x), g(x)"),
        ("%compare --flags jax_remat4 f(x)", "has no flag 'jax_remat4'; did you mean 'jax_remat3'?"),
        ("%compare --flags jax_remat3=on f(x)", "--flags: malformed node or string"),
        ("%compare --flags jax_remat3 --explore f(x)", "--explore and --flags exclude each other"),
    ):
        assert said in run(line)[1]


def test_explorers_show_the_stages_of_their_magics(run, monkeypatch):
    shown = []
    monkeypatch.setattr("jaxviz.notebook.magics.display", shown.append)
    run("%compare --explore f(x), jax.checkpoint(f)(x)")
    for magic in ("jaxpr", "linearize", "vjp"):
        run(f"%{magic} f(x) --explore")
    assert [(e.compared, e.stage, e.beside) for e in shown[1:]] == [
        (False, "primal", ""), (False, "forward", "linear"), (False, "forward", "backward"),
    ]  # fmt: skip
    assert shown[0].compared


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


@pytest.mark.slow
def test_a_run_of_a_cell_is_recorded(run):
    shown, err = run("%%jaxviz_run\nstep = jax.jit(lambda x: x - jax.grad(product)(x, x))\nafter = step(jnp.ones(7))")
    assert err == ""
    assert [(f.name, f.gradient) for f in shown.functions] == [("<lambda>", "gradient of `product` in `x`")]
    assert run("after.shape")[0] == (7,)
    assert run("import comm, ipywidgets\ncomm.create_comm is not comm.DummyComm")[0]
    run("%%jaxviz_run\ndef annotated(x: int): pass")
    assert run("annotated.__annotations__")[0] == {"x": int}
    _, err = run("%%jaxviz_run\nbroken(x)")
    assert "no such layer" in err


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
