"""The arguments of a call: which of them are differentiated, which are inputs of its program, and which are fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxviz.ir import compat

Argnums = int | Sequence[int] | None
"""The arguments to differentiate with respect to, as for `jax.grad`; None for all arrays."""


def flat_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], chosen: Sequence[int | str]
) -> tuple[list[Any], Any, list[bool], list[bool]]:
    """The flat arguments of a call with their tree; for each, whether it is differentiated, and whether an input.

    In a differentiated argument with leaves that `jax.grad` refuses, such as a model that holds a function, only arrays
    are differentiated, and everything else is fixed, as by Equinox's `filter_grad`.

    Args:
      args, kwargs: the call.
      chosen: the differentiated arguments, by position, and by name where they are passed by keyword.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    differentiated = []
    for key, x in (*enumerate(args), *sorted(kwargs.items())):
        has_fixed = is_mixed(x)
        differentiated += [key in chosen and (not has_fixed or _is_array(leaf)) for leaf in jax.tree.leaves(x)]
    return leaves, tree, differentiated, [d or _is_array(x) for d, x in zip(differentiated, leaves, strict=True)]


def is_mixed(argument: Any) -> bool:
    """Whether an argument has leaves that are fixed beside its arrays, as in a model that holds a function."""
    return any(argument is not leaf and _is_refused(leaf) for leaf in jax.tree.leaves(argument))


def _is_refused(leaf: Any) -> bool:
    """Whether `jax.grad` refuses an argument with this leaf: a function, a text, a whole number or a switch."""
    return isinstance(leaf, int) or not (isinstance(leaf, jax.ShapeDtypeStruct) or compat.is_array_like(leaf))


def positions(f: Any, args: Sequence[Any], argnums: Argnums) -> tuple[int, ...]:
    """Which of a call's positional arguments are differentiated; for None, those that are arrays or pytrees of them.

    Raises:
      TypeError, ValueError: jax's, for an argument that does not exist.
    """
    if argnums is not None:
        return in_bounds(argnums, len(args))
    static, _ = compat.static_places(f)
    return tuple(i for i, a in enumerate(args) if i not in static and _all_arrays(a))


def arrays_by_name(f: Any, kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """The same for the arguments that are passed by keyword: those that are arrays or pytrees of them."""
    _, static = compat.static_places(f)
    return tuple(name for name, x in kwargs.items() if name not in static and _all_arrays(x))


def _all_arrays(tree: Any) -> bool:
    """Whether an argument is an array or a pytree of them, with fixed leaves beside them as in `flat_arguments`."""
    leaves = jax.tree.leaves(tree)
    is_number = lambda x: isinstance(x, (int, float, complex, jax.ShapeDtypeStruct)) or hasattr(x, "dtype")
    return not isinstance(tree, int) and (all(map(is_number, leaves)) or any(map(_is_array, leaves)))


def in_bounds(argnums: int | Sequence[int], n: int) -> tuple[int, ...]:
    """Which of `n` positional arguments are differentiated, each counted from the first.

    Raises:
      TypeError, ValueError: jax's, for an argument that does not exist.
    """
    argnums = compat.index_or_indices(argnums)
    chosen = (argnums,) if isinstance(argnums, int) else argnums
    if chosen and max(chosen) >= n:
        raise TypeError(
            f"differentiating with respect to argnums={argnums} requires at least {max(chosen) + 1} positional "
            f"arguments to be passed by the caller, but got only {n} positional arguments."
        )
    for i in chosen:
        if i < -n:
            raise ValueError(
                "Positional argument indices, e.g. for `static_argnums`, must have value greater than or equal to "
                f"-len(args) and less than len(args), but got value {i} for len(args) == {n}."
            )
    return tuple(i % n for i in chosen)


def _is_array(x: Any) -> bool:
    """Whether an argument that is not differentiated is an input, and not a value that JAX would write in place."""
    is_array = compat.is_array(x) or isinstance(x, jax.ShapeDtypeStruct) or (hasattr(x, "ndim") and x.ndim > 0)
    return is_array or isinstance(x, jax.Ref) or compat.is_hi_value(x)


def placed_at(x: Any) -> Any:
    """The sharding of an argument that may not be moved, or that a type requests."""
    is_type = isinstance(x, jax.ShapeDtypeStruct)
    return x.sharding if not compat.is_tracer(x) and (is_type or getattr(x, "committed", False)) else None
