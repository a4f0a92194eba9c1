"""Plans of what to save: compared with exhaustive search, with JAX's policies, and with what JAX then saves."""

import json
import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_programs import LINE
from jax import lax
from jax.sharding import PartitionSpec as P
from short_runs import short

import jaxviz
from benchmarks import models
from benchmarks.remat import every_outcome, with_all_values
from jaxviz.analysis.budgets import read_budget, read_size
from jaxviz.features.remat.planning import Planning
from jaxviz.features.remat.search import Search
from jaxviz.report.tables import format_bytes

pytestmark = pytest.mark.slow

X = jnp.linspace(0.1, 1.0, 64 * 8).reshape(64, 8)
W = jnp.linspace(-0.5, 0.5, 64).reshape(8, 8)

# --- programs --------------------------------------------------------------------------------------------------------


def mlp(ws, x):
    for w in ws:
        x = jnp.sin(x @ w) * 2.0
    return jnp.sum(x)


def wide(w, x):
    """Large values that are cheap, and small ones that are expensive."""
    big = jnp.exp(jnp.broadcast_to(x[:, :, None], (64, 8, 16)))
    small = jnp.sum((x @ w) @ (w @ w), 0)
    return jnp.sum(big * small[:, None]) + jnp.sum(jnp.tanh(small))


def branching(w, x):
    a = jnp.tanh(x @ w)
    b = jnp.sin(a) @ w
    c = jnp.cos(a * b)
    return jnp.sum(c @ w * b)


def sharded(f, check_vma=True):
    return jax.shard_map(f, mesh=LINE, in_specs=(P(), P("i")), out_specs=P(), check_vma=check_vma)


def over_devices(w, x):
    h = jnp.sin(x @ w)
    h = jnp.cos(h * lax.pmean(jnp.sum(h, 0), "i")) @ w
    return lax.psum(jnp.sum(jnp.sin(h) * h), "i")


def loop_over_devices(w, x):
    def step(c, _):
        c = jnp.sin(c @ w)
        return jnp.cos(c * lax.pmean(jnp.sum(c, 0), "i")), jnp.sum(c)

    c, sums = lax.scan(step, x, None, length=4)
    return lax.psum(jnp.sum(c * c) + jnp.sum(jnp.sin(sums)), "i")


def devices_in_a_loop(w, x):
    mean = lambda w, x: jnp.sin(x @ w) * lax.pmean(jnp.exp(jnp.sum(x) / 100), "i")
    on_devices = jax.shard_map(mean, mesh=LINE, in_specs=(P(), P("i")), out_specs=P("i"))
    return jnp.sum(lax.scan(lambda c, _: (jnp.tanh(on_devices(w, c)), None), x, None, length=3)[0] ** 2)


def rnn(w, x):
    def cell(h, _):
        h = jnp.tanh(h @ w)
        return h, jnp.sum(jnp.sin(h))

    h, ys = lax.scan(cell, x, None, length=5)
    return jnp.sum(jnp.sin(h @ w)) + jnp.sum(ys)


def over_inputs(w, xs):
    """Values that do not depend on the carry, and values that are the same in each iteration."""

    def step(c, x):
        scale = jnp.exp(w).sum()
        y = jnp.sin(x @ w) @ w
        return c * 0.5 + jnp.cos(y) * scale, None

    return jnp.sum(lax.scan(step, jnp.zeros((4, 8)), xs)[0])


def nested(w, x):
    def outer(c, _):
        inner = lambda d, __: (jnp.sin(d @ w), None)
        return lax.scan(inner, jnp.cos(c), None, length=2)[0], None

    return jnp.sum(lax.scan(outer, x, None, length=3)[0])


def _step(c, w):
    return jnp.sin(c @ w), jnp.cos(c).sum()


def twice(w, x):
    """Two loops with the same body."""
    ws = jnp.stack([w] * 5)
    c, first = lax.scan(_step, x, ws)
    c, second = lax.scan(_step, jnp.tanh(c), ws)
    return jnp.sum(c) + first.sum() * second.sum()


