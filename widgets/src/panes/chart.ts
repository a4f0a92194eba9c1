/** The chart of memory over time: areas stacked by kind, sizes on the left, the peak, the start of the backward pass, and highlights. */

import { formatBytes, plural } from "../base/format";
import { ALL, isWhole, placeAt, type Span } from "../model/span";
import { columnOf, columnsOf, peakOf, type Totals, ticks } from "../model/timeline";
import { svg } from "../ui/dom";
import { STACKED } from "../wire/schema";
import { round, stacked } from "./stack";

/** Padding in pixels: for the label of the peak, for sizes on the left, and for highlights and the names of the passes below. */
const TOP = 18;
const LEFT = 62;
const RIGHT = 8;
const LANE = 8;
const BELOW = 18;

/** The approximate width of a letter in pixels. */
const LETTER = 7;

/** What a chart shows, if not all of the model's memory. */
export interface ChartOptions {
  /** The visible part of the steps. */
  span?: Span;
  /** Another timeline, and the compiled program's memory, as lines; their peaks have to fit too. */
  reference?: Totals | null;
  compiled?: Totals | null;
  /** What is stacked, in the order of the totals, and the name of a step. */
  kinds?: readonly string[];
  step?: string;
}

/** Draws totals at a given size. Each column has a step, or with many steps, is a device pixel wide and has several. */
export class Chart {
  readonly left = LEFT;
  readonly right: number;
  readonly bottom: number;
  /** The first visible step, and the one after the last. */
  private readonly first: number;
  private readonly end: number;
  private readonly columns: ReturnType<typeof columnsOf>;
  private readonly top: number;
  private readonly span: Span;
  private readonly kinds: readonly string[];

  /** @param pixels the device pixel ratio. */
  constructor(
    readonly totals: Totals,
    width: number,
    height: number,
    private readonly pixels: number,
    private readonly options: ChartOptions = {},
  ) {
    const { span = ALL, reference, compiled, kinds = STACKED } = options;
    this.span = span;
    this.kinds = kinds;
    this.right = Math.max(LEFT + 1, width - RIGHT);
    this.bottom = Math.max(TOP + 1, height - LANE - BELOW);
    this.first = Math.floor(span.from * this.steps + SLACK);
    this.end = Math.min(this.steps, Math.ceil(span.to * this.steps - SLACK));
    this.columns = columnsOf(totals.total, this.across * pixels, this.first, this.end);
    this.top =
      Math.max(peakOf(totals), ...[reference, compiled].map((other) => (other && peakOf(other)) || 0)) || 1;
  }

  get steps(): number {
    return this.totals.total.length;
  }

  private get across(): number {
    return this.right - this.left;
  }

  private get count(): number {
    return this.columns.high.length;
  }

  /** The left and right edge of a step's column; both at the end of the axis for one that is not visible. */
  around(step: number): [number, number] {
    if (step < this.first) return [this.left, this.left];
    if (step >= this.end) return [this.right, this.right];
    const c = columnOf(step - this.first, this.end - this.first, this.count);
    return [this.edge(c), this.edge(c + 1)];
  }

  isSeen(step: number): boolean {
    return step >= this.first && step < this.end;
  }

  /** The centre of a step's column. */
  x(step: number): number {
    const [from, to] = this.around(step);
    return (from + to) / 2;
  }

  y(bytes: number): number {
    return this.bottom - ((this.bottom - TOP) * bytes) / this.top;
  }

  /** The step at a position: the one with the most bytes alive in its column. */
  stepAt(x: number): number {
    if (this.count === 0) return -1;
    const place = placeAt(this.span, (x - this.left) / this.across) * this.steps - this.first;
    const c = Math.floor((place / (this.end - this.first)) * this.count);
    return this.columns.high[Math.min(this.count - 1, Math.max(0, c))]!;
  }

  private edge(column: number): number {
    return this.atStep(this.first + ((this.end - this.first) * column) / this.count);
  }

  /** Where a step begins, or the end of the axis that is nearest. */
  private atStep(step: number): number {
    const { from, to } = this.span;
    const x = this.left + this.across * ((step / this.steps - from) / (to - from));
    return Math.min(this.right, Math.max(this.left, x));
  }

  draw(): SVGElement[] {
    return [
      ...this.grid(),
      ...this.areas(),
      ...this.compared(this.options.reference, ""),
      ...this.compared(this.options.compiled, "is-compiled"),
      ...this.passes(),
      ...this.peak(),
    ];
  }

  private grid(): SVGElement[] {
    return ticks(this.top, (this.bottom - TOP) / 45).flatMap((bytes) => {
      const y = crisp(this.y(bytes), this.pixels);
      const label = formatBytes(bytes).replace(".0 ", " ");
      return [
        svg("line", { class: "jv-grid", x1: this.left, x2: this.right, y1: y, y2: y }),
        svg("text", { class: "jv-tick", x: this.left - 6, y: y + 4, "text-anchor": "end" }, label),
      ];
    });
  }

  /** In full colour, what is alive at every step of a column; paler above it, what is alive at some. */
  private areas(): SVGElement[] {
    const { low, high } = this.columns;
    const always = this.stack(low, "jv-area");
    return this.count < this.end - this.first
      ? [...this.stack(high, "jv-area jv-sometimes"), ...always]
      : always;
  }

  private stack(steps: Int32Array, className: string): SVGElement[] {
    const plot = { edge: (column: number) => this.edge(column), y: (bytes: number) => this.y(bytes) };
    return stacked(this.kinds, this.totals, steps, plot, className);
  }

