"""Exercises: what they accept as right is what JAX does, and wrong answers are explained."""

import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxviz
from jaxviz import teach
from jaxviz.ir.emit import as_function
from jaxviz.teach.saved import ValueNumber, _Case


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


@pytest.mark.parametrize("name", PROGRAMS)
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
        assert (value in case.kept) == is_held, value.label


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_residual_is_told_and_every_answer_but_one_is_wrong(name):
    f, args = PROGRAMS[name]
    case = _Case(jaxviz.derive(f, *args))
    assert case.derivation.check()
    told = [r for residuals in case.kept.values() for r in residuals] + case.beside
    assert sorted(r.nbytes for r in told) == sorted(r.nbytes for r in case.derivation.residuals)
    assert all(r.kind == "literal" for r in case.beside)
    kept = teach.saved(f, *args)
    assert kept.answer([ValueNumber(i) for i, v in enumerate(case.values) if v in case.kept])
    wrong = list(kept.wrong())
    assert wrong
    for given in wrong:
        assert kept.answer(given).is_right is False


def test_marks_are_answered_with_their_reasons():
    kept = teach.saved(network, *ARGS)
    assert kept.answer(["x", "params['w2']", "h", "tanh'", "integer_pow'"])
    assert kept.answer(["x", "params['w2']", "tanh", "tanh'", "2.0 * k"])
    verdict = kept.answer(["x", "h", "out", "tanh'"])
    assert verdict.is_right is False
    marks = {p.what: p for p in verdict.points}
    assert {p.mark for p in verdict.points} == {"right", "wrong", "missed"}
    why = marks["`dot_general(i, params['w2'])`"].why
    assert why.startswith("The derivative of `sub` at line 21 needs no value; its own derivative reads ")
    assert "`tanh(h)`" in why
    assert "`params['w2']`" in why
    assert "contracts the tangent with it" in marks["`params['w2']`"].why
    assert "3 of 5 found, 1 marked that is not saved" in str(verdict)
    assert "It saves 2 of its arguments and 3 that are computed at lines 19, 21." in str(kept.hint())
    assert "no more hints" in str(kept.hint())
    assert "The gradient saves 5 of these" in str(kept.reveal())


@pytest.mark.parametrize(
    ("given", "expected"),
    [("x", ["x"]), ("h", ["tanh(h)"]), ("tanh", ["tanh(h)"]), ("out", ["dot_general(i, params['w2'])"]),
     ("params['b']", ["params['b']"]), ("e", ["y"]), ("tanh'", ["tanh(h)"])],
)  # fmt: skip
def test_a_value_goes_by_several_names(given, expected):
    found = _Case(jaxviz.derive(network, *ARGS))._fitting(given)
    assert [v.text for v in found] == expected


def test_each_of_several_values_that_are_assigned_together_has_its_name():
    case = _Case(jaxviz.derive(attention, *PROGRAMS["attention"][1]))
    assert [[v.text for v in case._fitting(name)] for name in "qkv"] == [[f"dot_general(x, p['{n}'])"] for n in "qkv"]


def test_what_a_derivative_computes_has_the_name_of_its_operand():
    """Also where a body is called twice, so that the operand is the result of a call."""
    f, args = PROGRAMS["checkpointed"]
    case = _Case(jaxviz.derive(f, *args))
    (slope,) = (v for v in case.kept if v.kind == "slope")
    assert slope.text == "integer_pow(i)"
    assert [case.shown[r] for r in case.kept[slope]] == ["2.0 * i"]


def test_a_line_stands_for_what_is_computed_there():
    case = _Case(jaxviz.derive(network, *ARGS))
    line = network.__code__.co_firstlineno + 1
    assert [v.primitive for v in case._fitting(line)] == ["dot_general", "add", "tanh"]


def test_an_unknown_name_is_answered_with_those_there_are():
    verdict = teach.saved(network, *ARGS).answer(["z"])
    assert verdict.is_right is False
    assert "does not match" in verdict.headline
    assert "`params['w1']`" in verdict.note


@pytest.mark.parametrize("given", [..., [...], ("x", ...)])
def test_dots_are_no_answer(given):
    verdict = teach.saved(network, *ARGS).answer(given)
    assert verdict.is_right is None
    assert not verdict
    assert "Replace the dots" in str(verdict)


def test_a_solution_is_folded_in_a_notebook_and_not_in_text():
    size = teach.predict("How many?", truth=lambda: 3)
    assert size.solution(3)
    assert size.solution(3)._repr_html_().startswith("<details>")
    assert str(size.solution(3)) == str(size.answer(3)) == "Right. 3."


def test_a_number_is_predicted():
    size = teach.predict(
        "How many bytes?", truth=lambda: jaxviz.residuals(network, *ARGS, argnums=0).nbytes, tolerance=0.05, because="It is."
    )  # fmt: skip
    true = jaxviz.residuals(network, *ARGS, argnums=0).nbytes
    assert size.answer(true)
    assert size.answer(f"{true} B")
    assert size.answer(true * 1.04)
    assert "It is." in str(size.answer(true))
    assert "too large" in str(size.answer("1 MiB"))
    assert "too small" in str(size.answer(1))
    assert "must be a number" in str(size.answer("a lot"))
    assert f"{true:,}" in str(size.reveal())
    assert all(size.answer(w).is_right is False for w in size.wrong())


