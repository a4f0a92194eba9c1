/** Draws a scene on a canvas: only what is visible and large enough to see. */

import { ROLE_LETTERS } from "../../model/roles";
import type { Lit } from "../../state/lit";
import { REPEAT } from "../layout/hierarchy";
import { labels } from "../layout/scene";
import { HEADER, IN, OPEN, OUT } from "../layout/shape";
import { pills, rowHeight, SIZES, type Stub, shortened } from "../layout/stubs";
import type { Drawing, Part } from "./drawing";
import { Edges } from "./edges";
import { NAME, type Name, placed, write } from "./names";
import { inkOn, type Palette, viridis } from "./palette";
import type { View } from "./view";

/** What is highlighted in the drawing. */
export interface Marks {
  lit: ReadonlyMap<number, Lit>;
  /** Boxes with search results, and how many each has. */
  hits: ReadonlyMap<number, number>;
  /** Boxes that involve communication between devices. */
  exchanges: ReadonlySet<number>;
  /** The focused box and the hovered one, or -1. */
  at: number;
  hover: number;
  hoverEdge: number;
  /** Boxes, ports and edges that are not dimmed; null if none are dimmed. */
  focus: ReadonlySet<number> | null;
}

export const NO_MARKS: Marks = {
  lit: new Map(),
  hits: new Map(),
  exchanges: new Set(),
  at: -1,
  hover: -1,
  hoverEdge: -1,
  focus: null,
};

/** How boxes are coloured: by role, or by a quantity relative to its maximum. */
export interface Colouring {
  role(row: number): string;
  /** Between 0 and 1, or null if boxes are coloured by role. */
  share(box: number): number | null;
  /** The hue of a variable that is a reference, or of one that an edge leads, or -1; and those of the references in a node. */
  hue(variable: number): number;
  hueOfEdge(edge: number): number;
  hues(node: number): readonly number[];
}

/** What is smaller than this on the screen is not drawn, in pixels: the inside of an open box, text, a pill. */
const LEAST_INSIDE = 26;
const LEAST_TEXT = 5.4;
/** The height of the hues of references, at full size. */
const BAND = 3;
/** A closed box inside another is named if it is at least this high. */
const LEAST_NAMED = 8;
const LEAST_PILL = 4;
/** Below this scale no edges are drawn. */
const LEAST_EDGES = 0.05;

/** Paints the visible part of a drawing on a canvas of the given size. */
export function paint(
  drawing: Drawing,
  ctx: CanvasRenderingContext2D,
  view: View,
  [width, height]: readonly [number, number],
  palette: Palette,
  colouring: Colouring,
  marks: Marks,
): void {
  ctx.fillStyle = palette.background;
  ctx.fillRect(0, 0, width, height);
  ctx.textBaseline = "middle";
  new Frame(drawing, ctx, view, [width, height], palette, colouring, marks).paint();
}

/** Text is drawn in untransformed screen pixels, so that it is sharp. */
class Frame {
  private readonly boxes: number[] = [];
  /** The depth of each of these boxes. */
  private readonly depths: number[] = [];
  private readonly edges: Edges;
  /** The visible part of the world. */
  private readonly part: Part;
  private font = "";
  /** Whether boxes are too small for their own text, and the names that are drawn instead. */
  private readonly isSmall: boolean;
  private readonly names: Name[] = [];

  constructor(
    private readonly drawing: Drawing,
    private readonly ctx: CanvasRenderingContext2D,
    private readonly view: View,
    private readonly size: readonly [number, number],
    private readonly palette: Palette,
    private readonly colouring: Colouring,
    private readonly marks: Marks,
  ) {
    const { scale, x, y } = view;
    const [width, height] = size;
    this.isSmall = 12 * scale < NAME;
    this.part = [-x / scale, -y / scale, (width - x) / scale, (height - y) / scale];
    const { from, to } = drawing.scene.shape;
    const { at, hover, hoverEdge } = marks;
    const isMarked = (i: number) => i >= 0 && (i === at || i === hover);
    this.edges = new Edges(drawing, view, [width, height], {
      isNear: (e) => e === hoverEdge || isMarked(from[e]!) || isMarked(to[e]!),
      isDim: (e) => this.isDimmed(from[e]!) || this.isDimmed(to[e]!),
      hue: (e) => colouring.hueOfEdge(e),
    });
  }

