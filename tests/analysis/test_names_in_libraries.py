"""What a library computes within the user's expression is named by its module and the library's expression, in every table alike."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxpr_as_fun

import jaxviz
from jaxviz.analysis.modules import _of_modules
from jaxviz.ir.origin import own_line

LIBRARY = """
import jax, jax.numpy as jnp

class Mlp:
    def __call__(self, w, x):
        gate = x @ w
        return jnp.tanh(gate) * gate

class Net:
    def __init__(self):
        self.mlp = Mlp()

    @jax.jit
    def __call__(self, ws, x):
        for i, w in enumerate(ws):
            with jax.named_scope(f"layer_{i}"):
                x = self.mlp(w, x)
        return x

jax.tree_util.register_static(Net)
"""

X = jnp.ones((64, 32))
WS = [jnp.ones((32, 32)) * 0.1] * 3


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("library") / "layers.py"
    path.write_text(LIBRARY)
    spec = importlib.util.spec_from_file_location("layers", path)
    layers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layers)
    jaxviz.own_code(exclude=[str(path.parent)])
    net = layers.Net()

    def loss(ws, x):
        return jnp.sum(net(ws, x) ** 2)

    yield loss, WS, X
    jaxviz.own_code()


def test_residuals_lead_with_the_module_and_the_librarys_expression(model):
    found = jaxviz.residuals(*model)
    module = "Net/mlp/layer_0…2"
    labels = {g.label for g in found.groups if g.kind == "intermediate"}
    assert {f"{module} · x @ w", f"{module} · jnp.tanh(gate)"} <= labels
    # What the derivative of tanh computes depends on the version of JAX.
    assert any(label.startswith(f"{module} · ") and "in the derivative of jnp.tanh(gate)" in label for label in labels)
    (total,) = (t for t in found.by_module() if t.name == module)
    assert total.nbytes == sum(g.nbytes for g in found.groups if g.label.startswith("Net/mlp/layer_"))
    assert "Mlp.__call__, layers.py:7)" in str(found)


def test_memory_plan_and_cost_have_the_same_names(model):
    module = "Net/mlp/layer_0…2"
    alive = {a.what: a.library for a in jaxviz.memory(*model).alive}
    assert alive[f"{module} · x @ w"].endswith("Mlp.__call__, layers.py:6")
    assert f"{module} · x @ w" in {g.label for g in jaxviz.cost(*model).groups}
    plan = jaxviz.plan_remat(*model, work="1%")
    assert {s.label.partition("_")[0] for s in plan.saved if s.library} == {"Net/mlp/layer"}
    assert f"`{module} · x @ w` (in " in " ".join(str(plan).split())


def test_one_layer_alone(model):
    found = jaxviz.residuals(*model)
    one = found.of("layer_1")
    assert {r.module for r in one} == {"Net/mlp/layer_1"}
    assert set(one) == {r for r in found if "layer_1" in r.module}
    assert one.summary.startswith("the gradient of `loss` in `ws` saves ")
    assert " of `layer_1`" in one.summary
    assert found.of("mlp/layer_1").items == one.items
    assert " of `mlp` that are also of `layer_1`" in found.of("mlp").of("layer_1").summary
    with pytest.raises(ValueError, match="no residual is of the module or scope 'layer'; the modules are Net/mlp/"):
        found.of("layer")


def test_a_method_that_a_module_calls_of_itself_is_no_module():
    assert _of_modules(["Net", "Net.encode", "layer_0", "mlp", "mlp.up"]) == ["Net", "layer_0", "mlp"]
    assert _of_modules(["Net", "embedder.decode"]) == ["Net", "embedder.decode"]


def energy(w, x):
    h = jnp.tanh(x @ w)
    return jnp.sum(h**2)


def force_loss(w, x):
    return jnp.sum(jax.grad(energy, argnums=1)(w, x) ** 2)


def test_a_cotangent_of_an_inner_gradient_is_named_as_one():
    found = jaxviz.residuals(force_loss, WS[0], X)
    inner = " in the inner gradient of jnp.tanh(x @ w)"
    assert any(r.label.endswith(inner) for r in found)
    whats = [v.what for v in jaxviz.memory(force_loss, WS[0], X).values]
    assert any(what.startswith("the cotangent of ") and what.endswith(inner) for what in whats)


def distances(scale, x):
    def step(total, row):
        near = jnp.exp(-jnp.abs(row[None] - x) / scale)
        return total + jnp.sum(near), None

    return jax.lax.scan(jax.checkpoint(step), 0.0, x)[0]


def test_a_temporary_within_a_loop_names_its_line():
    timeline = jaxviz.memory(distances, 2.0, X)
    size = f"f32[{X.shape[0]},{X.shape[1]}]"
    inside = [a for a in timeline.alive if a.kind == "temporary" and a.type.endswith(size)]
    line = distances.__code__.co_firstlineno + 2
    assert inside
    assert {a.location.line for a in inside} == {line}
    assert all("jnp.exp(" in a.what or "jnp.abs(" in a.what for a in inside)
    assert sum(a.nbytes for a in timeline.alive) == timeline.peak_nbytes


def test_what_evaluates_a_jaxpr_within_the_function_has_the_users_line():
    """As a library does that puts its own values into a function: JAX then records only frames of its own."""
    (call,) = jax.make_jaxpr(jnp.tril)(X).jaxpr.eqns

    def f(x):
        return jaxpr_as_fun(call.params["jaxpr"])(x)[0]

    lines = {own_line(e.source).line for e in jaxviz.trace(f)(X).equations}
    assert lines == {f.__code__.co_firstlineno + 1}
