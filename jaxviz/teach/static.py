"""Exercises on a page without a kernel, such as a static site: forms that contain all their messages, and check answers
in the browser.

Their contents are encoded, so that no reader, search or screen reader finds an answer early; they are not secret.
`widgets/src/main/exercise.ts` is the script of such a page.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from typing import Any

from jaxviz.report.tables import code_html, preformatted
from jaxviz.teach.exercise import AnswerForm, Exercise, said, text_of
from jaxviz.teach.messages import Sheet

_NO_SCRIPT = "<noscript><p>This page needs JavaScript to check answers.</p></noscript>"


def static_form(exercise: Exercise) -> str:
    """An exercise as HTML that needs no kernel: a form that checks the answer, and shows hints and the answer when
    asked.

    The page must include the script returned by `static_script` once.

    >>> size = teach.predict("How many bytes does it save?", truth=lambda: 12, because="Three numbers of four bytes.")
    >>> page = teach.static_form(size) + f"<script>{teach.static_script()}</script>"

    Everything that the form may have to say is computed now, and is in the page encoded. An exercise whose answer is
    code shows hints and the answer only, since checking it would have to run it.

    Args:
      exercise: made by `teach.saved`, `teach.predict`, `teach.rule` or `teach.autodiff.exercise`.
    """
    sheet: Sheet = {
        "grading": exercise.grading() if exercise.grading is not None else None,
        "blank": exercise.blank().headline,
        "hints": [text_of(hint) for hint in exercise.hints],
        "answer": said(exercise.truth()),
    }
    return (
        f'<form class="jvx" data-sheet="{encoded(json.dumps(sheet))}"><fieldset>'
        f"<legend>{code_html(exercise.question)}</legend>{_fields(exercise.form)}</fieldset>{_NO_SCRIPT}</form>"
    )


def static_fold(summary: str, content: str) -> str:
    """HTML that is encoded in the page and shown when the reader opens it, for example a solution.

    >>> fold = teach.static_fold("A solution", "<pre>lambda x: x**4</pre>")

    The page must include the script returned by `static_script` once.

    Args:
      summary: the text that the reader clicks, with code in backticks.
      content: HTML.
    """
    return f'<details class="jvx" data-content="{encoded(content)}"><summary>{code_html(summary)}</summary></details>'


def static_result(title: str) -> str:
    """HTML for a page with several forms: how many were right at the first try, with a button that copies the result as
    text, without any answer.

    >>> page = f"{teach.static_form(size)}{teach.static_result('An exercise')}<script>{teach.static_script()}</script>"

    The page must include the script returned by `static_script` once.

    Args:
      title: the first line of the text.
    """
    return f'<div class="jvx jvx-result" data-title="{html.escape(title, quote=True)}"></div>'


def static_script() -> str:
    """The script, with its style, that a page with `static_form` or `static_fold` includes once. It fetches nothing.

    >>> page = f"{teach.static_form(size)}<script>{teach.static_script()}</script>"

    Raises:
      FileNotFoundError: in a checkout whose JavaScript has not been built.
    """
    from jaxviz.page.bundle import exercise_script

    return exercise_script()


def encoded(text: str) -> str:
    """The encoding of a text that must not be readable in the page."""
    return base64.b64encode(text.encode()).decode()


def _fields(form: AnswerForm) -> str:
    if form.kind == "line":
        hint = html.escape(form.placeholder, quote=True)
        return (
            '<label>Your answer: <input type="text" autocomplete="off" spellcheck="false" '
            f'placeholder="{hint}"></label>'
        )
    if form.kind == "code":
        headings = "".join(f"<p>{code_html(heading)}</p>" for heading, _ in form.groups)
        code = preformatted(form.code) if form.code else ""
        return f"{headings}{code}{form.link_html}<p>An answer in code is checked in a notebook, where it can run.</p>"
    kind = "radio" if form.kind == "choice" else "checkbox"
    groups = "".join(_group(kind, heading, options) for heading, options in form.groups)
    return f"{preformatted(form.code) if form.code else ''}{groups}{form.link_html}"


def _group(kind: str, heading: str, options: Sequence[tuple[Any, str]]) -> str:
    boxes = "".join(
        f'<label><input type="{kind}" name="answer"> <span>{code_html(label)}</span></label>' for _, label in options
    )
    return f'<div role="group">{f"<p>{code_html(heading)}</p>" if heading else ""}{boxes}</div>'
