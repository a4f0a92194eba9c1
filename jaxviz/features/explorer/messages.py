"""The messages of the explorer's page besides its view, as JSON. `python tests/page/wire_types.py` writes these types down for the page."""

from __future__ import annotations

from typing import Literal, NamedTuple, NotRequired, TypedDict


class Progress(TypedDict):
    """A message of the kernel while it is at work: how much of what is done, 0 in all where that is not known; or that it was stopped. `stop` is code
    that stops it, where an interrupt does not, as it is done beside the user's cells."""

    work: str
    what: NotRequired[str]
    done: NotRequired[int]
    total: NotRequired[int]
    stop: NotRequired[str]
    stopped: NotRequired[bool]


class Figure(NamedTuple):
    """A number of two versions, in bytes, FLOPs or equations."""

    name: str
    before: int
    after: int
    unit: str


class ResidualChange(NamedTuple):
    """How many residuals of a kind two versions keep."""

    what: str
    type: str
    before: int
    after: int
    nbytes: int
    line: str


class StageChanges(TypedDict):
    """Runs of equations: `[i, j, n]` says that `i` to `i + n - 1` of the first version are `j` to `j + n - 1` of the second, `[i, n]` that there
    are `n` from `i` on that only one has."""

    pairs: list[tuple[int, int, int]]
    removed: list[tuple[int, int]]
    added: list[tuple[int, int]]


class Changes(TypedDict):
    """What differs between two versions; stages by their keys, where both have them, and equations by their numbers in them."""

    functions: tuple[str, str]
    summary: str
    stages: dict[str, StageChanges]
    figures: list[Figure]
    residuals: list[ResidualChange]


class SwitchRegion(TypedDict):
    """What can get a checkpoint: its row, or -1; whether it has one as the function is written; the regions that it is in, and those that share
    a part with it; and its values, in runs of a first number and how many."""

    name: str
    line: str
    row: int
    isWritten: bool
    inside: list[int]
    crosses: list[int]
    values: list[tuple[int, int]]


class SwitchGroup(TypedDict):
    """The values of one expression in repeated layers, calls and iterations; the type of one of them."""

    what: str
    type: str


class SwitchValues(TypedDict):
    """Of each value that could be saved: its group, its bytes, in all iterations together, and its row, or -1."""

    group: list[int]
    nbytes: list[int]
    row: list[int]


class SwitchTable(TypedDict):
    """The switches of a function. `work` are the FLOPs of its gradient without checkpoints, `present` the setting that comes nearest to how it is
    written; of each residual there are the values that a checkpoint saves in its place."""

    function: str
    work: int
    present: str
    regions: list[SwitchRegion]
    groups: list[SwitchGroup]
    values: SwitchValues
    residuals: list[list[int]]


class TriedTrade(NamedTuple):
    """What a setting comes to: bytes of the peak, bytes of the residuals, FLOPs beyond those without checkpoints, and bytes of the residuals that
    are offloaded to the host, which are not counted among the others."""

    peak: int
    nbytes: int
    flops: int
    offloaded: int


class TriedSettings(TypedDict):
    """What has been worked out: settings by their keys, those that cannot be had with the reason; the setting of the best plan, once it was asked
    for; and how often something has been asked for."""

    trades: dict[str, TriedTrade]
    failed: dict[str, str]
    plan: str | None
    asked: int


class SwitchRequest(TypedDict):
    """What the page asks for: what settings come to; of one the memory over time, as modelled or as compiled; of one the code; or the best plan."""

    work: str
    keys: list[str]
    draw: NotRequired[str]
    compile: NotRequired[str]
    code: NotRequired[str]
    plan: NotRequired[bool]


class DrawnBuffer(NamedTuple):
    """A value in memory from one step to another; texts by their numbers."""

    nbytes: int
    kind: int
    born: int
    last: int
    row: int
    name: int
    type: int


class DrawnMemory(TypedDict):
    """The memory over time of a setting: what each step runs, and where; the first `turn` of them are forward."""

    key: str
    turn: int
    what: list[int]
    row: list[int]
    buffers: list[DrawnBuffer]
    texts: list[str]


class CompiledLine(TypedDict):
    """The memory over time of a setting as XLA compiles it: the bytes while each instruction runs, of which the first `turn` are forward; or why there
    is none."""

    key: str
    turn: int
    total: list[int]
    error: str


class WrittenCode(TypedDict):
    """The lines to write for a setting."""

    key: str
    text: str


class Advice(TypedDict):
    """What would lower the peak: in a sentence, with the setting of the switches that does; and of the largest kept expressions, in their order.
    `error` says why there is none."""

    sentence: str
    setting: str
    cards: list[str]
    error: str


class CompiledText(TypedDict):
    """A text, for each line the equations that it was made from, numbered over the stages, and how many lines were left out at its end."""

    text: str
    links: list[list[int]]
    cut: int


CompiledKind = Literal["argument", "constant", "residual", "result", "cotangent", "temporary", "own"]
"""The kinds of memory of a compiled program, as they are stacked; the last is XLA's own."""


class CompiledHeld(NamedTuple):
    """What is in the memory of a compiled program at its peak: its kind, and the one that it is drawn as; the expression that makes it; the type, with
    how many there are; their bytes; the line; and why it is there."""

    kind: str
    drawn: CompiledKind
    what: str
    type: str
    nbytes: int
    line: str
    why: str


class CompiledPeak(TypedDict):
    """The memory of a compiled program: of each kind the bytes while each instruction runs, of which the first `turn` are forward; what is there at the
    peak, and of how many more rows how many bytes."""

    summary: str
    notes: list[str]
    kinds: list[CompiledKind]
    bytes: list[list[int]]
    turn: int
    held: list[CompiledHeld]
    more: tuple[int, int]


class CompiledExchange(NamedTuple):
    """A collective of a compiled program: its kind, the axes that it goes over, the bytes that a device sends, how often it is done, the pass, the
    line, why it is there, and the equations that it is for, numbered over the stages."""

    kind: str
    over: str
    sent: int
    times: str
    stage: str
    line: str
    why: str
    equations: list[int]


class CompiledExchanges(TypedDict):
    """Communication between devices in a compiled program."""

    summary: str
    rows: list[CompiledExchange]


class Lowered(TypedDict):
    """What a gradient is lowered to, which is there before XLA has compiled it; the stages with how many equations each has. `block` says of which
    blocks one can be compiled alone, in the place of all of them; '' where there are none."""

    function: str
    stages: list[tuple[str, int]]
    backend: str
    stablehlo: CompiledText
    block: str


class Compiled(Lowered):
    """What a gradient compiles to. `memory` is None where nothing says what it is, and `exchanges` on one device; `isBlock` says
    whether it is compiled with one block alone, in the place of all that are the same."""

    hlo: CompiledText | None
    memory: CompiledPeak | None
    exchanges: CompiledExchanges | None
    notes: list[str]
    error: str
    isBlock: bool