def two_results(w, x):
    """A cond with two results from different operands, of which the gradient needs only one."""
    y, z = lax.cond(x[0, 0] > 0, lambda w, x: (jnp.sin(w), jnp.cos(x)), lambda w, x: (w, x * 2.0), w, jnp.exp(x))
    return jnp.sum(jnp.sin(y) @ w) + jnp.sum(lax.stop_gradient(z))


def complex_values(w, x):
    return jnp.sum(jnp.abs(jnp.fft.fft(jnp.sin(x @ w))) ** 2)


def crowded(ws, x):
    """A forward pass that ends in a large value that no gradient needs."""
    for w in ws:
        x = jnp.sin(x @ w)
    most = jnp.max(jnp.sort(jnp.outer(x, x).reshape(-1)))
    return jnp.sum(x) + lax.stop_gradient(most)


def in_a_cond(w, x):
    y = x @ w
    y = lax.cond(y[0, 0] > 0, lambda y: jnp.sin(y) * lax.pmean(y, "i"), lambda y: y * lax.pmean(y, "i"), y)
    return lax.psum(jnp.sum(jnp.sin(y)), "i")


def branches_on_a_value(w, x):
    return jnp.sum(jnp.sin(x @ w)) if w[0, 0] > 0 else jnp.sum(x @ w)


TOKENS = jnp.zeros(48, int)
PARAMS = models.transformer_params(2, width=48, hidden=96)
SMALL = {"mlp": (mlp, [W, W * 0.5, W + 0.1], X), "wide": (wide, W, X), "branching": (branching, W, X)}
DEVICES = {
    "over_devices": (sharded(over_devices), W, X),
    "over_devices, no types": (sharded(over_devices, False), W, X),
    "loop_over_devices": (sharded(loop_over_devices), W, X),
    "devices_in_a_loop": (devices_in_a_loop, W, X),
}
PROGRAMS = {
    **SMALL,
    **DEVICES,
    "rnn": (rnn, W, X),
    "over_inputs": (over_inputs, W, X.reshape(16, 4, 8)),
    "nested": (nested, W, X),
    "twice": (twice, W, X),
    "two_results": (two_results, W, X),
    "complex_values": (complex_values, W, X),
    "transformer": (models.transformer_loss, PARAMS, TOKENS),
}
LONG = ("wide", "over_devices, no types", "loop_over_devices", "devices_in_a_loop", "transformer")
CROWDED = ([W * 0.5, W, W + 0.1], X[:16])

# --- what is compared ------------------------------------------------------------------------------------------------


def held_by_jax(f, *args, argnums=0):
    """Bytes of the arrays in `jax.vjp`'s function, each counted once."""
    nums = (argnums,) if isinstance(argnums, int) else argnums

    def of(*given):
        it = iter(given)
        return f(*(next(it) if i in nums else a for i, a in enumerate(args)))

    _, pull = jax.vjp(of, *(args[i] for i in nums))
    return sum({id(x): x.nbytes for x in jax.tree.leaves(pull)}.values())


def recomputed(f, g, *args):
    """FLOPs of a gradient in addition to another's, without the rounding of a checkpoint's saved values."""
    flops = lambda f: sum(r.cost.flops for r in jaxviz.cost(f, *args).rows if r.primitive != "reduce_precision")
    return flops(g) - flops(f)


def planned(f, *args, budget, recompute_collectives=False):
    """One checkpoint around a function, with a limit on the bytes of residuals and none on the peak."""
    planning = Planning(Search(jaxviz.derive(f, *args), recompute_collectives))
    return planning.plan("residuals within it", planning.search.within(budget), budget=budget)


def exchanges(f, *args):
    return sum("psum" in str(e.primitive) for _, e in jaxviz.derive(f, *args).backward.walk())


def assert_close(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * float(jnp.abs(b).max()) + 1e-6)


