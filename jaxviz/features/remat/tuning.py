"""The numbers that trade the quality of plans for the time of planning.

Each was set on the programs of `benchmarks/remat_programs.py`, of which `python -m benchmarks.remat` measures the
plans. What follows was measured on twenty plans, for five of the small programs within four bounds.
"""

WORTH = 0.01
"""The share of a peak, or of a gradient's FLOPs, that is worth changing the source for.

At half of it, two plans within residuals had a peak that was 0.4 % higher, for less than 0.1 % of the FLOPs.
"""
NEAR = 0.02
"""The share by which figures may differ that count as equal: how exact estimates are, and how exactly peaks are
searched for.

At half of it, a plan took 19 % more work for a peak that was 0.2 % higher; there and at 5 %, one peak was 2.6 % higher.
"""
EXACT = 0.001
"""How exactly an optimum is computed, and a bound of it, as a share of it.

At twice as much, a plan was said to be 0.2 % above the lowest peak that was 0.1 % above it.
"""
TRIALS = 7
"""How many plans of one kind are measured one after the other, where each measurement tells which is the next.

With 3, three of the plans were up to 0.2 % worse; with 14, none was 0.1 % better.
"""
ALTERNATIVES = 3
"""How many alternatives of one kind are tried that do not depend on each other: sets of regions, lengths of chunks.

With one, four of the plans were up to 0.5 % worse; with 6, none was better, in nearly twice the time.
"""
NAMES = 8
"""With at most this many names, a function's values are chosen among all sets of them: a transformer of MaxText has
eight. Of those with the same bytes some fit where others do not."""
DERIVED = 20_000
"""How many equations are derived in total for what only sometimes finds a better plan: sixty plans of 337 equations for
the lowest peak of a transformer, which is 0.7 % lower than what was found before."""
SMALL = 3_000
"""The equations of a program, or the unknowns of a problem, up to which everything is tried, and otherwise less.

At a tenth, two plans within residuals took 5 and 11 % more work, the latter for a peak that was 5 % lower; at ten times
as much, one had a peak that was 2.6 % higher, for 2 % less work.
"""


def is_lower(peak: int, before: int) -> bool:
    """Whether a peak is lower than another one by what is worth changing the source for."""
    return before - peak >= WORTH * before and peak < before
