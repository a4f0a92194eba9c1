"""Totals by line, function, scope and module; findings; and their table, picture and plain data."""

import io
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxviz
from benchmarks.models import transformer
from jaxviz.analysis.modules import call_path
from jaxviz.features.residuals.plot import _end_of, squarify
from jaxviz.features.residuals.totals import path_totals, per_device
from jaxviz.ir import compat
from jaxviz.ir.emit import as_function
from jaxviz.ir.expressions import source_shown
from jaxviz.ir.trace import trace
from jaxviz.transforms.inline import inlined

X = jnp.linspace(0.1, 1.0, 16).reshape(4, 4)
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def large():
    f, args = transformer(4)
    return jaxviz.residuals(f, *args)


def names(totals):
    return [t.name for t in totals]


def of_all(found):
    """The totals of modules, with the arguments that they read."""
    return path_totals((g.residuals for g in found.groups), lambda r: r.module)


# --- totals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["by_line", "by_function", "by_scope", "by_module"])
def test_totals_add_up_and_are_in_order(large, by):
    totals = getattr(large, by)()
    assert sum(t.nbytes for t in totals) == large.saved.nbytes
    assert sum(t.count for t in totals) == large.saved.count
    assert [t.nbytes for t in totals] == sorted((t.nbytes for t in totals), reverse=True)
    assert all(t.location.line > 0 and t.name and t.nbytes_per_device is None for t in totals)
    assert len(set(totals)) == len(totals)


def test_on_one_device_all_bytes_of_a_value_count_whose_layout_is_unknown(large):
    first, *others = large
    assert per_device(large.items) is None
    assert per_device([replace(first, nbytes_per_device=3), *others]) == 3 + large.nbytes - first.nbytes


def test_call_paths_are_functions_then_scopes():
    f, args = transformer(2)
    paths = {call_path(e) for _, e in jaxviz.derive(f, *args).backward.walk()}
    inside = {f"transformer_loss/layer{rest}" for rest in ("", "/layer_norm", "/attention")}
    assert inside | {"transformer_loss", "transformer_loss/prediction_loss"} <= paths
    assert [call_path(e) for e in trace(scoped)(X).equations] == ["scoped/a", "scoped/a/b"]


@pytest.mark.slow
def test_call_paths_of_libraries():
    reason = "the engine's tests with the newest JAX go without the libraries"
    eqx = pytest.importorskip("equinox", reason=reason)
    nn = pytest.importorskip("flax.linen", reason=reason)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return jnp.sin(nn.Dense(4)(x))

    class Block(eqx.Module):
        linear: eqx.nn.Linear

        def __call__(self, x):
            return jnp.sin(self.linear(x))

    def paths(f, *args):
        return {call_path(e) for e in trace(f)(*args).equations}

    params = Net().init(KEY, X)
    assert paths(lambda p: Net().apply(p, X), params) == {"Net", "Net/Dense_0"}
    assert paths(Block(eqx.nn.Linear(4, 4, key=KEY)), X[0]) == {"Block", "Block/eqx.nn.Linear"}


def scoped(x):
    with jax.named_scope("a"):
        x = jnp.sin(x)
        with jax.named_scope("b"):
            x = jnp.tanh(x)
    return x


def in_scan(x):
    with jax.named_scope("loop"):
        return lax.scan(lambda x, _: (scoped(x), None), x, None, length=3)[0]


# --- modules ----------------------------------------------------------------------------------------------------------