@pytest.mark.parametrize("share", short([0.0, 0.4], [0.4]))
@pytest.mark.parametrize("name", short(list(PROGRAMS), [name for name in PROGRAMS if name not in LONG]))
def test_jax_saves_and_recomputes_what_was_planned(name, share):
    """The budgets are between the fewest bytes and all. A value counts with its bytes on one device."""
    f, *args = PROGRAMS[name]
    least, whole = (getattr(Search(jaxviz.derive(f, *args), False), a) for a in ("least", "opened"))
    assert least < whole.nbytes
    budget = int(least + share * (whole.nbytes - least))
    plans = [planned(f, *args, budget=budget)]
    if name in SMALL or name in DEVICES:
        plans.append(jaxviz.plan_remat(f, *args, budget=budget))
    for plan in plans:
        g = plan.apply(f)
        residuals = jaxviz.residuals(g, *args, argnums=0)
        assert (residuals.nbytes_per_device or residuals.nbytes) == plan.nbytes <= budget
        assert held_by_jax(g, *args) == residuals.nbytes
        assert recomputed(f, g, *args) == plan.flops
        assert exchanges(g, *args) == exchanges(f, *args)  # which is not repeated
        assert_close(jax.jit(jax.grad(g))(*args), jax.jit(jax.grad(f))(*args))


SHARES = (0.0, 0.3, 0.5, 0.7, 0.9)


