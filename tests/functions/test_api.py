"""Arguments and errors of the functions that mirror jax's: the same, with the argument's path."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcripts
from jax import lax
from laws import side_by_side

import jaxviz

X = jnp.arange(1.0, 4.0)


def halving(x):
    return lax.while_loop(lambda c: c > 1.0, lambda c: c / 2.0, x)  # here


def test_compiled_operations_are_placed_at_the_users_line():
    def f(x):
        return jnp.sum(jnp.sin(x) ** 2)

    text = jax.jit(jaxviz.grad(f)).lower(X).as_text(debug_info=True)
    assert f'test_api.py":{f.__code__.co_firstlineno + 1}:' in text
    assert "ir/compat" not in text


def test_a_program_that_cannot_be_derived_can_still_be_seen():
    derivation = jaxviz.derive(halving, 2.0)
    assert "while" in str(derivation.primal)
    assert "while" in str(derivation.linear)
    assert derivation.links


# --- arguments --------------------------------------------------------------------------------------------------------


def test_argnums_keywords_and_static_values():
    def f(x, power, *, scale=1.0, mode="plain"):
        return jnp.sum(x**power) * scale * (2.0 if mode == "double" else 1.0)

    for argnums in (0, (0,), -2):
        want = jax.grad(f, argnums)(X, 3, scale=2.0, mode="double")
        got = jaxviz.grad(f, argnums)(X, 3, scale=2.0, mode="double")
        jax.tree.map(np.testing.assert_array_equal, got, want)
        assert jax.tree.structure(got) == jax.tree.structure(want)


def test_a_symbolic_zero_is_never_written_out():
    d = jaxviz.derive(lambda x, y: (x * 2.0, jnp.sin(y)), 1.0, 1.0)
    assert [e.primitive.name for e in d.linear.equations] == ["mul"]
    assert len(d.linear.outvars) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jacfwd", "jacrev", "hessian"])
def test_jacobians_of_trees(name):
    f = lambda p: {"a": p["x"] * jnp.sum(p["y"] ** 2), "b": jnp.sin(p["y"][0])}
    side_by_side(lambda m, p: getattr(m, name)(f)(p), {"x": X, "y": jnp.ones((2, 2))})


@pytest.mark.slow
def test_replacing_jaxs_functions_turns_in_no_circle(monkeypatch):
    names = ["grad", "value_and_grad", "vjp", "jvp", "linearize", "linear_transpose", "jacfwd", "jacrev", "hessian"]
    want = jax.hessian(lambda x: jnp.sum(jnp.sin(x) ** 2))(X)
    for name in names:
        monkeypatch.setattr(jax, name, getattr(jaxviz, name))
    np.testing.assert_allclose(jax.hessian(lambda x: jnp.sum(jnp.sin(x) ** 2))(X), want, 1e-5)
    assert jax.grad(jax.grad(jnp.sin))(1.0) == pytest.approx(-np.sin(1.0), rel=1e-5)
    assert jaxviz.derive(lambda x: jnp.sum(jnp.sin(x)), X).check().agrees


def test_a_primitive_registered_today_works_today():
    from jax.extend.core import Primitive
    from jax.interpreters import ad, mlir

    triple = Primitive("triple")
    triple.def_impl(lambda x: x * 3)
    triple.def_abstract_eval(lambda x: x)
    mlir.register_lowering(triple, mlir.lower_fun(lambda x: x * 3, multiple_results=False))
    with pytest.raises(jaxviz.NoRuleError, match="Differentiation rule for 'triple' not implemented"):
        jaxviz.grad(triple.bind)(1.0)
    ad.deflinear(triple, lambda ct: [triple.bind(ct)])
    assert jaxviz.grad(lambda x: triple.bind(jnp.sin(x)))(0.0) == 3.0
    assert "triple" in str(jaxviz.derive(triple.bind, 1.0).backward)


def test_memo_tables_find_a_rule_once_and_can_be_emptied():
    from jaxviz.transforms.linearize import linearize_rules

    jaxviz.clear_caches()
    f = lambda x: jnp.sin(jnp.sin(jnp.sin(x)))
    assert jaxviz.derive(f, X).linear.equations
    assert len(linearize_rules) == 1
    (rule,) = linearize_rules.values()
    assert jaxviz.derive(f, X).linear.equations
    assert list(linearize_rules.values()) == [rule]
    jaxviz.clear_caches()
    assert len(linearize_rules) == 0


@pytest.mark.slow
def test_what_a_user_drops_is_dropped():
    """The caches keep rules for primitives; a jitted function and its closure are freed with the user's reference."""
    import gc
    import weakref

    def make():
        big = jnp.ones((64, 64)) * 3
        inner = jax.jit(lambda x: jnp.sum(big * x))
        jaxviz.grad(lambda x: inner(x) ** 2)(2.0)
        jaxviz.derive(lambda x: inner(x) ** 2, 2.0).check()
        jaxviz.grad(lambda x: inner(x) if x > 0 else x)(2.0)
        return weakref.ref(big)

    gone = make()
    jax.clear_caches()  # JAX's own
    gc.collect()
    assert gone() is None


@transcripts.of("api")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)
