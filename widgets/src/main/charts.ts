/**
 * Zooms the charts of reports along their axis, as the explorer does its own. `jaxviz/report/pictures.py` draws them as still pictures that
 * say what moves; `jaxviz/page/bundle.py` has this module. A picture is attended to when it is first pointed at or focused.
 */

import { formatBytes, formatCount } from "../base/format";
import { onChange } from "../base/signals";
import { shortened } from "../graph/layout/stubs";
import { keepState } from "../host/keep";
import type { WidgetModel } from "../host/model";
import { textOf } from "../host/zip";
import { isWhole, placeAt, seenAt, stepAfter, TimeView } from "../model/span";
import { columnsOf } from "../model/timeline";
import { h, svg } from "../ui/dom";
import { type Axis, Zoom } from "../ui/zoom";
import type { Along, Areas, Zoomable } from "../wire/charts.generated";

const PICTURES = "svg[data-zoom]";
const HOW = "Ctrl + wheel, + and − zoom; a drag and the arrow keys move; a double click and 0 show all.";

/** In units of a picture: its width, a letter of its names, and how far the cursor is from the top where nothing says. */
const [WIDTH, LETTER, TOP] = [480, 7.25, 46];

/** How finely a part of an axis without steps can be chosen, and how many keys pass what is visible of it. */
const [FINE, KEYS] = [4000, 100];

/** The size of the steps of an axis that are visible, as a round number: at most `most` of them. */
function roundStep(span: number, most: number): number {
  const power = 10 ** Math.floor(Math.log10(span / most));
  return [1, 2, 5, 10, 20].map((m) => m * power).find((step) => span / step < most + 1)!;
}

/** The ticks of a part of an axis, with their texts, as `Axis.ticks` of `jaxviz/report/charts.py` has those of all of it. */
export function ticksOf({ units, whole }: Along, from: number, to: number, most: number): [number, string][] {
  const [unit, size] = units.find(([, size]) => to >= size) ?? units.at(-1)!;
  const step = Math.max(roundStep((to - from) / size, most), whole ? 1 / size : 0);
  const found: [number, string][] = [];
  for (let i = Math.ceil(from / size / step - 1e-9); i * step * size <= to * (1 + 1e-9); i++)
    found.push([i * step * size, i === 0 ? "0" : `${Number((i * step).toPrecision(12))} ${unit}`.trim()]);
  return found;
}

/** An amount on an axis, about as exactly as its visible part allows. */
function written({ units }: Along, value: number, span: number): string {
  const [unit, size] = units.find(([, size]) => value >= size) ?? units.at(-1)!;
  const digits = Math.min(6, Math.max(0, Math.ceil(-Math.log10(span / size)) + 2));
  return `${Number((value / size).toFixed(digits)).toLocaleString("en-US", { maximumFractionDigits: digits })} ${unit}`.trim();
}

/** An element that moves, with what it was. */
interface Moved {
  element: SVGElement;
  x: number;
  width: number;
}

/** A text that is said of a part of the axis. */
interface Said {
  element: SVGElement;
  from: number;
  to: number;
  half: number;
  x: string;
}

class Picture extends Zoom {
  private readonly title: SVGTextElement;
  private readonly about: string;
  private readonly moved: readonly Moved[];
  private readonly areas: readonly SVGElement[];
  private readonly names: readonly Moved[];
  private readonly texts: readonly Said[];
  private readonly ticks: SVGElement | undefined;
  /** What is only there while it is zoomed, and where the cursor is. */
  private readonly added: SVGElement[] = [];
  private readonly line = svg("path", {
    d: "",
    stroke: "currentColor",
    "stroke-opacity": 0.6,
    "pointer-events": "none",
  });
  private readonly said = h("output", {
    style: "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)",
  });
  /** The amounts of each kind at each step, and their sums. */
  private readonly amounts: readonly Float64Array[];
  private readonly total: Float64Array;
  private at = -1;

