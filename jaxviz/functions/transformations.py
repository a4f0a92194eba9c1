"""Functions that replace jax's: pytrees in, transforms, evaluation out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, TypeVar

import jax
from jax.tree_util import Partial

from jaxviz.arguments import in_bounds
from jaxviz.functions.vjp_function import Transposable, vjp_of
from jaxviz.higher_order.custom_vjp import is_backward_rule
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.errors import message_of
from jaxviz.ir.syntax import Program
from jaxviz.ir.trace import TracedFunction, are_concrete, note_arguments, trace_call
from jaxviz.runtime.cache import remember_step
from jaxviz.runtime.donated import check_not_donated
from jaxviz.runtime.evaluate import evaluate
from jaxviz.transforms.dce import dce_program
from jaxviz.transforms.driver import refused_forward
from jaxviz.transforms.jvp import jvp_program
from jaxviz.transforms.linearize import CondResiduals, Linearized, Mode, linearize_program, mode_of
from jaxviz.transforms.transpose import transpose_program
from jaxviz.transforms.vmap import vmap_program

Argnums = int | Sequence[int]
Derived = TypeVar("Derived")


@api_boundary
def jvp(fun: Callable[..., Any], primals: Any, tangents: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Jacobian-vector product, as `jax.jvp`: `(a, T a) → (b, T b)`.

    >>> jaxviz.jvp(jnp.sin, (0.1,), (0.2,))
    (Array(0.09983342, dtype=float32, weak_type=True), Array(0.19900084, dtype=float32, weak_type=True))

    Args:
      fun: takes and returns arrays, or pytrees of them.
      primals, tangents: tuples or lists of the same structure, shapes and dtypes; float0 tangents for integers.
      has_aux: whether `fun` returns a pair whose second element is not differentiated.

    Returns:
      (primals out, tangents out), and the auxiliary output if there is one.

    Raises:
      TypeError, ValueError: as JAX, for structures, dtypes or shapes that do not match; the message gives the
        argument's path.
    """
    compat.check_callable(fun)
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise TypeError(
            "primal and tangent arguments to jax.jvp must be tuples or lists; "
            f"found {type(primals).__name__} and {type(tangents).__name__}."
        )
    primals, tangents = tuple(primals), tuple(tangents)
    leaves, tree = jax.tree.flatten(primals)
    tangent_leaves, tangent_tree = jax.tree.flatten(tangents)
    if tree != tangent_tree:
        raise TypeError(
            "primal and tangent arguments to jax.jvp must have the same tree structure; "
            f"primals have tree structure {tree} whereas tangents have tree structure {tangent_tree}."
        )
    names = _argument_names(fun, primals)
    for p, t, name in zip(leaves, tangent_leaves, names, strict=True):
        _check_tangent(p, t, name)
    check_not_donated(fun, primals, {})
    traced, pushed, nonzeros = _derived(
        lambda traced, nonzeros, _: jvp_program(traced.program, nonzeros, traced.n_results), fun, primals, has_aux
    )
    tangents_in = [compat.canonicalize(t) for t, nz in zip(tangent_leaves, nonzeros, strict=True) if nz]
    try:
        outs = _run_forward(pushed.program, [*traced.leaves, *tangents_in])
    except (TypeError, ValueError) as error:
        note_arguments(error, fun, primals, {})
        raise
    n = len(traced.program.outvars)
    results, aux, tangents_out = outs[: traced.n_results], outs[traced.n_results : n], outs[n:]
    # JAX's own result has the types found by tracing, since most operations are jitted: weak if the primal is.
    avals = [v.aval.to_tangent_aval() for v in traced.program.outvars[: traced.n_results]]
    full = [
        compat.as_type(t, a) for t, a in zip(_with_zeros(tangents_out, pushed.nonzeros_out, avals), avals, strict=True)
    ]
    pair = jax.tree.unflatten(traced.out_tree, results), jax.tree.unflatten(traced.out_tree, full)
    return (*pair, traced.rebuild_aux(aux)) if has_aux else pair


