"""`check_rule`: compares a custom rule's first and second derivatives with numerical differences and with those of the
function that it replaces."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from jaxviz.functions import transformations
from jaxviz.functions.custom_rules import argument_names
from jaxviz.functions.differences import RESOLVED, Differences, Slope, weighted
from jaxviz.functions.lost_derivatives import Lost, is_float, like, lost_in
from jaxviz.higher_order import of
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.convert import map_programs
from jaxviz.ir.emit import as_function
from jaxviz.ir.errors import EquationError, message_of
from jaxviz.ir.syntax import Atom, Program
from jaxviz.ir.trace import noting_arguments, trace
from jaxviz.progress import each
from jaxviz.report.report import Listed, Part, Report, Table
from jaxviz.report.tables import short_location
from jaxviz.runtime.cache import function_name
from jaxviz.runtime.references import restored, values_of
from jaxviz.runtime.stoppable import compiled_once
from jaxviz.transforms.driver import Builder


@dataclass(frozen=True, slots=True)
class LeafCheck:
    """One leaf: the cotangent of an argument, the tangent of a result, or a result.

    Args:
      path: such as `x['w']`, or `output['y']`; in second order `the slope in x['w']`.
      kind: 'cotangent', 'tangent', or 'result' if the rule gives another result than the function.
      rule, numerical, replaced: the derivative where the error is largest, by the rule, by central differences, and by
        the function that the rule replaces (None if that cannot be differentiated): of the sum of the results along all
        ones, or, if only that shows the error, with random weights and directions. Of a result, `numerical` is that of
        the function.
      element: the element of the leaf, such as `[2]`; '' for the leaf as a whole.
      error, replaced_error: the largest absolute error of the rule in all directions tried, against each of the two.
      verdict: 'right', 'wrong', or at this point 'not differentiable', as one-sided differences show, or 'not finite'.
    """

    path: str
    kind: str
    rule: float
    numerical: float
    replaced: float | None
    element: str
    error: float
    replaced_error: float | None
    verdict: str


@dataclass(frozen=True, eq=False, repr=False)
class RuleCheck(Report, schema="check_rule"):
    """How a custom rule compares with numerical differences and with the derivative of the function that it replaces.

    >>> found = jaxviz.check_rule(tanh, 0.5)  # a function with a custom rule
    >>> found.agrees, found.no_second

    Args:
      function: the name of the function.
      leaves: a cotangent for each floating-point leaf of the arguments, if there is a reverse mode; then a tangent for
        each such leaf of the results, if there is a forward mode.
      notes: what was left out, and why.
      second: the same for the derivative that the rule gives, of the sum of the results: its derivatives are second
        derivatives. Empty if the rule is wrong in first order, or cannot be differentiated twice.
      no_second: why there is no second derivative, in reverse mode or at all; '' if there is one.
      lost: the operations at which a derivative that is wrong was lost, such as a `max` of equal operands, or a
        `stop_gradient` in the rule; in second order, operations of the derivative.
      has_rule: whether the function itself has a custom rule, and does not only call functions that may have one.
    """

    function: str
    leaves: tuple[LeafCheck, ...]
    notes: tuple[str, ...] = ()
    second: tuple[LeafCheck, ...] = ()
    no_second: str = ""
    lost: tuple[Lost, ...] = ()
    has_rule: bool = True

    @property
    def agrees(self) -> bool:
        """Whether no leaf is wrong, in first or second order; a leaf at which the function is not differentiable is
        neither right nor wrong."""
        return all(leaf.verdict != "wrong" for leaf in (*self.leaves, *self.second))

    def __bool__(self) -> bool:
        return self.agrees

    def _parts(self) -> Iterator[Part]:
        heads = ("derivative", "rule", "differences", "replaced", "error", "to replaced", "verdict")
        rows = [
            (_cut(f"{x.kind} of {x.path}{x.element}", 36), *map(_number, (x.rule, x.numerical, x.replaced)),
             _number(x.error, ".1e"), _number(x.replaced_error, ".1e"), x.verdict)
            for x in (*self.leaves, *self.second)
        ]  # fmt: skip
        yield Table(heads, rows, "<>>>>><")
        if self.lost:
            yield f"{'This is where it is lost' if len(self.lost) == 1 else 'It is lost in these places'}:"
            yield Listed(map(str, self.lost))
        yield from self.notes
        if self.no_second:
            yield self.no_second

    @property
    def summary(self) -> str:
        """`rule of f agrees with numerical differences`, or where it is wrong."""
        about = f"{'rule' if self.has_rule else 'derivative'} of {self.function}"
        for x in (*self.leaves, *self.second):
            if x.verdict == "wrong":
                against = "the function gives" if x.kind == "result" else "numerical differences give"
                where = f"; see {short_location(self.lost[0].location)}" if self.lost and self.lost[0].location else ""
                return (
                    f"{about} is wrong in the {x.kind} of {x.path}{x.element}: {x.rule:.6g} where {against} "
                    f"{x.numerical:.6g}{where}"
                )
        if all(x.verdict.startswith("not") for x in self.leaves):
            return f"{about} could not be checked: the function is {self.leaves[0].verdict} here"
        agreement = f"{about} agrees with numerical differences"
        return f"{agreement}, but not every second derivative could be computed" if self.no_second else agreement


def _number(x: float | None, form: str = ".6g") -> str:
    return "" if x is None else format(x, form)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width // 2]}…{text[1 - width // 2 :]}"


@api_boundary
def check_rule(f: Callable[..., Any], *args: Any, tol: float | None = None, **kwargs: Any) -> RuleCheck:
    """Compares a custom rule with numerical differences and with the derivative of the function that it replaces, and
    the rule's derivative with its numerical differences.

    >>> print(jaxviz.check_rule(log1pexp, 3.0))
    rule of log1pexp agrees with numerical differences
    ...

    The derivative is computed in 64 bits, along all ones and along random directions. A rule that differs on purpose,
    such as a straight-through estimator, is reported as wrong, because numerically it is. A right rule that cannot be
    differentiated again in reverse mode agrees; `no_second` says why there is no second derivative. Where a derivative
    is wrong, `lost` has the operations at which it was lost, with their lines.

    Each derivative is compiled once, and an interrupt ends the wait for the compiler.

    Args:
      f: a function with a custom JVP or VJP rule, or one that calls such a function.
      *args, **kwargs: the point; its floating-point leaves are checked, and the real and the imaginary part of complex
        ones, except those in `nondiff_argnums`.
      tol: the largest difference of two derivatives, relative to the larger one; by default as the precision allows:
        1e-4 in 64 bits, and 2e-2 if the function always computes in 32 bits.

    Raises:
      TypeError: no argument or no result has a floating-point leaf, or an argument is only a type.
      ValueError: `tol` is not a positive number.
      the errors of the rule.
    """
    compat.check_callable(f)
    leaves, tree = tree_flatten_with_path((args, kwargs))
    paths, values = [p for p, _ in leaves], [x for _, x in leaves]
    names = _leaf_names(f, args, kwargs, paths)
    function, n_bound = _unbound(f)
    has_rule = isinstance(function, (jax.custom_jvp, jax.custom_vjp))
    fixed_places, fixed_names = _nondiff_arguments(function, n_bound) if has_rule else (set(), set())
    is_fixed = [p[1].idx in fixed_places if p[0].idx == 0 else p[1].key in fixed_names for p in paths]
    active = [i for i, x in enumerate(values) if _components(x) and not is_fixed[i]]
    if any(isinstance(x, jax.ShapeDtypeStruct) for x in values):
        raise TypeError("check_rule computes derivatives at a point: pass arrays, and not only their types")
    if tol is not None and not (isinstance(tol, (int, float)) and 0 < tol < np.inf):
        raise ValueError(f"tol is the largest relative difference, a positive number such as 1e-4: got {tol!r}")
    if not active:
        raise TypeError(
            f"check_rule: no argument of {function_name(f)} has a floating-point or complex type, so there is nothing "
            "to differentiate"
        )

    def flat(*moved: Any) -> list[Any]:
        parts = iter(moved)
        replaced = {i: _joined([next(parts) for _ in _components(values[i])]) for i in active}
        a, k = jax.tree.unflatten(tree, [replaced.get(i, x) for i, x in enumerate(values)])
        results = tree_flatten_with_path(f(*a, **k))[0]
        outputs[:] = [f"output{keystr(p)}{part}" for p, y in results for part in _components(y)]
        if not outputs:
            raise TypeError(
                f"check_rule: {function_name(f)} returns no floating-point value that could have a derivative"
            )
        return [part for _, y in results for part in _split(y)]

    outputs: list[str] = []
    point = tuple(part for i in active for part in _split(values[i]))
    # The rule may use others than the function.
    used = [*values, *values_of(flat, point, {}), *values_of(_slopes(jax, flat, True), point, {})]
    notes = [
        f"{names[i]} was held fixed: it is {'in nondiff_argnums' if is_fixed[i] else 'not of a floating-point type'}."
        for i in range(len(values))
        if i not in active and compat.is_array(values[i]) | is_fixed[i] | isinstance(values[i], int)
    ]
    inputs = [f"{names[i]}{part}" for i in active for part in _components(values[i])]
    if any(name.endswith(".imag") for name in inputs):
        notes.append("Where z is complex, JAX's cotangent of it is that of z.real minus 1j times that of z.imag.")
    check = partial(_checked, flat, inputs=inputs, outputs=outputs, tol=tol, has_rule=has_rule)
    try:
        with jax.enable_x64(True), restored(used):
            report = check(tuple(jnp.asarray(part, jnp.float64) for part in point))
    except Exception as error:
        with noting_arguments(f, args, kwargs), restored(used):
            report = check(point)
        notes.append(f"Checked in the given types: in 64 bits it raises {type(error).__name__}.")
    return replace(report, function=function_name(f), notes=(*notes, *report.notes))


def _checked(
    fun: Callable[..., list[Any]], point: tuple[Any, ...], inputs: list[str], outputs: list[str], tol: float | None,
    has_rule: bool,
) -> RuleCheck:  # fmt: skip
    """The report, without the name of the function."""
    # JAX's own would leave the rules of jitted functions in its cache, without their lines.
    derivative = _derivative(fun, point)
    first, notes = _check_point(fun, point, inputs, outputs, tol)
    second, no_second = _check_twice(fun, point, inputs, first, tol)
    lost: tuple[Lost, ...] = ()
    # What the function itself raises, or an operation without a forward mode, leaves the verdict as it is.
    with contextlib.suppress(EquationError, NotImplementedError, TypeError, ValueError, LookupError, RuntimeError):
        if not has_rule and any(x.verdict == "wrong" and x.kind != "result" for x in first):
            lost = lost_in(trace(fun)(*point), point, _compiled)
        elif derivative is not None and any(x.verdict == "wrong" for x in second):
            lost = lost_in(derivative, point, _compiled)
    return RuleCheck("", first, tuple(notes), second, no_second, lost, has_rule)


def _components(x: Any) -> tuple[str, ...]:
    """The parts of a leaf in which it is differentiated, all of them real: '.real' and '.imag' of a complex one."""
    return ("",) if is_float(x) else (".real", ".imag") if jnp.iscomplexobj(x) else ()


def _split(x: Any) -> list[Any]:
    return [jnp.asarray(getattr(jnp.asarray(x), part[1:]) if part else x) for part in _components(x)]


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else jax.lax.complex(*parts)


def _derivative(fun: Callable[..., list[Any]], point: tuple[Any, ...]) -> Program | None:
    """The program of a function's derivative, whose operations have their lines; in reverse mode if there is one."""
    for in_reverse in (True, False):
        with contextlib.suppress(Exception):  # raised again where it is checked
            return trace(_slopes(transformations, fun, in_reverse))(*point)
    return None


