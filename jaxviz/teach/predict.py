"""`predict`: a figure or a choice, predicted before it is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxviz.report.sizes import read_size
from jaxviz.teach.exercise import AnswerForm, Exercise, Text, Verdict, said, text_of
from jaxviz.teach.messages import OfChoice, OfNumber, OfWord


def predict(
    question: str,
    choices: Sequence[Any] | None = None,
    *,
    truth: Callable[[], Any],
    because: Text | Mapping[Any, Text] = "",
    tolerance: float = 0.0,
    hints: Sequence[Text] = (),
) -> Exercise:
    """A question whose answer is computed only when the learner answers.

    >>> n = lambda: jaxviz.residuals(f, x).nbytes
    >>> size = teach.predict("How many bytes does the gradient save?", truth=n, tolerance=0.1)
    >>> size.answer("12 KiB")
    Not yet. 12 KiB is too much.

    Args:
      question: the question, with code in backticks.
      choices: the choices, by default those that `because` has texts for; without any the answer is a number, or a
        word.
      truth: computes the answer: one of the choices, a number or a word.
      because: the reason, shown with the right answer; or a text for each choice.
      tolerance: how far a number may be off, relative to the truth.
      hints: hints, in order.
    """
    if choices is None and isinstance(because, Mapping):
        choices = tuple(because)

    def reason(choice: Any) -> str:
        return text_of(because.get(choice, "") if isinstance(because, Mapping) else because)

    def not_yet(headline: str, why: str = "") -> Verdict:
        """A wrong answer with its reason, or with the first hint if the reason would give the right answer away."""
        return Verdict(False, headline, note=why or first_hint())

    def first_hint() -> str:
        return f"A hint: {text_of(hints[0])}" if hints else ""

    def check(answer: Any) -> Verdict:
        true = truth()
        if choices is not None:
            if answer not in choices:
                return Verdict(False, f"{answer!r} is not one of the choices: {', '.join(map(str, choices))}.")
            if answer == true:
                return Verdict(True, str(true), note=reason(true))
            return not_yet(f"It is not `{answer}`.", reason(answer) if isinstance(because, Mapping) else "")
        if isinstance(true, str):
            right = str(answer).strip().casefold() == true.casefold()
            return Verdict(True, true, note=reason(true)) if right else not_yet(f"It is not `{answer}`.")
        try:
            number = _number(answer)
        except (TypeError, ValueError):
            return Verdict(False, f"The answer must be a number; got {answer!r}.")
        if math.isclose(number, true, rel_tol=tolerance, abs_tol=0.0):
            return right_number(number == true)
        times = max(number, true) / min(number, true) if min(number, true) > 0 else 0.0
        far = f", by a factor of {times:.0f}" if times > 2.5 else ""
        return not_yet(f"{answer} is too {'large' if number > true else 'small'}{far}.")

    def right_number(is_exact: bool) -> Verdict:
        true = truth()
        return Verdict(True, f"{_shown(true)}{'' if is_exact else ' to be exact'}.", note=reason(true))

    def grading() -> OfChoice | OfNumber | OfWord:
        true = truth()
        if choices is not None:
            return {"kind": "choice", "verdicts": [said(check(c)) for c in choices]}
        if isinstance(true, str):
            return {"kind": "word", "right": said(check(true)), "note": first_hint()}
        return {
            "kind": "number", "truth": float(true), "tolerance": tolerance,
            "exact": said(right_number(True)), "near": said(right_number(False)), "note": first_hint(),
        }  # fmt: skip

    def solution() -> Verdict:
        true = truth()
        return Verdict(None, f"The answer: {true if isinstance(true, str) else _shown(true)}.", note=reason(true))

    def wrong() -> list[Any]:
        true = truth()
        if choices is not None:
            return [c for c in choices if c != true]
        return [f"not {true}"] if isinstance(true, str) else [true * (1 + 2 * tolerance) + 1, -true - 1]

    options = tuple((c, str(c)) for c in choices or ())
    if options:
        form = AnswerForm("choice", (("", options),))
    else:
        form = AnswerForm("line", placeholder="a number, or a size such as 12 KiB" if tolerance else "your answer")
    return Exercise(question, check, solution, form, hints, wrong, grading)


def _number(answer: Any) -> float:
    if not isinstance(answer, str):
        return float(answer)
    text = answer.replace(",", "").strip()
    return -read_size(text[1:]) if text.startswith("-") else read_size(text)


def _shown(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.6g}"
