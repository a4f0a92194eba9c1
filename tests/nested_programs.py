"""Nested programs, added to the shared table: control flow, checkpoint, custom rules, in each other."""

from __future__ import annotations

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from programs import DEVICE_TABLE, TABLE, M, X, arange, case

# --- scan -------------------------------------------------------------------------------------------------------------

W1, W2 = arange(3, 3) * 0.3, arange(3, 3) * 0.2


@case(W1, X, M)
def scan_rnn(w, h, xs):
    def cell(h, x):
        h = jnp.tanh(w @ h + x)
        return h, h * 2.0

    return lax.scan(cell, h, xs)


@case(W1, X, M)
def scan_reverse(w, h, xs):
    return lax.scan(lambda h, x: (jnp.sin(w @ h) * x, x), h, xs, reverse=True)


@case(X, M)
def scan_unrolled(h, xs):
    return lax.scan(lambda h, x: (jnp.sin(h) * x, h.sum()), h, xs, unroll=2)


@case(X, arange(0, 3))
def scan_of_length_zero(h, xs):
    return lax.scan(lambda h, x: (jnp.sin(h) * x, h.sum()), h, xs)


@case(W1, X)
def scan_without_xs(w, h):
    return lax.scan(lambda h, _: (jnp.sin(w @ h), None), h, None, length=5)[0]


@case(X, M)
def scan_carry_starts_without_tangent(w, xs):
    def step(carry, x):
        i, a, b = carry
        return (i + 1, a + jnp.sin(x * w).sum(), b * 2.0 + 1.0), a * i

    return lax.scan(step, (0, 0.0, jnp.ones(2)), xs)


@case(X, X, M)
def scan_with_loop_invariants(w, c, xs):
    def step(h, x):
        gain = jnp.exp(w) * jnp.sin(c)  # the same in each iteration
        return jnp.tanh(h * gain + x), jnp.dot(gain, h)

    return lax.scan(step, c, xs)


@case(X, M)
def scan_with_closed_over_arrays(h, xs):
    def step(h, x):
        return h * jnp.sin(DEVICE_TABLE) + x * TABLE, h[0]

    return lax.scan(step, h, xs)


@case(M)
def scan_of_ys_only(xs):
    return lax.map(lambda x: jnp.sin(x) * x.sum(), xs)


@case(M)
def scan_with_unused_results(xs):
    (a, _), (ys, _) = lax.scan(lambda c, x: ((c[0] + x, jnp.sin(c[1])), (x * c[0], c[1])), (X, X), xs)
    return a.sum() + ys.sum()


@case(X)
def scan_results_that_are_residuals(h):
    def step(h, _):
        y = jnp.sin(h)
        return y * y, y

    return lax.scan(step, h, None, length=3)


@case(X, M)
def scan_pytrees(h, xs):
    def step(c, x):
        return {"a": jnp.cos(c["a"]) * x["u"], "n": c["n"] + 1}, (c["a"], x["v"] * c["a"])

    return lax.scan(step, {"a": h, "n": 0}, {"u": xs, "v": xs * 2.0})


@case(W1, X, M)
def scan_in_scan(w, h, xs):
    def inner(h, x):
        return jnp.tanh(w @ h) * x, h

    def outer(h, x):
        h, ys = lax.scan(inner, h, jnp.stack([x, x * 2.0]))
        return h + x, ys.sum(0)

    return lax.scan(outer, h, xs)


@case(X)
def fori_static(x):
    return lax.fori_loop(0, 4, lambda i, x: jnp.sin(x) * (i + 1), x)


@case(M)
def associative(x):
    return lax.associative_scan(lambda a, b: a * b + jnp.sin(a), x)


@case(M)
def mapped_in_batches(x):
    return lax.map(lambda row: jnp.tanh(row).sum() * row, x, batch_size=2)


@case(M)
def cumulative(x):
    return lax.cumlogsumexp(x, axis=0).sum() + lax.cumprod(x, axis=1).sum() + lax.cumsum(x, axis=0, reverse=True).sum()


# --- cond -------------------------------------------------------------------------------------------------------------


@case(X, jnp.int32(1))
def cond_branches_differ(x, i):
    return lax.cond(i > 0, lambda x: jnp.sin(x) * x, lambda x: jnp.exp(jnp.outer(x, x)).sum() * x, x)


