"""Recording: what is run, and what of it becomes a record."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.analysis.addressed import AddressedValue, addressed_values, gradient_left_out, takes_gradient
from jaxviz.analysis.addresses import Address, AddressError, address, resolve
from jaxviz.analysis.probed import also_in_probes
from jaxviz.analysis.step_run import StepRun
from jaxviz.analysis.training_step import TrainingStep, is_loss, trace_training_step
from jaxviz.analysis.written import address_of
from jaxviz.arguments import Argnums, flat_arguments, positions
from jaxviz.derivation import Derivation
from jaxviz.features.values.dataflow import Dataflow, orders_of
from jaxviz.features.values.inputs import RecordedArguments, data_of, type_of, with_constants
from jaxviz.features.values.records import (
    GRADIENT,
    RESULT,
    Order,
    RecordedValue,
    RunRecord,
)
from jaxviz.features.values.summaries import (
    NORM,
    Move,
    columns,
    finished,
    last_place,
    last_place_in,
    moved,
    moves,
    noise_of,
    packed_together,
    unpacked,
)
from jaxviz.features.values.tapped import (
    Found,
    TappedPasses,
    TappedRun,
    Taps,
    inside_all,
    is_differentiable,
    number_of,
    places_with_tangents,
    returns_number,
    run_with_taps,
    tapped_passes,
)
from jaxviz.higher_order import is_loop
from jaxviz.higher_order.observing import Path as Around
from jaxviz.higher_order.observing import Place, walk_observed
from jaxviz.higher_order.rounding import OtherDigits
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.syntax import Atom, Equation, Program
from jaxviz.ir.trace import trace_call, with_fixed
from jaxviz.ir.usage import check_values
from jaxviz.report.tables import listed, short_location
from jaxviz.runtime.evaluate import evaluate
from jaxviz.transforms.driver import select, with_results

# --- recording --------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class RecordedPart:
    """A program whose values are recorded: a function, or in a training step one that it differentiates, or the rest.

    Args:
      program: the program.
      values: those that are recorded.
      number: from its results to what is differentiated; None if that is nothing.
      differentiated: the inputs in which it is.
      is_rest: whether it is what a step computes besides its gradients.
      returns: whether its results and its gradient are recorded, which whoever calls it gets.
      path: the equations around it in a step.
    """

    program: Program
    values: Sequence[AddressedValue]
    number: Callable[[Sequence[Any]], Any] | None = None
    differentiated: Sequence[int] = ()
    is_rest: bool = False
    returns: bool = True
    path: Around = ()

    _groups: list[list[list[int]]] = field(default_factory=list, init=False)

    @property
    def taps(self) -> Taps:
        places = [v.place for v in self.values]
        linked = self._with_tangents if self.differentiated else None
        return Taps(places, columns, only_inside=not self.path, linked=linked)

    @cached_property
    def _with_tangents(self) -> frozenset[Place]:
        """The values that have cotangents, as in `jax.grad`: of others, as of what follows a `stop_gradient`, none is
        computed."""
        return places_with_tangents(self.program, [v.place for v in self.values], self.differentiated)

    def packed(self, ran: TappedRun) -> list[list[Any]]:
        """The summaries of its values, of their cotangents, of its results and of its gradient, those of small arrays
        of one type in one array."""
        packed: list[list[Any]] = []
        self._groups = []
        for left in (ran.values, ran.cotangents):
            found = {i: left[v.place] for i, v in enumerate(self.values) if v.place in left}
            inside = {i: x for i, x in found.items() if self.path or self.values[i].path}
            groups, outermost = packed_together({i: x for i, x in found.items() if i not in inside})
            self._groups.append([*groups, *([i] for i in inside)])
            packed.append([*outermost, *inside.values()])
        gradient = dict(zip(self.differentiated, ran.gradient.values(), strict=True)) if ran.gradient else {}
        for of in (data_of(ran.results), gradient) if self.returns else ({}, {}):
            groups, of_whole = packed_together(of)
            self._groups.append(groups)
            packed.append(of_whole)
        return packed

    def unpacked(self, packed: Sequence[Sequence[Any]]) -> list[dict[int, Any]]:
        """The summaries of its values, by number, those of their cotangents, of its results and of its gradient."""
        return [unpacked(groups, arrays) for groups, arrays in zip(self._groups, packed, strict=True)]

    def around(self) -> list[tuple[list[Order], Around]]:
        """Where its forward and its backward pass are in a step, for each value; the loops around each."""
        return [([()] * len(self.values), ())] * 2

    @cached_property
    def _orders(self) -> list[Order]:
        return orders_of(self.program, [(v.path, v.equation, v.aval) for v in self.values])

    @cached_property
    def _flow(self) -> Dataflow:
        return Dataflow(self.program, self.values, self._orders)

    @cached_property
    def _names(self) -> list[tuple[str, tuple[str, ...]]]:
        return [_named(address_of(self.program, v)) for v in self.values]

    def rows(self, ran: Sequence[Sequence[Sequence[Any]]], runs: Sequence[Move]) -> Iterator[RecordedValue]:
        """What was recorded.

        Args:
          ran: what `run` gave for the arguments, and for others in which the last digits differ. Without these there is
            no noise.
          runs: how these were moved.
        """
        of_runs = list(map(self.unpacked, ran))
        orders, flow, names = self._orders, self._flow, self._names

        def measured(i: int, j: int, aval: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
            """Its summaries, and their noise."""
            size = math.prod(aval.shape) * (2 if jnp.issubdtype(aval.dtype, jnp.complexfloating) else 1)
            summaries, *moved_to = (finished(of[i][j], size) for of in of_runs)
            return summaries, noise_of(summaries, moved_to, runs)

        around = self.around()
        for i, (phase, read) in enumerate((("forward", flow.of_values), ("cotangent", flow.of_cotangents))):
            of_each, outer = around[i]
            for j, (v, order, before) in enumerate(zip(self.values, orders, of_each, strict=True)):
                if j not in of_runs[0][i]:
                    continue
                yield RecordedValue(
                    *names[j],
                    v.equation.primitive.name,
                    "step" if self.is_rest else phase,
                    len(order) if self.is_rest else len(before),
                    v.name,
                    v.line,
                    type_of(v.aval),
                    (*before, *order),
                    tuple(short_location(e.location) for e in (*outer, *v.loops)),
                    tuple([((*before, *of), steps) for of, steps in read[j]]),
                    *measured(i, j, v.aval),
                )
        known = dict(zip(orders, zip(self.values, names, strict=True), strict=True))
        arguments: dict[Atom, str] = dict(zip(self.program.invars, self.program.arg_names, strict=True))
        n, end = len(self.program.outvars), len(self.program.equations)
        for j in sorted(of_runs[0][2]):
            atom, computed_from = self.program.outvars[j], flow.of_results[j]
            which = f"result {j + 1} of {n}" if n > 1 else "the result"
            text, expression, line = "", arguments.get(atom, ""), ""
            if len(computed_from) == 1:
                v, (text, _) = known[computed_from[0][0]]
                expression, line = v.name, v.line
            what = expression, line, type_of(atom.aval), (end + j,), (), computed_from
            yield RecordedValue(text, (), which, RESULT, 0, *what, *measured(2, j, atom.aval))
        for j in sorted(of_runs[0][3]):
            atom = self.program.invars[j]
            which = f"the gradient in `{arguments[atom] or f'argument {j}'}`"
            what = "", "", type_of(atom.aval), flow.order_of_input(j), (), flow.of_gradient[j]
            yield RecordedValue("", (), which, GRADIENT, 0, *what, *measured(3, j, atom.aval))


@dataclass(eq=False)
class GradientPart(RecordedPart):
    """A function that a step differentiates, whose passes also return what is recorded.

    Args:
      derivation: of the function.
      has_cotangents: whether they are recorded.
      step: the program of the step with these passes.
      passes: their calls in it, the forward and with cotangents the backward pass, with the equations around each.
    """

    derivation: Derivation = field(kw_only=True)
    has_cotangents: bool = field(kw_only=True)
    step: Program = field(init=False)
    passes: list[tuple[Equation, Around]] = field(init=False)

    @cached_property
    def tapped(self) -> TappedPasses:
        with inside_all(self.path):
            taps = self.taps if self.has_cotangents else replace(self.taps, linked=())
            return tapped_passes(self.derivation, self.program, taps)

    def found_in(self, run: StepRun, mark: int) -> None:
        """Notes where the passes of the gradient are in a step."""
        self.step, forward, backward = run.program, run.calls(mark, True), run.calls(mark, False)
        self.passes = [*forward, *(backward if self.has_cotangents else [])]

    @property
    def leaving(self) -> list[dict[Place, Place]]:
        """Where the step has what its passes return of values, and of cotangents."""
        start, linked = len(self.program.outvars), self.tapped.linked
        of_each: list[dict[Place, Place]] = [{}, {}]
        for of, places, (e, path) in zip(of_each, (self.tapped.places, linked), self.passes, strict=False):
            more = e.outvars[len(e.outvars) - len(linked) if of is of_each[1] else start :]
            of.update((place, (path, v)) for place, v in zip(places, more, strict=False))
        return of_each

    def ran(self, value_at: Callable[[Place], Any]) -> TappedRun:
        """What has left, given what is at these places of the step."""
        values, cotangents = ({p: value_at(there) for p, there in of.items()} for of in self.leaving)
        linked = self.taps.linked
        for p, x in values.items() if len(self.passes) > 1 else ():
            if p not in cotangents and is_differentiable(p[1].aval) and (linked is None or p in linked):
                cotangents[p] = jnp.zeros_like(x)  # no result depends on it
        return TappedRun([], values, cotangents)

    def around(self) -> list[tuple[list[Order], Around]]:
        values, cotangents = self.leaving
        of_passes = []
        for of, (e, path) in zip(({}, cotangents), (self.passes[0], self.passes[-1]), strict=True):
            variables = [of.get(v.place, values[v.place])[1] for v in self.values]
            orders = orders_of(self.step, [(path, e, v.aval) for v in variables])
            of_passes.append((orders, tuple(e for e in path if is_loop(e))))
        return of_passes


@dataclass(eq=False)
class PreparedRecord:
    """A traced function, whose calls can be recorded.

    What rounding may change is measured in the first call, and again in the second, the third, the fifth and so on, and
    where a value was zero; between, it grows with a value, and never shrinks.

    Args:
      program: the function.
      parts: what is recorded of it.
      run: from constants and flat inputs to the flat results, and what `RecordedPart.packed` has of each part.
      inputs: the flat inputs of a call.
      note: what is not recorded.
      out_tree: of the results.
      compiled: whether it runs as one program, or operation by operation.
      constants: what it closes over that rounding may change.
    """

    program: Program
    parts: Sequence[RecordedPart]
    run: Callable[..., tuple[Sequence[Any], list[Any]]]
    inputs: Callable[[tuple[Any, ...], dict[str, Any]], Sequence[Any]]
    note: str
    out_tree: Any
    compiled: bool = True
    constants: Sequence[Any] = ()

    _n: int = field(default=0, init=False)
    _runs: dict[bool, tuple[OtherDigits, Callable[..., Any]]] = field(default_factory=dict, init=False)
    _measured: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = field(default_factory=list, init=False)

    @property
    def is_path(self) -> bool:
        """Whether it holds for these values alone, since Python looks at them."""
        return any(p.program.is_path for p in self.parts)

    @cached_property
    def _arguments(self) -> RecordedArguments:
        return RecordedArguments(self.program.arg_names, self.program.in_avals)

    @cached_property
    def _coarsest(self) -> float:
        return last_place_in(self.program)

    @cached_property
    def _moves(self) -> list[Move]:
        avals = (*map(compat.aval_of, self.constants), *self.program.in_avals)
        return moves(self._coarsest, [last_place([a]) for a in avals])

    def run_once(self, inputs: Sequence[Any], move: Move | None = None, returns: bool = False) -> Any:
        """One run: the flat results if they are wanted, then summaries of the flat inputs, then what `run` has of each
        part.

        Args:
          move: other last digits to compute with, in what it computes; the inputs are moved already.
          returns: whether the results are wanted.
        """
        if returns not in self._runs:
            self._runs[returns] = self._run_of(inputs, returns)
        digits, run = self._runs[returns]
        return run(*inputs, *(digits.inputs(move.seed, move.times) if move is not None else digits.inputs()))

    def _run_of(self, inputs: Sequence[Any], returns: bool) -> tuple[OtherDigits, Callable[..., Any]]:
        def call(inputs: Sequence[Any]) -> Any:
            results, ran = self.run(inputs)
            return results if returns else (), self._arguments.packed(inputs[len(self.constants) :]), ran

        traced = jax.jit(call).trace(inputs)
        digits, tree = OtherDigits(read_jaxpr(traced.jaxpr)), jax.tree.structure(traced.out_info)
        run = lambda *inputs: jax.tree.unflatten(tree, evaluate(digits.program, inputs))
        return digits, jax.jit(run) if self.compiled else run

    def record(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RunRecord:
        return self.recorded(args, kwargs)[0]

    def recorded(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], number: int = 0,
        returned: Mapping[int, Any] | None = None, once: bool = False,
    ) -> tuple[RunRecord, Any]:  # fmt: skip
        """The record of a call, and with `once` what the function returns in the run that it is of.

        Args:
          number: of the call.
          returned: what earlier calls have returned, by `id`.
        """
        given = self.inputs(args, kwargs)
        is_carried = [x is (returned or {}).get(id(x)) for x in given]
        # A number of Python is rounded too.
        inputs = [*self.constants, *(jnp.asarray(x) if isinstance(x, (float, complex)) else x for x in given)]
        results, *summaries = self.run_once(inputs, returns=once)
        ran = [jax.device_get(summaries)]
        rows = self._rows(ran)
        if self._n & (self._n - 1) == 0 or any(
            np.any((before == 0) & (row.summaries[..., NORM] > 0))
            for row, (before, _) in zip(rows, self._measured, strict=True)
        ):
            for move in self._moves:
                ran.append(jax.device_get(self.run_once(moved(inputs, *move), move, once)[1:]))
            rows = self._rows(ran)
            self._measured = [(row.summaries[..., NORM], row.noise) for row in rows]
        else:
            rows = [replace(row, noise=_scaled(row, *m)) for row, m in zip(rows, self._measured, strict=True)]
        self._n += 1
        arguments = tuple(self._arguments.rows(ran[0][0], is_carried))
        of_phase = lambda *phases: tuple(row for row in rows if row.phase in phases)
        values = of_phase("forward", "cotangent", "step")
        of_call = _environment(), self.note, number, arguments, self._coarsest, of_phase(RESULT), of_phase(GRADIENT)
        record = RunRecord(self.program.name, values, *of_call)
        return record, jax.tree.unflatten(self.out_tree, results) if once else None

    def _rows(self, ran: Sequence[Any]) -> list[RecordedValue]:
        of_parts = zip(*(of_run for _, of_run in ran), strict=True)
        return [row for p, of_part in zip(self.parts, of_parts, strict=True) for row in p.rows(of_part, self._moves)]


def _laid_out(program: Program, results: Sequence[Any]) -> list[Any]:
    """Results laid out as `out_shardings` asks, if a program is one call of a jitted function."""
    asked = [e.params.get("out_shardings") for e in program.equations]
    if len(asked) != 1 or not asked[0] or program.equations[0].outvars != program.outvars:
        return list(results)
    is_given = lambda s: isinstance(s, jax.sharding.Sharding)
    pairs = zip(results, asked[0], strict=True)
    return [jax.lax.with_sharding_constraint(x, s) if is_given(s) else x for x, s in pairs]


def _scaled(row: RecordedValue, before: np.ndarray[Any, Any], noise: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The noise of a value, of which it was measured when the value had another norm."""
    with np.errstate(divide="ignore", invalid="ignore"):
        grown = np.nan_to_num(row.summaries[..., NORM] / before, nan=1, posinf=1)
    scaled: np.ndarray[Any, Any] = noise * np.maximum(grown, 1)[..., None]
    return scaled


