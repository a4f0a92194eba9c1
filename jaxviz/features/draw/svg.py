"""A laid-out graph as SVG; everything from a program is escaped."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.sax.saxutils import escape, quoteattr

from jaxviz.features.draw.graph import ROLE_LABELS, Box, Graph
from jaxviz.features.draw.layout import Layout, Point, Rectangle
from jaxviz.features.draw.style import (
    BORDERS,
    FILLS,
    FRAMES,
    INK,
    LINES,
    MARGIN,
    ON_PAGE,
    PALE,
    SIZES,
    line_width,
    text_width,
)

_FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"


def write_svg(graph: Graph, layout: Layout) -> str:
    head = list(graph.notes)
    top = MARGIN + 20 + 15 * len(head) + 8
    legend = legend_of(graph)
    width = (
        max(layout.width, legend_width(legend), *(text_width(x, 10) for x in head), text_width(graph.title, 13))
        + 2 * MARGIN
    )
    height = top + layout.height + MARGIN + (24 if legend else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}pt" height="{height:.0f}pt" '
        f'viewBox="0 0 {width:.1f} {height:.1f}" font-family="{escape(_FONT)}" role="img">',
        f"<title>{escape(graph.title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        _text(MARGIN, MARGIN + 13, graph.title, 13, INK, weight="bold"),
        *(_text(MARGIN, MARGIN + 28 + 15 * i, line, 10, PALE) for i, line in enumerate(head)),
        f'<g transform="translate({MARGIN:.1f} {top:.1f})">',
    ]
    for frame in graph.frames[1:]:
        parts.append(_svg_frame(frame.kind, frame.title, frame.tooltip, layout.frames[frame.number]))
    for i, line in sorted(enumerate(graph.lines), key=lambda pair: pair[1].kind != "residual"):
        parts.append(_svg_line(line.kind, line_width(line.nbytes), line.tooltip, layout.paths[i], i in layout.sideways))
    for box, place in zip(graph.boxes, layout.boxes, strict=True):
        parts.append(_svg_box(box, place))
    parts.append("</g>")
    parts.append(_svg_legend(legend, top + layout.height + MARGIN))
    parts.append("</svg>")
    return "\n".join(filter(None, parts)) + "\n"


def on_page(svg: str) -> str:
    """A picture for inclusion in a page, light or dark: with the page's ink and background, and without ids, which might clash."""
    shown = re.sub(r"<[^<>]+>", lambda tag: _COLOUR.sub(_on_page, _ID.sub("", tag[0])), svg[svg.index("<svg") :])
    return shown.replace("<svg ", '<svg fill="currentColor" style="max-width:100%;height:auto" ', 1)


_ID = re.compile(r' (id|class)="[^"]*"')
_COLOUR = re.compile(r'\b(fill|stroke)="([^"]+)"')


def _on_page(found: re.Match[str]) -> str:
    what, colour = found.groups()
    there, covers = ON_PAGE.get(colour, (colour, 1.0))
    return f'{what}="{there}"' + (f' {what}-opacity="{covers:g}"' if covers < 1 else "")


def _text(
    x: float, y: float, text: str, size: float, colour: str, anchor: str = "start", weight: str = "normal"
) -> str:
    bold = f' font-weight="{weight}"' if weight != "normal" else ""
    at = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{colour}"{at}{bold}>{escape(text)}</text>'


def _svg_frame(kind: str, title: str, tooltip: str, r: Rectangle) -> str:
    fill, stroke, dashes = FRAMES[kind]
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f"<g>{_tooltip(tooltip)}"
        f'<rect x="{r.x:.1f}" y="{r.y:.1f}" width="{r.width:.1f}" height="{r.height:.1f}" rx="6" fill="{fill}" stroke="{stroke}"{dashed}/>'
        f"{_text(r.x + 8, r.y + 14, title, 10, INK, weight='bold' if kind in ('stage', 'fold') else 'normal')}</g>"
    )


