"""The cost of gradients: each operation counted by hand and by XLA, loops and devices, totals, report, time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcripts
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from short_runs import short

import jaxviz
from benchmarks import models
from jaxviz import Cost, cost_of
from jaxviz.features.cost import counts
from jaxviz.features.cost.counts import COUNTS
from jaxviz.features.cost.parts import flops_of, sum_of

LINE = Mesh(np.array(jax.devices()[:8]), ("i",))
F = 4
"""Bytes in a float32."""

X = jax.device_put(np.linspace(0.1, 0.9, 1000, dtype=np.float32))
I = jnp.array([[2], [0], [1]])
ROWS = lax.GatherDimensionNumbers((1,), (0,), (0,))
TO_ROWS = lax.ScatterDimensionNumbers((1,), (0,), (0,))


def shaped(*shape):
    return jax.device_put(np.ones(shape, np.float32))


M = shaped(32, 48)


def total(fun, *args):
    return sum((cost_of(e) for e in jaxviz.trace(fun)(*args).equations), Cost())


def test_equations_that_share_operations_are_summed_as_each_by_itself():
    layer = jax.jit(lambda x: jnp.sin(x) @ x + lax.fori_loop(0, 3, lambda _, y: y @ y, x))
    program = jaxviz.trace(lambda x: jnp.sum(jnp.sin(layer(layer(jnp.sin(x))))))(shaped(8, 8))
    assert sum_of(program.equations, {}) == sum(map(cost_of, program.equations), Cost())


def xla(fun, *args):
    """XLA's count before optimization, when operations are still separate."""
    return jax.jit(fun).lower(*args).cost_analysis()


def conv(stride=(1, 1), padding="VALID", **options):
    return lambda x, k: lax.conv_general_dilated(x, k, stride, padding, **options)


