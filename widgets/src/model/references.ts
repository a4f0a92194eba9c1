/** The mutable references of a program: which equations make, read or write one, and on which lines. */

import { entry } from "../base/maps";
import type { View } from "../wire/schema";
import { push } from "./groups";
import type { Model } from "./model";

/** How JAX writes the type of one. */
const TYPE = /^Ref[<{]/;

export class References {
  /** Whether there are any. */
  readonly any: boolean;
  /** By type. */
  private readonly types: readonly boolean[];
  private byLine: ReadonlyMap<string, readonly number[]> | null = null;
  private named: ReadonlyMap<number, number> | null = null;

  constructor(private readonly model: Model) {
    this.types = Array.from(model.column("type_text"), (_, type) => TYPE.test(model.text("type_text", type)));
    this.any = this.types.includes(true);
  }

  has(atom: number): boolean {
    return this.any && atom >= 0 && this.types[this.model.column("variable_type")[atom]!]!;
  }

  /** The references that equations make, read or write, each once: the variables to which they and their cotangents belong. */
  among(rows: readonly number[]): number[] {
    if (!this.any) return [];
    const { model } = this;
    const found = rows.flatMap((row) =>
      [...model.inputs(row), ...model.outputs(row)].filter((v) => this.has(v)),
    );
    return [...new Set(found.map((v) => model.family(v)))].sort((a, b) => a - b);
  }

  /** What a reference is called: by the user, or else where it is made in the first stage that has it. */
  name(variable: number): string {
    this.named ??= this.readNames();
    const { name, label } = this.model.variable(this.named.get(this.model.family(variable)) ?? variable);
    return label || name;
  }

  /** The references of each line, as `file:line`, apart from those that its equations only hand to their programs. */
  get lines(): ReadonlyMap<string, readonly number[]> {
    this.byLine ??= this.readLines();
    return this.byLine;
  }

  /** The first variable of each reference that is an input of a stage or a result: inside of a loop it has another name. */
  private readNames(): Map<number, number> {
    const { model } = this;
    const found = new Map<number, number>();
    for (const { programs, equations } of model.view.stages) {
      const made = [...model.binders(programs[0])];
      for (let row = equations[0]; row < equations[1]; row++) made.push(...model.outputs(row));
      for (const v of made) if (this.has(v) && !found.has(model.family(v))) found.set(model.family(v), v);
    }
    return found;
  }

  private readLines(): Map<string, number[]> {
    const { model } = this;
    const rows = new Map<string, number[]>();
    for (let row = 0; this.any && row < model.rows; row++) {
      const place = model.nested(row).length > 0 ? null : model.place(row);
      if (place !== null) push(rows, `${place.file}:${place.line}`, row);
    }
    return new Map(
      [...rows].map(([key, of]) => [key, this.among(of)] as const).filter(([, of]) => of.length > 0),
    );
  }
}

const known = new WeakMap<View, References>();

/** Those of a model; read again when more of it is known. */
export const referencesOf = (model: Model): References =>
  entry(known, model.view, () => new References(model));
