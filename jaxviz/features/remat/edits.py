"""Edits of source files: combined, checked against the code that was run, and as a diff that `git apply` accepts."""

from __future__ import annotations

import ast
import difflib
import linecache
import os
import re
import sys
import tokenize
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

from jaxviz.features.remat.source import Function, codes_in, end_of, globals_of, names_bound, start_of
from jaxviz.ir.expressions import SCOPES, first_line, outside_of_functions, tree_of
from jaxviz.ir.origin import file_label, is_cell
from jaxviz.report.tables import printable

_HEADS = [
    ("partial(", "partial", "from functools import partial"),
    ("jax.", "jax", "import jax"),
    ("checkpoint_name(", "checkpoint_name", "from jax.ad_checkpoint import checkpoint_name"),
]
"""Imports by the text that needs them: the name that has to be bound, and its import statement."""

At = tuple[int, int]
"""A line, from 1, and a column, in bytes of UTF-8."""


class ChangedError(Exception):
    """A file has changed since it was imported."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Text that replaces a range of a file.

    Args:
      start, end: the range; equal for an insertion.
      partner: the position of the other bracket of a pair: at one position, closing brackets come before opening ones,
        and inner pairs are nested in outer ones.
      other: the text there. Two pairs around one expression are different, even if they have the same opening text.
    """

    file: str
    start: At
    end: At
    text: str
    partner: At | None = None
    other: str = ""

    @property
    def order(self) -> tuple[Any, ...]:
        """A sort key: by position; at one position closing brackets first, inner ones before outer ones, then opening
        ones, outer ones first."""
        other = self.partner or self.start
        return (self.start, not self.closes, (-other[0], -other[1]))

    @property
    def closes(self) -> bool:
        """Whether it is the second bracket of a pair."""
        return self.partner is not None and self.partner < self.start


@dataclass(frozen=True, slots=True)
class Way:
    """The changes to the source for one checkpoint.

    Args:
      code: code of the file that was run; None if unknown.
      changes: edits whose texts contain `{policy}` for the policy as an argument, and `{name}` for its name.
      without_policy: the edits if it saves nothing by name and these are different.
      imports: the names that the edits use, and how each is imported.
      call: the call that becomes one of a checkpoint, if that is the place.
      written: the checkpoint that is there, as an expression or a decorator; None for a new one.
      result: the function that the expression in the checkpoint made, if this is not run again while the function is
        traced; None otherwise.
    """

    file: str
    code: Any
    changes: tuple[Edit, ...]
    without_policy: tuple[Edit, ...] | None = None
    imports: tuple[tuple[str, str], ...] = ()
    call: ast.Call | None = None
    written: ast.expr | None = None
    result: Any = None

    def edits(self, policy: str) -> list[Edit]:
        """The edits for a policy, as an expression; '' for none."""
        if not policy and self.without_policy is not None:
            return list(self.without_policy)
        argument = f", policy={policy}" if policy else ""
        filled = lambda text: text.replace("{policy}", argument).replace("{name}", policy)
        return [replace(e, text=filled(e.text), other=filled(e.other)) for e in self.changes]


def around(file: str, start: At, end: At, before: str, after: str) -> list[Edit]:
    """A pair of brackets around an expression."""
    return [Edit(file, start, start, before, end, after), Edit(file, end, end, after, start, before)]


def wrapped(code: Any, node: ast.expr, before: str, after: str, **more: Any) -> Way:
    """A checkpoint around an expression in the file of some code."""
    file = code.co_filename
    return Way(file, code, tuple(around(file, start_of(node), end_of(node), before, after)), **more)


def decorated(
    code: Any, node: Function, checkpoint: str = "jax.checkpoint", options: str = "", is_above: bool = False,
    imports: tuple[tuple[str, str], ...] = (),
) -> Way:  # fmt: skip
    """A decorator of a function, below or above the others."""
    at = (first_line(node) if is_above else node.lineno, 0)  # the second is the line of `def`
    put = lambda text: (Edit(code.co_filename, at, at, f"{' ' * node.col_offset}{text}\n"),)
    plain = None if options else put(f"@{checkpoint}")
    return Way(code.co_filename, code, put(f"@partial({checkpoint}{options}{{policy}})"), plain, imports=imports)


def edited(
    edits: Iterable[Edit],
    policies: Mapping[str, str],
    codes: Collection[tuple[str, Any]],
    imports: Collection[tuple[str, str]] = (),
) -> dict[str, str]:
    """The text of each file with the edits applied, and what they need after its imports.

    Args:
      policies: the line that assigns each policy, by its name.
      codes: files, each with code of it that was run.
      imports: names besides JAX that the edits may use, and how each is imported.

    Raises:
      ChangedError: a file has changed since it was run.
    """
    by_file: dict[str, list[Edit]] = {}
    for edit in dict.fromkeys(edits):
        by_file.setdefault(edit.file, []).append(edit)
    ran: dict[str, list[Any]] = {}
    for file, code in codes:
        ran.setdefault(file, []).append(code)
        _refuse_changed(file, code)
    return {file: _with(file, some, policies, ran.get(file, []), imports) for file, some in by_file.items()}


def needed_imports(
    written: str, file: str, codes: Sequence[Any], imports: Collection[tuple[str, str]]
) -> list[str]:  # fmt: skip
    """The import statements that a text needs in a file; see `edited`."""
    bound = bound_in(file, codes)
    heads = [*_HEADS, *((name, name, line) for name, line in imports)]
    return list(dict.fromkeys(line for text, name, line in heads if text in written and name not in bound))


