"""The one file that imports `jax._src` and knows JAX versions.

`private_names.py` has a row for each name: why the public API does not serve, and what does not work where a JAX lacks it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
import os
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jaxlib
import numpy as np

from jaxviz.ir.private_names import check_jax, complete

check_jax()  # before what is imported next, which another JAX may lack

from jax._src import ad_util as _ad_util
from jax._src import api as _api
from jax._src import api_util, debugging, dispatch, dtypes, pjit
from jax._src import array as _array
from jax._src import callback as _callback
from jax._src import config as _config
from jax._src import core as _core
from jax._src import effects as _effects
from jax._src import hijax as _hijax
from jax._src import linear_util as _lu
from jax._src import mesh as _mesh
from jax._src import shard_map as _shard_map
from jax._src import sharding_impls as _sharding_impls
from jax._src import source_info_util as _source
from jax._src import traceback_util as _traceback_util
from jax._src import tree_util as _tree_util
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import partial_eval as _pe
from jax._src.interpreters import pxla as _pxla
from jax._src.lax import lax as _lax
from jax._src.lax.control_flow import conditionals as _conditionals
from jax._src.lib.mlir.dialects import hlo as _hlo
from jax._src.state import types as _state_types
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, primitives

try:
    from jax._src import flattree as _flattree
except ImportError:  # before 0.11
    _flattree = None

from jaxviz.ir.sharing import SharedTable, cleared, exact_params, is_data
from jaxviz.ir.syntax import Atom, Equation, Literal, Operation, Program, Var

for _alias, _module in tuple(globals().items()):
    if isinstance(_module, types.ModuleType) and _module.__name__.startswith("jax._src."):
        globals()[_alias] = complete(_module)

JAX: str = f"JAX {jax.__version__}"

DropVar: Any = _core.DropVar
jit_p: Any = pjit.jit_p
add_any_p: Any = jax.interpreters.ad.add_jaxvals_p
ConcretizationTypeErrors = (
    jax.errors.ConcretizationTypeError,  # parent of the tracer errors for bool, int and float
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
UNSPECIFIED: Any = pjit.UNSPECIFIED
scan_p: Any = primitives.scan_p
while_p: Any = primitives.while_p
cond_p: Any = primitives.cond_p
remat_p: Any = primitives.remat_p
name_p: Any = primitives.name_p
reduce_precision_p: Any = primitives.reduce_precision_p
device_put_p: Any = primitives.device_put_p
custom_jvp_call_p: Any = primitives.custom_jvp_call_p
custom_vjp_call_p: Any = primitives.custom_vjp_call_p
custom_lin_p: Any = primitives.custom_lin_p
remat_opt_p: Any = jax.custom_derivatives.remat_opt_p
closed_call_p: Any = primitives.closed_call_p
core_call_p: Any = _core.call_p
hi_primitive_p: Any = _hijax.call_hi_primitive_p
shard_map_p: Any = _shard_map.shard_map_p
sharding_constraint_p: Any = pjit.sharding_constraint_p
debug_callback_p: Any = debugging.debug_callback_p
debug_print_p: Any = debugging.debug_print_p


# --- jaxprs -----------------------------------------------------------------------------------------------------------


def names_inside_as_outside(primitive: Any) -> bool:
    """Whether JAX prints the program of an equation with the names of its operands and results for its own."""
    return primitive is jit_p


def new_jaxpr(
    constvars: Sequence[Any], invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any],
    effects: Iterable[Any], debug_info: Any, is_high: bool,
) -> Any:  # fmt: skip
    """An open `Jaxpr`."""
    debug_info = debug_info if debug_info is not None else unknown_debug_info(len(invars), len(outvars))
    return _core.Jaxpr(constvars, invars, outvars, eqns, frozenset(effects), debug_info, is_high)


def new_eqn(
    invars: Sequence[Any], outvars: Sequence[Any], primitive: Any, params: Mapping[str, Any],
    effects: Any, source: Any, context: Any,
) -> Any:  # fmt: skip
    """A `JaxprEqn`; the caller answers for its types."""
    source = source if source is not None else _source.new_source_info()
    return _core.JaxprEqn(invars, outvars, primitive, params, effects, source, context)


def current_source() -> Any:
    """Where Python is now, as the `source` of an equation."""
    return _source.current()


def current_context() -> Any:
    """The equation context in force: mesh, compute type, random number layout."""
    return _core.current_jaxpr_eqn_context()


def within(context: Any) -> contextlib.AbstractContextManager[None]:
    """Puts an equation's context in force."""
    if context is current_context():
        return contextlib.nullcontext()
    manager: contextlib.AbstractContextManager[None] = context.manager
    return manager


def closed_jaxpr(jaxpr: Any, consts: Sequence[Any]) -> Any:
    """An open jaxpr with the values of its constvars."""
    return ClosedJaxpr(jaxpr, consts)


def states_of(var: Any) -> tuple[Any, Any]:
    """The states that a variable of a mutable type begins and ends with, where JAX records them (before 0.11.1)."""
    return getattr(var, "initial_qdd", None), getattr(var, "final_qdd", None)


def is_high(jaxpr: Any) -> bool:
    return bool(getattr(jaxpr, "is_high", False))


def is_high_equation(primitive: Any, in_avals: Sequence[Any], params: Mapping[str, Any]) -> bool:
    """Whether an equation is of the high level, which JAX lowers to others before it compiles: a hi-primitive, or a call of one."""
    return bool(primitive.is_high(*in_avals, **params))


def hi_primitive_name(params: Mapping[str, Any]) -> str:
    """`CustomVJPTraced of f`: the class of the hi-primitive that an equation with these params calls; '' where it calls none."""
    if "_prim" not in params:
        return ""
    function = getattr(getattr(params["_prim"], "traced", None), "fun_name", "")
    return f"{type(params['_prim']).__name__}{f' of {function}' if function else ''}"


@dataclass(frozen=True)
class _AskedOfSome:
    """A checkpoint policy as `jax_remat3` has it: it is asked of names, products of matrices and convolutions; all else is computed again."""

    __wrapped__: Any

    def __call__(self, primitive: Any, *avals: Any, **params: Any) -> Any:
        if primitive in (name_p, primitives.dot_general_p, primitives.conv_general_dilated_p):
            return self.__wrapped__(primitive, *avals, **params)
        return self.__wrapped__ is jax.checkpoint_policies.everything_saveable


_OPENS_CHECKPOINTS: bool = jax.__version_info__ >= (0, 12)
"""Whether a checkpoint that is a hi-primitive has what one that is not has, among it `prevent_cse`, and keeps what that keeps."""


