"""Every report on a training step is about one gradient: the one that the step takes."""

import inspect

import jax
import jax.numpy as jnp
import pytest

import jaxviz

PARAMS = [0.1 * jnp.eye(8), 0.2 * jnp.eye(8)]
X = jnp.ones((4, 8))


def loss(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def train_step(params, momentum, x):
    value, gradient = jax.value_and_grad(loss)(params, x)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + jnp.sin(g), momentum, gradient)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum, value


STEP = (train_step, PARAMS, PARAMS, X)
LOSS = (loss, PARAMS, X)
TITLE = "training step `train_step`, which takes the gradient of `loss` in `params`"


@pytest.mark.parametrize("given", [train_step, jax.jit(train_step)])
def test_the_residuals_of_a_step_are_those_of_its_loss(given):
    found, alone = jaxviz.residuals(given, *STEP[1:]), jaxviz.residuals(*LOSS)
    assert sorted(r.type for r in found) == sorted(r.type for r in alone)
    assert sorted(r.nbytes for r in found) == sorted(r.nbytes for r in alone)
    assert found.gradient == TITLE


def test_policies_decide_on_the_gradient_that_the_step_takes():
    found, alone = jaxviz.compare_policies(*STEP), jaxviz.compare_policies(*LOSS)
    assert [o.nbytes for o in found.outcomes] == [o.nbytes for o in alone.outcomes]
    assert [o.flops for o in found.outcomes] == [o.flops for o in alone.outcomes]
    assert found.without.peak_nbytes == jaxviz.memory(*STEP).peak_nbytes
    assert TITLE in found.summary
    assert TITLE in jaxviz.policies(*STEP).summary


def test_policies_are_measured_within_the_step():
    policy = "nothing_saveable"
    written = lambda *a: train_step_with(jax.checkpoint(loss, policy=getattr(jax.checkpoint_policies, policy)), *a)
    (found,) = jaxviz.compare_policies(*STEP, policies=[policy]).outcomes
    assert found.peak_nbytes == jaxviz.memory(written, *STEP[1:]).peak_nbytes


def train_step_with(f, params, momentum, x):
    value, gradient = jax.value_and_grad(f)(params, x)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + jnp.sin(g), momentum, gradient)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum, value


@pytest.mark.parametrize("take", [jaxviz.grad, jaxviz.value_and_grad], ids=["grad", "value_and_grad"])
def test_a_step_may_take_its_gradient_by_jaxviz(take):
    def step(params, x):
        return jax.tree.map(jnp.sin, take(loss)(params, x)), x

    is_about_its_loss(step, (PARAMS, X), jaxviz.residuals(*LOSS))
    assert jaxviz.find_nan(step, PARAMS, X) is None
    same = jaxviz.compare(step, lambda params, x: (jax.grad(loss)(params, x), x), PARAMS, X)
    assert same.is_same
    assert same.before.step is not None


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_jax_is_asked_without_what_an_auxiliary_result_would_save(around):
    def with_norm(params, x):
        value = loss(params, x)
        return value, jnp.linalg.norm(params[0])

    f = around(with_norm)
    step = lambda params, x: jax.value_and_grad(f, has_aux=True)(params, x)
    assert jaxviz.derive(f, PARAMS, X).n_residuals > jaxviz.derive(loss, PARAMS, X).n_residuals
    check = jaxviz.explore(step, PARAMS, X).derivation.check()
    assert check.agrees, check


def test_magics_are_about_the_same_gradient():
    from argparse import Namespace

    from jaxviz.notebook.calls import EvaluatedCall
    from jaxviz.notebook.options import DEFAULTS
    from jaxviz.notebook.reports import Request

    request = Request(EvaluatedCall("train_step(…)", train_step, STEP[1:], {}), Namespace(**DEFAULTS), {})
    for asked, report in (
        (request.memory, jaxviz.memory),
        (request.residuals, jaxviz.residuals),
        (request.lint, jaxviz.lint),
    ):
        assert asked().summary == report(*STEP).summary


