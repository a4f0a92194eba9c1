"""Which values of a function a checkpoint could save."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax
import numpy as np

from jaxviz.features.cost.counts import Cost
from jaxviz.features.cost.parts import flops_of
from jaxviz.features.remat.regions import BODIES
from jaxviz.higher_order import of
from jaxviz.ir import compat
from jaxviz.ir.syntax import Atom, Equation, Program, Var
from jaxviz.report.tables import nbytes


def worth_a_name(program: Program, given: Collection[Atom]) -> list[Var]:
    """Values that could be saved: arrays that an equation computes and something reads, including those in bodies of scans.

    Without those that can be recomputed for free from an available value with no more bytes. `given` are the available inputs.
    """
    read = {a for e in program.equations for a in e.invars}.union(program.outvars)
    found: dict[Var, None] = {}
    free: set[Atom] = set(given)
    known: dict[int, Cost] = {}
    for e in program.equations:
        if of(e) in BODIES:
            found |= dict.fromkeys(worth_a_name(e.params["jaxpr"], e.params["jaxpr"].constvars))
        worth = [v for v in e.outvars if v in read and can_be_saved(v.aval)]
        if len(e.outvars) == 1 and _is_free(e, free, known):
            free.update(e.outvars)
            continue
        free.update(worth)
        found |= dict.fromkeys(worth)
    return list(found)


def named_values(program: Program) -> dict[str, list[Var]]:
    """The values that a function names with `checkpoint_name`, also in bodies of scans, by their names."""
    found: dict[str, list[Var]] = {}
    for _, e in program.walk():
        if e.primitive is compat.name_p:
            found.setdefault(e.params["name"], []).extend(e.outvars)
    return found


def _is_free(equation: Equation, given: Collection[Atom], known: dict[int, Cost]) -> bool:
    """Whether an equation has at most one operand, no larger than its result, that is available, and costs nothing."""
    operands = {a for a in equation.invars if isinstance(a, Var)}
    if len(operands) > 1 or equation.effects or equation.programs:
        return False
    size = nbytes(equation.outvars[0].aval)
    return all(a in given and nbytes(a.aval) <= size for a in operands) and flops_of(equation, known) == 0


def can_be_saved(aval: Any) -> bool:
    """Whether it is an array of a type that JAX's checkpoint can save: it rounds saved values, which is impossible for complex ones."""
    return nbytes(aval) > 0 and hasattr(aval, "dtype") and not jax.dtypes.issubdtype(aval.dtype, np.complexfloating)
