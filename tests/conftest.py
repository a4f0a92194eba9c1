"""Shared by all tests: a CPU backend with eight devices, a compilation cache, and a limit on the process's memory."""

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
if "JAXVIZ_TESTS_OPTIMIZED" not in os.environ:  # `make test-all` uses XLA's defaults
    # LLVM takes two thirds of the compile time. The HLO, from which memory and costs are read, stays the same.
    flags += ["--xla_backend_optimization_level=0"]
    if version("jaxlib").startswith("0.10."):  # later ones abort on the unknown flag
        flags += ["--xla_cpu_use_fusion_emitters=false"]
given = os.environ.get("XLA_FLAGS", "").split()
# A worker inherits its parent's flags, which are part of the cache's key.
os.environ["XLA_FLAGS"] = " ".join([*(flag for flag in flags if flag not in given), *given])
# Compiling takes most of the tests' time, so workers, the processes that they start and the next run share a cache.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# jsonschema, which nbformat imports, checks addresses with a grammar, if there is one, which takes each worker three
# seconds to build. No test has such a schema.
sys.modules.setdefault("rfc3987_syntax", None)

pytest.register_assert_rewrite("laws", "transcripts")

MEMORY = Path("/proc/self/statm")
# Clearing the caches takes ten seconds, and what is derived and compiled anew more.
MOST_BYTES = min(7 << 29, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 6) if MEMORY.exists() else 7 << 28
ROOM = 1 << 28
"""How much a process that stays above the limit grows before its caches are cleared again, as refilling takes time."""
_done, _most = 0, MOST_BYTES


def pytest_configure(config):
    """Hypothesis generates the same programs each time, unless `--hypothesis-profile random` is given."""
    # Shells make background processes ignore interrupts, which some tests raise.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import settings

        settings.register_profile("random", derandomize=False, print_blob=True, max_examples=60)
        settings.register_profile("fixed", derandomize=True, max_examples=8)
        settings.load_profile("fixed")


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable():
    """Escapes names of files that are not in UTF-8: a worker that cannot send a failure stops, and does not say why."""
    return _sendable((yield))


def _sendable(value):
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode("utf-8")
        case dict():
            return {k: _sendable(v) for k, v in value.items()}
        case list() | tuple():
            return type(value)(map(_sendable, value))
    return value


def pytest_ignore_collect(collection_path, config):
    """Does not import a file whose tests are all deselected by their mark: importing some libraries takes seconds."""
    chosen = config.getoption("markexpr")
    mark = r"[a-z]+(?:\(sweep=True\))?"
    if not re.fullmatch(rf"not {mark}( and not {mark})*", chosen) or collection_path.suffix != ".py":
        return None
    of_all = re.search(r"^pytestmark = .*", collection_path.read_text(), re.MULTILINE)
    marks = re.findall(rf"pytest\.mark\.({mark})", of_all[0]) if of_all else []
    return any(m.startswith(left_out) for m in marks for left_out in re.findall(rf"not ({mark})", chosen)) or None


def pytest_collection(session):
    from shared_context import share_contexts

    share_contexts()
    gc.disable()


def pytest_collection_finish(session):
    """Imported objects stay alive, so the garbage collector skips them, and runs less often."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 1_000)


def pytest_runtest_teardown():
    """Stops watches, and frees compiled programs before they take too much memory, which is then returned to the
    system.

    Each executable also takes memory maps, of which Linux allows a process 65,530.
    """
    global _done, _most
    # A report of compilations watches the process from then on, which would affect later tests.
    watching = sys.modules.get("jaxviz.runtime.compilations")
    if watching and watching.is_watching():
        watching.stop_all()
        watching.LOG.clear()
    _done += 1
    if _done % 10:
        return
    gc.freeze()  # most of it is in caches, and the collector took a tenth of the tests' time
    if not MEMORY.exists() or _resident() < _most:
        return
    _empty()
    _most = max(MOST_BYTES, _resident() + ROOM)


def _empty():
    """Frees everything compiled, traced and derived; the collector skips what is left."""
    import jax

    import jaxviz

    jaxviz.clear_caches()
    jax.clear_caches()
    gc.unfreeze()
    while gc.collect():  # what finalizers held is found only then, and what is frozen is never found
        pass
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in glibc
    if trim:
        trim(0)


@pytest.fixture(scope="module")
def little_to_collect():
    """A small heap, for tests that collect garbage often: looking at what other tests have left takes seconds."""
    gc.freeze()


def _resident():
    """The resident memory of this process in bytes."""
    return int(MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def nothing_from_disk():
    """Disables the compilation cache, for tests that count or time compilations."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX checks only once per process whether there is a cache
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture
def own_state():
    """Resets a setting of this thread that `jax.extend.core.jaxpr_as_fun` leaves behind; it disables NaN checks."""
    from jax._src import api, config

    api._post_hook_state.swap_local(config.config_ext.unset)
