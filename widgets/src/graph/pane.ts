/** The graph pane: stages as nested boxes, laid out level by level and drawn on a canvas. */

import { atOnce, inSlices } from "../base/slices";
import type { Side, State } from "../state/state";
import { h, onResize, onTheme } from "../ui/dom";
import { aboutStages, headButtons, markSide } from "../ui/head";
import type { Effects } from "../ui/pane";
import { type Between, betweenOf } from "./between";
import { Camera } from "./camera";
import { Colours } from "./colours";
import { Drawing } from "./draw/drawing";
import { MiniMap } from "./draw/minimap";
import { type Marks, NO_MARKS, paint } from "./draw/painter";
import { type Palette, readPalette } from "./draw/palette";
import type { View } from "./draw/view";
import { actOnKey, neighbour } from "./keys";
import { type Graphviz, type Layouter, NO_GRAPHVIZ, place } from "./layout/client";
import { openAtFirst, STAGE, type Tree } from "./layout/hierarchy";
import { type Scene, setting } from "./layout/scene";
import { OPEN } from "./layout/shape";
import { Ways } from "./layout/walk";
import { boxOfRow, inFocus, litBoxes, nearestLit } from "./light";
import { Outline } from "./outline";
import { Pointer } from "./pointer";
import { Search } from "./search";
import { type Focus, Tools } from "./tools";

/** Graphviz, from its module's source. */
function graphvizOf(source: string): Graphviz {
  const dot = async () => {
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    return (await import(/* @vite-ignore */ url)).loadDot();
  };
  return { source, dot };
}

/** Up to this many boxes, open or not, the scene is computed synchronously. */
const AT_ONCE = 1000;
/** Above this many visible boxes, a message says that the layout takes a while. */
const SLOW = 3000;

/** Boxes with more equations than this are not selected as a whole. */
const MANY_ROWS = 2000;

export class GraphPane {
  readonly element: HTMLElement;
  readonly camera = new Camera(() => this.request());
  readonly colours: Colours;
  drawing: Drawing | null = null;
  private readonly open: Set<number>;
  private ways: Ways | null = null;
  private marks: Marks = NO_MARKS;
  /** The node that keyboard commands apply to, or -1. */
  private current = -1;
  private focusing: Focus = "";
  private palette: Palette | null = null;
  private frame = 0;
  private asked = 0;
  private isMine = false;
  private by: Layouter = "auto";
  private readonly tools: Tools;
  private readonly outline: Outline;
  private readonly found: Search;
  private readonly map = new MiniMap();
  readonly canvas = h("canvas.jv-graph-canvas", { "aria-hidden": "true" });
  private readonly wait = h("p.jv-graph-wait.jv-dim", { role: "status" });
  private readonly pointer: Pointer;
  private readonly between: Between;
  private readonly body: HTMLElement;
  private readonly stops: (() => void)[] = [];

  constructor(
    private readonly state: State,
    /** The tree of the stages shown. */
    readonly tree: Tree,
    private readonly side: Side,
    root: HTMLElement,
    private readonly loadDot: () => Promise<string> = () => Promise.reject(new Error("no Graphviz")),
  ) {
    const { model } = state;
    this.open = openAtFirst(this.tree);
    this.colours = new Colours(this.tree, () => this.request());
    this.tools = new Tools({
      zoom: (factor) => this.camera.zoom(factor),
      fit: () => this.fit(),
      zoomToSelection: () => this.zoomToSelection(),
      focus: () => this.nextFocus(),
      find: (text) => this.find(text),
      nextHit: (by) => this.nextHit(by),
      leave: () => this.focus(),
      layOutBy: (by) => this.layOutBy(by),
      colours: this.colours,
    });
    this.found = new Search(model, this.tree.stages, state.meaning, (text, error) =>
      this.tools.found(text, error),
    );
    this.outline = new Outline(this.tree, (event) => {
      if (actOnKey(event, this)) event.preventDefault();
    });
    this.body = h(
      "div.jv-graph-body.jv-space",
      { "data-testid": `graph-canvas-${side}` },
      this.outline.element,
      this.canvas,
      this.wait,
      h("div.jv-graph-map", { "aria-hidden": "true" }, this.map.canvas),
    );
    const { key, label, title, total, errors } = aboutStages(state, tree.stages);
    this.element = h(
      "section.jv-pane.jv-column.jv-code.jv-graph",
      {
        "aria-label": `graph of ${label}`,
        "data-testid": `graph-${side}`,
        "data-stage": key,
        onfocusin: () => state.use(side),
      },
      h(
        "div.jv-pane-head.jv-ruled.jv-fixed.jv-baseline",
        { title },
        h("strong", label),
        h("span.jv-dim.jv-cut", total),
        ...headButtons(state, side),
      ),
      this.tools.element,
      ...errors,
      this.body,
      this.colours.legend,
    );
    this.pointer = new Pointer(this, this.canvas, this.map, root);
    this.between = betweenOf(state);
    this.between.add(side, this);
    this.listen();
    this.layOut(() => this.showFirst());
  }

