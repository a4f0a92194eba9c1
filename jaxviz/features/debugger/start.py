"""`jaxviz.step`: from a function and its arguments to its stepper; and from the report of a NaN to the equation."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from jaxviz.analysis.addresses import at
from jaxviz.analysis.budgets import read_amount
from jaxviz.analysis.on_values import is_differentiated_on_values, passes_on_values, without_references
from jaxviz.analysis.walk import location_of
from jaxviz.arguments import Argnums, flat_arguments, positions
from jaxviz.derivation import Derivation, derive
from jaxviz.features.debugger.breakpoints import Addressed
from jaxviz.features.debugger.messages import Mark
from jaxviz.features.debugger.positions import StepperStage, SteppingError
from jaxviz.features.debugger.stepper import Stepper
from jaxviz.features.debugger.stepping import Machine
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.errors import EquationError, NoRuleError
from jaxviz.ir.pretty import describe_equation
from jaxviz.ir.syntax import Equation, Program
from jaxviz.report.tables import short_location
from jaxviz.runtime.donated import check_not_donated
from jaxviz.runtime.references import repeated_references, uses_mutable_types, uses_references

if TYPE_CHECKING:
    from jaxviz.features.nans.report import Event, NanReport
    from jaxviz.features.values.divergence import Divergence
    from jaxviz.features.values.partings import Parting


@api_boundary
def step(
    f: Any,
    *args: Any,
    argnums: Argnums = 0,
    cotangents: Any = None,
    backward: bool | None = None,
    memory: float | str | None = None,
    **kwargs: Any,
) -> Stepper:
    """Steps through a function's forward and backward program equation by equation, on the devices that hold its
    arguments.

    >>> s = jaxviz.step(loss, params, x)
    >>> s.next()
    >>> s.run(non_finite=True)

    Args:
      f: a function; or a Derivation, a Program or a ClosedJaxpr, with its flat arguments.
      *args, **kwargs: its arguments.
      argnums: the positional argument or arguments to differentiate with respect to.
      cotangents: the cotangents of the result, in its structure; by default one, for a result that is a single
        floating-point number.
      backward: whether to run the backward pass. By default it runs if cotangents are given or the result is a single
        number, and the function has a reverse mode; otherwise the function itself runs, with its custom rules and while
        loops.
      memory: how much memory to use for the values kept for going back: bytes, a size such as '2GiB', or a fraction of
        the device's memory. Other values are recomputed. By default a quarter of the device's free memory, or 1 GiB if
        the device does not report it.

    Raises:
      SteppingError: the arguments are types without values; or `backward=True` is given for a result that needs
        cotangents.
      EquationError: `backward=True` is given and an equation has no derivative; the message names the equation and the
        user's line.
      TypeError: the cotangents do not have the structure and types of the result.
    """
    derivation, inputs = _derived(f, args, kwargs, argnums)
    for x in inputs:
        if isinstance(x, jax.ShapeDtypeStruct):
            raise SteppingError(
                "step runs the function, so it needs arrays; got a ShapeDtypeStruct, which has no value."
            )
    inputs = [compat.canonicalize(x) for x in inputs]
    said = ""
    with_refs = derivation, inputs
    if uses_references(derivation.primal):
        said = _ON_VALUES
        derivation, taken = without_references(derivation, inputs, derivation.primal.arg_names)
        inputs = list(taken.inputs)
    budget = _budget(memory)
    runs_backward = backward
    if backward is None:
        runs_backward = cotangents is not None or _is_one_number(derivation)
    note = "" if runs_backward else "Only the function runs: for a backward pass give `cotangents` of its result."
    if runs_backward:
        try:
            if said and not _is_as_on_values(with_refs[0]):
                return _with_backward(*with_refs, cotangents, budget, said, on_values=True)
            return _with_backward(derivation, inputs, cotangents, budget, said)
        except (EquationError, NotImplementedError, ValueError) as error:
            if backward or isinstance(error, SteppingError):
                raise
            note = f"There is no backward pass. {error}"
    stage = StepperStage("primal", derivation.primal, lambda _: inputs)
    notes = [note * (backward is None), said]
    return Stepper(derivation, Machine([stage], budget), " ".join(filter(None, notes)))


_ON_VALUES = "In place of a mutable reference the programs have what is in it, another value after each write."


def _is_as_on_values(derivation: Derivation) -> bool:
    """Whether the gradient is that of the same function without references.

    Raises:
      NoRuleError: that is not known.
    """
    repeats = next(repeated_references(derivation.primal), None)
    if repeats is not None and uses_mutable_types(derivation.primal):
        raise NoRuleError(
            f"{describe_equation(repeats)} uses a mutable reference, which JAX may read and write again in the "
            "backward pass, beside a value of a mutable type."
        )
    return is_differentiated_on_values(derivation)


def _derived(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums) -> tuple[Derivation, list[Any]]:
    if isinstance(f, (Derivation, Program, ClosedJaxpr)):
        derivation = derive(f, argnums=argnums)
        n = len(derivation.primal.invars)
        if kwargs or len(args) != n:
            raise TypeError(f"step of a {type(f).__name__} takes its {n} flat inputs; got {len(args)}")
        return derivation, list(args)
    check_not_donated(f, args, kwargs)
    derivation = derive(f, *args, argnums=argnums, **kwargs)
    leaves, _, _, is_input = flat_arguments(args, kwargs, positions(f, args, argnums))
    return derivation, [x for x, is_given in zip(leaves, is_input, strict=True) if is_given]


def _is_one_number(derivation: Derivation) -> bool:
    """Whether the differentiated result is a real number."""
    results = derivation.primal.outvars[: derivation.n_results]
    if len(results) != 1:
        return False
    aval = results[0].aval
    return not aval.shape and bool(jnp.issubdtype(aval.dtype, jnp.floating))


def _with_backward(
    derivation: Derivation, inputs: list[Any], cotangents: Any, budget: int, note: str, on_values: bool = False
) -> Stepper:
    primal = derivation.primal
    avals = [compat.cotangent_type(a.aval) for a in primal.outvars[: derivation.n_results]]
    if cotangents is None:
        if not _is_one_number(derivation):
            raise SteppingError(
                "A result that is not one floating-point number needs `cotangents` for a backward pass."
            )
        flat: list[Any] = [jnp.ones((), avals[0].dtype)]
    else:
        flat, tree = jax.tree.flatten(cotangents)
        if derivation.out_tree is not None and tree != derivation.out_tree:
            raise TypeError(f"cotangents must have the structure of the result, {derivation.out_tree}; got {tree}")
        if len(flat) != len(avals):
            raise TypeError(f"expected one cotangent for each of the {len(avals)} results; got {len(flat)}")
    seeds = []
    for x, a, nonzero in zip(flat, avals, derivation.linearized.nonzeros_out, strict=True):
        if nonzero:
            x = jnp.asarray(x, a.dtype)
            if x.shape != a.shape:
                raise TypeError(
                    f"a cotangent must have the type of its result, {a.str_short()}; got {x.dtype}{list(x.shape)}"
                )
            seeds.append(x)
    n, n_residuals = len(primal.outvars), derivation.n_residuals
    forward, backward = derivation.forward, derivation.backward
    closed_over: tuple[Any, ...] = ()
    if on_values:
        passes = passes_on_values(derivation, inputs, primal.arg_names)
        forward, backward, closed_over = passes.forward, passes.backward, passes.closed_over
        inputs = list(passes.taken.inputs)

    def inputs_of_backward(machine: Machine) -> list[Any]:
        outs = machine.results("forward")
        refs = [outs[x] if isinstance(x, int) else x for x in closed_over]
        return [*outs[n : n + n_residuals], *seeds, *refs]

    stages = [
        StepperStage("forward", forward, lambda _: inputs),
        StepperStage("backward", backward, inputs_of_backward),
    ]
    return Stepper(derivation, Machine(stages, budget), note)


def _budget(memory: float | str | None) -> int:
    device = jax.devices()[0]
    stats = device.memory_stats() or {}
    total, used = stats.get("bytes_limit", 4 << 30), stats.get("bytes_in_use", 0)
    if memory is None:
        return int((total - used) // 4)
    return read_amount(memory, total, "memory")


# --- from the report of a NaN to the run that produced it -------------------------------------------------------------


def stepper_of(report: NanReport) -> Stepper:
    """The run that was searched, from its start.

    Raises:
      SteppingError: the arrays are no longer available.
    """
    ran = report.ran() if report.ran is not None else None
    if ran is None:
        raise SteppingError("Only the last two searches keep their arrays. Call find_nan again, and then step().")
    return step(ran.derivation, *ran.inputs, backward=ran.has_gradient)


def step_to(report: NanReport) -> Stepper:
    """The run, stopped where a non-finite value first occurred; see `NanReport.step`."""
    stepper = stepper_of(report)
    event = report.born or report.became_nan
    if event is not None:
        go_there(stepper, event)
    return stepper


def go_there(stepper: Stepper, event: Event) -> None:
    """Runs from the start until the equation has computed the non-finite value."""
    line = None if event.location is None else f"{event.location.file}:{event.location.line}"
    try:
        stepper.restart().run(line=line, primitive=event.primitive, non_finite=True)
    except SteppingError:  # it is inside something that is a single step here, such as a shard_map
        stepper.run(non_finite=True)


# --- from the comparison of two runs to the first of them -------------------------------------------------------------


def step_to_parting(found: Divergence) -> Stepper:
    """The first run, stopped where it has computed the value at which both part; see `Divergence.step`."""
    ran = found.ran() if found.ran is not None else None
    if ran is None:
        raise SteppingError("The arrays of this run are not kept. Compare the functions again, and then call step().")
    fun = functools.wraps(ran.fun)(lambda *args, **kwargs: ran.fun(*args, **kwargs)[0]) if ran.has_aux else ran.fun
    reals = tuple(i for i, x in enumerate(ran.args) if all(jnp.issubdtype(leaf, jnp.inexact) for leaf in _types_in(x)))
    stepper = step(fun, *ran.args, argnums=ran.argnums if ran.argnums in reals else reals or 0, **ran.kwargs)
    return stepper if found.parting is None or found.parting.is_given else _go_to_parting(stepper, found.parting)


def _types_in(x: Any) -> list[Any]:
    return [jnp.result_type(leaf) for leaf in jax.tree.leaves(x)]


def _go_to_parting(stepper: Stepper, parting: Parting) -> Stepper:
    if parting.is_inside_step:
        raise SteppingError(
            f"{parting.what} is in a gradient that the function takes itself, which the stepper does not enter at an "
            "address. Compare the functions that are differentiated."
        )
    if parting.phase == "gradient":
        return stepper.run()  # which ends with it
    if not parting.address:
        raise SteppingError(f"No equation computes {parting.what}.")
    given = at(parting.address, phase="cotangent" if parting.phase == "cotangent" else "forward")
    addressed = Addressed.of(given, stepper.derivation, stepper._texts, stepper._phases, stepper._places)
    if not addressed.sites:
        raise SteppingError(f"The run stops at no equation that computes {parting.what}.")
    stage, site = addressed.sites[0]
    return stepper.goto(stepper._position(stage, site, parting.iterations, parting.expression))


def mark_of(stepper: Stepper, event: Event) -> Mark:
    """The position of an event on the timeline of a run: the stage, and the equation of its program."""
    stage = event.phase if event.phase in stepper.stages else stepper.stages[0]
    candidates = [
        (i, inner)
        for i, e in enumerate(stepper._texts[stage].program.equations)
        for inner, holders in _walk(e, ())
        if inner.primitive.name == event.primitive and location_of(inner, holders) == event.location
    ]
    # Where both are computed by one primitive, a value and its slope are on one line.
    exact = [i for i, e in candidates if (e.origin is not None and e.origin.role == "residual") == event.is_derivative]
    number = next(iter([*exact, *(i for i, _ in candidates)]), 0)
    at = f" at {short_location(event.location)}" if event.location is not None else ""
    return Mark(stage=stage, index=number, text=f"{event.made} born{at}, in the {event.phase} pass")


def _walk(e: Equation, holders: tuple[Equation, ...]) -> Iterator[tuple[Equation, tuple[Equation, ...]]]:
    yield e, holders
    for _, program in e.programs:
        for inner in program.equations:
            yield from _walk(inner, (*holders, e))
