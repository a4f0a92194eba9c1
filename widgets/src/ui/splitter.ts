/** A bar between two panes; drag it or use the arrow keys to resize them. */

import { drag, h } from "./dom";

/**
 * @param parent contains the panes; the property is set on it.
 * @param axis `column` if the panes are side by side, `row` if one is above the other.
 * @param property the CSS property for the size of the second pane, in percent.
 */
export function splitter(parent: HTMLElement, axis: "column" | "row", property: string): HTMLElement {
  const bar = h("div", {
    class: `jv-splitter jv-fixed jv-splitter-${axis}`,
    role: "separator",
    tabindex: 0,
    "aria-orientation": axis === "column" ? "vertical" : "horizontal",
    "aria-label": "resize panes",
    "aria-valuemin": 12,
    "aria-valuemax": 80,
    "aria-valuenow": 36,
  });
  const set = (percent: number) => {
    const size = Math.min(80, Math.max(12, percent));
    parent.style.setProperty(property, `${size.toFixed(1)}%`);
    bar.setAttribute("aria-valuenow", size.toFixed(0));
  };
  const current = () => Number.parseFloat(getComputedStyle(parent).getPropertyValue(property)) || 36;
  bar.addEventListener("pointerdown", (event) =>
    drag(bar, event, ({ clientX, clientY }) => {
      const { right, bottom, width, height } = parent.getBoundingClientRect();
      set(axis === "column" ? (100 * (right - clientX)) / width : (100 * (bottom - clientY)) / height);
    }),
  );
  bar.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: 2, ArrowUp: 2, ArrowRight: -2, ArrowDown: -2 }[event.key];
    if (by === undefined) return;
    set(current() + by);
    event.preventDefault();
  });
  return bar;
}
