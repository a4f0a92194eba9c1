"""Every report says that a function has no gradient in reverse mode: because of which loop, what bounds it, and what to write."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxviz


def decays(x):
    return lax.while_loop(lambda c: c[0] < x[0], lambda c: (c[0] + 1.0, c[1] * x[1]), (0.0, 1.0))[1]


def triangle(x):
    def row(i, s):
        return lax.fori_loop(0, i + 1, lambda j, s: s + jnp.sin(x[0]) * j, s)

    return lax.fori_loop(0, 5, row, 0.0)


def from_diagonal(x):
    def row(s, i):
        return lax.fori_loop(i, 7, lambda j, s: s + jnp.sin(x[0]) * j, s), None

    return lax.scan(row, 0.0, jnp.arange(7))[0]


def counted(x):
    return lax.fori_loop(0, jnp.sum(x > 0), lambda i, v: jnp.cos(v), x)[0]


def fixed_in_a_loop(x):
    n = jnp.sum(x > 0)
    return lax.fori_loop(0, 5, lambda i, s: lax.fori_loop(0, n, lambda j, s: s + jnp.sin(x[0]), s), 0.0)


X = jnp.array([3.0, 2.0])
INSTEAD = {
    decays: "write a jax.lax.scan",
    triangle: "Its bound is the index of the loop around it",
    from_diagonal: "Its bound is the index of the loop around it",
    counted: "Its bound is not a fixed number under jit",
    fixed_in_a_loop: "Its bound is not a fixed number under jit",
}
LINES = {decays: 1, triangle: 2, from_diagonal: 2, counted: 1, fixed_in_a_loop: 2}
RAISES = ("memory", "plan_remat", "compare_policies", "compile_cost")


def said(f, report):
    if report in RAISES:
        with pytest.raises(jaxviz.ReverseModeError) as caught:
            getattr(jaxviz, report)(f, X)
        return str(caught.value)
    args = (f, f, X) if report == "compare" else (f, X)
    return " ".join(str(getattr(jaxviz, report)(*args)).split())


@pytest.mark.parametrize("f", INSTEAD)
def test_the_loop_and_what_to_write(f):
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.jit(jax.grad(f))(X)  # outside of jit, a bound may be a number
    found = said(f, "residuals")
    line = inspect.getsourcelines(f)[1] + LINES[f]
    assert f"test_no_reverse_mode.py:{line})" in found
    assert INSTEAD[f] in found
    assert "Forward mode" in found
    jax.jvp(f, (X,), (X,))


@pytest.mark.parametrize("report", [
    "residuals", "lint", "policies", "cost", "compiled_memory", "collectives", "compare", "step", "find_nan", *RAISES,
])  # fmt: skip
def test_every_report_says_so(report):
    found = said(triangle, report)
    assert "Its bound is the index of the loop around it" in found
    assert "such as 5" in found
    assert "gradient of `triangle`" not in found


def test_the_title_of_the_explorer():
    assert jaxviz.explore(triangle, X).view.title == "function `triangle` (no reverse-mode gradient)"


def test_the_advice_is_differentiable():
    def masked(x):
        def row(i, s):
            body = lambda j, s: s + jnp.sin(x[0]) * j
            return lax.fori_loop(0, 5, lambda j, s: jnp.where(j < i + 1, body(j, s), s), s)

        return lax.fori_loop(0, 5, row, 0.0)

    assert jnp.allclose(masked(X), triangle(X))
    assert jnp.allclose(jax.grad(masked)(X), jax.jacfwd(triangle)(X))
    assert "gradient of `masked`" in jaxviz.residuals(masked, X).summary


def test_a_loop_that_is_not_differentiated_has_a_gradient():
    f = lambda x: jnp.sin(x[0]) * lax.while_loop(lambda i: i < 5, lambda i: i + 1, 0)
    assert "gradient of `<lambda>` in `x`" in jaxviz.residuals(f, X).summary
    assert "no reverse-mode" not in str(jaxviz.compiled_memory(f, X))


@pytest.mark.parametrize("report", ["residuals", "lint", "cost", "memory"])
def test_a_loop_in_a_librarys_jitted_function_has_the_users_line_too(tmp_path, report):
    file = tmp_path / "site-packages" / "halving.py"
    file.parent.mkdir()
    file.write_text(
        "import jax\n\n\n@jax.jit\ndef halved(x):\n    return jax.lax.while_loop(lambda x: x > 1.0, lambda x: 0.5 * x, x)\n"
    )
    space = {}
    exec(compile(file.read_text(), str(file), "exec"), space)

    def f(x):
        return space["halved"](x[0])

    found = said(f, report)
    assert "halving.py:6" in found
    assert f"test_no_reverse_mode.py:{inspect.getsourcelines(f)[1] + 1})" in found
