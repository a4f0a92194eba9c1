/** A step as a small program: what each variable is to the equation that the step is of. */

import { plural } from "./format";
import type { Model } from "./model";
import type { Play } from "./player";

export type Kind = "source" | "value" | "tangent" | "cotangent" | "so far" | "residual" | "local";

/** What a variable is in a step. */
export interface Name {
  variable: number;
  kind: Kind;
  /** The variable of the source that it is the value, the tangent or the cotangent of, or -1. */
  of: number;
  /** A number for each identity, or -1 for what has its meaning in the rule alone. */
  colour: number;
}

/** What a rule adds to one stage. */
export interface Part {
  stage: number;
  takes: Name[];
  rows: number[];
  gives: Name[];
}

export interface Rule {
  /** What it is called: `jvp rule of sin`. */
  title: string;
  parts: Part[];
  names: ReadonlyMap<number, Name>;
  /** What it is, in a sentence. */
  sentence: string;
}

/** Equations whose programs take the last operands as they are, and whose results are theirs. */
const CALLS = new Set(
  `scan cond jit pjit while shard_map remat remat2 checkpoint closed_call core_call custom_jvp_call
   custom_vjp_call`.split(/\s+/),
);

/** What hands the cotangent of its result to each of its operands as it is. */
const PASSES = new Set(["add_any", "add", "copy", "copy_p"]);

/** The roles of equations that compute values. */
const OF_VALUES = new Set(["primal", "recomputation"]);

/**
 * Who is whose value, tangent and cotangent, found by place, by type and by what the rules read, never by name. Where that
 * leaves a choice, nothing is said.
 */
export class Rules {
  private readonly model: Model;
  private readonly isTransposed: boolean;
  /** A variable of the targets → that of the source which it belongs to. */
  private readonly of: Int32Array;
  private readonly isValue: Uint8Array;
  /** An input that is a tangent, of whatever. */
  private readonly isTangent: Uint8Array;
  /** An input that the forward program saved. */
  private readonly isResidual: Uint8Array;
  /** What the forward program saves. */
  private readonly saved = new Set<number>();
  /** A variable of the source → its tangent; or its cotangent, once all of it is summed. */
  private readonly dual: Int32Array;
  /** An input of a program that an equation holds → the operand that it is outside. */
  private readonly outside: Int32Array;
  /** A result of such an equation → what it is inside. */
  private readonly inside: Int32Array;

  constructor(readonly play: Play) {
    this.model = play.model;
    this.isTransposed = play.transform.key === "transpose";
    const n = this.model.column("variable_name").length;
    this.of = new Int32Array(n).fill(-1);
    this.dual = new Int32Array(n).fill(-1);
    this.outside = new Int32Array(n).fill(-1);
    this.inside = new Int32Array(n).fill(-1);
    this.isValue = new Uint8Array(n);
    this.isTangent = new Uint8Array(n);
    this.isResidual = new Uint8Array(n);
    for (const stage of [play.transform.source, ...play.transform.targets]) this.link(stage);
    if (this.isTransposed) this.bindTransposed();
    else this.bindInputs();
    for (let step = 0; step < play.length; step++) this.infer(step);
  }

  /** The rule of a step, its variables told apart. */
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

  /** Whether the forward program saves a variable of it for the linear one. */
  isSaved(v: number): boolean {
    return this.saved.has(v);
  }

