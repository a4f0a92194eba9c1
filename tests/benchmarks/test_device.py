"""The check of a device: how its parts are run and stopped, and the whole check on a CPU."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.device.__main__ import ROOT, Check, environment
from benchmarks.device.rows import Row, as_line, guarded, markdown, read_rows

ABOUT = {"platform": "cpu", "device": "cpu", "python": "3.12.1", "libraries": {"jax": "0.11.2"}}


def check(folder, seconds=60.0):
    return Check(folder, time.monotonic() + seconds, 1, ABOUT)


def test_rows_are_read_up_to_where_a_part_was_stopped():
    rows = [
        Row("scan", "peak", "1 GiB", "1 GiB", True, part="memory"),
        Row("scan", "time", "1 s", "2 s", is_timed=True),
    ]
    text = "".join(map(as_line, rows))
    assert read_rows(text) == rows
    assert read_rows(text[:-10]) == rows[:1]


def test_times_are_in_tables_of_their_own():
    rows = [
        Row("scan", "peak | bytes", "1", "1", True, part="memory"), Row("scan", "rows", "1", "2", False, part="memory"),
        Row("scan", "time", "1 s", "2 s", is_timed=True, part="memory"), Row("loop", "size", "", "3", part="loops"),
    ]  # fmt: skip
    text = markdown(rows)
    assert [line for line in text.splitlines() if line.startswith("##")] == [
        "## memory: answers, 1 of 2 as expected",
        "## loops: answers, 0 of 0 as expected",
        "## memory: times, 0 of 0 as expected",
    ]
    assert "| scan | peak \\| bytes | 1 | 1 | yes |  |" in text
    assert "| scan | rows | 1 | 2 | **no** |  |" in text


def test_an_exception_is_an_answer_and_not_the_end():
    def answers():
        yield Row("scan", "first", "1", "1", True)
        raise ZeroDivisionError("by zero")

    first, second = guarded("scan", "all", answers)
    assert first.agrees
    assert (second.agrees, second.found) == (False, "ZeroDivisionError: by zero")


@pytest.mark.slow(sweep=True)
def test_a_part_that_fails_or_takes_too_long_does_not_stop_the_next(tmp_path):
    parts = [
        ("no_such_module", "missing", 60.0),
        ("gradients", "gradients, float32", 0.2),
        ("footprint", "speed of deriving", 60.0),
    ]
    check(tmp_path).run(parts)
    read = json.loads((tmp_path / "results.json").read_text())
    rows = {r["part"]: r for r in read["rows"]}
    assert "No module named 'benchmarks.device.no_such_module'" in rows["missing"]["found"]
    assert any(r["part"] == "gradients, float32" and r["found"].startswith("stopped after ") for r in read["rows"])
    assert rows["speed of deriving"]["found"]
    assert list(rows) == [name for _, name, _ in parts]
    assert list(read["seconds"]) == list(rows)


def test_what_is_not_started_in_time_is_said(tmp_path):
    check(tmp_path, seconds=-1).run([("footprint", "speed of deriving", 60.0)])
    (row,) = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert (row["found"], row["agrees"]) == ("not started: no time was left", False)


MEASURES = """
import sys, time
from benchmarks.device.device import alone, join
join()
for _ in range(4):
    until, last = time.time() + 0.05, time.time()
    while time.time() < until:
        worked, last = last, time.time()
        print("works", worked, last)
    with alone():
        start = time.time()
        time.sleep(0.1)
        print("alone", start, time.time())
"""


@pytest.mark.slow
def test_who_measures_is_alone(tmp_path):
    env = environment(JAXVIZ_DEVICE_LOCK=str(tmp_path / "lock"))
    started = [
        subprocess.Popen([sys.executable, "-c", MEASURES], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True,
                         start_new_session=True)
        for _ in range(2)
    ]  # fmt: skip
    said = [[line.split() for line in p.communicate(timeout=60)[0].splitlines()] for p in started]
    spans = [[(what, float(a), float(b)) for what, a, b in lines] for lines in said]
    for mine, others in (spans, spans[::-1]):
        alone = [(a, b) for what, a, b in mine if what == "alone"]
        assert len(alone) == 4
        for a, b in alone:
            # The other process neither measures nor works; a step that began before has been paused in the middle.
            assert not [s for s in others if a < s[1] and s[2] < b]
            assert not [s for s in others if s[0] == "alone" and s[1] < b and a < s[2]]


@pytest.mark.slow(sweep=True)
def test_the_whole_check_on_a_cpu(tmp_path):
    """In an environment without widgets, from a checkout, as on a machine with an accelerator."""
    env = {**environment(), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "benchmarks.device", "--minutes", "15", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    read = json.loads((tmp_path / "results.json").read_text())
    # What takes how long depends on what else runs here.
    wrong = [r for r in read["rows"] if r["agrees"] is False and not r["is_timed"]]
    assert not wrong
    assert {r["part"] for r in read["rows"]} == set(read["seconds"])
    assert sum(r["agrees"] is True for r in read["rows"]) > 60
    assert Path(tmp_path / "results.md").read_text() in done.stdout
    assert (tmp_path / "raw.tar.gz").stat().st_size > 10_000
    assert os.listdir(tmp_path / "raw")
