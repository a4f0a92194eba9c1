/** Draws a scene on a canvas: only what is in sight, and of that only what is large enough to be seen. */

import { COPY, REPEAT, STAGE, type Tree } from "../layout/hierarchy";
import { CLOSED, HEADER, IN, OPEN, OUT, type Positions } from "../layout/place";
import { labels, pills, type Scene, SIZES, type Stub, shortened, stubsWidth } from "../layout/scene";
import type { Lit } from "../state";
import { inkOn, type Palette, viridis } from "./palette";
import type { View } from "./view";

/** What is marked in the drawing. */
export interface Marks {
  lit: ReadonlyMap<number, Lit>;
  /** Boxes that hold what was searched for, and how many. */
  hits: ReadonlyMap<number, number>;
  /** The box that keys act on, and the one under the pointer; or -1. */
  at: number;
  hover: number;
  hoverEdge: number;
  /** Boxes, ports and edges that stay in the light when others are dimmed; null where none is. */
  focus: ReadonlySet<number> | null;
}

/** How boxes are coloured: by role, or by a share of the most. */
export interface Colouring {
  role(row: number): string;
  /** Between 0 and 1, or null where boxes are coloured by role. */
  share(box: number): number | null;
}

/** Below these sizes on the screen, in pixels, is not drawn: an open box's inside, text, edges. */
const LEAST_INSIDE = 10;
const LEAST_TEXT = 5.4;
/** Widths of edges at full size, by how many bytes go along. */
const WIDTHS = [1, 1.4, 2, 2.8, 3.8];
/** Fewer bytes than this get no more than a share of the widths, however few the others have. */
const MANY_BYTES = 2 ** 16;

const LETTERS: Record<string, string> = {
  tangent: "T",
  residual: "R",
  cotangent: "C",
  accumulation: "+",
  recomputation: "↻",
  zero: "0",
  dummy: "∅",
};

/** A scene with what it takes to find what is in sight of it. */
export class Drawing {
  /** For each open box its boxes by their upper edge, and the height of the tallest. */
  private readonly inside: Int32Array[] = [];
  private readonly tallest: Float32Array;
  /** For each open box its edges by their upper end, and the height of the tallest. */
  private readonly within: Int32Array[] = [];
  private readonly longest: Float32Array;
  private readonly widthOf: Uint8Array;

  constructor(
    readonly tree: Tree,
    readonly scene: Scene,
    readonly at: Positions,
  ) {
    const { parent, level } = scene.shape;
    const n = parent.length;
    const inside: number[][] = Array.from({ length: n }, () => []);
    for (let i = 1; i < n; i++) inside[parent[i]!]!.push(i);
    this.tallest = new Float32Array(n);
    inside.forEach((boxes, i) => {
      boxes.sort((a, b) => at.y[a]! - at.y[b]!);
      this.inside.push(Int32Array.from(boxes));
      for (const b of boxes) this.tallest[i] = Math.max(this.tallest[i]!, at.height[b]!);
    });
    const within: number[][] = Array.from({ length: n }, () => []);
    for (let e = 0; e < level.length; e++) within[level[e]!]!.push(e);
    this.longest = new Float32Array(n);
    within.forEach((edges, i) => {
      edges.sort((a, b) => this.top(a) - this.top(b));
      this.within.push(Int32Array.from(edges));
      for (const e of edges) this.longest[i] = Math.max(this.longest[i]!, this.end(e) - this.top(e));
    });
    let most = MANY_BYTES;
    for (const b of scene.bytes) most = Math.max(most, b);
    this.widthOf = Uint8Array.from(scene.bytes, (b) =>
      Math.min(WIDTHS.length - 1, Math.floor((WIDTHS.length * Math.log2(1 + b)) / Math.log2(2 + most))),
    );
  }

  get width(): number {
    return this.at.width[0] ?? 0;
  }
  get height(): number {
    return this.at.height[0] ?? 0;
  }

  private top(e: number): number {
    return this.at.points[this.at.starts[e]! + 1]!;
  }
  private end(e: number): number {
    return this.at.points[this.at.starts[e + 1]! - 1]!;
  }

