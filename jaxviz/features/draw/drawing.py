"""Pictures of programs: SVG, PDF, PNG and matplotlib figures, drawn by Graphviz's `dot`."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax.extend.core import ClosedJaxpr

from jaxviz.analysis.training_step import subject_of
from jaxviz.arguments import Argnums
from jaxviz.derivation import Derivation, derive
from jaxviz.features.draw.dot import dot_source
from jaxviz.features.draw.graph import ProgramGraph
from jaxviz.features.draw.program_graph import graph_of
from jaxviz.features.draw.style import on_page
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
from jaxviz.report.tables import preformatted, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxviz.features.draw.source import Dot

_SECONDS = 60
"""How long `dot` may take for a picture."""

TO_INSTALL = "conda install -c conda-forge graphviz, apt install graphviz or brew install graphviz"


@dataclass(frozen=True, eq=False)
class Drawing:
    """A picture of a program. Made by `draw`; a notebook shows it. Graphviz's program `dot` draws it.

    >>> picture = jaxviz.draw(loss, params, x, stage="forward+backward")
    >>> picture.save_svg("loss.svg")

    Args:
      graph: what the picture shows, as plain data.
      upwards: frames of stages that are drawn from bottom to top.
    """

    graph: ProgramGraph
    upwards: tuple[int, ...] = ()

    @cached_property
    def source(self) -> str:
        """The picture in Graphviz's dot language."""
        return dot_source(self.graph, self.upwards)

    def to_dot(self) -> Dot:
        """The picture in Graphviz's dot language: a `graphviz.Source`, which a notebook shows and `.render()`
        writes."""
        with needs("The dot language", "graphviz"):
            from jaxviz.features.draw.source import Dot

        return Dot(self)

    def svg(self) -> str:
        """The picture as SVG.

        Raises:
          RuntimeError: `dot` is not installed, fails, or takes more than a minute; so do the other methods.
        """
        return self._drawn("svg").decode()

    def save_svg(self, path: str | Path) -> Path:
        """Writes the picture as SVG; returns the path."""
        return write_file(path, self._drawn("svg"))

    def save_pdf(self, path: str | Path) -> Path:
        """Writes the picture as PDF, of vectors and text; returns the path."""
        return write_file(path, self._drawn("pdf"))

    def save_png(self, path: str | Path, dpi: int = 150) -> Path:
        """Writes the picture as PNG, with so many pixels per inch; returns the path."""
        return write_file(path, self._drawn("png", f"-Gdpi={dpi}"))

    def plot(self, width: float | None = None) -> Figure:
        """The picture as a `matplotlib` figure, for papers: `.plot().savefig("loss.pdf")` has vectors and text.

        Args:
          width: in inches; by default such that the text has seven points.
        """
        with needs("A figure", "matplotlib"):
            from jaxviz.features.draw.figure import draw_figure

        return draw_figure(json.loads(self._drawn("json")), width)

    def _drawn(self, format: str, *options: str) -> bytes:
        """The picture drawn by `dot`."""
        command = ["dot", f"-T{format}", *options]
        try:
            return subprocess.run(
                command, input=self.source.encode(), capture_output=True, timeout=_SECONDS, check=True
            ).stdout
        except OSError:
            why = f"it is not installed; to install: {TO_INSTALL}. `jaxviz.explore` shows the same program without it"
        except subprocess.TimeoutExpired:
            why = (
                f"it takes more than {_SECONDS} s for {len(self.graph.boxes):,} boxes; a smaller `depth` may have fewer"
            )
        except subprocess.CalledProcessError as error:
            why = f"it fails: {printable(error.stderr.decode(errors='replace').strip(), 300)}"
        raise RuntimeError(f"Graphviz's `dot` draws pictures, and {why}")

    def __str__(self) -> str:
        n = sum(b.kind in ("equation", "group") for b in self.graph.boxes)
        stages = "; ".join(f.title for f in self.graph.stages)
        return "\n".join(
            [f"picture of {self.graph.title}: {n:,} boxes of {stages}", *(f"  {x}" for x in self.graph.notes)]
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        try:
            return in_page(on_page(self.svg()))
        except RuntimeError as error:
            return preformatted(f"{self}\n{error}")


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
      stage: 'primal', 'jvp', 'forward', 'linear' or 'backward', or several joined by '+'; by default the function
        itself.
      depth: how many levels of calls, loops, branches, named scopes and repeated layers are opened; each deeper one is
        a box. By default as many as stay legible.
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

    Args, Raises: as for `draw`.
    """
    return draw(f, *args, stage=stage, depth=depth, source=source, argnums=argnums, **kwargs).to_dot()
