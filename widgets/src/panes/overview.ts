/** The first view: what the gradient runs over time, forward then backward, what it saves for how long, and the memory. */

import { formatBytes, formatCount, formatFlops, plural } from "../base/format";
import { IN_MEMORY } from "../model/figures";
import {
  aliveOf,
  type Box,
  edgesOf,
  type Kept,
  lineOf,
  type Measure,
  type Overview,
  overviewOf,
  partOfSteps,
  type Scope,
  stepsOfPart,
} from "../model/overview";
import type { Place } from "../model/records";
import { stepAfter } from "../model/span";
import { peakOf, type Timeline, type Totals, totalsOf } from "../model/timeline";
import type { State } from "../state/state";
import { button, h, onResize, type Segment, segments, svg } from "../ui/dom";
import { marked } from "../ui/marked";
import { type Effects, reasonOf } from "../ui/pane";
import { Waiting } from "../ui/waiting";
import { STACKED } from "../wire/schema";
import { areas, type Band, band, DrawnAxis, nameBands, namesOf, styleOf, USUAL } from "./overviewdraw";
import { aboutKept, aboutScope, lifeOf } from "./overviewtext";
import type { TimeControl } from "./timecontrol";

/**
 * From each height on: the number of rows for saved expressions, including one for the rest; the levels of nested boxes; and the height of
 * a row. The lower, the more compact, so that the memory stays visible. In pixels, for text of the usual size.
 */
const SIZES = [
  { from: 460, rows: 6, depths: 4, band: 28 },
  { from: 380, rows: 6, depths: 4, band: 22 },
  { from: 0, rows: 4, depths: 2, band: 22 },
] as const;
type Size = (typeof SIZES)[number];

/** Boxes narrower than SEEN are not drawn, and repetitions narrower than REPEATED are one; in pixels. */
const [SEEN, REPEATED] = [2, 24];

const HINT = "Point at anything to highlight it in the source; click to see its equations.";

export class OverviewPane {
  readonly element: HTMLElement;
  private overview: Overview;
  private measure: Measure = "flops";
  private size: Size = SIZES[0];
  private width = 0;
  /** The height of the memory curve, which fills the remaining space. */
  private height = 84;
  private timeline: Timeline | null = null;
  private totals: Totals | null = null;
  /** Where each step begins, and the end, as fractions of the axis. */
  private edges: Float64Array = new Float64Array();
  private axis: DrawnAxis | null = null;
  private time: TimeControl | null = null;
  private waiting: Waiting | null = null;
  private boxes: { box: Box; element: HTMLElement }[] = [];
  /** The step under the pointer or keyboard cursor, or -1. */
  private at = -1;
  private isGone = false;
  private readonly stops: (() => void)[] = [];
  private readonly picture = h("div.jv-ov-picture.jv-column");
  private readonly flame = h("div.jv-ov-flame.jv-time", { role: "group", "data-testid": "scopes" });
  private readonly said = h("p.jv-ov-said.jv-cut", { "data-testid": "overview-said" });
  private readonly bands: Band[] = [];
  private readonly memory = h("div.jv-ov-plot.jv-ov-memory.jv-time");
  private readonly turn = h("div.jv-ov-turn");
  private readonly interval = h("div.jv-ov-interval", { hidden: true });
  private readonly cursor = h("div.jv-ov-cursor", { hidden: true });
  private readonly over = h("div.jv-ov-lines", this.turn, this.interval, this.cursor);
  private readonly bar = h("div.jv-ov-bar.jv-fixed");
  private readonly legend = h("div.jv-ov-legend.jv-small.jv-digits.jv-column");
  private readonly when = h("span.jv-cut");
  /** The bytes in the legend: of each step, and where they are shown. */
  private figures: { of: Float64Array; element: HTMLElement }[] = [];

