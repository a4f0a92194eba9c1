/** Records of residuals, donations, layouts and memory, decoded from the columns. */

import type { Sliced } from "../base/slices";
import { KINDS, MEMORY_KINDS } from "../wire/schema";
import { push } from "./groups";
import type { Model } from "./model";
import type { Buffer, Timeline } from "./timeline";

/** How a `shard_map` lays out its operands and results. */
export interface Layout {
  /** Where its program runs: `device`, or for example `place along i`. */
  place: string;
  operands: string[];
  results: string[];
}

/** A donated operand of a `jit`. */
export interface Donation {
  row: number;
  /** The input of the jitted program. */
  variable: number;
  operand: number;
  /** The index of the result that reuses its memory, and the variable inside the program; -1 and null if none does. */
  result: number;
  taker: number | null;
  reason: string;
}

/** A range of text: lines count from 1, or 0 if unknown, and columns from 0. */
export interface Span {
  file: number;
  startLine: number;
  start: number;
  endLine: number;
  end: number;
}

/** A line, and the expression that was evaluated there. */
export interface Place extends Span {
  line: number;
  function: string;
}

export interface Residual {
  index: number;
  name: string;
  /** The user's expression, if it is known, or another name. */
  label: string;
  /** The row of the report that it is in, among `groups` of the model. */
  group: number;
  type: string;
  nbytes: number;
  /** Bytes on one device, or -1. */
  perDevice: number;
  /** Bytes that are dummies if a cond takes another branch. */
  dummy: number;
  kind: string;
  place: Place | null;
  /** The named scopes and module that contain it. */
  scope: string;
  module: string;
  rule: string;
  reason: string;
  /** Whether its reason is another one than those of most in its row. */
  isOutlier: boolean;
  decision: string;
  producer: number;
  consumers: number[];
}

/** A row of the report: the residuals of one expression in repeated layers, calls and iterations. */
export interface ResidualGroup {
  label: string;
  why: string;
  members: Residual[];
}

export function readGroups(model: Model): ResidualGroup[] {
  const groups = Array.from(model.column("group_label"), (_, i) => ({
    label: model.text("group_label", i),
    why: model.text("group_why", i),
    members: [] as Residual[],
  }));
  for (const residual of model.residuals) groups[residual.group]!.members.push(residual);
  return groups;
}

/** The bytes of a residual on one device: one whose layout is not known counts in full. */
export const bytesOnOne = ({ nbytes, perDevice }: Residual): number => (perDevice < 0 ? nbytes : perDevice);

export function readResiduals(model: Model): Residual[] {
  const n = model.column("residual_nbytes").length;
  return Array.from({ length: n }, (_, i) => ({
    index: i,
    name: model.text("residual_name", i),
    label: model.text("residual_label", i),
    group: model.column("residual_group")[i]!,
    type: model.text("residual_type", i),
    nbytes: model.column("residual_nbytes")[i]!,
    perDevice: model.column("residual_per_device")[i]!,
    dummy: model.column("residual_dummy")[i]!,
    kind: KINDS[model.column("residual_kind")[i]!] ?? "",
    place: model.location(model.column("residual_location")[i]!),
    scope: model.text("residual_scope", i),
    module: model.text("residual_module", i),
    rule: model.text("residual_rule", i),
    // Lazy: there may be thousands, and few are read.
    get reason() {
      return reasonOf(model, i);
    },
    isOutlier: model.column("residual_outlier")[i] === 1,
    decision: model.text("residual_decision", i),
    producer: model.column("residual_producer")[i]!,
    consumers: model.slice("residual_consumers", "consumer_rows", i),
  }));
}

/** The sentence, with the names inserted. */
function reasonOf(model: Model, i: number): string {
  const pattern = model.text("residual_reason", i);
  const names = model.slice("residual_names", "reason_names", i);
  if (names.length === 0) return pattern;
  const [first = "", ...rest] = pattern.split("``");
  return rest.reduce((text, part, k) => `${text}\`${model.view.strings[names[k]!]}\`${part}`, first);
}

export function readDonations(model: Model): Donation[] {
  return Array.from(model.column("donation_rows"), (row, i) => {
    const program = model.nested(row)[0]!;
    const operand = model.column("donation_operands")[i]!;
    const result = model.column("donation_results")[i]!;
    return {
      row,
      variable: model.binders(program)[model.constants(program) + operand]!,
      operand,
      result,
      taker: result < 0 ? null : model.results(program)[result]!,
      reason: model.text("donation_reasons", i),
    };
  });
}

export function readLayouts(model: Model): Map<number, Layout> {
  const rows = Array.from(model.column("layout_rows"));
  return new Map(
    rows.map((row, i) => {
      const [place = "", ...specs] = model.text("layout_texts", i).split("\n");
      const n = model.inputs(row).length;
      return [row, { place, operands: specs.slice(0, n), results: specs.slice(n) }];
    }),
  );
}

/** Which devices have a variable inside a `shard_map`. */
export function readPlaces(model: Model): Map<number, string> {
  const places = new Map<number, string>();
  if (model.layouts.size === 0) return places;
  const ofProgram = new Map<number, string>();
  model.column("program_owner").forEach((owner, p) => {
    const place =
      model.layouts.get(owner)?.place ?? (owner < 0 ? undefined : ofProgram.get(model.program(owner)));
    if (place === undefined) return;
    ofProgram.set(p, place);
    for (const v of model.binders(p)) places.set(v, place);
  });
  for (let row = 0; row < model.rows; row++) {
    const place = ofProgram.get(model.program(row));
    if (place !== undefined) for (const v of model.outputs(row)) places.set(v, place);
  }
  return places;
}

const NONE: readonly number[] = [];

export function* readTimeline(model: Model): Sliced<Timeline> {
  const isBackward = model.view.stages.map((stage) => stage.key === "backward");
  const steps = Array.from(model.column("step_row"), (row) => ({
    row,
    isBackward: isBackward[model.stage(row)]!,
  }));
  const held = new Map<number, number[]>();
  model.column("residual_buffer").forEach((buffer, residual) => {
    push(held, buffer, residual);
  });
  const [kind, born, last, row, group] = (["kind", "born", "last", "row", "group"] as const).map((n) =>
    model.column(`buffer_${n}`),
  );
  const buffers: Buffer[] = [];
  for (const [i, nbytes] of model.column("buffer_nbytes").entries()) {
    if (i % 2000 === 0) yield;
    buffers.push({
      nbytes,
      kind: MEMORY_KINDS[kind![i]!]!,
      born: born![i]!,
      last: last![i]!,
      row: row![i]!,
      name: model.text("buffer_name", i),
      type: model.text("buffer_type", i),
      group: group![i]!,
      residuals: held.get(i) ?? NONE,
    });
  }
  const labels = Array.from(model.column("buffer_group_label"), (_, i) =>
    model.text("buffer_group_label", i),
  );
  return { steps, buffers, labels };
}
