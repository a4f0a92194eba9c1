/** A scene with positions, indexed to find what is visible or under the pointer. */

import { countBefore } from "../../base/sorted";
import { pointsAlong } from "../layout/curves";
import { STAGE, type Tree } from "../layout/hierarchy";
import { type Lists, lists } from "../layout/ranks";
import type { Scene } from "../layout/scene";
import { OPEN, type Positions } from "../layout/shape";
import { pills, type Row, rowHeight, rowOf, SIZES, type Stub, stubsWidth } from "../layout/stubs";
import type { Box } from "./view";

/** Edge widths at full size, by bytes. */
export const WIDTHS = [1, 1.4, 2, 2.8, 3.8];
/** Edges with fewer bytes than this are never drawn at full width, however small the others are. */
const MANY_BYTES = 2 ** 16;
/** The initial view starts at a box with at least this share of the equations. */
const MOST = 0.3;
/** The distance from the edge of a card to its ports. */
const INSET = 8;

/** A rectangle of the world: left, top, right, bottom. */
export type Part = readonly [number, number, number, number];

/** A row of ports, with its position in the world. */
export interface PlacedRow {
  row: Row;
  x: number;
  y: number;
}

export class Drawing {
  /** For each open box, its children and the edges of its level; sorted when it first becomes visible. */
  private readonly inside: Lists;
  private readonly within: Lists;
  /** Which of these are sorted, by upper edge or end, and the height of the tallest. */
  private readonly tallest: Float32Array;
  private readonly longest: Float32Array;
  /** The bounding box of each edge. */
  private readonly left: Float32Array;
  private readonly top: Float32Array;
  private readonly right: Float32Array;
  private readonly bottom: Float32Array;
  private readonly mostBytes: number;

  constructor(
    readonly tree: Tree,
    readonly scene: Scene,
    readonly at: Positions,
  ) {
    const { parent, level } = scene.shape;
    const [n, m] = [parent.length, level.length];
    this.inside = lists(n, parent);
    this.within = lists(n, level);
    this.tallest = new Float32Array(n).fill(-1);
    this.longest = new Float32Array(n).fill(-1);
    this.left = new Float32Array(m).fill(Infinity);
    this.top = new Float32Array(m).fill(Infinity);
    this.right = new Float32Array(m).fill(-Infinity);
    this.bottom = new Float32Array(m).fill(-Infinity);
    this.mostBytes = scene.bytes.reduce((most, b) => Math.max(most, b), MANY_BYTES);
  }

  /** The children of an open box, sorted by upper edge. */
  private boxesIn(level: number): Int32Array {
    const { y, height } = this.at;
    const { starts, items } = this.inside;
    const boxes = items.subarray(starts[level]!, starts[level + 1]!);
    if (this.tallest[level]! < 0) {
      boxes.sort((a, b) => y[a]! - y[b]!);
      this.tallest[level] = boxes.reduce((most, b) => Math.max(most, height[b]!), 0);
    }
    return boxes;
  }

  /** The edges of an open box, sorted by upper end. */
  private edgesIn(level: number): Int32Array {
    const { starts, items } = this.within;
    const edges = items.subarray(starts[level]!, starts[level + 1]!);
    if (this.longest[level]! < 0) {
      for (const e of edges) this.measure(e);
      edges.sort((a, b) => this.top[a]! - this.top[b]!);
      this.longest[level] = edges.reduce((most, e) => Math.max(most, this.bottom[e]! - this.top[e]!), 0);
    }
    return edges;
  }

  /** The bounding box of an edge. A curve lies within the hull of its control points. */
  private measure(e: number): void {
    const { starts, points } = this.at;
    for (let p = starts[e]!; p < starts[e + 1]!; p += 2) {
      this.left[e] = Math.min(this.left[e]!, points[p]!);
      this.right[e] = Math.max(this.right[e]!, points[p]!);
      this.top[e] = Math.min(this.top[e]!, points[p + 1]!);
      this.bottom[e] = Math.max(this.bottom[e]!, points[p + 1]!);
    }
  }

  get width(): number {
    return this.at.width[0] ?? 0;
  }
  get height(): number {
    return this.at.height[0] ?? 0;
  }

  /** The largest outermost box, if it has a large share of the equations. */
  largest(): Box | undefined {
    const { at, scene, tree } = this;
    const { parent, kind } = scene.shape;
    const count = (b: number) => tree.count[scene.node[b]!]!;
    let all = 0;
    let most = -1;
    for (let b = 1; b < parent.length; b++) {
      // With several stages, consider the boxes within each.
      const isOuter = parent[b] === 0 || tree.kind[scene.node[parent[b]!]!] === STAGE;
      if (!isOuter || kind[b]! > OPEN || tree.kind[scene.node[b]!] === STAGE) continue;
      all += count(b);
      if (most < 0 || count(b) > count(most)) most = b;
    }
    if (most < 0 || count(most) < MOST * all) return undefined;
    return { x: at.x[most]!, y: at.y[most]!, width: at.width[most]!, height: at.height[most]! };
  }

  /** The index of an edge's width in `WIDTHS`. */
  bucket(edge: number): number {
    const share = Math.log2(1 + this.scene.bytes[edge]!) / Math.log2(2 + this.mostBytes);
    return Math.min(WIDTHS.length - 1, Math.floor(WIDTHS.length * share));
  }

