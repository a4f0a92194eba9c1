/** A pane keeps its own errors to itself. */

import type { Change } from "../state/state";
import { h, section } from "../ui/dom";

/** A text whose lines stand for equations. */
export interface Listing {
  readonly scroller: HTMLElement;
  /** The equations of each line. */
  readonly rows: readonly (readonly number[])[];
  /** Where the content of the scroller has the top of a line, and which line it has at a height. */
  topOf(line: number): number;
  lineAt(top: number): number;
}

export interface Pane {
  readonly element: HTMLElement;
  update(change: Change): void;
  destroy?(): void;
  /** Takes the keys, in whatever part of it they are most use. */
  focus?(): void;
  /** Moves the selection to the next equation, or the previous. */
  step?(by: 1 | -1): boolean;
  /** Its text, where it shows one. */
  readonly listing?: Listing | null;
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
    get listing() {
      return pane?.listing ?? null;
    },
    destroy: () => attempt(() => pane?.destroy?.()),
  };
}

/** Milliseconds until it is said that a pane is being loaded; most are there before. */
const AT_ONCE = 150;

/**
 * A pane whose code is loaded when it is first shown; it says so, or why it cannot be.
 *
 * @param then does something with it as soon as it is there.
 */
export function later(name: string, load: Promise<() => Pane>, then: () => void = () => {}): Pane {
  const element = h("div", { class: "jv-guard" });
  const timer = setTimeout(() => {
    const said = h("p", { class: "jv-message", role: "status" }, "Loading…");
    element.append(h("section", { class: "jv-pane" }, said));
  }, AT_ONCE);
  let pane: Pane | null = null;
  let isGone = false;
  let wantsFocus = false;
  load.then(
    (make) => {
      clearTimeout(timer);
      if (isGone) return;
      pane = guarded(name, make);
      element.replaceChildren(pane.element);
      pane.update("selection");
      if (wantsFocus) pane.focus?.();
      then();
    },
    (error) => {
      clearTimeout(timer);
      if (!isGone) element.replaceChildren(failure(name, error));
    },
  );
  return {
    element,
    update: (change) => pane?.update(change),
    step: (by) => pane?.step?.(by) ?? false,
    focus: () => {
      wantsFocus = true;
      pane?.focus?.();
    },
    get listing() {
      return pane?.listing ?? null;
    },
    destroy: () => {
      isGone = true;
      pane?.destroy?.();
    },
  };
}

function failure(name: string, error: unknown): HTMLElement {
  return section(
    { class: "jv-pane", role: "alert", "data-testid": `failed-${name}` },
    [h("strong", {}, name)],
    h("p", { class: "jv-message" }, `This pane failed: ${reasonOf(error)}`),
  );
}

export function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
