"""`jaxviz.step`: the display at each stop, cotangents of intermediate values, breakpoints, errors."""

import json

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  enters its programs into the table
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from programs import CASES, M, W, X, arange

import jaxviz
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


@pytest.mark.parametrize("move", ["next", "into", "out", "run"])
def test_the_gradient_is_jax_s(move):
    s = jaxviz.step(mlp, W, M)
    while not s.is_done:
        getattr(s, move)()
    close(s.result, mlp(W, M))
    for got, wanted in zip(s.gradient, jax.tree.leaves(jax.grad(mlp)(W, M)), strict=True):
        close(got, wanted)


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


def test_results_are_there_when_they_have_been_made():
    s = jaxviz.step(mlp, W, M)
    with pytest.raises(
        jaxviz.SteppingError, match=r"has not returned yet: the run is at equation 0 of \d+ of the forward"
    ):
        _ = s.result
    with pytest.raises(jaxviz.SteppingError, match="backward pass has not finished yet"):
        _ = s.out().gradient


def test_values_have_the_names_that_the_program_prints():
    s = jaxviz.step(lambda x: jnp.sum(jnp.sin(x) * 2.0), X)
    assert str(s.derivation.forward).startswith("{ lambda ; a:f32[3]. let\n    b:f32[3] = sin a")
    assert list(s.values) == ["a"]
    s.next()
    close(s.values["b"], jnp.sin(X))
    close(s.value, jnp.sin(X))
    assert list(s.values) == ["a", "b"]
    assert s.equation.primitive.name == "sin"


def test_a_value_that_is_not_there_says_why():
    s = jaxviz.step(lambda x: lax.scan(lambda c, x: (jnp.sin(c) * x, c), X, x)[0].sum(), XS)
    with pytest.raises(NoValueError, match="has no variable `zz`"):
        s.values["zz"]
    inside = by_name(s, "sin")
    with pytest.raises(
        KeyError,
        match=rf"`{inside}` is in the body of `scan` \(test_stepper\.py:\d+\): give the iteration, as in \['{inside}', 0\]",
    ):
        s.values[inside]
    with pytest.raises(
        KeyError,
        match=rf"`{inside}` is not available yet: it is computed by equation 0 of `scan` of the forward program",
    ):
        s.values[inside, 0]
    s.out()
    close(s.values[inside, 0], jnp.sin(X))
    with pytest.raises(jaxviz.SteppingError, match="has 6 iterations, so there is no 6"):
        s.values[inside, 6]
    assert "zz" not in s.values


def test_a_result_that_is_no_number_is_stepped_forward_or_with_cotangents():
    f = lambda x: {"out": jnp.sin(x) * x}
    s = jaxviz.step(f, X)
    assert s.stages == ("primal",)
    assert "for a backward pass give `cotangents`" in str(s)
    with pytest.raises(jaxviz.SteppingError, match="There is no backward pass here"):
        _ = s.out().gradient
    close(s.result["out"], f(X)["out"])
    ct = {"out": jnp.array([1.0, 2.0, 3.0])}
    close(jaxviz.step(f, X, cotangents=ct).run().gradient[0], jax.vjp(f, X)[1](ct)[0])
    with pytest.raises(jaxviz.SteppingError, match="needs `cotangents`"):
        jaxviz.step(f, X, backward=True)
    with pytest.raises(TypeError, match="structure of the result"):
        jaxviz.step(f, X, cotangents=X)
    with pytest.raises(TypeError, match=r"must have the type of its result, float32\[3\]"):
        jaxviz.step(f, X, cotangents={"out": 1.0})


def test_a_function_without_reverse_mode_is_stepped_forward():
    f = lambda x: lax.while_loop(lambda c: c < 10.0, lambda c: c * 2.0, x)
    s = jaxviz.step(f, 1.0)
    assert s.stages == ("primal",)
    assert "There is no backward pass. " in str(s)
    assert "Reverse-mode differentiation does not work for lax.while_loop" in str(s)
    s.run(primitive="while").to(iteration=3)
    close(s.values[by_name(s, "mul", stage="primal"), 2], 8.0)
    assert s.out().run().result == 16.0


def test_custom_rules_are_stepped_into_where_the_function_itself_is_run():
    s = jaxviz.step(lambda x: jax.nn.relu(x), X)
    seen = set()
    while not s.is_done:
        s.into()
        seen |= {e.primitive.name for e in s.machine.holders(s.position)}
    assert {"custom_jvp_call", "jit"} & seen


