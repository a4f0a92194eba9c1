"""Compilations are shared by all who request them, take turns, and outlast an interrupt, another thread, a fork and the
end of Python."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest

from jaxviz.runtime import stoppable
from jaxviz.runtime.stoppable import compiled_alone, compiled_by_jax, compiled_once

LONG = 30


@pytest.fixture(autouse=True)
def nothing_kept():
    stoppable.forget_compiled()
    yield
    stoppable.forget_compiled()


def lowered(number):
    return jax.jit(lambda x: x * number).lower(jnp.ones(3))


PROGRAM = lowered(2.0)


class Gate:
    """Work that says when it has begun, and ends when it may."""

    def __init__(self, result="compiled"):
        self.began, self.may_end, self.times = threading.Event(), threading.Event(), 0
        self.made = result

    def __call__(self):
        self.times += 1
        self.began.set()
        assert self.may_end.wait(LONG)
        if isinstance(self.made, Exception):
            raise self.made
        return self.made


def interrupted(work, began):
    """Interrupts the main thread, with a signal as the user does, once some work has begun."""

    def interrupt():
        assert began.wait(LONG)
        until(lambda: any(c.waiting for c in list(stoppable._known.values())))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt) as stopped:
        work()
    thread.join()
    return stopped.value


def until(found):
    end = time.monotonic() + LONG
    while not found():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("request_", [lambda w: compiled_once(PROGRAM, "", w), lambda w: compiled_alone("timed", w)])
def test_an_interrupt_ends_the_waiting_and_the_next_request_goes_on_with_it(request_):
    gate = Gate()
    error = interrupted(lambda: request_(gate), gate.began)
    assert stoppable.GOES_ON in error.__notes__
    interrupted(lambda: request_(gate), gate.began)
    gate.may_end.set()
    assert request_(gate) == "compiled"
    assert gate.times == 1


def test_an_interrupt_anywhere_leaves_nothing_that_is_waited_for_in_vain():
    """Python handles a signal where a function begins, and where a call returned: here at each of these in turn."""
    n_interrupted = 0
    for place in range(1, 200):
        n = 0

        def interrupt(frame, event, _, place=place):
            nonlocal n
            if frame.f_code.co_filename == stoppable.__file__ and event in ("call", "c_return"):
                n += 1
                if n == place:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        stoppable.forget_compiled()
        sys.setprofile(interrupt)
        try:
            compiled_once(PROGRAM, "", lambda: 7)
            break  # there are no more places
        except KeyboardInterrupt:
            n_interrupted += 1
        finally:
            sys.setprofile(None)
        with ThreadPoolExecutor(1) as pool:  # with a limit
            assert pool.submit(compiled_once, PROGRAM, "", lambda: 7).result(LONG) == 7
            assert pool.submit(compiled_alone, "timed", lambda: 8).result(LONG) == 8
    assert n_interrupted > 20
    until(lambda: not stoppable._turns.line)


def test_threads_that_request_one_program_share_its_compilation():
    gate = Gate()
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(compiled_once, PROGRAM, "", gate) for _ in range(8)]
        until(lambda: sum(len(c.waiting) for c in stoppable._known.values()) == 8)
        gate.may_end.set()
        assert [f.result(LONG) for f in found] == ["compiled"] * 8
    assert gate.times == 1


def test_work_that_is_timed_runs_alone():
    running, most = [], []

    def work(kind):
        running.append(kind)
        most.append(tuple(running))
        time.sleep(0.01)
        running.remove(kind)

    requests = [lambda i=i: compiled_alone(f"timed {i}", lambda: work("alone")) for i in range(6)]
    requests += [lambda i=i: compiled_once(PROGRAM, f"way {i}", lambda: work("beside")) for i in range(12)]
    with ThreadPoolExecutor(8) as pool:
        for f in [pool.submit(requests[i * 5 % 18]) for i in range(18)]:
            f.result(LONG)
    assert most.count(("alone",)) == 6
    assert all(set(some) == {"beside"} for some in most if some != ("alone",))


def test_others_are_compiled_while_one_takes_long():
    gate = Gate()
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(compiled_once, PROGRAM, "", gate)
        assert gate.began.wait(LONG)
        assert compiled_once(PROGRAM, "another", lambda: 3) == 3
        gate.may_end.set()
        assert long.result(LONG) == "compiled"


def test_what_nobody_waits_for_when_its_turn_comes_does_not_begin():
    first, second = Gate(), Gate()
    with ThreadPoolExecutor(1) as pool:
        alone = pool.submit(compiled_alone, "first", first)
        assert first.began.wait(LONG)
        is_queued = threading.Event()
        threading.Thread(target=lambda: (until(lambda: len(stoppable._turns.line) == 2), is_queued.set())).start()
        interrupted(lambda: compiled_once(PROGRAM, "", second), is_queued)
        first.may_end.set()
        alone.result(LONG)
    until(lambda: not stoppable._turns.line)
    assert second.times == 0
    second.may_end.set()
    assert compiled_once(PROGRAM, "", second) == "compiled"


def test_an_error_reaches_all_who_wait_and_is_not_kept():
    gate = Gate(ValueError("no such layout"))
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(compiled_once, PROGRAM, "", gate) for _ in range(2)]
        until(lambda: sum(len(c.waiting) for c in stoppable._known.values()) == 2)
        gate.may_end.set()
        for f in found:
            with pytest.raises(ValueError, match="no such layout"):
                f.result(LONG)
    assert compiled_once(PROGRAM, "", lambda: 5) == 5


def test_the_latest_results_are_kept_and_those_under_way():
    gate = Gate()
    interrupted(lambda: compiled_once(PROGRAM, "long", gate), gate.began)
    for i in range(20):
        compiled_once(PROGRAM, f"way {i}", lambda i=i: i)
    assert compiled_once(PROGRAM, "way 19", lambda: None) == 19
    assert compiled_once(PROGRAM, "way 0", lambda: "again") == "again"
    gate.may_end.set()
    assert compiled_once(PROGRAM, "long", None) == "compiled"


def test_programs_that_differ_only_in_how_they_are_called_are_compiled_separately():
    x, y = jnp.ones(3), jnp.ones(3)
    functions = [lambda x, y: x + 1, lambda x, y: y + 1, lambda x, y: {"a": x + 1}, lambda x, y: x + 1]
    found = [compiled_by_jax(jax.jit(f).lower(x, y)) for f in functions]
    found.append(compiled_by_jax(jax.jit(functions[0], donate_argnums=1).lower(x, y)))
    assert len(set(map(id, found))) == len(found)
    assert [c.input_shardings[0][0] is None for c in found[:2]] == [False, True]
    assert set(found[2](x, y)) == {"a"}
    assert compiled_by_jax(jax.jit(functions[1]).lower(x, y)) is found[1]


def test_caches_can_be_cleared_while_something_is_compiled():
    gate = Gate()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(compiled_once, PROGRAM, "", gate)
        assert gate.began.wait(LONG)
        stoppable.forget_compiled()
        gate.may_end.set()
        assert found.result(LONG) == "compiled"


# --- processes
# ---------------------------------------------------------------------------------------------------------

STARTED = """
import os, signal, sys, threading, time
import jax, jax.numpy as jnp
from jaxviz.runtime import stoppable
program = jax.jit(lambda x: x + 1).lower(jnp.ones(3))
began = threading.Event()

