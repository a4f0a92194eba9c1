"""Custom rules found in tracing: when they are traced, which tracers they close over, along which dimensions they are
mapped."""

from __future__ import annotations

import contextlib
import functools
import os
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr

from jaxviz.ir.compat.checks import _RULES_LOG, _is_nonzero, is_float0, zeros
from jaxviz.ir.compat.jaxprs import unknown_debug_info
from jaxviz.ir.compat.private import _ad, _ad_util, _batching, _core, _hijax, _lu, _source, api_util
from jaxviz.ir.syntax import Equation

_rules: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""The user's rules by the functions that an equation's `jvp_jaxpr_fun` or `fwd_jaxpr_thunk` calls."""


def _with_unused_inputs(jaxpr: Any, at: int, avals: Sequence[Any]) -> Any:
    """A ClosedJaxpr with additional unused inputs of these types, from position `at` on."""
    opened = jaxpr.jaxpr
    unused = [_core.Var(aval) for aval in avals]
    names = opened.debug_info.arg_names
    info = opened.debug_info._replace(
        arg_names=None if names is None else (*names[:at], *([""] * len(avals)), *names[at:])
    )
    invars = [*opened.invars[:at], *unused, *opened.invars[at:]]
    return ClosedJaxpr(opened.replace(invars=invars, debug_info=info), jaxpr.consts)


Axis = Any
"""A mapped axis, JAX's `AxisData`: `name`, `size`, `spmd_name` and `explicit_mesh_axis`."""

Dims = tuple[int | None, ...]
"""The dimensions along which each of the vmaps around a function maps a result, the outermost vmap first."""


class _MappedAlike:
    """Makes a function with a custom rule and the rule return results that are mapped along the same dimensions.

    Outside `jit` JAX calls one of the two, under each `vmap` around them, and maps the results accordingly; a program
    contains both. The one that is traced first decides. If that is the function, and one of its results is not mapped,
    the rule is traced once in advance to see how it maps them: a result whose tangent is mapped has to be mapped too.

    Source: `BatchTrace.process_custom_jvp_call` and `process_custom_vjp_call` in JAX's `batching.py`.
    """

    def __init__(self) -> None:
        self._dims: list[Dims] | None = None
        """The dimensions of the results; for a forward rule, preceded by those of the residuals."""

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
            with contextlib.suppress(Exception):  # the rule raises it again when it is used
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
            target = [
                tuple([d if other is None else other for d, other in zip(of, others, strict=True)])
                for of, others in zip(dims[len(dims) - n :], self._of(n), strict=True)
            ]
            target = dims[: len(dims) - n] + target
            self._dims = target
            for i, (store, _) in enumerate(vmaps):
                store.reset()
                store.store([of[i] for of in target])
            # Tangents, which a JVP rule returns after its results, are mapped like the results.
            return [_mapped_along(x, dims[i % len(dims)], target[i % len(dims)], axes) for i, x in enumerate(outs)]

        return fun.wrap(alike, (), None)


def _is_vmap(transform: Any) -> bool:
    return transform in (_batching.batch_subtrace.args[0], _batching.batch_custom_jvp_subtrace.args[0])


def _mapped_along(x: Any, dims: Dims, target: Dims, axes: Sequence[Axis]) -> Any:
    """Moves the mapped dimensions of a value to other ones, and broadcasts where it was not mapped.

    Args:
      x: the value, or a symbolic zero, which has no dimensions to move.
      dims, target: its mapped dimensions, by `vmap`, the outermost first.
      axes: the axis of each `vmap`.
    """
    if dims == target or type(x) in (_ad_util.SymbolicZero, _ad.Zero) or is_float0(_core.typeof(x)):
        return x
    own = list(range(x.ndim - sum(d is not None for d in dims)))
    before, after = (_with_axes(own, d) for d in (dims, target))
    x = jax.lax.transpose(x, [before.index(a) for a in after if a in before])
    for i, a in enumerate(after):
        if a not in before:
            axis = axes[-1 - a]
            x = _batching.broadcast(x, axis.size, i, axis.explicit_mesh_axis)
    return x


def _with_axes(own: Sequence[int], dims: Dims) -> list[int]:
    """The order of the axes of a mapped value: its own from 0 on, that of the outermost `vmap` is -1, of the next
    -2."""
    order = list(own)
    for i, d in reversed(list(enumerate(dims))):
        if d is not None:
            order.insert(d, -1 - i)
    return order


