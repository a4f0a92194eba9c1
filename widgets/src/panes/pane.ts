/** Panes: an error in one pane does not affect the others. */

import { turn } from "../model/slices";
import type { Change } from "../state/state";
import { h, section } from "../ui/dom";

/** A text whose lines show equations. */
export interface Listing {
  readonly scroller: HTMLElement;
  /** The equations of each line. */
  readonly rows: readonly (readonly number[])[];
  /** The top of a line in scroll coordinates, and the line at a height. */
  topOf(line: number): number;
  lineAt(top: number): number;
}

export interface Pane {
  readonly element: HTMLElement;
  update(change: Change): void;
  destroy?(): void;
  /** Focuses the most useful element of the pane. */
  focus?(): void;
  /** Selects the next or previous equation. */
  step?(by: 1 | -1): boolean;
  /** Its text, if it shows one. */
  readonly listing?: Listing | null;
}

/** The changes that a new pane is notified of, since it may be created long after the others. */
const AT_FIRST: readonly Change[] = ["view", "extra", "selection", "variable", "player"];

/** When to create a pane lazily: at the first change after which it is visible, or when it is focused. */
export interface When {
  isSeen(): boolean;
  /** Whether creating it takes long enough to need its own task. */
  isLarge?: boolean;
}

const guard = (name: string) => h("div", { class: `jv-guard jv-at-${name}` });

/** Creates a pane. If that fails, the error is shown in its place, and the other panes are unaffected. */
export function guarded(name: string, make: () => Pane, when?: When, element = guard(name)): Pane {
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

/** How long before a pane is shown as loading, in milliseconds; most take less. */
const AT_ONCE = 150;

/**
 * A pane whose code or data has to be loaded; shows that it is loading, or the error.
 * @param load loads it; its argument tells whether the pane is still needed.
 * @param isSeen delays loading until the first change after which this is true.
 * @param then called once the pane is there.
 */
export function later(
  name: string,
  load: (isWanted: () => boolean) => Promise<() => Pane>,
  isSeen?: () => boolean,
  then: () => void = () => {},
): Pane {
  const element = guard(name);
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
