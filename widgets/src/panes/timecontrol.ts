/** Zooms and pans a chart over time, by wheel, fingers, drag, keys, double click and buttons; and selects an interval of it. */

import { formatCount, plural } from "../base/format";
import { onChange } from "../base/signals";
import { ALL, type Interval, isWhole, moved, placeAt, type Span, showing, zoomed } from "../model/span";
import { type Timeline, totalsOf } from "../model/timeline";
import type { State } from "../state/state";
import { button, h } from "../ui/dom";

/** The axis of a chart. Positions are in pixels of the page; the elements that show it have the class `jv-time`. */
export interface TimeAxis {
  /** The element that shows it, and where in it the visible part begins and ends. */
  plot: Element;
  inner(): { left: number; right: number } | null;
  /** A part of the run, given as fractions of its steps, as fractions of the axis, and back; the same if left out. */
  toAxis?(steps: Span): Span;
  toSteps?(part: Span): Span;
  timeline(): Timeline | null;
  stepAt(x: number): number;
  /** The step under the keyboard cursor, or -1; and moves it. */
  cursor(): number;
  moveTo(step: number): void;
  /** The pointer is dragged while the whole run is seen. */
  dragTo?(step: number): void;
}

/** How much a key or a button zooms, and a wheel per pixel, as powers of two; and a pinched touchpad, which sends small amounts. */
const [STEP, WHEEL, PINCH] = [1, 0.003, 0.03];

/** The height of a line, for mice whose wheels count those, in pixels. */
const LINE = 16;

/** How far the pointer moves before it drags, in pixels; and where a drag does nothing, before it does not click either. */
const [STILL, LOOSE] = [4, 16];

/** How many steps are visible at least, and how many around the peak, or that share of all. */
const [LEAST, AROUND, SHARE] = [4, 48, 1 / 8];

/** Steps are seen if at least this share of them is. */
const SLACK = 1e-6;

/** Where a gesture began. */
interface Gesture {
  span: Span;
  at: readonly number[];
  /** The step where a selected interval begins, or -1 if the gesture selects none. */
  step: number;
}

export class TimeControl {
  readonly bar: HTMLElement;
  private readonly said = h("output", {
    class: "jv-time-said jv-dim jv-digits jv-cut",
    "data-testid": "time-said",
  });
  private readonly out: readonly HTMLButtonElement[];
  private readonly select: HTMLButtonElement;
  private readonly pointers = new Map<number, number>();
  private gesture: Gesture | null = null;
  private isDragging = false;
  /** What is pointed at, if anything. */
  private told = "";
  /** The end of the interval that keys have moved, and the cursor's step then: the last of several, if they are shown as one. */
  private end = { step: -1, cursor: -1 };
  private readonly over = new AbortController();

  constructor(
    private readonly state: State,
    private readonly surface: HTMLElement,
    private readonly axis: TimeAxis,
  ) {
    const act = (text: string, title: string, id: string, onclick: () => void) =>
      button(text, onclick, { title, "aria-label": title.split(" (")[0]!, "data-testid": `time-${id}` });
    const zoom = (by: number) => () => this.zoom(by, this.middle());
    this.select = act("select", "Select an interval: drag (Shift + drag)", "select", () =>
      this.select.setAttribute("aria-pressed", String(!this.selects)),
    );
    this.select.setAttribute("aria-pressed", "false");
    this.out = [
      act("−", "Zoom out (-)", "out", zoom(STEP)),
      act("whole run", "Show the whole run (0, double click)", "all", () => state.time.lookAt(ALL)),
    ];
    this.bar = h(
      "div",
      { class: "jv-time-bar jv-row", role: "group", "aria-label": "time" },
      this.said,
      this.select,
      this.out[0]!,
      act("+", "Zoom in (+)", "in", zoom(-STEP)),
      act("peak", "Zoom to the peak", "peak", () => this.magnifyPeak()),
      this.out[1]!,
    );
    const on = <K extends keyof HTMLElementEventMap>(
      name: K,
      act: (event: HTMLElementEventMap[K]) => void,
      options: AddEventListenerOptions = {},
    ) => surface.addEventListener(name, act, { signal: this.over.signal, ...options });
    on("wheel", (event) => this.onWheel(event), { passive: false });
    on("pointerdown", (event) => this.press(event));
    on("pointermove", (event) => this.move(event));
    on("pointerup", (event) => this.release(event));
    on("pointercancel", (event) => this.release(event));
    on("lostpointercapture", (event) => event.target === surface && this.release(event));
    on("dblclick", (event) => isOnTime(event) && state.time.lookAt(ALL));
    // A drag that ends on a button is no click on it.
    on("click", (event) => this.isDragging && event.stopPropagation(), { capture: true });
    on("keydown", (event) => this.onKey(event), { capture: true });
    const stop = onChange(
      () => [state.time.span, state.time.interval],
      () => this.show(),
    );
    this.over.signal.addEventListener("abort", stop);
    this.show();
  }

