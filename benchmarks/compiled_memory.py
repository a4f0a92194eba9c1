"""The time of `compiled_memory` beside JAX's compilation of the same gradient, and the share of the bytes at the peak
attributed to a line.

Over the programs that its tests compile, some for eight devices, so it runs in a separate process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1] / "tests"
_DEVICES = "--xla_force_host_platform_device_count=8"


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of some work, including XLA's threads, and its result."""
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def measure(
    programs: dict[Any, tuple[Any, ...]], steps: tuple[Any, ...]
) -> list[tuple[str, float, float, float, float, float]]:
    """For each program the seconds of JAX, of `compiled_memory` with the function, and with JAX's compiled program; and
    the share attributed to a line in each case."""
    import jax

    import jaxviz

    rows = []
    for f, args in programs.items():
        # A new function each time, so that nothing is cached.
        fresh = lambda f=f: (
            jax.jit(lambda *xs: f(*xs)) if f in steps else jax.jit(jax.value_and_grad(lambda *xs: f(*xs)))
        )
        of_jax, compiled = seconds(lambda fresh=fresh, args=args: fresh().lower(*args).compile())
        with_function, found = seconds(lambda f=f, args=args: jaxviz.compiled_memory(f, *args))
        without, read = seconds(lambda compiled=compiled: jaxviz.compiled_memory(compiled))
        rows.append((f.__name__, of_jax, with_function, without, found.attributed, read.attributed))
    return rows


def run(quick: bool) -> None:
    """Measures in this process, which has eight devices."""
    sys.path[:0] = [str(TESTS), str(TESTS / "features" / "compiled_memory")]
    import compiled_programs

    programs = dict(list(compiled_programs.PROGRAMS.items())[: 5 if quick else None])
    measure(dict(list(programs.items())[:1]), compiled_programs.STEPS)  # imports, and XLA's first compilation
    rows = measure(programs, compiled_programs.STEPS)
    print(
        "\nMemory of compiled programs: CPU time compared with JAX's own compilation, and the share of the temporaries "
        "with a line"
    )
    print(f"  {'':22}{'JAX':>9}{'with f':>9}{'Compiled':>9}   with f  Compiled")
    for name, of_jax, with_function, without, found, read in rows:
        print(f"  {name:22}{of_jax:7.2f} s{with_function:7.2f} s{without:7.2f} s{found:9.1%}{read:10.1%}")
    sums = [sum(row[i] for row in rows) for i in (1, 2, 3)]
    print(
        f"  {'all':22}{sums[0]:7.2f} s{sums[1]:7.2f} s{sums[2]:7.2f} "
        f"s{min(r[4] for r in rows):9.1%}{min(r[5] for r in rows):10.1%}   (the least share)"
    )


def main(quick: bool = False) -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}"
    command = [sys.executable, "-m", "benchmarks.compiled_memory", "--here", *(["--quick"] if quick else [])]
    subprocess.run(command, env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}, check=True)


if __name__ == "__main__":
    if "--here" in sys.argv:
        run("--quick" in sys.argv)
    else:
        main("--quick" in sys.argv)
