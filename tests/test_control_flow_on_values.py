"""Python branches on values: recorded along the path they take, and rejected where JAX rejects them."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxviz


def piecewise(x):
    return x**2 if x > 0 else -x


@jax.jit
def piece(x):
    return jnp.sin(x) * 1.5


def loop(x):
    while x < 3:
        x = piece(x) + x
    return x


def scaled_by_itself(x):
    return x * float(jax.lax.stop_gradient(x))


def picks(x):
    return x[int(jnp.argmax(x))] ** 2


def early_return(x):
    y = jnp.sum(x**2)
    if y > 100:
        return y
    for i in range(int(jax.lax.stop_gradient(jnp.round(y)))):
        y = y * (1 + i * 0.1)
    return y


def numpy_of_what_carries_no_tangent(x):
    scale = np.asarray(jax.lax.stop_gradient(x)).max()
    return jnp.sum(x) * scale


CASES = [
    (piecewise, 3.0), (piecewise, -3.0), (loop, 1.0), (scaled_by_itself, 2.0), (picks, jnp.array([1.0, 5.0, 2.0])),
    (early_return, jnp.array([1.0, 1.5])), (numpy_of_what_carries_no_tangent, jnp.array([1.0, 4.0])),
]  # fmt: skip
cases = pytest.mark.parametrize(("fun", "x"), CASES, ids=[f"{f.__name__}-{i}" for i, (f, _) in enumerate(CASES)])


@pytest.mark.slow
@cases
def test_as_in_jax_without_jit(fun, x):
    one = jnp.ones_like(jnp.asarray(x))
    np.testing.assert_allclose(jaxviz.grad(fun)(x), jax.grad(fun)(x), 1e-5)
    np.testing.assert_allclose(jaxviz.vjp(fun, x)[1](1.0)[0], jax.vjp(fun, x)[1](1.0)[0], 1e-5)
    np.testing.assert_allclose(jaxviz.jvp(fun, (x,), (one,)), jax.jvp(fun, (x,), (one,)), 1e-5)
    np.testing.assert_allclose(jaxviz.linearize(fun, x)[1](one), jax.linearize(fun, x)[1](one), 1e-5)


@cases
def test_residuals_are_jaxs(fun, x):
    check = jaxviz.derive(fun, x).check()
    assert check.agrees, check


@cases
def test_the_program_says_that_it_is_one_path(fun, x):
    program = jaxviz.trace(fun)(x)
    assert program.is_path
    assert program.branches
    assert str(program).startswith("# one path, recorded on concrete values:")
    for stage in ("jvp", "forward", "linear", "backward"):
        assert getattr(jaxviz.derive(fun, x), stage).is_path


def test_a_branch_point_has_its_line_and_the_side_taken():
    _, start = inspect.getsourcelines(piecewise)
    for x, side in ((3.0, True), (-3.0, False)):
        (branch,) = jaxviz.trace(piecewise)(x).branches
        assert (branch.kind, branch.value) == ("bool", side)
        assert branch.location.file == __file__
        assert branch.location.line == start + 1
        assert branch.location.function == "piecewise"


def test_every_turn_of_a_loop_is_a_branch_point():
    branches = jaxviz.trace(loop)(1.0).branches
    assert [b.value for b in branches] == [True] * (len(branches) - 1) + [False]
    assert len(branches) > 1


def test_a_function_that_looks_at_nothing_is_no_path():
    program = jaxviz.trace(jnp.sin)(1.0)
    assert not program.is_path
    assert program.branches == ()


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: float(x) * x,
        lambda x: x * np.asarray(x),
        lambda x: x * np.sin(x),
        lambda x: complex(x).real * x,
    ],
    ids=["float", "asarray", "np.sin", "complex"],
)
def test_a_value_that_carries_a_tangent_may_not_leave(fun):
    with pytest.raises(Exception) as jaxs:  # noqa: PT011  whatever jax raises
        jax.grad(fun)(2.0)
    with pytest.raises(type(jaxs.value)) as ours:
        jaxviz.grad(fun)(2.0)
    assert str(ours.value).split("\n")[0].split(":")[0] == str(jaxs.value).split("\n")[0].split(":")[0]


def test_what_jax_lets_leave():
    f = lambda x: x * x.item()
    assert jaxviz.grad(f)(3.0) == jax.grad(f)(3.0) == 3.0


def test_what_is_not_differentiated_may_leave():
    def f(x, n):
        return x * float(n)

    assert jaxviz.grad(f)(2.0, jnp.float32(3.0)) == 3.0
    assert jaxviz.derive(f, 2.0, jnp.float32(3.0)).check().agrees


@pytest.mark.parametrize("outer", [jax.jit, lambda f: lambda x: jax.vmap(f)(jnp.array([x, -x]))], ids=["jit", "vmap"])
def test_under_an_outer_transform_the_error_is_jaxs(outer):
    with pytest.raises(jax.errors.TracerBoolConversionError, match="Attempted boolean conversion of traced array"):
        outer(jaxviz.grad(piecewise))(3.0)


def test_higher_order():
    assert jaxviz.grad(jaxviz.grad(piecewise))(3.0) == 2.0
    assert jax.grad(jaxviz.grad(piecewise))(3.0) == 2.0
    assert jaxviz.grad(jax.grad(piecewise))(3.0) == 2.0
    nested = jaxviz.grad(lambda x: x * jaxviz.grad(lambda y: y * x if y > x else y)(x + 1))
    assert nested(2.0) == jax.grad(lambda x: x * jax.grad(lambda y: y * x if y > x else y)(x + 1))(2.0)


def test_an_outer_tangent_may_not_leave_through_an_inner_function():
    def through(grad):
        return grad(lambda x: grad(lambda y: y * float(x))(1.0))

    for grad in (jax.grad, jaxviz.grad):
        with pytest.raises(jax.errors.ConcretizationTypeError):
            through(grad)(2.0)


def test_a_loop_around_jitted_pieces_compiles_each_once():
    count = 0

    @jax.jit
    def counted(x):
        nonlocal count
        count += 1
        return jnp.sin(x) + x

    def f(x):
        while x < 3:
            x = counted(x)
        return x

    jaxviz.grad(f)(1.0)
    assert count == 1


def test_a_custom_rule_on_the_path_is_traced_once_more_for_its_tangents():
    @jax.custom_jvp
    def by_jvp(x):
        return jnp.sin(x)

    by_jvp.defjvp(lambda primals, tangents: (by_jvp(*primals), jnp.cos(primals[0]) * tangents[0]))

    @jax.custom_vjp
    def by_vjp(x):
        return jnp.sin(x)

    by_vjp.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda residual, g: (residual * g,))

    def f(x):
        y = by_vjp(by_jvp(jnp.sin(x)))
        return by_jvp(y).sum() if y.sum() > 0 else by_vjp(y).sum()

    for x in (jnp.ones(3), -jnp.ones(3)):
        assert jaxviz.derive(f, x).check().agrees
        assert jnp.array_equal(jaxviz.grad(f)(x), jax.grad(f)(x))
