"""How much `jaxviz run` costs a script: a step after compiling, and what comes before it.

    python -m benchmarks.runs

The steps of one script are timed in processes that take turns, with and without `jaxviz run`; the ratio is that of the
medians of all steps but the first. What the analysis takes beside the job is not part of it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
import json, time
import jax, jax.numpy as jnp

def layer(x, w):
    return x + jnp.tanh(x @ w), None

def loss(w, x):
    return jnp.mean(jax.lax.scan(layer, x, w)[0] ** 2)

@jax.jit
def train_step(w, x):
    return w - 0.01 * jax.grad(loss)(w, x)

began = time.perf_counter()
w, x = jnp.ones((8, 256, 256)) / 256, jnp.ones((128, 256))
w = jax.block_until_ready(train_step(w, x))
first = time.perf_counter() - began
time.sleep(4)  # the analysis beside the job is over
times = []
for _ in range(300):
    began = time.perf_counter()
    w = jax.block_until_ready(train_step(w, x))
    times.append(time.perf_counter() - began)
print(json.dumps([first, times]))
"""
TURNS = 5


def main() -> None:
    plain, watched = [], []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(SCRIPT)
        for _ in range(TURNS):
            plain.append(_run(folder, "train.py"))
            watched.append(_run(folder, "-m", "jaxviz", "run", "train.py"))
    steps = [statistics.median(t for _, times in runs for t in times) for runs in (plain, watched)]
    firsts = [statistics.median(first for first, _ in runs) for runs in (plain, watched)]
    print(f"a step: {1e3 * steps[0]:.3f} ms, with jaxviz run {1e3 * steps[1]:.3f} ms: {steps[1] / steps[0]:.3f} times")
    print(f"to the first step, from the first line after the imports: {firsts[0]:.2f} s, {firsts[1]:.2f} s")


def _run(folder: str, *words: str) -> tuple[float, list[float]]:
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=True)
    first, times = json.loads(done.stdout)
    return first, times


if __name__ == "__main__":
    main()
