"""`jaxviz.step`: the display at each stop, cotangents of intermediate values, breakpoints, errors."""

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  enters its programs into the table
import numpy as np
import pytest
import transcripts
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from programs import CASES, M, W, X, arange
from short_runs import short

import jaxviz
from jaxviz.features.debugger import norms
from jaxviz.features.debugger.norms import Norm, Norms
from jaxviz.features.debugger.positions import NoValueError

XS = arange(6, 3)


def mlp(params, x):
    for w, b in params:
        x = jnp.tanh(x @ w + b)
    return jnp.mean(x**2)


def by_name(s, primitive, n=0, stage="forward"):
    """The name of the result of a primitive's n-th equation."""
    text = s._texts[stage]
    found = [e for program, _, _ in text.programs for e in program.equations if e.primitive.name == primitive]
    return text.names[found[n].outvars[0]]


def close(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-6)


# --- the whole run ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("move", ["next", "into", "out", "run"])
def test_the_gradient_is_jax_s(move):
    s = jaxviz.step(mlp, W, M)
    while not s.is_done:
        getattr(s, move)()
    close(s.result, mlp(W, M))
    for got, wanted in zip(s.gradient, jax.tree.leaves(jax.grad(mlp)(W, M)), strict=True):
        close(got, wanted)


@pytest.mark.slow(sweep=True)
def test_under_strict_promotion_and_an_explicit_mesh_it_shows_the_same():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(AxisType.Explicit,))
    x = jax.device_put(M[:2], NamedSharding(mesh, PartitionSpec("i")))
    shown = lambda s: [str(s), str(s.into()), str(s.run())]
    want = shown(jaxviz.step(mlp, W, M[:2]))
    with jax.numpy_dtype_promotion("strict"):
        assert shown(jaxviz.step(mlp, W, M[:2])) == want
    with jax.set_mesh(mesh):
        s = jaxviz.step(mlp, W, x)
        assert [text.count("\n") for text in shown(s)] == [text.count("\n") for text in want]
        for got, wanted in zip(s.gradient, jax.tree.leaves(jax.grad(mlp)(W, x)), strict=True):
            close(got, wanted)


def test_it_moves_on_when_the_mesh_is_no_longer_set():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(AxisType.Explicit,))
    scanned = lambda x: jnp.sum(lax.scan(lambda c, _: (jnp.sin(c), c), x, None, length=3)[0] ** 2)
    with jax.set_mesh(mesh):
        x = jax.device_put(M[:2], NamedSharding(mesh, PartitionSpec("i")))
        want = jax.grad(scanned)(x)
        s = jaxviz.step(scanned, x)
    close(s.run().gradient[0], want)
    assert "backward" in str(s.back())


def test_a_result_that_is_no_number_is_stepped_with_cotangents():
    f = lambda x: {"out": jnp.sin(x) * x}
    ct = {"out": jnp.array([1.0, 2.0, 3.0])}
    close(jaxviz.step(f, X).run().result["out"], f(X)["out"])
    close(jaxviz.step(f, X, cotangents=ct).run().gradient[0], jax.vjp(f, X)[1](ct)[0])


def test_custom_rules_are_stepped_into_where_the_function_itself_is_run():
    s = jaxviz.step(lambda x: jax.nn.relu(x), X)
    seen = set()
    while not s.is_done:
        s.into()
        seen |= {e.primitive.name for e in s.machine.holders(s.position)}
    assert {"custom_jvp_call", "jit"} & seen


# --- cotangents of intermediate values --------------------------------------------------------------------------------


def two_uses(x, at):
    y = jnp.sin(x) + at
    return jnp.sum(y * y + jnp.exp(y) * x)


def blocks(x, at):
    def block(x, at):
        h = jnp.tanh(x * 2.0) + at[0]
        g = lax.cond(x[0] > 0, lambda h: jnp.sin(h) + at[1], lambda h: h * h, h)
        return jnp.exp(g) * h

    for i in range(2):
        x = jax.checkpoint(block)(x, at[i])
    return jnp.sum(x)


def plus_a_number(x, at):
    y = jnp.sin(x) + at[0]
    z = (y + 1.0) + at[1]
    return jnp.sum(z**2 + jnp.exp(y))


def meeting(x, at):
    y = jnp.sin(x) + at
    return jnp.sum(y * (y + 1.0))


def logits(x, at):
    shifted = x - lax.stop_gradient(x.max()) + at
    return jnp.log(jnp.exp(shifted).sum()) - x[1] * shifted[0]


