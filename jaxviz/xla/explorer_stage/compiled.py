"""The compiled gradient: StableHLO and optimised HLO, with the equations of each line; its memory, and its
collectives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar, cast, get_args

import jax
import numpy as np

from jaxviz.analysis.devices import mesh_size
from jaxviz.analysis.lowering import Lowering, Tags, lower_gradient
from jaxviz.derivation import Derivation
from jaxviz.features.explorer.messages import (
    Compiled,
    CompiledExchange,
    CompiledExchanges,
    CompiledHeld,
    CompiledKind,
    CompiledLine,
    CompiledPeak,
    CompiledText,
    Lowered,
)
from jaxviz.page.texts import first_line, fit
from jaxviz.report.tables import format_bytes, repeated, short_location
from jaxviz.xla.collectives.reading import collectives_of
from jaxviz.xla.compiled_memory.attribution import KINDS, OWN, Kind
from jaxviz.xla.compiled_memory.op_names import apart
from jaxviz.xla.compiled_memory.places import lowered_gradient
from jaxviz.xla.compiled_memory.reading import memory_of_subject
from jaxviz.xla.compiled_memory.report import CompiledMemory

T = TypeVar("T")

_LARGEST = 30_000
"""The most equations of both passes, counting nested ones each time, for which a program is compiled."""

_LONGEST = 60_000
"""The most lines of a text that are shown."""

_WIDEST = 20_000
"""The most characters of a line that are shown."""


@dataclass(frozen=True, slots=True)
class LinkedText:
    """The lines of a program; for each the numbers of the equations it comes from, see `Tags`; and how many lines are
    left out."""

    lines: tuple[str, ...]
    links: tuple[tuple[int, ...], ...]
    cut: int = 0

    def to_dict(self) -> CompiledText:
        """As JSON values."""
        return {"text": "\n".join(self.lines), "links": [list(numbers) for numbers in self.links], "cut": self.cut}


def lower(derivation: Derivation) -> Lowering:
    """Lowers the gradient for compilation.

    Raises:
      ValueError: there are too many equations.
      the errors of JAX when it lowers the program.
    """
    return lower_gradient(derivation, _LARGEST)


def lowered(lowering: Lowering, block: str = "") -> Lowered:
    """What is available before XLA has compiled the gradient, as JSON values; `block` describes the blocks of which one
    can be compiled alone.

    Equations are numbered over the stages in the order of `Program.walk`; `stages` has the stages and their numbers of
    equations.
    """
    texts: Lowered = {
        "function": lowering.derivation.primal.name,
        "stages": list(zip(lowering.stages, lowering.tags.counts, strict=True)),
        "backend": jax.default_backend(),
        "stablehlo": read_stablehlo(lowering.stablehlo, lowering.tags).to_dict(),
        "block": block,
    }
    shown: Lowered = fit(texts, _WIDEST)
    return shown


def compiled(lowering: Lowering, block: str = "") -> Compiled:
    """The two texts, the memory, and on several devices the collectives, as JSON values; compiles the gradient.

    If XLA fails, `hlo` is None and `error` has the reason.
    """
    hlo, error = None, ""
    exchanges, memory = None, None
    silent: list[str] = []

    def unless_silent(what: str, read: Callable[[Lowering], T]) -> T | None:
        try:
            return read(lowering)
        except Exception as raised:
            silent.append(f"{what} cannot be shown: {first_line(raised)}")
        return None

    # With several devices, first read how the program is partitioned: this compiles it for everything else.
    if mesh_size(lowering.derivation.primal, lowering.derivation.placed) > 1:
        exchanges = unless_silent("Communication between devices", compiled_exchanges)
    try:
        hlo = read_hlo(lowering.hlo, lowering.tags)
    except Exception as raised:
        error = first_line(raised)
    if hlo is not None and not hlo.lines:
        hlo, error = None, f"the backend {jax.default_backend()} does not expose the compiled program"
    if not error:
        memory = unless_silent("Its memory", compiled_peak)
    texts: Compiled = {
        **lowered(lowering, block),
        "hlo": None if hlo is None else hlo.to_dict(),
        "memory": memory,
        "exchanges": None if error else exchanges,
        "notes": [*_notes(lowering), *([] if error else silent)],
        "error": error,
        "isBlock": False,
    }
    shown: Compiled = fit(texts, _WIDEST)
    return shown


def _notes(lowering: Lowering) -> Iterator[str]:
    if lowering.reason:
        yield f"The function alone, since it has no gradient: {lowering.reason}"
    if lowering.derivation.primal.is_path:
        yield "One path: Python branched on values, and the branch that it took is compiled."


# --- StableHLO --------------------------------------------------------------------------------------------------------

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_LOCATION = re.compile(r"#(loc\d*) = loc\((.*)\)")
_LOC = re.compile(rf" ?loc\((?:#(?P<name>loc\d*)|unknown|(?P<path>{_QUOTED})(?:\([^()]*\))?(?:{_QUOTED}|[^()\"])*)\)")


def read_stablehlo(text: str, tags: Tags) -> LinkedText:
    """StableHLO without its locations, which are turned into links."""
    every = [line for line in text.split("\n") if line.strip()]
    defined = [(line, _LOCATION.fullmatch(line)) for line in every]
    named = {match[1]: _of_location(match[2], tags) for _, match in defined if match}
    lines: list[str] = []
    links: list[tuple[int, ...]] = []
    opened: list[int] = []
    """For each open region, the line of its operation, whose location follows the end of the region."""
    was_ended = True
    for line in (line for line, match in defined if not match):
        last = next((m for m in _LOC.finditer(line) if m.end() == len(line)), None)
        link = () if last is None else named.get(last["name"] or "") or _of_location(last["path"] or "", tags)
        plain = _LOC.sub("", line).rstrip()
        opens, closes = plain.endswith("{"), plain.lstrip().startswith("}")
        if closes and not opens and opened:
            links[opened.pop()] = link
            link = ()
        elif opens and not closes:
            # `cond {` and `reducer(...) {` are on a separate line below their operation.
            opened.append(len(lines) if was_ended else len(lines) - 1)
        was_ended = last is not None or opens or closes or plain.endswith(":")
        lines.append(plain)
        links.append(link)
    return _cut(lines, links)


def _of_location(location: str, tags: Tags) -> tuple[int, ...]:
    path = re.match(_QUOTED, location)
    return tags.named(path[0][1:-1]) if path else ()


# --- HLO --------------------------------------------------------------------------------------------------------------

_NAMED = re.compile(rf"op_name=({_QUOTED})")
_BRACES = rf"\{{(?:{_QUOTED}|[^{{}}\"]|\{{(?:{_QUOTED}|[^{{}}\"])*\}})*\}}"
_METADATA = re.compile(rf",? ?metadata=({_BRACES})")
_CONFIG = re.compile(r", backend_config=(?=.{40})(.*)$")
_COMPUTATION = re.compile(r"(?:ENTRY )?(%?[^\s(]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([^\s=]+) = .*?(?:^|\s)([a-z][a-z0-9-]*)\((.*)$")
_HOLDS = re.compile(r"\b(?:calls|to_apply|called_computations)=\{?([^\s,}]+)")
_LAYOUT = re.compile(r"(?<=\])\{([\d,]+)\}")
_HOLDERS = ("fusion", "call", "async-start", "custom-call")
"""Instructions that stand for everything in the computations they contain, and so for their equations."""


def read_hlo(text: str, tags: Tags) -> LinkedText:
    """HLO without its metadata, which is turned into links, and without row-major layouts.

    A fusion or call also has the links of everything it contains. The path of the argument is written after each
    parameter of the whole program.

    Args:
      text: one or more modules.
      tags: the names given to instructions.
    """
    lines: list[str] = []
    links: list[tuple[int, ...]] = []
    inside: dict[str, dict[int, None]] = {}
    nested: list[tuple[int, str, str]] = []
    within, is_entry = "", False
    for line in _without_tables(text):
        metadata = _METADATA.search(line)
        name = _NAMED.search(metadata[1]) if metadata else None
        path = name[1][1:-1] if name else ""
        plain = _CONFIG.sub(", backend_config={…}", _METADATA.sub("", line))
        plain = _LAYOUT.sub(lambda m: "" if _is_row_major(m[1]) else m[0], plain)
        opening = _COMPUTATION.match(plain)
        instruction = None if opening else _INSTRUCTION.match(plain)
        link = tuple(dict.fromkeys(n for of_each in apart(path) for n in tags.named(of_each)))
        if opening:
            within, is_entry = opening[1].lstrip("%"), plain.startswith("ENTRY ")
        elif instruction:
            inside.setdefault(within, {}).update(dict.fromkeys(link))
            if instruction[2] in _HOLDERS:
                nested += [(len(lines), within, other.lstrip("%")) for other in _HOLDS.findall(instruction[3])]
            elif instruction[2] == "parameter" and is_entry:
                plain += f"  // {_unescaped(path)}" if path and not path.isidentifier() else ""
        lines.append(plain)
        links.append(link)
    # A computation precedes those that contain it.
    for at, where, other in nested:
        links[at] = tuple(dict.fromkeys([*links[at], *inside.get(other, ())]))
        inside[where].update(dict.fromkeys(links[at]))
    return _cut(lines, links)


def _without_tables(text: str) -> Iterator[str]:
    """The lines of a module with its header shortened, without the tables of files and stack frames that metadata
    refers to."""
    is_table = False
    for line in text.split("\n"):
        if line.startswith("HloModule "):
            yield ", ".join([*line.split(", ")[:1], *_ALIASED.findall(line)])
        elif line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            is_table = True
        elif not is_table or not re.match(r"\d+ |$", line):
            is_table = False
            yield line.rstrip()


_ALIASED = re.compile(r"input_output_alias=\{(?:[^{}]|\{[^{}]*\})*\}")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _is_row_major(order: str) -> bool:
    dims = [int(d) for d in order.split(",") if d]
    return dims == list(range(len(dims)))[::-1]


def _cut(lines: list[str], links: list[tuple[int, ...]]) -> LinkedText:
    while lines and not lines[-1]:
        lines.pop()
    shown = lines[:_LONGEST]
    return LinkedText(tuple(shown), tuple(links[: len(shown)]), len(lines) - len(shown))


# --- memory and collectives -------------------------------------------------------------------------------------------

_DRAWN: tuple[CompiledKind, ...] = get_args(CompiledKind)
_MOST_STEPS = 4_000
"""The most instructions whose memory is sent; if there are more, the ones with the most bytes alive in each
interval."""
_MOST_ROWS = 200


def compiled_peak(lowering: Lowering) -> CompiledPeak:
    """What is alive in the compiled program over its schedule, and at its peak; compiles it if necessary.

    Raises:
      ValueError: the backend does not report where the compiled program stores its values.
    """
    memory = memory_of_subject(lowered_gradient(lowering))
    steps = _steps(memory)
    beside = {"argument": memory.argument_nbytes, "constant": memory.constant_nbytes, "result": memory.result_nbytes}
    sums = np.tile(np.array([[beside.get(kind, 0)] for kind in _DRAWN]), len(steps))
    for kind, nbytes in zip(KINDS[3:], np.array([m.nbytes for m in memory.timeline]).T[3:], strict=True):
        sums[_DRAWN.index(_drawn(kind))] += nbytes[steps]
    rest = memory.at_peak[_MOST_ROWS:]
    return {
        "summary": f"{memory.peak_text}; XLA allocates {format_bytes(memory.temp_nbytes)} for temporaries",
        "notes": list(memory.notes),
        "kinds": list(_DRAWN),
        "bytes": sums.tolist(),
        "turn": int(np.searchsorted(steps, memory.turn)),
        "held": [
            CompiledHeld(
                h.kind, _drawn(h.kind), h.what, repeated(h.count, h.type), h.nbytes, short_location(h.location), h.why
            )
            for h in memory.at_peak[:_MOST_ROWS]
        ],
        "more": (len(rest), sum(h.nbytes for h in rest)),
    }


def compiled_line(key: str, peak: CompiledPeak) -> CompiledLine:
    """The total bytes over time for a setting of the switches."""
    total = [sum(of) for of in zip(*peak["bytes"], strict=True)]
    return CompiledLine(key=key, turn=peak["turn"], total=total, error="")


def compiled_exchanges(lowering: Lowering) -> CompiledExchanges:
    """Communication between devices in the compiled gradient; compiles it if necessary."""
    report = collectives_of(lowered_gradient(lowering))
    return {
        "summary": report.summary,
        "rows": [
            CompiledExchange(
                c.kind, ", ".join(c.axes) or f"{c.group_size} devices", c.total_sent_nbytes, c.times, c.stage,
                short_location(c.location), c.cause or f"{c.what}: no cause found", list(c.equations),
            )
            for c in report.compiled[:_MOST_ROWS]
        ],
    }  # fmt: skip


def _steps(memory: CompiledMemory) -> np.ndarray:
    """The instructions that are drawn."""
    totals = np.array([sum(m.nbytes) for m in memory.timeline])
    parts = np.array_split(np.arange(len(totals)), min(len(totals), _MOST_STEPS)) if len(totals) else []
    return np.array([part[np.argmax(totals[part])] for part in parts], int)


def _drawn(kind: Kind) -> CompiledKind:
    """The kind whose colour another one has."""
    if kind in OWN:
        return "own"
    return "temporary" if kind == "recomputed" else cast(CompiledKind, kind)
