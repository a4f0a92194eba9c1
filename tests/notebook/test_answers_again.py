"""The right answers to each notebook count again in another session, and its wrong ones do not."""

import ast
import json
import re
from pathlib import Path

import jupytext
import nbformat
import pytest
from short_runs import short

from docs.minutes import tagged
from jaxviz import teach

PATHS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.py"))

BEGIN = """
from dataclasses import replace as _replace
from jaxviz.teach import outcomes as _outcomes, sessions as _sessions
_claimed = []
def _claim(exercise):
    noted = _sessions.progress.pop(exercise.question)
    assert not noted.is_right, noted
    _claimed.append(_replace(noted, is_right=True))
"""
OF_A_FORM = """
for _given in {name}.wrong():
    if {name}.form.kind != "code":
        {name}.answer(_given)
        _claim({name})
"""
OF_A_MODULE = """
if {name}.form.kind == "code":
    {name}.answer([*{name}.wrong()][{number}])
    _claim({name})
"""
END = """
_outcomes.results().save("right.json")
_outcomes.Results(tuple(dict.fromkeys(_claimed))).save("wrong.json")
"""
AGAIN = """
import json as _json
from jaxviz.teach import read_results as _read
print(_json.dumps([[_r.n_right, _r.again, _r.problems] for _r in map(_read, {paths})]))
"""


def code_of(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def wrong_answers(cell):
    """Cells in which a learner gives the wrong answers of an exercise, claimed to be right."""
    name = cell.source.rpartition("\n")[2]
    keywords = (k for call in ast.walk(ast.parse(cell.source)) if isinstance(call, ast.Call) for k in call.keywords)
    written = [w.value.elts for w in keywords if w.arg == "wrong" and isinstance(w.value, ast.Tuple)]
    if not written:
        yield OF_A_FORM.format(name=name)
        for number in (0, -1):
            yield OF_A_MODULE.format(name=name, number=number)
    for answer in (e for elements in written for e in elements if not isinstance(e, ast.Starred)):
        yield f"{name}.answer({ast.unparse(answer)})"
        yield f"_claim({name})"


def as_a_learner(notebook):
    """The cells of a notebook with the answers of one who tries the wrong ones first."""
    yield BEGIN
    for cell in code_of(notebook):
        yield re.sub(r"\.solution\(", ".answer(", cell.source) if cell in tagged(notebook, "solution") else cell.source
        if cell in tagged(notebook, "exercise"):
            yield from wrong_answers(cell)
    yield END


@pytest.mark.slow
@pytest.mark.parametrize("path", short(PATHS, [p for p in PATHS if p.stem[:2] == "26"]), ids=lambda p: p.stem)
def test_right_answers_count_again_and_wrong_ones_do_not(path, tmp_path, run):
    """For a teacher with the solutions, and for a learner who comes back to a copy without them."""
    learner, teacher = tmp_path / "learner", tmp_path / "teacher"
    learner.mkdir()
    teacher.mkdir()
    notebook = jupytext.read(path)
    run(list(as_a_learner(notebook)), learner)
    solved = {n for cell in tagged(notebook, "solution") for n in re.findall(r"(\w+)\.solution\(", cell.source)}

    (copy,) = teach.student_copies(path, tmp_path / "handout")
    read = AGAIN.format(paths=[str(learner / "right.json"), str(learner / "wrong.json")])
    for cells, folder in ((notebook, teacher), (nbformat.read(copy, 4), learner)):
        *_, said = run([*(cell.source for cell in code_of(cells)), read], folder)
        right, (n_wrong, *wrong) = json.loads(said.splitlines()[-1])
        assert right == [len(solved), len(solved), []]
        assert n_wrong
        assert (wrong[0], len(wrong[1])) == (n_wrong, n_wrong), wrong
