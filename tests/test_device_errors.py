"""Mistakes in programs for several devices: jax's error, with the user's line and the argument's path."""

from __future__ import annotations

import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_programs import LINE, M, X, mapped
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxviz

ROWS = NamedSharding(LINE, P("i"))
PARAMS = {"v": jnp.ones(3), "w": X[:12]}  # 12 is not divisible by 8 devices
DEVICES = jax.devices()[:3]
MANY = {"w": X}  # 16 examples, for 8 devices

CASES = {}


def case(*args, path=None):
    """Adds a function of `jax` or `jaxviz` and these arguments to the table; `path` is that of the wrong argument."""

    def enter(fun):
        CASES[fun.__name__] = (fun, args, path)
        return fun

    return enter


# --- an axis that does not exist --------------------------------------------------------------------------------------


def unbound(x):
    y = jnp.sin(x)
    return jnp.sum(lax.psum(y, "nope"))


def pair(x):
    return {"a": x, "b": x * 2.0}


def weights(p):
    return p["w"].sum()


@case(X)
def grad_of_unbound(m, x):
    return m.grad(unbound)(x)


@case(X)
def jvp_of_unbound(m, x):
    return m.jvp(unbound, (x,), (x,))


@case(M)
def vmap_of_unbound(m, x):
    return m.vmap(unbound, axis_name="i")(x)


@case(X)
def derive_of_unbound(m, x):
    return jax.make_jaxpr(unbound)(x) if m is jax else m.derive(unbound, x)


@case(X)
def unbound_in_shard_map(m, x):
    return m.grad(mapped(P("i"), P())(unbound))(x)


@case(X)
def grad_of_unbound_in_shard_map(m, x):
    return mapped(P("i"), P("i"))(m.grad(unbound))(x)


@case(M)
def unbound_in_pmap(m, x):
    return m.grad(lambda x: jax.pmap(unbound, axis_name="i")(x).sum())(x)


@case(M)
def grad_of_unbound_in_pmap(m, x):
    return jax.pmap(m.grad(unbound), axis_name="i")(x)


@case(X)
def size_of_unbound(m, x):
    return m.grad(lambda x: x.sum() * lax.axis_size("nope"))(x)


# --- results whose sharding does not fit ------------------------------------------------------------------------------


@case(M, path="out_axes")
def vmap_out_axes(m, x):
    return m.vmap(pair, out_axes={"a": 0})(x)


@case(M, path="out_axes['b']")
def vmap_out_axes_of_none(m, x):
    return m.vmap(pair, out_axes={"a": 0, "b": None})(x)


@case(M)
def vmap_out_axes_beyond(m, x):
    return m.vmap(pair, out_axes={"a": 0, "b": 5})(x)


@case({"w": M}, M, path="p['w']")
def vmap_in_axes_beyond(m, p, x):
    return m.vmap(lambda p, x: p["w"] * x, in_axes=({"w": 3}, 0))(p, x)


@case(M)
def pmap_out_axes(m, x):
    def f(x):
        return jax.pmap(pair, out_axes={"a": 0})(x)["a"].sum()

    return m.grad(f)(x)


@case(MANY)
def pmap_out_axes_of_grad(m, p):
    return jax.pmap(m.grad(weights), out_axes={"v": 0})(jax.tree.map(lambda x: x[:8], p))


@case(X, path="out_specs")
def out_specs(m, x):
    def f(x):
        return mapped(P("i"), {"a": P("i")})(pair)(x)["a"].sum()

    return m.grad(f)(x)


@case(X, path="['b']")
def out_specs_of_more_dimensions(m, x):
    def f(x):
        return mapped(P("i"), {"a": P("i"), "b": P(None, "i")})(pair)(x)["a"].sum()

    return m.grad(f)(x)


@case(X)
def out_specs_of_what_differs(m, x):
    def f(x):
        return mapped(P("i"), {"a": P("i"), "b": P()})(pair)(x)["a"].sum()

    return m.grad(f)(x)


@case(MANY, path="out_specs")
def out_specs_of_grad(m, p):
    return mapped(P("i"), {"v": P("i")})(m.grad(weights))(p)


# --- sizes that are not divisible -------------------------------------------------------------------------------------


@case(MANY, path="p['w']")
def pmap_of_too_many(m, p):
    def f(p):
        return jax.pmap(lambda q: jnp.sin(q["w"]))(p).sum()

    return m.grad(f)(p)


@case(MANY)
def pmap_of_grad_of_too_many(m, p):
    return jax.pmap(m.grad(weights))(p)


@case(1.0, {"w": X[:12]}, path="p['w']")
def shard_map(m, s, p):
    """The wrong argument is one that is not differentiated."""

    def f(s, p):
        return mapped((P(), P("i")), P("i"))(lambda s, q: jnp.sin(s * q["w"]))(s, p).sum()

    return m.grad(f)(s, p)


@case({"w": X[:12]}, path="['w']")
def shard_map_of_grad(m, p):
    return mapped(P("i"), P("i"))(m.grad(weights))(p)


