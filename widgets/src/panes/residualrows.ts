/** The rows of the residuals table: repeated values are one row. */

import { grouped, sumOf, typeOfSome } from "../model/groups";
import type { Residual, ResidualGroup } from "../model/records";
import { formatBytes, formatCount, plural } from "../ui/format";
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

/** The rows of some residuals, ordered by first member. */
export function folded(residuals: readonly Residual[], groups: readonly ResidualGroup[]): Row[] {
  return grouped(residuals, (r) => r.group).map((members) => {
    const [first, group] = [members[0]!, groups[members[0]!.group]!];
    // The sentence with the rule is that of the inspector.
    const alone = group.members.length > 1 ? first : { ...first, reason: group.why };
    const residual = members.length > 1 ? together(members, group) : alone;
    return { residual, members, isInside: false };
  });
}

function together(members: readonly Residual[], { label, why, members: all }: ResidualGroup): Residual {
  const first = members[0]!;
  return {
    ...first,
    label,
    reason: why,
    type: typeOfSome(members.length, all.length, first.type),
    nbytes: sumOf(members, (r) => r.nbytes),
    perDevice: members.some(isOnDevices) ? onDevice(members) : -1,
    dummy: sumOf(members, (r) => r.dummy),
  };
}

const isOnDevices = (r: Residual) => r.perDevice >= 0;

/** Bytes on one device: values whose layout is not known count in full. */
const onDevice = (residuals: readonly Residual[]) =>
  sumOf(residuals, (r) => (isOnDevices(r) ? r.perDevice : r.nbytes));

/** Whether a residual takes memory for the backward pass: no argument, and read there. */
export const isSaved = ({ kind }: Residual): boolean => kind !== "argument" && kind !== "unread";

export function sorted(residuals: readonly Residual[], key: Key, descending: boolean): Residual[] {
  const value = (r: Residual) =>
    key === "line" ? (r.place ? r.place.file * 1e7 + r.place.line : 0) : r[key];
  const all = sortedBy(residuals, value, (r) => r.index, descending);
  // Arguments are in memory anyway, so the largest of them is not what is saved most.
  return key === "nbytes" ? [...all.filter(isSaved), ...all.filter((r) => !isSaved(r))] : all;
}

/** `12 of 83 values: saves 135.6 KiB in 71 values; reads 64.0 KiB of its arguments`, on each device if they are divided among several. */
export function summary(residuals: readonly Residual[], all: readonly Residual[]): string {
  const of = (kind: string) => residuals.filter((r) => r.kind === kind);
  const [read, dropped] = [of("argument"), of("unread")];
  const saved = residuals.filter(isSaved);
  const bytes = (rs: readonly Residual[]) => formatBytes(onDevice(rs));
  const on = all.some(isOnDevices) ? " on each device" : "";
  const parts = [
    saved.length ? `saves ${bytes(saved)}${on} in ${plural(saved.length, "value")}` : "saves nothing",
    read.length > 0 && `reads ${bytes(read)} of its arguments`,
    dropped.length > 0 && `${bytes(dropped)} that nothing reads`,
  ];
  return `${formatCount(residuals.length)} of ${plural(all.length, "value")}: ${parts.filter(Boolean).join("; ")}`;
}

/** A group's row, followed by its members, which state their reason if it differs. */
export function unfolded(row: Row): Row[] {
  const inside = row.members.map((r) => ({
    residual: r.isOutlier ? r : { ...r, reason: "" },
    members: [r],
    isInside: true,
  }));
  return [row, ...inside];
}