  /** Paints the frames of open boxes, then edges, which may cross them, then closed boxes. */
  paint(): void {
    this.frames(0, 0);
    this.edges.stroke(this.ctx, this.palette);
    for (const [k, b] of this.boxes.entries()) this.box(b, this.depths[k]!);
    write(this.ctx, placed(this.names, ...this.size), this.palette);
  }

  private frames(level: number, depth: number): void {
    const { drawing, part, view } = this;
    const { kind } = drawing.scene.shape;
    if (view.scale > LEAST_EDGES) drawing.visitEdges(level, part, (e) => this.edges.add(e));
    drawing.visitBoxes(level, part, (b) => {
      this.boxes.push(b);
      this.depths.push(depth);
      if (kind[b] === OPEN) this.frame(b, depth);
    });
  }

  private frame(b: number, depth: number): void {
    const { ctx, palette } = this;
    const [x, y, width, height] = this.place(b);
    ctx.beginPath();
    rounded(ctx, x, y, width, height, 6 * this.view.scale);
    ctx.fillStyle = this.ground(depth);
    ctx.fill();
    ctx.strokeStyle = palette.line;
    ctx.lineWidth = 1;
    ctx.stroke();
    if (height >= LEAST_INSIDE) this.frames(b, depth + 1);
  }

  private ground(depth: number): string {
    return depth % 2 === 0 ? this.palette.head : this.palette.background;
  }

  /** The rectangle of a box on the screen. */
  private place(b: number): [number, number, number, number] {
    const { at } = this.drawing;
    const { scale, x, y } = this.view;
    return [at.x[b]! * scale + x, at.y[b]! * scale + y, at.width[b]! * scale, at.height[b]! * scale];
  }

  private isDimmed(thing: number): boolean {
    return this.marks.focus !== null && !this.marks.focus.has(thing);
  }

  private box(b: number, depth: number): void {
    const kind = this.drawing.scene.shape.kind[b]!;
    const [x, y, width, height] = this.place(b);
    this.ctx.globalAlpha = this.isDimmed(b) && kind !== OPEN ? 0.16 : 1;
    if (kind === IN || kind === OUT) this.port(b, x, y, width, height);
    else if (kind === OPEN) this.header(b, depth, x, y, width, height);
    else this.closed(b, depth, x, y, width, height);
    this.ctx.globalAlpha = 1;
  }

  /** Sets the font only if it changes, as that is slow on a canvas. */
  private write(weight: string, size: number): void {
    const font = `${weight}${(size * this.view.scale).toFixed(2)}px ${this.palette.mono}`;
    if (font === this.font) return;
    this.font = font;
    this.ctx.font = font;
  }

  private port(b: number, x: number, y: number, width: number, height: number): void {
    const { ctx, palette } = this;
    const { scale } = this.view;
    if (height < 3) {
      if (scale < 0.4) return;
      ctx.fillStyle = this.hueOf(this.drawing.scene.variable[b]!) ?? palette.dim;
      ctx.beginPath();
      ctx.arc(x + width / 2, y, 2.2 * scale, 0, 7);
      ctx.fill();
      return;
    }
    const v = this.drawing.scene.variable[b]!;
    const { name, label } = this.drawing.tree.model.variable(v);
    this.pill(label || name, x, y, width, height, this.hueOf(v) ?? palette.accent);
  }

  private hueOf(variable: number): string | undefined {
    return this.palette.hues[this.colouring.hue(variable)];
  }

  private pill(text: string, x: number, y: number, width: number, height: number, colour: string): void {
    const { ctx, palette } = this;
    const { scale } = this.view;
    ctx.beginPath();
    rounded(ctx, x, y, width, height, height / 2);
    ctx.fillStyle = palette.background;
    ctx.fill();
    ctx.strokeStyle = colour;
    ctx.lineWidth = Math.max(0.5, scale);
    ctx.stroke();
    if (10 * scale < LEAST_TEXT) return;
    this.write("", 10);
    ctx.textAlign = "center";
    ctx.fillStyle = palette.text;
    ctx.fillText(shortened(text, 16), x + width / 2, y + height / 2 + 0.5);
  }

