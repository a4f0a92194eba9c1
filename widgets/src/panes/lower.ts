/** The residual table and the memory pane: one below the other, or one at a time where there is little room. */

import { h } from "../dom";
import type { Pane } from "../pane";
import { splitter } from "../splitter";
import type { Change, Lower, State } from "../state";

const NAMES: [Lower, string][] = [
  ["residuals", "residuals"],
  ["memory", "memory"],
];

/** The head of one of the two: its name, and in little room the name of the other, to change over to it. */
export function tabs(state: State, own: Lower): HTMLElement {
  const names = NAMES.map(([key, label]) => {
    const isOwn = key === own;
    return h(
      "button",
      {
        type: "button",
        class: isOwn ? "jv-tab is-own" : "jv-tab",
        "aria-pressed": isOwn,
        "data-testid": isOwn ? undefined : `show-${key}`,
        onclick: () => state.showLower(key),
      },
      label,
    );
  });
  return h("span", { class: "jv-tabs", role: "group", "aria-label": "what is shown here" }, ...names);
}

/** Both panes in one element. */
export function lower(state: State, residuals: Pane, memory: Pane): Pane {
  const element = h("div", { class: "jv-lower" });
  element.append(residuals.element, splitter(element, "row", "--jv-memory"), memory.element);
  const update = (change: Change) => {
    element.classList.toggle("shows-memory", state.lower === "memory");
    residuals.update(change);
    memory.update(change);
  };
  const destroy = () => {
    residuals.destroy?.();
    memory.destroy?.();
  };
  return { element, update, destroy };
}
