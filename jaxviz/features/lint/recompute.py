"""Saved values that are cheap to recompute: the lines to put in a checkpoint, and the bytes that this would free.

A checkpoint around consecutive equations saves what they read from other equations, and none of what they compute
for their own derivatives. So what it saves follows from the forward and the linear program, which selects the
candidates. The figures of those that are shown are measured, by deriving the function with the checkpoint.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxviz.analysis.bytecode import are_in_the_same_loops
from jaxviz.analysis.naming import Naming
from jaxviz.analysis.walk import find_readers
from jaxviz.derivation import Derivation
from jaxviz.features.remat.regions import Frame, Spot, frames_of
from jaxviz.higher_order import bodies, is_scan, of, scan_length
from jaxviz.higher_order.closed_call import CLOSED_CALL
from jaxviz.higher_order.jit import JIT
from jaxviz.ir import compat
from jaxviz.ir.errors import EquationError
from jaxviz.ir.origin import Location, ancestors, call_stack, library_line
from jaxviz.ir.own_code import owner
from jaxviz.ir.primitives import COSTLY, plain
from jaxviz.ir.syntax import Atom, Equation, Literal, Program
from jaxviz.report.tables import nbytes
from jaxviz.transforms.inline import originals, with_own_variables

_CALLS = (JIT, CLOSED_CALL)


def is_cheap(equation: Equation) -> bool:
    """Whether an equation takes a few steps per element that it reads or computes, and has no effect."""
    if any(compat.is_real_effect(x) for x in equation.effects):
        return False
    if of(equation) in _CALLS or (of(equation).has_jvp_rule(equation.operation) and equation.programs):
        return all(map(is_cheap, bodies(equation)[0].program.equations))
    return plain(equation.primitive.name).kind not in ("", *COSTLY)


# --- what is saved, and for which equation ----------------------------------------------------------------------------


class SavedValues:
    """What the gradient of a function saves, by the equations of the function for which it is saved.

    A value in the body of a scan represents those of all its iterations.

    Args:
      derivation: of a program without calls of jitted functions.
      written: the program with them, for names of what they compute.
    """

    def __init__(self, derivation: Derivation, written: Program | None = None):
        self.derivation = derivation
        self.primal = derivation.primal
        inside = {} if written is None else originals(written, self.primal, lambda e: of(e) is JIT)
        self.naming = Naming(self.primal, derivation.forward, written, inside)
        self.written = {e for _, e in derivation.primal.walk()}
        self.size: dict[Atom, int] = {}
        self.maker: dict[Atom, tuple[Equation, Equation | None]] = {}
        """The equation of the forward program that computes a value, and that of the function that it comes from."""
        self.same: dict[Atom, Atom] = {}
        """From what a scan passes to its body unchanged to the value outside; from what it stacks to that inside."""
        self.readers: dict[Atom, set[Equation | None]] = {}
        """For each saved value, the equations of the function whose linear part reads it; None for the results."""
        self.reads: dict[Equation | None, dict[Atom, None]] = {}
        parts = derivation.linearized
        self._makers(parts.forward, parts.forward, 1)
        self._readers(parts.linear, dict(zip(parts.linear.invars, parts.residuals, strict=False)))

    @property
    def nbytes(self) -> int:
        """The bytes of everything saved, without arguments."""
        return sum(self.nbytes_of(a) for a in self.readers if a not in self.arguments)

    @cached_property
    def unread(self) -> set[Atom]:
        """What is saved for the linear program, but not read by the backward program: XLA drops it."""
        parts = self.derivation.linearized
        variables = parts.linear.invars[: len(parts.residuals)]
        try:
            readers = find_readers(self.derivation.backward, variables)
        except EquationError:  # not differentiable in reverse mode
            return set()
        read = {self.outside(a) for a, v in zip(parts.residuals, variables, strict=True) if readers[v]}
        return set(self.readers) - read

    @cached_property
    def arguments(self) -> dict[Atom, str]:
        """The paths of the function's arguments."""
        return dict(zip(self.primal.invars, self.primal.arg_names, strict=True))

    def nbytes_of(self, atom: Atom) -> int:
        return self.size.get(atom, nbytes(atom.aval))

    def outside(self, atom: Atom) -> Atom:
        """The value that another one is a view or a slice of."""
        return self.same.get(atom, atom)

    def _came_from(self, equation: Equation) -> Equation | None:
        return next((e for e in (equation, *ancestors(equation)) if e in self.written), None)

    def _makers(self, program: Program, derived: Program, times: int) -> None:
        """Registers the results of a program's equations.

        Args:
          program: a program with variables of its own: scans of the same function share their body.
          derived: its counterpart in the forward program.
          times: how often it runs.
        """
        for e, original in zip(program.equations, derived.equations, strict=True):
            came_from = self._came_from(original)
            for v in e.outvars:
                self.maker[v] = e, came_from
                self.size[v] = nbytes(v.aval) * times
            if is_scan(e):
                body = with_own_variables(e.params["jaxpr"])
                n_consts, n_carry = of(e).carry(e.operation)
                often = times * scan_length(e)
                for i, (v, a) in enumerate(zip(body.invars, e.invars, strict=True)):
                    if n_consts <= i < n_consts + n_carry:
                        self.size[v] = nbytes(v.aval) * often
                    else:
                        self.same[v] = self.outside(a)
                self._makers(body, e.params["jaxpr"], often)
                stacked = zip(e.outvars[n_carry:], body.outvars[n_carry:], strict=True)
                self.same.update((v, self.outside(a)) for v, a in stacked if a in self.size)

    def _readers(self, linear: Program, stands_for: Mapping[Atom, Atom]) -> None:
        """Registers who reads what is saved; `stands_for` has the values of the forward program that are the inputs."""
        for e in linear.equations:
            came_from = self._came_from(e)
            read = [a for a in e.invars if a in stands_for]
            if is_scan(e):
                n_consts, n_carry = of(e).carry(e.operation)
                body: Program = e.params["jaxpr"]
                handed = list(zip(body.invars, e.invars, strict=True))
                inner = handed[:n_consts] + handed[n_consts + n_carry :]
                self._readers(body, {v: stands_for[a] for v, a in inner if a in stands_for})
                read = [a for a in e.invars[n_consts : n_consts + n_carry] if a in stands_for]
            for a in read:
                self._read(stands_for[a], came_from)
        for a in linear.outvars:
            if a in stands_for:
                self._read(stands_for[a], None)

    def _read(self, atom: Atom, by: Equation | None) -> None:
        value = self.outside(atom)
        self.readers.setdefault(value, set()).add(by)
        self.reads.setdefault(by, {})[value] = None

    def is_read_by(self, run: Sequence[Equation]) -> bool:
        """Whether anything is saved for these equations."""
        return any(e in self.reads for e in run)

    def saving(self, runs: Iterable[Sequence[Equation]]) -> CheckpointSaving:
        """What checkpoints would save, one around each of these runs of equations."""
        inside: set[Equation | None] = set()
        needed: dict[Atom, None] = {}
        concerned: dict[Atom, None] = {}
        for run in runs:
            inside.update(run)
            concerned |= {a: None for e in run for a in self.reads.get(e, ())}
            needed |= self._needed(set(run))
        gone = [a for a in concerned if a not in needed and self.readers[a] <= inside]
        instead = [a for a in needed if a not in self.readers and a not in self.arguments]
        size = sum(map(self.nbytes_of, gone)) - sum(map(self.nbytes_of, instead))
        return CheckpointSaving(gone, instead, size, sum(self.nbytes_of(a) for a in gone if a in self.unread))

    def _needed(self, run: set[Equation]) -> dict[Atom, None]:
        """What has to be available to recompute everything that the derivatives of these equations read."""
        pending: list[Atom] = [a for e in run for a in self.reads.get(e, ())]
        seen: set[Atom] = set()
        needed: dict[Atom, None] = {}
        while pending:
            a = self.outside(pending.pop())
            if isinstance(a, Literal) or a in seen:
                continue
            seen.add(a)
            producer, came_from = self.maker.get(a, (None, None))
            if producer is not None and came_from in run:
                pending += producer.invars
            else:
                needed[a] = None
        return needed


