"""The stepper's widget without a page: its messages, its reactions to requests, and its display in a notebook."""

import gc
import gzip
import json
import sys
import threading
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from jax import lax

import jaxviz
from jaxviz.features.debugger.columns import StepperView, printed
from jaxviz.features.debugger.start import stepper_of
from jaxviz.features.debugger.widget import StepperWidget, _time_line
from jaxviz.page.bundle import script

X = jnp.linspace(-0.9, 0.9, 4)


def loss(x):
    def cell(h, x):
        h = jnp.tanh(h * 1.5 + x)
        h = lax.cond(h[0] > 0, lambda h: h * 2.0, jnp.sin, h)
        return h, h.sum()

    h, ys = lax.scan(cell, jnp.zeros(4), jnp.stack([x, x, -x]))
    return jnp.sum(jax.jit(jnp.exp)(h)) + jnp.sum(ys)


def started(*args, f=loss, **kwargs):
    stepper = jaxviz.step(f, *(args or (X,)), **kwargs)
    return stepper, stepper.widget()


def ask(widget, do, **more):
    """Sends a request like a page; returns the stop."""
    sent = []
    widget.send = sent.append
    widget._handle_custom_msg({"do": do, **more}, [])
    assert sent == [{"begun": do, "can_stop": True}, {"done": do}]
    return shown(widget)


def shown(widget):
    return json.loads(widget.stop)


def failure(widget):
    return json.loads(widget.failure) if widget.failure else None


def programs(widget):
    return json.loads(gzip.decompress(widget.payload))


def program_at(made, stop):
    """Like `widgets/src/stepper/view.ts`."""
    number = next(s["program"] for s in made["stages"] if s["name"] == stop["stage"])
    for level in stop["path"]:
        number = made["programs"][number]["rows"][level["index"]]["n"][level["body"]]
    return made["programs"][number]


def recorded(x):
    def cell(h, x):
        h = lax.cond(x > 0.0, jnp.sin, jnp.cos, h * x)
        return h, h

    h, hs = lax.scan(cell, x, jnp.arange(3.0))
    return h * jnp.sum(hs)


def fixture():
    """The data that a page receives about a run, for the tests of both languages."""
    s, w = started(jnp.float32(0.5), f=recorded)
    found = {"programs": programs(w), "stops": {}}

    def keep(name):
        found["stops"][name] = shown(w)

    keep("start")
    s.break_at(primitive="cond")
    s.run(primitive="scan")
    keep("at the scan")
    s.to(iteration=1).next()
    s.break_at(equation=s.following)
    keep("in the scan")
    s.run().into()
    keep("in the branch")
    scan = s.machine.holders(s.position)[0]
    ask(w, "look", stage="forward", name=s._texts["forward"].names[scan.outvars[0]])
    ask(w, "end")
    keep("end")
    return found


FIXTURE = Path(__file__).parents[2] / "fixtures" / "stepper.json"


def form(x):
    """The structure of some data: names and types; a list with a uniform structure has its items' structure."""
    if isinstance(x, dict):
        return {k: form(v) for k, v in x.items()}
    if isinstance(x, list):
        forms = [form(v) for v in x]
        return forms[:1] if all(f == forms[0] for f in forms) else forms
    return type(x).__name__ if not isinstance(x, int) or isinstance(x, bool) else "float"


# --- messages ---------------------------------------------------------------------------------------------------------


WRITTEN_WITH = "0.10.2"


@pytest.mark.slow
@pytest.mark.skipif(
    jax.__version__ != WRITTEN_WITH, reason=f"written with JAX {WRITTEN_WITH}; others give equations other params"
)
def test_the_fixture_has_the_form_of_what_is_sent():
    """If it does not match: `json.dumps(fixture())` is the new fixture."""
    kept = json.loads(FIXTURE.read_text(encoding="utf-8"))
    made = fixture()
    assert form(kept["stops"]) == form(made["stops"])
    assert kept["programs"]["programs"] == [
        {**p, "rows": [{**row, "a": k["a"]} if "a" in k else row for row, k in zip(p["rows"], q["rows"], strict=True)]}
        for p, q in zip(made["programs"]["programs"], kept["programs"]["programs"], strict=True)
    ]


@pytest.mark.slow
def test_the_rows_are_the_equations_wherever_the_run_is():
    s, w = started()
    made = programs(w)
    seen = set()
    while not s.is_done:
        s.into()
        program = program_at(made, shown(w))
        assert [row["p"] for row in program["rows"]] == [e.primitive.name for e in s.program.equations]
        text = s._texts[s.stage]
        for row, e in zip(program["rows"], s.program.equations, strict=True):
            assert [o[0] for o in row["o"]] == [text.atom(v) for v in e.outvars]
            assert row["i"] == [text.atom(a) for a in e.invars]
        seen.add((s.stage, tuple(level.body for level in s.position.path)))
    assert {stage for stage, _ in seen} == {"forward", "backward"}
    assert any("branches" in body for _, path in seen for body in path)


