"""A `Derivation` as the columns that the explorer shows."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec, Sharding

from jaxviz.analysis.checkpoints import report_checkpoints
from jaxviz.analysis.counts import Cost
from jaxviz.analysis.devices import placement_of
from jaxviz.analysis.donation import donations_of
from jaxviz.analysis.memory import memory
from jaxviz.analysis.parts import flops_of
from jaxviz.analysis.residuals import ResidualSet
from jaxviz.analysis.tables import nbytes, type_text
from jaxviz.analysis.totals import call_path, path_to
from jaxviz.analysis.walk import location_of
from jaxviz.derivation import STAGES, Derivation
from jaxviz.ir import compat
from jaxviz.ir.origin import Location, ancestors, locate
from jaxviz.ir.pretty import printed_params, variable_names
from jaxviz.ir.syntax import Atom, DropVar, Equation, Literal, Origin, Program, Var
from jaxviz.views.schema import COLUMNS, KINDS, MEMORY_KINDS, ROLES, BranchPoint, CheckResult, Stage, View
from jaxviz.views.sources import SourceTable, without_folders
from jaxviz.views.texts import fit

_TITLES = {
    "primal": ("f", "the function itself"),
    "jvp": ("jvp", "inputs, tangents → results, tangents: both at once, nothing kept"),
    "forward": ("forward", "inputs → results, residuals: all the nonlinear work"),
    "linear": ("linear", "residuals, tangents → tangents: linear in the tangents"),
    "backward": ("backward", "residuals, cotangents → cotangents: the linear program transposed"),
}


_CELLS = (
    "equation_program", "equation_inputs", "equation_outputs", "equation_earlier", "equation_location", "equation_origin",
    "equation_decision", "equation_scope", "equation_twin",
)  # fmt: skip
_OF_OPERATION = ("equation_primitive", "equation_params", "equation_printed")
_OF_ORIGIN = ("equation_role", "equation_transform", "equation_rule")
"""Few operations and few kinds of origin are many equations': a row has the number of its own, and their cells stand in tables."""

_INNER_JIT = "this jit is called inside another, whose own donated arguments are what counts"


def view_of(derivation: Derivation, source: bool = True) -> View:
    """All that the explorer shows of a derivation.

    A stage that cannot be derived is shown with its error, and the others all the same.

    Args:
      derivation: its programs are made here if they have not been.
      source: whether the user's own source lines are embedded.
    """
    return ViewMaker(derivation, source).whole


class _Strings:
    """Numbers for strings, the same for the same string."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {"": 0}

    def __call__(self, text: str) -> int:
        found = self.number.get(text)
        if found is None:
            found = self.number[text] = len(self.number)
        return found


@contextmanager
def _all_kept() -> Iterator[None]:
    """Meanwhile nothing looks for garbage: of the hundreds of thousands of objects that are made there is none to find."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Kind(NamedTuple):
    """What is the same for all equations of one operation."""

    number: int
    is_plain: bool
    """Whether it names no axis, holds no program and is no call."""


