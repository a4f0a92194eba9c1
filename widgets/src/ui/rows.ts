/** The rows of a long table; only the visible ones, and some around them, are in the document. */

import { h } from "./dom";

/** Rows come and go by so many. */
const CHUNK = 4;

/** A table of no more rows than this has them all. */
const FEW = 120;

/** So many rows there are at least, for the keys that go from one to the next. */
const LEAST = 12;

/** Pixels above and below what is in sight for which there are rows too. */
const AROUND = 250;

/** What a row is taken to be high before one has been measured. */
const USUAL = 24;

export class Rows {
  private n = 0;
  private make: (i: number) => HTMLElement = () => h("tr");
  /** Measured heights of chunks. */
  private heights = new Map<number, number>();
  /** The height of a row among the first that were measured; 0 before. */
  private usual = 0;
  private readonly chunks = new Map<number, HTMLElement[]>();
  private readonly above = h("tr", { class: "jv-spacer", "aria-hidden": true });
  private readonly below = h("tr", { class: "jv-spacer", "aria-hidden": true });

  /**
   * @param scroller what scrolls.
   * @param body holds the rows, and nothing above them but what is always there.
   * @param gone is told of rows that are taken out.
   */
  constructor(
    private readonly scroller: HTMLElement,
    private readonly body: HTMLElement,
    private readonly gone: (i: number) => void,
  ) {
    scroller.addEventListener("scroll", () => this.update(), { passive: true });
  }

  /** Shows so many rows, each of which is made when it is needed. */
  show(n: number, make: (i: number) => HTMLElement): void {
    this.n = n;
    this.make = make;
    this.heights.clear();
    this.usual = 0;
    this.chunks.clear();
    const isLong = n > FEW;
    this.body.replaceChildren(...(isLong ? [this.above, this.below] : []));
    if (isLong) this.update();
    else this.body.append(...Array.from({ length: n }, (_, i) => make(i)));
  }

  /** Brings a row into the document, if it is not there, and scrolls to about where it is. */
  bring(i: number): void {
    const chunk = Math.floor(i / CHUNK);
    if (this.n <= FEW || this.chunks.has(chunk)) return;
    this.measure();
    this.scroller.scrollTop = this.top(chunk) + (i % CHUNK) * this.usual;
    this.update();
  }

  private update(): void {
    if (this.n <= FEW) return;
    this.measure();
    const { scrollTop, clientHeight } = this.scroller;
    const last = Math.ceil(this.n / CHUNK) - 1;
    let first = 0;
    let y = 0;
    while (first < last && y + this.height(first) < scrollTop - AROUND) y += this.height(first++);
    let end = first;
    while (end <= last && (y < scrollTop + clientHeight + AROUND || (end - first) * CHUNK < LEAST))
      y += this.height(end++);
    for (const [chunk, rows] of this.chunks)
      if ((chunk < first || chunk >= end) && !rows.some((row) => row.contains(document.activeElement))) {
        for (const row of rows) row.remove();
        this.chunks.delete(chunk);
        for (let i = 0; i < rows.length; i++) this.gone(chunk * CHUNK + i);
      }
    for (let chunk = first; chunk < end; chunk++) if (!this.chunks.has(chunk)) this.insert(chunk);
    if (this.usual === 0) this.measure();
    this.space(first, end, last);
  }

  private insert(chunk: number): void {
    const from = chunk * CHUNK;
    const n = Math.min(CHUNK, this.n - from);
    const rows = Array.from({ length: n }, (_, i) => this.make(from + i));
    const later = [...this.chunks.keys()].filter((other) => other > chunk);
    const before = later.length > 0 ? this.chunks.get(Math.min(...later))![0]! : this.below;
    before.before(...rows);
    this.chunks.set(chunk, rows);
  }

  /** Stands in for the rows that are not there. */
  private space(first: number, end: number, last: number): void {
    const rest = (from: number, to: number) => {
      let sum = 0;
      for (let chunk = from; chunk < to; chunk++) if (!this.chunks.has(chunk)) sum += this.height(chunk);
      return `${sum}px`;
    };
    this.above.style.height = rest(0, first);
    this.below.style.height = rest(end, last + 1);
  }

  private measure(): void {
    for (const [chunk, rows] of this.chunks) {
      if (this.heights.has(chunk)) continue;
      const top = rows[0]!.getBoundingClientRect().top;
      const height = rows.at(-1)!.getBoundingClientRect().bottom - top;
      if (height <= 0) continue;
      this.heights.set(chunk, height);
      this.usual ||= height / rows.length;
    }
  }

  /** The height of a chunk as measured, or as its rows would have it if they were like others. */
  private height(chunk: number): number {
    const rows = Math.min(CHUNK, this.n - chunk * CHUNK);
    return this.heights.get(chunk) ?? rows * (this.usual || USUAL);
  }

  private top(chunk: number): number {
    let sum = 0;
    for (let i = 0; i < chunk; i++) sum += this.height(i);
    return sum;
  }
}
