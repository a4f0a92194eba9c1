"""Probes as addresses: a program that is traced while a probe's name is asked for has a `checkpoint_name` there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

_asked: Any = jax.make_user_context(())
"""The names, part of the key of JAX's caches: functions that are jitted inside are traced again."""


def asked() -> tuple[str, ...]:
    names: tuple[str, ...] = _asked.value
    return names


def asking_for(names: Iterable[str]) -> Any:
    """A context in which the probes with these names are named in programs."""
    return _asked(tuple(dict.fromkeys(names)))


_have_run: set[str] = set()


def runs(name: str) -> None:
    """Notes that a probe has been run or traced."""
    _have_run.add(name)


def have_run(names: Iterable[str]) -> bool:
    """Whether one of these may be the name of a probe that has been run or traced, or of a part of what one was
    given, as `grads.w`."""
    return any(
        ".".join(parts[:n]) in _have_run
        for parts in (name.split(".") for name in names)
        for n in range(1, len(parts) + 1)
    )
