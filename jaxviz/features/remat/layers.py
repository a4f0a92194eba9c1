"""Plans that save more in some layers of a loop than in others, written with a policy that depends on the loop's
index."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxviz.features.remat.choose import filled
from jaxviz.features.remat.edits import Edit, Way
from jaxviz.features.remat.forms import Trial
from jaxviz.features.remat.regions import Region, is_called_in_loop
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.source import end_of, holders_of, start_of
from jaxviz.ir.expressions import SCOPES
from jaxviz.ir.syntax import Var

_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class Layers:
    """A plan for the calls that a loop makes, with the loop's index in the source, and the edits that add one if it has
    none."""

    trial: Trial
    index: str
    edits: tuple[Edit, ...]

    @property
    def starts(self) -> list[int]:
        """The first call of each group."""
        starts = [0]
        for part, _ in self.trial.form.choices:
            starts.append(starts[-1] + len(part.spots))
        return starts[:-1]

    @property
    def saved(self) -> list[Sequence[Var]]:
        """What each group saves, as variables of its first call."""
        return [choice.saved for _, choice in self.trial.form.choices]

    def policy(self, names: Sequence[str]) -> str:
        """`SAVED if i < 8 else SAVED_2`."""
        ends = zip(names, names[1:], self.starts[1:], strict=False)
        first = "".join(f"{name} if {self.index} < {end} else " for name, after, end in ends if name != after)
        return first + names[-1]


def layered(search: Search, best: Trial, planned: Trial, ways: Mapping[Region, Sequence[Way] | None]) -> Layers | None:
    """A plan that uses the bytes that another plan leaves free, in only some of the layers; None if it cannot be
    written or has no effect."""
    region, *others = best.form.regions
    (way, *more) = ways[region] or (None,)
    if (
        search.offload is not None
        or others
        or more
        or way is None
        or way.call is None
        or region.is_body
        or len(best.form.choices) != 1
    ):
        return None
    frames = next(iter(region.stacks.values()), ())
    level = next((i for i, (code, _) in enumerate(frames) if code is way.code), 0)
    if any(is_called_in_loop(frame) for frame in frames[:level]) or len({s.program for s in region.spots}) > 1:
        return None
    index = _index(way.file, way.call)
    if index is None:
        return None
    peak = max(planned.trade.peak_nbytes, best.trade.peak_nbytes)
    trial = filled(search, best, None, lambda t: peak - t.peak_nbytes)
    order = [spot.start for part, _ in trial.form.choices for spot in part.spots]
    return Layers(trial, *index) if len(trial.form.choices) > 1 and order == sorted(order) else None


def _index(file: str, call: ast.Call) -> tuple[str, tuple[Edit, ...]] | None:
    """The index of the loop that makes a call once per iteration, and where it comes from; None if there is no such
    loop."""
    holders = list(holders_of(file, call))
    at = next((i for i, node in enumerate(holders) if isinstance(node, ast.stmt)), None)
    loop = holders[at + 1] if at is not None and at + 1 < len(holders) else None
    if at is None or not isinstance(loop, ast.For) or holders[at] not in loop.body:
        return None
    inside = [node for statement in loop.body for node in ast.walk(statement)]
    conditional = (ast.IfExp, ast.BoolOp, *_LOOPS, *SCOPES)
    function = next((i for i, node in enumerate(holders) if isinstance(node, SCOPES)), len(holders))
    if (
        any(isinstance(node, conditional) for node in holders[:at])
        or any(isinstance(node, _LOOPS) for node in holders[at + 2 : function])
        or any(isinstance(node, ast.Continue | ast.Break | ast.Return) for node in inside)
    ):
        return None
    stored = {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    match loop:
        case (
            ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=[_]))
            | ast.For(
                target=ast.Tuple(elts=[ast.Name(id=name), _]),
                iter=ast.Call(func=ast.Name(id="enumerate"), args=[_], keywords=[]),
            )
        ) if name not in stored:
            return name, ()
    holder = holders[function] if function < len(holders) else holders[-1]
    used = {node.id for node in ast.walk(holder) if isinstance(node, ast.Name)}
    index = next((word for word in ("i", "layer_index") if word not in used), None)
    if index is None:
        return None
    start, end = start_of(loop.target), end_of(loop.target)
    bare = isinstance(loop.target, ast.Tuple) and start == start_of(loop.target.elts[0])
    before, after = start_of(loop.iter), end_of(loop.iter)
    edits = [Edit(file, start, start, f"{index}, {'(' if bare else ''}", end)]
    edits += [Edit(file, end, end, ")", start)] if bare else []
    edits += [Edit(file, before, before, "enumerate(", after), Edit(file, after, after, ")", before)]
    return index, tuple(edits)
