"""Places in a report as links: in a notebook to the file's line or the cell, on a terminal to the file."""

from __future__ import annotations

import json
import linecache
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from jaxviz import terminal
from jaxviz.ir.origin import Location
from jaxviz.report.places import href, noting_places, source_line
from jaxviz.report.report import Report, Table
from jaxviz.report.tables import line_label, short_location


@dataclass(frozen=True, repr=False)
class Named(Report):
    locations: tuple[Location, ...]

    @property
    def summary(self):
        return f"born at {self.locations[0]}"

    def _parts(self):
        yield Table(("line", "what"), [(short_location(at), "`x<y` at no.py:3") for at in self.locations], "<<")
        yield f"See {short_location(self.locations[0])}, and my{short_location(self.locations[0])}2."


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "a b").mkdir()
    (tmp_path / "model.py").write_text("x = 1\n    y = x + 1  \n")
    (tmp_path / "a b" / "model.py").write_text("z = 1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def links(page):
    return re.findall(r'<a href="([^"]*)">([^<]*)</a>', page)


def test_a_place_leads_to_its_line_wherever_it_stands(folder):
    at = Location(str(folder / "model.py"), 2, "f")
    page = Named((at,))._repr_html_()
    # JupyterLab counts the lines of `#line=` from 0.
    assert links(page) == [
        ("model.py#line=1", str(at)), ("model.py#line=1", "model.py:2"), ("model.py#line=1", "model.py:2"),
    ]  # fmt: skip
    assert "mymodel.py:22" in page
    assert "<code>x&lt;y</code> at no.py:3" in page
    assert links(str(Named((at,)))) == []


def test_a_file_in_a_folder_below(folder):
    assert href(Location(str(folder / "a b" / "model.py"), 1, "f")) == "a%20b/model.py#line=0"


def test_what_two_files_share_leads_nowhere(folder):
    both = Location(str(folder / "model.py"), 1, "f"), Location(str(folder / "a b" / "model.py"), 1, "g")
    assert [text for _, text in links(Named(both)._repr_html_())] == [str(both[0])]


def test_what_lies_elsewhere_leads_nowhere(folder, monkeypatch):
    at = Location(str(folder / "model.py"), 1, "f")
    assert href(Location(str(folder / "gone.py"), 1, "f")) == ""
    monkeypatch.chdir(folder / "a b")
    assert href(at) == ""
    assert links(Named((at,))._repr_html_()) == []


def test_places_of_one_report_are_not_those_of_the_next(folder):
    Named((Location(str(folder / "model.py"), 1, "f"),))._repr_html_()
    page = Named((Location("elsewhere.py", 3, "f"),))._repr_html_().replace("elsewhere.py", "model.py")
    assert links(page) == []


def test_a_cell_is_found_by_its_text_in_the_saved_notebook(folder, monkeypatch):
    text = "def f(x):\n    return x\n"
    file = f"{folder}/ipykernel_1/23.py"
    monkeypatch.setitem(linecache.cache, file, (len(text), None, text.splitlines(True), file))
    at = Location(file, 2, "f")
    assert href(at) == ""
    notebook = folder / "n.ipynb"
    monkeypatch.setenv("JPY_SESSION_NAME", str(notebook))
    assert href(at) == ""
    cells = [{"id": "other", "source": ["1"]}, {"id": "c&1", "source": ["def f(x):\n", "    return x"]}]
    notebook.write_text(json.dumps({"cells": cells}))
    assert href(at) == "#cell-id=c%261"
    assert links(Named((at,))._repr_html_())[0] == ("#cell-id=c%261", "cell:2")
    notebook.write_text(json.dumps({"cells": [*cells, cells[1]]}))  # ambiguous
    assert href(at) == ""
    notebook.write_text("no notebook")
    assert href(at) == ""
    assert source_line(at) == "return x"
    assert line_label(at) == "cell:2 return x"


class Terminal:
    def __init__(self, is_terminal=True):
        self.is_terminal = is_terminal
        self.text = ""

    def isatty(self):
        return self.is_terminal

    def write(self, text):
        self.text += text


LINKING = "\x1b]8;;file://"


@pytest.fixture
def plain_terminal(monkeypatch):
    for name in (*terminal._WITH_LINKS, "TERM_PROGRAM", "VTE_VERSION", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def shown(text, monkeypatch, is_terminal=True):
    out = Terminal(is_terminal)
    monkeypatch.setattr("sys.stdout", out)
    terminal.show(text)
    return out.text


@pytest.mark.parametrize(
    ("name", "value", "has"),
    [("VTE_VERSION", "6003", True), ("VTE_VERSION", "4999", False), ("TERM_PROGRAM", "vscode", True),
     ("TERM_PROGRAM", "Apple_Terminal", False), ("KITTY_WINDOW_ID", "1", True), ("TERM", "dumb", False)],
)  # fmt: skip
def test_a_terminal_that_has_links_gets_them(folder, monkeypatch, plain_terminal, name, value, has):
    monkeypatch.setenv(name, value)
    with noting_places():
        text = str(Named((Location(str(folder / "model.py"), 2, "f"),)))
        found = shown(text, monkeypatch)
        assert LINKING not in shown(text, monkeypatch, is_terminal=False)
    assert (LINKING in found) is has
    if has:
        assert f"{(folder / 'model.py').as_posix()}\x1b\\model.py:2\x1b]8;;\x1b\\" in found
        assert re.sub(r"\x1b\]8;;[^\x1b]*\x1b\\", "", found) == f"{text}\n"


def test_a_text_commands_no_terminal(folder, monkeypatch, plain_terminal):
    monkeypatch.setenv("VTE_VERSION", "6003")
    with noting_places():
        place = short_location(Location(str(folder / "model.py"), 2, "f"))
        found = shown(f"\x1b]8;;http://evil\x1b\\ {place} \x1b]8;;\x1b\\", monkeypatch)
    assert found.count("\x1b") == 4
    assert "\x1b]8;;http" not in found


def test_the_command_line_names_places_as_links(folder, monkeypatch, plain_terminal):
    from jaxviz.cli import main

    monkeypatch.setenv("TERM_PROGRAM", "WezTerm")
    Path("linked_model.py").write_text("import jax.numpy as jnp\n\ndef loss(x):\n    return jnp.sin(x).sum()\n")
    out = Terminal()
    out.flush = lambda: None
    monkeypatch.setattr("sys.stdout", out)
    assert main(["residuals", "linked_model.py:loss", "--args", "f32[3]"]) == 0
    assert "linked_model.py\x1b\\linked_model.py:4\x1b]8;;\x1b\\" in out.text
