"""Calls of one's own functions as addresses: what they return, and what is not known to be that."""

import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from short_runs import short

import jaxviz
from benchmarks.addresses import MODELS, imported, numbers, run
from benchmarks.editing import sliced
from jaxviz.analysis.addresses import AddressError, at, matching, resolve

X = jnp.ones((3, 3))


def layer(x, w):
    return jnp.tanh(x @ w)


FIRST = layer.__code__.co_firstlineno


def pair(x):
    low = jnp.sin(x)
    return low, layer(x, x)


def swapped(x):
    a, b = pair(x)
    return b, a


def state(x):
    return {"h": jnp.sin(x), "c": jnp.cos(x)}


def passed(x, y):
    return jnp.exp(x), y


def one_of_two(x, first):
    if first:
        return jnp.sin(x)
    return jnp.cos(x)


def first_of(x):
    return [jnp.sin(x), jnp.cos(x)]


class Model:
    def __call__(self, x):
        z = self.inner(x)
        return z

    def inner(self, x):
        return jnp.log1p(jnp.exp(x))


def body(c, w):
    n = layer(c, w)
    m, k = pair(n)
    return m, k


def loss(x, w):
    h = layer(x, w)
    for _ in range(2):
        h = layer(h, w)
    p, q = swapped(h)
    d = state(x)
    s0, s1 = passed(x, d["h"])
    e = one_of_two(s0, True)
    both = pair(e)
    listed = first_of(e)
    one_read = first_of(s0)
    second = pair(s0)[1]
    m = Model()(e)
    v = jax.vmap(layer, (0, None))(x[None], w)
    vt = jax.vmap(layer, (0, None), out_axes=1)(x[None], w)
    r = functools.reduce(layer, [w, w], x)
    c, ks = jax.lax.scan(body, x, jnp.stack([w, w]))
    j = jax.jit(layer)(e, w)
    k = jax.checkpoint(layer)(e, w)
    t = layer(layer(e, w), w)
    f = (lambda a: layer(a, w))(e)
    parts = (one_read[0], second, p, q, d["c"], s1, *both, *listed, m, v, vt, r, c, ks, j, k, t, f)
    return sum(map(jnp.sum, parts))


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("loss › h #*", ["jnp.tanh(x @ w)"] * 3),
        ("layer(h, w) #*", ["jnp.tanh(x @ w)"] * 2),
        ("layer(x, w)", ["jnp.tanh(x @ w)"]),
        ("p", ["jnp.tanh(x @ w)"]),
        ("q", ["jnp.sin(x)"]),
        ("swapped(h)[1]", ["jnp.sin(x)"]),
        ("d['h']", ["jnp.sin(x)"]),
        ("listed[1]", ["jnp.cos(x)"]),
        ("one_read[0]", ["jnp.sin(x)"]),
        ('state(x)["c"]', ["jnp.cos(x)"]),
        ("s0", ["jnp.exp(x)"]),
        ("e", ["jnp.sin(x)"]),
        ("both[1]", ["jnp.tanh(x @ w)"]),
        ("second", ["jnp.tanh(x @ w)"]),
        ("pair(s0)[1]", ["jnp.tanh(x @ w)"]),
        ("loss › m", ["jnp.log1p(jnp.exp(x))"]),
        ("__call__ › z", ["jnp.log1p(jnp.exp(x))"]),
        ("Model:z", ["jnp.log1p(jnp.exp(x))"]),
        ("loss › v", ["jnp.tanh(x @ w)"]),
        ("vt", ["jax.vmap(layer, (0, None), out_axes=1)(x[None], w)"]),
        ("n", ["jnp.tanh(x @ w)"]),
        ("body › k", ["jnp.tanh(x @ w)"]),
        ("layer(layer(e, w), w)", ["jnp.tanh(x @ w)"]),
        ("f", ["jnp.tanh(x @ w)"]),
        (f"line:{loss.__code__.co_firstlineno + 1}", ["jnp.tanh(x @ w)"]),
        (f"line:{loss.__code__.co_firstlineno + 20}", ["jnp.tanh(x @ w)"]),
    ],
)
def test_calls(text, means):
    assert [v.text for v in resolve(jaxviz.trace(loss)(X, X), at(text)).values] == means


@pytest.mark.parametrize("text", ["s1", "r", "listed", "first_of(e)", "both", "loss › low", "one_read"])
def test_what_is_not_known_to_be_returned(text):
    """What a function returns as it was given, a call that is one of several, and several values."""
    assert matching(jaxviz.trace(loss)(X, X), text) == []


