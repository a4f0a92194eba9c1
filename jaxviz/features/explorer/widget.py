"""The explorer: the widget that shows a derivation, its stages side by side, linked."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets
import traitlets
from jax.extend.core import ClosedJaxpr

from jaxviz.derivation import STAGES, Derivation, derive
from jaxviz.features.comparison.report import Comparison
from jaxviz.features.draw.dot import Dot
from jaxviz.features.draw.drawing import Drawing, draw
from jaxviz.features.explorer.changes import changes_of, follow
from jaxviz.features.explorer.columns import ViewMaker, view_of
from jaxviz.features.explorer.compiled import compiled
from jaxviz.features.explorer.text import stage_text, summary
from jaxviz.features.explorer.whatif import what_if
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.syntax import Equation, Program
from jaxviz.page.bundle import GRAPHVIZ, MAIN, Bundle, bundle, loader, packed, part_names, script
from jaxviz.page.html import fit_to_show, page
from jaxviz.page.schema import View, encode, pack
from jaxviz.page.texts import first_line
from jaxviz.progress import report_progress_to
from jaxviz.report.tables import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_AT_ONCE = 10_000
"""Of more equations the memory, the notes and the comparison with JAX come after the rest is on the screen."""


_SHOWN = (*STAGES, "compiled")
"""What `stage` and `beside` may be: the stages, and what they compile to."""

_NOT_IN_THE_PAGE = "It was not compiled when this page was saved; `save_html(path, compiled=True)` compiles it."


class Explorer(anywidget.AnyWidget):  # type: ignore[misc]
    """The widget. Made by `explore`; what it shows is derived when it is first displayed.

    >>> e = jaxviz.explore(loss, params, x)
    >>> e.stage, e.beside = "jvp", "forward+linear"
    >>> e.selected = "backward:12"
    >>> e.equation
    Equation(mul -> f32[8,16])

    Traits to observe and to set:
      selected: the selected equation as `stage:number`, such as 'backward:12'; '' for none.
      stage: the stage shown: 'primal', 'jvp', 'forward', 'linear', 'backward' or 'compiled'; or several of the first five, joined by '+'.
      beside: the same for the pane at the right; '' for none.
      filter: the words that the residuals shown must have, as typed into the filter above their table.
      compared: whether it is shown side by side with the version before, if there is one: see `update`.
      height: in pixels.
    """

    _code = traitlets.Instance(Bundle).tag(sync=True, **ipywidgets.widget_serialization)
    _build = traitlets.Unicode("").tag(sync=True)
    payload = traitlets.Bytes(b"").tag(sync=True)
    rest = traitlets.Bytes(b"").tag(sync=True)
    failure = traitlets.Unicode("").tag(sync=True)
    what_if = traitlets.Unicode("").tag(sync=True)
    compiled = traitlets.Unicode("").tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)
    stage = traitlets.Unicode("primal").tag(sync=True)
    beside = traitlets.Unicode("").tag(sync=True)
    filter = traitlets.Unicode("").tag(sync=True)
    height = traitlets.Int(620).tag(sync=True)
    before = traitlets.Bytes(b"").tag(sync=True)
    changes = traitlets.Unicode("").tag(sync=True)
    compared = traitlets.Bool(False).tag(sync=True)

    def __init__(self, derivation: Derivation, comparison: Comparison | None = None, **traits: Any):
        self.derivation = derivation
        self._partial: View | None = None
        # Set on the instance, so that the class can be imported where the bundle has not been built.
        self._esm = loader()
        self._comparison = comparison
        code = bundle()
        super().__init__(_code=code, _build=code.build, **traits)
        self.on_msg(self._answer)

    @cached_property
    def _maker(self) -> ViewMaker:
        return ViewMaker(self.derivation)

    @cached_property
    def view(self) -> View:
        """What is shown, as plain data."""
        whole = fit_to_show(self._maker.whole)
        del self._maker  # which holds more than it needs to be asked for nothing any more
        return whole

    @property
    def equation(self) -> Equation | None:
        """The selected equation, or None."""
        if not self.selected:
            return None
        stage, _, number = self.selected.partition(":")
        return _equations(self.derivation, stage)[int(number)]

    def update(self, f: Any, *args: Any, argnums: int | Sequence[int] = 0, **kwargs: Any) -> None:
        """Shows a new version in place, marks what it has that the one before had not, and can show both side by side.

        >>> explorer.update(faster_loss, params, x)

        The selected equation, the stages and what is typed stay as they are where they still apply.

        Args:
          f: a function, or what else `explore` takes.
          *args, **kwargs: what to call it with, as for `explore`.
          argnums: as for `explore`.

        Raises:
          what `explore` raises; the version before then stays.
        """
        derivation = _derivation(f, args, argnums, kwargs)
        comparison = Comparison(self.derivation, derivation)
        selected = follow(comparison, self.selected) if self.selected else ""
        maker = ViewMaker(derivation)
        payload, partial = _first_payload(maker)
        self._fill()
        before = pack(encode(self.view)) if self.rest else self.payload
        self.derivation, self._comparison = derivation, comparison
        self.__dict__.pop("view", None)
        self._maker, self._partial = maker, partial
        # In one message, so that the page is drawn once.
        with self.hold_sync():
            self.selected, self.what_if, self.compiled, self.failure, self.rest = selected, "", "", "", b""
            self.before, self.changes, self.payload = before, _changes_json(comparison), payload

    def save_html(self, path: str | Path, source: bool = True, compiled: bool = False, graphviz: bool = False) -> Path:
        """Writes the explorer as one HTML file that works without a kernel and fetches nothing.

        >>> explorer.save_html("loss.html")

        Args:
          path: of the file; its folder must exist.
          source: whether the lines of your own source files are in it; without them, file names and line numbers are.
          compiled: whether to compile the gradient, so that the stage 'compiled' is in it. It is in any case where it has been looked
            at, or is shown.
          graphviz: whether Graphviz is in it, which lays small graphs out with fewer crossings and takes 0.9 MB. Without it they are
            laid out as large ones are.

        Returns:
          the path.
        """
        view = self.view if source else fit_to_show(view_of(self.derivation, source=False))
        state = {name: getattr(self, name) for name in ("stage", "beside", "selected", "filter", "height", "compared")}
        state["what_if"] = _what_if_json(self.derivation, source)
        parts = {name: packed(name) for name in part_names() if graphviz or name != GRAPHVIZ}
        if self._comparison is not None:
            self._fill()
            before = self.before if source else encode(fit_to_show(view_of(self._comparison.before, source=False)))
            state |= {"changes": self.changes, "before": base64.b64encode(before).decode()}
        if compiled or "compiled" in (self.stage, self.beside):
            self._fill_compiled()
        state["compiled"] = self.compiled or json.dumps({"error": _NOT_IN_THE_PAGE})
        path = Path(path)
        path.write_text(page(f"{view.title} · jaxviz", encode(view), script(MAIN), state, parts), encoding="utf-8")
        return path

    def draw(self, stage: str = "", depth: int | None = None, source: bool = True) -> Drawing:
        """A picture of a program, or of several side by side; by default of what the explorer shows.

        >>> explorer.draw("forward+backward")

        Args:
          stage, depth, source: as of `jaxviz.draw`.
        """
        keys = f"{self.stage}+{self.beside}".split("+")
        shown = stage or "+".join(key for key in dict.fromkeys(keys) if key in STAGES)
        return draw(self.derivation, stage=shown, depth=depth, source=source)

    def to_dot(self, stage: str = "", depth: int | None = None, source: bool = True) -> Dot:
        """The picture as a `graphviz.Source`, which shows itself and which `.render()` writes; see `jaxviz.to_dot`."""
        return self.draw(stage, depth, source).to_dot()

    def save_svg(self, path: str | Path, stage: str = "", depth: int | None = None, source: bool = True) -> Path:
        """Writes the picture as SVG, by `dot` where it is installed; returns the path. The arguments are those of `draw`."""
        return self.draw(stage, depth, source).save_svg(path)

    def save_png(self, path: str | Path, stage: str = "", depth: int | None = None, dpi: int = 150) -> Path:
        """Writes the picture as PNG; returns the path. The arguments are those of `draw`, and the points per inch."""
        return self.draw(stage, depth).save_png(path, dpi)

    def plot(self, stage: str = "", depth: int | None = None, width: float | None = None) -> Figure:
        """The picture as a matplotlib figure, for papers; the arguments are those of `draw`, and the width in inches."""
        return self.draw(stage, depth).plot(width)

    def text(self, stage: str) -> str:
        """The program of a stage as plain text, with the names that the explorer shows."""
        return stage_text(self.view, stage)

    def __str__(self) -> str:
        return summary(self.view)

    def __repr__(self) -> str:
        return f"Explorer({printable(self.derivation.primal.name, 200)})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        self._fill()
        shown = super()._repr_mimebundle_(**kwargs)
        if shown is not None:
            view = self.view if "view" in vars(self) else fit_to_show(replace(self._maker.first, strings=()))
            (shown[0] if isinstance(shown, tuple) else shown)["text/plain"] = summary(view)
        return shown

    def _fill(self) -> None:
        if self.payload or self.failure:
            return
        try:
            if self._comparison is not None and not self.changes:
                self.before = pack(encode(fit_to_show(view_of(self._comparison.before))))
                self.changes = _changes_json(self._comparison)
            if "view" in vars(self):
                self.payload = pack(encode(self.view))
            else:
                self.payload, self._partial = _first_payload(self._maker)
        except Exception as error:
            self.failure = first_line(error)
            raise

    def complete(self) -> None:
        """Works out what the display of a large program leaves for later: the memory, the notes and the comparison with JAX.

        The browser asks for it as soon as the rest is on the screen. Where none does, as when a notebook is run by a script, this has
        them saved with the notebook.
        """
        self._fill()
        if self._partial is not None:
            self.rest = pack(encode(self.view, known=self._partial))
            self._partial = None

    def _fill_what_if(self) -> None:
        if not self.what_if:
            self.what_if = _what_if_json(self.derivation)

    def _fill_compiled(self) -> None:
        if not self.compiled:
            self.compiled = _compiled_json(self.derivation)

    def _answer(self, widget: Any, content: Any, buffers: Any) -> None:
        """What the browser asks for."""
        if isinstance(content, str) and content in _WORK:
            self._work(content)
        if isinstance(content, dict) and "part" in content:
            self._send_part(str(content["part"]))

    def _work(self, asked: str) -> None:
        """Does what was asked for and says how far it is, since a kernel that is at work hears no questions."""

        def tell(what: str = "", done: int = 0, total: int | None = None) -> None:
            self.send({"work": asked, "what": what, "done": done, "total": total or 0})

        tell()
        try:
            with report_progress_to(tell):
                _WORK[asked](self)
        except KeyboardInterrupt:
            self.send({"work": asked, "stopped": True})

    def _send_part(self, name: str) -> None:
        try:
            self.send({"part": name}, buffers=[packed(name)])
        except FileNotFoundError as error:
            self.send({"part": name, "error": str(error)})

    @traitlets.validate("stage", "beside")  # type: ignore[untyped-decorator]
    def _stages_exist(self, proposal: Any) -> str:
        keys = [key for key in proposal["value"].split("+") if key]
        for key in keys:
            if key not in _SHOWN:
                raise traitlets.TraitError(f"{key!r} is not a stage; there are {', '.join(_SHOWN)}")
            if key == "compiled" and len(keys) > 1:
                raise traitlets.TraitError(
                    "'compiled' takes a pane to itself, since it is one program of several stages"
                )
        if not keys and proposal["trait"].name == "stage":
            raise traitlets.TraitError(f"one stage must be shown, of {', '.join(_SHOWN)}")
        return "+".join(keys)

    @traitlets.validate("selected")  # type: ignore[untyped-decorator]
    def _equation_exists(self, proposal: Any) -> str:
        value: str = proposal["value"]
        if not value:
            return value
        stage, _, number = value.partition(":")
        if stage not in STAGES or not number.isdecimal():
            raise traitlets.TraitError(f"{value!r} names no equation; write stage:number, such as 'backward:12'")
        n = len(_equations(self.derivation, stage))
        if int(number) >= n:
            raise traitlets.TraitError(f"{value!r} names no equation; {stage} has {n}, numbered from 0")
        return value


_WORK: dict[str, Callable[[Explorer], None]] = {
    "fill": Explorer._fill,
    "rest": Explorer.complete,
    "what if": Explorer._fill_what_if,
    "compile": Explorer._fill_compiled,
}
"""What the browser may ask for that takes time."""


def _first_payload(maker: ViewMaker) -> tuple[bytes, View | None]:
    """What is sent first, and the view that it is where that is not all of it."""
    is_small = maker.first.n_equations <= _AT_ONCE
    shown = fit_to_show(maker.whole if is_small else maker.first)
    return pack(encode(shown)), None if is_small else shown


def _changes_json(comparison: Comparison) -> str:
    return json.dumps(changes_of(comparison), separators=(",", ":"))


def _derivation(f: Any, args: Sequence[Any], argnums: int | Sequence[int], kwargs: Mapping[str, Any]) -> Derivation:
    if isinstance(f, (Program, ClosedJaxpr)) and not args:
        n = len(f.invars) if isinstance(f, Program) else len(f.jaxpr.invars)
        return derive(f, argnums=tuple(range(n)))
    return derive(f, *args, argnums=argnums, **kwargs)


def _what_if_json(derivation: Derivation, source: bool = True) -> str:
    """What the switches need, or why there are none."""
    try:
        return json.dumps(what_if(derivation, source), separators=(",", ":"))
    except Exception as error:
        return json.dumps({"error": first_line(error)})


def _compiled_json(derivation: Derivation) -> str:
    """The texts of the compiled gradient, or why there are none."""
    try:
        return json.dumps(compiled(derivation), separators=(",", ":"))
    except Exception as error:
        return json.dumps({"error": first_line(error)})


def _equations(derivation: Derivation, stage: str) -> list[Equation]:
    """The equations of a stage in the order of its listing, nested ones after the equation that holds them."""
    return [equation for _, equation in getattr(derivation, stage).walk()]


@api_boundary
def explore(f: Any, *args: Any, argnums: int | Sequence[int] = 0, **kwargs: Any) -> Explorer:
    """Shows what JAX's transformations make of a function, as a widget.

    >>> jaxviz.explore(loss, params, x)

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, and then no args; or what `compare` gives, for both side by side.
      *args, **kwargs: what to call it with, as for `derive`.
      argnums: the positional argument or arguments to differentiate in; of a Program, all of its inputs.

    Raises:
      what `derive` raises; a stage that cannot be derived is shown with its error instead.
    """
    if isinstance(f, Comparison) and not args:
        return Explorer(f.after, f, compared=True)
    return Explorer(_derivation(f, args, argnums, kwargs))
