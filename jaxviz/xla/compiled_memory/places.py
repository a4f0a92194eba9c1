"""From the number on an instruction to the equation that it was compiled from, and the role of that equation's value in
the gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

from jaxviz.analysis.devices import mesh_size
from jaxviz.analysis.grouping import pattern, repetition
from jaxviz.analysis.lowering import Lowering, lower_gradient, lower_step
from jaxviz.analysis.passes import OpenedStep
from jaxviz.analysis.training_step import TrainingStep
from jaxviz.analysis.walk import SourceTracer, defined_at, place_of, primal_equation, with_holders
from jaxviz.derivation import Derivation
from jaxviz.features.memory.names import DerivationNames
from jaxviz.features.memory.timeline import donated_by
from jaxviz.features.residuals.residual import Residual
from jaxviz.higher_order import bodies, of
from jaxviz.ir.origin import Location
from jaxviz.ir.primitives import is_view, keeps_numbers
from jaxviz.ir.syntax import Atom, Equation, Program
from jaxviz.xla.compiled_memory.module import Instruction

Stage = Literal["forward", "backward", "outside"]
"""The pass of an equation; equations of a training step in neither pass, and those of a function without a gradient,
are outside."""

_size = lambda a: (a.aval.size, a.aval.dtype)


class Maker(Protocol):
    """What an instruction comes from, such as an equation."""

    @property
    def stage(self) -> Stage: ...

    @property
    def operation(self) -> str:
        """The operation, such as 'dot_general'."""

    @property
    def holds_programs(self) -> bool:
        """Whether it is a loop, a branch, a call, …"""

    @property
    def results(self) -> Sequence[Any]:
        """The types of its results, as abstract values; empty if unknown."""

    @property
    def operands(self) -> Sequence[Any]:
        """The types of its operands."""

    @property
    def is_recomputed(self) -> bool:
        """Whether it recomputes, for the backward pass, a value of the forward pass."""

    @property
    def is_cotangent(self) -> bool:
        """Whether it computes a cotangent."""


class Makers:
    """What the instructions of a compiled program come from, by number; here without what only equations tell."""

    makers: Sequence[Maker]
    definition: Location | None = None
    """Where the function is defined; None if unknown."""
    knows_equations = False
    """Whether each number is that of one equation, for which residuals and their reasons are known."""
    residuals: Sequence[Residual] = ()
    """The residuals of the gradient, as far as they are known."""
    residuals_of: Mapping[int, tuple[int, ...]] = {}
    """For the numbers of the equations that compute residuals, the indices of these residuals."""

    def numbers(self, instruction: Instruction) -> tuple[int, ...]:
        """The numbers of the equations that an instruction comes from."""
        raise NotImplementedError

    def label(self, number: int) -> tuple[str, Location | None, Hashable]:
        """What it computes, as an expression; the user's line; and a key shared by everything that the expression
        computes."""
        raise NotImplementedError

    def maker_of(self, residual: int) -> int | None:
        """The number of the equation that first computes the value of a residual, which `checkpoint_name` may rename or
        a reshape change."""
        return None

    def read_in(self, number: int) -> Sequence[int]:
        """The residuals that it reads in the backward pass."""
        return ()

    def is_computed_again(self, number: int) -> bool:
        """Whether the backward pass recomputes its result."""
        return False


@dataclass(frozen=True, eq=False, slots=True)
class EquationPlace:
    """An equation in its place, as a `Maker`.

    Args:
      equation: the equation.
      within: the equations that contain its program, outermost first; within a pass of a training step, those of the
        pass.
      stage: the pass.
      around: for an equation of a pass of a training step, the equations of the step that contain the pass.
    """

    equation: Equation
    within: tuple[Equation, ...]
    stage: Stage
    around: tuple[Equation, ...] = ()

    @property
    def operation(self) -> str:
        return str(self.equation.primitive.name)

    @property
    def holds_programs(self) -> bool:
        return bool(self.equation.programs)

    @property
    def results(self) -> list[Any]:
        return [v.aval for v in self.equation.outvars]

    @property
    def operands(self) -> list[Any]:
        return [a.aval for a in self.equation.invars]

    @property
    def is_recomputed(self) -> bool:
        origin = self.equation.origin
        return self.stage == "backward" and origin is not None and origin.role == "recomputation"

    @property
    def is_cotangent(self) -> bool:
        origin = self.equation.origin
        role = origin.role if origin is not None else "cotangent"
        return self.stage == "backward" and role in ("cotangent", "accumulation", "zero")


class Places(Makers):
    """The equations of a lowered gradient or training step, which is opened into its passes, by their numbers."""

    knows_equations = True

    def __init__(self, lowering: Lowering, opened: OpenedStep | None = None):
        self.derivation = lowering.derivation
        self.tags = lowering.tags
        self.programs = lowering.programs
        self.opened = opened
        self.makers: list[EquationPlace] = []
        for stage, program in zip(lowering.stages, lowering.programs, strict=True):
            for e, within in with_holders(program):
                self.makers.append(self._place(e, within, stage))
        self._makers: dict[Program, dict[Atom, Equation]] = {}
        self._numbers = {(p.stage, p.equation, p.within): i for i, p in reversed(list(enumerate(self.makers)))}

    def _place(self, e: Equation, within: tuple[Equation, ...], stage: str) -> EquationPlace:
        if self.opened is None:
            pass_ = stage if stage in ("forward", "backward") else "outside"
            return EquationPlace(e, within, pass_)  # type: ignore[arg-type]
        for i, holder in enumerate(within):
            if holder in self.opened.forward:
                return EquationPlace(e, within[i + 1 :], "forward", within[: i + 1])
            if holder in self.opened.backward:
                return EquationPlace(e, within[i + 1 :], "backward", within[: i + 1])
        return EquationPlace(e, within, "outside")

    @cached_property
    def definition(self) -> Location:  # type: ignore[override]
        return defined_at(self.derivation.primal)

    def numbers(self, instruction: Instruction) -> tuple[int, ...]:
        """The numbers in its path of scopes."""
        return self.tags.named(instruction.path)

    def label(self, number: int) -> tuple[str, Location | None, Hashable]:
        place = self.makers[number]
        e, within = place.equation, place.within
        names = self._names_outside if place.stage == "outside" else self._names
        what = names.of(e, within, e.outvars[0] if e.outvars else None)
        return what, names.location(e, within), (pattern(what), repetition(e, within))

    def maker_of(self, residual: int) -> int | None:
        return self._makers_of.get(residual)

    @cached_property
    def _makers_of(self) -> Mapping[int, int]:
        makers: dict[int, int] = {}
        for number, residuals in self.residuals_of.items():
            for k in residuals:
                makers[k] = min(number, makers.get(k, number))
        return makers

    def read_in(self, number: int) -> Sequence[int]:
        return self._read_by.get(self.makers[number].equation, ())

    def is_computed_again(self, number: int) -> bool:
        return primal_equation(self.makers[number].equation) in self._computed_again

    @cached_property
    def has_gradient(self) -> bool:
        """Whether it has a forward and a backward pass."""
        return any(p.stage == "backward" for p in self.makers)

    @cached_property
    def residuals(self) -> Sequence[Residual]:  # type: ignore[override]
        return self.derivation.residuals.items if self.has_gradient else ()

    @cached_property
    def residuals_of(self) -> Mapping[int, tuple[int, ...]]:  # type: ignore[override]
        saved: dict[int, list[int]] = {}
        if self.has_gradient:
            forward = self.derivation.forward
            trace = SourceTracer(forward)
            for k, atom in enumerate(self.derivation.linearized.residuals):
                for source in trace(atom):
                    if source.equation is None or source.is_dummy:
                        continue
                    for e, within in self._same_value(source.equation, source.within):
                        number = self._numbers.get(("forward", e, within))
                        if number is not None and k not in saved.setdefault(number, []):
                            saved[number].append(k)
        return {number: tuple(ks) for number, ks in saved.items()}

    @cached_property
    def _read_by(self) -> Mapping[Equation, tuple[int, ...]]:
        """For the equations of the backward program that read residuals, the residuals."""
        readers: dict[Equation, list[int]] = {}
        for k, residual in enumerate(self.residuals):
            for e in residual.consumers:
                readers.setdefault(e, []).append(k)
        return {e: tuple(ks) for e, ks in readers.items()}

    @cached_property
    def _computed_again(self) -> frozenset[Equation]:
        """The equations of the function that the backward pass recomputes."""
        return frozenset(primal_equation(p.equation) for p in self.makers if p.is_recomputed)

    @cached_property
    def _names(self) -> DerivationNames:
        return DerivationNames(self.derivation)

    @cached_property
    def _names_outside(self) -> DerivationNames:
        program = self.derivation.primal if self.opened is None else self.opened.program
        return DerivationNames(Derivation(program, (), lambda _: Counter()))

    def _same_value(
        self, equation: Equation, within: tuple[Equation, ...]
    ) -> Iterator[tuple[Equation, tuple[Equation, ...]]]:
        """An equation of the forward pass, and earlier ones whose value it only reshapes, reorders or rounds to its own
        type."""
        while True:
            yield equation, within
            is_same = keeps_numbers(equation) and _size(equation.invars[0]) == _size(equation.outvars[0])
            if not (is_view(equation) or is_same):
                return
            before = self._maker(equation.invars[0], within)
            if before is None:
                return
            equation, within = before

    def _maker(self, atom: Atom, within: tuple[Equation, ...]) -> tuple[Equation, tuple[Equation, ...]] | None:
        """The innermost equation that computes a value, with its enclosing equations; None for an argument or a
        carry."""
        while True:
            programs = [b.program for b in bodies(within[-1])] if within else [self.derivation.forward]
            made_by = next((self._made_in(p)[atom] for p in programs if atom in self._made_in(p)), None)
            if made_by is not None:
                inside = [b for b in bodies(made_by) if b.has_results]
                if of(made_by).kind not in ("call", "devices") or len(inside) != 1:
                    return made_by, within
                atom = inside[0].program.outvars[place_of(made_by, atom)]
                within = (*within, made_by)
                continue
            if not within or of(within[-1]).kind not in ("call", "devices"):
                return None
            body = next((b for b in bodies(within[-1]) if atom in b.program.invars), None)
            if body is None:
                return None
            operand = next(i for v, i in zip(body.program.invars, body.operands, strict=True) if v is atom)
            atom, within = within[-1].invars[operand], within[:-1]

    def _made_in(self, program: Program) -> dict[Atom, Equation]:
        if program not in self._makers:
            self._makers[program] = {v: e for e in program.equations for v in e.outvars}
        return self._makers[program]


# --- what is compiled -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CompiledSubject:
    """A gradient, or a training step, as the subject of a report on its compiled program: as lowered, its equations, a
    description, the names of its results, the sharding of each input, and on how many devices it runs."""

    lowering: Lowering
    places: Places
    about: str
    results: Sequence[str]
    placed: Sequence[Any]
    n_devices: int

    @property
    def program(self) -> Program:
        opened = self.places.opened
        return self.lowering.derivation.primal if opened is None else opened.program


def gradient_or_step(derivation: Derivation, donated: Sequence[bool] | None = None) -> CompiledSubject:
    """A gradient, or the training step that takes it, lowered. The gradient may take the memory of the inputs that are
    donated: by default those that the function donates."""
    if derivation.step is None:
        donated = donated_by(derivation.primal) if donated is None else donated
        return lowered_gradient(lower_gradient(derivation, donated=donated))
    step: TrainingStep = derivation.step.taking(derivation)
    opened = step.opened()
    lowering = lower_step(step, opened, donated_by(step.traced))
    names = [f"result {i}" for i in range(len(step.traced.outvars))]
    n_devices = mesh_size(step.traced, step.placed)
    return CompiledSubject(lowering, Places(lowering, opened), step.about, names, step.placed, n_devices)


def lowered_gradient(lowering: Lowering) -> CompiledSubject:
    """A gradient that has been lowered."""
    d = lowering.derivation
    n = len(d.primal.outvars)
    names = ["the result"] if n == 1 else [f"result {i}" for i in range(n)]
    inputs = zip(d.primal.arg_names, d.nonzeros, strict=True)
    names += [f"the gradient in {name or 'an argument'}" for name, nz in inputs if nz]
    return CompiledSubject(lowering, Places(lowering), d.gradient, names, d.placed, mesh_size(d.primal, d.placed))