@pytest.mark.parametrize("name", short(list(SMALL), ["mlp", "branching"]))
def test_the_plan_is_the_optimum(name):
    """No set of values within the budget recomputes less, or as little with fewer bytes."""
    f, *args = SMALL[name]
    search = Search(jaxviz.derive(f, *args), False)
    everything = with_all_values(search)
    assert len(search.graph.candidates) <= len(everything.graph.candidates) <= 16
    sizes, flops = every_outcome(everything.graph)
    names = list(everything.graph.candidates)
    for k in (0, 5, len(sizes) // 3, len(sizes) - 1):  # both ways of counting agree
        choice = everything.choice([n for i, n in enumerate(names) if k >> i & 1])
        assert (choice.nbytes, choice.flops) == (sizes[k], flops[k])
    assert search.least == sizes.min()
    for share in SHARES:
        budget = int(search.least + share * (search.opened.nbytes - search.least))
        plan = jaxviz.plan_remat(f, *args, budget=budget)
        assert plan.nbytes <= budget
        assert plan.flops <= 1.02 * flops[sizes <= budget].min()


@cache
def plan_of_transformer():
    return jaxviz.plan_remat(models.transformer_loss, PARAMS, TOKENS, budget=0.5)


def test_the_front_trades_peak_for_work():
    plan = plan_of_transformer()
    peaks, flops = zip(*((t.peak_nbytes, t.flops) for t in plan.front), strict=True)
    assert list(peaks) == sorted(set(peaks))
    assert list(flops) == sorted(set(flops), reverse=True)
    assert flops[-1] == 0
    assert peaks[-1] <= plan.before.peak_nbytes


def test_where_all_fits_nothing_is_checkpointed(monkeypatch):
    plan = jaxviz.plan_remat(mlp, [W] * 3, X, budget=1.0)
    assert (plan.apply(mlp), plan.saved, plan.code()) == (mlp, None, "# mlp fits as written: no changes")
    assert plan.summary.endswith("no changes")
    assert jaxviz.plan_remat(mlp, [W] * 3, X, memory="1GB").apply(mlp) is mlp
    seen = []
    free = lambda arguments: seen.append(sum(x.nbytes for x in arguments)) or 10**9
    monkeypatch.setattr("jaxviz.features.remat.planning.free_memory", free)
    assert "peak within 953.7 MiB" in jaxviz.plan_remat(mlp, [W] * 3, X, memory="device").summary
    assert seen == [3 * W.nbytes + X.nbytes]


def test_checkpoints_that_are_there_give_way_to_the_plan():
    own = jax.checkpoint(branching)
    plan = jaxviz.plan_remat(own, W, X, budget=1.0)
    assert plan.everything == jaxviz.plan_remat(branching, W, X, budget=1.0).everything
    half = jaxviz.plan_remat(own, W, X, budget=0.7)
    assert half.peak_nbytes <= jaxviz.memory(own, W, X).peak_nbytes
    assert held_by_jax(half.apply(own), W, X) == half.nbytes


def test_axes_that_are_numpys_numbers_are_no_axes_of_devices():
    f = lambda w, x: jnp.sum(jnp.sin(lax.reduce_max(x @ w, (np.int64(1),))))
    assert not any(Search(jaxviz.derive(f, W, X), False).graph.fixed)


def test_what_devices_exchange_is_exchanged_again_if_allowed():
    f = DEVICES["over_devices"][0]
    least = lambda again: Search(jaxviz.derive(f, W, X), again).least
    assert least(True) < least(False)
    plan = planned(f, W, X, budget=least(True), recompute_collectives=True)
    assert exchanges(plan.apply(f), W, X) > exchanges(f, W, X)
    planned(sharded(in_a_cond, False), W, X, budget=6000, recompute_collectives=True)


def test_what_devices_exchange_is_saved_where_a_policy_would_not_save_it():
    """At this peak, what `dots_saveable` saves in each block is the least work, with its sums over devices repeated."""

    def block(w, x):
        y = jnp.tanh(x @ w)
        return jnp.sin(y * lax.psum(jnp.sum(y * y, 0, keepdims=True), "i")) @ w

    def blocks(ws, x):
        for w in ws:
            x = block(w, x)
        return lax.psum(jnp.sum(x**2), "i")

    f = sharded(blocks, False)
    args = [jnp.full((32, 32), 0.01)] * 6, jnp.ones((512, 32))
    plan = jaxviz.plan_remat(f, *args, memory=160_000)
    assert plan.regions
    assert exchanges(plan.apply(f), *args) == exchanges(f, *args)


def with_effect(effect, w, x):
    y = x @ w
    effect(lax.stop_gradient(jnp.sum(y)))
    return jnp.sum(jnp.sin(y) @ w)


def test_an_effect_that_runs_twice_is_noted():
    seen = []
    f = partial(with_effect, lambda y: jax.debug.callback(lambda y: seen.append(float(y)), y))
    plan = jaxviz.plan_remat(f, W, X, budget=0.9)
    jax.grad(plan.apply(f))(W, X)
    jax.effects_barrier()
    assert len(seen) == 2
    assert "In a checkpoint, JAX runs these in both passes: `debug_callback`" in str(plan)


def test_of_plans_with_the_same_work_it_is_one_of_the_fewest_bytes():
    """If nothing has to be recomputed, a larger budget is not used."""
    plans = [jaxviz.plan_remat(branching, W, X, budget=b) for b in (0.95, 0.99)]
    assert plans[0].after == plans[1].after
    assert plans[0].flops == 0
    assert plans[0].nbytes < plans[0].everything.nbytes


def test_a_value_saved_in_a_loop_says_how_often():
    plan = planned(rnn, W, X, budget=int(0.6 * jaxviz.residuals(rnn, W, X).nbytes))
    assert any(s.type == "5 × f32[64,8]" for s in plan.saved)


def test_arguments_of_other_types_are_refused():
    plan = jaxviz.plan_remat(branching, W, X, budget=0.6)
    g = plan.apply(branching)
    with pytest.raises(
        TypeError, match=r"for an argument float32\[64,8\], not float32\[3,8\]; make one for these types"
    ):
        g(W, X[:3])
    with pytest.raises(TypeError, match="with the structure"):
        g(W, [X])


def test_trees_and_keyword_arguments():
    def f(params, *, x):
        return {"loss": jnp.sum(jnp.tanh(x @ params["w"]) @ params["w"]), "x": x}

    plan = jaxviz.plan_remat(lambda p, x: f(p, x=x)["loss"], {"w": W}, X, budget=0.7)
    assert plan.nbytes < plan.everything.nbytes
    whole = jaxviz.plan_remat(f, {"w": W}, x=X, budget=0.7)
    assert jax.tree.structure(whole.apply(f)({"w": W}, x=X)) == jax.tree.structure(f({"w": W}, x=X))


def test_the_fastest_that_fits():
    """Of the plans for all budgets, none with less recomputation has a modelled peak that fits."""
    peaks = [
        (p.peak_nbytes, p.flops)
        for b in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
        for p in [jaxviz.plan_remat(crowded, *CROWDED, budget=b)]
    ]
    assert peaks[-1][0] == jaxviz.memory(crowded, *CROWDED).peak_nbytes
    memory = (peaks[0][0] + peaks[-1][0]) // 2
    plan = jaxviz.plan_remat(crowded, *CROWDED, memory=memory)
    assert plan.peak_nbytes <= memory < peaks[-1][0]
    assert jaxviz.memory(plan.apply(crowded), *CROWDED).peak_nbytes == plan.peak_nbytes
    assert plan.flops <= min(flops for peak, flops in peaks if peak <= memory)
    assert f"peak within {format_bytes(memory)}: peak" in " ".join(str(plan).split())
    assert plan.to_dict()["peak_nbytes"] == plan.peak_nbytes
    assert held_by_jax(plan.apply(crowded), *CROWDED) == plan.nbytes


def test_sizes_as_text_are_those_as_numbers():
    plan = jaxviz.plan_remat(branching, W, X, budget="8 KiB")
    assert plan.budget == 8192
    assert plan.after == jaxviz.plan_remat(branching, W, X, budget=8192).after


def test_arguments_that_are_not_arrays():
    def f(w, x, mode, activation, *, power=None, extra=None):
        y = activation(x @ w) if mode == "deep" else x @ w
        return jnp.sum(jnp.sin(y) @ w) ** power

    args, kwargs = (W, X, "deep", jnp.tanh), {"power": 2, "extra": None}
    plan = jaxviz.plan_remat(f, *args, **kwargs, budget=0.6)
    g = plan.apply(f)
    assert plan.nbytes < plan.everything.nbytes
    bound = lambda f: lambda w, x: f(w, x, *args[2:], **kwargs)
    assert held_by_jax(bound(g), W, X) == plan.nbytes
    want = jax.grad(bound(f))(W, X)
    np.testing.assert_allclose(jax.jit(jax.grad(bound(g)))(W, X), want, rtol=1e-4)
    np.testing.assert_allclose(jax.grad(g)(*args, **kwargs), want, rtol=1e-4)
    for wrong in ((*args[:2], "flat", jnp.tanh), (*args[:3], jnp.sin)):
        with pytest.raises(ValueError, match=r"the plan for f is for an argument .*, not .*; make one for this"):
            g(*wrong, **kwargs)
    with pytest.raises(ValueError, match=r"for an argument 2, not 2\.0; make one for this"):
        g(*args, power=2.0, extra=None)


@pytest.mark.slow(sweep=True)
def test_shapes_alone_will_do():
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (PARAMS, TOKENS))
    same = jaxviz.plan_remat(models.transformer_loss, *shapes, budget=0.5)
    assert same.after == jaxviz.plan_remat(models.transformer_loss, PARAMS, TOKENS, budget=0.5).after


