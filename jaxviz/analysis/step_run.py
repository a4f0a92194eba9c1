"""A training step on values: what it computes, and on which inputs it takes its gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax

from jaxviz.analysis.passes import OpenedStep, Passes
from jaxviz.analysis.training_step import TrainingStep
from jaxviz.analysis.walk import with_holders
from jaxviz.higher_order import is_call
from jaxviz.ir import compat
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Equation, Literal, Program, Var
from jaxviz.transforms.driver import partition, with_results
from jaxviz.transforms.inline import inlined_where


@dataclass(frozen=True, eq=False)
class StepRun:
    """A training step, run once on its arguments.

    Args:
      step: the step; its `gradient` is the one that it saves most for.
      passes: replacements for the passes of some of its gradients.
    """

    step: TrainingStep
    passes: Mapping[int, Passes] = field(default_factory=dict)

    @cached_property
    def inputs(self) -> tuple[Any, ...]:
        return self.step.inputs_of(self.step.called.args, self.step.called.kwargs)

    @cached_property
    def _calls(self) -> OpenedStep:
        return self.step.opened(self.passes)

    @cached_property
    def program(self) -> Program:
        """The step with a call for each pass, at the top level if only calls are around it."""
        program = self._calls.program
        around = [within for e, within in with_holders(program) if self.is_pass(e)]
        holders = {e for within in around if all(map(is_call, within)) for e in within}
        return inlined_where(program, holders.__contains__)

    def is_pass(self, e: Equation) -> bool:
        """Whether an equation calls a pass of one of its gradients."""
        return e.operation in self._calls.calls

    def calls(self, mark: int, is_forward: bool) -> list[tuple[Equation, tuple[Equation, ...]]]:
        """The calls of a pass of one of its gradients, and the equations around each, outermost first."""
        of_pass = mark, is_forward
        return [
            (e, within) for e, within in with_holders(self.program) if self._calls.calls.get(e.operation) == of_pass
        ]

    def forward(self) -> Equation | None:
        """The call of the forward pass of its gradient; None if that is in a loop or a branch."""
        calls = self.calls(self.step.mark, True)
        return calls[0][0] if len(calls) == 1 and not calls[0][1] else None

    @cached_property
    def ran(self) -> tuple[list[Any], list[Any]] | str:
        """The results of the step, and the inputs of its gradient; otherwise why there are none."""
        program, forward = self.program, self.forward()
        if forward is None:
            return "No values were looked at, since the step takes the gradient in a loop or a branch."
        if not are_values(self.inputs):
            return "The arguments are types, so only what holds for any values was found."
        if any(compat.is_mutable(a) for a in program.in_avals):
            return "No values were looked at, since the step reads or writes mutable references."
        variables = [a for a in forward.invars if isinstance(a, Var)]
        outs = jax.jit(as_function(with_results(program, (*program.outvars, *variables))))(*self.inputs)
        results, known = partition(outs, len(program.outvars))
        values = dict(zip(variables, known, strict=True))
        return list(results), [a.val if isinstance(a, Literal) else values[a] for a in forward.invars]

    @property
    def inputs_of_gradient(self) -> tuple[Any, ...] | str:
        """The flat arguments of the function whose gradient it takes; otherwise why they are not known."""
        return self.ran if isinstance(self.ran, str) else tuple(self.ran[1])


def are_values(inputs: Sequence[Any]) -> bool:
    """Whether these are arrays, and not only types of some."""
    return not any(isinstance(x, jax.ShapeDtypeStruct) or compat.is_tracer(x) for x in inputs)
