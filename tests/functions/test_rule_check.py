"""`check_rule`: custom rules compared with numerical differences, and with the functions they replace."""

import _thread
import functools
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec
from test_custom_rules import RIGHT_FWD, X, weighted, with_jvp, with_vjp

import jaxviz


def log1pexp(x):
    return jnp.log(1.0 + jnp.exp(x))


@pytest.mark.values
def test_a_right_rule_agrees():
    f = with_jvp(log1pexp, lambda p, t: (log1pexp(p[0]), (1.0 - 1.0 / (1.0 + jnp.exp(p[0]))) * t[0]))
    found = jaxviz.check_rule(f, X)
    assert found
    assert [(leaf.kind, leaf.verdict) for leaf in found.leaves] == [("cotangent", "right"), ("tangent", "right")]
    assert found.leaves[0].replaced == pytest.approx(found.leaves[0].rule, rel=1e-6)
    assert str(found).startswith("rule of log1pexp agrees with numerical differences\n")


def test_the_leaf_that_is_wrong_is_named():
    f = with_vjp(weighted, RIGHT_FWD, lambda res, ct: ({"w": 2.0 * ct * res[1]}, ct * res[0]["w"]))
    found = jaxviz.check_rule(f, {"w": X}, X)
    assert not found
    assert [(leaf.path, leaf.verdict) for leaf in found.leaves] == [("p['w']", "wrong"), ("x", "right")]
    assert found.leaves[0].rule == pytest.approx(2.0 * found.leaves[0].numerical, rel=1e-4)
    assert "is wrong in the cotangent of p['w'][2]: 3.4 where numerical differences give 1.7\n" in str(found)
    assert all(len(line) <= 100 for line in str(found).splitlines())


def test_a_rule_that_is_meant_to_differ():
    straight_through = with_jvp(lambda x: jnp.round(x), lambda p, t: (jnp.round(p[0]), t[0]))
    found = jaxviz.check_rule(straight_through, X)
    assert not found
    assert found.leaves[0].numerical == found.leaves[0].replaced == 0.0
    assert "straight-through" in str(found)


def test_a_kink_is_no_mistake():
    f = with_jvp(lambda x: jnp.abs(x), lambda p, t: (jnp.abs(p[0]), jnp.where(p[0] < 0, -1.0, 1.0) * t[0]))
    found = jaxviz.check_rule(f, jnp.zeros(()))
    assert [leaf.verdict for leaf in found.leaves] == ["not differentiable"] * 2
    assert found
    assert "-1 on one side and 1 on the other" in " ".join(str(found).split())


@pytest.mark.values
def test_what_cannot_be_differentiated_is_left_out():
    def root(a):
        return lax.while_loop(lambda x: jnp.abs(x * x - a) > 1e-12, lambda x: 0.5 * (x + a / x), a)

    f = with_vjp(root, lambda a: (root(a), root(a)), lambda y, ct: (0.5 * ct / y,))
    found = jaxviz.check_rule(lambda a, n: f(a) * n, 2.0, 3)
    assert found
    left_alone, no_reverse = found.notes
    assert left_alone == "n was held fixed: it is not of a floating-point type."
    assert no_reverse.startswith(
        "The function that the rule replaces could not be differentiated in full: There is no reverse mode"
    )
    assert [(leaf.path, leaf.kind, leaf.replaced) for leaf in found.leaves] == [("a", "cotangent", None)]


@pytest.mark.values
def test_inside_bodies_the_rule_is_taken_out_too():
    wrong = with_jvp(jnp.sin, lambda p, t: (jnp.sin(p[0]), t[0]))
    found = jaxviz.check_rule(lambda x: lax.scan(lambda c, _: (wrong(c), None), x, None, length=2)[0], 0.5)
    assert not found
    assert found.leaves[0].replaced == pytest.approx(found.leaves[0].numerical, rel=1e-4)


def test_nothing_to_differentiate_in():
    with pytest.raises(TypeError, match="no argument of <lambda> has a floating-point type"):
        jaxviz.check_rule(lambda n: n, 3)


