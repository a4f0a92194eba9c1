"""Where the time of a call goes, by phase, line and kernel; and the cost of a Python loop."""

from __future__ import annotations

import contextlib
import functools
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxviz.analysis.grouping import grouped
from jaxviz.analysis.lowering import Lowering, Tags
from jaxviz.analysis.walk import location_of
from jaxviz.derivation import Derivation
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.emit import as_function
from jaxviz.ir.errors import JaxvizError, message_of
from jaxviz.ir.leaks import without_leaks
from jaxviz.ir.options import whole_number
from jaxviz.ir.origin import Location
from jaxviz.ir.own_code import is_of_program, owner
from jaxviz.ir.trace import noting_arguments
from jaxviz.ir.usage import check_values
from jaxviz.report.charts import FlameGraph
from jaxviz.report.data import Data
from jaxviz.report.report import Listed, Report, Table
from jaxviz.report.tables import counted, format_seconds, listed, more_rows, repeated, short_location
from jaxviz.runtime import compilations
from jaxviz.runtime.cache import function_name, jitted_of
from jaxviz.runtime.references import restored, values_of
from jaxviz.transforms.unopened import find_unopened, unopened_note
from jaxviz.xla.compat.files import name_in_jax, part_of_jax
from jaxviz.xla.compat.jitted import jitted_anew, jitted_function
from jaxviz.xla.compiled_memory.attribution import Attribution
from jaxviz.xla.compiled_memory.compiled_program import compiled_module
from jaxviz.xla.compiled_memory.places import Places
from jaxviz.xla.profile.device_trace import DeviceTrace, device_trace
from jaxviz.xla.profile.flame import Flame, Path, chart_of, flame_of, speedscope
from jaxviz.xla.profile.python_loop import PythonLoop, look_for_loop
from jaxviz.xla.profile.sampling import Samples, Stack, sampled

_ENOUGH = 0.3
"""How many seconds Python is sampled."""

_BUDGET = 1.0
"""The time limit for repeated runs in seconds."""