def _run_forward(program: Program, inputs: Sequence[Any]) -> list[Any]:
    """Runs a program on tangents; if a custom VJP rule prevents that, the error names its function and the user's
    line."""
    try:
        return evaluate(program, inputs)
    except (TypeError, NotImplementedError) as error:
        for _, equation in program.walk():
            if is_backward_rule(equation) and ("custom_lin" in message_of(error) or "custom_vjp" in message_of(error)):
                raise refused_forward(equation) from error
        raise


def _check_tangent(p: Any, t: Any, name: str) -> None:
    primal, tangent = jax.typeof(compat.canonicalize(p)), jax.typeof(compat.canonicalize(t))
    if not hasattr(primal, "dtype"):  # of a hi type
        return
    expected = primal.to_tangent_aval()
    dtype = getattr(tangent, "dtype", None)
    if getattr(expected, "dtype", None) != dtype:
        got = f"tangent dtype {dtype}" if dtype is not None else f"a tangent of type {tangent}"
        raise TypeError(
            "primal and tangent arguments to jax.jvp do not match; dtypes must be equal, or in case of int/bool primal "
            f"dtype the tangent dtype must be float0. Got primal dtype {primal.dtype} and so expected tangent dtype "
            f"{expected.dtype}, but got {got} instead{_at(name)}."
        )
    if primal.shape != tangent.shape:
        raise ValueError(
            "jvp called with different primal and tangent shapes; "
            f"Got primal shape {primal.shape} and tangent shape as {tangent.shape}{_at(name)}"
        )


def _at(name: str) -> str:
    return f", for the argument {name}" if name else ""


def _argument_names(fun: Callable[..., Any], args: tuple[Any, ...]) -> tuple[str, ...]:
    """A path such as `params['w']` for each leaf of the arguments, '' if there is none."""
    n = len(jax.tree.leaves(args))
    names = compat.function_debug_info(fun, args, {}).arg_names
    return tuple(names) if names is not None and len(names) == n else ("",) * n


@api_boundary
def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False, in_nzs: Any = None) -> tuple[Any, ...]:
    """Linear approximation at a point, as `jax.linearize`: `a → (b, T a ⊸ T b)`.

    >>> y, f_jvp = jaxviz.linearize(jnp.sin, 0.1)
    >>> f_jvp(0.2)
    Array(0.19900084, dtype=float32, weak_type=True)

    Args:
      fun: takes and returns arrays, or pytrees of them.
      *primals: the point.
      has_aux: whether `fun` returns a pair whose second element is not differentiated.
      in_nzs: a tree of bools, a prefix of the primals: which of them have a nonzero tangent; by default all.

    Returns:
      (value, linear function), and the auxiliary output if there is one. The linear function is a pytree whose leaves
      are the residuals; its `out_nzs` says for each result whether its tangent may be nonzero.
    """
    compat.check_callable(fun)
    traced, outs, parts, nonzeros = _linearized(fun, primals, has_aux, Mode(is_vjp=False), in_nzs)
    n = len(traced.program.outvars)
    in_avals = [v.aval for v in traced.program.invars]
    out_avals = [v.aval for v in traced.program.outvars[: traced.n_results]]
    in_tree = jax.tree.structure(primals)
    push = partial(
        _push_forward, parts.linear, in_tree, in_avals, nonzeros, traced.out_tree, out_avals, parts.nonzeros_out
    )
    value = jax.tree.unflatten(traced.out_tree, outs[: traced.n_results])
    lin = Partial(push, outs[n:])
    lin.out_nzs = compat.nested_like(traced.out_tree, parts.nonzeros_out)
    return (value, lin, traced.rebuild_aux(outs[traced.n_results : n])) if has_aux else (value, lin)


