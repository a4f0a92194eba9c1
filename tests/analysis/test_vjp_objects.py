"""Reports on what `vjp` returned, of jaxviz and of JAX."""

import weakref
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from hi_primitives import HiPrim, OnlyReverse

import jaxviz
from jaxviz.functions.vjp_function import VJP

W = {"a": jnp.linspace(-1.0, 1.0, 32).reshape(4, 8), "b": jnp.linspace(-1.0, 1.0, 32).reshape(8, 4)}
X = jnp.linspace(0.1, 1.0, 4)


def loss(params, x):
    h = jnp.sin(x @ params["a"])
    return jnp.sum(jnp.tanh(h @ params["b"]) ** 2)


def scanned(params, x):
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x @ params["a"] @ params["b"], jnp.ones((3, 4, 4)))[0]


@pytest.mark.parametrize("f", [loss, scanned])
def test_of_jaxviz_it_is_the_gradient_of_the_function(f):
    _, f_vjp = jaxviz.vjp(f, W, X)
    of_object, of_function = jaxviz.residuals(f_vjp), jaxviz.residuals(f, W, X, argnums=(0, 1))
    assert [(r.expression, r.location, r.type, r.why) for r in of_object] == [
        (r.expression, r.location, r.type, r.why) for r in of_function
    ]
    assert jaxviz.memory(f_vjp).peak_nbytes == jaxviz.memory(f, W, X, argnums=(0, 1)).peak_nbytes


@pytest.mark.parametrize("f", [loss, scanned])
def test_of_jax_it_is_what_the_object_holds(f):
    _, f_vjp = jax.vjp(f, W, X)
    found = jaxviz.residuals(f_vjp)
    values = [r for r in found if r.kind != "argument"]
    assert [r.expression for r in values] == [f"opaque_residuals[{i}]" for i in range(len(values))]
    assert Counter(r.type for r in values) == Counter(
        jax.typeof(x).str_short(short_dtypes=True) for x in f_vjp.opaque_residuals
    )
    arguments = {r.expression for r in found if r.kind == "argument"}
    assert arguments <= {"args[0]['a']", "args[0]['b']", "args[1]"}
    assert arguments
    first = f.__code__.co_firstlineno
    assert {r.location.line - first for r in found} <= {0, 1, 2}
    assert "holds only the linear program" in " ".join(str(found).split())


@jax.custom_vjp
def custom(x):
    return jnp.sin(x)


custom.defvjp(lambda x: (custom(x), (x, jnp.cos(x))), lambda saved, g: (g * saved[1],))
only_reverse = lambda x: OnlyReverse(jax.typeof(x))(x)


@pytest.mark.parametrize("rule", [custom, only_reverse])
@pytest.mark.parametrize(
    "f",
    [
        lambda rule, x: rule(2.0 * x),
        lambda rule, x: jax.jit(rule)(2.0 * x),
        lambda rule, x: jax.lax.scan(lambda c, _: (rule(c), None), x, None, length=3)[0],
        lambda rule, x: jax.lax.cond(x[0] > 0, rule, jnp.cos, x),
    ],
    ids=["plain", "jit", "scan", "cond"],
)
def test_the_derivative_of_a_custom_rule_is_read(f, rule):
    _, f_vjp = jax.vjp(lambda x: jnp.sum(f(rule, x)), X)
    found = jaxviz.residuals(f_vjp)
    of_leaves = {
        f"opaque_residuals[{i}]": jax.typeof(x).str_short(short_dtypes=True)
        for i, x in enumerate(f_vjp.opaque_residuals)
    }
    assert {r.expression: r.type for r in found if r.kind != "argument"} == of_leaves


class Structured(HiPrim):
    """The hyperbolic tangent, which saves a tree."""

    def __init__(self, aval):
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        super().__init__()

    def expand(self, x):
        return jnp.tanh(x)

    def vjp_fwd(self, nonzeros, x):
        y = jnp.tanh(x)
        return y, x, True, {"slope": [1 - y * y, y], "scale": jnp.ones(())}

    def vjp_bwd(self, x, tree, ct, accumulator):
        accumulator.accum(ct * tree["slope"][0] * tree["scale"])


def test_structured_residuals_are_named_by_their_path():
    if jax.__version_info__ < (0, 11, 1):
        pytest.skip("before JAX 0.11.1 there are none")
    structured = lambda x: Structured(jax.typeof(x))(x)
    _, f_vjp = jax.vjp(lambda w, x: jnp.sum(jax.jit(structured)(structured(x @ w["a"]))), W, X)
    paths, _ = jax.tree_util.tree_flatten_with_path(f_vjp.structured_residuals)
    expected = {f"structured_residuals{jax.tree_util.keystr(path)}" for path, _ in paths}
    found = jaxviz.residuals(f_vjp)
    assert {r.expression for r in found if r.path.startswith("structured")} == expected
    assert any("['slope'][1]" in path for path in expected)
    assert {r.expression for r in found if r.kind == "argument"} == {"args[0]['a']", "args[1]"}
    read = {r.expression for r in found if r.is_read and r.path}
    assert {path for path in expected if "['slope'][0]" in path or "['scale']" in path} <= read


def test_other_reports_need_the_function():
    with pytest.raises(TypeError, match="does not hold the function"):
        jaxviz.memory(jax.vjp(loss, W, X)[1])


def test_one_is_read_in_a_function_that_is_traced():
    @jax.jit
    def step(params, x):
        y, f_vjp = jax.vjp(loss, params, x)
        assert jaxviz.residuals(f_vjp).nbytes > 0
        return y, f_vjp(1.0)

    step(W, X)


def test_arguments_that_are_not_saved_are_named():
    if jax.__version_info__ < (0, 11):
        pytest.skip("before JAX 0.11 all arguments are saved")
    _, f_vjp = jax.vjp(loss, W, X, saveable_args=(False, True))
    assert "args[0]['a']" in str(jaxviz.residuals(f_vjp))


def test_it_does_not_keep_arguments_that_it_does_not_need():
    """As in JAX, whose object has a mark in their place."""
    x = jnp.ones(1000) * 2.0
    held = weakref.ref(x)
    _, f_vjp = jaxviz.vjp(lambda x: (x + 1.0).sum(), x)
    del x
    assert held() is None
    assert isinstance(f_vjp, VJP)
    f_vjp(1.0)


@pytest.mark.parametrize("take_out", [{"saveable_args": (False, True)}, {}])
def test_arguments_have_to_be_put_back_before_it_is_called(take_out):
    y, f_vjp = jaxviz.vjp(loss, W, X, **take_out)
    if not take_out:
        f_vjp.args_res[0] = None
    with pytest.raises(ValueError, match="args_res"):
        f_vjp(y)
    f_vjp.args_res[0] = W
    for found, wanted in zip(jax.tree.leaves(f_vjp(y)), jax.tree.leaves(jax.vjp(loss, W, X)[1](y)), strict=True):
        assert jnp.allclose(found, wanted, atol=1e-6)
