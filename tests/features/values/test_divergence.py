"""Where two runs part: planted faults are found at their value, pass and iteration; equal programs raise no alarm."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from divergence_programs import FAULTS, HEALTHY, ON_DEVICES, WS, X, in_checkpoints, model, on_devices
from drawings import drawn, is_sound
from jax import lax
from short_runs import short

import jaxviz
from jaxviz.features.values.divergence import Divergence
from jaxviz.features.values.partings import Parting
from jaxviz.features.values.summaries import (
    BITS,
    MOST_NOISE,
    NORM,
    SKETCH,
    WIDTH,
    columns,
    finished,
    moved,
    moves,
    noise_of,
)
from jaxviz.higher_order.rounding import OtherDigits


@pytest.mark.slow
@pytest.mark.parametrize("other", short(HEALTHY, 3), ids=lambda f: f.__name__)
def test_equal_programs_raise_no_alarm(other):
    found = jaxviz.divergence(model, other, WS, X)
    assert found.parting is None, str(found)
    assert found.n_compared > 5
    assert found.worst < MOST_NOISE / 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "against", short(["op-by-op", "float64", "bfloat16", "no-remat", "unsharded", "perturbed"], ["no-remat"])
)
def test_the_same_program_otherwise_raises_no_alarm(against):
    found = jaxviz.divergence(in_checkpoints, WS, X, against=against)
    assert found.parting is None, str(found)
    assert found.worst < MOST_NOISE / 3


def scaled(x):
    return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-5)


def two_calls(x, w):
    x = x + scaled(x) @ w
    return x + jnp.tanh(scaled(x) @ w), None


def in_python(ws, x):
    for w in ws:
        x, _ = two_calls(x, w)
    return jnp.sum(scaled(x))


def in_a_scan(ws, x):
    return jnp.sum(scaled(lax.scan(two_calls, x, ws)[0]))


@pytest.mark.parametrize(
    "pair", short([(in_python, in_a_scan), (in_a_scan, in_python)], 2), ids=["in_python", "in_a_scan"]
)
def test_a_function_called_inside_and_after_a_loop_is_paired_in_the_order_of_the_run(pair):
    found = jaxviz.divergence(*pair, WS[:3, 0], X)
    assert found.parting is None, str(found)
    assert sum(p.expression == "x**2" and p.phase == "forward" for p in found.partings) == 7


def test_sums_of_devices_are_not_the_whole_sum():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def whole(x):
        return jnp.sum(jnp.tanh(x)) / 8

    def in_parts(x):
        def part(x):
            return lax.psum(jnp.sum(jnp.tanh(x)), "d")

        return jax.shard_map(part, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P())(x) / 8

    found = jaxviz.divergence(in_parts, whole, X)
    assert found.parting is None, str(found)


def _sharded(kind, *specs):
    mesh = jax.make_mesh((4, 2), ("d", "m"), axis_types=(kind, kind))
    return mesh, *(jax.device_put(a, jax.NamedSharding(mesh, s)) for a, s in zip((WS[:, 0], X), specs, strict=True))


def layers_over_devices(ws, x):
    def layer(h, w):
        return jnp.tanh(h @ w), None

    return jnp.mean(jnp.square(lax.scan(layer, x, ws)[0]))


def one_sum_over_devices(ws, x):
    def part(ws, x):
        return lax.psum(jnp.sum(jnp.tanh(x @ ws[0])), "d")

    return jax.shard_map(part, in_specs=(jax.P(), jax.P("d")), out_specs=jax.P())(ws, x)


def each_device_its_mean(ws, x):
    def part(ws, x):
        return jnp.mean(jnp.tanh(x @ ws[0]))[None]

    return jnp.max(jax.shard_map(part, in_specs=(jax.P(), jax.P("d")), out_specs=jax.P("d"))(ws, x))


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit], ids=str)
@pytest.mark.parametrize(
    "fun", short([layers_over_devices, one_sum_over_devices], [one_sum_over_devices]), ids=lambda f: f.__name__
)
def test_a_program_over_devices_agrees_with_itself_on_one(fun, kind):
    mesh, ws, x = _sharded(kind, jax.P(), jax.P("d"))
    with jax.set_mesh(mesh):
        found = jaxviz.divergence(fun, ws, x, against="unsharded")
    assert found.parting is None, str(found)
    assert found.n_compared > 4
    assert found.worst < MOST_NOISE / 3


def test_what_depends_on_the_number_of_devices_is_found():
    mesh, ws, x = _sharded(jax.sharding.AxisType.Auto, jax.P(), jax.P("d"))
    with jax.set_mesh(mesh):
        found = jaxviz.divergence(each_device_its_mean, ws, x, against="unsharded")
    assert found.parting.expression.startswith("jnp.max("), str(found)


def test_a_program_that_names_its_devices_is_said_not_to_run_on_one():
    mesh, ws, x = _sharded(jax.sharding.AxisType.Auto, jax.P(), jax.P("d"))

    def constrained(ws, x):
        return jnp.sum(lax.with_sharding_constraint(x @ ws[0], jax.NamedSharding(mesh, jax.P("d"))))

    with pytest.raises(ValueError, match=r"`constrained` does not run on one device.*let it name axes only"):
        jaxviz.divergence(constrained, ws, x, against="unsharded")


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit], ids=str)
def test_summaries_do_not_depend_on_how_an_array_is_laid_out(kind):
    _, _, x = _sharded(kind, jax.P(), jax.P(None, "d"))
    over_devices, on_one = (finished(columns(v), v.size) for v in (x, X))
    np.testing.assert_array_equal(over_devices[BITS], on_one[BITS])
    np.testing.assert_allclose(over_devices[SKETCH], on_one[SKETCH], rtol=1e-5, atol=1e-5)


@jax.custom_vjp
def matmul(w, x):
    return x @ w


def _matmul_forward(w, x):
    return x @ w, (w, x)


def _matmul_backward(saved, ct):
    w, x = saved
    return 1.01 * x.T @ ct, ct @ w.T


matmul.defvjp(_matmul_forward, _matmul_backward)


def layers_in_dictionary(params, x):
    return jnp.mean(jnp.square(jnp.tanh(jnp.tanh(x @ params["a"]) @ params["b"])))


def layers_with_wrong_rule(params, x):
    return jnp.mean(jnp.square(jnp.tanh(matmul(params["b"], jnp.tanh(x @ params["a"])))))


def test_a_gradient_that_is_wrong_in_one_weight_alone_is_found(tmp_path):
    params = {"a": WS[0, 0], "b": WS[0, 1]}
    found = jaxviz.divergence(layers_in_dictionary, layers_with_wrong_rule, params, X)
    assert found.parting.what == "the gradient in `params['b']`", str(found)
    assert found.parting.relative == pytest.approx(0.01, rel=0.5)  # as projected to 16 numbers
    assert str(found).startswith("the gradients of `layers_in_dictionary` and `layers_with_wrong_rule` part in the ba")
    files = [
        jaxviz.record(f, params, X).save(tmp_path / f.__name__) for f in (layers_in_dictionary, layers_with_wrong_rule)
    ]
    assert jaxviz.divergence(*files).parting == found.parting
    assert found.step().is_done


def test_a_layer_of_many_in_python_has_its_number():
    def loss(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    other = lambda ws, x: loss([w * 1.01 if i == 3 else w for i, w in enumerate(ws)], x)
    args = [0.9 * jnp.eye(4)] * 6, jnp.ones((2, 4))
    found = jaxviz.divergence(loss, other, *args)
    assert "part in the forward pass: `x @ w #4` (" in found.summary
    assert found.parting.address == "x @ w #4"
    jaxviz.capture(loss, found.parting.address)(*args)


def test_operands_without_a_counterpart_are_named():
    def f(x):
        h = jnp.sin(x) * jnp.cos(x)
        return jnp.sum(h)

    def g(x):
        h = jnp.tanh(x) * jnp.cos(x)
        return jnp.sum(h)

    found = jaxviz.divergence(f, g, jnp.ones(3)).summary
    assert re.search(r"computed from `jnp\.sin\(x\)` \(\S+\) and `jnp\.tanh\(x\)` \(\S+\), which only one of", found)


def test_the_gradient_is_compared_in_the_arguments_that_are_chosen():
    params = {"a": WS[0, 0], "b": WS[0, 1]}
    first, second = (lambda x, params, f=f: f(params, x) for f in (layers_in_dictionary, layers_with_wrong_rule))
    assert jaxviz.divergence(first, second, X, params).parting is None
    assert "params['b']" in jaxviz.divergence(first, second, X, params, argnums=1).parting.what


def test_a_cotangent_that_only_one_of_them_has_is_not_zero():
    """Where no differentiated argument leads, JAX computes no cotangent, and that of the sum would be 1, not 0."""

    def loss(w, x):
        h = jnp.tanh(x @ w)
        return jnp.sum(h)

    def frozen(w, x):
        h = jnp.tanh(x @ lax.stop_gradient(w))
        return jnp.sum(h)

    for found in (jaxviz.divergence(loss, frozen, WS[0, 0], X), jaxviz.divergence(frozen, loss, WS[0, 0], X)):
        assert found.parting.what == "the gradient in `w`"
        assert {"jnp.sum(h)", "h"} <= set(found.one_sided)
        assert not {"jnp.sum(h)", "h"} & set(found.alone)
        assert "no differentiated argument leads there, of 'jnp.sum(h)', 'h'" in " ".join(str(found).split())
    assert [v for v in jaxviz.record(frozen, WS[0, 0], X).values if v.phase == "cotangent"] == []


def test_a_cotangent_of_what_no_result_depends_on_is_zero():
    def loss(w, x):
        h = jnp.tanh(x @ w)
        return jnp.sum(lax.stop_gradient(h) * x) + jnp.sum(w)

    of_h = [v for v in jaxviz.record(loss, WS[0, 0], X).values if (v.phase, v.address) == ("cotangent", "h")]
    assert [v.summaries[0] for v in of_h] == [0.0]


def test_what_only_data_goes_through_need_not_be_differentiated():
    """JAX differentiates no `while_loop` in reverse, and the gradient in `w` passes none."""

    def loss(w, x):
        scaled = lax.while_loop(lambda h: jnp.sum(h * h) < 100, lambda h: 1.5 * h, 2 * x)
        return jnp.mean(jnp.square(jnp.tanh(scaled @ w)))

    run = jaxviz.record(loss, WS[0, 0], X)
    assert {v.expression for v in run.values if v.phase == "forward"} > {"2 * x", "scaled @ w"}
    assert "scaled @ w" in {v.expression for v in run.values if v.phase == "cotangent"}
    assert "2 * x" not in {v.expression for v in run.values if v.phase == "cotangent"}
    (gradient,) = run.gradient
    wanted = finished(columns(jax.grad(loss)(WS[0, 0], X)), WS[0, 0].size)
    np.testing.assert_allclose(gradient.summaries[SKETCH], wanted[SKETCH], rtol=1e-4, atol=1e-7)


def decides(ws, x):
    """Rounding may decide a comparison, and which is the largest."""
    h = jnp.tanh(x @ ws[0, 0])
    mask = h > jnp.mean(h)
    best = jnp.argmax(h, -1)
    picked = jnp.take_along_axis(h, best[:, None], -1)
    return jnp.mean(jnp.where(mask, h, 0.5 * h)) + jnp.sum(picked)


@pytest.mark.slow
@pytest.mark.parametrize("against", short(["op-by-op", "float64", "bfloat16", "perturbed"], ["bfloat16"]))
def test_what_rounding_decides_raises_no_alarm(against):
    assert jaxviz.divergence(decides, WS, X, against=against).parting is None


def test_parameters_of_weak_type_can_be_recorded():
    """As `jnp.asarray(0.1)` has: what is computed from these is of other types than what is computed from arrays."""
    params = {"scale": jnp.asarray(0.1), "shift": jnp.asarray(0.3), "rate": 0.7}
    assert params["scale"].weak_type
    assert moved([params["scale"]], 1)[0].weak_type  # otherwise the record is compiled again for the noise

    def loss(params, x):
        scale, shift = 2 * params["scale"], jnp.exp(params["shift"])
        total, mean = jnp.sum(x) * params["rate"], jnp.mean(x)
        return scale * total + shift * mean

    found = jaxviz.divergence(loss, params, X, against="op-by-op")
    assert found.parting is None, str(found)
    assert {p.result for p in found.partings if p.phase == "gradient"} == {
        f"the gradient in `params['{name}']`" for name in params
    }


def _with_choice(wrong):
    def outcome(ws, x):
        h = jnp.tanh(x @ ws[0, 0])
        return jnp.mean(h), (jnp.argmin if wrong else jnp.argmax)(h, -1), jnp.sum(h > 0)

    return outcome


def test_a_choice_that_is_returned_counts_only_if_rounding_did_not_make_it():
    x = X.at[:, 1:].set(X[:, :-1])
    x = jnp.concatenate([x, x + 1e-7], 0)
    bfloat = jaxviz.divergence(_with_choice(False), 100 * WS, x, against="bfloat16")
    assert {p.result[:8] for p in bfloat.partings if p.is_choice} == {"result 2", "result 3"}
    assert bfloat.parting is None, str(bfloat)
    found = jaxviz.divergence(_with_choice(False), _with_choice(True), WS, x)
    assert found.parting.what.startswith("result 2 of 3"), str(found)


def test_a_decision_is_named_where_it_makes_the_difference():
    def other(ws, x):
        h = jnp.tanh(x @ ws[0, 0])
        mask = h > jnp.mean(h) + 0.2
        best = jnp.argmax(h, -1)
        picked = jnp.take_along_axis(h, best[:, None], -1)
        return jnp.mean(jnp.where(mask, h, 0.5 * h)) + jnp.sum(picked)

    found = jaxviz.divergence(decides, other, WS, X).parting
    assert found.expression in ("h > jnp.mean(h)", "jnp.where(mask, h, 0.5 * h)")


@pytest.mark.slow(sweep=True)
def test_the_same_program_under_flags():
    assert jaxviz.divergence(model, WS, X, flags={"jax_default_matmul_precision": "highest"}).parting is None
    with pytest.raises(ValueError, match="no flag"):
        jaxviz.divergence(model, WS, X, flags={"jax_no_such_flag": True})


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(FAULTS), ["a rule off in iteration 2"]))
def test_a_planted_fault_is_found(name):
    faulty, phase, expression, iteration = FAULTS[name]
    found = jaxviz.divergence(faulty, model, WS, X).parting
    assert (found.phase, found.iterations) == (phase, () if iteration is None else (iteration,))
    assert found.expression == expression


@pytest.mark.slow(sweep=True)
@pytest.mark.parametrize("wrong", ON_DEVICES)
def test_a_fault_over_devices_is_found(wrong):
    assert jaxviz.divergence(on_devices(), on_devices(wrong), WS, X).parting.expression == ON_DEVICES[wrong]


def test_a_record_is_the_same_after_it_was_written(tmp_path):
    record = jaxviz.record(model, WS, X)
    again = jaxviz.RunRecord.load(record.save(tmp_path / "a.jaxviz"))
    assert str(again) == str(record)
    assert jaxviz.divergence(record, tmp_path / "a.jaxviz").worst == 0
    assert jaxviz.divergence(str(tmp_path / "a.jaxviz"), again).parting is None
    (tmp_path / "b").write_text("no record")
    with pytest.raises(ValueError, match="not a record"):
        jaxviz.divergence(tmp_path / "b", again)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "int32", "bool"])
def test_summaries(dtype):
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(np.maximum(2 * rng.normal(size=(37, 21)), 0)).astype(dtype) for _ in range(2))
    one, other = (finished(columns(v), v.size * (1 + jnp.iscomplexobj(v))) for v in (x, y))
    wide = lambda v: np.asarray(v).astype(np.complex64 if jnp.iscomplexobj(v) else np.float32)
    np.testing.assert_allclose(one[NORM], np.linalg.norm(wide(x)), rtol=1e-5)
    apart = np.linalg.norm((one - other)[SKETCH])
    assert 0.5 < apart / np.linalg.norm(wide(x) - wide(y)) < 1.6
    for otherwise in (-x, 2 * x) if dtype not in ("bool", "int32") else ():
        assert not np.array_equal(finished(columns(otherwise), x.size)[BITS], one[BITS])
    shuffled = finished(jax.jit(columns)(jax.random.permutation(jax.random.key(0), x)), x.size)
    assert not np.array_equal(shuffled[SKETCH], one[SKETCH])


def deep(ws, x, change=lambda g, i: g):
    def layer(carry, w):
        h, i = carry
        q = h @ w
        g = jnp.tanh(q)
        h = h + change(g, i)
        return (h, i + 1), None

    (h, _), _ = lax.scan(layer, (x, 0), ws)
    return jnp.mean(h * h)


@jax.custom_vjp
def turned(g, i):
    return g


turned.defvjp(lambda g, i: (g, i), lambda i, ct: (jnp.where(i == 17, 1.1, 1.0) * ct, None))
DEEP = 0.3 * jax.random.normal(jax.random.key(0), (32, 4, 4))


def rounded(ws, x):
    return deep(ws, x, lambda g, i: jnp.where(i >= 17, g.astype(jnp.bfloat16).astype(jnp.float32), g))


def wrong_backward(ws, x):
    return deep(ws, x, turned)


@pytest.mark.parametrize("other", short([rounded, wrong_backward], [wrong_backward]))
def test_the_chart_and_the_stepper_are_where_runs_part(other):
    found = jaxviz.divergence(deep, other, DEEP, X[:, :4])
    p = found.parting
    assert p.iterations == (17,)
    chart = found._chart()
    ((at, said),) = chart.marks
    assert said == f"part at {p.what.replace('`', '')}, iteration 17"
    assert found.partings[at] is p
    assert found.noise[at] == dict(point for c in chart.curves for point in c.points)[at] > MOST_NOISE
    assert max(found.noise[:at]) < MOST_NOISE
    assert (at >= found.turn) == (p.phase == "cotangent") == (other is wrong_backward)
    assert [c.kind for c in chart.curves] == ["forward", "backward"]
    assert chart.text() in str(found)
    assert chart.text() not in found._repr_html_()
    is_sound(drawn(found._repr_html_()))
    assert found.plot().axes[0].get_ylabel() == chart.y

    stepper = found.step()
    assert stepper.stage == ("backward" if p.phase == "cotangent" else "forward")
    assert [level.iteration for level in stepper.position.path] == [17]
    _, captured = jaxviz.capture(deep, p.address, cotangents=True)(DEEP, X[:, :4])
    there = captured.cotangents if p.phase == "cotangent" else captured
    shown = stepper.values[stepper.shown[0].name]
    np.testing.assert_allclose(shown, there[p.address][17], rtol=1e-5, atol=1e-7)


def test_the_stepper_is_in_the_layer_that_differs_and_says_what_it_cannot_do(tmp_path):
    layer = jax.jit(lambda h, w, scale: jnp.tanh(scale * (h @ w)))

    def plain(ws, x, third=1.0):
        for i in range(4):
            x = layer(x, ws[i], third if i == 2 else 1.0)
        return jnp.sum(x), {"aux": x}

    def other(ws, x):
        return plain(ws, x, 1.1)

    found = jaxviz.divergence(plain, other, DEEP[:4], X[:, :4], has_aux=True)
    stepper = found.step()
    assert stepper.stage == "forward"
    assert len(stepper.position.path) == 1
    x = X[:, :4]
    for i in range(2):
        x = layer(x, DEEP[i], 1.0)
    np.testing.assert_allclose(stepper.values[stepper.shown[0].name], x @ DEEP[2], rtol=1e-5)
    agree = jaxviz.divergence(plain, plain, DEEP[:4], X[:, :4], has_aux=True)
    assert agree.parting is None
    assert agree.step().position.index == 0
    record = jaxviz.record(plain, DEEP[:4], X[:, :4], has_aux=True)
    file = record.save(tmp_path / "a.jaxviz")
    with pytest.raises(jaxviz.SteppingError, match="not kept"):
        jaxviz.divergence(file, record).step()


def rounded_before(w, x):
    h = (x @ w).astype(jnp.bfloat16)
    return jnp.sum(jnp.tanh(h.astype(jnp.float32)))


def rounded_after(w, x):
    h = x @ w
    return jnp.sum(jnp.tanh(h).astype(jnp.bfloat16).astype(jnp.float32))


def never_rounded(w, x):
    h = x @ w
    return jnp.sum(jnp.tanh(h))


def test_where_both_round_to_bfloat16_and_where_one_does():
    """XLA leaves out some roundings of a type, and which differs between versions, machines and equal functions."""
    w, x = jax.random.normal(jax.random.key(0), (4, 4)), jax.random.normal(jax.random.key(1), (8, 4))
    assert jaxviz.divergence(rounded_before, rounded_after, w, x).parting is None
    assert jaxviz.divergence(rounded_before, never_rounded, w, x).parting is not None


def test_what_a_function_closes_over_is_moved_like_its_arguments():
    """With whole numbers as its only argument it had no noise."""
    w, x = jax.random.normal(jax.random.key(0), (4, 4)), jax.random.normal(jax.random.key(1), (8, 4))
    of_rows = lambda f: lambda rows: f(w, x[rows])
    rows = jnp.arange(8)
    assert jaxviz.divergence(of_rows(rounded_before), of_rows(rounded_after), rows).parting is None
    assert jaxviz.divergence(of_rows(rounded_before), of_rows(never_rounded), rows).parting is not None
    record = jaxviz.record(of_rows(never_rounded), rows)
    assert [a.name for a in record.arguments] == ["rows"]
    assert all(np.all(v.noise > 0) for v in record.values if v.phase == "forward")


def far(x):
    """Amplifies the last digit of a literal more than ten thousand times."""
    return 1.0 - 0.9999**x


def turns(x):
    return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * far(x)), (0, x))[1]


def in_shards(x):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(far, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"))(x)


INSIDE = {
    "alone": far,
    "jit": jax.jit(far),
    "checkpoint": jax.checkpoint(far),
    "vmap": jax.vmap(far),
    "scan": lambda x: lax.scan(lambda c, v: (c, far(v)), 0, x)[1],
    "cond": lambda x: lax.cond(x[0] > 0, far, lambda x: x, x),
    "while": turns,
    "shard_map": in_shards,
}


@pytest.mark.parametrize("inside", short(list(INSIDE), ["vmap", "scan", "cond"]))
def test_a_number_that_is_written_has_a_last_digit(inside):
    """Which float32 rounds, and float64 does not."""

    def loss(x):
        return jnp.mean(INSIDE[inside](jnp.tanh(x)))

    found = jaxviz.divergence(loss, jnp.linspace(0.1, 1.0, 128), against="float64", cotangents=inside != "while")
    assert found.parting is None, str(found)
    assert found.worst > 0


def test_a_number_that_is_written_has_a_last_digit_in_a_training_step():
    def step(w, count, x):
        gradient = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) * (1.0 - 0.9999 ** (x @ w) ** 2)))(w)
        return w - 1e-3 * gradient / (1.0 - 0.999**count)

    w, x = jax.random.normal(jax.random.key(0), (8, 8)), jax.random.normal(jax.random.key(1), (32, 8))
    found = jaxviz.divergence(step, w, 1, x, against="float64")
    assert found.parting is None, str(found)
    assert {p.phase for p in found.partings} >= {"forward", "cotangent", "step"}
    other = lambda w, count, x: step(w, count + 1, x)
    assert jaxviz.divergence(step, other, w, 1, x).parting is not None


def test_a_change_is_not_lost_where_few_numbers_are_rounded():
    """Of four scales that are one as rounded, a change by one last place may leave all of them one."""

    def loss(raw, x):
        scale = jax.nn.softplus(raw)
        return jnp.mean(x / scale) - jnp.sum(jnp.log(jnp.abs(scale)))

    raw, x = jnp.full(4, np.log(np.expm1(1.0)), jnp.float32), jax.random.normal(jax.random.key(0), (64, 4))
    found = jaxviz.divergence(loss, raw, x, against="float64")
    assert found.parting is None, str(found)


def losses(w, x):
    def layer(h, _):
        h = jnp.tanh(h @ w)
        return h, jnp.sum(h).astype(jnp.float32)

    return jnp.sum(lax.scan(layer, x, length=4)[1])


@pytest.mark.parametrize(
    "loss",
    [lambda w, x: 0.5 * jnp.mean(jnp.tanh(x @ w)).astype(jnp.float32), losses],
    ids=["converted", "converted in a loop"],
)
def test_a_change_is_not_lost_where_a_coarse_type_is_converted_to_a_finer_one(loss):
    """Of a sum in bfloat16 the last digit may stay as it is when those of all arguments change."""
    w = jnp.linspace(0.1, 1, 16, dtype=jnp.bfloat16).reshape(4, 4)
    found = jaxviz.divergence(loss, w, w, against="float64")
    assert found.parting is None, str(found)
    other = lambda w, x: 1.5 * loss(w, x)
    assert jaxviz.divergence(loss, other, w, w).parting is not None


WS_SMALL = jnp.abs(jax.random.normal(jax.random.key(1), (64,)))
X_SMALL = jax.random.uniform(jax.random.key(2), (16, 64))
CANCELLING = {
    "a flat tanh": lambda w, x: jnp.mean(jnp.tanh(5 + 1e-3 * x * w) ** 2),
    "a flat sigmoid": lambda w, x: -jnp.mean(jnp.log1p(-jax.nn.sigmoid(8 + x * w))),
    "one less a probability": lambda w, x: -jnp.mean(jnp.log(1 - jax.nn.softmax(4 * x * w)[:, 0] + 1e-6)),
    "an exponential less one": lambda w, x: jnp.mean(jnp.exp(1e-4 * x * w) - 1),
    "one less a cosine": lambda w, x: jnp.mean(1 - jnp.cos(1e-2 * x * w)),
    "a root": lambda w, x: jnp.mean(jnp.sqrt(1 + (1e-2 * x * w) ** 2) - 1),
    "an offset": lambda w, x: jnp.mean((h := x * w + 100) * h) - jnp.mean(h) ** 2,
    "in a loop": lambda w, x: lax.fori_loop(0, 3, lambda _, h: jnp.exp(1e-4 * h) - 1, x * w).sum(),
    "in a branch": lambda w, x: lax.cond(x[0, 0] > 2, jnp.sum, lambda h: jnp.mean(jnp.exp(1e-4 * h) - 1), x * w),
    "in a function with a rule": lambda w, x: jnp.sum(_scaled_exp(x * w) - 1),
}


@jax.custom_vjp
def _scaled_exp(x):
    return jnp.exp(1e-4 * x)


_scaled_exp.defvjp(lambda x: (y := _scaled_exp(x), y), lambda y, ct: (1e-4 * ct * y,))


OF_EACH_KIND = ["a flat tanh", "one less a cosine", "an offset", "in a loop", "in a function with a rule"]


@pytest.mark.parametrize("name", short(list(CANCELLING), OF_EACH_KIND))
def test_what_an_operation_rounds_counts_where_the_rest_cancels(name):
    """The last digits of arguments change little of a number close to one, of which only the last digits are left."""
    loss = CANCELLING[name]
    found = jaxviz.divergence(loss, WS_SMALL, X_SMALL, against="float64")
    assert found.parting is None, str(found)
    other = lambda w, x: 1.1 * loss(w, x)
    assert jaxviz.divergence(loss, other, WS_SMALL, X_SMALL).parting is not None


def test_where_changes_cancel_in_one_iteration_it_has_the_noise_of_those_around():
    """Of a number that is two changes away from what it was they may add up to none."""
    change = np.ones((2, 9, WIDTH), np.float32)
    own = 1e4 * np.cumsum(change, 1)
    change[:, 4] = 0
    noise = noise_of(own, [own + change, own - change], moves(1e-7, []))
    assert noise[:, 4] / noise[:, 3] == pytest.approx(own[:, 4, [NORM]] / own[:, 3, [NORM]], rel=0.5)
    alone = noise_of(own[:, 4], [own[:, 4]] * 2, moves(1e-7, []))
    assert not alone.any()


def test_a_number_that_a_library_writes_has_a_last_digit():
    """A root of two, in a function in which nothing has an address."""
    record = jaxviz.record(lambda key: jnp.tanh(jax.random.normal(key, (64,))), jax.random.key(0))
    assert record.values
    assert all(np.all(v.noise > 0) for v in record.values), record.values


def test_a_number_has_a_last_digit_where_nothing_else_is_rounded_or_recorded():
    tenth = jax.jit(lambda n: n * 0.1)
    loss = lambda n: -tenth(n.astype(jnp.float32))
    (value,) = jaxviz.record(loss, jnp.arange(1, 5), at=("-tenth(n.astype(jnp.float32))",)).values
    assert np.all(value.noise > 0)


@pytest.mark.parametrize("dtype", short(["bfloat16", "float32"], ["bfloat16"]))
@pytest.mark.parametrize(
    ("number", "is_one"),
    [(0.1, True), (-0.7, True), (1 / 3, True), (1.0, False), (0.75, False), (200.0, False), (-jnp.inf, False)],
)
def test_which_literals_are_rounded(number, is_one, dtype):
    traced = jaxviz.trace(lambda x: x * jnp.asarray(number, dtype))(jnp.ones(3, dtype))
    own = _literals(traced)
    assert len(own) == is_one
    for seed in range(8):
        for x, y in zip(own, _literals(traced, seed), strict=True):
            assert 0 < abs(float(y) - float(x)) <= float(jnp.finfo(dtype).eps) * abs(number)


def _literals(program, *seed):
    """The values of the literals that are rounded, with `seed` others."""
    _, *literals, _ = OtherDigits(program).inputs(*seed, *[1 for _ in seed])
    return literals


def test_a_mask_has_no_last_digit():
    largest = float(jnp.finfo(jnp.float32).min)
    assert not _literals(jaxviz.trace(lambda x: jnp.where(x > 0, x, largest))(jnp.ones(3)))


# --- what they return -------------------------------------------------------------------------------------------------


def product(w, x):
    return x @ w


def both(w, x):
    return {"a": x, "b": [x @ w, w > 0]}


def trained(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w), x


OTHERWISE = {
    "a factor": (product, lambda w, x: (x @ w) * 1.01, "the result, `x @ w`"),
    "inside of jit": (jax.jit(product), jax.jit(lambda w, x: (x @ w) * 1.01), "the result, `x @ w`"),
    "another loss": (lambda w, x: jnp.mean(x @ w), lambda w, x: jnp.sum(w), "the result, `jnp.mean(x @ w)`"),
    "an argument": (both, lambda w, x: {**both(w, x), "a": 1.01 * x}, "result 1 of 3, `x`"),
    "a choice": (both, lambda w, x: {"a": x, "b": [x @ w, w > 0.1]}, "result 3 of 3, `w > 0`"),
    "a literal": (lambda w, x: (x, 1.0), lambda w, x: (x, 1.5), "result 2 of 2"),
    "a random key": (lambda *_: jax.random.key(0), lambda *_: jax.random.key(1), "the result"),
    "a step": (trained, lambda w, x: (1.001 * trained(w, x)[0], x), "result 1 of 2, `w - 0.1 * jax.grad("),
}


@pytest.mark.parametrize("name", short(list(OTHERWISE), 2))
def test_results_are_compared_whatever_computes_them(name, tmp_path):
    one, other, what = OTHERWISE[name]
    w, x = WS[0, 0], X
    found = jaxviz.divergence(one, other, w, x)
    assert found.parting.phase == "result"
    assert found.parting.what.startswith(what)
    assert f"part in what they return: {what}" in found.summary
    again = jaxviz.RunRecord.load(jaxviz.record(one, w, x).save(tmp_path / "a.jaxviz"))
    assert jaxviz.divergence(again, jaxviz.record(other, w, x)).parting == found.parting
    for of in (one, other):
        assert jaxviz.divergence(of, of, w, x).summary.endswith("all are equal bit by bit")


def test_what_a_result_is_computed_from_is_said_and_stepped_to():
    found = jaxviz.divergence(product, OTHERWISE["a factor"][1], WS[0, 0], X)
    assert "computed from `(x @ w) * 1.01` (" in found.summary
    assert found.step().stage == "primal"
    with pytest.raises(jaxviz.SteppingError, match="No equation computes result 1 of 3, `x`"):
        jaxviz.divergence(both, OTHERWISE["an argument"][1], WS[0, 0], X).step()


@pytest.mark.parametrize(("other", "why"), [
    (lambda w, x: (x @ w, x), "`product` returns 1 array, and `the other` 2"),
    (lambda w, x: (x @ w)[:2], "the result is f32[8,16] in `product`, and f32[2,16] in `the other`"),
])  # fmt: skip
def test_results_that_cannot_be_compared_do_not_agree(other, why):
    other.__name__ = "the other"
    found = jaxviz.divergence(product, other, WS[0, 0], X)
    assert found.parting is None
    assert f"cannot be said to agree, since {why}: of 3 arrays" in found.summary


def test_what_does_not_count_is_said_where_runs_agree():
    """Of small arguments only is known that they are others."""
    found = jaxviz.divergence(lambda b, w: jnp.tanh(b) @ w, jnp.arange(16.0), WS[0, 0], against="perturbed")
    assert 0 < found.worst < MOST_NOISE
    assert found.summary.endswith("times what rounding may change, not counting arguments that differ (1)")


@pytest.mark.parametrize(("differences", "says"), [
    ([1e-7, 1e-3, 2e-3, 4e-3, 8e-3], "grows, ×2 an iteration"),
    ([1e-3, 1e-3, 1e-3], "stays as it is"),
    ([1.4, 0.0061, 0.0076, 0.5], None),
])  # fmt: skip
def test_how_a_difference_grows_is_said_where_one_factor_explains_it(differences, says):
    n = len(differences)
    of = lambda i, d: Parting("h", "forward", "h", "", "f32[4]", (i,), (("", n),), d, 1e7 * d if d > 1e-6 else 1.0)
    found = Divergence("one", "other", tuple(of(i, d) for i, d in enumerate(differences)), ())
    assert found._growth() == (says and f"From there it {says}.")


@pytest.mark.parametrize("size", [4, 2**16])
@pytest.mark.parametrize("magnitude", [0.0, 1e-36, 1e-16, 1.0, 9e16, 1e38])
def test_a_norm_is_exact_at_any_magnitude(magnitude, size):
    x = magnitude * np.cos(np.arange(size, dtype=np.float32))
    summary = finished(np.asarray(columns(jnp.asarray(x, jnp.float32))), size)
    with np.errstate(over="ignore"):
        expected = np.float32(np.linalg.norm(np.asarray(x, np.float32).astype(np.float64)))
    np.testing.assert_allclose(summary[NORM], expected, rtol=1e-5)


def test_the_last_digit_of_a_type_without_infinity():
    program = jaxviz.trace(lambda x: x * jnp.asarray(0.7, "float8_e4m3fn"))(jnp.ones(3, "float8_e4m3fn"))
    for seed in range(8):
        (literal,) = _literals(program, seed)
        assert np.isfinite(float(literal))
        assert literal != 0


def test_a_reference_is_no_value_and_what_is_read_from_it_is():
    def loss(ws):
        total = jax.new_ref(jnp.zeros_like(ws))
        total[...] += jnp.sin(ws)
        return jnp.sum(total[...])

    record = jaxviz.record(loss, jnp.ones(3))
    assert {v.expression for v in record.values} >= {"jnp.sin(ws)", "total[...]"}
    assert not any("new_ref" in v.expression for v in record.values)


def test_a_loop_that_does_not_run_and_arrays_without_elements():
    def loss(x, xs):
        h, ys = jax.lax.scan(lambda h, x: (jnp.sin(h) * x, h.sum()), x, xs)
        return jnp.sum(h**2) + jnp.sum(jnp.sin(ys) * ys)

    record = jaxviz.record(loss, jnp.ones(3), jnp.ones((0, 3)))
    norms = {v.expression: v.summaries[..., NORM] for v in record.values if v.phase == "forward"}
    assert norms["jnp.sin(h)"].shape == (0,)
    assert norms["jnp.sum(jnp.sin(ys) * ys)"] == 0
    assert "jnp.sin(h) * x" in str(record)
    assert jaxviz.divergence(record, record).worst == 0


def test_an_operation_that_refuses_a_tangent_does_not_get_one():
    """What it reads depends on the arguments, by a rounding, and has no tangent."""

    @jax.custom_jvp
    def not_differentiated(x):
        return x * 2.0

    @not_differentiated.defjvp
    def rule(primals, tangents):
        raise RuntimeError("this cannot be differentiated")

    def loss(x):
        h = jnp.tanh(x)
        size = jax.lax.stop_gradient(h)
        return jnp.sum(not_differentiated(size) * h)

    def step(x):
        return x - 0.1 * jax.grad(loss)(x)

    x = jnp.linspace(0.1, 1.0, 3)
    for record in (jaxviz.record(loss, x), jaxviz.record(step, x)):
        norms = {v.expression: v.summaries[NORM] for v in record.values if v.phase == "cotangent"}
        np.testing.assert_allclose(norms["jnp.tanh(x)"], np.linalg.norm(2.0 * jnp.tanh(x)), rtol=1e-6)
        assert norms["jnp.sum(not_differentiated(size) * h)"] == 1
    assert jaxviz.record(loss, x, at=["h"], cotangents=True).values[-1].summaries[NORM] > 0


def test_complex_arguments_are_converted_and_moved():
    def intensity(z):
        return jnp.sum(jnp.abs(jnp.fft.fft(z * jnp.conj(z[::-1]))) ** 2)

    z = jnp.asarray(np.exp(1j * np.arange(32)), jnp.complex64)
    for against in ("float64", "perturbed"):
        found = jaxviz.divergence(intensity, z, against=against)
        assert found.parting is None, str(found)
        assert found.worst > 0, "they are equal bit by bit, so nothing was changed"
    with pytest.raises(ValueError, match="no complex type is as coarse as bfloat16"):
        jaxviz.divergence(intensity, z, against="bfloat16")


def test_of_several_results_of_an_expression_the_one_that_differs_is_named():
    def loss(w, x, passed=lambda r: r):
        z, r = jnp.split(jnp.tanh(x @ w), 2, -1)
        r = passed(r)
        return jnp.sum(jnp.sin(z * r))

    w, x = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(((4, 8), (3, 4))))
    found = jaxviz.divergence(loss, lambda w, x: loss(w, x, jax.lax.stop_gradient), w, x)
    assert "the cotangent of `r`, a result of `jnp.split(jnp.tanh(x @ w), 2, -1)` (" in found.summary
    assert "the cotangent of z, a result of jnp.split(jnp.tanh(x @ w), 2, -1)" in str(found)
    assert "result of jnp.tanh" not in str(found)