  private names(step: number, rows: number[]): Map<number, Name> {
    const { model, play } = this;
    const names = new Map<number, Name>();
    const sources = play.equations(step);
    const operands = new Set(sources.flatMap((row) => model.inputs(row)).filter(isVariable));
    let colours = 0;
    for (const u of [...operands, ...sources.flatMap((row) => model.outputs(row))])
      if (!names.has(u)) names.set(u, { variable: u, kind: "source", of: u, colour: colours++ });
    const put = (v: number, kind: Kind, of: number) => {
      if (!names.has(v)) names.set(v, { variable: v, kind, of, colour: names.get(of)?.colour ?? -1 });
    };
    const { defined, free } = scope(model, rows);
    const variables = [...free, ...defined];
    const dual: Kind = this.isTransposed ? "cotangent" : "tangent";
    for (const [v, u] of this.copies(step, rows)) put(v, "value", u);
    for (const u of [...names.keys()]) if (this.dual[u]! >= 0) put(this.dual[u]!, dual, u);
    const linear = [...operands].filter((u) => this.hasDual(u));
    for (const v of this.summed(rows)) put(v, "so far", linear.length === 1 ? linear[0]! : -1);
    for (const v of variables)
      if (names.has(this.of[v]!) && !this.isResidual[v])
        put(v, this.isValue[v] ? "value" : dual, this.of[v]!);
    for (const v of variables) {
      // A call that takes tangents too gives what its program gives.
      const within = this.inside[v]! < 0 ? -1 : this.of[this.inside[v]!]!;
      const alike =
        within < 0 ? [] : [...names.keys()].filter((u) => this.inside[u] === within && this.sameType(u, v));
      if (alike.length === 1 && !names.has(v))
        put(v, this.isValue[this.inside[v]!] ? "value" : dual, alike[0]!);
    }
    this.nameResiduals(variables, names, () => colours++);
    for (const v of variables)
      if (free.has(v) && this.of[v]! >= 0) put(v, this.isValue[v] ? "value" : dual, this.of[v]!);
      else if (this.isTangent[v]) put(v, dual, -1);
      else put(v, "local", -1);
    return names;
  }

  /** A residual has the colour of what it holds: a variable of the source, or one that the rule makes or reads. */
  private nameResiduals(variables: number[], names: Map<number, Name>, colour: () => number): void {
    const held = new Map<number, number>();
    const hold = (v: number) => {
      for (const w of this.outwards(v)) if (!held.has(w)) held.set(w, v);
    };
    if (this.isTransposed)
      for (const { variable, kind } of [...names.values()]) kind === "source" && hold(variable);
    else for (const v of variables) if (!this.isResidual[this.outmost(v)]) hold(v);
    for (const v of variables) {
      const top = this.outmost(v);
      if (!this.isResidual[top] || names.has(v)) continue;
      const made = this.inwards(this.of[top]!)
        .map((w) => held.get(w))
        .find((w) => w !== undefined);
      const known = made === undefined ? undefined : names.get(made);
      const of = known?.of ?? -1;
      const shared = known === undefined || known.colour < 0 ? colour() : known.colour;
      if (made !== undefined && !known)
        names.set(made, { variable: made, kind: "residual", of, colour: shared });
      names.set(v, { variable: v, kind: "residual", of, colour: shared });
    }
  }

  // --- what is certain from the start ---

  /** Notes what passes into and out of the programs that equations of a stage hold. */
  private link(stage: number): void {
    const { model } = this;
    const [from, to] = model.view.stages[stage]!.equations;
    for (let row = from; row < to; row++) {
      if (!CALLS.has(model.primitive(row))) continue;
      const operands = model.inputs(row);
      const outputs = model.outputs(row);
      const programs = model.nested(row);
      for (const program of programs) {
        if (model.programLabel(program) === "cond_jaxpr") continue;
        const binders = model.binders(program);
        for (const [i, v] of binders.entries()) {
          const operand = operands[operands.length - binders.length + i] ?? -1;
          if (operand >= 0) this.outside[v] = operand;
        }
        const results = model.results(program);
        if (programs.length > 1 || results.length !== outputs.length) continue;
        for (const [i, v] of outputs.entries()) if (results[i]! >= 0) this.inside[v] = results[i]!;
      }
    }
  }

  private top(stage: number): number {
    return this.model.view.stages[stage]!.programs[0];
  }

