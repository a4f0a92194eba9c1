"""`Exercise` and `Verdict`: a question, and the verdict on an answer, for all kinds of exercises."""

from __future__ import annotations

import contextlib
import html
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from typing import Literal as OneOf

from jaxviz.displays import display
from jaxviz.ir.errors import message_of
from jaxviz.report.data import Data
from jaxviz.report.tables import code_html, preformatted, printable, wrapped
from jaxviz.teach import sessions
from jaxviz.teach.messages import OfChoice, OfMarks, OfNumber, OfWord, Said

Text = str | Callable[[], str]
"""A sentence, or a function that computes it."""

BLANK = "Replace the dots with your answer, and run the cell again."
_MISSING = {
    "marks": "Nothing is selected. If that is your answer, click Check again.",
    "choice": "Select an answer first.",
    "line": "Write your answer first.",
    "code": BLANK,
}

Mark = OneOf["right", "wrong", "missed", "note"]

_SIGNS: dict[Mark, str] = {"right": "✓", "wrong": "✗", "missed": "✗", "note": "·"}
_COLOURS: dict[Mark, str] = {
    "right": "var(--jp-success-color1, #388e3c)",
    "wrong": "var(--jp-error-color1, #d32f2f)",
    "missed": "var(--jp-error-color1, #d32f2f)",
    "note": "inherit",
}


