"""Places in a report as links, on a terminal to the file; those in a notebook are in a transcript."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jaxviz import terminal
from jaxviz.ir.origin import Location
from jaxviz.report.places import noting_places
from jaxviz.report.tables import short_location


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text("x = 1\n    y = x + 1  \n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
        text = f"born at {short_location(Location(str(folder / 'model.py'), 2, 'f'))}"
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