  readonly effects: Effects = [
    () => markSide(this.element, this.state, this.side),
    [() => this.state.selection, () => this.onSelection()],
    [() => this.state.exchanges, () => this.light()],
    [() => [this.state.coloured, this.state.isWhole], () => this.colours.showHues(this.state.coloured)],
    [() => this.state.meaning.last, () => this.found.hear() && this.find(this.found.text)],
  ];

  destroy(): void {
    this.between.remove(this.side, this);
    for (const stop of this.stops) stop();
    cancelAnimationFrame(this.frame);
    this.asked = -1;
    this.pointer.destroy();
    this.camera.destroy();
  }

  focus(): void {
    this.outline.element.focus({ preventScroll: true });
  }

  /** Selects the next or previous equation in program order. */
  step(by: 1 | -1): boolean {
    this.move(by === 1 ? "ArrowDown" : "ArrowUp");
    return true;
  }

  // --- layout ---

  /** Computes what is visible and its layout; calls `then` when that is drawn. */
  private layOut(then: () => void): void {
    this.asked += 1;
    const request = this.asked;
    const isWanted = () => request === this.asked;
    const { tree } = this;
    const open = new Set(this.open);
    const scene = setting(tree, (node) => open.has(node));
    let visible = 0;
    for (const node of [...tree.roots, ...open]) visible += tree.children[node]!.length;
    this.wait.textContent = visible > SLOW ? "Laying out…" : "";
    if (tree.size <= AT_ONCE) this.placeIn(atOnce(scene), isWanted, then);
    else void inSlices(scene, isWanted).then((made) => this.placeIn(made, isWanted, then));
  }

  /** Lays out a scene. */
  private placeIn(scene: Scene, isWanted: () => boolean, then: () => void): void {
    place(
      scene.shape,
      this.by,
      () => this.loadDot().then(graphvizOf),
      (positions, isAgain) => {
        if (!isWanted()) return;
        this.element.dataset["layout"] = positions.curved ? "graphviz" : "layered";
        this.wait.textContent = this.by === "graphviz" && !positions.curved ? NO_GRAPHVIZ : "";
        const before = isAgain ? this.corner(this.current) : null;
        this.drawing = new Drawing(this.tree, scene, positions);
        this.ways = new Ways(scene);
        this.colours.show(scene);
        this.marks = { ...this.marks, hover: -1, hoverEdge: -1 };
        this.light();
        this.markHits();
        this.drawMap();
        if (!isAgain) then();
        else if (this.camera.isMoved) this.holdOn(this.current, before);
        else this.showFirst();
        this.request();
      },
    );
  }

  private layOutBy(by: Layouter): void {
    this.by = by;
    this.layOut(() => this.showFirst());
  }

  get view(): View {
    return this.camera.view;
  }

  /** What devices exchange, by equation. */
  get exchanges(): ReadonlyMap<number, readonly string[]> {
    return this.state.exchanges;
  }

  private get scene(): Scene | null {
    return this.drawing?.scene ?? null;
  }

  private box(node: number): number {
    return node < 0 ? -1 : (this.scene?.boxOf[node] ?? -1);
  }

  /** Opens or closes a box, keeping its place on the screen. */
  toggle(node = this.current): void {
    if (node < 0 || !this.tree.canOpen(node) || this.tree.kind[node] === STAGE) return;
    if (this.open.has(node)) this.open.delete(node);
    else this.open.add(node);
    this.keeping(node, () => this.announce(node));
  }

  /** Opens or closes a box with everything in it; the whole graph if there is no current box. */
  openAll(isOpen: boolean): void {
    const { tree, current } = this;
    const todo = current >= 0 ? [current] : [...tree.roots];
    for (let node = todo.pop(); node !== undefined; node = todo.pop()) {
      if (tree.kind[node] !== STAGE && tree.canOpen(node)) {
        if (isOpen) this.open.add(node);
        else this.open.delete(node);
      }
      todo.push(...tree.children[node]!);
    }
    if (current >= 0) this.keeping(current, () => this.announce(current));
    else this.layOut(() => this.fit());
  }

