"""The wire format of the explorer: one block of bytes, whose types in `widgets/src/wire/schema.generated.ts` are written from here.

The block is little-endian::

    6 bytes   magic, b"jaxviz"
    u16       version of the format
    u32       length of the header in bytes
    u32       zero
    ...       the header, JSON in UTF-8, padded with spaces to a multiple of 8 bytes
    ...       the columns, each starting at a multiple of 8 bytes

The header has for each column its type, its length and where it starts, and how it is coded if it is not there as it is: "delta" and a type
for the differences of its neighbours, "dictionary" and a number for so many values, then a byte for each item that says which.

What comes later of a large program is a block of its own that has the columns that differ, and the strings that are new.

Equations of all stages stand in one table of columns, in the order in which they are read: an equation that holds
programs is followed by theirs. A block is sent gzipped. Strings are held once and referred to by number. `COLUMNS` says what each column means.
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
VERSION = 18
_GZIP = b"\x1f\x8b"
_PREFIX = struct.Struct("<6sHII")

ROLES = ("primal", "tangent", "residual", "cotangent", "accumulation", "recomputation", "zero", "dummy")
KINDS = ("argument", "constant", "literal", "intermediate", "dummy")
MEMORY_KINDS = ("argument", "constant", "residual", "temporary", "cotangent", "result")

KINS = ("value", "tangent", "cotangent", "towards a tangent", "towards a cotangent", "copy")
"""What a variable is: a value of the function or of a rule; all of a tangent or a cotangent; or what a rule computes on the way to one, or a
part of the sum that is one; or the value of another in one of several calls."""
HANDED = ("as it is", "carry", "each")
"""How a nested program is handed an operand: as it is; in the first iteration, later ones get a result of the one before; or a slice in each."""
SCOPES = ("scope", "loop", "repeated", "line", "rest")
"""What a box of the overview is: a function, module or named scope; a loop; what is called again and again by one that is written out; a line of
the user's; or what is not worth a box of its own."""

