// @vitest-environment jsdom
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { type Timeline, totalsOf } from "../src/model/timeline";
import { Chart } from "../src/panes/chart";
import { MemoryPane } from "../src/panes/memory";
import { State } from "../src/state/state";
import { model } from "./fixture";
import { followed } from "./host";
import { layOut } from "./layout";

beforeEach(() => {
  layOut(800, 240);
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
  document.body.replaceChildren();
});

function pane(changed: Record<string, number[]> = {}) {
  const root = document.createElement("div");
  document.body.append(root);
  const state = new State(model(changed));
  const made = followed(new MemoryPane(state, root));
  root.append(made.element);
  vi.advanceTimersByTime(100);
  const all = (what: string) => Array.from(root.querySelectorAll<SVGElement>(what));
  const text = (id: string) => root.querySelector(`[data-testid="${id}"]`)?.textContent ?? "";
  const plot = root.querySelector<HTMLElement>("[data-testid=timeline]")!;
  const point = (type: string, x: number) =>
    plot.dispatchEvent(new MouseEvent(type, { clientX: x, bubbles: true }));
  const press = (key: string) => {
    const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true });
    plot.dispatchEvent(event);
    return event;
  };
  return { state, made, root, all, text, point, press };
}

/** A numeric attribute. */
const of = (element: Element | undefined, name: string) => Number(element!.getAttribute(name));

test("areas, the peak, the start of the backward pass, and the bytes by kind at the peak", () => {
  const { all, text } = pane();
  expect(all(".jv-area").map((e) => e.classList[1])).toEqual([
    "jv-of-temporary",
    "jv-of-cotangent",
    "jv-of-result",
    "jv-of-residual",
    "jv-of-argument",
  ]);
  expect(text("memory-head")).toBe("modelled peak 48 B in the backward pass, at jnp.sin(x) (model.py:2)");
  expect(text("memory-legend")).toContain("at the peak");
  expect(text("memory-legend")).toContain("cotangents24 B");
  expect(text("memory-legend")).toContain("total48 B");
  expect(all(".jv-peak")[0]!.textContent).toBe("peak 48 B");
  expect(all(".jv-pass").map((e) => e.textContent)).toEqual(["forward, 2 steps", "backward, 2 steps"]);
  // Two of four steps are forward: the turn is at the centre, and the peak in the middle of the third step.
  const [left, right] = ["x1", "x2"].map((name) => of(all(".jv-ground")[0], name));
  expect(of(all(".jv-turn")[0], "x1")).toBe((left! + right!) / 2 + 0.5); // between two pixels
  expect(of(all(".jv-peak-dot")[0], "cx")).toBeCloseTo(left! + (right! - left!) * 0.625, 1);
});

test("it is computed after the first paint", () => {
  const frames: FrameRequestCallback[] = [];
  vi.stubGlobal("requestAnimationFrame", (f: FrameRequestCallback) => frames.push(f));
  const { all } = pane();
  expect(all(".jv-area")).toHaveLength(0);
  frames.forEach((f) => void f(0));
  expect(all(".jv-area")).toHaveLength(0);
  vi.advanceTimersByTime(1);
  expect(all(".jv-area")).toHaveLength(5);
});

test("hovering a step describes what is alive there; leaving describes the peak again", () => {
  const { point, text, all } = pane();
  point("pointermove", 70);
  expect(text("memory-tip")).toContain("step 1 of 4, forward");
  expect(text("memory-tip")).toContain("b = sin a");
  expect(text("memory-tip")).toContain("model.py:2");
  expect(text("memory-tip")).toContain("24 B");
  expect(text("memory-legend")).toContain("at step 1");
  expect(text("memory-legend")).toContain("cotangents0 B");
  expect(of(all(".jv-cursor")[0], "width")).toBeGreaterThan(100);
  point("pointerleave", 0);
  expect(text("memory-tip")).toBe("");
  expect(text("memory-legend")).toContain("at the peak");
});

test("a click selects the equation and shows its stage", () => {
  const { point, state, all, text } = pane();
  point("pointermove", 780);
  point("click", 780);
  expect(state.row).toBe(4);
  expect(state.shown.left).toEqual([1]);
  expect(all(".jv-mark-step.is-selected")).toHaveLength(1);
  expect(text("memory-tip")).toBe("");
});

test("keys move the step, select it, and stop at the ends", () => {
  const { press, text, state } = pane();
  expect(press("ArrowRight").defaultPrevented).toBe(true);
  expect(text("memory-legend")).toContain("at step 3"); // the peak
  press("ArrowLeft");
  expect(text("memory-legend")).toContain("at step 2");
  press("Home");
  press("ArrowLeft");
  expect(text("memory-legend")).toContain("at step 1");
  press("End");
  press("PageDown");
  expect(text("memory-legend")).toContain("at step 4");
  press("Home");
  press("Enter");
  expect(state.row).toBe(0);
  expect(press("x").defaultPrevented).toBe(false);
});

test("a selected residual shows when it is in memory", () => {
  const { state, all, text } = pane();
  state.selectResidual(0);
  const [bar] = all(".jv-during-bar");
  const [left, right] = ["x1", "x2"].map((name) => of(all(".jv-ground")[0], name));
  expect([of(bar, "x"), of(bar, "width")]).toEqual([left, ((right! - left!) * 3) / 4]);
  expect(text("memory-head")).toBe("b:f32[3], 12 B: in memory from step 1 to 3");
  state.clear();
  expect(all(".jv-during-bar")).toHaveLength(0);
  expect(text("memory-head")).toContain("modelled peak");
});

