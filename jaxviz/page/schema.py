"""The explorer's wire format: one block of bytes. `widgets/src/wire/schema.generated.ts` is generated from here.

The block is little-endian::

    6 bytes   magic, b"jaxviz"
    u16       version of the format
    u32       length of the header in bytes
    u32       zero
    ...       the header, JSON in UTF-8, padded with spaces to a multiple of 8 bytes
    ...       the columns, each starting at a multiple of 8 bytes

The header has each column's type, length, offset, and its encoding, if any: "delta" with the type of the differences
between neighbours, or "dictionary" with the number of distinct values, which are followed by a byte per item.

For a large program, three more blocks follow: with the groups of equations, with the memory, and with the details. Each
has the columns that differ from the previous block, and new strings.

The equations of all stages are in one table of columns, in reading order: the equations of a nested program follow the
equation that contains it. Strings are stored once, and columns have their numbers. `COLUMNS` describes each column.
Blocks are sent gzipped.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

MAGIC = b"jaxviz"
VERSION = 23
_GZIP = b"\x1f\x8b"
_PREFIX = struct.Struct("<6sHII")

ROLES = ("primal", "tangent", "residual", "cotangent", "accumulation", "recomputation", "zero", "dummy")
KINDS = ("argument", "constant", "literal", "intermediate", "dummy", "unread")
MEMORY_KINDS = ("argument", "constant", "residual", "temporary", "cotangent", "result")

KINS = ("value", "tangent", "cotangent", "towards a tangent", "towards a cotangent", "copy")
"""The kinds of variables: a value of the function or of a rule; a complete tangent or cotangent; an intermediate result
of a rule, or a term of the sum, that leads to one; or the value of another variable in one of several calls."""
HANDED = ("as it is", "carry", "each")
"""How a nested program receives an operand: unchanged; in the first iteration, while later ones receive the carry; or a
slice per iteration."""
SCOPES = ("scope", "loop", "repeated", "line", "rest")
"""The kinds of boxes in the overview: a function, module or named scope; a loop; a sequence that repeats without a
loop; a line of the user's; or what is too small for a box."""

