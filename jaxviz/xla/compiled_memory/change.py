"""Compares two compiled programs: the bytes at the peak that appeared and disappeared, and why, if that is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxviz.analysis.grouping import pattern
from jaxviz.ir.origin import Location
from jaxviz.report.charts import Bars
from jaxviz.report.data import Data
from jaxviz.report.differences import Difference, Figure, difference_table, paired_by, part_of_change
from jaxviz.report.report import Report, Table
from jaxviz.report.tables import counted, format_bytes, listed, repeated, short_location
from jaxviz.xla.compiled_memory.report import CompiledMemory, Held, as_code


@dataclass(frozen=True, slots=True)
class Change(Data):
    """The values of one expression, of which the two programs have different bytes at their peaks.

    Args:
      before, after: the rows of the two programs; None if one has none.
      why: why it appeared, disappeared, grew or shrank, if that is known.
    """

    before: Held | None
    after: Held | None
    why: str

    @property
    def row(self) -> Held:
        """The row of the second program, or of the first if the second has none."""
        row = self.after or self.before
        assert row is not None
        return row

    @property
    def nbytes(self) -> int:
        """The additional bytes of the second program."""
        return (self.after.nbytes if self.after else 0) - (self.before.nbytes if self.before else 0)

    @property
    def kind(self) -> str:
        """`residual`, or `recomputed → residual`."""
        if self.before and self.after and self.before.kind != self.after.kind:
            return f"{self.before.kind} → {self.after.kind}"
        return self.row.kind

    @property
    def difference(self) -> Difference:
        """The same as a row of a table of differences."""
        row = self.row
        types = repeated(row.count, row.type) if row.type else ""
        return Difference(self.nbytes, as_code(row), types, row.location, self.kind, self.why)

    _data = ("nbytes", "kind", "why", "before", "after")


@dataclass(frozen=True, eq=False, repr=False)
class MemoryChange(Report, schema="compiled_memory.compare"):
    """The differences between the memory of two compiled programs. See `CompiledMemory.compare`.

    Args:
      before, after: the two reports.
    """

    before: CompiledMemory
    after: CompiledMemory

    @property
    def nbytes(self) -> int:
        """How much higher the peak of the second one is."""
        return self.after.peak_nbytes - self.before.peak_nbytes

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """What appeared, disappeared, grew or shrank, the most bytes first; the sum is the difference of
        `reserved_nbytes`."""
        rows = [
            Change(a, b, self._why(a, b))
            for a, b in paired(self.before.at_peak, self.after.at_peak)
            if a is None or b is None or (a.nbytes, a.kind) != (b.nbytes, b.kind)
        ]
        return tuple(sorted(rows, key=lambda c: -abs(c.nbytes)))

    @property
    def compiled_otherwise(self) -> tuple[str, ...]:
        """Differences between the two compilations besides the programs: versions, flags, devices, the function."""
        a, b = self.before.compiler, self.after.compiler
        pairs = [("JAX", a.jax, b.jax), ("jaxlib", a.jaxlib, b.jaxlib), ("backend", a.backend, b.backend)]
        pairs += [("device", a.device, b.device), ("program", self.before.about, self.after.about)]
        pairs += [("devices", f"{self.before.n_devices:,}", f"{self.after.n_devices:,}")]
        reasons = [f"{name} {x} before, {y} now" for name, x, y in pairs if x != y and x and y]
        gone, new = (sorted({*x.flags.split()} - {*y.flags.split()}) for x, y in ((a, b), (b, a)))
        reasons += [f"XLA's flag {flag} before, no longer now" for flag in gone]
        return (*reasons, *(f"XLA's flag {flag} now, not before" for flag in new))

    @cached_property
    def largest(self) -> tuple[Change, ...]:
        """The largest contribution to the change of the peak, in the same direction: all rows about one value, or with
        one reason of XLA's."""
        of_name: dict[Hashable, list[Change]] = {}
        for c in self.changes:
            if c.row.kind not in BY_THEMSELVES:
                of_xla = c.row.is_own and c.row.why
                of_name.setdefault((c.kind, c.row.why) if of_xla else name_of(c.row), []).append(c)
        up = 1 if sum(c.nbytes for c in self.changes) >= 0 else -1
        most = max(of_name.values(), key=lambda cs: up * sum(c.nbytes for c in cs), default=[])
        if up * sum(c.nbytes for c in most) <= 0:
            return ()
        return tuple(sorted(most, key=lambda c: (c.row.kind != "residual", not c.why, -up * c.nbytes)))

    @property
    def summary(self) -> str:
        """compiled gradient of `loss` in `params` on cpu: peak 1.7 MiB → 2.7 MiB, +1.0 MiB (+59%); most of it +768.0
        KiB for `x * gate` (model.py:12): …."""
        a, b = self.before, self.after
        of = f"compiled {b.about} on {b.compiler.backend}"
        if not self.changes:
            return f"{of}: the same bytes at the peak, {format_bytes(b.peak_nbytes)}"
        said = f"{of}: {Figure('peak', a.peak_nbytes, b.peak_nbytes, 'bytes')}"
        return f"{said}; {self.most_of_it}" if self.largest else said

    @property
    def most_of_it(self) -> str:
        """``most of it +768.0 KiB for `x * gate` (model.py:12): it is saved now``; '' if no value stands out."""
        if not self.largest:
            return ""
        first = self.largest[0]
        where = f" ({short_location(first.row.location)})" if first.row.location is not None else ""
        others = len({name_of(c.row) for c in self.largest}) - 1
        more = f" and {counted(others, 'other')}" if others else ""
        because = f": {first.why}" if first.why else ""
        most = sum(c.nbytes for c in self.largest)
        total = sum(c.nbytes for c in self.changes)
        return f"{part_of_change(most, total, 'bytes')} for {as_code(first.row)}{where}{more}{because}"

    def _chart(self) -> Bars:
        rows = [
            (c.row.what, occupant.nbytes if occupant else 0, side)
            for c in self.changes[:8]
            for side, occupant in (("before", c.before), ("after", c.after))
        ]
        return Bars(rows, "bytes at the peak before and after, of what differs most", beside=True)

    def _parts(self) -> Iterator[str | Table]:
        if self.compiled_otherwise:
            yield f"Compiled differently: {'; '.join(self.compiled_otherwise)}."
        caption = "what changed at the peak:" if self.changes else ""
        yield difference_table([c.difference for c in self.changes], caption)
        for name, memory in (("Before", self.before), ("Now", self.after)):
            yield f"{name} the peak is {memory.peak_place}, and {memory.allocated}."

    _ENDS = ("function", "about", "compiler", "temp_nbytes", "peak_nbytes", "reserved_nbytes", "n_devices")
    _data = ("nbytes", "compiled_otherwise", "changes", ("before", _ENDS), ("after", _ENDS))

    # --- reasons ------------------------------------------------------------------------------------------------------

    def _why(self, a: Held | None, b: Held | None) -> str:
        if a is not None and b is not None:
            return self._why_changed(a, b)
        return self._why_came(b) if b is not None else self._why_went(a) if a is not None else ""

    def _why_changed(self, a: Held, b: Held) -> str:
        said = []
        if b.kind == "residual" != a.kind:
            said.append(f"it is saved now, and was {_said(a.kind)} before{_because(b)}")
        elif a.kind == "residual" != b.kind:
            said.append(f"it is no longer saved, but {_said(b.kind)}")
        elif a.kind != b.kind:
            said.append(f"{_said(b.kind)} now, {_said(a.kind)} before")
        if a.type != b.type and a.type and b.type:
            said.append(f"{b.type} now, {a.type} before")
        if a.count != b.count:
            said.append(f"{b.count:,} now, {a.count:,} before")
        return "; ".join(said)

    def _why_came(self, b: Held) -> str:
        if b.kind in ("unused", "padding"):
            return ""
        if b.kind == "result":
            donated = [h for h in self.before.at_peak if h.donated_to and h.type == b.type]
            still = {h.what for h in self.after.at_peak if h.donated_to}
            lost = [h.what for h in donated if h.what not in still]
            reused = f"before, it reused that of {_codes(lost)}, whose donation no longer has an effect"
            return f"it has its own memory now; {reused}" if lost else ""
        earlier, fused = same_in(self.before.values, b), same_in(self.before.fused, b)
        if b.kind == "residual":
            because = _because(b)
            if fused is not None and fused.kind == "recomputed":
                return f"it is saved now, and was recomputed before{because}"
            if earlier is not None and earlier.kind != "residual":
                return f"it is saved now, and was {_said(earlier.kind)} before{because}"
            if earlier is not None:
                return f"it was saved before, too, but not alive at the peak{because}"
            if fused is not None:
                return f"it is saved now, and was computed within a fusion before{because}"
            return f"it is saved now{because}"
        if earlier is not None and earlier.type == b.type:
            return "it had memory before, too, but not at the peak"
        if earlier is not None:
            return "; ".join(filter(None, [b.why, f"{b.type} now, {earlier.type} before, and not at the peak"]))
        if fused is not None:
            return "a fusion broke: it has memory now, and was computed within one before"
        if b.kind == "carried":
            return "a loop carries it now"
        return b.why

    def _why_went(self, a: Held) -> str:
        if a.kind in ("unused", "padding"):
            return ""
        if a.kind == "result":
            taken = [h.what for h in self.after.at_peak if h.donated_to and h.type == a.type]
            return f"it reuses the memory of {_codes(taken)}, which is donated" if taken else ""
        later, fused = same_in(self.after.values, a), same_in(self.after.fused, a)
        if a.kind == "residual":
            if fused is not None and fused.kind == "recomputed":
                return "it is no longer saved, but recomputed"
            if later is not None and later.kind != "residual":
                return f"it is no longer saved, but {_said(later.kind)}"
            if later is not None:
                return "it is saved as before, but not alive at the peak"
            return "it is no longer saved" + (", but computed within a fusion" if fused is not None else "")
        if later is not None:
            return "it has memory as before, but not at the peak"
        return "it is computed within a fusion now, without memory" if fused is not None else ""


