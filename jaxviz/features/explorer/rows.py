"""The programs of all stages and their equations, a row for each.

There may be a hundred thousand rows, so columns are built one at a time, and what equations of one kind share is
computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count, filterfalse
from typing import Any

import numpy as np

from jaxviz.analysis.donation import Donation, donations_of
from jaxviz.analysis.grouping import alike, grouped, pattern, repetitions
from jaxviz.analysis.implied import exchange_text, implied
from jaxviz.analysis.kinds import Kinds
from jaxviz.features.cost.counts import Cost
from jaxviz.features.cost.parts import remembered
from jaxviz.features.explorer.numbers import Numbers, shared
from jaxviz.features.explorer.relations import Variables, handed_to
from jaxviz.higher_order import is_scan, of, scan_length
from jaxviz.higher_order.jit import JIT
from jaxviz.higher_order.shard_map import SHARD_MAP
from jaxviz.ir import compat, primitives
from jaxviz.ir.origin import ancestors
from jaxviz.ir.pretty import printed_params
from jaxviz.ir.syntax import Atom, Equation, Operation, Origin, Program, Var
from jaxviz.page.params import called, layouts, visible_params
from jaxviz.page.schema import ROLES

_INNER_JIT = "this jit is called inside another jit, and only the donated arguments of the outer one count"

_ROLE = {role: i for i, role in enumerate(ROLES)}

_NO_ORIGIN = Origin(None, "", "", "primal")

_ByKind = tuple[list[Equation], np.ndarray]
"""The first equation of each kind, in order, and for each equation the index of its kind's."""


