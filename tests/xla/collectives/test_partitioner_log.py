"""Values that XLA replicates only to reshard them: the partitioner's log, mapped to source lines."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from types import SimpleNamespace

import jax.numpy as jnp
import pytest
from collective_programs import CUBE, shape
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxviz
from jaxviz.xla.collectives import compiling
from jaxviz.xla.collectives.partitioner_log import read_warning, reading_log

pytestmark = pytest.mark.slow


def divided(x):
    y = lax.with_sharding_constraint(jnp.sin(x), NamedSharding(CUBE, P("a", "b")))
    z = lax.with_sharding_constraint(y, NamedSharding(CUBE, P(None, ("c", "b", "a"))))
    return jnp.sum(jnp.cos(z))


X = shape(64, 64, mesh=CUBE, spec=("a", "b"))


def test_what_xla_warns_of_has_its_line_and_layouts():
    warned = jaxviz.collectives(divided, X, argnums=()).rematerialized[0]
    assert (warned.before, warned.after) == ("P('a', 'b')", "P(None, ('c', 'b', 'a'))")
    assert warned.location.line in (divided.__code__.co_firstlineno + 1, divided.__code__.co_firstlineno + 2)


def test_the_report_has_as_many_as_xla_logs():
    """In a separate process, since XLA writes to standard error."""
    code = f"""
import os, sys
sys.path[:0] = {[*sys.path]!r}
import test_partitioner_log as t
import jax
from collective_programs import within
jax.jit(t.divided).lower(t.X).compile()
"""
    env = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    here = os.path.dirname(__file__)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=here, env=env, check=True)
    logged = {found for line in done.stderr.splitlines() if (found := read_warning(line)) is not None}
    report = jaxviz.collectives(divided, X, argnums=())
    assert logged
    assert len({(w.before, w.after) for w in logged}) == len(report.rematerialized)


def test_all_else_that_is_written_goes_where_it_would_have_gone(capfd):
    with reading_log() as log:
        os.write(
            2,
            b"W1 spmd_partitioner.cc:1] [SPMD] Involuntary full rematerialization. The compiler cannot go from "
            b"sharding {replicated} to {manual} ",
        )
        os.write(
            2,
            b'efficiently for HLO operation %x.1 = f32[2]{0} copy(%y), metadata={op_name="jit(f)/sin"}. As\nanother '
            b"line\n\rhalf",
        )
    assert capfd.readouterr().err == "another line\n\rhalf"
    (warned,) = log.warned
    assert (warned.before, warned.after, warned.name, warned.path, warned.type) == (
        "{replicated}", "{manual}", "x.1", "jit(f)/sin", "f32[2]",
    )  # fmt: skip


def test_older_wording_is_read_too():
    line = (
        "E0531 10:54:04.832741 2609008 spmd_partitioner.cc:613] [spmd] Involuntary full rematerialization. The "
        "compiler was not able to go from sharding "
        "{devices=[2,1,4]<=[4,2]T(1,0)} to {devices=[1,8,1]<=[8]} without doing a full rematerialization of the "
        "tensor for HLO operation: "
        '%add = f32[16,16,16]{2,1,0} add(%a, %b), metadata={op_name="jit(f)/add"}. You probably want to enrich the '
        "sharding annotations"
    )
    assert read_warning(line).path == "jit(f)/add"
    assert read_warning(line.partition(" for HLO")[0]).before == "{devices=[2,1,4]<=[4,2]T(1,0)}"
    assert read_warning("W1123 something else {a} to {b}") is None


def test_without_a_standard_error_it_says_so(monkeypatch):
    def refuse(_):
        raise OSError("no such file")

    monkeypatch.setattr("jaxviz.xla.collectives.partitioner_log.os.dup", refuse)
    jaxviz.clear_caches()
    report = jaxviz.collectives(divided, X, argnums=())
    monkeypatch.undo()
    jaxviz.clear_caches()
    assert report.rematerialized is None
    assert "XLA's log could not be read" in str(report)


LINE = (
    b"W1 x.cc:1] [SPMD] Involuntary full rematerialization. The compiler cannot go from sharding {a} to {b} "
    b"efficiently. As\n"
)


@pytest.mark.parametrize("last", ["first", "second"])
def test_logs_that_overlap_are_closed_in_any_order(capfd, last):
    first, second = reading_log(), reading_log()
    logs = [first.__enter__(), second.__enter__()]
    (second if last == "first" else first).__exit__(None, None, None)
    os.write(2, LINE)
    os.write(2, b"before\n")
    (first if last == "first" else second).__exit__(None, None, None)
    os.write(2, b"after\n")
    assert [len(log.lines) for log in logs] == ([1, 0] if last == "first" else [0, 1])
    assert capfd.readouterr().err == "before\nafter\n"


def all_read():
    for thread in [t for t in threading.enumerate() if t.name == "jaxviz log"]:
        thread.join(30)


def test_many_threads_read_logs(capfd):
    all_read()
    n_open, found = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0, []

    def work():
        for _ in range(20):
            with reading_log() as log:
                os.write(2, LINE)
            found.append(len(log.lines))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 8 * 20
    assert min(found) >= 1
    assert capfd.readouterr().err == ""
    if n_open:
        all_read()
        assert len(os.listdir("/proc/self/fd")) == n_open


def test_another_process_may_keep_the_standard_error_that_it_was_started_with(capfd):
    with reading_log() as log:
        started = subprocess.Popen(
            [sys.executable, "-c", "import sys; input(); sys.stderr.write('late')"], stdin=subprocess.PIPE
        )
        os.write(2, LINE)
    assert len(log.lines) == 1
    started.communicate(b"\n", timeout=30)
    all_read()
    assert (started.returncode, capfd.readouterr().err) == (0, "late")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_behind_the_standard_error_stops_nothing():
    kept, full = os.dup(2), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 2)
    try:
        with reading_log() as log:
            os.write(2, b"x" * 200_000 + b"\n" + LINE)
        assert len(log.lines) == 1
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(full)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning", "ignore:This process:DeprecationWarning")
def test_a_forked_process_writes_where_this_one_did(capfd):
    with reading_log() as log:
        child = os.fork()
        if child == 0:
            os.write(2, LINE.replace(b"efficiently", b"without"))
            os._exit(0)
        os.waitpid(child, 0)
    assert log.lines == []
    assert "without" in capfd.readouterr().err


def test_without_room_for_what_xla_writes_it_is_not_asked_to(monkeypatch):
    """XLA ends the process when the disk is full."""
    expected = jaxviz.collectives(divided, X, argnums=())
    for reason in ("full", "read-only"):
        jaxviz.clear_caches()
        if reason == "full":
            monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
        else:
            monkeypatch.undo()
            monkeypatch.setattr(tempfile, "tempdir", os.path.join(os.sep, "proc", "none"))
        asked = []
        monkeypatch.setattr(compiling, "_options", asked.append)
        report = jaxviz.collectives(divided, X, argnums=())
        assert not asked
        assert "No temporary folder has room" in str(report)
        assert [c.kind for c in report.compiled] == [c.kind for c in expected.compiled]
        assert report.rematerialized == expected.rematerialized
    monkeypatch.undo()
    jaxviz.clear_caches()