@case(X, X)
def cond_with_one_branch_constant(x, y):
    return lax.cond(x[0] > 0.5, lambda: x * 2.0, lambda: jnp.ones(3)), lax.cond(y[0] > 9, lambda: 1.0, lambda: 2.0)


@case(X, jnp.int32(2))
def switch_of_four(x, i):
    branches = [
        lambda x: x,
        lambda x: jnp.sin(x) * 2.0,
        lambda x: jnp.exp(x) * jnp.tanh(x),
        lambda x: jnp.sqrt(jnp.outer(x, x) + 1.0).sum(0) * jnp.int32(3),
    ]
    return lax.switch(i, branches, x)


@case(X, X, jnp.int32(0))
def cond_shares_residual_types(x, y, i):
    return lax.switch(i, [lambda a, b: a * b, lambda a, b: jnp.sin(a) * jnp.cos(b), lambda a, b: a], x, y)


@case(X)
def cond_in_cond(x):
    def inner(x):
        return lax.cond(x.sum() > 2.0, jnp.sin, lambda x: x * x * x, x)

    return lax.cond(x[0] > 0.1, inner, lambda x: x, x)


@case(X, M)
def cond_in_scan(h, xs):
    def step(h, x):
        h = lax.cond(x[0] > 0.9, lambda h: jnp.sin(h) * x, lambda h: jnp.exp(h * 0.1), h)
        return h, h.sum()

    return lax.scan(step, h, xs)


@case(X, M)
def scan_in_cond(h, xs):
    return lax.cond(
        h[0] > 0.2, lambda h: lax.scan(lambda h, x: (jnp.tanh(h * x), h), h, xs), lambda h: (h * 2.0, xs * h), h
    )


@case(X, jnp.int32(1))
def cond_of_integers_too(x, i):
    return lax.cond(i > 0, lambda x, i: (jnp.sin(x), i * 2), lambda x, i: (x * x, i + 1), x, i)


# --- while ------------------------------------------------------------------------------------------------------------


@case(X, jnp.int32(3))
def while_beside(x, n):
    """A loop that no tangent enters."""
    k = lax.while_loop(lambda k: k < n * 2, lambda k: k + 1, jnp.int32(0))
    return jnp.sin(x) * k


@case(X)
def while_in_scan_without_tangent(x):
    def step(h, i):
        k = lax.fori_loop(0, i, lambda j, s: s + j, 0)
        return jnp.sin(h) * k, h

    return lax.scan(step, x, jnp.arange(3))


# --- deep nestings ----------------------------------------------------------------------------------------------------


@case(W1, X, M)
def four_deep(w, h, xs):
    @jax.jit
    def leaf(h, x):
        return lax.cond(h.sum() > 0.0, lambda h: jnp.tanh(w @ h) * x, lambda h: h * x, h)

    def inner(h, x):
        return lax.cond(x[0] > 0.4, lambda h: leaf(h, x), lambda h: h + jnp.sin(x), h), h[0]

    def outer(h, x):
        h, ys = lax.scan(inner, h, jnp.stack([x, x * 0.5]))
        return h, ys.sum()

    return lax.cond(w[0, 0] < 9.0, lambda h: lax.scan(outer, h, xs), lambda h: (h, xs[:, 0]), h)


@case(W1, X, M)
def jit_in_scan_in_jit(w, h, xs):
    @jax.jit
    def cell(h, x):
        y = jnp.tanh(w @ h + x)
        return y, y * jnp.sin(h)

    return jax.jit(lambda h: lax.scan(cell, h, xs))(h)


# --- checkpoint -------------------------------------------------------------------------------------------------------


def block(w1, w2, x):
    h = checkpoint_name(jnp.sin(w1 @ x), "hidden")
    y = checkpoint_name(jnp.tanh(w2 @ h), "output")
    return y * jnp.exp(x)


@case(W1, W2, X)
def remat(w1, w2, x):
    return jax.checkpoint(block)(w1, w2, jax.checkpoint(block)(w1, w2, x)).sum()


