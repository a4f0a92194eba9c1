"""A function without mutable references, with its arguments, where no derivative is compared with JAX's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jaxviz.derivation import Derivation, derive
from jaxviz.higher_order import is_loop
from jaxviz.higher_order import of as described_by
from jaxviz.ir import compat
from jaxviz.ir.convert import read_traced, with_programs
from jaxviz.ir.origin import ancestors
from jaxviz.ir.syntax import Atom, Equation, Program
from jaxviz.runtime.references import on_values, repeated_references, uses_mutable_types
from jaxviz.transforms.driver import Builder, reordered_inputs, with_results

CLOSED_OVER = "a reference that is closed over"
"""The name of what is in one."""


@dataclass(frozen=True, eq=False)
class Contents:
    """The arguments of a function that takes what is in references, and whose last results are what is then in them.

    Args:
      inputs, names: of its arguments.
      nonzeros: which are differentiated.
      written: the names of the references whose final values are its last results.
    """

    inputs: tuple[Any, ...]
    names: tuple[str, ...]
    nonzeros: tuple[bool, ...]
    written: tuple[str, ...]


def contents(
    closed_over: Sequence[Any], inputs: Sequence[Any], names: Sequence[str], nonzeros: Sequence[bool], is_high: bool
) -> Contents:
    """Those for the references that a function closes over, and its arguments.

    Args:
      is_high: whether it uses values of mutable hi types.
    """
    parts_of = compat.arrays_in if is_high else compat.contents
    every = (*((x, CLOSED_OVER, False) for x in closed_over), *zip(inputs, names, nonzeros, strict=True))
    parts = [(part, name, nonzero) for x, name, nonzero in every for part in parts_of(x)]
    written = [
        (name, compat.is_live_ref(x)) for x, name, _ in every if compat.is_written_in_place(x) for _ in parts_of(x)
    ]
    return Contents(
        tuple(x for x, _, _ in parts), tuple(name for _, name, _ in parts), tuple(nonzero for *_, nonzero in parts),
        tuple(name for name, _ in sorted(written, key=lambda w: not w[1])),
    )  # fmt: skip


def without_references(d: Derivation, inputs: Sequence[Any], names: Sequence[str]) -> tuple[Derivation, Contents]:
    """A function, called with these arguments, without its references; it is differentiated in the same arguments."""
    program, closed_over = on_values(d.primal)
    taken = contents(closed_over, inputs, names, d.nonzeros, uses_mutable_types(d.primal))
    derived = derive(program, argnums=[i for i, nonzero in enumerate(taken.nonzeros) if nonzero])
    n_results = d.n_results or len(d.primal.outvars)
    assert len(program.outvars) == len(d.primal.outvars) + len(taken.written)
    return replace(derived, n_results=n_results, out_tree=d.out_tree), taken


class OriginsKept:
    """Derived programs without references, whose equations have the lines and origins that they had with them.

    JAX replaces references by values in an equation after the other; a scope for each says from which one of the
    others came.
    """

    def __init__(self) -> None:
        self._equations: list[Equation] = []
        self._tagged: dict[Program, Program] = {}
        self._new: dict[Atom, Atom] = {}
        """The variables without references, by those with them."""

    def without_references(self, program: Program) -> tuple[Program, tuple[Any, ...]]:
        """As `on_values`, of a program without mutable hi types."""
        pure, refs = on_values(self._with_tags(program))
        return self._restored(pure, program), refs

    def _with_tags(self, program: Program) -> Program:
        if program not in self._tagged:
            self._tagged[program] = replace(program, equations=tuple(map(self._with_tag, program.equations)))
        return self._tagged[program]

    def _with_tag(self, e: Equation) -> Equation:
        self._equations.append(e)
        tag = f"jaxviz.{len(self._equations) - 1}"
        operation = with_programs(e.operation, self._with_tags) if "_prim" not in e.params else e.operation
        return replace(e, operation=operation, source=compat.in_scope(e.source, tag))

    def _restored(self, pure: Program, of: Program | None) -> Program:
        if of is not None:
            own = pure.invars[len(pure.invars) - len(of.invars) :]  # after what it closes over
            self._new.update((v, new) for v, new in zip(of.invars, own, strict=True) if v.aval == new.aval)
        restored = replace(pure, equations=tuple(map(self._without_tag, pure.equations)))
        return restored if of is None else replace(restored, cotangents=partial(self._cotangents, of))

    def _without_tag(self, e: Equation) -> Equation:
        tags = _TAG.findall(str(e.source.name_stack)) if e.source is not None else ()
        if not tags:
            return replace(e, operation=with_programs(e.operation, lambda p: self._restored(p, None)))
        of = self._equations[int(tags[-1])]
        is_same = e.primitive == of.primitive
        if is_same:
            # What is then in references is the first results of a loop, and the last ones of anything else.
            own = e.outvars[-len(of.outvars) :] if is_loop(of) else e.outvars
            self._new.update((v, new) for v, new in zip(of.outvars, own, strict=False) if v.aval == new.aval)
        before = dict(of.programs) if is_same else {}
        after = {program: before.get(label) for label, program in e.programs}
        operation = with_programs(e.operation, lambda p: self._restored(p, after.get(p)))
        return replace(e, operation=operation, source=of.source, origin=of.origin)

    def _cotangents(self, of: Program) -> Mapping[Atom, tuple[Atom, ...]]:
        new = self._new
        return {new.get(value, value): tuple(new.get(a, a) for a in parts) for value, parts in of.cotangents().items()}


_TAG = re.compile(r"jaxviz\.(\d+)")


def is_differentiated_on_values(d: Derivation) -> bool:
    """Whether JAX computes the gradient of a function that it computes of the same function on values: no checkpoint
    and no custom rule uses a reference from outside."""
    if any(repeated_references(d.primal)):
        return False
    return not any(
        compat.touches_ref(e.operation) and any(described_by(a).has_custom_rule for a in ancestors(e))
        for program in ((d.forward, d.backward) if d.linear.outvars else (d.forward,))
        for _, e in program.walk()
    )


@dataclass(frozen=True, eq=False)
class PassesOnValues:
    """Both passes of a gradient, derived with references and then on values.

    Args:
      forward: inputs → results, residuals, and then what is in the references that it takes.
      backward: residuals, cotangents, what is in the references that it closes over → cotangents.
      taken: the arguments of `forward`.
      closed_over: for each reference that `backward` closes over, the place of its contents among the results of
        `forward`, or what is in it.
    """

    forward: Program
    backward: Program
    taken: Contents
    closed_over: tuple[int | Any, ...]


def passes_on_values(d: Derivation, inputs: Sequence[Any], names: Sequence[str]) -> PassesOnValues:
    """The passes of a gradient as they run with references: what the backward pass reads from one is what is in it
    then."""
    kept, builder = OriginsKept(), Builder()
    own, residuals = d.forward.outvars[: len(d.primal.outvars)], d.forward.outvars[len(d.primal.outvars) :]
    ends = [builder.inline(_reading(r.aval), [r])[0] if compat.is_ref(r.aval) else r for r in residuals]
    equations = (*d.forward.equations, *builder.equations)
    forward, refs = kept.without_references(replace(d.forward, equations=equations, outvars=(*own, *ends)))
    backward, closed_over = kept.without_references(d.backward)
    n = len(closed_over)
    backward = reordered_inputs(backward, [*backward.invars[n:], *backward.invars[:n]])
    backward = with_results(backward, backward.outvars[: len(d.backward.outvars)])
    taken = contents(refs, inputs, names, d.nonzeros, is_high=False)
    places = {id(ref): len(own) + len(ends) + i for i, ref in enumerate(refs)}
    now = tuple(places.get(id(ref), *compat.contents(ref)) for ref in closed_over)
    return PassesOnValues(forward, backward, taken, now)


def _reading(aval: Any) -> Program:
    """The program that reads all of a reference."""
    return read_traced(compat.trace_to_jaxpr(lambda ref: [ref[...]], [aval], keeps_rules=False))
