"""The JSON in a form on a page without a kernel. `python tests/page/wire_types.py` writes these types down for the
page."""

from __future__ import annotations

from typing import Literal, TypedDict


class SaidPoint(TypedDict):
    """One part of an answer, as in `teach.Point`."""

    mark: Literal["right", "wrong", "missed", "note"]
    what: str
    why: str


class Said(TypedDict):
    """A verdict, as in `teach.Verdict`."""

    isRight: bool | None
    headline: str
    points: list[SaidPoint]
    note: str


class OfChoice(TypedDict):
    """The verdict on each choice, in order."""

    kind: Literal["choice"]
    verdicts: list[Said]


class OfNumber(TypedDict):
    """A number and its tolerance, relative to the larger of the number and the answer."""

    kind: Literal["number"]
    truth: float
    tolerance: float
    exact: Said
    near: Said
    note: str


class OfWord(TypedDict):
    """A word, compared without case; the note is for wrong answers."""

    kind: Literal["word"]
    right: Said
    note: str


class Box(TypedDict):
    """A value that can be marked: whether the gradient saves it, and why or why not; and why not in other words, which
    name no value that is saved, for an answer that misses one."""

    isKept: bool
    what: str
    why: str
    whileMissed: str
    place: str


class OfMarks(TypedDict):
    """The values that can be marked, in order, and the notes for the right answer and for any answer."""

    kind: Literal["marks"]
    boxes: list[Box]
    headline: str
    note: str


class Sheet(TypedDict):
    """Everything that a form may need to say. Without a grading it takes no answer, because its answer is code that
    must run."""

    grading: OfChoice | OfNumber | OfWord | OfMarks | None
    blank: str
    hints: list[str]
    answer: Said
