"""Programs written with other libraries, by name: each uses a part of JAX that simple models do not reach."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import sparse
from jax.experimental.ode import odeint
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import log_density
from programs import Case, on_device

LIBRARY_CASES: dict[str, Case] = {}
KEY = jax.random.key(7)


def case(*args: Any, forward: bool = True, reverse: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a function to the table, to be called with these arguments; its numbers are within a solver's tolerance."""

    def enter(fun: Callable[..., Any]) -> Callable[..., Any]:
        name = fun.__name__
        LIBRARY_CASES[name] = Case(name, fun, on_device(args), forward=forward, reverse=reverse, rtol=1e-3)
        return fun

    return enter


# --- arguments, created with NumPy: JAX would compile something for each shape whenever the table is imported ---------


def normal(i: int, *shape: int) -> jax.Array:
    return on_device(np.asarray(np.random.default_rng(i).normal(size=shape), np.float32))


def filled(shapes: Any, positive: bool = False) -> Any:
    """Values for a tree of shapes, such as the traced result of an initializer; integers are zero.

    Args:
      positive: for states, which may include variances.
    """
    rng = np.random.default_rng(0)

    def leaf(x: Any) -> Any:
        if not isinstance(x, jax.ShapeDtypeStruct):
            return x
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.split(KEY, x.shape) if x.shape else KEY
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return on_device(np.zeros(x.shape, x.dtype))
        numbers = rng.uniform(0.5, 1.5, x.shape) if positive else rng.normal(size=x.shape) * 0.5
        return on_device(np.asarray(numbers).astype(x.dtype))

    return jax.tree.map(leaf, shapes)


def initial(init: Callable[..., Any], *args: Any) -> Any:
    """The shapes of a flax or haiku `init`."""
    return filled(jax.eval_shape(init, *args))


