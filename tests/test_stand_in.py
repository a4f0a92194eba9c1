"""A suite of behaviours that JAX documents, run with jax's functions and with jaxviz's in their place.

All expectations are fixed: the run with jax shows that they are right, and the run with jaxviz that it can replace jax.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_derivatives import SymbolicZero

import jaxviz

pytestmark = pytest.mark.slow
REPLACED = ("grad", "vjp", "jvp", "linearize", "value_and_grad", "jacfwd", "jacrev", "hessian", "linear_transpose")


# The run with JAX says nothing about jaxviz; it is needed when JAX changes.
@pytest.fixture(params=[pytest.param("jax", marks=pytest.mark.sweep), "jaxviz"], autouse=True)
def stand_in(request, monkeypatch):
    if request.param == "jaxviz":
        for name in REPLACED:
            monkeypatch.setattr(jax, name, getattr(jaxviz, name))


X = jnp.array([0.5, 1.0, 2.0])
Pair = collections.namedtuple("Pair", "a b")
S, C = math.sin, math.cos


def close(got, want, rtol=1e-5):
    got_leaves, want_leaves = jax.tree.leaves(got), jax.tree.leaves(want)
    if len(got_leaves) != len(want_leaves):  # a list of numbers may represent an array
        want_leaves = jax.tree.leaves(want, is_leaf=lambda x: isinstance(x, list))
    assert len(got_leaves) == len(want_leaves)
    for g, w in zip(got_leaves, want_leaves, strict=True):
        np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=rtol, atol=1e-6)


def values(*table):
    """Behaviours with a value: (name, function, expected value)."""
    return pytest.mark.parametrize(("run", "want"), [row[1:] for row in table], ids=[row[0] for row in table])


def errors(*table):
    """Behaviours with an error: (name, function, type of error, part of its message)."""
    return pytest.mark.parametrize(("run", "error", "says"), [row[1:] for row in table], ids=[row[0] for row in table])


# --- arguments --------------------------------------------------------------------------------------------------------


def f2(x, y):
    return x**2 * y


@values(
    ("first", lambda: jax.grad(f2)(3.0, 4.0), 24.0),
    ("second", lambda: jax.grad(f2, 1)(3.0, 4.0), 9.0),
    ("argnums by keyword", lambda: jax.grad(f2, argnums=1)(3.0, 4.0), 9.0),
    ("negative", lambda: jax.grad(f2, -1)(3.0, 4.0), 9.0),
    ("tuple", lambda: jax.grad(f2, (0, 1))(3.0, 4.0), (24.0, 9.0)),
    ("tuple of one", lambda: jax.grad(f2, (1,))(3.0, 4.0), (9.0,)),
    ("out of order", lambda: jax.grad(f2, (1, 0))(3.0, 4.0), (9.0, 24.0)),
    ("list", lambda: jax.grad(f2, [0, 1])(3.0, 4.0), (24.0, 9.0)),
    ("numpy integer", lambda: jax.grad(f2, np.int32(1))(3.0, 4.0), 9.0),
    ("keyword argument", lambda: jax.grad(lambda x, *, k: x**k)(2.0, k=3), 12.0),
    ("default argument", lambda: jax.grad(lambda x, k=3: x**k)(2.0), 12.0),
    ("variable arguments", lambda: jax.grad(lambda *xs: xs[0] * xs[1])(2.0, 5.0), 5.0),
    ("not an array, beside", lambda: jax.grad(lambda x, name: x * len(name))(2.0, "abc"), 3.0),
    ("integer beside", lambda: jax.grad(lambda x, n: x**n)(2.0, 3), 12.0),
    ("closed over", lambda: jax.grad(lambda x: x * X[2])(1.0), 2.0),
    ("partial", lambda: jax.grad(functools.partial(f2, 3.0))(4.0), 9.0),
    ("bound method", lambda: jax.grad(X.dot)(X), X),
    ("callable object", lambda: jax.grad(jnp.vectorize(jnp.sin))(0.0), 1.0),
    ("of a jitted function", lambda: jax.grad(jax.jit(f2))(3.0, 4.0), 24.0),
    ("static argument of a jitted one", lambda: jax.grad(jax.jit(lambda x, n: x**n, static_argnums=1))(2.0, 3), 12.0),
    ("value_and_grad", lambda: jax.value_and_grad(f2)(3.0, 4.0), (36.0, 24.0)),
    ("value_and_grad, tuple", lambda: jax.value_and_grad(f2, (0, 1))(3.0, 4.0), (36.0, (24.0, 9.0))),
    ("numpy argument", lambda: jax.grad(lambda x: (x**2).sum())(np.array([1.0, 2.0])), [2.0, 4.0]),
    ("numpy scalar", lambda: jax.grad(lambda x: x**2)(np.float32(3.0)), 6.0),
    ("no inputs used", lambda: jax.grad(lambda x: 3.0)(1.0), 0.0),
    ("identity", lambda: jax.grad(lambda x: x)(1.0), 1.0),
    ("array of one element", lambda: jax.grad(lambda x: jnp.squeeze(x) ** 2)(jnp.ones((1, 1))), [[2.0]]),
    ("empty array", lambda: jax.grad(lambda x: x.sum())(jnp.zeros(0)), np.zeros(0)),
    ("vjp, two arguments", lambda: jax.vjp(f2, 3.0, 4.0)[1](1.0), (24.0, 9.0)),
    ("vjp, no arguments", lambda: jax.vjp(lambda: 3.0)[0], 3.0),
    ("jvp, list of primals", lambda: jax.jvp(f2, [3.0, 4.0], [1.0, 0.0]), (36.0, 24.0)),
    ("linearize, two arguments", lambda: jax.linearize(f2, 3.0, 4.0)[1](1.0, 1.0), 33.0),
    ("jacfwd, second", lambda: jax.jacfwd(f2, 1)(3.0, 4.0), 9.0),
    ("jacrev, both", lambda: jax.jacrev(f2, (0, 1))(3.0, 4.0), (24.0, 9.0)),
    ("hessian", lambda: jax.hessian(f2)(3.0, 4.0), 8.0),
    ("hessian, both", lambda: jax.hessian(f2, (0, 1))(3.0, 4.0), ((8.0, 6.0), (6.0, 0.0))),
)
def test_arguments(run, want):
    close(run(), want)


@errors(
    ("not callable", lambda: jax.grad(3.0), TypeError, "callable"),
    ("vjp of no function", lambda: jax.vjp(3.0, 1.0), TypeError, "callable"),
    ("jvp of no function", lambda: jax.jvp(3.0, (1.0,), (1.0,)), TypeError, "callable"),
    ("argnums too large", lambda: jax.grad(f2, 2)(3.0, 4.0), TypeError, "requires at least 3 positional arguments"),
    (
        "argnums of a keyword",
        lambda: jax.grad(f2, 1)(3.0, y=4.0),
        TypeError,
        "requires at least 2 positional arguments",
    ),
    ("argnums a string", lambda: jax.grad(f2, "x"), TypeError, ""),
    ("argnums a float", lambda: jax.grad(f2, 1.5), TypeError, ""),
    ("too few", lambda: jax.grad(f2)(3.0), TypeError, "missing 1 required positional argument"),
    ("too many", lambda: jax.grad(f2)(3.0, 4.0, 5.0), TypeError, "positional argument"),
    ("a string", lambda: jax.grad(f2)("a", 4.0), TypeError, "not a valid JAX type"),
    ("a string in a tree", lambda: jax.grad(lambda p: p["a"])({"a": 1.0, "b": "c"}), TypeError, "not a valid JAX type"),
    ("an integer", lambda: jax.grad(f2)(3, 4.0), TypeError, "grad requires real- or complex-valued inputs"),
    ("a boolean", lambda: jax.grad(lambda x: 1.0)(True), TypeError, "grad requires real- or complex-valued inputs"),
    ("an integer in a tree", lambda: jax.grad(lambda p: p["a"])({"a": 1.0, "n": 3}), TypeError, "grad requires real-"),
    (
        "a vector comes out",
        lambda: jax.grad(lambda x: x)(X),
        TypeError,
        "Gradient only defined for scalar-output functions",
    ),
    (
        "a tuple comes out",
        lambda: jax.grad(lambda x: (x, x))(1.0),
        TypeError,
        "Gradient only defined for scalar-output",
    ),
    (
        "a dict comes out",
        lambda: jax.grad(lambda x: {"y": x})(1.0),
        TypeError,
        "Gradient only defined for scalar-output",
    ),
    (
        "an integer comes out",
        lambda: jax.grad(lambda x: jnp.int32(x))(1.0),
        TypeError,
        "grad requires real-valued outputs",
    ),
    ("a complex comes out", lambda: jax.grad(lambda x: x * 1j)(1.0), TypeError, "grad requires real-valued outputs"),
    (
        "a complex goes in",
        lambda: jax.grad(lambda x: jnp.abs(x).real * x)(1j),
        TypeError,
        "grad requires real-valued outputs",
    ),
    ("None comes out", lambda: jax.grad(lambda x: None)(1.0), TypeError, ""),
    ("a string comes out", lambda: jax.grad(lambda x: "a")(1.0), TypeError, "not a valid JAX type"),
    ("jacfwd of an integer", lambda: jax.jacfwd(lambda x: x)(3), TypeError, "jacfwd requires real-valued inputs"),
    (
        "jacrev of an integer",
        lambda: jax.jacrev(lambda x: x)(3),
        TypeError,
        "jacrev requires real- or complex-valued inputs",
    ),
    (
        "jacrev to integers",
        lambda: jax.jacrev(lambda x: jnp.int32(x))(3.0),
        TypeError,
        "jacrev requires real-valued outputs",
    ),
    ("hessian of an integer", lambda: jax.hessian(lambda x: x * x)(3), TypeError, "requires real-valued inputs"),
    ("the function's own error", lambda: jax.grad(lambda x: 1 / 0)(1.0), ZeroDivisionError, "division by zero"),
)
def test_refused_arguments(run, error, says):
    with pytest.raises(error) as caught:
        run()
    assert says in str(caught.value)


# --- pytrees ----------------------------------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Weights:
    w: jax.Array
    b: float
    name: str = dataclasses.field(metadata={"static": True}, default="w")


TREE = {"w": X, "b": (jnp.float32(2.0), [jnp.float32(3.0), None])}


def of_tree(p):
    return (p["w"] ** 2).sum() * p["b"][0] + p["b"][1][0]


@values(
    ("dict", lambda: jax.grad(of_tree)(TREE), {"w": 4.0 * X, "b": (5.25, [1.0, None])}),
    ("namedtuple", lambda: jax.grad(lambda p: p.a * p.b)(Pair(2.0, 3.0)), Pair(3.0, 2.0)),
    ("dataclass", lambda: jax.grad(lambda p: (p.w * p.b).sum())(Weights(X, 2.0)), Weights(jnp.full(3, 2.0), 3.5)),
    ("empty tuple beside", lambda: jax.grad(lambda p: p[0])((1.0, ())), (1.0, ())),
    ("None beside", lambda: jax.grad(lambda x, none: x * 2)(1.0, None), 2.0),
    ("tree comes out of jvp", lambda: jax.jvp(lambda x: {"s": jnp.sin(x)}, (0.0,), (1.0,)), ({"s": 0.0}, {"s": 1.0})),
    ("tree comes out of vjp", lambda: jax.vjp(lambda x: [x, (x,)], 2.0)[1]([1.0, (3.0,)]), (4.0,)),
    ("tree comes out of linearize", lambda: jax.linearize(lambda x: {"a": x * 3}, 2.0)[1](1.0), {"a": 3.0}),
    ("jacrev to a tree", lambda: jax.jacrev(lambda x: {"a": x**2, "b": x.sum()})(X),
     {"a": jnp.diag(2 * X), "b": jnp.ones(3)}),
    ("jacfwd of a tree", lambda: jax.jacfwd(lambda p: p["a"] * p["b"])({"a": X, "b": 2.0}),
     {"a": 2.0 * jnp.eye(3), "b": X}),
    ("hessian of a tree", lambda: jax.hessian(lambda p: p["a"] ** 2 * p["b"])({"a": 3.0, "b": 2.0}),
     {"a": {"a": 4.0, "b": 6.0}, "b": {"a": 6.0, "b": 0.0}}),
)  # fmt: skip
def test_pytrees(run, want):
    got = run()
    assert jax.tree.structure(got) == jax.tree.structure(want)
    close(got, want)


# --- auxiliary output -------------------------------------------------------------------------------------------------


@values(
    ("grad", lambda: jax.grad(lambda x: (x**2, {"x": x}), has_aux=True)(3.0), (6.0, {"x": 3.0})),
    ("value_and_grad", lambda: jax.value_and_grad(lambda x: (x**2, x + 1), has_aux=True)(3.0), ((9.0, 4.0), 6.0)),
    ("vjp", lambda: jax.vjp(lambda x: (x**2, x + 1), 3.0, has_aux=True)[2], 4.0),
    ("jvp", lambda: jax.jvp(lambda x: (x**2, x + 1), (3.0,), (1.0,), has_aux=True), (9.0, 6.0, 4.0)),
    ("linearize", lambda: jax.linearize(lambda x: (x**2, x + 1), 3.0, has_aux=True)[2], 4.0),
    ("jacfwd", lambda: jax.jacfwd(lambda x: (x**2, x + 1), has_aux=True)(3.0), (6.0, 4.0)),
    ("jacrev", lambda: jax.jacrev(lambda x: (x**2, x + 1), has_aux=True)(3.0), (6.0, 4.0)),
    ("hessian", lambda: jax.hessian(lambda x: (x**3, x + 1), has_aux=True)(3.0), (18.0, 4.0)),
    ("no array", lambda: jax.grad(lambda x: (x, None), has_aux=True)(3.0), (1.0, None)),
    ("a list for a pair", lambda: jax.grad(lambda x: [x, 2], has_aux=True)(3.0), (1.0, 2)),
    ("under jit", lambda: jax.jit(jax.grad(lambda x: (x**2, x + 1), has_aux=True))(3.0), (6.0, 4.0)),
    ("under vmap", lambda: jax.vmap(jax.grad(lambda x: (x**2, x + 1), has_aux=True))(X), (2 * X, X + 1)),
)
def test_aux(run, want):
    close(run(), want)


@errors(
    ("one value", lambda: jax.grad(lambda x: x, has_aux=True)(3.0), TypeError, "two-element tuple"),
    ("three values", lambda: jax.grad(lambda x: (x, x, x), has_aux=True)(3.0), TypeError, "two-element tuple"),
    ("vjp", lambda: jax.vjp(lambda x: x, 3.0, has_aux=True), TypeError, "two-element tuple"),
)
def test_refused_aux(run, error, says):
    with pytest.raises(error) as caught:
        run()
    assert says in str(caught.value)


def test_aux_of_any_kind_is_handed_through():
    assert jax.grad(lambda x: (x, "text"), has_aux=True)(1.0)[1] == "text"
    assert jax.value_and_grad(lambda x: (x, {"n": 3}), has_aux=True)(1.0)[0][1] == {"n": 3}


# --- types ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("transform", ["grad", "vjp", "jvp", "linearize", "jacrev", "jacfwd"])
def test_derivatives_have_the_type_of_what_they_are_of(transform, dtype):
    x = jnp.ones(3, dtype)
    holomorphic = {"holomorphic": True} if dtype == "complex64" else {}
    run = {
        "grad": lambda: jax.grad(lambda x: (x * x).sum(), **holomorphic)(x),
        "vjp": lambda: jax.vjp(lambda x: x * x, x)[1](x)[0],
        "jvp": lambda: jax.jvp(lambda x: x * x, (x,), (x,))[1],
        "linearize": lambda: jax.linearize(lambda x: x * x, x)[1](x),
        "jacrev": lambda: jax.jacrev(lambda x: x * x, **holomorphic)(x).sum(0),
        "jacfwd": lambda: jax.jacfwd(lambda x: x * x, **holomorphic)(x).sum(0),
    }[transform]
    got = run()
    assert got.dtype == dtype
    close(got.astype(np.complex64), np.full(3, 2.0))


def test_64_bits():
    with jax.enable_x64(True):
        got = jax.grad(lambda x: jnp.sin(x))(jnp.float64(1.0))
        assert got.dtype == jnp.float64
        assert abs(float(got) - C(1.0)) < 1e-12


@values(
    ("weak in, weak out", lambda: jax.grad(lambda x: x * 2)(1.0).weak_type, True),
    ("strong in, strong out", lambda: jax.grad(lambda x: x * 2)(jnp.float32(1.0)).weak_type, False),
    ("allow_int", lambda: jax.grad(lambda n: n * 1.0, allow_int=True)(3).dtype == jax.dtypes.float0, True),
    ("allow_int, shape", lambda: jax.grad(lambda n: (n * 1.0).sum(), allow_int=True)(jnp.arange(3)).shape, (3,)),
    ("allow_int, boolean", lambda: jax.grad(lambda b: b * 1.0, allow_int=True)(True).dtype == jax.dtypes.float0, True),
    ("allow_int beside floats", lambda: jax.grad(lambda x, n: x * n, (0, 1), allow_int=True)(2.0, 3)[0], 3.0),
    ("allow_int, jacrev", lambda: jax.jacrev(lambda x, n: x * n, 0, allow_int=True)(2.0, 3), 3.0),
    ("vjp of integers", lambda: jax.vjp(lambda n, x: n * x, 3, 2.0)[1](1.0)[1], 3.0),
    ("vjp of integers, float0", lambda: jax.vjp(lambda n, x: n * x, 3, 2.0)[1](1.0)[0].dtype == jax.dtypes.float0, True),
    ("jvp of integers", lambda: jax.jvp(lambda n: n * 2.0, (3,), (np.zeros((), jax.dtypes.float0),))[1], 0.0),
    ("jvp to integers", lambda: jax.jvp(jnp.int32, (3.0,), (1.0,))[1].dtype == jax.dtypes.float0, True),
    ("holomorphic", lambda: jax.grad(lambda z: z**2, holomorphic=True)(1.0 + 2.0j), 2.0 + 4.0j),
    ("holomorphic jacfwd", lambda: jax.jacfwd(lambda z: z**2, holomorphic=True)(1.0 + 2.0j), 2.0 + 4.0j),
    ("holomorphic jacrev", lambda: jax.jacrev(lambda z: z**3, holomorphic=True)(1.0 + 1.0j), 3 * (1 + 1j) ** 2),
    ("real of a complex", lambda: jax.grad(lambda z: jnp.abs(z) ** 2)(1.0 + 2.0j), 2.0 - 4.0j),
    ("conjugate", lambda: jax.vjp(jnp.conj, 1.0 + 2.0j)[1](1.0j)[0], -1.0j),
    ("PRNG key beside", lambda: jax.grad(lambda x, k: x * jax.random.normal(k))(1.0, jax.random.key(0)),
     jax.random.normal(jax.random.key(0))),
    ("PRNG key in a tree", lambda: jax.vjp(lambda s: s["x"] * 2, {"x": 1.0, "k": jax.random.key(0)})[1](1.0)[0]["x"], 2.0),
)  # fmt: skip
def test_types(run, want):
    close(run(), want)


@errors(
    (
        "holomorphic of a real",
        lambda: jax.grad(lambda x: x, holomorphic=True)(1.0),
        TypeError,
        "holomorphic=True requires",
    ),
    ("holomorphic to a real", lambda: jax.grad(lambda z: z.real, holomorphic=True)(1j), TypeError, "holomorphic=True"),
    (
        "jacfwd holomorphic of a real",
        lambda: jax.jacfwd(lambda x: x, holomorphic=True)(1.0),
        TypeError,
        "holomorphic=True",
    ),
    ("jvp, integer tangent", lambda: jax.jvp(lambda n: n, (3,), (1,)), TypeError, "float0"),
    ("jvp, dtype", lambda: jax.jvp(jnp.sin, (1.0,), (np.float16(1.0),)), TypeError, "primal and tangent arguments"),
    ("jvp, integer for a float", lambda: jax.jvp(jnp.sin, (1.0,), (1,)), TypeError, "primal and tangent arguments"),
    ("jvp, shape", lambda: jax.jvp(jnp.sin, (X,), (X[:2],)), ValueError, "different primal and tangent shapes"),
    ("jvp, structure", lambda: jax.jvp(lambda p: p["a"], ({"a": 1.0},), ((1.0,),)), TypeError, "same tree structure"),
    ("jvp, number", lambda: jax.jvp(jnp.sin, (1.0,), ()), TypeError, "same tree structure"),
    ("jvp, no tuple", lambda: jax.jvp(jnp.sin, 1.0, 1.0), TypeError, "must be tuples or lists"),
    ("vjp, structure", lambda: jax.vjp(lambda x: (x, x), 1.0)[1](1.0), ValueError, ""),
    ("vjp, shape", lambda: jax.vjp(jnp.sin, X)[1](X[:2]), ValueError, "unexpected JAX type"),
    ("vjp, dtype", lambda: jax.vjp(jnp.sin, X)[1](X.astype(jnp.float16)), ValueError, "unexpected JAX type"),
    ("vjp, no cotangent", lambda: jax.vjp(jnp.sin, 1.0)[1](), TypeError, ""),
    ("vjp, two cotangents", lambda: jax.vjp(jnp.sin, 1.0)[1](1.0, 1.0), TypeError, ""),
    (
        "linearize, shape",
        lambda: jax.linearize(jnp.sin, X)[1](X[:2]),
        ValueError,
        "inconsistent with the original primal",
    ),
    ("linearize, dtype", lambda: jax.linearize(jnp.sin, X)[1](X.astype(jnp.float16)), ValueError, "inconsistent with"),
    ("linearize, number", lambda: jax.linearize(jnp.sin, 1.0)[1](1.0, 2.0), TypeError, ""),
)
def test_refused_types(run, error, says):
    with pytest.raises(error) as caught:
        run()
    assert says in str(caught.value)


# --- returned functions -----------------------------------------------------------------------------------------------


@values(
    ("vjp value", lambda: jax.vjp(jnp.sin, X)[0], np.sin(X)),
    ("vjp twice", lambda: [(p := jax.vjp(jnp.sin, 1.0)[1])(1.0), p(2.0)], [C(1.0), 2 * C(1.0)]),
    ("vjp under jit", lambda: jax.jit(lambda x: jax.vjp(jnp.sin, x)[1](x))(1.0), (C(1.0),)),
    ("vjp handed to jit", lambda: jax.jit(lambda p, ct: p(ct))(jax.vjp(jnp.sin, 1.0)[1], 2.0), (2 * C(1.0),)),
    ("vjp handed out of jit", lambda: jax.jit(lambda x: jax.vjp(jnp.sin, x))(1.0)[1](2.0), (2 * C(1.0),)),
    ("vjp vmapped", lambda: jax.vmap(jax.vjp(jnp.sin, X)[1])(jnp.eye(3))[0], np.diag(np.cos(X))),
    ("vjp through tree.map", lambda: jax.tree.map(lambda r: r * 2, jax.vjp(lambda x: x * X, X)[1])(X)[0], 2 * X * X),
    ("linearize twice", lambda: [(g := jax.linearize(jnp.sin, 1.0)[1])(1.0), g(2.0)], [C(1.0), 2 * C(1.0)]),
    ("linearize vmapped", lambda: jax.vmap(jax.linearize(jnp.sin, X)[1])(jnp.eye(3)), np.diag(np.cos(X))),
    ("linearize jitted", lambda: jax.jit(jax.linearize(jnp.sin, 1.0)[1])(2.0), 2 * C(1.0)),
    ("linearize transposed", lambda: jax.linear_transpose(jax.linearize(jnp.sin, X)[1], X)(X)[0], np.cos(X) * X),
    ("linear_transpose", lambda: jax.linear_transpose(lambda x: 3 * x, X)(X), (3 * X,)),
    ("linear_transpose, two", lambda: jax.linear_transpose(lambda x, y: x - 2 * y, 1.0, 1.0)(1.0), (1.0, -2.0)),
    ("linear_transpose of a type", lambda: jax.linear_transpose(lambda x: x.sum(), jax.ShapeDtypeStruct((3,), jnp.float32))(
        2.0), ([2.0] * 3,)),
    ("linear_transpose, tree", lambda: jax.linear_transpose(lambda p: p["a"] + p["b"], {"a": 1.0, "b": 1.0})(2.0),
     ({"a": 2.0, "b": 2.0},)),
    ("linear_transpose twice", lambda: jax.linear_transpose(lambda ct: jax.linear_transpose(lambda x: 3 * x, 1.0)(ct)[0], 1.0)(
        1.0), (3.0,)),
    ("linear_transpose of a scan", lambda: jax.linear_transpose(
        lambda x: lax.scan(lambda c, a: (c + a, None), jnp.zeros(()), x)[0], X)(1.0), ([1.0] * 3,)),
    ("shape only", lambda: jax.eval_shape(jax.grad(lambda x: jnp.sin(x).sum()), X).shape, (3,)),
    ("make_jaxpr", lambda: jax.make_jaxpr(jax.grad(lambda x: jnp.sin(x).sum()))(X).out_avals[0].shape, (3,)),
)  # fmt: skip
def test_returned_functions(run, want):
    close(run(), want)


@errors(
    ("not linear", lambda: jax.linear_transpose(jnp.sin, 1.0)(1.0), NotImplementedError, "sin"),
    ("wrong cotangent", lambda: jax.linear_transpose(lambda x: 3 * x, X)(X[:2]), TypeError, "cotangent type"),
    ("wrong structure", lambda: jax.linear_transpose(lambda x: (x, x), 1.0)(1.0), TypeError, "cotangent tree"),
    (
        "mixed types",
        lambda: jax.linear_transpose(lambda x: x * 1.0, 1)(1.0),
        TypeError,
        "linear_transpose only supports",
    ),
)
def test_refused_transposes(run, error, says):
    with pytest.raises(error) as caught:
        run()
    assert says in str(caught.value)


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacfwd", "jacrev"])
def test_wrappers_keep_the_name_and_say_what_they_are(name):
    def energy(x):
        """The energy."""
        return x**2

    made = getattr(jax, name)(energy)
    assert made.__name__ == "energy"
    assert "energy" in made.__doc__
    assert made.__wrapped__ is energy


# --- higher derivatives -----------------------------------------------------------------------------------------------


@values(
    ("second", lambda: jax.grad(jax.grad(jnp.sin))(1.0), -S(1.0)),
    ("third", lambda: jax.grad(jax.grad(jax.grad(jnp.sin)))(1.0), -C(1.0)),
    ("fourth", lambda: jax.grad(jax.grad(jax.grad(jax.grad(jnp.sin))))(1.0), S(1.0)),
    ("jvp of jvp", lambda: jax.jvp(lambda x: jax.jvp(jnp.sin, (x,), (1.0,))[1], (1.0,), (1.0,))[1], -S(1.0)),
    ("jvp of grad", lambda: jax.jvp(jax.grad(jnp.sin), (1.0,), (1.0,))[1], -S(1.0)),
    ("grad of jvp", lambda: jax.grad(lambda x: jax.jvp(jnp.sin, (x,), (1.0,))[1])(1.0), -S(1.0)),
    ("grad of vjp", lambda: jax.grad(lambda x: jax.vjp(jnp.sin, x)[1](1.0)[0])(1.0), -S(1.0)),
    ("grad of linearize", lambda: jax.grad(lambda x: jax.linearize(jnp.sin, x)[1](1.0))(1.0), -S(1.0)),
    ("jacfwd of jacrev", lambda: jax.jacfwd(jax.jacrev(lambda x: (x**3).sum()))(X), np.diag(6 * X)),
    ("jacrev of jacfwd", lambda: jax.jacrev(jax.jacfwd(lambda x: (x**3).sum()))(X), np.diag(6 * X)),
    ("jacrev of jacrev", lambda: jax.jacrev(jax.jacrev(lambda x: (x**3).sum()))(X), np.diag(6 * X)),
    ("hessian", lambda: jax.hessian(lambda x: (x**3).sum())(X), np.diag(6 * X)),
    ("hessian-vector product", lambda: jax.jvp(jax.grad(lambda x: (x**3).sum()), (X,), (X,))[1], 6 * X * X),
    ("reverse over reverse product", lambda: jax.grad(lambda x: jnp.vdot(jax.grad(lambda y: (y**3).sum())(x), X))(X), 6 * X * X),
    ("nested, one inside another's argument", lambda: jax.grad(lambda x: x * jax.grad(lambda y: x * y**2)(3.0))(2.0), 24.0),
    ("perturbations are not confused", lambda: jax.grad(lambda x: x * jax.grad(lambda y: x + y)(1.0))(1.0), 1.0),
    ("jvp inside vmap inside grad", lambda: jax.grad(
        lambda x: jax.vmap(lambda y: jax.jvp(jnp.sin, (y,), (1.0,))[1])(x).sum())(X), -np.sin(X)),
    ("jacobian of a matrix", lambda: jax.jacrev(lambda a: a @ X)(jnp.ones((2, 3))).shape, (2, 2, 3)),
    ("jacfwd of a matrix", lambda: jax.jacfwd(lambda a: a @ X)(jnp.ones((2, 3))).shape, (2, 2, 3)),
    ("jacobian, scalar to matrix", lambda: jax.jacfwd(lambda s: s * jnp.ones((2, 3)))(1.0).shape, (2, 3)),
)  # fmt: skip
def test_higher_order(run, want):
    close(run(), want, rtol=1e-4)


# --- jit and vmap -----------------------------------------------------------------------------------------------------


@values(
    ("jit of grad", lambda: jax.jit(jax.grad(jnp.sin))(1.0), C(1.0)),
    ("grad of jit", lambda: jax.grad(jax.jit(jnp.sin))(1.0), C(1.0)),
    ("jit of grad of jit", lambda: jax.jit(jax.grad(jax.jit(jnp.sin)))(1.0), C(1.0)),
    ("vmap of grad", lambda: jax.vmap(jax.grad(jnp.sin))(X), np.cos(X)),
    ("grad of vmap", lambda: jax.grad(lambda x: jax.vmap(jnp.sin)(x).sum())(X), np.cos(X)),
    ("per example", lambda: jax.vmap(jax.grad(lambda w, x: (w * x) ** 2), (None, 0))(2.0, X), 4 * X * X),
    ("vmap of value_and_grad", lambda: jax.vmap(jax.value_and_grad(jnp.sin))(X), (np.sin(X), np.cos(X))),
    ("vmap of jvp", lambda: jax.vmap(lambda x: jax.jvp(jnp.sin, (x,), (2.0,))[1])(X), 2 * np.cos(X)),
    ("vmap of vjp", lambda: jax.vmap(lambda x: jax.vjp(jnp.sin, x)[1](2.0)[0])(X), 2 * np.cos(X)),
    ("vmap of linearize", lambda: jax.vmap(lambda x: jax.linearize(jnp.sin, x)[1](2.0))(X), 2 * np.cos(X)),
    ("vmap of hessian", lambda: jax.vmap(jax.hessian(jnp.sin))(X), -np.sin(X)),
    ("vmap of vmap of grad", lambda: jax.vmap(jax.vmap(jax.grad(jnp.sin)))(X[None]), np.cos(X)[None]),
    ("jit of vmap of grad", lambda: jax.jit(jax.vmap(jax.grad(jnp.sin)))(X), np.cos(X)),
    ("grad inside scan", lambda: lax.scan(lambda c, x: (c, jax.grad(jnp.sin)(x)), 0.0, X)[1], np.cos(X)),
    ("grad inside cond", lambda: lax.cond(True, jax.grad(jnp.sin), jax.grad(jnp.cos), 1.0), C(1.0)),
    ("grad inside while", lambda: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, jax.grad(jnp.sin)(c[1])), (0, 1.0))[1],
     C(C(1.0))),
    ("grad inside checkpoint", lambda: jax.checkpoint(jax.grad(jnp.sin))(1.0), C(1.0)),
    ("named_call", lambda: jax.grad(jax.named_call(jnp.sin, name="s"))(1.0), C(1.0)),
    ("donated", lambda: jax.grad(jax.jit(lambda x: jnp.sin(x), donate_argnums=0))(1.0), C(1.0)),
)  # fmt: skip
def test_with_jit_and_vmap(run, want):
    close(run(), want)


@errors(
    (
        "bool under jit",
        lambda: jax.jit(jax.grad(lambda x: x if x > 0 else -x))(1.0),
        jax.errors.TracerBoolConversionError,
        "",
    ),
    ("float under grad", lambda: jax.grad(lambda x: float(x) * 2)(1.0), jax.errors.ConcretizationTypeError, ""),
    ("numpy under grad", lambda: jax.grad(lambda x: np.sin(x))(1.0), jax.errors.TracerArrayConversionError, ""),
    (
        "pure_callback",
        lambda: jax.grad(lambda x: jax.pure_callback(np.sin, x, x))(1.0),
        ValueError,
        "Pure callbacks do not",
    ),
)
def test_refused_inside(run, error, says):
    with pytest.raises(error) as caught:
        run()
    assert says in str(caught.value)


@values(
    ("if", lambda: jax.grad(lambda x: x**2 if x > 0 else -x)(3.0), 6.0),
    ("else", lambda: jax.grad(lambda x: x**2 if x > 0 else -x)(-3.0), -1.0),
    ("while", lambda: jax.grad(_doubled)(1.0), 8.0),
    ("for over a range", lambda: jax.grad(lambda x: sum(x**i for i in range(3)))(2.0), 5.0),
    ("for over rows", lambda: jax.grad(lambda x: sum(row**2 for row in x))(X), 2 * X),
    ("assert", lambda: jax.grad(_asserted)(1.0), 2.0),
    ("int as an index", lambda: jax.grad(lambda x: X[int(x)] * x)(2.0), 2.0),
)
def test_python_control_flow(run, want):
    close(run(), want)


def _doubled(x):
    y = x
    while y < 5.0:
        y = y * 2
    return y


def _asserted(x):
    assert x > 0
    return x * 2


# --- numerics ---------------------------------------------------------------------------------------------------------


@values(
    ("stop_gradient", lambda: jax.grad(lambda x: x * lax.stop_gradient(x))(3.0), 3.0),
    ("straight through", lambda: jax.grad(lambda x: x + lax.stop_gradient(jnp.round(x) - x))(3.3), 1.0),
    ("where, safe", lambda: jax.grad(lambda x: jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1.0)), 0.0))(0.0), 0.0),
    ("where, unsafe", lambda: jnp.isnan(jax.grad(lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0))(0.0)), True),
    ("sqrt at zero", lambda: jax.grad(jnp.sqrt)(0.0), np.inf),
    ("abs at zero", lambda: jax.grad(jnp.abs)(0.0), 1.0),
    ("relu at zero", lambda: jax.grad(jax.nn.relu)(0.0), 0.0),
    ("max, tie", lambda: jax.grad(lambda x: x.max())(jnp.ones(2)), [0.5, 0.5]),
    ("maximum, tie", lambda: jax.grad(jnp.maximum)(1.0, 1.0), 0.5),
    ("floor", lambda: jax.grad(jnp.floor)(1.5), 0.0),
    ("sign", lambda: jax.grad(jnp.sign)(1.5), 0.0),
    ("argmax", lambda: jax.grad(lambda x: x[jnp.argmax(x)])(X), [0.0, 0.0, 1.0]),
    ("sort", lambda: jax.grad(lambda x: jnp.sort(x)[0])(X), [1.0, 0.0, 0.0]),
    ("indexing", lambda: jax.grad(lambda x: x[1] ** 2)(X), [0.0, 2.0, 0.0]),
    ("repeated indices", lambda: jax.grad(lambda x: x[jnp.array([0, 0])].sum())(X), [2.0, 0.0, 0.0]),
    ("at set", lambda: jax.grad(lambda x: x.at[0].set(5.0).sum())(X), [0.0, 1.0, 1.0]),
    ("at add", lambda: jax.grad(lambda x: x.at[0].add(x[1]).sum())(X), [1.0, 2.0, 1.0]),
    ("matmul", lambda: jax.grad(lambda a: (a @ X).sum())(jnp.ones((2, 3))), np.stack([X, X])),
    ("einsum", lambda: jax.grad(lambda a: jnp.einsum("ij,j->", a, X))(jnp.ones((2, 3))), np.stack([X, X])),
    ("logsumexp", lambda: jax.grad(jax.scipy.special.logsumexp)(X), jax.nn.softmax(X)),
    ("softmax", lambda: jax.grad(lambda x: jax.nn.softmax(x)[0])(jnp.zeros(2)), [0.25, -0.25]),
    ("norm", lambda: jax.grad(jnp.linalg.norm)(jnp.array([3.0, 4.0])), [0.6, 0.8]),
    ("inverse", lambda: jax.grad(lambda a: jnp.linalg.inv(a)[0, 0])(2.0 * jnp.eye(2)), [[-0.25, 0.0], [0.0, 0.0]]),
    ("determinant", lambda: jax.grad(jnp.linalg.det)(2.0 * jnp.eye(2)), 2.0 * np.eye(2)),
    ("fft", lambda: jax.grad(lambda x: jnp.abs(jnp.fft.fft(x)[0]))(X), [1.0, 1.0, 1.0]),
    ("cumsum", lambda: jax.grad(lambda x: jnp.cumsum(x)[1])(X), [1.0, 1.0, 0.0]),
    ("convolve", lambda: jax.grad(lambda x: jnp.convolve(x, jnp.ones(2)).sum())(X), [2.0, 2.0, 2.0]),
    ("power of zero", lambda: jax.grad(lambda x: x**2)(0.0), 0.0),
    ("integer power", lambda: jax.grad(lambda x: x**3)(2.0), 12.0),
    ("float power", lambda: jax.grad(lambda x: x**2.5)(4.0), 20.0),
    ("exponent", lambda: jax.grad(lambda x: 2.0**x)(3.0), 8.0 * math.log(2.0)),
    ("modulo", lambda: jax.grad(lambda x: x % 2.0)(3.5), 1.0),
    ("clip", lambda: jax.grad(lambda x: jnp.clip(x, 0.0, 1.0))(2.0), 0.0),
    ("interp", lambda: jax.grad(lambda x: jnp.interp(x, X, X**2))(0.75), 1.5),
)
def test_operations(run, want):
    close(run(), want)


# --- control flow -----------------------------------------------------------------------------------------------------


def scanned(x, xs=X, **options):
    return lax.scan(lambda c, a: (c * a, c), x, xs, **options)


@values(
    ("scan", lambda: jax.grad(lambda x: scanned(x)[0])(2.0), 1.0),
    ("scan, in xs", lambda: jax.grad(lambda xs: scanned(2.0, xs)[0])(X), 2.0 / X),
    ("scan, stacked", lambda: jax.grad(lambda x: scanned(x)[1].sum())(2.0), 1.0 + 0.5 + 0.5),
    ("scan, reverse", lambda: jax.grad(lambda x: scanned(x, reverse=True)[1].sum())(2.0), 1.0 + 2.0 + 2.0),
    ("scan, unroll", lambda: jax.grad(lambda x: scanned(x, unroll=2)[0])(2.0), 1.0),
    ("scan, unroll wholly", lambda: jax.grad(lambda x: scanned(x, unroll=True)[0])(2.0), 1.0),
    ("scan, length zero", lambda: jax.grad(lambda x: scanned(x, jnp.zeros(0))[0])(2.0), 1.0),
    ("scan, no xs", lambda: jax.grad(lambda x: lax.scan(lambda c, _: (c * x, None), 1.0, None, length=3)[0])(2.0), 12.0),
    ("scan, no carry", lambda: jax.grad(lambda xs: lax.scan(lambda c, a: (c, a**2), None, xs)[1].sum())(X), 2 * X),
    ("scan, integer carry", lambda: jax.grad(
        lambda x: lax.scan(lambda c, _: ((c[0] + 1, c[1] * c[0]), None), (1, x), None, length=3)[0][1])(2.0), 6.0),
    ("scan, tree", lambda: jax.grad(
        lambda x: lax.scan(lambda c, a: ({"y": c["y"] * a["k"]}, None), {"y": x}, {"k": X})[0]["y"])(2.0), 1.0),
    ("scan, closed over", lambda: jax.grad(lambda w: lax.scan(lambda c, a: (c + w * a, None), 0.0, X)[0])(2.0), 3.5),
    ("scan, hessian", lambda: jax.hessian(lambda x: lax.scan(lambda c, _: (c * x, None), 1.0, None, length=3)[0])(2.0), 12.0),
    ("scan, jacfwd", lambda: jax.jacfwd(lambda x: scanned(x)[0])(2.0), 1.0),
    ("scan, vmap", lambda: jax.vmap(jax.grad(lambda x: scanned(x)[0]))(X), [1.0, 1.0, 1.0]),
    ("scan in scan", lambda: jax.grad(lambda x: lax.scan(lambda c, _: (scanned(c)[0], None), x, None, length=2)[0])(2.0), 1.0),
    ("map", lambda: jax.grad(lambda xs: lax.map(jnp.sin, xs).sum())(X), np.cos(X)),
    ("fori, static", lambda: jax.grad(lambda x: lax.fori_loop(0, 3, lambda i, c: c * x, 1.0))(2.0), 12.0),
    ("fori, traced bounds, forward", lambda: jax.jvp(
        jax.jit(lambda x: lax.fori_loop(0, jnp.int32(x + 1), lambda i, c: c * x, 1.0)), (2.0,), (1.0,))[1], 12.0),
    ("while, forward", lambda: jax.jvp(lambda x: lax.while_loop(lambda c: c < 9.0, lambda c: c * 2.0, x), (1.0,), (1.0,)),
     (16.0, 16.0)),
    ("while, jacfwd", lambda: jax.jacfwd(lambda x: lax.while_loop(lambda c: c < 9.0, lambda c: c * 2.0, x))(1.0), 16.0),
    ("while beside", lambda: jax.grad(lambda x: x * lax.while_loop(lambda n: n < 5, lambda n: n + 2, 0))(1.0), 6.0),
    ("while, linearize", lambda: jax.linearize(lambda x: lax.while_loop(lambda c: c < 9.0, lambda c: c * 2.0, x), 1.0)[1](1.0),
     16.0),
    ("cond, true", lambda: jax.grad(lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x))(1.0), C(1.0)),
    ("cond, false", lambda: jax.grad(lambda x: lax.cond(x < 0, jnp.sin, jnp.cos, x))(1.0), -S(1.0)),
    ("cond, operand unused", lambda: jax.grad(lambda x: lax.cond(x > 0, lambda x: 3.0, lambda x: x, x))(1.0), 0.0),
    ("cond, closed over", lambda: jax.grad(lambda x: lax.cond(True, lambda: x**2, lambda: x))(3.0), 6.0),
    ("cond, jvp", lambda: jax.jvp(lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x), (1.0,), (2.0,))[1], 2 * C(1.0)),
    ("cond, vmap", lambda: jax.vmap(jax.grad(lambda x: lax.cond(x > 0.7, jnp.sin, jnp.cos, x)))(X),
     [-S(0.5), C(1.0), C(2.0)]),
    ("cond, second", lambda: jax.grad(jax.grad(lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x)))(1.0), -S(1.0)),
    ("switch", lambda: jax.grad(lambda x: lax.switch(2, [jnp.sin, jnp.cos, jnp.exp], x))(0.0), 1.0),
    ("switch, index out of range", lambda: jax.grad(lambda x: lax.switch(9, [jnp.sin, jnp.cos], x))(1.0), -S(1.0)),
    ("select", lambda: jax.grad(lambda x: lax.select(x > 0, x * 2, x * 3).sum())(X - 1.0), [3.0, 3.0, 2.0]),
    ("associative_scan", lambda: jax.grad(lambda x: lax.associative_scan(jnp.multiply, x)[-1])(X), 1.0 / X),
    ("associative_scan, reverse", lambda: jax.grad(lambda x: lax.associative_scan(jnp.add, x, reverse=True)[0])(X), [1.0] * 3),
    ("cond in scan", lambda: jax.grad(
        lambda x: lax.scan(lambda c, a: (lax.cond(a > 0.7, lambda c: c * a, lambda c: c, c), None), x, X)[0])(1.0), 2.0),
    ("custom_linear_solve", lambda: jax.grad(
        lambda b: lax.custom_linear_solve(lambda x: 2.0 * x, b, lambda f, b: b / 2.0, lambda f, b: b / 2.0))(3.0), 0.5),
    ("custom_root", lambda: jax.grad(lambda a: lax.custom_root(
        lambda x: x**2 - a, 1.0, lambda f, x: lax.fori_loop(0, 20, lambda i, x: x - f(x) / (2 * x), x),
        lambda g, y: y / g(1.0)))(4.0), 0.25),
)  # fmt: skip
def test_control_flow(run, want):
    close(run(), want)


WHILE = "Reverse-mode differentiation does not work for lax.while_loop or lax.fori_loop with dynamic start/stop values"


@errors(
    ("while", lambda: jax.grad(lambda x: lax.while_loop(lambda c: c < 9.0, lambda c: c * 2.0, x))(1.0), ValueError, WHILE),
    ("fori, traced bound", lambda: jax.grad(jax.jit(lambda x, n: lax.fori_loop(0, n, lambda i, c: c * x, 1.0)))(2.0, 3),
     ValueError, WHILE),
    ("while in scan", lambda: jax.grad(lambda x: lax.scan(
        lambda c, _: (lax.while_loop(lambda c: c < 9.0, lambda c: c * 2.0, c), None), x, None, length=2)[0])(1.0),
     ValueError, WHILE),
    ("while in cond", lambda: jax.grad(lambda x: lax.cond(
        x > 0, lambda x: lax.while_loop(lambda c: c < 9.0, lambda c: c * 2.0, x), jnp.sin, x))(1.0), ValueError, WHILE),
    ("while in checkpoint", lambda: jax.grad(jax.checkpoint(
        lambda x: lax.while_loop(lambda c: c < 9.0, lambda c: c * 2.0, x)))(1.0), ValueError, WHILE),
    ("jacrev of a while", lambda: jax.jacrev(lambda x: lax.while_loop(lambda c: c < 9.0, lambda c: c * 2.0, x))(1.0),
     ValueError, WHILE),
    ("scan, carry type", lambda: jax.grad(lambda x: lax.scan(lambda c, _: (c.astype(int), None), x, None, length=2)[0])(1.0),
     TypeError, "carry"),
    ("cond, branch types", lambda: jax.grad(lambda x: lax.cond(True, lambda x: x, lambda x: (x, x), x))(1.0), TypeError, ""),
)  # fmt: skip
def test_refused_control_flow(run, error, says):
    with pytest.raises(error) as caught:
        run()
    assert says in str(caught.value)


# --- custom rules -----------------------------------------------------------------------------------------------------


@jax.custom_jvp
def scaled(x):
    return jnp.sin(x)


@scaled.defjvp
def scaled_jvp(primals, tangents):
    return scaled(primals[0]), 10.0 * tangents[0]


@jax.custom_jvp
def by_argument(x, y):
    return x * y


by_argument.defjvps(lambda t, out, x, y: 5.0 * t, None)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def applied(f, x):
    return f(x)


@applied.defjvp
def applied_jvp(f, primals, tangents):
    return f(primals[0]), 7.0 * tangents[0]


@jax.custom_jvp
def of_tree_jvp(p):
    return {"s": p["a"] * p["b"]}


@of_tree_jvp.defjvp
def of_tree_rule(primals, tangents):
    (p,), (t,) = primals, tangents
    return of_tree_jvp(p), {"s": 2.0 * t["a"] + 3.0 * t["b"]}


@jax.custom_jvp
def zeros_seen(x, y):
    return x + y


def zeros_rule(primals, tangents):
    n = sum(type(t) is SymbolicZero for t in tangents)
    return zeros_seen(*primals), 100.0 * n + 0.0 * primals[0]


zeros_seen.defjvp(zeros_rule, symbolic_zeros=True)


@jax.custom_vjp
def reverse(x):
    return jnp.sin(x)


reverse.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * 10.0,))


@jax.custom_vjp
def half_none(x, y):
    return x * y


half_none.defvjp(lambda x, y: (x * y, None), lambda _, ct: (ct * 4.0, None))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def applied_vjp(f, x):
    return f(x)


applied_vjp.defvjp(lambda f, x: (f(x), x), lambda f, x, ct: (ct * f(1.0),))


@jax.custom_vjp
def with_integer(x, n):
    return x * n


with_integer.defvjp(lambda x, n: (x * n, n), lambda n, ct: (ct * n * 2, np.zeros((), jax.dtypes.float0)))


@jax.custom_vjp
def in_dict(p):
    return p["a"] * p["b"]


in_dict.defvjp(lambda p: (in_dict(p), p), lambda p, ct: ({"a": ct, "b": 2.0 * ct},))


@jax.custom_vjp
def clipped(x):
    return x


clipped.defvjp(lambda x: (x, None), lambda _, ct: (jnp.clip(ct, -1.0, 1.0),))


@jax.custom_gradient
def twice(x):
    return x**2, lambda ct: ct * 9.0


@jax.custom_vjp
def optimized(x):
    return jnp.sin(x)


optimized.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * 6.0,), optimize_remat=True)


@values(
    ("jvp rule, grad", lambda: jax.grad(scaled)(1.0), 10.0),
    ("jvp rule, jvp", lambda: jax.jvp(scaled, (1.0,), (2.0,))[1], 20.0),
    ("jvp rule, value", lambda: jax.value_and_grad(scaled)(1.0)[0], S(1.0)),
    ("jvp rule, linearize", lambda: jax.linearize(scaled, 1.0)[1](1.0), 10.0),
    ("jvp rule, second", lambda: jax.grad(jax.grad(scaled))(1.0), 0.0),
    ("jvp rule, jit", lambda: jax.jit(jax.grad(scaled))(1.0), 10.0),
    ("jvp rule, of jit", lambda: jax.grad(jax.jit(scaled))(1.0), 10.0),
    ("jvp rule, vmap", lambda: jax.vmap(jax.grad(scaled))(X), [10.0] * 3),
    ("jvp rule, scan", lambda: jax.grad(lambda x: lax.scan(lambda c, _: (scaled(c), None), x, None, length=2)[0])(1.0), 100.0),
    ("jvp rule, cond", lambda: jax.grad(lambda x: lax.cond(True, scaled, jnp.cos, x))(1.0), 10.0),
    ("jvp rule, checkpoint", lambda: jax.grad(jax.checkpoint(lambda x: scaled(x) * 2.0))(1.0), 20.0),
    ("defjvps", lambda: jax.grad(by_argument, (0, 1))(2.0, 3.0), (5.0, 0.0)),
    ("nondiff_argnums", lambda: jax.grad(lambda x: applied(jnp.sin, x))(1.0), 7.0),
    ("tree in a jvp rule", lambda: jax.grad(lambda p: of_tree_jvp(p)["s"])({"a": 1.0, "b": 1.0}), {"a": 2.0, "b": 3.0}),
    ("symbolic zeros, one", lambda: jax.jvp(lambda x: zeros_seen(x, 1.0), (1.0,), (1.0,))[1], 100.0),
    ("symbolic zeros, none", lambda: jax.jvp(lambda x: zeros_seen(x, x), (1.0,), (1.0,))[1], 0.0),
    ("vjp rule, grad", lambda: jax.grad(reverse)(1.0), 10.0),
    ("vjp rule, value", lambda: jax.value_and_grad(reverse)(1.0)[0], S(1.0)),
    ("vjp rule, vjp", lambda: jax.vjp(reverse, 1.0)[1](2.0), (20.0,)),
    ("vjp rule, jit", lambda: jax.jit(jax.grad(reverse))(1.0), 10.0),
    ("vjp rule, of jit", lambda: jax.grad(jax.jit(reverse))(1.0), 10.0),
    ("vjp rule, vmap", lambda: jax.vmap(jax.grad(reverse))(X), [10.0] * 3),
    ("vjp rule, of vmap", lambda: jax.grad(lambda x: jax.vmap(reverse)(x).sum())(X), [10.0] * 3),
    ("vjp rule, scan", lambda: jax.grad(lambda x: lax.scan(lambda c, _: (reverse(c), None), x, None, length=2)[0])(1.0), 100.0),
    ("vjp rule, cond", lambda: jax.grad(lambda x: lax.cond(True, reverse, jnp.cos, x))(1.0), 10.0),
    ("vjp rule, checkpoint", lambda: jax.grad(jax.checkpoint(lambda x: reverse(x) * 2.0))(1.0), 20.0),
    ("vjp rule, jacrev", lambda: jax.jacrev(reverse)(X), 10.0 * np.eye(3)),
    ("vjp rule, second", lambda: jax.grad(jax.grad(lambda x: reverse(x) * x))(1.0), 10.0 + C(1.0)),
    ("None for a cotangent", lambda: jax.grad(half_none, (0, 1))(2.0, 3.0), (4.0, 0.0)),
    ("nondiff_argnums, vjp", lambda: jax.grad(lambda x: applied_vjp(lambda y: 3.0 * y, x))(2.0), 3.0),
    ("integer argument", lambda: jax.grad(with_integer)(2.0, 3), 6.0),
    ("tree in a vjp rule", lambda: jax.grad(in_dict)({"a": 2.0, "b": 3.0}), {"a": 1.0, "b": 2.0}),
    ("clipped gradient", lambda: jax.grad(lambda x: 5.0 * clipped(x))(1.0), 1.0),
    ("custom_gradient", lambda: jax.grad(twice)(2.0), 9.0),
    ("custom_gradient, value", lambda: jax.value_and_grad(twice)(2.0), (4.0, 9.0)),
    ("optimize_remat", lambda: jax.grad(optimized)(2.0), 6.0),
    ("optimize_remat in a checkpoint", lambda: jax.grad(jax.checkpoint(optimized))(2.0), 6.0),
    ("closure_convert", lambda: jax.grad(_closure_converted)(2.0), C(2.0) * 2.0 + S(2.0)),
    ("linear_call", lambda: jax.grad(
        lambda x: jax.custom_derivatives.linear_call(lambda r, x: r * x, lambda r, ct: 3.0 * ct, 2.0, x))(1.0), 3.0),
)  # fmt: skip
def test_custom_rules(run, want):
    close(run(), want)


def _closure_converted(x):
    f, consts = jax.closure_convert(lambda y: y * jnp.sin(x), x)
    return f(x, *consts)


def _misruled(kind, rule):
    made = getattr(jax, f"custom_{kind}")(lambda x: jnp.sin(x))
    if kind == "jvp":
        made.defjvp(rule)
    else:
        made.defvjp(*rule)
    return made


FORWARD = "can't apply forward-mode autodiff (jvp) to a custom_vjp function"


@errors(
    ("no jvp rule", lambda: jax.grad(jax.custom_jvp(lambda x: x))(1.0), AttributeError, "No JVP defined"),
    ("no vjp rule", lambda: jax.grad(jax.custom_vjp(lambda x: x))(1.0), AttributeError, "No VJP defined"),
    ("jvp rule gives no pair", lambda: jax.grad(_misruled("jvp", lambda p, t: p[0]))(1.0), TypeError, "must produce a pair"),
    ("jvp rule, structure", lambda: jax.grad(_misruled("jvp", lambda p, t: (p[0], (t[0],))))(1.0), TypeError,
     "equal container (pytree) structures"),
    ("jvp rule, shape", lambda: jax.jvp(_misruled("jvp", lambda p, t: (p[0], t[0][:2])), (X,), (X,)), TypeError,
     "corresponding shapes and dtypes"),
    ("fwd gives no pair", lambda: jax.grad(_misruled("vjp", (lambda x: x, lambda r, ct: (ct,))))(1.0), TypeError,
     "must produce a pair"),
    ("fwd, structure", lambda: jax.grad(_misruled("vjp", (lambda x: ((x,), x), lambda r, ct: (ct,))))(1.0), TypeError, ""),
    ("bwd gives no tuple", lambda: jax.grad(_misruled("vjp", (lambda x: (x, x), lambda r, ct: ct)))(1.0), TypeError,
     "must produce a tuple of length equal"),
    ("bwd, number", lambda: jax.grad(_misruled("vjp", (lambda x: (x, x), lambda r, ct: (ct, ct))))(1.0), TypeError,
     "must produce a tuple of length equal"),
    ("bwd, shape", lambda: jax.vjp(_misruled("vjp", (lambda x: (x, x), lambda r, ct: (ct[:2],))), X)[1](X), ValueError,
     "must produce an output with the same type"),
    ("forward mode", lambda: jax.jvp(reverse, (1.0,), (1.0,)), TypeError, FORWARD),
    ("forward mode, jacfwd", lambda: jax.jacfwd(reverse)(1.0), TypeError, FORWARD),
    ("forward mode, custom_gradient", lambda: jax.jvp(twice, (1.0,), (1.0,)), TypeError, FORWARD),
    ("forward mode, linearize", lambda: jax.linearize(reverse, 1.0)[1](1.0), TypeError, FORWARD),
    ("forward mode, inside", lambda: jax.jvp(lambda x: lax.cond(True, reverse, jnp.cos, x), (1.0,), (1.0,)), TypeError, FORWARD),
    ("a rule that raises", lambda: jax.grad(_misruled("jvp", lambda p, t: 1 / 0))(1.0), ZeroDivisionError, ""),
    ("linear_call, second", lambda: jax.grad(lambda r: jax.custom_derivatives.linear_call(
        lambda r, x: r * x, lambda r, ct: ct, r, 1.0))(1.0), AssertionError, ""),
)  # fmt: skip
def test_refused_custom_rules(run, error, says):
    with pytest.raises(error) as caught:
        run()
    assert says in str(caught.value)


# --- checkpoint -------------------------------------------------------------------------------------------------------

POLICIES = jax.checkpoint_policies


def layered(x):
    y = jax.ad_checkpoint.checkpoint_name(jnp.sin(x), "a")
    return jnp.sin(jnp.dot(y, y) * jax.ad_checkpoint.checkpoint_name(jnp.cos(y), "b")).sum()


@pytest.mark.parametrize(
    "policy",
    [
        None,
        POLICIES.everything_saveable,
        POLICIES.nothing_saveable,
        POLICIES.dots_saveable,
        POLICIES.checkpoint_dots,
        POLICIES.dots_with_no_batch_dims_saveable,
        POLICIES.checkpoint_dots_with_no_batch_dims,
        POLICIES.save_anything_except_these_names("a"),
        POLICIES.save_any_names_but_these("a"),
        POLICIES.save_only_these_names("a", "b"),
        POLICIES.save_from_both_policies(POLICIES.dots_saveable, POLICIES.save_only_these_names("a")),
        POLICIES.save_and_offload_only_these_names(
            names_which_can_be_saved=["a"],
            names_which_can_be_offloaded=["b"],
            offload_src="device",
            offload_dst="pinned_host",
        ),
        POLICIES.offload_dot_with_no_batch_dims("device", "pinned_host"),
        lambda prim, *_, **__: str(prim) == "sin",
    ],
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_every_policy(policy, wrap):
    f = jax.checkpoint(layered, policy=policy)
    want = jax.jit(jax.jacfwd(layered))(X)
    close(wrap(jax.grad(f))(X), want, rtol=1e-4)


@values(
    ("grad", lambda: jax.grad(jax.checkpoint(jnp.sin))(1.0), C(1.0)),
    ("remat", lambda: jax.grad(jax.remat(jnp.sin))(1.0), C(1.0)),
    ("value", lambda: jax.value_and_grad(jax.checkpoint(jnp.sin))(1.0)[0], S(1.0)),
    ("jvp", lambda: jax.jvp(jax.checkpoint(jnp.sin), (1.0,), (2.0,))[1], 2 * C(1.0)),
    ("linearize", lambda: jax.linearize(jax.checkpoint(jnp.sin), 1.0)[1](1.0), C(1.0)),
    ("second", lambda: jax.grad(jax.grad(jax.checkpoint(jnp.sin)))(1.0), -S(1.0)),
    ("of grad", lambda: jax.grad(jax.checkpoint(jax.grad(jnp.sin)))(1.0), -S(1.0)),
    ("nested", lambda: jax.grad(jax.checkpoint(lambda x: jax.checkpoint(jnp.sin)(x) * 2))(1.0), 2 * C(1.0)),
    ("decorator with options", lambda: jax.grad(functools.partial(jax.checkpoint, prevent_cse=False)(jnp.sin))(1.0), C(1.0)),
    ("static_argnums", lambda: jax.grad(jax.checkpoint(lambda x, n: x**n, static_argnums=(1,)))(2.0, 3), 12.0),
    ("keyword", lambda: jax.grad(lambda x: jax.checkpoint(lambda x, k: x * k)(x, k=3.0))(2.0), 3.0),
    ("tree", lambda: jax.grad(lambda p: jax.checkpoint(lambda p: p["a"] * p["b"])(p))({"a": 2.0, "b": 3.0}),
     {"a": 3.0, "b": 2.0}),
    ("in scan", lambda: jax.grad(
        lambda x: lax.scan(jax.checkpoint(lambda c, _: (jnp.sin(c), None)), x, None, length=2)[0])(1.0), C(1.0) * C(S(1.0))),
    ("of scan", lambda: jax.grad(jax.checkpoint(
        lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=2)[0]))(1.0), C(1.0) * C(S(1.0))),
    ("of cond", lambda: jax.grad(jax.checkpoint(lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x)))(1.0), C(1.0)),
    ("of jit", lambda: jax.grad(jax.checkpoint(jax.jit(jnp.sin)))(1.0), C(1.0)),
    ("vmap", lambda: jax.vmap(jax.grad(jax.checkpoint(jnp.sin)))(X), np.cos(X)),
    ("integer beside", lambda: jax.grad(jax.checkpoint(lambda x, n: x * n))(2.0, 3), 3.0),
    ("closed over", lambda: jax.grad(lambda w: jax.checkpoint(lambda x: x * w)(2.0))(1.0), 2.0),
    ("no tangent reaches it", lambda: jax.grad(lambda x: x * jax.checkpoint(jnp.sin)(1.0))(1.0), S(1.0)),
)  # fmt: skip
def test_checkpoint(run, want):
    close(run(), want)


def test_checkpoint_computes_again():
    counts = collections.Counter()

    def counted(x):
        jax.debug.callback(lambda: counts.update(["run"]))
        return jnp.sin(jnp.sin(x))

    jax.grad(counted)(1.0)
    jax.effects_barrier()
    plain = counts["run"]
    jax.grad(jax.checkpoint(counted))(1.0)
    jax.effects_barrier()
    assert (plain, counts["run"] - plain) == (1, 2)


# --- effects ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_debug_callbacks_keep_their_order(wrap):
    seen = []

    def f(x):
        jax.debug.callback(lambda v: seen.append(("before", float(v))), x, ordered=True)

        def step(c, i):
            jax.debug.callback(lambda v: seen.append(("step", float(v))), i, ordered=True)
            return jnp.sin(c), None

        y, _ = lax.scan(step, x, jnp.arange(2.0))
        jax.debug.callback(lambda v: seen.append(("after", float(v))), x, ordered=True)
        return y

    wrap(jax.grad(f))(1.0)
    jax.effects_barrier()
    assert seen == [("before", 1.0), ("step", 0.0), ("step", 1.0), ("after", 1.0)]


@pytest.mark.parametrize("x", [1.0, -1.0], ids=["the one branch", "the other"])
def test_debug_print_in_a_branch(x, capfd):
    def printing(x):
        jax.debug.print("taken {}", x)
        return jnp.sin(x)

    branches = (printing, jnp.cos) if x > 0 else (jnp.cos, printing)
    jax.grad(lambda x: lax.cond(x > 0, *branches, x))(x)
    jax.effects_barrier()
    assert capfd.readouterr().out.count(f"taken {x}") == 1


def test_the_function_is_called_once():
    calls = []

    def f(x):
        calls.append(1)
        return x**2

    jax.value_and_grad(f)(3.0)
    assert len(calls) == 1
