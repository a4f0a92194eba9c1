/** The frame of every widget, and its sheet of keys. */

import type { Host } from "../host/model";
import { button, h } from "../ui/dom";
import { keepFocus } from "./focus";

/** The element of a widget, in the page; and what takes it apart. */
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

/** A text in the place of what is to be shown. */
export function note(text: string, id?: string): HTMLElement {
  return h("p", { class: "jv-message", role: "status", "data-testid": id }, text);
}

/** A part of the help: a title, and what words or signs mean, each with a class that it is shown in. */
export type Meanings = readonly [
  title: string,
  readonly (readonly [sign: string, what: string, className?: string])[],
];

/** What is shown means this, and what the keys do, in a sheet that scrolls; and what opens and closes it. */
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
 * Listens for keys; gives back what ends that.
 *
 * @param act does what a key stands for, and says whether it stands for anything.
 * @param actWithControl does so for one that is pressed with Ctrl, or on a Mac with Cmd.
 */
export function onKeys(
  root: HTMLElement,
  act: (event: KeyboardEvent) => boolean,
  actWithControl: (event: KeyboardEvent) => boolean = () => false,
): () => void {
  const listener = (event: KeyboardEvent) => {
    // JupyterLab listens for keys on the whole page: `b` would put a cell below.
    event.stopPropagation();
    if (event.altKey || event.defaultPrevented) return;
    if ((event.ctrlKey || event.metaKey ? actWithControl : act)(event)) event.preventDefault();
  };
  root.addEventListener("keydown", listener);
  return () => root.removeEventListener("keydown", listener);
}
