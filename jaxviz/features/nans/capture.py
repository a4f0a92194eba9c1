"""Values from inside a program, in any iteration of the loops that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxviz.higher_order import bodies, is_choice, is_loop, of
from jaxviz.ir import compat
from jaxviz.ir.convert import one_equation
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Atom, Equation, Program
from jaxviz.transforms.dce import dce_program
from jaxviz.transforms.driver import select

Path = tuple[tuple[Equation, int], ...]
"""The equations that hold a program, outermost first, each with the place of the program among its programs."""


def values_at(
    program: Program, inputs: Sequence[Any], path: Path, steps: Sequence[int], wanted: Sequence[Atom]
) -> list[Any]:
    """Values of a nested program, computed with no more than they need; to be run under `jax.jit`.

    Args:
      program, inputs: what is run, and on what.
      path: where the values are.
      steps: for each loop on the path, in which step, from 0 in the order of execution; for each `shard_map`, on which device.
      wanted: variables of the innermost program.
    """
    if not path:
        return _results(program, inputs, wanted)
    (equation, place), *rest = path
    position = next(k for k, e in enumerate(program.equations) if e is equation)
    before = replace(program, equations=program.equations[:position])
    operands = _results(before, inputs, equation.invars)
    _, body = equation.programs[place]
    if of(equation).kind == "devices":
        device, *steps = steps
        mapped = compat.on_each_device(equation.operation, lambda *xs: values_at(body, xs, tuple(rest), steps, wanted))
        return [x[device] for x in mapped(*operands)]
    if is_loop(equation):
        step, *steps = steps
        of_condition = place != place_of_body(equation)
        operands = of(equation).inputs_of_step(equation.operation, operands, step, of_condition)
    elif is_choice(equation):
        operands = operands[1:]
    return values_at(body, operands, tuple(rest), steps, wanted)


def _results(program: Program, inputs: Sequence[Any], wanted: Sequence[Atom]) -> list[Any]:
    silent = tuple(e for e in program.equations if e.outvars or not compat.has_effects(e.effects))  # no print again
    asked = replace(program, equations=silent, outvars=tuple(wanted), debug_info=None, closed=True)
    smaller, kept = dce_program(asked, keep_inputs=[False] * len(inputs))
    return as_function(smaller)(*select(kept, inputs))


def place_of_body(loop: Equation) -> int:
    """The place of a loop's body among its programs."""
    (label,) = (b.label for b in bodies(loop) if b.has_results)
    return [name for name, _ in loop.programs].index(label)


def evaluate_equation(equation: Equation, operands: Sequence[Any]) -> list[Any]:
    """The results of one equation, run by itself."""
    return compat.jaxpr_as_fun(one_equation(equation.operation))(*operands)
