/** Which rows define, read and return each variable, and which derive from each row; for all rows at once, so without a list for each. */

import { push } from "./groups";
import type { Model } from "./model";

/** Lists of rows, stored consecutively: that of `i` begins at `starts[i]` and ends at `starts[i + 1]`. */
interface Lists {
  starts: Int32Array;
  rows: Int32Array;
}

const listOf = ({ starts, rows }: Lists, i: number): number[] =>
  Array.from(rows.subarray(starts[i]!, starts[i + 1]!));

/** The rows of each of `n` lists, in order; `visit` calls back with each list and row, the same both times. */
function listed(n: number, visit: (add: (list: number, row: number) => void) => void): Lists {
  const starts = new Int32Array(n + 1);
  visit((list) => {
    starts[list + 1]! += 1;
  });
  for (let i = 0; i < n; i++) starts[i + 1]! += starts[i]!;
  const next = starts.slice();
  const rows = new Int32Array(starts[n]!);
  visit((list, row) => {
    rows[next[list]!++] = row;
  });
  return { starts, rows };
}

export class Uses {
  /** The row that defines each variable, or -1, and the program of which it is an input or constant, or -1. */
  readonly definitions: Int32Array;
  readonly bindings: Int32Array;
  /** The programs that return each variable. */
  readonly returners = new Map<number, number[]>();
  private readonly readers: Lists;

  constructor(model: Model) {
    const n = model.column("variable_name").length;
    const [outputs, outputVars] = [model.column("equation_outputs"), model.column("output_vars")];
    const [inputs, atoms] = [model.column("equation_inputs"), model.column("input_atoms")];
    this.definitions = new Int32Array(n).fill(-1);
    this.bindings = new Int32Array(n).fill(-1);
    for (let row = 0; row < model.rows; row++)
      for (let k = outputs[row]!; k < outputs[row + 1]!; k++) this.definitions[outputVars[k]!] = row;
    this.readers = listed(n, (add) => {
      const last = new Int32Array(n).fill(-1);
      for (let row = 0; row < model.rows; row++)
        for (let k = inputs[row]!; k < inputs[row + 1]!; k++) {
          const atom = atoms[k]!;
          if (atom < 0 || last[atom] === row) continue;
          last[atom] = row;
          add(atom, row);
        }
    });
    for (let p = 0; p < model.column("program_owner").length; p++) {
      for (const v of model.binders(p)) this.bindings[v] = p;
      for (const a of new Set(model.results(p))) if (a >= 0) push(this.returners, a, p);
    }
  }

  /** The rows that read a variable. */
  of(variable: number): number[] {
    return listOf(this.readers, variable);
  }
}

export class Kinship {
  /** For the first row that shows an equation, the other rows that show it. */
  readonly twins = new Map<number, number[]>();
  private readonly children: Lists;

  constructor(model: Model) {
    const [origins, twins] = [model.column("equation_origin"), model.column("equation_twin")];
    twins.forEach((first, row) => {
      if (first >= 0) push(this.twins, first, row);
    });
    this.children = listed(model.rows, (add) => {
      for (let row = 0; row < model.rows; row++)
        if (twins[row]! < 0 && origins[row]! >= 0) add(origins[row]!, row);
    });
  }

  /** The rows derived directly from the first row that shows an equation. */
  of(row: number): number[] {
    return listOf(this.children, row);
  }
}
