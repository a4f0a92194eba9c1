/** The minimap: the whole drawing, and the visible part. */

import { OPEN } from "../layout/shape";
import type { Drawing } from "./drawing";
import type { Palette } from "./palette";
import type { Box, View } from "./view";

const [WIDTH, HEIGHT] = [120, 84];
/** The picture is read back once per layout. */
const OFTEN: CanvasRenderingContext2DSettings = { willReadFrequently: true };
/** Only this many of the largest boxes are drawn. */
const MANY = 3000;

export class MiniMap {
  readonly canvas = document.createElement("canvas");
  private picture: ImageData | null = null;
  private scale = 1;
  private offset: [number, number] = [0, 0];

  /** Draws the boxes; once per layout. */
  draw(drawing: Drawing, palette: Palette, pixels: number): void {
    const { canvas } = this;
    this.scale = Math.min(WIDTH / Math.max(1, drawing.width), HEIGHT / Math.max(1, drawing.height));
    const [w, h] = [Math.max(24, drawing.width * this.scale), Math.max(24, drawing.height * this.scale)];
    this.offset = [(w - drawing.width * this.scale) / 2, (h - drawing.height * this.scale) / 2];
    canvas.width = Math.ceil(w * pixels);
    canvas.height = Math.ceil(h * pixels);
    canvas.style.width = `${w}px`;
    canvas.style.height = `${h}px`;
    const ctx = canvas.getContext("2d", OFTEN);
    if (ctx === null) return;
    ctx.scale(pixels, pixels);
    ctx.translate(...this.offset);
    const { kind } = drawing.scene.shape;
    const { x, y, width, height } = drawing.at;
    const step = Math.max(1, Math.floor(kind.length / MANY));
    for (let i = 1; i < kind.length; i++) {
      if (kind[i] !== OPEN && i % step !== 0) continue;
      ctx.fillStyle = kind[i] === OPEN ? palette.line : palette.dim;
      ctx.globalAlpha = kind[i] === OPEN ? 0.35 : 0.8;
      ctx.fillRect(
        x[i]! * this.scale,
        y[i]! * this.scale,
        Math.max(1, width[i]! * this.scale),
        Math.max(0.7, height[i]! * this.scale),
      );
    }
    this.picture = ctx.getImageData(0, 0, canvas.width, canvas.height);
  }

  /** Outlines the visible part. */
  show(part: Box, palette: Palette, pixels: number): void {
    const ctx = this.canvas.getContext("2d", OFTEN);
    if (ctx === null || this.picture === null) return;
    ctx.putImageData(this.picture, 0, 0);
    ctx.setTransform(pixels, 0, 0, pixels, 0, 0);
    ctx.globalAlpha = 1;
    ctx.strokeStyle = palette.accent;
    ctx.lineWidth = 1.5;
    const [dx, dy] = this.offset;
    ctx.strokeRect(
      part.x * this.scale + dx,
      part.y * this.scale + dy,
      Math.max(3, part.width * this.scale),
      Math.max(3, part.height * this.scale),
    );
  }

  /** Converts a point of the map to world coordinates. */
  world(x: number, y: number): [number, number] {
    return [(x - this.offset[0]) / this.scale, (y - this.offset[1]) / this.scale];
  }
}

/** The visible part of the world. */
export function inSight(view: View, width: number, height: number): Box {
  return {
    x: -view.x / view.scale,
    y: -view.y / view.scale,
    width: width / view.scale,
    height: height / view.scale,
  };
}
