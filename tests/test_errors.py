"""What users read when something goes wrong: their own call, their own line, and what to write."""

import contextlib
import inspect
import traceback

import every_report
import jax
import jax.numpy as jnp
import pytest
import transcripts
from every_report import CALLS, NEVER_CALLS_IT

import jaxviz
from jaxviz.ir.own_code import owner

PARAMS = {"w": jnp.ones(3)}
X = jnp.ones((2, 4))


def loss(params, x):
    return jnp.sum(x @ params["w"])


JAX_S_OWN = {"checkpoint", "closure_convert", "linear_call", "pmap", "remat", "shard_map"}
DECORATORS = {"custom_gradient", "custom_jvp", "custom_vjp"}
entry_points = pytest.mark.parametrize("name", [name for name in CALLS if name not in NEVER_CALLS_IT])


def test_the_table_has_every_public_function_that_takes_a_function():
    public = {name: getattr(jaxviz, name) for name in dir(jaxviz)}
    functions = {name: f for name, f in public.items() if callable(f) and not isinstance(f, type)}
    first = {name: next(iter(inspect.signature(f).parameters), "") for name, f in functions.items()}
    takes = {name for name, parameter in first.items() if parameter in ("f", "fun", "function", "callable")}
    assert takes - JAX_S_OWN - DECORATORS == CALLS.keys()


def raised_by(call):
    with pytest.raises(Exception) as caught:  # noqa: PT011  of whatever kind JAX raises
        call()
    return caught.value


def frames(error):
    return [(f.filename, f.name) for f in traceback.extract_tb(error.__traceback__)]


def text(error):
    return "".join(traceback.format_exception_only(error))


@entry_points
def test_a_traceback_leads_from_the_call_to_the_line(name):
    def call():
        CALLS[name](loss, PARAMS, X)

    found = frames(raised_by(call))
    assert (__file__, "call") in found
    assert (__file__, "loss") in found
    between = found[found.index((__file__, "call")) + 1 : found.index((__file__, "loss"))]
    assert {file for file, _ in between} <= {every_report.__file__}  # the lambda of the table


MOVES = {
    "a line": lambda s: s.run(line=99_999),
    "a primitive": lambda s: s.break_at(primitive="no_such_thing"),
    "an iteration": lambda s: s.to(3),
    "a value": lambda s: s.values["no_such_name"],
    "the result": lambda s: s.result,
    "the gradient": lambda s: s.gradient,
}


@pytest.mark.parametrize("name", MOVES)
def test_of_a_move_of_the_stepper_that_cannot_be_the_users_line_is_all_there_is(name):
    stepper = jaxviz.step(lambda x: jnp.sum(jnp.sin(x)), X)
    error = raised_by(lambda: MOVES[name](stepper))
    assert isinstance(error, jaxviz.SteppingError)
    assert {file for file, _ in frames(error)} == {__file__}


@pytest.mark.parametrize("mode", ["off", "tracebackhide", "remove_frames", "quiet_remove_frames"])
def test_tracebacks_are_filtered_as_jax_filters_its_own(mode):
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", mode)
    try:
        error = raised_by(lambda: jaxviz.memory(loss, PARAMS, X))
    finally:
        jax.config.update("jax_traceback_filtering", before)
    inside = [f for f, _ in traceback.walk_tb(error.__traceback__) if owner(f.f_code.co_filename) == "jaxviz"]
    between = {f.f_code.co_filename for f, _ in traceback.walk_tb(error.__traceback__)} & {contextlib.__file__}
    if mode == "off":
        assert inside
        assert between
    else:
        assert all(f.f_locals.get("__tracebackhide__") for f in inside)
        assert bool(inside) == (mode == "tracebackhide")
        assert not between
    assert (type(error.__cause__).__name__ == "UnfilteredStackTrace") == (mode == "remove_frames")


class WithoutText:
    def __str__(self):
        raise ValueError("no text")


@entry_points
@pytest.mark.parametrize("base", [Exception, TypeError, ValueError, RecursionError])
def test_an_error_whose_text_fails_is_raised_as_it_is(name, base):
    kind = type("Weird", (WithoutText, base), {})

    def f(x):
        raise kind

    def shown():
        result = CALLS[name](f, X)
        return result(X) if callable(result) else str(result)

    with pytest.raises(kind):
        shown()


# --- what is of jaxviz stays out of it --------------------------------------------------------------------------------


def multiplies(x):
    return jnp.dot(x, jnp.ones(5))


@jax.custom_jvp
def fails_later(x):
    return jnp.sum(x)


@fails_later.defjvp
def _(primals, tangents):
    return multiplies(*primals), multiplies(*tangents)


@pytest.mark.parametrize(
    "call",
    [
        lambda: jaxviz.teach.saved(multiplies, X),
        lambda: str(jaxviz.compare(fails_later, fails_later, X)),
        lambda: jaxviz.compare(fails_later, fails_later, X)._repr_html_(),
    ],
    ids=["an exercise", "the text of a report", "the page of a report"],
)
def test_no_frame_of_jaxviz_is_shown(call):
    error = raised_by(call)
    assert "jaxviz" not in {owner(file) for file, _ in frames(error)}


def test_an_argument_that_is_no_array_is_one_of_the_users_function():
    message = text(raised_by(lambda: jaxviz.jit(multiplies).report("abc")))
    assert "Error interpreting argument to <function multiplies at " in message


@pytest.mark.slow
@transcripts.of("errors")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)
