"""The names of equations and values in NaN reports."""

import jax
import jax.numpy as jnp
import pytest

import jaxviz


def masked(x, p):
    scores = x @ p["w"]
    return jnp.sum(jax.nn.softmax(jnp.where(x > 9, scores, -jnp.inf)))


def in_scan(x):
    def body(c, w):
        c = jnp.log(c - w)
        return c, c * 2

    return jax.lax.scan(body, x, jnp.arange(3.0))[1].sum()


def root(x):
    return jnp.sum(jnp.sqrt(x * 2.0))


def norm(x):
    return jnp.linalg.norm(x - jnp.mean(x))


@jax.jit
def halved(x):
    return jnp.log(x / 2)


CASES = {
    masked: ((jnp.ones((2, 2)), {"w": jnp.ones((2, 2))}), "sub in jax.nn.softmax(", "jnp.where(x > 9, scores, -jnp.inf)"),
    in_scan: ((jnp.float32(1.5),), "jnp.log(c - w)", "c - w"),
    root: ((jnp.zeros(3),), "div in the derivative of jnp.sqrt(x * 2.0)", "jnp.sqrt(x * 2.0)"),
    jax.grad(root): ((jnp.zeros(3),), "div in the derivative of jnp.sqrt(x * 2.0)", "jnp.sqrt(x * 2.0)"),
    norm: ((jnp.ones(3),), "div in the derivative of jnp.linalg.norm(x - jnp.mean(x))", "jnp.linalg.norm(x - jnp.mean(x))"),
    halved: ((jnp.zeros(3),), "jnp.log(x / 2)", "x / 2"),
}  # fmt: skip


@pytest.mark.parametrize("f", CASES)
def test_a_birth_is_named_by_its_expression(f):
    args, expression, operand = CASES[f]
    report = jaxviz.find_nan(f, *args)
    assert report.born.expression.startswith(expression)
    assert operand in [o.name for o in report.born.inputs]
    text = " ".join(str(report).split())
    assert f"{report.born.place}: `{report.born.expression}`" in text
    assert f"reads `{operand}`: f32[" in text
    assert report.born.to_dict()["expression"] == report.born.expression


def test_an_argument_that_is_read_has_its_path():
    report = jaxviz.find_nan(lambda p: jnp.sum(jnp.log(p["w"])), {"w": jnp.zeros(3)})
    assert [o.name for o in report.born.inputs] == ["p['w']"]


def test_without_source_the_equation_is_left():
    namespace = {"jnp": jnp}
    exec("def f(x):\n    return jnp.sum(jnp.log(x))", namespace)
    report = jaxviz.find_nan(namespace["f"], jnp.zeros(3))
    assert report.born.expression == ""
    assert "log f32[3] -> f32[3]" in str(report)


def test_the_lines_on_the_way_have_their_source():
    report = jaxviz.find_nan(root, jnp.zeros(3))
    assert "`return jnp.sum(jnp.sqrt(x * 2.0))`: " in " ".join(str(report).split())


def rectified(p, x):
    h = jax.nn.relu((x @ p["down"]) @ p["up"]) * 64
    return jnp.mean(jnp.sum(h * h, -1) ** 2)


def updated(p, x):
    return jax.tree.map(lambda w, slope: w - slope, p, jax.grad(rectified)(p, x))


@pytest.mark.parametrize("f", [rectified, jax.grad(rectified), jaxviz.grad(rectified), updated])
def test_an_infinite_cotangent_is_not_named_as_a_value(f):
    down, up = jax.random.normal(jax.random.key(0), (2, 64, 64), jnp.float16)
    x = jax.random.normal(jax.random.key(1), (4, 64), jnp.float16)
    assert jnp.isfinite(jax.nn.relu((x @ down) @ up)).all()
    report = jaxviz.find_nan(f, {"down": down, "up": up}, x)
    events = [e for e in (report.born, report.became_nan) if e is not None]
    infinite = [o for e in events if e.phase == "backward" for o in e.inputs if o.n_inf]
    assert infinite
    assert all(o.is_cotangent for o in infinite)
    assert all(f"reads {_shown(o)}" in " ".join(str(report).split()) for o in infinite)


def _shown(o):
    return f"a cotangent from the derivative of `{o.name}`: {o.type}"


def energy(x):
    return jnp.sum(jnp.sqrt(x @ jnp.eye(2)))


def test_a_value_of_an_inner_gradient_is_not_named_as_the_value_that_it_is_the_cotangent_of():
    x = jnp.array([[0.0, 1.0]])
    report = jaxviz.find_nan(lambda x: jnp.sum(jax.grad(energy)(x) ** 2), x)
    assert report.became_nan.expression == "dot_general in the inner gradient of x @ jnp.eye(2)"
    assert report.became_nan.inputs[0].name == "mul in the inner gradient of jnp.sqrt(x @ jnp.eye(2))"
    taken = jaxviz.find_nan(jax.grad(energy), x).became_nan
    assert (taken.expression, taken.inputs[0].name) == (
        "dot_general in the derivative of x @ jnp.eye(2)", "jnp.sqrt(x @ jnp.eye(2))",
    )  # fmt: skip
