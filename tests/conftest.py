"""What all tests share: a CPU backend of eight devices, JAX's cache on disk, and a process that does not fill up."""

import ctypes
import gc
import os
import re
import signal
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
flags = ["--xla_force_host_platform_device_count=8"]
if "JAXVIZ_TESTS_OPTIMIZED" not in os.environ:  # `make test-all` has XLA optimize as it does for a user
    # What LLVM makes of a program takes two thirds of the time of compiling it. The HLO, which memory and costs are read off, stays as it is.
    flags += ["--xla_backend_optimization_level=0"]
    if version("jaxlib").startswith("0.10."):  # later ones do not know the flag, and XLA ends the process then
        flags += ["--xla_cpu_use_fusion_emitters=false"]
given = os.environ.get("XLA_FLAGS", "").split()
# A worker has been given its parent's, and JAX's cache goes by them.
os.environ["XLA_FLAGS"] = " ".join([*(flag for flag in flags if flag not in given), *given])
# Compiling takes most of the time of the tests. Both workers, the processes that they start and the next run read what one has compiled.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

MEMORY = Path("/proc/self/statm")
MOST_BYTES = 7 << 28
ROOM = 1 << 28
"""By how much a process grows before it is emptied again, where it stays above the limit: what is compiled has to be read again each time."""
_done, _most = 0, MOST_BYTES


def pytest_configure(config):
    """Hypothesis makes up the same programs each time, unless `--hypothesis-profile random` is asked for."""
    # A shell has what it runs in the background ignore interrupts, which some tests raise.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import settings

        settings.register_profile("random", derandomize=False, print_blob=True, max_examples=60)
        settings.register_profile("fixed", derandomize=True, max_examples=12)
        settings.load_profile("fixed")


def pytest_ignore_collect(collection_path, config):
    """A file all of whose tests are left out by their mark is not imported: the libraries of some take seconds."""
    chosen = config.getoption("markexpr")
    if not re.fullmatch(r"not \w+( and not \w+)*", chosen) or collection_path.suffix != ".py":
        return None
    of_all = re.search(r"^pytestmark = .*", collection_path.read_text(), re.MULTILINE)
    left_out = re.findall(r"not (\w+)", chosen)
    return bool(of_all and re.search(rf"pytest\.mark\.({'|'.join(left_out)})\b", of_all[0])) or None


def pytest_collection(session):
    from shared_context import share_contexts

    share_contexts()
    gc.disable()


def pytest_collection_finish(session):
    """What has been imported stays: the garbage collector need not look through all of it again and again, nor so often."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)  # it took an eighth of the time


def pytest_runtest_teardown():
    """Ends what watches, and frees what has been compiled before there is too much of it, and gives the memory back, which the C library would keep.

    Each executable takes memory maps of its own, too, of which Linux gives a process 65,530.
    """
    global _done, _most
    # A report of what was compiled may have had the process watched from then on, and the tests after it with it.
    watching = sys.modules.get("jaxviz.runtime.compilations")
    if watching and watching.is_watching():
        watching.stop_all()
        watching.LOG.clear()
    _done += 1
    if _done % 10 or not MEMORY.exists() or _resident() < _most:
        return
    _empty()
    _most = max(MOST_BYTES, _resident() + ROOM)


def _empty():
    """Frees what has been compiled, traced and derived; the collector need not look at what is left any more."""
    import jax

    import jaxviz

    jaxviz.clear_caches()
    jax.clear_caches()
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim:
        trim(0)


@pytest.fixture(scope="module")
def little_to_collect():
    """Little is on the heap: for tests that collect garbage often, which takes seconds of what other tests have left there."""
    _empty()


def _resident():
    """Bytes of memory that this process has."""
    return int(MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def nothing_from_disk():
    """JAX compiles all that it is asked for: for tests that count compilations or time them."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX asks once in a process whether there is a cache
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture
def own_state():
    """No state of this thread's: `jax.extend.core.jaxpr_as_fun` leaves one, by which JAX itself checks for no NaNs in it any more."""
    from jax._src import api, config

    api._post_hook_state.swap_local(config.config_ext.unset)
