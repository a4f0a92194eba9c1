/** The switches of a function as set: what is to be saved, and what comes of it. The panes that show them share one of these. */

import type { Work } from "../host/work";
import { whyNot } from "../main/waiting";
import type { Timeline } from "./timeline";
import { type Outcome, type Table, WhatIf } from "./whatif";

export class Switches {
  /** What they are worked out from; null until it is there. */
  whatIf: WhatIf | null = null;
  /** Why there are none, or none yet; or empty. */
  error = "";
  /** The values that are to be saved; null while the function is as it is written. */
  chosen: ReadonlySet<number> | null = null;
  /** Whether they have been asked for and are not there yet. */
  isUnderWay = false;
  /** What they come to, and the memory over time; null while the function is as it is written. */
  outcome: Outcome | null = null;
  timeline: Timeline | null = null;
  private readonly stop: () => void;
  private waiting: (() => void)[] = [];

  constructor(
    readonly source: Work,
    private readonly tell: () => void,
  ) {
    this.stop = source.listen(() => {
      // What nobody has looked at is read when somebody does.
      if (this.isUnderWay && source.read() !== "") this.read();
      else if (this.isUnderWay) {
        this.error = whyNot(source.progress);
        this.tell();
      }
    });
  }

  destroy(): void {
    this.stop();
  }

  /** Has them made, if they are not there, and then does something with them. */
  ask(then: () => void = () => {}): void {
    if (this.whatIf !== null) {
      then();
      return;
    }
    this.waiting.push(then);
    this.isUnderWay = true;
    if (this.source.read() !== "") this.read();
    else this.source.ask();
  }

  /** The values that are saved, as set or as written. */
  get saved(): ReadonlySet<number> {
    return this.chosen ?? new Set(this.whatIf?.table.present.saved);
  }

  /** Chooses the values to save; null for the function as it is written. */
  choose(chosen: ReadonlySet<number> | null): void {
    this.chosen = chosen && new Set(chosen);
    this.outcome = chosen && this.whatIf!.outcome(chosen);
    this.timeline = this.outcome && this.whatIf!.timeline(this.outcome);
    this.tell();
  }

  /** Saves some values, or has them computed again. */
  set(values: readonly number[], isSaved: boolean): void {
    const chosen = new Set(this.saved);
    for (const value of values) {
      if (isSaved) chosen.add(value);
      else chosen.delete(value);
    }
    this.choose(chosen);
  }

  /** The values that a checkpoint saves in the place of a residual; null where that is not known yet. */
  inPlaceOf(residual: number): readonly number[] | null {
    return this.whatIf === null ? null : (this.whatIf.table.residuals[residual] ?? []);
  }

  private read(): void {
    const text = this.source.read();
    if (text === "") return;
    this.isUnderWay = false;
    this.error = "";
    const answer = JSON.parse(text) as Table | { error: string };
    if ("error" in answer) this.error = answer.error;
    else this.whatIf = new WhatIf(answer);
    this.chosen = this.outcome = this.timeline = null;
    const { waiting } = this;
    this.waiting = [];
    this.tell();
    if (this.whatIf !== null) for (const then of waiting) then();
  }
}
