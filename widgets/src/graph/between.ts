/** Lines from where residuals are saved to where they are read, across two graphs side by side. */

import { formatBytes } from "../base/format";
import { entry, remembered } from "../base/maps";
import { push, sumOf } from "../model/groups";
import type { Side, State } from "../state/state";
import type { Drawing } from "./draw/drawing";
import type { Palette } from "./draw/palette";
import type { View } from "./draw/view";
import { rowOf, SIZES, type Stub } from "./layout/stubs";

/** What the lines need to know about one of the two graphs. */
export interface Shown {
  readonly drawing: Drawing | null;
  readonly canvas: HTMLCanvasElement;
  readonly view: View;
  readonly colouring: Palette;
}

/** The end of a line: a port, or a row of ports, in pixels of its graph. */
interface End {
  left: number;
  right: number;
  y: number;
}

/** The residuals that lead from one box to another. */
export interface Tie {
  residuals: readonly number[];
  from: End;
  to: End;
}

/** The widths of lines, and how many get a label. */
const [THIN, THICK] = [1, 6];
const SAID = 6;
/** The line height and letter width of the labels. */
const [LINE, LETTER] = [15, 6.1];

/** The port of each residual in a graph, with the row that it is in. */
function portsOf({ drawing, view }: Shown, which: "kept" | "taken"): Map<number, { port: End; row: End }> {
  const found = new Map<number, { port: End; row: End }>();
  if (drawing === null) return found;
  const all: ReadonlyMap<number, readonly Stub[]> = drawing.scene[which];
  for (const [box, stubs] of all) {
    const placed = drawing.rows(box).find(({ row }) => row === rowOf(stubs));
    if (placed === undefined) continue;
    const end = (from: number, width: number): End => {
      const left = (placed.x + from) * view.scale + view.x;
      const y = (placed.y + SIZES.row / 2) * view.scale + view.y;
      return { left, right: left + width * view.scale, y };
    };
    const row = end(0, placed.row.width);
    for (const { x, width, stubs: own } of placed.row.ports)
      for (const { residual } of own) found.set(residual, { port: end(x, width), row });
  }
  return found;
}

/** The lines from one graph to the other, one per pair of boxes, sorted by bytes in descending order. */
export function tiesOf(forward: Shown, backward: Shown, bytes: (residual: number) => number): Tie[] {
  const [kept, taken] = [portsOf(forward, "kept"), portsOf(backward, "taken")];
  const found = new Map<End, Map<End, number[]>>();
  for (const [residual, { row }] of kept) {
    const there = taken.get(residual)?.row;
    if (there === undefined) continue;
    push(
      entry(found, row, () => new Map()),
      there,
      residual,
    );
  }
  return [...found]
    .flatMap(([from, own]) => [...own].map(([to, residuals]): Tie => ({ from, to, residuals })))
    .map((tie) => {
      const [only, more] = tie.residuals;
      return more === undefined ? { ...tie, from: kept.get(only!)!.port, to: taken.get(only!)!.port } : tie;
    })
    .sort((a, b) => sumOf(b.residuals, bytes) - sumOf(a.residuals, bytes));
}

/** The lines between the two graphs of an explorer. */
export const betweenOf = remembered((state: State) => new Between(state));

export class Between {
  private readonly panes = new Map<Side, Shown>();
  private readonly canvas = document.createElement("canvas");

  constructor(private readonly state: State) {
    this.canvas.className = "jv-graph-between";
    this.canvas.setAttribute("aria-hidden", "true");
  }

  add(side: Side, pane: Shown): void {
    this.panes.set(side, pane);
  }

  remove(side: Side, pane: Shown): void {
    if (this.panes.get(side) === pane) this.panes.delete(side);
    this.canvas.remove();
  }

