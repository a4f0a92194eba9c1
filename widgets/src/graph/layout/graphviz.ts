/** Layout by Graphviz: writes the input of `dot`, with open boxes as clusters, and reads its output. */

import { GAP, RANK_GAP } from "./layered";
import { CLOSED, HEADER, IN, OPEN, OUT, PAD, type Positions, type Shape } from "./shape";

/** Runs `dot` and returns its output in the format `json0`. */
export type Dot = (text: string) => string;

const INCH = 72;
/** The weight of edges at a port, where two edges should form a straight line. */
const STRAIGHT = 8;

/** Lays out everything visible with `dot`. */
export function placeByDot(shape: Shape, dot: Dot): Positions {
  return read(shape, JSON.parse(dot(textOf(shape))) as Answer);
}

/** The graph in the language of `dot`: boxes and ports have fixed sizes and their numbers as names. */
export function textOf(shape: Shape): string {
  const { parent, kind, width, height, anchor, from, to } = shape;
  const children: number[][] = Array.from(parent, () => []);
  for (let i = 0; i < parent.length; i++) if (parent[i]! >= 0) children[parent[i]!]!.push(i);
  const lines = [
    "digraph {",
    `graph [ranksep=${inches(RANK_GAP)} nodesep=${inches(GAP)} margin=0]`,
    'node [shape=box fixedsize=true label="" margin=0]',
    "edge [arrowhead=none]",
  ];
  const depth = depths(shape);
  /** The deepest closed box in an open one. */
  const lowest = (i: number): number =>
    children[i]!.reduce((best, child) => {
      const c = kind[child] === OPEN ? lowest(child) : kind[child] === CLOSED ? child : -1;
      return c >= 0 && (best < 0 || depth[c]! > depth[best]!) ? c : best;
    }, -1);
  const add = (i: number) => {
    const [w, h] = [Math.max(1, width[i]!), Math.max(1, height[i]!)];
    if (kind[i] === OPEN) cluster(i);
    else if (Math.abs(anchor[i]!) < 1) lines.push(`${i} [width=${inches(w)} height=${inches(h)}]`);
    else lines.push(`${i} [shape=plain fixedsize=false label=<${cardTable(w, h, anchor[i]!)}>]`);
  };
  const cluster = (i: number) => {
    lines.push(`subgraph cluster_${i} {`, `margin=${PAD} label=<${table(width[i]!, HEADER, cell(1, 1))}>`);
    children[i]!.forEach(add);
    // Inputs at the upper edge and results at the lower one, so that consecutive boxes are stacked vertically.
    for (const what of [IN, OUT]) {
      const ports = children[i]!.filter((c) => kind[c] === what);
      if (ports.length > 1) lines.push(`{rank=same; ${ports.join("; ")}}`);
      const last = what === OUT && ports.length > 0 ? lowest(i) : -1;
      if (last >= 0) lines.push(`${last} -> ${ports[0]} [style=invis weight=0]`);
    }
    lines.push("}");
  };
  children[0]!.forEach(add);
  for (const [what, rank] of [
    [IN, "source"],
    [OUT, "sink"],
  ] as const) {
    const there = children[0]!.filter((i) => kind[i] === what);
    if (there.length > 0) lines.push(`{rank=${rank}; ${there.join("; ")}}`);
  }
  const end = (i: number) => (kind[i] === CLOSED && Math.abs(anchor[i]!) >= 1 ? `${i}:card` : `${i}`);
  for (let e = 0; e < from.length; e++) {
    const [a, b] = [from[e]!, to[e]!];
    const weight = kind[a]! >= IN || kind[b]! >= IN ? ` weight=${STRAIGHT}` : "";
    lines.push(`${end(a)}:s -> ${end(b)}:n [id=${e}${weight}]`);
  }
  lines.push("}");
  return lines.join("\n");
}

/** The length of the longest path to each box and port. */
function depths({ parent, from, to }: Shape): Int32Array {
  const depth = new Int32Array(parent.length);
  const ins = new Int32Array(parent.length);
  const out: number[][] = Array.from(parent, () => []);
  from.forEach((a, e) => {
    out[a]!.push(to[e]!);
    ins[to[e]!]! += 1;
  });
  const todo = Array.from(parent.keys()).filter((i) => ins[i] === 0);
  for (let i = todo.pop(); i !== undefined; i = todo.pop())
    for (const next of out[i]!) {
      depth[next] = Math.max(depth[next]!, depth[i]! + 1);
      ins[next]! -= 1;
      if (ins[next] === 0) todo.push(next);
    }
  return depth;
}

const inches = (pixels: number) => (pixels / INCH).toFixed(4);

const sized = (w: number, h: number) => `FIXEDSIZE="TRUE" WIDTH="${Math.round(w)}" HEIGHT="${Math.round(h)}"`;
const cell = (w: number, h: number, port = "") => `<TD ${sized(w, h)}${port && ` PORT="${port}"`}></TD>`;
const table = (w: number, h: number, cells: string) =>
  `<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0" ${sized(w, h)}><TR>${cells}</TR></TABLE>`;

/** A closed box as a table; edges attach to its card, not to the stubs beside it. */
function cardTable(width: number, height: number, anchor: number): string {
  const rest = Math.max(1, Math.round(2 * Math.abs(anchor)));
  const own = Math.max(2, Math.round(width) - rest);
  const cells = [cell(own, height, "card"), cell(rest, height)];
  return table(own + rest, height, (anchor < 0 ? cells : cells.reverse()).join(""));
}

interface Answer {
  bb: string;
  objects?: { name: string; pos?: string; bb?: string }[];
  edges?: { id?: string; pos: string }[];
}

function read(shape: Shape, { bb, objects = [], edges = [] }: Answer): Positions {
  const n = shape.parent.length;
  const [left, bottom, right, top] = numbers(bb);
  const x = new Float32Array(n);
  const y = new Float32Array(n);
  const width = shape.width.slice();
  const height = shape.height.slice();
  const put = (i: number, [x0, y0, x1, y1]: readonly number[]) => {
    [x[i], y[i], width[i], height[i]] = [x0! - left!, top! - y1!, x1! - x0!, y1! - y0!];
  };
  put(0, [left!, bottom!, right!, top!]);
  for (const { name, pos, bb: own } of objects) {
    if (own !== undefined && name.startsWith("cluster_")) put(Number(name.slice(8)), numbers(own));
    if (pos === undefined) continue;
    const i = Number(name);
    const [cx, cy] = numbers(pos);
    x[i] = cx! - left! - width[i]! / 2;
    y[i] = top! - cy! - height[i]! / 2;
  }
  const routes: number[][] = Array.from(shape.from, () => []);
  for (const { id, pos } of edges)
    if (id !== undefined)
      routes[Number(id)] = pos
        .split(/[ ,]/)
        .map((v, k) => (k % 2 === 0 ? Number(v) - left! : top! - Number(v)));
  const starts = new Int32Array(routes.length + 1);
  routes.forEach((route, e) => {
    starts[e + 1] = starts[e]! + route.length;
  });
  const cut = new Uint8Array(routes.length);
  return { x, y, width, height, starts, points: Float32Array.from(routes.flat()), cut, curved: true };
}

function numbers(text: string): number[] {
  return text.split(",").map(Number);
}
