"""`saved`: which values does the gradient save? The answer and its reasons come from the derivation."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from typing import Literal as OneOf

from jaxviz.analysis.site import Site
from jaxviz.analysis.walk import Source, find_readers, location_of, primal_equation
from jaxviz.arguments import Argnums
from jaxviz.derivation import Derivation, derive
from jaxviz.features.residuals.residual import Residual
from jaxviz.higher_order import bodies, of
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.origin import Location
from jaxviz.ir.pretty import variable_names
from jaxviz.ir.primitives import is_view, plain
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.report.tables import format_bytes, printable, type_text
from jaxviz.teach.exercise import Exercise, Form, Mark, Point, Verdict
from jaxviz.teach.messages import OfMarks
from jaxviz.teach.predict import Text

QUESTION = "Which of these values does the gradient of `{name}` save for the backward pass?"

_ARGUMENTS = "arguments and constants"


@dataclass(frozen=True, eq=False)
class Value:
    """A value that the gradient may save.

    Args:
      kind: 'input' for an argument or a constant, 'value' for the result of an equation of the function, 'slope' for another value that
        the equation's derivative rule computes.
      name: its variable in the program; for a slope, the variable of the value.
      text: such as `tanh(h)`.
      equation: the equation that computes it; None for an input.
      atoms: its variables.
      program: the program that contains them.
      location: the user's line; None for an input.
      within: the equations that enclose its program.
    """

    kind: OneOf["input", "value", "slope"]
    name: str
    text: str
    equation: Equation | None
    atoms: tuple[Var, ...]
    program: Program
    location: Location | None
    within: tuple[Equation, ...] = ()

    @property
    def label(self) -> str:
        if self.kind == "slope":
            return f"`{self.primitive}'`: another value, computed for the derivative of `{self.text}`"
        types = ", ".join(type_text(v.aval) for v in self.atoms)
        return f"`{self.text}: {types}`" if self.kind == "input" else f"`{self.name}:{types} = {self.text}`"

    @property
    def short(self) -> str:
        return f"`{self.primitive}'` of `{self.text}`" if self.kind == "slope" else f"`{self.text}`"

    @property
    def primitive(self) -> str:
        return _operation(self.equation) if self.equation is not None else ""


@api_boundary
def saved(
    f: Any, *args: Any, question: str = "", argnums: Argnums = 0, hints: Sequence[Text] = (), **kwargs: Any
) -> Exercise:
    """An exercise in which the learner marks the values that a gradient saves; each mark gets a reason.

    >>> kept = teach.saved(loss, params, x)
    >>> kept.answer(["x", "tanh", "params['w']"])

    Besides the values that the function computes, a derivative rule may compute and save another one, such as the cosine for a sine. Each
    equation that is not linear has a box for it, named `sin'`.

    An answer is a list of: an argument's path such as `params['w']`; a variable of the source such as `h`, for what is assigned to it; an
      operation such as `tanh`, for its results, or `tanh'`; an expression such as `tanh(b)`; a variable of the printed program; or a line,
      as a number, for all values that are computed there. An item that matches several values marks all of them.

    Args:
      f, argnums: as for `jaxviz.derive`.
      *args, **kwargs: the arguments of the function.
      question: replaces the default question.
      hints: further hints, after the computed ones.
    """
    case = _Case(derive(f, *args, argnums=argnums, **kwargs))
    name = case.derivation.primal.name
    return Exercise(
        question or QUESTION.format(name=name),
        case.check,
        lambda: case.verdict(None),
        Form("marks", case.groups()),
        (case.hint, *hints),
        case.wrong,
        case.grading,
    )


@dataclass(eq=False)
class _Case:
    """One derivation, its values, and which of them it saves."""

    derivation: Derivation
    names: dict[Var, str] = field(init=False)
    arguments: dict[Var, str] = field(init=False)
    values: tuple[Value, ...] = field(init=False)
    kept: dict[Value, list[Residual]] = field(init=False)
    beside: list[Residual] = field(init=False)
    read: dict[Equation, list[Residual]] = field(init=False)

    def __post_init__(self) -> None:
        primal = self.derivation.primal
        self.names = variable_names(primal)
        self.arguments = {v: n for v, n in zip(primal.invars, primal.arg_names, strict=True) if n}
        for v, n in self.names.items():
            # A letter of the printed program may also be the name of an argument.
            self.names[v] = n if v in self.arguments or n not in self.arguments.values() else 2 * n
        self._opaque: dict[Equation, Equation] = {}
        self._own = {e for _, e in primal.walk()}
        self._find_derivatives()
        self.values = tuple(self._values())
        self._find_kept()
        # If a product saves only its factors, a box for something else would be noise.
        products = ("product", "convolution")
        is_product = lambda v: v.primitive == "mul" or plain(v.primitive).kind in products
        self.values = tuple(v for v in self.values if v in self.kept or v.kind != "slope" or not is_product(v))

    def _find_derivatives(self) -> None:
        """For each equation of the function, the residuals that its derivative reads."""
        parts = self.derivation.linearized
        for e in self._own:
            for _, program in e.operation.programs if self._is_custom(e) else ():
                self._opaque.update({inner: e for _, inner in program.walk()})
        self.read = {}
        variables = parts.linear.invars[: len(parts.residuals)]
        readers = find_readers(parts.linear, variables, is_linear=True)
        for residual in self.derivation.residuals:
            for reader in readers.get(residual.var, ()):
                read = self.read.setdefault(self._of_function(reader.equation), [])
                read += [residual] if residual not in read else []

    def _is_custom(self, equation: Equation) -> bool:
        return of(equation).has_custom_rule

    def _of_function(self, equation: Equation) -> Equation:
        found = primal_equation(equation)
        return self._opaque.get(found, found)

    def _values(self) -> Iterator[Value]:
        primal = self.derivation.primal
        for v in primal.constvars:
            yield Value("input", self.names[v], f"constant {self.names[v]}", None, (v,), primal, None)
        for v in primal.invars:
            name = self.arguments.get(v, self.names[v])
            yield Value("input", self.names[v], name, None, (v,), primal, None)
        yield from self._made_in(primal, ())

    def _made_in(self, program: Program, within: tuple[Equation, ...]) -> Iterator[Value]:
        for e in program.equations:
            inside = () if self._is_custom(e) else bodies(e)
            if inside:
                for body in inside:
                    yield from self._made_in(body.program, (*within, e)) if body.has_results else ()
                continue
            text, at = self._text(e), location_of(e, within)
            name = self.names.get(e.outvars[0], "_") if e.outvars else "_"
            yield Value("value", name, text, e, tuple(e.outvars), program, at, within)
            if self.read.get(e):
                yield Value("slope", name, text, e, (), program, at, within)

    def _text(self, equation: Equation) -> str:
        operands = ", ".join(self._operand(a) for a in equation.invars[:4])
        return f"{_operation(equation)}({operands}{', …' if len(equation.invars) > 4 else ''})"

    def _operand(self, atom: Atom) -> str:
        if isinstance(atom, Literal):
            return printable(f"{atom.val:.6g}" if isinstance(atom.val, float) else str(atom.val), 20)
        return self.arguments.get(atom) or self.names.get(atom, "_")

    def _find_kept(self) -> None:
        by_equation: dict[tuple[str, Equation | None], Value] = {
            (v.kind, v.equation): v for v in self.values if v.equation is not None
        }
        by_name = {v.text: v for v in self.values if v.kind == "input"}
        by_variable = {v.atoms[0]: v for v in self.values if v.kind == "input"}
        self.kept, self.beside, self.shown = {}, [], {}
        parts = self.derivation.linearized
        site = Site.of(self.derivation, self.derivation.forward_names)
        self._match_forward()
        for residual, atom in zip(self.derivation.residuals, parts.residuals, strict=True):
            value: Value | None = None
            if residual.kind == "argument":
                value = by_name.get(residual.expression)
            elif residual.producer is not None:
                source = next((s for s in site.sources(atom) if s.equation is residual.producer), None)
                value = by_equation.get(self._made_by(source, atom)) if source is not None else None
            elif isinstance(atom, Var):
                value = by_variable.get(atom)
            if value is None:
                self.beside.append(residual)
            else:
                self.kept.setdefault(value, []).append(residual)
            self.shown[residual] = self._in_words(residual, value)
        # Values that only change a shape are asked about only if they are saved.
        self.values = tuple(
            v for v in self.values
            if v.equation is None or v in self.kept or not (is_view(v.equation) or plain(v.equation.primitive.name).is_free)
        )  # fmt: skip

    def _match_forward(self) -> None:
        """Which variables of the forward program are the function's own, found from the copies of its equations."""
        primal, forward = self.derivation.primal, self.derivation.forward
        self._stands_for: dict[Atom, Var] = {}
        pairs: list[tuple[Sequence[Atom], Sequence[Atom]]] = [(primal.outvars, forward.outvars)]
        self._copies: dict[Atom, Equation] = {}
        for _, e in forward.walk():
            self._copies.update(dict.fromkeys(e.outvars, e))
            own = self._of_function(e)
            if own.primitive is e.primitive and own is not e and e.origin is not None and e.origin.role == "primal":
                pairs.append((own.invars, e.invars))
                if not self._is_custom(own):
                    pairs.append((own.outvars, e.outvars))
        for ours, theirs in pairs:
            # In the forward program, a scan has additional operands and results, after the original ones.
            for v, w in zip(ours, theirs, strict=False) if len(ours) == len(theirs) else ():
                if isinstance(v, Var) and isinstance(w, Var):
                    self._stands_for.setdefault(w, v)

    def _made_by(self, source: Source, atom: Atom) -> tuple[str, Equation | None]:
        """Whether a saved value is the result of an equation of the function or another value of its rule; and that equation."""
        assert source.equation is not None
        for e in (source.equation, *reversed(source.within)):
            own = self._of_function(e)
            if own in self._own:
                values = {self._stands_for.get(a) for a in (atom, source.atom)} - {None}
                is_result = bool(values & set(own.outvars))
                is_copy = not self._is_custom(own) and e.primitive is own.primitive
                plain = e.origin is None or e.origin.role in ("primal", "recomputation")
                return "value" if plain and (is_result or is_copy) else "slope", own
        return "", None

    def _in_words(self, residual: Residual, value: Value | None) -> str:
        """How a saved value is computed, with the names of the function's own program where possible."""
        if value is not None and value.kind != "slope":
            return value.text
        made = self._computed(residual.producer, 0) if residual.producer is not None else None
        return made or residual.expression

    def _computed(self, e: Equation, depth: int) -> str | None:
        operands = [self._known(a, depth) for a in e.invars]
        if e.programs or any(o is None for o in operands) or depth > 3:
            return None
        given = [str(o) for o in operands]
        sign = _SIGNS.get(e.primitive.name)
        if sign and len(given) == 2:
            text = f"{given[0]} {sign} {given[1]}"
        elif e.primitive.name == "integer_pow":
            text = f"{given[0]}**{e.params['y']}"
        elif e.primitive.name == "neg":
            text = f"-{given[0]}"
        else:
            return f"{e.primitive.name}({', '.join(given)})"
        return f"({text})" if depth else text

    def _known(self, atom: Atom, depth: int) -> str | None:
        """An operand by its name in the function's program, or by how the rule computes it."""
        if isinstance(atom, Literal) or atom in self.arguments:
            return self._operand(atom)
        if atom in self._stands_for:
            return self._operand(self._stands_for[atom])
        return self._computed(self._copies[atom], depth + 1) if atom in self._copies else None

    def groups(self) -> tuple[tuple[str, tuple[tuple[Any, str], ...]], ...]:
        """The values by their lines, in the order of the program."""
        found: dict[str, list[tuple[Any, str]]] = {}
        for i, v in enumerate(self.values):
            found.setdefault(_heading(v.location), []).append((Key(i), v.label))
        return tuple((heading, tuple(options)) for heading, options in found.items())

    def check(self, given: Any) -> Verdict:
        items = [given] if isinstance(given, (str, int)) else list(given)
        marked: dict[Value, None] = {}
        for item in items:
            fitting = self._fitting(item)
            if not fitting:
                return Verdict(False, f"{item!r} does not match any of the values.", (), self._what_there_is())
            marked.update(dict.fromkeys(fitting))
        return self.verdict(set(marked))

    def _fitting(self, item: Any) -> list[Value]:
        """The values that a part of an answer names, by the first kind of name that matches any."""
        if isinstance(item, Key):
            return [self.values[item]]
        if isinstance(item, int):
            return [v for v in self.values if v.kind == "value" and v.location is not None and v.location.line == item]
        text = "".join(str(item).split())
        ways = (
            lambda v: v.kind == "input" and _squeezed(v.text) == text,
            lambda v: v.kind == "value" and assigned(v.location, v.equation, self.values) == text,
            lambda v: v.kind == "value" and text in (v.primitive, _squeezed(v.text), _squeezed(f"{v.name}={v.text}")),
            lambda v: v.kind == "slope" and text in (f"{v.primitive}'", f"{_squeezed(v.text)}'"),
            lambda v: any(text in (_squeezed(r.expression), _squeezed(self.shown[r])) for r in self.kept.get(v, ())),
            lambda v: v.kind != "slope" and v.name == text,
        )
        return next((found for way in ways if (found := [v for v in self.values if way(v)])), [])

    def _what_there_is(self) -> str:
        known = dict.fromkeys(f"{v.primitive}'" if v.kind == "slope" else v.text for v in self.values)
        return f"There are {', '.join(f'`{k}`' for k in known)}."

    def verdict(self, marked: set[Value] | None) -> Verdict:
        """What is right, wrong and missed; the answer if nothing was marked."""
        points: list[Point] = []
        for v in self.values:
            is_kept = v in self.kept
            if marked is None:
                if is_kept:
                    points.append(Point("note", v.short, self._why_kept(v)))
            elif v in marked or is_kept:
                mark: Mark = "missed" if v not in marked else "right" if is_kept else "wrong"
                points.append(Point(mark, v.short, self._why_kept(v) if is_kept else self._why_not(v)))
        if marked is None:
            return Verdict(None, self._headline(), tuple(points), self._note())
        n_right, n_wrong = len(marked & set(self.kept)), len(marked - set(self.kept))
        n_missed = len(set(self.kept) - marked)
        if not n_wrong and not n_missed:
            return Verdict(True, self._headline(), tuple(points), self._note())
        parts = [f"{n_right} of {len(self.kept)} found"]
        parts += [f"{n_wrong} marked that {'is' if n_wrong == 1 else 'are'} not saved"] if n_wrong else []
        points.sort(key=lambda p: ("wrong", "missed", "right").index(p.mark))
        return Verdict(False, f"{', '.join(parts)}.", tuple(points), self._note())

    def grading(self) -> OfMarks:
        """For a page without a kernel, whose script does the same as `verdict`."""
        return {
            "kind": "marks", "headline": self._headline(), "note": self._note(),
            "boxes": [
                {"isKept": v in self.kept, "what": printable(v.short), "why": printable(self._why_kept(v) if v in self.kept else self._why_not(v))}
                for v in self.values
            ],
        }  # fmt: skip

    def _headline(self) -> str:
        total = format_bytes(self.derivation.residuals.saved.nbytes)
        return f"The gradient saves {len(self.kept)} of these {len(self.values)} values, {total} in total."

    def _note(self) -> str:
        if not self.beside:
            return ""
        shown = "; ".join(f"`{r.expression}` ({r.kind}, {format_bytes(r.nbytes)})" for r in self.beside[:4])
        return f"Also saved: {shown}{'; …' if len(self.beside) > 4 else ''}."

    def _why_kept(self, value: Value) -> str:
        found = sorted(self.kept[value], key=lambda r: -r.nbytes)
        size = format_bytes(sum(r.nbytes for r in found))
        # The other names in the reason are the forward program's, which has not been shown here.
        because = found[0].reason.partition(" is saved because ")[2].partition("; ")[0]
        times = f", {' × '.join(f'{n:,}' for n in found[0].lengths)} of them" if found[0].lengths else ""
        what = _listed([self.shown[r] for r in found]) + ", " if value.kind == "slope" else ""
        return f"{what}{size}{times}{': ' + because if because else ''}."

    def _why_not(self, value: Value) -> str:
        own = _listed([self.shown[r] for r in self.read.get(value.equation, ())]) if value.equation is not None else ""
        if value.kind == "slope":
            return f"The derivative of `{value.text}` reads {own}; nothing else is computed for it."
        readers = find_readers(value.program, value.atoms)
        parts: dict[str, None] = {}
        for e in dict.fromkeys(self._of_function(r.equation) for v in value.atoms for r in readers[v]):
            at = location_of(e, value.within)
            who = f"`{_operation(e)}`{f' at line {at.line}' if at is not None and at != value.location else ''}"
            if not self.read.get(e):
                parts[f"the derivative of {who} needs no value"] = None
            else:
                parts[f"the derivative of {who} reads {_listed([self.shown[r] for r in self.read[e]])}"] = None
        if not parts:
            parts["it is a result, and no derivative reads it" if self._is_result(value) else "nothing reads it"] = None
        if own:
            parts[f"its own derivative reads {own}"] = None
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]}."

    def _is_result(self, value: Value) -> bool:
        return any(v in value.program.outvars for v in value.atoms)

    def hint(self) -> str:
        lines = sorted({v.location.line for v in self.kept if v.location is not None})
        inputs = sum(v.kind == "input" for v in self.kept)
        made = f"{len(self.kept) - inputs} that are computed at line{'s' if len(lines) != 1 else ''} {', '.join(map(str, lines))}"
        given = f"{inputs} of its arguments{' and ' if lines else ''}" if inputs else ""
        return (
            f"It saves {given}{made if lines else ''}. A derivative that multiplies a tangent by a value needs that "
            "value; the derivative of a sum needs none."
        )

    def wrong(self) -> Iterable[Any]:
        """Nothing, everything, each saved value omitted, each other value added."""
        right = [Key(i) for i, v in enumerate(self.values) if v in self.kept]
        others = [Key(i) for i, v in enumerate(self.values) if v not in self.kept]
        if right:
            yield []
        if others:
            yield [*right, *others]
        yield from ([k for k in right if k != out] for out in right)
        yield from ([*right, k] for k in others)


