"""The layout of a graph: layered, frame by frame from the inside.

Boxes are in rows, lines run downwards from row to row, each row is ordered by the barycentres of connected boxes, and then boxes are moved
to be vertically aligned.

Source: Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical System Structures" (IEEE Transactions on Systems, Man,
and Cybernetics 11(2), 1981).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxviz.features.draw.graph import Graph, Line

Point = tuple[float, float]

ROW_GAP = 22.0
_GAP = 14.0
_LANE = 9.0
"""The distance between two lines, or a line and a box."""

_PAD = 12.0
_HEAD = 20.0
"""The height of a frame's title."""

_RAIL = 14.0
"""Space at the right of a frame for values carried between iterations."""

_BAND = 70.0
"""The space between a stage and the residuals beside it."""

_SWEEPS = 20
_LARGE = 3000
"""With at least this many items in a frame, there are fewer sweeps."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Left, top, width and height, downwards from the top."""

    x: float
    y: float
    width: float
    height: float

    def moved(self, x: float, y: float) -> Rectangle:
        return Rectangle(self.x + x, self.y + y, self.width, self.height)


@dataclass(frozen=True)
class Layout:
    """Positions in points from the top left.

    Args:
      width, height: the total size.
      boxes: the position of each box.
      frames: that of each frame except the first, which is the whole picture.
      paths: for each line, points from its tail to its head; between two the line leaves and arrives vertically, except for those in
        `sideways`, where it does so horizontally.
      sideways: the numbers of those lines.
    """

    width: float
    height: float
    boxes: tuple[Rectangle, ...]
    frames: Mapping[int, Rectangle]
    paths: tuple[tuple[Point, ...], ...]
    sideways: frozenset[int] = frozenset()


_Key = tuple[str, int]
"""A box, a frame, or a value that enters or leaves a frame: ('box', 3), ('frame', 2), ('in', 3), ('out', 3)."""

_Segment = tuple[_Key, _Key, int]
"""A line within one frame: its ends, and the box whose value it is."""


@dataclass
class _Item:
    """An item of a row: a box, a frame, a value at the frame's edge, or a line that passes through."""

    key: _Key
    width: float
    height: float
    row: int = 0
    x: float = 0.0  # the centre
    y: float = 0.0
    above: list[tuple[_Item, float, float]] = field(default_factory=list)
    below: list[tuple[_Item, float, float]] = field(default_factory=list)
    """The items below it that it is connected to, with the offsets of the line's ends from both centres."""
    chain: list[_Item] | None = None
    """For a line that passes through: its items in all rows."""

    @property
    def is_line(self) -> bool:
        return self.key[0] == "line"


@dataclass
class _Inside:
    """The layout inside a frame.

    Args:
      width, height: the size of the frame.
      boxes, frames: the positions of its boxes and frames, including nested ones.
      paths: the paths of its segments, by frame and segment.
      ends: for each value that crosses the edge, the distance from the left.
    """

    width: float
    height: float
    boxes: dict[int, Rectangle]
    frames: dict[int, Rectangle]
    paths: dict[tuple[int, _Segment], list[Point]]
    ends: dict[_Key, float]

    def mirrored(self) -> _Inside:
        """The same upside down, with titles still at the top of their frames."""

        def turn(r: Rectangle) -> Rectangle:
            return Rectangle(r.x, self.height - r.y - r.height, r.width, r.height)

        return _Inside(
            self.width, self.height, {i: turn(r) for i, r in self.boxes.items()}, {i: turn(r) for i, r in self.frames.items()},
            {key: [(x, self.height - y) for x, y in path] for key, path in self.paths.items()}, self.ends,
        )  # fmt: skip


def lay_out(graph: Graph, sizes: Sequence[tuple[float, float]], upwards: Sequence[int] = ()) -> Layout:
    """Lays out a graph.

    Args:
      graph: the graph.
      sizes: the width and height of each box.
      upwards: frames of stages that are drawn from the bottom to the top, such as the backward program beside the forward one.
    """
    return _Layers(graph, sizes, upwards).layout()