def prepared(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], cotangents: bool | None, has_aux: bool,
    argnums: Argnums = 0, at: Sequence[Address] = (), compiled: bool = True,
    change: Callable[[Program], Program] | None = None,
) -> PreparedRecord:  # fmt: skip
    """Traces a call, to record it and others of the same types; see `record`.

    Args:
      compiled: whether it runs as one program, or operation by operation.
      change: what is done first to the program that is differentiated.
    """
    return also_in_probes(at, lambda: _prepared(fun, args, kwargs, cotangents, has_aux, argnums, at, compiled, change))


def _prepared(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], cotangents: bool | None, has_aux: bool,
    argnums: Argnums, at: Sequence[Address], compiled: bool, change: Callable[[Program], Program] | None,
) -> PreparedRecord:  # fmt: skip
    check_values("record", (args, kwargs))
    is_input = [compat.is_array_like(x) for x in jax.tree.leaves((args, kwargs))]
    if all(is_input):
        traced = trace_call(fun, args, kwargs)
    else:  # a model of Equinox holds functions
        call_of_arrays, arrays, info = with_fixed(fun, args, kwargs, is_input)
        traced = trace_call(call_of_arrays, arrays, debug_info=info)
    program, note = traced.program, ""
    if not has_aux and not is_loss(program) and takes_gradient(program):
        step = trace_training_step(fun, args, kwargs)
        if isinstance(step, TrainingStep):
            return _of_step(StepRun(step), cotangents is not False, at, compiled, change)
        note = _not_recorded(step) if step else gradient_left_out(program.name)
    program = program if change is None else change(program)
    found = Found(program, traced.out_tree, {a: resolve(program, a) for a in at})
    if cotangents is None:
        cotangents = returns_number(found, has_aux)
    number = number_of(found, has_aux, "record with cotangents=True") if cotangents else None
    differentiated = _differentiated(fun, args, kwargs, argnums, is_input, program.in_avals) if cotangents else []
    part = RecordedPart(program, _meant(program, at), number, differentiated)
    inputs = lambda args, kwargs: select(is_input, jax.tree.leaves((args, kwargs)))
    taking, constants = with_constants(program)

    def call(inputs: Sequence[Any]) -> tuple[Sequence[Any], list[Any]]:
        ran = run_with_taps(taking, inputs, part.taps, number, [len(constants) + i for i in differentiated])
        ran = replace(ran, gradient={}) if at else ran
        return _laid_out(traced.program, ran.results), [part.packed(ran)]

    return PreparedRecord(traced.program, [part], call, inputs, note, traced.out_tree, compiled, constants)


