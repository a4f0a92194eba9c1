"""One MLIR context for many programs: JAX makes one, with all its dialects, for each that it lowers, which takes a tenth of the time of the tests."""

from jax._src.interpreters import mlir

PROGRAMS_OF_A_CONTEXT = 500
"""A context keeps every attribute and constant that was ever in it, so it is replaced now and then."""


def share_contexts():
    """Has JAX lower into a shared context from now on, in this process."""
    make, context, programs = mlir.make_ir_context, None, 0

    def shared():
        nonlocal context, programs
        if programs % PROGRAMS_OF_A_CONTEXT == 0:
            context = make()
        programs += 1
        return context

    mlir.make_ir_context = shared