COLUMNS: Mapping[str, str] = {
    # A program: the top level of a stage, or a nested program of an equation.
    "program_stage": "number of its stage",
    "program_owner": "equation that contains it, or -1 at the top of a stage",
    "program_label": "string: its param, such as 'jaxpr' or 'branches[0]'",
    "program_name": "string: the name of the function that its equation calls, or empty",
    "program_length": "number of iterations if its equation is a loop of known length, or 0",
    "program_consts": "how many of its binders are constants",
    "program_binders": "offsets into binder_vars, one more than there are programs",
    "binder_vars": "variable",
    "binder_operands": "index of the operand of the program's equation that it receives, or -1",
    "binder_handed": "index into HANDED",
    "program_results": "offsets into result_atoms, one more than there are programs",
    "result_atoms": "atom: a variable, or if negative, ~number of a literal",
    # An equation.
    "equation_program": "program that it is in",
    "equation_primitive": "string",
    "equation_params": "string: one 'name=value' per line, without nested programs",
    "equation_printed": "string: the params that JAX prints, in JAX's order, one 'name=value' per line; for a "
    "nested program only the name, or `{}` for one within a value",
    "equation_inputs": "offsets into input_atoms, one more than there are equations",
    "input_atoms": "atom",
    "equation_outputs": "offsets into output_vars, one more than there are equations",
    "output_vars": "variable",
    "equation_role": "index into ROLES",
    "equation_transform": "string: the transform that emitted it, or empty",
    "equation_rule": "string: the rule that emitted it, or empty",
    "equation_earlier": "string: how its origins in programs that are not shown were emitted, latest first, one "
    "'rule (transform)' per line",
    "equation_location": "location, or -1",
    "equation_origin": "equation of another stage that it derives from, or -1",
    "equation_decision": "string: what a checkpoint policy decided about its results, or empty",
    "equation_scope": "string: the functions that lead to it, outermost first, and its named scopes, joined by "
    "'/', or empty",
    "equation_flops": "FLOPs including nested programs; for a while loop, of one iteration",
    "equation_moved": "bytes of the operands and results of its operations, each taken separately, likewise",
    "equation_runs": "how often it runs; 0 if its nested programs are counted",
    "equation_group": "a number shared by the equations of one expression in repeated layers, calls and iterations",
    "equation_twin": "first row that shows the same equation, or -1 if this is the first",
    # Columns for few equations: those that name an axis, or whose types imply an exchange, shard_maps, and jits with
    # donated arguments.
    "axis_rows": "equation that names axes; its first param says which",
    "axis_exchanges": "1 if the devices or examples along them exchange values, as in a psum; 0 if they do not, "
    "as in a pvary",
    "implied_rows": "equation for which devices exchange values, as the types of its operands and results imply",
    "implied_texts": "string: what they exchange and why, a line for each collective",
    "layout_rows": "equation that runs its program on each device of a mesh; its first param says along which axes",
    "layout_texts": "string: what runs the program, 'device' or for example 'place along i'; then a line per "
    "operand and per result with its sharding, such as \"P('i')\"",
    "donation_rows": "equation, once for each of its donated operands",
    "donation_operands": "index of the operand",
    "donation_results": "index of the result that reuses its memory, or -1",
    "donation_reasons": "string: why no result does, or empty",
    # A variable, named as in the listing of its stage.
    "variable_name": "string",
    "variable_type": "type",
    "variable_label": "string: the name of an argument, 'residual', 'tangent of' or 'cotangent of' something, or empty",
    "variable_labels": "string: one label for all inputs of its stage whose labels differ only in numbers, or empty",
    "variable_value": "first variable with the same value, in any stage",
    "variable_kin": "index into KINS",
    "variable_of": "variable that it belongs to: whose tangent or cotangent it is or leads to, or for a variable "
    "of a rule, the result of the rule's equation; or -1",
    "others_value": "variable, as in variable_value, that belongs to others in addition to its variable_of",
    "others_of": "another variable that it belongs to, also as in variable_value",
    "others_kin": "index into KINS: its relation to that one",
    # Literals, types, and locations in the user's source.
    "literal_text": "string",
    "literal_type": "type",
    "type_text": "string, such as 'f32[3,4]'",
    "type_nbytes": "bytes of one value",
    "type_per_device": "bytes on one device, or -1 if its type is not sharded",
    "location_file": "file",
    "location_line": "line, from 1",
    "location_function": "string",
    "location_start_line": "line on which its expression starts, or 0 if unknown",
    "location_start": "column on that line, in UTF-16 code units from 0",
    "location_end_line": "line on which the expression ends",
    "location_end": "column on that line",
    # The lines of locations.
    "line_file": "file",
    "line_number": "line, from 1",
    "line_kept": "bytes that the gradient saves for it, without arguments",
    "line_forward": "FLOPs of the forward program",
    "line_backward": "FLOPs of the backward program",
    "line_recomputed": "FLOPs of the backward program that recompute values of the forward program",
    "line_moved": "bytes that the operations of both programs read and write, each taken separately",
    # A residual: a value that the forward program saves for the backward program.
    "residual_name": "string: its name in the listing of the forward program",
    "residual_label": "string: the user's expression for it if known, or another name",
    "residual_group": "row of the report of residuals that it is in, largest first",
    "residual_type": "string: its type, such as '1,000 × f32[3]' if a scan stacks one per iteration",
    "residual_nbytes": "bytes",
    "residual_per_device": "bytes on one device, or -1 if it is not sharded or this is unknown",
    "residual_dummy": "bytes that are dummies if a cond takes another branch",
    "residual_kind": "index into KINDS",
    "residual_location": "location, or -1",
    "residual_scope": "string: its named scopes, or empty",
    "residual_module": "string: the path of the module that computes it, or empty",
    "residual_rule": "string",
    "residual_reason": "string: why it is saved, in a sentence with `` in place of each name",
    "residual_names": "offsets into reason_names, one more than there are residuals",
    "reason_names": "string: a name in the sentence, such as that of a value, primitive or argument",
    "residual_outlier": "1 if this reason is another one than those of most in its row",
    "residual_decision": "string: 'saved' or 'offloaded'",
    "group_label": "string: one name for the residuals of a row of the report",
    "group_why": "string: why they are saved",
    "residual_producer": "equation of the forward program that computes it, or -1",
    "residual_buffer": "buffer that contains it, or -1; several residuals share one if some are reshaped views of "
    "others",
    "residual_consumers": "offsets into consumer_rows, one more than there are residuals",
    "consumer_rows": "equation of the backward program that reads it",
    # The modelled memory: one step per equation of the forward and then the backward program, with calls inlined.
    "step_row": "equation",
    # A value in memory during some steps, or the temporary memory of a loop's body during one step.
    "buffer_nbytes": "bytes",
    "buffer_kind": "index into MEMORY_KINDS",
    "buffer_born": "first step at which it is in memory",
    "buffer_last": "last step at which it is in memory; the number of steps if it is never freed",
    "buffer_row": "equation that computes it, or -1",
    "buffer_name": "string: the path of an argument, or what computes it",
    "buffer_type": "string, or empty",
    "buffer_group": "a number shared by one expression's values in repeated layers, calls and iterations",
    "buffer_group_label": "string: one name for the values with that number",
    # The overview: the values saved per expression, largest first; arguments belong to none.
    "residual_kept": "saved expression that it is a value of, or -1",
    "kept_label": "string: the user's expression, with the name that it is assigned to",
    "kept_location": "location, or -1",
    "kept_nbytes": "bytes of its values, over all evaluations",
    "kept_times": "how often it is evaluated, in layers, calls and iterations",
    "kept_values": "how many values each evaluation saves",
    "kept_reason": "string: the reasons, in sentences",
    # The scopes that forward and backward run, each followed by its nested scopes; widths are fractions of the parent.
    "scope_parent": "enclosing scope, or -1",
    "scope_backward": "1 in the backward pass",
    "scope_name": "string, or empty",
    "scope_kind": "index into SCOPES",
    "scope_count": "how often it is called in that box per run of the enclosing one, or iterates; 1 if that is not "
    "certain",
    "scope_location": "location, or -1",
    "scope_flops": "FLOPs, over all iterations",
    "scope_equations": "number of equations without nested programs, each counted once",
    "scope_rows": "offsets into row_of_scope, one more than there are scopes",
    "row_of_scope": "equation in it, but not in a nested scope",
    "step_equations": "number of equations without nested programs that each step runs, each counted once",
}

