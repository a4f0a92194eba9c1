/** Decodes the wire format; its types and column descriptions are generated from Python. */

import { atOnce, type Sliced } from "../base/slices";
import { type Column, type ColumnName, MAGIC, VERSION, type View } from "./schema.generated";

export * from "./schema.generated";

const PREFIX_BYTES = 16;

const ARRAYS = {
  u1: Uint8Array,
  i1: Int8Array,
  u2: Uint16Array,
  i2: Int16Array,
  i4: Int32Array,
  f8: Float64Array,
} as const;

type Code = keyof typeof ARRAYS;
/** A column's type, length, offset, and its encoding, if any. */
type Entry = [Code, number, number, ("delta" | "dictionary")?, (Code | number)?];

/** Decodes a view; throws an Error that explains what is wrong with the data. The remainder of a view omits what is `known`. */
export const decode = (block: DataView, known?: View): View => atOnce(decoding(block, known));

/** The same, in slices. */
export function* decoding(block: DataView, known?: View): Sliced<View> {
  const bytes = new Uint8Array(block.buffer, block.byteOffset, block.byteLength);
  const text = new TextDecoder();
  if (bytes.length < PREFIX_BYTES || text.decode(bytes.subarray(0, MAGIC.length)) !== MAGIC)
    throw new Error("these bytes are not a jaxviz view");
  const version = block.getUint16(6, true);
  if (version !== VERSION)
    throw new Error(`this view has format ${version}; this version of jaxviz reads format ${VERSION}`);
  const start = PREFIX_BYTES + block.getUint32(8, true);
  if (bytes.length < start) throw new Error("this jaxviz view is cut short");
  const header = JSON.parse(text.decode(bytes.subarray(PREFIX_BYTES, start)));
  yield;
  // Copy the columns: the message may have any alignment in memory.
  const data = bytes.slice(start).buffer;
  const columns = { ...known?.columns } as Record<ColumnName, Column>;
  for (const [name, entry] of Object.entries(header.columns as Record<ColumnName, Entry>)) {
    columns[name as ColumnName] = columnIn(data, ...entry);
    yield;
  }
  const strings = known ? [...known.strings, ...header.strings] : header.strings;
  return { ...header, strings, columns };
}

function columnIn(data: ArrayBuffer, ...[code, size, offset, coding, how]: Entry): Column {
  const As = ARRAYS[code];
  if (coding === undefined) return new As(data, offset, size);
  // The loops see one type of array each, so that they are compiled once; the arrays are converted by the browser.
  if (coding === "delta") return new As(summed(new Int32Array(new ARRAYS[how as Code](data, offset, size))));
  const values = new As(data, offset, how as number);
  const which = new Uint8Array(data, offset + Math.ceil(values.byteLength / 8) * 8, size);
  return new As(taken(new Float64Array(values), which));
}

function summed(deltas: Int32Array): Int32Array {
  for (let i = 1; i < deltas.length; i++) deltas[i]! += deltas[i - 1]!;
  return deltas;
}

function taken(values: Float64Array, which: Uint8Array): Float64Array {
  const column = new Float64Array(which.length);
  for (let i = 0; i < which.length; i++) column[i] = values[which[i]!]!;
  return column;
}

/** A view from the JSON form that the tests of both languages share. */
export function fromJson(values: Omit<View, "columns"> & { columns: Record<string, number[]> }): View {
  const columns = {} as Record<ColumnName, Column>;
  for (const [name, column] of Object.entries(values.columns))
    columns[name as ColumnName] = Float64Array.from(column);
  return { ...values, columns };
}

/** Whether a view has the programs, and not only what the overview begins with. */
export const hasPrograms = ({ columns, is_whole }: View): boolean =>
  is_whole || columns.equation_program.length > 0;
