"""Probabilistic models and samplers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from registry import program


@program("flowjax")
def flowjax_spline_flow():
    import equinox as eqx
    from flowjax.bijections import RationalQuadraticSpline
    from flowjax.distributions import Normal
    from flowjax.flows import masked_autoregressive_flow
    from paramax import unwrap

    flow = masked_autoregressive_flow(
        jax.random.key(0), base_dist=Normal(jnp.zeros(3)), transformer=RationalQuadraticSpline(knots=5, interval=4),
        flow_layers=3, nn_width=16,
    )  # fmt: skip
    params, static = eqx.partition(flow, eqx.is_inexact_array)

    def loss(params, x):
        return -unwrap(eqx.combine(params, static)).log_prob(x).mean()

    return loss, (params, jax.random.normal(jax.random.key(1), (16, 3)))


@program("distrax")
def distrax_coupling_flow():
    """A normalizing flow: half of each layer's elements parametrize splines that transform the other half."""
    import distrax

    def flow(params):
        def layer(k, w):
            mask = (jnp.arange(4) + k) % 2 == 0
            knots = lambda x: (jnp.tanh(jnp.where(mask, x, 0.0) @ w["in"]) @ w["out"]).reshape(*x.shape, 13)
            spline = lambda p: distrax.RationalQuadraticSpline(p, range_min=-4.0, range_max=4.0)
            return distrax.MaskedCoupling(mask=mask, bijector=spline, conditioner=knots)

        base = distrax.MultivariateNormalDiag(jnp.zeros(4), jnp.ones(4))
        return distrax.Transformed(base, distrax.Chain([layer(k, w) for k, w in enumerate(params)]))

    def loss(params, x):
        return -flow(params).log_prob(x).mean()

    keys = jax.random.split(jax.random.key(0), 3)
    normal = lambda key, *shape: 0.3 * jax.random.normal(key, shape)
    params = [{"in": normal(k, 4, 8), "out": normal(k, 8, 4 * 13)} for k in keys]
    return loss, (params, jax.random.normal(jax.random.key(1), (16, 4)))


@program("dynamax")
def dynamax_kalman_filter():
    from dynamax.linear_gaussian_ssm import LinearGaussianSSM

    model = LinearGaussianSSM(state_dim=3, emission_dim=2)
    params, _ = model.initialize(jax.random.key(0))
    observed = jax.random.normal(jax.random.key(1), (40, 2))
    return lambda params, observed: -model.marginal_log_prob(params, observed), (params, observed)


@program("dynamax")
def dynamax_hidden_markov():
    from dynamax.hidden_markov_model import GaussianHMM

    model = GaussianHMM(num_states=3, emission_dim=2)
    observed = jax.random.normal(jax.random.key(1), (40, 2))
    params, _ = model.initialize(jax.random.key(0), method="prior")
    return lambda params, observed: -model.marginal_log_prob(params, observed), (params, observed)


@program("gpjax")
def gpjax_marginal_likelihood():
    import equinox as eqx
    import gpjax as gpx
    from paramax import unwrap

    x = jnp.linspace(0.0, 3.0, 20)[:, None]
    data = gpx.Dataset(X=x, y=jnp.sin(3.0 * x))
    prior = gpx.gps.Prior(mean_function=gpx.mean_functions.Constant(), kernel=gpx.kernels.Matern52())
    posterior = prior * gpx.likelihoods.Gaussian()
    params, static = eqx.partition(posterior, eqx.is_inexact_array)

    def loss(params):
        return -gpx.objectives.conjugate_mll(unwrap(eqx.combine(params, static)), data)

    return loss, (params,)


@program("tinygp")
def tinygp_likelihood():
    from tinygp import GaussianProcess, kernels

    x = jnp.sort(jax.random.uniform(jax.random.key(0), (30,)))

    def loss(params, y):
        kernel = params["amplitude"] ** 2 * kernels.Matern32(params["scale"]) + kernels.ExpSineSquared(
            scale=params["period"], gamma=params["gamma"]
        )
        return -GaussianProcess(kernel, x, diag=params["noise"] ** 2 + 1e-3).log_probability(y)

    params = {"amplitude": 1.0, "scale": 0.3, "period": 0.5, "gamma": 1.0, "noise": 0.1}
    return loss, (jax.tree.map(jnp.float32, params), jnp.sin(6.0 * x))


