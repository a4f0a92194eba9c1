"""The explorer: a widget that shows the linked stages of a derivation side by side."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import traitlets
from IPython import get_ipython
from IPython.display import display

from jaxviz.analysis.training_step import subject_of
from jaxviz.arguments import Argnums
from jaxviz.derivation import STAGES, Derivation
from jaxviz.displays import display as added
from jaxviz.features.comparison.report import Comparison
from jaxviz.features.explorer.addressing import ExplorerAddresses
from jaxviz.features.explorer.changes import changes_of, follow
from jaxviz.features.explorer.columns import ViewMaker, compared_with_jax, view_of
from jaxviz.features.explorer.messages import (
    PeakAdvice,
    SwitchRequest,
    TriedSettings,
    is_address_request,
    is_switch_request,
)
from jaxviz.features.explorer.pictured import Pictured
from jaxviz.features.explorer.sent import (
    added_payload,
    as_json,
    code_of,
    first_payload,
    outline_payload,
    saved_compiled,
    saved_switches,
    speed_of,
)
from jaxviz.features.explorer.still import stage_text, still_outputs, summary
from jaxviz.ir.collector import collector_paused
from jaxviz.ir.errors import EquationError
from jaxviz.ir.syntax import Equation
from jaxviz.page.bundle import GRAPHVIZ, MAIN, STEPPER, Bundled, packed, part_names, script
from jaxviz.page.html import SavedWidget, fit_to_show, page
from jaxviz.page.schema import View, encode, pack
from jaxviz.page.stopping import stoppable
from jaxviz.page.texts import first_line, fit
from jaxviz.progress import report_progress_to
from jaxviz.report.files import write_file
from jaxviz.report.tables import printable

# Imported on first use: all of it together takes longer than the first view of a small function.
if TYPE_CHECKING:
    from jaxviz.features.explorer.whatif import Switches
    from jaxviz.xla.explorer_stage.one_block import OneBlock

_SOON = 2_000
"""Above this many equations of the function itself, the explorer is displayed before its programs are derived."""

_ADVISED = 10_000
"""Up to this many equations, a saved page includes the advice on the peak, which a live one requests: 13 s for 8,000
equations, the 100 layers of a transformer."""

_FIRST, _AT_A_TIME = 0.3, 0.08
"""Seconds of CPU time for settings of the switches: those sent after them, and those for each request of the page."""

_SHOWN = (*STAGES, "compiled")
"""The possible values of `stage` and `beside`: the stages, and the compiled one."""

_QUESTIONS = ("overview", "motion", "lines", "saved", "derived", "cost", "what-if", "differs", "")
"""The possible values of `question`; `widgets/src/host/sync.ts` has the same."""


class Explorer(Pictured, Bundled):
    """The widget. Made by `explore`; what it shows is derived when it is first displayed.

    >>> e = jaxviz.explore(loss, params, x)
    >>> e.stage, e.beside = "jvp", "forward+linear"
    >>> e.selected = "backward:3"
    >>> e.equation
    Equation(mul -> f32[8,16])
    >>> e.select(jaxviz.at("h", phase="cotangent"))
    Equation(mul -> f32[8,16])

    Traits that can be observed and set:
      selected: the selected equation as `stage:number`, such as 'backward:12'; '' for none.
      stage: the stage shown: 'primal', 'jvp', 'forward', 'linear', 'backward' or 'compiled'; or several of the first
        five, joined by '+'.
      beside: the same for the pane at the right; '' for none.
      filter: the words that the residuals shown must contain, as typed into the filter above their table.
      question: the question that is answered: 'overview', as at first, 'motion', 'lines', 'saved', 'derived', 'cost',
        'what-if', or 'differs' if there is a previous version; '' for the stages themselves, which setting a stage or
        selecting an equation shows.
      compared: whether it is shown side by side with the previous version, if there is one: see `update`.
      switches: the checkpoints of *what if* as set, by the numbers of regions, groups and values; '' for the function
        as it is written.
      height: in pixels; 0 for as high as the part of the notebook that is seen.
    """

    payload = traitlets.Bytes(b"").tag(sync=True)
    groups = traitlets.Bytes(b"").tag(sync=True)
    memory = traitlets.Bytes(b"").tag(sync=True)
    rest = traitlets.Bytes(b"").tag(sync=True)
    check = traitlets.Unicode("").tag(sync=True)
    failure = traitlets.Unicode("").tag(sync=True)
    what_if = traitlets.Unicode("").tag(sync=True)
    tried = traitlets.Unicode("").tag(sync=True)
    drawn = traitlets.Unicode("").tag(sync=True)
    written = traitlets.Unicode("").tag(sync=True)
    line = traitlets.Unicode("").tag(sync=True)
    switches = traitlets.Unicode("").tag(sync=True)
    lowered = traitlets.Unicode("").tag(sync=True)
    compiled = traitlets.Unicode("").tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)
    stage = traitlets.Unicode("primal").tag(sync=True)
    beside = traitlets.Unicode("").tag(sync=True)
    filter = traitlets.Unicode("").tag(sync=True)
    height = traitlets.Int(0).tag(sync=True)
    before = traitlets.Bytes(b"").tag(sync=True)
    changes = traitlets.Unicode("").tag(sync=True)
    compared = traitlets.Bool(False).tag(sync=True)
    question = traitlets.Enum(_QUESTIONS, "overview").tag(sync=True)
    advice = traitlets.Unicode("").tag(sync=True)
    speed = traitlets.Unicode("").tag(sync=True)
    found = traitlets.Unicode("").tag(sync=True)
    address = traitlets.Unicode("").tag(sync=True)

    from_page = frozenset("stage beside selected filter height question compared switches".split())

    _is_told = False  # whether the page is sending what it shows
    _is_block = False  # whether only one block is compiled
    _is_outline = False  # whether the payload is only what the overview begins with
    _still_ids: dict[str, str] | None = None
    """The ids by which the cell's outputs other than the widget are found, by MIME type."""

    def __init__(self, derivation: Derivation, comparison: Comparison | None = None, **traits: Any):
        self.derivation = derivation
        self._sent: View | None = None  # what was sent, if more follows
        self._comparison = comparison
        self._n_asked = 0
        super().__init__(**traits)
        self.on_msg(self._answer)

    @cached_property
    def _maker(self) -> ViewMaker:
        return ViewMaker(self.derivation)

    @cached_property
    def view(self) -> View:
        """What is shown, as plain data."""
        return replace(self._whole, check=fit(compared_with_jax(self.derivation)))

    @cached_property
    def _whole(self) -> View:
        """Everything but the comparison with JAX."""
        view = fit_to_show(self._maker.complete)
        del self._maker  # it holds data that is no longer needed
        return view

    @cached_property
    def _switches(self) -> Switches:
        from jaxviz.features.explorer.whatif import Switches

        return Switches(self.derivation)

    @cached_property
    def _addresses(self) -> ExplorerAddresses:
        return ExplorerAddresses(self.derivation)

    @cached_property
    def _one_block(self) -> OneBlock | None:
        one_block: OneBlock | None = added("one block of the compiled stage")(self.derivation)
        return one_block

    @property
    def _n_equations(self) -> int:
        return sum(1 for _ in self.derivation.primal.walk())

    @property
    def equation(self) -> Equation | None:
        """The selected equation, or None."""
        if not self.selected:
            return None
        stage, _, number = self.selected.partition(":")
        return _equations(self.derivation, stage)[int(number)]

    def select(self, at: Any) -> Equation:
        """Selects the equation that computes a value, by its address; see `at`.

        >>> explorer = jaxviz.explore(loss, params, x)
        >>> explorer.select("jnp.mean(h**2)")

        Args:
          at: the address, or its text. It is selected in a stage that is shown, if one computes it.

        Returns:
          the equation, which is `explorer.equation` then.

        Raises:
          AddressError: the address means no value of the function, or several; the message lists candidates.
        """
        self.selected = self._addresses.equation(at, f"{self.stage}+{self.beside}")
        equation = self.equation
        assert equation is not None
        return equation

    def update(self, f: Any, *args: Any, argnums: Argnums = 0, **kwargs: Any) -> None:
        """Shows a new version in place and marks what is new in it; both can be shown side by side.

        >>> explorer.update(faster_loss, params, x)

        The selected equation, the stages and the text that is typed are kept where they still apply.

        Args:
          f: a function, or anything else that `explore` takes.
          *args, **kwargs: what to call it with, as for `explore`.
          argnums: as for `explore`.

        Raises:
          the errors of `explore`; the previous version is then kept.
        """
        derivation = subject_of(f, args, kwargs, argnums)
        comparison = Comparison(self.derivation, derivation)
        selected = follow(comparison, self.selected) if self.selected else ""
        maker = ViewMaker(derivation)
        payload, sent = first_payload(maker)
        self._fill()
        before = pack(encode(self.view)) if self.rest or self.check else self.payload
        self.derivation, self._comparison = derivation, comparison
        for name in ("view", "_whole", "_switches", "_addresses", "_one_block"):
            self.__dict__.pop(name, None)
        self._n_asked = 0
        self._maker, self._sent = maker, sent
        # In one message, so that the page is rendered once.
        with self.hold_sync():
            for name in _ANSWERS:
                setattr(self, name, type(getattr(self, name))())
            self.selected, self.switches = selected, ""
            self.before, self.changes, self.payload = before, as_json(changes_of(comparison)), payload
        if self._still_ids is not None:
            self._work("rest", Explorer._fill_rest)
            self._show_still(is_new=False)

    def save_html(self, path: str | Path, source: bool = True, compiled: bool = False, graphviz: bool = False) -> Path:
        """Writes the explorer as one HTML file that works without a kernel and downloads nothing.

        >>> explorer.save_html("loss.html")

        Args:
          path: the path of the file; its folder must exist.
          source: whether to include the lines of your own source files; file names and line numbers are always
            included.
          compiled: whether to compile the gradient, to include the stage 'compiled', and its memory as a line over the
            modelled one. It is always included if it is shown or has been opened.
          graphviz: whether to include Graphviz (0.9 MB), which lays small graphs out with fewer crossings. Without it,
            they are laid out like large ones.

        For a function of more than 10,000 equations, the page says what would lower the peak only if that has been
        computed: call `complete` first, which looks for a plan and may take a minute.

        Returns:
          the path.
        """
        if compiled or "compiled" in (self.stage, self.beside):
            self._fill_compiled()
        title, saved = self.saved(source)
        left_out = {STEPPER} if graphviz else {STEPPER, GRAPHVIZ}
        parts = {name: packed(name) for name in part_names() if name not in left_out}
        return write_file(path, page(f"{title} · jaxviz", saved.payload, script(MAIN), saved.state, parts))

    def saved(self, source: bool = True, advised: int | None = None) -> tuple[str, SavedWidget]:
        """Its title, and what a page without a kernel shows of it; the advice on the peak up to so many equations."""
        view = self.view if source else fit_to_show(view_of(self.derivation, source=False))
        state = {name: getattr(self, name) for name in sorted(self.from_page - {"switches"})}
        first, end = view.stages[0].equations
        if end - first <= (_ADVISED if advised is None else advised):
            self._fill_advice()
        try:
            state |= saved_switches(self._switches, self.switches, source) | {"tried": self._tried()}
        except Exception as error:
            state["what_if"] = json.dumps({"error": first_line(error)})
        state["advice"] = self.advice if source else ""
        if self.selected and source:
            state["address"] = as_json(self._addresses.of(self.selected))
        if self._comparison is not None:
            self._fill()
            before = self.before if source else encode(fit_to_show(view_of(self._comparison.before, source=False)))
            state |= {"changes": self.changes, "before": base64.b64encode(before).decode()}
        state |= {"line": self.line, "speed": self.speed, "compiled": saved_compiled(self.compiled, source)}
        return view.title, SavedWidget(encode(view), state)

    def text(self, stage: str) -> str:
        """The program of a stage as plain text, with the names that the explorer shows."""
        return stage_text(self.view, stage)

    def __str__(self) -> str:
        return summary(self.view)

    def __repr__(self) -> str:
        return f"Explorer({printable(self.derivation.primal.name, 200)})"

    @collector_paused()
    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        self._fill()
        known = vars(self).get("view") or vars(self).get("_whole")
        return self._with_text(summary(known or fit_to_show(replace(self._maker.first, strings=()))), **kwargs)

    # Otherwise the collector would visit everything created before the page has any of it.
    @collector_paused()
    def _ipython_display_(self, **kwargs: Any) -> None:
        """The widget, and then, if there is a notebook to save, the outputs that replace it without a kernel."""
        has_kernel = getattr(get_ipython(), "kernel", None) is not None
        # The page of a large program says meanwhile that it is being derived.
        n = self._n_equations
        is_later = has_kernel and not self.payload and n > _SOON
        about = f"Explorer of the {self.derivation.title}, {n:,} equations"
        shown = self._with_text(printable(about, 200), **kwargs) if is_later else self._repr_mimebundle_(**kwargs)
        data, metadata = shown if isinstance(shown, tuple) else (shown, {})
        display(data, metadata=metadata, raw=True)
        if not has_kernel:
            return
        if is_later:
            self._work("fill", _WORK["fill"])
            if not self.payload or self._is_outline:  # it was stopped
                return
        # Meanwhile the browser draws the widget, and would request the rest next.
        self._work("rest", Explorer._fill_rest)
        if self._sent is None:  # unless it was stopped
            self._show_still(is_new=True)

    def _with_text(self, text: str, **kwargs: Any) -> Any:
        """The output of the cell, which says this where there are no widgets."""
        shown = super()._repr_mimebundle_(**kwargs)
        if shown is not None:
            (shown[0] if isinstance(shown, tuple) else shown)["text/plain"] = text
        return shown

    def _show_still(self, is_new: bool) -> None:
        if self._still_ids is None:
            self._still_ids = {kind: uuid.uuid4().hex for kind in ("image/png", "text/html")}
        outputs = {
            kind: output for output in still_outputs(self._whole) for kind in self._still_ids if kind in output[0]
        }
        for kind, number in self._still_ids.items():
            if kind in outputs or not is_new:
                data, metadata = outputs.get(kind, ({"text/plain": ""}, {}))
                display(data, metadata=metadata, raw=True, display_id=number, update=not is_new)

    def _fill(self, begins: bool = False) -> None:
        """The programs; a page that waits for them begins with what the overview says first."""
        if (self.payload and not self._is_outline) or self.failure:
            return
        try:
            if self._comparison is not None and not self.changes:
                self.before = pack(encode(fit_to_show(view_of(self._comparison.before))))
                self.changes = as_json(changes_of(self._comparison))
            if "_whole" in vars(self):
                self.payload = pack(encode(vars(self).get("view", self._whole)))
            else:
                opens = self.question == "overview" and self._n_equations > _SOON
                if begins and opens and not (self.payload or self.before):
                    self._is_outline = True
                    self.payload = outline_payload(self._maker)
                self.payload, self._sent = first_payload(self._maker)
            self._is_outline = False
        except Exception as error:
            with self.hold_sync():
                self.payload, self.failure = b"", first_line(error)
            raise

    def complete(self) -> None:
        """Computes everything that the display leaves for later: the memory of a large program, the comparison with
        JAX, what would lower the peak, and the switches of *what if*.

        The browser requests these once the first view is on the screen. If there is no browser, as when a script runs
        the notebook, call this to have them saved with the notebook.
        """
        self._fill_rest()
        self._fill_check()
        self._fill_advice()
        self._fill_what_if()

    def _fill_rest(self) -> None:
        self._fill()
        if self._sent is None:
            return
        if not self._sent.has_groups:
            self.groups, self._sent = added_payload(self._maker.with_groups, self._sent)
        if not self._sent.has_memory:
            self.memory, self._sent = added_payload(self._maker.with_memory, self._sent)
        self.rest = pack(encode(self._whole, known=self._sent))
        self._sent = None

    def _fill_check(self) -> None:
        self._fill_rest()
        if not self.check and self.view.check is not None:
            self.check = as_json(asdict(self.view.check))

    def _fill_what_if(self) -> None:
        """The switches, and then their first figures: the effect of each checkpoint alone."""
        if self.what_if:
            return
        try:
            table = as_json(self._switches.table())
            with self.hold_sync():
                self.tried, self.what_if = self._tried(), table
            self._switches.fill(self._switches.first_keys, _FIRST)
            self.tried = self._tried()
        except Exception as error:
            self.what_if = json.dumps({"error": first_line(error)})

    def _tried(self) -> str:
        self._n_asked += 1
        trades, failed = self._switches.tried_trades()
        return as_json(TriedSettings(trades=trades, failed=failed, plan=self._switches.planned, asked=self._n_asked))

    def _try(self, request: SwitchRequest) -> None:
        """Computes what the page requests: as many settings as there is time for before the page may request something
        else."""
        try:
            switches = self._switches
        except (ValueError, EquationError):  # there are none, as the answer to "what if" says
            return
        if request.get("plan"):
            switches.trade(switches.plan())
        switches.fill(request["keys"], _AT_A_TIME)
        line = as_json(switches.compiled(request["compile"])) if "compile" in request else ""
        with self.hold_sync():
            if "draw" in request and switches.has(request["draw"]):
                self.drawn = as_json(switches.drawn(request["draw"]))
            if line:
                self.line = line
            if "code" in request:
                self.written = as_json({"key": request["code"], "text": code_of(switches, request["code"])})
            self.tried = self._tried()

    def _fill_advice(self) -> None:
        if self.advice:
            return
        try:
            from jaxviz.features.explorer.advice import advice_of

            advice = as_json(fit(advice_of(self.derivation.residuals, self._switches)))
            with self.hold_sync():
                self.tried, self.advice = self._tried(), advice
        except Exception as error:
            self.advice = as_json(PeakAdvice(sentence="", idle="", setting="", cards=[], error=first_line(error)))

    def _fill_speed(self) -> None:
        self.speed = self.speed or speed_of(self.derivation)

    def _fill_compiled(self) -> None:
        """The compiled gradient; JAX's input to XLA is sent before."""
        if self.compiled and not self._is_block:
            return
        stage, one, line = added("compiled stage"), None, self.line
        try:
            one = self._one_block
            lowered = stage.lower(self.derivation)
            text = "" if one is None else one.text
            with self.hold_sync():
                self.lowered, self.compiled, self._is_block = as_json(stage.lowered(lowered, text)), "", False
            texts = stage.compiled(lowered, text)
            message = as_json(texts)
            if texts["memory"] is not None and not self.switches:
                line = as_json(stage.compiled_line("", texts["memory"]))
        except Exception as error:
            message = as_json({"error": first_line(error), "block": "" if one is None else one.text})
        with self.hold_sync():
            self.compiled, self.lowered, self.line = message, "", line

    def _fill_block(self) -> None:
        no_blocks = {"error": "there are no identical blocks"}
        try:
            message = as_json(self._one_block.compiled() if self._one_block is not None else no_blocks)
        except Exception as error:
            message = as_json({"error": first_line(error)})
        with self.hold_sync():
            self.compiled, self.lowered, self._is_block = message, "", True

    def _answer(self, widget: Any, content: Any, buffers: Any) -> None:
        if isinstance(content, str) and content in _WORK:
            self._work(content, _WORK[content])
        elif is_switch_request(content):
            self._work("try", lambda explorer: explorer._try(content))
        elif is_address_request(content):
            self._work(content["work"], lambda explorer: explorer._fill_address(content["work"], content["asked"]))

    def _fill_address(self, work: str, asked: str) -> None:
        if work == "find":
            self.found = as_json(self._addresses.found(asked))
        else:
            self.address = as_json(self._addresses.of(asked))

    def _work(self, request: str, work: Callable[[Explorer], None]) -> None:
        """Does the requested work and reports its progress, since a busy kernel does not answer requests."""
        try:
            with stoppable() as stop:

                def tell(what: str = "", done: int = 0, total: int | None = None) -> None:
                    self.send({"work": request, "what": what, "done": done, "total": total or 0, "stop": stop})

                tell()
                with report_progress_to(tell), collector_paused():
                    work(self)
        except KeyboardInterrupt:
            self.send({"work": request, "stopped": True})

    def set_state(self, sync_data: Any) -> None:
        self._is_told = True
        try:
            super().set_state(sync_data)
        finally:
            self._is_told = False

    @traitlets.observe("stage", "beside", "selected", "compared")  # type: ignore[untyped-decorator]
    def _leave_question(self, change: Any) -> None:
        """Asking for a stage or an equation shows that."""
        if not self._is_told and change["new"]:
            self.question = ""

    @traitlets.validate("stage", "beside")  # type: ignore[untyped-decorator]
    def _stages_exist(self, proposal: Any) -> str:
        keys = [key for key in proposal["value"].split("+") if key]
        for key in keys:
            if key not in _SHOWN:
                raise traitlets.TraitError(f"{key!r} is not a stage; there are {', '.join(_SHOWN)}")
            if key == "compiled" and len(keys) > 1:
                raise traitlets.TraitError("'compiled' is one program of several stages: it needs a pane of its own")
        if not keys and proposal["trait"].name == "stage":
            raise traitlets.TraitError(f"show at least one stage of {', '.join(_SHOWN)}")
        return "+".join(keys)

    @traitlets.validate("switches")  # type: ignore[untyped-decorator]
    def _setting_exists(self, proposal: Any) -> str:
        value: str = proposal["value"]
        if value:
            try:
                self._switches.setting(value)
            except ValueError as error:
                raise traitlets.TraitError(str(error)) from None
        return value

    @traitlets.validate("selected")  # type: ignore[untyped-decorator]
    def _equation_exists(self, proposal: Any) -> str:
        value: str = proposal["value"]
        if not value:
            return value
        stage, _, number = value.partition(":")
        if stage not in STAGES or not number.isdecimal():
            raise traitlets.TraitError(f"{value!r} is not an equation; write stage:number, such as 'backward:12'")
        n = len(_equations(self.derivation, stage))
        if int(number) >= n:
            raise traitlets.TraitError(f"{value!r} is not an equation; {stage} has {n}, numbered from 0")
        return value


_ANSWERS = (
    "groups", "memory", "rest", "check", "failure", "what_if", "tried", "drawn", "written", "line", "lowered",
    "compiled", "advice", "found", "address",
)  # fmt: skip
"""The traits with what the page requests of one version."""

_WORK: dict[str, Callable[[Explorer], None]] = {
    "fill": lambda explorer: explorer._fill(begins=True),
    "advice": Explorer._fill_advice,
    "speed": Explorer._fill_speed,
    "rest": Explorer._fill_rest,
    "check": Explorer._fill_check,
    "what if": Explorer._fill_what_if,
    "compile": Explorer._fill_compiled,
    "compile one": Explorer._fill_block,
}
"""The browser's requests that take time."""


def _equations(derivation: Derivation, stage: str) -> list[Equation]:
    """The equations of a stage in the order of its listing, nested ones after the equation that contains them."""
    return [equation for _, equation in getattr(derivation, stage).walk()]
