"""Probes as addresses: a program that is traced while a probe's name is asked for has a `checkpoint_name` there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import jax

_asked: Any = jax.make_user_context(())
"""The names, part of the key of JAX's caches: functions that are jitted inside are traced again."""


def asked() -> tuple[str, ...]:
    names: tuple[str, ...] = _asked.value
    return names


def asking_for(addresses: Iterable[str]) -> Any:
    """A context in which the probes are named that these addresses may mean: `h`, or `layer › h #2`."""
    names = [re.sub(r"^.*›|#.*$", "", text).strip() for text in addresses]
    return _asked(tuple(dict.fromkeys(names)))