  /** The first of some things, by their upper edge, that may reach below a height. */
  private static first(things: Int32Array, top: (i: number) => number, from: number): number {
    let low = 0;
    for (let high = things.length; low < high; ) {
      const middle = (low + high) >> 1;
      if (top(things[middle]!) < from) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The innermost box or port at a point of the world, or -1. */
  boxAt(x: number, y: number): number {
    const { at, scene } = this;
    let found = -1;
    for (let level = 0; level >= 0; ) {
      const boxes = this.inside[level]!;
      let next = -1;
      const top = (i: number) => at.y[i]!;
      for (let k = Drawing.first(boxes, top, y - this.tallest[level]!); k < boxes.length; k++) {
        const b = boxes[k]!;
        if (at.y[b]! > y) break;
        if (
          x >= at.x[b]! &&
          x <= at.x[b]! + at.width[b]! &&
          y <= at.y[b]! + at.height[b]! &&
          at.height[b]! > 0
        )
          next = b;
      }
      if (next < 0) return found;
      found = next;
      if (scene.shape.kind[next] !== OPEN) return found;
      level = next;
    }
    return found;
  }

  /** The edge nearest to a point of the world, in the open box there, or -1. */
  edgeAt(x: number, y: number, reach: number): number {
    const box = this.boxAt(x, y);
    const level = box < 0 ? 0 : this.scene.shape.kind[box] === OPEN ? box : -1;
    if (level < 0) return -1;
    let best = reach;
    let found = -1;
    const edges = this.within[level]!;
    const start = Drawing.first(edges, (e) => this.top(e), y - this.longest[level]!);
    for (let k = start; k < edges.length; k++) {
      const e = edges[k]!;
      if (this.top(e) > y) break;
      const distance = this.distance(e, x, y);
      if (distance < best) [best, found] = [distance, e];
    }
    return found;
  }

  private distance(e: number, x: number, y: number): number {
    const { points, starts } = this.at;
    for (let p = starts[e]!; p + 3 < starts[e + 1]!; p += 2) {
      const [x0, y0, x1, y1] = [points[p]!, points[p + 1]!, points[p + 2]!, points[p + 3]!];
      if (y < y0 || y > y1) continue;
      // A cubic with upright ends, as it is drawn.
      const t = y1 > y0 ? (y - y0) / (y1 - y0) : 0;
      return Math.abs(x - (x0 + (x1 - x0) * t * t * (3 - 2 * t)));
    }
    return Infinity;
  }

  /** Where the card of a box begins, beside its stubs. */
  cardLeft(box: number): number {
    const isOpen = this.scene.shape.kind[box] === OPEN;
    return this.at.x[box]! + (isOpen ? 0 : stubsWidth(this.scene.before.get(box)));
  }

  /** The stubs of the pill at a point of the world that is in a closed box. */
  stubsAt(box: number, x: number, y: number): readonly Stub[] {
    const { at, scene } = this;
    const before = scene.before.get(box);
    const after = scene.after.get(box);
    const left = x - at.x[box]!;
    const right = at.x[box]! + at.width[box]! - x;
    const side =
      before && left < stubsWidth(before) ? before : after && right < stubsWidth(after) ? after : null;
    if (side === null) return [];
    const all = pills(side);
    const top = at.y[box]! + (at.height[box]! - all.length * (SIZES.stub + 1)) / 2;
    return all[Math.floor((y - top) / (SIZES.stub + 1))]?.stubs ?? [];
  }

  paint(
    ctx: CanvasRenderingContext2D,
    view: View,
    width: number,
    height: number,
    palette: Palette,
    colouring: Colouring,
    marks: Marks,
  ): void {
    new Frame(this, ctx, view, width, height, palette, colouring, marks).paint();
  }

  /** Calls back with the boxes, then the edges, of an open box that meet a part of the world. */
  visit(
    level: number,
    [left, top, right, bottom]: readonly [number, number, number, number],
    onBox: (box: number) => void,
    onEdge: ((edge: number) => void) | null,
  ): void {
    const { at } = this;
    if (onEdge) {
      const edges = this.within[level]!;
      for (
        let k = Drawing.first(edges, (e) => this.top(e), top - this.longest[level]!);
        k < edges.length;
        k++
      ) {
        const e = edges[k]!;
        if (this.top(e) > bottom) break;
        if (this.end(e) < top) continue;
        const s = at.starts[e]!;
        const t = at.starts[e + 1]! - 2;
        if (t === s + 2 && Math.max(at.points[s]!, at.points[t]!) < left) continue;
        if (t === s + 2 && Math.min(at.points[s]!, at.points[t]!) > right) continue;
        onEdge(e);
      }
    }
    const boxes = this.inside[level]!;
    for (let k = Drawing.first(boxes, (i) => at.y[i]!, top - this.tallest[level]!); k < boxes.length; k++) {
      const b = boxes[k]!;
      if (at.y[b]! > bottom) break;
      if (at.y[b]! + at.height[b]! < top || at.x[b]! > right || at.x[b]! + at.width[b]! < left) continue;
      onBox(b);
    }
  }

  bucket(edge: number): number {
    return this.widthOf[edge]!;
  }
}

/** Text is drawn upright, in the pixels of the screen, so that it is sharp. */
class Frame {
  private readonly part: readonly [number, number, number, number];
  private readonly paths = new Map<string, { path: Path2D; width: number; colour: string; dim: boolean }>();
  private readonly depths: number[] = [];

  constructor(
    private readonly drawing: Drawing,
    private readonly ctx: CanvasRenderingContext2D,
    private readonly view: View,
    private readonly width: number,
    private readonly height: number,
    private readonly palette: Palette,
    private readonly colouring: Colouring,
    private readonly marks: Marks,
  ) {
    const { scale, x, y } = view;
    this.part = [-x / scale, -y / scale, (width - x) / scale, (height - y) / scale];
  }

  paint(): void {
    const { ctx, palette } = this;
    ctx.fillStyle = palette.background;
    ctx.fillRect(0, 0, this.width, this.height);
    ctx.textBaseline = "middle";
    this.inside(0, 0);
  }

  private inside(level: number, depth: number): void {
    const { scale } = this.view;
    const boxes: number[] = [];
    const showsEdges = scale > 0.05;
    this.paths.clear();
    const isSparse = scale < 0.35;
    this.drawing.visit(
      level,
      this.part,
      (b) => boxes.push(b),
      showsEdges ? (e) => this.edge(e, isSparse) : null,
    );
    this.strokeEdges();
    this.depths.push(depth);
    for (const b of boxes) this.box(b, depth);
    this.depths.pop();
  }

  private isDimmed(thing: number): boolean {
    return this.marks.focus !== null && !this.marks.focus.has(thing);
  }

  // --- edges ---

  private edge(e: number, isSparse: boolean): void {
    const { at, scene } = this.drawing;
    const { points, starts } = at;
    const { scale } = this.view;
    const [from, to] = [scene.shape.from[e]!, scene.shape.to[e]!];
    const [first, last] = [starts[e]!, starts[e + 1]! - 2];
    if (isSparse && (points[last + 1]! - points[first + 1]!) * scale < 3) return;
    const { at: current, hover, hoverEdge } = this.marks;
    const isNear = e === hoverEdge || from === current || to === current || from === hover || to === hover;
    const dim = this.isDimmed(from) || this.isDimmed(to);
    const bucket = this.drawing.bucket(e);
    const colour = isNear ? this.palette.accent : this.palette.dim;
    const key = `${bucket} ${isNear} ${dim}`;
    let made = this.paths.get(key);
    if (made === undefined) {
      const width = Math.max(
        0.5,
        WIDTHS[bucket]! * Math.min(1.2, Math.max(0.35, scale)) + (isNear ? 0.6 : 0),
      );
      made = { path: new Path2D(), width, colour, dim };
      this.paths.set(key, made);
    }
    const { path } = made;
    const X = (p: number) => points[p]! * scale + this.view.x;
    const Y = (p: number) => points[p + 1]! * scale + this.view.y;
    if (at.cut[e] === 1) {
      // Too long to follow: a stroke at each end.
      path.moveTo(X(first), Y(first));
      path.lineTo(X(first), Y(first) + 9 * scale);
      path.moveTo(X(last), Y(last) - 9 * scale);
      path.lineTo(X(last), Y(last));
      return;
    }
    path.moveTo(X(first), Y(first));
    if (isSparse) {
      for (let p = first + 2; p <= last; p += 2) path.lineTo(X(p), Y(p));
      return;
    }
    for (let p = first + 2, curve = true; p <= last; p += 2, curve = !curve) {
      if (!curve || Math.abs(points[p]! - points[p - 2]!) < 0.5) path.lineTo(X(p), Y(p));
      else {
        const middle = (Y(p) + Y(p - 2)) / 2;
        path.bezierCurveTo(X(p - 2), middle, X(p), middle, X(p), Y(p));
      }
    }
    // An arrow head where it enters a closed box.
    if (scene.shape.kind[to] === CLOSED && scale > 0.45) {
      const [x, y, size] = [X(last), Y(last), 4.5 * scale];
      path.moveTo(x - size * 0.7, y - size);
      path.lineTo(x, y - 0.5);
      path.lineTo(x + size * 0.7, y - size);
    }
  }

  private strokeEdges(): void {
    const { ctx } = this;
    ctx.lineJoin = "round";
    for (const { path, width, colour, dim } of this.paths.values()) {
      ctx.globalAlpha = dim ? 0.12 : colour === this.palette.accent ? 1 : 0.62;
      ctx.strokeStyle = colour;
      ctx.lineWidth = width;
      ctx.stroke(path);
    }
    ctx.globalAlpha = 1;
  }

  // --- boxes ---

  private box(b: number, depth: number): void {
    const { at, scene } = this.drawing;
    const { scale } = this.view;
    const kind = scene.shape.kind[b]!;
    const x = at.x[b]! * scale + this.view.x;
    const y = at.y[b]! * scale + this.view.y;
    const width = at.width[b]! * scale;
    const height = at.height[b]! * scale;
    this.ctx.globalAlpha = this.isDimmed(b) && kind !== OPEN ? 0.16 : 1;
    if (kind === IN || kind === OUT) this.port(b, x, y, width, height);
    else if (kind === OPEN) this.open(b, x, y, width, height, depth);
    else this.closed(b, x, y, width, height);
    this.ctx.globalAlpha = 1;
  }

  private port(b: number, x: number, y: number, width: number, height: number): void {
    const { ctx, palette } = this;
    const { scale } = this.view;
    if (height < 3) {
      if (scale < 0.4) return;
      ctx.fillStyle = palette.dim;
      ctx.beginPath();
      ctx.arc(x + width / 2, y, 2.2 * scale, 0, 7);
      ctx.fill();
      return;
    }
    const v = this.drawing.scene.variable[b]!;
    const { name, label } = this.drawing.tree.model.variable(v);
    this.pill(label || name, x, y, width, height, palette.accent, false);
  }

  private pill(
    text: string,
    x: number,
    y: number,
    width: number,
    height: number,
    colour: string,
    isFull: boolean,
  ): void {
    const { ctx, palette } = this;
    const { scale } = this.view;
    ctx.beginPath();
    rounded(ctx, x, y, width, height, height / 2);
    ctx.fillStyle = isFull ? colour : palette.background;
    ctx.fill();
    ctx.strokeStyle = colour;
    ctx.lineWidth = Math.max(0.5, scale);
    ctx.stroke();
    if (10 * scale < LEAST_TEXT) return;
    ctx.font = `${10 * scale}px ${palette.mono}`;
    ctx.textAlign = "center";
    ctx.fillStyle = isFull ? palette.background : palette.text;
    ctx.fillText(shortened(text, 16), x + width / 2, y + height / 2 + 0.5);
  }

  private open(b: number, x: number, y: number, width: number, height: number, depth: number): void {
    const { ctx, palette, drawing } = this;
    const { scale } = this.view;
    const node = drawing.scene.node[b]!;
    ctx.beginPath();
    rounded(ctx, x, y, width, height, 6 * scale);
    ctx.fillStyle = depth % 2 === 0 ? palette.head : palette.background;
    ctx.fill();
    ctx.strokeStyle = palette.line;
    ctx.lineWidth = 1;
    ctx.stroke();
    if (Math.min(width, height) < LEAST_INSIDE) return;
    this.outline(b, x, y, width, height, 6 * scale);
    const header = HEADER * scale;
    if (13 * scale >= LEAST_TEXT) {
      const [title, line] = labels(drawing.tree, node);
      ctx.textAlign = "left";
      ctx.fillStyle = palette.text;
      ctx.font = `600 ${11.5 * scale}px ${palette.mono}`;
      const text = `▾ ${shortened(title)}`;
      ctx.fillText(text, x + 8 * scale, y + header / 2);
      const used = text.length * SIZES.letter * scale;
      const room = width - used - 20 * scale;
      if (line.length * SIZES.small * scale < room) {
        ctx.font = `${10 * scale}px ${palette.mono}`;
        ctx.fillStyle = palette.dim;
        ctx.fillText(line, x + used + 14 * scale, y + header / 2);
      }
    }
    this.inside(b, depth + 1);
  }

  private closed(b: number, x: number, y: number, width: number, height: number): void {
    const { ctx, palette, drawing, colouring, marks } = this;
    const { scene, tree } = drawing;
    const { scale } = this.view;
    const node = scene.node[b]!;
    const row = tree.row[node]!;
    const share = colouring.share(b);
    const lit = marks.lit.get(b) ?? "";
    const role = row >= 0 ? colouring.role(row) : "primal";
    const roleColour = palette.roles[role] ?? palette.dim;
    const fill = lit ? palette[LIT[lit]] : share === null ? palette.background : viridis(share);
    if (height < 3) {
      ctx.fillStyle = share === null && !lit ? roleColour : fill;
      ctx.fillRect(x, y, Math.max(1, width), Math.max(0.8, height));
      return;
    }
    const before = scene.before.get(b);
    const after = scene.after.get(b);
    const left = stubsWidth(before) * scale;
    const right = stubsWidth(after) * scale;
    if (before) this.stubs(before, x, y, left - SIZES.gap * scale, height);
    if (after) this.stubs(after, x + width - right + SIZES.gap * scale, y, right - SIZES.gap * scale, height);
    const [cx, cw] = [x + left, width - left - right];
    const radius = 5 * scale;
    const canOpen = tree.canOpen(node);
    if (tree.kind[node] === REPEAT && height > 8)
      for (const by of [5, 2.5]) {
        ctx.beginPath();
        rounded(ctx, cx + by * scale, y + by * scale, cw, height, radius);
        ctx.fillStyle = palette.background;
        ctx.fill();
        ctx.strokeStyle = palette.line;
        ctx.stroke();
      }
    ctx.beginPath();
    rounded(ctx, cx, y, cw, height, radius);
    ctx.fillStyle = fill;
    ctx.fill();
    ctx.lineWidth = 1;
    ctx.strokeStyle = canOpen ? palette.dim : palette.line;
    ctx.stroke();
    // A stripe in the colour of the role, and its letter: not by colour alone.
    if (row >= 0 && share === null) {
      ctx.fillStyle = roleColour;
      ctx.beginPath();
      rounded(ctx, cx, y, 4 * scale, height, Math.min(radius, 2 * scale));
      ctx.fill();
    }
    this.outline(b, cx, y, cw, height, radius);
    if (12 * scale < LEAST_TEXT) return;
    const ink = lit || share === null ? palette.text : inkOn(share);
    const faint = !lit && share === null ? palette.dim : ink;
    const [title, line] = labels(tree, node);
    ctx.textAlign = "left";
    ctx.fillStyle = ink;
    ctx.font = `600 ${12 * scale}px ${palette.mono}`;
    ctx.fillText((canOpen ? "▸ " : "") + shortened(title), cx + 10 * scale, y + 11.5 * scale);
    ctx.font = `${10 * scale}px ${palette.mono}`;
    ctx.fillStyle = faint;
    ctx.fillText(shortened(line), cx + 10 * scale, y + 24.5 * scale);
    this.corner(b, node, role, lit, cx + cw - 6 * scale, y, ink, roleColour, share === null);
  }

  /** What stands in the upper right corner: how it is lit, how many copies, the letter of its role. */
  private corner(
    b: number,
    node: number,
    role: string,
    lit: Lit,
    right: number,
    y: number,
    ink: string,
    roleColour: string,
    byRole: boolean,
  ): void {
    const { ctx, palette, drawing, marks } = this;
    const { scale } = this.view;
    const { tree } = drawing;
    const arrow = lit === "is-ancestor" ? "↑" : lit === "is-descendant" ? "↓" : "";
    const count = tree.kind[node] === REPEAT ? `×${tree.children[node]!.length}` : "";
    const letter = tree.row[node]! >= 0 ? (LETTERS[role] ?? "") : "";
    ctx.textAlign = "right";
    ctx.font = `700 ${10.5 * scale}px ${palette.mono}`;
    const own = role === "zero" || role === "dummy" ? palette.dim : roleColour;
    ctx.fillStyle = !byRole || lit ? ink : count ? palette.accent : own;
    ctx.fillText(count || arrow || letter, right, y + 11.5 * scale);
    const hits = marks.hits.get(b) ?? 0;
    if (hits > 1 && tree.canOpen(node)) {
      ctx.fillStyle = lit || byRole ? palette.hit : ink;
      ctx.fillText(`${hits} hits`, right, y + 24.5 * scale);
    }
  }

  private outline(b: number, x: number, y: number, width: number, height: number, radius: number): void {
    const { ctx, palette, marks } = this;
    const stroke = (colour: string, line: number, out: number) => {
      ctx.beginPath();
      rounded(ctx, x - out, y - out, width + 2 * out, height + 2 * out, radius + out);
      ctx.strokeStyle = colour;
      ctx.lineWidth = line;
      ctx.stroke();
    };
    if (marks.hits.has(b)) {
      ctx.setLineDash([4, 2]);
      stroke(palette.hit, 2, 2);
      ctx.setLineDash([]);
    }
    if (b === marks.at) stroke(palette.text, 2, 0.5);
    else if (b === marks.hover) stroke(palette.accent, 1.5, 0);
  }

  private stubs(stubs: readonly Stub[], x: number, y: number, width: number, height: number): void {
    const { palette } = this;
    const { scale } = this.view;
    const each = (SIZES.stub + 1) * scale;
    if (each < 4) return;
    const all = pills(stubs);
    const top = y + (height - all.length * each) / 2;
    all.forEach(({ text, stubs: [stub] }, k) => {
      const colour =
        stub?.kind === "residual"
          ? palette.roles["residual"]!
          : stub?.kind === "result"
            ? palette.accent
            : palette.dim;
      this.pill(text, x, top + k * each, width, each - scale, colour, false);
    });
  }
}

const LIT = {
  "is-selected": "selected",
  "is-ancestor": "ancestor",
  "is-descendant": "descendant",
  "is-related": "related",
} as const;

function rounded(
  ctx: CanvasRenderingContext2D,
  x: number,
  y: number,
  width: number,
  height: number,
  radius: number,
): void {
  const r = Math.max(0, Math.min(radius, width / 2, height / 2));
  if (r < 1.2) ctx.rect(x, y, width, height);
  else ctx.roundRect(x, y, width, height, r);
}

/** What a box is, in words, for those who hear the tree. */
export function kindOf(tree: Tree, node: number): string {
  if (tree.row[node]! >= 0) return tree.canOpen(node) ? "equation that holds a program" : "equation";
  return { [REPEAT]: "repeated layers", [COPY]: "layer", [STAGE]: "program" }[tree.kind[node]!] ?? "group";
}
