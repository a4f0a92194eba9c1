/** The steps of a transform: each equation that it visits, with the equations that it emits for it. */

import { entry } from "../base/maps";
import type { Sliced } from "../base/slices";
import { push } from "./groups";
import type { Model } from "./model";
import type { Rule, Rules } from "./rule";

/** A transform that can be played, from its source stage to its target stages. */
export interface Transform {
  key: "jvp" | "linearize" | "transpose";
  label: string;
  source: number;
  targets: readonly number[];
}

const TRANSFORMS: [Transform["key"], string, string[]][] = [
  ["jvp", "primal", ["jvp"]],
  ["linearize", "primal", ["forward", "linear"]],
  ["transpose", "linear", ["backward"]],
];

/** The transforms for which all stages are available and the source has equations. */
export function transformsOf(model: Model): Transform[] {
  const { stages } = model.view;
  const find = (key: string) => stages.findIndex((s) => s.key === key && !s.error);
  return TRANSFORMS.flatMap(([key, from, to]) => {
    const [source, ...targets] = [from, ...to].map(find);
    if (source! < 0 || targets.some((t) => t < 0)) return [];
    const [start, stop] = stages[source!]!.equations;
    if (start === stop) return [];
    const label = `${stages[source!]!.label} → ${targets.map((t) => stages[t]!.label).join(" | ")}`;
    return [{ key, label, source: source!, targets }];
  });
}

/** A transform at one of its steps. */
export class Player {
  readonly rule: Rule;
  /** The equation, and those emitted for it. */
  readonly shown: readonly number[];

  constructor(
    readonly rules: Rules,
    readonly step: number,
    /** Whether to skip steps that emit no equation. */
    readonly onlyAdding = false,
  ) {
    this.rule = rules.at(step);
    this.shown = [...this.play.equations(step), ...this.play.rows(step)];
  }

  get play(): Play {
    return this.rules.play;
  }

  standing(row: number): Standing {
    return this.play.standing(row, this.step);
  }

  at(step: number, onlyAdding = this.onlyAdding): Player {
    return new Player(this.rules, step, onlyAdding);
  }
}

/** The state of an equation at a step, as a class name in listings; or empty. */
export type Standing = "" | "is-played" | "is-written" | "is-later";

/** Equations or steps processed between two yields. */
const SLICE = 200;

/** The steps of a transform, in slices. */
export function* playing(model: Model, transform: Transform): Sliced<Play> {
  const play = new Play(model, transform);
  yield* play.find();
  return play;
}

/**
 * The steps of one transform in the order in which it visits the equations: a transposition goes backwards, but does recomputation first.
 * The equations of a nested program follow the enclosing equation. Each equation of the target stages belongs to one step.
 */
export class Play {
  /** The equation of each step; for joint steps, the last of their equations. */
  sources = new Int32Array();
  /** The step of each row of the source and targets, or -1. */
  readonly stepOf: Int32Array;
  /** 1 for rows that come from no equation of the source; they are shown with the step at which they occur. */
  readonly isLoose: Uint8Array;
  /** 1 for steps that emit more than a copy of their equation. */
  adds = new Uint8Array();
  private starts = new Int32Array();
  private items = new Int32Array();
  /** Equations that share a step, since their derived rows cannot be told apart. */
  private readonly joined = new Map<number, number>();

  constructor(
    readonly model: Model,
    readonly transform: Transform,
  ) {
    this.isLoose = new Uint8Array(model.rows);
    this.stepOf = new Int32Array(model.rows).fill(-1);
  }

