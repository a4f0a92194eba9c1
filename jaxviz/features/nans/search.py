"""From flags to the equations that compute, from finite values, a non-finite one that reaches a result."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np

from jaxviz.features.nans.capture import Kinds, Path, RecordedRun, kinds_of, place_of_body
from jaxviz.higher_order import Body, bodies, carried, is_choice, is_loop, of
from jaxviz.ir import compat, primitives
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.transforms.flags import INFINITE, NAN, FlaggedValues, covered_inside, flag_rules, is_watchable
from jaxviz.transforms.vmap import named_axes

Steps = tuple[int, ...]
"""For each enclosing loop the step, from 0 in execution order, and for each `shard_map` the number of the device."""

Place = tuple["ProgramLevel", Steps]

Values = Mapping[Place, Mapping[Atom, Any]]
"""The values of programs in certain steps."""

ValueKinds = Mapping[Place, Mapping[Atom, Kinds]]
"""Their kinds."""


@dataclass(frozen=True, eq=False)
class ProgramLevel:
    """A program, with the equations that contain it, and the level of the last of those; None for the outermost."""

    program: Program
    path: Path = ()
    outer: ProgramLevel | None = None
    inner: dict[tuple[int, int], ProgramLevel] = field(default_factory=dict)

    @cached_property
    def makers(self) -> dict[Atom, int]:
        """For each value the index of the equation that computes it."""
        return {v: k for k, e in enumerate(self.program.equations) for v in e.outvars}

    @cached_property
    def covered(self) -> dict[Var, tuple[tuple[int, Var], ...]]:
        return {v: inside for e in self.program.equations for v, inside in covered_inside(e).items()}

    @cached_property
    def devices(self) -> tuple[dict[Any, int] | None, ...]:
        """For each of `Steps` None if it is a loop's, or the axes that a `shard_map` maps over, with their sizes."""
        around = (e for e, _ in self.path if has_steps(e))
        return tuple(None if is_loop(e) else compat.devices_of(e.operation) for e in around)

    def steps_of_all(self) -> Iterator[Steps]:
        """The steps on each device, in the order of the flags; 0 for loops."""
        counts = [1 if axes is None else math.prod(axes.values()) for axes in self.devices]
        return itertools.product(*map(range, counts))

    def elsewhere(self, steps: Steps, axes: frozenset[Any]) -> Iterator[Steps]:
        """The same step on the other devices along these axes."""
        choices = []
        for step, sizes in zip(steps, self.devices, strict=True):
            if sizes is None:
                choices.append([step])
                continue
            mine = np.unravel_index(step, tuple(sizes.values()))
            ranges = [range(n) if a in axes else (int(i),) for (a, n), i in zip(sizes.items(), mine, strict=True)]
            choices.append([int(np.ravel_multi_index(at, tuple(sizes.values()))) for at in itertools.product(*ranges)])
        return (other for other in itertools.product(*choices) if other != steps)

    def in_time(self, steps: Steps) -> tuple[Steps, Steps]:
        """A sort key for execution order: the steps of loops, then the devices, which run in parallel."""
        apart = [
            tuple(s for s, axes in zip(steps, self.devices, strict=False) if (axes is None) is loops)
            for loops in (True, False)
        ]
        return apart[0], apart[1]

    @property
    def outermost(self) -> ProgramLevel:
        return self if self.outer is None else self.outer.outermost

    def walk(self) -> Iterator[ProgramLevel]:
        """This level, and the programs in it that have flags."""
        yield self
        for e in self.program.equations:
            if e.primitive in flag_rules.own:
                for place in range(len(e.programs)):
                    yield from self.within(e, place).walk()

    @property
    def is_condition(self) -> bool:
        """Whether it is the condition of a while loop."""
        return bool(self.path) and not _body(*self.path[-1]).has_results

    @property
    def body(self) -> ProgramLevel:
        """For the condition of a loop the level of its body; otherwise itself."""
        if not self.is_condition or self.outer is None:
            return self
        equation = self.path[-1][0]
        return self.outer.within(equation, place_of_body(equation))

    def within(self, equation: Equation, place: int) -> ProgramLevel:
        """The level of a program nested in an equation of this one."""
        key = (id(equation), place)
        if key not in self.inner:
            self.inner[key] = ProgramLevel(equation.programs[place][1], (*self.path, (equation, place)), self)
        return self.inner[key]


