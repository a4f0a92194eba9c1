"""From a function to the report of its compile time."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from jaxviz.analysis.training_step import TrainingStep, taking_gradient_of, trace_training_step
from jaxviz.analysis.walk import location_of, with_holders
from jaxviz.arguments import Argnums
from jaxviz.derivation import derive
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.emit import as_function
from jaxviz.ir.origin import Location, innermost_line, path_of_calls
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Atom, Equation, Program
from jaxviz.ir.trace import noting_arguments
from jaxviz.progress import counting
from jaxviz.report.data import Data
from jaxviz.report.messages import short_message
from jaxviz.runtime import compilations
from jaxviz.xla.compile_cost.blocks import Blocks, blocks_of, opened
from jaxviz.xla.compile_cost.instructions import HloInstruction, before_xla
from jaxviz.xla.compile_cost.one_block import with_one_block
from jaxviz.xla.compile_cost.places import line_of_stack
from jaxviz.xla.compile_cost.report import CompileCost, Counts, Repeated, Saving, SourcePart, label_of
from jaxviz.xla.compile_cost.stages import (
    CompileTimings,
    Subject,
    median,
    sampled_tracing,
    subject_of,
    warmed_up,
)
from jaxviz.xla.profile.sampling import Stack

TIMES = 5
"""How often each measured program is compiled."""
LARGEST = 3
"""How many groups of blocks are measured separately."""


@api_boundary
@deep_stack
def compile_cost(f: Any, *args: Any, argnums: Argnums = 0, ablate: bool = False, **kwargs: Any) -> CompileCost:
    """Reports how long a function's gradient takes to trace, lower and compile, and where: by phase, by line, by
    function, and by identical blocks. It compiles the gradient, and the same with only one of the blocks.

    >>> print(jaxviz.compile_cost(loss, params, x))
    compiling the gradient of `loss` in `params` takes 21.5 s of CPU time on cpu, 22.3 s of wall time: tracing 0.5 s,
    lowering 0.1 s, XLA 20.9 s. These 24 blocks are identical, `x = layer(p, x)` (model.py:12), and with only one of
    them compiling takes 19.6 s less: a `jax.lax.scan` would trace and compile only one

    A training step, which computes a gradient itself, is compiled unchanged, and so is a function with `argnums=()`.
    For a function whose result is not a single number, `jax.vjp` and the call of its result are compiled. Arguments can
    be types (`jax.ShapeDtypeStruct`): nothing is run.

    Seconds are measured without JAX's caches, except for jitted functions inside `f` that were traced before. XLA does
    not report its time by line, so the report counts instructions instead. The time of identical blocks is the
    difference of compiling all and one.

    Args:
      f: a function, jitted or not.
      *args, **kwargs: its arguments: arrays, types, or pytrees of them.
      argnums: the positional arguments to differentiate with respect to; `()` for the function without its gradient.
      ablate: whether each program is compiled five times, in turn; the report has the medians.

    Raises:
      the errors of f, of `jax.grad`, and of compiling.
    """
    with compilations.unwatched(), noting_arguments(f, args, kwargs):
        subject = subject_of(f, args, kwargs, argnums)
        warmed_up()
        try:
            return _report(subject, ablate)
        except ValueError:  # JAX's, if a loop has no reverse mode, does not say which
            loop = _no_reverse_mode(f, args, kwargs, argnums)
            if loop is not None:
                raise loop from None
            raise


def _no_reverse_mode(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums) -> Exception | None:
    with contextlib.suppress(Exception):
        return derive(f, *args, argnums=argnums, **kwargs).no_reverse_mode
    return None


def _report(subject: Subject, ablate: bool) -> CompileCost:
    s = subject
    inputs = (*s.inputs, *s.cotangents)
    total, alone = CompileTimings(), CompileTimings()

    def once() -> None:
        if s.gradient is not None:
            alone.trace(s.call(), s.inputs)
        total.compile(s.make(), inputs)

    with counting("compiling"):
        once()
    stacks = sampled_tracing(s.make(), inputs)
    program = read_jaxpr(total.traced.jaxpr)
    before, after = before_xla(total.lowered), total.after
    equations = [_lines_of(e, within) for e, within in with_holders(program)]
    counts = Counts(len(equations), len(before), None if after is None else len(after))
    notes: list[str] = []
    sizes: dict[Blocks, Counts] = {}
    sources: dict[Blocks, Editable] = {}
    for source in _editable(s, program, alone, notes):
        for blocks in blocks_of(source.program):
            if (blocks.is_chain or not source.is_step) and not any(map(blocks.overlaps, sources)):
                sources[blocks] = source
                sizes[blocks] = _counts(blocks, equations, before, after)
    largest_first = sorted(sizes, key=lambda blocks: -sizes[blocks].equations)
    with_one = {b: partial(_with_one, sources[b], b) for b in largest_first[:LARGEST]}
    savings = _less_with_one(with_one, inputs, total, once, TIMES if ablate else 1)
    repeated = tuple(_repeated(sources[b], b, sizes[b], savings.get(b, "")) for b in largest_first)
    lines, functions, rest = _by_place(program, before, after, stacks, total.phases.tracing.cpu)
    return CompileCost(
        s.name, s.about, jax.default_backend(), total.phases, median(alone.tracing) if alone.tracing else None, counts,
        lines, functions, repeated, len(total.compiling), rest, (*notes, *_notes(stacks, repeated)),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Editable:
    """A program that can be compiled with fewer blocks.

    Args:
      program: as returned by `opened`.
      names: the names of its inputs.
      compiled: what is compiled, given the program or one with fewer blocks.
      is_step: whether it is a whole training step, in which the updates of single parameters are no blocks.
    """

    program: Program
    names: Sequence[str]
    compiled: Callable[[Program], Callable[..., Any]]
    is_step: bool = False


def _editable(s: Subject, program: Program, alone: CompileTimings, notes: list[str]) -> Iterator[Editable]:
    """The function that is differentiated, and what is compiled if the user wrote that."""
    if s.gradient is not None:
        gradient = s.gradient
        yield Editable(opened(read_jaxpr(alone.traced.jaxpr)), s.names, lambda p: gradient(as_function(p)))
        return
    if s.is_step:
        try:
            step = trace_training_step(s.call(), s.inputs, {})
        except Exception as error:  # as in `_less_with_one`
            notes.append(short_message(error, "following the gradient").splitlines()[0])
        else:
            if isinstance(step, TrainingStep):
                loss = opened(step.gradient.primal)
                yield Editable(loss, loss.arg_names, lambda p: partial(_step_with, s.call(), step, p))
    yield Editable(opened(program), s.names, as_function, s.is_step)


def _step_with(call: Callable[..., Any], step: TrainingStep, loss: Program, *values: Any) -> Any:
    with taking_gradient_of(loss, step):
        return call(*values)


def _with_one(source: Editable, blocks: Blocks) -> Callable[..., Any]:
    return source.compiled(with_one_block(source.program, blocks.runs))


def _less_with_one(
    with_one: Mapping[Blocks, Callable[[], Callable[..., Any]]],
    inputs: Sequence[Any],
    total: CompileTimings,
    again: Callable[[], None],
    times: int,
) -> dict[Blocks, Saving | str]:
    """What is saved with only one of some blocks; or why it was not measured.

    Args:
      with_one: creates the function with only one of these.
      inputs: its arguments.
      whole: the measurements of the function with all blocks, so far one.
      again: measures it once more.
      times: how often each is measured.
    """
    measured = {blocks: CompileTimings() for blocks in with_one}
    failed: dict[Blocks, str] = {}
    with counting("compiling parts", times * (len(with_one) + 1) - 1) as done:
        # Interleaved, so that other load on the machine affects all of them alike.
        for i in range(times):
            if i:
                again()
                done()
            for blocks in with_one:
                try:
                    if blocks not in failed:
                        measured[blocks].compile(with_one[blocks](), inputs)
                except Exception as error:  # an estimate must not take the report with it
                    failed[blocks] = f"not measured: {short_message(error, 'leaving blocks out').splitlines()[0]}"
                done()

    def saving(one: CompileTimings) -> Saving:
        all_blocks, alone = total.phases, one.phases
        tracing = all_blocks.tracing.cpu * (1 - _size(one) / max(1, _size(total)))
        lowering = all_blocks.lowering.cpu - alone.lowering.cpu
        compiling = all_blocks.compiling.cpu - alone.compiling.cpu
        return Saving(tracing, lowering, compiling, all_blocks.cpu - (tracing + lowering + compiling))

    return {blocks: failed.get(blocks) or saving(one) for blocks, one in measured.items()}


def _size(of: CompileTimings) -> int:
    return sum(1 for _ in read_jaxpr(of.traced.jaxpr).walk())


def _lines_of(equation: Equation, within: Sequence[Equation]) -> tuple[Location, ...]:
    """The lines that led to an equation, or to the one that contains it, innermost first."""
    sources = (e.source for e in (equation, *reversed(within)))
    lines = (
        path_of_calls(source.traceback) for source in sources if source is not None and source.traceback is not None
    )
    return next(filter(None, lines), ())


def _counts(
    blocks: Blocks,
    equations: Sequence[Sequence[Location]],
    before: Sequence[HloInstruction],
    after: Sequence[HloInstruction] | None,
) -> Counts:
    n_after = None if after is None else sum(blocks.holds(i.lines) for i in after)
    return Counts(sum(map(blocks.holds, equations)), sum(blocks.holds(i.lines) for i in before), n_after)


def _repeated(source: Editable, blocks: Blocks, counts: Counts, saving: Saving | str) -> Repeated:
    names: dict[Atom, str] = {v: n for v, n in zip(source.program.invars, source.names, strict=False) if n}
    text, at = ("", None) if blocks.place is None else (blocks.place.text, blocks.place.location)
    loop = "jax.lax.scan" if blocks.is_chain else "jax.vmap"
    measured = (None, saving) if isinstance(saving, str) else (saving, "")
    return Repeated(blocks.count, text, at, loop, blocks.carry, blocks.stacked(names), counts, *measured)


def _notes(stacks: Sequence[tuple[Stack, float]], repeated: Sequence[Repeated]) -> Iterator[str]:
    if jax.default_backend() != "cpu":
        yield (
            f"Work that the compiler for {jax.default_backend()} does in another process or on the device counts "
            "only as wall time."
        )
    without = sum(share for stack, share in stacks if line_of_stack(stack) is None)
    if without > 0.05:
        yield (
            f"{100 * without:.0f} % of the tracing time belongs to no line: JAX transposes the program, or processes "
            "it as a whole."
        )
    if any(r.saving is not None for r in repeated):
        yield (
            "The program is compiled with only one of the blocks too. Of what that takes less, tracing is assumed to "
            "be proportional to the equations; "
            "a loop costs some of it again."
        )


class _Tally(Data):
    """Accumulates the counts of one place."""

    def __init__(self, location: Location):
        self.location = location
        self.equations = self.before = self.after = 0
        self.tracing = 0.0


def _by_place(
    program: Program, before: Sequence[HloInstruction], after: Sequence[HloInstruction] | None,
    stacks: Sequence[tuple[Stack, float]], tracing: float,
) -> tuple[tuple[SourcePart, ...], tuple[SourcePart, ...], Counts]:  # fmt: skip
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
    part = lambda t, label: SourcePart(
        label, t.location, Counts(t.equations, t.before, None if after is None else t.after), t.tracing
    )
    by_line = tuple(part(t, label_of(t.location)) for t in sorted(lines.values(), key=size, reverse=True))
    by_function = tuple(
        part(t, name) for (_, name), t in sorted(functions.items(), key=lambda item: size(item[1]), reverse=True)
    )
    return by_line, by_function, Counts(rest["equations"], rest["before"], None if after is None else rest["after"])