def test_rows_have_the_name_that_they_call_and_their_iterations():
    @jax.jit
    def cell(c, x):
        return lax.while_loop(lambda c: c > 1.0, jnp.sin, c * x), None

    _, w = started(jnp.float32(0.5), f=lambda x: lax.scan(cell, x, jnp.arange(3.0), reverse=True)[0])
    rows = [row for program in programs(w)["programs"] for row in program["rows"] if "n" in row]
    found = [(row["p"], row.get("f"), row.get("t")) for row in rows]
    assert found == [("scan", None, [3, 2]), ("jit", "cell", None), ("while", None, [None, 0])]


def test_lines_are_those_of_the_function():
    _, w = started()
    (file,) = programs(w)["files"]
    lines = {e["first"] + i: text for e in file["excerpts"] for i, text in enumerate(e["lines"])}
    assert any("h = jnp.tanh" in lines[n] for n in file["stops"])
    assert not any("jaxviz.step" in text for text in lines.values())
    (number,) = (n for n in file["stops"] if "jnp.tanh" in lines[n])
    stop = ask(w, "run to", file=0, line=number)
    assert stop["at"][0][:2] == [0, number]
    assert stop["at"][0][2] == "loss.<locals>.cell"


def test_values_are_those_of_the_stepper_with_what_is_known_of_them():
    s, w = started()
    s.run(primitive="scan").into().to(iteration=1).next(3)
    stop = shown(w)
    (card,) = stop["results"]
    expected = s.shown[0].summary.to_dict()
    assert {k: card["value"][k] for k in ("min", "max", "mean", "zeros", "histogram")} == {
        k: expected[k] for k in ("min", "max", "mean", "zeros", "histogram")
    }
    assert [level["iteration"] for level in stop["path"]] == [1]
    assert stop["path"][0]["length"] == 3


PRINTED = [
    (jnp.float32(2.5), "2.5"), (jnp.array([[1.0], [2.0]]), "[1. 2.]"), (jnp.array([True, False]), "[ True False]"),
    (jnp.ones(3, jnp.bfloat16), "[1. 1. 1.]"), (jnp.zeros(2, jnp.complex64), "[0.+0.j 0.+0.j]"), (jnp.zeros(100), ""),
    (jnp.zeros((0, 3)), ""), (jax.random.key(0), ""), (3.0, "3."), (np.zeros(2, jax.dtypes.float0), ""),
]  # fmt: skip


@pytest.mark.parametrize(("value", "text"), PRINTED)
def test_small_arrays_are_written_out(value, text):
    assert printed(value) == text


ODD = (
    jnp.int32(3),
    jnp.array([jnp.nan, jnp.inf, 3e38, -3e38]),
    jnp.ones((2, 3), jnp.bfloat16),
    jnp.ones(3, jnp.complex64),
)


@pytest.mark.parametrize("value", ODD, ids=str)
def test_whatever_the_values_the_stop_is_json(value):
    f = lambda x: (x * x, jax.random.key(0), jnp.zeros((0, 2)))
    s = jaxviz.step(f, value)
    view = StepperView(s)
    view.programs()
    while not s.is_done:
        s.next()
        json.loads(json.dumps(view.stop(), allow_nan=False))


@pytest.mark.slow
def test_a_stop_is_small_whatever_the_values_and_the_program():
    def long(*xs):
        total = sum(jnp.sum(jnp.sin(x) * xs[0]) for x in xs)
        for _ in range(800):
            total = jnp.sin(total) + 1.0
        return total

    s, w = started(*(jax.random.normal(jax.random.key(0), (512, 512)),) * 12, f=long)
    assert len(programs(w)["programs"][0]["rows"]) > 1600
    stop = shown(w)
    assert (len(stop["results"]), len(stop["more"][0]), len(w.stop) < 50_000) == (8, 4, True)
    for _ in range(3):
        stop = ask(w, "next")
        assert len(w.stop) < 50_000
    assert stop["results"][0]["value"]["picture"]["png"].startswith("data:image/png;base64,")
    s.out()
    assert len(w.stop) < 6000  # nothing of the program is sent again


# --- requests ---------------------------------------------------------------------------------------------------------


def test_the_traceback_of_a_predicate_that_raises_is_kept(monkeypatch):
    for name in ("last_type", "last_value", "last_traceback"):
        monkeypatch.setattr(sys, name, None, raising=False)
    s, w = started()
    s.break_at(when=lambda v: v.no_such_thing)
    ask(w, "continue")
    assert isinstance(sys.last_value, AttributeError)


def test_an_error_of_the_program_is_told_and_the_run_stays():
    def raises(x):
        raise ValueError("no such layer")

    s, w = started(f=lambda x: jnp.sum(jax.pure_callback(raises, jax.typeof(x), jnp.sin(x))), backward=False)
    ask(w, "end")
    assert "no such layer" in failure(w)["message"]
    assert not s.is_done
    assert ask(w, "restart")["index"] == 0


