/** The curves of the overview: the memory by kind, and of one saved expression. */

import { entry } from "../base/maps";
import { type Box, type Kept, mostIn, type Overview, partOfSteps, stepsOfColumns } from "../model/overview";
import { type Span, seenAt } from "../model/span";
import type { Totals } from "../model/timeline";
import { h, svg } from "../ui/dom";
import { fitted } from "../ui/fit";
import { STACKED } from "../wire/schema";
import { round, stacked } from "./stack";

export type Columns = ReturnType<typeof stepsOfColumns>;

/** The time axis as it is drawn: the visible part of the run. Positions are in pixels from its left end. */
export class DrawnAxis {
  /** Columns of one pixel each. */
  readonly columns: Columns;
  private readonly part: Span;
  private readonly seen: Float64Array;

  /**
   * @param edges where each step begins, and the end, as fractions of the axis.
   * @param span the part of the run, as fractions of its steps.
   * @param letter how wide letters are, of those that the widths below are of.
   */
  constructor(
    edges: Float64Array,
    readonly span: Span,
    readonly width: number,
    readonly letter = 1,
  ) {
    this.part = partOfSteps(edges, span);
    this.seen = edges.map((edge) => seenAt(this.part, edge));
    this.columns = stepsOfColumns(this.seen, Math.max(1, Math.floor(width)));
  }

  /** The width of the whole axis at this zoom. */
  get whole(): number {
    return this.width / (this.part.to - this.part.from);
  }

  /** A place of the whole axis as a fraction of its visible part, or the nearest end. */
  clipped(place: number): number {
    return Math.min(1, Math.max(0, seenAt(this.part, place)));
  }

  /** Where a step begins; it may be outside. */
  start(step: number): number {
    return (this.seen[step] ?? 1) * this.width;
  }

  centre(step: number): number {
    return (this.start(step) + this.start(step + 1)) / 2;
  }

  /** The step at a position: of several, the one with the most bytes in memory. */
  stepAt(x: number, totals: Totals): number {
    const { first, last } = this.columns;
    const c = Math.min(first.length - 1, Math.max(0, Math.floor(x)));
    return fullest(totals, first[c]!, last[c]!);
  }
}

/** The step with the most bytes in memory. */
function fullest({ total }: Totals, first: number, last: number): number {
  let best = first;
  for (let i = first + 1; i <= last; i++) if (total[i]! > total[best]!) best = i;
  return best;
}

/** The usual size of text, in pixels; in larger text, letters are as much wider. */
export const USUAL = 13;

/** The width of a letter of a name and of code in a box, and of a box's padding, in pixels. */
const [LETTER, CODE_LETTER, PADDING] = [6.6, 6.8, 10];

/** The width of a letter of a saved expression's name, and of the padding beside it, in pixels. */
const [NAME_LETTER, NAME_PADDING] = [7.2, 26];

/** Where a box is, with a pixel between it and the next. */
export function styleOf({ from, to, depth }: Box, width: number): string {
  const left = from * width;
  const across = Math.max(1, to * width - left - 1);
  return `left:${left.toFixed(1)}px;width:${across.toFixed(1)}px;--depth:${depth}`;
}

/** The names of boxes, by whole words. Boxes in a row with one name, none of which has room for it, have it together. */
export function namesOf(
  boxes: readonly Box[],
  overview: Overview,
  { width, letter }: DrawnAxis,
): { inside: string[]; across: HTMLElement[] } {
  const name = ({ scope, from, to }: Box) =>
    fitted(
      overview.titleOf(scope),
      ((to - from) * width - 1 - PADDING) / (letter * (scope.kind === "line" ? CODE_LETTER : LETTER)),
    );
  const inside = boxes.map(name);
  const across: HTMLElement[] = [];
  const rows = new Map<number, Box[]>();
  boxes.forEach((box, i) => {
    const row = entry(rows, box.depth, () => []);
    const before = row.at(-1);
    const isBeside = before !== undefined && (box.from - before.to) * width < 1;
    const isNext = isBeside && before.scope.name === box.scope.name;
    if (inside[i] || !isNext || box.scope.name === "") row.length = 0;
    if (inside[i] || box.scope.name === "") return;
    row.push(box);
    const all = { ...row[0]!, to: box.to };
    // It is said once, over as few boxes as have room.
    if (row.length === 1 || name(all) !== overview.titleOf(box.scope)) return;
    across.push(h("div.jv-scope-name", { style: styleOf(all, width) }, name(all)));
    row.length = 0;
  });
  return { inside, across };
}

/** A row for a saved expression, or for all others. */
export interface Band {
  kept: Kept | null;
  name: HTMLElement;
  size: HTMLElement;
  plot: HTMLElement;
  row: HTMLElement;
  alive: Float64Array;
}

/** Shortens the names of saved expressions to what has room; `letter` is how wide letters are. */
export function nameBands(bands: readonly Band[], letter: number): void {
  const widths = bands.map(({ name, size }) => {
    const isBeside = size.offsetTop < name.offsetTop + name.offsetHeight;
    return name.parentElement!.clientWidth - NAME_PADDING - (isBeside ? size.offsetWidth + 8 : 0);
  });
  bands.forEach(({ kept, name }, i) => {
    if (kept && widths[i]! > 0) name.textContent = fitted(kept.label, widths[i]! / (NAME_LETTER * letter));
  });
}

/** A saved expression as a band around a line, as thick as its bytes in memory; `most` bytes have the full height. */
export function band(alive: Float64Array, columns: Columns, height: number, most: number): SVGElement {
  const bytes = mostIn(alive, columns);
  const middle = height / 2;
  const above: string[] = [];
  const below: string[] = [];
  let from = 0;
  for (let x = 1; x <= bytes.length; x++) {
    if (x < bytes.length && bytes[x] === bytes[from]) continue;
    const half = bytes[from]! > 0 ? Math.max(1, (middle * bytes[from]!) / most) : 0;
    above.push(`${from},${round(middle - half)} ${x},${round(middle - half)}`);
    below.push(`${x},${round(middle + half)} ${from},${round(middle + half)}`);
    from = x;
  }
  return svg("polygon", { class: "jv-band", points: [...above, ...below.reverse()].join(" ") });
}

/** Memory by kind, the longest-lived at the bottom. */
export function areas(totals: Totals, columns: Columns, height: number, most: number): SVGElement[] {
  // In a column with several steps, take the one with the most bytes.
  const steps = Int32Array.from(columns.first, (from, c) => fullest(totals, from, columns.last[c]!));
  const plot = { edge: (column: number) => column, y: (bytes: number) => height - (height * bytes) / most };
  return stacked(STACKED, totals, steps, plot);
}
