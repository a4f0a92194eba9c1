/** Edges as they are drawn: chains of cubic curves through their points. */

import type { Positions } from "./shape";

/** Visits each curve of an edge, as its end points and control points. */
export function curvesOf(
  { starts, points, curved }: Positions,
  e: number,
  visit: (
    x0: number,
    y0: number,
    x1: number,
    y1: number,
    x2: number,
    y2: number,
    x3: number,
    y3: number,
  ) => void,
): void {
  const [first, end] = [starts[e]!, starts[e + 1]!];
  if (curved) {
    for (let p = first; p + 7 < end; p += 6)
      visit(
        points[p]!,
        points[p + 1]!,
        points[p + 2]!,
        points[p + 3]!,
        points[p + 4]!,
        points[p + 5]!,
        points[p + 6]!,
        points[p + 7]!,
      );
    return;
  }
  // Vertical at both ends, so that an edge runs straight in its lanes.
  for (let p = first; p + 3 < end; p += 2) {
    const [x, y, xx, yy] = [points[p]!, points[p + 1]!, points[p + 2]!, points[p + 3]!];
    const middle = (y + yy) / 2;
    visit(x, y, x, middle, xx, middle, xx, yy);
  }
}

/** Points along an edge, `pieces` for each curve: x and y alternate. */
export function pointsAlong(at: Positions, e: number, pieces = 8): number[] {
  const found = [at.points[at.starts[e]!]!, at.points[at.starts[e]! + 1]!];
  curvesOf(at, e, (x0, y0, x1, y1, x2, y2, x3, y3) => {
    const isStraight = x0 === x1 && x1 === x2 && x2 === x3;
    for (let k = isStraight ? pieces : 1; k <= pieces; k++) {
      const t = k / pieces;
      const [a, b, c, d] = [(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t ** 3];
      found.push(a * x0 + b * x1 + c * x2 + d * x3, a * y0 + b * y1 + c * y2 + d * y3);
    }
  });
  return found;
}
