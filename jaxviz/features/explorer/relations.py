"""Relations between the variables of a derivation: equal values, tangents and cotangents, and the operands of nested
programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from jaxviz.derivation import STAGES
from jaxviz.higher_order import Body, bodies, carried, is_choice, is_loop, is_scan, of
from jaxviz.ir import compat
from jaxviz.ir.origin import ancestors
from jaxviz.ir.syntax import Atom, Equation, Program
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
    return (v for e in program.equations for v in e.outvars)


@dataclass
class Variables:
    """The variables of all stages, by number.

    Args:
      stages: for each stage the numbers of its atoms; literals have negative numbers.
      programs: the programs of all stages; one that is called several times occurs once per call.
      stage_of: the stage of each program.
      holders: the equation that contains each program, or None at the top of a stage.
    """

    stages: Sequence[dict[Atom, int]]
    programs: Sequence[Program]
    stage_of: Sequence[int]
    holders: Sequence[Equation | None]

    def __post_init__(self) -> None:
        self.first: dict[Atom, int] = {}
        """For each variable its number in the first stage that has it."""
        self.size = 0
        for numbers in self.stages:
            for a, i in numbers.items():
                if i >= 0:
                    self.first.setdefault(a, i)
                    self.size += 1
        self.parents = list(range(self.size))
        for numbers in self.stages:
            for a, i in numbers.items():
                if i >= 0:
                    self.parents[i] = self.first[a]
        self.kin = [_VALUE] * self.size
        self.of: dict[int, int] = {}
        """For each variable one that it belongs to, such as the one whose tangent it is, or the result of the equation
        that it was derived from."""
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
        self._read_rules()

    def value(self, i: int) -> int:
        """The first variable with the same value."""
        parents = self.parents
        while parents[i] != i:
            parents[i] = parents[parents[i]]
            i = parents[i]
        return i

    def _join(self, i: int, j: int) -> None:
        i, j = sorted((self.value(i), self.value(j)))
        self.parents[j] = i

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
                        self._join(i, j)
                    else:  # a copy of a value in one of several calls
                        self._belongs(i, j, _COPY)
                    if v in inputs:
                        self.held_apart.add(v)
                elif i in self.of:
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
                    self._join(self.first[v], self.first[a])
            if body.has_results and body.branch is None and not is_loop(holder):
                for v, a in zip(holder.outvars, program.outvars, strict=True):
                    if a in self.first:
                        self._join(self.first[v], self.first[a])

    def _read_rules(self) -> None:
        """The variables of a rule belong to the result of the rule's equation; in a transposition, to the operand to
        whose cotangent they lead, if there is only one. What is read from a mutable reference belongs to that."""
        first = self.first
        has_cotangent = {j for i, j in self.of.items() if self.kin[i] == _COTANGENT}
        has_cotangent.update(j for _, j, kin in self.others if kin == _COTANGENT)
        stage_of = dict(zip(map(id, self.programs), self.stage_of, strict=True))
        for program in self._unique:
            # An equation with a nested program may serve tangents as a whole, while its known part does not.
            is_derived = STAGES[stage_of[id(program)]] in ("jvp", "linear", "backward")
            for e in program.equations:
                role = e.origin.role if e.origin is not None else "primal"
                if not is_derived or role in ("residual", "recomputation"):
                    self.computed.update([first[v] for v in e.outvars])
                if e.invars and not e.programs and compat.is_ref(e.invars[0].aval):
                    ref = first[e.invars[0]]
                    self.of |= {first[v]: ref for v in e.outvars if first[v] not in self.of and ref < first[v]}
                if e.origin is None:
                    continue
                kin = _OF_ROLE.get(role, _VALUE) if is_derived else _VALUE
                of: Sequence[Atom] | None = None
                for k, v in enumerate(e.outvars):
                    i = first[v]
                    if self.kin[i] == _VALUE:
                        self.kin[i] = kin
                    if i in self.of or self.value(i) != i:
                        continue
                    if of is None:
                        of = self._source(e, kin, has_cotangent)
                    if of:
                        j = first.get(of[min(k, len(of) - 1)])
                        if j is not None and self.value(j) < i:
                            self.of[i] = j

    def _source(self, e: Equation, kin: int, has_cotangent: set[int]) -> Sequence[Atom]:
        source = next((o for o in ancestors(e) if any(v in self.first for v in o.outvars)), None)
        if source is None:
            return ()
        if kin == _OF_COTANGENT:
            read = {a: None for a in source.invars if self.first.get(a) in has_cotangent}
            if len(read) == 1:
                return tuple(read)
        return source.outvars

    def columns(self) -> dict[str, list[int]]:
        """The columns of the wire format."""
        values = [self.value(i) for i in range(self.size)]
        # A relation of one variable holds for all with the same value.
        of: dict[int, int] = {}
        kin = [_VALUE] * self.size
        computed = {values[i] for i in self.computed}
        others: dict[tuple[int, int], int] = {}
        certainty = np.argsort(np.array(_CERTAIN))[np.array(self.kin, np.int64)]
        for i in np.argsort(certainty, kind="stable").tolist():
            k, v, j = self.kin[i], values[i], self.of.get(i, -1)
            if k in (_TANGENT, _COTANGENT) and not kin[v]:
                kin[v] = k
            elif v not in computed or k == _COPY:
                kin[v] = kin[v] or k
            if j < 0 or values[j] >= v:
                continue
            if of.setdefault(v, j) != j and k in (_TANGENT, _COTANGENT, _COPY) and values[of[v]] != values[j]:
                others[v, values[j]] = k
        for i, j, k in self.others:
            v, j = values[i], values[j]
            if j < v and (v not in of or values[of[v]] != j):
                others.setdefault((v, j), k)
        return {
            "variable_value": values,
            "variable_kin": [kin[v] for v in values],
            "variable_of": [of.get(v, -1) for v in values],
            "others_value": [v for v, _ in others],
            "others_of": [j for _, j in others],
            "others_kin": list(others.values()),
        }
