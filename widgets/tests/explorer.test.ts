// @vitest-environment jsdom

import { afterEach, beforeAll, expect, test, vi } from "vitest";
import whatIfs from "../../tests/fixtures/whatif.json";
import { formatBytes, formatFlops } from "../src/base/format";
import { turn } from "../src/base/slices";
import { CodePane } from "../src/code/pane";
import { coloured } from "../src/code/python";
import explorer from "../src/main/index";
import { Parts } from "../src/main/parts";
import { GONE, NO_ANSWER } from "../src/model/work";
import { InspectorPane } from "../src/panes/inspector";
import { PlayerPane } from "../src/panes/player";
import { ResidualsPane } from "../src/panes/residuals";
import { type Finder, SearchBox } from "../src/panes/search";
import { fromTo } from "../src/panes/switcheffects";
import { pointedPlaces, residualLitAs } from "../src/state/lit";
import { type Side, State } from "../src/state/state";
import { breakable, h } from "../src/ui/dom";
import { helpSheet } from "../src/ui/frame";
import { bytes, json, model } from "./fixture";
import { modelOf as programs } from "./graphs";
import { followed, host as modelOf, zipped } from "./host";
import { layOut, standIn } from "./layout";
import { SIN_COS } from "./programs";

// Node cannot import blobs. Tests of another file, which share their modules with these, may have loaded the real one.
vi.hoisted(() => vi.resetModules());
vi.mock("../src/host/parts", () => ({
  loadPart: async (_: unknown, name: string) => {
    if (name === "graphviz") throw new Error("not in this page");
    return import(`../src/host/parts/${name}.ts`);
  },
}));

beforeAll(() => {
  layOut(0, 0);
  standIn();
});

const errors = vi.spyOn(console, "error");

afterEach(() => {
  document.body.replaceChildren();
  expect(errors).not.toHaveBeenCalled();
});

function host(traits: Record<string, unknown> = {}) {
  return modelOf({ payload: bytes(), stage: "primal", beside: "", selected: "", height: 600, ...traits });
}

/** An explorer, after clicks on some of its buttons. */
function show(traits: Record<string, unknown> = {}, ...clicked: string[]) {
  const model = host(traits);
  const el = document.createElement("div");
  document.body.append(el);
  const stop = explorer.render({ model, el });
  const find = (id: string) => Array.from(el.querySelectorAll<HTMLElement>(`[data-testid="${id}"]`));
  const key = (name: string, more: KeyboardEventInit = {}) =>
    find("explorer")[0]!.dispatchEvent(
      new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true, ...more }),
    );
  for (const id of clicked) find(id)[0]!.click();
  return { model, el, find, key, stop };
}

/** Waits for something in a separate part: vitest compiles its code on first use, which can take seconds on a busy machine. */
const soon = (check: () => void) => vi.waitFor(check, 20_000);

/** Waits for a pane whose code is a separate part. */
const isThere = (find: (id: string) => HTMLElement[], id: string) =>
  soon(() => expect(find(id)).toHaveLength(1));

/** Elements are laid out, so that they keep the focus. */
const laidOut = () =>
  vi
    .spyOn(HTMLElement.prototype, "getClientRects")
    .mockReturnValue([new DOMRect()] as unknown as DOMRectList);

/** Resolves after the callbacks that wait for the next frame. */
const frame = () => new Promise(requestAnimationFrame);

test("every pane is rendered, and program text is inserted as text", () => {
  const { find, el } = show({}, "view-kept", "open-details");
  for (const id of ["code-left", "source", "residuals", "inspector", "badge"])
    expect(find(id)).toHaveLength(1);
  expect(find("residual-row")).toHaveLength(2);
  expect(find("residuals")[0]!.textContent).toContain("</script><b>");
  expect(el.querySelector("b, script")).toBeNull();
  expect(find("badge")[0]!.textContent).toContain("JAX holds 2, jaxviz derives 1");
});

test("fifty explorers in one page are independent, and leave nothing behind", () => {
  const all = Array.from({ length: 50 }, () => show({}, "view-kept", "open-details"));
  const lines = () => all.map(({ find }) => find("expression")[0]?.textContent ?? "");
  const before = lines();
  all[20]!.find("residual-row")[1]!.click();
  expect(lines().map((text, i) => text !== before[i])).toEqual(all.map((_, i) => i === 20));
  const ids = Array.from(document.querySelectorAll("[id]"), (element) => element.id);
  expect(new Set(ids).size).toBe(ids.length);
  expect(document.querySelectorAll("style").length).toBeLessThan(all.length);
  for (const { stop } of all) stop();
  expect(all.map(({ model }) => model.count())).toEqual(all.map(() => 0));
}, 30_000);

test("the top bar shows the device, and why", () => {
  const [devices] = show().find("devices");
  expect(devices!.textContent).toBe("2 × cpu");
  expect(devices!.getAttribute("title")).toBe("runs on 2 devices, cpu:0 to cpu:1, where its argument x lies");
});

test("the source marks the selected and the hovered expression", () => {
  const { el, find, key } = show({}, "view-kept", "open-details");
  const marks = () => [...el.querySelectorAll("mark")].map((m) => `${m.className} ${m.textContent}`);
  key("Escape");
  expect(marks()).toEqual([]);
  const [line] = find("source-line").filter((l) => l.dataset.line === "2");
  const text = line!.textContent;
  find("residual-row")[0]!.click();
  expect(marks()).toEqual(["jv-chosen jnp.sin(x)"]);
  expect(find("expression")[0]!.textContent).toBe("jnp.sin(x)");
  expect(line!.textContent).toBe(text);
  line!.click();
  expect(marks()).toEqual([]);
  key("Escape");
  expect(marks()).toEqual([]);
  const state = new State(model());
  state.pointAt(state.model.outputs(0)[0]!);
  expect(pointedPlaces(state)).toEqual([state.model.place(0)]);
});

test("lines have columns with the gradient's figures, and totals above", () => {
  const { find, el } = show();
  const [line] = find("source-line").filter((l) => l.dataset.line === "2");
  const cells = [...line!.querySelectorAll(".jv-amount")].map((cell) => cell.textContent!.trim());
  expect(cells).toEqual(["12 B", "", "6"]);
  expect(line!.title).toBe("12 B saved, 6 FLOP backward");
  expect(find("figure-heads")[0]!.textContent).toBe("saved16 Bforward3 FLOPbackward6 FLOP");
  const [choice] = find("line-figure") as HTMLSelectElement[];
  choice!.value = "backward";
  choice!.dispatchEvent(new Event("change"));
  expect(el.querySelector<HTMLElement>(".jv-source")!.dataset["figure"]).toBe("backward");
});

test("line by line, a click expands a line with its equations, and collapses it again", () => {
  const { find, el } = show();
  const [line] = find("source-line").filter((l) => l.dataset.line === "2");
  line!.click();
  expect(find("under")).toEqual([]);
  find("view-lines")[0]!.click();
  find("open-details")[0]!.click();
  expect(find("explorer")[0]!.classList.contains("is-lines")).toBe(true);
  line!.click();
  expect(line!.ariaExpanded).toBe("true");
  expect(find("under-row").map((row) => row.querySelector("code")!.textContent)).toEqual([
    "e:f32[3] = mul b d",
  ]);
  find("under-row")[0]!.click();
  expect(find("inspected")[0]!.textContent).toBe("mul");
  expect(find("under-row")[0]!.classList.contains("is-selected")).toBe(true);
  expect([...el.querySelectorAll("mark")].map((m) => m.textContent)).toEqual(["jnp.sin(x)"]);
  line!.click();
  expect(find("under")).toEqual([]);
  expect(line!.ariaExpanded).toBe("false");
});

test("in every view the arrow expands a line, and the keys continue through its equations", () => {
  const { find } = show({}, "open-details");
  const [empty, line] = find("source-line");
  const press = (element: HTMLElement, key: string) =>
    element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  expect(empty!.ariaExpanded).toBe(null);
  press(empty!, "ArrowRight");
  expect(find("under")).toEqual([]);
  line!.querySelector<HTMLElement>(".jv-unfold")!.click();
  expect(line!.classList.contains("is-selected")).toBe(false);
  expect(find("under")).toHaveLength(1);
  press(line!, "ArrowLeft");
  expect(find("under")).toEqual([]);
  press(line!, "ArrowRight");
  press(line!, "ArrowDown");
  const [row] = find("under-row");
  expect(document.activeElement).toBe(row);
  press(row!, "Enter");
  expect(find("inspected")[0]!.textContent).toBe("mul");
  press(row!, "ArrowLeft");
  expect(document.activeElement).toBe(line);
  expect(find("under")).toEqual([]);
});

