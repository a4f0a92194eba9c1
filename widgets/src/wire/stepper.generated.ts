/** Written by `python tests/page/wire_types.py` from `jaxviz/features/debugger/messages.py`, which says more: not to be edited. */

/** A variable where it is bound: `of` is the value whose cotangent it is, `label` describes an input; empty otherwise. */
export type Variable = [name: string, type: string, of: string, label: string];

/** A line of the user's source. */
export type SourceLine = [file: number, line: number];

/** A line of the user's source, and the expression there: lines count from 1, or 0 if unknown, and characters from 0. */
export type SourceRange = [file: number, line: number, startLine: number, start: number, endLine: number, end: number];

/** A line that led to an equation, and its function. */
export type StackLine = [file: number, line: number, name: string];

/** The iterations of a loop, counted as in the program: how many, if that is known, and the one that runs first. */
export type StepLoop = [length: number | null, first: number];

/** An equation: its results, primitive, params as `name=value`, operands, line and expression, and what devices exchange for it, as its types imply. */
export interface StepRow {
  o: Variable[];
  p: string;
  q?: string[];
  i: string[];
  a?: SourceRange;
  n?: Record<string, number>;
  f?: string;
  t?: StepLoop;
  x?: string[];
}

/** A program of the run. */
export interface StepProgram {
  stage: string;
  inputs: Variable[];
  results: string[];
  rows: StepRow[];
}

/** A stage, and the number of its program. */
export interface StepStage {
  name: string;
  program: number;
}

/** Consecutive lines of a source file, the first of which has number `first`. */
export interface StepExcerpt {
  first: number;
  lines: string[];
}

/** A source file; `stops` are the lines at which a breakpoint can be. */
export interface StepFile {
  label: string;
  path: string;
  excerpts: StepExcerpt[];
  stops: number[];
}

/** Everything that is stepped through, sent once. */
export interface Programs {
  title: string;
  stages: StepStage[];
  programs: StepProgram[];
  files: StepFile[];
}

/** An equation on the path to the run's position. */
export interface StepLevel {
  index: number;
  body: string;
  iteration: number | null;
  length: number | null;
}

/** A picture of an array, as the address of a PNG. */
export interface Shades {
  png: string;
  low: number;
  high: number;
  of: string;
  rows: number;
  columns: number;
}

/** A summary of an array; `text` has the numbers themselves if it is small. */
export interface SummaryCard {
  type: string;
  shape: number[];
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
  edges: [number | null, number | null] | null;
  first_not_finite: number[] | null;
  note: string;
  text: string;
  picture?: Shades;
}

/** A value; for a cotangent also the value that it is the cotangent of, and for a value also its cotangent, or why that is missing. */
export interface ValueCard {
  name: string;
  stage: string;
  value?: SummaryCard;
  error?: string;
  of?: string;
  label?: string;
  other?: SummaryCard | string;
  isCotangent?: boolean;
}

/** The figures of a line: the names and norms of its latest value and of a cotangent, null without one; what is wrong with each, such as 'NaN'; and 'value', 'cotangent' or 'both' if a NaN of these first occurred here. */
export type LineNorm = [file: number, line: number, name: string, value: number | null, valueIs: string, of: string, cotangent: number | null, cotangentIs: string, born: string];

/** A breakpoint, and the line or the equation that it is on: a program and an index. */
export interface Break {
  text: string;
  line?: SourceLine;
  row?: [number, number];
  isHit: boolean;
}

/** The run's position, and the values there. */
export interface StepperStop {
  stage: string;
  path: StepLevel[];
  index: number;
  isDone: boolean;
  hit: string;
  at: StackLine[];
  ranAt: StackLine[];
  taken: Record<string, number>;
  recomputed: string;
  results: ValueCard[];
  operands: ValueCard[];
  more: [string[], string[]];
  looked: ValueCard[];
  lines: LineNorm[];
  breakpoints: Break[];
  kept: number;
  notes: string[];
  said: string;
}

/** A position on the timeline: an equation of a stage's program, and what happens there. */
export interface Mark {
  stage: string;
  index: number;
  text: string;
}

/** The error of the last move, and the request that caused it. */
export interface Failure {
  do: string;
  kind: string;
  message: string;
}

/** A message of the kernel: it has begun a request, and whether an interrupt reaches it, or has finished it. */
export interface Doing {
  begun?: string;
  can_stop?: boolean;
  done?: string;
}
