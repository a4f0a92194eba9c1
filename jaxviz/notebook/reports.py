"""Creates reports from a call and its options, for the magics and the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from jaxviz.analysis.budgets import read_budget, read_share, read_size
from jaxviz.analysis.training_step import subject_of
from jaxviz.arguments import Argnums
from jaxviz.derivation import Derivation, derive
from jaxviz.features.collectives.reading import collectives
from jaxviz.features.collectives.report import Collectives
from jaxviz.features.compile_cost.report import CompileCost
from jaxviz.features.compile_cost.start import compile_cost
from jaxviz.features.compiled_memory.beside import MemoryBeside
from jaxviz.features.compiled_memory.change import MemoryChange
from jaxviz.features.compiled_memory.reading import compiled_memory
from jaxviz.features.compiled_memory.report import CompiledMemory
from jaxviz.features.cost.report import format_flops
from jaxviz.features.debugger.start import step
from jaxviz.features.debugger.stepper import Stepper
from jaxviz.features.lint.report import LintReport, lint
from jaxviz.features.memory.timeline import MemoryTimeline, memory
from jaxviz.features.nans.find import find_nan
from jaxviz.features.nans.report import NanReport
from jaxviz.features.remat.plan import RematPlan
from jaxviz.features.remat.planning import plan_remat
from jaxviz.features.remat.policy_comparison import PolicyComparison, checkpoints_of, compare_policies
from jaxviz.features.remat.policy_views import MemoryComparison, PlanComparison
from jaxviz.features.remat.set_policy import AS_IT_IS, NO_CHECKPOINTS, Setting, derive_under, setting
from jaxviz.features.residuals.residual_set import ResidualSet, residuals
from jaxviz.notebook.calls import Call, CallError, split
from jaxviz.report.tables import wrapped


@dataclass(frozen=True)
class Request:
    """A request.

    Args:
      call: a function and its arguments.
      options: as argparse read them.
      namespace: the user's, in which policies are looked up.
      say: prints lines before the report.
      note: prints that a file was written.
    """

    call: Call
    options: Any
    namespace: dict[str, Any]
    say: Callable[[str], None] = print
    note: Callable[[str], None] = print

    @property
    def argnums(self) -> Argnums:
        return read_argnums(self.options.argnums)

    @property
    def derivation(self) -> Derivation:
        """The call's derivation."""
        return derive(self.call.fun, *self.call.args, argnums=self.argnums, **self.call.kwargs)

    @property
    def subject(self) -> Derivation:
        """The gradient that reports on the call are about: its own, or the one that it takes as a training step."""
        return self.subject_of(self.call.fun)

    def residuals(self) -> ResidualSet | PolicyComparison:
        """The residuals of its gradient."""
        return self.compared() if self.options.compare is not None else residuals(self.under_policy())

    def memory(self) -> MemoryTimeline | MemoryBeside | MemoryComparison:
        """Its memory over time, beside that of the compiled program if requested."""
        beside = getattr(self.options, "beside", False)
        if self.options.compare is not None:
            if beside:
                raise CallError(
                    "--beside shows one compiled program, and --compare shows several policies; give only one of them"
                )
            return MemoryComparison(self.compared(), self.options.xla)
        timeline = memory(self.under_policy())
        if self.options.xla:
            self.say(wrapped(timeline.compare()))
        return timeline.beside() if beside else timeline

    def compiled_memory(self) -> CompiledMemory | MemoryChange:
        """The memory of the compiled gradient, saved if requested; or its differences from a saved one."""
        if self.options.compare is not None:
            raise CallError(
                "--compiled shows one compiled program, and --compare shows several policies; give only one of them"
            )
        path = self.options.against
        try:
            before = CompiledMemory.load(path) if path else None
        except (OSError, ValueError) as error:
            raise CallError(f"--against: {error}") from None
        found = compiled_memory(self.under_policy())
        if self.options.save:
            self.note(f"wrote {found.save(self.options.save)}")
        return found if before is None else before.compare(found)

    def compile_cost(self) -> CompileCost:
        """How long the call's gradient takes to trace, lower and compile."""
        call = self.call
        return compile_cost(call.fun, *call.args, argnums=self.argnums, ablate=self.options.ablate, **call.kwargs)

    def collectives(self) -> Collectives:
        """The collectives of the compiled gradient."""
        call = self.call
        return collectives(call.fun, *call.args, argnums=self.argnums, **call.kwargs)

    def nan(self) -> NanReport | None:
        """Where a NaN first occurs; prints a line if there is none."""
        call = self.call
        found = find_nan(call.fun, *call.args, argnums=self.argnums, harmless=self.options.harmless, **call.kwargs)
        if found is None:
            self.say(f"{call.text}: every result is finite")
        return found

    def step(self) -> Stepper:
        """Steps through the call; runs to a breakpoint if one is given."""
        call, options = self.call, self.options
        stepper = step(call.fun, *call.args, argnums=self.argnums, **call.kwargs)
        to = {name: getattr(options, name) for name in ("line", "primitive", "name", "non_finite")}
        return stepper.run(**to) if any(to.values()) else stepper

    def remat(self) -> RematPlan | PlanComparison:
        """The plan; prints the code before if requested."""
        options, call = self.options, self.call
        if options.budget is not None and (options.policy, options.compare) != (None, None):
            raise CallError("--budget gives a number of bytes, and so does a policy; give only one of them")
        if options.compare is not None:
            if options.code:
                raise CallError("--code prints one plan: use it with --budget or --policy")
            return PlanComparison(self.compared())
        budget: float | str | None = _amount(options.budget, lambda text: read_budget(text, 0), "--budget")
        memory = _amount(options.memory, lambda text: text == "device" or read_size(text), "--memory")
        work = _amount(options.work, lambda text: read_share(text, "work"), "--work")
        if options.policy is not None:
            to = self.setting(options.policy)
            compared = compare_policies(call.fun, *call.args, policies=[to], argnums=self.argnums, **call.kwargs)
            (found,) = compared.outcomes
            budget = found.nbytes
            self.say(wrapped(
                f"{to.name} saves {found.saved} and recomputes {format_flops(found.flops)}; for the same residuals:"
            ))  # fmt: skip
        plan = plan_remat(
            call.fun, *call.args, budget=budget, memory=memory, work=work, argnums=self.argnums, **call.kwargs
        )
        if options.code:
            self.say(plan.code())
        return plan

    def planned(self, plan: RematPlan) -> Derivation:
        """The derivation of the function with a plan applied."""
        return self.subject_of(plan.apply(self.call.fun))

    def lint(self) -> LintReport:
        """Advice; prints the explanations of the rules before if requested."""
        report = lint(self.subject)
        if self.options.explain and report:
            self.say(report.explain())
        return report

    def subject_of(self, fun: Callable[..., Any]) -> Derivation:
        return subject_of(fun, self.call.args, self.call.kwargs, self.argnums)

    def under_policy(self) -> Derivation:
        """The call's derivation, under the policy that was asked for."""
        derivation = self.subject
        if self.options.policy is None:
            return derivation
        to = self.setting(self.options.policy)
        found = derive_under(derivation, to)
        self.say(wrapped(f"with {to.name} on {checkpoints_of(derivation.primal)}:"))
        return found

    def compared(self) -> PolicyComparison:
        """Several policies side by side."""
        if self.options.policy is not None:
            raise CallError("--policy shows one policy and --compare shows several; give only one of them")
        if getattr(self.options, "explore", False):
            raise CallError("--explore shows one program: use it with --policy")
        settings = [self.setting(text) for text in split(self.options.compare)]
        call = self.call
        return compare_policies(call.fun, *call.args, policies=settings, argnums=self.argnums, **call.kwargs)

    def setting(self, text: str) -> Setting:
        """A policy by name, or by an expression in the user's namespace, to which those of jax.checkpoint_policies are added by name.

        Raises:
          CallError: it is not a policy.
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


def read_argnums(text: str) -> Argnums:
    """`0`, `0,1`, or `all` for all arguments that are arrays.

    Raises:
      CallError: it is something else.
    """
    if text == "all":
        return None
    try:
        numbers = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise CallError(f"--argnums takes numbers such as 0 or 0,1, or all; got: {text}") from None
    return numbers[0] if len(numbers) == 1 else numbers


def _amount(text: str | None, read: Callable[[str], Any], option: str) -> str | None:
    """A size, a share or nothing, as in `plan_remat`; `read` raises a ValueError if it is none of these."""
    try:
        _ = text is None or read(text)
    except ValueError as error:
        raise CallError(f"{option}: {error}") from None
    return text
