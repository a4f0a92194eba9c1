/** The results of a search in the graph, and the current one. */

import { plural } from "../base/format";
import type { Model } from "../model/model";
import { search } from "../model/query";

export class Search {
  rows: readonly number[] = [];
  private at = -1;

  constructor(
    private readonly model: Model,
    private readonly stages: readonly number[],
    private readonly say: (text: string, error?: string) => void,
  ) {}

  /** Finds the equations that match, and reports their number or a syntax error. */
  find(text: string): void {
    this.at = -1;
    try {
      const stages = this.stages.map((stage) => this.model.view.stages[stage]!.equations);
      this.rows = search(this.model, text, stages);
      this.say(text.trim() === "" ? "" : plural(this.rows.length, "hit"));
    } catch (error) {
      this.rows = [];
      this.say("?", error instanceof Error ? error.message : String(error));
    }
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
