"""The numbers that trade the quality of plans for the time of planning.

Each was set on the programs of `benchmarks/remat_programs.py`, of which `python -m benchmarks.remat` measures the plans.
"""

WORTH = 0.01
"""The share of a peak, or of a gradient's FLOPs, that is worth changing the source for."""
NEAR = 0.02
"""The share by which figures may differ that count as equal: how exact estimates are, and how exactly peaks are searched for."""
EXACT = 0.001
"""How exactly an optimum is computed, and a bound of it, as a share of it."""
TRIALS = 7
"""How many plans of one kind are measured one after the other, where each measurement tells which is the next."""
ALTERNATIVES = 3
"""How many alternatives of one kind are tried that do not depend on each other: sets of regions, lengths of chunks."""
NAMES = 8
"""With at most this many names, a function's values are chosen among all sets of them."""
DERIVED = 30_000
"""How many equations are derived in total for what only sometimes finds a better plan."""
SMALL = 3_000
"""The equations of a program, or the unknowns of a problem, up to which everything is tried, and otherwise less."""
