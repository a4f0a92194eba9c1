"""A function without mutable references, with its arguments, where no derivative is compared with JAX's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxviz.derivation import Derivation, derive
from jaxviz.ir import compat
from jaxviz.runtime.references import on_values, uses_mutable_types

CLOSED_OVER = "a reference that is closed over"
"""The name of what is in one."""


@dataclass(frozen=True, eq=False)
class OnValues:
    """A function that takes what is in references, and whose last results are what is then in them.

    Args:
      derivation: of that function.
      inputs, names: of its arguments.
      written: the names of the references whose final values are its last results.
    """

    derivation: Derivation
    inputs: tuple[Any, ...]
    names: tuple[str, ...]
    written: tuple[str, ...]


def without_references(d: Derivation, inputs: Sequence[Any], names: Sequence[str]) -> OnValues:
    """A function, called with these arguments, without its references; it is differentiated in the same arguments."""
    program, closed_over = on_values(d.primal)
    parts_of = compat.arrays_in if uses_mutable_types(d.primal) else compat.contents
    every = (*((x, CLOSED_OVER, False) for x in closed_over), *zip(inputs, names, d.nonzeros, strict=True))
    parts = [(part, name, nonzero) for x, name, nonzero in every for part in parts_of(x)]
    written = [
        (name, compat.is_live_ref(x)) for x, name, _ in every if compat.is_written_in_place(x) for _ in parts_of(x)
    ]
    derived = derive(program, argnums=[i for i, (_, _, nonzero) in enumerate(parts) if nonzero])
    n_results = d.n_results or len(d.primal.outvars)
    assert len(program.outvars) == len(d.primal.outvars) + len(written)
    return OnValues(
        replace(derived, n_results=n_results, out_tree=d.out_tree),
        tuple(x for x, _, _ in parts), tuple(name for _, name, _ in parts),
        tuple(name for name, _ in sorted(written, key=lambda w: not w[1])),
    )  # fmt: skip
