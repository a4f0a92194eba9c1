"""A neural ODE, as in Diffrax's documentation."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optax


class Func(eqx.Module):
    mlp: eqx.nn.MLP

    def __init__(self, key):
        self.mlp = eqx.nn.MLP(2, 2, 32, 2, activation=jax.nn.softplus, key=key)

    def __call__(self, t, y, args):
        return self.mlp(y)


class NeuralODE(eqx.Module):
    func: Func

    def __call__(self, ts, y0):
        sol = diffrax.diffeqsolve(
            diffrax.ODETerm(self.func),
            diffrax.Tsit5(),
            t0=ts[0],
            t1=ts[-1],
            dt0=ts[1] - ts[0],
            y0=y0,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-6),
            saveat=diffrax.SaveAt(ts=ts),
        )
        return sol.ys


model = NeuralODE(Func(jax.random.key(0)))
ts = jnp.linspace(0, 1, 8)
ys = jnp.ones((4, 8, 2))


@eqx.filter_value_and_grad
def grad_loss(model, ti, yi):
    return jnp.mean((yi - jax.vmap(model, in_axes=(None, 0))(ti, yi[:, 0])) ** 2)


optim = optax.adabelief(3e-3)
state = optim.init(eqx.filter(model, eqx.is_inexact_array))


@eqx.filter_jit
def make_step(ti, yi, model, state):
    loss, grads = grad_loss(model, ti, yi)
    updates, state = optim.update(grads, state)
    return loss, eqx.apply_updates(model, updates), state


for i in range(2):
    loss, model, state = make_step(ts, ys, model, state)
    print(i, float(loss).hex())