def _differentiated(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums,
    is_input: Sequence[bool], avals: Sequence[Any],
) -> list[int]:  # fmt: skip
    """The inputs of a program in which it is differentiated: those of `argnums` that hold real numbers, or if none of
    these does, all that do."""
    chosen = positions(fun, args, argnums) if args else ()
    _, _, is_chosen, _ = flat_arguments(args, kwargs, chosen)
    may_be = [not compat.is_ref(a) and is_differentiable(a) for a in avals]
    found = [i for i, (c, d) in enumerate(zip(select(is_input, is_chosen), may_be, strict=True)) if c and d]
    return found or [i for i, d in enumerate(may_be) if d]


def _meant(program: Program, at: Sequence[Address]) -> list[AddressedValue]:
    """The values that addresses mean, or all."""
    if not at:
        return list(addressed_values(program))
    return list({v.place: v for a in at for v in resolve(program, a).values}.values())


def _of_step(
    run: StepRun, cotangents: bool, at: Sequence[Address], compiled: bool, change: Callable[[Program], Program] | None
) -> PreparedRecord:  # fmt: skip
    """A training step, recorded as the functions that it differentiates, on what it gives them, and the rest."""
    step, program = run.step, run.program
    notes = [_not_recorded(step.not_followed)] if step.not_followed else []
    gradients: dict[int, GradientPart] = {}
    programs = dict(walk_observed(program))
    for mark, d in enumerate(step.gradients):
        calls = run.calls(mark, True)
        if len(calls) != 1 or calls[0][1] not in programs:
            notes.append(f"The {d.gradient} was not recorded, since values do not leave the place where it is taken.")
            continue
        ((_, path),), around = calls, [path for _, path in run.calls(mark, False)]
        is_one = len(around) == 1 and not step.is_mapped(mark)
        has_cotangents = is_one and around[0] in programs and bool(around[0]) == bool(path)
        if cotangents and not has_cotangents:
            notes.append(f"No cotangents of the {d.gradient} were recorded, since its backward pass does not run once.")
        primal = d.primal if change is None else change(d.primal)
        inputs = list(compress(range(len(primal.invars)), d.nonzeros)) if cotangents and has_cotangents else []
        gradients[mark] = GradientPart(
            primal, list(addressed_values(primal)), differentiated=inputs, returns=False, path=path, derivation=d,
            has_cotangents=cotangents and has_cotangents,
        )  # fmt: skip
    left: dict[Address, AddressError | None] = dict.fromkeys(at)
    for part in gradients.values() if at else ():
        left = _keep(left, part)
    gradients = {mark: part for mark, part in gradients.items() if part.values}
    tapped = StepRun(step, {mark: part.tapped.passes for mark, part in gradients.items()})
    program = tapped.program
    for mark, part in gradients.items():
        part.found_in(tapped, mark)
    others = [v for v in addressed_values(program) if not any(map(tapped.is_pass, (*v.path, v.equation)))]
    rest = RecordedPart(program, others, is_rest=True)
    for a, error in _keep(left, rest).items() if at else ():
        raise error or AddressError(f"{a.text!r} is in a gradient of {program.name} that is not recorded.")
    return _step_with_taps(tapped, rest, list(gradients.values()), " ".join(notes), compiled)


