"""The JavaScript of explorers, steppers and charts, stored once per kernel, and so once in a saved notebook.

Each widget's own module is `loader.js`, less than 2 KB, which finds the code and hands over to it
(`widgets/src/host/loader.ts`). Larger parts are loaded on first use (`widgets/src/host/parts.ts`).
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import anywidget
import ipywidgets
import traitlets
from IPython.core.getipython import get_ipython

MAIN = "explorer"
GRAPHVIZ = "graphviz"
"""The part with Graphviz, larger than everything else together."""
STEPPER = "stepper"
"""The part with the stepper, which explorers do not load."""
_STATIC = Path(__file__).parent.parent / "static"
_PARTS = "parts"
_LIGHT = 256 * 1024
"""Parts with fewer characters are stored with the main module."""

MISSING_BUNDLE = (
    "The explorer's JavaScript is not built. In a checkout, run `make lab` once, "
    "or `npm ci && npm run build` in widgets/."
)


class OneWay:
    """Of a widget, a page sets only the traits that say what is shown; all others are Python's."""

    from_page: ClassVar[frozenset[str]] = frozenset()
    """The names of the traits that a page may set."""

    def set_state(self, sync_data: Mapping[str, Any]) -> None:
        """Takes what a page has set, as ipywidgets passes it on."""
        allowed = {name: value for name, value in sync_data.items() if name in self.from_page}
        super().set_state(allowed)  # type: ignore[misc]


class Bundle(OneWay, ipywidgets.Widget):  # type: ignore[misc]
    """The code, as a widget without a view: other widgets refer to it, and it is saved with the notebook like them.

    Traits:
      code: the main module, gzipped, in base64.
      parts: the smaller parts in the same form, by name.
      build: identifies the version of the code.
    """

    code = traitlets.Unicode("").tag(sync=True)
    parts = traitlets.Dict().tag(sync=True)
    build = traitlets.Unicode("").tag(sync=True)


class Bundled(OneWay, anywidget.AnyWidget):  # type: ignore[misc]
    """A widget whose code is in the bundle; sends the parts that a page requests.

    Args:
      shows: its kind: what the main module shows, or the name of a part.
    """

    _code = traitlets.Instance(Bundle).tag(sync=True, **ipywidgets.widget_serialization)
    _build = traitlets.Unicode("").tag(sync=True)
    _shows = traitlets.Unicode(MAIN).tag(sync=True)

    def __init__(self, shows: str = MAIN, **traits: Any):
        # Set on the instance, so that the class can be imported if the bundle has not been built.
        self._esm = loader()
        code = bundle()
        super().__init__(_code=code, _build=code.build, _shows=shows, **traits)
        self.on_msg(self._answer_part)

    def _answer_part(self, widget: Any, content: Any, buffers: Any) -> None:
        if not isinstance(content, dict) or "part" not in content:
            return
        name = str(content["part"])
        try:
            self.send({"part": name}, buffers=[packed(name)])
        except FileNotFoundError as error:
            self.send({"part": name, "error": str(error)})


_shared: list[Bundle] = []


def bundle() -> Bundle:
    """The bundle of this kernel; a new one if it has been closed or the code has been rebuilt."""
    sources = {name: script(name) for name in (MAIN, *part_names())}
    build = hashlib.sha256("".join(sources.values()).encode()).hexdigest()[:16]
    if not _shared or _shared[0].comm is None or _shared[0].build != build:
        parts = {name: _text(name) for name, source in sources.items() if name != MAIN and len(source) < _LIGHT}
        _shared[:] = [Bundle(code=_text(MAIN), parts=parts, build=build)]
    return _shared[0]


class Charts(OneWay, anywidget.AnyWidget):  # type: ignore[misc]
    """Zooms the charts of reports in the pages of a kernel; without a view.

    A report is HTML with a still picture. Where a page runs this module, it attends to the pictures when they are
    pointed at or focused (`widgets/src/main/charts.ts`); everywhere else they are what they were.
    """

    _shows = traitlets.Unicode("charts").tag(sync=True)  # by which a page knows what to save with the notebook

    def __init__(self) -> None:
        self._esm = static("charts")
        super().__init__()


_charts: list[Charts] = []


def attend_to_charts() -> None:
    """In a notebook, has the pages of the kernel zoom charts; once, unless the widget has been closed."""
    has_kernel = getattr(get_ipython(), "kernel", None) is not None
    if not has_kernel or (_charts and _charts[0].comm is not None):
        return
    with contextlib.suppress(FileNotFoundError):  # in a checkout without the page's bundle, pictures stay still
        _charts[:] = [Charts()]


def _text(name: str) -> str:
    return base64.b64encode(packed(name)).decode()


def loader() -> str:
    """The module that each widget has."""
    return _read(_STATIC / "loader.js")


def exercise_script() -> str:
    """The script of exercises on a page without a kernel."""
    return static("exercise")


def charts_script() -> str:
    """The script that zooms charts on a page without a kernel."""
    return static("chartspage")


def static(name: str) -> str:
    """A script of its own."""
    return _read(_STATIC / f"{name}.js")


def script(name: str) -> str:
    """The source of the main module, or of a part.

    Raises:
      FileNotFoundError: there is no part with that name.
    """
    if name == MAIN:
        return _read(_STATIC / f"{MAIN}.js")
    if name not in part_names():
        raise FileNotFoundError(f"the explorer has no part {name!r}")
    return _read(_STATIC / _PARTS / f"{name}.js")


def packed(name: str) -> bytes:
    """The same, gzipped."""
    return _packed(script(name))


def part_names() -> tuple[str, ...]:
    """The parts that are loaded on first use."""
    return tuple(sorted(path.stem for path in (_STATIC / _PARTS).glob("*.js")))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(MISSING_BUNDLE) from None


# More than there are parts: fewer would be packed anew for each widget.
@lru_cache(maxsize=32)
def _packed(source: str) -> bytes:
    return gzip.compress(source.encode(), 9, mtime=0)