  /** The inputs of the JVP, or of the forward and the linear program. */
  private bindInputs(): void {
    const { model } = this;
    const { source, targets } = this.play.transform;
    const inputs = model.binders(this.top(source));
    const [first, second] = targets.map((stage) => this.top(stage));
    const given = model.binders(first!);
    for (const [i, u] of inputs.entries()) if (given[i] !== undefined) this.setValue(given[i]!, u);
    if (second === undefined) {
      this.bindTangents(inputs, given.slice(inputs.length));
      return;
    }
    const saved = model.results(first!).slice(model.results(this.top(source)).length);
    const binders = model.binders(second);
    for (const [i, u] of saved.entries()) {
      const v = binders[i];
      if (v === undefined) continue;
      this.isResidual[v] = 1;
      if (u < 0) continue;
      this.of[v] = u;
      for (const w of this.inwards(u)) this.saved.add(w);
    }
    this.bindTangents(inputs, binders.slice(saved.length));
  }

  /** Tangents stand in the order of what they are tangents of: certain where the first fit by type is the last one too. */
  private bindTangents(inputs: number[], tangents: number[]): void {
    for (const v of tangents) this.isTangent[v] = 1;
    const fit = (from: number[], found: number[]) => {
      let i = 0;
      return found.map((v) => {
        while (i < from.length && !this.sameType(from[i]!, v)) i++;
        return from[i++] ?? -1;
      });
    };
    const first = fit(inputs, tangents);
    const last = fit([...inputs].reverse(), [...tangents].reverse()).reverse();
    for (const [i, v] of tangents.entries()) if (first[i] === last[i]) this.pair(first[i]!, v);
  }

  /** The inputs of the backward program: residuals, then a cotangent for each result of the linear one. */
  private bindTransposed(): void {
    const { model } = this;
    const { source, targets } = this.play.transform;
    const from = model.binders(this.top(source));
    const to = model.binders(this.top(targets[0]!));
    const results = model.results(this.top(source));
    const residuals = to.length - results.length;
    for (const [i, v] of to.entries())
      if (i >= residuals) this.pair(results[i - residuals]!, v);
      else if (from[i] !== undefined) {
        this.isResidual[v] = 1;
        this.isResidual[from[i]!] = 1;
        this.setValue(v, from[i]!);
      }
  }

  // --- what follows, step by step ---

  private infer(step: number): void {
    const { model, play } = this;
    const rows = play.outerRows(step);
    for (const [v, u] of this.copies(step, rows)) this.setValue(v, u);
    const [source, another] = play.equations(step);
    if (source === undefined || another !== undefined) return;
    const outputs = model.outputs(source);
    const operands = [...new Set(model.inputs(source).filter(isVariable))].filter((u) => this.hasDual(u));
    // The variables whose tangents or cotangents the rule reads, and those whose it makes.
    const [read, made] = this.isTransposed ? [outputs, operands] : [operands, outputs];
    const linear = rows.filter((row) => this.isLinear(row, source));
    const sum = this.summed(rows);
    const isOpen = (v: number) =>
      !this.isValue[v] &&
      !this.isResidual[this.outmost(v)] &&
      !sum.has(v) &&
      !read.some((u) => this.dual[u] === v);
    for (const v of scope(model, linear).free) {
      // What is handed into a program belongs to what is handed into the program that it was made of.
      const outer = this.of[this.outside[v]!] ?? -1;
      const alike =
        outer < 0 || !isOpen(v) ? [] : read.filter((u) => this.outside[u] === outer && this.dual[u]! < 0);
      if (alike.length === 1 && this.sameType(alike[0]!, v)) this.pair(alike[0]!, v);
    }
    this.pairByType(
      read.filter((u) => this.dual[u]! < 0),
      [...scope(model, linear).free].filter(isOpen),
    );
    const results = model.outputs(linear.at(-1) ?? source);
    if (linear.length > 0) {
      if (results.length === made.length && made.every((u, i) => this.sameType(u, results[i]!)))
        for (const [i, u] of made.entries()) this.pair(u, results[i]!);
    } else if (this.isTransposed && rows.length === 0 && PASSES.has(model.primitive(source)))
      for (const u of made) if (this.dual[u]! < 0) this.dual[u] = this.dual[outputs[0]!]!;
  }

