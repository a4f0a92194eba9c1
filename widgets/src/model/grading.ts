/**
 * Checks answers on a page without a kernel. It mirrors `jaxviz/teach`: `predict.py` for numbers, words and choices, `saved.py` for marks.
 */

import type { OfChoice, OfMarks, OfNumber, OfWord, Said, SaidPoint } from "../wire/exercise.generated";

export type Grading = OfChoice | OfNumber | OfWord | OfMarks;

/** The answer in a form: the indices of ticked boxes, the index of a choice, or a text. */
export type Given = readonly number[] | number | string;

const SIZE = /^(\d+(?:\.\d*)?|\.\d+)(e[+-]?\d+)?\s*([kmgt]i?b|b)?$/i;
const UNITS: Record<string, number> = {
  b: 1,
  kb: 1e3,
  mb: 1e6,
  gb: 1e9,
  tb: 1e12,
  kib: 2 ** 10,
  mib: 2 ** 20,
  gib: 2 ** 30,
  tib: 2 ** 40,
};

export function graded(grading: Grading, given: Given): Said {
  if (grading.kind === "choice") return grading.verdicts[given as number]!;
  if (grading.kind === "number") return ofNumber(grading, given as string);
  if (grading.kind === "word") return ofWord(grading, given as string);
  return ofMarks(grading, new Set(given as number[]));
}

const notYet = (headline: string, note = "", points: SaidPoint[] = []): Said => ({
  isRight: false,
  headline,
  points,
  note,
});

/** A number, with or without thousands separators, or a size such as `12 KiB`; null otherwise. */
export function number(text: string): number | null {
  const [, sign, size] = /^(-?)\s*(.*)$/s.exec(text.replaceAll(",", "").trim())!;
  const found = SIZE.exec(size!);
  if (!found) return null;
  const value = Number(found[1]! + (found[2] ?? "")) * UNITS[(found[3] ?? "b").toLowerCase()]!;
  return sign ? -value : value;
}

function ofNumber({ truth, tolerance, exact, near, note }: OfNumber, given: string): Said {
  const value = number(given);
  if (value === null) return notYet(`The answer must be a number; got '${given}'.`);
  if (value === truth) return exact;
  const [low, high] = [Math.min(value, truth), Math.max(value, truth)];
  if (high - low <= tolerance * Math.max(Math.abs(low), Math.abs(high))) return near;
  const times = low > 0 ? high / low : 0;
  const far = times > 2.5 ? `, by a factor of ${times.toFixed(0)}` : "";
  return notYet(`${given} is too ${value > truth ? "large" : "small"}${far}.`, note);
}

function ofWord({ right, note }: OfWord, given: string): Said {
  const same = given.trim().toLowerCase() === right.headline.toLowerCase();
  return same ? right : notYet(`It is not \`${given}\`.`, note);
}

function ofMarks({ boxes, headline, note }: OfMarks, marked: ReadonlySet<number>): Said {
  const missed = boxes.filter(({ isKept }, i) => isKept && !marked.has(i));
  const right = boxes.filter(({ isKept }, i) => isKept && marked.has(i));
  const wrong = boxes.filter(({ isKept }, i) => !isKept && marked.has(i));
  const points = right.map(({ what, why }): SaidPoint => ({ mark: "right", what, why }));
  if (!wrong.length && !missed.length) return { isRight: true, headline, points, note };
  const parts = [`${right.length} of ${right.length + missed.length} found`];
  if (wrong.length) parts.push(`${wrong.length} marked that ${wrong.length === 1 ? "is" : "are"} not saved`);
  const places = [...new Set(missed.map(({ place }) => place))].join(", ");
  const more = missed.length
    ? ` ${missed.length} more ${missed.length === 1 ? "is" : "are"} saved: ${places}.`
    : "";
  const notSaved = wrong.map(
    ({ what, why, whileMissed }): SaidPoint => ({
      mark: "wrong",
      what,
      why: missed.length ? whileMissed : why,
    }),
  );
  return notYet(`${parts.join(", ")}.${more}`, note, [...notSaved, ...points]);
}
