/** A stage as nested boxes: nested programs, functions, scopes and modules, with repeated layers folded into one. */

import { entry, keepLast, remembered } from "../../base/maps";
import { atOnce, type Sliced } from "../../base/slices";
import { countBefore } from "../../base/sorted";
import type { Model } from "../../model/model";
import type { Place } from "../../model/records";
import { findRepeats, mix, WORTH } from "./repeats";
import { shortened } from "./stubs";

export const EQUATION = 0;
/** One of several programs of an equation, such as a branch of a cond. */
export const PROGRAM = 1;
/** The equations of one function, scope or module. */
export const SCOPE = 2;
/** Repeated layers; its children are the copies. */
export const REPEAT = 3;
export const COPY = 4;
export const STAGE = 5;

/** Functions or scopes with fewer items get no box. */
const FEW = 3;

/** The longest expression in a title, in characters. */
const LONG = 36;

const NONE: readonly number[] = [];

/** Equations processed between two yields. */
const SLICE = 200;

/** Cached trees per model: a stage's graph and listing share one. */
const KEPT = 4;
const trees = remembered((_: Model) => new Map<string, Tree>());

/** The tree of some stages. */
export const treeOf = (model: Model, stages: readonly number[]): Tree => atOnce(growing(model, stages));

function* growing(model: Model, stages: readonly number[]): Sliced<Tree> {
  const tree = new Tree(model, stages);
  for (const stage of stages) {
    const { programs, label } = model.view.stages[stage]!;
    if (programs[1] > programs[0]) tree.roots.push(yield* new Builder(tree, model).stage(label, programs[0]));
  }
  return tree;
}

/** The same in slices, cached. */
export function* keptTree(model: Model, stages: readonly number[]): Sliced<Tree> {
  const made = trees(model);
  const key = `${stages.join()} ${model.view.has_groups}`;
  return keepLast(made, key, made.get(key) ?? (yield* growing(model, stages)), KEPT);
}

/** Nested boxes, by number. Each row has exactly one box of kind EQUATION. */
export class Tree {
  readonly kind: number[] = [];
  readonly parent: number[] = [];
  /** The equation of a box, or -1. */
  readonly row: number[] = [];
  readonly children: (readonly number[])[] = [];
  readonly title: string[] = [];
  /** The program that contains its children, or -1. */
  readonly program: number[] = [];
  /** The number of equations in a box, including itself and those of nested programs. */
  readonly count: number[] = [];
  readonly ofRow: Int32Array;
  readonly roots: number[] = [];

  constructor(
    readonly model: Model,
    readonly stages: readonly number[],
  ) {
    this.ofRow = new Int32Array(model.rows).fill(-1);
  }

  get size(): number {
    return this.kind.length;
  }

  add(kind: number, title: string, children: readonly number[], row = -1, program = -1): number {
    const node = this.kind.length;
    this.kind.push(kind);
    this.title.push(title);
    this.children.push(children);
    this.row.push(row);
    this.program.push(program);
    this.parent.push(-1);
    let count = row >= 0 ? 1 : 0;
    for (const child of children) {
      this.parent[child] = node;
      count += this.count[child]!;
    }
    this.count.push(count);
    if (row >= 0) this.ofRow[row] = node;
    return node;
  }

  canOpen(node: number): boolean {
    return this.children[node]!.length > 0;
  }

  /** The equations in a box, in order; `nested` includes those of nested programs. */
  rows(node: number, nested = false): number[] {
    const rows: number[] = [];
    const visit = (n: number) => {
      if (this.row[n]! >= 0) rows.push(this.row[n]!);
      if (this.row[n]! < 0 || nested) for (const child of this.children[n]!) visit(child);
    };
    visit(node);
    return rows;
  }

  /** The boxes that contain a box, innermost first. */
  *around(node: number): Generator<number> {
    for (let n = this.parent[node]!; n >= 0; n = this.parent[n]!) yield n;
  }

  /** The name of a box. */
  name(node: number): string {
    const row = this.row[node]!;
    if (row < 0) return this.title[node]!;
    const called = this.canOpen(node) ? this.model.called(row) : "";
    return `${this.model.primitive(row)}${called && " "}${called}`;
  }
}

class Builder {
  private readonly paths = new Map<number, readonly string[]>();
  /** A hash of each box; boxes with the same hash are alike and can be folded. */
  private readonly likeness = new Map<number, number>();

