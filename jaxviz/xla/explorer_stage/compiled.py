"""The compiled gradient: StableHLO and optimised HLO, with the equations of each line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import jax

from jaxviz.analysis.devices import mesh_size
from jaxviz.analysis.lowering import Lowering, Tags, lower_gradient
from jaxviz.derivation import Derivation
from jaxviz.features.explorer.messages import Compiled, CompiledText, Lowered
from jaxviz.page.texts import first_line, fit
from jaxviz.xla.compiled_memory.op_names import apart
from jaxviz.xla.explorer_stage.compiled_peak import compiled_exchanges as compiled_exchanges
from jaxviz.xla.explorer_stage.compiled_peak import compiled_line as compiled_line
from jaxviz.xla.explorer_stage.compiled_peak import compiled_peak as compiled_peak

T = TypeVar("T")

_LARGEST = 30_000
"""The most equations of both passes, counting nested ones each time, for which a program is compiled."""

_LONGEST = 60_000
"""The most lines of a text that are shown."""

_WIDEST = 20_000
"""The most characters of a line that are shown."""


@dataclass(frozen=True, slots=True)
class LinkedText:
    """A program as text.

    Args:
      lines: its lines.
      links: for each line, the numbers of the equations it comes from; see `Tags`.
      cut: the number of lines left out.
    """

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
    """What is available before XLA has compiled the gradient, as JSON values.

    Equations are numbered over the stages in the order of `Program.walk`; `stages` has the stages and their numbers of
    equations.

    Args:
      found: the lowered gradient.
      block: describes the blocks of which one can be compiled alone.
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

    def unless_silent(what: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except Exception as raised:
            silent.append(f"{what} cannot be shown: {first_line(raised)}")
        return None

    # With several devices, first read how the program is partitioned: this compiles it for everything else.
    if mesh_size(lowering.derivation.primal, lowering.derivation.placed) > 1:
        exchanges = unless_silent("Communication between devices", lambda: compiled_exchanges(lowering))
    try:
        hlo = read_hlo(lowering.hlo, lowering.tags)
    except Exception as raised:
        error = first_line(raised)
    if hlo is not None and not hlo.lines:
        hlo, error = None, f"the backend {jax.default_backend()} does not expose the compiled program"
    if not error:
        memory = unless_silent("Its memory", lambda: compiled_peak(lowering))
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
    """The lines of a module with its header shortened, without the tables of files and
    stack frames that metadata refers to."""
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
