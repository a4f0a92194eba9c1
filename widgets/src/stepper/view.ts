/** What is looked at: the programs, the stop, and which program is shown, which may be another than the one that the run is in. */

import type { Level, Program, Programs, Row, Stop } from "./schema";

/** The way into a program: equations, and which of their bodies. */
export type Way = readonly (readonly [index: number, body: string])[];

export interface Shown {
  stage: string;
  way: Way;
}

export const HUES = 8;

/** How far an equation of the program that is shown is: it has run, was the last to run, runs next, or is still to run. */
export type Progress = "done" | "ran" | "next" | "ahead";

export class StepperState {
  shown: Shown;
  /** The row that is selected in the program that is shown: an equation; -1 for none. */
  selected = -1;
  /** The line of source that is selected, as `file:line`. */
  line = "";

  constructor(
    readonly programs: Programs,
    public stop: Stop,
  ) {
    this.shown = this.here;
  }

  /** The program that the run is in. */
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

  /** Takes a stop, and goes to where it is. */
  arrive(stop: Stop): void {
    const moved = placeKey(stop) !== placeKey(this.stop);
    this.stop = stop;
    if (!moved) return;
    this.shown = this.here;
    this.selected = -1;
    this.line = "";
  }

  show(shown: Shown): void {
    this.shown = shown;
    this.selected = -1;
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

  get program(): Program {
    return this.programs.programs[this.number]!;
  }

  /** The levels of the way that is shown, those of the run where it is on it. */
  get levels(): { row: Row; index: number; body: string; level: Level | null }[] {
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
   * Where the run is in the program that is shown: before which equation; -1 where it is not in it.
   * In an outer program it is within the equation before which it stands.
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

  /** The branch that a cond of the program that is shown takes, where that is known. */
  taken(index: number): number | undefined {
    if (this.isHere) return this.stop.taken[index];
    const depth = this.shown.way.length;
    const inner = this.position === index ? this.stop.path[depth] : undefined;
    const branch = /^branches\[(\d+)\]$/.exec(inner?.body ?? "")?.[1];
    return branch === undefined ? undefined : Number(branch);
  }

  /** The breakpoint on an equation of the program that is shown, or on a line: its number, or -1. */
  breakAtRow(index: number): number {
    const number = this.number;
    return this.stop.breakpoints.findIndex((b) => b.row?.[0] === number && b.row[1] === index);
  }

  breakAtLine(file: number, line: number): number {
    return this.stop.breakpoints.findIndex((b) => b.line?.[0] === file && b.line[1] === line);
  }

  private hues = new Map<string, Map<string, number>>();

  /** The hue of a variable: that of the value that it is the cotangent of, or one in turn. */
  hue(stage: string, name: string): number {
    let of = this.hues.get(stage);
    if (of === undefined) {
      of = new Map();
      for (const { stage: s, inputs, rows } of this.programs.programs)
        if (s === stage)
          for (const [variable, , like] of [...inputs, ...rows.flatMap((row) => row.o)])
            if (like) of.set(variable, inTurn(like.split(",")[0]!));
      this.hues.set(stage, of);
    }
    return of.get(name) ?? inTurn(name);
  }
}

/** Names are given in order, a, …, z, ba, …: neighbours get different hues. */
function inTurn(name: string): number {
  let number = 0;
  for (let i = 0; i < name.length; i++) number = number * 26 + name.charCodeAt(i) - 97;
  return ((number % HUES) + HUES) % HUES;
}

export const wayOf = (path: readonly Level[]): Way => path.map(({ index, body }) => [index, body] as const);

function sameProgram(a: Shown, b: Shown): boolean {
  return a.stage === b.stage && JSON.stringify(a.way) === JSON.stringify(b.way);
}

const placeKey = ({ stage, path, index }: Stop): string =>
  JSON.stringify([stage, path.map((l) => [l.index, l.body, l.iteration]), index]);
