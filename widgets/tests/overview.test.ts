// @vitest-environment jsdom
import { beforeAll, beforeEach, expect, test, vi } from "vitest";
import { effect, Signal } from "../src/base/signals";
import { turn } from "../src/base/slices";
import explorer from "../src/main/index";
import { Model } from "../src/model/model";
import { aliveOf, edgesOf, mostIn, Overview, stepsOfColumns } from "../src/model/overview";
import { OverviewPane } from "../src/panes/overview";
import { band } from "../src/panes/overviewdraw";
import { State } from "../src/state/state";
import { fromJson } from "../src/wire/schema";
import { bytes, json, model } from "./fixture";
import { followed, host as modelOf } from "./host";
import { layOut, standIn } from "./layout";

beforeAll(standIn);
beforeEach(() => {
  document.body.replaceChildren();
  layOut(600, 90);
});

/** The shared view as a gradient's: its first stage is the forward program. */
function gradient(): Model {
  const stages = json.stages.map((s, i) => (i === 0 ? { ...s, key: "forward" } : s));
  return new Model(fromJson({ ...json, stages }));
}

const zooming = () => import("../src/host/parts/time");

const rounded = (numbers: ArrayLike<number>) => Array.from(numbers, (n) => Math.round(n * 1000) / 1000);

test("boxes are proportional to FLOPs or equations, and aligned with their steps", () => {
  const m = model();
  const overview = new Overview(m);
  const named = (measure: "flops" | "equations") =>
    overview
      .boxes(overview.widths(measure), edgesOf(m, m.timeline, overview.widths(measure)), 0)
      .map((b) => [overview.titleOf(b.scope), b.depth, ...rounded([b.from, b.to])]);
  const edges = (measure: "flops" | "equations") => rounded(edgesOf(m, m.timeline, overview.widths(measure)));
  // A tenth of the width is shared by all equations, so that those without FLOPs are seen.
  const [sin, block, line, back] = named("flops");
  expect(sin).toEqual(["return g(jnp.sin(x))  # é ✓ </script>", 0, 0, 0.025]);
  expect(block).toEqual(["block/attention × 12", 0, 0.025, 0.35]);
  expect(line!.slice(1)).toEqual([1, 0.025, 0.35]);
  expect(back).toEqual(["block/attention × 12", 0, 0.35, 1]);
  expect(named("equations").map((b) => b.slice(2))).toEqual([
    [0, 1 / 4],
    [1 / 4, 1 / 2],
    [1 / 4, 1 / 2],
    [1 / 2, 1],
  ]);
  expect(edges("flops")).toEqual([0, 0.025, 0.35, 0.675, 1]);
  expect(edges("equations")).toEqual([0, 0.25, 0.5, 0.75, 1]);
});

test("a scope has the equations of nested scopes, and an equation the scopes around it", () => {
  const overview = new Overview(model());
  expect(overview.rowsOf(overview.scopes[1]!)).toEqual([2]);
  expect(overview.around(2).map((s) => s.index)).toEqual([2, 1]);
  expect(overview.around(3).map((s) => s.index)).toEqual([3]);
  expect(overview.sum("flops")).toBe(9);
  expect(overview.sum("equations", true)).toBe(2);
});

test("every step is visible in a column, even with zero width", () => {
  for (const columns of [1, 3, 7, 50]) {
    const edges = Float64Array.of(0, 0, 0.3, 0.3, 0.3001, 0.9, 1, 1);
    const { first, last } = stepsOfColumns(edges, columns);
    const seen = new Set(Array.from(first, (from, c) => [from, last[c]!]).flatMap(([a, b]) => range(a!, b!)));
    expect([...seen].sort()).toEqual([0, 1, 2, 3, 4, 5, 6]);
    for (let c = 1; c < columns; c++) expect(first[c]).toBeGreaterThanOrEqual(first[c - 1]!);
  }
});

const range = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, i) => from + i);

