"""`Picture`: a figure of matplotlib that a notebook shows; and what all pictures of reports have."""

from io import BytesIO

from matplotlib.figure import Figure

INK = "#222222"


class Picture(Figure):
    """A figure that draws itself as the output of a cell. IPython knows how to once pyplot is imported, which jaxviz does not do."""

    def _repr_png_(self) -> bytes:
        out = BytesIO()
        self.savefig(out, format="png", bbox_inches="tight")
        return out.getvalue()


def shortened(text: str, room: int, from_left: bool = False) -> str:
    if len(text) <= room:
        return text
    return "…" + text[len(text) - room + 1 :] if from_left else text[: room - 1] + "…"
