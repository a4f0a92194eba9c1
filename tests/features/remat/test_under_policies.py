"""JAX's policies as plans: no plan is beaten by one, and no drawn policy lies below the line of plans."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from applied import agree
from short_runs import short

import jaxviz
from benchmarks.remat_programs import CASES, SMALL
from jaxviz.derivation import derive
from jaxviz.features.remat.choose import fastest
from jaxviz.features.remat.diff import Limits
from jaxviz.features.remat.forms import Trade
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.set_policy import derive_under, setting
from jaxviz.features.remat.written import Written
from jaxviz.report.pictures import svg

pytestmark = pytest.mark.slow

SWEEP = pytest.mark.slow(sweep=True)
POLICIES = ("dots_saveable", "dots_with_no_batch_dims_saveable", "nothing_saveable")
SOURCE = """
import jax
import jax.numpy as jnp

def block(w, x):
    return jnp.tanh(jnp.sin(x @ w) @ w)

def loss(w, x):
    x = {block}(w, {block}(w, x))
    return jnp.sum(jnp.exp(jnp.cos(x) @ w))
"""
ARGS = jnp.full((64, 64), 0.1), jnp.ones((512, 64))


@pytest.mark.parametrize("place", ["loss", "block"])
def test_a_policy_that_no_plan_beats_is_the_plan(module, place):
    own = module(SOURCE.format(block="block" if place == "loss" else "jax.checkpoint(block)"))
    search = Search(derive(own.loss, *ARGS), False)
    around = lambda t: search.root not in t.form.regions if place == "block" else search.root in t.form.regions
    trial = next(t for t in search.under_policies if t.form.policy == POLICIES[0] and around(t))
    theirs = jax.checkpoint_policies.dots_saveable
    if place == "loss":
        written = jax.checkpoint(own.loss, policy=theirs)
        plan = jaxviz.plan_remat(own.loss, *ARGS, memory=trial.trade.peak_nbytes)
        assert plan.policy == POLICIES[0]
        assert "a checkpoint around loss with the policy dots_saveable, saving 5 values" in plan.summary
        assert (
            "+@partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)\n def loss(w, x):" in plan.code()
        )
        agree(jax.grad(plan.apply(own.loss))(*ARGS), jax.grad(own.loss)(*ARGS))
    else:
        written = module(
            SOURCE.format(block="jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)")
        ).loss
    measured = search.measured(derive(written, *ARGS))
    assert (trial.trade.peak_nbytes, trial.trade.nbytes) == (measured.peak_nbytes, measured.nbytes)
    assert trial.trade.flops == measured.flops


def block(w, x):
    return jnp.tanh(jnp.sin(x @ w) @ w)


def with_head(w, x, block=block):
    x = block(w, block(w, x))
    return jnp.sum(jnp.exp(jnp.cos(x) @ w))


def small(name):
    if name == "head":
        return with_head, ARGS
    case = SMALL[name]()
    return case.plain, case.args


TEN = ["head", "transformer, unrolled", "transformer, scanned", "MoE transformer, unrolled", "diffusion step", "U-Net",
       "RNN",
       "neural ODE", "MD rollout", "GNN"]  # fmt: skip


@pytest.mark.parametrize("name", short(TEN, ["head"]))
def test_no_policy_lies_below_the_line_of_plans(name):
    f, args = small(name)
    found = jaxviz.compare_policies(f, *args, policies=POLICIES)
    front = found.best_plans
    assert front
    assert front == tuple(sorted(front, key=lambda t: (t.peak_nbytes, -t.work)))
    search = Search(derive(f, *args), False)
    for o in found.outcomes:
        theirs = search.measured(derive_under(search.derivation, setting(o.name)))
        assert min(t.work for t in front if t.peak_nbytes <= theirs.peak_nbytes) <= theirs.work
        plan = jaxviz.plan_remat(f, *args, memory=theirs.peak_nbytes)
        assert plan.peak_nbytes <= theirs.peak_nbytes
        assert plan.flops <= theirs.flops


def drawn(picture):
    """The corners of the line and the marks of a picture, without those of its key; y grows downwards."""
    path = re.search(r'<path d="M([\d.]+) ([\d.]+)((?:H[\d.]+V[\d.]+)*)" fill="none"', picture)
    corners = [path.groups()[:2], *re.findall(r"H([\d.]+)V([\d.]+)", path[3])]
    marks = re.findall(r'<circle cx="([\d.]+\.\d)" cy="([\d.]+)"', picture)
    return [[(float(x), float(y)) for x, y in points] for points in (corners, marks)]


def test_no_mark_is_drawn_below_the_line_and_a_policy_with_names_is_on_it_where_it_is_best():
    none = jax.checkpoint_policies.save_only_these_names()
    found = jaxviz.compare_policies(partial(with_head, block=jax.checkpoint(block)), *ARGS, policies=(none, *POLICIES))
    for chart in (found.by_residuals(), found._chart()):
        line, marks = drawn(svg(chart))
        assert len(marks) == 3  # policies with the same figures share a mark
        assert all(any(x <= mark_x and y >= mark_y for x, y in line) for mark_x, mark_y in marks)


@pytest.mark.slow(sweep=True)
def test_values_that_are_cheap_to_recompute_are_saved_for_the_peak():
    case = SMALL["transformer, unrolled"]()
    theirs = Search(derive(case.variants["save_qkv_proj"], *case.args), False).written
    search = Search(derive(case.plain, *case.args), False)
    lowest = min(t.trade.peak_nbytes for t in map(search.trial, (f for r in search.sets for f in search.path(r))))
    assert lowest > theirs.peak_nbytes
    found, _ = fastest(search, lambda t: theirs.peak_nbytes - t.peak_nbytes)
    assert found.trade.work <= theirs.work


@pytest.mark.parametrize(
    ("cases", "name", "variants"),
    [
        *(pytest.param(SMALL, name, None, marks=SWEEP) for name in SMALL),
        # What the names save keeps less in memory besides than what is optimal at a price per byte.
        pytest.param(CASES, "MoE transformer, scanned", ("minimal", "minimal_with_context"), marks=SWEEP),
        # Of some sets of names with the same bytes and work, only two fit.
        (SMALL, "diffusion step", ("save_dot_except_mlpwi",)),
        # What is optimal at the next price per byte has a peak that is a little higher.
        pytest.param(SMALL, "U-Net", ("dots_saveable",), marks=SWEEP),
    ],
)
def test_a_plan_recomputes_no_more_than_what_people_write_at_its_peak(cases, name, variants):
    case = cases[name]()
    for f in (case.variants[v] for v in variants or case.variants):
        theirs = Search(derive(f, *case.args), False).written
        plan = jaxviz.plan_remat(case.plain, *case.args, memory=theirs.peak_nbytes)
        assert plan.peak_nbytes <= theirs.peak_nbytes
        assert plan.flops <= theirs.flops


@pytest.mark.parametrize("name", short(list(SMALL), ["neural ODE"]))
@pytest.mark.parametrize("share", short([0.9, 0.8, 0.7, 0.6, 0.5], [0.6]))
def test_the_code_is_within_the_peak_that_was_asked_for_or_says_by_how_much_it_is_not(name, share):
    case = SMALL[name]()
    asked = int(share * Search(derive(case.plain, *case.args), False).opened.peak_nbytes)
    try:
        plan = jaxviz.plan_remat(case.plain, *case.args, memory=asked)
    except ValueError:  # there is none
        return
    code = plan.written
    is_over = code.trade is not None and code.trade.peak_nbytes > asked
    assert code.text.startswith("# The code exceeds the requested peak") == is_over


def test_what_is_exceeded_is_said_first():
    made = Written(("f: …",), Trade(1100, 0, 0))
    said = Limits(peak=1000).noted_in(made).text.splitlines()
    assert said == ["# The code exceeds the requested peak of 1000 B by 100 B.", "# f: …"]
    assert Limits(peak=1100).noted_in(made) is made