def test_types_without_values_are_refused():
    with pytest.raises(jaxviz.SteppingError, match="needs arrays; got a ShapeDtypeStruct"):
        jaxviz.step(jnp.sin, jax.ShapeDtypeStruct((), np.float32))


def test_a_donated_argument_is_refused_as_in_jax():
    x = jnp.ones(3)
    x.delete()
    with pytest.raises(RuntimeError, match="Array has been deleted"):
        jaxviz.step(lambda x: jnp.sum(x), x)


# --- cotangents of intermediate values --------------------------------------------------------------------------------


def test_the_cotangent_of_an_intermediate_is_its_gradient():
    def f(x, at=0.0):
        y = jnp.sin(x) + at
        return jnp.sum(y * y + jnp.exp(y) * x)

    s = jaxviz.step(f, X)
    name = by_name(s, "sin")
    with pytest.raises(
        NoValueError, match=f"The cotangent of `{name}` is not available yet: the backward pass has not begun"
    ):
        s.cotangents[name]
    s.out().next()
    with pytest.raises(
        NoValueError, match=rf"The cotangent of `{name}` is not available yet: it is computed by equation \d+"
    ):
        s.cotangents[name]
    assert name not in s.cotangents
    s.run()
    close(s.cotangents[name], jax.grad(f, 1)(X, jnp.zeros(3)))
    close(s.cotangents["a"], jax.grad(f)(X))
    assert name in s.cotangents


def test_it_is_there_once_all_that_reads_the_value_has_been_passed():
    def f(x):
        y = jnp.sin(x)
        return jnp.sum(y * jnp.cos(y))

    s = jaxviz.step(f, X)
    name = by_name(s, "sin")
    s.out()
    while name not in s.cotangents:
        s.next()
    (shown,) = s.shown
    assert shown.cotangent == name
    assert s.equation.origin.role == "accumulation"


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


def test_in_a_checkpointed_function_and_in_the_branch_taken():
    def block(x, at):
        h = jnp.tanh(x * 2.0) + at[0]
        g = lax.cond(x[0] > 0, lambda h: jnp.sin(h) + at[1], lambda h: h * h, h)
        return jnp.exp(g) * h

    def f(x, at):
        for i in range(2):
            x = jax.checkpoint(block)(x, at[i])
        return jnp.sum(x)

    zeros = jnp.zeros((2, 2, 3))
    s = jaxviz.step(f, X, zeros).run()
    wanted = jax.grad(f, 1)(X, zeros)
    names = s._texts["forward"].names
    tanhs = [e for e in s.derivation.forward.equations if e.primitive.name == "tanh"]
    assert len(tanhs) == 2
    for i, e in enumerate(tanhs):
        close(s.cotangents[names[e.outvars[0]]], wanted[i, 0])
    conds = [e for e in s.derivation.forward.equations if e.primitive.name == "cond"]
    for i, e in enumerate(conds):
        close(s.cotangents[names[e.outvars[0]]], wanted[i, 1])


def test_in_a_function_that_is_called_several_times():
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


def test_a_value_and_one_that_only_adds_a_number_to_it_are_told_apart():
    def f(x, at=(0.0, 0.0)):
        y = jnp.sin(x) + at[0]
        z = (y + 1.0) + at[1]
        return jnp.sum(z**2 + jnp.exp(y))

    s = jaxviz.step(f, X).run()
    of_y, of_z = jax.grad(f, 1)(X, (jnp.zeros(3), jnp.zeros(3)))
    close(s.cotangents[by_name(s, "sin")], of_y)
    close(s.cotangents[by_name(s, "add", 1)], of_z)
    alone = jaxviz.step(lambda x: jnp.sum((jnp.sin(x) + 1.0) ** 2), X).run()
    close(alone.cotangents[by_name(alone, "add")], 2 * (jnp.sin(X) + 1.0))


def test_a_value_and_the_same_plus_a_constant_that_meet_in_one_equation():
    def f(x):
        y = jnp.sin(x)
        return jnp.sum(y * (y + 1.0))

    s = jaxviz.step(f, X).run()
    close(s.cotangents[by_name(s, "sin")], 2 * jnp.sin(X) + 1.0)
    with pytest.raises(NoValueError, match="it is another value plus a constant and one equation reads both"):
        s.cotangents[by_name(s, "add")]


def test_of_a_result_that_is_a_value_plus_a_constant():
    s = jaxviz.step(lambda x: jnp.sum(jnp.sin(x)) + 3.0, X).run()
    assert float(s.cotangents[by_name(s, "add")]) == 1.0


