import { expect, test } from "vitest";
import { decode, VERSION } from "../src/schema";
import { bytes, decoded, json } from "./fixture";

function lists(columns: Record<string, ArrayLike<number>>): Record<string, number[]> {
  return Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, Array.from(column)]));
}

test("the bytes that Python wrote are read", () => {
  const view = decoded();
  expect({ ...view, columns: lists(view.columns) }).toEqual(json);
});

test("a message that does not start at a multiple of eight is read", () => {
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
