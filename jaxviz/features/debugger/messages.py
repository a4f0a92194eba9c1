"""The messages between the stepper and its page, as JSON.

`python tests/page/wire_types.py` generates their types for the page.
"""

from __future__ import annotations

from typing import NamedTuple, NotRequired, TypedDict


class Variable(NamedTuple):
    """A variable where it is bound: `of` is the value whose cotangent it is, `label` describes an input; empty
    otherwise."""

    name: str
    type: str
    of: str
    label: str


class SourceLine(NamedTuple):
    """A line of the user's source."""

    file: int
    line: int


class SourceRange(NamedTuple):
    """A line of the user's source, and the expression there: lines count from 1, or 0 if unknown, and characters from
    0."""

    file: int
    line: int
    startLine: int
    start: int
    endLine: int
    end: int


class StackLine(NamedTuple):
    """A line that led to an equation, and its function."""

    file: int
    line: int
    name: str


class StepLoop(NamedTuple):
    """The iterations of a loop, counted as in the program: how many, if that is known, and the one that runs first."""

    length: int | None
    first: int


class StepRow(TypedDict):
    """An equation: its results, primitive, params as `name=value`, operands, line and expression, and what devices
    exchange for it, as its types imply.

    If it can be stepped into: by label the nested programs, the name of the function that it calls, and for a loop its
    iterations.
    """

    o: list[Variable]
    p: str
    q: NotRequired[list[str]]
    i: list[str]
    a: NotRequired[SourceRange]
    n: NotRequired[dict[str, int]]
    f: NotRequired[str]
    t: NotRequired[StepLoop]
    x: NotRequired[list[str]]


class StepProgram(TypedDict):
    """A program of the run."""

    stage: str
    inputs: list[Variable]
    results: list[str]
    rows: list[StepRow]


class StepStage(TypedDict):
    """A stage, and the number of its program."""

    name: str
    program: int


class StepExcerpt(TypedDict):
    """Consecutive lines of a source file, the first of which has number `first`."""

    first: int
    lines: list[str]


class StepFile(TypedDict):
    """A source file; `stops` are the lines at which a breakpoint can be."""

    label: str
    path: str
    excerpts: list[StepExcerpt]
    stops: list[int]


class Programs(TypedDict):
    """Everything that is stepped through, sent once."""

    title: str
    stages: list[StepStage]
    programs: list[StepProgram]
    files: list[StepFile]


class StepLevel(TypedDict):
    """An equation on the path to the run's position.

    For a loop: the iteration, and how many there are, if that is known.
    """

    index: int
    body: str
    iteration: int | None
    length: int | None


class Shades(TypedDict):
    """A picture of an array, as the address of a PNG."""

    png: str
    low: float
    high: float
    of: str
    rows: int
    columns: int


class SummaryCard(TypedDict):
    """A summary of an array; `text` has the numbers themselves if it is small."""

    type: str
    shape: list[int]
    size: int
    finite: int
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    nan: int
    pos_inf: int
    neg_inf: int
    zeros: int
    subnormals: int
    histogram: list[int]
    edges: tuple[float | None, float | None] | None
    first_not_finite: list[int] | None
    note: str
    text: str
    picture: NotRequired[Shades]


class ValueCard(TypedDict):
    """A value; for a cotangent also the value that it is the cotangent of, and for a value also its cotangent, or why
    that is missing.

    `label` describes an input of a loop's body: 'carry', 'of this iteration' or 'same in every iteration'."""

    name: str
    stage: str
    value: NotRequired[SummaryCard]
    error: NotRequired[str]
    of: NotRequired[str]
    label: NotRequired[str]
    other: NotRequired[SummaryCard | str]
    isCotangent: NotRequired[bool]


class LineNorm(NamedTuple):
    """The figures of a line: the names and norms of its latest value and of a cotangent, null without one; what is
    wrong with each, such as 'NaN'; and 'value', 'cotangent' or 'both' if a NaN of these first occurred here."""

    file: int
    line: int
    name: str
    value: float | None
    valueIs: str
    of: str
    cotangent: float | None
    cotangentIs: str
    born: str


class Break(TypedDict):
    """A breakpoint, and the line or the equation that it is on: a program and an index."""

    text: str
    line: NotRequired[SourceLine]
    row: NotRequired[tuple[int, int]]
    isHit: bool


class StepperStop(TypedDict):
    """The run's position, and the values there.

    `at` are the lines that led to the next equation, innermost first, `ranAt` that of the last one; `taken` the
    branches of the conds that have run or are next; `recomputed` says for which checkpoint the last equation runs
    again; `more` has the names of results and operands that are not included; `lines` the figures of the lines.
    """

    stage: str
    path: list[StepLevel]
    index: int
    isDone: bool
    hit: str
    at: list[StackLine]
    ranAt: list[StackLine]
    taken: dict[int, int]
    recomputed: str
    results: list[ValueCard]
    operands: list[ValueCard]
    more: tuple[list[str], list[str]]
    looked: list[ValueCard]
    lines: list[LineNorm]
    breakpoints: list[Break]
    kept: int
    notes: list[str]
    said: str


class Mark(TypedDict):
    """A position on the timeline: an equation of a stage's program, and what happens there."""

    stage: str
    index: int
    text: str


class Failure(TypedDict):
    """The error of the last move, and the request that caused it."""

    do: str
    kind: str
    message: str


class Doing(TypedDict):
    """A message of the kernel: it has begun a request, and whether an interrupt reaches it, or has finished it."""

    begun: NotRequired[str]
    can_stop: NotRequired[bool]
    done: NotRequired[str]