def equinox_parts(make: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """The inexact arrays of a new equinox module, and the rest."""
    return eqx.partition(filled(eqx.filter_eval_shape(make, *args)), eqx.is_inexact_array)


def nnx_parts(make: Callable[..., Any]) -> tuple[Any, Any, Any]:
    """The structure, the parameters and the remaining state of a new nnx module."""
    graph, params, rest = nnx.split(nnx.eval_shape(make), nnx.Param, ...)
    return graph, filled(params), filled(rest, positive=True)


# --- flax.linen -------------------------------------------------------------------------------------------------------


class DecoderLayer(nn.Module):
    """Causal attention and a gated MLP with dropout; saved values are named for the policy."""

    @nn.compact
    def __call__(self, x, _):
        n, width = x.shape[-2:]
        mask = nn.make_causal_mask(jnp.ones((n,)))
        h = nn.RMSNorm()(x)
        x = x + checkpoint_name(nn.MultiHeadDotProductAttention(num_heads=2)(h, h, mask=mask), "attention")
        h = nn.RMSNorm()(x)
        gated = nn.silu(nn.Dense(2 * width)(h)) * nn.Dense(2 * width)(h)
        h = nn.Dropout(0.2, deterministic=False)(nn.Dense(width)(gated))
        self.sow("intermediates", "norm", jnp.linalg.norm(h))
        return x + h, None


class Decoder(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(11, 8)
        x = embed(tokens) + self.param("position", nn.initializers.normal(0.1), (tokens.shape[-1], 8))
        layer = nn.remat(
            DecoderLayer,
            prevent_cse=False,
            policy=jax.checkpoint_policies.save_only_these_names("attention"),
        )
        layers = nn.scan(
            layer,
            variable_axes={"params": 0, "intermediates": 0},
            split_rngs={"params": True, "dropout": True},
            length=2,
        )
        x, _ = layers()(x, None)
        return embed.attend(nn.LayerNorm()(x))


DECODER = Decoder()
TOKENS = jnp.array([[3, 1, 4, 1], [5, 9, 2, 6]])


@case(initial(DECODER.init, {"params": KEY, "dropout": KEY}, TOKENS)["params"], TOKENS)
@jax.jit
def linen_decoder_with_named_policy(params, tokens):
    logits, sown = DECODER.apply({"params": params}, tokens, rngs={"dropout": KEY}, mutable=["intermediates"])
    targets = jnp.roll(tokens, -1, axis=-1)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean(), sown


class Experts(nn.Module):
    """A lifted switch between experts, and a lifted custom rule that clips the cotangent."""

    @nn.compact
    def __call__(self, x, which):
        experts = [nn.Dense(3, name="first"), nn.Dense(3, name="second")]
        if self.is_initializing():
            for expert in experts:
                expert(x)
        x = nn.switch(which, [lambda m, x: experts[0](x), lambda m, x: jnp.sin(experts[1](x))], self, x)

        def forward(m, x):
            return nn.vjp(lambda m, x: m(x), m, x)

        def backward(pull, ct):
            params_ct, x_ct = pull(ct)
            return params_ct, jnp.clip(x_ct, -0.1, 0.1)

        clipped = nn.custom_vjp(lambda m, x: m(x), forward_fn=forward, backward_fn=backward)
        return clipped(nn.Dense(2, name="last"), x)


EXPERTS = Experts()


@case(initial(EXPERTS.init, KEY, np.ones((2, 3)), jnp.int32(0)), normal(3, 2, 3), jnp.int32(1), forward=False)
def linen_switch_and_custom_vjp(params, x, which):
    return EXPERTS.apply(params, x, which)


# --- haiku ------------------------------------------------------------------------------------------------------------


def _small_resnet(images):
    net = hk.nets.ResNet(
        (1, 1, 1, 1),
        2,
        bottleneck=False,
        channels_per_group=(2, 2, 4, 4),
        use_projection=(False, True, True, True),
        initial_conv_config={
            "output_channels": 2, "kernel_shape": 3, "stride": 2, "with_bias": False, "padding": "SAME",
        },
    )  # fmt: skip
    return net(images, is_training=True)


HAIKU_RESNET = hk.transform_with_state(_small_resnet)
RESNET_IMAGES = normal(9, 2, 16, 16, 1)
RESNET_PARAMS, RESNET_STATE = jax.eval_shape(HAIKU_RESNET.init, KEY, RESNET_IMAGES)


@case(filled(RESNET_PARAMS), filled(RESNET_STATE, positive=True), RESNET_IMAGES, np.array([0, 1]))
@jax.jit
def haiku_library_resnet(params, state, images, labels):
    logits, state = HAIKU_RESNET.apply(params, state, None, images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), state


def _quantized(x):
    return hk.nets.VectorQuantizerEMA(2, 4, 0.25, 0.9)(hk.Linear(2)(x), is_training=True)


HAIKU_QUANTIZER = hk.transform_with_state(_quantized)
QUANTIZER_PARAMS, QUANTIZER_STATE = jax.eval_shape(HAIKU_QUANTIZER.init, KEY, jnp.ones((5, 3)))


@case(filled(QUANTIZER_PARAMS), filled(QUANTIZER_STATE, positive=True), normal(12, 5, 3))
def haiku_vector_quantizer(params, state, x):
    """Straight through the nearest code, with a moving average of the codes."""
    out, state = HAIKU_QUANTIZER.apply(params, state, None, x)
    return out["loss"] + jnp.sum(out["quantize"] ** 2), out["perplexity"], state


# --- equinox ----------------------------------------------------------------------------------------------------------

GRU, GRU_STATIC = equinox_parts(lambda: eqx.nn.GRUCell(3, 4, key=KEY))


@case(GRU, np.ones((6, 3)))
def equinox_gru(params, xs):
    cell = eqx.combine(params, GRU_STATIC)
    return lax.scan(lambda h, x: (cell(x, h), None), jnp.zeros(4), xs)[0]


def _sines(kind, x):
    step = lambda carry: (carry[0] + 1, jnp.sin(carry[1]))
    return eqxi.while_loop(lambda carry: carry[0] < 3, step, (0, x), max_steps=8, kind=kind)[1]


@case(np.ones(3))
def equinox_bounded_loop(x):
    return _sines("bounded", x)


class EquinoxLayer(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(2, 4, dropout_p=0.1, key=first)
        self.norm = eqx.nn.LayerNorm(4)
        self.mlp = eqx.nn.MLP(4, 4, 8, 1, jax.nn.gelu, key=second)

    def __call__(self, x, key):
        mask = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))
        h = jax.vmap(self.norm)(x)
        x = x + self.attention(h, h, h, mask, key=key)
        return x + jax.vmap(self.mlp)(x)


EQUINOX_STACK, EQUINOX_STATIC = equinox_parts(eqx.filter_vmap(EquinoxLayer), jax.random.split(KEY, 3))


@case(EQUINOX_STACK, normal(13, 4, 4), KEY)
def equinox_layers_scanned_and_checkpointed(stack, x, key):
    @eqx.filter_checkpoint
    def step(x, layer_and_key):
        layer, key = layer_and_key
        return eqx.combine(layer, EQUINOX_STATIC)(x, key), None

    return lax.scan(step, x, (stack, jax.random.split(key, 3)))[0]


def _logistic_map(carry):
    i, x, history = carry
    x = 3.2 * x * (1.0 - x)
    return i + 1, x, history.at[i].set(x)


@case(jnp.float32(0.3), jnp.int32(5), forward=False)
def equinox_checkpointed_loop_with_buffers(x, n):
    """An array updated in place in each iteration, with fewer checkpoints than iterations."""
    carry = (0, x, jnp.zeros(8))
    loop = partial(eqxi.while_loop, kind="checkpointed", checkpoints=2, max_steps=8, buffers=lambda c: c[2])
    _, x, history = loop(lambda c: c[0] < n, _logistic_map, carry)
    return x + history[1] * history[3], history


@case(normal(16, 3, 3), normal(17, 6, 3), forward=False)
def equinox_checkpointed_scan(w, xs):
    step = lambda h, x: (jnp.tanh(w @ h + x), h[0])
    return eqxi.scan(step, jnp.zeros(3), xs, kind="checkpointed", checkpoints=2)


class EquinoxNormalized(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    pool: eqx.nn.AdaptiveAvgPool2d

    def __init__(self):
        self.conv = eqx.nn.Conv2d(1, 2, 3, key=KEY)
        self.norm = eqx.nn.BatchNorm(2, "batch", mode="batch")
        self.pool = eqx.nn.AdaptiveAvgPool2d(2)

    def __call__(self, x, state):
        x, state = self.norm(self.conv(x), state)
        return self.pool(jax.nn.relu(x)), state


NORMALIZED, NORMALIZED_STATE = eqx.nn.make_with_state(EquinoxNormalized)()
NORMALIZED_PARAMS, NORMALIZED_STATIC = eqx.partition(NORMALIZED, eqx.is_inexact_array)


@case(NORMALIZED_PARAMS, normal(18, 3, 1, 6, 6))
def equinox_stateful_batch_norm(params, x):
    model = eqx.combine(params, NORMALIZED_STATIC)
    y, state = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, NORMALIZED_STATE)
    return jnp.sum(y**2), [s for s in jax.tree.leaves(state) if eqx.is_inexact_array(s)]


PHYSICS_NET, PHYSICS_STATIC = equinox_parts(lambda: eqx.nn.MLP(2, "scalar", 6, 2, jnp.tanh, key=KEY))


@case(PHYSICS_NET, normal(19, 4, 2))
@jax.jit
def equinox_physics_informed_loss(params, points):
    """Derivatives inside the loss: a Laplacian by forward over reverse, and by `jax.hessian`."""
    net = eqx.combine(params, PHYSICS_STATIC)

    def residual(point):
        def second(v):
            return jnp.vdot(v, jax.jvp(jax.grad(net), (point,), (v,))[1])

        laplacian = jax.vmap(second)(jnp.eye(2)).sum()
        return laplacian + jnp.sin(net(point)) + 0.1 * jnp.linalg.det(jax.hessian(net)(point))

    return jnp.mean(jax.vmap(residual)(points) ** 2)


# --- diffrax, lineax, optimistix --------------------------------------------------------------------------------------


def decay(t, y, rate):
    return -rate * y


def solve(y, rate, **options):
    terms = diffrax.ODETerm(decay)
    return diffrax.diffeqsolve(terms, diffrax.Tsit5(), 0.0, 1.0, 0.1, y, args=rate, **options).ys


ADAPTIVE = diffrax.PIDController(rtol=1e-3, atol=1e-3)
RATE = jnp.float32(0.5)


@case(np.ones(2), RATE)
def diffrax_direct_adjoint(y, rate):
    return solve(y, rate, adjoint=diffrax.DirectAdjoint(), stepsize_controller=ADAPTIVE, max_steps=8)


MATRIX = 2.0 * np.eye(3) + 0.1


@case(MATRIX, np.ones(3))
def lineax_conjugate_gradients(a, b):
    operator = lineax.MatrixLinearOperator(a @ a.T, lineax.positive_semidefinite_tag)
    return lineax.linear_solve(operator, b, lineax.CG(1e-5, 1e-5)).value


FIELD, FIELD_STATIC = equinox_parts(lambda: eqx.nn.MLP(2, 2, 4, 1, jnp.tanh, key=KEY))
START = jnp.array([1.0, -0.5])


def _neural_field(t, y, params):
    return eqx.combine(params, FIELD_STATIC)(y) * jnp.cos(t)


def _neural_solve(params, y, solver=None, **options):
    solver = diffrax.Heun() if solver is None else solver
    options = {"max_steps": 8, **options}
    return diffrax.diffeqsolve(diffrax.ODETerm(_neural_field), solver, 0.0, 1.0, 0.25, y, args=params, **options)


@case(FIELD, START, forward=False)
def diffrax_backsolve_of_a_neural_ode(params, y):
    adjoint = diffrax.BacksolveAdjoint(solver=diffrax.Midpoint(), stepsize_controller=diffrax.ConstantStepSize())
    return _neural_solve(params, y, adjoint=adjoint).ys


@case(FIELD, START, reverse=False)
def diffrax_forward_mode(params, y):
    return _neural_solve(params, y, solver=diffrax.Euler(), adjoint=diffrax.ForwardMode()).ys


@case(jnp.float32(1.5), START, forward=False)
def diffrax_stiff_with_adaptive_steps(rate, y):
    """An implicit solver: each stage is a root, differentiated by the implicit function theorem."""
    terms = diffrax.ODETerm(lambda t, y, rate: jnp.array([y[1], -rate * y[0] - 5.0 * y[1]]))
    controller = diffrax.PIDController(rtol=1e-2, atol=1e-2)
    solution = diffrax.diffeqsolve(
        terms, diffrax.ImplicitEuler(), 0.0, 0.4, 0.2, y, args=rate, stepsize_controller=controller, max_steps=8
    )
    return solution.ys


@case(FIELD, normal(20, 5, 2), forward=False)
def diffrax_controlled_equation(params, data):
    """A neural CDE, driven by interpolated data."""
    control = diffrax.LinearInterpolation(jnp.linspace(0.0, 1.0, 5), data)
    field = lambda t, y, params: jnp.outer(eqx.combine(params, FIELD_STATIC)(y), jnp.ones(2))
    term = diffrax.ControlTerm(field, control).to_ode()
    return diffrax.diffeqsolve(term, diffrax.Heun(), 0.0, 1.0, 0.25, START, args=params, max_steps=8).ys


@case(jnp.float32(9.8), jnp.float32(2.0), forward=False)
def diffrax_event(gravity, height):
    """The time at which a ball hits the ground, found as a root of the solution."""
    terms = diffrax.ODETerm(lambda t, y, g: jnp.array([y[1], -g]))
    event = diffrax.Event(lambda t, y, args, **_: y[0], optimistix.Newton(1e-4, 1e-4))
    solution = diffrax.diffeqsolve(
        terms, diffrax.Heun(), 0.0, 2.0, 0.2, jnp.stack([height, 0.0]), args=gravity, event=event, max_steps=16
    )
    return solution.ts, solution.ys


SQUARE = normal(21, 4, 4) * 0.1 + jnp.diag(jnp.arange(2.0, 6.0))


@case(normal(22, 5, 3), normal(23, 5))
def lineax_least_squares(a, b):
    by_qr = lineax.linear_solve(lineax.MatrixLinearOperator(a), b, lineax.QR()).value
    well_posed = lineax.AutoLinearSolver(well_posed=False)
    return by_qr + lineax.linear_solve(lineax.MatrixLinearOperator(a), b, well_posed).value


@case(np.array([1.2, 0.8]))
def optimistix_minimise(target):
    objective = lambda x, target: jnp.sum((x - target) ** 2) + 0.1 * jnp.sum(x**4)
    return optimistix.minimise(objective, optimistix.BFGS(1e-4, 1e-4), jnp.zeros(2), args=target, max_steps=32).value


# --- optax, numpyro ---------------------------------------------------------------------------------------------------


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


MODEL = {"w": normal(24, 3, 2), "b": jnp.zeros(2)}
BATCH = normal(25, 4, 3), normal(26, 4, 2)


def _regression(params, batch):
    x, y = batch
    return optax.huber_loss(x @ params["w"] + params["b"], y).mean()


@case(MODEL, jax.tree.map(lambda x: jnp.stack([x] * 4), BATCH))
def optax_accumulated_and_guarded(params, batches):
    """Updates every second step, and only with finite gradients: conds in a scan."""
    optimizer = optax.apply_if_finite(optax.MultiSteps(optax.sgd(0.1, momentum=0.9), 2), 3)

    def step(carry, batch):
        params, state = carry
        loss, grads = jax.value_and_grad(_regression)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), loss

    (params, _), losses = lax.scan(step, (params, optimizer.init(params)), batches)
    return params, losses


