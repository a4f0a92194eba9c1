"""What the gradient computes in this environment, and how far its arguments' last digits move it.

Two versions of a compiler round differently. Such a difference is no change of the program if it is no larger than what
rounding the arguments does, in the coarsest type that the program computes in; so the gradient is computed again for
arguments with other last digits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.environments.facts import LeafValues, ValueFacts
from jaxviz.features.values.inputs import with_constants
from jaxviz.features.values.summaries import last_place_in, moved
from jaxviz.ir import compat
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.stack import usual_stack
from jaxviz.ir.syntax import Program
from jaxviz.report.tables import type_text
from jaxviz.runtime.evaluate import evaluate
from jaxviz.xla.compile_cost.stages import Subject

ARRAYS, GIVEN = "arrays.npz", "given.npz"
"""The files of a folder: the arguments and what was computed; and the arguments to use instead of this program's own,
which are the `ARRAYS` of the other environment."""
SAMPLES = 3
"""For how many moved arguments it is computed again."""


class NoValuesError(ValueError):
    """There are no values to compare; the message says why."""


@usual_stack
def values_of(subject: Subject, folder: Path) -> ValueFacts:
    """Runs a gradient, and writes what it computes to a file in the folder.

    Raises:
      NoValuesError: an argument has no value, or one that can be written in place; or the folder has arguments of the
        other environment, of other types.
      the errors of running it.
    """
    for name, x in zip(subject.names, subject.inputs, strict=True):
        if isinstance(x, jax.ShapeDtypeStruct):
            raise NoValuesError(f"{name or 'an argument'} is given by its type; give arrays to compare them")
        if compat.is_written_in_place(x):
            raise NoValuesError(f"{name or 'an argument'} is a mutable reference, which a run would change")
    inputs, replaced = _given(subject, folder / GIVEN)
    subject = replace(subject, inputs=tuple(inputs))
    compute = jax.jit(subject.make())
    cotangents = [jnp.ones(c.shape, c.dtype) for c in subject.cotangents]
    computed = compute(*inputs, *cotangents)
    leaves = [_widened(x) for x in jax.tree.leaves(computed)]
    program = read_jaxpr(jax.jit(subject.call()).trace(*inputs).jaxpr)
    noise = [0.0] * len(leaves)
    for others in _with_other_digits(subject, program, compute, cotangents):
        noise = [max(n, distance(x, y)) for n, x, y in zip(noise, leaves, others, strict=True)]
    facts = [
        _leaf(kind, name, x, wide, n)
        for (kind, name), x, wide, n in zip(
            _names(subject, computed), jax.tree.leaves(computed), leaves, noise, strict=True
        )
    ]
    stored = {f"input {i}": _stored(x) for i, x in enumerate(inputs)}
    np.savez(folder / ARRAYS, **stored, **{f"leaf {i}": x for i, x in enumerate(leaves)})  # type: ignore[arg-type]
    return ValueFacts(tuple(facts), tuple(replaced), _digest(program.consts))


def _with_other_digits(
    subject: Subject, program: Program, compute: Callable[..., Any], cotangents: Sequence[Any]
) -> Iterator[list[np.ndarray[Any, Any]]]:
    """What is computed if the arguments, and what the function closes over, have other last digits."""
    taking, constants = with_constants(program)
    given = lambda *xs: lambda *inputs: evaluate(taking, [*xs, *inputs])
    of_constants = lambda xs, *inputs: replace(subject, call=partial(given, *xs)).make()(*inputs)
    other = jax.jit(of_constants) if constants else lambda _, *inputs: compute(*inputs)
    for seed in range(SAMPLES):
        xs = rounded([*constants, *subject.inputs], seed, last_place_in(program))
        results = other(xs[: len(constants)], *xs[len(constants) :], *cotangents)
        yield [*map(_widened, jax.tree.leaves(results))]


def leaves_in(folder: Path) -> list[np.ndarray[Any, Any]]:
    """What `values_of` has written to a folder."""
    with np.load(folder / ARRAYS) as arrays:
        return [arrays[name] for name in arrays.files if name.startswith("leaf ")]


def distance(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    """The norm of the difference of two arrays, over elements that are finite in both."""
    return norm_of(np.where(np.isfinite(x) & np.isfinite(y), _exact(x) - _exact(y), 0))


def norm_of(x: np.ndarray[Any, Any]) -> float:
    """The norm of the finite elements of an array."""
    wide = _exact(x)
    return float(np.linalg.norm(np.where(np.isfinite(wide), wide, 0).ravel()))


def _exact(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)


# --- arguments --------------------------------------------------------------------------------------------------------


def _given(subject: Subject, path: Path) -> tuple[list[Any], list[str]]:
    """The arguments to compute with, and the names of those that are not the program's own."""
    if not path.exists():
        return list(subject.inputs), []
    with np.load(path) as arrays:
        given = [arrays[name] for name in arrays.files if name.startswith("input ")]
    if len(given) != len(subject.inputs):
        raise NoValuesError(f"{len(subject.inputs)} arrays are passed here, and {len(given)} in the other environment")
    inputs, replaced = [], []
    for name, own, other in zip(subject.names, subject.inputs, given, strict=True):
        stored = _stored(own)
        if stored.shape != other.shape or stored.dtype != other.dtype:
            raise NoValuesError(f"{name or 'an argument'} has another type in the other environment")
        is_same = stored.tobytes() == other.tobytes()
        inputs.append(own if is_same else _restored(own, other))
        replaced += [] if is_same else [name]
    return inputs, replaced


