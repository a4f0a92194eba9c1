"""From programs to the contents of a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from jaxviz.analysis.repeats import Alike, Run
from jaxviz.analysis.walk import location_of
from jaxviz.derivation import STAGES, Derivation
from jaxviz.features.draw.canvas import MOST_BOXES, Before, Canvas, Given, Made, Script, Values
from jaxviz.features.draw.folds import find_folds
from jaxviz.features.draw.graph import Graph
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
from jaxviz.higher_order import Body, bodies, carried, is_choice
from jaxviz.ir.pretty import variable_names
from jaxviz.ir.syntax import DropVar, Equation, Program, Var
from jaxviz.report.tables import printable, type_text
from jaxviz.transforms.unopened import find_unopened, unopened_note

LEGIBLE = 160
"""The most equations in a picture of a stage without a given depth, if it can be folded."""


_DEEPEST = 3


def graph_of(subject: Derivation | Program, stage: str = "", depth: int | None = None, source: bool = True) -> Graph:
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


class _Builder:
    def __init__(self, subject: Derivation | Program, programs: Mapping[str, Program], depth: int, source: bool):
        self.subject = subject
        self.programs = programs
        self.depth = depth
        self.canvas = Canvas(source)
        self.same = Alike()

    def graph(self) -> Graph:
        residuals: dict[int, tuple[Values, Any]] = {}
        results: list[tuple[str, str, Any, Values, int]] = []
        for key, program in self.programs.items():
            frame = self.canvas.add_frame(0, "stage", stage_title(self.subject, key, program))
            self.canvas.room, before = MOST_BOXES, self.canvas.left_out
            self.canvas.names = variable_names(program, self.residual_names(key))
            linked = key in ("linear", "backward") and "forward" in self.programs
            env: dict[Var, Values] = {}
            for v, name in zip(program.constvars, (self.canvas.names[v] for v in program.constvars), strict=True):
                env[v] = (Given("constant", name, v.aval, frame),)
            kept = (
                self.subject.n_residuals
                if isinstance(self.subject, Derivation) and key in ("linear", "backward")
                else 0
            )
            for i, (v, name) in enumerate(zip(program.invars, self.input_names(key, program), strict=True)):
                kind = "input" if i >= kept else f"residual {i}" if linked else "residual"
                env[v] = (Given(kind, name, v.aval, frame),)
            self.equations(program.equations, env, frame, 0, ())
            n_results = len(program.outvars)
            if key == "forward" and isinstance(self.subject, Derivation):
                n_results -= self.subject.n_residuals
                if len(self.programs) > 1 and ({"linear", "backward"} & set(self.programs)):
                    for i, atom in enumerate(program.outvars[n_results:]):
                        residuals[i] = self.canvas.read(atom, env, frame), atom.aval
                    program = replace(program, outvars=program.outvars[:n_results])
            names = self.result_names(key, program)
            for i, (atom, name) in enumerate(zip(program.outvars, names, strict=True)):
                kind = "residual" if i >= n_results else "result"
                results.append((kind, name, atom.aval, self.canvas.read(atom, env, frame), frame))
            if self.canvas.left_out > before:
                self.canvas.note_what_is_left_out(frame, self.canvas.left_out - before)
        self.canvas.add_results(results)
        self.canvas.add_ports(residuals, self.residual_labels() if residuals else [])
        self.canvas.add_given()
        lines = self.canvas.lines()
        subject = self.subject
        if isinstance(subject, Program):
            name = subject.name
        else:
            name = subject.primal.name if self.programs.keys() == {"primal"} else subject.title.replace("`", "")
        about = () if isinstance(subject, Program) else not_followed_note(subject)
        return Graph(
            printable(name, 80),
            tuple(self.canvas.boxes),
            tuple(self.canvas.frames),
            lines,
            (*self.canvas.notes(self.depth), *about, *unopened_note(find_unopened(self.programs.values()))),
        )

    # --- names --------------------------------------------------------------------------------------------------------

    def residual_names(self, key: str) -> dict[Var, str] | None:
        """Names from the listing of the forward program, for the inputs of the linear one that are its residuals."""
        if key not in ("linear", "backward") or not isinstance(self.subject, Derivation):
            return None
        parts = self.subject.linearized
        forward = self.subject.forward_names
        program: Program = getattr(self.subject, key)
        pairs = zip(parts.residuals, program.invars, strict=False)
        return {v: forward[a] for a, v in pairs if isinstance(a, Var) and a in forward}

    def input_names(self, key: str, program: Program) -> list[str]:
        own = [given or self.canvas.names[v] for v, given in zip(program.invars, program.arg_names, strict=True)]
        if not isinstance(self.subject, Derivation) or key in ("", "primal", "forward"):
            return own
        subject = self.subject
        if key == "jvp":
            tangents = [f"tangent of {n}" for n in self.differentiated()]
            return [*own[: len(own) - len(tangents)], *tangents]
        kept = [f"{self.canvas.names[v]}" for v in program.invars[: subject.n_residuals]]
        n = len(program.invars) - len(kept)
        if key == "linear":
            return [*kept, *(f"tangent of {name}" for name in self.differentiated())]
        return [*kept, *(["cotangent"] if n == 1 else [f"cotangent {i}" for i in range(n)])]

    def differentiated(self) -> list[str]:
        assert isinstance(self.subject, Derivation)
        primal, names = self.subject.primal, variable_names(self.subject.primal)
        named = (given or names[v] for v, given in zip(primal.invars, primal.arg_names, strict=True))
        return [n for n, active in zip(named, self.subject.nonzeros, strict=True) if active]

    def result_names(self, key: str, program: Program) -> list[str]:
        n = len(program.outvars)
        if key == "backward":
            assert isinstance(self.subject, Derivation)
            given = self.subject.transposed.nonzeros_out[-len(self.differentiated()) :] if self.differentiated() else ()
            names = [f"gradient of {x}" for x, there in zip(self.differentiated(), given, strict=True) if there]
            if len(names) == n:
                return names
        if key == "forward" and isinstance(self.subject, Derivation):
            kept = [self.canvas.atom_text(a) for a in program.outvars]
            whole = n - self.subject.n_residuals if len(self.programs) == 1 else n
            return [*numbered("result", whole), *(f"residual {x}" for x in kept[whole:])]
        return numbered("result", n)

    def residual_labels(self) -> list[str]:
        return [r.expression for r in self.subject.residuals] if isinstance(self.subject, Derivation) else []

    # --- equations ----------------------------------------------------------------------------------------------------

    def equations(
        self,
        equations: Sequence[Equation],
        env: dict[Var, Values],
        frame: int,
        depth: int,
        within: tuple[Equation, ...],
    ) -> None:
        """Draws the equations of a program, with its repeated layers folded."""
        folds = find_folds(equations, self.same, within) if self.canvas.script is None else []
        items: list[Equation | Run] = []
        at = 0
        for fold in folds:
            items += [*equations[at : fold.start], fold]
            at = fold.stop
        items += equations[at:]
        self.items(items, env, frame, depth, within, 0)

    def items(
        self, items: Sequence[Equation | Run], env: dict[Var, Values], frame: int, depth: int,
        within: tuple[Equation, ...], level: int,
    ) -> None:  # fmt: skip
        """Draws the items of a named scope, `level` scopes deep within its program; nested scopes are frames."""

        def scope(item: Equation | Run) -> str:
            path = scopes_of(item)
            return path[level] if len(path) > level else ""

        for name, run in groupby(items, scope):
            inside = list(run)
            plain = [e for i in inside for e in (i.equations if isinstance(i, Run) else (i,))]
            if not name or len(plain) == 1:
                for item in inside:
                    self.item(item, env, frame, depth, within)
            elif depth >= self.depth:
                self.group(plain, env, frame, within, name, summary(plain))
            else:
                inner = self.canvas.add_frame(frame, "scope", name)
                self.items(inside, env, inner, depth + 1, within, level + 1)

    def item(
        self, item: Equation | Run, env: dict[Var, Values], frame: int, depth: int, within: tuple[Equation, ...]
    ) -> None:
        if isinstance(item, Run):
            self.fold(item, env, frame, depth, within)
        elif self.canvas.is_full():
            self.canvas.left_out += 1
        elif bodies(item):
            self.call(item, env, frame, depth, within)
        else:
            self.equation(item, env, frame, within)

    def equation(self, e: Equation, env: dict[Var, Values], frame: int, within: tuple[Equation, ...]) -> None:
        results = [
            f"{self.canvas.names.get(v, '_')}:{type_text(v.aval)}" for v in e.outvars if not isinstance(v, DropVar)
        ]
        more = f" +{len(results) - 1}" if len(results) > 1 else ""
        at = location_of(e, within)
        box = self.canvas.add_box(
            "equation", equation_title(e), f"{results[0]}{more}" if results else "",
            e.origin.role if e.origin else "primal", frame, self.canvas.equation_tooltip(e, at), at,
        )  # fmt: skip
        self.canvas.read_all(e, e.invars, env, box, frame)
        self.canvas.bind(e.outvars, env, box)

    def group(
        self, equations: Sequence[Equation], env: dict[Var, Values], frame: int, within: tuple[Equation, ...],
        title: str, detail: str, length: int = 0,
    ) -> None:  # fmt: skip
        """Draws equations as one box.

        Args:
          length: the length of the repetitions among them; operands at the same position of several are combined.
        """
        if self.canvas.is_full():
            self.canvas.left_out += len(equations)
            return
        at = location_of(equations[0], within)
        tooltip = "\n".join([title, detail, *self.canvas.place_lines(at)])
        role = Counter(e.origin.role if e.origin else "primal" for e in equations).most_common(1)[0][0]
        box = self.canvas.add_box("group", title, detail, role, frame, tooltip, at)
        for i, e in enumerate(equations):
            place = i % length if length else i
            self.canvas.read_all(e, e.invars, env, box, frame, place)
            self.canvas.bind(e.outvars, env, box, place)

    def fold(self, fold: Run, env: dict[Var, Values], frame: int, depth: int, within: tuple[Equation, ...]) -> None:
        layers = [fold.block(k) for k in range(fold.count)]
        (only, *others) = layers[0]
        name = common_function(layers[0]) if others else call_title(only)
        title = " ".join(filter(None, (name, f"× {fold.count}")))
        if depth >= self.depth:
            self.group(fold.equations, env, frame, within, title, f"each {summary(layers[0])}", fold.length)
            return
        if self.canvas.is_full():
            self.canvas.left_out += fold.length * fold.count
            return
        n = sum(1 + sum(1 for _, p in e.programs for _ in p.walk()) for e in layers[0])
        self.canvas.folded[f"{title}: {n:,} equations each, drawn once"] += 1
        inner = self.canvas.add_frame(frame, "fold", title)
        self.canvas.script = Script()
        for layer in layers:
            self.items(layer, env, inner, depth + 1, within, 0)
            self.canvas.script.at, self.canvas.script.replays = 0, True
            for e in layer:
                for v in e.outvars:
                    env[v] = tuple(replace(s, carried=True) if isinstance(s, Made) else s for s in env.get(v, ()))
        self.canvas.script = None
        for layer in layers:
            for e in layer:
                for v in e.outvars:
                    env[v] = tuple(replace(s, carried=False) if isinstance(s, Made) else s for s in env.get(v, ()))

    def call(self, e: Equation, env: dict[Var, Values], frame: int, depth: int, within: tuple[Equation, ...]) -> None:
        """Draws an equation that runs programs: each in a frame, or all as one box."""
        title, inside = call_title(e), bodies(e)
        if depth >= self.depth:
            self.closed_call(e, env, frame, within, title)
            return
        at = location_of(e, within)
        outer = self.canvas.add_frame(frame, "call", title, self.canvas.equation_tooltip(e, at))
        given = [self.canvas.read(a, env, outer) for a in e.invars]
        results: list[Values] = [()] * len(e.outvars)
        if is_choice(e):
            box = self.canvas.add_box("equation", "cond", f"{len(inside)} branches", role(e), outer, call_title(e), at)
            self.canvas.use(given[0], (box, 0), e.invars[0])
        befores = [Before() for _ in carried(e)]  # what an iteration receives from the previous one
        for before, operand in zip(befores, carried(e), strict=True):
            given[operand] = (*given[operand], before)
        for body in inside:
            name = body_name(e, body)
            place = self.canvas.add_frame(outer, "call", name) if name else outer
            made = self.body(body, [given[i] for i in body.operands], place, depth + 1, (*within, e))
            if body.has_results:
                for before, values in zip(befores, made, strict=False):
                    before.made = values
                results = [(*r, *m) for r, m in zip(results, made, strict=True)]
        env.update(zip(e.outvars, results, strict=True))

    def closed_call(
        self, e: Equation, env: dict[Var, Values], frame: int, within: tuple[Equation, ...], title: str
    ) -> None:
        held = [inner for body in bodies(e) for _, inner in body.program.walk()]
        at = location_of(e, within)
        tooltip = self.canvas.equation_tooltip(e, at)
        box = self.canvas.add_box("group", title, summary(held), role(e), frame, tooltip, at)
        self.canvas.read_all(e, e.invars, env, box, frame)
        self.canvas.bind(e.outvars, env, box)

    def body(
        self, body: Body, given: list[Values], frame: int, depth: int, within: tuple[Equation, ...]
    ) -> list[Values]:
        """Draws a nested program of an equation; returns the sources of its results."""
        program = body.program
        env: dict[Var, Values] = {}
        for v in program.constvars:
            env[v] = (Given("constant", self.canvas.names.get(v, "_"), v.aval, frame),)
        env.update(zip(program.invars, given, strict=True))
        self.equations(program.equations, env, frame, depth, within)
        return [self.canvas.read(a, env, frame) for a in program.outvars]