  /** @param load loads what zooms. */
  constructor(
    private readonly state: State,
    private readonly load: () => Promise<typeof import("../host/parts/time")>,
  ) {
    this.overview = overviewOf(state.model);
    this.element = h(
      "section.jv-overview.jv-fills.jv-column",
      { "aria-label": "overview", "data-testid": "overview" },
      this.picture,
      h("div.jv-ov-below.jv-fixed.jv-row", this.said, this.bar),
    );
    this.picture.addEventListener("pointermove", (event) => this.follow(event));
    this.picture.addEventListener("pointerleave", () => this.moveTo(-1));
    this.stops.push(onResize(this.element, (_, height) => this.squeeze(height)));
    this.stops.push(onResize(this.flame, (width) => this.resize(Math.floor(width), this.height)));
    this.stops.push(onResize(this.memory, (_, height) => this.resize(this.width, Math.floor(height))));
  }

  readonly effects: Effects = [
    [() => this.state.hasMemory, () => this.refill()],
    [() => this.state.selection, () => this.light()],
    [() => this.state.time.interval, () => this.markInterval()],
    // The axis may have changed while another view was shown.
    [() => this.state.view === "overview" && this.state.time.span, () => this.redraw()],
  ];

  private refill(): void {
    this.overview = overviewOf(this.state.model);
    this.fill();
    this.draw();
  }

  private redraw(): void {
    if (this.state.view === "overview" && this.axis?.span !== this.state.time.span) this.draw();
  }

  destroy(): void {
    this.isGone = true;
    this.waiting?.destroy();
    this.time?.destroy();
    for (const stop of this.stops) stop();
  }

  focus(): void {
    (this.flame.querySelector<HTMLElement>("[tabindex='0']") ?? this.element).focus();
  }

  // --- content ---

  private fill(): void {
    const { view, timeline } = this.state.model;
    this.waiting?.destroy();
    this.waiting = null;
    this.say(null);
    if (view.has_memory) {
      this.timeline = timeline;
      this.totals = totalsOf(timeline);
      if (this.overview.sum("flops") === 0) this.measure = "equations";
      this.place();
    } else {
      this.waiting = new Waiting(this.state.rest, "Computing the work and the memory over time…");
      this.flame.replaceChildren(this.waiting.element);
      this.state.hasBegun = true;
      this.flame.style.setProperty("--depths", String(this.size.depths));
    }
    this.picture.replaceChildren(
      this.row("jv-ov-runs", this.whatRuns(), this.flame),
      this.row("jv-ov-heading jv-dim jv-nowrap", h("span", "saved for the backward pass"), h("div")),
      ...this.keptRows(),
      this.row("jv-ov-over", this.legend, this.memoryPlot()),
      ...(view.has_memory ? [this.over] : []),
    );
    this.fillLegend();
    if (view.has_memory) void this.control();
  }

  private place(): void {
    const { timeline, measure, overview } = this;
    if (timeline) this.edges = edgesOf(this.state.model, timeline, overview.widths(measure));
  }

  /** Loads what zooms, once there is a picture. */
  private async control(): Promise<void> {
    if (this.time !== null || this.bar.hasChildNodes()) return;
    this.bar.append("");
    try {
      const { TimeControl } = await this.load();
      if (this.isGone) return;
      this.time = new TimeControl(this.state, this.picture, {
        plot: this.memory,
        inner: () => ({ left: 0, right: this.width }),
        toAxis: (steps) => partOfSteps(this.edges, steps),
        toSteps: (part) => stepsOfPart(this.edges, part),
        timeline: () => this.timeline,
        stepAt: (x) => this.stepAt(x),
        cursor: () => this.at,
        moveTo: (step) => this.moveTo(step),
      });
      this.bar.replaceChildren(this.time.bar);
    } catch (error) {
      this.bar.replaceChildren(`There is no zoom: ${reasonOf(error)}`);
    }
  }

  private row(className: string, left: HTMLElement, right: HTMLElement): HTMLElement {
    left.classList.add("jv-ov-left");
    return h("div", { class: `jv-ov-row ${className}` }, left, right);
  }

