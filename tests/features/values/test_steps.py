"""Records of training steps: of the gradient that a step takes, on what it is given, and of what else it computes."""

import gc
import itertools
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from short_runs import short

import jaxviz
from jaxviz.features.values.recording import prepared
from jaxviz.features.values.records import load_records
from jaxviz.features.values.summaries import BITS, MAX, MEAN, NORM, SKETCH

WS = jax.random.normal(jax.random.key(0), (4, 3, 3))
X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)


def loss(ws, x):
    y, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)
    return jnp.sum(y**2)


def train_step(ws, x):
    x = x * 2.0 + 1.0
    gradient = jax.grad(loss)(ws, x)
    return ws - 0.1 * gradient


def summaries(record, *phases):
    """Without their bits, as two compiled programs may round differently."""
    return {(v.address, v.phase): np.delete(v.summaries, BITS, -1) for v in record.values if v.phase in phases}


def phases(record):
    return [phase for phase, _ in itertools.groupby(record.events, lambda o: o.value.phase)]


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["as it is", "jit"])
def test_the_gradient_of_a_step_is_recorded_as_that_of_its_loss(jit):
    of_step, alone = jaxviz.record(jit(train_step), WS, X), jaxviz.record(loss, WS, X * 2.0 + 1.0)
    got, want = (summaries(r, "forward", "cotangent") for r in (of_step, alone))
    assert got.keys() == want.keys()
    for name, of in want.items():
        np.testing.assert_allclose(got[name], of, rtol=1e-5, atol=1e-6, err_msg=str(name))
    assert phases(of_step) == ["step", "forward", "cotangent", "step"]
    assert {v.expression for v in of_step.values if v.phase == "step"} >= {"x * 2.0 + 1.0", "ws - 0.1 * gradient"}
    assert not of_step.note
    assert jaxviz.divergence(of_step, alone).parting is None


def test_a_step_without_cotangents():
    assert phases(jaxviz.record(train_step, WS, X, cotangents=False)) == ["step", "forward", "step"]


def test_cotangents_are_those_that_the_step_gives():
    def scaled(ws, x):
        value, pull = jax.vjp(lambda ws: loss(ws, x), ws)
        return ws - pull(8.0 * value)[0]

    of_step, alone = (summaries(jaxviz.record(f, WS, X), "cotangent") for f in (scaled, loss))
    scale = 8.0 * float(loss(WS, X))
    norm = lambda of: of[..., 0]
    assert of_step.keys() == alone.keys()
    for name, of in alone.items():
        np.testing.assert_allclose(norm(of_step[name]), scale * norm(of), rtol=1e-4)


def test_two_gradients_of_a_step_are_recorded_in_the_order_of_the_run():
    def adversary(w, ws):
        return jnp.sum(jnp.sin(w @ ws[0]))

    def step(ws, w, x):
        ws = ws - 0.1 * jax.grad(loss)(ws, x)
        return ws, w + jax.grad(adversary)(w, ws)

    record = jaxviz.record(step, WS, X, X)
    assert phases(record) == ["forward", "cotangent", "step"] * 2
    expressions = [o.value.expression for o in record.events if o.value.phase == "forward"]
    assert expressions[-1] == "jnp.sum(jnp.sin(w @ ws[0]))"
    where = [o.value.expression for o in record.events].index
    assert where("ws - 0.1 * jax.grad(loss)(ws, x)") < where("w @ ws[0]")


def with_another_update(ws, x):
    x = x * 2.0 + 1.0
    gradient = jax.grad(loss)(ws, x) * 2.0
    return ws - 0.1 * gradient


def with_another_gradient(ws, x):
    x = x * 2.0 + 1.0
    gradient = jax.grad(lambda ws, x: loss(2.0 * ws, x))(ws, x)
    return ws - 0.1 * gradient


@pytest.mark.parametrize(("changed", "where"), [
    (with_another_update, "the step, outside of its gradient"), (with_another_gradient, "the forward pass"),
])  # fmt: skip
def test_two_steps_part_where_they_differ(changed, where):
    found = jaxviz.divergence(train_step, changed, WS, X)
    assert found.parting.where.startswith(where)
    if found.parting.phase == "step":
        assert found.step().position.path == ()
    else:
        with pytest.raises(jaxviz.SteppingError, match="in a gradient that the function takes itself"):
            found.step()


