"""Every notebook runs from top to bottom and follows docs/writing_notebooks.md."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient
from short_runs import short

from docs.minutes import minutes_of, tagged, with_minutes

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PATHS = sorted(NOTEBOOKS.glob("*.py"))
PAGES = [p for p in sorted((NOTEBOOKS.parent / "docs").glob("*/*.md")) if "{code-cell}" in p.read_text("utf-8")]
INDEX = (NOTEBOOKS.parent / "docs" / "tutorials" / "index.md").read_text("utf-8")
HOUR = "See it in an hour"
LONG = ("compile_time", "divergence", "memory", "policy", "tracing")
MOST_SECONDS = 60

SHOWN = {
    "00_first_look": [
        "the gradient of `loss` in `params` saves ",
        "gradient (tanh)",
        "residuals as in JAX",
        "lambda",
        "forward:",
        "linear:",
        "backward:",
        "one path, recorded on concrete values",
        "bool was True",
    ],
}
"""Printed or drawn output, which an assertion of the notebook cannot check."""

FOLDED = ("exercise", "unseen", "solution", "check")
"""The tags of cells whose source is folded; `answer` is another."""

WRONG_ANSWERS = """
import json as _json
import time as _time
from jaxviz import teach as _teach
_found, _seconds = {}, _time.process_time()
for _name, _exercise in list(globals().items()):
    if isinstance(_exercise, _teach.Exercise) and not _name.startswith("_"):
        _verdicts = [_exercise.answer(_given) for _given in _exercise.wrong()]
        _says_why = lambda v: bool(v.note or any(p.why for p in v.points) or " saved: " in v.headline)
        _found[_name] = [(str(v.is_right), _says_why(v)) for v in _verdicts]
        assert _exercise.answer(...).is_right is None
        assert _exercise.reveal().headline
        for _ in _exercise.hints:
            assert _exercise.hint().headline
