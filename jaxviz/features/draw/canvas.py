"""The boxes, frames and lines of a picture as they are drawn, and the values that come from outside."""

from __future__ import annotations

import linecache
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from urllib.parse import quote

from jaxviz.analysis.grouping import alike
from jaxviz.features.draw.graph import ROLE_LABELS, Frame, GraphBox, Line, enclosing
from jaxviz.features.draw.labels import printable_lines
from jaxviz.ir.origin import Location
from jaxviz.ir.own_code import is_own
from jaxviz.ir.pretty import literal_text
from jaxviz.ir.syntax import Atom, Equation, Literal, Var
from jaxviz.page.params import visible_params
from jaxviz.page.sources import file_label, short_path
from jaxviz.report.pictures import fitted
from jaxviz.report.tables import format_bytes, nbytes, printable, type_text

MOST_BOXES = 800
"""The largest number of boxes drawn for a stage."""

_TITLE = 28

_LISTED = 12
"""How many values a tooltip lists."""

_CROWD = 4
"""More values than this between the same groups of equations are drawn as one line."""


@dataclass(frozen=True, slots=True)
class BoxOutput:
    """A value that a box computes: the box's number, and the index of the result."""

    box: int
    place: Any
    carried: bool = False


@dataclass(eq=False, slots=True)
class Outside:
    """A value from outside of a stage, or a literal."""

    kind: str
    name: str
    aval: Any
    frame: int


@dataclass(eq=False, slots=True)
class Before:
    """What an iteration receives from the previous one; `values` is known once the body has been processed."""

    values: tuple[Any, ...] = ()


Values = tuple[Any, ...]
"""Where a value may come from: `BoxOutput`, `Outside` or `Before`; several if branches or iterations return it."""

Slot = tuple[int, Any]
"""A box, and the index of one of its operands."""


@dataclass
class Script:
    """Numbers of boxes and frames that one repetition of a layer created, to be reused for the next ones."""

    numbers: list[int] = field(default_factory=list)
    at: int = 0
    replays: bool = False


@dataclass(eq=False, slots=True)
class _Part:
    """Values of one type that are drawn together.

    Args:
      kind: the kind of box.
      ends: the boxes that compute or read them.
      frame: the frame in which they are drawn.
      names: the name of each.
      what: what they are.
    """

    kind: str
    ends: frozenset[int]
    frame: int
    names: Sequence[str]
    aval: Any
    what: Sequence[Any]


