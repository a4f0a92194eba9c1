/** The gradient's figures on each line of the source: saved bytes, FLOPs and moved bytes, summed in Python. */

import { formatBytes, formatFlops } from "../base/format";
import { PLURALS } from "../wire/schema";
import { push, sumOf } from "./groups";
import type { Model } from "./model";
import { bytesOnOne, type Residual } from "./records";
import { PASSES } from "./roles";

export const FIGURES = ["kept", "forward", "backward", "recomputed", "moved"] as const;
export type Figure = (typeof FIGURES)[number];
/** Those beside the source. */
const BESIDE: readonly Figure[] = ["kept", "forward", "backward", "recomputed"];
const BYTES: readonly Figure[] = ["kept", "moved"];
export type Figures = Readonly<Record<Figure, number>>;

/** The name of each figure. */
export const CALLED: Readonly<Record<Figure, string>> = {
  kept: "saved",
  forward: "forward",
  backward: "backward",
  recomputed: "recomputed",
  moved: "moved",
};

/** The kinds of what is in memory; as in the head of the page, "saves 1.2 MiB". */
export const IN_MEMORY = { ...PLURALS, residual: CALLED.kept };

/** The description of each figure. */
export const ABOUT: Readonly<Record<Figure, string>> = {
  kept: "bytes saved for the backward pass, without arguments",
  forward: "FLOPs of the forward pass, all iterations together",
  backward: "FLOPs of the backward pass, all iterations together",
  recomputed: "FLOPs of the backward pass that recompute what the forward pass computed",
  moved:
    "bytes that the operations of both passes read and write, each taken separately: XLA fuses them and moves fewer",
};

/** `48.0 KiB`, or `1.2 MFLOP`. */
export function formatFigure(figure: Figure, n: number): string {
  return BYTES.includes(figure) ? formatBytes(n) : formatFlops(n);
}

/** How long a number in a column may be; `1008.0` is longer. */
const MOST_DIGITS = 5;

/** The same for a column with FLOPs in its heading, with aligned units: `48.0 KiB`, `1.2 M`, `147  `. */
export function alignedFigure(figure: Figure, n: number): string {
  const [exact, unit = ""] = formatFigure(figure, n).split(" ");
  const number = exact!.length > MOST_DIGITS ? exact!.replace(/\.\d+$/, "") : exact!;
  return figure === "kept"
    ? `${number} ${unit.padEnd(3)}`
    : `${number} ${unit.replace("FLOP", "").padEnd(1)}`;
}

export class LineFigures {
  /** The sum over all lines, and the maximum. */
  readonly total: Figures;
  readonly most: Figures;
  /** The line for which most bytes are saved, as `file:line`; empty if there is none. */
  readonly largest: string;
  /** The figures beside the source that are not zero on every line. */
  readonly there: readonly Figure[];
  private readonly ofLine = new Map<string, Figures>();

  constructor(model: Model) {
    const columns = FIGURES.map((figure) => Array.from(model.column(`line_${figure}`)));
    const lines = model.column("line_number");
    model.column("line_file").forEach((file, i) => {
      this.ofLine.set(
        `${file}:${lines[i]}`,
        record((_, k) => columns[k]![i]!),
      );
    });
    this.total = record((_, k) => columns[k]!.reduce((sum, n) => sum + n, 0));
    this.most = record((_, k) => columns[k]!.reduce((most, n) => Math.max(most, n), 0));
    this.there = BESIDE.filter((figure) => this.total[figure] > 0);
    const isLargest = ([, { kept }]: [string, Figures]) => kept > 0 && kept === this.most.kept;
    this.largest = [...this.ofLine].find(isLargest)?.[0] ?? "";
  }

  /** The lines with figures, in the order of Python. */
  get all(): { file: number; line: number; figures: Figures }[] {
    return [...this.ofLine].map(([key, figures]) => {
      const [file, line] = key.split(":").map(Number);
      return { file: file!, line: line!, figures };
    });
  }