class _TakenRule:
    """A custom rule that was traced where its function was called, and is called like the rule itself.

    Args:
      rule: the user's rule.
      traced: from what it closes over, its operands and, for a JVP rule, the nonzero tangents, to its results.
      carries: which operands carry a tangent.
      nonzeros_out: which results of a JVP rule have a tangent.
      out_trees: for a forward rule, the stored structures of its results and residuals.
    """

    def __init__(
        self, rule: Any, traced: TracedJaxpr, carries: Sequence[bool], nonzeros_out: Sequence[bool], out_trees: Any
    ):
        self.traced = traced
        self.carries = carries
        self.nonzeros_out = nonzeros_out
        self.out_trees = out_trees
        # What the rule stored about its results, for callers that ask when it is used; JAX does not expect it so early.
        self._stored = [(store, store.val) for store in rule.stores if store]
        _empty_stores(rule)

    @property
    def n_consts(self) -> int:
        return len(self.traced.jaxpr.consts)

    def of_jvp(self, *args: Any) -> list[Any]:
        """Maps operands and all tangents, including those of closed-over values, to results and their tangents."""
        n = len(args) // 2
        tangents = [
            _ad.instantiate_zeros(_ad.replace_rule_output_symbolic_zeros(t))
            for t, carries in zip(args[n + self.n_consts :], self.carries, strict=True)
            if carries
        ]
        outs = self._evaluate(*args[:n], *tangents)
        tangents_ = iter(outs[len(self.nonzeros_out) :])
        results = outs[: len(self.nonzeros_out)]
        zero = lambda x: _ad_util.SymbolicZero(_core.typeof(x).to_tangent_aval())
        return [
            *results,
            *(next(tangents_) if nz else zero(x) for x, nz in zip(results, self.nonzeros_out, strict=True)),
        ]

    def forward(self, *args: Any) -> list[Any]:
        self.store()
        return self._evaluate(*args)

    def store(self) -> None:
        """What the rule does when it is traced, besides returning results: its backward rule asks for that."""
        for store, value in self._stored:
            store.reset()
            store.store(value)

    def _evaluate(self, *args: Any) -> list[Any]:
        """Maps closed-over values and operands to results. What linearize keeps as an array stays one in a trace that
        records it."""
        jaxpr, trace = self.traced.jaxpr.jaxpr, _core.trace_ctx.trace
        constvars: list[Any] = []
        consts: list[Any] = []
        held = {id(a) for a in self.traced.held} if hasattr(trace, "hold") else ()

        def variables(atoms: Sequence[Any]) -> list[Any]:
            variables = [_core.Var(a.aval) if id(a) in held else a for a in atoms]
            new = [(v, a) for v, a in zip(variables, atoms, strict=True) if v is not a]
            constvars.extend(v for v, _ in new)
            consts.extend(trace.new_const(a.val, _source.current(), a.aval) for _, a in new)
            return variables

        eqns = [e.replace(invars=variables(e.invars)) for e in jaxpr.eqns] if held else jaxpr.eqns
        outvars = variables(jaxpr.outvars)
        jaxpr = jaxpr.replace(constvars=[*jaxpr.constvars, *constvars], eqns=eqns, outvars=outvars)
        outs: list[Any] = _core.eval_jaxpr(jaxpr, [*args[: self.n_consts], *consts], *args[self.n_consts :])
        return outs


def closed_over_by_jvp_rule_error(function: Any) -> Exception:
    """The error for a function with a custom JVP rule that is differentiated with respect to a value which the rule
    closes over.

    Args:
      function: the DebugInfo of the function or of the rule.
    """
    error: Exception = jax.errors.UnexpectedTracerError(
        f"The custom JVP rule of {function.func_src_info} closes over a value that is differentiated. Make it an "
        "argument of the function."
    )
    return error