class Canvas:
    """What has been drawn so far, and which boxes read each value.

    Args:
      source: whether lines of the user's own files are in the tooltips.
    """

    def __init__(self, source: bool):
        self.source = source
        self.boxes: list[GraphBox] = []
        self.frames = [Frame(0, -1, "picture", "")]
        self.uses: dict[tuple[Any, Slot], Atom] = {}
        self.names: Mapping[Var, str] = {}
        self.script: Script | None = None
        self.folded: Counter[str] = Counter()
        self.left_out = 0
        self.drawn = 0
        self.room = 0

    def atom_text(self, atom: Atom) -> str:
        return literal_text(atom) if isinstance(atom, Literal) else self.names.get(atom, "_")

    # --- values -------------------------------------------------------------------------------------------------------

    def read(self, atom: Atom, env: Mapping[Var, Values], frame: int) -> Values:
        if isinstance(atom, Literal):
            return (Outside("literal", literal_text(atom), atom.aval, frame),)
        return env.get(atom, ())

    def read_all(self, atoms: Sequence[Atom], env: Mapping[Var, Values], box: int, frame: int, place: int = 0) -> None:
        for i, atom in enumerate(atoms):
            self.use(self.read(atom, env, frame), (box, (place, i)), atom)

    def use(self, values: Values, slot: Slot, atom: Atom) -> None:
        for value in values:
            if not (isinstance(value, BoxOutput) and value.box == slot[0] and self.boxes[slot[0]].kind == "group"):
                self.uses[value, slot] = atom

    def bind(self, outvars: Sequence[Var], env: dict[Var, Values], box: int, place: int = 0) -> None:
        for i, v in enumerate(outvars):
            env[v] = (BoxOutput(box, (place, i)),)

    # --- nodes --------------------------------------------------------------------------------------------------------

    def is_full(self) -> bool:
        return self.drawn >= self.room and not (self.script is not None and self.script.replays)

    def again(self) -> int | None:
        """The number that the corresponding box or frame of a layer's first repetition has."""
        if self.script is None or not self.script.replays:
            return None
        self.script.at += 1
        return self.script.numbers[self.script.at - 1]

    def add_frame(self, parent: int, kind: str, title: str, tooltip: str = "") -> int:
        number = self.again()
        if number is None:
            number = len(self.frames)
            self.frames.append(Frame(number, parent, kind, printable(title, 60), printable_lines(tooltip)))
            if self.script is not None:
                self.script.numbers.append(number)
            if parent == 0:
                self.drawn = 0
        return number

    def add_box(
        self, kind: str, title: str, detail: str, role: str, frame: int, tooltip: str, at: Location | None = None
    ) -> int:
        number = self.again()
        if number is None:
            number = len(self.boxes)
            url = self.url(at) if at is not None else ""
            title, detail = fitted(title, _TITLE), printable(detail, 40)
            self.boxes.append(GraphBox(number, kind, title, detail, role, frame, printable_lines(tooltip), url))
            self.drawn += 1
            if self.script is not None:
                self.script.numbers.append(number)
        return number

    def equation_tooltip(self, e: Equation, at: Location | None) -> str:
        results = " ".join(f"{self.names.get(v, '_')}:{type_text(v.aval)}" for v in e.outvars)
        operands = " ".join(self.atom_text(a) for a in e.invars)
        lines = [f"{results} = {e.primitive.name} {operands}" if results else f"{e.primitive.name} {operands}"]
        lines += visible_params(e)[:6]
        if e.origin is not None:
            lines.append(f"{ROLE_LABELS[e.origin.role]}: {e.origin.rule}")
        return "\n".join([printable(x, 160) for x in lines] + self.place_lines(at))

    def place_lines(self, at: Location | None) -> list[str]:
        if at is None:
            return []
        lines = [f"{file_label(at.file)}:{at.line} in {at.function}"]
        text = linecache.getline(at.file, at.line).strip() if self.source and is_own(at.file) else ""
        return lines + ([f"    {printable(text, 160)}"] if text else [])

    def url(self, at: Location) -> str:
        """The line, relative to the working directory; '' for a file that is not below it."""
        path = short_path(at.file)
        if not self.source or path == at.file or path.startswith("~") or not is_own(at.file):
            return ""
        return f"{quote(path.replace(os.sep, '/'), safe='/')}#L{at.line}"

    def note_what_is_left_out(self, frame: int, n: int) -> None:
        text = f"and {n:,} more equations"
        self.boxes.append(GraphBox(len(self.boxes), "note", text, "left out of the picture", "", frame, text))

    # --- inputs and results -------------------------------------------------------------------------------------------

    def add_results(self, results: Iterable[tuple[str, str, Any, Values, int]]) -> None:
        """A label for each result; a single one for results that repetitions of a layer share."""
        groups: dict[Any, list[tuple[str, str, Any, Values, int]]] = {}
        for i, result in enumerate(results):
            kind, _, aval, values, frame = result
            groups.setdefault((kind, self.place_of(values) or i, type_text(aval), frame), []).append(result)
        parts = []
        for group in groups.values():
            kind, _, aval, values, frame = group[0]
            tails = frozenset(v.box for v in values if isinstance(v, BoxOutput))
            place = self.innermost(tails, ("fold", "stage")) if tails else frame
            parts.append(_Part(kind, tails, place, [name for _, name, *_ in group], aval, [r[3] for r in group]))
        for crowd in self.crowds(parts):
            box = self.add_values(crowd)
            for part in crowd:
                for each in part.what:
                    self.use(each, (box, 0), Var(part.aval))

    def add_ports(self, residuals: Mapping[int, tuple[Values, Any]], labels: Sequence[str]) -> None:
        """Adds a box for each residual between the forward and the linear or backward program; one for those of a
        layer's repetitions."""
        readers: dict[int, list[Slot]] = {}
        for value, slot in list(self.uses):
            if isinstance(value, Outside) and value.kind.startswith("residual "):
                readers.setdefault(int(value.kind.split()[1]), []).append(slot)
                del self.uses[value, slot]
        groups: dict[Any, list[int]] = {}
        for i, (values, aval) in residuals.items():
            groups.setdefault((self.place_of(values), frozenset(readers.get(i, ())), type_text(aval)), []).append(i)
        parts = []
        for numbers in groups.values():
            values, aval = residuals[numbers[0]]
            ends = {v.box for v in values if isinstance(v, BoxOutput)} | {box for box, _ in readers.get(numbers[0], ())}
            parts.append(_Part("residual", frozenset(ends), 0, [labels[i] for i in numbers], aval, numbers))
        for crowd in self.crowds(parts):
            box = self.add_values(crowd)
            for part in crowd:
                for i in part.what:
                    values = tuple(v for v in residuals[i][0] if not (isinstance(v, Outside) and v.kind == "literal"))
                    self.use(values, (box, 0), Var(part.aval))
                    for slot in readers.get(i, ()):
                        self.uses[BoxOutput(box, 0), slot] = Var(part.aval)

    def place_of(self, values: Values) -> frozenset[Any]:
        """A key shared by values at the same position of a layer's repetitions: the box that computes them, or those
        that read them."""
        return frozenset(
            (v.box, v.place)
            if isinstance(v, BoxOutput)
            else (v.kind, v.name if v.kind == "literal" else self._slots.get(v, v))
            for v in self.resolved(values)
        )

    @cached_property
    def _slots(self) -> dict[Any, frozenset[Slot]]:
        """The operands that read each value from outside."""
        readers: dict[Any, set[Slot]] = {}
        for value, slot in self.uses:
            if isinstance(value, Outside):
                readers.setdefault(value, set()).add(slot)
        return {value: frozenset(slots) for value, slots in readers.items()}

    def add_outside(self) -> None:
        """Adds a label for each input that is read, next to its reader; numbers and constants have one at each
        reader."""
        slots: dict[Outside, list[Slot]] = {}
        for value, slot in list(self.uses):
            for outside in self.resolved((value,)):
                if isinstance(outside, Outside):
                    slots.setdefault(outside, []).append(slot)
        groups: dict[Any, list[Outside]] = {}
        for outside, read in slots.items():
            type_ = type_text(outside.aval)
            if outside.kind in ("constant", "literal"):
                for box in {box for box, _ in read}:
                    there = frozenset(slot for slot in read if slot[0] == box)
                    groups.setdefault((outside.kind, there, type_), []).append(outside)
            else:
                groups.setdefault((outside.kind, frozenset(read), type_), []).append(outside)
        parts = []
        for (kind, read, _), group in groups.items():
            inside = {box for box, _ in read if self.boxes[box].frame}  # and not a residual between two stages
            frame = self.common_frame(inside) or group[0].frame
            names = list(dict.fromkeys(g.name for g in group))
            ends = frozenset(box for box, _ in read)
            parts.append(_Part(kind, ends, frame, names, group[0].aval, [(g, slot) for g in group for slot in read]))
        box_of: dict[tuple[Outside, Slot], int] = {}
        for crowd in self.crowds(parts):
            box = self.add_values(crowd)
            box_of.update({reading: box for part in crowd for reading in part.what})
        for value, slot in list(self.uses):
            atom = self.uses[value, slot]
            for outside in self.resolved((value,)):
                if isinstance(outside, Outside):
                    self.uses[BoxOutput(box_of[outside, slot], 0), slot] = atom
            if isinstance(value, Outside):
                del self.uses[value, slot]

    def crowds(self, parts: Sequence[_Part]) -> list[list[_Part]]:
        """Values that are drawn as one: those between the same groups of equations, if they are many."""
        by_ends: dict[Any, list[_Part]] = {}
        for part in parts:
            closed = bool(part.ends) and all(self.boxes[b].kind in ("group", "residual") for b in part.ends)
            by_ends.setdefault((part.kind, part.ends, part.frame) if closed else part, []).append(part)
        return [c for group in by_ends.values() for c in ([group] if len(group) > _CROWD else [[p] for p in group])]

    def add_values(self, crowd: Sequence[_Part]) -> int:
        (first, *others) = crowd
        kind, names = first.kind, first.names
        n = sum(len(part.names) for part in crowd)
        size = format_bytes(sum(len(part.names) * nbytes(part.aval) for part in crowd))
        if others:
            title, detail, head = f"{n:,} {kind}s", size, f"{n:,} {kind}s, {size}"
            listed = [f"{printable(alike(p.names), 120)}: {len(p.names)} × {type_text(p.aval)}" for p in crowd]
        else:
            title = fitted(f"{names[0]} … {names[-1]}" if kind == "literal" and n > 1 else alike(names), _TITLE + 6)
            detail = "" if kind == "literal" else f"{f'{n} × ' if n > 1 else ''}{type_text(first.aval)}"
            detail += f", {size}" if kind == "residual" else ""
            each = " each" if n > 1 else ""
            head = f"{kind}: {type_text(first.aval)}, {format_bytes(nbytes(first.aval))}{each}"
            listed = [printable(name, 120) for name in names]
        more = [f"and {len(listed) - _LISTED} more"] if len(listed) > _LISTED else []
        tooltip = printable_lines("\n".join([head, *listed[:_LISTED], *more]))
        self.boxes.append(GraphBox(len(self.boxes), kind, title, detail, "", first.frame, tooltip))
        return len(self.boxes) - 1

    def innermost(self, boxes: Iterable[int], kinds: Sequence[str]) -> int:
        """The innermost frame of some kinds around boxes."""
        frame = self.common_frame(boxes)
        while self.frames[frame].kind not in kinds and frame > 0:
            frame = self.frames[frame].parent
        return frame

    def common_frame(self, boxes: Iterable[int]) -> int:
        paths = [enclosing(self.frames, self.boxes[b].frame)[::-1] for b in boxes]
        common = 0
        for level in zip(*paths, strict=False):
            if len(set(level)) > 1:
                break
            common = level[0]
        return common

    def resolved(self, values: Values) -> list[Any]:
        """The values, with the previous iteration's result in place of an iteration's carry."""
        sources: dict[Any, None] = {}
        seen: set[Before] = set()

        def visit(each: Values, carried: bool) -> None:
            for v in each:
                if isinstance(v, Before):
                    if v not in seen:
                        seen.add(v)
                        visit(v.values, True)
                elif isinstance(v, BoxOutput):
                    sources[replace(v, carried=v.carried or carried)] = None
                else:
                    sources[v] = None

        visit(values, False)
        return list(sources)

    def lines(self) -> tuple[Line, ...]:
        between: dict[tuple[int, int, str], dict[str, int]] = {}
        for (value, (head, _)), atom in self.uses.items():
            for output in self.resolved((value,)):
                if not isinstance(output, BoxOutput):
                    continue
                tail = output.box
                kinds, frames = zip(*((b.kind, b.frame) for b in (self.boxes[tail], self.boxes[head])), strict=True)
                if output.carried and kinds[1] not in ("result", "residual"):
                    kind = "carry"
                else:  # residuals between two stages are outside of both
                    kind = "residual" if "residual" in kinds and 0 in frames and len(set(frames)) > 1 else "value"
                name = f"{self.names[atom]}:" if isinstance(atom, Var) and atom in self.names else ""
                between.setdefault((tail, head, kind), {})[f"{name}{type_text(atom.aval)}"] = nbytes(atom.aval)
        listed = lambda values: ", ".join([*list(values)[:6], *(["…"] if len(values) > 6 else [])])
        return tuple(Line(*ends, max(values.values()), listed(values)) for ends, values in between.items())

    def notes(self, depth: int) -> tuple[str, ...]:
        notes = [f"{text}{f', {n} times' if n > 1 else ''}" for text, n in self.folded.items()]
        closed = sum(b.kind == "group" for b in self.boxes)
        if closed:
            holds = "box with a double border holds" if closed == 1 else "boxes with a double border hold"
            notes.append(f"{closed:,} {holds} several equations (depth={depth})")
        if self.left_out:
            notes.append(
                f"{self.left_out:,} equations are left out: a picture has at most {MOST_BOXES:,} boxes; a smaller "
                "depth shows more of them"
            )
        return tuple(notes)