def test_modules_of_flax_linen():
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return nn.tanh(nn.remat(nn.Dense)(4)(nn.LayerNorm()(x))), None

        def gate(self, x):
            return jnp.sin(x)

    class Net(nn.Module):
        def setup(self):
            self.blocks = [Block(), Block()]
            self.layers = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)()

        def __call__(self, x):
            for block in self.blocks:
                x, _ = block(x, None)
            x, _ = self.layers(x, None)
            return jnp.einsum("ij,kj->ik", x, self.blocks[0].gate(x))

    net = Net()
    params = jax.eval_shape(net.init, KEY, X)
    found = jaxviz.residuals(lambda params, x: net.apply(params, x), params, X)
    modules = set(names(of_all(found)))
    assert {"Net/blocks_0…1/LayerNorm_0", "Net/blocks_0…1/CheckpointDense_0"} <= modules
    assert {"Net/blocks_0…1", "Net/layers", "Net/layers/LayerNorm_0", "Net/layers/CheckpointDense_0"} <= modules
    assert "Net/blocks_0.gate" in modules
    assert not any("->" in name for name in modules)
    kernels = {
        r.module for r in found if r.kind == "argument" and "blocks_1" in r.expression and "Dense" in r.expression
    }
    assert kernels == {"Net/blocks_1/CheckpointDense_0"}


def test_modules_of_haiku():
    hk = pytest.importorskip("haiku")

    def net(x):
        return jnp.tanh(hk.remat(hk.nets.MLP([4, 5]))(hk.LayerNorm(-1, True, True)(x)))

    net = hk.without_apply_rng(hk.transform(net))
    found = jaxviz.residuals(lambda params, x: net.apply(params, x), jax.eval_shape(net.init, KEY, X), X)
    assert {"layer_norm", "mlp/linear_0", "mlp/linear_1"} <= set(names(of_all(found)))
    assert "mlp/linear_0" not in names(found.by_module())  # it is recomputed, and its weights are in memory anyway


