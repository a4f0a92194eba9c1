"""The laws on every program of other libraries; the short run has some by name, in `test_matrix.py`."""

import laws
import pytest
from library_programs import LIBRARY_CASES

pytestmark = pytest.mark.slow(sweep=True)  # importing all of these libraries alone takes a second and a half

LAWS = {
    laws.residuals: lambda case: case.reverse,
    laws.what_changes_nothing_changes_nothing_in_jax: lambda case: case.reverse,
    laws.value_and_cotangents: lambda case: case.reverse,
    laws.no_reverse_mode: lambda case: not case.reverse,
    laws.forward_mode: lambda case: True,
    laws.value_and_gradient: lambda case: case.reverse and laws.is_real(case),
}


@pytest.mark.parametrize(
    ("law", "case"),
    [
        pytest.param(law, case, id=f"{law.__name__}-{case}")
        for case in LIBRARY_CASES.values()
        for law, applies in LAWS.items()
        if applies(case)
    ],
)
def test_law(law, case):
    law(case)