def test_one_wrong_element_is_found_and_shown():
    """The errors cancel in a sum, so a sum does not show them."""
    swap = jnp.array([1.0, -1.0, 0.0])
    f = with_jvp(jnp.sin, lambda p, t: (jnp.sin(p[0]), jnp.cos(p[0]) * t[0] + swap * jnp.sum(t[0])))
    found = jaxviz.check_rule(f, X)
    assert not found
    assert found.leaves[0].verdict == "wrong"


def test_nondiff_arguments_are_left_alone():
    @functools.partial(jaxviz.custom_vjp, nondiff_argnums=(1,))
    def power(x, n):
        return x**n

    power.defvjp(lambda x, n: (x**n, x), lambda n, x, ct: (ct * n * x ** (n - 1.0),))
    found = jaxviz.check_rule(power, X, 3.0)
    assert found
    assert [leaf.path for leaf in found.leaves] == ["x"]
    assert found.notes == ("n was held fixed: it is in nondiff_argnums.",)


def test_a_rule_that_gives_nan_is_wrong():
    f = with_jvp(lambda x: x * 2.0, lambda p, t: (p[0] * 2.0, t[0] * jnp.nan))
    found = jaxviz.check_rule(f, X)
    assert not found
    assert {leaf.verdict for leaf in found.leaves} == {"wrong"}


def test_what_the_rule_raises_is_raised():
    def rule(primals, tangents):
        raise RuntimeError("of the rule")

    with pytest.raises(RuntimeError, match="of the rule"):
        jaxviz.check_rule(with_jvp(lambda x: x * 2.0, rule), X)


def root_with_rule(root_of):
    """Newton's square root, whose JVP rule takes the root from `root_of(rule's own function)`."""

    def root(a):
        return lax.while_loop(lambda x: jnp.abs(x * x - a) > 1e-6, lambda x: 0.5 * (x + a / x), a)

    def rule(primals, tangents):
        y = root_of(f, root)(*primals)
        return y, 0.5 * tangents[0] / y

    f = with_jvp(root, rule)
    return f


@pytest.mark.values
def test_a_rule_that_computes_with_the_loop_cannot_be_differentiated_again():
    """The most common mistake with `custom_jvp`: the rule uses the operations that it should replace."""
    once = jaxviz.check_rule(root_with_rule(lambda f, root: root), 2.0)
    assert once  # its result is right
    assert "Reverse-mode differentiation does not work for lax.while_loop" in once.no_second
    assert once.summary.endswith("agrees with numerical differences, but not every second derivative could be computed")
    assert once.no_second in " ".join(str(once).split())
    with pytest.raises(ValueError, match="Reverse-mode"):
        jax.grad(jax.grad(root_with_rule(lambda f, root: root)))(2.0)

    twice = jaxviz.check_rule(root_with_rule(lambda f, root: f), 2.0)
    assert twice
    assert not twice.no_second
    assert [(x.kind, x.path, x.verdict) for x in twice.second] == [
        ("cotangent", "the slope in a", "right"),
        ("tangent", "the slope in a", "right"),
    ]
    assert twice.second[0].rule == pytest.approx(-0.25 * 2**-1.5, rel=1e-5)


@pytest.mark.values
def test_a_rule_that_is_wrong_in_second_order_only():
    found = jaxviz.check_rule(root_with_rule(lambda f, root: lambda a: lax.stop_gradient(root(a))), 2.0)
    assert all(leaf.verdict == "right" for leaf in found.leaves)
    assert not found
    assert "is wrong in the cotangent of the slope in a: 0 where numerical differences give -0.0883" in found.summary


def test_the_second_derivative_of_a_custom_vjp():
    sine = with_vjp(jnp.sin, lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x),))
    assert [x.verdict for x in jaxviz.check_rule(sine, 0.5).second] == ["right", "right"]
    loose = with_vjp(jnp.sin, lambda x: (jnp.sin(x), lax.stop_gradient(x)), lambda x, ct: (ct * jnp.cos(x),))
    assert not jaxviz.check_rule(loose, 0.5)


def line_of(text):
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line)


def sites(found):
    return [(lost.operation, lost.location.line) for lost in found.lost]


