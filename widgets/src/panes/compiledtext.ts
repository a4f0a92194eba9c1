/** The compiled program: the texts from Python, with links between their lines and equations. */

import { rowsOfStages } from "../model/exchanges";
import { push } from "../model/groups";
import type { Model } from "../model/model";
import type { CompiledText } from "../wire/explorer.generated";

/** One of the texts, linked to rows of the model. */
export class Linked {
  readonly lines: readonly string[];
  readonly rows: readonly (readonly number[])[];
  readonly cut: number;
  /** The lines of each row. */
  readonly linesOf = new Map<number, number[]>();

  constructor(
    private readonly model: Model,
    text: CompiledText,
    private readonly stages: readonly [string, number][],
  ) {
    const rowOf = rowsOfStages(model, stages);
    this.lines = text.text.split("\n");
    this.rows = text.links.map((numbers) => numbers.map((i) => rowOf[i]!));
    this.cut = text.cut;
    this.rows.forEach((rows, line) => {
      for (const row of rows) push(this.linesOf, row, line);
    });
  }

  isCompiled(row: number): boolean {
    return this.stages.some(([key]) => key === this.model.stageKey(row));
  }

  /** Whether a row or a row nested in it has a line. */
  isLeft(row: number): boolean {
    return this.linesOf.has(row) || this.model.inside(row).some((inner) => this.linesOf.has(inner));
  }

  /** The rows that represent a row in the text: itself, or if it has no line, as for an inlined call, the rows nested in it. */
  standingFor(row: number): number[] {
    return this.linesOf.has(row) ? [row] : this.model.inside(row);
  }

  /** The number of innermost equations, and of those without a line. */
  gone(): { total: number; without: number } {
    const rows = this.stages.flatMap(([key]) => this.model.rowsOfStage(key));
    const innermost = rows.filter((row) => this.model.nested(row).length === 0);
    const without = innermost.filter((row) => !this.linesOf.has(row)).length;
    return { total: innermost.length, without };
  }
}

export interface Part {
  from: number;
  to: number;
  kind: "variable" | "type" | "literal" | "label" | "keyword" | "primitive" | "param";
}

const PARTS = new RegExp(
  [
    "(%[\\w.\\-#]+|@[\\w.\\-]+)",
    "(\\b(?:pred|token|opaque|bf16|[sufc]\\d+\\w*)\\[[^\\]]*\\](?:\\{[^}]*\\})?|!?\\b(?:tensor|tuple)<[^>]*>)",
    "(//.*$|/\\*.*?\\*/)",
    "\\b(ENTRY|ROOT|HloModule|module|func\\.func|return|public|private|cond|do|attributes)\\b(?!=)",
    "((?:stablehlo|chlo|sdy|mhlo|func)\\.[\\w.]+|(?<=[ ])[a-z][a-z0-9-]*(?=\\())",
    "(\\b[a-z_]+=|\\b(?:dims|sizes|contracting_dims|batching_dims|precision|dimensions|init)\\b)",
    "((?<=constant\\()[^)]*|dense<[^>]*>)",
  ].join("|"),
  "g",
);
const KINDS = ["variable", "type", "label", "keyword", "primitive", "param", "literal"] as const;

/** The ranges of a line with their colours. */
export function partsOf(line: string): Part[] {
  return Array.from(line.matchAll(PARTS), (match) => ({
    from: match.index,
    to: match.index + match[0].length,
    kind: KINDS[match.slice(1).findIndex((group) => group !== undefined)]!,
  }));
}
