"""Names for saved values: which expressions of the user's source can have one, and words for them, such as
`attention_probs`."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxviz.analysis.grouping import alike, pattern
from jaxviz.features.remat.choices import Part
from jaxviz.features.remat.forms import Form
from jaxviz.features.remat.regions import Stacks, own_frames, runs
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.source import Extent, extent_of, last_name, span_of
from jaxviz.higher_order import is_scan, of
from jaxviz.ir import compat
from jaxviz.ir.expressions import assigned_at, called_by, expression_at
from jaxviz.ir.origin import Location, location_at
from jaxviz.ir.primitives import plain
from jaxviz.ir.syntax import Equation, Program, Var
from jaxviz.report.tables import repeated, type_text

_AROUND = ("vmap", "jit", "checkpoint", "remat", "partial")
"""Functions that return another one, and whose own name says nothing about the value."""


def extents_of_values(search: Search) -> dict[Extent, tuple[Var, ...]]:
    """Expressions of the user's source that can be given a name, with the values that get it; also in the bodies of
    scans.

    The value of an expression is known if only one of the values computed during its evaluation is read later. Excluded
    are expressions that are evaluated where a name would mean something else, as in a branch of a cond or in a function
    that is differentiated; those that may be evaluated several times in a row, which cannot be told apart; and those
    that are not found in the source.
    """
    candidates: dict[Extent, list[Var]] = {}
    refused: set[Extent] = set()
    _find(search.flat, search.context.stacks, 0, candidates, refused)
    taken: set[Var] = set()
    extents = {}
    for extent, values in candidates.items():  # inner ones first
        if extent not in refused and taken.isdisjoint(values) and _can_be_wrapped(extent):
            extents[extent] = tuple(values)
            taken.update(values)
    return extents


def _find(
    program: Program, frames: Stacks, depth: int, candidates: dict[Extent, list[Var]], refused: set[Extent]
) -> None:
    """Finds the candidates in a program whose equations have so many frames in common, those of its loop."""
    evaluated = lambda e, depth: tuple(extent_of(*frame) for frame in own_frames(frames[e][depth:]))
    equations = program.equations
    n = len(equations)
    first: dict[Any, int] = {}
    last: dict[Any, int] = {}
    for i, e in enumerate(equations):
        for a in e.invars:
            first.setdefault(a, i)
            last[a] = i
    last.update((a, n) for a in program.outvars)
    stacks = [evaluated(e, depth) for e in equations]
    for e, stack in zip(equations, stacks, strict=True):
        if is_scan(e) or of(e).kind == "devices":
            _find(e.params["jaxpr"], frames, len(frames[e]), candidates, refused)
        else:
            nested = (inner for _, body in e.programs for _, inner in body.walk())
            refused.update(p for inner in nested for p in evaluated(inner, len(frames[e])))
        if compat.is_differentiated(e.source):
            refused.update(stack)
    for extent, start, end in _evaluations(stacks, 0, n, 0):
        inside = equations[start:end]
        leaving = [v for e in inside for v in e.outvars if last.get(v, -1) >= end]
        if len(leaving) == 1 and first.get(leaving[0], end) >= end and _is_one_value(leaving[0].aval, inside):
            candidates.setdefault(extent, []).append(leaving[0])
        elif leaving:
            refused.add(extent)


def _evaluations(
    stacks: Sequence[tuple[Extent, ...]], start: int, end: int, level: int
) -> Iterator[tuple[Extent, int, int]]:
    """Each evaluation of an expression, and the range of its equations; those within it first."""
    for here, first, last in runs(start, end, lambda i: stacks[i][level : level + 1]):
        if here:
            yield from _evaluations(stacks, first, last, level + 1)
            yield here[0], first, last


def _is_one_value(aval: Any, equations: Sequence[Equation]) -> bool:
    """Whether JAX can save a value by name, and the equations that led to it are not those of several evaluations in a
    row."""
    is_array = hasattr(aval, "shape") and not jax.dtypes.issubdtype(aval.dtype, np.complexfloating)
    return is_array and not _repeats([e.primitive for e in equations])


def _repeats(primitives: Sequence[Any]) -> bool:
    """Whether a sequence is a shorter one repeated."""
    n = len(primitives)
    return any(n % k == 0 and list(primitives[:k]) * (n // k) == list(primitives) for k in range(1, n // 2 + 1))


def _can_be_wrapped(extent: Extent) -> bool:
    """Whether an expression is found in the source, and a call can be written around it."""
    span = span_of(extent)
    return span is not None and span.can_be_called


@dataclass(frozen=True, slots=True)
class WrittenName:
    """A name for an expression.

    Args:
      code: the code that contains the expression.
      is_moved: whether its value is offloaded to the host.
      values: the values with this name.
    """

    extent: Extent
    name: str
    code: object
    is_moved: bool
    values: Sequence[Var]


@dataclass(frozen=True, slots=True)
class Saved:
    """A value that a plan saves.

    Args:
      name: its name for `jax.ad_checkpoint.checkpoint_name`.
      expression: the operation that computes it.
      label: the user's expression for it; the same as `expression` if there is none.
      type: its type.
      nbytes: its size in bytes.
      location: the user's line.
      offloaded: whether it is offloaded to the host.
      library: where in a library it is computed; '' if in none.
    """

    name: str
    expression: str
    label: str
    type: str
    nbytes: int
    location: Location | None
    offloaded: bool = False
    library: str = ""

    @property
    def repeats(self) -> tuple[str, str]:
        """A key, the same for the values of one expression of a library in repeated layers: its module and the
        expression."""
        module, _, expression = self.label.rpartition(" · ")
        return pattern(module), expression


class Names:
    """Generates unique names."""

    def __init__(self, taken: Collection[str] = ()):
        self.taken = set(taken)

    def new(self, code: Any, what: str) -> str:
        """A new name such as `attention_probs`."""
        inside = code.co_qualname.split(".") if code is not None else []
        function = next((part for part in reversed(inside) if part.isidentifier() and part != "__call__"), "")
        words = [word for word in (function, what) if word.isidentifier()]
        name = base = re.sub(r"\W+", "_", "_".join(words)).strip("_") or "saved"
        k = 2
        while name in self.taken:
            name, k = f"{base}_{k}", k + 1
        self.taken.add(name)
        return name

    def of_extent(self, search: Search, extent: Extent, value: Var) -> tuple[str, Any]:
        """A name for an expression with this value, and the code that contains it."""
        maker = search.makers[value]
        matching = ((c, i) for c, i in reversed(search.context.stacks[maker]) if extent_of(c, i) == extent)
        code, instruction = next(matching, (None, 0))
        return self.new(code, word(maker, location_at(code, instruction) if code is not None else None)), code

    def of_value(self, search: Search, value: Var) -> str:
        """A name for a value, whether or not it has an expression."""
        maker = search.makers[value]
        is_whole = search.context.naming.is_whole(maker, (), maker.outvars.index(value))
        frames = search.context.stacks[maker]
        code, instruction = (own_frames(frames) or frames or [(None, 0)])[-1]
        return self.new(code, word(maker, location_at(code, instruction) if code is not None and is_whole else None))


def word(maker: Equation, at: Location | None) -> str:
    """A word for a value: what it is assigned to, what is called for it, or its operation, such as `product`.

    Args:
      at: the expression whose value it is; None if there is none.
    """
    assigned, name = assigned_at(at), str(maker.primitive.name)
    return assigned if assigned.isidentifier() else _called(expression_at(at)) or plain(name).word or name


def _called(expression: str) -> str:
    """`Dense` for `nn.Dense(8)(x)`, `norm` for `jax.vmap(self.norm)(x)`; '' for anything but a call."""
    node = called_by(expression)
    while isinstance(node, ast.Call):
        node = node.args[0] if node.args and last_name(node.func) in _AROUND else node.func
    name = last_name(node) if node is not None else ""
    return "" if name.startswith("_") or name in _AROUND else name


def names_there(program: Program) -> set[str]:
    """The names that values of a function already have."""
    return {e.params["name"] for _, e in program.walk() if e.primitive is compat.name_p}


def names_of(search: Search, form: Form) -> dict[Var, str]:
    """A name for each saved value, by its variable in the first spot of its part."""
    names = Names(names_there(search.flat))
    by_value: dict[Var, str] = {}
    for part, choice in form.choices:
        for candidate in part.names_of(choice):
            values = part.graph.candidates[candidate]
            name = next((by_value[v] for v in values if v in by_value), "")
            name = name or names.of_value(search, next(part.everywhere(values[0])))
            by_value.update(dict.fromkeys(values, name))
        for k in part.inputs_moved(choice):
            by_value[part.body.invars[k]] = names.new(_function_of(search, part), "input")
    return by_value


def _function_of(search: Search, part: Part) -> Any:
    """The code that a part is a call of, if it is the user's."""
    own = own_frames(search.context.stacks[part.spots[0].equations[0]])
    return own[-1][0] if own else None


