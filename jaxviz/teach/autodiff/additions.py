"""`addition`: an exercise in which the learner adds an operation to the engine, with its rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.teach.autodiff.grading import moving, unlike
from jaxviz.teach.autodiff.workbook import Engine
from jaxviz.teach.exercise import Exercise
from jaxviz.teach.rule import Check, rule


def addition(
    my: Engine,
    name: str,
    question: str,
    reference: Callable[..., Any],
    *points: Any,
    hints: Sequence[str] = (),
    wrong: Sequence[Any] = (),
    **params: Any,
) -> Exercise:
    """An exercise on an operation of one input that the engine does not have. The answer is a function that adds it to
    an engine; it is tried on a new one, and a right answer adds it to `my`.

    >>> rsqrt = teach.autodiff.addition(my, "rsqrt", "Add 1 / sqrt(x).", jax.lax.rsqrt, np.array([0.5, 4.0]))
    >>> rsqrt.answer(add_rsqrt)

    Args:
      my: the engine.
      name: of the operation.
      question: the question.
      reference: the same operation, by JAX.
      *points: inputs to try it on, arrays of at least one axis.
      hints: hints, in order.
      wrong: wrong answers, for the notebooks' tests.
      **params: the operation's params.
    """
    inputs = [np.asarray(x, np.float32) for x in points]

    def check(says: str, problem: Callable[[Engine, Callable[[Any], Any], Any], str]) -> Check:
        def fails(add: Callable[[Any], None]) -> str:
            new = Engine(my.path)
            add(new)
            if name not in new.IMPLEMENTATIONS:
                return f'There is no `my.IMPLEMENTATIONS["{name}"]`.'
            with np.errstate(all="ignore"):
                problems = (problem(new, lambda x: new.bind(name, x, **params)[0], x) for x in inputs)
                return next(filter(None, problems), "")

        return Check(says, fails)

    def computes(new: Engine, f: Callable[[Any], Any], x: Any) -> str:
        if why := unlike(f(x), reference(x), "JAX"):
            return f"As the result {why}"
        recorded = new.trace(f, x).outputs[0].shape
        if recorded != np.shape(reference(x)):
            return (
                f"Recorded with an input of shape {x.shape}, its result has the shape {recorded}, not "
                f'{np.shape(reference(x))}: is there a `my.SHAPES_OF["{name}"]`?'
            )
        return ""

    def moves(new: Engine, f: Callable[[Any], Any], x: Any) -> str:
        if name not in new.JVP_OF:
            return f'There is no `my.JVP_OF["{name}"]`.'
        outs, dots = new.jvp(new.trace(f, x), [x], [moving(x)])
        value, tangent = jax.jvp(reference, (x,), (moving(x),))
        if why := unlike(outs, [value], "JAX"):
            return f"As the result of the rule {why}"
        why = unlike(new.instantiate_zeros(dots, outs), [tangent], "jax.jvp")
        return f"At {x.tolist()}, as the tangent {why}" if why else ""

    def has_gradient(new: Engine, f: Callable[[Any], Any], x: Any) -> str:
        weights = moving(reference(x))
        expected = jax.grad(lambda x: jnp.sum(weights * reference(x)))(x)
        why = unlike(new.grad(lambda x: new.total(new.mul(weights, f(x))))(x), expected, "JAX")
        return f"As the gradient of a weighted sum of the results, {why}" if why else ""

    def is_batched(new: Engine, f: Callable[[Any], Any], x: Any) -> str:
        xs = np.stack([x, 2 * x])
        why = unlike(new.vmap(f, (True,))(xs), jax.vmap(reference)(xs), "jax.vmap")
        return f"For two examples of shape {x.shape}, {why}" if why else ""

    def store(add: Callable[[Any], None]) -> str:
        add(my)
        return f"From here on, the engine has `{name}`, with your rules."

    exercise = rule(
        question,
        check("computes the same as JAX", computes),
        check("has the same tangents", moves),
        check("has the same gradient", has_gradient),
        check("works under vmap", is_batched),
        hints=hints,
        wrong=wrong,
    )
    return replace(exercise, store=store)
