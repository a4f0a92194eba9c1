"""Training steps, with the passes of their gradients as equations, match JAX, and so do steps with replaced passes."""

import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_programs import LINE
from jax import lax
from jax.sharding import PartitionSpec as P
from short_runs import short

import jaxviz
from jaxviz.analysis.training_step import step_function, takes_gradient, trace_training_step
from jaxviz.derivation import derive
from jaxviz.features.remat.graph import derive_like
from jaxviz.ir import compat
from jaxviz.ir.emit import as_function

W = [0.3 * jnp.eye(4) + 0.1 * i for i in range(3)]
BATCH = {"x": jnp.linspace(-1.0, 1.0, 32).reshape(8, 4), "y": jnp.linspace(0.0, 1.0, 32).reshape(8, 4)}


def predict(params, x):
    for w in params:
        x = x + jnp.tanh(x @ w)
    return x


def loss(params, batch):
    return jnp.mean((predict(params, batch["x"]) - batch["y"]) ** 2)


def with_aux(params, batch):
    out = predict(params, batch["x"])
    return jnp.mean((out - batch["y"]) ** 2), {"mean": jnp.mean(out), "n": 3}


def updated(params, momentum, gradient):
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum


def plain(params, momentum, batch):
    return updated(params, momentum, jax.grad(loss)(params, batch))


def aux(params, momentum, batch):
    (value, more), gradient = jax.value_and_grad(with_aux, has_aux=True)(params, batch)
    return *updated(params, momentum, gradient), value, more["mean"]


def closed_over(params, momentum, batch):
    value, gradient = jax.value_and_grad(lambda p: loss(p, batch))(params)
    return *updated(params, momentum, gradient), value


@jax.jit
def gradients(params, batch):
    return jax.value_and_grad(loss)(params, batch)


@partial(jax.jit, donate_argnums=(0, 1))
def jitted(params, momentum, batch):
    value, gradient = gradients(params, batch)
    return *updated(params, momentum, gradient), value


def two_arguments(params, momentum, batch):
    of_params, of_x = jax.grad(lambda p, x: loss(p, {**batch, "x": x}), argnums=(0, 1))(params, batch["x"])
    return *updated(params, momentum, of_params), of_x


def by_vjp(params, momentum, batch):
    value, pull = jax.vjp(lambda p: loss(p, batch), params)
    (gradient,) = pull(2.0 * jnp.ones_like(value))
    return *updated(params, momentum, gradient), value


def accumulated(params, momentum, batch):
    parts = jax.tree.map(lambda a: a.reshape(4, 2, *a.shape[1:]), batch)

    def add(total, part):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(params, part)), None

    gradient, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
    return updated(params, momentum, gradient)


def two_gradients(params, momentum, batch):
    small = jax.grad(lambda p: jnp.sum(p[0] ** 2))(params)
    return updated(params, momentum, jax.tree.map(jnp.add, small, jax.grad(loss)(params, batch)))


def penalized(params, momentum, batch):
    """A gradient of a function that itself takes a gradient."""
    steep = lambda p: loss(p, batch) + jnp.sum(jax.grad(lambda x: loss(p, {**batch, "x": x}))(batch["x"]) ** 2)
    return updated(params, momentum, jax.grad(steep)(params))


def on_devices(params, momentum, batch):
    def each(params, batch):
        return jax.tree.map(lambda g: lax.pmean(g, "i"), jax.grad(loss)(params, batch))

    mapped = jax.shard_map(each, mesh=LINE, in_specs=(P(), P("i")), out_specs=P())
    return updated(params, momentum, mapped(params, batch))


def exchanging(params, momentum, batch):
    def each(params, batch):
        return jax.grad(lambda p: lax.pmean(loss(p, batch), "i"))(params)

    mapped = jax.shard_map(each, mesh=LINE, in_specs=(P(), P("i")), out_specs=P())
    return updated(params, momentum, mapped(params, batch))


def unread(params, momentum, batch):
    """A parameter that the loss does not read has a zero gradient."""
    return updated(params, momentum, jax.grad(lambda p: loss(p[:2], batch))(params))


def forward_and_backward(params, momentum, batch):
    forward, backward = jax.fwd_and_bwd(lambda p: loss(p, batch), argnums=0)
    value, pull = forward(params)
    return *updated(params, momentum, backward(pull, jnp.ones_like(value))), value