class _Layers:
    def __init__(self, graph: Graph, sizes: Sequence[tuple[float, float]], upwards: Sequence[int]):
        self.graph = graph
        self.sizes = sizes
        self.upwards = frozenset(upwards)
        self.segments: dict[int, dict[_Segment, None]] = {}
        self.routes: list[list[tuple[int, _Segment]]] = []
        self.children: dict[int, list[_Key]] = {f.number: [] for f in graph.frames}
        self.carries: set[int] = set()
        self.order: dict[_Key, int] = {}
        for box in graph.boxes:
            self.hold(("box", box.number), box.frame)
        for frame in graph.frames[1:]:  # a branch that only passes on its operands is empty
            self.hold(("frame", frame.number), frame.parent)

    def hold(self, key: _Key, frame: int) -> None:
        """Records the items of a frame and of its nested frames, in the order of evaluation."""
        around = self.graph.enclosing(frame)
        for inner, outer in zip([key, *(("frame", f) for f in around)], around, strict=False):
            if inner not in self.order:
                self.order[inner] = len(self.order)
                self.children[outer].append(inner)

    def layout(self) -> Layout:
        for line in self.graph.lines:
            self.routes.append(self.route(line))
        stages = [f.number for f in self.graph.stages]
        columns = {s: self.inside(s) for s in stages}
        columns = {s: c.mirrored() if s in self.upwards else c for s, c in columns.items()}
        ports = [b.number for b in self.graph.boxes if b.frame == 0]
        boxes: dict[int, Rectangle] = {}
        frames: dict[int, Rectangle] = {}
        offsets: dict[int, tuple[float, float]] = {}
        height = max((c.height for c in columns.values()), default=0.0)
        middle = (_BAND * 2 + max((self.sizes[p][0] for p in ports), default=0.0)) if ports else 2 * _GAP
        x, at_ports = 0.0, 0.0
        for i, (stage, column) in enumerate(columns.items()):
            y = height - column.height if stage in self.upwards or self.upwards else 0.0
            offsets[stage] = (x, y)
            frames[stage] = Rectangle(x, y, column.width, column.height)
            boxes |= {n: r.moved(x, y) for n, r in column.boxes.items()}
            frames |= {n: r.moved(x, y) for n, r in column.frames.items()}
            x += column.width
            if i == len(columns) - 2 or (ports and len(columns) == 1):
                at_ports = x + middle / 2
            x += middle if i < len(columns) - 1 else 0.0
        self.place_ports(ports, boxes, at_ports)
        bottom = max([height, *(r.y + r.height for r in boxes.values())])
        top = min([0.0, *(r.y for r in boxes.values())])
        boxes = {n: r.moved(0, -top) for n, r in boxes.items()}
        frames = {n: r.moved(0, -top) for n, r in frames.items()}
        offsets = {n: (dx, dy - top) for n, (dx, dy) in offsets.items()}
        placed = tuple(boxes[b.number] for b in self.graph.boxes)
        paths, sideways = [], set()
        for i, (line, route) in enumerate(zip(self.graph.lines, self.routes, strict=True)):
            if route:
                dx, dy = offsets[self.stage_of(line.tail)]
                column = columns[self.stage_of(line.tail)]
                points = [p for key in route for p in column.paths[key]]
                paths.append(tuple((px + dx, py + dy) for px, py in points))
            else:
                paths.append(self.aside(line, boxes, frames))
                sideways.add(i)
        return Layout(x, bottom - top, placed, frames, tuple(paths), frozenset(sideways))

    def stage_of(self, box: int) -> int:
        return self.graph.enclosing(self.graph.boxes[box].frame)[-2]

    # --- lines between frames -------------------------------------------------------------------------------------------

    def route(self, line: Line) -> list[tuple[int, _Segment]]:
        """The segments of a line, one for each frame that it passes through; none for one that is drawn beside the rows."""
        tail, head = self.graph.boxes[line.tail], self.graph.boxes[line.head]
        if line.kind != "value":
            if line.kind == "carry":
                self.carries.add(self.meeting(tail.frame, head.frame))
            return []
        meeting = self.meeting(tail.frame, head.frame)
        route: list[tuple[int, _Segment]] = []
        at: _Key = ("box", tail.number)
        for frame in self.graph.enclosing(tail.frame):
            if frame == meeting:
                break
            route.append((frame, (at, ("out", tail.number), tail.number)))
            at = ("frame", frame)
        down: list[tuple[int, _Segment]] = []
        to: _Key = ("box", head.number)
        for frame in self.graph.enclosing(head.frame):
            if frame == meeting:
                break
            down.append((frame, (("in", tail.number), to, tail.number)))
            to = ("frame", frame)
        if self.order[at] >= self.order[to] and self.graph.boxes[line.tail].kind in ("equation", "group"):
            return []
        route.append((meeting, (at, to, tail.number)))
        route += down[::-1]
        for frame, segment in route:
            self.segments.setdefault(frame, {})[segment] = None
        return route

    def meeting(self, a: int, b: int) -> int:
        around = set(self.graph.enclosing(a))
        return next(f for f in self.graph.enclosing(b) if f in around)

    def aside(self, line: Line, boxes: Mapping[int, Rectangle], frames: Mapping[int, Rectangle]) -> tuple[Point, ...]:
        """A line beside the rows: between a stage and a residual, or back to the start of an iteration."""
        tail, head = boxes[line.tail], boxes[line.head]
        (_, y1), (_, y2) = _middle(tail), _middle(head)
        if line.kind == "residual":
            if tail.x + tail.width <= head.x:
                return (tail.x + tail.width, y1), (head.x, y2)
            if head.x + head.width <= tail.x:
                return (tail.x, y1), (head.x + head.width, y2)
        frame = self.meeting(self.graph.boxes[line.tail].frame, self.graph.boxes[line.head].frame)
        around = frames.get(frame)
        rail = (
            around.x + around.width if around else max(tail.x + tail.width, head.x + head.width) + _RAIL
        ) - _RAIL / 2
        return (tail.x + tail.width, y1), (rail, (y1 + y2) / 2), (head.x + head.width, y2)

    def place_ports(self, ports: Sequence[int], boxes: dict[int, Rectangle], x: float) -> None:
        """The residuals below each other, each as close as possible to the boxes that compute and read it."""
        wanted: dict[int, list[float]] = {p: [] for p in ports}
        for line in self.graph.lines:
            for port, other in ((line.tail, line.head), (line.head, line.tail)):
                if port in wanted and other in boxes:
                    wanted[port].append(_middle(boxes[other])[1])
        heights = {p: self.sizes[p][1] + 6 for p in ports}
        ideal = {p: float(np.mean(ys)) if ys else 0.0 for p, ys in wanted.items()}
        ordered = sorted(ports, key=lambda p: (ideal[p], p))
        ys = _spread([ideal[p] for p in ordered], [heights[p] for p in ordered], [1.0] * len(ordered))
        for p, y in zip(ordered, ys, strict=True):
            width, height = self.sizes[p]
            boxes[p] = Rectangle(x - width / 2, y - height / 2, width, height)

    # --- a single frame ---------------------------------------------------------------------------------------------------

    def inside(self, frame: int) -> _Inside:
        inner = {key[1]: self.inside(key[1]) for key in self.children[frame] if key[0] == "frame"}
        segments = list(self.segments.get(frame, ()))
        items: dict[_Key, _Item] = {}
        for key in self.children[frame]:
            width, height = self.sizes[key[1]] if key[0] == "box" else (inner[key[1]].width, inner[key[1]].height)
            items[key] = _Item(key, width, height)
        for tail, head, _ in segments:
            for key in (tail, head):
                if key not in items:
                    items[key] = _Item(key, 2.0, 0.0)
        rows, chains = _rows(items, segments, self.order, inner)
        _order(rows)
        _place(rows)
        return self.framed(frame, rows, items, inner, chains, segments)

    def framed(
        self, frame: int, rows: list[list[_Item]], items: Mapping[_Key, _Item], inner: Mapping[int, _Inside],
        chains: Mapping[tuple[_Key, int], list[_Item]], segments: Sequence[_Segment],
    ) -> _Inside:  # fmt: skip
        left = min((i.x - i.width / 2 for row in rows for i in row), default=0.0) - _PAD
        right = max((i.x + i.width / 2 for row in rows for i in row), default=0.0) + _PAD
        right += _RAIL if frame in self.carries else 0.0
        right = max(right, left + 6.2 * len(self.graph.frames[frame].title) + 2 * _PAD)
        y = _HEAD + 2
        tops = []
        for row in rows:
            tall = max((i.height for i in row), default=0.0)
            tops.append((y, y + tall))
            for item in row:
                item.x -= left
                free = (tall - item.height) / 2
                # Operands are placed close to their readers, and results close to their operands.
                item.y = y + tall / 2 + (free if not item.above else -free if not item.below else 0.0)
            y += tall + ROW_GAP
        height = (y - ROW_GAP if rows else y) + (_HEAD if self.is_turned(frame) else _PAD)
        if self.is_turned(frame):
            for row in rows:
                for item in row:
                    item.y -= _HEAD - _PAD
            tops = [(a - _HEAD + _PAD, b - _HEAD + _PAD) for a, b in tops]
        boxes: dict[int, Rectangle] = {}
        frames: dict[int, Rectangle] = {}
        paths: dict[tuple[int, _Segment], list[Point]] = {}
        for key, item in items.items():
            x, top = item.x - item.width / 2, item.y - item.height / 2
            if key[0] == "box":
                boxes[key[1]] = Rectangle(x, top, item.width, item.height)
            elif key[0] == "frame":
                held = inner[key[1]]
                frames[key[1]] = Rectangle(x, top, item.width, item.height)
                boxes |= {n: r.moved(x, top) for n, r in held.boxes.items()}
                frames |= {n: r.moved(x, top) for n, r in held.frames.items()}
                paths |= {k: [(px + x, py + top) for px, py in path] for k, path in held.paths.items()}
        for tail, head, value in segments:
            paths[frame, (tail, head, value)] = self.path(tail, head, value, items, inner, chains, tops, height)
        ends = {key: item.x for key, item in items.items() if key[0] in ("in", "out")}
        return _Inside(right - left, height, boxes, frames, paths, ends)

    def is_turned(self, frame: int) -> bool:
        return bool(self.upwards & set(self.graph.enclosing(frame)))

    def path(
        self, tail: _Key, head: _Key, value: int, items: Mapping[_Key, _Item], inner: Mapping[int, _Inside],
        chains: Mapping[tuple[_Key, int], list[_Item]], tops: Sequence[tuple[float, float]], height: float,
    ) -> list[Point]:  # fmt: skip
        start, end = items[tail], items[head]
        x1 = start.x + _end(tail, "out", value, inner, start.width)
        x2 = end.x + _end(head, "in", value, inner, end.width)
        y1 = 0.0 if tail[0] == "in" else start.y + start.height / 2
        y2 = height if head[0] == "out" else end.y - end.height / 2
        points = [(x1, y1)]
        if tail[0] != "in" and tops[start.row][1] > y1 + 1:  # down to the end of its row, which has taller nodes
            points.append((x1, tops[start.row][1]))
        for item in chains.get((tail, value), ())[: max(0, end.row - start.row - 1)]:
            top, bottom = tops[item.row]
            points += [(item.x, top), (item.x, bottom)] if bottom > top else [(item.x, top)]
        if tail[0] == "in" and tops and y1 < tops[0][0] and len(points) == 1:
            points.append((x1, tops[start.row][1]))
        if head[0] != "out" and tops[end.row][0] < y2 - 1:
            points.append((x2, tops[end.row][0]))
        points.append((x2, y2))
        return points


