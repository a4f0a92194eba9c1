"""Copies for students: nothing of the solutions can be read, they run, and nbgrader can grade them."""

import ast
import re
from pathlib import Path

import pytest
from short_runs import short

from jaxviz import teach
from jaxviz.teach.__main__ import main
from jaxviz.teach.handouts import encoded

pytest.importorskip("jupytext", reason="the environment of `make test-latest` has no jupytext")
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.py"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
READS_A_SOLUTION = [
    p for p in NOTEBOOKS if int(p.stem[:2]) in (8, 9, 11, 13, 14, 15, 16, 17, 18, 19, 20, 22, 23, 24, 29)
]


def copy_of(path, folder, **options):
    (written,) = teach.student_copies(path, folder, **options)
    assert written == folder / f"{path.stem}.ipynb"
    return nbformat.read(written, 4)


@each_notebook
def test_nothing_of_a_solution_can_be_read(path, tmp_path):
    notebook = copy_of(path, tmp_path / "out")
    nbformat.validate(notebook)
    source = "\n".join(c.source for c in notebook.cells if c.cell_type == "code")
    assert not {"solution", "check"} & {t for c in notebook.cells for t in c.metadata.get("tags", ())}
    assert not re.search(r"\.solution\(|\bwrong=|\btruth=|\bbecause=|\bhints=", source)
    original = path.read_text(encoding="utf-8")
    assert source.count("# Exercise: ") == original.count("# Exercise: ")
    answered = re.compile(r"^\w+\.answer\(", re.MULTILINE)
    assert len(answered.findall(source)) == len(answered.findall(original))
    assert ("# Given, for the cells below" in source) == (path in READS_A_SOLUTION)


@pytest.mark.slow(sweep=True)
@pytest.mark.parametrize("path", short(NOTEBOOKS, READS_A_SOLUTION[1:2]), ids=lambda p: p.stem)
def test_a_copy_runs_from_top_to_bottom(path, tmp_path):
    notebook = copy_of(path, tmp_path)
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()


def test_an_exercise_that_is_encoded_checks_answers():
    source = "from jaxviz import teach\nsize = teach.predict('How many?', truth=lambda: 12, hints=('Twelve.',))"
    text = encoded(source)
    assert "Twelve" not in text
    teach.given(text, names := {})
    assert names["size"].answer(12)
    assert names["size"].answer(11).is_right is False


@each_notebook
def test_nbgrader_finds_a_cell_to_answer_and_one_that_grades_it(path, tmp_path):
    notebook = copy_of(path, tmp_path, nbgrader=True, points=2)
    nbformat.validate(notebook)
    marked = {c.metadata["nbgrader"]["grade_id"]: c for c in notebook.cells if "nbgrader" in c.metadata}
    exercises = [name.partition("-")[2] for name in marked if name.startswith("exercise-")]
    answers = [name.partition("-")[2] for name in marked if name.startswith("answer-")]
    assert answers == [name.partition("-")[2] for name in marked if name.startswith("test-")]
    assert set(answers) == set(exercises)
    assert len(marked) == sum("nbgrader" in c.metadata for c in notebook.cells)
    for name, cell in marked.items():
        data = cell.metadata["nbgrader"]
        kind = name.partition("-")[0]
        assert (data["schema_version"], data["task"], data["cell_type"]) == (3, False, cell.cell_type)
        assert (data["grade"], data["solution"], data["locked"]) == {
            "exercise": (False, False, True),
            "answer": (False, True, False),
            "test": (True, False, True),
        }[kind]
        assert data.get("points") == (2 if kind == "test" else None)
        assert cell.source.count("### BEGIN SOLUTION\n") == cell.source.count("### END SOLUTION") == (kind == "answer")
        ast.parse(cell.source)


def test_the_command_writes_copies(tmp_path, capsys):
    assert main(["students", str(NOTEBOOKS[5]), "--to", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out' / NOTEBOOKS[5].stem}.ipynb\n"
    assert main(["students", str(tmp_path / "none.py")]) == 1
    assert "there is no file" in capsys.readouterr().err


def test_slides_begin_at_headings_and_show_forms_that_need_no_kernel(tmp_path):
    cells = copy_of(NOTEBOOKS[5], tmp_path, slides=True).cells
    kinds = [c.metadata["slideshow"]["slide_type"] for c in cells]
    headings = [c.cell_type == "markdown" and c.source.startswith("#") for c in cells]
    assert [kind == "slide" for kind in kinds] == headings
    assert kinds.count("skip") == sum("answer" in c.metadata.get("tags", ()) for c in cells) > 0
    forms = [c.source for c in cells if "exercise" in c.metadata.get("tags", ())]
    assert ["static_script" in source for source in forms] == [True] + [False] * (len(forms) - 1)
    first = "\n".join(line for line in forms[1].splitlines() if not line.startswith("teach.given"))
    names = {"linear": teach.predict("?", truth=lambda: 1), "scattered": teach.predict("?", truth=lambda: 1)}
    exec(first.rpartition("\n")[0], names)
    assert "<form" in eval(first.rpartition("\n")[2], names).data
