"""Residuals, groups of residuals of one expression, and what is saved for each of the user's expressions.

The texts about a residual are computed when they are read: of thousands of residuals, a report names only those of a
few expressions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, TypeVar
from typing import Literal as OneOf

from jaxviz import higher_order
from jaxviz.analysis.checkpoints import moved_or_rounded
from jaxviz.analysis.grouping import alike, grouped, pattern
from jaxviz.analysis.modules import module_of, scopes_of
from jaxviz.analysis.naming import IN_DERIVATIVE, written_at
from jaxviz.analysis.site import Site, call_name
from jaxviz.analysis.versions import Version, version_read
from jaxviz.analysis.walk import Reader, Source, library_of, primal_equation
from jaxviz.features.residuals.reasons import Use, explain, needed, read_again, use_of
from jaxviz.features.residuals.totals import merged_paths, per_device
from jaxviz.higher_order import is_loop
from jaxviz.ir.expressions import assignment, shows_source, source_shown_as
from jaxviz.ir.origin import Location
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Atom, Equation, Literal, Origin, Program, Var
from jaxviz.report.data import Data
from jaxviz.report.tables import format_bytes, listed, repeated, type_text

T = TypeVar("T")
CARRIED = ", from the previous iteration"
"""Follows the expression of a loop's carry."""
Kind = OneOf["argument", "constant", "literal", "intermediate", "dummy", "unread"]


def _text(write: Callable[[Any], T]) -> cached_property[T]:
    """A property that is computed once, with the source shown or hidden as it was when the residual was created."""

    @wraps(write)
    def text_of(residual: Residual) -> T:
        # Entering the contexts takes time for thousands of residuals.
        if deep_stack.is_entered and shows_source() == residual.with_source:
            return write(residual)
        with deep_stack, source_shown_as(residual.with_source):
            return write(residual)

    return cached_property(text_of)


@dataclass(frozen=True, slots=True)
class Dummy:
    """A dummy that one branch of a cond fills in for a residual of another, since both return the same types.

    Args:
      branch: such as 'branch 0 of cond'.
      location: of the cond.
      nbytes: its bytes if that branch is taken (in a scan: in each iteration).
    """

    branch: str
    location: Location | None
    nbytes: int


