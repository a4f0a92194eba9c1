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
    each,
    functions,
    moving,
    of_function,
    reference,
    unlike,
)
from jaxviz.teach.autodiff.workbook import Engine
from jaxviz.teach.exercise import Exercise
from jaxviz.teach.rule import Check


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

    return of_function(
        my, "bind",
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
        mistakes=[
            ("if recording is None", "if True"), ("params, outputs", "{}, outputs"),
            ("innermost(inputs)", "next((x.recording for x in inputs if isinstance(x, Tracer)), None)"),
            ("return compute(op, inputs, params)", "return compute(op, inputs, params)[0]"),
        ],
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

    return of_function(
        my, "evaluate",
        "Write `evaluate(program, *inputs)`: applies the operations in order, and returns the outputs as a list.",
        Check("returns the same as JAX", fails), Check("passes inputs and constants on", passes_on),
        Check("can itself be traced", is_traced),
        hints=(
            "Keep a dict from variables to values. It starts with the program's inputs.",
            "`my.read(env, a)` returns the value of a Var or a Const. `my.bind(e.op, *values, **e.params)` returns the "
            "list of results.",
        ),
        mistakes=[
            ("bind(e.op, *(read(env, a) for a in e.inputs), **e.params)",
             "compute(e.op, [read(env, a) for a in e.inputs], e.params)"),
            ("[read(env, a) for a in program.outputs]", "read(env, program.outputs[0])"),
        ],
        wrong=[lambda program, *inputs: list(inputs)],
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

    return each(
        my, "partial",
        "Write `partial`: for each operation, the tangent of its result if input number `i` moves by `dx` and the "
        "others are constant.",
        SAMPLES, problem,
        hints=(
            "A product moves by `dx` times the *other* factor, `inputs[1 - i]`; for a matrix product, each factor "
            "stays on its side.",
            "`out` is the result: exp(x) is its own derivative, and the derivative of 1 / x is -out · out.",
            "sum, spread, swap, neg and add are linear: apply the operation to dx. A step has a zero derivative: None.",
        ),
        mistakes=[
            ("-mul(dx, sin(inputs[0]))", "mul(dx, sin(inputs[0]))"),
            ("dot(dx, inputs[1]) if i == 0 else dot(inputs[0], dx)", "dot(dx, inputs[1])"),
            ("mul(dx, recip(inputs[0]))", "mul(dx, out)"),
            ('case "add"', 'case "add" | "step"'), ('case "add"', 'case "add" | "spread"'),
            ("-mul(dx, mul(out, out))", "..."),
        ],
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

    return of_function(
        my, "jvp",
        "Write `jvp(program, inputs, tangents)`: the outputs and their tangents; None stands for a zero tangent.",
        Check("returns the same as jax.jvp", fails), Check("a value that does not move has the tangent None", stays),
        Check("computes nothing for values that do not move", leaves_out),
        hints=(
            "It is `evaluate` with two dicts: one of values, one of tangents.",
            "`my.push(e.op, values, tangents, e.params)` returns the outputs and their tangents, for one equation.",
            "A constant has no tangent: `tangents.get(a)` is None for anything that is not in the dict.",
        ),
        mistakes=[
            ("[moved.get(a) for a in program.outputs]",
             "instantiate_zeros([moved.get(a) for a in program.outputs], program.outputs)"),
            ("[moved.get(a) for a in program.outputs]", "list(tangents[:1]) * len(program.outputs)"),
        ],
    )  # fmt: skip
