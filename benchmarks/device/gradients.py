"""Gradients and residuals of forty programs, in each precision, beside JAX's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import jaxviz
from benchmarks.device.device import distance, out_of_time, same_bits, size
from benchmarks.device.rows import Row

PROGRAMS = """
    mlp layer_norm attention convolution cross_entropy embedding gelu activations dropout with_a_key no_gradient
    integers complex_numbers nested_jit solve slices reductions updates reshapes special_functions powers clipped
    scan_rnn scan_reverse scan_with_loop_invariants scan_in_scan associative cumulative cond_branches_differ
    cond_in_scan switch_of_four remat remat_dots_saveable remat_in_scan custom_jvp_in_scan custom_vjp custom_vjp_in_scan
    linear_solve conjugate_gradients everything_at_once
""".split()
"""Forty programs of the table on which every transform is compared with JAX's on the CPU."""

PRECISIONS = {
    "float32, TF32": (jnp.float32, "tensorfloat32"),
    "float32": (jnp.float32, "highest"),
    "bfloat16": (jnp.bfloat16, None),
    "float16": (jnp.float16, None),
}
"""By name, the type of the arguments and the precision of products of matrices."""


def cases() -> list[Any]:
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    import nested_programs  # noqa: F401  enters its programs into the table
    import programs

    table = {c.name: c for c in programs.CASES}
    return [table[name] for name in PROGRAMS][:: size(8, 1)]


def in_precision(args: Any, dtype: Any) -> Any:
    """The arguments with their real numbers in another type."""

    def converted(x: Any) -> Any:
        if isinstance(x, float):
            return jnp.asarray(x, dtype)
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating):
            return x.astype(dtype)
        return x

    return jax.tree.map(converted, args)


