"""What partial evaluation is asked for and returns, and the rules by which an operation that holds programs is
split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxviz.ir.syntax import Atom, Checkpoint, Decision, Operation, Program, Role, Var
from jaxviz.transforms.driver import Builder, Mask, RuleTable, Template, call_of, select
from jaxviz.transforms.policy import Policy


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """How a program is split, apart from which of its inputs are unknown.

    Args:
      policy: a checkpoint policy.
      available: with a policy, for each input whether it is available later; unknown ones are.
      ensure_unknown: for each result, whether it is to be unknown.
      ensure_available: with a policy, for each result whether `staged` has to return it.
      transform: the transform that asks, for the origins of new equations.
      is_rule: whether the program is a rule, whose equations get their origins where it is applied.
      staged_role: the role of the staged part of an equation that is split; None for the role of the equation.
    """

    policy: Policy | None = None
    available: Sequence[bool] | None = None
    ensure_unknown: Sequence[bool] | None = None
    ensure_available: Sequence[bool] | None = None
    transform: str = "linearize"
    is_rule: bool = False
    staged_role: Role | None = "tangent"


@dataclass(frozen=True, slots=True)
class SplitProgram:
    """A program split in two.

    Args:
      known: known inputs → known results, residuals.
      staged: residuals, available inputs → available results.
      residuals: the last results of `known`, in the order in which `staged` takes them.
      unknown_out: which results are unknown until later.
      available_out: which results `staged` returns.
      decisions: what the policy decided for the equations.
      checkpoints: nested checkpointed functions, if there is no policy.
    """

    known: Program
    staged: Program
    residuals: tuple[Atom, ...]
    unknown_out: Mask
    available_out: Mask
    decisions: tuple[Decision, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def known_results(self) -> tuple[Atom, ...]:
        return self.known.outvars[: len(self.known.outvars) - len(self.residuals)]

    def residuals_after(self, n_operands: int) -> range:
        """The positions of the residuals in `(*operands, *outputs of known)`."""
        start = n_operands + len(self.known_results)
        return range(start, start + len(self.residuals))

    def rule(
        self, operation: Operation, known: Template, staged: Template, available: Sequence[bool], name: str
    ) -> SplitRule:
        """The rule of the operation that holds the program, whose staged part takes all residuals and the operands that
        are available."""
        n = len(operation.in_avals)
        staged_in = (*self.residuals_after(n), *select(available, range(n)))
        return SplitRule(
            known, staged, staged_in, self.unknown_out, self.available_out, name, self.decisions, self.checkpoints
        )


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How an operation with nested programs is split.

    Args:
      known: known operands → known results, then residuals.
      staged: the values listed in `staged_in` → the results that are available later.
      staged_in: for each input of `staged`, its position in `(*operands, *outputs of known)`.
      unknown_out: which results are unknown until later.
      available_out: which results `staged` returns.
      name: a name for messages.
      decisions: what the policy decided for the nested equations.
      checkpoints: nested checkpointed functions, if there is no policy.
    """

    known: Template
    staged: Template
    staged_in: tuple[int, ...]
    unknown_out: Mask
    available_out: Mask
    name: str
    decisions: tuple[Decision, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()


def _no_rule(operation: Operation, *_: Any) -> SplitRule:
    raise NotImplementedError(operation.primitive)


split_rules: RuleTable[SplitRule] = RuleTable("split", _no_rule)
"""Key: operation, which operands are unknown, which are available later (None without a policy), the policy or None.

For operations that hold programs; any other goes whole to one part or to both."""


def all_staged(operation: Operation, unknown: Mask, name: str) -> SplitRule:
    """The rule of an operation none of whose results can be computed from the known operands."""
    known_operands = [Var(a) for a, u in zip(operation.in_avals, unknown, strict=True) if not u]
    nothing = Template(Builder().program(known_operands, ()), ())
    all_out = (True,) * len(operation.out_avals)
    call = Template(call_of(operation), "tangent")
    return SplitRule(nothing, call, tuple(range(len(unknown))), all_out, all_out, name)
