/** The rows of the switches table: groups of values, the settings that their switches lead to, and sorting. */

import { formatRepeated } from "../base/format";
import { sortedBy } from "../base/sorted";
import type { TriedTrade } from "../wire/explorer.generated";
import { grouped, sumOf } from "./groups";
import type { Setting, Settings } from "./settings";

/** A row: a value, or the values of one expression in repeated layers, calls and iterations. */
export interface Row {
  group: number;
  /** The values that its switch controls. */
  values: readonly number[];
  /** How many of them are saved, and how many of these are offloaded to the host. */
  saved: number;
  offloaded: number;
  what: string;
  type: string;
  nbytes: number;
  row: number;
  /** The setting after its switch is clicked, and after its offload switch is. */
  next: Setting;
  nextOnHost: Setting;
  /** Whether it belongs to an expanded group. */
  isInside: boolean;
}

/** The effect of a switch; null if unknown. */
export type Difference = TriedTrade | null;

/** The groups that the setting's checkpoints can save. */
export function rowsOf(settings: Settings, setting: Setting): Row[] {
  const { groups, values } = settings.table;
  return grouped([...settings.held(setting.regions)], (value) => values.group[value]!).map((of) => {
    const group = values.group[of[0]!]!;
    return rowOf(settings, setting, group, of, groups[group]!, false);
  });
}

/** A row for each value of a group. */
export function unfolded(settings: Settings, setting: Setting, row: Row): Row[] {
  return row.values.map((value) =>
    rowOf(settings, setting, row.group, [value], settings.table.groups[row.group]!, true),
  );
}

function rowOf(
  settings: Settings,
  setting: Setting,
  group: number,
  values: readonly number[],
  { what, type }: { what: string; type: string },
  isInside: boolean,
): Row {
  const kept = values.filter((value) => setting.saved.has(value));
  const [saved, offloaded] = [kept.length, kept.filter((value) => setting.offloaded.has(value)).length];
  return {
    group,
    values,
    saved,
    offloaded,
    what,
    type: formatRepeated(values.length, type),
    nbytes: sumOf(values, (value) => settings.table.values.nbytes[value]!),
    row: settings.table.values.row[values[0]!]!,
    next: settings.with(setting, values, saved < values.length ? "saved" : "recomputed"),
    nextOnHost: settings.with(setting, values, offloaded < values.length ? "offloaded" : "saved"),
    isInside,
  };
}

/** The effect of a switch: the next setting's figures minus the current ones. */
export function differenceOf(now: TriedTrade | null, next: TriedTrade | null): Difference {
  return now && next && [next[0] - now[0], next[1] - now[1], next[2] - now[2], next[3] - now[3]];
}

export type SortKey = "saved" | "what" | "nbytes" | "peak" | "kept" | "work";

const ORDER: Partial<Record<SortKey, number>> = { peak: 0, kept: 1, work: 2 };

/** Rows sorted by a column, then in program order; unknown effects are last. */
export function sortedRows(
  rows: readonly Row[],
  key: SortKey,
  descending: boolean,
  difference: (row: Row) => Difference,
): Row[] {
  const i = ORDER[key];
  const unknown = descending ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY;
  const cell = (r: Row) => (i === undefined ? r[key as "nbytes"] : (difference(r)?.[i] ?? unknown));
  return sortedBy(rows, cell, (r) => r.values[0]!, descending);
}
