"""The command line: its output and messages as transcripts; its files, its JSON, and what it does as a process."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import jsonschema
import pytest
import transcripts
from short_runs import short

import jaxviz
from jaxviz.__main__ import main as main_of_process
from jaxviz.cli import SKILL, main

MODEL = """
import jax
import jax.numpy as jnp

params = {"w": jnp.ones((16, 4))}
w = params["w"]

def loss(params, x):
    return jnp.sum(jax.checkpoint(jnp.sin)(jnp.tanh(x @ params["w"])))

def deep(w, x):
    for _ in range(3):
        x = jnp.sin(x @ w)
    return x.sum()
"""
CALL = ["--args", "params, f32[8,16]"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model, in which the command line is."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "command_line_model.py").write_text(MODEL)
    yield tmp_path
    sys.modules.pop("command_line_model", None)


@pytest.fixture
def run(folder, capsys):
    def run_command(command, function, *words):
        capsys.readouterr()
        status = main([command, f"command_line_model.py:{function}", *words])
        shown = capsys.readouterr()
        assert status == 0, shown.err
        return shown.out, shown.err

    return run_command


def at_the_shell(code, names):
    """Runs a command line, or else Python; what it prints to stderr begins with an exclamation mark."""
    if not code.strip().startswith("jaxviz"):
        return transcripts.at_the_prompt(code, names)
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        status = main(shlex.split(code)[1:])
    for line in errors.getvalue().splitlines():
        print(f"! {line}")
    if status:
        print(f"(exit status {status})")


@pytest.mark.slow
@transcripts.of("cli")
def test_transcript(folder, transcript):
    transcripts.replay(transcript, folder, at_the_shell)


LONG = ["--args", "w[:4], f32[64,4]"]
SCHEMAS = {
    "residuals": ("residuals", "loss", *CALL),
    "memory": ("memory", "loss", *CALL),
    "lint": ("lint", "loss", *CALL),
    "compare.flags": ("compare", "loss", *CALL, "--flags", "jax_remat3,jax_enable_x64=False"),
    "collectives": ("collectives", "loss", *CALL),
    "plan_remat": ("remat", "deep", *LONG, "--budget", "0.7"),
    "compare_policies.plans": ("remat", "deep", *LONG, "--compare", "everything"),
    "compare_policies.memory": ("memory", "deep", *LONG, "--compare", "everything"),
    "memory.beside": ("memory", "loss", *CALL, "--beside"),
    "compiled_memory": ("compiled-memory", "loss", *CALL),
    "compile_cost": ("compile-cost", "deep", *LONG),
    "gradient_flow": ("flow", "loss", *CALL),
    "find_nan": ("nan", "deep", "--args", "w[:4], jnp.full((2, 4), jnp.inf)"),
    "profile": ("profile", "deep", "--args", "w[:4], jnp.ones((2, 4))", "--repeat", "2"),
}


@pytest.mark.slow
@pytest.mark.parametrize("schema", SCHEMAS)
def test_json_is_of_its_schema(run, schema):
    data = json.loads(run(*SCHEMAS[schema], "--json")[0])
    jsonschema.validate(data, jaxviz.schema(data["schema"]))
    assert data["schema"] == schema


def test_json_of_what_a_policy_saves_and_of_a_change(run):
    out, err = run("residuals", "loss", *CALL, "--json", "--policy", "dots_saveable")
    assert json.loads(out)["nbytes"] > 0
    assert err.startswith("with dots_saveable on ")
    run("compiled-memory", "loss", *CALL, "--save", "before.json")
    found = json.loads(run("compiled-memory", "loss", *CALL, "--against", "before.json", "--json")[0])
    jsonschema.validate(found, jaxviz.schema(found["schema"]))
    assert found["before"]["peak_nbytes"] == jaxviz.CompiledMemory.load("before.json").peak_nbytes


STARTS = {
    "svg": (b"<svg", b"<?xml"),
    "png": b"\x89PNG",
    "pdf": b"%PDF-",
    "dot": b"digraph {",
    "html": b"<!doctype html>",
}


@pytest.mark.slow(sweep=True)
def test_files(run, folder):
    words = [w for name in STARTS for w in (f"--{name}", f"x.{name}")]
    out, err = run("explore", "loss", *CALL, "--stage", "forward+backward", *words)
    assert (out, err.count("wrote ")) == ("", 5)
    for name, start in STARTS.items():
        assert (folder / f"x.{name}").read_bytes().startswith(start), name
    for command in ("residuals", "memory", "compiled-memory", "remat"):
        of_plan = ["deep", *LONG, "--budget", "0.7"] if command == "remat" else ["loss", *CALL]
        run(command, *of_plan, "--plot", f"{command}.pdf")
        figure = (folder / f"{command}.pdf").read_bytes()
        assert figure.startswith(b"%PDF-")
        assert b"/Type3" not in figure
    run("memory", "loss", *CALL, "--beside", "--plot", "beside.svg")
    assert "modelled and compiled" in (folder / "beside.svg").read_text()


def test_what_compiling_takes_and_the_traceback(run, capsys):
    assert " ".join(run("compile-cost", "deep", *LONG)[0].split()).startswith("compiling the gradient of `deep` in `w`")
    assert main(["residuals", "command_line_model:deep", "--args", "w, f32[3]", "--traceback"]) == 1
    assert capsys.readouterr().err.startswith("Traceback")


def test_colours_are_for_terminals_alone(run, monkeypatch):
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert run("residuals", "loss", *CALL)[0].startswith("\x1b[1m")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("residuals", "loss", *CALL)[0]


def test_help_has_examples(capsys):
    assert main(["--help"]) == 0
    assert "jaxviz residuals model.py:loss --args" in capsys.readouterr().out
    assert main(["remat", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--budget 512MiB --code" in out
    assert "jaxviz lint" not in out


@pytest.mark.parametrize("words", [["doctor", "--json"], ["jaxpr", "command_line_model:loss", *CALL]])
def test_a_reader_that_closes_the_pipe(folder, monkeypatch, words):
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr(sys, "argv", ["jaxviz", *words])
    with open(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main_of_process() == 0


@pytest.mark.slow(sweep=True)
def test_as_a_process(folder):
    words = [sys.executable, "-m", "jaxviz", "residuals", "command_line_model.py:loss", *CALL, "--json"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["residuals"]
    check = "import sys, jaxviz.cli; print({'IPython', 'anywidget', 'matplotlib', 'graphviz'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_two_recorded_runs_are_compared(tmp_path, capsys, monkeypatch):
    (tmp_path / "model.py").write_text(
        "import jax.numpy as jnp\n\ndef loss(x, a):\n    h = jnp.tanh(x) * a\n    return jnp.sum(h * h)\n"
    )
    monkeypatch.chdir(tmp_path)
    for name, a in (("a", 1.0), ("b", 1.01)):
        assert main(["divergence", "model.py:loss", "--args", f"jnp.ones(3), {a}", "--save", f"{name}.jaxviz"]) == 0
    capsys.readouterr()
    assert main(["divergence", "b.jaxviz", "--against", "a.jaxviz"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "`a.jaxviz` and `b.jaxviz` part before they run: the argument `a` is another" in said
    assert main(["divergence", "a.jaxviz", "b.jaxviz"]) == 0
    assert " ".join(capsys.readouterr().out.split()) == said
    assert main(["divergence", "b.jaxviz", "--against", "float64"]) == 2
    for given, said in (
        (["b.jaxviz", "--against", "c.jaxviz"], "there is no file c.jaxviz; its folder has a.jaxviz, b.jaxviz; "),
        (["c.jaxviz", "--against", "b.jaxviz"], "there is no file c.jaxviz; its folder has a.jaxviz, b.jaxviz; "),
        (["b.jaxviz", "--against", "d/c.jaxviz"], "there is no file d/c.jaxviz, and no folder d; "),
        (["b.jaxviz", "--against", "float46"], "or a file that --save wrote; got float46"),
        (["b.jaxviz", "c.jaxviz"], "there is no file c.jaxviz; its folder has a.jaxviz, b.jaxviz; "),
        (["a.jaxviz", "b.jaxviz", "--against", "a.jaxviz"], "or one thing with --against; got b.jaxviz too"),
        (
            ["model.py:loss", "b.jaxviz", "--args", "jnp.ones(3), 1.0"],
            "give two files that --save wrote, or one thing with --against",
        ),
    ):
        capsys.readouterr()
        assert main(["divergence", *given]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert "Errno" not in error
        assert ("jaxviz.record(f, *args).save(path) writes such files" in error) == ("there is no file" in error)


def test_what_the_skill_names_is_there():
    """Each command of its table with its options, and each function."""
    rows = [line for line in SKILL.read_text().splitlines() if line.startswith("| ") and "`jaxviz" in line]
    assert len(rows) > 12
    for row in rows:
        for command in re.findall(r"`jaxviz (.*?)`", row):
            name, *words = command.split()
            known = help_of(name)
            assert [w for w in words if w.startswith("--") and w not in known] == [], command
        for function in re.findall(r"`jaxviz\.(\w+)", row):
            assert hasattr(jaxviz, function)


def help_of(command):
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert main([command, "--help"]) == 0
    return shown.getvalue()


def test_the_skill_is_printed(capsys):
    assert main(["skill"]) == 0
    assert capsys.readouterr().out == SKILL.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("command", short(["residuals", "memory", "lint", "flow", "remat", "jaxpr"], ["residuals"]))
def test_an_answer_for_an_agent_is_short(command, tmp_path):
    (tmp_path / "layers.py").write_text(
        "import jax.numpy as jnp\ndef loss(ws, x):\n"
        + "".join(f"    x = jnp.tanh(x @ ws[{i}]) + x\n" for i in range(150))
        + "    return jnp.sum(x)\n"
    )
    words = [command, f"{tmp_path}/layers.py:loss", "--args", "[f32[8,8]] * 150, f32[4,8]", "--agent"]
    words += ["--types"] if command == "flow" else []
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert main(words) == 0
    assert 0 < len(shown.getvalue().strip()) <= 12_000


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_their_options(shell, capsys, tmp_path):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert ("--accept" if shell != "fish" else "-l accept") in script
    if shutil.which(shell) is None:
        return  # its words are checked above, and its syntax where it is installed
    (tmp_path / "script").write_text(script)
    subprocess.run([shell, "-n", tmp_path / "script"], check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["jaxviz", "resi"], ["residuals"]),
        (["jaxviz", "lock", "--acc"], ["--accept"]),
        (["jaxviz", "run", "--bud"], ["--budget"]),
    ],
)
def test_bash_completes(words, expected, capsys):
    main(["completion", "bash"])
    script = f"{capsys.readouterr().out}\nCOMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1}\n_jaxviz\n"
    done = subprocess.run(
        ["bash", "-c", f'{script}printf "%s\\n" "${{COMPREPLY[@]}}"'], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == expected


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
def test_fish_completes(capsys, tmp_path):
    main(["completion", "fish"])
    (tmp_path / "script").write_text(capsys.readouterr().out)
    code = 'source script; complete -C "jaxviz resi"; complete -C "jaxviz lock --acc"'
    done = subprocess.run(["fish", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [line.partition("\t")[0] for line in done.stdout.splitlines()] == ["residuals", "--accept"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_takes_the_completion_where_nothing_has_started_its_own(capsys, tmp_path):
    main(["completion", "zsh"])
    (tmp_path / ".zshrc").write_text(capsys.readouterr().out)
    code = "print ${_comps[jaxviz]}"
    env = {**os.environ, "ZDOTDIR": str(tmp_path), "TERM": "dumb"}
    done = subprocess.run(["zsh", "-i", "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("_bash_complete -o filenames -F _jaxviz", "")