def has_steps(equation: Equation) -> bool:
    return of(equation).kind in ("loop", "devices")


@dataclass(frozen=True, slots=True, eq=False)
class Birth:
    """Where a non-finite value is computed from finite ones, or enters.

    Args:
      level, steps: the program, the step of enclosing loops, and the device.
      equations: one of these computes it, in evaluation order; empty if `value` is an input or a constant.
      value: the watched value that becomes non-finite because of it, or the input.
      kind: NAN, or INFINITE.
      chain: the values from here to a result, each with its level.
      alike: the other devices on which it is non-finite in that step of the loops, as `steps`.
      is_certain: whether one of the equations does; otherwise something else explains `value`, and they may be finite.
    """

    level: ProgramLevel
    steps: Steps
    equations: tuple[Equation, ...]
    value: Atom
    kind: int
    chain: tuple[tuple[ProgramLevel, Atom], ...]
    alike: tuple[Steps, ...] = ()
    is_certain: bool = True

    def feeds(self, other: Birth) -> bool:
        """Whether the other's last equation reads what this one computes."""
        return not set(other.equations[-1].invars).isdisjoint(self.equations[-1].outvars)

    @property
    def is_known(self) -> bool:
        """Whether there is nothing to tell apart."""
        return not self.equations or (self.is_certain and len(self.equations) == 1)

    @property
    def order(self) -> tuple[int, ...]:
        """A sort key for execution order."""
        places: list[int] = []
        steps, level = iter(self.steps), self.level.outermost
        for equation, place in self.level.path:
            places.append(level.makers.get(equation.outvars[0], 0) if equation.outvars else 0)
            level = level.within(equation, place)
            if has_steps(equation):
                step = next(steps)
                places += [step] if is_loop(equation) else []
        value = self.equations[-1].outvars[0] if self.equations else self.value
        return (*places, self.level.makers.get(value, -1))


