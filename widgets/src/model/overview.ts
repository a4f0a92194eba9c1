/** What a gradient runs and saves over time: scopes, saved expressions, and the position of each step. */

import { entry } from "../base/maps";
import type { Sliced } from "../base/slices";
import { countBefore } from "../base/sorted";
import { SCOPES, type ScopeKind } from "../wire/schema";
import { push } from "./groups";
import type { Model } from "./model";
import type { Place } from "./records";
import type { Span } from "./span";
import { type Buffer, type Timeline, totalsOf } from "./timeline";

/** What the widths show. */
export type Measure = "flops" | "equations";

/** The width of some equations on the axis, from their FLOPs and their number. */
export type WidthOf = (flops: number, equations: number) => number;

/** The share of the width by which even equations without FLOPs are seen. */
export const SEEN_SHARE = 0.1;

/** The saved values of one expression in the source. */
export interface Kept {
  index: number;
  label: string;
  place: Place | null;
  nbytes: number;
  /** How often it is evaluated, and how many values each evaluation saves. */
  times: number;
  values: number;
  reason: string;
  residuals: number[];
}

/** A function, module, named scope, loop or line that a pass runs. */
export interface Scope {
  index: number;
  parent: number;
  isBackward: boolean;
  name: string;
  kind: ScopeKind;
  /** How often it is called in that box per run of the enclosing one, or iterates; 1 if that is not certain. */
  count: number;
  place: Place | null;
  flops: number;
  equations: number;
  children: Scope[];
}

/** A scope as a box: its start and end as fractions of the axis, and its depth. */
export interface Box {
  scope: Scope;
  from: number;
  to: number;
  depth: number;
}

export class Overview {
  readonly kept: readonly Kept[];
  readonly scopes: readonly Scope[];
  /** The outermost scopes, first of the forward pass, then of the backward pass. */
  readonly top: readonly Scope[];
  private readonly scopeOfRow = new Map<number, number>();
  private readonly runs = new Map<Scope, (readonly [number, number])[]>();
  private steps: Map<number, number> | null = null;

  constructor(readonly model: Model) {
    this.kept = readKept(model);
    this.scopes = readScopes(model);
    this.top = this.scopes.filter((scope) => scope.parent < 0);
    for (const { index } of this.scopes)
      for (const row of model.slice("scope_rows", "row_of_scope", index)) this.scopeOfRow.set(row, index);
  }

  /** Whether there is something to draw. */
  get isDrawn(): boolean {
    return this.top.length > 0;
  }

  /** The equations in a scope and its nested scopes. */
  rowsOf(scope: Scope): number[] {
    const own = this.model.slice("scope_rows", "row_of_scope", scope.index);
    return [...own, ...scope.children.flatMap((child) => this.rowsOf(child))];
  }

  /** The scopes of an equation, innermost first. */
  around(row: number): Scope[] {
    const found: Scope[] = [];
    for (let i = this.scopeOfRow.get(row) ?? -1; i >= 0; i = this.scopes[i]!.parent)
      found.push(this.scopes[i]!);
    return found;
  }

  /**
   * All boxes, with widths by their amounts. A repeated scope shows one repetition, stretched, or each where it is, if that has room.
   * @param edges where each step begins on the axis, and the end.
   * @param room how many repetitions have room on the axis.
   */
  boxes(widthOf: WidthOf, edges: Float64Array, room: number): Box[] {
    const boxes: Box[] = [];
    const width = ({ flops, equations }: Scope) => widthOf(flops, equations);
    const put = (scope: Scope, from: number, to: number, depth: number) => {
      if (scope.kind !== "rest") boxes.push({ scope, from, to, depth });
    };
    const stretch = (scopes: readonly Scope[], from: number, to: number, depth: number, of: number) => {
      let at = from;
      for (const scope of scopes) {
        const next = of > 0 ? at + ((to - from) * width(scope)) / of : at;
        put(scope, at, next, depth);
        const isRoomy = scope.count > 1 && (next - at) * room >= scope.count;
        if (isRoomy && this.areApart(scope.children)) place(scope.children, depth + 1);
        else stretch(scope.children, at, next, depth + 1, width(scope));
        at = next;
      }
    };
    const place = (scopes: readonly Scope[], depth: number) => {
      for (const scope of scopes) {
        const runs = this.runsOf(scope).map(([first, end]) => [edges[first]!, edges[end]!] as const);
        for (const [from, to] of runs) put(scope, from, to, depth);
        if (this.areApart(scope.children)) place(scope.children, depth + 1);
        else for (const [from, to] of runs) stretch(scope.children, from, to, depth + 1, width(scope));
      }
    };
    stretch(this.top, 0, 1, 0, widthOf(this.sum("flops"), this.sum("equations")));
    return boxes;
  }

