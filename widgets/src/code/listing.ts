/** A stage as lines of text in jaxpr notation, with the tokens of each line. */

import { formatCount, plural } from "../base/format";
import { keepLast, remembered } from "../base/maps";
import { atOnce, type Sliced } from "../base/slices";
import { keptTree, REPEAT, type Tree } from "../graph/layout/hierarchy";
import type { Model } from "../model/model";
import type { Donation } from "../model/records";
import { LineText, type Token, type TokenKind } from "./linetext";

export type LineKind = "heading" | "binders" | "equation" | "label" | "results" | "group";

export interface Line {
  kind: LineKind;
  text: string;
  /** Computed on access for equations: only the visible ones are needed. */
  readonly tokens: readonly Token[];
  /** The equation on this line, or -1. */
  row: number;
  /** The program that the line belongs to, or -1. */
  program: number;
  depth: number;
  /** The last line that folds under this one, or -1. */
  foldTo: number;
}

/** Stages with more equations than this show repeated layers under headings. */
const MANY_EQUATIONS = 80;

/** With more inputs than this, each has its own line, initially folded. */
const MANY_INPUTS = 4;
const MANY_RESULTS = 12;

/** What becomes of a donated operand. */
export function donationText({ result, reason }: Donation): string {
  return result < 0 ? `donated, but ${reason}` : `donated: result ${result} reuses its memory`;
}

/** Cached listings per model, for switching back and forth between stages. */
const KEPT = 4;
const listings = remembered((_: Model) => new Map<string, readonly Line[]>());

/** Below this many equations a stage is listed synchronously; above it, work yields every SLICE equations. */
const AT_ONCE = 1000;
const SLICE = 100;

/** Whether listing these stages is fast enough to do synchronously. */
export function isQuick(model: Model, stages: readonly number[]): boolean {
  const sizes = stages.map((i) => model.view.stages[i]!.equations).map(([from, to]) => to - from);
  return sizes.reduce((sum, n) => sum + n, 0) <= AT_ONCE;
}

/** The lines of some stages, in order; several stages get headings. */
export const listing = (model: Model, stages: readonly number[], fullParams = false): readonly Line[] =>
  atOnce(writing(model, stages, fullParams));

/** Prepares in slices everything that displaying a stage and selecting in it needs. */
export function* preparing(model: Model, stages: readonly number[], fullParams: boolean): Sliced<void> {
  yield* writing(model, stages, fullParams);
  yield* model.colouring();
  yield* model.indexing();
}

function* writing(model: Model, stages: readonly number[], fullParams: boolean): Sliced<readonly Line[]> {
  const made = listings(model);
  const key = `${stages.join()} ${fullParams} ${model.view.has_groups}`;
  const lines = made.get(key) ?? (yield* written(model, stages, fullParams));
  describeInputs(model, lines);
  return keepLast(made, key, lines, KEPT);
}

function* written(model: Model, stages: readonly number[], fullParams: boolean): Sliced<Line[]> {
  const lines: Line[] = [];
  for (const stage of stages) {
    const { programs, equations, label, title } = model.view.stages[stage]!;
    const tree = equations[1] - equations[0] > MANY_EQUATIONS ? yield* keptTree(model, [stage]) : null;
    const writer = new Writer(model, tree, lines, fullParams);
    if (stages.length > 1) writer.heading(label, title);
    if (programs[1] > programs[0]) yield* writer.program(programs[0], 0, -1, tree?.roots[0]);
  }
  return lines;
}

/** Adds the descriptions of inputs that were not known yet when the lines were written. */
export function describeInputs(model: Model, lines: readonly Line[]): void {
  for (const line of lines) {
    const first = line.kind === "binders" ? line.tokens[0] : undefined;
    if (first?.kind !== "variable" || line.tokens.at(-1)!.kind === "label") continue;
    const { label } = model.variable(first.variable!);
    if (label === "") continue;
    const more = new LineText(line.text);
    more.add(`  ${label}`, "label");
    Object.assign(line, { text: more.text, tokens: [...line.tokens, ...more.tokens] });
  }
}

/** One equation, without its nested programs. */
export function equationLine(model: Model, row: number): Line {
  return new Writer(model, null, [], false).head(row, 0);
}

/** How many primitives the summary of a folded program names. */
const NAMED = 3;

