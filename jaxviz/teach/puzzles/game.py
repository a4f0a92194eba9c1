"""Playing the puzzles: forms, verdicts and the score card."""

from __future__ import annotations

import html
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from jaxviz.report.report import Part, Report, Table
from jaxviz.report.tables import counted
from jaxviz.teach.exercise import BLANK, AnswerForm, Exercise, Point, Verdict
from jaxviz.teach.puzzles import scores
from jaxviz.teach.puzzles.checkpoints import CHECKPOINTS
from jaxviz.teach.puzzles.nans import NANS
from jaxviz.teach.puzzles.puzzle import Puzzle, score_name
from jaxviz.teach.puzzles.rules import RULES
from jaxviz.teach.puzzles.saving import SAVING
from jaxviz.teach.puzzles.work import WORK
from jaxviz.teach.rule import Check, is_blank, until_wrong
from jaxviz.teach.source import code_of, source_of

GROUPS: dict[str, tuple[Puzzle, ...]] = {
    "What a gradient saves": SAVING,
    "Checkpoints and policies": CHECKPOINTS,
    "Work": WORK,
    "Without a NaN": NANS,
    "Rules, programs and devices": RULES,
}
"""The puzzles by their subjects."""

PUZZLES: tuple[Puzzle, ...] = tuple(p for group in GROUPS.values() for p in group)
"""All puzzles, in the order of their numbers, which start at 1."""


@dataclass(frozen=True, slots=True, repr=False)
class Scored(Verdict):
    """The verdict on an answer that computes the correct values, with its score.

    Args:
      picture: bars for the answer, par, and the function as given; HTML.
      stars: one for par, two for better, three for half of par or less.
    """

    picture: str = ""
    stars: int = 0

    def _repr_html_(self) -> str:
        shown = Verdict._repr_html_(replace(self, is_folded=False))
        cheers = (
            f'<div style="color:#c98500;font-size:1.7em;letter-spacing:.15em;line-height:1">{"★" * self.stars}</div>'
        )
        text = f"{cheers if self.stars else ''}{shown}{self.picture}"
        return f"<details><summary>Result of the solution</summary>{text}</details>" if self.is_folded else text


@dataclass(eq=False)
class PuzzleExercise(Exercise):
    """A puzzle as an exercise: an answer that reaches par is right, and the best one is stored."""

    puzzle: Puzzle = field(kw_only=True)


def show(which: int | str, path: str | Path = scores.ANSWERS) -> PuzzleExercise:
    """A puzzle: in a notebook a form, with hints and a known answer.

    >>> mask = teach.puzzles.show("mask")
    >>> mask.answer(lambda w, x: jax.nn.relu(x @ w))
    Not yet. Its gradient saves 80.0 MiB besides its arguments; par is 16.0 MiB.
    ...

    An answer first has to compute what the function computes as it is given, with its gradient, on random inputs. Then
    an amount is measured: right is what reaches par.

    Args:
      which: its number, from 1, or its name.
      path: the file that stores the best answers.

    Raises:
      ValueError: there is no such puzzle.
    """
    puzzle = find(which)
    amount, par = puzzle.measure.written(puzzle.given_amount), puzzle.measure.written(puzzle.par_amount)
    return PuzzleExercise(
        f"{PUZZLES.index(puzzle) + 1} · {puzzle.title}. {puzzle.task}",
        lambda answer: check(puzzle, answer),
        lambda: _known(puzzle),
        AnswerForm(
            "code",
            ((f"As given: {amount}. Par: {par}, {puzzle.par_is}.", ()),),
            code=code_of(puzzle.function, puzzle.function),
        ),
        puzzle.hints,
        lambda: puzzle.wrong,
        store=lambda answer: _kept(puzzle, answer, Path(path)),
        puzzle=puzzle,
    )


def ask(which: int | str) -> Exercise:
    """A question about a puzzle's function, to answer before writing code.

    >>> teach.puzzles.ask("mask").answer("1 byte")
    Not yet. It is not `1 byte`.
    ...

    Args:
      which: the number of the puzzle, from 1, or its name.

    Raises:
      ValueError: there is no such puzzle.
    """
    return find(which).ask()


def find(which: int | str) -> Puzzle:
    """A puzzle by its number or its name.

    Raises:
      ValueError: there is none.
    """
    if isinstance(which, int) and 1 <= which <= len(PUZZLES):
        return PUZZLES[which - 1]
    named = next((p for p in PUZZLES if p.name == which), None)
    if named is None:
        names = ", ".join(p.name for p in PUZZLES)
        raise ValueError(f"no puzzle {which!r}: the numbers are 1 to {len(PUZZLES)}, and the names are {names}")
    return named


def check(puzzle: Puzzle, answer: Any) -> Verdict:
    """The verdict on an answer to a puzzle: whether it computes the correct values, and its score."""
    if is_blank(answer):
        return Verdict(None, BLANK)
    if not callable(answer):
        why = f"The answer must be a function, or a policy if the puzzle asks for one; got {answer!r}."
        return Verdict(False, "This cannot be an answer.", note=why)
    checks = [Check("computes the same values and gradients", puzzle.difference), *puzzle.checks]
    if puzzle.points:
        at_points = partial(puzzle.difference, on_points=True)
        checks.append(Check("also has the correct values and gradients at the hard points", at_points))
    function_of = cache(puzzle.function_of)
    points = until_wrong([c.of(function_of) for c in checks], answer)
    if points[-1].mark == "right":
        return _scored(puzzle, function_of(answer), points)
    return Verdict(False, "See what fails." if points[1:] else "It must compute the same values first.", points)


