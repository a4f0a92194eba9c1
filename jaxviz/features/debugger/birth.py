"""From the report of a NaN to the run that produced it: the stepper at the equation,
and its position on the timeline."""

from __future__ import annotations

from collections.abc import Iterator

from jaxviz.analysis.walk import location_of
from jaxviz.features.debugger.messages import Mark
from jaxviz.features.debugger.positions import SteppingError
from jaxviz.features.debugger.start import step
from jaxviz.features.debugger.stepper import Stepper
from jaxviz.features.nans.report import Event, NanReport
from jaxviz.ir.syntax import Equation
from jaxviz.report.tables import short_location


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
