/** Linked scrolling: scrolling one of two texts moves the other to the linked place. */

import type { EditorView } from "@codemirror/view";
import { push } from "../model/groups";
import type { Model } from "../model/model";
import type { Listing, Pane } from "../panes/pane";
import { litAs, type Side, type State } from "../state/state";

/** What an editor shows, as a text that scrolls along. */
export function listingOf(view: EditorView, rows: readonly (readonly number[])[]): Listing {
  return {
    scroller: view.scrollDOM,
    rows,
    topOf: (line) => view.lineBlockAt(view.state.doc.line(line + 1).from).top + view.documentPadding.top,
    lineAt: (top) =>
      view.state.doc.lineAt(view.lineBlockAtHeight(top - view.documentPadding.top).from).number - 1,
  };
}

/** Where the lines of a text are that stand for an equation, and for what else came from the same one of the user's. */
export class Places {
  private readonly ofRow = new Map<number, number[]>();
  private readonly ofRoot = new Map<number, number[]>();

  constructor(
    private readonly model: Model,
    rows: readonly (readonly number[])[],
  ) {
    rows.forEach((there, line) => {
      for (const row of there) push(this.ofRow, model.first(row), line);
      for (const root of new Set(there.map((row) => this.root(row)))) push(this.ofRoot, root, line);
    });
  }

  /** The lines of some equations: their own, or those that are of one origin with them. */
  lines(rows: readonly number[]): readonly number[] {
    const own = rows.flatMap((row) => this.ofRow.get(this.model.first(row)) ?? []);
    return own.length > 0 ? own : rows.flatMap((row) => this.ofRoot.get(this.root(row)) ?? []);
  }

  private root(row: number): number {
    let root = row;
    for (let from = row; from >= 0; from = this.model.origin(from)) root = from;
    return this.model.first(root);
  }
}

/** How far a text is scrolled, from 0 to 1: so far down its window stands the line that the other is brought to. */
function fraction({ scrollTop, scrollHeight, clientHeight }: HTMLElement): number {
  return scrollHeight > clientHeight ? scrollTop / (scrollHeight - clientHeight) : 0;
}

/** How far from the line looked at one with a counterpart may be. */
const FAR = 400;

/** Where to scroll a text, so that the counterpart of what another one shows stands at the same height; null if it has none. */
export function target(from: Listing, to: Listing, places: Places, state: State): number | null {
  const { scrollTop, clientHeight } = from.scroller;
  const middle = from.lineAt(scrollTop + fraction(from.scroller) * clientHeight);
  const selected = selectedLine(from, state);
  const start = selected >= 0 ? selected : middle;
  for (let distance = 0; distance <= FAR; distance++)
    for (const line of distance === 0 ? [start] : [start + distance, start - distance]) {
      const found = places.lines(from.rows[line] ?? []);
      if (found.length === 0) continue;
      // Of several, the one that moves least.
      const tops = found.map((there) => to.topOf(there) - (from.topOf(line) - scrollTop));
      const moves = tops.map((top) => Math.abs(top - to.scroller.scrollTop));
      const most = to.scroller.scrollHeight - to.scroller.clientHeight;
      return Math.max(0, Math.min(most, tops[moves.indexOf(Math.min(...moves))]!));
    }
  return null;
}

/** A line in sight that is selected, or -1. */
function selectedLine(listing: Listing, state: State): number {
  if (state.selection.rows.size === 0) return -1;
  const { scrollTop, clientHeight } = listing.scroller;
  const last = listing.lineAt(scrollTop + clientHeight);
  for (let line = listing.lineAt(scrollTop); line <= last; line++)
    if (listing.rows[line]?.some((row) => litAs(state.selection, row) === "is-selected")) return line;
  return -1;
}

const EVENTS = ["wheel", "pointerdown", "touchstart", "keydown"] as const;

/** Links the panes of an element; gives back what undoes it. Only the pane that the user acts on moves the other one. */
export function linkScrolling(
  element: HTMLElement,
  state: State,
  paneOf: (side: Side) => Pane | null,
): () => void {
  const known = new WeakMap<Listing["rows"], Places>();
  const still = () => globalThis.matchMedia?.("(prefers-reduced-motion: reduce)").matches ?? true;
  let driver: Side | null = null;
  let frame = 0;
  const sideOf = (event: Event): Side | null =>
    (["left", "right"] as const).find((side) => paneOf(side)?.element.contains(event.target as Node)) ?? null;
  const onAct = (event: Event) => {
    driver = sideOf(event);
  };
  const follow = () => {
    frame = 0;
    if (driver === null || !state.linksScrolling) return;
    const from = paneOf(driver)?.listing;
    const to = paneOf(driver === "left" ? "right" : "left")?.listing;
    if (!from || !to) return;
    let places = known.get(to.rows);
    if (places === undefined) {
      places = new Places(state.model, to.rows);
      known.set(to.rows, places);
    }
    const top = target(from, to, places, state);
    if (top === null) return;
    const way = top - to.scroller.scrollTop;
    if (Math.abs(way) < 1) return;
    if (still() || Math.abs(way) < 4) to.scroller.scrollTop = top;
    else {
      to.scroller.scrollTop += way * 0.4;
      frame = requestAnimationFrame(follow);
    }
  };
  const onScroll = (event: Event) => {
    // What is scrolled by this, or to bring a selection into sight, moves nothing else.
    if (driver !== null && sideOf(event) === driver && frame === 0) frame = requestAnimationFrame(follow);
  };
  for (const name of EVENTS) element.addEventListener(name, onAct, { capture: true, passive: true });
  element.addEventListener("scroll", onScroll, { capture: true, passive: true });
  return () => {
    cancelAnimationFrame(frame);
    for (const name of EVENTS) element.removeEventListener(name, onAct, { capture: true });
    element.removeEventListener("scroll", onScroll, { capture: true });
  };
}
