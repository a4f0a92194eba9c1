// @vitest-environment jsdom
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Model } from "../src/model/model";
import { motionOf } from "../src/model/motion";
import { totalsOf } from "../src/model/timeline";
import { MotionPane } from "../src/panes/motion";
import { State } from "../src/state/state";
import { fromJson } from "../src/wire/schema";
import { json } from "./fixture";
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
  const shown = new MotionPane(state);
  document.body.append(shown.element);
  const find = (id: string) => shown.element.querySelector<HTMLElement>(`[data-testid="${id}"]`)!;
  return { state, shown, find, count: () => find("motion-count").textContent };
}

test("a shelf has the bytes in memory of its values at each step", () => {
  const m = gradient();
  const motion = motionOf(m);
  const { kinds } = totalsOf(m.timeline);
  const kept = motion.shelves.filter((shelf) => shelf.kind === "kept");
  expect(kept.length).toBeGreaterThan(0);
  for (const shelf of kept) expect(shelf.most).toBe(Math.max(...shelf.alive));
  // Temporary values are on one shelf, or on the shelf of recomputed values.
  const rest = motion.shelves.filter((s) => s.kind === "temporary" || s.kind === "again");
  for (let step = 0; step < motion.length; step++)
    expect(rest.reduce((sum, s) => sum + s.alive[step]!, 0)).toBe(kinds[5]![step]);
});

test("a value is saved when it is computed, and read when the backward pass reads it", () => {
  const m = gradient();
  const motion = motionOf(m);
  const steps = Array.from({ length: motion.length }, (_, s) => motion.at(s));
  const number = motion.shelves.findIndex((shelf) => shelf.kind === "kept");
  const { alive, residuals } = motion.shelves[number]!;
  const saved = steps.findIndex((at) => at.saves.includes(number));
  expect(saved).toBe(alive.findIndex((bytes) => bytes > 0));
  const readers = new Set(residuals.flatMap((r) => m.residuals[r]!.consumers));
  const read = steps.flatMap((at, s) => (at.reads.includes(number) ? [m.timeline.steps[s]!.row] : []));
  expect(read.length).toBeGreaterThan(0);
  for (const row of read) expect([...readers].some((r) => r === row || m.owner(r) === row)).toBe(true);
  expect(motion.stops).toContain(saved);
  expect(motion.stopFrom(-1, 1)).toBe(motion.stops[0]);
  expect(motion.stopFrom(motion.length, -1)).toBe(motion.stops.at(-1));
});

test("keys and buttons go to steps, stops and the ends", () => {
  const { shown, find, count, state } = pane();
  const n = state.model.timeline.steps.length;
  const key = (name: string) =>
    shown.element.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
  expect(count()).toBe(`1 of ${n}`);
  key("ArrowRight");
  expect(count()).toBe(`2 of ${n}`);
  key("ArrowLeft");
  key("ArrowLeft");
  expect(count()).toBe(`1 of ${n}`);
  find("motion-last").click();
  expect(count()).toBe(`${n} of ${n}`);
  expect(find("motion-now").className).toContain("is-backward");
  key("Home");
  expect(count()).toBe(`1 of ${n}`);
  key("ArrowDown");
  expect(find("motion-said").textContent).toMatch(/^It (saves|reads) /);
});

test("it plays to the end, pauses, and stops when the view changes", () => {
  const { shown, find, count, state } = pane();
  const n = state.model.timeline.steps.length;
  find("motion-play").click();
  expect(find("motion-play").textContent).toContain("pause");
  vi.advanceTimersByTime(60_000);
  expect(count()).toBe(`${n} of ${n}`);
  expect(find("motion-play").textContent).toContain("play");
  find("motion-play").click();
  expect(count()).toBe(`1 of ${n}`);
  state.arrange("overview");
  shown.update("view");
  vi.advanceTimersByTime(60_000);
  expect(count()).toBe(`1 of ${n}`);
});

test("the running expression is highlighted in the source, and a shelf leads to its values", () => {
  const { find, state } = pane();
  find("motion-last").click();
  const row = state.model.timeline.steps.at(-1)!.row;
  expect(state.aimed).toEqual(state.model.place(row));
  const shelf = document.querySelector<HTMLElement>(".jv-mo-shelf.is-kept")!;
  shelf.click();
  expect(state.view).toBe("kept");
  expect(state.selection.residuals.size).toBeGreaterThan(0);
});
