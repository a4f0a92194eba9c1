import { expect, test } from "vitest";
import { treeOf } from "../src/graph/layout/hierarchy";
import { placeAll } from "../src/graph/layout/place";
import { crossings } from "../src/graph/layout/quality";
import { ranks } from "../src/graph/layout/ranks";
import { sceneOf } from "../src/graph/layout/scene";
import { CLOSED, IN, OPEN, OUT, type Shape } from "../src/graph/layout/shape";
import { type Row, residualText, rowOf, type Stub } from "../src/graph/layout/stubs";
import { layers, modelOf, random } from "./graphs";

/** Boxes in one level with edges between them; numbered from 1. */
function level(n: number, edges: [number, number][], width = (_: number) => 60): Shape {
  return {
    parent: Int32Array.from({ length: n + 1 }, (_, i) => (i === 0 ? -1 : 0)),
    kind: Uint8Array.from({ length: n + 1 }, (_, i) => (i === 0 ? OPEN : CLOSED)),
    width: Float32Array.from({ length: n + 1 }, (_, i) => (i === 0 ? 0 : width(i - 1))),
    height: Float32Array.from({ length: n + 1 }, (_, i) => (i === 0 ? 0 : 20 + ((i - 1) % 3) * 15)),
    anchor: new Float32Array(n + 1),
    from: Int32Array.from(edges, ([a]) => a + 1),
    to: Int32Array.from(edges, ([, b]) => b + 1),
    level: new Int32Array(edges.length),
  };
}

/** A random acyclic graph, with edges from lower to higher numbers. */
function dag(seed: number): Shape {
  const next = random(seed);
  const n = 2 + Math.floor(next() * 60);
  const edges: [number, number][] = [];
  for (let b = 1; b < n; b++)
    for (let k = Math.floor(next() * 3); k > 0; k--) {
      const a = Math.max(0, b - 1 - Math.floor(next() * next() * b));
      if (!edges.some(([c, d]) => c === a && d === b)) edges.push([a, b]);
    }
  return level(n, edges, (i) => 30 + ((i * 37) % 120));
}

const SEEDS = Array.from({ length: 60 }, (_, i) => i);

test.each(SEEDS)("ranks respect the edges (%i)", (seed) => {
  const { from, to, width } = dag(seed);
  const none = new Uint8Array(width.length);
  const rank = ranks({ width, top: none, bottom: none, from, to });
  for (let e = 0; e < from.length; e++) expect(rank[to[e]!]!).toBeGreaterThan(rank[from[e]!]!);
});

test.each(SEEDS)("boxes do not overlap, lie inside, and edges lead down (%i)", (seed) => {
  const graph = dag(seed);
  const { width, height } = graph;
  const placed = placeAll(graph);
  const n = width.length;
  for (let i = 1; i < n; i++) {
    expect(placed.x[i]!).toBeGreaterThanOrEqual(-0.01);
    expect(placed.y[i]!).toBeGreaterThanOrEqual(-0.01);
    expect(placed.x[i]! + width[i]!).toBeLessThanOrEqual(placed.width[0]! + 0.01);
    expect(placed.y[i]! + height[i]!).toBeLessThanOrEqual(placed.height[0]! + 0.01);
    for (let j = 1; j < i; j++) {
      const apart =
        placed.x[i]! + width[i]! <= placed.x[j]! + 0.01 ||
        placed.x[j]! + width[j]! <= placed.x[i]! + 0.01 ||
        placed.y[i]! + height[i]! <= placed.y[j]! + 0.01 ||
        placed.y[j]! + height[j]! <= placed.y[i]! + 0.01;
      expect(apart, `${i} and ${j}`).toBe(true);
    }
  }
  for (let e = 0; e < graph.from.length; e++) {
    const points = placed.points.subarray(placed.starts[e]!, placed.starts[e + 1]!);
    expect(points[0]).toBeCloseTo(placed.x[graph.from[e]!]! + width[graph.from[e]!]! / 2, 2);
    expect(points.at(-1)).toBeCloseTo(placed.y[graph.to[e]!]!, 2);
    for (let p = 3; p < points.length; p += 2)
      expect(points[p]!).toBeGreaterThanOrEqual(points[p - 2]! - 0.01);
  }
});

test("an edge does not cross the boxes of the ranks it passes", () => {
  // 0 → 1 → 2 → 3 and 0 → 3.
  const graph = level(4, [
    [0, 1],
    [1, 2],
    [2, 3],
    [0, 3],
  ]);
  const placed = placeAll(graph);
  const points = placed.points.subarray(placed.starts[3]!, placed.starts[4]!);
  for (const box of [2, 3])
    for (let p = 0; p < points.length; p += 2) {
      const [x, y] = [points[p]!, points[p + 1]!];
      const inside =
        x > placed.x[box]! &&
        x < placed.x[box]! + 60 &&
        y > placed.y[box]! &&
        y < placed.y[box]! + graph.height[box]!;
      expect(inside).toBe(false);
    }
});

test("two chains that cross in the given order are untangled", () => {
  const graph = level(4, [
    [0, 3],
    [1, 2],
  ]);
  const placed = placeAll(graph);
  expect(Math.sign(placed.x[1]! - placed.x[2]!)).toBe(Math.sign(placed.x[4]! - placed.x[3]!));
});

