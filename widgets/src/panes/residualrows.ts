/** The rows of the residuals table: repeated values are one row. */

import { alike, grouped, most, mostAlike, sumOf } from "../model/groups";
import type { Model } from "../model/model";
import type { Residual } from "../model/records";
import type { Sliced } from "../model/slices";
import { formatBytes, formatCount, formatRepeated, plural } from "../ui/format";
import { sortedBy } from "../ui/sorting";

export type Key = "label" | "type" | "nbytes" | "kind" | "line" | "rule" | "reason";

/** A row: a residual, or the values of one expression in repeated layers, calls and iterations. */
export interface Row {
  /** The residual shown; for a group, the sum under the name of the first. */
  residual: Residual;
  members: Residual[];
  /** Whether it belongs to an expanded group. */
  isInside: boolean;
}

/** Groups residuals into rows, ordered by first member. */
export function folded(residuals: readonly Residual[]): Row[] {
  const groups = grouped(residuals, (r) => r.group);
  return groups.map((members) => ({ residual: together(members), members, isInside: false }));
}

/** The row of each group, by its first member. */
const rows = new WeakMap<Residual, { n: number; row: Residual }>();

/** Computes the rows of all groups, in slices. */
export function* preparing(model: Model): Sliced<void> {
  for (const members of grouped(model.residuals, (r) => r.group)) {
    yield;
    const row = together(members);
    void [row.label, row.reason];
    rows.set(members[0]!, { n: members.length, row });
  }
}

function together(members: Residual[]): Residual {
  const first = members[0]!;
  const made = rows.get(first);
  if (made?.n === members.length) return made.row;
  if (members.length === 1) return first;
  const isSpread = members.every((r) => r.perDevice >= 0);
  let [label, reason] = ["", ""];
  return {
    ...first,
    // Lazy: only visible rows need it.
    get label() {
      label ||= alike(members.map((r) => r.label));
      return label;
    },
    get reason() {
      // The cotangents that they are read for differ, so each member states its own.
      reason ||= mostAlike(members.map((r) => r.reason.split("; read by the ", 1)[0]!));
      return reason;
    },
    type: formatRepeated(members.length, first.type),
    nbytes: sumOf(members, (r) => r.nbytes),
    perDevice: isSpread ? sumOf(members, (r) => r.perDevice) : -1,
    dummy: sumOf(members, (r) => r.dummy),
  };
}

export function sorted(residuals: readonly Residual[], key: Key, descending: boolean): Residual[] {
  const value = (r: Residual) =>
    key === "line" ? (r.place ? r.place.file * 1e7 + r.place.line : 0) : r[key];
  return sortedBy(residuals, value, (r) => r.index, descending);
}

/**
 * `saves 135.6 KiB in 71 values; reads 64.0 KiB of its arguments`, on each device if sharded; for a subset `12 of 83 values: saves …`. Arguments
 * are in memory anyway, and what nothing reads is not kept.
 */
export function summary(residuals: readonly Residual[], all: readonly Residual[] = residuals): string {
  const of = (kind: string) => residuals.filter((r) => r.kind === kind);
  const [read, dropped] = [of("argument"), of("unread")];
  const saved = residuals.filter((r) => r.kind !== "argument" && r.kind !== "unread");
  // Values without a known sharding are replicated.
  const bytes = (rs: readonly Residual[]) =>
    formatBytes(sumOf(rs, (r) => (r.perDevice < 0 ? r.nbytes : r.perDevice)));
  const on = all.some((r) => r.perDevice >= 0) ? " on each device" : "";
  const parts = [
    saved.length ? `saves ${bytes(saved)}${on} in ${plural(saved.length, "value")}` : "saves nothing",
    read.length > 0 && `reads ${bytes(read)} of its arguments`,
    dropped.length > 0 && `${bytes(dropped)} that nothing reads`,
  ];
  const said = parts.filter(Boolean).join("; ");
  return residuals === all
    ? said
    : `${formatCount(residuals.length)} of ${plural(all.length, "value")}: ${said}`;
}

/** A group's row, followed by its members, which state their reason if it differs. */
export function unfolded(row: Row): Row[] {
  const said = new Set(most(row.members.map((r) => r.reason)));
  const inside = row.members.map((r) => ({
    residual: said.has(r.reason) ? { ...r, reason: "" } : r,
    members: [r],
    isInside: true,
  }));
  return [row, ...inside];
}
