import { expect, test } from "vitest";
import { find, suggested } from "../src/model/find";
import { Model } from "../src/model/model";
import { fromJson } from "../src/wire/schema";
import { json, model } from "./fixture";

function found(text: string, columns: Record<string, number[]> = {}) {
  return find(model(columns), text);
}

test("lines are found by their text, ignoring spaces and case", () => {
  const [line, ...rest] = found("G(JNP.sin(x))   # é").source;
  expect(rest).toEqual([]);
  expect(line).toEqual({
    title: "return g(jnp.sin(x))  # é ✓ </script>",
    about: "model.py:2",
    line: { file: 0, line: 2 },
  });
});

test("equations are found as in the graph, and repeated ones are one result", () => {
  expect(found("mul").equations.map(({ rows }) => rows)).toEqual([[2], [3], [4]]);
  const alike = { equation_group: [0, 1, 2, 3, 3], equation_role: [0, 0, 0, 3, 3] };
  expect(found("mul", alike).equations.map(({ rows }) => rows)).toEqual([[2], [3, 4]]);
  expect(found("mul line:300").equations.map(({ about }) => about)).toEqual(["f · model.py:300"]);
  expect(() => found("flops>lots")).toThrow("lots is not an amount");
});

test("values are residuals, and variables by name or label", () => {
  const names = json.columns["variable_name"]!.map((i) => json.strings[i]);
  const [residual, ...named] = found("b").values;
  expect(residual).toEqual({ title: "b", about: "saved · 12 B · model.py:2", residuals: [0] });
  expect(named.map(({ variable }) => names[variable!])).toContain("b");
  expect(found("X").values).toEqual([{ title: "x", about: "f · a:f32[3]", variable: 0 }]);
});

test("inputs that differ in numbers are one result, and saved values are not found twice", () => {
  const strings = [...json.strings, "p['w'][0]", "p['w'][1]", "residual p['w'] @ x", "p['w'][0…1]"];
  const n = json.strings.length;
  const labels = json.columns["variable_label"]!.map((_, v) => (v === 0 || v === 3 ? n + v / 3 : 0));
  labels[4] = n + 2;
  const together = labels.map((label) => (label === n || label === n + 1 ? n + 3 : 0));
  const columns = { ...json.columns, variable_label: labels, variable_labels: together };
  const m = new Model(fromJson({ ...json, strings, columns }));
  expect(find(m, "p['w']").values.map(({ title }) => title)).toEqual(["p['w'][0…1]"]);
});

test("scopes are found by name, with their equations", () => {
  const strings = [...json.strings, "Net/attention/attention", "Net/mlp"];
  const [attention, mlp] = [json.strings.length, json.strings.length + 1];
  const columns = { ...json.columns, equation_scope: [0, 0, 0, attention, mlp] };
  const m = new Model(fromJson({ ...json, strings, columns }));
  const scopes = (text: string) => find(m, text).scopes;
  expect(scopes("ATTEN")).toEqual([{ title: "attention", about: "1 equation", rows: [3] }]);
  expect(scopes("net").map(({ rows }) => rows)).toEqual([[3, 4]]);
  expect(scopes("conv")).toEqual([]);
});

test("an empty text finds nothing", () => {
  expect(found("  ")).toEqual({ addresses: [], source: [], equations: [], values: [], scopes: [] });
});

test("suggestions find something: conditions for an empty field, and what a word may go on with", () => {
  const own = model();
  const some = suggested(own, "");
  expect(some.length).toBeGreaterThan(2);
  expect(some.some((text) => text.startsWith("scope:"))).toBe(true);
  for (const text of some) expect(find(own, text).equations, text).not.toEqual([]);
  expect(suggested(own, "sin si")).toEqual(["sin size>", "sin sin"]);
  expect(suggested(own, "scope:")).toContain("scope:block");
  expect(suggested(own, "mul ")).toEqual([]);
});