def test_of_a_call_that_returns_several_values_it_is_said_what_to_write():
    with pytest.raises(AddressError, match=r"only these have addresses, as in 'first_of\(e\)\[0\]'"):
        resolve(jaxviz.trace(loss)(X, X), at("first_of(e)"))
    with pytest.raises(AddressError) as error:
        resolve(jaxviz.trace(loss)(X, X), at("jnp.arctan2(e, s0, listed)"))
    assert "only these have addresses" not in str(error.value)


def test_captured_values_are_those_of_the_calls():
    def run(x, w):
        h = layer(x, w)
        p, q = swapped(h)
        return jnp.sum(p * q)

    _, seen = jaxviz.capture(run, "h", "p", "q")(X, X / 2)
    h = layer(X, X / 2)
    p, q = swapped(h)
    for name, expected in (("h", h), ("p", p), ("q", q)):
        assert jnp.array_equal(seen[name], expected)


def test_what_is_captured_is_described_by_the_call_that_was_asked_for():
    line = loss.__code__.co_firstlineno
    by_line, by_name, inside = f"test_returned.py:{line + 1}", "loss › h #*", "layer › jnp.tanh(x @ w) #1"
    rows = jaxviz.capture(loss, by_line, by_name, inside).where(X, X).values
    at = FIRST + 1
    assert [(v.expression, v.line) for v in rows] == [
        ("layer(x, w)", by_line),
        ("layer(x, w)", by_line),
        *[("layer(h, w)", f"test_returned.py:{line + 3}")] * 2,
        ("jnp.tanh(x @ w)", f"test_returned.py:{at}"),
    ]


def test_several_calls_are_listed_with_their_lines():
    line = loss.__code__.co_firstlineno
    with pytest.raises(AddressError) as error:
        resolve(jaxviz.trace(loss)(X, X), at("loss › h"))
    said = str(error.value)
    assert f"test_returned.py:{line + 1}  h = layer(x, w) in loss, f32[3,3]" in said
    assert f"test_returned.py:{line + 3}  h = layer(h, w) in loss, f32[3,3]" in said


def test_a_call_inside_of_a_jitted_function_that_was_traced_before():
    """Its equations have the frames of the first call, in another function."""

    @jax.jit
    def jitted(x):
        inner = layer(x, x)
        return inner + 1

    def one(x):
        outer = jitted(x)
        return outer

    def two(x):
        other = jitted(x)
        return other

    one(X)
    program = jaxviz.trace(two)(X)
    assert [v.text for v in resolve(program, at("inner")).values] == ["jnp.tanh(x @ w)"]
    with pytest.raises(AddressError):
        resolve(program, at("outer"))


WITH_CALLS = ("transformer, unrolled", "GNN")


def returned_by_python(file, fun, args):
    """By line of a file what the functions of this file returned that it called, as Python runs them."""
    returned = {}

    def add(frame, event, value):
        if event == "return" and frame.f_code.co_filename == file:
            caller = frame.f_back
            while caller is not None and caller.f_code.co_filename != file:
                caller = caller.f_back
            if caller is not None:
                arrays = [
                    x for x in jax.tree.leaves(value) if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
                ]
                returned.setdefault(caller.f_lineno, []).extend(map(np.asarray, arrays))

    with jax.disable_jit():
        sys.setprofile(add)
        try:
            fun(*args)
        finally:
            sys.setprofile(None)
    return returned


@pytest.mark.parametrize("model", short(MODELS, [m for m in MODELS if m.name in WITH_CALLS]), ids=lambda m: m.name)
def test_what_calls_return_is_what_python_returns(model, tmp_path):
    source = sliced(Path(model.file).read_text(encoding="utf-8"), model.made)
    ran = run(source, model, tmp_path)
    names = imported(source, tmp_path)
    fun, args = eval(model.made, names)
    found, n = returned_by_python(names["__file__"], fun, numbers(tuple(args))), 0
    for v, array in ran.arrays.items():
        for r in v.returned:
            lines = range(r.location.line, r.location.end_line + 1)
            there = [x for line in lines for x in found.get(line, []) if x.shape == v.aval.shape]
            for one in array.reshape(-1, *v.aval.shape) if there else ():
                assert any(np.allclose(one, x, rtol=1e-4, atol=1e-5) for x in there), r.text
                n += 1
    assert n > 0 or model.name not in WITH_CALLS