/** The summary of what is folded under a line: `1,000 × 14 equations · sin, mul, add, … · 3 residuals`. */
export function foldText(model: Model, lines: readonly Line[], i: number): string {
  const { kind, row, foldTo } = lines[i]!;
  if (row < 0 && kind !== "group") return plural(foldTo - i, "line");
  const times = new Map<string, number>();
  let equations = 0;
  let residuals = 0;
  for (let k = i; k <= foldTo; k++) {
    const inner = lines[k]!;
    if (inner.kind !== "equation") continue;
    // A program that is called often has its equations once, and as many residuals of each as there are calls.
    const made = (model.residualsOfRow.get(inner.row) ?? []).filter(
      (index) => model.residuals[index]!.producer === inner.row,
    );
    residuals += Math.min(made.length, model.outputs(inner.row).length);
    if (k === i) continue;
    equations += 1;
    const primitive = model.primitive(inner.row);
    times.set(primitive, (times.get(primitive) ?? 0) + 1);
  }
  const often = [...times].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  const more = often.length > NAMED ? ", …" : "";
  const length = model.length(row);
  const nested = model.nested(row);
  const parts = [
    nested.length > 1 &&
      model.programLabel(nested[0]!).startsWith("branches") &&
      plural(nested.length, "branch", "branches"),
    (length > 0 ? `${formatCount(length)} × ` : "") + plural(equations, "equation"),
    often.length > 0 && often.slice(0, NAMED).join(", ") + more,
    residuals > 0 && plural(residuals, "residual"),
  ];
  return parts.filter(Boolean).join(" · ");
}

class Writer {
  constructor(
    private readonly model: Model,
    /** The graph's tree; null if repeats get no headings. */
    private readonly tree: Tree | null,
    private readonly lines: Line[],
    private readonly fullParams: boolean,
  ) {}

  heading(label: string, title: string): void {
    const line = this.start("heading", -1, 0);
    line.add(label, "primitive");
    line.add(`  ${title}`, "label");
    line.end();
  }

  /** A program, whose equations are the children of `box`. */
  *program(program: number, depth: number, owner = -1, box = -1): Sliced<void> {
    const donations = owner < 0 ? [] : this.model.donationsOf(owner);
    this.binders(program, depth, donations);
    if (this.tree === null)
      for (const row of this.model.rowsOf(program)) yield* this.equation(row, depth + 1);
    else yield* this.boxes(this.tree, this.tree.children[box]!, depth + 1, false);
    this.results(program, depth, donations);
  }

  /** The equations in boxes. A repeat gets a heading, `block × 12`, as does each copy and each group within it. */
  private *boxes(tree: Tree, boxes: readonly number[], depth: number, isRepeated: boolean): Sliced<void> {
    for (const box of boxes) {
      const inside = tree.children[box]!;
      const isRepeat = tree.kind[box] === REPEAT;
      if (tree.row[box]! >= 0) yield* this.equation(tree.row[box]!, depth);
      else if (!isRepeat && !isRepeated) yield* this.boxes(tree, inside, depth, false);
      else {
        const line = this.start("group", -1, depth);
        line.add(tree.title[box]!, "primitive");
        if (isRepeat) line.add(` × ${formatCount(inside.length)}`, "label");
        const head = line.end();
        yield* this.boxes(tree, inside, depth + 1, true);
        head.foldTo = this.lines.length - 1;
      }
    }
  }

  private results(program: number, depth: number, donations: Donation[]): void {
    const results = this.model.results(program);
    const line = this.start("results", -1, depth, program);
    line.add("in", "keyword");
    if (results.length <= MANY_RESULTS) {
      line.atoms(results, donations);
      line.end();
      return;
    }
    line.add(` ${results.length} results`, "label");
    const head = line.end();
    const rest = this.start("results", -1, depth + 1, program);
    rest.atoms(results, donations);
    rest.end();
    head.foldTo = this.lines.length - 1;
  }

