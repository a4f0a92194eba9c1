"""Common subsequences of two sequences, which are as long as possible."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxviz.features.comparison.alignment import common_places

WORDS = st.lists(st.integers(0, 4), max_size=40)


def longest(left, right):
    row = [0] * (len(right) + 1)
    for x in left:
        new = [0]
        for j, y in enumerate(right):
            new.append(row[j] + 1 if x == y else max(row[j + 1], new[j]))
        row = new
    return row[-1]


@pytest.mark.slow
@given(WORDS, WORDS)
def test_it_is_common_and_as_long_as_any(left, right):
    found = list(common_places(left, right))
    assert all(left[i] == right[j] for i, j in found)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(found))
    assert len(found) == longest(left, right)


def test_what_repeats_very_often():
    layer = list("abcadbea")
    left, right = 400 * layer, 400 * [*layer[:4], "new", *layer[4:]]
    found = list(common_places(left, right))
    assert [i for i, _ in found] == list(range(len(left)))
    assert {right[j] for j in set(range(len(right))) - {j for _, j in found}} == {"new"}
