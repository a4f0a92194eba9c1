// @vitest-environment jsdom
import { expect, test, vi } from "vitest";
import { Signal } from "../src/base/signals";
import { atOnce, inSlices, type Sliced, turn } from "../src/base/slices";
import { preparing } from "../src/code/listing";
import { keptTree, treeOf } from "../src/graph/layout/hierarchy";
import { setting } from "../src/graph/layout/scene";
import { guarded } from "../src/ui/pane";
import { layers, modelOf } from "./graphs";

/** Counts, spending some milliseconds each time. */
function* counting(n: number, milliseconds: number, at: (i: number) => void = () => {}): Sliced<number> {
  for (let i = 0; i < n; i++) {
    const end = performance.now() + milliseconds;
    while (performance.now() < end);
    at(i);
    yield;
  }
  return n;
}

test("work in slices lets the page run in between, with the same result", async () => {
  let turns = 0;
  let isDone = false;
  const others = (async () => {
    for (; !isDone; turns++) await turn();
  })();
  expect(await inSlices(counting(12, 5))).toBe(12);
  isDone = true;
  await others;
  expect(turns).toBeGreaterThan(4);
  expect(atOnce(counting(3, 0))).toBe(3);
});

test("unwanted work stops", async () => {
  const seen: number[] = [];
  const then = vi.fn();
  void inSlices(
    counting(50, 4, (i) => seen.push(i)),
    () => seen.length < 3,
  ).then(then);
  for (let i = 0; i < 30; i++) await turn();
  expect(seen.length).toBeGreaterThanOrEqual(3);
  expect(seen.length).toBeLessThan(10);
  expect(then).not.toHaveBeenCalled();
});

test("errors reach the caller", async () => {
  function* failing(): Sliced<void> {
    yield;
    throw new Error("no");
  }
  await expect(inSlices(failing())).rejects.toThrow("no");
});

function pane(isSeen: Signal<boolean>, isLarge = false) {
  const at = new Signal(0);
  const told: number[] = [];
  const focus = vi.fn();
  const make = vi.fn(() => ({
    element: document.createElement("p"),
    effects: [() => told.push(at.value)],
    focus,
  }));
  const made = guarded("pane", make, { isSeen: () => isSeen.value, isLarge });
  return { at, told, focus, make, pane: made };
}

test("a pane is created when it is first visible, and follows the state from then on", () => {
  const isSeen = new Signal(false);
  const { at, told, make, pane: made } = pane(isSeen);
  at.value = 1;
  expect(make).not.toHaveBeenCalled();
  isSeen.value = true;
  expect(make).toHaveBeenCalledOnce();
  expect(made.element.querySelector("p")).not.toBeNull();
  isSeen.value = false;
  at.value = 2;
  expect(told).toEqual([1, 2]);
  made.destroy?.();
  at.value = 3;
  expect(told).toEqual([1, 2]);
  expect(make).toHaveBeenCalledOnce();
});

test("a pane whose effect fails shows the error, follows nothing any more, and is destroyed", () => {
  const said = vi.spyOn(console, "error").mockImplementation(() => {});
  const [at, told, destroy] = [new Signal(0), [] as number[], vi.fn()];
  const fail = () => {
    if (at.value === 1) throw new Error("no such row");
  };
  const make = () => ({
    element: document.createElement("p"),
    effects: [fail, () => told.push(at.value)],
    destroy,
  });
  const { element, destroy: leave } = guarded("pane", make);
  at.value = 1;
  at.value = 2;
  expect(element.textContent).toContain("This pane failed: no such row");
  expect(told).toEqual([0]);
  leave?.();
  expect(destroy).toHaveBeenCalledOnce();
  said.mockRestore();
});

test("focusing a pane creates it; a pane of a large program is created in its own task", async () => {
  const hidden = pane(new Signal(false));
  hidden.pane.focus?.();
  expect(hidden.focus).toHaveBeenCalledOnce();
  const isSeen = new Signal(true);
  const large = pane(isSeen, true);
  expect(large.make).not.toHaveBeenCalled();
  await vi.waitFor(() => expect(large.make).toHaveBeenCalledOnce());
  // A pane that is gone before its task is not created.
  const left = pane(isSeen, true);
  isSeen.value = false;
  await turn();
  await turn();
  expect(left.make).not.toHaveBeenCalled();
});

/** How often work yields. */
function yields(work: Sliced<unknown>): number {
  let n = 0;
  while (!work.next().done) n += 1;
  return n;
}

test("work on a large program yields every few hundred equations", () => {
  const model = modelOf({ primal: layers(2000) });
  const n = model.rows;
  expect(n).toBeGreaterThan(10_000);
  const tree = treeOf(model, [0]);
  const work: [string, () => Sliced<unknown>][] = [
    ["the tree", () => keptTree(model, [0])],
    ["the lines, the hues and the indices", () => preparing(model, [0], false)],
    ["the scene, folded", () => setting(tree, () => false)],
    ["the scene, open", () => setting(tree, () => true)],
  ];
  for (const [name, made] of work) expect(yields(made()), name).toBeGreaterThan(n / 1000);
});
