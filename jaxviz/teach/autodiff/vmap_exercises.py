"""The third notebook's exercises: vmap."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.teach.autodiff.grading import (
    DOTS,
    POSITIVE,
    SAMPLES,
    each,
    functions,
    of_function,
    reference,
    unlike,
)
from jaxviz.teach.autodiff.workbook import Engine
from jaxviz.teach.exercise import Exercise
from jaxviz.teach.rule import Check


def of_batched(my: Engine) -> Exercise:
    def problem(batched: Any, op: str) -> str:
        inputs, params = SAMPLES[op]
        by_jax = reference(my, op, params)
        for flags in [(True,)] if len(inputs) == 1 else [(True, True), (True, False), (False, True)]:
            operands = [np.stack([x, x + 1, 2 * x]) if m else x for x, m in zip(inputs, flags, strict=True)]
            result = batched(op, operands, list(flags), 3, params)
            if result is ... or (isinstance(result, list) and any(x is ... for x in result)):
                return DOTS
            if not isinstance(result, (list, tuple)):
                return "It should return a list of results, as `my.bind` does."
            expected = jax.vmap(by_jax, tuple(0 if m else None for m in flags))(*operands)
            which = " and ".join(f"input {i}" for i, m in enumerate(flags) if m)
            if why := unlike(result[0], expected, "jax.vmap"):
                return f"With {which} mapped, {why}"
            program = my.trace(lambda *xs, flags=flags: batched(op, xs, list(flags), 3, params), *operands)
            recorded = program.outputs[0].shape
            if recorded != expected.shape:
                return (
                    f"With {which} mapped, the recorded equation has the shapes {recorded}: all inputs of an "
                    "operation must have the same shape."
                )
        return ""

    return each(
        my, "batched",
        "Write `batched`: each operation for all examples at once. The examples are along axis 0 of the mapped "
        "inputs and of the results.",
        SAMPLES, problem,
        hints=(
            "For most operations, every input only needs the examples along axis 0: use `my.spread(x, 0, size)` for an "
            "input that is not mapped.",
            "sum and spread take an axis. Where is that axis once the examples are along axis 0?",
        ),
        mistakes=[('op in ("sum", "spread")', "False"), ("x if m else spread(x, 0, size)", "x")],
    )  # fmt: skip


def of_vmap_program(my: Engine) -> Exercise:
    def fails(walk: Any) -> str:
        for text, (f, by_jax, args) in functions(my).items():
            flags = [i == 0 for i in range(len(args))]
            operands = [np.stack([x, x + 1, x + 2]) if m else x for x, m in zip(args, flags, strict=True)]
            outs, along = walk(my.trace(f, *args), operands, flags, 3)
            expected = jax.vmap(by_jax, tuple(0 if m else None for m in flags))(*operands)
            why = unlike(outs[0], expected, "jax.vmap") or ("" if along[0] else "the output should be mapped.")
            if why:
                return f"For {text}, with its first argument mapped, {why}"
        return ""

    def once(walk: Any) -> str:
        program = my.trace(lambda x, y: [my.sin(y) * x, my.sin(y), np.float32(2.0)], np.float32(1.0), np.float32(1.0))
        (product, sine, two), along = walk(program, [POSITIVE, np.float32(1.0)], [True, False], 3)
        if [bool(a) for a in along] != [True, False, False] or np.shape(sine) != () or np.shape(two) != ():
            return (
                "(x, y) → (sin(y) · x, sin(y), 2), x mapped: only the first result depends on the example. "
                f"Returned as mapped: {along}."
            )
        return "sin(y) · x is wrong if x is mapped." if unlike(product, np.sin(1.0) * POSITIVE, "NumPy") else ""

    def looks_up(walk: Any) -> str:
        program, before = my.trace(my.sin, np.float32(1.0)), dict(my.BATCHED_OF)
        my.BATCHED_OF["sin"] = lambda inputs, mapped, size, params: [my.cos(*inputs)]
        try:
            (result,), _ = walk(program, [POSITIVE], [True], 3)
        finally:
            my.BATCHED_OF.clear()
            my.BATCHED_OF.update(before)
        if unlike(result, np.cos(POSITIVE), "its rule"):
            return "An operation with a batching rule of its own is mapped without it: call `my.batch`."
        return ""

    return of_function(
        my, "vmap_program",
        "Write `vmap_program(program, inputs, mapped, size)`: the outputs for all examples, and for each whether it is "
        "mapped.",
        Check("returns the same as jax.vmap", fails),
        Check("computes only once what does not depend on the example", once),
        Check("uses the batching rule of an operation that has its own", looks_up),
        hints=(
            "It is `evaluate` with a second dict, which records for each variable whether it is mapped.",
            "If no input of an equation is mapped, call `my.bind`; its outputs are not mapped. Otherwise call "
            "`my.batch(e.op, values, flags, size, e.params)`; its outputs are mapped.",
        ),
        mistakes=[("any(maps)", "True"), ("batch(", "batched(")],
        wrong=[lambda program, inputs, mapped, size: (list(inputs), list(mapped))],
    )  # fmt: skip


_BRANCHES: dict[str, Any] = {
    "if p, (x, y) → (sin(x) · y, 3), else (x + y, y)": (
        lambda m, x, y: [m.sin(x) * y, np.float32(3.0)],
        lambda m, x, y: [x + y, y],
    ),
    "if p, (x, y) → (log(x), y), else (0 · x, y)": (
        lambda m, x, y: [m.log(x), y],
        lambda m, x, y: [0.0 * x, y],
    ),
}
_PS, _XS, _YS = (np.array(x, np.float32) for x in ([1.0, 0.0, 1.0], [2.0, 0.0, 0.5], [1.0, -2.0, 4.0]))


def of_cond_batched(my: Engine) -> Exercise:
    flags = [(True, True, True), (True, False, True), (False, True, True), (False, False, True), (True, False, False)]

    def by_jax(text: str, mapped: Any, operands: Any) -> Any:
        yes, no = (lambda x, y, f=f: [jnp.asarray(z, jnp.float32) for z in f(jnp, x, y)] for f in _BRANCHES[text])
        axes = tuple(0 if m else None for m in mapped)
        return jax.vmap(lambda p, x, y: jax.lax.cond(p > 0, yes, no, x, y), axes, axis_size=3)(*operands)

    def of(text: str, rule: Any, mapped: Any, operands: Any) -> Any:
        branches = tuple(my.trace(partial(f, my), np.float32(0), np.float32(0)) for f in _BRANCHES[text])
        return rule(operands, list(mapped), 3, {"branches": branches})

    def fails(cond_batched: Any) -> str:
        for text, mapped in itertools.product(_BRANCHES, flags):
            operands = [x if m else x[0] for m, x in zip(mapped, (_PS, _XS, _YS), strict=True)]
            which = ", ".join(name for name, m in zip(("p", "x", "y"), mapped, strict=True) if m)
            with np.errstate(all="ignore"):  # the branch that is not chosen takes a logarithm of 0
                results = of(text, cond_batched, mapped, operands)
                why = unlike(list(results), by_jax(text, mapped, operands), "jax.vmap")
            if why:
                return f"{text}, with {which} mapped: {why}"
        return ""

    def chooses(cond_batched: Any) -> str:
        program = my.trace(lambda p, xs: of(next(iter(_BRANCHES)), cond_batched, (False, True, False), [p, xs, 1.0]),
                           np.float32(1.0), _XS)  # fmt: skip
        if any(e.op == "sin" for e in program.equations) or all(e.op != "cond" for e in program.equations):
            return "With one predicate for all examples only one branch has to be computed: record a cond."
        return ""

    return of_function(
        my, "cond_batched",
        "Write `cond_batched(inputs, mapped, size, params)`: a cond for all examples. The first input is the "
        "predicate; all results must be mapped.",
        Check("returns the same as jax.vmap", fails),
        Check("computes only one branch if all examples have one predicate", chooses),
        hints=(
            "Which branch does an example need if each has its own predicate? Both branches have to be computed for "
            "all examples.",
            "`my.all_mapped(branch, operands, mapped[1:], size)` is a branch for all examples; `my.where(p, x, y)` "
            "chooses.",
            "If `mapped[0]` is false, the result is `my.cond(p, f, g, *operands)`, where f and g are the branches for "
            "all examples.",
        ),
        mistakes=[
            ("if not mapped[0]", "if False"), ("where(p, x, y)", "p * x + (1.0 - p) * y"),
            ("if not mapped[0]:", "p = p[0] if mapped[0] else p\n    if True:"),
            ("all_mapped(b, xs, mapped[1:], size)", "vmap_program(b, xs, mapped[1:], size)[0]"),
        ],
    )  # fmt: skip
