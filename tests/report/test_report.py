"""The base of all reports: text, HTML and plain data from a summary and parts."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import jsonschema
import pytest

import jaxviz
from jaxviz.features.remat.policy_comparison import MemoryComparison, PlanComparison
from jaxviz.ir.origin import Location
from jaxviz.report.data import Data
from jaxviz.report.report import Drawn, Listed, Report, Table


@dataclass(frozen=True)
class Row(Data):
    name: str
    location: Location | None
    number: complex = 1j


@dataclass(frozen=True, repr=False)
class Example(Report):
    function: str
    rows: tuple[Row, ...] = ()
    left: dict[str, Row] | None = None

    @property
    def summary(self):
        return f"example of {self.function}"

    def _parts(self):
        yield Table(("name", "n"), [(r.name, "1") for r in self.rows], "<>", shown=2)
        yield Table(("name",), [(r.name,) for r in self.rows[:1]], "<", "by name")
        yield ""
        yield "A note."
        yield Listed(["one <thing>", "another"])
        yield Drawn("  a   curve")


@dataclass(frozen=True, repr=False)
class Words(Report):
    function: str

    @property
    def summary(self):
        return f"words of {self.function}"

    def _parts(self):
        yield Listed([" ".join(20 * ["word"]), "another"])


AT = Location("model.py", 3, "f")
FULL = Example("f", (Row("a", AT), Row("<b>", None), Row("c", AT)))


def test_text_sets_tables_apart():
    assert str(FULL).split("\n") == [
        "example of f", "name  n", "----  -", "a     1", "<b>   1", "and 1 more", "",
        "by name", "name", "----", "a", "", "A note.", "- one <thing>", "- another", "  a   curve",
    ]  # fmt: skip
    assert repr(FULL) == str(FULL)


def test_what_is_listed_stands_beside_its_dash():
    assert str(Words("f")).split("\n") == ["words of f", "- " + 18 * "word " + "word", "  word", "- another"]


def test_tables_without_rows_leave_nothing_but_their_caption():
    assert str(Example("f")).split("\n") == [
        "example of f", "", "by name", "", "A note.", "- one <thing>", "- another", "  a   curve",
    ]  # fmt: skip
    assert "<table" not in Example("f")._repr_html_()


def test_the_first_table_alone():
    assert FULL.table(1).split("\n")[2:] == ["a     1", "and 2 more"]
    assert FULL.table(None).split("\n")[-1] == "c     1"
    assert Example("f").table() == ""


class Seen(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)


def test_html_has_all_rows_and_escapes_them():
    page = FULL._repr_html_()
    assert Seen(page.split("<details>")[0]).tags.count("tr") == 1 + 2
    assert Seen(page).tags.count("tr") == (1 + 2) + (1 + 3) + (1 + 1)
    assert Seen(page).tags.count("li") == 2
    assert "b" not in Seen(page).tags
    assert "&lt;b&gt;" in page
    assert "one &lt;thing&gt;" in page
    assert page.index("example of f") < page.index("<table")


def test_a_notebook_gets_so_many_rows_at_most():
    rows = [(str(i),) for i in range(3000)]
    whole = Table(("n",), rows, "<", shown=None).to_html()
    assert Seen(whole).tags.count("tr") == 1 + 40
    assert "and 2,960 more" in whole
    folded = Table(("n",), rows, "<").to_html()
    assert Seen(folded).tags.count("tr") == (1 + 20) + (1 + 40)
    assert "and 2,980 more: show 40" in folded
    assert "and 2,960 more" in folded
    assert "and 20 more: show all" in Table(("n",), rows[:40], "<").to_html()


def test_plain_data_takes_locations_and_complex_numbers_apart():
    plain = Example("f", (Row("a", AT, 1 + 2j), Row("b", None)), {"x": Row("c", AT)}).to_dict()
    assert plain["function"] == "f"
    assert plain["rows"] == [
        {"name": "a", "file": "model.py", "line": 3, "function": "f", "number": [1.0, 2.0]},
        {"name": "b", "file": None, "line": None, "function": None, "number": [0.0, 1.0]},
    ]
    assert plain["left"]["x"]["line"] == 3
    assert json.loads(json.dumps(plain)) == plain


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
    "verify": lambda: jaxviz.plan_remat(three_layers, jnp.ones((3, 2, 2)), work="50%").verify(),
    "memory of policies": lambda: MemoryComparison(jaxviz.compare_policies(f, X)),
    "plans of policies": lambda: PlanComparison(jaxviz.compare_policies(f, X)),
    "policies of a checkpoint": lambda: jaxviz.policies(jax.checkpoint(f), X).checkpoints[0],
    "compilations": lambda: jaxviz.watch_compilations(False),
    "score card": jaxviz.teach.puzzles.card,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REPORTS)
def test_every_report_has_all_three(name):
    report = REPORTS[name]()
    assert isinstance(report, Report)
    assert " ".join(str(report).split()).startswith(" ".join(report.summary.split()))
    assert repr(report) == str(report)
    assert Seen(report._repr_html_()).tags
    plain = report.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    jsonschema.validate(plain, jaxviz.schema(plain["schema"]))
    assert inspect.getdoc(report.to_dict)
