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

X = jnp.linspace(0.3, 1.7, 3)
DECORATORS = pytest.mark.parametrize("module", [jax, jaxviz], ids=["jax", "jaxviz"])


def with_jvp(fun, rule, **options):
    made = jaxviz.custom_jvp(fun)
    made.defjvp(rule, **options)
    return made


def with_vjp(fun, fwd, bwd, **options):
    made = jaxviz.custom_vjp(fun)
    made.defvjp(fwd, bwd, **options)
    return made


def tree(x):
    return {"a": jnp.sin(x), "b": x.sum()}


# --- custom_jvp -------------------------------------------------------------------------------------------------------


@DECORATORS
def test_a_right_jvp_rule_is_jaxs(module):
    @functools.partial(module.custom_jvp, nondiff_argnums=(0,))
    def applied(f, x, n):
        return f(x) * n, n

    @applied.defjvp
    def rule(f, primals, tangents):
        (x, n), (t, _) = primals, tangents
        return applied(f, x, n), (2.0 * t * n, np.zeros((), jax.dtypes.float0))

    for grad in (jax.grad, jaxviz.grad):
        got = grad(lambda x: applied(jnp.sin, x, 3)[0].sum())(X)
        np.testing.assert_allclose(got, jnp.full(3, 6.0))
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(lambda x: applied(jnp.sin, x, 3)[0])))(X), jnp.full(3, 6.0))


@DECORATORS
def test_defjvps_and_symbolic_zeros(module):
    @module.custom_jvp
    def product(x, y):
        return x * y

    product.defjvps(lambda t, out, x, y: 3.0 * t * y, None)
    np.testing.assert_allclose(jaxviz.grad(lambda x: product(x, X).sum())(X), 3.0 * X)

    @module.custom_jvp
    def sum_of(x, y):
        return x + y

    def rule(primals, tangents):
        x, y = primals
        zeros = [type(t) is jax.custom_derivatives.SymbolicZero for t in tangents]
        assert zeros == [False, True]
        return x + y, tangents[0] * 5.0

    sum_of.defjvp(rule, symbolic_zeros=True)
    for grad in (jax.grad, jaxviz.grad):
        np.testing.assert_allclose(grad(lambda x: sum_of(x, X).sum())(X), jnp.full(3, 5.0))


# --- custom_vjp -------------------------------------------------------------------------------------------------------


def weighted(p, x):
    return jnp.sum(p["w"] * x)


RIGHT_FWD = lambda p, x: (weighted(p, x), (p, x))
RIGHT_BWD = lambda res, ct: ({"w": ct * res[1]}, ct * res[0]["w"])


def test_calls_of_other_shapes_do_not_disturb_each_other():
    f = with_vjp(weighted, RIGHT_FWD, RIGHT_BWD)
    _, pull = jax.vjp(f, {"w": X}, X)
    jax.vjp(f, {"w": X[:2]}, X[:2])
    np.testing.assert_allclose(pull(1.0)[0]["w"], X)


def test_residuals_are_those_of_jaxs_decorator():
    kept = []
    for module in (jax, jaxviz):
        f = module.custom_vjp(weighted)
        f.defvjp(RIGHT_FWD, RIGHT_BWD)
        derivation = jaxviz.derive(f, {"w": X}, X, argnums=(0, 1))
        assert derivation.check().agrees
        kept.append([(r.name, r.aval, r.nbytes) for r in derivation.residuals])
    assert kept[0] == kept[1]


@DECORATORS
def test_a_right_vjp_rule_is_jaxs(module):
    @functools.partial(module.custom_vjp, nondiff_argnums=(1,))
    def power(x, n, k):
        return x**n * k

    power.defvjp(lambda x, n, k: (power(x, n, k), (x, k)), lambda n, res, ct: (2.0 * ct * res[0], None))
    for grad in (jax.grad, jaxviz.grad):
        np.testing.assert_allclose(grad(lambda x: power(x, 2, 3).sum())(X), 2.0 * X)
    mapped = jax.jit(jax.vmap(jaxviz.grad(lambda x: power(x, 2, 3))))
    np.testing.assert_allclose(mapped(X), 2.0 * X)
    scanned = jaxviz.grad(lambda x: lax.scan(lambda c, _: (power(c, 2, 1), None), x, None, length=2)[0].sum())(X)
    np.testing.assert_allclose(scanned, 4.0 * X**3, rtol=1e-5)


