"""`step`: the debugger of a function's forward and backward program, as a plain object."""

from __future__ import annotations

import base64
import functools
import html
import operator
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from jaxviz.analysis.budgets import read_size
from jaxviz.analysis.tables import printable, short_location
from jaxviz.analysis.walk import location_of
from jaxviz.derivation import Derivation, derive, flat_arguments, in_bounds
from jaxviz.ir import compat
from jaxviz.ir.errors import EquationError
from jaxviz.ir.origin import ancestors
from jaxviz.ir.pretty import describe_equation, printed_params, variable_names
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.runtime.breakpoints import Armed, Breakpoint, Hit, hit_at_start, run
from jaxviz.runtime.donated import check_not_donated
from jaxviz.runtime.positions import Level, NoValueError, Position, Stage, SteppingError, can_enter, enterable
from jaxviz.runtime.stepping import Machine
from jaxviz.runtime.summaries import Picture, Summary, summarize

StaticPath = tuple[tuple[int, str], ...]
"""The equations on the way to a program, and which of their programs."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a variable is made: in the program at the end of `path`, there before equation `index` runs."""

    path: StaticPath
    index: int
    holders: tuple[Equation, ...]
    """The equations of the path."""

    @property
    def loops(self) -> int:
        return sum(e.primitive in (compat.scan_p, compat.while_p) for e in self.holders)


Place = tuple[Site, tuple[Atom, ...]]
"""Where a value is made, as the sum of some variables."""


@dataclass(frozen=True)
class Text:
    """One stage's program as it is read: names of its variables, and where each is made."""

    stage: str
    program: Program

    @cached_property
    def names(self) -> dict[Var, str]:
        return variable_names(self.program)

    @cached_property
    def by_name(self) -> dict[str, list[Var]]:
        found: dict[str, list[Var]] = {}
        for v, name in self.names.items():
            if name != "_":
                found.setdefault(name, []).append(v)
        return found

    @cached_property
    def sites(self) -> dict[Var, list[Site]]:
        found: dict[Var, list[Site]] = {}
        for program, path, holders in self.programs:
            for v in (*program.constvars, *program.invars):
                found.setdefault(v, []).append(Site(path, 0, holders))
            for i, e in enumerate(program.equations):
                for v in e.outvars:
                    found.setdefault(v, []).append(Site(path, i + 1, holders))
        return found

    @cached_property
    def programs(self) -> list[tuple[Program, StaticPath, tuple[Equation, ...]]]:
        """The program and those in it that can be stepped into."""
        found: list[tuple[Program, StaticPath, tuple[Equation, ...]]] = []

        def walk(program: Program, path: StaticPath, holders: tuple[Equation, ...]) -> None:
            found.append((program, path, holders))
            for i, e in enumerate(program.equations):
                for label, inner in enterable(e) if e.operation.programs else ():
                    walk(inner, (*path, (i, label)), (*holders, e))

        walk(self.program, (), ())
        return found

    def atom(self, a: Atom) -> str:
        return printable(str(a.val), 24) if isinstance(a, Literal) else self.names.get(a, "_")

    def equation(self, e: Equation) -> str:
        """`b:f32[3] = tanh a`, with the params that are not programs."""
        results = " ".join(f"{self.atom(v)}:{v.aval.str_short(short_dtypes=True)}" for v in e.outvars)
        params = " ".join(p for p in printed_params(e.operation) if "=" in p)
        shown = f"[{printable(params, 60)}]" if params else ""
        return f"{results} = {e.primitive.name}{shown} {' '.join(map(self.atom, e.invars))}".rstrip()


@dataclass(frozen=True, slots=True)
class Value:
    """A value at a stop.

    Args:
      name: of its variable.
      summary: what it looks like.
      cotangent: of what it is the cotangent; '' for a value of the program itself.
    """

    name: str
    summary: Summary
    cotangent: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "cotangent": self.cotangent, **self.summary.to_dict()}


