"""How far the modelled peak of a gradient is from that of the program that XLA compiles, for small versions of real
models.

`python -m benchmarks.memory [--quick]`; each program as written, and with a checkpoint around each of its layers.
"""

from __future__ import annotations

import statistics
import sys

import jax

import jaxviz
from benchmarks.remat_programs import SMALL, no_wrap

_NEAR = 0.2


def main(quick: bool) -> None:
    """Prints the bytes besides the arguments, by the model and by XLA, and their ratios."""
    ratios = []
    print("\nPeak besides the arguments, MiB: the model's, XLA's on this backend, and their ratio")
    for name in list(SMALL)[: 3 if quick else None]:
        case = SMALL[name]()
        for how, wrap in (("as written", no_wrap), ("checkpoints", jax.checkpoint)):
            timeline = jaxviz.memory(case.make(wrap), *case.args)
            arguments, xla = timeline.steps[timeline.peak].nbytes[0], timeline.xla
            assert xla is not None
            modelled, found = timeline.peak_nbytes - arguments, xla.temporaries + xla.results - xla.reused
            ratios.append(modelled / found)
            print(f"  {name:28}{how:13}{modelled / 2**20:9.2f}{found / 2**20:9.2f}{ratios[-1]:8.2f}")
    near = sum(abs(r - 1) <= _NEAR for r in ratios)
    errors = [abs(r - 1) for r in ratios]
    print(
        f"  median ratio {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}; "
        f"median error {statistics.median(errors):.0%}; {near} of {len(ratios)} within {_NEAR:.0%}"
    )


if __name__ == "__main__":
    main("--quick" in sys.argv)
