"""Custom derivative rules: jax's decorators, with errors that say which leaf of a rule is wrong.

`custom_jvp`, `custom_vjp` and `custom_gradient` are jax's own, and write the same equations. The rules passed to them
are checked as they are traced: what JAX rejects is rejected with JAX's message, plus the function, the rule's line and
the path of the leaf.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from jax.tree_util import keystr, tree_flatten_with_path

from jaxviz.ir import compat
from jaxviz.ir.errors import message_of
from jaxviz.ir.origin import Location
from jaxviz.report.tables import counted, short_location
from jaxviz.runtime.cache import function_name

Rule = Callable[..., Any]


class custom_jvp(jax.custom_jvp):  # type: ignore[type-arg]
    """`jax.custom_jvp`, whose rules are checked leaf by leaf.

    >>> @jaxviz.custom_jvp
    ... def tanh(x):
    ...     return jnp.tanh(x)
    >>> @tanh.defjvp
    ... def tanh_jvp(primals, tangents):
    ...     y = tanh(primals[0])
    ...     return y, (1 - y**2) * tangents[0]

    Raises:
      TypeError: a rule does not return a pair, or its outputs have another structure, shape or dtype; the message names
        the leaf.
      AttributeError: the function is called before it has a rule.
    """

    _by_argument: tuple[Rule, ...] = ()  # the rules given to `defjvps`

    def defjvp(self, jvp: Rule, symbolic_zeros: bool = False) -> Rule:
        """Sets the rule: `(*nondiff, primals, tangents) → (primals out, tangents out)`, as `jax.custom_jvp.defjvp`."""
        rules = self._by_argument or (jvp,)

        @_in_place_of(jvp)
        def checked(*args: Any) -> Any:
            out = _run(jvp, args)
            *nondiff, primals, _ = args
            types = _result_types(self.fun, self.nondiff_argnums, nondiff, primals)
            if problem := _jvp_problem(function_name(jvp), function_name(self.fun), out, types):
                raise TypeError(f"{problem} {_places(self.fun, *rules)}")
            return out

        super().defjvp(checked, symbolic_zeros)
        return jvp

    def defjvps(self, *jvps: Rule | None) -> None:
        """Sets a rule for each argument, as `jax.custom_jvp.defjvps`: `(tangent, primals out, *primals) → tangents
        out`."""
        self._by_argument = tuple(rule for rule in jvps if rule)
        try:
            super().defjvps(*(self._push(i, rule) if rule else None for i, rule in enumerate(jvps)))
        finally:
            self._by_argument = ()

    def _push(self, index: int, rule: Rule) -> Rule:
        @_in_place_of(rule)
        def checked(tangent: Any, out: Any, *primals: Any) -> Any:
            tangent_out = _run(rule, (tangent, out, *primals))
            try:
                jax.tree.map(lambda *_: None, out, tangent_out)  # this is how JAX sums what the rules return
            except ValueError as error:
                raise ValueError(
                    f"{error}\nThe tangent that the rule of {argument_names(self.fun)(index)} gives "
                    f"{_difference(tangent_out, out)}. {_places(self.fun, rule)}"
                ) from None
            return tangent_out

        return checked

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not getattr(self, "jvp", None):
            _refuse_missing_rule(super().__call__, self.fun, "defjvp", args, kwargs)
        try:
            return super().__call__(*args, **kwargs)
        except jax.errors.UnexpectedTracerError as error:
            _explain_tracer(error, f"Raised in {_where(self.fun)}.")
            raise


class custom_vjp(jax.custom_vjp):  # type: ignore[type-arg]
    """`jax.custom_vjp`, whose rules are checked leaf by leaf.

    >>> @jaxviz.custom_vjp
    ... def tanh(x):
    ...     return jnp.tanh(x)
    >>> tanh.defvjp(lambda x: (tanh(x),) * 2, lambda y, ct: ((1 - y**2) * ct,))

    Raises:
      TypeError: a forward rule does not return a pair, or returns another primal output; a backward rule returns a
        wrong number of cotangents; or the function is used in forward mode. The message names the leaf, and the
        function's line.
      ValueError: a cotangent has another shape than its argument; the message names the leaf.
      AttributeError: the function is called before it has a rule.
    """

    _user_fun: Rule | None = None  # the function to name if `fun` is JAX's

    def defvjp(self, fwd: Rule, bwd: Rule, symbolic_zeros: bool = False, optimize_remat: bool = False) -> None:
        """Sets the rules, as `jax.custom_vjp.defvjp`: `fwd` returns the output and the residuals, `bwd` takes the
        residuals and a cotangent."""

        @_in_place_of(fwd)
        def checked_fwd(*args: Any) -> Any:
            out = _run(fwd, args)
            value_of = lambda x: x.value if isinstance(x, CustomVJPPrimal) else x
            values = jax.tree.map(value_of, args) if symbolic_zeros else args
            fixed = [values[i] for i in self.nondiff_argnums]
            dynamic = tuple(a for i, a in enumerate(values) if i not in self.nondiff_argnums)
            types = _result_types(self.fun, self.nondiff_argnums, fixed, dynamic)
            if problem := _fwd_problem(function_name(fwd), function_name(self.fun), out, types):
                raise TypeError(f"{problem} {_places(self.fun, fwd)}")
            return out[0], _Residuals(out[1], _ArgumentTypes.of(dynamic))

        @_in_place_of(bwd)
        def checked_bwd(*args: Any) -> Any:
            *fixed, residuals, ct = args
            if not isinstance(residuals, _Residuals):  # called directly by the user
                return _run(bwd, args)
            out = _run(bwd, (*fixed, residuals.value, ct))
            if error := residuals.types.refused(out, argument_names(self.fun, self.nondiff_argnums)):
                raise type(error)(f"{error} {_places(self.fun, bwd)}")
            return out

        super().defvjp(checked_fwd, checked_bwd, symbolic_zeros, optimize_remat)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        where = _where(self._user_fun or self.fun)
        if not getattr(self, "fwd", None) or not getattr(self, "bwd", None):
            _refuse_missing_rule(super().__call__, self.fun, "defvjp", args, kwargs)
        try:
            return super().__call__(*args, **kwargs)
        except TypeError as error:
            if type(error) is not TypeError or not message_of(error).endswith("to a custom_vjp function."):
                raise
            raise TypeError(
                f"{error} The function is {where}; use jax.vjp or jax.grad, or give it its rule with jax.custom_jvp."
            ) from error
        except jax.errors.UnexpectedTracerError as error:
            names = argument_names(self.fun)
            is_traced = lambda x: any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(x))
            traced = [names(i) for i in self.nondiff_argnums if i < len(args) and is_traced(args[i])]
            note = f" It is given a tracer for {', '.join(traced)}, in nondiff_argnums." if traced else ""
            _explain_tracer(error, f"Raised in {where}.{note}")
            raise
        except Exception as error:
            if "closed-over value" in message_of(error):  # JAX's CustomVJPException has no public name
                _explain_tracer(error, f"The function is {where}.")
            raise


def custom_gradient(fun: Rule) -> Rule:
    """`jax.custom_gradient`: `fun` returns its output, and a function from the output's cotangent to those of the
    arguments.

    >>> @jaxviz.custom_gradient
    ... def tanh(x):
    ...     y = jnp.tanh(x)
    ...     return y, lambda ct: (1 - y**2) * ct

    Raises:
      TypeError: `fun` does not return such a pair, or the number of cotangents is wrong; the message names the leaf.
      ValueError: a cotangent has another shape than its argument.
    """

    @functools.wraps(fun)
    def checked(*args: Any, **kwargs: Any) -> Any:
        out = fun(*args, **kwargs)
        try:
            value, rule = out
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"{error}: the function of a custom_gradient must produce a pair of its output and a function from its "
                f"cotangent to the cotangents of the arguments. {_places(fun)}"
            ) from None
        types = _ArgumentTypes.of(args)

        def backward(ct: Any) -> Any:
            if not callable(rule):
                raise TypeError(
                    f"{type(rule).__name__!r} object is not callable: the second element that the function of a "
                    f"custom_gradient gives must be a function from the cotangent of its output. {_places(fun)}"
                )
            cts = _run(rule, (ct,))
            # JAX accepts a single cotangent without a tuple.
            by_argument = (cts,) if jax.tree_util.all_leaves([cts]) else cts
            if error := types.refused(by_argument, argument_names(fun)):
                raise type(error)(f"{error} {_places(fun, rule)}")
            return cts

        return value, (_in_place_of(rule)(backward) if callable(rule) else backward)

    function: Any = jax.custom_gradient(checked)
    if not isinstance(function, jax.custom_vjp):
        return function  # type: ignore[no-any-return]
    named = custom_vjp(function.fun)
    named._user_fun = fun
    jax.custom_vjp.defvjp(named, function.fwd, function.bwd)  # type: ignore[arg-type]
    return named


# --- locating and running a rule --------------------------------------------------------------------------------------


def _unwrapped(fun: Any) -> Any:
    while isinstance(fun, functools.partial):
        fun = fun.func
    return inspect.unwrap(fun)


def _where(fun: Any) -> str:
    """`name (file.py:12)` of a function, if Python has them."""
    plain = _unwrapped(fun)
    code = getattr(plain, "__code__", None)
    if code is None:
        return function_name(fun)
    return f"{function_name(fun)} ({short_location(Location(code.co_filename, code.co_firstlineno, ''))})"


def _places(fun: Any, *rules: Any) -> str:
    listed = " and ".join(map(_where, rules))
    is_are = "rules are" if len(rules) > 1 else "rule is"
    return f"The {is_are} {listed}, of the function {_where(fun)}." if rules else f"The function is {_where(fun)}."


def _in_place_of(rule: Rule) -> Callable[[Rule], Rule]:
    """Gives a function the name, signature and location that JAX reads from a rule, so that equations print the
    same."""

    def decorate(checked: Any) -> Rule:
        functools.update_wrapper(checked, rule)
        if isinstance(rule, functools.partial):  # JAX looks through partials, but not inside a wrapper function
            checked.__wrapped__ = _unwrapped(rule)
            with contextlib.suppress(TypeError, ValueError):
                checked.__signature__ = inspect.signature(rule)
        return checked  # type: ignore[no-any-return]

    return decorate


_CLOSES_OVER = (
    "A value of another trace is read here, most often one that the function or its rule closes over. Pass it to the "
    "function as an argument, or take it out with jax.closure_convert."
)


def _explain_tracer(error: Exception, where: str) -> None:
    if not any(_CLOSES_OVER in note for note in getattr(error, "__notes__", ())):
        error.add_note(f"{where} {_CLOSES_OVER}")


def _run(rule: Rule, args: tuple[Any, ...]) -> Any:
    try:
        return rule(*args)
    except jax.errors.UnexpectedTracerError as error:
        _explain_tracer(error, f"Raised in the rule {_where(rule)}.")
        raise


def _refuse_missing_rule(call: Rule, fun: Rule, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        call(*args, **kwargs)
    except AttributeError as error:
        raise AttributeError(
            f"{error} It is {_where(fun)}; give it a rule with {function_name(fun)}.{method}."
        ) from None


def argument_names(fun: Rule, left_out: Sequence[int] = ()) -> Callable[[int], str]:
    """Maps the index of an argument, without nondiff ones, to its name, or to its number if Python has none."""
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")

    def name(index: int) -> str:
        for i in sorted(left_out):
            index += i <= index
        if index < len(named):
            return named[index]
        return f"{rest}[{index - len(named)}]" if rest else f"argument {index}"

    return name


# --- errors in what a rule returns ------------------------------------------------------------------------------------


def _result_types(fun: Rule, nondiff_argnums: Sequence[int], nondiff: Sequence[Any], args: Sequence[Any]) -> Any:
    """The types of the function's own results; None if it cannot be traced, for example because its Python branches on
    values."""

    def of_the_others(*args: Any) -> Any:
        fixed, others = dict(zip(nondiff_argnums, nondiff, strict=True)), iter(args)
        return fun(*(fixed[i] if i in fixed else next(others) for i in range(len(fixed) + len(args))))

    try:
        return jax.eval_shape(of_the_others, *args)
    except Exception:  # an error in the function itself is raised when JAX runs it
        return None


def _type_of(x: Any) -> Any:
    """The type of a leaf; None without shape and dtype."""
    try:
        aval = x.aval if isinstance(x, SymbolicZero) else compat.aval_of(x)
    except TypeError:
        return None
    return aval if hasattr(aval, "shape") and hasattr(aval, "dtype") else None


def _is_none(x: Any) -> bool:
    return x is None


def _difference(got: Any, want: Any) -> str:
    """How a structure differs from the expected one, by the paths of leaves."""
    at_got, at_want = ([keystr(p) for p, _ in tree_flatten_with_path(x, _is_none)[0]] for x in (got, want))
    lacks = ", ".join(p for p in at_want if p not in at_got)
    extra = ", ".join(p for p in at_got if p not in at_want)
    parts = [f"lacks {lacks}"] * bool(lacks) + [f"has {extra} in addition"] * bool(extra)
    if "" in (*at_got, *at_want):  # one of them is a leaf itself, so it has no path
        parts = []
    return " and ".join(parts) or f"has the structure {jax.tree.structure(got)}, not {jax.tree.structure(want)}"


def _mismatches(got: Any, want: Any, tangent: bool = False) -> str:
    """The leaves with another shape or dtype, for pytrees with the same structure; '' if there are none."""
    mismatches = []
    for (path, g), w in zip(tree_flatten_with_path(got)[0], jax.tree.leaves(want), strict=True):
        aval, primal = _type_of(g), _type_of(w)
        expected = primal.to_tangent_aval() if tangent and primal is not None else primal
        if aval is None or expected is None or (aval.shape, aval.dtype) == (expected.shape, expected.dtype):
            continue
        at = f" at {keystr(path)}" if path else ""
        mismatches.append(f"expected {expected.str_short()}{at}, got {aval.str_short()}")
    return "; ".join(mismatches)


def _jvp_problem(rule: str, fun: str, out: Any, types: Any) -> str:
    """What is wrong with a JVP rule's result, in the order in which JAX checks; '' if nothing is."""
    whose = f"Custom JVP rule {rule} for function {fun}"
    if not isinstance(out, (list, tuple)) or len(out) != 2:
        return (
            f"{whose} must produce a pair (list or tuple of length two) representing primal and tangent outputs, but "
            f"got {out}."
        )
    primals, tangents = out
    types = primals if types is None else types
    trees = [jax.tree.structure(x) for x in (primals, tangents)]
    if trees[0] != trees[1]:
        which, wrong = ("primal", primals) if trees[0] != jax.tree.structure(types) else ("tangent", tangents)
        return (
            f"{whose} must produce primal and tangent outputs with equal container (pytree) structures, but got "
            f"{trees[0]} and {trees[1]} respectively: the {which} output {_difference(wrong, types)}."
        )
    pair = (
        f"{whose} must produce a pair (list or tuple of length two) where the first element represents the primal "
        f"output (equal in value to the output of the custom_jvp-decorated function {fun}, and in particular"
    )
    if trees[0] != jax.tree.structure(types):
        return f"{pair} of the same container/pytree structure), but it {_difference(primals, types)}."
    if wrong := _mismatches(primals, types):
        return f"{pair} with leaves of the same shape/dtype), but {wrong}."
    if wrong := _mismatches(tangents, primals, tangent=True):
        return (
            "Custom JVP rule must produce primal and tangent outputs with corresponding shapes and dtypes. The "
            f"tangent: {wrong}."
        )
    return ""


