"""Groups repeated values: every report combines the values of one expression in repeated layers, calls and
iterations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import groupby
from typing import TypeVar

from jaxviz.analysis.kinds import Kinds
from jaxviz.analysis.walk import primal_equation
from jaxviz.ir.origin import ancestors, evaluated_by, own_line, written_by
from jaxviz.ir.sharing import cleared
from jaxviz.ir.syntax import Equation

T = TypeVar("T")


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[tuple[T, ...]]:
    """The items of each key, in order of first occurrence."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [tuple(group) for group in groups.values()]


def rows_of(
    values: Sequence[T], repeats: Callable[[T], Hashable], described: Callable[[Sequence[T]], Hashable]
) -> list[tuple[T, ...]]:
    """The values of each row of a report, and of the page: those of one expression in repeated layers, calls and
    iterations, and of all expressions that are described in the same words, such as several values of a library's
    function.

    Args:
      repeats: a key that the values of one expression share.
      described: the words for them.
    """
    numbers: dict[Hashable, int] = {}
    of_same = ((same, numbers.setdefault(described(same), len(numbers))) for same in grouped(values, repeats))
    row = {id(value): number for same, number in of_same for value in same}
    return grouped(values, lambda value: row[id(value)])


def repetition(equation: Equation, within: Sequence[Equation] = (), place: int = 0) -> Hashable:
    """A key for the values of one expression, the same each time that it is evaluated.

    It consists of the call stack from the user's own code on, with the operations and rules that computed the value.
    Two operations of one expression have different keys, and so do two calls of a library function on two of its lines.

    Args:
      equation: the equation that computes the value.
      within: the equations that contain its program, outermost first.
      place: the index of the result.
    """
    steps: list[Hashable] = []
    for chain in _up_to_own_code(equation, within):
        steps.append(tuple((a.primitive.name, a.origin.rule if a.origin is not None else "") for a in chain))
        steps.append(_written(chain))
    return _key(place, *steps)


@cleared
@cache
def _key(*steps: Hashable) -> object:
    """One object for equal steps, since hashing these takes time."""
    return object()


def evaluation(equation: Equation, within: Sequence[Equation] = ()) -> Hashable:
    """A key for everything computed for one expression, in the forward and the backward program, the same each time
    that it is evaluated.

    In library code, each of the library's own expressions has a separate key.
    """
    written = primal_equation(equation).source
    if own_line(written) is not None:
        return evaluated_by(written)  # the usual case
    chains = _up_to_own_code(equation, within)
    return tuple(next((x for a in reversed(chain) if (x := evaluated_by(a.source))), None) for chain in chains)


def _up_to_own_code(equation: Equation, within: Sequence[Equation]) -> Iterator[tuple[Equation, ...]]:
    """An equation with its origins, and the same for its enclosing equations, innermost first, up to the user's own
    code."""
    for e in (equation, *reversed(within)):
        chain = (e, *ancestors(e))
        yield chain
        if any(own_line(a.source) is not None for a in chain):
            return


def _written(chain: Iterable[Equation]) -> Hashable:
    return next((w for a in chain if (w := written_by(a.source))), None)


def repetitions(equations: Sequence[Equation], holders: Sequence[int], kinds: Kinds) -> list[int]:
    """A number for each equation, equal for equal `repetition`s; optimised for very many equations.

    Args:
      equations: the equations, with nested programs after the equations that contain them.
      holders: for each equation the index of the one that contains its program, or -1.
      kinds: their kinds.
    """
    operations: dict[tuple[str, str, int], int] = {}
    writings: dict[Hashable, int] = {None: -1}
    steps: dict[int, tuple[int, int, bool]] = {}

    def step(e: Equation) -> tuple[int, int, bool]:
        """Numbers for the operations and rules that it comes from, and for its call stack; and whether this begins in
        the user's own code."""
        kind, origin = kinds(e), e.origin
        if kind not in steps:
            came_from = origin.equation if origin is not None else None
            before, written_before, was_own = (-1, -1, False) if came_from is None else step(came_from)
            written = writings.setdefault(written_by(e.source), len(writings))
            made_by = e.operation.primitive.name, origin.rule if origin is not None else "", before
            steps[kind] = (
                operations.setdefault(made_by, len(operations)),
                written if written >= 0 else written_before,
                own_line(e.source) is not None or was_own,
            )
        return steps[kind]

    groups: dict[tuple[int, int, int], int] = {}
    numbers: list[int] = []
    for e, kind, holder in zip(equations, kinds.all(equations).tolist(), holders, strict=True):
        operation, written, is_own = steps.get(kind) or step(e)
        within = -1 if is_own or holder < 0 else numbers[holder]
        numbers.append(groups.setdefault((operation, written, within), len(groups)))
    return numbers