def _middle(r: Rectangle) -> Point:
    return r.x + r.width / 2, r.y + r.height / 2


def _end(key: _Key, side: str, value: int, inner: Mapping[int, _Inside], width: float) -> float:
    """The distance from the middle of an item to where a line attaches: for a frame, where the value crosses its edge."""
    return inner[key[1]].ends[side, value] - width / 2 if key[0] == "frame" else 0.0


def _rows(
    items: Mapping[_Key, _Item], segments: Sequence[_Segment], order: Mapping[_Key, int], inner: Mapping[int, _Inside]
) -> tuple[list[list[_Item]], dict[tuple[_Key, int], list[_Item]]]:
    """The items row by row, with the lines that pass through rows connected."""
    above: dict[_Key, set[_Key]] = {key: set() for key in items}
    below: dict[_Key, set[_Key]] = {key: set() for key in items}
    for tail, head, _ in segments:
        above[head].add(tail)
        below[tail].add(head)
    rank: dict[_Key, int] = {}
    waiting = {key: len(found) for key, found in above.items()}
    ready = [key for key, n in waiting.items() if n == 0]
    while ready:
        key = ready.pop()
        rank[key] = max((rank[k] + 1 for k in above[key]), default=0)
        for k in below[key]:
            waiting[k] -= 1
            if waiting[k] == 0:
                ready.append(k)
    by_rank = sorted(rank, key=lambda k: -rank[k])
    for key in by_rank:  # a node with fewer long lines above than below moves down to its first reader
        long = sum(bool(above[k]) or len(below[k]) > 1 for k in above[key])
        if long < len(below[key]):
            rank[key] = min(rank[k] for k in below[key]) - 1
    first = min(rank.values(), default=0)
    for key in items:
        rank[key] -= first
    last = max((r for k, r in rank.items()), default=0)
    entries = [k for k in items if k[0] == "in"]
    if entries and any(rank[k] == 0 for k in items if k[0] != "in"):
        rank = {k: r + 1 for k, r in rank.items()}
        last += 1
    for key in items:
        if key[0] == "in":
            rank[key] = 0
        if key[0] == "out":
            rank[key] = max(last, max((rank[k] + 1 for k in above[key]), default=0))
    last = max(rank.values(), default=-1)
    for key in items:
        if key[0] == "out":
            rank[key] = last
        items[key].row = rank[key]
    rows: list[list[_Item]] = [[] for _ in range(last + 1)]
    for key, item in items.items():
        rows[rank[key]].append(item)
    furthest: dict[tuple[_Key, int], int] = {}
    for tail, head, value in segments:
        furthest[tail, value] = max(furthest.get((tail, value), 0), rank[head])
    chains: dict[tuple[_Key, int], list[_Item]] = {}
    for (tail, value), row in furthest.items():
        before, at = items[tail], _end(tail, "out", value, inner, items[tail].width)
        chain = chains[tail, value] = []
        for r in range(rank[tail] + 1, row):
            item = _Item(("line", value), 0.0, 0.0, r, chain=chain)
            rows[r].append(item)
            chain.append(item)
            _join(before, item, at, 0.0)
            before, at = item, 0.0
    for tail, head, value in segments:
        n = rank[head] - rank[tail] - 1
        start = chains[tail, value][n - 1] if n > 0 else items[tail]
        at = 0.0 if n > 0 else _end(tail, "out", value, inner, items[tail].width)
        _join(start, items[head], at, _end(head, "in", value, inner, items[head].width))
    for together in rows:
        together.sort(key=lambda i: order.get(i.key, i.key[1]))
    return rows, chains