def _step_with_taps(
    run: StepRun, rest: RecordedPart, gradients: Sequence[GradientPart], note: str, compiled: bool
) -> PreparedRecord:
    program, n = run.program, len(run.program.outvars)
    leaving = [place for part in gradients for of in part.leaving for place in of.values()]
    outermost = [place for place in leaving if not place[0]]
    taps = replace(rest.taps, as_they_are=[place for place in leaving if place[0]])
    calls = [e for part in gradients for e, path in part.passes if e.outvars and not path]
    opened = frozenset() if compiled else frozenset(e.outvars[0] for e in calls)
    taking, constants = with_constants(with_results(program, (*program.outvars, *(v for _, v in outermost))))

    def call(inputs: Sequence[Any]) -> tuple[Sequence[Any], list[Any]]:
        ran = run_with_taps(taking, inputs, taps, None, opened=opened)
        left = {**ran.values, **dict(zip(outermost, ran.results[n:], strict=True))}
        of_rest = replace(ran, results=ran.results[:n])
        results = _laid_out(run.step.traced, of_rest.results)
        return results, [*(p.packed(p.ran(left.__getitem__)) for p in gradients), rest.packed(of_rest)]

    parts, step = [*gradients, rest], run.step
    return PreparedRecord(program, parts, call, step.inputs_of, note, step.out_tree, compiled, constants)


