"""Advice on a function's gradient: what it saves or computes without need, where, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from jaxviz.analysis.training_step import subject_of
from jaxviz.arguments import Argnums
from jaxviz.features.lint.advice import Advice
from jaxviz.features.lint.checks import FIND, LintSubject
from jaxviz.features.lint.rules import LINT_RULES
from jaxviz.features.residuals.saved_bytes import SavedBytes
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.collector import collector_paused
from jaxviz.ir.stack import deep_stack
from jaxviz.progress import each
from jaxviz.report.charts import Bars
from jaxviz.report.report import SHOWN, Drawn, Report, Table
from jaxviz.report.sizes import read_size
from jaxviz.report.tables import format_bytes, short_location, wrapped
from jaxviz.transforms.unopened import unopened_note

CAPTURED_NBYTES = 1 << 20
"""The minimum size of a captured constant for advice, unless `min_nbytes` is given."""


@dataclass(frozen=True, eq=False, repr=False)
class LintReport(Report, Sequence[Advice], schema="lint"):
    """Advice on the gradient of a function, by bytes at stake, largest first.

    >>> report = jaxviz.lint(loss, params, x)
    >>> {advice.rule for advice in report}

    Args:
      function: the name of the function.
      gradient: which gradient, such as "gradient of `loss` in `params`".
      saved: what the gradient saves.
      min_nbytes: advice with fewer bytes at stake is left out.
      n_left_out: how many pieces of advice were left out.
      notes: what the rules could not analyse.
    """

    function: str
    gradient: str
    items: tuple[Advice, ...]
    saved: SavedBytes
    min_nbytes: int
    n_left_out: int = 0
    notes: tuple[str, ...] = ()

    @overload
    def __getitem__(self, index: int) -> Advice: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Advice]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Advice]:
        return iter(self.items)

    def explain(self, rule: str | None = None) -> str:
        """Explains a rule, or without an argument each rule that has advice in this report.

        Raises:
          KeyError: there is no such rule.
        """
        ids = dict.fromkeys(a.rule for a in self.items) if rule is None else [rule]
        unknown = [i for i in ids if i not in LINT_RULES]
        if unknown:
            raise KeyError(f"no rule {unknown[0]!r}; there are {', '.join(LINT_RULES)}")
        return "\n\n".join(str(LINT_RULES[i]) for i in ids)

    @property
    def summary(self) -> str:
        """lint of the gradient of `loss` in `params`: 3 suggestions; it saves 1.1 MiB in 463 values."""
        n = len(self.items)
        count = f"{n:,} suggestion{'s' * (n != 1)}" if n else "no suggestions"
        few = f" ({self.n_left_out:,} omitted, below {format_bytes(self.min_nbytes)})" if self.n_left_out else ""
        saves = f"it saves {self.saved}"
        return f"lint of the {self.gradient}: {count}{few}; {saves}"

    def _chart(self) -> Bars:
        rows = [(f"{a.rule} {short_location(a.location)}", a.nbytes, "at stake") for a in self.items]
        return Bars(rows, f"bytes at stake in the gradient of {self.function}, by advice", adds_up=False)

    def _parts(self) -> Iterator[str]:
        for i, a in enumerate(self.items[:SHOWN], 1):
            number = f"{i}. "
            texts = (wrapped(line, " " * len(number)) for line in (a.text, f"Instead: {a.fix}"))
            yield Drawn("\n".join(["", number + a.head, *texts]))
        if len(self.items) > SHOWN:
            yield self._more(SHOWN)
        yield from self.notes

    def _html_parts(self) -> Iterator[str | Table]:
        rows = [
            (
                a.rule, format_bytes(a.nbytes) if a.nbytes else "", f"{a.count:,}", short_location(a.location), a.text,
                a.fix,
            )
            for a in self.items
        ]  # fmt: skip
        heads = ("rule", "bytes", "times", "line", "found", "instead")
        yield Table(heads, rows, "<>><<<", shown=SHOWN, more=self._more)
        yield from self.notes

    def _more(self, shown: int) -> str:
        return f"and {len(self.items) - shown:,} more"

    _data = ("function", "gradient", "saved", "min_nbytes", "n_left_out", "notes", "advice=items")


@api_boundary
@deep_stack
@collector_paused()
def lint(f: Any, *args: Any, argnums: Argnums = 0, min_nbytes: int | None = None, **kwargs: Any) -> LintReport:
    """Gives advice on a function's gradient: what it saves or computes without need, where, and what to write.

    It runs and compiles nothing.

    >>> print(jaxviz.lint(loss, params, x))
    lint of the gradient of `loss` in `params`: 2 suggestions; it saves 1.1 MiB in 463 values
    ...

    For a training step, which computes a gradient itself and returns more than one number, it is about the gradient
    that the step takes; `derive(step, ...)` in its place is about that of the step.

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, without further arguments.
      *args, **kwargs: the arguments to call it with, as for `derive`.
      argnums: the positional argument or arguments to differentiate with respect to.
      min_nbytes: leaves out advice with fewer bytes at stake; by default one percent of the bytes that the gradient
        saves, but at least 1 KiB. For captured constants the default is 1 MiB. Advice on names, on types and on
        checkpoints without effect is never left out.

    Raises:
      the errors of `derive`.
    """
    min_nbytes = None if min_nbytes is None else int(read_size(min_nbytes, "min_nbytes"))
    derivation = subject_of(f, args, kwargs, argnums)
    subject = LintSubject(derivation)
    saved = subject.residuals.saved
    least = max(1024, saved.nbytes // 100) if min_nbytes is None else min_nbytes

    def advice_of(rule: str) -> list[Advice]:
        try:
            return [replace(a, rule=rule) for a in FIND[rule](subject)]
        except Exception as error:
            error.add_note(f"in the rule {rule!r} of jaxviz.lint")
            raise

    every = [a for advice in each(advice_of, FIND, "rules") for a in advice]
    of_constants = CAPTURED_NBYTES if min_nbytes is None else max(least, 1)
    threshold = lambda rule: of_constants if rule == "captured-constant" else max(least, 1)
    shown = [a for a in every if a.rule in _OF_NO_BYTES or a.nbytes >= threshold(a.rule)]
    shown.sort(key=lambda a: (a.rule not in MAY_BE_WRONG, -a.nbytes))
    few = sum(0 < a.nbytes < least for a in every if a.rule not in (*_OF_NO_BYTES, "captured-constant"))
    notes = (*subject.residuals.on_gradient, *unopened_note(derivation.unopened))
    return LintReport(derivation.primal.name, derivation.about, tuple(shown), saved, least, few, notes)


MAY_BE_WRONG = ("dead-gradient", "narrow-integers", "narrow-sum")
"""The rules on what may make results wrong, whose advice comes first."""
_OF_NO_BYTES = (
    "dead-gradient", "checkpoint-without-effect", "unknown-name", "unused-name", "policy-without-effect",
    "type-widened", "narrow-sum", "narrow-integers",
)  # fmt: skip
