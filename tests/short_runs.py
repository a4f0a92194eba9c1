"""Selects the cases that `make test` runs; `make test-all` runs all of them."""

import pytest


def short(cases, only):
    """The cases as parameters; those that `only` does not select are left to the sweeps.

    Args:
      only: the selected cases; or a number n, for every nth.
    """
    kept = set(range(0, len(cases), only)) if isinstance(only, int) else {i for i, c in enumerate(cases) if c in only}
    return [pytest.param(c, marks=[] if i in kept else pytest.mark.slow(sweep=True)) for i, c in enumerate(cases)]
