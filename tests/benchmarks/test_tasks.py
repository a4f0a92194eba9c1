"""The tasks for solvers: every checker rejects what is handed out and a wrong attempt, and accepts the solution."""

import ast
import json
import shlex
import sys
from collections import Counter

import pytest

from benchmarks.tasks import harness
from benchmarks.tasks.__main__ import main
from benchmarks.tasks.judge import judge
from benchmarks.tasks.judging import Edit, names_line

NAMES = harness.names()
ANSWERS = [name for name in NAMES if any(e.file == "answer.txt" for e in harness.checker(name).SOLUTION.edits)]
PROGRAMS = [name for name in NAMES if name not in ANSWERS]
SHORT = "ragged_batches"
LIBRARIES = {"microbatches": ["flax"], "annealed_agent": ["equinox"], "learned_initialization": ["optax"]}


def tried(name, folder, attempt):
    """A folder as a solver leaves it."""
    harness.prepare(name, folder)
    if attempt:
        getattr(harness.checker(name), attempt).apply(folder)
    return folder


def test_there_are_twenty_tasks():
    kinds = Counter(harness.checker(name).KIND for name in NAMES)
    assert kinds == {
        "out of memory": 4, "NaN": 3, "policy without effect": 3, "resharding": 3, "recompilation": 3,
        "zero gradient": 2, "divergence": 2,
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_complete(name):
    folder = harness.TASKS / name
    checker = harness.checker(name)
    assert "jaxviz" in checker.__doc__
    assert checker.SOLUTION.why
    assert checker.WRONG.why
    assert len((folder / "question.md").read_text().split()) < 160
    texts = {file.name: file.read_text() for file in folder.glob("*.py")}
    assert len(texts) > 1
    assert max(len(text.splitlines()) for text in texts.values()) <= 120
    imported = {a.name for text in texts.values() for n in ast.walk(ast.parse(text))
                if isinstance(n, ast.Import) for a in n.names}  # fmt: skip
    assert "jaxviz" not in imported


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_judged(name, tmp_path):
    assert judge(name, tried(name, tmp_path, None)) == ["there is no answer.txt"]
    assert judge(name, tried(name, tmp_path, "WRONG"))
    assert judge(name, tried(name, tmp_path, "SOLUTION")) == []


CASES = [
    pytest.param(name, marks=pytest.mark.slow if name == SHORT else pytest.mark.slow(sweep=True)) for name in PROGRAMS
]


@pytest.mark.parametrize("attempt", [None, "WRONG", "SOLUTION"])
@pytest.mark.parametrize("name", CASES)
def test_programs_are_judged(name, attempt, tmp_path):
    for library in LIBRARIES.get(name, ()):
        pytest.importorskip(library)
    wrong = harness.check(name, tried(name, tmp_path, attempt))
    assert (wrong == []) == (attempt == "SOLUTION"), wrong
    assert [text for text in wrong if "Error: " in text or "status" in text or " takes " in text] == []


def test_a_line_is_named_in_several_ways():
    judged = lambda text: names_line(text, "rare_observation", "hmm.py", "belief = joint / evidence")
    for text in ("hmm.py:26", "`hmm.py`, line 26", "line 26 of hmm.py", "It is at hmm.py:26 (hmm.py:26)."):
        assert judged(text) == [], text
    assert judged("hmm.py:25") == ["it is not hmm.py:25"]
    assert judged("data.py:26") == ["it is not data.py:26"]
    assert judged("hmm.py:26 or hmm.py:25") == ["answer.txt has to name one line, such as hmm.py:1, and names 2"]


def test_an_edit_needs_its_text(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(ValueError, match=r"a\.py has 2 times: x = 1"):
        Edit("a.py", "x = 1", "x = 2").apply(tmp_path)


# --- broken solutions -------------------------------------------------------------------------------------------------

BROKEN = {
    "import jax\n1 / 0\n": "model.py:2: ZeroDivisionError: division by zero",
    "import os\nos._exit(3)\n": "it ends the process with status 3",
    "init = None\ndef batch_loss(params, tokens, mask): ...\n": "model.py has no function `init` any more",
    "def init(seed): ...\ndef batch_loss(params, tokens, mask): ...\n": "`init` takes other arguments than (key)",
    "import time\ntime.sleep(60)\n": "it takes more than 8 s",
}


@pytest.mark.slow(sweep=True)
@pytest.mark.parametrize("program", BROKEN)
def test_a_broken_solution_does_not_stop_the_harness(program, tmp_path):
    tried("ragged_batches", tmp_path, None)
    (tmp_path / "model.py").write_text(program)
    assert harness.check("ragged_batches", tmp_path, limit=8 if "sleep" in program else 60) == [BROKEN[program]]


# --- the command line -------------------------------------------------------------------------------------------------


def test_what_is_handed_out_has_no_answers(tmp_path):
    assert main(["prepare", "rare_observation", str(tmp_path / "new")]) == 0
    files = {file.name for file in (tmp_path / "new").iterdir()}
    assert files == {"question.md", "data.py", "hmm.py"}


def test_tasks_are_listed(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 20
    assert "long_rollout            out of memory" in lines


def test_an_unknown_task_is_named(capsys):
    assert main(["run", "--solver", "true", "no_such"]) == 2
    assert capsys.readouterr().err == "no task no_such; `list` prints them\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempt", "said", "solved"), [("SOLUTION", "solved", 1), ("WRONG", "it is not hmm.py:27; it is not step 100", 0)]
)
def test_a_solver_is_run_and_checked(attempt, said, solved, tmp_path, capsys):
    answer = tried("rare_observation", tmp_path, attempt) / "answer.txt"
    usage = shlex.quote(json.dumps({"tokens": 1234}))
    seen = tmp_path / "seen.md"
    solver = f'cp {answer} . && cat - SKILL.md > {seen} && cmp question.md "$QUESTION" && echo {usage} > usage.json'
    main(["run", "--solver", solver, "--with-skill", "rare_observation"])
    row, last = capsys.readouterr().out.splitlines()
    assert row.startswith("rare_observation")
    assert row.endswith(f" s        1,234  {said}")
    assert last.startswith(f"solved {solved} of 1, in ")
    assert last.endswith(" s, with 1,234 tokens")
    assert "log-likelihood is NaN" in seen.read_text()
    assert "`SKILL.md` says how to use it" in seen.read_text()
    assert "name: jaxviz" in seen.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "minutes", "said"),
    [("exit 3", 1.0, "the solver ended with status 3"), ("sleep 60", 0.002, "stopped after 0 s")],
)
def test_a_solver_that_fails_is_named(solver, minutes, said):
    outcome = harness.solve("rare_observation", solver, limit=60 * minutes)
    assert outcome.wrong == [said, "there is no answer.txt"]
    assert outcome.tokens is None


@pytest.mark.slow
def test_a_folder_is_checked(tmp_path, capsys):
    folder = tried("hard_negatives", tmp_path, "WRONG")
    assert main(["check", "hard_negatives", str(folder)]) == 1
    assert capsys.readouterr().out == "it is not losses.py:11\n"
    assert sys.modules.get("losses") is None
