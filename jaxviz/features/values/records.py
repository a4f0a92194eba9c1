"""Records: what the values and the cotangents of a run were, in a few numbers each, to be kept and compared."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from jaxviz.features.values.summaries import BAD, MAX, N_SKETCH, NORM, WIDTH
from jaxviz.report.files import no_such_file
from jaxviz.report.report import Report, Table
from jaxviz.report.tables import counted

RECORDS = ".jaxviz"
"""The end of the names of their files."""
FORMAT = 6
"""The version of the files."""
_WRITTEN_BY = "jaxviz.record(f, *args).save(path) writes such files, and so does jaxviz divergence ... --save path"
Phase = str
Order = tuple[Any, ...]
Neighbour = tuple[Order, int]
RESULT, GRADIENT = "result", "gradient"
ITERATION, REVERSED, OTHER = "+", "-", "·"
"""What stands in an order for the number of an iteration, of one of a scan that runs in reverse, or for an axis of
devices."""


@dataclass(frozen=True, eq=False)
class RecordedValue:
    """A value of a run, or its cotangent; or what the function returns, or its gradient in an argument, which are no
    values of their own.

    Args:
      address: what means it; of a result the value that it is, or is computed from, '' if that is not one.
      texts: that mean it, and which of how many; see `Evidence`.
      operation: the primitive that computes it; of a result and of the gradient which it is, in words.
      phase: 'forward', 'cotangent', 'step' for what a training step computes besides its gradient, 'result' or
        'gradient'.
      around: how many parts of its order are of the training step that takes the gradient.
      expression, line: what computes it, and where.
      type: of one array of it.
      order: where it is in the run: the numbers of equations from the outermost program inwards, with a sign for each
        loop in place of the iteration.
      loops: the lines of the loops around it, outermost first.
      neighbours: the orders of the values that it is computed from, each with how many iterations before; of a
        cotangent, of those whose cotangents it is computed from.
      summaries: float32[..., 23]: of each array, see `finished`, with an axis for each sign in `order`.
      noise: float32[..., n]: the norm of what rounding may change of each, first that of arguments in their own types,
        then if the program computes in a coarser one, that of arguments in this.
    """

    address: str
    texts: tuple[str, ...]
    operation: str
    phase: Phase
    around: int
    expression: str
    line: str
    type: str
    order: Order
    loops: tuple[str, ...]
    neighbours: tuple[Neighbour, ...]
    summaries: np.ndarray[Any, Any]
    noise: np.ndarray[Any, Any]

    @property
    def size(self) -> int:
        """The number of elements of one array."""
        return _size(self.type)

    @property
    def is_real(self) -> bool:
        """Whether it is of numbers that are rounded."""
        return last_place_of(self.type) > 0

    @property
    def n(self) -> int:
        """How many arrays it was."""
        return math.prod(self.summaries.shape[:-1])

    @property
    def n_outer(self) -> int:
        """How many axes of `summaries` are those of loops of the step around a function that it differentiates."""
        return 0 if self.phase == "step" else sum(isinstance(part, str) for part in self.order[: self.around])

    @cached_property
    def numbered(self) -> list[tuple[str, int, int, str]]:
        """Each of the texts without numbers; which of how many the first array is, and how far the next is."""
        found = []
        for text in self.texts:
            body, _, which = text.rpartition("#")
            first, _, total = which.partition("/")
            start, step = 1, 1
            if first != "*":
                start, *_, step = map(int, f"{first}:1".split(":")[:3] if ":" in first else (first, "1"))
            found.append((body, start, step, total))
        return found

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The trip counts of the loops around it, outermost first."""
        return tuple(n for n, sign in self._axes if sign != OTHER)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """The numbers of devices of the `shard_map`s around it, each of which has its own part."""
        return tuple(n for n, sign in self._axes if sign == OTHER)

    @property
    def _axes(self) -> Iterator[tuple[int, str]]:
        return zip(self.summaries.shape, (part for part in self.order if isinstance(part, str)), strict=False)

    @cached_property
    def n_inner(self) -> int:
        """How many of them are in one run of that function."""
        return math.prod(self.summaries.shape[self.n_outer : -1])

    def events(self) -> Iterator[Occurrence]:
        """Its arrays in the order of axes."""
        lengths = self.summaries.shape[:-1]
        for i, index in enumerate(np.ndindex(*lengths)):
            signs, key = iter(zip(index, lengths, strict=True)), list[float]()
            for part in self.order:
                if not isinstance(part, str):
                    key.append(part)
                    continue
                at, length = next(signs)
                key.append(length - 1 - at if part == REVERSED else at if part == ITERATION else 0)
            key.append(math.inf)  # after what is inside of the equation
            if self.phase in ("cotangent", GRADIENT):  # the same way back, after the forward pass
                key[self.around :] = [math.inf, *(-k for k in key[self.around :])]
            yield Occurrence(self, index, i, tuple(key))