  constructor(
    private readonly picture: SVGSVGElement,
    private readonly data: Zoomable,
  ) {
    const view = new TimeView();
    const axis: Axis = {
      plot: picture,
      inner: () => ({ left: data.along.left * this.scale, right: data.along.right * this.scale }),
      stepAt: (x) => this.stepAt(this.placeAtX(x)),
      cursor: () => this.at,
    };
    super(view, picture, axis);
    this.amounts = (data.areas?.changes ?? []).map(summed);
    this.total = new Float64Array(this.amounts[0]?.length ?? 0);
    for (let i = 0; i < this.total.length; i++)
      for (const amounts of this.amounts) this.total[i]! += amounts[i]!;
    this.title = picture.querySelector("text")!;
    this.about = this.title.textContent ?? "";
    picture.querySelector("title")!.textContent = HOW;
    picture.classList.add("jv-time");
    Object.assign(picture.style, { touchAction: "pan-y", userSelect: "none" });
    picture.tabIndex = 0;
    const groups = [...picture.querySelectorAll<SVGElement>("[data-moves]")];
    for (const group of groups) this.clip(group);
    this.ticks = groups.find((group) => group.dataset["moves"] === "ticks");
    const inside = groups.filter((group) => group !== this.ticks).flatMap((group) => [...group.children]);
    const all = (inside as SVGElement[]).map((element) => ({ element, ...placeOf(element) }));
    this.areas = data.areas ? all.filter(({ element }) => isArea(element)).map(({ element }) => element) : [];
    const bars = all.filter(({ element }) => element.parentElement!.dataset["moves"] === "bars");
    this.names = bars.filter(({ element }) => element.tagName === "text");
    this.texts = [...picture.querySelectorAll<SVGElement>("[data-at]")].map((element) => {
      const [from, to] = element.dataset["at"]!.split(" ").map(Number);
      const half = (LETTER * element.textContent!.length) / 2;
      return { element, from: from!, to: to!, half, x: element.getAttribute("x")! };
    });
    const other = new Set<Element>([
      ...this.areas,
      ...[...this.names, ...this.texts].map(({ element }) => element),
      ...this.texts.map(({ element }) => element.parentElement!),
    ]);
    this.moved = all.filter(({ element }) => !other.has(element));
    picture.append(this.line);
    picture.parentElement!.append(this.said);
    const on = (name: string, act: (event: PointerEvent) => void) =>
      picture.addEventListener(name, act as EventListener, { signal: this.over.signal });
    on("pointermove", (event) => this.point(event));
    on("pointerleave", () => this.tell(-1));
    on("blur", () => this.tell(-1));
    onChange(
      () => view.span,
      () => this.draw(),
    );
  }

  /** What is outside of the axis is not seen. */
  private clip(group: SVGElement): void {
    const { left, right } = this.data.along;
    const height = this.picture.viewBox.baseVal?.height ?? 0;
    const [x, width] = [left - 1, right - left + 2];
    const window = svg("svg", {
      x,
      y: 0,
      width,
      height,
      viewBox: `${x} 0 ${width} ${height}`,
      overflow: "visible",
    });
    group.replaceWith(window);
    window.append(group);
    for (const text of group.querySelectorAll("[data-at]")) {
      const whole = (text.parentElement as Element) === group ? text : text.parentElement!;
      this.picture.insertBefore(whole, window.nextSibling);
    }
  }

  /** Pixels of the page for a unit of the picture. */
  private get scale(): number {
    return this.picture.getBoundingClientRect().width / WIDTH;
  }

  protected get steps(): number {
    return this.data.areas ? this.total.length : FINE;
  }

  /** The place on the axis at a position of the page. */
  private placeAtX(x: number): number {
    const { left, right } = this.data.along;
    const at = (x - this.picture.getBoundingClientRect().left) / this.scale;
    return placeAt(this.view.span, Math.min(1, Math.max(0, (at - left) / (right - left))));
  }

  private x(place: number): number {
    const { left, right } = this.data.along;
    return left + (right - left) * seenAt(this.view.span, place);
  }

