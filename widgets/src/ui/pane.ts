/** Panes: an error in one pane does not affect the others. */

import { batch, effect, on } from "../base/signals";
import { atOnce, inSlices, type Sliced, turn } from "../base/slices";
import { h, section } from "./dom";

/** A text whose lines show equations. */
export interface Listing {
  readonly scroller: HTMLElement;
  /** The equations of each line. */
  readonly rows: readonly (readonly number[])[];
  /** The top of a line in scroll coordinates, and the line at a height. */
  topOf(line: number): number;
  lineAt(top: number): number;
}

/**
 * What a pane does at first, and again when a signal is set that it has read. Of two functions, the first reads, and what the second
 * reads does not matter.
 */
export type Effects = readonly ((() => void) | readonly [read: () => unknown, act: () => void])[];

export interface Pane {
  readonly element: HTMLElement;
  readonly effects?: Effects;
  /** Whether these take long enough to need tasks of their own. */
  readonly isLarge?: boolean;
  destroy?(): void;
  /** Focuses the most useful element of the pane. */
  focus?(): void;
  /** Selects the next or previous equation. */
  step?(by: 1 | -1): boolean;
  /** Its text, if it shows one. */
  readonly listing?: Listing | null;
}

/** Runs the effects of a pane, one after the other; adds functions to stop. */
export function* following(
  { effects = [] }: Pane,
  stops: (() => void)[],
  attempt = (action: () => void) => action(),
): Sliced<void> {
  for (const each of effects) {
    const action = typeof each === "function" ? each : on(...each);
    stops.push(effect(() => attempt(action)));
    yield;
  }
}

/** When to create a pane lazily: when it is first visible, or when it is focused. */
export interface When {
  /** Reads signals. */
  isSeen(): boolean;
  /** Whether creating it takes long enough to need tasks of its own. */
  isLarge?: boolean;
}

const guard = (name: string) => h("div", { class: `jv-guard jv-fills jv-column jv-at-${name}` });

/** A pane that stands for one which may not be there yet; `begin` creates it, if it is focused before. */
const standIn = (
  element: HTMLElement,
  paneOf: () => Pane | null,
  begin: () => void,
  destroy: () => void,
): Pane => ({
  element,
  step: (by) => paneOf()?.step?.(by) ?? false,
  focus: () => {
    begin();
    paneOf()?.focus?.();
  },
  get listing() {
    return paneOf()?.listing ?? null;
  },
  destroy,
});

/** Creates a pane. If that fails, the error is shown in its place, and the other panes are unaffected. */
export function guarded(name: string, make: () => Pane, when?: When, element = guard(name)): Pane {
  let pane: Pane | null = null;
  let isMade = false;
  let isGone = false;
  const stops: (() => void)[] = [];
  const stop = () => {
    for (const each of stops.splice(0)) each();
  };
  const attempt = (action: () => void) => {
    try {
      action();
    } catch (error) {
      console.error(error);
      stop();
      leave();
      element.replaceChildren(failure(name, error));
    }
  };
  const leave = () => {
    const left = pane;
    pane = null;
    if (left !== null) attempt(() => left.destroy?.());
  };
  const begin = () => {
    if (isMade || isGone) return;
    isMade = true;
    batch(() =>
      attempt(() => {
        pane = make();
        element.replaceChildren(pane.element);
        const made = pane;
        const starting = following(made, stops, attempt);
        if (when?.isLarge || made.isLarge) void inSlices(starting, () => pane === made);
        else atOnce(starting);
      }),
    );
  };
  const unwait = when
    ? effect(() => {
        if (!when.isSeen()) return;
        if (when.isLarge) void turn().then(() => when.isSeen() && begin());
        else begin();
      })
    : () => {};
  if (!when) begin();
  const destroy = () => {
    isGone = true;
    unwait();
    stop();
    leave();
  };
  return standIn(element, () => pane, begin, destroy);
}

/** How long before a pane is shown as loading, in milliseconds; most take less. */
const AT_ONCE = 150;

/**
 * A pane whose code or data has to be loaded; shows that it is loading, or the error.
 * @param load loads it; its argument tells whether the pane is still needed.
 * @param isSeen reads signals, and delays loading until it is true.
 * @param then called once the pane is there.
 */
export function later(
  name: string,
  load: (isWanted: () => boolean) => Promise<() => Pane>,
  isSeen: () => boolean = () => true,
  then: () => void = () => {},
): Pane {
  const element = guard(name);
  let pane: Pane | null = null;
  let isAsked = false;
  let isGone = false;
  let wantsFocus = false;
  const begin = () => {
    if (isAsked) return;
    isAsked = true;
    const timer = setTimeout(() => {
      const said = h("p.jv-message.jv-dim", { role: "status" }, "Loading…");
      element.append(h("section.jv-pane.jv-column", said));
    }, AT_ONCE);
    load(() => !isGone).then(
      (make) => {
        clearTimeout(timer);
        if (isGone) return;
        pane = guarded(name, make, undefined, element);
        if (wantsFocus) pane.focus?.();
        then();
      },
      (error) => {
        clearTimeout(timer);
        if (!isGone) element.replaceChildren(failure(name, error));
      },
    );
  };
  const unwait = effect(() => {
    if (isSeen()) batch(begin);
  });
  const beginWithFocus = () => {
    wantsFocus = true;
    begin();
  };
  const destroy = () => {
    isGone = true;
    unwait();
    pane?.destroy?.();
  };
  return standIn(element, () => pane, beginWithFocus, destroy);
}

function failure(name: string, error: unknown): HTMLElement {
  return section(
    { class: "jv-pane jv-column", role: "alert", "data-testid": `failed-${name}` },
    [h("strong", name)],
    h("p.jv-message.jv-dim", `This pane failed: ${reasonOf(error)}`),
  );
}

export function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
