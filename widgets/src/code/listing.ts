/** A stage as lines of text, in the notation of jaxprs, with the parts of each line that are coloured. */

import type { Model } from "../model/model";
import type { Donation } from "../model/records";
import { formatCount, plural } from "../ui/format";

export type TokenKind =
  | "variable"
  | "type"
  | "primitive"
  | "collective"
  | "axis"
  | "param"
  | "donated"
  | "literal"
  | "keyword"
  | "label";

export interface Token {
  from: number;
  to: number;
  kind: TokenKind;
  /** The variable that it names. */
  variable?: number;
  /** Whether the variable is bound here: made, or an input. */
  isBinder?: boolean;
  /** What it stands for in short. */
  title?: string;
}

export type LineKind = "heading" | "binders" | "equation" | "label" | "results";

export interface Line {
  kind: LineKind;
  text: string;
  tokens: Token[];
  /** The equation that it shows or is part of, or -1. */
  row: number;
  /** The program that it is part of, or -1. */
  program: number;
  depth: number;
  /** The last line of what folds under this one, or -1. */
  foldTo: number;
}

/** Longer params are cut, so that the operands behind them stay in sight; the inspector has them whole. */
const LONG_PARAMS = 28;

/** More inputs than this stand on lines of their own, folded at first. */
const MANY_INPUTS = 4;
const MANY_RESULTS = 12;

/** What becomes of a donated operand, in a sentence. */
export function donationText({ result, reason }: Donation): string {
  return result < 0 ? `donated, but ${reason}` : `donated: result ${result} takes over its memory`;
}

/** The lines of some stages, one below the other; more than one are given headings. */
export function listing(model: Model, stages: readonly number[], fullParams = false): Line[] {
  const lines: Line[] = [];
  for (const stage of stages) {
    const { programs, label, title } = model.view.stages[stage]!;
    const writer = new Writer(model, stage, lines, fullParams);
    if (stages.length > 1) writer.heading(label, title);
    if (programs[1] > programs[0]) writer.program(programs[0], 0);
  }
  return lines;
}

/** As many whole params as fit, and `…` for the rest. */
function shortened(params: string[], always: number): string {
  let text = "";
  for (const [i, param] of params.entries()) {
    if (i >= always && text.length + param.length > LONG_PARAMS - 8) break;
    text += `${param} `;
  }
  return `${text}…`;
}

/** Primitives named in what is said of a folded program. */
const NAMED = 3;

/** `1,000 × 14 equations · sin, mul, add, … · 3 residuals`: what is folded under a line, in short. */
export function foldText(model: Model, lines: readonly Line[], i: number): string {
  const { row, foldTo } = lines[i]!;
  if (row < 0) return plural(foldTo - i, "line");
  const times = new Map<string, number>();
  let equations = 0;
  let residuals = 0;
  for (let k = i; k <= foldTo; k++) {
    const inner = lines[k]!;
    if (inner.kind !== "equation") continue;
    for (const index of model.residualsOfRow.get(inner.row) ?? [])
      if (model.residuals[index]!.producer === inner.row) residuals += 1;
    if (k === i) continue;
    equations += 1;
    const primitive = model.primitive(inner.row);
    times.set(primitive, (times.get(primitive) ?? 0) + 1);
  }
  const often = [...times].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  const more = often.length > NAMED ? ", …" : "";
  const length = model.params(row).find((param) => param.startsWith("length="));
  const nested = model.nested(row);
  const parts = [
    nested.length > 1 &&
      model.programLabel(nested[0]!).startsWith("branches") &&
      plural(nested.length, "branch", "branches"),
    (length ? `${formatCount(Number(length.slice(7)))} × ` : "") + plural(equations, "equation"),
    often.length > 0 && often.slice(0, NAMED).join(", ") + more,
    residuals > 0 && plural(residuals, "residual"),
  ];
  return parts.filter(Boolean).join(" · ");
}

class Writer {
  private readonly rowsOfProgram = new Map<number, number[]>();

  constructor(
    private readonly model: Model,
    stage: number,
    private readonly lines: Line[],
    private readonly fullParams: boolean,
  ) {
    const [from, to] = model.view.stages[stage]!.equations;
    for (let row = from; row < to; row++) {
      const p = model.program(row);
      const rows = this.rowsOfProgram.get(p);
      if (rows) rows.push(row);
      else this.rowsOfProgram.set(p, [row]);
    }
  }

  heading(label: string, title: string): void {
    const line = this.start("heading", -1, 0);
    line.add(label, "primitive");
    line.add(`  ${title}`, "label");
    line.end();
  }

  program(program: number, depth: number, owner = -1): void {
    const donations = owner < 0 ? [] : this.model.donationsOf(owner);
    this.binders(program, depth, donations);
    for (const row of this.rowsOfProgram.get(program) ?? []) this.equation(row, depth + 1);
    this.results(program, depth, donations);
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

  private equation(row: number, depth: number): void {
    const { model } = this;
    const line = this.start("equation", row, depth, model.program(row));
    model.outputs(row).forEach((v, i) => {
      if (i > 0) line.add(" ");
      line.typed(v);
    });
    if (model.outputs(row).length > 0) line.add(" = ");
    const exchanges = model.axes.get(row);
    line.add(model.primitive(row), exchanges ? "collective" : "primitive");
    this.params(line, model.params(row), exchanges !== undefined || model.layouts.has(row));
    for (const a of model.inputs(row)) {
      line.add(" ");
      line.atom(a);
    }
    const head = line.end();
    const nested = model.nested(row);
    for (const p of nested) {
      if (nested.length > 1) {
        const label = this.start("label", -1, depth + 1);
        label.add(model.programLabel(p), "label");
        label.end();
      }
      this.program(p, depth + 1, row);
    }
    if (nested.length > 0) head.foldTo = this.lines.length - 1;
  }

  /** The first param is always there where it says along which axes. */
  private params(line: Part, params: string[], hasAxis: boolean): void {
    if (params.length === 0) return;
    const all = params.join(" ");
    const isShort = this.fullParams || all.length <= LONG_PARAMS;
    const text = isShort ? all : shortened(params, hasAxis ? 1 : 0);
    const more = isShort ? {} : { title: params.join("\n") };
    const axis = hasAxis ? params[0]! : "";
    line.add("[", "param", more);
    if (axis) line.add(axis, "axis", more);
    line.add(`${text.slice(axis.length)}]`, "param", more);
  }

  private start(kind: LineKind, row: number, depth: number, program = -1): Part {
    return new Part(this.model, this.lines, kind, row, depth, program);
  }
}

class Part {
  private text: string;
  private readonly tokens: Token[] = [];

  constructor(
    private readonly model: Model,
    private readonly lines: Line[],
    private readonly kind: LineKind,
    private readonly row: number,
    private readonly depth: number,
    private readonly program: number,
  ) {
    this.text = "  ".repeat(depth);
  }

  add(text: string, kind?: TokenKind, more: Partial<Token> = {}): void {
    const from = this.text.length;
    this.text += text.replace(/[\n\r\u2028\u2029]/g, " ");
    if (kind) this.tokens.push({ from, to: this.text.length, kind, ...more });
  }

  atom(a: number): void {
    if (a >= 0) this.add(this.model.atomText(a), "variable", { variable: a });
    else this.typed(a, "literal");
  }

  /** ` (a, b)`, each with the donated input whose memory it takes. */
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