def _scored(puzzle: Puzzle, function: Any, points: tuple[Point, ...]) -> Verdict:
    amount, par, written = puzzle.measured(function), puzzle.par_amount, puzzle.measure.written
    score = score_name(amount, par)
    said = puzzle.measure.says.format(written(amount))
    picture = _bars({"as given": puzzle.given_amount, "par": par, "yours": amount}, written)
    if score == "over par":
        why = puzzle.most_of(function)
        return Scored(False, f"{said}; par is {written(par)}.", points, why, picture=picture)
    if score == "par":
        return Scored(True, f"Par. {said}.", points, picture=picture, stars=1)
    cheer = "Eagle!" if score == "eagle" else "Birdie!"
    return Scored(
        True, f"{cheer} {said}, and par is {written(par)}.", points, picture=picture, stars=3 if score == "eagle" else 2
    )


def _bars(amounts: dict[str, int], written: Callable[[int], str]) -> str:
    most = max(1, *amounts.values())
    rows = (
        f'<tr><td style="text-align:left">{label}</td><td style="width:20em"><div '
        f'style="height:.8em;width:{100 * n / most:.4g}%;'
        f'min-width:2px;background:{_COLOURS[label]}"></div></td><td '
        f'style="text-align:right">{html.escape(written(n))}</td></tr>'
        for label, n in amounts.items()
    )
    return f'<table style="margin:4px 0 4px 10px">{"".join(rows)}</table>'


_COLOURS = {"as given": "#7f8894", "par": "#4a86d8", "yours": "#249b82"}


def _known(puzzle: Puzzle) -> Verdict:
    """The known answers, as code."""
    parts = ["# At par", code_of(puzzle.solution, puzzle.function)]
    if puzzle.better is not None:
        parts += ["# Better than par", code_of(puzzle.better, puzzle.function)]
    return Verdict(None, "A known answer:", note="\n\n".join(parts))


def _kept(puzzle: Puzzle, answer: Any, path: Path) -> str:
    """Stores an answer, and reports it."""
    amount = puzzle.measured(puzzle.function_of(answer))
    is_kept = scores.keep(puzzle.name, scores.Best(amount, puzzle.par_amount, source_of(answer)), path)
    n_solved = len(scores.read(path))
    progress = f"{n_solved} of {len(PUZZLES)} solved; `teach.puzzles.card()` is the score card."
    return progress if is_kept else f"Your best answer to this puzzle is as good. {progress}"


@dataclass(frozen=True, eq=False, repr=False)
class Card(Report, schema="teach.puzzles.card"):
    """The score card: the best amount for each puzzle, and par.

    >>> teach.puzzles.card().solved
    7

    Args:
      best: the best answers, by the names of the puzzles.
    """

    best: dict[str, scores.Best]

    _data = ("solved", "best")

    @property
    def solved(self) -> int:
        """How many puzzles are solved."""
        return sum(p.name in self.best for p in PUZZLES)

    def score_of(self, puzzle: Puzzle) -> str:
        """'par', 'birdie' or 'eagle'; '' for a puzzle that is not solved yet."""
        best = self.best.get(puzzle.name)
        return "" if best is None else score_name(best.amount, best.par)

    @property
    def summary(self) -> str:
        """`7 of 24 puzzles solved: 4 at par, 1 birdie and 2 eagles`."""
        counts = Counter(map(self.score_of, PUZZLES))
        parts = [f"{counts['par']} at par"] if counts["par"] else []
        parts += [counted(counts[s], s) for s in ("birdie", "eagle") if counts[s]]
        return f"{self.solved} of {len(PUZZLES)} puzzles solved{': ' if parts else ''}{', '.join(parts)}"

    def _parts(self) -> Iterator[Part]:
        rows = []
        for number, puzzle in enumerate(PUZZLES, 1):
            best, written = self.best.get(puzzle.name), puzzle.measure.written
            amounts = (written(best.par), written(best.amount)) if best is not None else ("", "")
            rows.append((str(number), puzzle.title, puzzle.measure.name, *amounts, self.score_of(puzzle)))
        yield Table(("", "puzzle", "measured", "par", "yours", "score"), rows, "><<>><", shown=None)

    def _html_parts(self) -> Iterator[Part]:
        """In a notebook, the boxes show all puzzles, and the table lists the solved ones."""
        for table in self._parts():
            assert isinstance(table, Table)
            yield replace(table, rows=[row for row in table.rows if row[-1]])

    def _picture(self) -> str:
        numbers = itertools.count()
        rows = (
            f'<tr><td style="text-align:left">{html.escape(subject)}</td>'
            f'<td style="text-align:left">{"".join(self._box(next(numbers)) for _ in group)}</td></tr>'
            for subject, group in GROUPS.items()
        )
        return f'<table style="margin:4px 0">{"".join(rows)}</table>'

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


_BOXES = {
    "": ("transparent", "inherit"),
    "par": ("#4a86d8", "#fff"),
    "birdie": ("#1e7d69", "#fff"),
    "eagle": ("#e0a21b", "#000"),
}


def card(path: str | Path = scores.ANSWERS) -> Card:
    """The score card: the best answers so far.

    >>> teach.puzzles.card()
    7 of 24 puzzles solved: 4 at par, 1 birdie, 2 eagles
    ...

    Args:
      path: the file that stores the best answers.
    """
    return Card(scores.read(path))
