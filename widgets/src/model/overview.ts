/** What a gradient runs and saves over time: scopes, saved expressions, and the position of each step. */

import { SCOPES, type ScopeKind } from "../wire/schema";
import { push } from "./groups";
import type { Model } from "./model";
import type { Place } from "./records";
import type { Sliced } from "./slices";
import { type Buffer, type Timeline, totalsOf } from "./timeline";

/** What widths stand for. */
export type Measure = "flops" | "equations";

/** The values that one expression of the user's keeps. */
export interface Kept {
  index: number;
  label: string;
  place: Place | null;
  nbytes: number;
  /** How often it is evaluated, and how many values it keeps each time. */
  times: number;
  values: number;
  reason: string;
  residuals: number[];
}

/** A function, a module, a named scope, a loop or a line that a pass runs. */
export interface Scope {
  index: number;
  parent: number;
  isBackward: boolean;
  name: string;
  kind: ScopeKind;
  /** How often it runs each time that the scope around it does. */
  count: number;
  place: Place | null;
  flops: number;
  equations: number;
  children: Scope[];
}

/** A scope as a box: where it begins and ends, as shares of the axis, and how many are around it. */
export interface Box {
  scope: Scope;
  from: number;
  to: number;
  depth: number;
}

export class Overview {
  readonly kept: readonly Kept[];
  readonly scopes: readonly Scope[];
  /** The scopes in no other, of the forward pass, then of the backward one. */
  readonly top: readonly Scope[];
  private readonly scopeOfRow = new Map<number, number>();

  constructor(readonly model: Model) {
    const { kept, scopes } = { kept: readKept(model), scopes: readScopes(model) };
    this.kept = kept;
    this.scopes = scopes;
    this.top = scopes.filter((scope) => scope.parent < 0);
    for (const { index } of scopes)
      for (const row of model.slice("scope_rows", "row_of_scope", index)) this.scopeOfRow.set(row, index);
  }

  /** Whether there is a picture: the gradient has steps. */
  get isDrawn(): boolean {
    return this.top.length > 0;
  }

  /** The equations in a scope, those in the scopes inside of it included. */
  rowsOf(scope: Scope): number[] {
    const own = this.model.slice("scope_rows", "row_of_scope", scope.index);
    return [...own, ...scope.children.flatMap((child) => this.rowsOf(child))];
  }

  /** The scopes that an equation is in, innermost first. */
  around(row: number): Scope[] {
    const found: Scope[] = [];
    for (let i = this.scopeOfRow.get(row) ?? -1; i >= 0; i = this.scopes[i]!.parent)
      found.push(this.scopes[i]!);
    return found;
  }

  /** All boxes, each as wide as its share; what is in a repeated one is one repetition of it, stretched. */
  boxes(measure: Measure): Box[] {
    const boxes: Box[] = [];
    const lay = (scopes: readonly Scope[], from: number, to: number, depth: number, of: number) => {
      let at = from;
      for (const scope of scopes) {
        const next = of > 0 ? at + ((to - from) * scope[measure]) / of : at;
        if (scope.kind !== "rest") boxes.push({ scope, from: at, to: next, depth });
        lay(scope.children, at, next, depth + 1, scope[measure]);
        at = next;
      }
    };
    lay(this.top, 0, 1, 0, this.sum(measure));
    return boxes;
  }

  /** All of both passes, or of one. */
  sum(measure: Measure, isBackward?: boolean): number {
    return this.top
      .filter((scope) => isBackward === undefined || scope.isBackward === isBackward)
      .reduce((total, scope) => total + scope[measure], 0);
  }

  /** What a box is called: its name; of a line its text. */
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

const made = new WeakMap<object, Overview>();

/** The overview of a model, which is read once for what it holds. */
export function overviewOf(model: Model): Overview {
  const known = made.get(model.view);
  if (known !== undefined) return known;
  const overview = new Overview(model);
  made.set(model.view, overview);
  return overview;
}

/** Works out what is drawn of a model that is whole, in slices. */
export function* preparing(model: Model): Sliced<void> {
  const timeline = yield* model.timing();
  totalsOf(timeline);
  yield;
  overviewOf(model);
  yield;
}

/** The text of a line, or which it is where its source is not there. */
export function lineOf(model: Model, place: Place | null): string {
  if (place === null) return "";
  for (const { first, lines } of model.view.files[place.file]?.excerpts ?? []) {
    const text = lines[place.line - first]?.trim();
    if (text) return text;
  }
  return model.placeText(place);
}

/** Where each step begins on the axis, and after the last where that ends: shares of it. */
export function edgesOf(model: Model, { steps }: Timeline, measure: Measure): Float64Array {
  const equations = model.column("step_equations");
  const edges = new Float64Array(steps.length + 1);
  steps.forEach(({ row }, i) => {
    edges[i + 1] = edges[i]! + (measure === "flops" ? model.flops(row) : equations[i]!);
  });
  const whole = edges.at(-1)!;
  return whole > 0 ? edges.map((edge) => edge / whole) : edges.map((_, i) => i / steps.length);
}

/** For each of so many columns of one width the first and the last step that it shows a part of. */
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
    // What takes no room at the end of the axis is seen in its last column.
    last[c] = c === columns - 1 ? n - 1 : end;
  }
  return { first, last };
}

/** The bytes of a kept expression that are in memory at each step. */
export function aliveOf(kept: Kept, { steps, buffers }: Timeline): Float64Array {
  const mine = new Set(kept.residuals);
  return bytesOf(
    buffers.filter(({ residuals }) => residuals.length > 0 && residuals.some((r) => mine.has(r))),
    steps.length,
  );
}

/** The bytes of some values that are in memory at each of so many steps. */
export function bytesOf(buffers: readonly Buffer[], n: number): Float64Array {
  const alive = new Float64Array(n + 1);
  for (const { nbytes, born, last } of buffers) {
    alive[Math.min(born, n)]! += nbytes;
    alive[Math.min(last + 1, n)]! -= nbytes;
  }
  for (let i = 1; i < n; i++) alive[i]! += alive[i - 1]!;
  return alive.subarray(0, n);
}

/** The most of some numbers in each column. */
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
