"""Text and HTML tables, and readable sizes, for all reports."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from jaxviz.report.places import href, linked, noted, source_line

if TYPE_CHECKING:
    from jaxviz.ir.origin import Location

T = TypeVar("T")


def format_bytes(n: int) -> str:
    """`1.5 KiB`, `12 B`.

    >>> format_bytes(1536)
    '1.5 KiB'
    """
    size = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def format_seconds(seconds: float) -> str:
    """`1.24 s`, `3.1 ms`, `85 µs`."""
    if seconds >= 1:
        return f"{seconds:,.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} µs"


def format_count(n: float) -> str:
    """`12`, `1.2 k`, `3.4 M`."""
    for unit in ("", " k", " M", " G", " T"):
        if n < 1000:
            return f"{n:.0f}" if not unit else f"{n:.1f}{unit}"
        n /= 1000
    return f"{n:,.1f} P"


def format_flops(n: int) -> str:
    """`1.2 MFLOP`, `12 FLOP`."""
    number, _, unit = format_count(n).partition(" ")
    return f"{number} {unit}FLOP"


_UNFIT = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    r"\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f]"
)
"""Characters that are invisible and change how others are displayed: controls, formats, surrogates."""


def printable(text: str, limit: int = 0) -> str:
    """A text from a program on one line, with control and bidirectional characters escaped.

    >>> printable("a\\u202eb\\x1b[0m")
    'a<U+202E>b<U+001B>[0m'

    Args:
      text: a name, a number, a line of source.
      limit: the largest length; longer texts are cut and end in an ellipsis. 0 for no limit.
    """
    shown = _UNFIT.sub(_spelt_out, text[: limit + 1] if limit else text)
    return shortened(shown, limit) if limit else shown


def _spelt_out(match: re.Match[str]) -> str:
    return " " if match[0] in "\t\n\r" else f"<U+{ord(match[0]):04X}>"


def shortened(text: str, room: int, from_left: bool = False) -> str:
    """A text in this many characters, with an ellipsis for what is cut off at its end, or at its start."""
    if len(text) <= room:
        return text
    return "…" + text[len(text) - room + 1 :] if from_left else text[: room - 1] + "…"


PAGE: ContextVar[int] = ContextVar("jaxviz_page", default=100)
"""The width of tables and paragraphs in columns."""

_CELL = 160
"""The longest text of a cell that is not wrapped."""


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]], align: str, width: int | None = None) -> str:
    """A table for a terminal.

    Args:
      heads: the headings of the columns.
      rows: their cells.
      align: '<' or '>' for each column.
      width: the largest width of the table, in which the last column is wrapped. `PAGE` by default.
    """
    width = PAGE.get() if width is None else width
    rows = [[*(printable(c, _CELL) for c in row[:-1]), *(printable(c) for c in row[-1:])] for row in rows]
    columns = list(zip(heads, *rows, strict=True)) if rows else [(h,) for h in heads]
    widths = [max(map(len, c)) for c in columns]
    widths[-1] = min(widths[-1], max(20, width - sum(widths[:-1]) - 2 * (len(widths) - 1)))
    lines = []
    for row in (heads, ["-" * w for w in widths], *rows):
        wrapped = _wrap(row[-1], widths[-1])
        cells = [f"{c:{a}{w}}" for c, a, w in zip(row[:-1], align, widths, strict=False)]
        lines.append("  ".join([*cells, wrapped[0]]).rstrip())
        indent = " " * (sum(widths[:-1]) + 2 * (len(widths) - 1))
        lines += [indent + rest for rest in wrapped[1:]]
    return "\n".join(lines)


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(1, width)) or [""]


_SHORT = 20
_WHOLE = ";white-space:nowrap"
"""Numbers, types and the like are not wrapped."""


def html_table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    """A table for a notebook; every cell is escaped, and what stands between backticks is code."""

    def row(cells: Sequence[str], tag: str) -> str:
        def html(cell: str, is_number: bool) -> str:
            style = f"text-align:{'right' if is_number else 'left'}{_WHOLE if is_number or len(cell) <= _SHORT else ''}"
            return f'<{tag} style="{style}">{code_html(cell)}</{tag}>'

        return f"<tr>{''.join(map(html, cells, numeric))}</tr>"

    body = "".join(row(r, "td") for r in rows)
    above = f"<p>{code_html(caption)}</p>" if caption else ""  # a table caption would wrap at the table's width
    return f"{above}<table><thead>{row(heads, 'th')}</thead><tbody>{body}</tbody></table>"


def folded(summary: str, content: str) -> str:
    """HTML that expands on a click, and scrolls within its own box."""
    box = f'<div style="max-height:28em;overflow:auto">{content}</div>'
    return f'<details><summary style="cursor:pointer">{code_html(summary)}</summary>{box}</details>'


def code_html(text: str) -> str:
    """A sentence for a notebook: escaped, with what stands between backticks as code, and the places that were noted as
    links.

    >>> code_html("`x < y` is bool")
    '<code>x &lt; y</code> is bool'
    """
    parts = linked(html.escape(printable(text)), _anchor, html.escape).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _anchor(location: Location, text: str) -> str:
    target = href(location)
    return f'<a href="{html.escape(target)}">{text}</a>' if target else text


def listed(texts: Iterable[str], most: int = 3) -> str:
    """`a, b, c and 2 more`, without duplicates; one more than that is listed as well."""
    different = list(dict.fromkeys(texts))
    if len(different) <= most + 1:
        return ", ".join(different)
    return f"{', '.join(different[:most])} and {len(different) - most:,} more"


def together(texts: Iterable[str]) -> str:
    """`a, b and c`."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def exactly(n: int) -> str:
    """`1.5 KiB (1,536 B)`: bytes as text, with their exact number if that is not in it."""
    return format_bytes(n) if n < 1024 else f"{format_bytes(n)} ({n:,} B)"