  constructor(
    private readonly tree: Tree,
    private readonly model: Model,
  ) {}

  *stage(label: string, program: number): Sliced<number> {
    return this.tree.add(STAGE, label, yield* this.itemsOf(program), -1, program);
  }

  private *itemsOf(program: number): Sliced<readonly number[]> {
    const rows = this.model.rowsOf(program);
    if (rows.length === 0) return NONE;
    const paths = this.pathsOf(rows);
    let shared: readonly string[] | null = null;
    let before: readonly string[] | null = null;
    for (const path of paths) {
      if (path.length === 0 || path === before) continue;
      shared = shared === null ? path : shared.slice(0, common(shared, path));
      before = path;
    }
    const level = new Level(this, this.tree, rows, paths, this.model);
    return yield* level.items(0, rows.length, shared?.length ?? 0, "");
  }

  /** The path of each row. A row without one gets the common prefix of its neighbours' paths. */
  private pathsOf(rows: readonly number[]): (readonly string[])[] {
    const given = rows.map((row) => this.path(row));
    const next: (readonly string[])[] = new Array(rows.length);
    for (let i = rows.length - 1, after: readonly string[] = []; i >= 0; i--) {
      if (given[i]!.length > 0) after = given[i]!;
      next[i] = after;
    }
    let before: readonly string[] | null = null;
    return given.map((path, i) => {
      if (path.length > 0) {
        before = path;
        return path;
      }
      const after = next[i]!;
      return before === null ? [] : before.slice(0, common(before, after));
    });
  }

  private path(row: number): readonly string[] {
    const key = this.model.column("equation_scope")[row]!;
    return entry(this.paths, key, () => this.model.scope(row).split("/").filter(Boolean));
  }

  *equation(row: number): Sliced<number> {
    const { tree, model } = this;
    const programs = model.nested(row);
    let children = NONE;
    if (programs.length === 1) children = yield* this.itemsOf(programs[0]!);
    else if (programs.length > 1) {
      const boxes: number[] = [];
      for (const p of programs)
        boxes.push(this.noted(tree.add(PROGRAM, model.programLabel(p), yield* this.itemsOf(p), -1, p)));
      children = boxes;
    }
    const node = tree.add(EQUATION, "", children, row, programs[0] ?? -1);
    let like = mix(model.group(row), 1);
    for (const child of children) like = mix(like, this.like(child));
    this.likeness.set(node, like);
    return node;
  }

  like(node: number): number {
    return this.likeness.get(node)!;
  }

  /** Stores the hash of a box that is not an equation: of its contents and its name without digits. */
  noted(node: number): number {
    let like = this.tree.kind[node]!;
    for (const letter of this.tree.title[node]!.replace(/\d+/g, "")) like = mix(like, letter.charCodeAt(0));
    for (const child of this.tree.children[node]!) like = mix(like, this.like(child));
    this.likeness.set(node, like);
    return node;
  }
}

/** The rows of one program. */
class Level {
  private known: Int32Array | null = null;

  constructor(
    private readonly builder: Builder,
    private readonly tree: Tree,
    private readonly rows: readonly number[],
    private readonly paths: readonly (readonly string[])[],
    private readonly model: Model,
  ) {}

  /** Boxes for a range of rows that share the first `depth` parts of their paths. */
  *items(from: number, to: number, depth: number, within: string): Sliced<readonly number[]> {
    const items: number[] = [];
    const starts: number[] = [];
    for (let i = from; i < to; ) {
      const part = this.paths[i]![depth];
      let end = i + 1;
      if (part !== undefined) while (end < to && this.paths[end]![depth] === part) end += 1;
      if (part === undefined) {
        items.push(yield* this.builder.equation(this.rows[i]!));
        starts.push(i);
        if (i % SLICE === 0) yield;
      } else {
        const inside = yield* this.items(i, end, depth + 1, part);
        const box = this.boxOf(part, inside);
        for (const item of box) {
          items.push(item);
          starts.push(this.position(item));
        }
      }
      i = end;
    }
    return yield* this.fold(items, starts, within);
  }

