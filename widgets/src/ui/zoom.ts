/** Zooms and pans what lies along a run, by wheel, fingers, drag, keys and double click. */

import { ALL, isWhole, moved, placeAt, type Span, showing, type TimeView, zoomed } from "../model/span";

/** The axis of a chart. Positions are in pixels of the page; the elements that show it have the class `jv-time`. */
export interface Axis {
  /** The element that shows it, and where in it the visible part begins and ends. */
  plot: Element;
  inner(): { left: number; right: number } | null;
  /** A part of the run, given as fractions of its steps, as fractions of the axis, and back; the same if left out. */
  toAxis?(steps: Span): Span;
  toSteps?(part: Span): Span;
  stepAt(x: number): number;
  /** The step under the keyboard cursor, or -1. */
  cursor(): number;
  /** The pointer is dragged while the whole run is seen. */
  dragTo?(step: number): void;
}

/** How much a key or a button zooms, and a wheel per pixel, as powers of two; and a pinched touchpad, which sends small amounts. */
export const STEP = 1;
const [WHEEL, PINCH] = [0.003, 0.03];

/** The height of a line, for mice whose wheels count those, in pixels. */
const LINE = 16;

/** How far the pointer moves before it drags, in pixels; and where a drag does nothing, before it does not click either. */
const [STILL, LOOSE] = [4, 16];

/** How many steps are visible at least. */
export const LEAST = 4;

/** Where a gesture began. */
interface Gesture {
  span: Span;
  at: readonly number[];
  /** The step where a selected interval begins, or -1 if the gesture selects none. */
  step: number;
}

export abstract class Zoom<A extends Axis = Axis> {
  private readonly pointers = new Map<number, number>();
  private gesture: Gesture | null = null;
  private isDragging = false;
  protected readonly over = new AbortController();

  constructor(
    protected readonly view: TimeView,
    private readonly surface: Element,
    protected readonly axis: A,
  ) {
    const on = <K extends keyof HTMLElementEventMap>(
      name: K,
      act: (event: HTMLElementEventMap[K]) => void,
      options: AddEventListenerOptions = {},
    ) => surface.addEventListener(name, act as EventListener, { signal: this.over.signal, ...options });
    on("wheel", (event) => this.onWheel(event), { passive: false });
    on("pointerdown", (event) => this.press(event));
    on("pointermove", (event) => this.move(event));
    on("pointerup", (event) => this.release(event));
    on("pointercancel", (event) => this.release(event));
    on("lostpointercapture", (event) => event.target === surface && this.release(event));
    on("dblclick", (event) => isOnTime(event) && view.lookAt(ALL));
    // A drag that ends on a button is no click on it.
    on("click", (event) => this.isDragging && event.stopPropagation(), { capture: true });
    on("keydown", (event) => this.onKey(event), { capture: true });
  }

  destroy(): void {
    this.over.abort();
  }

  /** How many steps there are. */
  protected abstract get steps(): number;

  /** Where a drag begins to select an interval, or -1; an interval that it selects; and that it has ended. */
  protected intervalFrom(_event: PointerEvent): number {
    return -1;
  }
  protected choose(_from: number, _to: number): void {}
  protected chosen(): void {}

  /** Does what another key says; returns whether it did. */
  protected actOn(_event: KeyboardEvent): boolean {
    return false;
  }

  /** Moves a step into view. */
  reveal(step: number): void {
    const n = this.steps;
    if (step < 0 || n === 0) return;
    this.look(showing(this.seen, this.onAxis({ from: step / n, to: (step + 1) / n })));
  }

  // --- the visible part ---

  private onAxis(steps: Span): Span {
    return this.axis.toAxis?.(steps) ?? steps;
  }

  /** The visible part of the axis. */
  private get seen(): Span {
    return this.onAxis(this.view.span);
  }

  private look(part: Span): void {
    this.view.lookAt(isWhole(part) ? ALL : (this.axis.toSteps?.(part) ?? part));
  }

  /** The place of the axis at a position. */
  private placeOf(x: number, span = this.seen): number {
    const [left, right] = this.ends;
    return placeAt(span, Math.min(1, Math.max(0, (x - left) / Math.max(1, right - left))));
  }

  /** What keys and buttons zoom about: the cursor's step, or what is in the middle. */
  protected middle(): number {
    const [step, n] = [this.axis.cursor(), this.steps];
    const { from, to } =
      step < 0 ? this.seen : this.onAxis({ from: step / n, to: Math.min(1, (step + 1) / n) });
    return (from + to) / 2;
  }

  protected zoom(by: number, about: number, span = this.seen): void {
    const n = Math.max(1, this.steps);
    const at = Math.min(n - LEAST, Math.max(0, Math.floor(this.stepsAt(about) * n) - LEAST / 2));
    const { from, to } = this.onAxis({ from: Math.max(0, at) / n, to: Math.min(n, at + LEAST) / n });
    this.look(zoomed(span, about, 2 ** by, to - from));
  }

  /** The place in the run of one on the axis. */
  private stepsAt(place: number): number {
    return this.axis.toSteps?.({ from: place, to: place }).from ?? place;
  }