def _leaf_names(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], paths: list[Any]) -> list[str]:
    names = compat.function_debug_info(f, args, kwargs).arg_names
    if names is not None and len(names) == len(paths) and all(names):
        return [str(n) for n in names]
    name = argument_names(f)
    return [f"{name(p[1].idx) if p[0].idx == 0 else p[1].key}{keystr(p[2:])}" for p in paths]


def _unbound(f: Any) -> tuple[Any, int]:
    """The function that `functools.partial` is given, and how many of its positional arguments that binds."""
    n_bound = 0
    while isinstance(f, functools.partial):
        n_bound += len(f.args)
        f = f.func
    return f, n_bound


def _nondiff_arguments(f: Any, n_bound: int) -> tuple[set[int], set[str]]:
    """Indices, of those not bound, and names of the arguments in which a function with a rule is not differentiated."""
    name = argument_names(f.fun)
    return {i - n_bound for i in f.nondiff_argnums if i >= n_bound}, {name(i) for i in f.nondiff_argnums}


Reverse = Callable[[list[Any]], Sequence[Any]]
"""Maps cotangents of the results to cotangents of the arguments."""
Forward = Callable[[tuple[Any, ...]], Sequence[Any]]
"""Maps tangents of the arguments to tangents of the results."""


def _check_twice(
    fun: Callable[..., list[Any]],
    point: tuple[Any, ...],
    inputs: list[str],
    checked: tuple[LeafCheck, ...],
    tol: float | None,
) -> tuple[tuple[LeafCheck, ...], str]:
    """The rule's derivative for the sum of the results, whose own derivatives are checked; or why it has none."""
    if not all(x.verdict == "right" for x in checked):
        return (), ""
    in_reverse = checked[0].kind == "cotangent"
    slopes = _slopes(jax, fun, in_reverse)
    names = [f"the slope in {name}" for name in inputs] if in_reverse else ["the slope"] * len(checked)
    try:
        rows, notes = _check_point(slopes, point, inputs, names, tol, is_replaced=False)
    except Exception as error:
        return (), f"The derivative cannot be differentiated: {_first_line(error)}"
    rows = tuple(replace(x, path=f"the slope in {x.path}") if x.kind == "cotangent" else x for x in rows)
    return rows, next((f"In second order: {note}" for note in notes if note.startswith(_NO_REVERSE)), "")