def test_modules_of_flax_nnx_are_what_they_are_called_as():
    nnx = pytest.importorskip("flax.nnx")

    class Block(nnx.Module):
        def __init__(self):
            self.norm = nnx.LayerNorm(4, rngs=nnx.Rngs(0))
            self.up = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
            self.down = nnx.Linear(4, 4, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.gated(self.down(jax.nn.gelu(self.up(self.norm(x)))))

        def gated(self, x):
            return jnp.sin(x) * x

    class Net(nnx.Module):
        def __init__(self):
            self.blocks = nnx.List([Block() for _ in range(3)])
            self.norms = nnx.List([nnx.LayerNorm(4, rngs=nnx.Rngs(0))])

        def __call__(self, x):
            for block in self.blocks:
                x = block(x)
            return self.norms[0](x)

    graph, params = nnx.split(Net())
    found = jaxviz.residuals(lambda params, x: nnx.merge(graph, params)(x) ** 2, params, X)
    assert {"Net/Block", "Net/Block/norm", "Net/Block/up", "Net/Block/down", "Net/norms"} <= set(
        names(found.by_module())
    )
    assert {r.module for r in found if r.kind == "argument" and "'up'" in r.expression} == {"Net/Block/up"}
    assert {r.module for r in found if r.expression == "jnp.sin(x)"} == {"Net/Block"}
    assert names(found.by_scope()) == ["no scope"]
    with source_shown(False):
        hidden = jaxviz.residuals(lambda params, x: nnx.merge(graph, params)(x) ** 2, params, X)
    assert "Net/Block/Linear" in names(hidden.by_module())


@pytest.mark.slow
def test_modules_of_equinox_are_what_they_are_called_as():
    eqx = pytest.importorskip("equinox")

    class Block(eqx.Module):
        mlp: eqx.nn.MLP
        norm: eqx.nn.LayerNorm

        def __call__(self, x):
            with jax.named_scope("feed"):
                return jax.vmap(lambda x: jnp.tanh(self.mlp(x)))(jax.vmap(self.norm)(x))

    block = Block(eqx.nn.MLP(4, 4, 8, 1, key=KEY), eqx.nn.LayerNorm(4))
    params, static = eqx.partition(block, eqx.is_array)
    found = jaxviz.residuals(lambda params, x: eqx.combine(params, static)(x) ** 2, params, X)
    assert {"Block/feed", "Block/norm/feed", "Block/mlp/Linear/feed"} <= set(names(of_all(found)))


@pytest.mark.slow
def test_modules_of_numpyro_are_its_distributions_and_not_what_calls_a_model():
    numpyro = pytest.importorskip("numpyro", reason="the engine's tests with the newest JAX go without the libraries")

    def model(x):
        w = numpyro.sample("w", numpyro.distributions.HalfCauchy(1.0).expand([4]))
        numpyro.sample("y", numpyro.distributions.Normal(jnp.tanh(x * w), 1.0), obs=x)

    loss = lambda w, x: numpyro.infer.util.potential_energy(model, (x,), {}, {"w": w})
    found = names(jaxviz.residuals(loss, X[0], X).by_module())
    assert "Normal.log_prob" in found
    assert not any("Messenger" in name or name.startswith("fn") for name in found)


def test_without_a_module_it_is_the_method_or_the_function():
    class Trainer:
        def loss(self, x):
            return helper(x)

        def fit(self):
            return jaxviz.residuals(jnp.sin, X)  # the caller of jaxviz is not part of the function

    def helper(x):
        return jnp.sin(x)

    assert names(jaxviz.residuals(Trainer().loss, X).by_module()) == ["Trainer.loss"]
    assert names(jaxviz.residuals(lambda x: helper(x), X).by_module()) == [helper.__qualname__]
    assert names(Trainer().fit().by_module()) != ["Trainer.loss"]


# --- what a jit forces to be saved ------------------------------------------------------------------------------------


@jax.jit
def twice(x):
    y = jnp.sin(x)
    return y, y


@pytest.mark.parametrize(
    "f", [jax.jit(scoped), in_scan, lambda x: jax.jit(lambda y: jax.nn.gelu(y) * X[0, 0])(x) * 2.0]
)
def test_jits_written_out_compute_the_same(f):
    program = inlined(trace(f)(X), (compat.jit_p,))
    assert not any(e.primitive.name == "jit" for _, e in program.walk() if e.primitive.name != "custom_jvp_call")
    np.testing.assert_allclose(as_function(program)(X)[0], f(X), rtol=1e-6)


# --- table, picture, data ---------------------------------------------------------------------------------------------


def test_boxes_fill_their_room():
    sizes = [500, 433, 78, 25, 25, 7, 1, 1]
    boxes = squarify(sizes, (1.0, 2.0, 6.0, 4.0))
    for size, (x, y, w, h) in zip(sizes, boxes, strict=True):
        assert w * h == pytest.approx(24 * size / sum(sizes))
        assert 1 <= x <= x + w <= 7 + 1e-9
        assert 2 <= y <= y + h <= 6 + 1e-9
    assert squarify([], (0, 0, 1, 1)) == []


def test_the_picture_names_a_module_by_its_end():
    assert _end_of("Net/Block_0…3/Dense_1", 30) == "Net/Block_0…3/Dense_1"
    assert _end_of("Net/Block_0…3/Dense_1", 12) == "…/Dense_1"
    assert _end_of("attention_layer", 11) == "attention_…"


@pytest.mark.slow
@pytest.mark.parametrize("f", [None, jnp.sin, jnp.negative], ids=["many", "one", "none"])
def test_the_picture(large, f):
    found = large if f is None else jaxviz.residuals(f, 1.0)
    figure = found.plot()
    assert figure.canvas.manager is None  # not registered with pyplot
    drawn = [p for axes in figure.axes[:1] for p in axes.patches]
    assert len(drawn) == len([g for g in found.groups if g.nbytes and g.residuals[0].is_saved])
    size = [p.get_width() * p.get_height() for p in drawn]
    assert len(found) < 2 or max(size) > 100 * min(size)
    figure.savefig(buffer := io.BytesIO(), format="png")
    assert buffer.getvalue().startswith(b"\x89PNG")