  /** Another timeline as a line, with its passes aligned to those of this one. */
  private compared(other: Totals | null | undefined, how: string): SVGElement[] {
    if (!other || this.steps === 0) return [];
    const { total, turn } = other;
    const own = this.totals.turn;
    let d = "";
    for (const [start, stop, from, to] of [
      [0, turn, 0, own],
      [turn, total.length, own, this.steps],
    ] as const) {
      // Its steps of the pass have the place of this one's, of which some are visible.
      const ofOwn = (step: number) => start + ((step - from) * (stop - start)) / Math.max(1, to - from);
      const first = Math.floor(ofOwn(Math.max(from, this.first)) + SLACK);
      const end = Math.ceil(ofOwn(Math.min(to, this.end)) - SLACK);
      if (first >= end) continue;
      const at = (step: number) =>
        round(this.atStep(from + ((step - start) * (to - from)) / Math.max(1, stop - start)));
      const { high } = columnsOf(total, (at(end) - at(first)) * this.pixels, first, end);
      high.forEach((step, c) => {
        const x = at(first + ((end - first) * c) / high.length);
        const next = at(first + ((end - first) * (c + 1)) / high.length);
        d += `${d === "" ? "M" : "L"}${x} ${round(this.y(total[step]!))}H${next}`;
      });
    }
    return [svg("path", { class: `jv-reference ${how}`, d })];
  }

  /** Where the backward pass starts. */
  private get turn(): number {
    const { turn } = this.totals;
    return turn >= this.steps ? this.right : this.around(turn)[0];
  }

  private passes(): SVGElement[] {
    const y = this.bottom + LANE + 13;
    const { turn, steps } = { turn: this.totals.turn, steps: this.steps };
    const x = crisp(this.turn, this.pixels);
    const name = (pass: string, n: number, from: number, to: number) => {
      const { step = "step" } = this.options;
      const texts = [`${pass}, ${plural(n, step)}`, pass].filter((t) => t.length * LETTER < to - from);
      if (n === 0 || texts.length === 0) return [];
      return [svg("text", { class: "jv-pass", x: (from + to) / 2, y, "text-anchor": "middle" }, texts[0]!)];
    };
    return [
      svg("line", { class: "jv-ground", x1: this.left, x2: this.right, y1: this.bottom, y2: this.bottom }),
      ...(isWhole(this.span) || (x > this.left && x < this.right)
        ? [svg("line", { class: "jv-turn", x1: x, x2: x, y1: TOP - 6, y2: y + 4 })]
        : []),
      ...name("forward", turn, this.left, x),
      ...name("backward", steps - turn, x, this.right),
    ];
  }

  private peak(): SVGElement[] {
    const { peak } = this.totals;
    if (!this.isSeen(peak)) return [];
    const [x, y] = [this.x(peak), this.y(peakOf(this.totals))];
    const text = `peak ${formatBytes(peakOf(this.totals))}`;
    const half = (text.length * LETTER) / 2;
    const at = Math.min(this.right - half, Math.max(this.left + half, x));
    return [
      svg("text", { class: "jv-peak", x: at, y: y - 6, "text-anchor": "middle" }, text),
      svg("circle", { class: "jv-peak-dot", cx: x, cy: y, r: 3 }),
    ];
  }

  /** The rectangle of the step's cursor: as wide as its column, but wide enough to be visible. */
  cursor(step: number): Record<string, number> {
    const [from, to] = this.around(step);
    const width = this.isSeen(step) ? Math.max(1, to - from) : 0;
    return { x: (from + to - width) / 2, width, y: TOP - 6, height: this.bottom - TOP + 6 };
  }

  /** The steps during which something is in memory: over the areas, and as a bar below them. */
  during(first: number, last: number): SVGElement[] {
    if (first >= this.end || last < this.first) return [];
    const from = this.around(first)[0];
    const width = Math.max(2, this.around(Math.min(last, this.steps - 1))[1] - from);
    return [
      svg("rect", { class: "jv-during", x: from, width, y: TOP - 6, height: this.bottom - TOP + 6 }),
      svg("rect", { class: "jv-during-bar", x: from, width, y: this.bottom + 3, height: 4, rx: 2 }),
    ];
  }

  /** A selected interval, over the areas. */
  interval(first: number, last: number): SVGElement[] {
    return this.during(first, last)
      .slice(0, 1)
      .map((rect) => {
        rect.setAttribute("class", "jv-interval");
        return rect;
      });
  }

  /** Ticks below the areas for highlighted steps; tall ones are lines through the areas. */
  marks(steps: readonly number[], className: string, isTall: boolean): SVGElement[] {
    const seen = steps.filter((step) => this.isSeen(step));
    const places = new Set(seen.map((step) => crisp(this.x(step), this.pixels)));
    if (places.size === 0) return [];
    const from = isTall ? TOP - 6 : this.bottom + 1;
    const d = Array.from(places, (x) => `M${x} ${from}V${this.bottom + LANE}`).join("");
    return [svg("path", { class: `jv-mark-step ${className}`, d })];
  }
}

/** Fractions of steps are rounded: no step is seen by less than this share of it. */
const SLACK = 1e-6;

/** Shifts by half a device pixel, so that a line of that width is sharp. */
function crisp(value: number, pixels: number): number {
  return (Math.floor(value * pixels) + 0.5) / pixels;
}
