/** The toolbar of the graph: search, colours, zoom, focus. */

import { SYNTAX } from "../model/query";
import { button, choice, h } from "../ui/dom";
import type { By, Colours } from "./colours";
import type { Layouter } from "./layout/client";

/** What is not dimmed: everything, what leads to and from the current box, or only one of these. */
export type Focus = "" | "both" | "up" | "down";

export interface Actions {
  zoom(factor: number): void;
  fit(): void;
  zoomToSelection(): void;
  focus(): void;
  find(text: string): void;
  nextHit(by: 1 | -1): void;
  /** Returns the focus to the graph. */
  leave(): void;
  layOutBy(by: Layouter): void;
  colours: Colours;
}

const FOCUS: Record<Focus, [string, string]> = {
  "": ["focus", "Focus: ancestors and descendants of the selection (F)"],
  both: ["⇅ focus", "Focus on ancestors and descendants of the selection; next: ancestors (F)"],
  up: ["↑ ancestors", "Focus on ancestors; next: descendants (F)"],
  down: ["↓ descendants", "Focus on descendants; next: off (F)"],
};

/** A choice among a few words. */
function byWord<T extends string>(what: string, values: readonly T[], choose: (value: T) => void) {
  return choice(
    values.map((value) => [value, `${what}: ${value}`] as const),
    choose,
    {
      class: "jv-field jv-graph-by jv-fixed",
      title: `${what.replace(/^./, (letter) => letter.toUpperCase())} by`,
      "aria-label": `${what} by`,
      "data-testid": `graph-${what}`,
    },
  );
}

export class Tools {
  readonly element: HTMLElement;
  private readonly input: HTMLInputElement;
  private readonly count = h("output.jv-dim.jv-nowrap.jv-small.jv-fixed", {
    "data-testid": "graph-hits",
  });
  private readonly focusButton: HTMLButtonElement;
  private typing: ReturnType<typeof setTimeout> | undefined;
  private searched = "";

  constructor(private readonly actions: Actions) {
    this.input = h("input.jv-field.jv-graph-search", {
      type: "search",
      placeholder: "search",
      title: SYNTAX,
      "aria-label": "search the graph",
      "data-testid": "graph-search",
      oninput: () => {
        clearTimeout(this.typing);
        this.typing = setTimeout(() => actions.find(this.input.value), 60);
      },
      onkeydown: (event: KeyboardEvent) => this.onKey(event),
    });
    const by = byWord<By>("colour", ["role", "cost", "bytes"], (value) => actions.colours.set(value));
    const layout = byWord<Layouter>("layout", ["auto", "graphviz", "layered"], (value) =>
      actions.layOutBy(value),
    );
    const tool = (text: string, title: string, onclick: () => void, id: string) =>
      button(text, onclick, {
        class: "jv-graph-tool jv-fixed",
        title,
        "aria-label": title,
        "data-testid": id,
      });
    this.focusButton = tool(FOCUS[""][0], FOCUS[""][1], () => actions.focus(), "graph-focus");
    this.element = h(
      "div.jv-graph-tools.jv-ruled.jv-fixed.jv-row",
      { role: "toolbar", "aria-label": "graph" },
      this.input,
      this.count,
      h("span.jv-space"),
      layout,
      by,
      this.focusButton,
      h("span.jv-dim", { "aria-hidden": true }, "zoom"),
      tool("selection", "Zoom to the selection (Z)", () => actions.zoomToSelection(), "graph-zoom-selection"),
      tool("−", "Zoom out (−)", () => actions.zoom(0.8), "graph-zoom-out"),
      tool("+", "Zoom in (+)", () => actions.zoom(1.25), "graph-zoom-in"),
      tool("fit", "fit: see all (0)", () => actions.fit(), "graph-fit"),
    );
  }

  focus(): void {
    this.input.focus();
    this.input.select();
  }

  /** Shows the result of a search, or its error. */
  found(text: string, error = ""): void {
    this.count.textContent = text;
    this.count.title = error;
    this.input.setAttribute("aria-invalid", String(error !== ""));
    if (error) this.input.title = error;
    else this.input.title = SYNTAX;
  }

  focused(focus: Focus): void {
    const [text, title] = FOCUS[focus];
    this.focusButton.textContent = text;
    this.focusButton.title = title;
    this.focusButton.setAttribute("aria-label", title);
    this.focusButton.setAttribute("aria-pressed", String(focus !== ""));
  }

  private onKey(event: KeyboardEvent): void {
    // The graph's shortcuts do not apply while typing.
    if (event.key !== "Tab") event.stopPropagation();
    if (event.key === "Enter") {
      clearTimeout(this.typing);
      if (this.count.textContent === "" || this.input.value !== this.searched) this.search();
      this.actions.nextHit(event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape") {
      this.input.value = "";
      this.search();
      this.actions.leave();
    } else return;
    event.preventDefault();
  }

  private search(): void {
    this.searched = this.input.value;
    this.actions.find(this.input.value);
  }
}
