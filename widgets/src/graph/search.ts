/** The results of a search in the graph, and the current one. */

import { plural } from "../base/format";
import type { Model } from "../model/model";
import { search } from "../model/query";
import { type Question, rowsOf, wordsOf } from "../model/question";
import type { FoundAddresses } from "../wire/explorer.generated";

export class Search {
  rows: readonly number[] = [];
  private at = -1;
  /** The text that was looked for, and whether it was known what it means. */
  text = "";
  private isComplete = true;

  constructor(
    private readonly model: Model,
    private readonly stages: readonly number[],
    private readonly meaning: Question<FoundAddresses>,
    private readonly say: (text: string, error?: string) => void,
  ) {}

  /** Finds the equations that match, or that the text means as an address, and reports their number or a syntax error. */
  find(text: string): void {
    this.at = -1;
    this.text = text;
    const answer = this.meaning.about(wordsOf(text));
    this.isComplete = answer !== null || text.trim() === "";
    const meant = (answer?.values ?? [])
      .flatMap((value) => rowsOf(this.model, value))
      .filter((row) => this.stages.includes(this.model.stage(row)));
    try {
      const stages = this.stages.map((stage) => this.model.view.stages[stage]!.equations);
      const found = new Set([...search(this.model, text, stages), ...meant]);
      this.rows = [...found].sort((a, b) => a - b);
      this.say(text.trim() === "" ? "" : plural(this.rows.length, "hit"));
    } catch (error) {
      this.rows = meant;
      if (meant.length > 0) this.say(plural(meant.length, "hit"));
      else this.say("?", error instanceof Error ? error.message : String(error));
    }
  }

  /** Whether the kernel has said by now what the text means as an address, of which nothing was known. */
  hear(): boolean {
    return !this.isComplete && this.meaning.about(wordsOf(this.text)) !== null;
  }

  /** The next or previous match, or -1. */
  next(by: 1 | -1): number {
    const n = this.rows.length;
    if (n === 0) return -1;
    this.at = this.at < 0 ? (by === 1 ? 0 : n - 1) : (this.at + by + n) % n;
    this.say(`${this.at + 1} of ${n}`);
    return this.rows[this.at]!;
  }
}
