"""Odd programs, by name: functions and arguments that could break a view."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.extend.core import Primitive

unknown = Primitive("unknown")
unknown.def_abstract_eval(lambda x, **params: x)


def nested(n, wrap):
    f = jnp.sin
    for _ in range(n):
        f = wrap(f)
    return f


def prints(x):
    jax.debug.print("x is {}", x)
    io_callback(lambda x: None, None, x, ordered=True)
    return jnp.sum(jnp.sin(x))


def with_token(x):
    token = jax.lax.create_token()
    return jnp.sum(jnp.sin(x)), token


def writes(x):
    ref = jax.new_ref(x)
    ref[...] = jnp.sin(ref[...]) * 2.0
    return jnp.sum(ref[...])


def rounded(x):
    low = [x.astype(t) for t in (jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2)]
    whole = [x.astype(t).astype(jnp.float32) for t in (jnp.int4, jnp.uint4, jnp.int8)]
    return sum(jnp.sum(y.astype(jnp.float32) * jnp.sin(x)) for y in [*low, *whole])


def many_arguments(d):
    return sum(v * 2.0 for v in d.values())


HUGE = jax.ShapeDtypeStruct((2**27, 2**27), jnp.float32)
CYCLIC = {"a": {"a": {"b": 1.0}, "b": {"a": 2.0}}, "b": {"a": {"a": 3.0}}}
WORDS = {"λ": 1.0, "名前": 2.0, "a b": 3.0, "": 4.0, "__proto__": 5.0, "constructor": 6.0, "é\u0301": 7.0, "🎲": 8.0}

PROGRAMS = {
    "an unknown primitive": (lambda x: jnp.sum(unknown.bind(x, how="so")), jnp.ones(3)),
    "no equations": (lambda x: x, 1.0),
    "a constant": (lambda x: 2.0, 1.0),
    "no results": (lambda x: (), 1.0),
    "jit in jit, 50 deep": (nested(50, lambda f: jax.jit(lambda x: f(x) * 1.5)), 1.0),
    "scan in scan, 15 deep": (
        nested(15, lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]),
        1.0,
    ),
    "cond in cond, 20 deep": (nested(20, lambda f: lambda x: jax.lax.cond(x > 0, f, jnp.cos, x)), 1.0),
    "names that look like a cycle": (lambda d: d["a"]["a"]["b"] * d["a"]["b"]["a"] * d["b"]["a"]["a"], CYCLIC),
    "unicode": (lambda d: sum(jnp.sin(v) for v in d.values()), WORDS),
    "effects": (prints, jnp.ones(3)),
    "a token": (with_token, jnp.ones(3)),
    "key arrays": (lambda x, k: jnp.sum(jnp.sin(x) * jax.random.normal(k[0], x.shape)), jnp.ones(3),
                   jax.random.split(jax.random.key(0))),
    "a ref": (writes, jnp.ones(3)),
    "integers": (lambda x, n: jnp.sum(jnp.sin(x) * n), jnp.ones(3), 2),
    "float0": (lambda x, z: jnp.sum(jnp.sin(x)), jnp.ones(3), np.zeros(3, jax.dtypes.float0)),
    "empty arrays": (lambda x: jnp.sum(jnp.sin(x)), jnp.ones((0, 3))),
    "narrow types": (rounded, jnp.ones(3)),
    "more bytes than a float counts": (lambda x: jnp.sum(jnp.sin(x) * jnp.cos(x)), HUGE),
}  # fmt: skip
