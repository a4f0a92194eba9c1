"""Programs that compute through mutable references: made inside or closed over, in loops and branches."""

import jax
import jax.numpy as jnp
from jax import lax

X = jnp.linspace(0.3, 1.9, 4)
W = jnp.linspace(-0.9, 0.8, 48).reshape(3, 4, 4)
PROGRAMS = {}
NOT_BY_JAX = {"cond_in_scan"}
if jax.__version_info__ < (0, 11):
    NOT_BY_JAX |= {"overwritten_by_a_constant", "overwritten_by_constants_in_scan", "mapped_scan", "random_state"}
"""What JAX does not differentiate: a write in a cond in a scan; in JAX 0.10.2 a write of a constant."""


def program(f):
    """A function of `X` and `W` whose gradient is compared."""
    PROGRAMS[f.__name__] = f
    return f


@program
def read(x, w):
    r = jax.new_ref(x)
    return (jnp.sin(r[...]) * r[...]).sum()


@program
def written(x, w):
    r = jax.new_ref(jnp.zeros(4))
    r[...] = jnp.sin(x)
    return (r[...] ** 2).sum()


@program
def overwritten(x, w):
    r = jax.new_ref(x)
    y = r[...] * 3.0
    r[...] = jnp.exp(y)
    return (r[...] * y).sum()


@program
def overwritten_by_a_constant(x, w):
    r = jax.new_ref(x)
    y = jnp.sin(r[...])
    r[...] = jnp.ones(4)
    return (r[...] * y).sum()


@program
def overwritten_by_constants_in_scan(x, w):
    r = jax.new_ref(x)

    def layer(h, w):
        h = jnp.tanh(w @ h) * r[...]
        r[...] = jnp.ones(4)
        return h, None

    return lax.scan(layer, x, w)[0].sum() + r[...].sum()


@program
def written_in_a_jit_and_never_read(x, w):
    r = jax.new_ref(x)

    @jax.jit
    def inner(y):
        r[...] = jnp.sin(y)

    inner(x)
    return jnp.cos(x).sum()


@program
def swapped(x, w):
    r = jax.new_ref(x)
    old = jax.ref.swap(r, ..., jnp.cos(x))
    return (old * r[...]).sum()


@program
def added_to(x, w):
    r = jax.new_ref(jnp.ones(4))
    jax.ref.addupdate(r, ..., jnp.tanh(x))
    jax.ref.addupdate(r, ..., x * 2.0)
    return (r[...] ** 3).sum()


@program
def added_to_in_parts(x, w):
    r = jax.new_ref(jnp.zeros(4))
    for i in range(4):
        jax.ref.addupdate(r, i, jnp.sin(x[i]) * x[3 - i])
    return jnp.prod(r[...] + 1.0)


@program
def frozen(x, w):
    r = jax.new_ref(x)
    r[...] = r[...] * jnp.sin(r[...])
    return jax.freeze(r).sum()


@program
def frozen_unwritten(x, w):
    return jnp.sin(jax.freeze(jax.new_ref(jnp.exp(x)))).sum()


@program
def never_read(x, w):
    r = jax.new_ref(x)
    r[...] = jnp.sin(x)
    return jnp.cos(x).sum()


@program
def indexed(x, w):
    r = jax.new_ref(x)
    r[0] = r[1] * r[2]
    r[3] = jnp.sin(r[0])
    return (r[...] ** 2).sum()


@program
def sliced(x, w):
    r = jax.new_ref(w)
    r[0] = jnp.tanh(r[1] @ r[2])
    r[1:] = r[:2] * r[1:]
    return (r[0] * r[1]).sum() + r[2].sum()


@program
def indexed_by_arrays(x, w):
    r = jax.new_ref(w)
    rows = r[jnp.array([2, 0, 2])]
    r[jnp.array([0, 1])] = jnp.sin(rows[:2])
    return (r[...] * w).sum()


@program
def two_references(x, w):
    a, b = jax.new_ref(x), jax.new_ref(jnp.sin(x))
    a[...], b[...] = b[...] * 2.0, a[...] * b[...]
    return (a[...] * b[...]).sum()


@program
def branch_of_python(x, w):
    r = jax.new_ref(x)
    for i in range(3):
        r[...] = jnp.tanh(w[i] @ r[...])
    return r[...].sum()


@program
def weak_type(x, w):
    r = jax.new_ref(2.0)
    r[...] = jnp.sum(x) * r[...]
    return r[...] ** 2


@program
def in_jit(x, w):
    @jax.jit
    def inner(x):
        r = jax.new_ref(x)
        r[...] = jnp.sin(r[...]) * x
        return r[...]

    return inner(x).sum()


@program
def closed_over_by_jit(x, w):
    r = jax.new_ref(x)

    @jax.jit
    def inner(y):
        r[...] = jnp.sin(r[...]) * y
        return r[...] * y

    return (inner(x) + inner(x * 2.0) + r[...]).sum()


@program
def argument_of_jit(x, w):
    @jax.jit
    def inner(r, y):
        r[...] += jnp.tanh(y)
        return r[...] * y

    r = jax.new_ref(x)
    return (inner(r, x) + inner(r, x * 2.0)).sum()


@program
def read_only_in_jit(x, w):
    r = jax.new_ref(jnp.exp(x))
    return jax.jit(lambda y: jnp.sin(r[...]) * y)(x).sum()


@program
def closed_over_by_scan(x, w):
    h = jax.new_ref(x)

    def layer(_, w):
        h[...] = jnp.tanh(w @ h[...])
        return None, None

    lax.scan(layer, None, w)
    return h[...].sum()


@program
def made_in_scan(x, w):
    def layer(h, w):
        r = jax.new_ref(h)
        r[...] = jnp.tanh(w @ r[...])
        return r[...], None

    return lax.scan(layer, x, w)[0].sum()


