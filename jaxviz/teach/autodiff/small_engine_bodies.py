"""The second file of the small engine: operations that contain programs, which are called their bodies.

`workbook.engine` runs it after `small_engine.py`, in the same namespace. An operation that is added to the engine has
an implementation, and rules in four tables, for its shapes, tangents, cotangents and examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING or "bind" not in globals():  # in an engine, they are there
    from jaxviz.teach.autodiff.small_engine import (
        BATCHED_OF,
        IMPLEMENTATIONS,
        JVP_OF,
        SHAPES_OF,
        TRANSPOSE_OF,
        Const,
        Program,
        Tracer,
        Var,
        add,
        all_mapped,
        bind,
        evaluate,
        instantiate_zeros,
        jvp,
        shape,
        spread,
        trace,
        trace_nested,
        transpose,
        zeros,
    )


def body_of(f: Any, tree: Any, like: Any) -> tuple[Program, Any]:
    """The body of an operation, from a function of nested arguments; and the structure of its results."""
    body, results = trace_nested(f, tree, like)
    read = [*body.outputs, *(a for e in body.equations for a in e.inputs)]
    if any(isinstance(a, Const) and isinstance(a.value, Tracer) for a in read):
        raise ValueError("a body reads a value that is being traced outside of it: pass that as an argument")
    return body, results


def arrays(library: Any, outs: Any) -> tuple[Any, ...]:
    return tuple(library.asarray(y, np.float32) for y in outs)


def body_transpose(body: Program, inputs: Any, cts: Any) -> list[Any]:
    """The transpose of a body: for each input that is None an array, zeros if no cotangent arrives."""
    cotangents = transpose(body, inputs, cts)
    return [
        zeros(v) if x is None and ct is None else ct for v, x, ct in zip(body.inputs, inputs, cotangents, strict=True)
    ]


def complete(op: str, cts: Any, params: dict[str, Any]) -> list[Any]:
    """Zeros in place of the cotangents that are None."""
    return [np.zeros(s, np.float32) if ct is None else ct for s, ct in zip(SHAPES_OF[op]((), params), cts, strict=True)]


# --- 4. cond ----------------------------------------------------------------------------------------------------------


def _run_cond(library: Any, p: Any, *operands: Any, branches: Any) -> list[Any]:
    yes, no = (lambda *xs, b=b: arrays(library, evaluate(b, *xs)) for b in branches)
    return list(jax.lax.cond(p > 0, yes, no, *operands) if library is jnp else (yes if p > 0 else no)(*operands))


IMPLEMENTATIONS["cond"] = _run_cond
IMPLEMENTATIONS["where"] = lambda np, p, x, y: np.where(p > 0, x, y)


def cond(p: Any, on_true: Any, on_false: Any, *operands: Any) -> Any:
    """`on_true(*operands)` if the number p is positive, else `on_false(*operands)`; both may be nested."""
    if shape(p):
        raise ValueError(f"a cond has one predicate, a number; this one has the shape {shape(p)}")
    leaves, tree = jax.tree.flatten(operands)
    (yes, results), (no, others) = (body_of(f, tree, leaves) for f in (on_true, on_false))
    if results != others:
        raise ValueError(f"the branches of a cond return {results} and {others}")
    return results.unflatten(bind("cond", p, *leaves, branches=(yes, no)))


def where(p: Any, x: Any, y: Any) -> Any:
    """Elements of x where p is positive, else of y. If p has fewer axes, they are the first ones."""
    while len(shape(p)) < len(shape(x)):
        p = spread(p, len(shape(p)), shape(x)[len(shape(p))])
    return bind("where", p, x, y)[0]


def cond_jvp(inputs: Any, tangents: Any, params: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """A cond for the values, and one for the tangents, whose branches compute the values that they need again."""
    p, *operands = inputs

    def moved(branch: Program) -> Any:
        return lambda xs, dxs: instantiate_zeros(jvp(branch, xs, dxs)[1], branch.outputs)

    dots = instantiate_zeros(tangents[1:], operands)
    return bind("cond", *inputs, **params), cond(p, *map(moved, params["branches"]), operands, dots)


def cond_transpose(inputs: Any, shapes: Any, cts: Any, params: dict[str, Any]) -> list[Any]:
    """A cond whose branches are transposed."""
    p, *operands = inputs
    backward = [lambda xs, cts, b=b: body_transpose(b, xs, cts) for b in params["branches"]]
    return [None, *cond(p, *backward, operands, cts)]


def cond_batched(inputs: Any, mapped: Any, size: int, params: dict[str, Any]) -> list[Any]:
    """A cond for all examples, if they have one predicate; otherwise both branches, and a choice for each example."""
    p, *operands = inputs
    both = [lambda *xs, b=b: all_mapped(b, xs, mapped[1:], size) for b in params["branches"]]
    if not mapped[0]:
        return list(cond(p, *both, *operands))
    yes, no = (f(*operands) for f in both)
    return [where(p, x, y) for x, y in zip(yes, no, strict=True)]


def where_jvp(inputs: Any, tangents: Any, params: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    p, x, y = inputs
    dx, dy = tangents[1:]
    return [where(p, x, y)], [where(p, *instantiate_zeros((dx, dy), (x, y)))]


def where_transpose(inputs: Any, shapes: Any, cts: Any, params: dict[str, Any]) -> list[Any]:
    p, x, y = inputs
    (ct,) = cts
    return [
        None,
        None if x is not None else where(p, ct, zeros(ct)),
        None if y is not None else where(p, zeros(ct), ct),
    ]


SHAPES_OF["cond"] = lambda inputs, params: [v.shape for v in params["branches"][0].outputs]
JVP_OF |= {"cond": lambda *a: cond_jvp(*a), "where": where_jvp}
TRANSPOSE_OF |= {
    "cond": lambda inputs, shapes, cts, params: cond_transpose(inputs, shapes, complete("cond", cts, params), params),
    "where": where_transpose,
}
BATCHED_OF["cond"] = lambda *a: cond_batched(*a)


# --- 5. scan ----------------------------------------------------------------------------------------------------------


def _run_scan(
    library: Any, *inputs: Any, body: Program, n_const: int, n_carry: int, length: int, reverse: bool
) -> list[Any]:
    consts, carry, xs = inputs[:n_const], inputs[n_const : n_const + n_carry], inputs[n_const + n_carry :]

    def one(carry: Any, x: Any) -> Any:
        outs = arrays(library, evaluate(body, *consts, *carry, *x))
        return outs[:n_carry], outs[n_carry:]

    if library is jnp:
        carry, ys = jax.lax.scan(one, tuple(carry), tuple(xs), length=length, reverse=reverse)
        return [*carry, *ys]
    results = []
    for i in reversed(range(length)) if reverse else range(length):
        carry, y = one(carry, [x[i] for x in xs])
        results.append(y)
    return [*carry, *(np.stack(y) for y in zip(*(results[::-1] if reverse else results), strict=True))]


IMPLEMENTATIONS["scan"] = _run_scan


def bind_scan(
    body: Program, consts: Any, carry: Any, xs: Any, length: int, reverse: bool = False
) -> tuple[list[Any], list[Any]]:
    """A loop: the final carry, and the stacked ys. The body goes from (consts, carry, x) to (carry, y), each some."""
    params = {"body": body, "n_const": len(consts), "n_carry": len(carry), "length": length, "reverse": reverse}
    outs = bind("scan", *consts, *carry, *xs, **params)
    return outs[: len(carry)], outs[len(carry) :]


def loop(f: Any, consts: Any, carry: Any, xs: Any, length: int, reverse: bool = False) -> tuple[Any, Any]:
    """`f(consts, carry, x) -> (carry, y)` in a loop, which returns the last carry, and the ys of all iterations.

    Each of them may be nested: a list, of lists too, with None where there is no array.
    """
    consts_, carry_, xs_ = (jax.tree.leaves(x) for x in (consts, carry, xs))
    like = [*consts_, *carry_, *(Var(shape(x)[1:]) for x in xs_)]
    body, results = body_of(f, jax.tree.structure((consts, carry, xs)), like)
    new, ys = bind_scan(body, consts_, carry_, xs_, length, reverse)
    return tuple(results.unflatten([*new, *ys]))  # type: ignore[return-value]


def scan(f: Any, carry: Any, xs: Any, consts: Any = ()) -> tuple[Any, Any]:
    """`f(carry, x, *consts) -> (carry, y)`, over the first axis of xs; other inputs of f are passed in consts."""
    length = shape(jax.tree.leaves(xs)[0])[0]
    return loop(lambda consts, carry, x: f(carry, x, *consts), tuple(consts), carry, xs, length)


def parts(params: dict[str, Any], values: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """What belongs to the inputs of a scan, in three lists: for the constants, for the carry, and for the xs."""
    n, m = params["n_const"], params["n_const"] + params["n_carry"]
    return list(values[:n]), list(values[n:m]), list(values[m:])


def scan_jvp(inputs: Any, tangents: Any, params: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The loop, which also stacks the carry at the start of each iteration; and one over tangents, which reads it."""
    body, m, how = params["body"], params["n_carry"], (params["length"], params["reverse"])
    consts, carry, xs = parts(params, inputs)
    dconsts, dcarry, dxs = parts(params, instantiate_zeros(tangents, inputs))

    def values(consts: Any, carry: Any, x: Any) -> Any:
        outs = evaluate(body, *consts, *carry, *x)
        return outs[:m], (outs[m:], carry)

    def moved(consts: Any, dcarry: Any, slices: Any) -> Any:
        (consts, dconsts), (before, x, dx) = consts, slices
        outs, dots = jvp(body, [*consts, *before, *x], [*dconsts, *dcarry, *dx])
        dots = instantiate_zeros(dots, outs)
        return dots[:m], dots[m:]

    carry, (ys, before) = loop(values, consts, carry, xs, *how)
    dcarry, dys = loop(moved, (consts, dconsts), dcarry, (before, xs, dxs), *how)
    return [*carry, *ys], [*dcarry, *dys]


