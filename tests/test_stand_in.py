"""Calls as users write them, with JAX's functions and with jaxviz's in their place: the same results, or the same
errors.

`ANSWERED` have results, which have JAX's structure, types and numbers; `REFUSED` raise errors, of JAX's type and in
JAX's words.
"""

from __future__ import annotations

import collections
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import value_programs
from jax import lax
from jax.custom_derivatives import SymbolicZero
from laws import assert_same
from short_runs import short

import jaxviz

REPLACED = ("grad", "vjp", "jvp", "linearize", "value_and_grad", "jacfwd", "jacrev", "hessian", "linear_transpose")
X, ONE = jnp.array([0.5, 1.0, 2.0]), jnp.float32(1.0)
Pair = collections.namedtuple("Pair", "a b")
ANSWERED, REFUSED = {}, {}


def f2(x, y):
    return x**2 * y


# --- arguments --------------------------------------------------------------------------------------------------------

ANSWERED |= {
    "second": lambda: jax.grad(f2, 1)(3.0, 4.0),
    "argnums by keyword": lambda: jax.grad(f2, argnums=1)(3.0, 4.0),
    "negative": lambda: jax.grad(f2, -1)(3.0, 4.0),
    "tuple of one": lambda: jax.grad(f2, (1,))(3.0, 4.0),
    "out of order": lambda: jax.grad(f2, (1, 0))(3.0, 4.0),
    "list": lambda: jax.grad(f2, [0, 1])(3.0, 4.0),
    "numpy integer": lambda: jax.grad(f2, np.int32(1))(3.0, 4.0),
    "keyword argument": lambda: jax.grad(lambda x, *, k: x**k)(2.0, k=3),
    "default argument": lambda: jax.grad(lambda x, k=3: x**k)(2.0),
    "variable arguments": lambda: jax.grad(lambda *xs: xs[0] * xs[1])(2.0, 5.0),
    "not an array, beside": lambda: jax.grad(lambda x, name: x * len(name))(2.0, "abc"),
    "integer beside": lambda: jax.grad(lambda x, n: x**n)(2.0, 3),
    "partial": lambda: jax.grad(functools.partial(f2, 3.0))(4.0),
    "bound method": lambda: jax.grad(X.dot)(X),
    "callable object": lambda: jax.grad(jnp.vectorize(jnp.sin))(0.0),
    "static argument of a jitted one": lambda: jax.grad(jax.jit(lambda x, n: x**n, static_argnums=1))(2.0, 3),
    "value_and_grad, tuple": lambda: jax.value_and_grad(f2, (0, 1))(3.0, 4.0),
    "numpy argument": lambda: jax.grad(lambda x: (x**2).sum())(np.array([1.0, 2.0])),
    "numpy scalar": lambda: jax.grad(lambda x: x**2)(np.float32(3.0)),
    "no inputs used": lambda: jax.grad(lambda x: 3.0)(1.0),
    "array of one element": lambda: jax.grad(lambda x: jnp.squeeze(x) ** 2)(jnp.ones((1, 1))),
    "vjp, no arguments": lambda: jax.vjp(lambda: 3.0)[0],
    "jvp, list of primals": lambda: jax.jvp(f2, [3.0, 4.0], [1.0, 0.0]),
    "linearize, two arguments": lambda: jax.linearize(f2, 3.0, 4.0)[1](1.0, 1.0),
    "jacfwd, second": lambda: jax.jacfwd(f2, 1)(3.0, 4.0),
    "jacrev, both": lambda: jax.jacrev(f2, (0, 1))(3.0, 4.0),
    "hessian, both": lambda: jax.hessian(f2, (0, 1))(3.0, 4.0),
}
REFUSED |= {
    "not callable": lambda: jax.grad(3.0),
    "vjp of no function": lambda: jax.vjp(3.0, 1.0),
    "jvp of no function": lambda: jax.jvp(3.0, (1.0,), (1.0,)),
    "argnums too large": lambda: jax.grad(f2, 2)(3.0, 4.0),
    "argnums before the first argument": lambda: jax.grad(f2, argnums=(0, -3))(1.0, 2.0),
    "argnums of a keyword": lambda: jax.grad(f2, 1)(3.0, y=4.0),
    "argnums a string": lambda: jax.grad(f2, "x"),
    "argnums a float": lambda: jax.grad(f2, 1.5),
    "too few": lambda: jax.grad(f2)(3.0),
    "too many": lambda: jax.grad(f2)(3.0, 4.0, 5.0),
    "a string": lambda: jax.grad(f2)("a", 4.0),
    "a string in a tree": lambda: jax.grad(lambda p: p["a"])({"a": 1.0, "b": "c"}),
    "an integer": lambda: jax.grad(f2)(3, 4.0),
    "a boolean": lambda: jax.jacrev(jnp.sin)(True),
    "an integer in a tree": lambda: jax.grad(lambda p: p["a"])({"a": 1.0, "n": 3}),
    "a vector comes out": lambda: jax.grad(lambda x: x)(X),
    "a tuple comes out": lambda: jax.grad(lambda x: (x, x))(1.0),
    "a dict comes out": lambda: jax.grad(lambda x: {"y": x})(1.0),
    "an integer comes out": lambda: jax.grad(lambda x: jnp.int32(x))(1.0),
    "a complex comes out": lambda: jax.grad(lambda x: x * 1j)(1.0),
    "a complex goes in": lambda: jax.grad(lambda x: jnp.abs(x).real * x)(1j),
    "None comes out": lambda: jax.grad(lambda x: None)(1.0),
    "a string comes out": lambda: jax.grad(lambda x: "a")(1.0),
    "jacfwd of an integer": lambda: jax.jacfwd(lambda x: x)(3),
    "jacrev of an integer": lambda: jax.jacrev(lambda x: x)(3),
    "jacrev to integers": lambda: jax.jacrev(lambda x: jnp.int32(x))(3.0),
    "hessian of an integer": lambda: jax.hessian(lambda x: x * x)(3),
    "the function's own error": lambda: jax.grad(lambda x: 1 / 0)(1.0),
    "sums over axes, grad": lambda: jax.grad(jnp.sin, reduce_axes=("i",)),
    "sums over axes, vjp": lambda: jax.vjp(jnp.sin, 1.0, reduce_axes=("i",)),
}