  /** A box with a title around some items, or the items themselves if there are few. */
  private boxOf(title: string, inside: readonly number[]): readonly number[] {
    const { tree } = this;
    const [only] = inside;
    if (inside.length === 1 && only !== undefined) {
      // A function that only calls another one shares its box, under both names; one that only repeats layers gets none.
      if (tree.kind[only] === REPEAT) return inside;
      if (tree.kind[only] === SCOPE) {
        tree.title[only] = `${title}/${tree.title[only]}`;
        return [this.builder.noted(only)];
      }
    }
    if (inside.length < FEW) return inside;
    return [this.builder.noted(tree.add(SCOPE, title, inside))];
  }

  private *fold(
    items: readonly number[],
    starts: readonly number[],
    within: string,
  ): Sliced<readonly number[]> {
    const { tree, builder } = this;
    if (items.length < 2) return items;
    // Skip short lists: there can be thousands of them.
    if (items.reduce((sum, item) => sum + tree.count[item]!, 0) < WORTH) return items;
    yield;
    const likes = items.map((item) => builder.like(item));
    const weights = items.map((item) => tree.count[item]!);
    const at = (i: number) => starts[i] ?? this.position(items.at(-1)!) + tree.rows(items.at(-1)!).length;
    const repeats = findRepeats(likes, weights, (i) => this.cut(at(i)));
    if (repeats.length === 0) return items;
    yield;
    const folded: number[] = [];
    let done = 0;
    for (const { start, period, count } of repeats) {
      folded.push(...items.slice(done, start));
      const parts = Array.from({ length: count }, (_, c) =>
        items.slice(start + c * period, start + (c + 1) * period),
      );
      const isAll = period * count === items.length;
      const name = isAll && within ? within : this.nameOf(parts[0]!);
      const copies: number[] = [];
      for (const [c, part] of parts.entries()) {
        if (period === 1) {
          copies.push(part[0]!);
          continue;
        }
        // Fold repeats within a copy as well.
        const places = part.map((item) => this.position(item));
        const inside = yield* this.fold(part, places, "");
        copies.push(builder.noted(tree.add(COPY, `${name} ${c + 1}`, inside)));
      }
      folded.push(builder.noted(tree.add(REPEAT, period === 1 ? this.nameOfAll(copies) : name, copies)));
      done = start + period * count;
    }
    folded.push(...items.slice(done));
    return folded;
  }

  /** The number of values that cross the boundary before a row. */
  private cut(at: number): number {
    this.known ??= cuts(this.model, this.rows);
    return this.known[at] ?? 0;
  }

  /** The first row of a box, as an index into this program's rows. */
  private position(node: number): number {
    let first = node;
    while (this.tree.row[first]! < 0) first = this.tree.children[first]![0]!;
    const row = this.tree.row[first]!;
    return countBefore(this.rows.length, (i) => this.rows[i]! < row);
  }

  /** A name for some items: the names of the boxes among them, or else the expression or lines that they come from. */
  private nameOf(items: readonly number[]): string {
    const names = new Set<string>();
    for (const item of items) if (this.tree.row[item]! < 0) names.add(this.tree.title[item]!);
    const written = names.size === 0 ? this.writtenAs(items) : "";
    if (written) return written;
    if (names.size === 0)
      for (const item of items) if (this.tree.canOpen(item)) names.add(this.tree.name(item));
    if (names.size === 0) for (const item of items) names.add(this.tree.name(item));
    const all = [...names];
    return all.length > 3 ? `${all.slice(0, 3).join(" · ")} …` : all.join(" · ");
  }

  /** `jnp.tanh(x @ w + b)` if it contains all the other expressions, or else `lines 13–15`; empty if they come from several files. */
  private writtenAs(items: readonly number[]): string {
    const { model } = this;
    const locations = new Set(
      items.flatMap((item) => this.tree.rows(item)).map((row) => model.column("equation_location")[row]!),
    );
    const places = [...locations].map((i) => model.location(i));
    const [first] = places;
    if (!first || !places.every((place) => place?.file === first.file)) return "";
    const isWithin = (a: Place, b: Place) =>
      (a.startLine - b.startLine || a.start - b.start) >= 0 && (b.endLine - a.endLine || b.end - a.end) >= 0;
    const whole = places.find((b) => b!.startLine > 0 && places.every((a) => isWithin(a!, b!)));
    const text = whole ? model.sourceText(whole) : "";
    if (text) return shortened(text, LONG);
    const lines = places.map((place) => place!.line);
    const [from, to] = [Math.min(...lines), Math.max(...lines)];
    return from === to ? `line ${from}` : `lines ${from}–${to}`;
  }

