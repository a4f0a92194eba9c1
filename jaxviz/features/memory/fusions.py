"""What XLA computes where it is read, or in the memory of an operand, and what it copies."""

from __future__ import annotations

from typing import NamedTuple

from jaxviz.higher_order import is_loop, of
from jaxviz.ir import compat
from jaxviz.ir.primitives import ELEMENTWISE, is_view, plain, shows_operand
from jaxviz.ir.sharing import kept_with
from jaxviz.ir.syntax import Atom, Equation, Literal, Program
from jaxviz.report.tables import nbytes

_WRITES_INTO = ("update", "scattering", "scattered arithmetic", "sorting", "factorization", "solving", "all-reduce")
"""Operations that change an operand, or a part of it, in place."""


class Does(NamedTuple):
    """What an operation does in memory, which is the same for all its equations: whether its result is a view if there
    is one operand, is computed where it is read, or may take an operand's memory; whether it is a loop, or has its
    program in its place; and whether it has an effect."""

    shows_operand: bool
    is_free: bool
    may_write: bool
    adds_to_slice: bool
    is_loop: bool
    is_opened: bool
    has_effects: bool

    @staticmethod
    def of(e: Equation) -> Does:
        return Does(
            shows_operand(e), plain(e.primitive.name).is_free, may_write_into_an_operand(e), adds_to_slice(e),
            is_loop(e), bool(e.programs) and of(e).kind in ("call", "devices"), bool(e.effects),
        )  # fmt: skip


def may_write_into_an_operand(e: Equation) -> bool:
    """Whether the result may reuse the memory of an operand with its size that is last read there."""
    if len(e.outvars) != 1 or e.programs or compat.written_refs(e.effects):
        return False
    return is_elementwise(e) or e.primitive.name == "transpose" or plain(e.primitive.name).kind in _WRITES_INTO


def adds_to_slice(e: Equation) -> bool:
    """Whether XLA copies the slice of a reference to which something is added; it scatters at indices in an array."""
    if e.primitive.name != "addupdate":
        return False
    ref, added, *indices = (a.aval for a in e.invars)
    return nbytes(added) < nbytes(ref) and all(a.shape == () for a in indices)


@kept_with
def only_added(program: Program) -> frozenset[Atom]:
    """Slices in arrays of zeros that are only added to something, as cotangents of what is read by index: XLA adds the
    slice in place, or computes the zeros around it where it adds."""
    zeros: set[Atom] = set()
    found: set[Atom] = set()
    for e in program.equations:
        name, operands = e.primitive.name, e.invars
        if name == "broadcast_in_dim" and _is_zero(operands[0]):
            zeros.add(e.outvars[0])
        elif (name == "pad" and _is_zero(operands[1])) or (name == "dynamic_update_slice" and operands[0] in zeros):
            found.add(e.outvars[0])
        if name not in ("add", "add_any"):
            found.difference_update(operands)
        elif found.issuperset(operands):
            found.add(e.outvars[0])
    return frozenset(found.difference(program.outvars))


def _is_zero(a: Atom) -> bool:
    return isinstance(a, Literal) and a.aval.shape == () and not compat.is_float0(a.aval) and bool(a.val == 0)


def is_elementwise(e: Equation) -> bool:
    """Whether each element of the result needs one of each operand: they have its shape, or are numbers."""
    if plain(e.primitive.name).kind not in ELEMENTWISE:
        return False
    shape = getattr(e.outvars[0].aval, "shape", None)
    return all(getattr(a.aval, "shape", None) in (shape, ()) for a in e.invars)


def is_fused(e: Equation) -> bool:
    """Whether XLA reads its operands element by element, and so can compute them there."""
    if len(e.outvars) != 1 or e.programs:
        return False
    return is_view(e) or is_elementwise(e) or plain(e.primitive.name).kind == "reduction"