@program
def read_only_in_scan(x, w):
    weights = jax.new_ref(w)
    return lax.fori_loop(0, 3, lambda i, h: jnp.tanh(weights[i] @ h), x).sum()


@program
def scanned_over(x, w):
    weights = jax.new_ref(w)

    def layer(h, weight):
        h = jnp.tanh(weight[...] @ h)
        weight[...] = weight[...] * h
        return h, None

    h, _ = lax.scan(layer, x, weights)
    return h.sum() + (weights[...] ** 2).sum()


@program
def accumulated_in_scan(x, w):
    total = jax.new_ref(jnp.zeros(4))

    def layer(h, w):
        h = jnp.tanh(w @ h)
        jax.ref.addupdate(total, ..., h * h)
        return h, None

    h, _ = lax.scan(layer, x, w)
    return (jax.freeze(total) * h).sum()


@program
def written_by_iteration(x, w):
    out = jax.new_ref(jnp.zeros((3, 4)))

    def layer(i, h):
        h = jnp.tanh(w[i] @ h)
        out[i] = h
        return h

    lax.fori_loop(0, 3, layer, x)
    return (jax.freeze(out) ** 2).sum()


@program
def carry_and_reference(x, w):
    r = jax.new_ref(x)

    def layer(h, w):
        h = jnp.sin(w @ (h * r[...]))
        r[...] = r[...] + h
        return h, r[...].sum()

    h, sums = lax.scan(layer, x, w)
    return h.sum() + (sums * r[...][:3]).sum()


@program
def reversed_scan(x, w):
    h = jax.new_ref(x)

    def layer(_, w):
        h[...] = jnp.tanh(w @ h[...])
        return None, h[...]

    _, ys = lax.scan(layer, None, w, reverse=True)
    return (ys * ys).sum()


@program
def scan_in_scan(x, w):
    h = jax.new_ref(x)

    def outer(_, w):
        def inner(_, row):
            h[...] = jnp.sin(h[...] * row)
            return None, None

        lax.scan(inner, None, w)
        return None, h[0]

    _, firsts = lax.scan(outer, None, w)
    return firsts.sum() + h[...].sum()


@program
def jit_in_scan(x, w):
    h = jax.new_ref(x)

    @jax.jit
    def layer(w):
        h[...] = jnp.tanh(w @ h[...])

    lax.scan(lambda _, w: (layer(w), None), None, w)
    return h[...].sum()


@program
def in_cond(x, w):
    r = jax.new_ref(x)

    def yes():
        r[...] = jnp.sin(r[...])

    def no():
        r[...] = jnp.cos(r[...]) * r[...]

    lax.cond(x[0] > 0, yes, no)
    return (r[...] * x).sum()


@program
def in_switch(x, w):
    r = jax.new_ref(x)
    branches = [lambda w: r[...] * w, lambda w: jnp.sin(r[...]) + w, lambda w: w]
    return lax.switch(1, branches, w[0]).sum() + lax.switch(0, branches, w[1]).sum()


@program
def cond_in_scan(x, w):
    h = jax.new_ref(x)

    def layer(i, w):
        def step():
            h[...] = jnp.tanh(w @ h[...])

        lax.cond(i % 2 == 0, step, lambda: None)
        return i + 1, None

    lax.scan(layer, 0, w)
    return h[...].sum()


@program
def mapped(x, w):
    def one(row):
        r = jax.new_ref(row)
        r[...] = jnp.sin(r[...]) * x
        r[0] = r[1] * 2.0
        return r[...].sum()

    return jax.vmap(one)(w[0]).sum()


@program
def mapped_scan(x, w):
    def one(x):
        h = jax.new_ref(x)

        def layer(_, w):
            h[...] = jnp.tanh(w @ h[...])
            return None, None

        lax.scan(layer, None, w)
        return h[...]

    return jax.vmap(one)(jnp.stack([x, 2.0 * x])).sum()


@program
def in_checkpoint(x, w):
    @jax.checkpoint
    def block(x):
        r = jax.new_ref(x)
        r[...] = jnp.sin(r[...]) * x
        return r[...] ** 2

    return block(x).sum()


@program
def checkpoint_in_scan(x, w):
    @jax.checkpoint
    def layer(h, w):
        r = jax.new_ref(h)
        r[...] = jnp.tanh(w @ r[...])
        return r[...] * h, None

    return lax.scan(layer, x, w)[0].sum()


@program
def custom_rule(x, w):
    @jax.custom_vjp
    def clipped(x):
        return jnp.sin(x)

    clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (jnp.clip(ct * jnp.cos(x), -0.5, 0.5),))
    r = jax.new_ref(x)
    r[...] = clipped(r[...] * 2.0)
    return (r[...] * x).sum()


@program
def relu_and_softmax(x, w):
    r = jax.new_ref(w @ x)
    r[...] = jax.nn.relu(r[...])
    r[0] = jax.nn.softmax(r[1])
    return jax.nn.logsumexp(r[...])


@program
def random_state(x, w):
    count = jax.new_ref(0)

    def layer(h, w):
        count[...] += 1
        keep = jax.random.bernoulli(jax.random.fold_in(jax.random.key(0), count[...]), 0.5, h.shape)
        return jnp.where(keep, jnp.tanh(w @ h), 0.0) + h, None

    return lax.scan(layer, x, w)[0].sum()


@program
def read_before_and_after(x, w):
    r = jax.new_ref(jnp.sin(x))
    first = r[...] * x
    jax.ref.addupdate(r, ..., first)
    second = r[...] * first
    r[...] = second
    return (jax.freeze(r) * first * second).sum()
