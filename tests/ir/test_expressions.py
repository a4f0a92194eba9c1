"""The source text of the expression that produced an equation."""

import linecache

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz import trace
from jaxviz.ir.expressions import assigned_at, assignment, expression_at, expressions_from, shortened_expression
from jaxviz.ir.origin import locate
from jaxviz.report.places import source_line


def written(f, *args):
    """The primitive and the expression of each equation of a function."""
    return [(e.primitive.name, expression_at(locate(e.source))) for e in trace(f)(*args).equations]


X = jnp.ones((3, 3))


def layer(x, w, b):
    x = jnp.tanh(x @ w + b)
    return jax.nn.softmax(x, -1)


def test_each_equation_has_the_expression_that_made_it():
    made = written(layer, X, X, X)
    assert made[:3] == [("dot_general", "x @ w"), ("add", "x @ w + b"), ("tanh", "jnp.tanh(x @ w + b)")]
    assert {text for _, text in made[3:]} == {"jax.nn.softmax(x, -1)"}
    assert len(made) > 6


def test_what_a_value_is_assigned_to():
    names = [assigned_at(locate(e.source)) for e in trace(layer)(X, X, X).equations]
    assert names[:4] == ["", "", "x", ""]


def test_a_name_that_is_too_long_is_cut_after_a_word():
    call = "optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()"
    assert shortened_expression(call, 44) == "optax.softmax_cross_entropy_with_integer_…"
    assert shortened_expression(f"f({call})", 20) == "f(optax.softmax_…)"
    assert shortened_expression(call.replace("_", ""), 30) == "optax.…"


def test_an_augmented_assignment_has_its_target_once():
    def f(x, y):
        x *= jnp.cos(y)
        x **= 2.0
        y = x == y
        return x * y

    made = zip(trace(f)(X, X).equations, written(f, X, X), strict=True)
    names = [assignment(assigned_at(locate(e.source)), text) for e, (_, text) in made]
    assert names == ["jnp.cos(y)", "x *= jnp.cos(y)", "x **= 2.0", "y = x == y", "x * y", "x * y"]


def test_a_residual_of_an_augmented_assignment_has_its_target_once():
    def f(x):
        x *= 2.0
        return (x @ x).sum()

    assert [r.label for r in jaxviz.residuals(f, X)] == ["2.0", "x *= 2.0"]


def test_tuples_walrus_and_annotations():
    def f(x):
        q, k = jnp.split(x * 2.0, 2)
        a, b = jnp.sin(q), jnp.cos(k)
        c: jax.Array = a + b
        e = g = jnp.tanh(c)
        return (d := c * c) + d * e * g

    names = {
        text: assigned_at(locate(e.source))
        for e, (_, text) in zip(trace(f)(jnp.ones(4)).equations, written(f, jnp.ones(4)), strict=True)
    }
    assert names["jnp.split(x * 2.0, 2)"] == "q, k"
    assert (names["jnp.sin(q)"], names["jnp.cos(k)"]) == ("a", "b")
    assert (names["a + b"], names["c * c"], names["jnp.tanh(c)"]) == ("c", "d", "e")


def test_several_lines_are_one_without_comments():
    def f(x):
        return jnp.where(
            x > 0,  # positive
            jnp.sin(
                x,
            ),
            0.0,
        ).sum()

    texts = [text for _, text in written(f, X)]
    assert "jnp.where(x > 0, jnp.sin(x), 0.0)" in texts
    assert texts[-1] == "jnp.where(x > 0, jnp.sin(x), 0.0).sum()"


def test_a_method_called_on_another_line_than_its_object_begins():
    def f(x):
        return (
            jnp.sin(x)
            .reshape(9)
            .sum()
        )  # fmt: skip

    assert written(f, X)[-1] == ("reduce_sum", "jnp.sin(x).reshape(9).sum()")


def test_letters_of_several_bytes():
    def f(λ):
        return jnp.sin("é" and λ) * λ

    assert [text for _, text in written(f, X)] == ['jnp.sin("é" and λ)', 'jnp.sin("é" and λ) * λ']


def test_without_source_there_is_none():
    space = {"jnp": jnp}
    exec(compile("def f(x):\n    return jnp.sin(x)", "<string>", "exec"), space)
    assert written(space["f"], X) == [("sin", "")]
    assert source_line(locate(trace(space["f"])(X).equations[0].source)) == ""


def test_another_source_than_what_was_run_gives_none(tmp_path):
    file = tmp_path / "model.py"
    file.write_text("import jax.numpy as jnp\ndef f(x):\n    return jnp.sin(x)\n")
    space = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    assert written(space["f"], X) == [("sin", "jnp.sin(x)")]
    file.write_text("import jax.numpy as jnp\ndef f(x):\n    y = 1\n    return y\n")
    linecache.checkcache(str(file))
    assert written(space["f"], X) == [("sin", "")]


@pytest.mark.parametrize(
    ("text", "room", "shown"),
    [
        ("jnp.sin(x)", 20, "jnp.sin(x)"),
        ("jax.nn.softmax(scores * scale + mask, axis=-1)", 30, "jax.nn.softmax(scores *…)"),
        ("params['layers'][0]['attention']", 20, "params['layers'][0]…"),
        ("a_very_long_name_that_does_not_fit(x)", 10, "a_very_long_name_that_does_not_fit…"),
        ("f(g(h(x, y), z), w)", 12, "f(g(h(x…)))"),
    ],
)
def test_a_long_one_is_cut_after_a_token(text, room, shown):
    assert shortened_expression(text, room) == shown


def of_a_chain(a, b):
    return jnp.sin(a) * b + a


def test_the_expressions_that_begin_in_one_place():
    sin, mul, add = (locate(e.source) for e in trace(of_a_chain)(1.0, 2.0).equations)
    all_of_them = ["jnp", "jnp.sin", "jnp.sin(a)", "jnp.sin(a) * b", "jnp.sin(a) * b + a"]
    assert expressions_from(sin) == expressions_from(mul) == expressions_from(add) == all_of_them
    assert expressions_from(None) == []


def test_what_called_jaxviz_made_nothing():
    """In a function without user lines, values are named by their operations, and the caller's line is the last resort."""
    (sine,) = jaxviz.residuals(jnp.sin, 1.0)
    assert sine.expression == "cos(x)"
    assert sine.location.file == __file__
