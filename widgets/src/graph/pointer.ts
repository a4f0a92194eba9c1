/** The pointer in the graph: panning, zooming, selecting, opening and closing boxes, tooltips. */

import { drag, h, placeOver } from "../ui/dom";
import type { Camera } from "./camera";
import type { Colours } from "./colours";
import type { Drawing } from "./draw/drawing";
import type { MiniMap } from "./draw/minimap";
import { STAGE, type Tree } from "./layout/hierarchy";
import { HEADER, OPEN } from "./layout/shape";
import { rowHeight } from "./layout/stubs";
import { boxTip, edgeTip, stubsTip } from "./tip";

const REST = 120;

/** What the pointer needs of the graph. */
export interface Pointed {
  readonly tree: Tree;
  readonly camera: Camera;
  readonly colours: Colours;
  readonly exchanges: ReadonlyMap<number, readonly string[]>;
  readonly drawing: Drawing | null;
  /** Focuses the graph. */
  focus(): void;
  select(node: number): void;
  toggle(node: number): void;
  /** Goes from one end of a residual to the other. */
  toOtherEnd(residual: number, node: number): void;
  hover(box: number, edge: number): void;
}

export class Pointer {
  readonly tip = h("div.jv-tip.jv-graph-tip", { "data-testid": "graph-tip" });
  private resting: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly graph: Pointed,
    private readonly canvas: HTMLCanvasElement,
    private readonly map: MiniMap,
    private readonly root: HTMLElement,
  ) {
    root.append(this.tip);
    canvas.addEventListener("pointerdown", (event) => this.onPress(event));
    canvas.addEventListener("pointermove", (event) => this.onHover(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("dblclick", (event) => this.onDouble(event));
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    map.canvas.addEventListener("pointerdown", (event) => this.onMap(event));
  }

  destroy(): void {
    clearTimeout(this.resting);
    this.tip.remove();
  }

  private at(event: MouseEvent): [number, number] {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  private world(event: MouseEvent): [number, number] {
    return this.graph.camera.world(...this.at(event));
  }

  private onWheel(event: WheelEvent): void {
    event.preventDefault();
    this.say(null, 0, 0);
    const [x, y] = this.at(event);
    const unit = event.deltaMode === 1 ? 16 : 1;
    const { camera } = this.graph;
    if (event.shiftKey) camera.pan(-event.deltaY * unit, 0);
    else camera.zoom(Math.exp(-event.deltaY * unit * (event.ctrlKey ? 0.01 : 0.0016)), x, y);
  }

  private onPress(event: PointerEvent): void {
    if (event.button !== 0) return;
    this.graph.focus();
    this.say(null, 0, 0);
    let last = [event.clientX, event.clientY];
    let moved = 0;
    const move = (e: PointerEvent) => {
      const [dx, dy] = [e.clientX - last[0]!, e.clientY - last[1]!];
      moved += Math.abs(dx) + Math.abs(dy);
      last = [e.clientX, e.clientY];
      if (moved > 3) this.graph.camera.pan(dx, dy);
    };
    drag(this.canvas, event, move, (e) => {
      if (moved <= 3 && e.type === "pointerup") this.onClick(e);
    });
  }

  private onClick(event: MouseEvent): void {
    const { drawing, tree } = this.graph;
    const [x, y] = this.world(event);
    const box = drawing?.boxAt(x, y) ?? -1;
    if (!drawing || box < 0) return;
    const [stub, more] = drawing.stubsAt(box, x, y);
    const node = drawing.scene.node[box]!;
    if (stub && !more && stub.residual >= 0) this.graph.toOtherEnd(stub.residual, node);
    else if (this.isTriangle(drawing, box, x, y)) this.graph.toggle(node);
    else if (tree.kind[node] !== STAGE) this.graph.select(node);
  }

  private onDouble(event: MouseEvent): void {
    const { drawing } = this.graph;
    const box = drawing?.boxAt(...this.world(event)) ?? -1;
    if (drawing && box >= 0) this.graph.toggle(drawing.scene.node[box]!);
  }

  /** Whether a point is on the triangle that opens and closes a box. */
  private isTriangle(drawing: Drawing, box: number, x: number, y: number): boolean {
    const { tree } = this.graph;
    const node = drawing.scene.node[box]!;
    if (!tree.canOpen(node) || tree.kind[node] === STAGE) return false;
    const left = drawing.card(box)[0] + 4;
    const top =
      drawing.at.y[box]! +
      rowHeight(drawing.scene.shape.kind[box] === OPEN ? undefined : drawing.scene.taken.get(box));
    return x >= left && x < left + 18 && y >= top && y < top + HEADER;
  }

  private onHover(event: PointerEvent): void {
    const { drawing, camera, tree, colours, exchanges } = this.graph;
    if (event.buttons !== 0 || drawing === null) return;
    const [x, y] = this.world(event);
    const { scene } = drawing;
    const box = drawing.boxAt(x, y);
    const isClosed = box >= 0 && scene.shape.kind[box] !== OPEN;
    const stubs = box < 0 ? [] : drawing.stubsAt(box, x, y);
    const edge = isClosed || stubs.length > 0 ? -1 : drawing.edgeAt(x, y, 6 / camera.view.scale);
    this.graph.hover(box, edge);
    const isHand = isClosed || stubs.length > 0 || (box >= 0 && this.isTriangle(drawing, box, x, y));
    this.canvas.style.cursor = isHand ? "pointer" : "grab";
    clearTimeout(this.resting);
    this.say(null, 0, 0);
    const make = () => {
      if (this.graph.drawing !== drawing) return null;
      if (stubs.length > 0) return stubsTip(tree, stubs);
      if (edge >= 0) return edgeTip(tree, scene, edge);
      return box > 0 ? boxTip(tree, scene, box, colours, exchanges) : null;
    };
    const [clientX, clientY] = [event.clientX, event.clientY];
    this.resting = setTimeout(() => this.say(make(), clientX, clientY), REST);
  }

  private leave(): void {
    clearTimeout(this.resting);
    this.say(null, 0, 0);
    this.graph.hover(-1, -1);
  }

  /** Shows a tooltip near a point of the screen, or hides it. */
  private say(content: HTMLElement | null, x: number, y: number): void {
    const { tip } = this;
    tip.replaceChildren(...(content ? [content] : []));
    tip.classList.toggle("is-shown", content !== null);
    if (content === null) return;
    const outer = this.root.getBoundingClientRect();
    const height = tip.offsetHeight;
    const below = y - outer.top + 18;
    const top = below + height > outer.height ? y - outer.top - height - 10 : below;
    placeOver(outer, tip, x - outer.left + 14, top);
  }

  private onMap(event: PointerEvent): void {
    const { canvas } = this.map;
    const move = (e: PointerEvent) => {
      const box = canvas.getBoundingClientRect();
      this.graph.camera.lookAt(...this.map.world(e.clientX - box.left, e.clientY - box.top));
    };
    drag(canvas, event, move);
    move(event);
  }
}