class Rows:
    """The rows of all stages: `add_stage` for each, then `finish`."""

    def __init__(self, columns: dict[str, Any], numbers: Numbers, kinds: Kinds):
        self.columns = columns
        self.numbers = numbers
        self.kinds = kinds
        self.programs: list[Program] = []
        self.owners: list[int] = []
        """For each program the row that contains it, or -1."""
        self.equations: list[Equation] = []
        self.stages: list[dict[Atom, int]] = []
        """For each stage the numbers of its variables."""
        self.program_of: list[int] = []
        """For each row the number of its program."""
        self.first: dict[Equation, int] = {}
        """For each equation the first row that shows it; set by `finish`."""
        self.holders = np.zeros(0, np.int64)
        """For each row the one that contains its program, or -1; set by `finish`."""

    # --- stages -------------------------------------------------------------------------------------------------------

    def add_stage(self, stage: int, program: Program, names: Mapping[Var, str], labels: Sequence[str]) -> None:
        """Adds the programs, rows and variables of a stage, with the names of variables and the labels of inputs."""
        first_program, first_row = len(self.programs), len(self.equations)
        self._add_program(stage, program, -1)
        programs, equations = self.programs[first_program:], self.equations[first_row:]
        binders = [v for p in programs for v in (*p.constvars, *p.invars)]
        outputs = list(chain.from_iterable([e.outvars for e in equations]))
        inputs = list(chain.from_iterable([e.invars for e in equations]))
        results = list(chain.from_iterable([p.outvars for p in programs]))
        label_of = dict(zip(program.invars, labels, strict=True))
        variables = self._add_variables(list(dict.fromkeys(binders + outputs)), names, label_of)
        self.stages.append(variables)
        number = variables.copy()
        for a in dict.fromkeys(filterfalse(number.__contains__, chain(inputs, results))):
            number[a] = ~self.numbers.literal(a)  # type: ignore[arg-type]
        for name, atoms in (
            ("binder_vars", binders), ("output_vars", outputs), ("input_atoms", inputs), ("result_atoms", results),
        ):  # fmt: skip
            self.columns[name] += map(number.__getitem__, atoms)

    def _add_program(
        self, stage: int, program: Program, owner: int, label: str = "", name: str = "", length: int = 0
    ) -> None:
        add, number, start = self.columns, len(self.programs), 0
        self.programs.append(program)
        self.owners.append(owner)
        add["program_stage"].append(stage)
        add["program_label"].append(self.numbers.string(label))
        add["program_name"].append(self.numbers.string(name))
        add["program_length"].append(length)
        add["program_consts"].append(len(program.constvars))
        for i in [i for i, e in enumerate(program.equations) if e.operation.programs]:
            self._add_equations(number, program.equations[start : i + 1])
            start, row = i + 1, len(self.equations) - 1
            equation = program.equations[i]
            length = scan_length(equation) if is_scan(equation) else 0
            for nested_label, nested in equation.programs:
                self._add_program(stage, nested, row, nested_label, called(equation), length)
        self._add_equations(number, program.equations[start:])

    def _add_equations(self, program: int, equations: Sequence[Equation]) -> None:
        self.equations += equations
        self.program_of += [program] * len(equations)

    def _add_variables(
        self, variables: Sequence[Var], names: Mapping[Var, str], labels: Mapping[Var, str]
    ) -> dict[Atom, int]:
        add, string = self.columns, self.numbers.string
        start = len(add["variable_name"])
        add["variable_name"] += string.all([names.get(v, "_") for v in variables])
        add["variable_type"] += self.numbers.types([v.aval for v in variables])
        number: dict[Atom, int] = {v: i for i, v in enumerate(variables, start)}
        for name in ("variable_label", "variable_labels"):
            add[name] += [0] * len(variables)
        for v, label in labels.items():
            add["variable_label"][number[v]] = string(label)
        for same in grouped(filter(labels.get, labels), lambda v: pattern(labels[v])):
            together = string(alike([labels[v] for v in same]))
            for v in same:
                add["variable_labels"][number[v]] = together
        return number

    # --- cells --------------------------------------------------------------------------------------------------------

    def finish(self, decisions: Mapping[Equation, str]) -> None:
        """Fills the columns of programs and of equations.

        Args:
          decisions: what checkpoint policies decided for equations.
        """
        add, programs, equations, string = self.columns, self.programs, self.equations, self.numbers.string
        add["program_owner"] = self.owners
        add["equation_program"] = self.program_of
        for name, sizes in (
            ("program_binders", [len(p.constvars) + len(p.invars) for p in programs]),
            ("program_results", [len(p.outvars) for p in programs]),
            ("equation_inputs", [len(e.invars) for e in equations]),
            ("equation_outputs", [len(e.outvars) for e in equations]),
        ):
            add[name] = np.cumsum([0, *sizes])
        n = len(equations)
        self.holders = np.array(self.owners, np.int64)[self.program_of]
        first = np.fromiter(map(self.first.setdefault, equations, count()), np.int64, n)
        add["equation_twin"] = np.where(first == np.arange(n), -1, first)
        by_kind = examples, of_row = self._by_kind(equations)
        add["equation_location"] = self._locations(by_kind)
        add["equation_scope"] = self.numbers.paths_to(examples)[of_row]
        add["equation_decision"] = (
            string.all([decisions.get(e, "") for e in equations]) if decisions else [0] * len(equations)
        )
        self._add_operations(by_kind)
        self._add_origins(by_kind)
        self._add_operands()
        self._add_no_relations()
        add["equation_group"] = np.arange(n)

    def add_repetitions(self) -> None:
        """Which equations are of one expression in repeated layers, calls and iterations."""
        self.columns["equation_group"] = repetitions(self.equations, self.holders.tolist(), self.kinds)

    def label_inputs(self, program: int, labels: Sequence[int]) -> None:
        """Describes the first inputs of a program, with strings."""
        start = int(self.columns["program_binders"][program]) + len(self.programs[program].constvars)
        variables = np.asarray(self.columns["binder_vars"])[start : start + len(labels)]
        column = np.array(self.columns["variable_label"])
        column[variables] = labels
        self.columns["variable_label"] = column

    def _add_operands(self) -> None:
        """The operands that nested programs are called with."""
        operands, handed = self.columns["binder_operands"], self.columns["binder_handed"]
        for program, holder in zip(self.programs, self._program_holders, strict=True):
            body, how = (None, []) if holder is None else handed_to(holder).get(id(program), (None, []))
            n = len(program.constvars)
            operands += [-1] * n + (list(body.operands) if body is not None else [-1] * len(program.invars))
            handed += [0] * n + (how or [0] * len(program.invars))

    @property
    def _program_holders(self) -> list[Equation | None]:
        """For each program the equation that contains it, or None at the top of a stage."""
        return [None if owner < 0 else self.equations[owner] for owner in self.owners]

    def _add_no_relations(self) -> None:
        """No relations between variables, until `add_relations` is called."""
        n = len(self.columns["variable_name"])
        self.columns.update(
            variable_value=np.arange(n),
            variable_kin=np.zeros(n, np.int64),
            variable_of=np.full(n, -1),
            others_value=[],
            others_of=[],
            others_kin=[],
        )

    def add_relations(self) -> None:
        """Which variables have the same value, and which are tangents and cotangents of others: visible only when a
        value is selected."""
        stage_of = self.columns["program_stage"]
        if isinstance(stage_of, np.ndarray):
            stage_of = stage_of.tolist()
        self.columns.update(Variables(self.stages, self.programs, stage_of, self._program_holders).columns())

    def _by_kind(self, equations: Sequence[Equation]) -> _ByKind:
        kinds = self.kinds.all(equations)
        _, first, which = np.unique(kinds, return_index=True, return_inverse=True)
        in_order = np.argsort(first)
        return [equations[i] for i in first[in_order].tolist()], np.argsort(in_order)[which]

    def _locations(self, by_kind: _ByKind) -> np.ndarray:
        """The user's line of each equation, or of an enclosing one; a library's if none of them has one."""
        examples, of_row = by_kind
        places = self._inherited(self.numbers.own_lines_of(examples)[of_row])
        rest = np.flatnonzero(places < 0)
        examples, of_rest = self._by_kind([self.equations[row] for row in rest.tolist()])
        places[rest] = self.numbers.locations_of(examples)[of_rest]
        return self._inherited(places)

    def _inherited(self, places: np.ndarray) -> np.ndarray:
        """Equations without a value get that of the nearest enclosing equation that has one."""
        holders = self.holders.copy()
        while (rest := np.flatnonzero((places < 0) & (holders >= 0))).size:
            places[rest], holders[rest] = places[holders[rest]], self.holders[holders[rest]]
        return places

    def _add_operations(self, by_kind: _ByKind) -> None:
        """The columns that depend on the operation."""
        operations, of_kind = shared([e.operation for e in by_kind[0]])
        examples = dict(zip(of_kind.tolist(), by_kind[0], strict=True))
        of_row = of_kind[by_kind[1]]
        string, costs = self.numbers.string, dict[int, Cost]()
        cells = (
            string.all([operation.primitive.name for operation in operations]),
            string.all(["\n".join(visible_params(e)) for e in examples.values()]),
            string.all(["\n".join(printed_params(operation)) for operation in operations]),
        )
        self._add_shared(("equation_primitive", "equation_params", "equation_printed"), cells, of_row)
        counted = [remembered(e, costs) for e in examples.values()]
        for name, figures in (("flops", [c.flops for c in counted]), ("moved", [c.nbytes for c in counted])):
            self.columns[f"equation_{name}"] = np.array(figures, np.float64)[of_row]
        few = np.array([_has_more(operation) for operation in operations], bool)
        for row in np.flatnonzero(few[of_row]).tolist():
            self._add_more(row, self.equations[row].operation)

    def _add_more(self, row: int, operation: Operation) -> None:
        """The columns that few equations have: axes, implied exchanges, layouts, donations, calls, trip counts."""
        add = self.columns
        if compat.axis_names(operation.params):
            add["axis_rows"].append(row)
            add["axis_exchanges"].append(int(primitives.exchanges(operation.primitive)))
        elif exchanged := implied(operation):
            add["implied_rows"].append(row)
            add["implied_texts"].append(self.numbers.string("\n".join(map(exchange_text, exchanged))))
        if of(operation) is SHARD_MAP:
            add["layout_rows"].append(row)
            add["layout_texts"].append(self.numbers.string("\n".join(layouts(operation.params))))
        for donation in _donations(operation):
            is_inner = any(of(e) is JIT for e in self._holders(row))
            add["donation_rows"].append(row)
            add["donation_operands"].append(donation.argument)
            add["donation_results"].append(-1 if is_inner or donation.result is None else donation.result)
            add["donation_reasons"].append(self.numbers.string(_INNER_JIT if is_inner else donation.reason))

    def _holders(self, row: int) -> Iterator[Equation]:
        """The enclosing equations of a row, innermost first."""
        while (row := int(self.holders[row])) >= 0:
            yield self.equations[row]

    def _add_origins(self, by_kind: _ByKind) -> None:
        """The columns that depend on the origin."""
        string, origins = self.numbers.string, [e.origin or _NO_ORIGIN for e in by_kind[0]]
        roles = [_ROLE[o.role] for o in origins]
        transforms, rules = string.all([o.transform for o in origins]), string.all([o.rule for o in origins])
        names = ("equation_role", "equation_transform", "equation_rule")
        self._add_shared(names, (roles, transforms, rules), by_kind[1])
        first, equations = self.first, self.equations
        of_origins = [None if e.origin is None else e.origin.equation for e in equations]
        rows = np.array([-1 if e is None else first.get(e, -1) for e in of_origins], np.int64)
        earlier = np.zeros(len(rows), np.int64)
        is_derived = np.array([o.equation is not None for o in origins], bool)[by_kind[1]]
        for row in np.flatnonzero((rows < 0) & is_derived).tolist():
            rows[row], earlier[row] = self._earlier(of_origins[row])  # type: ignore[arg-type]
        self.columns.update(equation_origin=rows, equation_earlier=earlier)

    def _earlier(self, equation: Equation) -> tuple[int, int]:
        """For an equation whose origin is not shown, the row of its nearest origin that is, or -1; and, as a string,
        what rules it and the origins in between: these belong to a derived function."""
        rules: list[str] = []
        for e in (equation, *ancestors(equation)):
            if e in self.first:
                return self.first[e], self.numbers.string("\n".join(rules))
            if e.origin is None:
                break
            rules.append(f"{e.origin.rule} ({e.origin.transform})")
        return -1, self.numbers.string("\n".join(rules))

    def _add_shared(self, names: Sequence[str], cells: Sequence[Sequence[int]], of_row: np.ndarray) -> None:
        """Fills columns of values that rows share: their distinct cells, and the index of each row's cell."""
        for name, column in zip(names, cells, strict=True):
            self.columns[name] = np.array(column, np.int64)[of_row]

    # --- places -------------------------------------------------------------------------------------------------------

    def places(self, rows: tuple[int, int]) -> dict[tuple[int, Equation], int]:
        """The row of each equation of a stage, by the row that contains its program, or -1, and the equation."""
        equations = self.equations[slice(*rows)]
        return dict(zip(zip(self.holders[slice(*rows)].tolist(), equations, strict=True), range(*rows), strict=True))


def _has_more(operation: Operation) -> bool:
    is_of_devices = compat.axis_names(operation.params) or of(operation) is SHARD_MAP or implied(operation)
    return bool(is_of_devices or _donations(operation))


def _donations(operation: Operation) -> Sequence[Donation]:
    return donations_of(operation) if of(operation) is JIT else ()
