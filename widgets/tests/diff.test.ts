import { expect, test } from "vitest";
import { atOnce } from "../src/base/slices";
import { aligned, sameLines, stretches } from "../src/model/diff";

const rows = (partner: number[], n: number) =>
  aligned(partner, n).map(({ left, right, isSame }) => [left, right, ...(isSame ? ["="] : [])]);

test("common items share a row; others are side by side or alone", () => {
  expect(rows([0, -1, 2], 3)).toEqual([
    [0, 0, "="],
    [1, 1],
    [2, 2, "="],
  ]);
  expect(rows([0, 3], 4)).toEqual([
    [0, 0, "="],
    [-1, 1],
    [-1, 2],
    [1, 3, "="],
  ]);
  expect(rows([-1, -1, 0], 1)).toEqual([
    [0, -1],
    [1, -1],
    [2, 0, "="],
  ]);
  expect(rows([], 1)).toEqual([[-1, 0]]);
});

test("of reordered items, the most that are in order are matched", () => {
  const found = rows([3, 0, 1, 2], 4);
  expect(found.filter((row) => row.includes("=")).map(([left]) => left)).toEqual([1, 2, 3]);
  for (const side of [0, 1])
    expect(found.map((row) => row[side]).filter((i) => i !== -1)).toEqual([0, 1, 2, 3]);
});

test("lines match by their text, in order", () => {
  const same = (a: string, b: string) => [...atOnce(sameLines([...a], [...b]))];
  expect(same("abc", "abc")).toEqual([0, 1, 2]);
  expect(same("abc", "axc")).toEqual([0, -1, 2]);
  expect(same("abcd", "bd")).toEqual([-1, 0, -1, 1]);
  expect(same("ab", "")).toEqual([-1, -1]);
  expect(same("xaby", "xbaby")).toEqual([0, 2, 3, 4]);
  expect(same("aXbYc", "aYbXc").filter((i) => i >= 0)).toHaveLength(3);
});

test("very long texts are compared only at their ends", () => {
  const long = (mark: string) => ["same", ...Array.from({ length: 2500 }, (_, i) => `${mark} ${i}`), "same"];
  const partner = atOnce(sameLines(long("a"), long("b")));
  expect([partner[0], partner[1], partner[2501]]).toEqual([0, -1, 2501]);
});

test("unchanged rows are folded, except a few around changes", () => {
  const at = (n: number, ...other: number[]) =>
    stretches(n, (row) => !other.includes(row)).map(({ from, to, isFolded }) => [from, to, isFolded]);
  expect(at(20, 10)).toEqual([
    [0, 7, true],
    [7, 14, false],
    [14, 20, true],
  ]);
  expect(at(6, 3)).toEqual([[0, 6, false]]);
  expect(at(20)).toEqual([[0, 20, true]]);
  expect(at(0)).toEqual([]);
});