# --- pytrees and auxiliary output -------------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Weights:
    w: jax.Array
    b: float
    name: str = dataclasses.field(metadata={"static": True}, default="w")


TREE = {"w": X, "b": (jnp.float32(2.0), [jnp.float32(3.0), None])}


def of_tree(p):
    return (p["w"] ** 2).sum() * p["b"][0] + p["b"][1][0]


def with_aux(x):
    return x**3, {"x": x, "n": 3, "nothing": None}


ANSWERED |= {
    "dict": lambda: jax.grad(of_tree)(TREE),
    "namedtuple": lambda: jax.grad(lambda p: p.a * p.b)(Pair(2.0, 3.0)),
    "dataclass": lambda: jax.grad(lambda p: (p.w * p.b).sum())(Weights(X, 2.0)),
    "empty tuple beside": lambda: jax.grad(lambda p: p[0])((1.0, ())),
    "None beside": lambda: jax.grad(lambda x, none: x * 2)(1.0, None),
    "tree comes out of vjp": lambda: jax.vjp(lambda x: [x, (x,)], 2.0)[1]([1.0, (3.0,)]),
    "jacrev to a tree": lambda: jax.jacrev(lambda x: {"a": x**2, "b": x.sum()})(X),
    "jacfwd of a tree": lambda: jax.jacfwd(lambda p: p["a"] * p["b"])({"a": X, "b": 2.0}),
    "hessian of a tree": lambda: jax.hessian(lambda p: p["a"] ** 2 * p["b"])({"a": 3.0, "b": 2.0}),
    "aux of grad": lambda: jax.grad(with_aux, has_aux=True)(3.0),
    "aux of value_and_grad": lambda: jax.value_and_grad(with_aux, has_aux=True)(3.0),
    "aux of vjp": lambda: jax.vjp(with_aux, 3.0, has_aux=True)[2],
    "aux of jvp": lambda: jax.jvp(with_aux, (3.0,), (1.0,), has_aux=True),
    "aux of linearize": lambda: jax.linearize(with_aux, 3.0, has_aux=True)[2],
    "aux of jacfwd": lambda: jax.jacfwd(with_aux, has_aux=True)(3.0),
    "aux of jacrev": lambda: jax.jacrev(with_aux, has_aux=True)(3.0),
    "aux of hessian": lambda: jax.hessian(with_aux, has_aux=True)(3.0),
    "a list for a pair": lambda: jax.grad(lambda x: [x, 2], has_aux=True)(3.0),
    "aux under jit and vmap": lambda: jax.jit(jax.vmap(jax.grad(with_aux, has_aux=True)))(X),
    "aux that is no array": lambda: len(jax.value_and_grad(lambda x: (x, "text"), has_aux=True)(1.0)[0][1]),
}
REFUSED |= {
    "aux, one value": lambda: jax.grad(lambda x: x, has_aux=True)(3.0),
    "aux, three values": lambda: jax.grad(lambda x: (x, x, x), has_aux=True)(3.0),
    "aux of vjp, one value": lambda: jax.vjp(lambda x: x, 3.0, has_aux=True),
}