class ViewMaker:
    """Makes the view of a derivation, in one go or in two: what is seen first, then what takes longer.

    Args:
      derivation: its programs are made here if they have not been.
      source: whether the user's own source lines are embedded.
    """

    def __init__(self, derivation: Derivation, source: bool = True):
        self.derivation = derivation
        self.columns: dict[str, Any] = {name: [] for name in COLUMNS}
        self.of_variables: tuple[list[int], ...] = tuple(
            self.columns[f"variable_{name}"] for name in ("name", "type", "label")
        )
        self.string = _Strings()
        self.sources = SourceTable(source)
        self.types: dict[Any, int] = {}
        self.locations: dict[Location, int] = {}
        self.located: dict[int, int] = {}
        """The location of an equation's `source`, by identity, if it has one of its own."""
        self.scoped: dict[int, int] = {}
        """The same for the functions called on the way to it, and its scopes."""
        self.atoms: dict[Atom, int] = {}
        """Those of the stage under way."""
        self.literals: dict[tuple[str, int], int] = {}
        self.kinds: dict[int, _Kind] = {}
        self.of_operations: list[tuple[int, ...]] = []
        self.flops: list[int] = []
        """Of each operation."""
        self.costs: dict[int, Cost] = {}
        self.origins: dict[tuple[str, str, str], int] = {}
        self.of_origins: list[tuple[int, ...]] = [(0, 0, 0)]
        self.rows: dict[Equation, int] = {}
        self.equations: list[tuple[int, ...]] = []
        """For each row the cells of `_CELLS`, then the numbers of its operation and of its kind of origin."""
        self.stage = 0
        self.names: dict[Var, str] = {}
        self.forward_names: dict[Var, str] = {}
        self.binders: list[list[int]] = []
        self.results: list[list[int]] = []
        self.decisions: dict[Equation, str] = {}

    @cached_property
    def first(self) -> View:
        """Without what is looked at later: the modelled memory, the notes, and the comparison with JAX, which traces the function anew."""
        try:
            with _all_kept():
                return self._first()
        except BaseException:
            # An interrupt leaves the columns half filled: they are begun anew by whoever asks again.
            self.__init__(self.derivation, self.sources.embed)  # type: ignore[misc]
            raise

    @cached_property
    def whole(self) -> View:
        """All of it. Rows, strings and all other numbers are those of `first`."""
        first = self.first
        with _all_kept():
            no_memory = self.add_memory()
            return replace(
                first,
                strings=tuple(self.string.number),
                columns=self.arrays(),
                check=self.check(),
                notes=self.notes(),
                no_memory=no_memory,
                is_whole=True,
            )

    def _first(self) -> View:
        self.decisions = _decisions(self.derivation)
        stages = tuple(self.add_stage(i, key) for i, key in enumerate(STAGES))
        self.add_residuals()
        add = self.columns
        rows = np.array(self.equations, dtype=np.int64).reshape(-1, len(_CELLS) + 2)
        *cells, operations, origins = np.ascontiguousarray(rows.T)
        add.update(zip(_CELLS, cells, strict=True))
        for names, table, numbers in (
            (_OF_OPERATION, self.of_operations, operations),
            (_OF_ORIGIN, self.of_origins, origins),
        ):
            columns = np.array(table, dtype=np.int64).reshape(-1, len(names)).T
            add.update((name, column[numbers]) for name, column in zip(names, columns, strict=True))
        add["equation_flops"] = np.array(self.flops, dtype=np.float64)[operations]
        for offsets, values, lists in (
            ("program_binders", "binder_vars", self.binders),
            ("program_results", "result_atoms", self.results),
        ):
            add[offsets] = [0, *np.cumsum([len(x) for x in lists]).tolist()]
            add[values] = [i for x in lists for i in x]
        for offsets, values in (
            ("equation_inputs", "input_atoms"),
            ("equation_outputs", "output_vars"),
            ("residual_consumers", "consumer_rows"),
        ):
            add[offsets] = np.append(np.asarray(add[offsets], dtype=np.int64), len(add[values]))
        branches = tuple(
            BranchPoint(self.sources.number(b.location), b.location.line, b.kind, str(b.value))
            for b in self.derivation.primal.branches
            if b.location is not None
        )
        placement = placement_of(self.derivation)
        return View(
            title=self.derivation.primal.name,
            stages=stages,
            strings=tuple(self.string.number),
            columns=self.arrays(),
            files=self.sources.files(),
            branches=branches,
            devices=placement.devices,
            placement=str(placement),
            is_whole=False,
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """The columns, each turned into an array once."""
        for name, values in self.columns.items():
            if not isinstance(values, np.ndarray):
                self.columns[name] = np.fromiter(values, np.int64, len(values))
        return dict(self.columns)

    def check(self) -> CheckResult:
        try:
            found = self.derivation.check()
        except Exception as error:
            return CheckResult("unknown", "not compared with JAX", (first_line(error),))
        return CheckResult("agrees" if found.agrees else "differs", found.summary, found.differences)

    def notes(self) -> tuple[str, ...]:
        try:
            residuals: ResidualSet = self.derivation.residuals
        except Exception as error:
            return (f"no residuals: {first_line(error)}",)
        return residuals.notes

    # --- programs -----------------------------------------------------------------------------------------------------

    def add_stage(self, index: int, key: str) -> Stage:
        label, title = _TITLES[key]
        programs, equations = len(self.binders), len(self.equations)
        try:
            program: Program = getattr(self.derivation, key)
        except Exception as error:
            return Stage(key, label, title, (programs, programs), (equations, equations), first_line(error))
        self.stage = index
        self.atoms = {}
        self.names = variable_names(program, self.residual_names() if key in ("linear", "backward") else None)
        if key == "forward":
            self.forward_names = self.names
        self.add_program(program, -1, "", ())
        n_programs, n_equations = len(self.binders), len(self.equations)
        return Stage(key, label, title, (programs, n_programs), (equations, n_equations), "", program.is_path)

    def residual_names(self) -> dict[Var, str]:
        """Names from the listing of the forward program, for the inputs of the linear one that are its residuals."""
        parts, forward = self.derivation.linearized, self.forward_names
        pairs = zip(parts.residuals, parts.linear.invars, strict=False)
        return {var: forward[a] for a, var in pairs if isinstance(a, Var) and a in forward}

    def add_program(self, program: Program, owner: int, label: str, within: tuple[Equation, ...]) -> None:
        add = self.columns
        number = len(self.binders)
        add["program_stage"].append(self.stage)
        add["program_owner"].append(owner)
        add["program_label"].append(self.string(label))
        add["program_consts"].append(len(program.constvars))
        names = self.input_labels(program) if owner < 0 else ("",) * len(program.invars)
        self.binders.append(
            [self.variable(v) for v in program.constvars]
            + [self.variable(v, name) for v, name in zip(program.invars, names, strict=True)]
        )
        self.results.append([])
        self.add_equations(program.equations, number, within)
        self.results[number] = [self.atom(a) for a in program.outvars]

    def input_labels(self, program: Program) -> tuple[str, ...]:
        """For each input of a stage what it is: the path of an argument, how a residual is made, or whose tangent or cotangent it is."""
        stage, derivation = STAGES[self.stage], self.derivation
        if stage in ("primal", "forward"):
            return program.arg_names
        names = derivation.primal.arg_names
        tangents = [
            f"tangent of {name or f'input {i}'}"
            for i, (name, nonzero) in enumerate(zip(names, derivation.nonzeros, strict=True))
            if nonzero
        ]
        if stage == "jvp":
            return (*names, *tangents)
        if stage == "backward":
            nonzeros_out = derivation.linearized.nonzeros_out
            tangents = [f"cotangent of result {i}" for i, nonzero in enumerate(nonzeros_out) if nonzero]
        return (*(f"residual {residual.expression}" for residual in derivation.residuals), *tangents)

    def add_equations(self, equations: Sequence[Equation], program: int, within: tuple[Equation, ...]) -> None:
        add, rows, cells, known = self.columns, self.rows, self.equations, self.atoms
        inputs, outputs = add["input_atoms"], add["output_vars"]
        for equation in equations:
            row = len(cells)
            twin = rows.setdefault(equation, row)
            kind = self.kinds.get(id(equation.operation)) or self.kind(equation)
            origin, before, earlier = 0, -1, 0
            if equation.origin is not None:
                made = equation.origin
                origin = self.origins.get((made.role, made.transform, made.rule)) or self.origin(made)
                if made.equation is not None:
                    found = rows.get(made.equation)
                    before, earlier = (found, 0) if found is not None else self.earlier(equation)
            n_inputs, n_outputs = len(inputs), len(outputs)
            for a in equation.invars:
                i = known.get(a)
                inputs.append(self.atom(a) if i is None else i)
            for v in equation.outvars:
                i = known.get(v)
                outputs.append(self.new_variable(v) if i is None else i)
            location = self.located.get(id(equation.source), -1)
            if location < 0:
                location = self.location_of(equation, within)
            scope = self.scoped.get(id(equation.source), -1)
            if scope < 0:
                scope = self.scope_of(equation)
            decision = self.string(self.decisions[equation]) if equation in self.decisions else 0
            cells.append(
                (
                    program, n_inputs, n_outputs, earlier, location, before, decision, scope, -1 if twin == row else twin,
                    kind.number, origin,
                )
            )  # fmt: skip
            if not kind.is_plain:
                self.add_more(equation, row, within)

    def add_more(self, equation: Equation, row: int, within: tuple[Equation, ...]) -> None:
        """What few equations have: axes, layouts, donations, programs."""
        add = self.columns
        if compat.axis_names(equation.params):
            add["axis_rows"].append(row)
            add["axis_exchanges"].append(int(compat.exchanges(equation.primitive)))
        if equation.primitive is compat.shard_map_p:
            add["layout_rows"].append(row)
            add["layout_texts"].append(self.string("\n".join(_layouts(equation.params))))
        if equation.primitive is compat.jit_p:
            self.add_donations(equation, row, within)
        for label, nested in equation.programs:
            self.add_program(nested, row, label, (*within, equation))

    def kind(self, equation: Equation) -> _Kind:
        is_plain = not equation.programs and not compat.axis_names(equation.params)
        params = self.string("\n".join(visible_params(equation)))
        kind = self.kinds[id(equation.operation)] = _Kind(len(self.of_operations), is_plain)
        printed = self.string("\n".join(printed_params(equation.operation)))
        self.of_operations.append((self.string(equation.primitive.name), params, printed))
        self.flops.append(flops_of(equation, self.costs))
        return kind

    def origin(self, origin: Origin) -> int:
        number = self.origins[origin.role, origin.transform, origin.rule] = len(self.of_origins)
        cells = (ROLES.index(origin.role), self.string(origin.transform), self.string(origin.rule))
        self.of_origins.append(cells)
        return number

    def add_donations(self, equation: Equation, row: int, within: tuple[Equation, ...]) -> None:
        is_inner = any(e.primitive is compat.jit_p for e in within)
        for donation in donations_of(equation.operation):
            add = self.columns
            add["donation_rows"].append(row)
            add["donation_operands"].append(donation.argument)
            add["donation_results"].append(-1 if is_inner or donation.result is None else donation.result)
            add["donation_reasons"].append(self.string(_INNER_JIT if is_inner else donation.reason))

    def earlier(self, equation: Equation) -> tuple[int, int]:
        """The row of the first of the equations it came from that is shown, and, as a string, what made those that are not:
        those of a function that was derived itself."""
        made: list[str] = []
        for e in ancestors(equation):
            if e in self.rows:
                return self.rows[e], self.string("\n".join(made))
            if e.origin is None:
                break
            made.append(f"{e.origin.rule} ({e.origin.transform})")
        return -1, self.string("\n".join(made))

    # --- tables -------------------------------------------------------------------------------------------------------

    def atom(self, atom: Atom) -> int:
        found = self.atoms.get(atom)
        if found is None:
            found = ~self.literal(atom) if isinstance(atom, Literal) else self.variable(atom)
            self.atoms[atom] = found
        return found

    def variable(self, var: Var, label: str = "") -> int:
        found = self.atoms.get(var)
        return self.new_variable(var, label) if found is None else found

    def new_variable(self, var: Var, label: str = "") -> int:
        names, types, labels = self.of_variables
        found = self.atoms[var] = len(names)
        name = "_" if isinstance(var, DropVar) else self.names.get(var, "_")
        names.append(self.string(name))
        aval = var.aval
        known = self.types.get(aval)
        types.append(self.type(aval) if known is None else known)
        labels.append(self.string(label) if label else 0)
        return found

    def literal(self, literal: Literal) -> int:
        key = (_literal_text(literal), self.type(literal.aval))
        found = self.literals.get(key)
        if found is None:
            found = self.literals[key] = len(self.literals)
            self.columns["literal_text"].append(self.string(key[0]))
            self.columns["literal_type"].append(key[1])
        return found

    def type(self, aval: Any) -> int:
        found = self.types.get(aval)
        if found is None:
            found = self.types[aval] = len(self.types)
            self.columns["type_text"].append(self.string(type_text(aval)))
            self.columns["type_nbytes"].append(nbytes(aval))
            self.columns["type_per_device"].append(_per_device(aval))
        return found

    def location(self, location: Location | None) -> int:
        if location is None:
            return -1
        found = self.locations.get(location)
        if found is None:
            found = self.locations[location] = len(self.locations)
            self.columns["location_file"].append(self.sources.number(location))
            self.columns["location_line"].append(location.line)
            self.columns["location_function"].append(self.string(location.function))
        return found

    def location_of(self, equation: Equation, within: tuple[Equation, ...]) -> int:
        """The location of an equation, or of the call it stands in. Equations share what says where they are from."""
        own = locate(equation.source)
        if own is not None:
            found = self.located[id(equation.source)] = self.location(own)
            return found
        return self.location(location_of(equation, within))

    def scope_of(self, equation: Equation) -> int:
        own = path_to(equation.source)
        if own:
            found = self.scoped[id(equation.source)] = self.string(own)
            return found
        return self.string(call_path(equation))

    # --- residuals ----------------------------------------------------------------------------------------------------

    def add_residuals(self) -> None:
        try:
            residuals: ResidualSet = self.derivation.residuals
        except Exception:  # `notes` says why
            return
        add = self.columns
        for r in residuals:
            add["residual_name"].append(self.string(r.name))
            add["residual_type"].append(self.string(r.type))
            add["residual_nbytes"].append(r.nbytes)
            add["residual_per_device"].append(-1 if r.nbytes_per_device is None else r.nbytes_per_device)
            add["residual_dummy"].append(r.nbytes if r.dummies else 0)
            add["residual_kind"].append(KINDS.index(r.kind))
            add["residual_location"].append(self.location(r.location))
            add["residual_scope"].append(self.string(r.scope))
            add["residual_module"].append(self.string(r.module))
            add["residual_rule"].append(self.string(r.rule))
            add["residual_reason"].append(self.string(r.reason))
            add["residual_decision"].append(self.string(r.decision))
            add["residual_producer"].append(self.rows.get(r.producer, -1) if r.producer is not None else -1)
            add["residual_consumers"].append(len(add["consumer_rows"]))
            add["consumer_rows"].extend(self.rows[e] for e in r.consumers if e in self.rows)
        add["residual_buffer"] = [-1] * len(residuals)

    # --- memory -------------------------------------------------------------------------------------------------------

    def add_memory(self) -> str:
        """The steps and the buffers of the modelled memory; or why there are none."""
        try:
            timeline = memory(self.derivation)
        except Exception as error:
            return first_line(error)
        add = self.columns
        names = ("step_row", *(name for name in COLUMNS if name.startswith("buffer_")))
        add.update({name: [] for name in names})
        buffers = [-1] * len(add["residual_name"])
        add["residual_buffer"] = buffers
        places = {key: dict(self.places(key)) for key in ("forward", "backward")}
        for step in timeline.steps:
            stage = "backward" if step.is_backward else "forward"
            add["step_row"].append(places[stage][*step.within, step.equation])
        for i, value in enumerate(timeline.values):
            add["buffer_nbytes"].append(value.nbytes)
            add["buffer_kind"].append(MEMORY_KINDS.index(value.kind))
            add["buffer_born"].append(value.born)
            add["buffer_last"].append(value.last)
            add["buffer_row"].append(add["step_row"][value.born] if value.equation is not None else -1)
            add["buffer_name"].append(self.string(value.what))
            add["buffer_type"].append(self.string(value.type))
            for residual in value.residuals:
                buffers[residual] = i
        return ""

    def places(self, key: str) -> Iterator[tuple[tuple[Equation, ...], int]]:
        """Each equation of a stage after those that hold it, outermost first, with its row."""
        start = self.first.stage(key).equations[0]
        numbers = count(start)

        def walk(program: Program, within: tuple[Equation, ...]) -> Iterator[tuple[tuple[Equation, ...], int]]:
            for equation in program.equations:
                place = (*within, equation)
                yield place, next(numbers)
                for _, nested in equation.programs:
                    yield from walk(nested, place)

        return walk(getattr(self.derivation, key), ())


def _decisions(derivation: Derivation) -> dict[Equation, str]:
    """What checkpoint policies decided of the equations of the function, for those that stand in a checkpoint."""
    try:
        reports = report_checkpoints(derivation)
    except Exception:  # a program that cannot be linearized; its stage shows the error
        return {}
    found: dict[Equation, dict[str, None]] = {}
    for report in reports:
        for value in report.values:
            if value.equation is not None:
                found.setdefault(value.equation, {})[f"{value.fate} (policy {report.policy})"] = None
    return {equation: "; ".join(texts) for equation, texts in found.items()}


def _literal_text(literal: Literal) -> str:
    try:
        return str(np.asarray(literal.val).item())
    except (TypeError, ValueError):
        return str(literal.val)


def visible_params(equation: Equation) -> list[str]:
    """`name=value` for each param that says something, axes first; of a jit its name and shardings, of a shard_map `i=8` for its axes."""
    if equation.primitive is compat.jit_p:
        asked = (n for n in ("in_shardings", "out_shardings") if any(map(_is_sharding, equation.params[n])))
        return [f"name={equation.params.get('name', '')}", *(f"{n}={_param_text(equation.params[n])}" for n in asked)]
    if equation.primitive is compat.shard_map_p:
        return _shard_map_params(equation.params)
    shown: list[str] = []
    nested = {label.split("[")[0] for label, _ in equation.programs}
    names = sorted(equation.params, key=lambda name: not compat.axis_names({name: equation.params[name]}))
    for name in names:
        value = equation.params[name]
        if name not in nested and value is not None:
            shown.append(f"{name}={_param_text(value)}")
    return shown


def _shard_map_params(params: Mapping[str, Any]) -> list[str]:
    mesh, axes, others = params["mesh"], *_mapped_axes(params)
    shown = [_mesh_text(mesh, axes)]
    if others:
        shown.append(f"others=({_mesh_text(mesh, others)})")
    if not params["check_vma"]:
        shown.append("check_vma=False")
    return shown + [f"{name}={_param_text(params[name])}" for name in ("in_specs", "out_specs")]


def _mapped_axes(params: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """The axes of its mesh that a shard_map maps over, and those that it leaves alone and nothing around it maps over."""
    mesh, mapped = params["mesh"], params["newly_manual_axes"]
    types = zip(mesh.axis_names, mesh.axis_types, strict=True)
    others = [a for a, kind in types if a not in mapped and kind != AxisType.Manual]
    return [a for a in mesh.axis_names if a in mapped], others


def _mesh_text(mesh: Any, axes: Iterable[Any]) -> str:
    return " ".join(f"{a}={mesh.shape[a]}" for a in axes)


def _layouts(params: Mapping[str, Any]) -> list[str]:
    """What runs the body of a shard_map, then how each operand and each result is laid out."""
    axes, others = _mapped_axes(params)
    place = f"place along {', '.join(map(str, axes))}" if others else "device"
    return [place, *map(_spec_text, (*params["in_specs"], *params["out_specs"]))]


def _spec_text(spec: Any) -> str:
    return str(spec).replace(",)", ")")


def _per_device(aval: Any) -> int:
    """Bytes on one device of a value that its type lays out over some, or -1."""
    sharding = getattr(aval, "sharding", None)
    if sharding is None or all(part is None for part in sharding.spec):
        return -1
    return int(math.prod(sharding.shard_shape(aval.shape)) * aval.dtype.itemsize)


def _param_text(value: Any, limit: int = 200) -> str:
    name = None if hasattr(value, "dtype") else getattr(value, "__name__", None)
    text = " ".join(str(name or _layout_text(value)).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _is_sharding(value: Any) -> bool:
    return isinstance(value, Sharding)


def _layout_text(value: Any) -> Any:
    """A sharding, a spec or a tuple of them in short; anything else as it is."""
    if isinstance(value, PartitionSpec):
        return _spec_text(value)
    if isinstance(value, NamedSharding):
        kind = value.memory_kind
        where = f" in {kind}" if kind not in (None, "device") else ""
        return f"{_spec_text(value.spec)} over {_mesh_text(value.mesh, value.mesh.axis_names)}{where}"
    if value is compat.UNSPECIFIED:
        return "_"
    if isinstance(value, tuple) and any(isinstance(v, (PartitionSpec, NamedSharding)) for v in value):
        return f"({', '.join(str(_layout_text(v)) for v in value)})"
    return value


def first_line(error: BaseException) -> str:
    """`NoRuleError: ...`, the first paragraph of the message, on one line; of the files that it names the names alone."""
    if isinstance(error, RecursionError):
        limit = sys.getrecursionlimit()
        return f"RecursionError: programs are nested too deep here for Python's limit of {limit:,}; sys.setrecursionlimit raises it"
    message = str(error).strip().split("\n\n")[0].replace("\n", " ")
    text: str = fit(f"{type(error).__name__}: {without_folders(message)}")
    return text
