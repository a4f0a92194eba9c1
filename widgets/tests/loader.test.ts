// @vitest-environment jsdom
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type loader from "../src/host/loader";
import { host, zipped } from "./host";

const SHARED = Symbol.for("jaxviz");
const render = vi.fn(() => "clean up");
const initialize = vi.fn();
const moduleOf = vi.fn(async () => ({ default: { initialize, render } }));
vi.mock("../src/host/zip", () => ({ moduleOf }));

let module: typeof loader;

beforeEach(async () => {
  vi.useFakeTimers();
  vi.resetModules();
  delete (globalThis as Record<symbol, unknown>)[SHARED];
  module = (await import("../src/host/loader")).default;
});

afterEach(() => {
  vi.useRealTimers();
  vi.clearAllMocks();
});

const block = await zipped("export default 1");
const code = btoa(String.fromCharCode(...new Uint8Array(block.buffer)));

/** An explorer in a notebook whose widgets are available after some attempts. */
function explorer(build: string, from = 0) {
  let tries = 0;
  const get_model = vi.fn(async (id: string) => {
    if (tries++ < from || id !== "abc") throw new Error("widget model not found");
    return { get: (name: string) => (name === "code" ? code : "") };
  });
  return {
    get_model,
    model: { ...host({ _code: "IPY_MODEL_abc", _build: build }), widget_manager: { get_model } },
    el: document.createElement("div"),
  };
}

test("the explorers of a page share one module", async () => {
  const all = [explorer("a"), explorer("a"), explorer("b")];
  expect(await Promise.all(all.map((e) => module.render(e)))).toEqual(Array(3).fill("clean up"));
  expect(moduleOf).toHaveBeenCalledTimes(2);
  expect(moduleOf).toHaveBeenCalledWith(new Uint8Array(block.buffer));
  expect(render).toHaveBeenCalledTimes(3);
  expect(render).toHaveBeenCalledWith(all[0]);
});

test("another copy of the loader finds the modules of the first", async () => {
  await module.render(explorer("a"));
  vi.resetModules();
  await (await import("../src/host/loader")).default.render(explorer("a"));
  expect(moduleOf).toHaveBeenCalledTimes(1);
});

test("the code is awaited, and fetched before there is data", async () => {
  const late = explorer("a", 3);
  module.initialize(late);
  await vi.advanceTimersByTimeAsync(200);
  expect(moduleOf).toHaveBeenCalledTimes(1);
  expect(initialize).toHaveBeenCalledExactlyOnceWith(late.model);
  await module.render(late);
  expect(late.get_model).toHaveBeenCalledTimes(4);
});

test("if the host has displayed widgets only, the kernel is asked immediately", async () => {
  const model = host({ _code: "IPY_MODEL_abc", _build: "a" });
  const shown = module.render({ model, el: document.createElement("div") });
  await vi.advanceTimersByTimeAsync(0);
  expect(model.sent).toEqual([{ part: "explorer" }]);
  model.tell("msg:custom", { part: "explorer" }, [block]);
  expect(await shown).toBe("clean up");
  expect(moduleOf).toHaveBeenCalledWith(block);
});

test("if the code is missing, that is shown, and the next attempt looks again", async () => {
  const errors = vi.spyOn(console, "error").mockImplementation(() => {});
  const el = document.createElement("div");
  const shown = module.render({ model: host({ _code: "IPY_MODEL_abc", _build: "a" }), el });
  await vi.advanceTimersByTimeAsync(60_000);
  await shown;
  expect(el.textContent).toContain("Run the cell again");
  expect(render).not.toHaveBeenCalled();
  expect(errors).toHaveBeenCalledOnce();
  errors.mockRestore();
  expect(await module.render(explorer("a"))).toBe("clean up");
});
