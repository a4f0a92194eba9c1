"""Plans compared with the checkpoints that people write: the FLOPs that a plan recomputes at the same peak, and XLA's
figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jaxviz
from benchmarks.remat_programs import CASES, SMALL, Case, llama
from jaxviz.derivation import derive
from jaxviz.features.remat.forms import Trade
from jaxviz.features.remat.plan import RematPlan
from jaxviz.features.remat.search import Search
from jaxviz.report.tables import format_bytes


def comes_to(f: Callable[..., Any], case: Case) -> Trade:
    """The modelled peak of a function's gradient, and the FLOPs that its checkpoints recompute."""
    return Search(derive(f, *case.args), False).written


def against(case: Case) -> dict[str, tuple[Trade, RematPlan | None]]:
    """For each way that people write checkpoints its figures, and the plan with the same peak; None if there is
    none."""
    found: dict[str, tuple[Trade, RematPlan | None]] = {}
    plans: dict[int, RematPlan | None] = {}
    for name, f in case.variants.items():
        theirs = comes_to(f, case)
        if theirs.peak_nbytes not in plans:
            try:
                plans[theirs.peak_nbytes] = jaxviz.plan_remat(case.plain, *case.args, memory=theirs.peak_nbytes)
            except ValueError:
                plans[theirs.peak_nbytes] = None
        found[name] = theirs, plans[theirs.peak_nbytes]
    return found


def table(quick: bool) -> None:
    print("\nPlans compared with common checkpoints: modelled peak, and GFLOPs recomputed")
    more = total = 0
    for name, make in (SMALL if quick else CASES).items():
        case = make()
        opened = Search(derive(case.plain, *case.args), False).opened
        print(f"  {name}: {format_bytes(opened.peak_nbytes)} without a checkpoint")
        for variant, (theirs, plan) in against(case).items():
            total += 1
            more += plan is None or plan.flops > theirs.flops
            ours = (
                "none found" if plan is None else f"{plan.flops / 1e9:>12,.3f}, {plan.flops / theirs.flops:.3f} of it"
            )
            peak = format_bytes(theirs.peak_nbytes)
            print(f"    {variant:34} {peak:>10} {theirs.flops / 1e9:>12,.3f}; plan {ours}", flush=True)
    print(f"  a plan recomputes more in {more} of {total}")


def temporaries() -> None:
    print("\nXLA's temporaries of scanned programs: as written, and with a plan with up to a third more work")
    for name, make in SMALL.items():
        case = make()
        if not case.is_scanned:
            continue
        plan = jaxviz.plan_remat(case.plain, *case.args, work="33%")
        found = plan.verify()
        before, after = found.before.temporaries, found.after.temporaries
        print(
            f"  {name:28} {format_bytes(before):>10} → {format_bytes(after):>10}, {after / before:.2f} of it",
            flush=True,
        )


def how_long() -> None:
    print("\nPlanning a transformer of 32 layers and 7 billion parameters, seconds")
    for is_scanned in (True, False):
        case = llama(32, is_scanned)
        for bound in ({}, {"work": "10%"}, {"memory": "40GiB"}):
            start = time.perf_counter(), time.process_time()
            plan = jaxviz.plan_remat(case.plain, *case.args, **bound)
            took, of_processor = time.perf_counter() - start[0], time.process_time() - start[1]
            kind = "scanned" if is_scanned else "unrolled"
            print(f"  {kind}, {bound or 'no bound'}: {took:.1f}, {of_processor:.1f} of CPU time; {plan.summary}")


def main(quick: bool = False) -> None:
    table(quick)
    temporaries()
    if not quick:
        how_long()
