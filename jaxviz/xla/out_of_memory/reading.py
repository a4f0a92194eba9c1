"""Reads the texts with which XLA says that memory ran out, on CPUs, GPUs and TPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxviz.ir.origin import Location
from jaxviz.ir.own_code import is_own
from jaxviz.report.data import Data

_NUMBER = r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:i?B|iB| bytes)?"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

_ASKING = (
    "trying to allocate", "[Oo]ut of memory allocating", "[Ff]ailed to allocate(?: request for)?",
    "[Aa]ttempting to (?:allocate|reserve)",
)  # fmt: skip
_ASKED = re.compile(rf"(?:{'|'.join(_ASKING)}) {_NUMBER}")
_FREE = re.compile(rf"[Tt]here are {_NUMBER}(?: bytes)? free")
_OF_SPACE = re.compile(rf"out of memory in memory space (\w+)\. Used {_NUMBER} of {_NUMBER}")
_LIMIT = re.compile(r"^\W*Limit: +(\d+)", re.MULTILINE)
_SUM = re.compile(rf"^[ \t]*(?:\S* )?[ \t]*({{}}):?[ \t]+{_NUMBER}(?:[ \t(]|$)", re.MULTILINE)
SUMS = {
    "parameter allocation": "arguments", "constant allocation": "constants", "maybe_live_out allocation": "results",
    "preallocated temp allocation": "temporaries", "total allocation": "in all", "total fragmentation": "unused gaps",
    "reserved": "reserved", "program": "the program", "arguments": "arguments", "HLO temp": "temporaries",
}  # fmt: skip
"""XLA's names for what it adds up, and ours."""

_BEGINS = re.compile(rf"^[ \t]*(?:Buffer \d+:[ \t]*\n[ \t]*Size: {_NUMBER}|\d+\. Size: {_NUMBER})[ \t]*$", re.MULTILINE)
_FRAME = re.compile(r'^ *File "(.+?)", line (\d+), in (.+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class OomBuffer(Data):
    """A buffer that the text lists.

    Args:
      nbytes: its size, with padding.
      path: JAX's name for the operation, such as `jit(loss)/jvp()/dot_general`; '' if it has none.
      location: the line that JAX recorded.
      type: such as `f32[8,128]`.
      unpadded: the bytes of its elements; None if the text does not say them.
      is_argument: whether it is an argument of the program.
    """

    nbytes: int
    path: str
    location: Location | None
    type: str
    unpadded: int | None = None
    is_argument: bool = False


@dataclass(frozen=True, slots=True)
class OomText(Data):
    """What a text says.

    Args:
      asked: bytes of the allocation that failed; None if the program was refused as a whole.
      limit: bytes that the device has for programs; None if it does not say.
      used: bytes that the program needs of them; None likewise.
      space: the memory that ran out, such as 'hbm'; '' if it does not say.
      sums: bytes by what they are for.
      buffers: the largest buffers, as listed.
      is_at_peak: whether these buffers are in memory at the same time.
      location: the user's line in the traceback, innermost; None if there is none.
    """

    asked: int | None = None
    limit: int | None = None
    used: int | None = None
    space: str = ""
    sums: dict[str, int] = field(default_factory=dict)
    buffers: tuple[OomBuffer, ...] = ()
    is_at_peak: bool = False
    location: Location | None = None


def read_oom(text: str) -> OomText:
    """Reads an error of running out of memory, with or without a traceback and what a logger puts before each line.

    Raises:
      ValueError: it is not such an error.
    """
    text = re.sub(r"^\S*[ \t]*(?:[\d:. -]+\w?[ \t]+)?\d* ?\S+\.(?:cc|py):\d+\][ \t]?", "", text, flags=re.MULTILINE)
    asked, space, free = _ASKED.search(text), _OF_SPACE.search(text), _FREE.search(text)
    buffers = tuple(_buffers(text))
    if asked is None and space is None and not buffers and not re.search("RESOURCE_EXHAUSTED|[Oo]ut of memory", text):
        raise ValueError(
            "this text does not say that memory ran out: expected XLA's error, such as 'RESOURCE_EXHAUSTED: Out of "
            "memory while trying to allocate 17179869184 bytes', or 'Ran out of memory in memory space hbm'"
        )
    limit, used = (_size(space[4], space[5]), _size(space[2], space[3])) if space else (None, None)
    stated = _LIMIT.search(text)
    limit = int(stated[1]) if limit is None and stated else limit
    limit = _size(free[1], free[2]) if limit is None and free else limit
    sums: dict[str, int] = {}
    for name, ours in SUMS.items():
        found = re.search(_SUM.pattern.format(re.escape(name)), text, re.MULTILINE)
        if found and _size(found[2], found[3]):
            sums[ours] = _size(found[2], found[3])
    return OomText(
        _size(asked[1], asked[2]) if asked else None, limit, used, space[1] if space else "", sums, buffers,
        "Peak buffers" in text, _raised(text),
    )  # fmt: skip


def _size(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])


def _buffers(text: str) -> Iterator[OomBuffer]:
    starts = [*_BEGINS.finditer(text)]
    for start, after in zip(starts, [*starts[1:], *[None] * bool(starts)], strict=True):
        block = text[start.end() : after.start() if after else len(text)].partition("=====")[0]
        number, unit = (start[1], start[2]) if start[1] else (start[3], start[4])
        path = re.search(r'op_name="(.*?)"(?: source_file|\s*$)', block, re.MULTILINE | re.DOTALL)
        place = re.search(r'source_file="(.*?)" source_line=(\d+)', block)
        kind = re.search(r"(?:Shape|Entry Parameter Subshape): (\w+\[[\d,]*\])", block)
        unpadded = re.search(rf"Unpadded size: {_NUMBER}", block)
        yield OomBuffer(
            _size(number, unit), path[1] if path else "", Location(place[1], int(place[2]), "") if place else None,
            kind[1] if kind else "", _size(unpadded[1], unpadded[2]) if unpadded else None,
            "Entry Parameter" in block or "Allocation type: Arguments" in block or "is_entry_parameter" in block,
        )  # fmt: skip


def _raised(text: str) -> Location | None:
    """The innermost line of a traceback that is not a library's; None if there is no traceback."""
    frames = [Location(file, int(line), function) for file, line, function in _FRAME.findall(text)]
    return next((at for at in reversed(frames) if is_own(at.file) and "site-packages" not in at.file), None)
