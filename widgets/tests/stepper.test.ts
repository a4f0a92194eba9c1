// @vitest-environment jsdom
import { beforeEach, expect, test, vi } from "vitest";
import fixture from "../../tests/fixtures/stepper.json";
import { onChange } from "../src/base/signals";
import { turn } from "../src/base/slices";
import main from "../src/main/index";
import { GONE, SAVED, Session } from "../src/stepper/session";
import { described, histogram, number } from "../src/stepper/values";
import { StepperState } from "../src/stepper/view";
import type { Programs, StepperStop } from "../src/wire/stepper.generated";
import { host, signal, zipped } from "./host";
import { layOut, standIn } from "./layout";

const programs = fixture.programs as unknown as Programs;
const stops = fixture.stops as unknown as Record<
  "start" | "at the scan" | "in the scan" | "in the branch" | "end",
  StepperStop
>;
const copy = <T>(value: T): T => JSON.parse(JSON.stringify(value)) as T;

// Node cannot import blobs.
// Tests of another file, which share their modules with these, may have loaded the real one.
vi.hoisted(() => vi.resetModules());
vi.mock("../src/host/parts", () => ({
  loadPart: (_: unknown, name: string) => import(`../src/host/parts/${name}.ts`),
}));

beforeEach(() => {
  layOut(0, 0);
  standIn();
  document.body.replaceChildren();
});

async function shown(
  stop: StepperStop = stops.start,
  more: Record<string, unknown> = {},
  made: Programs = programs,
) {
  const model = host({
    payload: await zipped(JSON.stringify(made)),
    stop: JSON.stringify(stop),
    failure: "",
    height: 500,
    _shows: "stepper",
    ...more,
  });
  const el = document.createElement("div");
  document.body.append(el);
  const end = main.render({ model, el }) as () => void;
  await vi.waitFor(() => expect(el.querySelector(".jv-message, .jv-step-head")).not.toBeNull(), 20_000);
  const find = (id: string) => el.querySelector<HTMLElement>(`[data-testid=${id}]`)!;
  const all = (id: string) => [...el.querySelectorAll<HTMLElement>(`[data-testid=${id}]`)];
  const press = (key: string, on: Element = find("stepper"), more: KeyboardEventInit = {}) =>
    on.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more }));
  const stopAt = (next: StepperStop) => {
    model.tell("msg:custom", { begun: "next" });
    model.set("stop", JSON.stringify(next));
    model.tell("msg:custom", { done: "next" });
  };
  await Promise.resolve();
  return { model, el, end, find, all, press, stopAt };
}

const marks = (all: (id: string) => HTMLElement[]) => all("equation").map((e) => e.dataset["progress"]);

// --- the state ---

test("the running program is found by its path", () => {
  const state = new StepperState(programs, stops["in the branch"]);
  expect(state.levels.map(({ row, body }) => [row.p, body])).toEqual([
    ["scan", "jaxpr"],
    ["cond", "branches[1]"],
  ]);
  expect(state.isHere).toBe(true);
  state.show({ stage: "forward", way: [] });
  expect(state.program.rows[state.position]!.p).toBe("scan");
  expect(state.isHere).toBe(false);
});

test("what has run, what runs next and what is still to run", () => {
  const state = new StepperState(programs, stops["in the scan"]);
  expect([0, 1, 2].map((i) => state.progress(i))).toEqual(["ran", "next", "ahead"]);
  state.show({ stage: "forward", way: [] });
  expect(state.progress(state.position)).toBe("next");
  state.show({ stage: "backward", way: [] });
  expect(state.progress(0)).toBe("ahead");
  const over = new StepperState(programs, stops.end);
  over.show({ stage: "forward", way: [] });
  expect(over.progress(0)).toBe("done");
});

test("a cotangent has the hue of its value", () => {
  const state = new StepperState(programs, stops.end);
  const binders = programs.programs
    .filter((p) => p.stage === "backward")
    .flatMap((p) => p.rows.flatMap((r) => r.o));
  const cotangents = binders.filter(([, , of]) => of && !of.includes(","));
  expect(cotangents.length).toBeGreaterThan(2);
  for (const [name, , of] of cotangents) expect(state.hue("backward", name)).toBe(state.hue("forward", of!));
});

