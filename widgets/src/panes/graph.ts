/** The graph pane: stages as boxes in boxes, laid out level by level and drawn on a canvas. */

import { h, onResize } from "../dom";
import { inSight, MiniMap } from "../draw/minimap";
import { Drawing, type Marks } from "../draw/painter";
import { type Palette, readPalette } from "../draw/palette";
import { between, fitted, opening, type View, zoomed } from "../draw/view";
import { plural } from "../format";
import { place } from "../layout/client";
import { REPEAT, STAGE, Tree } from "../layout/hierarchy";
import { OPEN } from "../layout/place";
import { search } from "../layout/query";
import { type Scene, sceneOf } from "../layout/scene";
import { beside, isWithin, Ways } from "../layout/walk";
import type { Change, Lit, Side, State } from "../state";
import { Colours } from "./graphcolours";
import { boxTip, edgeTip, stubsTip } from "./graphtip";
import { type Focus, Tools } from "./graphtools";
import { headButtons } from "./head";
import { Outline } from "./outline";
import { marked } from "./residuals";

/** Boxes are open at first as long as no more than so many are then visible; of small programs all. */
const AT_FIRST = 12;
const SMALL = 40;
/** A box of more equations is not selected as a whole. */
const MANY_ROWS = 2000;
const REST = 120;
const MOVE = 180;

const NOTHING: Marks = { lit: new Map(), hits: new Map(), at: -1, hover: -1, hoverEdge: -1, focus: null };

export class GraphPane {
  readonly element: HTMLElement;
  private readonly tree: Tree;
  private readonly open = new Set<number>();
  private drawing: Drawing | null = null;
  private ways: Ways | null = null;
  private view: View = { scale: 1, x: 0, y: 0 };
  private marks: Marks = NOTHING;
  /** The node that keys act on, or -1. */
  private current = -1;
  private hits: number[] = [];
  private hit = -1;
  private focusing: Focus = "";
  private size: [number, number, number] = [0, 0, 1];
  private palette: Palette | null = null;
  private frame = 0;
  private asked = 0;
  private resting: ReturnType<typeof setTimeout> | undefined;
  private isMine = false;
  private readonly colours: Colours;
  private readonly tools: Tools;
  private readonly outline: Outline;
  private readonly map = new MiniMap();
  private readonly canvas = h("canvas", { class: "jv-graph-canvas", "aria-hidden": "true" });
  private readonly wait = h("p", { class: "jv-graph-wait", role: "status" });
  private readonly tip = h("div", { class: "jv-tip jv-graph-tip", "data-testid": "graph-tip" });
  private readonly body: HTMLElement;
  private readonly stops: (() => void)[] = [];

  constructor(
    private readonly state: State,
    stages: readonly number[],
    private readonly side: Side,
    private readonly root: HTMLElement,
  ) {
    const { model } = state;
    const infos = stages.map((stage) => model.view.stages[stage]!);
    this.tree = new Tree(model, stages);
    this.colours = new Colours(this.tree, () => this.request());
    this.tools = new Tools({
      zoom: (factor) => this.zoom(factor),
      fit: () => this.fit(),
      zoomToSelection: () => this.zoomToSelection(),
      focus: () => this.nextFocus(),
      find: (text) => this.find(text),
      nextHit: (by) => this.nextHit(by),
      leave: () => this.focus(),
      colours: this.colours,
    });
    this.outline = new Outline(this.tree, (event) => this.onKey(event));
    this.body = h(
      "div",
      { class: "jv-graph-body", "data-testid": `graph-canvas-${side}` },
      this.outline.element,
      this.canvas,
      this.wait,
      this.colours.legend,
      h("div", { class: "jv-graph-map", "aria-hidden": "true" }, this.map.canvas),
    );
    const label = infos.map((info) => info.label).join(" + ");
    const total = infos.reduce((sum, info) => sum + info.equations[1] - info.equations[0], 0);
    const errors = infos.filter((info) => info.error);
    this.element = h(
      "section",
      {
        class: "jv-pane jv-code jv-graph",
        "aria-label": `graph of ${label}`,
        "data-testid": `graph-${side}`,
        "data-stage": infos.map((info) => info.key).join("+"),
        onfocusin: () => state.use(side),
      },
      h(
        "div",
        { class: "jv-pane-head", title: infos.map((info) => `${info.label}: ${info.title}`).join("\n") },
        h("strong", {}, label),
        h("span", { class: "jv-dim jv-cut" }, plural(total, "equation")),
        ...headButtons(state, side),
      ),
      this.tools.element,
      ...errors.map((info) =>
        h(
          "div",
          { class: "jv-message" },
          h("strong", {}, `${info.label} could not be derived`),
          h("p", {}, ...marked(info.error)),
        ),
      ),
      this.body,
    );
    root.append(this.tip);
    this.openAtFirst();
    this.listen();
    this.layOut(() => this.showFirst());
    this.markSide();
  }

