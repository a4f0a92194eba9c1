"""`capture`: a function that also returns values of its inside."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxviz.analysis.addressed import AddressedValue
from jaxviz.analysis.addresses import Address, AddressError, Meant, address, written_for
from jaxviz.analysis.returned import WrittenValue
from jaxviz.features.values.tapped import (
    Finder,
    Found,
    Taps,
    axis_of_iterations,
    is_differentiable,
    number_of,
    run_with_taps,
    with_taps,
)
from jaxviz.higher_order import is_scan, of
from jaxviz.higher_order.observing import Place
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.report.report import Report, Table
from jaxviz.report.tables import format_bytes

Reduce = Callable[[Any], Any]


@jax.tree_util.register_pytree_with_keys_class
class Captured(Mapping[str, Any]):
    """Captured values by their addresses: an array; for an address of several values a tuple of them.

    >>> value, seen = jaxviz.capture(loss, "h", cotangents=True)(params, x)
    >>> seen["h"], seen.cotangents["h"]

    It is a pytree, and so may leave `jax.jit`, `jax.vmap` or, as the auxiliary result, `jax.grad`.
    """

    def __init__(self, values: Mapping[str, Any], cotangents: Captured | None = None):
        self._values = dict(values)
        self._cotangents = cotangents

    @property
    def cotangents(self) -> Captured:
        """The cotangents of the captured values, by the same addresses.

        Raises:
          AttributeError: they were not asked for.
        """
        if self._cotangents is None:
            raise AttributeError("there are no cotangents: write capture(…, cotangents=True)")
        return self._cotangents

    def __getitem__(self, key: Any) -> Any:
        text = str(address(key))
        if text not in self._values:
            raise KeyError(f"{text!r} was not captured; there are {', '.join(map(repr, self._values))}")
        return self._values[text]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        shown = {k: jax.tree.map(lambda x: jax.typeof(x).str_short(short_dtypes=True), v) for k, v in self.items()}
        return f"Captured({shown})"

    def tree_flatten_with_keys(self) -> Any:
        children = [(jax.tree_util.DictKey(k), v) for k, v in self._values.items()]
        return [*children, (jax.tree_util.GetAttrKey("cotangents"), self._cotangents)], tuple(self._values)

    @classmethod
    def tree_unflatten(cls, keys: Any, children: Any) -> Captured:
        *values, cotangents = children
        return cls(dict(zip(keys, values, strict=True)), cotangents)


@dataclass(frozen=True)
class CapturedValue:
    """One value that a capture returns.

    Args:
      address: by which it was asked for.
      expression: what computes it, or the call that returns it; of several on one line with the module or function
        before it, or else with which of how many behind it.
      line: where.
      type: of the array that is returned, with an axis for each scan and for the devices of a `shard_map`.
      nbytes: of that array.
    """

    address: str
    expression: str
    line: str
    type: str
    nbytes: int


@dataclass(frozen=True, repr=False)
class CaptureReport(Report, schema="capture.where"):
    """What a capture returns, before it runs.

    Args:
      function: the name of the function.
      values: what is returned beside the function's result.
    """

    function: str
    values: tuple[CapturedValue, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of all values, without cotangents."""
        return sum(v.nbytes for v in self.values)

    @property
    def summary(self) -> str:
        n = len(self.values)
        return f"`{self.function}` with {n} captured value{'s'[: n != 1]}: {format_bytes(self.nbytes)}"

    def _parts(self) -> list[Any]:
        rows = [(v.address, v.expression, v.line, v.type, format_bytes(v.nbytes)) for v in self.values]
        return [Table(("address", "expression", "line", "returned", "bytes"), rows, "<<<<>")] if rows else []