_SIZES = frozenset(
    {
        "equation_flops",
        "equation_moved",
        "equation_runs",
        "line_kept",
        "line_forward",
        "line_backward",
        "line_recomputed",
        "line_moved",
        "type_nbytes",
        "type_per_device",
        "residual_nbytes",
        "residual_per_device",
        "residual_dummy",
        "buffer_nbytes",
        "kept_nbytes",
        "kept_times",
        "scope_count",
        "scope_flops",
    }
)
"""Columns of bytes, FLOPs and counts over nested loops, which are 64-bit floats if any value exceeds 32 bits."""


@dataclass(frozen=True)
class Stage:
    """One program of a derivation: its rows, or the error that prevented it."""

    key: str
    label: str
    title: str
    programs: tuple[int, int] = (0, 0)
    equations: tuple[int, int] = (0, 0)
    error: str = ""
    is_path: bool = False


@dataclass(frozen=True)
class Excerpt:
    """Consecutive lines of a source file, the first of which has number `first`."""

    first: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class SourceFile:
    """A file that equations point into; excerpts only of the user's own files."""

    label: str
    path: str
    is_user: bool
    excerpts: tuple[Excerpt, ...] = ()


@dataclass(frozen=True)
class BranchPoint:
    """A branch of Python code on a traced value, in a recorded function."""

    file: int
    line: int
    kind: str
    value: str


@dataclass(frozen=True)
class CheckResult:
    """How the derivation compares with JAX: 'agrees', 'differs' or 'unknown'."""

    status: Literal["agrees", "differs", "unknown"]
    summary: str
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Headline:
    """A summary of a gradient in words: what it saves, in how many values, mostly what, its peak; '' until known."""

    keeps: str = ""
    largest: str = ""
    peak: str = ""
    saves: str = ""


@dataclass(frozen=True)
class View:
    """Everything that the explorer shows, as plain data."""

    title: str
    stages: tuple[Stage, ...]
    strings: tuple[str, ...]
    columns: Mapping[str, np.ndarray]
    files: tuple[SourceFile, ...] = ()
    branches: tuple[BranchPoint, ...] = ()
    check: CheckResult | None = None
    notes: tuple[str, ...] = field(default=())
    devices: tuple[str, ...] = ()
    placement: str = ""
    """The devices it runs on, such as 'cpu:0', and a sentence that says which and why."""
    no_memory: str = ""
    """Why there are no steps and buffers, or empty."""
    n_devices: int = 1
    """The number of devices for which memory is modelled; with several, the buffers are those of one device."""
    headline: Headline = Headline()
    has_groups: bool = True
    """Whether it says which equations are of one expression in repeated layers; otherwise that follows."""
    has_memory: bool = True
    """Whether the memory and the scopes are included; otherwise they follow."""
    is_whole: bool = True
    """Whether the notes and everything else but the comparison with JAX are included; otherwise they follow."""

    @property
    def n_equations(self) -> int:
        """Over all stages."""
        return len(self.columns["equation_program"])

    def stage(self, key: str) -> Stage:
        """The stage named `key`."""
        for stage in self.stages:
            if stage.key == key:
                return stage
        raise KeyError(f"no stage {key!r}; there are {', '.join(stage.key for stage in self.stages)}")