  /** Lays out again, keeping the place of a node on the screen. */
  private keeping(node: number, then: () => void): void {
    const before = this.corner(node);
    this.layOut(() => {
      this.holdOn(node, before);
      then();
    });
  }

  /** Moves the viewport such that a node is where it was. */
  private holdOn(node: number, before: [number, number] | null): void {
    const after = this.corner(node);
    if (before && after) this.camera.pan(before[0] - after[0], before[1] - after[1]);
  }

  private corner(node: number): [number, number] | null {
    const box = this.box(node);
    if (box < 0 || !this.drawing) return null;
    const { at, scene } = this.drawing;
    // For an open box, keep the middle of its upper edge.
    const x =
      at.x[box]! + at.width[box]! / 2 + (scene.shape.kind[box] === OPEN ? 0 : scene.shape.anchor[box]!);
    const { view } = this.camera;
    return [x * view.scale + view.x, at.y[box]! * view.scale + view.y];
  }

  /** Opens the boxes around a node, to make it visible. */
  private uncover(node: number, then: () => void): void {
    const { tree, open } = this;
    const closed = [...tree.around(node)].filter((n) => tree.kind[n] !== STAGE && !open.has(n));
    if (closed.length === 0) {
      then();
      return;
    }
    for (const n of closed) open.add(n);
    this.keeping(closed.at(-1)!, then);
  }

  // --- drawing ---

  private resize(size: [number, number, number]): void {
    const isFirst = !this.camera.isSized;
    this.camera.resize(size);
    const [width, height, pixels] = size;
    this.canvas.width = Math.round(width * pixels);
    this.canvas.height = Math.round(height * pixels);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    if (isFirst) this.drawMap();
    // Refit a view that was never moved or that shows everything; otherwise keep the centre.
    if (this.drawing && this.camera.isFitted) this.camera.fitNow(this.drawing.width, this.drawing.height);
    else if (isFirst || !this.camera.isMoved) this.showFirst();
    this.request();
  }

  private showFirst(): void {
    if (!this.drawing || !this.camera.isSized) return;
    this.camera.open(this.drawing.width, this.drawing.height, this.drawing.largest());
    if (this.state.selection.rows.size > 0) this.onSelection();
  }

