"""Whose source is shown, and which lines."""

import linecache
import os
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jaxviz
from jaxviz.features.explorer.columns import view_of
from jaxviz.ir.own_code import is_own
from jaxviz.page.sources import SourceTable, excerpts_of, short_path


def write(tmp_path, text):
    path = tmp_path / "model.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    return str(path)


def test_a_line_brings_its_whole_function(tmp_path):
    path = write(tmp_path, "import a\n\n@jit\ndef f(x):\n    y = 1\n    return y\n\n\ndef g():\n    pass\n")
    (excerpt,) = excerpts_of(path, {5})
    assert (excerpt.first, excerpt.lines) == (3, ("@jit", "def f(x):", "    y = 1", "    return y"))


def test_functions_far_apart_stand_apart(tmp_path):
    path = write(tmp_path, "def f():\n    pass\n" + "\n" * 9 + "def g():\n    pass\n")
    assert [e.first for e in excerpts_of(path, {2, 13})] == [1, 12]


def test_a_line_of_a_file_that_does_not_parse_brings_its_neighbours(tmp_path):
    path = write(tmp_path, "".join(f"line {i} (\n" for i in range(1, 31)))
    (excerpt,) = excerpts_of(path, {15})
    assert (excerpt.first, len(excerpt.lines)) == (11, 9)


def test_a_file_that_is_gone_brings_nothing(tmp_path):
    assert excerpts_of(str(tmp_path / "gone.py"), {1}) == ()


def test_libraries_are_not_the_users_own():
    assert is_own(__file__)
    assert not any(is_own(m.__file__) for m in (jax, np, linecache, jaxviz))


def test_paths_are_shown_from_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert short_path(str(tmp_path / "a" / "b.py")) == "a/b.py"
    assert short_path("/elsewhere/b.py") == "b.py"
    assert short_path("<stdin>") == "<stdin>"


def test_other_folders_are_not_shown(tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    path = str(tmp_path / "package" / "model.py")
    assert short_path(path) == "model.py"
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert short_path(path) == os.path.join("package", "model.py")


def test_without_source_there_are_names_and_numbers_only():
    def f(x):
        return jnp.sin(x)

    derivation = jaxviz.derive(f, 1.0)
    with_source, without = view_of(derivation), view_of(derivation, source=False)
    assert any("jnp.sin(x)" in line for e in with_source.files[0].excerpts for line in e.lines)
    assert without.files[0].excerpts == ()
    assert without.files[0].path == "test_sources.py"
    assert without.columns["location_line"].tolist() == with_source.columns["location_line"].tolist()


def test_a_notebook_cell_is_called_so():
    table = SourceTable()
    table.number(jaxviz.ir.origin.Location("/tmp/ipykernel_7/123.py", 1, "f"))
    assert table.files()[0].label == "cell"


def test_a_line_of_a_notebook_cell_is_shown_without_the_path_of_a_temporary_file():
    for file, shown in (("/tmp/ipykernel_7/123.py", "cell:4"), ("<ipython-input-3-abc>", "In[3]:4")):
        assert str(jaxviz.ir.origin.Location(file, 4, "f")) == shown
    assert str(jaxviz.ir.origin.Location("/home/me/model.py", 4, "f")) == "/home/me/model.py:4"


WRITTEN = """\
import jax.numpy as jnp

def f(x, w):
\tπ = "𝒳é" and jnp.sin(x @ w)  # a tab, and two that are several bytes
    return (
        jnp.tanh(
            π
        )
        * 2.0
    ).sum()
""".replace("    ", "\t")


def expressions(path, *args):
    """What a page cuts out of the lines it receives, for each location."""
    module = {}
    exec(compile(pathlib.Path(path).read_text(), path, "exec"), module)
    view = view_of(jaxviz.derive(module["f"], *args))
    lines = {e.first + i: line for e in view.files[0].excerpts for i, line in enumerate(e.lines)}
    names = ("start_line", "start", "end_line", "end")
    for first, start, last, end in zip(*(view.columns[f"location_{name}"].tolist() for name in names), strict=True):
        units = [lines[n].encode("utf-16-le") for n in range(first, last + 1)] if first else [b""]
        units[-1] = units[-1][: 2 * end]
        units[0] = units[0][2 * start :]
        yield "".join(unit.decode("utf-16-le").strip() for unit in units)


def test_a_page_is_told_which_text_of_its_lines_is_an_expression(tmp_path):
    path = write(tmp_path, WRITTEN)
    found = set(expressions(path, jnp.ones((2, 3)), jnp.ones((3, 3))))
    # The function itself, where its arguments come from, is not an expression.
    assert found - {""} == {
        "x @ w",
        "jnp.sin(x @ w)",
        "jnp.tanh(π)",
        "jnp.tanh(π)* 2.0",
        "(jnp.tanh(π)* 2.0).sum()",
    }


def test_of_a_source_that_is_not_what_was_run_there_are_lines_only(tmp_path):
    path = write(tmp_path, "import jax.numpy as jnp\n\ndef f(x):\n    return jnp.sin(x)\n")
    module = {}
    exec(compile(pathlib.Path(path).read_text(), path, "exec"), module)
    derivation = jaxviz.derive(module["f"], 1.0)
    assert derivation.primal.equations
    write(tmp_path, "import jax.numpy as jnp\n\ndef f(x):\n    return   jnp.cos(x) + 1\n")
    columns = view_of(derivation).columns
    assert columns["location_line"].tolist() == [4]
    assert columns["location_start_line"].tolist() == columns["location_end"].tolist() == [0]