def _derived(
    derive: Callable[[TracedFunction, list[bool], Any], Derived],
    fun: Callable[..., Any],
    primals: tuple[Any, ...],
    has_aux: bool,
    in_nzs: Any = None,
) -> tuple[TracedFunction, Derived, list[bool]]:
    """Traces a function and derives from it; on its values if the Python of a custom rule branches on one."""
    traced = trace_call(fun, primals, has_aux=has_aux)
    nonzeros = [not compat.is_float0(v.aval.to_tangent_aval()) for v in traced.program.invars]
    if in_nzs is not None:
        selected = compat.flags(in_nzs, jax.tree.structure(primals), "in_nzs")
        nonzeros = [nonzero and is_selected for nonzero, is_selected in zip(nonzeros, selected, strict=True)]
    try:
        return traced, derive(traced, nonzeros, None), nonzeros
    except compat.ConcretizationTypeErrors:
        if not are_concrete(traced.leaves):
            raise
    if not traced.program.is_path:
        traced = trace_call(fun, primals, has_aux=has_aux, on_values=True)
    return traced, derive(traced, nonzeros, list(map(compat.concrete_value, traced.leaves))), nonzeros


def _linearized(
    fun: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool, mode: Mode, in_nzs: Any
) -> tuple[TracedFunction, list[Any], Linearized, list[bool]]:
    check_not_donated(fun, primals, {})
    traced, parts, nonzeros = _derived(
        lambda traced, nonzeros, at: linearize_program(traced.program, nonzeros, traced.n_results, mode=mode, at=at),
        fun, primals, has_aux, in_nzs,
    )  # fmt: skip
    try:
        outs = evaluate(parts.forward, traced.leaves)
    except (TypeError, ValueError) as error:
        note_arguments(error, fun, primals, {})
        raise
    n = len(traced.program.outvars)
    # A scalar that JAX keeps as an array remains a scalar if the program only passes it on.
    values = dict(zip(parts.residuals, outs[n:], strict=True))
    arrays = {a: compat.as_array(x, a.aval) for a, x in values.items()}
    outs[n:] = [arrays[a] for a in parts.residuals]
    return traced, outs, parts, nonzeros


@api_boundary
def _push_forward(
    linear: Program, in_tree: Any, in_avals: list[Any], nonzeros: list[bool], out_tree: Any, out_avals: list[Any],
    nonzeros_out: tuple[bool, ...], residuals: list[Any], *tangents: Any,
) -> Any:  # fmt: skip
    leaves, tree = jax.tree.flatten(tangents)
    if tree != in_tree:
        raise TypeError(f"expected {in_tree}, got {tree}")
    leaves = [compat.canonicalize(t) for t in leaves]
    for aval, t in zip(in_avals, leaves, strict=True):
        expected, got = aval.to_tangent_aval(), jax.typeof(t)
        if not compat.types_compatible(expected, got):
            raise ValueError(
                "linearized function called on tangent values inconsistent with the original primal values:\n"
                f"Got tangent aval {got} for primal aval {aval} but expected {expected}."
            )
    nonzero_tangents = [t for t, nz in zip(leaves, nonzeros, strict=True) if nz]
    outs = _run_forward(linear, [*residuals, *nonzero_tangents])
    full = _with_zeros(outs, nonzeros_out, [a.to_tangent_aval() for a in out_avals])
    return jax.tree.unflatten(out_tree, full)


def _with_zeros(values: Sequence[Any], nonzeros: Sequence[bool], avals: Sequence[Any]) -> list[Any]:
    """One value per type: the given ones where nonzero, and zeros for the others."""
    it = iter(values)
    return [next(it) if nz else compat.zeros(a) for nz, a in zip(nonzeros, avals, strict=True)]


