"""`saved`: which values does the gradient save? The answer and its reasons come from the derivation."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from typing import Literal as OneOf

from jaxviz.analysis.walk import find_readers, location_of, primal_equation, programs_in
from jaxviz.arguments import Argnums
from jaxviz.derivation import Derivation, derive
from jaxviz.features.residuals.residual import Residual
from jaxviz.higher_order import bodies, of
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.expressions import assigned_at
from jaxviz.ir.origin import Location
from jaxviz.ir.pretty import variable_names
from jaxviz.ir.primitives import is_view, plain
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.report.tables import format_bytes, printable, together, type_text
from jaxviz.teach.exercise import AnswerForm, Exercise, Point, Text, Verdict
from jaxviz.teach.messages import OfMarks
from jaxviz.teach.sessions import ValueNumber

QUESTION = "Which of these values does the gradient of `{name}` save for the backward pass?"

_ARGUMENTS = "arguments and constants"


@dataclass(frozen=True, eq=False)
class Value:
    """A value that the gradient may save.

    Args:
      kind: 'input' for an argument or a constant, 'value' for the result of an equation of the function, 'slope' for
        another value that the equation's derivative rule computes.
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

    Besides the values that the function computes, a derivative rule may compute and save another one, such as the
    cosine for a sine. Each equation that is not linear has a box for it, named `sin'`.

    An answer is a list of: an argument's path such as `params['w']`; a variable of the source such as `h`, for what is
    assigned to it; an operation such as `tanh`, for its results, or `tanh'`; an expression such as `tanh(b)`; a
    variable of the printed program; or a line, as a number, for all values that are computed there. An item that
    matches several values marks all of them.

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
        AnswerForm("marks", case.groups()),
        (case.hint, *hints),
        case.wrong,
        case.grading,
    )


_WRITTEN = {
    "add": "{} + {}", "add_any": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "pow": "{}**{}",
    "neg": "-{}", "integer_pow": "{}**{y}", "gt": "{} > {}", "lt": "{} < {}", "ge": "{} >= {}", "le": "{} <= {}",
    "eq": "{} == {}",
}  # fmt: skip
"""The operations that are written with a sign."""