@pytest.mark.parametrize("against", short(["op-by-op", "perturbed", "no-remat"], ["perturbed", "no-remat"]))
def test_a_step_agrees_with_itself(against):
    checkpointed = lambda ws, x: ws - 0.1 * jax.grad(jax.checkpoint(loss))(ws, x)
    found = jaxviz.divergence(checkpointed, WS, X, against=against)
    assert found.parting is None
    assert found.n_compared > 10


def test_operation_by_operation_the_gradient_of_a_step_is_run_so_too():
    step = lambda ws: ws - jax.grad(lambda ws: jnp.sum(jnp.sin(ws) ** 2))(ws)
    for compiled in (True, False):
        found = prepared(step, (WS,), {}, None, False, compiled=compiled)
        run = jax.make_jaxpr(found.run)([WS]).eqns
        assert ("sin" in [e.primitive.name for e in run]) != compiled


def test_addresses_mean_what_is_in_the_gradient_or_around_it():
    record = jaxviz.record(train_step, WS, X, at=("h @ w", "ws - 0.1 * gradient"))
    assert {(v.expression, v.phase) for v in record.values} == {
        ("h @ w", "forward"), ("h @ w", "cotangent"), ("ws - 0.1 * gradient", "step"),
    }  # fmt: skip
    with pytest.raises(jaxviz.AddressError, match="nothing"):
        jaxviz.record(train_step, WS, X, at=("nothing",))


def accumulating(ws, xs):
    gradient, _ = lax.scan(lambda g, x: (g + jax.grad(loss)(ws, x), None), jnp.zeros_like(ws), xs)
    return ws - 0.1 * gradient


@pytest.mark.slow(sweep=True)
def test_a_gradient_in_a_loop_has_an_axis_for_it():
    xs = jnp.stack([X, X + 1.0])
    record = jaxviz.record(accumulating, WS, xs)
    of_step = summaries(record, "forward", "cotangent")
    for i, x in enumerate(xs):
        alone = summaries(jaxviz.record(loss, WS, x), "forward", "cotangent")
        assert of_step.keys() == alone.keys()
        for name, of in alone.items():
            np.testing.assert_allclose(of_step[name][i], of, rtol=1e-5, atol=1e-6, err_msg=str(name))
    assert phases(record) == ["step", *["forward", "cotangent", "step"] * 2]
    assert not record.note
    series = jaxviz.growth(accumulating, WS, xs).series
    assert [len(s.norms) for s in series] == [len(WS)] * len(series)


def test_a_gradient_in_a_loop_is_paired_with_one_in_python():
    def unrolled(ws, xs):
        gradient = jnp.zeros_like(ws)
        for i in range(3):
            gradient = gradient + jax.grad(loss)(ws, xs[i])
        return ws - 0.1 * gradient

    xs = jnp.stack([X, X + 1.0, X - 1.0])
    found = jaxviz.divergence(accumulating, unrolled, WS, xs)
    n = jaxviz.record(loss, WS, X).n_arrays
    assert found.parting is None
    assert sum(p.phase in ("forward", "cotangent") for p in found.partings) == 3 * n


def trained(rate_of):
    """Steps in a scan; in one of them the rate is another."""

    def steps(ws, xs):
        def step(ws, pair):
            i, x = pair
            gradient = jax.grad(loss)(ws, x)
            return ws - rate_of(i) * gradient, None

        return lax.scan(step, ws, (jnp.arange(len(xs)), xs))[0]

    return steps


def test_steps_in_a_scan_part_where_the_first_of_them_does():
    xs = jnp.stack([X + 0.1 * i for i in range(5)])
    a, b = trained(lambda i: jnp.where(i == 9, 0.2, 0.1)), trained(lambda i: jnp.where(i == 3, 0.2, 0.1))
    found = jaxviz.divergence(a, b, WS, xs)
    # All of the fourth step's gradient agrees.
    assert found.parting.phase == "step"
    assert found.parting.iterations == (3,)
    n_cotangents = sum(v.n for v in jaxviz.record(loss, WS, X).values if v.phase == "cotangent")
    before = found.partings[: found.partings.index(found.parting)]
    assert sum(p.phase == "cotangent" and p.iterations[0] == 3 for p in before) == n_cotangents
    assert not any(p.differs for p in before)