@api_boundary
@compat.replaceable_vjp
def vjp(
    fun: Callable[..., Any],
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Sequence[Any] = (),
    saveable_args: Any = True,
    in_nzs: Any = None,
    cond_residuals: CondResiduals = "jax",
) -> tuple[Any, ...]:
    """Vector-Jacobian product, as `jax.vjp`.

    >>> y, f_vjp = jaxviz.vjp(jnp.sin, 0.5)
    >>> f_vjp(1.0)
    (Array(0.87758255, dtype=float32, weak_type=True),)

    Args:
      fun: takes and returns arrays, or pytrees of them.
      *primals: the point.
      has_aux: whether `fun` returns a pair whose second element is not differentiated.
      reduce_axes: refused, as JAX refuses it; sum with `jax.lax.psum`.
      saveable_args: a tree of bools, a prefix of the primals: which of them `f_vjp` may save as residuals. The others
        must be put into its `args_res` before it is called.
      in_nzs: a tree of bools, a prefix of the primals: which of them are differentiated; the cotangents of the others
        are zeros.
      cond_residuals: what a cond saves. 'jax': what JAX saves, which is the residuals of each branch, with dummies for
        those of other branches. 'recompute': only its operands; the backward pass runs the branch again.

    Returns:
      (value, f_vjp), and the auxiliary output if there is one. `f_vjp` is a `VJP`: called with a cotangent of the
      value, it returns a tuple of cotangents of the primals.

    Raises:
      TypeError, ValueError: as JAX, for arguments that are not arrays and cotangents that do not match.
    """
    compat.check_callable(fun)
    _check_not_reducing(reduce_axes, "vjp")
    traced, outs, parts, nonzeros = _linearized(fun, primals, has_aux, mode_of(cond_residuals), in_nzs)
    n = len(traced.program.outvars)
    value = jax.tree.unflatten(traced.out_tree, outs[: traced.n_results])
    in_tree = jax.tree.structure(primals)
    saveable = compat.flags(saveable_args, in_tree, "saveable_args")
    known = Transposable(traced, parts, nonzeros, cond_residuals)
    f_vjp = vjp_of(known, in_tree, traced.out_tree, outs[n:], saveable)
    return (value, f_vjp, traced.rebuild_aux(outs[traced.n_results : n])) if has_aux else (value, f_vjp)


def _check_not_reducing(reduce_axes: Any, name: str) -> None:
    """Rejects `reduce_axes`, which JAX's functions accept as an argument and reject."""
    if reduce_axes:
        raise NotImplementedError(f"reduce_axes argument to {name} is deprecated")


@api_boundary
def grad(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    *,
    cond_residuals: CondResiduals = "jax",
) -> Callable[..., Any]:
    """Gradient of a scalar function, as `jax.grad`.

    >>> jaxviz.grad(jnp.tanh)(0.2)
    Array(0.961043, dtype=float32, weak_type=True)

    Args:
      fun: returns a scalar, or a pair of a scalar and an auxiliary output.
      argnums: the positional argument or arguments to differentiate with respect to.
      has_aux: whether `fun` returns such a pair.
      holomorphic: whether `fun` is promised to be holomorphic; inputs and outputs must be complex then.
      allow_int: whether integer arguments are allowed, with float0 gradients.
      reduce_axes: refused, as JAX refuses it; sum with `jax.lax.psum`.
      cond_residuals: what a cond saves for the backward pass; see `vjp`.

    Raises:
      TypeError: as JAX, for a result that is not a scalar or an argument that is not a float; the message gives its
        path.
    """
    options: dict[str, Any] = {"argnums": argnums, "has_aux": has_aux, "holomorphic": holomorphic}
    options |= {"allow_int": allow_int, "cond_residuals": cond_residuals}
    both = value_and_grad(fun, reduce_axes=reduce_axes, **options)

    @named(fun, "Gradient", argnums)
    @api_boundary
    def grad_f(*args: Any, **kwargs: Any) -> Any:
        value, g = both(*args, **kwargs)
        return (g, value[1]) if has_aux else g

    return remember_step(grad_f, fun, grad, options)