def into_references(params, x, references):
    value, pull = jax.vjp(loss, params, x)
    pull.with_refs(references, jax.ad.DontWant())(1.0)
    return value


def into_own_references(params, xs):
    references = jax.tree.map(lambda p: jax.new_ref(jnp.zeros_like(p)), params)

    def microbatch(total, x):
        return total + into_references(params, x, references), None

    total, _ = jax.lax.scan(microbatch, 0.0, xs)
    return jax.tree.map(lambda p, r: p - 0.1 * r[...], params, references), total


def zeros():
    return [jax.new_ref(jnp.zeros_like(p)) for p in PARAMS]


def is_about_its_loss(step, args, alone):
    """Every report has the residuals of the loss, and its title."""
    found = jaxviz.residuals(step, *args)
    assert sorted((r.type, r.nbytes) for r in found) == sorted((r.type, r.nbytes) for r in alone)
    subject = f"training step `{step.__name__}`, which takes the gradient of `loss` in"
    lint = jaxviz.lint(step, *args)
    assert lint.saved == found.saved == alone.saved
    reports = (found, lint, jaxviz.memory(step, *args), jaxviz.policies(step, *args))
    assert all(subject in report.summary for report in reports)
    assert jaxviz.cost(step, *args).summary.startswith(f"cost of the training step `{step.__name__}`:")
    assert "picture of" in str(jaxviz.draw(step, *args))


@pytest.mark.parametrize("jitted", [False, True])
def test_a_step_may_add_its_gradient_to_references(jitted):
    """Its only result may be the loss, which no reference makes a gradient of."""
    references = zeros()
    alone = jaxviz.residuals(*LOSS, argnums=(0, 1))
    is_about_its_loss(jax.jit(into_references) if jitted else into_references, (PARAMS, X, references), alone)
    assert all(jnp.all(r[...] == 0) for r in references)


def test_a_step_may_add_its_gradient_to_references_of_its_own():
    is_about_its_loss(into_own_references, (PARAMS, jnp.stack([X, X])), jaxviz.residuals(*LOSS, argnums=(0, 1)))


def test_a_plan_for_a_step_with_references_leaves_its_numbers():
    params = jax.tree.map(lambda w: jnp.tile(w, (2, 2)), PARAMS * 4)
    x, made, expected = jnp.linspace(-1.0, 1.0, 1024).reshape(64, 16), [], []
    references = lambda: [jax.new_ref(jnp.zeros_like(p)) for p in params]
    plan = jaxviz.plan_remat(into_references, params, x, references(), residuals="60%")
    assert plan.saved
    for step, results in ((plan.apply(into_references), made), (into_references, expected)):
        grads = references()
        results += [step(params, x, grads), *(r[...] for r in grads)]
    for a, b in zip(made, expected, strict=True):
        assert jnp.allclose(a, b, rtol=1e-5)


newer = pytest.mark.skipif(
    not {"saveable_args", "in_nzs"} <= {*inspect.signature(jax.vjp).parameters}, reason="options since JAX 0.12"
)


def put_back(params, x):
    value, pull = jax.vjp(loss, params, x, saveable_args=(False, True))
    pull.args_res[0] = params
    gradient, _ = pull(jnp.ones(()))
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value


def in_another_jit(params, x):
    value, pull = jax.jit(lambda p, x: jax.vjp(loss, p, x, saveable_args=(False, True)))(params, x)
    pull.args_res[0] = params
    gradient, _ = jax.jit(lambda pull: pull(jnp.ones(())))(pull)
    return gradient, value


@newer
@pytest.mark.parametrize("step", [put_back, in_another_jit])
def test_a_step_may_put_back_arguments_that_are_not_saved(step):
    is_about_its_loss(step, (PARAMS, X), jaxviz.residuals(*LOSS, argnums=(0, 1)))


@newer
def test_other_values_put_back_are_not_those_of_the_gradient():
    """The backward pass then does not belong to what was differentiated, so the step is a function like any other."""

    def other(params, x):
        _, pull = jax.vjp(loss, params, x, saveable_args=(False, True))
        pull.args_res[0] = jax.tree.map(jnp.sin, params)
        return pull(jnp.ones(()))

    assert "training step" not in jaxviz.residuals(other, PARAMS, X).summary
    assert "not followed" in jaxviz.residuals(other, PARAMS, X).notes[0]


