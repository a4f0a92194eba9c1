"""The second notebook's exercises: splitting and transposing."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxviz.teach.autodiff.grading import (
    DOTS,
    LINEAR,
    SAMPLES,
    A,
    B,
    each,
    functions,
    moving,
    of_function,
    reference,
    unlike,
    unlike_cotangents,
)
from jaxviz.teach.autodiff.workbook import Engine
from jaxviz.teach.exercise import Exercise
from jaxviz.teach.rule import Check


def _both(my: Engine, text: str) -> tuple[Any, int]:
    f, _, args = functions(my)[text]
    program, n = my.trace(f, *args), len(args)

    def moved(*xs: Any) -> list[Any]:
        outs, dots = my.jvp(program, xs[:n], xs[n:])
        return [*outs, *dots]

    return my.trace(moved, *args, *args), n


def of_split(my: Engine) -> Exercise:
    def fails(split: Any) -> str:
        for text in functions(my):
            both, n = _both(my, text)
            now, later = map(list, split(list(both.equations), both.inputs[n:]))
            if sorted(map(id, now + later)) != sorted(map(id, both.equations)):
                return (
                    f"Each equation of the JVP of {text} should be in one of the lists: there are "
                    f"{len(both.equations)} equations, but the lists have {len(now)} + {len(later)}."
                )
            if [id(e) for e in both.equations if e in now] != [id(e) for e in now]:
                return "Each list should be in the order of the program."
            waiting = set(both.inputs[n:])
            for e in both.equations:
                waits = not waiting.isdisjoint(e.inputs)
                if waits:
                    waiting.update(e.outputs)
                if waits and not any(e is x for x in later):
                    return (
                        f"In the JVP of {text}, `{e.op}` is in the first list, but it depends on an unknown "
                        "variable, directly or through another equation."
                    )
                if not waits and not any(e is x for x in now):
                    return (
                        f"In the JVP of {text}, `{e.op}` is in the second list, but it does not depend on an "
                        "unknown variable."
                    )
        return ""

    return of_function(
        my, "split",
        "Write `split(equations, unknown)`: two lists, the equations that can be computed now, and those that depend "
        "on an unknown variable.",
        Check("each equation is in the correct list", fails),
        hints=(
            "Keep a set of the variables that depend on `unknown`. It starts with `unknown`.",
            "If an input of an equation is in the set, its outputs are too.",
        ),
        mistakes=[("waiting.update(e.outputs)", "pass")],
        wrong=[lambda es, unknown: (es, []), lambda es, unknown: ([], es)],
    )  # fmt: skip


def of_transposed(my: Engine) -> Exercise:
    def problem(transposed: Any, op: str) -> str:
        inputs, params = SAMPLES[op]
        for i in LINEAR[op]:
            f = lambda x, i=i: reference(my, op, params)(*(x if j == i else y for j, y in enumerate(inputs)))
            ct = moving(jax.eval_shape(f, inputs[i]))
            operands = [None if j == i else y for j, y in enumerate(inputs)]
            cotangent = transposed(op, i, ct, operands, inputs[i].shape, params)
            if cotangent is ...:
                return DOTS
            (expected,) = jax.linear_transpose(f, inputs[i])(ct)
            if why := unlike(cotangent, expected, "jax.linear_transpose"):
                return f"For input {i} {why}"
        return ""

    return each(
        my, "transposed",
        "Write `transposed`: for each linear operation, the cotangent of input number `i`, given the cotangent of "
        "the result.",
        LINEAR, problem,
        hints=(
            "sum and spread are each other's transposes. `shape` is the shape of the input: it gives the number of "
            "copies.",
            "The transpose of a product with a known factor is a product with the same factor.",
            "y = x @ w: the cotangent of x is `ct @ swap(w)`, and the cotangent of w is `swap(x) @ ct`. Look at the "
            "shapes.",
        ),
        mistakes=[
            ("dot(ct, swap(inputs[1])) if i == 0 else dot(swap(inputs[0]), ct)", "dot(ct, swap(inputs[1 - i]))"),
            ('spread(ct, params["axis"], shape[params["axis"]])', "spread(ct, 0, shape[0])"),
            ('sum(ct, params["axis"])', "sum(ct, 0)"), ('case "add"', 'case "add" | "neg"'),
            ("bind(op, ct)[0]", 'bind(op, ct)[0] if op == "neg" else ...'),
        ],
    )  # fmt: skip


def of_transpose(my: Engine) -> Exercise:
    def cases() -> dict[str, tuple[Any, list[Any], list[Any], Any]]:
        w = B
        linear = my.trace(lambda x: [my.dot(x, w), my.sum(x, 0)], A)
        three = my.trace(lambda x: (lambda y: 2.0 * y + 3.0 * y + 4.0 * y)(5.0 * x), np.float32(1.0))
        mixed = my.trace(lambda k, x: my.mul(my.sin(k), x), np.float32(1.0), np.float32(1.0))
        cts = [np.ones((2, 2), np.float32), np.arange(3, dtype=np.float32)]
        return {
            "x → (x @ w, sum(x))": (linear, [None], cts, [cts[0] @ w.T + cts[1]]),
            "y = 5x, 2y + 3y + 4y": (three, [None], [np.float32(1.0)], [45.0]),
            "sin(k) · x, linear in x": (mixed, [np.float32(2.0), None], [np.float32(3.0)], [None, 3.0 * np.sin(2.0)]),
            "x → (x, x)": (
                my.trace(lambda x: [x, x], np.float32(1.0)), [None], [np.float32(2.0), np.float32(5.0)], [7.0]),
            "x → (2x, 3), and no cotangent for 2x": (
                my.trace(lambda x: [2.0 * x, np.float32(3.0)], np.float32(1.0)), [None], [None, np.float32(1.0)],
                [None]),
        }  # fmt: skip

    def fails(transpose: Any) -> str:
        for text, (program, inputs, cts, expected) in cases().items():
            if why := unlike_cotangents(transpose(program, inputs, cts), expected):
                return f"{text}: {why}"
        return ""

    def few(transpose: Any) -> str:
        program = cases()["y = 5x, 2y + 3y + 4y"][0]
        turned = my.trace(lambda ct: transpose(program, [None], [ct])[0], np.float32(1.0))
        n = len([e for e in turned.equations if e.op == "mul"])
        if n > 4:
            return (
                f"The transpose of 5x, 2y + 3y + 4y multiplies {n} times; if the parts of y's cotangent are added "
                "up first, 4 times."
            )
        return ""

    return of_function(
        my, "transpose",
        "Write `transpose(program, inputs, cts)`: from the last equation to the first; `inputs` has a value for each "
        "known input, and None for each linear input.",
        Check("returns the cotangents", fails), Check("reads each cotangent only when it is complete", few),
        hints=(
            "`my.split(program.equations, linear inputs)` returns the equations that can be computed first, and the "
            "linear equations.",
            "Keep a dict of cotangents. It starts with the cotangents of the outputs; if a variable already has one, "
            "add to it. Only linear variables have cotangents.",
            "Walk the linear equations in reverse: take the cotangents of an equation's outputs from the dict, and "
            "pass them to "
            "`my.pull(e.op, inputs, shapes, cts, e.params)`, where an input is None if it is linear.",
            "If no output of an equation has a cotangent, skip the equation.",
        ),
        mistakes=[("add(cotangent_of[v], ct) if v in cotangent_of else ct", "ct")],
        wrong=[lambda program, inputs, cts: [None] * len(inputs)],
    )  # fmt: skip
