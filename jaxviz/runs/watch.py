"""Watches a process: each compilation is noted in its folder as soon as it is over, and the function is analysed in a
child process, which the program and its output do not notice.

The child is forked where JAX has compiled, since a function cannot be sent to another process. It traces the function
again and runs nothing; what the user's Python does meanwhile stays in the child, and what it prints goes nowhere.
Children take turns, so that the job loses at most one core, and give up when the budget is spent.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from jaxviz.environments.facts import NotKnown
from jaxviz.environments.gather import environment
from jaxviz.ir import compat
from jaxviz.ir.errors import message_of
from jaxviz.runs.facts import (
    COMPILATIONS,
    PROCESS,
    PROCESS_FILE,
    PROGRAM,
    PROGRAMS,
    CallSite,
    CompiledOnce,
    ProcessFacts,
    RunProgram,
    XlaBytes,
    append,
    changed,
)
from jaxviz.runs.page import write_page
from jaxviz.runs.programs import AbstractCall, analyse, name_of
from jaxviz.runs.report import RunReport, show
from jaxviz.runs.start import BUDGET, chain, folder_of_process
from jaxviz.runs.steps import StepMarks
from jaxviz.runtime import compilations
from jaxviz.runtime.compilations import Compilation, definition_of, owner_of
from jaxviz.xla.compilations.report import nearest
from jaxviz.xla.live_memory.report import live, process_nbytes
from jaxviz.xla.out_of_memory.reading import OomText, read_oom
from jaxviz.xla.out_of_memory.start import text_of

_SPENT = "analysis.seconds"
"""The file with the seconds that the analysis of a process has taken; children lock it, so that they take turns."""
_POLL = 0.02
_STUCK = 3.0
"""The seconds without work after which a child is stuck."""
_LATER = "it computes values while it is traced, so that it can only be analysed when the run is over"


_Left = tuple[int, Compilation, AbstractCall, Any]
"""The number of a program, its compilation, its call, and what XLA has compiled."""


class RunWatch:
    """What is noted of this process.

    Args:
      folder: of the process, in that of the run.
      script: the name of what runs.
      budget: the seconds that the analysis of functions may take, all together.
      source: whether the page has the user's source files.
    """

    def __init__(self, folder: Path, script: str, budget: float, source: bool = False):
        self.folder, self.budget, self.source = folder, (budget := float(budget)), source
        versions = environment()
        flags = {name: value for name, value in versions.flags.items() if not re.search(r"[/\\:]", value)}  # no paths
        self.process = ProcessFacts(script, os.getpid(), time.time(), replace(versions, flags=flags), budget=budget)
        self.steps = StepMarks()
        self.n_programs = 0
        self._earlier: dict[Any, list[Compilation]] = {}
        self._seen = set[Any]()
        self._functions: dict[int, int] = {}
        self._numbers: dict[Compilation | None, int] = {}
        self._sizes: dict[int, int | None] = {}
        self._left: list[_Left] = []
        self._ahead: dict[int, AbstractCall] = {}
        (folder / PROGRAMS).mkdir()
        (folder / _SPENT).write_text("0")
        self._write()

    def start(self) -> None:
        self._compilations = compilations.start()
        compilations.hear_phases(self._heard)
        self.steps.start()

    def finish(self, error: BaseException | None = None) -> Path | None:
        """Waits for the analysis, at most until the budget is spent, and writes the page; None in a process that the
        user has forked.

        Args:
          error: which ended the run.
        """
        if os.getpid() != self.process.pid:
            return None
        compilations.hear_phases(None)
        compilations.stop(self._compilations)
        self.steps.stop()
        seconds, problems = time.time() - self.process.began, compilations.failures()
        held = live() if self.process.backend else None
        self.process = replace(
            self.process, seconds=seconds, problems=problems, live=held, ran_out=None if error is None else _oom(error)
        )
        self._write()
        with contextlib.suppress(KeyboardInterrupt):
            self._wait()
            self._analyse_left()
            self.process = replace(self.process, analysis=float((self.folder / _SPENT).read_text()))
            self._write()
        return write_page(self.folder.parent)

    def _wait(self) -> None:
        if not hasattr(os, "fork"):
            return
        end = time.monotonic() + self.budget
        while time.monotonic() < end and any(not self._is_over(n + 1) for n in range(self.n_programs)):
            time.sleep(_POLL)
        with (self.folder / _SPENT).open() as spent:  # the last child writes what the page shows
            while time.monotonic() < end and not _is_free(spent):
                time.sleep(_POLL)

    def _analyse_left(self) -> None:
        """Analyses here, since the program is over, what the children could not."""
        for number, c, call, executable in self._not_done():
            spent, began = float((self.folder / _SPENT).read_text()), time.monotonic()
            with _silent():
                self._analyse_within(self.budget - spent, number, c, call, executable)
            (self.folder / _SPENT).write_text(f"{spent + time.monotonic() - began:.3f}")

    def _not_done(self) -> list[_Left]:
        """What children have not analysed yet, or could not. Nothing else is held, so that arrays over which the
        functions close are freed as without a watch."""
        done = lambda path: path.exists() and _LATER not in path.read_text(encoding="utf-8")
        self._left = [left for left in self._left if not done(self.folder / PROGRAMS / f"{left[0]}.json")]
        return self._left

    def _is_over(self, number: int) -> bool:
        return (self.folder / PROGRAMS / f"{number}.json").exists()

    def _write(self) -> None:
        self.process = replace(self.process, steps=self.steps.seen)
        PROCESS.write(self.process, self.folder / PROCESS_FILE)

    # --- compilations -------------------------------------------------------------------------------------------------

    def _heard(self, phase: str, c: Compilation, frame: Any) -> None:
        if os.getpid() != self.process.pid:
            return
        if phase == "trace":
            self._sizes = {c.number: process_nbytes(), **{n: of for n, of in self._sizes.items() if n > c.number - 100}}
        if phase == "trace" and c.kind == "ahead":
            call = compat.outermost_call(frame)
            if call is not None and call.kind == "ahead":
                self._ahead[c.number] = AbstractCall.of(call)
        if phase == "compile":
            self._compiled(c, frame)

    def _compiled(self, c: Compilation, frame: Any) -> None:
        if not self.process.backend:
            self._found_devices()
        earlier = self._earlier.setdefault((c.kind == "part", c.name, c.definition or c.function), [])
        since, changes = nearest(c, earlier) if c.owner == "program" else (None, ())
        place = None if since is None else earlier.index(since) + 1
        if c.owner == "program":
            earlier.append(c)
        call, number = self._call(c, frame), None
        if call is not None and changes and self.process.n_devices == 1 and all(x.kind == "place" for x in changes):
            call, number = None, self._numbers.get(since)  # the same program, of arrays that are committed or not
        if call is not None:
            number = self._numbers[c] = self.n_programs = self.n_programs + 1
        trace, lower, compiling = (c.seconds.get(p) for p in ("trace", "lower", "compile"))
        ended, executable = time.time() - self.process.began, compat.executable_of(frame)
        append(self.folder / COMPILATIONS, CompiledOnce(
            c.name, c.definition, c.owner, c.kind, self._functions.setdefault(c.function, len(self._functions) + 1),
            CallSite(c.site), place, tuple(map(changed, changes)),
            trace, lower, compiling, ended, _memory(executable), number,
            self._grown(c),
        ))  # fmt: skip
        if call is not None and number is not None:
            self._write()
            self._analyse(number, c, call, executable)

    def _call(self, c: Compilation, frame: Any) -> AbstractCall | None:
        """The call to analyse, of the outermost function that is no part of JAX; None if there is none, or it is
        known."""
        if c.kind == "ahead":
            return self._ahead.pop(c.number, None) if c.owner == "program" else None
        under_way = compat.outermost_call(frame)
        if under_way is None:
            return None
        if under_way.kind == "call":
            own = compat.jit_call_under_way(frame)
            # What a function computes while it is traced is compiled within the call of that function.
            if c.owner != "program" or own is None or own.identity != under_way.identity:
                return None
        call = AbstractCall.of(under_way)
        if under_way.kind != "call":  # its operations are compiled one by one
            key = compilations.identity(call.user), str(jax.tree.map(_shape, (call.args, call.kwargs)))
            if key in self._seen or owner_of(definition_of(call.user)) != "program":
                return None
            self._seen.add(key)
        return call

    def _grown(self, c: Compilation) -> int | None:
        before, now = self._sizes.pop(c.number, None), process_nbytes()
        return None if before is None or now is None else max(0, now - before)

    def _found_devices(self) -> None:
        devices = jax.devices()
        self.process = replace(
            self.process, index=jax.process_index(), count=jax.process_count(), backend=devices[0].platform,
            device=devices[0].device_kind, n_devices=len(devices),
        )  # fmt: skip
        self._write()

    # --- the child ----------------------------------------------------------------------------------------------------

    def _analyse(self, number: int, c: Compilation, call: AbstractCall, executable: Any) -> None:
        self._left = [*self._not_done(), (number, c, call, executable)]
        if not hasattr(os, "fork"):  # on Windows, all is analysed at the end
            return
        with _quietly():
            child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
        try:
            with _quietly():  # again, so that the program has no child that it does not know
                if os.fork():
                    os._exit(0)
            self._in_child(number, c, call, executable)
        finally:
            os._exit(0)

    def _in_child(self, number: int, c: Compilation, call: AbstractCall, executable: Any) -> None:
        """Waits for its turn, and watches over a worker, which may wait for a thread of JAX's that it does not have: it
        then holds Python's lock, so that nothing in it can notice."""
        import fcntl  # not on Windows, which has no fork either

        gc.disable()  # what is collected here would be finalized twice
        for name in ("SIGINT", "SIGTERM", "SIGCHLD"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        with _silent():
            _yield_to_the_job()
            with (self.folder / _SPENT).open("r+") as spent:
                fcntl.flock(spent, fcntl.LOCK_EX)
                done = float(spent.read() or 0)
                began = time.monotonic()
                with _quietly():
                    worker = os.fork()
                if not worker:
                    jax.monitoring.register_scalar_listener(_refuse_to_compile)
                    self._analyse_within(self.budget - done, number, c, call, executable)
                    os._exit(0)
                if why := self._watch_over(worker, began + self.budget - done + _STUCK):
                    self._failed(number, c, call, why)
                spent.seek(0)
                spent.write(f"{done + time.monotonic() - began:.3f}".ljust(16))
                spent.flush()
                write_page(self.folder.parent)  # with the lock, so that `finish` waits for it too

    def _watch_over(self, worker: int, end: float) -> str:
        """Waits for a process; ends it when it no longer works, or at a time, and says why."""
        worked, since = -1.0, time.monotonic()
        while os.waitpid(worker, os.WNOHANG)[0] == 0:
            now, busy = time.monotonic(), _cpu_seconds(worker)
            if busy is None or busy > worked + 0.01:
                worked, since = busy or 0.0, now
            why = _LATER if now > since + _STUCK else self._spent if now > end else ""
            if why:
                os.kill(worker, signal.SIGKILL)
                os.waitpid(worker, 0)
                return why
            time.sleep(_POLL)
        return ""

    @property
    def _spent(self) -> str:
        return f"the budget of {self.budget:g} s was spent; `--budget` gives more"

    def _analyse_within(self, seconds: float, number: int, c: Compilation, call: AbstractCall, executable: Any) -> None:
        try:
            if seconds <= 0:
                raise _Spent
            with _at_most(seconds), compilations.unwatched():
                analyse(number, c, call, executable, self.folder, self.source)
        except _Spent:
            self._failed(number, c, call, self._spent)
        except _Computes:
            self._failed(number, c, call, _LATER)
        except BaseException as error:
            self._failed(number, c, call, f"{type(error).__name__}: {message_of(error)}")

    def _failed(self, number: int, c: Compilation, call: AbstractCall, why: str) -> None:
        path = self.folder / PROGRAMS / f"{number}.json"
        if why != _LATER and path.exists() and _LATER not in path.read_text(encoding="utf-8"):
            return  # what the page shows of it could not be made any more
        failed = RunProgram(number, *name_of(c, call), not_known=(NotKnown("the function", why),))
        PROGRAM.write(failed, path)


@contextlib.contextmanager
def recorded(out: str = "", budget: float = BUDGET) -> Iterator[Callable[[], RunReport]]:
    """Records what runs within the context, and then has its report.

    Args:
      out: the folder of the run; '' for one that is removed afterwards.
      budget: see `RunWatch`.
    """
    # A child that is still there when the budget is spent may write into the folder while it is removed.
    with tempfile.TemporaryDirectory(prefix="jaxviz-", ignore_cleanup_errors=True) as removed:
        folder = Path(out or removed)
        watch = RunWatch(folder_of_process(folder), "a cell", budget)
        watch.start()
        found: list[RunReport] = []
        try:
            yield lambda: found[0]
        finally:
            watch.finish(sys.exception())
            found.append(show(folder))


class _Spent(BaseException):
    """The budget is spent."""


class _Computes(BaseException):
    """The user's function computes something while it is traced, for which a child has no device."""


def _refuse_to_compile(event: str, *_: Any, **__: Any) -> None:
    if compilations.PHASES.get(event) == "compile":
        raise _Computes


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raises `_Spent` in the main thread after some seconds."""

    def stop(*_: object) -> None:
        raise _Spent

    if not hasattr(signal, "setitimer"):  # on Windows
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Lets everything that is printed go nowhere, also by what is not Python.

    What is in the buffers of Python's streams stays there, since a child has a copy of what its parent will print.
    """
    before = [os.dup(stream) for stream in (1, 2)]
    try:
        with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
            for stream in (1, 2):
                os.dup2(nothing.fileno(), stream)
            yield
    finally:
        for stream, as_it_was in zip((1, 2), before, strict=True):
            os.dup2(as_it_was, stream)
            os.close(as_it_was)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the warnings of JAX and Python about forks, which are about children that go on with JAX's threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _yield_to_the_job() -> None:
    """Lets the job go first, for time and for memory."""
    with contextlib.suppress(OSError):
        os.nice(10)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _is_free(file: Any) -> bool:
    """Whether no child has locked a file."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False


def _cpu_seconds(process: int) -> float | None:
    """The CPU time of a process that waits for something; None if it does not, though it may have to wait for its turn,
    or if the operating system does not say, as macOS."""
    try:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK") if words[0] == "S" else None
    except (OSError, ValueError, IndexError):
        return None


def _oom(error: BaseException) -> OomText | None:
    """What an error says if memory ran out, or one that it was raised from."""
    for each in chain(error):
        with contextlib.suppress(ValueError):
            read_oom(message_of(each))  # the lines of a traceback may have such words too
            return read_oom(text_of(each))
    return None


def _shape(x: Any) -> Any:
    return getattr(x, "shape", x)


def _memory(executable: Any) -> XlaBytes | None:
    if executable is None:
        return None
    try:
        stats = executable.get_compiled_memory_stats()
    except Exception:  # a backend that does not report it
        return None
    fields = ("argument", "output", "temp", "alias")
    return XlaBytes(*(int(getattr(stats, f"{field}_size_in_bytes")) for field in fields))
