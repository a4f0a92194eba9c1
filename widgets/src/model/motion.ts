/** The animation of a gradient: for each step, what runs, what it saves, which saved values it reads, and what is in memory. */

import { push } from "./groups";
import type { Model } from "./model";
import { aliveOf, bytesOf, type Kept, overviewOf } from "./overview";
import type { Place } from "./records";
import { atOnce, type Sliced } from "./slices";
import { type Buffer, type Timeline, type Totals, totalsOf } from "./timeline";

/** How many saved expressions have their own shelf; the rest share one. */
const MOST = 8;

export type ShelfKind = "kept" | "again" | "temporary" | "cotangent";

/** A group of values, with the bytes in memory at each step. */
export interface Shelf {
  kind: ShelfKind;
  label: string;
  /** Why they are saved; empty if no reason is needed. */
  reason: string;
  place: Place | null;
  residuals: readonly number[];
  alive: Float64Array;
  /** The most bytes in memory at any step. */
  most: number;
}

/** What happens at a step; shelves by index. */
export interface Happening {
  saves: number[];
  reads: number[];
  frees: number[];
}

const NOTHING: Happening = { saves: [], reads: [], frees: [] };

const made = new WeakMap<Timeline, Motion>();

/** The motion of a gradient whose memory is known; cached. */
export const motionOf = (model: Model): Motion => atOnce(moving(model));

/** The same, in slices. */
export function* moving(model: Model): Sliced<Motion> {
  const motion = made.get(model.timeline) ?? new Motion(model);
  if (!made.has(motion.timeline)) yield* motion.find();
  made.set(motion.timeline, motion);
  return motion;
}

export class Motion {
  readonly timeline: Timeline;
  readonly totals: Totals;
  readonly shelves: Shelf[] = [];
  /** The steps that save or read something. */
  stops: readonly number[] = [];
  private readonly happenings = new Map<number, Happening>();

  constructor(readonly model: Model) {
    this.timeline = model.timeline;
    this.totals = totalsOf(this.timeline);
  }

  /** Computes the shelves and what happens at each step. */
  *find(): Sliced<void> {
    for (const shelf of this.makeShelves()) {
      if (shelf !== null) this.shelves.push(shelf);
      yield;
    }
    const steps = stepsOfRows(this.timeline);
    for (const [i, shelf] of this.shelves.entries()) {
      if (shelf.kind === "kept") this.note(shelf, i, steps);
      yield;
    }
    const stops = [...this.happenings].filter(([, at]) => at.saves.length + at.reads.length > 0);
    this.stops = stops.map(([s]) => s).sort((a, b) => a - b);
  }

  get length(): number {
    return this.timeline.steps.length;
  }

  at(step: number): Happening {
    return this.happenings.get(step) ?? NOTHING;
  }

  isBackward(step: number): boolean {
    return this.timeline.steps[step]?.isBackward ?? false;
  }

  /** Whether a step of the backward pass recomputes values of a checkpoint. */
  isAgain(step: number): boolean {
    const row = this.timeline.steps[step]?.row ?? -1;
    return row >= 0 && this.model.role(row) === "recomputation";
  }

  /** The next or previous stop, or the end of the animation. */
  stopFrom(step: number, by: 1 | -1): number {
    if (by > 0) return this.stops.find((s) => s > step) ?? this.length - 1;
    return this.stops.filter((s) => s < step).at(-1) ?? 0;
  }

  /** The shelves in order; null for an empty one. */
  private *makeShelves(): Generator<Shelf | null> {
    const { model, timeline } = this;
    const { kept } = overviewOf(model);
    const shown = kept.slice(0, kept.length > MOST ? MOST - 1 : MOST);
    const rest = kept.slice(shown.length);
    const ofKept = (k: Kept, label: string, reason: string) =>
      shelf("kept", label, aliveOf(k, timeline), { reason, place: k.place, residuals: k.residuals });
    const others = (kind: ShelfKind, label: string, has: (buffer: Buffer) => boolean) => {
      const alive = bytesOf(timeline.buffers.filter(has), timeline.steps.length);
      const made = shelf(kind, label, alive);
      return made.most > 0 ? made : null;
    };
    const isAgain = ({ kind, row }: Buffer) =>
      kind === "temporary" && row >= 0 && model.role(row) === "recomputation";
    yield others("temporary", "temporary", (b) => b.kind === "temporary" && !isAgain(b));
    for (const k of shown) yield ofKept(k, k.label, k.reason);
    if (rest.length > 0) {
      const all = { ...rest[0]!, place: null, residuals: rest.flatMap((k) => k.residuals) };
      yield ofKept(all, `${rest.length} other expressions`, "");
    }
    yield others("again", "recomputed for checkpoints", isAgain);
    yield others("cotangent", "cotangents", (b) => b.kind === "cotangent");
  }

  private note({ alive, residuals }: Shelf, number: number, steps: Map<number, number[]>): void {
    const { model } = this;
    const add = (step: number, what: keyof Happening) => {
      const found = this.happenings.get(step) ?? { saves: [], reads: [], frees: [] };
      this.happenings.set(step, found);
      if (found[what].at(-1) !== number) found[what].push(number);
    };
    for (let s = 0; s < alive.length; s++) {
      if (alive[s]! > (alive[s - 1] ?? 0)) add(s, "saves");
      if (alive[s]! > (alive[s + 1] ?? alive[s]!)) add(s, "frees");
    }
    for (const consumer of new Set(residuals.flatMap((r) => model.residuals[r]?.consumers ?? [])))
      for (let row = consumer; row >= 0; row = model.owner(row)) {
        const there = steps.get(row);
        if (there === undefined) continue;
        for (const step of there) add(step, "reads");
        break;
      }
  }
}

function shelf(
  kind: ShelfKind,
  label: string,
  alive: Float64Array,
  about: { reason: string; place: Place | null; residuals: readonly number[] } = {
    reason: "",
    place: null,
    residuals: [],
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
