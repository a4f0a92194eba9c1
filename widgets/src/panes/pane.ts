/** Panes: an error in one pane does not affect the others. */

import { turn } from "../model/slices";
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

/** What a pane is told of when it is made, since it may be made long after the others. */
const AT_FIRST: readonly Change[] = ["view", "lower", "selection", "variable", "player"];

/** When a pane is made that need not be there from the start: at the first change after which it is seen, or when it is to take the keys. */
export interface When {
  isSeen(): boolean;
  /** Whether it takes long, and has a turn of the page to itself. */
  isLarge?: boolean;
}

const guard = () => h("div", { class: "jv-guard" });

/** Makes a pane; one that fails says so in its place, and the others go on. */
export function guarded(name: string, make: () => Pane, when?: When, element = guard()): Pane {
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
  let isMade = false;
  const begin = () => {
    isMade = true;
    attempt(() => {
      pane = make();
      element.replaceChildren(pane.element);
    });
  };
  const beginLate = () => {
    if (isMade) return;
    begin();
    for (const change of AT_FIRST) attempt(() => pane?.update(change));
  };
  if (!when) begin();
  return {
    element,
    update: (change) => {
      if (isMade) attempt(() => pane?.update(change));
      else if (!when?.isSeen()) return;
      else if (when.isLarge) void turn().then(() => when.isSeen() && beginLate());
      else beginLate();
    },
    step: (by) => pane?.step?.(by) ?? false,
    focus: () => {
      beginLate();
      pane?.focus?.();
    },
    get listing() {
      return pane?.listing ?? null;
    },
    destroy: () => attempt(() => pane?.destroy?.()),
  };
}

/** Milliseconds until it is said that a pane is being loaded; most are there before. */
const AT_ONCE = 150;

/**
 * A pane whose code, or what it shows, is not there yet; it says so, or why it cannot be.
 *
 * @param load gets it; what it is given says whether the pane is still there.
 * @param isSeen it is got at the first change after which this holds; without it, now.
 * @param then does something with it as soon as it is there.
 */
export function later(
  name: string,
  load: (isWanted: () => boolean) => Promise<() => Pane>,
  isSeen?: () => boolean,
  then: () => void = () => {},
): Pane {
  const element = guard();
  let pane: Pane | null = null;
  let isAsked = false;
  let isGone = false;
  let wantsFocus = false;
  const begin = () => {
    isAsked = true;
    const timer = setTimeout(() => {
      const said = h("p", { class: "jv-message", role: "status" }, "Loading…");
      element.append(h("section", { class: "jv-pane" }, said));
    }, AT_ONCE);
    load(() => !isGone).then(
      (make) => {
        clearTimeout(timer);
        if (isGone) return;
        pane = guarded(name, make, undefined, element);
        for (const change of AT_FIRST) pane.update(change);
        if (wantsFocus) pane.focus?.();
        then();
      },
      (error) => {
        clearTimeout(timer);
        if (!isGone) element.replaceChildren(failure(name, error));
      },
    );
  };
  if (!isSeen) begin();
  return {
    element,
    update: (change) => {
      if (!isAsked && isSeen?.()) begin();
      pane?.update(change);
    },
    step: (by) => pane?.step?.(by) ?? false,
    focus: () => {
      wantsFocus = true;
      if (!isAsked) begin();
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
