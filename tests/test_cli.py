"""The command line: its output and files, its exit statuses, and that no name controls the terminal."""

import json
import os
import subprocess
import sys

import jax.numpy as jnp
import jsonschema
import pytest

import jaxviz
from jaxviz.__main__ import main as main_of_process
from jaxviz.cli import main

MODEL = '''
import jax
import jax.numpy as jnp

params = {"w": jnp.ones((16, 4))}
w = params["w"]

def loss(params, x, train=True):
    """A loss."""
    h = jnp.tanh(x @ params["w"])
    return jnp.sum(jax.checkpoint(jnp.sin)(h * h)) if train else h[0, 0]

def deep(w, x):
    for _ in range(3):
        x = jnp.sin(x @ w)
    return x.sum()

def broken(x):
    raise ValueError("no such \\x1b[31mlayer\\u202e")

def rooted(x):
    return jnp.sum(jnp.sqrt(x))

def loops(x):
    return jax.lax.while_loop(lambda c: c < 9.0, lambda c: c * x, x)

def evil(d):
    return jnp.sum(jnp.sin(d["\\x1b[2J\\u202eevil"]) * d["\\x1b[2J\\u202eevil"])

evil.__name__ = "\\x1b[2J\\u202eevil"
hostile = {"\\x1b[2J\\u202eevil": jnp.ones(3)}

def same(x):
    return x

class Model:
    @staticmethod
    def apply(x):
        return jnp.sin(x)
'''
CALL = ["--args", "params, f32[8,16]"]


def valid(out):
    """JSON as printed, which the schema that it names describes."""
    data = json.loads(out)
    jsonschema.validate(data, jaxviz.schema(data["schema"]))
    return data


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "command_line_model.py"
    path.write_text(MODEL)
    return path


@pytest.fixture
def run(model, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(model.parent)
    # Not the messages of the terminal that runs the tests, or of a library, are under test.
    monkeypatch.setenv("COLUMNS", "100")

    def run_command(command, function, *words):
        capsys.readouterr()
        status = main([command, f"{model}:{function}", *words])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    yield run_command
    sys.modules.pop("command_line_model", None)


def test_the_reports_are_those_of_the_functions(run, model):
    params, x = {"w": jnp.ones((16, 4))}, jnp.ones((8, 16))
    status, out, err = run("residuals", "loss", *CALL)
    assert (status, err) == (0, "")
    sys.path.insert(0, str(model.parent))
    import command_line_model

    assert out.rstrip("\n") == str(jaxviz.residuals(command_line_model.loss, params, x))
    status, out, _ = run("memory", "loss", "--args", "params, jnp.ones((8, 16))")
    assert out.startswith("memory of the gradient of `loss` in `params`: modelled peak")
    status, out, _ = run("jaxpr", "loss", *CALL)
    assert out.rstrip("\n") == str(jaxviz.trace(command_line_model.loss)(params, x))
    status, out, _ = run("jaxpr", "loss", *CALL, "--stage", "backward")
    assert out.rstrip("\n") == str(jaxviz.derive(command_line_model.loss, params, x).backward)
    assert run("lint", "loss", *CALL)[1].startswith("lint of the gradient of `loss`")
    assert "compiled on cpu: no collectives" in " ".join(run("collectives", "loss", *CALL)[1].split())
    status, out, _ = run("remat", "deep", "--args", "jnp.ones((4, 4)), f32[64,4]", "--budget", "0.7", "--code")
    assert status == 0
    assert "jax.checkpoint" in out


def test_a_module_by_its_name_and_keyword_arguments(run, model, capsys):
    assert main(["jaxpr", "command_line_model:loss", "--args", "params, f32[8,16], train=False"]) == 0
    assert "remat" not in capsys.readouterr().out
    assert main(["jaxpr", "command_line_model:Model.apply", "--args", "bf16[]"]) == 0
    assert "a:bf16[]. let b:bf16[] = sin a" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "type_"),
    [
        ("f32[2,3]", "f32[2,3]"), ("bool[4]", "bool[4]"), ("i32[]", "i32[]"), ("[u8[ ]][0]", "u8[]"), ("bf16[8 , 1]", "bf16[8,1]"),
        ("bool(1) and jnp.float32(2)", "f32[]"),
    ],
)  # fmt: skip
def test_types_stand_for_arrays(run, given, type_):
    status, out, _ = run("jaxpr", "same", "--args", given)
    assert status == 0
    assert f"a:{type_}. let" in out


