/** The rows of a long table. Only the visible ones and some around them are in the document. */

import { h } from "./dom";

/** Rows are added and removed in chunks of this size. */
const CHUNK = 4;

/** Tables with at most this many rows are rendered in full. */
const FEW = 120;

/** The least number of rows, for keyboard navigation. */
const LEAST = 12;

/** How far beyond the visible part rows are rendered, in pixels. */
const AROUND = 250;

/** The assumed height of a row before one has been measured. */
const USUAL = 24;

export class Rows {
  private n = 0;
  private make: (i: number) => HTMLElement = () => h("tr");
  /** Measured heights of chunks. */
  private heights = new Map<number, number>();
  /** The typical height of a row, from the first ones measured; 0 before. */
  private usual = 0;
  private readonly chunks = new Map<number, HTMLElement[]>();
  private readonly above = h("tr.jv-spacer", { "aria-hidden": true });
  private readonly below = h("tr.jv-spacer", { "aria-hidden": true });

  /**
   * @param scroller the scrolling element.
   * @param body contains the rows, below a fixed header.
   * @param gone called with rows that are removed.
   */
  constructor(
    private readonly scroller: HTMLElement,
    private readonly body: HTMLElement,
    private readonly gone: (i: number) => void,
  ) {
    scroller.addEventListener("scroll", () => this.update(), { passive: true });
  }

  /** Shows `n` rows, each created when needed. */
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

  /** Renders a row if necessary, and scrolls near it. */
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

  /** A spacer in place of rows that are not rendered. */
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

  /** The measured height of a chunk, or an estimate. */
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
