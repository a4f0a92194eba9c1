// @vitest-environment jsdom
import { afterEach, expect, test, vi } from "vitest";
import { effect, onChange } from "../src/base/signals";
import { restOf, viewOf, whatIfOf } from "../src/host/sync";
import { PATIENCE } from "../src/host/work";
import { host } from "./host";

afterEach(() => {
  vi.useRealTimers();
});

/** A model whose host can interrupt the kernel, like JupyterLab. */
function interruptible(interrupt = vi.fn(async () => {})) {
  return { ...host({ what_if: "" }), widget_manager: { kernel: { interrupt } }, interrupt };
}

test("the kernel reports progress until the result arrives", () => {
  const model = host({ what_if: "" });
  const work = whatIfOf(model);
  const seen: string[] = [];
  const stop = onChange(
    () => work.progress,
    ({ state, done, total, what }) => seen.push(`${state} ${what} ${done}/${total}`),
  );
  model.tell("msg:custom", { work: "what if", done: 1, total: 2 });
  expect(work.progress.state).toBe("none");
  work.ask();
  expect(model.sent).toEqual(["what if"]);
  expect(work.progress.state).toBe("asked");
  model.tell("msg:custom", { work: "rest", done: 1, total: 2 });
  model.tell("msg:custom", { work: "what if" });
  model.tell("msg:custom", { work: "what if", what: "plans", done: 3, total: 9 });
  model.set("what_if", "{}");
  expect(seen).toEqual(["asked  0/0", "working  0/0", "working plans 3/9", "none  0/0"]);
  stop();
  expect(model.count()).toBe(0);
});

test("the kernel is interrupted only if it is known to be working on it", async () => {
  const model = interruptible();
  const work = whatIfOf(model);
  effect(() => void work.progress);
  work.ask();
  expect(work.canStop).toBe(false);
  work.cancel();
  expect(work.progress.state).toBe("left");
  work.ask();
  model.tell("msg:custom", { work: "what if" });
  expect(work.canStop).toBe(true);
  work.cancel();
  expect(model.interrupt).toHaveBeenCalledOnce();
  expect(work.progress.state).toBe("stopping");
  model.tell("msg:custom", { work: "what if", stopped: true });
  expect(work.progress.state).toBe("stopped");
});

test("background work is stopped by code, without interrupting a cell", () => {
  const model = interruptible();
  const requestExecute = vi.fn(() => ({ done: Promise.resolve() }));
  Object.assign(model.widget_manager.kernel, { requestExecute });
  const work = whatIfOf(model);
  effect(() => void work.progress);
  work.ask();
  model.tell("msg:custom", { work: "what if", stop: "stop('abc')" });
  expect(work.canStop).toBe(true);
  work.cancel();
  expect(requestExecute).toHaveBeenCalledWith({ code: "stop('abc')", silent: true, store_history: false });
  expect(model.interrupt).not.toHaveBeenCalled();
  expect(work.progress.state).toBe("stopping");
});

test("the code to stop it runs in its own subshell, so that it does not wait for a cell", async () => {
  const model = interruptible();
  const ran: unknown[] = [];
  const kernel = Object.assign(model.widget_manager.kernel, {
    supportsSubshells: true,
    subshellId: null as string | null,
    requestCreateSubshell: vi.fn(() => ({ done: Promise.resolve({ content: { subshell_id: "s1" } }) })),
    requestDeleteSubshell: vi.fn(() => ({ done: Promise.resolve() })),
    requestExecute({ code }: { code: string }) {
      ran.push([code, this.subshellId]);
      return { done: Promise.resolve() };
    },
  });
  const work = whatIfOf(model);
  effect(() => void work.progress);
  work.ask();
  model.tell("msg:custom", { work: "what if", stop: "stop('abc')" });
  work.cancel();
  await vi.waitFor(() => expect(kernel.requestDeleteSubshell).toHaveBeenCalledWith({ subshell_id: "s1" }));
  expect(ran).toEqual([["stop('abc')", "s1"]]);
  expect(kernel.subshellId).toBeNull();
  expect(model.interrupt).not.toHaveBeenCalled();
});

