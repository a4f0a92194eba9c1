/** The hues of variables: one per value, shared with its tangents and cotangents, and one per mutable reference, shared
 * with what is read from it. */

import type { Sliced } from "../base/slices";
import type { Model } from "./model";

/** The number of hues: `--jv-hue-0` and so on. */
export const HUES = 8;

/** Equations processed between two yields. */
const SLICE = 500;

export class Hues {
  /** By value. */
  private readonly hues: Int8Array;
  /** The last turn at which each was assigned. */
  private readonly last = new Int32Array(HUES).fill(-1);
  private turn = 0;

  constructor(private readonly model: Model) {
    this.hues = new Int8Array(model.column("variable_name").length).fill(-1);
  }

  /** Assigns all hues. */
  *giveAll(): Sliced<void> {
    const { model } = this;
    const [outputs, made] = [model.column("equation_outputs"), model.column("output_vars")];
    // In the order of the stages, so that the function's values keep their hues whatever is derived.
    for (const { programs, equations } of model.view.stages) {
      for (let p = programs[0]; p < programs[1]; p++) for (const v of model.binders(p)) this.give(v);
      for (let row = equations[0]; row < equations[1]; row++) {
        if (row % SLICE === 0) yield;
        for (let k = outputs[row]!; k < outputs[row + 1]!; k++) this.give(made[k]!, row);
      }
    }
  }

  of(variable: number): number {
    return this.hues[this.model.value(variable)]!;
  }

  /** Assigns the hue of the value that the variable belongs to, or else one that differs from adjacent and recent values. */
  private give(variable: number, row = -1): void {
    const { model, hues, last } = this;
    const value = model.value(variable);
    if (hues[value]! >= 0) return;
    const of = model.belongsTo(value);
    if (of >= 0) {
      this.give(of);
      hues[value] = this.of(of);
      last[hues[value]!] = this.turn++;
      return;
    }
    let taken = 0;
    for (const atom of row < 0 ? [] : model.inputs(row))
      if (atom >= 0 && this.of(atom) >= 0) taken |= 1 << this.of(atom);
    let best = -1;
    for (let hue = 0; hue < HUES; hue++)
      if (!(taken & (1 << hue)) && (best < 0 || last[hue]! < last[best]!)) best = hue;
    hues[value] = best < 0 ? this.turn % HUES : best;
    last[hues[value]!] = this.turn++;
  }
}
