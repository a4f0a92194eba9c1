"""Plans for a peak compared with all possible choices for checkpoints at the same places, and the bound for large programs."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from short_runs import short

import jaxviz
from benchmarks.remat_programs import llama
from jaxviz.analysis.budgets import read_size
from jaxviz.derivation import derive
from jaxviz.features.remat import exhaustive, solver
from jaxviz.features.remat.forms import Form
from jaxviz.features.remat.offload import read_offload
from jaxviz.features.remat.search import Search

pytestmark = pytest.mark.large


def chain(ws, x):
    for i in range(4):
        x = jnp.sin(x @ ws[i]) * (i + 2.0)
    return jnp.sum(x)


def branching(ws, x):
    a = jnp.tanh(x @ ws[0])
    b = jnp.sin(a) @ ws[1]
    c = jnp.cos(a * b)
    return jnp.sum(c @ ws[2] * b)


def step(x, w):
    h = jnp.tanh(x @ w)
    return x + jnp.sin(h @ w) * h


def scanned(ws, x):
    return jnp.sum(lax.scan(lambda x, w: (step(x, w), None), x, ws)[0])


def unrolled(ws, x):
    for i in range(4):
        x = step(x, ws[i])
    return jnp.sum(x)


def random_program(seed, n):
    """Values computed from one or two earlier ones, with high or low cost and size."""

    def f(ws, x):
        draw = np.random.default_rng(seed)
        values = [x]
        for _ in range(n):
            a, b = (values[i] for i in draw.integers(0, len(values), 2))
            kind = draw.integers(0, 5)
            if kind == 0:
                a = a @ ws[draw.integers(0, 3)]
            elif kind == 1:
                a = jnp.sin(a) * b
            elif kind == 2:
                a = jnp.exp(-a) + jnp.tile(b.mean(1, keepdims=True), (1, a.shape[1]))
            elif kind == 3:
                a = a @ (b.T @ a)
            else:
                a = jnp.tanh(a @ ws[draw.integers(0, 3)])
            values.append(a)
        return jnp.sum(values[-1] * values[-2])

    return f


HAND_MADE = {"chain": chain, "branching": branching, "scanned": scanned, "unrolled": unrolled}
RANDOM = {f"random {n} {seed}": random_program(seed, n) for n in (3, 4, 5, 6) for seed in range(12)}
PROGRAMS = HAND_MADE | RANDOM
UP_TO_10_VALUES = [
    *HAND_MADE,
    "random 3 0",
    "random 3 1",
    "random 3 2",
    "random 4 2",
    "random 4 3",
    "random 5 3",
    "random 6 11",
]
UP_TO_6_VALUES = ["branching", "scanned", "unrolled", "random 3 0", "random 3 3", "random 4 0", "random 3 5"]
X = jnp.linspace(0.0, 1.0, 48 * 16).reshape(48, 16)


def inputs(f):
    ws = jnp.ones((4, 16, 16)) / 16
    return (ws if f is scanned else list(ws)), X


def every_trade(search, regions):
    """The figures of each choice for checkpoints around some regions, each derived and measured."""
    ways = []
    for part in search.outer_parts(regions):
        names = list(part.graph.candidates)
        movable = list(part._movable)
        choices = {
            part.choice(held, moved)
            for k in range(len(names) + 1)
            for held in itertools.combinations(names, k)
            for n in range(len(movable) + 1)
            for moved in itertools.combinations(movable, n)
            if all(m in held for m in moved if isinstance(m, str))
        }
        ways.append([(part, c) for c in choices])
    return [search.trial(Form(tuple(regions), choices)).trade for choices in itertools.product(*ways)]


def held_against_all(f, offload, shares):
    search = Search(derive(f, *inputs(f)), False, read_offload(offload))
    trades = [t for regions in search.sets for t in every_trade(search, regions)]
    lowest, highest = min(t.peak_nbytes for t in trades), search.opened.peak_nbytes
    for share in shares:
        room = int(lowest + share * (highest - lowest))
        fitting = [t.work for t in trades if t.peak_nbytes <= room]
        found = Search(derive(f, *inputs(f)), False, read_offload(offload))
        best = found.fastest(lambda t, room=room: room - t.peak_nbytes)
        assert best.trade.peak_nbytes <= room
        assert found.bound.is_proved
        assert best.trade.work <= min(fitting)
        assert found.bound.least == best.trade.work


@pytest.mark.parametrize("name", short(UP_TO_10_VALUES, 2))
def test_no_choice_takes_less_work(name):
    held_against_all(PROGRAMS[name], None, (0.0, 0.2, 0.4, 0.6, 0.8))


@pytest.mark.parametrize("name", UP_TO_6_VALUES)
def test_no_choice_with_offloading_takes_less_work(name):
    held_against_all(PROGRAMS[name], "1GB/s, 0.005TFLOP/s", (0.0, 0.3, 0.6))


@pytest.mark.parametrize("offload", short([None, "1GB/s, 0.005TFLOP/s"], ["1GB/s, 0.005TFLOP/s"]))
@pytest.mark.sweep
def test_no_choice_has_a_lower_peak_for_its_work(offload, monkeypatch):
    monkeypatch.setattr(exhaustive, "_TRIALS", 150)
    for name in UP_TO_10_VALUES if offload is None else UP_TO_6_VALUES:
        f = PROGRAMS[name]
        search = Search(derive(f, *inputs(f)), False, read_offload(offload))
        trades = [t for regions in search.sets for t in every_trade(search, regions)]
        for share in (0.0, 0.6):
            most = int(share * max(t.work for t in trades))
            found = Search(derive(f, *inputs(f)), False, read_offload(offload))
            best = found.lowest(most)
            assert (best is None) == (not any(t.work <= most for t in trades))
            if best is not None:
                assert best.trade.work <= most
                assert best.trade.peak_nbytes <= min(t.peak_nbytes for t in trades if t.work <= most)
                assert found.bound.least == best.trade.peak_nbytes
                assert found.bound.is_proved


def test_a_bound_on_the_peak_is_no_higher_than_the_lowest():
    """Where all choices are tried, the bound used for larger programs is compared with the lowest possible peak."""
    for name in ["scanned", "unrolled", *UP_TO_10_VALUES[4:]]:
        f = PROGRAMS[name]
        search = Search(derive(f, *inputs(f)), False)
        trades = [t for regions in search.sets for t in every_trade(search, regions)]
        for work in sorted({t.work for t in trades})[::5]:
            lowest = min(t.peak_nbytes for t in trades if t.work <= work)
            assert exhaustive.least_peak(search, search.sets, lowest, work, near=0.0) <= lowest


@pytest.mark.parametrize("work", short(["5%", "20%"], ["20%"]))
def test_the_gap_to_the_lowest_peak_is_said(work, monkeypatch):
    monkeypatch.setattr(exhaustive, "_SETS", 0)
    case = llama(8, True)
    plan = jaxviz.plan_remat(case.plain, *case.args, work=work)
    bound = plan._search.bound
    assert not bound.is_proved
    assert 0 < bound.least < plan.peak_nbytes <= 1.05 * bound.least
    said = bound.note(plan.after, 1)
    assert said in plan.notes
    assert said.startswith("The peak is at most ")
    assert "% higher than with any plan with checkpoints at the places that were tried, unless" in said


def test_outcomes_are_those_of_each_choice():
    for f, offload in ((branching, None), (scanned, "1GB/s"), (unrolled, "1GB/s")):
        search = Search(derive(f, *inputs(f)), False, read_offload(offload))
        for part in search.outer_parts(search.sets[0]):
            every = part.every_outcome
            assert len(every.sets) <= part.n_outcomes
            for i in range(0, len(every.sets), 7):
                choice = every.choice(part, i)
                assert (choice.nbytes, choice.work) == (every.nbytes[i], every.work[i])
                assert every.certain[i] <= choice.nbytes


@pytest.mark.parametrize(
    ("name", "offload", "share", "n_values"),
    [
        pytest.param("random 6 10", None, 0.5, 18, marks=pytest.mark.sweep),
        pytest.param("random 5 10", None, 0.3, 17, marks=pytest.mark.sweep),
        pytest.param("random 6 1", None, 0.7, 17, marks=pytest.mark.sweep),
        pytest.param("random 4 4", "1GB/s, 0.005TFLOP/s", 0.3, 10, marks=pytest.mark.sweep),
        ("random 6 11", "1GB/s, 0.005TFLOP/s", 0.6, 10),
    ],
)
def test_as_many_values_as_are_looked_through(name, offload, share, n_values, monkeypatch):
    """Of 262,144 choices, or 59,049 with offloading, a few hundred of those with less work than the plan are derived: none fits."""
    monkeypatch.setattr(exhaustive, "_TRIALS", 600)
    monkeypatch.setattr(exhaustive, "_EQUATIONS", 20_000)
    f = PROGRAMS[name]
    search = Search(derive(f, *inputs(f)), False, read_offload(offload))
    (part,) = search.whole_parts
    assert len(part.graph.candidates) == n_values
    draw = np.random.default_rng(0)
    outcomes = part.every_outcome
    trial = lambda i: search.trial(Form((search.whole,), ((part, outcomes.choice(part, int(i))),)))
    lowest = min(trial(i).trade.peak_nbytes for i in draw.choice(len(outcomes.work), 100))
    room = int(lowest + share * (search.opened.peak_nbytes - lowest))
    best = search.fastest(lambda t: room - t.peak_nbytes)
    assert search.bound.is_proved
    less = np.flatnonzero(outcomes.work < best.trade.work)
    for i in draw.choice(less, size=min(len(less), 200), replace=False):
        assert trial(i).trade.peak_nbytes > room


@pytest.mark.sweep
def test_what_was_not_looked_at_is_bounded(monkeypatch):
    monkeypatch.setattr(exhaustive, "_SETS", 0)
    case = llama(8, True)
    search = Search(derive(case.plain, *case.args), False)
    written = search.opened.peak_nbytes
    lowest = search.lowest(10**30).trade.peak_nbytes
    for share in (0.1, 0.3, 0.6):
        best = search.fastest(lambda t, share=share: int(lowest + share * (written - lowest)) - t.peak_nbytes)
        assert not search.bound.is_proved
        assert search.bound.least <= best.trade.work
        assert search.bound.gap(best.trade, search.plain_flops) <= 0.05
        if best.trade.work > search.bound.least:
            assert (
                "% more FLOPs than with any plan with checkpoints at the places that were tried, unless one needs less memory"
                in search.bound.note(best.trade, search.plain_flops)
            )


def test_the_bound_is_said():
    plan = jaxviz.plan_remat(
        scanned, *inputs(scanned), memory=int(0.7 * jaxviz.memory(scanned, *inputs(scanned)).peak_nbytes)
    )
    assert "all were tried." in " ".join(str(plan).split())


@pytest.mark.parametrize("limit", short(["60%", "40%"], ["40%"]))
def test_a_bound_on_residuals_is_said(limit, monkeypatch):
    monkeypatch.setattr(exhaustive, "_SETS", 0)
    case = llama(8, True)
    plan = jaxviz.plan_remat(case.plain, *case.args, residuals=limit)
    search = plan._search
    assert search.bound.note(plan.after, search.plain_flops) in plan.notes
    assert search.bound.gap(plan.after, search.plain_flops) <= 0.05
    assert search.bound.least <= min(t.work for t in search.measured_trades if t.nbytes <= plan.budget)


def test_the_whole_trade_and_how_near_a_plan_is_to_the_best_are_said_without_a_bound():
    case = llama(8, True)
    plan = jaxviz.plan_remat(case.plain, *case.args)
    search = plan._search
    assert search.bound.gap(plan.after, search.plain_flops) <= 0.05
    text = str(plan)
    (caption,) = (line for line in text.splitlines() if line.startswith("Other plans; use "))
    rows = text.split(caption)[1].split("\n\n")[0].splitlines()[3:]
    peaks = [read_size(row.split("B")[0] + "B", "a peak") for row in rows]
    assert peaks == sorted(peaks, reverse=True)
    assert "as written" in rows[0]
    assert sum("this plan" in row for row in rows) == 1
    lowest = min(t.peak_nbytes for t in plan.front)
    assert peaks[-1] == pytest.approx(lowest, rel=0.05)
    assert "The peak is at most" in text or "has a lower peak for that work" in " ".join(text.split())


def test_a_proved_bound_is_a_bound(monkeypatch):
    """The bound of the relaxed problem, the only one for large programs, is no higher than the best choice of a small program."""
    search = Search(derive(scanned, *inputs(scanned)), False)
    for part in (p for regions in search.sets for p in search.outer_parts(regions)):
        for exact in (3000, 0):
            monkeypatch.setattr(solver, "_EXACT", exact)
            for choice in part.choices:
                assert part.least_work(choice.nbytes) <= choice.work * (1 + 1e-9)
                assert part.least_nbytes(choice.work) <= choice.nbytes * (1 + 1e-9)
        assert part.least_work(part.fewest.nbytes - 1) is None
        assert part.least_nbytes(part.choices[-1].work - 1) is None


@pytest.mark.parametrize("n_spots", [1, 4])
def test_bounds_are_no_higher_than_the_best(n_spots, monkeypatch):
    """Where all choices are tried, the bound used for larger programs is compared with the least possible work."""
    f = scanned if n_spots == 1 else unrolled
    search = Search(derive(f, *inputs(f)), False)
    trades = [t for regions in search.sets for t in every_trade(search, regions)]
    for room in sorted({t.peak_nbytes for t in trades})[::7]:
        least = min(t.work for t in trades if t.peak_nbytes <= room)
        bound = min(exhaustive.least_works(search, search.sets, lambda t, room=room: room - t.peak_nbytes), default=0)
        assert bound <= least