  of(file: number, line: number): Figures {
    return this.ofLine.get(`${file}:${line}`) ?? NONE;
  }

  /** `48.0 KiB saved, 1.2 MFLOP forward`, or empty. */
  said(figures: Figures): string {
    const has = this.there.filter((figure) => figures[figure] > 0);
    return has.map((figure) => `${formatFigure(figure, figures[figure])} ${CALLED[figure]}`).join(", ");
  }
}

/** Equations of one pass that come from the same expression in repeated layers, calls and iterations, and are alike. */
export interface LineEquations {
  stage: number;
  rows: readonly number[];
  /** How many of the listed equations contain its program. */
  depth: number;
  figures: Figures;
}

/** The equations of a line: in the forward and backward programs, or if there are none, in the function. */
export function equationsOfLine(model: Model, file: number, line: number): LineEquations[] {
  const rows = model.rowsOfLine(file, line);
  const ofPasses = rows.filter((row) => PASSES.includes(model.stageKey(row)));
  const shown = ofPasses.length > 0 ? ofPasses : rows.filter((row) => model.stageKey(row) === "primal");
  const here = new Set(shown);
  const depthOf = (row: number) => {
    let depth = 0;
    for (let owner = model.owner(row); owner >= 0; owner = model.owner(owner))
      depth += Number(here.has(owner));
    return depth;
  };
  /** The bytes it saves for this line. A scan's stacked residuals and values computed before the loop count for its body's equations. */
  const keptOf = (row: number) => {
    const made = (model.residualsOfRow.get(row) ?? []).map((index) => model.residuals[index]!);
    const isOfLine = (r: Residual) => r.place?.file === file && r.place.line === line;
    const counted = made.filter((r) => r.producer === row && r.kind !== "argument" && isOfLine(r));
    return sumOf(counted, bytesOnOne);
  };
  return alikeAmong(model, shown).map((same) => {
    const [first] = same as [number];
    const isBackward = model.stageKey(first) === "backward";
    const [work, moved] = [sumOf(same, (row) => model.work(row)), sumOf(same, (row) => model.moved(row))];
    const kept = isBackward ? 0 : sumOf(same, keptOf);
    const recomputed = model.role(first) === "recomputation" ? work : 0;
    const [forward, backward] = isBackward ? [0, work] : [work, 0];
    const figures = { kept, forward, backward, recomputed, moved };
    return { stage: model.stage(first), rows: same, depth: depthOf(first), figures };
  });
}

/** Equations of one stage that come from the same expression in repeated layers, calls and iterations, together. */
export function alikeAmong(model: Model, rows: readonly number[]): number[][] {
  const groups = new Map<string, number[]>();
  for (const row of rows) {
    const types = model.outputs(row).map((v) => model.column("variable_type")[v]);
    const key = [model.stage(row), model.role(row), model.group(row), model.primitive(row), ...types];
    push(groups, key.join(), row);
  }
  return [...groups.values()];
}

/** Values saved for a line that none of its equations computes, by kind: constants, literals, and values from a cond's branches. */
export function keptBesides(model: Model, file: number, line: number): Map<string, Residual[]> {
  const here = new Set(model.rowsOfLine(file, line));
  const found = new Map<string, Residual[]>();
  for (const r of model.residuals)
    if (r.kind !== "argument" && r.place?.file === file && r.place.line === line && !here.has(r.producer))
      push(found, r.kind, r);
  return found;
}

/** The lines with equations, as `file:line`. */
export function linesWithEquations(model: Model): Set<string> {
  const [files, lines] = [model.column("location_file"), model.column("location_line")];
  const found = new Set<string>();
  for (const at of new Set(model.column("equation_location")))
    if (at >= 0) found.add(`${files[at]}:${lines[at]}`);
  return found;
}

const record = (of: (figure: Figure, i: number) => number): Figures =>
  Object.fromEntries(FIGURES.map((figure, i) => [figure, of(figure, i)])) as unknown as Figures;

/** A line without figures. */
export const NONE: Figures = record(() => 0);
