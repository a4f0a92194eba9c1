"""`rule`: an answer in code, and its checks. Those that run JAX are in `checks.py`."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxviz.teach.exercise import BLANK, AnswerForm, Exercise, Point, Text, Verdict, raised


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
    indices = {id(n) for index in _indices(tree) for n in ast.walk(index)}
    dots = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and n.value is ... and id(n) not in indices)
    return any(dots)


def _indices(tree: ast.AST) -> Iterator[ast.expr]:
    """What stands in brackets, and the index of `jax.ref.addupdate(r, ..., x)` and its like."""
    for n in ast.walk(tree):
        if isinstance(n, ast.Subscript):
            yield n.slice
        elif isinstance(n, ast.Call) and ast.unparse(n.func).rpartition(".")[2] in ("addupdate", "swap"):
            yield from n.args[1:2]
