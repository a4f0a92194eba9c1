"""The stepper in a notebook: source, jaxpr and values side by side, controlled from the page or from Python.

The page sends requests as messages, and only when a user does something: nothing saved in a notebook runs when it is
opened. A message can move the run and set breakpoints, but it holds no Python (`conditions.py`). Everything displayed
is in traits, so a page that is opened without a kernel shows the last stop.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import traitlets

from jaxviz.features.debugger.columns import StepperView
from jaxviz.features.debugger.conditions import Condition
from jaxviz.features.debugger.positions import Level, Position, SteppingError
from jaxviz.features.debugger.start import go_there, mark_of, stepper_of
from jaxviz.features.debugger.stepper import Stepper
from jaxviz.features.nans.report import Event, NanReport
from jaxviz.ir.errors import JaxvizError, message_of
from jaxviz.page.bundle import MAIN, STEPPER, Bundled, packed, script
from jaxviz.page.html import page
from jaxviz.page.texts import first_line
from jaxviz.report.files import write_file
from jaxviz.report.messages import short_message
from jaxviz.report.tables import printable

_recent: deque[Stepper] = deque(maxlen=2)
"""The latest steppers.

A kernel keeps every widget; of older ones only the names are kept, since their arrays take memory.
"""

LARGEST = 20_000
"""The number of equations of a run up to which its timeline is shown with the report of a NaN."""

MOST_LOOKED = 6
"""The most values requested by name that are shown together; with more, the first is dropped."""


class StepperWidget(Bundled):
    """Shows and controls a stepper. Created by `Stepper.widget`, and by a notebook that displays a stepper.

    Traits:
      payload: the programs, as gzipped JSON; see `messages.Programs`.
      stop: the position and the values there, as JSON; see `messages.StepperStop`.
      failure: the error of the last move, as JSON, or ''.
      mark: where a NaN first occurred, as JSON; see `messages.Mark`. '' without a mark.
      folded: whether only the timeline is shown.
      height: in pixels; 0 for as high as the part of the notebook that is seen.
    """

    payload = traitlets.Bytes(b"").tag(sync=True)
    stop = traitlets.Unicode("").tag(sync=True)
    failure = traitlets.Unicode("").tag(sync=True)
    mark = traitlets.Unicode("").tag(sync=True)
    folded = traitlets.Bool(False).tag(sync=True)
    height = traitlets.Int(0).tag(sync=True)

    from_page = frozenset(("height",))

    def __init__(self, stepper: Stepper, event: Event | None = None, **traits: Any):
        self._event = event
        if event is not None:
            traits = {"mark": json.dumps(mark_of(stepper, event)), "folded": True, **traits}
        self.is_shown = False
        self.shown_moves = 0
        """The number of moves that the stepper had made when it was last shown here, or moved from here."""
        self._looked: list[tuple[str, str]] = []
        view = stepper._view = StepperView(stepper)
        self._view_ref = weakref.ref(view)
        programs = json.dumps(view.programs(), separators=(",", ":"))
        stop = json.dumps(view.stop(), separators=(",", ":"))
        super().__init__(STEPPER, payload=gzip.compress(programs.encode(), 6, mtime=0), stop=stop, **traits)
        this = weakref.ref(self)

        def follow(_: Stepper) -> None:
            widget = this()
            if widget is not None:
                widget.failure = ""
                widget.update()

        _recent.append(stepper)
        stepper.on_stop(follow)
        self.on_msg(self._answer)

    @property
    def _view(self) -> StepperView:
        view = self._view_ref()
        if view is None:
            raise SteppingError(
                "This run is no longer available, because newer runs have replaced it. Run the cell again."
            )
        return view

    @property
    def stepper(self) -> Stepper:
        """The stepper that is shown.

        Raises:
          SteppingError: it is no longer available.
        """
        return self._view.stepper

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        shown = super()._repr_mimebundle_(**kwargs)
        if shown is not None and self.mark:
            text = f"{json.loads(self.mark)['text']}: report.step() steps to it."
            (shown[0] if isinstance(shown, tuple) else shown)["text/plain"] = text
        return shown

    def update(self) -> None:
        """Sends the run's position, and everything else that is shown."""
        if self.comm is None:
            return
        self.stop = json.dumps(self._view.stop(self._looked), separators=(",", ":"))

    def save_html(self, path: str | Path) -> Path:
        """Writes the stop as one HTML file that can be read without a kernel, and runs nothing.

        Args:
          path: the path of the file; its folder must exist.

        Returns:
          the path.
        """
        names = ("stop", "failure", "mark", "folded", "height", "_shows")
        state = {name: getattr(self, name) for name in names} | {"is_saved": True}
        title = f"{printable(self.stepper.derivation.primal.name, 200)} · jaxviz"
        return write_file(path, page(title, self.payload, script(MAIN), state, {STEPPER: packed(STEPPER)}))

    def _answer(self, widget: Any, content: Any, buffers: Any) -> None:
        """Handles a request of the page."""
        do = content.get("do") if isinstance(content, dict) else None
        if not isinstance(do, str) or do not in _REQUESTS:
            return
        # An interrupt reaches the main thread, but a kernel may process widget messages in another one.
        self.send({"begun": do, "can_stop": threading.current_thread() is threading.main_thread()})
        try:
            self.failure = ""
            stepper = self.stepper
            with stepper.lock:
                _REQUESTS[do](self, content)
                self.shown_moves = stepper.moves
        except KeyboardInterrupt:
            self._fail(do, "Stopped", "The run has not moved.")
        except JaxvizError as error:
            self._fail(do, "", str(error))
        except Exception as error:
            # Keep the traceback for `%tb`, as for an uncaught error.
            sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
            self._fail(do, type(error).__name__, _message(error, _DOING.get(do, "running")))
        finally:
            self.send({"done": do})

    def _fail(self, do: str, kind: str, message: str) -> None:
        lines = "\n".join(printable(line, 600) for line in message.splitlines()[:14])
        self.failure = json.dumps({"do": do, "kind": kind, "message": lines})

    # --- requests -----------------------------------------------------------------------------------------------------

    def _there(self, request: Mapping[str, Any]) -> None:
        if self._event is not None:
            go_there(self.stepper, self._event)
            self.folded = False

    def _goto(self, request: Mapping[str, Any]) -> None:
        path = tuple(Level(int(i), str(body), None if k is None else int(k)) for i, body, k in request["path"])
        self.stepper.goto(Position(str(request["stage"]), path, int(request["index"])))

    def _to(self, request: Mapping[str, Any]) -> None:
        self.stepper.to(iteration=int(request["iteration"]))

    def _end(self, request: Mapping[str, Any]) -> None:
        stage = self.stepper.stages[-1]
        self.stepper.goto(Position(stage, (), len(self.stepper.machine.stages[stage].program.equations)))

    def _break(self, request: Mapping[str, Any]) -> None:
        self.stepper.break_at(**self._condition(request))
        self.update()

    def _run_to(self, request: Mapping[str, Any]) -> None:
        self.stepper.run(**self._condition(request))

    def _condition(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments for `break_at`."""
        answer: dict[str, Any] = {}
        if "file" in request:
            answer["line"] = f"{self._view.path_of(int(request['file']))}:{int(request['line'])}"
        elif request.get("line"):
            answer["line"] = str(request["line"]).strip()
        for name in ("primitive", "name"):
            if request.get(name):
                answer[name] = str(request[name]).strip()
        if request.get("non_finite"):
            answer["non_finite"] = True
        if request.get("when"):
            answer["when"] = Condition(str(request["when"]))
        if "index" in request:
            path = tuple((int(i), str(body)) for i, body in request["path"])
            answer["equation"] = self._view.equation(str(request["stage"]), path, int(request["index"]))
        return answer

    def _unbreak(self, request: Mapping[str, Any]) -> None:
        number = int(request["number"])
        if 0 <= number < len(self.stepper.breakpoints):
            del self.stepper.breakpoints[number]
        self.update()

    def _look(self, request: Mapping[str, Any]) -> None:
        key = (str(request["stage"]), str(request["name"]))
        self._view.check_name(*key)
        self._looked = [*(k for k in self._looked if k != key), key][-MOST_LOOKED:]
        self.update()

    def _unlook(self, request: Mapping[str, Any]) -> None:
        self._looked = [k for k in self._looked if k != (str(request["stage"]), str(request["name"]))]
        self.update()


_REQUESTS: dict[str, Callable[[StepperWidget, Mapping[str, Any]], Any]] = {
    "next": lambda w, _: w.stepper.next(),
    "into": lambda w, _: w.stepper.into(),
    "out": lambda w, _: w.stepper.out(),
    "back": lambda w, _: w.stepper.back(),
    "back into": lambda w, _: w.stepper.back(into=True),
    "continue": lambda w, _: w.stepper.run(),
    "restart": lambda w, _: w.stepper.restart(),
    "end": StepperWidget._end,
    "there": StepperWidget._there,
    "goto": StepperWidget._goto,
    "to": StepperWidget._to,
    "run to": StepperWidget._run_to,
    "break": StepperWidget._break,
    "unbreak": StepperWidget._unbreak,
    "look": StepperWidget._look,
    "unlook": StepperWidget._unlook,
}
"""The requests of the page."""

_DOING = {
    "next": "running an equation",
    "into": "running an equation",
    "continue": "running to a breakpoint",
    "there": "running to where it is born",
    "run to": "running to a breakpoint",
    "break": "setting a breakpoint",
    "look": "looking at a value",
}


_RAISED = re.compile(r"^\w+(?:Error|Exception|Interrupt): .*$", re.MULTILINE)


def _message(error: Exception, doing: str) -> str:
    """An error in a few lines: for one raised in a callback, whose traceback XLA includes, also that line."""
    within = _RAISED.findall(message_of(error))
    lines = [short_message(error, doing), *within[-1:], *getattr(error, "__notes__", ())]
    return "\n".join(dict.fromkeys(lines))


def mimebundle(stepper: Stepper, **kwargs: Any) -> Any:
    """What a notebook displays for a stepper: the widget; for one that is already displayed, and that a cell has moved,
    its new stop.

    None if only text can be displayed.
    """
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None or "text/html" not in shell.display_formatter.active_types:
        return None
    widget = stepper.widget()
    is_moved = widget.is_shown and widget.shown_moves != stepper.moves
    widget.is_shown, widget.shown_moves = True, stepper.moves
    if is_moved:
        return None
    shown = widget._repr_mimebundle_(**kwargs)
    if shown is not None:
        (shown[0] if isinstance(shown, tuple) else shown)["text/plain"] = str(stepper)
    return shown


def show_report(report: NanReport) -> None:
    """What a notebook displays for a NaN report: the report, and below it the timeline of the run with a mark where the
    NaN first occurred."""
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    display({"text/plain": str(report), "text/html": report._repr_html_()}, raw=True)
    event = report.born or report.became_nan
    if event is None or report.ran is None or getattr(get_ipython(), "kernel", None) is None:
        return
    try:
        shown = _time_line(report, event)
    except Exception as error:  # the report exists and contains the error
        shown = {"text/plain": f"It cannot be stepped through: {first_line(error)}"}
    display(shown, raw=isinstance(shown, dict))


def _time_line(report: NanReport, event: Event) -> StepperWidget | dict[str, str]:
    stepper = stepper_of(report)
    n = sum(1 for text in stepper._texts.values() for _ in text.program.walk())
    if n > LARGEST:
        return {"text/plain": f"report.step() steps to it; there is no timeline for {n:,} equations."}
    stepper._widget = widget = StepperWidget(stepper, event=event)
    return widget
