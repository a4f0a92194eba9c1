/** The animation of a gradient: for each step, what runs, what it saves, which saved values it reads, and what is in memory. */

import { entry } from "../base/maps";
import { atOnce, type Sliced } from "../base/slices";
import { push } from "./groups";
import type { Model } from "./model";
import { aliveOf, bytesOf, type Kept, type Overview, overviewOf } from "./overview";
import type { Place } from "./records";
import { type Buffer, type Step, type Timeline, type Totals, totalsOf } from "./timeline";

export type ShelfKind = "kept" | "again" | "temporary" | "cotangent";

/** A group of values, with the bytes in memory at each step. */
export interface Shelf {
  kind: ShelfKind;
  label: string;
  /** Why they are saved; empty if no reason is needed. */
  reason: string;
  place: Place | null;
  residuals: readonly number[];
  /** The expressions whose values they are, if several. */
  members: readonly Kept[];
  alive: Float64Array;
  /** The most bytes in memory at any step. */
  most: number;
}

/** The expressions with whose values something happens while something runs. */
export interface Happening {
  saves: Kept[];
  reads: Kept[];
  frees: Kept[];
}

const KINDS = ["saves", "reads", "frees"] as const;

/** What is played as one: a line, a part of the model, or an equation. */
export const PACES = ["line", "layer", "equation"] as const;
export type Pace = (typeof PACES)[number];

/** What is seen at a time: some steps, or some equations that a loop runs in its step. */
export interface Frame {
  first: number;
  last: number;
  /** The loop whose equations it shows, and the first and last of them; or -1 and none. */
  loop: number;
  rows: readonly number[];
}

const made = new WeakMap<Timeline, Motion>();

/** The motion of a gradient whose memory is known; cached. */
export const motionOf = (model: Model): Motion => atOnce(moving(model));

/** The same, in slices. */
export function* moving(model: Model): Sliced<Motion> {
  const before = made.get(model.timeline);
  if (before !== undefined) return before;
  const motion = new Motion(model);
  yield* motion.find();
  made.set(motion.timeline, motion);
  return motion;
}

export class Motion {
  readonly timeline: Timeline;
  readonly totals: Totals;
  private readonly happenings = new Map<number, Happening>();
  private readonly paced = new Map<Pace, readonly Frame[]>();
  private readonly overview: Overview;

  constructor(readonly model: Model) {
    this.timeline = model.timeline;
    this.totals = totalsOf(this.timeline);
    this.overview = overviewOf(model);
  }

  /** Computes what happens at each step. */
  *find(): Sliced<void> {
    const steps = stepsOfRows(this.timeline);
    for (const kept of this.overview.kept) {
      this.note(kept, aliveOf(kept, this.timeline), steps);
      yield;
    }
  }

  /** Whether a step of the backward pass recomputes values of a checkpoint. */
  isAgain(step: number): boolean {
    const row = this.timeline.steps[step]?.row ?? -1;
    return row >= 0 && this.model.role(row) === "recomputation";
  }

  /** What happens in a frame. Of what a loop does, the values of an expression belong to its line. */
  during({ first, last, rows }: Frame): Happening {
    const found: Happening = { saves: [], reads: [], frees: [] };
    for (let step = first; step <= last; step++)
      for (const kind of KINDS)
        for (const kept of this.happenings.get(step)?.[kind] ?? [])
          if (!found[kind].includes(kept)) found[kind].push(kept);
    if (rows.length === 0) return found;
    const place = this.model.place(rows[0]!);
    const here = new Set(rows);
    const isOfLine = (kept: Kept) => kept.place?.file === place?.file && kept.place?.line === place?.line;
    const isReadHere = ({ residuals }: Kept) =>
      residuals.some((r) => this.model.residuals[r]!.consumers.some((row) => here.has(row)));
    return { saves: found.saves.filter(isOfLine), reads: found.reads.filter(isReadHere), frees: [] };
  }

  /** Whether something is saved or read in a frame. */
  isStop(frame: Frame): boolean {
    if (frame.first === frame.last && !this.happenings.has(frame.first)) return false;
    const { saves, reads } = this.during(frame);
    return saves.length + reads.length > 0;
  }

  /** The frames of a pace, in order; what a loop runs follows it. */
  frames(pace: Pace): readonly Frame[] {
    return entry(this.paced, pace, () => this.framesOf(pace));
  }

  private framesOf(pace: Pace): Frame[] {
    const { steps } = this.timeline;
    const frames: Frame[] = [];
    let before = "";
    steps.forEach((step, i) => {
      const inside = pace === "layer" ? [] : this.insideLoop(step.row);
      const isAlone = inside.length > 0 || pace === "equation";
      const key = isAlone ? `${i}` : this.keyOf(step, pace, before);
      if (key === before) frames.at(-1)!.last = i;
      else frames.push({ first: i, last: i, loop: -1, rows: [] });
      before = key;
      for (const rows of groupedBy(inside, (row) => (pace === "line" ? this.lineOf(row) : `${row}`)))
        frames.push({ first: i, last: i, loop: step.row, rows });
    });
    return frames;
  }

