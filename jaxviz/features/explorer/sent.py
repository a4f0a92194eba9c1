"""The texts that the explorer sends besides the view."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from jaxviz.page.texts import first_line, fit

if TYPE_CHECKING:
    from jaxviz.features.explorer.whatif import Switches


def as_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def code_of(switches: Switches, key: str) -> str:
    """The code for a setting, or why there is none."""
    try:
        code: str = fit(switches.code(key))
        return code
    except Exception as error:
        return f"# {first_line(error)}"


def without_memory(compiled: str) -> str:
    """A compiled program without everything that contains source expressions: the memory, the collectives, and the description of equal
    blocks."""
    made = json.loads(compiled)
    notes = made.get("notes", [])[1 if made.get("isBlock") else 0 :]
    return as_json({**made, "memory": None, "exchanges": None, "block": "", "notes": notes})
