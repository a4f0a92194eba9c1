"""Plans of functions on several devices: all bytes are per device, with XLA's shardings."""

import jax
import jax.numpy as jnp
import pytest
from device_programs import GRID
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from short_runs import short

import jaxviz


def block(x, w):
    h = jax.nn.softmax(x @ w["mix"])
    x = x + h @ w["out"]
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"]


def scanned(params, batch):
    y, _ = lax.scan(lambda x, w: (block(x, w), None), batch["x"], params)
    return jnp.mean((y - batch["y"]) ** 2)


def unrolled(params, batch):
    x = batch["x"]
    for i in range(3):
        x = block(x, jax.tree.map(lambda w: w[i], params))
    return jnp.mean((x - batch["y"]) ** 2)


def train(params, momentum, batch):
    value, gradient = jax.value_and_grad(scanned)(params, batch)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum, value


def arguments(mesh, layers=3, width=64, rows=512):
    """Parameters sharded over both axes of a mesh, and a batch over one."""

    def array(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=mesh and NamedSharding(mesh, P(*spec)))

    params = {
        "mix": array((layers, width, width), None, "i", "j"),
        "out": array((layers, width, width), None, "j", "i"),
        "up": array((layers, width, 4 * width), None, "i", "j"),
        "down": array((layers, 4 * width, width), None, "j", "i"),
    }
    return params, {"x": array((rows, width), "i"), "y": array((rows, width), "i")}


@pytest.mark.slow
@pytest.mark.parametrize("f", short([scanned, unrolled], [scanned]))
def test_a_plan_comes_to_what_one_device_holds(f):
    args = arguments(GRID)
    plan = jaxviz.plan_remat(f, *args)
    assert plan.before.peak_nbytes == jaxviz.memory(f, *args).peak_nbytes
    planned = plan.apply(f)
    assert plan.peak_nbytes == jaxviz.memory(planned, *args).peak_nbytes < 0.7 * plan.before.peak_nbytes
    assert plan.nbytes == jaxviz.residuals(planned, *args).nbytes_per_device
    alone = jaxviz.plan_remat(f, *arguments(None))
    assert plan.before.peak_nbytes < 0.3 * alone.before.peak_nbytes


@pytest.mark.slow(sweep=True)
def test_a_bound_is_on_one_device():
    args = arguments(GRID)
    written = jaxviz.memory(scanned, *args).peak_nbytes
    plan = jaxviz.plan_remat(scanned, *args, memory=written // 2)
    assert plan.peak_nbytes <= written // 2
    kept = jaxviz.residuals(scanned, *args).nbytes_per_device
    assert jaxviz.plan_remat(scanned, *args, residuals="50%").nbytes <= kept // 2


@pytest.mark.slow(sweep=True)
def test_xla_has_on_one_device_what_the_plan_says():
    verified = jaxviz.plan_remat(scanned, *arguments(GRID, rows=2048)).verify()
    assert verified.happened
    for xla, model in zip((verified.before, verified.after), verified.modelled, strict=True):
        assert xla.peak_nbytes == pytest.approx(model.peak_nbytes, rel=0.25)


@pytest.mark.slow(sweep=True)
def test_a_training_step_is_planned_for_devices_that_are_not_there():
    mesh = AbstractMesh((32, 8), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    params, batch = arguments(mesh, rows=4096)
    found = jaxviz.memory(train, params, params, batch)
    assert found.n_devices == 256
    assert "which takes the gradient of `scanned` in `params` on each of 256 devices" in " ".join(found.summary.split())
    plan = jaxviz.plan_remat(train, params, params, batch)
    assert plan.before.peak_nbytes == found.peak_nbytes
    assert plan.peak_nbytes == jaxviz.memory(plan.apply(train), params, params, batch).peak_nbytes < found.peak_nbytes


@pytest.mark.slow(sweep=True)
def test_layouts_of_a_large_function_are_found_once_a_plan_is_chosen(monkeypatch):
    monkeypatch.setattr("jaxviz.features.remat.search.SMALL", -1)
    args = arguments(GRID)
    plan = jaxviz.plan_remat(scanned, *args)
    assert plan.peak_nbytes == jaxviz.memory(plan.apply(scanned), *args).peak_nbytes < 0.7 * plan.before.peak_nbytes
