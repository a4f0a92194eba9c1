"""What happens in a session: the exercises that it has created, and what was answered."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from jaxviz.teach.exercise import Exercise, Verdict


@dataclass
class Attempts:
    """How far a learner is with an exercise, up to the first right answer; see `teach.results`."""

    question: str
    kind: str
    puzzle: str
    is_right: bool = False
    tries: int = 0
    hints: int = 0
    is_revealed: bool = False
    answer: Any = None
    source: str = ""


exercises: WeakValueDictionary[str, Exercise] = WeakValueDictionary()
"""The exercises of this session, by their questions."""

progress: dict[str, Attempts] = {}
"""What was done with them, by their questions."""

student = ""
"""What was given to `teach.seed`."""


def of(exercise: Exercise) -> Attempts:
    """The progress with an exercise; it is kept if its cell is run again."""
    puzzle = getattr(exercise, "puzzle", None)
    new = Attempts(exercise.question, exercise.form.kind, "" if puzzle is None else puzzle.name)
    return progress.setdefault(exercise.question, new)


def note_answer(exercise: Exercise, given: Any, verdict: Verdict) -> None:
    """Notes an answer, unless it is a blank one; the same one again, as of a cell run twice, is no other try."""
    if verdict.is_right is None or (of(exercise).is_right and not verdict.is_right):
        return
    state = of(exercise)
    before = state.source, repr(state.answer)
    if state.kind == "code":
        from jaxviz.teach.source import program_of

        state.source = program_of(given[0] if isinstance(given, (list, tuple)) and given else given)
    else:
        state.answer = given
    is_other = not state.tries or before != (state.source, repr(state.answer))
    state.tries += is_other and not state.is_right
    state.is_right |= verdict.is_right


def note_hint(exercise: Exercise) -> None:
    state = of(exercise)
    state.hints += not state.is_right


def note_reveal(exercise: Exercise) -> None:
    state = of(exercise)
    state.is_revealed |= not state.is_right


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
