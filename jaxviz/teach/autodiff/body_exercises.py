"""The exercises of the last two notebooks: vmap, loops and checkpoints."""

from __future__ import annotations

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
    reference,
    unlike,
)
from jaxviz.teach.autodiff.workbook import Engine
from jaxviz.teach.exercise import Exercise
from jaxviz.teach.rule import Check, rule


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

    def forgets_axis(op: str, inputs: Any, mapped: Any, size: int, params: Any) -> Any:
        return my.bind(op, *(x if m else my.spread(x, 0, size) for x, m in zip(inputs, mapped, strict=True)), **params)

    def no_spread(op: str, inputs: Any, mapped: Any, size: int, params: Any) -> Any:
        return my.original("batched")(op, inputs, [True] * len(inputs), size, params)

    return each(
        my, "Write `batched`: each operation for all examples at once. The examples are along axis 0 of the mapped "
            "inputs and of the results.",
        SAMPLES, problem, "batched",
        hints=(
            "For most operations, every input only needs the examples along axis 0: use `my.spread(x, 0, size)` for an "
            "input that is not mapped.",
            "sum and spread take an axis. Where is that axis once the examples are along axis 0?",
        ),
        wrong=(forgets_axis, no_spread),
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

    def all_mapped(program: Any, inputs: Any, mapped: Any, size: int) -> Any:
        full = [x if m else my.spread(x, 0, size) for x, m in zip(inputs, mapped, strict=True)]
        return my.vmap_program(program, full, [True] * len(full), size)

    return rule(
        "Write `vmap_program(program, inputs, mapped, size)`: the outputs for all examples, and for each whether it is "
        "mapped.",
        Check("returns the same as jax.vmap", fails),
        Check("computes only once what does not depend on the example", once),
        hints=(
            "It is `evaluate` with a second dict, which records for each variable whether it is mapped.",
            "If no input of an equation is mapped, call `my.bind`; its outputs are not mapped. Otherwise call "
            "`my.batched`; its outputs are mapped.",
        ),
        example=my.original("vmap_program"),
        wrong=(all_mapped, lambda program, inputs, mapped, size: (list(inputs), list(mapped))),
    )  # fmt: skip


def _scanned(my: Engine, k: Any, c: Any, xs: Any) -> Any:
    last, ys = my.scan(lambda c, x, k: (lambda n: (n, n * n))(my.sin(c * k) + x), c, xs, (k,))
    return my.add(my.total(ys), last)


def _scanned_by_jax(k: Any, c: Any, xs: Any) -> Any:
    def body(c: Any, x: Any) -> Any:
        n = jnp.sin(c * k) + x
        return n, n * n

    last, ys = jax.lax.scan(body, c, xs)
    return jnp.sum(ys) + last


_AT = (np.float32(1.3), np.float32(0.4), np.array([0.1, -0.5, 0.7, 0.2], np.float32))


def of_scan_jvp(my: Engine) -> Exercise:
    def fails(scan_jvp: Any) -> str:
        with my.trying("scan_jvp", scan_jvp):
            program = my.trace(lambda *a: _scanned(my, *a), *_AT)
            for i, name in enumerate(("the constant k", "the first carry", "the xs")):
                dots = [np.ones_like(x) if j == i else None for j, x in enumerate(_AT)]
                outs, moved = my.jvp(program, _AT, dots)
                value, tangent = jax.jvp(_scanned_by_jax, _AT, tuple(my.instantiate_zeros(dots, _AT)))
                if why := unlike(outs, [value], "JAX"):
                    return f"As the result of the loop {why}"
                if why := unlike(my.instantiate_zeros(moved, outs), [tangent], "jax.jvp"):
                    return f"{name.capitalize()} moves: as the tangent {why}"
        return ""

    def separates(scan_jvp: Any) -> str:
        with my.trying("scan_jvp", scan_jvp):
            gradient = my.grad(lambda k: _scanned(my, k, *_AT[1:]))(_AT[0])
            forward, *_ = my.linearize_program(my.trace(lambda k: _scanned(my, k, *_AT[1:]), _AT[0]))
        if all(e.op != "scan" for e in forward.equations):
            return (
                "No part of the loop can be computed before the tangents are known: its values and its tangents "
                "must be two loops."
            )
        why = unlike(gradient, jax.grad(_scanned_by_jax)(*_AT), "JAX")
        return f"With `transpose`, as the gradient with respect to k, {why}" if why else ""

    def one_loop(inputs: Any, tangents: Any, params: Any) -> Any:
        body, n, m = params["body"], params["n_const"], params["n_carry"]
        dots = my.instantiate_zeros(tangents, inputs)
        c, k, x = body.inputs[:n], body.inputs[n : n + m], body.inputs[n + m :]

        def both(*args: Any) -> Any:
            p, q, r = len(c), len(k), len(x)
            values = [*args[:p], *args[2 * p :][:q], *args[2 * p + 2 * q :][:r]]
            moved = [*args[p:][:p], *args[2 * p + q :][:q], *args[2 * p + 2 * q + r :]]
            outs, dots = my.jvp(body, values, moved)
            dots = my.instantiate_zeros(dots, outs)
            return [*outs[:m], *dots[:m], *outs[m:], *dots[m:]]

        carry, ys = my.bind_scan(
            my.trace(both, *c, *c, *k, *k, *x, *x), [*inputs[:n], *dots[:n]], [*inputs[n : n + m], *dots[n : n + m]],
            [*inputs[n + m :], *dots[n + m :]], params["length"], params["reverse"],
        )  # fmt: skip
        half = len(ys) // 2
        return [*carry[:m], *ys[:half]], [*carry[m:], *ys[half:]]

    def nothing_moves(inputs: Any, tangents: Any, params: Any) -> Any:
        outs = my.bind("scan", *inputs, **params)
        return outs, [my.zeros(o) for o in outs]

    return rule(
        "Write `scan_jvp(inputs, tangents, params)`: the outputs of a loop and their tangents, computed by two loops.",
        Check("returns the same as jax.jvp", fails),
        Check("the values have their own loop, and the tangents can be transposed", separates),
        hints=(
            "First loop: `body`, which also returns the carry at the start of each iteration, as an additional y.",
            "Second loop: its carry is the tangent of the carry. It reads those stacked carries, the xs and the dxs, "
            "and calls `my.jvp(body, …)`.",
            "Replace `None` with zeros first: `my.zeros(x)`. `my.bind_scan(body, consts, carry, xs, length, reverse)` "
            "returns (carry, "
            "ys); `my.trace(f, *like)` turns a function into a body, and `like` may be Vars.",
        ),
        example=my.original("scan_jvp"), wrong=(one_loop, nothing_moves),
    )  # fmt: skip


def of_checkpoint_jvp(my: Engine) -> Exercise:
    f = lambda x: my.sin(my.exp(my.sin(x)))
    g = lambda x: jnp.sin(jnp.exp(jnp.sin(x)))

    def fails(checkpoint_jvp: Any) -> str:
        with my.trying("checkpoint_jvp", checkpoint_jvp):
            outs, moved = my.jvp(my.trace(my.checkpoint(f), POSITIVE), [POSITIVE], [np.ones_like(POSITIVE)])
            gradient = my.grad(lambda x: my.total(my.checkpoint(f)(x)))(POSITIVE)
        expected = jax.grad(lambda x: jnp.sum(g(x)))(POSITIVE)
        if why := unlike(outs, [g(POSITIVE)], "the function without a checkpoint"):
            return f"As the value {why}"
        if why := unlike(my.instantiate_zeros(moved, outs), [expected], "jax.jvp"):
            return f"As the tangent along ones {why}"
        why = unlike(gradient, expected, "JAX")
        return f"As the gradient {why}" if why else ""

    def keeps(checkpoint_jvp: Any) -> str:
        with my.trying("checkpoint_jvp", checkpoint_jvp):
            _, linear, _ = my.linearize_program(my.trace(my.checkpoint(f), POSITIVE))
        n = len(linear.inputs) - 1
        if n > 1:
            return (
                f"{n} arrays are saved for the backward pass; the input alone is enough, since everything else can "
                "be recomputed."
            )
        return ""

    def as_without(inputs: Any, tangents: Any, params: Any) -> Any:
        return my.jvp(params["body"], inputs, tangents)

    def no_tangent(inputs: Any, tangents: Any, params: Any) -> Any:
        outs = my.bind("checkpoint", *inputs, **params)
        return outs, [my.zeros(o) for o in outs]

    return rule(
        "Write `checkpoint_jvp(inputs, tangents, params)`: the outputs and their tangents, such that only the inputs "
        "are saved.",
        Check("returns the correct value, tangent and gradient", fails), Check("only the inputs are saved", keeps),
        hints=(
            "`split` puts the equations that depend on a tangent into the second half. Which equation must be one of "
            "them?",
            'Two operations: `my.bind("checkpoint", *inputs, body=body)`, and a second checkpoint whose body takes the '
            'inputs and the tangents.',
            "The second body is `my.trace` of a function that calls `my.jvp(body, …)` and returns only the tangents.",
        ),
        example=my.original("checkpoint_jvp"), wrong=(as_without, no_tangent),
    )  # fmt: skip
