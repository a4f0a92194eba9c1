/**
 * Orders the items of each rank to reduce crossings: in all levels together, since the order of an open box's ports affects edges both
 * outside and inside of it.
 */

import type { Part, Rows } from "./rows";
import { OPEN, type Shape } from "./shape";

/** Sweeps up and down; with many items there are only a few, and no swaps. */
const SWEEPS = 24;
const FEW_SWEEPS = 2;
const MANY = 8000;
/** Stops after this many sweeps without improvement. */
const PATIENCE = 8;
/** The number of restarts from other orders; fewer for large graphs. */
const STARTS = 40;
const WORK = 20_000;
/** The probability that a restart moves an item. */
const SHUFFLED = 0.3;
/** Items with more pairs of links are not swapped. */
const PAIRS = 2000;
/** Up to this many links of a rank, crossings are counted by comparing all pairs. */
const FEW = 24;

type Snapshot = number[][][];

/** Orders the rows of all parts in place. */
export function order(rows: Rows, shape: Shape): void {
  new Orders(rows, shape.kind).run();
}

class Orders {
  private readonly key: Float64Array;
  /** The positions of a rank's links at both ends. */
  private readonly upper: Float64Array;
  private readonly lower: Float64Array;

  constructor(
    private readonly rows: Rows,
    private readonly kind: Uint8Array,
  ) {
    this.key = new Float64Array(rows.rank.length);
    const most = rows.parts.reduce((n, { links }) => links.reduce((m, l) => Math.max(m, l.length), n), 0);
    this.upper = new Float64Array(most);
    this.lower = new Float64Array(most);
  }

  run(): void {
    const isLarge = this.rows.rank.length > MANY;
    const starts = isLarge ? 1 : 2 + Math.min(STARTS, Math.floor(WORK / this.rows.rank.length));
    const first = this.taken();
    let best = this.crossings();
    let kept = first;
    const next = numbers();
    for (let start = 0; start < starts && best > 0; start++) {
      // Half of the restarts begin with the best order so far.
      this.put(start % 4 < 2 ? first : kept);
      if (start >= 2) this.shuffle(next);
      let left = PATIENCE;
      for (let sweep = 0; sweep < (isLarge ? FEW_SWEEPS : SWEEPS) && left > 0 && best > 0; sweep++) {
        const down = sweep % 2 === start % 2;
        for (const part of this.rows.inside[0]!) this.sweep(this.rows.parts[part]!, down);
        if (!isLarge) this.exchangeAll(sweep % 4 > 1);
        const now = this.crossings();
        left -= 1;
        if (now >= best) continue;
        best = now;
        left = PATIENCE;
        kept = this.taken();
      }
    }
    this.put(kept);
  }

  /** Swaps some items of each row at random. */
  private shuffle(next: () => number): void {
    for (const { rows } of this.rows.parts)
      for (const row of rows) {
        for (let k = 0; k + 1 < row.length; k++) {
          if (next() > SHUFFLED) continue;
          const other = Math.floor(next() * row.length);
          [row[k], row[other]] = [row[other]!, row[k]!];
        }
        this.number(row);
      }
  }

  private taken(): Snapshot {
    return this.rows.parts.map(({ rows }) => rows.map((row) => row.slice()));
  }

  private put(taken: Snapshot): void {
    this.rows.parts.forEach((part, p) => {
      part.rows = taken[p]!.map((row) => row.slice());
      for (const row of part.rows) this.number(row);
    });
  }

  private number(row: readonly number[]): void {
    const { position } = this.rows;
    for (let k = 0; k < row.length; k++) position[row[k]!] = k;
  }

  /** The position of an item in its row, as seen by a link of a level: a port takes a fraction of the position of its box. */
  private at(thing: number, level: number): number {
    const { parent, position, parts, part, rank } = this.rows;
    if (parent[thing] === level) return position[thing]! + 0.5;
    const beside = parts[part[thing]!]!.rows[rank[thing]!]!.length;
    return position[parent[thing]!]! + (position[thing]! + 0.5) / beside;
  }

  /** Sorts the rows of a part, and of all parts inside it, by the mean position of their neighbours above or below. */
  private sweep(part: Part, down: boolean): void {
    const { position, inside, parts } = this.rows;
    const { key, kind } = this;
    for (let k = 0; k < part.rows.length; k++) {
      const row = part.rows[down ? k : part.rows.length - 1 - k]!;
      for (const i of row) key[i] = this.wanted(i, down);
      row.sort((a, b) => key[a]! - key[b]! || position[a]! - position[b]!);
      this.number(row);
      for (const i of row) if (kind[i] === OPEN) for (const p of inside[i]!) this.sweep(parts[p]!, down);
    }
  }