  private whatRuns(): HTMLElement {
    const option = (measure: Measure, title: string): Segment<Measure> => [
      measure,
      measure === "flops" ? "FLOPs" : measure,
      { title, "data-testid": `by-${measure}`, disabled: this.overview.sum(measure) === 0 },
    ];
    const all = [
      option(
        "flops",
        "Widths are shares of the floating-point operations; a tenth is shared by all equations, so that each is seen",
      ),
      option("equations", "Widths are shares of the equations"),
    ];
    return h(
      "div.jv-ov-axis.jv-flex.jv-dim.jv-wraps",
      h("span", "what runs; widths are "),
      segments("width", all, this.measure, (measure) => this.weigh(measure)),
    );
  }

  private weigh(measure: Measure): void {
    this.measure = measure;
    this.place();
    this.draw();
  }

  private keptRows(): HTMLElement[] {
    const { kept } = this.overview;
    const alive = (k: Kept) => (this.timeline ? aliveOf(k, this.timeline) : new Float64Array());
    this.bands.length = 0;
    const most = this.size.rows;
    const shown = kept.slice(0, kept.length > most ? most - 1 : most);
    const rows = shown.map((k) =>
      this.keptRow(k, k.label, aboutKept(k, this.state.model), k.nbytes, alive(k)),
    );
    const rest = kept.slice(shown.length);
    if (rest.length > 0) {
      const all = { ...rest[0]!, residuals: rest.flatMap((k) => k.residuals) };
      const nbytes = rest.reduce((sum, k) => sum + k.nbytes, 0);
      rows.push(this.keptRow(null, `${plural(rest.length, "other expression")}`, "", nbytes, alive(all)));
    }
    if (rows.length === 0)
      rows.push(h("p.jv-message.jv-dim", "No value that the function computes is saved."));
    return rows;
  }

  private keptRow(
    kept: Kept | null,
    label: string,
    about: string,
    nbytes: number,
    alive: Float64Array,
  ): HTMLElement {
    const name = h(kept ? "code" : "span", { class: "jv-ov-name jv-cut" }, label);
    const size = h(
      "span.jv-dim.jv-cut",
      h("strong", formatBytes(nbytes)),
      about && h("span.jv-ov-about", ` · ${about}`),
    );
    const parts = [name, size];
    const open = () => (kept ? this.state.openKept(kept) : this.state.arrange("kept"));
    const left = button(parts, open, {
      class: "jv-ov-kept jv-bare jv-column",
      title: kept ? `${label}\n${kept.reason}` : "The table of residuals has all of them",
      "data-testid": "kept-row",
    });
    const plot = h("div.jv-ov-plot.jv-ov-band.jv-row.jv-time", { onclick: open });
    const row = this.row("", left, plot);
    this.onPointed(row, left, kept?.place ?? null, () => (kept ? lifeOf(kept, alive) : null));
    this.bands.push({ kept, name, size, plot, row, alive });
    return row;
  }

  private memoryPlot(): HTMLElement {
    const { timeline, totals } = this;
    if (!timeline || !totals || timeline.steps.length === 0) return this.memory;
    const attributes = {
      tabindex: "0",
      role: "slider",
      "aria-label": "memory over time",
      "aria-valuemin": "1",
      "aria-valuemax": String(timeline.steps.length),
      "aria-valuenow": "1",
      "data-testid": "overview-memory",
    };
    for (const [name, value] of Object.entries(attributes)) this.memory.setAttribute(name, value);
    this.memory.onblur = () => this.moveTo(-1);
    this.memory.onclick = (event) => this.selectStep(this.stepAt(event.clientX));
    this.memory.onkeydown = (event) => this.onMemoryKey(event);
    return this.memory;
  }

  // --- drawing ---

  /** How large text is, of the usual size. */
  private get letter(): number {
    return Number.parseFloat(getComputedStyle(this.element).fontSize) / USUAL || 1;
  }

  private squeeze(height: number): void {
    const size = SIZES.find(({ from }) => height >= from * this.letter)!;
    if (height === 0 || size === this.size) return;
    this.size = size;
    this.element.classList.toggle("is-low", size !== SIZES[0]);
    this.fill();
    this.draw();
  }

