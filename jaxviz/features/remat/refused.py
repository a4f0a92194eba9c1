"""What must not be in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxviz.ir import compat
from jaxviz.ir.pretty import describe_equation
from jaxviz.ir.syntax import Equation, Operation
from jaxviz.transforms.jvp import jvp_rules


def refused_in_checkpoint(equations: Sequence[Equation]) -> str:
    """Why no checkpoint can be put around some equations, as a sentence without its end; '' if one can.

    JAX rejects some effects, differentiates what is inside forward, and repeats what is done to a reference that is not made inside.
    """
    made = {v for e in equations for v in e.outvars}
    for i, e in enumerate(equations):
        if compat.refused_in_remat(e.effects):
            return f"{describe_equation(e, i)} has an effect that JAX does not allow in a checkpoint"
        if any(compat.is_ref(a.aval) and a not in made for a in e.invars):
            return f"{describe_equation(e, i)} takes a mutable reference, which JAX would read and write in both passes"
        for inner in (e, *_inside(e)):
            if inner.primitive is compat.hi_primitive_p and (why := _no_forward_mode(inner.operation)):
                return f"{describe_equation(inner)} has no forward mode, which JAX needs in a checkpoint ({why})"
            if compat.leaves_out_tangents(inner.primitive):
                return f"{describe_equation(inner)} has a rule that returns None for a tangent, which JAX refuses in a checkpoint"
    return ""


def makes_references(equations: Sequence[Equation]) -> bool:
    """Whether some equations that can be in a checkpoint use references, which are then made by them: to read one again, JAX also writes it
    again, so that values cannot be chosen one by one."""
    return any(compat.touches_ref(inner.operation) for e in equations for inner in (e, *_inside(e)))


def _inside(equation: Equation) -> Iterator[Equation]:
    return (inner for _, program in equation.programs for _, inner in program.walk())


def _no_forward_mode(operation: Operation) -> str:
    """What JAX says if a hi-primitive has no JVP; '' if it has one."""
    try:
        jvp_rules(operation, tuple(not compat.is_float0(a.to_tangent_aval()) for a in operation.in_avals))
    except NotImplementedError as error:
        return str(error).splitlines()[0]
    return ""
