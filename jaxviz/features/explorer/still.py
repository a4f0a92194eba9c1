"""A view for places without widgets, such as GitHub, email, paper or a terminal: a picture, a table of the largest
saved values, and text."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

from jaxviz.page.schema import Stage, View
from jaxviz.page.texts import first_line
from jaxviz.report.needs import needs
from jaxviz.report.tables import code_html, counted, format_bytes, wrapped

Output = tuple[dict[str, Any], dict[str, Any]]
"""An output of a cell: its data by MIME type, and its metadata."""

MARK = "jaxviz-still"
"""The class by which the widget's stylesheet (`widgets/src/styles/frame.css`) finds the table, and the picture before
it, to hide both."""

_ROWS = 10


def still_outputs(view: View) -> Iterator[Output]:
    """The additional outputs of a cell with an explorer: the picture, if there is something to draw, and then always
    the table.

    They have no scripts, no styles, and no images or drawings within HTML, because JupyterLab and GitHub remove these
    from untrusted outputs.

    Args:
      view: a complete view.
    """
    note = ""
    if len(view.columns["scope_parent"]):
        try:
            with needs("The picture", "matplotlib", "pillow"):
                from jaxviz.features.explorer.picture import WIDTH, overview_png

            alt = ". ".join(headline(view)).replace("`", "")
            yield {"image/png": overview_png(view), "text/plain": alt}, {"image/png": {"width": WIDTH, "alt": alt}}
        except Exception as error:  # users with the widget do not see this output, and should not see its error
            note = f"There is no picture: {first_line(error)}"
    yield {"text/html": table_html(view, note), "text/plain": table_text(view)}, {}


def headline(view: View) -> list[str]:
    """The title, what the gradient saves, the largest part of it, and the peak."""
    said = view.headline
    return [view.title[:1].upper() + view.title[1:], *filter(None, (said.keeps, said.largest, said.peak))]


def table_html(view: View, note: str = "") -> str:
    """The largest saved values, or a summary for a function that saves none; and a sentence below."""
    rows, rest = _rows(view)
    if rows:
        above = f"<p>{code_html(headline(view)[0])}: the largest values saved for the backward pass</p>"
        # JupyterLab aligns cells to the right, but not a div in them.
        cell = lambda text, tag: f'<{tag}><div align="left">{code_html(text)}</div></{tag}>'
        head, *body = (
            "".join(cell(text, tag) for text in row) for row, tag in [(_HEADS, "th"), *((r, "td") for r in rows)]
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{r}</tr>' for r in body)}</tbody></table>"
    else:
        above, table = "", f"<pre>{html.escape(summary(view))}</pre>"
    below = "".join(f"<p>{code_html(text)}</p>" for text in (rest, note) if text)
    return f'<div class="{MARK}">{above}{table}{below}</div>'


def table_text(view: View) -> str:
    """The same as text, for PDF files made with LaTeX: a list, since lines have to be short."""
    rows, rest = _rows(view)
    if not rows:
        return summary(view)
    plain = lambda text: text.replace("`", "")
    indent = " " * 11
    lines = [wrapped(plain(f"{headline(view)[0]}: the largest values saved for the backward pass"), width=_LINE), ""]
    for saved, size, line, why in rows:
        lines.append(f"{size:>9}  " + wrapped(plain(saved), indent, _LINE).lstrip())
        lines.append(wrapped(plain(": ".join(filter(None, (line, why)))), indent, _LINE))
    return "\n".join([*lines, *(["", rest] if rest else [])]).replace("\u00a0", " ")


_HEADS = ("saved", "bytes", "line", "why")

_LINE = 76
"""The length of a line of text; LaTeX breaks longer ones."""


def _rows(view: View) -> tuple[list[tuple[str, str, str, str]], str]:
    """A row for each of the largest saved expressions, and one for the rest."""
    columns, strings = view.columns, view.strings
    sizes = columns["kept_nbytes"].tolist()
    rows = [
        (
            f"`{strings[columns['kept_label'][i]]}`",
            format_bytes(int(sizes[i])).replace(" ", "\u00a0"),
            place(view, int(columns["kept_location"][i])),
            strings[columns["kept_reason"][i]],
        )
        for i in range(min(_ROWS, len(sizes)))
    ]
    left = sizes[_ROWS:]
    rest = f"and {counted(len(left), 'other expression')}, {format_bytes(int(sum(left)))}" if left else ""
    return rows, rest


def place(view: View, location: int) -> str:
    """`model.py:12`; '' without a location."""
    if location < 0:
        return ""
    columns = view.columns
    return f"{view.files[int(columns['location_file'][location])].label}:{int(columns['location_line'][location])}"


# --- text -------------------------------------------------------------------------------------------------------------


def summary(view: View) -> str:
    """The contents of an explorer, in a few lines.

    >>> print(summary(view))
    Explorer of the gradient of `loss` in `params`
      f          26 equations
      ...
    """
    width = max((len(stage.label) for stage in view.stages), default=0)
    lines = [f"Explorer of the {view.title}{f' on {view.placement}' if view.placement else ''}"]
    for stage in view.stages:
        n = stage.equations[1] - stage.equations[0]
        what = stage.error or f"{n:,} equation{'s' if n != 1 else ''}"
        lines.append(f"  {stage.label:<{width}}  {what}")
    if view.headline.saves:
        lines.append(f"  {view.headline.saves}")
    if view.check is not None:
        lines.append(f"  {view.check.summary}")
    return "\n".join([*lines, *(f"  {note}" for note in view.notes)])


def stage_text(view: View, key: str) -> str:
    """One stage's program, an equation per line, with the names that the explorer shows."""
    stage = view.stage(key)
    return stage.error or "\n".join(_lines(view, stage))


