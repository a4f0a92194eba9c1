"""A `Derivation` as the columns that the explorer shows."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec, Sharding

from jaxviz.analysis.checkpoints import report_checkpoints
from jaxviz.analysis.cost import flops_of
from jaxviz.analysis.counts import Cost
from jaxviz.analysis.devices import placement_of
from jaxviz.analysis.donation import donations_of
from jaxviz.analysis.memory import memory
from jaxviz.analysis.residuals import ResidualSet
from jaxviz.analysis.tables import nbytes, type_text
from jaxviz.analysis.totals import call_path
from jaxviz.analysis.walk import location_of
from jaxviz.derivation import STAGES, Derivation
from jaxviz.ir import compat
from jaxviz.ir.origin import Location, ancestors
from jaxviz.ir.pretty import printed_params, variable_names
from jaxviz.ir.syntax import Atom, DropVar, Equation, Literal, Program, Var
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


_INNER_JIT = "this jit is called inside another, whose own donated arguments are what counts"


def view_of(derivation: Derivation, source: bool = True) -> View:
    """All that the explorer shows of a derivation.

    A stage that cannot be derived is shown with its error, and the others all the same.

    Args:
      derivation: its programs are made here if they have not been.
      source: whether the user's own source lines are embedded.
    """
    return _Columns(derivation, source).view()


class _Strings:
    """Numbers for strings, the same for the same string."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {"": 0}

    def __call__(self, text: str) -> int:
        return self.number.setdefault(text, len(self.number))


