"""Source files as bytes need them: encoding, byte order mark and line ends, and the diff between a file and a new text."""

from __future__ import annotations

import difflib
import linecache
import os
import re
import tokenize
from dataclasses import dataclass

from jaxviz.ir.origin import file_label, is_cell

_BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class EncodedSource:
    """A file of the user's.

    Args:
      text: all of it, with its own line ends and its byte order mark.
      encoding: how it is encoded.
    """

    text: str
    encoding: str

    @property
    def lines(self) -> list[str]:
        """Its lines with `\\n` at their ends, as Python and `linecache` read them."""
        return [_END.sub("\n", line) for line in _with_ends(self.text.removeprefix(_BOM))]

    def edited(self, lines: list[str]) -> str:
        """The text with other lines: those that stay keep their ends, new ones get that of the first."""
        old, raw = self.lines, _with_ends(self.text.removeprefix(_BOM))
        end = next((found[0] for found in map(_END.search, raw) if found), "\n")
        made: list[str] = []
        for tag, i, k, m, n in difflib.SequenceMatcher(None, old, lines, autojunk=False).get_opcodes():
            made += raw[i:k] if tag == "equal" else [line.replace("\n", end) for line in lines[m:n]]
        return _BOM * self.text.startswith(_BOM) + "".join(made)


_END = re.compile(r"\r\n?|\n")


def _with_ends(text: str) -> list[str]:
    """The lines of a text with their ends. Unlike `str.splitlines`, it does not end lines at form feeds and the like, as Python does not."""
    return re.findall(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+\Z", text)


def source_file(file: str) -> EncodedSource:
    """A file as it is now; a cell, or a file that is gone, as it was run."""
    if is_cell(file) or not os.path.exists(file):
        return EncodedSource("".join(linecache.getlines(file)), "utf-8")
    with open(file, "rb") as f:
        encoding, _ = tokenize.detect_encoding(f.readline)
    with open(file, encoding=encoding, newline="") as f:
        return EncodedSource(_BOM * (encoding == "utf-8-sig") + f.read(), encoding.removesuffix("-sig"))


def unified(file: str, text: str) -> str:
    """A diff from a file to a new text, with `\\n` at the ends of its lines, that `git apply` accepts; without the final newline."""
    now = source_file(file)
    if not _END.search(now.text[-1:]):
        text = text.removesuffix("\n")
    old, new = _for_git(now.text), _for_git(now.edited(_for_git(text)))
    shown = file_label(file) if is_cell(file) else os.path.relpath(file)
    if shown.startswith(os.pardir):
        shown = os.path.basename(file)
    names = [_quoted(f"{side}/{shown.replace(os.sep, '/')}") for side in "ab"]
    diffs = (_diff(old, new, names, n) for n in (3, 2, 1))
    return next((d for d in diffs if now.encoding == "utf-8" or d.isascii()), None) or _diff(old, new, names, 3)


def encoding_note(file: str, diff: str) -> str:
    """How to write a diff of a file that is not in UTF-8, if that matters; '' otherwise."""
    encoding = source_file(file).encoding
    if encoding == "utf-8" or diff.isascii():
        return ""
    how = f"open(path, 'w', encoding={encoding!r}, errors='replace', newline='')"
    return f"{file_label(file)} is encoded in {encoding}, and so has to be this diff: write it with {how}."


def _diff(old: list[str], new: list[str], names: list[str], n: int) -> str:
    lines = difflib.unified_diff(old, new, names[0], names[1], n=n)
    whole = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return whole.removesuffix("\n")


def _for_git(text: str) -> list[str]:
    """The lines of a text for git, which ends them only at `\\n`."""
    return re.findall(r"[^\n]*\n|[^\n]+\Z", text)


_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def _quoted(name: str) -> str:
    """A file name in a diff: one with control characters, quotes or other bytes than UTF-8 is quoted as in C; a tab ends one with spaces."""
    if re.search(r'[\x00-\x1f"\\\x7f\udc80-\udcff]', name):
        escaped = (
            _ESCAPES.get(c) or (c if c.isprintable() else "".join(f"\\{b:03o}" for b in os.fsencode(c))) for c in name
        )
        return f'"{"".join(escaped)}"'
    return f"{name}\t" if " " in name else name
