"""The data of the stepper's widget: the programs with their source, sent once, and each stop.

`messages.py` has the types. A stop is small however large the values are: each has a summary and a thumbnail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import jax
import numpy as np

from jaxviz.analysis.implied import exchange_text, implied
from jaxviz.analysis.walk import location_of
from jaxviz.features.debugger import messages
from jaxviz.features.debugger.breakpoints import Breakpoint
from jaxviz.features.debugger.messages import (
    LineNorm,
    Programs,
    SourceLine,
    SourceRange,
    StackLine,
    StepLevel,
    StepLoop,
    StepperStop,
    StepRow,
    SummaryCard,
    ValueCard,
    Variable,
)
from jaxviz.features.debugger.norms import Norm, Norms, PerArray
from jaxviz.features.debugger.positions import Level, Position, SteppingError, can_enter
from jaxviz.features.debugger.programs import StageText, StaticPath
from jaxviz.features.debugger.stepper import Stepper
from jaxviz.features.debugger.summaries import png, summarize
from jaxviz.higher_order import is_choice, is_loop, of
from jaxviz.ir import compat
from jaxviz.ir.errors import message_of
from jaxviz.ir.origin import Location, ancestors, call_stack, definition
from jaxviz.ir.own_code import is_own
from jaxviz.ir.syntax import Atom, Equation, Program, Var
from jaxviz.page.params import called, visible_params
from jaxviz.page.sources import SourceTable, expression_of, file_label
from jaxviz.report.data import plain
from jaxviz.report.tables import printable

MOST_VALUES = 8
"""How many results, and operands, a stop includes; the others are sent when requested by name."""
MOST_PICTURES = 5
FEW = 36
"""Arrays with at most this many numbers are written out."""
_WIDE = 46
_NAME = 200


def printed(value: Any) -> str:
    """The numbers of a small array; '' for a larger one."""
    aval = compat.aval_of(value)
    dtype = getattr(aval, "dtype", None)
    if dtype is None or jax.dtypes.issubdtype(dtype, jax.dtypes.extended) or compat.is_float0(aval):
        return ""
    if not 0 < aval.size <= FEW or (isinstance(value, jax.Array) and not _is_readable(value)):
        return ""
    array = np.asarray(value)
    if array.dtype.kind == "V":  # numpy has no name for the smallest floats
        array = array.astype(np.float32)
    if array.size == max(array.shape, default=1):  # a row or a column
        array = array.reshape(-1) if array.ndim else array
    return np.array2string(array, precision=4, max_line_width=_WIDE)


def _is_readable(value: jax.Array) -> bool:
    return not value.is_deleted() and value.is_fully_addressable


class StepperView:
    """Creates the data that is shown of a stepper."""

    def __init__(self, stepper: Stepper):
        self.stepper = stepper
        self._summaries = PerArray(summarize)
        self.norms = Norms(stepper)
        self._sources = SourceTable()
        self._numbers: dict[tuple[str, Program], int] = {}
        self._rows: dict[Equation, tuple[int, int]] = {}
        self._lines: dict[int, set[int]] = {}
        at = definition(stepper.derivation.primal.debug_info)
        self._defined = (at.file, at.function) if at is not None else None

    # --- the programs -------------------------------------------------------------------------------------------------

    def programs(self) -> Programs:
        """All programs of the run, with the names of their values, and their source."""
        stepper = self.stepper
        programs: list[tuple[StageText, Program, Sequence[Equation]]] = []
        for text in stepper._texts.values():
            for program, _, holders in text.programs:
                if (text.stage, program) not in self._numbers:
                    self._numbers[text.stage, program] = len(programs)
                    programs.append((text, program, holders))
        shown = [self._program(*of) for of in programs]
        files: list[messages.StepFile] = [
            {
                "label": printable(f.label, _NAME),
                "path": printable(f.path, _NAME),
                "excerpts": [{"first": e.first, "lines": [printable(t, 400) for t in e.lines]} for e in f.excerpts],
                "stops": sorted(self._lines.get(i, ())),
            }
            for i, f in enumerate(self._sources.files())
        ]  # fmt: skip
        return {
            "title": printable(stepper.title, _NAME),
            "stages": [{"name": name, "program": self._numbers[name, t.program]} for name, t in stepper._texts.items()],
            "programs": shown,
            "files": files,
        }

    def _program(self, text: StageText, program: Program, holders: Sequence[Equation]) -> messages.StepProgram:
        cotangent_of = self.stepper._places.names if text.stage == "backward" else {}
        number = self._numbers[text.stage, program]
        labels = self._labels(text, program) if not holders else {}

        def variable(v: Atom) -> Variable:
            of = cotangent_of.get(v, "") if isinstance(v, Var) else ""
            return Variable(text.atom(v), v.aval.str_short(short_dtypes=True), of, labels.get(v, ""))

        rows: list[StepRow] = []
        for i, e in enumerate(program.equations):
            self._rows.setdefault(e, (number, i))
            row: StepRow = {
                "o": [variable(v) for v in e.outvars], "p": e.primitive.name, "i": [text.atom(a) for a in e.invars]
            }  # fmt: skip
            params = [printable(p, _NAME) for p in visible_params(e) if not p.endswith("=")] if e.params else []
            if params:
                row["q"] = params
            at = location_of(e, holders)
            if at is not None:
                row["a"] = SourceRange(*self._line(at), *expression_of(at))
            if e.operation.programs and can_enter(e):
                row["n"] = {
                    label: self._numbers[text.stage, p] for label, p in e.programs if (text.stage, p) in self._numbers
                }
                if name := called(e):
                    row["f"] = printable(name, _NAME)
                if is_loop(e):
                    loop = of(e)
                    row["t"] = StepLoop(loop.trip_count(e.operation), loop.turned(e.operation, 0))
            if exchanged := implied(e.operation):
                row["x"] = [*map(exchange_text, exchanged)]
            self._note_lines(e)
            rows.append(row)
        return {
            "stage": text.stage,
            "inputs": [variable(v) for v in (*program.constvars, *program.invars)],
            "results": [text.atom(a) for a in program.outvars],
            "rows": rows,
        }  # fmt: skip

    def _labels(self, text: StageText, program: Program) -> dict[Atom, str]:
        """What the inputs of a stage are: arguments by their paths, residuals by their names in the forward program."""
        if text.stage != "backward":
            names = zip(program.invars, program.arg_names, strict=False)
            return {v: printable(name, _NAME) for v, name in names if name}
        forward = self.stepper._texts["forward"]
        residuals = forward.program.outvars[len(self.stepper.derivation.primal.outvars) :]
        return {v: f"{forward.atom(a)} of forward" for v, a in zip(program.invars, residuals, strict=False)}

    def _line(self, at: Location) -> SourceLine:
        return SourceLine(self._sources.number(at), at.line)

    def _calls(self, e: Equation) -> tuple[Location, ...]:
        """The lines that led to an equation, innermost first, starting in the function that is stepped through."""
        stack = call_stack(e.source)
        outermost = [i for i, at in enumerate(stack) if (at.file, at.function) == self._defined]
        return stack[: outermost[-1] + 1] if outermost else stack[:1]

    def _note_lines(self, e: Equation) -> None:
        """Adds the lines at which a breakpoint would stop because of an equation."""
        for at in self._calls(e):
            if is_own(at.file):
                self._lines.setdefault(self._sources.number(at), set()).add(at.line)

    def path_of(self, file: int) -> str:
        """The path of a file by its number.

        Raises:
          SteppingError: there is no file with that number.
        """
        files = list(self._sources.numbers)
        if not 0 <= file < len(files):
            raise SteppingError(f"There is no file {file}: the run has {len(files)}, numbered from 0.")
        return files[file]

    def equation(self, stage: str, path: StaticPath, index: int) -> Equation:
        """An equation by its position.

        Raises:
          SteppingError: there is none.
        """
        program: Program | None = self.stepper._texts[stage].program if stage in self.stepper._texts else None
        for i, body in path:
            program = dict(program.equations[i].programs).get(body) if program and i < len(program.equations) else None
        if program is None or not 0 <= index < len(program.equations):
            raise SteppingError("There is no such equation.")
        return program.equations[index]

    # --- a stop -------------------------------------------------------------------------------------------------------

    def stop(self, looked: Sequence[tuple[str, str]] = ()) -> StepperStop:
        """The run's position, and the values there.

        Args:
          looked: values requested by name, each a stage and a name such as 'h' or 'h[7]'.
        """
        s = self.stepper
        text, p, machine = s._texts[s.stage], s.position, s.machine
        holders = machine.holders(p)
        ran, following = s.equation, s.following
        frame = machine.frame(p.stage, p.path)
        inputs = _inputs(p, holders, frame.program) if ran is None else {}
        results: Sequence[Atom] = ran.outvars if ran is not None else list(inputs)
        operands = list(dict.fromkeys(a for a in ran.invars if isinstance(a, Var))) if ran is not None else []
        pictures = iter(range(MOST_PICTURES))
        iterations = tuple(level.iteration for level in p.path if level.iteration is not None)

        def cards(atoms: Sequence[Atom], pair: bool) -> list[ValueCard]:
            shown = [self._card(text, p, v, iterations, pictures, pair) for v in atoms[:MOST_VALUES]]
            for v, card in zip(atoms, shown, strict=False):
                if isinstance(v, Var) and inputs.get(v):
                    card["label"] = inputs[v]
            return shown

        def more(atoms: Sequence[Atom]) -> list[str]:
            return [text.atom(a) for a in atoms[MOST_VALUES:][:100]]

        return {
            "stage": p.stage,
            "path": [self._level(depth, level) for depth, level in enumerate(p.path)],
            "index": p.index,
            "isDone": s.is_done,
            "hit": self._hit(),
            "at": self._stack(following, holders),
            "ranAt": self._stack(ran, holders)[:1],
            "taken": self._taken(frame.program.equations, p),
            "recomputed": _recomputed(ran, holders),
            "results": cards(results, pair=ran is not None),
            "operands": cards(operands, pair=False),
            "more": (more(results), more(operands)),
            "looked": [self._looked(stage, name, pictures) for stage, name in looked],
            "lines": self._norms(),
            "breakpoints": [self._breakpoint(b) for b in s.breakpoints],
            "kept": machine.history.nbytes,
            "notes": [printable(note, 1000) for note in s.notes],
            "said": printable(str(s).split("\n", 1)[0], 400) if not p.path else printable(s._place(p), 400),
        }  # fmt: skip

    def _norms(self) -> list[LineNorm]:
        """The norms of the lines shown."""
        none = Norm(float("nan"), "")
        lines = []
        for at, line in self.norms.by_line().items():
            if at.file in self._sources.numbers:
                value, cotangent = line.value or none, line.cotangent or none
                lines.append(
                    LineNorm(
                        *self._line(at), line.name, plain(value.norm), value.worst,
                        line.of, plain(cotangent.norm), cotangent.worst, line.born,
                    )
                )  # fmt: skip
        return lines

    def _level(self, depth: int, level: Level) -> StepLevel:
        length = self.stepper.machine.length(depth) if level.iteration is not None else None
        return {"index": level.index, "body": level.body, "iteration": level.iteration, "length": length}

    def _hit(self) -> str:
        hit = self.stepper.hit
        if hit is None:
            return ""
        name = self.stepper._texts[hit.position.stage].names.get(hit.variable, "_") if hit.variable is not None else ""
        return printable(f"{self._words(hit.breakpoint)}{f' by {name}' if name else ''}", 300)

    def _stack(self, e: Equation | None, holders: Sequence[Equation]) -> list[StackLine]:
        """The lines that led to an equation, innermost first."""
        if e is None:
            return []
        for candidate in (e, *reversed(holders)):
            for x in (candidate, *ancestors(candidate)):
                stack = [at for at in self._calls(x) if at.file in self._sources.numbers]
                if stack:
                    return [StackLine(*self._line(at), printable(at.function, 80)) for at in stack[:24]]
        return []

    def _taken(self, equations: Sequence[Equation], p: Position) -> dict[int, int]:
        """For the conds that have run, or are next, the branch taken."""
        conds = [i for i, e in enumerate(equations[: p.index + 1]) if is_choice(e)]
        return {i: self.stepper.machine.branch(equations[i], p.stage, p.path) for i in conds[-20:]}

    def _breakpoint(self, b: Breakpoint) -> messages.Break:
        is_hit = self.stepper.hit is not None and self.stepper.hit.breakpoint == b
        message: messages.Break = {"text": printable(self._words(b), 300), "isHit": is_hit}
        only = [n for n in ("line", "primitive", "name", "when", "equation") if getattr(b, n) is not None]
        if only == ["line"] and not b.non_finite:
            file, _, line = str(b.line).rpartition(":")
            for path, number in self._sources.numbers.items():
                if not file or path == file or path.endswith("/" + file):
                    message["line"] = SourceLine(number, int(line))
        if b.equation is not None and b.equation in self._rows:
            message["row"] = self._rows[b.equation]
        return message

    def _words(self, b: Breakpoint) -> str:
        """The description of a breakpoint: of an equation by its results, of a line with the file's name only."""
        if b.equation is not None and b.equation in self._rows:
            number, i = self._rows[b.equation]
            stage = next(stage for (stage, _), n in self._numbers.items() if n == number)
            results = " ".join(self.stepper._texts[stage].atom(v) for v in b.equation.outvars[:4])
            return f"{results} = {b.equation.primitive.name}, {stage} {i}".lstrip(" =")
        if b.line is None:
            return str(b)
        file, colon, line = str(b.line).rpartition(":")
        where = file_label(file)
        return f"line {where}{colon}{line}{str(b).removeprefix(f'line {b.line}')}"

    # --- values -------------------------------------------------------------------------------------------------------

    def _card(
        self, text: StageText, p: Position, v: Atom, iterations: tuple[int, ...], pictures: Iterator[int], pair: bool
    ) -> ValueCard:
        """A value of the current program; a cotangent with the value that it is the cotangent of."""
        s = self.stepper
        summary = self._summary(s.machine.value(p, v), pictures)
        card: ValueCard = {"name": text.atom(v), "stage": text.stage, "value": summary}
        of = s._places.names.get(v, "") if text.stage == "backward" else ""
        if of:
            card["of"] = of
            if pair:
                card["other"] = self._quietly(lambda: s._value("forward", of.split(", ")[0], iterations), pictures)
        return card

    def check_name(self, stage: str, name: str) -> None:
        """Whether a value with this name exists, or will exist.

        Raises:
          SteppingError: there is none.
        """
        s = self.stepper
        if stage not in s.stages:
            raise SteppingError(f"There is no {printable(stage, 40)} program here, only {', '.join(s.stages)}.")
        plain, _ = named(printable(name, 80))
        if plain not in s._texts[stage].by_name:
            raise SteppingError(f"The {stage} program has no variable `{plain}` that can be shown.")

    def _looked(self, stage: str, name: str, pictures: Iterator[int]) -> ValueCard:
        """A value requested by name, with its cotangent if known; or why it is not available."""
        s = self.stepper
        card: ValueCard = {"name": printable(name, 80), "stage": stage}
        try:
            plain, iterations = named(name)
            card["value"] = self._summary(s._value(stage, plain, iterations), pictures)
        except SteppingError as error:
            # The user typed a name, not an index into `values`.
            said = message_of(error).replace(f"['{name}', 0]", f"`{name}[0]`")
            return {**card, "error": printable(said, 600)}
        if stage == "forward" and s.stage == "backward":
            card["other"] = self._quietly(lambda: s._cotangent(plain, iterations), pictures)
            card["isCotangent"] = True
        return card

    def _quietly(self, value: Callable[[], Any], pictures: Iterator[int]) -> SummaryCard | str:
        try:
            return self._summary(value(), pictures)
        except SteppingError as error:
            return printable(message_of(error), 600)

    def _summary(self, value: Any, pictures: Iterator[int]) -> SummaryCard:
        """A summary of an array, with a picture if it is too large to be written out."""
        is_deleted = isinstance(value, jax.Array) and value.is_deleted()
        summary = summarize(value) if is_deleted else self._summaries(value)
        figures = summary.to_dict()
        del figures["picture"]
        figures["text"] = printed(value)
        picture = summary.picture
        if picture is not None and not figures["text"] and next(pictures, None) is not None:
            figures["picture"] = {
                "png": png(picture), "low": picture.low, "high": picture.high, "of": picture.of, "rows": picture.rows,
                "columns": picture.columns,
            }  # fmt: skip
        return cast(SummaryCard, plain(figures))