def test_of_logits_less_their_maximum():
    def f(logits, at=0.0):
        shifted = logits - lax.stop_gradient(logits.max()) + at
        return jnp.log(jnp.exp(shifted).sum()) - logits[1] * shifted[0]

    s = jaxviz.step(f, X).run()
    close(s.cotangents[by_name(s, "sub")], jax.grad(f, 1)(X, jnp.zeros(3)))


def test_what_has_none_says_so():
    s = jaxviz.step(lambda x: jnp.sum(jnp.sin(x) * jnp.floor(x)), X).run()
    for primitive in ("floor", "cos"):
        with pytest.raises(NoValueError, match="has no cotangent"):
            s.cotangents[by_name(s, primitive)]


PRIMAL = ["mlp", "layer_norm", "attention", "trees", "nested_jit", "reshapes", "scan_rnn", "cond_in_cond", "remat"]


@pytest.mark.values
@pytest.mark.parametrize("case", [c for c in CASES if c.name in PRIMAL], ids=str)
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


BAD = XS.at[4, 1].set(-5.0)
EYE = jnp.eye(3)


def test_the_first_value_that_is_not_finite():
    s = jaxviz.step(broken, EYE, BAD).run(non_finite=True)
    assert s.equation.primitive.name == "log"
    assert s.position.path[-1].iteration == 4
    (value,) = s.shown
    assert (value.summary.nan, value.summary.first_not_finite) == (1, (1,))
    assert "in iteration 4 of 6 of `scan`" in str(s)
    assert "stopped at: not finite by" in str(s)


@pytest.mark.values
def test_an_argument_that_is_not_finite_is_stopped_at_once():
    s = jaxviz.step(lambda x: jnp.sum(x * 2), jnp.array([1.0, jnp.inf])).run(non_finite=True)
    assert s.position == jaxviz.Position("forward")
    assert s.hit.variable is not None
    assert s.run(non_finite=True).equation.primitive.name == "mul"


def test_a_predicate_over_the_value():
    s = jaxviz.step(lambda x: jnp.sum(jnp.exp(jnp.exp(x * 3.0))), X)
    s.run(when=lambda v: abs(v).max() > 100)
    assert s.equation.primitive.name == "exp"
    assert s.position.index == 2 or float(jnp.max(s.value)) > 100
    assert float(jnp.max(s.value)) > 100
    assert not any(float(jnp.max(abs(s.values[n]))) > 100 for n in list(s.values)[:-1])


@pytest.mark.values
def test_a_predicate_is_not_asked_of_keys_and_of_arrays_without_elements():
    f = lambda x, key: jnp.sum(x * jax.random.normal(jax.random.split(key)[0], x.shape)) + jnp.zeros((0,)).sum()
    s = jaxviz.step(f, X, jax.random.key(0)).run(when=lambda v: abs(v).max() > 1e9)
    assert s.is_done or int(np.max(np.abs(np.asarray(s.value, np.float64)))) > 1e9


def test_a_predicate_that_fails_says_on_what():
    with pytest.raises(ValueError, match="ambiguous") as caught:
        jaxviz.step(lambda x: jnp.sum(jnp.sin(x)), X).run(when=lambda v: v > 1)
    assert any("Raised by the predicate of a breakpoint, on `a`, f32[3]" in n for n in caught.value.__notes__)


@pytest.mark.values
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


def test_a_primitive_and_a_name():
    s = jaxviz.step(broken, EYE, XS)
    assert s.run(primitive="tanh").following.primitive.name == "tanh"
    name = by_name(s, "log")
    assert s.run(name=name).equation.primitive.name == "log"


def test_breakpoints_stay():
    s = jaxviz.step(broken, EYE, XS)
    b = s.break_at(primitive="log")
    assert s.breakpoints == [b]
    iterations = [s.run().position.path[-1].iteration for _ in range(6)]
    assert iterations == [0, 1, 2, 3, 4, 5]
    s.run()
    assert s.is_done
    assert "Ran to the end. Not hit from equation" in str(s)


def test_bodies_without_a_breakpoint_run_at_once():
    s = jaxviz.step(broken, EYE, XS)
    ran = []
    execute = s.machine._execute
    s.machine._execute = lambda e, operands: ran.append(e.primitive.name) or execute(e, operands)
    s.run(primitive="scan").run(primitive="scan")
    assert s.stage == "backward"
    assert ran.count("scan") == 1
    assert "log" not in ran


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"line": 1}, r"No equation comes from line 1. There are some from test_stepper.py:\d+"),
        ({"line": "x.py:nine"}, "A line must be a number or a place"),
        ({"primitive": "cosh"}, "In forward and backward there is no `cosh`, only "),
        ({"name": "zzz"}, "No equation that the run can stop at makes a variable `zzz`"),
        ({}, "A breakpoint needs a line"),
        ({"when": 3}, "`when` is a predicate"),
    ],
)
def test_a_breakpoint_that_can_never_hit_says_so(wanted, message):
    s = jaxviz.step(broken, EYE, XS)
    with pytest.raises(jaxviz.SteppingError, match=message):
        s.break_at(**wanted)
    assert s.breakpoints == []


