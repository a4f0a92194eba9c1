"""What of several devices is in no table: gradients mapped over them, compositions of transforms, and mistakes."""

import traceback
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_programs import BODIES, GRID, LINE, M, X, mapped
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from laws import assert_same, side_by_side
from nestings import inexact

import jaxviz


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "run"),
    [
        pytest.param(entry, jax.jit, marks=[pytest.mark.slow(sweep=True)] * (i % 2), id=entry[0])
        for i, entry in enumerate(BODIES)
    ]
    + [
        pytest.param(entry, lambda f: f, marks=pytest.mark.slow(sweep=True), id=f"{entry[0]}, operation by operation")
        for entry in BODIES[::5]  # outside `jit`, JAX compiles each operation on eight devices separately
    ],
)
def test_gradient_on_each_device(entry, run):
    """The other order: a gradient is mapped over the devices, outside `jit` and inside."""
    _, body, in_specs, mesh, check_vma, args = entry
    specs = in_specs if isinstance(in_specs, tuple) and not isinstance(in_specs, P) else (in_specs,)
    floats = tuple(i for i, a in enumerate(args) if inexact(a))
    loss = lambda *args: sum(jnp.sum(y) for y in jax.tree.leaves(body(*args)))

    def on_each(m, *args):
        f = lambda *args: m.grad(loss, floats)(*args)
        return mapped(in_specs, tuple(specs[i] for i in floats), mesh, check_vma=check_vma)(f)(*args)

    side_by_side(on_each, *args, run=run)


rows = partial(mapped, P("i"), P("i"))
columns = partial(mapped, P("j"), P("j"), GRID)

COMPOSITIONS = {
    "pmax of what is not differentiated": lambda m: m.grad(
        lambda x: rows()(lambda x: jnp.exp(x - lax.pmax(lax.stop_gradient(x), "i")))(x).sum()
    )(X),
    "pmin under pmap": lambda m: m.grad(
        lambda x: jax.pmap(lambda x: x * lax.pmin(lax.stop_gradient(x), "i"), axis_name="i")(x).sum()
    )(M),
    "spmd_axis_name": lambda m: m.vmap(
        lambda x: columns()(lambda x: jnp.sin(x) * lax.psum(x, "j"))(x), spmd_axis_name="i"
    )(M),
    "gradient with spmd_axis_name": lambda m: m.grad(
        lambda y: m.vmap(lambda x: columns()(lambda x: jnp.sin(x) * lax.psum(x, "j"))(x), spmd_axis_name="i")(y).sum()
    )(M),
    "hessian": lambda m: m.hessian(lambda x: rows()(lambda x: jnp.sin(x) * lax.psum(x, "i"))(x).sum())(X[:8]),
    "jacobian of pmap": lambda m: m.jacrev(
        lambda x: jax.pmap(lambda x: jnp.sin(x) * lax.psum(x, "i"), axis_name="i")(x).sum(1)
    )(M),
    "gradient of a gradient": lambda m: m.grad(
        lambda x: m.grad(lambda x: rows()(lambda x: jnp.sin(x) * lax.psum(x**3, "i"))(x).sum())(x).sum()
    )(X),
    "linear_transpose": lambda m: m.linear_transpose(rows()(lambda x: lax.psum(x, "i") * jnp.ones(2) + x), X)(X),
    "along a path": lambda m: m.grad(lambda x: rows()(jnp.sin)(x).sum() if x[0] > 0 else x.sum())(X),
    "one argument for all": lambda m: m.grad(
        lambda w: jax.pmap(lambda w, x: jnp.sum(w * x), in_axes=(None, 0))(w, M).sum()
    )(M[0]),
    # JAX differentiates this, and trusts that the devices agree.
    "one result for all": lambda m: m.grad(
        lambda x: jax.pmap(lambda x: lax.psum(jnp.sum(jnp.sin(x)), "i"), axis_name="i", out_axes=None)(x)
    )(M),
}


LONG = ("hessian", "gradient of a gradient")


@pytest.mark.slow
@pytest.mark.parametrize(
    "compose",
    [pytest.param(c, id=n, marks=[pytest.mark.slow(sweep=True)] * (n in LONG)) for n, c in COMPOSITIONS.items()],
)
def test_composed(compose):
    assert_same(compose(jaxviz), compose(jax))


