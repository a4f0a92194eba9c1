/** A maximised pane: in full screen if the page allows it, otherwise over the whole explorer. */

import { button, svg } from "./dom";

const PANES = ".jv-pane, .jv-overview, .jv-motion";
const PANE = "jv-alone";
const AROUND = "jv-holds-alone";

/** The button that maximises a pane, and restores it. */
export function fullButton(): HTMLElement {
  const title = "Show only this pane, or all panes again";
  const corners = svg("path", {
    d: "M1 4V1H4M8 1H11V4M11 8V11H8M4 11H1V8",
    fill: "none",
    stroke: "currentColor",
  });
  return button(
    svg("svg", { viewBox: "0 0 12 12", width: 11 }, corners),
    ({ currentTarget }) => toggle((currentTarget as Element).closest(PANES)!),
    {
      class: "jv-full",
      title,
      "aria-label": title,
    },
  );
}

function toggle(first: Element): void {
  const root = first.closest<HTMLElement>(".jaxviz")!;
  const marked = root.querySelectorAll(`.${AROUND}`);
  if (marked.length > 0) {
    root.dispatchEvent(new Event("jv-together"));
    return;
  }
  let pane = first;
  const unmark = () => {
    for (const name of [PANE, AROUND])
      for (const each of [root, ...root.querySelectorAll(`.${name}`)]) each.classList.remove(name);
  };
  const mark = () => {
    unmark();
    pane.classList.add(PANE);
    for (let each = pane.parentElement; each && each !== root.parentElement; each = each.parentElement)
      each.classList.add(AROUND);
  };
  // Switching to a graph or another stage replaces the pane by another one.
  let own = pane;
  while (own.parentElement!.matches(".jv-guard")) own = own.parentElement!;
  const place = own.parentElement!;
  const at = [...place.children].indexOf(own);
  const watch = new MutationObserver(() => {
    if (pane.isConnected) return;
    const next = place.children[at]?.querySelector(PANES);
    if (!next) return;
    pane = next;
    mark();
  });
  const end = () => {
    watch.disconnect();
    unmark();
    document.removeEventListener("fullscreenchange", onScreen);
    root.removeEventListener("keydown", onKey, true);
    root.removeEventListener("jv-together", end);
    if (document.fullscreenElement) void document.exitFullscreen();
  };
  const onScreen = () => document.fullscreenElement || end();
  const onKey = (event: KeyboardEvent) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    end();
  };
  mark();
  watch.observe(root, { childList: true, subtree: true });
  document.addEventListener("fullscreenchange", onScreen);
  root.addEventListener("keydown", onKey, true);
  root.addEventListener("jv-together", end);
  // A page in a frame may not be allowed to; the pane then fills the explorer.
  root.requestFullscreen?.().catch(() => {});
}