test("a question opens with the expression of which most is saved, if nothing is selected", () => {
  const { find, model } = show({}, "view-kept");
  const residuals = () =>
    find("residual-row")
      .filter((row) => row.classList.contains("is-selected"))
      .map((row) => row.dataset["residual"]);
  expect([model.values["selected"], residuals()]).toEqual(["primal:0", ["0"]]);
  const other = show({ selected: "primal:2" }, "view-derived");
  expect(other.model.values["selected"]).toBe("primal:2");
});

test("residuals of one expression are selected together", () => {
  const state = new State(model({ residual_group: [0, 0], residual_producer: [0, 2] }));
  state.selectResiduals([0, 1]);
  expect([...state.selection.rows]).toEqual([0, 2]);
  expect([0, 1].map((i) => residualLitAs(state, i))).toEqual(["is-selected", "is-selected"]);
  const inspector = followed(new InspectorPane(state));
  expect(inspector.element.textContent).toContain("2 residuals, the first is");
});

test("why something is saved begins with the largest values of the largest expression", () => {
  const begun = (columns: Record<string, number[]>) => {
    const state = new State(model(columns));
    state.arrange("kept");
    return [...state.selection.residuals];
  };
  expect(begun({ residual_nbytes: [4, 12], residual_kept: [0, 0], residual_group: [0, 1] })).toEqual([1]);
  expect(begun({ residual_nbytes: [12, 4], residual_kept: [-1, 0], residual_group: [0, 1] })).toEqual([1]); // no argument
  expect(begun({ residual_kept: [-1, -1] })).toEqual([]);
});

test("clicking a residual highlights its line and sends its equation to Python", () => {
  const { find, key, model } = show({}, "view-kept", "open-details");
  key("Escape");
  find("residual-row")
    .find((row) => row.dataset["residual"] === "0")!
    .click();
  expect(model.values["selected"]).toBe("primal:0");
  expect(find("source-line").filter((line) => line.classList.contains("is-selected"))).toHaveLength(1);
  expect(find("inspected")[0]!.textContent).toBe("sin");
  expect(find("reason")[0]!.textContent).toBe("sin(x) is needed again in line 4's gradient (sin)");
  expect(find("reason")[0]!.querySelector("code")!.textContent).toBe("sin(x)");
});

test("a selection from Python is shown, and its stage brought into a pane", () => {
  const { find, model } = show({}, "open-details");
  model.set("selected", "backward:0");
  expect(find("code-left")[0]!.dataset["stage"]).toBe("backward");
  expect(find("inspected")[0]!.textContent).toBe("mul");
  model.set("selected", "");
  expect(find("inspected")).toHaveLength(0);
  // Also where no stages are shown.
  find("view-cost")[0]!.click();
  model.set("selected", "primal:0");
  expect(find("explorer")[0]!.classList.contains("is-stages")).toBe(true);
  expect(find("code-left")[0]!.querySelector<HTMLElement>(".is-selected")!.dataset["row"]).toBe("0");
});

test("stages are synchronized with Python in both directions", () => {
  const { find, model } = show({ stage: "primal", beside: "backward" });
  expect(find("code-right")[0]!.dataset["stage"]).toBe("backward");
  find("stage-backward")[0]!.click();
  expect(model.values["stage"]).toBe("backward");
  model.set("beside", "");
  expect(find("code-right")).toHaveLength(0);
});

test("keys select stages, clear the selection, open the help, and do not reach the notebook", async () => {
  const { find, key, model, el } = show({ selected: "primal:0" });
  const outside = vi.fn();
  el.addEventListener("keydown", outside);
  key("2", { code: "Digit2" });
  expect(model.values["stage"]).toBe("backward");
  key("Escape");
  expect(model.values["selected"]).toBe("");
  key("?");
  await soon(() => expect((find("keys")[0] as HTMLDialogElement).open).toBe(true));
  expect(find("keys")[0]!.textContent).toContain("clear the selection");
  key("Escape");
  expect((find("keys")[0] as HTMLDialogElement).open).toBe(false);
  key("b");
  expect(outside).not.toHaveBeenCalled();
});

test("if the help cannot be loaded, that is said, and it is loaded the next time", async () => {
  const load = vi.fn(async () => ({ KEYS: [["Esc", "clear the selection"]] as const }));
  load.mockRejectedValueOnce(new Error("no kernel answers"));
  const { sheet, toggle } = helpSheet("help", load);
  document.body.append(sheet);
  toggle();
  await vi.waitFor(() => expect(sheet.open).toBe(true));
  expect(sheet.textContent).toContain("There is no help: no kernel answers");
  toggle();
  toggle();
  await vi.waitFor(() => expect(sheet.open).toBe(true));
  expect(sheet.textContent).toContain("clear the selection");
});

test("keys still work after one of them replaced the current pane", () => {
  const { el, find, model } = show();
  const content = () => el.querySelector<HTMLElement>(".cm-content")!;
  const press = (key: string, code: string) =>
    document.activeElement!.dispatchEvent(new KeyboardEvent("keydown", { key, code, bubbles: true }));
  content().focus();
  press("2", "Digit2");
  expect(find("code-left")[0]!.contains(document.activeElement)).toBe(true);
  press("1", "Digit1");
  expect(model.values["stage"]).toBe("primal");
});

test("arrow keys move between equations wherever the focus is, except in a pane that scrolls", () => {
  const { find, model } = show({}, "open-details");
  const press = (from: HTMLElement, key: string) =>
    from.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  press(find("help")[0]!, "ArrowDown");
  expect(model.values["selected"]).toBe("primal:0");
  press(find("explorer")[0]!, "ArrowDown");
  expect(model.values["selected"]).toBe("primal:1");
  press(find("explorer")[0]!, "ArrowUp");
  expect(model.values["selected"]).toBe("primal:0");
  press(find("inspected")[0]!, "ArrowDown");
  expect(model.values["selected"]).toBe("primal:0");
});

test("clicking a heading sorts, and clicking it again reverses", () => {
  const { find, el } = show({}, "view-kept");
  const order = () => find("residual-row").map((row) => row.dataset["residual"]);
  const head = () => el.querySelector<HTMLElement>("th.jv-col-nbytes")!;
  expect(order()).toEqual(["0", "1"]);
  head().querySelector("button")!.click();
  expect(order()).toEqual(["1", "0"]);
  expect(head().getAttribute("aria-sort")).toBe("ascending");
});

function type(box: HTMLInputElement, text: string): void {
  box.value = text;
  box.dispatchEvent(new Event("input", { bubbles: true }));
}

test("the filter: rows, totals, sorting, and clearing it", () => {
  const { find, el } = show({}, "view-kept");
  const box = find("filter")[0] as HTMLInputElement;
  const order = () => find("residual-row").map((row) => row.dataset["residual"]);
  const total = () => find("residual-total")[0]!.textContent;
  expect(total()).toBe("saves 16 B in 2 values");
  type(box, "SIN model.py");
  expect(order()).toEqual(["0"]);
  expect(total()).toBe("1 of 2 values: saves 12 B in 1 value");
  type(box, "model.py");
  el.querySelector<HTMLElement>("th.jv-col-nbytes button")!.click();
  expect(order()).toEqual(["1", "0"]);
  type(box, "nothing like it");
  expect(order()).toEqual([]);
  expect(total()).toBe("0 of 2 values: saves nothing");
  expect(find("residuals")[0]!.textContent).toContain("None of the 2 values match.");
  find("residuals")[0]!.querySelector<HTMLElement>(".jv-wide button")!.click();
  expect([order(), box.value]).toEqual([["1", "0"], ""]);
});

test("a kind can be chosen, and the selection highlights matching rows", () => {
  const { find, model } = show({}, "view-kept");
  const kind = find("filter-kind")[0] as HTMLSelectElement;
  expect(Array.from(kind.options, (o) => o.text)).toEqual(["all kinds", "literal (1)", "intermediate (1)"]);
  kind.value = "intermediate";
  kind.dispatchEvent(new Event("change", { bubbles: true }));
  expect(find("residual-row").map((row) => row.dataset["residual"])).toEqual(["0"]);
  model.set("selected", "primal:0");
  expect(find("residual-row")[0]!.className).toBe("is-selected");
});

test("a search that the user has left while it was loaded shows nothing", async () => {
  const layout = laidOut();
  let load = (_: Finder) => {};
  const loading = new Promise<Finder>((done) => {
    load = done;
  });
  const search = new SearchBox(new State(model()), () => loading);
  document.body.append(search.element);
  const box = search.element.querySelector("input")!;
  search.focus();
  type(box, "sin");
  box.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  box.blur();
  load(await import("../src/host/parts/search"));
  await loading;
  await turn();
  expect(box.ariaExpanded).toBe("false");
  box.focus();
  expect(box.ariaExpanded).toBe("true");
  layout.mockRestore();
});