print(_json.dumps([_seconds, _found]))
"""
"""Gives wrong answers to each exercise and requests its hints; also reports the CPU time that the notebook took before,
which does not depend on other load."""


def text_of(cell):
    parts = []
    for output in cell.get("outputs", ()):
        assert output["output_type"] != "error", output
        parts.append(output.get("text", ""))
        parts.append(str(output.get("data", {}).get("text/plain", "")))
    return "".join(parts)


def run_in_kernel(cells, folder):
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return list(map(text_of, notebook.cells))


@pytest.mark.slow
@pytest.mark.parametrize("path", short(PATHS, [PATHS[0]]), ids=lambda p: p.stem)
def test_a_notebook_runs_and_its_exercises_hold(path, tmp_path, run):
    notebook = jupytext.read(path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    runs = run_in_kernel if path == PATHS[0] else run
    *texts, last = runs([*(cell.source for cell in code), WRONG_ANSWERS], tmp_path)
    of_cell = {id(cell): text for cell, text in zip(code, texts, strict=True)}

    shown = " ".join("\n".join(texts).split())  # a sentence in a table wraps
    for text in SHOWN.get(path.stem, ()):
        assert text in shown
    assert "residuals differ" not in shown
    assert str(NOTEBOOKS.parent) not in "".join(texts), "it shows a path of this machine"
    assert tagged(notebook, "check"), "no cell asserts what the text says"

    solved = {name for cell in tagged(notebook, "solution") for name in re.findall(r"(\w+)\.solution\(", cell.source)}
    for cell in tagged(notebook, "solution"):
        assert of_cell[id(cell)].startswith("Right. "), cell.source
    for cell in tagged(notebook, "answer"):
        assert of_cell[id(cell)].startswith(("Replace the dots", "Not yet.")), cell.source
    seconds, tried = json.loads(last.splitlines()[-1])
    assert seconds < MOST_SECONDS
    assert set(tried) == solved
    for name, verdicts in tried.items():
        assert verdicts, f"{name} has no wrong answer to try"
        assert {is_right for is_right, _ in verdicts} == {"False"}, name
        assert all(why for _, why in verdicts), f"{name} finds an answer wrong, and does not say why"


@pytest.mark.slow
@pytest.mark.parametrize("path", short(PAGES, [p for p in PAGES if p.stem not in LONG][::5]), ids=lambda p: p.stem)
def test_what_a_page_of_the_site_says_holds(path, tmp_path, run):
    """The build of the site shows the output too, and takes minutes."""
    run([cell.source for cell in jupytext.read(path, fmt="md:myst").cells if cell.cell_type == "code"], tmp_path)


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_what_the_reader_is_not_to_see_at_once_is_folded(path):
    for cell in jupytext.read(path).cells:
        for tag in cell.metadata.get("tags", ()):
            assert tag in (*FOLDED, "answer")
            assert cell.metadata.get("jupyter", {}) == ({"source_hidden": True} if tag in FOLDED else {}), cell.source


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_a_folded_cell_says_what_it_is(path):
    notebook = jupytext.read(path)
    for cell in tagged(notebook, "exercise"):
        name = re.match(r"# Exercise: ([a-z]\w*)\n", cell.source).group(1)
        assert f"\n{name} = teach." in cell.source
        assert cell.source.endswith(f"\n{name}")
    for cell in tagged(notebook, "solution"):
        assert cell.source.startswith("# Solution\n")
        assert re.search(r"\.solution\(", cell.source)
    for cell in tagged(notebook, "check"):
        assert cell.source.startswith("# What the text says, asserted\n")
        assert "assert " in cell.source


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_a_notebook_begins_and_ends_as_the_others_do(path):
    text = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "markdown"]
    title, _, rest = text[0].partition("\n")
    assert title.startswith(f"# {int(path.stem[:2])} · ")
    assert "?" in title
    assert len(title.removeprefix("# ")) <= 60
    assert SAID.search(rest)
    assert re.search(r"You (need|should)", rest)
    if path != PATHS[0]:
        assert text[-1].startswith("## What to remember\n\n- ")


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_an_item_of_a_list_begins_on_a_line_of_its_own(path):
    for cell in jupytext.read(path).cells:
        if cell.cell_type == "markdown":
            assert not re.search(r" [-*]$", cell.source, re.MULTILINE), cell.source


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_the_text_below_a_question_does_not_answer_it(path):
    cells = jupytext.read(path).cells
    for i, cell in enumerate(cells):
        told = (
            re.search(r"\.solution\((.*)\)$", cell.source.strip())
            if "solution" in cell.metadata.get("tags", ())
            else None
        )
        if told and re.fullmatch(r"\d{2}[\d.]*|\"[^\"]{4,}\"", told[1]):  # a single digit may have another meaning
            following = next((c.source for c in cells[i + 1 :] if c.cell_type == "markdown"), "")
            assert not re.search(rf"(?<!\w){re.escape(told[1].strip(chr(34)))}(?!\w)", following), following


ON_CHECKPOINTS = [p for p in PATHS if p.stem[:2] in ("06", "07", "12", "22")]


@pytest.mark.parametrize("path", ON_CHECKPOINTS, ids=lambda p: p.stem)
def test_a_notebook_on_checkpoints_begins_with_layers_in_a_scan_and_with_xlas_figure(path):
    """In a Python loop XLA may undo a checkpoint."""
    before, exercise, _ = path.read_text("utf-8").partition("# Exercise: ")
    assert exercise
    assert "jax.lax.scan(" in before
    assert ".xla.temporaries" in before
    assert "for p in params" not in before


def test_policies_are_taught_by_name_before_functions_of_equations():
    text = (NOTEBOOKS / "07_policies_and_plans.py").read_text("utf-8")
    named, older = text.index("## Names"), text.index("## Older versions")
    assert named < older < text.index("of_tanh(primitive") < text.index("## Let the planner")
    assert "(primitive" not in text[:older]


SAID = re.compile(r"(\d+) minutes")


def minutes_said(notebook):
    return int(SAID.search(next(c.source for c in notebook.cells if c.cell_type == "markdown"))[1])


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_a_notebook_takes_as_long_as_it_says(path):
    notebook = jupytext.read(path)
    said = minutes_said(notebook)
    assert said == minutes_of(notebook)
    assert said <= (90 if "_own_" in path.stem else 50 if "puzzles" in path.stem else 35)


def test_one_who_builds_an_engine_is_told_of_an_hour_or_more():
    said = {path.stem: minutes_said(jupytext.read(path)) for path in PATHS if "_own_" in path.stem}
    assert {name for name, minutes in said.items() if 60 <= minutes <= 90} >= {
        "25_own_tracer",
        "26_own_gradients",
        "28_own_loops",
    }


def test_the_first_notebook_says_how_long_the_others_take():
    minutes = {"_own_": [], "_puzzles_": [], "": []}
    for path in PATHS[1:]:
        minutes[next(kind for kind in minutes if kind in path.stem)].append(minutes_said(jupytext.read(path)))
    text = " ".join(PATHS[0].read_text("utf-8").replace("\n# ", " ").split())
    for said, kind in (
        ("take {} to {} minutes each", ""),
        ("take {} to {} minutes, and", "_puzzles_"),
        ("an engine take {} to {} minutes", "_own_"),
    ):
        assert said.format(min(minutes[kind]), max(minutes[kind])) in text


@pytest.mark.parametrize("path", PATHS[1:], ids=lambda p: p.stem)
def test_in_a_notebook_one_writes_code(path):
    assert len(tagged(jupytext.read(path), "answer")) >= 2


def links_of(text):
    """The notebooks that a page links to, with the texts of the links."""
    return [(name, label) for label, name in re.findall(r"\[([^\]]+)\]\(([^)]+)\.ipynb\)", text)]


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_links_lead_to_notebooks_of_the_series_and_the_last_to_the_next_one(path):
    names = [p.stem for p in PATHS]
    text = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "markdown"]
    labels = labels_of(INDEX)
    for name, label in links_of("\n".join(text)):
        assert name in names, name
        assert label == labels[name]
    if path != PATHS[-1]:
        following = names[names.index(path.stem) + 1]
        last = text[-1].rpartition("\nNext: ")[2]
        assert [name for name, _ in links_of(last)][:1] == [following]


def labels_of(text):
    """The notebooks that the page of tutorials links to, with the texts of the links; the same for each link to one."""
    links = re.findall(r"^(?:-|\d\.) \[([^\]]+)\]\((\w+)\.py\)", text, re.MULTILINE)
    labels = {name: label for label, name in links}
    assert all(labels[name] == label for label, name in links)
    return labels


def sections_of(text):
    """The notebooks of each section of the page of tutorials."""
    return {part.partition("\n")[0]: list(re.findall(r"\]\((\d\w+)\.py\)", part)) for part in text.split("\n## ")[1:]}


def test_the_page_of_tutorials_lists_every_notebook_in_order():
    sections, labels = sections_of(INDEX), labels_of(INDEX)
    assert all(listed == sorted(listed) for listed in sections.values())
    assert sorted({name for listed in sections.values() for name in listed}) == [p.stem for p in PATHS]
    assert [int(p.stem[:2]) for p in PATHS] == list(range(len(PATHS)))
    assert all(label.startswith(f"{int(name[:2])} · ") for name, label in labels.items())
    assert set(sections["The other notebooks"]).isdisjoint(
        name for title, listed in sections.items() if title != "The other notebooks" for name in listed
    )


def test_the_page_of_tutorials_computes_its_minutes():
    section = next(part for part in INDEX.split("\n## ") if part.startswith(HOUR))
    text = with_minutes(section, NOTEBOOKS)
    each = [minutes_said(jupytext.read(NOTEBOOKS / f"{name}.py")) for name in sections_of(INDEX)[HOUR]]
    assert re.findall(r"\[(\d+) min\]\{\.minutes\}$", text, re.MULTILINE) == list(map(str, each))
    hours, rest = divmod(sum(each), 60)
    assert f"[{hours} h {rest:02} min]" in text
    assert not re.search(r"\d min", INDEX)
    assert sum(each) < 75


def test_the_first_notebook_shows_the_same_paths_and_begins_with_the_explorer():
    paths = dict(list(sections_of(INDEX).items())[:4])
    text = PATHS[0].read_text("utf-8").replace("\n# ", "\n")
    listed = dict(re.findall(r"^- \*([^*]+)\.\* (.*(?:\n  .*)*)", text, re.MULTILINE))
    assert list(listed) == list(paths)
    for title, names in paths.items():
        assert [name for name, _ in links_of(listed[title])] == [name for name in names if name != PATHS[0].stem]
    first = next(c for c in jupytext.read(PATHS[0]).cells if c.cell_type == "code")
    assert re.search(r"^(\w+) = jaxviz\.explore\(loss, .*\n\1$", first.source, re.MULTILINE)


@pytest.mark.slow(sweep=True)
def test_the_first_notebook_is_a_script_too(tmp_path):
    """`make demo` runs it as one: the magics are comments then, and the explorer is written to a file."""
    done = subprocess.run(
        [sys.executable, str(NOTEBOOKS / "00_first_look.py")], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "the gradient of `loss` in `params` saves " in done.stdout
    page = (tmp_path / "first_look.html").read_text()
    assert "jaxviz" in page