# --- types ------------------------------------------------------------------------------------------------------------


def of_a_type(transform, dtype):
    x, holomorphic = jnp.ones(3, dtype), {"holomorphic": True} if dtype == "complex64" else {}
    return {
        "grad": lambda: jax.grad(lambda x: (x * x).sum(), **holomorphic)(x),
        "vjp": lambda: jax.vjp(lambda x: x * x, x)[1](x),
        "jvp": lambda: jax.jvp(lambda x: x * x, (x,), (x,)),
        "linearize": lambda: jax.linearize(lambda x: x * x, x)[1](x),
        "jacrev": lambda: jax.jacrev(lambda x: x * x, **holomorphic)(x),
        "jacfwd": lambda: jax.jacfwd(lambda x: x * x, **holomorphic)(x),
    }[transform]()


def in_64_bits():
    with jax.enable_x64(True):
        return jax.grad(lambda x: jnp.sin(x))(jnp.float64(1.0))


ANSWERED |= {
    f"{transform} in {dtype}": functools.partial(of_a_type, transform, dtype)
    for transform in ("grad", "vjp", "jvp", "linearize", "jacrev", "jacfwd")
    for dtype in ("float16", "bfloat16", "complex64")
}
ANSWERED |= {
    "64 bits": in_64_bits,
    "weak in, weak out": lambda: jax.grad(lambda x: x * 2)(1.0),
    "strong in, strong out": lambda: jax.grad(lambda x: x * 2)(jnp.float32(1.0)),
    "allow_int": lambda: jax.grad(lambda n: (n * 1.0).sum(), allow_int=True)(jnp.arange(3)),
    "allow_int, boolean": lambda: jax.grad(lambda b: b * 1.0, allow_int=True)(True),
    "allow_int beside floats": lambda: jax.grad(lambda x, n: x * n, (0, 1), allow_int=True)(2.0, 3),
    "allow_int, jacrev": lambda: jax.jacrev(lambda x, n: x * n, 0, allow_int=True)(2.0, 3),
    "vjp of integers": lambda: jax.vjp(lambda n, x: n * x, 3, 2.0)[1](1.0),
    "jvp of integers": lambda: jax.jvp(lambda n: n * 2.0, (3,), (np.zeros((), jax.dtypes.float0),)),
    "jvp to integers": lambda: jax.jvp(jnp.int32, (3.0,), (1.0,)),
    "holomorphic": lambda: jax.grad(lambda z: z**2, holomorphic=True)(1.0 + 2.0j),
    "real of a complex": lambda: jax.grad(lambda z: jnp.abs(z) ** 2)(1.0 + 2.0j),
    "conjugate": lambda: jax.vjp(jnp.conj, 1.0 + 2.0j)[1](1.0j),
    "PRNG key beside": lambda: jax.grad(lambda x, k: x * jax.random.normal(k))(1.0, jax.random.key(0)),
    "PRNG key in a tree": lambda: jax.vjp(lambda s: s["x"] * 2, {"x": 1.0, "k": jax.random.key(0)})[1](1.0)[0]["x"],
}
REFUSED |= {
    "holomorphic of a real": lambda: jax.grad(lambda x: x, holomorphic=True)(1.0),
    "holomorphic to a real": lambda: jax.grad(lambda z: z.real, holomorphic=True)(1j),
    "jacfwd holomorphic of a real": lambda: jax.jacfwd(lambda x: x, holomorphic=True)(1.0),
    "jvp, integer tangent": lambda: jax.jvp(lambda n: n, (3,), (1,)),
    "jvp, float tangent of an integer": lambda: jax.jvp(lambda x: x * 2, (3,), (1.0,)),
    "jvp, dtype": lambda: jax.jvp(jnp.sin, (1.0,), (np.float16(1.0),)),
    "jvp, shape": lambda: jax.jvp(jnp.sin, (X,), (X[:2],)),
    "jvp, structure": lambda: jax.jvp(lambda p: p["a"], ({"a": 1.0},), ((1.0,),)),
    "jvp, number": lambda: jax.jvp(jnp.sin, (1.0,), ()),
    "jvp, no tuple": lambda: jax.jvp(jnp.sin, 1.0, 1.0),
    "vjp, structure": lambda: jax.vjp(lambda x: (x, x), 1.0)[1](1.0),
    "vjp, shape": lambda: jax.vjp(jnp.sin, X)[1](X[:2]),
    "vjp, dtype": lambda: jax.vjp(jnp.sin, X)[1](X.astype(jnp.float16)),
    "vjp, no cotangent": lambda: jax.vjp(jnp.sin, 1.0)[1](),
    "vjp, two cotangents": lambda: jax.vjp(lambda x: (x, x), 1.0)[1](1.0, 1.0),
    "linearize, shape": lambda: jax.linearize(jnp.sin, X)[1](X[:2]),
    "linearize, dtype": lambda: jax.linearize(jnp.sin, X)[1](X.astype(jnp.float16)),
    "linearize, number": lambda: jax.linearize(jnp.sin, 1.0)[1](1.0, 2.0),
}