test("one search covers source, equations, values and scopes, using only the keyboard", async () => {
  const layout = laidOut();
  const { find, key, model, el } = show();
  const box = find("search")[0] as HTMLInputElement;
  const list = el.querySelector<HTMLElement>(".jv-found")!;
  const press = (name: string) =>
    document.activeElement!.dispatchEvent(
      new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }),
    );
  key("/");
  expect(document.activeElement).toBe(box);
  const groups = () => [...list.querySelectorAll("[role=group]")].map((group) => group.ariaLabel);
  type(box, "sin");
  await soon(() => expect(groups()).toEqual(["source", "equations"]));
  const titles = () => find("found").map((row) => row.querySelector("code")!.textContent);
  expect(titles()).toEqual(["return g(jnp.sin(x))  # é ✓ </script>", "b = sin a"]);
  press("ArrowDown");
  press("ArrowDown");
  expect(box.getAttribute("aria-activedescendant")).toBe(find("found")[1]!.id);
  press("Enter");
  expect(model.values["selected"]).toBe("primal:0");
  expect([list.hidden, box.ariaExpanded]).toEqual([true, "false"]);
  type(box, "x");
  expect(groups()).toEqual(["source", "values"]);
  type(box, "size>nothing");
  expect(list.textContent).toBe("nothing is not an amount; write, for example, size>1MiB");
  type(box, "");
  expect(groups()).toEqual(["searches"]); // which are made by choosing them
  const [suggested] = titles();
  find("found")[0]!.click();
  expect([box.value, groups().includes("equations")]).toEqual([suggested, true]);
  type(box, "size>nothing");
  press("Escape");
  expect([list.hidden, box.value]).toEqual([true, "size>nothing"]);
  press("Escape");
  expect([box.value, document.activeElement]).toEqual(["", find("explorer")[0]]);
  layout.mockRestore();
});

test("F focuses the filter, whose keys do nothing else; Esc clears it, and then leaves it", () => {
  const { find, key, model, el } = show({ selected: "primal:0" });
  const outside = vi.fn();
  el.addEventListener("keydown", outside);
  key("f");
  const box = find("filter")[0] as HTMLInputElement;
  expect(document.activeElement).toBe(box);
  const press = (name: string, code = "") => {
    const event = new KeyboardEvent("keydown", { key: name, code, bubbles: true, cancelable: true });
    document.activeElement!.dispatchEvent(event);
    return event.defaultPrevented;
  };
  expect([press("2", "Digit2"), press("l"), press("b"), press("?"), press("/"), press("m")]).toEqual(
    new Array(6).fill(false),
  );
  expect([model.values["stage"], model.values["beside"]]).toEqual(["primal", ""]);
  type(box, "sin");
  press("Escape");
  expect([box.value, find("residual-row").length, model.values["selected"]]).toEqual(["", 2, "primal:0"]);
  press("Escape");
  expect(document.activeElement).toBe(find("explorer")[0]);
  key("f");
  press("ArrowDown");
  expect(document.activeElement).toBe(find("residual-row")[0]);
  expect(outside).not.toHaveBeenCalled();
});

test("M leads to the memory over time, in whichever question has it", async () => {
  const { find, key } = show();
  const isAt = (view: string) => find("explorer")[0]!.classList.contains(`is-${view}`);
  key("m");
  await isThere(find, "timeline");
  await frame(); // after which what is not laid out has lost the focus
  key("m");
  expect([isAt("cost"), document.activeElement]).toEqual([true, find("timeline")[0]]);
  key("f");
  expect([isAt("kept"), document.activeElement]).toEqual([true, find("filter")[0]]);
  find("view-what-if")[0]!.click();
  key("m");
  expect([isAt("what-if"), document.activeElement]).toEqual([true, find("timeline")[0]]);
});

test("without a payload it requests one, and then shows it", () => {
  const { find, model } = show({ payload: new DataView(new ArrayBuffer(0)) });
  expect(find("loading")).toHaveLength(1);
  expect(model.sent).toEqual(["fill"]);
  model.set("payload", bytes());
  expect(find("code-left")).toHaveLength(1);
});

test("an error in Python is shown", () => {
  errors.mockImplementationOnce(() => {});
  const empty = new DataView(new ArrayBuffer(0));
  expect(show({ payload: empty, failure: "no luck" }).find("failed")[0]!.textContent).toContain("no luck");
  expect(show({ payload: new DataView(new ArrayBuffer(99)) }).find("failed")[0]!.textContent).toContain(
    "not a jaxviz view",
  );
  expect(errors).toHaveBeenCalledOnce();
  errors.mockClear();
});

test("closing removes all listeners", () => {
  const { model, stop } = show();
  stop();
  expect(model.count()).toBe(0);
});

test("colouring Python does not change its text", () => {
  for (const line of [
    "def f(x):  # é <b>",
    '    return \'a # b\' + "\\"" if x else None',
    "@jax.jit",
    "y = 1e-6 * x_1",
  ]) {
    const code = document.createElement("code");
    code.append(...coloured(line));
    expect(code.textContent).toBe(line);
  }
  const code = document.createElement("code");
  code.append(...coloured("return 'in' # in"));
  expect(Array.from(code.children, (part) => part.className)).toEqual([
    "jv-keyword",
    "jv-string",
    "jv-comment",
  ]);
});

/** What the inspector shows below the operands and results of the fixture's jit. */
function inspected(columns: Record<string, number[]>): string[] {
  const state = new State(model(columns));
  state.selectRow(1);
  const { element } = followed(new InspectorPane(state));
  return Array.from(element.querySelectorAll(".jv-of"), (part) => part.textContent ?? "");
}

test("the inspector shows the sharding of operands and results", () => {
  expect(inspected({})).toEqual([]);
  expect(inspected({ layout_rows: [1], layout_texts: [22] })).toEqual([
    "P('i') → f32[3] 12 B a device",
    "P() → f32[3] 12 B a device",
  ]);
});

test("the inspector shows what becomes of a donated operand", () => {
  const donated = { donation_rows: [1], donation_operands: [0] };
  expect(inspected({ ...donated, donation_results: [0], donation_reasons: [0] })).toEqual([
    "donated: result 0 reuses its memory",
    "reuses the memory of a",
  ]);
  expect(inspected({ ...donated, donation_results: [-1], donation_reasons: [23] })).toEqual([
    "donated, but nothing reads it",
  ]);
});

test("the equations below the residuals are stepped through those of one expression", () => {
  const state = new State(model({ residual_group: [0, 0], residual_producer: [0, 2] }));
  const pane = followed(new ResidualsPane(state));
  const find = (id: string) => pane.element.querySelector<HTMLButtonElement>(`[data-testid=${id}]`)!;
  const [back, on] = [find("pair-back"), find("pair-on")];
  const now = () => [find("pair").textContent, back.disabled, on.disabled, [...state.selection.rows]];
  expect(now()).toEqual(["of a value: select one", true, true, []]);
  state.selectResiduals([0, 1]);
  const [first, second] = state.model.residuals.map((r) => r.name);
  expect(now()).toEqual([`of ${first}, 1 of 2`, true, false, [0, 2]]);
  on.click();
  expect(now()).toEqual([`of ${second}, 2 of 2`, false, true, [2]]);
  state.stepPair(1);
  expect(now()[0]).toBe(`of ${second}, 2 of 2`);
  back.click();
  expect(now()).toEqual([`of ${first}, 1 of 2`, true, false, [0]]);
  expect([...state.selection.residuals]).toEqual([0, 1]);
});

test("the residuals table has bytes per device if sharded", () => {
  const cells = (columns: Record<string, number[]>) => {
    const { element } = followed(new ResidualsPane(new State(model(columns))));
    return Array.from(element.querySelectorAll("td.jv-col-nbytes"), (cell) => cell.textContent);
  };
  expect(cells({})).toEqual(["12 B", "4 B"]);
  expect(cells({ residual_per_device: [6, -1] })).toEqual(["12 B6 B a device", "4 B"]);
});

