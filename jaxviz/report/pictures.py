"""The drawings at the top of reports in a notebook: inline SVG for light and dark pages, without scripts, ids or
other files. Text has the page's own colour and a monospaced font, so that its width is known. What lies along a run is
marked, for pages that zoom it (`zooming.py`).
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import singledispatch

from jaxviz.report.charts import NUMBERS, TIME, Axis, Bars, Chain, Chart, Curves, FlameGraph, Lanes, OverTime, TradeOff
from jaxviz.report.inks import INK
from jaxviz.report.kinds import COLOURS
from jaxviz.report.tables import format_bytes, format_seconds, printable
from jaxviz.report.zooming import along, areas_of, attribute, curves_of, moving

WIDTH = 480
"""The width of a drawing, in its own units."""

_FONT = 12
_COLUMN = 7.25
"""The width of a character of common monospaced fonts at that size."""
_LINE = 19
_NARROWEST, _WIDEST = 442, 520
"""The width range in pixels: text then has 11 to 13 pixels. In less space, the picture scrolls."""

_SHOWN = "<style>.jaxviz-picture[hidden]{display:block!important}</style>"
"""Pages that strip styles, as JupyterLab does with notebooks that are not trusted, also strip drawings, but not the
text in them: this keeps it hidden there."""


@singledispatch
def svg(chart: Chart) -> str:
    """A chart as a drawing for a notebook; '' if there is nothing to draw."""
    raise TypeError(f"no drawing for a chart {type(chart).__name__}")


@svg.register
def _(chart: Bars) -> str:
    """Bars with their amounts."""
    bars, beside = chart.bars[: chart.most], chart.beside
    if not bars:
        return ""
    labels = [fitted(label, 30) for label, _ in bars]
    texts = [chart.texts(amounts) for _, amounts in bars]
    left = _COLUMN * max(map(columns, labels)) + 8
    room = WIDTH - left - _COLUMN * max(len(text) for of_bar in texts for text in of_bar) - 8
    scale = room / chart.length(bars[0][1])
    drawn, y = _legend(chart.legend, 24)
    for label, (_, amounts), of_bar in zip(labels, bars, texts, strict=True):
        drawn.append(_text(0, y + (len(of_bar) - 1) * 7 + 13, label))
        x = left
        for i, (kind, n) in enumerate(amounts.items()):
            top, thick = (y + 2 + 15 * i, 12) if beside else (y + 3, 13)
            drawn.append(_box(left if beside else x, top, scale * n, thick, kind))
            x += scale * n
            if beside:
                drawn.append(_text(left + scale * n + 5, top + 10, of_bar[i], dim=True))
        if not beside:
            drawn.append(_text(x + 5, y + 13, of_bar[0], dim=True))
        y += 15 * len(of_bar) + 6 if beside else _LINE
    if chart.left_out:
        drawn.append(_text(left, y + 13, chart.left_out, dim=True))
        y += _LINE
    return _svg(chart, y + 4, drawn)


@svg.register
def _(chart: OverTime) -> str:
    """A chart of memory. The legend has the bytes of each kind at the peak."""
    steps, kinds, totals = chart.steps, chart.kinds, chart.totals
    if not totals or not max(totals):
        return ""
    highest = chart.highest
    # Of several steps in one column of pixels the highest is drawn, so that the peak is visible.
    edges, picked = chart.columns(320)
    y0, tall, right = 44.0, 110.0, WIDTH - 1.0
    y_of = lambda value: y0 + tall * (1 - value / chart.top)
    drawn, left = _levels(chart.axis.ticks(chart.top, 3), y_of, right)
    x_of = lambda position: left + (right - left) * position / (edges[-1] or 1)
    corners = [*map(x_of, edges)]
    fixed, drawn = drawn, []
    below = [0.0] * len(picked)
    for k, kind in enumerate(kinds):
        if not any(steps[i][k] for i in picked):
            continue
        above = [b + steps[i][k] for b, i in zip(below, picked, strict=True)]
        over = _stairs(corners, [*map(y_of, above)])
        under = _stairs(corners[::-1], [*map(y_of, below[::-1])])
        drawn.append(f'<path d="M{left:.1f} {y_of(above[0]):.1f}{over}{under}Z" fill="{COLOURS[kind]}"/>')
        below = above
    y = y0 + tall + 15
    at = chart.positions
    places = [(name, (x_of(at[start]), x_of(at[end]))) for name, start, end in chart.spans()]
    for name, (start, end) in places:
        if end - start > _COLUMN * len(name) + 4:
            drawn.append(_text((start + end) / 2, y, name, "middle", dim=True, at=(start, end)))
        if left < start < right:
            drawn.append(_line(start, y0 - 4, start, y + 3, dashed=True))
    notes = chart.notes
    if chart.other:
        drawn.append(_stepped(chart.other.totals, chart.other_spans(), dict(places), y_of))
        notes = (f"─ {chart.other.label}", *notes)
    x = x_of((at[highest] + at[highest + 1]) / 2)
    said = fitted(chart.peak, int(WIDTH / _COLUMN))
    half = _COLUMN * columns(said) / 2
    drawn += [
        _text(min(max(x, half), WIDTH - half), 33, said, "middle", at=(x, x)),
        f'<circle cx="{x:.1f}" cy="{y_of(totals[highest]):.1f}" r="3.5" fill="currentColor"/>',
        _line(x, 37, x, y_of(totals[highest])),
    ]
    drawn = [*fixed, moving(drawn)]
    at_peak = sorted(chart.at_peak, key=lambda alive: -alive[1])
    keys, y = _legend([(f"{kind} {format_bytes(int(n))}", kind) for kind, n in at_peak], y + 10)
    drawn += keys
    for note in notes:
        drawn.append(_text(0, y + 13, fitted(note, int(WIDTH / _COLUMN)), dim=True))
        y += _LINE
    if len(chart.edges):
        return _svg(chart, y + 4, drawn)
    axis = along(Axis(chart.step, NUMBERS, str, whole=True), left, right, len(steps))
    return _svg(chart, y + 4, drawn, attribute(axis, areas_of(chart, y0 + tall, tall)))


def _levels(
    ticks: Sequence[tuple[float, str]], y_of: Callable[[float], float], right: float
) -> tuple[list[str], float]:
    """Horizontal lines with their amounts on their left; and where the lines begin."""
    left = _COLUMN * max(columns(text) for _, text in ticks) + 14  # a notebook's font may be wider
    drawn = [_line(left, y_of(value), right, y_of(value), faint=bool(value)) for value, _ in ticks]
    return [*drawn, *(_text(left - 6, y_of(value) + 4, text, "end", dim=True) for value, text in ticks)], left


def _below(axis: Axis, top: float, y: float, x_of: Callable[[float], float]) -> list[str]:
    """The ticks of a horizontal axis with their amounts below them: as many as have room."""
    room = (x_of(top) - x_of(0)) / _COLUMN
    most = next((n for n in (4, 3, 2) if (n + 1) * (2 + max(columns(t) for _, t in axis.ticks(top, n))) < room), 1)
    drawn = []
    for value, text in axis.ticks(top, most):
        half = _COLUMN * columns(text) / 2
        drawn.append(_line(x_of(value), y, x_of(value), y + 4))
        drawn.append(_text(min(max(x_of(value), half), WIDTH - half), y + 16, text, "middle", dim=True))
    return drawn


def as_many(texts: Sequence[str], head: str) -> str:
    """`largest at the peak: a 12 B, b 4 B`: a heading, and as many texts as fit on a line of a drawing, but at least
    one."""
    said = head + texts[0] if texts else head
    for text in texts[1:]:
        if columns(f"{said}, {text}") > int(WIDTH / _COLUMN):
            break
        said += f", {text}"
    return said


def _stairs(edges: Sequence[float], heights: Sequence[float]) -> str:
    """The path from the first edge to the last at the given heights, with a step at each change."""
    steps = [f"{y:.1f}" for y in heights]
    last = len(steps) - 1
    return "".join(
        f"{f'V{y}' if i == 0 or y != steps[i - 1] else ''}"
        f"{f'H{edges[i + 1]:.1f}' if i == last or y != steps[i + 1] else ''}"
        for i, y in enumerate(steps)
    )


def _stepped(
    totals: Sequence[float],
    spans: Sequence[tuple[str, int, int]],
    places: Mapping[str, tuple[float, float]],
    y_of: Callable[[float], float],
) -> str:
    """Bytes over the steps of a program as a line; each pass has its place from left to right."""
    corners = []
    for name, first, stop in spans:
        if name not in places:
            continue
        (start, end), part = places[name], totals[first:stop]
        n = min(len(part), max(1, int(end - start)))
        for i in range(n):
            y = y_of(max(part[i * len(part) // n : (i + 1) * len(part) // n]))
            corners += [f"{start + (end - start) * (i + d) / n:.1f} {y:.1f}" for d in (0, 1)]
    path = "L".join(corners)
    return f'<path d="M{path}" fill="none" stroke="currentColor" stroke-width="1.5"/>' if corners else ""


@svg.register
def _(chart: Lanes) -> str:
    """Lanes with boxes for phases, over seconds."""
    lanes, (first, last) = chart.lanes, chart.span
    if not lanes:
        return ""
    names = [fitted(name, 24) for name, _ in lanes]
    texts = [chart.text(rows) for _, rows in lanes]
    left = _COLUMN * max(map(columns, names)) + 8
    room = WIDTH - left - _COLUMN * max(map(len, texts)) - 8
    drawn, y = _legend(chart.legend, 24)
    for name, text, (_, rows) in zip(names, texts, lanes, strict=True):
        drawn += [
            _text(0, y + 13, name),
            _line(left, y + _LINE - 2, left + room, y + _LINE - 2),
            _text(WIDTH, y + 13, text, "end", dim=True),
        ]
        boxes = []
        for what, start, phases in rows:
            x = left + room * (start - first) / last
            for kind, s in phases:
                wide = room * s / last
                said = f"{what}: {kind} {format_seconds(s)}"
                boxes.append(_box(min(x, left + room - 1), y + 3, max(wide, 1), 13, kind, said=said))
                x += wide
        drawn.append(moving(boxes))
        y += _LINE
    drawn += [moving(_below(TIME, last, y - 2, lambda value: left + room * value / last), "ticks")]
    return _svg(chart, y + _LINE + 2, drawn, attribute(along(TIME, left, left + room, last, y - 2)))


@svg.register
def _(chart: TradeOff) -> str:
    """Points, numbered, with their names below, and the best trades as a line."""
    marks, line = chart.marks, chart.line
    if not marks:
        return ""
    top_x, top_y = chart.most
    y0, tall, inset = 42.0, 130.0, 14.0
    base = y0 + tall
    y_of = lambda v: y0 + 18 + (tall - 18 - 8) * (1 - v / top_y)
    drawn, left = _levels(chart.y.ticks(top_y, 3), y_of, WIDTH)
    x_of = lambda v: left + inset + (WIDTH - left - 2 * inset) * v / top_x
    drawn += [
        _text(0, 33, f"↑ {chart.y.label}", dim=True),
        _text(WIDTH, base + 31, f"{chart.x.label} →", "end", dim=True),
        _line(left, base, WIDTH, base),
    ]
    drawn += _below(chart.x, top_x, base, x_of)
    if line:
        steps = "".join(f"H{x_of(x):.1f}V{y_of(y):.1f}" for x, y in line[1:])
        path = f"M{x_of(line[0][0]):.1f} {y_of(line[0][1]):.1f}{steps}"
        drawn.append(f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="0.5" stroke-width="1.5"/>')
    # Marks that would overlap are merged, with all their numbers.
    placed: list[tuple[float, float, str, list[int]]] = []
    for number, (x, y, _, kind) in enumerate(marks, 1):
        near = next((p for p in placed if abs(p[0] - x_of(x)) < 40 and abs(p[1] - y_of(y)) < 18), None)
        if near is None:
            placed.append((x_of(x), y_of(y), kind, [number]))
        else:
            near[3].append(number)
    for x, y, kind, numbers in placed:
        said = ",".join(map(str, numbers))
        half = _COLUMN * len(said) / 2
        drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{COLOURS[kind]}"/>')
        drawn.append(f"<g {_HALO}>{_text(min(max(x, half + 4), WIDTH - half), y - 8, said, 'middle')}</g>")
    y = base + 38
    texts = chart.texts
    room = int((WIDTH - 36) / _COLUMN) - max(map(columns, texts)) - 1
    for number, ((_, _, name, kind), text) in enumerate(zip(marks, texts, strict=True), 1):
        drawn += [
            _text(14, y + 13, str(number), "end"),
            f'<circle cx="25" cy="{y + 9:.1f}" r="5" fill="{COLOURS[kind]}"/>',
            _text(36, y + 13, fitted(name, room)),
            _text(WIDTH, y + 13, text, "end", dim=True),
        ]
        y += _LINE
    if line and chart.note:
        drawn.append(_text(0, y + 13, f"─ {chart.note}", dim=True))
        y += _LINE
    return _svg(chart, y + 4, drawn)


@svg.register
def _(chart: Curves) -> str:
    """Lines or points along a run, with the texts of marks above them."""
    if chart.is_empty:
        return ""
    y0, tall = 42.0 + 15 * len(chart.marks), 130.0
    base, right = y0 + tall, WIDTH - 8.0
    ticks = chart.ticks(5)
    y_at = lambda height: base - tall * height
    drawn, left = _levels([(chart.height(value), text) for value, text in ticks], y_at, right)
    x_of = lambda place: left + 8 + (right - left - 16) * place / (chart.width or 1)
    drawn += [
        _text(0, 33, f"↑ {chart.y}", dim=True),
        _text(WIDTH, base + 31, f"{chart.x.label} →", "end", dim=True),
        _line(left, base, right, base),
        moving(_below(chart.x, chart.width, base, x_of), "ticks"),
    ]
    lines = []
    for c in chart.curves:
        places = [(x_of(x), y_at(chart.height(y))) for x, y in c.finite]
        lines.append((_joined if c.is_line else _dotted)(places, COLOURS[c.kind], bool(c.name)))
    drawn.append(moving(lines))
    if chart.level is not None:
        value, said = chart.level
        y = y_at(chart.height(value))
        drawn += [_line(left, y, right, y, dashed=True), f"<g {_HALO}>{_text(right, y - 4, said, 'end', dim=True)}</g>"]
    marks = []
    for i, (place, said) in enumerate(chart.marks):
        x, y, said = x_of(place), 48.0 + 15 * i, fitted(said, int(WIDTH / _COLUMN))
        half = _COLUMN * columns(said) / 2
        marks.append(_line(x, y + 4, x, base))
        marks.append(f"<g {_HALO}>{_text(min(max(x, half), WIDTH - half), y, said, 'middle', at=(x, x))}</g>")
    drawn.append(moving(marks))
    room = int((WIDTH - 16) / _COLUMN)
    keys, y = _legend([(fitted(c.label, room), c.kind) for c in chart.named if c.label], base + 36)
    for note in chart.notes:
        keys.append(_text(0, y + 13, fitted(note, int(WIDTH / _COLUMN)), dim=True))
        y += _LINE
    axis = along(chart.x, x_of(0), x_of(chart.width), chart.width, base)
    return _svg(chart, y + 4, [*drawn, *keys], attribute(axis, curves=curves_of(chart)))


def _joined(places: Sequence[tuple[float, float]], colour: str, is_main: bool) -> str:
    """A line through places; of those in one column of pixels, the highest."""
    highest: dict[int, tuple[float, float]] = {}
    for x, y in sorted(places):
        if int(x / 2) not in highest or y < highest[int(x / 2)][1]:
            highest[int(x / 2)] = x, y
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in highest.values())
    style = 'stroke-width="2"' if is_main else 'stroke-opacity="0.4"'
    if len(highest) < 2:
        return _dotted(places, colour, is_main)
    return f'<path d="M{path}" fill="none" stroke="{colour}" stroke-linejoin="round" {style}/>'


def _dotted(places: Sequence[tuple[float, float]], colour: str, is_main: bool) -> str:
    """Points at places, one for each pixel."""
    path = "".join(f"M{x} {y}h0" for x, y in dict.fromkeys((round(x), round(y)) for x, y in places))
    wide = 4 if is_main else 2
    return f'<path d="{path}" stroke="{colour}" stroke-width="{wide}" stroke-linecap="round"/>' if path else ""


@svg.register
def _(chart: Chain) -> str:
    """Places below each other, joined by a line."""
    if not chart.stops:
        return ""
    drawn: list[str] = []
    y = 20
    places: list[float] = []
    room = int((WIDTH - 24) / _COLUMN)
    for stop in chart.shown:
        if isinstance(stop, str):
            drawn.append(_text(24, y + 13, stop, dim=True))
            y += _LINE
            continue
        place = fitted(stop.place, 30, from_left=True)
        text = fitted(stop.text, room - columns(place) - 2) if stop.text else ""
        drawn += [
            f'<circle cx="8" cy="{y + 9}" r="5" fill="{COLOURS[stop.kind]}"/>',
            _text(24, y + 13, place, dim=True),
            _text(24 + _COLUMN * (columns(place) + 2), y + 13, text),
            _text(24, y + 29, fitted(stop.what, room)),
        ]
        places.append(y + 9)
        y += 2 * _LINE + 3
    drawn += [_line(8, a + 6, 8, b - 6) for a, b in itertools.pairwise(places)]
    return _svg(chart, y + 2, drawn)


@svg.register
def _(chart: FlameGraph) -> str:
    """Bars below the bars that contain them, over seconds."""
    rows, total = chart.rows, chart.total
    if not total:
        return ""
    drawn, y0 = _legend([(chart.names[k], k) for k in chart.kinds], 24, chart.colours)
    scale = (WIDTH - 1) / total
    bars = []
    for name, kind, left, seconds, depth in rows:
        x, y, wide = scale * left, y0 + (_LINE - 2) * depth, scale * seconds
        amount = chart.axis.written(seconds)
        said = name if name.endswith(amount) else f"{name}: {amount}"
        bars.append(_box(x, y, max(wide - 0.5, 0.2), _LINE - 3, kind, chart.colours, said))
        room = int((wide - 4) / _COLUMN)
        if room > 2:
            bars.append(_text(x + 3, y + 12, fitted(name, room), ink=INK))
    y = y0 + (_LINE - 2) * chart.depth
    drawn += [moving(bars, "bars"), moving(_below(chart.axis, total, y, lambda value: scale * value), "ticks")]
    return _svg(chart, y + _LINE + 4, drawn, attribute(along(chart.axis, 0.0, WIDTH - 1.0, total, y)))


def columns(text: str) -> int:
    """How many columns a text takes in a monospaced font; some characters take two, and combining accents none."""
    if text.isascii():
        return len(text)
    import unicodedata  # imported here: the first text report imports nothing beyond JAX's dependencies

    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


_NAMES = re.compile(r"\w+|\W")
_PARTS = re.compile(r"[^\W_]+|\W|_")


def fitted(text: str, room: int, from_left: bool = False) -> str:
    """A text shortened to a number of columns, at the end of a name or an operator; a single long name at the end of a
    part.

    >>> fitted("jax.nn.softmax(scores)", 15)
    'jax.nn.softmax…'
    """
    text = printable(text)
    if columns(text) <= room:
        return text
    towards = reversed if from_left else iter
    ways: tuple[Sequence[str], ...] = (_NAMES.findall(text), _PARTS.findall(text), text)
    tokens_ = next(filter(None, (_within(towards(tokens), room - 1) for tokens in ways)), [])
    return "…" + "".join(reversed(tokens_)).lstrip() if from_left else "".join(tokens_).rstrip() + "…"


def _within(tokens: Iterable[str], room: int) -> list[str]:
    tokens_: list[str] = []
    for token in tokens:
        room -= columns(token)
        if room < 0:
            break
        tokens_.append(token)
    return tokens_


# --- elements ---------------------------------------------------------------------------------------------------------


def _svg(chart: Chart, height: float, drawn: Iterable[str], more: str = "") -> str:
    """A drawing below the chart's title, described by its sentence."""
    said = html.escape(printable(f"{chart.sentence[:1].upper()}{chart.sentence[1:]}."))
    above = _text(0, 13, fitted(chart.title, int(WIDTH / _COLUMN)), dim=True)
    style = f"display:block;max-width:{_WIDEST}px;min-width:{_NARROWEST}px;font-family:{_FAMILY};font-size:{_FONT}px"
    svg = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" width="100%" role="img" aria-label="{said}" style="{style}"{more}>'
    return in_page(f"{svg}<title>{said}</title>{above}{''.join(drawn)}</svg>")


