"""Copies of notebooks for students, without the solutions, and for nbgrader."""

from __future__ import annotations

import ast
import base64
import linecache
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxviz.report.files import no_such_file
from jaxviz.report.needs import needs
from jaxviz.teach.source import defining, names_defined, names_missing

_REMOVED = ("solution", "check")


def student_copies(
    notebooks: Sequence[str | Path] | str | Path, folder: str | Path, *, nbgrader: bool = False, points: float = 1,
    slides: bool = False,
) -> list[Path]:  # fmt: skip
    """Writes copies of notebooks, as `.ipynb`, without their solutions and without the cells that check the text.

    >>> Path("squares.py").write_text("# %%\\nprint(2**2)\\n")
    20
    >>> teach.student_copies("squares.py", "handout")
    [PosixPath('handout/squares.ipynb')]

    A copy runs from top to bottom, and its exercises check answers. Cells that create an exercise, and parts of a
    solution that later cells need, are encoded: nobody reads an answer by accident, but they are not secret.

    Args:
      notebooks: the files, `.ipynb` or scripts in jupytext's percent format; or one.
      folder: where to write the copies; it is created if it is not there.
      nbgrader: whether to write the instructor's version for nbgrader instead: each exercise has a cell for the answer,
        with the solution between nbgrader's marks, and a cell that grades it.
      points: with nbgrader, how many points an exercise has.
      slides: whether to mark the cells as slides, of which each begins at a heading, with the exercises as forms that
        need no kernel; for a lecture.

    Returns:
      the copies.

    Raises:
      FileNotFoundError: a notebook is not there.
      ImportError: jupytext is not installed.
    """
    with needs("A copy of a notebook", "jupytext"):
        import jupytext

    paths = [Path(p) for p in ([notebooks] if isinstance(notebooks, (str, Path)) else notebooks)]
    for path in paths:
        if not path.exists():
            raise no_such_file(path, "student_copies takes notebooks")
    Path(folder).mkdir(parents=True, exist_ok=True)
    written = []
    for path in paths:
        notebook = jupytext.read(path)
        needed, solutions = _needed_later(notebook.cells), _solutions(notebook.cells)
        copies = [c for cell in notebook.cells for c in _for_students(cell, needed)]
        notebook.cells = list(_graded(copies, solutions, points)) if nbgrader else copies
        if slides:
            _as_slides(notebook.cells)
        for number, cell in enumerate(notebook.cells):
            cell["id"] = f"cell-{number}"
        written.append(Path(folder) / f"{path.stem}.ipynb")
        jupytext.write(notebook, written[-1], fmt="ipynb")
    return written


def given(text: str, names: dict[str, Any]) -> None:
    """Runs what a student copy has encoded, in the names of the notebook.

    >>> teach.given("eNorKc9XsFUwAgAJ0QIK", globals())
    >>> two
    2

    Args:
      text: the code, encoded.
      names: the names of the notebook, `globals()`.
    """
    source = zlib.decompress(base64.b64decode(text)).decode()
    name = f"<given {zlib.crc32(source.encode()):08x}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec", dont_inherit=True), names)


def encoded(source: str) -> str:
    """The encoding of code that `given` runs."""
    return base64.b64encode(zlib.compress(source.encode(), 9)).decode()


# --- the cells of a student copy --------------------------------------------------------------------------------------


def _kind(cell: Any) -> str:
    tags = cell.metadata.get("tags", [])
    return next((t for t in ("exercise", "unseen", "answer", "solution", "check") if t in tags), "")


def _code(cell: Any) -> str:
    """The source of a cell without its magics; '' for text."""
    lines = ("" if re.match(r"\s*[%!]", line) else line for line in cell.source.splitlines())
    return "\n".join(lines) if cell.cell_type == "code" else ""


def _tree(cell: Any) -> ast.Module:
    return ast.parse(_code(cell))


def _needed_later(cells: Sequence[Any]) -> set[str]:
    """The names that other cells read, and that, but for an answer that is still to be written, only the cells that are
    left out define."""
    left_out = {n for c in cells if _kind(c) in _REMOVED for n in names_defined(_code(c))}
    others = [c for c in cells if _kind(c) not in _REMOVED]
    defined = {n for c in others if _kind(c) != "answer" for n in names_defined(_code(c))}
    return {n for c in others for n in names_missing(_code(c))} & left_out - defined


def _for_students(cell: Any, needed: set[str]) -> Iterator[Any]:
    kind = _kind(cell)
    if kind == "exercise":
        first, name = cell.source.partition("\n")[0], _name(cell)
        body = cell.source[: cell.source.rstrip().rindex("\n")]  # the last line shows the form
        cell.source = f'{first}\nfrom jaxviz import teach\n\nteach.given("{encoded(body)}", globals())\n{name}'
    if kind in _REMOVED:
        if not (kept := _defining(cell, needed)):
            return
        cell.source = f'# Given, for the cells below\nteach.given("{encoded(kept)}", globals())'
        cell.metadata["tags"] = ["given"]
    yield cell