ZERO = jnp.zeros(3)
INTERMEDIATES = {
    two_uses: (ZERO, [("sin", 0)]),
    blocks: ([[ZERO, ZERO], [ZERO, ZERO]], [("tanh", 0), ("cond", 0), ("tanh", 1), ("cond", 1)]),
    plus_a_number: ([ZERO, ZERO], [("sin", 0), ("add", 1)]),
    meeting: (ZERO, [("sin", 0)]),
    logits: (ZERO, [("sub", 0)]),
    lambda x, at: jnp.sum(jnp.sin(x)) + 3.0 + at: (0.0, [("add", 0)]),
}
"""For each program what is added to intermediate values, and the primitives that compute these."""


@pytest.mark.slow
@pytest.mark.parametrize("f", INTERMEDIATES, ids=lambda f: f.__name__)
def test_the_cotangent_of_an_intermediate_is_the_gradient_in_what_is_added_to_it(f):
    at, made_by = INTERMEDIATES[f]
    at = jax.tree.map(jnp.asarray, at)
    s = jaxviz.step(lambda x: f(x, at), X).run()
    for made, wanted in zip(made_by, jax.tree.leaves(jax.grad(f, 1)(X, at)), strict=True):
        close(s.cotangents[by_name(s, *made)], wanted)
    close(s.gradient[0], jax.grad(f)(X, at))


def test_it_is_there_once_all_that_reads_the_value_has_been_passed():
    s = jaxviz.step(lambda x: two_uses(x, 0.0), X).out()
    name = by_name(s, "sin")
    while name not in s.cotangents:
        s.next()
    (shown,) = s.shown
    assert name in shown.cotangent.split(", ")
    assert s.equation.origin.role == "accumulation"


@pytest.mark.slow
@pytest.mark.parametrize("k", [0, 3, 5])
def test_in_a_scan_there_is_one_for_each_iteration(k):
    def f(w, xs, at=None):
        at = jnp.zeros_like(xs) if at is None else at

        def cell(h, x_and_zero):
            x, zero = x_and_zero
            h = jnp.tanh(w @ h + x) + zero
            return jnp.sin(h) * h, h.sum()

        h, ys = lax.scan(cell, xs[0], (xs, at))
        return jnp.sum(h) + jnp.sum(ys**2)

    w = arange(3, 3) * 0.3
    s = jaxviz.step(f, w, XS).run()
    name = by_name(s, "tanh")
    wanted = jax.grad(f, 2)(w, XS, jnp.zeros_like(XS))[k]
    close(s.cotangents[name, k], wanted)
    s.goto(jaxviz.Position("backward"))
    s.run(primitive="scan").to(iteration=k)
    with pytest.raises(NoValueError, match="not available yet"):
        s.cotangents[name]
    s.next(len(s.program.equations))
    close(s.cotangents[name], wanted)


def test_in_a_function_that_is_called_several_times_each_call_has_its_own():
    layer = jax.jit(lambda x, zero: jnp.tanh(jnp.sin(x) + zero) * 2.0)

    def f(x, at):
        for i in range(3):
            x = layer(x, at[i])
        return jnp.sum(x**2)

    zeros = jnp.zeros((3, 3))
    s = jaxviz.step(lambda x: f(x, zeros), X).run()
    wanted = jax.grad(f, 1)(X, zeros)
    text = s._texts["forward"]
    (sin,) = {e for program, _, _ in text.programs for e in program.equations if e.primitive.name == "sin"}
    sites = text.sites[sin.outvars[0]]
    assert len(sites) == 3
    for i, site in enumerate(sites):
        place = s._places.place(site, sin.outvars[0])
        close(s._look("backward", "sin", [place], (), "it"), wanted[i])


PRIMAL = ["mlp", "layer_norm", "attention", "trees", "nested_jit", "reshapes", "scan_rnn", "cond_in_cond", "remat"]


@pytest.mark.slow
@pytest.mark.parametrize("case", short([c for c in CASES if c.name in PRIMAL], 3), ids=str)
def test_the_cotangents_of_arguments_are_the_gradient(case):
    inexact = [
        i
        for i, a in enumerate(case.args)
        if all(jnp.issubdtype(jnp.result_type(x), jnp.inexact) for x in jax.tree.leaves(a))
    ]
    ct = jax.tree.map(jnp.ones_like, case.fun(*case.args))
    s = jaxviz.step(case.fun, *case.args, argnums=inexact, cotangents=ct).run()
    wanted = jax.vjp(case.fun, *case.args)[1](ct)
    for got, w in zip(s.gradient, jax.tree.leaves(wanted), strict=True):
        close(got, w)


# --- breakpoints ------------------------------------------------------------------------------------------------------


def broken(w, xs):
    def cell(h, x):
        h = jnp.tanh(w @ h) + x
        inner = jnp.log(h)  # NaN where h is negative
        return h, jnp.where(h > 0, inner, 0.0).sum()

    h, ys = lax.scan(cell, xs[0], xs)
    return jnp.sum(h) + ys.sum()