def opened(primitive: Any, params: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """The primitive and the params of an equation; of one that calls a hi-primitive, those of the checkpoint or the name that it is.

    Under `jax_remat3` that is what `jax.checkpoint` and `checkpoint_name` write.
    """
    held = params.get("_prim") if _OPENS_CHECKPOINTS else None
    kind = type(held).__name__
    if held is not None and kind == "RematTraced":
        policy = None if held.policy is None else _AskedOfSome(held.policy)
        made = {"jaxpr": held.jaxpr, "prevent_cse": held.prevent_cse, "differentiated": False, "policy": policy}
        return remat_p, made
    if held is not None and kind == "CheckpointName":
        return name_p, {"name": held.name}
    return primitive, params


def is_ref(aval: Any) -> bool:
    """Whether a type is that of a mutable reference."""
    return isinstance(aval, _state_types.AbstractRef)


def is_array(x: Any) -> bool:
    """Whether x is an array on a device, which JAX's linearize always keeps as it is."""
    return isinstance(x, jax.Array)


def unknown_debug_info(num_inputs: int, num_outputs: int) -> Any:
    return _core.DebugInfo("jaxviz", "derived", ("",) * num_inputs, ("",) * num_outputs)


def function_debug_info(fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Name, source and argument paths of a function, as JAX's tracing errors name them."""
    return api_util.debug_info("jaxviz", fun, args, kwargs)


def parameters(
    fun: Callable[..., Any], n: int, options: Mapping[str, Any]
) -> tuple[list[str], tuple[int, ...], tuple[str, ...]]:
    """The names that a function has for `n` positional arguments, and which arguments `jit` takes as static, by place and by name."""
    signature = api_util.fun_signature(fun)
    names = [f"args[{i}]" for i in range(n)]
    if signature is not None:
        positional = [
            p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        names[: len(positional)] = positional[:n]
    argnums, argnames = options.get("static_argnums"), options.get("static_argnames")
    if signature is not None:
        argnums, argnames = api_util.infer_argnums_and_argnames(signature, argnums, argnames)
    return names, _as_tuple(argnums), _as_tuple(argnames)


def _as_tuple(x: Any) -> tuple[Any, ...]:
    return () if x is None else (x,) if isinstance(x, (int, str)) else tuple(x)


def name_function(fun: Callable[..., Any], debug_info: Any) -> None:
    """Has errors and debug info name a wrapper as the function that it wraps."""
    api_util.save_wrapped_fun_debug_info(fun, debug_info._replace(result_paths=None))


def derived_debug_info(debug_info: Any, arg_names: Sequence[str], num_outputs: int) -> Any:
    """The debug info of a program derived from one that has `debug_info`."""
    if debug_info is None:
        return unknown_debug_info(len(arg_names), num_outputs)
    return debug_info._replace(arg_names=tuple(arg_names), result_paths=("",) * num_outputs)


def positional_effects(effects: Iterable[Any], inputs: Sequence[Any]) -> frozenset[Any]:
    """Effects with each input they concern given by its position."""
    if not effects:
        return frozenset()
    where = {id(v): i for i, v in enumerate(inputs)}
    by_position = set()
    for e in effects:
        if isinstance(e, _effects.JaxprInputEffect) and not isinstance(e.input, int):
            if id(e.input) not in where:
                continue  # an effect on a closed-over reference, which jaxprs of this kind carry themselves
            e = e.replace(where[id(e.input)])
        by_position.add(e)
    return frozenset(by_position)


def moved_effects(effects: Iterable[Any], places: Sequence[int | None]) -> frozenset[Any]:
    """Effects by position, with the input at i moved to places[i]; one on an input that has no place is left out."""
    moved = set()
    for e in effects:
        if isinstance(e, _effects.JaxprInputEffect) and isinstance(e.input, int):
            if places[e.input] is None:
                continue
            e = e.replace(places[e.input])
        moved.add(e)
    return frozenset(moved)


def resolved_effects(effects: frozenset[Any], inputs: Sequence[Any]) -> frozenset[Any]:
    """The inverse of `positional_effects`."""
    return frozenset(_core.resolve_input_effects(effects, inputs)) if effects else effects


def is_user_file(name: str) -> bool:
    """Whether a file is the user's: neither jax's nor the standard library's."""
    return bool(_source.is_user_filename(name))


# --- source lines -----------------------------------------------------------------------------------------------------


# An operation's innermost frame is that of our trace, which JAX would take for the user's where it names one line.
source_info_util.register_exclusion(__file__)


# Where a traceback leaves out jax's frames, it leaves out those of this package too.
_traceback_util.register_exclusion(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def api_boundary(fun: Any) -> Any:
    """The function as one that tracebacks are filtered at; see `jaxviz.ir.boundary`."""
    return _traceback_util.api_boundary(fun)


def filters_tracebacks() -> bool:
    """Whether the user lets JAX leave frames out of tracebacks."""
    return bool(_config.traceback_filtering.value != "off")


@functools.cache
def is_hidden(file: str) -> bool:
    """Whether the frames of a file are left out of tracebacks."""
    return not _traceback_util.include_filename(file)


def user_frames(traceback: Any) -> Iterator[Any]:
    """The frames of a traceback outside jax and the standard library, innermost first."""
    frames: Iterator[Any] = _source.user_frames(traceback)
    return frames


def frames_of(source: Any) -> list[tuple[Any, int]]:
    """The whole call stack of an equation, innermost first: code objects, with the instruction that each was at."""
    if source is None or source.traceback is None:
        return []
    codes, instructions = source.traceback.raw_frames()
    return list(zip(codes, instructions, strict=True))


_LIBRARY = tuple(f"/jax/_src/{name}" for name in ("nn/", "numpy/", "scipy/", "ops/", "lax/", "random.py"))
_OPERATORS = frozenset("add subtract multiply true_divide floor_divide power remainder negative matmul".split())


def library_call(source: Any) -> str:
    """The public function of jax's that the user's line called to write an equation: 'gelu'; '' for an operator, or where none is found."""
    called: list[Any] = []
    for frame in source.traceback.frames if source is not None and source.traceback is not None else ():
        if is_user_file(frame.file_name):
            break
        called.append(frame)
    for frame in reversed(called):
        name = frame.function_name
        if name.isidentifier() and not name.startswith("_") and any(part in frame.file_name for part in _LIBRARY):
            return "" if name in _OPERATORS else str(name)
    return ""


def is_of_custom_rule(source: Any) -> bool:
    """Whether an equation was written by the rule of a function of the user's with custom derivatives.

    JAX's transposition gives what `bwd` computes the line that calls the function.
    """
    frames = source.traceback.frames if source is not None and source.traceback is not None else ()
    inner = False  # whether the frame before is JAX's of custom derivatives
    was_user = False
    for frame in frames:
        is_custom = frame.file_name.endswith("/jax/_src/custom_derivatives.py")
        is_user = is_user_file(frame.file_name)
        if (is_user and inner) or (is_custom and was_user):
            return True
        if was_user and is_user:
            return False
        if frame.file_name.endswith(
            ("/jax/_src/traceback_util.py", "/jax/_src/linear_util.py", "/jax/_src/api_util.py")
        ):
            continue
        inner, was_user = is_custom, was_user or is_user
    return False


def scopes(source: Any) -> tuple[str, ...]:
    """The names that `jax.named_scope` and libraries left on an equation, outermost first, without transforms such as `vmap(...)`."""
    if source is None or not source.name_stack.stack:  # as most
        return ()
    path: list[str] = []
    part: list[str] = []
    for item in (*source.name_stack.stack, _source.Transform("transpose")):
        if isinstance(item, _source.Scope):
            if item.name != RECOMPUTED:
                part.append(item.name)
        elif item.name in ("jvp", "transpose"):
            # What differentiation derives within the scopes of what it derives from names them once more.
            path = part if part[: len(path)] == path else path + part
            part = []
    return tuple(path)


def is_differentiated(source: Any) -> bool:
    """Whether an equation was written by differentiation inside the function that was traced."""
    stack = source.name_stack.stack if source is not None else ()
    return any(isinstance(item, _source.Transform) and item.name in ("jvp", "transpose") for item in stack)


def is_transposed(source: Any) -> bool:
    """Whether an equation was written by JAX's transposition inside the function that was traced."""
    stack = source.name_stack.stack if source is not None else ()
    return any(isinstance(item, _source.Transform) and item.name == "transpose" for item in stack)


def within_scopes(source: Any, outer: Any) -> Any:
    """An equation's source where the equation is taken out of the one that held it, so that that one's scopes hold it now.

    One that has a scope alone stands on the line of the equation that held it.
    """
    if source is None or outer is None:
        return source
    if source.traceback is None:
        return outer.replace(name_stack=outer.name_stack + source.name_stack)
    return source.replace(name_stack=outer.name_stack + source.name_stack) if outer.name_stack.stack else source


def scope_alone(source: Any) -> Any:
    """The scopes of an equation of one of JAX's rules, whose line is where the rule was traced; None if it has none."""
    return source.replace(traceback=None) if source is not None and source.name_stack.stack else None


RECOMPUTED = "rematted_computation"
"""JAX's scope of what a checkpoint computes again, by which profiles name it."""


def in_scope(source: Any, name: str) -> Any:
    """An equation's source within one more scope."""
    if source is None:
        return named_source(name)
    return source.replace(name_stack=_source.NameStack((_source.Scope(name),)) + source.name_stack)


def named_source(name: str) -> Any:
    """The `source` of an equation that stands on no line, in a scope of this name alone, which the programs compiled from it carry."""
    return _source.new_source_info().replace(name_stack=_source.NameStack((_source.Scope(name),)), traceback=None)


# --- tracing ----------------------------------------------------------------------------------------------------------


_rules: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""What the `jvp_jaxpr_fun` or the `fwd_jaxpr_thunk` of an equation calls -> the user's rule that it traces."""


class _Trace(_pe.DynamicJaxprTrace):
    """JAX's own tracing, which also notes the scalars that `jax.linearize` would keep as arrays.

    Called outside `jit`, a jitted `jnp` function gets its Python scalar converted inside it, and the converted array is
    then a residual like any other. In tracing the call is inlined and the conversion folded into a literal, which is
    the one place where JAX makes a constant with a type given from outside: that is what is noted.
    """

    __slots__ = ("bodies", "held", "holds_tracers", "keeps_rules", "made_from")

    def __init__(self, debug_info: Any, parent: Any, keeps_rules: bool = True):
        super().__init__(debug_info, parent_trace=parent)
        self.bodies: list[TracedJaxpr] = []
        self.made_from: dict[int, Equation] = {}
        self.held: list[Any] = []
        self.keeps_rules = keeps_rules
        self.holds_tracers = False
        """Whether a custom rule closes over a value of this trace, which is over when the rule is looked at."""

    def new_const(self, c: Any, source_info: Any, aval: Any = None) -> Any:
        tracer = super().new_const(c, source_info, aval)
        if aval is not None and isinstance(tracer.val, _core.Literal):
            self.held.append(tracer.val)
        return tracer

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
        """An operation whose result is a literal has been folded away, or handed its operand back: outside `jit` it is an array."""
        out = super().process_primitive(primitive, tracers, params)
        for tracer in out if primitive.multiple_results else [out]:
            self.hold(tracer)
        return out

    def stage_value(self, val: Any) -> Any:
        """`lax.convert_element_type` of a Python number: outside `jit`, an array."""
        out = super().stage_value(val)
        self.hold(out)
        return out

    def hold(self, tracer: Any) -> None:
        if isinstance(getattr(tracer, "val", None), _core.Literal):
            self.held.append(tracer.val)

    def process_shard_map(self, prim: Any, fun: Any, tracers: Any, /, **params: Any) -> Any:
        """Traces the body as it traces the function, since outside `jit` JAX linearizes the two in the same way."""
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
            made = TracedJaxpr(
                self.frame.tracing_eqns[-1].params["jaxpr"], trace.held, [], trace.made_from, trace.bodies
            )
            self.bodies.append(made)
        return outs

    def process_custom_jvp_call(self, prim: Any, fun: Any, jvp: Any, tracers: Any, /, **params: Any) -> Any:
        """Keeps the rule itself: called outside `jit`, JAX holds the scalars in it as those of any other function."""
        alike = _MappedAlike()
        jvp = alike.rule(jvp)
        function_of = partial(_jvp_of_rule, jvp, symbolic_zeros=params["symbolic_zeros"])
        taken = self._taken(jvp, tracers, function_of)
        fun = alike.function(fun, partial(self._taken, jvp, tracers, function_of, at_once=True))
        out = super().process_custom_jvp_call(prim, self.seen(fun, tracers), jvp, tracers, **params)
        self._keep("jvp_jaxpr_fun", prim, jvp, taken)
        return out

    def process_custom_vjp_call(self, prim: Any, fun: Any, fwd: Any, bwd: Any, tracers: Any, /, **params: Any) -> Any:
        """Keeps the forward rule itself, for the same reason."""
        self.holds_tracers |= _holds_tracers(self, bwd)
        alike = _MappedAlike()
        fwd = alike.rule(fwd)
        function_of = partial(_forward_of_rule, fwd)
        taken = self._taken(fwd, tracers, function_of, params["out_trees"])
        fun = alike.function(fun, partial(self._taken, fwd, tracers, function_of, params["out_trees"], at_once=True))
        out = super().process_custom_vjp_call(prim, self.seen(fun, tracers), fwd, bwd, tracers, **params)
        self._keep("fwd_jaxpr_thunk", prim, fwd, taken)
        return out

    def seen(self, fun: Any, tracers: Sequence[Any]) -> Any:
        """A function with a custom rule, as it is traced."""
        return fun

    def _taken(
        self,
        rule: Any,
        tracers: Sequence[Any],
        function_of: Callable[..., Any],
        out_trees: Any = lambda: None,
        at_once: bool = False,
    ) -> _TakenRule | None:
        """A custom rule that has to be traced at once, since what it closes over is gone when the trace is over, or its values are."""
        if not self.keeps_rules:
            return None
        holds_own, holds_inner = _holds_tracers(self, rule), _holds_tracers(self, rule, inside=True)
        folds = _config.eager_constant_folding.value
        if not (at_once or self.takes_rules or holds_inner or (holds_own and folds)):
            self.holds_tracers |= holds_own
            return None
        tracers = [self.to_jaxpr_tracer(x, source_info=_source.current()) for x in tracers]
        avals = [t.aval for t in tracers]
        carries = self.carry_tangents(tracers)
        if not any(carries):
            return None
        function, taken_avals, nonzeros_out = function_of(avals, carries)
        with _core.set_current_trace(self):
            traced = trace_to_jaxpr(
                function,
                taken_avals,
                unknown_debug_info(len(taken_avals), 0),
                values=self.values_of(tracers, len(taken_avals)),
                active=[*carries, *([True] * (len(taken_avals) - len(carries)))],
                keeps_rules=False,
            )
        return _TakenRule(rule, traced, carries, nonzeros_out, out_trees())

    takes_rules = False

    def carry_tangents(self, tracers: Sequence[Any]) -> list[bool]:
        """Which values may carry a tangent."""
        return [not is_float0(t.aval.to_tangent_aval()) for t in tracers]

    def values_of(self, tracers: Sequence[Any], n: int) -> list[Any] | None:
        """The concrete values behind tracers, followed by None up to `n`, where this trace has any."""
        return None

    def _keep(self, name: str, prim: Any, rule: Any, taken: _TakenRule | None) -> None:
        """Notes the rule of the equation that has just been written; one that was taken has what it closes over as operands."""
        eqn = self.frame.tracing_eqns[-1] if self.frame.tracing_eqns else None
        if not self.keeps_rules or eqn is None or eqn.primitive is not prim:
            return
        if taken is None:
            _rules[eqn.params[name].f] = rule
            return
        consts = [self.to_jaxpr_tracer(x, source_info=eqn.source_info) for x in taken.traced.jaxpr.consts]
        n = eqn.params["num_consts"]
        eqn.in_tracers = [*eqn.in_tracers[:n], *consts, *eqn.in_tracers[n:]]
        call = _with_unused_inputs(eqn.params["call_jaxpr"], n, [t.aval for t in consts])
        eqn.params = {**eqn.params, "call_jaxpr": call, "num_consts": n + len(consts)}
        if taken.out_trees is not None:
            out_tree, residual_tree, forwarded = taken.out_trees
            shifted = [i if i is None else i + n + len(consts) for i in forwarded]
            eqn.params["out_trees"] = lambda: (out_tree, residual_tree, shifted)
        _rules[eqn.params[name].f] = taken


def _with_unused_inputs(jaxpr: Any, at: int, avals: Sequence[Any]) -> Any:
    """A ClosedJaxpr with inputs of these types that it does not read, from position `at` on."""
    opened = jaxpr.jaxpr
    unused = [_core.Var(aval) for aval in avals]
    names = opened.debug_info.arg_names
    info = opened.debug_info._replace(
        arg_names=None if names is None else (*names[:at], *([""] * len(avals)), *names[at:])
    )
    invars = [*opened.invars[:at], *unused, *opened.invars[at:]]
    return ClosedJaxpr(opened.replace(invars=invars, debug_info=info), jaxpr.consts)


Axis = Any
"""An axis that is mapped over, JAX's `AxisData`: `name`, `size`, `spmd_name` and `explicit_mesh_axis`."""

Dims = tuple[int | None, ...]
"""The dimensions along which each of the vmaps around a function maps a result of it, that of the outermost first."""


class _MappedAlike:
    """Has a function with a custom rule and that rule give results that are mapped along the same dimensions.

    Outside `jit` JAX calls one of the two, under each `vmap` around them, and takes the results as that one maps them; a program has both.
    What is traced first decides. Where that is the function, and a result of it is not mapped, the rule is traced once before it is needed,
    to see how it maps them: a result whose tangent is mapped has to be too.

    Source: `BatchTrace.process_custom_jvp_call` and `process_custom_vjp_call` in JAX's `batching.py`.
    """

    def __init__(self) -> None:
        self._dims: list[Dims] | None = None
        """Of the results; of a forward rule's, those of the residuals before them."""

    def rule(self, rule: Any) -> Any:
        return self._wrapped(rule, lambda dims: None)

    def function(self, fun: Any, take: Callable[[], Any]) -> Any:
        """The function.

        Args:
          fun: a WrappedFun.
          take: traces the rule.
        """
        maps = [any(d is not None for d in args[2]) for gen, args in fun.transforms if _is_vmap(gen)]

        def look(dims: list[Dims]) -> None:
            if self._dims is not None or not any(d is None and m for of in dims for d, m in zip(of, maps, strict=True)):
                return
            with contextlib.suppress(Exception):  # which the rule raises again where it is used
                take()
            if self._dims is not None and not any(
                d is None and other is not None
                for of, others in zip(dims, self._of(len(dims)), strict=True)
                for d, other in zip(of, others, strict=True)
            ):
                self._dims = None

        return self._wrapped(fun, look)

    def _of(self, n: int) -> list[Dims]:
        """The dimensions of the last `n` results."""
        assert self._dims is not None
        return self._dims[len(self._dims) - n :]

    def _wrapped(self, fun: Any, look: Callable[[list[Dims]], None]) -> Any:
        vmaps = [
            (store, args[1]) for (gen, args), store in zip(fun.transforms, fun.stores, strict=True) if _is_vmap(gen)
        ]
        if not vmaps:
            return fun
        axes = [axis for _, axis in vmaps]

        def alike(call: Callable[..., Any], *args: Any) -> list[Any]:
            outs = call(*args)
            dims: list[Dims] = list(zip(*(store.val for store, _ in vmaps), strict=True))
            look(dims)
            if self._dims is None:
                self._dims = dims
                return list(outs)
            n = min(len(dims), len(self._dims))
            wanted = [
                tuple([d if other is None else other for d, other in zip(of, others, strict=True)])
                for of, others in zip(dims[len(dims) - n :], self._of(n), strict=True)
            ]
            wanted = dims[: len(dims) - n] + wanted
            self._dims = wanted
            for i, (store, _) in enumerate(vmaps):
                store.reset()
                store.store([of[i] for of in wanted])
            # The tangents that a JVP rule gives after its results are mapped as those are.
            return [_mapped_along(x, dims[i % len(dims)], wanted[i % len(dims)], axes) for i, x in enumerate(outs)]

        return fun.wrap(alike, (), None)


def _is_vmap(transform: Any) -> bool:
    return transform in (_batching.batch_subtrace.args[0], _batching.batch_custom_jvp_subtrace.args[0])


def _mapped_along(x: Any, dims: Dims, wanted: Dims, axes: Sequence[Axis]) -> Any:
    """A value that is mapped along some dimensions, mapped along others: moved there, and broadcast where it was not mapped.

    Args:
      x: the value, or a symbolic zero, which has no dimensions to move.
      dims, wanted: its dimensions, by `vmap`, the outermost first.
      axes: that each `vmap` maps over.
    """
    if dims == wanted or type(x) in (_ad_util.SymbolicZero, _ad.Zero) or is_float0(_core.typeof(x)):
        return x
    own = list(range(x.ndim - sum(d is not None for d in dims)))
    before, after = (_with_axes(own, d) for d in (dims, wanted))
    x = jax.lax.transpose(x, [before.index(a) for a in after if a in before])
    for i, a in enumerate(after):
        if a not in before:
            axis = axes[-1 - a]
            x = _batching.broadcast(x, axis.size, i, axis.explicit_mesh_axis)
    return x


def _with_axes(own: Sequence[int], dims: Dims) -> list[int]:
    """The order of the axes of a value that is mapped: its own from 0 on, and of the outermost `vmap` -1, of the next -2."""
    order = list(own)
    for i, d in reversed(list(enumerate(dims))):
        if d is not None:
            order.insert(d, -1 - i)
    return order


class _TakenRule:
    """A custom rule that was traced where its function was called, which is called as the rule itself is.

    Args:
      rule: the user's.
      traced: from what it closes over, its operands and, for a JVP rule, the tangents of those that carry one, to its results.
      carries: which operands carry a tangent.
      nonzeros_out: which results of a JVP rule have a tangent.
      out_trees: of a forward rule what it told of its results and residuals.
    """

    def __init__(
        self, rule: Any, traced: TracedJaxpr, carries: Sequence[bool], nonzeros_out: Sequence[bool], out_trees: Any
    ):
        self.traced = traced
        self.carries = carries
        self.nonzeros_out = nonzeros_out
        self.out_trees = out_trees
        # What the rule told others of its results, who may ask when the rule is used; JAX does not expect it so early.
        self._told = [(store, store.val) for store in rule.stores if store]
        _empty_stores(rule)

    @property
    def n_consts(self) -> int:
        return len(self.traced.jaxpr.consts)

    def of_jvp(self, *args: Any) -> list[Any]:
        """Operands and all tangents, those of what it closes over among them, to results and their tangents."""
        n = len(args) // 2
        tangents = [
            _ad.instantiate_zeros(_ad.replace_rule_output_symbolic_zeros(t))
            for t, carries in zip(args[n + self.n_consts :], self.carries, strict=True)
            if carries
        ]
        outs = _core.eval_jaxpr(self.traced.jaxpr.jaxpr, args[: self.n_consts], *args[self.n_consts : n], *tangents)
        given = iter(outs[len(self.nonzeros_out) :])
        results = outs[: len(self.nonzeros_out)]
        zero = lambda x: _ad_util.SymbolicZero(_core.typeof(x).to_tangent_aval())
        return [*results, *(next(given) if nz else zero(x) for x, nz in zip(results, self.nonzeros_out, strict=True))]

    def forward(self, *args: Any) -> list[Any]:
        for store, value in self._told:
            store.reset()
            store.store(value)
        outs: list[Any] = _core.eval_jaxpr(self.traced.jaxpr.jaxpr, args[: self.n_consts], *args[self.n_consts :])
        return outs


def _jvp_of_rule(
    rule: Any, in_avals: Sequence[Any], nonzeros: Sequence[bool], symbolic_zeros: bool
) -> tuple[Callable[..., list[Any]], list[Any], list[bool]]:
    """A custom JVP rule as a function from operands and nonzero tangents to results and nonzero tangents; the types that it takes; and
    which results have a nonzero tangent, a list that is filled in as it is traced."""
    zero = _ad_util.SymbolicZero if symbolic_zeros else zeros
    tangent_avals = [a.to_tangent_aval() for a in in_avals]
    nonzeros_out: list[bool] = []
    call = rule.of_jvp if isinstance(rule, _TakenRule) else rule.call_wrapped

    def push(*args: Any) -> list[Any]:
        given = iter(args[len(in_avals) :])
        tangents = [next(given) if nz else zero(a) for a, nz in zip(tangent_avals, nonzeros, strict=True)]
        outs = call(*args[: len(in_avals)], *tangents)
        n_out = len(outs) // 2
        tangents_out = [_ad.replace_rule_output_symbolic_zeros(t) for t in outs[n_out:]]
        nonzeros_out[:] = map(_is_nonzero, tangents_out)
        return [*outs[:n_out], *(t for t, nz in zip(tangents_out, nonzeros_out, strict=True) if nz)]

    return push, [*in_avals, *(a for a, nz in zip(tangent_avals, nonzeros, strict=True) if nz)], nonzeros_out


def _forward_of_rule(
    rule: Any, in_avals: Sequence[Any], nonzeros: Sequence[bool]
) -> tuple[Callable[..., list[Any]], list[Any], list[bool]]:
    """A custom forward rule as a function of its operands, and the types that it takes."""
    if isinstance(rule, _TakenRule):
        return rule.forward, list(in_avals), []
    call = lambda *args: rule.call_wrapped(*(x for pair in zip(args, nonzeros, strict=True) for x in pair))
    return call, list(in_avals), []


@contextlib.contextmanager
def _naming_axes(mesh: Any) -> Iterator[None]:
    """Adds to JAX's error for an axis that is not bound, which inside a `shard_map` has no text, the axes that are."""
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


def _holds_tracers(trace: Any, root: Any, inside: bool = False) -> bool:
    """Whether a function closes over a tracer of a trace, or of one `inside` of it, itself or by way of other functions."""
    seen: set[int] = set()
    pending = [root]
    while pending:
        x = pending.pop()
        if id(x) in seen or len(seen) > 1000:
            continue
        seen.add(id(x))
        if isinstance(x, _core.Tracer):
            if _is_inside(x._trace, trace) if inside else x._trace is trace:
                return True
        elif isinstance(x, _lu.WrappedFun):
            pending += [x.f, *(arg for _, args in x.transforms for arg in args)]
        elif isinstance(x, api_util.Unhashable):
            pending.append(x.val)
        elif isinstance(x, functools.partial):
            pending += [x.func, *x.args, *x.keywords.values()]
        elif isinstance(x, (jax.custom_jvp, jax.custom_vjp)):
            pending += [getattr(x, name, None) for name in ("fun", "jvp", "fwd", "bwd")]
        elif isinstance(x, types.FunctionType):
            pending += [cell.cell_contents for cell in x.__closure__ or () if cell != types.CellType()]
            pending += x.__defaults__ or ()
        elif isinstance(x, types.MethodType):
            pending += [x.__func__, x.__self__]
        elif isinstance(x, (tuple, list, dict)):
            pending += jax.tree.leaves(x)
    return False


def _is_inside(trace: Any, outer: Any) -> bool:
    """Whether a trace began while another one was under way."""
    while (trace := getattr(trace, "parent_trace", None)) is not None:
        if trace is outer:
            return True
    return False


class _PathTracer(_pe.DynamicJaxprTracer):
    """A tracer that knows its value, and gives it to Python as far as JAX does outside `jit`.

    A value that carries a tangent may decide a branch (`bool`, `int`, an index), but may not leave as a `float` or a NumPy
    array, since its derivative would be lost; one that carries none may.
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

    __slots__ = ("active", "looks", "values")

    def __init__(self, debug_info: Any, parent: Any, keeps_rules: bool = True):
        super().__init__(debug_info, parent, keeps_rules)
        self.values: dict[Any, Any] = {}
        self.active: set[Any] = set()
        self.looks: list[tuple[Any, str, Any]] = []

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
            self.values[atom] = concrete_value(self.frame.constvar_to_val[atom])
        return self.values.get(atom)

    def var_to_tracer(self, var: Any, source_info: Any, parent: Any = None) -> Any:
        return _PathTracer(self, _type_with_state(var), var, source_info, parent)

    def new_arg(self, aval: Any, source_info: Any) -> Any:
        tracer = super().new_arg(aval, source_info)
        return _PathTracer(self, aval, tracer.val, source_info)

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
        """The function, whose Python may look at values too."""

        def on_values(*inner: Any) -> list[Any]:
            theirs = _core.trace_ctx.trace
            ours = _PathTrace(theirs.frame.debug_info, theirs.parent_trace, keeps_rules=False)
            ours.frame = theirs.frame
            for t, x in zip(inner, tracers, strict=True):
                given = self.to_jaxpr_tracer(x, source_info=_source.current()).val
                ours.values[t.val] = self.value_of(given)
                if self.carries_tangent(given):
                    ours.active.add(t.val)
            with _core.set_current_trace(ours):
                outs = fun.call_wrapped(*[_PathTracer(ours, t.aval, t.val, t._line_info, t.parent) for t in inner])
            self.looks += ours.looks
            return [_same_in(theirs, x) if getattr(x, "_trace", None) is ours else x for x in outs]

        return _lu.wrap_init(on_values, debug_info=fun.debug_info)

    def _catch_up(self) -> None:
        """Evaluates the newest equation, if it has not been."""
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
            reaches = _nonzero_results(eqn, mask)
            self.active.update(v for v, nonzero in zip(eqn.outvars, reaches, strict=True) if nonzero)


def _empty_stores(rule: Any) -> None:
    """Lets a custom rule be traced again: it notes the structure of its results, once, for whoever called it."""
    for store in rule.stores:
        if store:
            store.reset()


def _nonzero_results(eqn: Any, mask: tuple[bool, ...]) -> Sequence[bool]:
    """Which results of an equation carry a tangent, given which operands do, by JAX's own rules."""
    if eqn.primitive in (
        custom_jvp_call_p,
        custom_vjp_call_p,
        hi_primitive_p,
    ):  # a rule gives a tangent for each result
        return [not is_float0(v.aval.to_tangent_aval()) for v in eqn.outvars]
    if eqn.primitive is jit_p:
        return jvp_jaxpr(eqn.params["jaxpr"], mask)[1]  # which JAX remembers for as long as the jaxpr lives
    avals = tuple(t.aval for t in eqn.in_tracers)
    if not all(map(is_data, eqn.params.values())):
        return _find_nonzero(eqn.primitive, eqn.params, avals, mask)
    key = (eqn.primitive, exact_params(eqn.params), avals, mask)
    return _nonzero.get(key) or _nonzero.keep(key, tuple(_find_nonzero(eqn.primitive, eqn.params, avals, mask)))


def _find_nonzero(
    primitive: Any, params: Mapping[str, Any], avals: tuple[Any, ...], mask: tuple[bool, ...]
) -> Sequence[bool]:
    params = dict(params)
    if primitive in _ad.primitive_linearizations and not any(True for _ in _core.jaxprs_in_params(params)):
        return linearize_rule(primitive, params, avals, mask, current_context(), is_vjp=True)[2]

    def apply(*args: Any) -> Any:
        out = primitive.bind(*args, **primitive.get_bind_params(params))
        return out if primitive.multiple_results else [out]

    one = trace_to_jaxpr(apply, avals, unknown_debug_info(len(avals), 0)).jaxpr
    return jvp_jaxpr(one, mask)[1]


_nonzero: SharedTable[tuple[bool, ...]] = SharedTable(4096)
"""(primitive, params, types, which operands carry a tangent) -> which results do."""


def _type_with_state(var: Any) -> Any:
    return _core.AvalQDD(var.aval, var.initial_qdd) if getattr(var.aval, "has_qdd", False) else var.aval


def concrete_value(x: Any) -> Any:
    """The value behind x, or None if x is abstract."""
    return x.to_concrete_value() if isinstance(x, _core.Tracer) else x


class RuleHoldsTracer(Exception):
    """A custom rule closes over a value of the trace."""


class TracedJaxpr(NamedTuple):
    """What `trace_to_jaxpr` makes.

    Args:
      jaxpr: a ClosedJaxpr.
      held: its literals that linearize keeps as arrays.
      looks: where values were given, the points at which Python looked at one, as (source, what it asked for, the answer).
      made_from: for the place of an equation of the jaxpr, the equation of a derived program that it was evaluated from.
      bodies: those jaxprs inside of it that were traced in the same way, as is that of a `shard_map`.
    """

    jaxpr: Any
    held: list[Any]
    looks: list[tuple[Any, str, Any]]
    made_from: dict[int, Equation]
    bodies: list[TracedJaxpr]


def trace_to_jaxpr(
    fun: Callable[..., Sequence[Any]],
    avals: Sequence[Any],
    debug_info: Any,
    values: Sequence[Any] | None = None,
    active: Sequence[bool] = (),
    keeps_rules: bool = True,
    folds: bool = False,
) -> TracedJaxpr:
    """Traces a function of flat arguments.

    Args:
      fun: takes one tracer for each aval, returns a flat sequence of results.
      avals: types of the arguments.
      debug_info: see `function_debug_info`.
      values: concrete arguments; if given, the function is run on them, and may branch on values.
      active: with `values`, which arguments carry a tangent; none by default.
      keeps_rules: whether custom JVP rules met here are remembered; see `trace_custom_jvp_rule`.
      folds: whether what depends on constants alone is computed at once, and becomes a constant, as outside `jit`.

    Raises:
      RuleHoldsTracer: without `folds`, where a custom rule closes over a value of the trace.
    """
    parent = _core.trace_ctx.trace
    trace = (_Trace if values is None else _PathTrace)(debug_info, parent, keeps_rules)
    # Unlike JAX's tracing this keeps the frames outside `fun`, so that an operation of a library function that the user
    # hands over as it is, such as `jnp.sin`, is placed at the user's call.
    with _source.reset_name_stack():
        source = _source.current()
        tracers = [trace.new_arg(aval, source_info=source) for aval in avals]
        if isinstance(trace, _PathTrace):
            trace.values.update(zip((t.val for t in tracers), values or (), strict=True))
            carries = active or [False] * len(tracers)
            trace.active.update(t.val for t, carried in zip(tracers, carries, strict=True) if carried)
        with (
            _core.set_current_trace(trace),
            _config.eager_constant_folding(True) if folds else contextlib.nullcontext(),
        ):
            results = fun(*tracers)
        if trace.holds_tracers and trace.keeps_rules and not folds:
            raise RuleHoldsTracer
        debug_info = debug_info._replace(result_paths=("",) * len(results))
        outs = [trace.to_jaxpr_tracer(dtypes.canonicalize_value(x), source_info=source) for x in results]
        jaxpr, consts = trace.to_jaxpr(outs, debug_info, source)
    looks = trace.looks if isinstance(trace, _PathTrace) else []
    made = TracedJaxpr(ClosedJaxpr(jaxpr, consts), trace.held, looks, trace.made_from, trace.bodies)
    trace.invalidate()
    return made


def jaxpr_as_fun(jaxpr: Any) -> Callable[..., list[Any]]:
    """The function of a ClosedJaxpr, as `jax.extend.core.jaxpr_as_fun` gives it, but with `jax_debug_nans` as the user has it.

    That one switches it off while it runs, and JAX does not switch it on again for calls in the thread that find their program compiled.
    """

    def fun(*args: Any) -> list[Any]:
        return list(_core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *args))

    return fun


@contextlib.contextmanager
def nan_checks_off() -> Iterator[None]:
    """Within it `jax_debug_nans` and `jax_debug_infs` raise nothing; after it they are as they were."""
    if not (_config.debug_nans.value or _config.debug_infs.value):
        yield
        return
    state = _api._post_hook_state
    here = state.get_local()
    try:
        with _config.debug_nans(False), _config.debug_infs(False):
            yield
    finally:
        state.set_local(here)  # JAX leaves None there, which hides what is set for all threads


def compiled_with_its_own_metadata() -> contextlib.AbstractContextManager[None]:
    """Within it a program that the user's cache on disk holds is only taken from there if its names and lines are the same too."""
    context: contextlib.AbstractContextManager[None] = _config.compilation_cache_include_metadata_in_key(True)
    return context


def evaluate_in_trace(
    program: Program, inputs: Sequence[Any], params_of: Callable[[Operation], Mapping[str, Any]]
) -> list[Any] | None:
    """Evaluates a program where one of our traces is under way, which then knows from which equation each of its own was made.

    Args:
      program, inputs: as `evaluate` takes them.
      params_of: an operation's params as JAX takes them.

    Returns:
      the results, or None where there is no such trace.
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


class NotRecorded(Exception):
    """A rule does what `record_rule` does not follow."""


class _RuleTracer(_core.Tracer):
    __slots__ = ("atom",)

    def __init__(self, trace: Any, atom: Atom):
        super().__init__(trace, atom.aval)
        self._line_info = None  # type: ignore[misc]  # a slot of JAX's class
        self.atom = atom

    def full_lower(self) -> Any:
        value = self._trace.value_of(self.atom)
        return self if value is None else _core.full_lower(value)

    def _origin_msg(self) -> str:
        return ""


class _RuleTrace(_core.Trace):
    """Records the operations that one of JAX's rules binds, as `DynamicJaxprTrace` does, without their lines and names."""

    __slots__ = ("constants", "equations", "operation_of", "values")

    def __init__(self, operation_of: Callable[..., Operation]):
        super().__init__()
        self.requires_low = False  # type: ignore[misc]  # a slot of JAX's class
        self.operation_of = operation_of
        self.equations: list[Equation] = []
        self.constants: dict[int, tuple[Var, Any]] = {}
        self.values: dict[Var, Any] = {}

    def atom(self, x: Any) -> Atom:
        return x.atom if type(x) is _RuleTracer and x._trace is self else self.new_const(x).atom

    def value_of(self, atom: Atom) -> Any:
        return atom.val if isinstance(atom, Literal) else self.values.get(atom)

    def new_const(self, x: Any, source_info: Any = None, aval: Any = None) -> _RuleTracer:
        if _core.is_literalable(x, False):
            aval = aval if aval is not None else _core.typeof(x)
            return _RuleTracer(self, Literal(x, aval, held=is_array(x)))
        if id(x) not in self.constants:
            var = Var(_core.typeof(x))
            self.constants[id(x)] = (var, x)
            self.values[var] = x
        return _RuleTracer(self, self.constants[id(x)][0])

    pure = lift = new_const

    def stage_value(self, x: Any) -> _RuleTracer:
        return self.held(_RuleTracer(self, self.atom(x)))

    def held(self, tracer: _RuleTracer) -> _RuleTracer:
        """Of the scalars in a rule, those that `_Trace` notes."""
        if isinstance(tracer.atom, Literal):
            tracer.atom.held = True
        return tracer

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
        if primitive in _pe.custom_staging_rules and primitive not in _STAGED_AS_THEY_ARE:
            raise NotRecorded
        atoms = tuple([self.atom(x) for x in tracers])
        in_avals = tuple([a.aval for a in atoms])
        operation = self.operation_of(primitive, params, in_avals, _core.current_jaxpr_eqn_context())
        if primitive in _pe.const_fold_rules:
            values = [self.value_of(a) for a in atoms]
            if any(x is not None for x in values):
                folded = _pe.const_fold_rules[primitive](values, params, operation.out_avals)
                if folded is not None:
                    outs = [
                        self.held(self.new_const(x, None, a)) for x, a in zip(folded, operation.out_avals, strict=True)
                    ]
                    return outs if primitive.multiple_results else outs[0]
        if primitive in _pe.forwarding_rules:
            given, equation = _pe.forwarding_rules[primitive](Equation(operation, atoms, ()))
            if equation is None:
                outs = [self.held(_RuleTracer(self, atoms[i])) for i in given]
                return outs if primitive.multiple_results else outs[0]
        outvars = tuple([Var(aval) for aval in operation.out_avals])
        self.equations.append(Equation(operation, atoms, outvars))
        if primitive.multiple_results:
            return [_RuleTracer(self, v) for v in outvars]
        return _RuleTracer(self, outvars[0])


_STAGED_AS_THEY_ARE = frozenset(
    (primitives.broadcast_in_dim_p, primitives.reshape_p, primitives.iota_p, primitives.dynamic_slice_p)
)
"""Operations whose staging rule only matters where shapes are values."""


def record_rule(
    fun: Callable[..., Sequence[Any]], avals: Sequence[Any], operation_of: Callable[..., Operation]
) -> Program | None:
    """The program of one of JAX's rules, if all it does is to bind plain operations; in less than half the time.

    Args:
      fun, avals: as `trace_to_jaxpr` takes them.
      operation_of: the Operation for (primitive, params, types, context), or `NotRecorded`.

    Returns:
      None for a rule that calls functions or has effects, and for one that fails, so that the longer way tells of it.
    """
    if _config.eager_constant_folding.value:
        return None
    trace = _RuleTrace(operation_of)
    invars = tuple([Var(aval) for aval in avals])
    try:
        with _core.set_current_trace(trace):
            outs = fun(*[_RuleTracer(trace, v) for v in invars])
        outvars = tuple([trace.atom(dtypes.canonicalize_value(x)) for x in outs])
    except Exception:
        return None
    finally:
        trace.invalidate()
    constvars, consts = zip(*trace.constants.values(), strict=True) if trace.constants else ((), ())
    return Program(constvars, invars, outvars, tuple(trace.equations), consts)


def canonicalize(x: Any) -> Any:
    """A leaf as JAX takes it as an argument: NumPy and Python values in JAX's types, tracers as they are."""
    return x if isinstance(x, _core.Tracer) else dtypes.canonicalize_value(x)


def aval_of(x: Any) -> Any:
    """The type of an argument: an array, a Python number, a tracer or a ShapeDtypeStruct."""
    return _core.shaped_abstractify(x) if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)


def checked_argument(x: Any) -> Any:
    """x, if JAX takes it as an argument.

    Raises:
      TypeError: jax's, saying what it is.
    """
    dispatch.check_arg(x)
    return x


def as_type(x: Any, aval: Any) -> Any:
    """x with the weakness of a type; shapes and dtypes are the same already."""
    weak = bool(getattr(aval, "weak_type", False))
    if bool(getattr(jax.typeof(x), "weak_type", False)) == weak or not hasattr(aval, "dtype") or is_float0(aval):
        return x
    return _lax._convert_element_type(x, aval.dtype, weak_type=weak)


def as_array(x: Any, aval: Any) -> Any:
    """x as an array, if it is a plain number."""
    return x if isinstance(x, jax.Array) or np.shape(x) else as_type(jax.numpy.asarray(x, aval.dtype), aval)


def is_tracer(x: Any) -> bool:
    return isinstance(x, _core.Tracer)


def is_leaked(x: Any) -> bool:
    """Whether x is a tracer of a trace that is over. Under another trace JAX says so, where the program is used."""
    return isinstance(x, _core.Tracer) and (
        isinstance(_core.trace_ctx.trace, _core.EvalTrace) or not x._trace.is_valid()
    )


def leaked_error(x: Any) -> Exception:
    """JAX's error for a leaked tracer; it says where the tracer was made."""
    error: Exception = _core.escaped_tracer_error(x)
    return error


# --- JAX's rules ------------------------------------------------------------------------------------------------------


def has_linearize_rule(primitive: Any) -> bool:
    return primitive in _ad.primitive_linearizations or primitive in _ad.primitive_jvps


def has_plain_jvp_rule(primitive: Any) -> bool:
    """Whether JAX linearizes a primitive by its JVP rule, and not by a rule for that alone."""
    return primitive in _ad.primitive_jvps and primitive not in _ad.primitive_linearizations


def is_linear_in_all(primitive: Any) -> bool:
    """Whether JAX has it, by `ad.deflinear`, that the tangent of a primitive is the primitive of the tangents."""
    rule = _ad.primitive_jvps.get(primitive)
    return isinstance(rule, functools.partial) and rule.func is _ad.linear_jvp


def jvp_rule(
    primitive: Any, params: Mapping[str, Any], in_avals: Sequence[Any], nonzeros: Sequence[bool], context: Any
) -> tuple[Callable[..., list[Any]], list[Any], list[bool]]:
    """The JVP rule of a primitive, for tracing.

    Returns:
      a function from operands and nonzero tangents to results and nonzero tangents; the types that it takes; and which results
      have a nonzero tangent, a list that is filled in as it is traced.
    """
    rule = _ad.primitive_jvps[primitive]
    tangent_avals = [a.to_tangent_aval() for a in in_avals]
    nonzeros_out: list[bool] = []

    def push(*args: Any) -> list[Any]:
        given = iter(args[len(in_avals) :])
        tangents = [next(given) if nz else _ad.Zero(a) for a, nz in zip(tangent_avals, nonzeros, strict=True)]
        with context.manager:
            primals_out, tangents_out = rule(args[: len(in_avals)], tuple(tangents), **params)
        if not primitive.multiple_results:
            primals_out, tangents_out = [primals_out], [tangents_out]
        nonzeros_out[:] = map(_is_nonzero, tangents_out)
        return [*primals_out, *(t for t, nz in zip(tangents_out, nonzeros_out, strict=True) if nz)]

    return push, [*in_avals, *(a for a, nz in zip(tangent_avals, nonzeros, strict=True) if nz)], nonzeros_out


def _is_nonzero(tangent: Any) -> bool:
    """Whether a rule's tangent is not zero: as in JAX, the trivial tangents of integers are, however a rule writes them."""
    return type(tangent) is not _ad.Zero and not is_float0(_core.typeof(tangent))


def trace_custom_jvp_rule(
    params: Mapping[str, Any], in_avals: Sequence[Any], nonzeros: Sequence[bool], context: Any
) -> tuple[TracedJaxpr, list[bool]]:
    """The user's rule of a `custom_jvp_call` as a jaxpr; from operands and nonzero tangents to results and nonzero tangents.

    Returns:
      the traced rule, and which results have a nonzero tangent.

    Source: `process_custom_jvp_call` of JAX's `LinearizeTrace`, and `lift_jvp`.
    """
    rule = _rules.get(params["jvp_jaxpr_fun"].f)
    skip = n_closed_over(params)
    if rule is None:
        _, rule = custom_jvp_call_p.get_bind_params(params)["subfuns"]
        skip = 0
    elif not isinstance(rule, _TakenRule):
        _empty_stores(rule)
    if any(nonzeros[skip : params["num_consts"]]):
        raise jax.errors.UnexpectedTracerError(
            f"The custom JVP rule of {params['call_jaxpr'].jaxpr.debug_info.func_src_info} closes over a value that is differentiated. "
            "Make it an argument of the function."
        )
    push, _, nonzeros_out = _jvp_of_rule(rule, in_avals[skip:], nonzeros[skip:], params["symbolic_zeros"])
    first_tangent = len(in_avals) + sum(nonzeros[:skip])

    def whole(*args: Any) -> list[Any]:
        with context.manager:
            return push(*args[skip : len(in_avals)], *args[first_tangent:])

    tangent_avals = [a.to_tangent_aval() for a, nz in zip(in_avals, nonzeros, strict=True) if nz]
    avals = [*in_avals, *tangent_avals]
    return trace_to_jaxpr(whole, avals, unknown_debug_info(len(avals), 0)), nonzeros_out


def n_closed_over(params: Mapping[str, Any]) -> int:
    """How many of the first operands of a call with a custom rule its rule does not take, since it closes over them itself."""
    rule = _rules.get((params.get("jvp_jaxpr_fun") or params["fwd_jaxpr_thunk"]).f)
    return int(params["num_consts"]) - (rule.n_consts if isinstance(rule, _TakenRule) else 0)


def trace_forward_rule(
    params: Mapping[str, Any], in_avals: Sequence[Any], nonzeros: Sequence[bool], context: Any
) -> tuple[TracedJaxpr, int, Sequence[int | None]]:
    """The user's forward rule of a `custom_vjp_call`.

    Args:
      params: of the equation.
      in_avals: types of its operands after the first `n_closed_over`.
      nonzeros: which of those carry a tangent.
      context: of the equation.

    Returns:
      (traced, n_residuals, forwarded): the rule from those operands to residuals that are not operands, then results; the number of
      residuals; and for each the position among all operands of the equation, or None for one that the rule gives.
    """
    rule = _rules.get(params["fwd_jaxpr_thunk"].f)
    if rule is None:
        jaxpr, consts = params["fwd_jaxpr_thunk"].call_wrapped(*nonzeros)
        traced = TracedJaxpr(ClosedJaxpr(jaxpr, consts), [], [], {}, [])
    else:
        is_array: list[bool] = []
        if not isinstance(rule, _TakenRule):
            _empty_stores(rule)
        call, _, _ = _forward_of_rule(rule, in_avals, nonzeros)

        def forward(*args: Any) -> Any:
            with context.manager:
                outs = call(*args)
            is_array.extend(map(is_tracer, outs))
            return outs

        traced = trace_to_jaxpr(forward, in_avals, unknown_debug_info(len(in_avals), 0))
        # A number that went through an operation of jnp, and so is a tracer here, is an array outside `jit`.
        outvars = zip(traced.jaxpr.jaxpr.outvars, is_array, strict=True)
        traced.held.extend(a for a, given in outvars if given and isinstance(a, _core.Literal))
    _, residual_tree, forwarded = params["out_trees"]()
    return traced, residual_tree.num_leaves, forwarded


def custom_lin_params(
    params: Mapping[str, Any], residuals: Sequence[Any], out_avals: Sequence[Any], zeros_in: Sequence[bool]
) -> dict[str, Any]:
    """Params of the `custom_lin` that stands for the derivative of a `custom_vjp_call` until it is transposed.

    Args:
      params: of the `custom_vjp_call`.
      residuals: for each residual None, or a pair of one value: a constant of the forward rule, which stays one in the backward
        rule, where Python may look at it.
      out_avals: types of the tangents of the results.
      zeros_in: which operands carry no tangent.
    """
    backward = custom_vjp_call_p.get_bind_params(params)["subfuns"][2]
    n_given = sum(r is None for r in residuals)
    if n_given < len(residuals):
        whole = backward

        def with_constants(*args: Any) -> Any:
            given = iter(args)
            values = [next(given) if r is None else r[0] for r in residuals]
            return whole.call_wrapped(*values, *given)

        backward = _lu.wrap_init(with_constants, debug_info=whole.debug_info)
    return {
        "num_res": n_given,
        "bwd": backward,
        "out_avals": tuple(out_avals),
        "symbolic_zeros": params["symbolic_zeros"],
        "in_zeros": list(zeros_in),
    }


def closed_over_error() -> Exception:
    """JAX's error for a custom_vjp function that is differentiated in a value that it closes over."""
    error: Exception = _ad.CustomVJPException()
    return error


def checkpoint_log() -> Callable[[str], None] | None:
    """Writes to JAX's log of what checkpointed functions save, which `jax_log_checkpoint_residuals` shows; None where nobody reads it."""
    logger = logging.getLogger("jax._src.ad_checkpoint")
    level = logging.WARNING if _config.log_checkpoint_residuals.value else logging.DEBUG
    return partial(logger.log, level) if logger.isEnabledFor(level) else None


def refused_in_remat(effects: Iterable[Any]) -> Iterable[Any]:
    """The effects that JAX does not take in a checkpointed function."""
    refused: Iterable[Any] = _effects.remat_allowed_effects.filter_not_in(effects)
    return refused


def rounding_params(aval: Any) -> dict[str, int] | None:
    """Params of the `reduce_precision` that rounds to a type, or None where there is nothing to round."""
    if not isinstance(aval, _core.ShapedArray) or not dtypes.issubdtype(aval.dtype, np.inexact):
        return None
    info = dtypes.finfo(aval.dtype)
    return {"exponent_bits": info.nexp, "mantissa_bits": info.nmant}


def trace_backward_rule(
    params: Mapping[str, Any], residual_avals: Sequence[Any], nonzero_cts: Sequence[bool],
    values: Sequence[Any] | None = None,
) -> tuple[TracedJaxpr, list[bool]]:  # fmt: skip
    """The user's backward rule, from the params of a `custom_lin`; on the values that it takes, if they are given.

    Returns:
      the rule, traced, from residuals and nonzero cotangents of the results to nonzero cotangents of the operands that carried
      a tangent, and which of those are nonzero.
    """
    ct_avals = [a.to_ct_aval() for a in params["out_avals"]]
    zero = _ad_util.SymbolicZero if params["symbolic_zeros"] else zeros
    nonzero_out: list[bool] = []

    def backward(*args: Any) -> list[Any]:
        given = iter(args[len(residual_avals) :])
        cts = [next(given) if nz else zero(a) for a, nz in zip(ct_avals, nonzero_cts, strict=True)]
        cts_in = params["bwd"].call_wrapped(*args[: len(residual_avals)], *cts)
        if _RULES_LOG:
            cts_in, logs = cts_in
            if logs:
                _logging.add(params["bwd"])
        cts_in = [_ad.replace_rule_output_symbolic_zeros(ct) for ct in cts_in]
        out = [ct for ct, is_zero in zip(cts_in, params["in_zeros"], strict=True) if not is_zero]
        nonzero_out.extend(type(ct) is not _ad.Zero for ct in out)
        return [ct for ct in out if type(ct) is not _ad.Zero]

    avals = [*residual_avals, *(a for a, nz in zip(ct_avals, nonzero_cts, strict=True) if nz)]
    return trace_to_jaxpr(backward, avals, unknown_debug_info(len(avals), 0), values), nonzero_out


def has_transpose_rule(primitive: Any) -> bool:
    return primitive in _ad.fancy_transposes or primitive in _ad.primitive_transposes


def linearize_rule(
    primitive: Any, params: Mapping[str, Any], in_avals: Sequence[Any], nonzeros: Sequence[bool], context: Any,
    is_vjp: bool, values: Sequence[Any] | None = None,
) -> tuple[Any, Any, list[bool]]:  # fmt: skip
    """The rule by which JAX linearizes a primitive that has one for that alone, traced; on the values of its operands, if given.

    Returns:
      (primal, linear, nonzeros_out): `primal` is a ClosedJaxpr from operands to results and then residuals; `linear` one from nonzero
      tangents to nonzero tangents of results, whose constants are those residuals; and which results have a nonzero tangent.

    Source: `LinearizeTrace.process_primitive` and `linearize_subtrace` in JAX's `ad.py`.
    """
    rule = _ad.primitive_linearizations[primitive]
    tangent_avals = [a.to_tangent_aval() for a in in_avals]
    made: list[Any] = []
    nonzeros_out: list[bool] = []

    def forward(*operands: Any) -> list[Any]:
        with context.manager:
            # Since 0.11.1 JAX has residuals of a structure of their own beside the others.
            results, carries, *residuals, linearized = rule(is_vjp, list(nonzeros), *operands, **params)
        if not primitive.multiple_results:
            results, carries = [results], [carries]

        def linear(*given: Any) -> list[Any]:
            tangents_in = iter(given)
            with context.manager:
                tangents = linearized(
                    *residuals,
                    *(next(tangents_in) if nz else _ad.Zero(a) for a, nz in zip(tangent_avals, nonzeros, strict=True)),
                )
            tangents = tangents if primitive.multiple_results else [tangents]
            nonzeros_out[:] = [
                nz and type(t) is not _ad.Zero and not is_float0(_core.typeof(t))
                for t, nz in zip(tangents, carries, strict=True)
            ]
            return [t for t, nz in zip(tangents, nonzeros_out, strict=True) if nz]

        avals = [a for a, nz in zip(tangent_avals, nonzeros, strict=True) if nz]
        made.append(trace_to_jaxpr(linear, avals, unknown_debug_info(len(avals), 0), keeps_rules=False).jaxpr)
        return [*results, *made[0].consts]

    info = unknown_debug_info(len(in_avals), 0)
    traced = trace_to_jaxpr(forward, in_avals, info, values, nonzeros if values else (), keeps_rules=False)
    return traced.jaxpr, made[0], nonzeros_out


def transpose_rule(
    primitive: Any,
    params: Mapping[str, Any],
    in_avals: Sequence[Any],
    out_avals: Sequence[Any],
    linear: Sequence[bool],
    nonzero_cts: Sequence[bool],
    context: Any,
) -> tuple[Callable[..., list[Any]], list[Any], list[bool]]:
    """The transpose rule of a primitive, for tracing.

    Args:
      primitive, params, in_avals, out_avals, context: of the equation.
      linear: which operands it is linear in.
      nonzero_cts: which results have a cotangent that is not a symbolic zero.

    Returns:
      a function from the other operands and the nonzero cotangents to the nonzero cotangents of the linear operands; the types
      that it takes; and which cotangents of those are nonzero, a list that is filled in as it is traced.

    Source: `backward_pass3` in JAX's `ad.py`.
    """
    ct_avals = [cotangent_type(a) for a in out_avals]
    ct_in_avals = [cotangent_type(a) for a in in_avals]
    nonzero_out: list[bool] = []

    def backward(*args: Any) -> list[Any]:
        given = iter(args)
        operands = [_ad.ValAccum(a) if lin else next(given) for a, lin in zip(ct_in_avals, linear, strict=True)]
        cts = [next(given) if nz else _ad.Zero(a) for a, nz in zip(ct_avals, nonzero_cts, strict=True)]
        with context.manager:
            _transpose(primitive, params, operands, cts if primitive.multiple_results else cts[0])
        out = [x.freeze() for x, lin in zip(operands, linear, strict=True) if lin]
        nonzero_out[:] = [type(ct) is not _ad.Zero for ct in out]
        return [ct for ct in out if type(ct) is not _ad.Zero]

    avals = [a for a, lin in zip(in_avals, linear, strict=True) if not lin]
    avals += [a for a, nz in zip(ct_avals, nonzero_cts, strict=True) if nz]
    return backward, avals, nonzero_out


def _transpose(primitive: Any, params: Mapping[str, Any], operands: list[Any], cts: Any) -> None:
    if primitive in _ad.fancy_transposes:
        if _ad.fancy_transposes[primitive](cts, *operands, **params):  # what it logs
            _logging.add(params.get("_prim"))
        return
    undefined = [_ad.UndefinedPrimal(x.aval) if isinstance(x, _ad.GradAccum) else x for x in operands]
    for x, ct in zip(operands, _ad.get_primitive_transpose(primitive)(cts, *undefined, **params), strict=True):
        if isinstance(x, _ad.GradAccum):
            x.accum(ct)


def plain_result_types(
    primitive: Any, params: Mapping[str, Any], in_avals: Sequence[Any], context: Any
) -> tuple[Any, ...]:
    """The types that a primitive gives for operands of these types.

    Raises:
      NotRecorded: it has effects.
    """
    with within(context):
        out, effects = primitive.abstract_eval(*in_avals, **params)
    if effects:
        raise NotRecorded
    return tuple(out) if primitive.multiple_results else (out,)


def result_types(
    primitive: Any, params: Mapping[str, Any], in_avals: Sequence[Any], context: Any
) -> tuple[Any, ...] | None:
    """The types that a primitive gives for operands of these types, or None where only its nested program can tell."""
    try:
        with context.manager:
            out, _ = primitive.abstract_eval(*in_avals, **params)
    except NotImplementedError:
        return None
    return tuple(out) if primitive.multiple_results else (out,)


def dce_hi_primitive(one: Any, used: Sequence[bool]) -> tuple[Sequence[bool], list[bool], Mapping[str, Any]] | None:
    """What a hi-primitive becomes where not all of its results are used, by its own rule.

    Args:
      one: a ClosedJaxpr of the one equation.
      used: which of its results are.

    Returns:
      which operands are read, which results are left and the new params; None if nothing is left of it.
    """
    (eqn,) = one.jaxpr.eqns
    rule = _pe.dce_rules[hi_primitive_p]
    takes_live = len(inspect.signature(rule).parameters) == 3  # since 0.12: which operands are live too
    read, smaller = rule(list(used), *([[True] * len(eqn.invars)] if takes_live else []), eqn)
    if smaller is None:
        return None
    return read, [v in smaller.outvars for v in eqn.outvars], smaller.params


def types_match(x: Any, y: Any) -> bool:
    """Whether two types are the same but for weakness."""
    return bool(_core.typematch(x, y))


def is_linear(one: Any, mask: Sequence[bool]) -> bool:
    """Whether a jaxpr of one equation is linear in the inputs that `mask` marks, taken together: JAX can transpose it so."""
    if not has_transpose_rule(one.jaxpr.eqns[0].primitive):
        return False
    eqn = one.jaxpr.eqns[0]
    out_avals = [v.aval for v in eqn.outvars]
    try:
        rule, avals, _ = transpose_rule(
            eqn.primitive, eqn.params, [v.aval for v in eqn.invars], out_avals, mask, [True] * len(out_avals), eqn.ctx
        )
        trace_to_jaxpr(rule, avals, unknown_debug_info(len(avals), 0))
    except Exception:  # JAX's rules refuse in many ways, most by a failed assertion; each means no
        return False
    return True


def jvp_jaxpr(jaxpr: Any, nonzeros: Sequence[bool]) -> tuple[Any, list[bool]]:
    """JAX's JVP of a ClosedJaxpr: (inputs, nonzero tangents) to (results, nonzero tangents), and which are nonzero."""
    made: tuple[Any, list[bool]] = _ad.jvp_jaxpr(jaxpr, list(nonzeros), instantiate=False)
    return made


# --- params that versions write in their own ways ---------------------------------------------------------------------


COND_PASSES_OPERANDS_ON: bool = hasattr(_conditionals, "_join_cond_fwd_res")
"""Whether a residual of a branch that is one of the cond's operands is taken from there, since 0.12, or passes through the cond."""


def is_transposable(dtype: Any) -> bool:
    """Whether values of a type may stand in a function that `linear_transpose` takes, among others that are not integers."""
    return bool(dtypes.issubdtype(dtype, np.inexact)) or (_TRANSPOSES_FLOAT0 and dtype == dtypes.float0)


_TRANSPOSES_FLOAT0: bool = jax.__version_info__ >= (0, 11, 2)

TRANSPOSABLE: str = "[float, complex, or float0]" if _TRANSPOSES_FLOAT0 else "[float or complex]"
"""JAX's words for those types."""


def scan_sizes(params: Mapping[str, Any]) -> tuple[int, int]:
    """The number of consts and of carried values of a scan."""
    if "ft_in" in params:  # since 0.11
        consts, carry, _ = params["ft_in"].unpack()
        return len(consts), len(carry)
    return params["num_consts"], params["num_carry"]


def scan_params(params: Mapping[str, Any], n_in: int, n_out: int, n_consts: int, n_carry: int) -> dict[str, Any]:
    """Params of a scan whose body has so many inputs and results, of which the first are consts and carried values."""
    if "ft_in" in params:
        trees = [(n_consts, n_carry, n_in - n_consts - n_carry), (n_carry, n_out - n_carry)]
        ft_in, ft_out = (_flattree.pack(tuple(map(_flattree.nones, sizes))) for sizes in trees)
        return {**params, "ft_in": ft_in, "ft_out": ft_out}
    return {**params, "num_consts": n_consts, "num_carry": n_carry}


# --- batching rules ---------------------------------------------------------------------------------------------------

IF_MAPPED: Any = _batching.zero_if_mapped
"""Stands for the front, of a value that is mapped."""


def has_batching_rule(primitive: Any) -> bool:
    return primitive in _batching.fancy_primitive_batchers or primitive in (custom_jvp_call_p, custom_vjp_call_p)


def mapped_type(aval: Any, dim: int | None, axis: Axis) -> Any:
    """The type of a value with its mapped dimension."""
    if dim is None:
        return aval
    mapped = _core.unmapped_aval(axis.size, dim, aval, axis.explicit_mesh_axis)
    if axis.spmd_name is not None and _config._check_vma.value:
        mat = mapped.mat.update(varying=mapped.mat.varying | frozenset(axis.spmd_name))
        mapped = mapped.update(manual_axis_type=mat)
    return mapped


@contextlib.contextmanager
def _inside(axis: Axis) -> Iterator[None]:
    with (
        _core.extend_axis_env_nd([(axis.name, axis.size)]),
        _core.add_spmd_axis_names(axis.spmd_name),
        _core.add_explicit_mesh_axis_names(axis.explicit_mesh_axis),
    ):
        yield


def batching_rule(
    primitive: Any, params: Mapping[str, Any], in_avals: Sequence[Any], dims: Sequence[int | None], axis: Axis,
    context: Any,
) -> tuple[Callable[..., list[Any]], list[Any], list[int | None]]:  # fmt: skip
    """The batching rule of a primitive, for tracing.

    Returns:
      a function from operands to results, both with their mapped dimensions; the types that it takes; and where the results' are,
      a list that is filled in as it is traced.

    Source: `_batch_jaxpr_inner` in JAX's `batching.py`.
    """
    dims_out: list[int | None] = []

    def mapped(*args: Any) -> list[Any]:
        trace = _batching.BatchTrace(_core.trace_ctx.trace, _core.TraceTag(), axis)
        tracers = [x if d is None else _batching.BatchTracer(trace, x, d) for x, d in zip(args, dims, strict=True)]
        with _core.set_current_trace(trace), _inside(axis), context.manager:
            outs = primitive.bind(*tracers, **primitive.get_bind_params(params))
        pairs = [trace.to_batch_info(x) for x in (outs if primitive.multiple_results else [outs])]
        dims_out[:] = [d for _, d in pairs]
        return [x for x, _ in pairs]

    return mapped, [mapped_type(a, d, axis) for a, d in zip(in_avals, dims, strict=True)], dims_out


def match_axis(axis: Axis, source: int | None, to: int | None, x: Any) -> Any:
    """A value with its mapped dimension moved, or copied along one; JAX's error where it cannot lose one."""
    return _batching.matchaxis(axis, source, to, x)


def mapped_sharding(sharding: Any, dim: int | None, axis: Axis, context_mesh: Any, rank: int) -> Any:
    """The sharding of an operand or result of jit, with its mapped dimension."""
    return (
        sharding if dim is None else pjit._pjit_batcher_for_sharding(sharding, dim, axis.spmd_name, context_mesh, rank)
    )


def guarded(index: Any, branch: int, operands: Sequence[Any]) -> list[Any]:
    """The operands of one branch of a mapped cond, those of other examples cut off from differentiation."""
    chosen = _lax.eq(index, _lax._const(index, branch))
    return [_conditionals._bcast_select(chosen, x, _lax.stop_gradient(x)) for x in operands]


def select_results(index: Any, *results: Any) -> Any:
    """Of the results of the branches of a mapped cond, for each example that of its own branch."""
    return _conditionals._bcast_select_n(index, *results)


def refuse_effects_when_mapped(effects: Iterable[Any], of: str) -> None:
    """Raises JAX's error for effects that cannot be had once for all examples."""
    found = set(effects)
    if of == "cond":
        if any(isinstance(e, _state_types.RefEffect) for e in found):
            raise NotImplementedError("State effect not supported in vmap-of-cond.")
        if found & {_callback._IOEffect, _callback._OrderedIOEffect}:
            raise NotImplementedError("IO effect not supported in vmap-of-cond.")
    if of == "while" and _callback._OrderedIOEffect in found:
        raise Exception("Ordered IO effects not supported in vmap.")
    if of == "while with a mapped predicate" and _callback._IOEffect in found:
        raise Exception("Unordered IO effects not supported in while_loop with batched predicate")


def platform_index(platforms: Any) -> Any:
    return _conditionals.platform_index_p.bind(platforms=platforms)


def mapped_arguments(leaves: Sequence[Any]) -> tuple[Axis, list[Any], list[int | None]] | None:
    """The axis that `jax.vmap` maps over where it has called a function, with the arguments' values and mapped dimensions.

    None where some argument is mapped in another way than along a dimension.
    """
    trace = _core.trace_ctx.trace
    if not isinstance(trace, _batching.BatchTrace):
        return None
    pairs = [trace.to_batch_info(x) for x in leaves]
    if not all(d is None or type(d) is int for _, d in pairs):
        return None
    return trace.axis_data, [x for x, _ in pairs], [d for _, d in pairs]


def outside_vmap(fun: Callable[[], Sequence[Any]], dims_out: Sequence[int | None]) -> list[Any]:
    """Calls a function on values that carry their mapped dimension, and hands its results to `jax.vmap`."""
    trace = _core.trace_ctx.trace
    with _core.set_current_trace(trace.parent_trace):
        outs = fun()
    return [x if d is None else _batching.BatchTracer(trace, x, d) for x, d in zip(outs, dims_out, strict=True)]


# --- named axes -------------------------------------------------------------------------------------------------------


def manual_axes() -> tuple[frozenset[Any], bool]:
    """The axes of the `shard_map` that is under way, and whether its types say what differs along them (check_vma)."""
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes), bool(_config._check_vma.value)


def axis_names(params: Mapping[str, Any]) -> set[Any]:
    """The names of axes in an operation's params, as a collective has them, not those in its bodies."""
    names: set[Any] = set()
    for key in ("axes", "axis_name"):
        value = params.get(key)
        names.update(value if isinstance(value, tuple) else (value,))
    return {a for a in names if a is not None and not isinstance(a, (int, np.integer))}


def exchanges(primitive: Any) -> bool:
    """Whether an operation that names an axis has the places along it exchange values; else it tells of the axis or of types alone."""
    name: str = primitive.name
    return name not in ("axis_index", "pvary", "preduced") and "_cast" not in name


def psum(x: Any, axes: tuple[Any, ...]) -> Any:
    return jax.lax.psum(x, axes)


def varying_everywhere(x: Any) -> Any:
    """A value typed, where types say so, as one that differs along all axes of the `shard_map` that is under way."""
    axes, typed = manual_axes()
    for name in sorted(axes, key=str) if typed else ():
        if name not in jax.typeof(x).mat.varying:
            x = jax.lax.pcast(x, (name,), to="varying")
    return x


def is_array_like(x: Any) -> bool:
    """Whether it may be an argument or a result of a traced function."""
    try:
        aval_of(x)
    except TypeError:
        return False
    return True


def is_unreduced(aval: Any) -> bool:
    """Whether a value is still to be summed over devices."""
    mat = getattr(aval, "mat", None)
    return mat is not None and bool(mat.unreduced)


# --- shard_map --------------------------------------------------------------------------------------------------------


def devices_of(operation: Operation) -> dict[Any, int]:
    """The axes that a `shard_map` maps over, each with its size, in the order in which `axis_index` counts devices."""
    mesh, manual = operation.params["mesh"], operation.params["newly_manual_axes"]
    with operation.context.manager:
        names = _shard_map._all_newly_manual_mesh_names(mesh, manual)
    return {name: mesh.shape[name] for name in mesh.axis_names if name in names}


@contextlib.contextmanager
def inside_shard_map(operation: Operation) -> Iterator[Any]:
    """What JAX knows while it works on the body of a `shard_map`: its axes, its mesh, and whether types say what differs.

    Yields:
      the names of the axes that it maps over.
    """
    mesh, manual = operation.params["mesh"], operation.params["newly_manual_axes"]
    with operation.context.manager:
        names = _shard_map._all_newly_manual_mesh_names(mesh, manual)
    with (
        operation.context.manager,
        _shard_map._extend_axis_env(mesh, manual),
        _mesh.use_abstract_mesh(_shard_map._as_manual_mesh(mesh, manual)),
        _config._check_vma(operation.params["check_vma"]),
    ):
        yield names


def on_each_device(operation: Operation, fun: Callable[..., Sequence[Any]]) -> Callable[..., Any]:
    """A `shard_map` of another body, a function, whose results come with the devices first, as `devices_of` counts them."""
    p = operation.params
    names = tuple(devices_of(operation))

    def body(*xs: Any) -> list[Any]:
        return [jax.lax.expand_dims(varying_everywhere(x), (0,)) for x in fun(*xs)]

    def mapped(*operands: Any) -> Any:
        with operation.context.manager:
            return jax.shard_map(
                body, mesh=p["mesh"], in_specs=tuple(p["in_specs"]), out_specs=jax.sharding.PartitionSpec(names), axis_names=set(names), check_vma=p["check_vma"],
            )(*operands)  # fmt: skip

    return mapped


def type_per_device(aval: Any, spec: Any, params: Mapping[str, Any]) -> Any:
    """The type of what one device has of a value that goes into a `shard_map`."""
    return _core.shard_aval(params["mesh"], params["newly_manual_axes"], params["check_vma"], spec, aval)


def type_of_all(aval: Any, spec: Any, params: Mapping[str, Any]) -> Any:
    """The type of what the devices give together, of which each has `aval`."""
    return _core.unshard_aval(params["mesh"], params["check_vma"], spec, aval)


def residual_spec(aval: Any, names: Any, params: Mapping[str, Any]) -> Any:
    """How a value of each device is laid side by side with the others': along its first dimension, over the axes along which it
    differs, all of `names` where types do not say."""
    return aval.nospec(params["mesh"], params["check_vma"], names)


def replicated_spec(aval: Any) -> Any:
    return _shard_map._repspec(aval)


def effects_outside(effects: Iterable[Any], mesh: Any) -> frozenset[Any]:
    """The effects of a body that concern more than the axes of its mesh."""
    return frozenset(_core.filter_named_axis_effects(set(effects), mesh.axis_names))


def axes_summed(spec: Any, params: Mapping[str, Any]) -> tuple[Any, ...]:
    """The axes along which each device has the same value, so that without types a cotangent is summed over them."""
    return tuple(_shard_map._unmentioned2(params["mesh"], spec, params["newly_manual_axes"]))


def mapped_specs(specs: Sequence[Any], dims: Sequence[int | None], axis: Axis, what: str) -> list[Any]:
    """The specs of values that have got a mapped dimension; jax's ValueError where the axis is in use already."""
    names = axis.spmd_name or axis.explicit_mesh_axis
    used = {n for spec in specs for n in _shard_map.used_axis_names(spec)}
    if names is not None and used.intersection(names):
        kind = "vmap spmd_axis_name" if axis.spmd_name is not None else "vmapped away explicit mesh axis"
        raise ValueError(f"{kind} cannot appear in shard_map {what}")
    return [s if d is None else _pxla.batch_spec(s, d, axis.spmd_name) for s, d in zip(specs, dims, strict=True)]


def axis_per_device(axis: Axis, mesh: Any) -> Axis:
    """A mapped axis as one device of a mesh sees it: its part, where `spmd_axis_name` lays it out over the mesh."""
    if axis.spmd_name is None:
        return axis
    n = math.prod(mesh.shape[name] for name in axis.spmd_name)
    return _batching.AxisData(axis.name, axis.size // n, axis.spmd_name, axis.explicit_mesh_axis)


# --- checkpoint policies ----------------------------------------------------------------------------------------------


def decide(policy: Any, primitive: Any, in_avals: Sequence[Any], params: Mapping[str, Any]) -> Any:
    """What a checkpoint policy says of an equation: 'saved', 'recomputed', or (source, destination) memory kinds."""
    case = _pe.ensure_enum(policy(primitive, *in_avals, **params))
    if isinstance(case, _pe.SaveableType):
        return "saved"
    return (case.src, case.dst) if isinstance(case, _pe.Offloadable) else "recomputed"


def in_memory(aval: Any, kind: str) -> Any:
    """The type of a value moved to another kind of memory, such as 'pinned_host'."""
    return aval.update(memory_space=_core.mem_kind_to_space(kind))


def move_params(kind: str, n: int) -> dict[str, Any]:
    """Params of the `device_put` with which JAX moves `n` values to a kind of memory."""
    return {
        "devices": (_core.mem_kind_to_space(kind),) * n,
        "srcs": (None,),
        "copy_semantics": (dispatch.ArrayCopySemantics.ALWAYS_COPY,),
    }


def has_effects(effects: frozenset[Any]) -> bool:
    """Whether an equation with these is kept though nothing reads its results; naming an axis is no reason to."""
    return bool(effects) and not all(_pe.dceable_effects.contains(e) for e in effects)


def is_real_effect(effect: Any) -> bool:
    """Whether an effect is one that the world sees, and not a note on names or references inside."""
    return not isinstance(effect, (_core.NamedAxisEffect, _core.InternalMutableArrayEffect))


# --- callbacks --------------------------------------------------------------------------------------------------------

report_effect: Any = debugging.debug_effect
"""The effect of an equation that tells Python of a value: loops, branches, checkpoints and custom rules may have it."""


def run_where_known(primitive: Any) -> None:
    """Has a checkpoint run an equation without results once: in the forward pass if its operands are known there, else in the backward pass."""

    def split(saveable: Any, unknown: Sequence[bool], available: Sequence[bool], eqn: Any) -> Any:
        if any(unknown):
            return None, eqn, [], [], [v for v, inst in zip(eqn.invars, available, strict=True) if not inst]
        return eqn, None, [], [], []

    _pe.partial_eval_jaxpr_custom_rules[primitive] = split


def emit_callback(ctx: Any, callback: Callable[..., None], operands: Sequence[Any]) -> tuple[()]:
    """Lowers an equation to a call of Python, on NumPy arrays that are valid during the call.

    In a `shard_map` over the whole mesh it is called for each device, with its number in the mesh last; else once with the whole values.

    Raises:
      NotImplementedError: in a `shard_map` over some axes of a mesh only.
    """
    axes = ctx.module_context.axis_context
    sharding: Any = None
    avals = list(ctx.avals_in)
    operands = list(operands)
    if isinstance(axes, _sharding_impls.SPMDAxisContext):
        if set(axes.manual_axes) != set(axes.mesh.axis_names):
            left = ", ".join(sorted(map(str, set(axes.mesh.axis_names) - set(axes.manual_axes))))
            raise NotImplementedError(
                f"a probe cannot be watched in a shard_map over some of the axes of its mesh; it leaves {left} to the compiler. Watch it "
                "outside of the shard_map, or map over all axes."
            )
        sharding = _callback._get_sdy_array_list_for_callbacks(ctx.avals_out)
        operands.append(_hlo.partition_id())
        avals.append(_core.ShapedArray((), np.dtype(np.uint32)))
    elif isinstance(axes, _sharding_impls.ShardingContext):
        whole = _sharding_impls.SdyArray(mesh_shape=(), dim_shardings=(), logical_device_ids=(0,))
        sharding = _sharding_impls.SdyArrayList((whole,))

    def called(*values: Any) -> tuple[()]:
        callback(*values)
        return ()

    ctx = ctx.replace(avals_in=avals)
    _callback.emit_python_callback(
        ctx, called, None, operands, avals, ctx.avals_out, has_side_effect=True, returns_token=True, sharding=sharding
    )
    return ()


def is_per_device(ctx: Any) -> bool:
    """Whether what is lowered runs on each device of a mesh with values of its own, as the body of a `shard_map`."""
    return isinstance(ctx.module_context.axis_context, _sharding_impls.SPMDAxisContext)


def is_staged() -> bool:
    """Whether what is computed now, even of constants, becomes part of a program that runs later."""
    return is_tracer(jax.lax.add(np.int32(0), np.int32(0)))


# --- JAX's own derivation, and its checks of arguments ----------------------------------------------------------------

# Bound when jaxviz is imported, so that a program may put jaxviz.grad in the place of jax.grad and nothing turns in a circle.
jax_vjp = jax.vjp
jax_make_jaxpr = jax.make_jaxpr
jax_vmap = jax.vmap

check_callable = _api.check_callable
check_scalar = _api._check_scalar
check_input_dtype_reverse = _api._check_input_dtype_revderiv
check_output_dtype_reverse = _api._check_output_dtype_revderiv
check_input_dtype_jacfwd = _api._check_input_dtype_jacfwd
check_output_dtype_jacfwd = _api._check_output_dtype_jacfwd
check_cotangent_types = _api._vjp_check_ct_avals
raise_cotangent_tree_error = _api._vjp_ct_tree_error
too_many_cotangents = _api._vjp_too_many_args
standard_basis = _api._std_basis
unravel_jacfwd = _api._jacfwd_unravel
unravel_jacrev = _api._jacrev_unravel
one_cotangent = _lax._one_vjp


NOT_NEEDED: Any = _api.NotNeeded()
GRAD_VALUE: Any = _api.GradValue()
_HAS_UNSAVEABLE: bool = hasattr(_api, "NotSaveable")
"""Whether arguments of JAX's VJP objects may be residuals that are not saved, as since 0.11."""
_RULES_LOG: bool = hasattr(jax.custom_vjp, "defvjp_with_logs")
"""Whether a backward rule returns what it logs beside the cotangents, as since 0.11.1."""


def nested_like(tree: Any, leaves: Sequence[Any]) -> Any:
    """Leaves in nested tuples, since 0.12 in JAX's own containers, as a tree of arguments is nested."""
    nest = _api.mirror_tree_map if hasattr(_api, "mirror_tree_map") else _api.tuptree_map
    return nest(lambda x: x, tree, leaves)


def flags(prefix: Any, tree: Any, name: str) -> list[bool]:
    """One bool for each leaf of a tree, from a tree of bools that is a prefix of it."""
    if hasattr(_api, "tuptree_flags"):  # since 0.11.1
        return list(_api.tuptree_flags(prefix, tree, name, f"the {name} argument"))
    return list(jax.tree.leaves(jax.tree.broadcast(prefix, jax.tree.unflatten(tree, [0] * tree.num_leaves))))


def not_saveable() -> Any:
    """In place of an argument that is a residual and is not to be saved; it has to be put back before the cotangents are asked for."""
    return _api.NotSaveable() if _HAS_UNSAVEABLE else NOT_NEEDED


_logging: weakref.WeakSet[Any] = weakref.WeakSet()
"""The backward rules that have logged something."""


def has_logged(params: Mapping[str, Any]) -> bool:
    """Whether the backward rule of an equation logs something, given its params."""
    return any(name in params and params[name] in _logging for name in ("bwd", "_prim"))


def restored_arguments(args_res: Any, jaxpr: Callable[[], Any], in_tree: Any) -> list[Any]:
    """The flat arguments that a `VJP` holds, or what stands in the place of those that it does not.

    Raises:
      ValueError: JAX's, since 0.11, for one that was not to be saved and has not been put back.
    """
    if not _HAS_UNSAVEABLE:
        return list(jax.tree.leaves(args_res, is_leaf=lambda x: isinstance(x, _api.NotNeeded)))
    leaves = jax.tree.leaves(args_res, is_leaf=lambda x: isinstance(x, (_api.NotNeeded, _api.NotSaveable)))
    missing = [i for i, x in enumerate(leaves) if isinstance(x, _api.NotSaveable)]
    if missing:
        _api._vjp_not_saveable_error(jaxpr(), in_tree, missing)
    return list(leaves)


def accumulators(
    wanted: Sequence[Any], in_avals: Sequence[Any], explicit: bool, jaxpr: Callable[[], Any], in_tree: Any
) -> list[Any]:
    """For each argument JAX's accumulator of its cotangent: of a value, into a reference, or into nothing.

    Args:
      wanted: `GradValue`, `DontWant`, a reference or an accumulator for each.
      in_avals: types of the arguments.
      explicit: whether the user said what is wanted.
      jaxpr, in_tree: of the function, for errors.

    Source: `_vjp3_callable` in JAX's `functions/transformations.py`.
    """
    if hasattr(_api, "_vjp_accum"):  # since 0.11
        of_type = [types.SimpleNamespace(aval=a) for a in in_avals]
        return [
            _api._vjp_accum(jaxpr() if explicit else None, in_tree, explicit, i, v, x)
            for i, (v, x) in enumerate(zip(of_type, wanted, strict=True))
        ]
    made: list[Any] = []
    for aval, x in zip(in_avals, wanted, strict=True):
        ct_aval = aval.to_ct_aval()
        if isinstance(x, _ad.GradAccum):
            made.append(_api.check_accum(ct_aval, x))
        elif _api._is_ref(x):
            made.append(_ad.RefAccum(ct_aval, x))
        else:
            made.append((_ad.NullAccum if isinstance(x, _api.DontWant) else _ad.ValAccum)(ct_aval))
    return made


def is_unwanted(accumulator: Any) -> bool:
    return isinstance(accumulator, _ad.NullAccum)


def accumulated(accumulator: Any) -> Any:
    """What `VJP` returns for an argument: its cotangent, or a mark that it was added to a reference, or not wanted."""
    if isinstance(accumulator, _ad.ValAccum):
        return _ad.instantiate_zeros(accumulator.freeze())
    return _api.DidntWant() if is_unwanted(accumulator) else _api.GradRef()


def is_zero(x: Any) -> bool:
    """Whether x is a symbolic zero of JAX's."""
    return type(x) is _ad.Zero


def is_float0(aval: Any) -> bool:
    """Whether values of this tangent type are the trivial ones of integers and booleans."""
    return bool(getattr(aval, "dtype", None) == dtypes.float0)


@cleared
@functools.lru_cache(maxsize=4096)
def as_weak_as(aval: Any, other: Any) -> Any:
    """A type, weak where another one is; the same object where it is so already."""
    weak = getattr(other, "weak_type", None)
    return aval if weak is None or weak == getattr(aval, "weak_type", weak) else aval.update(weak_type=weak)


def cotangent_type(aval: Any) -> Any:
    """The type of cotangents of a value in a linear program: of an integer, in a program of integers, its own."""
    ct = aval.to_ct_aval()
    return aval if is_float0(ct) else ct


def empty(aval: Any) -> Any:
    """The array that JAX fills in for a residual that another branch of a cond saves."""
    return _ad_util.empty_like_aval(aval)


@cleared
@functools.lru_cache(maxsize=4096)
def stacked(aval: Any, length: int) -> Any:
    """The type of `length` values of a type, one for each iteration of a scan."""
    return _core.unmapped_leading_aval(length, aval)


def unstacked(aval: Any) -> Any:
    """The type of one of the values that `stacked` gives the type of; its layout over devices goes with the dimensions."""
    return _core.mapped_leading_aval(aval.shape[0], aval)


def zeros(aval: Any) -> Any:
    """An array of zeros of a tangent or cotangent type."""
    return _ad.instantiate_zeros(_ad.Zero(aval))


def types_compatible(expected: Any, given: Any) -> bool:
    """Whether a value of type `given` can stand where `expected` is asked for, weak types aside."""
    return bool(_core.typecompat(expected, given))


def index_or_indices(argnums: Any) -> Any:
    """argnums as an int or a tuple of ints, as jax checks them."""
    return _core.concrete_or_error(api_util._ensure_index, argnums)


# --- calls of jitted functions ----------------------------------------------------------------------------------------


class JitCall(NamedTuple):
    """A call of a jitted function that JAX is tracing, lowering or compiling for.

    Args:
      identity: of the call, while it is under way.
      kind: 'call'; 'ahead' for `f.trace` and `f.lower`; 'part' for what a transform outside of `jit` evaluates of a jitted function.
      fun: what was jitted; None for a part.
      info: the parameters of `jit`; None for a part.
      args, kwargs: of the call; a part has them flat.
      debug_info: of a part's program, else None.
    """

    identity: tuple[int, int]
    kind: str
    fun: Any
    info: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    debug_info: Any = None


def jit_call_under_way(frame: Any) -> JitCall | None:
    """The innermost call of a jitted function among a Python frame and those that called it; None where there is none.

    A listener of `jax.monitoring` runs inside the call that it hears of, whose frames have what JAX goes by. Reading them changes nothing,
    which putting another function in the place of one of JAX's would.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_filename == pjit.__file__:
            if code.co_name == "cache_miss":
                x = frame.f_locals
                return JitCall((id(frame), id(x["args"])), "call", x["fun"], x["jit_info"], x["args"], x["kwargs"])
            if code.co_name == "jit_trace":
                x = frame.f_locals
                f = x["jit_func"]
                return JitCall((id(frame), id(x["args"])), "ahead", f._fun, f._jit_info, x["args"], x["kwargs"])
            if code.co_name == "call_impl_cache_miss":
                x = frame.f_locals
                return JitCall(
                    (id(frame), id(x["args"])), "part", None, None, x["args"], {}, x["jaxpr"].jaxpr.debug_info
                )
        frame = frame.f_back
    return None


def jitted_function(f: Any) -> tuple[Any, Any] | None:
    """What was jitted, and the parameters of `jit`, of a function that `jax.jit` made; None of another."""
    fun, info = getattr(f, "_fun", None), getattr(f, "_jit_info", None)
    # A function that wraps one, as its gradient does, has its attributes too, but not its methods.
    return None if info is None or not hasattr(f, "lower") else (fun, info)


def static_places(f: Any) -> tuple[frozenset[int], frozenset[str]]:
    """Which arguments a function of `jax.jit` takes as static, by place and by name; so do its gradient and a partial application."""
    n_given = 0
    while isinstance(f, functools.partial):
        n_given += len(f.args)
        f = f.func
    info = getattr(f, "_jit_info", None)
    if info is None:
        return frozenset(), frozenset()
    return frozenset(i - n_given for i in info.static_argnums if i >= n_given), frozenset(info.static_argnames)


def is_about_hashes(error: Exception) -> bool:
    """Whether an error is JAX's about a static argument that has no hash."""
    return str(error).startswith("Non-hashable static arguments")


def static_values(f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call that `static_places` gives, by name."""
    places, names = static_places(f)
    by_place = parameters(f, len(args), {})[0]
    static = {by_place[i]: args[i] for i in sorted(places) if i < len(args)}
    return static | {name: kwargs[name] for name in sorted(names) if name in kwargs}


def is_primitive_call(fun: Any) -> bool:
    """Whether a jitted function is one that JAX makes to run an operation by itself."""
    return hasattr(fun, "_apply_primitive")


def static_arguments(
    fun: Any, info: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The static arguments of a call, and the others that are given by position and by keyword; each by name."""
    names, _, _ = parameters(fun, len(args), {})
    static = {names[i]: args[i] for i in sorted(info.static_argnums) if i < len(args)}
    static |= {name: kwargs[name] for name in info.static_argnames if name in kwargs}
    return (
        static,
        {name: x for i, (name, x) in enumerate(zip(names, args, strict=True)) if i not in info.static_argnums},
        {name: x for name, x in kwargs.items() if name not in info.static_argnames},
    )


def argument_paths(fun: Any, info: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """The paths of the flat arguments of a call of a jitted function that are not static, such as `params['w']`."""
    found = api_util.debug_info(
        "jit", fun, tuple(args), dict(kwargs), static_argnums=info.static_argnums, static_argnames=info.static_argnames
    )
    return tuple(found.arg_names or ())


def argument_type(x: Any) -> Any:
    """The type that an argument of a jitted function has for it."""
    return _core.shaped_abstractify(x)


_JIT_OPTIONS = {
    "donate_argnums": "donate_argnums", "donate_argnames": "donate_argnames", "static_argnums": "static_argnums",
    "static_argnames": "static_argnames", "in_shardings": "in_shardings_leaves", "out_shardings": "out_shardings_leaves",
    "device": "device", "backend": "backend", "keep_unused": "keep_unused", "inline": "inline",
    "compiler_options": "compiler_options_kvs",
}  # fmt: skip


def jit_options(info: Any) -> dict[str, str]:
    """The parameters of `jit` as text, by name."""
    return {name: str(getattr(info, field, None)) for name, field in _JIT_OPTIONS.items()}


def trace_key() -> Any:
    """What of JAX's configuration and context a traced program is kept under, as it is now."""
    return _config.trace_context()


def trace_config() -> dict[str, Any]:
    """What of JAX's configuration and context a traced program is kept under, by name, as it is now."""
    names: Callable[[], Sequence[str]] = _config.trace_context_names
    return dict(zip(names(), trace_key(), strict=True))


def tree_differences(old: Any, new: Any) -> list[tuple[str, str, str]]:
    """Where two tree structures differ: the path of a node, what it was and what it is."""
    found = _tree_util.equality_errors_pytreedef(old, new)
    return [(_named_path(path), str(before), str(after)) for path, before, after, _ in found]


def _named_path(path: Sequence[Any]) -> str:
    """`x[0]` of a path that begins with a name in a dict."""
    return f"{path[0].key}{_tree_util.keystr(tuple(path[1:]))}" if path else ""


_hooks: list[tuple[Any, Callable[[], Any], Callable[[Any], None], Any]] = []
"""For each place where a hook of ours was put: the hook, how to read and to write the place, and what was there before."""


def on_jit_calls(heard: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None] | None) -> None:
    """Has JAX call a function after each call of a jitted one, with that, its arguments, its keyword arguments and its results.

    It is where JAX itself checks for NaNs, whose check goes on; setting `jax_debug_nans` afterwards puts JAX's in its place.

    Args:
      heard: to be called; None to put back what was there, unless another has taken the place since.
    """
    while _hooks:
        hook, read, write, before = _hooks.pop()
        if read() is hook:
            write(before)
    if heard is None:
        return
    state, unset = _api._post_hook_state, _config.config_ext.unset
    places = [(state.get_global, state.set_global)]
    if state.get_local() is not unset:  # JAX sets that of a thread where `jax.debug_nans` was a context in it
        places.append((state.get_local, state.set_local))
    for read, write in places:
        before = read()
        hook = heard if before is None else _heard_after(before, heard)
        write(hook)
        _hooks.append((hook, read, write, before))


def _heard_after(before: Any, heard: Any) -> Any:
    def hook(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        before(fun, args, kwargs, out)
        heard(fun, args, kwargs, out)

    return hook


def donating(f: Any) -> Any:
    """The parameters of `jit` of a function that takes over the memory of arguments; None of another."""
    info = getattr(f, "_jit_info", None)
    return info if info is not None and (info.donate_argnums or info.donate_argnames) else None


def donates(info: Any) -> bool:
    """Whether parameters of `jit` say that arguments are donated."""
    return bool(info.donate_argnums or info.donate_argnames)


def donated_arguments(fun: Any, info: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a call of a jitted function donates, by name."""
    names = parameters(fun, len(args), {})[0]
    given = {names[i]: args[i] for i in info.donate_argnums if i < len(args)}
    return given | {name: kwargs[name] for name in info.donate_argnames if name in kwargs}


ArrayImpl: Any = _array.ArrayImpl
_check_if_deleted = _array.ArrayImpl._check_if_deleted


def explain_deleted(tell: Callable[[Any], str] | None) -> None:
    """Has JAX's error for reading a deleted array end in what a function says of the array, if anything; None undoes it."""

    def check(self: Any) -> None:
        try:
            _check_if_deleted(self)
        except RuntimeError as error:
            said = tell(self) if tell is not None else ""
            if not said:
                raise
            raise RuntimeError(f"{error} {said}") from None

    _array.ArrayImpl._check_if_deleted = _check_if_deleted if tell is None else check


def key_data(x: Any) -> Any:
    """The array that an array of random keys is made of; the array itself of another."""
    return getattr(x, "_base_array", x)


def jitted_anew(fun: Callable[..., Any], info: Any) -> Any:
    """A function jitted as another was, which shares nothing of what was traced and compiled of that; it donates nothing."""

    @functools.wraps(fun)
    def again(*args: Any, **kwargs: Any) -> Any:
        return fun(*args, **kwargs)

    unflatten = jax.tree.unflatten
    return jax.jit(
        again, static_argnums=info.static_argnums or None, static_argnames=info.static_argnames or None,
        in_shardings=unflatten(info.in_shardings_treedef, info.in_shardings_leaves),
        out_shardings=unflatten(info.out_shardings_treedef, info.out_shardings_leaves),
        keep_unused=info.keep_unused, compiler_options=dict(info.compiler_options_kvs) or None,
    )  # fmt: skip


_JAX = pjit.__file__.partition("_src")[0]
_JAXLIB = jaxlib.__file__.removesuffix("__init__.py")
_DERIVES = tuple(
    f"{_JAX}_src/{name}"
    for name in (
        "interpreters/ad.py",
        "interpreters/batching.py",
        "ad_util.py",
        "custom_derivatives.py",
        "ad_checkpoint.py",
    )
)
_WRAPS = ("traceback_util.py", "profiler.py", "/util.py", "linear_util.py", "config.py", "api_util.py")


def part_of_jax(file: str) -> str:
    """What a file of JAX's does: 'derivation', 'wrapper' where it only calls others, else 'jax'; '' of a file of another's."""
    if file.startswith(_JAXLIB):
        return "jax"
    if not file.startswith(_JAX):
        return ""
    return "derivation" if file in _DERIVES else "wrapper" if file.endswith(_WRAPS) else "jax"


def name_in_jax(file: str, function: str) -> str:
    """`jax.numpy.reductions.sum` of a function in `jax/_src/numpy/reductions.py`."""
    if file.startswith(_JAXLIB):
        return f"jaxlib.{file[len(_JAXLIB) :].removesuffix('.py').replace('/', '.')}.{function}"
    return f"jax.{file[len(_JAX) :].removeprefix('_src/').removesuffix('.py').replace('/', '.')}.{function}"
