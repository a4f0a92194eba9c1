"""From a call and its options to a report: what the magics and the command line share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from jaxviz.analysis.budgets import FASTEST, read_budget
from jaxviz.derivation import Derivation, derive
from jaxviz.features.cost.report import format_flops
from jaxviz.features.debugger.start import step
from jaxviz.features.debugger.stepper import Stepper
from jaxviz.features.lint.report import LintReport, lint
from jaxviz.features.memory.timeline import MemoryTimeline, memory
from jaxviz.features.nans.find import find_nan
from jaxviz.features.nans.report import NanReport
from jaxviz.features.remat.plan import RematPlan, plan_remat
from jaxviz.features.remat.policy_comparison import PolicyComparison, checkpoints_of, compare_policies
from jaxviz.features.remat.policy_views import MemoryComparison, PlanComparison
from jaxviz.features.remat.set_policy import AS_IT_IS, NO_CHECKPOINTS, Setting, derive_under, setting
from jaxviz.features.residuals.residual_set import ResidualSet, arrays_among, residuals
from jaxviz.notebook.calls import Call, CallError, split
from jaxviz.report.tables import format_bytes, wrapped

Argnums = int | tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """What was asked for.

    Args:
      call: a function and its arguments.
      options: as argparse read them.
      namespace: the user's, in which policies are looked up.
      say: takes lines that stand before the report.
    """

    call: Call
    options: Any
    namespace: dict[str, Any]
    say: Callable[[str], None] = print

    @property
    def argnums(self) -> Argnums | None:
        return read_argnums(self.options.argnums)

    @property
    def derivation(self) -> Derivation:
        """The call's derivation; where no arguments are named, in the first."""
        return self.derived(0 if self.argnums is None else self.argnums)

    def residuals(self) -> ResidualSet | PolicyComparison:
        """What the gradient keeps; in all arguments that are arrays, where none are named."""
        nums = arrays_among(self.call.fun, self.call.args) if self.argnums is None else self.argnums
        return self.compared(nums) if self.options.compare is not None else residuals(self.under_policy(nums))

    def memory(self) -> MemoryTimeline | MemoryComparison:
        """Its memory over time."""
        if self.options.compare is not None:
            return MemoryComparison(self.compared(), self.options.xla)
        timeline = memory(self.under_policy())
        if self.options.xla:
            self.say(wrapped(timeline.compare()))
        return timeline

    def nan(self) -> NanReport | None:
        """Where a NaN is born; that there is none is said."""
        call = self.call
        nums = 0 if self.argnums is None else self.argnums
        found = find_nan(call.fun, *call.args, argnums=nums, harmless=self.options.harmless, **call.kwargs)
        if found is None:
            self.say(f"{call.text}: every result is finite")
        return found

    def step(self) -> Stepper:
        """The call, to be stepped through; run to a breakpoint where one is named."""
        call, options = self.call, self.options
        nums = 0 if self.argnums is None else self.argnums
        stepper = step(call.fun, *call.args, argnums=nums, **call.kwargs)
        to = {name: getattr(options, name) for name in ("line", "primitive", "name", "non_finite")}
        return stepper.run(**to) if any(to.values()) else stepper

    def remat(self) -> RematPlan | PlanComparison:
        """What to save; the lines for it are said before, where they are asked for."""
        options, call = self.options, self.call
        if options.budget is not None and (options.policy, options.compare) != (None, None):
            raise CallError("--budget says how many bytes, and so does a policy; give one of them")
        if options.compare is not None:
            if options.code:
                raise CallError("--code prints one plan, so it goes with --budget or --policy")
            return PlanComparison(self.compared())
        nums = 0 if self.argnums is None else self.argnums
        budget: float | str = _budget(options.budget or "0.5")
        if options.policy is not None:
            to = self.setting(options.policy)
            compared = compare_policies(call.fun, *call.args, policies=[to], argnums=nums, **call.kwargs)
            (found,) = compared.outcomes
            budget = found.nbytes
            self.say(wrapped(
                f"{to.name} keeps {format_bytes(found.nbytes)} and computes {format_flops(found.flops)} again; for the same bytes:"
            ))  # fmt: skip
        plan = plan_remat(call.fun, *call.args, budget=budget, memory=options.memory, argnums=nums, **call.kwargs)
        if options.code:
            self.say(plan.code())
        return plan

    def planned(self, plan: RematPlan) -> Derivation:
        """The derivation of the function with a plan applied."""
        call, nums = self.call, 0 if self.argnums is None else self.argnums
        return derive(plan.apply(call.fun), *call.args, argnums=nums, **call.kwargs)

    def lint(self) -> LintReport:
        """Advice; what the rules mean is said before, where it is asked for."""
        report = lint(self.derivation)
        if self.options.explain and report:
            self.say(report.explain())
        return report

    def derived(self, argnums: Argnums) -> Derivation:
        return derive(self.call.fun, *self.call.args, argnums=argnums, **self.call.kwargs)

    def under_policy(self, argnums: Argnums | None = None) -> Derivation:
        """The call's derivation, under the policy that was asked for."""
        derivation = self.derivation if argnums is None else self.derived(argnums)
        if self.options.policy is None:
            return derivation
        to = self.setting(self.options.policy)
        found = derive_under(derivation, to)
        self.say(wrapped(f"with {to.name} on {checkpoints_of(derivation.primal)}:"))
        return found

    def compared(self, argnums: Argnums | None = None) -> PolicyComparison:
        """Several policies side by side."""
        if self.options.policy is not None:
            raise CallError("--policy shows one policy and --compare several; give one of them")
        if getattr(self.options, "explore", False):
            raise CallError("--explore shows one program, so it goes with --policy")
        settings = [self.setting(text) for text in split(self.options.compare)]
        nums = self.argnums if argnums is None else argnums
        call = self.call
        return compare_policies(
            call.fun, *call.args, policies=settings, argnums=0 if nums is None else nums, **call.kwargs
        )

    def setting(self, text: str) -> Setting:
        """A policy by name, or by an expression in the user's namespace, where those of jax.checkpoint_policies have their names too.

        Raises:
          CallError: it is none.
        """
        policies = vars(jax.checkpoint_policies)
        try:
            is_name = text in (AS_IT_IS, NO_CHECKPOINTS) or text in policies
            if is_name or (text.isidentifier() and text not in self.namespace):
                return setting(text)
            return setting(eval(compile(text, "<magic>", "eval"), {**policies, **self.namespace}))
        except (ValueError, TypeError) as error:
            raise CallError(str(error)) from None
        except Exception as error:
            raise CallError(f"{text} is not a policy: {type(error).__name__}: {error}") from None


def read_argnums(text: str | None) -> Argnums | None:
    """`0` or `0,1`.

    Raises:
      CallError: it is something else.
    """
    if text is None:
        return None
    try:
        numbers = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise CallError(f"--argnums takes numbers such as 0 or 0,1; got: {text}") from None
    return numbers[0] if len(numbers) == 1 else numbers


def _budget(text: str) -> str:
    """A size, a share or 'fastest that fits', as `plan_remat` takes it."""
    if text != FASTEST:
        try:
            read_budget(text, 0)
        except ValueError as error:
            raise CallError(f"--budget: {error}") from None
    return text
