import { expect, test, vi } from "vitest";
import { restOf, whatIfOf } from "../src/sync";
import { host } from "./host";

/** A model whose host can interrupt the kernel, as JupyterLab's can. */
function interruptible(interrupt = vi.fn(async () => {})) {
  return { ...host({ what_if: "" }), widget_manager: { kernel: { interrupt } }, interrupt };
}

test("the kernel says how far it is, until the work is there", () => {
  const model = host({ what_if: "" });
  const work = whatIfOf(model);
  const seen: string[] = [];
  const stop = work.listen(() => {
    const { state, done, total, what } = work.progress;
    seen.push(`${state} ${what} ${done}/${total}`);
  });
  model.tell("msg:custom", { work: "what if", done: 1, total: 2 });
  expect(work.progress.state).toBe("none");
  work.ask();
  expect(model.sent).toEqual(["what if"]);
  expect(work.progress.state).toBe("asked");
  model.tell("msg:custom", { work: "rest", done: 1, total: 2 });
  model.tell("msg:custom", { work: "what if" });
  model.tell("msg:custom", { work: "what if", what: "plans", done: 3, total: 9 });
  model.set("what_if", "{}");
  expect(seen).toEqual(["working  0/0", "working plans 3/9", "none  0/0"]);
  stop();
  expect(model.count()).toBe(0);
});

test("only what the kernel is known to be at is interrupted", async () => {
  const model = interruptible();
  const work = whatIfOf(model);
  work.listen(() => {});
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

test("where an interrupt is refused, it is not waited for", async () => {
  const model = interruptible(vi.fn(() => Promise.reject(new Error("no"))));
  const work = restOf(model);
  work.listen(() => {});
  work.ask();
  model.tell("msg:custom", { work: "rest" });
  work.cancel();
  await vi.waitFor(() => expect(work.progress.state).toBe("left"));
});
