/** The view that the tests of both languages share. */

import fixture from "../../tests/fixtures/explorer_view.json";
import { Model } from "../src/model/model";
import { decode, fromJson, type View } from "../src/wire/schema";

type Json = Omit<View, "columns"> & { columns: Record<string, number[]> };

export const json = fixture.view as unknown as Json;

export function bytes(): DataView<ArrayBuffer> {
  return new DataView(Uint8Array.from(atob(fixture.bytes), (c) => c.charCodeAt(0)).buffer);
}

/** The shared view, or one with some columns changed. */
export function model(columns: Record<string, number[]> = {}): Model {
  return new Model(
    fromJson({ ...json, strings: [...json.strings], columns: { ...json.columns, ...columns } }),
  );
}

export const decoded = (): View => decode(bytes());