test("a stop at the same position does not change the view", () => {
  const state = new StepperState(programs, stops["in the scan"]);
  state.show({ stage: "forward", way: [] });
  state.arrive(copy(stops["in the scan"]));
  expect(state.isHere).toBe(false);
  state.arrive(stops["in the branch"]);
  expect(state.isHere).toBe(true);
});

// --- display ---

test("a line shows the norms of its results, and where a NaN first occurred", async () => {
  const { find, all, stopAt } = await shown(stops.start);
  const source = () => find("step-source");
  const cells = () =>
    all("step-source-line").map((line) =>
      [...line.querySelectorAll(".jv-amount")].map((cell) => cell.textContent),
    );
  expect(cells().flat().join("")).toBe("");
  expect(source().classList.contains("has-norms")).toBe(false);
  const end = copy(stops.end);
  const [file, line] = end.lines[0]!;
  stopAt(end);
  const lineOf = () => all("step-source-line").find((each) => each.dataset["line"] === String(line))!;
  expect([file, [...lineOf().querySelectorAll(".jv-amount")].map((cell) => cell.textContent)]).toEqual([
    0,
    ["1.642", "1.721"],
  ]);
  expect(lineOf().title).toBe("norm of d 1.642; norm of the cotangent of d 1.721");
  expect([...source().classList]).toEqual(expect.arrayContaining(["has-norms", "has-cotangents"]));
  const born = () => all("born").filter((mark) => !mark.hidden);
  expect(born()).toEqual([]);
  end.lines[0]!.splice(4, 5, "NaN", "d", null, "Inf", "both");
  stopAt(end);
  expect(born().map((mark) => mark.textContent)).toEqual(["NaN born forward and backward"]);
  expect(lineOf().contains(born()[0]!)).toBe(true);
  expect([...lineOf().querySelectorAll(".jv-amount.is-bad")].map((cell) => cell.textContent)).toEqual([
    "NaN",
    "Inf",
  ]);
  stopAt(stops.start);
  expect([cells().flat().join(""), lineOf().title, born().length]).toEqual(["", "", 0]);
});

test("source, jaxpr and value are side by side, with the current line and equation marked", async () => {
  const { all, find, end } = await shown(stops["in the scan"]);
  expect(find("crumbs").textContent).toContain("scan");
  expect(marks(all)).toContain("next");
  expect(find("equations").querySelector("[aria-current=step]")!.textContent).toMatch(/= /);
  expect(find("step-source").querySelector("[aria-current=step]")!.textContent).toContain("h * x");
  expect(find("results").textContent).toContain("bool[]");
  expect((find("iteration") as HTMLInputElement).value).toBe("1");
  expect(find("crumbs").textContent).toContain("of 3");
  expect(find("step-said").textContent).toContain("iteration 1 of 3");
  expect(all("breakpoint")).toHaveLength(2);
  expect(find("equations").querySelectorAll(".jv-break-place.is-set")).toHaveLength(1);
  end();
});

test("a cond shows which branch is taken", async () => {
  const { find } = await shown(stops["in the branch"]);
  find("crumbs").querySelectorAll<HTMLButtonElement>(".jv-crumb")[1]!.click();
  const taken = [...find("equations").querySelectorAll(".jv-peek.is-taken")].map((e) => e.textContent);
  expect(taken).toEqual(["branch 1"]);
  find("to-stop").click();
  expect(find("crumbs").textContent).toContain("cond branch 1");
});

test("the cotangent is shown next to the inspected value once the backward pass has computed it", async () => {
  const { find } = await shown(stops.end);
  const other = find("looked").querySelector("[data-testid=other-value]")!;
  expect(other.textContent).toMatch(/^cotangent/);
  expect(find("step-status").textContent).toContain("The run has ended");
});

test("text from programs is inserted as text", async () => {
  const stop = copy(stops.start);
  stop.notes = ["<b>note</b>"];
  stop.results[0]!.name = "<img>";
  const made = copy(programs);
  made.title = "<i>f</i>";
  made.files[0]!.excerpts[0]!.lines[0] = "<b>x</b>";
  const { el } = await shown(stop, {}, made);
  expect(el.querySelector("b, i, .jv-value-name img")).toBeNull();
  expect(el.textContent).toContain("<b>note</b>");
});

