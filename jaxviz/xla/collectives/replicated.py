"""Values that are replicated without being asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from jaxviz.analysis.implied import axes_text
from jaxviz.ir.origin import Location
from jaxviz.report.tables import type_text
from jaxviz.xla.collectives.causes import Causes
from jaxviz.xla.collectives.report import Replicated
from jaxviz.xla.compat.reshards import Needs, Split
from jaxviz.xla.compiled_memory.places import Places


def find_replicated(causes: Causes, names: Sequence[str], mesh: Mapping[str, int]) -> Iterator[Replicated]:
    """Arguments without a sharding, gradients laid out unlike their arguments, and values that each device computes.

    Args:
      causes: with the layouts.
      names: of the results.
      mesh: the size of each axis.
    """
    places, needs = causes.places, causes.needs
    at = places.definition
    types = dict(zip(places.programs[0].arg_names, places.programs[0].in_avals, strict=False))
    for path, split, is_said in needs.arguments:
        missing = _missing(split, mesh)
        if not is_said and missing and path in types and split.nbytes >= math.prod(mesh.values()):
            yield _row(path, types[path], split, missing, mesh, at, "this argument has no sharding", "")
    yield from _gradients(causes, names, types, mesh)
    yield from _computed_in_full(places, needs, mesh)


def _gradients(
    causes: Causes, names: Sequence[str], types: Mapping[str, object], mesh: Mapping[str, int]
) -> Iterator[Replicated]:
    """The gradients that are replicated over axes over which the argument is split."""
    start = "the gradient in "
    for (_, split, is_said), name in zip(causes.needs.results, names, strict=False):
        path = name.removeprefix(start)
        layout = causes.arguments.get(path)
        if is_said or not name.startswith(start) or layout is None:
            continue
        missing = tuple(a for a in _missing(split, mesh) if a in layout.axes)
        if missing and path in types:
            why = f"`{path}` is split over {axes_text(missing)}, but the layout of its gradient is left to XLA"
            advice = "`jax.jit(jax.grad(f), out_shardings=…)` with the sharding of the argument splits its gradient"
            yield _row(name, types[path], split, missing, mesh, causes.places.definition, why, advice)


def _computed_in_full(places: Places, needs: Needs, mesh: Mapping[str, int]) -> Iterator[Replicated]:
    """Large values that are computed from no argument and no split value."""
    least = max((split.nbytes // max(1, _parts(split, mesh)) for _, split, _ in needs.arguments), default=0)
    seen: set[int] = set()
    for path, split in needs.constants:
        missing = _missing(split, mesh)
        if len(missing) < len(mesh) or split.nbytes <= max(least, 1024):
            continue
        for number in places.tags.named(path)[:1]:
            if number not in seen:
                seen.add(number)
                what, location, _ = places.label(number)
                equation = places.makers[number].equation
                avals = (v.aval for v in equation.outvars)
                aval = next((a for a in avals if tuple(getattr(a, "shape", ())) == split.shape), None)
                if aval is not None and not equation.programs:
                    why = "each device computes all of it; no split value is involved"
                    advice = "split it with `jax.lax.with_sharding_constraint`"
                    yield _row(what, aval, split, missing, mesh, location, why, advice)


def _missing(split: Split, mesh: Mapping[str, int]) -> tuple[str, ...]:
    used = {a.partition(":")[0] for a in split.axes}
    return tuple(a for a, n in mesh.items() if n > 1 and a not in used)


def _parts(split: Split, mesh: Mapping[str, int]) -> int:
    return math.prod(mesh.get(a, 1) for a in split.axes)


def _row(
    what: str, aval: object, split: Split, missing: tuple[str, ...], mesh: Mapping[str, int],
    at: Location | None, why: str, advice: str
) -> Replicated:  # fmt: skip
    nbytes = split.nbytes // max(1, _parts(split, mesh))
    return Replicated(
        what, type_text(aval), missing, nbytes, nbytes // math.prod(mesh[a] for a in missing), at, why, advice
    )
