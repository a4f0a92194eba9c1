"""Faults to plant, from `faults.txt`: for a file and the tests that cover it, lines of the file and what is to stand
there instead.

    jaxviz/transforms/vmap.py: tests/transforms/test_vmap.py -k mapped
    a result that is not mapped is reported as mapped
    - [(None if d is None else 0) if t is compat.IF_MAPPED else t for
    + [0 if t is compat.IF_MAPPED else t for
    the mapped dimension of a result is at another position
    - compat.match_axis(axis, source, to, x)
    + compat.match_axis(axis, to, source, x)

Lines with nothing instead go with their ends; others may be parts of lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Fault(NamedTuple):
    """One fault.

    Args:
      what: a short description of the fault.
      path: the file.
      text: the original text, which is unique in the file.
      instead: its replacement.
      tests: for pytest: the files that cover it, with `-k` if only a few of their tests do.
    """

    what: str
    path: str
    text: str
    instead: str
    tests: str


def _faults(table: str) -> Iterator[Fault]:
    for block in table.split("\n\n"):
        head, body = block.split("\n", 1)
        path, tests = head.split(": ", 1)
        for what, old, new in re.findall(r"([^-+\n].*)\n((?:- .*\n)+)((?:\+ .*\n)*)", f"{body}\n"):
            text, instead = ("\n".join(line[2:] for line in lines.splitlines()) for lines in (old, new))
            yield Fault(what, path, text if instead else f"{text}\n", instead, tests)


FAULTS = tuple(_faults(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")))