test("a saved expression is as thick as its bytes in memory", () => {
  const m = model();
  const [kept] = new Overview(m).kept;
  const alive = aliveOf(kept!, m.timeline);
  const held = m.timeline.buffers.filter((b) => b.residuals.some((r) => kept!.residuals.includes(r)));
  m.timeline.steps.forEach((_, i) => {
    const there = held.filter((b) => b.born <= i && i <= b.last);
    expect(alive[i]).toBe(there.reduce((sum, b) => sum + b.nbytes, 0));
  });
  const columns = stepsOfColumns(
    edgesOf(m, m.timeline, (_, equations) => equations),
    4,
  );
  expect(Math.max(...mostIn(alive, columns))).toBe(Math.max(...alive));
  const points = band(
    Float64Array.of(0, 8),
    { first: Int32Array.of(0, 1), last: Int32Array.of(0, 1) },
    20,
    8,
  );
  expect(points.getAttribute("points")).toBe("0,10 1,10 1,0 2,0 2,20 1,20 1,10 0,10");
});

test("a click on a saved expression selects it and shows forward beside backward", () => {
  const state = new State(gradient());
  state.arrange("overview");
  expect(state.view).toBe("overview");
  const pane = followed(new OverviewPane(state, zooming));
  document.body.append(pane.element);
  const rows = pane.element.querySelectorAll<HTMLElement>("[data-testid=kept-row]");
  expect([...rows].map((row) => row.textContent)).toEqual([
    "sin(x)12 B · 1 value · model.py:2",
    expect.stringContaining("2.0"),
  ]);
  rows[0]!.dispatchEvent(new Event("focus"));
  expect(state.aimed).toEqual(state.model.residuals[0]!.place);
  rows[0]!.click();
  expect(state.view).toBe("kept");
  expect(state.shown).toEqual({ left: [0], right: [1] });
  expect([...state.selection.residuals]).toEqual([0]);
  state.show({ left: [1] });
  expect(state.view).toBe("");
  pane.destroy();
});

test("a low pane has fewer rows, the last for all the rest", () => {
  const view = gradient().view;
  const n = 8;
  const each = (value: number) => Int32Array.from({ length: n }, () => value);
  const kept = Object.fromEntries(
    Object.keys(view.columns)
      .filter((name) => name.startsWith("kept_"))
      .map((name) => [name, each(name === "kept_nbytes" ? 1024 : 0)]),
  );
  const rows = (height: number) => {
    layOut(600, height);
    const shown = new Model({ ...view, columns: { ...view.columns, ...kept } });
    const { element } = followed(new OverviewPane(new State(shown), zooming));
    const found = [...element.querySelectorAll("[data-testid=kept-row]")];
    return [element.classList.contains("is-low"), found.length, found.at(-1)!.textContent];
  };
  expect(rows(700)).toEqual([false, 6, "3 other expressions3.0 KiB"]);
  expect(rows(420)).toEqual([true, 6, "3 other expressions3.0 KiB"]);
  expect(rows(300)).toEqual([true, 4, "5 other expressions5.0 KiB"]);
});

test("scopes are drawn, named and navigated with arrow keys; a click selects their equations", () => {
  const state = new State(gradient());
  state.arrange("overview");
  const pane = followed(new OverviewPane(state, zooming));
  document.body.append(pane.element);
  const boxes = () => [...pane.element.querySelectorAll<HTMLElement>("[data-testid=scope]")];
  // The first is too narrow for a name.
  expect(boxes().map((box) => box.textContent)).toEqual([
    "",
    "block/attention × 12",
    expect.any(String),
    "block/attention × 12",
  ]);
  const press = (key: string) =>
    document.activeElement!.dispatchEvent(
      new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }),
    );
  boxes()[0]!.focus();
  press("ArrowRight");
  press("ArrowDown");
  expect(document.activeElement).toBe(boxes()[2]);
  press("ArrowUp");
  press("ArrowRight");
  expect(document.activeElement).toBe(boxes()[3]);
  expect(boxes().filter((box) => box.tabIndex === 0)).toEqual([boxes()[3]]);
  pane.element.querySelector<HTMLElement>("[data-testid=by-equations]")!.click();
  expect(boxes()).toHaveLength(4);
  boxes()[3]!.click();
  expect([...state.selection.rows]).toEqual([3, 4]);
  pane.destroy();
});

