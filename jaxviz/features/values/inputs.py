"""What a recorded call runs with: its arguments, and what the function closes over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from jaxviz.features.values.records import RecordedArgument
from jaxviz.features.values.summaries import (
    BAD,
    BITS,
    WIDTH,
    finished,
    last_place,
    packed_together,
    unpacked,
)
from jaxviz.ir import compat
from jaxviz.ir.syntax import Program
from jaxviz.transforms.driver import program_effects


@dataclass(eq=False)
class RecordedArguments:
    """The arguments of a call, as they are recorded.

    Args:
      names: of the inputs of its program.
      avals: their types.
    """

    names: Sequence[str]
    avals: Sequence[Any]

    _groups: list[list[int]] = field(default_factory=list, init=False)

    def packed(self, inputs: Sequence[Any]) -> list[Any]:
        """The summaries of the arrays among them, or of what random keys are made of."""
        self._groups, packed = packed_together(data_of(inputs))
        return packed

    def rows(self, packed: Sequence[Any], is_carried: Sequence[bool]) -> Iterator[RecordedArgument]:
        """What was recorded, given what `packed` returned, and which arguments an earlier call has returned."""
        for i, of_one in sorted(unpacked(self._groups, packed).items()):
            name, number, aval = self.names[i] or f"argument {i}", (i, len(self.names)), self.avals[i]
            found = RecordedArgument(name, number, type_of(aval), is_carried[i], finished(of_one, aval.size))
            if not found.is_read:
                found.summary[np.delete(np.arange(WIDTH), [BAD, *BITS])] = 0
            yield found


def data_of(inputs: Sequence[Any]) -> dict[int, Any]:
    """The arrays among the inputs or results of a program, by number; of random keys what they are made of."""
    found = {}
    for i, x in enumerate(inputs):
        aval = compat.aval_of(x)
        if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
            found[i] = jax.random.key_data(x)
        elif isinstance(aval.dtype, np.dtype) and not compat.is_mutable(aval) and not compat.is_float0(aval):
            found[i] = x
    return found


def type_of(aval: Any) -> str:
    text: str = aval.str_short(short_dtypes=True)
    return text


def with_constants(program: Program) -> tuple[Program, list[Any]]:
    """A program with the constants that rounding may change as first inputs, and these: what a function closes over has
    last digits as its arguments have."""
    constants = dict(zip(program.constvars, program.consts, strict=True))
    real = {v: x for v, x in constants.items() if last_place([v.aval]) and not compat.is_mutable(v.aval)}
    others = {v: x for v, x in constants.items() if v not in real}
    invars = (*real, *program.invars)
    info = compat.derived_debug_info(program.debug_info, [""] * len(invars), len(program.outvars))
    taking = replace(
        program, constvars=tuple(others), consts=tuple(others.values()), invars=invars, debug_info=info,
        effects=program_effects(program.equations, invars),
    )  # fmt: skip
    return taking, list(real.values())
