"""Values from inside a program, in any iteration of the loops that hold them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax import lax

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
    label, body = equation.programs[place]
    if equation.primitive is compat.shard_map_p:
        device, *steps = steps
        mapped = compat.on_each_device(equation.operation, lambda *xs: values_at(body, xs, tuple(rest), steps, wanted))
        return [x[device] for x in mapped(*operands)]
    if equation.primitive in (compat.scan_p, compat.while_p):
        step, *steps = steps
        operands = inputs_of_step(equation, operands, step, label == "cond_jaxpr")
    elif equation.primitive is compat.cond_p:
        operands = operands[1:]
    return values_at(body, operands, tuple(rest), steps, wanted)


def _results(program: Program, inputs: Sequence[Any], wanted: Sequence[Atom]) -> list[Any]:
    silent = tuple(e for e in program.equations if e.outvars or not compat.has_effects(e.effects))  # no print again
    asked = replace(program, equations=silent, outvars=tuple(wanted), debug_info=None, closed=True)
    smaller, kept = dce_program(asked, keep_inputs=[False] * len(inputs))
    return as_function(smaller)(*select(kept, inputs))


def inputs_of_step(equation: Equation, operands: Sequence[Any], step: int, of_condition: bool = False) -> list[Any]:
    """The inputs of a loop's body in one step, or those of its condition before it.

    Args:
      equation: a scan or a while loop.
      operands: what it is applied to.
      step: from 0, in the order of execution.
    """
    params = equation.params
    if equation.primitive is compat.while_p:
        n_condition, n_consts = params["cond_nconsts"], params["body_nconsts"]
        consts, carry = operands[n_condition : n_condition + n_consts], operands[n_condition + n_consts :]
        if step:
            run = as_function(params["body_jaxpr"])
            carry = lax.fori_loop(0, step, lambda _, c: run(*consts, *c), list(carry))
        return [*(operands[:n_condition] if of_condition else consts), *carry]
    n_consts, n_carry = compat.scan_sizes(params)
    body: Program = params["jaxpr"]
    consts, carry, xs = operands[:n_consts], operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]
    length, reverse = params["length"], params["reverse"]
    if step:
        run = as_function(replace(body, outvars=body.outvars[:n_carry], debug_info=None, closed=True))
        rows = [x[length - step :] if reverse else x[:step] for x in xs]
        carry, _ = lax.scan(lambda c, x: (run(*consts, *c, *x), None), list(carry), rows, step, reverse)
    row = length - 1 - step if reverse else step
    return [*consts, *carry, *(x[row] for x in xs)]


def steps_of(equation: Equation, operands: Sequence[Any]) -> Iterator[tuple[int, int, list[Any], list[Any]]]:
    """Runs a loop step by step: the step, the place of the body among the equation's programs, its inputs, its results."""
    params = equation.params
    place = [label for label, _ in equation.programs].index("jaxpr" if "jaxpr" in params else "body_jaxpr")
    body = equation.programs[place][1]
    run = jax.jit(as_function(replace(body, debug_info=None, closed=True)))
    if equation.primitive is compat.while_p:
        n_condition, n_consts = params["cond_nconsts"], params["body_nconsts"]
        goes_on = jax.jit(as_function(params["cond_jaxpr"]))
        consts, carry = operands[n_condition : n_condition + n_consts], list(operands[n_condition + n_consts :])
        for step in itertools.count():
            if not goes_on(*operands[:n_condition], *carry)[0]:
                return
            inputs, carry = [*consts, *carry], run(*consts, *carry)
            yield step, place, inputs, carry
    n_consts, n_carry = compat.scan_sizes(params)
    consts, carry = operands[:n_consts], list(operands[n_consts : n_consts + n_carry])
    length = params["length"]
    for step in range(length):
        row = length - 1 - step if params["reverse"] else step
        inputs = [*consts, *carry, *(x[row] for x in operands[n_consts + n_carry :])]
        outs = run(*inputs)
        carry = outs[:n_carry]
        yield step, place, inputs, outs


def evaluate_equation(equation: Equation, operands: Sequence[Any]) -> list[Any]:
    """The results of one equation, run by itself."""
    return compat.jaxpr_as_fun(one_equation(equation.operation))(*operands)
