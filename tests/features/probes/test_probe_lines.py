"""Functions watched from outside: the values of their lines and the cotangents, compared with JAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from lines import line_of
from short_runs import short

import jaxviz

X = jnp.linspace(-1.0, 2.0, 3)
MESH = Mesh(np.array(jax.devices()), ("i",))
same = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def plain(x):
    h = jnp.tanh(x * 2.0) + x
    y = jnp.sum(h * h)
    return y + jnp.sum(x)


TANH = lambda x: jnp.tanh(x * 2.0) + x
PLAIN = line_of(plain, "jnp.tanh")


def check_plain(w, n=1, x=X):
    (name,) = w
    same(w[name].values, [TANH(x)] * n)
    same(w[name].cotangents.values, [2 * TANH(x)] * n)


@pytest.mark.slow
@pytest.mark.parametrize(
    "transform",
    [
        jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f)), jaxviz.grad,
        lambda f: jax.grad(jax.checkpoint(f)), lambda f: jax.jit(jax.grad(jax.checkpoint(f))),
        lambda f: jax.jit(jaxviz.grad(f)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("inner", short([lambda f: f, jax.jit, jax.checkpoint], 2), ids=["plain", "jit", "checkpoint"])
def test_a_line_tells_of_what_it_makes(transform, inner):
    w = jaxviz.watch(inner(plain), lines=[f"test_probe_lines.py:{PLAIN}"], what="value")
    same(transform(w)(X), jax.grad(plain)(X))
    jax.effects_barrier()
    assert not w.errors
    assert list(w) == [f"test_probe_lines.py:{PLAIN}"]
    check_plain(w)


def test_examples_lead():
    xs = jnp.arange(6.0).reshape(2, 3)
    for transform in (jax.vmap, jaxviz.vmap):
        w = jaxviz.watch(plain, lines=[PLAIN], what="value")
        same(transform(jax.grad(w))(xs), jax.vmap(jax.grad(plain))(xs))
        check_plain(w, x=xs)


def test_calls_are_steps_also_while_they_are_under_way():
    w = jaxviz.watch(jax.jit(plain), lines=[PLAIN], what="value")
    expected = [w(X * i) for i in range(20)]
    jax.effects_barrier()
    (series,) = w.lines()
    assert series.steps.tolist() == list(range(20))
    same(series.values, [TANH(X * i) for i in range(20)])
    same(expected, [plain(X * i) for i in range(20)])


def looped(x):
    def outer(c, a):
        def inner(d, b):
            d = jnp.sin(d) * b + a
            return d, None

        return jax.lax.scan(inner, c, jnp.arange(1.0, 3.0))[0], None

    c, _ = jax.lax.scan(outer, x, jnp.arange(3.0), reverse=True)
    c = jax.lax.fori_loop(0, 2, lambda i, c: jnp.cos(c) * 2.0, c)
    return jnp.sum(c)


def looped_values(x, offsets):
    """The inner values of `looped` by iteration, and their cotangents, from offsets of zero."""
    c, found = x, {}
    for i in (2, 1, 0):
        for j in range(2):
            c = jnp.sin(c) * (j + 1.0) + i + offsets[i, j]
            found[i, j] = c
    for _ in range(2):
        c = jnp.cos(c) * 2.0
    return jnp.sum(c), found


@pytest.mark.slow
@pytest.mark.parametrize("transform", short([jax.grad, lambda f: jax.jit(jax.grad(f)), jaxviz.grad], [jax.grad]))
@pytest.mark.parametrize("inner", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "checkpoint"])
def test_loops_within_loops_tell_of_their_iterations(transform, inner):
    w = jaxviz.watch(inner(looped), lines=[line_of(looped, "jnp.sin")], what="value")
    same(transform(w)(X), jax.grad(looped)(X))
    jax.effects_barrier()
    cts, values = jax.grad(looped_values, argnums=1, has_aux=True)(X, jnp.zeros((3, 2, 3)))
    (series,) = (w[name] for name in w)
    assert {tuple(i) for i in series.index} == set(values)
    for (i, j), value, (k, m), ct in zip(
        series.index, series.values, series.cotangents.index, series.cotangents.values, strict=True
    ):
        same(value, values[i, j])
        same(ct, cts[k, m])


@pytest.mark.slow
def test_branches_and_devices():
    def branched(x):
        return jax.lax.cond(
            x[0] > 0,
            lambda x: jnp.sin(x).sum(),
            lambda x: jnp.cos(x).sum(),  # the other lambda
            x,
        )

    w = jaxviz.watch(branched, lines=[line_of(branched, "jnp.cos")], what="value")
    same(jax.grad(w)(X), jax.grad(branched)(X))
    w(X + 5)
    assert [(s.kind, s.count) for s in w.lines()] == [("value", 1), ("cotangent", 1)]

    def mapped(x):
        def each(x):
            y = jnp.sin(x)
            return y * 2

        return jnp.sum(jax.shard_map(each, mesh=MESH, in_specs=P("i"), out_specs=P("i"))(x))

    x = jnp.arange(16.0)
    w = jaxviz.watch(mapped, lines=[line_of(mapped, "jnp.sin")], what="value")
    same(jax.jit(jax.grad(w))(x), jax.grad(mapped)(x))
    jax.effects_barrier()
    (series,) = (w[name] for name in w)
    same(series.values[np.argsort(series.devices)].ravel(), jnp.sin(x))
    same(series.cotangents.values, np.full((8, 2), 2.0))


def test_a_watched_function_is_traced_once_for_the_types_of_its_arguments():
    traced = []

    def fun(x):
        traced.append(None)
        return jnp.sin(x)

    w = jaxviz.watch(fun, lines=[line_of(fun, "jnp.sin")])
    for x in (X, X + 1, 1.0):
        w(x)
    assert len(traced) == 2
    assert w.__name__ == "fun"