@pytest.mark.values
def test_a_tie_of_min_and_max_is_where_a_second_derivative_is_lost():
    """The gradient at equal operands is right, and its derivative is not, since the weights of the two operands jump there."""

    def tied(a, b):
        low, high = jnp.minimum(a, b), jnp.maximum(a, b)  # tie
        return low**2 + high**2 + low * high

    found = jaxviz.check_rule(tied, 1.0, 1.0)
    assert all(leaf.verdict == "right" for leaf in found.leaves)
    assert not found
    assert jax.hessian(tied)(1.0, 1.0) != pytest.approx(2.0)
    assert sites(found) == [("min", line_of("# tie")), ("max", line_of("# tie"))]
    assert all("where its operands are equal" in lost.why for lost in found.lost)
    assert found.summary.startswith("derivative of tied is wrong in the cotangent of the slope in a: ")
    assert found.summary.endswith(f"; see test_rule_check.py:{line_of('# tie')}")
    assert jaxviz.check_rule(tied, 1.0, 2.0)


@pytest.mark.values
@pytest.mark.parametrize("nested", [False, True])
def test_a_stop_gradient_in_a_rule_is_named_with_its_line(nested):
    def root(a):
        return lax.while_loop(lambda x: jnp.abs(x * x - a) > 1e-6, lambda x: 0.5 * (x + a / x), a)

    def rule(primals, tangents):
        y = lax.stop_gradient(root(*primals))  # stopped
        return y, 0.5 * tangents[0] / y

    f = with_jvp(root, rule)
    found = jaxviz.check_rule(jax.jit(lambda a: jnp.sin(f(3.0 * a)) * a) if nested else f, 2.0)
    assert not found
    assert sites(found) == [("stop_gradient", line_of("# stopped"))]
    assert "its derivative is zero" in str(found)


@pytest.mark.values
def test_a_stop_gradient_in_a_forward_rule_is_named_too():
    loose = with_vjp(
        jnp.sin,
        lambda x: (jnp.sin(x), lax.stop_gradient(x)),  # loose
        lambda x, ct: (ct * jnp.cos(x),),
    )
    assert sites(jaxviz.check_rule(loose, 0.5)) == [("stop_gradient", line_of("# loose"))]


@pytest.mark.values
@pytest.mark.parametrize("around", ["scan", "cond", "scan of cond"])
def test_inside_a_loop_or_a_branch_the_line_is_found(around):
    def rule(primals, tangents):
        y = lax.stop_gradient(jnp.sin(*primals))  # inside
        return y, tangents[0] * jnp.sqrt(1 - y * y)

    f = with_jvp(jnp.sin, rule)
    taken = lambda x: lax.cond(x > 0, f, jnp.cos, x)
    looped = lambda f: lambda x: lax.scan(lambda c, k: (f(c) * k, None), x, jnp.arange(1.0, 4.0))[0]
    model = {"scan": looped(f), "cond": taken, "scan of cond": looped(taken)}[around]
    found = jaxviz.check_rule(model, 0.7)
    assert not found
    assert sites(found) == [("stop_gradient", line_of("# inside"))]


@pytest.mark.values
def test_a_condition_that_is_met_exactly_is_where_a_derivative_is_lost():
    found = jaxviz.check_rule(lambda a, b: jnp.where(a < b, a, b) + jnp.where(a > b, a, b), 1.0, 1.0)  # chosen
    assert not found
    assert sites(found) == [("select_n", line_of("# chosen"))]


@pytest.mark.values
def test_the_function_whose_rule_is_wrong_is_named_with_its_line():
    wrong = with_jvp(lambda x: jnp.sin(x), lambda p, t: (jnp.sin(p[0]), t[0]))
    right = with_jvp(lambda x: jnp.cos(x), lambda p, t: (jnp.cos(p[0]), -jnp.sin(p[0]) * t[0]))

    def model(x):
        h = right(x)
        return jnp.sum(wrong(h) * h)  # wrong rule

    found = jaxviz.check_rule(model, X)
    assert sites(found) == [("custom_jvp_call", line_of("# wrong rule"))]
    assert "derivative of model is wrong" in str(found)