@dataclass(frozen=True, eq=False, slots=True)
class Occurrence:
    """One array of a run.

    Args:
      value: what it is one of.
      index: its iterations, and devices.
      number: its number among the value's.
      key: orders the arrays as they were computed.
    """

    value: RecordedValue
    index: tuple[int, ...]
    number: int
    key: tuple[float, ...]

    @property
    def iterations(self) -> tuple[int, ...]:
        """Of the loops around it, outermost first."""
        signs = [part for part in self.value.order if isinstance(part, str)]
        return tuple(i for i, sign in zip(self.index, signs, strict=True) if sign != OTHER)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The trip counts of these loops."""
        return self.value.lengths

    @property
    def noise(self) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self.value.noise[self.index]
        return found

    @property
    def summary(self) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self.value.summaries[self.index]
        return found

    @property
    def names(self) -> list[str]:
        """What means this array alone: `h @ w #3/12`, be it the third of twelve in Python or iteration 2 of a scan."""
        number = self.number % self.value.n_inner
        return [f"{body}#{start + number * step}/{total}" for body, start, step, total in self.value.numbered]


@dataclass(frozen=True, eq=False)
class RecordedArgument:
    """An array that a call was given.

    Args:
      name: such as `params['w']`.
      number: which of how many it is.
      type: of it.
      is_carried: whether an earlier call of the same `Recorder` returned it.
      summary: float32[23], as of a value; of an array of at most 16 elements, which could be read from it, only what
        tells whether it is the same.
    """

    name: str
    number: tuple[int, int]
    type: str
    is_carried: bool
    summary: np.ndarray[Any, Any]

    @property
    def size(self) -> int:
        """The number of its elements."""
        return _size(self.type)

    @property
    def is_read(self) -> bool:
        """Whether the summary tells how far it is from another."""
        return self.size > N_SKETCH


@dataclass(frozen=True, eq=False, repr=False)
class RunRecord(Report, schema="record"):
    """What the values of a run were; see `record`.

    >>> a = jaxviz.record(loss, params, x)
    >>> a.save("a.jaxviz")
    >>> jaxviz.RunRecord.load("a.jaxviz").function

    Args:
      function: the name of the function.
      values: its values and their cotangents.
      environment: the version of JAX, the platform, and what else may change values.
      note: what was not recorded; '' if that is nothing.
      number: of the call in a `Recorder`, from 0.
      arguments: what it was given.
      last_place: of the coarsest type that it computes in.
      results: what the function returned, flat.
      gradient: that of the loss in each array of the differentiated arguments.
    """

    function: str
    values: tuple[RecordedValue, ...]
    environment: dict[str, str]
    note: str = ""
    number: int = 0
    arguments: tuple[RecordedArgument, ...] = ()
    last_place: float = 0.0
    results: tuple[RecordedValue, ...] = ()
    gradient: tuple[RecordedValue, ...] = ()

    _data = ("function", "environment", "n_values", "n_arrays", "nbytes")

    @property
    def n_values(self) -> int:
        return len(self.values)

    @property
    def n_arrays(self) -> int:
        """How many arrays there were: a value in a loop is one for each iteration."""
        return sum(v.n for v in self.values)

    @property
    def nbytes(self) -> int:
        """The bytes of the summaries, from which nothing of the arrays can be restored."""
        return sum(v.summaries.nbytes for v in self.values)

    @cached_property
    def events(self) -> tuple[Occurrence, ...]:
        """All arrays in the order in which they were computed; a backward pass goes the same way back."""
        return tuple(sorted((o for v in self.values for o in v.events()), key=lambda o: o.key))

    @property
    def summary(self) -> str:
        cotangents = sum(v.phase == "cotangent" for v in self.values)
        also = f" and {counted(cotangents, 'cotangent')}" if cotangents else ""
        values = counted(self.n_values - cotangents, "value")
        return f"record of `{self.function}`: {values}{also}, {counted(self.n_arrays, 'array')} in all"

    def _parts(self) -> list[Any]:
        rows = []
        for v in self.values:
            flat = v.summaries.reshape(-1, WIDTH)
            bad = int(flat[:, BAD].sum())
            largest = f"{flat[:, MAX].max(initial=0):.4g}"
            norm = " … ".join([f"{x:.4g}" for x in flat[:: max(1, len(flat) - 1), NORM]])
            rows.append((v.address, v.phase, v.line, v.type, str(v.n), norm, largest, str(bad or "")))
        heads = ("address", "of", "line", "type", "arrays", "norm", "largest", "not finite")
        return [*([self.note] if self.note else []), Table(heads, rows, "<<<<>>>>")]

    def save(self, path: Any) -> Path:
        """Writes it to a file, of compressed JSON lines; no array, no argument and no source but expressions."""
        return self.written_to(Path(path), "wt")

    def written_to(self, path: Path, mode: Literal["wt", "at"]) -> Path:
        """Writes it, as a whole, to a file: over what is there ("wt") or after it ("at")."""
        head = {"format": FORMAT, "function": self.function, "environment": self.environment}
        head |= {"note": self.note, "number": self.number, "last_place": self.last_place}
        head |= {"n_values": self.n_values, "n_results": len(self.results), "n_gradient": len(self.gradient)}
        head["arguments"] = [{**vars(a), "summary": _encoded(a.summary)} for a in self.arguments]
        with gzip.open(path, mode, encoding="utf-8") as file:
            for line in (head, *map(_written, (*self.values, *self.results, *self.gradient))):
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        return path

    @staticmethod
    def load(path: Any) -> RunRecord:
        """
        Raises:
          ValueError: it is no record, one of another version of jaxviz, or one of several calls.
        """
        first, *others = load_records(path)
        if others:
            raise ValueError(f"{path} has records of {len(others) + 1} calls; `divergence` compares all of them")
        return first


def load_records(path: Any) -> list[RunRecord]:
    """The records in a file, of one call or of several; one that was not written to its end is left out.

    Raises:
      OSError: it cannot be read.
      ValueError: there is no record in it, or one of another version.
    """
    records: list[RunRecord] = []
    version = FORMAT
    try:
        # The end is missing if its process was stopped.
        with gzip.open(Path(path), "rt", encoding="utf-8") as file, contextlib.suppress(EOFError):
            for head in map(json.loads, file):
                version = head["format"]
                if version != FORMAT:
                    break
                values, *returned = (
                    tuple([_read(json.loads(next(file))) for _ in range(head[n])])
                    for n in ("n_values", "n_results", "n_gradient")
                )
                arguments = tuple(map(_read_argument, head["arguments"]))
                of_call = head["environment"], head["note"], head["number"], arguments, head["last_place"], *returned
                records.append(RunRecord(head["function"], values, *of_call))
    except FileNotFoundError:
        raise no_such_file(path, _WRITTEN_BY) from None
    except (gzip.BadGzipFile, zlib.error, KeyError, ValueError, TypeError, StopIteration) as error:
        raise ValueError(f"{path} is not a record of jaxviz: {error}") from None
    if version != FORMAT:
        raise ValueError(f"{path} is a record of version {version}, and this jaxviz reads {FORMAT}")
    if not records:
        raise ValueError(f"{path} has no record that was written to its end")
    return records


@lru_cache(maxsize=4096)
def _size(kind: str) -> int:
    """The number of elements of a type such as `f32[4,3]`."""
    return math.prod(int(n) for n in re.findall(r"\d+", kind.partition("[")[2]))


def _written(v: RecordedValue) -> dict[str, Any]:
    data: dict[str, Any] = {name: getattr(v, name) for name in _PLAIN}
    data |= {"neighbours": v.neighbours, "shape": v.noise.shape}
    return data | {"summaries": _encoded(v.summaries), "noise": _encoded(v.noise)}


_PLAIN = ("address", "texts", "operation", "phase", "around", "expression", "line", "type", "order", "loops")


def _encoded(x: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(np.asarray(x, np.float32).tobytes()).decode()


def _decoded(text: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(text), np.float32)


def _read_argument(given: dict[str, Any]) -> RecordedArgument:
    return RecordedArgument(**{**given, "number": tuple(given["number"]), "summary": _decoded(given["summary"])})


def _read(line: dict[str, Any]) -> RecordedValue:
    shape = tuple(line["shape"])
    plain: dict[str, Any] = {name: tuple(x) if isinstance(x := line[name], list) else x for name in _PLAIN}
    return RecordedValue(
        neighbours=tuple((tuple(order), steps) for order, steps in line["neighbours"]),
        summaries=_decoded(line["summaries"]).reshape(*shape[:-1], WIDTH),
        noise=_decoded(line["noise"]).reshape(shape),
        **plain,
    )


@lru_cache(maxsize=4096)
def last_place_of(kind: str) -> float:
    """The last place of a type such as `f32[4,3]`; summaries are of float32, whatever is wider."""
    name = kind.partition("[")[0]
    coarse = {"bf16": jnp.bfloat16, "f16": jnp.float16}.get(name, jnp.float32)
    return float(jnp.finfo(coarse).eps) if name[:1] in ("b", "f", "c") and name != "bool" else 0.0
