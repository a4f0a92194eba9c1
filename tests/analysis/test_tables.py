"""Types as the reports show them."""

import jax
import jax.numpy as jnp
import pytest
from device_programs import CASES, EXPLICIT, M
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxviz
from jaxviz.analysis.tables import text_table


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


def test_a_word_longer_than_its_column_is_broken():
    path = "params" + "['a_name_of_some_length']" * 5
    lines = text_table(("name", "reason"), [("x", path)], "<<", width=60).splitlines()
    assert max(map(len, lines)) <= 60
    assert "".join(line.removeprefix("x").strip() for line in lines[2:]) == path