def through_jit(params, momentum, batch):
    value, pull = jax.jit(lambda p, b: jax.vjp(partial(loss, batch=b), p))(params, batch)
    (gradient,) = jax.jit(lambda pull, ct: pull(ct))(pull, jnp.ones_like(value))
    return *updated(params, momentum, gradient), value


def taken_apart(params, momentum, batch):
    """What `jax.vjp` returns is a pytree."""
    value, pull = jax.vjp(lambda p: loss(p, batch), params)
    leaves, tree = jax.tree.flatten(pull)
    (gradient,) = jax.tree.unflatten(tree, leaves)(jnp.ones_like(value))
    return *updated(params, momentum, gradient), value


def into_references(params, momentum, batch):
    total = jax.tree.map(lambda p: jax.new_ref(jnp.zeros_like(p)), params)

    def add(_, part):
        value, pull = jax.vjp(lambda p: loss(p, part), params)
        pull.with_refs(total)(jnp.ones_like(value))
        return None, value

    lax.scan(add, None, jax.tree.map(lambda a: a.reshape(4, 2, *a.shape[1:]), batch))
    return updated(params, momentum, [t[...] for t in total])


def some_wanted(params, momentum, batch):
    value, pull = jax.vjp(lambda p, x: loss(p, {**batch, "x": x}), params, batch["x"])
    kinds = jax.tree.map(lambda _: jax.ad.GradValue(), params), jax.ad.DontWant()
    gradient, _ = pull.with_refs(*kinds)(jnp.ones_like(value))
    return *updated(params, momentum, gradient), value


def in_a_branch(params, momentum, batch):
    """Only a gradient that is small enough is taken, as where a step is skipped."""
    value, pull = jax.vjp(lambda p: loss(p, batch), params)
    skipped = lambda: (jax.tree.map(jnp.zeros_like, params),)
    (gradient,) = lax.cond(value < 10.0, lambda: pull(jnp.ones_like(value)), skipped)
    return *updated(params, momentum, gradient), value


def in_a_branch_of_a_loop(params, momentum, batch):
    """The branch also reads a residual that it gets as an operand, and the loop carries what the branch returns."""
    value, pull = jax.vjp(lambda p: loss(p, batch), params)

    def add(total, scale):
        zeros = jax.tree.map(jnp.zeros_like, params)
        taken = lambda pull, scale: jax.tree.map(lambda g, w: g * w, pull(scale)[0], params)
        return jax.tree.map(jnp.add, total, lax.cond(scale > 1.0, taken, lambda *_: zeros, pull, scale)), scale

    gradient, scales = lax.scan(add, params, jnp.arange(4.0))
    return *updated(params, momentum, gradient), value, scales


def in_two_branches(params, momentum, batch):
    value, pull = jax.vjp(lambda p: loss(p, batch), params)
    taken = [lambda scale: jax.jit(pull)(scale), lambda scale: pull(2.0 * scale), lambda scale: (params,)]
    (gradient,) = lax.switch(jnp.int32(value < 10.0), taken, value)
    return *updated(params, momentum, gradient), value


def by_jacobian(params, momentum, batch):
    """The backward pass is mapped over the results, for two scales of each."""
    out, pull = jax.vjp(lambda p: jnp.mean(predict(p, batch["x"]), 0), params)
    (jacobian,) = jax.vmap(jax.vmap(pull, in_axes=1))(jnp.stack([jnp.eye(4), 2.0 * jnp.eye(4)]))
    return *updated(params, momentum, jax.tree.map(lambda j: jnp.sum(j, (0, 1)), jacobian)), out


def in_checkpoints(params, momentum, batch):
    value, pull = jax.checkpoint(lambda p: jax.vjp(lambda p: loss(p, batch), p))(params)
    (gradient,) = jax.checkpoint(pull)(jnp.ones_like(value))
    return *updated(params, momentum, gradient), value


def in_a_while_loop(params, momentum, batch):
    """The condition takes a gradient as well."""
    value, pull = jax.vjp(lambda p: loss(p, batch), params)
    goes_on = lambda c: jnp.sum(jax.grad(lambda w: jnp.sum(w**2))(c[1][0])) + c[0] < 20.0
    again = lambda c: (c[0] + 1.0, jax.tree.map(jnp.add, c[1], pull(c[0])[0]))
    return lax.while_loop(goes_on, again, (value, params)), value