class NanSearch:
    """Traces non-finite values back to where they were computed.

    Args:
      run: the program that ran, and its values.
      watches, flags: what `transforms.flags` watched in it, and the results.
    """

    def __init__(self, run: RecordedRun, watches: Sequence[FlaggedValues], flags: Sequence[Any]):
        self.run = run
        self.top = ProgramLevel(run.program)
        self.known: dict[Any, Kinds] = {}
        self.groups: dict[tuple[ProgramLevel, Atom], tuple[tuple[Equation, ...], list[Atom]]] = {}
        self.watches = tuple(watches)
        self.raised: dict[Any, np.ndarray] = {}
        for watch, of_watch in zip(watches, flags, strict=True):
            columns = np.asarray(of_watch).reshape(2, -1, len(watch.values), watch.n_loops or 1)
            for k, v in enumerate(watch.values):
                self.raised[_key(watch.path, v)] = columns[:, :, k]

    def values(self, places: Mapping[Place, Sequence[Atom]]) -> Values:
        """Values in some steps, computed from those that the run has left."""
        return self.values_and_kinds(places, {})[0]

    def values_and_kinds(
        self, values: Mapping[Place, Sequence[Atom]], kinds: Mapping[Place, Sequence[Atom]]
    ) -> tuple[Values, ValueKinds]:
        """Values in some steps, and the kinds of others."""
        requests = [[(level.path, steps, atoms) for (level, steps), atoms in of.items()] for of in (values, kinds)]
        shown, of_kinds = self.run.values_and_kinds(*requests)
        by_place = lambda of, groups: {p: dict(zip(of[p], xs, strict=True)) for p, xs in zip(of, groups, strict=True)}
        return by_place(values, shown), by_place(kinds, of_kinds)

    def is_bad_input(self, v: Var, kind: int) -> bool:
        """Whether an input or a constant of the whole program is non-finite, or contains a NaN."""
        if v not in self.known:
            self.known[v] = kinds_of(self.run.arguments[v]) if v in self.run.arguments else (False, False)
        return self.known[v][kind]

    def branch_in(self, level: ProgramLevel, cond: Equation, steps: Steps) -> int:
        """Which branch a cond takes in a step."""
        index = cond.invars[0]
        value = index.val if isinstance(index, Literal) else self.values({(level, steps): [index]})[level, steps][index]
        return int(np.clip(value, 0, len(cond.programs) - 1))

    def first(self, level: ProgramLevel, value: Atom, kind: int, at: Steps = ()) -> Steps | None:
        """When a value, watched itself or inside, first became non-finite; None if it never did, or if that is unknown.

        Args:
          level, value, kind: which value, and NAN or INFINITE.
          at: for enclosing shard_maps, the device to look at, if `Steps` has it.
        """
        row = self.raised.get(_key(level.path, value))
        if row is not None:
            on_devices = (
                self._first_on(level, numbers, on) for numbers, on in zip(row[kind], level.steps_of_all(), strict=True)
            )
            there = (
                s
                for s in on_devices
                if s is not None and all(a == b for a, b, axes in zip(s, at, level.devices, strict=False) if axes)
            )
            return min(there, key=level.in_time, default=None)
        inside = level.covered.get(value, ()) if isinstance(value, Var) else ()
        equation = level.program.equations[level.makers[value]] if inside else None
        firsts = [self.first(level.within(equation, place), v, kind, at) for place, v in inside] if equation else []
        own = (f[: len(level.devices)] for f in firsts if f is not None)
        return min(own, key=level.in_time, default=None)

    @staticmethod
    def _first_on(level: ProgramLevel, numbers: np.ndarray[Any, Any], on: Steps) -> Steps | None:
        """The first step according to one device's flag, which has the steps of the loops."""
        if numbers.dtype == bool:
            return on if numbers[0] else None
        loops = iter(map(int, numbers))
        return (
            tuple(next(loops) if axes is None else d for d, axes in zip(on, level.devices, strict=True))
            if numbers[0] >= 0
            else None
        )

    def is_bad_result(self, k: int, kind: int) -> bool:
        """Whether a result of the whole program is non-finite, or contains a NaN."""
        return self._when(self.top, self.top.program.outvars[k], (), kind) is not None

    def origins(self, results: Sequence[int], kinds: Sequence[int]) -> list[list[Birth]]:
        """For each kind the equations, in execution order, for which these results are non-finite; then inputs.

        Literals in the program come last, as in `jnp.where(n > 0, x, jnp.nan)`, since they are intentional.
        """
        every = self.apart([b for kind in kinds for b in self.births_of_results(results, kind)])
        in_order = sorted(every, key=lambda b: (not b.equations, isinstance(b.value, Literal), b.order))
        return [[b for b in in_order if b.kind == kind] for kind in kinds]

    def apart(self, births: Sequence[Birth]) -> list[Birth]:
        """Each equation of these that computes a non-finite value from finite ones.

        Equations of which one is known to, but none does in the program that computes their values, which rounds
        differently, stay together.
        """
        requests = operands_and_results([b for b in births if not b.is_known])
        _, kinds = self.values_and_kinds({}, requests)
        found = []
        for b in births:
            if b.is_known:
                found.append(b)
                continue
            here = kinds[b.level, b.steps]
            is_bad = lambda a, b=b, here=here: (kinds_of(a.val) if isinstance(a, Literal) else here[a])[b.kind]
            own = [e for e in b.equations if any(map(is_bad, e.outvars)) and not any(map(is_bad, e.invars))]
            found += [replace(b, equations=(e,)) for e in own] or [b] * b.is_certain
        return found

    def births_of_results(self, results: Sequence[int], kind: int, seen: set[Any] | None = None) -> list[Birth]:
        """Where the non-finite values in some results come from."""
        seen = set() if seen is None else seen
        values = [self.top.program.outvars[k] for k in results]
        bad = [v for v in values if self._when(self.top, v, (), kind) is not None]
        return [b for v in bad for b in self._from(self.top, v, (), kind, (), seen)]

    def inputs_with_nans(self, results: Sequence[int]) -> list[Birth]:
        """The inputs that may contain these results' NaNs, or the infinities that become NaNs."""
        inputs = {
            b.value: b for kind in (NAN, INFINITE) for b in self.births_of_results(results, kind) if not b.equations
        }
        own = self.top.program.invars
        return [b for v, b in inputs.items() if v in own and self.is_bad_input(v, NAN)]  # type: ignore[arg-type]

    def raised_values(self) -> Iterator[tuple[ProgramLevel, Var]]:
        """The watched values that were not finite, in any step."""
        for watch in self.watches:
            level = reduce(lambda level, at: level.within(*at), watch.path, self.top)
            for v in watch.values:
                if self.first(level, v, INFINITE) is not None:
                    yield level, v

    def births(self, level: ProgramLevel, value: Atom, kind: int, seen: set[Any] | None = None) -> list[Birth]:
        """Where a non-finite value comes from."""
        steps = self.first(level, value, kind)
        if steps is None:
            return []
        return list(self._from(level, value, steps, kind, (), set() if seen is None else seen))

    def _from(
        self, level: ProgramLevel, value: Atom, steps: Steps, kind: int, chain: tuple[Any, ...], seen: set[Any]
    ) -> Iterator[Birth]:
        """Continues from a value that is known to be bad in a step."""
        key = _key(level.path, value)
        if key in seen:
            return
        seen.add(key)
        chain = ((level, value), *chain)
        if value not in level.makers:
            yield from self._from_input(level, value, steps, kind, chain, seen)
            return
        equation = level.program.equations[level.makers[value]]
        inner = list(self._inside(level, equation, value, steps, kind))
        if inner:
            for inner_level, v, first in inner:
                yield from self._from(inner_level, v, first, kind, chain, seen)
            return
        equations, frontier = self.computed_from(level, value)
        around = self._exchanged(level, value, steps)
        whens = (
            (a, next((w for at in around if (w := self._when(level, a, at, kind)) is not None), None)) for a in frontier
        )
        bad = [(a, when) for a, when in whens if when is not None]
        for a, when in bad:
            yield from self._from(level, a, when, kind, chain, seen)
        others = _independent_of(equations, [a for a, _ in bad])
        if others:
            alike = self._alike(level, value, steps, kind)
            yield Birth(level, steps, others, value, kind, chain, alike, is_certain=not bad)

    def _exchanged(self, level: ProgramLevel, value: Atom, steps: Steps) -> list[Steps]:
        """Where a value's operands come from: from here, and from other devices if it exchanges values with them."""
        equation = level.program.equations[level.makers[value]]
        axes = named_axes(equation.operation) if primitives.exchanges(equation.primitive) else frozenset()
        return [steps, *(level.elsewhere(steps, axes) if axes else ())]

    def _alike(self, level: ProgramLevel, value: Atom, steps: Steps, kind: int) -> tuple[Steps, ...]:
        every = frozenset(name for axes in level.devices for name in axes or ())
        others = level.elsewhere(steps, every) if every else ()
        return tuple(at for at in others if self.first(level, value, kind, at) == at)

    def _inside(
        self, level: ProgramLevel, equation: Equation, value: Atom, steps: Steps, kind: int
    ) -> Iterator[tuple[ProgramLevel, Atom, Steps]]:
        """What a result of an equation with nested programs is in those."""
        if equation.primitive not in flag_rules.own:
            return
        k = equation.outvars.index(value)  # type: ignore[arg-type]
        for place, (_, program) in enumerate(equation.programs):
            if not _body(equation, place).has_results:
                continue
            carry = _carry(equation, place)
            inner, result = level.within(equation, place), program.outvars[k]
            if carry is not None and result in program.invars:
                # A carry that the step returns unchanged: from the previous step.
                at = program.invars.index(result) - carry[0]  # type: ignore[arg-type]
                result = program.outvars[at] if 0 <= at < carry[1] else result
            first = self.first(inner, result, kind, steps)
            if first is not None and first[: len(steps)] < steps and not has_steps(equation):
                first = steps if self._is_bad_within(inner, result, steps, kind) else None
            if first is not None and first[: len(steps)] <= steps:
                yield inner, result, first
            elif result in program.invars:
                i = program.invars.index(result)  # type: ignore[arg-type]
                operand = equation.invars[_operand_of(equation, i, place)]
                when = self._when(level, operand, steps, kind)
                if when is not None:
                    yield level, operand, when

    def computed_from(self, level: ProgramLevel, value: Atom) -> tuple[tuple[Equation, ...], list[Atom]]:
        """The equations that compute a value, through unwatched values, from watched ones and inputs; and these."""
        if (level, value) in self.groups:
            return self.groups[level, value]
        visited: set[int] = set()
        frontier: dict[Atom, None] = {}
        todo = [level.makers[value]]
        while todo:
            k = todo.pop()
            if k in visited:
                continue
            visited.add(k)
            for a in level.program.equations[k].invars:
                if not is_watchable(a.aval):
                    continue
                is_known = _key(level.path, a) in self.raised or a in level.covered
                if isinstance(a, Literal) or a not in level.makers or is_known:
                    frontier[a] = None
                else:
                    todo.append(level.makers[a])
        group = tuple([level.program.equations[k] for k in sorted(visited)]), list(frontier)
        self.groups[level, value] = group
        return group

    def _when(self, level: ProgramLevel, a: Atom, steps: Steps, kind: int) -> Steps | None:
        """The step in which a value is bad that others depend on in a given step; None if it is not."""
        if isinstance(a, Literal):
            return steps if kinds_of(a.val)[kind] else None
        if a in level.makers or _key(level.path, a) in self.raised:
            return steps if self._is_bad_in(level, a, steps, kind) else None
        return steps if any(True for _ in self._outside(level, a, steps, kind)) else None

    def _is_bad_in(self, level: ProgramLevel, a: Atom, steps: Steps, kind: int) -> bool:
        """Whether a watched value is bad in a given step."""
        first = self.first(level, a, kind, steps)
        if first is None or first >= steps:
            return first == steps
        # The flags only tell the first step of a loop, and what was harmless in that one may not be in a later one.
        key = (_key(level.path, a), steps)
        if key not in self.known:
            atoms = [a, *(v for v in self._doubtful(level, steps) if v is not a)]
            (kinds,) = self.run.kinds([(level.path, steps, atoms)])
            self.known |= {(_key(level.path, v), steps): of_each for v, of_each in zip(atoms, kinds, strict=True)}
        return self.known[key][kind]

    def _is_bad_within(self, inner: ProgramLevel, a: Atom, steps: Steps, kind: int) -> bool:
        """The same for a value in a branch or a checkpoint: a branch that was not taken has no values."""
        (*_, (equation, place)), outer = inner.path, inner.outer
        assert outer is not None
        if is_choice(equation) and self.branch_in(outer, equation, steps) != place:
            return False
        return self._is_bad_in(inner, a, steps, kind)

    def _doubtful(self, level: ProgramLevel, steps: Steps) -> list[Var]:
        """The watched values of a program that were bad in an earlier step, and so may or may not be in this one."""
        here = (v for w in self.watches if w.path == level.path for v in w.values)
        return [v for v in here if (f := self.first(level, v, INFINITE, steps)) is not None and f < steps]

    def _from_input(
        self, level: ProgramLevel, value: Atom, steps: Steps, kind: int, chain: tuple[Any, ...], seen: set[Any]
    ) -> Iterator[Birth]:
        if level.outer is None or isinstance(value, Literal) or value in level.program.constvars:
            yield Birth(level, steps, (), value, kind, chain)
            return
        for where, a, when in self._outside(level, value, steps, kind):
            yield from self._from(where, a, when, kind, chain, seen)

    def _outside(
        self, level: ProgramLevel, value: Atom, steps: Steps, kind: int
    ) -> Iterator[tuple[ProgramLevel, Atom, Steps]]:
        """What an input or constant of a nested program is outside, or in the previous step, if that is bad."""
        if level.outer is None or value in level.program.constvars:
            if self.is_bad_input(value, kind):  # type: ignore[arg-type]
                yield level, value, steps
            return
        equation, place = level.path[-1]
        k = level.program.invars.index(value)  # type: ignore[arg-type]
        sizes = _carry(equation, place)
        before = steps[:-1] if has_steps(equation) else steps
        operand = equation.invars[_operand_of(equation, k, place)]
        if sizes is not None and sizes[0] <= k < sizes[0] + sizes[1] and steps[-1] > 0:
            body = level.body
            result = body.program.outvars[k - sizes[0]]
            last = (*before, steps[-1] - 1)
            when = self._when(body, result, last, kind) if result is not value else None
            if when is not None:
                # Follow a carried value directly to the step where it first occurs.
                first = self.first(body, result, kind, last) if result in body.makers else None
                yield body, result, when if first is None else min(first, when)
                return
            if result is not value:
                return
        when = self._when(level.outer, operand, before, kind)
        if when is not None:
            yield level.outer, operand, when


