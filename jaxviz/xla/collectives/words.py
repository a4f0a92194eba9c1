"""How values are named in sentences."""

from __future__ import annotations

import re


def in_words(name: str) -> str:
    """`` `x @ w` ``; in "the cotangent of x @ w" or "exp in jax.nn.softmax(x)", only the expression is code."""
    phrase = re.match(
        r"(the cotangent of |a part of the cotangent of |\S+ (?:in|for) (?:the (?:cotangent|derivative) of )?)(.+)",
        name,
    )
    return f"{phrase[1]}`{phrase[2]}`" if phrase and "`" not in name else name if "`" in name else f"`{name}`"
