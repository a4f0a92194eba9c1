import { expect, test } from "vitest";
import { donationText, foldText, listing } from "../src/code/listing";
import { model } from "./fixture";
import { layers, modelOf } from "./graphs";

test("a stage reads as a jaxpr, with nested programs below their equation", () => {
  const lines = listing(model(), [0]);
  expect(lines.map((line) => line.text)).toEqual([
    "lambda a:f32[3] .",
    "  b:f32[3] = sin a",
    "  c:f32[3] = jit[name=g axes=(0,)] b",
    "    lambda a:f32[3] .",
    "      b:f32[3] = mul a 2.0:f32[]",
    "    in (b)",
    "in (c)",
  ]);
  expect(lines.map((line) => line.row)).toEqual([-1, 0, 1, -1, 2, -1, -1]);
  expect(lines.map((line) => line.foldTo)).toEqual([-1, -1, 5, -1, -1, -1, -1]);
});

test("tokens match their text", () => {
  for (const line of listing(model(), [0, 1]))
    for (const token of line.tokens) {
      const text = line.text.slice(token.from, token.to);
      if (token.variable !== undefined) expect(text).toBe(model().atomText(token.variable));
      if (token.kind === "type") expect(text).toMatch(/^:f32\[3?\]$/);
    }
});

test("several stages have headings", () => {
  const headings = listing(model(), [0, 1]).filter((line) => line.kind === "heading");
  expect(headings.map((line) => line.text)).toEqual(["f  the function", "backward  the function"]);
});

test("long params are cut after a param, unless shown in full", () => {
  const m = model();
  m.view.strings[13] = "a=1\nb=a very long value indeed";
  const call = (full: boolean) => listing(m, [0], full)[2]!;
  expect(call(false).text).toBe("  c:f32[3] = jit[a=1 …] b");
  expect(call(false).tokens.find((token) => token.kind === "param")!.title).toBe(m.view.strings[13]);
  expect(call(true).text).toBe("  c:f32[3] = jit[a=1 b=a very long value indeed] b");
});

test("a line break in a name stays on one line", () => {
  const m = model();
  m.view.strings[1] = "si\nn\u2028";
  expect(listing(m, [0])[1]!.text).toBe("  b:f32[3] = si n  a");
});

const DONATED = { donation_rows: [1], donation_operands: [0], donation_results: [0], donation_reasons: [0] };

test("a donated input and the result that reuses its memory name each other", () => {
  const lines = listing(model(DONATED), [0]).map((line) => line.text);
  expect([lines[3], lines[5]]).toEqual(["    lambda a:f32[3] donated → b .", "    in (b ← a)"]);
  expect([lines[0], lines[6]]).toEqual(["lambda a:f32[3] .", "in (c)"]);
  const unused = model({ ...DONATED, donation_results: [-1], donation_reasons: [23] });
  expect(listing(unused, [0])[3]!.text).toBe("    lambda a:f32[3] donated, no match .");
  expect([model(DONATED), unused].map((m) => donationText(m.donations[0]!))).toEqual([
    "donated: result 0 reuses its memory",
    "donated, but nothing reads it",
  ]);
});

test("a collective is marked, and its axis is always shown", () => {
  const parts = (exchanges: number) => {
    const m = model({ axis_rows: [1], axis_exchanges: [exchanges] });
    m.view.strings[13] = "axis_name=('rows', 'columns')\ntiled=True";
    const line = listing(m, [0])[2]!;
    expect(line.text).toBe("  c:f32[3] = jit[axis_name=('rows', 'columns') …] b");
    return line.tokens.map((t) => `${t.kind} ${line.text.slice(t.from, t.to)}`);
  };
  expect(parts(1)).toContain("collective jit");
  expect(parts(0)).toContain("primitive jit");
  expect(parts(0)).toContain("axis axis_name=('rows', 'columns')");
});

test("folded lines have a summary", () => {
  const m = model();
  const lines = listing(m, [0]);
  expect(foldText(m, lines, 2)).toBe("1 equation · mul");
  // Of a program that is called twice: its equations are there once.
  const made = model({ residual_producer: [2, 2] });
  expect(foldText(made, listing(made, [0]), 2)).toBe("1 equation · mul · 1 residual");
  const loop = model({ program_length: [0, 1000, 0] });
  expect(foldText(loop, listing(loop, [0]), 2)).toBe("1,000 × 1 equation · mul");
});

test("a variable has one binding: an equation or an input", () => {
  const bound = listing(model(), [0]).flatMap((line) =>
    line.tokens.filter((t) => t.isBinder).map((t) => t.variable),
  );
  expect(bound).toEqual([0, 1, 2, 3, 4].slice(0, bound.length));
  expect(new Set(bound).size).toBe(bound.length);
});

test("in a long stage, repeats have a heading, as do their copies and parts", () => {
  const m = modelOf({ primal: layers(12) });
  const lines = listing(m, [0]);
  const headings = lines.filter((line) => line.kind === "group");
  expect(headings.slice(0, 4).map(({ text, depth }) => `${depth} ${text.trim()}`)).toEqual([
    "1 layer × 12",
    "2 layer 1",
    "3 norm",
    "2 layer 2",
  ]);
  const [all] = headings;
  expect(foldText(m, lines, lines.indexOf(all!))).toMatch(/^84 equations · /);
  expect(lines.filter((line) => line.kind === "equation").map((line) => line.row)).toEqual([
    ...Array(m.rows).keys(),
  ]);
  for (const { foldTo } of headings) expect(lines[foldTo]!.kind).toBe("equation");
  expect(listing(modelOf({ primal: layers(2) }), [0]).some((line) => line.kind === "group")).toBe(false);
});

test("repeats have headings as soon as it is known which equations repeat", () => {
  const m = modelOf({ primal: layers(12) });
  const { view } = m;
  const headings = () => listing(m, [0]).filter((line) => line.kind === "group");
  const alone = Float64Array.from({ length: m.rows }, (_, row) => row);
  m.complete({ ...view, has_groups: false, columns: { ...view.columns, equation_group: alone } });
  expect(headings()).toHaveLength(0);
  m.complete(view);
  expect(headings()[0]!.text.trim()).toBe("layer × 12");
});
