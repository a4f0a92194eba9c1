"""Records: what the values and the cotangents of a run were, in a few numbers each, to be kept and compared."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.analysis.addressed import AddressedValue, addressed_values, gradient_left_out, takes_gradient
from jaxviz.analysis.addresses import Address, address
from jaxviz.analysis.written import address_of
from jaxviz.features.values.summaries import BAD, MAX, NORM, SKETCH, WIDTH, columns, finished, moved
from jaxviz.features.values.tapped import Finder, Taps, number_of, returns_number, run_with_taps
from jaxviz.higher_order import bodies, is_scan, of
from jaxviz.higher_order.observing import Path as Around
from jaxviz.higher_order.observing import observed_inside, walk_observed
from jaxviz.higher_order.shard_map import axes_of_devices
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.syntax import Program
from jaxviz.ir.usage import check_values
from jaxviz.report.report import Report, Table
from jaxviz.report.tables import counted, short_location

RECORDS = ".jaxviz"
"""The end of the names of their files."""
FORMAT = 1
"""The version of the files."""
Phase = str
Order = tuple[Any, ...]
Neighbour = tuple[Order, int]
ITERATION, REVERSED, OTHER = "+", "-", "·"
"""What stands in an order for the number of an iteration, of one of a scan that runs in reverse, or for an axis of
devices."""


@dataclass(frozen=True, eq=False)
class RecordedValue:
    """A value of a run, or its cotangent.

    Args:
      address: what means it.
      texts: that mean it, and which of how many; see `Evidence`.
      operation: the primitive that computes it.
      phase: 'forward' or 'cotangent'.
      expression, line: what computes it, and where.
      type: of one array of it.
      order: where it is in the run: the numbers of equations from the outermost program inwards, with a sign for each
        loop in place of the iteration.
      loops: the lines of the loops around it, outermost first.
      neighbours: the orders of the values that it is computed from, each with how many iterations before; of a
        cotangent, of those whose cotangents it is computed from.
      summaries: float32[..., 23]: of each array, see `finished`, with an axis for each sign in `order`.
      noise: float32[...]: the norm of what rounding may change of each.
    """

    address: str
    texts: tuple[str, ...]
    operation: str
    phase: Phase
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
        return math.prod(int(n) for n in re.findall(r"\d+", self.type.partition("[")[2]))

    @property
    def n(self) -> int:
        """How many arrays it was."""
        return int(np.prod(self.summaries.shape[:-1], dtype=int))

    def events(self) -> Iterator[Occurrence]:
        """Its arrays in the order of axes."""
        lengths = self.summaries.shape[:-1]
        for i, index in enumerate(np.ndindex(*lengths)):
            signs, key = iter(zip(index, lengths, strict=True)), []
            for part in self.order:
                if not isinstance(part, str):
                    key.append(part)
                    continue
                at, length = next(signs)
                key.append(length - 1 - at if part == REVERSED else at if part == ITERATION else 0)
            yield Occurrence(self, index, i, (*key, math.inf))  # after what is inside of the equation


@dataclass(frozen=True, eq=False, slots=True)
class Occurrence:
    """One array of a run.

    Args:
      value: what it is one of.
      index: its iterations, and devices.
      number: its number among the value's.
      key: orders the arrays of the forward pass as they were computed.
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
        signs = [part for part in self.value.order if isinstance(part, str)]
        return tuple(n for n, sign in zip(self.value.noise.shape, signs, strict=True) if sign != OTHER)

    @property
    def noise(self) -> float:
        return float(self.value.noise[self.index])

    @property
    def summary(self) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self.value.summaries[self.index]
        return found

    @property
    def names(self) -> Iterator[str]:
        """What means this array alone: `h @ w #3/12`, be it the third of twelve in Python or iteration 2 of a scan."""
        for text in self.value.texts:
            body, _, which = text.rpartition("#")
            first, _, total = which.partition("/")
            start, step = 1, 1
            if first != "*":
                start, *_, step = map(int, f"{first}:1".split(":")[:3] if ":" in first else (first, "1"))
            yield f"{body}#{start + self.number * step}/{total}"


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
      takes_gradient: whether the function takes a gradient itself, of which nothing is recorded.
    """

    function: str
    values: tuple[RecordedValue, ...]
    environment: dict[str, str]
    takes_gradient: bool = False

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
        """All arrays in the order in which they were computed: of the forward pass, then of the backward pass, which
        goes the same way back."""
        forward = sorted((e for v in self.values if v.phase == "forward" for e in v.events()), key=lambda e: e.key)
        backward = sorted((e for v in self.values if v.phase != "forward" for e in v.events()), key=lambda e: e.key)
        return (*forward, *reversed(backward))

    @property
    def summary(self) -> str:
        cotangents = sum(v.phase != "forward" for v in self.values)
        also = f" and {counted(cotangents, 'cotangent')}" if cotangents else ""
        values = counted(self.n_values - cotangents, "value")
        return f"record of `{self.function}`: {values}{also}, {counted(self.n_arrays, 'array')} in all"

    def _parts(self) -> list[Any]:
        rows = []
        for v in self.values:
            flat = v.summaries.reshape(-1, WIDTH)
            bad = int(flat[:, BAD].sum())
            largest = f"{flat[:, MAX].max(initial=0):.4g}"
            norm = f"{flat[0, NORM]:.4g}" if len(flat) == 1 else f"{flat[0, NORM]:.4g} … {flat[-1, NORM]:.4g}"
            rows.append((v.address, v.phase, v.line, v.type, str(v.n), norm, largest, str(bad or "")))
        heads = ("address", "of", "line", "type", "arrays", "norm", "largest", "not finite")
        return [*([self.note] if self.note else []), Table(heads, rows, "<<<<>>>>")]

    @property
    def note(self) -> str:
        """That a gradient is left out, if one is."""
        return gradient_left_out(self.function) if self.takes_gradient else ""

    def save(self, path: Any) -> Path:
        """Writes it to a file, of compressed JSON lines; no array, no argument and no source but expressions."""
        file_path = Path(path)
        head = {"format": FORMAT, "function": self.function, "environment": self.environment}
        head["takes_gradient"] = self.takes_gradient
        with gzip.open(file_path, "wt", encoding="utf-8") as file:
            for line in (head, *map(_written, self.values)):
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        return file_path

    @staticmethod
    def load(path: Any) -> RunRecord:
        """
        Raises:
          ValueError: it is no record, or one of a newer version.
        """
        try:
            with gzip.open(Path(path), "rt", encoding="utf-8") as file:
                head, *lines = map(json.loads, file)
                is_known = head["format"] == FORMAT
        except (gzip.BadGzipFile, json.JSONDecodeError, KeyError, ValueError, TypeError) as error:
            raise ValueError(f"{path} is not a record of jaxviz: {error}") from None
        if not is_known:
            raise ValueError(f"{path} is a record of version {head['format']}, and this jaxviz reads {FORMAT}")
        return RunRecord(head["function"], tuple(map(_read, lines)), head["environment"], head["takes_gradient"])


def _written(v: RecordedValue) -> dict[str, Any]:
    data: dict[str, Any] = {name: getattr(v, name) for name in _PLAIN}
    data |= {"neighbours": v.neighbours, "shape": v.noise.shape}
    return data | {"summaries": _encoded(v.summaries), "noise": _encoded(v.noise)}


_PLAIN = ("address", "texts", "operation", "phase", "expression", "line", "type", "order", "loops")


def _encoded(x: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(np.asarray(x, np.float32).tobytes()).decode()


def _read(line: dict[str, Any]) -> RecordedValue:
    shape = tuple(line["shape"])
    decoded = lambda name: np.frombuffer(base64.b64decode(line[name]), np.float32)
    plain: dict[str, Any] = {name: tuple(x) if isinstance(x := line[name], list) else x for name in _PLAIN}
    return RecordedValue(
        neighbours=tuple((tuple(order), steps) for order, steps in line["neighbours"]),
        summaries=decoded("summaries").reshape(*shape, WIDTH),
        noise=decoded("noise").reshape(shape),
        **plain,
    )


# --- recording --------------------------------------------------------------------------------------------------------


def _orders(program: Program, values: Sequence[AddressedValue]) -> list[Order]:
    """Where each value is in a run; see `RecordedValue`."""
    number = {e: i for _, nested in walk_observed(program) for i, e in enumerate(nested.equations)}
    orders = []
    for v in values:
        order: list[Any] = []
        for e, devices in zip(v.path, axes_of_devices(v.path, v.aval), strict=True):
            order.append(number[e])
            if is_scan(e):
                order.append(REVERSED if e.params.get("reverse") else ITERATION)
            elif devices:
                order.append(OTHER)
        orders.append((*order, number[v.equation]))
    return orders


Behind = dict[Any, dict[Neighbour, None]]
"""For each variable the nearest values that it is computed from."""


def _neighbours(
    program: Program, values: Sequence[AddressedValue], orders: Sequence[Order]
) -> tuple[list[tuple[Neighbour, ...]], list[tuple[Neighbour, ...]]]:
    """For each value the nearest that it is computed from, and the nearest that are computed from it."""
    order_of = {v.place: order for v, order in zip(values, orders, strict=True)}
    read: dict[Order, dict[Neighbour, None]] = {}

    def inside(path: Around, nested: Program, behind: Behind) -> None:
        for e in nested.equations:
            operands = {o: None for a in e.invars for o in behind.get(a, ())}
            through = [dict(operands) for _ in e.outvars]
            for body in bodies(e) if observed_inside(e) else ():
                if body.has_results:
                    of_results = called((*path, e), body.program, [behind.get(e.invars[i], {}) for i in body.operands])
                    for result, found in zip(through, of_results, strict=False):
                        result.update(found)
            for v, found in zip(e.outvars, through, strict=True):
                own = order_of.get((path, v))
                behind[v] = found if own is None else {(own, 0): None}
                if own is not None:
                    read.setdefault(own, {}).update(found)

    def called(path: Around, nested: Program, given: Sequence[dict[Neighbour, None]]) -> list[dict[Neighbour, None]]:
        """What the results of a nested program are computed from."""
        behind: Behind = dict(zip(nested.invars, given, strict=True))
        n_before, n_carry = of(path[-1]).carry(path[-1].operation)
        for _ in range(2 if n_carry else 1):  # what a carry is computed from is known after a first time
            for v, after in zip(nested.invars[n_before : n_before + n_carry], nested.outvars, strict=False):
                behind[v] = {**behind[v], **{(order, 1): None for order, n in behind.get(after, ()) if not n}}
            inside(path, nested, behind)
        return [behind.get(a, {}) for a in nested.outvars]

    inside((), program, {})
    readers: dict[Order, dict[Neighbour, None]] = {}
    for reader, operands in read.items():
        for operand, steps in operands:
            readers.setdefault(operand, {})[reader, -steps] = None
    return [tuple(read.get(o, ())) for o in orders], [tuple(readers.get(o, ())) for o in orders]


SEEDS = (1, 2)
"""Of the runs with other last digits in the arguments, which tell what rounding may change."""


def recorded(
    finder: Finder, args: tuple[Any, ...], kwargs: dict[str, Any], cotangents: bool | None, has_aux: bool,
    at: Sequence[Address] = (), compiled: bool = True,
) -> RunRecord:  # fmt: skip
    """A record of one call; `compiled` says whether it runs as one program, or operation by operation."""
    check_values("record", (args, kwargs))
    found = finder(args, kwargs)
    program = found.program
    values = [v for m in found.meant.values() for v in m.values] if at else list(addressed_values(program))
    values = list({v.place: v for v in values}.values())
    taps = Taps([v.place for v in values], columns)
    if cotangents is None:
        cotangents = returns_number(found, has_aux)
    number = number_of(found, has_aux, "record with cotangents=True") if cotangents else None

    def run(*inputs: Any) -> Any:
        ran = run_with_taps(program, inputs, taps, number)
        return [ran.values[v.place] for v in values], [ran.cotangents.get(v.place) for v in values]

    inputs = jax.tree.leaves((args, kwargs))
    call = jax.jit(run) if compiled else run
    changed = ([moved(x, seed) for x in inputs] for seed in SEEDS)
    itself, *others = (jax.device_get(call(*given)) for given in (inputs, *changed))
    orders = _orders(program, values)
    read = _neighbours(program, values, orders)
    written = {v: _named(address_of(program, v)) for v in values}
    rows: list[RecordedValue] = []
    for i, phase in enumerate(("forward", "cotangent")):
        for j, (v, order) in enumerate(zip(values, orders, strict=True)):
            if itself[i][j] is None:
                continue
            size = math.prod(v.aval.shape) * (2 if jnp.issubdtype(v.aval.dtype, jnp.complexfloating) else 1)
            summaries, *moves = (finished(ran[i][j], size) for ran in (itself, *others))
            noise = np.sqrt(np.mean([squares(m[..., SKETCH], summaries[..., SKETCH]) for m in moves], 0))
            kind, loops = v.aval.str_short(short_dtypes=True), tuple(short_location(e.location) for e in v.loops)
            address, texts = written[v]
            rows.append(
                RecordedValue(
                    address,
                    texts,
                    v.equation.primitive.name,
                    phase,
                    v.name,
                    v.line,
                    kind,
                    order,
                    loops,
                    read[i][j],
                    summaries,
                    noise,
                )
            )
    return RunRecord(program.name, tuple(rows), _environment(), takes_gradient(program))


def _named(a: Address) -> tuple[str, tuple[str, ...]]:
    """The text of an address, and those of its evidence that people read."""
    texts = a.written.texts if a.written is not None else ()
    return a.text, tuple(t for t in texts if not t.startswith("form "))


def squares(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The squared distance of projections; infinite where a sum has overflowed."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart: np.ndarray[Any, Any] = np.nan_to_num(np.sum((a.astype(float) - b) ** 2, -1), nan=np.inf)
    return apart


def _environment() -> dict[str, str]:
    return {"jax": compat.JAX, "platform": jax.default_backend(), "x64": str(jax.config.jax_enable_x64)}


@api_boundary
def record(
    fun: Callable[..., Any], *args: Any, cotangents: bool | None = None, has_aux: bool = False, at: Sequence[Any] = (),
    **kwargs: Any,
) -> RunRecord:  # fmt: skip
    """Runs a function, and for a loss its gradient, and keeps what its values were, in 23 numbers each.

    >>> before = jaxviz.record(loss, params, x)
    >>> before.save("before.jaxviz")
    >>> print(jaxviz.divergence("before.jaxviz", jaxviz.record(faster_loss, params, x)))

    For each value that has an address, for its cotangent and for each iteration: the norm, the largest magnitude, the
    mean, how many elements are zero and how many not finite, a hash, and a random projection to 16 numbers, which tells
    how far two arrays are apart. `divergence` compares two records, also of other processes, machines and versions;
    `growth` reads the norms.

    Args:
      fun: takes and returns arrays, or pytrees of them.
      *args, **kwargs: its arguments.
      cotangents: whether to record cotangents too; by default if `fun` returns one number.
      has_aux: whether it returns a pair, whose first part is that number.
      at: the addresses of what to record; by default every value that has one.

    Returns:
      a `RunRecord`: `str()` lists the values, `save(path)` writes it.

    Raises:
      TypeError: `cotangents` are asked for, and the function returns something else than one number.
      AddressError: an address means nothing, or several values.
    """
    addresses = [address(a) for a in at]
    return recorded(Finder(fun, addresses), args, kwargs, cotangents, has_aux, addresses)