@pytest.mark.slow(sweep=True)
def test_a_gradient_in_a_branch_and_of_devices():
    branch = lambda ws, x: lax.cond(x[0, 0] < 0, lambda: ws - jax.grad(loss)(ws, x), lambda: ws)
    got, want = (summaries(jaxviz.record(f, WS, X), "forward", "cotangent") for f in (branch, loss))
    assert got.keys() == want.keys()
    for name, of in want.items():
        np.testing.assert_allclose(got[name], of, rtol=1e-5, atol=1e-6, err_msg=str(name))

    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    @jax.shard_map(mesh=mesh, in_specs=(P(), P("d")), out_specs=P())
    def parallel(ws, x):
        return ws - lax.psum(jax.grad(lambda ws: loss(ws, x))(lax.pcast(ws, "d", to="varying")), "d")

    xs = jnp.concatenate([X, X + 1.0])
    of_devices = summaries(jaxviz.record(parallel, WS, xs), "forward", "cotangent")
    for i, x in enumerate((X, X + 1.0)):
        for name, of in summaries(jaxviz.record(loss, WS, x), "forward", "cotangent").items():
            np.testing.assert_allclose(of_devices[name][i], of, rtol=1e-5, atol=1e-6, err_msg=str(name))


def of_a_pipeline(ws, xs):
    """Forward passes in one scan, backward passes in another."""

    def forward(carry, x):
        value, pull = jax.vjp(lambda ws: loss(ws, x), ws)
        return carry, (value, pull)

    _, (values, pulls) = lax.scan(forward, 0, xs)
    gradient, _ = lax.scan(lambda g, pull: (g + pull(1.0)[0], None), jnp.zeros_like(ws), pulls)
    return ws - 0.1 * gradient, values


def in_place(ws, x):
    total = jax.new_ref(jnp.zeros_like(ws))
    _, pull = jax.vjp(lambda ws: loss(ws, x), ws)
    pull.with_refs(total)(1.0)
    return ws - 0.1 * total[...]


def of_a_part(ws, x):
    """One of two cotangents is not wanted, and a value that no result depends on has one that is zero."""

    def of_two(ws, scale):
        scaled = ws * scale
        return loss(scaled, x), jnp.sin(scaled)

    _, pull, _ = jax.vjp(of_two, ws, jnp.ones_like(ws), has_aux=True)
    gradient, _ = pull.with_refs(jax.ad.GradValue(), jax.ad.DontWant())(1.0)
    return ws - 0.1 * gradient


def test_a_gradient_that_a_pipeline_takes_is_recorded_forward_and_backward():
    xs = jnp.stack([X, X + 1.0, X - 1.0])
    of_pipeline, of_loss = (jaxviz.record(f, WS, xs) for f in (of_a_pipeline, accumulating))
    got, want = (summaries(r, "forward", "cotangent") for r in (of_pipeline, of_loss))
    assert not of_pipeline.note
    assert got.keys() == want.keys()
    for name, of in want.items():
        np.testing.assert_allclose(got[name], of, rtol=1e-5, atol=1e-6, err_msg=str(name))


@pytest.mark.parametrize("step", [in_place, of_a_part])
def test_cotangents_are_recorded_whatever_becomes_of_the_gradient(step):
    got, want = jaxviz.record(jax.jit(step), WS, X), summaries(jaxviz.record(loss, WS, X), "forward", "cotangent")
    assert not got.note
    found = summaries(got, "forward", "cotangent")
    assert found.keys() >= want.keys()
    for name, of in want.items():
        np.testing.assert_allclose(found[name], of, rtol=1e-5, atol=1e-6, err_msg=str(name))
    if step is of_a_part:
        assert found["jnp.sin(scaled)", "cotangent"][NORM] == 0


