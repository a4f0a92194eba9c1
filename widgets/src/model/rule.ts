/** A step as a small program: how each variable relates to the step's equation. */

import { plural } from "../base/format";
import { atOnce, type Sliced } from "../base/slices";
import { counted } from "./groups";
import type { Model } from "./model";
import { type Play, playing, type Transform } from "./player";

export type Kind = "source" | "value" | "tangent" | "cotangent" | "so far" | "residual" | "local";

/** The meaning of a variable in a step. */
export interface Name {
  variable: number;
  kind: Kind;
  /** The source variable of which it is the value, tangent or cotangent, or -1. */
  of: number;
  /** The colour of its source variable, or -1 for a variable local to the rule. */
  colour: number;
}

/** What a rule emits into one stage. */
export interface Part {
  stage: number;
  takes: Name[];
  rows: number[];
  gives: Name[];
}

export interface Rule {
  /** The title: `jvp rule of sin`. */
  title: string;
  parts: Part[];
  names: ReadonlyMap<number, Name>;
  /** An explanation in a sentence. */
  sentence: string;
}

/** The relation of a variable to the one it belongs to; `kin` is an index into `KINS`. */
interface Bond {
  of: number;
  kin: number;
}

/** The kins that are a complete tangent or cotangent, or the value of one call; the others are intermediate results. */
const WHOLE = new Set([1, 2, 5]);

/** Equations processed between two yields. */
const SLICE = 500;

/** The steps of a transform and their rules. */
export const rulesOf = (model: Model, transform: Transform): Rules => atOnce(ruling(model, transform));

/** The same, in slices. */
export function* ruling(model: Model, transform: Transform): Sliced<Rules> {
  const rules = new Rules(yield* playing(model, transform));
  yield* rules.read();
  return rules;
}

/** The rules of a play: which variables are values, tangents and cotangents of which, as recorded by the transforms. */
export class Rules {
  private readonly model: Model;
  private readonly isTransposed: boolean;
  /** The tangent or cotangent of each source value. */
  private readonly duals = new Map<number, number>();
  /** What a value belongs to. */
  private readonly bonds = new Map<number, Bond[]>();
  /** The values that the forward program saves. */
  private readonly saved = new Set<number>();

  constructor(readonly play: Play) {
    const { model } = play;
    this.model = model;
    this.isTransposed = play.transform.key === "transpose";
  }

  /** Reads what the transforms recorded. */
  *read(): Sliced<void> {
    const { model, play } = this;
    const [ofs, kins] = [model.column("others_of"), model.column("others_kin")];
    model.column("others_value").forEach((v, i) => {
      this.bonds.set(v, [...this.bondsOf(v), { of: ofs[i]!, kin: kins[i]! }]);
    });
    for (const stage of play.transform.targets) {
      const { programs, equations, key } = model.view.stages[stage]!;
      for (let p = programs[0]; p < programs[1]; p++)
        for (const v of model.binders(p)) {
          this.note(v);
          if (key === "linear" && model.kin(v) === "value") this.saved.add(model.value(v));
        }
      for (let row = equations[0]; row < equations[1]; row++) {
        if (row % SLICE === 0) yield;
        for (const v of model.outputs(row)) this.note(v);
      }
    }
  }

  private note(v: number): void {
    for (const { of, kin } of this.bondsOf(v))
      if ((kin === 1 || kin === 2) && !this.duals.has(of)) this.duals.set(of, v);
  }

  private bondsOf(v: number): readonly Bond[] {
    const { model } = this;
    const value = model.value(v);
    const of = model.belongsTo(v);
    return this.bonds.get(value) ?? (of < 0 ? [] : [{ of: model.value(of), kin: model.kinIndex(v) }]);
  }

