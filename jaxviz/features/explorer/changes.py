"""The differences between two versions of a function in an explorer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jaxviz.features.comparison.alignment import Alignment
from jaxviz.features.comparison.report import Comparison
from jaxviz.features.explorer.messages import ChangedFigure, Changes, DifferenceRow, StageChanges
from jaxviz.ir.stack import deep_stack
from jaxviz.page.texts import fit


@deep_stack
def changes_of(comparison: Comparison) -> Changes:
    """The differences as JSON values; equations are numbered as in the listing of their stage."""
    residuals = comparison.residuals if "backward" in comparison.alignments else ()
    changes: Changes = {
        "functions": comparison.functions,
        "summary": comparison.summary,
        "stages": {key: _stage(a) for key, a in comparison.alignments.items()},
        "figures": [ChangedFigure(*f.cells, f.share, f.unit) for f in comparison.figures],
        "residuals": [DifferenceRow(r.change > 0, *r.difference.cells) for r in residuals],
    }
    shown: Changes = fit(changes)
    return shown


def follow(comparison: Comparison, selected: str) -> str:
    """The counterpart in the second version of an equation of the first, such as 'primal:12'; '' if there is none."""
    stage, _, number = selected.partition(":")
    alignment = comparison.alignments.get(stage)
    counterpart = dict(alignment.pairs).get(int(number)) if alignment is not None else None
    return f"{stage}:{counterpart}" if counterpart is not None else ""


def _stage(alignment: Alignment) -> StageChanges:
    return {
        "pairs": list(_runs(alignment.pairs)),
        "removed": list(_runs([(i,) for i in alignment.removed])),
        "added": list(_runs([(j,) for j in alignment.added])),
    }


def _runs(places: Iterable[Sequence[int]]) -> Iterable[Any]:
    """Runs of consecutive numbers, each as its first number and its length."""
    run: list[int] = []
    for place in places:
        *starts, n = run or [0]
        if run and all(p == s + n for p, s in zip(place, starts, strict=True)):
            run[-1] += 1
            continue
        if run:
            yield tuple(run)
        run = [*place, 1]
    if run:
        yield tuple(run)
