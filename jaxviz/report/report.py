"""`Report`: the base class of reports, which define a summary and parts; text, HTML and plain data follow from
these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from jaxviz.displays import display
from jaxviz.report.charts import Chart
from jaxviz.report.data import Data, schema_of
from jaxviz.report.needs import needs
from jaxviz.report.places import noting_places
from jaxviz.report.tables import code_html, folded, html_table, preformatted, text_table, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 20
"""How many rows of a table a report shows: the largest ones."""

MOST_ROWS = 40
"""The most rows of a table in a notebook, including those behind "show all"."""


VERSION = 1
"""The version of the plain data of all reports; to increase when an entry is removed, or means something else."""

_REPORTS: dict[str, type[Report]] = {}
"""The reports of the modules that are imported."""

_MODULES = (
    "analysis.checkpoints", "xla.collectives.report", "features.comparison.report",
    "features.comparison.under_flags", "xla.compilations.compiled", "xla.compilations.report",
    "xla.compile_cost.report", "xla.compiled_memory.beside", "xla.compiled_memory.change",
    "xla.compiled_memory.report", "features.cost.report", "features.cost.timings", "features.doctor",
    "features.flow.report",
    "xla.donation.report", "xla.live_memory.report", "xla.out_of_memory.report",
    "features.lint.report", "features.memory.timeline", "features.nans.report",
    "xla.profile.report", "features.remat.plan", "features.remat.policies", "features.remat.policy_comparison",
    "features.remat.verify", "features.residuals.residual_set", "features.values.capture",
    "features.values.divergence", "features.values.growth", "features.values.records",
    "functions.rule_check",
    "teach.puzzles.card", "teach.outcomes", "environments.report", "runs.report", "contracts.contract",
    "contracts.report",
)  # fmt: skip
"""The modules that define reports. They are not imported here, but where a schema is asked for."""


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of the plain data of a report.

    >>> import jsonschema
    >>> jsonschema.validate(jaxviz.residuals(loss, params, x).to_dict(), jaxviz.schema("residuals"))

    Args:
      name: the function that returns the report, such as 'residuals' or 'memory.beside'; the entry 'schema' of the
        data.

    Returns:
      the schema, of draft 2020-12.

    Raises:
      ValueError: no report has that name.
    """
    there_are = reports()
    if name not in there_are:
        raise ValueError(f"no report is named {name!r}; there are {', '.join(sorted(there_are))}")
    return schema_of(there_are[name], {"schema": {"const": name}, "version": {"const": VERSION}}, there_are.values())


def reports() -> dict[str, type[Report]]:
    """All reports of jaxviz, by the names of their schemas."""
    modules = [import_module(f"jaxviz.{module}").__name__ for module in _MODULES]
    return {name: report for name, report in _REPORTS.items() if report.__module__ in modules}


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a report.

    Args:
      heads: the headings of the columns.
      rows: their cells.
      align: '<' or '>' for each column.
      caption: a line above it; a table without rows consists only of that line.
      shown: how many rows are shown; a notebook has more behind "show all", up to 40. None for all.
      more: from the number of shown rows to a text about the others; by default their number.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    align: str
    caption: str = ""
    shown: int | None = SHOWN
    more: Callable[[int], str] | None = None

    def __str__(self) -> str:
        lines = [wrapped(self.caption)] if self.caption else []
        if self.rows:
            rows = self.rows[: self.shown]
            lines += [text_table(self.heads, rows, self.align), *map(wrapped, self._left_out(len(rows)))]
        return "\n".join(lines)

    def to_html(self) -> str:
        if not self.rows:
            return _paragraph(self.caption) if self.caption else ""
        rows = self.rows[:MOST_ROWS]
        numeric = [a == ">" for a in self.align]
        shown = html_table(self.caption, self.heads, rows[: self.shown], numeric)
        if self.shown is not None and len(rows) > self.shown:
            everything = html_table("", self.heads, rows, numeric) + "".join(map(_paragraph, self._left_out(len(rows))))
            how_many = "all" if len(rows) == len(self.rows) else f"{len(rows)}"
            return shown + folded(f"{self._left_out(self.shown)[0]}: show {how_many}", everything)
        return shown + "".join(map(_paragraph, self._left_out(len(rows))))

    def _left_out(self, shown: int) -> list[str]:
        n = len(self.rows) - shown
        return [self.more(shown) if self.more else f"and {n:,} more"] if n else []


