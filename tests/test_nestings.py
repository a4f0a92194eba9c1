"""Every program of the shared table inside loops, branches, checkpoints and calls, compared with jax."""

from functools import partial

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  enters its programs into the table
import numpy as np
import pytest
from jax import lax
from programs import CASES
from test_parity import ONE_OF_EACH, assert_same, marked, seeds, side_by_side

import jaxviz


def inexact(tree):
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]


def total(case, args):
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


def is_nested(case):
    return case.fun.__module__ == "nested_programs"


def nestings_of(case):
    """Programs with nested programs are put into two of them, or the sweep would take half an hour."""
    return (in_checkpoint_in_scan, in_all) if is_nested(case) else NESTINGS


NESTABLE = [case for case in CASES if inexact(case.args)]
NESTED = [(case, nest) for case in NESTABLE for nest in nestings_of(case)]
nested = pytest.mark.parametrize(("case", "nest"), NESTED, ids=[f"{case}-{nest.__name__}" for case, nest in NESTED])


def arrays(case):
    return jax.tree.map(lambda x: x if isinstance(x, jax.Array) else jnp.asarray(np.asarray(x)), case.args)


HOISTED = pytest.mark.xfail(
    jax.__version_info__ >= (0, 11), strict=True,
    reason="since 0.11 custom_root is a primitive of hijax, whose loop-invariant residual JAX stacks here and jaxviz keeps once",
)  # fmt: skip


@pytest.mark.parametrize(
    ("case", "nest"),
    [
        pytest.param(
            case,
            nest,
            id=f"{case}-{nest.__name__}",
            marks=[
                *[HOISTED] * ((str(case), nest) == ("root", in_all)),
                *[pytest.mark.values] * (case not in ONE_OF_EACH),
                *[pytest.mark.sweep] * (case not in ONE_OF_EACH and i % 3 > 0),
            ],
        )
        for i, (case, nest) in enumerate(NESTED)
    ],
)
def test_residuals_inside(case, nest):
    check = jaxviz.derive(partial(nest, case), *arrays(case), argnums=tuple(range(len(case.args)))).check()
    assert check.agrees, check


IN_SHORT = (in_scan_as_carry, in_checkpoint_in_scan, in_all)
"""A carry and closed-over values, recomputed and saved values, a branch and a call: each occurs in one of these."""


@pytest.mark.slow
@pytest.mark.parametrize("case", marked(NESTABLE, third=0, each=2), ids=str)
def test_derivatives_inside(case):
    """Ours and JAX's in one program, each program in one nesting, the next in another. The sweep below has all combinations."""
    nest = in_all if is_nested(case) else IN_SHORT[NESTABLE.index(case) % len(IN_SHORT)]

    def pulled(m, *args):
        y, pull = m.vjp(partial(nest, case), *args)
        return y, pull(seeds(y, tangent=False))

    side_by_side(pulled, *arrays(case))


@pytest.mark.sweep
@nested
def test_derivatives_inside_one_by_one(case, nest):
    """Outside `jit`, where some scalars are saved that are literals of the program inside."""
    f, args = partial(nest, case), arrays(case)
    want, jax_pull = jax.vjp(f, *args)
    got, pull = jaxviz.vjp(f, *args)
    assert_same(got, want)
    ct = seeds(want, tangent=False)
    assert_same(pull(ct), jax_pull(ct))