  private resize(width: number, height: number): void {
    if (width === 0) return;
    const isOther = width !== this.width || this.letter !== this.axis?.letter;
    if (!isOther && height === this.height) return;
    this.width = width;
    this.height = height;
    if (isOther) this.draw();
    else if (this.axis) this.drawMemory();
  }

  private draw(): void {
    if (this.width === 0 || !this.totals || !this.overview.isDrawn) {
      if (!this.waiting) this.flame.replaceChildren();
      return;
    }
    const { letter } = this;
    this.axis = new DrawnAxis(this.edges, this.state.time.span, this.width, letter);
    this.drawScopes(this.axis);
    nameBands(this.bands, letter);
    const most = Math.max(1, ...this.bands.map(({ alive }) => greatest(alive)));
    const high = Math.round(this.size.band * letter);
    for (const { plot, alive } of this.bands)
      plot.replaceChildren(this.drawing(high, band(alive, this.axis.columns, high - 4, most)));
    this.drawMemory();
    this.turn.style.transform = `translateX(${this.axis.start(this.totals.turn).toFixed(1)}px)`;
    this.markInterval();
    this.light();
  }

  private drawing(height: number, ...shapes: SVGElement[]): SVGElement {
    return svg("svg", { width: this.width, height, "aria-hidden": "true" }, ...shapes);
  }

  private markInterval(): void {
    const { interval } = this.state.time;
    const isOwn = interval !== null && interval.timeline === this.timeline;
    this.interval.hidden = !isOwn;
    if (!isOwn || !this.axis) return;
    const [from, to] = [this.axis.start(interval.first), this.axis.start(interval.last + 1)];
    this.interval.style.left = `${from.toFixed(1)}px`;
    this.interval.style.width = `${Math.max(1, to - from).toFixed(1)}px`;
  }

  private drawScopes(axis: DrawnAxis): void {
    const drawn = this.overview
      .boxes(this.overview.widths(this.measure), this.edges, axis.whole / REPEATED)
      .map((box) => ({ ...box, from: axis.clipped(box.from), to: axis.clipped(box.to) }))
      .filter(({ from, to, depth }) => depth < this.size.depths && (to - from) * this.width >= SEEN)
      .sort((a, b) => a.from - b.from || a.depth - b.depth);
    const least = this.state.hasBegun ? this.size.depths - 1 : 0;
    const depths = 1 + Math.max(least, ...drawn.map(({ depth }) => depth));
    const focused = this.boxes.find(({ element }) => element.matches(":focus"))?.box.scope.index;
    const names = namesOf(drawn, this.overview, axis);
    this.boxes = drawn.map((box, i) => ({ box, element: this.scopeBox(box, names.inside[i]!, i === 0) }));
    const pass = (name: string, isBackward: boolean, from: number, to: number) => {
      const cost = this.amount(this.overview.sum(this.measure, isBackward));
      const text = [`${name}, ${cost}`, name].find((t) => t.length * 7 * axis.letter < to - from) ?? "";
      return h(
        "div.jv-ov-pass.jv-dim.jv-small.jv-nowrap",
        {
          style: `left:${from.toFixed(1)}px;width:${(to - from).toFixed(1)}px`,
        },
        text,
      );
    };
    const turn = Math.min(this.width, Math.max(0, axis.start(this.totals!.turn)));
    this.flame.style.setProperty("--depths", String(depths));
    this.flame.replaceChildren(
      pass("forward", false, 0, turn),
      pass("backward", true, turn, this.width),
      ...this.boxes.map(({ element }) => element),
      ...names.across,
    );
    if (focused !== undefined) (this.elementOf(focused) ?? this.boxes[0]?.element)?.focus();
  }

  private amount(n: number): string {
    return this.measure === "flops" ? formatFlops(n) : plural(n, "equation");
  }