/** The view compared with itself, except that one equation of `f` counts as new and the one before it as removed. */
const versions = () => {
  const { stages } = model().view;
  const whole = Object.fromEntries(
    stages.map(({ key, equations: [from, to] }) => [
      key,
      { pairs: [[0, 0, to - from]], removed: [], added: [] },
    ]),
  );
  const n = stages[0]!.equations[1];
  const primal = { pairs: n > 2 ? [[2, 2, n - 2]] : [], removed: [[0, 2]], added: [[0, 2]] };
  return {
    before: bytes(),
    changes: JSON.stringify({
      functions: ["loss", "loss"],
      summary: "two versions of loss",
      stages: { ...whole, primal },
      figures: [
        ["f", `${n}`, `${n}`, "same", "", "equations"],
        ["residual bytes", "1.0 KiB", "2.0 KiB", "+1.0 KiB (+100%)", "+100%", "bytes"],
      ],
      residuals: [[true, "+12 B", "", "f32[3]", "model.py:3", "`cos`"]],
    }),
  };
};

test("the previous version is shown beside this one, with new equations marked", () => {
  const { find, key, model } = show(versions());
  expect(find("versions")[0]!.textContent).toBe("−2 +2 since before");
  const lines = (side: string) =>
    Array.from(find(`code-${side}`)[0]!.querySelectorAll<HTMLElement>(".cm-line"));
  expect(lines("left").filter((l) => l.classList.contains("is-added")).length).toBe(2);
  expect(find("code-right").length).toBe(0);
  key("c");
  expect(model.values["compared"]).toBe(true);
  expect(find("code-left")[0]!.textContent).toContain("before");
  expect(lines("left").filter((l) => l.classList.contains("is-removed")).length).toBe(2);
  expect(lines("right").filter((l) => l.classList.contains("is-added")).length).toBe(2);
  const same = lines("left").find((l) => Number(l.dataset["row"]) === 2)!;
  same.dispatchEvent(new MouseEvent("mousedown", { bubbles: true }));
  same.click();
  model.set("selected", "primal:2");
  expect(lines("left").find((l) => l.dataset["row"] === "2")!.className).toContain("is-selected");
  model.set("selected", "primal:0");
  expect(lines("left").some((l) => l.classList.contains("is-selected"))).toBe(false);
  key("c");
  expect(find("code-right").length).toBe(0);
});

test("the changes are shown in figures", async () => {
  const { find } = show(versions());
  find("view-diff")[0]!.click();
  await soon(() => expect(find("figure")).not.toEqual([]));
  const texts = (id: string) => find(id).map((row) => row.textContent);
  expect(texts("figure")).toEqual(["residual bytes, was 1.0 KiB2.0 KiB+100%"]);
  expect(texts("equations-changed")).toEqual(["f3 → 3−2+2"]);
  expect(find("residual-change")[0]!.textContent).toBe("+12 Bf32[3]model.py:3cos");
  // Equations that only one version has are visited side by side, where the changes stay.
  find("next-added-primal")[0]!.click();
  expect(find("explorer")[0]!.classList.contains("is-versions")).toBe(true);
  const box = find("compared")[0] as HTMLInputElement;
  box.click();
  expect([find("code-right").length, find("explorer")[0]!.classList.contains("is-versions")]).toEqual([
    0,
    false,
  ]);
});

test("two versions as a diff: the source, and the equations of a stage, line by line", async () => {
  const { find, key } = show(versions());
  const before = find("view-diff")[0]!;
  expect(before.hidden).toBe(false);
  before.click();
  find("open-details")[0]!.click();
  expect(find("explorer")[0]!.classList.contains("is-diff")).toBe(true);
  await soon(() => expect(find("diff-line")).not.toEqual([]));
  const cells = () =>
    [...find("diff")[0]!.querySelectorAll("tbody tr")].map((tr) =>
      [...tr.querySelectorAll("td")].map((td) => `${td.className}|${td.textContent}`),
    );
  const same = "|2    return g(jnp.sin(x))  # é ✓ </script>12 B";
  expect(cells()[1]).toEqual([same, same]);
  find("diff-primal")[0]!.click();
  const texts = cells();
  expect(texts.flat().filter((cell) => cell.startsWith("is-removed|−"))).toHaveLength(2);
  expect(texts.flat().filter((cell) => cell.startsWith("is-added|+"))).toHaveLength(2);
  const lines = find("diff-line").filter((line) => line.getAttribute("role") === "button");
  lines[0]!.click();
  expect(find("diff-line").filter((line) => line.classList.contains("is-selected"))).toHaveLength(1);
  // An equation of only the previous version is inspected there; the last selection counts.
  const inspected = () => ["inspected", "inspected-version"].map((id) => find(id)[0]?.textContent);
  expect(inspected()).toEqual([expect.any(String), "in the previous version"]);
  lines[1]!.click();
  expect(inspected()).toEqual([expect.any(String), ""]);
  lines[0]!.click();
  key("c");
  expect(find("explorer")[0]!.classList.contains("is-diff")).toBe(false);
  expect(inspected()).toEqual([undefined, ""]);
});

test("equations of only one version are visited in that version", async () => {
  const { find } = show(versions());
  find("view-diff")[0]!.click();
  await soon(() => expect(find("next-added-primal")).not.toEqual([]));
  const selected = () =>
    ["left", "right"].map(
      (side) => find(`code-${side}`)[0]?.querySelector<HTMLElement>(".is-selected")?.dataset["row"],
    );
  find("next-added-primal")[0]!.click();
  expect(selected()).toEqual([undefined, "0"]);
  find("next-added-primal")[0]!.click();
  expect(selected()).toEqual([undefined, "1"]);
  find("next-removed-primal")[0]!.click();
  expect(selected()).toEqual(["0", undefined]);
});

test("equations with communication are marked from the start if the program was already compiled", () => {
  const row = ["all-reduce", "data", 6, "1", "backward", "f.py:2", "`w` is replicated over `data`", [4]];
  const stages = [
    ["primal", 3],
    ["backward", 2],
  ];
  const { find } = show({ compiled: JSON.stringify({ stages, exchanges: { summary: "", rows: [row] } }) });
  const marked = find("source-line").filter((line) => line.classList.contains("jv-exchanges"));
  expect(marked.map((line) => line.dataset["line"])).toEqual(["2"]);
  expect(marked[0]!.title).toContain("all-reduce over data, backward: each device sends 6 B");
});

test("without another version there is nothing to compare with", () => {
  const { find, key } = show();
  expect(find("versions")[0]!.hidden).toBe(true);
  expect(find("view-diff")[0]!.hidden).toBe(true);
  key("c");
  expect(find("code-right").length).toBe(0);
});

/** The switches of another program than the view's, without its rows, and the effects of all settings. */
const { table: ofLayers, tried: ofTried } = whatIfs.layers;
const layers = JSON.stringify(ofLayers, (key, value) =>
  key === "row" ? (Array.isArray(value) ? value.map(() => -1) : -1) : value,
);
const tried = JSON.stringify(ofTried);

/** The same, with two values for the view's first residual, and none for the second. */
const inPlace = [[0, 1], []];
const ofView = JSON.stringify({ ...JSON.parse(layers), residuals: inPlace });

test("Python sets the filter, and receives what is typed", () => {
  const { find, model } = show({ filter: "nothing has this" });
  const box = find("filter")[0] as HTMLInputElement;
  expect(box.value).toBe("nothing has this");
  expect(find("residual-row").length).toBe(0);
  model.set("filter", "");
  expect(box.value).toBe("");
  expect(find("residual-row").length).toBe(2);
  box.value = "cos";
  box.dispatchEvent(new Event("input"));
  expect(model.values["filter"]).toBe("cos");
});

test("a checkpoint is switched on first, and then what it saves", async () => {
  const { find, key: press, model } = show({ what_if: layers, tried }, "view-what-if");
  await isThere(find, "what-if");
  const figures = () => ["peak", "bytes", "flops"].map((name) => find(`what-if-${name}`)[0]!.textContent);
  const written = figures();
  const switchOf = (row: HTMLElement) => row.querySelector<HTMLElement>("[role=switch]")!;
  const trades = ofTried.trades as unknown as Record<string, number[]>;
  expect(find("what-if-region").length).toBe(3);
  expect(find("what-if-row").length).toBe(0);
  const [before, after] = fromTo(trades[""]![0]!, trades["0||"]![0]!);
  expect(find("what-if-region")[0]!.textContent).toContain(`if switched on: ${before} → ${after}`);
  switchOf(find("what-if-region")[0]!).click();
  expect(switchOf(find("what-if-region")[0]!).getAttribute("aria-checked")).toBe("true");
  const [peak, nbytes, flops] = trades["0||"]!;
  expect(figures()).toEqual([
    formatBytes(peak!),
    formatBytes(nbytes!),
    expect.stringContaining(formatFlops(flops!)),
  ]);
  expect(model.values["switches"]).toBe("0||");
  expect(find("what-if-region")[0]!.textContent).toContain("if switched off: ");
  const row = () => find("what-if-row").find((r) => r.textContent!.includes("x @ w"))!;
  switchOf(row()).click();
  const key = String(model.values["switches"]);
  expect(key).toMatch(/^0\|\d\|$/);
  expect(figures()[0]).toBe(formatBytes(trades[key]![0]!));
  find("what-if-undo")[0]!.click();
  expect(model.values["switches"]).toBe("0||");
  find("what-if-redo")[0]!.click();
  expect(model.values["switches"]).toBe(key);
  press("z", { ctrlKey: true });
  expect(model.values["switches"]).toBe("0||");
  press("Z", { ctrlKey: true, shiftKey: true });
  expect(model.values["switches"]).toBe(key);
  press("z", { metaKey: true });
  press("y", { ctrlKey: true });
  expect(model.values["switches"]).toBe(key);
  find("what-if-reset")[0]!.click();
  expect(figures()).toEqual(written);
  expect(model.values["switches"]).toBe("");
  // Python, or another view, can set them too.
  model.set("switches", "1||");
  expect(switchOf(find("what-if-region")[1]!).getAttribute("aria-checked")).toBe("true");
});