@dataclass(frozen=True, slots=True)
class CheckpointSaving:
    """What checkpoints would save.

    Args:
      gone: the values of the forward program that would not be saved any more.
      instead: those that would be saved instead, to recompute them from; arguments are in memory anyway.
      nbytes: how many bytes less would be saved; negative if it is more.
      unread: how much of `gone` the backward program does not read.
    """

    gone: Sequence[Atom]
    instead: Sequence[Atom]
    nbytes: int
    unread: int

    @property
    def worth(self) -> int:
        """The bytes that the backward pass reads; a gradient compiled by XLA does not contain the rest."""
        return self.nbytes - self.unread


# --- the lines to wrap in a checkpoint --------------------------------------------------------------------------------

Run = Sequence[Equation]
"""Consecutive cheap equations."""

Function = tuple[str, str]
"""A file, and the qualified name of a function in it."""

Stack = tuple[Location, ...]
Extent = tuple[str, int, int, int, int]
"""A file, and where an expression begins and ends."""
Place = tuple[Function, tuple[Extent, ...]]
"""A function, and the expressions that called it."""


@dataclass(frozen=True, eq=False, slots=True)
class Candidate:
    """Lines to put in a checkpoint.

    Args:
      runs: the equations, for each time that the lines run.
      first, last: the first and the last of the lines.
      is_function: whether they are the whole body of a function.
      is_in_pieces: whether the lines also do something costly, which is not in the checkpoints.
      is_whole: whether they include everything that their statements do, also in libraries.
      saving: what it would save, over all runs.
    """

    runs: Sequence[Run]
    first: Location
    last: Location
    is_function: bool
    is_in_pieces: bool
    is_whole: bool
    saving: CheckpointSaving