def in_page(svg: str) -> str:
    """A drawing in the output of a cell, which scrolls if it does not fit."""
    return f'{_SHOWN}<div class="jaxviz-picture" hidden="hidden" style="overflow-x:auto;margin:4px 0 8px">{svg}</div>'


_FAMILY = "var(--jp-code-font-family, ui-monospace, &quot;DejaVu Sans Mono&quot;, Menlo, Consolas, monospace)"


_HALO = 'stroke="var(--jp-layout-color0, Canvas)" stroke-width="4" paint-order="stroke"'
"""An outline in the page's colour, for text that may overlap a line."""


def _text(
    x: float,
    y: float,
    text: str,
    anchor: str = "start",
    dim: bool = False,
    ink: str = "currentColor",
    at: Sequence[float] = (),
) -> str:
    """A text; `at` is where on the axis that it is said of begins and ends."""
    placed = f' text-anchor="{anchor}"' if anchor != "start" else ""
    opacity = ' fill-opacity="0.75"' if dim else ""
    of = f' data-at="{" ".join(f"{place:.1f}" for place in at)}"' if at else ""
    written = html.escape(printable(text))
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{ink}"{placed}{opacity}{of}>{written}</text>'


def _box(
    x: float, y: float, wide: float, tall: float, kind: str, colours: Mapping[str, str] = COLOURS, said: str = ""
) -> str:
    said = f' data-said="{html.escape(printable(said))}"' if said else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.2f}" height="{tall}" fill="{colours[kind]}"{said}/>'


def _line(x: float, y: float, to_x: float, to_y: float, dashed: bool = False, faint: bool = False) -> str:
    dashes = ' stroke-dasharray="3 3"' if dashed else ""
    opacity = 0.2 if faint else 0.5
    return (
        f'<path d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}" stroke="currentColor" stroke-opacity="{opacity}"{dashes}/>'
    )


def _legend(keys: Sequence[tuple[str, str]], y: float, colours: Mapping[str, str] = COLOURS) -> tuple[list[str], float]:
    """The meanings of the colours, on as many lines as needed; and where these end."""
    drawn, x = [], 0.0
    for text, kind in keys:
        wide = 16 + _COLUMN * columns(text)
        if x and x + wide > WIDTH:
            x, y = 0.0, y + _LINE
        drawn += [_box(x, y + 3, 11, 11, kind, colours), _text(x + 16, y + 13, text)]
        x += wide + 16
    return drawn, y + _LINE + 5 if keys else y
