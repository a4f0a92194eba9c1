"""Playing the puzzles: forms and verdicts."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from jaxviz.teach.exercise import BLANK, AnswerForm, Exercise, Point, Verdict, anchor, raised
from jaxviz.teach.puzzles import scores
from jaxviz.teach.puzzles.checkpoints import CHECKPOINTS
from jaxviz.teach.puzzles.nans import NANS
from jaxviz.teach.puzzles.puzzle import SCORES, Puzzle, lesson_link, score_name
from jaxviz.teach.puzzles.rules import RULES
from jaxviz.teach.puzzles.saving import SAVING
from jaxviz.teach.puzzles.work import WORK
from jaxviz.teach.rule import Check, is_blank, until_wrong
from jaxviz.teach.source import code_of, program_of, run_alone

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
      picture: bars for the answer, par, the record, and the function as given; HTML.
      stars: one for par, and one more for each better score.
      lesson: the notebook that teaches what is needed for par, if the answer does not reach it.
    """

    picture: str = ""
    stars: int = 0
    lesson: str = ""

    def __str__(self) -> str:
        return "\n".join([Verdict.__str__(self), *([self._read(lesson_link(self.lesson)[0])] if self.lesson else [])])

    __repr__ = __str__

    @staticmethod
    def _read(notebook: str) -> str:
        return f"What is needed for par: {notebook}"

    def _unfolded_html(self) -> str:
        shown = Verdict._unfolded_html(self)
        cheers = (
            f'<div style="color:#c98500;font-size:1.7em;letter-spacing:.15em;line-height:1">{"★" * self.stars}</div>'
        )
        label, target = lesson_link(self.lesson) if self.lesson else ("", "")
        lesson = f"<div>{self._read(anchor(label, target))}</div>" if self.lesson else ""
        return f"{cheers if self.stars else ''}{shown}{self.picture}{lesson}"


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
    an amount is measured: right is what reaches par. Such an answer is also run for the arrays that are measured. The
    record is the amount of the best answer known; `.reveal()` says how that is done.

    Args:
      which: its number, from 1, or its name.
      path: the file that stores the best answers.

    Raises:
      ValueError: there is no such puzzle.
    """
    puzzle = find(which)
    amounts = (puzzle.given_amount, puzzle.par_amount, puzzle.record_amount)
    amount, par, record = map(puzzle.measure.written, amounts)
    return PuzzleExercise(
        f"{PUZZLES.index(puzzle) + 1} · {puzzle.title}. {puzzle.task}",
        lambda answer: check(puzzle, answer),
        lambda: _known(puzzle),
        AnswerForm(
            "code",
            ((f"As given: {amount}. Par: {par}, {puzzle.source_of_par}. Record: {record}.", ()),),
            code=code_of(puzzle.function, puzzle.function),
            link=lesson_link(puzzle.lesson),
        ),
        puzzle.hints,
        lambda: (puzzle.function, *puzzle.wrong),
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
    checks = [Check("computes the same values and gradients", puzzle.difference)]
    if puzzle.extra_work:
        few = f"its gradient takes at most {100 * puzzle.extra_work:g} % more FLOPs than as given"
        checks.append(Check(few, puzzle.costs_more))
    checks += puzzle.checks
    checks.append(Check("has nothing whose work is not known, such as a callback or a `while` loop", puzzle.uncounted))
    if puzzle.points:
        at_points = partial(puzzle.difference, on_points=True)
        checks.append(Check("also has the correct values and gradients at the hard points", at_points))
    function_of = cache(puzzle.function_of)
    points = until_wrong([c.of(function_of) for c in checks], answer)
    if points[-1].mark == "wrong":
        return Verdict(False, "See what fails." if points[1:] else "It must compute the same values first.", points)
    amount = puzzle.measured(function_of(answer))
    score = score_name(amount, puzzle.par_amount)
    if score != "over par":
        as_measured = Check("also computes the same for the arrays that are measured", puzzle.difference_as_measured)
        points += until_wrong([as_measured.of(function_of)], answer)
        if points[-1].mark == "wrong":
            return Verdict(False, "See what fails.", points)
    return _scored(puzzle, function_of(answer), points, amount, score)


def _scored(puzzle: Puzzle, function: Any, points: tuple[Point, ...], amount: int, score: str) -> Verdict:
    par, record, written = puzzle.par_amount, puzzle.record_amount, puzzle.measure.written
    said = puzzle.measure.says.format(written(amount))
    picture = _bars({"as given": puzzle.given_amount, "par": par, "record": record, "yours": amount}, written)
    if score == "over par":
        why = puzzle.most_of(function)
        headline = f"{said}; par is {written(par)}."
        return Scored(False, headline, points, why, picture=picture, lesson=puzzle.lesson)
    beside = score_name(amount, record)  # the record in place of par
    if beside not in ("over par", "par"):
        headline = f"A new record! {said}. Par is {written(par)}, and the record was {written(record)}."
    else:
        of_record = "that is the record" if beside == "par" else f"the record is {written(record)}"
        cheer = "Par." if score == "par" else f"{score.capitalize()}!"
        headline = f"{cheer} {said}. Par is {written(par)}, and {of_record}."
    return Scored(True, headline, points, picture=picture, stars=1 + list(SCORES).index(score))


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


_COLOURS = {"as given": "#7f8894", "par": "#4a86d8", "record": "#e0a21b", "yours": "#249b82"}


def _known(puzzle: Puzzle) -> Verdict:
    """The known answers, as code."""
    parts = ["# At par", code_of(puzzle.solution, puzzle.function)]
    if puzzle.better is not None:
        parts += ["# Better than par", code_of(puzzle.better, puzzle.function)]
    record = f"The record, {puzzle.measure.written(puzzle.record_amount)}. {puzzle.how}"
    parts += ["\n".join(f"# {line}" for line in textwrap.wrap(record, 98))]
    if puzzle.record is not None:
        parts += [code_of(puzzle.record, puzzle.record)]
    return Verdict(None, "A known answer:", note="\n\n".join(parts))


def _kept(puzzle: Puzzle, answer: Any, path: Path) -> str:
    """Stores an answer if its source alone is right and better than the stored one, and reports it."""
    source = program_of(answer)
    if not source:
        return "It is not stored, since its source was not found: write it as a function, in a cell of its own."
    problem, amount = again(puzzle.name, source)
    if problem:
        return f"It is not stored, since its cell alone is not right: {problem} Put everything that it needs into it."
    stored = scores.read(path)
    is_as_good = puzzle.name in stored and again(puzzle.name, stored[puzzle.name].source) <= ("", amount)
    if not is_as_good:
        scores.keep(puzzle.name, scores.Best(amount, puzzle.par_amount, source), path)
    n = len(stored.keys() | {puzzle.name})
    progress = f"{n} of {len(PUZZLES)} stored; `teach.puzzles.card()` measures them, and is the score card."
    return f"Your best answer to this puzzle is as good. {progress}" if is_as_good else progress


@cache
def again(name: str, source: str) -> tuple[str, int]:
    """What is wrong with a stored answer, '' if nothing is, and its amount: of its source alone, with the function as
    given."""
    puzzle = find(name)
    names = {"jax": jax, "jnp": jnp, "np": np, "checkpoint_name": checkpoint_name}
    try:
        text = f"{code_of(puzzle.function, puzzle.function)}\n\n{source}"
        answer = run_alone(text, f"<your {name}>", names).get("answer", ...)
    except Exception as error:
        return f"{raised(error)}.", 0
    verdict = check(puzzle, answer)
    if not verdict:
        return f"{verdict.reason.rstrip('.')}.", 0
    return "", puzzle.measured(puzzle.function_of(answer))