def test_json(run):
    status, out, err = run("residuals", "loss", *CALL, "--json")
    assert status == 0
    assert valid(out)["function"] == "loss"
    status, out, err = run("residuals", "loss", *CALL, "--json", "--policy", "dots_saveable")
    assert valid(out)["nbytes"] > 0
    assert err.startswith("with dots_saveable on ")
    for command in ("memory", "lint", "collectives"):
        assert valid(run(command, "loss", *CALL, "--json")[1])["function"] == "loss"
    plan = ["--args", "w[:4], f32[64,4]", "--json"]
    assert valid(run("remat", "deep", *plan, "--budget", "0.7")[1])["schema"] == "plan_remat"
    assert valid(run("remat", "deep", *plan, "--compare", "everything")[1])["schema"] == "compare_policies.plans"
    assert valid(run("memory", "deep", *plan, "--compare", "everything")[1])["schema"] == "compare_policies.memory"


def test_a_report_with_nothing_in_it(run):
    """It has no items, and is a report all the same."""
    status, out, _ = run("residuals", "same", "--args", "f32[]")
    assert (status, out.startswith("the gradient of `same` in `x` saves nothing")) == (0, True)
    status, out, _ = run("lint", "same", "--args", "f32[]")
    assert (status, out.startswith("lint of the gradient of `same`")) == (0, True)
    assert valid(run("lint", "same", "--args", "f32[]", "--json")[1])["advice"] == []


def test_policies_side_by_side(run):
    status, out, _ = run("residuals", "loss", *CALL, "--compare", "dots_saveable,nothing_saveable")
    assert status == 0
    assert "nothing_saveable" in out


@pytest.mark.slow
def test_files(run, tmp_path):
    names = {name: tmp_path / f"x.{name}" for name in ("svg", "png", "pdf", "dot", "html")}
    words = [w for name, path in names.items() for w in (f"--{name}", str(path))]
    status, out, err = run("explore", "loss", *CALL, "--stage", "forward+backward", *words)
    assert (status, out) == (0, "")
    assert err.count("wrote ") == 5
    starts = {name: path.read_bytes()[:300] for name, path in names.items()}
    assert b"<svg" in starts["svg"] or b"<?xml" in starts["svg"]
    assert starts["png"].startswith(b"\x89PNG")
    assert starts["pdf"].startswith(b"%PDF-")
    assert starts["dot"].startswith(b"digraph {")
    assert starts["html"].startswith(b"<!doctype html>")
    for report, function, call in (
        ("residuals", "loss", CALL),
        ("memory", "loss", CALL),
        ("compiled-memory", "loss", CALL),
        ("remat", "deep", ["--args", "w[:4], f32[64,4]", "--budget", "0.7"]),
    ):
        figure = tmp_path / f"{report}.pdf"
        assert run(report, function, *call, "--plot", str(figure))[0] == 0
        assert figure.read_bytes().startswith(b"%PDF-")
        assert b"/Type3" not in figure.read_bytes()


def test_a_nan_a_profile_and_two_stages(run):
    status, out, err = run("nan", "rooted", "--args", "jnp.zeros(2)")
    assert (status, err) == (0, "")
    assert "the first infinity is born at" in out
    assert run("nan", "rooted", "--args", "jnp.ones(2)")[1].endswith("rooted(jnp.ones(2)): every result is finite\n")
    status, out, err = run("nan", "rooted", "--args", "jnp.ones(2)", "--json")
    assert (status, json.loads(out)) == (0, None)
    assert "every result is finite" in err
    assert valid(run("nan", "rooted", "--args", "jnp.zeros(2)", "--json")[1])["schema"] == "find_nan"
    for command in ("nan", "profile"):
        status, out, err = run(command, "rooted", "--args", "f32[2]")
        assert (status, out) == (1, "")
        assert f"{'find_nan' if command == 'nan' else command} runs the function, so it needs arrays" in " ".join(
            err.split()
        )
    status, out, _ = run("profile", "rooted", "--args", "jnp.ones(2)", "--repeat", "2", "--json")
    assert valid(out)["repeats"] == 2
    forward, backward = (run("jaxpr", "rooted", "--args", "f32[2]", "--stage", s)[1] for s in ("forward", "backward"))
    assert run("vjp", "rooted", "--args", "f32[2]")[1] == f"forward:\n{forward}\nbackward:\n{backward}"


