"""The data about two versions of a function that the explorer receives."""

import json

import jax
import jax.numpy as jnp

import jaxviz
from jaxviz.features.explorer.changes import changes_of, follow


def before(w, x):
    return jnp.sum(jnp.tanh(x @ w) * 2.0)


def after(w, x):
    return jnp.sum(jnp.tanh(x @ w + jnp.exp(x[0, 0])) * 2.0)


ARGS = (jnp.ones((3, 3)), jnp.ones((4, 3)))


def spread(runs):
    return [tuple(p + k for p in places) for *places, n in runs for k in range(n)]


def test_runs_are_the_alignment():
    comparison = jaxviz.compare(before, after, *ARGS)
    made = json.loads(json.dumps(changes_of(comparison)))
    assert set(made["stages"]) == {"primal", "jvp", "forward", "linear", "backward"}
    for key, stage in made["stages"].items():
        found = comparison.alignments[key]
        assert tuple(spread(stage["pairs"])) == found.pairs
        assert tuple(i for (i,) in spread(stage["removed"])) == found.removed
        assert tuple(i for (i,) in spread(stage["added"])) == found.added
    assert len(made["stages"]["primal"]["pairs"]) == 2


def test_figures_and_residuals_are_those_of_the_comparison():
    comparison = jaxviz.compare(before, jax.checkpoint(after), *ARGS)
    made = changes_of(comparison)
    assert [f[0] for f in made["figures"]] == [f.name for f in comparison.figures]
    assert len(made["residuals"]) == len(comparison.residuals) > 0
    assert made["functions"] == ("before", "after")


def test_a_selection_goes_to_the_same_equation_of_the_other_version():
    comparison = jaxviz.compare(before, after, *ARGS)
    names = [[e.primitive.name for _, e in d.primal.walk()] for d in (comparison.before, comparison.after)]
    at = names[0].index("tanh")
    assert follow(comparison, f"primal:{at}") == f"primal:{names[1].index('tanh')}"
    back = jaxviz.compare(after, before, *ARGS)
    assert follow(back, f"primal:{names[1].index('exp')}") == ""