class Listed(tuple[str, ...]):
    """Sentences of a report, shown as a list."""


class Drawn(str):
    """Lines of a report that are shown unchanged."""


Part = str | Table | Listed | Drawn
"""A part of a report; a string is a paragraph."""


class Report(Data):
    """A dataclass that displays as text in a terminal and as HTML in a notebook.

    In text, a blank line precedes tables with a caption, and follows every table. Create the dataclass with
    `repr=False`, so that it has the text of this class. `schema` is the name of its schema: the public function that
    returns it, or a method of such a report.
    """

    __slots__ = ()
    _schema: ClassVar[str] = ""

    def __init_subclass__(cls, schema: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._schema = schema or vars(cls).get("_schema", cls.__name__)  # a dataclass with slots is made twice
        _REPORTS[cls._schema] = cls

    @property
    def summary(self) -> str:
        """The report in a sentence."""
        raise NotImplementedError

    def _parts(self) -> Iterable[Part]:
        """The content below the summary."""
        return ()

    def _html_parts(self) -> Iterable[Part]:
        """The same for a notebook, which has more space."""
        return self._parts()

    def _chart(self) -> Chart | None:
        """What a notebook shows above the summary, and `plot` as a figure."""
        return None

    def _picture(self) -> str:
        """The same as a drawing, or ''."""
        from jaxviz.report.pictures import svg  # only for notebooks

        chart = self._chart()
        return "" if chart is None else svg(chart)

    def plot(self, ax: Axes | None = None) -> Figure:
        """The chart that a notebook shows above the report; a `matplotlib` figure.

        >>> jaxviz.memory(loss, params, x).plot().savefig("memory.pdf")

        Args:
          ax: the matplotlib axes to draw in; by default those of a new figure.

        Raises:
          ValueError: the report has no chart.
        """
        chart = self._chart()
        if chart is None:
            raise ValueError(f"there is nothing to plot: {self.summary}")
        return plotted(chart, ax)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for programs; `jaxviz.schema` describes it."""
        return {"schema": self._schema, "version": VERSION, **super().to_dict()}

    def __str__(self) -> str:
        blocks = [[wrapped(self.summary)]]
        ends_in_table = False
        for part in self._parts():
            text = _text(part)
            if text:
                if ends_in_table or (isinstance(part, Table) and part.caption):
                    blocks.append([])
                blocks[-1].append(text)
                ends_in_table = isinstance(part, Table)
        return "\n\n".join(map("\n".join, blocks))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        with noting_places():
            # All parts are created before the first is written, because of the places in them.
            parts = (self.summary, *self._html_parts())
            picture = self._picture()
            if "data-zoom" in picture:
                display("zoom of charts")()
            return picture + "".join(map(_html, parts))

    def table(self, limit: int | None = 40) -> str:
        """The first table as text.

        Args:
          limit: the number of rows; None for all.
        """
        first = next((part for part in self._parts() if isinstance(part, Table)), None)
        return "" if first is None else str(replace(first, shown=limit))


def plotted(chart: Chart, ax: Axes | None) -> Figure:
    """A chart as a `matplotlib` figure, which is imported for it."""
    with needs("A figure", "matplotlib"):
        from jaxviz.report.figures import plot

    return plot(chart, ax)


def _text(part: Part) -> str:
    if isinstance(part, (Table, Drawn)):
        return str(part)
    return (
        "\n".join(f"- {wrapped(item, '  ').lstrip()}" for item in part) if isinstance(part, Listed) else wrapped(part)
    )


def _html(part: Part) -> str:
    match part:
        case Table():
            return part.to_html()
        case () | "":
            return ""
        case Listed():
            return f"<ul>{''.join(f'<li>{code_html(item)}</li>' for item in part)}</ul>"
        case Drawn():
            return preformatted(part)
    return _paragraph(part)


def _paragraph(text: str) -> str:
    return f"<p>{code_html(text)}</p>"
