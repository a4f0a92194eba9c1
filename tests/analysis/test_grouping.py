"""Repeated values share a row."""

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.analysis.grouping import alike, grouped, most_alike, pattern, repetition, repetitions, without_repeats
from jaxviz.derivation import STAGES


def layer(x, p):
    h = jnp.tanh(x @ p["w1"])
    return x + jax.nn.gelu(h @ p["w2"])


def loss(params, x):
    for p in params:
        x = layer(x, p)
    return (x**2).sum()


def arguments(n):
    w = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    return [{"w1": w, "w2": w} for _ in range(n)], jax.ShapeDtypeStruct((8, 64), jnp.float32)


def test_what_differs_between_layers_is_left_out_of_paths():
    layers = [[f"{block}/{layer}" for block in ("net/block", "net/block_1")] for layer in ("linear", "linear_1")]
    key = without_repeats(layers)
    assert key("net/block/linear") == key("net/block_1/linear")
    assert key("net/block/linear") != key("net/block/linear_1")
    assert key("net/block/linear") != key("net/block/linear_0")


@pytest.mark.parametrize("n", [3, 12])
def test_layers_are_one_row_for_each_expression(n):
    found = jaxviz.residuals(loss, *arguments(n), argnums=0)
    few = jaxviz.residuals(loss, *arguments(2), argnums=0)
    assert len(found.groups) <= len(few.groups) + 1  # the first layer's x is an argument
    assert sum(g.nbytes for g in found.groups) == found.nbytes
    assert sum(g.count for g in found.groups) == len(found)
    tanh = next(g for g in found.groups if g.label == 'h = jnp.tanh(x @ p["w1"])')
    assert (tanh.count, tanh.type) == (n, f"{n} × f32[8,64]")
    assert tanh.location.line == layer.__code__.co_firstlineno + 1
    weights = next(g for g in found.groups if g.kind == "argument" and "w2" in g.label)
    assert weights.label == f"params[0…{n - 1}]['w2']"
    assert weights.why.count("derivative") == 1


def test_two_operations_of_one_expression_are_two_rows():
    def f(x):
        return (jnp.sin(x) * jnp.cos(x)).sum()

    labels = [g.label for g in jaxviz.residuals(f, jnp.ones((4, 4))).groups]
    assert len(labels) == len(set(labels)) == 4


def test_calls_from_several_lines_are_one_row():
    def f(params, x):
        x = layer(x, params[0])
        x = layer(x, params[1])
        return x.sum()

    found = jaxviz.residuals(f, *arguments(2), argnums=0)
    assert next(g for g in found.groups if g.label.startswith("h = ")).count == 2


def test_a_group_says_most_of_the_reasons():
    assert most_alike(["a[0]", "a[1]", "b"]) == "a[0…1] (2 of 3; the other for another reason)"
    assert most_alike(["a"]) == "a"


def test_names_that_differ_in_numbers():
    assert alike(["p[0]['w1']", "p[11]['w1']"]) == "p[0,11]['w1']"
    assert alike(["p['Dense_0']['w']", "p['Dense_2']['w']"]) == "p['Dense_0,2']['w']"
    assert alike(["Dense", "Dense_0", "Dense_1"]) == "Dense,Dense_0…Dense_1"
    assert alike(["x", "y"]) == "x and others"
    assert alike(["result 3", "result 12"]) == "result 3,12"
    haiku = [f"params['{block}/linear_1']['w']" for block in ("block", "block_1", "block_2")]
    assert alike(haiku) == "params['block…block_2/linear_1']['w']"
    assert alike(haiku[1:]) == "params['block_1…2/linear_1']['w']"
    assert len(set(map(pattern, haiku))) == 1
    assert pattern("p['w1']") != pattern("p['w2']")
    assert grouped("abca", lambda c: c) == [("a", "a"), ("b",), ("c",)]


def test_the_numbers_of_many_group_them_as_one_by_one():
    def f(params, x):
        x, _ = jax.lax.scan(lambda x, w: (jax.nn.gelu(jnp.tanh(x) @ w), None), x, jnp.stack([p["w1"] for p in params]))
        return loss(params, jax.checkpoint(layer)(x, params[0]))

    derivation = jaxviz.derive(f, [{k: jnp.ones((4, 4)) for k in ("w1", "w2")}] * 3, jnp.ones((2, 4)))
    equations, holders, one_by_one = [], [], []

    def walk(program, within, holder):
        for e in program.equations:
            place = len(equations)
            equations.append(e)
            holders.append(holder)
            one_by_one.append(repetition(e, within))
            for _, body in e.programs:
                walk(body, (*within, e), place)

    for stage in STAGES:
        walk(getattr(derivation, stage), (), -1)
    numbers = repetitions(equations, holders)
    assert len(set(numbers)) == len(set(one_by_one)) == len(set(zip(numbers, one_by_one, strict=True)))
    assert len(set(numbers)) < len(numbers) / 2
