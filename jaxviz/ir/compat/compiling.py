"""Contexts for compiling and running without the user's settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from jaxviz.ir.compat.private import _api, _config


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
    """Within the context, a program is only taken from the user's cache on disk if its names and lines are also the
    same."""
    context: contextlib.AbstractContextManager[None] = _config.compilation_cache_include_metadata_in_key(True)
    return context
