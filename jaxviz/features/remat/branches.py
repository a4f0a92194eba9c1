"""Checkpoints that XLA does not undo: each in a branch of a `lax.cond` that is always taken.

Outside of a loop, XLA may merge the recomputation with the original computation, as on a CPU with JAX 0.10, and drop the barriers
that prevent this. It merges nothing into a branch.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from jaxviz.features.remat.edits import Edit, Way, around
from jaxviz.features.remat.source import end_of, is_checkpoint, start_of
from jaxviz.higher_order import of
from jaxviz.ir import compat
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Atom, Equation, Operation, Program, Var

IN_A_BRANCH = "in_a_branch"
"""The name of the function below."""


def in_a_branch(f):  # type: ignore[no-untyped-def]
    """A checkpoint in a branch that is always taken: XLA cannot merge its recomputation with the original computation."""

    def zeros(args, kwargs):  # type: ignore[no-untyped-def]
        return jax.tree.map(lambda x: jax.numpy.zeros(x.shape, x.dtype), jax.eval_shape(f, *args, **kwargs))

    def in_branch(*args, **kwargs):  # type: ignore[no-untyped-def]
        always = jax.lax.optimization_barrier(True)
        return jax.lax.cond(always, lambda args, kwargs: f(*args, **kwargs), zeros, args, kwargs)

    return in_branch


def definition() -> str:
    """The source of that function, for the user's file."""
    return f"\n{inspect.getsource(in_a_branch).replace('  # type: ignore[no-untyped-def]', '')}\n"


def in_branches(program: Program) -> Program:
    """The program with each checkpoint that is outside of any loop in its own branch."""
    made: dict[Operation, Program] = {}
    equations: list[Equation] = []
    for e in program.equations:
        if not of(e).is_checkpoint:
            equations.append(e)
            continue
        if e.operation not in made:
            made[e.operation] = _branch(e, program)
        equations += _spliced(made[e.operation], e)
    return replace(program, equations=tuple(equations)) if made else program


def _branch(e: Equation, program: Program) -> Program:
    """A checkpoint in a branch."""
    invars, outvars = tuple([Var(a) for a in e.operation.in_avals]), tuple([Var(a) for a in e.operation.out_avals])
    alone = replace(
        program, constvars=(), consts=(), invars=invars, outvars=outvars, equations=(Equation(e.operation, invars, outvars, e.source),),
        debug_info=None, effects=frozenset(e.effects),
    )  # fmt: skip
    types = map(compat.stand_in, e.operation.in_avals)
    return read_jaxpr(jax.make_jaxpr(in_a_branch(as_function(alone)))(*types))


def _spliced(branch: Program, e: Equation) -> list[Equation]:
    """The equations that replace a checkpoint."""
    env: dict[Atom, Any] = dict(zip(branch.invars, e.invars, strict=True))
    env.update(zip(branch.outvars, e.outvars, strict=True))
    for inner in branch.equations:
        env.update((v, Var(v.aval)) for v in inner.outvars if v not in env)
    get = lambda atoms: tuple([env.get(a, a) for a in atoms])
    return [Equation(inner.operation, get(inner.invars), get(inner.outvars), e.source) for inner in branch.equations]


def ways_in_branches(ways: Sequence[Way]) -> list[Way] | None:
    """The ways to write checkpoints, with each in a branch; None if one of them cannot be in one, as with arguments that are not arrays."""
    found = [_in_branch(way) for way in ways]
    return None if None in found else [way for way in found if way is not None]


def _in_branch(way: Way) -> Way | None:
    there = way.written
    if there is not None and isinstance(there, ast.Call) and is_checkpoint(there):
        edits = tuple(around(way.file, start_of(there), end_of(there), f"{IN_A_BRANCH}(", ")"))
    elif there is not None:
        line = there.lineno, 0
        edits = (Edit(way.file, line, line, f"{' ' * (there.col_offset - 1)}@{IN_A_BRANCH}\n"),)
    elif len(way.changes) == 2 and way.changes[0].text == "jax.checkpoint(" and way.without_policy is None:
        before, after = way.changes
        changes = replace(before, text=f"{IN_A_BRANCH}({before.text}"), replace(after, text=f"{after.text})")
        return replace(way, changes=changes)
    else:
        return None
    without = None if way.without_policy is None else (*edits, *way.without_policy)
    return replace(way, changes=(*edits, *way.changes), without_policy=without)