@api_boundary
def value_and_grad(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
    *,
    cond_residuals: CondResiduals = "jax",
) -> Callable[..., tuple[Any, Any]]:
    """Value and gradient of a scalar function, as `jax.value_and_grad`; see `grad` for the arguments.

    >>> value, slope = jaxviz.value_and_grad(jnp.sin)(0.0)
    """
    compat.check_callable(fun)
    _check_not_reducing(reduce_axes, "grad")
    argnums = compat.index_or_indices(argnums)

    @named(fun, "Value and gradient", argnums)
    @api_boundary
    def value_and_grad_f(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        check_not_donated(fun, args, kwargs)
        in_argnums, dyn_args = partial_in(fun, argnums, args, kwargs)
        check_inputs(partial(compat.check_input_dtype_reverse, "grad", holomorphic, allow_int), dyn_args, in_argnums)
        ans, f_vjp, *aux = vjp(in_argnums, *dyn_args, has_aux=has_aux, cond_residuals=cond_residuals)
        compat.check_scalar(ans)
        jax.tree.map(partial(compat.check_output_dtype_reverse, "grad", holomorphic), ans)
        g = f_vjp(compat.one_cotangent(ans))
        return (ans, *aux) if has_aux else ans, g[0] if isinstance(argnums, int) else g

    options: dict[str, Any] = {"argnums": argnums, "has_aux": has_aux, "holomorphic": holomorphic}
    options |= {"allow_int": allow_int, "cond_residuals": cond_residuals}
    return remember_step(value_and_grad_f, fun, value_and_grad, options)


@api_boundary
def vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
) -> Callable[..., Any]:
    """Maps a function over an axis of its arguments, as `jax.vmap`.

    >>> jaxviz.vmap(lambda x, w: jnp.sum(x * w), in_axes=(0, None))(jnp.ones((3, 2)), jnp.ones(2))
    Array([2., 2., 2.], dtype=float32)

    Args:
      fun: a function of one example.
      in_axes: for each argument the axis to map over, None for an argument that is the same for every example, or a
        tree of these.
      out_axes: the position of the mapped axis in the results: an int, None for a result that is the same for every
        example, or a tree of these.
      axis_name: a name for the axis, for collectives such as `jax.lax.psum`.
      axis_size: the number of examples, if no argument is mapped.
      spmd_axis_name: the mesh axes over which the mapped axis is sharded.

    Raises:
      ValueError, TypeError: as JAX, for axes that do not fit the arguments or results; the message gives the argument's
        path.
    """

    compat.check_callable(fun)

    @wraps(fun)
    def of_one(*args: Any, **kwargs: Any) -> Any:
        leaves = jax.tree.leaves((args, kwargs))
        mapped = compat.mapped_arguments(leaves)
        if mapped is None:
            return fun(*args, **kwargs)
        axis, values, dims = mapped
        try:
            traced = trace_call(fun, args, kwargs, closes_over=False)
        except compat.RuleHoldsTracer:
            return fun(*args, **kwargs)  # JAX maps a custom rule together with the values it closes over
        batched = vmap_program(traced.program, dims, axis)
        outs = compat.outside_vmap(lambda: evaluate(batched.program, values), batched.dims_out)
        return jax.tree.unflatten(traced.out_tree, outs)

    options = {
        "in_axes": in_axes,
        "out_axes": out_axes,
        "axis_name": axis_name,
        "axis_size": axis_size,
        "spmd_axis_name": spmd_axis_name,
    }
    mapped_f = compat.jax_vmap(of_one, **options)

    @wraps(mapped_f)
    @api_boundary
    def vmap_f(*args: Any, **kwargs: Any) -> Any:
        try:
            return mapped_f(*args, **kwargs)
        except (TypeError, ValueError) as error:
            note_arguments(error, fun, args, kwargs)
            raise

    return remember_step(vmap_f, fun, vmap, options)


