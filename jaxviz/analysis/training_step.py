"""A training step: a function that takes a gradient itself, usually with an optimizer.

While the step is traced, jaxviz derives the function whose gradient it takes, and the forward and the backward pass
become one equation each in the step. So the memory of a step is modelled with both passes in place, and they can be
replaced by other passes, such as those of a plan.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import jax

from jaxviz.analysis.devices import types_to_lower
from jaxviz.analysis.passes import (
    NotAnEquation,
    OpenedStep,
    Opening,
    Passes,
    Stacked,
    pass_p,
    stacked_by_scan,
    with_passes_together,
)
from jaxviz.analysis.vjp_objects import derivation_of_vjp
from jaxviz.analysis.walk import running, with_holders
from jaxviz.arguments import Argnums, flat_arguments, placed_at, positions
from jaxviz.derivation import Derivation, DerivedCall, derive
from jaxviz.functions import transformations
from jaxviz.functions.vjp_function import Transposable, vjp_of
from jaxviz.higher_order import of
from jaxviz.higher_order.shard_map import SHARD_MAP
from jaxviz.ir import compat
from jaxviz.ir.convert import trace_rule
from jaxviz.ir.emit import as_function
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Atom, Equation, Operation, Program
from jaxviz.ir.trace import TracedFunction, trace_call, with_fixed
from jaxviz.report.tables import nbytes
from jaxviz.transforms.dce import live_equations
from jaxviz.transforms.driver import Mask, select, with_constants_as_inputs
from jaxviz.transforms.linearize import CondResiduals


@dataclass(frozen=True, eq=False)
class TrainingStep:
    """A function that takes a gradient.

    Args:
      traced: the step, with an equation for each pass.
      gradients: the derivations of the functions that it differentiates, with closed-over values as fixed inputs.
      mark: the one that reports are about: the one that saves most.
      maps: the `shard_map`s in which it is taken, outermost first.
      placed, out_tree, called: the shardings of its inputs, the structure of its results, and its call.
      not_followed: the gradients that it takes besides, and whose passes are not equations of it.
    """

    traced: Program
    gradients: tuple[Derivation, ...]
    mark: int
    maps: tuple[Operation, ...]
    placed: tuple[Any, ...]
    out_tree: Any
    called: DerivedCall
    not_followed: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.traced.name

    @cached_property
    def gradient(self) -> Derivation:
        return self.gradients[self.mark].taken_by(self)

    @property
    def stacked(self) -> Stacked:
        """How a scan stacks the residuals of `gradient`, so that they are in memory more than once."""
        return stacked_by_scan(self.traced, self.mark)

    def again(self, other: Callable[[Any], Any]) -> TrainingStep:
        """The same step traced again; see `Derivation.again`."""
        call = self.called
        step = trace_training_step(other(call.function), call.args, call.kwargs, call.chosen)
        if not isinstance(step, TrainingStep):
            raise ValueError(f"the gradient in {self.name} is not followed: {'; '.join(step)}")
        return step

    def taking(self, gradient: Derivation) -> TrainingStep:
        """The step, if it takes another gradient of the same inputs."""
        return replace(self, gradients=(*self.gradients[: self.mark], gradient, *self.gradients[self.mark + 1 :]))

    @property
    def about(self) -> str:
        """ "training step `train_step`, which takes the gradient of `loss` in `params`"."""
        return self.gradient.about

    @property
    def types(self) -> list[jax.ShapeDtypeStruct]:
        """The types of its inputs, with their shardings."""
        return types_to_lower(self.traced, self.placed)

    def inputs_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The flat inputs of a call."""
        leaves, _, _, is_input = flat_arguments(args, kwargs, self.called.chosen)
        return tuple(select(is_input, leaves))

    def is_mapped(self, mark: int) -> bool:
        """Whether a backward pass of a gradient runs for several cotangents at once, as in `jax.jacrev`."""
        passes = (e.params for e, _ in with_holders(self.traced) if e.primitive is pass_p)
        return any(p["mark"] == mark and p.get("maps") for p in passes)

    def opened(self, passes: Passes | Mapping[int, Passes] = MappingProxyType({})) -> OpenedStep:
        """The step with calls of its gradients' passes.

        Args:
          passes: replacements for the passes of `gradient`, or of several gradients; the others have their own.
        """
        given = {self.mark: passes} if isinstance(passes, Passes) else passes
        all_passes = [given.get(mark) or Passes.of(d) for mark, d in enumerate(self.gradients)]
        opening = Opening(all_passes, [len(d.primal.outvars) for d in self.gradients], self.mark)
        return OpenedStep(opening.program(self.traced), opening.forward, frozenset(opening.backward), opening.calls)


