"""Contexts for compiling and running without the user's settings, and XLA's text of a compiled program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from jax.experimental.compilation_cache import compilation_cache

from jaxviz.ir.compat.private import _api, _config, _xla_client


@contextlib.contextmanager
def nan_checks_off() -> Iterator[None]:
    """Disables `jax_debug_nans` and `jax_debug_infs` within the context."""
    if not (_config.debug_nans.value or _config.debug_infs.value):
        yield
        return
    state = _api._post_hook_state
    here = state.get_local()
    try:
        with _config.debug_nans(False), _config.debug_infs(False):
            yield
    finally:
        state.set_local(here)  # JAX would leave None, which hides the global setting


def compiled_with_its_own_metadata() -> contextlib.AbstractContextManager[None]:
    """Within the context, a program is only taken from the user's cache on disk if its names and lines are also the same."""
    context: contextlib.AbstractContextManager[None] = _config.compilation_cache_include_metadata_in_key(True)
    return context


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