  /** The steps that are visible, and those with the least and the most in each column of the picture. */
  private get columns() {
    const n = this.steps;
    const first = Math.floor(this.view.span.from * n + 1e-6);
    const end = Math.min(n, Math.ceil(this.view.span.to * n - 1e-6));
    const { left, right } = this.data.along;
    return { first, end, high: columnsOf(this.total, right - left, first, end).high };
  }

  /** The step at a place: of several in one column of the picture, the one with the most. */
  private stepAt(place: number): number {
    const step = Math.min(this.steps - 1, Math.floor(place * this.steps));
    if (!this.data.areas) return step;
    const { first, end, high } = this.columns;
    const column = Math.floor(((place * this.steps - first) / (end - first)) * high.length);
    return high[Math.min(high.length - 1, Math.max(0, column))]!;
  }

  // --- drawing ---

  private draw(): void {
    for (const each of this.added.splice(0)) each.remove();
    const { span } = this.view;
    const isAll = isWhole(span);
    const { left, right } = this.data.along;
    const by = 1 / (span.to - span.from);
    const shift = left - by * (left + (right - left) * span.from);
    for (const { element, x, width } of this.moved) {
      if (element.tagName === "rect") {
        element.setAttribute("x", (by * x + shift).toFixed(2));
        element.setAttribute("width", (by * width).toFixed(2));
      } else if (element.tagName === "path") {
        element.setAttribute("transform", `matrix(${by} 0 0 1 ${shift} 0)`);
        element.setAttribute("vector-effect", "non-scaling-stroke");
      } else element.setAttribute("transform", `translate(${(by - 1) * x + shift} 0)`);
      if (isAll) for (const name of ["transform", "vector-effect"]) element.removeAttribute(name);
    }
    for (const { element, from, to, half, x } of this.texts) {
      const [start, end] = [Math.max(left, by * from + shift), Math.min(right, by * to + shift)];
      const hasRoom = from === to ? start <= end : end - start > 2 * half;
      const at = Math.min(WIDTH - half, Math.max(half, (start + end) / 2));
      element.setAttribute("x", isAll ? x : at.toFixed(1));
      element.style.display = isAll || hasRoom ? "" : "none";
    }
    for (const each of this.picture.querySelectorAll("svg"))
      each.style.overflow = isAll ? "visible" : "hidden";
    for (const each of [...this.areas, ...this.names.map(({ element }) => element)])
      each.style.display = isAll ? "" : "none";
    for (const each of this.ticks?.children ?? []) (each as SVGElement).style.display = isAll ? "" : "none";
    if (!isAll) {
      if (this.data.areas) this.stack(this.data.areas);
      this.nameBars();
      this.tick();
    }
    this.tell(this.at);
  }

  private add(group: Element, before: Element | null, element: SVGElement): void {
    group.insertBefore(element, before);
    this.added.push(element);
  }

  /** Areas for the visible steps. */
  private stack({ kinds, top, base, scale }: Areas): void {
    const { first, end, high } = this.columns;
    const n = this.steps;
    const edge = (c: number) => this.x((first + ((end - first) * c) / high.length) / n).toFixed(2);
    const group = this.areas[0]?.parentElement;
    if (!group) return;
    const below = new Float64Array(high.length);
    const y = (amount: number) => (base - (scale * amount) / top).toFixed(1);
    kinds.forEach(([, fill], k) => {
      const amounts = this.amounts[k]!;
      if (!high.some((step) => amounts[step]! > 0)) return;
      let [over, under] = [`M${edge(0)} ${y(below[0]!)}`, ""];
      high.forEach((step, c) => {
        under = `H${edge(c + 1)}V${y(below[c]!)}${under}`;
        below[c]! += amounts[step]!;
        over += `V${y(below[c]!)}H${edge(c + 1)}`;
      });
      this.add(group, this.areas[0]!, svg("path", { d: `${over}${under}Z`, fill }));
    });
  }

