"""Plans that offload values to the host: what JAX saves and where, what XLA does with it, and what is said of it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from code_programs import FAST
from device_programs import LINE
from jax import lax
from jax.sharding import PartitionSpec as P
from short_runs import short

import jaxviz
from jaxviz.features.remat.offload import read_offload

pytestmark = pytest.mark.slow


def layer(x, w):
    h = jnp.tanh(x @ w)
    return x + jnp.sin(h) * h


def scanned(ws, x):
    return jnp.sum(lax.scan(lambda x, w: (layer(x, w), None), x, ws)[0])


def unrolled(ws, x):
    for i in range(6):
        x = layer(x, ws[i])
    return jnp.sum(x)


def whole(ws, x):
    """It contains no repetition."""
    x = jnp.tanh(x @ ws[0])
    x = jnp.sin(x @ ws[1]) * 2.0
    x = jnp.cos(x @ ws[2]) + jnp.sin(x)
    x = jnp.exp(x @ ws[3] * 0.1)
    return jnp.sum(jnp.cos(x @ ws[4]))


PROGRAM = {"scanned": scanned, "unrolled": unrolled, "whole": whole}


def inputs(dtype=jnp.float32):
    return jnp.ones((6, 64, 64), dtype) / 64, jnp.linspace(0.0, 1.0, 256 * 64, dtype=dtype).reshape(256, 64)


def held_by_jax(f, *args):
    """The bytes saved by `jax.vjp`'s function, by memory kind."""
    _, pull = jax.vjp(lambda p: f(p, *args[1:]), args[0])
    found = {"device": 0, "pinned_host": 0}
    for x in {id(x): x for x in jax.tree.leaves(pull)}.values():
        found[x.sharding.memory_kind] += x.nbytes
    return found


