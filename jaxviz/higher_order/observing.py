"""Programs whose values are observed as they run: equations are inserted after those that compute them, with their
position in loops, and what these compute may leave the program as a result.

    a → b   becomes   a, iterations, shared, own → b, taps

Every equation around a value, a `jit`, a loop, a branch, a checkpoint or a `shard_map`, is passed the current
iterations: a vector of integers, to which each loop appends its own. With it come values that are the same everywhere,
and values of one place's own. A tap, what leaves, is stacked by a scan, is that of the last iteration of a while loop,
zero where its branch did not run, and has an axis for the devices of a `shard_map` along which it varies.

Functions with custom rules are left alone, since their rule is differentiated, not what they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.ir import compat
from jaxviz.ir.convert import shared, trace_rule
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.transforms.driver import Builder, program_effects
from jaxviz.transforms.primitive import bodies, of

Path = tuple[Equation, ...]
"""The equations that contain a program, outermost first."""
Place = tuple[Path, Var]
"""A value: its program, and its variable there. Several equations may hold the same program."""
NO_STEP = np.zeros(1, np.int32)
"""The vector of iterations around a whole function."""


@dataclass(frozen=True, slots=True)
class PassedIn:
    """What a program is passed besides its inputs.

    Args:
      shared: what is the same in each branch and on each device: the vector of iterations, then values that are also
        the same in each iteration.
      own: the values that a place has for itself; outside of a scan, with an axis for its iterations.
    """

    shared: tuple[Atom, ...]
    own: Mapping[Place, Atom]

    @property
    def iterations(self) -> Atom:
        return self.shared[0]

    def below(self, path: Path) -> dict[Place, Atom]:
        """The own values of what is inside the last of these equations."""
        return {p: a for p, a in self.own.items() if p[0][: len(path)] == path}


@dataclass(frozen=True)
class Observer:
    """What is inserted.

    Args:
      chosen: whether a value is observed.
      observe: given the program being built, a place, the equation that computes it and what the program is passed:
        adds what observes it; returns what replaces the value from there on, and what leaves the program, if anything.
      has_use: whether an equation uses the vector of iterations.
      extend: adds such an equation, with the vector.
      taken: of a literal the number of the shared value that is computed with in its place; None if there is none.
    """

    chosen: Callable[[Place], bool]
    observe: Callable[[Builder, Place, Equation, PassedIn], tuple[Atom, Atom | None]]
    has_use: Callable[[Equation], bool] = lambda e: False
    extend: Callable[[Builder, Equation, Atom], None] = lambda builder, e, iterations: None
    taken: Callable[[Literal], int | None] = lambda literal: None


def observed_inside(equation: Equation) -> tuple[Program, ...]:
    """The programs of an equation in which values can be observed."""
    return tuple(b.program for b in bodies(equation) if b.has_results) if of(equation).observe is not None else ()


def walk_observed(program: Program) -> Iterator[tuple[Path, Program]]:
    """A program, and all nested programs in which values can be observed, with the equations around each."""

    def inside(path: Path, program: Program) -> Iterator[tuple[Path, Program]]:
        yield path, program
        for e in program.equations:
            for nested in dict.fromkeys(observed_inside(e)):
                yield from inside((*path, e), nested)

    return inside((), program)


def observed_program(
    program: Program, observer: Observer, shared: Sequence[Var] = (), own: Mapping[Place, Var] | None = None
) -> tuple[Program, tuple[Place, ...]]:
    """The program with values observed, and the places that its additional results belong to.

    Args:
      program: the program.
      observer: what is inserted.
      shared: inputs for values that are passed to all programs.
      own: an input for each place that has a value of its own.

    Returns:
      a program with new last inputs: the vector of iterations around it, of one integer, then `shared`, then `own`.
    """
    loop, own = Var(_vector(1)), own or {}
    return Observing(observer).body(
        program, (), PassedIn((loop, *shared), own), (*program.invars, loop, *shared, *own.values())
    )


class Observing:
    """Inserts an observer into programs, and into those nested in their equations."""

    def __init__(self, observer: Observer):
        self.observer = observer
        self._touched: dict[tuple[Path, Program], bool] = {}

    def touches(self, path: Path, program: Program) -> bool:
        """Whether anything in a program has to change."""
        if (path, program) not in self._touched:
            self._touched[path, program] = any(
                any(self.observer.chosen((path, v)) for v in e.outvars)
                or self.observer.has_use(e)
                or any(isinstance(a, Literal) and self.observer.taken(a) is not None for a in e.invars)
                or any(self.touches((*path, e), nested) for nested in observed_inside(e))
                for e in program.equations
            )
        return self._touched[path, program]

    def body(
        self, program: Program, path: Path, passed: PassedIn, invars: Sequence[Var], builder: Builder | None = None
    ) -> tuple[Program, tuple[Place, ...]]:
        """A program with its values observed, other inputs and its taps as additional results, and their places;
        `builder` has the equations at its start."""
        builder = builder or Builder(program.constvars, program.consts)
        env: dict[Atom, Atom] = {}
        taps: dict[Place, Atom] = {}
        for e in program.equations:
            for a in e.invars:
                if isinstance(a, Literal) and (i := self.observer.taken(a)) is not None:
                    env[a] = passed.shared[1 + i]
            ins = tuple([env.get(a, a) for a in e.invars])
            same = e
            if any(a is not b for a, b in zip(ins, e.invars, strict=True)):
                e = replace(e, invars=ins)
            if self.observer.has_use(e):
                self.observer.extend(builder, e, passed.iterations)
            elif any(self.touches((*path, same), nested) for nested in observed_inside(e)):
                rule = of(e).observe
                assert rule is not None
                taps.update(rule(e, (*path, same), passed, builder, self))
            else:
                builder.equations.append(e)
            for v in e.outvars:
                if self.observer.chosen((path, v)):
                    env[v], tap = self.observer.observe(builder, (path, v), e, passed)
                    if tap is not None:
                        taps[path, v] = tap
        outvars = (*(env.get(a, a) for a in program.outvars), *taps.values())
        observed = replace(
            program,
            constvars=tuple(builder.constvars),
            consts=tuple(builder.consts),
            invars=tuple(invars),
            outvars=outvars,
            equations=tuple(builder.equations),
            effects=program_effects(builder.equations, invars),
            debug_info=compat.derived_debug_info(program.debug_info, [""] * len(invars), len(outvars)),
        )
        return observed, tuple(taps)

    def last(
        self, program: Program, path: Path, passed: PassedIn
    ) -> tuple[Program, tuple[Atom, ...], tuple[Place, ...]]:
        """A nested program that takes what it is passed as its last inputs; what that is outside; the places of its
        taps."""
        below = passed.below(path)
        shared = tuple([Var(a.aval) for a in passed.shared])
        own = {p: Var(a.aval) for p, a in below.items()}
        body, places = self.body(program, path, PassedIn(shared, own), (*program.invars, *shared, *own.values()))
        return body, (*passed.shared, *below.values()), places


def add_observed(
    builder: Builder, e: Equation, operation: Any, operands: Sequence[Atom], places: Sequence[Place]
) -> dict[Place, Atom]:
    """Adds an equation in the place of another, which also returns taps; returns these."""
    n = len(e.outvars)
    taps: dict[Place, Atom] = {p: Var(a) for p, a in zip(places, operation.out_avals[n:], strict=True)}
    outvars = (*e.outvars, *taps.values())
    builder.equations.append(Equation(operation, tuple(operands), outvars, e.source, e.origin))  # type: ignore[arg-type]
    return taps


@shared
def _vector(n: int) -> Any:
    return compat.aval_of(np.zeros(n, np.int32))


@shared
def number() -> Any:
    return compat.aval_of(np.int32(0))


def joining(n: int) -> Program:
    return trace_rule(lambda outer, i: [jnp.concatenate([outer, jnp.reshape(i, (1,))])], [_vector(n), number()])


def joined(builder: Builder, first: Atom, second: Atom) -> Atom:
    """Adds the concatenation of two vectors."""
    program = trace_rule(lambda x, y: [jnp.concatenate([x, y])], [first.aval, second.aval])
    return builder.inline(program, (first, second))[0]


def all_numbers(length: int) -> Program:
    return trace_rule(lambda: [jax.lax.iota(jnp.int32, length)], ())


def next_number() -> Program:
    return trace_rule(lambda i: [jax.lax.add(i, np.int32(1))], [number()])


def first_number() -> Program:
    return trace_rule(lambda: [jax.lax.full((), 0, jnp.int32)], ())


@shared
def all_zero(aval: Any) -> Program:
    return trace_rule(lambda: [compat.zeros(aval)], ())
