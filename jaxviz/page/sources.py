"""The user's source files that equations point into, cut to the functions concerned."""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys

from jaxviz.ir import origin
from jaxviz.ir.expressions import span_at
from jaxviz.ir.origin import Location
from jaxviz.ir.own_code import is_own
from jaxviz.page.schema import Excerpt, SourceFile

_AROUND = 4
"""How many lines are shown before and after one outside any function."""

_TAB = 8


class SourceTable:
    """Numbers files, and records which lines of each are referred to.

    Args:
      embed: whether to include source text.
    """

    def __init__(self, embed: bool = True):
        self.embed = embed
        self.lines: dict[str, set[int]] = {}
        self.numbers: dict[str, int] = {}

    def number(self, location: Location) -> int:
        """The number of the location's file; records its line."""
        self.lines.setdefault(location.file, set()).add(location.line)
        return self.numbers.setdefault(location.file, len(self.numbers))

    def files(self) -> tuple[SourceFile, ...]:
        return tuple(self._file(path, lines) for path, lines in self.lines.items())

    def _file(self, path: str, lines: set[int]) -> SourceFile:
        is_user = is_own(path)
        excerpts = excerpts_of(path, lines) if is_user and self.embed else ()
        shown = short_path(path) if self.embed else file_label(path)
        return SourceFile(file_label(path), shown, is_user, excerpts)


def expression_of(location: Location) -> tuple[int, int, int, int]:
    """The line and column at which the expression at a location starts, and those at which it ends.

    Columns are counted as in JavaScript, in UTF-16 code units from 0, in the lines of `excerpts_of`. All are 0 if the
    source is missing, or is not what was run.
    """
    span = span_at(location.file, location.line, location.column, location.end_line, location.end_column)
    if span is None:
        return 0, 0, 0, 0
    at = lambda line, column: _units(linecache.getline(location.file, line).encode()[:column].decode())
    return span.line, at(span.line, span.column), span.end_line, at(span.end_line, span.end_column)


def _units(text: str) -> int:
    return len(text.expandtabs(_TAB).encode("utf-16-le")) // 2


def excerpts_of(path: str, lines: set[int]) -> tuple[Excerpt, ...]:
    """The functions that contain the given lines, whole; for lines outside any function, a few lines around them."""
    text = linecache.getlines(path)
    if not text:
        return ()
    functions = _functions(text)
    ranges = sorted({_range_around(line, functions, len(text)) for line in lines if 1 <= line <= len(text)})
    merged: list[list[int]] = []
    for first, last in ranges:
        if merged and first <= merged[-1][1] + 2:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    shown = [line.rstrip("\n").expandtabs(_TAB) for line in text]
    return tuple(Excerpt(first, tuple(shown[first - 1 : last])) for first, last in merged)


def _functions(text: list[str]) -> list[tuple[int, int]]:
    """The first and last lines of the outermost functions and classes."""
    try:
        tree = ast.parse("".join(text))
    except SyntaxError:
        return []
    ranges = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            ranges.append((first, node.end_lineno or node.lineno))
    return ranges


def _range_around(line: int, functions: list[tuple[int, int]], n: int) -> tuple[int, int]:
    for first, last in functions:
        if first <= line <= last:
            return first, last
    return max(1, line - _AROUND), min(n, line + _AROUND)


def short_path(path: str) -> str:
    """The path relative to the working directory, the home directory or a folder that Python imports from; of any other
    file only its name, since folders may have names of people and projects, and pages are passed on."""
    folders = (
        (os.getcwd(), ""),
        (os.path.expanduser("~"), "~/"),
        *((os.path.abspath(folder), "") for folder in sys.path),
    )
    for folder, prefix in folders:
        if path.startswith(folder.rstrip(os.sep) + os.sep) and os.path.dirname(folder) != folder:
            return prefix + path[len(folder) + 1 :]
    return os.path.basename(path) if os.path.isabs(path) else path


_ROOT = re.compile(r"(?:^|(?<=[\s'\"`(\[=,]))~?/(?=[^\s/])")
_PLAIN = re.compile(r"~?/(?:[^\s/:]+/)*")


def without_folders(text: str) -> str:
    """A text with the file paths in it replaced by file names; URLs stay as they are.

    >>> without_folders("reached at `sin` (equation 3, /home/me/model.py:12)")
    'reached at `sin` (equation 3, model.py:12)'
    """
    parts, done = [], 0
    for match in _ROOT.finditer(text):
        if match.start() >= done:
            parts.append(text[done : match.start()])
            done = match.start() + _length_of_folders(text[match.start() :])
    return "".join([*parts, text[done:]])


def _length_of_folders(text: str) -> int:
    """How many characters at the start of a path are folders: existing ones, or else without spaces; 0 for `/x`."""
    length = 0
    for slash in re.finditer("/", text):
        if not os.path.isdir(os.path.expanduser(text[: slash.end()])):
            break
        length = slash.end()
    plain = _PLAIN.match(text)
    return length if length > 2 else plain.end() if plain and plain[0].count("/") > 1 else 0


def file_label(path: str) -> str:
    """The file's name without folders."""
    return origin.file_label(path).rsplit("/", 1)[-1]
