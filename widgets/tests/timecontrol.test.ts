// @vitest-environment jsdom
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ALL } from "../src/model/span";
import { totalsOf } from "../src/model/timeline";
import { TimeControl } from "../src/panes/timecontrol";
import { State } from "../src/state/state";
import { model } from "./fixture";

beforeEach(() => vi.useFakeTimers());
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
  document.body.replaceChildren();
});

/**
 * A chart of 100 pixels with the steps of the shared view, zoomed as far as 4 steps allow.
 * @param options.drags whether a drag does something while the whole run is seen.
 * @param options.n the number of steps.
 * @param options.atOnce how many steps the cursor stands on, of which it has the last.
 */
function chart({ drags = true, n = 100, atOnce = 1 } = {}) {
  const state = new State(model());
  const surface = document.createElement("div");
  const plot = document.createElement("div");
  plot.className = "jv-time";
  surface.append(plot);
  document.body.append(surface);
  const steps = Array.from({ length: n }, () => state.model.timeline.steps[0]!);
  const timeline = { ...state.model.timeline, steps };
  let cursor = -1;
  const dragTo = vi.fn();
  const control = new TimeControl(state, surface, {
    plot,
    inner: () => ({ left: 0, right: 100 }),
    timeline: () => timeline,
    stepAt: (x) =>
      Math.floor((state.time.span.from + (state.time.span.to - state.time.span.from) * (x / 100)) * 100),
    cursor: () => cursor,
    moveTo: (step) => {
      cursor = step - (step % atOnce) + atOnce - 1;
    },
    ...(drags ? { dragTo } : {}),
  });
  surface.append(control.bar);
  const fire = (type: string, more: object, target: Element = plot) => {
    const buttons = type === "pointermove" ? 1 : 0;
    const event = new MouseEvent(type, { bubbles: true, cancelable: true, buttons, ...more });
    for (const [name, value] of Object.entries({ pointerId: 1, ...more }))
      if (!(name in event)) Object.assign(event, { [name]: value });
    target.dispatchEvent(event);
    return event;
  };
  const wheel = (more: object) => fire("wheel", { deltaX: 0, deltaY: 0, deltaMode: 0, ...more });
  const drag = (from: number, to: number, more = {}) => {
    fire("pointerdown", { clientX: from, ...more });
    fire("pointermove", { clientX: to, ...more });
    fire("pointerup", { clientX: to, ...more });
  };
  const key = (name: string, more = {}) =>
    plot.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true, ...more }));
  const find = (id: string) => surface.querySelector<HTMLButtonElement>(`[data-testid=time-${id}]`)!;
  const stand = (step: number) => {
    cursor = step;
  };
  const seen = () => [state.time.span.from, state.time.span.to].map((at) => Math.round(at * 100));
  return { state, plot, fire, wheel, drag, key, find, seen, stand, dragTo, timeline, control };
}

test("a wheel zooms about the pointer, unless it scrolls something; with Ctrl it always does", () => {
  const { wheel, seen, plot, state } = chart();
  expect(wheel({ deltaY: -1000 / 3, clientX: 50 }).defaultPrevented).toBe(true);
  expect(seen()).toEqual([25, 75]);
  const around = plot.parentElement!;
  around.style.overflowY = "auto";
  Object.defineProperty(around, "scrollHeight", { value: 500 });
  Object.defineProperty(around, "clientHeight", { value: 100 });
  expect(wheel({ deltaY: -100, clientX: 50 }).defaultPrevented).toBe(false);
  expect(seen()).toEqual([25, 75]);
  expect(wheel({ deltaY: -1000 / 3, clientX: 0, ctrlKey: true }).defaultPrevented).toBe(true);
  expect(seen()).toEqual([25, 50]);
  // Across, it pans; there is nothing to pan if all is seen.
  wheel({ deltaX: 100 });
  expect(seen()).toEqual([50, 75]);
  state.time.lookAt(ALL);
  expect(wheel({ deltaX: 100 }).defaultPrevented).toBe(false);
});

test("a drag pans and is no click, two fingers zoom, and a double click shows the whole run", () => {
  const { state, fire, drag, seen, plot, dragTo } = chart();
  const clicked = vi.fn();
  plot.addEventListener("click", clicked);
  drag(50, 30);
  expect(seen()).toEqual([0, 100]);
  expect(dragTo).toHaveBeenCalledWith(30);
  vi.runAllTimers();
  state.time.lookAt({ from: 0.4, to: 0.6 });
  drag(50, 0);
  fire("click", {});
  expect(seen()).toEqual([50, 70]);
  expect(clicked).not.toHaveBeenCalled();
  vi.runAllTimers();
  fire("pointerdown", { clientX: 50 });
  fire("pointermove", { clientX: 52 });
  fire("pointerup", { clientX: 52 });
  fire("click", {});
  expect(clicked).toHaveBeenCalledOnce();
  for (const [type, a, b] of [
    ["pointerdown", 25, 75],
    ["pointermove", 0, 100],
  ] as const) {
    fire(type, { clientX: a, pointerId: 1 });
    fire(type, { clientX: b, pointerId: 2 });
  }
  expect(seen()).toEqual([55, 65]);
  fire("dblclick", {});
  expect(state.time.span).toBe(ALL);
});

