"""A contract: the facts of a gradient that are locked, and the file that has them, one in a line."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from jaxviz.analysis.grouping import pattern
from jaxviz.environments.facts import Facts, LineWork, ProgramFacts, SavedRow
from jaxviz.report.data import Data
from jaxviz.report.differences import amount
from jaxviz.report.files import no_such_file, write_file
from jaxviz.report.report import Part, Report, Table
from jaxviz.report.stored import from_plain
from jaxviz.report.tables import listed
from jaxviz.xla.collectives.report import Collective

FOLDER = "contracts"
"""Where contracts are, in a repository."""
FORMAT = 1
"""The version of the files."""
LONGEST = 60
"""How many lines a file may have."""
SAVED_ROWS, WORK_ROWS, LEAST_ROWS = 20, 6, 4
"""How many of the largest rows are locked, with what is left as one more; fewer of saved values if there is no room."""
OTHERS = "(others)"
"""What is left."""


@dataclass(frozen=True, slots=True)
class LockedSaved(Data):
    """The values that the gradient saves for one expression: its name, the type of each, and the bytes of all."""

    what: str
    type: str
    count: int
    nbytes: int

    @classmethod
    def of(cls, r: SavedRow) -> LockedSaved:
        return cls(r.label, r.type, r.count, r.nbytes)

    @property
    def row(self) -> SavedRow:
        """The same as a fact, of which only this is known."""
        return SavedRow(self.what, self.type, self.count, self.nbytes, "", "", None)


@dataclass(frozen=True, slots=True)
class LockedWork(Data):
    """The FLOPs of a line of the program in each pass; those that a checkpoint recomputes are also backward."""

    what: str
    forward: int
    backward: int
    recomputed: int

    @property
    def row(self) -> LineWork:
        """The same as a fact, of which only this is known."""
        return LineWork(self.what, None, self.forward, self.backward, self.recomputed, {})


@dataclass(frozen=True, slots=True)
class PortableFacts(Data):
    """What follows from types, and so holds on any machine; None for what is not locked.

    Args:
      residuals: the bytes that the gradient saves.
      saved: for which expressions; only for the cause of a change.
      dtypes: the bytes of each dtype that it saves.
      names: those given by `checkpoint_name` under which a policy saves or offloads values.
      work: the FLOPs of both passes.
      work_in: those of each dtype that it computes in.
      recomputed: those of the backward pass that a checkpoint recomputes.
      lines: in which lines; only for the cause of a change.
      equations: how many equations both passes have.
      collectives: the bytes that each device sends, by kind and axes, as the types imply.
      donated: how many arrays of each argument are donated.
      dead: the parameters in which the gradient is zero for any values: how many of each pattern.
      without_effect: checkpoints, policies, names and donations without effect.
    """

    residuals: int | None = None
    saved: tuple[LockedSaved, ...] = ()
    dtypes: dict[str, int] | None = None
    names: tuple[str, ...] | None = None
    work: int | None = None
    work_in: dict[str, int] | None = None
    recomputed: int | None = None
    lines: tuple[LockedWork, ...] = ()
    equations: int | None = None
    collectives: dict[str, int] | None = None
    donated: dict[str, int] | None = None
    dead: dict[str, int] | None = None
    without_effect: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class OnBackend(Data):
    """What holds of the compiled gradient, with one backend, device and version; None for what is not locked.

    Args:
      peak: the bytes in memory at the peak.
      at_peak: those of each kind; only for the cause of a change.
      temporaries: the bytes that XLA allocates for temporaries.
      exchanged: the bytes that each device sends, by kind and axes, however they are scheduled.
    """

    peak: int | None = None
    at_peak: dict[str, int] = field(default_factory=dict)
    temporaries: int | None = None
    exchanged: dict[str, int] | None = None


RELATED = {"residuals": "saved", "recomputed": "lines", "work": "lines", "peak": "at_peak"}
"""Rows that are locked with a fact."""


@dataclass(frozen=True, eq=False, repr=False)
class Contract(Report, schema="lock"):
    """What is locked of a gradient: bounds for its figures, and what it consists of. See `jaxviz.lock`.

    >>> contract = jaxviz.lock(loss, params, x)
    >>> contract.portable.residuals, contract.portable.dtypes

    Args:
      name: of the contract, by default the function's.
      target: the function, as `module:function`; '' if it was locked from Python.
      args: its arguments, as written in a call.
      argnums: the arguments to differentiate with respect to, as on the command line.
      within_percent: how far a figure may exceed what is locked.
      jax: the version with which it was locked.
      portable: what follows from types.
      compiled: what holds of the compiled gradient, by backend, device and versions.
    """

    name: str
    target: str = ""
    args: str = ""
    argnums: str = "0"
    within_percent: int = 2
    jax: str = ""
    portable: PortableFacts = PortableFacts()
    compiled: dict[str, OnBackend] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """contract of `loss`: residuals 18.3 GiB, …: at most 2% more."""
        locked = {name: n for name, n in _fields(self.portable).items() if name in UNITS and n is not None}
        has = ", ".join(f"{name} {amount(n, UNITS[name])}" for name, n in locked.items()) or "no figures"
        on = f", and on {listed(map(repr, self.compiled))}" if self.compiled else ""
        return f"contract of `{self.name}`: {has}{on}; at most {self.within_percent}% more"

    def _parts(self) -> Iterator[Part]:
        facts = self.to_toml().partition("[portable]")[2].splitlines()
        rows = [line.split(" = ", 1) for line in facts if re.match(r"\w+ = .*[^\[]$", line)]
        yield Table(("fact", "locked"), rows, "<<", shown=None)

    def to_toml(self) -> str:
        """The text of its file: sorted, with one fact in a line, and at most 60 lines."""
        saved = SAVED_ROWS
        while len((text := _toml(self, saved)).splitlines()) > LONGEST and saved > LEAST_ROWS:
            saved -= 1
        return text

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes it to a file.

        Raises:
          OSError: it cannot be written.
          ValueError: it would be too long, since it has many backends.
        """
        text = self.to_toml()
        if len(text.splitlines()) > LONGEST:
            raise ValueError(
                f"{path} would have more than {LONGEST} lines; remove the compiled sections of versions that you no "
                f"longer use: it has {', '.join(map(repr, self.compiled))}"
            )
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return write_file(path, text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Contract:
        """Reads a file that `save` or `jaxviz lock` wrote.

        Raises:
          OSError: it cannot be read.
          ValueError: it is no contract, or has something else than a contract has.
        """
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise no_such_file(path, "jaxviz lock writes such files") from None
        except ValueError as error:  # not TOML, or not text
            raise ValueError(f"{path} is not TOML: {error}") from None
        if (number := data.pop("format", None)) != FORMAT:
            raise ValueError(f"{path} has the format {number}; this jaxviz reads contracts of format {FORMAT}")
        try:
            _refuse_others(data, cls)
            _refuse_others(data.get("portable", {}), PortableFacts, "portable.")
            for key, section in data.get("compiled", {}).items():
                _refuse_others(section, OnBackend, f"compiled.{key}.")
            contract: Contract = from_plain(cls, {**data, "name": Path(path).stem})
            return contract
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} is no contract: {error}") from None


