/** The visible part of a tree for a set of open boxes: boxes, ports, edges with their bytes, stubs for inputs and ports for residuals. */

import { entry } from "../../base/maps";
import { atOnce, type Sliced } from "../../base/slices";
import { push } from "../../model/groups";
import type { Model } from "../../model/model";
import { findingConstants } from "./constants";
import { EQUATION, PROGRAM, STAGE, type Tree } from "./hierarchy";
import { CLOSED, IN, OPEN, OUT, type Shape } from "./shape";
import {
  LONG_STUB,
  residualText,
  rowHeight,
  rowOf,
  SIZES,
  type Stub,
  type StubKind,
  shortened,
  stubsWidth,
} from "./stubs";

export interface Scene {
  shape: Shape;
  /** For each box, its node in the tree; for a port, the node of its box. */
  node: Int32Array;
  /** For a port, the variable that passes through it. */
  variable: Int32Array;
  /** For each node, its box; for a constant, the box of its first reader; -1 if not visible. */
  boxOf: Int32Array;
  /** The stubs to the left and to the right of each box. */
  before: ReadonlyMap<number, readonly Stub[]>;
  after: ReadonlyMap<number, readonly Stub[]>;
  /** The residuals that a box reads, and those that it saves. */
  taken: ReadonlyMap<number, readonly Stub[]>;
  kept: ReadonlyMap<number, readonly Stub[]>;
  /** For each edge, its variables and their bytes. */
  values: readonly (readonly number[])[];
  bytes: Float64Array;
}

/** A stage with at most this many inputs, or results, shows each of them as a box. */
const FEW = 4;

/** The two lines of text in a closed box. */
export function labels(tree: Tree, node: number): [string, string] {
  const { model } = tree;
  const row = tree.row[node]!;
  const n = tree.count[node]! - (row >= 0 ? 1 : 0);
  const inside = `${n.toLocaleString("en-US")} equation${n === 1 ? "" : "s"}`;
  if (row < 0) return [tree.name(node), n === 0 ? "passes its operands on" : inside];
  const outputs = model.outputs(row);
  const type =
    outputs.length === 0
      ? ""
      : model.atomType(outputs[0]!) + (outputs.length > 1 ? ` +${outputs.length - 1}` : "");
  return [tree.name(node), tree.canOpen(node) ? inside : type];
}

export const sceneOf = (tree: Tree, isOpen: (node: number) => boolean): Scene =>
  atOnce(setting(tree, isOpen));

/** The same, in slices. */
export function* setting(tree: Tree, isOpen: (node: number) => boolean): Sliced<Scene> {
  return yield* new Scenes(tree, isOpen, yield* findingConstants(tree)).scene();
}

/** Boxes or equations processed between two yields. */
const SLICE = 100;

/**
 * Where a variable comes from: an equation, a port of its box, or a stub. Equations that share a program also share its variables, so each
 * of them has its own map.
 */
type Source = { row: number } | { port: number } | { stub: Stub };
type Sources = Map<number, Source>;

class Scenes {
  private readonly model: Model;
  private readonly node: number[] = [-1];
  private readonly parent: number[] = [-1];
  private readonly kind: number[] = [OPEN];
  private readonly variable: number[] = [-1];
  private readonly boxOf: Int32Array;
  private readonly ports = new Map<number, Map<number, number>>();
  private readonly from: number[] = [];
  private readonly to: number[] = [];
  private readonly level: number[] = [];
  private readonly values: number[][] = [];
  private readonly bytes: number[] = [];
  private readonly edges = new Map<number, number>();
  private readonly before = new Map<number, Stub[]>();
  private readonly after = new Map<number, Stub[]>();
  private readonly taken = new Map<number, Stub[]>();
  private readonly kept = new Map<number, Stub[]>();
  private readonly seen = new Map<number, Set<string>>();
  private readonly residualOf = new Map<number, number>();

  constructor(
    private readonly tree: Tree,
    private readonly isOpen: (node: number) => boolean,
    private readonly constants: ReadonlyMap<number, string>,
  ) {
    this.model = tree.model;
    this.boxOf = new Int32Array(tree.size).fill(-1);
  }

