// @vitest-environment jsdom
import { beforeEach, expect, test, vi } from "vitest";
import live, { described, label, range, ticks } from "../src/main/live";
import type { LiveLine, Shown } from "../src/wire/live.generated";
import { host, signal } from "./host";

const line = (name: string, y: (number | null)[], kind: LiveLine["kind"] = "value"): LiveLine => ({
  name,
  kind,
  drawn: "norm",
  x: y.map((_, i) => i),
  y,
  count: y.length,
  last: `${y.at(-1)} at step ${y.length - 1}`,
});
const shown = (lines: LiveLine[], isRunning = true): string =>
  JSON.stringify({ lines, more: 0, note: "12 reports.", isRunning } satisfies Shown);

beforeEach(() => {
  vi.stubGlobal(
    "ResizeObserver",
    class {
      observe() {}
      disconnect() {}
    },
  );
  HTMLCanvasElement.prototype.getContext = (() => null) as never;
});

test("ticks are round and within the range", () => {
  expect(ticks(0, 10, 4)).toEqual([0, 5, 10]);
  expect(ticks(0.13, 0.31, 4)).toEqual([0.15, 0.2, 0.25, 0.3].map((v) => expect.closeTo(v)));
  expect(ticks(3, 3, 4)).toEqual([3]);
  expect(ticks(-7, 22, 3)).toEqual([0, 10, 20]);
});

test("labels are short", () => {
  expect([0, 12, 0.25, 1e-7, 3.4e8, 0.30000000000000004].map(label)).toEqual([
    "0",
    "12",
    "0.25",
    "1e-7",
    "3.4e+8",
    "0.3",
  ]);
});

test("the range has a margin, and covers only what can be drawn", () => {
  expect(range([line("a", [1, null, 3]), line("b", [2])], false)).toEqual([0.9, 3.1]);
  expect(range([line("a", [-1, 0.1, 10])], true)).toEqual([0.1, 10]);
  expect(range([line("a", [5, 5])], false)).toEqual([4.5, 5.5]);
  expect(range([line("a", [null])], false)).toBeNull();
});

test("the last values are described for screen readers", () => {
  expect(described([line("loss", [3, 2]), line("h", [1])], "values")).toBe(
    "values: loss 2 at step 1, h 1 at step 0",
  );
});

test("new data is shown, and closing cleans up", () => {
  const model = host({ shown: shown([]) });
  const el = document.createElement("div");
  document.body.append(el);
  const stop = live.render({ model: model as never, el });
  const find = (id: string) => el.querySelector<HTMLElement>(`[data-testid=${id}]`)!;
  expect(find("live-status").textContent).toBe("nothing recorded yet");
  model.set("shown", shown([line("loss", [3, 2]), line("h", [1, 1, 1], "cotangent")]));
  expect(find("live-status").textContent).toBe("watching");
  expect(Array.from(find("live-legend").children, (li) => li.textContent)).toEqual([
    "loss: norm 2 at step 1",
    "h, cotangent: norm 1 at step 2",
  ]);
  const canvases = [...el.querySelectorAll("canvas")];
  expect(canvases.map((c) => c.dataset.points)).toEqual(["2", "3"]);
  expect(canvases[0]!.getAttribute("aria-label")).toBe("values: loss 2 at step 1");
  model.set("shown", shown([line("<b>x</b>", [1])], false));
  expect(find("live-status").textContent).toBe("over");
  expect(el.querySelector("b")).toBeNull();
  stop();
  expect(model.count()).toBe(0);
});

test("a watch whose kernel ends is no longer said to go on", async () => {
  const kernel = { status: "busy", statusChanged: signal<string>(), disposed: signal<void>() };
  const model = { ...host({ shown: shown([line("loss", [3, 2])]) }), widget_manager: { kernel } };
  const el = document.createElement("div");
  const stop = live.render({ model: model as never, el });
  const said = () => el.querySelector("[data-testid=live-status]")!.textContent;
  await new Promise((done) => setTimeout(done));
  expect(said()).toBe("watching");
  kernel.statusChanged.emit("autorestarting");
  await vi.waitFor(() => expect(said()).toBe("the kernel has shut down or restarted"));
  expect(el.querySelectorAll("li").length).toBe(1);
  kernel.statusChanged.emit("idle");
  model.set("shown", shown([line("loss", [3, 2])], false));
  expect(said()).toBe("over");
  stop();
  expect(model.count() + kernel.statusChanged.slots.size + kernel.disposed.slots.size).toBe(0);
});