  /** The rule of a step, with its variables named. */
  at(step: number): Rule {
    const { model, play } = this;
    const rows = play.outerRows(step);
    const names = this.names(step, rows);
    const titles = rows.filter((row) => !play.isLoose[row]).map((row) => model.rule(row));
    const title = titles.find((t) => t && !t.startsWith("sum of cotangents")) ?? titles.find(Boolean) ?? "";
    const parts = play.transform.targets.flatMap((stage): Part[] => {
      const here = rows.filter((row) => model.stage(row) === stage);
      if (here.length === 0) return [];
      const { defined, free } = scope(model, here);
      const named = (variables: Iterable<number>) => Array.from(variables, (v) => names.get(v)!);
      const ends = model.outputs(here.at(-1)!);
      const isGiven = (n: Name) => n.kind !== "local" || ends.includes(n.variable);
      const gives = named(defined).filter((n) => isGiven(n) && model.atomText(n.variable) !== "_");
      return [{ stage, takes: named(free), rows: here, gives }];
    });
    return { title, parts, names, sentence: this.sentence(step, rows) };
  }

  /** Whether the forward program saves a variable for the linear program. */
  isSaved(v: number): boolean {
    return this.saved.has(this.model.value(v));
  }

  private names(step: number, rows: number[]): Map<number, Name> {
    const { model, play } = this;
    const names = new Map<number, Name>();
    const bySource = new Map<number, Name>();
    const residuals = new Map<number, number>();
    const made = new Set(
      play.equations(step).flatMap((row) => model.outputs(row).map((u) => model.value(u))),
    );
    const isAgain = this.isTransposed && model.role(play.sources[step]!) === "recomputation";
    let colours = 0;
    for (const u of play.equations(step).flatMap((row) => [...model.inputs(row), ...model.outputs(row)])) {
      if (u < 0 || names.has(u)) continue;
      const same = bySource.get(model.value(u));
      const name: Name = { variable: u, kind: "source", of: u, colour: same?.colour ?? colours++ };
      names.set(u, name);
      if (same === undefined) bySource.set(model.value(u), name);
    }
    const { defined, free } = scope(model, rows);
    const read = new Set(rows.flatMap((row) => model.inputs(row)));
    for (const v of [...free, ...defined]) {
      if (names.has(v)) continue;
      const value = model.value(v);
      const put = (kind: Kind, source?: Name, of = source?.of ?? -1) =>
        names.set(v, { variable: v, kind, of, colour: source?.colour ?? -1 });
      const source = bySource.get(value);
      const bonds = this.bondsOf(v);
      const whole = bonds.filter(({ of, kin }) => WHOLE.has(kin) && bySource.has(of));
      // Prefer the cotangent of a result, the input of the transposition.
      const bond = whole.find(({ of }) => made.has(of)) ?? whole[0];
      const isInside = defined.has(v) && read.has(v);
      const part = isInside ? undefined : bonds.find(({ of, kin }) => kin === 4 && bySource.has(of));
      const kin = model.kin(v);
      if (source !== undefined) put(!isAgain && this.isResidual(v) ? "residual" : "value", source);
      else if (part !== undefined && free.has(v) && !(bond && made.has(bond.of)))
        put("so far", bySource.get(part.of));
      else if (bond !== undefined) put(kin, bySource.get(bond.of));
      else if (part !== undefined) put("so far", bySource.get(part.of));
      else if (kin === "value" && (this.isResidual(v) || (this.saved.has(value) && !free.has(v)))) {
        if (!residuals.has(value)) residuals.set(value, colours++);
        names.set(v, { variable: v, kind: "residual", of: -1, colour: residuals.get(value)! });
      } else if (free.has(v))
        put(kin, undefined, bonds.find((b) => WHOLE.has(b.kin))?.of ?? (value === v ? -1 : value));
      else put("local");
    }
    return names;
  }

  /** Whether a variable of the linear or backward program is an input from the forward program. */
  private isResidual(v: number): boolean {
    const { model } = this;
    const program = model.boundBy(v);
    if (program < 0 || model.kin(v) !== "value") return false;
    const { key } = model.view.stages[model.column("program_stage")[program]!]!;
    return key === "linear" || key === "backward";
  }

  /** Whether a variable of the source has a tangent or a cotangent. */
  private hasDual(u: number): boolean {
    return !this.isTransposed || this.model.kin(u) !== "value";
  }

  private dual(u: number | undefined): number {
    return u === undefined ? -1 : (this.duals.get(this.model.value(u)) ?? -1);
  }