class Values(Mapping[Any, Any]):
    """Values by the name that the program prints: `s.values["b"]`, in a loop `s.values["b", 7]` of iteration 7.

    Args:
      stepper: whose values.
      stage: the program whose names they are; that of the position by default.
    """

    def __init__(self, stepper: Stepper, stage: str | None = None):
        self._stepper, self._stage = stepper, stage

    def __getitem__(self, key: Any) -> Any:
        name, iterations = _key(key)
        s = self._stepper
        return s._value(self._stage or s.position.stage, name, iterations)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stepper._bound(self._stage or self._stepper.position.stage))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return f"values of {', '.join(self)}"


class Cotangents(Mapping[Any, Any]):
    """Cotangents of values of the forward program: `s.cotangents["b"]`, in a loop `s.cotangents["b", 7]` of iteration 7.

    There once the backward pass has passed the place; taken together from all that reads the value. Of what a loop reads unchanged in
    each iteration, the cotangent in its body is what the iterations so far have added up.
    """

    def __init__(self, stepper: Stepper):
        self._stepper = stepper

    def __getitem__(self, key: Any) -> Any:
        name, iterations = _key(key)
        return self._stepper._cotangent(name, iterations)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stepper._known_cotangents())

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return f"cotangents of {', '.join(self)}" if len(self) else "no cotangents yet"


def _key(key: Any) -> tuple[str, tuple[int, ...]]:
    name, *iterations = key if isinstance(key, tuple) else (key,)
    return str(name), tuple(int(i) for i in iterations)