@case(1.0, PARAMS, path="called with p['w']")
def in_shardings(m, s, p):
    def f(s, p):
        return jax.jit(lambda x: jnp.sin(s * x), in_shardings=ROWS)(p["w"]).sum()

    return m.grad(f)(s, p)


@case(PARAMS)
def in_shardings_of_grad(m, p):
    return jax.jit(m.grad(weights), in_shardings=ROWS)(p)


@case(PARAMS, path="p['w']")
def out_shardings(m, p):
    def f(p):
        return jax.jit(lambda q: jnp.sin(q["w"]), out_shardings=ROWS)(p).sum()

    return m.grad(f)(p)


@case(PARAMS, path="called with p['w']")
def constraint(m, p):
    """JAX rejects it when it runs; in a jit it would pad."""

    def f(p):
        return lax.with_sharding_constraint(jnp.sin(p["w"]), ROWS).sum()

    return m.grad(f)(p)


@case(PARAMS, path="called with p['w']")
def constraint_in_jvp(m, p):
    def f(p):
        return lax.with_sharding_constraint(jnp.sin(p["w"]), ROWS).sum()

    return m.jvp(f, (p,), (p,))


# --- too few devices --------------------------------------------------------------------------------------------------


@case({"w": X[:4]}, path="p['w']")
def pmap_devices(m, p):
    def f(p):
        return jax.pmap(lambda q: jnp.sin(q["w"]), devices=DEVICES)(p).sum()

    return m.grad(f)(p)


@case({"w": X[:4]})
def pmap_devices_of_grad(m, p):
    return jax.pmap(m.grad(weights), devices=DEVICES)(p)


@case({"w": X[:4]}, path="p['w']")
def pmap_axis_size(m, p):
    def f(p):
        return jax.pmap(lambda q: jnp.sin(q["w"]), axis_size=3)(p).sum()

    return m.grad(f)(p)


@case({"w": X[:8]}, path="p['w']")
def pmap_of_nothing_mapped(m, p):
    def f(p):
        return jax.pmap(lambda q: jnp.sin(q["w"]), in_axes=None)(p).sum()

    return m.grad(f)(p)


# ----------------------------------------------------------------------------------------------------------------------

OWN_WORDS = ("out_specs_of_more_dimensions", "out_specs_of_what_differs")
"""Where jax mentions the residuals of its own gradient; the engine finds the mistake before it has any."""


def lines(error):
    """The lines in this file that an error shows, including those that JAX reports as the origin of an operation."""
    shown = set()
    while error is not None:
        shown |= {frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__}
        error = error.__cause__
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_error_is_jaxs_with_line_and_path(name):
    fun, args, path = CASES[name]
    errors = []
    for m in (jax, jaxviz):
        with pytest.raises(Exception) as caught:  # noqa: PT011  whatever jax raises
            fun(m, *args)
        errors.append(caught.value)
    theirs, ours = errors
    assert type(ours) is type(theirs)
    if name not in OWN_WORDS:
        assert str(ours) == str(theirs)
    assert lines(ours) >= lines(theirs)
    assert len(lines(ours)) > 1  # the line in the test, and the line of the call
    if path is not None:
        assert path in "\n".join([str(ours), *getattr(ours, "__notes__", ())])


def test_with_many_arguments_those_that_the_error_speaks_of_come_first():
    def f(params, s):
        return jax.jit(jnp.sin, in_shardings=ROWS)(params[15] * s).sum()

    with pytest.raises(ValueError, match=r"\(12,\)") as caught:
        jaxviz.grad(f)([*(jnp.ones(3) for _ in range(15)), X[:12]], 2.0)
    (note,) = (n for n in caught.value.__notes__ if n.startswith("The function is"))
    assert f"f at {__file__}:{f.__code__.co_firstlineno}, called with params[15]: f32[12], params[0]: f" in note
    assert note.endswith("params[6]: f32[3] and 9 more.")


@pytest.mark.slow
@pytest.mark.parametrize("body", [lambda x: lax.psum(x, "i"), lambda x: x * 2.0], ids=["same", "differing"])
def test_a_pmap_whose_result_is_not_mapped(body):
    """JAX does not check that the devices agree; each gets an eighth of the cotangent."""

    def f(x):
        return (jax.pmap(body, axis_name="i", out_axes=None)(x) ** 2).sum()

    x = M[:, 0]
    np.testing.assert_array_equal(jaxviz.grad(f)(x), jax.grad(f)(x))
    xs = M.T.reshape(4, 8)
    np.testing.assert_array_equal(jaxviz.vmap(jaxviz.grad(f))(xs), jax.vmap(jax.grad(f))(xs))
    assert jaxviz.derive(f, x).check()


def test_an_axis_that_is_not_bound_in_shard_map_is_told_from_those_that_are():
    """JAX's error has no text there."""
    with pytest.raises(AssertionError) as caught:
        jaxviz.grad(lambda x: mapped(P("i"), P("i"))(lambda x: lax.psum(x, "nope"))(x).sum())(X)
    assert any("an axis that is not bound" in n and "there are ('i',)" in n for n in caught.value.__notes__)
