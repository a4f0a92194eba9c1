"""Programs written with other libraries, in a separate table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import optimistix
from flax import nnx
from jax import lax
from jax.experimental.ode import odeint
from library_values import equinox_parts, filled, initial, nnx_parts, normal
from numpyro.infer.util import potential_energy
from programs import Case, on_device

LIBRARY_CASES: list[Case] = []
KEY = jax.random.key(0)


def case(*args: Any, forward: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a function to the table, to be called with these arguments."""

    def enter(fun: Callable[..., Any]) -> Callable[..., Any]:
        LIBRARY_CASES.append(Case(fun.__name__, fun, on_device(args), forward=forward))
        return fun

    return enter


# --- flax -------------------------------------------------------------------------------------------------------------

IMAGES = normal(0, 2, 8, 8, 1)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        h = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(h, h)
        h = nn.gelu(nn.Dense(16)(nn.LayerNorm()(x)))
        return x + nn.Dense(8)(h), None


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, x):
        layers = nn.scan(
            nn.remat(Block, prevent_cse=False), variable_axes={"params": 0}, split_rngs={"params": True}, length=3
        )
        x, _ = layers()(x, None)
        return nn.Dense(2)(x)


TRANSFORMER = Transformer()


@case(initial(TRANSFORMER.init, KEY, np.ones((4, 8))), np.ones((4, 8)))
def flax_transformer_scanned_and_rematted(params, x):
    return jnp.sum(TRANSFORMER.apply(params, x) ** 2)


class Convolutional(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=False)(nn.Conv(4, (3, 3))(x))
        x = nn.max_pool(nn.relu(x), (2, 2), (2, 2))
        x = nn.Dropout(0.5, deterministic=False)(x)
        return nn.Dense(3)(x.reshape(x.shape[0], -1))


CONVOLUTIONAL = Convolutional()
VARIABLES = jax.eval_shape(CONVOLUTIONAL.init, {"params": KEY, "dropout": KEY}, IMAGES)


@case(filled(VARIABLES["params"]), filled(VARIABLES["batch_stats"], positive=True), IMAGES)
def flax_batch_norm_and_dropout(params, stats, x):
    variables = {"params": params, "batch_stats": stats}
    y, updates = CONVOLUTIONAL.apply(variables, x, mutable=["batch_stats"], rngs={"dropout": KEY})
    return jnp.sum(y**2), updates


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.RNN(nn.LSTMCell(5))(x)


RECURRENT = Recurrent()


@case(initial(RECURRENT.init, KEY, np.ones((2, 6, 3))), np.ones((2, 6, 3)))
def flax_lstm(params, x):
    return RECURRENT.apply(params, x)


class Perceptron(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.LayerNorm(4, rngs=rngs)
        self.second = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.relu(self.norm(self.first(x))))


GRAPH, PARAMS, REST = nnx_parts(lambda: Perceptron(nnx.Rngs(0)))


@case(PARAMS, np.linspace(0.0, 1.0, 15).reshape(5, 3))
def nnx_perceptron(params, x):
    return jnp.sum(nnx.merge(GRAPH, params, REST)(x) ** 2)


# --- haiku ------------------------------------------------------------------------------------------------------------


def residual_network(x):
    x = hk.Conv2D(4, 3)(x)
    for _ in range(2):
        h = jax.nn.relu(hk.BatchNorm(True, True, 0.9)(x, is_training=True))
        x = x + hk.Conv2D(4, 3)(h)
    return hk.Linear(3)(x.mean((1, 2)))


RESNET = hk.transform_with_state(residual_network)
RESNET_PARAMS, RESNET_STATE = jax.eval_shape(RESNET.init, KEY, IMAGES)


@case(filled(RESNET_PARAMS), filled(RESNET_STATE, positive=True), IMAGES)
def haiku_resnet(params, state, x):
    y, state = RESNET.apply(params, state, KEY, x)
    return jnp.sum(y**2), state


def unrolled_lstm(x):
    core = hk.LSTM(4)
    return hk.dynamic_unroll(core, x, core.initial_state(2))[0]


HAIKU_LSTM = hk.without_apply_rng(hk.transform(unrolled_lstm))


@case(initial(HAIKU_LSTM.init, KEY, np.ones((6, 2, 3))), np.ones((6, 2, 3)))
def haiku_lstm(params, x):
    return HAIKU_LSTM.apply(params, x)


# --- equinox ----------------------------------------------------------------------------------------------------------

MLP, MLP_STATIC = equinox_parts(lambda: eqx.nn.MLP(3, 2, 8, 2, key=KEY))
ATTENTION, ATTENTION_STATIC = equinox_parts(lambda: eqx.nn.MultiheadAttention(2, 4, key=KEY))
GRU, GRU_STATIC = equinox_parts(lambda: eqx.nn.GRUCell(3, 4, key=KEY))


