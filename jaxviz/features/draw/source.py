"""Pictures as `graphviz.Source`, for those who work with the package `graphviz`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import graphviz

if TYPE_CHECKING:
    from jaxviz.features.draw.drawing import Drawing


class Dot(graphviz.Source):  # type: ignore[misc]
    """A program in Graphviz's dot language: a `graphviz.Source`. Made by `to_dot`.

    >>> picture = jaxviz.to_dot(loss, params, x)
    >>> print(picture.source)
    digraph { ...
    >>> picture.render("loss", format="pdf")
    'loss.pdf'
    """

    def __init__(self, drawing: Drawing):
        super().__init__(drawing.source)
        self.drawing = drawing

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None, **_: Any) -> dict[str, str]:
        return {"text/html": self.drawing._repr_html_(), "text/plain": str(self.drawing)}
