"""What a training step does to its parameters: those that it leaves as they are although they have a gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jaxviz.analysis.step_run import StepRun
from jaxviz.analysis.training_step import is_backward
from jaxviz.analysis.walk import location_of
from jaxviz.arguments import flat_arguments
from jaxviz.features.flow.report import Update
from jaxviz.features.flow.run import as_float64
from jaxviz.features.nans.capture import RecordedRun
from jaxviz.higher_order import is_call
from jaxviz.ir.origin import Location
from jaxviz.ir.primitives import keeps_numbers, plain
from jaxviz.ir.syntax import Atom, Equation, Program, Var
from jaxviz.transforms.dce import live_equations
from jaxviz.transforms.inline import inlined_where


@dataclass(frozen=True, eq=False)
class StepUpdates:
    """What a training step does to each parameter.

    Args:
      run: of the step.
    """

    run: StepRun

    @property
    def inputs_of_gradient(self) -> tuple[Any, ...] | str:
        return self.run.inputs_of_gradient

    @property
    def note(self) -> str:
        """What was not compared."""
        return "" if isinstance(self.run.ran, str) or self._places else (
            "Updates were not compared, since the step returns nothing with the structure of one of its arguments."
        )  # fmt: skip

    @cached_property
    def _places(self) -> dict[int, int]:
        """From an input of the step to the result that has its place in a pytree of the same structure."""
        call, places = self.run.step.called, dict[int, int]()
        groups = [*call.args, *(x for _, x in sorted(call.kwargs.items()))]
        *_, is_input = flat_arguments(call.args, call.kwargs, call.chosen)
        number = iter(range(len(is_input)))
        index = {k: next(number) for k, is_one in enumerate(is_input) if is_one}
        start = 0
        for group in groups:
            tree = jax.tree.structure(group)
            of_group = range(start, start + tree.num_leaves)
            start += tree.num_leaves
            at = _place_of(self.run.step.out_tree, tree)
            if at is not None and tree.num_leaves:
                places |= {index[k]: at + i for i, k in enumerate(of_group) if k in index}
        return places

    def update(self, k: int, gradient: Any) -> Update | None:
        """What the step does to an input of the gradient."""
        program, forward = self.run.program, self.run.forward()
        if isinstance(self.run.ran, str) or forward is None:
            return None
        parameter = _unconverted(program, forward.invars[k])
        place = program.invars.index(parameter) if parameter in program.invars else None  # type: ignore[arg-type]
        result = self._places.get(place) if place is not None else None
        if place is None or result is None or program.out_avals[result] != program.in_avals[place]:
            return None
        old, new = np.asarray(self.run.inputs[place]), np.asarray(self.run.ran[0][result])
        same, has_gradient = old == new, np.asarray(gradient != 0)
        changed, lost = int(np.sum(~same)), int(np.sum(same & has_gradient))
        if changed or not lost:
            return Update(changed, lost, int(old.size))
        text, is_frozen, location = self._why(result, program.invars[place], old.size)
        return Update(changed, lost, int(old.size), text, is_frozen, location)

    @cached_property
    def _flat(self) -> Program:
        return inlined_where(self.run.program, is_call)

    def _why(self, result: int, parameter: Var, size: int) -> tuple[str, bool, Location | None]:
        """Why a parameter is the same afterwards: in words, whether its update does not depend on a gradient, where."""
        program = self._flat
        makers: dict[Atom, Equation] = {v: e for e in program.equations for v in e.outvars}
        new = _unconverted(program, program.outvars[result], makers)
        e = makers.get(new)
        if e is None:
            return "the step returns it unchanged", True, None
        location = location_of(e)
        if plain(e.primitive.name).kind == "selection":
            return "a selection keeps it as it was", False, location
        updates = [a for a in e.invars if _unconverted(program, a, makers) is not parameter]
        if plain(e.primitive.name).grows != "sum" or len(updates) != 1:
            return "the step computes the same numbers", False, location
        update = updates[0]
        if not any(map(is_backward, live_equations(program.equations, {update}, effects=False))):
            return "its update does not depend on the gradient", True, location
        (values,) = RecordedRun(program, self.run.inputs).values([((), (), [update])])
        step = as_float64(values[0])
        if not np.any(step):
            return "its update is zero in all elements", False, location
        dtype = np.dtype(e.outvars[0].aval.dtype).name
        below = int(np.sum(step != 0))
        return f"the update is below half a step of {dtype} in {below:,} of {size:,} elements", False, location


def _unconverted(program: Program, atom: Atom, makers: Mapping[Atom, Equation] | None = None) -> Atom:
    """The value that another one is in another type or shape."""
    makers = {v: e for e in program.equations for v in e.outvars} if makers is None else makers
    while (e := makers.get(atom)) is not None and keeps_numbers(e) and isinstance(e.invars[0], Var):
        atom = e.invars[0]
    return atom


def _place_of(tree: Any, wanted: Any) -> int | None:
    """Where the leaves of a part of a tree begin that has this structure."""
    if tree == wanted:
        return 0
    start = 0
    for part in tree.children():
        at = _place_of(part, wanted)
        if at is not None:
            return start + at
        start += part.num_leaves
    return None