def test_what_is_in_one_step_is_said_to_be():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    f = jax.shard_map(jnp.sinh, mesh=mesh, in_specs=spec, out_specs=spec)
    s = jaxviz.step(f, jnp.arange(8.0))
    with pytest.raises(jaxviz.SteppingError, match=r"There is one in `shard_map`.*, which runs as one step"):
        s.run(primitive="sinh")
    assert not s.into().position.path
    close(s.run().result, jnp.sinh(jnp.arange(8.0)))


# --- how it is shown --------------------------------------------------------------------------------------------------


def test_a_stop_as_text():
    s = jaxviz.step(lambda x: jnp.sum(jnp.sin(x) * 2.0), jnp.array([0.0, jnp.nan, 1.0]))
    lines = str(s.next()).split("\n")
    assert lines[0] == "gradient of `<lambda>` in `x`: equation 1 of 4 of the forward program"
    assert lines[1].startswith("  ran   b:f32[3] = sin a  test_stepper.py:")
    assert lines[2] == "    b: f32[3] 0 … 0.8415, mean 0.4207, std 0.4207, 1 NaN, 1 zero, first not finite at [1]"
    assert lines[4].startswith("  next  c:f32[3] = cos a  test_stepper.py:")


def test_the_branch_that_is_taken_is_marked():
    s = jaxviz.step(lambda i, x: lax.switch(i, [jnp.sin, jnp.cos], x).sum(), 1, X, argnums=1).run(primitive="cond")
    assert "takes branch 1; can be stepped into" in str(s)
    assert s.to_dict()["branch"] == 1
    assert "branch 1 of `cond`" in str(s.into())


def test_a_stop_as_data():
    s = jaxviz.step(broken, EYE, BAD).run(non_finite=True)
    data = json.loads(json.dumps(s.to_dict()))
    assert data["stages"] == ["forward", "backward"]
    (level,) = data["path"]
    assert (level["primitive"], level["iteration"], level["length"], level["body"]) == ("scan", 4, 6, "jaxpr")
    assert data["ran"]["primitive"] == "log"
    assert data["ran"]["location"]["line"] == broken.__code__.co_firstlineno + 3
    assert data["values"][0]["nan"] == 1
    assert sum(data["values"][0]["histogram"]) == 2


def test_a_stop_in_a_notebook_is_escaped():
    def f(x):
        return jnp.sum(jax.named_call(jnp.sin, name="<script>")(x))

    s = jaxviz.step(f, M).next()
    page = s._repr_html_()
    assert "<script>" not in page
    assert "data:image/png;base64," in page
    assert "<svg" in page


def test_each_move_is_told():
    s = jaxviz.step(broken, EYE, XS)
    seen = []
    s.on_stop(lambda s: seen.append(s.position))
    s.next().next().back()
    assert [p.index for p in seen] == [1, 2, 1]


def test_to_goes_to_an_iteration_ahead_and_back():
    s = jaxviz.step(broken, EYE, XS).run(primitive="scan")
    assert [s.to(iteration=k).position.path[-1].iteration for k in (4, 1, -1)] == [4, 1, 5]
    s.restart()
    with pytest.raises(jaxviz.SteppingError, match="There is no loop here"):
        s.to(iteration=1)


def test_back_goes_from_the_backward_program_to_the_forward_one():
    s = jaxviz.step(broken, EYE, XS).out().next()
    assert (s.stage, s.position.index) == ("backward", 0)
    s.back()
    assert s.stage == "forward"
    s.back(into=False)
    s.run(primitive="scan")
    assert s.stage == "backward"
    s.next().back(into=True)
    assert s.position.path[-1].iteration == 0  # a reversed scan ends with its first iteration


def test_programs_and_derivations_are_stepped_too():
    d = jaxviz.derive(mlp, W, M)
    leaves = jax.tree.leaves((W, M))
    for f in (d, jaxviz.trace(mlp)(W, M), jax.make_jaxpr(mlp)(W, M)):
        close(jaxviz.step(f, *leaves).run().result if f is d else jaxviz.step(f, *leaves).run().result[0], mlp(W, M))
    with pytest.raises(TypeError, match="takes its 5 flat inputs; got 1"):
        jaxviz.step(d, 1.0)
