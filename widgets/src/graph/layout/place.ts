/** The layout of all that is visible: each open box by itself, innermost first. Pure, so that it runs in a worker too. */

import { layered } from "./layered";

/** A box that is closed, or an equation that holds nothing. */
export const CLOSED = 0;
export const OPEN = 1;
/** Where values enter an open box, and where they leave it. */
export const IN = 2;
export const OUT = 3;

export const HEADER = 24;
export const PAD = 12;

/** Boxes and ports, parents before children, children in the order of the program; and the edges between those of one parent. */
export interface Shape {
  parent: Int32Array;
  kind: Uint8Array;
  /** Of an open box, what its header needs at least. */
  width: Float32Array;
  height: Float32Array;
  /** How far the middle of the card, where edges meet it, is from the middle of a closed box. */
  anchor: Float32Array;
  /** What an edge joins: a closed box, or a port of an open one. */
  from: Int32Array;
  to: Int32Array;
  /** The open box in which it runs. */
  level: Int32Array;
}

export interface Positions {
  x: Float32Array;
  y: Float32Array;
  width: Float32Array;
  height: Float32Array;
  /** For each edge the offset of its points, x and y in turn; between the first and the last, two for each rank that it passes. */
  starts: Int32Array;
  points: Float32Array;
  /** Edges of which only the ends are drawn. */
  cut: Uint8Array;
  /** Whether points are those of cubic curves instead, one and three times as many, from box to box across the frames of open ones. */
  curved: boolean;
}

export function placeAll(shape: Shape): Positions {
  const { parent, kind, from, to, level } = shape;
  const n = parent.length;
  const m = from.length;
  const width = shape.width.slice();
  const height = shape.height.slice();
  const x = new Float32Array(n);
  const y = new Float32Array(n);
  const cut = new Uint8Array(m);
  const routes: Float32Array[] = new Array(m);
  const children: number[][] = Array.from({ length: n }, () => []);
  for (let i = 0; i < n; i++) if (parent[i]! >= 0) children[parent[i]!]!.push(i);
  const edges: number[][] = Array.from({ length: n }, () => []);
  for (let e = 0; e < m; e++) edges[level[e]!]!.push(e);
  const local = new Int32Array(n);
  // A box that an edge meets at a port meets it where the port is.
  const box = (end: number, at: number) => (parent[end] === at ? end : parent[end]!);
  const dx = (end: number, at: number) =>
    parent[end] === at ? shape.anchor[end]! : x[end]! + width[end]! / 2 - width[parent[end]!]! / 2;
  for (let i = n - 1; i >= 0; i--) {
    if (kind[i] !== OPEN) continue;
    const inside = [
      ...children[i]!.filter((c) => kind[c] === IN),
      ...children[i]!.filter((c) => kind[c]! < IN),
      ...children[i]!.filter((c) => kind[c] === OUT),
    ];
    inside.forEach((c, k) => {
      local[c] = k;
    });
    const within = edges[i]!;
    const placed = layered({
      width: Float32Array.from(inside, (c) => width[c]!),
      height: Float32Array.from(inside, (c) => height[c]!),
      top: Uint8Array.from(inside, (c) => (kind[c] === IN ? 1 : 0)),
      bottom: Uint8Array.from(inside, (c) => (kind[c] === OUT ? 1 : 0)),
      open: Uint8Array.from(inside, (c) => (kind[c] === OPEN ? 1 : 0)),
      from: Int32Array.from(within, (e) => local[box(from[e]!, i)]!),
      to: Int32Array.from(within, (e) => local[box(to[e]!, i)]!),
      fromDx: Float32Array.from(within, (e) => dx(from[e]!, i)),
      toDx: Float32Array.from(within, (e) => dx(to[e]!, i)),
    });
    const isBare = parent[i]! < 0;
    const hasIn = inside.some((c) => kind[c] === IN);
    const hasOut = inside.some((c) => kind[c] === OUT);
    const [pad, header] = isBare ? [0, 0] : [PAD, HEADER];
    const inner = Math.max(placed.width, width[i]! - 2 * pad);
    const left = pad + (inner - placed.width) / 2;
    width[i] = inner + 2 * pad;
    const top = header + (isBare || hasIn ? 0 : PAD);
    height[i] = top + Math.max(placed.height, 8) + (isBare || hasOut ? 0 : PAD);
    inside.forEach((c, k) => {
      x[c] = placed.x[k]! + left;
      y[c] = placed.y[k]! + top;
      // Inputs stand at the upper edge and results at the lower one, wherever their part was put.
      if (!isBare && kind[c] === IN && height[c] === 0) y[c] = header;
      if (!isBare && kind[c] === OUT && height[c] === 0) y[c] = height[i]! - height[c]!;
    });
    within.forEach((e, k) => {
      const points = placed.points.slice(placed.starts[k]!, placed.starts[k + 1]!);
      for (let p = 0; p < points.length; p += 2) {
        points[p]! += left;
        points[p + 1]! += top;
      }
      const last = points.length - 1;
      if (!isBare && kind[from[e]!] === IN && parent[from[e]!] === i && height[from[e]!] === 0)
        points[1] = header;
      if (!isBare && kind[to[e]!] === OUT && parent[to[e]!] === i && height[to[e]!] === 0)
        points[last] = height[i]!;
      routes[e] = points;
      cut[e] = placed.cut[k]!;
    });
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
    const [left, top] = [x[level[e]!]!, y[level[e]!]!];
    const route = routes[e]!;
    for (let p = 0; p < route.length; p += 2) {
      points[starts[e]! + p] = route[p]! + left;
      points[starts[e]! + p + 1] = route[p + 1]! + top;
    }
  }
  spreadEnds(shape, points, starts, cut);
  return { x, y, width, height, starts, points, cut, curved: false };
}

/** Edges that enter a closed box do so beside each other, in the order in which they come. */
function spreadEnds(
  { kind, width, to, anchor }: Shape,
  points: Float32Array,
  starts: Int32Array,
  cut: Uint8Array,
): void {
  const entering = new Map<number, number[]>();
  for (let e = 0; e < to.length; e++) {
    if (kind[to[e]!] !== CLOSED || cut[e] === 1) continue;
    const list = entering.get(to[e]!);
    if (list) list.push(e);
    else entering.set(to[e]!, [e]);
  }
  for (const [box, list] of entering) {
    if (list.length < 2) continue;
    // Where the last bend is: two points before the end.
    const before = (e: number) => points[starts[e + 1]! - 4]!;
    list.sort((a, b) => before(a) - before(b));
    const room = width[box]! - 2 * Math.abs(anchor[box]!) - 16;
    const step = Math.min(14, room / list.length);
    list.forEach((e, k) => {
      points[starts[e + 1]! - 2]! += (k - (list.length - 1) / 2) * step;
    });
  }
}
