"""`vmap`: axes, collectives, what is recorded, and what is refused; the programs of the table are in the matrix."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from laws import assert_same, operations, seeds, stacked
from programs import CASES
from short_runs import short

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
@pytest.mark.parametrize("fun", short(list(COLLECTIVES.values()), 2), ids=COLLECTIVES)
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


@pytest.mark.slow
def test_every_mapped_equation_leads_back_to_the_function(monkeypatch):
    for case in CASES:
        if case.vmaps and case.name in ("attention", "four_deep", "cond_in_saving_remat"):
            mapped = made_by(monkeypatch, case.fun, *stacked(case.args))
            for equation in mapped.program.equations:
                assert equation.origin is not None
                assert equation.origin.transform == "vmap"
