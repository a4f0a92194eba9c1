"""Whether a forward program computes what JAX computes: its results, and the references that it writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxviz.higher_order import of
from jaxviz.ir import compat
from jaxviz.ir.syntax import Equation, Program
from jaxviz.runtime.evaluate import evaluate
from jaxviz.runtime.references import restored


def may_differ(equation: Equation) -> bool:
    """Whether the forward program may compute something else than an equation of the function: what a rule of the
    user's, or of a library's, computes, or what it reads from a reference."""
    if compat.writes_in_place(equation.operation):
        return True
    if of(equation).has_custom_rule:
        body = equation.programs[0][1] if equation.programs else None
        return body is None or body.debug_info is None or compat.is_user_file(body.debug_info.func_filename or "")
    return any(map(may_differ, (inner for _, program in equation.programs for inner in program.equations)))


def wrong_values(
    call: Callable[..., Any], inputs: tuple[Any, ...], active: Sequence[bool], primal: Program, forward: Program
) -> list[str]:
    """The results of a function, and the references that it uses, that are not the same after its forward program as
    after `jax.vjp`."""
    refs = list({id(x): x for x in (*inputs, *primal.consts) if compat.is_written_in_place(x)}.values())
    with restored(refs):
        value, _ = compat.jax_vjp(*in_active(call, inputs, active))
        theirs = [*jax.tree.leaves(value), *(x for ref in refs for x in compat.contents(ref))]
    copied = compat.Copies()
    program = replace(forward, consts=tuple(map(copied, forward.consts)))
    results = evaluate(program, list(map(copied, inputs)))[: len(primal.outvars)]
    ours = [*results, *(x for ref in refs for x in compat.contents(copied(ref)))]
    names = [f"result {i}" for i in range(len(results))] + [
        f"a reference of type {x.dtype}{list(x.shape)}" for ref in refs for x in compat.contents(ref)
    ]
    return [
        f"{name}: JAX computes {_shown(x)}, the forward program {_shown(y)}"
        for name, x, y in zip(names, theirs, ours, strict=True)
        if not _is_close(x, y)
    ]


def in_active(
    call: Callable[..., Any], inputs: Sequence[Any], active: Sequence[bool]
) -> tuple[Callable[..., Any], *tuple[Any, ...]]:
    """A call as a function of the arguments in which it is differentiated, and those arguments."""

    def of_active(*xs: Any) -> Any:
        it = iter(xs)
        return call(*(next(it) if a else x for a, x in zip(active, inputs, strict=True)))

    return of_active, *(x for a, x in zip(active, inputs, strict=True) if a)


def _is_close(x: Any, y: Any) -> bool:
    """Whether two results are equal, apart from rounding."""
    if jax.numpy.issubdtype(jax.typeof(x).dtype, jax.dtypes.prng_key):
        x, y = jax.random.key_data(x), jax.random.key_data(y)
    x, y = np.asarray(x), np.asarray(y)
    if not np.issubdtype(jax.numpy.result_type(x), np.inexact):
        return bool(np.array_equal(x, y))
    tol = float(jax.numpy.finfo(x.dtype).eps) ** 0.5
    wide = np.result_type(x.dtype, np.float32) if x.dtype.kind in "fc" else np.float32
    scale = float(np.nanmax(np.abs(x.astype(wide)), initial=0, where=np.isfinite(x.astype(wide))))
    return bool(np.allclose(x.astype(wide), y.astype(wide), rtol=tol, atol=tol * scale, equal_nan=True))


def _shown(x: Any) -> str:
    return f"{np.asarray(x):.6g}" if np.ndim(x) == 0 else f"{np.asarray(x).ravel()[:3]}…"