  private request(): void {
    if (this.frame !== 0 || this.asked < 0) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  get colouring(): Palette {
    this.palette ??= readPalette(this.element);
    return this.palette;
  }

  private draw(): void {
    const ctx = this.canvas.getContext("2d");
    const { view, part } = this.camera;
    const [width, height, pixels] = this.camera.size;
    if (ctx === null || !this.drawing || width === 0) return;
    ctx.setTransform(pixels, 0, 0, pixels, 0, 0);
    paint(this.drawing, ctx, view, [width, height], this.colouring, this.colours, this.marks);
    const isAll =
      part.x <= 0 &&
      part.y <= 0 &&
      part.x + part.width >= this.drawing.width &&
      part.y + part.height >= this.drawing.height;
    this.map.canvas.parentElement!.hidden = isAll;
    if (!isAll) this.map.show(part, this.colouring, pixels);
    this.between.draw();
  }

  private drawMap(): void {
    if (this.drawing && this.camera.isSized) this.map.draw(this.drawing, this.colouring, this.camera.size[2]);
  }

  // --- viewport ---

  zoom(factor: number): void {
    this.camera.zoom(factor);
  }

  fit(): void {
    if (this.drawing) this.camera.fit(this.drawing.width, this.drawing.height);
  }

  zoomToSelection(): void {
    const lit = [...this.marks.lit].filter(([, how]) => how === "is-selected").map(([box]) => box);
    const boxes = lit.length > 0 ? lit : this.marks.at >= 0 ? [this.marks.at] : [];
    if (this.drawing && boxes.length > 0) this.camera.zoomTo(this.drawing.at, boxes);
  }

  private reveal(box: number, isCentred = false): void {
    if (this.drawing) this.camera.reveal(this.drawing.at, box, isCentred);
  }

  // --- selection ---

  select(node: number): void {
    const { tree, state } = this;
    this.current = node;
    const row = tree.row[node]!;
    this.isMine = true;
    if (row >= 0) state.selectRow(row);
    else if (tree.count[node]! <= MANY_ROWS) state.selectRows(tree.rows(node, true));
    else this.light();
    this.isMine = false;
    this.announce(node);
  }

  private announce(node: number): void {
    this.current = node;
    this.marks = { ...this.marks, at: this.box(node) };
    this.outline.show(node, (n) => this.open.has(n));
    this.refocus();
    this.request();
  }

  private onSelection(): void {
    const { state, tree } = this;
    if (this.isMine) {
      this.light();
      return;
    }
    const node = state.row >= 0 ? tree.ofRow[state.row]! : -1;
    if (node >= 0)
      this.uncover(node, () => {
        this.current = node;
        this.light();
        this.announce(node);
        this.reveal(this.box(node), state.selection.residual >= 0);
      });
    else {
      this.current = -1;
      this.light();
      this.marks = { ...this.marks, at: -1 };
      this.refocus();
      this.revealLit();
    }
  }

  /** Highlights the boxes that contain the selection and its relatives. */
  private light(): void {
    if (!this.scene) return;
    const isOpen = (node: number) => this.open.has(node);
    const lit = litBoxes(this.tree, this.scene, this.state.selection, this.current, isOpen);
    const exchanging = [...this.exchanges.keys()].map((row) => boxOfRow(this.tree, this.scene!, row, isOpen));
    this.marks = { ...this.marks, lit, exchanges: new Set(exchanging), at: this.box(this.current) };
    this.request();
  }

  private revealLit(): void {
    if (!this.drawing) return;
    const first = nearestLit(this.drawing.at, this.marks.lit, this.camera.part);
    if (first >= 0) this.reveal(first);
  }

  // --- search ---

  private find(text: string): void {
    this.found.find(text);
    this.markHits();
    this.request();
  }

  private markHits(): void {
    const hits = new Map<number, number>();
    for (const row of this.found.rows) {
      const box = this.scene ? boxOfRow(this.tree, this.scene, row, (node) => this.open.has(node)) : -1;
      if (box >= 0) hits.set(box, (hits.get(box) ?? 0) + 1);
    }
    this.marks = { ...this.marks, hits };
  }

  search(): void {
    this.tools.focus();
  }

  nextHit(by: 1 | -1): void {
    const row = this.found.next(by);
    if (row >= 0) this.state.selectRow(row);
  }

  // --- focus ---

  nextFocus(): void {
    const order: Focus[] = ["", "both", "up", "down"];
    this.focusing = order[(order.indexOf(this.focusing) + 1) % order.length]!;
    this.tools.focused(this.focusing);
    this.refocus();
    this.request();
  }

  endFocus(): boolean {
    if (this.focusing === "") return false;
    this.focusing = "down";
    this.nextFocus();
    return true;
  }

  private refocus(): void {
    const at = this.box(this.current);
    const isOff = this.focusing === "" || at < 0 || !this.ways || !this.scene;
    const focus = isOff ? null : inFocus(this.scene!, this.ways!, at, this.focusing);
    this.marks = { ...this.marks, focus };
  }

  // --- pointer and keys ---

  private listen(): void {
    this.stops.push(onResize(this.body, (...size) => this.resize(size)));
    const repaint = () => {
      this.palette = null;
      this.drawMap();
      this.request();
    };
    this.stops.push(onTheme(repaint));
  }

  /** Goes to the other end of a residual, in the pane that shows it. */
  toOtherEnd(residual: number, node: number): void {
    const { state, tree } = this;
    const { model } = state;
    const { producer, consumers } = model.residuals[residual]!;
    const isForward = producer >= 0 && tree.rows(node, true).includes(producer);
    const ends = (isForward ? consumers : [producer]).filter((row) => row >= 0);
    const there = ends.find((row) => state.isShown(model.stage(row))) ?? ends[0];
    if (there === undefined) {
      state.selectResidual(residual);
      return;
    }
    if (!state.isShown(model.stage(there))) {
      state.use(this.side);
      state.showStages([model.stage(there)]);
    }
    state.selectEnd(residual, there);
  }

  hover(box: number, edge: number): void {
    if (this.marks.hover === box && this.marks.hoverEdge === edge) return;
    this.marks = { ...this.marks, hover: box, hoverEdge: edge };
    this.request();
  }

  move(key: string): void {
    const { tree, drawing, ways } = this;
    if (!drawing || !ways) return;
    const next = neighbour(tree, drawing, ways, this.current, key, (n) => this.open.has(n));
    if (next < 0) return;
    this.select(next);
    this.reveal(this.box(next));
  }
}
