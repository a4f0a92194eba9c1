/** Finds repeated runs in a sequence: `ab abcabcabc d` contains `abc` three times. */

export interface Repeat {
  /** The first item of the first copy, the items per copy, and the number of copies. */
  start: number;
  period: number;
  count: number;
}

/** Candidate periods are the most common distances between equal runs of these lengths. */
const STRETCHES = [1, 2, 4, 8];
const DISTANCES = 6;

/** The least total weight of copies to be folded. */
export const WORTH = 12;

/** Whether `count` copies of a weight are worth folding. */
function isWorth(weight: number, count: number): boolean {
  return weight * count >= WORTH && (weight >= 6 || (weight >= 3 && count >= 4));
}

/**
 * Non-overlapping repeats, in order; chosen greedily by the weight that they cover.
 * @param items equal numbers for items that are alike.
 * @param weights the weight of each item.
 * @param cut the cost of a boundary before an item; determines where the copies start if several places are possible.
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
  /** By how many items the start can be shifted. */
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
    // Prefer the shorter period: its multiples cover the same.
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

/** The most common distances from a run to its next occurrence. */
function distances(items: ArrayLike<number>, from: number, to: number): Set<number> {
  const periods = new Set<number>();
  const n = to - from;
  /** For each position the number of the run that starts there, equal for equal runs; the length doubles each time. */
  let numbers = numbered(
    n,
    (i) => items[from + i]!,
    () => 0,
  );
  const last = new Int32Array(n);
  const seen = new Int32Array(n + 1);
  for (const length of STRETCHES) {
    if (length > 1) {
      const [half, before] = [length / 2, numbers];
      numbers = numbered(
        n - length + 1,
        (i) => before[i]!,
        (i) => before[i + half]!,
      );
    }
    last.fill(-1);
    seen.fill(0);
    const there: number[] = [];
    numbers.forEach((number, i) => {
      if (last[number]! >= 0 && seen[i - last[number]!]!++ === 0) there.push(i - last[number]!);
      last[number] = i;
    });
    there.sort((a, b) => b * seen[b]! - a * seen[a]! || a - b);
    for (const distance of there.slice(0, DISTANCES)) periods.add(distance);
  }
  return periods;
}

/** Numbers pairs of numbers from 0, equal pairs alike. */
function numbered(n: number, one: (i: number) => number, two: (i: number) => number): Int32Array {
  const numbers = new Int32Array(Math.max(0, n));
  const firsts = new Int32Array(Math.max(0, n));
  // A hash table with open addressing; it stores the number of each distinct pair.
  const size = 2 ** Math.ceil(Math.log2(2 * Math.max(1, n)));
  const table = new Int32Array(size).fill(-1);
  let count = 0;
  for (let i = 0; i < n; i++) {
    const [a, b] = [one(i), two(i)];
    let at = mix(a, b) & (size - 1);
    for (; table[at]! >= 0; at = (at + 1) & (size - 1)) {
      const first = firsts[table[at]!]!;
      if (one(first) === a && two(first) === b) break;
    }
    if (table[at]! < 0) {
      table[at] = count;
      firsts[count] = i;
      count += 1;
    }
    numbers[i] = table[at]!;
  }
  return numbers;
}

/** Hashes two numbers into 32 bits. */
export function mix(a: number, b: number): number {
  const h = Math.imul(a ^ Math.imul(b, 0x85ebca6b), 0x9e3779b1);
  return ((h ^ (h >>> 15)) + 0x7f4a7c15) | 0;
}
