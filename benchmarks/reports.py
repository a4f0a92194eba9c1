"""Time that reports take to find, group and name what they show, compared with deriving the same function from
Python."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import jaxviz
from benchmarks.models import transformer
from jaxviz.analysis.grouping import grouped, repetition
from jaxviz.derivation import Derivation


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of some work, and its result."""
    gc.collect()
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def derived(n_layers: int) -> Derivation:
    """A transformer, traced and derived from scratch."""
    f, args = transformer(n_layers)
    derivation = jaxviz.derive(lambda *xs: f(*xs), *args)
    _ = derivation.forward, derivation.backward
    return derivation


def measure(n_layers: int) -> dict[str, float]:
    """Seconds of each, and the number of derived equations."""
    derived(1)
    jaxviz.clear_caches()
    took, d = seconds(lambda: derived(n_layers))
    times = {"equations": sum(1 for p in (d.forward, d.linear, d.backward) for _ in p.walk()), "derivation": took}
    times["residuals"], found = seconds(lambda: d.residuals)
    makers = [r.producer for r in found if r.producer is not None]
    times["grouping"], _ = seconds(lambda: (grouped(makers, repetition), found.groups))
    times["names"], _ = seconds(lambda: [(g.label, g.library) for g in found.groups])
    times["text"], _ = seconds(lambda: str(found))
    times["memory"], timeline = seconds(lambda: jaxviz.memory(d))
    times["at peak"], _ = seconds(lambda: timeline.alive)
    times["cost"], cost = seconds(lambda: jaxviz.cost(d))
    times["by expression"], _ = seconds(lambda: [g.label for g in cost.groups])
    return times


def main(quick: bool = False) -> None:
    print("Seconds to find, group and name the values in reports, and their share of the derivation from Python")
    for n_layers in (12, 100) if quick else (12, 100, 330):
        times = measure(n_layers)
        equations, derivation = times.pop("equations"), times["derivation"]
        print(f"{n_layers} layers, {equations:,} derived equations")
        for name, took in times.items():
            print(f"  {name:<16}{took:>8.3f} s{took / derivation:>8.0%}")


if __name__ == "__main__":
    main()
