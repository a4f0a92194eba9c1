"""Changes to a user's source, as text that displays as a diff."""

from __future__ import annotations


class Diff(str):
    """A diff, after comments. A notebook shows it coloured, and everything else as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_markdown_(self) -> str:
        longest = max((len(run) for run in "".join(c if c == "`" else " " for c in self).split()), default=0)
        fence = "`" * max(longest + 1, 3)
        return f"{fence}diff\n{self}\n{fence}"
