"""Residual reports: sizes, kinds, source lines, rules, readers and reasons."""

import importlib
import importlib.util
import inspect
import json
import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals

import jaxviz
from jaxviz.report.tables import nbytes

TABLE = jnp.arange(3.0)
X = jnp.ones(3)
N = jnp.arange(3)


def line_of(fun, text):
    """The line of this file on which a function's source contains some text."""
    lines, start = inspect.getsourcelines(fun)
    return start + next(i for i, line in enumerate(lines) if text in line)


def loss(params, x):
    h = jnp.tanh(x @ params["w"])
    scaled = h * TABLE
    return jnp.sum(scaled * 2.0)


@pytest.fixture(scope="module")
def found():
    return jaxviz.residuals(loss, {"w": jnp.ones((4, 3))}, jnp.ones((5, 4)), argnums=None)


def by_kind(found, kind):
    return [r for r in found if r.kind == kind]


OF_TANH = len(jax.tree.leaves(jax.vjp(jnp.tanh, jnp.ones(3))[1]))
"""What the derivative of tanh saves, which depends on the version of JAX."""


def test_kinds_and_sizes(found):
    assert {(r.kind, r.type, r.nbytes) for r in found} == {
        ("argument", "f32[4,3]", 48),
        ("argument", "f32[5,4]", 80),
        ("intermediate", "f32[1,3]", 12),
        ("intermediate", "f32[5,3]", 60),
        ("literal", "f32[]", 4),
    }
    assert found.nbytes == sum(r.nbytes for r in found) == 48 + 80 + 12 + 60 * OF_TANH + 4


def test_the_line_of_an_intermediate_is_the_users(found):
    lines = {r.location.line for r in by_kind(found, "intermediate")}
    assert lines == {line_of(loss, "tanh"), line_of(loss, "TABLE")}
    assert {r.location.function for r in by_kind(found, "intermediate")} == {"loss"}
    assert all(str(r.location) == f"{__file__}:{r.location.line}" for r in found)


def test_an_argument_is_named_by_its_path(found):
    assert {r.expression for r in by_kind(found, "argument")} == {"params['w']", "x"}
    assert {r.location.line for r in by_kind(found, "argument")} == {line_of(loss, "def loss")}


def test_the_reason_names_value_line_rule_and_reader():
    def f(x):
        return jnp.sin(x) * 3.0

    (r,) = [r for r in jaxviz.residuals(f, jnp.ones(3)) if r.kind == "intermediate"]
    line = line_of(f, "sin")
    assert r.reason == (
        f"`cos in the derivative of jnp.sin(x)` from line {line} is saved because sin's derivative multiplies the tangent by it; "
        "read by the `mul` that forms the cotangent of `x`"
    )
    assert r.rule == "jvp rule of sin"
    assert [e.primitive.name for e in r.consumers] == ["mul"]
    assert r.producer.primitive.name == "cos"
    assert r.origin.equation.primitive.name == "sin"


def test_a_constant_closed_over():
    (r,) = jaxviz.residuals(lambda x: x * TABLE, jnp.ones(3))
    assert (r.kind, r.nbytes) == ("constant", 12)
    assert "closed over" in r.reason


def test_a_number_passed_to_a_jitted_function():
    (r,) = jaxviz.residuals(lambda x: x * 2.0, jnp.ones(3))
    assert (r.kind, r.type, r.name) == ("literal", "f32[]", "2.0")


def test_inside_nested_jit_the_line_is_the_inner_one():
    @jax.jit
    def inner(x):
        return jnp.sin(x)

    @jax.jit
    def outer(x):
        return inner(x) * x

    found = jaxviz.residuals(lambda x: outer(x).sum(), jnp.ones(3))
    (cos,) = [r for r in found if "cos" in r.expression]
    assert cos.location.line == line_of(inner, "sin")
    assert cos.producer.primitive.name == "cos"
    assert {e.primitive.name for e in cos.consumers} == {"mul"}


@pytest.mark.parametrize("fun", [jnp.sin, jnp.linalg.norm, jax.nn.gelu, jnp.tanh], ids=lambda f: f.__name__)
def test_no_line_is_empty_or_inside_a_library(fun):
    found = jaxviz.residuals(lambda x: jnp.sum(fun(x)), jnp.ones(3))
    assert found
    for r in found:
        assert r.location.file == __file__
        assert r.location.line > 0


def test_a_library_function_itself_is_placed_where_it_was_called():
    for r in jaxviz.residuals(jnp.linalg.norm, jnp.ones(3)):
        assert r.location.file == __file__


def test_a_residual_that_backward_never_reads_says_so():
    found = jaxviz.residuals(lambda x: jnp.where(x > 0, x, 0.0).sum(), jnp.ones(3))
    unread = [r for r in found if not r.consumers]
    assert len(unread) == 1
    assert unread[0].reason.endswith("no equation of the backward program reads it")