def _with(
    file: str, edits: list[Edit], policies: Mapping[str, str], codes: Sequence[Any],
    imports: Collection[tuple[str, str]],
) -> str:  # fmt: skip
    lines = linecache.getlines(file)
    written = "".join(e.text for e in edits)
    constants = "".join(f"{line}\n" for name, line in policies.items() if name in written)
    head = "".join(f"{line}\n" for line in needed_imports(written + constants, file, codes, imports))
    head += f"\n{constants}" if constants else ""
    if head:
        at = (after_imports(file, min(e.start for e in edits)[0]), 0)
        edits = [Edit(file, at, at, head, (10**9, 0)), *edits]
    text = "".join(lines).encode()
    starts = [0, *accumulate(len(line.encode()) for line in lines)]
    offset = lambda at: starts[at[0] - 1] + at[1] if at[0] <= len(lines) else len(text)
    if lines and not lines[-1].endswith("\n") and any(e.start[0] > len(lines) for e in edits):
        text += b"\n"
    # Of several pairs around one expression, the first is the innermost.
    places = {e: i if e.closes else -i for i, e in enumerate(edits)}
    parts, reached = [], 0
    for e in sorted(edits, key=lambda e: (*e.order, places[e])):
        start = max(offset(e.start), reached)
        parts += [text[reached:start], e.text.encode()]
        reached = max(offset(e.end), start)
    return b"".join([*parts, text[reached:]]).decode()


def bound_in(file: str, codes: Iterable[Any]) -> set[str]:
    """The names that all of a file can use: those it imports or assigns, and those of earlier cells."""
    others = vars(sys.modules["__main__"]) if is_cell(file) else {}
    return names_bound(tree_of(file)).union(others, *(globals_of(code) for code in codes if code is not None))


def after_imports(file: str, first_edit: int) -> int:
    """The line after the last import that precedes a file's first edit, or after its docstring."""
    tree, line = tree_of(file), 1
    for node in tree.body:
        end = node.end_lineno or 0
        if end >= first_edit:
            break
        is_docstring = node is tree.body[0] and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        inside = () if isinstance(node, SCOPES) else (node, *outside_of_functions(node))
        if is_docstring or any(isinstance(n, ast.Import | ast.ImportFrom) for n in inside):
            line = end + 1
    return line


def _refuse_changed(file: str, code: Any) -> None:
    """Raises an error if the file no longer contains the code that was run."""
    if is_cell(file) or not os.path.exists(file):
        return
    now = "".join(source_file(file).lines)
    # `linecache` adds a line break to the last line if the file lacks it.
    if now + "\n" * (not now.endswith("\n")) == "".join(linecache.getlines(file)) and (
        code is None or code in _codes(now, file)
    ):
        return
    raise ChangedError(
        f"{printable(file_label(file))} has changed since it was imported: import it again, and plan again."
    )


@lru_cache(maxsize=16)
def _codes(text: str, file: str) -> frozenset[Any]:
    """All code objects of a text: functions, classes and the module."""
    try:
        return frozenset(codes_in(compile(text, file, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return frozenset()


# --- files as bytes need them: encoding, byte order mark and line ends ------------------------------------------------

_BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class EncodedSource:
    """A file of the user's."""

    text: str
    encoding: str

    @property
    def lines(self) -> list[str]:
        """Its lines with `\\n` at their ends, as Python and `linecache` read them."""
        return [_END.sub("\n", line) for line in _with_ends(self.text.removeprefix(_BOM))]

    def edited(self, lines: list[str]) -> str:
        """The text with other lines: those that stay keep their ends, new ones get that of the first."""
        old, raw = self.lines, _with_ends(self.text.removeprefix(_BOM))
        end = next((first[0] for first in map(_END.search, raw) if first), "\n")
        parts: list[str] = []
        for tag, i, k, m, n in difflib.SequenceMatcher(None, old, lines, autojunk=False).get_opcodes():
            parts += raw[i:k] if tag == "equal" else [line.replace("\n", end) for line in lines[m:n]]
        return _BOM * self.text.startswith(_BOM) + "".join(parts)


_END = re.compile(r"\r\n?|\n")


def _with_ends(text: str) -> list[str]:
    """The lines of a text with their ends.

    Unlike `str.splitlines`, it does not end lines at form feeds and the like, as Python does not.
    """
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
    """A diff from a file to a new text, with `\\n` at the ends of its lines, that `git apply` accepts; without the
    final newline."""
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
    text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return text.removesuffix("\n")


def _for_git(text: str) -> list[str]:
    """The lines of a text for git, which ends them only at `\\n`."""
    return re.findall(r"[^\n]*\n|[^\n]+\Z", text)


_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def _quoted(name: str) -> str:
    """A file name in a diff: one with control characters, quotes or other bytes than UTF-8 is quoted as in C; a tab
    ends one with spaces."""
    if re.search(r'[\x00-\x1f"\\\x7f\udc80-\udcff]', name):
        escaped = (
            _ESCAPES.get(c) or (c if c.isprintable() else "".join(f"\\{b:03o}" for b in os.fsencode(c))) for c in name
        )
        return f'"{"".join(escaped)}"'
    return f"{name}\t" if " " in name else name