def with_statistics(params, momentum, batch):
    """The function reads and writes a reference from outside, and prints."""
    mean = jax.new_ref(jnp.zeros(()))

    def centred(params):
        out = predict(params, batch["x"])
        mean[...] = 0.9 * mean[...] + 0.1 * lax.stop_gradient(out.mean())
        jax.debug.callback(lambda x: None, out.mean())
        return jnp.mean((out - mean[...] - batch["y"]) ** 2)

    value, gradient = jax.value_and_grad(centred)(params)
    return *updated(params, momentum, gradient), value, mean[...]


def read_in_a_checkpoint(params, momentum, batch):
    """The reference is a residual."""
    scale = jax.new_ref(jnp.full((), 2.0))
    gradient = jax.grad(jax.checkpoint(lambda p: loss(p, batch) * scale[...]))(params)
    scale[...] = 0.0
    return updated(params, momentum, gradient)


def by_jaxviz(params, momentum, batch):
    value, gradient = jaxviz.value_and_grad(loss)(params, batch)
    return *updated(params, momentum, gradient), value


def by_jaxviz_in_jit(params, momentum, batch):
    (value, more), gradient = jaxviz.jit(jaxviz.value_and_grad(with_aux, has_aux=True))(params, batch)
    return *updated(params, momentum, gradient), value, more["mean"]


def by_the_vjp_of_jaxviz(params, momentum, batch):
    value, pull = jaxviz.vjp(lambda p: loss(p, batch), params)
    (gradient,) = pull(jnp.ones_like(value))
    return *updated(params, momentum, gradient), value


def choosing(params, batch):
    value = loss(params, batch)
    return lax.cond(value < 10.0, lambda p: loss(p[:2], batch) + value, lambda p: jnp.sum(jnp.sin(p[0])), params)


def recomputing(params, momentum, batch):
    return updated(params, momentum, jaxviz.grad(choosing, cond_residuals="recompute")(params, batch))


def microbatches(batch):
    return jax.tree.map(lambda a: a.reshape(4, 2, *a.shape[1:]), batch)


def stacked_by_a_scan(params, momentum, batch):
    """All forward passes come first, as in a pipeline by hand: a scan stacks what `jax.vjp` returns."""
    take = lambda c, part: (c, jax.vjp(lambda p: loss(p, part), params))
    _, (values, pulls) = lax.scan(take, 0, microbatches(batch))
    add = lambda total, pull: (jax.tree.map(jnp.add, total, pull(jnp.ones(()))[0]), None)
    gradient, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, params), pulls)
    return *updated(params, momentum, gradient), values


def stacked_in_jit(params, momentum, batch):
    """The second scan runs in a branch and backwards, and reads another value as well."""
    taken = lambda params, parts: lax.scan(lambda c, part: (c, jax.vjp(loss, params, part)), 0, parts)[1]
    values, pulls = jax.jit(taken)(params, microbatches(batch))

    @jax.jit
    def summed(pulls, scales):
        add = lambda total, x: (jax.tree.map(jnp.add, total, x[0](x[1])[0]), x[1])
        zeros = jax.tree.map(jnp.zeros_like, params)
        run = lambda: lax.scan(add, zeros, (pulls, scales), reverse=True)[0]
        return lax.cond(scales[0] < 10.0, run, lambda: zeros)

    return *updated(params, momentum, summed(pulls, jnp.arange(4.0))), values


def put_back_in_a_scan(params, momentum, batch):
    """The same, and what `jax.vjp` returns holds no argument: the second scan puts them back."""
    parts = microbatches(batch)
    take = lambda c, part: (c, jax.vjp(loss, params, part, saveable_args=False))
    _, (values, pulls) = lax.scan(take, 0, parts)

    def add(total, x):
        pull, part = x
        pull.args_res[:] = [params, part]
        return jax.tree.map(jnp.add, total, pull(jnp.ones(()))[0]), None

    gradient, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, params), (pulls, parts), reverse=True)
    return *updated(params, momentum, gradient), values


def weights_put_back(params, momentum, batch):
    """Only the weights are put back; the scan stacks each part of the batch."""
    take = lambda c, part: (c, jax.vjp(loss, params, part, saveable_args=(False, True)))
    _, (values, pulls) = lax.scan(take, 0, microbatches(batch))

    def add(total, pull):
        pull.args_res[0] = params
        return jax.tree.map(jnp.add, total, pull(jnp.ones(()))[0]), None

    gradient, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, params), pulls)
    return *updated(params, momentum, gradient), values


