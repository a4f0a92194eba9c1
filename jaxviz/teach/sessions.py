"""What happens in a session: the exercises that it has created, and what was answered."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from jaxviz.report.data import Data

if TYPE_CHECKING:
    from types import FrameType

    from jaxviz.teach.exercise import Exercise, Verdict


@dataclass(frozen=True, slots=True)
class Answered(Data):
    """What became of one exercise: until its first right answer, or until now.

    >>> [(a.question, a.tries, a.is_right) for a in teach.results().answered]

    Args:
      question: its question, which identifies it.
      kind: how it is answered: 'marks', 'choice', 'line' or 'code'.
      puzzle: the name of the puzzle; '' for another exercise.
      is_right: whether there was a right answer.
      tries: how many answers were given.
      hints: how many hints were shown.
      is_revealed: whether the answer was revealed.
      answer: the last answer, or the last right one, as JSON; '' for code.
      source: of the last answer in code, or the first right one, a program that assigns it to `answer`, where the
        notebook has defined what it defines before the exercise; '' if it was not found.
    """

    question: str
    kind: str
    puzzle: str = ""
    is_right: bool = False
    tries: int = 0
    hints: int = 0
    is_revealed: bool = False
    answer: str = ""
    source: str = ""


class ValueNumber(int):
    """The number of a value in an exercise, as returned by the form; a plain number is a line."""


def as_json(answer: Any) -> str:
    """An answer as it is stored."""

    def plain(part: Any) -> Any:
        if isinstance(part, (list, tuple)):
            return [plain(p) for p in part]
        if isinstance(part, ValueNumber):
            return {"value": int(part)}
        return part if isinstance(part, (str, int, float, bool)) else str(part)

    return "" if answer is None else json.dumps(plain(answer))


def from_json(text: str) -> Any:
    """The answer that is stored."""
    return json.loads(text, object_hook=lambda entry: ValueNumber(entry["value"]))


exercises: WeakValueDictionary[int, Exercise] = WeakValueDictionary()
"""The exercises of this session, in the order in which they were created."""

_numbers = itertools.count()

progress: dict[str, Answered] = {}
"""What was done with them, by their questions."""

student = ""
"""What was given to `teach.seed`."""


def enter(exercise: Exercise) -> None:
    exercises[next(_numbers)] = exercise


def asking(question: str) -> Exercise | None:
    """The newest exercise with that question, of those that are still there; None if there is none."""
    return next((e for _, e in sorted(exercises.items(), reverse=True) if e.question == question), None)


def of(exercise: Exercise) -> Answered:
    """The progress with an exercise; it is kept if its cell is run again."""
    puzzle = getattr(exercise, "puzzle", None)
    new = Answered(exercise.question, exercise.form.kind, "" if puzzle is None else puzzle.name)
    return progress.setdefault(exercise.question, new)


def note_answer(exercise: Exercise, given: Any, verdict: Verdict, cell: FrameType) -> None:
    """Notes an answer, unless it is a blank one; the same one again, as of a cell run twice, is no other try.

    Args:
      cell: the frame of the cell that gives the answer.
    """
    if verdict.is_right is None or (of(exercise).is_right and not verdict.is_right):
        return
    before = of(exercise)
    if before.kind == "code":
        from jaxviz.teach.source import program_of

        first = given[0] if isinstance(given, (list, tuple)) and given else given
        # A cell that only tests an answer does not define it.
        is_known = before.is_right and before.source and not before.puzzle
        written = lambda: program_of(first, cell.f_code.co_filename, cell.f_globals, exercise.names)
        after = replace(before, source=before.source if is_known else written())
    else:
        after = replace(before, answer=as_json(given))
    is_other = not before.tries or after != before
    tries = before.tries + (is_other and not before.is_right)
    progress[exercise.question] = replace(after, tries=tries, is_right=verdict.is_right)


def note_hint(exercise: Exercise) -> None:
    before = of(exercise)
    progress[exercise.question] = replace(before, hints=before.hints + (not before.is_right))


def note_reveal(exercise: Exercise) -> None:
    before = of(exercise)
    progress[exercise.question] = replace(before, is_revealed=before.is_revealed or not before.is_right)


def seed(text: str) -> None:
    """Chooses the numbers of this student's questions, such as a length: those that a notebook takes from
    `teach.number`. To call first; without it, all have the same numbers.

    >>> teach.seed("Ada Lovelace")
    >>> teach.number("positions", 1024, 1536, 2048)
    1024

    Whoever knows the name knows the numbers: it makes answers differ between students, and hides nothing.

    Args:
      text: the student's name or number; '' for the numbers that all have.
    """
    global student
    student = text


def number(name: str, *choices: int) -> int:
    """One of some numbers, by what was given to `teach.seed`; without that, the first.

    >>> n = teach.number("positions", 1024, 1536, 2048)
    >>> size = teach.predict(f"How many bytes are {n:,} numbers?", truth=lambda: 4 * n)

    Args:
      name: what the number is, so that those of a notebook differ in their places.
      *choices: the numbers.
    """
    digest = hashlib.sha256(f"{student}: {name}".encode()).digest()
    return choices[int.from_bytes(digest[:8], "big") % len(choices) if student else 0]