  private wanted(i: number, down: boolean): number {
    const { ups, downs, from, to, level, position } = this.rows;
    const { starts, items } = down ? ups : downs;
    const ends = down ? from : to;
    let sum = 0;
    for (let k = starts[i]!; k < starts[i + 1]!; k++) sum += this.at(ends[items[k]!]!, level[items[k]!]!);
    const count = starts[i + 1]! - starts[i]!;
    return count === 0 ? position[i]! : sum / count;
  }

  /** Swaps adjacent items as long as this removes crossings; if asked, also where it changes nothing. */
  private exchangeAll(evenIfSame: boolean): void {
    for (let pass = 0, isBetter = true; isBetter && pass < 10; pass++) {
      isBetter = false;
      for (const { rows } of this.rows.parts)
        for (const row of rows)
          for (let k = 0; k + 1 < row.length; k++) {
            const gain = this.gain(row[k]!, row[k + 1]!);
            if (gain < 0 || (gain === 0 && !(evenIfSame && pass === 0))) continue;
            [row[k], row[k + 1]] = [row[k + 1]!, row[k]!];
            this.rows.position[row[k]!] = k;
            this.rows.position[row[k + 1]!] = k + 1;
            if (gain > 0) isBetter = true;
          }
    }
  }

  /** How many crossings swapping two neighbours would remove. */
  private gain(i: number, j: number): number {
    const { ups, downs, from, to, level } = this.rows;
    let gain = 0;
    for (const [{ starts, items }, ends] of [
      [ups, from],
      [downs, to],
    ] as const) {
      const [a, b] = [starts[i + 1]! - starts[i]!, starts[j + 1]! - starts[j]!];
      if (a * b > PAIRS) return -1;
      if (a === 0 || b === 0) continue;
      for (let k = starts[i]!; k < starts[i + 1]!; k++) {
        const one = this.at(ends[items[k]!]!, level[items[k]!]!);
        for (let l = starts[j]!; l < starts[j + 1]!; l++)
          gain += Math.sign(one - this.at(ends[items[l]!]!, level[items[l]!]!));
      }
    }
    return gain;
  }

  /** The number of crossings. */
  private crossings(): number {
    let total = 0;
    for (const { level, links } of this.rows.parts)
      for (const there of links) if (there.length > 1) total += this.crossingsOf(there, level);
    return total;
  }

  /** The number of crossings among the links of a rank. */
  private crossingsOf(links: readonly number[], level: number): number {
    const { upper, lower } = this;
    const { from, to } = this.rows;
    const n = links.length;
    for (let k = 0; k < n; k++) {
      upper[k] = this.at(from[links[k]!]!, level);
      lower[k] = this.at(to[links[k]!]!, level);
    }
    if (n > FEW) {
      const order = links.map((_, k) => k);
      order.sort((a, b) => upper[a]! - upper[b]! || lower[a]! - lower[b]!);
      return inversions(Float64Array.from(order, (k) => lower[k]!));
    }
    // With few links, comparing all pairs is faster than sorting.
    let total = 0;
    for (let i = 1; i < n; i++)
      for (let j = 0; j < i; j++) if ((upper[i]! - upper[j]!) * (lower[i]! - lower[j]!) < 0) total += 1;
    return total;
  }
}

/** The number of inversions, counted by merge sort. */
function inversions(numbers: Float64Array<ArrayBuffer>): number {
  const n = numbers.length;
  let [sorted, merged] = [numbers, new Float64Array(n)];
  let total = 0;
  for (let width = 1; width < n; width *= 2) {
    for (let start = 0; start < n; start += 2 * width) {
      const [middle, end] = [Math.min(n, start + width), Math.min(n, start + 2 * width)];
      let [i, j] = [start, middle];
      for (let k = start; k < end; k++)
        if (j >= end || (i < middle && sorted[i]! <= sorted[j]!)) merged[k] = sorted[i++]!;
        else {
          total += middle - i;
          merged[k] = sorted[j++]!;
        }
    }
    [sorted, merged] = [merged, sorted];
  }
  return total;
}

/** Pseudorandom numbers from 0 to 1, the same each time, so that layouts are reproducible. */
function numbers(): () => number {
  let state = 1;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
    return (state >>> 8) / 2 ** 24;
  };
}
