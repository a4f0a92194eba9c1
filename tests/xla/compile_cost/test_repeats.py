"""Equal blocks: which are found, and that a program with only one of them computes what one written block does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import models
from jaxviz.analysis.repeats import Alike
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.emit import as_function
from jaxviz.ir.origin import own_line
from jaxviz.ir.syntax import Literal
from jaxviz.xla.compile_cost.blocks import blocks_of, opened, runs_of
from jaxviz.xla.compile_cost.one_block import with_one_block

RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape).astype(np.float32) * 0.3)


def tied(w, x):
    for _ in range(5):
        x = x + jnp.tanh(jnp.sin(x @ w) * 2.0 + jnp.cos(x))
    return jnp.sum(x**2)


def written_out(ws, x):
    x = jnp.tanh(jax.nn.gelu(x @ ws[0]) + 1.0) * jnp.cos(x)
    x = jnp.tanh(jax.nn.gelu(x @ ws[1]) + 1.0) * jnp.cos(x)
    x = jnp.tanh(jax.nn.gelu(x @ ws[2]) + 1.0) * jnp.cos(x)
    return x.sum()


def heads(ws, x):
    return jnp.stack([jnp.sum(jnp.tanh(jax.nn.softmax(jnp.sin(x @ w)) @ w.T) ** 2) for w in ws]).sum()


def of_rule(factor):
    """The identity, whose cotangent is multiplied by a factor."""
    scaled = jax.custom_vjp(lambda x: x)
    scaled.defvjp(lambda x: (x, None), lambda _, ct: (factor * ct,))
    return scaled


def with_rules(ws, x):
    scaled = of_rule(0.5)
    for w in ws:
        x = scaled(jax.nn.relu(jnp.sin(x @ w) * 2.0 + jnp.cos(x)))
    return x.sum()


def different_rules(w, x):
    for i in range(6):
        x = of_rule(float(i + 1))(jnp.tanh(jnp.sin(x @ w) * 2.0 + 1.0) ** 2 + jnp.cos(x))
    return x.sum()


def in_a_generator(w, xs):
    return sum(jnp.sum(jnp.sin(xs[i] @ w) * jnp.cos(xs[i])) for i in range(6))


def every_block_returned(ws, x):
    found = []
    for w in ws:
        x = jnp.exp(-(jnp.sin(jnp.tanh(x @ w) * 2.0) ** 2)) + jnp.cos(x)
        found.append(x.mean())
    return jnp.stack(found).sum() + x.sum()


def within_a_loop(ws, x):
    def body(x, _):
        for w in ws:
            x = jnp.tanh(x @ w) * jnp.sin(x) + jnp.cos(x) * 0.1 + jnp.exp(-(x**2))
        return x, None

    x, _ = jax.lax.scan(body, x, None, length=3)
    return x.sum()


def adam_step(params, moments, x, y):
    grads = jax.grad(models.mlp_loss)(params, x, y)
    moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m / (jnp.abs(m) + 1e-3), params, moments), moments


def descent(w, x):
    for _ in range(4):
        w = w - 0.01 * jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.sin(x @ w) * 2.0) ** 2))(w)
    return w


def rows(ws, xs):
    x = xs[0]
    for i in range(5):
        x = jnp.tanh(jnp.sin(x @ ws[i]) * 2.0 + jnp.cos(x)) + xs[i]
    return jnp.sum(x**2)


def rows_of_computed(w, x):
    y = jnp.sin(x)
    taken = [y[i] * 2.0 + jnp.cos(y[i]) for i in range(2)]
    for _ in range(5):
        x = jnp.tanh(x @ w) * 1.5 + jnp.cos(x) - jnp.sin(x) ** 2
    z = jnp.exp(x)
    return jnp.sum(x) + sum(jnp.sum(row**2) for row in taken) + jnp.sum(z[0] * z[1])


def stages_alike(w, x):
    slope = lambda x: jnp.tanh(jnp.sin(x @ w) + 1.0)
    for _ in range(6):
        a = slope(x)
        b = slope(x + 0.5 * a)
        x = x + 0.1 * (a + slope(x + 0.5 * b))
    return jnp.sum(x**2)


WS, X = [normal(6, 6) for _ in range(5)], normal(4, 6)
MLP = models.mlp(6)
PROGRAMS = {
    "mlp": MLP,
    "transformer": models.transformer(4),
    "remat_transformer": models.remat_transformer(4),
    "jitted loss": (jax.jit(models.transformer_loss), models.transformer(3)[1]),
    "tied": (tied, (WS[0], X)),
    "written out": (written_out, (WS[:3], X)),
    "heads": (heads, (WS, X)),
    "every block returned": (every_block_returned, (WS, X)),
    "with rules": (with_rules, (WS, X)),
    "in a generator": (in_a_generator, (WS[0], normal(6, 4, 6))),
    "within a loop": (within_a_loop, (WS, X)),
    "stages alike": (stages_alike, (WS[0], X)),
    "rows of computed values": (rows_of_computed, (WS[0], X)),
    "rows": (rows, (jnp.stack(WS), normal(5, 4, 6))),
    "gradients": (descent, (WS[0], X)),
    "a step": (adam_step, (MLP[1][0], MLP[1][0], *MLP[1][1:])),
}
COUNTS = {
    "mlp": 6, "transformer": 4, "remat_transformer": 4, "jitted loss": 3, "written out": 3, "stages alike": 6,
    "gradients": 4, "a step": 6,
}  # fmt: skip
"""How many blocks are written, where it is not 5."""


def found_in(f, args):
    program = opened(read_jaxpr(jax.jit(lambda *xs: f(*xs)).trace(*args).jaxpr))
    found = blocks_of(program)
    return program, found, [run for blocks in found for run in blocks.runs]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_blocks_are_those_that_are_written_and_one_alone_has_the_same_types(name):
    program, (largest, *_), runs = found_in(*PROGRAMS[name])
    assert largest.count == COUNTS.get(name, 5)
    cut = with_one_block(program, runs)
    made = jax.make_jaxpr(as_function(cut))(*map(jnp.zeros_like, jax.tree.leaves(PROGRAMS[name][1])))
    assert [(a.shape, a.dtype) for a in made.out_avals] == [(a.shape, a.dtype) for a in program.out_avals]
    assert sum(1 for _ in cut.walk()) < sum(1 for _ in program.walk())


@pytest.mark.parametrize("name", ["tied", "written out", "in a generator", "every block returned"])
def test_blocks_hold_at_least_their_own_equations(name):
    """Each on a line of its own, or all on that of what is around them."""
    program, (largest, *_), _ = found_in(*PROGRAMS[name])
    held = sum(largest.holds([at]) for _, e in program.walk() if (at := own_line(e.source)) is not None)
    assert held >= 0.9 * largest.size


def test_blocks_of_one_loop_are_together():
    _, found, _ = found_in(jax.value_and_grad(models.transformer_loss), models.transformer(4)[1])
    (layers,) = (blocks for blocks in found if blocks.place is not None and blocks.place.text == "x = layer(p, x)")
    assert len(layers.runs) >= 2
    assert not found_in(*PROGRAMS["heads"])[1][0].is_chain
    assert found_in(*PROGRAMS["tied"])[1][0].is_chain


def different_widths(ws, x):
    for w in ws:
        x = jnp.tanh(jnp.sin(x @ w) * 2.0 + 1.0) ** 2
    return x.sum()


def different_constants(w, x):
    for i in range(6):
        x = jnp.tanh(jnp.sin(x @ w) * float(i + 1) + 1.0) ** 2 + jnp.cos(x)
    return x.sum()


def reads_two_before(w, x):
    before = older = x
    for _ in range(6):
        x, before, older = jnp.tanh(jnp.sin(x @ w) * older + 1.0) ** 2 + jnp.cos(x), x, before
    return x.sum()


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (different_widths, ([normal(n, n + 1) for n in range(6, 12)], X)),
        (different_constants, (WS[0], X)),
        (different_rules, (WS[0], X)),
        (lambda x: jnp.sum(jnp.sin(x) * x), (X,)),
    ],
)
def test_what_differs_is_not_the_same(f, args):
    program, found, _ = found_in(f, args)
    assert found == []
    assert runs_of(program, Alike()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tied", "transformer", "within a loop", "rows"])
def test_one_block_alone_computes_what_one_block_that_is_written_does(name):
    f, args = PROGRAMS[name]
    program, _, runs = found_in(f, args)
    cut = as_function(with_one_block(program, runs))
    written = {
        "tied": lambda w, x: jnp.sum((x + jnp.tanh(jnp.sin(x @ w) * 2.0 + jnp.cos(x))) ** 2),
        "transformer": lambda params, tokens: f({**params, "layers": params["layers"][:1]}, tokens),
        "within a loop": lambda ws, x: f(ws[:1], x),
        "rows": lambda ws, xs: jnp.sum((jnp.tanh(jnp.sin(xs[0] @ ws[0]) * 2.0 + jnp.cos(xs[0])) + xs[0]) ** 2),
    }[name]
    for a, b in zip(cut(*jax.tree.leaves(args)), jax.tree.leaves(written(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4)


def rows_of_rows(ws, x):
    for i in range(8):
        w = ws[i]
        x = jnp.tanh(x @ w[0] + w[1][0])
    return jnp.sum(x)


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (rows_of_computed, PROGRAMS["rows of computed values"][1]),
        (rows_of_rows, (jnp.ones((8, 2, 4, 4)), jnp.ones((4, 4)))),
    ],
)
def test_rows_are_taken_when_their_array_is_computed(f, args):
    program = opened(read_jaxpr(jax.make_jaxpr(f)(*args)))
    known = {*program.constvars, *program.invars}
    for e in program.equations:
        assert known.issuperset(a for a in e.invars if not isinstance(a, Literal))
        known.update(e.outvars)


def test_what_reads_older_blocks_is_no_loop_that_carries_one():
    _, found, _ = found_in(reads_two_before, (WS[0], X))
    assert [(blocks.count, len(blocks.carry)) for blocks in found] == [(2, 3)]  # two blocks of three steps