  /** The steps that run something of a scope: the first of each uninterrupted sequence, and the one after its last. */
  private runsOf(scope: Scope): (readonly [number, number])[] {
    return entry(this.runs, scope, () => this.findRuns(scope));
  }

  private findRuns(scope: Scope): [number, number][] {
    const steps = [...new Set(this.rowsOf(scope).map((row) => this.stepOf(row)))].sort((a, b) => a - b);
    const found: [number, number][] = [];
    for (const step of steps) {
      const last = found.at(-1);
      if (last?.[1] === step) last[1]++;
      else if (step >= 0) found.push([step, step + 1]);
    }
    return found;
  }

  /** Whether no step runs something of two of the scopes, as a loop does. */
  private areApart(scopes: readonly Scope[]): boolean {
    const all = scopes.flatMap((scope) => this.runsOf(scope)).sort((a, b) => a[0] - b[0]);
    return all.length > 0 && all.every(([first], i) => i === 0 || first >= all[i - 1]![1]);
  }

  /** The step that runs an equation, perhaps with others; or -1. */
  private stepOf(row: number): number {
    this.steps ??= new Map(this.model.timeline.steps.map((step, i) => [step.row, i]));
    for (let r = row; r >= 0; r = this.model.owner(r)) {
      const step = this.steps.get(r);
      if (step !== undefined) return step;
    }
    return -1;
  }

  /** The widths for a measure. By FLOPs, most equations have none: a share of the width is divided among all equations. */
  widths(measure: Measure): WidthOf {
    if (measure === "equations") return (_, equations) => equations;
    const each = (SEEN_SHARE * this.sum("flops")) / Math.max(1, this.sum("equations"));
    return (flops, equations) => (1 - SEEN_SHARE) * flops + each * equations;
  }

  /** The total of both passes, or of one. */
  sum(measure: Measure, isBackward?: boolean): number {
    return this.top
      .filter((scope) => isBackward === undefined || scope.isBackward === isBackward)
      .reduce((total, scope) => total + scope[measure], 0);
  }

  /** The title of a box: its name, or the text of its line. */
  titleOf(scope: Scope): string {
    const title = scope.name || this.untitled(scope);
    return scope.count > 1 ? `${title} × ${scope.count.toLocaleString("en-US")}` : title;
  }

  private untitled({ kind, place, children }: Scope): string {
    if (kind === "repeated") {
      const names = children
        .filter((c) => c.kind !== "rest")
        .map((c) => c.name || lineOf(this.model, c.place));
      return names.slice(0, 3).join(", ") + (names.length > 3 ? ", …" : "");
    }
    return lineOf(this.model, place);
  }
}

/** Overviews by their model's timeline, which is replaced when the memory and the scopes arrive. */
const made = new WeakMap<Timeline, Overview>();

/** The overview of a model; cached. */
export const overviewOf = (model: Model): Overview => entry(made, model.timeline, () => new Overview(model));

/** Prepares in slices what is drawn of a model with its memory. */
export function* preparing(model: Model): Sliced<void> {
  const timeline = yield* model.timing();
  totalsOf(timeline);
  yield;
  overviewOf(model);
  yield;
}

/** The text of a line, or its number if the source is not included. */
export function lineOf(model: Model, place: Place | null): string {
  if (place === null) return "";
  for (const { first, lines } of model.view.files[place.file]?.excerpts ?? []) {
    const text = lines[place.line - first]?.trim();
    if (text) return text;
  }
  return model.placeText(place);
}

/** `68`, or with several files `model.py:68`. */
export function shortPlace(model: Model, place: Place | null): string {
  const isAlone = model.view.files.filter((file) => file.is_user).length === 1;
  return isAlone && place !== null ? String(place.line) : model.placeText(place);
}

/** Where each step starts on the axis, and the end, as fractions. */
export function edgesOf(model: Model, { steps }: Timeline, widthOf: WidthOf): Float64Array {
  const equations = model.column("step_equations");
  const edges = new Float64Array(steps.length + 1);
  steps.forEach(({ row }, i) => {
    edges[i + 1] = edges[i]! + widthOf(model.flops(row), equations[i]!);
  });
  const whole = edges.at(-1)!;
  return whole > 0 ? edges.map((edge) => edge / whole) : edges.map((_, i) => i / steps.length);
}