def _slopes(transforms: Any, fun: Callable[..., list[Any]], in_reverse: bool) -> Callable[..., list[Any]]:
    """The derivative of the sum of the results of a function, by `vjp` or `jvp` of a module, JAX's or ours."""

    def slopes(*at: Any) -> list[Any]:
        if in_reverse:
            results, pull = transforms.vjp(fun, *at)
            return list(pull([jnp.ones_like(y) for y in results]))
        return list(transforms.jvp(fun, at, tuple(map(jnp.ones_like, at)))[1])

    return slopes


_NO_REVERSE = "There is no reverse mode"


def _check_point(
    fun: Callable[..., list[Any]],
    point: tuple[Any, ...],
    inputs: list[str],
    outputs: list[str],
    tol: float | None,
    is_replaced: bool = True,
) -> tuple[tuple[LeafCheck, ...], list[str]]:
    """Compares along all ones and two random directions: the cotangent of each input, the tangent of each output."""
    run = _compiled(fun, *point)
    results = run(*point)
    modes = _modes(fun, point, results)
    notes = [modes.problem] if modes.problem else []
    short = {x.dtype for x in (*point, *results)}
    plain, problem, program = _Modes(), "", None
    try:
        program = trace(fun)(*point)
        short |= {v.aval.dtype for _, e in program.walk() for v in e.outvars if is_float(v.aval)}
        if is_replaced:
            plain = _modes(as_function(without_rules(program)), point, results)
            problem = plain.problem
    except Exception as error:
        problem = _first_line(error)
    if problem:
        notes.append(f"The function that the rule replaces could not be differentiated in full: {problem}")
    eps = max(float(jnp.finfo(dtype).eps) for dtype in short)
    comparison = _Comparison(Differences(run, point, eps, program, _compiled), results, tol)
    leaves: list[Callable[[], LeafCheck]] = []
    if modes.reverse is not None:
        one = partial(comparison.cotangent, reverse=modes.reverse, plain=plain.reverse)
        leaves += [partial(one, i, path) for i, path in enumerate(inputs)]
    if modes.forward is not None:
        other = partial(comparison.tangent, forward=modes.forward, plain=plain.forward)
        leaves += [partial(other, k, outputs[k]) for k in range(len(results))]
    rows = each(lambda leaf: leaf(), leaves, "derivatives" if is_replaced else "second derivatives")
    of_rule = (comparison.result(k, outputs[k], y) for k, y in enumerate(modes.results if is_replaced else ()))
    rows = [*(x for x in of_rule if x.verdict == "wrong"), *rows]
    wrong = [x for x in rows if x.verdict == "wrong"]
    if wrong and all(x.numerical == 0 and x.rule != 0 for x in wrong):
        notes.append("The function is flat where the rule gives a slope, as intended in a straight-through estimator.")
    return tuple(rows), [*notes, *comparison.notes]