def gradient(vjp: Callable[..., Any], f: Callable[..., Any]) -> Callable[..., Any]:
    """The results of f, and the cotangents of its inexact arguments for cotangents of one."""

    def found(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        active = [jnp.issubdtype(jnp.result_type(x), jnp.inexact) for x in leaves]

        def of_active(*xs: Any) -> Any:
            given = iter(xs)
            return f(*tree.unflatten([next(given) if a else x for a, x in zip(active, leaves, strict=True)]))

        results, pull = vjp(of_active, *(x for a, x in zip(active, leaves, strict=True) if a))
        return results, pull(jax.tree.map(seed, results))

    return found


def seed(x: Any) -> Any:
    """The cotangent of a result: one, or none for an integer."""
    inexact = jnp.issubdtype(jnp.result_type(x), jnp.inexact)
    return jnp.ones_like(x) if inexact else jnp.zeros(jnp.shape(x), jax.dtypes.float0)


def under_jit(case: Any, dtype: Any) -> dict[str, Any]:
    """One program: whether its compiled gradient and its residuals are JAX's."""
    args = in_precision(case.args, dtype)
    theirs, ours = gradient(jax.vjp, case.fun), gradient(jaxviz.vjp, case.fun)
    try:
        expected = jax.jit(theirs)(*args)
    except Exception as error:  # JAX has no such operation in this type
        return {"case": case.name, "refused": str(error).splitlines()[0][:120]}
    found = jax.jit(ours)(*args)
    same = same_bits(found, expected)
    check = jaxviz.derive(case.fun, *args, argnums=None).check()
    return {
        "case": case.name, "same": same, "far": distance(found, expected),
        # Compiled anew, XLA may choose other kernels, and some add up in any order.
        "repeats": same or same_bits(jax.jit(lambda *xs: theirs(*xs))(*args), expected),
        "check": check.agrees, "check text": str(check),
    }  # fmt: skip


def op_by_op(case: Any, dtype: Any) -> dict[str, Any]:
    """One program, run op by op: how far its gradient is from JAX's, and JAX's from the compiled one."""
    args = in_precision(case.args, dtype)
    theirs, ours = gradient(jax.vjp, case.fun), gradient(jaxviz.vjp, case.fun)
    expected, found = theirs(*args), ours(*args)
    return {
        "case": case.name, "same": same_bits(found, expected), "far": distance(found, expected),
        "of jit": distance(jax.jit(theirs)(*args), expected), "ours of jit": distance(jax.jit(ours)(*args), found),
    }  # fmt: skip


def gradients(precision: str) -> Iterator[Row]:
    dtype, products = PRECISIONS[precision]
    with jax.default_matmul_precision(products):
        found: list[dict[str, Any]] = []
        yield from _of_each(under_jit, cases(), dtype, found, f"gradient in {precision}")
        ran = [r for r in found if "refused" not in r]
        yield from _compiled_rows(precision, ran)
        refused = [r for r in found if "refused" in r]
        if refused:
            yield Row(
                precision, "programs that JAX does not run in this type", "", str(len(refused)),
                note=", ".join(r["case"] for r in refused), figures={"programs": refused},
            )  # fmt: skip
        found = []
        runnable = [c for c in cases() if c.name not in {r["case"] for r in refused}]
        # Each operation is compiled by itself, which takes long.
        yield from _of_each(op_by_op, runnable[:: size(2, 4)], dtype, found, f"gradient op by op in {precision}")
        yield from _one_by_one_rows(precision, found, 16 * float(jnp.finfo(dtype).eps))


def _of_each(
    compare: Callable[..., Any], programs: list[Any], dtype: Any, found: list[dict[str, Any]], question: str
) -> Iterator[Row]:
    """Adds to `found` for each program; a failure is a row."""
    for case in programs:
        if out_of_time():
            return
        try:
            found.append(compare(case, dtype))
        except Exception as error:
            yield Row(case.name, question, "", f"{type(error).__name__}: {str(error)[:200]}", False)


def _compiled_rows(precision: str, ran: list[dict[str, Any]]) -> Iterator[Row]:
    n, unlike = len(ran), [r for r in ran if not r["same"]]
    own = [r["case"] for r in ran if not r["repeats"]]
    # A program whose gradient JAX itself computes with other bits when it compiles it again says nothing.
    told = [r for r in unlike if r["case"] not in own]
    note = [_named("others", [r["case"] for r in unlike], max((r["far"] for r in unlike), default=0.0))]
    note.append(_named("JAX's own bits change when it compiles again", own))
    yield Row(
        precision, "gradients under jit with JAX's bits", f"{n} of {n}", f"{n - len(unlike)} of {n}", not told,
        note="; ".join(filter(None, note)), figures={"programs": ran},
    )  # fmt: skip
    unlike = [r for r in ran if not r["check"]]
    yield Row(
        precision, "residuals as JAX's (`check()`)", f"{n} of {n}", f"{n - len(unlike)} of {n}", not unlike,
        note=_named("others", [r["case"] for r in unlike]),
    )  # fmt: skip


def _one_by_one_rows(precision: str, ran: list[dict[str, Any]], rounding: float) -> Iterator[Row]:
    n = len(ran)
    if not n:
        yield Row(precision, "gradients op by op as JAX's, to rounding", "", "no time was left")
        return
    far = [r for r in ran if r["far"] > max(rounding, r["of jit"])]
    yield Row(
        precision, "gradients op by op as JAX's, to rounding", f"{n} of {n}", f"{n - len(far)} of {n}", not far,
        note=f"{sum(r['same'] for r in ran)} with JAX's bits{_named('; others', [r['case'] for r in far])}",
        figures={"programs": ran},
    )  # fmt: skip
    worst = max(ran, key=lambda r: max(r["of jit"], r["ours of jit"]))
    yield Row(
        precision, "jit beside op by op: largest relative difference", f"{worst['of jit']:.1e}",
        f"{worst['ours of jit']:.1e}", worst["ours of jit"] <= max(rounding, 2 * worst["of jit"]), note=worst["case"],
    )  # fmt: skip


def _named(what: str, names: list[str], far: float = 0.0) -> str:
    if not names:
        return ""
    return f"{what}: {', '.join(names)}{f' (by {far:.1e} at most)' if far else ''}"


PARTS = {f"gradients, {name}": partial(gradients, name) for name in PRECISIONS}
