"""What an explorer shows of two versions of a function: mirrored by `widgets/src/model/changes.ts`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jaxviz.features.comparison.alignment import Alignment
from jaxviz.features.comparison.report import Comparison
from jaxviz.ir.stack import deep_stack
from jaxviz.page.texts import fit
from jaxviz.report.tables import short_location


@deep_stack
def changes_of(comparison: Comparison) -> dict[str, Any]:
    """The differences, as JSON values.

    Equations go by their numbers in the listing of their stage. What follows each other is one run: `[i, j, n]` says that the equations
    `i` to `i + n - 1` of the first version are `j` to `j + n - 1` of the second, `[i, n]` that there are `n` from `i` on.
    """
    residuals = comparison.residuals if "backward" in comparison.alignments else ()
    shown: dict[str, Any] = fit({
        "functions": list(comparison.functions),
        "summary": comparison.summary,
        "stages": {key: _stage(a) for key, a in comparison.alignments.items()},
        "figures": [[f.name, f.before, f.after, f.unit] for f in comparison.figures],
        "residuals": [
            [r.what, r.type, r.before, r.after, r.nbytes, short_location(r.location)] for r in residuals
        ],
    })  # fmt: skip
    return shown


def follow(comparison: Comparison, selected: str) -> str:
    """What an equation of the first version, such as 'primal:12', is in the second; '' if it is not there."""
    stage, _, number = selected.partition(":")
    alignment = comparison.alignments.get(stage)
    found = dict(alignment.pairs).get(int(number)) if alignment is not None else None
    return f"{stage}:{found}" if found is not None else ""


def _stage(alignment: Alignment) -> dict[str, Any]:
    return {
        "pairs": list(_runs(alignment.pairs)),
        "removed": list(_runs([(i,) for i in alignment.removed])),
        "added": list(_runs([(j,) for j in alignment.added])),
    }


def _runs(places: Iterable[Sequence[int]]) -> Iterable[list[int]]:
    """Places that follow each other as the first of them, with their number after it."""
    run: list[int] = []
    for place in places:
        *starts, n = run or [0]
        if run and all(p == s + n for p, s in zip(place, starts, strict=True)):
            run[-1] += 1
            continue
        if run:
            yield run
        run = [*place, 1]
    if run:
        yield run