test("only the visible lines of a long program are rendered", async () => {
  const made = copy(programs);
  const first = made.programs[made.stages[0]!.program]!;
  first.rows = Array.from({ length: 10_000 }, (_, i) => ({
    o: [["a", "f32[]", "", ""]],
    p: `sin${i}`,
    i: ["a"],
  }));
  const { all, stopAt, find } = await shown(stops.start, {}, made);
  expect(all("equation").length).toBeLessThan(80);
  stopAt({ ...copy(stops.start), index: 5000 });
  expect(all("equation").length).toBeLessThan(80);
  expect(find("equations").querySelector<HTMLElement>("[aria-current]")!.dataset["index"]).toBe("5000");
});

test("an equation for which devices exchange values is marked, with what is exchanged", async () => {
  const made = copy(programs);
  made.programs[made.stages[0]!.program]!.rows[0]!.x = ["all-reduce over `data`"];
  const { el } = await shown(stops.start, {}, made);
  const marked = [...el.querySelectorAll<HTMLElement>(".jv-exchanges")];
  expect(marked.map((m) => m.title)).toEqual(["all-reduce over `data`"]);
});

// --- requests ---

test("displaying it sends no requests", async () => {
  const { model, end } = await shown(stops["in the scan"]);
  expect(model.sent).toEqual([]);
  end();
  expect(model.count()).toBe(0);
});

test.each([
  ["n", "next"],
  ["i", "into"],
  ["o", "out"],
  ["b", "back"],
  ["B", "back into"],
  ["c", "continue"],
  ["r", "restart"],
  ["e", "end"],
])("%s is %s, and no key of JupyterLab's", async (key, move) => {
  const { model, press, el } = await shown(stops["in the scan"]);
  const heard = vi.fn();
  el.addEventListener("keydown", heard);
  press(key);
  expect(model.sent).toEqual([{ do: move }]);
  expect(heard).not.toHaveBeenCalled();
});

test("keys typed into a field are not moves", async () => {
  const { model, press, find } = await shown();
  press("n", find("look-name"));
  (find("look-name") as HTMLInputElement).value = " h[2] ";
  press("Enter", find("look-name"));
  expect(model.sent).toEqual([{ do: "look", stage: "forward", name: "h[2]" }]);
});

test("at either end, no request is sent", async () => {
  const { model, press, find } = await shown();
  press("b");
  expect(model.sent).toEqual([]);
  expect(find("move-back").getAttribute("aria-disabled")).toBe("true");
  const end = await shown(stops.end);
  end.find("move-next").click();
  expect(end.model.sent).toEqual([]);
  end.find("move-back").click();
  expect(end.model.sent).toEqual([{ do: "back" }]);
});

test("moves do not pile up while the kernel is busy", async () => {
  const { model, press, stopAt } = await shown();
  for (let i = 0; i < 5; i++) press("n");
  expect(model.sent).toHaveLength(2);
  press("n", undefined, { repeat: true });
  stopAt(stops["at the scan"]);
  press("n", undefined, { repeat: true });
  expect(model.sent).toHaveLength(2);
  press("n");
  expect(model.sent).toHaveLength(3);
});

test("breakpoints are set and removed in the gutters", async () => {
  const { model, find, all, stopAt } = await shown(stops["in the scan"]);
  find("line-gutter").click();
  const line = find("line-gutter").closest<HTMLElement>("[data-line]")!;
  expect(model.sent).toEqual([{ do: "break", file: 0, line: Number(line.dataset["line"]) }]);
  model.sent.length = 0;
  stopAt(stops["in the scan"]);
  const set = find("equations").querySelector<HTMLElement>(".jv-break-place.is-set")!;
  set.click();
  expect(model.sent).toEqual([{ do: "unbreak", number: 1 }]);
  model.sent.length = 0;
  stopAt(stops["in the scan"]);
  all("equation")[0]!.querySelector<HTMLElement>("[data-act=break]")!.click();
  expect(model.sent).toEqual([
    { do: "break", stage: "forward", path: [[stops["in the scan"].path[0]!.index, "jaxpr"]], index: 0 },
  ]);
});