  destroy(): void {
    this.over.abort();
  }

  /** Says what is pointed at; nothing for which steps are visible. */
  tell(text = ""): void {
    this.told = text;
    this.show();
  }

  /** Moves a step into view. */
  reveal(step: number): void {
    const n = this.steps;
    if (step < 0 || n === 0) return;
    this.look(showing(this.seen, this.onAxis({ from: step / n, to: (step + 1) / n })));
  }

  private show(): void {
    const { span } = this.state.time;
    for (const each of this.out) each.disabled = isWhole(span);
    const n = this.steps;
    this.bar.hidden = n === 0;
    const range = (first: number, last: number) => `steps ${formatCount(first)} to ${formatCount(last)}`;
    const [from, to] = [Math.floor(span.from * n + SLACK) + 1, Math.ceil(span.to * n - SLACK)];
    const seen = isWhole(span) ? plural(n, "step") : `${range(from, to)} of ${formatCount(n)}`;
    const { own } = this;
    const chosen =
      own && `${range(own.first + 1, own.last + 1)}: ${plural(own.last - own.first + 1, "step")}`;
    this.said.textContent = this.told || (chosen ?? seen);
  }

  // --- the visible part ---

  private get steps(): number {
    return this.axis.timeline()?.steps.length ?? 0;
  }

  private onAxis(steps: Span): Span {
    return this.axis.toAxis?.(steps) ?? steps;
  }

  /** The visible part of the axis. */
  private get seen(): Span {
    return this.onAxis(this.state.time.span);
  }

  private look(part: Span): void {
    this.state.time.lookAt(isWhole(part) ? ALL : (this.axis.toSteps?.(part) ?? part));
  }

  /** The place of the axis at a position. */
  private placeOf(x: number, span = this.seen): number {
    const [left, right] = this.ends;
    return placeAt(span, Math.min(1, Math.max(0, (x - left) / Math.max(1, right - left))));
  }

  /** What keys and buttons zoom about: the cursor's step, or what is in the middle. */
  private middle(): number {
    const [step, n] = [this.axis.cursor(), this.steps];
    const { from, to } =
      step < 0 ? this.seen : this.onAxis({ from: step / n, to: Math.min(1, (step + 1) / n) });
    return (from + to) / 2;
  }

  private zoom(by: number, about: number, span = this.seen): void {
    const n = Math.max(1, this.steps);
    const at = Math.min(n - LEAST, Math.max(0, Math.floor(this.stepsAt(about) * n) - LEAST / 2));
    const { from, to } = this.onAxis({ from: Math.max(0, at) / n, to: Math.min(n, at + LEAST) / n });
    this.look(zoomed(span, about, 2 ** by, to - from));
  }

  /** The place in the run of one on the axis. */
  private stepsAt(place: number): number {
    return this.axis.toSteps?.({ from: place, to: place }).from ?? place;
  }

