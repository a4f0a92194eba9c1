/** The frame of every widget, and its keyboard help. */

import type { Host, WidgetModel } from "../host/model";
import { openModal } from "./copying";
import { button, h } from "./dom";
import { keepFocus } from "./focus";
import { reasonOf } from "./pane";

/** The least height of a widget, and what it leaves of the notebook's; in pixels. */
const [LEAST, LEFT] = [520, 24];

/**
 * Its part of the window in a frame, which may be as high as its contents and so does not say how much of the notebook is seen: the rest is
 * the browser's and the notebook's own.
 */
const FRAMED = 0.7;

/** A part of a page that scrolls is the notebook if it is at least this high, with the widget and without, in pixels. */
const NOTEBOOK = 300;

/** The root element of a widget, attached to the page, and a function to remove it. */
export function frame({ model, el }: Host, name: string): [HTMLElement, () => void] {
  const root = h("div", {
    class: `jaxviz jv-${name}`,
    "data-testid": name,
    role: "group",
    tabindex: -1,
    "aria-label": `jaxviz ${name}`,
  });
  el.append(root);
  const [loosen, release] = [keepFocus(root), keepHeight(root, model)];
  return [
    root,
    () => {
      loosen();
      release();
    },
  ];
}

/** As high as was asked for; or as much of the notebook as is seen, until the user drags its lower edge, which is remembered. */
function keepHeight(root: HTMLElement, model: WidgetModel): () => void {
  const asked = () => Math.max(0, Number(model.get("height")) || 0);
  let set = 0;
  let seen: Element | null | undefined;
  const fit = () => {
    const framed = Math.round(FRAMED * window.outerHeight);
    const page = window.parent === window ? window.innerHeight - LEFT : framed;
    set = asked() || Math.max(LEAST, seen ? seen.clientHeight - LEFT : page);
    root.style.height = `${set}px`;
  };
  const observer = new ResizeObserver(([entry]) => {
    const isShown = root.isConnected && entry!.contentRect.width > 0;
    if (isShown && !(seen === null || seen?.isConnected)) {
      seen = notebookOf(root);
      if (seen) observer.observe(seen);
    }
    if (Number.parseFloat(root.style.height) === set) fit();
  });
  const keep = () => {
    const height = Math.round(Number.parseFloat(root.style.height));
    if (height === set || !(height > 0)) return;
    set = height;
    model.set("height", height);
    model.save_changes();
  };
  fit();
  observer.observe(root);
  window.addEventListener("resize", fit);
  window.addEventListener("pointerup", keep);
  model.on("change:height", fit);
  return () => {
    observer.disconnect();
    window.removeEventListener("resize", fit);
    window.removeEventListener("pointerup", keep);
    model.off("change:height", fit);
  };
}

/** The part of the page that scrolls and holds the notebook, whose height does not depend on the widget; null for the page itself. */
function notebookOf(element: HTMLElement): Element | null {
  const root = element.getRootNode();
  const around: [Element, height: number, top: number][] = [];
  let each = element.parentElement ?? (root instanceof ShadowRoot ? root.host : null);
  for (; each !== null && each !== document.body; each = each.parentElement)
    if (["auto", "scroll"].includes(getComputedStyle(each).overflowY))
      around.push([each, each.clientHeight, each.scrollTop]);
  element.style.display = "none";
  const holds = ([each, height]: [Element, number, number]) =>
    height >= NOTEBOOK && each.clientHeight === height;
  const [found] = around.find(holds) ?? [null];
  element.style.display = "";
  for (const [each, , top] of around) if (each.scrollTop !== top) each.scrollTop = top;
  return found;
}

/** A message in place of the content. */
export function note(text: string, id?: string): HTMLElement {
  return h("p.jv-message.jv-dim", { role: "status", "data-testid": id }, text);
}

/** A section of the help: a title, and the meanings of words or signs, each shown with a class. */
export type Meanings = readonly [
  title: string,
  readonly (readonly [sign: string, what: string, className?: string])[],
];

/** What the help says: the keyboard shortcuts, and meanings. */
interface Help {
  KEYS: Meanings[1];
  MEANINGS?: readonly Meanings[];
}

/** The help sheet, filled when it is first opened; and a function to open and close it. */
export function helpSheet(id: string, load: () => Promise<Help>) {
  const body = h("div.jv-help-body.jv-scroll", {
    tabindex: "0",
    role: "region",
    "aria-label": "what is shown, and keys",
  });
  const sheet = h(
    "dialog.jv-help",
    { "aria-label": "help", "data-testid": id },
    h(
      "div.jv-help-head.jv-ruled.jv-fixed.jv-row",
      h("strong", "Help"),
      button("Close", () => sheet.close()),
    ),
    body,
  );
  let isFilled = false;
  const fill = (help: Help) => {
    body.replaceChildren(...helpOf(help));
    isFilled = true;
  };
  const fail = (error: unknown) => body.replaceChildren(note(`There is no help: ${reasonOf(error)}`));
  const open = async () => {
    if (!isFilled) await load().then(fill, fail);
    if (!sheet.open && sheet.isConnected) openModal(sheet);
  };
  return { sheet, toggle: () => (sheet.open ? sheet.close() : void open()) };
}

function helpOf({ KEYS, MEANINGS = [] }: Help): HTMLElement[] {
  const part = (title: string, rows: Meanings[1], tag: "kbd" | "span") =>
    h(
      "section",
      h("h3", title),
      h(
        "dl",
        ...rows.flatMap(([sign, what, name]) => [h("dt", h(tag, { class: name }, sign)), h("dd", what)]),
      ),
    );
  return [...MEANINGS.map(([title, rows]) => part(title, rows, "span")), part("Keys", KEYS, "kbd")];
}

/**
 * Handles keyboard shortcuts; returns a function to stop.
 * @param act handles a key and returns whether it did.
 * @param actWithControl does so for a key pressed with Ctrl, or Cmd on a Mac.
 */
export function onKeys(
  root: HTMLElement,
  act: (event: KeyboardEvent) => boolean,
  actWithControl: (event: KeyboardEvent) => boolean = () => false,
): () => void {
  const listener = (event: KeyboardEvent) => {
    // JupyterLab has global shortcuts: `b` would insert a cell.
    event.stopPropagation();
    if (event.altKey || event.defaultPrevented) return;
    if ((event.ctrlKey || event.metaKey ? actWithControl : act)(event)) event.preventDefault();
  };
  root.addEventListener("keydown", listener);
  return () => root.removeEventListener("keydown", listener);
}
