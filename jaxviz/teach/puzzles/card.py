"""The score card of the puzzles, and the text of it to share."""

from __future__ import annotations

import html
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from jaxviz.report.report import Part, Report, Table
from jaxviz.teach.puzzles import scores
from jaxviz.teach.puzzles.game import GROUPS, PUZZLES, again, find
from jaxviz.teach.puzzles.puzzle import SCORES, Puzzle, score_name


@dataclass(frozen=True, eq=False, repr=False)
class Card(Report, schema="teach.puzzles.card"):
    """The score card: the best amount for each puzzle, par, and the record.

    >>> teach.puzzles.card().solved
    7
    >>> print(teach.puzzles.card().share())  # without the code
    jaxviz puzzles: 7 of 24 solved: ...

    Args:
      best: the best answers that are right, by the names of the puzzles, as measured now.
      problems: what is wrong with the other stored answers.
    """

    best: dict[str, scores.Best]
    problems: dict[str, str] = field(default_factory=dict)

    _data = ("solved", "best")

    @property
    def solved(self) -> int:
        """How many puzzles are solved."""
        return sum(p.name in self.best for p in PUZZLES)

    def score_of(self, puzzle: Puzzle) -> str:
        """'par', 'birdie', 'eagle', 'albatross' or 'condor'; '' for a puzzle that is not solved yet."""
        best = self.best.get(puzzle.name)
        return "" if best is None else score_name(best.amount, best.par)

    @property
    def summary(self) -> str:
        """`7 of 24 puzzles solved: 4 at par, 1 birdie, 1 eagle, 1 condor`."""
        counts = Counter(map(self.score_of, PUZZLES))
        parts = [f"{counts['par']} at par"] if counts["par"] else []
        named = {s: f"{s}{'es' if s.endswith('s') else 's'}" for s in SCORES if s != "par"}
        parts += [f"{counts[s]} {s if counts[s] == 1 else many}" for s, many in named.items() if counts[s]]
        return f"{self.solved} of {len(PUZZLES)} puzzles solved{': ' if parts else ''}{', '.join(parts)}"

    def _parts(self) -> Iterator[Part]:
        rows = []
        for number, puzzle in enumerate(PUZZLES, 1):
            score = self.score_of(puzzle)
            rows.append((str(number), puzzle.title, puzzle.measure.name, *self._amounts(puzzle), score))
        for name, problem in self.problems.items():
            yield f"The stored answer to '{name}' does not count: {problem}"
        heads = ("", "puzzle", "measured", "par", "record", "yours", "score")
        yield Table(heads, rows, "><<>>><", shown=None)

    def _amounts(self, puzzle: Puzzle) -> tuple[str, ...]:
        """Par, the record and the best amount, as text; nothing for a puzzle that is not solved yet."""
        best = self.best.get(puzzle.name)
        amounts = (best.par, puzzle.record_amount, best.amount) if best is not None else ()
        return tuple(map(puzzle.measure.written, amounts)) or ("", "", "")

    def share(self) -> str:
        """The result as text, without any code: a line for each puzzle that is solved.

        >>> print(teach.puzzles.card().share())
        jaxviz puzzles: 7 of 24 solved: ...
        """
        lines = [f"jaxviz puzzles: {self.summary.replace(' puzzles', '')}"]
        for number, puzzle in enumerate(PUZZLES, 1):
            if score := self.score_of(puzzle):
                par, record, yours = self._amounts(puzzle)
                reached = " (the record)" if yours == record else ""
                lines.append(f"{number:2} {puzzle.title}: {yours}, par {par}, record {record}: {score}{reached}")
        return "\n".join(lines)

    def _html_parts(self) -> Iterator[Part]:
        """In a notebook, the boxes show all puzzles, and the table lists the solved ones."""
        for part in self._parts():
            yield replace(part, rows=[row for row in part.rows if row[-1]]) if isinstance(part, Table) else part

    def _picture(self) -> str:
        numbers = itertools.count()
        rows = (
            f'<tr><td style="text-align:left">{html.escape(subject)}</td>'
            f'<td style="text-align:left">{"".join(self._box(next(numbers)) for _ in group)}</td></tr>'
            for subject, group in GROUPS.items()
        )
        text = html.escape(self.share(), quote=True)
        copy = f'<button data-text="{text}" onclick="{_COPY}">Copy the result</button>' if self.solved else ""
        return f'<table style="margin:4px 0">{"".join(rows)}</table>{copy}'

    def _box(self, index: int) -> str:
        puzzle = PUZZLES[index]
        score = self.score_of(puzzle)
        background, ink = _BOXES[score]
        title = html.escape(f"{puzzle.title}: {score or 'not solved yet'}", quote=True)
        return (
            f'<span title="{title}" '
            'style="display:inline-block;width:2.2em;line-height:2.2em;margin-right:3px;text-align:center;border:1px '
            "solid #7f8894;border-radius:3px;"
            f'background:{background};color:{ink}">{index + 1}</span>'
        )


_COPY = "navigator.clipboard.writeText(this.dataset.text).then(() => (this.textContent = 'Copied'))"

_BOXES = {
    "": ("transparent", "inherit"),
    "condor": ("#7b3fa0", "#fff"),
    "albatross": ("#b3402e", "#fff"),
    "par": ("#4a86d8", "#fff"),
    "birdie": ("#1e7d69", "#fff"),
    "eagle": ("#e0a21b", "#000"),
}


def card(path: str | Path = scores.ANSWERS) -> Card:
    """The score card: the best answers so far. Each is run from its stored source, checked and measured, which takes
    seconds for the first time.

    >>> teach.puzzles.card()
    7 of 24 puzzles solved: 4 at par, 1 birdie, 1 eagle, 1 condor
    ...

    Args:
      path: the file that stores the best answers.
    """
    stored = {p.name: b for p in PUZZLES if (b := scores.read(path).get(p.name)) is not None}
    measured = {name: again(name, b.source) for name, b in stored.items()}
    best = {
        name: scores.Best(amount, find(name).par_amount, stored[name].source)
        for name, (problem, amount) in measured.items()
        if not problem
    }
    return Card(best, {name: problem for name, (problem, _) in measured.items() if problem})