def test_pmax_has_no_derivative():
    f = lambda x: rows()(lambda x: x * lax.pmax(x, "i"))(x).sum()
    for m in (jax, jaxviz):
        with pytest.raises(NotImplementedError, match="Differentiation rule for 'pmax' not implemented"):
            m.grad(f)(X)


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_an_argument_that_is_donated_and_kept():
    """As in JAX the array has been deleted when the gradient reads it; the note says why."""
    square = jax.jit(lambda x: x * x, donate_argnums=0)
    for m in (jax, jaxviz):
        x = M + 0.0
        _, pull = m.vjp(square, x)
        with pytest.raises(RuntimeError, match="Array has been deleted") as caught:
            pull(M)
    assert "The gradient saves arrays that were donated to a jitted function: f32[8,4]" in str(caught.value.__notes__)


# --- mistakes: jax's error, with the user's line and the argument's path ---------------------------------------------

ROWS = NamedSharding(LINE, P("i"))
PARAMS = {"v": jnp.ones(3), "w": X[:12]}  # 12 is not divisible by 8 devices
DEVICES = jax.devices()[:3]
MANY = {"w": X}  # 16 examples, for 8 devices


def unbound(x):
    y = jnp.sin(x)
    return jnp.sum(lax.psum(y, "nope"))


def pair(x):
    return {"a": x, "b": x * 2.0}


def weights(p):
    return p["w"].sum()


def sine(p):
    return jnp.sin(p["w"])


def in_rows(out_specs, f=pair):
    return mapped(P("i"), out_specs)(f)


def constrained(p):
    return lax.with_sharding_constraint(jnp.sin(p["w"]), ROWS).sum()  # rejected when it runs; in a jit JAX would pad


W, ODD, FOUR = {"w": M}, {"w": X[:12]}, {"w": X[:4]}
MISTAKES = {
    # what is called, of `jax` or of `jaxviz`; and the path of the wrong argument
    "an unbound axis, grad": (lambda m: m.grad(unbound)(X), ""),
    "an unbound axis, jvp": (lambda m: m.jvp(unbound, (X,), (X,)), ""),
    "an unbound axis, vmap": (lambda m: m.vmap(unbound, axis_name="i")(M), ""),
    "an unbound axis, derive": (lambda m: jax.make_jaxpr(unbound)(X) if m is jax else m.derive(unbound, X), ""),
    "an unbound axis in shard_map": (lambda m: m.grad(in_rows(P(), unbound))(X), ""),
    "an unbound axis, grad in shard_map": (lambda m: in_rows(P("i"), m.grad(unbound))(X), ""),
    "an unbound axis in pmap": (lambda m: m.grad(lambda x: jax.pmap(unbound, axis_name="i")(x).sum())(M), ""),
    "an unbound axis, grad in pmap": (lambda m: jax.pmap(m.grad(unbound), axis_name="i")(M), ""),
    "the size of an unbound axis": (lambda m: m.grad(lambda x: x.sum() * lax.axis_size("nope"))(X), ""),
    # results whose sharding does not fit
    "vmap, out_axes": (lambda m: m.vmap(pair, out_axes={"a": 0})(M), "out_axes"),
    "vmap, out_axes of None": (lambda m: m.vmap(pair, out_axes={"a": 0, "b": None})(M), "out_axes['b']"),
    "vmap, out_axes beyond": (lambda m: m.vmap(pair, out_axes={"a": 0, "b": 5})(M), ""),
    "vmap, in_axes beyond": (lambda m: m.vmap(lambda p, x: p["w"] * x, in_axes=({"w": 3}, 0))(W, M), "p['w']"),
    "pmap, out_axes": (lambda m: m.grad(lambda x: jax.pmap(pair, out_axes={"a": 0})(x)["a"].sum())(M), ""),
    "pmap of grad, out_axes": (lambda m: jax.pmap(m.grad(weights), out_axes={"v": 0})({"w": X[:8]}), ""),
    "out_specs": (lambda m: m.grad(lambda x: in_rows({"a": P("i")})(x)["a"].sum())(X), "out_specs"),
    "out_specs of more dimensions": (
        lambda m: m.grad(lambda x: in_rows({"a": P("i"), "b": P(None, "i")})(x)["a"].sum())(X), "['b']"),
    "out_specs of what differs": (lambda m: m.grad(lambda x: in_rows({"a": P("i"), "b": P()})(x)["a"].sum())(X), ""),
    "out_specs of grad": (lambda m: in_rows({"v": P("i")}, m.grad(weights))(MANY), "out_specs"),
    # sizes that are not divisible, also of an argument that is not differentiated
    "pmap of too many": (lambda m: m.grad(lambda p: jax.pmap(sine)(p).sum())(MANY), "p['w']"),
    "pmap of grad of too many": (lambda m: jax.pmap(m.grad(weights))(MANY), ""),
    "shard_map": (
        lambda m: m.grad(lambda s, p: mapped((P(), P("i")), P("i"))(lambda s, q: jnp.sin(s * q["w"]))(s, p).sum())(1.0,
            ODD),
        "p['w']"),
    "shard_map of grad": (lambda m: in_rows(P("i"), m.grad(weights))(ODD), "['w']"),
    "in_shardings": (
        lambda m: m.grad(lambda s, p: jax.jit(lambda x: jnp.sin(s * x), in_shardings=ROWS)(p["w"]).sum())(1.0, PARAMS),
        "called with p['w']"),
    "in_shardings of grad": (lambda m: jax.jit(m.grad(weights), in_shardings=ROWS)(PARAMS), ""),
    "out_shardings": (lambda m: m.grad(lambda p: jax.jit(sine, out_shardings=ROWS)(p).sum())(PARAMS), "p['w']"),
    "a constraint": (lambda m: m.grad(constrained)(PARAMS), "called with p['w']"),
    "a constraint, jvp": (lambda m: m.jvp(constrained, (PARAMS,), (PARAMS,)), "called with p['w']"),
    # too few devices
    "pmap, devices": (lambda m: m.grad(lambda p: jax.pmap(sine, devices=DEVICES)(p).sum())(FOUR), "p['w']"),
    "pmap of grad, devices": (lambda m: jax.pmap(m.grad(weights), devices=DEVICES)(FOUR), ""),
    "pmap, axis_size": (lambda m: m.grad(lambda p: jax.pmap(sine, axis_size=3)(p).sum())(FOUR), "p['w']"),
    "pmap of nothing mapped": (lambda m: m.grad(lambda p: jax.pmap(sine, in_axes=None)(p).sum())({"w": X[:8]}),
                               "p['w']"),
}  # fmt: skip
OWN_WORDS = ("out_specs of more dimensions", "out_specs of what differs")
"""Where jax mentions the residuals of its own gradient; the engine finds the mistake before it has any."""


