"""Compiling without JAX's cache on disk, and reading a compiled program from text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from jax.experimental.compilation_cache import compilation_cache

from jaxviz.ir.compat.private import _config, _xla_client


@contextlib.contextmanager
def compiled_afresh() -> Iterator[None]:
    """Within the context, XLA compiles everything in this thread: the cache on disk is neither read nor written."""
    try:
        with _config.enable_compilation_cache(False):
            compilation_cache.reset_cache()  # JAX checks only once per process whether there is a cache
            yield
    finally:
        compilation_cache.reset_cache()


def parsed_hlo(text: str) -> bytes:
    """Parses the text of a compiled program to XLA's message.

    Raises:
      RuntimeError, ValueError: it is not such a text.
    """
    parsed: bytes = _xla_client.hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    return parsed
