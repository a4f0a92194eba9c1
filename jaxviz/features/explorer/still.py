"""The overview for places without widgets, such as GitHub, email or paper: a picture, and a table of the largest saved
values."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

from jaxviz.features.explorer.text import summary
from jaxviz.page.schema import View
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
    """The largest saved values, or a summary for a function that saves none.

    Args:
      view: a complete view.
      note: a sentence below the table.
    """
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
