"""An RNN in a scan, as in Equinox's documentation."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax


class RNN(eqx.Module):
    cell: eqx.nn.GRUCell
    linear: eqx.nn.Linear
    bias: jax.Array

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(2, 16, key=a)
        self.linear = eqx.nn.Linear(16, 1, use_bias=False, key=b)
        self.bias = jnp.zeros(1)

    def __call__(self, xs):
        out, _ = jax.lax.scan(lambda c, x: (self.cell(x, c), None), jnp.zeros(16), xs)
        return jax.nn.sigmoid(self.linear(out) + self.bias)


@eqx.filter_value_and_grad
def compute_loss(model, x, y):
    p = jax.vmap(model)(x)[:, 0]
    return -jnp.mean(y * jnp.log(p) + (1 - y) * jnp.log(1 - p))


@eqx.filter_jit
def make_step(model, x, y, opt_state):
    loss, grads = compute_loss(model, x, y)
    updates, opt_state = optim.update(grads, opt_state)
    return loss, eqx.apply_updates(model, updates), opt_state


model = RNN(jax.random.key(0))
optim = optax.adam(3e-3)
opt_state = optim.init(model)
x = jax.random.normal(jax.random.key(1), (8, 16, 2))
y = (x[:, -1, 0] > 0).astype(jnp.float32)
for i in range(3):
    loss, model, opt_state = make_step(model, x, y, opt_state)
    print(i, float(loss).hex())
