"""A program with only one of several identical blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxviz.analysis.repeats import Run
from jaxviz.ir.convert import with_programs
from jaxviz.ir.syntax import Atom, Program


def with_one_block(program: Program, runs: Sequence[Run]) -> Program:
    """The program with only the first block of each run: what reads values of other blocks reads those of the first, so
    that it computes something different, of the same types.

    Args:
      program: the program.
      runs: runs in it, or in its nested programs.
    """
    done: dict[Program, Program] = {}

    def cut(p: Program) -> Program:
        if p not in done:
            left = _cut(p, [run for run in runs if run.body is p.equations])
            equations = tuple(
                e if (op := with_programs(e.operation, cut)) is e.operation else replace(e, operation=op)
                for e in left.equations
            )
            same = all(a is b for a, b in zip(equations, left.equations, strict=True))
            done[p] = left if same else replace(left, equations=equations)
        return done[p]

    return cut(program)


def _cut(program: Program, runs: Sequence[Run]) -> Program:
    instead: dict[Atom, Atom] = {}
    left_out: set[int] = set()
    for run in runs:
        left_out.update(range(run.start + run.length, run.stop))
        for k in range(1, run.count):
            for e, first in zip(run.block(k), run.block(0), strict=True):
                instead.update(zip(e.outvars, first.outvars, strict=True))
    if not left_out:
        return program
    read = lambda atoms: tuple([instead.get(a, a) for a in atoms])
    equations = tuple(replace(e, invars=read(e.invars)) for i, e in enumerate(program.equations) if i not in left_out)
    return replace(program, equations=equations, outvars=read(program.outvars))
