"""The form of an exercise in a notebook: boxes, a line or a choice; buttons; and below them the verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from jaxviz.report.tables import code_html, preformatted


def exercise_form(exercise: Any) -> widgets.VBox:
    """A form for an exercise: it passes the input to `exercise.answer`, and shows the verdict below.

    Tab reaches every control; Space ticks and presses, and Enter checks a line.

    Args:
      exercise: a `teach.Exercise`.
    """
    fields, read, at_enter = _FIELDS[exercise.form.kind](exercise.form)
    said = widgets.HTML(layout=_fit())

    def say(act: Callable[[], Any]) -> None:
        said.value = act()._repr_html_()

    is_warned = False

    def check() -> Any:
        nonlocal is_warned
        answer = read()
        # An empty selection may be an answer or an accidental key press: the first time it does not count as an answer.
        is_missing = answer is ... or (answer == [] and not is_warned)
        is_warned = answer == []
        return exercise.blank() if is_missing else exercise.answer(answer)

    acts = {"Check": check, "Hint": exercise.hint, "Reveal": exercise.reveal}
    if exercise.form.kind == "code":
        del acts["Check"]
    if not exercise.hints:
        del acts["Hint"]
    buttons = []
    for name, act in acts.items():
        style = "primary" if name == "Check" else ""
        button = widgets.Button(description=name, button_style=style, layout=widgets.Layout(width="auto"))
        button.on_click(lambda _, act=act: say(act))
        buttons.append(button)
    if at_enter is not None:
        at_enter.observe(lambda _: say(check), "value")
    question = widgets.HTML(f"<b>{code_html(exercise.question)}</b>", layout=_fit())
    return widgets.VBox([question, *fields, widgets.HBox(buttons), said], layout=widgets.Layout(padding="4px 0"))


def _fit(margin: str = "") -> widgets.Layout:
    return widgets.Layout(width="auto", max_width="100%", margin=margin or None)


_Fields = tuple[list[widgets.Widget], Callable[[], Any], widgets.Widget | None]
"""The controls, the function that returns the answer, and the line that Enter checks."""


def _marks(form: Any) -> _Fields:
    boxes, fields = [], []
    for heading, options in form.groups:
        fields.append(widgets.HTML(code_html(heading), layout=_fit()))
        for key, label in options:
            box = widgets.Checkbox(
                description=code_html(label), description_allow_html=True, indent=False, layout=_fit("0 2px 0 16px")
            )
            boxes.append((key, box))
            fields.append(box)
    return fields, lambda: [key for key, box in boxes if box.value], None


def _choice(form: Any) -> _Fields:
    options = [(str(label), key) for _, of_group in form.groups for key, label in of_group]
    choice = widgets.RadioButtons(options=options, value=None, layout=_fit())
    above = [widgets.HTML(preformatted(form.code), layout=_fit())] if form.code else []
    below = [widgets.HTML(form.link_html, layout=_fit())] if form.link else []
    return [*above, choice, *below], lambda: ... if choice.index is None else choice.value, None


def _line(form: Any) -> _Fields:
    # Its value is sent on Enter and on blur, not with each letter.
    line = widgets.Text(placeholder=form.placeholder, continuous_update=False, layout=widgets.Layout(width="24em"))
    return [line], lambda: line.value.strip() or ..., line


def _code(form: Any) -> _Fields:
    texts = [code_html(heading) for heading, _ in form.groups] + ([preformatted(form.code)] if form.code else [])
    texts += [form.link_html] if form.link else []
    return [widgets.HTML(text, layout=_fit()) for text in texts], lambda: ..., None


_FIELDS: dict[str, Callable[[Any], _Fields]] = {
    "marks": _marks,
    "choice": _choice,
    "line": _line,
    "code": _code,
}