  destroy(): void {
    for (const stop of this.stops) stop();
    clearTimeout(this.resting);
    cancelAnimationFrame(this.frame);
    this.asked = -1;
    this.tip.remove();
  }

  focus(): void {
    this.outline.element.focus({ preventScroll: true });
  }

  update(change: Change): void {
    if (change === "side") this.markSide();
    if (change === "selection") this.onSelection();
  }

  /** Selects the next equation, or the previous, in the order of the program. */
  step(by: 1 | -1): boolean {
    this.move(by === 1 ? "ArrowDown" : "ArrowUp");
    return true;
  }

  private markSide(): void {
    const { state, side } = this;
    this.element.classList.toggle("is-active", state.side === side && state.shown.right.length > 0);
  }

  // --- layout ---

  private openAtFirst(): void {
    const { tree, open } = this;
    const most = tree.roots.reduce((sum, root) => sum + tree.count[root]!, 0) <= SMALL ? SMALL : AT_FIRST;
    const todo = tree.roots.flatMap((root) => tree.children[root]!);
    let visible = todo.length;
    for (let node = todo.shift(); node !== undefined; node = todo.shift()) {
      const inside = tree.children[node]!;
      if (inside.length === 0 || tree.kind[node] === REPEAT || visible + inside.length > most) continue;
      open.add(node);
      visible += inside.length;
      todo.push(...inside);
    }
  }

  /** Works out what is visible and where it stands; `then` is called when that is drawn next. */
  private layOut(then: () => void): void {
    const scene = sceneOf(this.tree, (node) => this.open.has(node));
    this.asked += 1;
    const request = this.asked;
    this.wait.textContent = scene.shape.parent.length > 3000 ? "Laying out…" : "";
    place(scene.shape, (positions) => {
      if (request !== this.asked) return;
      this.wait.textContent = "";
      this.drawing = new Drawing(this.tree, scene, positions);
      this.ways = new Ways(scene);
      this.colours.show(scene);
      this.marks = { ...this.marks, hover: -1, hoverEdge: -1 };
      this.light();
      this.markHits();
      this.drawMap();
      then();
      this.request();
    });
  }

  private get scene(): Scene | null {
    return this.drawing?.scene ?? null;
  }

  private box(node: number): number {
    return node < 0 ? -1 : (this.scene?.boxOf[node] ?? -1);
  }

  /** Opens a box, or closes it; it stays where it is on the screen. */
  private toggle(node: number): void {
    if (!this.tree.canOpen(node) || this.tree.kind[node] === STAGE) return;
    if (this.open.has(node)) this.open.delete(node);
    else this.open.add(node);
    this.keeping(node, () => this.announce(node));
  }