_SAID = {
    "temporary": "a temporary", "recomputed": "recomputed", "cotangent": "a cotangent",
    "merged": "merged with the forward pass",
    "carried": "carried by a loop", "copy": "a copy", "layout": "a copy in another layout", "fusion": "XLA's own",
    "offloaded": "offloaded",
    "residual": "saved",
}  # fmt: skip
"""What a value of a kind is called in a sentence; the others are called by the kind."""


def _because(residual: Held) -> str:
    """The reason of a residual, without the equations that read it."""
    because = residual.why.partition("; ")[0]
    return f"; {because}" if because else ""


def _codes(names: Sequence[str]) -> str:
    return listed(f"`{name}`" for name in names)


def _said(kind: str) -> str:
    return _SAID.get(kind, f"of the kind {kind}")


# --- matching rows of two reports -------------------------------------------------------------------------------------

_RANGE = re.compile(r"…\w*|(?<=\d),(\d+|(?=…))")


def name_of(occupant: Held) -> str:
    """What a row is about, without the numbers of layers, since another program may have more."""
    return pattern(_RANGE.sub("", occupant.what))


def _maker(occupant: Held) -> str:
    """The same by what first computes the value, whatever its name."""
    return pattern(_RANGE.sub("", occupant.expression)) if occupant.expression else name_of(occupant)


