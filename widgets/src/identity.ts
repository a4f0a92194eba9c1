/** Which variables stand for the same value, in whatever stage they are, and the hue that each is written in. */

import type { Model } from "./model";
import type { Column } from "./schema";

/** Hues there are: `--jv-hue-0` and so on. */
export const HUES = 8;

/** Whether a variable is a value of the function, or what a tangent or a cotangent of one is. */
export type Kin = "value" | "tangent" | "cotangent";

/** What calls its programs with its operands. */
const CALLS = new Set([
  "jit",
  "pjit",
  "closed_call",
  "core_call",
  "checkpoint",
  "remat",
  "remat2",
  "custom_jvp_call",
  "custom_vjp_call",
  "cond",
]);

const COPIES = new Set(["primal", "residual", "recomputation"]);

export class Identities {
  private readonly parents: Int32Array;
  private readonly hues: Int8Array;
  /** For a class of variables that has no hue of its own, a variable that it is written like. */
  private readonly likes: Int32Array;
  private readonly kins: Uint8Array;
  private readonly linear: Uint8Array;
  private readonly images: Int32Array;
  /** How many programs a variable is an input of: the same one, called several times. */
  private readonly times: Uint8Array;
  /** Offsets and values of what equations read and make: of every one there is, so without a list for each. */
  private readonly read: readonly [Column, Column];
  private readonly made: readonly [Column, Column];

  constructor(private readonly model: Model) {
    const n = model.column("variable_name").length;
    this.parents = Int32Array.from({ length: n }, (_, v) => v);
    this.hues = new Int8Array(n).fill(-1);
    this.likes = new Int32Array(n).fill(-1);
    this.kins = new Uint8Array(n);
    this.linear = new Uint8Array(n);
    this.images = new Int32Array(model.rows).fill(-1);
    this.times = new Uint8Array(n);
    for (const v of model.column("binder_vars")) this.times[v] = Math.min(2, this.times[v]! + 1);
    this.read = [model.column("equation_inputs"), model.column("input_atoms")];
    this.made = [model.column("equation_outputs"), model.column("output_vars")];
    this.joinInputs();
    for (let row = 0; row < model.rows; row++) this.joinRow(row);
    for (let row = 0; row < model.rows; row++) this.relate(row);
    this.colour();
  }

  /** A number for the value that a variable stands for, the same wherever it appears. */
  of(variable: number): number {
    let v = variable;
    while (this.parents[v] !== v) {
      this.parents[v] = this.parents[this.parents[v]!]!;
      v = this.parents[v]!;
    }
    return v;
  }

  hue(variable: number): number {
    return this.hues[variable]!;
  }

  /** A number for the value of the function that a variable is, or belongs to as a tangent, a cotangent or a factor of those. */
  family(variable: number): number {
    let own = this.of(variable);
    for (let like = this.likeOf(own, variable); like >= 0; like = this.likeOf(own, like)) own = this.of(like);
    return own;
  }

  private likeOf(own: number, variable: number): number {
    return this.likes[variable]! >= 0 ? this.likes[variable]! : this.likes[own]!;
  }

  kin(variable: number): Kin {
    return (["value", "tangent", "cotangent"] as const)[this.kins[variable]!]!;
  }

  private join(a: number, b: number): void {
    const [x, y] = [this.of(a), this.of(b)];
    if (x < y) this.parents[y] = x;
    else this.parents[x] = y;
  }

  private joinAll(some: readonly number[], others: readonly number[]): void {
    for (let i = 0; i < some.length; i++)
      if (some[i]! >= 0 && others[i]! >= 0) this.join(some[i]!, others[i]!);
  }

  /** What one row reads or makes with what another does. */
  private joinRows([offsets, values]: readonly [Column, Column], row: number, other: number): void {
    const shift = offsets[other]! - offsets[row]!;
    if (offsets[other + 1]! - offsets[row + 1]! !== shift) return;
    for (let k = offsets[row]!; k < offsets[row + 1]!; k++)
      if (values[k]! >= 0 && values[k + shift]! >= 0) this.join(values[k]!, values[k + shift]!);
  }

