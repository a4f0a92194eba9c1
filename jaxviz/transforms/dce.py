"""Dead code elimination: `(program, needed results) → program`, into nested programs too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxviz.ir import compat
from jaxviz.ir.syntax import Equation, Operation, Program, Var
from jaxviz.transforms.driver import Mask, RuleTable, select

DceRule = tuple[Mask, Mask, Operation | None]
"""Which operands are still read, which results are still given (those used, and such as a loop needs), and the smaller
operation; None where nothing is left of it."""


def _default_rule(operation: Operation, used: Mask) -> DceRule:
    if not any(used) and not compat.has_effects(operation.effects):
        return nothing_left(operation)
    return (True,) * len(operation.in_avals), (True,) * len(operation.out_avals), operation


def nothing_left(operation: Operation) -> DceRule:
    return (False,) * len(operation.in_avals), (False,) * len(operation.out_avals), None


dce_rules: RuleTable[DceRule] = RuleTable("dce", _default_rule)
"""Key: operation, which results are used. A rule is needed only where an operation can be made smaller."""


def dce_program(
    program: Program, used: Sequence[bool] | None = None, keep_inputs: Sequence[bool] | None = None
) -> tuple[Program, Mask]:
    """Drops what no needed result and no effect depends on.

    Args:
      program: to be made smaller.
      used: which results to keep; all by default.
      keep_inputs: inputs to keep though unread; all by default.

    Returns:
      the smaller program, and which inputs it kept. Equations that stay as they are, are the same objects.
    """
    outvars = program.outvars if used is None else select(used, program.outvars)
    live: set[object] = set(outvars)
    kept: list[Equation] = []
    registered = dce_rules.registered
    for equation in reversed(program.equations):
        operation = equation.operation
        if operation.primitive in registered:
            smaller = _smaller(equation, live)
            if smaller is None:
                continue
            equation = smaller
        elif not compat.has_effects(operation.effects) and live.isdisjoint(equation.outvars):
            continue
        live.update(equation.invars)
        kept.append(equation)
    kept.reverse()
    keep = [v in live for v in program.invars]
    keep = [True] * len(keep) if keep_inputs is None else [k or must for k, must in zip(keep, keep_inputs, strict=True)]
    live_consts = [v in live for v in program.constvars]
    info = program.debug_info
    if info is not None:
        names = select(keep, program.arg_names)
        info = info._replace(arg_names=names, result_paths=("",) * len(outvars))
    made = replace(
        program,
        constvars=select(live_consts, program.constvars),
        consts=select(live_consts, program.consts),
        invars=select(keep, program.invars),
        outvars=tuple(outvars),
        equations=tuple(kept),
        debug_info=info,
    )
    return made, tuple(keep)


def _smaller(equation: Equation, live: set[object]) -> Equation | None:
    used = tuple([v in live for v in equation.outvars])
    read, given, operation = dce_rules(equation.operation, used)
    if operation is None:
        return None
    if operation is equation.operation:
        return equation
    outvars: tuple[Var, ...] = select(given, equation.outvars)
    return Equation(operation, select(read, equation.invars), outvars, equation.source, equation.origin)
