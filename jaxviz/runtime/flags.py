"""JAX's flags as an axis: what is done under other flags than those of the process."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import jax

from jaxviz.ir import compat

Flags = Mapping[str, Any]
"""Names of `jax.config` with their values; those that are left out stay as they are."""


def check_flags(flags: Flags) -> None:
    """Raises a ValueError for a flag that this JAX does not have; it says which one is meant."""
    for name in flags:
        if name not in jax.config.values:
            close = difflib.get_close_matches(name, [*jax.config.values], 1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"{compat.JAX} has no flag {name!r}{meant}")


@contextlib.contextmanager
def under_flags(flags: Flags) -> Iterator[None]:
    """Sets flags for the process, and restores them at the end.

    Raises:
      ValueError: this JAX has no such flag, or refuses its value.
    """
    check_flags(flags)
    before = {name: jax.config.values[name] for name in flags}
    try:
        for name, value in flags.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def flags_text(flags: Flags) -> str:
    """`jax_remat3 and jax_custom_vjp3=False`; '' for none."""
    return " and ".join(name if value is True else f"{name}={value}" for name, value in flags.items())


def applied_before(flags: Flags) -> list[str]:
    """What this JAX looks at a flag for when it is applied to a function, and not when the function is called:
    `jax.checkpoint` for `jax_remat3`, `jax.custom_vjp` for `jax_custom_vjp3`."""
    return [f"jax.{_READERS[name].__name__}" for name in flags if name in _READERS and _is_read_early(name)]


_READERS: dict[str, Callable[..., Any]] = {"jax_remat3": jax.checkpoint, "jax_custom_vjp3": jax.custom_vjp}


@cache
def _is_read_early(name: str) -> bool:
    def made() -> Any:
        f = _READERS[name](lambda x: x)
        if name == "jax_custom_vjp3":
            f.defvjp(lambda x: (x, None), lambda _, ct: (ct,))
        return f

    with under_flags({name: False}):
        early = made()
    with under_flags({name: True}):
        return str(jax.make_jaxpr(early)(1.0)) != str(jax.make_jaxpr(made())(1.0))
