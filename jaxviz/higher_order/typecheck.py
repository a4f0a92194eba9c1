"""A type checker for programs, which reports the wrong equation and the user's line.

Each derived program is checked if the environment variable `JAXVIZ_CHECK_TYPES` is set, as while writing a rule: the
type equations at the top of the transforms' files, in code.

Source: `check_jaxpr` in JAX's `core.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from jaxviz.higher_order.jit import JIT
from jaxviz.higher_order.shard_map import SHARD_MAP
from jaxviz.ir import compat
from jaxviz.ir.convert import one_equation, write_params
from jaxviz.ir.pretty import describe_equation
from jaxviz.ir.syntax import Atom, Equation, Literal, Operation, Program, Var
from jaxviz.transforms.primitive import of


class ProgramTypeError(TypeError):
    """A program that is ill-typed; the message names the equation and the user's line."""


def check_program(program: Program, linear: Sequence[bool] | None = None) -> None:
    """Checks that a program is well-typed, and linear if it is declared to be.

    Args:
      program: the program, checked together with nested ones.
      linear: for each input, whether the program is declared to be linear in it (jointly in all of these).

    Raises:
      ProgramTypeError: an unbound variable, one bound twice, operands or results of other types than the operation's, a
        wrong number of them, or an equation that is not linear in a linear program. The message names the equation, the
        user's line, and the actual and expected types.
    """
    _Checker().check(program, linear)


def check_if_asked(program: Program, linear: Sequence[bool] | None = None) -> None:
    """Checks a derived program if `JAXVIZ_CHECK_TYPES` is set; see `check_program`."""
    if os.environ.get("JAXVIZ_CHECK_TYPES"):
        check_program(program, linear)


class _Checker:
    def __init__(self) -> None:
        self.results: dict[Operation, tuple[Any, ...] | None] = {}
        self.linear: dict[tuple[Operation, tuple[bool, ...]], bool] = {}
        self.programs: set[tuple[Program, tuple[bool, ...] | None]] = set()

    def check(self, program: Program, linear: Sequence[bool] | None = None) -> None:
        key = (program, None if linear is None else tuple(linear))
        if key in self.programs:
            return
        self.programs.add(key)
        bound: set[Atom] = set()
        for v in (*program.constvars, *program.invars):
            if v in bound:
                raise ProgramTypeError(
                    f"An input of {program.name} is bound twice: {v!r}. Each variable is bound once."
                )
            bound.add(v)
        if len(program.consts) != len(program.constvars):
            raise ProgramTypeError(
                f"{program.name} has {len(program.constvars)} variables for constants but {len(program.consts)} "
                "constants."
            )
        for index, equation in enumerate(program.equations):
            self.equation(equation, index, bound)
            bound.update(equation.outvars)
        for i, a in enumerate(program.outvars):
            if isinstance(a, Var) and a not in bound:
                raise ProgramTypeError(f"Result {i} of {program.name} is a variable that no equation binds: {a!r}.")
        if linear is not None:
            self.check_linear(program, linear)

    def equation(self, equation: Equation, index: int, bound: set[Atom]) -> None:
        operation = equation.operation

        def fail(what: str) -> ProgramTypeError:
            return ProgramTypeError(f"{describe_equation(equation, index)}: {what}")

        for i, a in enumerate(equation.invars):
            if not isinstance(a, Literal) and a not in bound:
                raise fail(f"operand {i} is unbound: {a!r}. A variable is bound before it is read.")
        for v in equation.outvars:
            if v in bound:
                raise fail(f"result {v!r} is bound twice. Each variable is bound once.")
        for what, atoms, avals in (
            ("operand", equation.invars, operation.in_avals),
            ("result", equation.outvars, operation.out_avals),
        ):
            if len(atoms) != len(avals):
                raise fail(f"it has {len(atoms)} {what}s, expected {len(avals)}.")
            for i, (a, aval) in enumerate(zip(atoms, avals, strict=True)):
                if not compat.types_match(a.aval, aval):
                    raise fail(f"{what} {i} has type {a.aval.str_short()}, expected {aval.str_short()}.")
        with compat.inside_shard_map(operation) if of(operation) is SHARD_MAP else nullcontext():
            for _, nested in equation.programs:
                self.check(nested)
        self.result_types(equation, fail)

    def result_types(self, equation: Equation, fail: Any) -> None:
        """The types that the primitive itself infers for these operands are those of the results."""
        operation = equation.operation
        if operation not in self.results:
            self.results[operation] = compat.result_types(
                operation.primitive, write_params(operation), operation.in_avals, operation.context
            )
        expected = self.results[operation]
        if expected is None:
            return
        if len(expected) != len(operation.out_avals):
            raise fail(f"it has {len(operation.out_avals)} results, but the primitive gives {len(expected)}.")
        for i, (got, want) in enumerate(zip(operation.out_avals, expected, strict=True)):
            if not compat.types_match(got, want):
                raise fail(f"result {i} has type {got.str_short()}, but the primitive gives {want.str_short()}.")

    def check_linear(self, program: Program, linear: Sequence[bool]) -> None:
        depends: set[Atom] = {v for v, lin in zip(program.invars, linear, strict=True) if lin}
        for index, equation in enumerate(program.equations):
            mask = tuple(a in depends for a in equation.invars)
            if not any(mask):
                continue
            depends.update(equation.outvars)
            if of(equation) is JIT:
                self.check_linear(equation.params["jaxpr"], mask)
            elif not self.is_linear(equation.operation, mask):
                types = ", ".join(
                    a.aval.str_short(short_dtypes=True) for a, m in zip(equation.invars, mask, strict=True) if m
                )
                raise ProgramTypeError(
                    f"{describe_equation(equation, index)} is not linear in its operands {types}, "
                    f"but {program.name} is said to be linear in the inputs that they depend on."
                )

    def is_linear(self, operation: Operation, mask: tuple[bool, ...]) -> bool:
        key = (operation, mask)
        if key not in self.linear:
            self.linear[key] = compat.is_linear(one_equation(operation), mask)
        return self.linear[key]
