"""From a user's Python function to a `Program`, with a source line on every equation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import jax

from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.collector import collector_paused
from jaxviz.ir.convert import read_traced
from jaxviz.ir.errors import NoArrayError, RuleNeedsValuesError, message_of
from jaxviz.ir.expressions import shortened_expression
from jaxviz.ir.leaks import without_leaks
from jaxviz.ir.origin import definition, locate
from jaxviz.ir.stack import deep_stack, usual_stack
from jaxviz.ir.syntax import Branch, Program

MOST_NOTED = 8
"""How many arguments an error lists, if their paths are short."""


@dataclass(frozen=True, slots=True)
class TracedFunction:
    """A traced call.

    Args:
      program: from the flat arguments to the flat results, then to the arrays of the auxiliary output.
      leaves: the flat arguments, in JAX's types.
      in_tree: of the arguments.
      out_tree: of the result.
      n_results: how many of the program's results are results, not auxiliary.
      rebuild_aux: from the values of the remaining results to the auxiliary output.
    """

    program: Program
    leaves: tuple[Any, ...]
    in_tree: Any
    out_tree: Any
    n_results: int
    rebuild_aux: Callable[[Sequence[Any]], Any]


@api_boundary
def trace(fun: Callable[..., Any]) -> Callable[..., Program]:
    """Returns a function that traces `fun` to a Program, as `jax.make_jaxpr` does to a jaxpr.

    >>> print(trace(jnp.sin)(1.0))
    { lambda ; a:f32[]. let b:f32[] = sin a in (b,) }

    If Python branches on values in `fun`, it runs on the arguments instead, and its Program is the one path that it
    took: `program.is_path` says so, and `program.branches` lists the places where Python read a value.

    Args:
      fun: takes and returns arrays, or pytrees of them.

    Returns:
      a function of the same arguments that returns the Program.

    Raises:
      TypeError: an argument is not an array; the message gives its path.
      JAX's tracer errors: Python needs a value that an enclosing `jit` or `vmap` keeps abstract.
    """

    compat.check_callable(fun)

    @api_boundary
    def traced(*args: Any, **kwargs: Any) -> Program:
        is_static = _static_leaves(fun, args, kwargs)
        if not any(is_static):
            return trace_call(fun, args, kwargs, keeps_rules=False).program
        call, inputs, info = with_fixed(fun, args, kwargs, [not s for s in is_static])
        return trace_call(call, inputs, debug_info=info, keeps_rules=False).program

    return traced


def _static_leaves(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[bool]:
    """For each flat argument of a call, whether `jax.jit` treats it as static."""
    places, names = compat.static_places(fun)
    is_static = [i in places for i, a in enumerate(args) for _ in jax.tree.leaves(a)]
    return is_static + [name in names for name in sorted(kwargs) for _ in jax.tree.leaves(kwargs[name])]


def with_fixed(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], is_input: Sequence[bool]
) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
    """A function of some of the flat arguments of a call, the others fixed; those arguments; and its debug info.

    Where the function returns a fixed argument that is not an array, such as a function in a model that it updates, its
    result is None.

    Args:
      fun, args, kwargs: the call.
      is_input: for each flat argument whether the function takes it.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    fixed = [None if is_in else x for is_in, x in zip(is_input, leaves, strict=True)]
    objects = {id(x) for x in fixed if x is not None and not compat.is_array_like(x)}

    def call(*inputs: Any) -> Any:
        it = iter(inputs)
        all_leaves = [next(it) if is_in else x for is_in, x in zip(is_input, fixed, strict=True)]
        call_args, call_kwargs = jax.tree.unflatten(tree, all_leaves)
        out = fun(*call_args, **call_kwargs)
        return jax.tree.map(lambda x: None if id(x) in objects else x, out) if objects else out

    call.stands_for = fun, args, kwargs  # type: ignore[attr-defined]  # for `note_arguments`
    info = compat.function_debug_info(fun, args, kwargs)
    if info.arg_names is not None and len(info.arg_names) == len(leaves):
        info = info._replace(arg_names=tuple(n for n, is_in in zip(info.arg_names, is_input, strict=True) if is_in))
    return call, tuple(x for x, is_in in zip(leaves, is_input, strict=True) if is_in), info