def operands_and_results(births: Sequence[Birth]) -> dict[Place, list[Atom]]:
    """What each of the possible equations reads and computes, in the step in question."""
    together: dict[Place, dict[Atom, None]] = {}
    for b in (b for b in births if b.equations):
        atoms = (a for e in b.equations for a in (*e.invars, *e.outvars))
        together.setdefault((b.level, b.steps), {}).update((a, None) for a in atoms if isinstance(a, Var))
    return {place: list(atoms) for place, atoms in together.items()}


def _independent_of(equations: Sequence[Equation], values: Sequence[Atom]) -> tuple[Equation, ...]:
    """The equations, in evaluation order, that none of these values reaches."""
    reached, others = set(values), []
    for e in equations:
        if reached.isdisjoint(e.invars):
            others.append(e)
        else:
            reached.update(e.outvars)
    return tuple(others)


def _carry(equation: Equation, place: int) -> tuple[int, int] | None:
    """The index of the carry among the inputs of a loop's body, or of its condition, and its number of values."""
    if not is_loop(equation):
        return None
    _, n = of(equation).carry(equation.operation)
    body = _body(equation, place)
    return body.operands.index(carried(equation).start) if n else len(body.operands), n


def _operand_of(equation: Equation, k: int, place: int) -> int:
    """The operand of an equation that is the k-th input of a program in it."""
    return _body(equation, place).operands[k]


def _body(equation: Equation, place: int) -> Body:
    """The role of a nested program, by its index."""
    label, program = equation.programs[place]
    matching = (b for b in bodies(equation) if b.label == label)
    return next(matching, Body(program, range(len(program.invars)), label))


def computed_by(level: ProgramLevel, value: Atom) -> Iterator[tuple[ProgramLevel, Equation]]:
    """The equations that compute a value, with their programs: of an input of a body outside, and in the last step."""
    if value in level.makers:
        yield level, level.program.equations[level.makers[value]]
    elif level.outer is not None and value in level.program.invars:
        around, place = level.path[-1]
        k = level.program.invars.index(value)  # type: ignore[arg-type]
        carry = _carry(around, place)
        if carry is not None and 0 <= k - carry[0] < carry[1]:
            result = level.body.program.outvars[k - carry[0]]
            if result in level.body.makers:
                yield level.body, level.body.program.equations[level.body.makers[result]]
        yield from computed_by(level.outer, around.invars[_operand_of(around, k, place)])


def _key(path: Path, value: Atom) -> tuple[Any, ...]:
    return (*((id(e), place) for e, place in path), id(value))