def _refuse_others(data: Any, kind: type, inside: str = "") -> None:
    """A misspelt fact would not be checked."""
    for name in data.keys() - {f.name for f in fields(kind)}:
        raise TypeError(f"there is no fact {inside}{name}")


# --- from facts -------------------------------------------------------------------------------------------------------


def portable_facts(p: ProgramFacts) -> PortableFacts:
    """What is locked of the facts of a program."""
    dtypes, work_in = Counter[str](), Counter[str]()
    for r in p.saved:
        dtypes[dtype_of(r)] += r.nbytes
    for w in p.work or ():
        work_in.update(w.dtypes)
    work, effects = p.work, p.without_effect
    return PortableFacts(
        residuals=sum(r.nbytes for r in p.saved),
        saved=tuple(map(LockedSaved.of, largest_saved(p.saved, SAVED_ROWS))),
        dtypes=_by_key(dtypes),
        names=p.names,
        work=None if work is None else sum(w.forward + w.backward for w in work),
        work_in=None if work is None else _by_key(work_in),
        recomputed=None if work is None else sum(w.recomputed for w in work),
        lines=tuple(
            LockedWork(w.text, w.forward, w.backward, w.recomputed) for w in largest_work(work or (), WORK_ROWS)
        ),
        equations=p.equations,
        collectives=None if p.implied is None else sent_by_kind(p.implied),
        donated=_by_key(Counter(map(argument_of, p.donated))),
        dead=None if p.dead is None else _by_key(Counter(map(pattern, p.dead))),
        without_effect=None if effects is None else tuple(sorted(f"{n.rule}: {n.short}" for n in effects if n.rule)),
    )


def on_backend(facts: Facts) -> OnBackend:
    """What is locked of the facts of a compiled program."""
    memory, exchanged = facts.compiled.memory, facts.compiled.collectives
    if memory is None:
        return OnBackend()
    kinds = {str(kind): n for kind, n in memory.by_kind().items()}
    sent = None if exchanged is None else sent_by_kind(exchanged)
    return OnBackend(memory.peak_nbytes, _by_key(kinds), memory.temp_nbytes, sent)


