import { Graphviz } from "@hpcc-js/wasm-graphviz";
import { beforeEach, expect, test, vi } from "vitest";
import type { Graphviz as Loaded } from "../src/graph/layout/client";
import { pointsAlong } from "../src/graph/layout/curves";
import { type Dot, placeByDot } from "../src/graph/layout/graphviz";
import { treeOf } from "../src/graph/layout/hierarchy";
import { placeAll } from "../src/graph/layout/place";
import { crossings, isBetter } from "../src/graph/layout/quality";
import { sceneOf } from "../src/graph/layout/scene";
import { CLOSED, OPEN, type Positions, type Shape } from "../src/graph/layout/shape";
import { layers, modelOf, type Program } from "./graphs";

const graphviz = await Graphviz.load();
const dot: Dot = (text) => graphviz.layout(text, "json0" as "json", "dot");

function shapeOf(program: Program): Shape {
  return sceneOf(treeOf(modelOf({ primal: program }), [0]), () => true).shape;
}

/** A loop whose body passes two values between boxes. */
const nested: Program = {
  inputs: ["a", "b"],
  equations: [
    { text: "c = sin a" },
    {
      text: "d e = scan[num_consts=0 num_carry=2] b c",
      inside: [
        {
          inputs: ["x", "y"],
          equations: [{ text: "u = mul x y" }, { text: "v = add u 1.0" }, { text: "w = tanh v" }],
          results: ["u", "w"],
        },
      ],
    },
    { text: "f = mul d e" },
  ],
  results: ["f"],
};

test.each([
  ["open layers", layers(3)],
  ["a loop", nested],
])("boxes lie within their parents and do not overlap: %s", (_, program) => {
  const shape = shapeOf(program);
  const at = placeByDot(shape, dot);
  const { parent, kind } = shape;
  for (let i = 1; i < parent.length; i++) {
    const p = parent[i]!;
    expect(at.x[i]!).toBeGreaterThanOrEqual(at.x[p]! - 1);
    expect(at.y[i]!).toBeGreaterThanOrEqual(at.y[p]! - 1);
    expect(at.x[i]! + at.width[i]!).toBeLessThanOrEqual(at.x[p]! + at.width[p]! + 1);
    expect(at.y[i]! + at.height[i]!).toBeLessThanOrEqual(at.y[p]! + at.height[p]! + 1);
    for (let j = 1; j < i; j++) {
      if (parent[j] !== p || kind[i]! > OPEN || kind[j]! > OPEN) continue;
      const apart =
        at.x[i]! + at.width[i]! <= at.x[j]! + 1 ||
        at.x[j]! + at.width[j]! <= at.x[i]! + 1 ||
        at.y[i]! + at.height[i]! <= at.y[j]! + 1 ||
        at.y[j]! + at.height[j]! <= at.y[i]! + 1;
      expect(apart, `${i} and ${j}`).toBe(true);
    }
  }
});

test.each([
  ["open layers", layers(3)],
  ["a loop", nested],
])("edges lead from the lower edge of a card to the upper edge of another: %s", (_, program) => {
  const shape = shapeOf(program);
  const at = placeByDot(shape, dot);
  const middle = (i: number) => at.x[i]! + at.width[i]! / 2 + shape.anchor[i]!;
  shape.from.forEach((from, e) => {
    const points = [...at.points.subarray(at.starts[e]!, at.starts[e + 1]!)];
    expect(points.length % 6).toBe(2);
    if (shape.kind[from] === CLOSED) {
      expect(points[0]).toBeCloseTo(middle(from), -1);
      expect(Math.abs(points[1]! - at.y[from]! - at.height[from]!)).toBeLessThan(2);
    }
    const to = shape.to[e]!;
    if (shape.kind[to] === CLOSED) {
      expect(points.at(-2)!).toBeCloseTo(middle(to), -1);
      expect(Math.abs(points.at(-1)! - at.y[to]!)).toBeLessThan(2);
    }
  });
});

test("consecutive boxes are stacked vertically", () => {
  const shape = shapeOf(layers(3));
  const at = placeByDot(shape, dot);
  const copies = [...shape.kind.keys()].filter(
    (i) => shape.kind[i] === OPEN && shape.parent[shape.parent[i]!] === 0,
  );
  expect(copies).toHaveLength(3);
  for (const k of [1, 2])
    expect(at.y[copies[k]!]!).toBeGreaterThan(at.y[copies[k - 1]!]! + at.height[copies[k - 1]!]! - 1);
});

test.each([
  ["layers", layers(2)],
  ["open layers", layers(3)],
  ["a loop", nested],
])("our own layout has no more crossings than Graphviz's: %s", (_, program) => {
  const shape = shapeOf(program);
  expect(crossings(shape, placeAll(shape))).toBeLessThanOrEqual(crossings(shape, placeByDot(shape, dot)));
});

