"""What a part of the check answers: rows, and the table and the file that they are written to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One answer.

    Args:
      case: the program that it is about.
      question: what was compared or measured.
      expected: the value that plain JAX, or the device, gives; '' if there is none to compare with.
      found: the value that jaxviz gives.
      agrees: whether the two agree; None for a figure without a right value.
      is_timed: whether the values are times, which differ between runs.
      note: a remark.
      figures: numbers for further use, which only the JSON file has.
      part: the part of the check.
    """

    case: str
    question: str
    expected: str
    found: str
    agrees: bool | None = None
    is_timed: bool = False
    note: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    part: str = ""


def read_rows(text: str) -> list[Row]:
    """Rows written by `as_line`, one on each line; a line that was cut off, because the part was stopped, is left
    out."""
    found = []
    for line in text.splitlines():
        try:
            found.append(Row(**json.loads(line)))
        except (json.JSONDecodeError, TypeError):
            continue
    return found


def as_line(row: Row) -> str:
    return json.dumps(asdict(row)) + "\n"


def guarded(case: str, question: str, answer: Callable[[], Iterable[Row]]) -> Iterator[Row]:
    """The rows of one case; an exception becomes a row, so that the next case is still looked at."""
    try:
        yield from answer()
    except Exception as error:
        text = f"{type(error).__name__}: {str(error).strip()}"
        yield Row(case, question, "", text.splitlines()[0][:200], False, figures={"error": text[:4000]})


VERDICTS = {True: "yes", False: "**no**", None: ""}


def markdown(rows: Sequence[Row]) -> str:
    """A table for each part: the answers first, then the times, which differ between runs."""
    return "\n".join(
        [
            *_tables([r for r in rows if not r.is_timed], "answers"),
            *_tables([r for r in rows if r.is_timed], "times"),
        ]
    )


def _tables(rows: Sequence[Row], what: str) -> Iterator[str]:
    for part in dict.fromkeys(r.part for r in rows):
        of_part = [r for r in rows if r.part == part]
        judged = [r for r in of_part if r.agrees is not None]
        yield f"## {part}: {what}, {sum(map(_agrees, judged))} of {len(judged)} as expected\n"
        yield "| program | question | JAX, XLA or the device | jaxviz | agrees | remark |"
        yield "| --- | --- | --- | --- | --- | --- |"
        for r in of_part:
            cells = (r.case, r.question, r.expected, r.found, VERDICTS[r.agrees], r.note)
            yield "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"
        yield ""


def _agrees(row: Row) -> bool:
    return bool(row.agrees)