class _Case:
    """One derivation, its values, and which of them it saves."""

    def __init__(self, derivation: Derivation):
        self.derivation = derivation
        primal = derivation.primal
        self.names = variable_names(primal)
        self.arguments = {v: n for v, n in zip(primal.invars, primal.arg_names, strict=True) if n}
        for v, n in self.names.items():
            # A letter of the printed program may also be the name of an argument.
            self.names[v] = n if v in self.arguments or n not in self.arguments.values() else 2 * n
        self._own = {e for _, e in primal.walk()}
        custom = [e for e in self._own if self._is_custom(e)]
        self._opaque = {inner: e for e in custom for _, program in e.operation.programs for _, inner in program.walk()}
        self.read: dict[Equation, list[Residual]] = {}
        for residual in derivation.residuals:
            for e in dict.fromkeys(self._of_function(r.equation) for r in residual.linear):
                self.read.setdefault(e, []).append(residual)
        self._relate_forward()
        self._find_kept(tuple(self._values()))

    def _is_custom(self, equation: Equation) -> bool:
        return of(equation).has_custom_rule

    def _of_function(self, equation: Equation) -> Equation:
        original = primal_equation(equation)
        return self._opaque.get(original, original)

    def _is_copy(self, e: Equation) -> bool:
        """Whether an equation of the forward program is one of the function's own, and not one of its derivative."""
        own = self._of_function(e)
        is_plain = e.origin is None or e.origin.role in ("primal", "recomputation")
        return is_plain and own.primitive is e.primitive and len(own.invars) == len(e.invars)

    def _relate_forward(self) -> None:
        """Which variables of the forward program are the function's own, and which equations compute the others."""
        self._stands_for: dict[Atom, Atom] = {}
        self._copies: dict[Atom, Equation] = {}
        for program in programs_in(self.derivation.forward):
            self._stands_for.update({v: own for v, relation, own in program.relations() if relation == "value"})
            for e in program.equations:
                self._copies.update(dict.fromkeys(e.outvars, e))
                if self._is_copy(e):
                    for v, own in zip(e.invars, self._of_function(e).invars, strict=True):
                        self._stands_for.setdefault(v, own)

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

    def _find_kept(self, values: Sequence[Value]) -> None:
        """Which values are saved, and which of the others to ask about."""
        by_name = {v.text: v for v in values if v.kind == "input"}
        by_variable: dict[Atom, Value] = {a: v for v in values for a in v.atoms}
        by_equation: dict[tuple[Equation | None, str], Value] = {(v.equation, v.kind): v for v in values}
        self.residuals_of: dict[Value, list[Residual]] = {}
        self.beside: list[Residual] = []
        self.shown: dict[Residual, str] = {}
        for residual in self.derivation.residuals:
            if residual.kind == "argument":
                value = by_name.get(residual.expression)
            else:
                value = self._value_of(residual, by_variable, by_equation)
            if value is None:
                self.beside.append(residual)
            else:
                self.residuals_of.setdefault(value, []).append(residual)
            self.shown[residual] = self._in_words(residual, value)
        self.values = tuple(v for v in values if v in self.residuals_of or not self._is_noise(v))

    def _value_of(
        self,
        residual: Residual,
        by_variable: Mapping[Atom, Value],
        by_equation: Mapping[tuple[Equation | None, str], Value],
    ) -> Value | None:
        source = residual.sources[0]
        for atom in (residual.atom, source.atom):
            value = by_variable.get(self._stands_for.get(atom, atom))
            if value is not None:
                return value
        for e in (source.equation, *reversed(source.within)):
            if e is not None and (own := self._of_function(e)) in self._own:
                return by_equation.get((own, "value" if self._is_copy(e) else "slope"))
        return None

    def _is_noise(self, value: Value) -> bool:
        """Whether a value that is not saved is no question: one that only changes a shape, or another one beside a
        product's factors."""
        if value.equation is None:
            return False
        what = plain(value.primitive)
        if value.kind == "slope" and (value.primitive == "mul" or what.kind in ("product", "convolution")):
            return True
        return is_view(value.equation) or plain(value.equation.primitive.name).is_free

    def _in_words(self, residual: Residual, value: Value | None) -> str:
        """How a saved value is computed, with the names of the function's own program where possible."""
        if value is not None and value.kind != "slope":
            return value.text
        origin = self._computed(residual.producer, 0) if residual.producer is not None else None
        return origin or residual.expression

    def _computed(self, e: Equation, depth: int) -> str | None:
        operands = [self._known(a, depth) for a in e.invars]
        known = [o for o in operands if o is not None]
        if e.programs or len(known) < len(operands) or depth > 3:
            return None
        if e.primitive.name in _WRITTEN:
            text = _WRITTEN[e.primitive.name].format(*known, **e.params)
            return f"({text})" if depth else text
        return f"{e.primitive.name}({', '.join(known)})"

    def _known(self, atom: Atom, depth: int) -> str | None:
        """An operand by its name in the function's program, or by how the rule computes it."""
        if isinstance(atom, Literal) or atom in self.arguments:
            return self._operand(atom)
        if atom in self._stands_for:
            return self._operand(self._stands_for[atom])
        return self._computed(self._copies[atom], depth + 1) if atom in self._copies else None

    def groups(self) -> tuple[tuple[str, tuple[tuple[Any, str], ...]], ...]:
        """The values by their lines, in the order of the program."""
        by_name: dict[str, list[tuple[Any, str]]] = {}
        for i, v in enumerate(self.values):
            by_name.setdefault(_heading(v.location), []).append((ValueNumber(i), v.label))
        return tuple((heading, tuple(options)) for heading, options in by_name.items())

    def check(self, answer: Any) -> Verdict:
        items = [answer] if isinstance(answer, (str, int)) else list(answer)
        marked: dict[Value, None] = {}
        for item in items:
            fitting = self._fitting(item)
            if not fitting:
                return Verdict(False, f"{item!r} does not match any of the values.", (), self._what_there_is())
            marked.update(dict.fromkeys(fitting))
        return self.verdict(set(marked))

    def _fitting(self, item: Any) -> list[Value]:
        """The values that a part of an answer names, by the first kind of name that matches any."""
        if isinstance(item, ValueNumber):
            return [self.values[item]]
        if isinstance(item, int):
            return [v for v in self.values if v.kind == "value" and v.location is not None and v.location.line == item]
        text = "".join(str(item).split())
        ways = (
            lambda v: v.kind == "input" and _squeezed(v.text) == text,
            lambda v: v.kind == "value" and self._assigned(v) == text,
            lambda v: v.kind == "value" and text in (v.primitive, _squeezed(v.text), _squeezed(f"{v.name}={v.text}")),
            lambda v: v.kind == "slope" and text in (f"{v.primitive}'", f"{_squeezed(v.text)}'"),
            lambda v: any(
                text in (_squeezed(r.expression), _squeezed(self.shown[r])) for r in self.residuals_of.get(v, ())
            ),
            lambda v: v.kind != "slope" and v.name == text,
        )
        return next((values for way in ways if (values := [v for v in self.values if way(v)])), [])

    def _assigned(self, value: Value) -> str:
        """The source variable that a value is assigned to; of a call that computes several, the last one is."""
        *_, last = (v for v in self.values if v.kind == "value" and v.location == value.location)
        return assigned_at(value.location) if value.primitive == last.primitive else ""

    def _what_there_is(self) -> str:
        known = dict.fromkeys(f"{v.primitive}'" if v.kind == "slope" else v.text for v in self.values)
        return f"There are {', '.join(f'`{k}`' for k in known)}."

    def verdict(self, marked: set[Value] | None) -> Verdict:
        """What is right and wrong, and where values are missed, without naming them; the answer if nothing was
        marked."""
        kept = [v for v in self.values if v in self.residuals_of]
        if marked is None:
            points = tuple(Point("note", v.short, self._why_kept(v)) for v in kept)
            return Verdict(None, self._headline(), points, self._note())
        right, missed = [v for v in kept if v in marked], [v for v in kept if v not in marked]
        wrong = [v for v in self.values if v in marked and v not in self.residuals_of]
        points = tuple(Point("right", v.short, self._why_kept(v)) for v in right)
        if not wrong and not missed:
            return Verdict(True, self._headline(), points, self._note())
        parts = [f"{len(right)} of {len(kept)} found"]
        parts += [f"{len(wrong)} marked that {'is' if len(wrong) == 1 else 'are'} not saved"] if wrong else []
        places = ", ".join(dict.fromkeys(map(_place, missed)))
        more = f" {len(missed)} more {'is' if len(missed) == 1 else 'are'} saved: {places}." if missed else ""
        not_saved = (Point("wrong", v.short, self._why_not(v, is_named=not missed)) for v in wrong)
        return Verdict(False, f"{', '.join(parts)}.{more}", (*not_saved, *points), self._note())

    def grading(self) -> OfMarks:
        """For a page without a kernel, whose script does the same as `verdict`."""
        return {
            "kind": "marks", "headline": self._headline(), "note": self._note(),
            "boxes": [
                {"isKept": v in self.residuals_of, "what": printable(v.short), "place": _place(v),
                 "why": printable(self._why_kept(v) if v in self.residuals_of else self._why_not(v)),
                 "whileMissed": "" if v in self.residuals_of else printable(self._why_not(v, is_named=False))}
                for v in self.values
            ],
        }  # fmt: skip

    def _headline(self) -> str:
        total = format_bytes(self.derivation.residuals.saved.nbytes)
        return f"The gradient saves {len(self.residuals_of)} of these {len(self.values)} values, {total} in total."

    def _note(self) -> str:
        if not self.beside:
            return ""
        shown = "; ".join(f"`{r.expression}` ({r.kind}, {format_bytes(r.nbytes)})" for r in self.beside[:4])
        return f"Also saved: {shown}{'; …' if len(self.beside) > 4 else ''}."

    def _why_kept(self, value: Value) -> str:
        residuals = sorted(self.residuals_of[value], key=lambda r: -r.nbytes)
        size = format_bytes(sum(r.nbytes for r in residuals))
        because = residuals[0].why.partition("; ")[0]
        times = f", {' × '.join(f'{n:,}' for n in residuals[0].lengths)} of them" if residuals[0].lengths else ""
        what = _listed([self.shown[r] for r in residuals]) + ", " if value.kind == "slope" else ""
        return f"{what}{size}{times}{': ' + because if because else ''}."

    def _why_not(self, value: Value, is_named: bool = True) -> str:
        """Why a value is not saved; `is_named`: with the names of the values that are."""
        if value.kind == "slope":
            read = self._reads(value.equation, is_named)
            return f"The derivative of `{value.text}` {read}; nothing else is computed for it."
        readers = find_readers(value.program, value.atoms)
        parts: dict[str, None] = {}
        for e in dict.fromkeys(self._of_function(r.equation) for v in value.atoms for r in readers[v]):
            at = location_of(e, value.within)
            who = f"`{_operation(e)}`{f' at line {at.line}' if at is not None and at != value.location else ''}"
            parts[f"the derivative of {who} {self._reads(e, is_named) or 'needs no value'}"] = None
        if not parts:
            parts["it is a result, and no derivative reads it" if self._is_result(value) else "nothing reads it"] = None
        if own := self._reads(value.equation, is_named):
            parts[f"its own derivative {own}"] = None
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]}."

    def _reads(self, equation: Equation | None, is_named: bool) -> str:
        """What the derivative of an equation reads; '' if it reads no value."""
        read = self.read.get(equation, ()) if equation is not None else ()
        if not is_named and read:
            return "reads another value" if len(read) == 1 else "reads other values"
        return f"reads {_listed([self.shown[r] for r in read])}" if read else ""

    def _is_result(self, value: Value) -> bool:
        return any(v in value.program.outvars for v in value.atoms)

    def hint(self) -> str:
        lines = sorted({v.location.line for v in self.residuals_of if v.location is not None})
        inputs = sum(v.kind == "input" for v in self.residuals_of)
        computed = (
            f"{len(self.residuals_of) - inputs} that are computed at line{'s' if len(lines) != 1 else ''} "
            f"{', '.join(map(str, lines))}"
        )
        read = f"{inputs} of its arguments{' and ' if lines else ''}" if inputs else ""
        return (
            f"It saves {read}{computed if lines else ''}. A derivative that multiplies a tangent by a value needs that "
            "value; the derivative of a sum needs none."
        )

    def wrong(self) -> Iterable[Any]:
        """Nothing, everything, each saved value omitted, each other value added."""
        right = [ValueNumber(i) for i, v in enumerate(self.values) if v in self.residuals_of]
        others = [ValueNumber(i) for i, v in enumerate(self.values) if v not in self.residuals_of]
        if right:
            yield []
        if others:
            yield [*right, *others]
        yield from ([k for k in right if k != out] for out in right)
        yield from ([*right, k] for k in others)


def _operation(equation: Equation) -> str:
    """The name of a primitive, or of a function with a custom rule."""
    if of(equation).has_custom_rule:
        return next((str(p.name) for _, p in equation.operation.programs if p.name), equation.primitive.name)
    return str(equation.primitive.name)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _listed(texts: Iterable[str]) -> str:
    return together(f"`{t}`" for t in dict.fromkeys(texts))


def _place(value: Value) -> str:
    """Where a value is, without its name."""
    if value.kind == "input":
        return "among the arguments"
    return f"on line {value.location.line}" if value.location is not None else "on a line that is not known"


def _heading(location: Location | None) -> str:
    if location is None:
        return _ARGUMENTS
    source = linecache.getline(location.file, location.line).strip()
    return f"line {location.line}: `{source}`" if source else f"line {location.line}"
