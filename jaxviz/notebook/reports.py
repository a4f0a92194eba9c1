"""Creates reports from a call and its options, for the magics and the command line."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax

from jaxviz.analysis.budgets import read_budget, read_share
from jaxviz.analysis.implied import exchanges_in
from jaxviz.analysis.training_step import subject_of
from jaxviz.analysis.walk import location_of
from jaxviz.arguments import Argnums
from jaxviz.contracts.contract import FOLDER, Contract
from jaxviz.contracts.report import ContractCheck
from jaxviz.contracts.start import accept, check_contracts, locked_again, selected
from jaxviz.derivation import STAGES, Derivation, derive
from jaxviz.environments.elsewhere import FACTS
from jaxviz.environments.gather import gather_facts
from jaxviz.environments.report import Upgrade
from jaxviz.environments.start import upgrade
from jaxviz.features.comparison.report import Comparison, compare
from jaxviz.features.debugger.start import step
from jaxviz.features.debugger.stepper import Stepper
from jaxviz.features.flow.find import gradient_flow
from jaxviz.features.flow.report import GradientFlow
from jaxviz.features.lint.report import LintReport, lint
from jaxviz.features.memory.timeline import MemoryTimeline, memory
from jaxviz.features.nans.find import find_nan
from jaxviz.features.nans.report import NanReport
from jaxviz.features.remat.plan import RematPlan
from jaxviz.features.remat.planning import plan_remat
from jaxviz.features.remat.policies import checkpoints_of
from jaxviz.features.remat.policy_comparison import MemoryComparison, PlanComparison, PolicyComparison, compare_policies
from jaxviz.features.remat.set_policy import AS_IT_IS, NO_CHECKPOINTS, Setting, derive_under, setting
from jaxviz.features.residuals.residual_set import ResidualSet, residuals
from jaxviz.features.values.divergence import AGAINST, Divergence, compare_records, divergence
from jaxviz.features.values.growth import Growth, growth
from jaxviz.features.values.recording import record
from jaxviz.features.values.records import RECORDS, RunRecord, load_records
from jaxviz.ir.pretty import variable_names
from jaxviz.ir.syntax import Equation, Program
from jaxviz.ir.trace import trace
from jaxviz.notebook.calls import CallError, EvaluatedCall, split
from jaxviz.report.files import write_file
from jaxviz.report.sizes import read_size
from jaxviz.report.tables import short_location, wrapped
from jaxviz.runtime.flags import check_flags
from jaxviz.transforms.transpose import logged_at
from jaxviz.xla.collectives.reading import collectives
from jaxviz.xla.collectives.report import Collectives
from jaxviz.xla.compile_cost.report import CompileCost
from jaxviz.xla.compile_cost.start import compile_cost
from jaxviz.xla.compiled_memory.beside import MemoryBeside
from jaxviz.xla.compiled_memory.change import MemoryChange
from jaxviz.xla.compiled_memory.reading import compiled_memory
from jaxviz.xla.compiled_memory.report import CompiledMemory
from jaxviz.xla.profile.report import Profile, profile

T = TypeVar("T")
STAGE_NAMES = ", ".join(STAGES[:-1]) + f" or {STAGES[-1]}"


@dataclass(frozen=True)
class Request:
    """A request.

    Args:
      call: a function and its arguments.
      options: of `jaxviz.notebook.options`, as argparse read them; those that were not given have their defaults.
      namespace: the user's, in which policies are looked up.
      say: prints lines before the report.
      note: prints that a file was written.
    """

    call: EvaluatedCall
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
        return self.of(derive)

    def of(self, function: Callable[..., T], **options: Any) -> T:
        """What a function of jaxviz makes of the call."""
        return function(self.call.fun, *self.call.args, argnums=self.argnums, **options, **self.call.kwargs)

    @property
    def subject(self) -> Derivation:
        """The gradient that reports on the call are about: its own, or the one that it takes as a training step."""
        return self.subject_of(self.call.fun)

    def residuals(self) -> ResidualSet | PolicyComparison:
        """The residuals of its gradient."""
        return self.compared() if self.options.compare is not None else residuals(self.under_policy())

    def memory(self) -> MemoryTimeline | MemoryBeside | MemoryComparison | CompiledMemory | MemoryChange:
        """Its memory over time, that of the compiled program, or both, as requested."""
        options = self.options
        if (options.save or options.against) and not options.compiled:
            raise CallError("--save and --against are for the compiled program; add --compiled")
        if options.compiled:
            return self.compiled_memory()
        if options.compare is not None:
            return MemoryComparison(self.compared(), options.xla)
        timeline = memory(self.under_policy())
        if options.xla:
            self.say(wrapped(timeline.compare()))
        return timeline.beside() if options.beside else timeline

    def compiled_memory(self) -> CompiledMemory | MemoryChange:
        """The memory of the compiled gradient, also written to a file; or its differences from one in a file."""
        path = self.options.against
        try:
            before = CompiledMemory.load(path) if path else None
        except (OSError, ValueError) as error:
            raise CallError(str(error)) from None
        report = compiled_memory(self.under_policy())
        if self.options.save:
            self.note(f"wrote {report.save(self.options.save)}")
        return report if before is None else before.compare(report)

    def compile_cost(self) -> CompileCost:
        """How long the call's gradient takes to trace, lower and compile."""
        return self.of(compile_cost, ablate=self.options.ablate)

    def collectives(self) -> Collectives:
        """The collectives of the compiled gradient, or those that types imply."""
        return self.of(collectives, compile=not self.options.types)

    def flow(self) -> GradientFlow:
        """Which parameters its gradient reaches."""
        return self.of(gradient_flow, values=not self.options.types)

    def nan(self) -> NanReport | None:
        """Where a NaN first occurs; prints a line if there is none."""
        report = self.of(find_nan, harmless=self.options.harmless)
        if report is None:
            self.say(f"{self.call.text}: every result is finite")
        return report

    def step(self) -> Stepper:
        """Steps through the call; runs to a breakpoint if one is given."""
        stepper = self.of(step)
        to = {name: getattr(self.options, name) for name in ("line", "primitive", "name", "non_finite", "at")}
        return stepper.run(**to) if any(to.values()) else stepper

    def remat(self) -> RematPlan | PlanComparison:
        """The plan; prints the code before if requested."""
        options = self.options
        if options.compare is not None:
            return PlanComparison(self.compared())
        budget: float | str | None = _amount(options.budget, lambda text: read_budget(text, 0), "--budget")
        memory = _amount(options.memory, lambda text: text == "device" or read_size(text), "--memory")
        work = _amount(options.work, lambda text: read_share(text, "work"), "--work")
        if options.policy is not None:
            to = self.setting(options.policy)
            (outcome,) = self.of(compare_policies, policies=[to]).outcomes
            budget = outcome.nbytes
            self.say(wrapped(
                f"{to.name} saves {outcome.saved} and recomputes {outcome.recomputes}; for the same residuals:"
            ))  # fmt: skip
        plan = self.of(plan_remat, budget=budget, memory=memory, work=work)
        if options.code:
            self.say(plan.code().removesuffix("\n"))
        return plan

    def planned(self) -> Derivation:
        """The derivation of the function with the plan applied."""
        plan = self.remat()
        assert isinstance(plan, RematPlan)  # not several: the explorer shows one
        return self.subject_of(plan.apply(self.call.fun))

    def lint(self) -> LintReport:
        """Advice; prints the explanations of the rules before if requested."""
        report = lint(self.subject)
        if self.options.explain and report:
            self.say(report.explain())
        return report

    def profile(self) -> Profile:
        """Where the time of the call goes."""
        call = self.call
        return profile(call.fun, *call.args, repeat=self.options.repeat, **call.kwargs)

    def compare(self, other: Request | None = None) -> Comparison:
        """What differs between two calls, or what flags change of one."""
        if other is not None:
            return compare(self.subject, other.subject)
        if self.options.flags is None:
            raise CallError("give the flags to compare with, such as --flags jax_remat3")
        flags = read_flags(self.options.flags)
        return self.of(partial(compare, self.call.fun), flags=({}, flags))

    def divergence(self, other: Request | None = None) -> Divergence | RunRecord:
        """Where two runs part: those of two calls, or of one and what it is compared with; or a record, written."""
        call, against, save = self.call, self.options.against, self.options.save
        if file := getattr(self.options, "other", None):
            if against or save or not (self._recorded_in and file.endswith(RECORDS)):
                raise CallError(f"give two files that --save wrote, or one thing with --against; got {file} too")
            return self._read(divergence, self._recorded_in, file)
        if other is not None:
            return compare_records(self.recorded(), other.recorded(), (call.text, other.call.text))
        if save:
            recorded = self.recorded()
            self.note(f"wrote {recorded.save(save)}")
            return recorded
        if against is None or not (against in AGAINST or against.endswith(RECORDS) or Path(against).exists()):
            got = f"; got {against}" if against else ""
            ways = ", ".join(AGAINST)
            raise CallError(f"give what to compare with: --against {ways}, or a file that --save wrote{got}")
        if against in AGAINST and self._recorded_in:
            raise CallError(f"--against {against} runs the function; give it in place of {self._recorded_in}")
        if against in AGAINST:
            return self.of(divergence, against=against)
        for path in filter(None, (self._recorded_in, against)):  # before the function runs
            if not Path(path).exists():
                self._read(load_records, path)
        ours = self._recorded_in or self.recorded()
        return self._read(divergence, against, ours)

    @staticmethod
    def _read(reads: Callable[..., T], *files: Any) -> T:
        """
        Raises:
          CallError: a file is not there, or not what it should be.
        """
        try:
            return reads(*files)
        except (OSError, ValueError) as error:
            raise CallError(str(error)) from None

    @property
    def _recorded_in(self) -> str:
        """The file that was given in place of a function; '' if none was."""
        target: str = getattr(self.options, "target", "")
        return target if target.endswith(RECORDS) else ""

    def recorded(self) -> RunRecord:
        """A record of the call's run, and for a loss of its gradient; or the one in a file."""
        if self._recorded_in:
            return RunRecord.load(self._recorded_in)
        return self.of(record)

    def growth(self) -> Growth:
        """How values and cotangents grow."""
        return self.of(growth)

    def upgrade(self) -> Upgrade | None:
        """What another environment changes; in the process that one of the two runs, gathers the facts of this one."""
        options = self.options
        if options.facts:
            call, folder = self.call, Path(options.facts)
            gather_facts(options.target, options.args, call.fun, call.args, call.kwargs, self.argnums, folder).save(
                folder / FACTS
            )
            return None
        before, after = getattr(options, "from"), options.to
        if before is None and after is None:
            raise CallError(
                "give the other environment with --from or --to: a Python such as old-env/bin/python, or its folder"
            )
        try:
            return upgrade(options.target, options.args, before=before, after=after, argnums=self.argnums)
        except ValueError as error:
            raise CallError(str(error)) from None

    def lock(self) -> Contract | None:
        """A contract of the gradient, written to a file; or some facts of contracts, locked again."""
        options, call = self.options, self.call
        if options.accept:
            for path, names in self._read(selected, [p.strip() for p in options.accept.split(",")]).items():
                again = accept(self._read(Contract.load, path), names)
                self.note(f"wrote {self._read(again.save, path)}")
            return None
        if not options.target:
            raise CallError("give the function as module:function, or what to accept with --accept")
        name = options.target.rpartition(":")[2].rpartition(".")[2]
        path = Path(options.out or f"{FOLDER}/{name}.toml")
        known = self._read(Contract.load, path) if path.exists() else None
        facts = gather_facts(
            options.target, options.args, call.fun, call.args, call.kwargs, self.argnums, compile=options.compiled
        )
        contract = locked_again(known, facts, path.stem, options.argnums)
        self.note(f"wrote {self._read(contract.save, path)}")
        for n in facts.not_known:
            self.note(f"not known, and so not locked: {n.what}. {n.why}")
        return contract

    def check(self) -> ContractCheck:
        """Which contracts hold."""
        return self._read(check_contracts, *self.options.names)

    def jaxpr(self) -> ProgramText:
        """The program of a stage."""
        return ProgramText((("", self.program if self._stage == "primal" else getattr(self.derivation, self._stage)),))

    def explored_jaxpr(self) -> tuple[Derivation, str]:
        """The same for the explorer."""
        derivation = derive(self.program, argnums=None) if self._stage == "primal" else self.derivation
        return derivation, self._stage

    def stages(self, *names: str) -> ProgramText:
        """Several stages, each with its name."""
        derivation = self.derivation
        return ProgramText(tuple((name, getattr(derivation, name)) for name in names))

    @property
    def program(self) -> Program:
        """The call as traced."""
        call = self.call
        try:
            return trace(call.fun)(*call.args, **call.kwargs)
        except (jax.errors.ConcretizationTypeError, TypeError):
            if not call.args:
                raise
            return self.derivation.primal  # where an argument that is not an array, such as a flag, is itself

    @property
    def _stage(self) -> str:
        stage: str = self.options.stage
        if stage not in STAGES:
            raise CallError(f"--stage must be {STAGE_NAMES}; got {stage!r}")
        return stage

    def explore(self) -> str | None:
        """Writes the explorer and pictures to files; without any, its text."""
        from jaxviz.features.draw.drawing import draw
        from jaxviz.features.explorer.columns import view_of
        from jaxviz.features.explorer.still import summary

        options, source = self.options, not self.options.no_source
        if wrong := [stage for stage in options.stage.split("+") if stage not in STAGES]:
            raise CallError(f"--stage must be {STAGE_NAMES}, or several joined by +; got {wrong[0]!r}")
        pictures = {name: path for name in ("svg", "png", "pdf", "dot") if (path := getattr(options, name))}
        if not pictures and (options.depth, options.stage) != (None, "primal"):
            raise CallError("--stage and --depth are about a picture; add --svg, --png, --pdf or --dot")
        derivation = self.subject
        if options.html:
            from jaxviz.features.explorer.widget import Explorer  # it imports anywidget and IPython

            self.note(f"wrote {Explorer(derivation).save_html(options.html, source=source)}")
        if pictures:
            try:
                picture = draw(derivation, stage=options.stage, depth=options.depth, source=source)
            except ValueError as error:
                raise CallError(str(error)) from None
            for name, path in pictures.items():
                if name == "dot":
                    write_file(path, picture.to_dot().source)
                else:
                    getattr(picture, f"save_{name}")(path)
                self.note(f"wrote {path}")
        return None if options.html or pictures else summary(view_of(derivation, source=False))

    def subject_of(self, fun: Callable[..., Any]) -> Derivation:
        return subject_of(fun, self.call.args, self.call.kwargs, self.argnums)

    def under_policy(self) -> Derivation:
        """The call's derivation, under the policy that was asked for."""
        derivation = self.subject
        if self.options.policy is None:
            return derivation
        to = self.setting(self.options.policy)
        derived = derive_under(derivation, to)
        self.say(wrapped(f"with {to.name} on {checkpoints_of(derivation.primal)}:"))
        return derived

    def compared(self) -> PolicyComparison:
        """Several policies side by side."""
        policies = [self.setting(text) for text in split(self.options.compare)]
        if not policies:
            raise CallError("--compare takes policies, separated by commas; got none")
        return self.of(compare_policies, policies=policies)

    def setting(self, text: str) -> Setting:
        """A policy by name, or by an expression in the user's namespace with the names in jax.checkpoint_policies.

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


class ProgramText:
    """Programs as text, each under its name, with what devices exchange as its types imply, and what its equations
    log."""

    def __init__(self, programs: tuple[tuple[str, Program], ...]):
        self.programs = programs

    def __repr__(self) -> str:
        return "\n\n".join(
            f"{name}:\n{_with_remarks(program)}" if name else _with_remarks(program) for name, program in self.programs
        )


def _with_remarks(program: Program) -> str:
    remarks = {"what devices exchange:": exchanges_in(program), "what backward rules log:": _logs_in(program)}
    parts = ["\n".join([title, *(f"- {each}" for each in said)]) for title, said in remarks.items() if said]
    return "\n\n".join([str(program), *parts])


def _logs_in(program: Program) -> list[str]:
    """Which equations of a program and those that it holds are of a rule that logs: 'c = cos: custom backward rule,
    which logs `norm` (line 4)'."""
    names = variable_names(program)
    of_rules: dict[tuple[Equation | None, str], list[Equation]] = {}
    for _, e in program.walk():
        if e.origin is not None and logged_at(e):
            of_rules.setdefault((e.origin.equation, e.origin.rule), []).append(e)
    said = []
    for (applied, rule), equations in of_rules.items():
        places = filter(None, map(location_of, [*([] if applied is None else [applied]), *equations]))
        at = next(places, None)
        written = ", ".join(f"{' '.join(names[v] for v in e.outvars)} = {e.primitive.name}" for e in equations)
        said.append(f"{written}: {rule}" + ("" if at is None else f" ({short_location(at)})"))
    return said


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


def read_flags(text: str) -> dict[str, Any]:
    """`jax_remat3,jax_enable_x64=False`, as names of `jax.config` with values; True for one without.

    Raises:
      CallError: a value is not Python, or this JAX has no such flag.
    """
    flags: dict[str, Any] = {}
    for part in split(text):
        name, equals, value = map(str.strip, part.partition("="))
        try:
            flags[name] = ast.literal_eval(value) if equals else True
            check_flags(flags)
        except (ValueError, SyntaxError) as error:
            raise CallError(f"--flags: {error}") from None
    if not flags:
        raise CallError("--flags takes flags of jax.config, separated by commas; got none")
    return flags


def _amount(text: str | None, read: Callable[[str], Any], option: str) -> str | None:
    """A size, a share or nothing, as in `plan_remat`; `read` raises a ValueError if it is none of these."""
    try:
        _ = text is None or read(text)
    except ValueError as error:
        raise CallError(f"{option}: {error}") from None
    return text
