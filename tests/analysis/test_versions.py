"""Which version of a reference each saved value is."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxviz import derive

X, W = jnp.linspace(0.3, 1.9, 4), jnp.linspace(-0.9, 0.8, 48).reshape(3, 4, 4)


def versions(f, *args):
    """For each saved value that is read from a reference: the version, how many there are, and the line relative to
    the function's, and whether it is another one in each iteration."""
    first = f.__code__.co_firstlineno
    found = [r.version for r in derive(f, *args, argnums=tuple(range(len(args)))).residuals if r.version is not None]
    return [(v.number, v.of, v.written and v.written.line - first, v.by_iteration) for v in found]


def test_the_versions_are_counted_from_what_it_is_made_with():
    def f(x):
        r = jax.new_ref(x + 1.0)
        a = jnp.sin(x) * r[...]
        r[...] = x * 2.0
        b = jnp.cos(x) * r[...]
        r[...] = x * 3.0
        return (a + b + jnp.tan(x) * r[...]).sum()

    assert sorted(versions(f, X), key=str) == [(1, 3, None, False), (2, 3, 3, False), (3, 3, 5, False)]


def test_a_reference_that_is_never_written_has_no_versions():
    def f(x):
        return jnp.sin(jax.new_ref(x)[...]).sum()

    assert versions(f, X) == []


def test_each_iteration_has_its_own():
    def f(x, w):
        h = jax.new_ref(x)

        def layer(_, w):
            h[...] = jnp.tanh(w @ h[...])
            return None, None

        lax.scan(layer, None, w)
        return (h[...] * jnp.sin(x)).sum()

    assert sorted(versions(f, X, W)) == [(1, 2, 4, True), (2, 2, 4, False)]


def test_one_written_in_a_jit_is_found_there():
    def f(x):
        r = jax.new_ref(x)

        @jax.jit
        def double(y):
            r[...] = y * 2.0

        double(x)
        return (jnp.sin(x) * r[...]).sum()

    assert versions(f, X) == [(2, 2, 5, False)]


def test_the_report_says_so():
    def f(x):
        r = jax.new_ref(x)
        r[...] = jnp.exp(x)
        return (jnp.sin(x) * r[...]).sum()

    line = f.__code__.co_firstlineno + 2
    words = " ".join(str(derive(f, X).residuals).split())
    assert f"version 2 of 2 of its reference, written in line {line}" in words