test.each([
  ["primitive", " tanh ", { primitive: "tanh" }],
  ["when", "max > 1", { when: "max > 1" }],
  ["line", "41", { line: "41" }],
  ["non_finite", "", { non_finite: true }],
])("a breakpoint of the kind %s is added", async (kind, text, condition) => {
  const { model, find } = await shown();
  (find("break-kind") as HTMLSelectElement).value = kind;
  find("break-kind").dispatchEvent(new Event("change"));
  (find("break-text") as HTMLInputElement).value = text;
  find("break-add").click();
  expect(model.sent).toEqual([{ do: "break", ...condition }]);
});

test("one can go to an iteration, of the next loop and of the current one", async () => {
  const ahead = await shown(stops["at the scan"]);
  (ahead.find("iteration") as HTMLInputElement).value = "2";
  ahead.find("go-iteration").click();
  expect(ahead.model.sent).toEqual([{ do: "to", iteration: 2 }]);
  const inside = await shown(stops["in the branch"]);
  const slider = inside.find("iteration-slider") as HTMLInputElement;
  slider.value = "0";
  slider.dispatchEvent(new Event("change"));
  expect(inside.model.sent).toEqual([{ do: "to", iteration: 0 }]);
});

test("in the jaxpr, arrow keys select, Enter runs to the equation, and the right arrow shows its nested program", async () => {
  const { model, find, press } = await shown(stops["at the scan"]);
  const list = find("equations");
  press("ArrowDown", list);
  expect(list.querySelector(".is-selected")!.textContent).toContain("scan");
  expect(find("step-said").textContent).toContain("= scan");
  press("ArrowRight", list);
  expect(find("crumbs").textContent).toContain("scan");
  expect(model.sent).toEqual([]);
  for (const key of ["ArrowDown", "ArrowDown", "Enter"]) press(key, find("equations"));
  const [asked] = model.sent as { do: string; path: unknown[]; index: number }[];
  expect(asked).toMatchObject({ do: "goto", stage: "forward", index: 1 });
  expect(asked!.path).toEqual([[stops["at the scan"].index, "jaxpr", 0]]);
  press("Escape", find("equations"));
  expect(find("crumbs").textContent).not.toContain("to the stop");
});

test("a double click on an equation runs to it, and a click on a variable inspects it", async () => {
  const { model, all, find } = await shown(stops["at the scan"]);
  all("equation")[1]!
    .querySelector(".jv-primitive")!
    .dispatchEvent(new MouseEvent("dblclick", { bubbles: true, detail: 2 }));
  expect(model.sent).toEqual([{ do: "goto", stage: "forward", path: [], index: 1 }]);
  find("equations").querySelector<HTMLElement>(".jv-variable")!.click();
  expect(model.sent[1]).toMatchObject({ do: "look", stage: "forward" });
});

// --- the kernel ---

test("an error is shown, and cleared by the next move", async () => {
  const { model, find } = await shown();
  expect(find("step-failure").hidden).toBe(true);
  model.set("failure", JSON.stringify({ kind: "AttributeError", message: "while running\n<b>" }));
  expect(find("step-failure").textContent).toBe("AttributeError. while running\n<b>");
  model.set("failure", "");
  expect(find("step-failure").hidden).toBe(true);
});

test("the timeline alone marks where a NaN first occurred, and goes there", async () => {
  const stage = programs.stages[0]!;
  const mark = JSON.stringify({
    stage: stage.name,
    index: 1,
    text: "NaN born at model.py:4, in the forward pass",
  });
  const { model, find, all } = await shown(stops.start, { mark, folded: true });
  expect(find("stepper").classList.contains("is-folded")).toBe(true);
  expect(find("marked").textContent).toContain("NaN born at model.py:4");
  const total = programs.stages.reduce(
    (n, { program }) => n + programs.programs[program]!.rows.length + 1,
    -1,
  );
  expect(Number(find("mark").style.getPropertyValue("--at"))).toBeCloseTo(2 / total);
  find("step-there").click();
  expect(model.sent).toEqual([{ do: "there" }]);
  model.set("folded", false);
  expect(find("stepper").classList.contains("is-folded")).toBe(false);
  expect(all("mark")).toHaveLength(1);
  const plain = await shown();
  expect([plain.find("mark"), plain.find("marked").hidden]).toEqual([null, true]);
});