  /** The inputs of the stages: those of the function, their tangents, and the residuals of the forward program. */
  private joinInputs(): void {
    const { model } = this;
    const of = new Map<string, { binders: number[]; program: number }>();
    for (const { key, programs } of model.view.stages)
      if (programs[1] > programs[0])
        of.set(key, { program: programs[0], binders: model.binders(programs[0]) });
    const inputs = of.get("primal")?.binders ?? [];
    for (const key of ["jvp", "forward"]) this.joinAll(inputs, of.get(key)?.binders ?? []);
    this.relateTo(of.get("jvp")?.binders ?? [], inputs, "tangent of ", "input ", 1);
    const named = new Map<string, number>();
    const forward = of.get("forward");
    if (forward) {
      for (const v of forward.binders) named.set(model.atomText(v), v);
      for (const row of model.rowsOf(forward.program))
        for (const v of model.outputs(row)) named.set(model.atomText(v), v);
    }
    const isResidual = (v: number) => model.variable(v).label.startsWith("residual ");
    for (const key of ["linear", "backward"]) {
      const binders = of.get(key)?.binders ?? [];
      for (const v of binders.filter(isResidual)) {
        const like = named.get(model.atomText(v));
        if (like !== undefined) this.join(like, v);
      }
      if (key === "linear") this.relateTo(binders, inputs, "tangent of ", "input ", 1);
      else
        this.relateTo(binders, model.results(of.get("primal")?.program ?? -1), "cotangent of ", "result ", 2);
    }
  }

  /** Inputs that are tangents or cotangents, to what they say that they are of: by its name, or by its place. */
  private relateTo(
    binders: readonly number[],
    others: readonly number[],
    what: string,
    place: string,
    kin: 1 | 2,
  ): void {
    const { model } = this;
    const named = new Map(
      others.map((v, i) => [(v >= 0 && kin === 1 && model.variable(v).label) || `${place}${i}`, v]),
    );
    for (const v of binders) {
      const { label } = model.variable(v);
      if (!label.startsWith(what)) continue;
      this.kins[v] = kin;
      if (kin === 1) this.linear[v] = 1;
      const other = named.get(label.slice(what.length)) ?? -1;
      if (other >= 0) this.like(v, other, kin);
    }
  }

  private like(variable: number, other: number, kin: 0 | 1 | 2): void {
    this.kins[variable] = kin;
    if (this.likes[variable]! < 0 && this.of(variable) !== this.of(other)) this.likes[variable] = other;
  }

  /** The row of an earlier stage that shows the same equation, or the one that it came from: in the same call, where several
   * calls share a program. */
  private imageOf(row: number): number {
    const { model } = this;
    const first = model.first(row);
    const base = first !== row && model.stage(first) !== model.stage(row) ? first : model.origin(first);
    if (base < 0) return -1;
    const owner = model.owner(row);
    if (owner < 0) return base;
    const within = this.images[owner]!;
    if (within < 0) return -1;
    // What an equation holds follows it: the row in that call is the first behind it.
    const alike = model.alike(base);
    let [low, high] = [0, alike.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (alike[middle]! > within) high = middle;
      else low = middle + 1;
    }
    const found = alike[low];
    return found !== undefined && model.owner(found) === within ? found : -1;
  }

  /** A row that shows the same equation as another, or copies it into another program, works on the same values. */
  private joinRow(row: number): void {
    const { model } = this;
    const image = this.imageOf(row);
    this.images[row] = image;
    if (image >= 0 && (model.first(row) === model.first(image) || this.isCopy(row, image))) {
      this.joinRows(this.made, image, row);
      this.joinRows(this.read, image, row);
    }
    if (!CALLS.has(model.primitive(row))) return;
    const inputs = model.inputs(row);
    const outputs = model.outputs(row);
    // What is called with values works on those; a cond reads first which branch to take.
    const nested = model.nested(row);
    for (const program of nested) {
      const binders = model.binders(program);
      // The variables of a program that is called several times are no one call's.
      if (binders.some((v) => this.times[v]! > 1)) continue;
      const skipped = nested.length > 1 ? 1 : 0;
      if (binders.length + skipped === inputs.length) this.joinAll(inputs.slice(skipped), binders);
      const results = model.results(program);
      if (nested.length === 1 && binders.length > 0 && results.length === outputs.length)
        this.joinAll(outputs, results);
    }
  }