test("a selected equation marks its steps, including nested ones; derived steps are marked below", () => {
  const { state, all, text } = pane();
  const steps = (how: string) =>
    all(`.jv-mark-step.${how}`).flatMap((e) => e.getAttribute("d")!.match(/M/g) ?? []).length;
  state.selectRow(0);
  expect([steps("is-selected"), steps("is-descendant"), steps("is-ancestor")]).toEqual([1, 2, 0]);
  expect(text("memory-head")).toBe("b f32[3], 12 B: in memory from step 1 to 3");
  state.selectRow(1); // the jit that contains row 2
  expect(steps("is-selected")).toBe(1);
});

test("an equation in a loop marks the loop's step", () => {
  const { state, all } = pane({ step_row: [0, 1, 3, 4] });
  state.selectRow(2);
  expect(all(".jv-mark-step.is-selected")).toHaveLength(1);
});

test("another timeline replaces the view's, which becomes a line", () => {
  const { made, all, text, state } = pane();
  const given = state.model.timeline;
  const lighter: Timeline = {
    ...given,
    steps: [...given.steps, { row: 4, isBackward: true }],
    buffers: given.buffers.map((b) => ({ ...b, nbytes: b.nbytes / 2 })),
  };
  made.show(lighter, given);
  expect(all(".jv-peak")[0]!.textContent).toBe("peak 24 B");
  expect(text("memory-legend")).toContain("peak before48 B");
  // Both have the same scale, on which the other peak is twice as high.
  const heights = all(".jv-reference")[0]!
    .getAttribute("d")!
    .match(/ ([\d.]+)H/g)!
    .map((y) => Number.parseFloat(y));
  const ground = of(all(".jv-ground")[0], "y1");
  expect(ground - Math.min(...heights)).toBeCloseTo(2 * (ground - of(all(".jv-peak-dot")[0], "cy")), 1);
  made.show(given);
  expect(all(".jv-reference")).toHaveLength(0);
});

test("the compiled memory is a line over the areas, with its peak in the legend", () => {
  const { all, text, state } = pane();
  state.switches.line = { key: "", turn: 1, total: [12, 96], error: "" };
  expect(all(".jv-reference.is-compiled")).toHaveLength(1);
  expect(text("memory-legend")).toContain("compiled peak96 B");
  state.switches.line = null;
  expect(all(".jv-reference")).toHaveLength(0);
});

test("a step without an equation says what runs, and selects nothing", () => {
  const { made, point, text, state } = pane();
  const { timeline } = state.model;
  const steps = timeline.steps.map((step) => ({ ...step, row: -1, what: "tanh again" }));
  made.show({ ...timeline, steps });
  expect(text("memory-head")).toBe("modelled peak 48 B in the backward pass, at tanh again");
  point("pointermove", 70);
  point("click", 70);
  expect(state.row).toBe(-1);
  expect(text("memory-tip")).toContain("tanh again");
});

test("with several devices, it is the memory of one", () => {
  const state = new State(model());
  Object.assign(state.model.view, { n_devices: 2 });
  const { element } = followed(new MemoryPane(state, document.createElement("div")));
  document.body.append(element);
  vi.advanceTimersByTime(100);
  const text = (id: string) => element.querySelector(`[data-testid="${id}"]`)!.textContent;
  expect(text("memory-head")).toBe(
    "modelled peak 48 B on each device in the backward pass, at jnp.sin(x) (model.py:2)",
  );
  expect(text("memory-legend")).toContain("at the peak, on each device");
});

test("without a model, the reason is shown", () => {
  const view = model().view;
  const root = document.createElement("div");
  const state = new State(model());
  Object.assign(state.model.view, { no_memory: "NoRuleError: no `while`" });
  const { element } = followed(new MemoryPane(state, root));
  expect(view.no_memory).toBe("");
  expect(element.textContent).toContain("is not modelled. NoRuleError: no while");
  expect(element.querySelector('[data-testid="timeline"]')).toBeNull();
});

test("many steps are drawn in columns of one pixel, low and high parts separately", () => {
  const steps = Array.from({ length: 100_000 }, (_, row) => ({ row, isBackward: row >= 60_000 }));
  const blinking = steps.filter((_, i) => i % 2 === 0).map((_, i) => ({ born: 2 * i, last: 2 * i }));
  const common = { row: -1, name: "v", type: "", group: 0, residuals: [] };
  const buffers = [
    { ...common, kind: "argument" as const, nbytes: 10, born: 0, last: 100_000 },
    ...blinking.map((b) => ({ ...common, ...b, kind: "temporary" as const, nbytes: 5 })),
  ];
  const totals = totalsOf({ steps, buffers, labels: ["v"] });
  for (const pixels of [1, 2]) {
    const chart = new Chart(totals, 670, 200, pixels);
    const drawn = chart.draw();
    const path = (what: string) => drawn.find((e) => e.getAttribute("class") === what)!.getAttribute("d")!;
    // In each column values come and go, so the maxima are all equal, and so are the minima.
    expect(path("jv-area jv-sometimes jv-of-temporary").match(/V/g)).toHaveLength(2);
    expect(path("jv-area jv-of-argument").match(/V/g)).toHaveLength(2);
    expect(chart.stepAt(62 + 600 * 0.6 + 0.01) % 2).toBe(0);
    expect(chart.cursor(50_000)["width"]).toBe(1);
  }
  expect(new Chart(totals, 670, 200, 1).stepAt(-5)).toBe(0);
});
