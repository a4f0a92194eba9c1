"""Loops, branches, checkpoints and calls into which any program of the tables can be put."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from programs import CASES, Case

import nested_programs  # isort: skip  enters its programs into the table


def inexact(tree: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]


def total(case: Case, args: Any) -> jax.Array:
    return sum(jnp.sum(jnp.real(x) * 0.5).astype(jnp.float32) for x in inexact(case.fun(*args)))


def in_scan(case, *args):
    """The arguments are closed over, so that what depends only on them can be hoisted out of the loop."""
    return lax.scan(lambda c, k: (jnp.tanh(c) + k * total(case, args), c), jnp.float32(0.5), jnp.arange(2.0))


def in_scan_as_carry(case, *args):
    """The arguments are the carry."""

    def step(carry, _):
        y = total(case, carry)
        return jax.tree.map(lambda x: x * y.astype(x.dtype) if inexact(x) else x, carry), y

    return lax.scan(step, args, None, length=2)[1]


def in_cond(case, *args):
    other = lambda args: sum(jnp.sum(jnp.real(jnp.sin(x))).astype(jnp.float32) for x in inexact(args))
    return lax.cond(jnp.sum(jnp.real(inexact(args)[0])) > -1e9, lambda args: total(case, args), other, args)


def in_jit(case, *args):
    return jax.jit(lambda *args: total(case, args))(*args)


def in_checkpoint(case, *args):
    return jax.checkpoint(lambda *args: total(case, args))(*args)


def in_checkpoint_that_saves(case, *args):
    saves = jax.checkpoint_policies.dots_saveable
    return jax.jit(jax.checkpoint(lambda *args: total(case, args), policy=saves))(*args)


def in_checkpoint_in_scan(case, *args):
    body = jax.checkpoint(lambda c, k: (jnp.tanh(c) + k * total(case, args), c))
    return lax.scan(body, jnp.float32(0.5), jnp.arange(2.0))


def in_all(case, *args):
    """Four levels: checkpoint, scan, cond, jit."""

    @partial(jax.checkpoint, policy=jax.checkpoint_policies.everything_saveable)
    def outer(args):
        def step(c, k):
            y = lax.cond(c > -1e9, jax.jit(lambda c: c * total(case, args)), jnp.sin, c)
            return y + k, y

        return lax.scan(step, jnp.float32(0.5), jnp.arange(2.0))

    return outer(args)


NESTINGS = [
    in_scan, in_scan_as_carry, in_cond, in_jit, in_checkpoint, in_checkpoint_that_saves, in_checkpoint_in_scan, in_all,
]  # fmt: skip
SHORT = (in_scan_as_carry, in_checkpoint_in_scan, in_all)
"""A carry and closed-over values, recomputed and saved values, a branch and a call: each occurs in one of these."""


def is_nested(case: Case) -> bool:
    return case.fun.__module__ == nested_programs.__name__


def inside(case: Case, nest: Callable[..., Any]) -> Case:
    """A program in a nesting, on arrays; of forward mode, random nestings are enough."""
    args = jax.tree.map(lambda x: x if isinstance(x, jax.Array) else jnp.asarray(np.asarray(x)), case.args)
    return Case(f"{case}-{nest.__name__}", partial(nest, case), args, forward=False, where=case.where)


NESTABLE = [case for case in CASES if inexact(case.args)]
# Programs that hold programs are put into two nestings, or the sweep would take half an hour.
INSIDE = [
    (case, nest) for case in NESTABLE for nest in ((in_checkpoint_in_scan, in_all) if is_nested(case) else NESTINGS)
]