def carried_along(params, momentum, batch):
    """A loop carries what `jax.vjp` returned, and applies it in each iteration."""
    value, pull = jax.vjp(lambda p: loss(p, batch), params)
    add = lambda c, scale: ((jax.tree.map(jnp.add, c[0], c[1](scale)[0]), c[1]), None)
    (gradient, _), _ = lax.scan(add, (jax.tree.map(jnp.zeros_like, params), pull), jnp.array([0.25, 0.75]))
    return *updated(params, momentum, gradient), value


def layer_by_layer(params, momentum, batch):
    """The backward pass of each layer is taken by hand, from the last to the first."""
    layer = lambda w, x: x + jnp.tanh(x @ w)
    out, pulls = lax.scan(lambda x, w: jax.vjp(layer, w, x), batch["x"], jnp.stack(params))
    _, gradient = lax.scan(lambda ct, pull: pull(ct)[::-1], 2.0 * (out - batch["y"]) / out.size, pulls, reverse=True)
    return *updated(params, momentum, list(gradient)), out


def with_all_outputs(params, momentum, batch):
    """The two passes are two jitted functions, and there is an auxiliary output."""
    forward, backward = jax.fwd_and_bwd(with_aux, argnums=(0,), has_aux=True)
    value, pull, more = forward(params, batch)
    (gradient,) = backward(pull, jnp.ones_like(value))
    return *updated(params, momentum, gradient), value, more["mean"]


def first_applied_last(params, momentum, batch):
    value, first = jax.vjp(lambda p: loss(p, batch), params)
    other, second = jax.vjp(lambda p: loss(p, {**batch, "x": 2.0 * batch["x"]}), params)
    gradient = jax.tree.map(lambda a, b: a + 3.0 * b, second(jnp.ones(()))[0], first(jnp.ones(()))[0])
    return *updated(params, momentum, gradient), value, other


STEPS = (
    plain, aux, closed_over, jitted, two_arguments, by_vjp, accumulated, two_gradients, penalized, on_devices,
    exchanging, unread, forward_and_backward, through_jit, taken_apart, into_references, some_wanted,
    in_a_branch, in_a_branch_of_a_loop, by_jaxviz, by_jaxviz_in_jit, by_the_vjp_of_jaxviz, recomputing, by_jacobian,
    in_checkpoints, in_a_while_loop, with_statistics, read_in_a_checkpoint, stacked_by_a_scan, stacked_in_jit,
    layer_by_layer, with_all_outputs, first_applied_last, carried_along,
    *((put_back_in_a_scan, weights_put_back) if jax.__version_info__ >= (0, 11) else ()),
)  # fmt: skip


def agrees(step, function):
    want = jax.tree.leaves(jax.jit(getattr(step, "__wrapped__", step))(W, W, BATCH))
    got = jax.jit(function)(*jax.tree.leaves((W, W, BATCH)))
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("step", short(STEPS, 2), ids=lambda f: f.__name__)
def test_a_step_with_its_passes_as_equations_gives_what_jax_gives(step):
    found = trace_training_step(step, (W, W, BATCH), {})
    opened = found.opened()
    assert len(opened.forward) == len(opened.backward) == 1
    agrees(step, as_function(opened.program))
    agrees(step, step_function(found))


