"""The page for teachers: its plans last as long as they say, and name what is in the notebooks."""

import re
from pathlib import Path

import pytest

from jaxviz.teach import __main__

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "teachers.md").read_text(encoding="utf-8")
PLANS = {int(n): text for n, text in re.findall(r"^## A lecture of (\d+) minutes\n(.*?)(?=^## )", PAGE, re.M | re.S)}


def rows_of(plan):
    return re.findall(r"^\| (\d+) \| (.*?) \| (.*?) ?\|$", plan, re.MULTILINE)


def test_there_are_two_plans():
    assert list(PLANS) == [50, 90]


@pytest.mark.parametrize("minutes", PLANS)
def test_the_rows_of_a_plan_add_up(minutes):
    assert sum(int(n) for n, *_ in rows_of(PLANS[minutes])) == minutes


def test_the_long_plan_repeats_the_first_rows_of_the_short_one():
    assert sum(int(n) for n, *_ in rows_of(PLANS[50])[:4]) == int(rows_of(PLANS[90])[0][0])


@pytest.mark.parametrize("minutes", PLANS)
def test_headings_and_exercises_of_a_plan_are_in_its_notebooks(minutes):
    named = 0
    for _, shown, _ in rows_of(PLANS[minutes]):
        if not (number := re.match(r"(\d+), ", shown)):
            continue
        (path,) = (ROOT / "notebooks").glob(f"{int(number[1]):02}_*.py")
        text = path.read_text(encoding="utf-8")
        for heading in re.findall(r"\*([^*]+)\*", shown):
            assert f"# ## {heading}\n" in text, (path.name, heading)
            named += 1
        for name in re.findall(r"`([a-z_]+)`", shown):
            assert f"# Exercise: {name}\n" in text or f"def {name}(" in text or f"{name}, " in text, (path.name, name)
    assert named >= 5


def test_the_commands_of_the_page_are_understood(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(__main__, "student_copies", lambda *args, **options: asked.append((args, options)) or [])
    commands = re.findall(r"python -m jaxviz\.teach (students [^\n`]*)", PAGE)
    assert [__main__.main(words.split()) for words in commands] == [0] * len(commands) == [0, 0, 0]
    assert all(list(ROOT.glob(str(given))) for args, _ in asked for given in args[0])  # in a checkout
    assert [args[1] for args, _ in asked] == ["lecture", "handout", "source/ps1"]
    assert [options["slides"] for _, options in asked] == [True, False, False]
    assert [options["nbgrader"] for _, options in asked] == [False, False, True]