def counted(n: int, what: str) -> str:
    """`1 value`, `1,200 values`."""
    return f"{n:,} {what}{'s' * (n != 1)}"


def percent(share: float) -> str:
    """`33 %`, `1.3 %`, `120 %`, `less than 0.01 %`: a share in percent, which may be more than the whole."""
    if 0 < share < 0.01:
        return "less than 0.01 %"
    return f"{share:.2g} %" if share < 99.5 else f"{share:,.0f} %"


def repeated(n: int, what: str) -> str:
    """`12 × f32[3]`, and `f32[3]` for one."""
    return f"{n:,} × {what}" if n > 1 else what


def in_library(what: str, library: str) -> str:
    """`x (in flax Dense.__call__, linear.py:287)`: with where in a library it is made, if it is in one."""
    return f"{what} (in {library})" if library else what


def more_rows(n: int, n_values: int, what: str, amount: str) -> str:
    """`and 3 more rows of 12 residuals, 1.5 KiB`: the rows that a table leaves out."""
    return f"and {counted(n, 'more row')} of {counted(n_values, what)}, {amount}"


def more_of(
    rows: Sequence[T], count: Callable[[T], int], what: str, amount: Callable[[Sequence[T]], str]
) -> Callable[[int], str]:
    """From the number of shown rows to the text about the others: the number of their values, and the amount."""
    return lambda n: more_rows(len(rows) - n, sum(map(count, rows[n:])), what, amount(rows[n:]))


def short_location(location: Location | None) -> str:
    """`model.py:12`, or `cell:12`; '' if there is none."""
    return "" if location is None else noted(str(location).rsplit("/", 1)[-1], location)


def narrow_location(location: Location) -> str:
    """`model.py:12` for a column; a long name is shown by its end."""
    return shortened(short_location(location), 30, from_left=True)


def line_label(location: Location | None) -> str:
    """`model.py:12 h = x @ w`: a place, and its text if available."""
    return f"{short_location(location)} {source_line(location)}".strip()


def line_beside(location: Location, shown: Location) -> str:
    """A place relative to another that is shown: `line 12` in the same file, `model.py:12` in another."""
    return f"line {location.line}" if location.file == shown.file else short_location(location)


@lru_cache(maxsize=4096)
def nbytes(aval: Any) -> int:
    """The size of a value of a type in bytes; random keys and values of hi types count as the arrays that they consist
    of.

    A mutable hi type, such as that of flax's variables under hijax, does not say what a value holds, which counts as
    nothing; with its state (`Var.type_with_state`) it does.
    """
    dtype = getattr(aval, "dtype", None)
    if dtype is not None:
        return int(getattr(aval, "size", 0)) * int(dtype.itemsize)
    is_unknown = getattr(aval, "has_qdd", False) and not hasattr(type(aval), "qdd")
    lowered = None if is_unknown else getattr(aval, "lo_ty", None)
    return 0 if lowered is None else sum(nbytes(a) for a in lowered() if a is not aval)


def type_text(aval: Any, lengths: Sequence[int] = ()) -> str:
    """A type as JAX prints it: `f32[3]`, `f32[8@i,4]` sharded over an axis, `f32[2]{V:i}` varying along one.

    Args:
      aval: the type.
      lengths: the sizes of its leading dimensions that are iterations: `1,000 × f32[3]`. If the parts of several
        devices are concatenated along the first dimension, their number comes first: `8 × 1,000 × f32[3]`.
    """
    if not lengths:
        return _type_text(aval)
    counts = list(lengths)
    if aval.shape[0] > counts[0]:
        counts.insert(0, aval.shape[0] // counts[0])
    from jaxviz.ir import compat  # imported here: `jaxviz doctor` prints tables even if the engine cannot run

    for _ in lengths:
        aval = compat.unstacked(aval)
    return " × ".join([*(f"{n:,}" for n in counts), _type_text(aval)])


@lru_cache(maxsize=4096)
def _type_text(aval: Any) -> str:
    return str(aval.str_short(short_dtypes=True))


def device_text(devices: Sequence[str]) -> str:
    """`cpu:0`, or `8 devices, cpu:0 to cpu:7`."""
    return devices[0] if len(devices) == 1 else f"{len(devices)} devices, {devices[0]} to {devices[-1]}"


def device_names(devices: Iterable[Any]) -> tuple[str, ...]:
    """`cpu:0` and so on, in numerical order."""
    return tuple(f"{d.platform}:{d.id}" for d in sorted(set(devices), key=lambda d: int(d.id)))


def preformatted(text: str) -> str:
    """Lines as preformatted text for a notebook."""
    return f'<pre style="white-space:pre-wrap">{html.escape(text)}</pre>'


def wrapped(text: str, indent: str = "", width: int | None = None) -> str:
    """A paragraph in lines that fit the tables."""
    width = PAGE.get() if width is None else width
    together = _UNIT.sub("\xa0", printable(text))
    return textwrap.fill(together, width, initial_indent=indent, subsequent_indent=indent).replace("\xa0", " ")


_UNIT = re.compile(r"(?<=\d) (?=(?:[KMGTP]i)?B\b|[kMGTP]?FLOP)")
"""The space between a number and its unit, at which no line ends."""
