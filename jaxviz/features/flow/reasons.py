"""Why a derivative ends at an equation, in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import jax
import numpy as np

from jaxviz.analysis.naming import IN_DERIVATIVE, ROOM_IN_SENTENCE, Naming, naming_of
from jaxviz.analysis.walk import Source, SourceTracer, location_of, primal_equation
from jaxviz.derivation import Derivation
from jaxviz.features.flow.run import GradientRun, as_float64
from jaxviz.features.flow.structure import StructuralStop
from jaxviz.features.flow.zeros import Death
from jaxviz.higher_order import is_call, is_loop, of
from jaxviz.ir.origin import Location
from jaxviz.ir.primitives import keeps_numbers, operation_of, plain
from jaxviz.ir.syntax import Atom, Equation, Var
from jaxviz.report.data import Data
from jaxviz.report.tables import counted, short_location, type_text

Array = np.ndarray[Any, Any]
Kind = Literal[
    "asked", "library", "integer", "boolean", "flat", "rule", "none", "zero factor", "slope", "branch", "underflow",
    "cancellation", "iterations", "other elements", "unread", "static",
]  # fmt: skip
"""How a derivative ends. By structure: see `structure.Reason`; the loss does not read the parameter; it is no leaf of
an argument. At these values: a factor is zero; the slope of a function is, as of a relu or where it is saturated; what
a `where` or a `cond` takes is something else; numbers are too small for their type; terms add up to zero; it becomes
zero from iteration to iteration; no elements are read whose cotangent is not zero, or others are written over it."""


@dataclass(frozen=True, slots=True)
class Ending(Data):
    """Where a derivative ends.

    Args:
      kind: how.
      expression: the user's expression there; '' if none is found.
      location: its line; None if unknown.
      text: why, as the end of a sentence.
    """

    kind: Kind
    expression: str
    location: Location | None
    text: str

    @property
    def place(self) -> str:
        """`jnp.argmax(logits)` (model.py:41)."""
        at = short_location(self.location)
        if not self.expression:
            return at or "an unknown line"
        return f"`{self.expression}` ({at})" if at else f"`{self.expression}`"

    def __str__(self) -> str:
        return f"{self.place}, {self.text}"

    _data = ("kind", "expression", "location", "text")


@dataclass(frozen=True, eq=False)
class Reasons:
    """Describes endings of one derivation."""

    derivation: Derivation

    @cached_property
    def naming(self) -> Naming:
        return naming_of(self.derivation)

    def named(self, e: Equation, within: Sequence[Equation] = (), place: int = 0) -> str:
        """The expression of an equation, without the operation of a rule."""
        name = self.naming.name(e, within, place, ROOM_IN_SENTENCE)
        return name.partition(IN_DERIVATIVE)[2] or name.partition(" in ")[2] if IN_DERIVATIVE in name else name

    def location(self, e: Equation, within: Sequence[Equation] = ()) -> Location | None:
        return self.naming.location(e, within) or location_of(e, within)

    # --- by structure -------------------------------------------------------------------------------------------------

    def of_stop(self, stop: StructuralStop) -> Ending:
        if stop not in self._of_stops:
            e, reason = stop.equation, stop.reason
            text = _STRUCTURAL[reason].format(stop.stopped_by if reason == "library" else _function(e))
            self._of_stops[stop] = Ending(reason, self.named(e, stop.within), self.location(e, stop.within), text)
        return self._of_stops[stop]

    @cached_property
    def _of_stops(self) -> dict[StructuralStop, Ending]:
        return {}

    # --- at values ----------------------------------------------------------------------------------------------------

    def of_death(self, run: GradientRun, death: Death) -> Ending:
        key = death.level, death.equation, death.operand, death.branch
        if key not in self._of_deaths:
            self._of_deaths[key] = self._described(run, death)
        return self._of_deaths[key]

    @cached_property
    def _of_deaths(self) -> dict[Any, Ending]:
        return {}

    def _described(self, run: GradientRun, death: Death) -> Ending:
        around = [e for e, _ in death.level.path]
        e = death.equation
        if e is None:
            assert death.branch is not None
            source = primal_equation(death.branch)
            n = [p for _, p in death.branch.programs].index(death.level.program)
            text = f"branch {n} of which would pass it on, and is never taken"
            return Ending("branch", self.named(source), self._at(death.branch, around[:-1]), text)
        kind, text = self._why(run, death, e)
        source = primal_equation(e)
        return Ending(kind, self.named(source) or self.named(e, around), self._at(e, around), text)

    def _at(self, e: Equation, within: Sequence[Equation]) -> Location | None:
        return self.location(primal_equation(e)) or self.location(e, within)

    def _why(self, run: GradientRun, death: Death, e: Equation) -> tuple[Kind, str]:
        if death.operand is None and e.programs:
            return "iterations", "in the iterations of which it becomes zero"
        if death.operand is None:
            return "rule", "whose backward rule returns zeros for it"
        search, level, does = run.search, death.level, plain(e.primitive.name)
        others = [(k, a) for k, a in enumerate(e.invars) if a not in search.linear(level)]
        if does.kind == "selection":
            return self._selection(run, death, others[0][1])
        if does.kind in ("scattering", "update"):  # the cotangent of an array, with zeros where others are written
            is_array = death.operand == 0
            return "other elements", "where other values are written over it" if is_array else _NOT_READ
        for _, a in others:
            if isinstance(a, Var) and a.aval.dtype.kind not in "biu" and not search.ever(level, a):
                return self._factor(run, death, a)
        values = search.values(death)
        if does.same == "rounded":
            return "underflow", _underflow(e, values[death.operand] if values is not None else None)
        if values is not None and others and does.grows == "product":
            u, c = as_float64(values[death.operand]), as_float64(values[others[0][0]])
            factor = self._origin(run, death, others[0][1])
            if does.passes_on == "first" or np.any(u * c):
                return "underflow", _underflow(e, values[death.operand])
            return "zero factor", self._never_meets(run, death, factor, u, c)
        if does.kind in ("product", "convolution") and others and values is not None:
            factor = self._origin(run, death, others[0][1])
            if does.kind == "product" and not _meet(e, values):
                text = f"where the gradient that arrives is multiplied by {factor.text}"
                return "zero factor", f"{text}, and in each product one of the two is zero"
            return "cancellation", "where its terms add up to zero"
        if does.grows == "sum":
            return "cancellation", "where its terms add up to zero"
        return "other elements", _NOT_READ

    def _never_meets(self, run: GradientRun, death: Death, factor: ZeroFactor, u: Array, c: Array) -> str:
        """A factor whose elements are zero wherever those of the cotangent are not."""
        assert death.equation is not None
        source, zero = factor.source, np.broadcast_to(c == 0, np.broadcast_shapes(u.shape, c.shape))
        at = source.equation if source is not None else None
        is_own = at is not None and primal_equation(at) is primal_equation(death.equation)
        what = factor.text if not is_own else "its slope" if factor.is_slope else "its own value"
        if any(is_loop(e) for e, _ in death.level.path):
            return f"where {what} is zero in each element in which the gradient that arrives is not"
        n = int(np.sum(np.broadcast_to(u != 0, zero.shape)))
        elements = f"{n:,} of {counted(zero.size, 'element')}"
        which = "it" if n == 1 else "these"
        text = f"where the gradient that arrives is not zero in {elements}, and {what} is zero in {which}"
        made = self._selected(run, source, zero & (u != 0)) if source is not None else ""
        return f"{text}, since {made}" if made else text

    def _selected(self, run: GradientRun, source: Source, zeros: Array) -> str:
        """The selection of a large negative number that makes an exponential zero in some elements, as of a mask before
        a softmax; '' if that is not what makes it zero."""
        e = source.equation
        if e is None or plain(e.primitive.name).grows != "exponential" or source.within:
            return ""
        a: Atom = e.invars[0]
        for _step in range(_MOST_FOLLOWED):
            source = self._source(a)
            e, within = source.equation, source.within
            if e is None or not all(map(is_call, within)):
                return ""
            does, read = plain(e.primitive.name), self._operands(run, e, within)
            if does.kind == "selection" and [x.shape for x in read] == [zeros.shape] * 3:
                chosen = np.unique(np.where(read[0] != 0, read[2], read[1])[zeros])
                if len(np.unique(read[0][zeros])) != 1 or len(chosen) != 1 or chosen[0] > -_FAR:
                    return ""
                name, at = self.named(e, within, source.place), short_location(self.location(e, within))
                return f"`{name}`{f' ({at})' if at else ''} selects {chosen[0]:.3g} there" if name else ""
            if does.grows != "sum" or does.kind != "elementwise" or within:
                return ""
            operands = zip(e.invars, read, strict=False)
            far = [a for a, x in operands if x.shape == zeros.shape and np.all(x[zeros] < -_FAR)]
            if len(far) != 1:
                return ""
            a = far[0]
        return ""

    def _source(self, a: Atom) -> Source:
        """Where a value of the forward program is computed."""
        found = SourceTracer(self.derivation.forward, _keeps)(a) if isinstance(a, Var) else ()
        return next(iter(found), Source(None, a))

    def _selection(self, run: GradientRun, death: Death, condition: Atom) -> tuple[Kind, str]:
        factor = self._origin(run, death, condition)
        if factor.is_slope or not factor.name:
            return "slope", f"whose slope is zero{_in_all(condition)}"
        return "branch", f"where `{factor.name}` selects something else{_in_all(condition)}"

    def _factor(self, run: GradientRun, death: Death, a: Atom) -> tuple[Kind, str]:
        """A factor that is zero in all elements, in each iteration."""
        factor = self._origin(run, death, a)
        if not math.prod(a.aval.shape):
            return "zero factor", f"where it is multiplied by {factor.text}, which has no element"
        if factor.source is not None and (cause := self._cause(run, factor.source)) is not None:
            return cause.kind, f"whose slope is zero{_in_all(a)}, since {cause.why}"
        if factor.is_slope:
            return "slope", f"whose slope is zero{_in_all(a)}"
        if factor.how:
            return factor.kind, f"where it is multiplied by {factor.text}, which is {_ROUNDED[factor.how]}"
        return "zero factor", f"where it is multiplied by {factor.text}, which is zero{_in_all(a)}"

    def _origin(self, run: GradientRun, death: Death, a: Atom) -> ZeroFactor:
        """What a value that a cotangent meets is: an argument, or an expression of the forward pass."""
        _, v, e = run.search.source(death.level, a)
        if e is not None:
            return ZeroFactor(self.named(primal_equation(e)), _is_slope(e, self.naming.name(primal_equation(e))), "")
        top = run.search.top.program
        d = self.derivation
        residual = d.linearized.residuals[top.invars.index(v)] if v in top.invars else v  # type: ignore[arg-type]
        source = next(iter(SourceTracer(d.forward, _keeps)(residual)), None)
        if source is None or source.equation is None:
            return ZeroFactor(self._name_of_input(residual if source is None else source.atom), False, "")
        name = self.naming.name(source.equation, source.within, source.place, ROOM_IN_SENTENCE)
        if _is_slope(source.equation, name):
            return ZeroFactor(name, True, "", source=source)
        return ZeroFactor(name, False, self._rounded(run, source), source=source)

    def _cause(self, run: GradientRun, source: Source) -> ZeroFactor | None:
        """Why the number that a slope is a multiple of is zero, such as that of a square: what it is computed from,
        followed back through products; None if that is not found."""
        slope, of = source.equation, ""
        for _ in range(_MOST_FOLLOWED):
            e = source.equation
            if e is None:
                return ZeroFactor(self._name_of_input(source.atom), False, "", of)
            name = self.naming.name(e, source.within, source.place, ROOM_IN_SENTENCE)
            if e is not slope:
                if plain(e.primitive.name).kind == "selection":
                    return ZeroFactor(name, False, "selected")
                if how := self._rounded(run, source):
                    return ZeroFactor(name, False, how)
            does = plain(e.primitive.name)
            if source.within or (does.grows != "product" and does.kind not in ("product", "convolution")):
                return None
            zeros = (a for a, x in zip(e.invars, self._operands(run, e), strict=False) if not np.any(x))
            if (zero := next(zeros, None)) is None:
                return None
            of = "" if e is slope else name
            if not isinstance(zero, Var):
                return ZeroFactor("", False, "", of)
            source = self._source(zero)
        return None

    def _name_of_input(self, a: Atom) -> str:
        names = dict(zip(self.derivation.forward.invars, self.derivation.primal.arg_names, strict=True))
        return names.get(a, "") if isinstance(a, Var) else ""

    def _operands(self, run: GradientRun, e: Equation, within: tuple[Equation, ...] = ()) -> list[Array]:
        """What an equation of the forward program reads, or of programs that it calls; nothing if that cannot be
        computed."""
        if (e, within) not in self._read:
            try:
                values = run.forward_values(self.derivation.forward, e.invars, within)
                self._read[e, within] = [as_float64(x) for x in values]
            except Exception:  # what only makes the sentence more precise
                self._read[e, within] = []
        return self._read[e, within]

    @cached_property
    def _read(self) -> dict[tuple[Equation, tuple[Equation, ...]], list[Array]]:
        return {}

    def _rounded(self, run: GradientRun, source: Source) -> Literal["", "cancellation", "underflow"]:
        """Whether a value is zero because it was rounded: a difference of equal numbers, or one that is too small."""
        e = source.equation
        does = plain(e.primitive.name) if e is not None else None
        if e is None or source.within or does is None or does.grows == "":
            return ""
        operands = self._operands(run, e)
        if not operands:
            return ""
        if does.grows == "exponential":
            return "underflow" if np.all(np.isfinite(operands[0])) else ""
        if does.grows == "sum" and does.kind == "elementwise":
            return "cancellation" if all(np.all(x) for x in operands) else ""
        return "underflow" if does.grows == "product" and all(np.all(x) for x in operands) else ""


@dataclass(frozen=True, slots=True)
class ZeroFactor:
    """What a cotangent is multiplied by.

    Args:
      name: an argument or an expression; '' if none is found.
      is_slope: whether it is the slope of a function.
      how: why it was rounded to zero, or 'selected'; '' for neither.
      of: the product whose factor it is; '' for that of the cotangent.
      source: of a slope, and of a value of the forward pass, where it is computed.
    """

    name: str
    is_slope: bool
    how: Literal["", "cancellation", "underflow", "selected"]
    of: str = ""
    source: Source | None = None

    @property
    def text(self) -> str:
        return f"`{self.name}`" if self.name else "a constant"

    @property
    def kind(self) -> Kind:
        return "branch" if self.how == "selected" else self.how or "zero factor"

    @property
    def why(self) -> str:
        """Why a number that depends on it is zero."""
        if self.how == "selected":
            return f"{self.text} selects zeros"
        if self.how:
            return f"{self.text} is {_ROUNDED[self.how]}"
        if not self.of:
            return f"{self.text} is zero"
        return (
            f"`{self.of}` has {f'the factor `{self.name}`, which' if self.name else 'a constant factor that'} is zero"
        )


def _keeps(e: Equation) -> bool:
    return keeps_numbers(e) and isinstance(e.invars[0], Var)


def _in_all(a: Atom) -> str:
    """` in all 16 elements`, and nothing of a value with one."""
    n = math.prod(a.aval.shape)
    return f" in all {counted(n, 'element')}" if n > 1 else ""


def _is_slope(e: Equation, name: str) -> bool:
    return IN_DERIVATIVE in name or (e.origin is not None and e.origin.role == "residual")


def _function(e: Equation) -> str:
    """The function whose rule an equation calls, or what people call its operation."""
    return of(e).function_of_rule(e.operation) or operation_of(e)


_NOT_READ = "which reads no element whose cotangent is not zero"
_STRUCTURAL = {
    "asked": "which stops it on purpose",
    "library": "where the code of {} stops it",
    "integer": "an integer",
    "boolean": "a boolean",
    "flat": "whose slope is zero wherever it has one",
    "rule": "whose rule gives no derivative for this argument",
    "none": "for which JAX's rule of `{}` gives no derivative",
}
_FAR = 1000.0
"""The exponential of minus this is zero in each type."""
_MOST_FOLLOWED = 8
"""Values are followed through so many products: each may have to be computed."""
_ROUNDED = {
    "cancellation": "a difference of numbers that are equal as rounded",
    "underflow": "too small for its type and rounds to zero",
}


def _underflow(e: Equation, ct: Any) -> str:
    dtype = type_text(e.outvars[0].aval).partition("[")[0]
    most = f" of at most {np.max(np.abs(as_float64(ct))):.1e}" if ct is not None else ""
    return f"where numbers{most} become too small for {dtype}"


def _meet(e: Equation, values: Sequence[Any]) -> bool:
    """Whether elements that are not zero meet in a product of two arrays."""
    is_nonzero = [np.asarray(x != 0, np.float32) for x in values]
    return bool(np.any(jax.lax.dot_general(*is_nonzero, e.params["dimension_numbers"])))


def distinct(endings: Iterable[Ending]) -> tuple[Ending, ...]:
    """Endings on different lines, or of different kinds, in order."""
    return tuple({(e.kind, e.location, e.expression): e for e in endings}.values())