def scan_transpose(inputs: Any, shapes: Any, cts: Any, params: dict[str, Any]) -> list[Any]:
    """A loop in reverse. Its carry is the cotangent of the carry, and the sums of the cotangents of the constants."""
    body, m, how = params["body"], params["n_carry"], (params["length"], not params["reverse"])
    consts, carry, xs = parts(params, inputs)
    sums = [np.zeros(s, np.float32) if x is None else None for x, s in zip(consts, shapes, strict=False)]

    def backward(consts: Any, carried: Any, slices: Any) -> Any:
        (sums, ct_carry), (x, ct_y) = carried, slices
        cotangents = body_transpose(body, [*consts, *(None for _ in carry), *x], [*ct_carry, *ct_y])
        ct_consts, ct_carry, ct_x = parts(params, cotangents)
        sums = [None if ct is None else add(s, ct) for s, ct in zip(sums, ct_consts, strict=True)]
        return (sums, ct_carry), ct_x

    (sums, ct_carry), ct_xs = loop(backward, consts, (sums, cts[:m]), (xs, cts[m:]), *how)
    return [ct if x is None else None for x, ct in zip(inputs, [*sums, *ct_carry, *ct_xs], strict=True)]


def exchange(x: Any, axis: int = 0) -> Any:
    """Exchanges an axis with the next one."""
    return bind("exchange", x, axis=axis)[0]