  private scopeBox(box: Box, name: string, isFirst: boolean): HTMLElement {
    const { scope } = box;
    const title = this.overview.titleOf(scope);
    const pass = scope.isBackward ? "backward" : "forward";
    const element = button(name, () => this.openScope(scope), {
      class: `jv-scope jv-bare is-${pass} is-${scope.kind}`,
      style: styleOf(box, this.width),
      tabindex: isFirst ? 0 : -1,
      "aria-label": `${title}, ${pass}, ${this.amount(scope[this.measure])}`,
      "data-testid": "scope",
    });
    this.onPointed(element, element, scope.place, () => aboutScope(scope, this.overview));
    element.addEventListener("keydown", (event) => this.onScopeKey(event as KeyboardEvent, box, element));
    return element;
  }

  private drawMemory(): void {
    const { totals, axis } = this;
    if (!totals || !axis || totals.peak < 0 || this.height <= 0) return;
    const most = peakOf(totals) || 1;
    const x = axis.centre(totals.peak);
    const at =
      x > this.width / 2 ? `right:${(this.width - x + 6).toFixed(1)}px` : `left:${(x + 6).toFixed(1)}px`;
    const peak = [
      h("div.jv-ov-peak-dot", { style: `left:${x.toFixed(1)}px` }),
      h("div.jv-ov-peak.jv-nowrap", { style: at }, `peak ${formatBytes(most)}`),
    ];
    this.memory.replaceChildren(
      this.drawing(this.height, ...areas(totals, axis.columns, this.height, most)),
      ...(x >= 0 && x <= this.width ? peak : []),
    );
    this.moveTo(this.at);
  }

  private fillLegend(): void {
    const { totals, legend } = this;
    this.figures = [];
    if (!totals || totals.peak < 0) {
      const { no_memory: reason } = this.state.model.view;
      legend.replaceChildren(...(reason ? marked(reason) : []));
      return;
    }
    const row = (of: Float64Array, name: string, element: HTMLElement, ...text: (Node | string)[]) => {
      this.figures.push({ of, element });
      return h("span", { class: name }, ...text, element);
    };
    const kinds = [...STACKED.keys()].filter((k) => totals.kinds[k]!.some((bytes) => bytes > 0)).reverse();
    legend.replaceChildren(
      row(totals.total, "jv-ov-when", h("strong"), this.when),
      ...kinds.map((k) =>
        row(totals.kinds[k]!, `jv-ov-kind jv-swatch jv-of-${STACKED[k]}`, h("span"), IN_MEMORY[STACKED[k]!]),
      ),
    );
    this.tellMemory(-1);
  }

  /** Says what is in memory at a step, or at the peak; only texts change. */
  private tellMemory(step: number): void {
    const at = step >= 0 ? step : (this.totals?.peak ?? -1);
    this.when.textContent = step >= 0 ? `memory at step ${formatCount(step + 1)}` : "memory at the peak";
    for (const { of, element } of this.figures) element.textContent = formatBytes(of[at]!);
  }

  // --- pointing and choosing ---

  private say(text: string | null): void {
    this.said.replaceChildren(...marked(text ?? HINT));
    this.said.classList.toggle("is-hint", text === null);
  }

  private point(place: Place | null): void {
    this.state.pointTo(place);
  }

  /** While one element is hovered, or another has the focus, highlights a place and says what is there. */
  private onPointed(
    hovered: HTMLElement,
    focused: HTMLElement,
    place: Place | null,
    about: () => string | null,
  ): void {
    const point = (place: Place | null, text: string | null) => {
      this.point(place);
      this.say(text);
    };
    hovered.addEventListener("pointerenter", () => point(place, about()));
    hovered.addEventListener("pointerleave", () => point(null, null));
    focused.addEventListener("focus", () => point(place, about()));
    focused.addEventListener("blur", () => point(null, null));
  }

  private openScope(scope: Scope): void {
    this.state.arrange("kept");
    this.state.selectRows(this.overview.rowsOf(scope));
  }

  private openStep(step: number): void {
    const row = this.timeline?.steps[step]?.row ?? -1;
    if (row < 0) return;
    this.state.arrange("cost");
    this.state.selectRow(row);
  }

