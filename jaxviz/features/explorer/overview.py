"""The overview: what a gradient saves, by expression; the scopes that it runs; and its peak, also in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxviz.analysis.checkpoints import in_short, names_without_effect
from jaxviz.features.explorer.boxes import Boxes
from jaxviz.features.explorer.numbers import Numbers
from jaxviz.features.explorer.scopes import Item, Items, Scope, scopes_of
from jaxviz.features.flow.find import not_reached
from jaxviz.features.residuals.residual_set import ResidualSet
from jaxviz.ir.syntax import Equation
from jaxviz.page.schema import COLUMNS, SCOPES, Headline
from jaxviz.report.tables import short_location

if TYPE_CHECKING:
    from jaxviz.features.explorer.rows import Rows
    from jaxviz.features.memory.timeline import MemoryTimeline


def add_kept(columns: dict[str, Any], numbers: Numbers, residuals: ResidualSet) -> None:
    """Adds the saved values by expression."""
    expressions = residuals.expressions
    number = {id(r): i for i, e in enumerate(expressions) for r in e.residuals}
    string = numbers.string
    columns.update(
        residual_kept=[number.get(id(r), -1) for r in residuals],
        kept_label=string.all(e.label for e in expressions),
        kept_location=[numbers.location(e.location) for e in expressions],
        kept_nbytes=[e.nbytes for e in expressions],
        kept_times=[e.times for e in expressions],
        kept_values=[e.values for e in expressions],
        kept_reason=string.all(e.reason for e in expressions),
    )


def headline_of(residuals: ResidualSet) -> Headline:
    """What is saved, in words."""
    saves = "; ".join([f"saves {residuals.saved}", *residuals.saved.remarks])
    return Headline(_keeps(residuals), _largest(residuals), saves=saves)


def _keeps(residuals: ResidualSet) -> str:
    """`saves 33.2 MiB for the backward pass; it reads 9.0 MiB of its arguments, which are in memory anyway`, and which
    policy has no effect."""
    saved = residuals.saved
    what = saved.size if saved.count else "nothing"
    idle = in_short(names_without_effect(residuals.checkpoints))
    some = not_reached(residuals.derivation)
    return "; ".join(filter(None, [f"saves {what} for the backward pass", idle, some, *saved.remarks[:1]]))


def _largest(residuals: ResidualSet) -> str:
    """``45 % of it for `jax.nn.gelu(x @ w)` at model.py:12``."""
    total = residuals.saved.nbytes
    if len(residuals.expressions) < 2 or not total:
        return ""
    first = residuals.expressions[0]
    share = round(100 * first.nbytes / total)
    return f"{share} % of it for `{first.label}` ({short_location(first.location)})"


def said_of_peak(timeline: MemoryTimeline) -> str:
    """``modelled peak 43.7 MiB on each device in the backward pass, at `jax.nn.gelu(x @ w)` (model.py:12)``."""
    # Imported here, since the first view is sent before.
    from jaxviz.features.memory.timeline import peak_text

    return "modelled " + peak_text(timeline, " on each device" * (timeline.n_devices > 1)) if timeline.steps else ""


def add_scopes(
    columns: dict[str, Any],
    numbers: Numbers,
    timeline: MemoryTimeline,
    rows: Sequence[int],
    rows_of: Rows,
    places: Sequence[Mapping[tuple[int, Equation], int]],
) -> None:
    """Adds the scopes of both passes, in the order of the steps of the modelled memory.

    Args:
      rows: the rows of the steps.
      rows_of: all rows.
      places: for the forward and the backward stage, the row of each equation, by the row that contains its program and
        the equation.
    """
    strings = list(numbers.string.number)
    paths: dict[int, tuple[str, ...]] = {}
    scope, location, program = (
        np.asarray(columns[f"equation_{name}"]).tolist() for name in ("scope", "location", "program")
    )
    holder = np.asarray(columns["program_owner"])[program].tolist()
    is_user = [file.is_user for file in numbers.sources.files()]
    lines = {
        i: (file, line)
        for i, (file, line) in enumerate(zip(columns["location_file"], columns["location_line"], strict=True))
        if is_user[file]
    }
    first: dict[tuple[int, int], int] = {}
    line_of = {i: first.setdefault(line, i) for i, line in lines.items()}

    def path_of(row: int) -> tuple[str, ...]:
        number = scope[row]
        if number not in paths:
            # einsum names a scope after its formula, which is not a user's name.
            paths[number] = tuple(name for name in strings[number].split("/") if name and "->" not in name)
        return paths[number]

    passes: tuple[list[Item], list[Item]] = ([], [])
    line_at = lambda row: line_of.get(location[row], -1)
    primal = timeline.derivation.primal
    boxes = Boxes(primal, lambda e: path_of(rows_of.first[e]), lambda e: line_at(rows_of.first[e]))
    of_pass = [Items(boxes, rows_of.equations, place, holder, path_of, line_at) for place in places]
    sizes = []
    for row, step in zip(rows, timeline.steps, strict=True):
        items = of_pass[step.is_backward].of_step(row, step.equation)
        passes[step.is_backward].extend(items)
        sizes.append(len(items))
    scopes: dict[str, list[Any]] = {name: [] for name in COLUMNS if name.startswith("scope_")}
    scope_rows: list[int] = []
    for is_backward, tops in enumerate(scopes_of(passes)):
        for top in tops:
            _add(scopes, scope_rows, numbers, top, is_backward, -1, location)
    scopes["scope_rows"] = [0, *accumulate(scopes["scope_rows"])]
    columns.update(scopes, row_of_scope=scope_rows, step_equations=sizes)


def _add(
    columns: dict[str, list[Any]], scope_rows: list[int], numbers: Numbers, scope: Scope, is_backward: int, parent: int,
    location: Sequence[int],
) -> None:  # fmt: skip
    number = len(columns["scope_parent"])
    inside = {i.row for child in scope.children for i in child.items}
    rows = [i.row for i in scope.items if i.row not in inside]
    scope_rows += rows
    for name, value in (
        ("parent", parent),
        ("backward", is_backward),
        ("name", numbers.string(scope.box.name)),
        ("kind", SCOPES.index(scope.box.kind)),
        ("count", scope.box.count),
        ("location", scope.line if scope.line >= 0 else location[scope.items[0].row]),
        ("flops", scope.flops),
        ("equations", len(scope.items)),
        ("rows", len(rows)),
    ):
        columns[f"scope_{name}"].append(value)
    for child in scope.children:
        _add(columns, scope_rows, numbers, child, is_backward, number, location)
