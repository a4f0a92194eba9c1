"""The display of types in reports."""

import jax
import jax.numpy as jnp
import pytest
from device_programs import CASES, EXPLICIT, M
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxviz
from jaxviz.report.tables import (
    percent,
    text_table,
)


@pytest.mark.parametrize(
    ("case", "texts"), [("scan_inside", {"8 × 3 × f32[2]", "f32[8]"}), ("explicit_axes", {"f32[8@i,4@j]"})]
)
def test_types_of_residuals_on_devices(case, texts):
    case = next(c for c in CASES if c.name == case)
    assert {r.type for r in jaxviz.residuals(case.fun, *case.args, argnums=0)} >= texts


def test_what_a_scan_stacks_keeps_its_layout():
    x = jax.device_put(M, NamedSharding(EXPLICIT, P("i", None)))
    total = lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=5)[0].sum()
    assert [r.type for r in jaxviz.residuals(total, x)] == ["5 × f32[8@i,4]"]


_CELLS = st.text("ab ", max_size=30)
_TABLES = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        st.tuples(*[_CELLS] * n), st.lists(st.tuples(*[_CELLS] * n), max_size=3), st.text("<>", min_size=n, max_size=n)
    )
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(_TABLES, st.integers(0, 120))
def test_a_table_shows_every_cell_whatever_is_empty(table, width):
    heads, rows, align = table
    shown = text_table(heads, rows, align, width)
    assert shown.translate({ord(c): None for c in "- \n"}).count("a") == "".join(map("".join, (heads, *rows))).count(
        "a"
    )
    assert not any(line.endswith(" ") for line in shown.splitlines())


@settings(deadline=None)
@given(st.floats(0, 1e4))
def test_a_share_reads_as_a_number_and_is_near(share):
    text = percent(share)
    assert "e" not in text.removeprefix("less than")
    number = float(text.removeprefix("less than ").removesuffix(" %").replace(",", ""))
    assert share <= number if text.startswith("less") else abs(number - share) <= 0.051 * share
