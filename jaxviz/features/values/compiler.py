"""What XLA makes of a whole function: a difference that vanishes where values leave the compiled program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.features.values.recording import PreparedRecord
from jaxviz.features.values.summaries import LEAST_NOISE, MOST, MOST_NOISE, SEEDS, last_place_in, moved
from jaxviz.higher_order import is_call
from jaxviz.ir import compat
from jaxviz.ir.syntax import Program
from jaxviz.progress import counting
from jaxviz.runtime.evaluate import evaluate
from jaxviz.transforms.inline import inlined_where

_CONSTANTS = 2**16
"""Added to the seed for what a function closes over."""
EXCESS = {"xla_allow_excess_precision": False}
"""With it XLA rounds wherever the program does; by default `x.astype(bfloat16).astype(float32)` may become `x`."""
PASSES = (
    "algsimp", "constant_folding", "cse", "dot-merger", "dot-library-rewriter", "fusion", "loop-fusion",
    "multi_output_fusion", "reassociate-dots", "reshape-mover", "simplify-fp-conversions",
    "while-loop-invariant-code-motion",
)  # fmt: skip
"""Of XLA's passes those that only make a program faster, so that it can be compiled without any of them."""


Number = Callable[[Sequence[Any]], Any] | None
"""From the results of a program to the number that is differentiated; None if that is nothing."""


@dataclass(frozen=True)
class CompiledDifference:
    """How a result of the compiled function differs from that of the same, operation by operation.

    Args:
      what: the result, or the gradient, in words.
      relative: the norm of the difference, relative to that of the value.
      noise: how many times what rounding may change that is.
      options: the compiler options with each of which it vanishes, as `jax.jit(…, compiler_options=…)` takes them.
    """

    what: str
    relative: float
    noise: float
    options: tuple[dict[str, Any], ...]

    @property
    def remedy(self) -> str:
        """What makes it vanish, in words."""
        if not self.options:
            return "no option of the compiler was found that changes it"
        ways = " or ".join(f"compiler_options={options}" for options in self.options)
        return f"it vanishes with `jax.jit(…, {ways})`"


def compiled_difference(
    record: PreparedRecord, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CompiledDifference | None:
    """The result of a compiled function, and of its gradient, that differs most from that operation by operation; None
    if none differs by more than rounding may change."""
    if any(compat.is_mutable(v.aval) for v in (*record.program.constvars, *record.program.invars)):
        return None
    number = record.parts[0].number if len(record.parts) == 1 else None
    found = [
        _difference(record.program, of, record.inputs(args, kwargs))
        for of in ([None] if number is None else [None, number])
    ]
    return max(filter(None, found), key=lambda d: d.noise, default=None)


def _difference(program: Program, number: Number, inputs: Sequence[Any]) -> CompiledDifference | None:
    """The same of the function, or with `number` of it and its gradient, which XLA compiles to another program."""
    opened = inlined_where(program, is_call)
    whole = partial(_results, program, number)
    least = last_place_in(program)
    others = (
        (replace(opened, consts=tuple(moved(opened.consts, _CONSTANTS + seed))), moved(inputs, seed)) for seed in SEEDS
    )
    wanted = [_arrays(_results(of, number, *given)) for of, given in ((opened, inputs), *others)]
    lowered = jax.jit(whole).lower(*inputs)
    differences = _differences(_arrays(lowered.compile()(*inputs)), wanted, least)
    relative, noise, i = max(((r, n, i) for i, (r, n) in enumerate(differences)), key=lambda d: d[1], default=(0, 0, 0))
    if noise <= MOST_NOISE:
        return None
    options: list[dict[str, Any]] = []
    candidates: list[dict[str, Any]] = [EXCESS, *({"xla_disable_hlo_passes": name} for name in PASSES)]
    with counting("compiler options", len(candidates)) as done:
        for candidate in candidates:
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # this compiler does not have it
                got = _arrays(lowered.compile(compiler_options=candidate)(*inputs))
                if all(n <= MOST_NOISE for _, n in _differences(got, wanted, least)):
                    options.append(candidate)
            done()
    return CompiledDifference(_named(program, i), relative, noise, tuple(options))


def _results(program: Program, number: Number, *inputs: Any) -> list[Any]:
    """The results of a program, and if it returns a number the gradient in all that has one."""
    if number is None:
        return evaluate(program, inputs)
    real = [i for i, x in enumerate(inputs) if _is_real(compat.aval_of(x))]

    def differentiated(values: Sequence[Any]) -> tuple[Any, list[Any]]:
        given = dict(zip(real, values, strict=True))
        outs = evaluate(program, [given.get(i, x) for i, x in enumerate(inputs)])
        return number(outs), outs

    gradient, outs = jax.grad(differentiated, has_aux=True)([inputs[i] for i in real])
    return [*outs, *gradient]


def _named(program: Program, i: int) -> str:
    """The result of this number, of those that `_results` returns."""
    n = len(program.outvars)
    if i < n:
        return "its result" if n == 1 else f"result {i + 1} of {n}"
    names = [name for name, aval in zip(program.arg_names, program.in_avals, strict=True) if _is_real(aval)]
    return f"its gradient in `{names[i - n]}`"


def _is_real(aval: Any) -> bool:
    return bool(jnp.issubdtype(aval.dtype, jnp.floating))


def _arrays(results: Sequence[Any]) -> list[np.ndarray[Any, Any] | None]:
    """The results on the host, those of numbers that are rounded."""
    is_inexact = [jnp.issubdtype(compat.aval_of(x).dtype, jnp.inexact) for x in results]
    return [np.asarray(x) if is_one else None for x, is_one in zip(results, is_inexact, strict=True)]


def _differences(got: Sequence[Any], wanted: Sequence[Sequence[Any]], least: float) -> Iterator[tuple[float, float]]:
    """Of each result how far it is from the first of those wanted, relative to its norm, and to what rounding may
    change, as the others tell; that is at least what rounding in a type with the last place `least` may change."""
    for x, y, *others in zip(got, *wanted, strict=True):
        if x is None:
            yield 0.0, 0.0
            continue
        finite = np.isfinite(y)
        if not np.array_equal(np.isfinite(x), finite):
            yield 0.0, MOST
            continue
        norm = lambda z, finite=finite: float(np.linalg.norm(z.astype(np.complex128)[finite]))
        apart, size = norm(x.astype(np.complex128) - y), max(norm(x), norm(y))
        changed = [norm(np.where(np.isfinite(z), z, y).astype(np.complex128) - y) for z in others]
        noise = max(float(np.sqrt(np.mean(np.square(changed)))), LEAST_NOISE * least * size)
        yield apart / size if size else 0.0, min(apart / noise, MOST) if noise else 0.0
