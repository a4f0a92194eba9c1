"""A page that shows one widget according to anywidget's module contract (AFM), like VS Code, Colab and others, apart
from their looks."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import ipywidgets
from playwright.sync_api import Page

from jaxviz.page.bundle import Bundled

POLICY = (
    "default-src 'none'; script-src 'nonce-host' blob:; style-src 'unsafe-inline'; connect-src 'none'; img-src 'none'; "
    "worker-src {workers}; base-uri 'none'; form-action 'none'"
)

BINARY = {
    "DataView": "(bytes) => new DataView(bytes.buffer)",
    "ArrayBuffer": "(bytes) => bytes.buffer",
    "Uint8Array": "(bytes) => bytes",
    # Part of a message, at an odd offset.
    "part": """(bytes) => {
        const message = new Uint8Array(bytes.length + 7);
        message.set(bytes, 3);
        return new DataView(message.buffer, 3, bytes.length);
    }""",
    # As in a host whose widgets are in a frame, with messages decoded outside it.
    "of another frame": """(bytes) => {
        const frame = document.body.appendChild(document.createElement("iframe"));
        const { ArrayBuffer, DataView, Uint8Array } = frame.contentWindow;
        const block = new ArrayBuffer(bytes.length);
        new Uint8Array(block).set(bytes);
        return new DataView(block);
    }""",
}
"""The forms in which hosts pass binary data."""

_HOST = """
globalThis.refused = [];
document.addEventListener("securitypolicyviolation", (event) => refused.push(event.effectiveDirective));
const traits = JSON.parse(document.getElementById("traits").textContent);
const asBinary = BINARY;
const received = ({ $bytes }) => asBinary(Uint8Array.from(atob($bytes), (c) => c.charCodeAt(0)));
const revive = (value) => (value?.$bytes === undefined ? value : received(value));
const state = Object.fromEntries(Object.entries(traits).map(([name, value]) => [name, revive(value)]));
const listeners = new Map();
const heard = (event, ...args) => [...(listeners.get(event) ?? [])].forEach((f) => f(...args));
let changed = {};

// The contract, and nothing beside it: no widget manager, no `host`, no `signal`.
const model = Object.freeze({
  get: (name) => state[name],
  set(name, value) {
    if (state[name] === value) return;
    state[name] = changed[name] = value;
    heard(`change:${name}`);
    heard("change");
  },
  save_changes() {
    const sent = changed;
    changed = {};
    kernel({ state: sent });
  },
  on: (event, f) => listeners.set(event, (listeners.get(event) ?? new Set()).add(f)),
  off: (event, f) => (f ? listeners.get(event)?.delete(f) : listeners.delete(event)),
  send: (content) => kernel({ content }),
});

globalThis.fromKernel = ({ state: sent, content, buffers }) => {
  if (content !== undefined) heard("msg:custom", content, buffers.map(received));
  for (const [name, value] of Object.entries(sent ?? {})) {
    state[name] = revive(value);
    heard(`change:${name}`);
  }
};
globalThis.listening = () => [...listeners.values()].reduce((sum, set) => sum + set.size, 0);

const url = URL.createObjectURL(new Blob([traits._esm], { type: "text/javascript" }));
const module = await import(url);
URL.revokeObjectURL(url);
const widget = typeof module.default === "function" ? await module.default() : module.default;
globalThis.widget = widget;
// A host that has no more of it than a theme gives it, and takes it over as it is.
document.head.append(Object.assign(document.createElement("style"), { textContent: traits._css ?? "" }));
await widget.initialize?.({ model });
globalThis.views = [];
globalThis.addView = async (place = document.getElementById("cells")) => {
  const el = place.appendChild(document.createElement("div"));
  const clear = await widget.render({ model, el });
  views.push({ el, clear });
};
globalThis.dropView = async (i) => {
  const [{ el, clear }] = views.splice(i, 1);
  await clear?.();
  el.remove();
};
await addView();
"""


_ON: WeakKeyDictionary[Page, AnywidgetHost] = WeakKeyDictionary()
"""What each page currently shows."""


class AnywidgetHost:
    """A widget on such a page, connected to its Python side.

    Args:
      page: the page to show it on.
      explorer: the explorer, or stepper, to show.
      folder: a folder for the page.
      binary: the form of binary data, one of `BINARY`.
      html, body: attributes of these elements, which notebooks set according to their theme.
      style: the stylesheet of the page.
      workers: the sources from which the page allows workers.
      answers: whether there is a kernel.
    """

    def __init__(
        self,
        page: Page,
        explorer: Bundled,
        folder: Path,
        binary: str = "DataView",
        html: str = "",
        body: str = "",
        style: str = "",
        workers: str = "blob:",
        answers: bool = True,
    ):
        self.page, self.explorer, self.answers = page, explorer, answers
        self.messages: list[Any] = []
        traits = json.dumps(_plain(explorer.get_state())).replace("<", "\\u003c")
        path = folder / "host.html"
        policy = POLICY.format(workers=workers)
        path.write_text(
            f"""<!doctype html><html {html}><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}"><style>body {{ margin: 8px }} {style}</style></head>
<body {body}><div id="cells"></div><script type="application/json" id="traits">{traits}</script>
<script type="module" nonce="host">{_HOST.replace("BINARY", BINARY[binary])}</script></body></html>""",
            encoding="utf-8",
        )
        if page not in _ON:  # exposed functions survive navigation
            page.expose_function("kernel", lambda message: _ON[page]._hear(message))
        _ON[page] = self
        page.goto(path.as_uri())

    def _hear(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    def answer(self) -> None:
        """Lets the kernel process the page's messages and sends back its answers."""
        explorer, sent = self.explorer, []
        messages, self.messages = self.messages, []
        explorer.send = lambda content, buffers=None: sent.append({"content": content, "buffers": _coded(buffers)})
        before = explorer.get_state()
        for message in messages:
            for name, value in message.get("state", {}).items():
                setattr(explorer, name, value)
            if "content" in message:
                explorer._handle_custom_msg(message["content"], [])
        after = explorer.get_state()
        changed = {name: value for name, value in after.items() if value != before[name]}
        del explorer.send
        for one in (*sent, {"state": _plain(changed)}):
            self.page.evaluate("(message) => fromKernel(message)", one)

    def refused(self) -> list[str]:
        """What the page's content security policy has blocked."""
        found: list[str] = self.page.evaluate("() => refused")
        return found

    def wait(self, test_id: str) -> None:
        """Processes messages on both sides until an element exists."""
        for _ in range(400):
            if self.page.get_by_test_id(test_id).count() > 0:
                return
            if self.messages and self.answers:
                self.answer()
            self.page.wait_for_timeout(50)
        raise AssertionError(f"{test_id} did not come")


def _coded(buffers: Any) -> list[dict[str, str]]:
    return [{"$bytes": base64.b64encode(b).decode()} for b in buffers or ()]


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """Traits as JSON: bytes as base64, and other widgets by id, as in ipywidgets."""
    coded = {}
    for name, value in state.items():
        if isinstance(value, (bytes, memoryview)):
            coded[name] = _coded([bytes(value)])[0]
        elif isinstance(value, ipywidgets.Widget):
            coded[name] = f"IPY_MODEL_{value.model_id}"
        else:
            coded[name] = value
    return coded