@deep_stack
def trace_call(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    active: Sequence[bool] | None = None,
    has_aux: bool = False,
    debug_info: Any = None,
    keeps_rules: bool = True,
    on_values: bool = False,
    closes_over: bool = True,
) -> TracedFunction:
    """Traces one call.

    Args:
      fun: the function.
      args, kwargs: its arguments, pytrees of arrays (or of ShapeDtypeStructs, if no value is needed).
      active: for each flat argument, whether it is differentiated; all by default. It matters only where Python looks
        at values.
      has_aux: whether the function returns a pair whose second element is not differentiated and may be anything.
      debug_info: name and argument paths, if they are not those of `fun`.
      keeps_rules: whether custom JVP rules are derived as JAX derives those of a function called outside `jit`;
        otherwise as those of a jaxpr.
      on_values: whether the function is run on the arguments, so that Python may look at values in custom rules too.
      closes_over: see `compat.trace_to_jaxpr`.
    """
    kwargs = kwargs or {}
    leaves, in_tree = jax.tree.flatten((args, kwargs))
    info = debug_info if debug_info is not None else compat.function_debug_info(fun, args, kwargs)
    leaves = [_checked(x, i, info) for i, x in enumerate(leaves)]
    avals = [compat.type_to_trace(x) for x in leaves]
    compat.check_no_aliased_refs(info, avals, leaves)
    # Outside `jit`, JAX's transforms treat an integer as a value; it may also be static.
    is_value = [
        is_static and compat.is_float0(aval.to_tangent_aval())
        for is_static, aval in zip(_static_leaves(fun, args, kwargs), avals, strict=True)
    ]
    seen: dict[str, Any] = {}

    def flat(*tracers: Any) -> list[Any]:
        call_leaves = [x if of_value else t for x, t, of_value in zip(leaves, tracers, is_value, strict=True)]
        call_args, call_kwargs = jax.tree.unflatten(in_tree, call_leaves)
        with noting_arguments(fun, args, kwargs):
            out = fun(*call_args, **call_kwargs)
        aux: list[Any] = []
        if has_aux:
            out, aux_out = _pair(out)
            aux, seen["aux_tree"] = jax.tree.flatten(aux_out)
        results, seen["out_tree"] = jax.tree.flatten(out)
        for path, x in jax.tree_util.tree_leaves_with_path(out):
            _check_result(x, path, info)
        seen["n_results"] = len(results)
        seen["aux"] = aux
        return [*results, *(x for x in aux if compat.is_tracer(x))]

    def to_jaxpr(**options: Any) -> compat.TracedJaxpr:
        with without_leaks(fun, args, kwargs):
            return compat.trace_to_jaxpr(flat, avals, info, closes_over=closes_over, **options)

    active = [True] * len(leaves) if active is None else active
    program = _trace_flat(to_jaxpr, leaves, active, keeps_rules, on_values)
    _check_leaks(program, leaves)

    def rebuild_aux(values: Sequence[Any]) -> Any:
        it = iter(values)
        aux_leaves = [next(it) if is_traced else x for x, is_traced in zip(seen["aux"], traced_aux, strict=True)]
        return jax.tree.unflatten(seen["aux_tree"], aux_leaves)

    traced_aux = [compat.is_tracer(x) for x in seen["aux"]]
    seen["aux"] = [None if is_traced else x for x, is_traced in zip(seen["aux"], traced_aux, strict=True)]
    return TracedFunction(program, tuple(leaves), in_tree, seen["out_tree"], seen["n_results"], rebuild_aux)


def _trace_flat(
    to_jaxpr: Callable[..., compat.TracedJaxpr],
    leaves: list[Any],
    active: Sequence[bool],
    keeps_rules: bool,
    on_values: bool,
) -> Program:
    values = [compat.concrete_value(x) for x in leaves]
    if not on_values:
        try:
            with collector_paused():
                return read_traced(_folded_if_need_be(to_jaxpr, keeps_rules=keeps_rules))
        except (*compat.ConcretizationTypeErrors, RuleNeedsValuesError):
            if not are_concrete(values):
                raise  # under an outer jit or vmap there are no values: raise JAX's error
    keeps = [a or compat.is_tracer(x) for a, x in zip(active, leaves, strict=True)]
    with usual_stack:  # each equation is evaluated
        traced = _folded_if_need_be(to_jaxpr, values=values, active=keeps)
    branches = tuple(Branch(locate(source), kind, value) for source, kind, value in traced.looks)
    return read_traced(traced, branches, is_path=True)


def are_concrete(leaves: Sequence[Any]) -> bool:
    """Whether a function can be run on these flat arguments, so that its Python can look at values."""
    return not any(x is None or isinstance(x, jax.ShapeDtypeStruct) for x in map(compat.concrete_value, leaves))


_NEEDS_VALUES = (
    "A custom rule closes over a value that is computed in a function which also uses a mutable reference. jaxviz "
    "then runs the function "
    "on its arguments, which have no values here, as under jit. Pass that value to the function with the rule as an "
    "argument."
)


def _folded_if_need_be(to_jaxpr: Callable[..., compat.TracedJaxpr], **options: Any) -> compat.TracedJaxpr:
    """Traces; if a custom rule closes over what would be a value of the trace, traces again with constants computed at
    once.

    Rules are used after the trace has ended. Outside `jit` such a value is an array for JAX, and so it is the second
    time.

    Raises:
      RuleNeedsValuesError: it cannot be traced so, since what it does to mutable references would be done at once.
    """
    try:
        return to_jaxpr(**options)
    except compat.RuleHoldsTracer as error:
        if error.uses_references:
            raise RuleNeedsValuesError(_NEEDS_VALUES) from None
        return to_jaxpr(**options, folds=True)