def candidates(saved: SavedValues) -> list[Candidate]:
    """The lines whose checkpoint would save something, largest first, without parts of others."""
    costly = {call_stack(e.source) for p in _levels(saved.primal) for e in p.equations if not is_cheap(e)}
    # An expression that also does something costly, as a call of a library may, cannot be divided.
    costly_expressions = set(map(_lines, costly))
    runs: dict[Function, list[Run]] = {}
    for function, run in _runs(saved.primal, lambda s: None if _lines(s) in costly_expressions else _line(s)):
        runs.setdefault(function, []).extend(part for between in _between_loops(run) for part in _times(between))
    costly_lines: dict[Function, set[int]] = {}
    for own in (stack[0] for stack in costly if stack):
        costly_lines.setdefault((own.file, own.function), set()).add(own.line)
    every = [
        c
        for f, of_f in runs.items()
        if any(map(saved.is_read_by, of_f))
        for c in _in_function(saved, f, of_f, costly_lines.get(f, set()))
    ]
    taken: set[Equation] = set()
    largest = []
    for c in sorted(every, key=lambda c: -c.saving.worth):
        equations = {e for run in c.runs for e in run}
        if c.saving.worth > 0 and not equations <= taken:
            largest.append(c)
            taken |= equations
    return largest


def spots_of(saved: SavedValues, candidate: Candidate) -> list[Spot]:
    """The places of the function's program where a candidate's checkpoints go."""
    at = {e: (p, i) for p in _levels(saved.primal) for i, e in enumerate(p.equations)}
    places = [[at[e] for e in run] for run in candidate.runs if saved.is_read_by(run)]
    return [Spot(place[0][0], place[0][1], place[-1][1] + 1) for place in places]