  /** Opens a box with all that is in it, or closes that; all of the graph where there is no current box. */
  private openAll(isOpen: boolean): void {
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

  /** Lays out anew; a node stays where it is on the screen. */
  private keeping(node: number, then: () => void): void {
    const before = this.corner(node);
    this.layOut(() => {
      const after = this.corner(node);
      if (before && after)
        this.view = {
          ...this.view,
          x: this.view.x + before[0] - after[0],
          y: this.view.y + before[1] - after[1],
        };
      then();
    });
  }

  private corner(node: number): [number, number] | null {
    const box = this.box(node);
    if (box < 0 || !this.drawing) return null;
    const { at, scene } = this.drawing;
    // Of a box that opens the middle of the upper edge stays.
    const x =
      at.x[box]! + at.width[box]! / 2 + (scene.shape.kind[box] === OPEN ? 0 : scene.shape.anchor[box]!);
    return [x * this.view.scale + this.view.x, at.y[box]! * this.view.scale + this.view.y];
  }

  /** Makes a node visible: opens what is around it. */
  private uncover(node: number, then: () => void): void {
    const closed = [...this.tree.around(node)].filter(
      (n) => this.tree.kind[n] !== STAGE && !this.open.has(n),
    );
    if (closed.length === 0) {
      then();
      return;
    }
    for (const n of closed) this.open.add(n);
    this.keeping(closed.at(-1)!, then);
  }

  // --- drawing ---

  private resize(size: [number, number, number]): void {
    const isFirst = this.size[0] === 0;
    this.size = size;
    const [width, height, pixels] = size;
    this.canvas.width = Math.round(width * pixels);
    this.canvas.height = Math.round(height * pixels);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    if (isFirst) {
      this.drawMap();
      this.showFirst();
    }
    this.request();
  }

  private showFirst(): void {
    if (!this.drawing || this.size[0] === 0) return;
    this.view = opening(
      { x: 0, y: 0, width: this.drawing.width, height: this.drawing.height },
      this.size[0],
      this.size[1],
    );
    if (this.state.selection.rows.size > 0) this.onSelection();
  }

  private request(): void {
    if (this.frame !== 0 || this.asked < 0) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  private get colouring(): Palette {
    this.palette ??= readPalette(this.element);
    return this.palette;
  }

  private draw(): void {
    const ctx = this.canvas.getContext("2d");
    const [width, height, pixels] = this.size;
    if (ctx === null || !this.drawing || width === 0) return;
    ctx.setTransform(pixels, 0, 0, pixels, 0, 0);
    this.drawing.paint(ctx, this.view, width, height, this.colouring, this.colours, this.marks);
    const part = inSight(this.view, width, height);
    const isAll =
      part.x <= 0 &&
      part.y <= 0 &&
      part.x + part.width >= this.drawing.width &&
      part.y + part.height >= this.drawing.height;
    this.map.canvas.parentElement!.hidden = isAll;
    if (!isAll) this.map.show(part, this.colouring, pixels);
  }

  private drawMap(): void {
    if (this.drawing && this.size[0] > 0) this.map.draw(this.drawing, this.colouring, this.size[2]);
  }

  // --- what is in sight ---

  private zoom(factor: number, x = this.size[0] / 2, y = this.size[1] / 2): void {
    this.view = zoomed(this.view, factor, x, y);
    this.request();
  }

  private fit(): void {
    if (!this.drawing) return;
    this.go(
      fitted(
        { x: 0, y: 0, width: this.drawing.width, height: this.drawing.height },
        this.size[0],
        this.size[1],
      ),
    );
  }

  private zoomToSelection(): void {
    const lit = [...this.marks.lit].filter(([, how]) => how === "is-selected").map(([box]) => box);
    const boxes = lit.length > 0 ? lit : this.marks.at >= 0 ? [this.marks.at] : [];
    if (boxes.length > 0) this.go(this.around(boxes, 1.4));
  }

  private around(boxes: readonly number[], most: number): View {
    const { x, y, width, height } = this.drawing!.at;
    const left = Math.min(...boxes.map((b) => x[b]!));
    const top = Math.min(...boxes.map((b) => y[b]!));
    const right = Math.max(...boxes.map((b) => x[b]! + width[b]!));
    const bottom = Math.max(...boxes.map((b) => y[b]! + height[b]!));
    return fitted(
      { x: left, y: top, width: right - left, height: bottom - top },
      this.size[0],
      this.size[1],
      40,
      most,
    );
  }

  /** Moves there; at once for those who want no motion. */
  private go(view: View): void {
    const from = this.view;
    if (!globalThis.matchMedia?.("(prefers-reduced-motion: no-preference)").matches) {
      this.view = view;
      this.request();
      return;
    }
    const start = performance.now();
    const step = () => {
      if (this.asked < 0) return;
      const share = Math.min(1, (performance.now() - start) / MOVE);
      this.view = between(from, view, 1 - (1 - share) ** 3);
      this.request();
      if (share < 1) requestAnimationFrame(step);
    };
    step();
  }

  /** Moves as little as is needed for a box to be in sight, and read. */
  private reveal(box: number): void {
    if (!this.drawing || box < 0 || this.size[0] === 0) return;
    const { at } = this.drawing;
    const [width, height] = this.size;
    const scale = Math.max(this.view.scale, 0.6);
    let view = this.view;
    if (scale !== view.scale) {
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
    if (scale !== this.view.scale || dx !== 0 || dy !== 0) this.go({ scale, x: view.x + dx, y: view.y + dy });
  }

  // --- selection ---

  private select(node: number): void {
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
        this.reveal(this.box(node));
      });
    else {
      this.current = -1;
      this.light();
      this.marks = { ...this.marks, at: -1 };
      this.refocus();
      this.revealLit();
    }
  }

  /** Which boxes hold what is lit. */
  private light(): void {
    const { rows, ancestors, descendants, siblings } = this.state.selection;
    const lit = new Map<number, Lit>();
    const sets: [ReadonlySet<number>, Lit][] = [
      [rows, "is-selected"],
      [ancestors, "is-ancestor"],
      [descendants, "is-descendant"],
      [siblings, "is-related"],
    ];
    for (const [set, how] of sets)
      for (const row of set) {
        const box = this.shownBox(row);
        // Of an open group that is selected the outline says so.
        if (box >= 0 && !lit.has(box) && !(how === "is-selected" && this.isInGroup(box))) lit.set(box, how);
      }
    const at = this.box(this.current);
    if (at >= 0 && !lit.has(at) && !this.isInGroup(at)) lit.set(at, "is-selected");
    this.marks = { ...this.marks, lit, at };
    this.request();
  }

  private isInGroup(box: number): boolean {
    const { current, tree, scene } = this;
    if (current < 0 || tree.row[current]! >= 0 || !this.open.has(current) || !scene) return false;
    return isWithin(scene.shape.parent, box, this.box(current));
  }

  private revealLit(): void {
    if (!this.drawing || this.marks.lit.size === 0) return;
    const part = inSight(this.view, this.size[0], this.size[1]);
    const { x, y } = this.drawing.at;
    let first = -1;
    for (const how of ["is-selected", "is-descendant", "is-ancestor", "is-related"] as const) {
      for (const [box, as] of this.marks.lit) {
        if (as !== how) continue;
        const inside =
          x[box]! > part.x &&
          x[box]! < part.x + part.width &&
          y[box]! > part.y &&
          y[box]! < part.y + part.height;
        if (inside) return;
        if (first < 0 || y[box]! < y[first]!) first = box;
      }
      if (first >= 0) break;
    }
    this.reveal(first);
  }

  /** The box in which a row is visible, or -1. */
  private shownBox(row: number): number {
    const node = this.tree.ofRow[row]!;
    if (node < 0) return -1;
    let found = node;
    for (const outer of this.tree.around(node))
      if (this.tree.kind[outer] !== STAGE && !this.open.has(outer)) found = outer;
    return this.box(found);
  }

  // --- search ---

  private find(text: string): void {
    const stages = this.tree.stages.map((stage) => this.state.model.view.stages[stage]!.equations);
    this.hit = -1;
    try {
      this.hits = search(this.state.model, text, stages);
      this.tools.found(text.trim() === "" ? "" : `${plural(this.hits.length, "hit")}`);
    } catch (error) {
      this.hits = [];
      this.tools.found("?", error instanceof Error ? error.message : String(error));
    }
    this.markHits();
    this.request();
  }

  private markHits(): void {
    const hits = new Map<number, number>();
    for (const row of this.hits) {
      const box = this.shownBox(row);
      if (box >= 0) hits.set(box, (hits.get(box) ?? 0) + 1);
    }
    this.marks = { ...this.marks, hits };
  }

  private nextHit(by: 1 | -1): void {
    const n = this.hits.length;
    if (n === 0) return;
    this.hit = this.hit < 0 ? (by === 1 ? 0 : n - 1) : (this.hit + by + n) % n;
    this.tools.found(`${this.hit + 1} of ${n}`);
    this.state.selectRow(this.hits[this.hit]!);
  }

  // --- focus ---

  private nextFocus(): void {
    const order: Focus[] = ["", "both", "up", "down"];
    this.focusing = order[(order.indexOf(this.focusing) + 1) % order.length]!;
    this.tools.focused(this.focusing);
    this.refocus();
    this.request();
  }

  private refocus(): void {
    this.marks = { ...this.marks, focus: this.inFocus() };
  }

  /** What leads to the current box and from it. */
  private inFocus(): Set<number> | null {
    const at = this.box(this.current);
    if (this.focusing === "" || at < 0 || !this.ways || !this.scene) return null;
    const { parent, kind } = this.scene.shape;
    const starts = [at];
    if (kind[at] === OPEN)
      for (let i = at + 1; i < parent.length; i++) if (isWithin(parent, i, at)) starts.push(i);
    const found = new Set(starts);
    if (this.focusing !== "down") for (const i of this.ways.reach(starts, -1)) found.add(i);
    if (this.focusing !== "up") for (const i of this.ways.reach(starts, 1)) found.add(i);
    return found;
  }

  // --- pointer and keys ---

  private listen(): void {
    const { body, canvas } = this;
    this.stops.push(onResize(body, (...size) => this.resize(size)));
    canvas.addEventListener("pointerdown", (event) => this.onPress(event));
    canvas.addEventListener("pointermove", (event) => this.onHover(event));
    canvas.addEventListener("pointerleave", () => this.hover(-1, -1));
    canvas.addEventListener("dblclick", (event) => {
      const node = this.nodeAt(event);
      if (node >= 0) this.toggle(node);
    });
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        this.tipAt(null, 0, 0);
        const [x, y] = this.at(event);
        const unit = event.deltaMode === 1 ? 16 : 1;
        if (event.shiftKey) this.pan(-event.deltaY * unit, 0);
        else this.zoom(Math.exp(-event.deltaY * unit * (event.ctrlKey ? 0.01 : 0.0016)), x, y);
      },
      { passive: false },
    );
    this.map.canvas.addEventListener("pointerdown", (event) => this.onMap(event));
    const repaint = () => {
      this.palette = null;
      this.drawMap();
      this.request();
    };
    const theme = new MutationObserver(repaint);
    for (const element of [document.body, document.documentElement])
      theme.observe(element, { attributeFilter: ["class", "data-jp-theme-light", "theme", "style"] });
    const scheme = globalThis.matchMedia?.("(prefers-color-scheme: dark)");
    scheme?.addEventListener("change", repaint);
    this.stops.push(
      () => theme.disconnect(),
      () => scheme?.removeEventListener("change", repaint),
    );
  }

  private at(event: MouseEvent): [number, number] {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  private world(event: MouseEvent): [number, number] {
    const [x, y] = this.at(event);
    return [(x - this.view.x) / this.view.scale, (y - this.view.y) / this.view.scale];
  }

  private nodeAt(event: MouseEvent): number {
    const box = this.drawing?.boxAt(...this.world(event)) ?? -1;
    return box < 0 ? -1 : this.scene!.node[box]!;
  }

  private pan(dx: number, dy: number): void {
    this.view = { ...this.view, x: this.view.x + dx, y: this.view.y + dy };
    this.request();
  }

  private onPress(event: PointerEvent): void {
    if (event.button !== 0) return;
    event.preventDefault();
    this.focus();
    let last = [event.clientX, event.clientY];
    let moved = 0;
    this.canvas.setPointerCapture(event.pointerId);
    this.tipAt(null, 0, 0);
    const move = (e: PointerEvent) => {
      const [dx, dy] = [e.clientX - last[0]!, e.clientY - last[1]!];
      moved += Math.abs(dx) + Math.abs(dy);
      last = [e.clientX, e.clientY];
      if (moved > 3) this.pan(dx, dy);
    };
    const up = (e: PointerEvent) => {
      for (const [name, listener] of [
        ["pointermove", move],
        ["pointerup", up],
        ["pointercancel", up],
      ] as const)
        this.canvas.removeEventListener(name, listener);
      if (moved <= 3 && e.type === "pointerup") this.onClick(e);
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", up);
    this.canvas.addEventListener("pointercancel", up);
  }

  private onClick(event: MouseEvent): void {
    const [x, y] = this.world(event);
    const box = this.drawing?.boxAt(x, y) ?? -1;
    if (box < 0) return;
    const [stub, more] = this.drawing!.stubsAt(box, x, y);
    const node = this.scene!.node[box]!;
    if (stub && !more && stub.residual >= 0) this.toOtherEnd(stub.residual, node);
    else if (this.isHeaderMark(box, x, y)) this.toggle(node);
    else if (this.tree.kind[node] !== STAGE) this.select(node);
  }

  /** Whether a point is on the triangle that opens and closes a box. */
  private isHeaderMark(box: number, x: number, y: number): boolean {
    const { at, scene } = this.drawing!;
    const node = scene.node[box]!;
    if (!this.tree.canOpen(node) || this.tree.kind[node] === STAGE) return false;
    const left = this.drawing!.cardLeft(box) + 4;
    return x >= left && x < left + 18 && y < at.y[box]! + 24;
  }

  /** From one end of a residual to the other, in whichever pane that is. */
  private toOtherEnd(residual: number, node: number): void {
    const { state } = this;
    const r = state.model.residuals[residual]!;
    const isForward = this.tree.rows(node, true).includes(r.producer);
    const there = isForward ? (r.consumers[0] ?? -1) : r.producer;
    if (there >= 0 && !state.isShown(state.model.stage(there)))
      state.showStages([state.model.stage(there)], true);
    state.selectResidual(residual);
    const other = there < 0 ? -1 : this.tree.ofRow[there]!;
    if (other >= 0)
      this.uncover(other, () => {
        this.current = other;
        this.light();
        this.announce(other);
        this.reveal(this.box(other));
      });
  }

  private onHover(event: PointerEvent): void {
    if (event.buttons !== 0 || !this.drawing) return;
    const [x, y] = this.world(event);
    const box = this.drawing.boxAt(x, y);
    const isClosed = box >= 0 && this.scene!.shape.kind[box] !== OPEN;
    const edge = isClosed ? -1 : this.drawing.edgeAt(x, y, 6 / this.view.scale);
    const stubs = isClosed ? this.drawing.stubsAt(box, x, y) : [];
    this.hover(box, edge);
    this.canvas.style.cursor = isClosed || (box >= 0 && this.isHeaderMark(box, x, y)) ? "pointer" : "grab";
    clearTimeout(this.resting);
    this.tipAt(null, 0, 0);
    const make = () => {
      const scene = this.scene;
      if (!scene) return null;
      if (stubs.length > 0) return stubsTip(this.tree, stubs);
      if (edge >= 0) return edgeTip(this.tree, scene, edge);
      return box > 0 ? boxTip(this.tree, scene, box, this.colours) : null;
    };
    const [clientX, clientY] = [event.clientX, event.clientY];
    this.resting = setTimeout(() => this.tipAt(make(), clientX, clientY), REST);
  }

  private hover(box: number, edge: number): void {
    if (box < 0) {
      clearTimeout(this.resting);
      this.tipAt(null, 0, 0);
    }
    if (this.marks.hover === box && this.marks.hoverEdge === edge) return;
    this.marks = { ...this.marks, hover: box, hoverEdge: edge };
    this.request();
  }

  private tipAt(content: HTMLElement | null, x: number, y: number): void {
    this.tip.replaceChildren(...(content ? [content] : []));
    this.tip.classList.toggle("is-shown", content !== null);
    if (content === null) return;
    const outer = this.root.getBoundingClientRect();
    const own = this.tip.getBoundingClientRect();
    const left = Math.min(x - outer.left + 14, outer.width - own.width - 6);
    const below = y - outer.top + 18;
    const top = below + own.height > outer.height ? y - outer.top - own.height - 10 : below;
    this.tip.style.left = `${Math.max(4, left)}px`;
    this.tip.style.top = `${Math.max(4, top)}px`;
  }

  private onMap(event: PointerEvent): void {
    event.preventDefault();
    const canvas = this.map.canvas;
    canvas.setPointerCapture(event.pointerId);
    const move = (e: PointerEvent) => {
      const box = canvas.getBoundingClientRect();
      const [x, y] = this.map.world(e.clientX - box.left, e.clientY - box.top);
      const { scale } = this.view;
      this.view = { scale, x: this.size[0] / 2 - x * scale, y: this.size[1] / 2 - y * scale };
      this.request();
    };
    const up = () => {
      canvas.removeEventListener("pointermove", move);
      canvas.removeEventListener("pointerup", up);
    };
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("pointerup", up);
    move(event);
  }

  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    if (key === "+" || key === "=") this.zoom(1.25);
    else if (key === "-") this.zoom(0.8);
    else if (key === "0") this.fit();
    else if (key === "z" || key === "Z") this.zoomToSelection();
    else if (key === "f" || key === "F") this.nextFocus();
    else if (key === "o" || key === "O") this.openAll(true);
    else if (key === "c" || key === "C") this.openAll(false);
    else if (key === "/") this.tools.focus();
    else if (key === "n" || key === "N") this.nextHit(event.shiftKey ? -1 : 1);
    else if (key === "Enter" || key === " ") this.toggle(this.current);
    else if (key === "Escape" && this.focusing !== "") {
      this.focusing = "down";
      this.nextFocus();
    } else if (key.startsWith("Arrow") || key === "Home" || key === "End")
      this.move(event.shiftKey ? `Shift${key}` : key);
    else return;
    event.preventDefault();
  }

  private move(key: string): void {
    const next = this.neighbour(key);
    if (next < 0) return;
    this.select(next);
    this.reveal(this.box(next));
  }

  private neighbour(key: string): number {
    const { tree, drawing, ways } = this;
    if (!drawing || !ways) return -1;
    const { scene, at } = drawing;
    const top = tree.roots[0] === undefined ? -1 : (tree.children[tree.roots[0]]![0] ?? -1);
    const box = this.box(this.current);
    if (box < 0 || key === "Home") return top;
    const node = this.current;
    if (key === "End") return tree.children[tree.roots.at(-1)!]!.at(-1)!;
    if (key === "ShiftArrowUp") {
      const outer = tree.parent[node]!;
      return outer >= 0 && tree.kind[outer] !== STAGE ? outer : -1;
    }
    if (key === "ShiftArrowDown") return this.open.has(node) ? tree.children[node]![0]! : -1;
    if (key === "ArrowLeft" || key === "ArrowRight") {
      const there = beside(scene, at, box, key === "ArrowLeft" ? -1 : 1);
      return there < 0 ? -1 : scene.node[there]!;
    }
    const along = key === "ArrowDown" ? 1 : -1;
    const middle = (b: number) => at.x[b]! + at.width[b]! / 2;
    const near = ways
      .next(box, along)
      .sort((a, b) => Math.abs(middle(a) - middle(box)) - Math.abs(middle(b) - middle(box)));
    if (near[0] !== undefined) return scene.node[near[0]]!;
    // Where no edge leads on: the next in the order of the program.
    const siblings = tree.children[tree.parent[node]!]!;
    return siblings[siblings.indexOf(node) + along] ?? -1;
  }
}
