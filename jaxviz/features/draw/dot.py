"""Programs in Graphviz's dot language."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from jaxviz.features.draw.graph import ROLE_LABELS, Frame, GraphBox, Line, ProgramGraph, enclosing
from jaxviz.features.draw.style import BORDERS, FILLS, FRAMES, INK, LINES, PALE, SIZES, line_width

_FONT = "Helvetica,Arial,sans-serif"
_PICTURE = {
    "fontname": _FONT, "fontsize": "10", "bgcolor": "white", "ranksep": "0.28", "nodesep": "0.16", "newrank": "true",
    "labelloc": "t", "labeljust": "l",
}  # fmt: skip
_NODES = {
    "fontname": _FONT, "fontsize": "11", "fontcolor": INK, "shape": "box", "style": "rounded,filled",
    "margin": "0.08,0.03", "height": "0.2",
}  # fmt: skip


def dot_source(graph: ProgramGraph, upwards: Sequence[int] = ()) -> str:
    """A graph in Graphviz's dot language.

    Args:
      graph: the graph.
      upwards: frames of stages whose lines run from the bottom to the top.
    """
    return "\n".join(_lines(graph, frozenset(upwards))) + "\n"


def _lines(graph: ProgramGraph, upwards: frozenset[int]) -> Iterator[str]:
    yield "digraph {"
    yield f"  graph [{_attributes(**_PICTURE, tooltip=graph.title)} label={_heading(graph)}]"
    yield f"  node [{_attributes(**_NODES)}]"
    yield f"  edge [{_attributes(arrowsize='0.5', color=LINES['value'][0])}]"
    children: dict[int, list[Frame]] = {}
    boxes: dict[int, list[GraphBox]] = {}
    for frame in graph.frames[1:]:
        children.setdefault(frame.parent, []).append(frame)
    for box in graph.boxes:
        boxes.setdefault(box.frame, []).append(box)
    yield from _frame(graph.frames[0], children, boxes, "  ")
    for line in graph.lines:
        yield f"  {_line(line, graph, upwards)}"
    yield "}"


def _frame(frame: Frame, children: dict[int, list[Frame]], boxes: dict[int, list[GraphBox]], pad: str) -> Iterator[str]:
    for box in boxes.get(frame.number, ()):
        yield f"{pad}{_box(box)}"
    for inner in children.get(frame.number, ()):
        fill, edge, dashes = FRAMES[inner.kind]
        yield f"{pad}subgraph cluster_{inner.number} {{"
        style = "rounded,dashed" if dashes else "rounded,filled"
        label = _attributes(
            label=inner.title, tooltip=inner.tooltip or inner.title, fillcolor=fill.replace("none", "white"),
            color=edge, style=style, fontcolor=INK, margin="8", labelloc="t",
        )  # fmt: skip
        yield f"{pad}  graph [{label}]"
        yield from _frame(inner, children, boxes, pad + "  ")
        yield f"{pad}}}"


def _box(box: GraphBox) -> str:
    big, small = SIZES[box.kind]
    ink = PALE if box.kind in ("constant", "literal", "note") else INK
    rows = [f'<FONT POINT-SIZE="{big:g}" COLOR="{ink}">{_marked(box.title)}</FONT>']
    if box.detail:
        rows.append(f'<FONT POINT-SIZE="{small:g}" COLOR="{PALE}">{_marked(box.detail)}</FONT>')
    options = {"tooltip": box.tooltip or box.title}
    if box.kind in ("equation", "group", "residual"):
        key = box.role or box.kind
        options |= {"fillcolor": FILLS.get(key, "white"), "color": BORDERS.get(key, "#888888")}
        options |= {"peripheries": "2"} if box.kind == "group" else {}
        options |= {"margin": "0.12,0.02"} if box.kind == "residual" else {"style": "rounded,filled"}
        options |= {"shape": "box"}
    else:
        options |= {"shape": "plain", "style": "solid"}
    if box.url:
        options["URL"] = box.url
    return f"n{box.number} [{_attributes(**options)} label={_stacked(rows)}]"


def _stacked(rows: Sequence[str]) -> str:
    """A label of several lines with space between them."""
    cells = "".join(f"<TR><TD>{row}</TD></TR>" for row in rows)
    return f'<<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="1">{cells}</TABLE>>'


def _line(line: Line, graph: ProgramGraph, upwards: frozenset[int]) -> str:
    colour, dashes = LINES[line.kind]
    options = {"penwidth": f"{line_width(line.nbytes):.2f}", "tooltip": line.tooltip, "color": colour}
    if dashes:
        options["style"] = "dashed"
    if line.kind != "value":
        options["constraint"] = "false" if line.kind == "carry" else "true"
    tail, head = line.tail, line.head
    turned = upwards and all(upwards & set(enclosing(graph.frames, graph.boxes[n].frame)) for n in (tail, head))
    if turned:
        tail, head = head, tail
        options["dir"] = "back"
    return f"n{tail} -> n{head} [{_attributes(**options)}]"


def _heading(graph: ProgramGraph) -> str:
    rows = [f'<FONT POINT-SIZE="13"><B>{_marked(graph.title)}</B></FONT>']
    rows += [f'<FONT COLOR="{PALE}">{_marked(note)}</FONT>' for note in graph.notes]
    table = "".join(f'<TR><TD ALIGN="LEFT" COLSPAN="{2 * max(1, len(graph.roles))}">{row}</TD></TR>' for row in rows)
    legend = "".join(
        f'<TD BGCOLOR="{FILLS[r]}" COLOR="{BORDERS[r]}" BORDER="1" WIDTH="12" HEIGHT="12" FIXEDSIZE="TRUE"></TD>'
        f'<TD ALIGN="LEFT">{_marked(ROLE_LABELS[r])}</TD>'
        for r in graph.roles
    )
    shown = f"<TR>{legend}</TR>" if graph.roles not in ((), ("primal",)) else ""
    return f'<<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="4" CELLPADDING="0">{table}{shown}</TABLE>>'


def _marked(text: str) -> str:
    """A text inside a label that is markup."""
    return html.escape(text, quote=True) or " "


def _attributes(**values: str) -> str:
    """Attributes of a node, an edge or a graph, quoted, so that no value is interpreted as an escape or markup."""
    quoted = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in values.items()}
    return " ".join(f'{name}="{value}"' for name, value in quoted.items())
