"""Arguments and errors of the functions that mirror jax's: the same, with the argument's path."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from test_parity import both_ways

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


BAD = {
    "result that is no scalar": lambda m: m.grad(jnp.sin)(X),
    "result that is not an array": lambda m: m.grad(lambda x: "text")(1.0),
    "integer argument": lambda m: m.grad(lambda x: x * 1.0)(3),
    "integer in a tree": lambda m: m.grad(lambda p: p["w"].sum())(PARAMS),
    "boolean argument": lambda m: m.jacrev(jnp.sin)(True),
    "text argument": lambda m: m.grad(lambda x: 1.0)("text"),
    "integer result": lambda m: m.grad(lambda x: jnp.int32(3))(1.0),
    "complex argument": lambda m: m.grad(lambda z: jnp.abs(z), holomorphic=True)(1.0),
    "complex result": lambda m: m.grad(lambda x: x * 1j)(1.0),
    "argnums beyond the arguments": lambda m: m.grad(lambda x: x, argnums=2)(1.0),
    "argnums before the first argument": lambda m: m.grad(lambda x, y: x, argnums=(0, -3))(1.0, 2.0),
    "argnums that are no numbers": lambda m: m.grad(lambda x: x, argnums="x")(1.0),
    "no function": lambda m: m.grad(3)(1.0),
    "aux that is no pair": lambda m: m.grad(lambda x: x, has_aux=True)(1.0),
    "jvp without tuples": lambda m: m.jvp(jnp.sin, 1.0, 1.0),
    "jvp of other structure": lambda m: m.jvp(jnp.sin, (1.0,), ((1.0, 2.0),)),
    "jvp of other shape": lambda m: m.jvp(jnp.sin, (X,), (X[:2],)),
    "jvp of other dtype": lambda m: m.jvp(jnp.sin, (X,), (X.astype(jnp.bfloat16),)),
    "jvp of integers with floats": lambda m: m.jvp(lambda x: x * 2, (3,), (1.0,)),
    "linear function on other structure": lambda m: m.linearize(jnp.sin, X)[1](X, X),
    "linear function on other shape": lambda m: m.linearize(jnp.sin, X)[1](X[:2]),
    "pull-back on other structure": lambda m: m.vjp(lambda x: (x, x), 1.0)[1](1.0),
    "pull-back on other shape": lambda m: m.vjp(jnp.sin, X)[1](X[:2]),
    "pull-back on too many": lambda m: m.vjp(lambda x: (x, x), 1.0)[1](1.0, 1.0),
    "jacfwd of integers": lambda m: m.jacfwd(lambda x: x * 1.0)(3),
    "transpose of what is not linear": lambda m: m.linear_transpose(jnp.sin, 1.0)(1.0),
    "transpose with integers mixed in": lambda m: m.linear_transpose(lambda x: x.astype(jnp.float32), jnp.arange(3)),
    "transpose on another tree": lambda m: m.linear_transpose(lambda x: 2 * x, X)((X, X)),
    "transpose on another shape": lambda m: m.linear_transpose(lambda x: 2 * x, X)(X[:2]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_as_jax_does(name):
    theirs, ours = both(BAD[name])
    assert isinstance(ours, type(theirs)) or type(ours).__mro__[-3:] == type(theirs).__mro__[-3:]
    words = " ".join(str(theirs).split()).rstrip(".")
    if name == "result that is not an array":
        assert "is not a valid JAX type" in words
        assert "returned a value of type <class 'str'>, which is not a valid JAX type" in str(ours)
        return
    if name == "transpose of what is not linear":
        assert "Transpose rule (for reverse-mode differentiation) for 'sin' not implemented" in str(ours)
        return
    first = words.replace("..", ".").split(". ")[0].split("Got")[0].strip().rstrip(".;").split(" traced for ")[0]
    assert first[:90] in " ".join(str(ours).split())


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


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.grad(jnp.sin, reduce_axes=("i",)),
        lambda m: m.value_and_grad(jnp.sin, reduce_axes=("i",)),
        lambda m: m.vjp(jnp.sin, 1.0, reduce_axes=("i",)),
    ],
    ids=["grad", "value_and_grad", "vjp"],
)
def test_sums_over_axes_are_refused_as_jax_does(call):
    theirs, ours = both(call)
    assert type(ours) is type(theirs)
    assert str(ours) == str(theirs)


def halving(x):
    return lax.while_loop(lambda c: c > 1.0, lambda c: c / 2.0, x)


def test_a_while_loop_has_forward_mode_only():
    np.testing.assert_allclose(jaxviz.jvp(halving, (5.0,), (1.0,)), jax.jvp(halving, (5.0,), (1.0,)))
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work") as of_jax:
        jax.grad(halving)(5.0)
    with pytest.raises(jaxviz.ReverseModeError) as caught:
        jaxviz.grad(halving)(5.0)
    assert str(caught.value).startswith(str(of_jax.value))
    assert f"test_api.py:{halving.__code__.co_firstlineno + 1}" in str(caught.value)


def test_inside_a_library_function_the_line_is_that_of_its_call():
    def f(x):
        return jax.jit(halving)(x)

    with pytest.raises(jaxviz.ReverseModeError, match=r"Reached at `while` \(equation \d+, ") as e:
        jaxviz.grad(f)(2.0)
    assert "test_api.py:" in str(e.value)


@jax.custom_vjp
def reverse_only(x):
    return jnp.sin(x)


reverse_only.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x),))


@pytest.mark.parametrize(
    "forward",
    [
        lambda f: jaxviz.jvp(f, (2.0,), (1.0,)),
        lambda f: jaxviz.jacfwd(f)(2.0),
        lambda f: jaxviz.linearize(f, 2.0)[1](1.0),
        lambda f: jax.jit(lambda x: jaxviz.jvp(f, (x,), (x,)))(2.0),
    ],
    ids=["jvp", "jacfwd", "linearize", "jit"],
)
def test_forward_mode_through_a_custom_vjp_is_refused(forward):
    def f(x):
        return reverse_only(x) * 2.0

    with pytest.raises(TypeError, match=r"forward-mode autodiff \(jvp\) to a custom_vjp function"):
        forward(f)


def test_the_refusal_names_the_function_and_the_line():
    def f(x):
        return reverse_only(x) * 2.0

    with pytest.raises(jaxviz.ForwardModeError, match="reverse_only has only a reverse-mode rule") as caught:
        jaxviz.jvp(f, (2.0,), (1.0,))
    assert f"test_api.py:{f.__code__.co_firstlineno + 1}" in str(caught.value)


def test_so_does_one_that_jax_has_put_a_note_on():
    @jax.custom_jvp
    def f(x):
        return jnp.sin(x)

    @f.defjvp
    def rule(primals, tangents):
        return jnp.ones(3) @ jnp.ones(4), tangents[0]

    def g(x):
        return f(x) * 2.0

    with pytest.raises(TypeError, match="dot_general") as caught:
        jaxviz.grad(g)(2.0)
    notes = [note for note in caught.value.__notes__ if note.startswith("Raised while deriving")]
    assert len(notes) == 1
    assert f"test_api.py:{g.__code__.co_firstlineno + 1}" in notes[0]


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


def test_an_error_in_a_users_rule_says_where_it_was_used():
    @jax.custom_jvp
    def f(x):
        return jnp.sin(x)

    @f.defjvp
    def rule(primals, tangents):
        raise RuntimeError("not today")

    def g(x):
        return f(x) * 2.0

    with pytest.raises(RuntimeError, match="not today") as caught:
        jaxviz.grad(g)(2.0)
    assert f"test_api.py:{g.__code__.co_firstlineno + 1}" in caught.value.__notes__[0]


def test_what_waits_for_a_rule_says_so_with_the_users_line():
    def f(x):
        ref = jax.new_ref(x)
        ref[...] = x * 2.0
        return ref[...].sum()

    with pytest.raises(jaxviz.NoRuleError, match="'new_ref' not implemented") as caught:
        jaxviz.grad(f)(X)
    assert f"test_api.py:{f.__code__.co_firstlineno + 1}" in str(caught.value)


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


def test_aux_of_any_kind():
    def f(x):
        y = jnp.sin(x)
        return y.sum(), {"y": y, "name": "text", "n": 3}

    g, aux = jaxviz.grad(f, has_aux=True)(X)
    want, jax_aux = jax.grad(f, has_aux=True)(X)
    np.testing.assert_allclose(g, want)
    np.testing.assert_allclose(aux["y"], jax_aux["y"])
    assert (aux["name"], aux["n"]) == ("text", 3)
    (value, _), _ = jaxviz.value_and_grad(f, has_aux=True)(X)
    assert value == jnp.sin(X).sum()
    assert jaxviz.vjp(f, X, has_aux=True)[2]["n"] == 3
    assert jaxviz.jvp(f, (X,), (X,), has_aux=True)[2]["name"] == "text"
    assert jaxviz.linearize(f, X, has_aux=True)[2]["name"] == "text"
    assert jaxviz.jacrev(f, has_aux=True)(X)[1]["n"] == 3


def test_integers_have_float0():
    got = jaxviz.grad(lambda x, i: x * i, (0, 1), allow_int=True)(2.0, 3)
    assert got[1].dtype == jax.dtypes.float0
    y, tangent = jaxviz.jvp(lambda i: i * 2, (3,), (np.zeros((), jax.dtypes.float0),))
    assert (int(y), tangent.dtype) == (6, jax.dtypes.float0)
    assert all(
        v.aval.dtype != jax.dtypes.float0
        for e in jaxviz.derive(lambda x, i: x * i, 2.0, 3, argnums=(0, 1)).jvp.equations
        for v in e.outvars
    )


def test_a_symbolic_zero_is_never_written_out():
    d = jaxviz.derive(lambda x, y: (x * 2.0, jnp.sin(y)), 1.0, 1.0)
    assert [e.primitive.name for e in d.linear.equations] == ["mul"]
    assert len(d.linear.outvars) == 1


def test_complex_and_holomorphic():
    z = jnp.array([1 + 2j, 3 - 1j])
    np.testing.assert_allclose(
        jaxviz.grad(lambda z: jnp.sum(z**3), holomorphic=True)(z),
        jax.grad(lambda z: jnp.sum(z**3), holomorphic=True)(z),
    )
    np.testing.assert_allclose(
        jaxviz.jacfwd(lambda z: z**2, holomorphic=True)(z), jax.jacfwd(lambda z: z**2, holomorphic=True)(z)
    )


@pytest.mark.values
@both_ways
@pytest.mark.parametrize("name", ["jacfwd", "jacrev", "hessian"])
def test_jacobians_of_trees(name, run):
    f = lambda p: {"a": p["x"] * jnp.sum(p["y"] ** 2), "b": jnp.sin(p["y"][0])}
    p = {"x": X, "y": jnp.ones((2, 2))}
    got, want = run(lambda p: (getattr(jaxviz, name)(f)(p), getattr(jax, name)(f)(p)))(p)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, 1e-5), got, want)


def test_linear_transpose_of_shapes():
    f = lambda x, y: (2 * x + y[0], x.sum())
    shape = jax.ShapeDtypeStruct((3,), np.float32)
    ct = (X, jnp.float32(2.0))
    got = jaxviz.linear_transpose(f, shape, [shape])(ct)
    want = jax.linear_transpose(f, shape, [shape])(ct)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert jaxviz.linear_transpose(lambda i: i * 2, jnp.arange(3))(jnp.arange(3))[0].dtype == jnp.int32


def test_the_returned_functions_are_pytrees():
    _, pull = jax.jit(lambda x: jaxviz.vjp(jnp.sin, x))(X)
    np.testing.assert_allclose(pull(jnp.ones(3))[0], jnp.cos(X))
    np.testing.assert_allclose(jax.jit(jaxviz.linearize(jnp.sin, X)[1])(X), jnp.cos(X) * X, 1e-6)


def test_wrappers_keep_the_functions_name():
    def energy(x):
        "The energy of a spring."
        return x**2

    assert jaxviz.grad(energy).__name__ == "energy"
    assert "Gradient of energy" in jaxviz.grad(energy).__doc__


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


@pytest.mark.large
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


def test_what_cannot_be_transposed_names_the_line_and_what_to_do():
    def squared(x):
        return x * x

    with pytest.raises(jaxviz.EquationError, match=r"The function is not linear.*jax\.linearize.*test_api\.py:\d+"):
        jaxviz.linear_transpose(squared, 1.0)
