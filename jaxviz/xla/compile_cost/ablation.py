"""The cost of identical blocks, and the savings of a loop, measured on programs without them and with the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.syntax import Program
from jaxviz.progress import counting
from jaxviz.report.messages import short_message
from jaxviz.xla.compile_cost.folding import Folded, with_loops, with_one_block
from jaxviz.xla.compile_cost.instructions import before_xla
from jaxviz.xla.compile_cost.repeats import Run
from jaxviz.xla.compile_cost.report import LeftOut, Saving
from jaxviz.xla.compile_cost.stages import Measured

_Key = tuple[str, int]
"""What replaces a group's blocks, a 'loop' or 'one' of them, and the number of the group."""
_ALL = -1


@dataclass(frozen=True)
class Found:
    """The results for one group.

    Args:
      left_out: what the program with a loop leaves out.
      saving: what the loop would save, if that was measured.
      seconds: XLA's time for the blocks, if it was measured.
      note: why a loop was not tried.
    """

    left_out: LeftOut | None = None
    saving: Saving | None = None
    seconds: float | None = None
    note: str = ""


@dataclass(frozen=True)
class AllFound:
    """The results for several groups.

    Args:
      each: the results of each.
      together: the results with loops in place of all.
    """

    each: tuple[Found, ...]
    together: Found


Loops = Callable[[Sequence[Run]], Folded]
"""Creates the program with loops in place of runs."""


class Trials:
    """Programs that are lowered, and on request compiled, for comparison with a given one.

    Args:
      program: the given program.
      types: the types of its inputs.
      whole: JAX's result for it, so far measured once.
      again: measures it once more.
      times: how often each is compiled; 0 for not at all.
    """

    def __init__(self, program: Program, types: Sequence[Any], whole: Measured, again: Callable[[], None], times: int):
        self.program = program
        self.types = types
        self.whole = whole
        self.again = again
        self.times = times

    def of_all(self, groups: Sequence[Sequence[Run]], written: Sequence[Sequence[Run]], loops: Loops) -> AllFound:
        """The results of the groups, separately and all together.

        Args:
          groups: their runs in the program.
          written: for each group the runs of its blocks in the function whose gradient the program is; () if there are none.
          loops: creates the gradient of that function with loops in place of some of its runs.
        """
        makes: dict[_Key, Callable[[], Folded]] = {}
        for i, (runs, own) in enumerate(zip(groups, written, strict=True)):
            makes["loop", i] = partial(self._with_loops, runs, own, loops)
            if self.times:
                makes["one", i] = lambda runs=runs: with_one_block(self.program, runs, self.types)  # type: ignore[misc]
        if len(groups) > 1:
            every = [run for runs in groups for run in runs]
            of_written = list(dict.fromkeys(run for own in written for run in own))
            makes["loop", _ALL] = partial(self._with_loops, every, of_written, loops)
        measured, failed = self._measured(makes)
        found = []
        for i, runs in enumerate(groups):
            seconds = None
            if self.times and ("one", i) in measured:
                n = max(run.count for run in runs)
                seconds = max(0.0, self._compiling - measured["one", i].phases.compiling.cpu) * n / (n - 1)
            note = f"not measured: {failed['loop', i]}" if ("loop", i) in failed else ""
            found.append(replace(self._found(measured, i), seconds=seconds, note=note))
        return AllFound(tuple(found), self._found(measured, _ALL if len(groups) > 1 else 0))

    def _with_loops(self, runs: Sequence[Run], own: Sequence[Run], loops: Loops) -> Folded:
        return loops(own) if own else with_loops(self.program, runs, self.types)

    def _measured(self, makes: dict[_Key, Callable[[], Folded]]) -> tuple[dict[_Key, Measured], dict[_Key, str]]:
        measured: dict[_Key, Measured] = {}
        failed: dict[_Key, str] = {}
        rounds = max(1, self.times)
        with counting("compiling parts" if self.times else "lowering parts", rounds * (len(makes) + 1) - 1) as done:
            # Interleaved, so that other load on the machine affects all of them alike.
            for i in range(rounds):
                if i:
                    self.again()
                    done()
                for key, make in makes.items():
                    if key not in failed:
                        try:
                            self._once(measured.setdefault(key, Measured()), make())
                        except Exception as error:  # an estimate must not take the report with it
                            failed[key] = short_message(error, "making the loop").splitlines()[0]
                            del measured[key]
                    done()
        return measured, failed

    def _once(self, measured: Measured, folded: Folded) -> None:
        if self.times:
            measured.compile(folded.function, folded.types)
        else:
            measured.lower(folded.function, folded.types)

    @property
    def _compiling(self) -> float:
        return self.whole.phases.compiling.cpu

    def _found(self, measured: dict[_Key, Measured], i: int) -> Found:
        if ("loop", i) not in measured:
            return Found()
        loop = measured["loop", i]
        equations = 1 - _size(read_jaxpr(loop.traced.jaxpr)) / max(1, _size(self.program))
        instructions = 1 - len(before_xla(loop.lowered)) / max(1, len(before_xla(self.whole.lowered)))
        left_out = LeftOut(equations, instructions)
        if not self.times:
            return Found(left_out)
        phases = self.whole.phases
        compiling = phases.compiling.cpu - loop.phases.compiling.cpu
        return Found(left_out, Saving(phases.tracing.cpu * equations, phases.lowering.cpu * equations, compiling))


def _size(program: Program) -> int:
    return sum(1 for _ in program.walk())