def test_what_is_not_recorded_of_a_step_is_said():
    jacobian = lambda ws, x: ws - 0.1 * jax.vmap(jax.vjp(lambda ws: ws @ x.T, ws)[1])(jnp.ones((2, 4, 3, 2)))[0][0]
    assert "its backward pass does not run once" in jaxviz.record(jacobian, WS, X).note
    per_example = lambda ws, xs: jax.vmap(jax.grad(loss), (None, 0))(ws, xs)
    assert "under jax.vmap" in jaxviz.record(per_example, WS, jnp.stack([X, X])).note

    def twice(ws, x):
        _, pull = jax.vjp(lambda ws: loss(ws, x), ws)
        return pull(1.0)[0] + pull(2.0)[0]

    record = jaxviz.record(twice, WS, X)
    assert "its backward pass does not run once" in record.note
    assert "cotangent" not in phases(record)


def test_a_step_survives_its_file(tmp_path):
    record = jaxviz.record(train_step, WS, X)
    again = jaxviz.RunRecord.load(record.save(tmp_path / "step.jaxviz"))
    assert phases(again) == phases(record)
    assert jaxviz.divergence(record, again).worst == 0


def test_growth_of_a_step_is_that_of_its_gradient():
    of_step, alone = jaxviz.growth(train_step, WS, X), jaxviz.growth(loss, WS, X * 2.0 + 1.0)
    assert [(s.expression, s.phase) for s in of_step.series] == [(s.expression, s.phase) for s in alone.series]


def test_what_leaves_its_type_in_a_step_is_said_wherever_it_is():
    def overflowing(ws, xs):
        gradient, _ = lax.scan(lambda g, x: (g + jax.grad(loss)(ws, x), None), jnp.zeros_like(ws), xs)
        return ws - gradient * 3e38

    found = jaxviz.growth(overflowing, WS, jnp.stack([X, X]))
    assert [(e.expression, e.phase) for e in found.extremes if e.kind == "is not finite"] == [
        ("gradient * 3e38", "step")
    ]
    second = jnp.stack([X, X.at[0].set(jnp.nan)])
    extreme = next(e for e in jaxviz.growth(accumulating, WS, second).extremes if e.phase == "forward")
    assert (extreme.kind, extreme.number) == ("is not finite", 0)


def test_a_loss_with_a_gradient_in_it_is_a_loss():
    penalized = lambda ws, x: loss(ws, x) + jnp.sum(jax.grad(loss)(ws, x) ** 2)
    record = prepared(penalized, (WS, X), {}, None, False).record((WS, X), {})
    assert phases(record) == ["forward", "cotangent"]


@pytest.mark.slow(sweep=True)
def test_a_model_that_holds_functions(tmp_path):
    eqx = pytest.importorskip("equinox")  # the newest JAX is tested without libraries
    model = eqx.nn.MLP(3, 1, 4, 1, key=jax.random.key(0))
    of_model = lambda m, x: jnp.sum(jax.vmap(m)(x) ** 2)

    @eqx.filter_jit
    def step(m, x):
        gradient = eqx.filter_grad(of_model)(m, x)
        return eqx.apply_updates(m, jax.tree.map(lambda g: -0.1 * g, gradient))

    record = jaxviz.record(step, model, X)
    assert phases(record) == ["forward", "cotangent", "step"]
    got, want = (summaries(r, "forward", "cotangent") for r in (record, jaxviz.record(of_model, model, X)))
    assert got.keys() == want.keys()
    for name, of in want.items():
        np.testing.assert_allclose(got[name], of, rtol=1e-5, atol=1e-6, err_msg=str(name))
    for against in ("perturbed", "op-by-op"):
        assert jaxviz.divergence(step, model, X, against=against).parting is None
    recorder = jaxviz.Recorder(tmp_path / "a.jaxviz")
    assert isinstance(recorder(step, recorder(step, model, X), X), eqx.nn.MLP)
    assert len(load_records(recorder.path)) == 2


# --- files of calls ---------------------------------------------------------------------------------------------------


def train(path, third, steps=4, x=X, **how):
    """A few steps, of which the third does something else at its end."""
    recorder, ws = jaxviz.Recorder(path, **how), WS
    step = step_with(third)
    for i in range(steps):
        ws = recorder(step, ws, x, jnp.asarray(i))
    return ws