  /** Names in the bars that have room for them. */
  private nameBars(): void {
    const { left, right } = this.data.along;
    for (const { element } of this.moved) {
      if (element.parentElement!.dataset["moves"] !== "bars" || !element.dataset["said"]) continue;
      const [x, width, y] = ["x", "width", "y"].map((name) => Number(element.getAttribute(name)));
      const from = Math.max(left, x!);
      const room = Math.floor((Math.min(right, x! + width!) - from - 4) / LETTER);
      if (room <= 2) continue;
      const name = element.dataset["said"].replace(/: [^:]*$/, "");
      const at = { x: from + 3, y: y! + 12, fill: this.names[0]?.element.getAttribute("fill") ?? "black" };
      this.add(
        element.parentElement!,
        null,
        svg("text", { ...at, "pointer-events": "none" }, shortened(name, room)),
      );
    }
  }

  private tick(): void {
    const { along } = this.data;
    if (!this.ticks) return;
    const [from, to] = [this.view.span.from * along.last, this.view.span.to * along.last];
    for (const [value, text] of ticksOf(along, from, to, 3)) {
      const x = this.x(value / along.last);
      const half = (LETTER * text.length) / 2;
      const at = Math.min(along.right - half, Math.max(along.left + half, x));
      this.add(
        this.ticks,
        null,
        svg("path", { d: `M${x} ${along.ticks}v4`, stroke: "currentColor", "stroke-opacity": 0.5 }),
      );
      const look = { fill: "currentColor", "fill-opacity": 0.75, "text-anchor": "middle" };
      this.add(this.ticks, null, svg("text", { x: at, y: along.ticks + 16, ...look }, text));
    }
  }

  // --- reading ---

  /** Says what is pointed at. */
  point(event: PointerEvent): void {
    const box = (event.target as Element).closest<SVGElement>("[data-said]");
    const place = this.placeAtX(event.clientX);
    this.tell(this.stepAt(place), box?.dataset["said"]);
  }

  /** Says what is at a step in place of the title; without one, which part is seen. */
  private tell(step: number, box?: string): void {
    this.at = step;
    const { along, areas } = this.data;
    const { from, to } = this.view.span;
    const seen = isWhole(this.view.span) ? this.about : this.range(from, to);
    const text = step < 0 ? seen : (box ?? this.valuesAt(step));
    this.title.textContent = shortened(text, Math.floor(WIDTH / LETTER));
    const x = this.x((step + 0.5) / this.steps);
    const isSeen = step >= 0 && x >= along.left && x <= along.right;
    const bars = this.moved.filter(({ element }) => element.tagName === "rect");
    const highest = Math.min(...bars.map(({ element }) => Number(element.getAttribute("y"))));
    const top = areas ? areas.base - areas.scale : bars.length > 0 ? highest : TOP;
    const bottom = areas?.base ?? along.ticks;
    this.line.setAttribute("d", isSeen ? `M${x.toFixed(1)} ${top - 4}V${bottom}` : "");
  }

  /** What a part of the axis is, or of one place. */
  private range(from: number, to = from): string {
    const { along, areas } = this.data;
    const n = this.steps;
    const span = (this.view.span.to - this.view.span.from) * along.last;
    const value = (place: number) =>
      written(along, along.whole ? Math.round(place * along.last) : place * along.last, span);
    const counted = areas || along.whole;
    const name = areas?.step ?? (/^\w+$/.test(along.label) ? along.label : "");
    const [first, last] = areas
      ? [Math.floor(from * n + 1e-6) + 1, Math.ceil(to * n - 1e-6)].map(formatCount)
      : [value(from), value(to)];
    if (from === to) return counted && name ? `${name} ${first}` : first!;
    return `${counted && name ? `${name}s ` : ""}${first} to ${last} of ${areas ? formatCount(n) : value(1)}`;
  }