# --- returned functions -----------------------------------------------------------------------------------------------

ANSWERED |= {
    "vjp twice": lambda: [(p := jax.vjp(jnp.sin, 1.0)[1])(1.0), p(2.0)],
    "vjp handed to jit": lambda: jax.jit(lambda p, ct: p(ct))(jax.vjp(jnp.sin, 1.0)[1], 2.0),
    "vjp handed out of jit": lambda: jax.jit(lambda x: jax.vjp(jnp.sin, x))(1.0)[1](2.0),
    "vjp vmapped": lambda: jax.vmap(jax.vjp(jnp.sin, X)[1])(jnp.eye(3)),
    "vjp through tree.map": lambda: jax.tree.map(lambda r: r * 2, jax.vjp(lambda x: x * X, X)[1])(X),
    "linearize vmapped": lambda: jax.vmap(jax.linearize(jnp.sin, X)[1])(jnp.eye(3)),
    "linearize jitted": lambda: jax.jit(jax.linearize(jnp.sin, 1.0)[1])(2.0),
    "linearize transposed": lambda: jax.linear_transpose(jax.linearize(jnp.sin, X)[1], X)(X),
    "linear_transpose, two": lambda: jax.linear_transpose(lambda x, y: x - 2 * y, ONE, ONE)(ONE),
    "linear_transpose of types": lambda: jax.linear_transpose(
        lambda x, y: (2 * x + y[0], x.sum()), jax.ShapeDtypeStruct((3,), "float32"),
        [jax.ShapeDtypeStruct((3,), "float32")]
    )((X, jnp.float32(2.0))),
    "linear_transpose, tree": lambda: jax.linear_transpose(lambda p: p["a"] + p["b"], {"a": 1.0, "b": 1.0})(2.0),
    "linear_transpose of integers": lambda: jax.linear_transpose(lambda i: i * 2, jnp.arange(3))(jnp.arange(3)),
    "linear_transpose twice": lambda: jax.linear_transpose(
        lambda ct: jax.linear_transpose(lambda x: 3 * x, ONE)(ct)[0], ONE
    )(ONE),
    "linear_transpose of a scan": lambda: jax.linear_transpose(
        lambda x: lax.scan(lambda c, a: (c + a, None), jnp.zeros(()), x)[0], X
    )(ONE),
    "shape only": lambda: jax.eval_shape(jax.grad(lambda x: jnp.sin(x).sum()), X).shape,
}  # fmt: skip
REFUSED |= {
    "not linear": lambda: jax.linear_transpose(jnp.sin, 1.0)(1.0),
    "transposed, cotangent": lambda: jax.linear_transpose(lambda x: 3 * x, X)(X[:2]),
    "transposed, structure": lambda: jax.linear_transpose(lambda x: (x, x), 1.0)(1.0),
    "transposed, tree": lambda: jax.linear_transpose(lambda x: 2 * x, X)((X, X)),
    "transposed, mixed types": lambda: jax.linear_transpose(lambda x: x * 1.0, 1)(1.0),
}

