/** What the two main panes have in common. */

import type { Side, State } from "../state/state";
import { h } from "../ui/dom";
import { marked } from "./residuals";

/** Code or graph, and a cross at the right pane. */
export function headButtons(state: State, side: Side): HTMLElement[] {
  const form = (name: "code" | "graph") =>
    h(
      "button",
      {
        type: "button",
        class: "jv-form",
        title: `Show as ${name} (G)`,
        "aria-pressed": String(state.form[side] === name),
        "data-testid": `as-${name}-${side}`,
        onclick: () => state.showAs(side, name),
      },
      name,
    );
  const forms = h(
    "span",
    { class: "jv-forms", role: "group", "aria-label": "show as" },
    form("code"),
    form("graph"),
  );
  // Two versions are compared as code.
  const isCompared = state.compared || state.other?.mark === "is-removed";
  if (side === "left") return isCompared ? [] : [forms];
  return isCompared ? [closeButton(state)] : [forms, closeButton(state)];
}

/** Of the pane at the right. */
export function closeButton(state: State): HTMLElement {
  return h(
    "button",
    {
      type: "button",
      class: "jv-close",
      title: "Close this pane",
      "aria-label": "close this pane",
      onclick: () => (state.compared ? state.compare(false) : state.show({ right: [] })),
    },
    "×",
  );
}

/** What stands in the place of a text, or above it. */
export function message(title: string, text: string, id?: string): HTMLElement {
  return h(
    "div",
    { class: "jv-message", role: id && "status", "data-testid": id },
    title && h("strong", {}, title),
    h("p", {}, ...marked(text)),
  );
}
