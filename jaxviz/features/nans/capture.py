"""Runs a program, and computes values inside it, in any iteration of the loops around them.

The program in question is compiled with all optimizations; what only helps the search is compiled fast.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.higher_order import bodies, carried, is_choice, is_loop, of
from jaxviz.ir import compat
from jaxviz.ir.convert import one_equation
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Atom, DropVar, Equation, Literal, Program, Var
from jaxviz.report.tables import nbytes
from jaxviz.transforms.dce import dce_program
from jaxviz.transforms.driver import select

Path = tuple[tuple[Equation, int], ...]
"""The equations that contain a program, outermost first, each with the index of the program among its programs."""

Request = tuple[Path, Sequence[int], Sequence[Atom]]
"""Which values to capture, in which program and step; see `values_at`."""

Reached = tuple[int, Sequence[Any]]
"""A step of a loop, and the carry at its start."""


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """A program, its inputs, and the values that a run has left.

    Args:
      known: values of its variables.
      reached: for its loops, by the identity of the equation, the step that was reached.
      begun: for a program of such a loop, by that and its index, its inputs in that step.
      jit: compiles what computes further values.
    """

    program: Program
    inputs: Sequence[Any]
    known: Mapping[Var, Any] = field(default_factory=dict)
    reached: Mapping[int, Reached] = field(default_factory=dict)
    begun: Mapping[tuple[int, int], Sequence[Any]] = field(default_factory=dict)
    jit: Callable[..., Any] = jax.jit

    @cached_property
    def arguments(self) -> dict[Var, Any]:
        """The values of the program's inputs and constants."""
        program = self.program
        return dict(zip((*program.invars, *program.constvars), (*self.inputs, *program.consts), strict=True))

    def values(self, requests: Sequence[Request]) -> list[list[Any]]:
        """Values of the program and nested ones, for each request, all computed by one compiled program."""
        return self.values_and_kinds(requests, ())[0]

    def kinds(self, requests: Sequence[Request]) -> list[list[Kinds]]:
        """For each of these values whether it contains non-finite elements, and a NaN, without keeping it."""
        return self.values_and_kinds((), requests)[1]

    def values_and_kinds(
        self, values: Sequence[Request], kinds: Sequence[Request]
    ) -> tuple[list[list[Any]], list[list[Kinds]]]:
        """Some values, and of others the kinds, which compiles much faster than to return thousands of values."""
        requests = [*values, *kinds]
        if not requests:
            return [], []
        outermost = {(id(path[0][0]), path[0][1]): path[0] for path, _, _ in requests if path}
        begun = {key: self._begun(*at) for key, at in outermost.items() if key[0] in self.reached}
        steps = {k: step for k, (step, _) in self.reached.items()}

        def capture(inputs: Any, known: Any, carries: Any, begun_with: Any) -> tuple[list[list[Any]], list[list[Any]]]:
            reached = {k: (step, carry) for (k, step), carry in zip(steps.items(), carries, strict=True)}
            recorded = RecordedRun(
                self.program, inputs, dict(zip(self.known, known, strict=True)), reached,
                dict(zip(begun, begun_with, strict=True)),
            )  # fmt: skip
            shown = values_at(recorded, requests)
            return shown[: len(values)], [list(map(_traced_kinds, xs)) for xs in shown[len(values) :]]

        carries = [carry for _, carry in self.reached.values()]
        inputs = list(self.inputs), list(self.known.values()), carries, list(begun.values())
        shown, of_kinds = self.jit(capture)(*inputs)
        return shown, [[(bool(infinite), bool(nan)) for infinite, nan in each] for each in of_kinds]

    def _begun(self, loop: Equation, place: int) -> list[Any]:
        """The inputs of one of a loop's programs in the step that was reached; on the CPU without compiling."""
        here = {**self.arguments, **self.known}
        operands = [a.val if isinstance(a, Literal) else here[a] for a in loop.invars]
        step, carry = self.reached[id(loop)]
        at = carried(loop)
        operands = [*operands[: at.start], *carry, *map(on_host, operands[at.stop :])]
        return of(loop).inputs_of_step(loop.operation, operands, step, place != place_of_body(loop), since=step)