@pytest.mark.parametrize("bound", short([{"work": "30%"}, {"memory": 0.0}, {"memory": 0.2}], [{"work": "30%"}]))
@pytest.mark.parametrize("name", short(list(PROGRAM), ["scanned", "unrolled"]))
def test_jax_holds_on_the_host_what_was_planned(name, bound):
    f = PROGRAM[name]
    with jax.enable_x64(True):
        args = inputs(jnp.float64)
        if "memory" in bound:
            lowest = jaxviz.plan_remat(f, *args, work="300%", offload=FAST).peak_nbytes
            written = jaxviz.memory(f, *args).peak_nbytes
            bound = {"memory": int(lowest + bound["memory"] * (written - lowest))}
        plan = jaxviz.plan_remat(f, *args, offload=FAST, **bound)
        g = plan.apply(f)
        assert plan.offloaded > 0
        assert held_by_jax(g, *args) == {"device": plan.nbytes, "pinned_host": plan.offloaded}
        assert jaxviz.derive(g, *args).check().agrees
        assert jaxviz.memory(g, *args).peak_nbytes == plan.peak_nbytes
        want = jax.grad(f)(*args)
        for gradient in (jax.grad(g), jax.jit(jax.grad(g))):
            np.testing.assert_allclose(gradient(*args), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", short(list(PROGRAM), ["whole"]))
@pytest.mark.parametrize("share", short([0.4, 0.6, 0.8], [0.6]))
def test_it_takes_no_more_work_than_without(name, share):
    f, args = PROGRAM[name], inputs()
    lowest = jaxviz.plan_remat(f, *args, work="300%").peak_nbytes
    room = int(lowest + share * (jaxviz.memory(f, *args).peak_nbytes - lowest))
    plan = lambda **offload: jaxviz.plan_remat(f, *args, memory=room, **offload)
    for offload in (FAST, "50GB/s"):
        with_it = plan(offload=offload)
        assert with_it.peak_nbytes <= room
        assert with_it.after.work == with_it.flops + int(read_offload(offload).flops_per_byte * with_it.offloaded)
        assert with_it.after.work <= plan().after.work


def test_what_a_loop_carries_is_offloaded_too():
    plan = jaxviz.plan_remat(scanned, *inputs(), work="200%", offload=FAST)
    carries = 6 * 256 * 64 * 4
    assert plan.nbytes < carries <= plan.offloaded
    assert any(s.offloaded and s.expression == "an input" and s.nbytes == carries for s in plan.saved)


def test_a_slow_transfer_is_not_worth_it():
    plan = jaxviz.plan_remat(scanned, *inputs(), work="50%", offload="1MB/s")
    assert not plan.offloaded
    assert not plan.transfer_seconds
    assert "offloads" not in plan.summary
    without = jaxviz.plan_remat(scanned, *inputs(), work="50%")
    assert (plan.peak_nbytes, plan.flops) == (without.peak_nbytes, without.flops)


def test_what_is_moved_and_for_how_long_is_said():
    plan = jaxviz.plan_remat(scanned, *inputs(), work="200%", offload="2MB/s, 1MFLOP/s")
    seconds = 2 * plan.offloaded / 2e6
    assert plan.transfer_seconds == pytest.approx(seconds)
    assert f"to the host's memory, {1e3 * seconds:.3g} ms there and back at 0.002 GB/s" in plan.summary
    assert "The plan does not assume that the transfer overlaps with computation" in " ".join(str(plan).split())
    assert plan.to_dict()["offloaded"] == plan.offloaded


@pytest.mark.parametrize("name", short(list(PROGRAM), []))
def test_the_compiler_that_offloads_nothing_is_told_on(name):
    plan = jaxviz.plan_remat(PROGRAM[name], *inputs(), work="200%", offload=FAST)
    found = plan.verify()
    assert not found.happened
    assert found.summary.startswith("Nothing is offloaded: XLA on cpu keeps the ")
    assert str(found).startswith("Nothing is offloaded")
    without = jaxviz.plan_remat(PROGRAM[name], *inputs(), work="200%").verify()
    assert "offloaded" not in without.summary


@pytest.mark.parametrize("name", ["scanned", "unrolled"])
def test_an_accelerator_is_told_to_move_as_much_as_by_jaxs_policy(name):
    """The lowered program has JAX's annotation for each value that is offloaded, and for each that is loaded back."""
    f, args = PROGRAM[name], inputs()
    plan = jaxviz.plan_remat(f, *args, work="100%", offload=FAST)
    lowered = jax.jit(jax.grad(plan.apply(f))).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    each = sum(s.offloaded for s in plan.saved) * (1 if name == "scanned" else 6)
    for kind in ("pinned_host", "device"):
        assert lowered.count(f'_xla_buffer_placement = "{kind}"') >= each


def test_the_code_for_one_checkpoint_offloads_too():
    plan = jaxviz.plan_remat(whole, *inputs(), work="2%", offload=FAST)
    code = plan.code()
    assert 'offload_dst="pinned_host"' in code
    assert "there and back at 900 GB/s\n" in code
    edited = {}
    exec(compile(plan.written.files[__file__], __file__, "exec"), edited)
    promised = plan.written.trade
    assert held_by_jax(edited["whole"], *inputs()) == {"device": promised.nbytes, "pinned_host": promised.offloaded}


def test_what_the_device_does_is_measured():
    found = read_offload(True)
    assert found.is_measured
    assert 1e7 < found.bandwidth < 1e14
    assert 1e7 < found.speed < 1e17
    assert "measured here" in found.described(10**9)
    assert "TFLOP/s measured here" in found.note


def test_what_devices_hold_apart_is_not_offloaded():
    @partial(jax.shard_map, mesh=LINE, in_specs=(P(), P("i")), out_specs=P())
    def f(w, x):
        return lax.psum(jnp.sum(jnp.sin(jnp.tanh(x @ w) @ w)), "i")

    plan = jaxviz.plan_remat(f, jnp.eye(8), jnp.ones((64, 8)), work="200%", offload=FAST)
    assert not plan.offloaded
