"""Measures a Python function that calls jitted ones inside one `jit`, and what it calls most in a `jax.lax.scan`."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from jaxviz.ir import compat
from jaxviz.ir.errors import message_of
from jaxviz.ir.leaks import without_leaks
from jaxviz.ir.own_code import is_of_program
from jaxviz.report.tables import format_seconds
from jaxviz.runtime.cache import function_name
from jaxviz.runtime.compilations import definition_of
from jaxviz.runtime.donated import calls_heard
from jaxviz.xla.compat.jitted import jitted_function

_MOST_EQUATIONS = 2000
"""The most equations of a function that is compiled as a whole."""

_MOST_STEPS = 1000

_BUDGET = 2.0


@dataclass(frozen=True)
class PythonLoop:
    """The cost of a Python function that calls jitted functions, and its cost as one jitted function.

    Args:
      run: seconds of a call of the function unchanged.
      calls: the number of calls of jitted functions and single operations.
      busy: seconds in which the device computes; None if unknown.
      whole: measured seconds of a call inside one `jit`; None if it could not be measured.
      compiling: seconds that compiling it took.
      reason: why it could not be measured.
      body: the name of the jitted function that is called most, if its results can be its next arguments; otherwise ''.
      body_calls: how often it is called.
      step: seconds of one of its calls, in a loop in Python.
      scanned: seconds of one step in `jax.lax.scan` inside jit.
    """

    run: float
    calls: float
    busy: float | None
    whole: float | None
    compiling: float
    reason: str
    body: str = ""
    body_calls: int = 0
    step: float = 0.0
    scanned: float = 0.0

    @property
    def saving(self) -> float | None:
        """Measured seconds that one `jit` around the whole, or a scan of its body, is faster; None if unknown."""
        if self.whole is not None:
            return max(0.0, self.run - self.whole)
        return max(0.0, self.body_calls * (self.step - self.scanned)) if self.body else None

    @property
    def texts(self) -> tuple[str, ...]:
        """Its sentences."""
        run = format_seconds(self.run)
        sentences = []
        if self.whole is not None:
            sentences.append(
                f"Measured: inside one jax.jit, the whole takes {format_seconds(self.whole)} a call, where it "
                f"takes {run} now with {self.calls:,.0f} dispatches; compiled in {format_seconds(self.compiling)}."
            )
        else:
            sentences.append(f"Not measured inside one jax.jit: {self.reason}")
        if self.body:
            sentences.append(
                f"Measured: {self.body}, called {self.body_calls:,} times, takes {format_seconds(self.step)} a "
                f"call in a Python loop and {format_seconds(self.scanned)} a step in jax.lax.scan inside jit: "
                f"{format_seconds(self.body_calls * self.step)} and "
                f"{format_seconds(self.body_calls * self.scanned)} in all."
            )
        if self.whole is None and not self.body and self.busy is not None:
            bound = format_seconds(max(0.0, self.run - self.busy))
            sentences.append(
                f"The device computes for {format_seconds(self.busy)} of {run}, so with the same kernels "
                f"a call can be at most {bound} faster."
            )
        return tuple(sentences)


def look_for_loop(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], busy: float | None, calls: float
) -> PythonLoop | None:
    """How much faster one `jit` would be; None for a function with at most one call.

    Arrays and floats are arguments of the jitted function, all else is constant. Alternatives are timed in turns.
    """
    if calls < 2:
        return None
    now = lambda: f(*args, **kwargs)
    jitted, compiling, reason = _as_one(f, args, kwargs)
    run, measured = _in_turns(now, jitted) if jitted is not None else (_in_turns(now, now)[0], None)
    loop = PythonLoop(run, calls, busy, measured, compiling, reason)
    body = _body(f, args, kwargs)
    if body is None:
        return loop
    fun, arguments, n, carried = body
    steps = min(n, _MOST_STEPS)
    step, scanned = _in_turns(*_loops(fun, arguments, carried, steps))
    return replace(loop, body=function_name(fun), body_calls=n, step=step / steps, scanned=scanned / steps)


def _as_one(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[[], Any] | None, float, str]:
    """The whole as one jitted function, compiled, and the seconds that this took; or why it is impossible."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    at = [i for i, x in enumerate(leaves) if isinstance(x, (jax.Array, np.ndarray, float, complex))]

    def filled_in(*arrays: Any) -> Any:
        filled = list(leaves)
        for i, x in zip(at, arrays, strict=True):
            filled[i] = x
        a, k = jax.tree.unflatten(tree, filled)
        return f(*a, **k)

    operands, jitted = [leaves[i] for i in at], jax.jit(filled_in)
    started = time.perf_counter()
    try:
        with without_leaks(f, args, kwargs):
            n = len(jitted.trace(*operands).jaxpr.eqns)
        if n > _MOST_EQUATIONS:
            reason = "since each iteration of a Python loop is traced."
            return None, 0.0, f"it has {n:,} equations, more than {_MOST_EQUATIONS:,}, {reason}"
        jax.block_until_ready(jitted(*operands))
    except Exception as error:  # anything in it that cannot be traced
        text = message_of(error).strip()
        return None, 0.0, f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
    return (lambda: jitted(*operands)), time.perf_counter() - started, ""


