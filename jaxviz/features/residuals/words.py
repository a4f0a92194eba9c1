"""The texts about a residual, computed when read: of thousands of residuals,
a report names only those of a few expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from jaxviz.analysis.checkpoints import moved_or_rounded
from jaxviz.analysis.modules import module_of
from jaxviz.analysis.site import Site, call_name
from jaxviz.analysis.walk import Reader, Source, library_of, primal_equation
from jaxviz.features.residuals.reasons import explain
from jaxviz.features.residuals.totals import scope_of
from jaxviz.ir.expressions import shows_source, source_shown_as
from jaxviz.ir.origin import Location
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Atom, Equation, Literal

T = TypeVar("T")


def _said(find: Callable[[Any], T]) -> cached_property[T]:
    """A property that is computed once, with the source shown or hidden as it was when the residual was created."""

    def words_of(words: Words) -> T:
        if (
            deep_stack.is_entered and shows_source() == words.with_source
        ):  # entering the contexts takes time for thousands of residuals
            return find(words)
        with deep_stack, source_shown_as(words.with_source):
            return find(words)

    words_of.__doc__ = find.__doc__
    return cached_property(words_of)


@dataclass(eq=False)
class Words:
    """The texts about a residual.

    Args:
      site: the forward program.
      atom: the residual there.
      path: its path, if it is an argument.
      sources: the equations that compute it; several if each branch of a cond has its own.
      held: the equations that enclose the one that computes it, outermost first.
      kind, location: of the residual.
      linear, backward: the equations of the linear and the backward program that read it; None if there is no backward
        one.
      branches: the branches that return a dummy in its place.
      with_source: whether its name may come from the user's source.
    """

    site: Site
    atom: Atom
    path: str
    sources: Sequence[Source]
    held: Sequence[Equation]
    kind: str
    location: Location
    linear: Sequence[Reader]
    backward: Sequence[Reader] | None
    branches: Sequence[str]
    with_source: bool = field(default_factory=shows_source)

    @_said
    def expression(self) -> str:
        """How it is computed; for an argument its path."""
        source, naming = self.sources[0], self.site.naming
        # In a cond, one position may hold a residual of either branch.
        text = " or ".join(dict.fromkeys(_expression(s, self.site) for s in self.sources))
        if source.equation is None and source.passed_by is None:
            text = self.path or self.site.name(source.atom if isinstance(source.atom, Literal) else self.atom)
        if self.kind == "constant" and self.linear:
            first = self.linear[0]
            reader = naming.name(primal_equation(first.equation), tuple(map(primal_equation, first.within)))
            return f"constant in {reader}" if reader else f"constant {text}"
        return text

    @_said
    def reasons(self) -> tuple[str, str]:
        """Why it is saved, as a sentence and as the reason alone."""
        lengths = self.sources[0].lengths
        return explain(
            self.kind, self.expression, self.location, self.linear, self.backward, self.site, lengths, self.branches
        )

    @_said
    def assigned(self) -> str:
        return self.site.assigned(self.sources[0])

    @_said
    def library(self) -> str:
        made_by = self.sources[0].equation
        return library_of(made_by, self.held) if made_by is not None else ""

    @_said
    def scope(self) -> str:
        return scope_of(*self._place) if self._place is not None else ""

    @_said
    def module(self) -> str:
        return module_of(*self._place) if self._place is not None else ""

    @_said
    def leading_module(self) -> str:
        """The module that its name begins with; '' if it does not begin with one."""
        source = self.sources[0]
        made_by = moved_or_rounded(source.equation) or source.equation
        return self.site.naming.module(made_by, source.within, source.place) if made_by is not None else ""

    @cached_property
    def _place(self) -> tuple[Equation, Sequence[Equation]] | None:
        """The equation that computes it, passes it on, or reads it first, and its enclosing equations."""
        source = self.sources[0]
        made_by = source.equation or source.passed_by
        if made_by is not None:
            return made_by, self.held
        return (self.linear[0].equation, self.linear[0].within) if self.linear else None


def _expression(source: Source, site: Site) -> str:
    made_by = moved_or_rounded(source.equation)
    expression = site.expression(replace(source, equation=made_by) if made_by is not None else source)
    if source.equation is None and source.passed_by is not None:
        expression += f", copied by {call_name(source.passed_by)}"
    return f"{expression}, carried" if source.carry is not None else expression
