"""Relations between the variables of a derivation: equal values, tangents and cotangents, and the operands of nested
programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from jaxviz.derivation import STAGES
from jaxviz.higher_order import Body, bodies, carried, is_choice, is_loop, is_scan, of
from jaxviz.ir import compat
from jaxviz.ir.origin import ancestors
from jaxviz.ir.syntax import Atom, Equation, Operation, Program
from jaxviz.page.schema import KINS

_VALUE, _TANGENT, _COTANGENT, _OF_TANGENT, _OF_COTANGENT, _COPY = range(len(KINS))
_KIN = {"tangent": _TANGENT, "cotangent": _COTANGENT, "part": _OF_COTANGENT}
_CERTAIN = (_TANGENT, _COTANGENT, _COPY, _OF_TANGENT, _OF_COTANGENT, _VALUE)
_OF_ROLE = {"tangent": _OF_TANGENT, "cotangent": _OF_COTANGENT, "accumulation": _OF_COTANGENT}


def handed_to(equation: Equation) -> dict[int, tuple[Body, list[int]]]:
    """For each program that an equation runs, by identity, how each of its inputs receives its value: an index into
    HANDED."""
    rounds = carried(equation)
    # A scan's consts and carry precede the arrays it iterates over.
    slices = sum(of(equation).carry(equation.operation)) if is_scan(equation) else len(equation.invars)
    by_program: dict[int, tuple[Body, list[int]]] = {}
    runs = of(equation).runs(equation.operation)
    for body in [runs] if runs is not None and runs.operands else bodies(equation):
        how = [1 if i in rounds else 2 if i >= slices else 0 for i in body.operands]
        by_program[id(body.program)] = (body, how)
    return by_program


def _results(program: Program) -> Iterator[Atom]:
    return chain.from_iterable([e.outvars for e in program.equations])


def _reads_reference(e: Equation) -> bool:
    return bool(e.invars) and not e.programs and bool(compat.is_ref(e.invars[0].aval))


@dataclass
class Variables:
    """The variables of all stages, by number.

    Args:
      stages: for each stage the numbers of its variables, in order; each stage counts on from the one before.
      programs: the programs of all stages; one that is called several times occurs once per call.
      stage_of: the stage of each program.
      holders: the equation that contains each program, or None at the top of a stage.
    """

    stages: Sequence[Mapping[Atom, int]]
    programs: Sequence[Program]
    stage_of: Sequence[int]
    holders: Sequence[Equation | None]

    def __post_init__(self) -> None:
        self.first: dict[Atom, int] = {}
        """For each variable its number in the first stage that has it."""
        for numbers in reversed(self.stages):
            self.first |= numbers
        self.size = sum(map(len, self.stages))
        self.joined: list[tuple[int, int]] = []
        """Variables that have the same value."""
        self.kin = [_VALUE] * self.size
        self.of = [-1] * self.size
        """For each variable one that it belongs to, such as the one whose tangent it is, or the result of the equation
        that it was derived from; or -1."""
        self.others: list[tuple[int, int, int]] = []
        """For variables that belong to several: the variable, another one that it belongs to, and the kind."""
        self.computed: set[int] = set()
        """The variables computed from values alone."""
        calls = Counter((stage, id(p)) for stage, p in zip(self.stage_of, self.programs, strict=True))
        self.calls: dict[int, int] = {}
        """How often a program is called, by identity; variables of one that is called several times have several
        values."""
        for (_, program), times in calls.items():
            self.calls[program] = max(times, self.calls.get(program, 0))
        self._read_relations()
        self._read_calls()
        self.values = self._values()
        """For each variable the first one with the same value."""
        self._read_rules()

    def _values(self) -> list[int]:
        first = map(self.first.__getitem__, chain.from_iterable(self.stages))
        values = np.fromiter(first, np.int64, self.size)
        a, b = np.array(self.joined, np.int64).reshape(-1, 2).T
        while True:
            while not np.array_equal(earlier := values[values], values):
                values = earlier
            ends = np.sort((values[a], values[b]), axis=0)
            low, high = ends[:, ends[0] < ends[1]]
            if not low.size:
                found: list[int] = values.tolist()
                return found
            np.minimum.at(values, high, low)

    @property
    def _unique(self) -> Iterator[Program]:
        return iter({id(p): p for p in self.programs}.values())

    def _read_relations(self) -> None:
        """Reads the relations recorded by the transforms."""
        first = self.first
        several = [p for p in self._unique if self.calls[id(p)] > 1]
        times = {v: self.calls[id(p)] for p in several for v in (*p.constvars, *p.invars, *_results(p))}
        branches = [b for p in self._unique for e in p.equations if is_choice(e) for _, b in e.programs]
        inputs = {v for p in branches for v in p.invars}
        self.held_apart = {v for p in self._unique for v in _results(p) if v in inputs} if inputs else set[Atom]()
        """Inputs of branches with known relations that are not their operands': residuals, where branches share a
        position."""
        for program in self._unique:
            for v, relation, whose in program.relations():
                i, j = first.get(v), first.get(whose)
                if i is None or j is None:
                    continue
                if relation == "value":
                    if not times or times.get(v, 1) == times.get(whose, 1):
                        self.joined.append((i, j))
                    else:  # a copy of a value in one of several calls
                        self._belongs(i, j, _COPY)
                    if v in inputs:
                        self.held_apart.add(v)
                elif self.of[i] >= 0:
                    self.others.append((i, j, _KIN[relation]))
                else:
                    self._belongs(i, j, _KIN[relation])

    def _belongs(self, i: int, j: int, kin: int) -> None:
        self.of[i] = j
        self.kin[i] = kin

    def _read_calls(self) -> None:
        """What a program receives unchanged, and returns unchanged, is the same value inside and outside, unless the
        program is called several times."""
        for program, holder in zip(self.programs, self.holders, strict=True):
            if holder is None or self.calls[id(program)] > 1 or of(holder).kind == "devices":
                continue
            body, how = handed_to(holder).get(id(program), (None, []))
            if body is None:
                continue
            for v, operand, handed in zip(program.invars, body.operands, how, strict=True):
                a = holder.invars[operand]
                if handed == 0 and a in self.first and not (body.branch is not None and v in self.held_apart):
                    self.joined.append((self.first[v], self.first[a]))
            if body.has_results and body.branch is None and not is_loop(holder):
                for v, a in zip(holder.outvars, program.outvars, strict=True):
                    if a in self.first:
                        self.joined.append((self.first[v], self.first[a]))

    def _read_rules(self) -> None:
        """The variables of a rule belong to the result of the rule's equation; in a transposition, to the operand to
        whose cotangent they lead, if there is only one. What is read from a mutable reference belongs to that."""
        first, values, kin, of = self.first, self.values, self.kin, self.of
        has_cotangent = {j for j, k in zip(of, kin, strict=True) if k == _COTANGENT}
        has_cotangent.update(j for _, j, k in self.others if k == _COTANGENT)
        stage_of = dict(zip(map(id, self.programs), self.stage_of, strict=True))
        reads: dict[Operation, bool] = {}
        for program in self._unique:
            # An equation with a nested program may serve tangents as a whole, while its known part does not.
            is_derived = STAGES[stage_of[id(program)]] in ("jvp", "linear", "backward")
            if not is_derived:
                self.computed.update(map(first.__getitem__, _results(program)))
            for e in program.equations:
                operation, origin = e.operation, e.origin
                if (is_read := reads.get(operation)) is None:
                    is_read = reads[operation] = _reads_reference(e)
                if is_read:
                    ref = first[e.invars[0]]
                    for i in [first[v] for v in e.outvars]:
                        of[i] = ref if of[i] < 0 and ref < i else of[i]
                role = origin.role if origin is not None else "primal"
                if is_derived and role in ("residual", "recomputation"):
                    self.computed.update([first[v] for v in e.outvars])
                if origin is None:
                    continue
                kind = _OF_ROLE.get(role, _VALUE) if is_derived else _VALUE
                source: Sequence[Atom] | None = None
                for k, v in enumerate(e.outvars):
                    i = first[v]
                    if kin[i] == _VALUE:
                        kin[i] = kind
                    if of[i] >= 0 or values[i] != i:
                        continue
                    if source is None:
                        source = self._source(e, kind, has_cotangent)
                    if source:
                        j = first.get(source[min(k, len(source) - 1)])
                        if j is not None and values[j] < i:
                            of[i] = j

    def _source(self, e: Equation, kin: int, has_cotangent: set[int]) -> Sequence[Atom]:
        known = self.first.keys()
        source = next((o for o in ancestors(e) if not known.isdisjoint(o.outvars)), None)
        if source is None:
            return ()
        if kin == _OF_COTANGENT:
            read = {a: None for a in source.invars if self.first.get(a) in has_cotangent}
            if len(read) == 1:
                return tuple(read)
        return source.outvars

    def columns(self) -> dict[str, Any]:
        """The columns of the wire format."""
        values, kins, of_each = (np.array(column, np.int64) for column in (self.values, self.kin, self.of))
        # A relation of one variable holds for all with the same value. The most certain one is written last.
        certainty = np.argsort(np.array(_CERTAIN))[kins]
        order = np.argsort(certainty, kind="stable")[::-1]
        is_known = np.isin(kins, (_TANGENT, _COTANGENT, _COPY))
        is_computed = np.zeros(self.size, bool)
        is_computed[values[list(self.computed)]] = True
        kin, of = np.full(self.size, _VALUE), np.full(self.size, -1)
        told = order[(is_known | ~is_computed[values])[order] & (kins != _VALUE)[order]]
        kin[values[told]] = kins[told]
        belongs = (of_each >= 0) & (values[of_each] < values)
        told = order[belongs[order]]
        of[values[told]] = of_each[told]
        of_value, of_told = values[of_each], of[values]
        others: dict[tuple[int, int], int] = {}
        differs = belongs & is_known & (of_told != of_each) & (values[of_told] != of_value)
        for i in order[differs[order]][::-1].tolist():
            others[self.values[i], int(of_value[i])] = self.kin[i]
        for i, j, k in self.others:
            v, j = self.values[i], self.values[j]
            if j < v and (of[v] < 0 or values[of[v]] != j):
                others.setdefault((v, j), k)
        return {
            "variable_value": values,
            "variable_kin": kin[values],
            "variable_of": of_told,
            "others_value": [v for v, _ in others],
            "others_of": [j for _, j in others],
            "others_kin": list(others.values()),
        }
