"""What happens in a session: the exercises that it has created, and what was answered."""

from __future__ import annotations

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
    """Notes an answer, unless it is a blank one."""
    if verdict.is_right is None:
        return
    state = of(exercise)
    if verdict.is_right or not state.is_right:
        if state.kind == "code":
            from jaxviz.teach.source import program_of

            state.source = program_of(given[0] if isinstance(given, (list, tuple)) and given else given)
        else:
            state.answer = given
    state.tries += not state.is_right
    state.is_right |= verdict.is_right


def note_hint(exercise: Exercise) -> None:
    state = of(exercise)
    state.hints += not state.is_right


def note_reveal(exercise: Exercise) -> None:
    state = of(exercise)
    state.is_revealed |= not state.is_right