  /** A key of what a step belongs to; what has no line belongs to the step before in the same pass. */
  private keyOf({ row, isBackward }: Step, pace: Pace, before: string): string {
    const pass = isBackward ? "backward" : "forward";
    const part = pace === "line" ? this.lineOf(row) : this.overview.around(row).slice(-2)[0]?.index;
    return (part ?? "") === "" && before.startsWith(pass) ? before : `${pass} ${part}`;
  }

  private lineOf(row: number): string {
    const place = row >= 0 ? this.model.place(row) : null;
    return place === null ? "" : `${place.file}:${place.line}`;
  }

  /** The equations that a loop runs, without those that call others; none for other equations. */
  private insideLoop(row: number): number[] {
    const { model } = this;
    if (row < 0 || model.length(row) === 0) return [];
    const within = (each: number): number[] => {
      const programs = model.nested(each);
      // Of several programs, such as a cond's branches, one runs.
      return programs.length === 1 ? model.rowsOf(programs[0]!).flatMap(within) : [each];
    };
    return within(row);
  }

  /** The shelves in order, without empty ones: so many for saved expressions, of which the last is for all others. */
  shelves(most: number): Shelf[] {
    const { model, timeline } = this;
    const { kept } = this.overview;
    const shown = kept.slice(0, kept.length > most ? most - 1 : most);
    const rest = kept.slice(shown.length);
    const others = (kind: ShelfKind, label: string, has: (buffer: Buffer) => boolean) => {
      const alive = bytesOf(timeline.buffers.filter(has), timeline.steps.length);
      return shelf(kind, label, alive);
    };
    const again = (b: Buffer) => isRecomputed(model, b);
    const found = [others("temporary", "temporaries", (b) => b.kind === "temporary" && !again(b))];
    for (const k of shown) {
      const { reason, place, residuals } = k;
      found.push(shelf("kept", k.label, aliveOf(k, timeline), { reason, place, residuals, members: [k] }));
    }
    if (rest.length > 0) {
      const residuals = rest.flatMap((k) => k.residuals);
      const alive = aliveOf({ ...rest[0]!, residuals }, timeline);
      const label = rest.length > 1 ? `${rest.length} other expressions` : rest[0]!.label;
      found.push(shelf("kept", label, alive, { reason: "", place: null, residuals, members: rest }));
    }
    found.push(others("again", "recomputed for checkpoints", again));
    found.push(others("cotangent", "cotangents", (b) => b.kind === "cotangent"));
    return found.filter((each) => each.kind === "kept" || each.most > 0);
  }

  private note(kept: Kept, alive: Float64Array, steps: Map<number, number[]>): void {
    const { model } = this;
    const add = (step: number, what: keyof Happening) => {
      const found = entry(this.happenings, step, () => ({ saves: [], reads: [], frees: [] }));
      if (found[what].at(-1) !== kept) found[what].push(kept);
    };
    for (let s = 0; s < alive.length; s++) {
      if (alive[s]! > (alive[s - 1] ?? 0)) add(s, "saves");
      if (alive[s]! > (alive[s + 1] ?? alive[s]!)) add(s, "frees");
    }
    for (const consumer of new Set(kept.residuals.flatMap((r) => model.residuals[r]?.consumers ?? [])))
      for (let row = consumer; row >= 0; row = model.owner(row)) {
        const there = steps.get(row);
        if (there === undefined) continue;
        for (const step of there) add(step, "reads");
        break;
      }
  }
}

/** Whether a value is recomputed for a checkpoint. */
export const isRecomputed = (model: Model, { kind, row }: Buffer): boolean =>
  kind === "temporary" && row >= 0 && model.role(row) === "recomputation";

/** The items in order, those that follow each other with the same key together. */
function groupedBy<T>(items: readonly T[], keyOf: (item: T) => string): T[][] {
  const groups: T[][] = [];
  let before = "";
  for (const item of items) {
    const key = keyOf(item);
    if (key === before && groups.length > 0) groups.at(-1)!.push(item);
    else groups.push([item]);
    before = key;
  }
  return groups;
}

function shelf(
  kind: ShelfKind,
  label: string,
  alive: Float64Array,
  about: Pick<Shelf, "reason" | "place" | "residuals" | "members"> = {
    reason: "",
    place: null,
    residuals: [],
    members: [],
  },
): Shelf {
  let most = 0;
  for (const bytes of alive) most = Math.max(most, bytes);
  return { kind, label, alive, most, ...about };
}

function stepsOfRows({ steps }: Timeline): Map<number, number[]> {
  const found = new Map<number, number[]>();
  steps.forEach(({ row }, step) => {
    if (row >= 0) push(found, row, step);
  });
  return found;
}
