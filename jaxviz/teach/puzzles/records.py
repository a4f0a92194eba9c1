"""The best answers known to the puzzles, where they differ from the known answers beside each puzzle.

Each stands alone: it is shown with what it needs from this file.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

# --- Strassen: seven products in place of eight -----------------------------------------------------------------------


def _strassen(a, b, levels):
    if levels == 0 or any(n % 2 for n in (*a.shape, *b.shape)):
        return a @ b
    quarters = lambda m: [q for rows in jnp.split(m, 2) for q in jnp.split(rows, 2, 1)]
    (a, b, c, d), (e, f, g, h) = quarters(a), quarters(b)
    left = jnp.stack([a + d, c + d, a, d, a + b, c - a, b - d])
    right = jnp.stack([e + h, e, f - h, g - e, h, e + f, g + h])
    p, q, r, s, t, u, v = jax.vmap(lambda x, y: _strassen(x, y, levels - 1))(left, right)
    return jnp.block([[p + s - t + v, r + t], [q + s, p - q + r + u]])


def _loss_of(logits, labels):
    return jnp.mean(jax.nn.logsumexp(logits, -1) - logits[jnp.arange(len(labels)), labels])


@jax.custom_vjp
def _recomputed_loss(w, x, labels):
    return _loss_of(_strassen(x, w, 3), labels)


def _recomputed_loss_backward(args, ct):
    w, x, labels = args
    of_logits = jax.grad(_loss_of)(_strassen(x, w, 3), labels)
    return ct * _strassen(x.T, of_logits, 3), None, None


_recomputed_loss.defvjp(lambda *args: (_recomputed_loss(*args), args), _recomputed_loss_backward)

softmax = _recomputed_loss


@jax.custom_vjp
def _recomputed_tanh(w, x):
    return jnp.tanh(_strassen(x.astype(jnp.float32), w.astype(jnp.float32), 3)).astype(x.dtype)


def _recomputed_tanh_backward(args, ct):
    w, x = (a.astype(jnp.float32) for a in args)
    slope = 1 - jnp.tanh(_strassen(x, w, 3)) ** 2
    return _strassen(x.T, ct * slope, 3).astype(ct.dtype), None


_recomputed_tanh.defvjp(lambda w, x: (_recomputed_tanh(w, x), (w, x)), _recomputed_tanh_backward)

width = _recomputed_tanh


@jax.custom_vjp
def _product(a, b):
    return _strassen(a, b, 2)


_product.defvjp(
    lambda a, b: (_strassen(a, b, 2), (a, b)),
    lambda factors, ct: (_strassen(ct, factors[1].T, 2), _strassen(factors[0].T, ct, 2)),
)


def body(w, h):
    step = lambda h, _: (h + jnp.sin(_product(jnp.tanh(h), w)), None)
    whole = jax.checkpoint(lambda rows: jax.lax.scan(step, rows, length=16)[0])
    return jax.lax.map(whole, h.reshape(-1, min(32, len(h)), h.shape[1])).reshape(h.shape)


def branches(w, xs):
    return _strassen(jnp.where(xs[:, :1] > 0, jnp.sin(xs), jnp.tanh(xs)), w.T, 5)


# --- a derivative that is computed in the forward pass, or in narrow numbers ------------------------------------------


def _attracted(x, y, mass):
    chunks = [a.reshape(-1, 128 if len(a) % 128 == 0 else 1) for a in (y, mass)]

    def add(sums, chunk):
        d = sums[0] - chunk[0]
        pull = jnp.exp(-d * d) * chunk[1]
        return (sums[0], sums[1] + jnp.sum(pull), sums[2] - 2 * jnp.vdot(d, pull)), None

    return jax.lax.map(lambda one: jax.lax.scan(add, (one, 0.0, 0.0), chunks)[0][1:], x)


@jax.custom_vjp
def pairs(x, y, mass):
    return _attracted(x, y, mass)[0]


pairs.defvjp(_attracted, lambda slope, ct: (ct * slope, None, None))


def _in_16_bits(h):
    h = jnp.arcsinh(h)
    unit = jnp.max(jnp.abs(h)) / 32_767
    return jnp.round(h / unit).astype(jnp.int16), unit


@jax.custom_vjp
def _expanded(widen, narrow, x):
    return jax.nn.gelu(x @ widen) @ narrow


def _expanded_forward(widen, narrow, x):
    h = x @ widen
    return jax.nn.gelu(h) @ narrow, (widen, narrow, x, _in_16_bits(h))


def _expanded_backward(saved, ct):
    widen, narrow, x, (bits, unit) = saved
    y, of_gelu = jax.vjp(jax.nn.gelu, jnp.sinh(bits * unit))
    (of_h,) = of_gelu(ct @ narrow.T)
    return x.T @ of_h, y.T @ ct, of_h @ widen.T


_expanded.defvjp(_expanded_forward, _expanded_backward)


def call(p, x):
    return x + _expanded(p["widen"], p["narrow"], x)


# --- from an equation, or the other way round -------------------------------------------------------------------------


@jax.checkpoint
def steps(a):
    return 2 / 3**0.5 * jnp.sinh(jnp.arcsinh(1.5 * 3**0.5 * a) / 3)


def _step(q, p):
    p = p - 0.05 * q * jnp.exp(-q * q)
    return q + 0.05 * p, p


def _all_steps(state):
    return jax.lax.scan(lambda state, _: (_step(*state), None), state, length=400)[0]


def _all_steps_back(state):
    def back(state, _):
        (q, p), ct = state
        q = q - 0.05 * p
        p = p + 0.05 * q * jnp.exp(-q * q)
        return ((q, p), jax.vjp(_step, q, p)[1](ct)), None

    return jax.lax.scan(back, state, length=400)[0][1]


@jax.custom_vjp
def loops(q, p):
    return jax.lax.map(_all_steps, (q, p), batch_size=10)


loops.defvjp(
    lambda q, p: (loops(q, p),) * 2,
    lambda end, ct: jax.lax.map(_all_steps_back, (end, ct), batch_size=10),
)


def hessian(w, x, v):
    slope = 1 - jnp.tanh(w @ x) ** 2
    return (slope * (6 * slope - 4) * (w @ v)) @ w


# --- rules that compute what is needed once ---------------------------------------------------------------------------


@jax.custom_vjp
def where(x):
    return _where_forward(x)[0]


def _where_forward(x):
    x = x + 1e-30
    y = jnp.sin(x) / x
    return y, (jnp.cos(x) - y) / x


where.defvjp(_where_forward, lambda slope, ct: (ct * slope,))


@jax.custom_vjp
def norm(a, b):
    return _norm_forward(a, b)[0]


def _norm_forward(a, b):
    d = a - b
    length = jnp.sqrt(jnp.sum(d * d, -1))
    return length, (d, length)


def _norm_backward(saved, ct):
    d, length = saved
    of_a = (ct / (length + 1e-30))[:, None] * d
    return of_a, -of_a


norm.defvjp(_norm_forward, _norm_backward)


@jax.custom_vjp
def entropy(logits, mask):
    return _entropy_forward(logits, mask)[0]


def _entropy_forward(logits, mask):
    z = jnp.where(mask, logits, -1e9)
    z = z - jnp.max(z, -1, keepdims=True)
    e = jnp.exp(z)
    total = jnp.sum(e, -1)
    mean = jnp.sum(e * z, -1) / total
    return jnp.log(total) - mean, (z, e, total, mean)


def _entropy_backward(saved, ct):
    z, e, total, mean = saved
    return (-ct / total)[:, None] * (e * (z - mean[:, None])), None


entropy.defvjp(_entropy_forward, _entropy_backward)
