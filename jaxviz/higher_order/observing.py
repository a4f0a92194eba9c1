"""Programs whose values are observed as they run: equations are inserted after those that compute them, with their
position in loops.

Every equation around a value, a `jit`, a loop, a branch, a checkpoint or a `shard_map`, is passed the current
iterations: a vector of integers, to which each loop appends its own. Functions with custom rules are left alone, since
their rule is differentiated, not what they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.ir import compat
from jaxviz.ir.convert import shared, trace_rule
from jaxviz.ir.syntax import Atom, Equation, Program, Var
from jaxviz.transforms.driver import Builder, program_effects
from jaxviz.transforms.primitive import bodies, of


@dataclass(frozen=True)
class Observer:
    """What is inserted.

    Args:
      chosen: the variables to observe.
      observe: given the program being built, a variable, the equation that computes it and the vector of iterations:
        adds what observes it, and returns what replaces the value from there on.
      has_use: whether an equation uses the vector.
      extend: adds such an equation, with the vector.
    """

    chosen: Container[Var]
    observe: Callable[[Builder, Var, Equation, Atom], Atom]
    has_use: Callable[[Equation], bool]
    extend: Callable[[Builder, Equation, Atom], None]


def observed_inside(equation: Equation) -> tuple[Program, ...]:
    """The programs of an equation in which values can be observed."""
    return tuple(b.program for b in bodies(equation) if b.has_results) if of(equation).observe is not None else ()


def walk_observed(program: Program) -> Iterator[Program]:
    """A program, and all nested programs in which values can be observed, each once."""
    seen: set[Program] = set()

    def inside(program: Program) -> Iterator[Program]:
        if program not in seen:
            seen.add(program)
            yield program
            for e in program.equations:
                for nested in observed_inside(e):
                    yield from inside(nested)

    return inside(program)


def observed_program(program: Program, observer: Observer) -> Program:
    """The program with values observed; its last input is new, the vector of iterations around it, of one integer."""
    return Observing(observer).rewritten(program)


class Observing:
    """Inserts an observer into programs, and into those nested in their equations."""

    def __init__(self, observer: Observer):
        self.observer = observer
        self._touched: dict[Program, bool] = {}

    def rewritten(self, program: Program) -> Program:
        loop = Var(_vector(1))
        return self.body(program, loop, (*program.invars, loop))

    def touches(self, program: Program) -> bool:
        """Whether anything in a program has to change."""
        if program not in self._touched:
            self._touched[program] = any(
                any(v in self.observer.chosen for v in e.outvars)
                or self.observer.has_use(e)
                or any(map(self.touches, observed_inside(e)))
                for e in program.equations
            )
        return self._touched[program]

    def body(self, program: Program, loop: Atom, invars: Sequence[Var], builder: Builder | None = None) -> Program:
        """A program with its values observed, and other inputs; `builder` has the equations at its start."""
        builder = builder or Builder(program.constvars, program.consts)
        env: dict[Atom, Atom] = {}
        for e in program.equations:
            ins = tuple([env.get(a, a) for a in e.invars])
            if any(a is not b for a, b in zip(ins, e.invars, strict=True)):
                e = replace(e, invars=ins)
            if self.observer.has_use(e):
                self.observer.extend(builder, e, loop)
            elif any(map(self.touches, observed_inside(e))):
                self.nested(e, loop, builder)
            else:
                builder.equations.append(e)
            for v in e.outvars:
                if v in self.observer.chosen:
                    env[v] = self.observer.observe(builder, v, e, loop)
        names = [""] * len(invars)
        return replace(
            program,
            constvars=tuple(builder.constvars),
            consts=tuple(builder.consts),
            invars=tuple(invars),
            outvars=tuple([env.get(a, a) for a in program.outvars]),
            equations=tuple(builder.equations),
            effects=program_effects(builder.equations, invars),
            debug_info=compat.derived_debug_info(program.debug_info, names, len(program.outvars)),
        )

    def nested(self, e: Equation, loop: Atom, builder: Builder) -> None:
        """Adds an equation whose nested programs are observed."""
        rule = of(e).observe
        assert rule is not None
        rule(e, loop, builder, self)

    def last(self, program: Program, loop: Atom) -> Program:
        """A nested program, with the vector as its last input."""
        inner = Var(loop.aval)
        return self.body(program, inner, (*program.invars, inner))


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
