"""The progress bar: when it appears, what it shows, and that it disappears however the work ends."""

import sys
import threading
import time
import types

import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz import progress


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(progress, "_DELAY", 0.05)
    monkeypatch.setattr(progress, "_BETWEEN", 0.02)
    yield
    jaxviz.show_progress(None)


def slow(x):
    time.sleep(0.06)
    return 2 * x


def ended():
    """Waits for the threads of bars that were not drawn."""
    for thread in threading.enumerate():
        if thread.name == "jaxviz progress":
            thread.join(5)
            assert not thread.is_alive()


def test_a_bar_counts_units_and_goes(capsys):
    jaxviz.show_progress()
    assert progress.each(slow, range(4), "plans") == [0, 2, 4, 6]
    shown = capsys.readouterr().err
    assert "plans" in shown
    assert "3/4" in shown
    assert shown.endswith("\r")
    assert shown.split("\r")[-2].strip() == ""


def test_where_the_number_is_not_known_the_time_is_shown(capsys):
    jaxviz.show_progress()
    with progress.counting("compiling"):
        slow(1)
        slow(1)
    shown = capsys.readouterr().err
    assert "compiling: 00:00" in shown
    assert "it/s" not in shown


def test_what_is_quick_shows_nothing(capsys):
    jaxviz.show_progress()
    assert progress.each(lambda x: x, range(1000), "plans") == list(range(1000))
    ended()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("wanted", "terminal", "expected"),
                         [(None, True, True), (None, False, False), (False, True, False),
                          (True, False, True)])  # fmt: skip
def test_it_is_shown_where_somebody_looks_on_or_asks(capsys, monkeypatch, wanted, terminal, expected):
    jaxviz.show_progress(wanted)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    progress.each(slow, range(3), "plans")
    assert ("plans" in capsys.readouterr().err) == expected


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_it_goes_where_the_work_is_stopped(capsys, error):
    jaxviz.show_progress()

    def stops(x):
        slow(x)
        if x == 2:
            raise error

    with pytest.raises(error) as raised:
        progress.each(stops, range(4), "plans")
    assert raised.tb is not None  # which keeps the frames alive
    ended()
    shown = capsys.readouterr().err
    assert "plans" in shown
    assert shown.split("\r")[-2].strip() == ""
    progress.each(slow, range(3), "again")
    assert "again" in capsys.readouterr().err


def test_in_a_notebook_nothing_stays(monkeypatch):
    """What its output holds, one after the other; a browser test looks at it in JupyterLab."""
    seen = []
    handle = types.SimpleNamespace(update=lambda data, raw: seen.append(data))
    display = types.SimpleNamespace(display=lambda data, raw, display_id: seen.append(data) or handle)
    monkeypatch.setattr(progress, "_notebook", lambda: types.SimpleNamespace(display=display))
    progress.each(slow, range(4), "plans")
    assert seen[0]["text/plain"].startswith("plans: ")
    assert seen[-1] == {"text/plain": "", "text/html": ""}


def test_work_inside_of_work_shows_nothing_of_its_own(capsys):
    jaxviz.show_progress()
    progress.each(lambda x: progress.each(slow, range(2), "inner"), range(2), "outer")
    shown = capsys.readouterr().err
    assert "outer" in shown
    assert "inner" not in shown


def test_a_listener_is_told_in_place_of_a_bar(capsys):
    jaxviz.show_progress()
    told = []
    with progress.report_progress_to(lambda *said: told.append(said)):
        progress.each(slow, range(2), "plans")
        with progress.counting("compiling"):
            pass
    assert told == [("plans", 0, 2), ("plans", 1, 2), ("plans", 2, 2), ("compiling", 0, None)]
    assert capsys.readouterr().err == ""


def loss(w, x):
    for _ in range(3):
        x = jnp.tanh(x @ w)
    return jnp.sum(x)


ARGS = jnp.ones((4, 4)), jnp.ones((3, 4))

WORK = {
    "planning": lambda: jaxviz.plan_remat(loss, *ARGS, budget=0.9),
    "plans": lambda: jaxviz.plan_remat(loss, *ARGS, budget=0.9).front,
    "policies": lambda: jaxviz.compare_policies(loss, *ARGS),
    "rules": lambda: jaxviz.lint(loss, *ARGS),
    "compiling": lambda: jaxviz.memory(loss, *ARGS).xla,
    "equations": lambda: jaxviz.cost(loss, *ARGS).measure(),
    "drawing": lambda: jaxviz.draw(loss, *ARGS),
}


@pytest.mark.parametrize("what", WORK)
def test_what_takes_long_on_large_programs_says_how_far_it_is(what):
    told = []
    with progress.report_progress_to(lambda *said: told.append(said)):
        WORK[what]()
    counts = [(n, of) for name, n, of in told if name == what]
    assert counts
    total = counts[0][1]
    if total is not None:
        assert counts == [(n, total) for n in range(total + 1)]