_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a call.

    Args:
      name: 'tracing', 'derivation', 'lowering', 'compilation', 'dispatch' or 'execution'; for a Python function,
        'python' instead of 'dispatch'.
      seconds: its time.
      once: whether it happens only in the first call for these types.
      note: how it was measured.
    """

    name: str
    seconds: float
    once: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Kernel(Data):
    """A kernel on the device: an XLA instruction, with the equations that it was compiled from.

    Args:
      name: the name of the instruction, such as `dot.1`; with its module if there are several.
      seconds: of one run, summed over the threads of the device.
      times: how often it ran in one run.
      equations: the primitives that it was compiled from, such as `add, tanh`; '' if unknown.
      locations: the user's lines of these equations.
    """

    name: str
    seconds: float
    times: float
    equations: str
    locations: tuple[Location, ...] = ()

    @property
    def base(self) -> str:
        """`multiply_add_fusion` for `multiply_add_fusion.12`, without XLA's number."""
        return re.sub(r"(\.\d+)+$", "", self.name)

    @property
    def lines(self) -> str:
        """`model.py:12, model.py:14`."""
        return listed(map(short_location, self.locations))

    _data = ("name", "seconds", "times", "equations", ("lines=locations", ("file", "line")))


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The calls of one jitted function, or of a single operation, in one run.

    Args:
      name: its name.
      calls: the number of calls.
      seconds: host time of all of them.
    """

    name: str
    calls: float
    seconds: float


@dataclass(frozen=True, eq=False, repr=False)
class Profile(Report, schema="profile"):
    """Where the time of a call goes.

    >>> found = jaxviz.profile(loss, params, x)
    >>> found.run, found.phases
    >>> Path("loss.json").write_text(json.dumps(found.to_speedscope()))

    Args:
      function: the name of the function.
      backend: the backend that it ran on.
      phases: see `Phase`.
      run: seconds of one call until its results are ready, the median.
      spread: the shortest and the longest call.
      repeats: how many calls were timed.
      busy: seconds of one call in which the device computed, as recorded by jax.profiler; None if it recorded nothing.
      kernels: what the device ran, the longest time first.
      dispatches: the calls of jitted functions in one call of a Python function.
      loop: the time inside one jitted function; None for a function that is jitted.
      flame: the flame graph, as bars.
      notes: further remarks.
    """

    function: str
    backend: str
    phases: tuple[Phase, ...]
    run: float
    spread: tuple[float, float]
    repeats: int
    busy: float | None
    kernels: tuple[Kernel, ...]
    dispatches: tuple[Dispatch, ...]
    loop: PythonLoop | None
    flame: Flame
    notes: tuple[str, ...] = ()

    def __getitem__(self, phase: str) -> float:
        """The seconds of a phase.

        Raises:
          KeyError: there is no phase of this name.
        """
        seconds = [p.seconds for p in self.phases if p.name == phase]
        if not seconds:
            raise KeyError(f"no phase {phase!r}; there are {', '.join(p.name for p in self.phases)}")
        return seconds[0]

    @property
    def summary(self) -> str:
        """`profile of step on cpu: 1.24 ms a call (5 calls, 1.2 to 1.4 ms), 61 % of it on the device; …`."""
        first = sum(p.seconds for p in self.phases if p.once)
        low, high = map(format_seconds, self.spread)
        on = ""
        if self.busy is not None and self.run:
            on = f", {100 * min(1.0, self.busy / self.run):.0f} % of it on the device"
        n = f"{counted(self.repeats, 'call')}, {low} to {high}"
        return (
            f"profile of {self.function} on {self.backend}: {format_seconds(self.run)} a call ({n}){on}; "
            f"{format_seconds(first)} before the first"
        )

    def _parts(self) -> Iterator[Table | Listed]:
        phases = [(p.name, format_seconds(p.seconds), "once" if p.once else "each call", p.note) for p in self.phases]
        yield Table(("phase", "time", "", ""), phases, "<><<")
        calls = [
            (d.name, f"{d.calls:,.0f}", format_seconds(d.seconds / d.calls), format_seconds(d.seconds))
            for d in self.dispatches
        ]
        if calls:
            heads = ("jitted function", "calls", "a call, on the host", "together")
            yield Table(heads, calls, "<>>>", "calls of jitted functions", _SHOWN)
        if self.kernels:
            yield self._on_the_device()
        yield Listed((*self.notes, *(self.loop.texts if self.loop is not None else ())))

    def _on_the_device(self) -> Table:
        """The kernels of the device; kernels of repeated layers are one row."""
        total = sum(k.seconds for k in self.kernels) or 1.0
        groups = grouped(self.kernels, lambda k: (k.base, k.equations, k.locations))
        seconds = lambda group: sum(k.seconds for k in group)
        groups.sort(key=seconds, reverse=True)
        rows = [
            (
                format_seconds(seconds(g)), f"{100 * seconds(g) / total:.0f}%", f"{sum(k.times for k in g):,.0f}",
                g[0].name if len(g) == 1 else repeated(len(g), g[0].base), g[0].lines, g[0].equations,
            )
            for g in groups
        ]  # fmt: skip
        n = 6 if any(k.equations for k in self.kernels) else 4  # whether kernels are distinguished by equation
        heads = ("time", "", "times", "on the device", "lines", "equations")

        def more(shown: int) -> str:
            rest = groups[shown:]
            return more_rows(len(rest), sum(map(len, rest)), "kernel", format_seconds(sum(map(seconds, rest))))

        return Table(heads[:n], [row[:n] for row in rows], ">>><<<"[:n], "on the device", more=more)

    def _chart(self) -> FlameGraph:
        return chart_of(self.flame, f"where the time of {self.function} on {self.backend} goes, as a flame graph")

    _data = (
        "function", "backend", "phases", "run", "spread", "repeats", "busy", "kernels", "dispatches", "loop", "flame",
        "notes",
    )  # fmt: skip

    def to_speedscope(self) -> dict[str, Any]:
        """The flame graph in the format of https://www.speedscope.app: write it as JSON, and drop the file there."""
        return speedscope(self.flame, f"{self.function} on {self.backend}")


