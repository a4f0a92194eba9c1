/** The visible part of the graph, and the motion of the viewport. */

import { inSight } from "./draw/minimap";
import { type Box, between, fitted, opening, type View, zoomed } from "./draw/view";
import type { Positions } from "./layout/shape";

const MOVE = 180;
/** The least scale at which a box is shown when one goes to it. */
const READ = 0.6;

export class Camera {
  view: View = { scale: 1, x: 0, y: 0 };
  /** The width and height of the canvas, and the device pixel ratio. */
  size: readonly [number, number, number] = [0, 0, 1];
  /** Whether the user has moved the view since it was opened. */
  isMoved = false;
  /** Whether the user asked to see the whole drawing. */
  isFitted = false;
  private isGone = false;

  constructor(private readonly changed: () => void) {}

  destroy(): void {
    this.isGone = true;
  }

  get isSized(): boolean {
    return this.size[0] > 0;
  }

  /** The visible part of the world. */
  get part(): Box {
    return inSight(this.view, this.size[0], this.size[1]);
  }

  /** Converts a point of the canvas to world coordinates. */
  world(x: number, y: number): [number, number] {
    return [(x - this.view.x) / this.view.scale, (y - this.view.y) / this.view.scale];
  }

  /** The initial view: the whole drawing, or if it is too large, the part that starts at a box. */
  open(width: number, height: number, from?: Box): void {
    this.view = opening({ x: 0, y: 0, width, height }, this.size[0], this.size[1], from);
    this.isMoved = this.isFitted = false;
  }

  /** Resizes the canvas and keeps the centre. */
  resize(size: readonly [number, number, number]): void {
    const [width, height] = this.size;
    this.size = size;
    const { scale, x, y } = this.view;
    this.view = { scale, x: x + (size[0] - width) / 2, y: y + (size[1] - height) / 2 };
  }

  zoom(factor: number, x = this.size[0] / 2, y = this.size[1] / 2): void {
    this.set(zoomed(this.view, factor, x, y));
  }

  pan(dx: number, dy: number): void {
    this.set({ ...this.view, x: this.view.x + dx, y: this.view.y + dy });
  }

  /** Centres a point of the world. */
  lookAt(x: number, y: number): void {
    const { scale } = this.view;
    this.set({ scale, x: this.size[0] / 2 - x * scale, y: this.size[1] / 2 - y * scale });
  }

  fit(width: number, height: number): void {
    this.go(fitted({ x: 0, y: 0, width, height }, this.size[0], this.size[1]), true);
  }

  /** Fits the drawing without animation. */
  fitNow(width: number, height: number): void {
    this.view = fitted({ x: 0, y: 0, width, height }, this.size[0], this.size[1]);
  }

  /** Zooms in on some boxes. */
  zoomTo({ x, y, width, height }: Positions, boxes: readonly number[]): void {
    const left = Math.min(...boxes.map((b) => x[b]!));
    const top = Math.min(...boxes.map((b) => y[b]!));
    const right = Math.max(...boxes.map((b) => x[b]! + width[b]!));
    const bottom = Math.max(...boxes.map((b) => y[b]! + height[b]!));
    const box = { x: left, y: top, width: right - left, height: bottom - top };
    this.go(fitted(box, this.size[0], this.size[1], 40, 1.4));
  }

  /**
   * Moves as little as is needed to make a box visible and readable.
   * @param isCentred centres it instead.
   */
  reveal(at: Positions, box: number, isCentred: boolean): void {
    if (box < 0 || !this.isSized) return;
    const [width, height] = this.size;
    const scale = Math.max(this.view.scale, READ);
    let view = this.view;
    if (isCentred || scale !== view.scale) {
      const [cx, cy] = [at.x[box]! + at.width[box]! / 2, at.y[box]! + at.height[box]! / 2];
      view = { scale, x: width / 2 - cx * scale, y: height / 2 - cy * scale };
    }
    const along = (start: number, size: number, room: number) => {
      const margin = Math.min(40, room / 5);
      if (size > room - 2 * margin) return start > margin || start + size < room / 2 ? margin - start : 0;
      if (start < margin) return margin - start;
      return start + size > room - margin ? room - margin - start - size : 0;
    };
    const dx = along(at.x[box]! * scale + view.x, at.width[box]! * scale, width);
    const dy = along(at.y[box]! * scale + view.y, at.height[box]! * scale, height);
    if (view !== this.view || dx !== 0 || dy !== 0) this.go({ scale, x: view.x + dx, y: view.y + dy });
  }

  private set(view: View): void {
    this.view = view;
    this.isMoved = true;
    this.isFitted = false;
    this.changed();
  }

  /** Animates to a view; jumps if reduced motion is preferred. */
  private go(view: View, isFit = false): void {
    const from = this.view;
    if (!globalThis.matchMedia?.("(prefers-reduced-motion: no-preference)").matches) {
      this.set(view);
      this.isFitted = isFit;
      return;
    }
    const start = performance.now();
    const step = () => {
      if (this.isGone) return;
      const share = Math.min(1, (performance.now() - start) / MOVE);
      this.set(between(from, view, 1 - (1 - share) ** 3));
      this.isFitted = isFit;
      if (share < 1) requestAnimationFrame(step);
    };
    step();
  }
}
