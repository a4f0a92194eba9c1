"""One wording for what differs between two versions."""

from jaxviz.ir.origin import Location
from jaxviz.report.differences import Difference, Figure, difference_table, figure_table

LINE = Location("model.py", 3, "f")


def test_figures_have_a_sign_and_a_share():
    assert Figure("saved bytes", 1024, 512, "bytes").cells == ("saved bytes", "1.0 KiB", "512 B", "-512 B (-50%)")
    assert Figure("FLOPs", 1000, 3500, "FLOPs").cells[-1] == "+2.5 kFLOP (+250%)"
    assert Figure("f", 0, 3, "equations").cells[-1] == "+3"
    assert Figure("f", 1000, 1001, "equations").cells[-1] == "+1"  # no share that is 0 %
    assert Figure("f", 7, 7, "equations").cells[-1] == "same"
    assert str(Figure("peak", 1024, 2048, "bytes")) == "peak 1.0 KiB → 2.0 KiB, +1.0 KiB (+100%)"
    assert str(Figure("peak", 1024, 1024, "bytes")) == "peak 1.0 KiB in both"
    assert list(figure_table([Figure("f", 1, 2, "equations")], "f", "g").heads) == ["", "f", "g", "change"]


def test_a_table_of_differences_says_what_and_why_and_what_it_leaves_out():
    rows = [
        Difference(2048, "`x @ w`", "2 × f32[256]", LINE, "residual", "it is saved now"),
        *[Difference(-8, "a copy", "f32[2]", None, "copy")] * 30,
    ]
    lines = str(difference_table(rows, "what changed:")).splitlines()
    assert lines[0] == "what changed:"
    assert lines[1].split() == ["change", "kind", "type", "line", "what,", "and", "why"]
    assert lines[3].split("  ") == ["+2.0 KiB", "residual", "2 × f32[256]", "model.py:3", "`x @ w`: it is saved now"]
    assert lines[-1] == "and 11 more rows, -88 B"


def test_counts_have_no_kind():
    table = difference_table([Difference(-3, "`tanh`", "f32[3]", LINE, unit="equations")], "")
    assert list(table.heads) == ["change", "type", "line", "what, and why"]
    assert table.rows[0][0] == "-3"
    assert table.align == "><<<"
