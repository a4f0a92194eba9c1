/** Lays out everything visible: each open box separately, innermost first. Pure, so it also runs in a worker. */

import { push } from "../../model/groups";
import { type Frames, GAP, type Placed, placePart, RANK_GAP } from "./layered";
import { order } from "./order";
import { type Part, type Rows, rowsOf } from "./rows";
import { CLOSED, HEADER, IN, OPEN, OUT, PAD, type Positions, type Shape } from "./shape";

/** The aspect ratio up to which a shelf of unconnected parts is filled. */
const RATIO = 1.8;

export function placeAll(shape: Shape): Positions {
  const { parent, kind, from, to, level } = shape;
  const n = parent.length;
  const m = from.length;
  const rows = rowsOf(shape);
  order(rows, shape);
  const width = shape.width.slice();
  const height = shape.height.slice();
  const x = new Float32Array(n);
  const y = new Float32Array(n);
  const routes: number[][] = new Array(m);
  for (let i = n - 1; i >= 0; i--) {
    if (kind[i] !== OPEN) continue;
    const parts = rows.inside[i]!.map((p) => rows.parts[p]!);
    const inside = parts.flatMap((part) => part.rows.flat().filter((c) => c < n));
    const placed = placeParts(shape, rows, parts, { x, y, width, height }, routes);
    const isBare = parent[i]! < 0;
    const hasIn = inside.some((c) => kind[c] === IN);
    const hasOut = inside.some((c) => kind[c] === OUT);
    const [pad, header] = isBare ? [0, 0] : [PAD, HEADER];
    const inner = Math.max(placed.width, width[i]! - 2 * pad);
    const left = pad + (inner - placed.width) / 2;
    width[i] = inner + 2 * pad;
    const top = header + (isBare || hasIn ? 0 : PAD);
    height[i] = top + Math.max(placed.height, 8) + (isBare || hasOut ? 0 : PAD);
    for (const c of inside) {
      x[c]! += left;
      y[c]! += top;
      // Inputs are at the upper edge and results at the lower one, wherever their part was placed.
      if (!isBare && kind[c] === IN && height[c] === 0) y[c] = header;
      if (!isBare && kind[c] === OUT && height[c] === 0) y[c] = height[i]! - height[c]!;
    }
    for (const e of parts.flatMap((part) => part.edges)) {
      const points = routes[e]!;
      move(points, left, top);
      if (!isBare && kind[from[e]!] === IN && parent[from[e]!] === i && height[from[e]!] === 0)
        points[1] = header;
      if (!isBare && kind[to[e]!] === OUT && parent[to[e]!] === i && height[to[e]!] === 0)
        points[points.length - 1] = height[i]!;
    }
  }
  for (let i = 0; i < n; i++)
    if (parent[i]! >= 0) {
      x[i]! += x[parent[i]!]!;
      y[i]! += y[parent[i]!]!;
    }
  const starts = new Int32Array(m + 1);
  for (let e = 0; e < m; e++) starts[e + 1] = starts[e]! + routes[e]!.length;
  const points = new Float32Array(starts[m]!);
  for (let e = 0; e < m; e++) {
    move(routes[e]!, x[level[e]!]!, y[level[e]!]!);
    points.set(routes[e]!, starts[e]!);
  }
  spreadEnds(shape, points, starts, rows.cut);
  return { x, y, width, height, starts, points, cut: rows.cut, curved: false };
}

function move(points: number[], x: number, y: number): void {
  for (let p = 0; p < points.length; p += 2) {
    points[p]! += x;
    points[p + 1]! += y;
  }
}

/**
 * Places the parts of a level beside each other. The part with inputs and results spans the level's height; the others are on shelves
 * beside it.
 */
function placeParts(
  shape: Shape,
  rows: Rows,
  parts: readonly Part[],
  frames: Frames,
  routes: number[][],
): Placed {
  const places = parts.map((part) => placePart(shape, rows, part, frames, routes));
  const [first] = places;
  if (first !== undefined && places.length === 1) return first;
  const area = places.reduce((sum, p) => sum + (p.width + GAP) * (p.height + GAP), 0);
  const rest = places.filter((_, p) => !parts[p]!.isThrough);
  const restArea = rest.reduce((sum, p) => sum + (p.width + GAP) * (p.height + RANK_GAP), 0);
  const through = first && parts[0]!.isThrough ? first.height : 0;
  const widest = Math.max(
    ...rest.map((p) => p.width),
    through > 0 ? Math.min((1.3 * restArea) / through, Math.sqrt(restArea)) : Math.sqrt(area * RATIO),
  );
  /** The left edge of the shelves. */
  let margin = 0;
  let [left, top, shelf, width, height] = [0, 0, 0, 0, 0];
  places.forEach((placed, p) => {
    const part = parts[p]!;
    if (!part.isThrough && left > margin && left + placed.width > margin + widest) {
      top += shelf + RANK_GAP;
      left = margin;
      shelf = 0;
    }
    for (const row of part.rows)
      for (const i of row) {
        if (i >= shape.parent.length) continue;
        frames.x[i]! += left;
        frames.y[i]! += top;
      }
    for (const e of part.edges) move(routes[e]!, left, top);
    left += placed.width + GAP;
    if (part.isThrough) margin = left;
    shelf = Math.max(shelf, placed.height);
    width = Math.max(width, left - GAP);
    height = Math.max(height, top + placed.height);
  });
  return { width, height };
}

/** Spreads the ends of edges that enter a closed box, in the order in which they arrive. */
function spreadEnds(
  { kind, width, to, anchor }: Shape,
  points: Float32Array,
  starts: Int32Array,
  cut: Uint8Array,
): void {
  const entering = new Map<number, number[]>();
  for (let e = 0; e < to.length; e++) {
    if (kind[to[e]!] !== CLOSED || cut[e] === 1) continue;
    push(entering, to[e]!, e);
  }
  for (const [box, list] of entering) {
    if (list.length < 2) continue;
    // The last bend: two points before the end.
    const before = (e: number) => points[starts[e + 1]! - 4]!;
    list.sort((a, b) => before(a) - before(b));
    const room = width[box]! - 2 * Math.abs(anchor[box]!) - 16;
    const step = Math.min(14, room / list.length);
    list.forEach((e, k) => {
      points[starts[e + 1]! - 2]! += (k - (list.length - 1) / 2) * step;
    });
  }
}
