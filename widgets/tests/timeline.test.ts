import { expect, test } from "vitest";
import { sumOf } from "../src/model/groups";
import {
  aliveAt,
  type Buffer,
  columnOf,
  columnsOf,
  type MemoryKind,
  type Timeline,
  ticks,
  totalsOf,
} from "../src/model/timeline";
import { STACKED } from "../src/wire/schema";
import { model } from "./fixture";

function buffer(nbytes: number, kind: MemoryKind, born: number, last: number, name = "v"): Buffer {
  return { nbytes, kind, born, last, row: -1, name, type: "f32[3]", group: 0, residuals: [] };
}

function timeline(forward: number, backward: number, ...buffers: Buffer[]): Timeline {
  const steps = Array.from({ length: forward + backward }, (_, i) => ({ row: i, isBackward: i >= forward }));
  return { steps, buffers, labels: ["v"] };
}

/** sin, cos (saved), sum; then the broadcast cotangent, and one product: as `jaxviz.memory` counts it. */
const chain = timeline(
  3,
  2,
  buffer(4000, "argument", 0, 5, "x"),
  buffer(4000, "temporary", 0, 2, "sin"),
  buffer(4000, "residual", 1, 3, "cos"),
  buffer(4, "result", 2, 5, "reduce_sum"),
  buffer(4, "cotangent", 3, 3, "ct"),
  buffer(4000, "result", 4, 5, "mul"),
);

const ofKind = (t: Timeline, kind: MemoryKind) => Array.from(totalsOf(t).kinds[STACKED.indexOf(kind)]!);

test("totals of a chain, counted by hand", () => {
  expect(ofKind(chain, "argument")).toEqual([4000, 4000, 4000, 4000, 4000]);
  expect(ofKind(chain, "residual")).toEqual([0, 4000, 4000, 4000, 0]);
  expect(ofKind(chain, "temporary")).toEqual([4000, 4000, 4000, 0, 0]);
  expect(ofKind(chain, "result")).toEqual([0, 0, 4, 4, 4004]);
  const { total, peak, turn } = totalsOf(chain);
  expect([...total]).toEqual([8000, 12000, 12004, 8008, 8004]);
  expect([peak, turn]).toEqual([2, 3]);
});

test("totals are sums of what is alive, for any buffers", () => {
  let seed = 1;
  const random = (n: number) => {
    seed = (seed * 48271) % 2147483647;
    return seed % n;
  };
  const buffers = Array.from({ length: 300 }, () => {
    const born = random(51);
    return buffer(random(1000), STACKED[random(6)]!, born, Math.min(50, born + random(20)));
  });
  const some = timeline(20, 30, ...buffers);
  const { kinds, total } = totalsOf(some);
  for (let i = 0; i < 50; i++) {
    const alive = buffers.filter((b) => b.born <= i && i <= b.last);
    const sums = STACKED.map((kind) =>
      alive.filter((b) => b.kind === kind).reduce((sum, b) => sum + b.nbytes, 0),
    );
    expect(kinds.map((bytes) => bytes[i])).toEqual(sums);
    expect(total[i]).toBe(sums.reduce((a, b) => a + b));
    expect(sumOf(aliveAt(some, i), (a) => a.members.length)).toBe(alive.length);
  }
});

test("without equations", () => {
  const { total, peak, turn } = totalsOf(timeline(0, 0, buffer(4, "argument", 0, 0)));
  expect([total.length, peak, turn]).toEqual([0, -1, 0]);
});

test("what is alive at a step, as many of each group as there are", () => {
  const of = (group: number, b: Buffer) => ({ ...b, group });
  const layers: Timeline = {
    ...timeline(
      2,
      0,
      of(0, buffer(5, "argument", 0, 2, "p[0]['w']")),
      of(0, buffer(5, "argument", 0, 2, "p[1]['w']")),
      of(1, buffer(20, "temporary", 1, 1, "sin")),
      of(2, buffer(90, "temporary", 0, 0, "cos")),
      ...[0, 1, 1].map((born, i) => of(3, buffer(3, "temporary", born, born, `tanh(h[${i}])`))),
    ),
    labels: ["p[0…1]['w']", "sin", "cos", "tanh(h[0…2])"],
  };
  const said = (step: number) => aliveAt(layers, step).map(({ name, type, nbytes }) => [name, type, nbytes]);
  expect(said(1)).toEqual([
    ["sin", "f32[3]", 20],
    ["p[0…1]['w']", "2 × f32[3]", 10],
    ["tanh(h[0…2])", "2 of 3 × f32[3]", 6],
  ]);
  expect(said(0).at(-1)).toEqual(["tanh(h[0])", "f32[3]", 3]);
});

test("few steps have a column each", () => {
  const { low, high } = columnsOf(Float64Array.of(3, 1, 2), 500);
  expect([[...low], [...high]]).toEqual([
    [0, 1, 2],
    [0, 1, 2],
  ]);
});

test.each([
  [100_000, 640],
  [1001, 1000],
  [7, 3],
])("%d steps in %d columns: each step in one, with its least and its most", (n, limit) => {
  const total = Float64Array.from({ length: n }, (_, i) => (i * 7919) % 1009);
  const { low, high } = columnsOf(total, limit);
  expect(high.length).toBe(limit);
  const least = new Array(limit).fill(Infinity);
  const most = new Array(limit).fill(-Infinity);
  let jumps = 0;
  for (let i = 0, before = 0; i < n; i++) {
    const c = columnOf(i, n, limit);
    jumps += Number(c !== before && c !== before + 1);
    before = c;
    least[c] = Math.min(least[c], total[i]!);
    most[c] = Math.max(most[c], total[i]!);
  }
  expect(jumps).toBe(0);
  expect(Array.from(low, (i) => total[i])).toEqual(least);
  expect(Array.from(high, (i) => total[i])).toEqual(most);
});

test("round sizes", () => {
  expect(ticks(5000, 3)).toEqual([2048, 4096]);
  expect(ticks(4096, 4)).toEqual([1024, 2048, 3072, 4096]);
  expect(ticks(3, 2)).toEqual([2]);
  expect(ticks(213, 2.4)).toEqual([64, 128, 192]);
  expect(ticks(0, 3)).toEqual([]);
  expect(ticks(100, 0.4)).toEqual([]);
});

test("the view's timeline: steps know their pass, and buffers their residuals", () => {
  const { steps, buffers } = model().timeline;
  expect(steps).toEqual([
    { row: 0, isBackward: false },
    { row: 2, isBackward: false },
    { row: 3, isBackward: true },
    { row: 4, isBackward: true },
  ]);
  expect(buffers[1]).toEqual({
    nbytes: 12,
    kind: "residual",
    born: 0,
    last: 2,
    row: 0,
    name: "b",
    type: "f32[3]",
    group: 1,
    residuals: [0],
  });
  expect([...totalsOf(model().timeline).total]).toEqual([24, 44, 48, 36]);
});