def _not_recorded(gradients: Sequence[str]) -> str:
    return f"Not recorded: {listed(gradients)}."


def _keep(at: Mapping[Address, AddressError | None], part: RecordedPart) -> dict[Address, AddressError | None]:
    """Keeps of a part of a step only what addresses mean; returns those that mean nothing in it, each with the first
    error."""
    chosen: dict[AddressedValue, None] = {}
    left: dict[Address, AddressError | None] = {}
    for a, error in at.items():
        found: list[AddressedValue] = []
        try:
            found = [v for v in resolve(part.program, a).values if v in part.values]
        except AddressError as new:
            error = error or new
        chosen.update(dict.fromkeys(found))
        if not found:
            left[a] = error
    part.values = list(chosen)
    return left


def _named(a: Address) -> tuple[str, tuple[str, ...]]:
    """The text of an address, and those of its evidence that people read."""
    texts = a.written.texts if a.written is not None else ()
    return a.text, tuple(t for t in texts if not t.startswith("form "))


def _environment() -> dict[str, str]:
    return {"jax": compat.JAX, "platform": jax.default_backend(), "x64": str(jax.config.jax_enable_x64)}


@api_boundary
def record(
    fun: Callable[..., Any], *args: Any, argnums: Argnums = 0, cotangents: bool | None = None, has_aux: bool = False,
    at: Sequence[Any] = (), **kwargs: Any,
) -> RunRecord:  # fmt: skip
    """Runs a function, and for a loss its gradient, and keeps what its values were, in 23 numbers each.

    >>> before = jaxviz.record(loss, params, x)
    >>> before.save("before.jaxviz")
    >>> print(jaxviz.divergence("before.jaxviz", jaxviz.record(faster_loss, params, x)))

    For each value that has an address, for its cotangent and for each iteration: the norm, the largest magnitude, the
    mean, how many elements are zero and how many not finite, a hash, and a random projection to 16 numbers, which tells
    how far two arrays are apart; and the same of what it returns, and of its gradient. `divergence` compares two
    records, also of other processes, machines and versions; `growth` reads the norms.

    Args:
      fun: takes and returns arrays, or pytrees of them.
      *args, **kwargs: its arguments.
      argnums: the arguments in which the gradient is taken, as for `jax.grad`; if these hold no real numbers, all that
        do. Values that do not depend on them have no cotangent.
      cotangents: whether to record cotangents too; by default if `fun` returns one number.
      has_aux: whether it returns a pair, whose first part is that number.
      at: the addresses of what to record; by default every value that has one.

    Returns:
      a `RunRecord`: `str()` lists the values, `save(path)` writes it.

    Raises:
      TypeError: `cotangents` are asked for, and the function returns something else than one number.
      AddressError: an address means nothing, or several values.
    """
    return prepared(fun, args, kwargs, cotangents, has_aux, argnums, [address(a) for a in at]).record(args, kwargs)
