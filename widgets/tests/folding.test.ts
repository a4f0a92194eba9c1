// @vitest-environment jsdom
import { EditorState } from "@codemirror/state";
import { EditorView } from "@codemirror/view";
import { expect, test } from "vitest";
import { Folding } from "../src/code/folding";

/** Lines 2 to 4 fold under line 1, and line 3 under line 2; the others are not foldable. */
const LINES = [-1, 4, 3, -1, -1, -1].map((foldTo) => ({ foldTo }));
const DOC = LINES.map((_, i) => `line ${i}`).join("\n");

function folded(...steps: [lines: number[], open: boolean][]) {
  const folding = new Folding(LINES, (i) => `under ${i}`);
  let editor = EditorState.create({ doc: DOC, extensions: folding.extension });
  for (const [lines, open] of steps) editor = editor.update({ effects: folding.fold(lines, open) }).state;
  const away = LINES.flatMap((_, i) => (folding.isAway(i, editor) ? [i] : []));
  return { folding, editor, away };
}

test("each line knows its parent", () => {
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

test("folding a folded line, or unfolding an unfolded one, changes nothing", () => {
  expect(folded([[1], false], [[1, 2], false], [[1], true]).away).toEqual([3]);
  expect(folded([[2], true]).away).toEqual([]);
});

test("a hidden line is revealed by unfolding all its parents", () => {
  const { folding, editor } = folded([[1, 2], false]);
  const effects = folding.unfoldAround(3, editor);
  const after = editor.update({ effects }).state;
  expect(LINES.some((_, i) => folding.isAway(i, after))).toBe(false);
  expect(folding.unfoldAround(3, after)).toEqual([]);
});

test("only foldable lines have an arrow", () => {
  const { folding, editor } = folded([[2], false]);
  const arrows = LINES.map((_, i) => folding.arrow(i, editor)?.make({} as never).textContent);
  expect(arrows).toEqual([undefined, "▾", "▸", undefined, undefined, undefined]);
});

test("folds hold when lines become longer, also the last one", () => {
  const { folding, editor } = folded([[1], false]);
  const insert = [1, 4].map((line) => ({ from: editor.doc.line(line + 1).to, insert: " and more" }));
  const after = editor.update({ changes: insert }).state;
  const [from, to] = [after.doc.line(2).to, after.doc.line(5).to];
  const ranges: [number, number][] = [];
  for (const set of after.facet(EditorView.decorations))
    if (typeof set !== "function") set.between(0, after.doc.length, (a, b) => void ranges.push([a, b]));
  expect(ranges).toEqual([[from, to]]);
  expect(folding.isAway(4, after)).toBe(true);
});