  *scene(): Sliced<Scene> {
    const { tree, model } = this;
    const [only, more] = tree.roots;
    if (only !== undefined && more === undefined) {
      // A single stage needs no box around it.
      this.node[0] = only;
      this.boxOf[only] = 0;
      yield* this.addBoxes(only, 0);
    } else for (const root of tree.roots) yield* this.addBox(root, 0);
    for (const root of tree.roots) {
      const stage = model.stage(this.anyRow(root) ?? 0);
      this.readResiduals(root, stage);
      const box = this.boxOf[root]!;
      const program = tree.program[root]!;
      const sources = this.inputsOf(root, program);
      yield* this.flows(root, sources, () => this.resultsOf(box, root, program, sources));
    }
    this.addResiduals();
    const n = this.node.length;
    const shape: Shape = {
      parent: Int32Array.from(this.parent),
      kind: Uint8Array.from(this.kind),
      width: new Float32Array(n),
      height: new Float32Array(n),
      anchor: new Float32Array(n),
      from: Int32Array.from(this.from),
      to: Int32Array.from(this.to),
      level: Int32Array.from(this.level),
    };
    for (let i = 1; i < n; i++) {
      this.measure(shape, i);
      if (i % SLICE === 0) yield;
    }
    return {
      shape,
      node: Int32Array.from(this.node),
      variable: Int32Array.from(this.variable),
      boxOf: this.boxOf,
      before: this.before,
      after: this.after,
      taken: this.taken,
      kept: this.kept,
      values: this.values,
      bytes: Float64Array.from(this.bytes),
    };
  }

  private measure(shape: Shape, i: number): void {
    const { tree } = this;
    const node = this.node[i]!;
    const kind = this.kind[i]!;
    const isRoot = kind >= IN && tree.kind[node] === STAGE;
    if (kind >= IN) {
      const text = isRoot ? shortened(this.portText(i), LONG_STUB).length * SIZES.small + 14 : SIZES.port;
      shape.width[i] = text;
      shape.height[i] = isRoot ? SIZES.stub + 3 : 0;
      return;
    }
    const [title, line] = labels(tree, node);
    const badge = tree.canOpen(node) ? 22 : 0;
    const text =
      Math.max(shortened(title).length * SIZES.letter + badge + 12, shortened(line).length * SIZES.small) +
      26;
    const rows = [this.taken.get(i), this.kept.get(i)];
    const ports = rows.map((stubs) => (stubs === undefined ? 0 : rowOf(stubs).width + 14));
    if (kind === OPEN) {
      const header = (shortened(title).length + 2) * SIZES.letter + 40 + line.length * SIZES.small;
      shape.width[i] = Math.max(90, header + ports[0]! + ports[1]!);
      return;
    }
    const left = stubsWidth(this.before.get(i));
    const right = stubsWidth(this.after.get(i));
    shape.width[i] = left + Math.max(64, text, ...ports) + right;
    shape.height[i] = SIZES.card + rowHeight(rows[0]) + rowHeight(rows[1]);
    shape.anchor[i] = (left - right) / 2;
  }

  private portText(i: number): string {
    const { name, label } = this.model.variable(this.variable[i]!);
    return label || name;
  }

  // --- boxes ---

  private *addBox(node: number, parent: number): Sliced<void> {
    const open = this.opens(node);
    const box = this.add(node, parent, open ? OPEN : CLOSED);
    this.boxOf[node] = box;
    if (box % SLICE === 0) yield;
    if (open) yield* this.addBoxes(node, box);
  }

  /** Boxes for the children of a node, except for constants among other equations. */
  private *addBoxes(node: number, box: number): Sliced<void> {
    const { tree, constants } = this;
    const inside = tree.children[node]!;
    const boxes = inside.filter((child) => !constants.has(tree.row[child]!));
    for (const child of boxes.length > 0 ? boxes : inside) yield* this.addBox(child, box);
  }

  private add(node: number, parent: number, kind: number, variable = -1): number {
    this.node.push(node);
    this.parent.push(parent);
    this.kind.push(kind);
    this.variable.push(variable);
    return this.node.length - 1;
  }

  private opens(node: number): boolean {
    return this.tree.canOpen(node) && (this.tree.kind[node] === STAGE || this.isOpen(node));
  }

  private anyRow(node: number): number | undefined {
    let n = node;
    while (this.tree.row[n]! < 0) {
      const child = this.tree.children[n]![0];
      if (child === undefined) return undefined;
      n = child;
    }
    return this.tree.row[n];
  }