  /** Whether an equation of a rule works on tangents or cotangents, be it together with the values. */
  private isLinear(row: number, source: number): boolean {
    const { model, play } = this;
    if (play.isLoose[row] || model.role(row) === "residual") return false;
    return !OF_VALUES.has(model.role(row)) || model.inputs(row).length > model.inputs(source).length;
  }

  /** What of a cotangent was there before a step that adds to it. */
  private summed(rows: number[]): Set<number> {
    const { model, play } = this;
    const { defined } = scope(model, rows);
    const sums = rows.filter((row) => model.role(row) === "accumulation" && !play.isLoose[row]);
    const found = new Set<number>();
    for (const row of sums) {
      const before = model.inputs(row).filter((a) => a >= 0 && !defined.has(a));
      if (before.length > 0) found.add(before[0]!);
    }
    return found;
  }

  /** Whether a variable of the source has a tangent or a cotangent: of the linear program, what is neither saved nor computed again. */
  private hasDual(u: number): boolean {
    if (!this.isTransposed) return true;
    if (this.isResidual[this.outmost(u)]) return false;
    const made = this.model.definition(u);
    return made < 0 || this.model.role(made) !== "recomputation";
  }

  /** Pairs what has but one partner of its type. */
  private pairByType(sources: number[], found: number[]): void {
    for (const v of found) {
      const [u, another] = sources.filter((s) => this.sameType(s, v));
      if (u === undefined || another !== undefined) continue;
      if (found.filter((w) => this.sameType(w, v)).length === 1) this.pair(u, v);
    }
  }

  private pair(u: number, v: number): void {
    if (u < 0 || v < 0) return;
    this.dual[u] = v;
    if (this.of[v]! < 0) this.of[v] = u;
  }

  private setValue(v: number, u: number): void {
    if (this.of[v]! >= 0) return;
    this.of[v] = u;
    this.isValue[v] = 1;
  }

  /** What a step computes as its equation does, operand by operand and result by result: pairs of target and source. */
  private *copies(step: number, rows: number[]): Generator<[number, number]> {
    const { model, play } = this;
    const [source, another] = play.equations(step);
    if (source === undefined || another !== undefined) return;
    const inputs = model.inputs(source);
    const outputs = model.outputs(source);
    for (const row of rows) {
      if (!OF_VALUES.has(model.role(row)) || play.isLoose[row]) continue;
      if (model.primitive(row) !== model.primitive(source)) continue;
      const read = model.inputs(row);
      const made = model.outputs(row);
      // The forward program of an equation has its residuals after its results.
      const isForward = model.view.stages[model.stage(row)]!.key === "forward";
      if (read.length !== inputs.length || made.length < outputs.length) continue;
      if (made.length > outputs.length && !isForward) continue;
      for (const [i, u] of inputs.entries())
        if (u >= 0 && read[i]! >= 0 && this.sameType(read[i]!, u)) yield [read[i]!, u];
      for (const [i, u] of outputs.entries()) if (this.sameType(made[i]!, u)) yield [made[i]!, u];
    }
  }

  private sameType(a: number, b: number): boolean {
    const types = this.model.column("variable_type");
    return types[a] === types[b];
  }

  // --- through the programs that equations hold ---

  private outmost(v: number): number {
    return this.outwards(v).at(-1)!;
  }

  /** The variable, and what it is outside of each program that it is handed into. */
  private outwards(v: number): number[] {
    const found = [v];
    for (let w = this.outside[v]!; w >= 0; w = this.outside[w]!) found.push(w);
    return found;
  }

  /** The variable, and what it is inside of the equation that makes it. */
  private inwards(v: number): number[] {
    const found: number[] = [];
    for (let w = v; w >= 0 && !found.includes(w); w = this.inside[w]!) found.push(w);
    return found;
  }

  // --- in words ---