class Key(int):
    """The number of a value in an exercise, as returned by the form; a plain number is a line."""


_SIGNS = {
    "add": "+",
    "add_any": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "pow": "**",
    "gt": ">",
    "lt": "<",
    "ge": ">=",
    "le": "<=",
    "eq": "==",
}


def _operation(equation: Equation) -> str:
    """The name of a primitive, or of a function with a custom rule."""
    if of(equation).has_custom_rule:
        return next((str(p.name) for _, p in equation.operation.programs if p.name), equation.primitive.name)
    return str(equation.primitive.name)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _listed(texts: Sequence[str]) -> str:
    quoted = [f"`{t}`" for t in dict.fromkeys(texts)]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def _heading(location: Location | None) -> str:
    if location is None:
        return _ARGUMENTS
    source = linecache.getline(location.file, location.line).strip()
    return f"line {location.line}: `{source}`" if source else f"line {location.line}"


def assigned(location: Location | None, equation: Equation | None, values: Sequence[Value]) -> str:
    """The source variable that a value is assigned to, if it is the last value of the statement; otherwise ''."""
    if location is None or equation is None:
        return ""
    here = _assignment(location.file, tuple(linecache.getlines(location.file)), location.line)
    if here is None:
        return ""
    first, last, target = here
    of_statement = [
        v for v in values
        if v.kind == "value" and v.location is not None and v.location.file == location.file
        and v.location.function == location.function and first <= v.location.line <= last
    ]  # fmt: skip
    final = of_statement[-1]
    same = final.equation is equation or (
        final.equation is not None
        and final.equation.primitive is equation.primitive
        and final.location is not None
        and (final.location.line, final.location.column) == (location.line, location.column)
    )
    return target if same else ""


@lru_cache(maxsize=512)
def _assignment(file: str, lines: tuple[str, ...], line: int) -> tuple[int, int, str] | None:
    """The first and last line of the innermost assignment to one name around a line, and that name."""
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return None
    found = [
        (n.lineno, n.end_lineno or n.lineno, n.targets[0].id)
        for n in ast.walk(tree)
        if isinstance(n, ast.Assign) and len(n.targets) == 1 and isinstance(n.targets[0], ast.Name)
        if n.lineno <= line <= (n.end_lineno or n.lineno)
    ]
    return max(found, default=None)