def _stored(x: Any) -> np.ndarray[Any, Any]:
    """An array as NumPy stores it: small floating point types as integers, random keys as their data."""
    array = np.asarray(compat.key_data(x))
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


def _restored(own: Any, stored: np.ndarray[Any, Any]) -> Any:
    """The stored array, of the type and on the devices of this program's own."""
    if not isinstance(own, (jax.Array, np.ndarray)):
        return type(own)(stored.item())
    data = np.asarray(compat.key_data(own))
    array = stored.view(data.dtype)
    if compat.key_data(own) is not own:
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(own))
    return _like(own, array)


def _like(own: Any, array: np.ndarray[Any, Any]) -> Any:
    """Other values for an array, passed in the same way: of another type or placement they would compile again."""
    if not isinstance(own, jax.Array):
        return array
    if own.committed:
        return jax.device_put(array, own.sharding)
    return jnp.asarray(array.item() if own.weak_type and not array.ndim else array)


def rounded(inputs: Sequence[Any], seed: int, least: float) -> list[Any]:
    """Arguments with other last digits, of their types or of a coarser one; zeros stay, since most are exact: of masks
    and padding.

    Args:
      least: the last place of the coarser type.
    """
    return [y if y is x else _like(x, np.asarray(y)) for x, y in zip(inputs, moved(inputs, seed, least), strict=True)]


def _digest(consts: Iterable[Any]) -> str:
    """A digest of the arrays that the function closes over."""
    arrays = [_stored(x) for x in consts if hasattr(x, "dtype") and not compat.is_written_in_place(x)]
    return hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()[:16] if arrays else ""


# --- results ----------------------------------------------------------------------------------------------------------


def _widened(x: Any) -> np.ndarray[Any, Any]:
    """A result as an array of a type that NumPy stores."""
    array = np.asarray(compat.key_data(x))
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


def _names(subject: Subject, computed: Any) -> list[tuple[str, str]]:
    """For each result of the gradient its kind and its name."""
    paths = jax.tree_util.tree_flatten_with_path(computed)[0]
    n_results = len(paths) - len(subject.active)
    if subject.gradient is None:
        names = [f"result{jax.tree_util.keystr(path)}" for path, _ in paths]
    else:
        names = ["the result"] if n_results == 1 else [f"result {i}" for i in range(n_results)]
    gradients = [subject.names[i] or "an argument" for i in subject.active]
    return [*(("result", name) for name in names), *(("gradient", name) for name in gradients)]


def _leaf(kind: Any, name: str, x: Any, wide: np.ndarray[Any, Any], noise: float) -> LeafValues:
    nans, infinities, norm = int(np.isnan(wide).sum()), int(np.isinf(wide).sum()), norm_of(wide)
    aval = jax.typeof(x)
    rounding = float(jnp.finfo(aval.dtype).eps) / 2 * norm if jnp.issubdtype(aval.dtype, jnp.inexact) else 0.0
    return LeafValues(kind, name, type_text(aval), norm, max(noise, rounding), nans, infinities)