def on_host(x: Any) -> Any:
    """An array that NumPy can read, if it is on a single CPU."""
    is_plain = isinstance(x, jax.Array) and not jnp.issubdtype(x.dtype, jax.dtypes.extended)
    return np.asarray(x) if is_plain and {d.platform for d in x.devices()} == {"cpu"} and len(x.devices()) == 1 else x


def values_at(recorded: RecordedRun, requests: Sequence[Request]) -> list[list[Any]]:
    """Values of a program and nested ones; to be run under `jax.jit`.

    Args:
      requests: for each group of variables of one program the path to it, with the step of each loop, from 0 in
        execution order, and the device of each `shard_map`.
    """
    inner: dict[tuple[int, int], list[int]] = {}
    for k, (path, _, _) in enumerate(requests):
        if path:
            inner.setdefault((id(path[0][0]), path[0][1]), []).append(k)
    equations = {key: requests[ks[0]][0][0][0] for key, ks in inner.items()}
    here = [a for path, _, atoms in requests if not path for a in atoms]
    read = dict.fromkeys(a for a in (*here, *(a for e in equations.values() for a in e.invars)) if isinstance(a, Var))
    env: dict[Atom, Any] = dict(zip(read, _results(recorded, list(read)), strict=True))
    value = lambda a: a.val if isinstance(a, Literal) else env[a]
    groups = [[value(a) for a in atoms] if not path else [] for path, _, atoms in requests]
    for key, ks in inner.items():
        equation = equations[key]
        operands, within = [value(a) for a in equation.invars], [(requests[k][0][1:], *requests[k][1:]) for k in ks]
        for k, values in zip(ks, _values_inside(recorded, equation, key[1], operands, within), strict=True):
            groups[k] = values
    return groups


def _values_inside(
    recorded: RecordedRun, equation: Equation, place: int, operands: list[Any], requests: Sequence[Request]
) -> list[list[Any]]:
    """The values of a nested program, and of those inside it."""
    _, body = equation.programs[place]
    kind = of(equation)
    if kind.kind == "devices":
        rest = [(path, steps[1:], atoms) for path, steps, atoms in requests]
        mapped = compat.on_each_device(
            equation.operation, lambda *xs: [x for values in values_at(RecordedRun(body, xs), rest) for x in values]
        )
        every = iter(mapped(*operands))
        return [[next(every)[steps[0]] for _ in atoms] for _, steps, atoms in requests]
    if not is_loop(equation):
        return values_at(RecordedRun(body, operands[1:] if is_choice(equation) else operands), requests)
    groups: dict[int, list[Any]] = {}
    for step in sorted({steps[0] for _, steps, _ in requests}):
        inputs = _inputs_of_step(recorded, equation, place, operands, step)
        now = [k for k, (_, steps, _) in enumerate(requests) if steps[0] == step]
        within = [(path, steps[1:], atoms) for path, steps, atoms in (requests[k] for k in now)]
        values = values_at(RecordedRun(body, inputs), within)
        groups.update(zip(now, values, strict=True))
    return [groups[k] for k in range(len(requests))]


def _inputs_of_step(recorded: RecordedRun, loop: Equation, place: int, operands: list[Any], step: int) -> Sequence[Any]:
    """The inputs of a loop's nested program in a step; the loop runs up to there, from the last known step."""
    of_condition = place != place_of_body(loop)
    since, carry = recorded.reached.get(id(loop), (step + 1, ()))
    if since > step:
        return of(loop).inputs_of_step(loop.operation, operands, step, of_condition)
    if since == step and (id(loop), place) in recorded.begun:
        return recorded.begun[id(loop), place]
    at = carried(loop)
    operands = [*operands[: at.start], *carry, *operands[at.stop :]]
    return of(loop).inputs_of_step(loop.operation, operands, step, of_condition, since)