def _fwd_problem(rule: str, fun: str, out: Any, types: Any) -> str:
    """What is wrong with a forward rule's result; '' if nothing is."""
    pair = (
        f"Custom VJP fwd rule {rule} for function {fun} must produce a pair (list or tuple of length two) where the "
        "first element"
    )
    residuals = (
        "the second element represents residuals (i.e. values stored from the forward pass for use on the backward "
        "pass), but"
    )
    if not isinstance(out, (list, tuple)) or len(out) != 2:
        return (
            f"{pair} represents the primal output (equal to those of the custom_vjp-decorated function {fun}) and "
            f"{residuals} instead of a pair the fwd rule {rule} produced {out}."
        )
    pair = (
        f"{pair} represents the primal output (equal to the output of the custom_vjp-decorated function {fun}) and "
        f"{residuals}"
    )
    if types is None:
        return ""
    if jax.tree.structure(out[0]) != jax.tree.structure(types):
        return f"{pair} the first element {_difference(out[0], types)}."
    wrong = _mismatches(out[0], types)
    return f"{pair} for the first element {wrong}." if wrong else ""


@dataclass(frozen=True)
class _ArgumentLeaf:
    """Represents a leaf of the arguments: its path, and its shape and dtype if it has them."""

    path: str
    shape: tuple[Any, ...] | None
    dtype: Any

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape or ()))}]"


