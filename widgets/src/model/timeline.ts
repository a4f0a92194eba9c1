/** Memory over time: the values alive at a step, totals by kind, and their reduction to columns of pixels. */

import { remembered } from "../base/maps";
import { type MemoryKind, STACKED } from "../wire/schema";
import { counted, push, sumOf, typeOfSome } from "./groups";

export type { MemoryKind };

/** The execution of one equation. */
export interface Step {
  /** Its row, or -1 if it is not shown. */
  row: number;
  isBackward: boolean;
  /** What runs, if not the equation itself. */
  what?: string;
}

/** A value in memory during some steps, or the temporary memory of a loop's body during one step. */
export interface Buffer {
  nbytes: number;
  kind: MemoryKind;
  /** The first and last step at which it is in memory; the last equals the number of steps if it is never freed. */
  born: number;
  last: number;
  /** The equation that computes it, or -1. */
  row: number;
  name: string;
  type: string;
  /** A number shared by one expression's values in repeated layers, calls and iterations. */
  group: number;
  /** The residuals stored in it: several if some are reshaped views of others. */
  residuals: readonly number[];
}

/** The forward steps, then the backward steps, and everything in memory during them. */
export interface Timeline {
  steps: readonly Step[];
  buffers: readonly Buffer[];
  /** One name for the values of each group. */
  labels: readonly string[];
}

export interface Totals {
  /** For each kind in `STACKED`, the bytes at each step. */
  kinds: readonly Float64Array[];
  total: Float64Array;
  /** The first step with the most bytes alive, or -1. */
  peak: number;
  /** The number of forward steps. */
  turn: number;
}

/** The most bytes in memory at any step. */
export function peakOf({ total, peak }: Totals): number {
  return peak < 0 ? 0 : total[peak]!;
}

/** The totals of a timeline. */
export const totalsOf = remembered(({ steps, buffers }: Timeline): Totals => {
  const n = steps.length;
  const kinds = STACKED.map(() => new Float64Array(n));
  const number = new Map<MemoryKind, Float64Array>(STACKED.map((kind, i) => [kind, kinds[i]!]));
  for (const { nbytes, kind, born, last } of buffers) {
    const change = number.get(kind)!;
    if (born < n) change[born]! += nbytes;
    if (last + 1 < n) change[last + 1]! -= nbytes;
  }
  const total = new Float64Array(n);
  for (const bytes of kinds) {
    let alive = 0;
    for (let i = 0; i < n; i++) {
      alive += bytes[i]!;
      bytes[i] = alive;
      total[i]! += alive;
    }
  }
  const turn = steps.findIndex((step) => step.isBackward);
  return { kinds, total, peak: most(total, 0, n), turn: turn < 0 ? n : turn };
});

/** Values of a group that are alive at a step. */
export interface Alive {
  name: string;
  /** Their type, and how many of the group they are. */
  type: string;
  kind: MemoryKind;
  members: readonly Buffer[];
  nbytes: number;
}

/** How many values each group has. */
const sizesOf = remembered(({ buffers }: Timeline) => counted(buffers.map(({ group }) => group)));

/** What is alive at a step, largest first. */
export function aliveAt(timeline: Timeline, step: number): Alive[] {
  const alive = new Map<number, Buffer[]>();
  for (const buffer of timeline.buffers)
    if (buffer.born <= step && step <= buffer.last) push(alive, buffer.group, buffer);
  return [...alive]
    .map(([group, members]) => {
      const { name, type, kind } = members[0]!;
      return {
        name: members.length > 1 ? timeline.labels[group]! : name,
        type: typeOfSome(members.length, sizesOf(timeline).get(group)!, type),
        kind,
        members,
        nbytes: sumOf(members, (b) => b.nbytes),
      };
    })
    .sort((x, y) => y.nbytes - x.nbytes);
}

/** For each column, the steps with the fewest and the most bytes alive. */
export interface Columns {
  low: Int32Array;
  high: Int32Array;
}

/** Distributes the steps from `start` to before `stop` over at most `limit` columns of equal width. */
export function columnsOf(total: Float64Array, limit: number, start = 0, stop = total.length): Columns {
  const steps = stop - start;
  const n = Math.min(steps, Math.max(1, Math.floor(limit)));
  const low = new Int32Array(n);
  const high = new Int32Array(n);
  for (let c = 0; c < n; c++) {
    const from = start + Math.floor((c * steps) / n);
    const to = start + Math.floor(((c + 1) * steps) / n);
    high[c] = most(total, from, to);
    let least = from;
    for (let i = from + 1; i < to; i++) if (total[i]! < total[least]!) least = i;
    low[c] = least;
  }
  return { low, high };
}

/** The column of a step. */
export function columnOf(step: number, steps: number, columns: number): number {
  return Math.min(columns - 1, Math.ceil(((step + 1) * columns) / steps) - 1);
}

/** The first step in a range with the most bytes alive; -1 if the range is empty. */
function most(total: Float64Array, from: number, to: number): number {
  let found = from < to ? from : -1;
  for (let i = from + 1; i < to; i++) if (total[i]! > total[found]!) found = i;
  return found;
}

/** About `about` round ticks up to a peak, multiples of a power of two: `[2048, 4096]`. */
export function ticks(peak: number, about: number): number[] {
  if (peak <= 0 || about < 1) return [];
  const step = 2 ** Math.max(0, Math.round(Math.log2(peak / about)));
  return Array.from({ length: Math.floor(peak / step) }, (_, i) => (i + 1) * step);
}
