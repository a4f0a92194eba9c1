"""Checkpoints and names as code: a diff of the user's source, and the figures of the function with it."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from textwrap import fill
from typing import Any

import jax

from jaxviz.features.remat.edits import ChangedError, Edit, Way, around, bound_in, edited, encoding_note, unified
from jaxviz.features.remat.existing import removed
from jaxviz.features.remat.forms import Trade, Trial
from jaxviz.features.remat.layers import Layers
from jaxviz.features.remat.libraries import CHECKPOINTS
from jaxviz.features.remat.names import Names, WrittenName
from jaxviz.features.remat.offload import DEVICE, HOST, offloads
from jaxviz.features.remat.pasted import PASTED
from jaxviz.features.remat.regions import Region
from jaxviz.features.remat.rewritten import Measured, measured_with
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.set_policy import NOTHING
from jaxviz.features.remat.source import Extent, source_line, span_of
from jaxviz.ir.expressions import Span
from jaxviz.report.tables import format_bytes, printable, short_location

POLICY = "SAVED"
BY_HAND = Way("", None, ())
"""A checkpoint that no change of a file puts around the function."""


@dataclass(frozen=True, slots=True)
class Written:
    """A plan as code.

    Args:
      notes: sentences: its figures, or why there is no code, and remarks.
      trade: the figures of the function with the code, measured on the edited function; those of the plan if a part is
        to be written by hand; None if there is no code, or it could not be measured.
      diffs: the diff of each changed file.
      files: each changed file with its new text.
      is_as_planned: whether they are those that the edits were expected to have.
      trial: the plan that it comes to; None if there is no code, or a setting was given.
    """

    notes: tuple[str, ...]
    trade: Trade | None
    diffs: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    is_as_planned: bool = True
    trial: Trial | None = None

    @property
    def text(self) -> str:
        """Comments, and the diffs, whose last line ends like that of any patch."""
        text = "\n".join([*(f"# {printable(note)}" for note in self.notes), *self.diffs])
        return f"{text}\n" if self.diffs else text

    def with_note(self, note: str, at: int = 1) -> Written:
        """The same with another sentence, by default after the first."""
        return replace(self, notes=(*self.notes[:at], note, *self.notes[at:]))

    @property
    def fails(self) -> bool:
        """Whether the edited function raises an error."""
        return self.trade is None and not self.is_as_planned


def write(
    search: Search, trade: Trade, ways: Mapping[Region, Sequence[Way]], names: Sequence[WrittenName],
    notes: list[str], layers: Layers | None = None, is_plan: bool = True, builtin: str = "",
) -> Written:  # fmt: skip
    """The comments and the diff; a remark if there is no diff."""
    edits: list[Edit] = []
    used: list[Way] = []
    is_by_hand = False
    for region in search.context.written:
        away = removed(region)
        if away is None:
            is_by_hand = True
            instead = "this replaces it." if ways else "without it the peak is no higher."
            notes.append(f"Remove the checkpoint of {region.name}, {short_location(region.location)}: {instead}")
        elif not any(region.covers(r) for r in ways):
            used += away
            edits += [e for way in away for e in way.edits("")]
    new = [way for some in ways.values() for way in some]
    bound = (bound_in(way.file, [way.code]) for way in new if way.changes)
    taken = Names(set().union(*bound))
    used += new
    edits += [e for n in names for e in named_at(n.extent, n.name)]
    groups = [[v for n in names for v in n.values]] if layers is None else layers.saved
    policies: dict[str, str] = {}
    each = [_policy(taken, [n for n in names if not set(n.values).isdisjoint(g)], policies) for g in groups]
    policy = each[0] if layers is None else layers.policy([name or "None" for name in each])
    if builtin not in ("", NOTHING):
        policy = f"jax.checkpoint_policies.{builtin}"
    edits += layers.edits if layers is not None else ()
    edits += [e for way in new for e in way.edits(policy)]
    policies |= {name: source for name, source in PASTED.items() if any(name in e.text for e in edits)}
    codes = [(n.extent.file, n.code) for n in names] + [(way.file, way.code) for way in used if way.changes]
    try:
        texts = edited(edits, policies, codes, [i for way in used for i in way.imports])
    except ChangedError as error:
        return Written((str(error),), None)
    is_by_hand = is_by_hand or BY_HAND in used
    if is_by_hand:
        notes.append("The figures are computed, not measured on the code, since a part has to be written by hand.")
    if BY_HAND in used:
        notes.append(_by_hand(search, policies.get(policy, policy and f"{POLICY} = {policy}")))
    diffs = {file: diff for file, text in texts.items() if (diff := unified(file, text))}
    notes += filter(None, (encoding_note(file, diff) for file, diff in diffs.items()))
    measured = _measured(search, edits, policies, codes, used, policy) if diffs and not is_by_hand else Measured(trade)
    lines = [_comes_to(measured.trade, search) if measured.trade is not None else measured.failed, *notes]
    if is_plan and not diffs and not is_by_hand:
        lines.append("The function stays as written: no change that can be written comes closer to the plan.")
    return Written(tuple(lines), measured.trade, tuple(diffs.values()), texts, measured.is_near(trade))


def _measured(
    search: Search, edits: Sequence[Edit], policies: Mapping[str, str], codes: Collection[tuple[str, Any]],
    used: Sequence[Way], policy: str,
) -> Measured:  # fmt: skip
    """The figures of edits; what an expression has made that is not run again is put into the checkpoint itself."""
    names: dict[str, Any] = {"jax": jax, "partial": partial}
    exec("\n".join(policies.values()), names)
    wrappings, instead = [], set()
    for way in (w for w in used if w.result is not None):
        head, tail = way.edits(policy)
        wrappings.append((way.result, eval(f"lambda f: {head.text}f{tail.text}", dict(names))))
        instead |= {head, tail}
    placed = [e for e in edits if e not in instead]
    texts = edited(placed, policies, codes, [i for way in used for i in way.imports])
    return measured_with(search, texts, wrappings)


def _policy(taken: Names, names: Sequence[WrittenName], policies: dict[str, str]) -> str:
    """A policy for some names, recorded with its lines; '' for none."""
    if not names:
        return ""
    saved, moved = ([n.name for n in names if n.is_moved is moved] for moved in (False, True))
    same = next((name for name, lines in policies.items() if lines == _policy_text(name, saved, moved)), "")
    constant = same or taken.new(None, POLICY)
    policies[constant] = _policy_text(constant, saved, moved)
    return constant


def _policy_text(variable: str, saved: Sequence[str], offloaded: Sequence[str]) -> str:
    """The lines that assign the policy that saves and offloads values with these names to a variable."""
    quoted = lambda names: ", ".join(f'"{n}"' for n in names)
    policies = f"{variable} = jax.checkpoint_policies"
    if not offloaded:
        line = f"{policies}.save_only_these_names({quoted(saved)})"
        if len(line) < 100:
            return line
        return f"{policies}.save_only_these_names(\n    {fill(quoted(saved), 95, subsequent_indent='    ')}\n)"
    rows = [
        fill(f"{which}=[{quoted(names)}],", 96, initial_indent="    ", subsequent_indent="        ")
        for which, names in (("names_which_can_be_saved", saved), ("names_which_can_be_offloaded", offloaded))
    ]
    head = f"{policies}.save_and_offload_only_these_names("
    return "\n".join([head, *rows, f'    offload_src="{DEVICE}",', f'    offload_dst="{HOST}",', ")"])


def _by_hand(search: Search, policy: str) -> str:
    """What to write by hand if a function is not defined in a file, or has a decorator, or arguments that are not
    arrays."""
    call = search.call
    name = call.name if call.name.isidentifier() else "f"
    is_step = search.step is not None or call.function is None
    policy = f", policy={' '.join(policy.split()).partition(' = ')[2]}" if policy else ""
    static = f", static_argnums={call.static_argnums}" if call.static_argnums and not is_step else ""
    fixed = "".join(f", {key}={value!r}" for key, value in call.static_kwargs.items()) if not is_step else ""
    around = f"partial({name}{fixed})" if fixed else name
    why = "" if is_step else ": no line of your source can have the checkpoint"
    checkpoint = CHECKPOINTS["equinox"] if call.is_mixed else "jax.checkpoint"
    return f"Differentiate {checkpoint}({around}{static}{policy}) instead of {name}{why}."


def named_at(extent: Extent, name: str) -> list[Edit]:
    """An expression with a name around it, or the name on a separate line after a statement such as `x += y`."""
    span = span_of(extent)
    assert span is not None
    if not span.target:
        start, end = (span.line, span.column), (span.end_line, span.end_column)
        if _is_in_brackets(extent.file, span):
            bracket = (span.line, span.column - 1)
            opening = Edit(extent.file, bracket, start, "checkpoint_name(", end)
            return [opening, Edit(extent.file, end, end, f', "{name}"', bracket)]
        return around(extent.file, start, end, "checkpoint_name(", f', "{name}")')
    line = source_line(extent.file, span.line)
    indent = line[: len(line) - len(line.lstrip())]
    after = (span.end_line + 1, 0)
    return [Edit(extent.file, after, after, f'{indent}{span.target} = checkpoint_name({span.target}, "{name}")\n')]


def _is_in_brackets(file: str, span: Span) -> bool:
    """Whether an expression is directly enclosed in brackets that are not those of a call, as in `(x @ w).T`."""
    before = source_line(file, span.line).encode()[: span.column]
    after = source_line(file, span.end_line).encode()[span.end_column :]
    if not (before.endswith(b"(") and after.startswith(b")")):
        return False
    what = before[:-1].decode()
    word = re.search(r"\w+\s*$", what)
    if word is not None:  # `f (x)` is a call, `return (x)` is not
        return keyword.iskeyword(word[0].strip()) and word[0][-1:].isspace()
    return what.rstrip().endswith(tuple("=+-*/%@<>&|^~([{,:"))


def not_written(trade: Trade, search: Search) -> str:
    return (
        "The plan cannot be written in your source; plan.apply puts its checkpoints in place. "
        f"{_comes_to(trade, search)}"
    )


def _comes_to(trade: Trade, search: Search) -> str:
    described = offloads if search.offload is None else search.offload.described
    moves = f", {described(trade.offloaded)}" if trade.offloaded else ""
    peak = f"peak {format_bytes(search.written.peak_nbytes)} → {format_bytes(trade.peak_nbytes)} as modelled"
    saves = f"saves {format_bytes(search.written.saved_nbytes)} → {format_bytes(trade.saved_nbytes)}"
    return f"{search.call.name}: {peak}, {saves}, recomputes {trade.recomputes}{moves}"