@dataclass(frozen=True, slots=True)
class Point:
    """One part of an answer.

    >>> [(p.mark, p.what, p.why) for p in kept.answer(["x"]).points]

    Args:
      mark: 'right', 'wrong', 'missed' or 'note'.
      what: the part, such as a value.
      why: the reason, in a sentence.
    """

    mark: Mark
    what: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Verdict(Data):
    """The result of an answer. It is true if the answer is right.

    >>> verdict = kept.answer(["x", "tanh"])  # kept is an exercise
    >>> verdict.is_right, verdict.headline, verdict.points

    Args:
      is_right: None if there is no answer yet.
      headline: a sentence.
      points: the parts of the answer, each with its reason.
      note: an additional remark.
      is_folded: whether a notebook shows it collapsed.
    """

    is_right: bool | None
    headline: str
    points: tuple[Point, ...] = ()
    note: str = ""
    is_folded: bool = False

    def __bool__(self) -> bool:
        return self.is_right is True

    @property
    def reason(self) -> str:
        """What is wrong with an answer in code: why the first check failed; else the headline."""
        return next((p.why for p in self.points if p.mark == "wrong" and p.why), self.headline)

    def __str__(self) -> str:
        lines = [wrapped(f"{_start(self.is_right)}{self.headline}")]
        for p in self.points:
            lines.append(wrapped(f"{_SIGNS[p.mark]} {p.mark}: {p.what}" if p.mark != "note" else f"· {p.what}", "  "))
            lines += [wrapped(p.why, "      ")] if p.why else []
        note = self.note if "\n" in self.note else wrapped(self.note)  # multiple lines are code
        return "\n".join([*lines, *([note] if note else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        shown = self._unfolded_html()
        return f"<details><summary>Result of the solution</summary>{shown}</details>" if self.is_folded else shown

    def _unfolded_html(self) -> str:
        mark: Mark = "note" if self.is_right is None else "right" if self.is_right else "wrong"
        rows = "".join(
            f'<tr><td style="text-align:left;white-space:nowrap;vertical-align:top;color:{_COLOURS[p.mark]}">'
            f"{_SIGNS[p.mark]} {p.mark if p.mark != 'note' else ''}</td>"
            f'<td style="text-align:left;vertical-align:top">{code_html(p.what)}</td>'
            f'<td style="text-align:left;vertical-align:top">{code_html(p.why)}</td></tr>'
            for p in self.points
        )
        # Multiple lines are code.
        note = (
            preformatted(self.note) if "\n" in self.note else f"<div>{code_html(self.note)}</div>" if self.note else ""
        )
        return (
            f'<div style="border-left:4px solid {_COLOURS[mark]};padding:2px 0 2px 10px;margin:4px 0;line-height:1.45">'
            f'<b style="color:{_COLOURS[mark]}">{html.escape(_start(self.is_right))}</b>{code_html(self.headline)}'
            f"{f'<table>{rows}</table>' if rows else ''}{note}</div>"
        )

    _data = ("is_right", "headline", "points", "note")


def said(verdict: Verdict) -> Said:
    """The form of a verdict for a page without a kernel."""
    points = [{"mark": p.mark, "what": printable(p.what), "why": printable(p.why)} for p in verdict.points]
    return {
        "isRight": verdict.is_right,
        "headline": verdict.headline,
        "points": points,  # type: ignore[typeddict-item]
        "note": verdict.note,
    }


def _defined() -> dict[str, Any]:
    """What the notebook has defined, but for exercises: one whose cell is run again would keep the one before."""
    return {name: value for name, value in vars(sys.modules["__main__"]).items() if not isinstance(value, Exercise)}


def text_of(text: Text) -> str:
    return text if isinstance(text, str) else text()


def raised(error: Exception) -> str:
    """What is wrong with an answer that raises an error."""
    first, *_ = message_of(error).splitlines() or [""]
    return f"It raises {type(error).__name__}: {first}"


def anchor(label: str, target: str) -> str:
    """A link to a notebook beside this one, which opens in a tab of its own."""
    return f'<a href="{html.escape(target, quote=True)}" target="_blank">{html.escape(label)}</a>'


def _start(is_right: bool | None) -> str:
    return "" if is_right is None else "Right. " if is_right else "Not yet. "


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How the user answers in a notebook.

    Args:
      kind: 'marks' for boxes to tick, 'choice' for one of several, 'line' for a number or a word, 'code' for code in a
        cell.
      groups: the options: headings, each with its options as pairs of a key and a label; for code, only headings.
      placeholder: the placeholder of the input.
      code: the code that the question is about.
      link: the title and the file of a notebook that teaches what is needed; empty if there is none.
    """

    kind: OneOf["marks", "choice", "line", "code"]
    groups: tuple[tuple[str, tuple[tuple[Any, str], ...]], ...] = ()
    placeholder: str = ""
    code: str = ""
    link: tuple[str, str] | tuple[()] = ()

    @property
    def link_html(self) -> str:
        return f"<p>What is needed: {anchor(*self.link)}</p>" if self.link else ""


@dataclass(eq=False)
class Exercise:
    """A question that checks its answers. Made by `teach.saved`, `teach.predict` and `teach.rule`.

    >>> kept = teach.saved(loss, params, x)
    >>> kept  # in a notebook: a form
    >>> kept.answer(["x", "tanh"])
    Not yet. ...

    Args:
      question: a sentence or two, with code in backticks.
      check: maps an answer to its verdict.
      truth: the right answer, with its reason; computed on request.
      form: how an answer is given in a notebook.
      hints: hints, each more helpful than the last; they may be computed on request.
      grading: computes what a page without a kernel needs to check answers itself; None if that requires running them.
      wrong: wrong answers, for the notebooks' tests; learners do not see them.
      store: stores a right answer, and returns a note on that; None if it is not stored.
      names: what the notebook had defined when the exercise was created, but for its exercises.
    """

    question: str
    check: Callable[[Any], Verdict]
    truth: Callable[[], Verdict]
    form: AnswerForm
    hints: Sequence[Text] = ()
    wrong: Callable[[], Iterable[Any]] = tuple
    grading: Callable[[], OfChoice | OfNumber | OfWord | OfMarks] | None = None
    store: Callable[[Any], str] | None = None
    names: dict[str, Any] = field(default_factory=_defined, init=False)
    _n_hints: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        sessions.enter(self)

    @contextlib.contextmanager
    def as_created(self) -> Iterator[dict[str, Any]]:
        """Temporarily sets the names of the notebook back to what they were when the exercise was created, for an
        answer of another session and for what checks it, and yields them. What was not defined yet stays."""
        names = vars(sys.modules["__main__"])
        now = dict(names)
        names.update(self.names)
        try:
            yield names
        finally:
            for name in names.keys() - now.keys():
                del names[name]
            names.update(now)

    def answer(self, given: Any = ...) -> Verdict:
        """The verdict on an answer.

        Args:
          given: the answer; `...` for none yet.
        """
        if given is ... or (isinstance(given, (list, tuple)) and any(x is ... for x in given)):
            return Verdict(None, BLANK)
        verdict = self.check(given)
        sessions.note_answer(self, given, verdict, sys._getframe(1))
        return replace(verdict, note=self.store(given)) if verdict and self.store is not None else verdict

    def blank(self) -> Verdict:
        """The text of the form for a missing answer."""
        return Verdict(None, _MISSING[self.form.kind])

    def solution(self, given: Any) -> Verdict:
        """The verdict on the notebook's own answer, shown collapsed, so that running all cells does not reveal it."""
        return replace(self.check(given), is_folded=True)

    def hint(self) -> Verdict:
        """The next hint."""
        if self._n_hints >= len(self.hints):
            return Verdict(None, "There are no more hints; `.reveal()` shows the answer.")
        sessions.note_hint(self)
        hint = text_of(self.hints[self._n_hints])
        self._n_hints += 1
        return Verdict(None, f"Hint {self._n_hints} of {len(self.hints)}: {hint}")

    def reveal(self) -> Verdict:
        """The answer, with its reason."""
        sessions.note_reveal(self)
        return self.truth()

    def __str__(self) -> str:
        lines = [wrapped(self.question)]
        for heading, options in self.form.groups:
            lines += [wrapped(heading)] if heading else []
            lines += [f"  [ ] {printable(label)}" for _, label in options]
        lines += [self.form.code] if self.form.code else []
        return "\n".join([*lines, *([f"What is needed: {self.form.link[0]}"] if self.form.link else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The question and its options, for a page without a kernel."""
        parts = [f"<p><b>{code_html(self.question)}</b></p>"]
        for heading, options in self.form.groups:
            items = "".join(f"<li>{code_html(label)}</li>" for _, label in options)
            parts.append(
                f"{f'<div>{code_html(heading)}</div>' if heading else ''}{f'<ul>{items}</ul>' if items else ''}"
            )
        return "".join([*parts, *([preformatted(self.form.code)] if self.form.code else []), self.form.link_html])

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        shown = display("form of an exercise")(self)._repr_mimebundle_(**kwargs)
        data = shown[0] if isinstance(shown, tuple) else shown
        data.update({"text/plain": str(self), "text/html": self._repr_html_()})
        return shown
