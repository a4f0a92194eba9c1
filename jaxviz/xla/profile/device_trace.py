"""What a device did while Python ran, by `jax.profiler`: each instruction, and each call of a jitted function."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import jax


@dataclass(frozen=True)
class DeviceTrace:
    """A recording.

    Args:
      instructions: seconds and number of runs of each instruction, by module and name, such as `('jit_step', 'dot.1')`.
        The seconds are the median of one run, times the number of runs; of an instruction that runs several kernels,
        such as a library call, those of all.
      seconds: the recorded duration of the run.
      busy: seconds of these during which an instruction ran.
      calls: seconds and number of calls of each jitted function, on the host.
    """

    instructions: dict[tuple[str, str], tuple[float, int]]
    seconds: float
    busy: float
    calls: dict[str, tuple[float, int]]

    @property
    def share(self) -> float:
        """The share of the run in which the device computed; recording makes both longer."""
        return min(1.0, self.busy / self.seconds) if self.seconds else 0.0


def device_trace(run: Callable[[], Any]) -> DeviceTrace | None:
    """Runs a function under `jax.profiler`; None if that is impossible, as when it is already recording."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            jax.profiler.start_trace(folder, profiler_options=options)
        except RuntimeError:
            return None
        started = time.perf_counter()
        try:
            run()
        finally:
            seconds = time.perf_counter() - started
            jax.profiler.stop_trace()
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        with warnings.catch_warnings():
            # Creating the types of jaxlib 0.12's reader warns, which would abort the process if warnings are errors.
            warnings.simplefilter("ignore", DeprecationWarning)
            return _read(files[-1], seconds) if files else None


def _read(file: Path, seconds: float) -> DeviceTrace:
    kernels: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    calls: dict[str, list[float]] = defaultdict(list)
    spans: list[tuple[float, float]] = []
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            until: dict[str, float] = {}
            for event in line.events:
                if event.name.startswith("PjitFunction("):
                    # Each call is recorded twice, one nested in the other.
                    if event.start_ns >= until.get(event.name, -1.0):
                        calls[event.name[len("PjitFunction(") : -1]].append(event.duration_ns)
                        until[event.name] = event.start_ns + event.duration_ns
                    continue
                stats = dict(event.stats)
                if "hlo_op" in stats and not event.name.startswith("end: "):
                    kernels[str(stats.get("hlo_module", "")), str(stats["hlo_op"])][event.name].append(
                        event.duration_ns
                    )
                    spans.append((event.start_ns, event.start_ns + event.duration_ns))
    typical = lambda times: median(times) * len(times) * 1e-9
    instructions = {
        key: (sum(map(typical, by_name.values())), max(map(len, by_name.values()))) for key, by_name in kernels.items()
    }
    of_calls = {key: (typical(times), len(times)) for key, times in calls.items()}
    return DeviceTrace(instructions, seconds, _covered(spans) * 1e-9, of_calls)


def _covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of some spans."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total