  /** The header of an open box. */
  private header(b: number, depth: number, x: number, y: number, width: number, height: number): void {
    const { ctx, palette, drawing } = this;
    const { scale } = this.view;
    this.outline(b, x, y, width, height, 6 * scale);
    if (height >= LEAST_INSIDE) this.rows(b);
    if (this.isSmall) {
      const text = `▾ ${drawing.tree.name(drawing.scene.node[b]!)}`;
      this.name(b, depth, { text, x, y, width, height, isOpen: true, ink: palette.text });
      return;
    }
    const [title, line] = labels(drawing.tree, drawing.scene.node[b]!);
    const middle = y + (HEADER * scale) / 2;
    const text = `▾ ${shortened(title)}`;
    const used = text.length * SIZES.letter * scale;
    const end = Math.min(x + width, ...drawing.rows(b).map((r) => r.x * scale + this.view.x));
    const more = line.length * SIZES.small * scale;
    const hasRoom = more < end - x - used - 20 * scale;
    if (drawing.at.curved) {
      // Edges that cross the frame pass behind the header.
      ctx.fillStyle = this.ground(depth);
      const covered = used + (hasRoom ? more + 10 * scale : 0);
      ctx.fillRect(x + 5 * scale, y + 4 * scale, covered, (HEADER - 8) * scale);
    }
    ctx.textAlign = "left";
    ctx.fillStyle = palette.text;
    this.write("600 ", 11.5);
    ctx.fillText(text, x + 8 * scale, middle);
    if (!hasRoom) return;
    this.write("", 10);
    ctx.fillStyle = palette.dim;
    ctx.fillText(line, x + used + 14 * scale, middle);
  }

  private closed(b: number, depth: number, x: number, y: number, width: number, height: number): void {
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
    const ink = lit || share === null ? palette.text : inkOn(share);
    const [left, wide] = drawing.card(b);
    if (this.isSmall && (depth === 0 || height >= LEAST_NAMED)) {
      const more = tree.kind[node] === REPEAT ? ` ×${tree.children[node]!.length}` : "";
      const text = (tree.canOpen(node) ? "▸ " : "") + tree.name(node) + more;
      const place = { x: left * scale + this.view.x, y, width: wide * scale, height };
      this.name(b, depth, { text, ...place, isOpen: false, ink });
    }
    if (height < 3) {
      ctx.fillStyle = share === null && !lit ? roleColour : fill;
      ctx.fillRect(x, y, Math.max(1, width), Math.max(0.8, height));
      return;
    }
    const [cx, cw] = [left * scale + this.view.x, wide * scale];
    const gap = SIZES.gap * scale;
    const [before, after] = [scene.before.get(b), scene.after.get(b)];
    if (before) this.stubs(before, x, y, cx - x - gap, height);
    if (after) this.stubs(after, cx + cw + gap, y, x + width - cx - cw - gap, height);
    const radius = 5 * scale;
    const canOpen = tree.canOpen(node);
    ctx.lineWidth = 1;
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
    ctx.strokeStyle = canOpen ? palette.dim : palette.line;
    ctx.stroke();
    // A stripe in the colour of the role, and its letter: colour alone is not enough.
    if (row >= 0 && share === null) {
      ctx.fillStyle = roleColour;
      ctx.beginPath();
      rounded(ctx, cx, y, 4 * scale, height, Math.min(radius, 2 * scale));
      ctx.fill();
    }
    this.band(node, cx + radius, y + height, cw - 2 * radius);
    this.outline(b, cx, y, cw, height, radius);
    this.rows(b);
    if (this.isSmall) return;
    const top = y + rowHeight(scene.taken.get(b)) * scale;
    const [title, line] = labels(tree, node);
    ctx.textAlign = "left";
    ctx.fillStyle = ink;
    this.write("600 ", 12);
    ctx.fillText((canOpen ? "▸ " : "") + shortened(title), cx + 10 * scale, top + 11.5 * scale);
    this.write("", 10);
    ctx.fillStyle = !lit && share === null ? palette.dim : ink;
    ctx.fillText(shortened(line), cx + 10 * scale, top + 24.5 * scale);
    this.corner(b, node, role, lit, cx + cw - 6 * scale, top, ink, share === null);
  }