@program("tinygp")
def tinygp_quasiseparable():
    """The same likelihood in linear time, by scans over the factors of its matrices."""
    from tinygp import GaussianProcess
    from tinygp.kernels import quasisep

    x = jnp.sort(jax.random.uniform(jax.random.key(0), (50,)))

    def loss(params, y):
        kernel = quasisep.Matern52(params["scale"], params["sigma"]) + quasisep.SHO(omega=params["omega"], quality=2.0)
        return -GaussianProcess(kernel, x, diag=1e-2).log_probability(y)

    params = {"scale": 0.3, "sigma": 1.2, "omega": 5.0}
    return loss, (jax.tree.map(jnp.float32, params), jnp.sin(6.0 * x))


@program("blackjax")
def blackjax_leapfrog():
    """The end of ten leapfrog steps of Hamiltonian Monte Carlo, with respect to the start."""
    import blackjax.mcmc.integrators as integrators
    import blackjax.mcmc.metrics as metrics

    def log_density(x):
        return -jnp.sum((1.0 - x[:-1]) ** 2 + 5.0 * (x[1:] - x[:-1] ** 2) ** 2)

    metric = metrics.default_metric(jnp.ones(4))
    step = integrators.velocity_verlet(log_density, metric.kinetic_energy)

    def end(position, key):
        momentum = metric.sample_momentum(key, position)
        state = integrators.new_integrator_state(log_density, position, momentum)
        state, _ = jax.lax.scan(lambda s, _: (step(s, 0.01), None), state, None, length=10)
        return -state.logdensity + metric.kinetic_energy(state.momentum)

    return end, (0.5 * jnp.ones(4), jax.random.key(0))


@program("ott-jax")
def ott_sinkhorn():
    """The entropic cost of moving one point cloud to another: a while loop differentiated by the envelope theorem."""
    from ott.geometry import pointcloud
    from ott.tools import sinkhorn_divergence

    def cost(x, y):
        return sinkhorn_divergence.sinkhorn_divergence(pointcloud.PointCloud, x, y, epsilon=0.1)[0]

    x, y = jax.random.normal(jax.random.key(0), (2, 24, 2))
    return cost, (x, y + 0.5)


@program("pyhf")
def pyhf_likelihood():
    """A fit of signal plus background with correlated uncertainties, as in particle physics."""
    import pyhf

    pyhf.set_backend("jax", precision="64b")
    model = pyhf.simplemodels.uncorrelated_background(
        signal=[12.0, 11.0, 5.0], bkg=[50.0, 52.0, 40.0], bkg_uncertainty=[3.0, 7.0, 4.0]
    )
    data = jnp.array([51.0, 48.0, 45.0, *model.config.auxdata])
    return lambda params, data: -model.logpdf(params, data)[0], (jnp.array(model.config.suggested_init()), data)


NO_CHECKPOINT = "JAX differentiates no checkpoint around rules that leave out a tangent, and the report says so."


@program("celerite2", compare_policies=NO_CHECKPOINT)
def celerite2_likelihood():
    """A Gaussian process by the library's own primitives in C++, whose rules leave out some tangents."""
    jax.config.update("jax_enable_x64", True)
    import celerite2.jax as celerite2

    times = jnp.linspace(0.0, 5.0, 40)

    def loss(params, y):
        kernel = celerite2.terms.SHOTerm(sigma=params["sigma"], rho=params["rho"], tau=params["tau"])
        process = celerite2.GaussianProcess(kernel, mean=params["mean"])
        process.compute(times, diag=0.1, check_sorted=False)
        return -process.log_likelihood(y)

    params = {"sigma": 1.2, "rho": 1.1, "tau": 2.0, "mean": 0.1}
    return loss, (jax.tree.map(jnp.float64, params), jnp.sin(3.0 * times))


@program("blackjax", unbounded="kernel.step(")
def blackjax_no_u_turn():
    """A step of the no-U-turn sampler, whose trajectory ends when it turns back."""
    import blackjax

    def loss(scale, position, key):
        kernel = blackjax.nuts(lambda x: -jnp.sum((x / scale) ** 2), step_size=0.1, inverse_mass_matrix=jnp.ones(2))
        state, _ = kernel.step(key, kernel.init(position))
        return jnp.sum(state.position**2)

    return loss, (jnp.float32(1.5), jnp.ones(2), jax.random.key(0))
