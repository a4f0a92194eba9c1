"""One MLIR context for many programs: JAX makes one for each program that it lowers, with all dialects, which takes a tenth of the tests' time."""

from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir

PROGRAMS_OF_A_CONTEXT = 500
"""A context keeps every attribute and constant that was ever in it, so it is replaced now and then."""


def share_contexts():
    """Has JAX lower into a shared context from now on, in this process."""
    make, context, programs = mlir.make_ir_context, None, 0

    def shared():
        nonlocal context, programs
        if (
            ir.Context.current is not None
        ):  # A rule computes while its program is lowered: in one context, the new module would go into the old one.
            return make()
        if programs % PROGRAMS_OF_A_CONTEXT == 0:
            context = make()
        programs += 1
        return context

    mlir.make_ir_context = shared
