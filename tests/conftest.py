"""What all tests share: a CPU backend of eight devices, and a process that does not fill up."""

import gc
import os
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

MAPS = Path("/proc/self/maps")
_done = 0


def pytest_runtest_teardown():
    """Frees what has been compiled before there is too much of it.

    Each executable takes memory maps of its own, of which Linux gives a process 65,530. Thousands of tests in one process come near.
    """
    global _done
    _done += 1
    if _done % 50 or not MAPS.exists() or MAPS.read_bytes().count(b"\n") < 12_000:
        return
    import jax

    import jaxviz

    jaxviz.clear_caches()
    jax.clear_caches()
    gc.collect()


@pytest.fixture
def own_state():
    """No state of this thread's: `jax.extend.core.jaxpr_as_fun` leaves one, by which JAX itself checks for no NaNs in it any more."""
    from jax._src import api, config

    api._post_hook_state.swap_local(config.config_ext.unset)
