"""Dead code elimination: `(program, needed results) → program`, also in nested programs.

An equation is live if a live equation or a needed result reads one of its results, or if it has an effect. One
pass from the end of the program to its beginning finds them all.

Source: `dce_jaxpr` in JAX's `interpreters/partial_eval.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from jaxviz.ir import compat
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Atom, Equation, Operation, Program, Role, Var
from jaxviz.transforms.driver import Builder, Mask, RuleTable, either, program_effects, select

DceRule = tuple[Mask, Mask, Operation | None]
"""Which operands are still read, which results remain (the used ones, and those that a loop needs), and the smaller
operation; None if nothing is left of it."""


def _default_rule(operation: Operation, used: Mask) -> DceRule:
    if not any(used) and not compat.has_effects(operation.effects):
        return nothing_left(operation)
    return (True,) * len(operation.in_avals), (True,) * len(operation.out_avals), operation


def nothing_left(operation: Operation) -> DceRule:
    return (False,) * len(operation.in_avals), (False,) * len(operation.out_avals), None


dce_rules: RuleTable[DceRule] = RuleTable("dce", _default_rule)
"""Key: operation, which results are used. A rule is needed only if an operation can be reduced."""


def live_equations(
    equations: Sequence[Equation], live: set[Atom], made_smaller: bool = False, effects: bool = True
) -> list[Equation]:
    """Those of some equations that needed values depend on.

    Args:
      equations: in evaluation order.
      live: the needed values; what the live equations read is added.
      made_smaller: whether an equation that has a rule in `dce_rules` is replaced by the reduced one.
      effects: whether one that has an effect is always live, and not only one that reads or writes a reference.
    """
    needed: list[Equation] = []
    with_rule = dce_rules.own if made_smaller else ()
    made: set[Atom] = set()
    if compat.DROPS_DEAD_WRITES and any(e.effects for e in equations):
        made.update(v for e in equations for v in e.outvars if compat.is_ref(v.aval))
    for equation in reversed(equations):
        operation = equation.operation
        if made and live.isdisjoint(equation.outvars) and _writes_to_dead(equation, made - live):
            continue
        if operation.primitive in with_rule:
            smaller = _smaller(equation, live)
            if smaller is None:
                continue
            equation = smaller
        elif live.isdisjoint(equation.outvars) and not (
            compat.has_effects(operation.effects) and (effects or compat.writes_in_place(operation))
        ):
            continue
        live.update(equation.invars)
        needed.append(equation)
    needed.reverse()
    return needed


def _writes_to_dead(equation: Equation, dead: Collection[Atom]) -> bool:
    """Whether all that an equation does is to write to references that nothing reads later."""
    places = [i for i, a in enumerate(equation.invars) if a in dead]
    return bool(places) and not compat.has_effects(equation.effects, places)


def dce_program(
    program: Program, used: Sequence[bool] | None = None, keep_inputs: Sequence[bool] | None = None
) -> tuple[Program, Mask]:
    """Removes everything that no needed result and no effect depends on.

    Args:
      program: the program to reduce.
      used: which results to keep; all by default.
      keep_inputs: inputs to keep even if unread; all by default.

    Returns:
      the reduced program, and which inputs it kept. Unchanged equations are the same objects.
    """
    outvars = program.outvars if used is None else select(used, program.outvars)
    live: set[Atom] = set(outvars)
    equations = tuple(live_equations(program.equations, live, made_smaller=True))
    keep = tuple([v in live for v in program.invars])
    keep = (True,) * len(keep) if keep_inputs is None else either(keep, keep_inputs)
    if (
        equations == program.equations
        and outvars == program.outvars
        and all(keep)
        and live.issuperset(program.constvars)
    ):
        return program, keep
    live_consts = [v in live for v in program.constvars]
    info = program.debug_info
    if info is not None:
        info = info._replace(arg_names=select(keep, program.arg_names), result_paths=("",) * len(outvars))
    smaller = replace(
        program,
        constvars=select(live_consts, program.constvars),
        consts=select(live_consts, program.consts),
        invars=select(keep, program.invars),
        outvars=outvars,
        equations=equations,
        effects=program_effects(equations, select(keep, program.invars)),
        debug_info=info,
    )
    return smaller, keep


def _smaller(equation: Equation, live: set[Atom]) -> Equation | None:
    used = tuple([v in live for v in equation.outvars])
    read, remaining, operation = dce_rules(equation.operation, used)
    if operation is None:
        return None
    if operation is equation.operation:
        return equation
    outvars: tuple[Var, ...] = select(remaining, equation.outvars)
    return Equation(operation, select(read, equation.invars), outvars, equation.source, equation.origin)


def roles_by_use(program: Program, n_results: int, result: Role, other: Role) -> list[Role]:
    """For each equation `result` if one of the first `n_results` outputs needs it, else `other`."""
    needed = set(live_equations(program.equations, set(program.outvars[:n_results])))
    return [result if e in needed else other for e in program.equations]


def values_at(builder: Builder, inputs: Sequence[Var], at: Sequence[Any], atoms: Sequence[Atom]) -> list[Any]:
    """The concrete values of some atoms of a program under construction.

    Args:
      builder: contains the equations so far.
      inputs, at: the program's inputs, and their concrete values.
      atoms: the atoms.
    """
    program = builder.program(inputs, atoms)
    equations = live_equations(program.equations, set(atoms), effects=False)
    copied = compat.Copies()
    consts = tuple(map(copied, program.consts))
    fun = as_function(replace(program, consts=consts, equations=tuple(equations), effects=frozenset()))
    return list(fun(*map(copied, at)))