def _line(location: Location | None) -> Hashable:
    return (location.function, location.line) if location is not None else None


BY_THEMSELVES = ("padding", "unused", "constant")
"""Kinds of rows that are not about a single named value."""
_KEYS: tuple[Callable[[Held], Hashable], ...] = (
    lambda h: (h.kind, name_of(h), h.type, _line(h.location)),
    lambda h: (h.kind, name_of(h), h.type),
    lambda h: None if h.kind in BY_THEMSELVES else (name_of(h), h.type),
    lambda h: None if h.kind in BY_THEMSELVES else (h.kind, name_of(h)),
    lambda h: None if h.kind in BY_THEMSELVES else name_of(h),
    lambda h: None if h.kind in BY_THEMSELVES else _maker(h),
    # in renamed modules
    lambda h: (h.kind, h.type, h.count) if h.kind in ("argument", "result") and not h.donated_to else None,
)
"""Keys by which rows about the same value are matched, the most specific first: versions may differ in lines, kinds and
types."""


def paired(before: Sequence[Held], after: Sequence[Held]) -> Iterator[tuple[Held | None, Held | None]]:
    """The rows of two programs, with those about the same thing paired."""
    return paired_by(_KEYS, before, after)


def same_in(rows: Sequence[Held], occupant: Held) -> Held | None:
    """The row about the same value: preferably of the same kind, and of the same type."""
    same = [h for h in rows if name_of(h) == name_of(occupant)] or [h for h in rows if _maker(h) == _maker(occupant)]
    fit = lambda h: (h.type == occupant.type, h.kind == occupant.kind, h.kind == "recomputed")
    return max(same, key=fit, default=None)
