"""The best answer to each puzzle, in a file beside the notebook."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from jaxviz.teach import answers

ANSWERS = "answers/my_puzzles.py"

_HEAD = "# Your best answers to the puzzles. `teach.puzzles.card()` runs each of them, and measures it again.\n"
_LINE = re.compile(r"(\w+): (\d+), par (\d+)")


@dataclass(frozen=True)
class Best:
    """The best answer to a puzzle.

    Args:
      amount: its measure.
      par: par at that time.
      source: a program that assigns the answer to `answer`.
    """

    amount: int
    par: int
    source: str


def read(path: str | Path = ANSWERS) -> dict[str, Best]:
    """The stored best answers, by the names of the puzzles; empty if there is no file."""
    matches = ((_LINE.fullmatch(line), source) for line, source in answers.read(path).items())
    return {line[1]: Best(int(line[2]), int(line[3]), source.strip()) for line, source in matches if line}


def keep(name: str, best: Best, path: str | Path = ANSWERS) -> None:
    """Stores an answer in the place of an earlier one."""
    scores = {**read(path), name: best}
    answers.write(path, _HEAD, {f"{n}: {b.amount}, par {b.par}": b.source for n, b in scores.items()})