COLUMNS: Mapping[str, str] = {
    # A program: the top level of a stage, or a nested program of an equation.
    "program_stage": "number of its stage",
    "program_owner": "equation that holds it, or -1 at the top of a stage",
    "program_label": "string: the parameter it is, such as 'jaxpr' or 'branches[0]'",
    "program_name": "string: the name of the function that its equation calls, or empty",
    "program_length": "how many iterations its equation runs, for a loop of known length; else 0",
    "program_consts": "how many of its binders are constants",
    "program_binders": "offsets into binder_vars, one more than there are programs",
    "binder_vars": "variable",
    "binder_operands": "which operand of the equation that holds the program it is handed, or -1",
    "binder_handed": "index into HANDED",
    "program_results": "offsets into result_atoms, one more than there are programs",
    "result_atoms": "atom: a variable, or ~number of a literal where negative",
    # An equation.
    "equation_program": "program it stands in",
    "equation_primitive": "string",
    "equation_params": "string: one 'name=value' per line, nested programs left out",
    "equation_printed": "string: the params that JAX prints, in its order, one 'name=value' per line; of programs the name alone, or `{}` "
    "for one within a value",
    "equation_inputs": "offsets into input_atoms, one more than there are equations",
    "input_atoms": "atom",
    "equation_outputs": "offsets into output_vars, one more than there are equations",
    "output_vars": "variable",
    "equation_role": "index into ROLES",
    "equation_transform": "string: the transform that made it, or empty",
    "equation_rule": "string: the rule that made it, or empty",
    "equation_earlier": "string: what made the equations of programs that are not shown, latest first, one 'rule (transform)' per line",
    "equation_location": "location, or -1",
    "equation_origin": "equation of another stage that it came from, or -1",
    "equation_decision": "string: what a checkpoint policy decided of its results, or empty",
    "equation_scope": "string: the functions called on the way to it, outermost first, and its named scopes, joined by '/', or empty",
    "equation_flops": "FLOPs of it with the programs that it holds; of a while loop, of one iteration",
    "equation_work": "FLOPs of it alone, all the times that it runs together; 0 where those of the programs that it holds are counted",
    "equation_group": "a number that those have in common which one expression led to in repeated layers, calls and iterations",
    "equation_twin": "the first row that shows the same equation, or -1 if this is the first",
    # Columns for few equations: those that name an axis, shard_maps, and jits with donated arguments.
    "axis_rows": "equation that names axes; its first param says which",
    "axis_exchanges": "1 if the places along them exchange values, as in a psum; 0 if they do not, as in a pvary",
    "layout_rows": "equation that runs its program on each device of a mesh; its first param says which axes",
    "layout_texts": "string: what runs the program, 'device' or such as 'place along i'; then a line for each operand and each "
    "result, saying how it is laid out, such as \"P('i')\"",
    "donation_rows": "equation, once for each of its donated operands",
    "donation_operands": "place of the operand",
    "donation_results": "place of the result that reuses its memory, or -1",
    "donation_reasons": "string: why none does, or empty",
    # A variable, named as in the listing of its stage.
    "variable_name": "string",
    "variable_type": "type",
    "variable_label": "string: the name of the argument it is, 'residual', 'tangent of' or 'cotangent of' and what of, or empty",
    "variable_value": "first variable that is the same value, in whatever stage",
    "variable_kin": "index into KINS",
    "variable_of": "variable it belongs to: whose tangent or cotangent it is or leads to, or the result of what its rule is the rule of; or -1",
    "others_value": "variable that belongs to more variables than its variable_of: a first one, as in variable_value",
    "others_of": "another that it belongs to, a first one too",
    "others_kin": "index into KINS: how it belongs to that one",
    # Literals, types, and locations in the user's source.
    "literal_text": "string",
    "literal_type": "type",
    "type_text": "string, such as 'f32[3,4]'",
    "type_nbytes": "bytes that one value takes",
    "type_per_device": "bytes of it on one device, or -1 where its type lays it out over none",
    "location_file": "file",
    "location_line": "line, from 1",
    "location_function": "string",
    "location_start_line": "line on which its expression starts, or 0 where that is not known",
    "location_start": "where on that line, in code units of UTF-16 from 0",
    "location_end_line": "line on which it ends",
    "location_end": "where on that one",
    # The lines of locations.
    "line_file": "file",
    "line_number": "line, from 1",
    "line_kept": "bytes that the gradient keeps of it, without arguments",
    "line_forward": "FLOPs of the forward program",
    "line_backward": "FLOPs of the backward program",
    "line_recomputed": "FLOPs of these that compute again what the forward program did",
    # A residual: a value that the forward program saves for the backward program.
    "residual_name": "string: its variable's name in the listing of the forward program",
    "residual_label": "string: what it is called, the user's expression for it where one is found",
    "residual_group": "a number that those have in common that are one expression's values in repeated layers, calls and iterations",
    "residual_type": "string: its type, such as '1,000 × f32[3]' for one from each iteration of a scan",
    "residual_nbytes": "bytes",
    "residual_per_device": "bytes of it on one device, or -1 where that has all of it or it is not known",
    "residual_dummy": "bytes of it that are a dummy if a cond takes another branch",
    "residual_kind": "index into KINDS",
    "residual_location": "location, or -1",
    "residual_scope": "string: the named scopes it is made in, or empty",
    "residual_module": "string: the path of the module it is made in, or empty",
    "residual_rule": "string",
    "residual_reason": "string: why it is saved, in a sentence with `` in the place of each of its names",
    "residual_names": "offsets into reason_names, one more than there are residuals",
    "reason_names": "string: a name in the sentence, such as that of a value, a primitive or an argument",
    "residual_decision": "string: 'saved' or 'offloaded'",
    "residual_producer": "equation of the forward program that makes it, or -1",
    "residual_buffer": "buffer that holds it, or -1; several share one where one shows another in a new shape",
    "residual_consumers": "offsets into consumer_rows, one more than there are residuals",
    "consumer_rows": "equation of the backward program that reads it",
    # The modelled memory: one step per equation of the forward and then the backward program, with calls inlined.
    "step_row": "equation",
    # A value in memory during some steps, or the temporary memory of a loop's body during one step.
    "buffer_nbytes": "bytes",
    "buffer_kind": "index into MEMORY_KINDS",
    "buffer_born": "first step at which it is there",
    "buffer_last": "last step at which it is there; the number of steps if it is there when all is done",
    "buffer_row": "equation that makes it, or -1",
    "buffer_name": "string: the path of an argument, or what makes it",
    "buffer_type": "string, or empty",
    # The overview: the values saved per expression, largest first; arguments belong to none.
    "residual_kept": "kept expression it is a value of, or -1",
    "kept_label": "string: the user's expression, with what it is assigned to",
    "kept_location": "location, or -1",
    "kept_nbytes": "bytes of its values, all evaluations together",
    "kept_times": "how often it is evaluated, in layers, calls and iterations",
    "kept_values": "how many values it keeps each time",
    "kept_reason": "string: why, in sentences",
    # The scopes that forward and backward run, each followed by its nested scopes; widths are fractions of the parent.
    "scope_parent": "scope around it, or -1",
    "scope_backward": "1 in the backward pass",
    "scope_name": "string, or empty",
    "scope_kind": "index into SCOPES",
    "scope_count": "how often it runs each time that the scope around it does",
    "scope_location": "location, or -1",
    "scope_flops": "FLOPs, all iterations together",
    "scope_equations": "equations that hold no program, each once",
    "scope_rows": "offsets into row_of_scope, one more than there are scopes",
    "row_of_scope": "equation that is in it, and in no scope inside of it",
    "step_equations": "for each step how many equations that hold no program it runs, each once",
}

_SIZES = frozenset(
    {
        "equation_flops",
        "equation_work",
        "line_kept",
        "line_forward",
        "line_backward",
        "line_recomputed",
        "type_nbytes",
        "type_per_device",
        "residual_nbytes",
        "residual_per_device",
        "residual_dummy",
        "buffer_nbytes",
        "kept_nbytes",
        "scope_flops",
    }
)
"""Columns of bytes and FLOPs: 64-bit floats where one is beyond 32 bits."""