def _join(upper: _Item, lower: _Item, at_upper: float, at_lower: float) -> None:
    upper.below.append((lower, at_lower, at_upper))
    lower.above.append((upper, at_upper, at_lower))


# --- the order within a row -------------------------------------------------------------------------------------------


def _order(rows: list[list[_Item]]) -> None:
    """Orders each row by the barycentres of connected items, alternating between downwards and upwards; keeps the best order."""
    _number(rows)
    best, fewest = [list(r) for r in rows], _crossings(rows)
    for sweep in range(_sweeps(rows)):
        if fewest == 0:
            break
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            for place, item in enumerate(row):
                item.y = _barycentre(item.above if down else item.below, place)
            row.sort(key=lambda i: i.y)
            for place, item in enumerate(row):
                item.x = float(place)
        crossings = _crossings(rows)
        if crossings < fewest:
            best, fewest = [list(r) for r in rows], crossings
    rows[:] = best
    _number(rows)


def _sweeps(rows: list[list[_Item]]) -> int:
    return max(3, min(_SWEEPS, _SWEEPS * _LARGE // max(1, sum(map(len, rows)))))


def _number(rows: list[list[_Item]]) -> None:
    for row in rows:
        for place, item in enumerate(row):
            item.x = float(place)


def _barycentre(joined: Sequence[tuple[_Item, float, float]], place: int) -> float:
    return sum(i.x + at / (i.width + 1) for i, at, _ in joined) / len(joined) if joined else float(place)


def _crossings(rows: list[list[_Item]]) -> int:
    """The number of crossings of lines between adjacent rows."""
    total = 0
    for row in rows:
        ends = [
            (item.x + here / (item.width + 1), lower.x + at / (lower.width + 1))
            for item in row
            for lower, at, here in item.below
        ]
        ends.sort()
        below = np.asarray([b for _, b in ends])
        if len(below) > 400:  # enough to compare two orders
            below = below[:: len(below) // 400 + 1]
        if len(below) > 1:
            total += int(np.triu(below[:, None] > below[None, :], 1).sum())
    return total


# --- positions within a row -------------------------------------------------------------------------------------------


def _place(rows: list[list[_Item]]) -> None:
    """Moves items sideways to straighten lines, keeping their order and distances."""
    for row in rows:
        x = 0.0
        for item, room in zip(row, _rooms(row), strict=True):
            item.x = x + room / 2
            x += room
        for item in row:
            item.x -= x / 2
    sweeps = _sweeps(rows)
    for sweep in range(sweeps):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            ideal, weights = [], []
            for item in row:
                joined = item.above if down else item.below
                if sweep >= sweeps - 6:
                    joined = item.above + item.below
                ends = sorted(i.x + at - here for i, at, here in joined)
                n = len(ends)
                if item.chain is not None and sweep >= sweeps // 2:
                    ideal.append(sorted(i.x for i in item.chain)[len(item.chain) // 2])
                    weights.append(12.0)
                    continue
                ideal.append((ends[(n - 1) // 2] + ends[n // 2]) / 2 if n else item.x)
                weights.append(8.0 if item.is_line else 0.3 if not n else 1.0 + 0.2 * n)
            for item, x in zip(row, _spread(ideal, _rooms(row), weights), strict=True):
                item.x = x


def _rooms(row: Sequence[_Item]) -> list[float]:
    return [i.width + (_LANE if i.is_line or i.key[0] in ("in", "out") else _GAP) for i in row]


def _spread(ideal: Sequence[float], rooms: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The positions nearest to the ideal ones (least squares) that keep order and distances: pool adjacent violators."""
    offsets = np.concatenate(([0.0], np.cumsum([(a + b) / 2 for a, b in itertools.pairwise(rooms)])))
    pools: list[tuple[float, float, int]] = []  # mean, weight, count
    for want, weight, offset in zip(ideal, weights, offsets, strict=False):
        mean, total, n = want - offset, weight, 1
        while pools and pools[-1][0] > mean:
            before, w, m = pools.pop()
            mean, total, n = (before * w + mean * total) / (w + total), w + total, n + m
        pools.append((mean, total, n))
    found = [mean for mean, _, n in pools for _ in range(n)]
    return [float(x + o) for x, o in zip(found, offsets, strict=False)]