/** The first and last step that each column shows, at least in part. */
export function stepsOfColumns(
  edges: Float64Array,
  columns: number,
): { first: Int32Array; last: Int32Array } {
  const n = edges.length - 1;
  const first = new Int32Array(columns);
  const last = new Int32Array(columns);
  let step = 0;
  for (let c = 0; c < columns; c++) {
    const [from, to] = [c / columns, (c + 1) / columns];
    while (step < n - 1 && edges[step + 1]! < from) step++;
    first[c] = step;
    let end = step;
    while (end < n - 1 && edges[end + 1]! < to) end++;
    // Steps of zero width at the end belong to the last column.
    if (c === columns - 1) while (end < n - 1 && edges[end + 1]! <= to) end++;
    last[c] = end;
  }
  return { first, last };
}

/** The visible part of the axis, of that of the steps. */
export function partOfSteps(edges: Float64Array, { from, to }: Span): Span {
  const n = edges.length - 1;
  const at = (fraction: number) => {
    const step = Math.min(n - 1, Math.floor(fraction * n));
    return edges[step]! + (edges[step + 1]! - edges[step]!) * (fraction * n - step);
  };
  return { from: at(from), to: at(to) };
}

/** The part of the steps that a part of the axis shows. */
export function stepsOfPart(edges: Float64Array, { from, to }: Span): Span {
  const n = edges.length - 1;
  const at = (place: number) => {
    const step = Math.max(0, countBefore(n, (i) => edges[i]! <= place) - 1);
    const width = edges[step + 1]! - edges[step]!;
    return (step + (width > 0 ? Math.min(1, (place - edges[step]!) / width) : 0)) / n;
  };
  return { from: at(from), to: at(to) };
}

/** The bytes of a saved expression in memory at each step. */
export function aliveOf(kept: Kept, { steps, buffers }: Timeline): Float64Array {
  const mine = new Set(kept.residuals);
  return bytesOf(
    buffers.filter(({ residuals }) => residuals.length > 0 && residuals.some((r) => mine.has(r))),
    steps.length,
  );
}

/** The bytes of some values in memory at each of `n` steps. */
export function bytesOf(buffers: readonly Buffer[], n: number): Float64Array {
  const alive = new Float64Array(n + 1);
  for (const { nbytes, born, last } of buffers) {
    alive[Math.min(born, n)]! += nbytes;
    alive[Math.min(last + 1, n)]! -= nbytes;
  }
  for (let i = 1; i < n; i++) alive[i]! += alive[i - 1]!;
  return alive.subarray(0, n);
}

/** The maximum in each column. */
export function mostIn(
  values: Float64Array,
  { first, last }: ReturnType<typeof stepsOfColumns>,
): Float64Array {
  return Float64Array.from(first, (from, c) => {
    let most = 0;
    for (let i = from; i <= last[c]!; i++) most = Math.max(most, values[i]!);
    return most;
  });
}

function readKept(model: Model): Kept[] {
  const residuals = new Map<number, number[]>();
  model.column("residual_kept").forEach((kept, r) => {
    push(residuals, kept, r);
  });
  return Array.from(model.column("kept_nbytes"), (nbytes, index) => ({
    index,
    label: model.text("kept_label", index),
    place: model.location(model.column("kept_location")[index]!),
    nbytes,
    times: model.column("kept_times")[index]!,
    values: model.column("kept_values")[index]!,
    reason: model.text("kept_reason", index),
    residuals: residuals.get(index) ?? [],
  }));
}

function readScopes(model: Model): Scope[] {
  const number = (name: "count" | "location" | "kind" | "backward" | "flops" | "equations", i: number) =>
    model.column(`scope_${name}`)[i]!;
  const scopes: Scope[] = Array.from(model.column("scope_parent"), (parent, index) => ({
    index,
    parent,
    isBackward: number("backward", index) === 1,
    name: model.text("scope_name", index),
    kind: SCOPES[number("kind", index)]!,
    count: number("count", index),
    place: model.location(number("location", index)),
    flops: number("flops", index),
    equations: number("equations", index),
    children: [],
  }));
  for (const scope of scopes) if (scope.parent >= 0) scopes[scope.parent]!.children.push(scope);
  return scopes;
}