def compiled_key(facts: Facts | None = None) -> str:
    """`cpu, cpu, JAX 0.10.2, jaxlib 0.10.2`: where facts were compiled, or would be in this process."""
    if facts is None:
        device = jax.devices()[0]
        return f"{device.platform}, {device.device_kind}, JAX {version('jax')}, jaxlib {version('jaxlib')}"
    c, e = facts.compiled, facts.environment
    return f"{c.backend}, {c.device}, JAX {e.jax}, jaxlib {e.jaxlib}"


def sent_by_kind(rows: Iterable[Collective]) -> dict[str, int]:
    """The bytes that each device sends, by kind and axes."""
    sent = Counter[str]()
    for c in rows:
        sent[exchange(c)] += c.total_sent_nbytes
    return _by_key(sent)


def exchange(c: Collective) -> str:
    """`all-gather over data`."""
    return f"{c.kind or 'exchange'} over {', '.join(c.axes) or f'{c.group_size} devices'}"


def dtype_of(row: SavedRow) -> str:
    """`bf16` for `32 × bf16[8,16]`."""
    return row.type.rpartition(" ")[2].partition("[")[0]


def argument_of(path: str) -> str:
    """`params` for `params['w']`."""
    match = re.match(r"\w+", path)
    return match[0] if match else path


def largest_saved(rows: Iterable[SavedRow], most: int) -> list[SavedRow]:
    """The rows with most bytes, and one with the sums of the others."""
    return _largest(rows, most, "label", lambda r: r.nbytes, type="")


def largest_work(rows: Iterable[LineWork], most: int) -> list[LineWork]:
    """The lines with most FLOPs, and one with the sums of the others."""
    return _largest((r for r in rows if r.forward or r.backward), most, "text", lambda r: r.forward + r.backward)


def _largest(rows: Iterable[Any], most: int, name: str, size: Callable[[Any], int], **blank: str) -> list[Any]:
    is_rest = lambda r: getattr(r, name) == OTHERS  # summed before
    ordered = sorted(rows, key=lambda r: (is_rest(r), -size(r), getattr(r, name)))
    n = min(most, sum(not is_rest(r) for r in ordered))
    first, rest = ordered[:n], ordered[n:]
    if not rest:
        return first
    numbers = (f.name for f in fields(rest[0]) if isinstance(getattr(rest[0], f.name), int))
    sums = {number: sum(getattr(r, number) for r in rest) for number in numbers}
    return [*first, replace(rest[0], location=None, **{name: OTHERS}, **sums, **blank)]


def _by_key(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))


# --- the file ---------------------------------------------------------------------------------------------------------

UNITS = {
    "residuals": "bytes", "work": "FLOPs", "recomputed": "FLOPs", "equations": "equations", "peak": "bytes",
    "temporaries": "bytes",
}  # fmt: skip
"""The units of figures."""


def _toml(contract: Contract, saved: int) -> str:
    rows = tuple(map(LockedSaved.of, largest_saved((r.row for r in contract.portable.saved), saved)))
    head = {"format": FORMAT, **_fields(contract)}
    name, portable, compiled = map(head.pop, ("name", "portable", "compiled"))
    lines = [
        f"# What `jaxviz check {name}` holds the gradient to: figures may exceed these by within_percent.",
        f"# After a change that is meant: jaxviz lock --accept '{name}.*'",
        *_lines(head), "", "[portable]", *_lines({**_fields(portable), "saved": rows}),
    ]  # fmt: skip
    for key, section in sorted(compiled.items()):
        lines += ["", f"[compiled.{_text(key)}]", *_lines(_fields(section))]
    return "".join(f"{line}\n" for line in lines)


def _fields(of: Any) -> dict[str, Any]:
    return {f.name: getattr(of, f.name) for f in fields(of)}


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    for name, value in sorted(facts.items()):
        if value is None or (value in ((), {}) and name in RELATED.values()):
            continue
        if isinstance(value, tuple) and value and is_dataclass(value[0]):
            yield f"{name} = ["
            yield from sorted(f"  {_text(_fields(row), in_order=False)}," for row in value)
            yield "]"
        else:
            more = f"  # {amount(value, UNITS[name])}" if UNITS.get(name) in ("bytes", "FLOPs") else ""
            yield f"{name} = {_text(value)}{more}"


def _text(value: Any, in_order: bool = True) -> str:
    """A value in TOML, whose strings may be written as those of JSON."""
    if isinstance(value, dict):
        pairs = sorted(value.items()) if in_order else value.items()
        return "{" + ", ".join(f"{k if _BARE.fullmatch(k) else _text(k)} = {_text(x)}" for k, x in pairs) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


_BARE = re.compile(r"[\w-]+", re.ASCII)
