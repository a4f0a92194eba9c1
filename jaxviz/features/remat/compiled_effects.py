"""Which checkpoints, and which values of `prevent_cse`, have no effect on the gradient that XLA compiles."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from jaxviz.analysis.checkpoints import NoEffect
from jaxviz.analysis.devices import platform_of
from jaxviz.analysis.walk import defined_at, location_of
from jaxviz.derivation import Derivation
from jaxviz.features.remat.left_out import with_prevent_cse, without_checkpoints
from jaxviz.features.remat.verify import CompiledFigures, compiled_figures, compiled_gradient
from jaxviz.features.remat.without_effect import body_of, checkpoints_by_line
from jaxviz.ir.stack import usual_stack


@usual_stack
def undone_by_xla(derivation: Derivation) -> Iterator[NoEffect]:
    """The checkpoints without which XLA compiles the same, and the values of `prevent_cse` that change nothing.

    It compiles the gradient twice more for the checkpoints of each line.
    """
    if derivation.no_reverse_mode is not None:
        return
    compiled = lambda program: _what(compiled_gradient(derivation, program))
    whole, platform = compiled(derivation.primal), platform_of(derivation)
    for checkpoints, _ in checkpoints_by_line(derivation):
        body = body_of(checkpoints[0])
        at = location_of(checkpoints[0]) or defined_at(body)
        prevents = checkpoints[0].params["prevent_cse"]
        if compiled(without_checkpoints(derivation, checkpoints).derivation.primal) == whole:
            loop = "put it around the body of a jax.lax.scan over the layers."
            yield NoEffect(
                "checkpoint-without-effect",
                f"XLA undoes the checkpoint of {body.name}: for {platform}, it compiles the same instructions without "
                "it.",
                f"XLA undoes the checkpoint of `{body.name}` on {platform}",
                f"leave out prevent_cse=False, or {loop}" if prevents is False else loop, at, 0, len(checkpoints),
            )  # fmt: skip
            continue
        if not isinstance(prevents, bool):  # one for each argument
            continue
        if compiled(with_prevent_cse(derivation.primal, dict.fromkeys(checkpoints, not prevents))) == whole:
            yield NoEffect(
                "", f"prevent_cse={prevents} of the checkpoint of {body.name} has no effect: for {platform}, XLA "
                f"compiles the same instructions with prevent_cse={not prevents}.",
                f"prevent_cse of the checkpoint of `{body.name}` has no effect on {platform}",
                "write prevent_cse=False in the body of a loop; otherwise leave it out.", at, 0, len(checkpoints),
            )  # fmt: skip


def _what(compiled: Any) -> tuple[Counter[str], CompiledFigures]:
    """How often each instruction is in a compiled program, by its operation and types, and its memory; names and places
    do not count."""
    lines = (line for line in (compiled.as_text() or "").splitlines()[1:] if " = " in line and "(" in line)
    plain = (re.sub(r", (metadata|backend_config|frontend_attributes)=.*", "", line).strip() for line in lines)
    return Counter(re.sub(r"%[\w.-]+", "%", line) for line in plain), compiled_figures(compiled)
