/** Matches two versions of a function: which equations are in both, and which in only one. */

import type { Changes } from "../wire/explorer.generated";
import type { Model } from "./model";

/** No counterpart: the row or its stage is in only one version. */
const NONE = -1;

/** The counterpart of each row of one version in the other. */
export class Matches {
  private readonly partner: Int32Array;
  /** Rows in a stage that both versions have. */
  private readonly isCompared: Uint8Array;
  /** For each stage, by key, how many equations are not in the other version. */
  readonly counts: ReadonlyMap<string, number>;

  constructor(changes: Changes, before: Model, after: Model, isAfter: boolean) {
    const [own, other] = isAfter ? [after, before] : [before, after];
    this.partner = new Int32Array(own.rows).fill(NONE);
    this.isCompared = new Uint8Array(own.rows);
    const counts = new Map<string, number>();
    for (const [key, { pairs, removed, added }] of Object.entries(changes.stages)) {
      const here = own.view.stages[own.stageNamed(key)]?.equations;
      const there = other.view.stages[other.stageNamed(key)]?.equations;
      if (!here || !there) continue;
      this.isCompared.fill(1, here[0], here[1]);
      for (const [i, j, n] of pairs)
        for (let k = 0; k < n; k++)
          this.partner[here[0] + (isAfter ? j : i) + k] = there[0] + (isAfter ? i : j) + k;
      counts.set(
        key,
        (isAfter ? added : removed).reduce((sum, [, n]) => sum + n, 0),
      );
    }
    this.counts = counts;
  }

  /** The same row in the other version, or -1. */
  of(row: number): number {
    return this.partner[row] ?? NONE;
  }

  /** Whether the other version has the row's stage, but not the row. */
  isOnlyHere(row: number): boolean {
    return this.isCompared[row] === 1 && this.partner[row] === NONE;
  }
}