@case(MODEL, BATCH)
@jax.jit
def optax_lbfgs_with_line_search(params, batch):
    """The line search is a while loop whose tangents are never read, so there is reverse mode nevertheless."""
    optimizer = optax.lbfgs(linesearch=optax.scale_by_backtracking_linesearch(4))
    loss = lambda p: _regression(p, batch)
    state = optimizer.init(params)
    for _ in range(2):
        value, grad = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grad, state, params, value=value, grad=grad, value_fn=loss)
        params = optax.apply_updates(params, updates)
    return loss(params)


@case(normal(27, 3, 4), np.array([0, 2, 1]))
@jax.jit
def optax_losses(logits, labels):
    losses = optax.losses
    targets = optax.smooth_labels(jax.nn.one_hot(labels, 4), 0.1)
    return (
        losses.softmax_cross_entropy(logits, targets).sum()
        + losses.sigmoid_focal_loss(logits, targets).sum()
        + losses.multiclass_sparsemax_loss(logits, labels).sum()
        + losses.kl_divergence(jax.nn.log_softmax(logits), targets).sum()
        + losses.cosine_distance(logits, targets + 0.1).sum()
        + losses.ntxent(logits, jnp.array([0, 1, 0]))
        + losses.poly_loss_cross_entropy(logits, targets).sum()
    )


