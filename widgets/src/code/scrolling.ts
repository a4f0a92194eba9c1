/** Linked scrolling: scrolling one of two panes moves the other to the corresponding place. */

import type { EditorView } from "@codemirror/view";
import { remembered } from "../base/maps";
import { push } from "../model/groups";
import type { Model } from "../model/model";
import { litAs } from "../state/lit";
import type { Side, State } from "../state/state";
import type { Listing, Pane } from "../ui/pane";

/** The listing of an editor, for linked scrolling. */
export function listingOf(view: EditorView, rows: readonly (readonly number[])[]): Listing {
  return {
    scroller: view.scrollDOM,
    rows,
    topOf: (line) => view.lineBlockAt(view.state.doc.line(line + 1).from).top + view.documentPadding.top,
    lineAt: (top) =>
      view.state.doc.lineAt(view.lineBlockAtHeight(top - view.documentPadding.top).from).number - 1,
  };
}

/** The lines that show an equation, or an equation with the same origin in the user's program. */
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

  /** The lines of some equations, or else the lines of equations with the same origin. */
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

/** How far a pane is scrolled, from 0 to 1. The line at this fraction of its window is the one to match. */
function fraction({ scrollTop, scrollHeight, clientHeight }: HTMLElement): number {
  return scrollHeight > clientHeight ? scrollTop / (scrollHeight - clientHeight) : 0;
}

/** How many lines away to look for one with a counterpart. */
const FAR = 400;

/** The scroll position of `to` at which the counterpart of what `from` shows is at the same height; null if there is none. */
export function target(from: Listing, to: Listing, places: Places, state: State): number | null {
  const { scrollTop, clientHeight } = from.scroller;
  const middle = from.lineAt(scrollTop + fraction(from.scroller) * clientHeight);
  const selected = selectedLine(from, state);
  const start = selected >= 0 ? selected : middle;
  for (let distance = 0; distance <= FAR; distance++)
    for (const line of distance === 0 ? [start] : [start + distance, start - distance]) {
      const found = places.lines(from.rows[line] ?? []);
      if (found.length === 0) continue;
      // Of several lines, the one that needs the least scrolling.
      const tops = found.map((there) => to.topOf(there) - (from.topOf(line) - scrollTop));
      const moves = tops.map((top) => Math.abs(top - to.scroller.scrollTop));
      const most = to.scroller.scrollHeight - to.scroller.clientHeight;
      return Math.max(0, Math.min(most, tops[moves.indexOf(Math.min(...moves))]!));
    }
  return null;
}

/** A visible selected line, or -1. */
function selectedLine(listing: Listing, state: State): number {
  if (state.selection.rows.size === 0) return -1;
  const { scrollTop, clientHeight } = listing.scroller;
  const last = listing.lineAt(scrollTop + clientHeight);
  for (let line = listing.lineAt(scrollTop); line <= last; line++)
    if (listing.rows[line]?.some((row) => litAs(state.selection, row) === "is-selected")) return line;
  return -1;
}

const EVENTS = ["wheel", "pointerdown", "touchstart", "keydown"] as const;

/** Links the panes of an element and returns a function to unlink them. Only the pane that the user scrolls moves the other. */
export function linkScrolling(
  element: HTMLElement,
  state: State,
  paneOf: (side: Side) => Pane | null,
): () => void {
  const places = remembered((rows: Listing["rows"]) => new Places(state.model, rows));
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
    const top = target(from, to, places(to.rows), state);
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
    // Ignore scrolling caused by this function or by revealing a selection.
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
