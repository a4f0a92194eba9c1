/** The state of the page: the programs, the stop, and the program shown, which may differ from the one that is running. */

import { entry } from "../base/maps";
import { batch, tracked } from "../base/signals";
import type { Programs, StepLevel, StepProgram, StepperStop, StepRow } from "../wire/stepper.generated";

/** The path into a nested program: equations, and which of their bodies. */
type Way = readonly (readonly [index: number, body: string])[];

export interface Shown {
  stage: string;
  way: Way;
}

const HUES = 8;

/** The state of an equation of the program shown: it has run, ran last, runs next, or is still to run. */
export type Progress = "done" | "ran" | "next" | "ahead";

export class StepperState {
  shown: Shown;
  /** The selected equation of the program shown, or -1. */
  selected = -1;
  private line = "";
  private readonly hues = new Map<string, Map<string, number>>();

  constructor(
    readonly programs: Programs,
    public stop: StepperStop,
  ) {
    this.shown = this.here;
    tracked(this, "shown", "selected", "line", "stop");
  }

  /** The selected source line, or that of the selected equation, as `file:line`; or empty. */
  get selectedLine(): string {
    return lineOf(this.program.rows[this.selected]) ?? this.line;
  }

  /** Whether an equation is on the selected source line. */
  isLit(row: StepRow | undefined): boolean {
    return this.line !== "" && lineOf(row) === this.line;
  }

  /** The equation of interest: the selection, or else the run's position. */
  get current(): number {
    if (this.selected >= 0) return this.selected;
    const lit = this.program.rows.findIndex((row) => this.isLit(row));
    return lit >= 0 ? lit : this.position;
  }

  /** The program that is running. */
  get here(): Shown {
    return { stage: this.stop.stage, way: wayOf(this.stop.path) };
  }

  get isHere(): boolean {
    return sameProgram(this.shown, this.here);
  }

  /** Whether nothing has run yet. */
  get isStart(): boolean {
    const { stage, path, index } = this.stop;
    return index === 0 && path.length === 0 && stage === this.programs.stages[0]?.name;
  }

  /** Takes a new stop, and shows it if the position has changed. */
  arrive(stop: StepperStop): void {
    batch(() => {
      const moved = placeKey(stop) !== placeKey(this.stop);
      this.stop = stop;
      if (moved) [this.shown, this.selected, this.line] = [this.here, -1, ""];
    });
  }

  show(shown: Shown): void {
    batch(() => {
      [this.shown, this.selected] = [shown, -1];
    });
  }

  /** Selects an equation; -1 for none. */
  select(row: number): void {
    batch(() => {
      [this.selected, this.line] = [row, ""];
    });
  }

  /** Selects or deselects a source line. */
  selectLine(file: number, line: number): void {
    batch(() => {
      const key = `${file}:${line}`;
      [this.selected, this.line] = [-1, this.line === key ? "" : key];
    });
  }

  numberOf({ stage, way }: Shown): number {
    let number = this.programs.stages.find((s) => s.name === stage)?.program ?? 0;
    for (const [index, body] of way) {
      const inner = this.programs.programs[number]?.rows[index]?.n?.[body];
      if (inner === undefined) break;
      number = inner;
    }
    return number;
  }

  get number(): number {
    return this.numberOf(this.shown);
  }

  get program(): StepProgram {
    return this.programs.programs[this.number]!;
  }

  /** The equation that runs next. */
  get next(): StepRow | undefined {
    return this.programs.programs[this.numberOf(this.here)]!.rows[this.stop.index];
  }

  /** The levels of the path shown, with the run's levels as far as it is on that path. */
  get levels(): { row: StepRow; index: number; body: string; level: StepLevel | null }[] {
    const { stage, way } = this.shown;
    const found = [];
    let isOn = stage === this.stop.stage;
    for (let depth = 0; depth < way.length; depth++) {
      const [index, body] = way[depth]!;
      const level = this.stop.path[depth];
      isOn &&= level?.index === index && level.body === body;
      const holder = this.programs.programs[this.numberOf({ stage, way: way.slice(0, depth) })]!;
      found.push({ row: holder.rows[index]!, index, body, level: isOn ? level! : null });
    }
    return found;
  }

