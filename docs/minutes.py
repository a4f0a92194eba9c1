"""How long a tutorial takes: computed from its source, for the page of tutorials and for the tests."""

import ast
import inspect
import re
from pathlib import Path

import jupytext

from jaxviz.teach import autodiff, puzzles
from jaxviz.teach.source import code_of

WORDS_PER_MINUTE, MINUTES_PER_LINE, MINUTES_PER_QUESTION = 170, 4 / 60, 1.5
"""The time assumed for prose, for a line of unfolded code, and to mark or choose an answer."""
MINUTES_PER_EXPLORER = 1
"""The time assumed to look around in an explorer."""
MINUTES_PER_FUNCTION, MINUTES_PER_LINE_WRITTEN = 3, 1.5
"""The time assumed to write a function: to see what is asked, and for each line of the solution."""
STEP = 5
"""Minutes are rounded to a multiple of this."""

_LINK = re.compile(r"\]\((\w+)\.py\)")


def minutes_of(notebook):
    """The minutes for a person who reads all of it and answers every question."""
    prose = " ".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    code = [
        c for c in notebook.cells if c.cell_type == "code" and not c.metadata.get("jupyter", {}).get("source_hidden")
    ]
    lines = sum(
        bool(line.strip()) and not line.startswith(("import", "from")) for c in code for line in c.source.splitlines()
    )
    written = [n for _, n in lines_to_write(notebook)]
    assert len(written) == len(tagged(notebook, "answer"))
    n_ask = len(tagged(notebook, "exercise")) - len(written)
    words = len(re.findall(r"[A-Za-z']{2,}", re.sub(r"\]\([^)]*\)|\$[^$]*\$", "", prose)))
    read = words / WORDS_PER_MINUTE + lines * MINUTES_PER_LINE
    explorers = sum(len(re.findall(r"^\w+ = jaxviz\.explore\(", c.source, re.MULTILINE)) for c in code)
    ask = n_ask * MINUTES_PER_QUESTION + explorers * MINUTES_PER_EXPLORER
    exact = read + ask + len(written) * MINUTES_PER_FUNCTION + sum(written) * MINUTES_PER_LINE_WRITTEN
    return STEP * round(exact / STEP)


def tagged(notebook, tag):
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", ())]


def lines_to_write(notebook):
    """The lines of each solution in code, without those of definitions' first lines and without docstrings."""
    tree = ast.parse("\n".join(c.source for c in notebook.cells if c.cell_type == "code" and c.source[0] not in "%!"))
    nodes = list(ast.walk(tree))
    functions = {n.name: n for n in nodes if isinstance(n, ast.FunctionDef)}
    exercises = {
        n.targets[0].id: ast.unparse(n.value)
        for n in nodes
        if isinstance(n, ast.Assign) and hasattr(n.targets[0], "id")
    }
    asked = {re.search(r"^(\w+)\.answer\(", c.source, re.MULTILINE)[1] for c in tagged(notebook, "answer")}
    for call in nodes:
        name, _, method = ast.unparse(call.func).rpartition(".") if isinstance(call, ast.Call) else ("", "", "")
        if method == "solution" and name in asked:
            (solution,) = call.args
            if ".original(" in ast.unparse(solution):
                text = inspect.getsource(autodiff.engine().original(solution.args[0].value))
                yield name, _body_lines(ast.parse(text).body[0])
            elif ".puzzle." in ast.unparse(solution):
                puzzle = puzzles.show(re.search(r"puzzles\.show\('(\w+)'\)", exercises[name])[1]).puzzle
                text = code_of(puzzle.solution, puzzle.function)
                yield name, sum(bool(line.strip()) for line in text.splitlines())
            else:
                parts = solution.elts if isinstance(solution, ast.Tuple) else [solution]
                yield name, sum(_body_lines(functions.get(ast.unparse(part))) for part in parts)


def _body_lines(function):
    """The lines of a function's body; one for a lambda or another expression."""
    if function is None:
        return 1
    body = function.body[ast.get_docstring(function) is not None :]
    return function.end_lineno - body[0].lineno + 1


def with_minutes(text, notebooks: Path):
    """The text of a page, with `{minutes}` in it replaced: at the end of a line by those of the notebook that the line
    links to, and elsewhere by those of all that the section links to."""

    def section(part):
        of = {
            name: minutes_of(jupytext.read(notebooks / f"{name}.py"))
            for name in (_LINK.findall(part) if "{minutes}" in part else ())
        }
        part = re.sub(
            r"^(.*\]\((\w+)\.py\).*)\{minutes\}$", lambda m: f"{m[1]}{_marked(of[m[2]])}", part, flags=re.MULTILINE
        )
        return part.replace("{minutes}", _marked(sum(of.values())))

    return "".join(map(section, re.split(r"^(?=#+ )", text, flags=re.MULTILINE)))


def _marked(minutes):
    hours, rest = divmod(minutes, 60)
    return f"[{f'{hours} h {rest:02} min' if hours else f'{rest} min'}]{{.minutes}}"