def test_a_custom_rule_has_expressions_of_its_own_and_a_reason_for_each_value():
    @jax.custom_jvp
    def steep(x):
        return jnp.exp(x)

    @steep.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        slope = jnp.sin(x)
        return steep(x), jax.lax.select(x > 0, t * slope, jnp.zeros(3))

    found = jaxviz.residuals(steep, jnp.arange(3.0))
    assert "slope = jnp.sin(x)" in [r.label for r in found]
    reasons = {r.expression: r.reason for r in found}
    at = line_of(rule, "t * slope")
    assert f"the custom JVP rule of steep at line {at} multiplies the tangent by it" in reasons["jnp.sin(x)"]
    assert "because the custom JVP rule of steep uses it to choose which tangent passes" in reasons["x > 0"]
    assert (
        "because the custom JVP rule of steep fills in with it where the tangent is not selected"
        in reasons["jnp.zeros(3)"]
    )


def test_only_what_is_differentiated_counts():
    def f(x, y):
        return jnp.sum(x * y)

    assert [r.expression for r in jaxviz.residuals(f, jnp.ones(3), jnp.ones(3))] == ["y"]
    assert {r.expression for r in jaxviz.residuals(f, jnp.ones(3), jnp.ones(3), argnums=None)} == {"x", "y"}


def test_of_a_program_and_of_a_derivation():
    program = jaxviz.trace(loss)({"w": jnp.ones((4, 3))}, jnp.ones((5, 4)))
    of_program = jaxviz.residuals(program, argnums=None)
    of_derivation = jaxviz.residuals(jaxviz.derive(program, argnums=(0, 1)))
    assert [r.type for r in of_program] == [r.type for r in of_derivation]


@pytest.mark.values
def test_every_report_differentiates_in_the_first_argument_by_default():
    """Like `jax.grad`, so that all reports are about the same gradient."""
    params, x = {"w": jnp.ones((4, 3))}, jnp.ones((5, 4))
    in_params = "gradient of `loss` in `params`"
    reports = [
        jaxviz.residuals, jaxviz.memory, jaxviz.cost, jaxviz.lint, jaxviz.policies, jaxviz.compare_policies, jaxviz.derive,
        jaxviz.step, partial(jaxviz.plan_remat, budget=1.0), partial(jaxviz.compare, loss), partial(jaxviz.draw, stage="backward"),
    ]  # fmt: skip
    for report in reports:
        for argnums, named in ((0, ["params"]), ((1,), ["x"]), (None, ["params", "x"])):
            said = " ".join(str(report(loss, params, x, **({"argnums": argnums} if argnums != 0 else {}))).split())
            text = said.replace("`", "")
            assert f"gradient of loss in {' and '.join(named)}" in text, said
    assert jaxviz.find_nan(loss, params, x * jnp.nan).summary.startswith(f"{in_params}: ")
    held = jax.tree.leaves(jax.vjp(lambda p: loss(p, x), params)[1])
    assert jaxviz.residuals(loss, params, x).nbytes == sum(a.nbytes for a in held)


def test_the_arguments_that_are_differentiated_in_are_named():
    def f(p, *xs, scale=None):
        return jnp.sum(p["w"]["a"] * sum(xs)) * p["n"] * scale

    of = lambda argnums: (
        jaxviz.derive(f, {"w": {"a": X, "b": X}, "n": N[0]}, X, X, X, argnums=argnums, scale=X[0]).differentiated
    )
    assert of(0) == ("p",)
    assert of((0, 2)) == ("p", "xs[1]")
    assert of((1, 2, 3)) == ("xs",)
    assert jaxviz.derive(
        jaxviz.derive(f, {"w": {"a": X, "b": X}, "n": N[0]}, X, scale=X[0]).primal, argnums=1
    ).differentiated == ("p['w']['a']",)
    many = jaxviz.derive(lambda a, b, c, d: a * b * c * d, X, X, X, X, argnums=None)
    assert many.gradient == "gradient of `<lambda>` in 4 arguments"
    assert jaxviz.derive(lambda n: n * 2, N).gradient == "function `<lambda>`"


def test_all_arrays_count_as_jax_counts_them(capsys):
    def f(w, x, n):
        return jnp.sum(jnp.sin(x * w) @ w * n)

    args = jnp.ones((3, 3)), X, 2.0
    print_saved_residuals(f, *args)
    printed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert sorted(r.type for r in jaxviz.residuals(f, *args, argnums=None)) == sorted(printed)
    assert sorted(r.type for r in jaxviz.residuals(f, *args)) != sorted(printed)


@pytest.mark.parametrize(
    ("f", "args", "why"),
    [
        (lambda x: -x, [X], "Every operation is linear in the differentiated arguments"),
        (
            lambda params, x: jnp.sum(x),
            [{"w": X}, X],
            "The result does not depend on params['w'], so the gradient is zero.",
        ),
        (lambda x: jnp.argmax(x), [X], "The result has no gradient: it is i32[]."),
        (lambda n, x: jnp.sum(jnp.sin(n * x)), [N, X], "There is no argument to differentiate: n is i32[3]."),
        (lambda n, x: jnp.sum(jnp.sin(x)), [3, X], "There is no argument to differentiate: n is i32[]."),
    ],
    ids=["linear", "independent", "of whole numbers", "in whole numbers", "in a Python int"],
)
def test_it_is_said_why_there_are_no_residuals(f, args, why):
    found = jaxviz.residuals(f, *args)
    assert len(found) == 0
    assert not any(jax.tree.leaves(jax.vjp(lambda x: f(x, *args[1:]), args[0])[1]))
    assert str(found).startswith(f"the {jaxviz.derive(f, *args).gradient} saves nothing\n")
    assert why in " ".join(str(found).split())
    assert why in str(found.notes)
    assert why in " ".join(str(jaxviz.lint(f, *args)).split())