GROUPS = jnp.array([0, 0, 1, 1, 2, 2])
OBSERVED = normal(28, 6)


def _hierarchical(groups, y):
    """Correlated, non-centred effects of groups, and a mixture for outliers."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0).expand([2]).to_event(1))
    correlation = numpyro.sample("correlation", dist.LKJCholesky(2, 2.0))
    with numpyro.plate("groups", 3):
        z = numpyro.sample("z", dist.MultivariateNormal(jnp.zeros(2), scale_tril=scale[:, None] * correlation))
    with numpyro.handlers.reparam(config={"slope": LocScaleReparam(0.0)}):
        slope = numpyro.sample("slope", dist.Normal(z[:, 1].mean(), 2.0))
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    mean = z[groups, 0] + slope * groups
    with numpyro.plate("data", 6):
        components = dist.Normal(mean[:, None] * jnp.ones(2), jnp.array([0.5, 3.0]))
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(probs=weights), components), obs=y)


HIERARCHICAL_SITES = {
    "scale": jnp.array([0.8, 1.2]),
    "correlation": jnp.array([[1.0, 0.0], [0.6, 0.8]]),
    "z": normal(29, 3, 2),
    "slope_decentered": jnp.float32(0.3),
    "weights": jnp.array([0.7, 0.3]),
}


@case(HIERARCHICAL_SITES)
@jax.jit
def numpyro_log_density(sites):
    return log_density(_hierarchical, (GROUPS, OBSERVED), {}, sites)[0]


# --- jax's own solvers ------------------------------------------------------------------------------------------------


@case(np.ones(2), RATE, forward=False)
def jax_odeint(y, rate):
    return odeint(lambda y, t, rate: -rate * y, y, jnp.array([0.0, 0.5, 1.0]), rate)


@case(SQUARE @ SQUARE.T, np.arange(4.0))
def jax_iterative_solvers(a, b):
    solvers = jax.scipy.sparse.linalg
    preconditioner = lambda v: v / jnp.diag(a)
    x, _ = solvers.cg(a, b, M=preconditioner, tol=1e-6)
    y, _ = solvers.bicgstab(lambda v: a @ v, {"b": b}["b"], tol=1e-6)
    z, _ = solvers.gmres(a, b, tol=1e-6, restart=4, solve_method="incremental")
    return x + 2.0 * y + 3.0 * z


@case(SQUARE, np.arange(1.0, 5.0))
def jax_custom_linear_solve(a, b):
    """A custom solver, whose factors are shared between the system and its transpose."""
    factors = jax.scipy.linalg.lu_factor(lax.stop_gradient(a))
    return lax.custom_linear_solve(
        lambda x: a @ x,
        b,
        lambda _, b: jax.scipy.linalg.lu_solve(factors, b),
        lambda _, b: jax.scipy.linalg.lu_solve(factors, b, trans=1),
    )


@case(np.array([0.5, 1.5]), reverse=False)
@jax.jit
def jax_scipy_minimize(target):
    """BFGS is a while loop, so it has only forward mode."""
    rosenbrock = lambda x: (target[0] - x[0]) ** 2 + 5.0 * (x[1] - x[0] ** 2) ** 2 + 0.1 * target[1] * x[1] ** 2
    return jax.scipy.optimize.minimize(rosenbrock, jnp.zeros(2), method="BFGS", options={"maxiter": 6}).x


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fixed_point(f, params, x):
    return lax.while_loop(
        lambda s: (jnp.max(jnp.abs(s[0] - s[1])) > 1e-4) & (s[2] < 50),
        lambda s: (s[1], f(params, s[1]), s[2] + 1),
        (x, f(params, x), 0),
    )[1]


def _fixed_point_fwd(f, params, x):
    x = _fixed_point(f, params, x)
    return x, (params, x)


def _fixed_point_bwd(f, residuals, ct):
    """The adjoint is also a fixed point, of the pullback."""
    params, x = residuals
    _, pull_x = jax.vjp(lambda x: f(params, x), x)
    adjoint = _fixed_point(lambda ct, u: ct + pull_x(u)[0], ct, ct)
    _, pull_params = jax.vjp(lambda p: f(p, x), params)
    return pull_params(adjoint)[0], jnp.zeros_like(x)


_fixed_point.defvjp(_fixed_point_fwd, _fixed_point_bwd)


@case({"w": 0.2 * normal(30, 3, 3), "b": np.ones(3)}, np.zeros(3), forward=False)
def deep_equilibrium_model(params, x):
    layer = lambda p, z: jnp.tanh(p["w"] @ z + p["b"])
    return jnp.sum(_fixed_point(layer, params, x) ** 2)


# --- flax.nnx ---------------------------------------------------------------------------------------------------------


class NnxConvolutional(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 3, (3, 3), strides=2, rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.head = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        return self.head(self.dropout(x.mean((1, 2))))


CONV_GRAPH, CONV_PARAMS, CONV_STATE = nnx_parts(lambda: NnxConvolutional(nnx.Rngs(0, dropout=1)))
SMALL_IMAGES = normal(5, 2, 6, 6, 1)


@case(CONV_PARAMS, CONV_STATE, SMALL_IMAGES)
def nnx_batch_norm_and_dropout_state(params, state, x):
    """The call changes the module's statistics and RNG counts, which are returned as state."""
    model = nnx.merge(CONV_GRAPH, params, state, copy=True)  # otherwise the call would change the caller's
    y = model(x)
    _, _, updated = nnx.split(model, nnx.Param, ...)
    return jnp.sum(y**2), updated


