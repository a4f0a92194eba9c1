"""Reports take a whole model of Equinox, and functions made by its decorators, with the names of the user."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxviz
from jaxviz.runtime import compilations

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


@pytest.mark.parametrize("way", WAYS)
def test_the_gradient_is_that_of_the_arrays(way):
    plain, arrays = arrays_alone()
    found, alone = jaxviz.residuals(*WAYS[way]), jaxviz.residuals(plain, arrays, X)
    assert "gradient of `batch_loss` in `model`" in found.summary
    assert sorted(r.nbytes for r in found) == sorted(r.nbytes for r in alone)
    assert {r.expression for r in found if r.kind == "argument"} <= {*WEIGHTS, "x"}
    assert jaxviz.explore(*WAYS[way]).derivation.check()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "report", ["memory", "lint", "policies", "compare_policies", "plan_remat", "compiled_memory", "collectives"]
)
def test_reports_name_the_loss_and_its_model(report, way):
    assert "gradient of `batch_loss` in `model`" in getattr(jaxviz, report)(*WAYS[way]).summary


@pytest.mark.parametrize("way", WAYS)
def test_the_other_reports(way):
    call = WAYS[way]
    name = "train_step" if "step" in way else "batch_loss"
    assert f"`{name}`" in jaxviz.cost(*call).summary
    assert f"`{name}`" in jaxviz.compile_cost(*call).summary
    assert f"`{name}`" in str(jaxviz.step(*call))
    assert jaxviz.find_nan(*call) is None
    assert jaxviz.compare(call[0], call[0], *call[1:]).is_same


def test_a_nan_in_a_model_is_found_in_its_gradient():
    loss = lambda model, x: jnp.sqrt(jnp.sum(0.0 * jax.vmap(model)(x)))
    found = jaxviz.find_nan(loss, NET, X)
    assert jnp.isnan(eqx.filter_grad(loss)(NET, X).layers[0].weight).all()
    assert "not searched" not in found.summary


def test_all_arrays_of_a_model_are_differentiated():
    found = jaxviz.derive(batch_loss, NET, X, argnums=None)
    assert found.differentiated == ("model", "x")
    assert set(found.primal.arg_names) == {*WEIGHTS, "x"}


@pytest.mark.parametrize("way", ["loss", "step"])
def test_a_plan_applies_to_the_function_of_the_model(way):
    f, *args = WAYS[way]
    plan = jaxviz.plan_remat(f, *args, residuals="70%")
    planned = plan.apply(f)
    take = (lambda g: eqx.filter_grad(g)(*args)) if way == "loss" else (lambda g: g(*args))
    for ours, theirs in zip(jax.tree.leaves(take(planned)), jax.tree.leaves(take(f)), strict=True):
        if eqx.is_array(theirs):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
        else:
            assert ours is theirs


def test_a_model_that_is_called_has_the_name_of_its_class():
    found = jaxviz.residuals(NET, X[0])
    assert "gradient of `Net` in `x`" in found.summary
    assert "gradient of `Net` in `x`" in jaxviz.residuals(eqx.filter_jit(NET), X[0]).summary


@pytest.mark.parametrize(
    "leaf", [jnp.tanh, "a text", True, 3, object()], ids=["function", "text", "switch", "number", "object"]
)
def test_leaves_that_jax_grad_refuses_are_fixed(leaf):
    def loss(params, x):
        assert params["leaf"] is leaf
        return jnp.sum(params["w"] * x)

    params = {"w": jnp.ones(3), "leaf": leaf}
    found = jaxviz.derive(loss, params, jnp.ones(3))
    assert found.primal.arg_names == ("params['w']", "x")
    with pytest.raises(TypeError):
        jax.grad(loss)(params, jnp.ones(3))


def test_an_argument_that_is_no_array_is_still_refused():
    with pytest.raises(TypeError, match="not a valid JAX type"):
        jaxviz.derive(lambda f, x: f(x), jnp.tanh, 1.0)


def test_a_function_that_the_model_does_not_hold_is_no_result():
    with pytest.raises(TypeError, match="not a valid JAX type"):
        jaxviz.derive(lambda params, x: (params["w"] * x, jnp.sin), {"w": 1.0, "f": jnp.tanh}, 1.0)


def test_a_checkpoint_written_by_hand_takes_the_model():
    written = {way: jaxviz.plan_remat(*WAYS[way], residuals="70%").code() for way in ("loss", "step")}
    assert all("equinox.filter_checkpoint(batch_loss" in text for text in written.values())
    checkpointed = eqx.filter_checkpoint(batch_loss, policy=jax.checkpoint_policies.nothing_saveable)
    np.testing.assert_allclose(
        eqx.filter_grad(checkpointed)(NET, X).layers[0].weight,
        eqx.filter_grad(batch_loss)(NET, X).layers[0].weight,
        rtol=1e-5,
    )
    with pytest.raises(TypeError):
        jax.checkpoint(batch_loss)(NET, X)


class Model(eqx.Module):
    w: jax.Array
    run: bool
    size: int = eqx.field(static=True, default=1)


MODEL = Model(jnp.ones(3), True)


@pytest.mark.parametrize(
    ("model", "x", "change"),
    [
        (Model(jnp.ones(3), False), jnp.ones(3), "static model.run: True → False"),
        (Model(jnp.ones(1), True), jnp.ones(3), "model.w: f32[3] → f32[1]"),
        (MODEL, jnp.ones((2, 3)), "x: f32[3] → f32[2,3]"),
        (MODEL, 2.0, "static x: not given → 2.0"),
        (Model(jnp.ones(3), True, 2), jnp.ones(3), "model: a Model with "),
    ],
    ids=["leaf", "array", "argument", "number", "static field"],
)
def test_what_recompiles_a_function_of_filter_jit(nothing_from_disk, model, x, change):
    @eqx.filter_jit
    def step(model, x):
        return eqx.filter_grad(lambda m: jnp.sum(m.w * x))(model)

    compilations.LOG.clear()  # the other cases have the same definition
    with jaxviz.watch_compilations():
        step(MODEL, jnp.ones(3))
        step(MODEL, jnp.ones(3))
        assert change in jaxviz.explain_recompile(step, model, x).answer
        step(model, x)
    found = jaxviz.explain_recompile(step)
    assert (found.name, found.count) == ("step", 2)
    assert change in found.compiled[1].text
    assert all(r.site.file == __file__ for r in found.compiled)
    assert jaxviz.explain_recompile(step, MODEL, jnp.ones(3)).answer.endswith("has been compiled: 1.")


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


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_donation_of_what_a_function_of_filter_jit_closes_over():
    found = jaxviz.donation(eqx.filter_jit(NET.layers[0], donate="all"), X[0])
    assert {d.path for d in found.donated} == {"x", "a value that it closes over"}
    with pytest.raises(TypeError, match="is not jitted"):
        jaxviz.donation(train_step, NET, STATE, X)
    with pytest.raises(TypeError, match="is not jitted"):
        jaxviz.donation(eqx.filter_value_and_grad(eqx.filter_jit(batch_loss)), NET, X)