test("unknown effects are shown as being computed", async () => {
  const only = JSON.stringify({ ...ofTried, trades: { "": ofTried.trades[""] } });
  const { find, model } = show({ what_if: layers, tried: only }, "view-what-if");
  await isThere(find, "what-if");
  expect(find("what-if-region")[0]!.textContent).toContain("…");
  find("what-if-region")[0]!.querySelector<HTMLElement>("[role=switch]")!.click();
  expect(find("what-if-peak")[0]!.textContent).toBe("…");
  expect(find("what-if-said")[0]!.textContent).toContain("Computing…");
  model.set("tried", tried);
  expect(find("what-if-peak")[0]!.textContent).toBe(formatBytes(ofTried.trades["0||"][0]!));
  expect(find("what-if-said")[0]!.textContent).toBe("");
});

test("repeated values have one switch, and one each when expanded", async () => {
  const { find } = show({ what_if: layers, tried, switches: "0||" }, "view-what-if");
  await isThere(find, "what-if");
  const rows = () => find("what-if-row");
  const switchOf = (row: HTMLElement) => row.querySelector<HTMLElement>("[role=switch]")!;
  const group = () => rows().find((row) => row.textContent!.includes("4 × "))!;
  const key = group().dataset.key!;
  const { what } = ofLayers.groups[Number(key.replace("all of ", ""))]!;
  expect(group().querySelector("code")!.textContent).toBe(what);
  expect(switchOf(group()).getAttribute("aria-label")).toBe(`save all 4 of ${what}`);
  const before = rows().length;
  group().querySelector<HTMLElement>("[data-testid=what-if-fold]")!.click();
  expect(rows().length).toBe(before + 4);
  const members = () => rows().filter((row) => row.classList.contains("jv-inside"));
  const isOn = () => members().map((row) => switchOf(row).getAttribute("aria-checked"));
  expect(isOn()).toEqual(Array(4).fill("false"));
  switchOf(members()[1]!).click();
  expect(isOn()).toEqual(["false", "true", "false", "false"]);
  expect(switchOf(group()).getAttribute("aria-checked")).toBe("mixed");
  switchOf(group()).click();
  expect(isOn()).toEqual(Array(4).fill("true"));
  switchOf(group()).click();
  expect(isOn()).toEqual(Array(4).fill("false"));
});

test("a residual's switch controls the values that replace it, in both questions", async () => {
  const { find } = show({ what_if: ofView, tried }, "view-kept");
  const switches = find("residual-switch");
  expect(switches.length).toBe(1);
  const isOn = () => find("residual-switch").map((s) => s.getAttribute("aria-checked") === "true");
  expect(isOn()).not.toContain(false);
  const said = () => find("residual-said")[0]!.textContent;
  const total = () => find("residual-total")[0]!.textContent;
  const before = total();
  expect(switches[0]!.parentElement!.title).toContain("what a checkpoint saves for it: ");
  switches[0]!.click();
  expect(isOn()[0]).toBe(false);
  expect(said()).toContain(
    "Switched on with it: a checkpoint around 4 calls of layer, which saves everything else.",
  );
  find("view-what-if")[0]!.click();
  await isThere(find, "what-if");
  const checked = find("what-if-region").map((row) => row.querySelector("[aria-checked=true]") !== null);
  expect(checked).toEqual([true, false, false]);
  find("what-if-nothing")[0]!.click();
  expect(total()).toContain(`${formatBytes(ofTried.trades["0||"][1]!)} of `);
  find("residual-reset")[0]!.click();
  expect(isOn()).not.toContain(false);
  expect(total()).toBe(before);
  expect(find("what-if-bytes")[0]!.textContent).toBe(formatBytes(ofTried.trades[""][1]!));
});

test("a switch that changes another one says so", () => {
  const [both = []] = inPlace;
  const shared = JSON.stringify({ ...JSON.parse(layers), residuals: [both, both.slice(1)] });
  const { find } = show({ what_if: shared, tried }, "view-kept");
  const label = (row: HTMLElement) => row.querySelector(".jv-col-name code")!.textContent!;
  const [row, other] = ["0", "1"].map((i) => find("residual-row").find((r) => r.dataset.residual === i)!);
  const said = () => find("residual-said")[0]!.textContent;
  const flip = (of: HTMLElement) => of.querySelector<HTMLElement>("[role=switch]")!.click();
  flip(row!);
  expect(said()).toContain(`Moved with it: ${label(other!)}.`);
  flip(row!);
  flip(other!);
  expect(said()).toContain(`Moved with it: ${label(row!)}.`);
  find("residual-reset")[0]!.click();
  expect(said()).not.toContain("Moved with it");
});

test("a residual that no name can save has a message instead of a switch", () => {
  const { find } = show({ what_if: ofView, tried }, "view-kept");
  const without = find("residual-row").filter((row) => !row.querySelector("[role=switch]"));
  expect(without.length).toBeGreaterThan(0);
  expect(without[0]!.querySelector("td")!.title).toContain("no switch");
});

test("X toggles the switch of the current row, once its effect is known", () => {
  const { find, model } = show({}, "view-kept");
  const row = find("residual-row").find((r) => r.querySelector("[role=switch]"))!;
  row.dispatchEvent(new KeyboardEvent("keydown", { key: "x", bubbles: true }));
  expect(model.sent).toContain("what if");
  expect(row.querySelector("[role=switch]")!.getAttribute("aria-checked")).toBe("true");
  model.set("tried", tried);
  model.set("what_if", ofView);
  expect(row.querySelector("[role=switch]")!.getAttribute("aria-checked")).toBe("false");
  row.dispatchEvent(new KeyboardEvent("keydown", { key: "x", bubbles: true }));
  expect(row.querySelector("[role=switch]")!.getAttribute("aria-checked")).toBe("true");
});

test("a residual leads to the switches, whose columns sort", async () => {
  const { find } = show({ what_if: layers, tried, switches: "2||" }, "view-kept", "open-details");
  find("residual-row")
    .find((row) => row.dataset["residual"] === "0")!
    .click();
  find("ask-what-if")[0]!.click();
  await isThere(find, "what-if");
  expect(find("what-if-row").length).toBeGreaterThan(1);
  const column = (name: string) =>
    Array.from(find("what-if")[0]!.querySelectorAll<HTMLElement>("th")).find(
      (th) => th.textContent === name,
    )!;
  const names = () => find("what-if-row").map((row) => row.querySelector(".jv-col-name")!.textContent!);
  const before = names();
  column("checkpoint, value").querySelector("button")!.click();
  expect(column("checkpoint, value").getAttribute("aria-sort")).toBe("ascending");
  const sorted = names();
  column("checkpoint, value").querySelector("button")!.click();
  expect(column("checkpoint, value").getAttribute("aria-sort")).toBe("descending");
  expect(names()).toEqual([...sorted].reverse());
  expect([...names()].sort()).toEqual([...before].sort());
});

test("the switches of a small function are requested immediately, and an error is shown in their place", async () => {
  const { model, find } = show();
  expect(model.sent).toContain("what if");
  find("view-what-if")[0]!.click();
  await isThere(find, "what-if");
  expect(find("what-if")[0]!.textContent).toContain("Finding out");
  model.set("what_if", JSON.stringify({ error: "ReverseModeError: no" }));
  expect(find("what-if")[0]!.textContent).toContain("ReverseModeError: no");
});

test("a gzipped payload is decompressed", async () => {
  const { find } = show({ payload: await zipped(bytes()) });
  expect(find("loading")).toHaveLength(1);
  await soon(() => expect(find("code-left")).toHaveLength(1));
  expect(find("loading")).toHaveLength(0);
});