# --- higher derivatives, jit and vmap ---------------------------------------------------------------------------------

ANSWERED |= {
    "fourth": lambda: jax.grad(jax.grad(jax.grad(jax.grad(jnp.sin))))(1.0),
    "jvp of jvp": lambda: jax.jvp(lambda x: jax.jvp(jnp.sin, (x,), (1.0,))[1], (1.0,), (1.0,)),
    "grad of jvp": lambda: jax.grad(lambda x: jax.jvp(jnp.sin, (x,), (1.0,))[1])(1.0),
    "grad of vjp": lambda: jax.grad(lambda x: jax.vjp(jnp.sin, x)[1](1.0)[0])(1.0),
    "grad of linearize": lambda: jax.grad(lambda x: jax.linearize(jnp.sin, x)[1](1.0))(1.0),
    "jacfwd of jacrev": lambda: jax.jacfwd(jax.jacrev(lambda x: (x**3).sum()))(X),
    "jacrev of jacfwd": lambda: jax.jacrev(jax.jacfwd(lambda x: (x**3).sum()))(X),
    "jacrev of jacrev": lambda: jax.jacrev(jax.jacrev(lambda x: (x**3).sum()))(X),
    "nested, one inside another's argument": lambda: jax.grad(lambda x: x * jax.grad(lambda y: x * y**2)(3.0))(2.0),
    "perturbations are not confused": lambda: jax.grad(lambda x: x * jax.grad(lambda y: x + y)(1.0))(1.0),
    "jvp inside vmap inside grad": lambda: jax.grad(
        lambda x: jax.vmap(lambda y: jax.jvp(jnp.sin, (y,), (1.0,))[1])(x).sum())(X),
    "jacobian of a matrix": lambda: jax.jacrev(lambda a: a @ X)(jnp.ones((2, 3))),
    "jacfwd of a matrix": lambda: jax.jacfwd(lambda a: a @ X)(jnp.ones((2, 3))),
    "jacobian, scalar to matrix": lambda: jax.jacfwd(lambda s: s * jnp.ones((2, 3)))(1.0),
    "per example": lambda: jax.vmap(jax.grad(lambda w, x: (w * x) ** 2), (None, 0))(2.0, X),
    "vmap of value_and_grad": lambda: jax.vmap(jax.value_and_grad(jnp.sin))(X),
    "vmap of linearize": lambda: jax.vmap(lambda x: jax.linearize(jnp.sin, x)[1](2.0))(X),
    "vmap of hessian": lambda: jax.vmap(jax.hessian(jnp.sin))(X),
    "grad inside scan": lambda: lax.scan(lambda c, x: (c, jax.grad(jnp.sin)(x)), 0.0, X)[1],
    "grad inside cond": lambda: lax.cond(True, jax.grad(jnp.sin), jax.grad(jnp.cos), 1.0),
    "grad inside while": lambda: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, jax.grad(jnp.sin)(c[1])),
                                                (0, 1.0)),
    "grad inside checkpoint": lambda: jax.checkpoint(jax.grad(jnp.sin))(1.0),
    "donated": lambda: jax.grad(jax.jit(lambda x: jnp.sin(x), donate_argnums=0))(1.0),
}  # fmt: skip
REFUSED |= {
    "bool under jit": lambda: jax.jit(jax.grad(lambda x: x if x > 0 else -x))(1.0),
    "float under grad": lambda: jax.grad(lambda x: float(x) * 2)(1.0),
    "numpy under grad": lambda: jax.grad(lambda x: np.sin(x))(1.0),
    "asarray under grad": lambda: jax.grad(lambda x: x * np.asarray(x))(2.0),
    "complex under grad": lambda: jax.grad(lambda x: complex(x).real * x)(2.0),
    "bool under vmap": lambda: jax.vmap(jax.grad(lambda x: x if x > 0 else -x))(X),
    "float of an outer tangent": lambda: jax.grad(lambda x: jax.grad(lambda y: y * float(x))(1.0))(2.0),
    "pure_callback": lambda: jax.grad(lambda x: jax.pure_callback(np.sin, x, x))(1.0),
}

