"""The debugger for a function's forward and backward program."""

from __future__ import annotations

import functools
import html
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from jaxviz.analysis.implied import exchange_text, implied
from jaxviz.analysis.phases import ValuePhases
from jaxviz.analysis.walk import location_of
from jaxviz.derivation import Derivation
from jaxviz.displays import display
from jaxviz.features.debugger.breakpoints import Armed, Breakpoint, Hit, hit_at_start, run
from jaxviz.features.debugger.positions import Level, NoValueError, Position, SteppingError, can_enter, described
from jaxviz.features.debugger.programs import (
    CotangentPlaces,
    Cotangents,
    EquationSite,
    Place,
    StageText,
    StaticPath,
    Values,
    shared,
)
from jaxviz.features.debugger.stepping import Machine
from jaxviz.features.debugger.summaries import Summary, ValueAtStop, html_row, summarize
from jaxviz.higher_order import is_choice, is_loop
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.syntax import Equation, Program
from jaxviz.report.tables import code_html, printable, short_location

Move = TypeVar("Move", bound=Callable[..., Any])


def _locked(move: Move) -> Move:
    """A move that waits until another thread's move has finished: a notebook may process widget messages while a cell
    runs."""

    @api_boundary
    @functools.wraps(move)
    def waiting(self: Stepper, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            return move(self, *args, **kwargs)

    return waiting  # type: ignore[return-value]


class Stepper:
    """A function's forward and backward program, run equation by equation.

    >>> s = jaxviz.step(loss, params, x)
    >>> s.run(primitive="scan").into().to(iteration=7).next()
    >>> s.values["h"], s.run(when=lambda v: abs(v).max() > 1e3).hit

    Each move returns the stepper itself, which prints the stop that it has reached.

    Args:
      derivation: of the function.
      machine: what runs the programs.
      note: a remark, such as why there is no backward pass.
    """

    def __init__(self, derivation: Derivation, machine: Machine, note: str = ""):
        self.derivation = derivation
        self.machine = machine
        self.breakpoints: list[Breakpoint] = []
        self.hit: Hit | None = None
        """The breakpoint that the last move stopped at."""
        self.lock = threading.RLock()
        self.moves = 0
        """How many moves it has made."""
        self._note = note
        self._said = ""
        self._widget: Any = None
        self._view: Any = None
        self._on_stop: list[Callable[[Stepper], None]] = []
        self._texts = {name: StageText(name, stage.program) for name, stage in machine.stages.items()}
        self._armed: dict[Breakpoint, Armed] = {}
        self._result: Any = None
        self._places = CotangentPlaces(derivation, self._texts)
        self.values = Values(self)
        self.cotangents = Cotangents(self)

    # --- position -----------------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """The current position, as data that `goto` takes."""
        return self.machine.position

    @property
    def stage(self) -> str:
        """The program that is running: 'forward' and then 'backward', or 'primal'."""
        return self.position.stage

    @property
    def stages(self) -> tuple[str, ...]:
        """The programs that run, in order."""
        return tuple(self.machine.order)

    @property
    def is_done(self) -> bool:
        """Whether the run is complete."""
        return self.machine.is_done

    @property
    def program(self) -> Program:
        """The innermost program that holds the position."""
        return self.machine.program_at(self.position)

    @property
    def equation(self) -> Equation | None:
        """The equation that has just run; None at the start of a program."""
        i = self.position.index
        return self.program.equations[i - 1] if i else None

    @property
    def following(self) -> Equation | None:
        """The equation that runs next; None at the end of a program."""
        return self.machine.next_equation()

    @property
    def value(self) -> Any:
        """The first result of the equation that has just run."""
        if self.equation is None or not self.equation.outvars:
            raise SteppingError("Nothing has run yet in this program; `next()` runs an equation.")
        return self.machine.results_before(self.position)[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks: why there is no backward pass, where memory ran out, what differed when it was recomputed."""
        return tuple(n for n in (self._note, *self.machine.notes, self._said) if n)

    # --- moves --------------------------------------------------------------------------------------------------------

    @_locked
    def next(self, n: int = 1) -> Stepper:
        """Runs the next equation, including all programs that it holds; at the end of a loop's body, goes to the next
        iteration."""
        for _ in range(n):
            self.machine.next()
        return self._stopped()

    over = next

    @_locked
    def into(self) -> Stepper:
        """Enters the program of the next equation: a jitted function, a loop's body, the branch that is taken, a
        checkpoint, a function with a custom rule. If the equation holds no program, it does the same as `next`. A
        `shard_map` and the condition of a while loop are one step."""
        self.machine.into()
        return self._stopped()

    @_locked
    def out(self) -> Stepper:
        """Runs the rest of the innermost program, with all remaining iterations of a loop; in the outermost program,
        runs to its end."""
        self.machine.out()
        return self._stopped()

    @_locked
    def back(self, n: int = 1, into: bool = False) -> Stepper:
        """Goes back by one equation of the same program; from the start of a body, to the previous iteration or out of
        the body.

        Args:
          n: the number of equations.
          into: whether to enter the program of the previous equation at its end, if it holds one.
        """
        for _ in range(n):
            self.machine.back(into)
        return self._stopped()

    @_locked
    def to(self, iteration: int) -> Stepper:
        """Goes to the start of an iteration of the loop that the position is in, or otherwise of the loop that runs
        next.

        Args:
          iteration: the index of the slice of xs that it reads, from 0, forward or backward; a negative index counts
            from the end of a scan.

        Raises:
          SteppingError: there is no loop, or the loop has no such iteration.
        """
        p = self.position
        depths = [d for d, level in enumerate(p.path) if level.iteration is not None]
        if not depths:
            inner = self.machine.entry(p)
            if inner is None or inner.path[-1].iteration is None:
                raise SteppingError("There is no loop here: call `to` in a loop, or right before one.")
            p, depths = inner, [len(inner.path) - 1]
        depth = depths[-1]
        level = p.path[depth]
        if iteration < 0:
            loop = self.machine.program_at(Position(p.stage, p.path[:depth])).equations[level.index]
            iteration += int(loop.params.get("length", 0))
        self.machine.goto(Position(p.stage, (*p.path[:depth], Level(level.index, level.body, iteration)), 0))
        return self._stopped()

    @_locked
    def goto(self, position: Position) -> Stepper:
        """Goes to any position, forward or backward; the equations in between run at once.

        Raises:
          SteppingError: there is no such position.
        """
        self.machine.goto(position)
        return self._stopped()

    def restart(self) -> Stepper:
        """Goes back to the start."""
        return self.goto(Position(self.stages[0]))

    @_locked
    def run(
        self,
        line: int | str | None = None,
        primitive: str | None = None,
        name: str | None = None,
        when: Callable[[Any], Any] | None = None,
        non_finite: bool = False,
        equation: Equation | None = None,
        at: Any = None,
    ) -> Stepper:
        """Runs to the next breakpoint, or to the end; with arguments, runs to a breakpoint for this run only.

        >>> s.run(line=41)
        >>> s.run(when=lambda v: abs(v).max() > 1e3)

        Args:
          line, primitive, name, when, non_finite, equation, at: see `Breakpoint`; if several are given, all must hold.

        Raises:
          SteppingError: the breakpoint can never be hit; the message says why.
        """
        once = (line, primitive, name, when, non_finite, equation, at) != (None, None, None, None, False, None, None)
        armed = [self._arm(Breakpoint(line, primitive, name, when, non_finite, equation, at))] if once else []
        armed += [self._arm(b) for b in self.breakpoints] if not once else []
        start = self.position
        at_start = start == Position(self.stages[0])
        hit = hit_at_start(self.machine, armed) if at_start and self.hit is None else None
        hit = hit or run(self.machine, armed)
        said = ""
        if hit is None and armed:
            what = "; ".join(str(a.breakpoint) for a in armed)
            began = "" if at_start else f" from {self._place(start)} on; `restart()` goes back to the start"
            said = f"Ran to the end. Not hit{began}: {what}."
        return self._stopped(hit, said)

    @api_boundary
    def break_at(
        self,
        line: int | str | None = None,
        primitive: str | None = None,
        name: str | None = None,
        when: Callable[[Any], Any] | None = None,
        non_finite: bool = False,
        equation: Equation | None = None,
        at: Any = None,
    ) -> Breakpoint:
        """Adds a breakpoint, for `run` without arguments; see `Breakpoint`. `s.breakpoints` is the list of them.

        Raises:
          SteppingError: it can never be hit; the message says why.
        """
        added = Breakpoint(line, primitive, name, when, non_finite, equation, at)
        self._arm(added)
        self.breakpoints.append(added)
        if self._widget is not None:
            self._widget.update()
        return added

    def on_stop(self, callback: Callable[[Stepper], None]) -> None:
        """Calls a function with the stepper at each stop."""
        self._on_stop.append(callback)

    @functools.cached_property
    def _phases(self) -> ValuePhases:
        linear = [self.derivation.linear] if "backward" in self.stages else []
        return ValuePhases(self.derivation.primal, [*(text.program for text in self._texts.values()), *linear])

    def _arm(self, b: Breakpoint) -> Armed:
        if b not in self._armed:
            self._armed[b] = Armed.of(b, self.derivation, self._texts, self._phases, self._places)
        return self._armed[b]

    def _stopped(self, hit: Hit | None = None, said: str = "") -> Stepper:
        self.hit, self._said = hit, said
        self.moves += 1
        for callback in self._on_stop:
            callback(self)
        return self

    # --- results ------------------------------------------------------------------------------------------------------

    @property
    @api_boundary
    def result(self) -> Any:
        """The function's result, once it has run.

        Raises:
          SteppingError: the function has not finished.
        """
        stage = self.stages[0]
        self._check_passed(
            Position(stage, (), len(self._texts[stage].program.equations)), "The function has not returned yet"
        )
        flat, tree = self.machine.results(stage), self.derivation.out_tree
        n = len(self.derivation.primal.outvars) if tree is None else tree.num_leaves
        return flat[:n] if tree is None else jax.tree.unflatten(tree, flat[:n])

    @property
    @api_boundary
    def gradient(self) -> tuple[Any, ...]:
        """The cotangents of the differentiated flat inputs, once the backward pass is complete.

        Raises:
          SteppingError: the backward pass is not complete, or there is none.
        """
        if "backward" not in self.stages:
            raise SteppingError(f"There is no backward pass here. {self._note}".rstrip())
        backward = self._texts["backward"].program
        self._check_passed(Position("backward", (), len(backward.equations)), "The backward pass has not finished yet")
        results = iter(self.machine.results("backward"))
        inputs = [v for v, nz in zip(self.derivation.primal.invars, self.derivation.nonzeros, strict=True) if nz]
        nonzero = self.derivation.transposed.nonzeros_out
        return tuple(
            next(results) if nz else compat.zeros(compat.cotangent_type(v.aval))
            for v, nz in zip(inputs, nonzero, strict=True)
        )

    def _check_passed(self, needed: Position, what: str) -> None:
        if self.machine.sort_key(self.position) < self.machine.sort_key(needed):
            raise SteppingError(f"{what}: the run is at {self._place(self.position)}.")

    # --- values by name -----------------------------------------------------------------------------------------------

    def _value(self, stage: str, name: str, iterations: tuple[int, ...]) -> Any:
        text = self._texts[stage]
        variables = text.by_name.get(name, [])
        places: list[Place] = [(site, (v,)) for v in variables for site in text.sites.get(v, ())]
        if not places:
            raise NoValueError(f"The {stage} program has no variable `{name}` that can be shown.")
        return self._look(stage, name, places, iterations, f"`{name}`")

    def _look(self, stage: str, name: str, places: Sequence[Place], iterations: tuple[int, ...], what: str) -> Any:
        """The value at the passed place that is nearest to the position."""
        if any(compat.is_ref(v.aval) for _, parts in places for v in parts):
            raise NoValueError(
                f"{what} is a mutable reference, with another value after each write; look at a value that is read "
                "from it."
            )
        here: StaticPath = ()
        if self.position.stage == stage:
            here = tuple((level.index, level.body) for level in self.position.path)
        places = sorted(places, key=lambda place: (-shared(here, place[0].path), len(place[0].path)))
        errors: list[SteppingError] = []
        for site, parts in places:
            try:
                p = self._position(stage, site, iterations, name)
                if self.machine.sort_key(p) > self.machine.sort_key(self.position):
                    raise NoValueError(self._not_yet(stage, site, what))
                return functools.reduce(operator.add, [self.machine.value(p, part) for part in parts])
            except SteppingError as error:
                errors.append(error)
        raise errors[0]

    def _not_yet(self, stage: str, site: EquationSite, what: str) -> str:
        maker = f"equation {site.index - 1}" if site.index else "the start"
        within = f" of `{site.holders[-1].primitive.name}`" if site.holders else ""
        return (
            f"{what} is not available yet: it is computed by {maker}{within} of the {stage} program; "
            f"the run is at {self._place(self.position)}."
        )

    def _position(self, stage: str, site: EquationSite, iterations: tuple[int, ...], name: str) -> Position:
        """The position where a variable is computed: iterations as given, counted from the innermost, the others from
        the current position."""
        here = self.position.path if self.position.stage == stage else ()
        loops = [is_loop(e) for e in site.holders]
        if len(iterations) > sum(loops):
            raise NoValueError(
                f"`{name}` is in {sum(loops)} loops, so it takes at most that many iterations; got {iterations}."
            )
        n_ours = sum(loops) - len(iterations)
        counts = iter(iterations)
        path: list[Level] = []
        is_shared = True
        for depth, ((index, body), goes_round) in enumerate(zip(site.path, loops, strict=True)):
            ours = here[depth] if is_shared and depth < len(here) else None
            is_shared = ours is not None and (ours.index, ours.body) == (index, body)
            iteration = None
            if goes_round and sum(loops[:depth]) >= n_ours:
                iteration = next(counts)
                is_shared = is_shared and ours is not None and ours.iteration == iteration
            elif goes_round:
                if not is_shared or ours is None:
                    loop = described(site.holders[depth])
                    raise NoValueError(f"`{name}` is in the body of {loop}: give the iteration, as in ['{name}', 0].")
                iteration = ours.iteration
            path.append(Level(index, body, iteration))
        return Position(stage, tuple(path), site.index)

    def _bound(self) -> list[str]:
        """The names of available values, in the programs that contain the position."""
        text, p = self._texts[self.stage], self.position
        names: dict[str, None] = {}
        for depth in range(len(p.path) + 1):
            program = self.machine.program_at(Position(p.stage, p.path[:depth]))
            index = p.path[depth].index if depth < len(p.path) else p.index
            results = [v for e in program.equations[:index] for v in e.outvars]
            names.update((text.names[v], None) for v in (*program.constvars, *program.invars, *results))
        return [name for name in names if name != "_"]

    # --- cotangents ---------------------------------------------------------------------------------------------------

    def _cotangent(self, name: str, iterations: tuple[int, ...]) -> Any:
        if "backward" not in self.stages:
            raise NoValueError(f"There is no backward pass here, and so no cotangents. {self._note}".rstrip())
        text = self._texts["forward"]
        variables = [v for v in text.by_name.get(name, []) if v in text.sites]
        if not variables:
            raise NoValueError(f"The forward program has no variable `{name}` that can be shown.")
        places = [place for v in variables for s in text.sites[v] if (place := self._places.place(s, v)) is not None]
        if not places:
            raise NoValueError(
                f"`{name}` has no cotangent of its own: the result does not depend on it differentiably, or only "
                "the backward pass reads it, or it is another value plus a constant and one equation reads both."
            )
        if self.stage != "backward":
            raise NoValueError(f"The cotangent of `{name}` is not available yet: the backward pass has not begun.")
        return self._look("backward", name, places, iterations, f"The cotangent of `{name}`")

    def _known_cotangents(self) -> list[str]:
        """The names of values outside loops whose cotangents are known."""
        if self.stage != "backward":
            return []
        text = self._texts["forward"]
        names = []
        for name, variables in text.by_name.items():
            for v in variables:
                for site in text.sites.get(v, ()):
                    place = self._places.place(site, v) if not site.loops else None
                    if place is not None and not place[0].loops:
                        p = self._position("backward", place[0], (), name)
                        if self.machine.sort_key(p) <= self.machine.sort_key(self.position):
                            names.append(name)
        return list(dict.fromkeys(names))

    # --- the stop, as data for display --------------------------------------------------------------------------------

    @property
    def shown(self) -> tuple[ValueAtStop, ...]:
        """The results of the equation that has just run, or the inputs at the start of a program; in the backward pass,
        with the value that each is the cotangent of."""
        text = self._texts[self.stage]
        p = self.position
        frame = self.machine.frame(p.stage, p.path)
        variables = self.equation.outvars if self.equation is not None else frame.program.invars
        of = self._places.names if self.stage == "backward" else {}
        return tuple(
            ValueAtStop(text.names.get(v, "_"), summarize(self.machine.value(p, v)), of.get(v, "")) for v in variables
        )

    def summary(self, name: str, *iterations: int) -> Summary:
        """Summarizes a value in a few numbers; of arrays on a device, only these are copied to the host."""
        return summarize(self.values[(name, *iterations)])

    @property
    def title(self) -> str:
        """What the stepper runs: a gradient, or only the function."""
        d = self.derivation
        return f"function `{d.primal.name}`" if self.machine.order == ["primal"] else d.gradient

    def _place(self, p: Position) -> str:
        n = len(self.machine.program_at(p).equations)
        where = f"equation {p.index} of {n}" if p.index < n else f"the end of {n} equations"
        levels = zip(p.path[::-1], self.machine.holders(p)[::-1], strict=True)
        within = "".join(f", in {self._level(level, e)}" for level, e in levels)
        return f"{where}{within} of the {p.stage} program"

    def _level(self, level: Level, e: Equation) -> str:
        if level.iteration is not None:
            total = f" of {e.params['length']:,}" if "length" in e.params else ""
            return f"iteration {level.iteration:,}{total} of {described(e, level.index)}"
        branch = f"branch {level.body[9:-1]} of " if level.body.startswith("branches[") else ""
        return branch + described(e, level.index)

    def _taken(self) -> int | None:
        """The branch that the next equation takes, if it is a cond."""
        e = self.following
        if e is None or not is_choice(e):
            return None
        return self.machine.branch(e, self.stage, self.position.path)

    def __str__(self) -> str:
        text, p = self._texts[self.stage], self.position
        lines = [f"{self.title}: {'done, at ' if self.is_done else ''}{self._place(p)}"]
        if self.hit is not None:
            of = f" by {text.names.get(self.hit.variable, '_')}" if self.hit.variable is not None else ""
            lines.append(f"  stopped at: {self.hit.breakpoint}{of}")
        if self.equation is not None:
            lines.append(f"  ran   {text.equation(self.equation)}{self._line(self.equation)}")
        for value in self.shown[:12]:
            of = f", cotangent of {value.cotangent}" if value.cotangent else ""
            lines.append(f"    {value.name}: {value.summary}{of}")
            if value.summary.size > 1 and value.summary.histogram:
                lines.append(f"      {value.summary.bars()}")
        if self.following is not None:
            taken = self._taken()
            branch = f", takes branch {taken}" if taken is not None else ""
            into = "; can be stepped into" if can_enter(self.following) else ""
            lines.append(f"  next  {text.equation(self.following)}{self._line(self.following)}{branch}{into}")
            lines += [f"    {exchange_text(i)}" for i in implied(self.following.operation)]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    __repr__ = __str__

    def _line(self, e: Equation) -> str:
        at = location_of(e, self.machine.holders(self.position))
        return f"  {short_location(at)}" if at is not None else ""

    def to_dict(self) -> dict[str, Any]:
        """The stop as plain data."""
        text, p = self._texts[self.stage], self.position

        def equation(e: Equation | None, index: int) -> dict[str, Any] | None:
            if e is None:
                return None
            at = location_of(e, self.machine.holders(p))
            return {
                "index": index, "primitive": e.primitive.name, "text": text.equation(e), "can_enter": can_enter(e),
                "location": {"file": at.file, "line": at.line, "function": at.function} if at is not None else None,
            }  # fmt: skip

        path = [
            {
                "index": level.index, "body": level.body, "iteration": level.iteration, "primitive": e.primitive.name,
                "length": self.machine.length(depth) if level.iteration is not None else None,
            }
            for depth, (level, e) in enumerate(zip(p.path, self.machine.holders(p), strict=True))
        ]  # fmt: skip
        return {
            "function": self.derivation.primal.name,
            "title": self.title,
            "stages": list(self.stages),
            "stage": p.stage,
            "path": path,
            "index": p.index,
            "equations": len(self.program.equations),
            "is_done": self.is_done,
            "ran": equation(self.equation, p.index - 1),
            "next": equation(self.following, p.index),
            "branch": self._taken(),
            "values": [value.to_dict() for value in self.shown],
            "cotangents": list(self.cotangents),
            "breakpoints": [str(b) for b in self.breakpoints],
            "hit": str(self.hit.breakpoint) if self.hit is not None else None,
            "kept_bytes": self.machine.history.nbytes,
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        text, p = self._texts[self.stage], self.position
        head = f"{self.title}: {self._place(p)}"
        equations = self.program.equations
        lines = []
        for i in range(max(0, p.index - 4), min(len(equations), p.index + 4)):
            mark = "▶" if i == p.index else "✓" if i < p.index else " "
            weight = ' style="font-weight:bold"' if i == p.index - 1 else ""
            code = printable(f"{mark} {i:>4}  {text.equation(equations[i])}{self._line(equations[i])}")
            lines.append(f"<div{weight}>{html.escape(code)}</div>")
        rows = "".join(html_row(value) for value in self.shown[:24])
        said = [f"Stopped at: {self.hit.breakpoint}"] if self.hit is not None else []
        notes = "".join(f"<p>{html.escape(printable(n))}</p>" for n in (*said, *self.notes))
        return (
            f"<div><p><b>{code_html(head)}</b></p>"
            f'<pre style="line-height:1.4">{"".join(lines)}</pre><table>{rows}</table>{notes}</div>'
        )

    def widget(self) -> Any:
        """The stepper as a widget: source, jaxpr and values side by side. It moves with the stepper, and moves it.

        A notebook shows this widget for the stepper. Where the widget is already shown, a cell that ends in a move
        shows the stop.
        """
        if self._widget is None or self._widget.comm is None:
            self._widget = display("widget of a stepper")(self)
        return self._widget

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return display("output of a stepper")(self, **kwargs)