test("the latest payload is shown, in whichever order they are decompressed", async () => {
  const { model, find } = show({ payload: await zipped(bytes()) });
  model.set("payload", new DataView(new ArrayBuffer(0)));
  model.set("failure", "ValueError: no");
  await new Promise((done) => setTimeout(done, 50));
  expect(find("failed")[0]!.textContent).toContain("ValueError: no");
  expect(find("code-left")).toHaveLength(0);
});

function headerOf(block: DataView) {
  return JSON.parse(new TextDecoder().decode(new Uint8Array(block.buffer, 16, block.getUint32(8, true))));
}

/** The shared view's bytes with another header. */
function withHeader(changes: Record<string, unknown>): DataView {
  const old = new Uint8Array(bytes().buffer);
  const length = new DataView(old.buffer).getUint32(8, true);
  const header = headerOf(new DataView(old.buffer));
  const text = new TextEncoder().encode(JSON.stringify({ ...header, ...changes }));
  const size = Math.ceil(text.length / 8) * 8;
  const made = new Uint8Array(16 + size + old.length - 16 - length).fill(32);
  made.set(old.subarray(0, 16));
  new DataView(made.buffer).setUint32(8, size, true);
  made.set(text, 16);
  made.set(old.subarray(16 + length), 16 + size);
  return new DataView(made.buffer);
}

test("data omitted at first arrives without changing the selection", async () => {
  layOut(800, 300);
  const first = { has_groups: false, has_memory: false, is_whole: false, check: null, notes: [] };
  const { model, find, el } = show({ payload: withHeader(first) }, "view-kept", "view-cost");
  expect(model.sent).toContain("rest");
  expect(find("badge")).toHaveLength(0);
  await soon(() => expect(find("memory")[0]!.textContent).toContain("Computing"));
  find("stage-backward")[0]!.click();
  find("residual-row")[0]!.click();
  // The other blocks contain only what is new: no strings, and here no columns.
  const again = show(model.values);
  const add = (name: string, changes: Record<string, unknown>) => {
    model.set(name, withHeader({ strings: [], columns: {}, ...changes }));
    again.model.set(name, model.values[name]);
  };
  const head = () => el.querySelector(".jv-headline")!.textContent;
  add("groups", { ...first, has_groups: true });
  expect(head()).toContain("computing the peak");
  const [code] = find("code-left");
  add("memory", { ...first, has_groups: true, has_memory: true });
  expect(head()).toMatch(/peak [\d.]+ B/);
  expect(find("memory")[0]!.textContent).not.toContain("Computing");
  expect(find("timeline")).toHaveLength(1);
  const [drawn] = find("overview-memory");
  expect(find("badge")).toHaveLength(0);
  add("rest", {});
  expect(find("code-left")[0]).toBe(code);
  expect(find("badge")[0]!.textContent).toContain("residuals differ");
  expect(find("residuals")[0]!.textContent).toContain(json.notes[0]);
  expect(find("overview-memory")[0]).toBe(drawn);
  expect(find("timeline")).toHaveLength(1);
  expect(model.values["selected"]).not.toBe("");
  expect(model.sent.filter((m) => m === "rest")).toHaveLength(1);
  // Another view of the same bytes is completed too, and so is a later one.
  expect(again.find("badge")[0]!.textContent).toContain("residuals differ");
  expect(show(model.values).find("badge")[0]!.textContent).toContain("residuals differ");
  layOut(0, 0);
});

/** The shared view's bytes without its programs. */
function outline(): DataView {
  const { columns, stages } = headerOf(bytes());
  const isThere = (name: string) => /^(kept|location|line)_/.test(name);
  return withHeader({
    ...{ has_groups: false, has_memory: false, is_whole: false, check: null, notes: [] },
    stages: stages.map((stage: object) => ({ ...stage, programs: [0, 0], equations: [0, 0] })),
    columns: Object.fromEntries(
      Object.entries<unknown[]>(columns).map(([name, [code, ...more]]) => [
        name,
        isThere(name) ? [code, ...more] : [code, 0, 0],
      ]),
    ),
  });
}

test("the overview begins before the programs are there; what is opened then is shown once they are", () => {
  layOut(800, 300);
  const { model, find, el } = show({ payload: outline(), question: "overview" });
  const kept = () => find("kept-row").map((row) => row.textContent);
  const begun = kept();
  expect(begun.length).toBeGreaterThan(0);
  expect(find("overview")[0]!.textContent).toContain("Computing the work and the memory over time");
  expect(model.sent).toEqual(["fill"]);
  find("kept-row")[0]!.click();
  const [explorer] = find("explorer");
  expect(explorer!.className).toContain("is-outline");
  expect(el.querySelector(".jv-main > .jv-waiting")!.textContent).toContain("Deriving the programs");
  expect(find("residual-row")).toHaveLength(0);
  model.set("payload", bytes());
  expect(explorer!.className).not.toContain("is-outline");
  expect(el.querySelector(".jv-main > .jv-waiting")).toBeNull();
  const chosen = () => find("residual-row").filter((row) => row.classList.contains("is-selected"));
  expect(chosen().length).toBeGreaterThan(0);
  find("view-overview")[0]!.click();
  expect(kept()).toEqual(begun);
  const other = show({ payload: outline(), question: "overview" }, "view-cost");
  other.model.set("payload", bytes());
  expect(other.find("explorer")[0]!.className).toContain("is-cost");
  layOut(0, 0);
});

test("the texts of residuals are replaced by the complete ones", () => {
  layOut(800, 300);
  const part = { has_groups: false, has_memory: false, is_whole: false };
  const shown = show({ payload: withHeader(part) }, "view-kept");
  const { find } = shown;
  const labels = () => find("residual-row").map((row) => row.querySelector(".jv-col-name code")!.textContent);
  const before = labels();
  // Uses the rules as labels.
  const { residual_rule } = headerOf(bytes()).columns;
  shown.model.set("groups", withHeader({ strings: [], columns: {}, has_memory: false, is_whole: false }));
  shown.model.set("memory", withHeader({ strings: [], columns: {}, is_whole: false }));
  expect(labels()).toEqual(before);
  shown.model.set("rest", withHeader({ strings: [], columns: { residual_label: residual_rule } }));
  expect(labels()).not.toEqual(before);
  expect(labels().sort()).toEqual(
    model()
      .residuals.map((r) => r.rule)
      .sort(),
  );
  layOut(0, 0);
});

test("the graph and the code fold repeated layers once these are known", async () => {
  const first = { has_groups: false, has_memory: false, is_whole: false };
  const { model, find } = show({ payload: withHeader(first) });
  const graph = (): Promise<HTMLElement> =>
    vi.waitFor(() => {
      const [found] = find("graph-left");
      expect(found).toBeDefined();
      return found!;
    }, 10_000);
  find("stage-backward")[0]!.click();
  const [code] = find("code-left");
  expect(code).toBeDefined();
  model.set("groups", withHeader({ ...first, strings: [], columns: {}, has_groups: true }));
  expect(find("code-left")[0]).not.toBe(code);
  find("as-graph-left")[0]!.click();
  const before = await graph();
  model.set("memory", withHeader({ strings: [], columns: {}, is_whole: false }));
  model.set("rest", withHeader({ strings: [], columns: {} }));
  expect(await graph()).toBe(before);
});

test("a graph that was drawn before repeated layers are known is drawn again", async () => {
  const first = { has_groups: false, has_memory: false, is_whole: false };
  const { model, find } = show({ payload: withHeader(first) });
  find("stage-backward")[0]!.click();
  find("as-graph-left")[0]!.click();
  const [before] = await vi.waitFor(() => {
    expect(find("graph-left")).toHaveLength(1);
    return find("graph-left");
  }, 10_000);
  model.set("groups", withHeader({ ...first, strings: [], columns: {}, has_groups: true }));
  await vi.waitFor(() => expect(find("graph-left")[0]).toBeDefined(), 10_000);
  expect(find("graph-left")[0]).not.toBe(before);
});

test("another program replaces one that is not complete yet", () => {
  const { model, find } = show({ payload: withHeader({ has_memory: false, is_whole: false, check: null }) });
  const [code] = find("code-left");
  model.set("payload", withHeader({ title: "another" }));
  expect(find("code-left")).toHaveLength(1);
  expect(find("code-left")[0]).not.toBe(code);
});