@api_boundary
def profile(f: Callable[..., Any], /, *args: Any, repeat: int | None = None, **kwargs: Any) -> Profile:
    """Measures where the time of a call goes: tracing, derivation, lowering, compilation, dispatch, execution; by line.

    >>> jaxviz.profile(step, params, batch)

    A jitted function is traced, lowered and compiled again, even if it is cached; inner functions that JAX has already
    traced are not traced again. Any other function runs unchanged. If it calls jitted functions, in a loop for example,
    the report says how much of its time is Python and dispatch, and measures the time inside one jitted function. The
    function runs several times, with its effects. Donated arguments are copied first.

    Args:
      f: a function of `jax.jit` or `jaxviz.jit`, or any other.
      *args, **kwargs: its arguments, with values.
      repeat: how many calls to time; by default as many as take a second, but at least three.

    Raises:
      TypeError: an argument is a type without a value.
      the errors of f.
    """
    compat.check_callable(f)
    check_values("profile", (args, kwargs))
    repeat = None if repeat is None else whole_number(repeat, "repeat", least=1)
    jitted = jitted_function(jitted_of(f))
    with noting_arguments(f, args, kwargs), without_leaks(f, args, kwargs), contextlib.ExitStack() as until_done:
        keep = until_done.enter_context
        if jitted is None:
            return _profile_python(f, args, kwargs, repeat, keep)
        return _profile_jitted(f, *jitted, args, kwargs, repeat, keep)


Keep = Callable[[contextlib.AbstractContextManager[None]], None]
"""Enters a context that lasts until everything has been measured."""


# --- a jitted function ------------------------------------------------------------------------------------------------


def _profile_jitted(
    f: Any, fun: Any, info: Any, args: tuple[Any, ...], kwargs: dict[str, Any], repeat: int | None, keep: Keep
) -> Profile:
    with compilations.unwatched():

        def anew() -> Any:
            with without_leaks(fun, args, kwargs):
                return jitted_anew(fun, info).trace(*args, **kwargs)

        traced, tracing, stacks = _sampled_stage(anew)
        lowered, lowering, lower_stacks = _sampled_stage(lambda: anew().lower, call=True)
        _, positional, named = compat.static_arguments(fun, info, args, kwargs)
        leaves = jax.tree.leaves((tuple(positional.values()), named))
        keep(restored([*leaves, *traced.jaxpr.consts]))
        numbered, compiling, notes = _numbered(traced, leaves)
        if numbered is None:
            _, compiling = _clocked(lowered.compile)
    name = function_name(fun)

    copied = info.donate_argnums or info.donate_argnames
    fresh = (lambda: jax.tree.map(_copy, (args, kwargs))) if copied else lambda: (args, kwargs)
    call = lambda a: f(*a[0], **a[1])
    run, spread, n, returned = _timed(call, fresh, repeat)
    recorded = device_trace(lambda: _run_all(call, [fresh() for _ in range(min(n, 10))]))
    busy = None if recorded is None or not recorded.instructions else run * recorded.share
    kernels: tuple[Kernel, ...] = ()
    if numbered is not None:
        kernels, notes = _kernels_of(numbered, leaves)
        notes = (*unopened_note(find_unopened(numbered.lowering.programs)), *notes)

    derivation = tracing * _share(stacks, "derivation")
    waiting = returned if busy is None else max(0.0, run - busy)
    how, what = "until the call returns", "from then until the results are ready"
    if busy is not None:
        how, what = "the rest of a call, while the device is idle: Python, arguments, waiting", "the device computes"
    phases = [
        Phase("tracing", tracing - derivation, True, "your function runs on tracers"),
        Phase("derivation", derivation, True, "jax's and jaxviz's transforms, while it is traced"),
        Phase("lowering", lowering, True, "to StableHLO"),
        Phase("compilation", compiling, True, "by XLA"),
        Phase("dispatch", waiting, False, how),
        Phase("execution", run - waiting, False, what),
    ]
    parts = (
        flame_of(_paths(stacks), "tracing", seconds=tracing),
        flame_of(_paths(lower_stacks), "lowering", seconds=lowering),
        Flame("compilation by XLA", "xla", compiling),
        Flame("dispatch", "jax", waiting),
        flame_of(_kernel_paths(kernels), "execution", seconds=run - waiting),
    )
    flame = Flame(name, "phase", sum(p.seconds for p in parts), parts)
    return Profile(name, jax.default_backend(), tuple(phases), run, spread, n, busy, kernels, (), None, flame, notes)


