/** Written by `python tests/page/wire_types.py` from `jaxviz/features/explorer/messages.py`, which says more: not to be edited. */

/** A message of the kernel while it is at work: how much of what is done, 0 in all where that is not known; or that it was stopped. `stop` is code that stops it, where an interrupt does not, as it is done beside the user's cells. */
export interface Progress {
  work: string;
  what?: string;
  done?: number;
  total?: number;
  stop?: string;
  stopped?: boolean;
}

/** A number of two versions, in bytes, FLOPs or equations. */
export type Figure = [name: string, before: number, after: number, unit: string];

/** How many residuals of a kind two versions keep. */
export type ResidualChange = [what: string, type: string, before: number, after: number, nbytes: number, line: string];

/** Runs of equations: `[i, j, n]` says that `i` to `i + n - 1` of the first version are `j` to `j + n - 1` of the second, `[i, n]` that there are `n` from `i` on that only one has. */
export interface StageChanges {
  pairs: [number, number, number][];
  removed: [number, number][];
  added: [number, number][];
}

/** What differs between two versions; stages by their keys, where both have them, and equations by their numbers in them. */
export interface Changes {
  functions: [string, string];
  summary: string;
  stages: Record<string, StageChanges>;
  figures: Figure[];
  residuals: ResidualChange[];
}

/** What can get a checkpoint: its row, or -1; whether it has one as the function is written; the regions that it is in, and those that share a part with it; and its values, in runs of a first number and how many. */
export interface SwitchRegion {
  name: string;
  line: string;
  row: number;
  isWritten: boolean;
  inside: number[];
  crosses: number[];
  values: [number, number][];
}

/** The values of one expression in repeated layers, calls and iterations; the type of one of them. */
export interface SwitchGroup {
  what: string;
  type: string;
}

/** Of each value that could be saved: its group, its bytes, in all iterations together, and its row, or -1. */
export interface SwitchValues {
  group: number[];
  nbytes: number[];
  row: number[];
}

/** The switches of a function. `work` are the FLOPs of its gradient without checkpoints, `present` the setting that comes nearest to how it is written; of each residual there are the values that a checkpoint saves in its place. */
export interface SwitchTable {
  function: string;
  work: number;
  present: string;
  regions: SwitchRegion[];
  groups: SwitchGroup[];
  values: SwitchValues;
  residuals: number[][];
}

/** What a setting comes to: bytes of the peak, bytes of the residuals, FLOPs beyond those without checkpoints, and bytes of the residuals that are offloaded to the host, which are not counted among the others. */
export type TriedTrade = [peak: number, nbytes: number, flops: number, offloaded: number];

/** What has been worked out: settings by their keys, those that cannot be had with the reason; the setting of the best plan, once it was asked for; and how often something has been asked for. */
export interface TriedSettings {
  trades: Record<string, TriedTrade>;
  failed: Record<string, string>;
  plan: string | null;
  asked: number;
}

/** What the page asks for: what settings come to; of one the memory over time, as modelled or as compiled; of one the code; or the best plan. */
export interface SwitchRequest {
  work: string;
  keys: string[];
  draw?: string;
  compile?: string;
  code?: string;
  plan?: boolean;
}

/** A value in memory from one step to another; texts by their numbers. */
export type DrawnBuffer = [nbytes: number, kind: number, born: number, last: number, row: number, name: number, type: number];

/** The memory over time of a setting: what each step runs, and where; the first `turn` of them are forward. */
export interface DrawnMemory {
  key: string;
  turn: number;
  what: number[];
  row: number[];
  buffers: DrawnBuffer[];
  texts: string[];
}

/** The memory over time of a setting as XLA compiles it: the bytes while each instruction runs, of which the first `turn` are forward; or why there is none. */
export interface CompiledLine {
  key: string;
  turn: number;
  total: number[];
  error: string;
}

/** The lines to write for a setting. */
export interface WrittenCode {
  key: string;
  text: string;
}

/** What would lower the peak: in a sentence, with the setting of the switches that does; and of the largest kept expressions, in their order. `error` says why there is none. */
export interface Advice {
  sentence: string;
  setting: string;
  cards: string[];
  error: string;
}

/** A text, for each line the equations that it was made from, numbered over the stages, and how many lines were left out at its end. */
export interface CompiledText {
  text: string;
  links: number[][];
  cut: number;
}

/** What is in the memory of a compiled program at its peak: its kind, and the one that it is drawn as; the expression that makes it; the type, with how many there are; their bytes; the line; and why it is there. */
export type CompiledHeld = [kind: string, drawn: "argument" | "constant" | "residual" | "result" | "cotangent" | "temporary" | "own", what: string, type: string, nbytes: number, line: string, why: string];

/** The memory of a compiled program: of each kind the bytes while each instruction runs, of which the first `turn` are forward; what is there at the peak, and of how many more rows how many bytes. */
export interface CompiledPeak {
  summary: string;
  notes: string[];
  kinds: ("argument" | "constant" | "residual" | "result" | "cotangent" | "temporary" | "own")[];
  bytes: number[][];
  turn: number;
  held: CompiledHeld[];
  more: [number, number];
}

/** A collective of a compiled program: its kind, the axes that it goes over, the bytes that a device sends, how often it is done, the pass, the line, why it is there, and the equations that it is for, numbered over the stages. */
export type CompiledExchange = [kind: string, over: string, sent: number, times: string, stage: string, line: string, why: string, equations: number[]];

/** Communication between devices in a compiled program. */
export interface CompiledExchanges {
  summary: string;
  rows: CompiledExchange[];
}

/** What a gradient is lowered to, which is there before XLA has compiled it; the stages with how many equations each has. `block` says of which blocks one can be compiled alone, in the place of all of them; '' where there are none. */
export interface Lowered {
  function: string;
  stages: [string, number][];
  backend: string;
  stablehlo: CompiledText;
  block: string;
}

/** What a gradient compiles to. `memory` is None where nothing says what it is, and `exchanges` on one device; `isBlock` says whether it is compiled with one block alone, in the place of all that are the same. */
export interface Compiled {
  function: string;
  stages: [string, number][];
  backend: string;
  stablehlo: CompiledText;
  block: string;
  hlo: CompiledText | null;
  memory: CompiledPeak | null;
  exchanges: CompiledExchanges | null;
  notes: string[];
  error: string;
  isBlock: boolean;
}