test("a crossing is counted, and costs as much as a detour", () => {
  const shape = { from: Int32Array.of(0, 1), to: Int32Array.of(3, 2), level: Int32Array.of(0, 0) };
  const lines = (...xs: number[]): Positions => ({
    x: new Float32Array(4),
    y: new Float32Array(4),
    width: Float32Array.of(100),
    height: Float32Array.of(100),
    starts: Int32Array.of(0, 4, 8),
    points: Float32Array.of(xs[0]!, 0, xs[1]!, 100, xs[2]!, 0, xs[3]!, 100),
    cut: new Uint8Array(2),
    curved: false,
  });
  const [crossed, plain] = [lines(0, 50, 50, 0), lines(0, 50, 60, 90)];
  expect(crossings(shape as Shape, crossed)).toBe(1);
  expect(crossings(shape as Shape, plain)).toBe(0);
  expect(isBetter(shape as Shape, plain, crossed)).toBe(true);
  expect(isBetter(shape as Shape, { ...plain, width: Float32Array.of(200) }, crossed)).toBe(false);
  expect(pointsAlong(plain, 0).slice(-2)).toEqual([50, 100]);
});

/** Graphviz on a page that does not allow workers. */
const loaded = (program: Dot = dot) => ({ source: "", dot: async () => program });

const client = () => import("../src/graph/layout/client");

beforeEach(() => {
  vi.resetModules();
});

test("our own layout is shown first, and Graphviz's when it is loaded", async () => {
  const { place } = await client();
  const shape = shapeOf(nested);
  const load = vi.fn(async () => loaded());
  const done = vi.fn();
  place(shape, "graphviz", load, done);
  expect(done).toHaveBeenCalledTimes(1);
  expect(done.mock.calls[0]).toEqual([placeAll(shape), false]);
  await vi.waitFor(() => expect(done).toHaveBeenCalledTimes(2));
  expect(done.mock.calls[1]).toEqual([placeByDot(shape, dot), true]);
  place(shape, "graphviz", load, done);
  await vi.waitFor(() => expect(done).toHaveBeenCalledTimes(3));
  expect(done.mock.calls[2]).toEqual([placeByDot(shape, dot), false]);
  expect(load).toHaveBeenCalledTimes(1);
});

test("automatically, the better layout is used", async () => {
  const { place } = await client();
  const shape = shapeOf(nested);
  const done = vi.fn();
  place(shape, "auto", async () => loaded(), done);
  await new Promise((resolve) => setTimeout(resolve));
  const both = [placeAll(shape), placeByDot(shape, dot)] as const;
  const better = isBetter(shape, both[1], both[0]) ? both[1] : both[0];
  expect(done.mock.calls.at(-1)![0]).toEqual(better);
});

test.each([
  ["cannot be loaded", () => Promise.reject(new Error("no WebAssembly here"))],
  [
    "fails",
    async () =>
      loaded(() => {
        throw new Error("out of memory");
      }),
  ],
])("our own layout stays if Graphviz %s", async (_, load: () => Promise<Loaded>) => {
  vi.spyOn(console, "warn").mockImplementation(() => {});
  const { place } = await client();
  const shape = shapeOf(nested);
  const done = vi.fn();
  place(shape, "graphviz", load, done);
  await new Promise((resolve) => setTimeout(resolve));
  place(shape, "graphviz", load, done);
  await new Promise((resolve) => setTimeout(resolve));
  expect(done.mock.calls).toEqual([
    [placeAll(shape), false],
    [placeAll(shape), false],
  ]);
});

test("Graphviz is not loaded if it is not wanted, or if the graph is large", async () => {
  const { place } = await client();
  const load = vi.fn(async () => loaded());
  place(shapeOf(nested), "layered", load, () => {});
  place(shapeOf(layers(40)), "auto", load, () => {});
  expect(load).not.toHaveBeenCalled();
});

test("if loading Graphviz failed, for example with a busy kernel, only choosing it explicitly tries again", async () => {
  const { place } = await client();
  const shape = shapeOf(nested);
  const load = vi.fn(async () => loaded()).mockRejectedValueOnce(new Error("no kernel answers"));
  place(shape, "auto", load, () => {});
  await new Promise((resolve) => setTimeout(resolve));
  place(shape, "auto", load, () => {});
  expect(load).toHaveBeenCalledTimes(1);
  const done = vi.fn();
  place(shape, "graphviz", load, done);
  await vi.waitFor(() => expect(done).toHaveBeenLastCalledWith(placeByDot(shape, dot), true));
});