def _copy(x: Any) -> Any:
    return x.copy() if isinstance(x, jax.Array) and not compat.is_tracer(x) else x


def _sampled_stage(make: Callable[[], Any], call: bool = False) -> tuple[Any, float, list[tuple[Stack, float]]]:
    """Runs something several times while sampling Python: its first result, the median of its time, and the stacks.

    Args:
      make: runs it; or creates the function to run, without being sampled.
      call: whether `make` creates the function.
    """
    first: Any = None
    times: list[float] = []
    stacks: list[tuple[Stack, float]] = []
    while not times or (sum(times) < _ENOUGH and len(times) < 20):
        do = make() if call else make
        with sampled() as seen:
            result = do()
        first = result if first is None else first
        times.append(seen.seconds)
        stacks += seen.stacks
    return first, statistics.median(times), stacks


def _timed(
    call: Callable[[Any], Any], fresh: Callable[[], Any], repeat: int | None
) -> tuple[float, tuple[float, float], int, float]:
    """Until results are ready: the median, least and most time; the calls; the median until a call returns."""
    jax.block_until_ready(call(fresh()))  # compiles it if necessary
    arguments = jax.block_until_ready(fresh())
    started = time.perf_counter()
    jax.block_until_ready(call(arguments))
    once = time.perf_counter() - started
    n = repeat if repeat is not None else max(3, min(50, int(_BUDGET / max(once, 1e-9))))
    ready, returned = [], []
    for _ in range(max(1, n)):
        arguments = jax.block_until_ready(fresh())
        started = time.perf_counter()
        out = call(arguments)
        returned.append(time.perf_counter() - started)
        jax.block_until_ready(out)
        ready.append(time.perf_counter() - started)
    return statistics.median(ready), (min(ready), max(ready)), len(ready), statistics.median(returned)


def _run_all(call: Callable[[Any], Any], calls: Sequence[Any]) -> None:
    for arguments in calls:
        jax.block_until_ready(call(arguments))


# --- kernels ----------------------------------------------------------------------------------------------------------

_RUNS_OTHERS = ("while", "conditional", "call", "async-start", "async-done")
_ONE_BY_ONE = {"xla_gpu_enable_command_buffer": ""}
"""Options with which XLA launches each kernel by itself: profilers do not tell those of one graph apart."""
_RUNS = 10


@dataclass(frozen=True)
class _Numbered:
    """A compiled program with each equation's number as its scope, by which instructions say where they come from."""

    lowering: Lowering
    compiled: Any


def _numbered(traced: Any, leaves: Sequence[Any]) -> tuple[_Numbered | None, float, tuple[str, ...]]:
    """The program of a traced call with numbered equations, and the seconds of compiling it; or why there is none."""
    try:
        program = read_jaxpr(traced.jaxpr)
        tags = Tags((program,))
        lowered = jax.jit(as_function(tags.programs[0])).lower(*leaves)
        compiled, seconds = _clocked(lowered.compile)
    except (JaxvizError, TypeError, ValueError, NotImplementedError) as error:
        why = message_of(error).split("\n")[0]
        return None, 0.0, (f"The device's time is not attributed to equations: {why}",)
    lowering = Lowering(Derivation(program, (), lambda _: Counter()), ("primal",), "", lowered, tags, (program,))
    return _Numbered(lowering, compiled), seconds, ()


