import { expect, test } from "vitest";
import { decode, VERSION } from "../src/wire/schema";
import { bytes, decoded, json } from "./fixture";

function lists(columns: Record<string, ArrayLike<number>>): Record<string, number[]> {
  return Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, Array.from(column)]));
}

test("Python's bytes are decoded", () => {
  const view = decoded();
  expect({ ...view, columns: lists(view.columns) }).toEqual(json);
});

test("a message that is not aligned to eight bytes is decoded", () => {
  const block = bytes();
  const shifted = new Uint8Array(block.byteLength + 3);
  shifted.set(new Uint8Array(block.buffer), 3);
  expect(lists(decode(new DataView(shifted.buffer, 3)).columns)).toEqual(json.columns);
});

test.each([
  ["nothing", new Uint8Array(0), "not a jaxviz view"],
  ["other bytes", new Uint8Array(64), "not a jaxviz view"],
  [
    "another version",
    versioned(VERSION - 1),
    `format ${VERSION - 1}; this version of jaxviz reads format ${VERSION}`,
  ],
  ["half of it", versioned(VERSION).slice(0, 100), "cut short"],
])("%s is refused", (_, block, message) => {
  expect(() => decode(new DataView(block.buffer))).toThrow(message);
});

function versioned(version: number): Uint8Array<ArrayBuffer> {
  const block = new Uint8Array(bytes().byteLength);
  block.set(new Uint8Array(bytes().buffer));
  block[6] = version;
  return block;
}

/** A block with one encoded column. */
function coded(entry: unknown[], blocks: ArrayBufferView[]): DataView {
  const data = blocks.flatMap((block) => {
    const bytes = [...new Uint8Array(block.buffer)];
    return [...bytes, ...Array(-bytes.length & 7).fill(0)];
  });
  const text = new TextEncoder().encode(
    JSON.stringify({ strings: ["b"], columns: { step_row: entry } }).padEnd(88),
  );
  const made = new Uint8Array(16 + 88 + data.length);
  made.set(new Uint8Array(bytes().buffer, 0, 8));
  made[8] = 88;
  made.set(text, 16);
  made.set(data, 104);
  return new DataView(made.buffer);
}

test("every encoding of columns is decoded", () => {
  const deltas = coded(["i4", 4, 0, "delta", "i1"], [Int8Array.of(100, 100, -120, 127)]);
  expect([...decode(deltas).columns["step_row"]!]).toEqual([100, 200, 80, 207]);
  const values = Float64Array.of(2 ** 40, -1, 0);
  const few = coded(["f8", 5, 0, "dictionary", 3], [values, Uint8Array.of(2, 0, 0, 1, 2)]);
  expect([...decode(few).columns["step_row"]!]).toEqual([0, 2 ** 40, 2 ** 40, -1, 0]);
  const odd = coded(["u2", 3, 0, "dictionary", 1], [Uint16Array.of(300), Uint8Array.of(0, 0, 0)]);
  expect([...decode(odd).columns["step_row"]!]).toEqual([300, 300, 300]);
});

test("the remainder is decoded using what is known", () => {
  const known = decoded();
  const view = decode(coded(["u1", 1, 0], [Uint8Array.of(7)]), known);
  expect(view.strings).toEqual([...known.strings, "b"]);
  expect(view.columns["type_text"]).toBe(known.columns["type_text"]);
  expect([...view.columns["step_row"]!]).toEqual([7]);
});
