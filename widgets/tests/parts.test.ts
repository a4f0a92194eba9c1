import { expect, test, vi } from "vitest";
import { loadPart } from "../src/host/parts";
import { isZipped, unzipped } from "../src/host/zip";
import { zipped as block, host } from "./host";

/** Node cannot import blobs: here, loading a part returns its text. */
const read = async (b: DataView | Uint8Array<ArrayBuffer>) => new TextDecoder().decode(await unzipped(b));

test("a part is requested once", async () => {
  const model = host({});
  const both = [loadPart(model, "one", 10_000, read), loadPart(model, "one", 100, read)];
  await vi.waitFor(() => expect(model.sent).toEqual([{ part: "one" }]));
  model.tell("msg:custom", { part: "another" }, [await block("wrong")]);
  model.tell("msg:custom", { part: "one" }, [await block("right")]);
  expect(await Promise.all(both)).toEqual(["right", "right"]);
  expect(await loadPart(host({}), "one", 10_000, read)).toBe("right");
  expect(model.count()).toBe(0);
});

test("a part in the widget with the code is not requested", async () => {
  const base64 = btoa(String.fromCharCode(...new Uint8Array((await block("held")).buffer)));
  const code = { get: (trait: string) => (trait === "parts" ? { small: base64 } : "") };
  const get_model = async (id: string) => (id === "abc" ? code : undefined);
  const model = { ...host({ _code: "IPY_MODEL_abc" }), widget_manager: { get_model } };
  expect(await loadPart(model, "small", 10_000, read)).toBe("held");
  expect(model.sent).toEqual([]);
});

test("a missing part is reported, and requested again", async () => {
  const model = host({});
  const part = loadPart(model, "two", 10_000, read);
  await vi.waitFor(() => expect(model.sent).toHaveLength(1));
  model.tell("msg:custom", { part: "two", error: "the explorer has no part 'two'" });
  await expect(part).rejects.toThrow("the explorer has no part 'two'");
  const again = loadPart(model, "two", 10_000, read);
  await vi.waitFor(() => expect(model.sent).toHaveLength(2));
  model.tell("msg:custom", { part: "two" }, [await block("there now")]);
  expect(await again).toBe("there now");
});

test("if no kernel answers, the caller does without", async () => {
  vi.useFakeTimers();
  const model = host({});
  const part = loadPart(model, "three", 10_000, read);
  const refused = expect(part).rejects.toThrow("three is not available, because no kernel answers");
  await vi.advanceTimersByTimeAsync(10_000);
  await refused;
  vi.useRealTimers();
  expect(model.count()).toBe(0);
});

test("a gzipped block is recognised by its first bytes", async () => {
  expect(isZipped(await block("x"))).toBe(true);
  expect(isZipped(new DataView(new TextEncoder().encode("jaxviz").buffer))).toBe(false);
  expect(isZipped(new DataView(new ArrayBuffer(0)))).toBe(false);
});