def _results(recorded: RecordedRun, atoms: Sequence[Atom]) -> list[Any]:
    """Values of the outermost program, from its inputs and known values."""
    known = recorded.known
    unless_known = lambda v: DropVar(v.aval) if v in known else v
    equations = tuple(
        replace(e, outvars=tuple(map(unless_known, e.outvars))) if known else e
        for e in recorded.program.equations
        if e.outvars or not compat.has_effects(e.effects)  # without repeating prints
    )
    program = replace(
        recorded.program, invars=(*recorded.program.invars, *known), equations=equations, outvars=tuple(atoms),
        debug_info=None, closed=True,
    )  # fmt: skip
    inputs = [*recorded.inputs, *known.values()]
    smaller, needed = dce_program(program, keep_inputs=[False] * len(inputs))
    return as_function(smaller)(*select(needed, inputs))


def place_of_body(loop: Equation) -> int:
    """The index of a loop's body among its programs."""
    (label,) = (b.label for b in bodies(loop) if b.has_results)
    return [name for name, _ in loop.programs].index(label)


def evaluate_equation(equation: Equation, operands: Sequence[Any]) -> list[Any]:
    """The results of one equation, run separately."""
    return compat.jaxpr_as_fun(one_equation(equation.operation))(*operands)


# --- runs -------------------------------------------------------------------------------------------------------------

Kinds = tuple[bool, bool]
"""Whether an array contains non-finite elements, and a NaN."""


@dataclass(frozen=True, slots=True)
class CompiledRun:
    """A program that was compiled and run, with the kinds of its results.

    Args:
      is_short: whether it ran so much faster than it compiled that it may as well run ten times slower.
    """

    kinds: tuple[Kinds, ...]
    is_short: bool
    compiled: Callable[..., Sequence[Any]]

    def once(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """`jax.jit` for a part that runs once; of a program that runs quickly it is compiled without optimizations."""
        jitted = jax.jit(fun)
        quickly = self.is_short and jax.default_backend() == "cpu"
        return (
            (lambda *args: jitted.lower(*args).compile(compiler_options=compat.COMPILED_IN_LESS_TIME)(*args))
            if quickly
            else jitted
        )


_SHARE = 0.2


def run_program(program: Program, inputs: Sequence[Any]) -> CompiledRun:
    """Compiles a program as `jax.jit` does and runs it once."""
    start = time.perf_counter()
    compiled = jax.jit(as_function(program)).lower(*inputs).compile()
    compiling = time.perf_counter() - start
    outs = jax.block_until_ready(compiled(*inputs))
    running = time.perf_counter() - start - compiling
    return CompiledRun(tuple(kinds_of_all(outs)), running < _SHARE * compiling, compiled)


_SMALL = 1 << 20
"""Arrays of at most this many bytes are checked on the host; larger ones on the device, all together."""


def kinds_of(x: Any) -> Kinds:
    """Whether an array contains non-finite elements, and a NaN."""
    return kinds_of_all([x])[0]


def kinds_of_all(values: Sequence[Any]) -> list[Kinds]:
    """For each array whether it contains non-finite elements, and a NaN."""
    on_cpu = jax.default_backend() == "cpu"
    large = [k for k, x in enumerate(values) if is_inexact(x) and not on_cpu and nbytes(compat.aval_of(x)) > _SMALL]
    kinds_on_device = jax.jit(lambda xs: list(map(_traced_kinds, xs)))
    known = dict(zip(large, kinds_on_device([values[k] for k in large]) if large else (), strict=True))
    return [(bool(known[k][0]), bool(known[k][1])) if k in known else _kinds_here(x) for k, x in enumerate(values)]


def _traced_kinds(x: Any) -> tuple[Any, Any]:
    return (~jnp.isfinite(x).all(), jnp.isnan(x).any()) if is_inexact(x) else (False, False)


def is_inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(compat.aval_of(x).dtype, jnp.inexact))


def _kinds_here(x: Any) -> Kinds:
    if not is_inexact(x) or np.isfinite(host := np.asarray(x)).all():
        return False, False
    return True, bool(np.isnan(host).any())


def without_nans(x: Any) -> Any:
    """An array with non-finite elements replaced by its first finite one."""
    finite = jnp.isfinite(x)
    return jnp.where(finite, x, jnp.where(finite.any(), x.ravel()[jnp.argmax(finite)], 1).astype(x.dtype))
