/** The parts that the two main panes share. */

import { plural } from "../base/format";
import type { Side, State } from "../state/state";
import { button, h, type Segment, segments } from "./dom";
import { marked } from "./marked";

/** Describes the stages of a main pane. */
export function aboutStages({ model }: State, stages: readonly number[]) {
  const infos = stages.map((stage) => model.view.stages[stage]!);
  const failed = infos.filter((info) => info.error);
  const total = infos.reduce((sum, info) => sum + info.equations[1] - info.equations[0], 0);
  return {
    key: infos.map((info) => info.key).join("+"),
    label: infos.map((info) => info.label).join(" + "),
    title: infos.map((info) => `${info.label}: ${info.title}`).join("\n"),
    /** With several stages, the descriptions are in the tooltip. */
    about: infos.length === 1 ? infos[0]!.title : "",
    total: plural(total, "equation"),
    isShown: failed.length < infos.length,
    errors: failed.map((info) => message(`${info.label} could not be derived`, info.error)),
  };
}

/** Marks the main pane that has the focus. */
export function markSide(element: HTMLElement, { side, shown }: State, own: Side): void {
  element.classList.toggle("is-active", side === own && shown.right.length > 0);
}

/** The buttons for code and graph, and to close the right pane. */
export function headButtons(state: State, side: Side): HTMLElement[] {
  const form = (name: "code" | "graph"): Segment<typeof name> => [
    name,
    name,
    { title: `Show as ${name} (G)`, "data-testid": `as-${name}-${side}` },
  ];
  const all = [form("code"), form("graph")];
  const forms = segments("show as", all, state.form[side], (name) => state.showAs(side, name));
  forms.classList.add("jv-forms", "jv-fixed");
  // Versions are compared as code only.
  const isCompared = state.compared || state.other?.mark === "is-removed";
  const own = isCompared ? [] : [forms];
  return [...own, ...(side === "right" ? [closeButton(state)] : [])];
}

/** The button that closes the right pane. */
export function closeButton(state: State): HTMLElement {
  return button("×", () => (state.compared ? state.compare(false) : state.show({ right: [] })), {
    class: "jv-close",
    title: "Close this pane",
    "aria-label": "close this pane",
  });
}

/** A message in place of a text, or above it. */
export function message(title: string, text: string, id?: string): HTMLElement {
  return h(
    "div.jv-message.jv-dim",
    { role: id && "status", "data-testid": id },
    title && h("strong", title),
    h("p", ...marked(text)),
  );
}