  private isCopy(row: number, origin: number): boolean {
    const { model } = this;
    const size = ([offsets]: readonly [Column, Column], of: number) => offsets[of + 1]! - offsets[of]!;
    return (
      COPIES.has(model.role(row)) &&
      model.primitive(row) === model.primitive(origin) &&
      size(this.read, row) === size(this.read, origin) &&
      size(this.made, row) === size(this.made, origin)
    );
  }

  /** What a derived equation makes belongs to what the equation that it came from makes; a cotangent, to what that reads. */
  private relate(row: number): void {
    const [inputs, atoms] = this.read;
    const [outputs, variables] = this.made;
    const role = this.model.role(row);
    const kin = role === "tangent" ? 1 : role === "cotangent" || role === "accumulation" ? 2 : 0;
    let isLinear = kin === 1;
    for (let k = inputs[row]!; k < inputs[row + 1]! && !isLinear; k++)
      isLinear = atoms[k]! >= 0 && this.linear[atoms[k]!] === 1;
    for (let k = outputs[row]!; k < outputs[row + 1]!; k++) {
      this.kins[variables[k]!] = kin;
      if (isLinear) this.linear[variables[k]!] = 1;
    }
    const origin = this.images[row]!;
    if (origin < 0) return;
    let of: ArrayLike<number> = variables.subarray(outputs[origin]!, outputs[origin + 1]!);
    if (kin === 2) {
      const read = Array.from(atoms.subarray(inputs[origin]!, inputs[origin + 1]!)).filter(
        (a) => a >= 0 && this.linear[a],
      );
      if (read.length === outputs[row + 1]! - outputs[row]!) of = read;
    }
    for (let k = outputs[row]!; k < outputs[row + 1]!; k++) {
      const other = of[Math.min(k - outputs[row]!, of.length - 1)];
      if (other !== undefined) this.like(variables[k]!, other, kin);
    }
  }

  /** A hue for each value: another than those of the values beside it, and than those given last. */
  private colour(): void {
    const { model } = this;
    const last = new Int32Array(HUES).fill(-1);
    let turn = 0;
    const [inputs, atoms] = this.read;
    const [outputs, variables] = this.made;
    const give = (variable: number, row = -1) => {
      if (this.hues[variable]! >= 0) return;
      const own = this.of(variable);
      const like = this.likeOf(own, variable);
      if (this.hues[own]! < 0 && like >= 0) {
        give(like);
        this.hues[own] = this.hues[like]!;
      }
      if (this.hues[own]! < 0) {
        let taken = 0;
        if (row >= 0)
          for (let k = inputs[row]!; k < inputs[row + 1]!; k++)
            if (atoms[k]! >= 0 && this.hues[this.of(atoms[k]!)]! >= 0)
              taken |= 1 << this.hues[this.of(atoms[k]!)]!;
        let best = -1;
        for (let hue = 0; hue < HUES; hue++)
          if (!(taken & (1 << hue)) && (best < 0 || last[hue]! < last[best]!)) best = hue;
        this.hues[own] = best < 0 ? turn % HUES : best;
        last[this.hues[own]!] = turn++;
      }
      this.hues[variable] = this.hues[own]!;
    };
    const rows = model.rows;
    const programs = model.column("program_owner").length;
    // The function's own values come first, so that they have the same hues whatever was made of it.
    const [firstEnd, firstPrograms] = [
      model.view.stages[0]?.equations[1] ?? 0,
      model.view.stages[0]?.programs[1] ?? 0,
    ];
    const binders = (from: number, to: number) => {
      for (let p = from; p < to; p++) for (const v of model.binders(p)) give(v);
    };
    const equations = (from: number, to: number) => {
      for (let row = from; row < to; row++)
        for (let k = outputs[row]!; k < outputs[row + 1]!; k++) give(variables[k]!, row);
    };
    binders(0, firstPrograms);
    equations(0, firstEnd);
    binders(firstPrograms, programs);
    equations(firstEnd, rows);
  }
}