POLICIES = {
    "everything_saveable": jax.checkpoint_policies.everything_saveable,
    "nothing_saveable": jax.checkpoint_policies.nothing_saveable,
    "dots_saveable": jax.checkpoint_policies.dots_saveable,
    "dots_with_no_batch_dims_saveable": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "save_hidden": jax.checkpoint_policies.save_only_these_names("hidden"),
    "save_any_but_hidden": jax.checkpoint_policies.save_any_names_but_these("hidden"),
    "save_anything_except_output": jax.checkpoint_policies.save_anything_except_these_names("output"),
    "both": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.save_only_these_names("hidden")
    ),
    "offload_names": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["output"], names_which_can_be_offloaded=["hidden"],
        offload_src="device", offload_dst="pinned_host",
    ),
    "offload_dots": jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
}  # fmt: skip


def _with_policy(name, policy):
    def program(w1, w2, x):
        return jax.checkpoint(block, policy=policy)(w1, w2, x).sum()

    program.__name__ = f"remat_{name}"
    case(W1, W2, X)(program)


for _name, _policy in POLICIES.items():
    _with_policy(_name, _policy)


@case(W1, W2, X)
def remat_static_argument(w1, w2, x):
    @partial(jax.checkpoint, static_argnums=(2,), prevent_cse=False)
    def f(w, x, times):
        for _ in range(times):
            x = jnp.sin(w @ x)
        return x

    return f(w2, f(w1, x, 2), 1)


@case(W1, X)
def remat_in_remat(w, x):
    inner = jax.checkpoint(lambda x: jnp.sin(w @ x) * x)
    return jax.checkpoint(lambda x: jnp.exp(inner(inner(x))) * 2.0)(x)


@case(W1, X, M)
def remat_in_scan(w, h, xs):
    @jax.checkpoint
    def cell(h, x):
        return jnp.tanh(w @ h + x) * jnp.sin(h), jnp.exp(h)

    return lax.scan(cell, h, xs)


@case(W1, X, M)
def scan_in_remat(w, h, xs):
    @partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def f(h, xs):
        def cell(h, x):
            return jnp.tanh(w @ h + x) * jnp.sin(jnp.cos(w[0])), jnp.exp(h)

        return lax.scan(cell, h, xs)

    return f(h, xs)


@case(X, jnp.int32(1))
def cond_in_remat(x, i):
    return jax.checkpoint(lambda x: lax.cond(i > 0, lambda x: jnp.sin(x) * x, lambda x: jnp.exp(x) * 2.0, x))(x)


@case(X, jnp.int32(1))
def cond_in_saving_remat(x, i):
    policy = jax.checkpoint_policies.everything_saveable
    return jax.checkpoint(
        lambda x: lax.cond(i > 0, lambda x: jnp.sin(x) * x, lambda x: jnp.exp(jnp.outer(x, x)).sum(0), x), policy=policy
    )(x)


@case(X, jnp.int32(1))
def remat_in_cond(x, i):
    return lax.cond(i > 0, jax.checkpoint(lambda x: jnp.sin(jnp.sin(x))), lambda x: x * x, x)


@case(W1, X)
def remat_of_jit(w, x):
    return jax.checkpoint(jax.jit(lambda x: jnp.sin(jnp.tanh(w @ x)) * x), policy=POLICIES["dots_saveable"])(x)


@case(W1, X)
def jit_of_remat(w, x):
    return jax.jit(jax.checkpoint(lambda x: jnp.sin(jnp.tanh(w @ x)) * x))(x)


@case(X, jnp.int32(3))
def while_in_remat(x, n):
    def f(x):
        k = lax.while_loop(lambda k: k[0] < n, lambda k: (k[0] + 1, k[1] * 1.5), (0, 1.0))[1]
        return jnp.sin(x * k) * x

    return jax.checkpoint(f)(x)


@case(M)
def remat_of_vmap(x):
    return jax.checkpoint(jax.vmap(lambda row: jnp.sin(row).sum() * row))(x)


@case(M)
def vmap_of_remat(x):
    return jax.vmap(jax.checkpoint(lambda row: jnp.sin(jnp.cos(row)).sum() * row))(x)


@case(X)
def grad_of_remat_inside(x):
    return jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum())(x)


@case(W1, X)
def remat_closes_over(w, x):
    y = jnp.sin(x)
    return jax.checkpoint(lambda h: jnp.tanh(w @ h) * y * TABLE * DEVICE_TABLE)(x)