@deep_stack
def trace_training_step(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], wanted: Sequence[int | str] = ()
) -> TrainingStep | tuple[str, ...]:
    """A function as a training step; otherwise the gradients that it takes nevertheless, and whose passes are not
    equations of the step: "the gradient of `loss` in `params` under jax.vmap".

    Args:
      f: takes gradients by `jax.grad`, `jax.value_and_grad` or `jax.vjp`, or by jaxviz's, maybe in a library.
      args, kwargs: what to call it with.
      wanted: the positional arguments all of whose leaves are inputs, Python numbers too.

    Raises:
      what tracing raises.
    """
    *_, is_input = flat_arguments(args, kwargs, wanted)
    call, inputs, info = with_fixed(f, args, kwargs, is_input)
    left_to_jax: dict[int, str] = {}
    while True:
        taken: list[Derivation] = []
        unknown: list[str] = []
        try:
            with compat.replaced_vjp(partial(_taken, taken, left_to_jax, unknown)):
                traced = trace_call(call, inputs, debug_info=info)
            program = with_passes_together(traced.program)
            break
        except NotAnEquation as refused:
            left_to_jax[refused.mark] = refused.how
    passes = {e.params["mark"]: within for e, within in with_holders(program) if e.primitive is pass_p}
    not_followed = *(f"the {taken[mark].gradient} {how}" for mark, how in left_to_jax.items()), *unknown
    if program.is_path and (passes or not_followed):
        return (_ON_VALUES,)
    if not passes:
        return not_followed
    size = lambda mark: sum(nbytes(a.aval) for a in taken[mark].linearized.residuals)
    mark = max(passes, key=size)
    maps = tuple(e.operation for e in passes[mark] if of(e) is SHARD_MAP)

    called, placed = DerivedCall(f, args, kwargs, wanted), tuple(map(placed_at, inputs))
    return TrainingStep(program, tuple(taken), mark, maps, placed, traced.out_tree, called, not_followed)


_ON_VALUES = "a gradient in a function whose Python branches on values"


def subject_of(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums) -> Derivation:
    """The gradient that a report is about: that of a function, or the one that a training step takes.

    A step takes a gradient, and its result is not a single real number. A loss may take gradients as well, for example
    in a gradient penalty; it is differentiated itself, unless it adds a gradient to a reference. So is a program.

    Args:
      f: a function; or a Derivation, Program, ClosedJaxpr or what `vjp` returns, without further arguments.
      args, kwargs: the call.
      argnums: the arguments to differentiate with respect to; `()` for none, also of a step.

    Raises:
      the errors of `derive`, and of tracing the step.
    """
    if not args and not kwargs and (of_vjp := derivation_of_vjp(f)) is not None:
        return of_vjp
    if compat.held_for_backward(f) is not None:
        raise TypeError(
            "What jax.vjp returned does not hold the function. Pass the function and its arguments, or what jaxviz.vjp "
            "returns; jaxviz.residuals also lists what jax.vjp returned holds."
        )
    own = partial(derive, f, *args, argnums=argnums, **kwargs)
    if argnums == () or isinstance(f, Program) or not callable(f):
        return own()
    stop = _Stop()
    try:
        with compat.replaced_vjp(stop, key=stop):
            derivation = own()
        if not stop.is_called:  # the function may catch what is raised in it
            return derivation
    except (_TakesGradient, Exception):
        if not stop.is_called:
            raise
    left: tuple[str, ...] = (_ON_VALUES,)
    try:
        step = trace_training_step(f, args, kwargs, positions(f, args, argnums))
    except Exception:
        derivation = own()  # raises JAX's error, if the function cannot be traced at all
        if not is_loss(derivation.primal) and not derivation.primal.is_path:
            raise
    else:
        if isinstance(step, TrainingStep) and not is_loss(step.traced):
            return step.gradient
        derivation, left = own(), () if isinstance(step, TrainingStep) else step
    return derivation if is_loss(derivation.primal) else replace(derivation, not_followed=left)


class _TakesGradient(BaseException):
    """A function takes a gradient while it is traced; JAX's own would take longer to trace than the step."""


class _Stop:
    """Takes the place of `jax.vjp`, and stops the trace. All that have not been called are equal, so that they share
    JAX's cached traces, among which there may be one without its gradient as soon as one is called."""

    def __init__(self) -> None:
        self.is_called = False

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.is_called = True
        raise _TakesGradient

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Stop) and not self.is_called and not other.is_called)

    def __hash__(self) -> int:
        return hash(_Stop)


