/** Decides which of two layouts is easier to read. */

import { pointsAlong } from "./curves";
import { type Dot, placeByDot } from "./graphviz";
import type { Positions, Shape } from "./shape";

/** A layout that takes this many times the area is never better. */
const ROOM = 1.5;
/** The length of line that a crossing counts as, in pixels. */
const CROSSING = 150;

/** The better of our own layout and Graphviz's; Graphviz's `inAnyCase`, unless it fails. */
export function prettier(shape: Shape, own: Positions, dot: Dot, inAnyCase: boolean): Positions {
  try {
    const found = placeByDot(shape, dot);
    return inAnyCase || isBetter(shape, found, own) ? found : own;
  } catch (error) {
    console.warn(error);
    return own;
  }
}

/** Whether a layout is better than another: shorter lines and fewer crossings, in not much more area. */
export function isBetter(shape: Shape, one: Positions, other: Positions): boolean {
  const room = (at: Positions) => at.width[0]! * at.height[0]!;
  return room(one) <= ROOM * room(other) && cost(shape, one) < cost(shape, other);
}

function cost(shape: Shape, at: Positions): number {
  let length = 0;
  for (let e = 0; e < shape.from.length; e++) {
    const line = pointsAlong(at, e);
    for (let k = 2; k < line.length; k += 2)
      length += Math.hypot(line[k]! - line[k - 2]!, line[k + 1]! - line[k - 1]!);
  }
  return length + CROSSING * crossings(shape, at);
}

/** The number of crossings between edges of all levels, without pairs that share an end. */
export function crossings({ from, to }: Shape, at: Positions): number {
  const lines = Array.from(from, (_, e) => (at.cut[e] === 1 ? [] : pointsAlong(at, e)));
  const boxes = lines.map((line) => {
    let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
    for (let k = 0; k < line.length; k += 2) {
      left = Math.min(left, line[k]!);
      right = Math.max(right, line[k]!);
      top = Math.min(top, line[k + 1]!);
      bottom = Math.max(bottom, line[k + 1]!);
    }
    return [left, top, right, bottom] as const;
  });
  let found = 0;
  for (let a = 0; a < lines.length; a++)
    for (let b = a + 1; b < lines.length; b++) {
      if (from[a] === from[b] || to[a] === to[b] || from[a] === to[b] || to[a] === from[b]) continue;
      const [p, q] = [boxes[a]!, boxes[b]!];
      if (p[2] < q[0] || q[2] < p[0] || p[3] < q[1] || q[3] < p[1]) continue;
      if (cross(lines[a]!, lines[b]!)) found += 1;
    }
  return found;
}

function cross(one: readonly number[], other: readonly number[]): boolean {
  for (let i = 0; i + 3 < one.length; i += 2)
    for (let j = 0; j + 3 < other.length; j += 2) {
      const [ax, ay, bx, by] = [one[i]!, one[i + 1]!, one[i + 2]!, one[i + 3]!];
      const [cx, cy, dx, dy] = [other[j]!, other[j + 1]!, other[j + 2]!, other[j + 3]!];
      const isLeft = (x: number, y: number) => (bx - ax) * (y - ay) > (by - ay) * (x - ax);
      const isBefore = (x: number, y: number) => (dx - cx) * (y - cy) > (dy - cy) * (x - cx);
      if (isLeft(cx, cy) !== isLeft(dx, dy) && isBefore(ax, ay) !== isBefore(bx, by)) return true;
    }
  return false;
}
