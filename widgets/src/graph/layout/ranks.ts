/** The rank of each box in its level. */

/** The boxes of a level, numbered so that edges lead from lower numbers to higher ones. */
export interface Level {
  /** How much room each box takes beside others. */
  width: Float32Array;
  /** Boxes that stand at the very top, and at the very bottom: the inputs and results of the level. */
  top: Uint8Array;
  bottom: Uint8Array;
  from: Int32Array;
  to: Int32Array;
}

/** So many boxes that read nothing stand beside each other above the one that reads them. */
const ABREAST = 3;

/** The rank of each box: below all that it reads, and no further from its readers than need be. */
export function ranks({ width, top, bottom, from, to }: Level): Int32Array {
  const n = top.length;
  const out = lists(n, from);
  const rank = new Int32Array(n);
  const hasTop = top.some((t) => t === 1);
  const ins = new Int32Array(n);
  for (const j of to) ins[j]! += 1;
  // Boxes that read nothing and that one other reads, such as zeros, stand in rows above that one.
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
  // What has more readers than operands goes down to its readers; so does what has as many, which lets what it reads follow, and comes back
  // where that stays.
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

/** Puts what may stand in several ranks, with lines as long in all of them, into the least crowded one. */
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

/** For each of some things the numbers that it has in a list, one after the other. */
export interface Lists {
  starts: Int32Array;
  items: Int32Array;
}

/** For each of `n` things where it is in some lists of things; things below 0 are left out. */
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