def _jvp_of_rule(
    rule: Any, in_avals: Sequence[Any], nonzeros: Sequence[bool], symbolic_zeros: bool
) -> tuple[Callable[..., list[Any]], list[Any], list[bool]]:
    """A custom JVP rule as a function from operands and nonzero tangents to results and nonzero tangents; its input
    types; and which results have a nonzero tangent, a list that is filled in during tracing."""
    zero = _ad_util.SymbolicZero if symbolic_zeros else zeros
    tangent_avals = [a.to_tangent_aval() for a in in_avals]
    nonzeros_out: list[bool] = []
    call = rule.of_jvp if isinstance(rule, _TakenRule) else rule.call_wrapped

    def push(*args: Any) -> list[Any]:
        tangents_ = iter(args[len(in_avals) :])
        tangents = [next(tangents_) if nz else zero(a) for a, nz in zip(tangent_avals, nonzeros, strict=True)]
        outs = call(*args[: len(in_avals)], *tangents)
        n_out = len(outs) // 2
        tangents_out = [_ad.replace_rule_output_symbolic_zeros(t) for t in outs[n_out:]]
        nonzeros_out[:] = map(_is_nonzero, tangents_out)
        return [*outs[:n_out], *(t for t, nz in zip(tangents_out, nonzeros_out, strict=True) if nz)]

    return push, [*in_avals, *(a for a, nz in zip(tangent_avals, nonzeros, strict=True) if nz)], nonzeros_out


def _forward_of_rule(
    rule: Any, in_avals: Sequence[Any], nonzeros: Sequence[bool]
) -> tuple[Callable[..., list[Any]], list[Any], list[bool]]:
    """A custom forward rule as a function of its operands, and its input types."""
    if isinstance(rule, _TakenRule):
        return rule.forward, list(in_avals), []
    call = lambda *args: rule.call_wrapped(*(x for pair in zip(args, nonzeros, strict=True) for x in pair))
    return call, list(in_avals), []


def _taken_forward_params(taken: _TakenRule, rule: Any, backward: Any) -> dict[str, Any]:
    """The params of an equation whose forward rule was traced immediately. What the rule closes over is among the
    operands, and may not be differentiated."""
    jaxpr = taken.traced.jaxpr.jaxpr
    closed_over = jaxpr.constvars
    info = unknown_debug_info(len(closed_over) + len(jaxpr.invars), len(jaxpr.outvars))
    opened = jaxpr.replace(constvars=[], invars=[*closed_over, *jaxpr.invars], debug_info=info)

    def thunk(*nonzeros: bool) -> tuple[Any, list[Any]]:
        allowed = [*[False] * taken.n_consts, *taken.carries]
        if any(nz and not may for nz, may in zip(nonzeros, allowed, strict=True)):
            raise _ad.CustomVJPException()
        taken.store()
        return opened, []

    def zeros_too(call: Callable[..., Any], *args: Any) -> Any:
        cts = call(*args)
        logged = []
        if _RULES_LOG:
            cts, *logged = cts
        cts = [*(_ad.Zero(v.aval.to_ct_aval()) for v in closed_over), *cts]
        return (cts, *logged) if _RULES_LOG else cts

    return {
        "fwd_jaxpr_thunk": _lu.wrap_init(thunk, debug_info=rule.debug_info),
        "bwd": backward.wrap(zeros_too, (), None),
    }


def custom_function(hi: Any) -> Any:
    """A hi-primitive whose rules close over values of a trace, as a function of flat operands with custom rules, which
    may do that: once the trace has ended, JAX itself cannot call them any more."""
    tree, leaves = hi.in_tree, hi.out_tree.flatten_up_to
    is_zero = lambda t: isinstance(t, _ad.Zero)

    def function(*args: Any) -> list[Any]:
        return list(leaves(hi.expand(*tree.unflatten(args))))

    function.__name__ = str(getattr(getattr(hi, "traced", None), "fun_name", type(hi).__name__))

    def jvp(primals: Any, tangents: Any) -> tuple[list[Any], list[Any]]:
        tangents = [_ad.replace_rule_output_symbolic_zeros(t) for t in tangents]
        outs, tangents_out = hi.jvp(tree.unflatten(primals), tree.unflatten(tangents))
        return list(leaves(outs)), [_ad_util.replace_internal_symbolic_zeros(t) for t in leaves(tangents_out)]

    def forward(*args: Any) -> tuple[list[Any], Any]:
        nonzeros = tree.unflatten([a.perturbed for a in args])
        outs, residuals, *_ = hi.vjp_fwd(nonzeros, *tree.unflatten([a.value for a in args]))
        return list(leaves(outs)), residuals

    def backward(residuals: Any, cts: Sequence[Any]) -> tuple[Any, ...]:
        sums = [_ad.ValAccum(a.to_ct_aval()) for a in hi.in_avals_flat]
        cts = [_ad.replace_rule_output_symbolic_zeros(ct) for ct in cts]
        hi.vjp_bwd(residuals, hi.out_tree.unflatten(cts), *tree.unflatten(sums))
        return tuple(None if is_zero(ct := total.freeze()) else ct for total in sums)

    if has_jvp_alone(hi):
        by_jvp: Any = jax.custom_jvp(function)
        by_jvp.defjvp(jvp, symbolic_zeros=True)
        return by_jvp
    by_vjp: Any = jax.custom_vjp(function)
    by_vjp.defvjp(forward, backward, symbolic_zeros=True)
    return by_vjp


