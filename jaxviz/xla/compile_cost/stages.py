"""What is compiled for a function, as users compile it, and the seconds of tracing, lowering and compiling it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxviz.analysis.lowering import refuse_closed_over
from jaxviz.analysis.training_step import is_loss, takes_gradient
from jaxviz.arguments import Argnums, flat_arguments, positions
from jaxviz.derivation import gradient_text
from jaxviz.ir import compat
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.leaks import without_leaks
from jaxviz.ir.stack import usual_stack
from jaxviz.ir.trace import noting_arguments, with_fixed
from jaxviz.report.data import Data
from jaxviz.runtime.cache import function_name
from jaxviz.runtime.stoppable import as_called, compiled_alone, key_of
from jaxviz.xla.compat.compiling import compiled_afresh
from jaxviz.xla.compat.jitted import jitted_anew, jitted_function
from jaxviz.xla.compile_cost.instructions import HloInstruction, after_xla
from jaxviz.xla.profile.sampling import Stack, sampled


@dataclass(frozen=True, slots=True)
class Seconds(Data):
    """The time of some work.

    Args:
      cpu: seconds of CPU time: of the thread for tracing and lowering, of the whole process for XLA.
      wall: seconds of wall time.
    """

    cpu: float
    wall: float


@dataclass(frozen=True, slots=True)
class Phases(Data):
    """The seconds of each phase before a jitted call can run.

    Args:
      tracing: the function runs on tracers, and is differentiated.
      lowering: to StableHLO.
      compiling: by XLA.
    """

    tracing: Seconds
    lowering: Seconds
    compiling: Seconds

    @property
    def cpu(self) -> float:
        """The CPU time of all three."""
        return self.tracing.cpu + self.lowering.cpu + self.compiling.cpu


def median(times: Sequence[Seconds]) -> Seconds:
    """The medians of several measurements, separately."""
    return Seconds(statistics.median(t.cpu for t in times), statistics.median(t.wall for t in times))


@contextmanager
def clocked(whole_process: bool) -> Iterator[list[Seconds]]:
    """Measures what runs within it, and appends the seconds to the list.

    Args:
      whole_process: whether CPU time includes all threads, not only this one.
    """
    clock = time.process_time if whole_process else time.thread_time
    times: list[Seconds] = []
    cpu, wall = clock(), time.perf_counter()
    yield times
    times.append(Seconds(clock() - cpu, time.perf_counter() - wall))


def _pulled_back(
    fun: Callable[..., Any], active: Sequence[int], n_inputs: int, floating: Sequence[bool]
) -> Callable[..., Any]:
    """`jax.vjp` and a call of the resulting function, for a function whose result is not a scalar."""

    def gradient(*values: Any) -> Any:
        inputs, cotangents = list(values[:n_inputs]), list(values[n_inputs:])

        def of_active(*xs: Any) -> Any:
            for i, x in zip(active, xs, strict=True):
                inputs[i] = x
            leaves = jax.tree.leaves(fun(*inputs))
            pick = lambda which: [x for x, is_float in zip(leaves, floating, strict=True) if is_float == which]
            return pick(True), pick(False)

        out, pull_back, others = jax.vjp(of_active, *(inputs[i] for i in active), has_aux=True)
        return out, others, pull_back(cotangents)

    return gradient


@dataclass(frozen=True, eq=False)
class Subject:
    """What is traced, lowered and compiled.

    Args:
      name: the name of the user's function.
      about: what is compiled, such as "gradient of `loss` in `params`".
      call: creates the function of flat arguments, anew each time, so that JAX has nothing cached.
      inputs: the flat arguments: arrays, or types.
      names: the names of the arguments, such as `params['w']`.
      gradient: turns a function of these arguments into what is compiled; None if it is compiled as it is.
      cotangents: the types of that one's further arguments.
      is_step: whether the function takes a gradient itself.
      active: the positions of the inputs that it is differentiated in.
    """

    name: str
    about: str
    call: Callable[[], Callable[..., Any]]
    inputs: tuple[Any, ...]
    names: tuple[str, ...]
    gradient: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    cotangents: tuple[Any, ...] = ()
    is_step: bool = False
    active: tuple[int, ...] = ()

    def make(self) -> Callable[..., Any]:
        """What is compiled."""
        return self.call() if self.gradient is None else _named(self.gradient(self.call()), self.name)


def subject_of(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums) -> Subject:
    """What is compiled for a call: the gradient of a function, a whole training step, or the function itself.

    Raises:
      the errors of f, of `jax.grad` and of `jax.jit`.
    """
    compat.check_callable(f)
    places = positions(f, args, argnums)
    _, _, differentiated, is_input = flat_arguments(args, kwargs, places)
    jitted = jitted_function(f)

    def call() -> Callable[..., Any]:
        # Otherwise, inner calls of a jitted function would already be traced.
        fresh = jitted_anew(*jitted) if jitted else f
        function, _, _ = with_fixed(fresh, args, kwargs, is_input)
        return lambda *xs: function(*xs)

    _, inputs, info = with_fixed(f, args, kwargs, is_input)
    name = function_name(f)
    names = tuple(info.arg_names) if info.arg_names is not None else ("",) * len(inputs)
    types = [jax.typeof(x) if not isinstance(x, jax.ShapeDtypeStruct) else x for x in inputs]
    of_inputs = (d for d, is_given in zip(differentiated, is_input, strict=True) if is_given)
    active = tuple(
        i for i, (d, t) in enumerate(zip(of_inputs, types, strict=True))
        if d and hasattr(t, "dtype") and jnp.issubdtype(t.dtype, jnp.inexact)
    )  # fmt: skip
    as_it_is = Subject(name, f"function `{name}`", call, inputs, names)
    if not active:
        return as_it_is
    with usual_stack, noting_arguments(f, args, kwargs), without_leaks(f, args, kwargs):
        traced = jax.jit(call()).trace(*inputs)
    program = read_jaxpr(traced.jaxpr)
    refuse_closed_over(program, len(inputs))
    if not is_loss(program) and takes_gradient(program):
        return replace(as_it_is, about=f"training step `{name}`", is_step=True)
    heads = dict.fromkeys(names[i].split("[")[0].split(".")[0] for i in active)
    about = gradient_text(name, [head for head in heads if head]) if any(heads) else f"gradient of `{name}`"
    if is_loss(program):
        of_loss = lambda fun: jax.value_and_grad(lambda *xs: jax.tree.leaves(fun(*xs))[0], argnums=active)
        return replace(as_it_is, about=about, gradient=of_loss, active=active)
    floating = [jnp.issubdtype(a.dtype, jnp.inexact) for a in program.out_avals]
    results = zip(program.out_avals, floating, strict=True)
    cotangents = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a, is_float in results if is_float)
    pulled_back = lambda fun: _pulled_back(fun, active, len(inputs), floating)
    return replace(as_it_is, about=about, gradient=pulled_back, cotangents=cotangents, active=active)


def _named(fun: Callable[..., Any], name: str) -> Callable[..., Any]:
    named = lambda *values: fun(*values)
    named.__name__ = named.__qualname__ = name if name.isidentifier() else "f"
    return named


@dataclass(frozen=True, eq=False)
class _Compiled:
    """One compilation of a program: its seconds, and the instructions if they were asked for and the backend exposes
    them."""

    seconds: Seconds
    after: tuple[HloInstruction, ...] | None


def _compile(lowered: Any, with_instructions: bool = False) -> _Compiled:
    with usual_stack, compiled_afresh(), clocked(True) as compiling:
        compiled = lowered.compile()
    return _Compiled(compiling[0], after_xla(compiled) if with_instructions else None)


@dataclass
class CompileTimings:
    """What was traced, lowered and compiled, and how long it took.

    Args:
      traced, lowered: JAX's stages, from the first time.
      after: the instructions of the compiled program; None if the backend does not expose them.
      tracing, lowering, compiling: the seconds of each time.
    """

    traced: Any = None
    lowered: Any = None
    after: tuple[HloInstruction, ...] | None = None
    tracing: list[Seconds] = field(default_factory=list)
    lowering: list[Seconds] = field(default_factory=list)
    compiling: list[Seconds] = field(default_factory=list)

    @property
    def phases(self) -> Phases:
        """The medians."""
        return Phases(median(self.tracing), median(self.lowering), median(self.compiling))

    def trace(self, fun: Callable[..., Any], inputs: Sequence[Any]) -> None:
        """Traces again."""
        with usual_stack, without_leaks(fun), clocked(False) as tracing:
            self.traced = jax.jit(fun).trace(*inputs)
        self.tracing += tracing

    def lower(self, fun: Callable[..., Any], inputs: Sequence[Any]) -> Any:
        """Traces and lowers once more, and returns the result."""
        with usual_stack, without_leaks(fun):
            with clocked(False) as tracing:
                traced = jax.jit(fun).trace(*inputs)
            with clocked(False) as lowering:
                lowered = traced.lower()
        self.tracing += tracing
        self.lowering += lowering
        if self.lowered is None:
            self.traced, self.lowered = traced, lowered
        return lowered

    def compile(self, fun: Callable[..., Any], inputs: Sequence[Any]) -> None:
        """Traces, lowers and compiles again."""
        lowered = self.lower(fun, inputs)
        is_first = not self.compiling
        key = key_of(lowered, f"{as_called(lowered)}, to be timed, {len(self.compiling)}")
        compiled = compiled_alone(key, lambda: _compile(lowered, with_instructions=is_first))
        self.compiling.append(compiled.seconds)
        if is_first:
            self.after = compiled.after


def sampled_tracing(fun: Callable[..., Any], inputs: Sequence[Any]) -> list[tuple[Stack, float]]:
    """Traces once more while sampling Python: the stacks, each with its share of the time."""
    with usual_stack, without_leaks(fun), sampled() as seen:
        jax.jit(fun).trace(*inputs)
    total = sum(seconds for _, seconds in seen.stacks)
    return [(stack, seconds / total) for stack, seconds in seen.stacks if total]


def warmed_up() -> None:
    """Makes JAX do everything that it only does for the first program of a process."""
    compiled_alone(
        "warming up", lambda: _compile(jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((2,), jnp.float32)))
    )