def lines(error):
    """The lines in this file that an error shows, including those that JAX reports as the origin of an operation."""
    shown = set()
    while error is not None:
        shown |= {frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__}
        error = error.__cause__
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_the_error_is_jaxs_with_line_and_path(name):
    call, path = MISTAKES[name]
    errors = []
    for m in (jax, jaxviz):
        with pytest.raises(Exception) as caught:  # noqa: PT011  whatever jax raises
            call(m)
        errors.append(caught.value)
    theirs, ours = errors
    assert type(ours) is type(theirs)
    if name not in OWN_WORDS:
        assert str(ours) == str(theirs)
    assert lines(ours) >= lines(theirs)
    assert len(lines(ours)) > 1  # the line in the test, and the line of the call
    assert path in "\n".join([str(ours), *getattr(ours, "__notes__", ())])


def test_with_many_arguments_those_that_the_error_speaks_of_come_first():
    def f(params, s):
        return jax.jit(jnp.sin, in_shardings=ROWS)(params[15] * s).sum()

    with pytest.raises(ValueError, match=r"\(12,\)") as caught:
        jaxviz.grad(f)([*(jnp.ones(3) for _ in range(15)), X[:12]], 2.0)
    (note,) = (n for n in caught.value.__notes__ if n.startswith("The function is"))
    assert f"f at {__file__}:{f.__code__.co_firstlineno}, called with params[15]: f32[12], params[0]: f" in note
    assert note.endswith("params[6]: f32[3] and 9 more.")


@pytest.mark.slow
@pytest.mark.parametrize("body", [lambda x: lax.psum(x, "i"), lambda x: x * 2.0], ids=["same", "differing"])
def test_a_pmap_whose_result_is_not_mapped(body):
    """JAX does not check that the devices agree; each gets an eighth of the cotangent."""

    def f(x):
        return (jax.pmap(body, axis_name="i", out_axes=None)(x) ** 2).sum()

    x = M[:, 0]
    np.testing.assert_array_equal(jaxviz.grad(f)(x), jax.grad(f)(x))
    xs = M.T.reshape(4, 8)
    np.testing.assert_array_equal(jaxviz.vmap(jaxviz.grad(f))(xs), jax.vmap(jax.grad(f))(xs))
    assert jaxviz.derive(f, x).check()


def test_an_axis_that_is_not_bound_in_shard_map_is_told_from_those_that_are():
    """JAX's error has no text there."""
    with pytest.raises(AssertionError) as caught:
        jaxviz.grad(lambda x: mapped(P("i"), P("i"))(lambda x: lax.psum(x, "nope"))(x).sum())(X)
    assert any("an axis that is not bound" in n and "there are ('i',)" in n for n in caught.value.__notes__)