test("the stylesheet is added once per document or shadow root", () => {
  const sheets = () => document.head.querySelectorAll("style").length;
  show();
  const n = sheets();
  show();
  expect(sheets()).toBe(n);
  const shadow = document.createElement("div").attachShadow({ mode: "open" });
  const el = document.createElement("div");
  shadow.append(el);
  const within = () => shadow.querySelectorAll("style").length;
  explorer.render({ model: host(), el });
  const once = within();
  expect(once).toBeGreaterThan(0);
  explorer.render({ model: host(), el });
  expect([within(), sheets()]).toEqual([once, n]);
});

/** Presses a key while the text of a code pane has the focus. */
function press(pane: HTMLElement, key: string, more: KeyboardEventInit = {}) {
  const content = pane.querySelector<HTMLElement>(".cm-content")!;
  content.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more }));
}

test("keys lead from a variable to its definition, to its uses, and back", () => {
  const { find, model } = show({ selected: "primal:1" });
  const [pane] = find("code-left");
  press(pane!, "ArrowLeft", { shiftKey: true });
  expect(find("variable")[0]!.textContent).toContain("b = sin a");
  expect(find("variable")[0]!.textContent).toContain("1 use");
  press(pane!, "F12");
  expect(model.values["selected"]).toBe("primal:0");
  press(pane!, "n");
  expect(model.values["selected"]).toBe("primal:1");
  press(pane!, "ArrowLeft", { altKey: true });
  press(pane!, "ArrowLeft", { altKey: true });
  expect(model.values["selected"]).toBe("primal:1");
  press(pane!, "ArrowRight", { altKey: true });
  expect(model.values["selected"]).toBe("primal:0");
});

test("the inspector lists the uses of an equation's results", () => {
  const { find, model } = show({ selected: "primal:0" });
  expect(find("uses")[0]!.textContent).toContain("1 use");
  find("uses")[0]!.querySelector("button")!.click();
  expect(model.values["selected"]).toBe("primal:1");
});

test("a role is dimmed, then hidden, then shown again, in every pane", () => {
  const { find } = show({ stage: "primal", beside: "backward" });
  const chips = () => find("role-cotangent").concat(find("role-accumulation"), find("role-primal"));
  const [chip] = chips();
  expect(chip).toBeDefined();
  const role = chip!.dataset["testid"]!.slice(5);
  const lines = () => find("code-right")[0]!.querySelectorAll(".cm-line[data-row]").length;
  const before = lines();
  chip!.click();
  expect(chip!.title).toContain(`${role} equation, dimmed`);
  expect(chip!.getAttribute("aria-label")).toMatch(`${role} 1, dimmed`);
  expect(find("code-right")[0]!.querySelectorAll(".cm-line.is-dimmed").length).toBeGreaterThan(0);
  chip!.click();
  expect(chip!.title).toContain("hidden");
  expect(lines()).toBeLessThan(before);
  expect(find("code-right")[0]!.querySelector(".jv-left-out")!.getAttribute("title")).toContain(
    "hidden by role",
  );
  chip!.click();
  expect(lines()).toBe(before);
});

test("V turns the hues of variables off and on", () => {
  const { find, key } = show();
  const hues = () => find("code-left")[0]!.querySelectorAll("[class*=jv-hue-].jv-variable").length;
  const before = hues();
  expect(before).toBeGreaterThan(4);
  key("v");
  expect(hues()).toBe(0);
  expect(find("colours-left")[0]!.getAttribute("aria-pressed")).toBe("false");
  find("colours-left")[0]!.click();
  expect(hues()).toBe(before);
});

test("all nested programs can be folded, each to a line with a summary", () => {
  const { find } = show();
  const [pane] = find("code-left");
  find("fold-left")[0]!.click();
  expect(pane!.querySelector(".jv-fold")!.textContent).toBe("▸ 1 equation · mul");
  press(pane!, "=");
  expect(pane!.querySelector(".jv-fold")).toBeNull();
});

test("the program and the selected equations are copied as JAX text, or shown in a sheet without a clipboard", async () => {
  const written: string[] = [];
  vi.stubGlobal("navigator", {
    userAgent: navigator.userAgent,
    platform: "",
    vendor: "",
    clipboard: { writeText: async (text: string) => void written.push(text) },
  });
  const { find } = show({ selected: "primal:0" });
  const [pane] = find("code-left");
  press(pane!, "c", { ctrlKey: true });
  find("copy-left")[0]!.click();
  await soon(() => expect(written).toHaveLength(2));
  expect(written[0]).toBe("b:f32[3] = sin a");
  expect(written[1]).toContain("{ lambda ; a:f32[3]. let");
  await soon(() =>
    expect(pane!.querySelector(".jv-told")!.textContent).toBe("copied 3 equations as JAX text"),
  );
  vi.stubGlobal("navigator", { userAgent: "", platform: "", vendor: "" });
  find("copy-left")[0]!.click();
  await soon(() => expect(find("copy-sheet")[0]!.textContent).toContain(written[1]));
  find("copy-sheet")[0]!.querySelector("button")!.click();
  expect(find("copy-sheet")).toHaveLength(0);
  vi.unstubAllGlobals();
  layOut(0, 0);
});

test("G toggles the current pane between graph and code", async () => {
  HTMLCanvasElement.prototype.getContext = (() => null) as never;
  await import("../src/host/parts/graph");
  const { find, key } = show();
  key("g");
  // The graph is loaded when it is first shown, which takes a moment in a test.
  // The graph is loaded when it is first shown, which takes a moment in a test.
  await vi.waitFor(() => expect(find("graph-left")).toHaveLength(1), 10_000);
  expect(find("code-left")).toHaveLength(0);
  find("as-code-left")[0]!.click();
  expect(find("code-left")).toHaveLength(1);
});

const codeIn = (state: State, root: HTMLElement) => (stage: number, side: Side) =>
  new CodePane(state, [stage], side, root);

test("inputs are described as soon as their descriptions are known, also in a listing that is open", () => {
  const inputs = ["a", "b", "c", "d", "e", "f"];
  const equations = [{ text: "y = concatenate a b c d e f" }];
  const m = programs({ primal: { inputs, equations, results: ["y"] } });
  const state = new State(m);
  state.isWhole = false;
  const root = document.createElement("div");
  document.body.append(root);
  const pane = followed(codeIn(state, root)(0, "left"));
  root.append(pane.element);
  const before = m.view;
  const lines = () => pane.element.querySelector(".cm-content")!.textContent;
  pane.element.querySelector<HTMLElement>("[data-testid=unfold-left]")!.click();
  expect(lines()).not.toContain("a residual");
  const strings = [...before.strings, "a residual"];
  const labels = before.columns["variable_label"].map((_, v) =>
    v === m.binders(0)[5] ? strings.length - 1 : 0,
  );
  m.complete({ ...before, strings, columns: { ...before.columns, variable_label: labels } });
  state.complete();
  expect(lines()).toContain("f:f32[4]  a residual");
  // Folded, it is hidden as before.
  pane.element.querySelector<HTMLElement>("[data-testid=fold-left]")!.click();
  expect(lines()).not.toContain("a residual");
  pane.destroy();
  root.remove();
});

test("the player opens at the selected equation, explains one step at a time, and closes", () => {
  const state = new State(SIN_COS());
  const root = document.createElement("div");
  document.body.append(root);
  const pane = followed(new PlayerPane(state, root, codeIn(state, root)));
  root.append(pane.element);
  const find = (id: string) => Array.from(root.querySelectorAll<HTMLElement>(`[data-testid="${id}"]`));
  const text = (id: string) => find(id)[0]!.textContent;
  const press = (key: string) =>
    pane.element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));

  expect(pane.element.hidden).toBe(true);
  state.selectRow(state.model.rowNamed("primal:2"));
  pane.toggle();
  expect([pane.element.hidden, root.classList.contains("is-playing")]).toEqual([false, true]);
  expect(text("step-count")).toBe("3 of 5");
  expect(text("rule-title")).toBe("jvp rule of cos");
  expect(find("rule-row")).toHaveLength(4);
  expect(text("step-said")).toBe("Step 3: cos: 1 equation for the value, 3 for the tangent.");
  expect(find("step-said")[0]!.getAttribute("aria-live")).toBe("polite");

  press("ArrowRight");
  expect(text("step-count")).toBe("4 of 5");
  press("Home");
  expect([text("step-count"), (find("step-back")[0] as HTMLButtonElement).disabled]).toEqual([
    "1 of 5",
    true,
  ]);
  press("End");
  expect([text("step-count"), (find("step-on")[0] as HTMLButtonElement).disabled]).toEqual(["5 of 5", true]);

  // Clicking an equation of either program goes to its step.
  state.selectRow(state.model.rowNamed("jvp:4"));
  expect(text("step-count")).toBe("2 of 5");

  find("play-linearize")[0]!.click();
  expect(find("rule-part").map((part) => part.dataset["stage"])).toEqual(["forward", "linear"]);
  expect(find("code-right")).toHaveLength(2);
  find("play-transpose")[0]!.click();
  find("only-adding")[0]!.click();
  press("Home");
  press(".");
  expect(text("step-count")).toBe("3 of 8");

  press("Escape");
  expect([pane.element.hidden, root.classList.contains("is-playing"), state.player]).toEqual([
    true,
    false,
    null,
  ]);
  expect(state.row).toBe(state.model.rowNamed("linear:5"));
  pane.destroy();
});