def slow():
    began.set()
    time.sleep(float(sys.argv[1]))
    print("compiled", flush=True)
    return "compiled"

threading.Thread(target=lambda: began.wait() and os.kill(os.getpid(), signal.SIGINT)).start()
try:
    stoppable.compiled_once(program, "", slow)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def process(code, *args, **options):
    full = [sys.executable, "-c", STARTED + textwrap.dedent(code), *map(str, args)]
    return subprocess.Popen(full, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.slow(sweep=True)
def test_python_ends_after_what_is_compiled():
    child = process("", 1)
    out, err = child.communicate(timeout=LONG)
    assert (out, err, child.returncode) == ("interrupted\ncompiled\n", "", 0)


@pytest.mark.slow
def test_a_second_interrupt_leaves_at_once():
    child = process("print('leaving', flush=True)", 2 * LONG)
    while child.stdout.readline() != "leaving\n":
        pass
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=LONG)
    assert child.returncode == 130
    assert "compiled" not in out
    assert "terminate called" not in err


@pytest.mark.slow(sweep=True)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_compiles_what_the_other_one_has_begun():
    child = process(
        """
        import warnings
        warnings.simplefilter("ignore")
        if os.fork() == 0:
            once = stoppable.compiled_once(program, "", lambda: "anew")
            print("forked", once, stoppable.compiled_alone("x", lambda: 1), flush=True)
            os._exit(0)
        os.wait()
        """,
        2,
    )
    out, err = child.communicate(timeout=LONG)
    assert (out, err) == ("interrupted\nforked anew 1\ncompiled\n", "")