def _clocked(do: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = do()
    return result, time.perf_counter() - started


def _kernels_of(numbered: _Numbered, leaves: Sequence[Any]) -> tuple[tuple[Kernel, ...], tuple[str, ...]]:
    """Runs the program with numbers, and reads how long each instruction took."""
    compiled = numbered.compiled
    notes: tuple[str, ...] = ()
    recorded = _recorded(compiled, leaves)
    unknown = "The device time is unknown: jax.profiler"
    if recorded is None:
        return (), (f"{unknown} is recording something else.",)
    module = compiled_module(compiled)
    if any(of == module.name and name not in module.by_name for of, name in recorded.instructions):
        compiled = numbered.lowering.lowered.compile(compiler_options=_ONE_BY_ONE)
        recorded, module = _recorded(compiled, leaves), compiled_module(compiled)
        notes = (
            "The kernels were recorded with each launched by itself; otherwise XLA launches several as one graph.",
        )
    assert recorded is not None
    places = Places(numbered.lowering)
    attribution = Attribution(module, places)
    kernels = []
    for (of, name), (seconds, times) in recorded.instructions.items():
        instruction = module.by_name.get(name)
        if of != module.name or (instruction is not None and instruction.opcode in _RUNS_OTHERS):
            continue
        equations = [] if instruction is None else [places.makers[n] for n in attribution.numbers_of(instruction)]
        counts = Counter(place.operation for place in equations)
        primitives = ", ".join(f"{p} × {n}" if n > 1 else p for p, n in counts.most_common(5))
        locations = [at for place in equations if (at := location_of(place.equation, place.within)) is not None]
        kernels.append(Kernel(name, seconds / _RUNS, times / _RUNS, primitives, tuple(dict.fromkeys(locations))))
    if not kernels:
        return (), (f"{unknown} recorded no instructions on {jax.default_backend()}.",)
    return tuple(sorted(kernels, key=lambda k: -k.seconds)), notes


def _recorded(compiled: Any, leaves: Sequence[Any]) -> DeviceTrace | None:
    call = lambda _: compiled(*leaves)
    _run_all(call, [None])
    return device_trace(lambda: _run_all(call, [None] * _RUNS))


def _kernel_paths(kernels: Sequence[Kernel]) -> list[tuple[Path, float]]:
    paths: list[tuple[Path, float]] = []
    for k in kernels:
        module, _, name = k.name.rpartition(": ")
        below = (k.lines, "user") if k.lines else (module or "no line", "jax")
        paths.append(((below, (f"{name}: {k.equations}" if k.equations else name, "xla")), k.seconds))
    return paths


# --- a Python function ------------------------------------------------------------------------------------------------


def _profile_python(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], repeat: int | None, keep: Keep
) -> Profile:
    call = lambda _: f(*args, **kwargs)
    with compilations.watched() as cold:
        keep(restored(values_of(f, args, kwargs)))
        started = time.perf_counter()
        jax.block_until_ready(call(None))
        first = time.perf_counter() - started
    run, spread, n, _ = _timed(call, lambda: None, repeat)
    samples = _sampled_runs(call, run)
    runs = min(n, 10)
    recorded = device_trace(lambda: _run_all(call, [None] * runs))
    busy: float | None = None
    kernels: tuple[Kernel, ...] = ()
    dispatches: list[Dispatch] = []
    if recorded is not None:
        busy = run * recorded.share if recorded.instructions else None
        kernels = _by_module(recorded, runs)
        calls = (Dispatch(name, times / runs, s / runs) for name, (s, times) in recorded.calls.items())
        dispatches = sorted(calls, key=lambda d: -d.seconds)
    seconds = {phase: sum(c.seconds.get(phase, 0.0) for c in cold) for phase in ("trace", "lower", "compile")}
    derivation = run * _share(samples.stacks, "derivation")
    computing = busy or 0.0
    python = max(0.0, run - computing - derivation)
    n_programs = sum(c.is_compiled for c in cold)
    cached = "" if n_programs else "; all of it came from the cache"
    unknown = "not reported by jax.profiler: counted under python here"
    phases = [
        Phase("tracing", seconds["trace"], True, f"of the jitted functions in it, and of single operations{cached}"),
        Phase("lowering", seconds["lower"], True),
        Phase("compilation", seconds["compile"], True, f"of {counted(n_programs, 'program')}"),
        Phase("python", python, False, "Python and dispatch: the rest of a call, while the device is idle"),
        Phase("derivation", derivation, False, "transforms that run in each call, outside of jit"),
        Phase("execution", computing, False, unknown if busy is None else "the device computes"),
    ]
    name, total_once = function_name(f), sum(seconds.values())
    parts = (
        *(Flame(p.name, "xla" if p.name == "compilation" else "jax", p.seconds) for p in phases[:3]),
        Flame("other, before the first", "other", max(0.0, first - total_once - run)),
        flame_of(_paths(samples.stacks), "a call, in Python", seconds=python + derivation),
        flame_of(_kernel_paths(kernels), "a call, on the device", seconds=computing),
    )
    flame = Flame(name, "phase", sum(p.seconds for p in parts), tuple(p for p in parts if p.seconds))
    with compilations.unwatched():
        loop = look_for_loop(f, args, kwargs, busy, sum(d.calls for d in dispatches))
    return Profile(
        name, jax.default_backend(), tuple(phases), run, spread, n, busy, kernels, tuple(dispatches), loop, flame
    )


