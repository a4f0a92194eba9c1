"""`vmap`: axes, collectives, what is recorded, and what is refused; the programs of the table are in the matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from laws import assert_same, operations, seeds, stacked
from programs import CASES

import jaxviz
from jaxviz.functions import transformations as api
from jaxviz.transforms.vmap import vmap_program

X = jnp.linspace(0.1, 1.0, 12).reshape(4, 3)


@pytest.mark.parametrize(
    ("fun", "args", "options"),
    [
        (lambda x, w: x @ w, (X, jnp.ones((3, 2))), {"in_axes": (0, None)}),
        (lambda x, w: x * w, (X, X), {"in_axes": (-1, 1), "out_axes": 1}),
        (lambda x: {"a": x.sum(), "b": jnp.arange(3)}, (X,), {"out_axes": {"a": 0, "b": None}}),
        (lambda d: d["w"] * d["x"], ({"w": jnp.ones(3), "x": X},), {"in_axes": ({"w": None, "x": 0},)}),
        (lambda x, *, y: x + y, (X,), {}),
        (lambda: jnp.arange(3.0) + lax.axis_index("i"), (), {"axis_size": 2, "axis_name": "i"}),
        (lambda k: jax.random.normal(k, (2,)), (jax.random.split(jax.random.key(0), 3),), {}),
    ],
)
def test_axes(fun, args, options):
    kwargs = {"y": X} if "y" in fun.__code__.co_varnames else {}
    assert_same(jaxviz.vmap(fun, **options)(*args, **kwargs), jax.vmap(fun, **options)(*args, **kwargs))


COLLECTIVES = {
    "psum": lambda x: lax.psum(jnp.sin(x), "i") * x,
    "psum of what is the same": lambda x: x * lax.psum(jnp.ones(3), "i"),
    "pmean": lambda x: x - lax.pmean(x, "i"),
    "pmax": lambda x: x / lax.pmax(lax.stop_gradient(x), "i"),
    "pmin": lambda x: x * lax.pmin(lax.stop_gradient(x), "i"),
    "all_gather": lambda x: lax.all_gather(x * x, "i").sum(0) * x,
    "all_gather tiled": lambda x: lax.all_gather(x * x, "i", tiled=True)[:3],
    "ppermute": lambda x: lax.ppermute(jnp.cos(x), "i", [(0, 1), (1, 2), (2, 3), (3, 0)]),
    "all_to_all": lambda x: lax.all_to_all(jnp.outer(x[:1].repeat(4), x), "i", 0, 0).sum(0) * x,
    "psum_scatter": lambda x: lax.psum_scatter(jnp.outer(x[:1].repeat(4), x), "i"),
    "axis_index": lambda x: x * lax.axis_index("i"),
    "axis_size": lambda x: x * lax.axis_size("i"),
    "in a scan": lambda x: lax.scan(lambda c, _: (jnp.sin(c) + lax.psum(c, "i"), lax.pmean(c, "i")), x, None, length=3),
    "in a cond": lambda x: lax.cond(lax.axis_index("i") >= 0, lambda y: y * lax.pmean(y, "i"), jnp.sin, x),
    "in a checkpoint": lambda x: jax.checkpoint(lambda y: jnp.sin(lax.pmean(y * y, "i")))(x),
    "in a jit": lambda x: jax.jit(lambda y: y * lax.psum(y * y, "i"))(x),
}


@pytest.mark.slow
@pytest.mark.parametrize("fun", COLLECTIVES.values(), ids=COLLECTIVES)
def test_named_axes(fun):
    ours, theirs = jaxviz.vmap(fun, axis_name="i"), jax.vmap(fun, axis_name="i")
    want = theirs(X)
    assert_same(ours(X), want)
    assert operations(ours, X) == operations(theirs, X)
    total = lambda f: lambda x: sum(jnp.sum(y) for y in jax.tree.leaves(f(x)))
    assert_same(jaxviz.grad(total(ours))(X), jax.grad(total(theirs))(X))
    per_example = lambda vmap, grad: vmap(grad(total(fun)), axis_name="i")(X)
    assert_same(per_example(jaxviz.vmap, jaxviz.grad), per_example(jax.vmap, jax.grad))
    tangents = seeds((X,), tangent=True)
    assert_same(jaxviz.jvp(ours, (X,), tangents), jax.jvp(theirs, (X,), tangents))


@pytest.mark.slow
def test_two_axes():
    fun = lambda x, y: lax.psum(x * y, ("i", "j")) + lax.pmean(x, "j") * lax.axis_index("i")
    both = lambda vmap: vmap(vmap(fun, (0, None), axis_name="j"), (None, 0), axis_name="i")(X[0], X[1])
    assert_same(both(jaxviz.vmap), both(jax.vmap))


def made_by(monkeypatch, fun, *args, **options):
    """The program that `jaxviz.vmap` derives from a function."""
    made = []
    monkeypatch.setattr(api, "vmap_program", lambda *a: made.append(vmap_program(*a)) or made[-1])
    jaxviz.vmap(fun, **options)(*args)
    return made[-1]


def test_a_cond_that_becomes_a_select_is_recorded(monkeypatch):
    branches = (jnp.sin, jnp.cos, lambda x: x * 2.0)
    choose = lambda x, i: lax.switch(i, branches, x)
    mapped = made_by(monkeypatch, choose, X, jnp.array([0, 1, 2, 1]))
    (note,) = mapped.notes
    assert note.equation.primitive.name == "cond"
    assert note.text == "cond becomes select: all 3 branches are computed for every example"
    selects = [e for e in mapped.program.equations if e.primitive.name == "select_n"]
    assert {e.origin.rule for e in selects} == {note.text}
    assert {e.origin.equation for e in selects} == {note.equation}
    assert not any(e.primitive.name == "cond" for e in mapped.program.equations)
    same_for_all = made_by(monkeypatch, lambda x: lax.cond(True, jnp.sin, jnp.cos, x), X)
    assert same_for_all.notes == ()
    inside = made_by(monkeypatch, lambda xs: lax.map(lambda x: lax.cond(x > 0.5, jnp.sin, jnp.cos, x), xs), X)
    assert [n.text for n in inside.notes] == ["cond becomes select: both branches are computed for every example"]


def test_residuals_say_that_a_cond_became_a_select():
    def choose(x):
        return lax.cond(x.sum() > 1.0, jnp.sin, jnp.cos, x)

    found = jaxviz.residuals(jaxviz.vmap(choose), X)
    line = choose.__code__.co_firstlineno + 1
    assert found.notes[-1] == (
        f"Under vmap the cond becomes select: both branches are computed for every example (test_vmap.py:{line})."
    )
    assert jaxviz.derive(jaxviz.vmap(choose), X).check()
    assert not jaxviz.residuals(jaxviz.vmap(jnp.sin), X).notes


def test_a_loop_that_waits_for_its_slowest_example_is_recorded(monkeypatch):
    halve = lambda x: lax.while_loop(lambda c: c.sum() > 0.5, lambda c: c * 0.5, x)
    mapped = made_by(monkeypatch, halve, X)
    assert [n.text for n in mapped.notes] == [
        "while runs until every example is done: those that are done earlier keep their values"
    ]
    np.testing.assert_allclose(jaxviz.vmap(halve)(X), jax.vmap(halve)(X))


@pytest.mark.slow
def test_every_mapped_equation_leads_back_to_the_function(monkeypatch):
    for case in CASES:
        if case.vmaps and case.name in ("attention", "four_deep", "cond_in_saving_remat"):
            mapped = made_by(monkeypatch, case.fun, *stacked(case.args))
            for equation in mapped.program.equations:
                assert equation.origin is not None
                assert equation.origin.transform == "vmap"


def both_refuse(error, call):
    messages = []
    for vmap in (jax.vmap, jaxviz.vmap):
        with pytest.raises(error) as caught:
            call(vmap)
        messages.append(str(caught.value))
    assert messages[0].splitlines()[0] == messages[1].splitlines()[0]
    return messages[1]


@pytest.mark.slow
def test_bad_input():
    pair = lambda p, x: {"a": p["w"] * x, "b": p["b"]}
    params = {"w": jnp.ones(3), "b": X}
    message = both_refuse(ValueError, lambda vmap: vmap(pair)(params, X))
    assert "argument p['b']" in message
    message = both_refuse(ValueError, lambda vmap: vmap(pair, ({"w": None, "b": 0}, 0), {"a": None, "b": 0})(params, X))
    assert "at vmap out_axes['a']" in message
    both_refuse(ValueError, lambda vmap: vmap(pair, (0,))(params, X))
    both_refuse(TypeError, lambda vmap: vmap(pair, "0")(params, X))
    both_refuse(ValueError, lambda vmap: vmap(lambda x: x)(1.0))
    both_refuse(NameError, lambda vmap: vmap(lambda x: lax.psum(x, "j"))(X))
    both_refuse(ValueError, lambda vmap: vmap(pair, axis_size=3)(params, X))
    both_refuse(jax.errors.TracerBoolConversionError, lambda vmap: vmap(lambda x: x if x.sum() > 0 else -x)(X))


def test_an_operation_without_a_batching_rule_is_named_with_its_line():
    def linear(x):
        return jax.custom_derivatives.linear_call(lambda _, y: y * 2.0, lambda _, ct: ct * 2.0, (), x)

    with pytest.raises(NotImplementedError, match="Batching rule for 'linear_call' not implemented") as caught:
        jaxviz.vmap(linear)(X)
    assert f"test_vmap.py:{linear.__code__.co_firstlineno + 1}" in str(caught.value)
