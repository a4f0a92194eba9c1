/** The lines of some stages, with the positions of equations and variables, and the lines that are left out. */

import type { Model } from "../model/model";
import type { Token } from "./linetext";
import { type Line, listing } from "./listing";

/** A range of consecutive lines that are left out, with their equations. */
export interface LeftOut {
  from: number;
  to: number;
  rows: readonly number[];
}

/** An occurrence of a variable. */
export interface Found {
  variable: number;
  isBinder: boolean;
  line: number;
  column: number;
}

export class Lines {
  readonly all: readonly Line[];
  readonly ofRow = new Map<number, number>();
  private bound: Map<number, number> | null = null;
  /** 1 for each line that is left out. */
  private hidden: Uint8Array;

  constructor(
    private readonly model: Model,
    stages: readonly number[],
    fullParams: boolean,
  ) {
    this.all = listing(model, stages, fullParams);
    this.all.forEach(({ kind, row }, i) => {
      if (kind === "equation") this.ofRow.set(row, i);
    });
    this.hidden = new Uint8Array(this.all.length);
  }

  /** The line that binds each variable. */
  get bindings(): ReadonlyMap<number, number> {
    if (this.bound === null) {
      this.bound = new Map();
      for (const [i, line] of this.all.entries())
        if (line.kind === "equation") for (const v of this.model.outputs(line.row)) this.bound.set(v, i);
        else for (const { variable, isBinder } of line.tokens) if (isBinder) this.bound.set(variable!, i);
    }
    return this.bound;
  }

  get length(): number {
    return this.all.length;
  }

  isHidden(line: number): boolean {
    return this.hidden[line] === 1;
  }

  /** Leaves out equations that fail `isKept`, unless an equation nested in them passes. */
  keep(isKept: (row: number) => boolean): LeftOut[] {
    const n = this.all.length;
    this.hidden = new Uint8Array(n);
    const kept = new Int32Array(n + 1);
    this.all.forEach(({ kind, row }, i) => {
      kept[i + 1] = kept[i]! + Number(kind === "equation" && isKept(row));
    });
    const endOf = (i: number) => Math.max(i, this.all[i]!.foldTo);
    const isLeftOut = (i: number) =>
      i < n && ["equation", "group"].includes(this.all[i]!.kind) && kept[endOf(i) + 1] === kept[i];
    const found: LeftOut[] = [];
    for (let i = 0; i < n; i++) {
      if (!isLeftOut(i)) continue;
      const from = i;
      while (isLeftOut(i)) i = endOf(i) + 1;
      this.hidden.fill(1, from, i);
      const rows = this.all.slice(from, i).flatMap(({ kind, row }) => (kind === "equation" ? [row] : []));
      found.push({ from, to: i - 1, rows });
    }
    return found;
  }

  /** The equations on a line and in everything that folds under it. */
  rowsUnder(line: number): number[] {
    const lines = this.all.slice(line, Math.max(line, this.all[line]!.foldTo) + 1);
    return lines.flatMap(({ kind, row }) => (kind === "equation" ? [row] : []));
  }

  /** The variable at a position, if the line is visible. */
  variableAt(line: number, column: number): Found | null {
    const token = this.all[line]?.tokens.find(
      (t): t is Token & { variable: number } =>
        t.variable !== undefined && t.from <= column && column <= t.to,
    );
    if (token === undefined || this.isHidden(line)) return null;
    return { variable: token.variable, isBinder: token.isBinder === true, line, column: token.from };
  }
}