class NnxRegressor(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = nnx.Linear(2, 5, rngs=rngs), nnx.Linear(5, 1, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.tanh(self.first(x)))


REGRESSOR_GRAPH, REGRESSOR_PARAMS, _ = nnx_parts(lambda: NnxRegressor(nnx.Rngs(0)))


@case(REGRESSOR_PARAMS, normal(6, 4, 2), normal(7, 4, 1))
def nnx_adapted_by_one_step(params, x, y):
    """MAML: the loss after one gradient step on a module that is merged and differentiated inside."""

    def loss(model):
        return jnp.mean((model(x) - y) ** 2)

    before, grads = nnx.value_and_grad(loss)(nnx.merge(REGRESSOR_GRAPH, params))
    adapted = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return loss(nnx.merge(REGRESSOR_GRAPH, adapted)) + 0.1 * before


# --- jax.nn, jax.numpy, jax.scipy, jax.random -------------------------------------------------------------------------


@case(normal(32, 1, 4, 4, 2), normal(33, 1, 5, 2, 2), normal(34, 1, 5, 2, 2), normal(35, 1, 4, 4, 5))
@jax.jit
def grouped_query_attention(q, k, v, bias):
    mask = jnp.arange(5)[None, None, None] < jnp.array([4, 5, 3, 2])[None, None, :, None]
    windowed = jax.nn.dot_product_attention(q, k, v, scale=0.3, local_window_size=(2, 1))
    return windowed + jax.nn.dot_product_attention(q, k, v, bias=bias, mask=mask)


@case(SQUARE, normal(36, 4, 2))
@jax.jit
def decompositions(a, b):
    linalg = jnp.linalg
    symmetric = a @ a.T
    values, vectors = linalg.eigh(symmetric)
    u, s, vt = linalg.svd(a, full_matrices=False)
    q, r = linalg.qr(b)
    return {
        "eigh": vectors**2 @ values,
        "svd": (u * s) @ vt,
        "qr": q @ r + jnp.abs(r).sum(),
        "lstsq": linalg.lstsq(b, a[:, 0])[0],
        "pinv": linalg.pinv(b),
        "eigenvalues": linalg.eigvals(a).real.sum(),
        "norms": linalg.norm(a, "nuc") + linalg.norm(a, 2),
        "power": linalg.matrix_power(a, 3)[0] + linalg.det(a) + linalg.slogdet(a)[1],
        "inverse": linalg.inv(a) + linalg.solve(a, a) + linalg.cholesky(symmetric) + jax.scipy.linalg.expm(0.1 * a),
        "cho_solve": jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(symmetric), b),
        "triangular": jax.scipy.linalg.solve_triangular(jnp.triu(a), b),
    }


