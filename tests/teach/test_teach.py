"""Exercises: what they accept as right is what JAX does. What they answer is in the transcripts."""

import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from short_runs import short

import jaxviz
from jaxviz import teach
from jaxviz.ir.emit import as_function
from jaxviz.teach.checks import difference
from jaxviz.teach.saved_values import _Case
from jaxviz.teach.sessions import ValueNumber


def network(params, x, y):
    h = jnp.tanh(x @ params["w1"] + params["b"])
    out = h @ params["w2"]
    return jnp.mean((out - y) ** 2)


def random(*shape):
    return jnp.asarray(np.random.default_rng(sum(shape) + len(shape)).normal(size=shape), jnp.float32)


PARAMS = {"w1": random(4, 5), "b": random(5), "w2": random(5, 2)}
ARGS = PARAMS, random(3, 4), random(3, 2)


def sines(x):
    return jnp.sum(jnp.sin(x) * jnp.exp(x) / (2.0 + x**4))


def attention(p, x):
    q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    a = jax.nn.softmax(q @ k.T / 2.8)
    return jnp.sum(jax.nn.gelu(a @ v))


def rectified(w, x):
    return jnp.sum(jax.nn.relu(x @ w) ** 2)


def in_scan(w, xs):
    def step(c, x):
        c = jnp.sin(c @ w) * x
        return c, jnp.exp(c)

    c, ys = jax.lax.scan(step, xs[0], xs)
    return jnp.sum(c**2) + jnp.sum(ys)


@jax.checkpoint
def block(w, x):
    return jnp.sin(jnp.sin(x @ w))


def checkpointed(w, x):
    return jnp.sum(block(w, block(w, x)) ** 2)


def in_jit(w, x):
    return jnp.sum(jax.jit(lambda a: jnp.tanh(a) * jnp.sin(a))(x @ w))


SQUARE = random(4, 4)
PROGRAMS = {
    "network": (network, ARGS),
    "sines": (sines, (random(3),)),
    "attention": (attention, ({n: random(8, 8) + i for i, n in enumerate("qkv")}, random(3, 8))),
    "rectified": (rectified, (random(4, 5), random(3, 4))),
    "in_jit": (in_jit, (SQUARE, random(3, 4))),
    "in_scan": (in_scan, (SQUARE, random(3, 4))),
    "checkpointed": (checkpointed, (SQUARE, random(3, 4))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(PROGRAMS), 2))
def test_what_is_called_saved_is_held_by_jax(name):
    """By value: `jax.vjp` saves what is marked, as far as it is a value of the function outside of loops."""
    f, args = PROGRAMS[name]
    case = _Case(jaxviz.derive(f, *args))
    primal = case.derivation.primal
    values = [v for v in case.values if v.program is primal and v.kind != "slope" and len(v.atoms) == 1]
    atoms = tuple(v.atoms[0] for v in values)
    computed = as_function(replace(primal, outvars=atoms))(*jax.tree.leaves(args))
    _, pull_back = jax.vjp(lambda first: f(first, *args[1:]), args[0])
    held = [np.asarray(x) for x in jax.tree.leaves(pull_back)]
    for value, x in zip(values, computed, strict=True):
        is_held = any(np.shape(x) == h.shape and np.allclose(x, h, rtol=1e-5) for h in held)
        assert (value in case.residuals_of) == is_held, value.label


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_residual_is_told_and_every_answer_but_one_is_wrong(name):
    f, args = PROGRAMS[name]
    case = _Case(jaxviz.derive(f, *args))
    assert case.derivation.check()
    told = [r for residuals in case.residuals_of.values() for r in residuals] + case.beside
    assert sorted(r.nbytes for r in told) == sorted(r.nbytes for r in case.derivation.residuals)
    assert all(r.kind == "literal" for r in case.beside)
    kept = teach.saved(f, *args)
    assert kept.answer([ValueNumber(i) for i, v in enumerate(case.values) if v in case.residuals_of])
    wrong = list(kept.wrong())
    assert wrong
    for given in wrong:
        assert kept.answer(given).is_right is False


@pytest.mark.parametrize(("f", "args"), [(network, ARGS), (sines, (0.7,)), (rectified, (random(4, 5), random(3, 4)))])
def test_a_wrong_answer_is_told_how_many_values_it_misses_and_not_which(f, args):
    exercise = teach.saved(f, *args)
    case = _Case(jaxviz.derive(f, *args))
    saved = set(case.residuals_of)
    none_saved = [ValueNumber(i) for i, v in enumerate(case.values) if v not in saved]
    for given in (*exercise.wrong(), none_saved):
        marked = {case.values[i] for i in given}
        verdict = exercise.answer(given)
        missed = saved - marked
        assert {p.mark for p in verdict.points} <= {"right", "wrong"}
        assert ("more" in verdict.headline) == bool(missed)
        reasons = " ".join(p.why for p in verdict.points if p.mark == "wrong")
        others = {case.shown[r] for v in saved for r in case.residuals_of[v]} - {v.text for v in marked}
        assert not missed or not [text for text in others if f"reads `{text}`" in reasons or f"and `{text}`" in reasons]
    assert len(exercise.reveal().points) == len(saved)