  /** The box that shows a node: its own, or the outermost closed one that contains it. */
  private shown(node: number): number {
    const own = this.boxOf[node]!;
    if (own >= 0) return own;
    let found = node;
    for (const outer of this.tree.around(node)) if (!this.opens(outer)) found = outer;
    return this.boxOf[found]!;
  }

  /** The port of an open box for a variable, and whether it is new. */
  private port(box: number, kind: number, variable: number): [number, boolean] {
    const key = 2 * box + (kind === IN ? 0 : 1);
    const ports = entry(this.ports, key, () => new Map());
    const there = ports.get(variable);
    if (there !== undefined) return [there, false];
    const made = this.add(this.node[box]!, box, kind, variable);
    ports.set(variable, made);
    return [made, true];
  }

  // --- programs ---

  /**
   * Adds the edges and stubs of a program in an open box.
   * @param results connects its results; called before its nested programs are added, because those need to know which of their results are
   * read.
   */
  private *flows(holder: number, sources: Sources, results: () => void): Sliced<void> {
    const { tree, model } = this;
    const box = this.boxOf[holder]!;
    const rows = tree.children[holder]!.flatMap((child) => tree.rows(child));
    const hidden = new Set<number>();
    for (const row of rows) {
      if (row % SLICE === 0) yield;
      const isHidden = this.constants.has(row) && this.shown(tree.ofRow[row]!) < 0;
      if (isHidden) hidden.add(row);
      for (const v of model.outputs(row))
        sources.set(v, isHidden ? { stub: this.constant(row, v) } : { row });
    }
    for (const row of rows) {
      if (row % SLICE === 0) yield;
      if (hidden.has(row)) continue;
      for (const atom of model.inputs(row)) {
        if (atom < 0) {
          this.stub(this.before, this.shown(tree.ofRow[row]!), this.literal(atom));
          continue;
        }
        const source = sources.get(atom) ?? { stub: this.input(atom, "input") };
        if ("row" in source) this.connect(box, source.row, -1, atom, row, -1);
        else if ("port" in source) this.connect(box, -1, source.port, atom, row, -1);
        else this.stub(this.before, this.shown(tree.ofRow[row]!), source.stub);
      }
    }
    results();
    this.standIn(rows, hidden);
    for (const row of rows) {
      const node = tree.ofRow[row]!;
      const own = hidden.has(row) ? -1 : this.boxOf[node]!;
      if (own < 0 || this.kind[own] !== OPEN) continue;
      const nested = model.nested(row);
      if (nested.length === 1) yield* this.nested(node, own, row, nested[0]!, sources);
      else
        for (const branch of tree.children[node]!) {
          const inner = this.boxOf[branch]!;
          const p = tree.program[branch]!;
          if (this.kind[inner] === OPEN) yield* this.nested(branch, inner, row, p, sources, own);
          else this.closedBranch(inner, own, row, p, sources);
        }
    }
  }

  /** Points constants to the first box that reads them. */
  private standIn(rows: readonly number[], hidden: ReadonlySet<number>): void {
    if (hidden.size === 0) return;
    const { tree, model } = this;
    const reader = new Map<number, number>();
    for (const row of rows)
      for (const atom of model.inputs(row)) if (atom >= 0 && !reader.has(atom)) reader.set(atom, row);
    for (const row of hidden) {
      let at = row;
      while (hidden.has(at)) at = reader.get(model.outputs(at)[0]!)!;
      this.boxOf[tree.ofRow[row]!] = this.shown(tree.ofRow[at]!);
    }
  }

  /** Adds the program in an open box; if the equation has several, `outer` is the box of the equation. */
  private *nested(
    node: number,
    box: number,
    row: number,
    program: number,
    sources: Sources,
    outer = -1,
  ): Sliced<void> {
    const { model } = this;
    const inner = new Map<number, Source>();
    for (const { binder, operand, how } of model.handed(program)) {
      const source = this.sourceOf(operand, binder, how === "as it is" ? "" : how, sources);
      if ("stub" in source) {
        inner.set(binder, source);
        continue;
      }
      const [port] = this.port(box, IN, operand);
      if (outer >= 0) this.edge(outer, this.port(outer, IN, operand)[0], port, operand);
      inner.set(binder, { port });
    }
    yield* this.flows(node, inner, () => this.join(box, row, program, inner, outer));
  }

