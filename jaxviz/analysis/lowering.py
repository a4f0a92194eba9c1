"""The gradient as one jitted program, lowered so that each instruction records the equations that it came from."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax

from jaxviz.analysis.devices import input_types, is_abstract
from jaxviz.analysis.passes import OpenedStep
from jaxviz.analysis.training_step import TrainingStep
from jaxviz.derivation import Derivation
from jaxviz.ir import compat
from jaxviz.ir.convert import with_programs
from jaxviz.ir.emit import as_function
from jaxviz.ir.errors import EquationError, message_of
from jaxviz.ir.stack import usual_stack
from jaxviz.ir.syntax import Operation, Program
from jaxviz.report.tables import type_text
from jaxviz.runtime.stoppable import compiled_once
from jaxviz.transforms.inline import inlined_where

_TAG = re.compile(r"(?:^|/)jaxviz\.(\d+)(?=/|:|$)")


class Tags:
    """Numbers for the equations of some programs, and copies of these with the numbers as the equations' scopes.

    Equations are numbered in the order of `Program.walk`, one program after the other; a program that occurs several
    times has several numbers for each of its equations, whose scope has the first. JAX lowers it once, and when XLA
    inlines its calls, it prepends the scope of the call: so a path of scopes identifies the occurrence.

    Args:
      programs: the programs to be tagged.

    Attributes:
      programs: the copies.
      counts: the number of equations of each.
      owner: for each number, that of the equation that contains it, or -1.
      places: for the number in an equation's scope, all its numbers.
    """

    def __init__(self, programs: Sequence[Program]):
        self.owner: list[int] = []
        self.places: dict[int, list[int]] = {}
        self._first: dict[tuple[Program, int], int] = {}
        self._done: dict[Program, Program] = {}
        self._operations: dict[Operation, Operation] = {}
        self.counts: list[int] = []
        for program in programs:
            before = len(self.owner)
            self._number(program, -1)
            self.counts.append(len(self.owner) - before)
        self.programs = tuple(self._tagged(program) for program in programs)

    def _number(self, program: Program, owner: int) -> None:
        for i, equation in enumerate(program.equations):
            number = len(self.owner)
            self.owner.append(owner)
            self.places.setdefault(self._first.setdefault((program, i), number), []).append(number)
            for _, nested in equation.programs:
                self._number(nested, number)

    def _tagged(self, program: Program) -> Program:
        if program not in self._done:
            equations = tuple(
                replace(
                    e,
                    operation=self.operation(e.operation),
                    source=compat.named_source(f"jaxviz.{self._first[program, i]}"),
                )
                for i, e in enumerate(program.equations)
            )
            self._done[program] = replace(program, equations=equations)
        return self._done[program]

    def operation(self, op: Operation) -> Operation:
        """The copy of an operation, with copies of its programs."""
        if op not in self._operations:
            self._operations[op] = with_programs(op, self._tagged)
        return self._operations[op]

    def named(self, path: str) -> tuple[int, ...]:
        """The numbers of the innermost equations in a path of scopes, such as
        `jit(f)/jaxviz.3/while/body/jaxviz.5/sin`.

        Several if the path is inside a function that is called from several places.
        """
        numbers: list[int] = []
        here: list[int] = []
        for tag in _TAG.findall(path):
            places = self.places.get(int(tag), [])
            inside = [n for n in places if not here or self._is_within(n, here)]
            if not inside:  # the path of another instruction that was merged into this one
                numbers += here
            here = inside or places
        return tuple(dict.fromkeys([*numbers, *here]))

    def _is_within(self, number: int, outer: Sequence[int]) -> bool:
        number = self.owner[number]
        while number >= 0 and number not in outer:
            number = self.owner[number]
        return number >= 0


@dataclass(frozen=True, eq=False)
class Lowering:
    """One jitted program, as from `jax.jit(jax.value_and_grad(f))`, or for a function whose result is not a scalar,
    from `jax.vjp` within `jax.jit`.

    Args:
      derivation: the derivation of the function.
      stages: the stages that it consists of: forward and backward; or only the function, if it has no gradient.
      reason: why it has no gradient, or ''.
      lowered: the result of `jax.jit(…).lower`.
      tags: the names of its instructions.
      programs: the programs of the stages.
    """

    derivation: Derivation
    stages: tuple[str, ...]
    reason: str
    lowered: Any = field(repr=False)
    tags: Tags = field(repr=False)
    programs: tuple[Program, ...] = field(repr=False)

    @cached_property
    @usual_stack
    def stablehlo(self) -> str:
        """The program that JAX passes to XLA, with locations."""
        module = self.lowered.compiler_ir("stablehlo")
        return str(module.operation.get_asm(enable_debug_info=True, large_elements_limit=16, large_resource_limit=16))

    @cached_property
    @usual_stack
    def compiled(self) -> Any:
        """The compiled program, as a `jax.stages.Compiled`; compiled once for a program and flags, interruptibly."""
        return compiled_once(self.lowered, "", lambda: compiled_as_named(self.lowered))

    def take(self, compiled: Any) -> None:
        """Uses a program that was compiled for another purpose, so that it is not compiled again."""
        self.__dict__.setdefault("compiled", compiled)

    @property
    def hlo(self) -> str:
        """The compiled program as text, with metadata; '' if the backend does not expose it. Compiles."""
        return str(self.compiled.as_text() or "")


def compiled_as_named(lowered: Any) -> Any:
    """Compiles a program, with that program's names and lines."""
    with compat.compiled_with_its_own_metadata():
        return lowered.compile()