def _in_function(
    saved: SavedValues, function: Function, runs: Sequence[Run], costly: Collection[int]
) -> list[Candidate]:
    """The lines of a function whose checkpoint would save something, or all of it.

    Args:
      runs: its cheap equations.
      costly: those of its lines that do something else.
    """
    alike: dict[Any, list[Run]] = {}
    for run in runs:
        alike.setdefault(tuple([(_line_number(e), e.primitive) for e in run]), []).append(run)
    best: dict[tuple[Location, Location], list[Run]] = {}
    for same in alike.values():
        parts = _best(saved, same)
        if parts:
            best.setdefault(_extent(parts), []).extend(parts)
    on_lines = []
    for (first, last), chosen in best.items():
        # A checkpoint on these lines, or on parts of them, takes effect each time they run, for better or worse.
        in_pieces = any(first.line <= line <= last.line for line in costly)
        inside = {e for run in chosen for e in run}
        place_of: Callable[[Equation], Any] = _expression_of if in_pieces else _line_number
        places = set(map(place_of, inside)) if in_pieces else range(first.line, last.line + 1)
        others = ([e for e in run if place_of(e) in places] for run in runs if inside.isdisjoint(run))
        every = [*chosen, *filter(saved.is_read_by, others)]
        on_lines.append(Candidate(every, first, last, False, in_pieces, _is_whole(saved, every), saved.saving(every)))
    one = _of_function(saved, function)
    return [one] if one is not None and one.saving.worth >= sum(c.saving.worth for c in on_lines) else on_lines