def _first_line(error: Exception) -> str:
    return (message_of(error).splitlines() or [type(error).__name__])[0]


@dataclass(frozen=True, slots=True)
class _Modes:
    """A function's derivatives in both modes, None if there is none, and the results that its rule gives.

    Args:
      problem: why there is no reverse mode.
    """

    forward: Forward | None = None
    reverse: Reverse | None = None
    problem: str = ""
    results: Sequence[Any] = ()


def _modes(fun: Callable[..., list[Any]], point: tuple[Any, ...], results: list[Any]) -> _Modes:
    def push(point: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        return jax.jvp(fun, point, tangents)

    def pull(point: tuple[Any, ...], cotangents: list[Any]) -> Any:
        results, pulled = jax.vjp(fun, *point)
        return results, pulled(cotangents)

    zeros = lambda xs: jax.tree.map(jnp.zeros_like, xs)
    try:
        pushed = partial(_compiled(push, point, zeros(point)), point)
    except (TypeError, NotImplementedError) as error:
        if "custom_vjp" not in message_of(error) and "custom_lin" not in message_of(error):
            raise
        pulled = partial(_compiled(pull, point, zeros(results)), point)
        return _Modes(None, lambda cts: pulled(cts)[1], "", pulled(zeros(results))[0])
    forward: Forward = lambda tangents: pushed(tangents)[1]
    of_rule = pushed(zeros(point))[0]
    try:
        pulled = partial(_compiled(pull, point, zeros(results)), point)
    except Exception as error:
        return _Modes(forward, None, f"{_NO_REVERSE}: {_first_line(error)}", of_rule)
    return _Modes(forward, lambda cts: pulled(cts)[1], "", of_rule)


def _compiled(fun: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """A function compiled for these arguments, so that it can be interrupted; as it is, if Python looks at values."""
    try:
        lowered = jax.jit(fun).lower(*args)
    except compat.ConcretizationTypeErrors:
        fun(*args)  # raises what it raises now
        return fun
    options = compat.COMPILED_IN_LESS_TIME if jax.default_backend() == "cpu" else None
    compile_it = lambda: lowered.compile(compiler_options=options)
    compiled: Callable[..., Any] = compiled_once(lowered, "check_rule", compile_it)
    return compiled


@partial(jax.tree_util.register_dataclass, data_fields=("rule", "slope", "replaced"), meta_fields=())
@dataclass(frozen=True)
class _Tried:
    """Derivatives along some directions, arrays of one shape: as in a LeafCheck, with the error of the differences."""

    rule: Any
    slope: Slope
    replaced: Any

    @property
    def numerical(self) -> Any:
        return self.slope.value

    @property
    def slack(self) -> Any:
        return self.slope.error

    @property
    def gap(self) -> Any:
        with np.errstate(invalid="ignore"):  # infinities
            return np.nan_to_num(np.abs(self.rule - self.numerical), nan=np.inf)

    @property
    def says_something(self) -> bool:
        """Whether most of the derivative is not lost in the error of the differences; a derivative of zero is not."""
        largest = max(np.max(np.abs(x), initial=0.0) for x in (self.rule, self.numerical))
        return bool(np.max(self.slack, initial=0.0) <= RESOLVED * largest or largest == 0)

    def verdicts(self, tol: float) -> Any:
        scale = np.maximum(np.abs(self.rule), np.abs(self.numerical))
        agrees = self.gap <= tol * scale + self.slack
        jump = self.slope.jump
        is_jump = (jump > 0) & (np.nan_to_num(self.gap, posinf=0) <= 10 * jump)
        is_rough = ~np.isfinite(self.numerical) | is_jump
        return np.where(agrees, "right", np.where(is_rough, "not differentiable", "wrong"))


class _Comparison:
    """Compares derivatives with differences at one point."""

    def __init__(self, differences: Differences, results: Sequence[Any], tol: float | None):
        point, eps, self.here = differences.point, differences.eps, differences.here
        self.point, self.eps, self.results = point, eps, results
        self.tol = tol if tol is not None else 1e-4 if eps < 1e-12 else 2e-2 if eps < 1e-5 else 0.2
        self.notes: list[str] = []
        random = np.random.default_rng(0)
        draws: list[Callable[..., Any]] = [np.ones, random.standard_normal, random.standard_normal]
        self.weights = [[np.asarray(draw(y.shape)) for y in self.here] for draw in draws]
        self.directions = [[np.asarray(draw(x.shape)) for x in point] for draw in draws]
        self.along = functools.cache(lambda draw, i: differences.along(i, self.directions[draw][i]))
        self.along_carefully = functools.cache(lambda draw, i: differences.along_carefully(i, self.directions[draw][i]))
        self.along_unit = differences.along_carefully

    def _trial(self, draw: int, i: int, compare: Callable[[list[Slope]], _Tried]) -> _Tried:
        """The derivatives along a direction of one argument, with differences as careful as their verdict needs."""
        trial = compare(self.along(draw, i))
        is_enough = trial.says_something and np.all(trial.verdicts(self.tol) == "right")
        return trial if is_enough else compare(self.along_carefully(draw, i))

    def cotangent(self, i: int, path: str, reverse: Reverse, plain: Reverse | None) -> LeafCheck:
        x = self.point[i]
        tried = []
        for draw, weights in enumerate(self.weights):
            cts = [like(y, w) for w, y in zip(weights, self.results, strict=True)]
            pulled = [None if pull is None else np.asarray(pull(cts)[i], np.float64) for pull in (reverse, plain)]

            def along(direction: Any, found: list[Slope], weights: Any = weights, pulled: Any = pulled) -> _Tried:
                rule, replaced = (None if ct is None else _array(np.vdot(ct, direction)) for ct in pulled)
                return _Tried(rule, weighted(found, weights), replaced)

            trial = self._trial(draw, i, partial(along, self.directions[draw][i]))
            tried.append(trial)
            if trial.verdicts(self.tol) != "right" and 1 < x.size <= 32:  # find the wrong element
                units = [np.reshape(row, x.shape) for row in np.eye(x.size)]
                each_unit = [along(unit, self.along_unit(i, unit)) for unit in units]
                tried.insert(0, jax.tree.map(lambda *xs: np.reshape(xs, x.shape), *each_unit))
                break
        return self._leaf("cotangent", path, tried, self.here)

    def tangent(self, k: int, path: str, forward: Forward, plain: Forward | None) -> LeafCheck:
        tried = []
        for draw, directions in enumerate(self.directions):
            for i in range(len(self.point)):
                tangents = tuple(
                    like(x, d) if j == i else jnp.zeros_like(x)
                    for j, (d, x) in enumerate(zip(directions, self.point, strict=True))
                )
                rule, replaced = (None if push is None else _array(push(tangents)[k]) for push in (forward, plain))

                def of_result(found: list[Slope], rule: Any = rule, replaced: Any = replaced) -> _Tried:
                    return _Tried(rule, found[k], replaced)

                tried.append(self._trial(draw, i, of_result))
        return self._leaf("tangent", path, tried, [self.here[k]])

    def result(self, k: int, path: str, value: Any) -> LeafCheck:
        """A result of the rule, compared with that of the function."""
        noise = np.full_like(self.here[k], 8 * self.eps * np.max(np.abs(self.here[k]), initial=0.0))
        slope = Slope(self.here[k], noise, np.zeros_like(noise), np.zeros_like(noise))
        return self._leaf("result", path, [_Tried(_array(value), slope, None)], [])

    def _leaf(self, kind: str, path: str, tried: list[_Tried], of: list[Any]) -> LeafCheck:
        """The first attempt with the verdict, which is the easiest to read, and its element with the largest error;
        `of` are the results whose derivative it is."""
        verdict, shown = next((v, t) for v in VERDICTS for t in tried if v in t.verdicts(self.tol) or v == VERDICTS[-1])
        gap = np.where(shown.verdicts(self.tol) == verdict, shown.gap, -1.0)
        at = np.unravel_index(np.argmax(gap), gap.shape) if gap.size else ()
        value = lambda x: None if x is None else float(x[at]) if x.size else 0.0
        element = f"[{', '.join(map(str, at))}]" if gap.size > 1 else ""
        numerical, jump = value(shown.numerical) or 0.0, value(shown.slope.jump) or 0.0
        if verdict == "not differentiable" and not all(np.isfinite(y).all() for y in of):
            verdict = "not finite"
        elif verdict == "not differentiable":
            sides = f"{numerical - jump / 2:.6g} on one side and {numerical + jump / 2:.6g} on the other"
            slopes = sides if np.isfinite(numerical) else f"{numerical}"
            self.notes.append(
                f"The function is not differentiable here: differences for the {kind} of {path}{element} give {slopes}."
            )
        elif verdict == "right" and not any(t.says_something for t in tried):
            least = min(float(np.max(t.slack, initial=0.0)) for t in tried)
            self.notes.append(
                f"Differences say little about the {kind} of {path}, since rounding in the function changes them by "
                f"{least:.1e}."
            )
        error = max(float(np.max(t.gap, initial=0.0)) for t in tried)
        with np.errstate(invalid="ignore"):  # infinities
            off = [np.max(np.abs(t.rule - t.replaced), initial=0.0) for t in tried if t.replaced is not None]
        return LeafCheck(
            path, kind, value(shown.rule) or 0.0, numerical, value(shown.replaced), element, error,
            float(max(off)) if off else None, verdict,
        )  # fmt: skip


VERDICTS = ("wrong", "not differentiable", "right")
"""The verdicts on a leaf, in the order in which they are reported."""


def _array(x: Any) -> Any:
    return None if x is None else np.asarray(x, np.float64)


def without_rules(program: Program) -> Program:
    """The program with each function that has a custom rule replaced by what it computes, also in bodies.

    Rules inside such a function stay: they are part of what it computes.
    """
    builder = Builder(program.constvars, program.consts)
    env: dict[Atom, Atom] = {}
    for equation in program.equations:
        ins = [env.get(a, a) for a in equation.invars]
        if of(equation).has_custom_rule:
            outs = builder.inline(equation.params["call_jaxpr"], ins)
            env.update(zip(equation.outvars, outs, strict=True))
            continue
        operation = equation.operation
        if operation.programs:
            operation = replace(operation, params=map_programs(operation.params, without_rules), rules={})
        builder.equations.append(replace(equation, operation=operation, invars=tuple(ins)))
    replaced = builder.program(
        program.invars, [env.get(a, a) for a in program.outvars], program.debug_info, like=program
    )
    return replace(replaced, closed=program.closed)