class Capture:
    """A function that also returns values of its inside; made by `capture`."""

    def __init__(
        self, fun: Callable[..., Any], addresses: Sequence[Address], cotangents: bool, has_aux: bool,
        reduce: Reduce | None, barrier: bool,
    ):  # fmt: skip
        functools.update_wrapper(self, fun)
        self._fun, self._finder = fun, Finder(fun, addresses)
        self._cotangents, self._has_aux, self._reduce, self._barrier = cotangents, has_aux, reduce, barrier

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Captured]:
        if not self._finder.addresses:
            return self._fun(*args, **kwargs), Captured({}, Captured({}) if self._cotangents else None)
        found = self._found(args, kwargs)
        inputs = found.inputs(args, kwargs)
        takes = self._cotangents or any(a.phase == "cotangent" for a in found.meant)
        number = number_of(found, self._has_aux, "capture with cotangents=True") if takes else None
        ran = run_with_taps(found.program, inputs, self._taps(found), number)
        cotangents = Captured(_by_address(found, ran.cotangents, ran.cotangents)) if self._cotangents else None
        seen = Captured(_by_address(found, ran.values, ran.cotangents), cotangents)
        return found.result(ran.results), seen

    @api_boundary
    def where(self, *args: Any, **kwargs: Any) -> CaptureReport:
        """What a call with these arguments captures: expressions, lines, types and bytes.

        Nothing is computed, and the arguments may be `jax.ShapeDtypeStruct`s.
        """
        found = self._found(args, kwargs)
        program, places = with_taps(found.program, self._taps(found))
        avals = dict(zip(places, program.out_avals[len(found.program.outvars) :], strict=True))
        rows = []
        for a, m in found.meant.items():
            ways = [written_for(a, v) for v in m.values]
            for v, w, name in zip(m.values, ways, _told_apart(ways), strict=True):
                aval = avals[v.place]
                if m.iteration is not None:
                    aval = compat.aval_of(jax.eval_shape(functools.partial(_iteration, m, v), aval))
                rows.append(CapturedValue(str(a), name, w.line, aval.str_short(short_dtypes=True), _nbytes(aval)))
        return CaptureReport(found.program.name, tuple(rows))

    def nbytes(self, *args: Any, **kwargs: Any) -> int:
        """The bytes of the values that a call with these arguments captures; their cotangents take as many again."""
        return self.where(*args, **kwargs).nbytes

    def __repr__(self) -> str:
        return f"capture({self._finder})"

    def _found(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Found:
        found = self._finder(args, kwargs)
        for a, meant in found.meant.items():
            _check_phase(a, meant)
        return found

    def _taps(self, found: Found) -> Taps:
        return Taps(
            frozenset(v.place for meant in found.meant.values() for v in meant.values),
            self._reduce,
            barrier=self._barrier,
        )


def _told_apart(ways: Sequence[WrittenValue]) -> list[str]:
    """What computes values: of those that are the same on one line with the module or function, if that differs, or
    else with which of how many."""
    inside: dict[tuple[str, str], set[str]] = {}
    for w in ways:
        inside.setdefault((w.name, w.line), set()).add(w.module or w.container)
    names = [f"{w.module or w.container} › {w.name}" if len(inside[w.name, w.line]) > 1 else w.name for w in ways]
    alike = [(name, w.line) for name, w in zip(names, ways, strict=True)]
    times, so_far = Counter(alike), Counter[tuple[str, str]]()
    for i, key in enumerate(alike):
        so_far[key] += 1
        if times[key] > 1:
            names[i] += f" #{so_far[key]} of {times[key]}"
    return names


def _by_address(found: Found, values: Mapping[Place, Any], cotangents: Mapping[Place, Any]) -> dict[str, Any]:
    """What addresses mean: values, which those that a checkpoint recomputes equal, or cotangents."""
    by_address: dict[str, Any] = {}
    for a, meant in found.meant.items():
        arrays = cotangents if a.phase == "cotangent" else values
        there = tuple(_iteration(meant, v, arrays[v.place]) for v in meant.values if v.place in arrays)
        if len(meant.values) == 1 and there:
            by_address[str(a)] = there[0]
        elif there:
            by_address[str(a)] = there
    return by_address


def _check_phase(a: Address, meant: Meant) -> None:
    """
    Raises:
      AddressError: one of the values does not have this phase.
    """
    for v in meant.values:
        recomputed, has_cotangent = any(of(e).is_checkpoint for e in v.path), is_differentiable(v.aval)
        has = {"forward": True, "recomputed": recomputed, "cotangent": has_cotangent}
        if not has[a.phase]:
            phases = " and ".join(repr(phase) for phase in has if has[phase])
            why = "in no jax.checkpoint" if a.phase == "recomputed" else v.aval.str_short(short_dtypes=True)
            also = "; capture also returns cotangents with cotangents=True" if has_cotangent else ""
            raise AddressError(f"{v.name} at {v.line} is {why}, so its phases are {phases}, not {a.phase!r}{also}.")


def _iteration(meant: Meant, value: AddressedValue, array: Any) -> Any:
    if meant.iteration is None:
        return array
    if not is_scan(value.loops[-1]):
        raise AddressError(
            f"{value.name} at {value.line} is in a while loop, of which capture returns the last iteration: leave out "
            "the iteration, or step(…).run(at=…) to it."
        )
    return jnp.take(array, meant.iteration, axis=axis_of_iterations(value))


def _nbytes(aval: Any) -> int:
    return int(math.prod(aval.shape) * aval.dtype.itemsize)


@api_boundary
def capture(
    fun: Callable[..., Any],
    *addresses: Any,
    cotangents: bool = False,
    has_aux: bool = False,
    reduce: Reduce | None = None,
    barrier: bool = False,
) -> Capture:
    """A function that also returns values of its inside: pure, to be used under `jit`, `vmap`, `grad` and the others.

    >>> run = jaxviz.capture(loss, "h", "x @ params['w']", cotangents=True)
    >>> print(run.where(params, x))  # what that means, and how many bytes it is
    >>> value, seen = jax.jit(run)(params, x)
    >>> seen["h"], seen.cotangents["h"]

    Nothing has to be written in the model. A value in a scan is stacked, as what a scan returns; of a while loop it is
    the one of the last iteration; in a branch that is not taken it is zero; in a `shard_map` it has a first axis for
    the devices along which it varies. A gradient of the function saves what it saved, since captured values are results
    of the forward pass. XLA may compute other last bits for a function with more results, as it fuses other operations.

    It is pure: what the function changes in an object that it is given, such as the statistics of an nnx model, stays
    as it was; return it to have it.

    Args:
      fun: takes and returns arrays, or pytrees of them, such as models, which may hold functions and numbers too.
      *addresses: the values, each by an address or its text; see `at`. For the phase 'cotangent' it is the cotangent
        that is captured, and `fun` returns one number.
      cotangents: whether to return their cotangents too; then `fun` returns one number, and runs forward and backward.
      has_aux: with `cotangents`, whether `fun` returns a pair, whose first part is the number.
      reduce: from a value, or a cotangent, to what is captured in its place, such as `jnp.linalg.norm`, so that a loop
        stacks less.
      barrier: whether XLA may not fuse what is before a value with what is after it.

    Returns:
      a function with the arguments of `fun`, which returns its result and a `Captured`. `where(*args)` tells what it
      captures, `nbytes(*args)` how much.

    Raises:
      AddressError: when it is called, an address means no value, or several, and the message lists candidates; or the
        value does not have the phase that it asks for.
    """
    compat.check_callable(fun)
    if reduce is not None and not callable(reduce):
        raise TypeError(f"reduce={reduce!r} must be a function of a value, such as jnp.linalg.norm")
    return Capture(fun, [address(a) for a in addresses], cotangents, has_aux, reduce, barrier)