def test_reports():
    plan = plan_of_transformer()
    text = str(plan)
    assert text.startswith("plan for the gradient of `transformer_loss` in `params`, residuals, with arguments, ")
    assert f"peak {format_bytes(plan.before.peak_nbytes)}" in " ".join(text.split())
    assert all(len(line) <= 120 for line in text.splitlines())
    code = plan.code()
    assert code.startswith("# transformer_loss: peak ")
    assert "+++ b/benchmarks/models.py" in code
    # If JAX already saves less, a single checkpoint around everything may be the better plan.
    assert "jax.checkpoint(layer, policy=SAVED)(" in code or "@partial(jax.checkpoint, policy=SAVED)\n" in code
    assert json.loads(json.dumps(plan.to_dict()))["nbytes"] == plan.nbytes
    assert "<table>" in plan._repr_html_()


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_what_an_effect_reads_again_in_the_backward_pass_is_counted(share):
    """A checkpoint repeats a debug callback, and saves or recomputes its operands."""
    table = jax.device_put(np.linspace(0.0, 1.0, 50, dtype=np.float32))

    def f(x):
        jax.debug.callback(lambda v: None, table)
        y = jnp.sin(jnp.sum(x * 2.0) + table)
        return jnp.sum(jnp.sin(jnp.sin(jnp.sin(y))))

    x = jax.device_put(np.ones(50, np.float32))
    plan = jaxviz.plan_remat(f, x, budget=share)
    assert jaxviz.residuals(plan.apply(f), x, argnums=0).nbytes == plan.nbytes