  /** Shows the step under the pointer on all rows; over the memory it is also said. */
  private follow(event: PointerEvent): void {
    const target = event.target as Element;
    if (!target.closest(".jv-time")) this.moveTo(-1);
    else this.moveTo(this.stepAt(event.clientX), this.memory.contains(target));
  }

  private selectStep(step: number): void {
    const row = this.timeline?.steps[step]?.row ?? -1;
    if (row >= 0) this.state.selectRow(row);
  }

  private stepAt(clientX: number): number {
    const { axis, totals } = this;
    return axis && totals ? axis.stepAt(clientX - this.memory.getBoundingClientRect().left, totals) : -1;
  }

  private moveTo(step: number, isSaid = true): void {
    const before = this.at;
    this.at = step;
    if (before < 0 && step < 0) return;
    this.tellMemory(step);
    this.cursor.hidden = step < 0;
    if (step < 0) {
      this.memory.removeAttribute("aria-valuetext");
      this.point(null);
      this.say(null);
      return;
    }
    const { row } = this.timeline!.steps[step]!;
    const { model } = this.state;
    this.cursor.style.transform = `translateX(${(this.axis?.centre(step) ?? 0).toFixed(1)}px)`;
    if (!isSaid) return;
    const place = model.place(row);
    const text = `step ${formatCount(step + 1)}: \`${model.primitive(row)}\` at \`${lineOf(model, place)}\``;
    this.memory.setAttribute("aria-valuenow", String(step + 1));
    this.memory.setAttribute(
      "aria-valuetext",
      `${text.replaceAll("`", "")}, ${formatBytes(this.totals!.total[step]!)}`,
    );
    this.point(place);
    this.say(`${text} · ${model.placeText(place)}`);
  }

  private onMemoryKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || !this.timeline) return;
    const { peak } = this.totals!;
    const to = stepAfter(event.key, this.at, this.timeline.steps.length, peak);
    if (event.key === "Enter" || event.key === " ") this.openStep(this.at < 0 ? peak : this.at);
    else if (to === undefined) return;
    else this.moveTo(to);
    this.time?.reveal(this.at);
    event.preventDefault();
    event.stopPropagation();
  }

  /** Arrow keys go to the enclosing scope, to a nested one, and to those next to it. */
  private onScopeKey(event: KeyboardEvent, { scope, depth }: Box, element: HTMLElement): void {
    const beside = this.boxes.filter(({ box }) => box.depth === depth);
    const at = beside.findIndex((other) => other.element === element);
    const inside = scope.children.map((child) => this.elementOf(child.index)).find((child) => child);
    const next = {
      ArrowUp: this.elementOf(scope.parent),
      ArrowDown: inside,
      ArrowLeft: beside[at - 1]?.element,
      ArrowRight: beside[at + 1]?.element,
      Home: beside[0]?.element,
      End: beside.at(-1)?.element,
    }[event.key];
    if (!event.key.startsWith("Arrow") && event.key !== "Home" && event.key !== "End") return;
    event.preventDefault();
    event.stopPropagation();
    if (next === undefined) return;
    element.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  private elementOf(scope: number): HTMLElement | undefined {
    return this.boxes.find(({ box }) => box.scope.index === scope)?.element;
  }

  /** Highlights the scopes and saved expressions of the selection. */
  private light(): void {
    const { selection, model } = this.state;
    const scopes = new Set(
      [...selection.rows].flatMap((row) => this.overview.around(row).map((s) => s.index)),
    );
    if (selection.line >= 0)
      for (const row of model.rowsOfLine(selection.file, selection.line))
        for (const scope of this.overview.around(row)) scopes.add(scope.index);
    for (const { box, element } of this.boxes)
      element.classList.toggle("is-lit", scopes.has(box.scope.index));
    for (const { kept, row } of this.bands) {
      const isOfLine = kept?.place?.file === selection.file && kept?.place?.line === selection.line;
      const isMeant = kept !== null && (isOfLine || kept.residuals.some((r) => selection.residuals.has(r)));
      row.classList.toggle("is-lit", isMeant);
    }
  }
}

const greatest = (values: Float64Array): number => values.reduce((a, b) => Math.max(a, b), 0);
