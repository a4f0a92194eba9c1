"""Puzzles to play without a kernel: which of some answers is right, and has the lowest amount?"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from jaxviz.teach.exercise import Exercise
from jaxviz.teach.predict import predict
from jaxviz.teach.puzzles.game import PUZZLES, check, find
from jaxviz.teach.puzzles.puzzle import Puzzle, lesson_link
from jaxviz.teach.source import code_of, code_of_argument, name_of


def choose(which: int | str) -> Exercise:
    """A puzzle as a choice between answers, of which some compute something else, or too much: a form that also works
    on a page without a kernel.

    >>> teach.puzzles.choose("order").answer("A").is_right in (True, False)
    True

    The answers are the known ones and the wrong ones of the puzzle. Each is checked and measured as an answer of yours
    would be, and what that says is the reason. The record may be lower.

    Args:
      which: the number of the puzzle, from 1, or its name.

    Raises:
      ValueError: there is no such puzzle.
    """
    puzzle = find(which)
    answers = answers_of(puzzle)
    question = (
        f"{PUZZLES.index(puzzle) + 1} · {puzzle.title}. {puzzle.task} Which of these answers is right, with the "
        f"{'lowest' if puzzle.measure.name == 'peak' else 'fewest'} {puzzle.measure.name}?"
    )
    form = predict(
        question, list(answers), truth=lambda: best_of(puzzle),
        because={letter: _because(puzzle, letter) for letter in answers}, hints=puzzle.hints,
    )  # fmt: skip
    blocks = [f"# As given\n{code_of(puzzle.function, puzzle.function)}"]
    blocks += [f"# {letter}\n{code}" for letter, (code, _) in answers.items()]
    return replace(form, form=replace(form.form, code="\n\n".join(blocks), link=lesson_link(puzzle.lesson)))


@cache
def answers_of(puzzle: Puzzle) -> dict[str, tuple[str, Any]]:
    """The answers to choose from, by letters: the code of each, and the answer itself. Their order is that of a digest
    of the code."""
    known = [a for a in (puzzle.solution, puzzle.better) if a is not None]
    # Nothing in the code says which ones are known: all are called `answer`.
    found = [(_renamed(code_of(a, puzzle.function), name_of(a, puzzle.function)), a) for a in known]
    found += [(code_of_argument(puzzle.name, "wrong", i, puzzle.function), a) for i, a in enumerate(puzzle.wrong)]
    found.sort(key=lambda pair: hashlib.sha256(pair[0].encode()).digest())
    return dict(zip("ABCDEFG", found, strict=False))


def _renamed(code: str, name: str) -> str:
    return re.sub(rf"\b{name.lstrip('_')}\b", "answer", code)


@cache
def best_of(puzzle: Puzzle) -> str:
    """The letter of the right answer with the lowest amount."""
    amounts = {letter: amount for letter in answers_of(puzzle) if (amount := _examined(puzzle, letter)[1]) is not None}
    return min(amounts, key=amounts.__getitem__)


@cache
def _examined(puzzle: Puzzle, letter: str) -> tuple[str, int | None]:
    """What is wrong with an answer, '' if it computes what it should; and its amount, if it does."""
    answer = answers_of(puzzle)[letter][1]
    points = check(puzzle, answer).points
    problem = next((f"({p.what}): {p.why.partition('; ')[0]}" for p in points if p.mark == "wrong"), "")
    return problem, None if problem else puzzle.measured(puzzle.function_of(answer))


def _because(puzzle: Puzzle, letter: str) -> Callable[[], str]:
    def reason() -> str:
        problem, amount = _examined(puzzle, letter)
        if amount is None:
            return f"It fails a check {problem}"
        measured = f"{puzzle.measure.says.format(puzzle.measure.written(amount))}"
        if letter == best_of(puzzle):
            return f"It computes the same. {measured}; par is {puzzle.measure.written(puzzle.par_amount)}."
        return f"It computes the same. {measured}, and another one is lower."

    return reason