def pack(block: bytes) -> bytes:
    """A block as it is sent: gzipped at the fastest level, since the slowest gains 4 % in ten times the time."""
    return gzip.compress(block, 1, mtime=0)


def encode(view: View, known: View | None = None) -> bytes:
    """Write a view as bytes; if its first part is known, write only the differences, for `decode` with that part.

    >>> decode(encode(view)).title == view.title
    True
    """
    table, blocks, offset = {}, [], 0
    for name in COLUMNS:
        column = view.columns[name]
        if known is not None and column is known.columns[name]:
            continue
        code, size, coding, parts = _coded(name, column)
        table[name] = [code, size, offset, *coding]
        for block in parts:
            blocks.append(block + bytes(-len(block) % 8))
            offset += len(blocks[-1])
    header = _header(view, table)
    if known is not None:
        header["strings"] = header["strings"][len(known.strings) :]
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    text += b" " * (-(_PREFIX.size + len(text)) % 8)
    return b"".join([_PREFIX.pack(MAGIC, VERSION, len(text), 0), text, *blocks])


def decode(block: bytes, known: View | None = None) -> View:
    """Read a view from bytes, gzipped or not; raises ValueError on anything that `encode` did not write.

    Args:
      block: the bytes.
      known: the first part, if the bytes were written without it.
    """
    if block.startswith(_GZIP):
        block = gzip.decompress(block)
    if len(block) < _PREFIX.size or not block.startswith(MAGIC):
        raise ValueError("these bytes are not a jaxviz view")
    _, version, length, _ = _PREFIX.unpack_from(block)
    if version != VERSION:
        raise ValueError(f"this view has format {version}; this version of jaxviz reads format {VERSION}")
    start = _PREFIX.size + length
    if len(block) < start:
        raise ValueError("this jaxviz view is cut short")
    header = json.loads(block[_PREFIX.size : start])
    columns = {name: _decoded(block, start, *entry) for name, entry in header["columns"].items()}
    if known is not None:
        header["strings"] = [*known.strings, *header["strings"]]
        columns = {**known.columns, **columns}
    return _from_header(header, columns)


_SAMPLE = 4096
"""The number of items from which the best encoding of a column is determined."""


