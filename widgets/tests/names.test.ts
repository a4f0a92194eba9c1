import { expect, test } from "vitest";
import { type Name, placed } from "../src/graph/draw/names";

function name(text: string, y: number, more: Partial<Name> = {}): Name {
  return { text, x: 10, y, width: 6, height: 8, depth: 0, isOpen: false, ink: "black", ...more };
}

const texts = (names: readonly Name[], width = 400) => placed(names, width, 300).map(({ text }) => text);

test("all boxes of a column are named, however small", () => {
  const column = Array.from({ length: 12 }, (_, i) => name(`layer ${i + 1}`, 12 * i));
  expect(texts(column).sort()).toEqual(column.map(({ text }) => text).sort());
});

test("if two names would overlap, the outer one is shown", () => {
  expect(texts([name("inner", 20, { depth: 2 }), name("outer", 16, { depth: 1 })])).toEqual(["outer"]);
});

test("a name that would overlap its neighbour's is cut to fit its box", () => {
  const wide = { x: 100, width: 60 };
  const both = [name("broadcast_in_dim", 20, { width: 60 }), name("dot_general", 20, wide)];
  const [cut, whole] = texts(both).sort();
  expect(cut).toMatch(/^broadc.*…$/);
  expect(whole).toBe("dot_general");
});

test("an open box is named at its upper edge while that is visible", () => {
  const [there] = placed([name("block", 40, { height: 200, width: 90, isOpen: true })], 400, 300);
  const [above] = placed([name("block", -100, { height: 200, width: 90, isOpen: true })], 400, 300);
  expect(there!.middle).toBeLessThan(60);
  expect(above!.middle).toBeLessThan(20);
  expect(above!.middle).toBeGreaterThan(0);
});

test("invisible boxes have no name", () => {
  expect(texts([name("above", -40), name("below", 320)])).toEqual([]);
});
