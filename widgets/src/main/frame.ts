/** The frame of every widget, and its keyboard help. */

import type { Host } from "../host/model";
import { button, h } from "../ui/dom";
import { keepFocus } from "./focus";

/** The root element of a widget, attached to the page, and a function to remove it. */
export function frame({ model, el }: Host, name: string, height: number): [HTMLElement, () => void] {
  const root = h("div", {
    class: `jaxviz jv-${name}`,
    "data-testid": name,
    role: "group",
    tabindex: -1,
    "aria-label": `jaxviz ${name}`,
  });
  const asked = model.get("height");
  root.style.height = `${typeof asked === "number" && asked > 0 ? asked : height}px`;
  el.append(root);
  return [root, keepFocus(root)];
}

/** A message in place of the content. */
export function note(text: string, id?: string): HTMLElement {
  return h("p", { class: "jv-message", role: "status", "data-testid": id }, text);
}

/** A section of the help: a title, and the meanings of words or signs, each shown with a class. */
export type Meanings = readonly [
  title: string,
  readonly (readonly [sign: string, what: string, className?: string])[],
];

/** The help sheet, with the meanings and the keyboard shortcuts; and a function to open and close it. */
export function keySheet(
  keys: readonly (readonly [string, string])[],
  id: string,
  meanings: readonly Meanings[] = [],
) {
  const sheet = h("dialog", { class: "jv-help", "aria-label": "help", "data-testid": id });
  const part = (title: string, list: HTMLElement) => h("section", {}, h("h3", {}, title), list);
  sheet.append(
    h(
      "div",
      { class: "jv-help-head" },
      h("strong", {}, "Help"),
      button("Close", () => sheet.close()),
    ),
    h(
      "div",
      { class: "jv-help-body", tabindex: "0", role: "region", "aria-label": "what is shown, and keys" },
      ...meanings.map(([title, rows]) =>
        part(
          title,
          h(
            "dl",
            {},
            ...rows.flatMap(([sign, what, name = ""]) => [
              h("dt", {}, h("span", { class: name }, sign)),
              h("dd", {}, what),
            ]),
          ),
        ),
      ),
      part(
        "Keys",
        h("dl", {}, ...keys.flatMap(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
      ),
    ),
  );
  return { sheet, toggle: () => (sheet.open ? sheet.close() : sheet.show()) };
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
