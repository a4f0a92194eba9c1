/** The positions of a part's items, given the order of each row, with edges as straight as possible. */

import type { Part, Rows } from "./rows";
import { IN, OPEN, OUT, type Shape } from "./shape";

export const GAP = 16;
export const RANK_GAP = 26;
/** The width that an edge takes in each rank it passes. */
const LANE = 10;
/** First, each row aligns with the one above or below it; then all of them with both. */
const SWEEPS = 6;
const SETTLING = 20;
/** Larger parts get fewer of both. */
const MANY = 4000;
/** The weight of neighbours with a single link, such as constants, which make room for others. */
const LEAF = 0.3;

/** Sizes and positions of boxes, relative to the enclosing box; children are known before their parents. */
export interface Frames {
  x: Float32Array;
  y: Float32Array;
  width: Float32Array;
  height: Float32Array;
}

/** The size of a part; its boxes and edges are positioned relative to its upper left corner. */
export interface Placed {
  width: number;
  height: number;
}

/** The horizontal offset of the end of a link from the centre of its box. */
function away(shape: Shape, { x, width }: Frames, end: number, level: number): number {
  if (end >= shape.parent.length) return 0;
  const box = shape.parent[end]!;
  return box === level ? shape.anchor[end]! : x[end]! + width[end]! / 2 - width[box]! / 2;
}

/** Places the boxes of a part and routes its edges: the start, two points for each rank passed, the end. */
export function placePart(shape: Shape, rows: Rows, part: Part, frames: Frames, routes: number[][]): Placed {
  const [only] = part.rows[0] ?? [];
  if (only !== undefined && part.rows.length === 1 && part.rows[0]!.length === 1) {
    frames.x[only] = frames.y[only] = 0;
    return { width: frames.width[only]!, height: frames.height[only]! };
  }
  const graph = new Graph(shape, rows, part, frames);
  graph.place();
  return graph.finish(routes);
}

/** The centre of each item by its number, where it wants to be, and the weight of that; allocated once for all levels. */
let middles = new Float64Array(0);
let wantedAt = new Float64Array(0);
let pulls = new Float64Array(0);

class Graph {
  private readonly x: Float64Array;
  private readonly wanted: Float64Array;
  private readonly pull: Float64Array;

  constructor(
    private readonly shape: Shape,
    private readonly rows: Rows,
    private readonly part: Part,
    private readonly frames: Frames,
  ) {
    const size = rows.rank.length;
    if (middles.length < size) {
      middles = new Float64Array(size);
      wantedAt = new Float64Array(size);
      pulls = new Float64Array(size);
    }
    this.x = middles;
    this.wanted = wantedAt;
    this.pull = pulls;
  }

  private isLane(i: number): boolean {
    return i >= this.rows.n;
  }

  /** Whether it has a single link, like a constant. */
  private isLeaf(i: number): boolean {
    const { ups, downs } = this.rows;
    return ups.starts[i + 1]! - ups.starts[i]! + downs.starts[i + 1]! - downs.starts[i]! === 1;
  }

  private width(i: number): number {
    return this.isLane(i) ? LANE : this.frames.width[i]!;
  }

  private gap(a: number, b: number): number {
    return this.isLane(a) && this.isLane(b) ? 2 : GAP;
  }

  /** The item of this level at the end of a link. */
  private thing(end: number): number {
    return this.rows.parent[end] === this.part.level ? end : this.rows.parent[end]!;
  }

  /** The horizontal offset of a link's lower end from its upper end, in a straight line. */
  private shift(l: number): number {
    const { shape, rows, frames, part } = this;
    const [from, to] = [rows.from[l]!, rows.to[l]!];
    const [a, b] = [this.thing(from), this.thing(to)];
    // Align two open boxes by their centres, whatever their ports, so that they form a column.
    if (shape.kind[a] === OPEN && shape.kind[b] === OPEN) return 0;
    return away(shape, frames, from, part.level) - away(shape, frames, to, part.level);
  }

  /** Places each item as near to its neighbours as the items beside it allow. */
  place(): void {
    const { x, wanted, pull, rows, part } = this;
    const isLarge = part.rows.reduce((sum, row) => sum + row.length, 0) > MANY;
    const [sweeps, settling] = isLarge ? [2, 1] : [SWEEPS, SETTLING];
    for (const row of part.rows) {
      let left = 0;
      for (const i of row) {
        x[i] = left + this.width(i) / 2;
        left += this.width(i) + this.gap(i, i);
      }
      for (const i of row) x[i]! -= left / 2;
    }
    for (let sweep = 0; sweep < sweeps + settling; sweep++) {
      const isSettling = sweep >= sweeps;
      const [up, down] = isSettling ? [true, true] : [sweep % 2 === 0, sweep % 2 === 1];
      for (let r = 0; r < part.rows.length; r++) {
        const row = part.rows[sweep % 2 === 0 ? r : part.rows.length - 1 - r]!;
        for (const i of row) {
          let sum = 0;
          let weights = 0;
          const add = (other: number, by: number) => {
            // Consecutive lanes of an edge attract each other more.
            const both =
              this.isLane(i) && this.isLane(other) ? 8 : this.isLane(i) || this.isLane(other) ? 2 : 1;
            const weight = this.isLeaf(other) ? LEAF * both : both;
            sum += weight * (x[other]! + by);
            weights += weight;
          };
          if (up) this.visit(rows.ups, i, (l) => add(this.thing(rows.from[l]!), this.shift(l)));
          if (down) this.visit(rows.downs, i, (l) => add(this.thing(rows.to[l]!), -this.shift(l)));
          wanted[i] = weights === 0 ? x[i]! : sum / weights;
          // Lanes matter more than boxes.
          pull[i] = isSettling ? Math.max(LEAF, weights) : this.isLane(i) ? 4 : 1;
        }
        this.spread(row);
      }
    }
    for (let pass = 0; pass < 2; pass++) this.straighten();
  }

