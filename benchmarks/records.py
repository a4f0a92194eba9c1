"""What records cost: to make one of each call of a gradient, and to compare two files of them.

`python -m benchmarks.records [--quick]`. What a recorded call costs is a median of ratios of runs that alternate, in
one process; that of memory is on what XLA allocates for one run of a record. A recorded call is the call and one run of
the record, or that alone with `once=True`, which the targets are for; the noise, of which the first calls and then ever
fewer take two more, is not in it.

A record has 23 numbers of each array, whatever its size, so that of a small model with the layers of a large one is as
large as that of the large one.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import jaxviz
from benchmarks.addresses import numbers
from benchmarks.capture import arguments, compare, loss
from benchmarks.models import scan_transformer, transformer
from benchmarks.remat_programs import llama
from jaxviz.analysis.addresses import address
from jaxviz.features.values.recording import prepared

gradient = jax.value_and_grad(loss)


def _once(*addresses: str) -> Callable[..., Any]:
    found = prepared(gradient, arguments(), {}, None, False, at=[address(a) for a in addresses])
    return lambda *args: found.run_once(jax.tree.leaves(args), returns=True)


def _beside(*addresses: str) -> Callable[..., Any]:
    found = prepared(gradient, arguments(), {}, None, False, at=[address(a) for a in addresses])
    call = jax.jit(gradient)
    return lambda *args: (call(*args), found.run_once(jax.tree.leaves(args)))


EACH_LAYER = "layer › h"
FORMS = {"each layer": ((EACH_LAYER,), 1.25), "every value": ((), 3.0)}
"""What is recorded, and the most that a call of which it is should take of the time of the gradient."""
MOST_MEMORY = 1.15
"""Of the gradient's temporary memory, for a record of each layer."""


def _llama() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    case = llama(32, True, width=64, hidden=172, batch=1, length=16)
    return case.make(lambda layer: layer), numbers(case.args)


RECORDED: dict[str, Callable[[], Any]] = {
    "transformer, 12 layers in Python": lambda: transformer(12),
    "transformer, 12 layers in a scan": lambda: scan_transformer(12),
    "transformer, 32 layers in a scan, as of 7B": _llama,
    "transformer, 200 layers in a scan": lambda: scan_transformer(200),
}
MOST_SECONDS, MOST_MB = 2.0, 5.0
"""To compare two files, and of one."""


def _against(figure: float, most: float, unit: str = "") -> str:
    return f"{figure:.3g}{unit} (target {most:g}{unit}{'' if figure <= most else ', missed'})"


def main(quick: bool = False) -> None:
    print("Records")
    args = jax.block_until_ready(arguments())
    plain = jax.jit(gradient)
    for name, (addresses, most) in FORMS.items():
        once, beside = (compare(plain, f(*addresses), args, 7 if quick else 25) for f in (_once, _beside))
        what = f"a call of which {name} is recorded, of the time of the gradient"
        print(f"  {what}: {_against(once, most)}; {beside:.3g} beside the function")
    compiled = [f.lower(*args).compile() for f in (plain, jax.jit(_once(EACH_LAYER)))]
    held = [c.memory_analysis().temp_size_in_bytes for c in compiled]
    print(f"  a record of each layer, of the gradient's temporary memory: {_against(held[1] / held[0], MOST_MEMORY)}")
    with tempfile.TemporaryDirectory() as folder:
        for name, make in list(RECORDED.items())[: 2 if quick else None]:
            fun, given = make()
            record = jaxviz.record(fun, *given)
            file = record.save(Path(folder) / "a.jaxviz")
            start = time.perf_counter()
            jaxviz.divergence(file, file)
            took = time.perf_counter() - start
            mb = file.stat().st_size / 1e6
            size, time_taken = _against(mb, MOST_MB, " MB"), _against(took, MOST_SECONDS, " s")
            print(f"  {name}, {record.n_arrays:,} arrays: {size}, two compared in {time_taken}", flush=True)


if __name__ == "__main__":
    main("--quick" in sys.argv)
