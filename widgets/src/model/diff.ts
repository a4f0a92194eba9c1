/** Aligns two lists: common items share a row; others are next to each other or alone. */

import type { Sliced } from "../base/slices";
import { countBefore } from "../base/sorted";

/** A row: the indices of its left and right item, or -1; and whether they are the same. */
export interface DiffRow {
  left: number;
  right: number;
  isSame: boolean;
}

/** How many unchanged rows are shown around changes. */
const AROUND = 3;

/** If the product of their lengths is greater, lists are compared only at their ends. */
const MOST_COMPARED = 4_000_000;

/**
 * Aligns two lists.
 * @param partner for each item of the first list, its index in the second, or -1.
 * @param n the length of the second list.
 */
export function aligned(partner: ArrayLike<number>, n: number): DiffRow[] {
  const rows: DiffRow[] = [];
  let [left, right] = [0, 0];
  const upTo = (i: number, j: number) => {
    while (left < i || right < j)
      rows.push({ left: left < i ? left++ : -1, right: right < j ? right++ : -1, isSame: false });
  };
  for (const i of ascending(partner)) {
    upTo(i, partner[i]!);
    rows.push({ left: left++, right: right++, isSame: true });
  }
  upTo(partner.length, n);
  return rows;
}

/** The longest increasing subsequence of partners. */
function ascending(partner: ArrayLike<number>): number[] {
  // For each length, the chain with the smallest end; and each item's predecessor in its chain.
  const ends: number[] = [];
  const before = new Int32Array(partner.length).fill(-1);
  for (let i = 0; i < partner.length; i++) {
    const to = partner[i]!;
    if (to < 0) continue;
    const length = countBefore(ends.length, (at) => partner[ends[at]!]! < to);
    if (length > 0) before[i] = ends[length - 1]!;
    ends[length] = i;
  }
  const found: number[] = [];
  for (let i = ends.at(-1) ?? -1; i >= 0; i = before[i]!) found.push(i);
  return found.reverse();
}

/** For each line of one text, the matching line of another, by the longest common subsequence; or -1. */
export function* sameLines(first: readonly string[], second: readonly string[]): Sliced<Int32Array> {
  const partner = new Int32Array(first.length).fill(-1);
  let start = 0;
  while (start < first.length && start < second.length && first[start] === second[start]) {
    partner[start] = start;
    start++;
  }
  let [end, other] = [first.length, second.length];
  while (end > start && other > start && first[end - 1] === second[other - 1]) partner[--end] = --other;
  const [n, m] = [end - start, other - start];
  if (n * m === 0 || n * m > MOST_COMPARED) return partner;
  // The length of the longest common subsequence of the remaining lines.
  const width = m + 1;
  const longest = new Uint16Array((n + 1) * width);
  for (let i = n - 1; i >= 0; i--) {
    yield;
    for (let j = m - 1; j >= 0; j--)
      longest[i * width + j] =
        first[start + i] === second[start + j]
          ? longest[(i + 1) * width + j + 1]! + 1
          : Math.max(longest[(i + 1) * width + j]!, longest[i * width + j + 1]!);
  }
  for (let i = 0, j = 0; i < n && j < m; )
    if (first[start + i] === second[start + j]) partner[start + i++] = start + j++;
    else if (longest[(i + 1) * width + j]! >= longest[i * width + j + 1]!) i++;
    else j++;
  return partner;
}

/** A range of rows; unchanged ranges far from any change are folded. */
export interface Stretch {
  from: number;
  to: number;
  isFolded: boolean;
}

export function stretches(n: number, isAlike: (row: number) => boolean): Stretch[] {
  const found: Stretch[] = [];
  const add = (from: number, to: number, isFolded: boolean) => {
    if (to <= from) return;
    const last = found.at(-1);
    if (last && !last.isFolded && !isFolded) last.to = to;
    else found.push({ from, to, isFolded });
  };
  for (let i = 0; i < n; ) {
    const from = i;
    const alike = isAlike(i);
    while (i < n && isAlike(i) === alike) i++;
    const [head, tail] = [from === 0 ? 0 : AROUND, i === n ? 0 : AROUND];
    // Folding one or two rows saves nothing.
    if (!alike || i - from <= head + tail + 2) add(from, i, false);
    else {
      add(from, from + head, false);
      add(from + head, i - tail, true);
      add(i - tail, i, false);
    }
  }
  return found;
}
