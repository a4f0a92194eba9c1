/**
 * The lower panes: a table of residuals, switches or changes, and the memory; one above the other, or one at a time if there is little
 * room.
 */

import type { Change, Lower, State } from "../state/state";
import { button, h, whenThere } from "../ui/dom";
import { splitter } from "../ui/splitter";
import type { Pane } from "./pane";

const NAMES: [Lower, string][] = [
  ["residuals", "residuals"],
  ["what-if", "what if"],
  ["memory", "memory"],
  ["changes", "changes"],
];

/** The tabs of one of them: its own name, and the panes that can replace it. */
export function tabs(state: State, own: Lower): HTMLElement {
  const names = NAMES.filter(([key]) => key !== "changes" || state.other !== null).map(([key, label]) => {
    const isOwn = key === own;
    return button(
      label,
      (event: MouseEvent) => {
        const shown = (event.currentTarget as HTMLElement).closest<HTMLElement>(".jv-lower");
        state.showLower(key);
        // This tab has disappeared with its pane; focus the one that replaces it, once it exists.
        const own = `.jv-tab-${key}.is-own`;
        if (shown) whenThere(shown, own, (tab) => tab.focus({ preventScroll: true }));
      },
      {
        class: `jv-tab jv-tab-${key}${isOwn ? " is-own" : ""}`,
        "aria-pressed": isOwn,
        "data-testid": isOwn ? undefined : `show-${key}`,
      },
    );
  });
  return h("span", { class: "jv-tabs", role: "group", "aria-label": "what is shown here" }, ...names);
}

/** Combines them in one element. */
export function lower(state: State, residuals: Pane, whatIf: Pane, memory: Pane, changes: Pane | null): Pane {
  const panes = [residuals, whatIf, memory, ...(changes ? [changes] : [])];
  const element = h("div", { class: "jv-lower" });
  element.append(residuals.element, whatIf.element);
  if (changes) element.append(changes.element);
  element.append(splitter(element, "row", "--jv-memory"), memory.element);
  const update = (change: Change) => {
    element.classList.toggle("shows-memory", state.lower === "memory");
    for (const table of ["what-if", "changes"])
      element.classList.toggle(`shows-${table}`, state.tabled === table);
    for (const pane of panes) pane.update(change);
  };
  const destroy = () => {
    for (const pane of panes) pane.destroy?.();
  };
  return { element, update, destroy };
}