def _defining(cell: Any, needed: set[str]) -> str:
    """The statements of a cell that define names that are needed, with their rules, and what these read."""
    statements = [s for s in _tree(cell).body if not _calls(s, "solution")]
    return "\n\n".join(ast.unparse(s) for s, _ in defining(statements, needed))


def _name(cell: Any) -> str:
    return str(cell.source.rstrip().rpartition("\n")[2].strip())


def _as_slides(cells: Sequence[Any]) -> None:
    """Marks the slides, and shows the exercises as HTML, with the script of the forms in the first of them."""
    script = "<script>{teach.static_script()}</script>"
    for cell in cells:
        begins = cell.cell_type == "markdown" and cell.source.startswith("#")
        kind = "skip" if _kind(cell) == "answer" else "slide" if begins else "-"
        cell.metadata["slideshow"] = {"slide_type": kind}
        if _kind(cell) == "exercise":
            head, _, name = cell.source.rpartition("\n")
            shown = f'HTML(f"{{teach.static_form({name})}}{script}")'
            cell.source = f"{head}\n\nfrom IPython.display import HTML\n\n{shown}"
            script = ""


# --- nbgrader ---------------------------------------------------------------------------------------------------------


def _graded(copies: Sequence[Any], solutions: dict[str, tuple[str, str]], points: float) -> Iterator[Any]:
    """The cells with nbgrader's metadata: what creates an exercise is locked, its answer is to be written, and a test
    has the points."""
    in_code = {name for c in copies if _kind(c) == "answer" for name, _ in _calls(_tree(c), "answer")}
    for cell in copies:
        kind = _kind(cell)
        if kind == "exercise":
            cell.metadata["nbgrader"] = _metadata(f"exercise-{_name(cell)}", is_locked=True)
        yield cell
        if kind == "exercise" and (name := _name(cell)) not in in_code and name in solutions:
            before, answer = solutions[name]
            marked = _between_marks(before, f"{name}_answer = {answer}")
            source = f"{name}_answer = ...\n\n{marked}\n\n{name}.answer({name}_answer)"
            yield from _answer_and_test(_code_cell(source, "answer"), name, f"{name}_answer", points)
        if kind == "answer":
            (name, answer), *_ = _calls(_tree(cell), "answer")
            if name in solutions:
                before, known = solutions[name]
                marks = _between_marks(before, f"{answer} = {known}")
                head, _, last = cell.source.rstrip().rpartition("\n")
                cell.source = f"{head.rstrip()}\n\n\n{marks}\n\n{last}"
                yield from _answer_and_test(cell, name, answer, points, is_new=False)


def _answer_and_test(cell: Any, name: str, answer: str, points: float, is_new: bool = True) -> Iterator[Any]:
    cell.metadata["nbgrader"] = _metadata(f"answer-{name}", is_solution=True)
    if is_new:
        yield cell
    test = _code_cell(f"verdict = {name}.answer({answer})\nassert verdict, str(verdict)", "test")
    test.metadata["nbgrader"] = _metadata(f"test-{name}", is_locked=True, points=points)
    yield test


def _metadata(grade_id: str, is_locked: bool = False, is_solution: bool = False, points: float = 0) -> dict[str, Any]:
    """Of a cell, by nbgrader's schema."""
    graded = {"points": points} if points else {}
    return {
        "grade": points > 0, "solution": is_solution, "locked": is_locked, "task": False, "schema_version": 3,
        "grade_id": grade_id.replace("_", "-"), "cell_type": "code", **graded,
    }  # fmt: skip


def _between_marks(before: str, last: str) -> str:
    code = f"{before}\n{last}" if before else last
    return f"### BEGIN SOLUTION\n{code}\n### END SOLUTION"


def _code_cell(source: str, tag: str) -> Any:
    import nbformat

    return nbformat.v4.new_code_cell(source, metadata={"tags": [tag]})


def _calls(tree: ast.AST, method: str) -> list[tuple[str, str]]:
    """The exercises on which a method is called, with what it gets."""
    calls = [c for c in ast.walk(tree) if isinstance(c, ast.Call) and isinstance(c.func, ast.Attribute)]
    return [
        (ast.unparse(c.func.value), ast.unparse(c.args[0]))
        for c in calls
        if isinstance(c.func, ast.Attribute) and c.func.attr == method and c.args
    ]


def _solutions(cells: Sequence[Any]) -> dict[str, tuple[str, str]]:
    """For each exercise: what comes before its answer, and the answer."""
    found: dict[str, tuple[str, str]] = {}
    for body in (_tree(c).body for c in cells if _kind(c) == "solution"):
        before = "\n\n".join(ast.unparse(s) for s in body if not _calls(s, "solution"))
        found |= {name: (before, answer) for s in body for name, answer in _calls(s, "solution")}
    return found