@newer
def test_a_step_may_say_what_its_gradient_is_taken_in():
    def step(params, x):
        value, pull = jax.vjp(loss, params, x, in_nzs=(True, False))
        return pull(jnp.ones(()))[0], value

    is_about_its_loss(step, (PARAMS, X), jaxviz.residuals(*LOSS))
    assert jaxviz.residuals(step, PARAMS, X).gradient.endswith("in `params`")


def test_the_loss_of_a_step_may_use_a_reference():
    def counted(params, x, count):
        count[...] += 1.0
        return loss(params, x) / count[...]

    def step(params, x, count):
        return jax.value_and_grad(counted)(params, x, count)

    args = PARAMS, X, jax.new_ref(jnp.ones(()))
    found, alone = jaxviz.residuals(step, *args), jaxviz.residuals(counted, *args)
    assert sorted((r.type, r.nbytes) for r in found) == sorted((r.type, r.nbytes) for r in alone)
    assert found.gradient == "training step `step`, which takes the gradient of `counted` in `params`"
    assert jaxviz.memory(step, *args).summary.startswith(f"memory of the {found.gradient}")
    assert args[-1][...] == 1.0


@jax.jit
def guarded_in_jit(params, x):
    try:
        return jax.grad(loss)(params, x), x
    except BaseException:
        return params, x


def guarded(params, x):
    try:
        gradient = jax.grad(loss)(params, x)
    except:  # noqa: E722
        gradient = None
    return jax.tree.map(lambda p, g: p - g, params, gradient)


@pytest.mark.parametrize("step", [guarded, guarded_in_jit])
def test_a_step_may_catch_every_error(step):
    for _ in range(2):  # the second time, JAX has traced it before
        is_about_its_loss(step, (PARAMS, X), jaxviz.residuals(*LOSS))


def test_a_planned_step_is_traced_for_its_gradient_alone():
    calls = []

    def step(params, x):
        calls.append(jaxviz.__name__)
        return jax.grad(loss)(params, x), x

    jaxviz.residuals(step, PARAMS, X)
    once = len(calls)
    jaxviz.plan_remat(step, PARAMS, X)
    assert len(calls) == 2 * once


WITH_A_COUNT = {"w": 0.1 * jnp.eye(8), "n": jnp.int32(3)}


def loss_of_count(params, x):
    return jnp.mean(jnp.tanh(x @ params["w"]) ** 2) / params["n"]


def of_a_count(params, x):
    return jax.grad(loss_of_count)(params, x), x


def of_a_vector(params, x):
    return jax.grad(lambda p: x @ p["w"])(params), x


def of_a_reference(params, x):
    reading = lambda p: jnp.sum(p["w"]) * p["n"][...]
    return jax.grad(reading)(params)["w"], x


@pytest.mark.parametrize(
    ("step", "params"),
    [
        (of_a_count, WITH_A_COUNT),
        (of_a_vector, {"w": WITH_A_COUNT["w"]}),
        (of_a_reference, {"w": WITH_A_COUNT["w"], "n": jax.new_ref(jnp.float32(3.0))}),
    ],
    ids=["a number", "a vector", "a reference"],
)
def test_a_gradient_that_jax_refuses_is_no_gradient_of_a_step(step, params):
    with pytest.raises((TypeError, ValueError)) as of_jax:
        step(params, X)
    for report in (jaxviz.residuals, jaxviz.memory, jaxviz.lint, jaxviz.policies):
        with pytest.raises(type(of_jax.value)) as caught:
            report(step, params, X)
        assert str(caught.value).splitlines()[0] == str(of_jax.value).splitlines()[0]
        lines = [t.lineno for t in caught.traceback if t.path.name == "test_one_subject.py"]
        assert step.__code__.co_firstlineno in range(lines[-1] - 2, lines[-1] + 3)