OPERATIONS = {
    # name: function, arguments, FLOPs, transcendentals, bytes read, bytes written
    "add": (lax.add, (X, X), 1000, 0, 2000 * F, 1000 * F),
    "integers": (lambda n: n + n, (jnp.arange(10),), 10, 0, 20 * F, 10 * F),
    "comparison": (lax.lt, (X, X), 1000, 0, 2000 * F, 1000),
    "exp": (lax.exp, (X,), 0, 1000, 1000 * F, 1000 * F),
    "pow": (lax.pow, (X, X), 0, 1000, 2000 * F, 1000 * F),
    "logistic": (lax.logistic, (X,), 3000, 1000, 1000 * F, 1000 * F),
    "cube": (lambda x: lax.integer_pow(x, 3), (X,), 2000, 0, 1000 * F, 1000 * F),
    "inverse square": (lambda x: lax.integer_pow(x, -2), (X,), 2000, 0, 1000 * F, 1000 * F),
    "15th power": (lambda x: lax.integer_pow(x, 15), (X,), 6000, 0, 1000 * F, 1000 * F),
    "select": (lax.select_n, (X > 0.5, X, X), 1000, 0, 1000 + 2000 * F, 1000 * F),
    "dot": (jnp.dot, (M, shaped(48, 16)), 2 * 32 * 16 * 48, 0, (32 + 16) * 48 * F, 32 * 16 * F),
    "dot of batches": (
        lambda a, b: lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,)))), (shaped(5, 4, 3), shaped(5, 3, 2)),
        2 * 5 * 4 * 2 * 3, 0, 5 * (12 + 6) * F, 5 * 8 * F,
    ),
    "conv": (conv(), (shaped(2, 3, 9, 9), shaped(4, 3, 3, 3)), 2 * 2 * 4 * 3 * 7**2 * 9, 0, (2 * 243 + 108) * F,
             2 * 4 * 49 * F),
    "padded conv": (  # of 9 windows with 3 elements, the first and the last overlap the padding by one
        conv(padding="SAME"), (shaped(2, 3, 9, 9), shaped(4, 3, 3, 3)), 2 * 2 * 4 * 3 * 25**2, 0, (2 * 243 + 108) * F,
        2 * 4 * 81 * F,
    ),
    "grouped conv": (
        conv(feature_group_count=2), (shaped(2, 6, 9, 9), shaped(4, 3, 3, 3)), 2 * 2 * 4 * 3 * 21**2, 0,
        (2 * 6 * 81 + 108) * F, 2 * 4 * 49 * F,
    ),
    "conv of batch groups": (
        conv(batch_group_count=2), (shaped(2, 3, 9, 9), shaped(4, 3, 3, 3)), 2 * 4 * 3 * 21**2, 0, (2 * 243 + 108) * F,
        4 * 49 * F,
    ),
    "strided conv": (
        conv((2, 3)), (shaped(1, 1, 9, 9), shaped(1, 1, 3, 3)), 2 * (4 * 3) * (3 * 3), 0, (81 + 9) * F, 12 * F,
    ),
    "dilated kernel": (
        conv(rhs_dilation=(2, 1)), (shaped(1, 1, 9, 9), shaped(1, 1, 3, 3)), 2 * (5 * 3) * (7 * 3), 0, (81 + 9) * F,
        35 * F,
    ),
    # 3 elements two apart, so 5 in all, padded by 2: 7 windows of 3, which cover 9 elements in total
    "dilated input": (
        conv(padding=((2, 2), (0, 0)), lhs_dilation=(2, 1)), (shaped(1, 1, 3, 3), shaped(1, 1, 3, 3)), 2 * 9 * 3, 0,
        (9 + 9) * F, 7 * F,
    ),
    "sum": (lambda x: lax.reduce_sum_p.bind(x, axes=(0,), out_sharding=None), (M,), 31 * 48, 0, 32 * 48 * F, 48 * F),
    "max": (lambda x: jnp.max(x, 1), (M,), 32 * 47, 0, 32 * 48 * F, 32 * F),
    "argmax": (lambda x: lax.argmax(x, 1, np.int32), (M,), 9 * 32 * 47, 0, 32 * 48 * F, 32 * F),
    "pooling": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID"), (shaped(8, 8),), 16 * 3, 0, 64 * F,
        16 * F,
    ),
    "gather": (
        lambda x, i: lax.gather(x, i, ROWS, (1, 48), mode="clip"), (M, I), 0, 0, 3 * 48 * F + 3 * F, 3 * 48 * F,
    ),
    "scatter": (
        lambda x, i, u: lax.scatter(x, i, u, TO_ROWS, mode="promise_in_bounds"), (M, I, shaped(3, 48)), 0, 0,
        2 * 3 * 48 * F + 3 * F, 3 * 48 * F,
    ),
    "scatter-add": (
        lambda x, i, u: lax.scatter_add(x, i, u, TO_ROWS, mode="promise_in_bounds"), (M, I, shaped(3, 48)), 3 * 48, 0,
        2 * 3 * 48 * F + 3 * F, 3 * 48 * F,
    ),
    "slice": (lambda x: x[3:100], (X,), 0, 0, 97 * F, 97 * F),
    "sort": (lax.sort, (X,), 1000 * 10, 0, 1000 * F, 1000 * F),
    "fft": (lambda x: lax.fft(x, "fft", (64,)), (shaped(4, 64).astype(jnp.complex64),), 8 * 6 * 256, 0, 2048, 2048),
    "broadcast": (lambda x: lax.broadcast(x, (10,)), (X,), 0, 0, 1000 * F, 10_000 * F),
    "reshape": (lambda x: lax.reshape(x, (1536,)), (M,), 0, 0, 1536 * F, 1536 * F),
    "concatenate": (lambda x: lax.concatenate([x, x], 0), (X,), 0, 0, 2000 * F, 2000 * F),
}  # fmt: skip