  /** Computes the steps. */
  *find(): Sliced<void> {
    const { model, transform } = this;
    const cameFrom = yield* this.match();
    const touched = new Uint8Array(model.rows);
    for (const row of this.targetRows())
      for (let s = cameFrom[row]!; s >= 0 && !touched[s]; s = model.owner(s)) touched[s] = 1;
    yield;
    this.sources = Int32Array.from(this.visits(touched, cameFrom));
    yield;
    this.sources.forEach((source, step) => {
      this.stepOf[source] = step;
    });
    const [from, to] = this.range(transform.source);
    for (let row = from; row < to; row++) {
      const whole = this.joined.get(row) ?? (this.stepOf[row]! < 0 ? model.owner(row) : row);
      this.stepOf[row] = whole < 0 ? -1 : this.stepOf[whole]!;
    }
    yield;
    this.starts = new Int32Array(this.sources.length + 1);
    for (const row of this.targetRows()) {
      const step = cameFrom[row]! < 0 ? -1 : this.stepOf[cameFrom[row]!]!;
      this.stepOf[row] = step;
      if (step >= 0) this.starts[step + 1]! += 1;
    }
    for (let i = 0; i < this.sources.length; i++) this.starts[i + 1]! += this.starts[i]!;
    const next = this.starts.slice();
    this.items = new Int32Array(this.starts[this.sources.length]!);
    for (const row of this.targetRows())
      if (this.stepOf[row]! >= 0) this.items[next[this.stepOf[row]!]!++] = row;
    this.adds = new Uint8Array(this.length);
    for (let step = 0; step < this.length; step++) {
      if (step % SLICE === 0) yield;
      this.adds[step] = Number(this.rows(step).some((row) => !this.isCopy(row, step)));
    }
  }

  get length(): number {
    return this.sources.length;
  }

  /** The rows that a step emits, in the order of the targets. */
  rows(step: number): number[] {
    return Array.from(this.items.subarray(this.starts[step]!, this.starts[step + 1]!));
  }

  /** The rows among them that are not nested in others. */
  outerRows(step: number): number[] {
    const rows = this.rows(step);
    const own = new Set(rows);
    return rows.filter((row) => !own.has(this.model.owner(row)));
  }

  /** The source equations of a step: one, unless their derived rows cannot be told apart. */
  equations(step: number): number[] {
    const last = this.sources[step]!;
    const others = [...this.joined].filter(([row, into]) => into === last && row !== last);
    return [...others.map(([row]) => row), last];
  }

  /** The next or previous step, optionally only steps that emit equations; -1 if there is none. */
  next(step: number, by: 1 | -1, onlyAdding: boolean): number {
    for (let i = step + by; i >= 0 && i < this.length; i += by) if (!onlyAdding || this.adds[i]) return i;
    return -1;
  }

  standing(row: number, step: number): Standing {
    const own = this.stepOf[row]!;
    if (this.model.stage(row) === this.transform.source) return own === step ? "is-played" : "";
    return own === step ? "is-written" : own > step ? "is-later" : "";
  }

  /** Whether a row is a copy of its source equation. */
  isCopy(row: number, step: number): boolean {
    const { model } = this;
    if (model.role(row) !== "primal" || this.isLoose[row]) return false;
    const source = this.sources[step]!;
    const [made, was] = [model.outputs(row), model.outputs(source)];
    return (
      model.primitive(row) === model.primitive(source) &&
      made.length === was.length &&
      made.every((v, i) => model.isSame(v, was[i]!))
    );
  }

  private range(stage: number): [number, number] {
    return this.model.view.stages[stage]!.equations;
  }

  private *targetRows(): Generator<number> {
    for (const stage of this.transform.targets) {
      const [from, to] = this.range(stage);
      for (let row = from; row < to; row++) yield row;
    }
  }

