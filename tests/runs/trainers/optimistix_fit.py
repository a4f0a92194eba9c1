"""Least squares and BFGS, as in Optimistix's documentation."""

import jax.numpy as jnp
import optimistix as optx


def residual(p, args):
    x, y = args
    return p[0] * jnp.exp(-p[1] * x) - y


x = jnp.linspace(0, 2, 50)
y = 2 * jnp.exp(-1.5 * x)
sol = optx.least_squares(residual, optx.LevenbergMarquardt(rtol=1e-6, atol=1e-6), jnp.array([1.0, 1.0]), args=(x, y))
print([float(v).hex() for v in sol.value])


def f(p, _):
    return jnp.sum((p - 3.0) ** 4)


sol = optx.minimise(f, optx.BFGS(rtol=1e-5, atol=1e-5), jnp.zeros(3))
print(float(sol.value[0]).hex())
