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

/** What to say to each of the choices, in their order. */
export interface OfChoice {
  kind: "choice";
  verdicts: Said[];
}

/** A number, and how far from it an answer may be, relative to the larger of the two. */
export interface OfNumber {
  kind: "number";
  truth: number;
  tolerance: number;
  exact: Said;
  near: Said;
  note: string;
}

/** A word, in any case of its letters; the note is for answers that are wrong. */
export interface OfWord {
  kind: "word";
  right: Said;
  note: string;
}

/** A value that can be marked: whether the gradient keeps it, and why or why not. */
export interface Box {
  isKept: boolean;
  what: string;
  why: string;
}

/** The values that can be marked, in their order, and what is said with the right answer and with any. */
export interface OfMarks {
  kind: "marks";
  boxes: Box[];
  headline: string;
  note: string;
}

/** Everything that a form may have to say. Without a grading it takes no answer: its answer is code, which has to run. */
export interface Sheet {
  grading: OfChoice | OfNumber | OfWord | OfMarks | null;
  blank: string;
  hints: string[];
  answer: Said;
}