def is_loss(program: Program) -> bool:
    """Whether the result of a function is one real number, and it writes no gradient to a reference, as a step does."""
    results = program.out_avals
    is_real = lambda a: a.shape == () and jax.numpy.issubdtype(a.dtype, jax.numpy.floating)
    return len(results) == 1 and is_real(results[0]) and not stores_gradient(program)


def has_auxiliary(d: Derivation) -> bool:
    """Whether a function returns a pair of one value and auxiliary results."""
    if d.out_tree is None:
        return False
    parts = d.out_tree.children()
    is_pair = len(parts) == 2 and issubclass(d.out_tree.node_data()[0], (tuple, list))
    return is_pair and jax.tree_util.treedef_is_leaf(parts[0])


def stores_gradient(program: Program) -> bool:
    """Whether a function writes something that it computes in a backward pass to a reference from outside."""
    if not compat.written_refs(program.effects):
        return False
    written = live_equations(program.equations, set(), effects=False)
    nested = (inner for e in written for _, body in e.programs for _, inner in body.walk())
    return any(map(is_backward, itertools.chain(written, nested)))


def takes_gradient(program: Program) -> bool:
    """Whether a function has a backward pass in it."""
    return any(map(is_backward, running(program)))


def is_backward(e: Equation) -> bool:
    """Whether a transposition created an equation, jaxviz's or JAX's; or it is a backward pass of a step."""
    if e.primitive is pass_p:
        return not e.params["is_forward"]
    return (e.origin is not None and e.origin.transform == "transpose") or compat.is_transposed(e.source)


def step_function(step: TrainingStep, loss: Program | None = None) -> Callable[..., list[Any]]:
    """A training step as a function of its flat inputs, whose gradient is JAX's.

    Args:
      step: the step.
      loss: the replacement for the function that it differentiates, such as one with the checkpoints of a plan.
    """
    primal = loss if loss is not None else step.gradient.primal
    with contextlib.ExitStack() as stack:
        for operation in step.maps:
            stack.enter_context(compat.inside_shard_map(operation))
        passes = passes_of_jax(primal, step.gradient)
    return as_function(step.opened(passes).program)


def passes_of_jax(loss: Program, like: Derivation) -> Passes:
    """The passes of `jax.vjp` for a function, or of `jaxviz.vjp` with its own option.

    Args:
      loss: the function.
      like: its derivation, which tells with respect to what it is differentiated, and which results are.
    """
    n_results = len(loss.outvars) if like.n_results is None else like.n_results
    function, active = as_function(loss), like.nonzeros
    own = like.cond_residuals != "jax"  # which `jax.vjp` has no option for
    vjp: Any = partial(transformations.vjp, cond_residuals=like.cond_residuals) if own else jax.vjp
    seen: list[Any] = []

    def forward(*inputs: Any) -> list[Any]:
        def of_active(*primals: Any) -> tuple[list[Any], list[Any]]:
            rest = iter(primals)
            outs = function(*(next(rest) if nz else x for nz, x in zip(active, inputs, strict=True)))
            return outs[:n_results], outs[n_results:]

        results, pull, aux = vjp(of_active, *(x for nz, x in zip(active, inputs, strict=True) if nz), has_aux=True)
        residuals, tree = jax.tree.flatten(pull)
        seen[:] = [tree]
        return [*results, *aux, *residuals]

    traced = trace_rule(forward, loss.in_avals)
    residual_types = traced.out_avals[len(loss.outvars) :]
    nonzeros = like.linearized.nonzeros_out
    results = [v.aval.to_ct_aval() for v in loss.outvars[:n_results]]

    differentiated = [v.aval for v, nz in zip(loss.invars, active, strict=True) if nz]
    cotangent_types = [a for a, nz in zip(results, nonzeros, strict=True) if nz]

    def backward(in_place: Mask, *inputs: Any) -> list[Any]:
        pull = jax.tree.unflatten(seen[0], inputs[: len(residual_types)])
        rest = iter(inputs[len(residual_types) :])
        cts = [next(rest) if nz else compat.zeros(a) for nz, a in zip(nonzeros, results, strict=True)]
        if any(in_place):
            pull = pull.with_refs(*(next(rest) if added else compat.GRAD_VALUE for added in in_place))
        reached = [r and not a for r, a in zip(select(active, like.reached), in_place, strict=True)]
        return list(select(reached, pull(cts)))

    def traced_backward(in_place: Mask) -> Program:
        refs = [compat.ref_to(a) for a in select(in_place, differentiated)]
        return trace_rule(partial(backward, in_place), (*residual_types, *cotangent_types, *refs))

    return Passes(traced, traced_backward((False,) * sum(active)), traced_backward)


