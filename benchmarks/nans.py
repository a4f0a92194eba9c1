"""Finding where a NaN first occurs, compared with compiling and running the plain gradient once: time, and peak memory
of the process.

Each is measured in a fresh process, interleaved.
"""

from __future__ import annotations

import resource
import statistics
import time
from typing import Any

import jax

import jaxviz
from benchmarks.fresh import in_new_process, run
from benchmarks.nan_programs import PROGRAMS

MOST_TIME, MOST_MEMORY = 2.0, 1.3


def measure(name: str, arguments: str, what: str) -> dict[str, Any]:
    """Measured in this process: wall and CPU seconds, peak bytes, and the result."""
    f, finite, broken = PROGRAMS[name]()
    args = jax.block_until_ready(finite if arguments == "finite" else broken)
    find_nan = jaxviz.find_nan  # imported on first use
    start, start_cpu = time.perf_counter(), time.process_time()
    found = ""
    if what == "gradient":
        jax.block_until_ready(jax.jit(jax.value_and_grad(f))(*args))
    else:
        report = find_nan(f, *args)
        found = "" if report is None else report.born.short if report.born else report.given[0]
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "cpu": cpu, "peak": peak, "found": found}


def main(quick: bool = False) -> None:
    print("\nfind_nan, compared with compiling and running the gradient once")
    print(f"target for each: at most {MOST_TIME:.0f}x the time and {MOST_MEMORY:.1f}x the memory")
    print(f"{'':27} {'arguments':9}  {'gradient':>9}  {'find_nan':>9}  {'time':>6}  {'(cpu)':>7}  {'memory':>7}  found")
    for name in PROGRAMS:
        for arguments in ("finite", "broken"):
            pairs = [
                (
                    in_new_process("benchmarks.nans", name, arguments, "gradient"),
                    in_new_process("benchmarks.nans", name, arguments, "find_nan"),
                )
                for _ in range(1 if quick else 3)
            ]
            ratio = lambda key, pairs=pairs: statistics.median(b[key] / a[key] for a, b in pairs)
            theirs, ours = (statistics.median(p[k]["seconds"] for p in pairs) for k in (0, 1))
            print(
                f"{name:27} {arguments:9}  {theirs:7.2f} s  {ours:7.2f} s  {ratio('seconds'):5.2f}x  "
                f"{ratio('cpu'):6.2f}x  "
                f"{ratio('peak'):6.2f}x  {pairs[0][1]['found']}",
                flush=True,
            )


if __name__ == "__main__":
    run(measure, main)