def partial_in(
    fun: Callable[..., Any], argnums: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function of the arguments to differentiate, with the others fixed; and those arguments."""
    places = in_bounds(argnums, len(args))

    def in_argnums(*dyn_args: Any) -> Any:
        by_place = dict(zip(places, dyn_args, strict=True))
        return fun(*(by_place.get(i, a) for i, a in enumerate(args)), **kwargs)

    dyn_args = tuple(args[i] for i in places)
    info = compat.function_debug_info(fun, args, kwargs)
    if info.arg_names is not None and len(info.arg_names) == len(jax.tree.leaves((args, kwargs))):
        names = iter(info.arg_names)
        by_argument = [[next(names) for _ in jax.tree.leaves(a)] for a in args]
        info = info._replace(arg_names=tuple(n for i in places for n in by_argument[i]))
    else:
        info = info._replace(arg_names=None)
    compat.name_function(in_argnums, info)
    in_argnums.stands_for = fun, args, kwargs  # type: ignore[attr-defined]  # for `note_arguments`
    return in_argnums, dyn_args


def check_inputs(check: Callable[[Any], None], args: tuple[Any, ...], fun: Callable[..., Any]) -> None:
    """Raises the errors of `check` for an argument, with its path."""
    for x, name in zip(jax.tree.leaves(args), _argument_names(fun, args), strict=True):
        try:
            check(x)
        except TypeError as error:
            raise TypeError(f"{error} The argument is {name}." if name else str(error)) from None


def named(fun: Callable[..., Any], what: str, argnums: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Sets a wrapper's name to that of the wrapped function, and its docstring."""

    def decorate(wrapper: Callable[..., Any]) -> Callable[..., Any]:
        name = getattr(fun, "__name__", "the function")
        decorated = wraps(fun)(wrapper) if hasattr(fun, "__name__") else wrapper
        decorated.__doc__ = f"{what} of {name} with respect to positional argument(s) {argnums}."
        return decorated

    return decorate


@api_boundary
def linear_transpose(fun: Callable[..., Any], *primals: Any) -> Callable[[Any], Any]:
    """Transpose of a function that is promised to be linear, as `jax.linear_transpose`.

    >>> jaxviz.linear_transpose(lambda x, y: 0.5 * x - 0.5 * y, 1.0, 1.0)(1.0)
    (Array(0.5, dtype=float32), Array(-0.5, dtype=float32))

    Args:
      fun: the linear function.
      *primals: arguments of the right types; only their shapes and dtypes are used.

    Returns:
      a function from a cotangent of the result to a tuple of cotangents of the primals.

    Raises:
      TypeError: integer types mixed with inexact ones, or a cotangent that does not match.
      NoRuleError: the function is not linear; the message names the equation and the user's line.
    """
    compat.check_callable(fun)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jax.numpy.shape(x), jax.dtypes.result_type(x)), primals)
    traced = trace_call(fun, shapes)
    program, _ = dce_program(traced.program)
    in_dtypes, out_dtypes = [v.aval.dtype for v in program.invars], [v.aval.dtype for v in program.outvars]
    dtypes = in_dtypes + out_dtypes
    are_integers = all(jax.numpy.issubdtype(d, jax.numpy.integer) for d in dtypes)
    if not (all(map(compat.is_transposable, dtypes)) or are_integers):
        raise TypeError(
            f"linear_transpose only supports {compat.TRANSPOSABLE} -> {compat.TRANSPOSABLE}, and integer -> integer "
            f"functions, but got {in_dtypes} -> {out_dtypes}."
        )
    backward = transpose_program(program, [True] * len(program.invars), [True] * len(program.outvars))

    @api_boundary
    def transposed(consts: tuple[Any, ...], out_cotangent: Any) -> Any:
        del consts  # they are leaves of the returned pytree, as in JAX, and the program also refers to them
        cts, tree = jax.tree.flatten(out_cotangent)
        if tree != traced.out_tree:
            raise TypeError(f"cotangent tree does not match function output, expected {traced.out_tree} but got {tree}")
        cts = [compat.canonicalize(ct) for ct in cts]
        out_avals = program.out_avals
        if not all(compat.types_compatible(a, jax.typeof(ct)) for a, ct in zip(out_avals, cts, strict=True)):
            raise TypeError(f"cotangent type does not match function output, expected {out_avals} but got {cts}")
        in_avals = [compat.cotangent_type(v.aval) for v in program.invars]
        full = _with_zeros(evaluate(backward.backward, cts), backward.nonzeros_out, in_avals)
        return jax.tree.unflatten(jax.tree.structure(primals), full)

    function: Callable[[Any], Any] = Partial(transposed, program.consts)
    return function
