"""One MLIR context for many programs: JAX creates one for each program that it lowers, with all dialects, which takes a
tenth of the tests' time."""

from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir

PROGRAMS_OF_A_CONTEXT = 500
"""A context keeps every attribute and constant forever, so it is replaced now and then."""


def share_contexts():
    """Makes JAX use a shared context for lowering from now on, in this process."""
    make, context, programs = mlir.make_ir_context, None, 0

    def shared():
        nonlocal context, programs
        if (
            ir.Context.current is not None
            # A rule may compute while its program is lowered: in the same context, the new module would be inserted
            # into the old one.
        ):
            return make()
        if programs % PROGRAMS_OF_A_CONTEXT == 0:
            context = make()
        programs += 1
        return context

    mlir.make_ir_context = shared
