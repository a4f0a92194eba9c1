/** Written by `python tests/page/wire_types.py` from `jaxviz/features/explorer/messages.py`, which says more: not to be edited. */

/** Progress of the kernel: `what` is counted, with `total` 0 if unknown; or the work was stopped. `stop` is code that stops background work, which an interrupt does not reach. */
export interface Progress {
  work: string;
  what?: string;
  done?: number;
  total?: number;
  stop?: string;
  stopped?: boolean;
}

/** A figure of two versions in words, `change` with the share; `unit` is 'bytes', 'FLOPs' or what is counted. */
export type ChangedFigure = [name: string, before: string, after: string, change: string, share: string, unit: string];

/** Something that the second version has more or less of: the cells of a table of differences. */
export type DifferenceRow = [is_more: boolean, change: string, kind: string, type: string, line: string, what: string];

/** Runs of equations: `[i, j, n]` means that `i` to `i + n - 1` of the first version are `j` to `j + n - 1` of the second, and `[i, n]` that `n` equations from `i` on are in only one of them. */
export interface StageChanges {
  pairs: [number, number, number][];
  removed: [number, number][];
  added: [number, number][];
}

/** The differences between two versions; stages are identified by key, where both have them, and equations by number. */
export interface Changes {
  functions: [string, string];
  summary: string;
  stages: Record<string, StageChanges>;
  figures: ChangedFigure[];
  residuals: DifferenceRow[];
}

/** A region that can get a checkpoint: its row, or -1; whether it has one in the function as written; the regions that contain it, and those that overlap with it; and its values, as runs of a first number and a length. */
export interface SwitchRegion {
  name: string;
  line: string;
  row: number;
  isWritten: boolean;
  inside: number[];
  crosses: number[];
  values: [number, number][];
}

/** The values of one expression in repeated layers, calls and iterations, with the type of one of them. */
export interface SwitchGroup {
  what: string;
  type: string;
}

/** For each value that could be saved, its group, its bytes over all iterations, and its row, or -1. */
export interface SwitchValues {
  group: number[];
  nbytes: number[];
  row: number[];
}

/** The switches of a function. `work` is the FLOPs of its gradient without checkpoints, `present` the setting closest to the function as written, and `residuals` has, for each residual, the values that a checkpoint saves instead. */
export interface SwitchTable {
  function: string;
  work: number;
  present: string;
  regions: SwitchRegion[];
  groups: SwitchGroup[];
  values: SwitchValues;
  residuals: number[][];
}

/** The figures of a setting: bytes of the peak, bytes that it saves on the device without arguments, FLOPs in addition to those without checkpoints, and bytes of residuals offloaded to the host. */
export type TriedTrade = [peak: number, nbytes: number, flops: number, offloaded: number];

/** The results so far: the figures of settings by key, impossible settings with the reason, the setting of the best plan once it was requested, and the number of requests. */
export interface TriedSettings {
  trades: Record<string, TriedTrade>;
  failed: Record<string, string>;
  plan: string | null;
  asked: number;
}

/** A request of the page: the figures of settings, a setting's modelled or compiled memory over time, its code, or the best plan. */
export interface SwitchRequest {
  work: string;
  keys: string[];
  draw?: string;
  compile?: string;
  code?: string;
  plan?: boolean;
}

/** A request of the page: what a text means as an address, or the addresses of an equation, such as 'forward:12'. */
export interface AddressRequest {
  work: "find" | "address";
  asked: string;
}

/** A value that a text means: its address, its line and type, and the equations that compute it. */
export type FoundValue = [address: string, about: string, equations: string[]];

/** What a text means as an address: one value, or those that it cannot tell apart. */
export interface FoundAddresses {
  asked: string;
  values: FoundValue[];
}

/** The address of a result of an equation: its text, whether it is the value or its cotangent, and both in Python. */
export type EquationAddress = [text: string, phase: string, code: string];

/** The addresses of the results of an equation that have one. */
export interface EquationAddresses {
  asked: string;
  addresses: EquationAddress[];
}

/** A value in memory during some steps; texts are given by number. `group` is that of the expression whose values it is one of. */
export type DrawnBuffer = [nbytes: number, kind: number, born: number, last: number, row: number, name: number, type: number, group: number];

/** The memory over time of a setting: what each step runs, and where; the first `turn` steps are forward. `groups` has a text for the values of each group. */
export interface DrawnMemory {
  key: string;
  turn: number;
  what: number[];
  row: number[];
  buffers: DrawnBuffer[];
  groups: number[];
  texts: string[];
}

/** The memory over time of a setting compiled by XLA: the bytes during each instruction, the first `turn` of which are forward; or why there is none. */
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

/** Advice on the peak: a sentence with the corresponding setting of the switches, and the cards of the largest saved expressions, in their order; and `idle`, which checkpoint or policy has no effect. `error` is the reason if there is none. */
export interface PeakAdvice {
  sentence: string;
  idle: string;
  setting: string;
  cards: string[];
  error: string;
}

/** What the kernel's device does in a second, as measured: FLOPs in a matrix product of a type, and bytes that its memory reads and writes; `error` is the reason if that failed. */
export interface DeviceSpeed {
  device: string;
  dtype: string;
  flops: number;
  bandwidth: number;
  error?: string;
}

/** A text with the equations of each line, numbered over the stages, and the number of lines left out at its end. */
export interface CompiledText {
  text: string;
  links: number[][];
  cut: number;
}

/** Something in memory at a compiled program's peak: its kind, and the kind it is drawn as; the expression that computes it; its type with the count; its bytes; its line; and why it is in memory. */
export type CompiledHeld = [kind: string, drawn: "argument" | "constant" | "residual" | "result" | "cotangent" | "temporary" | "own", what: string, type: string, nbytes: number, line: string, why: string];

/** The memory of a compiled program: for each kind the bytes during each instruction, the first `turn` of which are forward; what is in memory at the peak; and the number and the bytes of the rows left out. */
export interface CompiledPeak {
  summary: string;
  notes: string[];
  kinds: ("argument" | "constant" | "residual" | "result" | "cotangent" | "temporary" | "own")[];
  bytes: number[][];
  turn: number;
  held: CompiledHeld[];
  more: [number, number];
}

/** A collective of a compiled program: its kind, the axes, the bytes that each device sends, how often it runs, its pass, its line, its cause, and the equations that need it, numbered over the stages. */
export type CompiledExchange = [kind: string, over: string, sent: number, times: string, stage: string, line: string, why: string, equations: number[]];

/** Communication between devices in a compiled program. */
export interface CompiledExchanges {
  summary: string;
  rows: CompiledExchange[];
}

/** What is available before XLA has compiled a gradient; the stages with their numbers of equations. `block` describes the blocks of which one can be compiled alone; '' if there are none. */
export interface Lowered {
  function: string;
  stages: [string, number][];
  backend: string;
  stablehlo: CompiledText;
  block: string;
}

/** A compiled gradient. `memory` is None if the backend does not report it, and `exchanges` is None on a single device; `isBlock` tells whether only one of several equal blocks was compiled. */
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