# --- Python's and JAX's control flow ----------------------------------------------------------------------------------


def doubled(x):
    assert x > 0
    while x < 5.0:
        x = x * 2
    return x


def until_nine(x):
    return lax.while_loop(lambda c: c < 9.0, lambda c: c * 2.0, x)


ANSWERED |= {
    "item": lambda: jax.grad(lambda x: x * x.item())(3.0),
    "float of what is not differentiated": lambda: jax.grad(lambda x, n: x * float(n))(2.0, ONE),
    "one path in another": lambda: jax.grad(lambda x: x * jax.grad(lambda y: y * x if y > x else y)(x + 1))(2.0),
    "if and else": lambda: [jax.grad(lambda x: x**2 if x > 0 else -x)(x) for x in (3.0, -3.0)],
    "while": lambda: jax.grad(doubled)(1.0),
    "for over rows": lambda: jax.grad(lambda x: sum(row**2 for row in x))(X),
    "int as an index": lambda: jax.grad(lambda x: X[int(x)] * x)(2.0),
    "scan, unroll wholly": lambda: jax.grad(lambda x: lax.scan(lambda c, a: (c * a, c), x, X, unroll=True)[0])(ONE),
    "scan, no carry": lambda: jax.grad(lambda xs: lax.scan(lambda c, a: (c, a**2), None, xs)[1].sum())(X),
    "fori, traced bounds, forward": lambda: jax.jvp(
        jax.jit(lambda x: lax.fori_loop(0, jnp.int32(x + 1), lambda i, c: c * x, 1.0)), (2.0,), (1.0,)),
    "while, forward": lambda: jax.jvp(until_nine, (1.0,), (1.0,)),
    "while, jacfwd": lambda: jax.jacfwd(until_nine)(1.0),
    "while, linearize": lambda: jax.linearize(until_nine, 1.0)[1](1.0),
    "cond, operand unused": lambda: jax.grad(lambda x: lax.cond(x > 0, lambda x: 3.0, lambda x: x, x))(1.0),
    "switch, index out of range": lambda: jax.grad(lambda x: lax.switch(9, [jnp.sin, jnp.cos], x))(1.0),
}  # fmt: skip
REFUSED |= {
    "while_loop": lambda: jax.grad(until_nine)(1.0),
    "fori, traced bound": lambda: jax.grad(jax.jit(lambda x, n: lax.fori_loop(0, n, lambda i, c: c * x, 1.0)))(2.0, 3),
    "while in scan": lambda: jax.grad(lambda x: lax.scan(lambda c, _: (until_nine(c), None), x, None,
                                                         length=2)[0])(1.0),
    "while in cond": lambda: jax.grad(lambda x: lax.cond(x > 0, until_nine, jnp.sin, x))(1.0),
    "while in checkpoint": lambda: jax.grad(jax.checkpoint(until_nine))(1.0),
    "jacrev of a while": lambda: jax.jacrev(until_nine)(1.0),
    "scan, carry type": lambda: jax.grad(lambda x: lax.scan(lambda c, _: (c.astype(int), None), x, None,
                                                            length=2)[0])(1.0),
    "cond, branch types": lambda: jax.grad(lambda x: lax.cond(True, lambda x: x, lambda x: (x, x), x))(1.0),
}  # fmt: skip

