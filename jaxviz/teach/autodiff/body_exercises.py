"""The fourth notebook's exercises: loops and checkpoints."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.teach.autodiff.grading import POSITIVE, moving, of_function, unlike, unlike_cotangents
from jaxviz.teach.autodiff.workbook import Engine
from jaxviz.teach.exercise import Exercise
from jaxviz.teach.rule import Check


def _scanned(sin: Any, total: Any, scan: Any) -> Any:
    """A loop as a function of a constant, the first carry and the xs, of the engine's operations or of JAX's."""

    def body(c: Any, x: Any, k: Any) -> Any:
        n = sin(c * k) + x
        return n, n * n

    def scanned(k: Any, c: Any, xs: Any) -> Any:
        last, ys = scan(body, c, xs, (k,))
        return total(ys) + last

    return scanned


_by_jax = _scanned(jnp.sin, jnp.sum, lambda f, c, xs, consts: jax.lax.scan(lambda c, x: f(c, x, *consts), c, xs))
_AT = (np.float32(1.3), np.float32(0.4), np.array([0.1, -0.5, 0.7, 0.2], np.float32))


def of_scan_jvp(my: Engine) -> Exercise:
    scanned = _scanned(my.sin, my.total, my.scan)

    def fails(scan_jvp: Any) -> str:
        with my.trying("scan_jvp", scan_jvp):
            program = my.trace(scanned, *_AT)
            for i, name in enumerate(("the constant k", "the first carry", "the xs")):
                dots = [np.ones_like(x) if j == i else None for j, x in enumerate(_AT)]
                outs, moved = my.jvp(program, _AT, dots)
                value, tangent = jax.jvp(_by_jax, _AT, tuple(my.instantiate_zeros(dots, _AT)))
                if why := unlike(outs, [value], "JAX"):
                    return f"As the result of the loop {why}"
                if why := unlike(my.instantiate_zeros(moved, outs), [tangent], "jax.jvp"):
                    return f"{name.capitalize()} moves: as the tangent {why}"
        return ""

    def separates(scan_jvp: Any) -> str:
        with my.trying("scan_jvp", scan_jvp):
            forward, *_ = my.linearize_program(my.trace(lambda k: scanned(k, *_AT[1:]), _AT[0]))
        if all(e.op != "scan" for e in forward.equations):
            return (
                "No part of the loop can be computed before the tangents are known: its values and its tangents "
                "must be two loops."
            )
        with my.trying("scan_jvp", scan_jvp):
            gradient = my.grad(lambda k: scanned(k, *_AT[1:]))(_AT[0])
        why = unlike(gradient, jax.grad(_by_jax)(*_AT), "JAX")
        return f"With `transpose`, as the gradient with respect to k, {why}" if why else ""

    def one_loop(inputs: Any, tangents: Any, params: Any) -> Any:
        body, m, how = params["body"], params["n_carry"], (params["length"], params["reverse"])
        both = zip(my.parts(params, inputs), my.parts(params, my.instantiate_zeros(tangents, inputs)), strict=True)

        def moved(consts: Any, carry: Any, x: Any) -> Any:
            values, dots = ([*c, *k, *y] for c, k, y in zip(consts, carry, x, strict=True))
            outs, out_dots = my.jvp(body, values, dots)
            out_dots = my.instantiate_zeros(out_dots, outs)
            return (outs[:m], out_dots[:m]), (outs[m:], out_dots[m:])

        (carry, dcarry), (ys, dys) = my.loop(moved, *both, *how)
        return [*carry, *ys], [*dcarry, *dys]

    return of_function(
        my, "scan_jvp",
        "Write `scan_jvp(inputs, tangents, params)`: the outputs of a loop and their tangents, computed by two loops.",
        Check("returns the same as jax.jvp", fails),
        Check("the values have their own loop, and the tangents can be transposed", separates),
        hints=(
            "First loop: `body`, which also returns the carry at the start of each iteration, as an additional y.",
            "Second loop: its carry is the tangent of the carry. It reads those stacked carries, the xs and the dxs, "
            "and calls `my.jvp(body, …)`.",
            "`my.loop(values, consts, carry, xs, …)` is the first loop. The consts of the second are the pair "
            "(consts, dconsts), its carry is dcarry, and its xs are (before, xs, dxs).",
        ),
        mistakes=[("[*dcarry, *dys]", "[zeros(x) for x in (*carry, *ys)]")], wrong=[one_loop],
    )  # fmt: skip


def of_body_transpose(my: Engine) -> Exercise:
    one, two, three = np.float32(1), np.float32(2), np.float32(3)

    def cases() -> dict[str, tuple[Any, list[Any], list[Any], list[Any]]]:
        """Bodies, with inputs, cotangents of the outputs, and the correct cotangents of the inputs."""
        row = np.array([3.0, -1.0], np.float32)
        return {
            "(k, c, x) → (k · c + x, x), linear in c and x":
                (my.trace(lambda k, c, x: [k * c + x, x], one, one, one), [two, None, None], [three, one],
                 [None, 6.0, 4.0]),
            "(c, x) → (2c, 5), linear in both, where x has two elements":
                (my.trace(lambda c, x: [2.0 * c, np.float32(5)], one, row), [None, None], [three, one],
                 [6.0, np.zeros(2)]),
            "(x, w) → (x @ w), linear in x":
                (my.trace(lambda x, w: [x @ w], row[None], np.ones((2, 2))), [None, np.diag(row)], [row[None]],
                 [row[None] ** 2, None]),
        }  # fmt: skip

    def fails(body_transpose: Any) -> str:
        for text, (body, inputs, cts, expected) in cases().items():
            if why := unlike_cotangents(body_transpose(body, inputs, cts), expected):
                return f"{text}: {why}"
        return ""

    return of_function(
        my, "body_transpose",
        "Write `body_transpose(body, inputs, cts)`: one iteration backwards. For each input that is None it returns an "
        "array, its cotangent; for the others None.",
        Check("returns an array for each linear input", fails),
        hints=(
            "Your `my.transpose(body, inputs, cts)` does almost all of it. What does it return for an input that no "
            "output depends on?",
            "`my.zeros(v)` for the variable `v` of an input, from `body.inputs`, if its cotangent is None and the "
            "input is None too.",
        ),
        mistakes=[("zeros(v) if", "np.float32(0) if"), ("x is None and ct is None", "ct is None")],
        wrong=[
            my.transpose,
            lambda body, inputs, cts: [ct for ct in my.original("body_transpose")(body, inputs, cts) if ct is not None],
        ],
    )  # fmt: skip


_W, _C = np.array([[0.5, 1.0], [-1.0, 0.3]], np.float32), np.array([[1.0, 2.0]], np.float32)
_XS = np.array([[[1.0, 0.5], [0.0, 1.0]], [[0.0, 1.0], [-1.0, 0.0]], [[2.0, 0.0], [1.0, 1.0]]], np.float32)
_US, _B = np.array([[[1.0, 0.0]], [[0.5, -1.0]], [[0.0, 3.0]]], np.float32), np.array([[0.7, -0.2]], np.float32)

_STEPS: dict[str, tuple[Any, list[Any], list[bool], bool]] = {
    "step 1: the cotangent of the carry goes through the loop in reverse":
        (lambda w, c, x: (c @ x @ w, []), [_W, _C, _XS], [False, True, False], False),
    "step 2: the cotangent of a constant is the sum over all iterations":
        (lambda w, b, c, x: (c @ x + b @ w, []), [_W, _B, _C, _XS], [False, True, True, False], False),
    "step 3: each iteration takes the cotangent of its y":
        (lambda w, b, c, x: (c @ x + b, [c @ w]), [_W, _B, _C, _XS], [False, True, True, False], False),
    "step 4: each iteration returns the cotangent of its x":
        (lambda w, b, c, x, u: (c @ x + b + u, [c @ w, u]), [_W, _B, _C, _XS, _US], [False, True, True, False, True],
         False),
    "step 5: so does a loop that runs from the last x to the first":
        (lambda w, b, c, x, u: (c @ x + b + u, [c @ w, u]), [_W, _B, _C, _XS, _US], [False, True, True, False, True],
         True),
}  # fmt: skip
"""A loop for each step: its body, from constants, a carry and slices to the carry and ys; the inputs; where it is
linear; and whether it runs in reverse."""


def of_scan_transpose(my: Engine) -> Exercise:
    def loop(step: str) -> tuple[dict[str, Any], list[Any], list[Any], list[Any]]:
        """The params of a step's loop, the inputs, cotangents of the outputs, and the correct cotangents."""
        f, values, is_linear, reverse = _STEPS[step]
        n = next(i for i, x in enumerate(values) if x is _C)
        like = [*values[: n + 1], *(x[0] for x in values[n + 1 :])]
        body = my.trace(lambda *xs: (lambda new, ys: [new, *ys])(*f(*xs)), *like)
        params = {"body": body, "n_const": n, "n_carry": 1, "length": len(_XS), "reverse": reverse}

        def by_jax(*linear: Any) -> Any:
            it = iter(linear)
            inputs = [next(it) if lin else x for x, lin in zip(values, is_linear, strict=True)]
            last, ys = jax.lax.scan(
                lambda c, xs: f(*inputs[:n], c, *xs), inputs[n], tuple(inputs[n + 1 :]), reverse=reverse)  # fmt: skip
            return [last, *ys]

        linear = [x for x, lin in zip(values, is_linear, strict=True) if lin]
        cts = [moving(x) for x in jax.eval_shape(by_jax, *linear)]
        found = iter(jax.linear_transpose(by_jax, *linear)(cts))
        inputs = [None if lin else x for x, lin in zip(values, is_linear, strict=True)]
        return params, inputs, cts, [next(found) if lin else None for lin in is_linear]

    def fails(scan_transpose: Any, step: str) -> str:
        params, inputs, cts, expected = loop(step)
        shapes = [x.shape for x in _STEPS[step][1]]
        return unlike_cotangents(scan_transpose(inputs, shapes, cts, params), expected)

    def unrolls(scan_transpose: Any) -> str:
        *_, step = _STEPS
        params, inputs, cts, _ = loop(step)
        shapes = [x.shape for x in _STEPS[step][1]]

        def turned(*cts: Any) -> Any:
            return [ct for ct in scan_transpose(inputs, shapes, list(cts), params) if ct is not None]

        n = len([e for e in my.trace(turned, *cts).equations if e.op == "scan"])
        if n != 1:
            return f"The transpose should be one loop, with any number of iterations; it records {n} loops."
        inputs[params["n_const"]] = np.zeros_like(_C)
        if scan_transpose(inputs, shapes, cts, params)[params["n_const"]] is not None:
            return "If the carry starts with zeros that are known, its input has a value: return None for it."
        return ""

    return of_function(
        my, "scan_transpose",
        "Write `scan_transpose(inputs, shapes, cts, params)`, in steps: a cotangent for each input of a loop that is "
        "None, and None for the others. `cts` are arrays: of the last carry, then of the stacked ys.",
        *(Check(step, partial(fails, step=step)) for step in _STEPS),
        Check("it is one loop, and returns None for each known input", unrolls),
        hints=(
            "The last iteration is the first whose cotangents are known. In which direction does this loop run, and "
            "what does an iteration pass on to the one before it?",
            "Step 1: `backward` calls `my.body_transpose(body, [*consts, None, …, *x], ct_carry)`, with a None for "
            "each carry, and returns the cotangents of the carry as its carry. The known constants and xs are the "
            "loop's own, and `my.loop` leaves each None in its place.",
            "Step 2: every iteration reads the constant. Carry `sums` too: zeros at first, where a constant is None; "
            "each iteration adds its part.",
            "Steps 3 and 4: what was stacked is read in slices, and what was read in slices is stacked: the cotangents "
            "of the ys are xs of this loop, and the cotangents of the xs are its ys.",
            "`my.loop(backward, consts, (sums, ct_carry), (xs, ct_ys), params[\"length\"], not params[\"reverse\"])` "
            "returns `(sums, ct_carry), ct_xs`.",
        ),
        mistakes=[
            ('not params["reverse"]', 'params["reverse"]'), ('not params["reverse"]', "True"),
            ("return (sums, ct_carry), ct_x", "return (ct_consts, ct_carry), ct_x"),
            ("(xs, cts[m:])", "(xs, [zeros(ct) for ct in cts[m:]])"),
            ("*ct_xs]", "*(None if ct is None else ct[::-1] for ct in ct_xs)]"),
            ("[ct if x is None else None for", "[ct for"),
            ("[*sums, *ct_carry, *ct_xs]", "[*(None for _ in sums), *ct_carry, *(None for _ in ct_xs)]"),
        ],
    )  # fmt: skip


def of_checkpoint_jvp(my: Engine) -> Exercise:
    f, g = (lambda x, m=m: m.sin(m.exp(m.sin(x))) for m in (my, jnp))

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

    return of_function(
        my, "checkpoint_jvp",
        "Write `checkpoint_jvp(inputs, tangents, params)`: the outputs and their tangents, such that only the inputs "
        "are saved.",
        Check("returns the correct value, tangent and gradient", fails), Check("only the inputs are saved", keeps),
        hints=(
            "`split` puts the equations that depend on a tangent into the second half. Which equation must be one of "
            "them?",
            'Two operations: `my.bind("checkpoint", *inputs, body=body)`, and a second checkpoint, of a function of '
            "the inputs and the tangents: `my.checkpoint(moved)(inputs, dots)`.",
            "`moved(inputs, dots)` calls `my.jvp(body, inputs, dots)`, and returns only the tangents, with zeros in "
            "place of None.",
        ),
        mistakes=[("checkpoint(moved)(inputs, instantiate_zeros(tangents, inputs))", "[zeros(o) for o in outs]")],
        wrong=[lambda inputs, tangents, params: my.jvp(params["body"], inputs, tangents)],
    )  # fmt: skip
