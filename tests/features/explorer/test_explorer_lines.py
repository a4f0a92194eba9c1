"""The source pane's figures per line: the totals of the cost and residuals reports."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from programs import CASES
from short_runs import short

import jaxviz
from jaxviz.features.explorer.columns import view_of

FIGURES = ("kept", "forward", "backward", "recomputed", "moved")


def lines_of(view):
    columns = view.columns
    return {
        (view.files[file].label, int(line)): {name: int(columns[f"line_{name}"][i]) for name in FIGURES}
        for i, (file, line) in enumerate(zip(columns["line_file"], columns["line_number"], strict=True))
    }


def label_of(location):
    return location.file.rpartition("/")[2], location.line


def reported(derivation):
    """The same from the reports, without zeros."""
    found = Counter()
    for r in jaxviz.cost(derivation).rows:
        recomputes = r.stage == "backward" and r.equation.origin and r.equation.origin.role == "recomputation"
        for name in (r.stage, *["recomputed"] * bool(recomputes)):
            found[(*label_of(r.location), name)] += r.cost.flops
        found[(*label_of(r.location), "moved")] += r.cost.nbytes
    for r in derivation.residuals:
        if r.is_saved:
            found[(*label_of(r.location), "kept")] += r.nbytes
    return {key: n for key, n in found.items() if n}


def shown(view):
    return {(*line, name): n for line, names in lines_of(view).items() for name, n in names.items() if n}


@pytest.mark.slow
@pytest.mark.parametrize("case", short(CASES, 4), ids=str)
def test_each_line_has_the_sums_of_the_reports(case):
    derivation = jaxviz.derive(case.fun, *case.args, argnums=tuple(range(len(case.args))))
    assert shown(view_of(derivation)) == reported(derivation)


def test_a_checkpoint_is_recomputed_on_the_lines_that_it_is_of():
    w, x = jnp.ones((4, 4)), jnp.ones((8, 4))
    block = jax.checkpoint(lambda w, x: jnp.sin(jnp.tanh(x @ w)))
    view = view_of(jaxviz.derive(lambda w, x: jnp.sum(block(w, block(w, x))), w, x))
    (line,) = (figures for figures in lines_of(view).values() if figures["recomputed"])
    assert 0 < line["recomputed"] < line["backward"]


def test_a_loop_does_its_work_as_often_as_it_runs():
    def loss(w, x):
        return jnp.sum(jax.lax.scan(lambda h, _: (jnp.sin(h @ w), None), x, None, length=7)[0])

    derivation = jaxviz.derive(loss, jnp.ones((4, 4)), jnp.ones((2, 4)))
    view = view_of(derivation)
    first, last = view.stage("forward").equations
    columns, forward = view.columns, jaxviz.cost(derivation).forward
    work, moved = (columns[f"equation_{name}"] * columns["equation_runs"] for name in ("flops", "moved"))
    product = [i for i in range(first, last) if view.strings[columns["equation_primitive"][i]] == "dot_general"]
    assert [work[i] for i in product] == [7 * 2 * 2 * 4 * 4]
    assert (work[first:last].sum(), moved[first:last].sum()) == (forward.flops, forward.nbytes)


def test_only_the_most_expensive_branch_counts():
    def loss(x):
        return jax.lax.cond(x[0] > 0, lambda x: jnp.sum(jnp.outer(x, x)), lambda x: jnp.sum(x), x)

    view = view_of(jaxviz.derive(loss, jnp.ones(6)))
    first, last = view.stage("primal").equations
    programs = view.columns["equation_program"][first:last]
    labels = [view.strings[view.columns["program_label"][p]] for p in programs]
    work = (view.columns["equation_flops"] * view.columns["equation_runs"])[first:last]
    counted = {label for label, n in zip(labels, work, strict=True) if n}
    assert counted - {""} == {"branches[1]"}


def test_without_a_gradient_there_is_the_work_of_the_forward_program():
    def length(x):
        return jnp.sum(jax.lax.while_loop(lambda x: x[0] < 9.0, lambda x: x * 2.0, x))

    derivation = jaxviz.derive(length, jnp.ones(3))
    sums = Counter()
    for figures in lines_of(view_of(derivation)).values():
        sums.update(figures)
    assert (sums["forward"], sums["backward"]) == (jaxviz.cost(derivation).forward.flops, 0)
