"""Custom rules that JAX runs where their function is called: on values, on values mapped by an enclosed vmap, on a given tracer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

import jaxviz


@jax.custom_jvp
def branching_jvp(x):
    return jnp.sin(x) if x > 0 else jnp.cos(x)


@branching_jvp.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return branching_jvp(x), (2.0 if x > 0 else 3.0) * t


@jax.custom_vjp
def branching_vjp(x):
    return jnp.sin(x)


def _forward(x):
    return branching_vjp(x), (x if x > 1 else 2 * x)


def _backward(x, ct):
    return ((2.0 if x > 0 else 3.0) * ct * x,)


branching_vjp.defvjp(_forward, _backward)


@jax.custom_vjp
def branching_backward(x):
    return jnp.sin(x)


branching_backward.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * 2.0,) if float(ct) > 1 or x < 0 else (ct * x,))

CALLS = {
    "custom_jvp": branching_jvp,
    "custom_vjp": branching_vjp,
    "backward rule": branching_backward,
    "amid others": lambda x: jnp.sin(branching_vjp(x * 2.0)) * branching_jvp(x),
    "beside a branch": lambda x: branching_jvp(x) if x < 1 else branching_vjp(x),
}


@pytest.mark.parametrize("x", [0.7, -0.7, 1.3])
@pytest.mark.parametrize("name", CALLS)
def test_a_rule_may_branch_on_values(name, x):
    f = CALLS[name]
    got, want = jaxviz.value_and_grad(f)(x), jax.value_and_grad(f)(x)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_jvp_rule_may_branch_in_forward_mode():
    np.testing.assert_allclose(jaxviz.jvp(branching_jvp, (-0.3,), (1.5,)), jax.jvp(branching_jvp, (-0.3,), (1.5,)))


@pytest.mark.parametrize("name", CALLS)
def test_under_jit_there_is_no_value_and_the_error_is_jaxs(name):
    with pytest.raises(jax.errors.ConcretizationTypeError) as want:
        jax.jit(jax.grad(CALLS[name]))(0.7)
    with pytest.raises(jax.errors.ConcretizationTypeError) as got:
        jax.jit(jaxviz.grad(CALLS[name]))(0.7)
    assert type(got.value) is type(want.value)


def scaled_by_jvp(scale, z):
    @jax.custom_jvp
    def g(y):
        return scale * y

    @g.defjvp
    def _(primals, tangents):
        return scale * primals[0], scale * 3.0 * tangents[0]

    return g(z)


def scaled_by_vjp(scale, z):
    @jax.custom_vjp
    def g(y):
        return scale * y

    g.defvjp(lambda y: (scale * y, (scale, y)), lambda res, ct: (res[0] * ct * res[1],))
    return g(z)


@pytest.mark.parametrize("scaled", [scaled_by_jvp, scaled_by_vjp])
@pytest.mark.parametrize("maps_argument", [False, True])
def test_a_rule_may_close_over_what_vmap_maps(scaled, maps_argument):
    scales = jnp.arange(1.0, 4.0)

    def f(z):
        if maps_argument:
            return jax.vmap(scaled)(scales, z * jnp.ones(3)).sum()
        return jax.vmap(scaled, in_axes=(0, None))(scales, z).sum()

    np.testing.assert_allclose(jaxviz.grad(f)(2.0), jax.grad(f)(2.0))


def test_nondiff_arguments_may_be_tracers():
    @functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
    def f(n, y):
        return n * y

    f.defjvp(lambda n, primals, tangents: (f(n, primals[0]), 5.0 * n * tangents[0]))
    of_mapped = lambda y: jax.vmap(f)(jnp.array([2.0, 3.0]), y)
    args = (jnp.array([3.0, 4.0]),), (jnp.array([1.0, 2.0]),)
    jax.tree.map(np.testing.assert_allclose, jaxviz.jvp(of_mapped, *args), jax.jvp(of_mapped, *args))
    of_key = lambda x: f(jax.random.uniform(jax.random.key(1)), x)
    np.testing.assert_allclose(jaxviz.grad(of_key)(1.0), jax.grad(of_key)(1.0))


def test_a_rule_that_closes_over_what_is_differentiated_is_refused_as_in_jax():
    for derive in (jax.grad, jaxviz.grad):
        with pytest.raises(jax.errors.UnexpectedTracerError):
            derive(lambda x: scaled_by_jvp(x, x))(2.0)


@pytest.mark.parametrize("name", ["custom_jvp", "custom_vjp", "amid others"])
def test_reports_follow_the_same_path(name):
    derivation = jaxviz.derive(CALLS[name], jnp.array(0.7))
    assert derivation.primal.is_path
    assert derivation.check().agrees, derivation.check()


@pytest.mark.parametrize("within", ["jit", "scan", "cond", "checkpoint"])
def test_a_backward_rule_has_no_values_within_what_is_transposed_as_a_whole(within):
    f = {
        "jit": jax.jit(branching_backward),
        "scan": lambda x: jax.lax.scan(lambda c, _: (branching_backward(c), None), x, length=2)[0],
        "cond": lambda x: jax.lax.cond(x > 0, branching_backward, jnp.sin, x),
        "checkpoint": jax.checkpoint(branching_backward),
    }[within]
    for m in (jax, jaxviz):
        with pytest.raises(jax.errors.ConcretizationTypeError):
            m.grad(f)(0.7)


# --- a number that a primitive's rule saves ---------------------------------------------------------------------------------


def made(name, fun):
    p = Primitive(name)
    p.def_impl(fun)
    p.def_abstract_eval(lambda *avals: avals[-1])
    mlir.register_lowering(p, mlir.lower_fun(fun, multiple_results=False))
    return p


doubled_if_p = made("doubled_if", lambda doubles, t: t * (1.0 + doubles))
ad.primitive_transposes[doubled_if_p] = lambda ct, doubles, t: [None, 2.0 * ct if doubles else ct]
same_p = made("same", lambda x: x)
ad.primitive_jvps[same_p] = lambda primals, tangents: (
    same_p.bind(*primals),
    doubled_if_p.bind(True, tangents[0]),
)


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["run", "traced"])
def test_a_transpose_rule_may_look_at_a_number_of_pythons(jit):
    gradient = lambda m: jit(m.grad(lambda x: jnp.sum(same_p.bind(jnp.sin(x)))))(jnp.ones(3))
    np.testing.assert_allclose(gradient(jaxviz), gradient(jax), rtol=1e-6)