test("a mistake in a field is shown next to it, and the text is kept", async () => {
  const { model, find } = await shown();
  const name = find("look-name") as HTMLInputElement;
  name.value = "zz";
  name.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
  expect(name.value).toBe("");
  for (const [does, id] of [
    ["look", "look-failure"],
    ["break", "break-failure"],
    ["to", "iteration-failure"],
  ] as const) {
    model.set("failure", JSON.stringify({ do: does, kind: "", message: "no such thing" }));
    expect([find(id).textContent, find(id).hidden]).toEqual(["no such thing", false]);
    expect(find("step-failure").hidden).toBe(true);
  }
  expect(name.value).toBe("zz");
  model.set("failure", JSON.stringify({ do: "to", kind: "ValueError", message: "in a callback" }));
  expect(find("step-failure").textContent).toBe("ValueError. in a callback");
  model.set("failure", "");
  for (const id of ["look-failure", "break-failure", "iteration-failure", "step-failure"])
    expect(find(id).hidden).toBe(true);
});

test("work that takes longer than a second shows its time", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval", "performance"] });
  try {
    const { model, find, press } = await shown();
    expect(vi.getTimerCount()).toBe(0);
    press("n");
    vi.advanceTimersByTime(900);
    expect(find("busy").textContent).toBe("");
    vi.advanceTimersByTime(1300);
    expect(find("busy").textContent).toBe("waiting for the kernel · 2 s");
    expect(find("stepper").getAttribute("aria-busy")).toBe("true");
    model.tell("msg:custom", { begun: "next" });
    vi.advanceTimersByTime(3000);
    expect(find("busy").textContent).toBe("running · 5 s");
    model.tell("msg:custom", { done: "next" });
    expect(vi.getTimerCount()).toBe(0);
    expect(find("busy").textContent).toBe("");
    expect(find("stepper").getAttribute("aria-busy")).toBe("false");
  } finally {
    vi.useRealTimers();
  }
});

test("a saved page is readable, says so, and sends no requests", async () => {
  const { model, find, press, all } = await shown(stops["in the scan"], { is_saved: true });
  await new Promise((done) => setTimeout(done));
  expect(find("step-notice").textContent).toContain(SAVED);
  press("n");
  find("move-next").click();
  find("line-gutter").click();
  expect(model.sent).toEqual([]);
  expect(find("move-next").getAttribute("aria-disabled")).toBe("true");
  expect((find("iteration") as HTMLInputElement).disabled).toBe(true);
  expect(find("break-add").closest<HTMLElement>(".jv-breaks-form")!.hidden).toBe(true);
  expect(all("value-card").length).toBeGreaterThan(0);
  find("step-stage-backward").click();
  expect(find("crumbs").textContent).toContain("backward");
});

test("when the kernel is gone, the last stop stays, with the reason why nothing runs", async () => {
  const manager = { kernel: { status: "idle" }, get_model: async () => ({ comm_live: false }) };
  const { find, all, model } = await shown(stops["in the scan"], { _code: "x" });
  (model as never as { widget_manager: unknown }).widget_manager = manager;
  model.tell("change:is_saved");
  await new Promise((done) => setTimeout(done));
  expect(find("step-notice").textContent).toContain(GONE);
  expect(all("equation").length).toBeGreaterThan(0);
});

function sessionOf(code = { comm_live: true }) {
  const kernel = { status: "idle", statusChanged: signal<string>(), disposed: signal<void>() };
  const model = { ...host({ _code: "x" }), widget_manager: { kernel, get_model: async () => code } };
  const session = new Session(model as never, () => {});
  const heard = vi.fn();
  onChange(() => [session.off, session.since], heard);
  return { kernel, model, session, heard, code };
}

