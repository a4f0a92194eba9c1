"""At the same peak, a plan recomputes no more than the policies that people write."""

import pytest

import jaxviz
from benchmarks.remat_programs import CASES, SMALL
from jaxviz.derivation import derive
from jaxviz.features.remat.search import Search


@pytest.mark.parametrize(
    ("cases", "name", "variants"),
    [
        pytest.param(SMALL, "transformer, scanned", None, marks=pytest.mark.sweep),
        pytest.param(SMALL, "RNN", None, marks=pytest.mark.sweep),
        pytest.param(SMALL, "GNN", None, marks=pytest.mark.sweep),
        # What the names save keeps less in memory besides than what is optimal at a price per byte.
        (CASES, "MoE transformer, scanned", ("minimal", "minimal_with_context")),
    ],
)
def test_a_plan_recomputes_no_more_than_what_people_write_at_its_peak(cases, name, variants):
    case = cases[name]()
    for f in (case.variants[v] for v in variants or case.variants):
        theirs = Search(derive(f, *case.args), False).written
        plan = jaxviz.plan_remat(case.plain, *case.args, memory=theirs.peak_nbytes)
        assert plan.peak_nbytes <= theirs.peak_nbytes
        assert plan.flops <= theirs.flops