def _sampled_runs(call: Callable[[Any], Any], run: float) -> Samples:
    with sampled() as seen:
        for _ in range(max(1, min(1000, int(_ENOUGH / max(run, 1e-9))))):
            jax.block_until_ready(call(None))
    return seen


def _by_module(recorded: DeviceTrace, runs: int) -> tuple[Kernel, ...]:
    named = re.compile(r"(while|conditional|call)(\.\d+)*$")
    kernels = [
        Kernel(f"{module.removeprefix('jit_')}: {name}", seconds / runs, times / runs, "")
        for (module, name), (seconds, times) in recorded.instructions.items()
        if not named.match(name)
    ]
    return tuple(sorted(kernels, key=lambda k: -k.seconds))


# --- stacks -----------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=65536)
def _bar(file: str, function: str, line: int) -> tuple[str, str] | None:
    part = part_of_jax(file)
    if part:
        return None if part == "wrapper" else (name_in_jax(file, function), part)
    if owner(file) == "jaxviz":
        inside = file.rpartition("jaxviz/")[2].removesuffix(".py").replace("/", ".")
        derives = inside.startswith(("transforms", "rules", "derivation"))
        return (f"jaxviz.{inside}.{function}", "derivation") if derives else None
    if is_of_program(file):
        return f"{function} ({short_location(Location(file, line, function))})", "user"
    return None


def _bars(frames: Iterable[tuple[Any, int]]) -> Iterator[tuple[str, str]]:
    bars = (_bar(code.co_filename, getattr(code, "co_qualname", code.co_name), line) for code, line in frames)
    return (bar for bar in bars if bar is not None)


def _paths(stacks: Sequence[tuple[Stack, float]]) -> list[tuple[Path, float]]:
    return [(_path(stack), seconds) for stack, seconds in stacks]


def _path(stack: Stack) -> Path:
    """A stack as bars: the user's lines, and of the jax frames below them the first and the last function."""
    bars: list[tuple[str, str]] = []
    inner: list[tuple[str, str]] = []
    for bar in _bars(stack):
        if bar[1] == "user":
            bars += [*_shortened(inner), bar]
            inner = []
        else:
            inner.append(bar)
    return (*bars, *_shortened(inner))


def _shortened(run: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Of consecutive functions of jax's, the first and the last, and derivation steps between them."""
    if len(run) < 3:
        return run
    between = next((b for b in run[1:-1] if b[1] == "derivation"), None)
    return [run[0], *([between] if between is not None else []), run[-1]]


def _share(stacks: Sequence[tuple[Stack, float]], kind: str) -> float:
    """The share of time spent in code of a kind, including what it calls unless the user's code is in between."""
    total = sum(s for _, s in stacks)
    of_it = 0.0
    for stack, seconds in stacks:
        innermost = next((what for _, what in _bars(reversed(stack)) if what in (kind, "user")), "")
        of_it += seconds if innermost == kind else 0.0
    return of_it / total if total else 0.0