test.each([
  [
    "is restarted",
    (kernel: ReturnType<typeof sessionOf>["kernel"]) => kernel.statusChanged.emit("restarting"),
  ],
  ["is restarted by the server", ({ statusChanged }) => statusChanged.emit("autorestarting")],
  ["dies", ({ statusChanged }) => statusChanged.emit("dead")],
  ["is shut down", ({ disposed }) => disposed.emit()],
] as [string, (kernel: ReturnType<typeof sessionOf>["kernel"]) => void][])(
  "a kernel that %s is heard of, and another that comes does not bring the run back",
  async (_, end) => {
    const { kernel, session, heard } = sessionOf();
    await turn();
    kernel.statusChanged.emit("busy");
    await turn();
    await turn();
    expect([session.off, heard.mock.calls.length]).toEqual(["", 0]);
    end(kernel);
    await vi.waitFor(() => expect(session.off).toBe(GONE));
    kernel.statusChanged.emit("idle");
    await turn();
    await turn();
    expect(session.off).toBe(GONE);
    expect(heard).toHaveBeenCalledOnce();
    expect(session.ask("next")).toBe(false);
  },
);

test("ipywidgets notifies a widget that its kernel is gone, and that it is back", async () => {
  const { model, session, code } = sessionOf();
  code.comm_live = false;
  model.tell("comm_live_update");
  await vi.waitFor(() => expect(session.off).toBe(GONE));
  code.comm_live = true;
  model.tell("comm_live_update");
  await vi.waitFor(() => expect(session.off).toBe(""));
});

test("nothing polls, and no listeners are left when the stepper is closed", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "setTimeout"] });
  try {
    const { kernel, model, session } = sessionOf();
    await turn();
    expect(vi.getTimerCount()).toBe(0);
    session.destroy();
    expect(model.count()).toBe(0);
    expect(kernel.statusChanged.slots.size + kernel.disposed.slots.size).toBe(0);
  } finally {
    vi.useRealTimers();
  }
});

// --- numbers ---

test("numbers are short", () => {
  expect([0, 12, 12345, 0.25, 1e-7, 3.4e8, 0.123456, -1.5e-5, null].map(number)).toEqual([
    "0",
    "12",
    "12,345",
    "0.25",
    "1e-7",
    "3.4e8",
    "0.1235",
    "-1.5e-5",
    "–",
  ]);
});

test("non-finite values are counted in floats, and zeros in any array", async () => {
  const told = (more: object) => ({
    ...copy(stops["in the scan"].results[0]!.value!),
    text: "",
    histogram: [],
    ...more,
  });
  const stop = copy(stops["in the scan"]);
  stop.operands = [];
  const counts = async (more: object) => {
    stop.results = [{ name: "a", stage: "forward", value: told(more) as never }];
    const { all } = await shown(stop);
    return all("told")[0]!.querySelector(".jv-counts")?.textContent ?? "";
  };
  expect(await counts({ type: "f32[3]", size: 3, nan: 1 })).toBe("NaN1Inf0−Inf0zeros0subnormal0");
  expect(await counts({ type: "bf16[3]", size: 3 })).toContain("subnormal0");
  expect(await counts({ type: "i32[3]", size: 3, zeros: 2 })).toBe("zeros2");
  expect(await counts({ type: "f32[]", size: 1 })).toBe("");
  expect(await counts({ type: "f32[]", size: 1, nan: 1, min: null })).toBe("NaN1");
});

test("a histogram shows every bar that is not empty, and zero", () => {
  const told = stops["in the scan"].results[0]!.value!;
  expect(histogram({ ...told, size: 1 })).toBeNull();
  const drawn = histogram({ ...told, size: 101, histogram: [100, 0, 1], edges: [-1, 3] })!;
  const bars = [...drawn.querySelectorAll("rect")];
  expect(bars).toHaveLength(2);
  expect(Number(bars[1]!.getAttribute("height"))).toBeGreaterThan(1);
  expect(Number(drawn.querySelector("line")!.getAttribute("x1"))).toBeCloseTo(9 / 4);
  // An infinite edge is sent as null.
  expect(
    histogram({ ...told, size: 3, histogram: [1, 2], edges: [-1, null] })!.querySelector("line"),
  ).toBeNull();
});

test("a value is described in words", () => {
  const told = stops["in the scan"].results[0]!.value!;
  expect(described({ ...told, type: "f32[3]", size: 3, min: 1, max: 2, mean: 1.5, nan: 1, pos_inf: 2 })).toBe(
    "f32[3], 1 to 2, mean 1.5, 1 NaN, 2 Inf",
  );
  expect(described({ ...told, type: "key<fry>[]", note: "random key" })).toBe("key<fry>[] random key");
});