  private sentence(step: number, rows: number[]): string {
    const { model, play } = this;
    const primitive = model.primitive(play.sources[step]!);
    if (rows.length === 0) return `${primitive}: ${this.nothing(step)}.`;
    if (rows.every((row) => play.isCopy(row, step))) return `${primitive}: ${this.copied(step, rows)}.`;
    const count = new Map<string, number>();
    for (const row of rows) {
      const role = model.role(row);
      const told = play.isLoose[row] && role === "primal" ? "loose" : role;
      count.set(told, (count.get(told) ?? 0) + 1);
    }
    const words: [string, string][] = [
      ["primal", this.isTogether(step, rows) ? "for values and tangents at once" : "for the value"],
      ["residual", "towards what is saved"],
      ["recomputation", "that computes again what was not saved"],
      ["tangent", "for the tangent"],
      ["cotangent", this.towards(step)],
      ["accumulation", "to add it to what came before"],
      ["zero", "for zeros"],
      ["dummy", "for dummies"],
      ["loose", "that came from no equation"],
    ];
    const told = words.flatMap(([role, what]) => (count.has(role) ? [{ n: count.get(role)!, what }] : []));
    const parts = told.map(({ n, what }, i) => `${i === 0 ? plural(n, "equation") : n} ${what}`);
    return `${primitive}: ${parts.join(", ")}.`;
  }

  /** Whether an equation that holds a program takes values and tangents, as in a JVP. */
  private isTogether(step: number, rows: number[]): boolean {
    const { model, play } = this;
    return rows.some((row) => model.role(row) === "primal" && this.isLinear(row, play.sources[step]!));
  }

  private towards(step: number): string {
    const { model, play } = this;
    const operands = play.equations(step).flatMap((row) => model.inputs(row));
    const [u, another] = new Set(operands.filter((a) => a >= 0 && this.hasDual(a)));
    return u === undefined || another !== undefined
      ? "for cotangents"
      : `for the cotangent of ${this.text(u)}`;
  }

  private copied(step: number, rows: number[]): string {
    const { model, play } = this;
    if (rows.some((row) => model.rule(row).includes("no tangent reaches it")))
      return "no tangent reaches it, so it is copied as it is";
    const [out] = model.outputs(play.sources[step]!);
    const t = out === undefined ? -1 : this.dual[out]!;
    if (t < 0) return "it is copied as it is";
    return `it is copied as it is; ${this.text(t)} is the tangent of its result too`;
  }

  private nothing(step: number): string {
    const { model, play } = this;
    const source = play.sources[step]!;
    const inner = play.sources[step + 1];
    if (inner !== undefined && model.owner(inner) === source)
      return "it is taken apart; the steps that follow are inside it";
    const [out] = model.outputs(source);
    const c =
      this.isTransposed && PASSES.has(model.primitive(source)) && out !== undefined ? this.dual[out]! : -1;
    if (c < 0) return "no equation comes of it";
    const to = [...new Set(model.inputs(source))].filter((u) => u >= 0 && this.hasDual(u));
    return `no equation; the cotangent ${this.text(c)} goes to ${to.map((u) => this.text(u)).join(" and to ")} as it is`;
  }

  private text(v: number): string {
    return `\`${this.model.atomText(v)}\``;
  }
}

/** How many colours there are; beyond that they come again, and the names tell apart. */
const COLOURS = 7;

/** The classes that give a variable its colour, and its line: whole for a value, dotted for a tangent or a cotangent. */
export function nameClass(name: Name | undefined): string {
  if (name === undefined) return "";
  const colour = name.colour < 0 ? "jv-id-none" : `jv-id-${name.colour % COLOURS}`;
  return `jv-id ${colour} is-${name.kind.replace(" ", "-")}`;
}

function isVariable(atom: number): boolean {
  return atom >= 0;
}

/** The variables that some equations make, and those that they read of others. */
function scope(model: Model, rows: number[]): { defined: Set<number>; free: Set<number> } {
  const defined = new Set(rows.flatMap((row) => model.outputs(row)));
  const free = new Set(rows.flatMap((row) => model.inputs(row)).filter((a) => a >= 0 && !defined.has(a)));
  return { defined, free };
}