# --- custom rules -----------------------------------------------------------------------------------------------------


@jax.custom_jvp
def log1pexp(x):
    return jnp.log(1.0 + jnp.exp(x))


@log1pexp.defjvp
def log1pexp_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return log1pexp(x), (1.0 - 1.0 / (1.0 + jnp.exp(x))) * t


@case(X)
def custom_jvp(x):
    return log1pexp(jnp.sin(x)) * 2.0


@jax.custom_jvp
def weighted(x, y):
    return jnp.sin(x) * y


weighted.defjvps(lambda t, out, x, y: jnp.cos(x) * t * y, None)


@case(X, arange(3) * 2.0)
def custom_jvp_by_argument(x, y):
    return weighted(x, y)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def applied(f, x):
    return f(x) * x


@applied.defjvp
def applied_jvp(f, primals, tangents):
    (x,), (t,) = primals, tangents
    return f(x) * x, f(x) * t


@case(X)
def custom_jvp_nondiff(x):
    return applied(jnp.tanh, x)


@jax.custom_jvp
def symbolic(x, y):
    return x * y


def symbolic_rule(primals, tangents):
    (x, y), (s, t) = primals, tangents
    out = x * y
    terms = [d for d in (s, t) if type(d) is not jax.custom_derivatives.SymbolicZero]
    return out, sum((d * 2.0 for d in terms[1:]), terms[0] * 2.0)


symbolic.defjvp(symbolic_rule, symbolic_zeros=True)


@case(X)
def custom_jvp_symbolic_zeros(x):
    return symbolic(x, jnp.ones(3))


@case(X, M)
def custom_jvp_in_scan(h, xs):
    return lax.scan(lambda h, x: (log1pexp(h) * x, jax.nn.relu(h)), h, xs)


@case(X)
def custom_jvp_in_remat(x):
    return jax.checkpoint(lambda x: log1pexp(jnp.sin(x)) * jax.nn.silu(x))(x)


@case(X)
def custom_jvp_in_cond(x):
    return lax.cond(x[0] > 0.1, log1pexp, jax.nn.relu, x)


@jax.custom_vjp
def halved(x, lo):
    return jnp.sin(x) * lo


halved.defvjp(lambda x, lo: (jnp.sin(x) * lo, (jnp.cos(x), x, lo)), lambda res, ct: (ct * res[0] * 0.5, None))


@case(X, X, forward=False)
def custom_vjp(x, lo):
    return halved(x * 2.0, lo) * x


@partial(jax.custom_vjp, nondiff_argnums=(0, 2))
def scaled(scale, x, times):
    return x * scale * times


scaled.defvjp(lambda s, x, n: (x * s * n, x), lambda s, n, x, ct: (ct * s * n + 0.0 * x,))


@case(X, forward=False)
def custom_vjp_nondiff(x):
    return scaled(3.0, jnp.sin(x), 2)


@jax.custom_vjp
def tree_function(p):
    return {"y": p["a"] * p["b"], "n": p["n"]}


tree_function.defvjp(
    lambda p: ({"y": p["a"] * p["b"], "n": p["n"]}, p),
    lambda p, ct: ({"a": ct["y"] * p["b"], "b": ct["y"] * p["a"], "n": np.zeros((), jax.dtypes.float0)},),
)


@case(X, jnp.int32(3), forward=False)
def custom_vjp_pytrees(x, n):
    out = tree_function({"a": x, "b": jnp.cos(x), "n": n})
    return out["y"] * out["n"]


@jax.custom_vjp
def symbolic_vjp(x, y):
    return x * y, x + y


def symbolic_fwd(x, y):
    out = x.value * y.value, x.value + y.value
    return out, (x.value if y.perturbed else None, y.value if x.perturbed else None)


def symbolic_bwd(res, cts):
    x, y = res
    ct = cts[0]
    zero = type(ct) is jax.custom_derivatives.SymbolicZero
    return (None if y is None or zero else y * ct, None if x is None or zero else x * ct)


symbolic_vjp.defvjp(symbolic_fwd, symbolic_bwd, symbolic_zeros=True)


