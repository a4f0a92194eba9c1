import { expect, test } from "vitest";
import { formatBytes, formatCount, plural } from "../src/base/format";
import { shortened } from "../src/graph/layout/stubs";
import type { Residual } from "../src/model/records";
import { byExpression, folded, labelIn, sorted, summary } from "../src/panes/residualrows";

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
    isOutlier: false,
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

test("sorting by size is stable with arguments last, by line compares files first, and leaves the list unchanged", () => {
  expect(order("nbytes", true)).toEqual([0, 2, 1]);
  expect(order("nbytes", false)).toEqual([0, 2, 1]);
  expect(order("line", false)).toEqual([2, 1, 0]);
  expect(order("label", false)).toEqual([1, 0, 2]);
  expect(three.map((r) => r.index)).toEqual([0, 1, 2]);
});

test("the total of some is what is saved, without arguments and what nothing reads", () => {
  expect(summary(three, three)).toBe("3 of 3 values: saves 8 B in 2 values; reads 400 B of its arguments");
  expect(summary([], three)).toBe("0 of 3 values: saves nothing");
  expect(summary([three[1]!], three)).toBe("1 of 3 values: saves nothing; reads 400 B of its arguments");
  const unread = [three[0]!, residual(3, { nbytes: 40, kind: "unread" })];
  expect(summary(unread, unread)).toBe("2 of 2 values: saves 4 B in 1 value; 40 B that nothing reads");
  const spread = [residual(0, { nbytes: 800, perDevice: 100 }), residual(1, { nbytes: 4, kind: "argument" })];
  expect(summary(spread, spread)).toMatch(
    "saves 100 B on each device in 1 value; reads 4 B of its arguments",
  );
});

test("values of a row have its name and its reason, with their total bytes", () => {
  const layers = [0, 1, 2].map((i) =>
    residual(i, {
      label: `params[${i}]['w']`,
      group: 0,
      nbytes: 100 * (i + 1),
      perDevice: i === 0 ? 50 : -1,
      type: "f32[4]",
      reason: `reason ${i}`,
      isOutlier: i === 2,
    }),
  );
  const groups = [{ label: "params[0…2]['w']", why: "most of them", members: layers }];
  const [whole] = folded(layers, groups);
  expect(whole!.residual).toMatchObject({
    label: "params[0…2]['w']",
    reason: "most of them",
    type: "3 × f32[4]",
    nbytes: 600,
    perDevice: 550,
  });
  expect(whole!.inside!().map((row) => row.residual.reason)).toEqual(["", "", "reason 2"]);
  const [some] = folded(layers.slice(1), groups);
  expect(some!.residual).toMatchObject({ type: "2 of 3 × f32[4]", nbytes: 500, perDevice: -1 });
  expect(folded([layers[2]!], groups)[0]!.residual).toBe(layers[2]);
});

test("what one expression saves is one row, in which each operation is one", () => {
  const all = [0, 1, 2, 3].map((i) =>
    residual(i, {
      label: ["f(x)", "tanh in f(x)", "tanh in f(x)", "y"][i]!,
      group: [0, 1, 1, 2][i]!,
      nbytes: 10 * (i + 1),
    }),
  );
  const groups = [[0], [1, 2], [3]].map((of) => ({
    label: all[of[0]!]!.label,
    why: "so",
    members: of.map((i) => all[i]!),
  }));
  const kept = {
    index: 5,
    label: "f(x)",
    reason: "needed",
    times: 1,
    values: 2,
    nbytes: 60,
    place: null,
    residuals: [0, 1, 2],
  };
  const [f, y] = byExpression(folded(all, groups), (r) => (r < 3 ? kept : undefined));
  expect([f!.isExpression, f!.residual.nbytes, f!.residual.reason, f!.members.length]).toEqual([
    true,
    60,
    "needed",
    3,
  ]);
  expect(
    f!.inside!().map((row) => [labelIn(row), row.depth, row.inside?.().map((each) => each.depth) ?? []]),
  ).toEqual([
    ["its result", 1, []],
    ["tanh", 1, [2, 2]],
  ]);
  expect([y!.isExpression, labelIn(y!)]).toEqual([false, "y"]);
});

test("names of boxes are cut at the end of a word", () => {
  expect(shortened("jax.nn.log_softmax(logits, axis=-1)", 22)).toBe("jax.nn.log_softmax(…");
  expect(shortened("jax.nn.log_softmax(logits)", 12)).toBe("jax.nn.…");
  expect(shortened("broadcast_in_dim", 12)).toBe("broadcast_…");
  expect(shortened("short", 5)).toBe("short");
});