  private visit({ starts, items }: Rows["ups"], i: number, visit: (link: number) => void): void {
    for (let k = starts[i]!; k < starts[i + 1]!; k++)
      if (this.rows.level[items[k]!] === this.part.level) visit(items[k]!);
  }

  /** Aligns the lanes of an edge vertically, as far as the items beside them allow. */
  private straighten(): void {
    const { x, rows, part } = this;
    const room = (i: number): [number, number] => {
      const row = part.rows[rows.rank[i]!]!;
      const k = rows.position[i]!;
      const [before, after] = [row[k - 1], row[k + 1]];
      const half = this.width(i) / 2;
      return [
        before === undefined ? -Infinity : x[before]! + this.width(before) / 2 + this.gap(before, i) + half,
        after === undefined ? Infinity : x[after]! - this.width(after) / 2 - this.gap(i, after) - half,
      ];
    };
    for (const e of part.edges) {
      const end = rows.firstLane[e]! + rows.lanes[e]!;
      for (let start = rows.firstLane[e]!; start < end; ) {
        let [low, high] = [-Infinity, Infinity];
        let stop = start;
        let sum = 0;
        for (; stop < end; stop++) {
          const [a, b] = room(stop);
          if (Math.max(low, a) > Math.min(high, b)) break;
          [low, high] = [Math.max(low, a), Math.min(high, b)];
          sum += x[stop]!;
        }
        if (stop === start) {
          start += 1;
          continue;
        }
        const at = Math.min(high, Math.max(low, sum / (stop - start)));
        for (; start < stop; start++) x[start] = at;
      }
    }
  }

  /** The positions in a rank without overlaps that are closest to the wanted ones in least squares (pool adjacent violators). */
  private spread(row: readonly number[]): void {
    const { x, wanted } = this;
    const means: number[] = [];
    const weights: number[] = [];
    const counts: number[] = [];
    const offsets = new Float64Array(row.length);
    for (let k = 0; k < row.length; k++) {
      const i = row[k]!;
      if (k > 0) {
        const before = row[k - 1]!;
        offsets[k] = offsets[k - 1]! + (this.width(before) + this.width(i)) / 2 + this.gap(before, i);
      }
      let [mean, weight, count] = [wanted[i]! - offsets[k]!, this.pull[i]!, 1];
      while (means.length > 0 && means.at(-1)! > mean) {
        const w = weights.pop()!;
        mean = (mean * weight + means.pop()! * w) / (weight + w);
        weight += w;
        count += counts.pop()!;
      }
      means.push(mean);
      weights.push(weight);
      counts.push(count);
    }
    let k = 0;
    means.forEach((mean, block) => {
      for (let c = 0; c < counts[block]!; c++, k++) x[row[k]!] = mean + offsets[k]!;
    });
  }

  finish(routes: number[][]): Placed {
    const { x: middle, frames, rows, shape, part } = this;
    const tops: number[] = [];
    const heights: number[] = [];
    let [y, left, right] = [0, Infinity, -Infinity];
    for (const row of part.rows) {
      let tallest = 0;
      for (const i of row) {
        if (!this.isLane(i)) tallest = Math.max(tallest, frames.height[i]!);
        left = Math.min(left, middle[i]! - this.width(i) / 2);
        right = Math.max(right, middle[i]! + this.width(i) / 2);
      }
      tops.push(y);
      heights.push(tallest);
      y += tallest + RANK_GAP;
    }
    part.rows.forEach((row, r) => {
      for (const i of row) {
        if (this.isLane(i)) continue;
        const spare = heights[r]! - frames.height[i]!;
        frames.x[i] = middle[i]! - frames.width[i]! / 2 - left;
        // Inputs are at the upper edge of their rank; other boxes near its middle, so that chains are evenly spaced.
        const kind = shape.kind[i];
        frames.y[i] = tops[r]! + (kind === OUT ? spare : kind === IN ? 0 : Math.min(12, spare / 2));
      }
    });
    for (const e of part.edges) {
      const [a, b] = [this.thing(shape.from[e]!), this.thing(shape.to[e]!)];
      const out = middle[a]! - left + away(shape, frames, shape.from[e]!, part.level);
      const points = [out, frames.y[a]! + frames.height[a]!];
      const below = tops[rows.rank[a]!]! + heights[rows.rank[a]!]!;
      // Straight down past taller boxes of its rank.
      if (below > points[1]! + 1) points.push(out, points[1]!, out, below);
      for (let k = 0; k < rows.lanes[e]!; k++) {
        const lane = rows.firstLane[e]! + k;
        const r = rows.rank[lane]!;
        points.push(middle[lane]! - left, tops[r]!, middle[lane]! - left, tops[r]! + heights[r]!);
      }
      points.push(middle[b]! - left + away(shape, frames, shape.to[e]!, part.level), frames.y[b]!);
      routes[e] = points;
    }
    return { width: right - left, height: y - RANK_GAP };
  }
}
