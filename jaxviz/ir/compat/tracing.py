"""Tracing a function to a jaxpr, on types or on values too."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr

from jaxviz.ir.compat.checks import is_float0
from jaxviz.ir.compat.custom_rules import (
    TracedJaxpr,
    _as_it_is_now,
    _forward_of_rule,
    _holds_tracers,
    _jvp_of_rule,
    _MappedAlike,
    _note_hi_primitive,
    _note_rules,
    _rules,
    _taken_forward_params,
    _TakenRule,
    _with_unused_inputs,
    closed_over_by_jvp_rule_error,
    custom_function,
)
from jaxviz.ir.compat.jaxprs import is_ref, unknown_debug_info
from jaxviz.ir.compat.private import _ad, _config, _core, _lu, _pe, _source, _xla_client, dtypes
from jaxviz.ir.compat.values import Copies, concrete_value
from jaxviz.ir.syntax import Atom, Equation, Literal, Operation, Program


def _place_of_operation() -> contextlib.AbstractContextManager[Any]:
    """Puts an operation in the frames that lead to it, if those that JAX would give it have no line of the user's or of
    a library.

    A library's trace that evaluates the jaxpr of one of JAX's jitted functions gives operations the frames of that
    function.
    """
    source = _source._source_info_context.context
    if source.traceback is None or _has_user_frame(source.traceback):
        return _AS_GIVEN
    context: contextlib.AbstractContextManager[Any] = _source.user_context(
        _xla_client.Traceback.get_traceback(), name_stack=source.name_stack
    )
    return context


_AS_GIVEN = contextlib.nullcontext()


@functools.lru_cache(maxsize=4096)
def _has_user_frame(traceback: Any) -> bool:
    return next(_source.user_frames(traceback), None) is not None


class _Trace(_pe.DynamicJaxprTrace):
    """JAX's own tracing, which also records the scalars that `jax.linearize` would save as arrays.

    Outside `jit`, a jitted `jnp` function converts its Python scalar inside, and the converted array is a residual like
    any other. During tracing the call is inlined and the conversion folded into a literal. This is the only place where
    JAX creates a constant whose type is given from outside, which is what is recorded.
    """

    __slots__ = ("bodies", "held", "holds_tracers", "keeps_rules", "levels", "made_from", "takes_tracers", "within")

    def __init__(self, debug_info: Any, parent: Any, keeps_rules: bool = True):
        super().__init__(debug_info, parent_trace=parent)
        self.within: _Trace | None = None
        """The trace in which a custom rule is traced, if this is the trace of the rule."""
        self.levels = 0
        """With `within`, how many further derivatives may be taken of this program while that trace is active."""
        self.bodies: list[TracedJaxpr] = []
        self.made_from: dict[int, Equation] = {}
        self.held: list[Any] = []
        self.keeps_rules = keeps_rules
        self.holds_tracers = False
        """Whether a custom rule closes over a value of this trace, which has ended when the rule is used."""
        self.takes_tracers = False
        """Whether a custom rule was traced immediately, with such a value as an operand."""

    def new_const(self, c: Any, source_info: Any, aval: Any = None) -> Any:
        tracer = super().new_const(c, source_info, aval)
        if aval is not None and isinstance(tracer.val, _core.Literal):
            self.held.append(tracer.val)
        return tracer

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
        """An operation whose result is a literal was folded, or returned its operand: outside `jit` it is an array."""
        if _config.eager_constant_folding.value and self.keeps_rules and self._come_from_outside(tracers):
            return primitive.bind_with_trace(self.parent_trace, tracers, tuple(map(_core.typeof, tracers)), params)
        if self.keeps_rules:
            self.holds_tracers |= any(_holds_tracers(self, rule) for rule in _note_rules(params))
            _note_hi_primitive(params)
        hi = params.get("_prim")
        if hi is not None and ((self.takes_rules and hasattr(hi, "traced")) or _holds_tracers(self, hi)):
            with _core.set_current_trace(self), _custom_rules_of_old():
                return custom_function(hi)(*tracers)
        with _place_of_operation():
            out = super().process_primitive(primitive, tracers, params)
        for tracer in out if primitive.multiple_results else [out]:
            self.hold(tracer)
        return out

    def _come_from_outside(self, operands: Sequence[Any]) -> bool:
        """Whether values belong to an enclosing `jit` or `vmap`, to which JAX leaves everything that does not depend on
        differentiated values."""
        traced = [x for x in operands if isinstance(x, _core.Tracer)]
        return bool(traced) and not any(getattr(x._trace, "frame", None) is self.frame for x in traced)

    def stage_value(self, val: Any) -> Any:
        """`lax.convert_element_type` of a Python number: outside `jit`, an array."""
        out = super().stage_value(val)
        self.hold(out)
        return out

    def hold(self, tracer: Any) -> None:
        if isinstance(getattr(tracer, "val", None), _core.Literal):
            self.held.append(tracer.val)

    def process_shard_map(self, prim: Any, fun: Any, tracers: Any, /, **params: Any) -> Any:
        """Traces the body like the function, since outside `jit` JAX linearizes both in the same way."""
        body: list[_Trace] = []

        def traced_alike(*inner: Any) -> Any:
            theirs = _core.trace_ctx.trace
            ours = _Trace(theirs.frame.debug_info, theirs.parent_trace, self.keeps_rules)
            ours.frame = theirs.frame
            body.append(ours)
            with _core.set_current_trace(ours), _naming_axes(params["mesh"]):
                outs = fun(*[_same_in(ours, t) for t in inner])
            return outs.map(lambda x: _same_in(theirs, x) if getattr(x, "_trace", None) is ours else x)

        outs = super().process_shard_map(prim, traced_alike, tracers, **params)
        for trace in body:
            self.holds_tracers |= trace.holds_tracers
            self.takes_tracers |= trace.takes_tracers
            traced_ = TracedJaxpr(
                self.frame.tracing_eqns[-1].params["jaxpr"], trace.held, [], trace.made_from, trace.bodies
            )
            self.bodies.append(traced_)
        return outs

    def process_custom_jvp_call(self, prim: Any, fun: Any, jvp: Any, tracers: Any, /, **params: Any) -> Any:
        """Keeps the rule itself: outside `jit`, JAX saves its scalars like those of any other function."""
        tracers = self._unfolded(fun, tracers)
        alike = _MappedAlike()
        jvp = alike.rule(_as_it_is_now(jvp) if self.keeps_rules else jvp)
        function_of = partial(_jvp_of_rule, jvp, symbolic_zeros=params["symbolic_zeros"])
        taken = self._taken(jvp, tracers, function_of)
        fun = alike.function(fun, partial(self._taken, jvp, tracers, function_of, at_once=True))
        out = super().process_custom_jvp_call(prim, self.seen(fun, tracers), jvp, tracers, **params)
        self._keep("jvp_jaxpr_fun", prim, jvp, taken)
        return out

    def process_custom_vjp_call(self, prim: Any, fun: Any, fwd: Any, bwd: Any, tracers: Any, /, **params: Any) -> Any:
        """Keeps the forward rule itself, for the same reason."""
        tracers = self._unfolded(fun, tracers)
        self.holds_tracers |= _holds_tracers(self, bwd)
        alike = _MappedAlike()
        fwd = alike.rule(_as_it_is_now(fwd) if self.keeps_rules else fwd)
        function_of = partial(_forward_of_rule, fwd)
        taken = self._taken(fwd, tracers, function_of, params["out_trees"])
        fun = alike.function(fun, partial(self._taken, fwd, tracers, function_of, params["out_trees"], at_once=True))
        out = super().process_custom_vjp_call(prim, self.seen(fun, tracers), fwd, bwd, tracers, **params)
        self._keep("fwd_jaxpr_thunk", prim, fwd, taken)
        return out

    def _unfolded(self, fun: Any, operands: Sequence[Any]) -> Sequence[Any]:
        """The operands of a function with a custom rule.

        JAX would compute it at once if all of them are constants, even if the function closes over a value of this
        trace.
        """
        if not (_config.eager_constant_folding.value and _holds_tracers(self, fun)):
            return operands
        return [self.to_jaxpr_tracer(x, source_info=_source.current()) for x in operands]

    def seen(self, fun: Any, tracers: Sequence[Any]) -> Any:
        """A function with a custom rule that is being traced."""
        return fun

    def _taken(
        self,
        rule: Any,
        tracers: Sequence[Any],
        function_of: Callable[..., Any],
        out_trees: Any = lambda: None,
        at_once: bool = False,
    ) -> _TakenRule | None:
        """A custom rule that has to be traced immediately, since what it closes over, or its values, are gone when the
        trace ends."""
        if not self.keeps_rules and self.levels == 0:
            return None
        outer = self.within or self
        holds_own, holds_inner = _holds_tracers(outer, rule), _holds_tracers(outer, rule, inside=True)
        if self.within is not None:
            # For example, a rule that calls its own function. It is traced each time it is differentiated, as in JAX.
            if not (holds_own or holds_inner):
                return None
        else:
            folds = _config.eager_constant_folding.value
            if not (at_once or self.takes_rules or holds_inner or (holds_own and folds)):
                self.holds_tracers |= holds_own
                return None
            self.takes_tracers |= holds_own
        tracers = [self.to_jaxpr_tracer(x, source_info=_source.current()) for x in tracers]
        carries = self.carry_tangents(tracers)
        if not any(carries):
            return None

        def traced(carries: list[bool]) -> _TakenRule:
            function, avals, nonzeros_out = function_of([t.aval for t in tracers], carries)
            with _core.set_current_trace(self):
                jaxpr = trace_to_jaxpr(
                    function,
                    avals,
                    values=self.values_of(tracers, len(avals)),
                    active=[*carries, *([True] * (len(avals) - len(carries)))],
                    keeps_rules=False,
                    within=outer,
                    levels=self.levels - 1 if self.within is not None else _n_derivatives(self.parent_trace),
                )
            return _TakenRule(rule, jaxpr, carries, nonzeros_out, out_trees())

        # JAX rejects tangents of values that a function closed over before it was traced; these are its first operands.
        for n in range(len(carries)):
            with contextlib.suppress(_ad.CustomVJPException):
                return traced([c and i >= n for i, c in enumerate(carries)])
        return traced(carries)

    takes_rules = False

    def carry_tangents(self, tracers: Sequence[Any]) -> list[bool]:
        """Which values may carry a tangent."""
        return [not is_float0(t.aval.to_tangent_aval()) for t in tracers]

    def values_of(self, tracers: Sequence[Any], n: int) -> list[Any] | None:
        """The concrete values behind tracers, padded with None up to `n`, if this trace has any."""
        return None

    def _keep(self, name: str, prim: Any, rule: Any, taken: _TakenRule | None) -> None:
        """Records the rule of the new equation; one that was traced immediately has what it closes over as operands."""
        eqn = self.frame.tracing_eqns[-1] if self.frame.tracing_eqns else None
        if eqn is None or eqn.primitive is not prim:
            return
        if taken is None:
            if self.keeps_rules:
                _rules[eqn.params[name].f] = rule
            return
        consts = [self.to_jaxpr_tracer(x, source_info=eqn.source_info) for x in taken.traced.jaxpr.consts]
        n = eqn.params["num_consts"]
        eqn.in_tracers = [*eqn.in_tracers[:n], *consts, *eqn.in_tracers[n:]]
        call = _with_unused_inputs(eqn.params["call_jaxpr"], n, [t.aval for t in consts])
        eqn.params = {**eqn.params, "call_jaxpr": call}
        if name == "jvp_jaxpr_fun":
            # JAX's own rule can no longer be traced. Its replacement distinguishes zero tangents from others.
            eqn.params |= {name: _thunk_of(taken, [t.aval for t in eqn.in_tracers[n:]], rule), "symbolic_zeros": True}
        else:
            eqn.params |= _taken_forward_params(taken, rule, eqn.params["bwd"])
        if taken.out_trees is not None:
            out_tree, residual_tree, forwarded = taken.out_trees
            shifted = [i if i is None else i + n + len(consts) for i in forwarded]
            eqn.params["out_trees"] = lambda: (out_tree, residual_tree, shifted)
        _rules[eqn.params[name].f] = taken


@contextlib.contextmanager
def _custom_rules_of_old() -> Iterator[None]:
    """Makes functions with custom rules bind primitives of their own, instead of hi-primitives."""
    with contextlib.ExitStack() as flags:
        for name in ("custom_jvp3", "custom_vjp3"):
            if hasattr(_config, name):
                flags.enter_context(getattr(_config, name)(False))
        yield


def _n_derivatives(trace: Any) -> int:
    """How many of the active traces, this one and those around it, may differentiate."""
    n = 0
    while trace is not None:
        n += isinstance(trace, (_Trace, _ad.JVPTrace, _ad.LinearizeTrace))
        trace = getattr(trace, "parent_trace", None)
    return n


def _thunk_of(taken: _TakenRule, in_avals: Sequence[Any], rule: Any) -> Any:
    """A JVP rule that was traced immediately, in the form of its equation's params: from the operands without a tangent
    to a jaxpr."""

    @cache
    def thunk(*zeros: bool) -> tuple[Any, list[Any], list[bool]]:
        if not all(zeros[: taken.n_consts]):
            raise closed_over_by_jvp_rule_error(rule.debug_info)
        push, avals, nonzeros_out = _jvp_of_rule(taken, in_avals, [not z for z in zeros], symbolic_zeros=True)
        with _core.set_current_trace(None):
            jaxpr = trace_to_jaxpr(push, avals, keeps_rules=False).jaxpr
        return jaxpr.jaxpr, jaxpr.consts, [not nz for nz in nonzeros_out]

    return _lu.wrap_init(thunk, debug_info=rule.debug_info)


@contextlib.contextmanager
def _naming_axes(mesh: Any) -> Iterator[None]:
    """Adds the bound axes to JAX's error for an axis that is not, which has no text inside a `shard_map`."""
    try:
        yield
    except AssertionError as error:
        if not error.args:
            error.add_note(
                f"Perhaps an axis that is not bound is named here; inside this shard_map there are {mesh.axis_names}."
            )
        raise