@pytest.mark.values
@pytest.mark.parametrize("mode", ["jvp", "vjp"])
def test_a_rule_whose_result_is_not_that_of_its_function(mode):
    """`jax.grad` is right, `jax.value_and_grad` is not, nor are derivatives that go through the result."""
    near = lambda x: jnp.sin(x) + 0.01
    if mode == "jvp":
        f = with_jvp(jnp.sin, lambda p, t: (near(p[0]), jnp.cos(p[0]) * t[0]))
    else:
        f = with_vjp(jnp.sin, lambda x: (near(x), x), lambda x, ct: (ct * jnp.cos(x),))
    assert jax.value_and_grad(f)(0.5)[0] != pytest.approx(f(0.5))
    found = jaxviz.check_rule(f, 0.5)
    assert not found
    first = found.leaves[0]
    assert (first.kind, first.path, first.verdict) == ("result", "output", "wrong")
    assert (first.rule, first.numerical) == pytest.approx((float(near(0.5)), float(jnp.sin(0.5))), rel=1e-5)
    assert "is wrong in the result of output" in found.summary
    assert "where the function gives" in found.summary


@pytest.mark.values
def test_an_interrupt_ends_the_wait_for_the_compiler(monkeypatch, nothing_from_disk):
    compile_, goes_on = jax.stages.Lowered.compile, threading.Event()

    def compile_slowly(*args, **kwargs):
        if not goes_on.is_set():
            _thread.interrupt_main()
            goes_on.wait()
        return compile_(*args, **kwargs)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile_slowly)
    try:
        with pytest.raises(KeyboardInterrupt):
            jaxviz.check_rule(jnp.tanh, X)
    finally:
        goes_on.set()
    assert jaxviz.check_rule(jnp.tanh, X)


@pytest.mark.values
def test_the_function_is_traced_and_compiled_once_for_all_its_differences(nothing_from_disk):
    def calls(n):
        count = 0

        def f(x):
            nonlocal count
            count += 1
            return jnp.sum(x * jnp.roll(x, 1))

        wrong = with_jvp(f, lambda p, t: (f(p[0]), jnp.sum(t[0])))
        assert not jaxviz.check_rule(wrong, jnp.arange(1.0, n + 1))
        return count

    assert calls(2) == calls(30)


def test_a_function_that_looks_at_values_is_run_as_it_is():
    f = lambda x: x**2 if x > 0 else -x
    assert jaxviz.check_rule(f, 2.0).agrees


@pytest.mark.parametrize("value", [None, 3, "text", ()])
def test_a_function_without_a_floating_point_result(value):
    with pytest.raises(TypeError, match="check_rule: <lambda> returns no floating-point value"):
        jaxviz.check_rule(lambda x: value, 1.0)


def test_a_type_is_no_point():
    with pytest.raises(TypeError, match="pass arrays, and not only their types"):
        jaxviz.check_rule(jnp.sum, jax.ShapeDtypeStruct((3,), jnp.float32))


@pytest.mark.parametrize("tol", [-1.0, 0.0, float("nan"), float("inf"), "small"])
def test_a_tolerance_is_a_positive_number(tol):
    with pytest.raises(ValueError, match="a positive number such as 1e-4: got"):
        jaxviz.check_rule(jnp.sin, 1.0, tol=tol)


@pytest.mark.values
def test_seeds_have_the_sharding_that_types_over_explicit_axes_require():
    """JAX checks it where the function is not compiled, as where its Python looks at values, and the rule may check it too."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    spec = PartitionSpec("a", "b")

    def rule(x, ct):
        assert jax.typeof(ct).sharding == jax.typeof(x).sharding
        return (ct * jnp.cos(x),)

    f = with_vjp(jnp.sin, lambda x: (jnp.sin(x), x), rule)
    wrong = with_vjp(jnp.sin, lambda x: (jnp.sin(x), x), lambda x, ct: (2 * rule(x, ct)[0],))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.linspace(0.1, 1.0, 16).reshape(4, 4), spec)
        for choose in (lambda f: f, lambda f: lambda x: f(x) if x.sum() > 0 else x):
            assert jaxviz.check_rule(choose(f), x)
            found = jaxviz.check_rule(choose(wrong), x)
            assert [leaf.verdict for leaf in found.leaves] == ["wrong"]
            assert found.leaves[0].rule == pytest.approx(2 * found.leaves[0].numerical, rel=1e-4)