  private valuesAt(step: number): string {
    const { areas, curves, along } = this.data;
    const place = (step + (areas ? 0 : 0.5)) / this.steps;
    if (areas) {
      const parts = areas.kinds
        .map(([kind], k) => ({ kind, n: this.amounts[k]![step]! }))
        .filter(({ n }) => n > 0)
        .sort((a, b) => b.n - a.n)
        .map(({ kind, n }) => `${kind} ${formatBytes(n)}`);
      const pass = areas.passes.filter(([, first]) => first <= step).at(-1)?.[0];
      return `${pass ? `${pass}, ` : ""}${this.range(place)}: ${formatBytes(this.total[step]!)}: ${parts.join(", ")}`;
    }
    const read = curves.flatMap(({ name, x, y }) => {
      const near = nearest(x, place * along.last);
      return near < 0 ? [] : [`${name} ${y[near]!.toPrecision(3)}`];
    });
    return [this.range(place), ...(read.length > 0 ? [read.join(", ")] : [])].join(": ");
  }

  protected override actOn({ key, shiftKey }: KeyboardEvent): boolean {
    if (shiftKey) return false;
    const n = this.steps;
    const { from, to } = this.view.span;
    const stride = this.data.areas ? 1 : Math.max(1, Math.round((n * (to - from)) / KEYS));
    const start = Math.floor(((from + to) / 2) * n);
    const next = stepAfter(
      key,
      this.at < 0 ? -1 : Math.floor(this.at / stride),
      Math.ceil(n / stride),
      Math.floor(start / stride),
    );
    if (next === undefined) return false;
    const step = Math.min(n - 1, next * stride);
    this.reveal(step);
    this.tell(step);
    this.said.textContent = this.title.textContent;
    return true;
  }
}

/** The amounts whose differences are given. */
function summed(changes: readonly number[]): Float64Array {
  let sum = 0;
  return Float64Array.from(changes, (change) => (sum += change));
}

/** The index of the number in an ascending list that is nearest to another; -1 if there is none. */
function nearest(sorted: readonly number[], to: number): number {
  let best = -1;
  sorted.forEach((x, i) => {
    if (best < 0 || Math.abs(x - to) < Math.abs(sorted[best]! - to)) best = i;
  });
  return best;
}

const isArea = (element: Element) =>
  element.tagName === "path" && element.getAttribute("fill") !== "none" && !element.hasAttribute("stroke");

function placeOf(element: Element): { x: number; width: number } {
  const at = element.tagName === "g" ? element.querySelector("text")! : element;
  const number = (name: string) => Number(at.getAttribute(name) ?? 0);
  return { x: at.tagName === "circle" ? number("cx") : number("x"), width: number("width") };
}

const known = new WeakSet<Element>();

/** Attends to a picture, beginning with what it is pointed at by, if anything. */
export async function zoomable(picture: SVGSVGElement, event?: Event): Promise<void> {
  if (known.has(picture)) return;
  known.add(picture);
  const packed = Uint8Array.from(atob(picture.dataset["zoom"]!), (c) => c.charCodeAt(0));
  const made = new Picture(picture, JSON.parse(await textOf(packed)) as Zoomable);
  if (event?.type === "pointerover") made.point(event as PointerEvent);
}

/** Makes all pictures of the page reachable with the keyboard. */
function offer(): void {
  for (const picture of document.querySelectorAll<SVGSVGElement>(`${PICTURES}:not([tabindex])`))
    picture.tabIndex = 0;
}

const page = globalThis as { [key: symbol]: boolean | undefined };
const ATTENDED = Symbol.for("jaxviz attends to pictures");

/** Attends to the pictures of the page, once for all notebooks in it. */
export function attend(): void {
  if (page[ATTENDED]) return;
  page[ATTENDED] = true;
  const meet = (event: Event) => {
    if (event.type === "focusin") offer();
    const picture = (event.composedPath()[0] as Element).closest?.<SVGSVGElement>(PICTURES);
    if (picture) void zoomable(picture, event);
  };
  for (const type of ["pointerover", "focusin"])
    document.addEventListener(type, meet, { capture: true, passive: true });
  offer();
}

function initialize({ model }: { model: WidgetModel }): void {
  keepState(model);
  attend();
}

export default { initialize, render: () => {} };