def mlp_loss(params, x):
    for w, b in params:
        x = jnp.tanh(x @ w + b)
    return jnp.mean(x**2)


MLP = [(jnp.ones((16, 16)), jnp.zeros(16)) for _ in range(3)], jnp.ones((4, 16))


SIZE = "512MiB' or '1.5GB'"


MLP_LOSS = mlp_loss, *MLP
BAD_INPUTS = [
    (MLP_LOSS, {"memory": 0}, r"no plan was found for mlp_loss that fits in 0 B: .* as written it is"),
    (MLP_LOSS, {"memory": "0"},
     r"fits in 0 B: the lowest modelled peak of its gradient is .* are arguments, .*the largest other value is"),
    (MLP_LOSS, {"memory": 0.5}, rf"memory must be a number of bytes or a size such as '{SIZE}, not a share; got 0\.5"),
    (MLP_LOSS, {"memory": "40 apples"}, rf"memory must be .*{SIZE}; got '40 apples'"),
    (MLP_LOSS, {"memory": "-3GiB"}, r"memory must be .*, and at least 0; got '-3GiB'"),
    (MLP_LOSS, {"memory": float("nan")}, "memory must be .*got nan"),
    (MLP_LOSS, {"work": "-10%"}, r"work must be a share, such as 0\.1 or '10%', and at least 0; got '-10%'"),
    (MLP_LOSS, {"work": "10 GFLOP"}, r"work must be a share, such as 0\.1 or '10%'; got '10 GFLOP'"),
    (MLP_LOSS, {"work": 10}, r"work must be a share, such as 0\.1 or '10%'; got 10: write '10%' or 0\.1"),
    (MLP_LOSS, {"residuals": "16 GiBB"}, "the argument residuals must be a size .*a share.*; got '16 GiBB'"),
    (MLP_LOSS, {"residuals": -0.5}, "the argument residuals must be .* and at least 0; got -0.5"),
    (MLP_LOSS, {"residuals": 10}, r"^residuals of 10 B cannot be met for mlp_loss: the minimum is .*Write residuals="),
    (MLP_LOSS, {"budget": 10}, r"^a budget of 10 B cannot be met for mlp_loss: the minimum is .*Write budget="),
    (MLP_LOSS, {"offload": 3.7}, "offload must be a bandwidth.* whole; got 3.7"),
    (MLP_LOSS, {"offload": "3 apples/s"}, "offload must be a bandwidth.*; got '3 apples/s'"),
    (MLP_LOSS, {"has_aux": True},
     r"with has_aux=True, mlp_loss must return a pair, whose first element is differentiated; it returns f32\[\]"),
    (MLP_LOSS, {"budget": "fastest"}, r"a budget must be a size .*, a share .*; got"),
    (MLP_LOSS, {"budget": 0.5, "memory": "1GB"}, "a plan takes only one bound; got memory= and budget="),
    (MLP_LOSS, {"work": "much"}, r"work must be a share, such as 0\.1 or '10%'; got 'much'"),
    (MLP_LOSS, {"work": -1}, "work must be a share.* at least 0; got -1"),
    ((mlp, [W] * 3, X), {"budget": 100},
     "^a budget of 100 B cannot be met for mlp: the minimum is .* without a plan it saves"),
    ((crowded, *CROWDED), {"memory": 1024},
     r"no plan was found for crowded that fits in 1\.0 KiB .*: the lowest modelled peak of its gradient is .* "
     r"arguments"),
    ((branches_on_a_value, W, X), {"budget": 0.5},
     r"branches_on_a_value cannot be planned: its Python code reads values \(bool at .*test_remat_plan\.py:\d+\)"),
    ((sharded(in_a_cond, False), W, X), {"budget": 0.5},
     r"exchange values inside `cond` \(.*test_remat_plan\.py:\d+\), where no value can be saved"),
    ((partial(with_effect, lambda y: jax.experimental.io_callback(print, None, y, ordered=True)), W, X),
     {"budget": 0.9},
     r"`io_callback` \(equation \d+, .*test_remat_plan\.py:\d+\) has an effect that JAX does not allow"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "bound", "message"), BAD_INPUTS, ids=[str(bound) for _, bound, _ in BAD_INPUTS])