@lru_cache(maxsize=65536)
def pattern(path: str) -> str:
    """A path, or a sentence with paths, without the numbers of layers, so that it is the same for each:
    `params['layers'][#]['w1']`.

    A name without a number is the first of those with one, as haiku has it: `block`, `block_1`, `block_2`.

    >>> pattern("params['block_3']['w1']"), pattern("params['block']['w1']")
    ("params['block']['w1']", "params['block']['w1']")
    """
    return _RESULT.sub("result #", _INDEX.sub("[#]", _SUFFIX.sub("", path)))


# Each begins with the characters that the search skips to: five times as fast as one that begins with a lookbehind.
_INDEX = re.compile(r"\[\d+\]")
_RESULT = re.compile(r"result (?<=\bresult )\d+\b")

_SUFFIX = re.compile(r"_(?<=[^\W_]_)\d+\b")
"""Matches the number at the end of a name, such as a module's."""

_WORDS = re.compile(r"\w+|\W")


def alike(names: Sequence[str]) -> str:
    """One name for several that differ only in numbers: `params['layers'][0…11]['q']`; otherwise the first name, `and
    others`.

    >>> alike(["block/linear_1", "block_1/linear_1", "block_2/linear_1"])
    'block…block_2/linear_1'
    """
    return _alike(*dict.fromkeys(names))


@cleared
@lru_cache(maxsize=4096)
def _alike(*different: str) -> str:
    if len(different) == 1:
        return different[0]
    if len(set(map(pattern, different))) > 1:
        return f"{different[0]} and others"
    return "".join(map(_range, zip(*map(_WORDS.findall, different), strict=True)))


def _range(words: Sequence[str]) -> str:
    """`0…11` for numbers, `Dense_0…2,4` for names with numbers, `block…block_2` if the first has none."""
    if len(set(words)) == 1:
        return words[0]
    different = sorted(set(words), key=lambda word: (_number(word), word))
    base = _SUFFIX.sub("", different[0])
    are_suffixes = base != different[0]
    runs: list[str] = []
    for _, run in groupby(enumerate(different), lambda pair: _number(pair[1]) - pair[0]):
        ends = [word[len(base) + 1 :] if are_suffixes else word for _, word in run]
        runs.append(ends[0] if len(ends) == 1 else f"{ends[0]}…{ends[-1]}")
    shown = runs if len(runs) <= _RUNS else [*runs[:2], "…", runs[-1]]
    return (f"{base}_" if are_suffixes else "") + ",".join(shown)


_RUNS = 6
"""How many runs of consecutive numbers one name shows."""


def _number(word: str) -> int:
    """The number in a name, an index or a result; 0 for a name without one."""
    match = _SUFFIX.search(word)
    return int(word) if word.isdigit() else int(match[0][1:]) if match else 0


def without_repeats(groups: Iterable[Sequence[str]]) -> Callable[[str], Hashable]:
    """What identifies a path, without the numbers that differ within a group: those of layers, but not the `1` of
    `Dense_1` in each layer."""
    repeats: dict[str, set[int]] = {}
    for group in groups:
        for same in grouped(dict.fromkeys(group), pattern):
            words = zip(*map(_WORDS.findall, same), strict=True)
            differ = (i for i, of_each in enumerate(words) if len(set(of_each)) > 1)
            repeats.setdefault(pattern(same[0]), set()).update(differ)

    def key(path: str) -> Hashable:
        left_out = repeats.get(pattern(path), ())
        return pattern(path), *(word for i, word in enumerate(_WORDS.findall(path)) if i not in left_out)

    return key


def outliers(sentences: Sequence[str]) -> list[bool]:
    """Which sentences differ from the most common one, and in more than numbers."""
    patterns = list(map(pattern, sentences))
    ((most, _),) = Counter(patterns).most_common(1)
    return [p != most for p in patterns]


def most_alike(sentences: Sequence[str]) -> str:
    """One text for several sentences: the two most common ones, up to numbers, and how many each is for."""
    groups = sorted(grouped(sentences, pattern), key=len, reverse=True)
    if len(groups) == 1:
        return alike(groups[0])
    texts = [f"{alike(same)} ({len(same)} of {len(sentences)})" for same in groups if same[0]]
    more = [f"and {len(texts) - 2} more"] if len(texts) > 2 else []
    return "; ".join([*texts[:2], *more])
