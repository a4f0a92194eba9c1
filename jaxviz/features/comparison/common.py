"""What two sequences have in common: a longest common subsequence, with a bit for each element of the other one.

Programs of repeated layers have each kind of equation hundreds of times, which takes `difflib` minutes. Here each
element of the one sequence is a few operations on a number of as many bits as the other one has elements.

Source: Hyyrö, "Bit-Parallel LCS-length Computation Revisited" (2004), and of its ancestors Allison and Dix (1986).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from math import isqrt


def common_places(left: Sequence[Hashable], right: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """The positions of a longest common subsequence of two sequences."""
    n = min(len(left), len(right))
    head = next((i for i in range(n) if left[i] != right[i]), n)
    tail = next((i for i in range(n - head) if left[-1 - i] != right[-1 - i]), n - head)
    yield from ((i, i) for i in range(head))
    middle = _longest(left[head : len(left) - tail], right[head : len(right) - tail])
    yield from ((head + i, head + j) for i, j in middle)
    yield from ((len(left) - tail + i, len(right) - tail + i) for i in range(tail))


def _longest(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    if not left or not right:
        return []
    where: defaultdict[Hashable, int] = defaultdict(int)
    for j, x in enumerate(right):
        where[x] |= 1 << j
    bits = (1 << len(right)) - 1

    def rows(start: int, end: int, row: int) -> list[int]:
        """The rows from `start` to `end`, given the row before.

        In row i, a zero means that one more item is shared with the first i elements.
        """
        rows_ = [row]
        for x in left[start:end]:
            matches = row & where.get(x, 0)
            row = ((row + matches) | (row - matches)) & bits
            rows_.append(row)
        return rows_

    # Not all rows of a large comparison fit in memory: keep some, and recompute those in between.
    step = max(isqrt(len(left)), 1)
    history = [bits]
    for start in range(0, len(left), step):
        history.append(rows(start, start + step, history[-1])[-1])
    pairs: list[tuple[int, int]] = []
    i, j, block = len(left), len(right), -1
    here: list[int] = []
    while i and j:
        if (i - 1) // step != block:
            block = (i - 1) // step
            here = rows(block * step, (block + 1) * step, history[block])
        at = i - block * step
        if here[at] >> (j - 1) & 1:
            j -= 1
            continue
        i -= 1
        if here[at - 1] >> (j - 1) & 1:
            j -= 1
            pairs.append((i, j))
    return pairs[::-1]