def _check_leaks(program: Program, leaves: Sequence[Any]) -> None:
    """Raises JAX's error if a function reads a leaked tracer, which has no value."""
    for x in leaves:
        if compat.is_leaked(x):
            raise compat.leaked_error(x)
    pending, seen = [program], {program}
    while pending:
        p = pending.pop()
        for v, x in zip(p.constvars, p.consts, strict=False):  # some params contain programs without their constants
            if compat.is_leaked(x):
                error = compat.leaked_error(x)
                at = next((locate(e.source) for e in p.equations if v in e.invars), None)
                if at is not None:
                    error.add_note(f"It is read at {at}.")
                raise error
        holders = [e for e in p.equations if e.programs and compat.looks_into(e.primitive)]
        inside = {inner for e in holders for _, inner in e.programs} - seen
        seen |= inside
        pending += inside


CALLED = "The function is"
"""How the sentence begins that `note_arguments` adds."""


def note_arguments(error: Exception, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Adds the arguments of the function to an error about types or values; once, for the innermost function.

    Args:
      error: one about types or values.
      fun: the function; a wrapper names the function it represents by an attribute `stands_for`.
      args, kwargs: its arguments.
    """
    if not callable(fun) or any(note.startswith(CALLED) for note in getattr(error, "__notes__", ())):
        return
    fun, args, kwargs = getattr(fun, "stands_for", (fun, args, kwargs))
    info = compat.function_debug_info(fun, args, kwargs)
    place = definition(info)
    name = f"{info.func_name} at {place}" if place is not None else info.func_src_info
    if compat.is_about_hashes(error):
        for argument, x in compat.static_values(fun, args, kwargs).items():
            if not _has_hash(x):
                text = " ".join(repr(x).split())
                has = (
                    f"is {text if len(text) < 80 else f'{text[:79]}…'}, a {type(x).__name__}, which is not hashable. "
                    "Pass a hashable value, such as a tuple instead of a list."
                )
                if compat.is_tracer(x):
                    has = f"is traced here. Fix its value first: functools.partial(f, {argument}=...)."
                error.add_note(f"{CALLED} {name}, whose static argument {argument} {has}")
                return
    leaves, names = jax.tree.leaves((args, kwargs)), info.arg_names or ()
    if not leaves or len(names) != len(leaves):
        return
    named = list(zip(names, leaves, strict=True))
    named.sort(key=lambda pair: str(getattr(pair[1], "shape", None)) not in message_of(error))  # mentioned ones first
    listed = [f"{shortened_expression(path, 120)}: {_type_text(x)}" for path, x in named[:MOST_NOTED]]
    n = max(1, sum(length <= 400 for length in accumulate(map(len, listed))))
    rest = f" and {len(named) - n:,} more" if len(named) > n else ""
    error.add_note(f"{CALLED} {name}, called with {', '.join(listed[:n])}{rest}.")


@contextlib.contextmanager
def noting_arguments(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Adds the arguments of a function to errors about types or values that are raised inside; see `note_arguments`."""
    try:
        yield
    except (TypeError, ValueError) as error:
        note_arguments(error, fun, args, kwargs)
        raise
    except AssertionError:  # JAX's, which has no text
        fun, args, kwargs = getattr(fun, "stands_for", (fun, args, kwargs))
        if isinstance(fun, jax.stages.Traced) and fun.in_tree != jax.tree.structure((args, kwargs)):
            raise TypeError(
                f"It was traced for arguments of the structure {fun.in_tree}; called with "
                f"{jax.tree.structure((args, kwargs))}"
            ) from None
        raise


def _has_hash(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


def _type_text(x: Any) -> str:
    try:
        return str(compat.aval_of(x).str_short(short_dtypes=True))
    except TypeError:
        return type(x).__name__


def _pair(out: Any) -> tuple[Any, Any]:
    if not isinstance(out, (list, tuple)) or len(out) != 2:
        raise TypeError(
            f"expected function with aux output to return a two-element tuple, but got type {type(out)} with value "
            f"{out!r}"
        )
    return out[0], out[1]


def _checked(x: Any, index: int, info: Any) -> Any:
    if isinstance(x, jax.ShapeDtypeStruct):
        return x
    try:
        return compat.canonicalize(compat.checked_argument(x))
    except TypeError as error:
        names = info.arg_names or ()
        path = names[index] if index < len(names) and names[index] else f"number {index}"
        raise TypeError(f"{error} It is the argument {path} of {info.func_src_info}.") from None


def _check_result(x: Any, path: Any, info: Any) -> None:
    try:
        compat.aval_of(x)
    except TypeError:
        where = jax.tree_util.keystr(path)
        at = f" at output component {where}" if where else ""
        raise NoArrayError(
            f"function {info.func_src_info} traced for {info.traced_for} returned a value of type {type(x)}{at}, "
            "which is not a valid JAX type"
        ) from None