def _lines(view: View, stage: Stage) -> Iterator[str]:
    if stage.programs[0] < stage.programs[1]:
        reader = _Reader(view)
        rows = range(*stage.equations)
        rows_of: dict[int, list[int]] = {}
        for row in rows:
            rows_of.setdefault(int(view.columns["equation_program"][row]), []).append(row)
        yield from reader.program(stage.programs[0], rows_of, 0)


class _Reader:
    def __init__(self, view: View):
        self.view = view
        self.nested: dict[int, list[int]] = {}
        for program, owner in enumerate(view.columns["program_owner"].tolist()):
            self.nested.setdefault(owner, []).append(program)

    def text(self, column: str, i: int) -> str:
        return self.view.strings[int(self.view.columns[column][i])]

    def items(self, offsets: str, values: str, i: int) -> list[int]:
        starts = self.view.columns[offsets]
        items: list[int] = self.view.columns[values][int(starts[i]) : int(starts[i + 1])].tolist()
        return items

    def typed(self, atom: int) -> str:
        kind, i = ("variable", atom) if atom >= 0 else ("literal", ~atom)
        return f"{self.atom(atom)}:{self.text('type_text', int(self.view.columns[f'{kind}_type'][i]))}"

    def atom(self, atom: int) -> str:
        return self.text("variable_name", atom) if atom >= 0 else self.text("literal_text", ~atom)

    def program(self, program: int, rows_of: dict[int, list[int]], depth: int) -> Iterator[str]:
        pad = "  " * depth
        binders = "".join(f" {self.typed(v)}" for v in self.items("program_binders", "binder_vars", program))
        yield f"{pad}lambda{binders} ."
        for row in rows_of.get(program, []):
            yield f"{pad}  {self.equation(row)}"
            for inner in self.nested.get(row, []):
                yield from self.program(inner, rows_of, depth + 2)
        results = ", ".join(self.atom(a) for a in self.items("program_results", "result_atoms", program))
        yield f"{pad}in ({results})"

    def equation(self, row: int) -> str:
        outputs = " ".join(self.typed(v) for v in self.items("equation_outputs", "output_vars", row))
        params = self.text("equation_params", row).replace("\n", " ")
        inputs = self.items("equation_inputs", "input_atoms", row)
        operands = "".join(f" {self.atom(a) if a >= 0 else self.typed(a)}" for a in inputs)
        head = self.text("equation_primitive", row) + (f"[{params}]" if params else "")
        return f"{outputs} = {head}{operands}" if outputs else f"{head}{operands}"