  /** On the lower edge, the hues of the references that a box makes, reads or writes. */
  private band(node: number, x: number, bottom: number, width: number): void {
    const { ctx, palette } = this;
    const hues = this.colouring.hues(node);
    const height = Math.max(1, BAND * this.view.scale);
    hues.forEach((hue, i) => {
      ctx.fillStyle = palette.hues[hue]!;
      ctx.fillRect(x + (width * i) / hues.length, bottom - height, width / hues.length, height);
    });
  }

  /** The upper right corner: the highlight, the number of copies, the letter of the role. */
  private corner(
    b: number,
    node: number,
    role: string,
    lit: Lit,
    right: number,
    y: number,
    ink: string,
    byRole: boolean,
  ): void {
    const { ctx, palette, drawing, marks } = this;
    const { scale } = this.view;
    const { tree } = drawing;
    const arrow = lit === "is-ancestor" ? "↑" : lit === "is-descendant" ? "↓" : "";
    const count = tree.kind[node] === REPEAT ? `×${tree.children[node]!.length}` : "";
    const letter = tree.row[node]! >= 0 ? (ROLE_LETTERS[role] ?? "") : "";
    const hits = marks.hits.get(b) ?? 0;
    const text = count || arrow || letter;
    const exchanges = marks.exchanges.has(b);
    if (text === "" && hits < 2 && !exchanges) return;
    ctx.textAlign = "right";
    this.write("700 ", 10.5);
    const own = role === "zero" || role === "dummy" ? palette.dim : (palette.roles[role] ?? palette.dim);
    ctx.fillStyle = !byRole || lit ? ink : count ? palette.accent : own;
    ctx.fillText(text, right, y + 11.5 * scale);
    if (hits > 1 && tree.canOpen(node)) {
      ctx.fillStyle = lit || byRole ? palette.hit : ink;
      ctx.fillText(`${hits} hits`, right, y + 24.5 * scale);
    } else if (exchanges) {
      ctx.fillStyle = lit || !byRole ? ink : palette.axis;
      ctx.fillText("⇄", right, y + 24.5 * scale);
    }
  }

  /** Requests the name of a box, unless the box is dimmed. */
  private name(b: number, depth: number, name: Omit<Name, "depth">): void {
    if (!this.isDimmed(b)) this.names.push({ ...name, depth });
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

  /** The ports for the residuals that a box takes and saves. */
  private rows(b: number): void {
    const { ctx, palette, drawing } = this;
    const { scale, x, y } = this.view;
    const colour = palette.roles["residual"]!;
    const height = (SIZES.row - 3) * scale;
    for (const { row, x: left, y: top } of drawing.rows(b)) {
      if (height < LEAST_PILL) {
        ctx.fillStyle = colour;
        ctx.fillRect(left * scale + x, (top + 6) * scale + y, row.width * scale, Math.max(0.8, 5 * scale));
        continue;
      }
      for (const port of row.ports)
        this.pill(
          port.text,
          (left + port.x) * scale + x,
          (top + 1.5) * scale + y,
          port.width * scale,
          height,
          colour,
        );
    }
  }

  private stubs(stubs: readonly Stub[], x: number, y: number, width: number, height: number): void {
    const { palette } = this;
    const { scale } = this.view;
    const each = (SIZES.stub + 1) * scale;
    if (each < LEAST_PILL) return;
    const all = pills(stubs);
    const top = y + (height - all.length * each) / 2;
    all.forEach(({ text, stubs: [stub] }, k) => {
      const own = stub === undefined ? undefined : this.hueOf(stub.variable);
      const colour = own ?? (stub?.kind === "result" ? palette.accent : palette.dim);
      this.pill(text, x, top + k * each, width, each - scale, colour);
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