@dataclass(frozen=True)
class _ArgumentTypes:
    """The types of a call's arguments, which the residuals carry to the backward rule.

    They are not part of any trace, so repeated calls have equal ones, and the residuals have the same leaves as without
    them.
    """

    leaves: tuple[_ArgumentLeaf, ...]
    tree: Any

    @staticmethod
    def of(args: tuple[Any, ...]) -> _ArgumentTypes:
        leaves, tree = tree_flatten_with_path(args)
        types = [_type_of(x) for _, x in leaves]
        leaf_types = [_ArgumentLeaf(keystr(p), getattr(t, "shape", None), getattr(t, "dtype", None))
                 for (p, _), t in zip(leaves, types, strict=True)]  # fmt: skip
        return _ArgumentTypes(tuple(leaf_types), tree)

    def __hash__(self) -> int:
        return hash(self.leaves)  # metadata of user-defined containers may not be hashable

    def refused(self, cts: Any, name: Callable[[int], str]) -> Exception | None:
        """JAX's error for a backward rule's result, if it has to be refused; `name` returns the arguments' names."""
        arguments: Any = jax.tree.unflatten(self.tree, self.leaves)
        by_argument = tuple(cts) if isinstance(cts, list) and len(cts) == len(arguments) else cts
        words = (
            "Custom VJP bwd rule must produce an output with the same container (pytree) structure as the args tuple "
            "of the primal function, and in particular must produce a tuple of length equal to the number of arguments "
            f"to the primal function, but got bwd output structure {jax.tree.structure(by_argument)} for primal input "
            f"structure {self.tree}:"
        )
        expected = f"{counted(len(arguments), 'cotangent')}, one for each differentiable argument"
        if not isinstance(by_argument, tuple):
            return TypeError(f"{words} expected a tuple of {expected}, got a {type(by_argument).__name__}.")
        if len(by_argument) != len(arguments):
            return TypeError(f"{words} expected {expected}, got {len(by_argument)}.")
        pairs: list[tuple[int, _ArgumentLeaf, Any]] = []
        for i, (ct, argument) in enumerate(zip(by_argument, arguments, strict=True)):
            # As in JAX, one cotangent may apply to all leaves below it, and None means zeros.
            note = lambda x, below, i=i: pairs.extend((i, leaf, x) for leaf in jax.tree.leaves(below))
            try:
                jax.tree.map(note, ct, argument, is_leaf=_is_none)
            except ValueError:
                return TypeError(f"{words} the cotangent of {name(i)} {_difference(ct, argument)}.")
        return next(
            (e for e in (_refused_cotangent(leaf, ct, i, name(i)) for i, leaf, ct in pairs) if e is not None), None
        )


