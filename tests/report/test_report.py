"""All reports: text, HTML and plain data from a summary and parts."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import jax.numpy as jnp
import jsonschema
import pytest
from short_runs import short

import jaxviz
from jaxviz.contracts.start import checked, contract_of
from jaxviz.environments.gather import gather_facts
from jaxviz.features.remat.policy_comparison import MemoryComparison, PlanComparison
from jaxviz.report.report import Report


@jaxviz.custom_jvp
def doubled(x):
    return 2 * x


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 2 * tangents[0]))


def f(x):
    return (jnp.sin(x) * x).sum()


def three_layers(ws):
    x = jnp.ones((2, 2))
    for w in ws:
        x = jnp.cos(jnp.sin(jnp.tanh(x @ w) + 1.0) * x) + jnp.exp(-x) * jnp.sqrt(x * x + 1.0)
    return x.sum()


X = jnp.ones(4)


def upgrade():
    """The report of an upgrade that changes nothing."""
    with TemporaryDirectory() as folder:
        facts = gather_facts("model:f", "x", f, (X,), {}, 0, Path(folder))
    return jaxviz.Upgrade("model:f", "x", (facts.environment,) * 2, (facts, facts))


def check_contracts():
    """The report of two contracts, of which one is broken."""
    facts = gather_facts("model:f", "x", f, (X,), {}, 0, compile=False)
    of = {"f": f, "sine": lambda x: jnp.sum(jnp.sin(x))}
    contracts = [contract_of(gather_facts("", "", g, (X,), {}, 0, compile=False), name) for name, g in of.items()]
    return jaxviz.ContractCheck(tuple(checked(contract, facts) for contract in contracts))


REPORTS = {
    "residuals": lambda: jaxviz.residuals(f, X),
    "memory": lambda: jaxviz.memory(f, X),
    "compiled_memory": lambda: jaxviz.compiled_memory(f, X),
    "compile_cost": lambda: jaxviz.compile_cost(f, X),
    "compile_cost, measured": lambda: jaxviz.compile_cost(three_layers, jnp.ones((3, 2, 2)), ablate=True),
    "memory beside compiled_memory": lambda: jaxviz.memory(f, X).beside(),
    "change of compiled_memory": lambda: jaxviz.compiled_memory(f, X).compare(jaxviz.compiled_memory(jnp.sin, X)),
    "collectives": lambda: jaxviz.collectives(f, X),
    "cost": lambda: jaxviz.cost(f, X),
    "timings": lambda: jaxviz.cost(f, X).measure(1),
    "lint": lambda: jaxviz.lint(f, X),
    "policies": lambda: jaxviz.policies(f, X),
    "compare_policies": lambda: jaxviz.compare_policies(f, X),
    "compare": lambda: jaxviz.compare(f, lambda x: f(x) + 1, X),
    "plan_remat": lambda: jaxviz.plan_remat(f, X, budget=1.0),
    "check_rule": lambda: jaxviz.check_rule(doubled, 1.0),
    "jit": lambda: jaxviz.jit(f).report(X),
    "donation": lambda: jaxviz.donation(jaxviz.jit(lambda x: x + 1, donate_argnums=0), X),
    "explain_recompile": lambda: jaxviz.explain_recompile(jaxviz.jit(f)),
    "profile": lambda: jaxviz.profile(jaxviz.jit(f), X, repeat=1),
    "doctor": jaxviz.doctor,
    "find_nan": lambda: jaxviz.find_nan(lambda x: jnp.sqrt(x).sum(), 0 * X),
    "gradient_flow": lambda: jaxviz.gradient_flow(lambda x: jnp.sum(jnp.round(x["a"]) + x["b"]), {"a": X, "b": X}),
    "verify": lambda: jaxviz.plan_remat(three_layers, jnp.ones((3, 2, 2)), work="50%").verify(),
    "memory of policies": lambda: MemoryComparison(jaxviz.compare_policies(f, X)),
    "plans of policies": lambda: PlanComparison(jaxviz.compare_policies(f, X)),
    "policies of a checkpoint": lambda: jaxviz.policies(jax.checkpoint(f), X).checkpoints[0],
    "upgrade": upgrade,
    "lock": lambda: jaxviz.lock(f, X),
    "check_contracts": check_contracts,
    "compilations": lambda: jaxviz.watch_compilations(False),
    "score card": jaxviz.teach.puzzles.card,
    "results": jaxviz.teach.results,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(REPORTS), [name for name in REPORTS if name != "compile_cost, measured"]))
def test_every_report_has_all_three(name):
    report = REPORTS[name]()
    assert isinstance(report, Report)
    assert " ".join(str(report).split()).startswith(" ".join(report.summary.split()))
    assert repr(report) == str(report)
    assert "<" in report._repr_html_()
    plain = report.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    jsonschema.validate(plain, jaxviz.schema(plain["schema"]))
    assert inspect.getdoc(report.to_dict)
