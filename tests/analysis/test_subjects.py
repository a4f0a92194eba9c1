"""What reports are about: the gradient that a training step takes, or no gradient, because of which loop."""

import inspect

import jax
import jax.numpy as jnp
import pytest
import transcripts
from lines import line_of
from test_training_step import BATCH, W, is_about_its_loss, loss

import jaxviz


@pytest.mark.slow
@transcripts.of("subject")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


newer = pytest.mark.skipif(
    not {"saveable_args", "in_nzs"} <= {*inspect.signature(jax.vjp).parameters}, reason="options since JAX 0.12"
)


def put_back(params, batch):
    value, pull = jax.vjp(loss, params, batch, saveable_args=(False, True))
    pull.args_res[0] = params
    gradient, _ = pull(jnp.ones(()))
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value


def in_another_jit(params, batch):
    value, pull = jax.jit(lambda p, x: jax.vjp(loss, p, x, saveable_args=(False, True)))(params, batch)
    pull.args_res[0] = params
    gradient, _ = jax.jit(lambda pull: pull(jnp.ones(())))(pull)
    return gradient, value


def in_one_argument(params, batch):
    value, pull = jax.vjp(loss, params, batch, in_nzs=(True, False))
    return pull(jnp.ones(()))[0], value


@newer
@pytest.mark.parametrize("step", [put_back, in_another_jit, in_one_argument])
def test_a_step_may_say_what_is_saved_and_what_its_gradient_is_taken_in(step):
    argnums = 0 if step is in_one_argument else (0, 1)
    is_about_its_loss(step, (W, BATCH), jaxviz.residuals(loss, W, BATCH, argnums=argnums))
    assert jaxviz.residuals(step, W, BATCH).gradient.endswith("in `params`") == (step is in_one_argument)


@newer
def test_other_values_put_back_are_not_those_of_the_gradient():
    """The backward pass then does not belong to what was differentiated, so the step is a function like any other."""

    def other(params, batch):
        _, pull = jax.vjp(loss, params, batch, saveable_args=(False, True))
        pull.args_res[0] = jax.tree.map(jnp.sin, params)
        return pull(jnp.ones(()))

    found = jaxviz.residuals(other, W, BATCH)
    assert "training step" not in found.summary
    assert "not followed" in found.notes[0]


@pytest.mark.parametrize("report", ["residuals", "lint", "cost", "memory"])
def test_a_loop_in_a_librarys_jitted_function_has_the_users_line_too(tmp_path, report):
    file = tmp_path / "site-packages" / "halving.py"
    file.parent.mkdir()
    file.write_text(
        "import jax\n\n\n@jax.jit\ndef halved(x):\n    return jax.lax.while_loop(lambda x: x > 1.0, lambda x: 0.5 * "
        "x, x)\n"
    )
    space = {}
    exec(compile(file.read_text(), str(file), "exec"), space)

    def f(x):
        return space["halved"](x[0])  # here

    try:
        found = str(getattr(jaxviz, report)(f, jnp.array([3.0, 2.0])))
    except jaxviz.ReverseModeError as error:
        found = str(error)
    said = " ".join(found.split())
    assert "halving.py:6" in said
    assert f"test_subjects.py:{line_of(f)})" in said