  /** The innermost box or port at a point, or -1. */
  boxAt(x: number, y: number): number {
    const { at, scene } = this;
    let found = -1;
    for (let level = 0; level >= 0; ) {
      let next = -1;
      this.visitBoxes(level, [x, y, x, y], (b) => {
        if (at.height[b]! > 0) next = b;
      });
      if (next < 0) return found;
      found = next;
      if (scene.shape.kind[next] !== OPEN) return found;
      level = next;
    }
    return found;
  }

  /** The edge nearest to a point, or -1; none inside closed boxes. */
  edgeAt(x: number, y: number, reach: number): number {
    const { parent, kind } = this.scene.shape;
    const box = this.boxAt(x, y);
    if (box >= 0 && kind[box] !== OPEN) return -1;
    let best = reach;
    let found = -1;
    // Edges may run across the frames of enclosing boxes.
    for (let level = Math.max(0, box); level >= 0; level = parent[level]!)
      this.visitEdges(level, [x - reach, y - reach, x + reach, y + reach], (e) => {
        const distance = this.distance(e, x, y);
        if (distance < best) [best, found] = [distance, e];
      });
    return found;
  }

  private distance(e: number, x: number, y: number): number {
    if (this.at.cut[e] === 1) return Infinity;
    const line = pointsAlong(this.at, e);
    let least = Infinity;
    for (let k = 0; k + 3 < line.length; k += 2) {
      const [x0, y0, dx, dy] = [line[k]!, line[k + 1]!, line[k + 2]! - line[k]!, line[k + 3]! - line[k + 1]!];
      const length = dx * dx + dy * dy;
      const t = length === 0 ? 0 : Math.min(1, Math.max(0, ((x - x0) * dx + (y - y0) * dy) / length));
      least = Math.min(least, Math.hypot(x - x0 - t * dx, y - y0 - t * dy));
    }
    return least;
  }

  /** The left edge and the width of a box's card, without its stubs. */
  card(box: number): [number, number] {
    const { scene, at } = this;
    if (scene.shape.kind[box] === OPEN) return [at.x[box]!, at.width[box]!];
    const left = stubsWidth(scene.before.get(box));
    return [at.x[box]! + left, at.width[box]! - left - stubsWidth(scene.after.get(box))];
  }

  /** The ports for the residuals that a box takes and saves: at its upper and lower edge; for an open box, both in its header. */
  rows(box: number): PlacedRow[] {
    const { scene, at } = this;
    const [taken, kept] = [scene.taken.get(box), scene.kept.get(box)];
    if (taken === undefined && kept === undefined) return [];
    const [x, width] = this.card(box);
    const y = at.y[box]!;
    if (scene.shape.kind[box] !== OPEN) {
      const found: PlacedRow[] = [];
      if (taken) found.push({ row: rowOf(taken), x: x + INSET, y });
      if (kept) found.push({ row: rowOf(kept), x: x + INSET, y: y + at.height[box]! - rowHeight(kept) });
      return found;
    }
    let right = x + width - INSET;
    return [kept, taken].flatMap((stubs) => {
      if (stubs === undefined) return [];
      const row = rowOf(stubs);
      right -= row.width;
      const placed = { row, x: right, y: y + 3 };
      right -= INSET;
      return [placed];
    });
  }

  /** The stubs shown by the port or pill at a point in a box. */
  stubsAt(box: number, x: number, y: number): readonly Stub[] {
    for (const { row, x: left, y: top } of this.rows(box)) {
      if (y < top || y > top + SIZES.row) continue;
      const port = row.ports.find((p) => x >= left + p.x - 1 && x <= left + p.x + p.width + 1);
      if (port) return port.stubs;
    }
    const { at, scene } = this;
    if (scene.shape.kind[box] === OPEN) return [];
    const [left, width] = this.card(box);
    const side = x < left ? scene.before.get(box) : x > left + width ? scene.after.get(box) : undefined;
    if (side === undefined) return [];
    const all = pills(side);
    const top = at.y[box]! + (at.height[box]! - all.length * (SIZES.stub + 1)) / 2;
    return all[Math.floor((y - top) / (SIZES.stub + 1))]?.stubs ?? [];
  }

  /** Visits the boxes and ports of an open box that intersect a rectangle. */
  visitBoxes(level: number, [left, top, right, bottom]: Part, visit: (box: number) => void): void {
    const { x, y, width, height } = this.at;
    const boxes = this.boxesIn(level);
    for (let k = firstFrom(boxes, y, top - this.tallest[level]!); k < boxes.length; k++) {
      const b = boxes[k]!;
      if (y[b]! > bottom) break;
      if (y[b]! + height[b]! < top || x[b]! > right || x[b]! + width[b]! < left) continue;
      visit(b);
    }
  }

  /** Visits the edges of an open box that intersect a rectangle. */
  visitEdges(level: number, [left, top, right, bottom]: Part, visit: (edge: number) => void): void {
    const edges = this.edgesIn(level);
    for (let k = firstFrom(edges, this.top, top - this.longest[level]!); k < edges.length; k++) {
      const e = edges[k]!;
      if (this.top[e]! > bottom) break;
      if (this.bottom[e]! < top || this.right[e]! < left || this.left[e]! > right) continue;
      visit(e);
    }
  }
}

/** The index of the first of `things`, sorted by upper edge, that is at or below `from`. */
const firstFrom = (things: Int32Array, top: Float32Array, from: number): number =>
  countBefore(things.length, (i) => top[things[i]!]! < from);
