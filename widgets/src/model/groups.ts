/** Lists by key. Which values are one row, and what it is called, Python decides: see `analysis/grouping.py`. */

import { formatCount, formatRepeated } from "../base/format";
import { entry } from "../base/maps";

/** Appends to the list of a key. */
export function push<K, T>(map: Map<K, T[]>, key: K, value: T): void {
  entry(map, key, () => []).push(value);
}

/** How often each key occurs. */
export function counted<K>(keys: Iterable<K>): Map<K, number> {
  const counts = new Map<K, number>();
  for (const key of keys) counts.set(key, (counts.get(key) ?? 0) + 1);
  return counts;
}

/** The items of each group, ordered by first item. */
export function grouped<T, K>(items: readonly T[], groupOf: (item: T) => K): T[][] {
  const groups = new Map<K, T[]>();
  for (const item of items) push(groups, groupOf(item), item);
  return [...groups.values()];
}

export const sumOf = <T>(items: readonly T[], size: (item: T) => number): number =>
  items.reduce((total, item) => total + size(item), 0);

/** Some of the values of a row: `12 × f32[3]`, `7 of 12 × f32[3]`, and the type alone for a single one. */
export const typeOfSome = (n: number, all: number, type: string): string =>
  n > 1 && n < all ? `${formatCount(n)} of ${formatRepeated(all, type)}` : formatRepeated(n, type);
