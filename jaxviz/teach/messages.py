"""What a form on a page without a kernel holds, as JSON. `python tests/page/wire_types.py` writes these types down for the page."""

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
    """What to say to each of the choices, in their order."""

    kind: Literal["choice"]
    verdicts: list[Said]


class OfNumber(TypedDict):
    """A number, and how far from it an answer may be, relative to the larger of the two."""

    kind: Literal["number"]
    truth: float
    tolerance: float
    exact: Said
    near: Said
    note: str


class OfWord(TypedDict):
    """A word, in any case of its letters; the note is for answers that are wrong."""

    kind: Literal["word"]
    right: Said
    note: str


class Box(TypedDict):
    """A value that can be marked: whether the gradient keeps it, and why or why not."""

    isKept: bool
    what: str
    why: str


class OfMarks(TypedDict):
    """The values that can be marked, in their order, and what is said with the right answer and with any."""

    kind: Literal["marks"]
    boxes: list[Box]
    headline: str
    note: str


class Sheet(TypedDict):
    """Everything that a form may have to say. Without a grading it takes no answer: its answer is code, which has to run."""

    grading: OfChoice | OfNumber | OfWord | OfMarks | None
    blank: str
    hints: list[str]
    answer: Said
