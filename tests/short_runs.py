"""Selects the cases that `make test` runs; `make test-all` runs all of them."""

import pytest


def short(cases, only):
    """The cases as parameters; those that `only` does not select are left to the sweeps.

    Args:
      only: the selected cases; or a number n, for every nth.
    """
    return short_rows([(c,) for c in cases], only if isinstance(only, int) else [(c,) for c in only])


def short_rows(rows, only):
    """The same of cases that are rows: tuples of several parameters, or what `pytest.param` makes of them."""
    kept = set(range(0, len(rows), only)) if isinstance(only, int) else {i for i, row in enumerate(rows) if row in only}
    left = lambda i: [] if i in kept else [pytest.mark.slow(sweep=True)]
    return [
        pytest.param(*row.values, marks=[*row.marks, *left(i)], id=row.id)
        if hasattr(row, "marks")
        else pytest.param(*row, marks=left(i))
        for i, row in enumerate(rows)
    ]