UNLIKE_XLA_BYTES = {"inverse square", "logistic", "cube", "15th power", "argmax", "integers", "pooling", "sum", "max"}
"""JAX lowers these to several operations, or they read a scalar in addition; XLA's FLOPs still agree."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_counts_by_hand_and_by_xla(name):
    fun, args, flops, transcendentals, read, written = OPERATIONS[name]
    found = total(fun, *args)
    assert found == Cost(flops, read, written, transcendentals)
    theirs = xla(fun, *args)
    assert (theirs.get("flops", 0), theirs.get("transcendentals", 0)) == (flops, transcendentals)
    if name not in UNLIKE_XLA_BYTES:
        assert theirs["bytes accessed"] == found.nbytes


def test_gradients_of_convolutions_as_xla_counts_them():
    fun = lambda x, k: jnp.sum(conv((2, 1), "SAME", feature_group_count=2, rhs_dilation=(1, 2))(x, k))
    args = shaped(2, 4, 12, 11), shaped(6, 2, 3, 3)
    both = jax.value_and_grad(fun, (0, 1))
    assert total(both, *args).flops == xla(both, *args)["flops"] > 0


@pytest.mark.parametrize("f", [jnp.sum, jnp.cumsum, lambda x: jnp.sum(x, axis=0, keepdims=True)])
def test_what_has_no_elements_takes_no_work(f):
    assert jaxviz.cost(lambda x: jnp.sum(f(x)), jnp.ones(0)).total.flops == 0


def test_a_ragged_product_multiplies_each_row_with_one_group():
    """XLA's count is no reference: without an operation for it, as on a CPU, it multiplies each row with all groups."""
    loss = lambda x, w, sizes: jnp.sum(lax.ragged_dot(x, w, sizes))
    args = shaped(32, 8), shaped(4, 8, 16), jnp.array([8, 8, 8, 8])
    product = 2 * 32 * 8 * 16
    assert total(lax.ragged_dot, *args).flops == product
    of_each = jaxviz.cost(loss, *args, argnums=(0, 1)).by_primitive["ragged_dot_general"].flops
    assert of_each == 3 * product
    mapped = jax.vmap(lax.ragged_dot)
    assert total(mapped, *(jnp.stack([x, x]) for x in args)).flops == 2 * product


def test_a_triangular_solve_counts_as_xla_counts_it():
    """One multiplication and one addition per matrix element, also above the diagonal, and right-hand side."""
    solve = lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True)
    assert total(solve, shaped(8, 8), shaped(8, 3)).flops == 2 * 8 * 8 * 3


def test_dynamic_slices_move_the_slice_alone():
    start = (jnp.int32(3), jnp.int32(0))
    moved = Cost(0, 192 * F + 2 * F, 192 * F)
    assert total(lambda x, i, j: lax.dynamic_slice_p.bind(x, i, j, slice_sizes=(4, 48)), M, *start) == moved
    assert total(lax.dynamic_update_slice_p.bind, M, shaped(4, 48), *start) == moved


def test_what_is_counted_otherwise_than_by_xla():
    assert total(lambda x: x.astype(jnp.bfloat16), X) == Cost(0, 1000 * F, 1000 * 2)
    assert total(lambda x: lax.cumsum(x, 0), M).flops == 31 * 48 < xla(lambda x: lax.cumsum(x, 0), M)["flops"]
    outer = lambda x, y: lax.dot_general(x, y, (((), ()), ((), ())))
    assert total(outer, X, X).flops == 1000**2
    assert jax.jit(outer).lower(X, X).compile().cost_analysis()["flops"] == 1000**2
    bits = total(lambda k: jax.random.bits(k, (1000,)), jax.random.key(0))
    assert bits.flops == 1000 * (20 * 5 + 12 + 1)
    assert total(lambda k: jax.random.bits(k, (1000,)), jax.random.key(0, impl="rbg")).transcendentals == 1000


def test_costs_add_and_multiply():
    cost = Cost(10, 3, 2, 1)
    assert cost + cost == 2 * cost == cost * 2 == Cost(20, 6, 4, 2)
    assert (cost.nbytes, cost.intensity, Cost().intensity) == (5, 2.0, 0.0)


# --- programs inside programs -----------------------------------------------------------------------------------------


def test_a_scan_costs_its_body_times_its_length():
    body = lambda c, x: (jnp.tanh(c * x), None)
    scan = lambda c, xs: lax.scan(body, c, xs)[0]
    assert total(scan, X, shaped(7, 1000)) == 7 * total(lambda c, x: jnp.tanh(c * x), X, X)
    nested = lambda c: lax.fori_loop(0, 3, lambda _, c: lax.fori_loop(0, 5, lambda _, c: c * c, c), c)
    assert jaxviz.cost(lambda x: nested(x).sum(), X).by_primitive["mul"].flops >= 15 * 1000


