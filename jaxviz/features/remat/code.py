"""Which expressions of the user's source can be named, and the text of a policy for such names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from textwrap import fill
from typing import Any

import jax
import numpy as np

from jaxviz.features.remat.offload import DEVICE, HOST
from jaxviz.higher_order import is_scan, of
from jaxviz.ir import compat
from jaxviz.ir.expressions import Span, span_at
from jaxviz.ir.own_code import owner
from jaxviz.ir.sharing import cleared
from jaxviz.ir.syntax import Equation, Program, Var


@dataclass(frozen=True, slots=True)
class Place:
    """An expression in the source, by lines from 1 and columns in bytes from 0, as Python records them."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


def policy_text(variable: str, saved: Sequence[str], offloaded: Sequence[str]) -> str:
    """The lines that assign the policy that saves and offloads values with these names to a variable."""
    quoted = lambda names: ", ".join(f'"{n}"' for n in names)
    policies = f"{variable} = jax.checkpoint_policies"
    if not offloaded:
        line = f"{policies}.save_only_these_names({quoted(saved)})"
        if len(line) < 100:
            return line
        return f"{policies}.save_only_these_names(\n    {fill(quoted(saved), 95, subsequent_indent='    ')}\n)"
    rows = [
        fill(f"{which}=[{quoted(names)}],", 96, initial_indent="    ", subsequent_indent="        ")
        for which, names in (("names_which_can_be_saved", saved), ("names_which_can_be_offloaded", offloaded))
    ]
    head = f"{policies}.save_and_offload_only_these_names("
    return "\n".join([head, *rows, f'    offload_src="{DEVICE}",', f'    offload_dst="{HOST}",', ")"])


def places_of_values(program: Program) -> dict[Place, tuple[Var, ...]]:
    """Expressions of the user's source that can be given a name, with the values that get it; also in the bodies of scans.

    The value of an expression is known if only one of the values computed during its evaluation is read later. Excluded are expressions
    that are evaluated where a name would mean something else, as in a branch of a cond or in a function that is differentiated; those that
    may be evaluated several times in a row, which cannot be told apart; and those that are not found in the source.
    """
    found: dict[Place, list[Var]] = {}
    refused: set[Place] = set()
    _find(program, (), found, refused)
    taken: set[Var] = set()
    places = {}
    for place, values in found.items():  # inner ones first
        if place not in refused and taken.isdisjoint(values) and _expression(place) is not None:
            places[place] = tuple(values)
            taken.update(values)
    return places


def _find(program: Program, outer: Sequence[Place], found: dict[Place, list[Var]], refused: set[Place]) -> None:
    equations = program.equations
    n = len(equations)
    first: dict[Any, int] = {}
    last: dict[Any, int] = {}
    for i, e in enumerate(equations):
        for a in e.invars:
            first.setdefault(a, i)
            last[a] = i
    last.update((a, n) for a in program.outvars)
    stacks = [_without(stack_of(e), outer) for e in equations]
    for e, stack in zip(equations, stacks, strict=True):
        if is_scan(e) or of(e).kind == "devices":
            _find(e.params["jaxpr"], stack, found, refused)
        else:
            refused.update(
                p for _, body in e.programs for _, inner in body.walk() for p in _without(stack_of(inner), stack)
            )
        if compat.is_differentiated(e.source):
            refused.update(stack)
    opened: list[int] = []
    for i in range(n + 1):
        stack = stacks[i] if i < n else ()
        before = stacks[i - 1] if i else ()
        shared = next(
            (k for k, (a, b) in enumerate(zip(before, stack, strict=False)) if a != b), min(len(before), len(stack))
        )
        while len(opened) > shared:
            start, place = opened.pop(), before[len(opened)]
            _close(place, equations[start:i], i, first, last, found, refused)
        opened += [i] * (len(stack) - shared)


def _close(
    place: Place, equations: Sequence[Equation], end: int, first: Mapping[Any, int], last: Mapping[Any, int],
    found: dict[Place, list[Var]], refused: set[Place],
) -> None:  # fmt: skip
    """Records the results of a place in one evaluation, whose equations end before number `end`."""
    leaving = [v for e in equations for v in e.outvars if last.get(v, -1) >= end]
    if not leaving:
        return
    value = leaving[0]
    aval = value.aval
    can_be_saved = hasattr(aval, "shape") and not jax.dtypes.issubdtype(aval.dtype, np.complexfloating)
    if (
        len(leaving) > 1
        or first.get(value, end) < end
        or not can_be_saved
        or _repeats([e.primitive for e in equations])
    ):
        refused.add(place)
        return
    found.setdefault(place, []).append(value)


def _repeats(primitives: Sequence[Any]) -> bool:
    """Whether a sequence is a shorter one repeated."""
    n = len(primitives)
    return any(n % k == 0 and list(primitives[:k]) * (n // k) == list(primitives) for k in range(1, n // 2 + 1))


def _without(stack: tuple[Place, ...], outer: Sequence[Place]) -> tuple[Place, ...]:
    """The part of a stack that is in the body of an equation; usually JAX records no more."""
    return stack[len(outer) :] if stack[: len(outer)] == tuple(outer) else stack


def stack_of(equation: Equation) -> tuple[Place, ...]:
    """The user's expressions that were being evaluated when an equation was traced, outermost first; those of installed libraries are left
    out."""
    traceback = equation.source.traceback if equation.source is not None else None
    return () if traceback is None else _stack(traceback)


@cleared
@lru_cache(maxsize=65536)
def _stack(traceback: Any) -> tuple[Place, ...]:
    places: list[Place] = []
    for code, instruction in zip(*traceback.raw_frames(), strict=True):
        whose = owner(code.co_filename)
        if whose == "jaxviz":
            break
        if whose == "user":
            at = compat.frame_at(code, instruction)
            places.append(Place(at.file_name, at.start_line, at.start_column, at.end_line, at.end_column))
    return tuple(reversed(places))


def _expression(place: Place) -> Span | None:
    """The start and end of an expression, such that it can be wrapped in a call."""
    found = span_at(place.file, place.line, place.column, place.end_line, place.end_column)
    return found if found is not None and found.can_be_called else None
