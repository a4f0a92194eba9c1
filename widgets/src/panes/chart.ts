/** The chart of memory over time: areas stacked by kind, sizes on the left, the peak, the start of the backward pass, and highlights. */

import { columnOf, columnsOf, peakOf, type Totals, ticks } from "../model/timeline";
import { svg } from "../ui/dom";
import { formatBytes, plural } from "../ui/format";
import { STACKED } from "../wire/schema";

/** Padding in pixels: for the label of the peak, for sizes on the left, and for highlights and the names of the passes below. */
const TOP = 18;
const LEFT = 62;
const RIGHT = 8;
const LANE = 8;
const BELOW = 18;

/** The approximate width of a letter in pixels. */
const LETTER = 7;

/** Draws totals at a given size. Each column has a step, or with many steps, is a device pixel wide and has several. */
export class Chart {
  readonly left = LEFT;
  readonly right: number;
  readonly bottom: number;
  private readonly columns: ReturnType<typeof columnsOf>;
  private readonly top: number;

  /**
   * @param pixels the device pixel ratio.
   * @param reference another timeline, whose peak has to fit too.
   */
  constructor(
    readonly totals: Totals,
    width: number,
    height: number,
    private readonly pixels: number,
    private readonly reference: Totals | null = null,
    /** What is stacked, in the order of the totals, and the name of a step. */
    private readonly kinds: readonly string[] = STACKED,
    private readonly step = "step",
    /** The compiled program's memory, as a line. */
    private readonly compiled: Totals | null = null,
  ) {
    this.right = Math.max(LEFT + 1, width - RIGHT);
    this.bottom = Math.max(TOP + 1, height - LANE - BELOW);
    this.columns = columnsOf(totals.total, this.across * pixels);
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

  /** The left and right edge of a step's column. */
  span(step: number): [number, number] {
    const c = columnOf(step, this.steps, this.count);
    return [this.edge(c), this.edge(c + 1)];
  }

  /** The centre of a step's column. */
  x(step: number): number {
    const [from, to] = this.span(step);
    return (from + to) / 2;
  }

  y(bytes: number): number {
    return this.bottom - ((this.bottom - TOP) * bytes) / this.top;
  }

  /** The step at a position: the one with the most bytes alive in its column. */
  stepAt(x: number): number {
    if (this.count === 0) return -1;
    const c = Math.floor(((x - this.left) / this.across) * this.count);
    return this.columns.high[Math.min(this.count - 1, Math.max(0, c))]!;
  }

  private edge(column: number): number {
    return this.left + (this.across * column) / this.count;
  }

  draw(): SVGElement[] {
    return [
      ...this.grid(),
      ...this.areas(),
      ...this.compared(this.reference, ""),
      ...this.compared(this.compiled, "is-compiled"),
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
    return this.count < this.steps ? [...this.stack(high, "jv-area jv-sometimes"), ...always] : always;
  }

  /** One area per kind, topmost first, so that lower ones paint over it. */
  private stack(steps: Int32Array, className: string): SVGElement[] {
    const levels = new Float64Array(steps.length);
    const areas = this.kinds.flatMap((kind, k) => {
      const bytes = this.totals.kinds[k]!;
      let any = false;
      for (let c = 0; c < levels.length; c++) {
        levels[c]! += bytes[steps[c]!]!;
        any ||= bytes[steps[c]!]! > 0;
      }
      if (!any) return [];
      let d = `M${this.left} ${this.bottom}`;
      let before = this.bottom;
      for (let c = 0; c < levels.length; c++) {
        const y = round(this.y(levels[c]!));
        if (y !== before) d += `H${round(this.edge(c))}V${y}`;
        before = y;
      }
      return [svg("path", { class: `${className} jv-of-${kind}`, d: `${d}H${this.right}V${this.bottom}Z` })];
    });
    return areas.reverse();
  }

  /** Another timeline as a line, with its passes aligned to those of this one. */
  private compared(other: Totals | null, how: string): SVGElement[] {
    if (other === null || this.steps === 0) return [];
    const { total, turn } = other;
    const middle = this.turn;
    let d = "";
    for (const [start, stop, from, to] of [
      [0, turn, this.left, middle],
      [turn, total.length, middle, this.right],
    ] as const) {
      const { high } = columnsOf(total, (to - from) * this.pixels, start, stop);
      high.forEach((step, c) => {
        const x = round(from + ((to - from) * c) / high.length);
        d += `${d === "" ? "M" : "L"}${x} ${round(this.y(total[step]!))}H${round(from + ((to - from) * (c + 1)) / high.length)}`;
      });
    }
    return [svg("path", { class: `jv-reference ${how}`, d })];
  }

  /** Where the backward pass starts. */
  private get turn(): number {
    const { turn } = this.totals;
    return turn >= this.steps ? this.right : this.span(turn)[0];
  }

  private passes(): SVGElement[] {
    const y = this.bottom + LANE + 13;
    const { turn, steps } = { turn: this.totals.turn, steps: this.steps };
    const x = crisp(this.turn, this.pixels);
    const name = (pass: string, n: number, from: number, to: number) => {
      const texts = [`${pass}, ${plural(n, this.step)}`, pass].filter((t) => t.length * LETTER < to - from);
      if (n === 0 || texts.length === 0) return [];
      return [svg("text", { class: "jv-pass", x: (from + to) / 2, y, "text-anchor": "middle" }, texts[0]!)];
    };
    return [
      svg("line", { class: "jv-ground", x1: this.left, x2: this.right, y1: this.bottom, y2: this.bottom }),
      svg("line", { class: "jv-turn", x1: x, x2: x, y1: TOP - 6, y2: y + 4 }),
      ...name("forward", turn, this.left, x),
      ...name("backward", steps - turn, x, this.right),
    ];
  }

  private peak(): SVGElement[] {
    const { peak } = this.totals;
    if (peak < 0) return [];
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
    const [from, to] = this.span(step);
    const width = Math.max(1, to - from);
    return { x: (from + to - width) / 2, width, y: TOP - 6, height: this.bottom - TOP + 6 };
  }

  /** The steps during which something is in memory: over the areas, and as a bar below them. */
  during(first: number, last: number): SVGElement[] {
    const from = this.span(first)[0];
    const width = Math.max(2, this.span(Math.min(last, this.steps - 1))[1] - from);
    return [
      svg("rect", { class: "jv-during", x: from, width, y: TOP - 6, height: this.bottom - TOP + 6 }),
      svg("rect", { class: "jv-during-bar", x: from, width, y: this.bottom + 3, height: 4, rx: 2 }),
    ];
  }

  /** Ticks below the areas for highlighted steps; tall ones are lines through the areas. */
  marks(steps: readonly number[], className: string, isTall: boolean): SVGElement[] {
    const places = new Set(steps.map((step) => crisp(this.x(step), this.pixels)));
    if (places.size === 0) return [];
    const from = isTall ? TOP - 6 : this.bottom + 1;
    const d = Array.from(places, (x) => `M${x} ${from}V${this.bottom + LANE}`).join("");
    return [svg("path", { class: `jv-mark-step ${className}`, d })];
  }
}

const round = (value: number) => Math.round(value * 100) / 100;

/** Shifts by half a device pixel, so that a line of that width is sharp. */
function crisp(value: number, pixels: number): number {
  return (Math.floor(value * pixels) + 0.5) / pixels;
}
