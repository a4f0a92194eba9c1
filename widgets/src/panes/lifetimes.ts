/** When saved values are in memory, as in the overview: a band for each row of a table. */

import { push } from "../model/groups";
import type { Model } from "../model/model";
import { bytesOf, edgesOf, overviewOf } from "../model/overview";
import { ALL } from "../model/span";
import { type Buffer, totalsOf } from "../model/timeline";
import { svg } from "../ui/dom";
import { band, DrawnAxis } from "./overviewdraw";

/** The drawn size, stretched to the width of the cell. */
const [WIDTH, HEIGHT] = [150, 18];

export class Lifetimes {
  private readonly axis: DrawnAxis;
  private readonly buffers = new Map<number, Buffer[]>();
  private readonly turn: number;
  private readonly steps: number;

  /** @param model one that has the memory over time. */
  constructor(model: Model) {
    const { timeline } = model;
    const overview = overviewOf(model);
    const widths = overview.widths(overview.sum("flops") > 0 ? "flops" : "equations");
    this.axis = new DrawnAxis(edgesOf(model, timeline, widths), ALL, WIDTH);
    this.turn = this.axis.start(totalsOf(timeline).turn);
    this.steps = timeline.steps.length;
    for (const buffer of timeline.buffers) for (const r of buffer.residuals) push(this.buffers, r, buffer);
  }

  private alive(residuals: readonly number[]): Float64Array {
    return bytesOf([...new Set(residuals.flatMap((r) => this.buffers.get(r) ?? []))], this.steps);
  }

  /** The most bytes of some values that are in memory at once. */
  most(residuals: readonly number[]): number {
    return this.alive(residuals).reduce((most, bytes) => Math.max(most, bytes), 0);
  }

  /** Their band; `most` bytes have the full height. */
  draw(residuals: readonly number[], most: number): SVGElement {
    return svg(
      "svg",
      {
        class: "jv-life",
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        preserveAspectRatio: "none",
        "aria-hidden": "true",
      },
      band(this.alive(residuals), this.axis.columns, HEIGHT, Math.max(1, most)),
      svg("line", { class: "jv-turn", x1: this.turn, x2: this.turn, y1: 0, y2: HEIGHT }),
    );
  }
}