def test_an_interrupt_leaves_the_run_where_it_was(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    s, w = started()
    ask(w, "next")
    at = s.position
    monkeypatch.setattr(s.machine, "next", interrupted)
    ask(w, "next")
    assert failure(w)["kind"] == "Stopped"
    assert s.position == at


# --- display in a notebook --------------------------------------------------------------------------------------------


@pytest.fixture
def shell():
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def formats(shell, s):
    return shell.display_formatter.format(s)[0]


VIEW = "application/vnd.jupyter.widget-view+json"


def test_a_notebook_shows_the_widget_and_of_a_later_move_the_stop(shell):
    s = jaxviz.step(loss, X).next()
    first = formats(shell, s)
    assert first[VIEW]["model_id"] == s.widget().model_id
    assert first["text/plain"] == str(s)
    assert "<pre" in first["text/html"]
    moved = formats(shell, s.next())
    assert VIEW not in moved
    assert "equation 2" in moved["text/plain"]
    assert VIEW in formats(shell, s)  # because it has not moved
    ask(s.widget(), "next")
    assert VIEW in formats(shell, s)


def test_a_terminal_shows_text(shell):
    shell.display_formatter.active_types = ["text/plain"]
    s = jaxviz.step(loss, X)
    assert set(formats(shell, s)) == {"text/plain"}
    assert s._widget is None


def test_moving_in_python_moves_the_widget():
    s, w = started()
    told = []
    w.observe(lambda change: told.append(json.loads(change.new)["index"]), "stop")
    s.next()
    s.next(2)
    assert told == [1, 3]
    w.close()
    s.next()
    assert told == [1, 3]
    assert s.widget() is not w


def test_the_code_is_not_in_each_stepper():
    widget, other = (started()[1] for _ in range(2))
    state = widget.get_state()
    assert len(state["_esm"]) < 2048
    assert widget._code is other._code
    sent = []
    widget.send = lambda content, buffers=(): sent.append((content, buffers))
    widget._handle_custom_msg({"part": "stepper"}, [])
    ((content, (block,)),) = sent
    assert content == {"part": "stepper"}
    assert gzip.decompress(block).decode() == script("stepper")


@pytest.mark.slow
def test_a_saved_page_has_its_own_parts_the_last_stop_and_runs_nothing(tmp_path):
    s, w = started()
    s.run(primitive="scan")
    pages = [x.save_html(tmp_path / "page.html").read_text("utf-8") for x in (w, jaxviz.explore(loss, X))]
    for words in ("jaxviz-part-stepper", "jaxviz-part-player"):
        assert [words in page for page in pages] == [words.endswith("stepper"), words.endswith("player")]
    assert "Content-Security-Policy" in pages[0]
    assert "jaxviz-state" in pages[0]


def masked(x):
    return jnp.sum(jnp.where(x > 0, jnp.sqrt(x), 0.0))


def test_below_a_report_of_a_nan_is_the_time_line_until_it_is_asked_to_step_there():
    def scanned(params, x):
        return masked(lax.scan(lambda x, w: (x + jnp.sqrt(x - w), None), x, params)[0])

    report = jaxviz.find_nan(scanned, jnp.array([0.0, 0.5, 9.0]), jnp.ones(2))
    widget = StepperWidget(stepper_of(report), event=report.born)
    assert widget.folded
    assert json.loads(widget.mark)["text"].startswith("NaN born at test_stepper_widget.py")
    assert ask(widget, "there")["path"][0]["iteration"] == 2
    assert (widget.folded, widget.failure) == (False, "")
    shown = _time_line(report, report.born)._repr_mimebundle_()
    data = shown[0] if isinstance(shown, tuple) else shown
    assert data["text/plain"].endswith("report.step() steps to it.")


def test_of_very_many_equations_there_is_no_time_line(monkeypatch):
    monkeypatch.setattr("jaxviz.features.debugger.widget.LARGEST", 3)
    report = jaxviz.find_nan(masked, jnp.array([0.0, 4.0]))
    assert set(_time_line(report, report.born)) == {"text/plain"}


def test_names_from_a_program_are_made_fit_to_be_shown():
    def odd(x):
        return jnp.sum(jax.named_call(jnp.sin, name="a\u202eb")(x))

    odd.__name__ = "<script>\u202e"
    _, w = started(f=odd)
    assert "\u202e" not in json.dumps(programs(w), ensure_ascii=False)
    assert "\u202e" not in w.stop.encode().decode("unicode_escape")


@pytest.mark.usefixtures("little_to_collect")
def test_a_stepper_that_nobody_names_goes_when_others_are_shown():
    s, w = started(f=lambda x: jnp.sum(x * x))
    held = weakref.ref(s)
    del s
    gc.collect()
    assert ask(w, "next")["index"] == 1
    for _ in range(2):
        started(f=lambda x: jnp.sum(x * x))
    gc.collect()
    assert held() is None
    ask(w, "next")
    assert "Run the cell again" in failure(w)["message"]


def test_moves_of_several_threads_take_turns():
    s, w = started()
    threads = [threading.Thread(target=lambda: [s.next() for _ in range(5)]) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    other = jaxviz.step(loss, X).next(15)
    assert s.position == other.position
    assert s.moves == 15
    assert shown(w)["index"] == s.position.index