def has_jvp_alone(hi: Any) -> bool:
    """Whether JAX makes the linearization of a hi-primitive of its JVP rule."""
    pair = _hijax.linearize_from_jvp if hasattr(_hijax, "vjp_from_lin") else None
    return isinstance(pair, tuple) and type(hi).lin is pair[0]


def _holds_tracers(trace: Any, root: Any, inside: bool = False) -> bool:
    """Whether a function closes over a tracer of a trace, or of one nested in it, directly or through other
    functions."""
    for x in _closed_over(root):
        if isinstance(x, _core.Tracer) and (_is_inside(x._trace, trace) if inside else x._trace is trace):
            return True
    return False


def _closed_over(root: Any) -> Iterator[Any]:
    """A function, and what it closes over, directly or through other functions, with the cells that hold it."""
    seen: set[int] = set()
    pending = [root]
    while pending:
        x = pending.pop()
        if id(x) in seen or len(seen) > 1000:
            continue
        seen.add(id(x))
        yield x
        if isinstance(x, _core.Tracer):
            pending += [getattr(x, name, None) for name in ("val", "primal", "tangent")]
        elif isinstance(x, _lu.WrappedFun):
            pending += [x.f, *(arg for _, args in x.transforms for arg in args)]
        elif isinstance(x, api_util.Unhashable):
            pending.append(x.val)
        elif isinstance(x, functools.partial):
            pending += [x.func, *x.args, *x.keywords.values()]
        elif hasattr(type(x), "defjvp") or hasattr(type(x), "defvjp"):
            # With custom rules; JAX 0.11 has another class for those of hi-primitives, whose rules close over it.
            pending += [getattr(x, name, None) for name in ("fun", "f", "jvp", "jvp_fun", "fwd", "bwd")]
        elif isinstance(x, types.FunctionType):
            pending += [cell for cell in x.__closure__ or () if cell != types.CellType()]
            pending += x.__defaults__ or ()
        elif isinstance(x, types.CellType):
            pending.append(x.cell_contents)
        elif isinstance(x, types.MethodType):
            pending += [x.__func__, x.__self__]
        elif hasattr(x, "in_avals_flat"):  # a hi-primitive
            pending += x.params.values()
        elif _is_container(x):
            for part in x.values() if isinstance(x, dict) else x:
                # Other pytrees are flattened, but no dict: its keys may have no order.
                pending += [part] if _is_container(part) else jax.tree.leaves(part, is_leaf=_is_container)


def code_of_rule(rule: Any) -> tuple[Any, ...] | None:
    """The code of a custom rule in the params of an equation, and the numbers that it closes over, which are those of
    another call of the same function; None for what is no rule."""
    if not isinstance(rule, _lu.WrappedFun):
        return None
    parts = list(_closed_over(rule))
    return *(x.__code__ for x in parts if isinstance(x, types.FunctionType)), *(
        (type(x), x) for x in parts if type(x) in (bool, int, float, complex, str)
    )


def _is_container(x: Any) -> bool:
    return isinstance(x, (tuple, list, dict))


Cells = Sequence[tuple[types.CellType, Any]]
"""Variables that functions close over, each with a value."""


def _variables_of(rule: Any) -> Cells:
    """The variables that a rule closes over, with their values now, when JAX would call it.

    A rule that is defined in a Python loop closes over the loop's variable, which has its last value when the rule is
    traced.
    """
    functions = (x for x in _closed_over(rule) if isinstance(x, types.FunctionType))
    of_users = (f.__closure__ or () for f in functions if not f.__code__.co_filename.startswith(_JAX_FOLDER))
    return [(cell, cell.cell_contents) for cells in of_users for cell in cells if cell != types.CellType()]