def test_a_choice_is_predicted():
    told = {"jvp": lambda: "It keeps nothing.", "vjp": "Yes."}
    which = teach.predict(
        "Which keeps?", ["jvp", "vjp", "trace"], truth=lambda: "vjp", because=told, hints=("Think.", lambda: "Of vjp.")
    )
    assert which.answer("vjp")
    assert which.answer("vjp").note == "Yes."
    assert which.answer("jvp").note == "It keeps nothing."
    assert not which.answer("jvp")
    assert "is not one of the choices" in str(which.answer("grad"))
    assert list(which.wrong()) == ["jvp", "trace"]
    assert str(which.hint()) == "Hint 1 of 2: Think."
    assert str(which.hint()) == "Hint 2 of 2: Of vjp."


@jax.custom_jvp
def right_tanh(x):
    return jnp.tanh(x)


@right_tanh.defjvp
def _right(primals, tangents):
    y = jnp.tanh(primals[0])
    return y, (1 - y**2) * tangents[0]


@jax.custom_jvp
def wrong_tanh(x):
    return jnp.tanh(x)


@wrong_tanh.defjvp
def _wrong(primals, tangents):
    y = jnp.tanh(primals[0])
    return y, (1 - y) * tangents[0]


@pytest.mark.slow
def test_a_rule_is_checked_at_each_input():
    tanh = teach.rule(
        "Write tanh.", teach.computes(jnp.tanh, (0.5,), (random(3),)), teach.has_right_rule((0.5,), (2.0,)),
        teach.gradient_of(jnp.tanh, (0.25,), (random(3),)), hints=("No.",), example=right_tanh, wrong=(jnp.sin, wrong_tanh),
    )  # fmt: skip
    assert tanh.answer(right_tanh)
    assert all(tanh.answer(w).is_right is False for w in tanh.wrong())
    said = tanh.answer(jnp.sin).points[-1]
    assert said.mark == "wrong"
    assert said.why.startswith("At 0.5 it returns 0.479426, but tanh returns 0.462117")
    assert "wrong in the tangent of output" in tanh.answer(wrong_tanh).points[-1].why or "cotangent" in str(
        tanh.answer(wrong_tanh)
    )
    assert "raises ZeroDivisionError" in str(tanh.answer(lambda x: 1 // 0))
    assert "jnp.tanh(x)" in str(tanh.reveal())


def test_a_gradient_is_checked_where_the_values_are_right():
    stopped = lambda x: jax.lax.stop_gradient(jnp.sin(x))
    found = teach.rule("", teach.computes(jnp.sin, (0.5,)), teach.gradient_of(jnp.sin, (0.5,))).answer(stopped)
    assert [p.mark for p in found.points] == ["right", "wrong"]
    assert "At 0.5 it returns 0 in [0], but the gradient of sin returns 0.877583." in found.points[-1].why


def test_the_index_of_a_wrong_element_is_named():
    off = lambda x: jnp.sin(x).at[1].add(1.0)
    assert "at index [1]" in str(teach.rule("", teach.computes(jnp.sin, (jnp.zeros(3),))).answer(off))
    assert "the shape (3, 1)" in str(
        teach.rule("", teach.computes(jnp.sin, (jnp.zeros(3),))).answer(lambda x: x[:, None])
    )


def test_linearity_residuals_and_programs_are_checked():
    linear = teach.rule("", teach.is_linear((random(3),)))
    assert linear.answer(lambda x: 3 * x)
    for f in (jnp.sin, lambda x: x + 1, jnp.abs):
        assert linear.answer(f).is_right is False
    small = teach.rule("", teach.keeps_at_most(12, random(3)))
    assert small.answer(jnp.sin)
    verdict = small.answer(lambda x: jnp.sin(jnp.sin(x)))
    assert verdict.is_right is False
    assert "It saves 24 B; the largest value is 12 B" in str(verdict)
    no_exp = teach.rule(
        "", teach.traces_to(lambda p: all(e.primitive.name != "exp" for _, e in p.walk()), "has no exp", 1.0)
    )
    assert no_exp.answer(jnp.sin)
    assert no_exp.answer(jnp.exp).is_right is False


def test_a_policy_is_what_is_made_of_it():
    def two(policy):
        return jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)), policy=policy)

    lean = teach.rule("", teach.keeps_at_most(0, random(3)).of(two))
    assert lean.answer(jax.checkpoint_policies.nothing_saveable)
    assert lean.answer(jax.checkpoint_policies.everything_saveable).is_right is False


def unfinished(x):
    return ...


@jax.custom_jvp
def unfinished_rule(x):
    return x[..., 0]


@unfinished_rule.defjvp
def _unfinished(primals, tangents):
    return primals[0], ...


def test_a_function_with_dots_in_it_is_no_answer():
    exercise = teach.rule("", teach.computes(jnp.sin, (0.5,)))
    assert exercise.answer(unfinished).is_right is None
    assert exercise.answer((jnp.sin, unfinished)).is_right is None
    assert exercise.answer(unfinished_rule).is_right is None
    assert exercise.answer(lambda x: x[..., 0]).is_right is False


def test_verdicts_and_exercises_are_shown_escaped():
    odd = teach.predict("Is `a < b`? <script>", ["<b>", "no"], truth=lambda: "no")
    assert "<script>" not in odd._repr_html_()
    assert "<code>a &lt; b</code>" in odd._repr_html_()
    assert "<b>no" not in odd.answer("<b>")._repr_html_()
    assert "&lt;b&gt;" in odd.answer("<b>")._repr_html_()
    assert teach.saved(network, *ARGS).answer([]).to_dict()["is_right"] is False


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
    code = "import jaxviz, sys; jaxviz.teach.predict('?', truth=lambda: 1).answer(1); print({'IPython', 'ipywidgets'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