  /** Connects the results of a program to the ports of its box, if they are read. */
  private join(box: number, row: number, program: number, sources: Sources, outer: number): void {
    const { model } = this;
    const outputs = model.outputs(row);
    const results = model.results(program);
    if (results.length !== outputs.length) return;
    results.forEach((atom, i) => {
      const output = outputs[i]!;
      const there = this.ports.get(2 * (outer >= 0 ? outer : box) + 1)?.get(output);
      if (there === undefined) return;
      const target = outer >= 0 ? this.port(box, OUT, output)[0] : there;
      const source = sources.get(atom);
      if (source && "row" in source) this.connect(box, source.row, -1, atom, -1, target);
      else if (source && "port" in source) this.edge(box, source.port, target, atom);
      if (outer >= 0) this.edge(outer, target, there, output);
    });
  }

  private closedBranch(box: number, outer: number, row: number, program: number, sources: Sources): void {
    const { model } = this;
    for (const { binder, operand, how } of model.handed(program)) {
      if (model.uses(binder).length === 0 && !model.results(program).includes(binder)) continue;
      const source = this.sourceOf(operand, binder, how === "as it is" ? "" : how, sources);
      if ("stub" in source) this.stub(this.before, box, source.stub);
      else this.edge(outer, this.port(outer, IN, operand)[0], box, operand);
    }
    if (model.results(program).length !== model.outputs(row).length) return;
    for (const output of model.outputs(row)) {
      const there = this.ports.get(2 * outer + 1)?.get(output);
      if (there !== undefined) this.edge(outer, box, there, output);
    }
  }

  private sourceOf(operand: number, binder: number, role: string, sources: Sources): Source {
    if (operand < 0) return { stub: role ? this.carried(binder, role) : this.literal(operand) };
    const outer = sources.get(operand) ?? { stub: this.input(operand, "input") };
    // A loop's slice of a residual counts as that residual.
    const isResidual = role === "each" && "stub" in outer && outer.stub.residual >= 0;
    return role && "stub" in outer && !isResidual ? { stub: this.carried(binder, role) } : outer;
  }

  // --- edges ---

  /** An edge from an equation or port to the equation or port that reads its value, through the open boxes between them. */
  private connect(
    box: number,
    made: number,
    port: number,
    value: number,
    reader: number,
    target: number,
  ): void {
    let level = box;
    for (;;) {
      const source = made >= 0 ? this.childOf(level, made) : port;
      const sink = reader >= 0 ? this.childOf(level, reader) : target;
      if (source === sink) {
        // A value in an open scope that is read there.
        if (this.kind[source] !== OPEN || this.isHolder(source)) return;
        level = source;
        continue;
      }
      const from = made >= 0 ? this.leave(source, made, value) : port;
      const to = reader >= 0 ? this.enter(sink, reader, value) : target;
      this.edge(level, from, to, value);
      return;
    }
  }

  private isHolder(box: number): boolean {
    const kind = this.tree.kind[this.node[box]!];
    return kind === EQUATION || kind === PROGRAM;
  }

  /** The child of a level that contains a row. */
  private childOf(level: number, row: number): number {
    let node = this.tree.ofRow[row]!;
    const stop = this.node[level]!;
    while (this.tree.parent[node] !== stop) {
      node = this.tree.parent[node]!;
      if (node === undefined || node < 0) throw new Error(`equation ${row} is not in this box`);
    }
    return this.boxOf[node]!;
  }

  /** Where a value leaves a box: the box itself if it is closed, else a port. */
  private leave(box: number, made: number, value: number): number {
    if (this.kind[box] !== OPEN) return box;
    const [port, isNew] = this.port(box, OUT, value);
    if (isNew && !this.isHolder(box))
      this.edge(box, this.leave(this.childOf(box, made), made, value), port, value);
    return port;
  }

  private enter(box: number, reader: number, value: number): number {
    if (this.kind[box] !== OPEN) return box;
    const [port] = this.port(box, IN, value);
    if (!this.isHolder(box))
      this.edge(box, port, this.enter(this.childOf(box, reader), reader, value), value);
    return port;
  }