  /** For each row of the targets, the source equation that it came from, or -1. */
  private *match(): Sliced<Int32Array> {
    const { model } = this;
    const found = new Int32Array(model.rows).fill(-1);
    const [from, to] = this.range(this.transform.source);
    const inSource = (row: number) => model.alike(row).filter((same) => same >= from && same < to);
    let last = from;
    for (const row of this.targetRows()) {
      if (row % SLICE === 0) yield;
      const owner = model.owner(row);
      const within = owner < 0 ? -1 : found[owner]!;
      let same: number[] = [];
      for (let r = row; r >= 0 && same.length === 0; r = model.origin(r)) same = inSource(r);
      // A program that is called twice is shown twice: decide by the call, or else by order.
      found[row] =
        same.find((s) => model.owner(s) === within) ??
        same.find((s) => s >= last) ??
        same[0] ??
        this.beside(row, within);
      if (same.length > 0 && this.transform.key !== "transpose") last = found[row]!;
    }
    for (const row of this.targetRows()) found[row] = this.joined.get(found[row]!) ?? found[row]!;
    yield;
    this.place(found);
    yield;
    return found;
  }

  /**
   * For a row whose origin is in a program that is not shown, such as the JVP of a checkpointed body: the equation of the nested program
   * with the same root, or else the enclosing equation.
   */
  private beside(row: number, within: number): number {
    if (within < 0) return -1;
    const root = this.root(row);
    if (root < 0) return within;
    const alike = this.heldRows(within).get(root);
    if (alike === undefined) return within;
    const last = alike.at(-1)!;
    if (alike.length > 1) for (const each of alike) this.joined.set(each, last);
    return last;
  }

  private readonly held = new Map<number, Map<number, number[]>>();

  /** The equations of a nested program by their root in the function, without recomputation. */
  private heldRows(holder: number): Map<number, number[]> {
    return entry(this.held, holder, () => this.findRows(holder));
  }

  private findRows(holder: number): Map<number, number[]> {
    const { model } = this;
    const found = new Map<number, number[]>();
    for (const row of model.nested(holder).flatMap((program) => model.rowsOf(program))) {
      const root = model.role(row) === "recomputation" ? -1 : this.root(row);
      if (root >= 0) push(found, root, row);
    }
    return found;
  }

  /** The equation of the function that a row derives from, or -1. */
  private root(row: number): number {
    let r = this.model.origin(row);
    if (r < 0) return -1;
    while (this.model.origin(r) >= 0) r = this.model.origin(r);
    return this.model.first(r);
  }

  /** Assigns rows without a source equation to the step of the next row in their program, or at its end, of the previous one. */
  private place(found: Int32Array): void {
    const { model } = this;
    const rows = [...this.targetRows()];
    const near = new Map<number, number>();
    const fill = (row: number) => {
      const program = model.program(row);
      if (found[row]! >= 0) near.set(program, found[row]!);
      else if (near.has(program)) {
        found[row] = near.get(program)!;
        this.isLoose[row] = 1;
      }
    };
    for (let i = rows.length - 1; i >= 0; i--) fill(rows[i]!);
    near.clear();
    for (const row of rows) fill(row);
  }

  /** The source equations in visiting order. Equations of a nested program from which nothing was derived are left out. */
  private *visits(touched: Uint8Array, cameFrom: Int32Array): Generator<number> {
    const { model, transform } = this;
    const [from] = this.range(transform.source);
    const again = new Uint8Array(model.rows);
    if (transform.key === "transpose")
      for (const row of this.targetRows())
        if (cameFrom[row]! >= 0 && model.role(row) === "recomputation") again[cameFrom[row]!] = 1;
    const { joined } = this;
    function* visit(program: number): Generator<number> {
      const rows = model.rowsOf(program);
      if (model.owner(rows[0] ?? from) >= 0 && !rows.some((row) => touched[row])) return;
      const order =
        transform.key === "transpose"
          ? [...rows.filter((row) => again[row]), ...rows.filter((row) => !again[row]).reverse()]
          : rows;
      for (const row of order) {
        if ((joined.get(row) ?? row) !== row) continue;
        yield row;
        for (const inner of model.nested(row)) yield* visit(inner);
      }
    }
    yield* visit(model.view.stages[transform.source]!.programs[0]);
  }
}
