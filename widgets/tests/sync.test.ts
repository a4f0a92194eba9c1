import { expect, test } from "vitest";
import { blockOf } from "../src/host/sync";

const read = (block: DataView | null) =>
  block && Array.from(new Uint8Array(block.buffer, block.byteOffset, block.byteLength));

test("bytes are read in every form that hosts provide", () => {
  const bytes = Uint8Array.of(1, 2, 3, 4);
  expect(read(blockOf(new DataView(bytes.buffer, 1, 2)))).toEqual([2, 3]);
  expect(read(blockOf(bytes.buffer))).toEqual([1, 2, 3, 4]);
  expect(read(blockOf(bytes.subarray(2)))).toEqual([3, 4]);
});

test("the same bytes are the same block, and no bytes are null", () => {
  const bytes = Uint8Array.of(1);
  expect(blockOf(bytes)).toBe(blockOf(bytes));
  for (const value of [undefined, null, "", "text", {}, [], new DataView(new ArrayBuffer(0))])
    expect(blockOf(value)).toBeNull();
});
