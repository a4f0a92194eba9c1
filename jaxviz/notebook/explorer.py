"""The explorer: the widget that shows a derivation, its stages side by side, linked."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from jax.extend.core import ClosedJaxpr

from jaxviz.derivation import Derivation, derive
from jaxviz.ir.syntax import Program
from jaxviz.views.columns import view_of
from jaxviz.views.schema import encode

_STATIC = Path(__file__).parent.parent / "static"

MISSING_BUNDLE = "The explorer's JavaScript is not built. In a checkout, run `make lab` once, or `npm ci && npm run build` in widgets/."


class Explorer(anywidget.AnyWidget):  # type: ignore[misc]
    """The widget. Made by `explore`.

    Traits to observe and to set:
      selected: the selected equation as `stage:number`, such as 'backward:12'; '' for none.
      stage: the stage shown, such as 'linear'.
      height: in pixels.
    """

    payload = traitlets.Bytes(b"").tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)
    stage = traitlets.Unicode("primal").tag(sync=True)
    height = traitlets.Int(620).tag(sync=True)

    def __init__(self, derivation: Derivation, **traits: Any):
        if not (_STATIC / "explorer.js").exists():
            raise FileNotFoundError(MISSING_BUNDLE)
        self.derivation = derivation
        # Set on the instance, so that the class can be imported where the bundle has not been built.
        self._esm = (_STATIC / "explorer.js").read_text(encoding="utf-8")
        self._css = (_STATIC / "explorer.css").read_text(encoding="utf-8")
        super().__init__(payload=encode(view_of(derivation)), **traits)

    def save_html(self, path: str | Path, source: bool = True) -> Path:
        """Writes the explorer as one HTML file that works without a kernel and fetches nothing.

        Args:
          path: of the file.
          source: whether the lines of the user's own source files are in it.

        Returns:
          the path.
        """
        payload = self.payload if source else encode(view_of(self.derivation, source=False))
        path = Path(path)
        path.write_text(page(self.derivation.primal.name, payload, self.height, self.stage), encoding="utf-8")
        return path

    def __str__(self) -> str:
        return f"Explorer({self.derivation.primal.name}: {self.derivation.residuals.summary})"


def explore(f: Any, *args: Any, argnums: int | Sequence[int] = 0, **kwargs: Any) -> Explorer:
    """Shows what JAX's transformations make of a function, as a widget.

    >>> jaxviz.explore(loss, params, x)

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, and then no args.
      *args, **kwargs: what to call it with, as for `derive`.
      argnums: the positional arguments to differentiate in.

    Raises:
      what `derive` raises; a stage that cannot be derived is shown with its error instead.
    """
    if isinstance(f, (Program, ClosedJaxpr)) and not args:
        n = len(f.invars) if isinstance(f, Program) else len(f.jaxpr.invars)
        return Explorer(derive(f, argnums=tuple(range(n))))
    return Explorer(derive(f, *args, argnums=argnums, **kwargs))


def page(title: str, payload: bytes, height: int, stage: str) -> str:
    """The explorer as an HTML page: the widget's own module, its state, and a host for it in place of a notebook."""
    module = (_STATIC / "explorer.js").read_text(encoding="utf-8")
    style = (_STATIC / "explorer.css").read_text(encoding="utf-8")
    state = json.dumps({"height": height, "stage": stage, "selected": ""})
    encoded: Callable[[str], str] = lambda text: base64.b64encode(text.encode()).decode()
    # Everything that comes from a program is in base64: nothing in it can end the script that holds it.
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)} · jaxviz</title>
<style>html{{color-scheme:light dark}}body{{margin:0;background:light-dark(#fff,#111418)}}#explorer>.jaxviz{{height:100vh!important;border:0;border-radius:0}}</style>
<style>{style}</style>
<body>
<div id="explorer"></div>
<script type="module">
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const state = {state};
state.payload = new DataView(bytes("{base64.b64encode(payload).decode()}").buffer);
const listeners = {{}};
const model = {{
  get: (name) => state[name],
  set: (name, value) => {{ state[name] = value; for (const call of listeners["change:" + name] ?? []) call(); }},
  save_changes: () => {{}},
  on: (event, call) => (listeners[event] ??= []).push(call),
  off: (event, call) => {{ listeners[event] = (listeners[event] ?? []).filter((c) => c !== call); }},
}};
const url = URL.createObjectURL(new Blob([bytes("{encoded(module)}")], {{ type: "text/javascript" }}));
const {{ default: widget }} = await import(url);
widget.render({{ model, el: document.getElementById("explorer") }});
</script>
"""
