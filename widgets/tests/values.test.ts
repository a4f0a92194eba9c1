import { expect, test } from "vitest";
import printed from "../../tests/fixtures/printed.json";
import { HUES } from "../src/model/hues";
import { Model } from "../src/model/model";
import { fromJson, type View } from "../src/wire/schema";
import { model } from "./fixture";

type Json = Omit<View, "columns"> & { columns: Record<string, number[]> };
const programs = printed as unknown as Record<string, { view: Json }>;
const viewOf = (name: string) => new Model(fromJson(programs[name]!.view));

/** The first result of a stage's n-th row with a primitive and role. */
function made(m: Model, key: string, primitive: string, role: string, n = 0): number {
  const [from, to] = m.view.stages.find((s) => s.key === key)!.equations;
  const rows = Array.from({ length: to - from }, (_, i) => from + i);
  const found = rows.filter((row) => m.primitive(row) === primitive && m.role(row) === role);
  return m.outputs(found[n]!)[0]!;
}

test("a value is the same variable in every stage", () => {
  const m = viewOf("waves");
  const y = made(m, "primal", "sin", "primal");
  for (const key of ["jvp", "forward"]) expect(m.value(made(m, key, "sin", "primal"))).toBe(m.value(y));
  const saved = m.binders(m.view.stages.find((s) => s.key === "backward")!.programs[0]);
  expect(saved.filter((v) => m.value(v) === m.value(y))).toHaveLength(1);
  const others = ["mul", "cos", "add"].map((primitive) => made(m, "primal", primitive, "primal"));
  expect(new Set([y, ...others].map((v) => m.value(v))).size).toBe(4);
});

test("tangents and cotangents have the hue of their value, and are marked as such", () => {
  const m = viewOf("waves");
  const [w] = m.binders(0).slice(1);
  const y = made(m, "primal", "sin", "primal");
  const tangent = made(m, "jvp", "mul", "tangent", 1);
  expect(m.kin(tangent)).toBe("tangent");
  expect(m.family(tangent)).toBe(m.value(y));
  expect(m.hue(tangent)).toBe(m.hue(y));
  expect(m.value(tangent)).not.toBe(m.value(y));
  const backward = m.view.stages.find((s) => s.key === "backward")!;
  const results = m.results(backward.programs[0]);
  expect(m.kin(results[1]!)).toBe("cotangent");
  expect(m.family(results[1]!)).toBe(m.value(w!));
});

test("calls of one program keep their operands apart", () => {
  const m = viewOf("layers");
  const [from, to] = m.view.stages[0]!.equations;
  const calls = Array.from({ length: to - from }, (_, i) => from + i).filter(
    (row) => m.owner(row) < 0 && m.primitive(row) === "jit",
  );
  expect(calls.length).toBeGreaterThan(1);
  expect(new Set(calls.map((row) => m.value(m.outputs(row)[0]!))).size).toBe(calls.length);
  expect(new Set(calls.map((row) => m.value(m.inputs(row)[0]!))).size).toBe(calls.length);
});

test("results of the function's equations have other hues than their operands", () => {
  for (const m of [viewOf("waves"), viewOf("loop"), model()]) {
    const [from, to] = m.view.stages[0]!.equations;
    for (let row = from; row < to; row++) {
      if (m.nested(row).length > 0 || m.owner(row) >= 0) continue;
      const hues = m.inputs(row).flatMap((a) => (a >= 0 ? [m.hue(a)] : []));
      for (const v of m.outputs(row)) expect(hues).not.toContain(m.hue(v));
    }
    const all = m.column("variable_name").length;
    for (let v = 0; v < all; v++) {
      expect(m.hue(v)).toBeGreaterThanOrEqual(0);
      expect(m.hue(v)).toBeLessThan(HUES);
    }
  }
});
