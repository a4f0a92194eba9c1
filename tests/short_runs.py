"""Which of many cases the short tests have, which `make test` runs. `make test-all` has all of them."""

import pytest


def short(cases, only):
    """The cases as parameters, where the sweep alone has those that `only` leaves out.

    Args:
      only: those of the short tests; or a number n, for each nth.
    """
    kept = set(range(0, len(cases), only)) if isinstance(only, int) else {i for i, c in enumerate(cases) if c in only}
    return [pytest.param(c, marks=[] if i in kept else pytest.mark.sweep) for i, c in enumerate(cases)]
