import { expect, test } from "vitest";
import { shortened } from "../src/graph/layout/stubs";
import { alike, mostAlike } from "../src/model/groups";
import type { Residual } from "../src/model/records";
import { folded, sorted, summary } from "../src/panes/residualrows";
import { formatBytes, formatCount, plural } from "../src/ui/format";

test.each([
  [0, "0 B"],
  [1023, "1023 B"],
  [1024, "1.0 KiB"],
  [1536, "1.5 KiB"],
  [5 * 1024 ** 2, "5.0 MiB"],
  [3 * 1024 ** 4, "3.0 TiB"],
])("%d bytes are %s", (n, text) => {
  expect(formatBytes(n)).toBe(text);
});

test("counts", () => {
  expect(formatCount(1234567)).toBe("1,234,567");
  expect(plural(1, "value")).toBe("1 value");
  expect(plural(2000, "value")).toBe("2,000 values");
});

function residual(index: number, changes: Partial<Residual>): Residual {
  const rest = {
    name: "a",
    type: "f32[]",
    perDevice: -1,
    dummy: 0,
    kind: "intermediate",
    place: null,
    scope: "",
    module: "",
    rule: "",
    reason: "",
    decision: "",
  };
  return {
    index,
    label: changes.name ?? rest.name,
    group: index,
    nbytes: 4,
    producer: -1,
    consumers: [],
    ...rest,
    ...changes,
  };
}

const place = (file: number, line: number) => ({
  file,
  line,
  function: "f",
  startLine: 0,
  start: 0,
  endLine: 0,
  end: 0,
});
const three = [
  residual(0, { nbytes: 4, name: "b", place: place(1, 2) }),
  residual(1, { nbytes: 400, name: "a", place: place(0, 30), kind: "argument" }),
  residual(2, { nbytes: 4, name: "c", place: place(0, 4) }),
];
const order = (...arguments_: [Parameters<typeof sorted>[1], boolean]) =>
  sorted(three, ...arguments_).map((r) => r.index);

test("sorting by size is stable, sorting by line compares files first, and the list stays unchanged", () => {
  expect(order("nbytes", true)).toEqual([1, 0, 2]);
  expect(order("nbytes", false)).toEqual([0, 2, 1]);
  expect(order("line", false)).toEqual([2, 1, 0]);
  expect(order("label", false)).toEqual([1, 0, 2]);
  expect(three.map((r) => r.index)).toEqual([0, 1, 2]);
});

test("the total is what is saved, without arguments and what nothing reads", () => {
  expect(summary(three)).toBe("saves 8 B in 2 values; reads 400 B of its arguments");
  expect(summary([])).toBe("saves nothing");
  expect(summary([three[1]!], three)).toBe("1 of 3 values: saves nothing; reads 400 B of its arguments");
  const unread = [three[0]!, residual(3, { nbytes: 40, kind: "unread" })];
  expect(summary(unread)).toBe("saves 4 B in 1 value; 40 B that nothing reads");
  const spread = [residual(0, { nbytes: 800, perDevice: 100 }), residual(1, { nbytes: 4, kind: "argument" })];
  expect(summary(spread)).toBe("saves 100 B on each device in 1 value; reads 4 B of its arguments");
});

test("values of one expression are one row, with their total bytes", () => {
  const layers = [0, 1, 2].map((i) =>
    residual(i, {
      label: `params[${i}]['w']`,
      group: i === 2 ? 1 : 0,
      nbytes: 100 * (i + 1),
      type: "f32[4]",
    }),
  );
  const rows = folded(layers);
  expect(rows.map((row) => row.members.map((r) => r.index))).toEqual([[0, 1], [2]]);
  expect(rows[0]!.residual).toMatchObject({
    label: "params[0…1]['w']",
    type: "2 × f32[4]",
    nbytes: 300,
    perDevice: -1,
  });
  expect(rows[1]!.residual).toBe(layers[2]);
});

test("one name for several is their common pattern", () => {
  expect(alike(["p['Dense_0']['w']", "p['Dense_2']['w']"])).toBe("p['Dense_0,2']['w']");
  expect(alike(["p['block/linear_1']", "p['block_2/linear_1']"])).toBe("p['block,block_2/linear_1']");
  expect(alike(["p['block_1/w']", "p['block_3/w']"])).toBe("p['block_1,3/w']");
  expect(alike(["Dense", "Dense_0", "Dense_1"])).toBe("Dense,Dense_0…Dense_1");
  expect(alike(["p['w1']", "p['w2']"])).toBe("p['w1'] and others");
  expect(alike(["x", "x"])).toBe("x");
  expect(mostAlike(["read by h[1]", "kept", "read by h[2]"])).toBe(
    "read by h[1…2] (2 of 3; the other for another reason)",
  );
});

test("names of boxes are cut at the end of a word", () => {
  expect(shortened("jax.nn.log_softmax(logits, axis=-1)", 22)).toBe("jax.nn.log_softmax(…");
  expect(shortened("jax.nn.log_softmax(logits)", 12)).toBe("jax.nn.…");
  expect(shortened("broadcast_in_dim", 12)).toBe("broadcast_…");
  expect(shortened("short", 5)).toBe("short");
});
