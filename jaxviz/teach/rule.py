"""`rule`: an answer in code, and its checks."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path, tree_leaves, tree_map

from jaxviz.arguments import Argnums
from jaxviz.features.residuals.residual_set import residuals
from jaxviz.functions.rule_check import check_rule
from jaxviz.ir.syntax import Program
from jaxviz.ir.trace import trace
from jaxviz.report.tables import counted, format_bytes
from jaxviz.runtime.cache import function_name
from jaxviz.teach.exercise import BLANK, AnswerForm, Exercise, Point, Verdict, raised
from jaxviz.teach.predict import Text


@dataclass(frozen=True)
class Check:
    """One check of the learner's answer.

    >>> teach.Check("is positive at 0", lambda f: "" if f(0.0) > 0 else f"At 0 it returns {f(0.0)}.")

    Args:
      says: what should hold, such as 'gives what jnp.tanh gives'.
      fails: maps an answer to what is wrong with it, in a sentence that names the input; '' if nothing is.
    """

    says: str
    fails: Callable[[Any], str]

    def of(self, rule: Callable[[Any], Any]) -> Check:
        """The same check applied to a function of the answer, such as one that uses it as a policy.

        >>> teach.keeps_at_most(0, x).of(lambda policy: jax.checkpoint(block, policy=policy))
        """
        return Check(self.says, lambda written: self.fails(rule(written)))

    def saying(self, says: str) -> Check:
        """The same check with another description."""
        return Check(says, self.fails)


def rule(
    question: str,
    *checks: Check,
    hints: Sequence[Text] = (),
    example: Callable[..., Any] | str = "",
    wrong: Sequence[Any] = (),
) -> Exercise:
    """An exercise in which the learner writes a custom rule, a linear program, a policy or any other function.

    >>> tanh = teach.rule("Write `tanh` with a rule that saves its result alone.",
    ...                   teach.computes(jnp.tanh, (0.5,), (3.0,)), teach.has_right_rule((0.5,), (3.0,)),
    ...                   teach.keeps_at_most(4, 0.5))
    >>> tanh.answer(my_tanh)
    Not yet. ...

    Args:
      question: the question, with code in backticks.
      *checks: the checks, in order; those after one that fails are skipped.
      hints: hints, in order.
      example: an answer, for `.reveal()`: a function, whose source is shown, or text.
      wrong: wrong answers, for the notebooks' tests.
    """

    def check(answer: Any) -> Verdict:
        if is_blank(answer):
            return Verdict(None, BLANK)
        points = until_wrong(checks, answer)
        is_right = all(p.mark == "right" for p in points)
        return Verdict(is_right, "All checks pass." if is_right else "Fix the failing checks first.", points)

    def solution() -> Verdict:
        notes = tuple(Point("note", c.says) for c in checks)
        shown = example if isinstance(example, str) else textwrap.dedent(inspect.getsource(example))
        return Verdict(None, "An answer does this:", notes, _for_example(shown.strip()) if shown else "")

    return Exercise(question, check, solution, AnswerForm("code"), hints, lambda: wrong)


def tried(checks: Iterable[Check], answer: Any) -> Iterator[Point]:
    """A point for each check of an answer; one that raises an error fails."""
    for c in checks:
        try:
            problem = c.fails(answer)
        except Exception as error:
            problem = raised(error)
        yield Point("wrong" if problem else "right", c.says, problem)


def until_wrong(checks: Iterable[Check], answer: Any) -> tuple[Point, ...]:
    """The points of the checks, up to the first that fails."""
    points: list[Point] = []
    for point in tried(checks, answer):
        points.append(point)
        if point.mark == "wrong":
            break
    return tuple(points)


def _for_example(code: str) -> str:
    return f"For example:\n\n{code}" if "\n" in code else f"For example: `{code}`"


def is_blank(written: Any) -> bool:
    """Whether a function, one of several, or a part of its custom rule still contains the dots of the exercise."""
    if isinstance(written, (list, tuple)):
        return any(map(is_blank, written))
    parts = [getattr(written, name, None) for name in ("fun", "jvp", "fwd", "bwd")]
    return any(_has_dots(part) for part in (written, *parts) if inspect.isfunction(part))


def _has_dots(function: Any) -> bool:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return False
    indices = {id(n) for s in ast.walk(tree) if isinstance(s, ast.Subscript) for n in ast.walk(s.slice)}
    dots = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value is ... and id(n) not in indices)
    return any(dots)


def computes(reference: Callable[..., Any], *points: tuple[Any, ...], tol: float = 1e-5) -> Check:
    """Checks that the answer returns the same as a reference.

    >>> teach.rule("Write `square`.", teach.computes(jnp.square, (3.0,), (jnp.arange(3.0),)))

    Args:
      reference: a function.
      *points: the inputs, each a tuple of arguments.
      tol: the largest allowed difference, relative to the largest number of the result.
    """
    return _gives(
        f"returns the same as {function_name(reference)}", function_name(reference), reference, lambda f: f, points, tol
    )


def gradient_of(reference: Callable[..., Any], *points: tuple[Any, ...], tol: float = 1e-4) -> Check:
    """Checks that the answer has the same gradient, by JAX, as a reference; for several results, of their sum.

    >>> teach.rule("Write `square`.", teach.gradient_of(jnp.square, (3.0,), (-1.0,)))

    Args:
      reference: a function.
      *points: the inputs, each a tuple of arguments; all of them are differentiated.
      tol: as for `computes`.
    """

    def gradient(f: Callable[..., Any]) -> Callable[..., Any]:
        def pulled_back(*args: Any) -> Any:
            out, pull_back = jax.vjp(f, *args)
            return pull_back(tree_map(jnp.ones_like, out))

        return pulled_back

    name = f"the gradient of {function_name(reference)}"
    return _gives(f"has {name}", name, gradient(reference), gradient, points, tol)


def _gives(
    says: str, name: str, reference: Callable[..., Any], rule: Callable[[Any], Any], points: Sequence[Any], tol: float
) -> Check:
    def fails(written: Any) -> str:
        for args in points:
            problem = difference(rule(written)(*args), reference(*args), tol, name)
            if problem:
                return f"At {shown_inputs(args)} {problem}"
        return ""

    return Check(says, fails)


def has_right_rule(*points: tuple[Any, ...], twice: bool = False) -> Check:
    """Checks that the answer's custom rule agrees with numerical differences; see `jaxviz.check_rule`.

    >>> teach.rule("Give `tanh` a custom rule.", teach.has_right_rule((0.5,), (3.0,), twice=True))

    Args:
      *points: the inputs, each a tuple of arguments.
      twice: whether it must also have second derivatives in all modes.
    """

    def fails(written: Any) -> str:
        for args in points:
            report = check_rule(written, *args)
            if not report:
                return f"At {shown_inputs(args)} the {report.summary}"
            if twice and report.no_second:
                return f"At {shown_inputs(args)}: {report.no_second}"
        return ""

    return Check(f"its rule agrees with numerical differences{', and so does its second derivative' * twice}", fails)


def is_linear(*points: tuple[Any, ...]) -> Check:
    """Checks that the answer is linear in all of its arguments together.

    >>> teach.rule("Write the derivative of `sin` at 1 as a linear function.", teach.is_linear((jnp.ones(3),)))
    """

    def fails(written: Any) -> str:
        for args in points:
            rng = np.random.default_rng(0)
            u, v = (
                tree_map(lambda x: jnp.asarray(rng.normal(size=np.shape(x)), jnp.result_type(x)), args)
                for _ in range(2)
            )
            together = written(*tree_map(lambda a, b: 2 * a - 3 * b, u, v))
            apart = tree_map(lambda a, b: 2 * a - 3 * b, written(*u), written(*v))
            problem = difference(together, apart, 1e-4, "2 f(u) - 3 f(v)")
            if problem:
                return f"At 2u - 3v, with random u and v like {shown_inputs(args)}, {problem}"
        return ""

    return Check("is linear", fails)


def keeps_at_most(nbytes: int, *args: Any, argnums: Argnums = 0) -> Check:
    """Checks that the gradient of the answer saves at most some bytes, besides arguments.

    >>> teach.rule("Write `tanh` with a rule that saves one number.", teach.keeps_at_most(4, 0.5))

    Args:
      nbytes: the limit in bytes.
      *args: the arguments of the call.
      argnums: the arguments to differentiate.
    """

    def fails(written: Any) -> str:
        saved = residuals(written, *args, argnums=argnums)
        n = saved.saved.nbytes
        largest = max(saved, key=lambda r: r.nbytes * (r.kind != "argument"), default=None)
        if n <= nbytes or largest is None:
            return ""
        return f"It saves {format_bytes(n)}; the largest value is {format_bytes(largest.nbytes)}: {largest.reason}"

    return Check(f"its gradient saves at most {format_bytes(nbytes)} besides its arguments", fails)


def traces_to(holds: Callable[[Program], bool], says: str, *args: Any) -> Check:
    """Checks that the answer traces to a program with a property.

    >>> teach.traces_to(lambda program: len(program.equations) == 1, "is one equation", 0.5)

    Args:
      holds: whether a program has the property.
      says: a description of the property, such as 'has no exp'.
      *args: the arguments to trace it with.
    """

    def fails(written: Any) -> str:
        program = trace(written)(*args)
        return "" if holds(program) else f"It traces to {' '.join(str(program).split())}"

    return Check(says, fails)


def shown_inputs(args: Iterable[Any]) -> str:
    return ", ".join(_short(x) for x in args)


def _short(x: Any) -> str:
    leaves = tree_leaves(x)
    if len(leaves) == 1 and np.size(leaves[0]) <= 4:
        return np.array2string(np.asarray(leaves[0]), precision=4, separator=", ")
    types = [str(jax.typeof(leaf).str_short(short_dtypes=True)) for leaf in leaves]
    return f"{', '.join(types[:4])}{', …' if len(types) > 4 else ''}"


def difference(ours: Any, theirs: Any, tol: float, name: str) -> str:
    """A sentence on where two results differ most, with the name of the second; '' if they are equal."""
    leaves, expected = tree_flatten_with_path(ours)[0], tree_flatten_with_path(theirs)[0]
    if [p for p, _ in leaves] != [p for p, _ in expected]:
        if ours is None:
            return "it returns None. Is a `return` missing?"
        return (
            f"it returns {counted(len(leaves), 'array')} in {jax.tree.structure(ours)}, but {name} returns "
            f"{jax.tree.structure(theirs)}."
        )
    for (path, a), (_, b) in zip(leaves, expected, strict=True):
        at = f" in {keystr(path)}" if path else ""
        if np.shape(a) != np.shape(b):
            return f"it returns the shape {np.shape(a)}{at}, but {name} returns the shape {np.shape(b)}."
        kind = np.complex128 if np.iscomplexobj(a) or np.iscomplexobj(b) else np.float64
        x, y = np.asarray(a, kind), np.asarray(b, kind)
        off = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
        off = np.where(np.isnan(off), np.inf, off)
        scale = np.max(np.abs(y[np.isfinite(y)]), initial=1e-30)
        if off.size and off.max() > tol * scale:
            worst = np.unravel_index(int(off.argmax()), off.shape)
            element = f" at index [{', '.join(map(str, worst))}]" if worst else ""
            return f"it returns {x[worst]:.6g}{at}{element}, but {name} returns {y[worst]:.6g}."
    return ""