def _same_in(trace: Any, tracer: Any) -> Any:
    """A tracer of the same variable, for a trace that writes into the same frame."""
    return _pe.DynamicJaxprTracer(trace, tracer.aval, tracer.val, tracer._line_info, tracer.parent)


class _PathTracer(_pe.DynamicJaxprTracer):
    """A tracer that knows its value, and exposes it to Python where JAX does so outside `jit`.

    A value that carries a tangent may decide a branch (`bool`, `int`, an index), but may not be converted to a `float`
    or a NumPy array, since its derivative would be lost; one that carries none may.
    """

    __slots__ = ()

    def to_concrete_value(self) -> Any:
        return self._trace.value_of(self.val)

    def __bool__(self) -> bool:
        return bool(self._trace.note("bool", super().__bool__()))

    def __int__(self) -> int:
        return int(self._trace.note("int", super().__int__()))

    def __index__(self) -> int:
        return int(self._trace.note("index", super().__index__()))

    def __float__(self) -> float:
        value = self._free_value()
        return super().__float__() if value is None else float(self._trace.note("float", float(value)))

    def __complex__(self) -> complex:
        value = self._free_value()
        return super().__complex__() if value is None else complex(self._trace.note("complex", complex(value)))

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        value = self._free_value()
        if value is None:
            return super().__array__(*args, **kwargs)
        return np.asarray(self._trace.note("value", value)).__array__(*args, **kwargs)

    def tolist(self) -> Any:
        return super().tolist() if self._free_value() is None else self.__array__().tolist()

    def item(self, *args: int) -> Any:
        return super().item(*args) if self._free_value() is None else self.__array__().item(*args)

    def _free_value(self) -> Any:
        return None if self._trace.carries_tangent(self.val) else self.to_concrete_value()


