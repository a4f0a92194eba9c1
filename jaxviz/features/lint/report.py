"""Advice on the gradient of a function: what it keeps or does for nothing, on which line, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from jaxviz.derivation import derive
from jaxviz.features.lint.checks import FIND, Advice, Subject
from jaxviz.features.lint.rules import LINT_RULES
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.stack import deep_stack
from jaxviz.progress import each
from jaxviz.report.report import Drawn, Report, Table, attributes, plain
from jaxviz.report.tables import counted, format_bytes, short_location, wrapped
from jaxviz.transforms.unopened import unopened_note

CAPTURED_NBYTES = 1 << 20
"""From so many bytes on a constant is advised on, where `min_nbytes` is not given."""


@dataclass(frozen=True, eq=False, repr=False)
class LintReport(Report, Sequence[Advice]):
    """Advice on the gradient of a function, by bytes at stake, largest first.

    Args:
      function: its name.
      items: the pieces of advice.
      n_residuals, nbytes: of all that the gradient keeps.
      min_nbytes: what is at stake for less is left out.
      n_left_out: how many pieces of advice that was.
      notes: what it could not look at.
    """

    function: str
    items: tuple[Advice, ...]
    n_residuals: int
    nbytes: int
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
        """What a rule means; without one, what each rule means that there is advice by.

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
        """`lint of loss: 3 pieces of advice; its gradient keeps 463 residuals, 1.1 MiB`."""
        n = len(self.items)
        found = f"{n:,} piece{'s' * (n != 1)} of advice" if n else "nothing to advise"
        few = (
            f" ({self.n_left_out:,} left out, for less than {format_bytes(self.min_nbytes)})" if self.n_left_out else ""
        )
        kept = f"its gradient keeps {counted(self.n_residuals, 'residual')}, {format_bytes(self.nbytes)}"
        return f"lint of {self.function}: {found}{few}; {kept}"

    def _parts(self) -> Iterator[str]:
        for i, a in enumerate(self.items, 1):
            number = f"{i}. "
            texts = (wrapped(line, " " * len(number)) for line in (a.text, f"Instead: {a.fix}"))
            yield Drawn("\n".join(["", number + a.head, *texts]))
        yield from self.notes

    def _html_parts(self) -> Iterator[str | Table]:
        rows = [
            (
                a.rule, format_bytes(a.nbytes) if a.nbytes else "", f"{a.count:,}", short_location(a.location), a.text,
                a.fix,
            )
            for a in self.items
        ]  # fmt: skip
        yield Table(("rule", "bytes", "times", "line", "what there is", "instead"), rows, "<>><<<")
        yield from self.notes

    def to_dict(self) -> dict[str, Any]:
        named = attributes(self, ("function", "n_residuals", "nbytes", "min_nbytes", "n_left_out", "notes"))
        return {**named, "advice": plain(self.items)}


@api_boundary
@deep_stack
def lint(
    f: Any, *args: Any, argnums: int | Sequence[int] = 0, min_nbytes: int | None = None, **kwargs: Any
) -> LintReport:
    """Advice on the gradient of a function: what it keeps or does for nothing, on which line, and what to write instead.

    Nothing is run or compiled.

    >>> print(jaxviz.lint(loss, params, x))
    lint of loss: 2 pieces of advice; its gradient keeps 463 residuals, 1.1 MiB
    ...

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, and then no args.
      *args, **kwargs: what to call it with, as for `derive`.
      argnums: the positional argument or arguments to differentiate in.
      min_nbytes: what is at stake for less is left out; one percent of what the gradient keeps by default, and no less than 1 KiB.
        For constants that are closed over it is 1 MiB by default. Names, and checkpoints without effect, are never left out.

    Raises:
      what `derive` raises.
    """
    derivation = derive(f, *args, argnums=argnums, **kwargs)
    subject = Subject(derivation)
    total = subject.found.nbytes
    least = max(1024, total // 100) if min_nbytes is None else min_nbytes

    def found(rule: str) -> list[Advice]:
        try:
            return [replace(a, rule=rule) for a in FIND[rule](subject)]
        except Exception as error:
            error.add_note(f"in the rule {rule!r} of jaxviz.lint")
            raise

    made = [a for advice in each(found, FIND, "rules") for a in advice]
    shown = [a for a in made if a.rule in _OF_NO_BYTES or a.nbytes >= _threshold(a.rule, least, min_nbytes)]
    shown.sort(key=lambda a: -a.nbytes)
    few = sum(0 < a.nbytes < least for a in made if a.rule not in (*_OF_NO_BYTES, "captured-constant"))
    return LintReport(
        derivation.primal.name,
        tuple(shown),
        len(subject.found),
        total,
        least,
        few,
        (*subject.found.why_none, *unopened_note(derivation.unopened)),
    )


_OF_NO_BYTES = ("checkpoint-without-effect", "unknown-name", "unused-name")


def _threshold(rule: str, least: int, given: int | None) -> int:
    return CAPTURED_NBYTES if rule == "captured-constant" and given is None else max(least, 1)