class Stepper:
    """A function's forward and backward program, run equation by equation.

    >>> s = jaxviz.step(loss, params, x)
    >>> s.run(primitive="scan").into().to(iteration=7).next()
    >>> s.values["h"], s.run(when=lambda v: abs(v).max() > 1e3).hit

    Each move gives the stepper itself back, which prints as the stop that it has come to.

    Args:
      derivation: of the function.
      machine: that runs its programs.
      note: what else there is to say, as why there is no backward pass.
    """

    def __init__(self, derivation: Derivation, machine: Machine, note: str = ""):
        self.derivation = derivation
        self.machine = machine
        self.breakpoints: list[Breakpoint] = []
        self.hit: Hit | None = None
        """The breakpoint that the last move stopped at."""
        self._note = note
        self._said = ""
        self._on_stop: list[Callable[[Stepper], None]] = []
        self._texts = {name: Text(name, stage.program) for name, stage in machine.stages.items()}
        self._armed: dict[Breakpoint, Armed] = {}
        self._result: Any = None
        self.values = Values(self)
        self.cotangents = Cotangents(self)

    # --- where it is --------------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """The place in the run, as data; `goto` takes it."""
        return self.machine.position

    @property
    def stage(self) -> str:
        """The program that is run: 'forward' and then 'backward', or 'primal'."""
        return self.position.stage

    @property
    def stages(self) -> tuple[str, ...]:
        """The programs that are run, in order."""
        return tuple(self.machine.order)

    @property
    def is_done(self) -> bool:
        """Whether all has run."""
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
        """What the equation that has just run gave: the first of its results."""
        if self.equation is None or not self.equation.outvars:
            raise SteppingError("Nothing has run yet in this program; `next()` runs an equation.")
        return self.machine.results_before(self.position)[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known: why there is no backward pass, what memory ran out for, what differed when it was run again."""
        return tuple(n for n in (self._note, *self.machine.notes, self._said) if n)

    # --- moves --------------------------------------------------------------------------------------------------------

    def next(self, n: int = 1) -> Stepper:
        """Runs the next equation, whatever it holds at once; at the end of a loop's body, goes on to the next iteration."""
        for _ in range(n):
            self.machine.next()
        return self._stopped()

    over = next

    def into(self) -> Stepper:
        """Goes into the program of the next equation: a jitted function, a loop's body, the branch taken, a checkpoint, a function with
        a custom rule. Where there is none, as `next`. A `shard_map` and the condition of a while loop are one step."""
        self.machine.into()
        return self._stopped()

    def out(self) -> Stepper:
        """Runs what is left of the program that the position is in, all iterations of a loop; of the outermost, to its end."""
        self.machine.out()
        return self._stopped()

    def back(self, n: int = 1, into: bool = False) -> Stepper:
        """Goes back in time by one equation of the same program, from the start of a body out of it or to the iteration before.

        Args:
          n: by how many.
          into: to the end of what the equation before ran, if that can be stepped into.
        """
        for _ in range(n):
            self.machine.back(into)
        return self._stopped()

    def to(self, iteration: int) -> Stepper:
        """Goes to the start of an iteration of the loop that the position is in, or else of the one that is next.

        Args:
          iteration: which of the xs it reads, from 0, ahead or back; negative from the end of a scan.

        Raises:
          SteppingError: there is no loop, or it has no such iteration.
        """
        p = self.position
        depths = [d for d, level in enumerate(p.path) if level.iteration is not None]
        if not depths:
            inner = self.machine.entry(p)
            if inner is None or inner.path[-1].iteration is None:
                raise SteppingError("There is no loop here: `to` takes a position in a loop, or right before one.")
            p, depths = inner, [len(inner.path) - 1]
        depth = depths[-1]
        level = p.path[depth]
        if iteration < 0:
            loop = self.machine.program_at(Position(p.stage, p.path[:depth])).equations[level.index]
            iteration += int(loop.params.get("length", 0))
        self.machine.goto(Position(p.stage, (*p.path[:depth], Level(level.index, level.body, iteration)), 0))
        return self._stopped()

    def goto(self, position: Position) -> Stepper:
        """Goes to any position, ahead or back; what is missing on the way is run at once.

        Raises:
          SteppingError: there is no such position.
        """
        self.machine.goto(position)
        return self._stopped()

    def restart(self) -> Stepper:
        """Goes back to the start."""
        return self.goto(Position(self.stages[0]))

    def run(
        self,
        line: int | str | None = None,
        primitive: str | None = None,
        name: str | None = None,
        when: Callable[[Any], Any] | None = None,
        non_finite: bool = False,
    ) -> Stepper:
        """Runs to the next breakpoint, or to the end; with arguments to a breakpoint that is for this run alone.

        >>> s.run(line=41)
        >>> s.run(when=lambda v: abs(v).max() > 1e3)

        Args:
          line, primitive, name, when, non_finite: see `Breakpoint`; where several are given, all have to hold.

        Raises:
          SteppingError: the breakpoint can never be hit; the message says why.
        """
        once = (line, primitive, name, when, non_finite) != (None, None, None, None, False)
        armed = [self._arm(Breakpoint(line, primitive, name, when, non_finite))] if once else []
        armed += [self._arm(b) for b in self.breakpoints] if not once else []
        names = {stage: text.names for stage, text in self._texts.items()}
        start = self.position
        at_start = start == Position(self.stages[0])
        hit = hit_at_start(self.machine, armed, names) if at_start and self.hit is None else None
        hit = hit or run(self.machine, armed, names)
        said = ""
        if hit is None and armed:
            what = "; ".join(str(a.breakpoint) for a in armed)
            began = "" if at_start else f" from {self._place(start)} on; `restart()` goes back to the start"
            said = f"Ran to the end. Not hit{began}: {what}."
        return self._stopped(hit, said)

    def break_at(
        self,
        line: int | str | None = None,
        primitive: str | None = None,
        name: str | None = None,
        when: Callable[[Any], Any] | None = None,
        non_finite: bool = False,
    ) -> Breakpoint:
        """Adds a breakpoint, for `run` without arguments; see `Breakpoint`. `s.breakpoints` is the list of them.

        Raises:
          SteppingError: it can never be hit; the message says why.
        """
        made = Breakpoint(line, primitive, name, when, non_finite)
        self._arm(made)
        self.breakpoints.append(made)
        return made

    def on_stop(self, callback: Callable[[Stepper], None]) -> None:
        """Has a function called with the stepper at each stop."""
        self._on_stop.append(callback)

    def _arm(self, b: Breakpoint) -> Armed:
        if b not in self._armed:
            programs = {name: text.program for name, text in self._texts.items()}
            self._armed[b] = Armed.of(b, programs, {name: text.names for name, text in self._texts.items()})
        return self._armed[b]

    def _stopped(self, hit: Hit | None = None, said: str = "") -> Stepper:
        self.hit, self._said = hit, said
        for callback in self._on_stop:
            callback(self)
        return self

    # --- results ------------------------------------------------------------------------------------------------------

    @property
    def result(self) -> Any:
        """What the function returns, once it has run.

        Raises:
          SteppingError: it has not.
        """
        stage = self.stages[0]
        self._check_passed(
            Position(stage, (), len(self._texts[stage].program.equations)), "The function has not returned yet"
        )
        flat = self.machine.results(stage)[: len(self.derivation.primal.outvars)]
        tree = self.derivation.out_tree
        return flat if tree is None else jax.tree.unflatten(tree, flat)

    @property
    def gradient(self) -> tuple[Any, ...]:
        """The cotangents of the flat inputs that are differentiated, once the backward pass is over.

        Raises:
          SteppingError: it is not, or there is none.
        """
        if "backward" not in self.stages:
            raise SteppingError(f"There is no backward pass here. {self._note}".rstrip())
        backward = self._texts["backward"].program
        self._check_passed(Position("backward", (), len(backward.equations)), "The backward pass is not over yet")
        given = iter(self.machine.results("backward"))
        inputs = [v for v, nz in zip(self.derivation.primal.invars, self.derivation.nonzeros, strict=True) if nz]
        nonzero = self.derivation.transposed.nonzeros_out
        return tuple(
            next(given) if nz else compat.zeros(compat.cotangent_type(v.aval))
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
            raise NoValueError(f"The {stage} program has no variable `{name}` that can be looked at.")
        return self._look(stage, name, places, iterations, f"`{name}`")

    def _look(self, stage: str, name: str, places: Sequence[Place], iterations: tuple[int, ...], what: str) -> Any:
        """The value of the place that is nearest to the position, of those that have been passed."""
        here: StaticPath = ()
        if self.position.stage == stage:
            here = tuple((level.index, level.body) for level in self.position.path)
        places = sorted(places, key=lambda place: (-_shared(here, place[0].path), len(place[0].path)))
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

    def _not_yet(self, stage: str, site: Site, what: str) -> str:
        made = f"equation {site.index - 1}" if site.index else "the start"
        within = f" of `{site.holders[-1].primitive.name}`" if site.holders else ""
        return f"{what} is not there yet: it is made by {made}{within} of the {stage} program; the run is at {self._place(self.position)}."

    def _position(self, stage: str, site: Site, iterations: tuple[int, ...], name: str) -> Position:
        """The position where a variable is made: iterations as given, counted from the innermost, others those of the position."""
        here = self.position.path if self.position.stage == stage else ()
        loops = [e.primitive in (compat.scan_p, compat.while_p) for e in site.holders]
        if len(iterations) > sum(loops):
            raise NoValueError(
                f"`{name}` is in {sum(loops)} loops, so it takes no more iterations than that; got {iterations}."
            )
        n_ours = sum(loops) - len(iterations)
        given = iter(iterations)
        path: list[Level] = []
        is_shared = True
        for depth, ((index, body), is_loop) in enumerate(zip(site.path, loops, strict=True)):
            ours = here[depth] if is_shared and depth < len(here) else None
            is_shared = ours is not None and (ours.index, ours.body) == (index, body)
            iteration = None
            if is_loop and sum(loops[:depth]) >= n_ours:
                iteration = next(given)
                is_shared = is_shared and ours is not None and ours.iteration == iteration
            elif is_loop:
                if not is_shared or ours is None:
                    loop = describe_equation(site.holders[depth])
                    raise NoValueError(
                        f"`{name}` is in the body of {loop}: say of which iteration, as in ['{name}', 0]."
                    )
                iteration = ours.iteration
            path.append(Level(index, body, iteration))
        return Position(stage, tuple(path), site.index)

    def _bound(self, stage: str) -> list[str]:
        """The names of what is there, in the programs that hold the position."""
        text, p = self._texts[stage], self.position
        if p.stage != stage:
            if self.machine.order.index(stage) > self.machine.order.index(p.stage):
                return []
            p = Position(stage, (), len(text.program.equations))
        found: dict[str, None] = {}
        for depth in range(len(p.path) + 1):
            program = self.machine.program_at(Position(stage, p.path[:depth]))
            index = p.path[depth].index if depth < len(p.path) else p.index
            made = [v for e in program.equations[:index] for v in e.outvars]
            found.update((text.names[v], None) for v in (*program.constvars, *program.invars, *made))
        return [name for name in found if name != "_"]

    # --- cotangents ---------------------------------------------------------------------------------------------------

    @cached_property
    def _cotangent_places(self) -> dict[Atom, list[Place]]:
        """For values of the forward program, and of what was checkpointed, where the backward program makes their cotangents."""
        found: dict[Atom, list[Place]] = {}
        for program, path, holders in self._texts["backward"].programs:
            made: dict[Atom, int] = {v: i + 1 for i, e in enumerate(program.equations) for v in e.outvars}
            for value, ct in program.cotangents().items():
                site = Site(path, max(made.get(part, 0) for part in ct), holders)
                found.setdefault(value, []).append((site, ct))
        return found

    @cached_property
    def _checkpointed(self) -> dict[int, Equation]:
        """The equations of checkpointed functions, by their origins, which the copies in the forward program have too."""
        found = {}
        for checkpoint in self.derivation.linearized.checkpoints:
            for _, e in checkpoint.forward.walk():
                if e.origin is not None:
                    found[id(e.origin)] = e
        return found

    @cached_property
    def _stands_for(self) -> dict[Var, Var]:
        """From results of such a copy to those of the equation that it is a copy of."""
        found: dict[Var, Var] = {}
        for program, _, _ in self._texts["forward"].programs:
            for e in program.equations:
                original = self._checkpointed.get(id(e.origin))
                if original is not None and len(original.outvars) == len(e.outvars):
                    found.update(zip(e.outvars, original.outvars, strict=True))
        return found

    @cached_property
    def _alike(self) -> dict[Var, list[tuple[Site, Var]]]:
        """The variables of the forward program by what they stand for, in order."""
        found: dict[Var, list[tuple[Site, Var]]] = {}
        text = self._texts["forward"]
        for program, _, _ in text.programs:
            for v in (*program.invars, *(v for e in program.equations for v in e.outvars)):
                for site in text.sites[v]:
                    group = found.setdefault(self._stands_for.get(v, v), [])
                    if (site, v) not in group:
                        group.append((site, v))
        return found

    def _cotangent_place(self, site: Site, v: Var) -> Place | None:
        """Where the cotangent of a variable of the forward program is made; None where it has none."""
        of = self._stands_for.get(v, v)
        way = _way(site.holders)
        there = [place for place in self._cotangent_places.get(of, ()) if _way(place[0].holders) == way]
        if len(there) < 2:
            return there[0] if there else None
        # What is called several times is one program: the backward pass meets the calls in reverse.
        forward = [place for place in self._alike[of] if _way(place[0].holders) == way]
        rank = forward.index((site, v))
        return there[len(there) - 1 - rank] if len(there) == len(forward) else None

    def _cotangent(self, name: str, iterations: tuple[int, ...]) -> Any:
        if "backward" not in self.stages:
            raise NoValueError(f"There is no backward pass here, and so no cotangents. {self._note}".rstrip())
        text = self._texts["forward"]
        variables = [v for v in text.by_name.get(name, []) if v in text.sites]
        if not variables:
            raise NoValueError(f"The forward program has no variable `{name}` that can be looked at.")
        places = [place for v in variables for s in text.sites[v] if (place := self._cotangent_place(s, v)) is not None]
        if not places:
            raise NoValueError(
                f"`{name}` has no cotangent of its own: the result does not depend on it in a way that is differentiated, or it is kept "
                "for the backward pass and read there alone, or it is another value plus a constant and both are read by one equation."
            )
        if self.stage != "backward":
            raise NoValueError(f"The cotangent of `{name}` is not there yet: the backward pass has not begun.")
        return self._look("backward", name, places, iterations, f"The cotangent of `{name}`")

    def _known_cotangents(self) -> list[str]:
        """The names of values outside of loops whose cotangents are there."""
        if self.stage != "backward":
            return []
        text = self._texts["forward"]
        found = []
        for name, variables in text.by_name.items():
            for v in variables:
                for site in text.sites.get(v, ()):
                    place = self._cotangent_place(site, v) if not site.loops else None
                    if place is not None and not place[0].loops:
                        p = self._position("backward", place[0], (), name)
                        if self.machine.sort_key(p) <= self.machine.sort_key(self.position):
                            found.append(name)
        return list(dict.fromkeys(found))

    # --- the stop, to be shown ----------------------------------------------------------------------------------------

    @property
    def shown(self) -> tuple[Value, ...]:
        """What the equation that has just run gave, or the inputs at the start of a program; in the backward pass, with what each
        is the cotangent of."""
        text = self._texts[self.stage]
        p = self.position
        frame = self.machine.frame(p.stage, p.path)
        variables = self.equation.outvars if self.equation is not None else frame.program.invars
        of = self._cotangents_of if self.stage == "backward" else {}
        return tuple(
            Value(text.names.get(v, "_"), summarize(self.machine.value(p, v)), of.get(v, "")) for v in variables
        )

    @cached_property
    def _cotangents_of(self) -> dict[Atom, str]:
        """For a variable of the backward program, the names of the forward values that it is the cotangent of."""
        found: dict[Atom, list[str]] = {}
        text = self._texts["forward"]
        for v, name in text.names.items():
            for site in text.sites.get(v, ()):
                place = self._cotangent_place(site, v)
                if place is not None and len(place[1]) == 1 and name != "_":
                    names = found.setdefault(place[1][0], [])
                    if name not in names:
                        names.append(name)
        return {ct: ", ".join(names) for ct, names in found.items()}

    def summary(self, name: str, *iterations: int) -> Summary:
        """A value in a few numbers; of arrays on a device these are all that comes back."""
        return summarize(self.values[(name, *iterations)])

    def _place(self, p: Position) -> str:
        n = len(self.machine.program_at(p).equations)
        where = f"equation {p.index} of {n}" if p.index < n else f"the end of {n} equations"
        within = ", in ".join(self._level(level, e) for level, e in self._levels(p))
        return f"{where}{f', in {within}' if within else ''} of the {p.stage} program"

    def _levels(self, p: Position) -> list[tuple[Level, Equation]]:
        return list(zip(p.path, self.machine.holders(p), strict=True))[::-1]

    def _level(self, level: Level, e: Equation) -> str:
        if level.iteration is not None:
            total = f" of {e.params['length']:,}" if "length" in e.params else ""
            return f"iteration {level.iteration:,}{total} of {describe_equation(e, level.index)}"
        branch = f"branch {level.body[9:-1]} of " if level.body.startswith("branches[") else ""
        return branch + describe_equation(e, level.index)

    def _taken(self) -> int | None:
        """The branch that the next equation takes, if it is a cond."""
        e = self.following
        if e is None or e.primitive is not compat.cond_p:
            return None
        return self.machine.branch(e, self.stage, self.position.path)

    def __str__(self) -> str:
        text, p = self._texts[self.stage], self.position
        lines = [f"{self.derivation.primal.name}: {'done, at ' if self.is_done else ''}{self._place(p)}"]
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
            "kept_bytes": self.machine.kept.nbytes,
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        text, p = self._texts[self.stage], self.position
        head = f"{self.derivation.primal.name}: {self._place(p)}"
        equations = self.program.equations
        lines = []
        for i in range(max(0, p.index - 4), min(len(equations), p.index + 4)):
            mark = "▶" if i == p.index else "✓" if i < p.index else " "
            weight = ' style="font-weight:bold"' if i == p.index - 1 else ""
            code = printable(f"{mark} {i:>4}  {text.equation(equations[i])}{self._line(equations[i])}")
            lines.append(f"<div{weight}>{html.escape(code)}</div>")
        rows = "".join(_html_row(value) for value in self.shown[:24])
        said = [f"Stopped at: {self.hit.breakpoint}"] if self.hit is not None else []
        notes = "".join(f"<p>{html.escape(printable(n))}</p>" for n in (*said, *self.notes))
        return (
            f"<div><p><b>{html.escape(printable(head))}</b></p>"
            f'<pre style="line-height:1.4">{"".join(lines)}</pre><table>{rows}</table>{notes}</div>'
        )


def _html_row(value: Value) -> str:
    of = f" (cotangent of {value.cotangent})" if value.cotangent else ""
    picture = f'<img alt="" style="{_IMAGE}" src="{png(value.summary.picture)}">' if value.summary.picture else ""
    told = html.escape(printable(str(value.summary)))
    name = html.escape(printable(value.name + of))
    return f"<tr><td>{name}</td><td>{told}</td><td>{_bars(value.summary)}</td><td>{picture}</td></tr>"


_IMAGE = "image-rendering:pixelated;width:96px;max-height:96px;min-height:8px"


def _bars(summary: Summary) -> str:
    most = max(summary.histogram, default=0)
    if summary.size < 2 or not most:
        return ""
    bars = "".join(
        f'<rect x="{3 * i}" y="{32 - 32 * n / most:.1f}" width="2" height="{32 * n / most:.1f}"/>'
        for i, n in enumerate(summary.histogram)
    )
    return f'<svg width="{3 * len(summary.histogram)}" height="32" fill="currentColor" role="img"><title>histogram</title>{bars}</svg>'


def png(picture: Picture) -> str:
    """A picture as the address of a PNG: shades of grey, red where there is something that is not finite."""
    grey = b"".join(bytes((i, i, i)) for i in range(255)) + b"\xd0\x10\x10"
    rows = b"".join(
        b"\0" + picture.shades[r * picture.columns : (r + 1) * picture.columns] for r in range(picture.rows)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", picture.columns, picture.rows, 8, 3, 0, 0, 0)
    made = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"PLTE", grey)
    made += chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(made).decode()}"


def _shared(a: StaticPath, b: StaticPath) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def _way(holders: Sequence[Equation]) -> tuple[Equation, ...]:
    """The user's equations that lead into a program, but for checkpoints, whose bodies the forward program has in their place."""
    found = [([*ancestors(e)] or [e])[-1] for e in holders]
    return tuple(e for e in found if e.primitive is not compat.remat_p)


# --- step -------------------------------------------------------------------------------------------------------------


def step(
    f: Any,
    *args: Any,
    argnums: int | Sequence[int] = 0,
    cotangents: Any = None,
    backward: bool | None = None,
    memory: float | str | None = None,
    **kwargs: Any,
) -> Stepper:
    """Runs a function's forward and backward program equation by equation, on the devices where its arguments are.

    >>> s = jaxviz.step(loss, params, x)
    >>> s.next()
    >>> s.run(non_finite=True)

    Args:
      f: a function; or a Derivation, a Program or a ClosedJaxpr, and then flat args.
      *args, **kwargs: what to call it with.
      argnums: the positional argument or arguments to differentiate in.
      cotangents: of the result, in its structure; ones for a result that is one floating-point number.
      backward: whether there is a backward pass. By default there is one where cotangents are given or the result is one number, and the
        function has one; where there is none the function itself is run, with its custom rules and while loops.
      memory: how much is kept of what was computed, for going back: bytes, a size such as '2GiB', or a share of the device's memory. What
        goes beyond is computed again. By default a quarter of the memory that the device has left, or 1 GiB where it does not tell.

    Raises:
      SteppingError: the arguments are types without values; or `backward=True` of a result that needs cotangents.
      EquationError: `backward=True` and some equation has no derivative; the message names it and the user's line.
      TypeError: cotangents that are not of the result's structure and types.
    """
    derivation, inputs = _derived(f, args, kwargs, argnums)
    for x in inputs:
        if isinstance(x, jax.ShapeDtypeStruct):
            raise SteppingError(
                "step runs the function, so it takes arrays; got a ShapeDtypeStruct, which has no value."
            )
    inputs = [compat.canonicalize(x) for x in inputs]
    budget = _budget(memory)
    wanted = backward
    if backward is None:
        wanted = cotangents is not None or _is_one_number(derivation.primal)
    note = "" if wanted else "The function alone: for a backward pass give `cotangents` of its result."
    if wanted:
        try:
            return _with_backward(derivation, inputs, cotangents, budget)
        except (EquationError, NotImplementedError, ValueError) as error:
            if backward or isinstance(error, SteppingError):
                raise
            note = f"There is no backward pass. {error}"
    stage = Stage("primal", derivation.primal, lambda _: inputs)
    return Stepper(derivation, Machine([stage], budget), note if backward is None else "")


def _derived(
    f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: int | Sequence[int]
) -> tuple[Derivation, list[Any]]:
    if isinstance(f, (Derivation, Program, ClosedJaxpr)):
        derivation = derive(f, argnums=argnums)
        n = len(derivation.primal.invars)
        if kwargs or len(args) != n:
            raise TypeError(f"step of a {type(f).__name__} takes its {n} flat inputs; got {len(args)}")
        return derivation, list(args)
    check_not_donated(f, args, kwargs)
    derivation = derive(f, *args, argnums=argnums, **kwargs)
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    leaves, _, _, is_input = flat_arguments(args, kwargs, in_bounds(numbers, len(args)))
    return derivation, [x for x, given in zip(leaves, is_input, strict=True) if given]


def _is_one_number(program: Program) -> bool:
    if len(program.outvars) != 1:
        return False
    aval = program.outvars[0].aval
    return not aval.shape and bool(jnp.issubdtype(aval.dtype, jnp.floating))


def _with_backward(derivation: Derivation, inputs: list[Any], cotangents: Any, budget: int) -> Stepper:
    primal = derivation.primal
    avals = [compat.cotangent_type(a.aval) for a in primal.outvars]
    if cotangents is None:
        if not _is_one_number(primal):
            raise SteppingError(
                "A result that is not one floating-point number needs `cotangents` for a backward pass."
            )
        flat: list[Any] = [jnp.ones((), avals[0].dtype)]
    else:
        flat, tree = jax.tree.flatten(cotangents)
        if derivation.out_tree is not None and tree != derivation.out_tree:
            raise TypeError(f"cotangents have the structure of the result, {derivation.out_tree}; got {tree}")
        if len(flat) != len(avals):
            raise TypeError(f"there is one cotangent for each of the {len(avals)} results; got {len(flat)}")
    given = []
    for x, a, nonzero in zip(flat, avals, derivation.linearized.nonzeros_out, strict=True):
        if nonzero:
            x = jnp.asarray(x, a.dtype)
            if x.shape != a.shape:
                raise TypeError(
                    f"a cotangent has the type of its result, {a.str_short()}; got {x.dtype}{list(x.shape)}"
                )
            given.append(x)
    n = len(primal.outvars)
    stages = [
        Stage("forward", derivation.forward, lambda _: inputs),
        Stage("backward", derivation.backward, lambda machine: [*machine.results("forward")[n:], *given]),
    ]
    return Stepper(derivation, Machine(stages, budget))


def _budget(memory: float | str | None) -> int:
    device = jax.devices()[0]
    stats = device.memory_stats() or {}
    total, used = stats.get("bytes_limit", 4 << 30), stats.get("bytes_in_use", 0)
    if memory is None:
        return int((total - used) // 4)
    number = read_size(memory, "memory")
    is_share = number <= 1.0 and not isinstance(memory, str)
    return int(number * total if is_share else number)
