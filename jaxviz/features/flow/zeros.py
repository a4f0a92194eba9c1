"""From flags to the equations of a backward program at which cotangents become zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxviz.analysis.walk import place_of
from jaxviz.features.nans.capture import RecordedRun
from jaxviz.features.nans.search import ProgramLevel, Steps
from jaxviz.higher_order import Body, bodies, carried, is_choice, is_loop, of
from jaxviz.ir.primitives import keeps_numbers, plain
from jaxviz.ir.syntax import Atom, Equation, Literal, Var
from jaxviz.transforms.flags import NONZERO, FlaggedValues, flag_rules
from jaxviz.transforms.transpose import linear_variables


@dataclass(frozen=True, slots=True, eq=False)
class Death:
    """An equation of a backward program whose result is zero although it reads a cotangent that is not.

    Args:
      level: the program.
      equation: the equation; None if the program is a branch that is never taken.
      operand: the cotangent that is not zero; None if the equation reads none.
      branch: the cond with that branch.
    """

    level: ProgramLevel
    equation: Equation | None
    operand: int | None
    branch: Equation | None = None


class ZeroSearch:
    """Traces cotangents that are zero back to where they became zero.

    Args:
      run: the backward program with its calls inlined, and the values of its inputs.
      n_residuals: how many of its inputs are no cotangents.
      watches, flags: what `transforms.flags` watched in it, and the results.
    """

    def __init__(self, run: RecordedRun, n_residuals: int, watches: Sequence[FlaggedValues], flags: Sequence[Any]):
        self.run = run
        self.n_residuals = n_residuals
        self.top = ProgramLevel(run.program)
        self.raised: dict[Any, np.ndarray] = {}
        self._linear: dict[ProgramLevel, set[Atom]] = {}
        self._inputs: dict[Atom, bool] = {}
        for watch, of_watch in zip(watches, flags, strict=True):
            columns = np.asarray(of_watch).reshape(2, -1, len(watch.values), watch.n_loops or 1)
            for k, v in enumerate(watch.values):
                self.raised[_key(watch.path, v)] = columns[:, :, k]

    def ever(self, level: ProgramLevel, value: Atom) -> bool:
        """Whether a value has an element that is not zero, in any iteration and on any device."""
        under_way, seen = [(level, value)], set()
        while under_way:
            at = under_way.pop()
            if at not in seen:
                seen.add(at)
                known = self._known(*at)
                if known:
                    return True
                if known is None:
                    under_way += self.outside(*at)
        return False

    def _known(self, level: ProgramLevel, value: Atom) -> bool | None:
        """The same if it is known without what is outside of the program."""
        if isinstance(value, Literal):
            return bool(np.any(value.val))
        row = self.raised.get(_key(level.path, value))
        if row is not None:
            return bool(np.any(row[NONZERO])) if row.dtype == bool else bool(np.any(row[NONZERO] >= 0))
        if level.outer is None:
            return self._of_input(value)
        return None if value in level.program.invars else True

    def _of_input(self, v: Var) -> bool:
        if v not in self._inputs:
            x = self.run.arguments.get(v)
            if x is None or not hasattr(x, "dtype") or x.dtype.kind not in "biufcV":
                return True
            self._inputs[v] = bool(np.any(np.asarray(x != 0)))
        return self._inputs[v]

    def first(self, level: ProgramLevel, value: Atom) -> Steps:
        """The steps in which a value is first not zero, for each enclosing loop and `shard_map`."""
        row = self.raised.get(_key(level.path, value))
        for numbers, on in zip(row[NONZERO] if row is not None else (), level.steps_of_all(), strict=False):
            loops = iter([int(k) for k in numbers] if numbers.dtype != bool else [])
            if numbers.any() if numbers.dtype == bool else (numbers >= 0).any():
                return tuple(next(loops) if axes is None else k for k, axes in zip(on, level.devices, strict=True))
        return (0,) * len(level.devices)

    def linear(self, level: ProgramLevel) -> set[Atom]:
        """The variables of a program that depend on a cotangent."""
        if level not in self._linear:
            if level.outer is None:
                inputs: list[Atom] = list(level.program.invars[self.n_residuals :])
            else:
                (equation, _), outer = level.path[-1], self.linear(level.outer)
                body = _body(level)
                inputs = [
                    v for v, k in zip(level.program.invars, body.operands, strict=True) if equation.invars[k] in outer
                ]
                n_before, n_carry = of(equation).carry(equation.operation)
                carry = [*zip(level.program.invars[n_before : n_before + n_carry], level.program.outvars, strict=False)]
                n = -1
                while n < len(inputs):
                    n = len(inputs)
                    found = linear_variables(level.program, inputs)
                    inputs += [v for v, a in carry if a in found and v not in inputs]
            self._linear[level] = linear_variables(level.program, inputs)
        return self._linear[level]

    def outside(self, level: ProgramLevel, v: Atom) -> Iterator[tuple[ProgramLevel, Atom]]:
        """What an input of a nested program is: the operand of the equation, and a carry also the carried result."""
        if level.outer is None or v not in level.program.invars:
            return
        equation, _ = level.path[-1]
        place = level.program.invars.index(v)
        yield level.outer, equation.invars[_body(level).operands[place]]
        n_before, n_carry = of(equation).carry(equation.operation)
        if 0 <= place - n_before < n_carry:
            yield level, level.program.outvars[place - n_before]

    def deaths(self, value: Atom) -> list[Death]:
        """Where the cotangents end from which a result that is zero is computed, the last in execution first."""
        found: list[Death] = []
        constants: list[Death] = []
        seen: set[tuple[ProgramLevel, Atom]] = set()
        under_way: list[tuple[ProgramLevel, Atom]] = [(self.top, value)]
        while under_way:
            level, v = under_way.pop(0)
            if isinstance(v, Literal) or (level, v) in seen:
                continue
            seen.add((level, v))
            k = level.makers.get(v)
            if k is None:
                around = [*self.outside(level, v)]
                dead = [at for at in around if not self.ever(*at)]
                under_way += dead
                if level.outer is not None and len(dead) < len(around) and is_loop(level.path[-1][0]):
                    found.append(Death(level.outer, level.path[-1][0], None))
                continue
            e = level.program.equations[k]
            if e.primitive in flag_rules.own and e.programs:
                for inner, a in self._inside(level, e, v):
                    if is_choice(e) and inner is not level and self._is_left_out(inner, a):
                        found.append(Death(inner, None, None, e))
                    elif self.ever(inner, a):
                        found.append(Death(level, e, None))
                    else:
                        under_way.append((inner, a))
                continue
            cotangents = [k for k, a in enumerate(e.invars) if a in self.linear(level)]
            alive = [k for k in cotangents if not is_same(e) and self.ever(level, e.invars[k])]
            if alive:
                found.append(Death(level, e, alive[0]))
            elif cotangents:
                under_way += [(level, e.invars[k]) for k in cotangents]
            elif zeros := [(level, a) for a in e.invars if self._is_zeros(level, a)]:
                under_way += zeros  # which a rule returns
            else:
                constants.append(Death(level, e, None))
        return found or constants

    def _is_zeros(self, level: ProgramLevel, v: Atom) -> bool:
        """Whether a value is computed here, and zero, or made of zeros that are written out."""
        k = level.makers.get(v)
        return k is not None and not all(self.ever(level, a) for a in (v, *level.program.equations[k].invars))

    def _is_left_out(self, branch: ProgramLevel, result: Atom) -> bool:
        """Whether a branch is never taken, although its result depends on a cotangent."""
        if isinstance(result, Literal) or result not in self.linear(branch):
            return False
        rows = [self.raised[key] for v in branch.makers if (key := _key(branch.path, v)) in self.raised]
        return not any(row.any() if row.dtype == bool else (row >= 0).any() for row in rows)

    @staticmethod
    def _inside(level: ProgramLevel, e: Equation, v: Atom) -> list[tuple[ProgramLevel, Atom]]:
        """What a result of an equation with nested programs is in these; of a carry also its initial value."""
        place, labels = place_of(e, v), [label for label, _ in e.programs]
        within = [level.within(e, labels.index(body.label)) for body in bodies(e) if body.has_results]
        initial = [e.invars[k] for k in carried(e)[place : place + 1]] if is_loop(e) else []
        return [*((inner, inner.program.outvars[place]) for inner in within), *((level, a) for a in initial)]

    def values(self, death: Death) -> Sequence[Any] | None:
        """The operands of its equation in the step where it reads a cotangent; None if they cannot be computed."""
        if death.equation is None or death.operand is None:
            return None
        steps = self.first(death.level, death.equation.invars[death.operand])
        try:
            atoms = death.equation.invars
            variables = [a for a in atoms if isinstance(a, Var)]
            (values,) = self.run.values([(death.level.path, steps, variables)])
            known: Mapping[Atom, Any] = dict(zip(variables, values, strict=True))
            return [a.val if isinstance(a, Literal) else known[a] for a in atoms]
        except Exception:  # what only makes the sentence more precise
            return None

    def source(self, level: ProgramLevel, value: Atom) -> tuple[ProgramLevel, Atom, Equation | None]:
        """Where a value that is no cotangent comes from: an input of the whole program, or an equation in it."""
        while True:
            k = level.makers.get(value)
            if k is not None:
                e = level.program.equations[k]
                if not (keeps_numbers(e) and isinstance(e.invars[0], Var)):
                    return level, value, e
                value = e.invars[0]
                continue
            outer = next(iter(self.outside(level, value)), None)
            if outer is None:
                return level, value, None
            level, value = outer


def is_same(e: Equation) -> bool:
    """Whether its result is zero just where its only operand is."""
    return keeps_numbers(e) and len(e.invars) == 1 and plain(e.primitive.name).same != "rounded"


def _body(level: ProgramLevel) -> Body:
    equation, place = level.path[-1]
    label = equation.programs[place][0]
    return next(b for b in bodies(equation) if b.label == label)


def _key(path: Sequence[tuple[Equation, int]], value: Atom) -> Any:
    return tuple([(id(e), place) for e, place in path]), id(value)