  // --- gestures ---

  private onWheel(event: WheelEvent): void {
    if (!isOnTime(event)) return;
    const { deltaX, deltaY, deltaMode, shiftKey, clientX } = event;
    const pixels = [1, LINE, LINE * 20][deltaMode] ?? 1;
    const isAcross = shiftKey || Math.abs(deltaX) > Math.abs(deltaY);
    const isMeant = event.ctrlKey || event.metaKey;
    if (isAcross && !isMeant) {
      if (isWhole(this.view.span)) return;
      this.pan(((deltaX || deltaY) * pixels) / this.width, this.seen);
    } else {
      // Where something can be scrolled, the wheel scrolls.
      if (!isMeant && scrolls(this.surface)) return;
      const isPinch = event.ctrlKey && deltaMode === 0 && Math.abs(deltaY) < 50;
      this.zoom(deltaY * pixels * (isPinch ? PINCH : WHEEL), this.placeOf(clientX));
    }
    event.preventDefault();
  }

  /** Where the visible part begins and ends on the page. */
  private get ends(): [number, number] {
    const { left } = this.axis.plot.getBoundingClientRect();
    const inner = this.axis.inner();
    return [left + (inner?.left ?? 0), left + (inner?.right ?? 0)];
  }

  private get width(): number {
    const [left, right] = this.ends;
    return Math.max(1, right - left);
  }

  /** Moves by a share of the visible part. */
  private pan(by: number, span: Span): void {
    this.look(moved(span, by * (span.to - span.from)));
  }

  private press(event: PointerEvent): void {
    this.isDragging = false;
    if (event.button !== 0 || !isOnTime(event)) return;
    this.pointers.set(event.pointerId, event.clientX);
    this.begin(this.intervalFrom(event));
  }

  /** A gesture begins again when a finger is put down or lifted. */
  private begin(step = -1): void {
    this.gesture = { span: this.seen, at: [...this.pointers.values()], step };
  }

  private move(event: PointerEvent): void {
    const { gesture, pointers } = this;
    if (gesture === null || !pointers.has(event.pointerId)) return;
    // It was released where this heard nothing of it.
    if (event.buttons === 0) {
      this.release(event);
      return;
    }
    pointers.set(event.pointerId, event.clientX);
    const [x, other] = [...pointers.values()];
    const [from, otherFrom] = gesture.at;
    if (!this.isDragging) {
      const isIdle = gesture.step < 0 && isWhole(this.view.span) && !this.axis.dragTo;
      if (other === undefined && Math.abs(x! - from!) < (isIdle ? LOOSE : STILL)) return;
      this.isDragging = true;
      for (const id of pointers.keys()) this.surface.setPointerCapture?.(id);
    }
    if (other !== undefined && otherFrom !== undefined) {
      const apart = (a: number, b: number) => Math.max(20, Math.abs(a - b));
      const about = this.placeOf((from! + otherFrom) / 2, gesture.span);
      this.zoom(Math.log2(apart(from!, otherFrom) / apart(x!, other)), about, gesture.span);
    } else if (gesture.step >= 0) this.choose(gesture.step, this.axis.stepAt(x!));
    else if (!isWhole(this.view.span)) this.pan((from! - x!) / this.width, gesture.span);
    else this.axis.dragTo?.(this.axis.stepAt(x!));
  }

  private release(event: PointerEvent): void {
    if (!this.pointers.delete(event.pointerId)) return;
    if (this.pointers.size > 0) {
      this.begin();
      return;
    }
    const isChosen = this.isDragging && (this.gesture?.step ?? -1) >= 0;
    this.gesture = null;
    // The click comes after this event.
    setTimeout(() => {
      this.isDragging = false;
    });
    if (isChosen && event.type === "pointerup") this.chosen();
  }

  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if ((event.target as Element).matches("input, select, textarea")) return;
    const { key } = event;
    if (key === "+" || key === "=") this.zoom(-STEP, this.middle());
    else if (key === "-" || key === "_") this.zoom(STEP, this.middle());
    else if (key === "0") this.view.lookAt(ALL);
    else if (!this.actOn(event)) return;
    event.preventDefault();
    event.stopPropagation();
  }
}

const isOnTime = (event: Event) => (event.target as Element).closest(".jv-time") !== null;

/** Whether a wheel over an element scrolls something: a pane, the notebook or the page, or perhaps what the page is a frame in. */
function scrolls(element: Element): boolean {
  let each: Element | null = element;
  while (each !== null) {
    const { overflowY } = getComputedStyle(each);
    const isPage = each === document.scrollingElement;
    const canScroll = isPage ? overflowY !== "hidden" : overflowY === "auto" || overflowY === "scroll";
    if (canScroll && each.scrollHeight > each.clientHeight + 1) return true;
    if (each.matches(".jaxviz:fullscreen, .jv-fills")) return false;
    const root: Node = each.getRootNode();
    each = each.parentElement ?? (root instanceof ShadowRoot ? root.host : null);
  }
  return window.parent !== window;
}
