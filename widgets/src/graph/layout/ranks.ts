/** Assigns each box of a level to a rank. */

/** The boxes of a level, numbered such that edges lead from lower to higher numbers. */
export interface Level {
  /** The width of each box. */
  width: Float32Array;
  /** Boxes in the first and in the last rank: the inputs and results of the level. */
  top: Uint8Array;
  bottom: Uint8Array;
  from: Int32Array;
  to: Int32Array;
}

/** How many boxes without inputs are placed side by side above their reader. */
const ABREAST = 3;

/** The rank of each box: below all that it reads, and as close to its readers as possible. */
export function ranks({ width, top, bottom, from, to }: Level): Int32Array {
  const n = top.length;
  const out = lists(n, from);
  const rank = new Int32Array(n);
  const hasTop = top.some((t) => t === 1);
  const ins = new Int32Array(n);
  for (const j of to) ins[j]! += 1;
  // Boxes that have no inputs and a single reader, such as zeros, are in rows above it.
  const rowsUp = new Int32Array(n);
  const above = new Int32Array(n);
  for (let i = 0; i < n; i++) {
    if (ins[i]! > 0 || top[i] === 1 || out.starts[i + 1]! - out.starts[i]! !== 1) continue;
    rowsUp[i] = Math.floor(above[to[out.items[out.starts[i]!]!]!]!++ / ABREAST);
  }
  for (let i = 0; i < n; i++) {
    if (hasTop && top[i] === 0) rank[i] = Math.max(rank[i]!, 1);
    for (let k = out.starts[i]!; k < out.starts[i + 1]!; k++) {
      const j = to[out.items[k]!]!;
      if (j > i) rank[j] = Math.max(rank[j]!, rank[i]! + 1 + rowsUp[i]!);
    }
  }
  const into = lists(n, to);
  const isFixed = (i: number) => top[i] === 1 || bottom[i] === 1;
  const lowest = (i: number) => {
    let found = hasTop ? 1 : 0;
    for (let k = into.starts[i]!; k < into.starts[i + 1]!; k++) {
      const above = from[into.items[k]!]!;
      found = Math.max(found, rank[above]! + 1 + rowsUp[above]!);
    }
    return found;
  };
  const highest = (i: number) => {
    let found = Infinity;
    for (let k = out.starts[i]!; k < out.starts[i + 1]!; k++)
      found = Math.min(found, rank[to[out.items[k]!]!]! - 1 - rowsUp[i]!);
    return found;
  };
  // Boxes with more readers than operands move down to their readers. So do those with equally many, so that their operands can follow;
  // they move back up below if their operands stay.
  for (let i = n - 1; i >= 0; i--) {
    const outs = out.starts[i + 1]! - out.starts[i]!;
    if (!isFixed(i) && outs > 0 && ins[i]! <= outs) rank[i] = Math.max(rank[i]!, highest(i));
  }
  for (let i = 0; i < n; i++) {
    const outs = out.starts[i + 1]! - out.starts[i]!;
    if (!isFixed(i) && ins[i]! > 0 && ins[i]! >= outs) rank[i] = Math.min(rank[i]!, lowest(i));
  }
  balance(rank, width, bottom, (i) => {
    const outs = out.starts[i + 1]! - out.starts[i]!;
    return isFixed(i) || outs === 0 || ins[i]! !== outs ? [0, 0] : [lowest(i), highest(i)];
  });
  const inner = rank.reduce((max, r, i) => (bottom[i] === 1 ? max : Math.max(max, r)), 0);
  for (let i = 0; i < n; i++) if (bottom[i] === 1) rank[i] = inner + 1;
  return rank;
}

/** Moves boxes for which several ranks give the same total edge length to the least crowded of these. */
function balance(
  rank: Int32Array,
  width: Float32Array,
  bottom: Uint8Array,
  room: (i: number) => [number, number],
): void {
  const crowd: number[] = [];
  for (let i = 0; i < rank.length; i++)
    if (bottom[i] === 0) crowd[rank[i]!] = (crowd[rank[i]!] ?? 0) + width[i]!;
  for (let i = 0; i < rank.length; i++) {
    const [low, high] = room(i);
    if (high <= low) continue;
    crowd[rank[i]!]! -= width[i]!;
    let best = rank[i]!;
    for (let r = low; r <= high; r++) if ((crowd[r] ?? 0) < crowd[best]!) best = r;
    rank[i] = best;
    crowd[best] = (crowd[best] ?? 0) + width[i]!;
  }
}

/** A list of numbers for each item, stored consecutively. */
export interface Lists {
  starts: Int32Array;
  items: Int32Array;
}

/** For each of `n` items, the indices at which it occurs in the given lists; negative items are skipped. */
export function lists(n: number, ...ends: Int32Array[]): Lists {
  const starts = new Int32Array(n + 1);
  for (const list of ends) for (const end of list) if (end >= 0) starts[end + 1]! += 1;
  for (let i = 0; i < n; i++) starts[i + 1]! += starts[i]!;
  const next = starts.slice();
  const items = new Int32Array(starts[n]!);
  for (const list of ends)
    for (let e = 0; e < list.length; e++) if (list[e]! >= 0) items[next[list[e]!]!++] = e;
  return { starts, items };
}