@usual_stack
def lower_gradient(
    derivation: Derivation, largest: int | None = None, keep_unused: bool = False, donated: Sequence[bool] = ()
) -> Lowering:
    """Lowers the gradient, or the function if it has no gradient.

    Args:
      derivation: of the function.
      largest: the number of equations beyond which it is not lowered; None for any number.
      keep_unused: whether the lowered program takes the arguments that it does not read, too.
      donated: for each input of the function whether the program may take its memory.

    Raises:
      ValueError: there are more equations than that.
      the errors of JAX when it lowers the program.
    """
    stages: tuple[str, ...] = ("forward", "backward")
    reason = ""
    try:
        programs: tuple[Program, ...] = (derivation.forward, derivation.backward)
        if not any(derivation.nonzeros):
            reason = "no argument is differentiated"
    except EquationError as error:
        reason = message_of(error).split("\n")[0]
    if reason:
        stages, programs = ("primal",), (derivation.primal,)
    n = sum(1 for program in programs for _ in program.walk())
    if largest is not None and n > largest:
        raise ValueError(
            f"the explorer compiles programs of up to {largest:,} equations, and this one has {n:,}; "
            "jax.jit(jax.grad(f)).lower(...).compile().as_text() gives the text"
        )
    refuse_closed_over(derivation.primal)
    tags = Tags(programs)
    fun, types = gradient_function(derivation, not reason, tags.programs)
    fun.__name__ = fun.__qualname__ = derivation.primal.name
    names = derivation.primal.arg_names
    info = compat.function_debug_info(fun, types, {})
    seeds = (f"cotangent[{i}]" for i in range(len(types) - len(names)))
    compat.name_function(fun, info._replace(arg_names=(*names, *seeds)))
    jitted = jax.jit(fun, keep_unused=keep_unused, donate_argnums=_numbers(donated))
    return Lowering(derivation, stages, reason, lowered(jitted, types, derivation.placed), tags, programs)


