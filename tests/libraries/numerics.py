"""Optimizers, quadrature, interpolation, groups, transforms on the sphere."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from registry import program


@program("jaxopt")
def jaxopt_ridge_by_implicit_differentiation():
    """The held-out error of a solution found by L-BFGS, of the regularization: by the implicit function theorem."""
    import jaxopt

    keys = jax.random.split(jax.random.key(0), 3)
    x, true = jax.random.normal(keys[0], (30, 5)), jax.random.normal(keys[1], (5,))
    y = x @ true + 0.1 * jax.random.normal(keys[2], (30,))

    def inner(w, log_l2, x, y):
        return jnp.mean((x @ w - y) ** 2) + jnp.exp(log_l2) * jnp.sum(w**2)

    def held_out(log_l2, x, y):
        solver = jaxopt.LBFGS(inner, maxiter=30, tol=1e-6, implicit_diff=True)
        w = solver.run(jnp.zeros(5), log_l2, x[:20], y[:20]).params
        return jnp.mean((x[20:] @ w - y[20:]) ** 2)

    return held_out, (jnp.float32(-3.0), x, y)


@program("jaxopt")
def jaxopt_projection():
    """Projected gradient onto the simplex, unrolled."""
    import jaxopt

    def loss(target):
        solver = jaxopt.ProjectedGradient(
            lambda w, t: jnp.sum((w - t) ** 2 + 0.1 * w**4), jaxopt.projection.projection_simplex,
            maxiter=8, implicit_diff=False, unroll=True, tol=0.0,
        )  # fmt: skip
        return jnp.sum(solver.run(jnp.ones(6) / 6, None, target).params ** 3)

    return loss, (jnp.linspace(-0.2, 0.9, 6),)


@program("jaxlie")
def jaxlie_pose_graph():
    """Poses in space that agree with relative measurements."""
    import jaxlie

    keys = jax.random.split(jax.random.key(0), 2)
    twists = 0.4 * jax.random.normal(keys[0], (6, 6))
    measured = 0.4 * jax.random.normal(keys[1], (5, 6))

    def loss(twists, measured):
        poses = jax.vmap(jaxlie.SE3.exp)(twists)
        wxyz = poses.wxyz_xyz
        error = lambda a, b, m: (jaxlie.SE3(a).inverse() @ jaxlie.SE3(b) @ jaxlie.SE3.exp(m).inverse()).log()
        return jnp.sum(jax.vmap(error)(wxyz[:-1], wxyz[1:], measured) ** 2)

    return loss, (twists, measured)


@program("interpax")
def interpax_cubic_spline():
    import interpax

    def loss(values, x):
        knots = jnp.linspace(0.0, 1.0, len(values))
        curve = interpax.interp1d(x, knots, values, method="cubic2")
        smooth = interpax.PchipInterpolator(knots, values, check=False)(x)
        plane = interpax.interp2d(x, x[::-1], knots, knots, values[:, None] * values, method="cubic")
        return jnp.sum(curve**2) + jnp.sum(smooth * plane)

    return loss, (jnp.sin(jnp.linspace(0.0, 5.0, 12)), jnp.linspace(0.05, 0.95, 30))


@program("quadax")
def quadax_adaptive_quadrature():
    """An integral by adaptive Gauss–Kronrod rules, and by Romberg's method, of a parameter of the integrand."""
    import quadax

    def loss(a):
        integrand = lambda t, a: jnp.exp(-a * t) * jnp.cos(3.0 * t)
        y, _ = quadax.quadgk(integrand, jnp.array([0.0, 2.0]), args=(a,), epsabs=1e-5, epsrel=1e-5)
        z, _ = quadax.romberg(integrand, jnp.array([0.0, 1.0]), args=(a,), epsabs=1e-4, epsrel=1e-4)
        return y**2 + z

    return loss, (jnp.float32(0.7),)


@program("s2fft")
def s2fft_spherical_harmonics():
    """The power of a field on the sphere, through its harmonic transform and back."""
    import s2fft

    L = 8

    def loss(field):
        harmonics = s2fft.forward_jax(field.astype(complex), L)
        smooth = s2fft.inverse_jax(harmonics * jnp.exp(-0.1 * jnp.arange(L))[:, None], L)
        return jnp.sum(jnp.abs(smooth) ** 2)

    return loss, (jax.random.normal(jax.random.key(0), (L, 2 * L - 1)),)


@program("jaxopt", unbounded="solver.run(")
def jaxopt_without_implicit_differentiation():
    """Gradient descent until it converges, neither unrolled nor differentiated implicitly."""
    import jaxopt

    def loss(target):
        solver = jaxopt.GradientDescent(
            lambda w, t: jnp.sum((w - t) ** 2 + 0.1 * w**4), maxiter=50, implicit_diff=False, jit=True, unroll=False
        )
        return jnp.sum(solver.run(jnp.ones(6), target).params ** 3)

    return loss, (jnp.linspace(-0.2, 0.9, 6),)


@program("matfree")
def matfree_log_determinant():
    """The log-determinant of a kernel matrix that is never formed: Lanczos in a loop with a rule of its own, for random
    vectors."""
    from matfree import decomp, funm, stochtrace

    x = jnp.linspace(0.0, 1.0, 24)
    integrand = funm.monte_carlo_funm_sym_logdet(decomp.tridiag_sym(6))
    estimate = stochtrace.estimator_monte_carlo(integrand, stochtrace.sampler_signs(jnp.ones_like(x), num=4))

    def loss(params, key):
        def matvec(v, params):
            kernel = jnp.exp(-(((x[:, None] - x) / params["scale"]) ** 2))
            return params["noise"] * v + kernel @ v

        return estimate(matvec, key, params)

    return loss, ({"scale": jnp.float32(0.3), "noise": jnp.float32(0.5)}, jax.random.key(0))