test("if an interrupt is refused, the page stops waiting", async () => {
  const model = interruptible(vi.fn(() => Promise.reject(new Error("no"))));
  const work = restOf(model);
  effect(() => void work.progress);
  work.ask();
  model.tell("msg:custom", { work: "rest" });
  work.cancel();
  await vi.waitFor(() => expect(work.progress.state).toBe("left"));
});

test("work is late unless the kernel reports it, and the programs are late after a longer time", () => {
  vi.useFakeTimers();
  const model = host({ what_if: "" });
  const [whatIf, view] = [whatIfOf(model), viewOf(model)];
  const stops = [whatIf, view].map((work) => effect(() => void work.progress));
  const states = () => [whatIf.progress.state, view.progress.state];
  whatIf.ask();
  view.ask();
  vi.advanceTimersByTime(PATIENCE - 1);
  expect(states()).toEqual(["asked", "asked"]);
  vi.advanceTimersByTime(1);
  expect(states()).toEqual(["late", "asked"]);
  model.tell("msg:custom", { work: "what if" });
  vi.advanceTimersByTime(60_000);
  expect(states()).toEqual(["working", "late"]);
  model.set("failure", "ValueError");
  expect(view.progress.state).toBe("none");
  for (const stop of stops) stop();
  expect(vi.getTimerCount()).toBe(0);
});

test("work in progress is not requested twice, and can be awaited again", () => {
  const model = host({ what_if: "" });
  const work = whatIfOf(model);
  effect(() => void work.progress);
  work.ask();
  work.ask();
  model.tell("msg:custom", { work: "what if", done: 1, total: 2 });
  work.cancel();
  expect(work.progress.state).toBe("left");
  work.ask();
  expect(work.progress).toMatchObject({ state: "working", done: 1, total: 2 });
  expect(model.sent).toEqual(["what if"]);
});

test("a kernel that dies while working is noticed, and so is one that reports again", async () => {
  vi.useFakeTimers();
  const model = interruptible();
  const work = whatIfOf(model);
  effect(() => void work.progress);
  work.ask();
  model.tell("msg:custom", { work: "what if" });
  Object.assign(model.widget_manager.kernel, { status: "dead" });
  await vi.advanceTimersByTimeAsync(1000);
  expect(work.progress.state).toBe("gone");
  expect(vi.getTimerCount()).toBe(0);
  Object.assign(model.widget_manager.kernel, { status: "busy" });
  work.ask();
  expect(model.sent).toEqual(["what if", "what if"]);
  model.tell("msg:custom", { work: "what if", stopped: true });
  // It was requested twice, so it runs twice.
  model.tell("msg:custom", { work: "what if" });
  expect(work.progress.state).toBe("working");
  expect(work.canStop).toBe(true);
});

test("what arrives while the pointer is down is shown once it is released, after the click", () => {
  vi.useFakeTimers();
  const model = host({ what_if: "" });
  const work = whatIfOf(model);
  const seen: string[] = [];
  const stop = onChange(
    () => work.progress,
    ({ state, done }) => seen.push(`${state} ${done}`),
  );
  work.ask();
  dispatchEvent(new Event("pointerdown"));
  model.tell("msg:custom", { work: "what if", what: "plans", done: 3, total: 9 });
  model.set("what_if", "{}");
  dispatchEvent(new Event("pointerup"));
  expect(seen).toEqual(["asked 0"]);
  vi.runAllTimers();
  expect(seen).toEqual(["asked 0", "working 3", "none 0"]);

  // A drag, or a release outside of the page, does not hold it up for long.
  model.set("what_if", "");
  work.ask();
  dispatchEvent(new Event("pointerdown"));
  model.set("what_if", "{}");
  expect(seen.at(-1)).toBe("asked 0");
  vi.advanceTimersByTime(3000);
  expect(seen.at(-1)).toBe("none 0");
  stop();
});