  private magnifyPeak(): void {
    const timeline = this.axis.timeline();
    const peak = timeline ? totalsOf(timeline).peak : -1;
    if (peak < 0) return;
    const n = this.steps;
    const around = Math.min(n, AROUND, Math.max(LEAST, n * SHARE));
    const first = Math.min(n - around, Math.max(0, peak + 0.5 - around / 2));
    this.state.time.lookAt({ from: first / n, to: (first + around) / n });
    this.axis.moveTo(peak);
  }

  // --- gestures ---

  private onWheel(event: WheelEvent): void {
    if (!isOnTime(event)) return;
    const { deltaX, deltaY, deltaMode, shiftKey, clientX } = event;
    const pixels = [1, LINE, LINE * 20][deltaMode] ?? 1;
    const isAcross = shiftKey || Math.abs(deltaX) > Math.abs(deltaY);
    const isMeant = event.ctrlKey || event.metaKey;
    if (isAcross && !isMeant) {
      if (isWhole(this.state.time.span)) return;
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

  private get selects(): boolean {
    return this.select.getAttribute("aria-pressed") === "true";
  }

  private press(event: PointerEvent): void {
    this.isDragging = false;
    if (event.button !== 0 || !isOnTime(event)) return;
    this.pointers.set(event.pointerId, event.clientX);
    this.begin(event.shiftKey || this.selects ? this.axis.stepAt(event.clientX) : -1);
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
      const isIdle = gesture.step < 0 && isWhole(this.state.time.span) && !this.axis.dragTo;
      if (other === undefined && Math.abs(x! - from!) < (isIdle ? LOOSE : STILL)) return;
      this.isDragging = true;
      for (const id of pointers.keys()) this.surface.setPointerCapture?.(id);
    }
    if (other !== undefined && otherFrom !== undefined) {
      const apart = (a: number, b: number) => Math.max(20, Math.abs(a - b));
      const about = this.placeOf((from! + otherFrom) / 2, gesture.span);
      this.zoom(Math.log2(apart(from!, otherFrom) / apart(x!, other)), about, gesture.span);
    } else if (gesture.step >= 0) this.choose(gesture.step, this.axis.stepAt(x!));
    else if (!isWhole(this.state.time.span)) this.pan((from! - x!) / this.width, gesture.span);
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
    if (isChosen && event.type === "pointerup") this.list();
  }

  private choose(one: number, other: number): void {
    const timeline = this.axis.timeline();
    if (timeline === null || other < 0) return;
    this.state.time.choose({ timeline, first: Math.min(one, other), last: Math.max(one, other) });
  }

  /** The selected interval, if it is of this chart. */
  private get own(): Interval | null {
    const { interval } = this.state.time;
    return interval?.timeline === this.axis.timeline() ? interval : null;
  }

  /** Lists the equations of the interval. */
  private list(): void {
    this.select.setAttribute("aria-pressed", "false");
    this.state.arrange("cost");
  }

  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if ((event.target as Element).matches("input, select, textarea")) return;
    const { key, shiftKey } = event;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (key === "+" || key === "=") this.zoom(-STEP, this.middle());
    else if (key === "-" || key === "_") this.zoom(STEP, this.middle());
    else if (key === "0") this.state.time.lookAt(ALL);
    else if (shiftKey && by !== undefined) this.extend(by);
    else if (shiftKey && key === "Enter" && this.state.time.interval) this.list();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Moves the cursor's end of the interval. */
  private extend(by: number): void {
    const cursor = this.axis.cursor();
    if (cursor < 0) return;
    const from = cursor === this.end.cursor ? this.end.step : cursor;
    const to = Math.min(this.steps - 1, Math.max(0, from + by));
    const { first, last } = this.own ?? { first: from, last: from };
    this.axis.moveTo(to);
    this.reveal(to);
    this.end = { step: to, cursor: this.axis.cursor() };
    this.choose(from === last ? first : from === first ? last : from, to);
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
