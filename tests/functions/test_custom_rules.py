"""Custom rules: errors name the leaf; correct rules behave as in jax."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from short_runs import short

import jaxviz
from jaxviz.ir.compat import custom_rules
from jaxviz.ir.emit import as_function

X = jnp.linspace(0.3, 1.7, 3)


def with_jvp(fun, rule, **options):
    made = jaxviz.custom_jvp(fun)
    made.defjvp(rule, **options)
    return made


def with_vjp(fun, fwd, bwd, **options):
    made = jaxviz.custom_vjp(fun)
    made.defvjp(fwd, bwd, **options)
    return made


def _count_and_value(x):
    """The number of steps, and where they led: an integer beside a float."""
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1]) * 2.0), (0, x))


WHOLE_NUMBERS = {
    "numpy's": lambda count: np.zeros((), jax.dtypes.float0),
    "jax's": lambda count: jax.jvp(lambda x: (x, count), (1.0,), (1.0,))[1][1],
    "from_primal": jax.custom_derivatives.zero_from_primal,
}
"""Tangents of integers that a rule may return."""

USES = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
    "checkpoint in scan": lambda f: lambda x: lax.scan(jax.checkpoint(lambda c, _: (f(c), None)), x, None, length=2)[0],
    "cond": lambda f: lambda x: lax.cond(x > 0.0, f, lambda y: y, x),
}


@pytest.mark.slow
@pytest.mark.parametrize("use", short(list(USES), 2))
@pytest.mark.parametrize("zero", WHOLE_NUMBERS)
def test_the_tangent_of_a_whole_number_that_is_computed_with_is_zero(use, zero):
    @jax.custom_jvp
    def quad(x):
        return _count_and_value(x)

    @quad.defjvp
    def rule(primals, tangents):
        count, value = _count_and_value(*primals)
        return (count, value), (WHOLE_NUMBERS[zero](count), value * tangents[0])

    def times(x):
        count, value = quad(x)
        return value * (count * 21)

    f = USES[use](times)
    both = jax.jit(lambda x: [(module.jvp(f, (x,), (1.0,)), module.grad(f)(x)) for module in (jaxviz, jax)])
    ours, theirs = both(1.0)
    np.testing.assert_allclose(jax.tree.leaves(ours), jax.tree.leaves(theirs), rtol=1e-6)
    derivation = jaxviz.derive(f, 1.0)
    assert derivation.check()
    assert jaxviz.memory(derivation).peak_nbytes > 0
    tangent = jaxviz.jvp(quad, (1.0,), (1.0,))[1][0]
    assert tangent.dtype == jax.dtypes.float0


# --- under vmap -------------------------------------------------------------------------------------------------------


SQUARE = jnp.linspace(-1.0, 1.0, 9).reshape(3, 3)


def mapped_otherwise(kind):
    """Results that the function and its rule map along different dimensions, including one that only the rule maps."""
    fun = lambda x: (jnp.sin(SQUARE @ x), x.sum(), jnp.ones(3))

    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        y = x @ SQUARE.T
        return (jnp.sin(y), x.sum(), jnp.ones(3)), (jnp.cos(y) * (t @ SQUARE.T), 2 * t.sum(), t)

    def forward(x):
        y = x @ SQUARE.T
        return (jnp.sin(y), x.sum(), 0 * x + 1), y

    def backward(y, cts):
        return ((jnp.cos(y) * cts[0]) @ SQUARE + 2 * cts[1] + cts[2],)

    if kind == "jvp":
        made = jax.custom_jvp(fun)
        made.defjvp(rule)
    else:
        made = jax.custom_vjp(fun)
        made.defvjp(forward, backward)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jvp", "vjp"])
@pytest.mark.parametrize("dims", short([(0,), (1,), (0, 0), (1, 0), (0, 1), (1, 2)], [(1,), (1, 2)]), ids=str)
def test_a_rule_may_map_its_results_along_other_dimensions_than_its_function(kind, dims):
    """The matrices are square, so that a wrong dimension has the right shape."""

    def loss(x):
        f = mapped_otherwise(kind)
        for dim in dims:
            f = jax.vmap(f, in_axes=dim)
        weight = lambda y: jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)
        return sum(jnp.sum(weight(y) * y) for y in f(x))

    x = jnp.sin(jnp.arange(3.0 ** (1 + len(dims)))).reshape((3,) * (1 + len(dims)))
    np.testing.assert_allclose(jaxviz.grad(loss)(x), jax.grad(loss)(x), rtol=1e-5, atol=1e-6)
    if kind == "jvp":
        np.testing.assert_allclose(jaxviz.jvp(loss, (x,), (x,)), jax.jvp(loss, (x,), (x,)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_a_result_that_neither_maps_stays_as_it_is(kind):
    zeros = lambda x: (jnp.zeros(3), x.sum())
    if kind == "jvp":
        f = with_jvp(zeros, lambda p, t: ((jnp.zeros(3), p[0].sum()), (jnp.zeros(3), t[0].sum())))
    else:
        f = with_vjp(zeros, lambda x: (zeros(x), x), lambda x, cts: (x * cts[1],))
    primal = jaxviz.derive(lambda x: jax.vmap(f)(x)[1].sum(), SQUARE).primal
    (call,) = (e for _, e in primal.walk() if "custom" in e.primitive.name)
    assert [v.aval.shape for v in call.outvars] == [(3,), (3,)]


SCALES = jnp.arange(1.0, 4.0)


def scaled(kind):
    """A function of x with a rule that closes over the other arguments and returns three times the derivative."""

    def f(x, *scales):
        s = functools.reduce(lambda a, b: a * b, scales)
        if kind == "jvp":
            g = jax.custom_jvp(lambda y: jnp.sin(y) * s)
            g.defjvp(lambda p, t: (g(p[0]), 3.0 * t[0] * jnp.cos(p[0]) * s))
        elif kind == "jvp of itself":  # its own function, which is differentiated as well
            g = jax.custom_jvp(lambda y: jnp.sin(y) * s)
            g.defjvp(lambda p, t: (g(p[0]), 3.0 * t[0] * g(p[0] + 1.0)))
        elif kind == "vjp of itself":
            g = jax.custom_vjp(lambda y: jnp.sin(y) * s)
            g.defvjp(lambda y: (g(y), y), lambda y, ct: (3.0 * ct * jnp.cos(y) * s,))
        else:
            g = jax.custom_vjp(lambda y: jnp.sin(y) * s)
            g.defvjp(lambda y: (jnp.sin(y) * s, 3.0 * jnp.cos(y) * s), lambda slope, ct: (ct * slope,))
        return g(x)

    return f


def repeated(f):
    return lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0]


CLOSED_OVER = {
    "vmap in grad": lambda m, f: m.grad(lambda x: m.vmap(lambda s: f(x, s))(SCALES).sum())(0.3),
    "both are mapped": lambda m, f: m.grad(lambda x: m.vmap(f)(x * SCALES, SCALES).sum())(0.3),
    "grad in vmap": lambda m, f: m.vmap(lambda s: m.grad(lambda x: f(x, s))(0.3))(SCALES),
    "grad in vmap in grad": lambda m, f: m.grad(
        lambda w: m.vmap(lambda s: m.grad(lambda x: jnp.sin(f(x, s)))(w))(SCALES).sum()
    )(0.3),
    "vmap in vmap": lambda m, f: m.grad(lambda x: m.vmap(lambda s: m.vmap(lambda t: f(x, s, t))(SCALES))(SCALES).sum())(
        0.3
    ),
    "jax.grad around": lambda m, f: jax.grad(lambda x: m.vmap(lambda s: f(x, s))(SCALES).sum())(0.3),
    "jax.vmap inside": lambda m, f: m.grad(lambda x: jax.vmap(lambda s: f(x, s))(2.0 * SCALES).sum())(0.3),
    "jit around": lambda m, f: jax.jit(m.grad(lambda x: m.vmap(lambda s: f(x, s))(SCALES).sum()))(0.3),
    "several": lambda m, f: m.grad(lambda x: m.vmap(lambda s, t: f(x, s, t), in_axes=(0, None))(SCALES, 2.0).sum())(
        0.3
    ),
    "an integer": lambda m, f: m.grad(lambda x: m.vmap(lambda s: f(x, s))(jnp.arange(1, 4)).sum())(0.3),
    "of constants": lambda m, f: m.grad(lambda x: m.vmap(lambda s: f(x, jnp.sin(s)))(2.0 * SCALES).sum())(0.3),
    "another argument": lambda m, f: m.grad(lambda x, w: m.vmap(lambda s: f(x, s))(w).sum())(0.3, SCALES),
    "scan in vmap": lambda m, f: m.grad(lambda x: m.vmap(lambda s: repeated(lambda c: f(c, s))(x))(SCALES).sum())(0.3),
    "vmap in scan": lambda m, f: m.grad(repeated(lambda c: m.vmap(lambda s: f(c, s))(SCALES).sum()))(0.3),
    "vjp": lambda m, f: m.vjp(lambda x: m.vmap(lambda s: f(x, s))(SCALES), 0.3)[1](SCALES)[0],
    "no derivative": lambda m, f: m.vmap(lambda s: f(0.3, s))(SCALES),
    "jvp": lambda m, f: m.jvp(lambda x: m.vmap(lambda s: f(x, s))(SCALES), (0.3,), (1.0,)),
}


def twice(m, f):
    return m.grad(m.grad(f))


def over(m, f):
    """The sum over the scales of a function with a rule, as a function of x."""
    return lambda x: m.vmap(lambda s: f(x, s))(SCALES).sum()


DERIVED_AGAIN = {
    "in vmap": lambda m, f: m.vmap(lambda s: twice(m, lambda x: f(x, s))(0.3))(SCALES),
    "of vmap": lambda m, f: twice(m, over(m, f))(0.3),
    "between": lambda m, f: m.grad(lambda x: m.vmap(lambda s: m.grad(lambda y: f(y, s))(x))(SCALES).sum())(0.3),
    "of vmap of vmap": lambda m, f: twice(
        m, lambda x: m.vmap(lambda t: over(m, lambda y, s: f(y, s, t))(x))(SCALES).sum()
    )(0.3),
    "both are mapped": lambda m, f: twice(m, lambda x: m.vmap(f)(x * SCALES, SCALES).sum())(0.3),
    "an argument is": lambda m, f: twice(m, lambda x, w: m.vmap(lambda s: f(x, s))(w).sum())(0.3, SCALES),
    "three times": lambda m, f: m.grad(twice(m, over(m, f)))(0.3),
    "hessian": lambda m, f: m.hessian(over(m, f))(0.3),
    "by jax after": lambda m, f: jax.grad(jax.grad(m.grad(over(m, f))))(0.3),
    "by jax before": lambda m, f: m.grad(jax.grad(over(m, f)))(0.3),
    "mapped by jax after": lambda m, f: jax.vmap(twice(m, over(m, f)))(SCALES),
    "jit around": lambda m, f: jax.jit(twice(m, over(m, f)))(0.3),
}


AROUND = {"jit": jax.jit, "vmap": jax.vmap, "jit of vmap": lambda f: jax.jit(jax.vmap(f))}


def of_what_is_around(around, derive):
    s = 2.0 if around == "jit" else SCALES
    return lambda m, f: AROUND[around](lambda s: derive(m, lambda x: f(x, jnp.sin(s) * 2.0, s))(0.3))(s)


COMPUTED_AROUND = {
    **{f"once, {around}": of_what_is_around(around, lambda m, f: m.grad(f)) for around in AROUND},
    **{f"twice, {around}": of_what_is_around(around, twice) for around in AROUND},
    **{
        f"what is constant, in a {body}": lambda m, f, around=USES[body]: m.grad(
            lambda x: around(functools.partial(lambda s, y: f(y, s), jnp.asarray(2.0) * 1.5))(x)
        )(0.3)
        for body in ("cond", "scan", "jit", "checkpoint", "checkpoint in scan")
    },
    **{
        f"what is not differentiated, in a {body}": lambda m, f, around=USES[body]: m.grad(
            lambda x, w: around(lambda y, s=w * 1.5: f(y, s))(x)
        )(0.3, 2.0)
        for body in ("cond", "scan")
    },
    "what is differentiated": lambda m, f: twice(m, lambda x: m.vmap(lambda s: f(x, s * x))(SCALES).sum())(0.3),
    "what is mapped and differentiated": lambda m,
    f: m.grad(lambda x: m.vmap(lambda s: f(x, s))(x * SCALES).sum())(0.3),
}  # fmt: skip


def closing_over():
    kinds = ("jvp", "jvp of itself", "vjp", "vjp of itself")
    again = short(list(DERIVED_AGAIN), 4)
    for kind in kinds:
        for name in (*(CLOSED_OVER if "itself" not in kind else ()), *COMPUTED_AROUND):
            yield pytest.param({**CLOSED_OVER, **COMPUTED_AROUND}[name], kind, id=f"{kind}-{name}")
        for p in again:
            marks = [*p.marks, pytest.mark.slow]
            yield pytest.param(DERIVED_AGAIN[p.values[0]], kind, marks=marks, id=f"{kind}-again, {p.values[0]}")


@pytest.mark.slow
@pytest.mark.parametrize(("value", "kind"), list(closing_over()))
def test_a_rule_may_close_over_what_jax_lets_it(value, kind):
    """What is mapped, or computed around it, and not what is differentiated; backward rules have no forward mode."""
    try:
        want = value(jax, scaled(kind))
    except (jax.errors.UnexpectedTracerError, TypeError):
        with pytest.raises(Exception, match=r"unexpected tracer|closed-over value|closes over a value|forward-mode"):
            value(jaxviz, scaled(kind))
    else:
        np.testing.assert_allclose(value(jaxviz, scaled(kind)), want, rtol=1e-5)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def applied_by_vjp(f, x):
    return f(x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def applied_by_jvp(f, x):
    return f(x)


applied_by_vjp.defvjp(lambda f, x: (f(x), x), lambda f, x, ct: jax.vjp(f, x)[1](ct))
applied_by_jvp.defjvp(lambda f, primals, tangents: jax.jvp(f, primals, tangents))


def sine(rule, apply):
    """A sine whose rule passes a function that closes over values of the rule, as implicit layers solve for a
    cotangent."""
    times = lambda a: lambda b: a * b
    if rule == "jvp":
        f = jax.custom_jvp(jnp.sin)
        f.defjvp(lambda p, t: (f(*p), t[0] * apply(times(jnp.cos(p[0])), jnp.ones_like(p[0]))))
    elif rule == "forward":
        f = jax.custom_vjp(jnp.sin)
        f.defvjp(lambda x: (f(x), apply(times(jnp.cos(x)), jnp.ones_like(x))), lambda slope, ct: (slope * ct,))
    else:
        f = jax.custom_vjp(jnp.sin)
        f.defvjp(lambda x: (f(x), x), lambda x, ct: (apply(times(ct), jnp.cos(x)),))
    return lambda x: jnp.sum(f(x))


@pytest.mark.parametrize("apply", [applied_by_vjp, applied_by_jvp])
@pytest.mark.parametrize("rule", ["jvp", "forward", "backward"])
def test_a_rule_may_pass_a_function_that_closes_over_its_values(rule, apply):
    f = sine(rule, apply)
    np.testing.assert_allclose(jaxviz.grad(f)(SCALES), jax.grad(f)(SCALES), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jaxviz.grad(f))(SCALES), jax.grad(f)(SCALES), rtol=1e-6)
    assert jaxviz.derive(f, SCALES).check().agrees
    assert jaxviz.residuals(f, SCALES).nbytes == 12


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def sine_of_a_function(f, x):
    return f(x)


sine_of_a_function.defvjp(lambda f, x: (f(x), x), lambda f, x, ct: (ct * jnp.cos(x),))


@pytest.mark.parametrize("derive", [
    lambda m, f: m.grad(m.grad(f))(0.7, 1.3),
    lambda m, f: jax.grad(m.grad(f))(0.7, 1.3),
    lambda m, f: m.grad(m.grad(m.grad(f)))(0.7, 1.3),
    lambda m, f: jax.jit(m.grad(m.grad(f)))(0.7, 1.3),
    lambda m, f: m.vmap(m.grad(m.grad(f)), in_axes=(0, None))(SCALES, 1.3),
    lambda m, f: jax.vmap(m.grad(m.grad(f)), in_axes=(None, 0))(0.7, SCALES),
])  # fmt: skip
def test_a_backward_rule_that_passes_such_a_function_may_be_differentiated(derive):
    f = jax.custom_vjp(lambda x, y: jnp.sin(x) * y)
    backward = lambda res, ct: (
        ct * sine_of_a_function(lambda z: jnp.sin(z) * res[1], res[0]), ct * jnp.sin(res[0]),
    )  # fmt: skip
    f.defvjp(lambda x, y: (jnp.sin(x) * y, (x, y)), backward)
    squared = lambda x, y: f(x, y) ** 2
    np.testing.assert_allclose(derive(jaxviz, squared), derive(jax, squared), rtol=1e-5)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Box:
    content: object


@pytest.mark.parametrize("kept", [lambda v: (Box(v),), lambda v: {"a": [v], 1: v}])
def test_what_a_rule_closes_over_is_found_in_pytrees(kept):
    def f(v):
        held = kept(v)
        assert custom_rules._holds_tracers(v._trace, lambda: held)
        return v

    jax.make_jaxpr(f)(1.0)


def test_the_rule_for_one_argument_is_not_that_for_another():
    """Of a call that JAX has traced once, the rules are kept with the call."""

    @jax.custom_vjp
    def product(x, y):
        return x * y

    product.defvjp(lambda x, y: (x * y, (x, y)), lambda res, ct: (ct * res[1], ct * res[0]))
    program = jaxviz.trace(lambda x, y: jnp.sin(product(x, y)))(2.0, 3.0)
    slope = jnp.cos(6.0)
    for argnums, want in ((0, 3.0 * slope), (1, 2.0 * slope), ((0, 1), (3.0 * slope, 2.0 * slope))):
        d = jaxviz.derive(program, argnums=argnums)
        residuals = as_function(d.forward)(2.0, 3.0)[1:]
        got = as_function(d.backward)(*residuals, jnp.float32(1.0))
        np.testing.assert_allclose(got, np.atleast_1d(want), rtol=1e-6)
