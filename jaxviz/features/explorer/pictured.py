"""What the explorer shows as pictures and animations."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxviz.derivation import STAGES, Derivation
from jaxviz.page.schema import View
from jaxviz.report.needs import needs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxviz.features.draw.drawing import Drawing
    from jaxviz.features.draw.source import Dot


class Pictured:
    """The methods of an explorer that draw it."""

    derivation: Derivation
    stage: Any
    beside: Any

    @property
    def view(self) -> View:
        """What is shown, as plain data."""
        raise NotImplementedError

    def draw(self, stage: str = "", depth: int | None = None, source: bool = True) -> Drawing:
        """Draws a program, or several side by side; by default those that the explorer shows.

        >>> explorer.draw("forward+backward")

        Args:
          stage, depth, source: as of `jaxviz.draw`.
        """
        from jaxviz.features.draw.drawing import draw

        keys = f"{self.stage}+{self.beside}".split("+")
        shown = stage or "+".join(key for key in dict.fromkeys(keys) if key in STAGES)
        return draw(self.derivation, stage=shown, depth=depth, source=source)

    def to_dot(self, stage: str = "", depth: int | None = None, source: bool = True) -> Dot:
        """The picture as a `graphviz.Source`, which a notebook displays and `.render()` writes; see `jaxviz.to_dot`."""
        return self.draw(stage, depth, source).to_dot()

    def save_svg(self, path: str | Path, stage: str = "", depth: int | None = None, source: bool = True) -> Path:
        """Writes the picture as SVG; returns the path. The arguments are those of `draw`."""
        return self.draw(stage, depth, source).save_svg(path)

    def save_png(self, path: str | Path, stage: str = "", depth: int | None = None, dpi: int = 150) -> Path:
        """Writes the picture as PNG; returns the path. The arguments are those of `draw`, and the points per inch."""
        return self.draw(stage, depth).save_png(path, dpi)

    def plot(self, stage: str = "", depth: int | None = None, width: float | None = None) -> Figure:
        """The picture as a matplotlib figure, for papers; the arguments are those of `draw`, and the width in
        inches."""
        return self.draw(stage, depth).plot(width)

    def plot_overview(self) -> Figure:
        """The overview as a matplotlib figure: what runs, what is saved and for how long, and the memory, with its
        peak.

        >>> explorer.plot_overview().savefig("overview.pdf")

        Raises:
          ValueError: the function has no gradient.
        """
        with needs("A figure", "matplotlib", "pillow"):
            from jaxviz.features.explorer.picture import overview_figure

        return overview_figure(self.view)

    def save_animation(self, path: str | Path, seconds: float = 15) -> Path:
        """Writes the gradient in motion as an animated picture: what runs, what is saved and read again, and the
        memory.

        >>> explorer.save_animation("loss.gif")

        Args:
          path: the path of the file, a .gif, .png or .webp; or an .mp4, which ffmpeg writes.
          seconds: the approximate length; the animation repeats.

        Returns:
          the path.

        Raises:
          ValueError: the function has no gradient, the file is of another kind, or the length is not above 0.
          FileNotFoundError: ffmpeg, which writes an .mp4, is not installed.
        """
        with needs("An animation", "matplotlib", "pillow"):
            from jaxviz.features.explorer.animation import save_animation

        return save_animation(self.view, path, seconds)

    def save_html(self, path: str | Path) -> Path:
        """Writes the explorer as one HTML file."""
        raise NotImplementedError

    def embed(self, path: str | Path, height: int = 640) -> str:
        """Writes the explorer as one HTML file, and returns the line that shows it in another page, such as a slide.

        >>> explorer.embed("loss.html")
        '<iframe src="loss.html" title="The explorer of loss" ...></iframe>'

        Args:
          path: the path of the file; the other page is to lie in the same folder.
          height: the height of the frame in pixels.
        """
        name = html.escape(self.save_html(path).name, quote=True)
        title = html.escape(f"The explorer of {self.derivation.primal.name}", quote=True)
        style = f"width:100%;height:{height}px;border:0"
        return f'<iframe src="{name}" title="{title}" style="{style}" loading="lazy"></iframe>'