  /**
   * The run's position in the program shown: the index of the next equation, or -1 if it is not in the program. In an enclosing program,
   * that is the equation that contains the run.
   */
  get position(): number {
    const { stage, way } = this.shown;
    const order = this.programs.stages.map((s) => s.name);
    if (stage !== this.stop.stage)
      return order.indexOf(stage) < order.indexOf(this.stop.stage) && way.length === 0
        ? this.program.rows.length
        : -1;
    const path = wayOf(this.stop.path);
    const isOn = way.every(([index, body], d) => path[d]?.[0] === index && path[d]?.[1] === body);
    if (!isOn) return -1;
    return way.length === path.length ? this.stop.index : path[way.length]![0];
  }

  progress(index: number): Progress {
    const at = this.position;
    if (at < 0) return "ahead";
    if (index === at) return "next";
    if (index === at - 1 && this.isHere) return "ran";
    return index < at ? "done" : "ahead";
  }

  /** The path to the program shown with iterations, as Python expects it. */
  pathTo(): [index: number, body: string, iteration: number | null][] {
    return this.levels.map(({ row, index, body, level }) => {
      // In a loop that is not running, go to its first iteration.
      return [index, body, row.t ? (level?.iteration ?? row.t[1]) : null];
    });
  }

  /** The branch that a cond of the program shown takes, if known. */
  taken(index: number): number | undefined {
    if (this.isHere) return this.stop.taken[index];
    const depth = this.shown.way.length;
    const inner = this.position === index ? this.stop.path[depth] : undefined;
    const branch = /^branches\[(\d+)\]$/.exec(inner?.body ?? "")?.[1];
    return branch === undefined ? undefined : Number(branch);
  }

  /** The breakpoint on an equation of the program shown, by number, or -1. */
  breakAtRow(index: number): number {
    const number = this.number;
    return this.stop.breakpoints.findIndex((b) => b.row?.[0] === number && b.row[1] === index);
  }

  breakAtLine(file: number, line: number): number {
    return this.stop.breakpoints.findIndex((b) => b.line?.[0] === file && b.line[1] === line);
  }

  /** The hue of a variable: that of the value whose cotangent it is, or else the next in turn. */
  hue(stage: string, name: string): number {
    return entry(this.hues, stage, () => this.likeOthers(stage)).get(name) ?? inTurn(name);
  }

  /** The hues of the variables that are the cotangents of others. */
  private likeOthers(stage: string): Map<string, number> {
    const programs = this.programs.programs.filter((program) => program.stage === stage);
    const variables = programs.flatMap(({ inputs, rows }) => [...inputs, ...rows.flatMap((row) => row.o)]);
    return new Map(
      variables.flatMap(([variable, , like]) => (like ? [[variable, inTurn(like.split(",")[0]!)]] : [])),
    );
  }
}

const lineOf = (row: StepRow | undefined): string | undefined => row?.a?.slice(0, 2).join(":");

/** Names are assigned in order, a, …, z, ba, …, so neighbours get different hues. */
function inTurn(name: string): number {
  let number = 0;
  for (let i = 0; i < name.length; i++) number = number * 26 + name.charCodeAt(i) - 97;
  return ((number % HUES) + HUES) % HUES;
}

const wayOf = (path: readonly StepLevel[]): Way => path.map(({ index, body }) => [index, body] as const);

function sameProgram(a: Shown, b: Shown): boolean {
  return a.stage === b.stage && JSON.stringify(a.way) === JSON.stringify(b.way);
}

const placeKey = ({ stage, path, index }: StepperStop): string =>
  JSON.stringify([stage, path.map((l) => [l.index, l.body, l.iteration]), index]);