def step_with(third):
    @jax.jit
    def step(ws, x, i):
        gradient = jax.grad(loss)(ws, x)
        new = ws - 0.1 * gradient
        return new + jnp.where(i == 2, third(ws, x), 0.0)

    return step


def none(ws, x):
    return jnp.zeros_like(ws)


def some(ws, x):
    return 1e-4 * ws


def both(tmp_path, one, other, **how):
    """What `divergence` says of two files of calls, and the first of them."""
    a, b = tmp_path / "a.jaxviz", tmp_path / "b.jaxviz"
    one(a, **how)
    other(b, **how)
    return jaxviz.divergence(a, b), a


def test_two_files_of_calls_part_in_the_call_that_differs_first(tmp_path):
    found, a = both(tmp_path, lambda a: train(a, none), lambda b: train(b, some))
    assert (found.call, found.agreed) == ((2, 3), 1)
    assert "part in call 2, in the step, outside of its gradient: `" in found.summary
    assert jaxviz.divergence(a, a).summary.endswith(
        "agree in 4 calls: of 32 arrays of the last one all are equal bit by bit"
    )


def test_calls_that_were_not_recorded_are_named(tmp_path):
    found, _ = both(tmp_path, lambda a: train(a, none, every=2), lambda b: train(b, some, every=2))
    assert found.call == (2, 2)
    assert found.parting.phase == "step"
    found, _ = both(tmp_path, lambda a: train(a, none, every=3), lambda b: train(b, some, every=3))
    assert found.parting.phase == "carried"
    assert "part between call 0 and call 3: the argument `ws`, which an earlier call returned, differs by " in str(
        found.summary
    )


@pytest.mark.parametrize("small", short([False, True], [False]))
def test_other_arguments_are_named(small, tmp_path):
    other = jnp.stack([X[0], X[1] + 1e-3]) if small else jnp.tile(X, (8, 1)).at[3, 1].add(1e-3)
    same = X if small else jnp.tile(X, (8, 1))
    found, _ = both(tmp_path, lambda a: train(a, none, x=same), lambda b: train(b, none, x=other))
    how = "is another" if small else "differs by "
    assert f"part before call 0 runs: the argument `x` {how}" in found.summary
    (row,) = (line for line in str(found).splitlines() if line.startswith("→  the argument x"))
    assert ("another" in row) == small
    found = jaxviz.divergence(jaxviz.record(loss, WS, same), jaxviz.record(loss, WS, other))
    assert f"part before they run: the argument `x` {how}" in found.summary
    assert jaxviz.divergence(jaxviz.record(loss, WS, same), jaxviz.record(loss, WS, same)).worst == 0


def test_a_file_has_no_elements_of_small_arguments(tmp_path):
    train(tmp_path / "a.jaxviz", none, 1)
    (record,) = load_records(tmp_path / "a.jaxviz")
    ws, x, i = record.arguments
    assert [(a.name, a.is_carried, a.is_read) for a in (ws, x, i)] == [
        ("ws", False, True), ("x", False, False), ("i", False, False),
    ]  # fmt: skip
    assert not x.summary[[NORM, MAX, MEAN]].any()
    assert not x.summary[SKETCH].any()
    assert x.summary[BITS].any()


def training(order, factor=1.0, rate=0.1):
    """Steps of a model in one of two equal orders of its sums, whose differences training makes larger."""

    def run(path, steps, every):
        @jax.jit
        def step(ws, x, target):
            def loss(ws):
                h = x
                for w in ws:
                    h = jnp.tanh(h[:, ::-1] @ w[::-1] if order else h @ w)
                return jnp.mean((h - target) ** 2)

            gradient = jax.grad(loss)(ws)
            return [w - rate * factor * g for w, g in zip(ws, gradient, strict=True)]

        recorder = jaxviz.Recorder(path, every=every)
        ws = [jax.random.normal(jax.random.key(i), (8, 8)) for i in range(4)]
        for i in range(steps):
            x = jax.random.normal(jax.random.key(100 + i), (16, 8))
            ws = recorder(step, ws, x, jnp.sin(3 * x.sum(-1, keepdims=True)))

    return run