def _body(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], int, dict[int, int]] | None:
    """The jitted function that is called most, the arguments of a call, how many calls, and what is carried."""
    counts: Counter[int] = Counter()
    last: dict[int, tuple[Any, tuple[Any, ...]]] = {}

    def hear(fun: Any, arguments: tuple[Any, ...], named: dict[str, Any], _: Any) -> None:
        jitted = jitted_function(fun)
        is_traced = any(map(compat.is_tracer, jax.tree.leaves(arguments)))
        if jitted is None or named or is_traced or not _is_users(jitted[0]):
            return
        counts[id(fun)] += 1
        last[id(fun)] = fun, arguments

    with calls_heard(hear):
        jax.block_until_ready(f(*args, **kwargs))
    for key, n in counts.most_common(3):
        fun, arguments = last[key]
        if n < 2 or any(x.is_deleted() for x in jax.tree.leaves(arguments) if isinstance(x, jax.Array)):
            continue
        carried = _carried(fun, arguments)
        if carried:
            return fun, arguments, n, carried
    return None


def _is_users(fun: Any) -> bool:
    at = None if compat.is_primitive_call(fun) else definition_of(fun)
    return at is not None and is_of_program(at.file)


def _carried(fun: Any, arguments: tuple[Any, ...]) -> dict[int, int]:
    """Which argument each result can be in the next call, by index. Other results are stacked, as in a scan."""
    out = jax.eval_shape(fun, *arguments)
    results = list(out) if isinstance(out, tuple) and not hasattr(out, "_fields") else [out]
    kinds = [_kind(x) for x in arguments]
    carried: dict[int, int] = {}
    for k, result in enumerate(results):
        i = next((i for i, kind in enumerate(kinds) if kind == _kind(result) and i not in carried.values()), None)
        if i is not None:
            carried[k] = i
    return carried


def _kind(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((np.shape(x), str(jax.numpy.result_type(x))) for x in leaves)


def _loops(
    fun: Any, arguments: tuple[Any, ...], carried: dict[int, int], n: int
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The same function on the same values, n times, in a Python loop and in a scan."""

    def turn(state: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        out = fun(*state)
        results = out if isinstance(out, tuple) and not hasattr(out, "_fields") else (out,)
        new = list(state)
        for k, i in carried.items():
            new[i] = results[k]
        return tuple(new), tuple(r for k, r in enumerate(results) if k not in carried)

    def in_python() -> Any:
        state = arguments
        rest: Any = None
        for _ in range(n):
            state, rest = turn(state)
        return state, rest

    moving = sorted(carried.values())

    def scanned(start: tuple[Any, ...], fixed: tuple[Any, ...]) -> Any:
        def body(carry: Any, _: Any) -> Any:
            state = list(fixed)
            for i, x in zip(moving, carry, strict=True):
                state[i] = x
            new, rest = turn(tuple(state))
            return tuple(new[i] for i in moving), rest

        return jax.lax.scan(body, start, None, length=n)

    still = tuple(None if i in moving else x for i, x in enumerate(arguments))
    loop = jax.jit(lambda start: scanned(start, still))
    start = tuple(jax.tree.map(jax.numpy.asarray, arguments[i]) for i in moving)
    return in_python, lambda: loop(start)


def _in_turns(one: Callable[[], Any], other: Callable[[], Any], n: int = 9) -> tuple[float, float]:
    """The median seconds of two functions, run alternately, so that other load on the machine affects both."""
    times: tuple[list[float], list[float]] = ([], [])
    for run in (one, other):
        jax.block_until_ready(run())
    until = time.perf_counter() + _BUDGET
    while len(times[0]) < 3 or (len(times[0]) < n and time.perf_counter() < until):
        for run, seconds in zip((one, other), times, strict=True):
            started = time.perf_counter()
            jax.block_until_ready(run())
            seconds.append(time.perf_counter() - started)
    return statistics.median(times[0]), statistics.median(times[1])