  /** `blocks_0 … blocks_11` */
  private nameOfAll(copies: readonly number[]): string {
    const first = this.tree.name(copies[0]!);
    const last = this.tree.name(copies.at(-1)!);
    return first === last ? first : `${first} … ${last}`;
  }
}

function common(a: readonly string[], b: readonly string[]): number {
  let n = 0;
  while (n < a.length && n < b.length && a[n] === b[n]) n += 1;
  return n;
}

/** For each boundary between rows of a program, the number of values that cross it. */
function cuts(model: Model, rows: readonly number[]): Int32Array {
  const cut = new Int32Array(rows.length + 2);
  const made = new Map<number, number>();
  const last = new Int32Array(rows.length).fill(-1);
  // All outputs of an equation count as one value, which is enough to compare boundaries.
  rows.forEach((row, i) => {
    for (const v of model.inputs(row)) {
      const there = made.get(v);
      if (there !== undefined) last[there] = i;
    }
    for (const v of model.outputs(row)) made.set(v, i);
  });
  last.forEach((end, i) => {
    if (end < 0) return;
    cut[i + 1]! += 1;
    cut[end + 1]! -= 1;
  });
  for (let i = 1; i < cut.length; i++) cut[i]! += cut[i - 1]!;
  return cut;
}

/** Boxes are initially open as long as no more boxes than this are visible; small programs are open entirely. */
const AT_FIRST = 12;
const SMALL = 40;

/** The boxes that are initially open. */
export function openAtFirst(tree: Tree): Set<number> {
  const open = new Set<number>();
  const most = tree.roots.reduce((sum, root) => sum + tree.count[root]!, 0) <= SMALL ? SMALL : AT_FIRST;
  const todo = tree.roots.flatMap((root) => tree.children[root]!);
  let visible = todo.length;
  for (let node = todo.shift(); node !== undefined; node = todo.shift()) {
    const inside = tree.children[node]!;
    if (inside.length === 0 || tree.kind[node] === REPEAT || visible + inside.length > most) continue;
    open.add(node);
    visible += inside.length;
    todo.push(...inside);
  }
  return open;
}

/** The kind of a box, for screen readers. */
export function kindOf(tree: Tree, node: number): string {
  if (tree.row[node]! >= 0) return tree.canOpen(node) ? "equation that holds a program" : "equation";
  return { [REPEAT]: "repeated layers", [COPY]: "layer", [STAGE]: "program" }[tree.kind[node]!] ?? "group";
}

/** How the copies of a repeated layer differ, in a few lines. */
export function differences(tree: Tree, node: number): string[] {
  const { model } = tree;
  const copies = tree.children[node]!.map((copy) => tree.rows(copy, true));
  const first = copies[0] ?? [];
  const others = copies.slice(1);
  const lines: string[] = [];
  const differing = (text: (row: number) => string) =>
    first.flatMap((row, i) => {
      const texts = new Set([text(row), ...others.map((copy) => text(copy[i] ?? row))]);
      return texts.size > 1 ? [[...texts]] : [];
    });
  const tell = (what: string, found: string[][]) => {
    if (found.length === 0) return;
    const [sample = []] = found;
    lines.push(
      `${what}: ${sample.slice(0, 3).join(", ")}${sample.length > 3 ? ", …" : ""}${found.length > 1 ? `, and ${found.length - 1} more` : ""}`,
    );
  };
  tell(
    "types",
    differing((row) =>
      model
        .outputs(row)
        .map((v) => model.atomType(v))
        .join(" "),
    ),
  );
  tell(
    "parameters",
    differing((row) => model.params(row).join(" ")),
  );
  tell(
    "numbers",
    differing((row) =>
      model
        .inputs(row)
        .filter((a) => a < 0)
        .map((a) => model.atomText(a))
        .join(" "),
    ),
  );
  tell(
    "what is read",
    differing((row) => inputLabels(model, row)),
  );
  return lines;
}

function inputLabels(model: Model, row: number): string {
  return model
    .inputs(row)
    .map((a) => (a >= 0 ? model.variable(a).label : ""))
    .filter(Boolean)
    .join(" ");
}
