"""`gradient_flow`: which parameters the gradient of a loss reaches, and why it is zero in the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from jaxviz.analysis.on_values import without_references
from jaxviz.analysis.step_run import StepRun, are_values
from jaxviz.analysis.training_step import has_auxiliary, subject_of
from jaxviz.arguments import Argnums, flat_arguments, positions
from jaxviz.derivation import Derivation, DerivedCall
from jaxviz.features.flow.reasons import Ending, Reasons, distinct
from jaxviz.features.flow.report import FlowPaths, GradientFlow, LeafFlow
from jaxviz.features.flow.run import GradientRun
from jaxviz.features.flow.structure import Reach, StructuralStop
from jaxviz.features.flow.updates import StepUpdates
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Program
from jaxviz.progress import counting
from jaxviz.report.tables import counted, type_text
from jaxviz.runtime.references import uses_references
from jaxviz.transforms.driver import select
from jaxviz.transforms.unopened import unopened_note


@api_boundary
@counting("gradient flow")
@deep_stack
def gradient_flow(f: Any, *args: Any, argnums: Argnums = 0, values: bool = True, **kwargs: Any) -> GradientFlow:
    """Says which parameters the gradient of a loss reaches, and why it is zero in the others.

    A gradient may be zero for any values, since the path from the parameter to the loss ends: at an integer, a
    comparison, `lax.stop_gradient`, a custom rule. Or it is zero at these values: since a relu is never active, a mask
    is false, a factor is zero, or a number is too small for its type. Types are enough for the first; for the second
    the gradient is compiled and run, and once more with flags if it is zero in some parameter.

    >>> print(jaxviz.gradient_flow(loss, params, x))
    the gradient in `params['prior']` is zero: its only path to the loss ends at `jnp.argmax(logits)` (model.py:41), …

    Of a training step, which takes a gradient itself, it is about that gradient, and about which parameters the step
    leaves as they are although their gradient is not zero.

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, without further arguments.
      *args, **kwargs: its arguments, as for `derive`.
      argnums: the positional argument or arguments to differentiate with respect to.
      values: whether to run it; if not, or if the arguments are types, only what holds for any values is found.

    Returns:
      the report; it is true if there is anything that no user has asked for.

    Raises:
      the errors of `derive`, and with values those of running the function.
    """
    d = subject_of(f, args, kwargs, argnums)
    is_pair = d.step is None and d.n_results is None and has_auxiliary(d) and d.primal.out_avals[0].shape == ()
    d = replace(d, n_results=1) if is_pair else d
    return report_of(d, _values(f, d, args, kwargs, argnums) if values else None)


def report_of(d: Derivation, inputs: tuple[Any, ...] | StepUpdates | None = None) -> GradientFlow:
    """The report on a derivation.

    Args:
      inputs: the flat arguments, or the step that takes the gradient; None for the structure alone.
    """
    return _Flow(d, inputs).report


def not_reached(d: Derivation) -> str:
    """ "the gradient reaches 37 of 40 parameters", by structure; '' if it reaches all."""
    reach, every = Reach(d), sum(d.nonzeros)
    n = reach.reached.bit_count()
    return f"the gradient reaches {n:,} of {counted(every, 'parameter')}" if n < every else ""


@dataclass(frozen=True, eq=False)
class _Flow:
    derivation: Derivation
    given: tuple[Any, ...] | StepUpdates | None

    @cached_property
    def reach(self) -> Reach:
        return Reach(self.derivation)

    @cached_property
    def reasons(self) -> Reasons:
        return Reasons(self.derivation)

    @cached_property
    def reasons_of_run(self) -> Reasons:
        """For the function without references, if it has some."""
        run = self.run
        return Reasons(run.derivation) if isinstance(run, GradientRun) else self.reasons

    @cached_property
    def names(self) -> list[str]:
        return [name or f"argument {k}" for k, name in enumerate(self.derivation.primal.arg_names)]

    @cached_property
    def places(self) -> list[int]:
        """The inputs that are differentiated."""
        return [k for k, nonzero in enumerate(self.derivation.nonzeros) if nonzero]

    @cached_property
    def run(self) -> GradientRun | str | None:
        """The gradient with its values; otherwise why there is none; None if none is asked for."""
        d, given = self.derivation, self.given
        if given is None:
            return None
        inputs = given.inputs_of_gradient if isinstance(given, StepUpdates) else given
        if isinstance(inputs, str):
            return inputs
        if not are_values(inputs):
            return "The arguments are types, so only what holds for any values was found."
        if d.no_reverse_mode is not None:
            return "No values were looked at, since the function has no gradient in reverse mode."
        if uses_references(d.primal):
            d, taken = without_references(d, inputs, self.names)
            if len(taken.inputs) != len(inputs):
                return "No values were looked at, since the function reads or writes mutable references."
            inputs = taken.inputs
        return GradientRun(d, inputs)

    @property
    def report(self) -> GradientFlow:
        d, run = self.derivation, self.run
        leaves = [self.leaf(k) for k in self.places] + [*self.constants()]
        notes = [run] if isinstance(run, str) else []
        if isinstance(self.given, StepUpdates) and self.given.note:
            notes.append(self.given.note)
        paths = FlowPaths([self.names[k] for k in self.places], self.places, self.reach)
        notes += unopened_note(d.unopened)
        has_values = isinstance(run, GradientRun)
        return GradientFlow(d.primal.name, d.about, tuple(leaves), has_values, tuple(notes), paths)

    def leaf(self, k: int) -> LeafFlow:
        v, run = self.derivation.primal.invars[k], self.run
        size = int(getattr(v.aval, "size", 1))
        leaf = LeafFlow(self.names[k], type_text(v.aval), size, "reached")
        stops = [s for s in self.reach.stops if s.leaves >> k & 1]
        asked = [s for s in stops if s.reason == "asked"]
        if not self.reach.reached >> k & 1:
            if not self.reach.read >> k & 1:
                return replace(leaf, status="stopped", endings=(self._unread(k),))
            if asked and not self.reach.unasked >> k & 1:
                return replace(leaf, status="on purpose", endings=self._endings(asked))
            # What a softmax stops is beside its result, which ends elsewhere.
            others = [s for s in stops if s.reason not in ("asked", "library")]
            others = others or [s for s in stops if s.reason == "library"]
            return replace(leaf, status="stopped", endings=self._endings([*others, *asked]))
        leaf = replace(leaf, endings=self._endings(asked))
        if not isinstance(run, GradientRun) or k not in run.counts:
            return leaf
        leaf = replace(leaf, count=run.counts[k])
        if k in run.zero:
            result = run.search.top.program.outvars[run.zero.index(k)]
            deaths = [self.reasons_of_run.of_death(run, death) for death in run.search.deaths(result)]
            return replace(leaf, status="zero", endings=distinct([*deaths, *leaf.endings]))
        return replace(
            leaf, update=self.given.update(k, run.gradients[k]) if isinstance(self.given, StepUpdates) else None
        )

    def _endings(self, stops: Sequence[StructuralStop]) -> tuple[Ending, ...]:
        return distinct(map(self.reasons.of_stop, stops))

    def _unread(self, k: int) -> Ending:
        called, consts = self.derivation.called, {id(x) for x in self.derivation.primal.consts}
        if called is not None and any(id(x) in consts for x in _leaves_named(called, self.names[k])):
            return Ending(
                "unread", "", None, "the function reads the same array where it closes over it, and not the argument"
            )
        return Ending("unread", "", None, "the loss does not depend on it")

    def constants(self) -> Iterator[LeafFlow]:
        """Arrays in the differentiated arguments that are no leaves of them, and that the function reads."""
        called = self.derivation.called
        if called is None:
            return
        consts = {id(x) for _, p in _programs(self.derivation.primal) for x in p.consts}
        for name, x, why in _hidden_arrays(called):
            if id(x) in consts:
                aval = compat.aval_of(x)
                ending = Ending("static", "", None, f"it is a constant of the program, {why}")
                yield LeafFlow(name, type_text(aval), int(x.size), "stopped", (ending,))


def _programs(program: Program) -> Iterator[tuple[int, Program]]:
    yield 0, program
    for depth, e in program.walk():
        yield from ((depth, p) for _, p in e.programs)


def _leaves_named(called: DerivedCall, name: str) -> list[Any]:
    paths = jax.tree_util.tree_leaves_with_path((called.args, called.kwargs))
    keys = lambda path: jax.tree_util.keystr(path[2:])
    return [x for path, x in paths if name.endswith(keys(path)) and isinstance(x, jax.Array)]


def _hidden_arrays(called: DerivedCall) -> Iterator[tuple[str, Any, str]]:
    """Arrays that objects in the differentiated arguments hold, but not among the leaves: name, array, reason."""
    chosen = [x for key, x in (*enumerate(called.args), *called.kwargs.items()) if key in called.chosen]
    nodes: list[Any] = []
    leaves = jax.tree.leaves(chosen, is_leaf=nodes.append)
    own = {id(x) for x in leaves}
    for node in nodes:
        kind = type(node).__name__
        is_leaf = id(node) in own
        why = f"since `{kind}` is not registered as a pytree" if is_leaf else f"since it is static in `{kind}`"
        for name, x in getattr(node, "__dict__", {}).items():
            if isinstance(x, jax.Array) and id(x) not in own and jnp.issubdtype(x.dtype, jnp.inexact):
                yield f"{kind}.{name}", x, why


def _values(
    f: Any, d: Derivation, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums
) -> tuple[Any, ...] | StepUpdates | None:
    """The flat inputs of a derivation, or the run of the step that takes the gradient."""
    if d.step is not None:
        return StepUpdates(StepRun(d.step))
    if d.called is None or isinstance(f, (Derivation, Program)) or not callable(f):
        return tuple(d.values) if d.values is not None else None
    leaves, _, _, is_input = flat_arguments(args, kwargs, positions(f, args, argnums))
    return tuple(select(is_input, leaves))
