"""`show`: a program of the small engine as text."""

from __future__ import annotations

from typing import Any

import jax


def show(program: Any) -> str:
    """The program as text, a line for each equation."""
    names: dict[Any, str] = {}

    def name(a: Any) -> str:
        if not hasattr(a, "value"):
            return names.setdefault(a, f"{'abcdefghijklmnopqrstuvwxyz'[len(names) % 26]}{len(names) // 26 or ''}")
        is_number = a.shape == () and not (isinstance(a.value, jax.core.Tracer) or hasattr(a.value, "recording"))
        return f"{float(a.value):g}" if is_number else f"<{'×'.join(map(str, a.shape))}>"

    def typed(a: Any) -> str:
        return f"{name(a)}:{list(a.shape)}" if not hasattr(a, "value") else name(a)

    lines = [f"({', '.join(map(typed, program.inputs))})"]
    for e in program.equations:
        params = ", ".join(f"{k}={v}" for k, v in e.params.items() if k not in ("body", "branches"))
        call = f"{e.op}{f'[{params}]' if params else ''} {' '.join(map(name, e.inputs))}"
        lines.append(f"  {' '.join(map(typed, e.outputs))} = {call}")
    return "\n".join([*lines, f"→ ({', '.join(map(name, program.outputs))})"])