  private binders(program: number, depth: number, donations: Donation[]): void {
    const given = new Map(donations.map((d) => [d.variable, d]));
    const constants = this.model.constants(program);
    const binders = this.model.binders(program);
    const line = this.start("binders", -1, depth, program);
    line.add("lambda", "keyword");
    if (binders.length <= MANY_INPUTS) {
      binders.forEach((v, i) => {
        line.add(i === constants && i > 0 ? " ; " : " ");
        line.typed(v);
        line.given(given.get(v));
      });
      line.add(" .");
      line.end();
      return;
    }
    line.add(` ${binders.length} inputs`, "label");
    const head = line.end();
    for (const v of binders) {
      const part = this.start("binders", -1, depth + 1, program);
      part.typed(v);
      part.given(given.get(v));
      const { label } = this.model.variable(v);
      if (label) part.add(`  ${label}`, "label");
      part.end();
    }
    head.foldTo = this.lines.length - 1;
  }

  private *equation(row: number, depth: number): Sliced<void> {
    const { model } = this;
    const head = new EquationLine(this, this.part(row, depth, true).text, row, depth, model.program(row));
    this.lines.push(head);
    if (row % SLICE === 0) yield;
    const nested = model.nested(row);
    const box = this.tree?.ofRow[row] ?? -1;
    for (const [i, p] of nested.entries()) {
      if (nested.length > 1) {
        const label = this.start("label", -1, depth + 1);
        label.add(model.programLabel(p), "label");
        label.end();
      }
      yield* this.program(p, depth + 1, row, nested.length > 1 ? this.tree?.children[box]?.[i] : box);
    }
    if (nested.length > 0) head.foldTo = this.lines.length - 1;
  }

  /** The equation without its nested programs. */
  head(row: number, depth: number): Line {
    return this.part(row, depth).end();
  }

  part(row: number, depth: number, isPlain = false): Part {
    const { model } = this;
    const line = new Part(model, this.lines, "equation", row, depth, model.program(row), isPlain);
    const outputs = model.outputs(row);
    outputs.forEach((v, i) => {
      if (i > 0) line.add(" ");
      line.typed(v);
    });
    if (outputs.length > 0) line.add(" = ");
    const exchanges = model.axes.get(row);
    line.add(model.primitive(row), exchanges ? "collective" : "primitive");
    line.params(model.params(row), this.fullParams, exchanges !== undefined || model.layouts.has(row));
    for (const a of model.inputs(row)) {
      line.add(" ");
      line.atom(a);
    }
    return line;
  }

  private start(kind: LineKind, row: number, depth: number, program = -1): Part {
    return new Part(this.model, this.lines, kind, row, depth, program);
  }
}

class EquationLine implements Line {
  readonly kind = "equation";
  foldTo = -1;

  constructor(
    private readonly writer: Writer,
    readonly text: string,
    readonly row: number,
    readonly depth: number,
    readonly program: number,
  ) {}

  get tokens(): readonly Token[] {
    return this.writer.part(this.row, this.depth).tokens;
  }
}

class Part extends LineText {
  constructor(
    private readonly model: Model,
    private readonly lines: Line[],
    private readonly kind: LineKind,
    private readonly row: number,
    private readonly depth: number,
    private readonly program: number,
    isPlain = false,
  ) {
    super("  ".repeat(depth), isPlain);
  }

  atom(a: number): void {
    if (a >= 0) this.add(this.model.atomText(a), "variable", { variable: a });
    else this.typed(a, "literal");
  }

  /** ` (a, b)`, each preceded by the donated input whose memory it reuses. */
  atoms(atoms: number[], donations: Donation[]): void {
    this.add(" (");
    atoms.forEach((a, i) => {
      if (i > 0) this.add(", ");
      this.atom(a);
      const taken = donations.find((d) => d.result === i);
      if (!taken) return;
      this.add(" ");
      this.add("←", "donated", { variable: taken.variable });
      this.add(" ");
      this.atom(taken.variable);
    });
    this.add(")");
  }

  /** ` donated → c` */
  given(donation: Donation | undefined): void {
    if (!donation) return;
    this.add(" ");
    this.add(donation.taker === null ? "donated, no match" : "donated →", "donated", {
      variable: donation.variable,
    });
    if (donation.taker === null) return;
    this.add(" ");
    this.atom(donation.taker);
  }

  typed(a: number, kind: TokenKind = "variable"): void {
    this.add(this.model.atomText(a), kind, a >= 0 ? { variable: a, isBinder: true } : {});
    this.add(`:${this.model.atomType(a)}`, "type");
  }

  end(): Line {
    const { kind, text, tokens, row, depth, program } = this;
    const line = { kind, text, tokens, row, depth, program, foldTo: -1 };
    this.lines.push(line);
    return line;
  }
}
