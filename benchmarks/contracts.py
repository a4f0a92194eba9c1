"""How long it takes to lock a contract of a language model of 7 billion parameters, given as types, and to check it.

    python -m benchmarks.contracts

Each in a process of its own, as on the command line: with the import of JAX and the trace. Beside it stands how long
that process takes to import JAX and to trace the function, which no tool can do without.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = """
from benchmarks.remat_programs import llama

case = llama(32, {is_scanned}, batch=1, length=2048)
loss, args = case.plain, case.args
"""
TURNS = 3


def main(quick: bool = False) -> None:
    for is_scanned in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "model.py").write_text(MODEL.format(is_scanned=is_scanned))
            traced = "import jax, model; jax.make_jaxpr(jax.grad(model.loss))(*model.args)"
            words = {
                "JAX alone": ("-c", traced),
                "lock": ("-m", "jaxviz", "lock", "model.py:loss", "--args", "*args"),
                "check": ("-m", "jaxviz", "check"),
            }
            times: dict[str, list[float]] = {name: [] for name in words}
            for _ in range(1 if quick else TURNS):
                for name, command in words.items():
                    times[name].append(_seconds(folder, *command))
        what = ", ".join(f"{name} {statistics.median(of):.1f} s" for name, of in times.items())
        print(f"32 layers {'in a scan' if is_scanned else 'in Python'}: {what}")


def _seconds(folder: str, *words: str) -> float:
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    return time.perf_counter() - began


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
