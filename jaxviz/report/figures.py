"""`Picture`: a figure of matplotlib that a notebook shows; and what all pictures of reports have."""

import html
from base64 import b64encode
from io import BytesIO

from matplotlib.figure import Figure

INK = "#222222"


class Picture(Figure):
    """A figure that draws itself as the output of a cell. IPython knows how to once pyplot is imported, which jaxviz does not do."""

    def _repr_png_(self) -> bytes:
        out = BytesIO()
        self.savefig(out, format="png", bbox_inches="tight")
        return out.getvalue()

    def to_html(self, text: str) -> str:
        """The picture within a page, with what it shows for who does not see it."""
        return f'<img alt="{html.escape(text)}" src="data:image/png;base64,{b64encode(self._repr_png_()).decode()}">'


def unit_of(nbytes: int) -> tuple[str, int]:
    """The unit that an axis of bytes up to so many has, and its size."""
    units = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
    return next(((unit, size) for unit, size in units if nbytes >= size), ("B", 1))