@pytest.mark.slow
@pytest.mark.parametrize(
    "step",
    [
        plain, aux, jitted, accumulated, through_jit, into_references, some_wanted, in_a_branch, in_a_branch_of_a_loop,
        in_two_branches, by_jaxviz, recomputing, by_jacobian, in_a_while_loop, stacked_by_a_scan, stacked_in_jit,
        layer_by_layer, carried_along,
        *((put_back_in_a_scan, weights_put_back) if jax.__version_info__ >= (0, 11) else ()),
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_another_function_may_take_the_place_of_the_one_that_is_differentiated(step):
    found = trace_training_step(step, (W, W, BATCH), {})
    types = (jax.ShapeDtypeStruct(a.shape, a.dtype) for a in found.gradient.primal.in_avals)
    checkpointed = jaxviz.trace(jax.checkpoint(as_function(found.gradient.primal)))(*types)
    agrees(step, step_function(found, checkpointed))
    assert derive_like(checkpointed, found.gradient).n_results == found.gradient.n_results


OF_THE_LOSS = (
    plain, closed_over, jitted, by_vjp, forward_and_backward, through_jit, taken_apart, in_a_branch,
    in_a_branch_of_a_loop,
    in_two_branches, in_checkpoints, by_jaxviz,
)  # fmt: skip


@pytest.mark.parametrize(("step", "times"), [(stacked_by_a_scan, 4), (layer_by_layer, 3), (accumulated, 1)])
def test_residuals_say_that_a_scan_stacks_them(step, times):
    assert trace_training_step(step, (W, W, BATCH), {}).stacked.times == times
    said = " ".join(str(jaxviz.residuals(step, W, W, BATCH)).split())
    assert (f"stacks what each of its {times} iterations saves" in said) == (times > 1)


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="before JAX 0.11 every argument is held")
def test_arguments_that_are_put_back_are_not_stacked():
    """The oracle is what `jax.vjp` returns, whose leaves the scan stacks."""
    said = lambda step: " ".join(str(jaxviz.residuals(step, W, W, BATCH)).split())
    assert "; the arguments that the backward pass reads are put back: this is about one" in said(put_back_in_a_scan)
    assert "the backward pass reads, except for those that are put back: this is about one" in said(weights_put_back)
    assert "with the arguments that the backward pass reads: this is about one" in said(stacked_by_a_scan)
    part = jax.tree.map(lambda a: a[0], microbatches(BATCH))
    for step, saveable in ((put_back_in_a_scan, False), (weights_put_back, (False, True))):
        held = jax.tree.leaves(jax.vjp(loss, W, part, saveable_args=saveable)[1])
        opened = trace_training_step(step, (W, W, BATCH), {}).opened().program
        scan = next(e for _, e in opened.walk() if e.primitive.name == "scan")
        stacked = sum(v.aval.size for v in scan.outvars if v.aval.dtype == np.float32)
        assert stacked == 4 * (1 + sum(np.size(x) for x in held))


def read_besides(params, momentum, batch):
    value, pull = jax.vjp(lambda p: loss(p, batch), params)
    norm = sum(jnp.sum(a**2) for a in jax.tree.leaves(pull))
    return *updated(params, momentum, pull(jnp.ones_like(value))[0]), norm


def returned(params, momentum, batch):
    return jax.vjp(lambda p: loss(p, batch), params)


def changed(params, momentum, batch):
    value, pull = jax.vjp(lambda p: loss(p, batch), params)
    pull = jax.tree.map(lambda a: a.astype(jnp.bfloat16).astype(a.dtype), pull)
    return *updated(params, momentum, pull(jnp.ones_like(value))[0]), value


def in_the_carry(params, momentum, batch):
    """A scan applies what the iteration before it returned, as in a pipeline with one of each pass in turn."""
    first, *rest = (jax.tree.map(lambda a, i=i: a[i], microbatches(batch)) for i in range(4))
    _, pull = jax.vjp(loss, params, first)
    leaves, tree = jax.tree.flatten(pull)

    def turn(carry, part):
        total, leaves = carry
        gradient, _ = jax.tree.unflatten(tree, leaves)(jnp.ones(()))
        value, pull = jax.vjp(loss, params, part)
        return (jax.tree.map(jnp.add, total, gradient), jax.tree.leaves(pull)), value

    start = jax.tree.map(jnp.zeros_like, params), leaves
    (total, leaves), _ = lax.scan(turn, start, jax.tree.map(lambda *a: jnp.stack(a), *rest))
    gradient, _ = jax.tree.unflatten(tree, leaves)(jnp.ones(()))
    return updated(params, momentum, jax.tree.map(jnp.add, total, gradient))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "how"),
    [
        (read_besides, "whose residuals are also read outside of its backward pass"),
        (returned, "whose residuals are also read outside of its backward pass"),
        (changed, "whose backward pass is apart from its forward pass"),
        (in_the_carry, "whose backward pass is apart from its forward pass"),
    ],
    ids=lambda f: getattr(f, "__name__", ""),
)
def test_what_is_not_followed_is_said(step, how):
    not_followed = trace_training_step(step, (W, W, BATCH), {})
    assert any(how in text for text in not_followed)
    for report in (jaxviz.residuals, jaxviz.memory, jaxviz.lint, jaxviz.policies):
        assert how in " ".join(str(report(step, W, W, BATCH)).split())


