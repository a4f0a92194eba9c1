"""`Picture`: a matplotlib figure that a notebook displays; and the common style of report figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

from matplotlib import rcParams
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.spines import Spine
from matplotlib.text import Text

from jaxviz.report.inks import ON_ANY_PAGE

_INKED: tuple[tuple[Any, str], ...] = (
    (Text, "color"), (Spine, "edgecolor"), (Line2D, "color"), (Line2D, "markeredgecolor"), (Line2D, "markerfacecolor"),
)  # fmt: skip


class Picture(Figure):
    """A figure that displays itself as the output of a cell. IPython can do that once pyplot is imported, which jaxviz does not do.

    It has the colours of matplotlib's style. On a page, which may be light or dark, a figure in a white style gets a transparent
    background, and ink that is readable on both; saved to a file it stays unchanged.
    """

    def _repr_png_(self) -> bytes:
        out = BytesIO()
        with _for_any_page(self):
            self.savefig(out, format="png", bbox_inches="tight", facecolor="auto")
        return out.getvalue()


@contextmanager
def _for_any_page(figure: Figure) -> Iterator[None]:
    """While drawing, removes the style's white background and replaces its ink; other colours stay."""
    if not same_color(rcParams["figure.facecolor"], "white"):
        yield
        return
    before: list[tuple[Any, str, Any]] = []

    def change(artist: Any, name: str, colours: list[Any], to: str) -> None:
        old = getattr(artist, f"get_{name}")()
        if any(same_color(old, colour) for colour in colours):
            before.append((artist, name, old))
            getattr(artist, f"set_{name}")(to)

    figure.draw_without_rendering()  # ticks are only computed when drawing
    inks = [
        rcParams["text.color"], rcParams["axes.labelcolor"], rcParams["axes.edgecolor"], rcParams["xtick.color"],
        rcParams["ytick.color"],
    ]  # fmt: skip
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        change(patch, "facecolor", ["white"], "none")
    for kind, name in _INKED:
        for artist in figure.findobj(kind):
            change(artist, name, inks, ON_ANY_PAGE)
    try:
        yield
    finally:
        for artist, name, old in before:
            getattr(artist, f"set_{name}")(old)


def unit_of(nbytes: int) -> tuple[str, int]:
    """The unit of an axis of bytes with this maximum, and the unit's size."""
    units = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
    return next(((unit, size) for unit, size in units if nbytes >= size), ("B", 1))
