/** Assigns boxes to rows by rank, for each open box, with a lane in each rank that an edge passes. */

import { entry } from "../../base/maps";
import { type Lists, lists, ranks } from "./ranks";
import { IN, OPEN, OUT, type Shape } from "./shape";

/** The estimated width of an open box beyond that of its header. */
const WIDE = 500;

/** The connected boxes of a level. */
export interface Part {
  /** The open box that contains them. */
  level: number;
  /** The items of each rank, from left to right. */
  rows: number[][];
  edges: readonly number[];
  /** For each rank, the links from it to the next. */
  links: number[][];
  /** Whether they include inputs or results of the level. */
  isThrough: boolean;
}

/** Items are boxes and ports, by their numbers, followed by lanes. Links connect items of consecutive ranks. */
export interface Rows {
  n: number;
  parts: readonly Part[];
  /** The parts of each open box. */
  inside: readonly (readonly number[])[];
  /** For each item, the open box that contains it, its part, its rank and its position there. */
  parent: Int32Array;
  part: Int32Array;
  rank: Int32Array;
  position: Int32Array;
  from: Int32Array;
  to: Int32Array;
  /** The open box that contains each link. */
  level: Int32Array;
  /** The links above and below each item; for an open box, those that end at its ports from outside. */
  ups: Lists;
  downs: Lists;
  /** For each edge, its first lane, its number of lanes, and its first link. */
  firstLane: Int32Array;
  lanes: Int32Array;
  firstLink: Int32Array;
  /** Edges that pass too many ranks, of which only the ends are drawn. */
  cut: Uint8Array;
}

/** Assigns what is visible to rows, initially in program order. */
export function rowsOf(shape: Shape): Rows {
  const { parent, kind, from, to, level } = shape;
  const [n, m] = [parent.length, from.length];
  const children: number[][] = Array.from({ length: n }, () => []);
  for (let i = 0; i < n; i++) if (parent[i]! >= 0) children[parent[i]!]!.push(i);
  const edges: number[][] = Array.from({ length: n }, () => []);
  for (let e = 0; e < m; e++) edges[level[e]!]!.push(e);
  const parts: Part[] = [];
  const inside: number[][] = Array.from({ length: n }, () => []);
  const rank: number[] = new Array(n).fill(0);
  const part: number[] = new Array(n).fill(-1);
  const outer: number[] = Array.from(parent);
  const cut = new Uint8Array(m);
  const firstLane = new Int32Array(m).fill(-1);
  const lanes = new Int32Array(m);
  const firstLink = new Int32Array(m).fill(-1);
  const [linkFrom, linkTo, linkLevel]: [number[], number[], number[]] = [[], [], []];
  const local = new Int32Array(n);
  for (let box = 0; box < n; box++) {
    if (kind[box] !== OPEN) continue;
    // An edge that ends at the port of an open box.
    const met = (end: number) => (parent[end] === box ? end : parent[end]!);
    const there = [
      ...children[box]!.filter((c) => kind[c] === IN),
      ...children[box]!.filter((c) => kind[c]! < IN),
      ...children[box]!.filter((c) => kind[c] === OUT),
    ];
    for (const { nodes, within, isThrough } of partsOf(there, edges[box]!, shape, met)) {
      const number = parts.length;
      inside[box]!.push(number);
      nodes.forEach((node, i) => {
        local[node] = i;
      });
      const found = ranks({
        width: Float32Array.from(nodes, (c) => shape.width[c]! + (kind[c] === OPEN ? WIDE : 0)),
        top: Uint8Array.from(nodes, (c) => (kind[c] === IN ? 1 : 0)),
        bottom: Uint8Array.from(nodes, (c) => (kind[c] === OUT ? 1 : 0)),
        from: Int32Array.from(within, (e) => local[met(from[e]!)]!),
        to: Int32Array.from(within, (e) => local[met(to[e]!)]!),
      });
      nodes.forEach((node, i) => {
        rank[node] = found[i]!;
        part[node] = number;
      });
      const span = (e: number) => rank[met(to[e]!)]! - rank[met(from[e]!)]!;
      cutLongest(within, span, nodes.length, cut);
      const nRanks = found.reduce((most, r) => Math.max(most, r + 1), 0);
      const rows: number[][] = Array.from({ length: nRanks }, () => []);
      const links: number[][] = Array.from({ length: nRanks }, () => []);
      const link = (a: number, b: number, r: number) => {
        links[r]!.push(linkFrom.length);
        linkFrom.push(a);
        linkTo.push(b);
        linkLevel.push(box);
      };
      const behind = new Map<number, number[]>();
      for (const e of within) {
        if (cut[e] === 1) continue;
        const [a, b] = [met(from[e]!), met(to[e]!)];
        const own = entry(behind, a, () => []);
        let last = from[e]!;
        firstLane[e] = rank.length;
        firstLink[e] = linkFrom.length;
        lanes[e] = span(e) - 1;
        for (let r = rank[a]! + 1; r < rank[b]!; r++) {
          link(last, rank.length, r - 1);
          last = rank.length;
          own.push(last);
          rank.push(r);
          part.push(number);
          outer.push(box);
        }
        link(last, to[e]!, rank[b]! - 1);
      }
      for (const node of nodes) {
        rows[rank[node]!]!.push(node);
        for (const lane of behind.get(node) ?? []) rows[rank[lane]!]!.push(lane);
      }
      parts.push({ level: box, rows, edges: within, links, isThrough });
    }
  }
  const size = rank.length;
  const position = new Int32Array(size);
  for (const { rows } of parts)
    for (const row of rows)
      row.forEach((i, k) => {
        position[i] = k;
      });
  const box = (end: number, l: number) => (outer[end] === linkLevel[l] ? -1 : outer[end]!);
  const [ends, starts] = [Int32Array.from(linkTo), Int32Array.from(linkFrom)];
  return {
    n,
    parts,
    inside,
    parent: Int32Array.from(outer),
    part: Int32Array.from(part),
    rank: Int32Array.from(rank),
    position,
    from: starts,
    to: ends,
    level: Int32Array.from(linkLevel),
    ups: lists(size, ends, ends.map(box)),
    downs: lists(size, starts, starts.map(box)),
    firstLane,
    lanes,
    firstLink,
    cut,
  };
}

