/**
 * The least time of some work on a device, if each operation runs alone: it computes at the speed of a matrix product, or moves
 * its bytes at the speed of the memory, whichever takes longer. Williams, Waterman and Patterson, "Roofline" (2009).
 */

import { entry } from "../base/maps";
import type { DeviceSpeed } from "../wire/explorer.generated";
import type { Model } from "./model";
import { PASSES } from "./roles";

/** Seconds, and those of them in operations that move bytes for longer than they compute. */
export interface Least {
  seconds: number;
  moving: number;
}

export class Roofline {
  private readonly seconds: Float64Array;
  private readonly moving: Float64Array;
  /** By line, as `file:line`, and of both passes together. */
  private readonly lines = new Map<string, Least>();
  readonly total: Least = { seconds: 0, moving: 0 };

  constructor(
    private readonly model: Model,
    readonly speed: DeviceSpeed,
  ) {
    this.seconds = new Float64Array(model.rows);
    this.moving = new Float64Array(model.rows);
    for (let row = 0; row < model.rows; row++) {
      const computes = model.work(row) / speed.flops;
      const moves = model.moved(row) / speed.bandwidth;
      this.seconds[row] = Math.max(computes, moves);
      this.moving[row] = moves > computes ? moves : 0;
      if (!PASSES.includes(model.stageKey(row))) continue;
      const place = model.place(row);
      const line = entry(this.lines, `${place?.file}:${place?.line}`, () => ({ seconds: 0, moving: 0 }));
      for (const sum of [line, this.total]) {
        sum.seconds += this.seconds[row]!;
        sum.moving += this.moving[row]!;
      }
    }
  }

  /** FLOPs per byte at which computing and moving take the same time. */
  get ridge(): number {
    return this.speed.flops / this.speed.bandwidth;
  }

  ofLine(key: string): Least {
    return this.lines.get(key) ?? { seconds: 0, moving: 0 };
  }

  /** Of equations, nested ones of which are listed too. */
  ofRows(rows: readonly number[]): Least {
    const sum = { seconds: 0, moving: 0 };
    for (const row of rows) {
      sum.seconds += this.seconds[row]!;
      sum.moving += this.moving[row]!;
    }
    return sum;
  }

  /** Of equations with all that they contain, which follows them. */
  ofWhole(rows: readonly number[]): Least {
    return this.ofRows([...new Set(rows.flatMap((row) => [row, ...this.model.inside(row)]))]);
  }
}