@dataclass(eq=False)  # not frozen, like Equation
class Residual(Data):
    """A value that the forward program saves for the backward program. It is immutable.

    >>> largest = max(jaxviz.residuals(loss, params, x), key=lambda r: r.nbytes)
    >>> largest.expression, largest.location, largest.why

    Args:
      aval: its type.
      nbytes: its size in bytes.
      source_kind: `kind`, whether or not it is read.
      name: its name in the forward program.
      location: the user's line that computes it; for an argument, the line where the function is defined.
      rule: the derivative rule that reads it.
      consumers: the equations of the backward program that read it.
      producer: the equation of the forward program that computes it, possibly inside a call, loop or branch; None for
        an input.
      var: its variable among the first inputs of the linear and the backward program.
      decision: 'saved', or 'offloaded' to another memory by a checkpoint policy.
      lengths: the trip counts of the scans that stack it, outermost first; its type includes these dimensions.
      place: the bodies that compute it, such as 'branch 1 of cond in scan'; '' outside of any body.
      dummies: what other branches fill in for it.
      is_read: whether the backward program reads it; a custom rule may save values that its backward function does not
        use.
      nbytes_per_device: its bytes on one device; None if all is on one device, or if it is not known how XLA partitions
        it.
      site, atom: the forward program, and its atom there.
      sources: the equations that compute it; several if each branch of a cond has its own.
      holders: the equations that enclose the one that computes it, outermost first.
      linear, backward: the equations of the linear and the backward program that read it; None if there is no backward
        one.
      with_source: whether its name may come from the user's source.
      path: where the object that `vjp` returned holds it, such as "opaque_residuals[0]"; '' for one of its `args_res`,
        and where there is no such object.
      by_path: whether it is named by that, since only the linear program is known.
    """

    aval: Any
    nbytes: int
    source_kind: Kind
    name: str
    location: Location
    rule: str
    consumers: tuple[Equation, ...]
    producer: Equation | None
    var: Var
    site: Site = field(repr=False)
    atom: Atom = field(repr=False)
    sources: Sequence[Source] = field(repr=False)
    holders: Sequence[Equation] = field(repr=False)
    linear: Sequence[Reader] = field(repr=False)
    backward: Sequence[Reader] | None = field(repr=False)
    decision: str = "saved"
    lengths: tuple[int, ...] = ()
    place: str = ""
    dummies: tuple[Dummy, ...] = ()
    is_read: bool = True
    nbytes_per_device: int | None = None
    with_source: bool = field(default_factory=shows_source, repr=False)
    path: str = field(default="", repr=False)
    by_path: bool = field(default=False, repr=False)

    @property
    def nbytes_on_one(self) -> int:
        """Its bytes on one device, which are all of them if everything is on one."""
        return self.nbytes if self.nbytes_per_device is None else self.nbytes_per_device

    @property
    def kind(self) -> Kind:
        """'argument' of the function, captured 'constant', 'literal' in the source, or 'intermediate' value; 'unread'
        if it is no argument and the backward program does not read it."""
        return self.source_kind if self.is_read or self.source_kind == "argument" else "unread"

    @_text
    def value(self) -> str:
        """The expression that computes it, such as `cos(x)`, in this iteration or in the previous one; for an argument,
        its path."""
        if self.by_path:
            return self.path
        source, naming = self.sources[0], self.site.naming
        # In a cond, one position may hold a residual of either branch.
        of_one = lambda s: _expression(s, self.site) + CARRIED * (s.carry is not None and not self.is_carried)
        text = " or ".join(dict.fromkeys(map(of_one, self.sources)))
        if source.equation is None and source.passed_by is None:
            text = self.site.operand(source.atom if isinstance(source.atom, Literal) else self.atom)
        if self.source_kind == "constant" and self.linear:
            first = self.linear[0]
            reader = naming.name(primal_equation(first.equation), tuple(map(primal_equation, first.within)))
            return f"constant in {reader}" if reader else f"constant {text}"
        return text

    @cached_property
    def is_carried(self) -> bool:
        """Whether it is a loop's carry, as the previous iteration computed it."""
        return all(s.carry is not None and (s.equation or s.passed_by) is not None for s in self.sources)

    @cached_property
    def version(self) -> Version | None:
        """Which version of a mutable reference it is, if it is read from one that is written."""
        source = self.sources[0]
        return None if source.equation is None else version_read(self.forward, source.equation, source.within)

    @property
    def expression(self) -> str:
        """`value`, and whether it is that of the previous iteration."""
        return self.value + CARRIED * self.is_carried

    @_text
    def _reasons(self) -> tuple[str, str]:
        return explain(self)

    @_text
    def use(self) -> Use:
        """What needs it, and those that are alike."""
        return use_of(self)

    @property
    def reason(self) -> str:
        """Why it is saved, in a sentence with the rule that asks for it."""
        return self._reasons[0]

    @property
    def why(self) -> str:
        """Which lines need it again: `needed again in line 12's gradient (matrix product)`."""
        return self._reasons[1]

    @_text
    def assigned(self) -> str:
        """The variable that the user's code assigns it to, or its variable in the body of a loop; '' if it is part of
        an expression."""
        return self.site.assigned(self.sources[0])

    @_text
    def library(self) -> str:
        """The line of a library, called by the user's line, that computes it: 'flax Dense.__call__, linear.py:287'; ''
        if there is none."""
        return library_of(self.producer, self.holders) if self.producer is not None else ""

    @cached_property
    def alike(self) -> Residual:
        """The first residual that equations of the same kinds compute and read, so that all that is said of both but
        the names of values is the same."""
        place, like = self.site.naming.kinds.place, self.site.like
        computed = place(*self._equation) if self._equation is not None else None
        readers = (tuple(map(like, some)) for some in (self.linear, self.backward or ()))
        key = computed, self.location, self.kind, self.decision, *readers
        first: Residual = self.site.residuals.setdefault(key, self)
        return first

    @property
    def scope(self) -> str:
        """The scopes of `jax.named_scope` around it, such as 'encoder/attention'; for an input, those of its first
        reader."""
        return self.alike._scope

    @_text
    def _scope(self) -> str:
        return "/".join(scopes_of(*self._equation)) if self._equation is not None else ""

    @property
    def module(self) -> str:
        """The path of the module that computes it; see `ResidualSet.by_module`."""
        return self.alike._module

    @_text
    def _module(self) -> str:
        return (module_of(*self._equation) if self._equation is not None else "") or self.location.function

    @_text
    def read_again(self) -> str:
        """Which lines need it again, and those that are alike."""
        return read_again([self])

    @_text
    def leading_module(self) -> str:
        """The module that its name begins with; '' if it does not begin with one."""
        source = self.sources[0]
        computed_by = moved_or_rounded(source.equation) or source.equation
        return "" if computed_by is None else self.site.naming.module(computed_by, source.within, source.place)

    @cached_property
    def _equation(self) -> tuple[Equation, Sequence[Equation]] | None:
        """The equation that computes it, passes it on, or reads it first, and its enclosing equations."""
        equation = self.producer or self.sources[0].passed_by
        if equation is not None:
            return equation, self.holders
        return (self.linear[0].equation, self.linear[0].within) if self.linear else None

    @cached_property
    def repeats(self) -> Hashable:
        """A key that residuals share if they are values of one expression in repeated layers, calls and iterations."""
        if self.producer is None:
            computed: Hashable = pattern(self.expression)
        else:
            computed = self.site.naming.repetition(self.producer, self.holders, self.sources[0].place)
        is_read = bool(self.backward)
        place = self.place, self.location, any(s.carry is not None for s in self.sources)
        return computed, self.source_kind, self.type, self.rule, self.decision, is_read, *place

    @property
    def label(self) -> str:
        """The name to show: `h = jnp.tanh(x @ w)`, the path of an argument, or the expression."""
        return assignment(self.assigned, self.expression)

    @property
    def is_saved(self) -> bool:
        """Whether it counts as saved: arguments are in memory anyway, and a compiled gradient does not keep what
        nothing reads."""
        return self.kind not in ("argument", "unread")

    @property
    def is_read_in_loop(self) -> bool:
        """Whether a rule in the body of a loop asks for it, rather than one after the loop, or a checkpoint."""
        is_checkpoint = lambda e: higher_order.of(e).is_checkpoint
        return any(any(map(is_loop, r.within)) and not any(map(is_checkpoint, r.within)) for r in self.linear)

    @property
    def forward(self) -> Program:
        """The forward program that saves it."""
        return self.site.derivation.linearized.forward  # many ask, and entering a public property takes time

    @property
    def origin(self) -> Origin | None:
        """The origin of the equation that computes it."""
        return self.producer.origin if self.producer is not None else None

    @property
    def type(self) -> str:
        """`f32[3]`, or `1000 × f32[3]` for one such value from each of a thousand iterations."""
        return type_text(self.aval, self.lengths)

    def __str__(self) -> str:
        return f"{self.name}:{self.type} {format_bytes(self.nbytes)} {self.kind} {self.location}: {self.reason}"

    _data = (
        "name", "type", "nbytes", "kind", "expression", "location", "rule", "reason", "decision", "lengths", "place",
        "is_read", "nbytes_per_device", "scope", "module", "assigned", "library", "dummies",
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class ResidualGroup(Data):
    """The residuals of one expression in repeated layers, calls and iterations, in the order of the linear program."""

    residuals: tuple[Residual, ...]

    @property
    def label(self) -> str:
        """Their name: `jnp.tanh(x @ w)`, `Net/layer_0…11/mlp · nn.gelu(gate)`, `params['layers'][0…11]['w1']`."""
        return alike([r.label for r in self.residuals])

    @property
    def type(self) -> str:
        """`12 × f32[2,64,512]`."""
        return repeated(self.count, self.residuals[0].type)

    @cached_property
    def nbytes(self) -> int:
        """The bytes of all of them."""
        return sum(r.nbytes for r in self.residuals)

    @property
    def nbytes_per_device(self) -> int | None:
        """The largest number of their bytes on one device; None if all is on one device."""
        return per_device(self.residuals)

    @property
    def count(self) -> int:
        """The number of residuals."""
        return len(self.residuals)

    @property
    def kind(self) -> Kind:
        """What kind of values they are."""
        return self.residuals[0].kind

    @property
    def rule(self) -> str:
        """The derivative rule that asked for them."""
        return self.residuals[0].rule

    @property
    def location(self) -> Location:
        """The user's line that makes them."""
        return self.residuals[0].location

    @property
    def library(self) -> str:
        """Where in a library they are made; '' where in none."""
        return self.residuals[0].library

    @property
    def why(self) -> str:
        """Which lines need them again."""
        return self.residuals[0].why if self.count == 1 else needed(self.residuals)

    _data = ("label", "type", "count", "nbytes", "nbytes_per_device", "kind", "rule", "location", "library", "why")


def _expression(source: Source, site: Site) -> str:
    computed_by = moved_or_rounded(source.equation)
    expression = site.expression(replace(source, equation=computed_by) if computed_by is not None else source)
    if source.equation is None and source.passed_by is not None:
        expression += f", copied by {call_name(source.passed_by)}"
    return expression


# --- by the user's expressions ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SavedExpression:
    """The saved values of one of the user's expressions, or of one module of a library in it; largest group first."""

    groups: tuple[ResidualGroup, ...]

    @property
    def residuals(self) -> tuple[Residual, ...]:
        """Its values."""
        return tuple(r for g in self.groups for r in g.residuals)

    @property
    def location(self) -> Location:
        """The user's line."""
        return self.groups[0].location

    @cached_property
    def nbytes(self) -> int:
        """The bytes of all its values, on one device."""
        return sum(r.nbytes_on_one for r in self.residuals)

    @cached_property
    def _counts(self) -> Counter[Hashable]:
        """How many values it has of each of its operations, one per iteration."""
        counts: Counter[Hashable] = Counter()
        for r in self.residuals:
            counts[r.repeats] += math.prod(r.lengths)
        return counts

    @property
    def times(self) -> int:
        """How often it is evaluated, in layers, calls and iterations: as most of its operations are."""
        ((n, _),) = Counter(self._counts.values()).most_common(1)
        return max(1, n)

    @property
    def values(self) -> int:
        """How many values each evaluation saves."""
        return max(1, round(self._counts.total() / self.times))

    @cached_property
    def label(self) -> str:
        """`h = jnp.tanh(x @ w)`, or the path of the module; `constant in table * x` for what it does not compute."""
        if modules := [m for r in self.residuals if (m := r.leading_module)]:
            return alike(modules)
        first = self.groups[0]
        if first.kind in _WRITTEN:
            return listed(g.label for g in self.groups)
        written = written_at(first.location) or assignment(first.residuals[0].assigned, first.residuals[0].value)
        return first.label if all(r.is_carried for r in self.residuals) else written

    @cached_property
    def reason(self) -> str:
        """`needed again in line 12's gradient (tanh) and in line 13's gradient (product).` Begins with `part of its
        derivative` if the value of the expression is not among them."""
        is_derivative = all(IN_DERIVATIVE in r.value for r in self.residuals)
        return f"{'part of its derivative, ' * is_derivative}{needed(self.residuals)}."


_WRITTEN = ("constant", "literal")
"""The kinds of values that an expression reads and does not compute: they have an entry of their own."""


def saved_expressions(groups: Sequence[ResidualGroup]) -> tuple[SavedExpression, ...]:
    """The saved values by expression, largest first: the rows of the explorer's overview."""
    groups = [g for g in groups if g.residuals[0].is_saved]
    modules = merged_paths([g.residuals for g in groups], lambda r: r.leading_module)
    place = lambda g: (
        g.location, g.location.column, g.location.end_line, g.location.end_column, modules[g.residuals[0]],
        not modules[g.residuals[0]] and g.kind in _WRITTEN and g.kind,
    )  # fmt: skip
    return tuple(sorted(map(SavedExpression, grouped(groups, place)), key=lambda e: -e.nbytes))
