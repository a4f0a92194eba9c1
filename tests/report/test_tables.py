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
    code_html,
    counted,
    format_bytes,
    html_table,
    listed,
    printable,
    shortened,
    text_table,
    wrapped,
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


def test_a_word_longer_than_its_column_is_broken():
    path = "params" + "['a_name_of_some_length']" * 5
    lines = text_table(("name", "reason"), [("x", path)], "<<", width=60).splitlines()
    assert max(map(len, lines)) <= 60
    assert "".join(line.removeprefix("x").strip() for line in lines[2:]) == path


_CELLS = st.text("ab ", max_size=30)
_TABLES = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        st.tuples(*[_CELLS] * n), st.lists(st.tuples(*[_CELLS] * n), max_size=3), st.text("<>", min_size=n, max_size=n)
    )
)


@settings(max_examples=200, deadline=None)
@given(_TABLES, st.integers(0, 120))
def test_a_table_shows_every_cell_whatever_is_empty(table, width):
    heads, rows, align = table
    shown = text_table(heads, rows, align, width)
    assert shown.translate({ord(c): None for c in "- \n"}).count("a") == "".join(map("".join, (heads, *rows))).count(
        "a"
    )
    assert not any(line.endswith(" ") for line in shown.splitlines())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ×…π😀", "plain ×…π😀"),
        ("a\x1b[31mb\x00\x7f\x9b", "a<U+001B>[31mb<U+0000><U+007F><U+009B>"),
        ("a\u202eb\u2066c\u200f\ufeff", "a<U+202E>b<U+2066>c<U+200F><U+FEFF>"),
        ("two\nlines\tand\u2028more", "two lines and<U+2028>more"),
        ("\ud800", "<U+D800>"),
    ],
)
def test_what_commands_a_terminal_or_turns_text_around_is_spelt_out(text, shown):
    assert printable(text) == shown
    assert shown in text_table(("a", "b"), [(text, "x")], "<<")
    assert shown in wrapped(text)
    assert not any(c in html_table(text, ("a",), [(text,)], (False,)) for c in "\x1b\u202e\x00")


def test_long_names_are_cut():
    assert printable("n" * 10**6, 10) == "nnnnnnnnn…"
    assert printable("\u202e" * 10**6, 10) == "<U+202E><…"
    lines = text_table(("name", "why"), [("n" * 10**6, "x")], "<<").splitlines()
    assert max(map(len, lines)) < 250


def test_a_sentence_shows_its_code_escaped():
    assert code_html("`x < y` is <b>") == "<code>x &lt; y</code> is &lt;b&gt;"
    assert code_html("one ` alone") == "one ` alone"
    assert '<td style="text-align:left;white-space:nowrap"><code>mul</code></td>' in html_table(
        "", ("a",), [("`mul`",)], (False,)
    )


def test_lists_are_cut_and_name_nothing_twice():
    assert listed(["a", "b", "a"]) == "a, b"
    assert listed("abcde") == "a, b, c and 2 more"
    assert listed("abcde", 4) == "a, b, c, d and 1 more"
    assert listed(()) == ""


@pytest.mark.parametrize(("n", "shown"), [(0, "0 values"), (1, "1 value"), (1200, "1,200 values")])
def test_counted(n, shown):
    assert counted(n, "value") == shown


def test_a_text_that_is_too_long_loses_its_end_or_its_beginning():
    assert shortened("model.py:12", 11) == "model.py:12"
    assert shortened("model.py:12", 6) == "model…"
    assert shortened("model.py:12", 6, from_left=True) == "…py:12"


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (2**20, "1.0 MiB"), (2**40, "1.0 TiB")],
)
def test_bytes_as_people_read_them(n, text):
    assert format_bytes(n) == text


@pytest.mark.parametrize("size", ["2.1 KiB", "64 B", "3.0 MFLOP"])
def test_no_line_ends_between_a_number_and_its_unit(size):
    for width in range(20, 60):
        assert size in wrapped(f"5 intermediates of some length that together take {size}, and more", width=width)
