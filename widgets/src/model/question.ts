/** Questions that the kernel answers: what a text means as an address, and which addresses an equation has. */

import type { FoundValue } from "../wire/explorer.generated";
import type { Model } from "./model";
import { NO_WORK, type Work } from "./work";

/** A text as it is looked for, and asked. */
export const wordsOf = (text: string): string => text.trim().replace(/\s+/g, " ");

/** The equations that compute a value that was found. */
export const rowsOf = (model: Model, [, , names]: FoundValue): number[] =>
  names.map((name) => model.rowNamed(name)).filter((row) => row >= 0);

export class Question<Answer extends { asked: string }> {
  constructor(
    private readonly work: Work = NO_WORK,
    private readonly ask: (text: string) => void = () => {},
  ) {}

  /** The last answer; reads signals, also of what the kernel works on. */
  get last(): Answer | null {
    const said = this.work.read();
    return said === "" ? null : (JSON.parse(said) as Answer);
  }

  /** The answer about a text, which is asked unless the kernel works on another one; null until it is there. */
  about(text: string): Answer | null {
    const { last } = this;
    if (last?.asked === text) return last;
    if (text !== "" && this.work.progress.state === "none") this.ask(text);
    return null;
  }
}
