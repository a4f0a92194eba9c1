/** Draws edges, all edges of the same style in one stroke. */

import { curvesOf } from "../layout/curves";
import { CLOSED } from "../layout/shape";
import { type Drawing, WIDTHS } from "./drawing";
import type { Palette } from "./palette";
import type { View } from "./view";

/** In large graphs, edges shorter than this are not drawn; in pixels of the screen. */
const SHORT = 3;
/** Of an edge longer than this many viewports, which the eye cannot follow, only the ends are drawn. */
const LONG = 3;
/** How much wider the line of a reference is, so that its hue is seen. */
const THICKER = 0.6;
/** Bends smaller than this are drawn straight, in pixels. */
const BEND = 1;

interface Stroke {
  path: Path2D;
  width: number;
  isNear: boolean;
  isDim: boolean;
  hue: number;
}

/** The style of an edge: related to the hovered box, or dimmed; and the hue of the reference that it leads, or -1. */
export interface EdgeMarks {
  isNear(edge: number): boolean;
  isDim(edge: number): boolean;
  hue(edge: number): number;
}

export class Edges {
  private readonly strokes: (Stroke | undefined)[] = [];
  private readonly isSparse: boolean;
  private readonly long: number;

  constructor(
    private readonly drawing: Drawing,
    private readonly view: View,
    size: readonly [number, number],
    private readonly marks: EdgeMarks,
  ) {
    this.isSparse = view.scale < 0.35;
    this.long = LONG * (size[0] + size[1]);
  }

  add(e: number): void {
    const { at, scene } = this.drawing;
    const { points, starts } = at;
    const { scale, x: dx, y: dy } = this.view;
    const [first, last] = [starts[e]!, starts[e + 1]! - 2];
    if (last <= first) return;
    if (this.isSparse && (points[last + 1]! - points[first + 1]!) * scale < SHORT) return;
    const { path, isNear } = this.strokeOf(e);
    const [x0, y0] = [points[first]! * scale + dx, points[first + 1]! * scale + dy];
    const [x1, y1] = [points[last]! * scale + dx, points[last + 1]! * scale + dy];
    path.moveTo(x0, y0);
    if (at.cut[e] === 1 || (!isNear && Math.abs(x1 - x0) + Math.abs(y1 - y0) > this.long)) {
      path.lineTo(x0, y0 + 9 * scale);
      path.moveTo(x1, y1 - 9 * scale);
      path.lineTo(x1, y1);
      return;
    }
    curvesOf(at, e, (ax, _ay, bx, by, cx, cy, ex, ey) => {
      const isStraight = this.isSparse || (Math.abs(ax - ex) + Math.abs(bx - cx)) * scale < BEND;
      if (isStraight) path.lineTo(ex * scale + dx, ey * scale + dy);
      else
        path.bezierCurveTo(
          bx * scale + dx,
          by * scale + dy,
          cx * scale + dx,
          cy * scale + dy,
          ex * scale + dx,
          ey * scale + dy,
        );
    });
    // An arrowhead where it enters a closed box.
    if (scene.shape.kind[scene.shape.to[e]!] === CLOSED && scale > 0.45) {
      const size = 4.5 * scale;
      path.moveTo(x1 - size * 0.7, y1 - size);
      path.lineTo(x1, y1 - 0.5);
      path.lineTo(x1 + size * 0.7, y1 - size);
    }
  }

  private strokeOf(e: number): Stroke {
    const { scale } = this.view;
    const isNear = this.marks.isNear(e);
    const isDim = this.marks.isDim(e);
    const bucket = this.drawing.bucket(e);
    const hue = this.marks.hue(e);
    const key = 4 * (bucket + WIDTHS.length * (hue + 1)) + (isNear ? 2 : 0) + (isDim ? 1 : 0);
    let made = this.strokes[key];
    if (made === undefined) {
      const width =
        WIDTHS[bucket]! * Math.min(1.2, Math.max(0.35, scale)) + (isNear ? 0.6 : 0) + (hue < 0 ? 0 : THICKER);
      made = { path: new Path2D(), width: Math.max(0.5, width), isNear, isDim, hue };
      this.strokes[key] = made;
    }
    return made;
  }

  stroke(ctx: CanvasRenderingContext2D, palette: Palette): void {
    ctx.lineJoin = "round";
    for (const made of this.strokes) {
      if (made === undefined) continue;
      const own = palette.hues[made.hue];
      ctx.globalAlpha = made.isDim ? 0.12 : made.isNear || own !== undefined ? 1 : 0.62;
      ctx.strokeStyle = own ?? (made.isNear ? palette.accent : palette.dim);
      ctx.lineWidth = made.width;
      ctx.stroke(made.path);
    }
    ctx.globalAlpha = 1;
  }
}
