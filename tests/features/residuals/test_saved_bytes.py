"""What a gradient saves is one figure: every report has the same, without arguments and without what nothing reads."""

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401 - adds to the table
import pytest
from programs import CASES
from short_runs import short

import jaxviz
from benchmarks.models import lstm, mlp, remat_transformer, scan_transformer, transformer
from jaxviz.features.explorer.columns import view_of
from jaxviz.features.explorer.whatif import Switches
from jaxviz.features.residuals.saved_bytes import saved_values
from jaxviz.report.tables import nbytes

pytestmark = pytest.mark.slow

MODELS = {"an MLP": mlp(3), "a transformer": transformer(2), "a scan of layers": scan_transformer(3),
          "layers with checkpoints": remat_transformer(2), "an LSTM": lstm(2)}  # fmt: skip
PROGRAMS = {**{c.name: (c.fun, c.args) for c in CASES}, **MODELS}


@pytest.fixture(scope="module")
def derived():
    made = {}

    def of(name):
        if name not in made:
            f, args = PROGRAMS[name]
            made[name] = jaxviz.derive(f, *args)
        return made[name]

    return of


def is_reversible(derivation):
    return derivation.no_reverse_mode is None and any(derivation.nonzeros)


@pytest.mark.parametrize("name", short(list(PROGRAMS), 5))
def test_every_report_says_the_same(derived, name):
    derivation = derived(name)
    found = jaxviz.residuals(derivation)
    saved = found.saved
    assert saved.nbytes == sum(
        r.nbytes for r in found if r.kind != "argument" and (r.is_read or not is_reversible(derivation))
    )
    if is_reversible(derivation):
        assert saved.nbytes == sum(nbytes(a.aval) for a in saved_values(derivation))
        assert saved.count == len(saved_values(derivation))
    read = [r for r in found if r.kind == "argument" and r.backward != []]
    assert (saved.arguments, saved.n_arguments) == (sum(r.nbytes for r in read), len(read))
    for by in (found.by_line, found.by_function, found.by_scope, found.by_module):
        assert sum(t.nbytes for t in by()) == saved.nbytes
    assert f"saves {saved}" in found.summary
    assert f"it saves {saved}" in jaxviz.policies(derivation).summary
    assert f"it saves {saved}" in jaxviz.lint(derivation).summary
    if is_reversible(derivation):
        view = view_of(derivation)
        assert view.headline.saves == "; ".join([f"saves {saved}", *saved.remarks])
        assert view.columns["kept_nbytes"].sum() == view.columns["line_kept"].sum() == saved.nbytes
        assert f"saves {saved.size if saved.count else 'nothing'} for the backward pass" in view.headline.keeps


def test_an_argument_that_a_rule_saves_and_does_not_read_is_not_read():
    f = jax.custom_vjp(lambda x, y: jnp.sum(jnp.sin(x) * y))
    f.defvjp(lambda x, y: (f(x, y), (x, y, jnp.cos(x))), lambda saved, ct: (saved[2] * ct * saved[1], None))
    saved = jaxviz.residuals(f, jnp.ones(3), jnp.ones(3)).saved
    assert (saved.arguments, saved.n_arguments) == (12, 1)
    assert saved.remarks == ("it reads 12 B of its arguments, which are in memory anyway",)


@pytest.mark.parametrize("name", short(list(MODELS), ["an MLP", "an LSTM"]))
def test_plans_and_policies_begin_with_it(derived, name):
    f, args = MODELS[name]
    saved = derived(name).residuals.saved
    plan = jaxviz.plan_remat(f, *args)
    assert plan.before.saved_nbytes == saved.nbytes
    planned = jaxviz.residuals(plan.apply(f), *args).saved
    assert plan.saved_nbytes == planned.nbytes
    assert f"saves {planned.size}" in plan.summary or f"saves {saved.size} → {planned.size}" in plan.summary
    compared = jaxviz.compare(f, plan.apply(f), *args)
    figures = {figure.name: (figure.before, figure.after) for figure in compared.figures}
    assert figures["saved bytes"] == (saved.nbytes, planned.nbytes)
    assert figures["saved values"] == (saved.count, planned.count)
    assert Switches(derived(name)).trade("").saved_nbytes == saved.nbytes
    if name != "layers with checkpoints":  # of which the policies are compared with none
        policies = jaxviz.compare_policies(f, *args, policies=["dots_saveable"])
        assert policies.without.saved == saved
        (outcome,) = policies.outcomes
        assert outcome.saved == jaxviz.residuals(outcome.derivation).saved


def test_arguments_are_read_and_not_saved():
    f = lambda w, x: jnp.sum(jnp.sin(x @ w))
    w, x = jnp.ones((4, 8)), jnp.ones((2, 4))
    plain, again = (jaxviz.residuals(g, w, x).saved for g in (f, jax.checkpoint(f)))
    assert (again.nbytes, again.n_arguments) == (0, 2)
    assert again.arguments == w.nbytes + x.nbytes
    assert (plain.count, plain.arguments) == (1, x.nbytes)
    text = " ".join(str(jaxviz.residuals(jax.checkpoint(f), w, x)).split())
    assert "saves nothing; it reads 160 B of its arguments, which are in memory anyway" in text
    change = {figure.name: figure.change for figure in jaxviz.compare(f, jax.checkpoint(f), w, x).figures}
    assert change["saved bytes"] == -plain.nbytes  # and not more, for the arguments