def saved_by(search: Search, form: Form) -> tuple[Saved, ...]:
    """The values that are saved or offloaded, one for all spots, with their names."""
    words = names_of(search, form)
    values: list[Saved] = []
    for part, choice in form.choices:
        moved = part.moved_of(choice)
        values += [_saved(search, part, name, words, name in moved) for name in part.names_of(choice)]
        values += [_moved_input(part, k, words) for k in part.inputs_moved(choice)]
    return tuple(values)


def _saved(search: Search, part: Part, candidate: str, words: Mapping[Var, str], is_moved: bool) -> Saved:
    """A candidate, with all of its values together, as the function as written calls it."""
    value = part.graph.candidates[candidate][0]
    everywhere = [*part.everywhere(value)]
    naming, maker = search.context.naming, search.makers[everywhere[0]]
    size = part.times_here * part.graph.named_sizes[candidate]
    return Saved(
        words[value], str(maker.primitive.name), alike([search.called(v) for v in everywhere]),
        repeated(size // max(part.sizes.of(value), 1), type_text(value.aval)), size, naming.location(maker, ()),
        is_moved, naming.library(maker, ()),
    )  # fmt: skip


def _moved_input(part: Part, k: int, words: Mapping[Var, str]) -> Saved:
    """An offloaded input, over all spots and iterations."""
    v = part.body.invars[k]
    size = part.prices[part.graph.named.forward.invars[k]]
    label = (part.body.arg_names[k] if k < len(part.body.arg_names) else "") or "what goes in"
    kind = repeated(size // max(part.sizes.of(v), 1), type_text(v.aval))
    return Saved(words[v], "an input", label, kind, size, part.spots[0].equations[0].location, True)