@contextlib.contextmanager
def taking_gradient_of(loss: Program, step: TrainingStep) -> Iterator[None]:
    """Within it, a training step takes the gradient of another function, such as one with the checkpoints of a plan.

    Args:
      loss: the replacement, as a program like that of the function that the step differentiates.
      step: the step.
    """
    marks = itertools.count()

    def vjp(
        original: Callable[..., Any], fun: Callable[..., Any], *primals: Any, has_aux: bool = False, **options: Any
    ) -> Any:
        call = _VjpCall.of(fun, primals, has_aux, options)
        if isinstance(call, str) or next(marks) != step.mark:
            return original(fun, *primals, has_aux=has_aux, **options)
        traced, expected = call.traced, [v.aval for v in step.gradient.primal.invars]
        if [v.aval.str_short() for v in call.program.invars] != [a.str_short() for a in expected]:
            raise TypeError(f"{step.traced.name} takes the gradient of a different function than when it was planned")

        def of_loss(*arguments: Any) -> Any:
            outs = as_function(loss)(*call.consts, *jax.tree.leaves(arguments))
            value = jax.tree.unflatten(traced.out_tree, outs[: traced.n_results])
            return (value, traced.rebuild_aux(outs[traced.n_results :])) if has_aux else value

        return original(_named_like(fun, primals, of_loss), *primals, has_aux=has_aux, **options)

    with compat.replaced_vjp(vjp, key=_Same(loss)):
        yield


def _named_like(fun: Callable[..., Any], primals: tuple[Any, ...], new: Callable[..., Any]) -> Callable[..., Any]:
    """A new function, by its name and those of its arguments the one that it is differentiated in place of, by which
    reports call it."""
    info, _ = compat.differentiated_debug_info(fun, primals)
    paths = iter(info.arg_names or ())
    by_argument = [[next(paths, "") for _ in jax.tree.leaves(x)] for x in primals]
    names = [of[0].partition("[")[0].partition(".")[0] if of else "" for of in by_argument]
    new.__name__ = new.__qualname__ = info.func_name
    if len(set(names)) == len(names) and all(map(str.isidentifier, names)):
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        new.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return new


@dataclass(frozen=True, eq=False)
class _Same:
    """A key for a function, which lives as long as JAX's cached trace of it."""

    loss: Program

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.loss is other.loss

    def __hash__(self) -> int:
        return id(self.loss)


@dataclass(frozen=True, eq=False)
class _VjpCall:
    """A call of `jax.vjp`, or of `jaxviz.vjp`, that is derived.

    Args:
      traced: how it was traced.
      program, consts: as a program, with the values that it closes over as additional first inputs; and these values.
      nonzeros: which of its flat arguments carry a tangent.
      saveable: which of them the function that it returns may hold, since JAX 0.11.
      cond_residuals: what conds save, an option of `jaxviz.vjp`.
    """

    traced: TracedFunction
    program: Program
    consts: tuple[Any, ...]
    nonzeros: list[bool]
    saveable: list[bool]
    cond_residuals: CondResiduals

    @staticmethod
    def of(
        fun: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool, options: Mapping[str, Any]
    ) -> _VjpCall | str:
        """The call; or why it is left to JAX: its function branches on values, or it has an unknown option."""
        unknown = [name for name in options.keys() - {"saveable_args", "in_nzs", "cond_residuals"} if options[name]]
        if unknown:
            return f"with {unknown[0]}"
        info, names = compat.differentiated_debug_info(fun, primals)
        traced = trace_call(fun, primals, has_aux=has_aux, debug_info=info)
        program, consts = _closed(traced.program, names)
        if program.is_path:
            return "whose Python branches on values"
        tree = jax.tree.structure(primals)
        in_nzs = options.get("in_nzs")
        differentiated = [True] * tree.num_leaves if in_nzs is None else compat.flags(in_nzs, tree, "in_nzs")
        has_tangent = (not compat.is_float0(v.aval.to_tangent_aval()) for v in traced.program.invars)
        nonzeros = [d and t for d, t in zip(differentiated, has_tangent, strict=True)]
        saveable = compat.flags(options.get("saveable_args", True), tree, "saveable_args")
        return _VjpCall(traced, program, consts, nonzeros, saveable, options.get("cond_residuals", "jax"))


