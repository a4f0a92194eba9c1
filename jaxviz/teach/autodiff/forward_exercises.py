"""The first notebook's exercises: tracing, evaluating, tangents."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxviz.teach.autodiff.grading import (
    DOTS,
    SAMPLES,
    A,
    B,
    but_for,
    each,
    functions,
    moving,
    reference,
    unlike,
)
from jaxviz.teach.autodiff.workbook import Engine
from jaxviz.teach.exercise import Exercise
from jaxviz.teach.rule import Check, rule


def of_bind(my: Engine) -> Exercise:
    def computes(bind: Any) -> str:
        if why := unlike(bind("mul", np.float32(2.0), np.float32(3.0)), [6.0], "`compute`"):
            return f"For bind('mul', 2.0, 3.0) {why}"
        if unlike(bind("sum", A, axis=1)[0], A.sum(1), "NumPy"):
            return "bind('sum', x, axis=1) does not sum over axis 1: does `compute` get the params?"
        return ""

    def records(bind: Any) -> str:
        with my.trying("bind", bind):
            program = my.trace(lambda x: my.sin(x) * x, np.float32(2.0))
        ops = [e.op for e in program.equations]
        if ops != ["sin", "mul"]:
            return f"sin(x) * x is recorded as {ops}; it should have the equations ['sin', 'mul']."
        if any(type(a) not in (my.Var, my.Const) for e in program.equations for a in e.inputs):
            return "An equation's input is neither a Var nor a Const: use `recording.read(x)`."
        if program.equations[1].inputs != (program.equations[0].outputs[0], program.inputs[0]):
            return "The product should read the output variable of sin, and the input, in this order."
        if program.outputs != program.equations[1].outputs:
            return "The returned tracers should have the equation's output variables."
        return ""

    def shapes(bind: Any) -> str:
        with my.trying("bind", bind):
            program = my.trace(lambda x, w: my.spread(my.sum(my.dot(x, w), 1), 0, 3), A, B)
        recorded = [v.shape for e in program.equations for v in e.outputs]
        if recorded != [(2, 2), (2,), (3, 2)]:
            return f"The variables have the shapes {recorded}; `shapes_of` returns (2, 2), (2,) and (3, 2)."
        return "" if program.equations[1].params == {"axis": 1} else "The equation of sum has lost its params."

    def nested(bind: Any) -> str:
        inner: list[Any] = []

        def outer(x: Any) -> Any:
            inner.append(my.trace(lambda y: x * y, np.float32(1.0)))
            return my.neg(x)

        with my.trying("bind", bind):
            program = my.trace(outer, np.float32(1.0))
        here, there = [e.op for e in program.equations], [e.op for e in inner[0].equations]
        if there != ["mul"] or here != ["neg"]:
            return (
                "If one trace runs inside another, the product of tracers of both belongs to the inner one. "
                f"Inner: {there}, outer: {here}."
            )
        if not isinstance(inner[0].equations[0].inputs[0], my.Const):
            return "For the inner trace, a tracer of the outer one is a Const."
        return ""

    def computes_all(op: str, *inputs: Any, **params: Any) -> Any:
        return my.compute(op, inputs, params)

    def loses_params(op: str, *inputs: Any, **params: Any) -> Any:
        recording = my.innermost(inputs)
        if recording is None:
            return my.compute(op, inputs, params)
        outputs = tuple(my.Var(s) for s in my.shapes_of(op, inputs, params))
        recording.equations.append(my.Equation(op, tuple(map(recording.read, inputs)), {}, outputs))
        return [my.Tracer(recording, v) for v in outputs]

    def first_tracer(op: str, *inputs: Any, **params: Any) -> Any:
        recording = next((x.recording for x in inputs if isinstance(x, my.Tracer)), None)
        if recording is None:
            return my.compute(op, inputs, params)
        outputs = tuple(my.Var(s) for s in my.shapes_of(op, inputs, params))
        recording.equations.append(my.Equation(op, tuple(map(recording.read, inputs)), params, outputs))
        return [my.Tracer(recording, v) for v in outputs]

    return rule(
        "Write `bind(op, *inputs, **params)`: computes, or records an equation in the innermost recording.",
        Check("computes with values", computes), Check("records with tracers", records),
        Check("gives variables their shapes", shapes),
        Check("separates nested traces", nested),
        hints=(
            "`my.innermost(inputs)` is None if there is no tracer: then return `my.compute(op, inputs, params)`.",
            "Otherwise make a `my.Var` for each shape in `my.shapes_of(op, inputs, params)`, and append a "
            "`my.Equation` to `recording.equations`.",
            "Its inputs are `recording.read(x)` for each x. Return a list of `my.Tracer(recording, var)`.",
        ),
        example=my.original("bind"),
        wrong=(computes_all, loses_params, first_tracer, lambda op, *xs, **ps: my.compute(op, xs, ps)[0]),
    )  # fmt: skip


def of_evaluate(my: Engine) -> Exercise:
    def fails(evaluate: Any) -> str:
        for text, (f, by_jax, args) in functions(my).items():
            if why := unlike(evaluate(my.trace(f, *args), *args), [by_jax(*args)], "JAX"):
                return f"For {text} {why}"
        return ""

    def passes_on(evaluate: Any) -> str:
        program = my.trace(lambda x: [x, np.float32(3.0), my.sin(x)], np.float32(1.0))
        why = unlike(evaluate(program, np.float32(1.0)), [1.0, 3.0, np.sin(1.0)], "NumPy")
        return f"For the program x → (x, 3, sin(x)), at 1, {why}" if why else ""

    def is_traced(evaluate: Any) -> str:
        program = my.trace(lambda x: my.sin(x) * x, np.float32(1.0))
        again = my.trace(lambda x: evaluate(program, x), np.float32(1.0))
        ops = [e.op for e in again.equations]
        if ops != ["sin", "mul"]:
            return (
                f"When traced, the evaluation of sin(x) * x records {ops}: does it call `my.bind` for each operation?"
            )
        return ""

    def by_compute(program: Any, *inputs: Any) -> Any:
        env = dict(zip(program.inputs, inputs, strict=True))
        for e in program.equations:
            env.update(zip(e.outputs, my.compute(e.op, [my.read(env, a) for a in e.inputs], e.params), strict=True))
        return [my.read(env, a) for a in program.outputs]

    return rule(
        "Write `evaluate(program, *inputs)`: applies the operations in order, and returns the outputs as a list.",
        Check("returns the same as JAX", fails), Check("passes inputs and constants on", passes_on),
        Check("can itself be traced", is_traced),
        hints=(
            "Keep a dict from variables to values. It starts with the program's inputs.",
            "`my.read(env, a)` returns the value of a Var or a Const. `my.bind(e.op, *values, **e.params)` returns the "
            "list of results.",
        ),
        example=my.original("evaluate"),
        wrong=(by_compute, lambda program, *inputs: list(inputs),
               lambda program, *inputs: my.evaluate(program, *inputs)[0]),
    )  # fmt: skip


def of_partial(my: Engine) -> Exercise:
    def problem(partial: Any, op: str) -> str:
        inputs, params = SAMPLES[op]
        (out,) = my.compute(op, inputs, params)
        for i in range(len(inputs)):
            dx = moving(inputs[i])
            tangent = partial(op, i, dx, inputs, out, params)
            if tangent is ...:
                return DOTS
            of_one = lambda x, i=i: reference(my, op, params)(*(x if j == i else y for j, y in enumerate(inputs)))
            expected = jax.jvp(of_one, (inputs[i],), (dx,))[1]
            if why := unlike(np.zeros_like(expected) if tangent is None else tangent, expected, "jax.jvp"):
                return f"Input {i} of shape {inputs[i].shape} moves by cos(0), cos(1), …: {why}"
        return ""

    but = but_for(my.original("partial"))
    return each(
        my, "Write `partial`: for each operation, the tangent of its result if input number `i` moves by `dx` and the "
            "others are constant.",
        SAMPLES, problem, "partial",
        hints=(
            "A product moves by `dx` times the *other* factor, `inputs[1 - i]`; for a matrix product, each factor "
            "stays on its side.",
            "`out` is the result: exp(x) is its own derivative, and the derivative of 1 / x is -out · out.",
            "sum, spread, swap, neg and add are linear: apply the operation to dx. A step has a zero derivative: None.",
        ),
        wrong=(
            but("cos", lambda op, i, dx, xs, out, ps: my.mul(dx, my.sin(xs[0]))),
            but("dot", lambda op, i, dx, xs, out, ps: my.dot(dx, xs[1])),
            but("log", lambda op, i, dx, xs, out, ps: my.mul(dx, out)),
            but("step", lambda op, i, dx, xs, out, ps: dx),
            but("spread", lambda op, i, dx, xs, out, ps: dx),
            but("recip", lambda op, i, dx, xs, out, ps: ...),
        ),
    )  # fmt: skip


def of_jvp(my: Engine) -> Exercise:
    def fails(jvp: Any) -> str:
        for text, (f, by_jax, args) in functions(my).items():
            dots = [moving(x) for x in args]
            outs, moved = jvp(my.trace(f, *args), args, dots)
            value, expected = jax.jvp(by_jax, args, tuple(dots))
            if why := unlike(list(outs), [value], "JAX"):
                return f"As the value of {text} {why}"
            if why := unlike(my.instantiate_zeros(moved, outs), [expected], "jax.jvp"):
                return f"As the tangent of {text} {why}"
        return ""

    def leaves_out(jvp: Any) -> str:
        f, by_jax, (x, y) = functions(my)["exp(x) / (1 + y * y)"]
        program = my.trace(f, x, y)
        _, (moved,) = jvp(program, [x, y], [np.float32(1.0), None])
        if moved is None or unlike(moved, jax.grad(by_jax)(x, y), "JAX"):
            return "With None as the tangent of y the tangent of exp(x) / (1 + y · y) is wrong: None stands for zero."
        both = my.trace(lambda x, dx: [z for (z,) in jvp(program, [x, y], [dx, None])], x, x)
        n = len(both.equations)
        if n > 6:
            return (
                f"With None as the tangent of y, it records {n} equations; 4 are enough, since a value that does "
                "not move needs no tangent."
            )
        return ""

    def stays(jvp: Any) -> str:
        one = np.float32(1.0)
        with my.trying("partial", my.original("partial")):  # a learner's rule may return zeros for None
            outs, moved = jvp(my.trace(lambda x: [my.step(x), np.float32(2.0), x], one), [one], [one])
        if [m is None for m in moved] != [True, True, False]:
            return f"x → (step(x), 2, x) should have the tangents (None, None, the given one), not {moved}."
        why = unlike(list(outs), [1.0, 2.0, 1.0], "NumPy")
        return f"For x → (step(x), 2, x), at 1, {why}" if why else ""

    def drops_constants(program: Any, inputs: Any, tangents: Any) -> Any:
        outs, dots = my.jvp(program, inputs, tangents)
        return outs, my.instantiate_zeros(dots, outs)

    def last_only(program: Any, inputs: Any, tangents: Any) -> Any:
        return my.evaluate(program, *inputs), list(tangents[:1]) * len(program.outputs)

    return rule(
        "Write `jvp(program, inputs, tangents)`: the outputs and their tangents; None stands for a zero tangent.",
        Check("returns the same as jax.jvp", fails), Check("a value that does not move has the tangent None", stays),
        Check("computes nothing for values that do not move", leaves_out),
        hints=(
            "It is `evaluate` with two dicts: one of values, one of tangents.",
            "`my.push(e.op, values, tangents, e.params)` returns the outputs and their tangents, for one equation.",
            "A constant has no tangent: `tangents.get(a)` is None for anything that is not in the dict.",
        ),
        example=my.original("jvp"), wrong=(drops_constants, last_only),
    )  # fmt: skip