test("keys and buttons zoom about the cursor, which stays in view; the peak has a lens", () => {
  const { key, find, seen, stand, control, state, timeline } = chart();
  stand(10);
  key("+");
  expect(seen()).toEqual([5, 55]);
  find("out").click();
  expect(seen()).toEqual([0, 100]);
  expect([find("out").disabled, find("said").textContent]).toEqual([true, "100 steps"]);
  for (let i = 0; i < 9; i++) key("+");
  expect(seen()[1]! - seen()[0]!).toBe(4);
  control.reveal(90);
  expect(seen()).toEqual([87, 91]);
  expect(find("said").textContent).toBe("steps 88 to 91 of 100");
  key("0");
  expect(state.time.span).toBe(ALL);
  find("peak").click();
  const { peak } = totalsOf(timeline);
  expect(state.time.span.to - state.time.span.from).toBeCloseTo(0.125);
  expect(state.time.span.from * 100 <= peak && peak < state.time.span.to * 100).toBe(true);
});

test("an interval is selected with Shift, the button or keys, and then listed", () => {
  const { state, drag, find, key, stand, timeline } = chart();
  drag(20, 40, { shiftKey: true });
  expect(state.time.interval).toEqual({ timeline, first: 20, last: 40 });
  expect(state.view).toBe("cost");
  vi.runAllTimers();
  find("select").click();
  drag(60, 50);
  expect(state.time.interval).toMatchObject({ first: 50, last: 60 });
  expect(find("select").getAttribute("aria-pressed")).toBe("false");
  stand(60);
  key("ArrowRight", { shiftKey: true });
  expect(state.time.interval).toMatchObject({ first: 50, last: 61 });
  state.clear();
  expect(state.time.interval).toBeNull();
});

test("a drag ends where the pointer is released, also if that is elsewhere", () => {
  const { state, fire, seen, plot } = chart();
  state.time.lookAt({ from: 0.4, to: 0.6 });
  // Pressed at the edge and released outside, of which nothing is heard.
  fire("pointerdown", { clientX: 50 });
  fire("pointermove", { clientX: 20, buttons: 0 });
  expect(seen()).toEqual([40, 60]);
  // The capture that a drag has may be taken away.
  fire("pointerdown", { clientX: 50 });
  fire("pointermove", { clientX: 40 });
  fire("lostpointercapture", {}, plot.parentElement!);
  fire("pointermove", { clientX: 0 });
  expect(seen()).toEqual([42, 62]);
});

test("where a drag does nothing, a shaky click is one", () => {
  const { fire, drag, plot } = chart({ drags: false });
  const clicked = vi.fn();
  plot.addEventListener("click", clicked);
  const click = (by: number) => {
    drag(50, 50 + by);
    fire("click", {});
    vi.runAllTimers();
  };
  click(9);
  expect(clicked).toHaveBeenCalledOnce();
  click(30);
  expect(clicked).toHaveBeenCalledOnce();
});

test("keys select step by step, also where a cursor stands on several", () => {
  const { state, key, stand, timeline } = chart({ atOnce: 5 });
  stand(14);
  for (let i = 0; i < 4; i++) key("ArrowRight", { shiftKey: true });
  expect(state.time.interval).toEqual({ timeline, first: 14, last: 18 });
  for (let i = 0; i < 7; i++) key("ArrowLeft", { shiftKey: true });
  expect(state.time.interval).toEqual({ timeline, first: 11, last: 14 });
  stand(29);
  key("ArrowRight", { shiftKey: true });
  expect(state.time.interval).toEqual({ timeline, first: 29, last: 30 });
});

test("the selected interval is said as long as there is one, and nothing where nothing is modelled", () => {
  const { state, key, stand, find, control } = chart();
  stand(50);
  key("ArrowRight", { shiftKey: true });
  expect(find("said").textContent).toBe("steps 51 to 52: 2 steps");
  state.clear();
  expect(find("said").textContent).toBe("100 steps");
  expect([control.bar.hidden, chart({ n: 0 }).control.bar.hidden]).toEqual([false, true]);
});