def _inputs(p: Position, holders: Sequence[Equation], program: Program) -> dict[Var, str]:
    """The inputs of a program, with a label in a loop's body, where the carry comes first."""
    if not p.path or p.path[-1].iteration is None:
        return dict.fromkeys(program.invars, "")
    n_before, n_carry = of(holders[-1]).carry(holders[-1].operation)
    n_before = min(n_before, len(program.invars) - n_carry)  # a while loop's condition has its own constants
    fixed, carried = program.invars[:n_before], program.invars[n_before : n_before + n_carry]
    return {
        **dict.fromkeys(carried, "carry"),
        **dict.fromkeys(program.invars[n_before + n_carry :], "of this iteration"),
        **dict.fromkeys(fixed, "same in every iteration"),
    }


def _recomputed(ran: Equation | None, holders: Sequence[Equation]) -> str:
    """The checkpoint for which an equation is recomputed; '' if it is not."""
    if ran is None or ran.origin is None or ran.origin.role != "recomputation":
        return ""
    around = next((e for e in reversed(holders) if of(e).is_checkpoint), None)
    name = of(around).bodies(around.operation)[0].program.name if around is not None else ""
    return f"recomputed here for the checkpoint{f' of {printable(name, 60)}' if name else ''}"


def named(text: str) -> tuple[str, tuple[int, ...]]:
    """Splits `h[3, 7]` into the name and the iterations.

    Raises:
      SteppingError: it has another form.
    """
    name, bracket, rest = text.strip().partition("[")
    try:
        numbers = tuple(int(part) for part in rest.rstrip().removesuffix("]").split(",")) if bracket else ()
    except ValueError:
        raise SteppingError(f"Write a value as h, or as h[7] in iteration 7 of a loop; got {text}.") from None
    return name.strip(), numbers
