"""The explorer as one HTML file, which works without a kernel and downloads nothing."""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxviz.page.schema import View
from jaxviz.page.texts import fit
from jaxviz.report.tables import printable

_HOST = """
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const unpack = async (text) =>
  new Response(new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("gzip")));
let module;
const load = async () => {
  const source = new Blob([await (await unpack(read("jaxviz-module"))).text()], { type: "text/javascript" });
  return import(URL.createObjectURL(source));
};
const mount = async (el) => {
  const name = el.id.slice("jaxviz".length);
  let state = {};
  const listeners = new Map();
  const model = {
    get: (name) => state[name],
    set: (name, value) => {
      if (state[name] === value) return;
      state[name] = value;
      for (const listener of listeners.get("change:" + name) ?? []) listener();
    },
    on: (event, listener) => listeners.set(event, [...(listeners.get(event) ?? []), listener]),
    off: (event, listener) => listeners.set(event, (listeners.get(event) ?? []).filter((l) => l !== listener)),
    save_changes: () => {},
    comm_live: false,
    // There is no kernel; parts of the program that are loaded when they are first used are in the page.
    send: async ({ part }) => {
      if (part === undefined) return;
      const found = document.getElementById("jaxviz-part-" + part);
      const answer = found ? { part } : { part, error: "this page was saved without " + part };
      const buffers = found ? [new DataView(bytesOf(read(found.id)).buffer)] : [];
      for (const listener of listeners.get("msg:custom") ?? []) listener(answer, buffers);
    },
  };
  try {
    state = await (await unpack(read("jaxviz-state" + name))).json();
    state.payload = new DataView(await (await unpack(read("jaxviz-payload" + name))).arrayBuffer());
    if (state.before) state.before = new DataView(bytesOf(state.before).buffer);
    module ??= load();
    globalThis.jaxviz = { model };
    await (await module).default.render({ model, el });
  } catch (error) {
    el.textContent = "This page could not be shown: " + error;
  }
};
for (const el of document.querySelectorAll("[id^=jaxviz].widget")) {
  const folded = el.closest("details");
  if (folded) folded.addEventListener("toggle", () => mount(el), { once: true });
  else await mount(el);
}
// A link to what is folded unfolds it.
const unfold = () => {
  const target = location.hash && document.querySelector(location.hash)?.closest("details");
  if (target) target.open = true;
};
addEventListener("hashchange", unfold);
unfold();
"""

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' blob:{wasm}; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)

_WHOLE = """
body { margin: 0; background: light-dark(#fff, #111418); font-family: system-ui, sans-serif; }
html { color-scheme: light dark; }
.jaxviz { height: 100vh !important; border: 0 !important; border-radius: 0 !important; }
"""
"""The style of a page that is all one widget."""

_WASM_PARTS = {"graphviz"}
"""The parts with WebAssembly, which only pages with these parts may compile."""


@dataclass(frozen=True)
class SavedWidget:
    """A widget of a page.

    Args:
      payload: the bytes from `schema.encode`.
      state: its other traits; `before`, if present, in base64.
    """

    payload: bytes
    state: Mapping[str, Any]


def page(
    title: str, payload: bytes, module: str, state: Mapping[str, Any], parts: Mapping[str, bytes] | None = None
) -> str:
    """The HTML of a page that shows one widget.

    Args:
      title: the title of the page.
      payload, state: see `SavedWidget`.
      module: the widget's JavaScript module.
      parts: modules to load on first use, gzipped, by name.
    """
    return document(title, _WHOLE, place_of(""), {"": SavedWidget(payload, state)}, module, parts or {})


def place_of(name: str) -> str:
    """The element of a page where the widget of this name appears, when what it is folded into is opened."""
    return f'<div id="jaxviz{name}" class="widget"></div>'


def document(
    title: str, style: str, body: str, widgets: Mapping[str, SavedWidget], module: str, parts: Mapping[str, bytes]
) -> str:
    """The HTML of a page with widgets, by their names; see `page` and `place_of`."""
    policy = _POLICY.format(wasm=" 'wasm-unsafe-eval'" if _WASM_PARTS & set(parts) else "")
    data = [
        *(_data(f"jaxviz-state{name}", _packed(json.dumps(dict(w.state)).encode())) for name, w in widgets.items()),
        *(_data(f"jaxviz-payload{name}", _packed(w.payload)) for name, w in widgets.items()),
        *([_data("jaxviz-module", _packed(module.encode()))] * bool(widgets)),
        *(_data(f"jaxviz-part-{name}", base64.b64encode(part).decode()) for name, part in parts.items()),
    ]
    lines = "\n".join(data)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{html.escape(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
<noscript>This page shows a program with JavaScript, which is switched off here.</noscript>
{lines}
<script type="module">{_HOST}</script>
</body>
</html>
"""


def fit_to_show(view: View) -> View:
    """A view with control and bidirectional characters escaped in its texts, and very long lines cut."""
    shown: View = fit(view)
    return replace(shown, title=printable(view.title, 200))


def _packed(block: bytes) -> str:
    return base64.b64encode(gzip.compress(block, mtime=0)).decode()


def _data(name: str, value: Any) -> str:
    """A JSON value inside a page; no text in it can close the element that contains it."""
    text = json.dumps(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'<script type="application/json" id="{name}">{text}</script>'