EYE = jnp.eye(3)


def test_a_predicate_over_the_value():
    s = jaxviz.step(lambda x: jnp.sum(jnp.exp(jnp.exp(x * 3.0))), X)
    s.run(when=lambda v: abs(v).max() > 100)
    assert s.equation.primitive.name == "exp"
    assert s.position.index == 2 or float(jnp.max(s.value)) > 100
    assert float(jnp.max(s.value)) > 100
    assert not any(float(jnp.max(abs(s.values[n]))) > 100 for n in list(s.values)[:-1])


@pytest.mark.slow
def test_a_predicate_is_not_asked_of_keys_and_of_arrays_without_elements():
    f = lambda x, key: jnp.sum(x * jax.random.normal(jax.random.split(key)[0], x.shape)) + jnp.zeros((0,)).sum()
    s = jaxviz.step(f, X, jax.random.key(0)).run(when=lambda v: abs(v).max() > 1e9)
    assert s.is_done or int(np.max(np.abs(np.asarray(s.value, np.float64)))) > 1e9


@pytest.mark.slow
def test_a_line_is_stopped_at_where_the_run_comes_to_it():
    line = broken.__code__.co_firstlineno + 3
    s = jaxviz.step(broken, EYE, XS)
    s.run(line=line)
    assert s.following.primitive.name == "log"
    assert s.position.path[-1].iteration == 0
    s.run(line=f"test_stepper.py:{line}")
    assert s.position.path[-1].iteration == 1
    s.machine.goto(jaxviz.Position("backward"))
    s.run(line=line)
    assert s.stage == "backward"


def test_an_address_is_stopped_at_once_its_value_is_computed_also_again():
    @jax.checkpoint
    def layer(h, w):
        a = jnp.tanh(h * w)
        return h + a, None

    s = jaxviz.step(lambda ws, x: jnp.sum(lax.scan(layer, x, ws)[0]), jnp.ones(3), X)
    stops = []
    while s.run(at="layer › jnp.tanh(h * w)").hit is not None:
        stops.append((s.position.stage, s.position.path[0].iteration))
    assert stops == [("forward", 0), ("forward", 1), ("forward", 2), ("backward", 2), ("backward", 1), ("backward", 0)]
    with pytest.raises(jaxviz.AddressError, match="Near it are"):
        s.break_at(at="tanh")


def test_bodies_without_a_breakpoint_run_at_once():
    s = jaxviz.step(broken, EYE, XS)
    ran = []
    execute = s.machine._execute
    s.machine._execute = lambda e, operands: ran.append(e.primitive.name) or execute(e, operands)
    s.run(primitive="scan").run(primitive="scan")
    assert s.stage == "backward"
    assert ran.count("scan") == 1
    assert "log" not in ran


def test_programs_and_derivations_are_stepped_too():
    d = jaxviz.derive(mlp, W, M)
    leaves = jax.tree.leaves((W, M))
    for f in (d, jaxviz.trace(mlp)(W, M), jax.make_jaxpr(mlp)(W, M)):
        close(jax.tree.leaves(jaxviz.step(f, *leaves).run().result)[0], mlp(W, M))


# --- the norms of each line -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("few", [norms.FEW, 0], ids=["NumPy", "JAX"])
def test_what_is_not_finite_is_left_out_of_the_norm_and_integers_have_none(few, monkeypatch):
    monkeypatch.setattr(norms, "FEW", few)
    measured = Norms(jaxviz.step(mlp, W, M)).of
    assert measured(jnp.array([3.0, jnp.inf, 4.0])) == Norm(5.0, "Inf")
    assert measured(jnp.array([jnp.nan, jnp.inf])) == Norm(0.0, "NaN")
    assert measured(jnp.array([3.0 + 4.0j])) == measured(jnp.array([3.0, 4.0], jnp.bfloat16)) == Norm(5.0, "")
    assert measured(jnp.array([3, 4])) is measured(jax.random.key(0)) is None


def test_a_value_that_is_not_in_memory_any_more_has_the_norm_that_it_had():
    def f(x):
        a = jnp.sin(x)
        b = a + 1.0
        c = b * 2.0
        return jnp.sum(c)

    x = jnp.ones(1000)
    s = jaxviz.step(f, x, memory=5000).run()
    assert s.machine.frame("forward", ()).prints
    found, whole = ({at: n.value.norm for at, n in Norms(m).by_line().items()} for m in (s, jaxviz.step(f, x).run()))
    assert found == pytest.approx(whole, rel=1e-4)


@pytest.mark.slow
@transcripts.of("debugger")
def test_transcripts(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)
