// @vitest-environment jsdom
import { EditorState } from "@codemirror/state";
import { expect, test } from "vitest";
import { Folding } from "../src/code/folding";

/** Line 1 holds 2 to 4, of which 2 holds 3; nothing folds under the others. */
const LINES = [-1, 4, 3, -1, -1, -1].map((foldTo) => ({ foldTo }));
const DOC = LINES.map((_, i) => `line ${i}`).join("\n");

function folded(...steps: [lines: number[], open: boolean][]) {
  const folding = new Folding(LINES, (i) => `under ${i}`);
  let editor = EditorState.create({ doc: DOC, extensions: folding.extension });
  for (const [lines, open] of steps) editor = editor.update({ effects: folding.fold(lines, open) }).state;
  const away = LINES.flatMap((_, i) => (folding.isAway(i, editor) ? [i] : []));
  return { folding, editor, away };
}

test("each line knows the one under which it folds", () => {
  const { folding } = folded();
  expect([...folding.parents]).toEqual([-1, -1, 1, 2, 1, -1]);
  expect(folding.all).toEqual([1, 2]);
});

test.each([
  [[], []],
  [[[[2], false]], [3]],
  [[[[1], false]], [2, 3, 4]],
  [[[[1, 2], false]], [2, 3, 4]],
  [
    [
      [[1, 2], false],
      [[1], true],
    ],
    [3],
  ],
  [
    [
      [[1, 2], false],
      [[1, 2], true],
    ],
    [],
  ],
] as [[number[], boolean][], number[]][])("after %j these are away: %j", (steps, away) => {
  expect(folded(...steps).away).toEqual(away);
});

test("folding what is folded, and unfolding what is not, changes nothing", () => {
  expect(folded([[1], false], [[1, 2], false], [[1], true]).away).toEqual([3]);
  expect(folded([[2], true]).away).toEqual([]);
});

test("a line that is away is brought back by unfolding all that it is under", () => {
  const { folding, editor } = folded([[1, 2], false]);
  const effects = folding.unfoldAround(3, editor);
  const after = editor.update({ effects }).state;
  expect(LINES.some((_, i) => folding.isAway(i, after))).toBe(false);
  expect(folding.unfoldAround(3, after)).toEqual([]);
});

test("what something folds under has an arrow, any other line none", () => {
  const { folding, editor } = folded([[2], false]);
  const arrows = LINES.map((_, i) => folding.arrow(i, editor)?.make({} as never).textContent);
  expect(arrows).toEqual([undefined, "▾", "▸", undefined, undefined, undefined]);
});
