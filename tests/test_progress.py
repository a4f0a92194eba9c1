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


class Screen:
    """What standard error has shown."""

    def __init__(self, capsys):
        self._capsys, self._shown = capsys, ""

    @property
    def text(self):
        self._shown += self._capsys.readouterr().err
        return self._shown

    def until(self, text):
        """Waits until it has shown a text."""
        until(lambda: text in self.text)


def until(is_so):
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def screen(capsys):
    return Screen(capsys)


def ended():
    """Waits for the threads of bars that were not drawn."""
    for thread in threading.enumerate():
        if thread.name == "jaxviz progress":
            thread.join(5)
            assert not thread.is_alive()


def test_a_bar_counts_units_and_goes(screen):
    def work(x):
        screen.until(f"{x}/4")
        return 2 * x

    jaxviz.show_progress()
    assert progress.each(work, range(4), "plans") == [0, 2, 4, 6]
    shown = screen.text
    assert "plans" in shown
    assert shown.endswith("\r")
    assert shown.split("\r")[-2].strip() == ""


def test_where_the_number_is_not_known_the_time_is_shown(screen):
    jaxviz.show_progress()
    with progress.counting("compiling"):
        screen.until("compiling: 00:00")
    assert "it/s" not in screen.text


def test_what_is_quick_shows_nothing(screen, monkeypatch):
    monkeypatch.setattr(progress, "_DELAY", 60)
    jaxviz.show_progress()
    assert progress.each(lambda x: x, range(1000), "plans") == list(range(1000))
    ended()
    assert screen.text == ""


@pytest.mark.parametrize(("wanted", "terminal", "expected"),
                         [(None, True, True), (None, False, False), (False, True, False),
                          (True, False, True)])  # fmt: skip
def test_it_is_shown_where_somebody_looks_on_or_asks(screen, monkeypatch, wanted, terminal, expected):
    jaxviz.show_progress(wanted)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    progress.each(lambda _: screen.until("plans") if expected else time.sleep(0.1), range(2), "plans")
    assert ("plans" in screen.text) == expected


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_it_goes_where_the_work_is_stopped(screen, error):
    jaxviz.show_progress()

    def stops(x):
        screen.until("plans")
        if x == 2:
            raise error

    with pytest.raises(error) as raised:
        progress.each(stops, range(4), "plans")
    assert raised.tb is not None  # which keeps the frames alive
    ended()
    assert screen.text.split("\r")[-2].strip() == ""
    progress.each(lambda _: screen.until("again"), range(3), "again")


def test_in_a_notebook_nothing_stays(monkeypatch):
    """What its output holds, one after the other; a browser test looks at it in JupyterLab."""
    seen = []
    handle = types.SimpleNamespace(update=lambda data, raw: seen.append(data))
    display = types.SimpleNamespace(display=lambda data, raw, display_id: seen.append(data) or handle)
    monkeypatch.setattr(progress, "_notebook", lambda: types.SimpleNamespace(display=display))
    progress.each(lambda _: until(lambda: seen), range(4), "plans")
    assert seen[0]["text/plain"].startswith("plans: ")
    assert seen[-1] == {"text/plain": "", "text/html": ""}


def test_work_inside_of_work_shows_nothing_of_its_own(screen):
    jaxviz.show_progress()
    progress.each(lambda x: progress.each(lambda _: screen.until("outer"), range(2), "inner"), range(2), "outer")
    assert "inner" not in screen.text


def test_a_listener_is_told_in_place_of_a_bar(screen):
    jaxviz.show_progress()
    told = []
    with progress.report_progress_to(lambda *said: told.append(said)):
        progress.each(lambda x: x, range(2), "plans")
        with progress.counting("compiling"):
            pass
    assert told == [("plans", 0, 2), ("plans", 1, 2), ("plans", 2, 2), ("compiling", 0, None)]
    assert screen.text == ""


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


@pytest.mark.slow
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
