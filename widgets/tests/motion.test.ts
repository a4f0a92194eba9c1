// @vitest-environment jsdom
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Model } from "../src/model/model";
import { motionOf } from "../src/model/motion";
import type { Kept } from "../src/model/overview";
import { totalsOf } from "../src/model/timeline";
import { MotionPane } from "../src/panes/motion";
import { State } from "../src/state/state";
import { fromJson } from "../src/wire/schema";
import { json } from "./fixture";
import { followed } from "./host";
import { layOut, standIn } from "./layout";

beforeEach(() => {
  document.body.replaceChildren();
  standIn();
  layOut(600, 90);
  vi.useFakeTimers();
});
afterEach(() => vi.useRealTimers());

/** The shared view as a gradient's: its first stage is the forward program. */
function gradient(): Model {
  const stages = json.stages.map((s, i) => (i === 0 ? { ...s, key: "forward" } : s));
  return new Model(fromJson({ ...json, stages }));
}

function pane() {
  const state = new State(gradient());
  state.arrange("motion");
  const shown = followed(new MotionPane(state));
  document.body.append(shown.element);
  const find = (id: string) => shown.element.querySelector<HTMLElement>(`[data-testid="${id}"]`)!;
  return { state, shown, find, count: () => find("motion-count").textContent };
}

test("a shelf has the bytes in memory of its values at each step", () => {
  const m = gradient();
  const motion = motionOf(m);
  const { kinds, total } = totalsOf(m.timeline);
  const shelves = motion.shelves(8);
  const kept = shelves.filter((shelf) => shelf.kind === "kept");
  expect(kept.length).toBeGreaterThan(0);
  for (const shelf of kept) expect(shelf.most).toBe(Math.max(...shelf.alive));
  // Temporary values are on one shelf, or on the shelf of recomputed values.
  const rest = shelves.filter((s) => s.kind === "temporary" || s.kind === "again");
  for (let step = 0; step < total.length; step++)
    expect(rest.reduce((sum, s) => sum + s.alive[step]!, 0)).toBe(kinds[5]![step]);
});

test("a value is saved when it is computed, and read when the backward pass reads it", () => {
  const m = gradient();
  const motion = motionOf(m);
  const frames = motion.frames("equation");
  expect(frames.map(({ first, last }) => [first, last])).toEqual(m.timeline.steps.map((_, i) => [i, i]));
  const at = frames.map((frame) => motion.during(frame));
  const { alive, residuals, members } = motion.shelves(8).find((shelf) => shelf.kind === "kept")!;
  const has = (all: Kept[]) => members.some((kept) => all.includes(kept));
  const saved = at.findIndex(({ saves }) => has(saves));
  expect(saved).toBe(alive.findIndex((bytes) => bytes > 0));
  expect(motion.isStop(frames[saved]!)).toBe(true);
  const readers = new Set(residuals.flatMap((r) => m.residuals[r]!.consumers));
  const read = at.flatMap(({ reads }, s) => (has(reads) ? [m.timeline.steps[s]!.row] : []));
  expect(read.length).toBeGreaterThan(0);
  for (const row of read) expect([...readers].some((r) => r === row || m.owner(r) === row)).toBe(true);
});

test("what is on the shelf of all others has its own name", () => {
  const motion = motionOf(gradient());
  const [shelf, ...others] = motion.shelves(1).filter(({ kind }) => kind === "kept");
  expect([shelf!.label, others]).toEqual(["2 other expressions", []]);
  const saved = motion.frames("equation").flatMap((frame) => motion.during(frame).saves);
  expect(saved.every((kept) => shelf!.members.includes(kept))).toBe(true);
  const labels = saved.map(({ label }) => label);
  expect(labels).toContain("sin(x)");
});