def _taken(
    taken: list[Derivation], left_to_jax: Collection[int], unknown: list[str], original: Callable[..., Any],
    fun: Callable[..., Any], *primals: Any, has_aux: bool = False, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """The result of `jax.vjp`, with its passes as one equation each."""
    call = _VjpCall.of(fun, primals, has_aux, options)
    if isinstance(call, str):
        info, _ = compat.differentiated_debug_info(fun, primals)
        unknown.append(f"the gradient of `{info.func_name}` {call}")
        result: tuple[Any, ...] = original(fun, *primals, has_aux=has_aux, **options)
        return result
    traced, program, consts, nonzeros = call.traced, call.program, call.consts, call.nonzeros
    active = [i + len(consts) for i, nonzero in enumerate(nonzeros) if nonzero]
    derived = derive(program, argnums=active, cond_residuals=call.cond_residuals)
    derivation = replace(derived, n_results=traced.n_results)
    mark, n = len(taken), len(program.outvars)
    taken.append(derivation)
    if mark in left_to_jax:
        result = original(fun, *primals, has_aux=has_aux, **options)
        return result
    known, operands = _BackwardPass(traced, derivation, nonzeros, mark), (*consts, *traced.leaves)
    residuals = derivation.linearized.residuals
    places: dict[Atom, int] = {v: i for i, v in enumerate(program.invars)}
    outs = pass_p.bind(
        *operands, mark=mark, is_forward=True, n_results=n, out_avals=_types(derivation.forward.outvars),
        effects=derivation.forward.effects, from_inputs=tuple(map(places.get, residuals)),
    )  # fmt: skip
    value = jax.tree.unflatten(traced.out_tree, outs[: traced.n_results])
    pairs = zip(residuals, outs[n:], strict=True)
    saved = [operands[places[a]] if compat.is_mutable(a.aval) else x for a, x in pairs]  # a reference is no result
    pull = vjp_of(known, jax.tree.structure(primals), traced.out_tree, saved, call.saveable)
    return (value, pull, traced.rebuild_aux(outs[traced.n_results : n])) if has_aux else (value, pull)


class _BackwardPass(Transposable):
    """What a `VJP` knows of a function whose backward pass is one equation of a step.

    Args:
      traced, derivation, nonzeros: the call, its derivation, and which of its flat arguments carry a tangent.
      mark: the number of the gradient in the step.
    """

    def __init__(self, traced: TracedFunction, derivation: Derivation, nonzeros: Sequence[bool], mark: int):
        super().__init__(traced, derivation.linearized, nonzeros)
        self.derivation = derivation
        self.mark = mark

    def cotangents(
        self, residuals: Sequence[Any], cts: Sequence[Any], needed: Mask, refs: Sequence[Any], logs: bool
    ) -> tuple[Iterator[Any], Mask, Any]:
        """See `Transposable`; a zero is written out."""
        if logs:
            raise NotAnEquation(self.mark, "with logs")
        seeds = [compat.zeros(ct.aval) if compat.is_zero(ct) else ct for ct in cts]
        d = self.derivation
        in_place = tuple([ref is not None for ref in refs])
        with compat.vjp_as_before():
            backward = d.backward_in_place(in_place) if any(in_place) else d.backward
            of_active = select(d.nonzeros, d.reached)
        reached = [r and not added for r, added in zip(of_active, in_place, strict=True)]
        of_reached = tuple(select(reached, needed))
        outs = pass_p.bind(
            *residuals, *seeds, *(ref for ref in refs if ref is not None), mark=self.mark, is_forward=False,
            n_cotangents=len(seeds), in_place=in_place, wanted=of_reached, maps=(), effects=backward.effects,
            out_avals=tuple(select(of_reached, _types(backward.outvars))),
        )  # fmt: skip
        return iter(outs), tuple([w and r for w, r in zip(needed, reached, strict=True)]), None


def _types(atoms: Sequence[Atom]) -> tuple[Any, ...]:
    return tuple(a.aval for a in atoms)


def _closed(program: Program, names: Mapping[int, str]) -> tuple[Program, tuple[Any, ...]]:
    """A program with its constants as additional first inputs, and their values.

    Args:
      program: the program.
      names: of its constants that have one, by identity.
    """
    all_names = (*(names.get(id(x), "a value that it closes over") for x in program.consts), *program.arg_names)
    info = compat.derived_debug_info(program.debug_info, all_names, len(program.outvars))
    return with_constants_as_inputs(program, debug_info=info), program.consts
