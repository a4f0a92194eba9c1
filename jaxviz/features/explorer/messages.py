"""The JSON messages of the explorer's page, other than its view. `python tests/page/wire_types.py` generates their
types for the page."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, NotRequired, TypedDict, TypeGuard


class Progress(TypedDict):
    """Progress of the kernel: `what` is counted, with `total` 0 if unknown; or the work was stopped. `stop` is code
    that stops background work, which an interrupt does not reach."""

    work: str
    what: NotRequired[str]
    done: NotRequired[int]
    total: NotRequired[int]
    stop: NotRequired[str]
    stopped: NotRequired[bool]


class ChangedFigure(NamedTuple):
    """A figure of two versions in words, `change` with the share; `unit` is 'bytes', 'FLOPs' or what is counted."""

    name: str
    before: str
    after: str
    change: str
    share: str
    unit: str


class DifferenceRow(NamedTuple):
    """Something that the second version has more or less of: the cells of a table of differences."""

    is_more: bool
    change: str
    kind: str
    type: str
    line: str
    what: str


class StageChanges(TypedDict):
    """Runs of equations: `[i, j, n]` means that `i` to `i + n - 1` of the first version are `j` to `j + n - 1` of the
    second, and `[i, n]` that `n` equations from `i` on are in only one of them."""

    pairs: list[tuple[int, int, int]]
    removed: list[tuple[int, int]]
    added: list[tuple[int, int]]


class Changes(TypedDict):
    """The differences between two versions; stages are identified by key, where both have them, and equations by
    number."""

    functions: tuple[str, str]
    summary: str
    stages: dict[str, StageChanges]
    figures: list[ChangedFigure]
    residuals: list[DifferenceRow]


class SwitchRegion(TypedDict):
    """A region that can get a checkpoint: its row, or -1; whether it has one in the function as written; the regions
    that contain it, and those that overlap with it; and its values, as runs of a first number and a length."""

    name: str
    line: str
    row: int
    isWritten: bool
    inside: list[int]
    crosses: list[int]
    values: list[tuple[int, int]]


class SwitchGroup(TypedDict):
    """The values of one expression in repeated layers, calls and iterations, with the type of one of them."""

    what: str
    type: str


class SwitchValues(TypedDict):
    """For each value that could be saved, its group, its bytes over all iterations, and its row, or -1."""

    group: list[int]
    nbytes: list[int]
    row: list[int]


class SwitchTable(TypedDict):
    """The switches of a function. `work` is the FLOPs of its gradient without checkpoints, `present` the setting
    closest to the function as written, and `residuals` has, for each residual, the values that a checkpoint saves
    instead."""

    function: str
    work: int
    present: str
    regions: list[SwitchRegion]
    groups: list[SwitchGroup]
    values: SwitchValues
    residuals: list[list[int]]


class TriedTrade(NamedTuple):
    """The figures of a setting: bytes of the peak, bytes that it saves on the device without arguments, FLOPs in
    addition to those without checkpoints, and bytes of residuals offloaded to the host."""

    peak: int
    nbytes: int
    flops: int
    offloaded: int


class TriedSettings(TypedDict):
    """The results so far: the figures of settings by key, impossible settings with the reason, the setting of the best
    plan once it was requested, and the number of requests."""

    trades: dict[str, TriedTrade]
    failed: dict[str, str]
    plan: str | None
    asked: int


class SwitchRequest(TypedDict):
    """A request of the page: the figures of settings, a setting's modelled or compiled memory over time, its code, or
    the best plan."""

    work: str
    keys: list[str]
    draw: NotRequired[str]
    compile: NotRequired[str]
    code: NotRequired[str]
    plan: NotRequired[bool]


def is_switch_request(content: Any) -> TypeGuard[SwitchRequest]:
    """Whether a message of the page is such a request."""
    if not isinstance(content, dict) or content.get("work") != "try" or not isinstance(content.get("keys"), list):
        return False
    texts = [*content["keys"], *(content[name] for name in ("draw", "compile", "code") if name in content)]
    return all(isinstance(text, str) for text in texts)


class AddressRequest(TypedDict):
    """A request of the page: what a text means as an address, or the addresses of an equation, such as 'forward:12'."""

    work: Literal["find", "address"]
    asked: str


def is_address_request(content: Any) -> TypeGuard[AddressRequest]:
    """Whether a message of the page is such a request."""
    is_one = isinstance(content, dict) and content.get("work") in ("find", "address")
    return is_one and isinstance(content.get("asked"), str)


class FoundValue(NamedTuple):
    """A value that a text means: its address, its line and type, and the equations that compute it."""

    address: str
    about: str
    equations: list[str]


class FoundAddresses(TypedDict):
    """What a text means as an address: one value, or those that it cannot tell apart."""

    asked: str
    values: list[FoundValue]


class EquationAddress(NamedTuple):
    """The address of a result of an equation: its text, whether it is the value or its cotangent, and both in
    Python."""

    text: str
    phase: str
    code: str


class EquationAddresses(TypedDict):
    """The addresses of the results of an equation that have one."""

    asked: str
    addresses: list[EquationAddress]


class DrawnBuffer(NamedTuple):
    """A value in memory during some steps; texts are given by number. `group` is that of the expression whose values it
    is one of."""

    nbytes: int
    kind: int
    born: int
    last: int
    row: int
    name: int
    type: int
    group: int


class DrawnMemory(TypedDict):
    """The memory over time of a setting: what each step runs, and where; the first `turn` steps are forward. `groups`
    has a text for the values of each group."""

    key: str
    turn: int
    what: list[int]
    row: list[int]
    buffers: list[DrawnBuffer]
    groups: list[int]
    texts: list[str]


class CompiledLine(TypedDict):
    """The memory over time of a setting compiled by XLA: the bytes during each instruction, the first `turn` of which
    are forward; or why there is none."""

    key: str
    turn: int
    total: list[int]
    error: str


class WrittenCode(TypedDict):
    """The lines to write for a setting."""

    key: str
    text: str


class PeakAdvice(TypedDict):
    """Advice on the peak: a sentence with the corresponding setting of the switches, and the cards of the largest saved
    expressions, in their order; and `idle`, which checkpoint or policy has no effect. `error` is the reason if there is
    none."""

    sentence: str
    idle: str
    setting: str
    cards: list[str]
    error: str


class DeviceSpeed(TypedDict):
    """What the kernel's device does in a second, as measured: FLOPs in a matrix product of a type, and bytes that its
    memory reads and writes; `error` is the reason if that failed."""

    device: str
    dtype: str
    flops: float
    bandwidth: float
    error: NotRequired[str]


class CompiledText(TypedDict):
    """A text with the equations of each line, numbered over the stages, and the number of lines left out at its end."""

    text: str
    links: list[list[int]]
    cut: int


CompiledKind = Literal["argument", "constant", "residual", "result", "cotangent", "temporary", "own"]
"""The kinds of memory of a compiled program, in stacking order; the last is XLA's own."""