def test_rounding_that_calls_carry_on_raises_no_alarm(tmp_path):
    found, a = both(tmp_path, training(False), training(True), steps=61, every=10)
    assert found.parting is None, str(found)
    assert found.call == (60, 7)
    assert found.drift > 10
    assert "What earlier calls returned differs already" in str(found)
    # What differs by more than that does.
    training(True, 1.001)(tmp_path / "b.jaxviz", steps=61, every=10)
    assert jaxviz.divergence(a, tmp_path / "b.jaxviz").call == (0, 1)


@pytest.mark.slow
def test_calls_that_rounding_has_driven_apart_are_not_compared(tmp_path):
    found, _ = both(tmp_path, training(False, rate=1.5), training(True, rate=1.5), steps=31, every=1)
    assert found.parting is None, str(found)
    assert found.drifted is not None
    assert found.agreed == found.call[0] - 1 > 0
    assert f"agree up to call {found.agreed}, and have drifted apart before call {found.call[0]}: the argument" in (
        found.summary
    )


def test_what_rounding_may_change_is_measured_again_and_again(tmp_path):
    found = prepared(loss, (WS, X), {}, None, False)
    runs = []
    run_once = found.run_once
    found.run_once = lambda *given, **options: runs.append(1) or run_once(*given, **options)
    measured = []
    for i in range(9):
        before = len(runs)
        record, _ = found.recorded((WS, X), {}, i)
        measured.append(len(runs) - before == 3)
        assert all(np.all(v.noise > 0) for v in record.values if v.phase == "forward")
    assert [i for i, is_one in enumerate(measured) if is_one] == [0, 1, 2, 4, 8]


def test_noise_between_grows_with_a_value_and_never_shrinks():
    found = prepared(loss, (WS, X), {}, None, False)
    for _ in range(3):
        first = found.record((WS, X), {})
    for scale in (100.0, 0.01):
        other = found.record((WS, scale * X), {})
        for a, b in zip(first.values, other.values, strict=True):
            grown = np.maximum(b.summaries[..., NORM] / a.summaries[..., NORM], 1)
            np.testing.assert_allclose(b.noise, a.noise * grown[..., None], rtol=1e-4)
        found._n = 3


