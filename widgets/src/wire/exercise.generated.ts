/** Written by `python tests/page/wire_types.py` from `jaxviz/teach/messages.py`, which says more: not to be edited. */

/** One part of an answer, as in `teach.Point`. */
export interface SaidPoint {
  mark: "right" | "wrong" | "missed" | "note";
  what: string;
  why: string;
}

/** A verdict, as in `teach.Verdict`. */
export interface Said {
  isRight: boolean | null;
  headline: string;
  points: SaidPoint[];
  note: string;
}

/** The verdict on each choice, in order. */
export interface OfChoice {
  kind: "choice";
  verdicts: Said[];
}

/** A number and its tolerance, relative to the larger of the number and the answer. */
export interface OfNumber {
  kind: "number";
  truth: number;
  tolerance: number;
  exact: Said;
  near: Said;
  note: string;
}

/** A word, compared without case; the note is for wrong answers. */
export interface OfWord {
  kind: "word";
  right: Said;
  note: string;
}

/** A value that can be marked: whether the gradient saves it, and why or why not; and why not in other words, which name no value that is saved, for an answer that misses one. */
export interface Box {
  isKept: boolean;
  what: string;
  why: string;
  whileMissed: string;
  place: string;
}

/** The values that can be marked, in order, and the notes for the right answer and for any answer. */
export interface OfMarks {
  kind: "marks";
  boxes: Box[];
  headline: string;
  note: string;
}

/** Everything that a form may need to say. Without a grading it takes no answer, because its answer is code that must run. */
export interface Sheet {
  grading: OfChoice | OfNumber | OfWord | OfMarks | null;
  blank: string;
  hints: string[];
  answer: Said;
}
