"""Reports in several threads, in coroutines, in processes with one cache, and interrupted at random: each call answers
as it does alone."""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from interrupted_calls import ALONE, CALLS, forget, loss_of

import jaxviz

pytestmark = pytest.mark.slow

THREADS, SECONDS = 8, 120
HERE = Path(__file__).parent


def process(*args, **env):
    """Another Python that starts with this checkout."""
    path = os.pathsep.join(
        filter(None, [str(Path(jaxviz.__file__).parents[1]), str(HERE), os.environ.get("PYTHONPATH")])
    )
    whole = {**os.environ, "PYTHONPATH": path, **env}
    return subprocess.Popen(
        [sys.executable, *args], env=whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow(sweep=True)
def test_threads_get_every_report():
    """All begin with empty caches, each thread with another report; pairs of them ask for the same function."""
    forget()
    functions = [loss_of(layers) for layers in (0, 1)]
    asked = [(name, f) for f in functions for name in CALLS if name not in ALONE]
    limit, stderr = sys.getrecursionlimit(), os.fstat(2)
    with ThreadPoolExecutor(THREADS) as pool:
        found = [pool.submit(CALLS[name], f) for name, f in [*asked, *asked]]
        texts = [f.result(SECONDS) for f in found]
    assert (sys.getrecursionlimit(), os.fstat(2).st_ino) == (limit, stderr.st_ino)
    forget()
    expected = [CALLS[name](f) for name, f in asked]
    for (name, _), alone, *together in zip(asked, expected, texts[: len(asked)], texts[len(asked) :], strict=True):
        assert together == [alone, alone], name


def test_coroutines_get_reports_while_the_loop_goes_on():
    forget()
    f = loss_of(2)
    names = ["compiled_memory", "collectives", "memory.compare", "lint"]

    async def reports():
        ticks, is_over = 0, False

        async def tick():
            nonlocal ticks
            while not is_over:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        found = await asyncio.gather(*(asyncio.to_thread(CALLS[name], f) for name in names))
        is_over = True
        await ticking
        return found, ticks

    found, ticks = asyncio.run(reports())
    assert found == [CALLS[name](f) for name in names]
    assert ticks > 10


ALL = """
import sys, warnings
from interrupted_calls import CALLS, loss_of
warnings.simplefilter("ignore")
for name in ("compiled_memory", "collectives", "compile_cost", "memory.compare", "donation"):
    print(CALLS[name](loss_of(1)), flush=True)
"""


def reports_of(child):
    out, err = child.communicate(timeout=SECONDS)
    assert child.returncode == 0, err
    return out


@pytest.fixture(scope="module")
def without_a_cache():
    return reports_of(process("-c", ALL, JAX_ENABLE_COMPILATION_CACHE="false"))


@pytest.mark.slow(sweep=True)
def test_two_kernels_share_a_cache_folder(tmp_path, without_a_cache):
    start = lambda: process("-c", ALL, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "cache"))
    both = [start() for _ in range(2)]
    assert [reports_of(child) for child in both] == [without_a_cache] * 2
    assert os.listdir(tmp_path / "cache")
    assert reports_of(start()) == without_a_cache


@pytest.mark.slow(sweep=True)
def test_a_cache_folder_that_cannot_be_written(without_a_cache):
    folder = os.path.join(os.sep, "proc", "no", "cache")
    assert reports_of(process("-c", ALL, JAX_COMPILATION_CACHE_DIR=folder)) == without_a_cache


@pytest.mark.slow(sweep=True)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_was_interrupted_at_random_answers_next_time(name):
    child = process(HERE / "interrupted_calls.py", name, "4")
    out, err = child.communicate(timeout=10 * SECONDS)
    *wrong, last = out.splitlines()
    assert (wrong, child.returncode) == ([], 0), err
    assert int(last.split()[0]) > 0