@case(np.linspace(0.3, 0.9, 4))
@jax.jit
def special_functions(x):
    s = jax.scipy.special
    return sum(
        (
            s.betainc(2.0, 3.0, x), s.gammainc(2.0, x), s.zeta(x + 2.0, 1.5), s.polygamma(1, x), s.expi(x), s.i1(x),
            s.ndtri(x), s.log_ndtr(-x), s.spence(x), s.exp1(x), s.logsumexp(x, b=jnp.arange(1.0, 5.0)),
            s.rel_entr(x, 0.5),
        ),
        start=jnp.zeros(4),
    )  # fmt: skip


@case(normal(37, 6, 6, 2), normal(38, 3, 3, 2, 2), np.array([[0.4, 2.5, 3.3], [1.2, 0.7, 4.1]]))
@jax.jit
def images(image, kernel, coordinates):
    batch = image[None]
    sampled = jax.scipy.ndimage.map_coordinates(image[..., 0], coordinates, 1, mode="nearest")
    moved = jax.image.scale_and_translate(
        image, (4, 4, 2), (0, 1), coordinates[:, 0], coordinates[:, 1] * 0.1, "linear"
    )
    up = lax.conv_transpose(batch, kernel, (2, 2), "SAME")
    dilated = lax.conv_general_dilated(
        batch, kernel, (1, 1), "SAME", rhs_dilation=(2, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    pooled = lax.reduce_window(jax.nn.celu(dilated), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    small = jax.image.resize(image, (3, 4, 2), "lanczos3")
    spectrum = jnp.abs(jnp.fft.rfft2(image, axes=(0, 1)))
    return sampled.sum() + moved.sum() + jnp.tanh(up).sum() + pooled.sum() + small, spectrum


@case(np.array([0.7, 1.5, 3.0]), jnp.float32(0.5), KEY)
@jax.jit
def reparametrized_samples(a, scale, key):
    keys = jax.random.split(key, 6)
    random = jax.random
    covariance = jnp.eye(3) * scale + 0.1 * jnp.outer(a, a)
    return (
        random.gamma(keys[0], a) * scale
        + random.t(keys[1], a)
        + random.multivariate_normal(keys[2], a, covariance)
        + random.truncated_normal(keys[3], -a, a)
        + jax.nn.softmax((jnp.log(a) + random.gumbel(keys[4], (3,))) / scale)
        + random.permutation(keys[5], a)
    )


# --- control flow as people use it ------------------------------------------------------------------------------------


@case(normal(44, 3, 3), normal(45, 3, 3), normal(46, 8, 3))
def nested_checkpointed_scans(w, v, xs):
    """Checkpoints every other step, and a policy inside."""
    policy = jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names("gate"),
    )

    @partial(jax.checkpoint, policy=policy, prevent_cse=False)
    def step(h, x):
        gate = checkpoint_name(jax.nn.sigmoid(v @ x), "gate")
        return gate * jnp.tanh(w @ h) + (1.0 - gate) * x, jnp.sum(gate)

    @jax.checkpoint
    def chunk(h, xs):
        return lax.scan(step, h, xs)

    h, gates = lax.scan(chunk, jnp.zeros(3), xs.reshape(4, 2, 3))
    return jnp.sum(h**2) + gates.sum()


@case(normal(47, 6, 4), normal(48, 4, 3), normal(49, 3, 4, 4))
def mixture_of_experts(x, router, experts):
    """The best two of three experts for each token, by `top_k` and a ragged product."""
    weights, chosen = lax.top_k(jax.nn.softmax(x @ router), 2)
    flat = chosen.reshape(-1)
    order = jnp.argsort(flat)
    sizes = jnp.bincount(flat, length=3)
    y = lax.ragged_dot(x[order // 2], experts, sizes.astype(jnp.int32))
    y = jnp.zeros_like(y).at[order].set(y) * weights.reshape(-1, 1)
    return jax.ops.segment_sum(y, jnp.arange(12) // 2, 6)


SPARSE_AT = np.argwhere(np.abs(SQUARE) > 0.08)


@case(sparse.BCOO((SQUARE[tuple(SPARSE_AT.T)], jnp.asarray(SPARSE_AT)), shape=(4, 4)), normal(51, 4, 2))
def sparse_products(a, b):
    """A sparse matrix is a pytree of values and integers."""
    return sparse.bcoo_dot_general(a, b, dimension_numbers=(((1,), (0,)), ((), ()))), (a.T @ b[:, 0]).sum()


@jax.custom_jvp
def _on_the_host(x):
    return jax.pure_callback(lambda x: np.sin(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")


@_on_the_host.defjvp
def _on_the_host_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return _on_the_host(x), jnp.cos(x) * t


@case(normal(54, 3), normal(55, 4, 3))
def callbacks_in_a_scan(h, xs):
    """Numbers computed on the host, with a rule for their derivative."""
    return lax.scan(lambda h, x: (_on_the_host(h) * x, h.sum()), h, xs)


@case(normal(56, 3), normal(57, 5, 3))
def loops_in_batches(w, xs):
    """A scan, a loop, a switch and a checkpoint, vmapped: predicates and lengths depend on the example."""

    @jax.checkpoint
    def one(x, n):
        n_steps = lax.while_loop(lambda k: k < n, lambda k: k + 2, 0)
        h, _ = lax.scan(lambda h, i: (jnp.where(i < n, jnp.tanh(w * h), h), None), x, jnp.arange(3))
        return lax.switch(n % 3, [jnp.sin, jnp.cos, lambda h: h * n_steps], h)

    return jax.vmap(one)(xs, jnp.arange(5)).sum(0)


@case(normal(58, 4), normal(59, 4))
def kalman_filter(observations, log_scales):
    """A scan with a solve in each step, and the likelihood of the observations."""
    transition = jnp.array([[1.0, 0.1], [0.0, 1.0]])
    process, measurement = jnp.diag(jnp.exp(log_scales[:2])), jnp.exp(log_scales[2])

    def step(carry, y):
        mean, covariance = transition @ carry[0], transition @ carry[1] @ transition.T + process
        variance = covariance[:1, :1] + measurement
        gain = jnp.linalg.solve(variance, covariance[:1]).T
        error = y - mean[0]
        log_p = jax.scipy.stats.norm.logpdf(error, 0.0, jnp.sqrt(variance[0, 0]))
        return (mean + gain[:, 0] * error, covariance - gain @ covariance[:1]), log_p

    (mean, covariance), log_p = lax.scan(step, (jnp.zeros(2), jnp.eye(2)), observations)
    return log_p.sum(), mean, covariance