test("boxes that fit into several ranks do not crowd one of them", () => {
  // A long chain below the first box, and four boxes that are read at its end.
  const chain: [number, number][] = Array.from({ length: 5 }, (_, i) => [i, i + 1]);
  const beside = [6, 7, 8, 9].flatMap((i): [number, number][] => [
    [0, i],
    [i, 10],
  ]);
  const edges = [...chain, ...beside, [5, 10] as [number, number]];
  const none = new Uint8Array(11);
  const rank = ranks({
    width: new Float32Array(11).fill(60),
    top: none,
    bottom: none,
    from: Int32Array.from(edges, ([a]) => a),
    to: Int32Array.from(edges, ([, b]) => b),
  });
  expect(new Set([6, 7, 8, 9].map((i) => rank[i])).size).toBe(4);
});

test("the order of open boxes' ports avoids crossings inside and outside", () => {
  // Two boxes with two values between them, computed and read in an order that crosses.
  const [first, second] = [1, 2];
  const shape: Shape = {
    parent: Int32Array.of(-1, 0, 0, first, first, second, second, first, first, second, second),
    kind: Uint8Array.of(OPEN, OPEN, OPEN, CLOSED, CLOSED, CLOSED, CLOSED, OUT, OUT, IN, IN),
    width: Float32Array.of(0, 90, 90, 60, 60, 60, 60, 8, 8, 8, 8),
    height: Float32Array.of(0, 0, 0, 34, 34, 34, 34, 0, 0, 0, 0),
    anchor: new Float32Array(11),
    from: Int32Array.of(3, 4, 7, 8, 9, 10),
    to: Int32Array.of(8, 7, 10, 9, 5, 6),
    level: Int32Array.of(first, first, 0, 0, second, second),
  };
  expect(crossings(shape, placeAll(shape))).toBe(0);
});

function scene(open: boolean) {
  const tree = treeOf(modelOf({ primal: layers(6) }), [0]);
  return { tree, scene: sceneOf(tree, () => open) };
}

test("children lie inside their box, and nothing overlaps", () => {
  const { scene: made } = scene(true);
  const { parent, kind } = made.shape;
  const at = placeAll(made.shape);
  for (let i = 1; i < parent.length; i++) {
    const p = parent[i]!;
    expect(at.x[i]!).toBeGreaterThanOrEqual(at.x[p]! - 0.1);
    expect(at.x[i]! + at.width[i]!).toBeLessThanOrEqual(at.x[p]! + at.width[p]! + 0.1);
    expect(at.y[i]!).toBeGreaterThanOrEqual(at.y[p]! - 0.1);
    expect(at.y[i]! + at.height[i]!).toBeLessThanOrEqual(at.y[p]! + at.height[p]! + 0.1);
    for (let j = 1; j < i; j++) {
      if (parent[j] !== p || kind[i]! > 1 || kind[j]! > 1) continue;
      const apart =
        at.x[i]! + at.width[i]! <= at.x[j]! + 0.1 ||
        at.x[j]! + at.width[j]! <= at.x[i]! + 0.1 ||
        at.y[i]! + at.height[i]! <= at.y[j]! + 0.1 ||
        at.y[j]! + at.height[j]! <= at.y[i]! + 0.1;
      expect(apart, `${i} and ${j}`).toBe(true);
    }
  }
});

test("folded layers are one box with one edge in and one out, and stubs for their weights", () => {
  const { tree, scene: made } = scene(false);
  // From the embedding, to the loss, and from there to the result.
  expect(made.shape.from).toHaveLength(3);
  const box = made.shape.to[0]!;
  expect(tree.children[made.node[box]!]).toHaveLength(6);
  expect(
    made.before
      .get(box)!
      .map((s) => s.text)
      .slice(0, 3),
  ).toEqual(["w0", "v0", "w1"]);
  expect(made.bytes[0]).toBe(16);
});

test("edges of open boxes meet at their ports", () => {
  const { scene: made } = scene(true);
  const { from, to, level: within, parent } = made.shape;
  for (let e = 0; e < from.length; e++)
    for (const end of [from[e]!, to[e]!])
      expect(parent[end] === within[e] || parent[parent[end]!] === within[e]).toBe(true);
});

test("residuals are in a row sorted by number, as many as fit", () => {
  const stub = (residual: number): Stub => ({
    kind: "residual",
    text: residualText(residual),
    variable: -1,
    residual,
  });
  const texts = (row: Row) => row.ports.map((port) => port.text);
  expect(texts(rowOf([stub(4), stub(0)]))).toEqual(["R1", "R5"]);
  const many = rowOf(Array.from({ length: 20 }, (_, i) => stub(19 - i)));
  expect(texts(many)).toEqual(["R1", "R2", "R3", "R4", "R5", "+15"]);
  expect(many.ports.at(-1)!.stubs.map((s) => s.residual)).toEqual(
    Array.from({ length: 15 }, (_, i) => i + 5),
  );
  many.ports.reduce((end, port) => {
    expect(port.x).toBeGreaterThanOrEqual(end);
    return port.x + port.width;
  }, 0);
  expect(many.width).toBe(many.ports.at(-1)!.x + many.ports.at(-1)!.width);
});

test("equations that share a program keep separate edges", () => {
  const shared = { inputs: ["a"], equations: [{ text: "b = sin a" }, { text: "c = cos b" }], results: ["c"] };
  const jit = (text: string) => ({ text, inside: [shared] });
  const model = modelOf({
    primal: { inputs: ["x"], equations: [jit("y = jit x"), jit("z = jit y")], results: ["z"] },
  });
  const tree = treeOf(model, [0]);
  const made = sceneOf(tree, () => true);
  const pairs = Array.from(made.shape.from, (from, e) => [made.node[from]!, made.node[made.shape.to[e]!]!]);
  for (const row of [1, 4]) expect(pairs).toContainEqual([tree.ofRow[row], tree.ofRow[row + 1]]);
});
