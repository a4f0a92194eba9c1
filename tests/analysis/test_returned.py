"""Calls of one's own functions as addresses: what they return, and what is not known to be that."""

import dataclasses
import functools
import sys
from collections import namedtuple
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from short_runs import short

import jaxviz
from benchmarks.addresses import MODELS, imported, numbers, run
from benchmarks.editing import sliced
from jaxviz.analysis import returned
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
        *[(f"layer(h, w) #{i} of 2", f"test_returned.py:{line + 3}") for i in (1, 2)],
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


class Out(NamedTuple):
    logits: jax.Array
    loss: jax.Array
    aux: int = 0


Old = namedtuple("Old", "a b")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    step: int = dataclasses.field(metadata={"static": True}, kw_only=True)
    h: jax.Array
    c: jax.Array


@dataclasses.dataclass
class Scaled:
    h: jax.Array

    def __post_init__(self):
        self.h = self.h * 2


class Box:
    """An object of any other class."""

    def __init__(self, x):
        self.held = jnp.sin(x)
        self.other = x


def by_place(x):
    low = jnp.sin(x)
    return Out(low, jnp.cos(x))


def by_name(x):
    return Out(loss=jnp.cos(x), logits=jnp.sin(x))


def old(x):
    return Old(a=jnp.sin(x), b=x)


def registered(x):
    return State(jnp.sin(x), step=1, c=jnp.cos(x))


def wrapping(x):
    made = by_place(x)
    return made


def repeating(x):
    return by_place(x)


def swapping(x):
    logits, loss, _ = by_name(x)
    return Out(loss, logits)


def in_post_init(x):
    return Scaled(jnp.sin(x))


def boxed(x):
    return Box(x)


def by_replacing(x):
    return by_place(x)._replace(loss=x)


def in_either(x, first=True):
    if first:
        return Out(jnp.sin(x), x)
    return jnp.cos(x)


def in_both(x, first=True):
    low = jnp.sin(x)
    return Out(low, x) if first else low


def starred(x):
    return (*[x, x], jnp.sin(x))


def in_dict(x):
    return dict(h=jnp.sin(x))  # noqa: C408


def boxed_or_not(x, first=True):
    low = jnp.sin(x)
    return dict(h=low) if first else low  # noqa: C408


def in_local_class(x):
    class Local(NamedTuple):
        h: jax.Array

    return Local(jnp.sin(x))


def two_alternatives(x, first=True):
    return jnp.sin(x) if first else jnp.cos(x)


def converted(x):
    return jnp.float16(jnp.sin(x))


TWO = (lambda x: (jnp.sin(x), x), lambda x: jnp.sin(x))
FIELDS = (
    "by_place(x).logits",
    "by_place(x).loss",
    "by_name(x).logits",
    "by_name(x).loss",
    "old(x).a",
    "registered(x).h",
    "registered(x).c",
    "swapping(x).logits",
    "swapping(x).loss",
    "two_alternatives(x)",
    "in_either(x).logits",
    "converted(x)",
)
NOT_TOLD = (
    "wrapping(x).logits",
    "repeating(x).loss",
    "in_post_init(x).h",
    "boxed(x).held",
    "Box(x).held",
    "by_replacing(x).logits",
    "in_both(x).logits",
    "starred(x)[2]",
    "in_dict(x)['h']",
    "in_local_class(x).h",
    "boxed_or_not(x)['h']",
    "TWO[0](x)[0]",
    "jax.vmap(by_place)(x).logits",
)


def reading(text, folder):
    """Functions that read only this part of what a call returns, at once and from a variable."""
    names, file = dict(globals()), folder / "reading.py"
    call, part = called(text)
    source = f"""
def read(x):
    return jnp.sum({text} * 2.0)


def held(x):
    out = {call}
    return jnp.sum(out{part} * 2.0)
"""
    file.write_text(source)
    exec(compile(source, str(file), "exec"), names)
    return names["read"], names["held"]


def called(text):
    end = text.rindex(")") + 1
    return text[:end], text[end:]


@pytest.mark.parametrize("text", FIELDS)
def test_one_array_of_an_object_has_the_name_of_its_field(text, tmp_path):
    (read, held), (call, part) = reading(text, tmp_path), called(text)
    for fun, name in ((read, text), (held, text), (held, f"out{part}")):
        (seen,) = jaxviz.capture(fun, name)(X)[1].values()
        assert jnp.array_equal(seen, eval(text, {**globals(), "x": X}))
        if part:
            assert [matching(jaxviz.trace(fun)(X), whole) for whole in (call, "out")] == [[], []]


@pytest.mark.parametrize("text", NOT_TOLD)
def test_a_part_that_cannot_be_told_has_no_name(text, tmp_path):
    for fun in reading(text, tmp_path):
        names = (text, called(text)[0], "out", f"out{called(text)[1]}")
        assert [matching(jaxviz.trace(fun)(X), name) for name in names] == [[]] * 4


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


def moved_by_mean(state):
    mean = jax.tree.map(lambda m, p: 0.9 * m + 0.1 * p, state["mean"], state["params"])
    move = lambda p, m: p - 0.1 * m / (jnp.sqrt(m) + 1.0)
    return {"params": jax.tree.map(move, state["params"], mean), "mean": mean}


def test_of_a_call_that_returns_many_values_each_is_asked_once(monkeypatch):
    asked = []
    by = returned._Returned._by
    monkeypatch.setattr(
        returned._Returned, "_by", lambda self, v, level: asked.append((v, level)) or by(self, v, level)
    )
    many = {str(i): jnp.ones(3) for i in range(12)}
    jaxviz.record(lambda state: moved_by_mean(state), {"params": many, "mean": many}, cotangents=False)
    assert asked
    assert len(asked) == len(set(asked))
