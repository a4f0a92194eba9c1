/** Equations with constant results: zeros, an iota, a broadcast number. */

import { atOnce, type Sliced } from "../../base/slices";
import type { Model } from "../../model/model";
import type { Tree } from "./hierarchy";

/** Primitives that only reshape or convert a value; the result is named like the value. */
const PLAIN: ReadonlySet<string> = new Set([
  "broadcast_in_dim",
  "convert_element_type",
  "reshape",
  "copy",
  "full",
]);

const known = new WeakMap<Tree, ReadonlyMap<number, string>>();

/**
 * The constants shown as a stub at their readers, with its text. An equation stays a box if its program returns the value, if the value is
 * a residual or is never read, or if the equation has a nested program.
 */
export const constantsOf = (tree: Tree): ReadonlyMap<number, string> => atOnce(findingConstants(tree));

/** The same, in slices. */
export function* findingConstants(tree: Tree): Sliced<ReadonlyMap<number, string>> {
  const found = known.get(tree) ?? (yield* find(tree));
  known.set(tree, found);
  return found;
}

/** Equations processed between two yields. */
const SLICE = 200;

function* find(tree: Tree): Sliced<Map<number, string>> {
  const { model } = tree;
  const residuals = new Set(model.residuals.map((r) => r.producer));
  const found = new Map<number, string>();
  for (let node = 0; node < tree.size; node++) {
    const program = tree.program[node]!;
    if (program < 0) continue;
    const several = tree.row[node]! >= 0 && model.nested(tree.row[node]!).length > 1;
    if (several) continue;
    const results = new Set(model.results(program));
    /** The text of each constant in this program. */
    const texts = new Map<number, string>();
    const read = new Set<number>();
    const made: number[] = [];
    for (const row of tree.children[node]!.flatMap((child) => tree.rows(child))) {
      if (row % SLICE === 0) yield;
      const inputs = model.inputs(row);
      const outputs = model.outputs(row);
      for (const v of inputs) if (v >= 0) read.add(v);
      const isConstant =
        outputs.length === 1 && model.nested(row).length === 0 && inputs.every((v) => v < 0 || texts.has(v));
      if (!isConstant) continue;
      texts.set(outputs[0]!, textOf(model, row, texts));
      made.push(row);
    }
    for (const row of made) {
      const [v] = model.outputs(row);
      if (results.has(v!) || residuals.has(row) || !read.has(v!)) continue;
      found.set(row, `${texts.get(v!)} ${model.atomType(v!)}`);
    }
  }
  return found;
}

/** The number that fills it, or the primitive that computes it. */
function textOf(model: Model, row: number, texts: ReadonlyMap<number, string>): string {
  const inputs = model.inputs(row);
  const [first] = inputs;
  if (first === undefined || inputs.length > 1 || !PLAIN.has(model.primitive(row)))
    return model.primitive(row);
  return texts.get(first) ?? model.atomText(first);
}
