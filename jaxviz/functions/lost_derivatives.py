"""Where a derivative is lost: the operations whose results change although JAX's derivative of them says otherwise.

A program is run at some points of a line through its inputs. Where the operands of an operation change as their
tangents say, and its result does not, the derivative of the program is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.arguments import placed_at
from jaxviz.higher_order import is_call, of
from jaxviz.ir.emit import as_function
from jaxviz.ir.expressions import expression_at
from jaxviz.ir.origin import Location, ancestors, locate
from jaxviz.ir.syntax import Atom, Equation, Literal, Program
from jaxviz.report.tables import short_location
from jaxviz.transforms.inline import inlined_where

MOST_SHOWN = 3
"""How many places are listed."""


@dataclass(frozen=True, slots=True)
class Lost:
    """An operation at which a derivative is lost.

    Args:
      operation: the name of its primitive: in a derivative, of the operation that it is the derivative of.
      location: its line; None if unknown.
      why: how its result changes, as the end of a sentence.
    """

    operation: str
    location: Location | None
    why: str

    @property
    def place(self) -> str:
        """`betaln(a, b)`, model.py:12."""
        expression = expression_at(self.location)
        named = f"`{expression}`" if expression else ""
        return ", ".join(filter(None, [named, short_location(self.location)])) or f"`{self.operation}`"

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"


def lost_in(program: Program, point: Sequence[Any], compiled: Callable[..., Callable[..., Any]]) -> tuple[Lost, ...]:
    """The operations of a program at which its derivative at a point is lost, in its order, at most one for each line
    and operation.

    Of a loop or a branch at which it is lost, the operations inside are searched.

    Args:
      program: the program; its floating-point inputs are differentiated.
      compiled: compiles a function for some arguments.
    """
    program = inlined_where(program, lambda e: is_call(e) and not of(e).has_custom_rule)
    observed = [v for e in program.equations for v in e.outvars if is_float(v.aval)]
    run = as_function(replace(program, outvars=tuple(observed)))
    point = tuple(point)
    directions = [_direction(point, seed) for seed in range(2)]  # along a single one, errors may cancel
    push = lambda point, direction: jax.jvp(run, point, direction)[1]
    pushed, compute = compiled(push, point, directions[0]), compiled(run, *point)
    eps = max(float(jnp.finfo(a.dtype).eps) for a in (*program.in_avals, *(v.aval for v in observed)) if is_float(a))
    step = eps ** (1 / 3)

    def moves(direction: tuple[Any, ...]) -> dict[Atom, _Move]:
        at = lambda t: compute(*(_moved(x, t, d) for x, d in zip(point, direction, strict=True)))
        values = pushed(point, direction), *map(at, (0, step, -step, step / 2, -step / 2))
        arrays = [[np.asarray(x, np.float64) for x in group] for group in values]
        return {v: _Move(step, eps, *at) for v, *at in zip(observed, *arrays, strict=True)}

    lost_at: dict[tuple[str, Location | None], Lost] = {}
    for direction in directions:
        moving = moves(direction)
        here: dict[Atom, Any] = dict(zip(program.invars, point, strict=True))
        here |= {v: move.here for v, move in moving.items()}
        for e, move in _lost_equations(program, moving):
            operands = lambda e=e: compiled(as_function(replace(program, outvars=e.invars)), *point)(*point)
            inside = [lost for body, inputs in _bodies(e, operands) for lost in lost_in(body, inputs, compiled)]
            for lost in inside or [_lost(e, move, _undifferentiated(e, program), here)]:
                lost_at.setdefault((lost.operation, lost.location), lost)
    return tuple(lost_at.values())[:MOST_SHOWN]


def like(x: Any, values: Any) -> Any:
    """Values as an array with the type of another, and on its devices: over explicit axes the sharding is part of the
    type."""
    array = jnp.asarray(values, x.dtype)
    sharding = placed_at(x)
    return array if sharding is None else jax.device_put(array, sharding)


def _direction(point: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    random = np.random.default_rng(seed)
    are_float = [is_float(jax.typeof(x)) for x in point]
    return tuple(
        like(x, random.standard_normal(x.shape) * _scale(x)) if moves else np.zeros(np.shape(x), jax.dtypes.float0)
        for x, moves in zip(point, are_float, strict=True)
    )


def _scale(x: Any) -> Any:
    """How far each number moves: one that is small by a part of itself, so that it stays in the domain."""
    size = np.abs(np.asarray(x, np.float64))
    return np.where(size == 0, 1.0, np.minimum(size, 1.0))


def _moved(x: Any, t: float, direction: Any) -> Any:
    return x if direction.dtype == jax.dtypes.float0 else x + jnp.asarray(t, x.dtype) * direction


def _lost_equations(program: Program, moves: Mapping[Atom, _Move]) -> Iterator[tuple[Equation, _Move]]:
    """The equations at which a derivative is lost, each with the movement of a result."""
    lost = {a for a, move in moves.items() if move.is_lost}
    for e in program.equations:
        first = next((v for v in e.outvars if v in lost), None)
        if first is not None and lost.isdisjoint(e.invars):
            yield e, moves[first]


MOST_STEPS = 4
"""How many iterations of a loop are searched."""


def _bodies(equation: Equation, operands: Callable[[], list[Any]]) -> Iterator[tuple[Program, list[Any]]]:
    """The programs that an equation runs, with their inputs: of a loop the first iterations, of a cond the branch that
    is taken."""
    kind, operation = of(equation), equation.operation
    if kind.kind not in ("loop", "choice"):
        return
    values = operands()
    for body in kind.bodies(operation):
        if kind.kind == "loop" and body.has_results:
            yield from ((body.program, inputs) for inputs, _ in islice(kind.steps(operation, values), MOST_STEPS))
        elif kind.kind == "choice" and body.branch == int(values[0]):
            yield body.program, [values[i] for i in body.operands]


@dataclass(frozen=True)
class _Move:
    """How a value moves along a direction: JAX's derivative, and values up to a step and half a step from the point."""

    step: float
    eps: float
    tangent: Any
    here: Any
    up: Any
    down: Any
    near_up: Any
    near_down: Any

    @property
    def noise(self) -> Any:
        return 16 * self.eps * np.maximum(np.abs(self.here), np.maximum(np.abs(self.up), np.abs(self.down)))

    @property
    def jumps(self) -> Any:
        """For each element whether it jumps: half the step leaves the difference as large."""
        wide, near = np.abs(self.up - self.down), np.abs(self.near_up - self.near_down)
        return (near > 0.9 * wide) & (wide > 100 * self.noise + 1e-3 * self.step)

    @property
    def turns(self) -> Any:
        """For each element whether its slopes on both sides differ: half the step halves the gap, instead of quartering
        it."""
        wide, near = np.abs(self.up - 2 * self.here + self.down), np.abs(self.near_up - 2 * self.here + self.near_down)
        return ~self.jumps & (near > 0.4 * wide) & (wide > 100 * self.noise + 1e-3 * self.step)

    @property
    def differs(self) -> Any:
        """For each element whether it has another derivative than the tangent."""
        wide, near = (self.up - self.down) / (2 * self.step), (self.near_up - self.near_down) / self.step
        tol = max(1e-4, 10 * self.step) * np.maximum(np.abs(near), np.abs(self.tangent))
        slack = 4 * np.abs(near - wide) + 2 * self.noise / self.step + tol
        return np.isfinite(near) & ~self.jumps & ~(np.abs(near - self.tangent) <= slack)

    @property
    def is_lost(self) -> bool:
        return bool(np.any(self.jumps | self.differs))


