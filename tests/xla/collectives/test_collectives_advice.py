"""Following the report's advice has the stated effect."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from collective_programs import DATA, GRID, fsdp, on_data, on_grid
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxviz

pytestmark = pytest.mark.slow


def of_kind(report, kind, stage=""):
    return [c for c in report.compiled if c.kind == kind and stage in ("", c.stage) and c.nbytes > 64]


def advised(report, words):
    """The collectives with this advice."""
    return [c for c in report.compiled if words in c.advice]


WS, X = on_data(6, 64, 64, spec=(None, "data")), on_data(256, 64, spec=("data",))


def test_what_is_gathered_in_a_shard_map_has_its_cotangent_scattered():
    before = jaxviz.collectives(fsdp, WS, X)
    (summed,) = advised(before, "a reduce-scatter sends half")
    assert summed.kind == "all-reduce"

    @partial(jax.shard_map, mesh=DATA, in_specs=(P("data"), P("data")), out_specs=P("data"))
    def layer(w, h):
        return jnp.tanh(h @ lax.all_gather(w, "data", tiled=True))

    def followed(ws, x):
        return jnp.mean(lax.scan(lambda h, w: (layer(w, h), None), x, ws)[0] ** 2)

    after = jaxviz.collectives(followed, WS, X)
    assert not of_kind(after, "all-reduce")
    (scattered,) = of_kind(after, "reduce-scatter")
    assert scattered.total_sent_nbytes * 2 == summed.total_sent_nbytes
    assert "transpose of the `lax.all_gather`" in scattered.cause


def test_a_sum_in_each_iteration_is_deferred_to_one():
    w, xs = on_data(64, 64), on_data(5, 256, 64, spec=(None, "data"))

    def plain(w, xs):
        return lax.scan(lambda total, x: (total + jnp.sum(jnp.tanh(x @ w) ** 2), None), 0.0, xs)[0]

    before = jaxviz.collectives(plain, w, xs)
    (summed,) = advised(before, "in each of 5 iterations")
    assert summed.trips == 5

    @partial(jax.shard_map, mesh=DATA, in_specs=(P(), P(None, "data")), out_specs=P())
    def followed(w, xs):
        w = lax.pcast(w, "data", to="varying")
        start = lax.pcast(0.0, "data", to="varying")
        total = lax.scan(lambda total, x: (total + jnp.sum(jnp.tanh(x @ w) ** 2), None), start, xs)[0]
        return lax.psum(total, "data")

    after = jaxviz.collectives(followed, w, xs)
    (once,) = of_kind(after, "all-reduce")
    assert once.trips == 1
    assert once.total_sent_nbytes * 5 == summed.total_sent_nbytes
    assert "`w` is the same on all devices of `data`" in once.cause


def test_a_layout_that_nothing_moves_for_moves_nothing():
    def asks(spec):
        def f(x):
            y = lax.with_sharding_constraint(jnp.sin(x), NamedSharding(GRID, P("data", "model")))
            return jnp.sum(jnp.cos(lax.with_sharding_constraint(y, NamedSharding(GRID, spec))))

        return f

    x = on_grid(64, 64, spec=("data", "model"))
    before = jaxviz.collectives(asks(P("data", None)), x)
    moved = advised(
        before, "ask for the layout that it already has, `P('data', 'model')`, so that nothing is moved here"
    )
    assert moved
    after = jaxviz.collectives(asks(P("data", "model")), x)
    assert not advised(after, "moves nothing here")
    assert after.sent_nbytes < before.sent_nbytes - 0.9 * moved[0].total_sent_nbytes


def test_what_the_forward_pass_gathered_is_not_gathered_again():
    def layer(gathered):
        def f(h, w):
            if gathered:
                w = lax.with_sharding_constraint(w, NamedSharding(DATA, P()))
            return jnp.tanh(h @ w), None

        return lambda ws, x: jnp.mean(lax.scan(f, x, ws)[0] ** 2)

    before = jaxviz.collectives(layer(False), WS, X)
    (again,) = advised(before, "the forward pass gathers `ws` too")
    assert (again.kind, again.stage) == ("all-gather", "backward")
    after = jaxviz.collectives(layer(True), WS, X)
    assert not of_kind(after, "all-gather", "backward")


def test_arguments_stacked_in_one_array_are_gathered_at_once():
    w = on_data(64, 64, spec=("data",))

    def apart(p, x):
        q, k, v = (x @ p[n] for n in "qkv")
        return jnp.mean((jax.nn.softmax(q @ k.T) @ v) ** 2)

    before = jaxviz.collectives(apart, dict.fromkeys("qkv", w), X, argnums=())
    assert len(advised(before, "stack them in one array to gather them at once")) in (1, 3)
    n_before = sum(c.count for c in before.compiled if "`p['" in c.cause)

    def together(p, x):
        q, k, v = jnp.einsum("bd,nde->nbe", x, p)
        return jnp.mean((jax.nn.softmax(q @ k.T) @ v) ** 2)

    after = jaxviz.collectives(together, on_data(3, 64, 64, spec=(None, "data")), X, argnums=())
    n_after = sum(c.count for c in after.compiled if "`p` is" in c.cause)
    assert (n_before, n_after) == (3, 1)


def test_a_gradient_in_the_layout_of_the_argument_takes_less():
    report = jaxviz.collectives(fsdp, WS, X)
    (gradient,) = [r for r in report.replicated if r.what == "the gradient in ws"]
    assert gradient.nbytes == 6 * 64 * 64 * 4
    assert gradient.split_nbytes * 8 == gradient.nbytes
    compiled = jax.jit(jax.grad(fsdp), out_shardings=WS.sharding).lower(WS, X).compile()
    (split,) = jax.tree.leaves(compiled.output_shardings)
    assert split.shard_shape((6, 64, 64)) == (6, 8, 64)
    left = jax.jit(jax.grad(fsdp)).lower(WS, X).compile()
    assert jax.tree.leaves(left.output_shardings)[0].is_fully_replicated
    assert compiled.memory_analysis().output_size_in_bytes == gradient.split_nbytes


def normalized(w, x):
    h = x @ w
    return lax.pmean(jnp.mean((h - lax.pmean(h.mean(0), "data")) ** 4), "data")


def in_each_layer(up, down, x):
    for _ in range(2):
        x = lax.psum(jnp.tanh(x @ up) @ down, "data")
    return jnp.mean(x**2)


UP_DOWN = (on_data(32, 64, spec=(None, "data")), on_data(64, 32, spec=("data",)), on_data(16, 32))
SUMS = {
    "combined with what is the same on all devices": (
        lambda up, down, x: jnp.mean(lax.psum(jnp.tanh(x @ up) @ down, "data") ** 2), UP_DOWN, P(),
    ),
    "means combined with values that differ, and a loss that is not": (
        normalized, (on_data(32, 32), on_data(64, 32, spec=("data",))), P(),
    ),
    "of what is the same on all devices already": (
        lambda w, x: x * lax.psum(jnp.sin(w), "data"), (on_data(32), on_data(64, 32, spec=("data",))), P("data"),
    ),
    "combined with the next layer's weights, which differ": (in_each_layer, UP_DOWN, P()),
}  # fmt: skip


def collectives_of(name, check_vma):
    f, args, out = SUMS[name]
    specs = tuple(x.sharding.spec for x in args)
    mapped = jax.shard_map(f, mesh=DATA, in_specs=specs, out_specs=out, check_vma=check_vma)
    return jaxviz.collectives(mapped if out == P() else lambda *args: jnp.sum(mapped(*args)), *args)


@pytest.mark.parametrize("name", SUMS)
def test_with_check_vma_the_transpose_of_a_sum_exchanges_nothing_if_the_report_says_so(name):
    before, after = (collectives_of(name, check_vma) for check_vma in (False, True))
    assert all(c.cause for c in before.compiled)
    n_backward = lambda report: sum(w.count for w in report.written if w.stage == "backward")
    n_said = sum(c.count for c in advised(before, "with `check_vma=True` in `jax.shard_map`"))
    assert n_said == n_backward(before) - n_backward(after)
    assert not advised(after, "check_vma")
    if SUMS[name][0] is normalized:  # types do not say what differs, and the cotangent has the name of its argument
        (summed,) = of_kind(before, "all-reduce", "backward")[:1]
        assert summed.cause.startswith(
            "`w` is the same on all devices of `data`: each device has a part of its cotangent"
        )


def test_an_axis_that_is_divided_in_parts():
    """A batch that is split over devices, in two microbatches, is split over a part of the axis in each."""

    def step(w, xs):
        total, _ = lax.scan(
            lambda g, x: (g + jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w), None),
            jnp.zeros_like(w),
            xs.reshape(2, 32, 16),
        )
        return w - total, jnp.sum(xs)

    report = jaxviz.collectives(jax.jit(step), on_data(16, 16), on_data(64, 16, spec=("data",)))
    assert "`w` is replicated over a part of `data`" in " ".join(c.cause for c in report.compiled)