def test_two_compilations(run, tmp_path):
    saved = str(tmp_path / "before.json")
    status, out, err = run("compiled-memory", "loss", *CALL, "--save", saved)
    assert (status, err) == (0, f"wrote {saved}\n")
    before = jaxviz.CompiledMemory.load(saved)
    assert before.summary in " ".join(out.split())
    status, out, err = run("compiled-memory", "loss", *CALL, "--against", saved)
    assert (status, err) == (0, "")
    assert "the same bytes at the peak" in out
    assert run("memory", "loss", *CALL, "--compiled", "--against", saved)[1] == out
    longer = ["--args", CALL[1].replace("64", "128")] if "64" in CALL[1] else CALL
    status, out, _ = run("compiled-memory", "loss", *longer, "--against", saved, "--json")
    assert status == 0
    assert valid(out)["before"]["peak_nbytes"] == before.peak_nbytes
    assert valid(run("compiled-memory", "loss", *longer, "--json")[1])["schema"] == "compiled_memory"


def test_what_compiling_takes(run):
    status, out, _ = run("compile-cost", "deep", "--args", "w[:4], f32[2,4]")
    assert status == 0
    assert " ".join(out.split()).startswith("compiling the gradient of `deep` in `w` takes ")
    status, out, _ = run("compile-cost", "deep", "--args", "w[:4], f32[2,4]", "--json")
    assert valid(out)["counts"]["equations"] > 3


def test_the_model_beside_the_compiled_program(run, tmp_path):
    status, out, _ = run("memory", "loss", *CALL, "--beside")
    assert status == 0
    assert out.startswith("gradient of `loss` in `params`: modelled peak ")
    figure = tmp_path / "beside.svg"
    assert run("memory", "loss", *CALL, "--beside", "--plot", str(figure))[0] == 0
    assert "modelled and compiled" in figure.read_text()
    status, _, err = run("memory", "loss", *CALL, "--beside", "--compare", "dots_saveable")
    assert (status, "of them" in err) == (2, True)
    assert valid(run("memory", "loss", *CALL, "--beside", "--json")[1])["schema"] == "memory.beside"


def test_source_text_stays_out_of_files(run, tmp_path):
    path = tmp_path / "x.dot"
    run("explore", "loss", *CALL, "--dot", str(path))
    assert "h * h" in path.read_text()
    run("explore", "loss", *CALL, "--dot", str(path), "--no-source")
    assert "h * h" not in path.read_text()


def test_the_width(run):
    wide, narrow = (run("residuals", "loss", *CALL, "--width", str(n))[1] for n in (140, 70))
    assert 70 < max(map(len, wide.splitlines())) <= 140
    assert max(map(len, narrow.splitlines())) < max(map(len, wide.splitlines()))
    assert max(map(len, jaxviz.residuals(jnp.sin, 1.0).table().splitlines())) <= 100  # the width is the command's own


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["residuals", "loss"], "expected module:function, such as model:loss"),
        (["residuals", "nowhere:loss"], "no module 'nowhere' was found; give a file by its path"),
        (["residuals", "nowhere.py:loss"], "no such file: nowhere.py"),
        (["residuals", "command_line_model:lost"], "has no 'lost'; it has loss, deep, broken"),
        (["residuals", "command_line_model:params"], "is not a function (it is of type dict)"),
        (["residuals", "command_line_model:loss"], "missing a required argument: 'params'"),
        (["residuals", "command_line_model:loss", "--args", "params, ("], "not valid Python"),
        (["residuals", "command_line_model:loss", *CALL, "--argnums", "first"], "--argnums takes numbers"),
        (["residuals", "command_line_model:loss", *CALL, "--policy", "no_such"], "no_such"),
        (["jaxpr", "command_line_model:loss", *CALL, "--stage", "last"], "--stage must be primal, jvp, forward"),
        (
            ["explore", "command_line_model:loss", *CALL, "--stage", "last", "--svg", "x.svg"],
            "several joined by +; got 'last'",
        ),
        (["explore", "command_line_model:loss", *CALL, "--stage", "nonsense"], "--stage must be primal, jvp"),
        (["explore", "command_line_model:loss", *CALL, "--stage", "jvp", "--html", "x.html"], "are about a picture"),
        (["explore", "command_line_model:loss", *CALL, "--depth", "1"], "are about a picture"),
        (
            ["explore", "command_line_model:loss", *CALL, "--depth", "-1", "--svg", "x.svg"],
            "depth must be a whole number",
        ),
        (["memory", "command_line_model:loss", *CALL, "--plot", "x.gif"], "--plot writes .pdf, .svg or .png"),
        (
            ["compiled-memory", "command_line_model:loss", *CALL, "--against", "no_such.json"],
            "No such file or directory: 'no_such.json'",
        ),
        (
            ["compiled-memory", "command_line_model:loss", *CALL, "--against", "x.json", "--plot", "x.pdf"],
            "of them",
        ),
        (["compiled-memory", "command_line_model:loss", *CALL, "--compare", "everything"], "unrecognized arguments"),
        (["residuals", "command_line_model:loss", *CALL, "--compare", ""], "--compare takes policies"),
        *(
            ([*words.split(), *CALL], "exclude each other; give only one of them")
            for words in (
                "memory command_line_model:loss --compiled --beside",
                "memory command_line_model:loss --compiled --xla",
                "memory command_line_model:loss --compiled --compare everything",
                "remat command_line_model:loss --compare everything --memory 1GiB",
                "remat command_line_model:loss --policy dots_saveable --work 5%",
                "remat command_line_model:loss --compare everything --code",
            )
        ),
        (["nothing"], "invalid choice: 'nothing'"),
        ([], "the following arguments are required: command"),
    ],
)
def test_a_mistake_in_the_command(run, capsys, words, message):
    assert main(words) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""
    assert len(shown.err.splitlines()) <= 3