def _refused_cotangent(leaf: _ArgumentLeaf, ct: Any, index: int, name: str) -> Exception | None:
    """JAX's error for a cotangent of the wrong type; it only checks the shape, and accepts anything for integers."""
    aval = _type_of(ct)
    if leaf.shape is None or aval is None or not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return None
    path = leaf.path.removeprefix(f"[{index}]")
    detail = f"expected {leaf} at {name}{path}, got {aval.str_short()}"
    if isinstance(ct, SymbolicZero):
        if (aval.shape, aval.dtype) == (leaf.shape, leaf.dtype):
            return None
        return ValueError(
            "Custom VJP bwd rule produced a SymbolicZero with a shape/dtype that does not match the corresponding "
            f"input tangent shape/dtype: at output{leaf.path} {detail}. Consider just returning a None here instead of "
            "a SymbolicZero object."
        )
    if aval.shape == leaf.shape or jax.config.jax_disable_bwd_checks:
        return None
    return ValueError(
        "Custom VJP bwd rule must produce an output with the same type as the args tuple of the primal function, but "
        f"at output{leaf.path} the bwd rule produced an output of type {aval.str_short()} corresponding to an input of "
        f"type {leaf}: {detail}."
    )


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class _Residuals:
    """A user's residuals, with the types of the arguments that they were computed from."""

    value: Any
    types: _ArgumentTypes

    def tree_flatten(self) -> tuple[tuple[Any], _ArgumentTypes]:
        return (self.value,), self.types

    @classmethod
    def tree_unflatten(cls, types: _ArgumentTypes, children: tuple[Any]) -> _Residuals:
        return cls(children[0], types)
