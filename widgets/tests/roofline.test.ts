// @vitest-environment jsdom
import { expect, test } from "vitest";
import { speedOf } from "../src/host/sync";
import { Roofline } from "../src/model/roofline";
import { NO_SWITCHES } from "../src/model/switches";
import { NO_WORK } from "../src/model/work";
import { CostsPane } from "../src/panes/costs";
import { State } from "../src/state/state";
import { model } from "./fixture";
import { followed, host } from "./host";
import { layOut } from "./layout";

const SPEED = { device: "cpu:0", dtype: "float32", flops: 3e9, bandwidth: 24e9 };

/** Of the two lines, the first computes for as long as it moves bytes a hundredth of the time; the second only moves bytes. */
const COLUMNS = {
  equation_flops: [0, 0, 3, 600, 0],
  equation_moved: [0, 24, 24, 48, 24],
  equation_runs: [1, 0, 1, 1, 1],
  line_backward: [600, 0],
  line_forward: [0, 3],
  line_moved: [72, 24],
};

test("an operation takes at least as long as it computes or moves bytes, whichever is longer", () => {
  const roofline = new Roofline(model(COLUMNS), SPEED);
  expect(roofline.ridge).toBe(0.125);
  const nanoseconds = ({ seconds, moving }: { seconds: number; moving: number }) =>
    [seconds, moving].map((s) => Math.round(s * 1e9));
  expect(nanoseconds(roofline.ofRows([2]))).toEqual([1, 0]);
  expect(nanoseconds(roofline.ofRows([3]))).toEqual([200, 0]);
  expect(nanoseconds(roofline.ofRows([3, 4]))).toEqual([201, 1]);
  // Row 1 holds row 2.
  expect(nanoseconds(roofline.ofRows([1]))).toEqual([0, 0]);
  expect(nanoseconds(roofline.ofWhole([1]))).toEqual([1, 0]);
  expect(nanoseconds(roofline.total)).toEqual([201, 1]);
});

function show(speed: unknown, isAlone = false) {
  layOut(700, 400);
  const widget = host({ speed: speed === null ? "" : JSON.stringify(speed) });
  const switches = { ...NO_SWITCHES, isAlone };
  const state = new State(model(COLUMNS), switches, NO_WORK, NO_WORK, NO_WORK, speedOf(widget as never));
  state.arrange("cost");
  const { element } = followed(new CostsPane(state));
  const find = (id: string) => element.querySelector<HTMLElement>(`[data-testid=${id}]`);
  return { widget, state, element, find, toChart: find("to-roofline")! };
}

test("the device is measured when the roofline is first opened, and rows then have their least time", () => {
  const { widget, element, find, toChart } = show(null);
  expect(element.classList.contains("is-measured")).toBe(false);
  toChart.click();
  expect(widget.sent).toEqual(["speed"]);
  expect(find("waiting")!.textContent).toContain("Measuring the speed of the device");
  widget.set("speed", JSON.stringify(SPEED));
  expect(find("waiting")).toBeNull();
  expect(element.querySelectorAll(".jv-roofline-dot")).toHaveLength(2);
  const total = element.querySelector<HTMLElement>(".jv-pane-head .jv-dim")!;
  expect(total.textContent).toBe("at best 0.2 µs on cpu:0, under 1 % of it moving bytes");
  expect(total.title).toBe("3 GFLOP/s in float32 products and 24 GB/s, as measured on cpu:0");
  toChart.click();
  expect(element.querySelector<HTMLElement>(".jv-scroll")!.hidden).toBe(false);
  const least = Array.from(element.querySelectorAll("td.jv-col-least"), (cell) => cell.textContent);
  expect(least).toEqual(["0.2 µs", ""]); // the other line is only in the function itself
});

test("a row is chosen in the chart, and described as it is pointed at", () => {
  const { state, element, find, toChart } = show(SPEED);
  toChart.click();
  const [first, second] = element.querySelectorAll(".jv-roofline-dot");
  first!.dispatchEvent(new Event("pointerenter"));
  expect(find("roofline-said")!.textContent).toContain("at best 0.2 µs, 100 % of all, computing");
  second!.dispatchEvent(new Event("click"));
  expect(state.selection.line).toBe(300);
  expect(second!.classList.contains("is-selected")).toBe(true);
  expect(find("roofline-said")!.textContent).toMatch(/^model.py:300: 0.13 FLOPs for each byte/);
});

test("names are below their circles and the roof, and the roof's own is above it", () => {
  const { element, toChart } = show(SPEED);
  toChart.click();
  const number = (e: Element, name: string) => Number(e.getAttribute(name));
  const [circle] = element.querySelectorAll(".jv-roofline-dot");
  const [name, ...others] = element.querySelectorAll(".jv-roofline-name");
  expect(others).toEqual([]); // the other row takes too little time
  const roof = number(element.querySelector(".jv-roofline-on")!, "y1");
  expect(number(circle!, "cy")).toBeCloseTo(roof);
  expect(number(name!, "y") - 10).toBeGreaterThan(number(circle!, "cy") + number(circle!, "r"));
  expect(number(element.querySelector(".jv-over")!, "y")).toBeLessThan(roof);
});

test("a failed measurement is said, and a saved page without one has no roofline", () => {
  const failed = show({ ...SPEED, error: "float8 is not supported" });
  failed.toChart.click();
  expect(failed.element.textContent).toContain("could not be measured: float8 is not supported");
  expect(show(null, true).toChart.hidden).toBe(true);
  expect(show(SPEED, true).toChart.hidden).toBe(false);
});