  /** Draws the lines, if both panes are graphs, side by side. */
  draw(): void {
    const [left, right] = [this.panes.get("left"), this.panes.get("right")];
    const around = left?.canvas.closest<HTMLElement>(".jv-codes");
    if (!left || !right || !around) return;
    if (this.canvas.parentElement !== around) around.append(this.canvas);
    const frame = around.getBoundingClientRect();
    const boxes = [left, right].map((pane) => pane.canvas.getBoundingClientRect());
    const pixels = globalThis.devicePixelRatio || 1;
    this.canvas.width = Math.round(frame.width * pixels);
    this.canvas.height = Math.round(frame.height * pixels);
    const ctx = this.canvas.getContext("2d");
    if (ctx === null || boxes[0]!.right > boxes[1]!.left + 1) return;
    ctx.scale(pixels, pixels);
    const { residuals } = this.state.model;
    const bytes = (r: number) => residuals[r]!.nbytes;
    const isForward = (left.drawing?.scene.kept.size ?? 0) > 0;
    const ties = isForward ? tiesOf(left, right, bytes) : tiesOf(right, left, bytes);
    const selected = this.state.selection.residual;
    const most = Math.max(1, ...ties.map((tie) => sumOf(tie.residuals, bytes)));
    const texts: [string, number, number][] = [];
    for (const tie of [...ties].reverse()) {
      const [a, b] = isForward ? [tie.from, tie.to] : [tie.to, tie.from];
      const [start, startsIn] = within(a.right, a.y, boxes[0]!, frame);
      const [end, endsIn] = within(b.left, b.y, boxes[1]!, frame);
      if (!startsIn && !endsIn) continue;
      const bend = Math.max(30, (end[0] - start[0]) / 2);
      const isChosen = selected >= 0 && tie.residuals.includes(selected);
      ctx.beginPath();
      ctx.moveTo(...start);
      ctx.bezierCurveTo(start[0] + bend, start[1], end[0] - bend, end[1], ...end);
      ctx.strokeStyle = left.colouring.roles["residual"]!;
      const share = Math.sqrt(sumOf(tie.residuals, bytes) / most);
      ctx.lineWidth = THIN + (THICK - THIN) * share;
      ctx.globalAlpha = isChosen ? 1 : selected >= 0 ? 0.15 : startsIn && endsIn ? 0.45 : 0.2;
      ctx.stroke();
      const n = tie.residuals.length;
      const text = `${n === 1 ? `R${tie.residuals[0]! + 1}` : `${n} residuals`} ${formatBytes(sumOf(tie.residuals, bytes))}`;
      const hasRoom = end[0] - start[0] > text.length * LETTER;
      if (startsIn && endsIn && hasRoom && (isChosen || selected < 0))
        texts.push([text, ...middle(start, end)]);
    }
    ctx.globalAlpha = 1;
    say(ctx, texts.reverse().slice(0, SAID), left.colouring);
  }
}

/** A point of a graph in the coordinates of the frame around both, clamped to the visible part of its graph; and whether it is visible. */
function within(x: number, y: number, box: DOMRect, frame: DOMRect): [[number, number], boolean] {
  const [cx, cy] = [Math.min(box.width, Math.max(0, x)), Math.min(box.height, Math.max(0, y))];
  return [[cx + box.left - frame.left, cy + box.top - frame.top], cx === x && cy === y];
}

/** The midpoint of a line. */
function middle(start: [number, number], end: [number, number]): [number, number] {
  return [(start[0] + end[0]) / 2, (start[1] + end[1]) / 2];
}

/** Labels lines at their midpoints, skipping labels that would overlap. */
function say(ctx: CanvasRenderingContext2D, texts: [string, number, number][], palette: Palette): void {
  ctx.font = `600 10px ${palette.mono}`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  const taken: number[] = [];
  for (const [text, x, y] of texts) {
    if (taken.some((other) => Math.abs(other - y) < LINE)) continue;
    taken.push(y);
    const half = (text.length * LETTER) / 2 + 3;
    ctx.beginPath();
    ctx.roundRect(x - half, y - LINE / 2, 2 * half, LINE, 4);
    ctx.fillStyle = palette.background;
    ctx.fill();
    ctx.lineWidth = 1;
    ctx.strokeStyle = palette.roles["residual"]!;
    ctx.stroke();
    ctx.fillStyle = palette.text;
    ctx.fillText(text, x, y + 0.5);
  }
}
