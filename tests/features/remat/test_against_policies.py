"""At the same peak, a plan recomputes no more than the policies that people write."""

import pytest

import jaxviz
from benchmarks.remat_programs import CASES, SMALL
from jaxviz.derivation import derive
from jaxviz.features.remat.diff import Limits
from jaxviz.features.remat.forms import Trade
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.written import Written


@pytest.mark.parametrize(
    ("cases", "name", "variants"),
    [
        *(pytest.param(SMALL, name, None, marks=pytest.mark.slow(sweep=True)) for name in SMALL),
        # What the names save keeps less in memory besides than what is optimal at a price per byte.
        (CASES, "MoE transformer, scanned", ("minimal", "minimal_with_context")),
        # Of some sets of names with the same bytes and work, only two fit.
        (SMALL, "diffusion step", ("save_dot_except_mlpwi",)),
    ],
)
def test_a_plan_recomputes_no_more_than_what_people_write_at_its_peak(cases, name, variants):
    case = cases[name]()
    for f in (case.variants[v] for v in variants or case.variants):
        theirs = Search(derive(f, *case.args), False).written
        plan = jaxviz.plan_remat(case.plain, *case.args, memory=theirs.peak_nbytes)
        assert plan.peak_nbytes <= theirs.peak_nbytes
        assert plan.flops <= theirs.flops


@pytest.mark.parametrize(
    "name", [n if n == "neural ODE" else pytest.param(n, marks=pytest.mark.slow(sweep=True)) for n in SMALL]
)
def test_the_code_is_within_the_peak_that_was_asked_for_or_says_by_how_much_it_is_not(name):
    case = SMALL[name]()
    without = Search(derive(case.plain, *case.args), False).opened.peak_nbytes
    for share in (0.9, 0.8, 0.7, 0.6, 0.5):
        asked = int(share * without)
        try:
            plan = jaxviz.plan_remat(case.plain, *case.args, memory=asked)
        except ValueError:  # there is none
            continue
        code = plan.written
        is_over = code.trade is not None and code.trade.peak_nbytes > asked
        assert code.text.startswith("# The code exceeds the requested peak") == is_over


def test_what_is_exceeded_is_said_first():
    made = Written(("f: …",), Trade(1100, 0, 0))
    said = Limits(peak=1000).noted_in(made).text.splitlines()
    assert said == ["# The code exceeds the requested peak of 1000 B by 100 B.", "# f: …"]
    assert Limits(peak=1100).noted_in(made) is made