def scan_batched(inputs: Any, mapped: Any, size: int, params: dict[str, Any]) -> list[Any]:
    """A loop over all examples at once: along axis 0 in an iteration, behind the iterations where these are stacked."""
    body, m, (is_const, is_carry, is_x) = params["body"], params["n_carry"], parts(params, mapped)
    consts, carry, xs = parts(params, inputs)
    flags = [*is_const, *(True for _ in carry), *is_x]

    def at_once(consts: Any, carry: Any, x: Any) -> Any:
        outs = all_mapped(body, [*consts, *carry, *x], flags, size)
        return outs[:m], outs[m:]

    carry = [x if is_mapped else spread(x, 0, size) for x, is_mapped in zip(carry, is_carry, strict=True)]
    xs = [exchange(x) if is_mapped else x for x, is_mapped in zip(xs, is_x, strict=True)]
    carry, ys = loop(at_once, consts, carry, xs, params["length"], params["reverse"])
    return [*carry, *map(exchange, ys)]


def _shapes_of_scan(inputs: Any, params: dict[str, Any]) -> list[tuple[int, ...]]:
    n, shapes = params["n_carry"], [v.shape for v in params["body"].outputs]
    return [*shapes[:n], *((params["length"], *s) for s in shapes[n:])]


def _shapes_exchanged(inputs: Any, params: dict[str, Any]) -> list[tuple[int, ...]]:
    i, (*axes,) = params["axis"], shape(inputs[0])
    return [(*axes[:i], axes[i + 1], axes[i], *axes[i + 2 :])]