interface Split {
  nodes: number[];
  within: number[];
  isThrough: boolean;
}

/** The connected components of a level; everything with an input or result of the level forms one. */
function partsOf(
  there: readonly number[],
  edges: readonly number[],
  { kind, from, to }: Shape,
  met: (end: number) => number,
): Split[] {
  const root = new Map(there.map((i) => [i, i]));
  const find = (i: number): number => {
    let a = i;
    for (let next = root.get(a)!; next !== a; next = root.get(a)!) {
      root.set(a, root.get(next)!);
      a = next;
    }
    return a;
  };
  const join = (i: number, j: number) => {
    const [a, b] = [find(i), find(j)];
    if (a !== b) root.set(Math.max(a, b), Math.min(a, b));
  };
  for (const e of edges) join(met(from[e]!), met(to[e]!));
  const ports = there.filter((i) => kind[i]! >= IN);
  for (const port of ports) join(port, ports[0]!);
  const found = new Map<number, Split>();
  const of = (i: number) => {
    return entry(found, find(i), () => ({ nodes: [], within: [], isThrough: false }));
  };
  for (const i of there) of(i).nodes.push(i);
  for (const e of edges) of(met(from[e]!)).within.push(e);
  if (ports.length > 0) of(ports[0]!).isThrough = true;
  return [...found.values()].sort((a, b) => Number(b.isThrough) - Number(a.isThrough));
}

/** Marks edges that do not lead downwards, and the longest edges if the edges pass too many ranks in total. */
function cutLongest(
  edges: readonly number[],
  span: (e: number) => number,
  boxes: number,
  cut: Uint8Array,
): void {
  let total = 0;
  for (const e of edges) {
    if (span(e) < 1) cut[e] = 1;
    else total += span(e) - 1;
  }
  const most = 6 * boxes + 400;
  if (total <= most) return;
  for (const e of [...edges].sort((a, b) => span(b) - span(a))) {
    if (total <= most || span(e) < 4) break;
    cut[e] = 1;
    total -= span(e) - 1;
  }
}
