"""Residuals, and groups of residuals of one expression."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar
from typing import Literal as OneOf

from jaxviz.analysis.grouping import alike, most_alike
from jaxviz.features.residuals.totals import per_device
from jaxviz.features.residuals.words import Words
from jaxviz.higher_order import is_loop
from jaxviz.ir.expressions import assignment
from jaxviz.ir.origin import Location
from jaxviz.ir.syntax import Equation, Origin, Var
from jaxviz.report.data import Data
from jaxviz.report.tables import format_bytes, repeated, type_text

T = TypeVar("T")
Kind = OneOf["argument", "constant", "literal", "intermediate", "dummy", "unread"]


@dataclass(frozen=True, slots=True)
class Dummy:
    """A dummy that one branch of a cond fills in for a residual of another branch,
    because both return results of the same types.

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
      kind: 'argument' of the function, captured 'constant', 'literal' in the source, or 'intermediate' value; 'unread'
        if it is no argument and the backward program does not read it.
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
      words: the texts about it, computed when they are read.
      repeats: a key that residuals share if they are values of one expression in repeated layers, calls and iterations.
    """

    aval: Any
    nbytes: int
    kind: Kind
    name: str
    location: Location
    rule: str
    consumers: tuple[Equation, ...]
    producer: Equation | None
    var: Var
    words: Words = field(repr=False)
    decision: str = "saved"
    lengths: tuple[int, ...] = ()
    place: str = ""
    dummies: tuple[Dummy, ...] = ()
    is_read: bool = True
    nbytes_per_device: int | None = None
    repeats: Hashable = None

    @property
    def expression(self) -> str:
        """The expression that computes it, such as `cos(x)`; for an argument, its path."""
        return self.words.expression

    @property
    def reason(self) -> str:
        """Why it is saved, in a sentence."""
        return self.words.reasons[0]

    @property
    def why(self) -> str:
        """The reason alone, without the residual's name."""
        return self.words.reasons[1]

    @property
    def assigned(self) -> str:
        """The variable that the user's code assigns it to, or its variable in the body of a loop;
        '' if it is part of an expression."""
        return self.words.assigned

    @property
    def library(self) -> str:
        """The line of a library, called by the user's line, that computes it: 'flax Dense.__call__, linear.py:287';
        '' if there is none."""
        return self.words.library

    @property
    def scope(self) -> str:
        """The scopes of `jax.named_scope` around it, such as 'encoder/attention'; for an input,
        those of its first reader."""
        return self.words.scope

    @property
    def module(self) -> str:
        """The path of the module that computes it; see `ResidualSet.by_module`."""
        return self.words.module or self.location.function

    @property
    def label(self) -> str:
        """The name to show: `h = jnp.tanh(x @ w)`, the path of an argument, or the expression."""
        return assignment(self.assigned, self.expression)

    @property
    def is_saved(self) -> bool:
        """Whether it counts as saved: arguments are in memory anyway,
        and a compiled gradient does not keep what nothing reads."""
        return self.kind not in ("argument", "unread")

    @property
    def is_asked_for_in_loop(self) -> bool:
        """Whether a rule in the body of a loop asks for it, rather than one after the loop, or a checkpoint."""
        is_recomputed = lambda e: e.origin is not None and e.origin.role == "recomputation"
        return any(any(map(is_loop, r.within)) and not is_recomputed(r.equation) for r in self.words.linear)

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
    """The residuals of one expression in repeated layers, calls and iterations.

    Args:
      residuals: the residuals, in the order in which the linear program takes them.
    """

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
        """Why they are saved."""
        reasons = [r.why for r in self.residuals]
        if self.count == 1:
            return reasons[0]
        # The cotangents that they are read for differ, so each member states its own.
        return most_alike(list(map(without_readers, reasons)))

    _data = ("label", "type", "count", "nbytes", "nbytes_per_device", "kind", "rule", "location", "library", "why")


def without_readers(reason: str) -> str:
    """A reason without the equations of the backward program that read the residual."""
    return reason.partition("; read by the ")[0]