@usual_stack
def lower_step(step: TrainingStep, opened: OpenedStep, donated: Sequence[bool] = ()) -> Lowering:
    """Lowers a training step, whose only stage is the step.

    Args:
      step: the step.
      opened: the step with the passes of its gradient.
      donated: for each input of the step whether it is donated.

    Raises:
      the errors of JAX when it lowers the program.
    """
    refuse_closed_over(opened.program)
    tags = Tags((opened.program,))
    # As in JAX, the passes are not calls, which XLA would partition in another order.
    passes = {tags.operation(e.operation) for e in (*opened.forward, *opened.backward)}
    fun = as_function(inlined_where(tags.programs[0], lambda e: e.operation in passes, own_sources=True))
    fun.__name__ = fun.__qualname__ = step.traced.name
    compat.name_function(fun, compat.function_debug_info(fun, step.types, {})._replace(arg_names=step.traced.arg_names))
    jitted = jax.jit(fun, donate_argnums=_numbers(donated))
    result = lowered(jitted, step.types, step.placed)
    return Lowering(step.gradient, ("step",), "", result, tags, (opened.program,))


def refuse_closed_over(program: Program, n_inputs: int | None = None) -> None:
    """Raises an error if JAX cannot lower a program without running it, because of what it closes over.

    Args:
      program: the program.
      n_inputs: how many of its last inputs are arguments, if it may have been traced by `jax.jit`.
    """
    n = len(program.invars) if n_inputs is None else n_inputs
    for v in (*program.constvars, *program.invars[: len(program.invars) - n]):
        if compat.is_mutable_type(v.aval):
            raise NotImplementedError(
                f"{program.name} closes over a value of a mutable hi type, {type_text(v.aval)}, with which JAX "
                "cannot lower a function that it does not run. Pass it as an argument."
            )


def _numbers(chosen: Sequence[bool]) -> tuple[int, ...]:
    return tuple(i for i, is_chosen in enumerate(chosen) if is_chosen)


def lowered(jitted: Any, types: Sequence[Any], placed: Sequence[Any]) -> Any:
    """The result of `jitted.lower`, also for arguments on an abstract mesh."""
    # Without devices, JAX has to be told which platforms to lower for.
    platforms = (jax.default_backend(),) if any(map(is_abstract, placed)) else None
    return jitted.trace(*types).lower(lowering_platforms=platforms)


def gradient_function(
    derivation: Derivation, has_backward: bool = True, programs: Sequence[Program] = ()
) -> tuple[Callable[..., Any], list[Any]]:
    """A function that computes results and cotangents, as one to be jitted, and the types that it is called with.

    Args:
      has_backward: whether it has a gradient; otherwise the function only runs the forward program.
      programs: what to run in place of the derivation's forward and backward program.
    """
    types = input_types(derivation)
    forward = as_function(programs[0] if programs else derivation.forward)
    if not has_backward:
        return lambda *values: forward(*values), types
    backward = as_function(programs[1] if programs else derivation.backward)
    inputs = [v.aval for v, nz in zip(derivation.primal.invars, derivation.nonzeros, strict=True) if nz]
    formed = derivation.transposed.nonzeros_out
    n_inputs, n_results = len(types), len(derivation.forward.outvars) - derivation.n_residuals
    cotangents = [compat.stand_in(v.aval) for v in derivation.backward.invars[derivation.n_residuals :]]
    # As in jax.grad, the cotangent of a scalar is a constant.
    is_number = n_results == 1 and len(cotangents) == 1 and cotangents[0].shape == ()

    def gradient(*values: Any) -> Any:
        outs = forward(*values[:n_inputs])
        seeds = [jax.numpy.ones((), cotangents[0].dtype)] if is_number else values[n_inputs:]
        cotangents_in = iter(backward(*outs[n_results:], *seeds))
        # As in JAX, an input without a cotangent gets zeros.
        return outs[:n_results], [
            next(cotangents_in) if nz else compat.zeros(aval.to_ct_aval())
            for nz, aval in zip(formed, inputs, strict=True)
        ]

    return gradient, types if is_number else [*types, *cotangents]