class CompiledHeld(NamedTuple):
    """Something in memory at a compiled program's peak: its kind, and the kind it is drawn as; the expression that
    computes it; its type with the count; its bytes; its line; and why it is in memory."""

    kind: str
    drawn: CompiledKind
    what: str
    type: str
    nbytes: int
    line: str
    why: str


class CompiledPeak(TypedDict):
    """The memory of a compiled program: for each kind the bytes during each instruction, the first `turn` of which are
    forward; what is in memory at the peak; and the number and the bytes of the rows left out."""

    summary: str
    notes: list[str]
    kinds: list[CompiledKind]
    bytes: list[list[int]]
    turn: int
    held: list[CompiledHeld]
    more: tuple[int, int]


class CompiledExchange(NamedTuple):
    """A collective of a compiled program: its kind, the axes, the bytes that each device sends, how often it runs, its
    pass, its line, its cause, and the equations that need it, numbered over the stages."""

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
    """What is available before XLA has compiled a gradient; the stages with their numbers of equations. `block`
    describes the blocks of which one can be compiled alone; '' if there are none."""

    function: str
    stages: list[tuple[str, int]]
    backend: str
    stablehlo: CompiledText
    block: str


class Compiled(Lowered):
    """A compiled gradient. `memory` is None if the backend does not report it, and `exchanges` is None on a single
    device; `isBlock` tells whether only one of several equal blocks was compiled."""

    hlo: CompiledText | None
    memory: CompiledPeak | None
    exchanges: CompiledExchanges | None
    notes: list[str]
    error: str
    isBlock: bool
