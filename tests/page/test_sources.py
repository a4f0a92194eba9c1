"""Whose source is shown, and which lines of it."""

import linecache

import jax
import jax.numpy as jnp
import numpy as np

import jaxviz
from jaxviz.features.explorer.columns import view_of
from jaxviz.page.sources import SourceTable, excerpts_of, is_user_source, short_path


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
    assert is_user_source(__file__)
    assert not any(is_user_source(m.__file__) for m in (jax, np, linecache, jaxviz))


def test_paths_are_shown_from_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert short_path(str(tmp_path / "a" / "b.py")) == "a/b.py"
    assert short_path("/elsewhere/b.py") == "/elsewhere/b.py"


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
    for file in ("/tmp/ipykernel_7/123.py", "<ipython-input-3-abc>"):
        assert str(jaxviz.ir.origin.Location(file, 4, "f")) == "cell:4"
    assert str(jaxviz.ir.origin.Location("/home/me/model.py", 4, "f")) == "/home/me/model.py:4"