test("the player plays, stops at the end, and starts again", () => {
  vi.useFakeTimers();
  const state = new State(SIN_COS());
  const root = document.createElement("div");
  const pane = followed(new PlayerPane(state, root, codeIn(state, root)));
  root.append(pane.element);
  const button = root.querySelector<HTMLElement>('[data-testid="step-play"]')!;
  pane.toggle();
  button.click();
  expect(button.getAttribute("aria-pressed")).toBe("true");
  vi.advanceTimersByTime(60_000);
  expect([state.player!.step, button.getAttribute("aria-pressed")]).toEqual([4, "false"]);
  button.click();
  expect(state.player!.step).toBe(0);
  state.showStages([1]);
  vi.advanceTimersByTime(60_000);
  expect(state.player).toBeNull();
  pane.destroy();
  vi.useRealTimers();
});

test("if the programs do not arrive, there is a message with a retry button; they are shown when they arrive", () => {
  vi.useFakeTimers();
  const { find, model } = show({ payload: null });
  expect(find("loading")[0]!.textContent).toContain("Deriving");
  vi.advanceTimersByTime(19_000);
  expect(find("no-answer")).toHaveLength(0);
  vi.advanceTimersByTime(1_000);
  expect(find("no-answer")[0]!.textContent).toContain(NO_ANSWER);
  expect(find("loading")).toHaveLength(0);
  find("again")[0]!.click();
  expect(find("loading")).toHaveLength(1);
  expect(model.sent).toEqual(["fill", "fill"]);
  vi.advanceTimersByTime(20_000);
  expect(find("no-answer")).toHaveLength(1);
  model.set("payload", bytes());
  expect(find("no-answer")).toHaveLength(0);
  expect(find("code-left")).toHaveLength(1);
  vi.useRealTimers();
});

test("a running compilation is requested once for all panes, and followed while none is shown", async () => {
  const { find, model, stop } = show({ compiled: "" });
  find("stage-compiled")[0]!.click();
  await soon(() => expect(find("compiling")).toHaveLength(1));
  find("stage-primal")[0]!.click();
  expect(find("compiling")).toHaveLength(0);
  model.tell("msg:custom", { work: "compile", what: "parts", done: 1, total: 2 });
  find("stage-compiled")[0]!.click();
  find("beside-compiled")[0]!.click();
  await soon(() => expect(find("compiling")).toHaveLength(2));
  expect(find("elapsed").map((figures) => figures.textContent)).toEqual(Array(2).fill("0 s · 1 of 2 parts"));
  expect(model.sent.filter((message) => message === "compile")).toHaveLength(1);
  stop();
  expect(model.count()).toBe(0);
});

test.each([true, false])(
  "if the host knows whether there is a kernel (%s), it is shown immediately",
  async (comm_live) => {
    const code = { get: () => undefined, comm_live };
    const asked = vi.fn(async () => code);
    const model = { ...host({ payload: null, _code: "IPY_MODEL_7" }), widget_manager: { get_model: asked } };
    const el = document.createElement("div");
    document.body.append(el);
    const stop = explorer.render({ model, el });
    await new Promise((done) => setTimeout(done, 10));
    expect(asked).toHaveBeenCalledWith("7");
    expect(el.textContent!.includes(GONE)).toBe(!comm_live);
    stop();
  },
);

test("after a focused element disappears, the focus stays in the explorer", async () => {
  const layout = laidOut();
  const { find, stop } = show({ stage: "primal", beside: "backward" });
  const [root] = find("explorer");
  const close = find("code-right")[0]!.querySelector<HTMLElement>(".jv-close")!;
  close.focus();
  close.click();
  expect(find("code-right")).toHaveLength(0);
  await frame();
  expect(document.activeElement).toBe(root);
  await soon(() => expect(document.activeElement).toBe(root));
  // An element that the user has focused keeps the focus.
  const other = document.createElement("button");
  document.body.append(other);
  find("beside-backward")[0]!.click();
  other.focus();
  await frame();
  expect(document.activeElement).toBe(other);
  stop();
  layout.mockRestore();
});

test("R opens the player only if there is a transform to play", () => {
  const { find, key } = show();
  key("r");
  expect(find("player")).toHaveLength(0);
  expect(find("failed-player")).toHaveLength(0);
});

test("the player is over how it was derived only, also if it is loaded while the user turns to another question", async () => {
  const state = new State(SIN_COS());
  const root = document.createElement("div");
  const player = new Parts(root, host() as never, state).player(codeIn(state, root));
  root.append(player.element);
  state.arrange("derived");
  player.toggle();
  state.arrange("cost");
  await soon(() => expect(root.querySelector("[data-testid=player]")).not.toBeNull());
  expect(state.player).toBeNull();
  // The explorer starts it when the stages of that question are shown.
  player.toggle();
  expect([state.view, state.player]).toEqual(["derived", null]);
  player.start();
  expect(state.player).not.toBeNull();
  state.arrange("cost");
  expect(state.player).toBeNull();
  player.destroy?.();
});

test("steps that are read in slices are not shown over another question either", async () => {
  const state = new State(SIN_COS());
  const root = document.createElement("div");
  const pane = followed(new PlayerPane(state, root, codeIn(state, root)));
  const sized = state.model as { rows: number };
  const { rows } = sized;
  const start = () => {
    sized.rows = 4000; // a large program, until it begins to read
    pane.start();
    sized.rows = rows;
  };
  start();
  state.arrange("cost");
  await frame();
  expect(state.player).toBeNull();
  state.arrange("");
  start();
  await soon(() => expect(state.player).not.toBeNull());
  pane.destroy();
});

test("the comparison with JAX arrives last, and is shown in the top bar", async () => {
  const { model, find } = show({ payload: withHeader({ check: null }) });
  expect(find("badge")).toHaveLength(0);
  await new Promise((done) => setTimeout(done, 350));
  expect(model.sent).toContain("check");
  model.set("check", JSON.stringify({ status: "agrees", summary: "as in JAX: 4 of 4", differences: [] }));
  expect(find("badge")[0]!.textContent).toContain("as in JAX: 4 of 4");
});

test("after the overview of a larger function its switches are requested, before what takes longer", async () => {
  const stages = json.stages.map((stage, i) =>
    i === 0 ? { ...stage, key: "forward", equations: [0, 501] } : stage,
  );
  const { model } = show({ payload: withHeader({ stages, check: null }), question: "overview" });
  expect(model.sent).not.toContain("what if");
  await new Promise((done) => setTimeout(done, 350));
  expect(model.sent.filter((m) => typeof m === "string")).toEqual(["what if", "check", "advice"]);
});

test("what takes longer is not requested while the user waits for the switches", async () => {
  const { model, find } = show({ payload: withHeader({ check: null }), question: "overview" });
  find("view-what-if")[0]!.click();
  await new Promise((done) => setTimeout(done, 350));
  expect(model.sent.filter((m) => typeof m === "string")).toEqual(["what if"]);
  model.set("what_if", JSON.stringify({ error: "none" }));
  await new Promise((done) => setTimeout(done, 350));
  expect(model.sent).toContain("check");
});

test("the head's advice is requested whatever question the explorer opens with", async () => {
  const { model } = show({ question: "cost" });
  await new Promise((done) => setTimeout(done, 350));
  expect(model.sent).toContain("advice");
});

test("the switches of a very large function are requested when there is advice, so that they are saved", async () => {
  const stages = json.stages.map((stage, i) => (i === 0 ? { ...stage, equations: [0, 3001] } : stage));
  const { model } = show({ payload: withHeader({ stages }) });
  await new Promise((done) => setTimeout(done, 350));
  expect(model.sent).not.toContain("what if");
  model.set("advice", JSON.stringify({ sentence: "", setting: "", cards: [], error: "" }));
  expect(model.sent).toContain("what if");
});

test("an expression never wraps within a name", () => {
  const parts = breakable("jnp.mean(x**2, -1)").map((part) => (typeof part === "string" ? part : "|"));
  expect(parts.join("")).toBe("jnp.|mean(|x**2,| -1)");
  expect(h("code", ...breakable("a.b(c)")).textContent).toBe("a.b(c)");
});
