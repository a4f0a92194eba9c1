"""Ten losses with loops, each with arguments for which everything is finite and with arguments for which it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import models
from benchmarks.models import Params, full, normal

Subject = tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]
"""A loss, arguments for which its gradient is finite, and arguments for which it is not."""


def layers() -> Subject:
    """A transformer as a scan over its layers; one scale in one layer is so large that a product overflows."""
    loss, (params, tokens) = models.scan_transformer(12)
    scale = params["layers"]["scale1"].at[6, 3].set(1e38)
    return loss, (params, tokens), ({**params, "layers": {**params["layers"], "scale1": scale}}, tokens)


def recurrent_loss(w: jax.Array, xs: jax.Array) -> jax.Array:
    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(h @ w + x)
        return h, jnp.sqrt(jnp.sum(h**2))

    return jnp.mean(lax.scan(step, jnp.zeros(w.shape[0]), xs)[1])


def recurrent() -> Subject:
    """One of 1,000 steps takes the norm of zeros."""
    w, xs = jnp.zeros((32, 32)), jnp.ones((1000, 32))
    return recurrent_loss, (w, xs), (w, xs.at[500].set(0.0))


def lstm() -> Subject:
    """An LSTM with two infinite weights."""
    loss, (params, xs, target) = models.lstm(2, width=32, length=100)
    broken = [{**params[0], "in": params[0]["in"].at[3, 3].set(jnp.inf).at[4, 3].set(-jnp.inf)}, params[1]]
    return loss, (params, xs, target), (broken, xs, target)


def rollout_loss(params: list[tuple[jax.Array, jax.Array]], y: jax.Array, target: jax.Array) -> jax.Array:
    def slope(y: jax.Array) -> jax.Array:
        h = y
        for w, b in params:
            h = jnp.tanh(h @ w + b)
        return h - 0.1 * y**3

    def step(y: jax.Array, _: Any) -> tuple[jax.Array, jax.Array]:
        dt = 0.01
        k1 = slope(y)
        k2 = slope(y + dt / 2 * k1)
        k3 = slope(y + dt / 2 * k2)
        k4 = slope(y + dt * k3)
        y = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y, y

    return jnp.mean((lax.scan(step, y, None, length=200)[1] - target) ** 2)


def rollout() -> Subject:
    """A differential equation solved by Runge-Kutta, which diverges."""
    params = models.mlp_params(3)
    y, target = full(0.5, 8, 32), full(0.0, 8, 32)
    return rollout_loss, (params, y, target), (params, y.at[3, 4].set(1e3), target)


def molecules_loss(spread: jax.Array, start: jax.Array) -> jax.Array:
    n = start.shape[0]
    apart = ~jnp.eye(n, dtype=bool)

    def energy(r: jax.Array) -> jax.Array:
        d = r[:, None] - r[None]
        square = jnp.sum(d**2, -1)
        distance = jnp.sqrt(jnp.where(apart, square, 1.0))
        attraction = (spread / distance) ** 6
        return jnp.sum(jnp.where(apart, attraction**2 - attraction, 0.0))

    def step(_: Any, s: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        r, v = s
        v = v - 0.0005 * jax.grad(energy)(r)
        r = r + 0.001 * v
        return r, v - 0.0005 * jax.grad(energy)(r)

    r, _ = lax.fori_loop(0, 50, step, (start, jnp.zeros_like(start)))
    return energy(r)


def molecules() -> Subject:
    """Particles that attract and repel each other in a fori_loop, with forces by `jax.grad`; two are at the same
    position."""
    grid = np.stack(np.meshgrid(*[np.arange(3.0)] * 3), -1).reshape(-1, 3).astype(np.float32) * 1.2
    start = jax.device_put(grid)
    spread = jax.device_put(np.float32(1.0))
    return molecules_loss, (spread, start), (spread, start.at[1].set(start[0]))


def inner_training_loss(params: Params, xs: jax.Array, ys: jax.Array) -> jax.Array:
    def predict(p: Params, x: jax.Array) -> jax.Array:
        return jax.nn.softmax(jnp.tanh(x @ p["up"]) @ p["down"])

    def likelihood(p: Params, x: jax.Array, y: jax.Array) -> jax.Array:
        return -jnp.mean(jnp.sum(y * jnp.log(predict(p, x)), -1))

    def task(total: jax.Array, data: Any) -> tuple[jax.Array, None]:
        x, y = data

        def inner(p: Params, _: Any) -> tuple[Params, None]:
            return jax.tree.map(lambda p, g: p - 0.1 * g, p, jax.grad(likelihood)(p, x, y)), None

        p, _ = lax.scan(inner, params, None, length=5)
        return total + likelihood(p, x, y), None

    return lax.scan(task, jnp.zeros(()), (xs, ys))[0]


def inner_training() -> Subject:
    """A scan over tasks, each trained in a scan; one prediction is 0, and its log is taken."""
    rng = np.random.default_rng(0)
    params = {"up": normal(rng, 16, 32), "down": normal(rng, 32, 8)}
    xs, ys = normal(rng, 20, 10, 16, scale=1.0), jnp.ones((20, 10, 8)) / 8
    return inner_training_loss, (params, xs, ys), ({**params, "down": params["down"].at[0].mul(1e4)}, xs, ys)


def bouncing_loss(speed: jax.Array, heights: jax.Array) -> jax.Array:
    def step(s: tuple[jax.Array, jax.Array], _: Any) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        y, v = s
        v = v - 0.01 * 9.81
        y = y + 0.01 * v

        def bounce(y: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
            return -y, 0.9 * jnp.sqrt(v**2 + 2 * 9.81 * y)

        y, v = lax.cond(jnp.any(y < 0), lambda y, v: bounce(y, v), lambda y, v: (y, v), y, v)
        return (y, v), jnp.sum(y)

    return jnp.sum(lax.scan(step, (heights, speed), None, length=500)[1] ** 2)


def bouncing() -> Subject:
    """Balls with a cond at each step; one bounces with less energy than it has, so the root of a negative number is
    taken."""
    return bouncing_loss, (jnp.zeros(4), jnp.full(4, 2.0)), (jnp.zeros(4), jnp.array([2.0, 2.0, 2.0, -1.0]))


def filter_loss(params: Params, ys: jax.Array) -> jax.Array:
    n = params["move"].shape[0]

    def filtered(ys: jax.Array) -> jax.Array:
        def step(s: tuple[jax.Array, jax.Array], y: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            m, c = s
            m, c = params["move"] @ m, params["move"] @ c @ params["move"].T + params["noise"]
            spread = params["see"] @ c @ params["see"].T + params["error"] * jnp.eye(y.shape[0])
            root = jnp.linalg.cholesky(spread)
            gain = jax.scipy.linalg.cho_solve((root, True), params["see"] @ c).T
            error = y - params["see"] @ m
            white = jax.scipy.linalg.solve_triangular(root, error, lower=True)
            likely = -0.5 * jnp.sum(white**2) - jnp.sum(jnp.log(jnp.diag(root)))
            return (m + gain @ error, c - gain @ params["see"] @ c), likely

        return jnp.sum(lax.scan(step, (jnp.zeros(n), jnp.eye(n)), ys)[1])

    return -jnp.mean(jax.vmap(filtered)(ys))


def kalman() -> Subject:
    """A Kalman filter, a scan under `vmap`; one covariance is not positive definite."""
    rng = np.random.default_rng(0)
    params = {
        "move": jnp.eye(6) * 0.9 + normal(rng, 6, 6, scale=0.05),
        "see": normal(rng, 3, 6, scale=1.0),
        "noise": jnp.eye(6) * 0.1,
        "error": full(0.5),
    }
    ys = normal(rng, 8, 60, 3, scale=1.0)
    return filter_loss, (params, ys), ({**params, "error": full(-5.0)}, ys)


def multiply(a: jax.Array, b: jax.Array) -> jax.Array:
    """The product of two quaternions."""
    w, v = a[0], a[1:]
    return jnp.concatenate([(w * b[0] - v @ b[1:])[None], w * b[1:] + b[0] * v + jnp.cross(v, b[1:])])


def turned(q: jax.Array, x: jax.Array) -> jax.Array:
    return x + 2.0 * jnp.cross(q[1:], jnp.cross(q[1:], x) + q[0] * x)


def bodies_loss(policy: list[tuple[jax.Array, jax.Array]], turns: jax.Array, places: jax.Array) -> jax.Array:
    """A chain of rigid bodies with joints and a floor, controlled by a small network."""
    n = places.shape[0]

    def act(state: jax.Array) -> jax.Array:
        for w, b in policy:
            state = jnp.tanh(state @ w + b)
        return state

    def step(s: Any, _: Any) -> Any:
        q, x, v, w = s
        torque = act(jnp.concatenate([q.ravel(), x.ravel(), v.ravel(), w.ravel()])).reshape(n, 3)
        forces, torques = [jnp.array([0.0, 0.0, -9.81])] * n, list(torque)
        for i in range(n - 1):  # joints
            below, above = turned(q[i], jnp.array([0.0, 0.0, 0.5])), turned(q[i + 1], jnp.array([0.0, 0.0, -0.5]))
            pull = 50.0 * (x[i + 1] + above - x[i] - below) + (v[i + 1] - v[i])
            forces[i], forces[i + 1] = forces[i] + pull, forces[i + 1] - pull
            torques[i] = torques[i] + jnp.cross(below, pull)
            torques[i + 1] = torques[i + 1] - jnp.cross(above, pull)
        for i in range(n):  # the floor
            foot = x[i] + turned(q[i], jnp.array([0.0, 0.0, -0.5]))
            depth = jnp.maximum(-foot[2], 0.0)
            slip = v[i] * jnp.array([1.0, 1.0, 0.0])
            friction = -slip / jnp.sqrt(slip @ slip + 1e-3) * depth
            push = jnp.array([0.0, 0.0, 1.0]) * depth * 100.0 + friction * 10.0
            forces[i] = forces[i] + push
            torques[i] = torques[i] + jnp.cross(foot - x[i], push)
        dt = 0.01
        v = 0.99 * (v + dt * jnp.stack(forces))
        w = 0.99 * (w + dt * jnp.stack(torques))
        x = x + dt * v
        spin = [multiply(jnp.concatenate([jnp.zeros(1), w[i]]), q[i]) for i in range(n)]
        q = q + 0.5 * dt * jnp.stack(spin)
        q = q / jnp.sqrt(jnp.sum(q**2, -1, keepdims=True))
        return (q, x, v, w), jnp.sum(x[:, 2])

    still = jnp.zeros_like(places)
    return -jnp.mean(lax.scan(step, (turns, places, still, still), None, length=50)[1])


def bodies() -> Subject:
    """A rollout of a chain of rigid bodies; one starts with a zero quaternion."""
    rng, n = np.random.default_rng(0), 6
    size = n * 13
    policy = [(normal(rng, size, 32), full(0.0, 32)), (normal(rng, 32, 3 * n), full(0.0, 3 * n))]
    turns = jnp.tile(jnp.array([1.0, 0.0, 0.0, 0.0]), (n, 1))
    places = jnp.arange(n)[:, None] * jnp.array([0.0, 0.0, 1.0]) + 0.6
    return bodies_loss, (policy, turns, places), (policy, turns.at[2].set(0.0), places)


def until_still(step: Callable[[jax.Array], jax.Array], start: jax.Array) -> jax.Array:
    far = lambda s: (jnp.max(jnp.abs(s[0] - s[1])) > 1e-5) & (s[2] < 200)
    return lax.while_loop(far, lambda s: (step(s[0]), s[0], s[2] + 1), (step(start), start, 0))[0]


def settle(params: Params, x: jax.Array, z: jax.Array) -> jax.Array:
    z = jnp.tanh(z @ params["w"] + x @ params["u"])
    return z / jnp.sqrt(jnp.mean(z**2, -1, keepdims=True) + params["eps"])


@jax.custom_vjp
def settled(params: Params, x: jax.Array) -> jax.Array:
    """The fixed point of `settle`; its derivative is computed in another loop."""
    return until_still(lambda z: settle(params, x, z), jnp.zeros((x.shape[0], params["w"].shape[0])))


def settled_forward(params: Params, x: jax.Array) -> Any:
    z = settled(params, x)
    return z, (params, x, z)


def settled_backward(saved: Any, ct: jax.Array) -> Any:
    params, x, z = saved
    _, pull = jax.vjp(settle, params, x, z)
    return pull(until_still(lambda w: ct + pull(w)[2], ct))[:2]


settled.defvjp(settled_forward, settled_backward)


def equilibrium_loss(params: Params, x: jax.Array) -> jax.Array:
    return jnp.mean(settled(params, x) ** 4)


def equilibrium() -> Subject:
    """A layer applied until it converges, in a while loop with a custom rule; it divides zeros by their norm."""
    rng = np.random.default_rng(0)
    params = {"w": normal(rng, 32, 32, scale=0.05), "u": normal(rng, 16, 32), "eps": full(1.0)}
    x = normal(rng, 8, 16, scale=1.0)
    return equilibrium_loss, (params, x), ({**params, "eps": full(0.0)}, x.at[3].set(0.0))


PROGRAMS: dict[str, Callable[[], Subject]] = {
    "scan over layers": layers, "recurrent network": recurrent, "LSTM": lstm, "ODE rollout": rollout,
    "molecules, fori_loop": molecules, "scan of training in a scan": inner_training, "cond in a scan": bouncing,
    "scan under vmap": kalman, "rigid bodies": bodies, "while loop, custom rule": equilibrium,
}  # fmt: skip