class _PathTrace(_Trace):
    """Tracing that also evaluates each equation as it is written, so that Python can branch on values."""

    __slots__ = ("active", "copies", "looks", "values")

    def __init__(self, debug_info: Any, parent: Any, keeps_rules: bool = True):
        super().__init__(debug_info, parent, keeps_rules)
        self.values: dict[Any, Any] = {}
        self.active: set[Any] = set()
        self.looks: list[tuple[Any, str, Any]] = []
        self.copies: Copies = Copies(parent.copies if isinstance(parent, _PathTrace) else None)
        """What is evaluated reads and writes copies of the user's references: the program itself has yet to run."""

    def note(self, kind: str, value: Any) -> Any:
        self.looks.append((_source.current(), kind, value))
        return value

    def carries_tangent(self, atom: Any) -> bool:
        """Whether a derivative would be lost if Python took the value away."""
        if isinstance(atom, _core.Literal):
            return False
        return atom in self.active or isinstance(self.frame.constvar_to_val.get(atom), _core.Tracer)

    def value_of(self, atom: Any) -> Any:
        """The concrete value of a variable or literal, or None where there is none (under an outer jit)."""
        if isinstance(atom, _core.Literal):
            return atom.val
        if atom not in self.values and atom in self.frame.constvar_to_val:
            self.values[atom] = self.copies(concrete_value(self.frame.constvar_to_val[atom]))
        return self.values.get(atom)

    def var_to_tracer(self, var: Any, source_info: Any, parent: Any = None) -> Any:
        return _PathTracer(self, _type_with_state(var), var, source_info, parent)

    def new_arg(self, aval: Any, source_info: Any) -> Any:
        tracer = super().new_arg(aval, source_info)
        return _PathTracer(self, aval, tracer.val, source_info)

    def new_const(self, c: Any, source_info: Any, aval: Any = None) -> Any:
        tracer = super().new_const(c, source_info, aval)
        tracer.__class__ = _PathTracer  # and not another tracer: JAX drops a constant with the tracer that it made
        return tracer

    def emit_eqn(self, *args: Any, **kwargs: Any) -> Any:
        out = super().emit_eqn(*args, **kwargs)
        self._catch_up()
        return out

    def default_process_primitive(self, *args: Any, **kwargs: Any) -> Any:
        out = super().default_process_primitive(*args, **kwargs)
        self._catch_up()
        return out

    takes_rules = True

    def carry_tangents(self, tracers: Sequence[Any]) -> list[bool]:
        return [self.carries_tangent(t.val) for t in tracers]

    def values_of(self, tracers: Sequence[Any], n: int) -> list[Any] | None:
        values = [self.value_of(t.val) for t in tracers]
        return [*values, *([None] * (n - len(values)))]

    def seen(self, fun: Any, tracers: Sequence[Any]) -> Any:
        """The function, whose Python may branch on values as well."""

        def on_values(*inner: Any) -> list[Any]:
            theirs = _core.trace_ctx.trace
            ours = _PathTrace(theirs.frame.debug_info, theirs.parent_trace, keeps_rules=False)
            ours.frame = theirs.frame
            ours.copies = Copies(self.copies)  # the call as a whole is evaluated after its body
            for t, x in zip(inner, tracers, strict=True):
                value = self.to_jaxpr_tracer(x, source_info=_source.current()).val
                ours.values[t.val] = ours.copies(self.value_of(value))
                if self.carries_tangent(value):
                    ours.active.add(t.val)
            with _core.set_current_trace(ours):
                outs = fun.call_wrapped(*[_PathTracer(ours, t.aval, t.val, t._line_info, t.parent) for t in inner])
            self.looks += ours.looks
            return [_same_in(theirs, x) if getattr(x, "_trace", None) is ours else x for x in outs]

        return _lu.wrap_init(on_values, debug_info=fun.debug_info)

    def _catch_up(self) -> None:
        """Evaluates the newest equation, if that has not been done."""
        eqns = self.frame.tracing_eqns
        if not eqns:
            return
        eqn = eqns[-1]
        if eqn.outvars and eqn.outvars[0] in self.values:
            return
        ins = [self.value_of(t.val) for t in eqn.in_tracers]
        if any(x is None for x in ins):
            return
        with _core.set_current_trace(_core.eval_trace), eqn.ctx.manager:
            outs = eqn.primitive.bind(*ins, **eqn.primitive.get_bind_params(eqn.params))
        self.values.update(zip(eqn.outvars, outs if eqn.primitive.multiple_results else [outs], strict=True))
        mask = tuple(self.carries_tangent(t.val) for t in eqn.in_tracers)
        if any(mask):
            from jaxviz.ir.compat.rules import nonzero_results  # whose rules this module traces

            reaches = nonzero_results(eqn, mask)
            self.active.update(v for v, nonzero in zip(eqn.outvars, reaches, strict=True) if nonzero)


