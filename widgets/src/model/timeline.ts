/** Memory over time: the values alive at a step, the totals by kind, and their reduction to pixels. */

import type { MemoryKind } from "../wire/schema";
import { patternOf, push, sumOf } from "./groups";

/** The kinds of memory in the order in which kinds are stacked: what stays longest is at the bottom. */
export const STACKED = ["argument", "constant", "residual", "result", "cotangent", "temporary"] as const;

export type { MemoryKind };

/** What values of each kind are called. */
export const PLURALS: Record<MemoryKind, string> = {
  argument: "arguments",
  constant: "constants",
  residual: "residuals",
  result: "results",
  cotangent: "cotangents",
  temporary: "temporaries",
};

/** The time of one equation. */
export interface Step {
  /** The equation, or -1 where none that is shown stands for it. */
  row: number;
  isBackward: boolean;
  /** What runs, where it is not that equation itself. */
  what?: string;
}

/** What is in memory during some of the steps: a value, or what the body of a loop takes inside for one step. */
export interface Buffer {
  nbytes: number;
  kind: MemoryKind;
  /** First and last step at which it is there; the last is the number of steps if it is there when all is done. */
  born: number;
  last: number;
  /** The equation that makes it, or -1. */
  row: number;
  name: string;
  type: string;
  /** The residuals that it holds: several where one shows another in a new shape. */
  residuals: readonly number[];
}

/** The forward steps, then the backward ones, and all that is in memory meanwhile. */
export interface Timeline {
  steps: readonly Step[];
  buffers: readonly Buffer[];
}

export interface Totals {
  /** For each of `STACKED`, the bytes at each step. */
  kinds: readonly Float64Array[];
  total: Float64Array;
  /** The first step at which most is alive, or -1. */
  peak: number;
  /** How many steps are forward. */
  turn: number;
}

const summed = new WeakMap<Timeline, Totals>();

/** The totals of a timeline, which are worked out once. */
export function totalsOf(timeline: Timeline): Totals {
  const totals = summed.get(timeline) ?? sumUp(timeline);
  summed.set(timeline, totals);
  return totals;
}

function sumUp({ steps, buffers }: Timeline): Totals {
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
}

/** Values that are alive together and belong together. */
export interface Alive {
  members: readonly Buffer[];
  nbytes: number;
}

const numbered = new WeakMap<readonly Buffer[], Int32Array>();

/** For each buffer a number that those share that are one expression's values, or arguments whose paths differ in indices. */
function groupsOf(buffers: readonly Buffer[], groupOf: (row: number) => number): Int32Array {
  const known = numbered.get(buffers);
  if (known !== undefined) return known;
  const numbers = new Map<string, number>();
  const made = Int32Array.from(buffers, ({ name, type, kind, row }) => {
    const key = `${kind}\n${type}\n${row < 0 ? patternOf(name) : groupOf(row)}`;
    const number = numbers.get(key) ?? numbers.size;
    numbers.set(key, number);
    return number;
  });
  numbered.set(buffers, made);
  return made;
}

/**
 * What is alive at a step, the largest first.
 *
 * @param groupOf a number for each equation, the same for those of one expression.
 */
export function aliveAt({ buffers }: Timeline, step: number, groupOf: (row: number) => number): Alive[] {
  const numbers = groupsOf(buffers, groupOf);
  const alive = new Map<number, Buffer[]>();
  for (let i = 0; i < buffers.length; i++) {
    const { born, last } = buffers[i]!;
    if (born <= step && step <= last) push(alive, numbers[i]!, buffers[i]!);
  }
  return [...alive.values()]
    .map((members) => ({ members, nbytes: sumOf(members, (b) => b.nbytes) }))
    .sort((x, y) => y.nbytes - x.nbytes);
}

/** For each column the step at which least is alive, and the one at which most is. */
export interface Columns {
  low: Int32Array;
  high: Int32Array;
}

/** Steps in at most so many columns of one width, each of which has a step or more; those from `start` until before `stop`. */
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

/** The column that holds a step. */
export function columnOf(step: number, steps: number, columns: number): number {
  return Math.min(columns - 1, Math.ceil(((step + 1) * columns) / steps) - 1);
}

/** The first of the steps from one until before another at which most is alive; -1 if there are none. */
function most(total: Float64Array, from: number, to: number): number {
  let found = from < to ? from : -1;
  for (let i = from + 1; i < to; i++) if (total[i]! > total[found]!) found = i;
  return found;
}

/** Powers of two times whole numbers, up to a peak; about as many as asked for: `[2048, 4096]`. */
export function ticks(peak: number, about: number): number[] {
  if (peak <= 0 || about < 1) return [];
  const step = 2 ** Math.max(0, Math.round(Math.log2(peak / about)));
  return Array.from({ length: Math.floor(peak / step) }, (_, i) => (i + 1) * step);
}
