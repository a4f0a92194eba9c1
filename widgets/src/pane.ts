/** A pane keeps its own errors to itself. */

import { h } from "./dom";
import type { Change } from "./state";

export interface Pane {
  readonly element: HTMLElement;
  update(change: Change): void;
  destroy?(): void;
  /** Takes the keys, in whatever part of it they are most use. */
  focus?(): void;
  /** Moves the selection to the next equation, or the previous. */
  step?(by: 1 | -1): boolean;
}

/** Makes a pane; one that fails says so in its place, and the others go on. */
export function guarded(name: string, make: () => Pane): Pane {
  const element = h("div", { class: "jv-guard" });
  let pane: Pane | null = null;
  const attempt = (action: () => void) => {
    try {
      action();
    } catch (error) {
      console.error(error);
      pane = null;
      element.replaceChildren(failure(name, error));
    }
  };
  attempt(() => {
    pane = make();
    element.append(pane.element);
  });
  return {
    element,
    update: (change) => attempt(() => pane?.update(change)),
    step: (by) => pane?.step?.(by) ?? false,
    focus: () => pane?.focus?.(),
    destroy: () => attempt(() => pane?.destroy?.()),
  };
}

function failure(name: string, error: unknown): HTMLElement {
  return h(
    "section",
    { class: "jv-pane", role: "alert", "data-testid": `failed-${name}` },
    h("div", { class: "jv-pane-head" }, h("strong", {}, name)),
    h("p", { class: "jv-message" }, `This pane failed: ${reasonOf(error)}`),
  );
}

export function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
