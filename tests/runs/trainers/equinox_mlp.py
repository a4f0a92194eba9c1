"""A regression, as in Equinox's documentation."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

model = eqx.nn.MLP(8, 1, 64, 3, key=jax.random.key(0))
opt = optax.adam(1e-3)
state = opt.init(eqx.filter(model, eqx.is_inexact_array))


@eqx.filter_value_and_grad
def loss_fn(model, x, y):
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


@eqx.filter_jit
def make_step(model, state, x, y):
    loss, grads = loss_fn(model, x, y)
    updates, state = opt.update(grads, state, model)
    return eqx.apply_updates(model, updates), state, loss


x = jax.random.normal(jax.random.key(1), (32, 8))
y = x.sum(1, keepdims=True)
for i in range(3):
    model, state, loss = make_step(model, state, x, y)
    print(i, float(loss).hex())