def _best(saved: SavedValues, runs: Sequence[Run]) -> Sequence[Run]:
    """The parts of runs through the same lines whose checkpoints would save most; the shortest of several."""
    n = len(runs[0])

    def worth(start: int, end: int) -> int:
        return saved.saving([run[start:end] for run in runs]).worth

    # Try a limited number of starting points: only little, near the ends, can be missed.
    most, start = max((worth(i, n), i) for i in range(0, n, -(-n // _STARTS)))
    reads = [i + 1 for i in range(start, n) if any(run[i] in saved.reads for run in runs)]
    while len(reads) > 1 and worth(start, reads[-2]) >= most:
        reads.pop()
    if most <= 0:
        return ()
    # A whole statement is easier to wrap than part of it.
    first, end = _ends(runs[0], start, reads[-1])
    candidate = worth(first, end)
    # Users cannot wrap part of what a library computes for an expression.
    if candidate >= most or any(library_line(e.source) is not None for e in (runs[0][start], runs[0][reads[-1] - 1])):
        return [run[first:end] for run in runs] if candidate > 0 else ()
    return [run[start : reads[-1]] for run in runs]


def _ends(run: Run, start: int, end: int) -> tuple[int, int]:
    """The start of the instruction in which a part of a run begins, and the end of the one in which it ends."""
    instructions = [_instruction(e) for e in run]
    while start > 0 and instructions[start - 1] == instructions[start]:
        start -= 1
    while end < len(run) and instructions[end] == instructions[end - 1]:
        end += 1
    return start, end


_STARTS = 64


def _is_whole(saved: SavedValues, runs: Iterable[Run]) -> bool:
    inside = {e for run in runs for e in run}
    concerned = set(map(_instruction, inside))
    return all(e in inside for p in _levels(saved.primal) for e in p.equations if _instruction(e) in concerned)


def _line_number(equation: Equation) -> int:
    stack = call_stack(equation.source)
    return stack[0].line if stack else 0


def _expression_of(equation: Equation) -> tuple[Extent, ...]:
    """The innermost of the user's expressions that an equation is part of."""
    return _lines(call_stack(equation.source)[:1])


def _extent(runs: Iterable[Run], function: Function | None = None) -> tuple[Location, Location]:
    """The first and the last line of the equations, or of a function that leads to them."""
    lines = [
        f for run in runs for e in run for i, f in enumerate(call_stack(e.source))
        if (i == 0 if function is None else (f.file, f.function) == function)
    ]  # fmt: skip
    return min(lines, key=lambda x: x.line), max(lines, key=lambda x: x.line)


def _of_function(saved: SavedValues, function: Function) -> Candidate | None:
    """The whole of a function, if everything in it is cheap."""

    def call(stack: Stack) -> Place | None:
        depth = next((i for i, f in enumerate(stack) if (f.file, f.function) == function), None)
        return None if depth is None else (function, _lines(stack[depth + 1 :]))

    if not all(is_cheap(e) for p in _levels(saved.primal) for e in p.equations if call(call_stack(e.source))):
        return None
    runs: list[Run] = []
    for _, run in _runs(saved.primal, call):
        times = list(_times(run))
        # A loop around the function contains nothing else; a loop inside it is part of it.
        runs += times if len({tuple(map(_written, part)) for part in times}) == 1 else [run]
    first, last = _extent(runs, function)
    return Candidate(runs, first, last, True, False, True, saved.saving(runs))


def _line(stack: Stack) -> Place | None:
    return ((stack[0].file, stack[0].function), _lines(stack[1:])) if stack else None


def _lines(stack: Stack) -> tuple[Extent, ...]:
    return tuple((f.file, f.line, f.column, f.end_line, f.end_column) for f in stack)


def _runs(program: Program, place_of: Callable[[Stack], Place | None]) -> list[tuple[Function, Run]]:
    """Consecutive cheap equations in one place, with their function; one without a user's line joins its neighbours."""
    runs: list[tuple[Function, Run]] = []
    for level in _levels(program):
        run: list[Equation] = []
        place = None
        for e in level.equations:
            stack = call_stack(e.source)
            here = place_of(stack) if stack else place
            if run and place is not None and (here != place or not is_cheap(e)):
                runs.append((place[0], run))
                run = []
            place = here
            if here is not None and is_cheap(e):
                run.append(e)
        if run and place is not None:
            runs.append((place[0], run))
    return runs


def _levels(program: Program) -> Iterator[Program]:
    """A program, and the bodies of the scans in it."""
    yield program
    for e in program.equations:
        if is_scan(e):
            yield from _levels(e.params["jaxpr"])


def _between_loops(run: Run) -> Iterator[Run]:
    """Splits a run where Python enters or leaves a loop, or begins the next iteration: no function can have both."""
    start = 0
    for i, (before, after) in enumerate(itertools.pairwise(map(_frame, run)), 1):
        if before is None or after is None or before[0] is not after[0]:
            continue
        if after[1] < before[1] or not are_in_the_same_loops(after[0], before[1], after[1]):
            yield run[start:i]
            start = i
    yield run[start:]


def _frame(equation: Equation) -> Frame | None:
    """The innermost of the user's frames that led to an equation."""
    return next((f for f in reversed(frames_of(equation.source)) if owner(f[0].co_filename) == "user"), None)


def _times(run: Run) -> Iterator[Run]:
    """Splits a run where a loop in Python went through its lines again."""
    parts = list(_instructions(run))
    keys = [tuple(map(_written, part)) for part in parts]
    seen: dict[Any, int] = {}
    start = at = 0
    while at < len(parts):
        before = seen.get(keys[at], -1)
        period = at - before
        if before >= start and keys[before:at] == keys[at : at + period]:
            if before > start:
                yield _joined(parts[start:before])
            start = before
            while keys[start : start + period] == keys[before:at]:
                yield _joined(parts[start : start + period])
                start += period
            at = start
            continue
        seen[keys[at]] = at
        at += 1
    if start < len(parts):
        yield _joined(parts[start:])


def _instructions(run: Run) -> Iterator[Run]:
    """The equations of one instruction of the user's, also in libraries that it calls, for each time that it ran."""
    for _, group in itertools.groupby(run, _instruction):
        written = list(group)
        n = len(written)
        operations = [e.operation for e in written]
        once = next(k for k in range(1, n + 1) if n % k == 0 and operations[k:] == operations[: n - k])
        yield from (written[i : i + once] for i in range(0, n, once))


def _instruction(equation: Equation) -> Any:
    return _lines(call_stack(equation.source))


def _written(equation: Equation) -> Any:
    """A key for equations that one instruction created, at different times."""
    return _instruction(equation), equation.operation


def _joined(parts: Iterable[Run]) -> Run:
    return list(itertools.chain.from_iterable(parts))
