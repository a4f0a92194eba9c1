"""From a function to the report of its compile time."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from jaxviz.analysis.devices import types_to_lower
from jaxviz.analysis.repeats import Alike
from jaxviz.analysis.walk import location_of, with_holders
from jaxviz.arguments import Argnums
from jaxviz.derivation import derive
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.origin import Location, innermost_line
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Atom, Program
from jaxviz.ir.trace import noting_arguments
from jaxviz.progress import counting
from jaxviz.report.data import Data
from jaxviz.runtime import compilations
from jaxviz.xla.compile_cost.ablation import Found, Trials
from jaxviz.xla.compile_cost.folding import Folded, with_loops
from jaxviz.xla.compile_cost.groups import Group, groups_of, opened
from jaxviz.xla.compile_cost.instructions import Instruction, before_xla
from jaxviz.xla.compile_cost.places import line_of_stack
from jaxviz.xla.compile_cost.repeats import Run
from jaxviz.xla.compile_cost.report import CompileCost, Counts, Part, Repeated, label_of
from jaxviz.xla.compile_cost.stages import Measured, Subject, median, sampled_tracing, subject_of, warmed_up
from jaxviz.xla.profile.sampling import Stack

TIMES = 5
"""How often each measured program is compiled."""
LARGEST = 3
"""How many groups of blocks are measured separately."""


@api_boundary
@deep_stack
def compile_cost(f: Any, *args: Any, argnums: Argnums = 0, ablate: bool = False, **kwargs: Any) -> CompileCost:
    """Reports how long a function's gradient takes to trace, lower and compile, and where: by phase, by line, by function, and by
    identical blocks. It compiles the gradient once.

    >>> print(jaxviz.compile_cost(loss, params, x))
    compiling the gradient of `loss` in `params` takes 21.5 s of CPU time on cpu, 22.3 s of wall time: tracing 0.5 s, lowering 0.1 s, XLA
    20.9 s. These 24 blocks are identical, `x = layer(p, x)` (model.py:12): a `jax.lax.scan` would trace and compile only one, and leave out
    95 % of …

    A training step, which computes a gradient itself, is compiled unchanged, and so is a function with `argnums=()`. For a function whose
    result is not a single number, `jax.vjp` and the call of its result are compiled. Arguments can be types (`jax.ShapeDtypeStruct`):
    nothing is run.

    Seconds are measured without JAX's caches, except for jitted functions inside `f` that were traced before. XLA does not report
    its time by line, so the report counts instructions instead. With `ablate=True`, XLA's seconds for the largest groups of repeated
    blocks are measured too: the program is compiled with only one of the blocks, and with a loop in their place.

    Args:
      f: a function, jitted or not.
      *args, **kwargs: its arguments: arrays, types, or pytrees of them.
      argnums: the positional arguments to differentiate with respect to; `()` for the function without its gradient.
      ablate: whether to measure what blocks cost and what a loop would save. Several programs are then compiled five times each,
        and the report has the medians.

    Raises:
      the errors of f, of `jax.grad`, and of compiling.
    """
    with compilations.unwatched(), noting_arguments(f, args, kwargs):
        subject = subject_of(f, args, kwargs, argnums)
        warmed_up()
        try:
            return _Costs(subject, ablate).report()
        except ValueError as error:  # JAX's, if a loop has no reverse mode, does not say which
            raise _no_reverse_mode(f, args, kwargs, argnums) or error from None


def _no_reverse_mode(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums) -> Exception | None:
    with contextlib.suppress(Exception):
        return derive(f, *args, argnums=argnums, **kwargs).no_reverse_mode
    return None


class _Costs:
    def __init__(self, subject: Subject, ablate: bool):
        self.subject = subject
        self.ablate = ablate

    def report(self) -> CompileCost:
        s = self.subject
        whole, alone = Measured(), Measured()

        def once() -> None:
            if s.alone is not None:
                alone.trace(s.alone(), s.inputs[: s.n_own])
            whole.compile(s.make(), s.inputs)

        with counting("compiling"):
            once()
        stacks = sampled_tracing(s.make(), s.inputs)
        program = read_jaxpr(whole.traced.jaxpr)
        before, after = before_xla(whole.lowered), whole.after
        alike = Alike()
        flat = opened(program, alike)
        groups = groups_of(flat, alike)
        names: dict[Atom, str] = {v: n for v, n in zip(flat.invars, s.names, strict=False) if n}
        trials = Trials(flat, types_to_lower(flat, s.placed), whole, once, TIMES if self.ablate else 0)
        n = sum(1 for _ in program.walk())
        counts = Counts(n, len(before), None if after is None else len(after))
        of_function = None if alone.traced is None else opened(read_jaxpr(alone.traced.jaxpr), alike)
        own = [] if of_function is None else groups_of(of_function, alike)
        self.written = {place: group.count for group in reversed(own) for place in group.places}
        shown = groups[: LARGEST if self.ablate else None]
        found = trials.of_all(
            [g.runs for g in shown], [_runs_at(g, own) for g in shown], lambda runs: self._with_loops(of_function, runs)
        )
        repeated = tuple(
            self._repeated(g, f, names, before, after)
            for g, f in itertools.zip_longest(groups, found.each, fillvalue=Found())
            if isinstance(g, Group)
        )
        lines, functions, rest = _by_place(program, before, after, stacks, whole.phases.tracing.cpu)
        return CompileCost(
            s.name, s.about, jax.default_backend(), whole.phases, median(alone.tracing) if alone.tracing else None, counts, lines, functions,
            repeated, found.together.left_out, found.together.saving, len(whole.compiling), rest, tuple(self._notes(stacks, repeated, whole)),
        )  # fmt: skip

    def _with_loops(self, function: Program | None, runs: Sequence[Run]) -> Folded:
        """The gradient of the function with loops, as if they were written in the source."""
        s = self.subject
        assert function is not None
        assert s.gradient is not None
        folded = with_loops(function, runs, types_to_lower(function, s.placed[: s.n_own]), s.active)
        numbers = tuple(i for i, first in enumerate(folded.inputs) if first in s.active)
        n = len(folded.types)
        return Folded(s.gradient(folded.function, numbers, n), (*folded.types, *s.inputs[s.n_own :]))

    def _notes(
        self, stacks: Sequence[tuple[Stack, float]], repeated: Sequence[Repeated], whole: Measured
    ) -> Iterable[str]:
        if whole.remembered:
            yield "XLA's seconds were measured for an earlier report on this program; `jaxviz.clear_caches()` forgets them."
        if jax.default_backend() != "cpu":
            yield f"Work that the compiler for {jax.default_backend()} does in another process or on the device counts only as wall time."
        without = sum(share for stack, share in stacks if line_of_stack(stack) is None)
        if without > 0.05:
            yield f"{100 * without:.0f} % of the tracing time belongs to no line: JAX transposes the program, or processes it as a whole."
        if any(r.saving is not None for r in repeated):
            yield (
                "XLA's time for the blocks, and what a loop saves of it, are measured by compiling the program with only one of the blocks, "
                "and with the loop. The savings in tracing and lowering are assumed to be proportional to the equations that the loop leaves out."
            )
        elif repeated:
            yield "The time that a loop saves is not proportional to what it leaves out, and may be zero: `ablate=True` measures it."

    def _repeated(
        self, group: Group, found: Found, names: dict[Atom, str], before: Sequence[Instruction],
        after: Sequence[Instruction] | None,
    ) -> Repeated:  # fmt: skip
        place = group.place
        n_after = None if after is None else sum(map(group.holds, after))
        counts = Counts(group.equations, sum(map(group.holds, before)), n_after)
        text, at = ("", None) if place is None else (place.text, place.location)
        loop = "jax.lax.scan" if group.is_chain else "jax.vmap"
        count = max(group.count, *(self.written.get(p, 0) for p in group.places), 0)
        return Repeated(
            count, text, at, loop, group.carry, group.stacked(names), counts, found.left_out, found.saving, found.seconds, found.note,
        )  # fmt: skip


def _runs_at(group: Group, own: Sequence[Group]) -> tuple[Run, ...]:
    """The runs of a group's blocks in the function itself: its gradient leaves out of the first what nothing is differentiated in."""
    return tuple(run for g in own if set(g.places) & set(group.places) for run in g.runs)


