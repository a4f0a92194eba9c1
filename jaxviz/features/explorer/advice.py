"""Advice on the peak of a gradient: the best plan in a sentence, and the effect of a checkpoint on each of the largest
saved expressions."""

from __future__ import annotations

from collections.abc import Iterable

from jaxviz.analysis.checkpoints import in_short
from jaxviz.features.explorer.messages import PeakAdvice
from jaxviz.features.explorer.whatif import Switches
from jaxviz.features.remat.forms import Trade
from jaxviz.features.remat.planning import lowest_of_all
from jaxviz.features.remat.tuning import NEAR
from jaxviz.features.remat.without_effect import found_by_leaving_out
from jaxviz.features.residuals.residual import SavedExpression
from jaxviz.features.residuals.residual_set import ResidualSet
from jaxviz.ir.collector import collector_paused
from jaxviz.ir.origin import Location
from jaxviz.report.tables import format_bytes

_CARDS = 3
"""How many of the largest expressions are considered."""

_REGIONS = 2
"""How many regions are tried for each, smallest first."""

_NO_MORE = "no more work"
_MORE = f"more than {100 * NEAR:.0f} %"


@collector_paused()
def advice_of(residuals: ResidualSet, switches: Switches) -> PeakAdvice:
    """Each figure is measured, like those of the switches, by deriving the function with these checkpoints; that of the
    plan with its code in place, if it can be written."""
    number = {id(r): i for i, r in enumerate(residuals)}
    key = switches.plan()
    trade = switches.trade(key)
    written = switches.search.written
    cards = [_card(switches, [number[id(r)] for r in e.residuals], e) for e in residuals.expressions[:_CARDS]]
    helps = isinstance(trade, Trade) and _lowers(written, trade)
    idle = in_short(found_by_leaving_out(switches.derivation))
    if not helps:
        lowest = lowest_of_all(switches.search).trade
        peak = format_bytes(written.peak_nbytes)
        sentence = (
            f"{_more_work(switches, lowest)} would bring the peak to {format_bytes(lowest.peak_nbytes)}"
            if _lowers(written, lowest)
            else f"no checkpoint that was tried lowers the peak of {peak} by {_MORE}"
        )
        return PeakAdvice(sentence=sentence, idle=idle, setting="", cards=cards, error="")
    assert isinstance(trade, Trade)
    more = _more_work(switches, trade)
    code = switches.written(key)
    by = (
        "checkpoints"
        if code.files or code.trade is not None
        else "checkpoints by plan.apply, which your source cannot have,"
    )
    to = f"would bring the peak to {format_bytes(trade.peak_nbytes)}"
    is_plain = by == "checkpoints" and more != _NO_MORE
    sentence = f"{more} {to}" if is_plain else f"{by} {to} for {more}"
    return PeakAdvice(sentence=sentence, idle=idle, setting=key, cards=cards, error="")


def _card(switches: Switches, residuals: Iterable[int], expression: SavedExpression) -> str:
    """``Recomputing it in a checkpoint around `block` brings the peak from 43.7 MiB to 31.2 MiB, for 0.3 % more
    work``."""
    mine = set(residuals)
    stand_in = lambda i: {switches.number[v] for v in switches.residuals[i] if v in switches.number}
    values = set[int]().union(*map(stand_in, mine))
    # A value that is also saved in place of other residuals stays saved.
    others = set[int]().union(*(stand_in(i) for i in range(len(switches.residuals)) if i not in mine))
    values = values - others or values
    if not values:
        is_computed = any(r.kind == "intermediate" for r in expression.residuals)
        what = (
            "The backward pass begins with it, so recomputing it frees nothing."
            if is_computed
            else "It is a constant, which no checkpoint recomputes."
        )
        planned = _planned(switches, expression)
        return f"{planned[:1].upper()}{planned[1:]}." if planned else what
    written = switches.search.written
    effects: list[tuple[bool, Trade, str, str]] = []
    peak = f"the peak from {format_bytes(written.peak_nbytes)} to"
    holding = [i for i in range(len(switches.regions)) if values & switches.choices(i)]
    for i in sorted(holding, key=lambda i: len(switches.choices(i)))[:_REGIONS]:
        choices = switches.choices(i)
        around = switches.named(i)
        with_it = switches.trade(switches.key([i], choices))
        again, then = f"Recomputing it in a checkpoint around {around} brings {peak}", ""
        if isinstance(with_it, Trade) and _lowers(written, with_it):
            again = f"A checkpoint around {around} brings {peak} {format_bytes(with_it.peak_nbytes)}, and to"
            then = " if it recomputes this value"
        nothing = f"A checkpoint around {around} that saves nothing brings {peak}"
        for saved, said, condition in ((choices - values, again, then), (set[int](), nothing, "")):
            trade = switches.trade(switches.key([i], saved))
            # An effect that the checkpoint also has while saving it is not due to recomputing it.
            less = not isinstance(with_it, Trade) or (isinstance(trade, Trade) and _lowers(with_it, trade))
            if isinstance(trade, Trade) and _lowers(written, trade) and less:
                effects.append((bool(saved), trade, said, condition))
    if not effects:
        planned = _planned(switches, expression)
        alone, then = (" alone", f"; {planned}") if planned else ("", "")
        return f"Recomputing it{alone} would not lower the peak by {_MORE}{then}."
    _, best, said, condition = max(effects, key=lambda f: (f[0], _worth(switches, f[1])))
    return f"{said} {format_bytes(best.peak_nbytes)}{condition}, for {_more_work(switches, best)}."


def _planned(switches: Switches, expression: SavedExpression) -> str:
    """``with the suggested checkpoints its line saves 1.0 KiB instead of 2.0 KiB``; '' if none are suggested for the
    function, or if they change nothing there."""
    key = switches.plan()
    trade = switches.trade(key)
    if not key or not isinstance(trade, Trade) or not _lowers(switches.search.written, trade):
        return ""
    before, after = (_of_line(d.residuals, expression.location) for d in (switches.derivation, switches.derived(key)))
    if after >= before:
        return ""
    now = f"{format_bytes(after)} instead of {format_bytes(before)}" if after else "nothing"
    return f"with the suggested checkpoints its line saves {now}"


def _of_line(residuals: ResidualSet, location: Location) -> int:
    """The bytes that the gradient saves for a line of the user's."""
    line = location.file, location.line
    return sum(
        r.nbytes_on_one for r in residuals if r.kind == "intermediate" and (r.location.file, r.location.line) == line
    )


def _worth(switches: Switches, trade: Trade) -> float:
    """The share by which the peak falls, minus the share of additional work."""
    written = switches.search.written
    fallen = (written.peak_nbytes - trade.peak_nbytes) / max(written.peak_nbytes, 1)
    return fallen - (trade.work - written.work) / max(switches.search.plain_flops, 1)


def _lowers(written: Trade, trade: Trade) -> bool:
    return written.peak_nbytes - trade.peak_nbytes > NEAR * written.peak_nbytes


def _more_work(switches: Switches, trade: Trade) -> str:
    """`3 % more work`; less work if existing checkpoints are removed."""
    more = trade.work - switches.search.written.work
    share = 100 * more / max(switches.search.plain_flops, 1)
    if share <= -1:
        return f"{-share:.0f} % less work"
    if more <= 0:
        return _NO_MORE
    if share < 0.05:
        return "under 0.1 % more work"
    return f"{share:.1f} % more work" if share < 10 else f"{share:.0f} % more work"
