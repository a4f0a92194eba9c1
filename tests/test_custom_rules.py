"""Custom rules: what is wrong with one is said by its leaf; right ones are jax's; `check_rule` holds them against numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxviz

X = jnp.linspace(0.3, 1.7, 3)
DECORATORS = pytest.mark.parametrize("module", [jax, jaxviz], ids=["jax", "jaxviz"])


def here(fun):
    return f"test_custom_rules.py:{fun.__code__.co_firstlineno}"


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


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        (lambda p, t: tree(p[0]), TypeError, "must produce a pair"),
        (lambda p, t: ({"a": p[0]}, tree(t[0])), TypeError, "it lacks ['b']"),
        (lambda p, t: (tree(p[0]), {**tree(t[0]), "c": t[0]}), TypeError, "it has ['c'] too much"),
        (
            lambda p, t: ({**tree(p[0]), "b": p[0]}, tree(t[0])),
            TypeError,
            "expected float32[] at ['b'], got float32[3]",
        ),
        (
            lambda p, t: (tree(p[0]), {**tree(t[0]), "a": t[0][:2]}),
            TypeError,
            "expected float32[3] at ['a'], got float32[2]",
        ),
        (
            lambda p, t: (tree(p[0]), {**tree(t[0]), "a": t[0].astype(jnp.float16)}),
            TypeError,
            "expected float32[3] at ['a'], got float16[3]",
        ),
    ],
)
@pytest.mark.parametrize("call", [jaxviz.jvp, jax.jvp], ids=["jaxviz", "jax"])
def test_a_wrong_jvp_rule_is_named_by_its_leaf(call, rule, error, message):
    f = with_jvp(tree, rule)
    with pytest.raises(error) as caught:
        call(f, (X,), (X,))
    assert message in str(caught.value)
    assert here(rule) in str(caught.value)
    assert f"tree ({here(tree)})" in str(caught.value)


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


@pytest.mark.parametrize(
    ("fwd", "bwd", "error", "message", "named"),
    [
        (lambda p, x: weighted(p, x), RIGHT_BWD, TypeError, "instead of a pair it produced", "fwd"),
        (lambda p, x: (p["w"] * x, (p, x)), RIGHT_BWD, TypeError, "expected float32[], got float32[3]", "fwd"),
        (lambda p, x: ((weighted(p, x),), (p, x)), RIGHT_BWD, TypeError, "its structure is", "fwd"),
        (
            RIGHT_FWD,
            lambda res, ct: ({"w": ct * res[1]},),
            TypeError,
            "number of arguments, 2, but got 1 cotangent",
            "bwd",
        ),
        (RIGHT_FWD, lambda res, ct: ct * res[1], TypeError, "must produce a tuple of length equal", "bwd"),
        (RIGHT_FWD, lambda res, ct: ({"v": ct * res[1]}, ct * res[0]["w"]), TypeError, "it lacks [0]['w']", "bwd"),
        (
            RIGHT_FWD,
            lambda res, ct: ({"w": ct * res[1][:2]}, ct * res[0]["w"]),
            ValueError,
            "expected float32[3] at [0]['w'], got float32[2]",
            "bwd",
        ),
    ],
)
@pytest.mark.parametrize("grad", [jaxviz.grad, jax.grad], ids=["jaxviz", "jax"])
def test_a_wrong_vjp_rule_is_named_by_its_leaf(grad, fwd, bwd, error, message, named):
    f = with_vjp(weighted, fwd, bwd)
    with pytest.raises(error) as caught:
        grad(f)({"w": X}, X)
    assert message in str(caught.value)
    assert here({"fwd": fwd, "bwd": bwd}[named]) in str(caught.value)


def test_calls_of_other_shapes_do_not_disturb_each_other():
    f = with_vjp(weighted, RIGHT_FWD, RIGHT_BWD)
    _, pull = jax.vjp(f, {"w": X}, X)
    jax.vjp(f, {"w": X[:2]}, X[:2])
    np.testing.assert_allclose(pull(1.0)[0]["w"], X)


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


def test_forward_mode_is_refused_with_the_functions_line():
    f = with_vjp(weighted, RIGHT_FWD, RIGHT_BWD)
    with pytest.raises(TypeError, match="can't apply forward-mode") as caught:
        jax.jvp(f, ({"w": X}, X), ({"w": X}, X))
    assert here(weighted) in str(caught.value)


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_no_rule(kind):
    f = getattr(jaxviz, f"custom_{kind}")(weighted)
    with pytest.raises(
        AttributeError, match=f"No {kind.upper()} defined for custom_{kind} function weighted"
    ) as caught:
        f({"w": X}, X)
    assert here(weighted) in str(caught.value)
    assert f"weighted.def{kind}" in str(caught.value)


def test_a_rule_that_closes_over_a_tracer_says_what_to_do():
    kept = []

    @jaxviz.custom_jvp
    def f(x):
        return x * 2.0

    @f.defjvp
    def rule(primals, tangents):
        return primals[0] * 2.0, tangents[0] * kept[0]

    @jax.jit
    def leak(y):
        kept.append(y)
        return y

    leak(1.0)
    with pytest.raises(jax.errors.UnexpectedTracerError) as caught:
        jax.grad(f)(2.0)
    assert any("closure_convert" in note and here(rule) in note for note in caught.value.__notes__)


# --- custom_gradient --------------------------------------------------------------------------------------------------


def test_custom_gradient():
    @jaxviz.custom_gradient
    def f(x, y):
        return x * y, lambda ct: (ct * 2.0, ct * 3.0)

    assert jaxviz.grad(f, (0, 1))(1.0, 2.0) == (2.0, 3.0)

    @jaxviz.custom_gradient
    def short(x, y):
        return x * y, lambda ct: (ct,)

    with pytest.raises(TypeError, match="number of arguments, 2, but got 1 cotangent"):
        jaxviz.grad(short)(1.0, 2.0)

    @jaxviz.custom_gradient
    def no_pair(x):
        return x

    with pytest.raises(TypeError, match="must produce a pair"):
        no_pair(1.0)


# --- check_rule -------------------------------------------------------------------------------------------------------


def log1pexp(x):
    return jnp.log(1.0 + jnp.exp(x))


def test_a_right_rule_agrees():
    f = with_jvp(log1pexp, lambda p, t: (log1pexp(p[0]), (1.0 - 1.0 / (1.0 + jnp.exp(p[0]))) * t[0]))
    found = jaxviz.check_rule(f, X)
    assert found
    assert [leaf.verdict for leaf in found.leaves] == ["right"]
    assert found.leaves[0].replaced == pytest.approx(found.leaves[0].rule, rel=1e-6)
    assert str(found).startswith("rule of log1pexp agrees with numerical differences\n")


def test_the_leaf_that_is_wrong_is_named():
    f = with_vjp(weighted, RIGHT_FWD, lambda res, ct: ({"w": 2.0 * ct * res[1]}, ct * res[0]["w"]))
    found = jaxviz.check_rule(f, {"w": X}, X)
    assert not found
    assert [(leaf.path, leaf.verdict) for leaf in found.leaves] == [("p['w']", "wrong"), ("x", "right")]
    assert found.leaves[0].rule == pytest.approx(2.0 * found.leaves[0].numerical, rel=1e-4)
    assert "is wrong in p['w']" in str(found)
    assert all(len(line) <= 100 for line in str(found).splitlines())


def test_a_rule_that_is_meant_to_differ():
    straight_through = with_jvp(lambda x: jnp.round(x), lambda p, t: (jnp.round(p[0]), t[0]))
    found = jaxviz.check_rule(straight_through, X)
    assert not found
    assert found.leaves[0].numerical == found.leaves[0].replaced == 0.0


def test_a_kink_is_no_mistake():
    f = with_jvp(lambda x: jnp.abs(x), lambda p, t: (jnp.abs(p[0]), jnp.where(p[0] < 0, -1.0, 1.0) * t[0]))
    found = jaxviz.check_rule(f, jnp.zeros(()))
    assert [leaf.verdict for leaf in found.leaves] == ["not differentiable"]
    assert found


def test_what_cannot_be_differentiated_is_left_out():
    def root(a):
        return lax.while_loop(lambda x: jnp.abs(x * x - a) > 1e-12, lambda x: 0.5 * (x + a / x), a)

    f = with_vjp(root, lambda a: (root(a), root(a)), lambda y, ct: (0.5 * ct / y,))
    found = jaxviz.check_rule(lambda a, n: f(a) * n, 2.0, 3)
    assert found
    assert found.notes == ("n was left alone: it is not of floating point.",)
    assert (
        "While" in str(found)
        or found.leaves[0].replaced is not None
        or any("reverse" in n.lower() for n in found.notes)
    )


def test_inside_bodies_the_rule_is_taken_out_too():
    wrong = with_jvp(jnp.sin, lambda p, t: (jnp.sin(p[0]), t[0]))
    found = jaxviz.check_rule(lambda x: lax.scan(lambda c, _: (wrong(c), None), x, None, length=2)[0], 0.5)
    assert not found
    assert found.leaves[0].replaced == pytest.approx(found.leaves[0].numerical, rel=1e-4)


def test_nothing_to_differentiate_in():
    with pytest.raises(TypeError, match="no argument of <lambda> is of floating point"):
        jaxviz.check_rule(lambda n: n, 3)