def test_a_form_gives_what_is_ticked_chosen_and_typed():
    import ipywidgets

    def parts(box, kind):
        return [
            w
            for child in box.children
            for w in ([child] if isinstance(child, kind) else parts(child, kind) if hasattr(child, "children") else [])
        ]

    def press(form, name):
        next(b for b in parts(form, ipywidgets.Button) if b.description == name).click()
        return parts(form, ipywidgets.HTML)[-1].value

    from jaxviz.teach.widget import exercise_form

    kept = teach.saved(network, *ARGS)
    form = exercise_form(kept)
    assert "Nothing is selected" in press(form, "Check")
    assert "0 of 5 found" in press(form, "Check")
    for box in parts(form, ipywidgets.Checkbox):
        box.value = any(
            word in box.description
            for word in ("<code>x: ", "&#x27;w2&#x27;]: ", "<code>i:", "tanh&#x27;", "pow&#x27;")
        )
    assert "Right." in press(form, "Check")
    assert "Hint 1 of 1" in press(form, "Hint")

    size = exercise_form(teach.predict("?", truth=lambda: 3))
    assert "Write your answer first" in press(size, "Check")
    parts(size, ipywidgets.Text)[0].value = "4"
    assert "too large" in parts(size, ipywidgets.HTML)[-1].value
    choice = exercise_form(teach.predict("?", ["a", "b"], truth=lambda: "b"))
    assert "Select an answer first" in press(choice, "Check")
    parts(choice, ipywidgets.RadioButtons)[0].value = "b"
    assert "Right." in press(choice, "Check")
    rule = exercise_form(teach.rule("?", teach.computes(jnp.sin, (0.5,))))
    assert [b.description for b in parts(rule, ipywidgets.Button)] == ["Reveal"]
    data = kept._repr_mimebundle_()
    data = data[0] if isinstance(data, tuple) else data
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "Which of these" in data["text/html"]


@pytest.mark.slow
def test_an_exercise_in_a_script_needs_no_notebook():
    code = (
        "import jaxviz, sys; jaxviz.teach.predict('?', truth=lambda: 1).answer(1); print({'IPython', 'ipywidgets'} & "
        "set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def dots_in_place_of_an_argument(r, x):
    jax.ref.addupdate(r, 0, ...)


def dots_in_place_of_a_value(r, x):
    r[...] = ...


def all_of_a_reference(r, x):
    r[...] += x
    jax.ref.addupdate(r, ..., x)
    jax.ref.swap(r, (..., 0), x[0])


def test_the_index_of_all_of_a_reference_is_no_blank():
    exercise = teach.rule("Write it.", teach.Check("is anything", lambda written: ""))
    assert exercise.answer(all_of_a_reference)
    assert exercise.answer(dots_in_place_of_an_argument).is_right is None
    assert exercise.answer(dots_in_place_of_a_value).is_right is None


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64", "int32"])
def test_arrays_differ_where_numpy_says_so(dtype):
    values = [0, 1, -1, 2] if dtype == "int32" else [0, 1, 1 + 1e-7, -1, 2e38, -2e38, np.inf, -np.inf, np.nan]
    with np.errstate(over="ignore", invalid="ignore"):
        every = np.asarray(values).astype(dtype)
        for a in every:
            for b in every:
                is_close = np.isclose(a, b, rtol=1e-5, atol=0, equal_nan=True)
                for ours, theirs in ((a, b), (np.full((2, 3), a), np.full((2, 3), b))):
                    assert (difference(ours, theirs, 1e-5, "NumPy") == "") == is_close, (a, b)


def test_the_checks_of_code_compare_both_parts_of_complex_numbers():
    z = jnp.array([3 + 4j, 1 - 2j])
    assert teach.computes(jnp.square, (z,)).fails(lambda z: z * z) == ""
    assert "it returns -7-24j at index [0], but square returns -7+24j" in teach.computes(jnp.square, (z,)).fails(
        lambda z: jnp.conj(z * z)
    )
    assert teach.computes(jnp.square, (z,)).fails(lambda z: (z * z).real)
    assert teach.gradient_of(jnp.abs, (z,)).fails(lambda z: jnp.sqrt(z.real**2 + z.imag**2)) == ""
    assert teach.gradient_of(jnp.sin, (z,)).fails(lambda z: jnp.sin(jnp.conj(z)))


def test_what_is_linear_for_real_multiples_is_linear_also_of_complex_numbers():
    linear = teach.is_linear((jnp.ones(3, jnp.complex64),))
    assert linear.fails(jnp.conj) == linear.fails(lambda z: 2j * z.real) == linear.fails(jnp.fft.fft) == ""
    assert linear.fails(lambda z: z + jnp.maximum(z.imag, 0)), "nothing is wrong for real numbers"
    assert linear.fails(lambda z: z * z)


def test_a_rule_whose_forward_function_returns_something_else_has_no_right_gradient():
    ruled = jax.custom_vjp(lambda x: jnp.tanh(x))
    ruled.defvjp(lambda x: (x, jnp.tanh(x)), lambda y, ct: (ct * (1 - y**2),))
    assert jax.value_and_grad(ruled)(0.5)[0] == 0.5
    assert teach.computes(jnp.tanh, (0.5,)).fails(ruled) == ""
    assert "where it is differentiated, it returns 0.5, but" in teach.gradient_of(jnp.tanh, (0.5,)).fails(ruled)