def is_float(x: Any) -> bool:
    """Whether a value or a type is one of floating-point numbers."""
    return (hasattr(x, "dtype") and bool(jnp.issubdtype(x.dtype, jnp.floating))) or isinstance(x, float)


def _differentiated(equation: Equation) -> Equation:
    """The operation that an equation is part of the derivative of; an operation of a custom rule stands for itself."""
    outermost = equation
    for e in ancestors(equation):
        if of(e).has_custom_rule:
            break
        outermost = e
    return outermost


def _undifferentiated(equation: Equation, program: Program) -> Equation | None:
    """The equation of a program that computes the operation which another one is part of the derivative of; that
    itself, if it is none."""
    source = _differentiated(equation)
    same = (e for e in program.equations if e.primitive is source.primitive and _differentiated(e) is source)
    return next(same, None)


def _lost(equation: Equation, move: _Move, value: Equation | None, here: Mapping[Atom, Any]) -> Lost:
    name, location = _differentiated(equation).primitive.name, locate(equation.source)
    if np.any(move.jumps):
        k = np.unravel_index(np.argmax(move.jumps), np.shape(move.jumps))
        down, up = (f"{float(x[k]):.6g}" for x in (move.down, move.up))
        what = f"`{name}`" if value is equation else f"the derivative of `{name}`"
        atoms = [a for a in value.invars if is_float(a.aval)] if value is not None else []
        values = [a.val if isinstance(a, Literal) else here.get(a, np.nan) for a in atoms]
        since = ", where its operands are equal" if len(values) == 2 and np.any(np.equal(*values)) else ""
        return Lost(
            name, location, f"{what} jumps here from {down} to {up}{since}; JAX differentiates it as a constant."
        )
    if of(equation).has_custom_rule:
        called = equation.params["call_jaxpr"].name
        return Lost(name, location, f"the custom rule of `{called}` does not give the derivative of `{called}`.")
    if np.any(move.turns & move.differs):
        return Lost(name, location, f"`{name}` has two slopes here, one on each side.")
    if not np.any(move.tangent):
        return Lost(name, location, f"`{name}` changes with its input here, but its derivative is zero for JAX.")
    return Lost(name, location, f"`{name}` has another derivative here than JAX computes.")
