/** Runs of a sequence that repeat: `ab abcabcabc d` holds `abc` three times. */

export interface Repeat {
  /** The first item of the first copy, how many items a copy has, and how many copies there are. */
  start: number;
  period: number;
  count: number;
}

/** What is tried as a period: the commonest distances between equal stretches of so many items. */
const STRETCHES = [1, 2, 4, 8];
const DISTANCES = 6;

/** What copies together must count at least to be folded. */
export const WORTH = 12;

/** Whether copies of a weight are worth folding. */
function isWorth(weight: number, count: number): boolean {
  return weight * count >= WORTH && (weight >= 6 || (weight >= 3 && count >= 4));
}

/**
 * Repeats that do not overlap, in order, those that cover most first chosen.
 *
 * @param items a number for each item, the same for items that are alike.
 * @param weights what each item counts.
 * @param cut how much is cut through at the boundary before an item: of the places where copies could begin, the one is taken that
 *   cuts least.
 */
export function findRepeats(
  items: ArrayLike<number>,
  weights: ArrayLike<number>,
  cut: (i: number) => number,
): Repeat[] {
  const n = items.length;
  const sums = new Float64Array(n + 1);
  for (let i = 0; i < n; i++) sums[i + 1] = sums[i]! + weights[i]!;
  const found: Repeat[] = [];
  const todo: [number, number][] = [[0, n]];
  for (let part = todo.pop(); part; part = todo.pop()) {
    const best = bestOf(items, sums, part[0], part[1]);
    if (best === null) continue;
    const { period, count, slack } = best;
    let start = best.start;
    let least = Infinity;
    for (let s = best.start; s <= best.start + slack; s++) {
      let total = 0;
      for (let c = 0; c <= count; c++) total += cut(s + c * period);
      if (total < least) [least, start] = [total, s];
    }
    found.push({ start, period, count });
    todo.push([part[0], start], [start + period * count, part[1]]);
  }
  return found.sort((a, b) => a.start - b.start);
}

interface Run extends Repeat {
  /** By how many items the start may be moved. */
  slack: number;
}

function bestOf(items: ArrayLike<number>, sums: Float64Array, from: number, to: number): Run | null {
  let best: Run | null = null;
  let covered = 0;
  const take = (start: number, matches: number, period: number) => {
    if (matches < period) return;
    const count = Math.floor(matches / period) + 1;
    const weight = (sums[start + period * count]! - sums[start]!) / count;
    if (!isWorth(weight, count)) return;
    const all = weight * count;
    // Twice a period covers as much as the period.
    if (best === null || all > 1.02 * covered || (all >= 0.98 * covered && period < best.period)) {
      best = { start, period, count, slack: matches % period };
      covered = all;
    }
  };
  for (const period of distances(items, from, to)) {
    let matches = 0;
    for (let i = from; i + period < to; i++) {
      if (items[i] === items[i + period]) matches += 1;
      else {
        take(i - matches, matches, period);
        matches = 0;
      }
    }
    take(to - period - matches, matches, period);
  }
  return best;
}

function distances(items: ArrayLike<number>, from: number, to: number): Set<number> {
  const periods = new Set<number>();
  for (const length of STRETCHES) {
    const last = new Map<number, number>();
    const seen = new Map<number, number>();
    for (let i = from; i + length <= to; i++) {
      let hash = 0;
      for (let k = 0; k < length; k++) hash = mix(hash, items[i + k]!);
      const before = last.get(hash);
      if (before !== undefined) seen.set(i - before, (seen.get(i - before) ?? 0) + 1);
      last.set(hash, i);
    }
    const commonest = [...seen].sort((a, b) => b[0] * b[1] - a[0] * a[1] || a[0] - b[0]);
    for (const [distance] of commonest.slice(0, DISTANCES)) periods.add(distance);
  }
  return periods;
}

/** One number of two, spread over 32 bits. */
export function mix(a: number, b: number): number {
  const h = Math.imul(a ^ Math.imul(b, 0x85ebca6b), 0x9e3779b1);
  return ((h ^ (h >>> 15)) + 0x7f4a7c15) | 0;
}
