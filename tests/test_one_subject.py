"""Every report on a training step is about one gradient: the one that the step takes."""

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


def by_lambda(params, momentum, x):
    return jax.grad(lambda p: loss(p, x))(params), momentum


STEP = (train_step, PARAMS, PARAMS, X)
LOSS = (loss, PARAMS, X)
TITLE = "training step `train_step`, which takes the gradient of `loss` in `params`"


@pytest.mark.parametrize("given", [train_step, jax.jit(train_step)])
def test_the_residuals_of_a_step_are_those_of_its_loss(given):
    found, alone = jaxviz.residuals(given, *STEP[1:]), jaxviz.residuals(*LOSS)
    assert sorted(r.type for r in found) == sorted(r.type for r in alone)
    assert sorted(r.nbytes for r in found) == sorted(r.nbytes for r in alone)
    assert found.gradient == TITLE


def test_arguments_that_the_loss_takes_without_their_gradient_have_their_names():
    names = lambda found: {r.expression for r in found if r.kind == "argument"}
    assert names(jaxviz.residuals(*STEP)) == names(jaxviz.residuals(*LOSS)) == {"x", "params[1]"}
    assert "x" in names(jaxviz.residuals(by_lambda, *STEP[1:]))


def test_lint_is_about_what_the_loss_saves():
    found, alone = jaxviz.lint(*STEP), jaxviz.lint(*LOSS)
    assert (found.n_residuals, found.nbytes) == (alone.n_residuals, alone.nbytes)
    assert [(a.rule, a.location) for a in found] == [(a.rule, a.location) for a in alone]
    assert TITLE in found.summary


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


def test_steps_are_compared_by_their_gradients():
    same = jaxviz.compare(train_step, lambda *a: train_step_with(loss, *a), *STEP[1:])
    assert same.is_same
    assert "Only gradients are compared" in str(same)
    other = jaxviz.compare(train_step, lambda *a: train_step_with(lambda p, x: loss(p, jnp.exp(x)), *a), *STEP[1:])
    assert [d.what for d in other.differences()] == ["exp"]
    assert str(other).startswith("gradient of `loss` in `params`, which `train_step` takes")


def test_a_step_and_another_function_are_compared_as_functions():
    found = jaxviz.compare(jax.grad(loss), jaxviz.grad(loss), PARAMS, X)
    assert found.before.step is found.after.step is None
    assert found.functions == ("loss", "loss")


def test_the_explorer_shows_the_gradient_that_the_step_takes():
    explorer, alone = jaxviz.explore(*STEP), jaxviz.explore(*LOSS)
    assert explorer.view.title == "gradient of `loss` in `params`, which `train_step` takes"
    primitives = lambda e: sorted(x.primitive.name for _, x in e.derivation.backward.walk())
    assert primitives(explorer) == primitives(alone)
    assert explorer.derivation.check()
    alone.update(*STEP)
    assert alone.view.title == explorer.view.title


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


def test_a_derivation_brings_its_step():
    derivation = jaxviz.explore(*STEP).derivation
    assert jaxviz.memory(derivation).summary == jaxviz.memory(*STEP).summary
    assert jaxviz.residuals(derivation).summary == jaxviz.residuals(*STEP).summary


def test_without_arguments_to_differentiate_a_step_is_a_function():
    assert "function `train_step`" in jaxviz.residuals(*STEP, argnums=()).summary
    assert jaxviz.lint(*STEP, argnums=()).n_residuals == 0


def test_a_derivation_of_the_step_is_its_second_derivative():
    again = jaxviz.derive(*STEP)
    assert "gradient of `train_step`" in jaxviz.residuals(again).summary


def test_magics_are_about_the_same_gradient():
    from argparse import Namespace

    from jaxviz.notebook.calls import Call
    from jaxviz.notebook.reports import Request

    options = Namespace(argnums="0", compare=None, policy=None, xla=False, beside=False, explain=False)
    request = Request(Call("train_step(…)", train_step, STEP[1:], {}), options, {})
    for asked, report in (
        (request.memory, jaxviz.memory),
        (request.residuals, jaxviz.residuals),
        (request.lint, jaxviz.lint),
    ):
        assert asked().summary == report(*STEP).summary


def test_pictures_of_a_gradient_are_about_the_same():
    picture = str(jaxviz.draw(*STEP, stage="forward+backward"))
    assert "gradient of loss in params, which train_step takes" in picture
    assert "picture of train_step" in str(jaxviz.draw(*STEP))
