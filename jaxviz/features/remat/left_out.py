"""A program without one of its settings: a checkpoint, a policy or a name; and what is derived from it then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jaxviz.derivation import Derivation
from jaxviz.features.memory.timeline import peak_of
from jaxviz.features.remat.forms import work_of
from jaxviz.features.remat.graph import derive_like
from jaxviz.features.residuals.saved_bytes import saved_values
from jaxviz.higher_order import is_scan, of, scan_length
from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.convert import with_programs
from jaxviz.ir.syntax import Atom, Equation, Program
from jaxviz.transforms.inline import inlined_where


@dataclass(frozen=True, eq=False)
class Derived:
    """What a setting may change.

    Args:
      derivation: with it, or without.
    """

    derivation: Derivation

    @cached_property
    def parts(self) -> tuple[Counter[Hashable], ...]:
        """The types of the residuals, and how often each operation is in the forward and in the backward program.

        Names and the boundaries of checkpoints are left out: they compute nothing. What the checkpoints inside of
        others save is decided only when these are transposed.

        Raises:
          EquationError: the function has no reverse mode.
        """
        d = self.derivation
        return Counter(a.aval for a in d.linearized.residuals), _operations(d.forward), _operations(d.backward)

    @cached_property
    def saved(self) -> int:
        """The bytes of the residuals, without arguments and what nothing reads."""
        return self.derivation.residuals.saved.nbytes if saved_values(self.derivation) else 0

    @cached_property
    def flops(self) -> int:
        return work_of(self.derivation).flops

    @cached_property
    def peak(self) -> int:
        """The modelled peak."""
        return peak_of(self.derivation)


def without_checkpoints(derivation: Derivation, checkpoints: Iterable[Equation]) -> Derived:
    """The function with some checkpoints opened."""
    return Derived(derive_like(inlined_where(derivation.primal, set(checkpoints).__contains__), derivation))


def without_policy(derivation: Derivation, checkpoints: Iterable[Equation]) -> Derived:
    """The function with the default policy for some checkpoints, which saves nothing."""
    return Derived(derive_like(with_policies(derivation.primal, dict.fromkeys(checkpoints)), derivation))


def without_names(derivation: Derivation, names: Collection[str]) -> Derived:
    """The function without the calls of `checkpoint_name` with these names."""
    is_named = lambda e: e.primitive is compat.name_p and e.params["name"] in names
    return Derived(derive_like(changed(derivation.primal, lambda e: None if is_named(e) else e), derivation))


def with_policies(program: Program, policies: Mapping[Equation, Any]) -> Program:
    """The program with other policies for some of its checkpoints."""
    return _with_param(program, "policy", policies)


def with_prevent_cse(program: Program, values: Mapping[Equation, bool]) -> Program:
    """The program with another `prevent_cse` for some of its checkpoints."""
    return _with_param(program, "prevent_cse", values)


def _with_param(program: Program, name: str, values: Mapping[Equation, Any]) -> Program:
    def change(e: Equation) -> Equation:
        if e not in values:
            return e
        op = e.operation
        value = compat.policy_like(op.params[name], values[e]) if name == "policy" else values[e]
        params = {**op.params, name: value}
        return replace(
            e, operation=make_operation(op.primitive, params, op.in_avals, op.out_avals, op.effects, op.context)
        )

    return changed(program, change)


def changed(program: Program, change: Callable[[Equation], Equation | None]) -> Program:
    """The program with some equations changed, and those inside of it. Unchanged parts are the same objects.

    Args:
      change: gives another equation with the same variables; None if its results are its operands.
    """
    done: dict[Program, Program] = {}

    def inside(p: Program) -> Program:
        if p in done:
            return done[p]
        equations: list[Equation] = []
        env: dict[Atom, Atom] = {}
        for e in p.equations:
            new = change(e)
            ins = tuple([env.get(a, a) for a in e.invars])
            if new is None:
                env.update(zip(e.outvars, ins, strict=True))
                continue
            op = with_programs(new.operation, inside) if new.programs else new.operation
            same = op is e.operation and all(a is b for a, b in zip(ins, e.invars, strict=True))
            equations.append(e if same else replace(new, operation=op, invars=ins))
        outs = tuple([env.get(a, a) for a in p.outvars])
        same = len(equations) == len(p.equations) and all(a is b for a, b in zip(equations, p.equations, strict=True))
        done[p] = p if same else replace(p, equations=tuple(equations), outvars=outs)
        return done[p]

    return inside(program)


def _operations(program: Program) -> Counter[Hashable]:
    counts: Counter[Hashable] = Counter()

    def count(p: Program, lengths: tuple[int, ...]) -> None:
        for e in p.equations:
            if not e.programs:
                if e.primitive is not compat.name_p:
                    counts[lengths, e.operation] += 1
                continue
            if not of(e).is_checkpoint:
                counts[lengths, e.primitive, e.operation.out_avals] += 1
            for _, inner in e.programs:
                count(inner, (*lengths, scan_length(e)) if is_scan(e) else lengths)

    count(program, ())
    return counts
