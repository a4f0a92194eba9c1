"""Equal blocks: which are found, and that a program with loops in their place computes the same as JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import models
from jaxviz.analysis.repeats import Alike
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.emit import as_function
from jaxviz.xla.compile_cost.folding import _Loops, with_loops, with_one_block
from jaxviz.xla.compile_cost.groups import groups_of, opened
from jaxviz.xla.compile_cost.repeats import find_runs

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
GRADIENTS = {
    "mlp": MLP,
    "transformer": models.transformer(4),
    "remat_transformer": models.remat_transformer(4),
    "jitted loss": (jax.jit(models.transformer_loss), models.transformer(3)[1]),
    "tied": (tied, (WS[0], X)),
    "written out": (written_out, (WS[:3], X)),
    "heads": (heads, (WS, X)),
    "every block returned": (every_block_returned, (WS, X)),
    "within a loop": (within_a_loop, (WS, X)),
    "stages alike": (stages_alike, (WS[0], X)),
    "rows of computed values": (rows_of_computed, (WS[0], X)),
    "rows": (rows, (jnp.stack(WS), normal(5, 4, 6))),
}
PROGRAMS = {name: (jax.value_and_grad(f), args) for name, (f, args) in GRADIENTS.items()} | {
    "a step": (adam_step, (MLP[1][0], MLP[1][0], *MLP[1][1:])),
    "no gradient": (models.transformer_loss, models.transformer(4)[1]),
}


def grouped(f, args):
    alike = Alike()
    program = opened(read_jaxpr(jax.jit(lambda *xs: f(*xs)).trace(*args).jaxpr), alike)
    return program, groups_of(program, alike)


def types(values):
    return [jax.ShapeDtypeStruct(jnp.shape(x), jnp.asarray(x).dtype) for x in values]


@pytest.mark.values
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_with_loops_computes_the_same(name):
    f, args = PROGRAMS[name]
    program, groups = grouped(f, args)
    assert groups
    runs = [run for group in groups for run in group.runs]
    leaves = jax.tree.leaves(args)
    expected = jax.tree.leaves(jax.jit(f)(*args))
    own = [run for run in runs if run.program is program]
    found = jax.jit(lambda *xs: _Loops(program, own, None).evaluate(xs))(*leaves)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    # With stacked arguments and results: the same numbers, in some order.
    folded = with_loops(program, runs, types(leaves))
    shapes = [tuple(t.shape) for t in folded.types]
    assert sum(map(np.prod, shapes)) == sum(np.size(x) for x in leaves)
    made = jax.eval_shape(folded.function, *folded.types)
    assert sum(np.prod(a.shape) for a in made) == sum(np.size(x) for x in expected)
    # It has fewer equations, and a scan where blocks form a chain.
    traced = read_jaxpr(jax.jit(folded.function).trace(*folded.types).jaxpr)
    assert sum(1 for _ in traced.walk()) < sum(1 for _ in program.walk())


@pytest.mark.values
def test_stacked_arguments_are_those_of_the_blocks():
    f, args = PROGRAMS["mlp"]
    program, groups = grouped(f, args)
    runs = [run for group in groups for run in group.runs]
    leaves = jax.tree.leaves(args)
    folded = with_loops(program, runs, types(leaves))
    stacked = [jnp.stack([w for w, _ in args[0]]), jnp.stack([b for _, b in args[0]])]
    assert [t.shape for t in folded.types] == [*(s.shape for s in stacked), *(jnp.shape(x) for x in args[1:])]
    numbers = lambda values: np.sort(np.concatenate([np.ravel(v) for v in values]))
    found = folded.function(*stacked, *args[1:])
    expected = jax.tree.leaves(jax.value_and_grad(models.mlp_loss)(*args))
    assert len(found) < len(expected)
    np.testing.assert_allclose(numbers(found), numbers(expected), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_block_alone_has_the_same_types(name):
    f, args = PROGRAMS[name]
    program, groups = grouped(f, args)
    runs = [run for group in groups for run in group.runs]
    cut = with_one_block(program, runs, types(jax.tree.leaves(args)))
    made = jax.jit(cut.function).trace(*cut.types)
    assert [(a.shape, a.dtype) for a in made.jaxpr.out_avals] == [(a.shape, a.dtype) for a in program.out_avals]
    left = {id(e) for run in runs for e in run.equations} - {id(e) for run in runs for e in run.block(0)}
    assert left
    assert sum(1 for _ in read_jaxpr(made.jaxpr).walk()) < sum(1 for _ in program.walk())


@pytest.mark.parametrize(
    ("name", "count"),
    [("mlp", 6), ("transformer", 4), ("remat_transformer", 4), ("jitted loss", 3), ("tied", 4), ("written out", 2),
     ("heads", 5), ("within a loop", 5), ("a step", 6), ("rows", 4), ("stages alike", 6), ("no gradient", 4)],
)  # fmt: skip
def test_the_blocks_are_those_that_are_written(name, count):
    _, groups = grouped(*PROGRAMS[name])
    assert groups[0].count == count


def test_the_passes_of_one_loop_are_one_group():
    for name in ("transformer", "remat_transformer", "jitted loss"):
        _, groups = grouped(*PROGRAMS[name])
        assert len(groups) == 1, name
        assert len(groups[0].runs) >= 2
    assert not grouped(*PROGRAMS["heads"])[1][0].is_chain
    assert grouped(*PROGRAMS["tied"])[1][0].is_chain


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
        (lambda x: jnp.sum(jnp.sin(x) * x), (X,)),
    ],
)
def test_what_differs_is_not_the_same(f, args):
    program, groups = grouped(f, args)
    assert groups == []
    assert find_runs(program, Alike()) == []


@pytest.mark.values
def test_rows_of_a_stack_are_gone_over_as_it_is():
    f, args = jax.value_and_grad(rows, argnums=(0, 1)), GRADIENTS["rows"][1]
    program, groups = grouped(f, args)
    folded = with_loops(program, [run for g in groups for run in g.runs], types(args))
    found, expected = folded.function(*args), jax.tree.leaves(f(*args))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    names = [e.primitive.name for e in read_jaxpr(jax.make_jaxpr(folded.function)(*args)).equations]
    assert names.count("scan") == 2
    assert names.count("concatenate") == 0


def test_what_reads_older_blocks_is_no_loop_that_carries_one():
    program, groups = grouped(reads_two_before, (WS[0], X))
    for group in groups:  # every repeat that is found computes the same
        expected = reads_two_before(WS[0], X)
        (found,) = _Loops(program, group.runs, None).evaluate([WS[0], X])
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    np.testing.assert_allclose(as_function(program)(WS[0], X)[0], reads_two_before(WS[0], X), rtol=1e-5)