class _Tally(Data):
    """Accumulates the counts of one place."""

    def __init__(self, location: Location):
        self.location = location
        self.equations = self.before = self.after = 0
        self.tracing = 0.0


def _by_place(
    program: Program, before: Sequence[Instruction], after: Sequence[Instruction] | None, stacks: Sequence[tuple[Stack, float]],
    tracing: float,
) -> tuple[tuple[Part, ...], tuple[Part, ...], Counts]:  # fmt: skip
    """The sizes by line and by function, and of instructions without a line."""
    lines: dict[tuple[str, int], _Tally] = {}
    functions: dict[tuple[str, str], _Tally] = {}
    rest = Counter[str]()

    def tallies(at: Location | None, what: str) -> Iterable[_Tally]:
        if at is None:
            rest[what] += 1
            return ()
        function = at.function.rpartition("<locals>.")[2]
        of_line = lines.setdefault((at.file, at.line), _Tally(at))
        of_function = functions.setdefault((at.file, function), _Tally(at))
        if at.line < of_function.location.line:
            of_function.location = at
        return of_line, of_function

    for e, within in with_holders(program):
        for tally in tallies(location_of(e, within), "equations"):
            tally.equations += 1
    for i in before:
        for tally in tallies(innermost_line(i.lines), "before"):
            tally.before += 1
    for i in after or ():
        for tally in tallies(innermost_line(i.lines), "after"):
            tally.after += 1
    for stack, share in stacks:
        for tally in tallies(line_of_stack(stack), "tracing"):
            tally.tracing += share * tracing
    size = lambda t: (t.after, t.before, t.equations, t.tracing)
    part = lambda t, label: Part(
        label, t.location, Counts(t.equations, t.before, None if after is None else t.after), t.tracing
    )
    by_line = tuple(part(t, label_of(t.location)) for t in sorted(lines.values(), key=size, reverse=True))
    by_function = tuple(
        part(t, name) for (_, name), t in sorted(functions.items(), key=lambda item: size(item[1]), reverse=True)
    )
    return by_line, by_function, Counts(rest["equations"], rest["before"], None if after is None else rest["after"])
