"""Functions of `jax.jit`: their parameters and arguments, and how two calls differ."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from jaxviz.ir.compat.calls import key_data
from jaxviz.ir.compat.private import _array, _tree_util


def jitted_function(f: Any) -> tuple[Any, Any] | None:
    """The function that was jitted, and the parameters of `jit`, for a function created by `jax.jit`; None for
    others."""
    fun, info = getattr(f, "_fun", None), getattr(f, "_jit_info", None)
    # A function that wraps a jitted one, such as its gradient, copies its attributes, but not its methods.
    return None if info is None or not hasattr(f, "lower") else (fun, info)


def wraps_a_jit(f: Any) -> bool:
    """Whether an object is called like a function of `jax.jit` and can be lowered like one, as libraries' own versions
    of `jit` make them."""
    return callable(f) and callable(getattr(f, "lower", None)) and hasattr(f, "__wrapped__")


def jitted_anew(fun: Callable[..., Any], info: Any) -> Any:
    """A function jitted like another, which shares none of its traced and compiled programs; it donates nothing."""

    @functools.wraps(fun)
    def again(*args: Any, **kwargs: Any) -> Any:
        return fun(*args, **kwargs)

    unflatten = jax.tree.unflatten
    return jax.jit(
        again, static_argnums=info.static_argnums or None, static_argnames=info.static_argnames or None,
        in_shardings=unflatten(info.in_shardings_treedef, info.in_shardings_leaves),
        out_shardings=unflatten(info.out_shardings_treedef, info.out_shardings_leaves),
        keep_unused=info.keep_unused, compiler_options=dict(info.compiler_options_kvs) or None,
    )  # fmt: skip


def buffers_of(x: Any) -> list[Any]:
    """What identifies the memory of an array on each of its devices, which several arrays may share; empty if it has
    none."""
    data = key_data(x)
    if type(data) is not _array.ArrayImpl or data.is_deleted():
        return []
    try:
        # An empty array, which may have no address, cannot be donated twice either.
        return [(s.device, s.data.unsafe_buffer_pointer() or id(data)) for s in data.addressable_shards]
    except Exception:  # the backend has no addresses
        return [id(x)]


def tree_differences(old: Any, new: Any) -> list[tuple[str, str, str]]:
    """Where two tree structures differ: the path of a node, and what it was and is."""
    errors = _tree_util.equality_errors_pytreedef(old, new)
    return [(_named_path(path), str(before), str(after)) for path, before, after, _ in errors]


def unequal_fields(old: Any, new: Any) -> Iterator[tuple[Any, Any, Any]]:
    """The classes of objects in two tree structures that have other static fields, with what the class stores of these
    in each, in the order of `tree_differences`."""
    before, after = old.node_data(), new.node_data()
    if before is None or after is None or before[0] is not after[0]:
        return
    if before[1] != after[1] and before[0] is not dict:
        yield before[0], before[1], after[1]
        return
    for inner in zip(old.children(), new.children(), strict=False):
        yield from unequal_fields(*inner)


def _named_path(path: Sequence[Any]) -> str:
    """`x[0]` for a path that begins with a name in a dict."""
    return f"{path[0].key}{_tree_util.keystr(tuple(path[1:]))}" if path else ""


def mesh_text(x: Any) -> str:
    """`d: 4, m: 2` for the mesh in a setting of `MESH_IN_USE`; 'no mesh' without one."""
    meshes = x if isinstance(x, tuple) else (x,)
    axes = [f"{name}: {n}" for mesh in meshes for name, n in getattr(mesh, "shape", {}).items()]
    return ", ".join(axes) or "no mesh"