@DECORATORS
def test_symbolic_zeros_and_optimize_remat(module):
    @module.custom_vjp
    def product(x, y):
        return x * y

    def fwd(x, y):
        assert (x.perturbed, y.perturbed) == (True, False)
        return x.value * y.value, y.value

    product.defvjp(fwd, lambda y, ct: (ct * y * 7.0, None), symbolic_zeros=True)
    np.testing.assert_allclose(jaxviz.grad(lambda x: product(x, X).sum())(X), 7.0 * X)

    @module.custom_vjp
    def sine(x):
        return jnp.sin(x)

    sine.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda cos, ct: (ct * cos,), optimize_remat=True)
    np.testing.assert_allclose(jaxviz.grad(lambda x: jax.checkpoint(sine)(x).sum())(X), jnp.cos(X), rtol=1e-6)


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
@pytest.mark.parametrize("use", USES)
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
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 0), (1, 0), (0, 1), (1, 2)], ids=str)
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
}


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
@pytest.mark.parametrize("nesting", CLOSED_OVER)
def test_a_rule_may_close_over_what_is_mapped(nesting, kind):
    value = CLOSED_OVER[nesting]
    try:
        want = value(jax, scaled(kind))
    except jax.errors.UnexpectedTracerError:
        with pytest.raises(jax.errors.UnexpectedTracerError):
            value(jaxviz, scaled(kind))
    else:
        np.testing.assert_allclose(value(jaxviz, scaled(kind)), want, rtol=1e-5)


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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jvp", "jvp of itself", "vjp", "vjp of itself"])
@pytest.mark.parametrize("nesting", short(list(DERIVED_AGAIN), 2))
def test_what_such_a_rule_gives_is_derived_again(nesting, kind):
    value = DERIVED_AGAIN[nesting]
    try:
        want = value(jax, scaled(kind))
    except (jax.errors.UnexpectedTracerError, TypeError):  # forward mode of a backward rule
        with pytest.raises(Exception, match=r"unexpected tracer|closed-over value|forward-mode"):
            value(jaxviz, scaled(kind))
    else:
        np.testing.assert_allclose(value(jaxviz, scaled(kind)), want, rtol=1e-5)


@pytest.mark.parametrize("kind", ["jvp", "jvp of itself", "vjp", "vjp of itself"])
def test_what_such_a_rule_closes_over_may_not_be_differentiated(kind):
    f = scaled(kind)
    for m in (jax, jaxviz):
        with pytest.raises(Exception, match=r"unexpected tracer|closes over a value|closed-over value"):
            twice(m, lambda x: m.vmap(lambda s: f(x, s * x))(SCALES).sum())(0.3)


AROUND = {"jit": jax.jit, "vmap": jax.vmap, "jit of vmap": lambda f: jax.jit(jax.vmap(f))}


@pytest.mark.parametrize("kind", ["jvp", "jvp of itself", "vjp", "vjp of itself"])
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("derive", ["grad", "twice"])
def test_a_rule_may_close_over_what_is_computed_of_what_is_around(derive, around, kind):
    f, transforms = scaled(kind), {"grad": lambda m: m.grad, "twice": lambda m: functools.partial(twice, m)}
    of = lambda m: AROUND[around](lambda s: transforms[derive](m)(lambda x: f(x, jnp.sin(s) * 2.0, s))(0.3))
    s = 2.0 if around == "jit" else SCALES
    np.testing.assert_allclose(of(jaxviz)(s), of(jax)(s), rtol=1e-5)


def test_a_jvp_of_one_that_does():
    f = scaled("jvp")
    pushed = lambda m: m.jvp(lambda x: m.vmap(lambda s: f(x, s))(SCALES), (0.3,), (1.0,))
    np.testing.assert_allclose(pushed(jaxviz), pushed(jax), rtol=1e-6)


def test_a_rule_may_not_close_over_what_is_mapped_and_differentiated():
    f = scaled("vjp")
    with pytest.raises(Exception, match="closed-over value"):
        jaxviz.grad(lambda x: jaxviz.vmap(lambda s: f(x, s))(x * SCALES).sum())(0.3)


def test_one_rule_for_each_of_the_arguments_that_are_differentiated():
    """A program is derived several times: what was found for one argument does not hold for the other."""
    product = jaxviz.custom_jvp(lambda x, y: x * y)
    product.defjvps(lambda t, out, x, y: 2.0 * t * y, lambda t, out, x, y: 3.0 * t * x)
    program = jaxviz.trace(product)(5.0, 7.0)
    for argnums in ((0,), (1,), (0, 1), (0,)):
        assert jaxviz.derive(program, argnums=argnums).check().agrees


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