def _svg_box(box: Box, r: Rectangle) -> str:
    fill, border = colours(box)
    x, y = r.x + r.width / 2, r.y + r.height / 2
    big, small = SIZES[box.kind]
    parts = [_tooltip(box.tooltip)]
    if box.kind not in ("input", "constant", "literal", "result", "note"):
        shape = f'x="{r.x:.1f}" y="{r.y:.1f}" width="{r.width:.1f}" height="{r.height:.1f}" rx="{r.height / 2 if box.kind == "residual" else 4:g}"'
        parts.append(f'<rect {shape} fill="{fill}" stroke="{border}" stroke-width="1.2"/>')
    if box.kind == "group":
        parts.append(
            f'<rect x="{r.x + 2.5:.1f}" y="{r.y + 2.5:.1f}" width="{r.width - 5:.1f}" height="{r.height - 5:.1f}" rx="2.5" fill="none" '
            f'stroke="{border}" stroke-width="0.7"/>'
        )
    ink = PALE if box.kind in ("constant", "literal", "note") else INK
    weight = "bold" if box.kind == "group" else "normal"
    if box.detail:
        parts.append(_text(x, y - 2.5, box.title, big, ink, "middle", weight))
        parts.append(_text(x, y + small + 0.5, box.detail, small, PALE, "middle"))
    else:
        parts.append(_text(x, y + big * 0.35, box.title, big, ink, "middle", weight))
    inner = "".join(parts)
    if box.url:
        inner = f"<a href={quoteattr(box.url)}>{inner}</a>"
    return f"<g>{inner}</g>"


def _tooltip(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def _svg_line(kind: str, width: float, tooltip: str, path: tuple[Point, ...], is_sideways: bool) -> str:
    colour, dashes = LINES[kind]
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    faint = ' stroke-opacity="0.6"' if kind == "residual" else ""
    d = " ".join(
        f"{'M' if i == 0 else 'C'}{' '.join(f'{x:.1f} {y:.1f}' for x, y in points)}"
        for i, points in enumerate(curves(path, is_sideways))
    )
    tip = arrow(path, is_sideways, width)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in tip)
    return (
        f'<g>{_tooltip(tooltip)}<path d="{d}" fill="none" stroke="{colour}" stroke-width="{width:.1f}"{dashed}{faint}/>'
        f'<polygon points="{points}" fill="{colour}"/></g>'
    )


def curves(path: tuple[Point, ...], is_sideways: bool) -> list[tuple[Point, ...]]:
    """The first point, then for each segment the two control points and the end of a cubic curve."""
    found: list[tuple[Point, ...]] = [(path[0],)]
    if is_sideways and len(path) == 3:  # along a rail at the side
        (x1, y1), (rail, _), (x2, y2) = path
        turn = min(14.0, abs(y2 - y1) / 2) * (1 if y2 > y1 else -1)
        found.append(((rail, y1), (rail, y1), (rail, y1 + turn)))
        found.append(((rail, y1 + turn), (rail, y2 - turn), (rail, y2 - turn)))
        found.append(((rail, y2), (rail, y2), (x2, y2)))
        return found
    for (x1, y1), (x2, y2) in pairwise(path):
        if is_sideways:
            half = (x1 + x2) / 2
            found.append(((half, y1), (half, y2), (x2, y2)))
        else:
            half = (y1 + y2) / 2
            found.append(((x1, half), (x2, half), (x2, y2)))
    return found


def arrow(path: tuple[Point, ...], is_sideways: bool, width: float) -> list[Point]:
    """The three points of an arrowhead."""
    (x0, y0), (x, y) = path[-2], path[-1]
    long, wide = 4.5 + width, 2.0 + 0.8 * width
    if is_sideways:
        back = long if x0 > x else -long
        return [(x, y), (x + back, y - wide), (x + back, y + wide)]
    back = long if y0 > y else -long
    return [(x, y), (x - wide, y + back), (x + wide, y + back)]


def colours(box: Box) -> tuple[str, str]:
    key = box.role or box.kind
    return FILLS.get(key, "#ffffff"), BORDERS.get(key, "#888888")


def legend_of(graph: Graph) -> list[tuple[str, str, str]]:
    """Fill, edge and meaning of the legend's entries: the roles, if there are several."""
    roles = [(FILLS[r], BORDERS[r], ROLE_LABELS[r]) for r in graph.roles]
    return roles if len(roles) > 1 or graph.roles != ("primal",) else []


def legend_width(legend: list[tuple[str, str, str]]) -> float:
    return sum(text_width(label, 10) + 34 for *_, label in legend)


def _svg_legend(legend: list[tuple[str, str, str]], y: float) -> str:
    x, parts = MARGIN, list[str]()
    for fill, border, label in legend:
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="12" height="12" rx="3" fill="{fill}" stroke="{border}" stroke-width="1.2"/>'
        )
        parts.append(_text(x + 17, y + 10, label, 10, INK))
        x += text_width(label, 10) + 34
    return "".join(parts)