  private sentence(step: number, rows: number[]): string {
    const { model, play } = this;
    const primitive = model.primitive(play.sources[step]!);
    if (rows.length === 0) return `${primitive}: ${this.nothing(step)}.`;
    if (rows.every((row) => play.isCopy(row, step))) return `${primitive}: ${this.copied(step)}.`;
    const count = counted(
      rows.map((row) => (play.isLoose[row] && model.role(row) === "primal" ? "loose" : model.role(row))),
    );
    const words: [string, string][] = [
      ["primal", this.isTogether(rows) ? "for values and tangents at once" : "for the value"],
      ["residual", "for residuals"],
      ["recomputation", "to recompute what was not saved"],
      ["tangent", "for the tangent"],
      ["cotangent", this.towards(step)],
      ["accumulation", "to add it to what came before"],
      ["zero", "for zeros"],
      ["dummy", "for dummies"],
      ["loose", "that come from no equation"],
    ];
    const told = words.flatMap(([role, what]) => (count.has(role) ? [{ n: count.get(role)!, what }] : []));
    const parts = told.map(({ n, what }, i) => `${i === 0 ? plural(n, "equation") : n} ${what}`);
    return `${primitive}: ${parts.join(", ")}.`;
  }

  /** Whether an equation computes both values and tangents, as one with a nested program does in a JVP. */
  private isTogether(rows: number[]): boolean {
    const { model, play } = this;
    return rows.some(
      (row) =>
        model.role(row) === "primal" &&
        !play.isLoose[row] &&
        model.outputs(row).some((v) => model.kin(v) !== "value"),
    );
  }

  private towards(step: number): string {
    const { model, play } = this;
    const operands = play.equations(step).flatMap((row) => model.inputs(row));
    const [u, another] = new Set(operands.filter((a) => a >= 0 && this.hasDual(a)));
    return u === undefined || another !== undefined
      ? "for cotangents"
      : `for the cotangent of ${this.text(u)}`;
  }

  private copied(step: number): string {
    const { model, play } = this;
    const source = play.sources[step]!;
    const [out] = model.outputs(source);
    const t = this.dual(out);
    const isReached = model.inputs(source).some((u) => u >= 0 && this.dual(u) >= 0);
    if (t < 0 && !this.isTransposed && !isReached) return "no tangent reaches it, so it is copied as it is";
    if (t < 0) return "it is copied as it is";
    return `it is copied as it is; ${this.text(t)} is the tangent of its result too`;
  }

  private nothing(step: number): string {
    const { model, play } = this;
    const source = play.sources[step]!;
    const inner = play.sources[step + 1];
    if (inner !== undefined && model.owner(inner) === source)
      return "it is opened; the next steps are inside it";
    const c = this.isTransposed ? this.dual(model.outputs(source)[0]) : -1;
    const to = [...new Set(model.inputs(source))].filter((u) => u >= 0 && this.dual(u) >= 0);
    // A rule that emits nothing can only pass on the cotangent of its result.
    if (c < 0 || to.length === 0 || model.outputs(source).length > 1) return "it adds no equation";
    return `no equation; the cotangent ${this.text(c)} goes to ${to.map((u) => this.text(u)).join(" and to ")} as it is`;
  }

  private text(v: number): string {
    return `\`${this.model.atomText(v)}\``;
  }
}

/** The number of colours; with more variables they repeat, and only the names tell them apart. */
const COLOURS = 7;

/** The classes for a variable's colour and underline: solid for a value, dotted for a tangent or cotangent. */
export function nameClass(name: Name | undefined): string {
  if (name === undefined) return "";
  const colour = name.colour < 0 ? "jv-id-none" : `jv-id-${name.colour % COLOURS}`;
  return `jv-id ${colour} is-${name.kind.replace(" ", "-")}`;
}

/** The variables that some equations define, and those that they read from elsewhere. */
function scope(model: Model, rows: number[]): { defined: Set<number>; free: Set<number> } {
  const defined = new Set(rows.flatMap((row) => model.outputs(row)));
  const free = new Set(rows.flatMap((row) => model.inputs(row)).filter((a) => a >= 0 && !defined.has(a)));
  return { defined, free };
}