def _coded(name: str, column: np.ndarray) -> tuple[str, int, list[Any], list[bytes]]:
    """The type of a column, its length, its encoding and its blocks, whichever encoding compresses best."""
    plain = _narrowed(name, column)
    code, size = plain.dtype.str[1:], plain.size
    if size < 256:
        return code, size, [], [plain.tobytes()]
    start = max(0, size // 2 - _SAMPLE // 2)
    sample = plain[start : start + _SAMPLE]
    ways: list[tuple[int, list[Any], list[np.ndarray]]] = [(_packed_size(sample), [], [plain])]
    if code != "f8":
        delta = np.diff(plain.astype(np.int64), prepend=0)
        if abs(delta).max() < 2**31:
            delta = _narrowest(delta)
            size_of_it = _packed_size(delta[start : start + _SAMPLE])
            ways.append((size_of_it, ["delta", delta.dtype.str[1:]], [delta]))
    if plain.itemsize > 1 and len(np.unique(sample)) <= 256:
        values, which = _distinct(plain)
        if len(values) <= 256:
            index = which.astype("u1")
            size_of_it = _packed_size(index[start : start + _SAMPLE])
            ways.append((size_of_it, ["dictionary", len(values)], [values, index]))
    _, coding, blocks = min(ways, key=lambda way: way[0])
    return code, size, coding, [block.tobytes() for block in blocks]


def _distinct(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct integers of a column in order, and the index of each item's, not sorted if their range is small."""
    low, high = int(column.min()), int(column.max())
    if high - low >= 1 << 16:
        return np.unique(column, return_inverse=True)
    place = column.astype(np.int64) - low
    is_there = np.zeros(high - low + 1, np.int64)
    is_there[place] = 1
    return (np.flatnonzero(is_there) + low).astype(column.dtype), (np.cumsum(is_there) - 1)[place]


def _packed_size(column: np.ndarray) -> int:
    return len(zlib.compress(column.tobytes(), 1))


def _decoded(
    block: bytes, start: int, code: str, size: int, offset: int, coding: str = "", how: Any = None
) -> np.ndarray:
    def at(code: str, count: int, offset: int) -> np.ndarray:
        return np.frombuffer(block, dtype="<" + code, count=count, offset=start + offset)

    if coding == "delta":
        decoded: np.ndarray = np.cumsum(at(how, size, offset), dtype=np.int64).astype("<" + code)
        return decoded
    if coding == "dictionary":
        values = at(code, how, offset)
        taken: np.ndarray = values[at("u1", size, offset + values.nbytes + -values.nbytes % 8)]
        return taken
    return at(code, size, offset)


def to_json(view: View) -> dict[str, Any]:
    """A view as JSON values, with columns as lists, for the tests of both languages."""
    header = _header(view, {name: np.asarray(view.columns[name]).tolist() for name in COLUMNS})
    values: dict[str, Any] = json.loads(json.dumps(header))
    return values


def from_json(values: Mapping[str, Any]) -> View:
    """The inverse of `to_json`."""
    columns = {name: _as_column(name, values["columns"][name]) for name in COLUMNS}
    return _from_header(values, columns)


def _header(view: View, columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    return {
        "title": view.title,
        "stages": [asdict(stage) for stage in view.stages],
        "files": [asdict(file) for file in view.files],
        "branches": [asdict(branch) for branch in view.branches],
        "check": asdict(view.check) if view.check else None,
        "notes": list(view.notes),
        "devices": list(view.devices),
        "placement": view.placement,
        "no_memory": view.no_memory,
        "n_devices": view.n_devices,
        "headline": asdict(view.headline),
        "has_groups": view.has_groups,
        "has_memory": view.has_memory,
        "is_whole": view.is_whole,
        "strings": list(view.strings),
        "columns": columns,
    }


def _from_header(header: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> View:
    check = header["check"]
    return View(
        title=header["title"],
        stages=tuple(
            Stage(**{**stage, "programs": tuple(stage["programs"]), "equations": tuple(stage["equations"])})
            for stage in header["stages"]
        ),
        strings=tuple(header["strings"]),
        columns=columns,
        files=tuple(_source_file(file) for file in header["files"]),
        branches=tuple(BranchPoint(**branch) for branch in header["branches"]),
        check=CheckResult(check["status"], check["summary"], tuple(check["differences"])) if check else None,
        notes=tuple(header["notes"]),
        devices=tuple(header["devices"]),
        placement=header["placement"],
        no_memory=header["no_memory"],
        n_devices=header["n_devices"],
        headline=Headline(**header["headline"]),
        has_groups=header["has_groups"],
        has_memory=header["has_memory"],
        is_whole=header["is_whole"],
    )


def _source_file(file: Mapping[str, Any]) -> SourceFile:
    excerpts = tuple(Excerpt(excerpt["first"], tuple(excerpt["lines"])) for excerpt in file["excerpts"])
    return SourceFile(file["label"], file["path"], file["is_user"], excerpts)


def _as_column(name: str, values: Sequence[float] | np.ndarray) -> np.ndarray:
    return np.asarray(values, dtype="<f8" if name in _SIZES else np.int64)


def _narrowed(name: str, column: np.ndarray) -> np.ndarray:
    """The column in the narrowest type that can represent it."""
    column = _as_column(name, column)
    narrow = _narrowest(column)
    if narrow.dtype.itemsize < 8 or name in _SIZES:
        return narrow
    high, low = int(column.max()), int(column.min())
    raise OverflowError(f"column {name} holds {high if high > -low else low}, more than 32 bits")


def _narrowest(column: np.ndarray) -> np.ndarray:
    """Integers in the narrowest type of at most 32 bits that can represent them; others unchanged."""
    low, high = (int(column.min()), int(column.max())) if column.size else (0, 0)
    for code in ("u1", "i1", "u2", "i2", "i4"):
        limits = np.iinfo(code)
        if limits.min <= low and high <= limits.max:
            return column.astype("<" + code)
    return column
