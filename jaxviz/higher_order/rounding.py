"""A program that can be run with other last digits, which tells what rounding may change: of the numbers written in it
that are rounded, such as `0.999`, and of what operations compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.higher_order import is_call, is_loop, of
from jaxviz.higher_order.observing import NO_STEP, Observer, PassedIn, Place, observed_program, walk_observed
from jaxviz.ir import compat
from jaxviz.ir.convert import trace_rule
from jaxviz.ir.primitives import plain
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.transforms.driver import Builder
from jaxviz.transforms.inline import inlined_where

ROUNDED = frozenset(("transcendental", "lowered", "series", "cumulative logsumexp"))
"""Kinds of operations whose result may change less with the last digits of its operands than it is rounded: where a
`tanh` is flat, all digits but its last are the same, and its slope, `1 - tanh**2`, consists of that one."""
SUMS = frozenset(("elementwise", "reduction", "cumulative"))
"""Kinds among which sums are such: of a large number that is exact and a small one, and of many, whose own changes
cancel. Products change by as much as their operands do."""
N_CHANGES = 61
"""How many operations in a row change each otherwise, as the same change would cancel in a quotient."""


@dataclass(eq=False)
class OtherDigits:
    """A program that can be run with other last digits.

    Args:
      original: the program.
    """

    original: Program

    program: Program = field(init=False)
    """The same with more inputs, see `inputs`, and without custom rules, as it is not differentiated again."""
    _literals: dict[Any, Literal] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        opened = inlined_where(self.original, lambda e: is_call(e) and of(e).has_custom_rule)
        rounded: set[Place] = set()
        for path, nested in walk_observed(opened):
            for e in nested.equations:
                rounded.update((path, v) for v in e.outvars if is_rounded(e, v))
                self._literals.update((_key(a), a) for a in e.invars if isinstance(a, Literal) and fills_its_type(a))
        number = {key: i for i, key in enumerate(self._literals)}
        changes = Var(compat.aval_of(np.zeros(N_CHANGES, np.float32)))
        taken = lambda a: number.get(_key(a)) if number and fills_its_type(a) else None
        shared = [*(Var(a.aval) for a in self._literals.values()), changes]
        observer = Observer(rounded.__contains__, _Changing(), taken=taken)
        self.program, _ = observed_program(opened, observer, shared)

    def inputs(self, seed: int = 0, times: int = 0) -> list[Any]:
        """What the program takes after its own inputs to compute with digits up to so many last places away, at random;
        by default with its own."""
        random = np.random.default_rng(seed)
        # Less than half of a place would be rounded away.
        changes = (times * random.uniform(0.5, 1, N_CHANGES) * random.choice([-1, 1], N_CHANGES)).astype(np.float32)
        literals = [changed_literal(a, bool(random.integers(2)), times) for a in self._literals.values()]
        return [NO_STEP, *literals, changes]


class _Changing:
    """Adds to what an operation computes its change."""

    def __init__(self) -> None:
        self._rules: dict[Any, Program] = {}
        self._changes: dict[Builder, list[Atom]] = {}
        """Of each program the vector of changes, then those of single operations."""
        self._count: dict[Builder, int] = {}

    def __call__(self, builder: Builder, place: Place, e: Equation, passed: PassedIn) -> tuple[Atom, None]:
        changes = self._changes.get(builder)
        if changes is None:
            in_loop = any(is_loop(around) for around in place[0])
            changes = self._changes[builder] = [self._of_iteration(builder, passed) if in_loop else passed.shared[-1]]
        i = self._count[builder] = self._count.get(builder, -1) + 1
        if i < N_CHANGES:
            changes.append(self._added(builder, i, lambda all_of: all_of[i], changes[0]))
        change = changes[1 + i % N_CHANGES]
        if plain(e.primitive.name).kind == "elementwise":
            sign = -1 if e.primitive.name == "sub" else 1
            changed = lambda x, by, a, b: _changed(x, by, is_kept=lambda x, a, b: _is_exact(x, a, sign * b), of=(a, b))
            return self._added(builder, f"changed sum {sign}", changed, place[1], change, *e.invars), None
        return self._added(builder, "changed", _changed, place[1], change), None

    def _of_iteration(self, builder: Builder, passed: PassedIn) -> Atom:
        """The changes of an iteration: in each others, since rounding does not go the same way in all."""
        start = lambda iterations: jnp.sum(iterations) * 7 % N_CHANGES
        rolled = lambda x, of: jax.lax.dynamic_slice(jnp.concatenate([x, x]), (start(of),), x.shape)
        return self._added(builder, "rolled", rolled, passed.shared[-1], passed.iterations)

    def _added(self, builder: Builder, what: Any, fun: Callable[..., Any], *operands: Atom) -> Atom:
        key = what, compat.trace_key(), *(a.aval for a in operands)
        if key not in self._rules:
            self._rules[key] = trace_rule(lambda *xs: [fun(*xs)], [a.aval for a in operands])
        return builder.inline(self._rules[key], operands)[0]


def _changed(x: Any, by: Any, is_kept: Callable[..., Any] | None = None, of: Sequence[Any] = ()) -> Any:
    """`x`, of which each element is `by` last places larger, but for those that are kept.

    Args:
      is_kept: given `x` and what it is computed from, for each element whether it stays.
      of: what it is computed from.
    """
    if jnp.iscomplexobj(x):
        parts = [[getattr(y, part) for y in (x, *of)] for part in ("real", "imag")]
        return jax.lax.complex(*(_changed(p, by, is_kept, ps) for p, *ps in parts))
    other = x * (1 + by.astype(x.dtype) * jnp.finfo(x.dtype).eps)
    return jnp.where(is_kept(x, *of), x, other) if is_kept else other


def _is_exact(x: Any, a: Any, b: Any) -> Any:
    """For each element whether a sum is exact, as most of whole numbers are: all three numbers fill at most half of
    their digits, and no operand is lost in the other. XLA would simplify a sum whose operand is subtracted again."""
    info = jnp.finfo(x.dtype)
    is_short = lambda y: y == jax.lax.reduce_precision(y, info.nexp, info.nmant // 2)
    is_lost = ((x == a) & (b != 0)) | ((x == b) & (a != 0))
    return is_short(x) & is_short(a) & is_short(b) & ~is_lost


def is_rounded(e: Equation, v: Var) -> bool:
    """Whether a result may change less with the last digits of what it is computed from than it is rounded."""
    if not jnp.issubdtype(v.aval.dtype, jnp.inexact) or jnp.finfo(v.aval.dtype).bits < 16:
        return False
    does = plain(e.primitive.name)
    return does.kind in ROUNDED or (does.grows == "sum" and does.kind in SUMS)


def fills_its_type(literal: Literal) -> bool:
    """Whether a number fills its type: `0.5`, `1e3` and a mask's infinity are what was written, `0.1` is not."""
    if not jnp.issubdtype(literal.aval.dtype, jnp.floating):
        return False
    info, value = jnp.finfo(literal.aval.dtype), float(_value(literal))
    digits = info.nmant + 1
    if not math.isfinite(value) or abs(value) >= float(info.max):
        return False
    is_whole = value == round(value) and abs(value) <= 2**digits
    return not is_whole and not math.ldexp(math.frexp(value)[0], digits // 2).is_integer()


def changed_literal(literal: Literal, up: bool, times: int) -> Any:
    """So many last places more, or less."""
    x, info = _value(literal), jnp.finfo(literal.aval.dtype)
    y = np.nextafter(x, x.dtype.type(info.max if up else info.min))
    return x + x.dtype.type(times) * (y - x)


def _value(literal: Literal) -> Any:
    return np.asarray(literal.val).astype(literal.aval.dtype)[()]


def _key(literal: Literal) -> Any:
    return literal.aval.dtype, float(_value(literal))