def _type_with_state(var: Any) -> Any:
    return _core.AvalQDD(var.aval, var.initial_qdd) if getattr(var.aval, "has_qdd", False) else var.aval


def _uses_reference(eqn: Any) -> bool:
    return any(map(is_ref, (*(t.aval for t in eqn.in_tracers), *(v.aval for v in eqn.outvars))))


class RuleHoldsTracer(Exception):
    """A custom rule closes over a value of the trace.

    Args:
      uses_references: whether the function also uses mutable references, so that nothing of it may be computed while it
        is traced.
    """

    def __init__(self, uses_references: bool):
        super().__init__(
            "A custom rule closes over a value that is computed in the function or the rule that calls it. Pass that "
            "value to the function with the rule as an argument."
        )
        self.uses_references = uses_references


def trace_to_jaxpr(
    fun: Callable[..., Sequence[Any]],
    avals: Sequence[Any],
    debug_info: Any = None,
    values: Sequence[Any] | None = None,
    active: Sequence[bool] = (),
    keeps_rules: bool = True,
    folds: bool = False,
    closes_over: bool = True,
    within: _Trace | None = None,
    levels: int = 0,
) -> TracedJaxpr:
    """Traces a function of flat arguments.

    Args:
      fun: takes one tracer for each aval, returns a flat sequence of results.
      avals: types of the arguments.
      debug_info: see `function_debug_info`; without it, that of a rule, which has no names.
      values: concrete arguments; if given, the function is run on them, and may branch on values.
      active: with `values`, which arguments have a tangent; none by default.
      keeps_rules: whether custom JVP rules found here are remembered; see `trace_custom_jvp_rule`.
      folds: whether what depends only on constants is computed immediately, and becomes a constant, as outside `jit`.
      closes_over: whether a custom rule may close over a value of the trace that is not a constant.
      within, levels: for a custom rule, the enclosing trace, and the number of further derivatives; rules found here
        that close over values of that trace are also traced immediately.

    Raises:
      RuleHoldsTracer: without `folds`, or without `closes_over`, if a custom rule closes over a value of the trace.
    """
    parent = _core.trace_ctx.trace
    debug_info = debug_info if debug_info is not None else unknown_debug_info(len(avals), 0)
    trace = (_Trace if values is None else _PathTrace)(debug_info, parent, keeps_rules)
    trace.within, trace.levels = within, levels
    # Unlike JAX's tracing this keeps the frames outside `fun`, so that an operation of a library function that the user
    # passes directly, such as `jnp.sin`, is located at the user's call.
    with _source.reset_name_stack():
        source = _source.current()
        tracers = [trace.new_arg(aval, source_info=source) for aval in avals]
        if isinstance(trace, _PathTrace):
            trace.values.update(zip((t.val for t in tracers), map(trace.copies, values or ()), strict=True))
            carries = active or [False] * len(tracers)
            trace.active.update(t.val for t, carried in zip(tracers, carries, strict=True) if carried)
        with (
            _core.set_current_trace(trace),
            _config.eager_constant_folding(True) if folds else contextlib.nullcontext(),
        ):
            results = fun(*tracers)
        refused = not closes_over and (trace.holds_tracers or trace.takes_tracers)
        if trace.keeps_rules and (refused or (trace.holds_tracers and not folds)):
            raise RuleHoldsTracer(uses_references=any(map(_uses_reference, trace.frame.tracing_eqns)))
        debug_info = debug_info._replace(result_paths=("",) * len(results))
        outs = [trace.to_jaxpr_tracer(dtypes.canonicalize_value(x), source_info=source) for x in results]
        jaxpr, consts = trace.to_jaxpr(outs, debug_info, source)
    looks = trace.looks if isinstance(trace, _PathTrace) else []
    traced_ = TracedJaxpr(ClosedJaxpr(jaxpr, consts), trace.held, looks, trace.made_from, trace.bodies)
    trace.invalidate()
    return traced_