test("lines and layers are played as one, and what a loop runs follows it", () => {
  const m = gradient();
  const firsts = (pace: "line" | "layer", motion = motionOf(m)) =>
    motion.frames(pace).map(({ first, last, rows }) => [first, last, ...rows]);
  expect(firsts("line")).toEqual([
    [0, 0],
    [1, 1],
    [2, 3],
  ]);
  expect(firsts("layer").at(-1)).toEqual([2, 3]);
  // A step that is a loop of three iterations over equation 2.
  const looped = new Model({
    ...m.view,
    columns: {
      ...m.view.columns,
      step_row: Int32Array.of(0, 1, 3, 4),
      program_length: m.view.columns.program_length.map((_, p) =>
        m.column("program_owner")[p] === 1 ? 3 : 0,
      ),
    },
  });
  expect(firsts("line", motionOf(looped)).slice(0, 3)).toEqual([
    [0, 0],
    [1, 1],
    [1, 1, 2],
  ]);
});

test("keys and buttons go to lines, changes and the ends; an equation can be played alone", () => {
  const { shown, find, count, state } = pane();
  const key = (name: string) =>
    shown.element.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
  const pace = find("motion-pace") as HTMLSelectElement;
  expect([pace.value, count()]).toEqual(["line", "1 of 3"]);
  key("End");
  expect(count()).toBe("3 of 3");
  pace.value = "equation";
  pace.dispatchEvent(new Event("change"));
  const n = state.model.timeline.steps.length;
  expect(count()).toBe(`${n} of ${n}`);
  key("ArrowLeft");
  expect(count()).toBe(`${n - 1} of ${n}`);
  key("Home");
  key("ArrowLeft");
  expect(count()).toBe(`1 of ${n}`);
  find("motion-last").click();
  expect(count()).toBe(`${n} of ${n}`);
  expect(find("motion-now").className).toContain("is-backward");
  key("Home");
  key("ArrowDown");
  expect(find("motion-said").textContent).toMatch(/^It (saves|reads) /);
});

test("it plays to the end, pauses, and stops when the view changes", () => {
  const { find, count, state } = pane();
  find("motion-play").click();
  expect(find("motion-play").textContent).toContain("pause");
  vi.advanceTimersByTime(60_000);
  expect(count()).toBe("3 of 3");
  expect(find("motion-play").textContent).toContain("play");
  find("motion-play").click();
  expect(count()).toBe("1 of 3");
  state.arrange("overview");
  vi.advanceTimersByTime(60_000);
  expect(count()).toBe("1 of 3");
});

test("it plays on while its size changes", () => {
  const sizes: ((width: number) => void)[] = [];
  vi.stubGlobal(
    "ResizeObserver",
    class {
      constructor(callback: (entries: { contentRect: object }[]) => void) {
        sizes.push((width) => callback([{ contentRect: { width, height: 600 } }]));
      }
      observe(): void {}
      disconnect(): void {}
    },
  );
  const { find, count } = pane();
  const resize = (width: number) => {
    for (const set of sizes) set(width);
    return document.querySelectorAll(".jv-mo-shelf").length;
  };
  const shelves = resize(600);
  expect(shelves).toBeGreaterThan(0);
  find("motion-play").click();
  expect(resize(900)).toBe(shelves);
  expect(find("motion-play").textContent).toContain("pause");
  vi.advanceTimersByTime(60_000);
  expect(count()).toBe("3 of 3");
});

test("the running expression is highlighted in the source, and a shelf leads to its values", () => {
  const { find, state } = pane();
  find("motion-last").click();
  const { row } = state.model.timeline.steps.find(({ isBackward }) => isBackward)!;
  // Of several equations, their line.
  expect(state.aimed).toEqual({ ...state.model.place(row), startLine: 0, start: 0, endLine: 0, end: 0 });
  const shelf = document.querySelector<HTMLElement>(".jv-mo-shelf.is-kept")!;
  shelf.click();
  expect(state.view).toBe("kept");
  expect(state.selection.residuals.size).toBeGreaterThan(0);
});
