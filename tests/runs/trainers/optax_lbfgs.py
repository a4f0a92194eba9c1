"""L-BFGS, as in Optax's documentation."""

import jax
import jax.numpy as jnp
import optax


def fun(w):
    return jnp.sum(100.0 * (w[1:] - w[:-1] ** 2) ** 2 + (1.0 - w[:-1]) ** 2)


opt = optax.lbfgs()
vg = optax.value_and_grad_from_state(fun)


@jax.jit
def step(carry):
    w, state = carry
    value, grad = vg(w, state=state)
    updates, state = opt.update(grad, state, w, value=value, grad=grad, value_fn=fun)
    return optax.apply_updates(w, updates), state


w = jnp.zeros(8)
state = opt.init(w)
for _i in range(5):
    w, state = step((w, state))
print(float(fun(w)).hex())
