"""Arguments and errors of the functions that mirror jax's: the same, with the argument's path."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from laws import side_by_side
from lines import line_of

import jaxviz

X = jnp.arange(1.0, 4.0)
PARAMS = {"w": X, "n": 3}


def both(call):
    """The errors of jax's and jaxviz's function for the same call."""
    errors = []
    for library in (jax, jaxviz):
        with pytest.raises(Exception) as caught:  # noqa: PT011  whatever jax raises
            call(library)
        errors.append(caught.value)
    return errors


@pytest.mark.parametrize(
    ("call", "path"),
    [
        (lambda: jaxviz.grad(lambda p: p["w"].sum())(PARAMS), "p['n']"),
        (lambda: jaxviz.jacrev(lambda p, q: p, 1)(1.0, 2), "q"),
        (lambda: jaxviz.jvp(lambda a, b: a, (X, (X, X)), (X, (X, X[:2]))), "b[1]"),
        (lambda: jaxviz.trace(lambda a, b: a)(1.0, {"k": "text"}), "b['k']"),
        (lambda: jaxviz.vjp(lambda a, b: a, 1.0, [object()]), "b[0]"),
    ],
)
def test_an_error_names_the_argument_by_its_path(call, path):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert path in str(caught.value)


@pytest.mark.parametrize("argnums", [2, (0, 5), -3, (1, -4)])
def test_an_argument_that_there_is_not_is_refused_in_jaxs_words(argnums):
    f = lambda x, y: x * y
    theirs, ours = both(lambda m: m.grad(f, argnums=argnums)(1.0, 2.0))
    assert type(ours) is type(theirs)
    assert str(ours) == str(theirs)
    with pytest.raises(type(theirs)) as caught:
        jaxviz.derive(f, 1.0, 2.0, argnums=argnums)
    assert str(caught.value) == str(theirs)


def halving(x):
    return lax.while_loop(lambda c: c > 1.0, lambda c: c / 2.0, x)  # here


def test_a_while_loop_has_forward_mode_only():
    np.testing.assert_allclose(jaxviz.jvp(halving, (5.0,), (1.0,)), jax.jvp(halving, (5.0,), (1.0,)))
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work") as of_jax:
        jax.grad(halving)(5.0)
    with pytest.raises(jaxviz.ReverseModeError) as caught:
        jaxviz.grad(halving)(5.0)
    assert str(caught.value).startswith(str(of_jax.value))
    assert f"test_api.py:{halving.__code__.co_firstlineno + 1}" in str(caught.value)


def with_jvp(rule):
    made = jax.custom_jvp(lambda x: jnp.sin(x))
    made.defjvp(rule)
    return made


def stops(primals, tangents):
    raise RuntimeError("not today")


reverse_only = jax.custom_vjp(jnp.sin)
reverse_only.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x),))
of_other_shapes = with_jvp(lambda primals, tangents: (jnp.ones(3) @ jnp.ones(4), tangents[0]))  # JAX puts a note on it
with_an_error = with_jvp(stops)
loop_in_a_jit = jax.jit(halving)


def of_a_loop(x):
    return loop_in_a_jit(x)


def only_in_reverse(x):
    return reverse_only(x) * 2.0  # here


def with_other_shapes(x):
    return of_other_shapes(x) * 2.0  # here


def with_a_rule_that_raises(x):
    return with_an_error(x) * 2.0  # here


def writing(x):
    return jax.new_ref(x)[...]  # here


def squared(x):
    return x * x  # here


PLACED = {
    of_a_loop: (jaxviz.grad, jaxviz.ReverseModeError, r"Reached at `while` \(equation \d+, "),
    only_in_reverse: (jaxviz.jacfwd, jaxviz.ForwardModeError, "has only a reverse-mode rule"),
    with_other_shapes: (jaxviz.grad, TypeError, "dot_general"),
    with_a_rule_that_raises: (jaxviz.grad, RuntimeError, "not today"),
    writing: (jaxviz.grad, jaxviz.NoRuleError, "'new_ref' not implemented"),
    squared: (
        lambda f: lambda x: jaxviz.linear_transpose(f, x), jaxviz.EquationError, r"The function is not linear.*jax\.linearize",
    ),
}  # fmt: skip


@pytest.mark.parametrize("f", PLACED, ids=lambda f: f.__name__)
def test_an_error_is_placed_once_at_the_users_line(f):
    transform, error, message = PLACED[f]
    with pytest.raises(error, match=message) as caught:
        transform(f)(2.0)
    line = line_of(halving if f is of_a_loop else f)
    assert (
        sum(f"test_api.py:{line}" in text for text in [str(caught.value), *getattr(caught.value, "__notes__", ())]) == 1
    )


def test_an_error_lists_the_arguments_also_those_that_are_not_differentiated():
    def f(w, x, mode):
        return jnp.sum(w @ x)

    with pytest.raises(TypeError) as caught:
        jaxviz.grad(f)(X, jnp.ones((4, 2)), "fast")
    (note,) = (n for n in caught.value.__notes__ if n.startswith("The function is"))
    assert note.endswith("called with w: f32[3], x: f32[4,2], mode: str.")


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


@pytest.mark.parametrize("call", [jaxviz.grad, jaxviz.value_and_grad], ids=["grad", "value_and_grad"])
def test_a_misspelt_option_is_refused(call):
    with pytest.raises(ValueError, match="cond_residuals must be 'jax' or 'recompute'; got 'recomput'"):
        call(lambda x: x * x, cond_residuals="recomput")(1.0)
    with pytest.raises(ValueError, match="got 'recomput'"):
        jaxviz.derive(lambda x: x * x, 1.0, cond_residuals="recomput").forward  # noqa: B018
