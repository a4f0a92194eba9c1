"""How the values of a gradient are laid out over devices: XLA's own pass propagates the program's shardings.

XLA decides how most values are split, with Shardy, a pass over the lowered program that JAX includes too. So nothing
has to be compiled, and the devices need not exist: a mesh may be a `jax.sharding.AbstractMesh`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax

from jaxviz.analysis.devices import mesh_size, parts_of_array, types_to_lower
from jaxviz.analysis.lowering import Tags, lower_gradient, lowered
from jaxviz.derivation import Derivation
from jaxviz.higher_order import bodies, is_scan, of
from jaxviz.ir import compat
from jaxviz.ir.emit import as_function
from jaxviz.ir.errors import message_of
from jaxviz.ir.origin import ancestors
from jaxviz.ir.stack import usual_stack
from jaxviz.ir.syntax import Atom, Equation, Program, Var
from jaxviz.report.tables import nbytes


@dataclass(frozen=True, eq=False)
class Layouts:
    """Over how many devices each value of a gradient is sharded.

    Args:
      n_devices: the number of devices of the mesh.
      arguments: for each input of the function.
      cotangents: for each incoming cotangent.
      values: for the inputs and the constants of the forward program, and for the results of both programs' equations.
      roots: the same by the original equation of the function and the kind of derivation.
      unknown: why XLA's shardings are not known, in a sentence, or ''. Then each value counts as replicated.
    """

    n_devices: int
    arguments: tuple[int, ...]
    cotangents: tuple[int, ...]
    values: Mapping[Atom, int]
    roots: Mapping[tuple[Any, ...], int]
    unknown: str = ""

    @cached_property
    def own(self) -> dict[Atom, int]:
        """The same for the values of the function itself, which the forward program contains as copies."""
        parts_of: dict[Atom, int] = {}
        for (results, place, kind, *_), parts in self.roots.items():
            if kind == "primal":
                parts_of[results[place]] = min(parts_of.get(results[place], parts), parts)
        return parts_of

    def called_too(self, copies: Mapping[Var, Var]) -> Layouts:
        """The same for another derivation, of the function before its calls were inlined.

        Args:
          copies: for values of inlined programs, those of the called function.
        """
        roots = dict(self.roots)
        for (results, *more), parts in self.roots.items():
            called = tuple(copies.get(v, v) for v in results)
            if called != results:
                key = (called, *more)
                roots[key] = min(roots.get(key, parts), parts)
        return replace(self, roots=roots)

    def parts(self, equation: Equation, place: int) -> int:
        """Over how many devices a result of an equation is divided; 1 if that is not known."""
        return self.known_parts(equation, place) or 1

    def known_parts(self, equation: Equation, place: int) -> int | None:
        """Over how many devices a result of an equation is divided.

        The equation may be one of another derivation of the same function, such as one with checkpoints: then what came
        in the same way from the same equation of the function tells.
        """
        value = equation.outvars[place]
        if value in self.values:
            return self.values[value]
        root = [equation, *ancestors(equation)][-1]
        if root.primitive is compat.name_p and root.invars[0] in self.own:
            return self.own[root.invars[0]]
        if is_scan(equation) and place >= len(root.outvars):
            return self._stacked(equation, place)
        parts = self.roots.get(_key(equation, place))
        if parts is None and place < len(root.outvars) and _alike(value, root.outvars[place]):
            parts = self.own.get(root.outvars[place])
        return parts

    def _stacked(self, scan: Equation, place: int) -> int | None:
        """The same for a scan's stacked values: with the sharding of each iteration's value, or of the carry."""
        (body,) = bodies(scan)
        value = body.program.outvars[place]
        for e in body.program.equations:
            if value in e.outvars:
                return self.known_parts(e, e.outvars.index(value))
        n_before, n_carry = of(scan).carry(scan.operation)
        carried = body.program.invars[n_before : n_before + n_carry]
        return self.known_parts(scan, carried.index(value)) if value in carried else None

    def nbytes(self, equation: Equation, place: int) -> int:
        """Bytes of a result of an equation on one device."""
        return nbytes(equation.outvars[place].aval) // self.parts(equation, place)


def find_layouts(derivation: Derivation) -> Layouts | None:
    """The shardings of a gradient; None if it runs on one device."""

    def lower() -> tuple[Any, Tags, list[Program]]:
        lowering = lower_gradient(derivation, keep_unused=True)
        return lowering.lowered, lowering.tags, [getattr(derivation, stage) for stage in lowering.stages]

    n_cotangents = len(derivation.backward.invars) - derivation.n_residuals
    return _layouts(derivation.primal, derivation.placed, n_cotangents, lower)


def layouts_of_step(program: Program, placed: Sequence[Any]) -> Layouts | None:
    """The shardings of a training step, from its program and those of its arguments; None if it runs on one device."""

    def lower() -> tuple[Any, Tags, list[Program]]:
        tags = Tags([program])
        jitted = jax.jit(as_function(tags.programs[0]), keep_unused=True)
        return lowered(jitted, types_to_lower(program, placed), placed), tags, [program]

    return _layouts(program, placed, 0, lower)


@usual_stack
def _layouts(
    program: Program, placed: Sequence[Any], n_cotangents: int, lower: Callable[[], tuple[Any, Tags, list[Program]]]
) -> Layouts | None:
    n_devices = mesh_size(program, placed)
    if n_devices == 1:
        return None
    reason = "jax_use_shardy_partitioner is off"
    if jax.config.jax_use_shardy_partitioner:  # type: ignore[attr-defined]
        try:
            return _propagated(n_devices, len(program.invars), *lower())
        except Exception as error:  # an effect that this backend does not support, too deep a program, …
            reason = message_of(error).split("\n")[0]
    unknown = f"XLA's layouts are unknown ({reason}), so each value counts as if one device held all of it."
    return Layouts(n_devices, (1,) * len(program.invars), (1,) * n_cotangents, {}, {}, unknown)


def _propagated(n_devices: int, n_inputs: int, module: Any, tags: Tags, programs: Sequence[Program]) -> Layouts:
    arguments, instructions = compat.propagated(module)
    by_number: dict[int, list[compat.Propagated]] = {}
    for instruction in instructions:
        for number in tags.named(instruction.path):
            by_number.setdefault(number, []).append(instruction)
    values = _of_equations(programs, by_number)
    first = programs[0]
    values.update(zip(first.invars, arguments.parts, strict=False))
    values.update((v, parts_of_array(c)) for v, c in zip(first.constvars, first.consts, strict=True))
    roots: dict[tuple[Any, ...], int] = {}
    for program in programs:
        for _, e in program.walk():
            for k, v in enumerate(e.outvars):
                if v in values:
                    key = _key(e, k)
                    roots[key] = min(roots.get(key, values[v]), values[v])
    return Layouts(n_devices, arguments.parts[:n_inputs], arguments.parts[n_inputs:], values, roots)


def _of_equations(
    programs: Iterable[Program], instructions: Mapping[int, Sequence[compat.Propagated]]
) -> dict[Atom, int]:
    """For each variable its shards: those of the last instruction of its equation with a result of its shape."""
    values: dict[Atom, int] = {}
    numbered = enumerate(e for program in programs for _, e in program.walk())
    for number, e in numbered:
        for v, parts in zip(e.outvars, _of_results(e, instructions.get(number, ())), strict=True):
            if parts is not None:
                # A function that is called from several places has a single body.
                values[v] = min(values.get(v, parts), parts)
    return values


def _of_results(e: Equation, instructions: Sequence[compat.Propagated]) -> list[int | None]:
    shapes = tuple(tuple(getattr(v.aval, "shape", ())) for v in e.outvars)
    n = len(shapes)
    for instruction in reversed(instructions):
        # A loop's results are the last results of its instruction; its counter and what it only reads come before.
        if instruction.shapes[-n:] == shapes:
            return list(instruction.parts[-n:])
    by_shape = {
        shape: p for instruction in instructions for shape, p in zip(instruction.shapes, instruction.parts, strict=True)
    }
    return [by_shape.get(shape) for shape in shapes]


def _key(equation: Equation, place: int) -> tuple[Any, ...]:
    """A key shared by the results of equations that derive in the same way from one equation of the function."""
    chain = [equation, *ancestors(equation)]
    root = chain[-1]
    role = equation.origin.role if equation.origin is not None else ""
    kind = "primal" if role in ("", "primal", "recomputation", "residual") else role
    value = equation.outvars[place]
    if kind == "primal" and (place >= len(root.outvars) or not _alike(value, root.outvars[place])):
        kind, place = "residual", -1  # an additional result of a rule; its position depends on what is saved
    return root.outvars, place, kind, equation.primitive, tuple(getattr(value.aval, "shape", ()))


def _alike(first: Atom, second: Atom) -> bool:
    return getattr(first.aval, "shape", None) == getattr(second.aval, "shape", None)