test("what is selected stays highlighted when the overview is drawn again", () => {
  const state = new State(gradient());
  state.arrange("overview");
  const pane = followed(new OverviewPane(state, zooming));
  const lit = () => pane.element.querySelectorAll(".jv-scope.is-lit").length;
  state.selectRow(2);
  const before = lit();
  expect(before).toBeGreaterThan(0);
  state.time.lookAt({ from: 0, to: 0.9 });
  expect(lit()).toBe(before);
  pane.element.querySelector<HTMLElement>("[data-testid=by-equations]")!.click();
  expect(lit()).toBe(before);
  pane.destroy();
});

test("what zooms is not created if the overview is gone when its code is there", async () => {
  const state = new State(gradient());
  const code = await zooming();
  const TimeControl = vi.fn();
  const loaded = Promise.resolve({ ...code, TimeControl });
  followed(new OverviewPane(state, () => loaded)).destroy();
  await turn();
  expect(TimeControl).not.toHaveBeenCalled();
});

test("the explorer opens with the overview of a gradient, and tells Python when it is left", () => {
  const show = (traits: Record<string, unknown>) => {
    const widget = modelOf({ payload: bytes(), stage: "primal", beside: "", selected: "", ...traits });
    const el = document.createElement("div");
    document.body.append(el);
    const stop = explorer.render({ model: widget, el });
    return { widget, root: el.querySelector<HTMLElement>("[data-testid=explorer]")!, stop };
  };
  // This view has no forward program.
  const without = show({ question: "overview" });
  expect(without.root.classList).not.toContain("is-overview");
  expect(without.root.querySelector<HTMLElement>("[data-testid=view-overview]")!.hidden).toBe(true);
  without.root.querySelector<HTMLElement>("[data-testid=view-cost]")!.click();
  expect(without.root.querySelector("[data-testid=view-cost]")!.getAttribute("aria-pressed")).toBe("true");
  without.root.querySelector<HTMLElement>("[data-testid=stage-backward]")!.click();
  expect(without.root.querySelector("[data-testid=view-cost]")!.getAttribute("aria-pressed")).toBe("false");
  without.stop();
});

test("Python asks a question, and hears which one the page answers", () => {
  const widget = modelOf({ payload: bytes(), stage: "primal", beside: "", selected: "", question: "lines" });
  const el = document.createElement("div");
  document.body.append(el);
  const stop = explorer.render({ model: widget, el });
  const classes = el.querySelector<HTMLElement>("[data-testid=explorer]")!.classList;
  const click = (id: string) => el.querySelector<HTMLElement>(`[data-testid=${id}]`)!.click();
  expect(classes).toContain("is-lines");
  widget.set("question", "saved");
  expect(classes).toContain("is-kept");
  expect(widget.get("question")).toBe("saved");
  click("view-cost");
  expect(widget.get("question")).toBe("cost");
  click("stage-backward");
  expect(widget.get("question")).toBe("");
  widget.set("question", "what-if");
  expect(classes).toContain("is-what-if");
  widget.set("question", "");
  expect(classes).toContain("is-stages");
  stop();
});

test("the advice is shown when it arrives", () => {
  const text = new Signal("");
  const work = {
    read: () => text.value,
    ask: vi.fn(),
    progress: { state: "none" as const, since: 0, what: "", done: 0, total: 0 },
    canStop: false,
    cancel: () => {},
  };
  const state = new State(gradient(), undefined, undefined, work);
  expect(state.advised).toBeNull();
  const heard: unknown[] = [];
  effect(() => heard.push(state.advised?.cards));
  text.value = JSON.stringify({
    sentence: "1 % more work would halve it",
    setting: "0||",
    cards: ["a"],
    error: "",
  });
  expect(heard).toEqual([undefined, ["a"]]);
});
