"""At the same peak, a plan recomputes no more than the policies that people write."""

import pytest

import jaxviz
from benchmarks.remat_programs import SMALL
from jaxviz.derivation import derive
from jaxviz.features.remat.search import Search

pytestmark = pytest.mark.sweep


@pytest.mark.parametrize("name", ["transformer, scanned", "RNN", "GNN"])
def test_a_plan_recomputes_no_more_than_what_people_write_at_its_peak(name):
    case = SMALL[name]()
    for f in case.variants.values():
        theirs = Search(derive(f, *case.args), False).written
        plan = jaxviz.plan_remat(case.plain, *case.args, memory=theirs.peak_nbytes)
        assert plan.peak_nbytes <= theirs.peak_nbytes
        assert plan.flops <= theirs.flops