@case(MLP, np.ones(3))
def equinox_mlp(params, x):
    return eqx.combine(params, MLP_STATIC)(x)


@case(ATTENTION, np.linspace(0.0, 1.0, 20).reshape(5, 4))
def equinox_checkpointed_attention(params, x):
    return eqx.filter_checkpoint(eqx.combine(params, ATTENTION_STATIC))(x, x, x)


@case(GRU, np.ones((6, 3)))
def equinox_gru(params, xs):
    cell = eqx.combine(params, GRU_STATIC)
    return lax.scan(lambda h, x: (cell(x, h), None), jnp.zeros(4), xs)[0]


@eqx.filter_custom_vjp
def scaled_sine(x, y):
    return jnp.sin(x) * y


@scaled_sine.def_fwd
def scaled_sine_fwd(perturbed, x, y):
    return jnp.sin(x) * y, (jnp.cos(x), y)


@scaled_sine.def_bwd
def scaled_sine_bwd(residuals, ct, perturbed, x, y):
    cos, y = residuals
    return ct * cos * y if perturbed else None


@case(np.ones(3), forward=False)
def equinox_custom_vjp(x):
    return scaled_sine(x, 2.0)


def _sines(kind, x):
    step = lambda carry: (carry[0] + 1, jnp.sin(carry[1]))
    return eqxi.while_loop(lambda carry: carry[0] < 3, step, (0, x), max_steps=8, kind=kind)[1]


@case(np.ones(3))
def equinox_bounded_loop(x):
    return _sines("bounded", x)


@case(np.ones(3), forward=False)
def equinox_checkpointed_loop(x):
    return _sines("checkpointed", x)


# --- diffrax, lineax, optimistix --------------------------------------------------------------------------------------


def decay(t, y, rate):
    return -rate * y


def solve(y, rate, **options):
    terms = diffrax.ODETerm(decay)
    return diffrax.diffeqsolve(terms, diffrax.Tsit5(), 0.0, 1.0, 0.1, y, args=rate, **options).ys


ADAPTIVE = diffrax.PIDController(rtol=1e-3, atol=1e-3)
RATE = jnp.float32(0.5)


@case(np.ones(2), RATE, forward=False)
def diffrax_constant_steps(y, rate):
    return solve(y, rate, stepsize_controller=diffrax.ConstantStepSize(), max_steps=16)


@case(np.ones(2), RATE, forward=False)
def diffrax_adaptive_steps(y, rate):
    at = diffrax.SaveAt(ts=jnp.array([0.3, 1.0]))
    return solve(y, rate, stepsize_controller=ADAPTIVE, saveat=at, max_steps=16)


@case(np.ones(2), RATE)
def diffrax_direct_adjoint(y, rate):
    return solve(y, rate, adjoint=diffrax.DirectAdjoint(), stepsize_controller=ADAPTIVE, max_steps=8)


@case(np.ones(2), RATE, forward=False)
def diffrax_backsolve_adjoint(y, rate):
    return solve(y, rate, adjoint=diffrax.BacksolveAdjoint(), max_steps=16)


@case(np.ones(2), RATE, forward=False)
def diffrax_stochastic(y, rate):
    noise = diffrax.VirtualBrownianTree(0.0, 1.0, tol=1e-2, shape=(2,), key=KEY)
    diffusion = diffrax.ControlTerm(lambda t, y, rate: lineax.DiagonalLinearOperator(rate * y), noise)
    terms = diffrax.MultiTerm(diffrax.ODETerm(decay), diffusion)
    return diffrax.diffeqsolve(terms, diffrax.EulerHeun(), 0.0, 1.0, 0.25, y, args=rate, max_steps=8).ys


MATRIX = 2.0 * np.eye(3) + 0.1


@case(MATRIX, np.ones(3))
def lineax_direct(a, b):
    return lineax.linear_solve(lineax.MatrixLinearOperator(a), b).value


@case(MATRIX, np.ones(3))
def lineax_conjugate_gradients(a, b):
    operator = lineax.MatrixLinearOperator(a @ a.T, lineax.positive_semidefinite_tag)
    return lineax.linear_solve(operator, b, lineax.CG(1e-5, 1e-5)).value


@case(jnp.float32(2.0))
def optimistix_root(a):
    newton = optimistix.Newton(1e-5, 1e-5)
    return optimistix.root_find(lambda y, a: y**2 - a, newton, jnp.float32(1.0), args=a).value


# --- optax, numpyro ---------------------------------------------------------------------------------------------------


@case(np.linspace(-1.0, 1.0, 12).reshape(4, 3))
def optax_cross_entropy(logits):
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.arange(4) % 3).mean()


