"""`Picture`: a figure of matplotlib that a notebook shows."""

from io import BytesIO

from matplotlib.figure import Figure


class Picture(Figure):
    """A figure that draws itself as the output of a cell. IPython knows how to once pyplot is imported, which jaxviz does not do."""

    def _repr_png_(self) -> bytes:
        out = BytesIO()
        self.savefig(out, format="png", bbox_inches="tight")
        return out.getvalue()
