"""Flame graphs, as a picture and for speedscope."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxviz.report.charts import FlameGraph
from jaxviz.report.data import Data
from jaxviz.report.tables import format_seconds

COLOURS = {
    "phase": "#c7cdd4", "user": "#f0a35e", "jax": "#8fb8de", "derivation": "#b89bd9", "xla": "#8cc5a0",
    "other": "#dddddd",
}  # fmt: skip
"""The kind of a bar -> its colour."""

KINDS = {"user": "your lines", "jax": "jax", "derivation": "derivation", "xla": "XLA", "other": "other"}
"""The names of the kinds of bars in a legend, except the phases, which are named by themselves."""

Path = tuple[tuple[str, str], ...]
"""Name and kind of each bar, from the bottom up."""

_LEAST = 0.002
"""The minimum share of the whole for a bar to be drawn."""


@dataclass(frozen=True)
class Flame(Data):
    """A bar with its children.

    Args:
      name: its label.
      kind: a key of `COLOURS`.
      seconds: its width, including its children.
      parts: its children, in the order in which they were added.
    """

    name: str
    kind: str
    seconds: float
    parts: tuple[Flame, ...] = ()

    def placed(self, left: float = 0.0, depth: int = 0, least: float = 0.0) -> Iterator[tuple[Flame, float, int]]:
        """Each bar with its left end in seconds and its depth, those shorter than `least` left out."""
        yield self, left, depth
        for part in self.parts:
            if part.seconds >= least:
                yield from part.placed(left, depth + 1, least)
            left += part.seconds


def flame_of(
    paths: Iterable[tuple[Path, float]], name: str, kind: str = "phase", seconds: float | None = None
) -> Flame:
    """The bars of paths with the time each took; bars with the same path are merged.

    Args:
      paths: the bars above this one.
      name, kind: of the bar itself.
      seconds: the total, to which the paths are scaled; the sum of theirs by default.
    """
    paths = list(paths)
    total = sum(s for _, s in paths)
    scale = 1.0 if seconds is None or not total else seconds / total
    return Flame(name, kind, total if seconds is None else seconds, _parts([(p, s * scale) for p, s in paths]))


def _parts(paths: Sequence[tuple[Path, float]]) -> tuple[Flame, ...]:
    groups: dict[tuple[str, str], list[tuple[Path, float]]] = {}
    for path, seconds in paths:
        if path:
            groups.setdefault(path[0], []).append((path[1:], seconds))
    return tuple(Flame(*key, sum(s for _, s in group), _parts(group)) for key, group in groups.items())


def speedscope(flame: Flame, name: str) -> dict[str, Any]:
    """The bars in the format of https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources."""
    frames: dict[str, int] = {}
    samples: list[list[int]] = []
    weights: list[float] = []

    def add(bar: Flame, below: list[int]) -> None:
        stack = [*below, frames.setdefault(bar.name, len(frames))]
        samples.append(stack)
        weights.append(max(0.0, bar.seconds - sum(p.seconds for p in bar.parts)))  # its own time
        for part in bar.parts:
            add(part, stack)

    add(flame, [])
    shown = {"type": "sampled", "name": name, "unit": "seconds", "startValue": 0, "endValue": sum(weights)}
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "jaxviz",
        "name": name,
        "shared": {"frames": [{"name": frame} for frame in frames]},
        "profiles": [{**shown, "samples": samples, "weights": weights}],
    }


def chart_of(flame: Flame, title: str) -> FlameGraph:
    """The bars that are long enough to be drawn."""
    rows = [(b.name, b.kind, left, b.seconds, depth) for b, left, depth in flame.placed(least=_LEAST * flame.seconds)]
    rows[0] = (f"{flame.name} {format_seconds(flame.seconds)}", *rows[0][1:])
    return FlameGraph(rows, COLOURS, KINDS, title)