@case(X, X, forward=False)
def custom_vjp_symbolic_zeros(x, y):
    return symbolic_vjp(x, y)[0] + symbolic_vjp(x, jnp.ones(3))[0] + symbolic_vjp(x, y)[1]


@case(X, M, forward=False)
def custom_vjp_in_scan(h, xs):
    return lax.scan(lambda h, x: (halved(h, x), h), h, xs)


@case(X, forward=False)
def custom_vjp_in_remat(x):
    return jax.checkpoint(lambda x: halved(jnp.sin(x), x) * x)(x)


@case(X, forward=False)
def custom_vjp_in_saving_remat(x):
    return jax.checkpoint(lambda x: halved(jnp.sin(x), x) * x, policy=POLICIES["everything_saveable"])(x)


@case(X, forward=False)
def custom_vjp_in_cond(x):
    return lax.cond(x[0] > 0.1, lambda x: halved(x, x), lambda x: x * x, x)


@case(X, forward=False)
def custom_vjp_in_jit(x):
    return jax.jit(lambda x: halved(jnp.sin(x), x) * 2.0)(x)


@jax.custom_gradient
def tripled(x):
    y = jnp.sin(x)
    return y, lambda ct: ct * 3.0 * jnp.cos(x) * y


@case(X, forward=False)
def custom_gradient(x):
    return tripled(x * x)


@jax.custom_vjp
def optimized(x):
    return jnp.sin(x)


optimized.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda c, ct: (c * ct,), optimize_remat=True)


@case(X, forward=False)
def custom_vjp_optimize_remat(x):
    return optimized(x) * x


@case(X, forward=False)
def custom_vjp_optimize_remat_in_remat(x):
    return jax.checkpoint(lambda x: optimized(jnp.sin(x)) * x)(x)


@case(X, forward=False)
def closure_converted(x):
    y = jnp.sin(x)
    f, consts = jax.closure_convert(lambda z: z * y, x)

    @jax.custom_vjp
    def g(z, *consts):
        return f(z, *consts)

    g.defvjp(lambda z, *c: (f(z, *c), (z, c)), lambda r, ct: jax.vjp(f, r[0], *r[1])[1](ct))
    return g(x, *consts)


@case(arange(3, 3) + 2.0 * jnp.eye(3), X)
def linear_solve(a, b):
    return lax.custom_linear_solve(
        lambda x: a @ x, b, lambda _, b: jnp.linalg.solve(a, b), lambda _, b: jnp.linalg.solve(a.T, b)
    )


@case(arange(3, 3) * 0.1 + 2.0 * jnp.eye(3), X)
def conjugate_gradients(a, b):
    a = a @ a.T
    return jax.scipy.sparse.linalg.cg(lambda x: a @ x, b, maxiter=5)[0]


@case(jnp.float32(2.0))
def root(a):
    def solve(f, x):
        return lax.fori_loop(0, 20, lambda _, x: x - f(x) / (2.0 * x), x)

    return lax.custom_root(lambda x: x**2 - a, 1.0, solve, lambda g, y: y / g(1.0))


@case(X, vmaps=False)  # jax has no batching rule for linear_call
def linear_called(x):
    def f(s, x):
        return x * s

    return jax.custom_derivatives.linear_call(f, lambda s, ct: ct * s, DEVICE_TABLE, jnp.sin(x))


@jax.custom_batching.custom_vmap
def batched_sin(x):
    return jnp.sin(x)


@batched_sin.def_vmap
def batched_sin_rule(axis_size, in_batched, x):
    return jnp.sin(x), in_batched[0]


@case(M)
def custom_vmap_under_vmap(x):
    return jax.vmap(batched_sin)(x) * 2.0


@functools.partial(jax.jit, static_argnums=1)
def power(x, n):
    return x**n


@case(X, M, forward=False)
def everything_at_once(h, xs):
    @partial(jax.checkpoint, policy=POLICIES["save_hidden"])
    def cell(h, x):
        h = checkpoint_name(power(jnp.sin(h) * x, 2), "hidden")
        h = lax.cond(x[0] > 0.9, lambda h: halved(h, x), log1pexp, h)
        return h, lax.fori_loop(0, 2, lambda i, y: jnp.tanh(y) + x, h)

    return jax.jit(lambda h: lax.scan(cell, h, xs))(h)