@pytest.mark.parametrize(
    "report",
    [
        jaxviz.memory, jaxviz.cost, jaxviz.policies, jaxviz.compare_policies, jaxviz.lint,
        lambda *args: jaxviz.plan_remat(*args, budget=1.0),
    ],
)  # fmt: skip
def test_every_report_on_a_gradient_says_why_there_is_none(report):
    sin = lambda n: jnp.sum(jnp.sin(n))
    assert "There is no argument to differentiate: n is i32[3]." in " ".join(str(report(sin, N)).split())
    assert "There is no argument" not in str(report(sin, X))
    assert "There is no argument" not in str(jaxviz.residuals(sin, X, argnums=()))
    assert "argnums selects no argument that has a gradient" in str(jaxviz.residuals(sin, X, argnums=()))


def test_the_table_fits_a_terminal_and_the_page_is_escaped(found):
    assert max(map(len, str(found).splitlines())) <= 100
    assert str(found).startswith(
        f"the gradient of `loss` in `params` and `x` saves {16 + 60 * OF_TANH} B in {2 + OF_TANH} values; it reads 128 B of its arguments"
    )

    def evil(**kw):
        return jnp.sum(kw["<script>"] ** 2)

    page = jaxviz.residuals(lambda x: evil(**{"<script>": x["<b>"]}), {"<b>": jnp.ones(3)})._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;" in page


def test_plain_data(found):
    data = json.loads(json.dumps(found.to_dict()))
    assert data["nbytes"] == found.nbytes
    assert len(data["residuals"]) == len(found)


@pytest.mark.parametrize(
    ("x", "size"),
    [
        (jnp.ones((2, 3)), 24),
        (jnp.ones(3, bool), 3),
        (np.float64(1), 4),
        (jnp.ones((0, 3)), 0),
        (jnp.ones(2, jnp.bfloat16), 4),
    ],
)
def test_bytes(x, size):
    assert nbytes(jax.typeof(jnp.asarray(x))) == size


def test_bytes_of_a_random_key():
    assert nbytes(jax.typeof(jax.random.key(0))) == 8


_MODEL = """import jax.numpy as jnp
import layers_of_two_files as layers

def loss(w, x):
    h = x * w
    y = layers.dense(h, jnp.diag(w))
    return jnp.sum(layers.pick(y) * y)
"""
_LAYERS = (
    "\n" * 100
    + """import jax.numpy as jnp
from jax import lax

def dense(x, w):
    return jnp.tanh(x @ w)

def pick(x):
    return lax.cond(x[0] > 0, jnp.sin, lambda y: y, x)
"""
)


def test_a_reason_names_the_file_of_a_line_that_is_in_another_one(tmp_path, monkeypatch):
    """The lines of one file are below 100, those of the other above, so a number tells which file is meant."""
    (tmp_path / "model_of_two_files.py").write_text(_MODEL)
    (tmp_path / "layers_of_two_files.py").write_text(_LAYERS)
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("model_of_two_files")
    seen = set()
    for r in jaxviz.residuals(model.loss, jnp.ones(3), jnp.ones(3), argnums=(0, 1)):
        own = Path(r.location.file).name
        places = [(own, n) for n in re.findall(r"\bline (\d+)", r.reason)]
        others = re.findall(r"(\w+\.py):(\d+)", r.reason)
        assert own not in [file for file, _ in others]
        for file, line in [*places, *others]:
            assert file == ("model_of_two_files.py" if int(line) < 100 else "layers_of_two_files.py"), r.reason
        seen |= {(own, file) for file, _ in others}
    assert len(seen) == 2  # from each of them to the other


def test_rows_that_say_the_same_are_one(tmp_path):
    """On one of the user's lines, a library function has two values of one kind, from two of its expressions."""
    path = tmp_path / "twice.py"
    path.write_text("import jax.numpy as jnp\ndef twice(x):\n    return jnp.sin(x) + jnp.sin(x)\n")
    spec = importlib.util.spec_from_file_location("twice", path)
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    jaxviz.own_code(exclude=[str(path)])
    try:
        found = jaxviz.residuals(lambda x: library.twice(x), jnp.ones(8))
        timeline = jaxviz.memory(lambda x: library.twice(x), jnp.ones(8))
        assert [g.count for g in found.groups] == [2]
        rows = [line for line in str(found).splitlines() if "f32[8]" in line]
        assert len(rows) == 1
        assert rows[0].startswith("2 × f32[8]")
        assert [a.count for a in timeline.alive if a.kind == "residual"] == [2]
    finally:
        jaxviz.own_code()