def test_bad_input_is_named_and_no_solver(call, bound, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        jaxviz.plan_remat(*call, **bound)
    assert not re.search("highs|infeasible|solver|status|scipy", str(caught.value), re.IGNORECASE)


def test_a_bound_that_cannot_be_met_says_what_to_type():
    with pytest.raises(ValueError, match="cannot be met for mlp_loss") as error:
        jaxviz.plan_remat(*MLP_LOSS, budget="50%")
    search = Search(jaxviz.derive(*MLP_LOSS), False)
    for way in str(error.value).rpartition("Write ")[2].split(" or "):
        budget = read_budget(eval(way.removeprefix("budget=")), search.opened.nbytes)
        assert planned(*MLP_LOSS, budget=budget).nbytes == search.least
    with pytest.raises(ValueError, match="no plan was found") as error:
        jaxviz.plan_remat(crowded, *CROWDED, memory=1024)
    to_type = str(error.value).rpartition('Write memory="')[2].rstrip('"')
    assert jaxviz.plan_remat(crowded, *CROWDED, memory=to_type).peak_nbytes <= read_size(to_type)


def test_a_value_that_a_plan_names_is_called_as_in_the_source():
    def attention(q, k, v):
        return jnp.mean((jax.nn.softmax(q @ k.T / 8.0) @ v) ** 2)

    x = jnp.ones((64, 4))
    with pytest.raises(ValueError, match="no plan was found") as error:
        jaxviz.plan_remat(attention, x, x, x, memory="20KiB")
    (operation,) = re.findall(r"largest other value is (\w+) in jax\.nn\.softmax\(q @ k\.T / 8\.0\)", str(error.value))
    assert operation in str(jax.make_jaxpr(jax.nn.softmax)(x))
    assert operation != "name"


def test_a_peak_that_is_hardly_lower_is_not_proposed():
    def attention(w, x):
        q, k, v = (x @ w[n] for n in "qkv")
        return jnp.mean((jax.nn.softmax(q @ k.T / 8.0) @ v @ w["o"]) ** 2)

    w, x = {n: jnp.ones((64, 64)) for n in "qkvo"}, jnp.ones((16, 64))
    with pytest.raises(ValueError, match="no plan was found") as error:
        jaxviz.plan_remat(attention, w, x, memory="40KiB")
    least, written = (int(n.replace(",", "")) for n in re.findall(r"\(([\d,]+) B\)", str(error.value))[1:])
    assert 0 < written - least < 0.01 * written
    assert "Write memory" not in str(error.value)


def test_a_value_that_alone_does_not_fit_is_to_be_computed_in_parts():
    f = lambda w, x: jnp.sum(jax.nn.logsumexp(x @ w, axis=-1))
    types = jax.ShapeDtypeStruct((64, 4096), "float32"), jax.ShapeDtypeStruct((512, 64), "float32")
    for memory, alone in ("4MiB", True), ("9MiB", False):
        with pytest.raises(ValueError, match="no plan was found") as error:
            jaxviz.plan_remat(f, *types, memory=memory)
        assert ("8.0 MiB, which alone does not fit: compute it in parts" in str(error.value)) is alone


def test_without_a_bound_the_peak_falls_most_for_the_least_work_or_it_is_said_what_holds_it():
    plan = jaxviz.plan_remat(lambda x: jnp.sum(jnp.sin(jnp.exp(x))), jnp.ones(64))
    assert plan.peak_nbytes <= plan.before.peak_nbytes
    as_it_is = jaxviz.plan_remat(lambda x: jnp.sum(x * x), jnp.ones(64))
    assert as_it_is.saved is None
    assert as_it_is.notes[0].startswith("No plan that was tried lowers the peak by 1 % or more: 256 B are arguments, ")


def test_of_two_points_the_lower_peak_is_taken_where_it_falls_more_than_the_work_grows():
    """Either everything of an iteration is saved, including another copy of its weights, or nothing."""

    def cell(w, h):
        return jnp.tanh(h @ w) * jax.nn.sigmoid(h @ w.T)

    def loss(w, skips):
        step = lambda h, skip: (jax.lax.cond(skip, lambda: h, lambda: cell(w, h)), None)
        return jnp.sum(jax.lax.scan(step, jnp.ones(16), skips)[0])

    plan = jaxviz.plan_remat(loss, jnp.ones((16, 16)), jnp.arange(40) > 20)
    assert plan.peak_nbytes < 0.3 * plan.before.peak_nbytes
    assert plan.regions
    assert "lowers the peak by 1 %" not in str(plan)


def test_where_a_lower_peak_takes_more_than_it_is_worth_both_are_said():
    f = lambda w, x: jnp.sum(jnp.sin(x @ w @ w @ w) @ w)
    plan = jaxviz.plan_remat(f, jnp.ones((16, 16)), jnp.ones((256, 16)))
    assert plan.after in (plan.before, plan.everything)
    lowest = min(plan.front, key=lambda t: t.peak_nbytes)
    assert lowest.peak_nbytes < 0.95 * plan.before.peak_nbytes
    said = f"A lower peak would cost too much work: {format_bytes(lowest.peak_nbytes)} for "
    assert plan.notes[-1].startswith(said)


def test_a_lower_peak_that_only_a_search_for_it_finds_is_said_too():
    """Of a mixture of experts: no plan that lowers the peak much for its work is among those that are tried first."""
    f, args = models.mixture_of_experts()
    plan = jaxviz.plan_remat(f, *args)
    lower = jaxviz.plan_remat(f, *args, memory=int(0.97 * plan.before.peak_nbytes))
    assert not plan.regions
    assert lower.peak_nbytes < 0.97 * plan.before.peak_nbytes
    share = 100 * lower.flops / jaxviz.cost(f, *args).total.flops
    said = f"{format_bytes(lower.peak_nbytes)} for {share:.2g} % more. Of the peak, "
    assert plan.notes[-1].startswith(f"A lower peak would cost too much work: {said}")


@pytest.mark.parametrize("bound", [{}, {"work": "100%"}])
def test_a_plan_that_lowers_the_peak_by_next_to_nothing_is_none(bound):
    """A large argument is nearly all of the peak."""

    def f(w, large, x):
        for _ in range(3):
            x = jnp.sin(jnp.exp(x * w))
        return jnp.sum(x) * jnp.sum(large)

    plan = jaxviz.plan_remat(f, jnp.ones(64), jnp.ones((512, 512)), jnp.ones(64), **bound)
    lowest = min(t.peak_nbytes for t in plan.front)
    assert 0.99 * plan.before.peak_nbytes < lowest < plan.before.peak_nbytes
    assert plan.after is plan.before
    assert plan.apply(f) is f
    assert plan.notes[-1].startswith("No plan that was tried lowers the peak by 1 % or more: ")
    assert "1.0 MiB are arguments" in plan.notes[-1]


def test_it_is_said_which_functions_are_recomputed_that_count_as_no_flops():
    def f(x):
        return jnp.sum(jnp.sin(jnp.exp(x)))

    plan = planned(f, jnp.ones((8, 8)), budget=256)
    assert plan.flops == 0
    before, after = (jaxviz.cost(g, jnp.ones((8, 8))).total.transcendentals for g in (f, plan.apply(f)))
    assert plan.transcendentals == {"exp": after - before} == {"exp": 64}
    assert "recomputes 64 transcendentals (exp)" in plan.summary
    assert plan.code().splitlines()[0].endswith("recomputes 64 transcendentals")

    def looped(x):
        return jnp.sum(lax.scan(lambda c, _: (jnp.sin(jnp.exp(c)), None), x, None, length=5)[0])

    plan = planned(looped, jnp.ones(8), budget=160)
    before, after = (jaxviz.cost(g, jnp.ones(8)).total.transcendentals for g in (looped, plan.apply(looped)))
    assert sum(plan.transcendentals.values()) == plan.after.transcendentals == after - before > 0
