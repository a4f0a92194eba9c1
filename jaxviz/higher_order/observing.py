"""Programs whose values are observed as they run: equations put in after those that make them, with where in which loop they are.

All that stands in the way of a value, a `jit`, a loop, a branch, a checkpoint or a `shard_map`, is handed the iterations that it is in: a
vector of integers, to which each loop adds its own. Functions with rules of their own are left alone, since it is their rule that is
differentiated, not what they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.higher_order.calls import jit_operation
from jaxviz.higher_order.conditionals import cond_operation
from jaxviz.higher_order.devices import apply_shard_map
from jaxviz.higher_order.loops import Scan, While
from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.convert import shared, trace_rule
from jaxviz.ir.syntax import Atom, Equation, Operation, Program, Var
from jaxviz.transforms.driver import Builder, program_effects

_CALLS = (compat.jit_p, compat.remat_p, compat.cond_p, compat.scan_p, compat.while_p, compat.shard_map_p)


def observed_inside(equation: Equation) -> tuple[Program, ...]:
    """The programs of an equation in which values can be observed."""
    if equation.primitive is compat.while_p:
        return (equation.params["body_jaxpr"],)
    return tuple(p for _, p in equation.programs) if equation.primitive in _CALLS else ()


def walk_observed(program: Program) -> Iterator[Program]:
    """A program, and all in it in which values can be observed, each once."""
    seen: set[Program] = set()

    def inside(program: Program) -> Iterator[Program]:
        if program not in seen:
            seen.add(program)
            yield program
            for e in program.equations:
                for nested in observed_inside(e):
                    yield from inside(nested)

    return inside(program)


@dataclass(frozen=True)
class Observer:
    """What is put in.

    Args:
      chosen: the variables to observe.
      observe: given the program being built, a variable, the equation that made it and the vector of iterations: adds what observes it,
        and returns what stands for the value from there on.
      has_use: whether an equation is one that the vector is of use to.
      extend: adds such an equation, with the vector.
    """

    chosen: Container[Var]
    observe: Callable[[Builder, Var, Equation, Atom], Atom]
    has_use: Callable[[Equation], bool]
    extend: Callable[[Builder, Equation, Atom], None]


def observed_program(program: Program, observer: Observer) -> Program:
    """The program with values observed; its last input is new, the vector of iterations at its outside, of one integer."""
    return _Observing(observer).whole(program)


class _Observing:
    def __init__(self, observer: Observer):
        self.observer = observer
        self._touched: dict[Program, bool] = {}

    def whole(self, program: Program) -> Program:
        loop = Var(_vector(1))
        return self.body(program, loop, (*program.invars, loop))

    def touches(self, program: Program) -> bool:
        """Whether anything in a program is to be changed."""
        if program not in self._touched:
            self._touched[program] = any(
                any(v in self.observer.chosen for v in e.outvars)
                or self.observer.has_use(e)
                or any(map(self.touches, observed_inside(e)))
                for e in program.equations
            )
        return self._touched[program]

    def body(self, program: Program, loop: Atom, invars: Sequence[Var], builder: Builder | None = None) -> Program:
        """A program with its values observed, and other inputs; `builder` has what comes first in it."""
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
        """Adds an equation whose programs are observed."""
        op = e.operation
        operands: Sequence[Atom] = (*e.invars, loop)
        if e.primitive is compat.shard_map_p:
            body = self.last(op.params["jaxpr"], loop)
            specs = (*op.params["in_specs"], compat.replicated_spec(loop.aval))
            outs = apply_shard_map(builder, op, body, operands, specs, op.params["out_specs"])
            made = builder.equations.pop()
            assert list(made.outvars) == outs
            builder.equations.append(replace(made, outvars=e.outvars, source=e.source, origin=e.origin))
            return
        if e.primitive is compat.jit_p:
            n, n_out = len(e.invars), len(e.outvars)
            made_op = jit_operation(op, self.last(op.params["jaxpr"], loop), [*range(n), None], range(n_out))
        elif e.primitive is compat.cond_p:
            made_op = cond_operation(op, [self.last(branch, loop) for branch in op.params["branches"]])
        elif e.primitive is compat.remat_p:
            body = self.last(op.params["jaxpr"], loop)
            prevent_cse = op.params["prevent_cse"]
            params = {
                **op.params,
                "jaxpr": body,
                "prevent_cse": (*prevent_cse, True) if isinstance(prevent_cse, tuple) else prevent_cse,
            }
            made_op = make_operation(op.primitive, params, body.in_avals, body.out_avals, body.effects, op.context)
        elif e.primitive is compat.scan_p:
            made_op = self.scan(op, loop)
            count = builder.inline(_counting(int(op.params["length"])), ())
            operands = (loop, *e.invars, *count)
        else:
            self.loop(e, loop, builder)
            return
        builder.equations.append(Equation(made_op, tuple(operands), e.outvars, e.source, e.origin))

    def last(self, program: Program, loop: Atom) -> Program:
        """A nested program, with the vector as its last input."""
        inner = Var(loop.aval)
        return self.body(program, inner, (*program.invars, inner))

    def scan(self, op: Operation, loop: Atom) -> Operation:
        """A scan that has the vector as its first constant, and counts its iterations along with what it scans over."""
        scan = Scan(op)
        outer, i = Var(loop.aval), Var(_number())
        builder = Builder(scan.body.constvars, scan.body.consts)
        (inner,) = builder.inline(_joining(loop.aval.shape[0]), (outer, i))
        body = self.body(scan.body, inner, (outer, *scan.body.invars, i), builder)
        return scan.like(body, scan.n_consts + 1, scan.n_carry)

    def loop(self, e: Equation, loop: Atom, builder: Builder) -> None:
        """Adds a while loop whose body has the vector as its first constant, and counts its iterations as the last value that it carries."""
        parts = While(e.operation)
        n_condition, n_body = parts.sizes
        outer, i = Var(loop.aval), Var(_number())
        inside = Builder(parts.body.constvars, parts.body.consts)
        (inner,) = inside.inline(_joining(loop.aval.shape[0]), (outer, i))
        body = self.body(parts.body, inner, (outer, *parts.body.invars, i), inside)
        after = Builder(body.constvars, body.consts)
        after.equations += body.equations
        (following,) = after.inline(_next(), (i,))
        outvars = (*body.outvars, following)
        info = compat.derived_debug_info(body.debug_info, [""] * len(body.invars), len(outvars))
        body = replace(body, equations=tuple(after.equations), outvars=outvars, debug_info=info)
        unread = (*parts.condition.invars, Var(_number()))
        info = compat.derived_debug_info(parts.condition.debug_info, [""] * len(unread), 1)
        condition = replace(parts.condition, invars=unread, debug_info=info)
        (zero,) = builder.inline(_zero(), ())
        operands = (*e.invars[:n_condition], loop, *e.invars[n_condition:], zero)
        made = parts.like(condition, n_condition, body, n_body + 1)
        builder.equations.append(Equation(made, operands, (*e.outvars, Var(_number())), e.source, e.origin))


@shared
def _vector(n: int) -> Any:
    return compat.aval_of(np.zeros(n, np.int32))


@shared
def _number() -> Any:
    return compat.aval_of(np.int32(0))


def _joining(n: int) -> Program:
    return trace_rule(lambda outer, i: [jnp.concatenate([outer, jnp.reshape(i, (1,))])], [_vector(n), _number()])


def joined(builder: Builder, first: Atom, second: Atom) -> Atom:
    """Adds what joins two vectors."""
    program = trace_rule(lambda x, y: [jnp.concatenate([x, y])], [first.aval, second.aval])
    return builder.inline(program, (first, second))[0]


def _counting(length: int) -> Program:
    return trace_rule(lambda: [jax.lax.iota(jnp.int32, length)], ())


def _next() -> Program:
    return trace_rule(lambda i: [jax.lax.add(i, np.int32(1))], [_number()])


def _zero() -> Program:
    return trace_rule(lambda: [jax.lax.full((), 0, jnp.int32)], ())
