"""Advice is located on a line that contains what it names, in models that were not written for lint."""

import gc
import linecache
import re
from functools import cache

import jax
import jax.numpy as jnp
import pytest
from short_runs import short

import jaxviz
from benchmarks.models import scan_transformer, transformer

pytest.importorskip("flax", reason="the engine's tests with the newest JAX go without the libraries")
import flax.linen as nn  # like a user's import: advice uses the names in this file

X = jnp.ones((2, 64, 32))


@pytest.fixture(autouse=True)
def _unfrozen():
    """Objects frozen by the test run have no visible referrers, such as the functions of a module for its methods."""
    gc.unfreeze()
    yield
    gc.freeze()


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        h = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(h, h)
        h = nn.gelu(nn.Dense(128)(nn.LayerNorm()(x)))
        return x + nn.Dense(32)(h)


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(4):
            x = Block()(x)
        return jnp.mean(x**2)


class Step(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return Block()(x), None


class Scanned(nn.Module):
    @nn.compact
    def __call__(self, x):
        x, _ = nn.scan(Step, variable_axes={"params": 0}, split_rngs={"params": True}, length=4)()(x, None)
        return jnp.mean(x**2)


def of_flax(model):
    params = jax.eval_shape(model.init, jax.random.key(0), X)
    return lambda p, x: model.apply(p, x), (params, X)


PROGRAMS = {
    "transformer": lambda: transformer(12),
    "scanned transformer": lambda: scan_transformer(12),
    "flax": lambda: of_flax(Model()),
    "scanned flax": lambda: of_flax(Scanned()),
}


@cache
def linted(name):
    f, args = PROGRAMS[name]()
    return tuple(jaxviz.lint(f, *args))


def line_of(advice):
    return linecache.getline(advice.location.file, advice.location.line)


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(PROGRAMS), ["transformer"]))
def test_the_line_has_what_is_named(name):
    found = linted(name)
    assert {"layer-checkpoint", "cheap-recompute"} <= {a.rule for a in found}
    for advice in found:
        named = re.findall(r"`([^`]+)`", re.sub("write `[^`]+` (for|above)|, after `[^`]+`", "", advice.fix))
        for expression in named:
            assert expression in line_of(advice), str(advice)
        function = re.search(r"wrap (\w+) in", advice.fix)
        if function:
            assert advice.location.function == function[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "line", "new"),
    [
        ("transformer", "x = layer(p, x)", "`jax.checkpoint(layer)` for `layer`"),
        ("scanned transformer", "jax.lax.scan(lambda x, p:",
         "`jax.checkpoint(lambda x, p: (layer(p, x), None), prevent_cse=False)`"),
        ("flax", "@nn.compact", "write `@nn.remat` above line"),
        *(
            pytest.param("scanned flax", "@nn.compact", new, marks=pytest.mark.slow(sweep=True))
            for new in (
                "write `@partial(nn.remat, prevent_cse=False)` above line",
                ", after `from functools import partial`: the peak falls",
            )
        ),
    ],
)  # fmt: skip
def test_a_layer_is_checkpointed_where_it_is_called(name, line, new):
    (advice,) = (a for a in linted(name) if a.rule == "layer-checkpoint")
    assert line in line_of(advice)
    assert new in advice.fix


@pytest.mark.slow
def test_what_a_library_computes_for_an_expression_is_wrapped_as_a_whole():
    fixes = {line_of(a).strip(): a.fix for a in linted("flax") if a.rule == "cheap-recompute"}
    assert "`nn.LayerNorm()(x)`" in fixes["h = nn.LayerNorm()(x)"]
    assert "flax.linen.remat" in fixes["h = nn.LayerNorm()(x)"]
