/** What Python sends of a stepper: `jaxviz/features/debugger/columns.py`. */

/** Name, type, what it is the cotangent of (or empty), what it is for: an argument, a residual. */
export type Variable = [name: string, type: string, of?: string, label?: string];

/** An equation. */
export interface Row {
  /** Results. */
  o: Variable[];
  /** The primitive. */
  p: string;
  /** Its params, as `name=value`. */
  q?: string[];
  /** Operands. */
  i: string[];
  /** The user's line. */
  a?: [file: number, line: number];
  /** The programs that it runs, and that can be stepped into, by label. */
  n?: Record<string, number>;
}

export interface Program {
  stage: string;
  inputs: Variable[];
  results: string[];
  rows: Row[];
}

export interface SourceFile {
  label: string;
  path: string;
  excerpts: { first: number; lines: string[] }[];
  /** Lines at which a breakpoint can be. */
  stops: number[];
}

export interface Programs {
  function: string;
  stages: { name: string; program: number }[];
  programs: Program[];
  files: SourceFile[];
}

export interface Level {
  index: number;
  body: string;
  iteration: number | null;
  primitive: string;
  /** How many iterations there are, where that is known. */
  length: number | null;
  isReverse: boolean;
  name: string;
}

/** An array in a few numbers. */
export interface Told {
  type: string;
  size: number;
  finite: number;
  min: number | null;
  max: number | null;
  mean: number | null;
  std: number | null;
  nan: number;
  pos_inf: number;
  neg_inf: number;
  zeros: number;
  subnormals: number;
  histogram: number[];
  edges: [number, number] | null;
  first_not_finite: number[] | null;
  note: string;
  /** The numbers themselves, of a small array. */
  text: string;
  picture?: { png: string; low: number; high: number; of: string; rows: number; columns: number };
}

/** A value; with it, of a cotangent the value that it is the cotangent of, and of a value its cotangent. */
export interface Card {
  name: string;
  stage: string;
  value?: Told;
  error?: string;
  of?: string;
  other?: Told | string;
  isCotangent?: boolean;
}

export interface Break {
  text: string;
  line?: [file: number, line: number];
  row?: [program: number, index: number];
  isHit: boolean;
}

export interface Stop {
  stage: string;
  path: Level[];
  index: number;
  isDone: boolean;
  hit: string;
  /** The lines that led to the next equation, innermost first. */
  at: [file: number, line: number, name: string][];
  ranAt: [file: number, line: number, name: string][];
  /** Of the conds that have run or are next, the branch. */
  taken: Record<string, number>;
  results: Card[];
  operands: Card[];
  /** Names of those that are not told of. */
  more: [string[], string[]];
  looked: Card[];
  breakpoints: Break[];
  kept: number;
  notes: string[];
  said: string;
}

export interface Failure {
  kind: string;
  message: string;
}
