"""Repeated values share a row."""

import jax
import jax.numpy as jnp

import jaxviz
from jaxviz.analysis.grouping import repetition, repetitions, without_repeats
from jaxviz.analysis.kinds import Kinds
from jaxviz.derivation import STAGES
from jaxviz.ir import compat


def layer(x, p):
    h = jnp.tanh(x @ p["w1"])
    return x + jax.nn.gelu(h @ p["w2"])


def loss(params, x):
    for p in params:
        x = layer(x, p)
    return (x**2).sum()


def test_what_differs_between_layers_is_left_out_of_paths():
    layers = [[f"{block}/{layer}" for block in ("net/block", "net/block_1")] for layer in ("linear", "linear_1")]
    key = without_repeats(layers)
    assert key("net/block/linear") == key("net/block_1/linear")
    assert key("net/block/linear") != key("net/block/linear_1")
    assert key("net/block/linear") != key("net/block/linear_0")


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
    numbers = repetitions(equations, holders, Kinds())
    assert len(set(numbers)) == len(set(one_by_one)) == len(set(zip(numbers, one_by_one, strict=True)))
    assert len(set(numbers)) < len(numbers) / 2


def through(x):
    (y,) = tuple(jnp.sin(v) for v in (x,))
    return y


def test_a_call_is_the_same_expression_before_and_after_python_specializes_it():
    """In Python 3.11 the instruction that executes a call changes after a few dozen calls."""

    def often(x):
        for _ in range(300):
            x = through(x)
        return x

    stacks = [compat.raw_frames(e.source.traceback) for e in jaxviz.trace(often)(1.0).equations]
    instructions = {i for codes, at in stacks for code, i in zip(codes, at, strict=True) if code is through.__code__}
    assert len(instructions) == 1
