"""Reports take a whole model of Equinox, and functions made by its decorators, with the names of the user."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcripts
from short_runs import short

import jaxviz

REASON = "Equinox and optax are not in every environment of `make test-latest`"
eqx = pytest.importorskip("equinox", reason=REASON)
optax = pytest.importorskip("optax", reason=REASON)


class Net(eqx.Module):
    layers: list
    dropout: eqx.nn.Dropout
    n_repeats: int
    name: str
    activation: object

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.layers = [eqx.nn.Linear(3, 8, key=first), eqx.nn.Linear(8, 1, key=second)]
        self.dropout = eqx.nn.Dropout(0.5, inference=True)
        self.n_repeats, self.name, self.activation = 2, "net", lambda x: jnp.tanh(x)

    def __call__(self, x):
        x = self.dropout(self.layers[0](x))
        for _ in range(self.n_repeats):  # Python needs its value
            x = self.activation(x)
        return self.layers[1](x)


def batch_loss(model, x):
    return jnp.mean(jax.vmap(model)(x) ** 2)


NET = Net(jax.random.key(0))
X = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)
OPTIMIZER = optax.adam(1e-2)
STATE = OPTIMIZER.init(eqx.filter(NET, eqx.is_inexact_array))


def updated(model, state, gradient):
    updates, state = OPTIMIZER.update(gradient, state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), state


def train_step(model, state, x):
    value, gradient = eqx.filter_value_and_grad(batch_loss)(model, x)
    return *updated(model, state, gradient), value


WAYS = {
    "loss": (batch_loss, NET, X),
    "filter_jit": (eqx.filter_jit(batch_loss), NET, X),
    "filter_grad": (eqx.filter_grad(batch_loss), NET, X),
    "filter_value_and_grad": (eqx.filter_value_and_grad(batch_loss), NET, X),
    "jitted gradient": (eqx.filter_jit(eqx.filter_value_and_grad(batch_loss)), NET, X),
    "gradient of jitted": (eqx.filter_grad(eqx.filter_jit(batch_loss)), NET, X),
    "step": (train_step, NET, STATE, X),
    "jitted step": (eqx.filter_jit(train_step), NET, STATE, X),
}
WEIGHTS = {f"model.layers[{i}].{name}" for i in (0, 1) for name in ("weight", "bias")}


def arrays_alone():
    """The loss as a function of arrays, for which JAX is the oracle."""
    arrays, static = eqx.partition(NET, eqx.is_array)
    return (lambda arrays, x: batch_loss(eqx.combine(arrays, static), x)), arrays


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_gradient_is_that_of_the_arrays(way):
    plain, arrays = arrays_alone()
    found, alone = jaxviz.residuals(*WAYS[way]), jaxviz.residuals(plain, arrays, X)
    assert "gradient of `batch_loss` in `model`" in found.summary
    assert sorted(r.nbytes for r in found) == sorted(r.nbytes for r in alone)
    assert {r.expression for r in found if r.kind == "argument"} <= {*WEIGHTS, "x"}
    assert jaxviz.explore(*WAYS[way]).derivation.check()


@pytest.mark.slow
@pytest.mark.parametrize("way", short(list(WAYS), 2))
def test_reports_name_the_loss_and_its_model(way):
    call = WAYS[way]
    for report in ("memory", "lint", "policies", "compare_policies", "plan_remat", "compiled_memory", "collectives"):
        assert "gradient of `batch_loss` in `model`" in getattr(jaxviz, report)(*call).summary
    name = "train_step" if "step" in way else "batch_loss"
    assert f"`{name}`" in jaxviz.cost(*call).summary
    assert f"`{name}`" in jaxviz.compile_cost(*call).summary
    assert f"`{name}`" in str(jaxviz.step(*call))
    assert jaxviz.find_nan(*call) is None
    assert jaxviz.compare(call[0], call[0], *call[1:]).is_same


@pytest.mark.slow
@pytest.mark.parametrize("way", ["loss", "step"])
def test_a_plan_applies_to_the_function_of_the_model(way):
    f, *args = WAYS[way]
    plan = jaxviz.plan_remat(f, *args, residuals="70%")
    assert "equinox.filter_checkpoint(batch_loss" in plan.code()
    planned = plan.apply(f)
    take = (lambda g: eqx.filter_grad(g)(*args)) if way == "loss" else (lambda g: g(*args))
    for ours, theirs in zip(jax.tree.leaves(take(planned)), jax.tree.leaves(take(f)), strict=True):
        if eqx.is_array(theirs):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
        else:
            assert ours is theirs


def copied(*trees):
    return jax.tree.map(lambda x: jnp.array(x) if isinstance(x, jax.Array) else x, trees)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("donate", ["none", "all", "all-except-first", "warn", "warn-except-first"])
def test_donation_is_what_filter_jit_donates(donate):
    step = eqx.filter_jit(train_step, donate=donate)
    found = jaxviz.donation(step, NET, STATE, X)
    assert found.function == "train_step"
    args = copied(NET, STATE, X)
    step(*args)
    names = ("model", "state", "x")
    paths = [
        (f"{names[p[0].idx]}{jax.tree_util.keystr(p[1:])}", x) for p, x in jax.tree_util.tree_leaves_with_path(args)
    ]
    gone = {path for path, x in paths if isinstance(x, jax.Array) and x.is_deleted()}
    assert {d.path for d in found.donated if d.result} == gone
    assert bool(gone) == (donate != "none")
    assert any(path.startswith("model") for path in gone) == (donate in ("all", "warn"))
    assert not any(x.is_deleted() for x in jax.tree.leaves(eqx.filter((NET, STATE, X), eqx.is_array)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@transcripts.of("equinox")
def test_transcript(transcript, tmp_path, nothing_from_disk):
    transcripts.replay(transcript, tmp_path)