def is_about_its_loss(step, args, alone):
    """Every report has the residuals of the loss, and its title."""
    found, lint = jaxviz.residuals(step, *args), jaxviz.lint(step, *args)
    assert sorted((r.type, r.nbytes) for r in found) == sorted((r.type, r.nbytes) for r in alone)
    assert lint.saved == found.saved == alone.saved
    reports = (found, lint, jaxviz.memory(step, *args), jaxviz.policies(step, *args))
    assert all(f"training step `{step.__name__}`, which takes the gradient of" in report.summary for report in reports)
    assert jaxviz.cost(step, *args).summary.startswith(f"cost of the training step `{step.__name__}`:")
    assert "picture of" in str(jaxviz.draw(step, *args))


@pytest.mark.slow
@pytest.mark.parametrize("step", OF_THE_LOSS, ids=lambda f: f.__name__)
def test_every_report_of_a_step_is_about_its_loss(step):
    is_about_its_loss(step, (W, W, BATCH), jaxviz.residuals(loss, W, BATCH))


@pytest.mark.slow
def test_threads_that_overlap_leave_jax_as_it_was():
    """The first to start also finishes first, while the other is still differentiating."""
    before = jax.vjp, jax.grad(loss)(W, BATCH)
    second_is_inside, first_has_ended = threading.Event(), threading.Event()
    called = []

    def noted(original, *args, **kwargs):
        called.append(threading.current_thread().name)
        return original(*args, **kwargs)

    def second():
        with compat.replaced_vjp(noted):
            second_is_inside.set()
            assert first_has_ended.wait(60)
            jax.grad(loss)(W, BATCH)

    thread = threading.Thread(target=second, name="second")
    with compat.replaced_vjp(lambda original, *args, **kwargs: pytest.fail("this thread calls jax.vjp")):
        thread.start()
        assert second_is_inside.wait(60)
    first_has_ended.set()
    assert all(map(np.array_equal, jax.grad(loss)(W, BATCH), before[1]))
    thread.join()
    assert called == ["second"]
    assert jax.vjp is before[0]


@jax.custom_vjp
def squared(x):
    return x * x


squared.defvjp(lambda x: (x * x, x), lambda x, ct: jax.vjp(jax.jit(lambda x: x * x), x)[1](ct))


def test_a_gradient_in_a_backward_rule_is_not_one_of_the_step():
    """It belongs to the backward pass, and is the same for whoever asks for that next."""

    def step(w):
        return w - 0.1 * jax.grad(lambda w: jnp.sum(squared(w)))(w)

    w = jnp.arange(3.0)
    traced = trace_training_step(step, (w,), {})
    assert len(traced.gradients) == 1
    for program in (traced.opened().program, jaxviz.derive(lambda w: jnp.sum(squared(w)), w).backward):
        assert not [e for _, e in program.walk() if e.primitive.name == "gradient_pass"]
    assert not jaxviz.record(step, w).note
    np.testing.assert_allclose(jaxviz.grad(lambda w: jnp.sum(squared(w)))(w), 2 * w)


@pytest.mark.parametrize(
    ("f", "takes"),
    [
        (jnp.linalg.inv, False),  # it holds a transposed product, for its own derivative
        (lambda x: jax.scipy.sparse.linalg.cg(x, jnp.ones(3))[0], False),
        (lambda x: jax.lax.scan(lambda c, _: (jnp.linalg.solve(c, x), None), x, length=3)[0], False),
        (lambda x: jax.jvp(jnp.sin, (x,), (x,))[1], False),
        (lambda x: jax.grad(lambda y: jnp.sum(jnp.linalg.inv(y)))(x), True),
        (lambda x: jax.lax.cond(x[0, 0] > 0, jax.grad(lambda y: jnp.sum(y**2)), jnp.sin, x), True),
        (lambda x: jax.linear_transpose(jax.linearize(jnp.sin, x)[1], x)(x)[0], True),
    ],
)
def test_a_solve_is_no_gradient_though_it_holds_a_transposed_product(f, takes):
    assert takes_gradient(derive(f, jnp.eye(3), argnums=()).primal) is takes
