"""Numbers that differ between students: those of a notebook, whose solutions hold for each."""

import ast
import runpy
from pathlib import Path

import pytest

from jaxviz import teach
from jaxviz.teach import sessions

NOT_THERE = "the environment of `make test-latest` has no jupytext"
jupytext = pytest.importorskip("jupytext", reason=NOT_THERE)
matplotlib = pytest.importorskip("matplotlib", reason=NOT_THERE)

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SEEDED = [p for p in sorted(NOTEBOOKS.glob("*.py")) if "teach.number(" in p.read_text(encoding="utf-8")]
CHOICES = {"04": ("positions", 1024, 1536, 2048), "12": ("length", 256, 192, 320)}
STUDENTS = ("", "hedy", "kurt")


@pytest.fixture
def seed(monkeypatch):
    monkeypatch.setattr(sessions, "student", "")
    return teach.seed


def test_a_number_depends_on_the_student_and_on_its_name_alone(seed):
    assert teach.number("n", 1, 2, 3) == 1
    numbers = []
    for student in map(str, range(100)):
        seed(student)
        numbers.append((teach.number("n", 1, 2, 3), teach.number("m", 1, 2, 3)))
        assert numbers[-1] == (teach.number("n", 1, 2, 3), teach.number("m", 1, 2, 3))
    assert set(numbers) == {(n, m) for n in (1, 2, 3) for m in (1, 2, 3)}
    assert teach.results().seed == "99"


def test_the_students_have_all_numbers(seed):
    for number, (name, *choices) in CHOICES.items():
        assert f'teach.number("{name}", {", ".join(map(str, choices))})' in next(
            p.read_text(encoding="utf-8") for p in SEEDED if p.stem.startswith(number)
        )
        drawn = set()
        for student in STUDENTS:
            seed(student)
            drawn.add(teach.number(name, *choices))
        assert drawn == set(choices)


def test_the_notebooks_with_such_numbers_are_those_of_the_teachers_page():
    assert [p.stem[:2] for p in SEEDED] == sorted(CHOICES)
    page = (NOTEBOOKS.parent / "docs" / "teachers.md").read_text(encoding="utf-8")
    for path in SEEDED:
        assert f"tutorials/{path.name}" in page.partition("teach.seed")[2]


@pytest.mark.slow(sweep=True)
@pytest.mark.parametrize("student", STUDENTS[1:])
@pytest.mark.parametrize("path", SEEDED, ids=lambda p: p.stem)
def test_the_solutions_hold_for_each_student(path, student, seed, monkeypatch, tmp_path):
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    seed(student)
    names = runpy.run_path(str(path))
    for cell in (c for c in jupytext.read(path).cells if "solution" in c.metadata.get("tags", ())):
        *before, last = ast.parse(cell.source).body
        exec(compile(ast.Module(before, []), path.stem, "exec"), names)
        assert eval(ast.unparse(last), names), cell.source
