"""Changes to a user's source, as text that displays as a diff."""

from __future__ import annotations

from html import escape

from jaxviz.report.inks import ADDED, REMOVED


class Diff(str):
    """A diff, after comments. A notebook shows it coloured, and everything else as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        lines = "".join(
            f'<span style="display: block; {_style(line)}">{escape(line) or " "}</span>'
            for line in self.removesuffix("\n").split("\n")
        )
        return f'<pre style="overflow-x: auto; white-space: pre; line-height: 1.4">{lines}</pre>'


def _style(line: str) -> str:
    if line.startswith("#"):
        return "white-space: pre-wrap"
    colour = ADDED if line.startswith("+") else REMOVED if line.startswith("-") else ""
    is_changed = colour and not line.startswith(("+++", "---"))
    return f"width: max-content; min-width: 100%{f'; background: {colour}' if is_changed else ''}"