@dataclass(frozen=True)
class Stage:
    """One program of a derivation: its rows, or the error that stood in the way of it."""

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
    """A place where a recorded function chose a side by a value."""

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
    """What a gradient comes to, in words: what it keeps, what most of that is, and its peak; '' where that is not known or not known yet."""

    keeps: str = ""
    largest: str = ""
    peak: str = ""


@dataclass(frozen=True)
class View:
    """All that the explorer shows, as plain data."""

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
    """On how many devices the memory is modelled; of several the buffers are those on one."""
    headline: Headline = Headline()
    is_whole: bool = True
    """Whether the memory, the notes and the comparison with JAX are there; where they are not, they are on their way."""

    @property
    def n_equations(self) -> int:
        """Counted over all stages."""
        return len(self.columns["equation_program"])

    def stage(self, key: str) -> Stage:
        """The stage named `key`."""
        for stage in self.stages:
            if stage.key == key:
                return stage
        raise KeyError(f"no stage {key!r}; there are {', '.join(stage.key for stage in self.stages)}")


def pack(block: bytes) -> bytes:
    """A block as it is sent and saved: gzipped, as fast as that goes, for the slowest comes to 4 % less in ten times the time."""
    return gzip.compress(block, 1, mtime=0)


def encode(view: View, known: View | None = None) -> bytes:
    """Write a view as bytes; of one whose first part is known, what is not the same there, which is for `decode` with that part.

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
    """Read a view from bytes, packed or not; raises ValueError on anything that `encode` did not write.

    Args:
      block: the bytes.
      known: what they were written without.
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


_SAMPLE = 8192
"""Items by which it is found out how a column is coded best."""


def _coded(name: str, column: np.ndarray) -> tuple[str, int, list[Any], list[bytes]]:
    """The type of a column, its length, how it is coded, and its blocks: what is packed best."""
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
        values, which = np.unique(plain, return_inverse=True)
        if len(values) <= 256:
            index = which.astype("u1")
            size_of_it = _packed_size(index[start : start + _SAMPLE])
            ways.append((size_of_it, ["dictionary", len(values)], [values, index]))
    _, coding, blocks = min(ways, key=lambda way: way[0])
    return code, size, coding, [block.tobytes() for block in blocks]


def _packed_size(column: np.ndarray) -> int:
    return len(zlib.compress(column.tobytes(), 1))


def _decoded(
    block: bytes, start: int, code: str, size: int, offset: int, coding: str = "", how: Any = None
) -> np.ndarray:
    def at(code: str, count: int, offset: int) -> np.ndarray:
        return np.frombuffer(block, dtype="<" + code, count=count, offset=start + offset)

    if coding == "delta":
        whole: np.ndarray = np.cumsum(at(how, size, offset), dtype=np.int64).astype("<" + code)
        return whole
    if coding == "dictionary":
        values = at(code, how, offset)
        taken: np.ndarray = values[at("u1", size, offset + values.nbytes + -values.nbytes % 8)]
        return taken
    return at(code, size, offset)


def to_json(view: View) -> dict[str, Any]:
    """A view as JSON values, its columns as lists: what the tests of both languages read."""
    header = _header(view, {name: np.asarray(view.columns[name]).tolist() for name in COLUMNS})
    values: dict[str, Any] = json.loads(json.dumps(header))
    return values


def from_json(values: Mapping[str, Any]) -> View:
    """The view that `to_json` wrote."""
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
        is_whole=header["is_whole"],
    )


def _source_file(file: Mapping[str, Any]) -> SourceFile:
    excerpts = tuple(Excerpt(excerpt["first"], tuple(excerpt["lines"])) for excerpt in file["excerpts"])
    return SourceFile(file["label"], file["path"], file["is_user"], excerpts)


def _as_column(name: str, values: Sequence[float] | np.ndarray) -> np.ndarray:
    return np.asarray(values, dtype="<f8" if name in _SIZES else np.int64)


def _narrowed(name: str, column: np.ndarray) -> np.ndarray:
    """The column in the narrowest type that holds it."""
    column = _as_column(name, column)
    narrow = _narrowest(column)
    if narrow.dtype.itemsize < 8 or name in _SIZES:
        return narrow
    high, low = int(column.max()), int(column.min())
    raise OverflowError(f"column {name} holds {high if high > -low else low}, more than 32 bits")


def _narrowest(column: np.ndarray) -> np.ndarray:
    """Whole numbers in the narrowest type up to 32 bits that holds them; others as they are."""
    low, high = (int(column.min()), int(column.max())) if column.size else (0, 0)
    for code in ("u1", "i1", "u2", "i2", "i4"):
        limits = np.iinfo(code)
        if limits.min <= low and high <= limits.max:
            return column.astype("<" + code)
    return column