def test_calls_cost_what_they_hold():
    inside = lambda x: jnp.sin(x) * x
    cost = total(inside, X)
    custom = jax.custom_jvp(inside)
    custom.defjvp(lambda xs, ts: (inside(*xs), jnp.cos(xs[0]) * ts[0]))
    custom_vjp = jax.custom_vjp(inside)
    custom_vjp.defvjp(lambda x: (inside(x), x), lambda x, ct: (ct * x,))
    for call in (jax.jit(inside), jax.checkpoint(inside), custom, custom_vjp):
        assert total(call, X) == cost


def test_a_shard_map_costs_what_its_devices_do_together():
    fun = jax.shard_map(lambda x: lax.psum(jnp.sin(x) * x, "i"), mesh=LINE, in_specs=P("i"), out_specs=P())
    found = total(fun, shaped(8, 1000))
    assert (found.flops, found.transcendentals) == (8 * 2 * 1000, 8 * 1000)
    assert found.bytes_sent == 8 * 1000 * F
    shift = lambda x: lax.ppermute(x, "i", [(k, (k + 1) % 8) for k in range(8)])
    fun = jax.shard_map(shift, mesh=LINE, in_specs=P("i"), out_specs=P("i"))
    assert total(fun, shaped(8, 1000)) == 8 * Cost(0, 1000 * F, 1000 * F, bytes_sent=1000 * F)


def test_one_device_is_held_against_xla():
    fun = jax.shard_map(lambda x, w: jnp.tanh(x @ w), mesh=LINE, in_specs=(P("i"), P()), out_specs=P("i"))
    report = jaxviz.cost(lambda w, x: fun(x, w).sum(), shaped(32, 32), shaped(64, 32))
    assert report.total.flops > 7 * report.as_compiled.flops
    assert any("all devices" in note for note in report.notes)
    assert report.as_compiled.flops == pytest.approx(report.xla().flops, rel=0.1)


# --- whole programs against XLA ---------------------------------------------------------------------------------------


def attention_loss(p, x):
    return jnp.mean(models.attention(p, x) ** 2)


def convolutional_loss(kernels, x):
    for k in kernels:
        x = jax.nn.relu(conv((2, 2), "SAME")(x, k))
    return jnp.mean(x**2)


def unrolled_loss(w, xs):
    cell = lambda h, x: (jnp.tanh(h @ w + x), None)
    return jnp.sum(lax.scan(cell, jnp.zeros_like(xs[0]), xs, unroll=len(xs))[0])


PROGRAMS = {
    "mlp": models.mlp(4),
    "transformer": models.transformer(1),
    "checkpointed transformer": models.remat_transformer(1),
    "scan over layers": models.scan_transformer(2),
    "attention": (attention_loss, ({k: shaped(32, 32) for k in "qkvo"}, shaped(32, 32))),
    "convolutions": (convolutional_loss, ([shaped(8, 3, 3, 3), shaped(16, 8, 3, 3)], shaped(2, 3, 16, 16))),
    "lstm": models.lstm(1),
    "unrolled scan": (unrolled_loss, (shaped(32, 32), shaped(5, 8, 32))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(PROGRAMS), 2))
def test_gradients_cost_what_xla_says(name):
    """XLA counts a loop's body once, and so does `as_compiled`."""
    fun, args = PROGRAMS[name]
    report = jaxviz.cost(fun, *args)
    compiled = jax.jit(jax.value_and_grad(fun)).lower(*args).compile().cost_analysis()
    assert report.as_compiled.flops == pytest.approx(compiled["flops"], rel=0.1)
    assert report.estimated == ()


def test_layers_cost_what_xla_counts_before_it_optimizes():
    """The compiled count grows faster with the number of layers: fusions recompute values rather than read them."""
    fun, args = models.transformer(3)
    report = jaxviz.cost(fun, *args)
    assert report.total.flops == pytest.approx(report.xla(optimized=False).flops, rel=0.001)