  private edge(level: number, from: number, to: number, value: number): void {
    const key = from * 0x4000000 + to;
    let e = this.edges.get(key);
    if (e === undefined) {
      e = this.from.length;
      this.edges.set(key, e);
      this.from.push(from);
      this.to.push(to);
      this.level.push(level);
      this.values.push([]);
      this.bytes.push(0);
    }
    const values = this.values[e]!;
    if (values.includes(value)) return;
    values.push(value);
    this.bytes[e]! += this.model.bytes(value);
  }

  // --- stubs ---

  private stub(given: Map<number, Stub[]>, box: number, stub: Stub): void {
    if (box < 0) return;
    const side = stub.kind !== "residual" ? given : given === this.before ? this.taken : this.kept;
    const isClosed = this.tree.canOpen(this.node[box]!);
    if (stub.kind === "literal" && isClosed) return;
    // Each once: of a closed box, which may have thousands, those of all its equations.
    const of = isClosed && stub.residual >= 0 ? stub.residual : stub.variable;
    const key = `${given === this.before ? "<" : ">"}${stub.kind} ${of} ${stub.text}`;
    const seen = entry(this.seen, box, () => new Set());
    if (seen.has(key)) return;
    seen.add(key);
    push(side, box, stub);
  }

  private constant(row: number, variable: number): Stub {
    return { kind: "constant", text: this.constants.get(row)!, variable, residual: -1 };
  }

  private literal(atom: number): Stub {
    return { kind: "literal", text: this.model.atomText(atom), variable: -1, residual: -1 };
  }

  private input(variable: number, kind: StubKind): Stub {
    const residual = this.residualOf.get(variable) ?? -1;
    const { name, label } = this.model.variable(variable);
    if (residual >= 0) return { kind: "residual", text: residualText(residual), variable, residual };
    return { kind, text: label || name, variable, residual };
  }

  private carried(binder: number, role: string): Stub {
    return { kind: "carry", text: `${role} ${this.model.atomText(binder)}`, variable: binder, residual: -1 };
  }

  // --- stages ---

  /** The inputs of a stage: ports if there are few, else stubs. */
  private inputsOf(root: number, program: number): Map<number, Source> {
    const { model } = this;
    const sources = new Map<number, Source>();
    const binders = model.binders(program);
    const constants = model.constants(program);
    const inputs = binders.filter((v, i) => i >= constants && !this.residualOf.has(v));
    binders.forEach((v, i) => {
      if (inputs.length <= FEW && inputs.includes(v) && model.uses(v).length > 0)
        sources.set(v, { port: this.port(this.boxOf[root]!, IN, v)[0] });
      else sources.set(v, { stub: this.input(v, i < constants ? "constant" : "input") });
    });
    return sources;
  }

  private resultsOf(box: number, root: number, program: number, sources: Sources): void {
    const { model, tree } = this;
    const nResiduals =
      model.view.stages[model.stage(this.anyRow(root) ?? 0)]?.key === "forward" ? model.residuals.length : 0;
    const all = model.results(program);
    const results = all.slice(0, all.length - nResiduals);
    results.forEach((atom, i) => {
      const source = sources.get(atom);
      if (source === undefined || !("row" in source)) return;
      if (results.length <= FEW) this.connect(box, source.row, -1, atom, -1, this.port(box, OUT, atom)[0]);
      else
        this.stub(this.after, this.shown(tree.ofRow[source.row]!), {
          kind: "result",
          text: `→ ${i}`,
          variable: atom,
          residual: -1,
        });
    });
  }

  /** Maps the inputs of the linear or backward program to their residuals. */
  private readResiduals(root: number, stage: number): void {
    const { model, tree } = this;
    const key = model.view.stages[stage]?.key;
    if (key !== "linear" && key !== "backward") return;
    const program = tree.program[root]!;
    const binders = model.binders(program).slice(model.constants(program));
    model.residuals.forEach((_, i) => {
      if (binders[i] !== undefined) this.residualOf.set(binders[i], i);
    });
  }

  /** Adds each residual to the box that computes it. */
  private addResiduals(): void {
    const { model, tree } = this;
    for (const r of model.residuals) {
      const node = r.producer >= 0 ? tree.ofRow[r.producer]! : -1;
      if (node < 0) continue;
      this.stub(this.after, this.shown(node), {
        kind: "residual",
        text: residualText(r.index),
        variable: -1,
        residual: r.index,
      });
    }
  }
}