# --- custom rules and checkpoints -------------------------------------------------------------------------------------


def ruled(kind, *rules, fun=lambda x: jnp.sin(x)):
    made = getattr(jax, f"custom_{kind}")(fun)
    getattr(made, f"def{kind}")(*rules)
    return made


@jax.custom_jvp
def zeros_seen(x, y):
    return x + y


def zeros_rule(primals, tangents):
    n = sum(type(t) is SymbolicZero for t in tangents)
    return zeros_seen(*primals), 100.0 * n + 0.0 * primals[0]


zeros_seen.defjvp(zeros_rule, symbolic_zeros=True)
pushed = ruled("jvp", lambda p, t: (jnp.sin(p[0]), 10.0 * t[0]))
reverse = ruled("vjp", lambda x: (jnp.sin(x), x), lambda x, ct: (ct * 10.0,))
half_none = ruled("vjp", lambda x, y: (x * y, None), lambda _, ct: (ct * 4.0, None), fun=lambda x, y: x * y)
in_dict = ruled("vjp", lambda p: (p["a"], p), lambda p, ct: ({"a": ct, "b": 2.0 * ct},), fun=lambda p: p["a"] * p["b"])
twice = jax.custom_gradient(lambda x: (x**2, lambda ct: ct * 9.0))
optimized = jax.custom_vjp(lambda x: jnp.sin(x))
optimized.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * 6.0,), optimize_remat=True)

ANSWERED |= {
    "jvp rule": lambda: jax.jvp(pushed, (1.0,), (2.0,)),
    "jvp rule, second": lambda: jax.grad(jax.grad(pushed))(1.0),
    "jvp rule, vmap": lambda: jax.vmap(jax.grad(pushed))(X),
    "symbolic zeros": lambda: [jax.jvp(lambda x, y=y: zeros_seen(x, x * y + 1 - y), (1.0,), (1.0,)) for y in (0.0,
        1.0)],
    "vjp rule, jacrev": lambda: jax.jacrev(reverse)(X),
    "vjp rule, of vmap": lambda: jax.grad(lambda x: jax.vmap(reverse)(x).sum())(X),
    "vjp rule, second": lambda: jax.grad(jax.grad(lambda x: reverse(x) * x))(1.0),
    "None for a cotangent": lambda: jax.grad(half_none, (0, 1))(2.0, 3.0),
    "tree in a vjp rule": lambda: jax.grad(in_dict)({"a": 2.0, "b": 3.0}),
    "custom_gradient, value": lambda: jax.value_and_grad(twice)(2.0),
    "checkpoint, second": lambda: jax.grad(jax.grad(jax.checkpoint(jnp.sin)))(1.0),
    "checkpoint of an optimized rule": lambda: jax.grad(jax.checkpoint(optimized))(2.0),
    "checkpoint, keyword": lambda: jax.grad(lambda x: jax.checkpoint(lambda x, k: x * k)(x, k=3.0))(2.0),
    "checkpoint, integer beside": lambda: jax.grad(jax.checkpoint(lambda x, n: x * n))(2.0, 3),
    "checkpoint, no tangent reaches it": lambda: jax.grad(lambda x: x * jax.checkpoint(jnp.sin)(1.0))(1.0),
}  # fmt: skip
REFUSED |= {
    "composite": lambda: jax.grad(lambda x: lax.composite(jnp.sin, "my.sine")(x))(1.0),
    "sequential_vmap": lambda: jax.grad(lambda x: jax.custom_batching.sequential_vmap(jnp.sin)(x))(1.0),
    "no jvp rule": lambda: jax.grad(jax.custom_jvp(lambda x: x))(1.0),
    "no vjp rule": lambda: jax.grad(jax.custom_vjp(lambda x: x))(1.0),
    "jvp rule gives no pair": lambda: jax.grad(ruled("jvp", lambda p, t: p[0]))(1.0),
    "jvp rule, structure": lambda: jax.grad(ruled("jvp", lambda p, t: (p[0], (t[0],))))(1.0),
    "jvp rule, shape": lambda: jax.jvp(ruled("jvp", lambda p, t: (p[0], t[0][:2])), (X,), (X,)),
    "fwd gives no pair": lambda: jax.grad(ruled("vjp", lambda x: x, lambda r, ct: (ct,)))(1.0),
    "bwd gives no tuple": lambda: jax.grad(ruled("vjp", lambda x: (x, x), lambda r, ct: ct))(1.0),
    "bwd, number": lambda: jax.grad(ruled("vjp", lambda x: (x, x), lambda r, ct: (ct, ct)))(1.0),
    "bwd, shape": lambda: jax.vjp(ruled("vjp", lambda x: (x, x), lambda r, ct: (ct[:2],)), X)[1](X),
    "forward mode": lambda: jax.jvp(reverse, (1.0,), (1.0,)),
    "forward mode, jacfwd": lambda: jax.jacfwd(reverse)(1.0),
    "forward mode, jit": lambda: jax.jit(lambda x: jax.jvp(reverse, (x,), (x,)))(2.0),
    "forward mode, custom_gradient": lambda: jax.jvp(twice, (1.0,), (1.0,)),
    "forward mode, linearize": lambda: jax.linearize(reverse, 1.0)[1](1.0),
    "forward mode, inside": lambda: jax.jvp(lambda x: lax.cond(True, reverse, jnp.cos, x), (1.0,), (1.0,)),
    "a rule that closes over what is differentiated": lambda: jax.grad(lambda x: value_programs.scaled_by_jvp(x,
        x))(2.0),
    "a rule that raises": lambda: jax.grad(ruled("jvp", lambda p, t: 1 / 0))(1.0),
    "linear_call, second": lambda: jax.grad(lambda r: jax.custom_derivatives.linear_call(
        lambda r, x: r * x, lambda r, ct: ct, r, 1.0))(1.0),
}  # fmt: skip
LOOKING = value_programs.branching_backward
WITHIN = {
    "jit": jax.jit(LOOKING), "scan": lambda x: lax.scan(lambda c, _: (LOOKING(c), None), x, length=2)[0],
    "cond": lambda x: lax.cond(x > 0, LOOKING, jnp.sin, x), "checkpoint": jax.checkpoint(LOOKING),
}  # fmt: skip
REFUSED |= {f"backward rule in {name}": lambda f=f: jax.grad(f)(0.7) for name, f in WITHIN.items()}
REFUSED |= {
    f"under jit, {case}": lambda f=case.fun: jax.jit(jax.grad(f))(0.7) for case in value_programs.LOOK_AT_VALUES[::3]
}