IMPLEMENTATIONS["exchange"] = lambda np, x, axis: np.swapaxes(x, axis, axis + 1)
SHAPES_OF |= {"scan": _shapes_of_scan, "exchange": _shapes_exchanged}
JVP_OF |= {
    "scan": lambda *a: scan_jvp(*a),
    "exchange": lambda xs, dots, ps: ([exchange(*xs, **ps)], [exchange(*dots, **ps)]),
}
TRANSPOSE_OF |= {
    "scan": lambda inputs, shapes, cts, params: scan_transpose(inputs, shapes, complete("scan", cts, params), params),
    "exchange": lambda inputs, shapes, cts, params: [exchange(*cts, **params)],
}
BATCHED_OF |= {
    "scan": lambda *a: scan_batched(*a),
    "exchange": lambda xs, mapped, size, params: [exchange(xs[0], params["axis"] + 1)],
}


# --- 6. checkpoint ----------------------------------------------------------------------------------------------------


IMPLEMENTATIONS["checkpoint"] = lambda library, *inputs, body: list(evaluate(body, *inputs))


def checkpoint(f: Any) -> Any:
    """f, whose values are not saved for the backward pass but recomputed there; arguments and result may be nested."""

    def checkpointed(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        body, results = body_of(f, tree, leaves)
        return results.unflatten(bind("checkpoint", *leaves, body=body))

    return checkpointed


def checkpoint_jvp(inputs: Any, tangents: Any, params: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Two operations: the values, and the tangents, which recompute the values from the inputs."""
    body = params["body"]

    def moved(inputs: Any, dots: Any) -> list[Any]:
        outs, out_dots = jvp(body, inputs, dots)
        return instantiate_zeros(out_dots, outs)

    outs = bind("checkpoint", *inputs, body=body)
    return outs, checkpoint(moved)(inputs, instantiate_zeros(tangents, inputs))


SHAPES_OF["checkpoint"] = lambda inputs, params: [v.shape for v in params["body"].outputs]
JVP_OF["checkpoint"] = lambda *a: checkpoint_jvp(*a)
# `transpose` computes known values before it goes backward: here that is the recomputation.
TRANSPOSE_OF["checkpoint"] = lambda inputs, shapes, cts, params: transpose(params["body"], inputs, cts)
BATCHED_OF["checkpoint"] = lambda inputs, mapped, size, params: bind(
    "checkpoint", *inputs, body=trace(lambda *xs: all_mapped(params["body"], xs, mapped, size), *inputs)
)