_JAX_FOLDER = os.path.dirname(jax.__file__) + os.sep


@contextlib.contextmanager
def _having(variables: Cells) -> Iterator[None]:
    """Gives variables the values that they had."""
    changed = [(cell, cell.cell_contents, then) for cell, then in variables if cell.cell_contents is not then]
    try:
        for cell, _, then in changed:
            cell.cell_contents = then
        yield
    finally:
        for cell, now, _ in changed:
            cell.cell_contents = now


def _as_it_is_now(rule: Any) -> Any:
    """A custom rule that is traced later, with the values that the variables which it closes over have now."""
    variables = _variables_of(rule)

    def called(call: Callable[..., Any], *args: Any) -> Any:
        with _having(variables):
            return call(*args)

    return rule.wrap(called, (), None) if variables else rule


_variables: weakref.WeakKeyDictionary[Any, Cells] = weakref.WeakKeyDictionary()
"""The variables of rules as they were at the first call: in a body, such as that of a scan, by the functions that trace
the rules; those of a hi-primitive by itself."""

_seen_bodies: weakref.WeakSet[Any] = weakref.WeakSet()


def _note_rules(params: Mapping[str, Any]) -> list[Any]:
    """Notes the variables of the custom rules in the bodies of an equation that is being traced; JAX uses the rules at
    once. Returns what traces the rules that are new."""
    thunks: list[Any] = []
    for jaxpr in _core.jaxprs_in_params(params):
        if jaxpr in _seen_bodies:
            continue
        _seen_bodies.add(jaxpr)
        for eqn in jaxpr.eqns:
            thunk = eqn.params.get("jvp_jaxpr_fun") or eqn.params.get("fwd_jaxpr_thunk")
            if thunk is not None:
                _variables[thunk.f] = _variables_of(thunk)
                thunks.append(thunk)
            _note_hi_primitive(eqn.params)
            thunks += _note_rules(eqn.params)
    return thunks


def _note_hi_primitive(params: Mapping[str, Any]) -> None:
    """Notes the variables of the rules of a hi-primitive."""
    if "_prim" in params and (variables := _variables_of(params["_prim"])):
        with contextlib.suppress(TypeError):  # it is not hashable
            _variables[params["_prim"]] = variables


def as_it_was(params: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Traces a rule of a hi-primitive with the variables that it closed over when it was called."""
    try:
        return _having(_variables.get(params["_prim"], ()))
    except TypeError:
        return _having(())


def same_variables(changed: Any, original: Any) -> None:
    """Notes that a changed hi-primitive closed over what the original closed over."""
    with contextlib.suppress(TypeError):  # it is not hashable
        if original in _variables:
            _variables[changed] = _variables[original]


def _rule_having_variables(thunk: Any) -> contextlib.AbstractContextManager[None]:
    """Traces a rule in a body with the variables that it closed over when the body was called."""
    return _having(_variables.get(thunk.f, ()))


def _is_inside(trace: Any, outer: Any) -> bool:
    """Whether a trace began while another one was active."""
    while (trace := getattr(trace, "parent_trace", None)) is not None:
        if trace is outer:
            return True
    return False


def _empty_stores(rule: Any) -> None:
    """Allows a custom rule to be traced again: it stores the structure of its results once, for its caller."""
    for store in () if isinstance(rule, _TakenRule) else rule.stores:
        if store:
            store.reset()


class TracedJaxpr(NamedTuple):
    """The result of `trace_to_jaxpr`.

    Args:
      jaxpr: a ClosedJaxpr.
      held: its literals that linearize keeps as arrays.
      looks: if values were given, the points at which Python looked at one, as (source, what it asked for, the answer).
      made_from: for the position of an equation of the jaxpr, the equation of a derived program from which it was
        evaluated.
      bodies: the nested jaxprs that were traced in the same way, such as that of a `shard_map`.
    """

    jaxpr: Any
    held: list[Any]
    looks: list[tuple[Any, str, Any]]
    made_from: dict[int, Equation]
    bodies: list[TracedJaxpr]