def replace(monkeypatch):
    for name in REPLACED:
        monkeypatch.setattr(jax, name, getattr(jaxviz, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(ANSWERED), 2))
def test_a_call_has_jaxs_result(name, monkeypatch):
    want = ANSWERED[name]()
    replace(monkeypatch)
    assert_same(ANSWERED[name](), want)


def raised(call):
    with pytest.raises(Exception) as caught:  # noqa: PT011  whatever JAX raises
        call()
    return caught.value


def first_sentence(error):
    words = " ".join(str(error).split()).replace("..", ".").replace("e.g. ", "e.g.\N{NO-BREAK SPACE}")
    words = words.split(". ")[0].split("Got")[0].replace("\N{NO-BREAK SPACE}", " ")
    return words.strip().rstrip(".;").split(" traced for ")[0][:90]


OWN_WORDS = {
    "a rule that closes over what is differentiated": "closes over a value that is differentiated",
    "a string comes out": "returned a value of type <class 'str'>, which is not a valid JAX type",
    "not linear": "Transpose rule (for reverse-mode differentiation) for 'sin' not implemented",
}
"""Where JAX's error is about its own tracers."""


@pytest.mark.parametrize("name", short(list(REFUSED), 2))
def test_a_call_is_refused_as_by_jax(name, monkeypatch):
    theirs = raised(REFUSED[name])
    replace(monkeypatch)
    ours = raised(REFUSED[name])
    assert isinstance(ours, type(theirs))
    words = OWN_WORDS.get(name, first_sentence(theirs))
    assert words or not str(theirs)
    assert words in " ".join(str(ours).split())