# --- the report -------------------------------------------------------------------------------------------------------


def loss(params, x):
    h = jnp.tanh(x @ params["w"])
    return jnp.sum(h * h)


@pytest.fixture(scope="module")
def report():
    return jaxviz.cost(loss, {"w": shaped(4, 3)}, shaped(5, 4))


def test_totals_are_sums_of_rows(report):
    costs = [r.cost for r in report.rows]
    assert sum(costs, Cost()) == report.total == report.forward + report.backward
    assert sum(report.by_line.values(), Cost()) == sum(report.by_primitive.values(), Cost()) == report.total
    assert report.by_primitive["dot_general"].flops == 2 * (2 * 5 * 3 * 4)
    whole = [cost_of(e) for p in (report.derivation.forward, report.derivation.backward) for e in p.equations]
    assert sum(whole, Cost()) == report.total


def test_long_names_of_files_are_cut(tmp_path):
    path = tmp_path / f"{'a' * 80}.py"
    source = "import jax.numpy as jnp\ndef f(x):\n    return jnp.sin(x)\n"
    scope = {}
    exec(compile(source, str(path), "exec"), scope)
    text = str(jaxviz.cost(scope["f"], 1.0))
    assert "aaa.py:3" in text
    assert max(map(len, text.split("\n"))) <= 100


def test_special_functions_are_counted_as_jax_lowers_them():
    for fun in (lax.lgamma, lax.erf_inv, lax.asinh, lax.bessel_i0e):
        found, theirs = total(fun, X), xla(fun, X)
        assert (found.flops, found.transcendentals) == (theirs["flops"], theirs.get("transcendentals", 0))
        assert COUNTS[fun.__name__] is counts._as_lowered


# --- measured ---------------------------------------------------------------------------------------------------------


def test_measured_times(report):
    timings = report.measure(repeat=2)
    d = report.derivation
    assert [t.equation for t in timings.rows] == [*d.forward.equations, *d.backward.equations]
    assert all(t.seconds > 0 for t in timings.rows)
    assert timings.seconds == sum(t.seconds for t in timings.rows)
    assert {t.location.file for t in timings.rows} == {__file__}
    assert max(map(len, str(timings).split("\n"))) <= 100
    assert "dot_general" in str(timings)
    assert "<table>" in timings._repr_html_()
    assert len(timings.to_dict()["rows"]) == len(timings.rows)


def test_the_times_of_layers_are_one_row():
    def f(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    few, many = (jaxviz.cost(f, [jnp.eye(3)] * n, jnp.ones((2, 3))).measure(repeat=1) for n in (2, 5))
    assert len(str(many).splitlines()) <= len(str(few).splitlines()) + 2
    text = " ".join(str(many).split())
    assert "5 × tanh" in text
    assert "`jnp.tanh(x @ w)`" in text


def test_measuring_runs_loops_constants_and_integers():
    def fun(x, n):
        y, _ = lax.scan(lambda c, k: (jnp.sin(c) * k, None), x, X[:3])
        return jnp.sum(jnp.where(n > 1, y, 2.0) * X[:4])

    report = jaxviz.cost(fun, jnp.ones(4), jnp.arange(4))
    assert any(t.equation.primitive.name == "scan" for t in report.measure(repeat=1).rows)


@pytest.mark.parametrize("model", [models.scan_transformer, models.remat_transformer, models.lstm])
def test_flops_of_many_are_those_of_each(model):
    f, args = model(2)
    d, known = jaxviz.derive(f, *args), {}
    equations = [e for program in (d.jvp, d.forward, d.backward) for _, e in program.walk()]
    assert [flops_of(e, known) for e in equations] == [cost_of(e).flops for e in equations]
    assert len(known) < len(equations)


def test_flops_of_a_cond_are_those_of_its_dearest_branch():
    f = lambda x: lax.cond(x.sum() > 0, jnp.sin, lambda x: x * x + x, x)
    (cond,) = [e for e in jaxviz.trace(f)(X).equations if e.primitive.name == "cond"]
    assert flops_of(cond, {}) == cost_of(cond).flops == 2000


@transcripts.of("cost")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)
