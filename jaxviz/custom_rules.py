"""Custom derivative rules: jax's decorators, with errors that say which leaf of a rule is wrong, and a check of the numbers.

`custom_jvp`, `custom_vjp` and `custom_gradient` are jax's own, and make the same equations. The rules handed to them are looked at
as they are traced: what JAX refuses is refused in JAX's words, with the function, the rule's line and the path of the leaf.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.tree_util import keystr, tree_flatten_with_path

from jaxviz.analysis.tables import text_table, wrapped
from jaxviz.emit import as_function
from jaxviz.ir import compat
from jaxviz.ir.convert import map_programs
from jaxviz.ir.syntax import Atom, Program, Var
from jaxviz.trace import trace
from jaxviz.transforms.driver import Builder

Rule = Callable[..., Any]


def _where(fun: Any) -> str:
    """`name (file.py:12)` of a function, as far as Python knows them."""
    name = getattr(fun, "__name__", type(fun).__name__)
    try:
        code = inspect.unwrap(fun).__code__
    except (AttributeError, ValueError):
        return str(name)
    return f"{name} ({code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno})"


_CLOSES_OVER = (
    "The rule reads a value that belongs to another trace, most often one that the function closes over. Pass it to the function "
    "as an argument, or take it out with jax.closure_convert."
)


def _run(rule: Rule, args: tuple[Any, ...]) -> Any:
    try:
        return rule(*args)
    except jax.errors.UnexpectedTracerError as error:
        error.add_note(f"Raised in the rule {_where(rule)}. {_CLOSES_OVER}")
        raise


class custom_jvp(jax.custom_jvp):  # type: ignore[type-arg]
    """`jax.custom_jvp`, whose rules are checked leaf by leaf.

    Raises:
      TypeError: a rule that gives no pair, or outputs of another structure, shape or dtype; the message names the leaf.
      AttributeError: the function is called before it has a rule.
    """

    def defjvp(self, jvp: Rule, symbolic_zeros: bool = False) -> Rule:
        """Sets the rule: `(*nondiff, primals, tangents) → (primals out, tangents out)`, as `jax.custom_jvp.defjvp`."""

        @functools.wraps(jvp)
        def checked(*args: Any) -> Any:
            out = _run(jvp, args)
            *nondiff, primals, _ = args
            whose = f"Custom JVP rule {_where(jvp)} for function {_where(self.fun)}"
            if not isinstance(out, (list, tuple)) or len(out) != 2:
                raise TypeError(
                    f"{whose} must produce a pair (list or tuple of length two) representing primal and tangent outputs, "
                    f"but got {out}."
                )
            want = jax.eval_shape(_given(self.fun, self.nondiff_argnums, nondiff), *primals)
            _refuse(f"{whose} must produce as its first element the primal output of the function", out[0], want)
            _refuse(f"{whose} must produce primal and tangent outputs with equal container (pytree) structures and corresponding "
                    "shapes and dtypes", out[1], want, tangent=True)  # fmt: skip
            return out

        super().defjvp(checked, symbolic_zeros)
        return jvp

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "jvp", None) is None:
            _refuse_missing_rule(super().__call__, self.fun, "defjvp", args, kwargs)
        return super().__call__(*args, **kwargs)


class custom_vjp(jax.custom_vjp):  # type: ignore[type-arg]
    """`jax.custom_vjp`, whose rules are checked leaf by leaf.

    Raises:
      TypeError: a forward rule that gives no pair or another primal output, a backward rule that gives another number of
        cotangents, a cotangent of another shape, or forward mode; the message names the leaf, and the function's line.
      AttributeError: the function is called before it has a rule.
    """

    def defvjp(self, fwd: Rule, bwd: Rule, symbolic_zeros: bool = False, optimize_remat: bool = False) -> None:
        """Sets the rules, as `jax.custom_vjp.defvjp`: `fwd` gives the output and residuals, `bwd` takes those and a cotangent."""
        seen: list[tuple[Any, ...]] = []  # types of the arguments of calls so far, the latest first

        @functools.wraps(fwd)
        def checked_fwd(*args: Any) -> Any:
            out = _run(fwd, args)
            values = jax.tree.map(_primal_value, args, is_leaf=_is_perturbable) if symbolic_zeros else args
            whose = f"Custom VJP fwd rule {_where(fwd)} for function {_where(self.fun)}"
            if not isinstance(out, (list, tuple)) or len(out) != 2:
                raise TypeError(
                    f"{whose} must produce a pair (list or tuple of length two) where the first element represents the primal "
                    f"output and the second element represents residuals, but instead of a pair it produced {out}."
                )
            dynamic = [a for i, a in enumerate(values) if i not in self.nondiff_argnums]
            types = jax.tree.map(_type_of, tuple(dynamic))
            seen[:] = [types, *(t for t in seen if t != types)][:16]
            fixed = [values[i] for i in self.nondiff_argnums]
            want = jax.eval_shape(_given(self.fun, self.nondiff_argnums, fixed), *dynamic)
            _refuse(f"{whose} must produce as its first element the primal output of the function", out[0], want)
            return out

        @functools.wraps(bwd)
        def checked_bwd(*args: Any) -> Any:
            out = _run(bwd, args)
            whose = f"Custom VJP bwd rule {_where(bwd)} for function {_where(self.fun)}"
            refused: list[Exception] = []
            for types in seen:
                try:
                    _refuse_cotangents(whose, out, types)
                    return out
                except (TypeError, ValueError) as error:
                    refused.append(error)
            if refused:
                raise refused[0]
            return out

        super().defvjp(checked_fwd, checked_bwd, symbolic_zeros, optimize_remat)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "fwd", None) is None or getattr(self, "bwd", None) is None:
            _refuse_missing_rule(super().__call__, self.fun, "defvjp", args, kwargs)
        try:
            return super().__call__(*args, **kwargs)
        except TypeError as error:
            if "forward-mode" not in str(error):
                raise
            raise TypeError(
                f"{error} The function is {_where(self.fun)}; use jax.vjp or jax.grad, or give it its rule with jax.custom_jvp."
            ) from error
        except Exception as error:
            if "closed-over value" in str(error):
                error.add_note(f"The function is {_where(self.fun)}. {_CLOSES_OVER}")
            raise


def custom_gradient(fun: Rule) -> Rule:
    """`jax.custom_gradient`: `fun` gives its output and a function from a cotangent of that to cotangents of the arguments.

    Raises:
      TypeError: no such pair, or cotangents of another number or shape; the message names the leaf.
    """

    @functools.wraps(fun)
    def checked(*args: Any, **kwargs: Any) -> Any:
        out = fun(*args, **kwargs)
        if not isinstance(out, (list, tuple)) or len(out) != 2 or not callable(out[1]):
            raise TypeError(
                f"Custom gradient of {_where(fun)} must produce a pair (list or tuple of length two) of the output and a function "
                f"from its cotangent to the cotangents of the arguments, but got {out}."
            )
        value, rule = out
        types = jax.tree.map(_type_of, args)

        @functools.wraps(rule)
        def backward(ct: Any) -> Any:
            cts = _run(rule, (ct,))
            _refuse_cotangents(
                f"The function {_where(rule)} that the custom gradient of {_where(fun)} gives",
                cts if isinstance(cts, (list, tuple)) else (cts,),
                types,
            )
            return cts

        return value, backward

    made: Rule = jax.custom_gradient(checked)
    return made


def _given(fun: Rule, nondiff_argnums: Sequence[int], nondiff: Sequence[Any]) -> Rule:
    """The function with those arguments given, of the others."""

    def of_the_others(*args: Any) -> Any:
        fixed, others = dict(zip(nondiff_argnums, nondiff, strict=True)), iter(args)
        return fun(*(fixed[i] if i in fixed else next(others) for i in range(len(fixed) + len(args))))

    return of_the_others


def _refuse_missing_rule(call: Rule, fun: Rule, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        call(*args, **kwargs)
    except AttributeError as error:
        name = getattr(fun, "__name__", "it")
        raise AttributeError(f"{error} It is {_where(fun)}; give it a rule with {name}.{method}.") from None


def _is_perturbable(x: Any) -> bool:
    return hasattr(x, "perturbed")


def _primal_value(x: Any) -> Any:
    return x.value if _is_perturbable(x) else x


def _type_of(x: Any) -> Any:
    """The type of a leaf, or None of what has none."""
    try:
        return x.aval if isinstance(x, SymbolicZero) else jax.typeof(x)
    except TypeError:
        return None


def _short(aval: Any) -> str:
    return str(aval.str_short()) if aval is not None else "no array"


def _refuse(what: str, got: Any, want: Any, tangent: bool = False) -> None:
    """Raises if an output is not of the structure and types that are wanted; `want` has ShapeDtypeStructs for leaves."""
    got_leaves, want_leaves = tree_flatten_with_path(got)[0], tree_flatten_with_path(want)[0]
    if jax.tree.structure(got) != jax.tree.structure(want):
        at_got, at_want = {keystr(p) for p, _ in got_leaves}, {keystr(p) for p, _ in want_leaves}
        parts = [f"lacks {', '.join(sorted(at_want - at_got))}" if at_want - at_got else ""]
        parts.append(f"has {', '.join(sorted(at_got - at_want))} too much" if at_got - at_want else "")
        detail = " and ".join(filter(None, parts)) or "is of another container type"
        raise TypeError(
            f"{what}: its structure is {jax.tree.structure(got)} where {jax.tree.structure(want)} was expected; it {detail}."
        )
    for (path, g), (_, w) in zip(got_leaves, want_leaves, strict=True):
        aval, expected = _type_of(g), compat.aval_of(w)
        expected = expected.to_tangent_aval() if tangent else expected
        if aval is not None and (aval.shape, aval.dtype) != (expected.shape, expected.dtype):
            raise TypeError(f"{what}: expected {_short(expected)}{_at(path)}, got {_short(aval)}.")


def _refuse_cotangents(whose: str, got: Any, primals: tuple[Any, ...]) -> None:
    """Raises if a backward rule does not give one cotangent, or None, for each argument, of its shape."""
    if not isinstance(got, (tuple, list)):
        raise TypeError(
            f"{whose} must produce a tuple of length equal to the number of arguments, {len(primals)}, but got a "
            f"{type(got).__name__}."
        )
    if len(got) != len(primals):
        raise TypeError(
            f"{whose} must produce a tuple of length equal to the number of arguments, {len(primals)}, but got {len(got)} "
            f"cotangent{'s' if len(got) != 1 else ''}."
        )
    for i, (ct, primal) in enumerate(zip(got, primals, strict=True)):
        _refuse_cotangent(whose, ct, primal, f"[{i}]")


def _refuse_cotangent(whose: str, ct: Any, primal: Any, root: str) -> None:
    leaves = {keystr(p): x for p, x in tree_flatten_with_path(ct, is_leaf=lambda x: x is None)[0]}
    wanted = {keystr(p): x for p, x in tree_flatten_with_path(primal)[0]}
    missing_below = [p for p, x in leaves.items() if x is None]  # None stands for zeros of all that is below it
    for path in wanted:
        if path not in leaves and not any(path.startswith(p) for p in missing_below):
            raise TypeError(
                f"{whose} must produce an output with the same container (pytree) structure as the args tuple of the function: "
                f"it lacks {root}{path}."
            )
    for path, x in leaves.items():
        if x is None:
            continue
        if path not in wanted:
            raise TypeError(
                f"{whose} must produce an output with the same container (pytree) structure as the args tuple of the function: "
                f"it has {root}{path} too much."
            )
        aval, expected = _type_of(x), wanted[path]
        # JAX lets dtypes that differ pass, and takes anything for an integer argument.
        if aval is None or expected is None or compat.is_float0(expected.to_tangent_aval()):
            continue
        if aval.shape != expected.shape:
            raise ValueError(
                f"{whose} must produce an output with the same type as the args tuple of the function: expected "
                f"{_short(expected)} at {root}{path}, got {_short(aval)}."
            )


def _at(path: Any) -> str:
    return f" at {keystr(path)}" if path else ""


# --- the numbers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeafCheck:
    """One leaf of the arguments.

    Args:
      path: such as `x['w']`.
      rule: the derivative by the rule, along the direction in which it is farthest off.
      numerical: by central differences along it.
      replaced: of the function that the rule replaces; None where that cannot be differentiated.
      verdict: 'right', 'wrong', or 'not differentiable' at this point, as one-sided differences show.
    """

    path: str
    rule: float
    numerical: float
    replaced: float | None
    verdict: str


@dataclass(frozen=True, eq=False)
class RuleCheck:
    """How a custom rule compares with numerical differences and with the derivative of the function that it replaces.

    Args:
      function: its name.
      leaves: for each floating-point leaf of the arguments, the derivative in reverse mode or, with no reverse mode, forward.
      notes: what was left out, and why.
    """

    function: str
    leaves: tuple[LeafCheck, ...]
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        return all(leaf.verdict != "wrong" for leaf in self.leaves)

    def __bool__(self) -> bool:
        return self.agrees

    def __str__(self) -> str:
        wrong = [leaf for leaf in self.leaves if leaf.verdict == "wrong"]
        head = f"rule of {self.function} agrees with numerical differences"
        if wrong:
            first = wrong[0]
            head = (
                f"rule of {self.function} is wrong in {first.path}: {first.rule:.6g} where numerical differences give "
                f"{first.numerical:.6g}"
            )
        rows = [
            (
                x.path, f"{x.rule:.6g}", f"{x.numerical:.6g}", "" if x.replaced is None else f"{x.replaced:.6g}", x.verdict,
            )
            for x in self.leaves
        ]  # fmt: skip
        heads = ("argument", "rule", "differences", "replaced function", "verdict")
        return "\n".join([wrapped(head), text_table(heads, rows, "<>>><"), *map(wrapped, self.notes)])

    __repr__ = __str__


def check_rule(f: Callable[..., Any], *args: Any, tol: float | None = None, **kwargs: Any) -> RuleCheck:
    """Holds a custom rule against numerical differences, and against the derivative of the function that it replaces.

    >>> print(jaxviz.check_rule(log1pexp, 3.0))
    rule of log1pexp agrees with numerical differences
    ...

    The derivative is taken in 64 bits, along random directions. A rule that is meant to differ, as a straight-through estimator
    does, comes out as wrong: that is what it is, numerically.

    Args:
      f: a function with a custom JVP or VJP rule, or one that calls such.
      *args, **kwargs: the point, whose floating-point leaves are looked at.
      tol: how far apart two derivatives may be, relative to the larger; by default 1e-4, or 3e-2 where the function
        computes in 32 bits or less whatever it is given.

    Raises:
      TypeError: no argument is of floating point.
    """
    name = getattr(f, "__name__", None) or getattr(getattr(f, "func", f), "__name__", type(f).__name__)
    with jax.enable_x64(True):
        leaves, tree = jax.tree.flatten((args, kwargs))
        paths = [keystr(p) for p, _ in tree_flatten_with_path((args, kwargs))[0]]
        active = [i for i, x in enumerate(leaves) if _is_float(x)]
        if not active:
            raise TypeError(
                f"check_rule: no argument of {name} is of floating point, so there is nothing to differentiate in"
            )
        point = tuple(jnp.asarray(leaves[i], jnp.float64) for i in active)

        def flat(*values: Any) -> list[Any]:
            given = dict(zip(active, values, strict=True))
            a, k = jax.tree.unflatten(tree, [given.get(i, x) for i, x in enumerate(leaves)])
            return [y for y in jax.tree.leaves(f(*a, **k)) if _is_float(y)]

        program = trace(flat)(*point)
        is_short = any(_is_short(v) for _, e in program.walk() for v in e.outvars)
        step, limit = (1e-2, tol or 3e-2) if is_short else (1e-5, tol or 1e-4)
        names = _argument_names(f, args, kwargs, paths)
        notes = [
            f"{names[i]} was left alone: it is not of floating point." for i in range(len(leaves)) if i not in active
        ]
        plain = as_function(without_rules(program))
        rule, mode = _derivative(flat, point)
        notes += [mode] if mode else []
        try:
            replaced, _ = _derivative(plain, point)
        except Exception as error:
            replaced = None
            notes.append(f"The function that the rule replaces was not differentiated: {str(error).splitlines()[0]}")
        checks = [_check_leaf(i, names[j], flat, point, rule, replaced, step, limit) for i, j in enumerate(active)]
    return RuleCheck(str(name), tuple(checks), tuple(notes))


def _is_float(x: Any) -> bool:
    return (hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)) or isinstance(x, float)


def _is_short(v: Var) -> bool:
    dtype = getattr(v.aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 8


def _argument_names(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], paths: list[str]) -> list[str]:
    names = compat.function_debug_info(f, args, kwargs).arg_names
    return [str(n) for n in names] if names is not None and len(names) == len(paths) else paths


Directional = Callable[[int, Any, list[Any]], float]


def _derivative(fun: Callable[..., Any], point: tuple[Any, ...]) -> tuple[Directional, str]:
    """The derivative along a direction of one argument, weighted over the results; and a note if it is in forward mode."""
    try:
        _, pull = jax.vjp(fun, *point)

        def along(i: int, direction: Any, weights: list[Any]) -> float:
            return float(jnp.vdot(pull(weights)[i], direction))

        along(0, jnp.zeros_like(point[0]), [jnp.zeros(y.shape, y.dtype) for y in jax.eval_shape(fun, *point)])
        return along, ""
    except ValueError as error:
        if "everse-mode" not in str(error):
            raise

        def pushed(i: int, direction: Any, weights: list[Any]) -> float:
            tangents = tuple(direction if j == i else jnp.zeros_like(x) for j, x in enumerate(point))
            _, out = jax.jvp(fun, point, tangents)
            return float(sum(jnp.vdot(t, w) for t, w in zip(out, weights, strict=True)))

        return pushed, "In forward mode: it has no reverse mode."


def _check_leaf(
    i: int, path: str, fun: Callable[..., Any], point: tuple[Any, ...], rule: Directional, replaced: Directional | None,
    step: float, limit: float,
) -> LeafCheck:  # fmt: skip
    """Compares along three random directions, and keeps the one that is farthest off."""
    random = np.random.default_rng(i)
    value = fun(*point)
    worst: LeafCheck | None = None
    largest = -1.0
    for _ in range(3):
        direction = jnp.asarray(random.normal(size=point[i].shape))
        weights = [jnp.asarray(random.normal(size=y.shape), y.dtype) for y in value]

        def at(t: float, direction: Any = direction, weights: Any = weights) -> float:
            moved = tuple(x + t * direction if j == i else x for j, x in enumerate(point))
            return float(sum(jnp.vdot(w, y) for w, y in zip(weights, fun(*moved), strict=True)))

        here = at(0.0)
        numerical = (at(step) - at(-step)) / (2 * step)
        sides = (at(step) - here) / step, (here - at(-step)) / step
        by_rule = rule(i, direction, weights)
        scale = max(abs(numerical), abs(by_rule), 1e-3)
        off = abs(by_rule - numerical) / scale
        verdict = "right"
        if not off <= limit:  # NaN is off too
            is_smooth = abs(sides[0] - sides[1]) <= 0.1 * scale
            verdict = "wrong" if is_smooth and np.isfinite(numerical) else "not differentiable"
        if off > largest or np.isnan(off):
            largest = np.inf if np.isnan(off) else off
            other = replaced(i, direction, weights) if replaced is not None else None
            worst = LeafCheck(path, by_rule, numerical, other, verdict)
    assert worst is not None
    return worst


def without_rules(program: Program) -> Program:
    """The program with every function that has a custom rule replaced by what it computes, in bodies too."""
    rules = (compat.custom_jvp_call_p, compat.custom_vjp_call_p)
    builder = Builder(program.constvars, program.consts)
    env: dict[Atom, Atom] = {}
    for equation in program.equations:
        ins = [env.get(a, a) for a in equation.invars]
        if equation.primitive in rules:
            outs = builder.inline(without_rules(equation.params["call_jaxpr"]), ins)
            env.update(zip(equation.outvars, outs, strict=True))
            continue
        operation = equation.operation
        if operation.programs:
            operation = replace(operation, params=map_programs(operation.params, without_rules), rules={})
        builder.equations.append(replace(equation, operation=operation, invars=tuple(ins)))
    made = builder.program(program.invars, [env.get(a, a) for a in program.outvars], program.debug_info, like=program)
    return replace(made, closed=program.closed)
