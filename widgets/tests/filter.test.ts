import { expect, test } from "vitest";
import { filterOf } from "../src/ui/filter";
import { model } from "./fixture";

/** The indices of the matching residuals. */
function found(text: string, kind = ""): number[] {
  const m = model();
  const passes = filterOf(m)(text, kind);
  return m.residuals.filter(passes ?? (() => true)).map((r) => r.index);
}

test("a word is searched in every cell, the scopes and the function, ignoring case", () => {
  const cells = [
    "b",
    "f32[3]",
    "intermediate",
    "model.py:2",
    "jvp rule",
    "LINE 4's gradient",
    "block/att",
    "saved",
  ];
  for (const word of cells) expect([word, found(word)[0]]).toEqual([word, 0]);
  expect(found("block.attention")).toEqual([0]);
  expect(found("model.py:300")).toEqual([1]);
  expect(found("loss")).toEqual([0, 1]);
  expect(found("src/")).toEqual([]);
});

test("all words are required, in any order and any cell", () => {
  expect(found("sin f32[3]")).toEqual([0]);
  expect(found("f32[] sin")).toEqual([]);
  expect(found("  ")).toEqual([0, 1]);
});

test("a kind, alone and with words", () => {
  expect(found("", "literal")).toEqual([1]);
  expect(found("model.py", "intermediate")).toEqual([0]);
  expect(found("sin", "literal")).toEqual([]);
});

test("without words or a kind there is no filter", () => {
  expect(filterOf(model())(" ", "")).toBeNull();
});
