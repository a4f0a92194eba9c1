"""`capture` and `replace` take a whole model of Equinox, which holds functions, texts and numbers beside its arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxviz

eqx = pytest.importorskip("equinox", reason="its models hold functions")


class Net(eqx.Module):
    layers: list
    activation: object
    n_repeats: int
    name: str = "net"

    def __call__(self, x):
        h = self.layers[0](x)
        for _ in range(self.n_repeats):  # Python needs its value
            h = self.activation(h)
        return self.layers[1](h)


def net(n_repeats=1):
    first, second = jax.random.split(jax.random.key(0))
    return Net([eqx.nn.Linear(3, 8, key=first), eqx.nn.Linear(8, 1, key=second)], jnp.tanh, n_repeats)


def loss(model, x):
    return jnp.mean(jax.vmap(model)(x) ** 2)


X = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)
H = "self.activation(h)"


def by_hand(model, x):
    """The loss, the value at `H`, and its cotangent."""
    after = jnp.tanh(jax.vmap(model.layers[0])(x))
    rest = lambda after: jnp.mean(jax.vmap(model.layers[1])(after) ** 2)
    return rest(after), after, jax.grad(rest)(after)


def same(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("outside", [lambda f: f, eqx.filter_jit], ids=["as it is", "filter_jit"])
@pytest.mark.parametrize("inside", [lambda f: f, eqx.filter_jit], ids=["plain", "of filter_jit"])
def test_values_and_cotangents_are_those_of_a_model_edited_by_hand(outside, inside):
    value, seen = outside(jaxviz.capture(inside(loss), H, cotangents=True))(net(), X)
    for got, want in zip((value, seen[H], seen.cotangents[H]), by_hand(net(), X), strict=True):
        same(got, want)


def test_a_gradient_with_captured_values():
    gradient, seen = eqx.filter_grad(lambda m, x: jaxviz.capture(loss, H)(m, x), has_aux=True)(net(), X)
    same(seen[H], by_hand(net(), X)[1])
    same(gradient.layers[0].weight, eqx.filter_grad(loss)(net(), X).layers[0].weight)


def test_where_says_what_leaves():
    (value,) = jaxviz.capture(loss, H).where(net(), jax.ShapeDtypeStruct(X.shape, X.dtype)).values
    assert (value.expression, value.type) == (H, "f32[4,8]")


@pytest.mark.parametrize("outside", [lambda f: f, eqx.filter_jit], ids=["as it is", "filter_jit"])
def test_a_value_is_replaced(outside):
    _, after, _ = by_hand(net(), X)
    same(outside(jaxviz.replace(loss, {H: after}))(net(), X), loss(net(), X))
    same(outside(jaxviz.replace(loss, {H: jnp.zeros_like}))(net(), X), net().layers[1].bias[0] ** 2)


def test_what_is_fixed_in_a_result_is_returned_as_it_is():
    def doubled(model, x):
        h = 2 * x
        arrays, others = eqx.partition(model, eqx.is_array)
        return eqx.combine(jax.tree.map(lambda p: 2 * p, arrays), others), jnp.sum(h), "a text"

    model = net()
    (got, total, text), seen = jaxviz.capture(doubled, "h")(model, X)
    same(got.layers[0].weight, 2 * model.layers[0].weight)
    assert got.activation is jnp.tanh
    assert (got.n_repeats, got.name, text) == (1, "net", "a text")
    same((total, np.sum(seen["h"])), (2 * jnp.sum(X),) * 2)


def test_another_number_or_function_in_the_model_is_another_program():
    run = jaxviz.capture(loss, "h #1")
    for model in (net(1), net(2), eqx.tree_at(lambda m: m.activation, net(1), jnp.sin), net(1)):
        value, _ = run(model, X)
        same(value, loss(model, X))
