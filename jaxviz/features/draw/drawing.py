"""Pictures of programs: SVG, PNG and matplotlib figures, laid out by `dot` if it is installed, and otherwise by jaxviz."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax.extend.core import ClosedJaxpr

from jaxviz.analysis.training_step import subject_of
from jaxviz.arguments import Argnums
from jaxviz.derivation import Derivation, derive
from jaxviz.features.draw.graph import Graph
from jaxviz.features.draw.layout import Layout, lay_out
from jaxviz.features.draw.program_graph import graph_of
from jaxviz.features.draw.style import box_size
from jaxviz.features.draw.svg import on_page, write_svg
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.expressions import source_shown
from jaxviz.ir.options import whole_number
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Program
from jaxviz.ir.trace import trace
from jaxviz.progress import counting
from jaxviz.report.files import write_file
from jaxviz.report.needs import needs
from jaxviz.report.pictures import in_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxviz.features.draw.dot import Dot

MOST_FOR_DOT = 400
"""The most boxes that are laid out by `dot`; it takes seconds for more, and minutes for a thousand."""


@dataclass(frozen=True, eq=False)
class Drawing:
    """A picture of a program. Made by `draw`; a notebook shows it.

    >>> picture = jaxviz.draw(loss, params, x, stage="forward+backward")
    >>> picture.save_svg("loss.svg")
    >>> picture.plot().savefig("loss.pdf")

    Args:
      graph: what the picture shows, as plain data.
      upwards: frames of stages that are drawn from bottom to top.
    """

    graph: Graph
    upwards: tuple[int, ...] = ()

    def to_dot(self) -> Dot:
        """The picture in Graphviz's dot language: a `graphviz.Source`, which a notebook shows and `.render()` writes."""
        with needs("The dot language", "graphviz"):
            from jaxviz.features.draw.dot import Dot, dot_source

        return Dot(dot_source(self.graph, self.upwards), self)

    def svg(self, by_dot: bool | None = None) -> str:
        """The picture as SVG.

        Args:
          by_dot: whether `dot` lays it out; by default if `dot` is installed and the picture is not too large for it.
        """
        if by_dot is None:
            by_dot = len(self.graph.boxes) <= MOST_FOR_DOT
        made = self._by_dot("svg") if by_dot else None
        return made.decode() if made is not None else write_svg(self.graph, self.layout)

    def save_svg(self, path: str | Path) -> Path:
        """Writes the picture as SVG; returns the path."""
        return write_file(path, self.svg())

    def save_pdf(self, path: str | Path) -> Path:
        """Writes the picture as PDF, of vectors and text; returns the path."""
        with needs("A PDF", "matplotlib"):
            from jaxviz.features.draw.figure import editable_text

        path = Path(path)
        with editable_text():
            self.plot().savefig(path, format="pdf")
        return path

    def save_png(self, path: str | Path, dpi: int = 150) -> Path:
        """Writes the picture as PNG; returns the path.

        Args:
          path: the path of the file.
          dpi: pixels per inch; reduced if the picture would have more than 100 million pixels.
        """
        path = Path(path)
        made = self._by_dot("png", dpi) if len(self.graph.boxes) <= MOST_FOR_DOT else None
        if made is not None:
            write_file(path, made)
        else:
            figure = self.plot()
            inches = figure.get_size_inches()
            figure.savefig(
                path, format="png", dpi=min(dpi, (1e8 / (inches[0] * inches[1])) ** 0.5, 60_000 / max(inches))
            )
        return path

    def plot(self, width: float | None = None) -> Figure:
        """The picture as a `matplotlib` figure, for papers: `.plot().savefig("loss.pdf")` has vectors and text.

        Args:
          width: in inches; by default such that the text has seven points.
        """
        with needs("A figure", "matplotlib"):
            from jaxviz.features.draw.figure import draw_figure

        return draw_figure(self.graph, self.layout, width)

    @cached_property
    def layout(self) -> Layout:
        """The coordinates of jaxviz's own layout."""
        return lay_out(self.graph, [box_size(b) for b in self.graph.boxes], self.upwards)

    def _by_dot(self, format: str, dpi: int | None = None) -> bytes | None:
        """The picture drawn by `dot`; None if it is not installed or gives up."""
        options = [f"-Gdpi={dpi}"] if dpi else []
        try:
            source = self.to_dot().source.encode()
            done = subprocess.run(
                ["dot", f"-T{format}", *options], input=source, capture_output=True, timeout=60, check=True
            )
        except (ImportError, OSError, subprocess.SubprocessError):
            return None
        return done.stdout or None

    def __str__(self) -> str:
        n = sum(b.kind in ("equation", "group") for b in self.graph.boxes)
        stages = "; ".join(f.title for f in self.graph.stages)
        return "\n".join(
            [f"picture of {self.graph.title}: {n:,} boxes of {stages}", *(f"  {x}" for x in self.graph.notes)]
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return in_page(on_page(self.svg()))


@api_boundary
@deep_stack
def draw(
    f: Any,
    *args: Any,
    stage: str = "",
    depth: int | None = None,
    source: bool = True,
    argnums: Argnums = 0,
    **kwargs: Any,
) -> Drawing:
    """Draws a program, or the programs that JAX's transformations derive from it.

    >>> jaxviz.draw(loss, params, x, stage="forward+backward").save_svg("loss.svg")

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, without further arguments.
      *args, **kwargs: its arguments, as for `derive`.
      stage: 'primal', 'jvp', 'forward', 'linear' or 'backward', or several joined by '+'; by default the function itself.
      depth: how many levels of calls, loops, branches, named scopes and repeated layers are opened; each deeper one is a box. By default as
        many as stay legible.
      source: whether lines of your own source files are in the tooltips.
      argnums: the positional argument or arguments to differentiate with respect to.

    Raises:
      ValueError: there is no such stage.
      the errors of `derive`.
    """
    with counting("drawing"):
        if not isinstance(stage, str):
            raise TypeError(f"stage must be text, such as 'forward' or 'forward+backward'; got {stage!r}")
        depth = None if depth is None else whole_number(depth, "depth")
        subject = _subject(f, args, kwargs, stage, argnums)
        with source_shown(source):
            graph = graph_of(subject, stage, depth, source)
    keys = [k for k in stage.split("+") if k]
    beside = [f.number for f, key in zip(graph.stages, dict.fromkeys(keys), strict=False) if key == "backward"]
    return Drawing(graph, tuple(beside) if len(set(keys)) > 1 else ())


def _subject(f: Any, args: Any, kwargs: Any, stage: str, argnums: Argnums) -> Derivation | Program:
    if isinstance(f, (Derivation, Program)):
        if args or kwargs:
            raise TypeError(
                f"draw takes no arguments with a {type(f).__name__}, which has its own types; got {len(args)}"
            )
        if isinstance(f, Program) and stage not in ("", "primal"):
            return derive(f, argnums=argnums)
        return f
    if isinstance(f, ClosedJaxpr):
        return _subject(read_jaxpr(f), args, kwargs, stage, argnums)
    if stage in ("", "primal") and not args:
        return trace(f)(**kwargs)
    if stage in ("", "primal"):
        return derive(f, *args, argnums=argnums, **kwargs)
    return subject_of(f, args, kwargs, argnums)


@api_boundary
def to_dot(
    f: Any,
    *args: Any,
    stage: str = "",
    depth: int | None = None,
    source: bool = True,
    argnums: Argnums = 0,
    **kwargs: Any,
) -> Dot:
    """A program in Graphviz's dot language: a `graphviz.Source`, which a notebook shows and `.render()` writes.

    >>> jaxviz.to_dot(loss, params, x, stage="backward").render("loss", format="pdf")

    If `dot` is not installed, it still shows and writes SVG, PNG and PDF, in jaxviz's own layout.

    Args, Raises: as for `draw`.
    """
    return draw(f, *args, stage=stage, depth=depth, source=source, argnums=argnums, **kwargs).to_dot()
