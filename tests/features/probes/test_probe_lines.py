"""Functions watched from outside: the values of their lines and the cotangents, compared with JAX's."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxviz

X = jnp.linspace(-1.0, 2.0, 3)
MESH = Mesh(np.array(jax.devices()), ("i",))
same = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def line_of(fun, text):
    """The number of the only line of a function with this text."""
    lines, first = inspect.getsourcelines(fun)
    (found,) = (first + i for i, line in enumerate(lines) if text in line)
    return found


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


@pytest.mark.values
@pytest.mark.parametrize(
    "transform",
    [
        jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f)), jaxviz.grad,
        lambda f: jax.grad(jax.checkpoint(f)), lambda f: jax.jit(jax.grad(jax.checkpoint(f))), lambda f: jax.jit(jaxviz.grad(f)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("inner", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "checkpoint"])
def test_a_line_tells_of_what_it_makes(transform, inner):
    w = jaxviz.watch(inner(plain), lines=[f"test_probe_lines.py:{PLAIN}"], what="value")
    same(transform(w)(X), jax.grad(plain)(X))
    jax.effects_barrier()
    assert not w.errors
    assert list(w) == [f"test_probe_lines.py:{PLAIN}"]
    check_plain(w)


def test_a_number_is_a_line_of_the_functions_own_file():
    w = jaxviz.watch(plain, lines=[PLAIN], what="value")
    jax.grad(w)(X)
    assert list(w) == [f"line:{PLAIN}"]
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


def test_every_nth_call():
    w = jaxviz.watch(jax.jit(plain), lines=[PLAIN], every=4)
    for _ in range(9):
        w(X)
    jax.effects_barrier()
    (series,) = w.lines()
    assert series.steps.tolist() == [0, 4, 8]
    assert w.cost.reports == 3


def test_under_jit_records_are_counted_unless_steps_are_marked():
    w = jaxviz.watch(plain, lines=[PLAIN])
    compiled = jax.jit(w)
    for _ in range(3):
        compiled(X)
    jax.effects_barrier()
    assert w.lines()[0].steps.tolist() == [0, 1, 2]
    marked = jaxviz.watch(plain, lines=[PLAIN])
    compiled = jax.jit(marked)
    for i in (10, 20):
        marked.step(i)
        compiled(X)
    jax.effects_barrier()
    assert marked.lines()[0].steps.tolist() == [10, 20]


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


@pytest.mark.values
@pytest.mark.parametrize("transform", [jax.grad, lambda f: jax.jit(jax.grad(f)), jaxviz.grad])
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


def test_a_while_loop_tells_of_its_iterations():
    def fun(x):
        def body(c):
            y = c * 2.0
            return y + 1.0

        return jax.lax.while_loop(lambda c: c[0] < 10.0, body, x)

    for f in (fun, jax.jit(fun)):
        w = jaxviz.watch(f, lines=[line_of(fun, "c * 2.0")], what="value")
        same(w(X + 2), fun(X + 2))
        jax.effects_barrier()
        (series,) = w.lines()
        assert series.index.tolist() == [[0], [1], [2]]
        assert series.values[:, 0].tolist() == [2.0, 6.0, 14.0]


@pytest.mark.values
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


def test_probes_of_the_function_tell_of_steps_and_iterations_too():
    def fun(x):
        def body(c, i):
            return jaxviz.probe(jnp.sin(c), "h", index=i * 10), None

        return jax.lax.scan(body, x, jnp.arange(3))[0].sum()

    w = jaxviz.watch(fun, "h", what="value")
    for _ in range(2):
        jax.grad(w)(X)
    jax.effects_barrier()
    assert w["h"].steps.tolist() == [0, 0, 0, 1, 1, 1]
    assert w["h"].index.tolist() == [[0, 0], [1, 10], [2, 20]] * 2
    assert w["h"].cotangents.index.tolist() == [[2, 20], [1, 10], [0, 0]] * 2


def test_a_line_that_is_run_at_several_places_and_makes_several_things():
    def layer(x):
        return jnp.sin(x) * 2

    def fun(x):
        for _ in range(2):
            x = layer(x)
        x = layer(x)
        a, b = jnp.sort(x), x.astype(int)
        return a.sum() + b.sum()

    w = jaxviz.watch(fun, lines=[line_of(layer, "jnp.sin"), line_of(fun, "jnp.sort")], what="value")
    w(X)
    jax.effects_barrier()
    name = f"line:{line_of(layer, 'jnp.sin')}"
    values = [layer(X), layer(layer(X)), layer(layer(layer(X)))]
    same(w[name].values[np.argsort(w[name].places)], values)
    others = [n for n in w if n != name]
    assert [n.split()[-1] for n in others] == ["convert_element_type", "sort"]
    same(w[others[1]].values[0], jnp.sort(values[-1]))


def test_a_function_that_branches_on_values_is_followed_anew():
    def fun(x):
        if x[0] > 0:
            return jnp.sin(x)
        return jnp.cos(x)

    w = jaxviz.watch(fun, lines=[line_of(fun, "jnp.sin")], what="value")
    w(X + 5)
    with pytest.raises(ValueError, match=r"makes no value of .*fun.* Lines that do, near it"):
        w(X)


def test_what_cannot_be_watched_is_said():
    w = jaxviz.watch(plain, lines=["other.py:7"])
    with pytest.raises(
        ValueError, match=r"other.py:7 makes no value of plain that can be watched. No line of that file does"
    ):
        w(X)
    for line in ("model.py", ":3", "model.py:x", True):
        with pytest.raises(ValueError, match="is not a line of source"):
            jaxviz.watch(plain, lines=[line])
    with pytest.raises(ValueError, match=r"write watch\(f, lines=\.\.\.\)"):
        jaxviz.watch("h", lines=["model.py:3"])


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


def test_errors_of_the_function_are_its_own():
    def fun(x):
        raise FileNotFoundError(str(x.shape))

    with pytest.raises(FileNotFoundError, match=r"\(3,\)"):
        jaxviz.watch(fun)(X)
