"""What all tests share: a CPU backend of eight devices, and a process that does not fill up."""

import gc
import os
import re
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

MAPS = Path("/proc/self/maps")
_done = 0


def pytest_ignore_collect(collection_path, config):
    """A file all of whose tests are left out by their mark is not imported: the libraries of some take seconds."""
    chosen = config.getoption("markexpr")
    if not re.fullmatch(r"not \w+( and not \w+)*", chosen) or collection_path.suffix != ".py":
        return None
    of_all = re.search(r"^pytestmark = .*", collection_path.read_text(), re.MULTILINE)
    left_out = re.findall(r"not (\w+)", chosen)
    return bool(of_all and re.search(rf"pytest\.mark\.({'|'.join(left_out)})\b", of_all[0])) or None


def pytest_collection(session):
    gc.disable()


def pytest_collection_finish(session):
    """What has been imported stays: the garbage collector need not look through all of it again and again."""
    gc.enable()
    gc.collect()
    gc.freeze()


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