def test_a_failure_names_the_users_line(run, model):
    status, out, err = run("residuals", "broken", "--args", "f32[]")
    assert (status, out) == (1, "")
    assert err.startswith("ValueError while deriving ")
    assert "no such <U+001B>[31mlayer<U+202E>" in err
    line = MODEL[: MODEL.index("raise ValueError")].count("\n") + 1
    assert f"{model}:{line}: raise ValueError" in err
    assert "\n  The function is broken at " in err
    assert len(err.splitlines()) == 4
    status, _, err = run("residuals", "broken", "--args", "f32[]", "--traceback")
    assert status == 1
    assert err.startswith("Traceback")
    assert run("memory", "loops", "--args", "2.0")[0] == 1
    assert "NameError" in run("memory", "loops", "--args", "missing")[2]


def test_a_failure_whose_text_fails_names_the_users_line(tmp_path, capsys):
    path = tmp_path / "weird.py"
    path.write_text(
        "class Weird(Exception):\n    def __str__(self):\n        raise ValueError\n\n\ndef loss(x):\n    raise Weird\n"
    )
    assert main(["residuals", f"{path}:loss", "--args", "2.0"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"Weird while deriving {path}:loss: no message\n  at {path}:7: raise Weird")


def test_names_do_not_command_the_terminal(run):
    for command in ("residuals", "memory", "jaxpr", "lint", "explore"):
        status, out, err = run(command, "evil", "--args", "hostile")
        assert status == 0
        assert not set(out + err) & {"\x1b", "\u202e"}
    assert "the gradient of `<U+001B>[2J<U+202E>evil` in `d` saves" in run("residuals", "evil", "--args", "hostile")[1]


def test_colours_are_for_terminals_alone(run, monkeypatch, capsys):
    assert "\x1b" not in run("residuals", "loss", *CALL)[1]
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert run("residuals", "loss", *CALL)[1].startswith("\x1b[1m")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("residuals", "loss", *CALL)[1]


def test_help_has_examples(capsys):
    assert main(["--help"]) == 0
    assert "jaxviz residuals model.py:loss --args" in capsys.readouterr().out
    assert main(["remat", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--budget 512MiB --code" in out
    assert "jaxviz lint" not in out


@pytest.mark.parametrize("words", [["doctor", "--json"], ["jaxpr", "command_line_model:loss", *CALL]])
def test_a_reader_that_closes_the_pipe(run, monkeypatch, words):
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr(sys, "argv", ["jaxviz", *words])
    with open(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main_of_process() == 0


@pytest.mark.slow(sweep=True)
def test_as_a_process(model):
    words = [sys.executable, "-m", "jaxviz", "residuals", f"{model.name}:loss", *CALL, "--json"]
    done = subprocess.run(words, cwd=model.parent, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["residuals"]
    check = "import sys, jaxviz.cli; print({'IPython', 'anywidget', 'matplotlib', 'graphviz'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
