"""The explorer as one HTML file, which works without a kernel and downloads nothing."""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxviz.page.schema import View
from jaxviz.page.texts import fit
from jaxviz.report.tables import printable

_HOST = """
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const unpack = async (text) =>
  new Response(new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("gzip")));
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
const el = document.getElementById("jaxviz");
try {
  state = await (await unpack(read("jaxviz-state"))).json();
  state.payload = new DataView(await (await unpack(read("jaxviz-payload"))).arrayBuffer());
  if (state.before) state.before = new DataView(bytesOf(state.before).buffer);
  const source = new Blob([await (await unpack(read("jaxviz-module"))).text()], { type: "text/javascript" });
  const module = await import(URL.createObjectURL(source));
  globalThis.jaxviz = { model };
  await module.default.render({ model, el });
} catch (error) {
  el.textContent = "This page could not be shown: " + error;
}
"""

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' blob:{wasm}; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)

_WASM_PARTS = {"graphviz"}
"""The parts with WebAssembly, which only pages with these parts may compile."""


def page(
    title: str, payload: bytes, module: str, state: Mapping[str, Any], parts: Mapping[str, bytes] | None = None
) -> str:
    """The HTML of a page that shows one widget.

    Args:
      title: the title of the page.
      payload: the bytes from `schema.encode`.
      module: the widget's JavaScript module.
      state: the widget's other traits; `before`, if present, in base64.
      parts: modules to load on first use, gzipped, by name.
    """
    policy = _POLICY.format(wasm=" 'wasm-unsafe-eval'" if _WASM_PARTS & set(parts or ()) else "")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{html.escape(title)}</title>
<style>
body {{ margin: 0; background: light-dark(#fff, #111418); font-family: system-ui, sans-serif; }}
html {{ color-scheme: light dark; }}
.jaxviz {{ height: 100vh !important; border: 0 !important; border-radius: 0 !important; }}
</style>
</head>
<body>
<div id="jaxviz"></div>
<noscript>This page shows a program with JavaScript, which is switched off here.</noscript>
{_data("jaxviz-state", _packed(json.dumps(dict(state)).encode()))}
{_data("jaxviz-payload", _packed(payload))}
{_data("jaxviz-module", _packed(module.encode()))}
{"".join(_data(f"jaxviz-part-{name}", base64.b64encode(part).decode()) for name, part in (parts or {}).items())}
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
