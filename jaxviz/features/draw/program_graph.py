"""From programs to the contents of a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

from jaxviz.analysis.repeats import Alike, Run
from jaxviz.analysis.walk import location_of
from jaxviz.derivation import STAGES, Derivation
from jaxviz.features.draw.canvas import MOST_BOXES, Before, BoxOutput, Canvas, Outside, Script, Values
from jaxviz.features.draw.folds import find_folds
from jaxviz.features.draw.graph import ProgramGraph
from jaxviz.features.draw.labels import (
    body_name,
    call_title,
    common_function,
    equation_title,
    numbered,
    role,
    scopes_of,
    stage_title,
    summary,
)
from jaxviz.features.residuals.notes import not_followed_note
from jaxviz.higher_order import bodies, carried, is_choice
from jaxviz.ir.pretty import variable_names
from jaxviz.ir.syntax import DropVar, Equation, Program, Var
from jaxviz.report.tables import printable, type_text
from jaxviz.transforms.unopened import find_unopened, unopened_note

LEGIBLE = 160
"""The most equations in a picture of a stage without a given depth, if it can be folded."""


_DEEPEST = 3


def graph_of(
    subject: Derivation | Program, stage: str = "", depth: int | None = None, source: bool = True
) -> ProgramGraph:
    """What a picture of a program shows.

    Args:
      subject: a derivation, or a program.
      stage: of a derivation, 'primal', 'jvp', 'forward', 'linear' or 'backward', or several joined by '+'. Between
        'forward' and 'linear' or 'backward' the residuals are drawn.
      depth: how many frames deep calls, loops, branches, named scopes and repeated layers are opened; deeper ones are a
        box each. By default as deep as stays legible.
      source: whether the lines of the user's own files are in the tooltips.

    Raises:
      ValueError: there is no such stage.
      EquationError: a stage cannot be derived.
    """
    programs = _programs(subject, stage)
    if depth is not None:
        return _Builder(subject, programs, depth, source).graph()
    for tried in range(_DEEPEST, -1, -1):
        graph = _Builder(subject, programs, tried, source).graph()
        if sum(not b.is_value for b in graph.boxes) <= LEGIBLE * len(programs):
            break
    return graph


def _programs(subject: Derivation | Program, stage: str) -> dict[str, Program]:
    if isinstance(subject, Program):
        if stage not in ("", "primal"):
            raise ValueError(
                f"a Program has no stages; got stage={stage!r}. Use jaxviz.derive for the stages of a function"
            )
        return {"": subject}
    keys = [key for key in (stage or "primal").split("+") if key]
    for key in keys:
        if key not in STAGES:
            raise ValueError(f"{key!r} is not a stage; there are {', '.join(STAGES)}; join several with '+'")
    return {key: getattr(subject, key) for key in dict.fromkeys(keys)}


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """Where equations are drawn.

    Args:
      env: where the values of their program may come from.
      frame: the frame around them.
      depth: how many calls, scopes and layers are open around them.
      within: the equations that contain their program, outermost first.
    """

    env: dict[Var, Values]
    frame: int
    depth: int = 0
    within: tuple[Equation, ...] = ()

    def inside(self, frame: int) -> _Surroundings:
        """The same in a frame of its own."""
        return replace(self, frame=frame, depth=self.depth + 1)

    def carry(self, equations: Sequence[Equation], carried: bool) -> None:
        """Marks the results of equations as those of an earlier repetition, or no longer."""
        for v in (v for e in equations for v in e.outvars):
            self.env[v] = tuple(
                replace(s, carried=carried) if isinstance(s, BoxOutput) else s for s in self.env.get(v, ())
            )


class _Builder:
    def __init__(self, subject: Derivation | Program, programs: Mapping[str, Program], depth: int, source: bool):
        self.subject = subject
        self.derivation = subject if isinstance(subject, Derivation) else None
        self.programs = programs
        self.depth = depth
        self.canvas = Canvas(source)
        self.same = Alike()

    def graph(self) -> ProgramGraph:
        residuals: dict[int, tuple[Values, Any]] = {}
        results: list[tuple[str, str, Any, Values, int]] = []
        has_ports = "forward" in self.programs and bool({"linear", "backward"} & self.programs.keys())
        for key, program in self.programs.items():
            frame = self.canvas.add_frame(0, "stage", stage_title(self.subject, key, program))
            self.canvas.room, before = MOST_BOXES, self.canvas.left_out
            names = self.canvas.names = self.derivation.names(key) if self.derivation else variable_names(program)
            place = _Surroundings(
                {v: (Outside("constant", names[v], v.aval, frame),) for v in program.constvars}, frame
            )
            n_residuals = self.n_residuals if key in ("linear", "backward") else 0
            for i, (v, label) in enumerate(zip(program.invars, self.input_labels(key, program), strict=True)):
                kind = "input" if i >= n_residuals else f"residual {i}" if has_ports else "residual"
                place.env[v] = (Outside(kind, label or names[v], v.aval, frame),)
            self.equations(program.equations, place)
            outvars = program.outvars
            n_results = len(outvars) - (self.n_residuals if key == "forward" else 0)
            if has_ports and key == "forward":
                for i, atom in enumerate(outvars[n_results:]):
                    residuals[i] = self.canvas.read(atom, place.env, frame), atom.aval
                outvars = outvars[:n_results]
            labels = self.result_labels(key, n_results)
            labels += [f"residual {self.canvas.atom_text(a)}" for a in outvars[n_results:]]
            for i, (atom, label) in enumerate(zip(outvars, labels, strict=True)):
                kind = "residual" if i >= n_results else "result"
                results.append((kind, label, atom.aval, self.canvas.read(atom, place.env, frame), frame))
            if self.canvas.left_out > before:
                self.canvas.note_what_is_left_out(frame, self.canvas.left_out - before)
        self.canvas.add_results(results)
        if residuals and self.derivation:
            self.canvas.add_ports(residuals, [r.expression for r in self.derivation.residuals])
        self.canvas.add_outside()
        lines = self.canvas.lines()
        name = self.subject.name if isinstance(self.subject, Program) else self.subject.title.replace("`", "")
        if self.derivation and self.programs.keys() == {"primal"}:
            name = self.derivation.primal.name
        about = not_followed_note(self.derivation) if self.derivation else ()
        notes = (*self.canvas.notes(self.depth), *about, *unopened_note(find_unopened(self.programs.values())))
        return ProgramGraph(printable(name, 80), tuple(self.canvas.boxes), tuple(self.canvas.frames), lines, notes)

    # --- labels -------------------------------------------------------------------------------------------------------

    @cached_property
    def n_residuals(self) -> int:
        return self.derivation.n_residuals if self.derivation else 0

    def input_labels(self, key: str, program: Program) -> Sequence[str]:
        return self.derivation.input_labels(key) if self.derivation else program.arg_names

    def result_labels(self, key: str, n: int) -> list[str]:
        if key == "backward" and self.derivation:
            differentiated = self.derivation.differentiated_inputs
            there = self.derivation.transposed.nonzeros_out[-len(differentiated) :] if differentiated else ()
            gradients = [f"gradient of {x}" for x, is_there in zip(differentiated, there, strict=True) if is_there]
            if len(gradients) == n:
                return gradients
        return numbered("result", n)

    # --- equations ----------------------------------------------------------------------------------------------------

    def equations(self, equations: Sequence[Equation], place: _Surroundings) -> None:
        """Draws the equations of a program, with its repeated layers folded."""
        folds = find_folds(equations, self.same, place.within) if self.canvas.script is None else []
        items: list[Equation | Run] = []
        at = 0
        for fold in folds:
            items += [*equations[at : fold.start], fold]
            at = fold.stop
        self.items([*items, *equations[at:]], place)

    def items(self, items: Sequence[Equation | Run], place: _Surroundings, level: int = 0) -> None:
        """Draws the items of a named scope, `level` scopes deep within its program; nested scopes are frames."""

        def scope(item: Equation | Run) -> str:
            path = scopes_of(item)
            return path[level] if len(path) > level else ""

        for name, run in groupby(items, scope):
            inside = list(run)
            plain = [e for i in inside for e in (i.equations if isinstance(i, Run) else (i,))]
            if not name or len(plain) == 1:
                for item in inside:
                    self.item(item, place)
            elif place.depth >= self.depth:
                self.group(plain, place, name, summary(plain))
            else:
                self.items(inside, place.inside(self.canvas.add_frame(place.frame, "scope", name)), level + 1)

    def item(self, item: Equation | Run, place: _Surroundings) -> None:
        if isinstance(item, Run):
            self.fold(item, place)
        elif self.canvas.is_full():
            self.canvas.left_out += 1
        elif bodies(item):
            self.call(item, place)
        else:
            self.equation(item, place)

    def equation(self, e: Equation, place: _Surroundings) -> None:
        names = self.canvas.names
        results = [f"{names.get(v, '_')}:{type_text(v.aval)}" for v in e.outvars if not isinstance(v, DropVar)]
        more = f" +{len(results) - 1}" if len(results) > 1 else ""
        at = location_of(e, place.within)
        box = self.canvas.add_box(
            "equation", equation_title(e), f"{results[0]}{more}" if results else "", role(e), place.frame,
            self.canvas.equation_tooltip(e, at), at,
        )  # fmt: skip
        self.canvas.read_all(e.invars, place.env, box, place.frame)
        self.canvas.bind(e.outvars, place.env, box)

    def group(
        self, equations: Sequence[Equation], place: _Surroundings, title: str, detail: str, length: int = 0,
        tooltip: str = "",
    ) -> None:  # fmt: skip
        """Draws equations as one box.

        Args:
          length: the length of the repetitions among them; operands at the same position of several are combined.
        """
        if self.canvas.is_full():
            self.canvas.left_out += len(equations)
            return
        at = location_of(equations[0], place.within)
        tooltip = tooltip or "\n".join([title, detail, *self.canvas.place_lines(at)])
        ((most, _),) = Counter(map(role, equations)).most_common(1)
        box = self.canvas.add_box("group", title, detail, most, place.frame, tooltip, at)
        for i, e in enumerate(equations):
            position = i % length if length else i
            self.canvas.read_all(e.invars, place.env, box, place.frame, position)
            self.canvas.bind(e.outvars, place.env, box, position)

    def fold(self, fold: Run, place: _Surroundings) -> None:
        layers = [fold.block(k) for k in range(fold.count)]
        (only, *others) = layers[0]
        name = common_function(layers[0]) if others else call_title(only)
        title = " ".join(filter(None, (name, f"× {fold.count}")))
        if place.depth >= self.depth:
            self.group(fold.equations, place, title, f"each {summary(layers[0])}", fold.length)
            return
        if self.canvas.is_full():
            self.canvas.left_out += fold.length * fold.count
            return
        n = sum(self.same.size(e.operation) for e in layers[0])
        self.canvas.folded[f"{title}: {n:,} equations each, drawn once"] += 1
        inner = place.inside(self.canvas.add_frame(place.frame, "fold", title))
        self.canvas.script = Script()
        for layer in layers:
            self.items(layer, inner)
            self.canvas.script.at, self.canvas.script.replays = 0, True
            place.carry(layer, True)
        self.canvas.script = None
        place.carry(fold.equations, False)

    def call(self, e: Equation, place: _Surroundings) -> None:
        """Draws an equation that runs programs: each in a frame, or all as one box."""
        title, inside = call_title(e), bodies(e)
        at = location_of(e, place.within)
        tooltip = self.canvas.equation_tooltip(e, at)
        if place.depth >= self.depth:
            nested = [inner for body in inside for _, inner in body.program.walk()]
            self.group([e], place, title, summary(nested), tooltip=tooltip)
            return
        outer = self.canvas.add_frame(place.frame, "call", title, tooltip)
        operands = [self.canvas.read(a, place.env, outer) for a in e.invars]
        results: list[Values] = [()] * len(e.outvars)
        if is_choice(e):
            box = self.canvas.add_box("equation", "cond", f"{len(inside)} branches", role(e), outer, title, at)
            self.canvas.use(operands[0], (box, 0), e.invars[0])
        befores = [Before() for _ in carried(e)]  # what an iteration receives from the previous one
        for before, i in zip(befores, carried(e), strict=True):
            operands[i] = (*operands[i], before)
        for body in inside:
            name = body_name(e, body)
            frame = self.canvas.add_frame(outer, "call", name) if name else outer
            program, names = body.program, self.canvas.names
            env: dict[Var, Values] = {
                v: (Outside("constant", names.get(v, "_"), v.aval, frame),) for v in program.constvars
            }
            env.update(zip(program.invars, (operands[i] for i in body.operands), strict=True))
            self.equations(program.equations, _Surroundings(env, frame, place.depth + 1, (*place.within, e)))
            outputs = [self.canvas.read(a, env, frame) for a in program.outvars]
            if body.has_results:
                for before, values in zip(befores, outputs, strict=False):
                    before.values = values
                results = [(*r, *m) for r, m in zip(results, outputs, strict=True)]
        place.env.update(zip(e.outvars, results, strict=True))