class _Columns:
    def __init__(self, derivation: Derivation, source: bool):
        self.derivation = derivation
        self.columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self.string = _Strings()
        self.sources = SourceTable(source)
        self.types: dict[Any, int] = {}
        self.locations: dict[Location, int] = {}
        self.variables: dict[tuple[int, Var], int] = {}
        self.literals: dict[tuple[str, int], int] = {}
        self.rows: dict[Equation, int] = {}
        self.places: dict[tuple[str | Equation, ...], int] = {}
        """The row of an equation by its stage, forward or backward, and the equations that hold it, outermost first."""
        self.stage = 0
        self.names: dict[Var, str] = {}
        self.binders: list[list[int]] = []
        self.results: list[list[int]] = []
        self.params: dict[int, int] = {}
        self.printed: dict[int, int] = {}
        self.costs: dict[int, Cost] = {}
        self.notes: list[str] = []
        self.decisions = _decisions(derivation)

    def view(self) -> View:
        stages = tuple(self.add_stage(i, key) for i, key in enumerate(STAGES))
        self.add_residuals()
        no_memory = self.add_memory()
        for offsets, values, lists in (
            ("program_binders", "binder_vars", self.binders),
            ("program_results", "result_atoms", self.results),
        ):
            self.columns[offsets] = [0, *np.cumsum([len(x) for x in lists]).tolist()]
            self.columns[values] = [i for x in lists for i in x]
        for offsets, values in (
            ("equation_inputs", "input_atoms"),
            ("equation_outputs", "output_vars"),
            ("residual_consumers", "consumer_rows"),
        ):
            self.columns[offsets].append(len(self.columns[values]))
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
            columns={name: np.asarray(values) for name, values in self.columns.items()},
            files=self.sources.files(),
            branches=branches,
            check=self.check(),
            notes=tuple(self.notes),
            devices=placement.devices,
            placement=str(placement),
            no_memory=no_memory,
        )

    def check(self) -> CheckResult:
        try:
            found = self.derivation.check()
        except Exception as error:
            return CheckResult("unknown", "not compared with JAX", (first_line(error),))
        return CheckResult("agrees" if found.agrees else "differs", found.summary, found.differences)

    # --- programs -----------------------------------------------------------------------------------------------------

    def add_stage(self, index: int, key: str) -> Stage:
        label, title = _TITLES[key]
        programs, equations = len(self.binders), len(self.columns["equation_program"])
        try:
            program: Program = getattr(self.derivation, key)
        except Exception as error:
            return Stage(key, label, title, (programs, programs), (equations, equations), first_line(error))
        self.stage = index
        self.names = variable_names(program, self.residual_names() if key in ("linear", "backward") else None)
        self.add_program(program, -1, "", ())
        n_programs, n_equations = len(self.binders), len(self.columns["equation_program"])
        return Stage(key, label, title, (programs, n_programs), (equations, n_equations), "", program.is_path)

    def residual_names(self) -> dict[Var, str]:
        """Names from the listing of the forward program, for the inputs of the linear one that are its residuals."""
        parts = self.derivation.linearized
        forward = variable_names(parts.forward)
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
        for equation in program.equations:
            self.add_equation(equation, number, within)
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

    def add_equation(self, equation: Equation, program: int, within: tuple[Equation, ...]) -> None:
        add = self.columns
        row = len(add["equation_program"])
        twin = self.rows.setdefault(equation, row)
        if STAGES[self.stage] in ("forward", "backward"):
            self.places.setdefault((STAGES[self.stage], *within, equation), row)
        origin = equation.origin
        add["equation_program"].append(program)
        add["equation_primitive"].append(self.string(equation.primitive.name))
        add["equation_params"].append(self.params_text(equation))
        add["equation_printed"].append(self.printed_text(equation))
        add["equation_inputs"].append(len(add["input_atoms"]))
        add["input_atoms"].extend([self.atom(a) for a in equation.invars])
        add["equation_outputs"].append(len(add["output_vars"]))
        add["output_vars"].extend([self.variable(v) for v in equation.outvars])
        add["equation_role"].append(ROLES.index(origin.role) if origin else 0)
        add["equation_transform"].append(self.string(origin.transform if origin else ""))
        add["equation_rule"].append(self.string(origin.rule if origin else ""))
        add["equation_earlier"].append(self.string("\n".join(self.earlier(equation))))
        add["equation_location"].append(self.location(location_of(equation, within)))
        source = next((self.rows[e] for e in ancestors(equation) if e in self.rows), -1)
        add["equation_origin"].append(source)
        add["equation_decision"].append(self.string(self.decisions.get(equation, "")))
        add["equation_scope"].append(self.string(call_path(equation)))
        add["equation_flops"].append(flops_of(equation, self.costs))
        add["equation_twin"].append(-1 if twin == row else twin)
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

    def add_donations(self, equation: Equation, row: int, within: tuple[Equation, ...]) -> None:
        is_inner = any(e.primitive is compat.jit_p for e in within)
        for donation in donations_of(equation.operation):
            add = self.columns
            add["donation_rows"].append(row)
            add["donation_operands"].append(donation.argument)
            add["donation_results"].append(-1 if is_inner or donation.result is None else donation.result)
            add["donation_reasons"].append(self.string(_INNER_JIT if is_inner else donation.reason))

    def earlier(self, equation: Equation) -> Iterator[str]:
        """What made the equations that it came from, up to one that is shown: those of a function that was derived itself."""
        for e in ancestors(equation):
            if e in self.rows or e.origin is None:
                return
            yield f"{e.origin.rule} ({e.origin.transform})"

    # --- tables -------------------------------------------------------------------------------------------------------

    def atom(self, atom: Atom) -> int:
        return ~self.literal(atom) if isinstance(atom, Literal) else self.variable(atom)

    def variable(self, var: Var, label: str = "") -> int:
        key = (self.stage, var)
        found = self.variables.get(key)
        if found is None:
            found = self.variables[key] = len(self.variables)
            name = "_" if isinstance(var, DropVar) else self.names.get(var, "_")
            self.columns["variable_name"].append(self.string(name))
            self.columns["variable_type"].append(self.type(var.aval))
            self.columns["variable_label"].append(self.string(label))
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

    def params_text(self, equation: Equation) -> int:
        key = id(equation.operation)
        if key not in self.params:
            self.params[key] = self.string("\n".join(visible_params(equation)))
        return self.params[key]

    def printed_text(self, equation: Equation) -> int:
        """What JAX prints between the brackets."""
        key = id(equation.operation)
        if key not in self.printed:
            self.printed[key] = self.string("\n".join(printed_params(equation.operation)))
        return self.printed[key]

    # --- residuals ----------------------------------------------------------------------------------------------------

    def add_residuals(self) -> None:
        try:
            residuals: ResidualSet = self.derivation.residuals
        except Exception as error:
            self.notes.append(f"no residuals: {first_line(error)}")
            return
        self.notes.extend(residuals.notes)
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

    # --- memory -------------------------------------------------------------------------------------------------------

    def add_memory(self) -> str:
        """The steps and the buffers of the modelled memory; or why there are none."""
        add = self.columns
        buffers = [-1] * len(add["residual_name"])
        add["residual_buffer"] = buffers
        try:
            timeline = memory(self.derivation)
        except Exception as error:
            return first_line(error)
        for step in timeline.steps:
            stage = "backward" if step.is_backward else "forward"
            add["step_row"].append(self.places[stage, *step.within, step.equation])
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
