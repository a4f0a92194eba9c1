/** Paths through a scene: along its edges, and through the ports of open boxes. */

import { type Lists, lists } from "./ranks";
import type { Scene } from "./scene";
import { CLOSED, OPEN, type Positions } from "./shape";

/** For each box and port, its outgoing and its incoming edges. */
export class Ways {
  private readonly out: Lists;
  private readonly in: Lists;

  constructor(private readonly scene: Scene) {
    const { parent, from, to } = scene.shape;
    this.out = lists(parent.length, from);
    this.in = lists(parent.length, to);
  }

  /** The outgoing or the incoming edges of a box or port. */
  private edges(i: number, along: 1 | -1): Int32Array {
    const { starts, items } = along === 1 ? this.out : this.in;
    return items.subarray(starts[i]!, starts[i + 1]!);
  }

  /** All boxes and ports that are reachable from the given ones along edges, or backwards; including these. */
  reach(starts: Iterable<number>, along: 1 | -1): Set<number> {
    const { from, to } = this.scene.shape;
    const found = new Set(starts);
    const todo = [...found];
    for (let i = todo.pop(); i !== undefined; i = todo.pop())
      for (const e of this.edges(i, along)) {
        const next = along === 1 ? to[e]! : from[e]!;
        if (found.has(next)) continue;
        found.add(next);
        todo.push(next);
      }
    return found;
  }

  /** The next closed boxes along the edges of a box, through ports. */
  next(box: number, along: 1 | -1): number[] {
    const { from, to, kind, parent } = this.scene.shape;
    const found: number[] = [];
    const starts = kind[box] === OPEN ? this.portsOf(box) : [box];
    const seen = new Set(starts);
    const todo = [...starts];
    for (let i = todo.shift(); i !== undefined; i = todo.shift())
      for (const e of this.edges(i, along)) {
        const next = along === 1 ? to[e]! : from[e]!;
        if (seen.has(next)) continue;
        seen.add(next);
        if (kind[next] === CLOSED) {
          if (kind[box] !== OPEN || !isWithin(parent, next, box)) found.push(next);
        } else todo.push(next);
      }
    return found;
  }

  private portsOf(box: number): number[] {
    const { parent } = this.scene.shape;
    const found: number[] = [];
    for (let i = box + 1; i < parent.length; i++)
      if (parent[i] === box && this.scene.variable[i]! >= 0) found.push(i);
    return found;
  }
}

export function isWithin(parent: ArrayLike<number>, box: number, outer: number): boolean {
  for (let i = box; i >= 0; i = parent[i]!) if (i === outer) return true;
  return false;
}

/** The nearest box to the left or right in the same open box, at about the same height; or -1. */
export function beside(scene: Scene, at: Positions, box: number, by: 1 | -1): number {
  const { parent, kind } = scene.shape;
  let best = -1;
  let least = Infinity;
  const middle = (i: number) => at.y[i]! + at.height[i]! / 2;
  for (let i = 1; i < parent.length; i++) {
    if (i === box || parent[i] !== parent[box] || kind[i]! > OPEN) continue;
    const away = by * (at.x[i]! - at.x[box]!);
    const apart = Math.abs(middle(i) - middle(box));
    if (away <= 0 || apart > Math.max(at.height[i]!, at.height[box]!) / 2 + 8) continue;
    if (away < least) [least, best] = [away, i];
  }
  return best;
}
