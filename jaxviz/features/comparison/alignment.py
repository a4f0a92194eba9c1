"""Which equations two programs have in common, and which only one of them has.

The sequences of equations are compared by a longest common subsequence, with a bit for each element of the other one:
programs of repeated layers have each kind of equation hundreds of times, which takes `difflib` minutes.

Source: Hyyrö, "Bit-Parallel LCS-length Computation Revisited" (2004), and of its ancestors Allison and Dix (1986).
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import isqrt
from types import CellType, FunctionType
from typing import Any

from jaxviz.higher_order import is_call
from jaxviz.higher_order.custom_vjp import is_backward_rule
from jaxviz.ir.sharing import exact
from jaxviz.ir.syntax import Atom, Equation, Literal, Program

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True)
class Alignment:
    """Two programs, equation by equation, in the order of `Program.walk`, nested ones after the one that contains them.

    Args:
      pairs: the numbers of equations that do the same in the same place, in ascending order.
      removed, added: the numbers of those that only the first, or only the second, program has. An equation that does
        the same with other values is in both.
      results: for results of the second program, the equal results of the first, by index.
      n_results: how many results each has.
    """

    pairs: tuple[tuple[int, int], ...]
    removed: tuple[int, ...]
    added: tuple[int, ...]
    results: Mapping[int, int]
    n_results: tuple[int, int]

    @property
    def is_equal(self) -> bool:
        n, m = self.n_results
        return not self.removed and not self.added and n == m and all(self.results.get(i) == i for i in range(n))


def align(before: Program, after: Program, inputs: Mapping[int, int] | None = None) -> Alignment:
    """Finds the common equations of two programs.

    Equations are equal if they do the same operation on the same types and values: inputs, equal literals, or results
    of equal equations. An equation that reads something new in place of something old counts as unchanged. Calls
    are opened: a function that is wrapped in a `jit` or a checkpoint has all its equations in common with the one that
    is not.

    Args:
      inputs: for inputs of the second program the corresponding ones of the first, by index; None if all are in the
        same order.
    """
    return _Aligner(before, after, inputs).alignment()


_Value = Hashable
"""What identifies a value in a program: where it is computed, or for a literal its value."""


@dataclass(slots=True)
class _Item:
    """An equation; a call precedes the equations of its program."""

    number: int
    kind: Hashable
    reads: tuple[_Value, ...]
    n_results: int
    inner: list[list[_Item]] = field(default_factory=list)
    n_binders: list[int] = field(default_factory=list)


class _Aligner:
    def __init__(self, before: Program, after: Program, inputs: Mapping[int, int] | None):
        self.sides = _Flat(before), _Flat(after)
        self.pairs: list[tuple[int, int]] = []
        n = max(len(before.invars), len(after.invars))
        self.same: dict[_Value, _Value] = {}
        """For each value of the second program, its counterpart in the first."""
        self.common: set[_Value] = set()
        """What both programs contain."""
        for j, i in zip(range(n), range(n), strict=True) if inputs is None else inputs.items():
            self.join(("input", i), ("input", j))
        for i in range(min(len(before.constvars), len(after.constvars))):
            self.join(("constant", i), ("constant", i))

    def alignment(self) -> Alignment:
        first, second = self.sides
        self.match(first.items, second.items)
        left, right = ({p[side] for p in self.pairs} for side in (0, 1))
        place = {v: i for i, v in reversed(list(enumerate(first.results)))}
        results = {}
        for j, value in enumerate(second.results):
            in_first = self.in_first(value)
            if j < len(first.results) and first.results[j] == in_first:
                results[j] = j
            elif in_first in place:
                results[j] = place[in_first]
        removed = tuple(i for i in range(first.size) if i not in left)
        added = tuple(i for i in range(second.size) if i not in right)
        n_results = len(first.results), len(second.results)
        return Alignment(tuple(sorted(self.pairs)), removed, added, results, n_results)

    def match(self, left: Sequence[_Item], right: Sequence[_Item]) -> None:
        alike = [(left[i], right[j]) for i, j in common_places([x.kind for x in left], [x.kind for x in right])]
        for x, y in alike:
            for k in range(x.n_results):
                self.join((x.number, k), (y.number, k))
        for x, y in alike:
            if not all(map(self.may_be_same, x.reads, y.reads)):
                continue
            self.pairs.append((x.number, y.number))
            for p, (a, b) in enumerate(zip(x.inner, y.inner, strict=True)):
                for k in range(min(x.n_binders[p], y.n_binders[p])):
                    self.join((x.number, p, "in", k), (y.number, p, "in", k))
                self.match(a, b)

    def join(self, first: _Value, second: _Value) -> None:
        self.same[second] = first
        self.common.add(first)

    def may_be_same(self, first: _Value, second: _Value) -> bool:
        """Whether one becomes the other only by changes that are reported elsewhere: equations removed or added."""
        if isinstance(first, _Number) or isinstance(second, _Number):
            return first == second
        original = self.same.get(second)
        return original == first or original is None or first not in self.common

    def in_first(self, value: _Value) -> _Value:
        return value if isinstance(value, _Number) else self.same.get(value)


@dataclass(frozen=True, slots=True)
class _Number:
    """The value of a literal, and its type."""

    text: str
    type: str


class _Flat:
    """A program as items, with calls inlined."""

    def __init__(self, program: Program):
        self.counter = count()
        env: dict[Atom, _Value] = {v: ("input", i) for i, v in enumerate(program.invars)}
        env.update((v, ("constant", i)) for i, v in enumerate(program.constvars))
        self.items = self.flattened(program, env)
        self.size = next(self.counter)
        self.results = [_value(env, a) for a in program.outvars]

    def flattened(self, program: Program, env: dict[Atom, _Value]) -> list[_Item]:
        items: list[_Item] = []
        for e in program.equations:
            number = next(self.counter)
            reads = tuple(_value(env, a) for a in e.invars)
            if is_call(e) and len(e.programs) == 1:
                ((_, body),) = e.programs
                items.append(_Item(number, _kind(e), (), 0))
                inner: dict[Atom, _Value] = dict(zip(body.invars, reads, strict=True))
                inner.update((v, (number, "constant", i)) for i, v in enumerate(body.constvars))
                items += self.flattened(body, inner)
                env.update((v, _value(inner, a)) for v, a in zip(e.outvars, body.outvars, strict=True))
                continue
            item = _Item(number, _kind(e), reads, len(e.outvars))
            env.update((v, (number, k)) for k, v in enumerate(e.outvars))
            for p, (_, nested) in enumerate(e.programs):
                binders = (*nested.invars, *nested.constvars)
                item.inner.append(self.flattened(nested, {v: (number, p, "in", i) for i, v in enumerate(binders)}))
                item.n_binders.append(len(binders))
            items.append(item)
        return items


def _value(env: Mapping[Atom, _Value], atom: Atom) -> _Value:
    if isinstance(atom, Literal):
        return _Number(str(atom.val), atom.aval.str_short())
    return env[atom]


def _kind(e: Equation) -> Hashable:
    """A key shared by equations that do the same: the operation with its literals; with nested programs, all else."""
    if not e.programs:
        return _operation(e), tuple(str(a.val) if isinstance(a, Literal) else "" for a in e.invars)
    if is_call(e):
        # For a checkpoint, also compare the policy.
        policy: Any = e.params.get("policy")
        policy = inspect.unwrap(policy)  # under jax_remat3, policies are wrapped
        return e.primitive, getattr(policy, "__qualname__", str(policy))
    nested = {label.split("[")[0] for label, _ in e.programs}
    params = (f"{k}={_ADDRESS.sub('', str(v))}" for k, v in sorted(e.params.items()) if k not in nested)
    return e.primitive, tuple(label for label, _ in e.programs), tuple(params), _types(e)


def _types(e: Equation) -> tuple[str, ...]:
    return tuple(a.str_short() for a in (*e.operation.in_avals, *e.operation.out_avals))


def _operation(e: Equation) -> Hashable:
    """A key of an operation, also of one with functions, which each trace may make anew. What a backward rule does is
    compared where it has been transposed."""
    if not e.operation.has_user_data:
        return e.operation
    params = () if is_backward_rule(e) else tuple((k, _made_anew(v)) for k, v in sorted(e.params.items()))
    return e.primitive, params, _types(e)


def _made_anew(param: Any) -> Hashable:
    """A key that a param shares with another that was made by the same code from the same values."""
    if isinstance(param, FunctionType):
        values = (
            *(param.__defaults__ or ()),
            *(param.__kwdefaults__ or {}).values(),
            *map(_held, param.__closure__ or ()),
        )
        return param.__code__, *map(_value_key, values)
    if dataclasses.is_dataclass(param):
        return tuple(_made_anew(getattr(param, f.name)) for f in dataclasses.fields(param))
    if isinstance(param, (tuple, list)):
        return tuple(map(_made_anew, param))
    return _value_key(param)


def _held(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _value_key(value: Any) -> Hashable:
    """A key that distinguishes what `==` does not; of what has no hash, such as an array, its identity."""
    if isinstance(value, (tuple, list)):
        return type(value), *map(_value_key, value)
    key = exact(value)
    try:
        hash(key)
    except TypeError:
        return id(value)
    return key


# --- sequences --------------------------------------------------------------------------------------------------------


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
