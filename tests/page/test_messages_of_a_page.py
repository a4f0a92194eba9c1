"""Whatever a page sends, no Python of its own is run, no file is written, the kernel goes on: for each handler."""

import builtins
import contextlib
import json
import os
import traceback

import anywidget
import jax.numpy as jnp
import pytest
import traitlets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jaxviz
from jaxviz.features.debugger.widget import _REQUESTS
from jaxviz.features.explorer.widget import _WORK
from jaxviz.features.probes.widget import LivePlot
from jaxviz.page.bundle import Charts, OneWay, bundle

PYTHON = [
    "canary()", "lambda v: canary()", "canary() or (lambda v: True)", "__import__('builtins').canary()",
    "max > canary()",
    "{canary()}", "__import__('os').system('touch canary')", "open('canary', 'w').write('')", "[canary() for _ in '1']",
]  # fmt: skip
WORDS = [
    "", "primal", "forward", "backward", "compiled", "__class__", "tanh", "a", "jaxpr", "0||", "||", "zz", "-1||",
    "0|0|0|0", "9999||",
    "primal:1", "primal:-1", "primal:٣", "test_messages_of_a_page.py:1", "../../etc/passwd:1", "/etc/passwd", "..",
    "explorer", "stepper",
    "graphviz\x00", "max > 1", "max_abs > 1e999", "²:²", "a:" + "9" * 5000, "<script>", "\ud800",
]  # fmt: skip
NAMES = [
    "do", "work", "part", "when", "name", "line", "file", "primitive", "non_finite", "stage", "path", "index",
    "iteration", "number",
    "keys", "draw", "code", "compile", "plan",
]  # fmt: skip

PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 5), st.sampled_from([10**30, -(10**30), float("nan"), 1e300]),
    st.sampled_from(PYTHON), st.sampled_from(WORDS), st.text(max_size=5),
)  # fmt: skip
JSON = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(st.sampled_from(NAMES[3:]), JSON, max_size=5)
LEVELS = st.lists(
    st.tuples(st.integers(-1, 4), st.sampled_from(["jaxpr", "x"]), st.none() | st.integers(-1, 9)).map(list), max_size=2
)
OFTEN_RIGHT = st.fixed_dictionaries(
    {},
    optional={
        "stage": st.sampled_from(["forward", "backward", "x"]), "path": LEVELS, "index": st.integers(-1, 9),
        "iteration": st.integers(-1, 9),
        "keys": st.lists(st.sampled_from(WORDS + PYTHON), max_size=3), "draw": st.sampled_from(WORDS),
        "code": st.sampled_from(WORDS),
        "when": st.sampled_from(PYTHON + WORDS), "name": st.sampled_from(PYTHON + WORDS),
        "line": st.sampled_from(PYTHON + WORDS),
        "number": st.integers(-2, 3), "file": st.integers(-2, 3),
    },
)  # fmt: skip
REQUESTS = st.one_of(
    JSON,
    st.builds(lambda do, more, right: {**more, **right, "do": do},
              st.sampled_from([*_REQUESTS, "__init__", "break", "run to"]), FIELDS, OFTEN_RIGHT),
    st.builds(lambda more, right: {**more, **right, "work": "try"}, FIELDS, OFTEN_RIGHT),
    st.builds(lambda part: {"part": part}, JSON),
    st.sampled_from([work for work in _WORK if work not in ("compile", "compile one", "advice")]),
)  # fmt: skip
EACH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)


def loss(w, x):
    for _ in range(2):
        x = jnp.tanh(x @ w)
    return jnp.sum(x)


ARGS = jnp.ones((3, 3)), jnp.ones((2, 3))


@pytest.fixture
def watched(monkeypatch, tmp_path):
    """Fails if code of a page is run, or writes a file."""
    ran = []
    monkeypatch.setattr(builtins, "canary", lambda: ran.append(traceback.format_stack()), raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    assert not ran, "".join(ran[0])
    assert not os.listdir(tmp_path)


def widgets():
    explorer = jaxviz.explore(loss, *ARGS)
    explorer._fill_what_if()
    watch = jaxviz.watch(loss)
    return [jaxviz.step(loss, *ARGS).widget(), explorer, LivePlot(watch), Charts(), bundle()]


@pytest.fixture(scope="module")
def all_widgets():
    found = widgets()
    yield found
    for widget in found[:-1]:
        widget.close()


@pytest.mark.slow
def test_every_widget_is_among_them(all_widgets):
    def below(kind):
        for sub in kind.__subclasses__():  # also of single widgets, to which traits have been added
            yield sub
            yield from below(sub)

    named = {kind.__name__ for kind in below(anywidget.AnyWidget) if kind.__module__.startswith("jaxviz")}
    assert named - {"Bundled"} == {type(widget).__name__ for widget in all_widgets} - {"Bundle"}
    assert all(isinstance(widget, OneWay) for widget in all_widgets)


def received(widget, content):
    """What ipywidgets does with a message, but errors are not only logged."""
    widget.send = lambda *args, **kwargs: None
    for handler in widget._msg_callbacks.callbacks:
        handler(widget, content, [])


@pytest.mark.slow
@EACH
@given(st.integers(0, 3), st.lists(REQUESTS, min_size=1, max_size=4))
def test_no_message_runs_code_or_breaks_a_handler(watched, all_widgets, which, contents):
    widget = all_widgets[which]
    for content in contents:
        received(widget, content)
    if which == 0:
        widget.stepper.breakpoints.clear()
        received(widget, {"do": "restart"})
        assert json.loads(widget.stop)["index"] == 0


def test_a_condition_of_a_page_cannot_be_python(watched, all_widgets):
    stepper = all_widgets[0]
    for do in ("break", "run to"):
        for text in PYTHON:
            received(stepper, {"do": do, "when": text})
            assert "is not a condition" in json.loads(stepper.failure)["message"]
    assert stepper.stepper.breakpoints == []


@EACH
@given(st.integers(0, 3), st.data())
def test_a_page_sets_only_what_is_shown(watched, all_widgets, which, data):
    widget = all_widgets[which]
    own = [name for name in widget.keys if name not in widget.from_page]
    before = {name: getattr(widget, name) for name in own if not name.startswith("_")}
    state = data.draw(st.dictionaries(st.sampled_from(sorted(widget.keys)), JSON, max_size=4))
    question = getattr(widget, "question", None)
    with contextlib.suppress(traitlets.TraitError):  # ipywidgets logs what is no value of the trait
        widget.set_state(state)
    assert {name: getattr(widget, name) for name in before} == before
    if question is not None:
        widget.question = question


def test_a_page_says_what_it_shows_and_no_more(all_widgets):
    explorer = all_widgets[1]
    payload = explorer.payload
    explorer.set_state(
        {"stage": "backward", "payload": b"x", "compiled": "<script>", "_esm": "alert(1)", "height": 700}
    )
    assert (explorer.stage, explorer.payload, explorer.compiled, explorer.height) == ("backward", payload, "", 700)
    assert "alert(1)" not in explorer._esm
