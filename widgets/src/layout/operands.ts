/** How the inputs of a nested program relate to the operands of the equation that holds it. */

import type { Model } from "../model";

export interface Operand {
  binder: number;
  operand: number;
  /** What a loop makes of it: a carry, or the slice of an iteration; or empty. */
  role: string;
}

/** For each input of a program that an equation holds the operand that it is. */
export function operandsOf(model: Model, row: number, program: number): Operand[] {
  const binders = model.binders(program);
  const operands = model.inputs(row);
  const primitive = model.primitive(row);
  const param = (name: string) => {
    const text = model.params(row).find((p) => p.startsWith(`${name}=`));
    return text === undefined ? 0 : Number(text.slice(name.length + 1));
  };
  if (primitive === "while") {
    const [ofCond, ofBody] = [param("cond_nconsts"), param("body_nconsts")];
    const isCond = model.programLabel(program).startsWith("cond");
    const consts = isCond ? ofCond : ofBody;
    return binders.map((binder, i) => ({
      binder,
      operand: operands[i < consts ? i + (isCond ? 0 : ofCond) : ofCond + ofBody + i - consts]!,
      role: i < consts ? "" : "carry",
    }));
  }
  const offset = operands.length - binders.length;
  if (offset < 0 || offset > 1) return [];
  const [consts, carries] =
    primitive === "scan" ? [param("num_consts"), param("num_carry")] : [binders.length, 0];
  return binders.map((binder, i) => ({
    binder,
    operand: operands[i + offset]!,
    role: i < consts ? "" : i < consts + carries ? "carry" : "each",
  }));
}
