/** The rows of the residuals table: the values of an expression are a row, and in it repeated values are one. */

import { formatBytes, formatCount, plural } from "../base/format";
import { sortedBy } from "../base/sorted";
import { grouped, sumOf, typeOfSome } from "../model/groups";
import type { Kept } from "../model/overview";
import { bytesOnOne, type Residual, type ResidualGroup } from "../model/records";

export type Key = "label" | "type" | "nbytes" | "line";

/** A row: a residual, those of one operation in repeated layers, calls and iterations, or all of an expression. */
export interface Row {
  /** Identifies the row while the table is shown. */
  key: string;
  /** The residual shown; for a group, the sum under the name of the first. */
  residual: Residual;
  members: readonly Residual[];
  /** The rows shown below it when it is expanded, made then, and how deep it is in others. */
  inside: (() => Row[]) | null;
  isExpression: boolean;
  depth: number;
  /** The expression of the row that it is in, or empty. */
  within: string;
}

/** The rows of some residuals, ordered by first member. */
export function folded(residuals: readonly Residual[], groups: readonly ResidualGroup[]): Row[] {
  return grouped(residuals, (r) => r.group).map((members) => {
    const [first, group] = [members[0]!, groups[members[0]!.group]!];
    if (members.length > 1) {
      const residual = together(members, group);
      return {
        ...rowOf(first),
        key: `group ${first.group}`,
        residual,
        members,
        inside: () => members.map(memberOf),
      };
    }
    // The sentence with the rule is that of the inspector.
    return rowOf(group.members.length > 1 ? first : { ...first, reason: group.why });
  });
}

const rowOf = (residual: Residual): Row => ({
  key: `value ${residual.index}`,
  residual,
  members: [residual],
  inside: null,
  isExpression: false,
  depth: 0,
  within: "",
});

/** A member of a group, which states its reason if it differs. */
const memberOf = (r: Residual): Row => ({ ...rowOf(r.isOutlier ? r : { ...r, reason: "" }), depth: 1 });

/** The same with those of one expression in one row, if they are several. */
export function byExpression(rows: readonly Row[], keptOf: (residual: number) => Kept | undefined): Row[] {
  const of = (row: Row) => keptOf(row.residual.index);
  return grouped(rows, (row) => of(row)?.index ?? row.key).flatMap((mine) => {
    const kept = of(mine[0]!);
    if (kept === undefined || mine.length === 1) return mine;
    const members = mine.flatMap((row) => row.members);
    const inside = () => mine.map((row) => deeper(row, kept.label));
    const { label, reason } = kept;
    const { residual } = mine[0]!;
    const type =
      mine.length === kept.values ? `${formatCount(kept.times)} × ${plural(kept.values, "value")}` : "";
    const all = {
      ...summed(residual, members),
      label,
      reason,
      type: type || plural(members.length, "value"),
    };
    return [
      { ...mine[0]!, key: `expression ${kept.index}`, residual: all, members, inside, isExpression: true },
    ];
  });
}

const deeper = (row: Row, within: string): Row => ({
  ...row,
  depth: row.depth + 1,
  within,
  inside: row.inside && (() => row.inside!().map((each) => deeper(each, within))),
});

/** `tanh` for `tanh in jax.nn.gelu(x)` inside of the row of `jax.nn.gelu(x)`, and for that itself `its result`. */
export function labelIn({ residual: { label }, within }: Row): string {
  if (within !== "" && label === within) return "its result";
  return within !== "" && label.endsWith(` in ${within}`) ? label.slice(0, -within.length - 4) : label;
}

function together(members: readonly Residual[], { label, why, members: all }: ResidualGroup): Residual {
  const first = members[0]!;
  const type = typeOfSome(members.length, all.length, first.type);
  return { ...summed(first, members), label, reason: why, type };
}

/** A residual with the bytes of several. */
function summed(first: Residual, members: readonly Residual[]): Residual {
  return {
    ...first,
    nbytes: sumOf(members, (r) => r.nbytes),
    perDevice: members.some((r) => r.perDevice >= 0) ? sumOf(members, bytesOnOne) : -1,
    dummy: sumOf(members, (r) => r.dummy),
  };
}

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
  const bytes = (rs: readonly Residual[]) => formatBytes(sumOf(rs, bytesOnOne));
  const on = all.some((r) => r.perDevice >= 0) ? " on each device" : "";
  const parts = [
    saved.length ? `saves ${bytes(saved)}${on} in ${plural(saved.length, "value")}` : "saves nothing",
    read.length > 0 && `reads ${bytes(read)} of its arguments`,
    dropped.length > 0 && `${bytes(dropped)} that nothing reads`,
  ];
  return `${formatCount(residuals.length)} of ${plural(all.length, "value")}: ${parts.filter(Boolean).join("; ")}`;
}