@case(np.linspace(-1.0, 1.0, 48).reshape(2, 6, 4))
def optax_ctc(logits):
    labels, padding = jnp.array([[1, 2, 0], [3, 1, 2]]), jnp.array([[0, 0, 1], [0, 0, 0]])
    return optax.ctc_loss(logits, jnp.zeros((2, 6)), labels, padding).sum()


@case(jnp.float32(0.1), np.ones(3))
def optax_inner_loop(rate, x):
    """Learning the learning rate: four steps of Adam, differentiated."""
    optimizer = optax.adam(rate)
    loss = lambda p: jnp.sum((p - 2.0) ** 2 * jnp.sin(p))

    def step(carry, _):
        p, state = carry
        updates, state = optimizer.update(jax.grad(loss)(p), state)
        return (optax.apply_updates(p, updates), state), None

    return loss(lax.scan(step, (x, optimizer.init(x)), None, length=4)[0][0])


def eight_schools(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    with numpyro.plate("schools", 3):
        effect = numpyro.sample("effect", dist.Normal(mean, scale))
        numpyro.sample("y", dist.Normal(effect, 1.0), obs=y)


@case({"mean": normal(2), "scale": normal(3), "effect": normal(4, 3)})
def numpyro_potential(unconstrained):
    return potential_energy(eight_schools, (jnp.arange(3.0),), {}, unconstrained)


# --- jax's own --------------------------------------------------------------------------------------------------------

QUERY = normal(1, 1, 4, 2, 4)


@case(np.ones(2), RATE, forward=False)
def jax_odeint(y, rate):
    return odeint(lambda y, t, rate: -rate * y, y, jnp.array([0.0, 0.5, 1.0]), rate)


@case(np.linspace(0.3, 0.6, 3))
def jax_gmres(x):
    return jax.scipy.sparse.linalg.gmres(lambda v: v * x + jnp.roll(v, 1) * 0.1, jnp.ones(3))[0]


@case(QUERY, QUERY * 0.5, QUERY + 1.0)
def jax_dot_product_attention(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


@case(np.eye(3) + 0.1 * np.arange(9.0).reshape(3, 3) ** 0.5)
def jax_linear_algebra(a):
    linalg = jnp.linalg
    symmetric = a @ a.T
    parts = [
        linalg.slogdet(a)[1], linalg.eigh(symmetric)[0], linalg.cholesky(symmetric), linalg.qr(a)[1],
        linalg.solve(a, a[0]), linalg.svd(a)[1], linalg.inv(a), jax.scipy.linalg.expm(0.1 * a),
    ]  # fmt: skip
    return sum(jnp.sum(p) for p in parts)


@case(np.linspace(0.0, 1.0, 16).reshape(4, 4, 1))
def jax_resize(image):
    return jax.image.resize(image, (7, 7, 1), "cubic")


@case(jnp.float32(2.0))
def jax_reparametrized_samples(a):
    random = jax.random
    return random.gamma(KEY, a, (3,)).sum() + random.dirichlet(KEY, jnp.ones(3) * a)[0] + random.beta(KEY, a, 2.0)


def _runge_kutta(x, theta):
    """Adaptive steps in a while loop."""
    field = lambda x: jnp.tanh(theta @ x) - x

    def step(carry):
        t, h, x = carry
        k1 = field(x)
        k2 = field(x + h * k1)
        error = h * jnp.max(jnp.abs(k2 - k1))
        accept = error < 0.05
        t, x = jnp.where(accept, t + h, t), jnp.where(accept, x + 0.5 * h * (k1 + k2), x)
        return t, jnp.minimum(jnp.where(accept, h * 1.5, h * 0.5), jnp.maximum(1.0 - t, 1e-3)), x

    return lax.while_loop(lambda carry: carry[0] < 1.0, step, (0.0, 0.1, x))[2]


@jax.custom_vjp
def adaptive_solve(x, theta):
    return _runge_kutta(x, theta)


def adaptive_solve_fwd(x, theta):
    y = adaptive_solve(x, theta)
    return y, (y, theta)


def adaptive_solve_bwd(residuals, ct):
    """The adjoint equation, integrated backwards with fixed steps."""
    y, theta = residuals
    field = lambda x, theta: jnp.tanh(theta @ x) - x

    def step(carry, _):
        x, a, g = carry
        dx, pull = jax.vjp(field, x, theta)
        da, dg = pull(a)
        return (x - 0.1 * dx, a + 0.1 * da, g + 0.1 * dg), None

    (_, a, g), _ = lax.scan(step, (y, ct, jnp.zeros_like(theta)), None, length=10)
    return a, g


adaptive_solve.defvjp(adaptive_solve_fwd, adaptive_solve_bwd)


@case(np.linspace(0.2, 1.0, 3), 0.5 * MATRIX, forward=False)
def ode_solver_of_ones_own(x, theta):
    return jnp.sum(adaptive_solve(jnp.sin(x), theta) ** 2)
