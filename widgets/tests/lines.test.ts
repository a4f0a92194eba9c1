import { expect, test } from "vitest";
import { Lines } from "../src/code/lines";
import { CHECKPOINT } from "./programs";

const model = CHECKPOINT();
const stage = model.view.stages.findIndex(({ key }) => key === "backward");
const role = (row: number) => model.role(row);
const text = (lines: Lines) => lines.all.map((line) => line.text.trim());

test("equations and variables are found in their lines", () => {
  const lines = new Lines(model, [stage], false);
  for (const [row, line] of lines.ofRow) expect(lines.all[line]!.row).toBe(row);
  const i = text(lines).findIndex((line) => line.includes("= cos"));
  const column = lines.all[i]!.text.indexOf(" d");
  const found = lines.variableAt(i, column + 1)!;
  expect([model.atomText(found.variable), found.isBinder]).toEqual(["d", false]);
  expect(lines.variableAt(i, lines.all[i]!.text.indexOf("cos"))).toBeNull();
});

test("filtered equations are left out, unless they contain others that pass", () => {
  const lines = new Lines(model, [stage], false);
  const [leftOut, ...more] = lines.keep((row) => role(row) !== "recomputation");
  expect(more).toEqual([]);
  expect(leftOut!.rows.map((row) => model.primitive(row))).toEqual(["cos"]);
  expect([leftOut!.from, leftOut!.to].map((i) => lines.isHidden(i))).toEqual([true, true]);
  expect(lines.variableAt(leftOut!.from, lines.all[leftOut!.from]!.text.indexOf("f"))).toBeNull();

  const [inside] = lines.keep((row) => role(row) === "recomputation");
  expect(inside!.rows.map((row) => model.primitive(row))).toEqual(["mul", "mul", "mul"]);
  const owner = text(lines).findIndex((line) => line.includes("remat2"));
  expect(lines.isHidden(owner)).toBe(false);

  const [all] = lines.keep(() => false);
  expect(all!.from).toBe(owner);
  expect(all!.rows).toHaveLength(5);
  expect(lines.keep(() => true)).toEqual([]);
  expect(lines.all.some((_, i) => lines.isHidden(i))).toBe(false);
});