def evaluate_in_trace(
    program: Program, inputs: Sequence[Any], params_of: Callable[[Operation], Mapping[str, Any]]
) -> list[Any] | None:
    """Evaluates a program while one of our traces is active, which then records from which equation each of its own was
    created.

    Args:
      program, inputs: as for `evaluate`.
      params_of: an operation's params in JAX's form.

    Returns:
      the results, or None if there is no such trace.
    """
    trace = _core.trace_ctx.trace
    if type(trace) is not _Trace:
        return None
    env: dict[Atom, Any] = dict(zip(program.constvars, program.consts, strict=True))
    env |= zip(program.invars, inputs, strict=True)
    read = lambda a: a.val if isinstance(a, Literal) else env[a]
    eqns = trace.frame.tracing_eqns
    for e in program.equations:
        start = len(eqns)
        source = e.source if e.source is not None else _source.new_source_info()
        names = _source.current_name_stack() + source.name_stack
        with _source.user_context(source.traceback, name_stack=names), e.operation.context.manager:
            outs = e.primitive.bind(*map(read, e.invars), **e.primitive.get_bind_params(params_of(e.operation)))
        env.update(zip(e.outvars, outs if e.primitive.multiple_results else [outs], strict=True))
        trace.made_from.update((i, e) for i in range(start, len(eqns)))
        for a, t in zip(e.invars, eqns[start].in_tracers if len(eqns) == start + 1 else (), strict=False):
            if isinstance(a, Literal) and a.held:
                trace.hold(t)
    return [read(a) for a in program.outvars]