def test_a_recorded_call_returns_what_the_function_returns(tmp_path):
    plain, step = WS, step_with(none)
    for i in range(3):
        plain = step(plain, X, jnp.asarray(i))
    np.testing.assert_array_equal(train(tmp_path / "a.jaxviz", none, 3), plain)


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["as it is", "jit"])
def test_a_call_that_runs_once_returns_what_its_record_is_of(jit, tmp_path):
    calls = []

    def step(ws, x):
        calls.append(1)
        value, gradient = jax.value_and_grad(loss)(ws, x)
        return {"ws": ws - 0.1 * gradient}, value

    step, results = jit(step), []
    for name, once in (("a", False), ("b", True)):
        calls.clear()
        recorder, ws = jaxviz.Recorder(tmp_path / f"{name}.jaxviz", once=once, every=2), WS
        for i in range(5):
            state, value = recorder(step, ws, X + i)
            ws = state["ws"]
        results.append((state, value))
        # Traced for the record, twice; of five calls three are recorded.
        assert jit is jax.jit or len(calls) == 2 + (2 if once else 5)
    (want, wanted), (got, value) = results
    np.testing.assert_allclose(got["ws"], want["ws"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(value, wanted, rtol=1e-4)  # it is small: in float64 it is 5e-5 of it away
    assert jaxviz.divergence(tmp_path / "a.jaxviz", tmp_path / "b.jaxviz").parting is None
    # What the file says of a result is what was returned.
    last = load_records(tmp_path / "b.jaxviz")[-1]
    of_value = last.results[-1].summaries
    np.testing.assert_allclose(of_value[NORM], abs(value), rtol=1e-6)
    np.testing.assert_allclose(last.results[0].summaries[NORM], np.linalg.norm(got["ws"]), rtol=1e-6)


def test_a_call_that_runs_once_lays_results_out_as_the_function_does(tmp_path):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, split = (jax.sharding.NamedSharding(mesh, P(*spec)) for spec in ((), ("d",)))
    step = jax.jit(lambda ws, x: (ws - 0.1 * jax.grad(loss)(ws, x), x * 2.0), out_shardings=(split, whole))
    given = jax.device_put(WS, whole), jax.device_put(X, split)
    got, want = jaxviz.Recorder(tmp_path / "a.jaxviz", once=True)(step, *given), step(*given)
    for x, y in zip(got, want, strict=True):
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_a_recorded_function_that_is_no_step_runs_once_too(tmp_path):
    recorder = jaxviz.Recorder(tmp_path / "a.jaxviz", once=True)
    np.testing.assert_allclose(recorder(loss, WS, X), loss(WS, X), rtol=1e-6)
    np.testing.assert_allclose(recorder(lambda x: {"y": x * 2.0}, X)["y"], X * 2.0)


def test_calls_of_the_same_types_are_traced_once(tmp_path):
    traced = []

    def step(ws, x, scale):
        traced.append(1)
        return ws - scale * jax.grad(loss)(ws, x)

    recorder = jaxviz.Recorder(tmp_path / "a.jaxviz")
    step = jax.jit(step)
    for i in range(3):
        recorder(step, WS + i, X, jnp.asarray(0.1))
    once = len(traced)
    recorder(step, WS, X[:1], jnp.asarray(0.1))
    assert len(traced) == 2 * once


def test_a_number_of_python_is_recorded_as_it_is(tmp_path):
    recorder = jaxviz.Recorder(tmp_path / "a.jaxviz")
    for scale in (0.1, 0.2):
        recorder(lambda ws, x, scale: ws - scale * jax.grad(loss)(ws, x), WS, X, scale)
    first, second = load_records(recorder.path)
    found = jaxviz.divergence(first, second)
    assert found.parting.phase == "step"


def test_one_of_some_calls_is_recorded_and_donated_arguments_are_read_first(tmp_path):
    recorder, ws = jaxviz.Recorder(tmp_path / "a.jaxviz", every=3), WS + 0.0
    step = jax.jit(lambda ws, x: ws - 0.1 * jax.grad(loss)(ws, x), donate_argnums=0)
    for _ in range(7):
        ws = recorder(step, ws, X)
    assert [r.number for r in load_records(recorder.path)] == [0, 3, 6]
    with pytest.raises(ValueError, match="records of 3 calls"):
        jaxviz.RunRecord.load(recorder.path)
    with pytest.raises(ValueError, match="records no call"):
        jaxviz.Recorder("a.jaxviz", every=0)
    with pytest.raises(TypeError, match="callable"):
        recorder(WS, X)


@pytest.mark.parametrize("kept", [0.3, 0.5, 0.8, 0.99])
def test_a_file_whose_process_was_stopped_has_the_calls_before(kept, tmp_path):
    path = tmp_path / "a.jaxviz"
    train(path, none)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    assert [r.number for r in load_records(path)] == list(range(int(4 * kept)))


def test_a_file_that_is_no_record(tmp_path):
    path = tmp_path / "a.jaxviz"
    path.write_bytes(b"no gzip")
    with pytest.raises(ValueError, match="is not a record of jaxviz"):
        jaxviz.divergence(path, path)
    jaxviz.record(loss, WS, X).save(path)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match="no record that was written to its end"):
        load_records(path)
    gone, other = tmp_path / "gone.jaxviz", tmp_path / "b.jaxviz"
    for given in ((gone, path), (jaxviz.record(loss, WS, X).save(other), gone)):
        with pytest.raises(FileNotFoundError, match=r"there is no file .*gone.jaxviz; its folder has a.jaxviz.*save"):
            jaxviz.divergence(*given)


def test_what_was_recorded_is_freed_with_its_program():
    def recorded_constant():
        constant = jnp.ones(1000) * 3.0
        jaxviz.record(lambda x: jnp.sum(jnp.tanh(x) * constant[0]), X)
        return weakref.ref(constant)

    alive = recorded_constant()
    jax.clear_caches()
    gc.collect()
    assert alive() is None
